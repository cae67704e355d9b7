//! `bufwise lab path`: other people's programs over the emulated path, measured.

use std::time::Duration;

use thiserror::Error;

use crate::commands::{CommandError, Programs};
use crate::pump::PumpError;
use crate::report::LabReport;
use crate::sampler::{Sampler, SamplerError};
use crate::spec::PathSpec;
use crate::testbed::{Testbed, TestbedError};

/// Why a run has no report.
#[derive(Debug, Error)]
pub enum PathError {
    /// The hosts could not be set up.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// The connections could not be looked at.
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
    /// The exit status that a shell expects for this.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Command(error) => error.exit_status(),
            _ => 1,
        }
    }
}

/// Runs `programs` over the path `spec` and looks at their connections every `interval`.
///
/// # Errors
/// [`PathError`] with what failed and what to do. The hosts and everything on them are gone either way.
pub fn run(spec: &PathSpec, programs: &Programs, interval: Duration) -> Result<LabReport, PathError> {
    let testbed = Testbed::start(std::slice::from_ref(spec))?;
    let hosts = &testbed.hosts[0];
    let on_a = Sampler::start(&hosts.a, hosts.clock, interval)?;
    let on_b = Sampler::start(&hosts.b, hosts.clock, interval)?;
    let outcome = programs.run(hosts, &|| testbed.is_running())?;
    let mut samples = on_a.finish();
    samples.extend(on_b.finish());
    samples.sort_by(|one, other| one.t.total_cmp(&other.t));
    let path = testbed.finish()?.pop().ok_or(PumpError::Panicked)?;
    Ok(LabReport::new(path, &outcome, samples))
}
