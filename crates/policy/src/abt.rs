//! ABT: a send buffer that follows the congestion window.
//!
//! Problem: a send buffer must hold two windows (one under way, one for the round trip in which a loss is repaired) and
//! nothing more, and windows differ by six orders of magnitude between connections.
//! Source: Semke 1998, section 2.2; fair shares of memory in [`crate::share::AbtRounds`].
//! Terms: `net_target` is what the network can use, `mem_target = min(net_target, fair share)`; bytes of payload.
//! - `cwnd > net_target / 2`: `net_target = 2 * cwnd`.
//! - `cwnd < net_target / 4`: `net_target = 4 * cwnd`.
//!
//! Ours: Semke gives the lower edge of the band, but not where `net_target` goes when cwnd leaves the band. It goes to
//! the nearer edge, so that it moves as little as the band allows. cwnd may grow unused (Semke 1998, section 5), so a
//! sample taken while the application had nothing to send does not raise the target. The kernel sets its flag for that
//! also while the *send buffer* is full; such samples count ([`Sample::application_limits`]), or a target that is too
//! small would keep itself too small. [`Config::published`] turns both off: cwnd counts, used or not. A smaller target
//! applies at once: the kernel drops no queued byte for it, the bytes leave as they are acknowledged.
//! Properties kept: after each observation that was not application-limited, `2 * cwnd <= net_target <= 4 * cwnd` (and
//! at most [`Config::max`]); a loss that halves cwnd does not move `net_target`; if observed once per round trip,
//! `net_target` is never below the next window of slow start.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// Lower edge of the band, in windows: one under way, one for recovery (Semke 1998, footnote 1).
const BAND_LOW: u64 = 2;
/// Upper edge of the band, in windows: twice the lower, because cwnd halves at a loss (Semke 1998, section 2.2.1).
const BAND_HIGH: u64 = 4;
/// Smallest buffer under memory pressure, in segments: two, so that loss recovery can go on.
const FLOOR_SEGMENTS: u64 = 2;

/// Parameters of ABT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Largest target; the kernel of Semke 1998 had 1 MB (section 4). [`Bytes::MAX`]: no limit.
    pub max: Bytes,
    /// Counts cwnd whether it was used or not, as in Semke 1998. If false, an application-limited sample does not raise
    /// the target.
    pub unused_counts: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { max: Bytes::MAX, unused_counts: false }
    }
}

impl Config {
    /// Returns ABT as published: the target follows cwnd alone.
    #[must_use]
    pub fn published() -> Self {
        Self { unused_counts: true, ..Self::default() }
    }
}

/// ABT for one connection, at its sender.
///
/// Observe whenever cwnd changes: per acknowledgement or per round trip. A slow timer would throttle slow start. Reads
/// `cwnd`, `app_limited`, `sndbuf`, `send_queued`, `bytes_acked`, `mss`.
///
/// ```
/// use bufwise_policy::{Abt, Policy, abt};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut abt = Abt::new(abt::Config::default());
/// let mut target = |cwnd| {
///     let sample = Sample { cwnd: Bytes(cwnd), ..Sample::default() };
///     abt.observe(&sample, Micros::ZERO).send_buffer.map_or(0, |buffer| buffer.0)
/// };
/// assert_eq!(target(100_000), 200_000);
/// assert_eq!(target(50_000), 200_000, "a loss that halves the window does not move it");
/// assert_eq!(target(40_000), 160_000);
/// ```
#[derive(Clone, Debug)]
pub struct Abt {
    config: Config,
    net_target: Bytes,
    limit: Option<Bytes>,
    /// The shrinking limit while the host is under memory pressure.
    shrunk: Option<Bytes>,
    under_pressure: bool,
    acked: Bytes,
}

impl Abt {
    /// Returns the state of a new connection.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            net_target: Bytes::ZERO,
            limit: None,
            shrunk: None,
            under_pressure: false,
            acked: Bytes::ZERO,
        }
    }

    /// Returns the network target; zero before the first window is known.
    #[must_use]
    pub fn net_target(&self) -> Bytes {
        self.net_target
    }

    /// Returns `min(net_target, fair share)`.
    #[must_use]
    pub fn mem_target(&self) -> Bytes {
        self.limit.map_or(self.net_target, |limit| limit.min(self.net_target))
    }

    /// Sets whether the host's memory in use exceeds its threshold (Semke 1998, section 2.2.3).
    ///
    /// While it does, each acknowledgement shrinks the buffer by what it acknowledges, down to two segments, whatever
    /// the targets say; the buffer never grows.
    pub fn set_pressure(&mut self, under_pressure: bool) {
        self.under_pressure = under_pressure;
        if !under_pressure {
            self.shrunk = None;
        }
    }

    fn follow(&mut self, cwnd: Bytes, idle: bool) {
        let (low, high) = (cwnd.times(BAND_LOW), cwnd.times(BAND_HIGH));
        if low > self.net_target && !idle {
            self.net_target = low.min(self.config.max);
        } else if high < self.net_target {
            self.net_target = high;
        }
    }

    fn buffer(&mut self, acked: Bytes, mss: Bytes) -> Bytes {
        let target = self.mem_target();
        if !self.under_pressure {
            return target;
        }
        let floor = mss.times(FLOOR_SEGMENTS).min(target);
        let before = self.shrunk.unwrap_or(target).min(target);
        let shrunk = (before - acked).max(floor);
        self.shrunk = Some(shrunk);
        shrunk
    }
}

impl Policy for Abt {
    fn observe(&mut self, sample: &Sample, _now: Micros) -> Decision {
        let acked = sample.bytes_acked - self.acked;
        self.acked = sample.bytes_acked;
        if sample.cwnd > Bytes::ZERO {
            self.follow(sample.cwnd, !self.config.unused_counts && sample.application_limits());
        }
        if self.net_target == Bytes::ZERO {
            return Decision::NONE;
        }
        let buffer = self.buffer(acked, sample.mss_or_default());
        Decision { send_buffer: Some(buffer), ..Decision::NONE }
    }

    fn demand(&self) -> Option<Bytes> {
        Some(self.net_target)
    }

    fn set_limit(&mut self, limit: Option<Bytes>) {
        self.limit = limit;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 1_448;

    fn at(cwnd: u64) -> Sample {
        Sample { cwnd: Bytes(cwnd), mss: Bytes(MSS), ..Sample::default() }
    }

    fn target_after(abt: &mut Abt, cwnd: u64) -> u64 {
        abt.observe(&at(cwnd), Micros::ZERO);
        abt.net_target().0
    }

    #[test]
    fn the_target_moves_to_the_nearer_edge_of_the_band() {
        let mut abt = Abt::new(Config::default());
        assert_eq!(target_after(&mut abt, 100_000), 200_000);
        assert_eq!(target_after(&mut abt, 100_001), 200_002);
        assert_eq!(target_after(&mut abt, 50_001), 200_002);
        assert_eq!(target_after(&mut abt, 50_000), 200_000);
        assert_eq!(target_after(&mut abt, 10_000), 40_000);
    }

    #[test]
    fn as_published_an_unused_window_counts() {
        let idle = Sample { app_limited: true, ..at(100_000) };
        let demand = |config| {
            let mut abt = Abt::new(config);
            abt.observe(&at(10_000), Micros::ZERO);
            abt.observe(&idle, Micros::ZERO);
            abt.demand()
        };
        assert_eq!(demand(Config::published()), Some(Bytes(200_000)));
        assert_eq!(demand(Config::default()), Some(Bytes(20_000)));
    }

    #[test]
    fn nothing_is_asked_before_a_window_is_known() {
        let mut abt = Abt::new(Config::default());
        assert_eq!(abt.observe(&at(0), Micros::ZERO), Decision::NONE);
        assert_eq!(abt.demand(), Some(Bytes::ZERO));
    }

    #[test]
    fn a_fair_share_bounds_the_buffer_and_not_the_demand() {
        let mut abt = Abt::new(Config::default());
        abt.set_limit(Some(Bytes(30_000)));
        assert_eq!(abt.observe(&at(100_000), Micros::ZERO).send_buffer, Some(Bytes(30_000)));
        assert_eq!(abt.demand(), Some(Bytes(200_000)));
        abt.set_limit(None);
        assert_eq!(abt.observe(&at(100_000), Micros::ZERO).send_buffer, Some(Bytes(200_000)));
    }

    #[test]
    fn under_pressure_the_buffer_shrinks_by_what_is_acknowledged() {
        let mut abt = Abt::new(Config::default());
        abt.observe(&at(100_000), Micros::ZERO);
        abt.set_pressure(true);
        let mut sizes = Vec::new();
        for acked in [0, 50_000, 50_000, 120_000, 1_000_000] {
            let sample = Sample { bytes_acked: Bytes(acked), ..at(100_000) };
            sizes.push(abt.observe(&sample, Micros::ZERO).send_buffer.unwrap().0);
        }
        assert_eq!(sizes, [200_000, 150_000, 150_000, 80_000, 2 * MSS]);
        abt.set_pressure(false);
        assert_eq!(abt.observe(&at(100_000), Micros::ZERO).send_buffer, Some(Bytes(200_000)));
    }

    #[test]
    fn under_pressure_a_smaller_target_counts_at_once_and_a_larger_one_does_not() {
        let mut abt = Abt::new(Config::default());
        abt.set_pressure(true);
        let mut buffer = |cwnd, limit: Option<u64>| {
            abt.set_limit(limit.map(Bytes));
            abt.observe(&at(cwnd), Micros::ZERO).send_buffer
        };
        assert_eq!(buffer(100_000, None), Some(Bytes(200_000)));
        assert_eq!(buffer(10_000, None), Some(Bytes(40_000)), "the window fell");
        assert_eq!(buffer(10_000, Some(30_000)), Some(Bytes(30_000)), "the share fell");
        assert_eq!(buffer(100_000, None), Some(Bytes(30_000)));
    }

    #[test]
    fn a_small_target_does_not_keep_itself_small() {
        // Linux reports a full buffer as application-limited, because nothing unsent is queued.
        let mut abt = Abt::new(Config::default());
        let mut buffer = abt.observe(&at(10 * MSS), Micros::ZERO).send_buffer.unwrap();
        for doubling in 1..10 {
            let full =
                Sample { app_limited: true, sndbuf: buffer, send_queued: buffer.scaled(2, 3), ..at(0) };
            let cwnd = Bytes((10 * MSS) << doubling);
            buffer = abt.observe(&Sample { cwnd, ..full }, Micros::ZERO).send_buffer.unwrap();
            assert_eq!(buffer, cwnd.times(2));
        }
    }

    proptest! {
        #[test]
        fn the_target_stays_between_two_and_four_windows(windows in proptest::collection::vec(1_u64..1 << 40, 1..50)) {
            let mut abt = Abt::new(Config::default());
            for cwnd in windows {
                let target = target_after(&mut abt, cwnd);
                prop_assert!((2 * cwnd..=4 * cwnd).contains(&target), "{} for {}", target, cwnd);
            }
        }

        #[test]
        fn a_loss_that_halves_cwnd_does_not_move_the_target(
            peak in 4_u64..1 << 30, losses in 1_usize..20, growth in 1_u64..64,
        ) {
            // A sawtooth between a half and a whole peak, as in equilibrium.
            let mut abt = Abt::new(Config::default());
            let target = target_after(&mut abt, peak);
            for _ in 0..losses {
                let mut cwnd = peak.div_ceil(2);
                while cwnd < peak {
                    prop_assert_eq!(target_after(&mut abt, cwnd), target);
                    cwnd += (peak / growth).max(1);
                }
                prop_assert_eq!(target_after(&mut abt, peak), target);
            }
        }

        #[test]
        fn slow_start_is_never_throttled(first in 1_u64..64, rounds in 1_u32..24) {
            let mut abt = Abt::new(Config::default());
            for round in 0..rounds {
                let buffer = abt.observe(&at((first * MSS) << round), Micros::ZERO).send_buffer.unwrap();
                prop_assert!(buffer.0 >= (first * MSS) << (round + 1), "the next window fits");
            }
        }

        #[test]
        fn as_published_the_target_is_in_the_band_after_every_sample(
            windows in proptest::collection::vec((1_u64..1 << 40, any::<bool>()), 1..50),
        ) {
            let mut abt = Abt::new(Config::published());
            for (cwnd, app_limited) in windows {
                abt.observe(&Sample { app_limited, ..at(cwnd) }, Micros::ZERO);
                prop_assert!((2 * cwnd..=4 * cwnd).contains(&abt.net_target().0));
            }
        }

        #[test]
        fn an_idle_application_does_not_raise_the_target(
            windows in proptest::collection::vec((1_u64..1 << 40, any::<bool>()), 1..50),
        ) {
            let mut abt = Abt::new(Config::default());
            for (cwnd, app_limited) in windows {
                let before = abt.net_target();
                abt.observe(&Sample { app_limited, ..at(cwnd) }, Micros::ZERO);
                prop_assert!(!app_limited || abt.net_target() <= before);
                prop_assert!(abt.net_target() <= Bytes(cwnd).times(4));
            }
        }
    }
}
