//! Chooses the engine that sizes the command's connections: programs in the kernel, or this process without any
//! privilege.

use std::fmt;
use std::os::fd::AsFd;

use anyhow::{Context, Result};
use bufwise_bpf::{Cgroup, Engine, UserEngine};
use bufwise_host::caps::{Caps, Raised};
use bufwise_host::tuner::RunEngine;
use bufwise_host::tuner::plan::Plan;
use bufwise_host::tuner::sizes::AtOnce;
use bufwise_host::{in_words, leftovers};
use bufwise_units::Bytes;
use clap::ValueEnum;
use serde::Serialize;

/// `--engine`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Wanted {
    /// The engine in the kernel if the caller may load it, else the one in user space
    Auto,
    /// eBPF programs on a cgroup of the command's own: needs root, or capabilities
    Kernel,
    /// Only this process: needs no privilege, uses neither eBPF nor cgroups
    User,
}

/// The engine that was chosen, in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    Kernel,
    User,
}

impl Kind {
    pub(super) fn of(engine: &RunEngine) -> Self {
        match engine {
            RunEngine::Kernel(_) => Self::Kernel,
            RunEngine::User(_) => Self::User,
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kernel => "in the kernel",
            Self::User => "in user space, without privilege",
        })
    }
}

/// The engine and the resources that it needs.
pub(super) struct Chosen {
    pub(super) engine: RunEngine,
    /// The command's own cgroup; `None` with the engine in user space.
    pub(super) cgroup: Option<Cgroup>,
    /// Maxima of the host that stay raised until this is dropped.
    pub(super) raised: Option<Raised>,
    /// Lines for the report.
    pub(super) notes: Vec<String>,
    /// Reason why the engine in the kernel, although preferred, was not chosen.
    pub(super) reason: Option<String>,
}

/// Chooses the engine, loads it and attaches it.
pub(super) fn choose(wanted: Wanted, plan: &Plan) -> Result<Chosen> {
    let mut cleared = Vec::new();
    match wanted {
        Wanted::Kernel => in_the_kernel(plan, &mut cleared),
        Wanted::User => Ok(in_user_space(plan, None)),
        Wanted::Auto => Ok(in_the_kernel(plan, &mut cleared).unwrap_or_else(|error| {
            let reason = Some(in_words(error.as_ref()));
            Chosen { notes: cleared, ..in_user_space(plan, reason) }
        })),
    }
}

/// Notes in `cleared` what a killed bufwise had left, also if the engine cannot be loaded then.
fn in_the_kernel(plan: &Plan, cleared: &mut Vec<String>) -> Result<Chosen> {
    let (found, refused) = leftovers::clear_most();
    let lines = found.done.iter().chain(&found.failed);
    cleared.extend(lines.map(|line| format!("left by a killed bufwise: {line}")));
    let refused = refused
        .map(|error| format!("cannot clear what a killed bufwise may have left: {}", in_words(&error)));
    let cgroup = Cgroup::create()?;
    let mut engine = Engine::load(&plan.run_config())?;
    engine.attach(cgroup.as_fd())?;
    engine.expect_only_new()?;
    let mut notes: Vec<String> = std::mem::take(cleared).into_iter().chain(refused).collect();
    let raised = match plan.window_scale().map(|wanted| Caps::of_host().raise(&[wanted])).transpose() {
        Ok(raised) => raised,
        Err(error) => {
            notes.push(small_windows(plan.max_window, &in_words(&error)));
            None
        }
    };
    let engine = RunEngine::Kernel(Box::new(engine));
    Ok(Chosen { engine, cgroup: Some(cgroup), raised, notes, reason: None })
}

/// Says what it means that the maximum of `tcp_rmem` could not be raised to `wanted`, why that is, and what to do.
fn small_windows(wanted: Bytes, why: &str) -> String {
    let Bytes(wanted) = wanted;
    format!(
        "receive windows may stay too small for long, fast paths: the kernel fixes the largest window of a connection when it \
         begins, from the maximum of net.ipv4.tcp_rmem, and bufwise could not raise this maximum ({why}); to have larger \
         windows, set the third number of net.ipv4.tcp_rmem to {wanted} by sysctl before the command starts"
    )
}

/// Returns the engine in user space, which changes no setting of the host.
fn in_user_space(plan: &Plan, reason: Option<String>) -> Chosen {
    let engine = RunEngine::User(Box::new(UserEngine::new(&plan.engine_config())));
    Chosen { engine, cgroup: None, raised: None, notes: Vec::new(), reason }
}

/// Bounds the bytes that network devices accept at once. Fails only if the user named the size: if the host refuses a size
/// that bufwise has chosen, the devices stay unbounded.
pub(super) fn bound_devices(plan: &Plan, asked: AtOnce, notes: &mut Vec<String>) -> Result<Option<Raised>> {
    let raised = plan.devices.map(|wanted| Caps::of_host().raise(&[wanted])).transpose();
    match raised {
        Ok(raised) => {
            let changes = raised.iter().flat_map(Raised::raised);
            notes.extend(changes.map(|change| format!("meanwhile {change}")));
            Ok(raised)
        }
        Err(_) if asked == AtOnce::Auto => Ok(None),
        Err(error) => Err(error).context("cannot set --gso-max-size here"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_that_stays_is_told_with_its_effect_its_reason_and_a_remedy() {
        let note = small_windows(Bytes(67_108_864), "cannot write it: Read-only file system (os error 30)");
        for words in [
            "receive windows may stay too small",
            "(cannot write it: Read-only file system (os error 30))",
            "set the third number of net.ipv4.tcp_rmem to 67108864 by sysctl",
        ] {
            assert!(note.contains(words), "{words}: {note}");
        }
    }
}
