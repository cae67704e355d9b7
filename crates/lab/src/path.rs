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
    let testbed = Testbed::start(spec)?;
    let samplers = [&testbed.a, &testbed.b].map(|host| Sampler::start(host, testbed.clock, interval));
    let [on_a, on_b] = samplers;
    let (on_a, on_b) = (on_a?, on_b?);
    let outcome = programs.run(&testbed)?;
    let mut samples = on_a.finish();
    samples.extend(on_b.finish());
    samples.sort_by(|one, other| one.t.total_cmp(&other.t));
    Ok(LabReport::new(testbed.finish()?, &outcome, samples))
}
