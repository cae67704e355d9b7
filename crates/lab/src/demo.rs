//! `bufwise demo`: unmodified iperf3 over two emulated wide-area paths with the real kernel, untuned and tuned from one
//! end.
//!
//! Path 1 has a queue too shallow for TCP's slow start, path 2 one so deep that it fills with half a second of delay.
//! Each method sends for the same time over both; every transfer has a path and hosts of its own.

mod picture;
mod plan;
mod result;

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::slice;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;
use thiserror::Error;

pub use picture::draw;
pub use plan::{DemoPath, Method, Plan};
pub use result::{DemoReport, MethodReport, PathSummary, Point};

use crate::commands::{CommandError, Outcome};
use crate::experiments::StopSignal;
use crate::last_words;
use crate::path::{self, PathError};
use crate::sampler::DEFAULT_INTERVAL;
use crate::spec::PathSpec;
use crate::testbed::{Hosts, Testbed};
use result::Transfer;

/// Time between two reports of progress to the caller.
const HEARD_EVERY: Duration = Duration::from_millis(100);

/// Why the demo could not be run.
#[derive(Debug, Error)]
pub enum DemoError {
    /// iperf3, which sends and receives, is missing.
    #[error("iperf3 is missing, which sends and receives here: install it (apt-get install iperf3)")]
    NoIperf3,
    /// Signals could not be caught, or there is no directory for the programs' messages.
    #[error("cannot start the demo: {0}")]
    Start(io::Error),
    /// The hosts or the emulator failed, or a signal asked to stop.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A transfer failed.
    #[error("{method} on {path}: {reason}")]
    Transfer {
        /// The method.
        method: &'static str,
        /// The path.
        path: &'static str,
        /// The reason, as the program gave it.
        reason: String,
    },
}

impl DemoError {
    /// Returns the exit status that a shell expects for this error.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Path(error) => error.exit_status(),
            _ => 1,
        }
    }
}

/// Progress of the demo, as the caller sees it.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The methods that run now.
    pub methods: String,
    /// Rounds that are done.
    pub done: usize,
    /// Number of rounds.
    pub of: usize,
    /// Share of this round's time that has passed; it may exceed 1 at the end.
    pub share: f64,
}

/// Runs all methods of `plan`, except those that this machine cannot run. `program` is bufwise's own
/// file; `progress` is called some times per second.
///
/// # Errors
/// [`DemoError`] with what failed. The hosts and everything on them are gone in either case.
pub fn run(
    plan: &Plan,
    program: &Path,
    mut progress: impl FnMut(&Progress),
) -> Result<DemoReport, DemoError> {
    if Command::new("iperf3").arg("--version").output().is_err() {
        return Err(DemoError::NoIperf3);
    }
    let stop = StopSignal::watch().map_err(DemoError::Start)?;
    let rounds = plan.possible();
    let mut results = Vec::new();
    for (done, round) in rounds.iter().enumerate() {
        let methods: Vec<&str> = round.iter().map(|method| method.name).collect();
        let mut now = Progress { methods: methods.join(" | "), done, of: rounds.len(), share: 0.0 };
        let reports = side_by_side(plan, round, program, &stop, &mut |share| {
            now.share = share;
            progress(&now);
        });
        // A signal reaches the programs as well; their reports then do not matter.
        stop.continues()?;
        results.extend(reports?);
    }
    Ok(DemoReport::new(plan, results))
}

/// Runs some methods over all paths at once, each on a path of its own.
fn side_by_side(
    plan: &Plan,
    methods: &[Method],
    program: &Path,
    stop: &StopSignal,
    hear: &mut dyn FnMut(f64),
) -> Result<Vec<MethodReport>, DemoError> {
    let runs: Vec<(&DemoPath, Method)> =
        plan.paths.iter().flat_map(|path| methods.iter().map(move |method| (path, *method))).collect();
    let specs: Vec<PathSpec> = runs.iter().map(|(path, _)| path.spec.clone()).collect();
    let testbed = Testbed::start(&specs).map_err(PathError::from)?;
    stop.continues()?;
    let began = Instant::now();
    let transfers: Result<Vec<_>, _> = thread::scope(|scope| {
        let (running, ended) = channel::<()>();
        let threads: Vec<_> = (runs.iter().zip(&testbed.hosts))
            .map(|((path, method), hosts)| {
                let (testbed, running) = (&testbed, running.clone());
                scope.spawn(move || {
                    let _until_the_end = running;
                    transfer(testbed, hosts, (path, *method), (program, plan.time))
                })
            })
            .collect();
        drop(running);
        while ended.recv_timeout(HEARD_EVERY) == Err(RecvTimeoutError::Timeout) {
            hear(began.elapsed().as_secs_f64() / plan.time.as_secs_f64());
        }
        let joined = threads.into_iter().map(thread::ScopedJoinHandle::join);
        joined.map(|transfer| transfer.unwrap_or_else(|panic| std::panic::resume_unwind(panic))).collect()
    });
    let (transfers, links) = (transfers?, testbed.finish().map_err(PathError::from)?);
    let reports = runs.iter().zip(transfers).zip(links);
    Ok(reports
        .map(|(((path, method), transfer), link)| MethodReport::new(path, *method, &transfer, &link))
        .collect())
}

fn transfer(
    testbed: &Testbed,
    hosts: &Hosts,
    (path, method): (&DemoPath, Method),
    (program, time): (&Path, Duration),
) -> Result<Transfer, DemoError> {
    let failed = |reason| DemoError::Transfer { method: method.name, path: path.name, reason };
    let directory = tempfile::tempdir().map_err(DemoError::Start)?;
    let errors = directory.path().join("errors");
    let programs = method.programs(program, time, &errors);
    let path_runs = || testbed.is_running();
    let (outcome, samples) = path::watch(slice::from_ref(hosts), &path_runs, &programs, DEFAULT_INTERVAL)
        .map_err(|error| match error {
            PathError::Command(CommandError::Timeout { seconds, .. }) => {
                failed(format!("iperf3 did not end within {seconds} s; run it again on an idle machine"))
            }
            error => failed(error.to_string()),
        })?;
    let report: Value = serde_json::from_slice(&outcome.stdout).unwrap_or_default();
    Transfer::read(&report, samples).ok_or_else(|| failed(why_without(&report, &outcome, &errors)))
}

/// Returns why a transfer has no report, in the words of iperf3 or of `bufwise run`.
fn why_without(report: &Value, outcome: &Outcome, errors: &Path) -> String {
    if let Some(error) = report["error"].as_str() {
        return format!("iperf3: {error}");
    }
    // Programs may write in any encoding.
    let told = fs::read(errors).unwrap_or_default();
    let told = String::from_utf8_lossy(&told);
    let last = last_words::of(&told);
    last.map_or_else(|| format!("iperf3 ended with status {}", outcome.status), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_words_of_a_program_are_shown_in_any_encoding() {
        let directory = tempfile::tempdir().unwrap();
        let errors = directory.path().join("errors");
        let outcome = Outcome { status: 3, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
        let why = || why_without(&Value::Null, &outcome, &errors);
        assert_eq!(why(), "iperf3 ended with status 3");
        fs::write(&errors, b"caf\xe9 closed\n").unwrap();
        assert_eq!(why(), "caf\u{fffd} closed");
    }
}
