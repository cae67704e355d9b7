//! A limit of the rate at which bytes move.
//!
//! Source: the token bucket in its clock form (GCRA, ITU-T I.371): instead of tokens it keeps the moment by which the
//! limit would have allowed all bytes moved so far.
//! Properties kept: over any span no more than `rate * span + burst` moves; unused time beyond the burst is
//! lost; a rate of zero counts as one byte per second.

use std::time::{Duration, Instant};

use bufwise_units::Rate;

/// Largest burst after a pause, as time at the rate: TCP's own bursts and late wake-ups must not slow a transfer.
const BURST: Duration = Duration::from_millis(20);
/// Smallest burst in bytes: less is not worth a system call.
const SMALLEST_MOVE: u64 = 16 << 10;

/// A limit of the rate at which bytes move.
#[derive(Debug)]
pub(crate) struct Bucket {
    rate: u64,
    burst: Duration,
    paid_until: Instant,
}

impl Bucket {
    pub(crate) fn new(rate: Rate, now: Instant) -> Self {
        let rate = rate.0.max(1);
        let burst = BURST.max(span(SMALLEST_MOVE, rate));
        Self { rate, burst, paid_until: now }
    }

    /// Returns how many bytes may move at `now`: 0, or a piece worth a system call.
    pub(crate) fn allows(&mut self, now: Instant) -> usize {
        if let Some(earliest) = now.checked_sub(self.burst) {
            self.paid_until = self.paid_until.max(earliest);
        }
        let open = now.saturating_duration_since(self.paid_until);
        let bytes = u128::from(self.rate) * open.as_nanos() / 1_000_000_000;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        if bytes < self.smallest() { 0 } else { bytes }
    }

    /// Returns when the limit will allow bytes again.
    pub(crate) fn opens(&self) -> Instant {
        // One nanosecond more, to make up for rounding down.
        self.paid_until + span(self.smallest() as u64, self.rate) + Duration::from_nanos(1)
    }

    /// Notes that `bytes` moved.
    pub(crate) fn spend(&mut self, bytes: usize) {
        self.paid_until += span(bytes as u64, self.rate);
    }

    /// Returns a quarter of the burst, at most 16 KiB: four pieces fit between two late wake-ups.
    fn smallest(&self) -> usize {
        let burst = u128::from(self.rate) * self.burst.as_nanos() / 1_000_000_000;
        usize::try_from(burst / 4).unwrap_or(usize::MAX).clamp(1, SMALLEST_MOVE as usize)
    }
}

fn span(bytes: u64, rate: u64) -> Duration {
    Duration::from_nanos(
        u64::try_from(u128::from(bytes) * 1_000_000_000 / u128::from(rate)).unwrap_or(u64::MAX),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn no_more_than_the_rate_and_a_burst_moves(
            rate in 0_u64..1 << 40, steps in proptest::collection::vec((0_u64..200_000_000, any::<u32>()), 1..50),
        ) {
            let start = Instant::now();
            let (mut now, mut moved) = (start, 0_u128);
            let mut bucket = Bucket::new(Rate(rate), start);
            let rate = u128::from(rate.max(1));
            let burst = bucket.burst.as_nanos();
            for (nanos, wanted) in steps {
                now += Duration::from_nanos(nanos);
                let bytes = bucket.allows(now).min(wanted as usize);
                bucket.spend(bytes);
                moved += bytes as u128;
                let bound = rate * (now.duration_since(start).as_nanos() + burst) / 1_000_000_000;
                // Rounding may add bytes of one nanosecond to each piece.
                prop_assert!(moved <= bound + 50 * (rate / 1_000_000_000 + 1), "{moved} of {bound}");
            }
        }

        #[test]
        fn it_opens_when_it_says(rate in 1_u64..1 << 36, spent in 0_usize..1 << 24) {
            let start = Instant::now();
            let mut bucket = Bucket::new(Rate(rate), start);
            bucket.spend(spent);
            prop_assert!(bucket.allows(bucket.opens()) > 0);
        }
    }
}
