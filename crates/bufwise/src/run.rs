//! `bufwise run`: runs a command, tunes its connections meanwhile, and reports what limited them.
//!
//! The command and its descendants run in a cgroup of their own, the only one that the programs in the kernel see. This
//! process waits for the command, computes shares some times per second, and carries out the requests that need user
//! space. Without the privilege to load programs, this process also does their work (`engine.rs`).

pub(crate) mod command;
mod engine;
mod history;
mod report;
mod totals;
mod watch;

use std::path::PathBuf;
use std::time::Instant;

use bufwise_bpf::CgroupError;
use bufwise_host::caps::Raised;
use bufwise_host::leftovers::{self, Cleared};
use bufwise_host::tuner;
use bufwise_host::tuner::choice::Choice;
use bufwise_host::tuner::plan::{Asked, Plan};
use bufwise_host::tuner::sizes::{AtOnce, Budget, SmallDocuments};
use bufwise_units::Bytes;
use clap::Args;

use crate::exit::{Failure, Outcome};
use crate::output;
use engine::{Chosen, Kind, Wanted};
use report::Ended;
pub(crate) use report::Treated;
use watch::Watch;

/// Exit statuses for a command that does not exist or cannot be started, as in env(1).
const NOT_FOUND: u8 = 127;
const NOT_STARTED: u8 = 126;

/// Run a command with its connections' buffers tuned; at the end, say what limited them.
///
/// The exit status is the command's: 128 + n if signal n ended it, 127 if it was not found. The report goes to
/// standard error; it only counts connections that moved too little to need a size. Connections that other programs
/// have, and buffers that the command sets itself, are left alone.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise run --memory 64MiB -- rsync -a src/ host:dst/")]
pub(crate) struct RunArgs {
    /// Send side: kernel, fixed:SIZE, eq, abt, sabt, fit; receive side: kernel, fixed:SIZE, drs, sobas, fit; one of each
    /// as abt,sobas. A policy of both sides alone is for both; of two such names the first is the sender's: fit,kernel is
    /// fit at the sender alone, kernel,fit at the receiver alone; fit,sobas and abt,fit pair it with others. kernel alone
    /// only reports; auto is fit for both
    ///
    /// Which suits whom: fit, for CUBIC and Reno over paths of 2 ms and more, keeps a connection as fast as its path, and takes
    /// away the queue that it fills and the drops at its start; abt,sobas, which the daemon has by itself, keeps many connections
    /// within the memory and changes little else; sabt suits servers of many documents of all sizes; eq is for those who want
    /// equal shares, fixed for comparing, kernel for looking only. abt:published and sabt:published are their papers' rules as
    /// written, for comparing.
    #[arg(long, value_name = "P[,P]", default_value = "auto", value_parser = Choice::parse_for_run)]
    policy: Choice,
    /// Memory that the send queues may hold together, as 64MiB (at least 64KiB), and the receive queues as much again;
    /// without it half of what the kernel gives TCP, each
    #[arg(long, value_name = "SIZE")]
    memory: Option<Budget>,
    /// Documents up to this size are sent in one round trip (at most 64 segments) and take no part in the shares;
    /// without it 8 KB under sabt, and none otherwise; 0: none
    #[arg(long, value_name = "SIZE")]
    small_documents: Option<SmallDocuments>,
    /// What a sender fills at once, as 4KiB: bounds the network devices of this namespace meanwhile, for everybody's
    /// connections, so that a small --memory holds many. auto: a sixth of a connection's equal share of --memory,
    /// 4 KiB at least, but never in the host's first namespace, whose devices others share; device: as much as the devices
    /// take, mostly 64 KiB
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    gso_max_size: AtOnce,
    /// What sizes the connections
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Wanted::Auto)]
    engine: Wanted,
    /// Size buffers that the command has set itself, too
    #[arg(long = "override")]
    take_over: bool,
    /// Have the programs in the kernel called, and return at once: tells what a call costs that does nothing (lab run
    /// cost-send cost-receive)
    #[arg(long, hide = true)]
    only_called: bool,
    /// Write the report into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<String>,
}

impl RunArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        let asked = Asked {
            memory: self.memory.map(Bytes::from),
            receive_memory: self.memory.map(Bytes::from),
            small_documents: self.small_documents.map(Bytes::from),
            at_once: self.gso_max_size,
            whole_host: false,
            take_over: self.take_over,
            ..Asked::default()
        };
        let plan = Plan { only_called: self.only_called, ..Plan::new(self.policy, asked)? };
        let mut signals = command::catch_signals().map_err(|error| not_started(&error))?;
        let Chosen { engine, cgroup, raised, mut notes, reason: engine_reason } =
            engine::choose(self.engine, &plan)?;
        let kind = Kind::of(&engine);
        let devices = engine::bound_devices(&plan, self.gso_max_size, &mut notes)?;
        if let Some(told) = tuner::kept_for(&plan, devices.as_ref().is_some_and(Raised::bounds_devices)) {
            output::note(&format!("bufwise: {told}\n"));
        }
        let mut watch = Watch::new(plan, engine, devices, notes)?;
        if let Some(origin) = signals.pending().next() {
            return Ok(u8::try_from(128 + origin.signal).unwrap_or(crate::exit::FAILED));
        }
        let started = Instant::now();
        let running = command::Running::start(cgroup.as_ref(), &self.command, signals);
        let running = running.map_err(|error| not_started(&error))?;
        let status = watch.run(cgroup.as_ref(), &running);
        let elapsed = started.elapsed();
        drop(raised);
        // On a failure, the next start of bufwise tries again.
        leftovers::clear_inherited(&mut Cleared::default());
        watch.give_back();
        drop(cgroup);
        let status = status?;
        let command = self.command;
        let connections_of_little = watch.of_little();
        let report = watch.finish(Ended {
            engine: kind,
            engine_reason,
            connections_of_little,
            command,
            status,
            elapsed,
        });
        if let Some(json) = &self.json {
            output::json(json, &report)?;
        }
        output::note(&report.to_string());
        Ok(status)
    }
}

/// Returns the engine's configuration for the policies of `run`; `check` tests whether it can be loaded.
pub(crate) fn default_engine_config() -> bufwise_host::Result<bufwise_bpf::Config> {
    Ok(Plan::new(Choice::OF_RUN, Asked::default())?.run_config())
}

fn not_started(error: &command::StartError) -> Failure {
    use std::io::ErrorKind;
    let status = match error {
        command::StartError::Command { source: CgroupError::Start(source), .. } => match source.kind() {
            ErrorKind::NotFound => NOT_FOUND,
            _ => NOT_STARTED,
        },
        _ => crate::exit::FAILED,
    };
    Failure::new(status, error)
}
