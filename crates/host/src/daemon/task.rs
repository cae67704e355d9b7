//! The daemon's task, as flags and file say now.

use std::path::{Path, PathBuf};

use bufwise_bpf::Group;

use super::config::{self, Options, Settings};
use crate::caps::Wanted;
use crate::error::Result;
use crate::log::Format;
use crate::metrics::Address;
use crate::tuner::plan::Plan;

/// The command line's part of the configuration; the file may change meanwhile.
#[derive(Debug)]
pub struct Orders {
    /// The configuration file; `None`: the default one, which need not exist.
    pub file: Option<PathBuf>,
    /// Flags win over the file.
    pub flags: Options,
    /// Decide and log, and change nothing.
    pub dry_run: bool,
}

/// A task that has been checked: the plan, and the groups it is for.
#[derive(Debug)]
pub struct Task {
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    pub(super) groups: Vec<Group>,
}

impl Orders {
    /// Reads the configuration as it is now.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), [`Error::Cgroup`](crate::Error::Cgroup) where a cgroup does not exist,
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn task(&self) -> Result<Task> {
        let settings = config::settings(self.file.as_deref(), &self.flags)?;
        let plan = Plan::new(settings.policy, settings.asked)?;
        let plan = Plan { observe_only: self.dry_run, ..plan };
        let groups = settings.cgroups.iter().map(|path| Group::open(path)).collect::<Result<_, _>>()?;
        Ok(Task { settings, plan, groups })
    }
}

impl Task {
    /// Path of the control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.settings.socket
    }

    /// Form of the log's lines.
    #[must_use]
    pub fn log_format(&self) -> Format {
        self.settings.log_format
    }

    /// Where metrics are to be served, if anywhere.
    #[must_use]
    pub fn metrics(&self) -> Option<&Address> {
        self.settings.metrics.as_ref()
    }

    /// File that the history is kept in besides, if any.
    pub(super) fn history(&self) -> Option<&Path> {
        self.settings.history.as_deref()
    }

    /// Maxima to raise, and bounds of devices to lower.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        if self.plan.observe_only {
            return Vec::new();
        }
        let caps = if self.settings.raise_caps { self.plan.caps() } else { Vec::new() };
        caps.into_iter().chain(self.plan.devices).collect()
    }

    /// Whether an engine by this task can take over what one by `other` has set: same groups, same rules.
    pub(super) fn continues(&self, other: &Self) -> bool {
        self.settings.cgroups == other.settings.cgroups
            && self.plan.choice == other.plan.choice
            && self.settings.asked.take_over == other.settings.asked.take_over
            // Sizes set on connections that no longer have room would be taken for the applications'.
            && self.plan.max_connections >= other.plan.max_connections
    }

    /// The task in one line.
    pub(super) fn headline(&self) -> String {
        let Plan { choice, budget, receive_budget, observe_only, max_connections, .. } = &self.plan;
        format!(
            "{} {}: policy {choice}; memory {} to send, {} to receive; at most {max_connections} connections, whose records \
             take {} of the kernel's memory if all are there",
            if *observe_only { "dry run on" } else { "tuning" },
            self.scope(),
            budget.readable(),
            receive_budget.readable(),
            bufwise_bpf::Config::record_memory(*max_connections).readable(),
        )
    }

    fn scope(&self) -> String {
        let names: Vec<String> =
            self.settings.cgroups.iter().map(|path| path.display().to_string()).collect();
        if names.is_empty() { "the whole host".to_owned() } else { format!("cgroup {}", names.join(", ")) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(change: impl FnOnce(&mut Orders)) -> Task {
        let memory = Some("64MiB".parse().unwrap());
        let flags = Options { memory, receive_memory: memory, ..Options::default() };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bufwise.toml");
        std::fs::write(&file, "policy = \"abt,drs\"\n").unwrap();
        let mut orders = Orders { file: Some(file), flags, dry_run: false };
        change(&mut orders);
        orders.task().unwrap()
    }

    #[test]
    fn a_dry_run_raises_nothing() {
        let maxima =
            |task: &Task| task.wanted().iter().filter(|wanted| matches!(wanted, Wanted::Maximum(..))).count();
        assert_eq!(
            (maxima(&task(|_| {})), task(|_| {}).wanted().len()),
            (4, 5),
            "and what devices take at once"
        );
        assert!(task(|orders| orders.dry_run = true).wanted().is_empty());
        assert_eq!(maxima(&task(|orders| orders.flags.raise_caps = Some(false))), 0);
    }

    #[test]
    fn what_was_set_is_taken_over_by_the_same_rules_alone() {
        let before = task(|_| {});
        assert!(task(|orders| orders.flags.memory = Some("1MiB".parse().unwrap())).continues(&before));
        assert!(task(|orders| orders.flags.raise_caps = Some(false)).continues(&before));
        assert!(!task(|orders| orders.flags.policy = Some("abt".parse().unwrap())).continues(&before));
        assert!(!task(|orders| orders.flags.take_over = Some(true)).continues(&before));
        let room = |count: &str| task(|orders| orders.flags.max_connections = Some(count.parse().unwrap()));
        assert!(room("100000").continues(&before) && !room("1000").continues(&before));
    }

    #[test]
    fn the_headline_says_what_where_and_with_how_much_memory() {
        assert_eq!(
            task(|_| {}).headline(),
            "tuning the whole host: policy abt (send), drs (receive); memory 67.11 MB to send, 67.11 MB to receive; at most \
             65536 connections, whose records take 159.38 MB of the kernel's memory if all are there"
        );
        assert!(task(|orders| orders.dry_run = true).headline().starts_with("dry run on the whole host: "));
    }
}
