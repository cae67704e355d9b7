//! Every transition of figure 8 by name, and the detectors on noisy series.

mod paced;
mod published;

use super::detectors::{const_rate_drop, flat_by_slope, flat_rate};
use super::*;
use crate::policy::Policy;
use proptest::prelude::*;

const MSS: u64 = 1_448;
/// Payload rate of 100 Mbit/s Ethernet.
const FULL: f64 = 11_955_000.0;
const RTT: Micros = Micros::from_millis(40);

/// A transfer whose rate and round-trip time the test dictates.
struct Rig {
    sobas: Sobas,
    sample: Sample,
    received: f64,
    now: Micros,
}

impl Rig {
    fn new(config: Config) -> Self {
        let sample = Sample { mss: Bytes(MSS), probe_rtt: RTT, ..Sample::default() };
        Self { sobas: Sobas::new(config), sample, received: 0.0, now: Micros::from_secs(1) }
    }

    /// Starts a transfer in slow start, with this capacity in payload bytes per second (0: no estimate).
    fn started(config: Config, capacity: f64) -> Self {
        let mut rig = Self::new(config);
        rig.sample.capacity = Rate((capacity * 1_472.0 / 1_448.0).round() as u64);
        rig.receive(MSS as f64, 1);
        assert_eq!(rig.sobas.state(), State::SlowStart);
        rig
    }

    /// Lets data arrive at `rate` (bytes per second) for `millis` milliseconds, with a sample at each.
    fn receive(&mut self, rate: f64, millis: u64) -> Decision {
        let mut decision = Decision::NONE;
        for _ in 0..millis {
            self.now += Micros::from_millis(1);
            self.received += rate / 1_000.0;
            self.sample.bytes_received = Bytes(self.received as u64 + 1);
            decision = self.sobas.observe(&self.sample, self.now);
        }
        decision
    }

    /// Runs one rate window of two round trips per rate; returns the state after the last.
    fn windows(&mut self, rates: &[f64]) -> State {
        for &rate in rates {
            self.receive(rate, 2 * self.sample.probe_rtt.0 / 1_000);
        }
        self.sobas.state()
    }

    fn set_rtt(&mut self, millis: u64) {
        self.sample.probe_rtt = Micros::from_millis(millis);
    }
}

fn unpaced() -> Config {
    Config::default()
}

fn held(rate: f64) -> u64 {
    (rate * 0.04) as u64
}

fn near(value: Bytes, expected: u64, percent: u64) -> bool {
    value.0.abs_diff(expected) * 100 <= expected * percent
}

#[test]
fn estimating_to_slow_start_when_the_capacity_is_known() {
    let mut rig = Rig::new(unpaced());
    assert_eq!(rig.sobas.observe(&rig.sample, rig.now).receive_window, Some(Bytes::MAX));
    assert_eq!(rig.sobas.state(), State::Estimating);
    rig.sample.capacity = Rate::from_bits_per_sec(100_000_000);
    let decision = rig.sobas.observe(&rig.sample, rig.now);
    assert_eq!(rig.sobas.state(), State::SlowStart);
    // 1.2 * 12.5 MB/s * 40 ms, in TCP payload.
    assert!(near(decision.receive_window.unwrap(), 600_000 * 1_448 / 1_472, 1));
}

#[test]
fn estimating_to_slow_start_without_a_capacity_when_data_arrive() {
    let mut rig = Rig::started(unpaced(), 0.0);
    assert_eq!(rig.sobas.window(), Bytes::MAX);
    rig.sample.capacity = Rate::from_bits_per_sec(100_000_000);
    rig.receive(MSS as f64, 1);
    assert!(rig.sobas.window() < Bytes(600_000), "a late estimate still counts");
}

#[test]
fn nothing_is_decided_before_a_round_trip_time_is_known() {
    let mut sobas = Sobas::new(unpaced());
    let sample = Sample { bytes_received: Bytes(1 << 20), capacity: Rate(1 << 20), ..Sample::default() };
    for second in 0..10 {
        assert_eq!(sobas.observe(&sample, Micros::from_secs(second)).receive_window, Some(Bytes::MAX));
    }
    assert_eq!(sobas.state(), State::Estimating);
}

#[test]
fn slow_start_to_recovery_on_a_rate_drop() {
    let mut rig = Rig::started(unpaced(), FULL);
    let state = rig.windows(&[FULL * 0.1, FULL * 0.4, FULL * 0.2]);
    assert_eq!(state, State::Recovery);
    assert!(near(rig.sobas.window(), held(1.2 * FULL), 1), "the limit stays");
}

#[test]
fn slow_start_to_recovery_on_a_small_drop_too() {
    let mut rig = Rig::started(unpaced(), FULL);
    assert_eq!(rig.windows(&[FULL * 0.1, FULL * 0.5, FULL * 0.46]), State::Recovery);
}

#[test]
fn slow_start_to_buffer_limited_when_the_window_is_full() {
    let mut rig = Rig::started(unpaced(), FULL / 4.0);
    let before = rig.sobas.window();
    assert_eq!(rig.windows(&[FULL * 0.1, FULL * 0.3]), State::BufferLimited);
    assert_eq!(rig.sobas.window(), before + Bytes(MSS));
}

#[test]
fn recovery_to_buffer_limited_when_the_window_is_full() {
    let mut rig = Rig::started(unpaced(), FULL);
    assert_eq!(rig.windows(&[FULL * 0.5, FULL * 0.3]), State::Recovery);
    assert_eq!(rig.windows(&[FULL * 1.15]), State::BufferLimited);
}

#[test]
fn buffer_limited_grows_by_a_segment_per_round_trip() {
    let mut rig = Rig::started(unpaced(), FULL / 4.0);
    rig.windows(&[FULL * 0.3]);
    let before = rig.sobas.window();
    rig.receive(FULL * 0.3, 200);
    assert_eq!(rig.sobas.window(), before + Bytes(5 * MSS));
}

#[test]
fn slow_start_to_final_on_two_flat_rates() {
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL * 0.25, FULL * 0.8, FULL]), State::SlowStart);
    assert_eq!(rig.windows(&[FULL]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL), 1), "S = R * T");
}

#[test]
fn recovery_to_final_on_five_flat_rates() {
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL * 0.5]), State::Recovery);
    assert_eq!(rig.windows(&[FULL * 0.9; 4]), State::Recovery, "four are not enough");
    assert_eq!(rig.windows(&[FULL * 0.9]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.9), 1));
}

#[test]
fn slow_start_to_recovery_on_two_flat_rates_far_below_the_estimate() {
    // A loss at a quarter of the path: one window has the last burst, the next what it made the sender send.
    let mut rig = Rig::started(unpaced(), FULL);
    assert_eq!(rig.windows(&[FULL * 0.05, FULL * 0.2, FULL * 0.2]), State::Recovery);
    // With a queue the same rates are the path's.
    let mut rig = Rig::started(unpaced(), FULL);
    rig.windows(&[FULL * 0.05]);
    rig.set_rtt(44);
    assert_eq!(rig.windows(&[FULL * 0.2, FULL * 0.2]), State::Final);
}

#[test]
fn recovery_is_not_over_while_the_rate_is_flat_far_below_the_largest() {
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL * 0.5]), State::Recovery);
    assert_eq!(rig.windows(&[FULL * 0.5; 20]), State::Recovery, "no queue: the sender is what limits");
    assert_eq!(
        rig.windows(&[FULL * 0.51, FULL * 0.3]),
        State::Recovery,
        "nor is that a drop of the path's rate"
    );
}

#[test]
fn recovery_to_final_on_five_noisy_rates_while_a_queue_stands() {
    let noisy = [0.92, 0.89, 0.91, 0.88, 0.9].map(|part| part * FULL);
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    rig.windows(&[FULL, FULL * 0.5]);
    assert_eq!(rig.windows(&noisy), State::Recovery, "the slope is lost in the noise");
    rig.set_rtt(44);
    assert_eq!(rig.windows(&noisy), State::Final);
}

#[test]
fn recovery_to_final_on_a_const_rate_drop() {
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    rig.windows(&[FULL, FULL * 0.5]);
    assert_eq!(rig.windows(&[FULL * 0.9, FULL * 0.92]), State::Recovery);
    assert_eq!(rig.windows(&[FULL * 0.6]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.92), 1), "the rate before the drop");
}

#[test]
fn buffer_limited_to_final_on_five_flat_rates() {
    let mut rig = Rig::started(unpaced(), FULL);
    rig.set_rtt(48);
    assert_eq!(rig.windows(&[FULL]), State::BufferLimited, "full and queueing looks limited first");
    assert_eq!(rig.windows(&[FULL; 4]), State::BufferLimited);
    assert_eq!(rig.windows(&[FULL]), State::Final);
}

#[test]
fn buffer_limited_to_final_on_a_const_rate_drop() {
    let mut rig = Rig::started(unpaced(), FULL / 2.0);
    rig.windows(&[FULL * 0.6]);
    assert_eq!(rig.windows(&[FULL * 0.6, FULL * 0.62, FULL * 0.4]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.62), 1));
}

#[test]
fn buffer_limited_is_not_flat_while_the_window_grows() {
    // The rate follows the window: a segment per round trip per round trip.
    let mut rig = Rig::started(unpaced(), FULL / 4.0);
    rig.windows(&[FULL * 0.3]);
    for _ in 0..60 {
        let rate = rig.sobas.window().0 as f64 / 0.04;
        assert_eq!(rig.windows(&[rate]), State::BufferLimited);
    }
}

fn congested_in(prepare: impl FnOnce(&mut Rig) -> State, expected: State) {
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    assert_eq!(prepare(&mut rig), expected);
    rig.sample.probes_lost = 1;
    assert_eq!(rig.windows(&[FULL * 0.3]), expected, "one lost probe is not congestion");
    rig.sample.probes_lost = 2;
    let decision = rig.receive(FULL * 0.3, 1);
    assert_eq!(rig.sobas.state(), State::Congested);
    assert_eq!(decision.receive_window, Some(Bytes::MAX));
    rig.sample.probes_lost = 0;
    assert_eq!(rig.windows(&[FULL * 0.3; 20]), State::Congested, "final");
    assert_eq!(rig.sobas.window(), Bytes::MAX);
}

#[test]
fn slow_start_to_congested_when_probes_are_lost() {
    congested_in(|rig| rig.windows(&[FULL * 0.1]), State::SlowStart);
}

#[test]
fn recovery_to_congested_when_probes_are_lost() {
    congested_in(|rig| rig.windows(&[FULL * 0.9, FULL * 0.3]), State::Recovery);
}

#[test]
fn buffer_limited_to_congested_when_probes_are_lost() {
    congested_in(|rig| rig.windows(&[FULL * 1.75]), State::BufferLimited);
}

#[test]
fn final_stays_whatever_comes() {
    let mut rig = Rig::started(unpaced(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL]), State::Final);
    let window = rig.sobas.window();
    rig.sample.probes_lost = 50;
    rig.set_rtt(90);
    assert_eq!(rig.windows(&[FULL * 0.2, FULL, 0.0, FULL * 3.0, FULL]), State::Final);
    assert_eq!(rig.sobas.window(), window);
}

#[test]
fn no_data_is_not_a_flat_rate() {
    let mut rig = Rig::started(unpaced(), FULL);
    assert_eq!(rig.windows(&[0.0; 12]), State::SlowStart);
}

#[test]
fn continuous_starts_anew_when_the_path_has_changed() {
    let mut rig = Rig::started(Config { continuous: true, ..unpaced() }, FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL]), State::Final);
    assert_eq!(rig.windows(&[FULL * 0.5; 3]), State::Final, "a host may pause");
    assert_eq!(rig.windows(&[FULL * 0.5]), State::Recovery);
    assert_eq!(rig.windows(&[FULL * 0.5; 5]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.5), 1));
}

#[test]
fn continuous_tries_again_and_keeps_the_limit_if_nothing_was_gained() {
    let mut rig = Rig::started(Config { continuous: true, ..unpaced() }, FULL * 1.5);
    rig.windows(&[FULL, FULL]);
    let window = rig.sobas.window();
    while rig.sobas.state() == State::Final {
        rig.windows(&[FULL]);
        assert!(rig.now < Micros::from_secs(20));
    }
    assert_eq!(rig.sobas.state(), State::BufferLimited);
    rig.set_rtt(42);
    assert_eq!(rig.windows(&[FULL; 5]), State::Final);
    assert_eq!(rig.sobas.window(), window, "the queue of the attempt is not kept");
}

#[test]
fn continuous_leaves_congested_when_the_probes_come_back() {
    let mut rig = Rig::started(Config { continuous: true, ..unpaced() }, FULL);
    rig.sample.probes_lost = 9;
    assert_eq!(rig.windows(&[FULL * 0.2]), State::Congested);
    rig.sample.probes_lost = 0;
    rig.receive(FULL * 0.2, 1_990);
    assert_eq!(rig.sobas.state(), State::Congested);
    rig.receive(FULL * 0.2, 20);
    assert_eq!(rig.sobas.state(), State::Recovery);
}

// Detectors.

/// Readings of two round trips each, of `base + step * i` segments and `noise` in segments.
fn series(base: f64, step: f64, noise: &[f64]) -> Vec<Reading> {
    let span = RTT.times(2);
    let reading = |(i, noise): (usize, &f64)| Reading {
        at: span.times(i as u64 + 1),
        span,
        rate: Rate(((base + step * i as f64 + noise) * MSS as f64 / span.as_secs_f64()).round() as u64),
    };
    noise.iter().enumerate().map(reading).collect()
}

proptest! {
    /// A window of two round trips grows by two segments when cwnd grows by half a segment per round trip.
    #[test]
    fn five_flat_values_show_through_a_segment_of_noise(
        base in 30.0_f64..5_000.0, noise in proptest::array::uniform5(-0.5_f64..0.5),
    ) {
        prop_assert!(flat_rate(&series(base, 0.0, &noise), Bytes(MSS), RTT));
    }

    #[test]
    fn congestion_avoidance_is_not_flat_through_a_segment_of_noise(
        base in 30.0_f64..5_000.0, noise in proptest::array::uniform5(-0.5_f64..0.5),
    ) {
        prop_assert!(!flat_rate(&series(base, 2.0, &noise), Bytes(MSS), RTT));
        prop_assert!(!flat_rate(&series(base + 50.0, -2.0, &noise), Bytes(MSS), RTT));
    }

    #[test]
    fn two_values_are_flat_through_a_segment_of_noise(
        base in 30.0_f64..5_000.0, noise in proptest::array::uniform2(-0.5_f64..0.5),
    ) {
        prop_assert!(flat_rate(&series(base, 0.0, &noise), Bytes(MSS), RTT));
        // Slow start with delayed acknowledgements: 1.5 per round trip, 2.25 per window.
        prop_assert!(!flat_rate(&series(base, 1.25 * base, &noise), Bytes(MSS), RTT));
    }

    #[test]
    fn scale_does_not_matter_to_the_detectors(
        rates in proptest::collection::vec(1e5_f64..1e6, 2..6), factor in 1_u64..50,
    ) {
        let at = |factor: f64| -> Vec<Reading> {
            let noise: Vec<f64> = rates.iter().map(|rate| rate / 1e4 * factor).collect();
            series(0.0, 0.0, &noise)
        };
        let (one, scaled) = (at(1.0), at(factor as f64));
        for flat in [flat_rate, flat_by_slope] {
            prop_assert_eq!(flat(&one, Bytes(MSS), RTT), flat(&scaled, Bytes(MSS * factor), RTT));
        }
        prop_assert_eq!(const_rate_drop(&one).is_some(), const_rate_drop(&scaled).is_some());
    }
}

#[test]
fn a_zigzag_is_not_flat_but_has_no_slope() {
    let zigzag = series(500.0, 0.0, &[0.0, 60.0, 0.0, 60.0, 0.0]);
    assert!(!flat_rate(&zigzag, Bytes(MSS), RTT));
    assert!(flat_by_slope(&zigzag, Bytes(MSS), RTT));
    assert!(!flat_by_slope(&series(500.0, 2.0, &[0.0; 5]), Bytes(MSS), RTT), "congestion avoidance");
    assert!(!flat_by_slope(&series(500.0, -2.0, &[0.0; 5]), Bytes(MSS), RTT), "a fall");
    // Half of that growth is a segment in each window of two round trips.
    assert!(flat_by_slope(&series(500.0, 0.9, &[0.0; 5]), Bytes(MSS), RTT));
    assert!(!flat_by_slope(&series(500.0, 1.1, &[0.0; 5]), Bytes(MSS), RTT));
}

#[test]
fn a_const_rate_drop_needs_both_the_constant_and_the_drop() {
    let drop = |values: [f64; 3]| const_rate_drop(&series(0.0, 0.0, &values)).is_some();
    assert!(drop([690.0, 690.0, 500.0]));
    assert!(drop([690.0, 660.0, 500.0]), "within 5%");
    assert!(!drop([690.0, 640.0, 500.0]), "not constant");
    assert!(!drop([690.0, 690.0, 560.0]), "a fall of 19%");
    assert_eq!([810.0, 790.0].map(|last| drop([1_000.0, 1_000.0, last])), [false, true]);
    assert_eq!([949.0, 951.0].map(|steady| drop([1_000.0, steady, 700.0])), [false, true]);
    assert!(const_rate_drop(&series(0.0, 0.0, &[690.0, 500.0])).is_none());
}

#[test]
fn recorded_like_slow_start_is_flat_only_at_the_top() {
    // Segments per window: doubling, then the path's 690, counted with a segment or two of jitter.
    let counts = [30.0, 120.0, 470.0, 688.0, 691.0, 690.0];
    let all = series(0.0, 0.0, &counts);
    let flat: Vec<bool> = all.windows(2).map(|pair| flat_rate(pair, Bytes(MSS), RTT)).collect();
    assert_eq!(flat, [false, false, false, true, true]);
}

#[test]
fn the_meter_does_not_care_how_often_it_is_asked() {
    for spacing in [1, 7, 40, 79, 200] {
        let mut meter = Meter::default();
        let rates: Vec<u64> = (1..100)
            .filter_map(|i| {
                let now = Micros::from_millis(i * spacing);
                meter.observe(Bytes(now.0 * 10), Micros::from_millis(80), now)
            })
            .map(|reading| reading.rate.0)
            .collect();
        assert!(!rates.is_empty());
        assert!(rates.iter().all(|rate| *rate == 10_000_000), "every {spacing} ms: {rates:?}");
    }
}
