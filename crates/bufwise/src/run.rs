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

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Instant;

use bufwise_bpf::{Cgroup, CgroupError, left_running, memory_limit};
use bufwise_host::caps::Raised;
use bufwise_host::in_words;
use bufwise_host::leftovers::{self, Cleared};
use bufwise_host::tuner;
use bufwise_host::tuner::choice::Choice;
use bufwise_host::tuner::plan::{Asked, Plan};
use bufwise_host::tuner::sizes::{AtOnce, Budget, MaxConnections, SmallDocuments};
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

/// Run a command with its connections tuned, and report what limited them
///
/// The command and its descendants run unmodified. Connections of other programs are left alone, and so are buffers that the
/// command sets itself, unless --override is given. Without root the same rules run in user space (--engine).
///
/// The report goes to standard error when the command has ended. Connections that moved too little to need a size are only
/// counted.
///
/// Exit status: that of the command; 128 + n if signal n ended it, 127 if it was not found, 126 if it could not be started.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise run --memory 64MiB -- rsync -a src/ host:dst/")]
pub(crate) struct RunArgs {
    /// Policy for each side of a connection, as abt,sobas. Send side: kernel, fixed:SIZE, eq, abt, sabt, fit; receive side:
    /// kernel, fixed:SIZE, drs, sobas, fit
    ///
    /// A single name that exists for both sides (kernel, fixed:SIZE, fit) applies to both; any other single name leaves the other
    /// side to the kernel. Of two names that exist for both sides the first is for the sender: fit,kernel is fit only at the
    /// sender, kernel,fit only at the receiver. auto is fit for both sides. kernel changes nothing and only reports.
    ///
    /// fit lets a connection use the whole rate of its path, but fills no queue on it, and avoids the drops of slow start. At a
    /// sender it acts only on CUBIC and Reno; at either end it acts only on paths with a round trip of 2 ms or more. Elsewhere it
    /// sizes buffers as abt and drs do. abt,sobas, the daemon's default, keeps many connections within the memory and changes
    /// little else. sabt suits servers of documents of all sizes. eq gives equal shares of the memory. fixed:SIZE, abt:published
    /// and sabt:published are for comparisons; the published ones are the rules of the papers, as far as the kernel allows.
    #[arg(long, value_name = "P[,P]", default_value = "auto", value_parser = Choice::parse_for_run)]
    policy: Choice,
    /// Memory that all send queues together may hold, as 64MiB (at least 64KiB), and all receive queues as much again; default
    /// half of the second number of tcp_mem, for each, but no more than an eighth of the memory limit of this cgroup (of a container
    /// or a systemd unit)
    #[arg(long, value_name = "SIZE")]
    memory: Option<Budget>,
    /// Send documents up to this size in one round trip (at most 64 segments), and leave them out of the shares of the memory;
    /// 0 for no document; default 8 KB under sabt, 0 under the other policies
    #[arg(long, value_name = "SIZE")]
    small_documents: Option<SmallDocuments>,
    /// Largest buffer that a sender fills at once, such as 4KiB; or auto; or device: as much as the network devices take
    ///
    /// The kernel takes written data in buffers of mostly 64 KiB, and fills each of them to its end, even beyond the limit of the
    /// send buffer. Smaller ones let a small --memory hold many connections; at high rates they cost processor time. While the
    /// command runs, the size is set at the network devices of this namespace (except the loopback), and affects the connections
    /// of all programs.
    ///
    /// auto does nothing without --memory, nor in the host's first network namespace, because other programs use its devices.
    /// Elsewhere the size begins at 1/256 of the memory, and then follows 1/6 of a connection's equal share. It is at least 4 KiB;
    /// from 64 KiB on there is no bound.
    #[arg(long, value_name = "SIZE", default_value = "auto")]
    gso_max_size: AtOnce,
    /// Most connections that the engine in the kernel tunes at a time, 1 to 1000000; default 65536. The kernel sizes any further
    /// ones, and the report says so. Each takes about 2.4 KB of the kernel's memory while it is open
    #[arg(long, value_name = "N")]
    max_connections: Option<MaxConnections>,
    /// The engine that sizes the connections
    #[arg(long, value_name = "WHICH", value_enum, default_value_t = Wanted::Auto)]
    engine: Wanted,
    /// Also size the buffers that the command has set itself
    #[arg(long = "override")]
    take_over: bool,
    /// Let the programs in the kernel return at once when they are called: measures the cost of a call that does nothing
    /// (lab run cost-send cost-receive)
    #[arg(long, hide = true)]
    only_called: bool,
    /// Write the report into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl RunArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        let plan = Plan { only_called: self.only_called, ..Plan::new(self.policy, self.asked())? };
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
        let tuned = watch.run(cgroup.as_ref(), &running);
        let mut elapsed = started.elapsed();
        drop(raised);
        // On a failure, the next start of bufwise tries again.
        leftovers::clear_inherited(&mut Cleared::default());
        watch.give_back();
        let status = match tuned {
            Ok(status) => {
                // The engine in user space tells this itself.
                if let Some(note) = cgroup.as_ref().and_then(left_in) {
                    watch.note(note);
                }
                status
            }
            // Its status is the result, whatever becomes of the tuning.
            Err(error) => {
                let words = in_words(error.as_ref());
                watch.note(format!("tuning ended after {:.1} s: {words}", elapsed.as_secs_f64()));
                let status = running.wait();
                elapsed = started.elapsed();
                status
            }
        };
        drop(cgroup);
        let command = self.command.iter().map(|word| word.to_string_lossy().into_owned()).collect();
        let connections_of_little = watch.of_little();
        let report = watch.finish(Ended {
            engine: kind,
            engine_reason,
            connections_of_little,
            command,
            status,
            elapsed,
        });
        running.stop_catching();
        output::note(&report.to_string());
        let written = self.json.as_ref().map(|json| output::json(json, &report));
        match written {
            // A failure of the command is worth more than one of its report.
            Some(Err(error)) if status != 0 => Err(Failure::new(status, in_words(error.as_ref()))),
            Some(Err(error)) => Err(error.into()),
            Some(Ok(())) | None => {
                running.end_if_interrupted();
                Ok(status)
            }
        }
    }

    fn asked(&self) -> Asked {
        Asked {
            memory: self.memory.map(Bytes::from),
            receive_memory: self.memory.map(Bytes::from),
            memory_limit: memory_limit(),
            small_documents: self.small_documents.map(Bytes::from),
            at_once: self.gso_max_size,
            whole_host: false,
            take_over: self.take_over,
            max_connections: self.max_connections.unwrap_or_default(),
        }
    }
}

/// Returns the engine's configuration for the policies of `run`; `check` tests whether it can be loaded.
pub(crate) fn default_engine_config() -> bufwise_host::Result<bufwise_bpf::Config> {
    Ok(Plan::new(Choice::OF_RUN, Asked::default())?.run_config())
}

/// Returns a line on the processes in the command's cgroup that outlive it.
fn left_in(cgroup: &Cgroup) -> Option<String> {
    let own = std::process::id().cast_signed();
    left_running(cgroup.processes().into_iter().filter(|pid| *pid != own).count())
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

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        run: RunArgs,
    }

    #[test]
    fn as_many_connections_are_tuned_as_asked_for_and_65536_by_default() {
        let asked = |more: &[&str]| {
            let words = [&["run"][..], more, &["--", "true"]].concat();
            Line::try_parse_from(words).map(|line| u32::from(line.run.asked().max_connections))
        };
        assert_eq!(asked(&[]).unwrap(), 65_536);
        assert_eq!(asked(&["--max-connections", "100000"]).unwrap(), 100_000);
        for absurd in ["0", "1000001"] {
            let error = asked(&["--max-connections", absurd]).unwrap_err().to_string();
            assert!(error.contains("from 1 to 1000000"), "{error}");
        }
    }
}
