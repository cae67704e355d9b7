//! The bounds of one transfer.

use std::time::{Duration, Instant};

use bufwise_units::Rate;

use crate::cancel::Cancel;
use crate::error::MoveError;
use crate::hash::HashKind;

/// The bounds and the work of a transfer, at either end.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// How long it may take.
    pub bounds: Bounds,
    /// Upper bound of the rate, in bytes per second.
    pub limit: Option<Rate>,
    /// The sum to make of the bytes that pass.
    pub hash: Option<HashKind>,
    /// Ends the transfer early.
    pub cancel: Cancel,
    /// A receiver takes the end of an encrypted stream for the end of the file though the peer did not announce it
    /// (`close_notify`), as some stock programs do not. An attacker who can cut the connection can then cut the file.
    pub unannounced_end: bool,
}

/// Part of the time without a byte after which a stalled connection is looked at again.
const STALLED_LOOKS: u32 = 4;
/// Longest time between two looks at a stalled connection.
const LONGEST_LOOK: Duration = Duration::from_secs(4);

/// Time to the next look at a connection that is looked at `every` so often, if nothing has moved for `quiet`: one that
/// stalls wakes its thread ever more rarely.
pub(crate) fn look_after(every: Duration, quiet: Duration) -> Duration {
    every.max((quiet / STALLED_LOOKS).min(LONGEST_LOOK))
}

/// How long a transfer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest time without a byte moving.
    pub idle: Duration,
    /// Moment at which the transfer is given up.
    pub deadline: Option<Instant>,
}

impl Default for Bounds {
    /// A minute without a byte (we: servers allow some minutes for a whole session), no deadline.
    fn default() -> Self {
        Self { idle: Duration::from_secs(60), deadline: None }
    }
}

impl Bounds {
    /// Until when the next byte is awaited, if the last moved at `last`.
    #[must_use]
    pub fn end(&self, last: Instant) -> Instant {
        let idle = last + self.idle;
        self.deadline.map_or(idle, |deadline| deadline.min(idle))
    }

    /// Whether either bound has passed at `now`, and which.
    ///
    /// # Errors
    /// [`MoveError::Deadline`] or [`MoveError::Idle`].
    pub fn check(&self, last: Instant, now: Instant) -> Result<(), MoveError> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            Err(MoveError::Deadline)
        } else if now >= last + self.idle {
            Err(MoveError::Idle { seconds: self.idle.as_secs_f64() })
        } else {
            Ok(())
        }
    }
}
