//! `bufwise lab path`: runs the user's programs over the emulated path and measures them.

use std::slice;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;

use crate::commands::{CommandError, Outcome, Programs};
use crate::pump::PumpError;
use crate::report::LabReport;
use crate::sampler::{ConnectionSample, Sampler, SamplerError};
use crate::spec::PathSpec;
use crate::testbed::{Hosts, PathReport, Testbed, TestbedError};

/// Why a run has no report.
#[derive(Debug, Error)]
pub enum PathError {
    /// The hosts could not be set up.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The connections could not be sampled.
    #[error(transparent)]
    Sampler(#[from] SamplerError),
    /// The programs did not run to their end.
    #[error(transparent)]
    Command(#[from] CommandError),
    /// The emulator failed.
    #[error(transparent)]
    Pump(#[from] PumpError),
}

impl PathError {
    /// Returns the exit status that a shell expects for this error.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Command(error) => error.exit_status(),
            _ => 1,
        }
    }
}

/// Runs `programs` over the path `spec` and samples their connections every `interval`.
///
/// # Errors
/// [`PathError`] with what failed and what to do. The hosts and everything on them are gone in either case.
pub fn run(spec: &PathSpec, programs: &Programs, interval: Duration) -> Result<LabReport, PathError> {
    let testbed = Testbed::start(slice::from_ref(spec))?;
    let Observed { outcome, samples, mut paths } = observe(testbed, programs, interval)?;
    let path = paths.pop().ok_or(PumpError::Panicked)?;
    Ok(LabReport::new(path, &outcome, samples))
}

/// Outcome and measurements of programs on a testbed.
#[derive(Debug)]
pub struct Observed {
    /// How the client ended.
    pub outcome: Outcome,
    /// Samples of the connections of all hosts, oldest first.
    pub samples: Vec<ConnectionSample>,
    /// Reports on each path's own link, then on the links that paths share.
    pub paths: Vec<PathReport>,
}

/// Runs `programs` on a testbed, and takes the testbed down.
///
/// # Errors
/// [`PathError`], as for [`run`].
pub fn observe(testbed: Testbed, programs: &Programs, interval: Duration) -> Result<Observed, PathError> {
    let seen = watch(&testbed.hosts, &|| testbed.is_running(), programs, interval);
    match seen {
        Ok((outcome, samples)) => Ok(Observed { outcome, samples, paths: testbed.finish()? }),
        // The emulator's own error says why.
        Err(PathError::Command(CommandError::PathEnded)) => {
            Err(testbed.finish().err().map_or(CommandError::PathEnded.into(), PathError::Pump))
        }
        Err(error) => Err(error),
    }
}

/// Runs `programs` on the hosts of paths, and ends what still runs there. Returns the outcome and the samples of the
/// connections of all hosts, oldest first.
///
/// # Errors
/// [`PathError`], as for [`run`].
pub(crate) fn watch(
    hosts: &[Hosts],
    path_runs: &dyn Fn() -> bool,
    programs: &Programs,
    interval: Duration,
) -> Result<(Outcome, Vec<ConnectionSample>), PathError> {
    let mut samplers = Vec::new();
    for (path, Hosts { a, b, clock }) in hosts.iter().enumerate() {
        if hosts[..path].iter().all(|before| !Arc::ptr_eq(&before.a, a)) {
            samplers.push(Sampler::start(a, *clock, interval)?);
        }
        samplers.push(Sampler::start(b, *clock, interval)?);
    }
    let outcome = programs.run(hosts, path_runs);
    let mut samples: Vec<_> = samplers.into_iter().flat_map(Sampler::finish).collect();
    samples.sort_by(|one, other| one.t.total_cmp(&other.t));
    for Hosts { a, b, .. } in hosts {
        b.end_programs();
        a.end_programs();
    }
    Ok((outcome?, samples))
}
