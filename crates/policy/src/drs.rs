//! DRS: a receive window of twice what the sender was seen to use.
//!
//! Problem: a receiver does not know the sender's congestion window. Its window must never be smaller than that, and
//! should not be much larger. The bytes of one round trip are a lower bound of the congestion window.
//! Source: Fisk 2000, sections 6 and 7; Feng 2002, section 3.
//! Terms: a *measurement* is the payload that arrived in one round trip; `g` is the granularity of the timer; the
//! *quantum* is one step of the advertised window, `2^scale` bytes.
//!
//! - Round-trip time: the sender-side estimate if there is one, else the smallest of the receiver's own (each of those
//!   is an upper bound: the sender may have paused).
//! - An interval ends at the first observation at least a round trip (or `g`, if longer) after its start. If it was
//!   longer than the round trip, its bytes count in proportion (Fisk 2000, sections 6.3 and 7.2).
//! - Advertise twice the largest measurement: slow start may double the window meanwhile.
//!
//! Ours: one quantum is enough for a window, where Fisk 2000 (section 6.6) wants substantially more; an interval
//! includes the bytes of the observation that ends it, where section 7 leaves those to the next one.
//! Properties kept: the window is at least twice the largest measurement (up to the maximum), never below the quantum
//! or two segments, and a multiple of the quantum; it never shrinks; the receiver's own estimate never rises.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// Largest shift of the window-scale option (RFC 7323, section 2.3).
const LARGEST_SCALE: u8 = 14;
/// Largest value of the window field.
const LARGEST_FIELD: u64 = 65_535;
/// Window over the largest measurement: slow start may double in a round trip (Fisk 2000, section 6.5).
const DOUBLING: u64 = 2;
/// Smallest window, in segments: a receiver that delays acknowledgements waits for two.
const FLOOR_SEGMENTS: u64 = 2;

/// Parameters of DRS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Window scale agreed in the SYN, 0 to 14; larger values count as 14.
    pub window_scale: u8,
    /// Window before the first measurement, in bytes. The default is 8 segments of 1,448, the most that stays below the
    /// 13 KB that Fisk 2000 advertised on a modem line (section 8.2). Of today's initial window of 10 segments (RFC
    /// 6928) two must then wait for an acknowledgement; from there on twice what arrived keeps up, a third of a round
    /// trip behind.
    pub initial: Bytes,
    /// Largest window, in bytes; the largest that the scale can express also applies.
    pub max: Bytes,
    /// Granularity of the timer: 10 ms in Fisk 2000, a microsecond in today's kernels.
    pub granularity: Micros,
}

impl Default for Config {
    fn default() -> Self {
        Self { window_scale: 7, initial: Bytes(8 * 1_448), max: Bytes::MAX, granularity: Micros(1) }
    }
}

/// DRS for one connection, at its receiver.
///
/// Observe once per round trip or more often. Reads `bytes_received`, `rcv_rtt`, `srtt`, `mss`.
///
/// ```
/// use bufwise_policy::{Drs, Policy, drs};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut drs = Drs::new(drs::Config::default());
/// let rcv_rtt = Micros::from_millis(100);
/// let arrived = |bytes| Sample { bytes_received: Bytes(bytes), rcv_rtt, ..Sample::default() };
/// drs.observe(&arrived(0), Micros::ZERO);
/// // 64,000 bytes came within a round trip: twice that is offered.
/// let decision = drs.observe(&arrived(64_000), rcv_rtt);
/// assert_eq!(decision.receive_window, Some(Bytes(128_000)));
/// ```
#[derive(Clone, Debug)]
pub struct Drs {
    config: Config,
    /// Smallest receiver-side round-trip time; zero: none yet.
    own_rtt: Micros,
    /// Largest measurement.
    largest: Bytes,
    /// Begin of the interval, and what had arrived by then.
    began: Option<(Micros, Bytes)>,
}

impl Drs {
    /// Returns the state of a connection that has just been established.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self { config, own_rtt: Micros::ZERO, largest: Bytes::ZERO, began: None }
    }

    /// Returns the largest measurement so far, in bytes.
    #[must_use]
    pub fn largest_measurement(&self) -> Bytes {
        self.largest
    }

    /// Returns the receiver's own estimate of the round-trip time: the smallest seen; zero before the first.
    #[must_use]
    pub fn own_rtt(&self) -> Micros {
        self.own_rtt
    }

    /// Returns the smallest window step that the connection can express, in bytes.
    #[must_use]
    pub fn quantum(&self) -> Bytes {
        Bytes(1 << self.scale())
    }

    /// Returns the window to advertise, in bytes, to a sender whose full segments carry `mss`.
    #[must_use]
    pub fn window(&self, mss: Bytes) -> Bytes {
        self.offer(self.largest.times(DOUBLING), mss)
    }

    /// Returns `wanted` (a window, in bytes) in whole quanta, within the bounds of the connection and the configuration.
    #[must_use]
    pub fn offer(&self, wanted: Bytes, mss: Bytes) -> Bytes {
        let quantum = self.quantum();
        let floor = quantum.max(mss.times(FLOOR_SEGMENTS)).max(self.config.initial);
        let largest_window = Bytes(LARGEST_FIELD << self.scale()).min(self.config.max).max(quantum);
        let wanted = wanted.max(floor).min(largest_window);
        // Round up to a whole quantum, or down where the maximum is not a multiple of it.
        let whole = |steps: u64| quantum.times(steps);
        let up = whole(wanted.0.div_ceil(quantum.0));
        if up > largest_window { whole(largest_window.0 / quantum.0) } else { up }
    }

    fn scale(&self) -> u8 {
        self.config.window_scale.min(LARGEST_SCALE)
    }

    fn rtt(&self, srtt: Micros) -> Option<Micros> {
        [srtt, self.own_rtt].into_iter().find(|rtt| *rtt > Micros::ZERO)
    }

    fn measure(&mut self, received: Bytes, rtt: Micros, now: Micros) {
        let Some((began, before)) = self.began else {
            self.began = Some((now, received));
            return;
        };
        let elapsed = now.since(began);
        if elapsed < rtt.max(self.config.granularity) {
            return;
        }
        let arrived = received - before;
        let measurement = if elapsed > rtt { arrived.scaled(rtt.0, elapsed.0) } else { arrived };
        self.largest = self.largest.max(measurement);
        self.began = Some((now, received));
    }
}

impl Policy for Drs {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        let seen = sample.rcv_rtt;
        if seen > Micros::ZERO && (self.own_rtt == Micros::ZERO || seen < self.own_rtt) {
            self.own_rtt = seen;
        }
        if let Some(rtt) = self.rtt(sample.srtt) {
            self.measure(sample.bytes_received, rtt, now);
        }
        Decision { receive_window: Some(self.window(sample.mss_or_default())), ..Decision::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn config() -> Config {
        Config { initial: Bytes(4_096), ..Config::default() }
    }

    fn arrived(bytes: u64, rcv_rtt_ms: u64) -> Sample {
        Sample { bytes_received: Bytes(bytes), rcv_rtt: Micros::from_millis(rcv_rtt_ms), ..Sample::default() }
    }

    #[test]
    fn the_window_is_twice_what_arrived_in_a_round_trip() {
        let mut drs = Drs::new(config());
        drs.observe(&arrived(0, 100), Micros::from_millis(0));
        let decision = drs.observe(&arrived(64_000, 100), Micros::from_millis(100));
        assert_eq!(decision.receive_window, Some(Bytes(128_000)));
    }

    #[test]
    fn an_interval_longer_than_the_round_trip_counts_in_proportion() {
        // Fisk 2000, section 7.2: a 1 ms round trip under a 10 ms timer would look ten times too large.
        let mut drs = Drs::new(Config { granularity: Micros::from_millis(10), ..config() });
        drs.observe(&arrived(0, 1), Micros::ZERO);
        drs.observe(&arrived(50_000, 1), Micros::from_millis(5));
        assert_eq!(drs.largest_measurement(), Bytes::ZERO, "the timer has not ticked");
        drs.observe(&arrived(100_000, 1), Micros::from_millis(10));
        assert_eq!(drs.largest_measurement(), Bytes(10_000));
    }

    #[test]
    fn the_senders_round_trip_time_is_preferred() {
        let mut drs = Drs::new(config());
        let both = Sample { srtt: Micros::from_millis(50), ..arrived(0, 200) };
        drs.observe(&both, Micros::ZERO);
        drs.observe(&Sample { bytes_received: Bytes(40_000), ..both }, Micros::from_millis(50));
        assert_eq!(drs.largest_measurement(), Bytes(40_000));
        assert_eq!(drs.own_rtt(), Micros::from_millis(200));
    }

    #[test]
    fn maxima_are_kept_over_slower_times() {
        let mut drs = Drs::new(config());
        let mut total = 0;
        for (round, bytes) in [0, 30_000, 60_000, 20_000, 0].into_iter().enumerate() {
            total += bytes;
            drs.observe(&arrived(total, 100), Micros::from_millis(100 * round as u64));
        }
        assert_eq!(drs.largest_measurement(), Bytes(60_000));
    }

    #[test]
    fn a_56_kbit_line_keeps_the_window_small() {
        // Fisk 2000, section 8.2: under 13 KB. 7,000 B/s; the queue makes a round trip of 0.8 s at the most.
        let mut drs = Drs::new(Config { window_scale: 0, ..Config::default() });
        for tenth in 0..600 {
            drs.observe(&arrived(tenth * 700, 800), Micros::from_millis(100 * tenth));
        }
        let window = drs.window(Bytes(536));
        assert!((Bytes(11_000)..Bytes(13_000)).contains(&window), "{window}");
    }

    #[test]
    fn a_modern_initial_window_loses_less_than_a_round_trip() {
        // A sender that doubles from 10 segments (RFC 6928), against what the window lets leave.
        for rtt_ms in [1, 20, 200] {
            let mut drs = Drs::new(Config { window_scale: 14, ..Config::default() });
            drs.observe(&arrived(0, rtt_ms), Micros::ZERO);
            let (mut cwnd, mut total, mut window) = (10 * 1_448, 0, Config::default().initial.0);
            for round in 1..14 {
                let flight = cwnd.min(window);
                assert!(flight >= cwnd / 2, "round {round}: {flight} of {cwnd}");
                total += flight;
                let now = Micros::from_millis(rtt_ms * round);
                window = drs.observe(&arrived(total, rtt_ms), now).receive_window.unwrap().0;
                cwnd *= 2;
            }
        }
    }

    #[test]
    fn no_window_is_below_two_segments_nor_a_quantum() {
        assert_eq!(Drs::new(config()).window(Bytes(9_000)), Bytes(18_048), "18,000 in quanta of 128");
        let scaled = Drs::new(Config { window_scale: 14, ..config() });
        assert_eq!(scaled.window(Bytes(536)), Bytes(16_384));
    }

    #[test]
    fn nothing_known_means_the_initial_window() {
        let mut drs = Drs::new(Config::default());
        let decision = drs.observe(&Sample::default(), Micros::from_secs(1));
        assert_eq!(decision.receive_window, Some(Bytes(11_648)), "11,584 in quanta of 128");
    }

    proptest! {
        #[test]
        fn the_window_covers_twice_the_largest_measurement_and_keeps_the_quantum(
            steps in proptest::collection::vec((1_u64..200_000, 0_u64..1 << 24, 0_u64..400_000), 1..60),
            scale in 0_u8..=14, max in 0_u64..1 << 32, mss in 1_u64..9_000,
        ) {
            let mut drs = Drs::new(Config { window_scale: scale, max: Bytes(max), ..config() });
            let quantum = Bytes(1 << scale);
            let largest = Bytes(65_535 << scale).min(Bytes(max)).max(quantum);
            let (mut now, mut received, mut last) = (Micros::ZERO, Bytes::ZERO, Bytes::ZERO);
            let mut best_rtt = None;
            for (step, bytes, rtt) in steps {
                now += Micros(step);
                received += Bytes(bytes);
                let sample = Sample {
                    bytes_received: received, rcv_rtt: Micros(rtt), mss: Bytes(mss), ..Sample::default()
                };
                let window = drs.observe(&sample, now).receive_window.unwrap();
                let wanted = drs.largest_measurement().times(2);
                prop_assert!(window + quantum > wanted.min(largest), "{} for {}", window, wanted);
                prop_assert!(wanted + quantum > largest || window >= wanted);
                prop_assert!(window >= quantum && window.0 % quantum.0 == 0);
                prop_assert!(window <= largest && window >= last);
                last = window;
                if rtt > 0 {
                    best_rtt = Some(best_rtt.map_or(rtt, |best: u64| best.min(rtt)));
                }
                prop_assert_eq!(drs.own_rtt().0, best_rtt.unwrap_or(0));
            }
        }

        #[test]
        fn slow_start_is_never_the_windows_fault(first in 1_u64..40, rounds in 1_u32..16, rtt_ms in 1_u64..500) {
            // The bytes of a round trip double; the window must always hold the next flight.
            let mut drs = Drs::new(Config { window_scale: 14, ..Config::default() });
            let (mut total, mut flight) = (0, first * 1_448);
            drs.observe(&arrived(0, rtt_ms), Micros::ZERO);
            for round in 1..=rounds {
                total += flight;
                let now = Micros::from_millis(rtt_ms * u64::from(round));
                let window = drs.observe(&arrived(total, rtt_ms), now).receive_window.unwrap();
                flight *= 2;
                prop_assert!(window.0 >= flight.min(65_535 << 14));
            }
        }
    }
}
