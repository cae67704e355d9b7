//! Tests, on the host, of single clauses of SOBAS in the kernel (`sobas.h`), at the edge of every comparison, which
//! random connections seldom reach. `differential.rs` compares the whole rule with `bufwise-policy`.

#![expect(unsafe_code, reason = "calls C")]

use crate::abi::{bw_reading, bw_sobas};
use crate::differential::ReceiveSample;

/// The values of `state` in `struct bw_sobas`.
const ESTIMATING: u32 = 1;
const SLOW_START: u32 = 2;
const RECOVERY: u32 = 3;
const BUFFER_LIMITED: u32 = 4;
const FINAL: u32 = 5;
const CONGESTED: u32 = 6;

const MAX: u64 = 1 << 40;
const BEGAN: u64 = 100_000_000;
const SECOND: u64 = 1_000_000;
const RTT: u64 = 10_000;

unsafe extern "C" {
    fn bufwise_sobas(state: *mut bw_sobas, sample: *const ReceiveSample, max: u64) -> u64;
}

/// Returns the state after a sample.
fn observe(mut state: bw_sobas, sample: &ReceiveSample) -> bw_sobas {
    // SAFETY: the structures are those of sobas.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_sobas(&raw mut state, sample, MAX) };
    state
}

/// A connection with readings of `rates` (bytes per second), each over `span` (us). The last reading ended at
/// [`BEGAN`], and the rate window of the next one is open.
fn read(state: u32, rates: &[u64], span: u64) -> bw_sobas {
    let mut sobas = bw_sobas {
        state,
        window: MAX,
        start: BEGAN,
        before: 1,
        length: span,
        last_at: BEGAN,
        last_received: 1,
        peak: rates.iter().copied().max().unwrap_or(0),
        count: u32::try_from(rates.len()).unwrap(),
        ..bw_sobas::default()
    };
    for (place, (reading, rate)) in sobas.readings.iter_mut().zip(rates).enumerate() {
        let back = u64::try_from(rates.len() - 1 - place).unwrap();
        *reading = bw_reading { at: BEGAN - back * span, rate: *rate, span };
    }
    sobas
}

/// The sample that ends the open rate window with a reading of `rate`.
fn reading(state: &bw_sobas, rate: u64, mss: u64, rcv_rtt: u64) -> ReceiveSample {
    let received = 1 + rate * state.length / SECOND;
    ReceiveSample { now: BEGAN + state.length, received, mss, rcv_rtt, ..ReceiveSample::default() }
}

/// Returns the state after one more reading of `rate`.
fn then(state: bw_sobas, rate: u64, mss: u64) -> bw_sobas {
    observe(state, &reading(&state, rate, mss, RTT))
}

#[test]
fn a_connection_that_has_received_nothing_opens_no_rate_window() {
    let none = ReceiveSample { now: BEGAN, rcv_rtt: RTT, ..ReceiveSample::default() };
    let after = observe(bw_sobas { state: ESTIMATING, ..bw_sobas::default() }, &none);
    assert_eq!((after.state, after.start, after.length, after.last_at), (ESTIMATING, 0, 0, 0));
}

#[test]
fn a_rate_window_ends_where_it_was_planned_unless_a_whole_one_has_passed_since() {
    // The rate window is planned for 20 ms; 10,000 bytes came in its first 10 ms, and 10,000 more until the sample.
    let open = bw_sobas {
        state: RECOVERY,
        window: MAX,
        start: BEGAN,
        length: 20_000,
        last_at: BEGAN + 10_000,
        last_received: 10_000,
        ..bw_sobas::default()
    };
    let close = |elapsed| {
        let sample = ReceiveSample {
            now: BEGAN + elapsed,
            received: 20_000,
            mss: 1,
            rcv_rtt: RTT,
            ..ReceiveSample::default()
        };
        let after = observe(open, &sample);
        let reading = after.readings[0];
        (after.count, reading.at, reading.span, reading.rate, after.start, after.before)
    };
    assert_eq!(close(19_999).0, 0);
    let by_then = 10_000 + 10_000 * 10_000 / 29_999;
    let rate = by_then * SECOND / 20_000;
    let planned = BEGAN + 20_000;
    assert_eq!(close(39_999), (1, planned, 20_000, rate, planned, by_then));
    assert_eq!(close(40_000), (1, BEGAN + 40_000, 40_000, 500_000, BEGAN + 40_000, 20_000));
}

#[test]
fn slow_start_ends_when_the_rate_falls_by_more_than_a_50th_and_a_segment() {
    let state = bw_sobas { peak: 1_000_000, ..read(SLOW_START, &[100_000], SECOND) };
    let after = |rate| then(state, rate, 1_000).state;
    assert_eq!((after(979_000), after(978_999)), (SLOW_START, RECOVERY));
}

#[test]
fn a_flat_rate_is_the_paths_from_four_fifths_of_the_largest() {
    let after =
        |rate, mss| then(bw_sobas { peak: 1_000_000, ..read(SLOW_START, &[rate], SECOND) }, rate, mss).state;
    assert_eq!((after(800_000, 1_000), after(799_999, 1_000)), (FINAL, RECOVERY));
    assert_eq!(after(799_999, 200_000), RECOVERY, "of segments so large that this is no fall");
}

#[test]
fn a_drop_is_by_more_than_a_fifth_after_two_rates_within_a_20th() {
    let after = |before, steady, last| {
        let state = then(read(RECOVERY, &[before, steady], SECOND), last, 1_000);
        (state.state, state.decided_rate)
    };
    assert_eq!(after(1_000_000, 950_000, 700_000), (FINAL, 1_000_000));
    assert_eq!(after(1_000_000, 949_999, 700_000), (RECOVERY, 0));
    assert_eq!(after(1_000_000, 1_000_000, 800_000), (RECOVERY, 0));
    assert_eq!(after(1_000_000, 1_000_000, 799_999), (FINAL, 1_000_000));
}

#[test]
fn two_rates_are_flat_that_hold_a_segment_and_rise_by_no_more_than_a_20th_and_one() {
    let after = |first, second, mss| then(read(SLOW_START, &[first], SECOND), second, mss).state;
    assert_eq!(after(1_000, 1_000, 1_000), FINAL);
    assert_eq!((after(999, 1_000, 1_000), after(1_000, 999, 1_000)), (SLOW_START, SLOW_START));
    assert_eq!((after(1_899_000, 2_000_000, 1_000), after(1_898_999, 2_000_000, 1_000)), (FINAL, SLOW_START));
}

#[test]
fn five_rates_are_level_that_hold_a_segment_and_are_within_a_20th_and_one_of_their_mean() {
    let after = |rates: [u64; 4], last, mss| then(read(RECOVERY, &rates, SECOND), last, mss).state;
    assert_eq!(after([1_000; 4], 1_000, 1_000), FINAL);
    assert_eq!(after([1_000, 1_000, 999, 1_000], 1_000, 1_000), RECOVERY);
    let with = |one| after([79_066, 79_066, one, 79_066], 79_066, 1_000);
    assert_eq!((with(85_336), with(85_337)), (FINAL, RECOVERY));
}

#[test]
fn the_error_of_the_slope_is_below_the_growth_that_half_a_segment_would_add() {
    // With one-byte segments that growth is 1/16 byte per second in a sixteenth of 250 ms; these rates have no slope.
    let after = |off: u64| {
        let state = read(RECOVERY, &[1_000_000 + off, 1_000_000 - off, 1_000_000, 1_000_000 - off], SECOND);
        observe(state, &reading(&state, 1_000_000 + off, 1, 250_000)).state
    };
    assert_eq!((after(10), after(11)), (FINAL, RECOVERY));
}

#[test]
fn deviations_are_scaled_before_they_are_squared() {
    // The squares of the deviations are multiples of 2^64.
    let (rate, off) = (1 << 38, 1 << 32);
    let state = read(RECOVERY, &[rate + off, rate - off, rate, rate - off], 62_500);
    assert_eq!(observe(state, &reading(&state, rate + off, 1_448, 62_500)).state, RECOVERY);
}

#[test]
fn readings_that_are_closer_than_a_16th_of_a_round_trip_have_no_slope() {
    let state = read(RECOVERY, &[1_000_000; 4], 10_000);
    assert_eq!(observe(state, &reading(&state, 1_000_000, 1_000, 1 << 24)).state, RECOVERY);
}

#[test]
fn a_slope_is_over_some_thousand_round_trips_at_most_and_of_a_round_trip_of_16_seconds_at_most() {
    // Only the oldest rate differs. Times are cut to some thousand round trips: over these it is a slope, over three
    // times as many it would be noise.
    let state = read(RECOVERY, &[10_400_000, 10_000_000, 10_000_000, 10_000_000], SECOND);
    assert_eq!(observe(state, &reading(&state, 10_000_000, 1, 1_000)).state, RECOVERY);
    let state = read(RECOVERY, &[1_000_000; 4], SECOND);
    assert_eq!(observe(state, &reading(&state, 1_000_000, 1_448, 1 << 26)).state, FINAL);
}

#[test]
fn a_decision_that_found_a_20th_more_or_less_keeps_the_window() {
    let after = |rate| {
        let state = read(RECOVERY, &[rate; 4], SECOND);
        let state = bw_sobas { decided_rate: 1_000_000, decided_window: 5_000, ..state };
        then(state, rate, 1_000).window
    };
    assert_eq!((after(1_050_000), after(1_050_001)), (5_000, 10_500));
}

#[test]
fn a_window_limits_that_is_nine_tenths_full_or_two_segments_short_of_it() {
    let after = |window, rate| {
        let state = bw_sobas { window, ..read(RECOVERY, &[1], SECOND) };
        observe(state, &reading(&state, rate, 1_000, 100_000))
    };
    let limited = |window, rate| after(window, rate).state == BUFFER_LIMITED;
    assert!(limited(111_112, 1_000_000) && !limited(111_113, 1_000_000));
    assert!(limited(12_000, 100_000) && !limited(12_001, 100_000));
    assert!(!limited(MAX, 1 << 30), "the largest window is no limit");
    let grown = after(12_000, 100_000);
    assert_eq!((grown.window, grown.grown_at, grown.count), (13_000, BEGAN + SECOND, 0));
}

/// A connection with a decision made at [`BEGAN`], of a rate (1 MB/s) and a round-trip time.
fn decided() -> bw_sobas {
    let state = read(FINAL, &[], SECOND);
    bw_sobas { decided_rate: 1_000_000, decided_rtt: RTT, decided_at: BEGAN, decided_window: 10_000, ..state }
}

#[test]
fn a_reading_strays_that_is_off_by_more_than_a_fifth_and_four_in_a_row_are_another_path() {
    let strays = |rate, rtt| {
        let state = decided();
        observe(state, &reading(&state, rate, 1_000, rtt)).strays
    };
    assert_eq!((strays(1_200_000, RTT), strays(1_200_001, RTT)), (0, 1));
    assert_eq!((strays(800_000, RTT), strays(799_999, RTT)), (0, 1));
    assert_eq!((strays(1_000_000, 12_000), strays(1_000_000, 12_001)), (0, 1));
    let after = |strays| then(bw_sobas { strays, window: 10_000, ..decided() }, 2_000_000, 1_000);
    let (third, fourth) = (after(2), after(3));
    assert_eq!((third.state, third.window, third.strays), (FINAL, 10_000, 3));
    assert_eq!((fourth.state, fourth.window, fourth.strays, fourth.count), (RECOVERY, MAX, 0, 0));
    assert_eq!((fourth.peak, fourth.decided_rate, fourth.decided_rtt), (0, 0, 0));
    assert_eq!((fourth.decided_at, fourth.decided_window), (0, 0));
}

#[test]
fn a_decision_is_tried_again_after_ten_seconds() {
    let after = |decided_at| then(bw_sobas { decided_at, ..decided() }, 1_000_000, 1_000);
    assert_eq!(after(BEGAN - 9 * SECOND + 1).state, FINAL);
    let again = after(BEGAN - 9 * SECOND);
    assert_eq!((again.state, again.grown_at, again.count), (BUFFER_LIMITED, BEGAN + SECOND, 0));
}

#[test]
fn losses_open_the_window_and_two_seconds_without_them_end_that() {
    let sample = |elapsed, losses| ReceiveSample {
        now: BEGAN + elapsed,
        received: 1,
        mss: 1_000,
        rcv_rtt: RTT,
        losses,
        ..ReceiveSample::default()
    };
    for state in [SLOW_START, RECOVERY, BUFFER_LIMITED, FINAL] {
        let begun = bw_sobas { window: 5_000, grown_at: BEGAN, ..read(state, &[1, 1], SECOND) };
        assert_eq!(observe(begun, &sample(1, 1)).state, state, "one loss is none");
        let lossy = observe(begun, &sample(1, 2));
        assert_eq!((lossy.state, lossy.window, lossy.lossy), (CONGESTED, MAX, 1));
        assert_eq!(lossy.congestion_since, BEGAN + 1);
    }
    let congested = bw_sobas { congestion_since: BEGAN, ..read(CONGESTED, &[1, 1], 10 * SECOND) };
    assert_eq!(observe(congested, &sample(2 * SECOND - 1, 0)).state, CONGESTED);
    assert_eq!(observe(congested, &sample(2 * SECOND, 0)).state, RECOVERY);
    let still = bw_sobas { lossy: 1, ..congested };
    assert_eq!(observe(still, &sample(2 * SECOND, 2)).state, CONGESTED);
}

#[test]
fn a_window_that_limits_grows_by_a_segment_for_each_round_trip_up_to_the_largest() {
    let state = bw_sobas { window: 5_000, grown_at: BEGAN, ..read(BUFFER_LIMITED, &[1], 10 * SECOND) };
    let sample = ReceiveSample {
        now: BEGAN + 39_999,
        received: 1,
        mss: 1_000,
        rcv_rtt: RTT,
        ..ReceiveSample::default()
    };
    let after = observe(state, &sample);
    assert_eq!((after.window, after.grown_at), (8_000, BEGAN + 30_000));
    let full = bw_sobas { window: MAX - 1, ..state };
    assert_eq!(observe(full, &sample).window, MAX);
}
