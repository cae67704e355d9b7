//! How long the client of `bufwise probe` waits for a train, and for the server's figures of one.
//!
//! Problem: over a slow link each packet of a train takes some tenths of a second, and a request that follows a train on its way
//! takes as long as the train. Where packets are lost, each further wait takes time from the next train.
//! Rule: the next packet is awaited for as long as the one before it took, and for [`GRACE`] more. The first one took the time
//! since it was ordered, which is longer than the link needs for one packet.
//! Properties kept: the packets of an even train are awaited at any rate; a train ends after [`LONGEST_SILENCE`] at the latest.

use std::time::{Duration, Instant};

use bufwise_units::{BitRate, Bytes};

/// Longest wait for an answer of the server to a request that nothing delays.
pub(super) const TIMEOUT: Duration = Duration::from_secs(5);
/// Tolerated delay that either host causes.
pub(super) const GRACE: Duration = Duration::from_millis(200);
/// Longest wait in which the client sends nothing. The server ends a session after five seconds of silence.
pub(super) const LONGEST_SILENCE: Duration = Duration::from_secs(4);
/// Slowest link on which a request behind a train is answered in time: a modem's.
const SLOWEST: BitRate = BitRate(28_800);

/// Returns the longest wait for the answer to a request that follows `ahead` on its way, at an unknown rate.
pub(super) fn behind(ahead: Bytes) -> Duration {
    TIMEOUT + Duration::from_millis(ahead.times(8_000).0 / SLOWEST.0)
}

/// The wait for the packets of one train.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    /// When a packet last came; at first when the train was ordered.
    before: Instant,
    until: Instant,
    /// The end of all waiting.
    last: Instant,
}

impl Wait {
    /// Begins to wait for a train that is ordered at `begun`, at first for this time.
    pub(super) fn new(begun: Instant, first: Duration) -> Self {
        let last = begun + LONGEST_SILENCE;
        Self { before: begun, until: last.min(begun + first), last }
    }

    /// Returns until when to wait for the next packet.
    pub(super) fn until(&self) -> Instant {
        self.until
    }

    /// Notes that a packet came at `now`: of this train, or of the one before, which the link may still have to send.
    pub(super) fn came(&mut self, now: Instant) {
        let took = now.saturating_duration_since(self.before);
        self.before = now;
        self.until = self.until.max(now + took + GRACE).min(self.last);
    }

    /// Notes that the last packet of the train came at `now`: further ones can only be late.
    pub(super) fn ends(&mut self, now: Instant) {
        self.last = self.last.min(now + GRACE / 10);
        self.until = self.last;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_packets_of_a_train_are_awaited_however_slow_the_link_is() {
        // 1,380 bytes at 1 Mbit/s, and at 56, 48, 33.6 and 14.4 kbit/s.
        for distance in [11, 197, 230, 329, 767].map(Duration::from_millis) {
            let (begun, way) = (Instant::now(), Duration::from_millis(60));
            // A probe and its echo take a fifth of the time of such a packet.
            let mut wait = Wait::new(begun, (way + distance / 5) * 3 + GRACE);
            let mut now = begun + way;
            for _ in 0..4 {
                now += distance;
                assert!(now < wait.until(), "{distance:?}");
                wait.came(now);
            }
        }
    }

    #[test]
    fn a_train_that_is_cut_off_is_not_awaited_for_long() {
        let begun = Instant::now();
        let mut wait = Wait::new(begun, GRACE);
        for millis in 0..100 {
            wait.came(begun + Duration::from_millis(millis));
        }
        assert_eq!(wait.until(), begun + Duration::from_millis(99 + 1) + GRACE);
        for second in 1..9 {
            wait.came(begun + Duration::from_secs(second));
        }
        assert_eq!(wait.until(), begun + LONGEST_SILENCE);
    }

    #[test]
    fn after_the_last_packet_only_late_ones_are_awaited() {
        let begun = Instant::now();
        let mut wait = Wait::new(begun, Duration::from_secs(1));
        wait.came(begun);
        wait.ends(begun);
        wait.came(begun + GRACE / 20);
        assert_eq!(wait.until(), begun + GRACE / 10);
    }

    #[test]
    fn an_answer_may_take_as_long_as_the_train_before_it_on_a_modem_line() {
        // 32 packets of 1,380 bytes take 6.3 s at 56 kbit/s, and 10.5 s at 33.6 kbit/s.
        assert!(behind(Bytes(32 * 1_380)) > Duration::from_millis(10_500));
        assert_eq!(behind(Bytes::ZERO), TIMEOUT);
    }
}
