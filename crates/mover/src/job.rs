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
    /// Handle by which another thread ends the transfer early.
    pub cancel: Cancel,
    /// Whether a receiver accepts the end of an encrypted stream as the end of the file even if the peer did not announce it
    /// (`close_notify`), as some stock programs do not. An attacker who can cut the connection can then cut the file.
    pub unannounced_end: bool,
}

/// A stalled connection is sampled again after this part of its time without a byte.
const STALLED_SAMPLES: u32 = 4;
/// Longest time between two samples of a stalled connection.
const LONGEST_PAUSE: Duration = Duration::from_secs(4);

/// Returns the time to the next sample of a connection with the interval `every`, if no byte has moved for `quiet`: a
/// stalled connection wakes its thread ever more rarely.
pub(crate) fn sample_after(every: Duration, quiet: Duration) -> Duration {
    every.max((quiet / STALLED_SAMPLES).min(LONGEST_PAUSE))
}

/// How long a transfer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest time without a byte moving.
    pub idle: Duration,
    /// Moment at which the transfer is given up.
    pub deadline: Option<Instant>,
    /// The lowest rate, as the mean over each [`Bounds::idle`]: a peer could send single bytes for ever.
    pub lowest: Option<Rate>,
}

impl Default for Bounds {
    /// Returns a minute without a byte, no deadline, no lowest rate. Servers allow some minutes for a whole session.
    fn default() -> Self {
        Self { idle: Duration::from_secs(60), deadline: None, lowest: None }
    }
}

impl Bounds {
    /// Returns until when to wait for the next byte, if the last moved at `last`.
    #[must_use]
    pub fn end(&self, last: Instant) -> Instant {
        let idle = last + self.idle;
        self.deadline.map_or(idle, |deadline| deadline.min(idle))
    }

    /// Checks whether a bound has passed at `now`.
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

/// Bytes moved since the rate was last compared with [`Bounds::lowest`].
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    since: Instant,
    bytes: u64,
}

impl Pace {
    /// Begins at `start`, with no byte moved.
    #[must_use]
    pub const fn new(start: Instant) -> Self {
        Self { since: start, bytes: 0 }
    }

    /// Judges the rate once per [`Bounds::idle`]; `moved` tells the bytes of the whole transfer until `now`.
    ///
    /// # Errors
    /// [`MoveError::Slow`], and that of `moved`.
    pub fn check(
        &mut self,
        bounds: &Bounds,
        now: Instant,
        moved: impl FnOnce() -> Result<u64, MoveError>,
    ) -> Result<(), MoveError> {
        let elapsed = now.saturating_duration_since(self.since);
        let Some(lowest) = bounds.lowest.filter(|_| elapsed >= bounds.idle) else { return Ok(()) };
        let bytes = moved()?;
        let before = std::mem::replace(self, Self { since: now, bytes });
        if (bytes.saturating_sub(before.bytes) as f64) < lowest.0 as f64 * elapsed.as_secs_f64() {
            return Err(MoveError::Slow { lowest, seconds: bounds.idle.as_secs_f64() });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_judged_as_the_mean_of_each_idle_time() {
        let idle = Duration::from_secs(10);
        let bounds = Bounds { idle, lowest: Some(Rate(100)), ..Bounds::default() };
        let start = Instant::now();
        let mut pace = Pace::new(start);
        let mut at = |seconds, bytes| pace.check(&bounds, start + Duration::from_secs(seconds), || Ok(bytes));
        assert!(at(9, 0).is_ok(), "too early to tell");
        assert!(at(10, 1_000).is_ok());
        assert!(at(19, 1_000).is_ok(), "it may stand still for less");
        assert!(at(20, 2_000).is_ok());
        assert!(matches!(at(30, 2_999), Err(MoveError::Slow { .. })));
        assert!(Pace::new(start).check(&Bounds::default(), start + 100 * idle, || Ok(0)).is_ok());
    }
}
