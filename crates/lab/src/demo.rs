//! `bufwise demo`: a real file over two emulated wide-area paths, stock and tuned, with the real kernel.
//!
//! Path 1 has a queue too shallow for TCP's slow start, path 2 one so deep that it fills with half a second
//! of delay. Each method moves the same file over both, every transfer on a path and hosts of its own,
//! and stops when its time is over.

mod file;
mod picture;
mod plan;
mod result;
mod transfer;

use std::sync::mpsc::channel;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_mover::MoveError;
use thiserror::Error;

pub use file::DemoFile;
pub use picture::draw;
pub use plan::{DemoPath, Method, Plan};
pub use result::{DemoReport, MethodReport, PathSummary, Point};

use crate::pump::PumpError;
use crate::sampler::SamplerError;
use crate::spec::PathSpec;
use crate::testbed::{Hosts, Testbed, TestbedError};
use transfer::Seen;

/// Why the demo could not be shown.
#[derive(Debug, Error)]
pub enum DemoError {
    /// The hosts could not be set up.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The connections could not be looked at.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The emulator failed.
    #[error(transparent)]
    Pump(#[from] PumpError),
    /// A transfer failed.
    #[error("{method} on {path}: {source}")]
    Transfer {
        /// The method.
        method: String,
        /// The path.
        path: &'static str,
        /// The error that ended it.
        source: MoveError,
    },
    /// The file to move could not be made.
    #[error("cannot make the file to move: {0}")]
    File(std::io::Error),
    /// A socket or a thread for the probes.
    #[error("cannot start the probes: {0}")]
    Probe(std::io::Error),
    /// The bytes that arrived are not those that were sent.
    #[error("{method} on {path}: the file arrived changed")]
    Changed {
        /// The method.
        method: String,
        /// The path.
        path: &'static str,
    },
}

/// Progress that the caller learns of while the demo runs.
#[derive(Clone, Debug)]
pub struct Progress {
    /// The methods that run now.
    pub methods: String,
    /// Rounds done before this one.
    pub done: usize,
    /// Rounds in all.
    pub of: usize,
    /// Share of this round's time or of its slowest file that has passed, `0.0..=1.0`.
    pub share: f64,
}

/// Shows everything in `plan`; `progress` hears how far it is, some times a second.
///
/// # Errors
/// [`DemoError`] with what failed. Hosts and files are gone either way.
pub fn run(plan: &Plan, mut progress: impl FnMut(&Progress)) -> Result<DemoReport, DemoError> {
    let file = DemoFile::make(plan.bytes).map_err(DemoError::File)?;
    let mut results = Vec::new();
    for (done, round) in plan.rounds.iter().enumerate() {
        let methods: Vec<String> = round.iter().map(Method::to_string).collect();
        let mut now = Progress { methods: methods.join(" | "), done, of: plan.rounds.len(), share: 0.0 };
        results.extend(side_by_side(plan, round, &file, &mut |share| {
            now.share = share;
            progress(&now);
        })?);
    }
    Ok(DemoReport::new(plan, results))
}

/// Some methods over all paths at once, each on a path of its own.
fn side_by_side(
    plan: &Plan,
    methods: &[Method],
    file: &DemoFile,
    hear: &mut dyn FnMut(f64),
) -> Result<Vec<MethodReport>, DemoError> {
    let runs: Vec<(&DemoPath, Method)> =
        plan.paths.iter().flat_map(|path| methods.iter().map(move |method| (path, *method))).collect();
    let specs: Vec<PathSpec> = runs.iter().map(|(path, _)| path.spec.clone()).collect();
    let testbed = Testbed::start(&specs)?;
    let seen = run_all(plan, &runs, &testbed.hosts, file, hear)?;
    let links = testbed.finish()?;
    let reports = runs.iter().zip(seen).zip(links);
    Ok(reports.map(|(((path, method), seen), link)| MethodReport::new(path, *method, &seen, &link)).collect())
}

fn run_all(
    plan: &Plan,
    runs: &[(&DemoPath, Method)],
    hosts: &[Hosts],
    file: &DemoFile,
    hear: &mut dyn FnMut(f64),
) -> Result<Vec<Seen>, DemoError> {
    const EVERY: Duration = Duration::from_millis(100);
    let (sender, moved) = channel();
    let began = Instant::now();
    thread::scope(|scope| {
        let threads: Vec<_> = (runs.iter().zip(hosts).enumerate())
            .map(|(index, ((path, method), hosts))| {
                let sender = sender.clone();
                let bytes = plan.bytes_for(*method);
                scope.spawn(move || {
                    let share = |moved| moved as f64 / bytes.max(1) as f64;
                    transfer::run(hosts, path, *method, file, (bytes, plan.time), &|moved| {
                        // The listener goes only after all runs have ended.
                        let _heard = sender.send((index, share(moved)));
                    })
                })
            })
            .collect();
        let mut shares = vec![0.0; runs.len()];
        while !threads.iter().all(thread::ScopedJoinHandle::is_finished) {
            if let Ok((index, share)) = moved.recv_timeout(EVERY) {
                shares[index] = share;
            }
            let time = began.elapsed().as_secs_f64() / plan.time.as_secs_f64();
            hear(shares.iter().copied().fold(1.0, f64::min).max(time));
        }
        let seen = threads
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        seen.collect()
    })
}
