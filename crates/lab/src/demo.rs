//! `bufwise demo`: a real file over two emulated wide-area paths, stock and tuned, with the real kernel.
//!
//! Path 1 has a queue too shallow for TCP's slow start, path 2 one so deep that it fills with half a second
//! of delay. Each method moves the same file over both, side by side in time, one method after the other.

mod file;
mod picture;
mod plan;
mod result;
mod transfer;

use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use bufwise_transfer::mover::MoveError;
use thiserror::Error;

pub use file::DemoFile;
pub use picture::draw;
pub use plan::{DemoPath, Method, Plan};
pub use result::{DemoReport, MethodReport, PathSummary, Point};

use crate::pump::PumpError;
use crate::sampler::SamplerError;
use crate::testbed::TestbedError;

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
        /// What happened.
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

/// What the caller learns while the demo runs.
#[derive(Clone, Copy, Debug)]
pub struct Progress<'a> {
    /// The method that runs.
    pub method: &'a str,
    /// Methods done before it.
    pub done: usize,
    /// Methods in all.
    pub of: usize,
    /// Share of this method's file that has arrived on the slower path, `0.0..=1.0`.
    pub share: f64,
}

/// Shows everything in `plan`; `progress` hears how far it is, some times a second.
///
/// # Errors
/// [`DemoError`] with what failed. Hosts and files are gone either way.
pub fn run(
    plan: &Plan,
    mut progress: impl FnMut(Progress<'_>),
) -> Result<DemoReport, DemoError> {
    let file = DemoFile::make(plan.bytes).map_err(DemoError::File)?;
    let mut results = Vec::new();
    for (done, method) in plan.methods.iter().enumerate() {
        let name = method.to_string();
        let mut hear = |share| progress(Progress { method: &name, done, of: plan.methods.len(), share });
        results.extend(side_by_side(plan, *method, &file, &mut hear)?);
    }
    Ok(DemoReport::new(plan, results))
}

/// One method over all paths at once.
fn side_by_side(
    plan: &Plan,
    method: Method,
    file: &DemoFile,
    hear: &mut dyn FnMut(f64),
) -> Result<Vec<MethodReport>, DemoError> {
    const EVERY: Duration = Duration::from_millis(100);
    let bytes = plan.bytes_for(method);
    let (sender, shares) = channel();
    thread::scope(|scope| {
        let runs: Vec<_> = plan
            .paths
            .iter()
            .enumerate()
            .map(|(index, path)| {
                let sender = sender.clone();
                scope.spawn(move || {
                    transfer::run(path, method, file, bytes, &|moved| {
                        // The listener goes only after all runs have ended.
                        let _heard = sender.send((index, moved));
                    })
                })
            })
            .collect();
        drop(sender);
        let mut moved = vec![0; plan.paths.len()];
        while !runs.iter().all(thread::ScopedJoinHandle::is_finished) {
            if let Ok((index, bytes)) = shares.recv_timeout(EVERY) {
                moved[index] = bytes;
            }
            let slowest = moved.iter().min().copied().unwrap_or(0);
            hear(slowest as f64 / bytes.max(1) as f64);
        }
        runs.into_iter()
            .map(|run| run.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}
