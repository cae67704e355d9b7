//! The result of moving one file.

use bufwise_mover::Report;
use bufwise_mover::hash::Digest;
use bufwise_mover::probe::Measured;

use super::conduct::Notes;

/// A file that was moved, or did not need to be.
#[derive(Clone, Copy, Debug, Default)]
pub struct Outcome {
    /// Bytes of the whole file.
    pub size: u64,
    /// Number of these bytes that an earlier attempt had moved.
    pub resumed_from: u64,
    /// The last attempt's transfer; `None` when nothing had to be moved.
    pub report: Option<Report>,
    /// Requests and notices about buffers.
    pub notes: Notes,
    /// The checksum that both ends agree on, if it was compared.
    pub checksum: Option<Digest>,
    /// The probes' measurements.
    pub measured: Option<Measured>,
}

impl Outcome {
    /// Returns the outcome for a file that did not need to be moved.
    pub(super) fn already(size: u64) -> Self {
        Self { size, resumed_from: size, ..Self::default() }
    }
}
