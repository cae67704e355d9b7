//! Tests, on the host, of single clauses of `fit` at the sender (`fit_start.h`, `fit.h`): the evidence of a path's
//! capacity, its refutation, and the time at which a connection without a roof is tried again.

use crate::abi::bw_fit;
use crate::judged_roof::{Sample, observe};

const MSS: u64 = 1_448;
const RTT: u64 = 40_000;
const NOW: u64 = 10_000_000;
/// A rate of a thousand segments per second, in bytes per second.
const RATE: u64 = 1_000 * MSS;
/// `BW_FIT_START`, `BW_FIT_RAMP`, `BW_FIT_FOLLOW`, `BW_FIT_OPEN`.
const START: u32 = 0;
const RAMP: u32 = 1;
const FOLLOW: u32 = 2;
const OPEN: u32 = 3;

/// A sample at `NOW`, on a path without a queue.
fn sample(cwnd: u64, delivered: u32) -> Sample {
    Sample { now: NOW, mss: MSS, srtt: RTT, min_rtt: RTT, cwnd, delivered, ..Sample::default() }
}

fn after(mut state: bw_fit, sample: &Sample) -> bw_fit {
    observe(&mut state, sample);
    state
}

/// A start with a steady rate, at first without a queue. Its next time window, of 10 ms, has the rate of the last one if ten
/// segments are delivered.
fn steady_start() -> bw_fit {
    bw_fit {
        phase: START,
        steady_rate: RATE,
        window_at: NOW - 10_000,
        window_rate: RATE,
        window_least: u32::MAX,
        last_at: NOW - 1_000,
        ..bw_fit::default()
    }
}

#[test]
fn a_full_path_delivers_five_to_nine_eighths_of_the_window_in_a_round_trip() {
    // 60 segments in a round trip of 60 ms.
    let phase = |cwnd| after(steady_start(), &Sample { srtt: 60_000, ..sample(cwnd, 10) }).phase;
    assert_eq!([phase(97), phase(96), phase(54), phase(53)], [START, FOLLOW, FOLLOW, START]);
}

/// If jitter has made CUBIC leave slow start, the rate is steady and round trips are long, but they do not grow.
#[test]
fn a_path_is_full_only_if_its_queue_has_grown_at_a_steady_rate() {
    let long = Sample { srtt: 60_000, ..sample(60, 10) };
    let least = |steady_queue| after(bw_fit { steady_queue, ..steady_start() }, &long).window_queue;
    let queue = least(0);
    let phase = |steady_queue| after(bw_fit { steady_queue, ..steady_start() }, &long).phase;
    assert_eq!([phase(queue - 7_501), phase(queue - 7_500)], [FOLLOW, START]);
    // At another rate the comparison begins anew.
    assert_eq!(after(bw_fit { steady_rate: 2 * RATE, ..steady_start() }, &long).phase, START);
}

/// Returns the state after some flights, 30 ms apart. Each flight has a number of segments, and a distance (us) between its
/// acknowledgements.
fn after_flights(flights: &[(u32, u64)]) -> bw_fit {
    let (mut state, mut now, mut delivered) = (bw_fit::default(), NOW, 0);
    for (segments, distance) in flights {
        now += 30_000;
        for _ in 0..*segments {
            (now, delivered) = (now + distance, delivered + 1);
            observe(&mut state, &Sample { now, ..sample(20, delivered) });
        }
    }
    state
}

/// Two trains in a row agree on a rate. A longer, slower train does not make the connection forget that rate.
#[test]
fn the_rate_on_which_two_trains_agreed_is_remembered() {
    let fast = 10 * RATE;
    let sure = |second| after_flights(&[(10, 100), (20, second), (40, 1_000)]).sure;
    assert!((fast * 9 / 10..=fast * 11 / 10).contains(&sure(100)), "{}", sure(100));
    assert_eq!(sure(200), 0, "two trains of different rates");
}

/// The queue belongs to others if it holds more than four times the data under way, in two rounds in a row. Once a
/// connection has had half of the rate on which trains agreed, it takes a fall for a change of the path.
#[test]
fn a_roof_ends_where_most_of_the_queue_was_others_in_two_rounds() {
    let began = NOW - 100_000;
    let state = |sure, crowded| {
        let state = bw_fit {
            phase: FOLLOW,
            roof: RATE,
            queued_since: began,
            round_at: began,
            window_at: began,
            sure,
            crowded,
            ..bw_fit::default()
        };
        after(state, &Sample { srtt: RTT + 12_000, ..sample(100, 100) })
    };
    // 52 segments are under way; a queue of 12 ms has 204 at 17 thousand segments per second, and 216 at 18 thousand.
    assert_eq!([17, 18].map(|times| state(times * RATE, 0).crowded), [0, 1]);
    assert_eq!([17, 18].map(|times| state(times * RATE, 1).phase), [FOLLOW, OPEN]);
    let open = state(18 * RATE, 1);
    assert_eq!((open.hold, open.open_until), (16_000_000, NOW + 16_000_000));
    assert_eq!([2, 3].map(|times| state(times * RATE, 0).sure), [0, 3 * RATE]);
}

/// A start with a train of the rate `RATE` over 32 ms; `carried` is the best rate of a round trip, bytes per second.
fn with_train(carried: u64) -> bw_fit {
    bw_fit {
        capacity: RATE,
        evidence: 1_000,
        train_time: 32_000,
        carried,
        round_at: NOW - 1_000,
        train_at: NOW - 2_000,
        last_at: NOW - 1_000,
        window_at: NOW - 1_000,
        ..bw_fit::default()
    }
}

#[test]
fn a_round_trip_that_delivers_a_sixteenth_more_than_a_train_refutes_it() {
    let phase = |carried| after(with_train(carried), &sample(20, 1)).phase;
    assert_eq!([phase(RATE + RATE / 16), phase(RATE + RATE / 16 + 1)], [RAMP, START]);
}

/// Jitter breaks a flight into many trains, whose rates tell nothing.
#[test]
fn a_train_of_less_than_a_fifth_of_the_window_tells_nothing() {
    let phase = |evidence| after(bw_fit { evidence, ..with_train(0) }, &sample(20, 1)).phase;
    assert_eq!([phase(3), phase(4)], [START, RAMP]);
}

/// After jitter has spread a flight, the next flight is sent at the pace of its acknowledgements, and has twice the rate.
#[test]
fn trains_whose_rates_differ_by_more_than_a_quarter_tell_nothing() {
    let state = |former_rate| bw_fit { former_rate, ..with_train(0) };
    let phase = |former_rate| after(state(former_rate), &sample(20, 1)).phase;
    let (slower, faster) = (RATE * 4 / 5, RATE + RATE / 4);
    assert_eq!([slower - 1, slower, faster, faster + 1].map(phase), [START, RAMP, RAMP, START]);
    // At the slower train's rate the next flights could overflow a short queue, but that rate is not confirmed. A roof is set
    // once they could overflow it at the faster train's rate, too.
    let roof = |cwnd| after(state(2 * RATE), &sample(cwnd, 1)).roof;
    assert_eq!([roof(9), roof(10)], [0, 2 * RATE / 16 * 15]);
}

#[test]
fn the_first_train_counts_alone_if_it_lasts_for_an_eighth_of_a_round_trip_and_2_ms() {
    let phase = |train_time| after(bw_fit { train_time, ..with_train(0) }, &sample(4, 1)).phase;
    assert_eq!([phase(6_999), phase(7_000)], [START, RAMP]);
}

/// Jitter may have spread a short first train, so that its rate is too low. If the train lasts less than 4 ms, the first
/// roof is set when the window reaches an eighth of the BDP, else a quarter.
#[test]
fn a_first_train_that_jitter_may_have_spread_gives_a_roof_later() {
    let roof = |train_time, cwnd| after(bw_fit { train_time, ..with_train(0) }, &sample(cwnd, 1)).roof;
    let first = RATE / 16 * 15;
    assert_eq!([roof(3_999, 4), roof(3_999, 5), roof(4_000, 9), roof(4_000, 10)], [0, first, 0, first]);
}

/// A start where TCP paces, after these samples: time (us), segments delivered, congestion window.
fn after_paced(samples: &[(u64, u32, u64)]) -> bw_fit {
    let mut state = bw_fit::default();
    for &(at, delivered, cwnd) in samples {
        observe(&mut state, &Sample { now: NOW + at, paced: 1, ..sample(cwnd, delivered) });
    }
    state
}

/// If TCP paces, only the first flight is a burst; later flights have TCP's own rate. Few acknowledgements are seen, because
/// they let no segment go at once. Nine segments in 1.1 ms give a roof when the window reaches an eighth of the BDP. Its rate
/// is that of nine segments in a time 0.15 ms longer. A host's pause during the first flight shows as a gap between single
/// segments, and that flight gives no roof.
#[test]
fn a_paced_start_takes_the_rate_of_its_first_flight() {
    let first = [(0, 1, 11), (1_100, 10, 20)];
    let second: Vec<_> = (0..11)
        .map(|pair| (40_000 + u64::from(pair) * 2_000, 12 + 2 * pair, 22 + 2 * u64::from(pair)))
        .collect();
    let rate = |us| 9 * MSS * 1_000_000 / us;
    let before = after_paced(&[&first, &second[..10]].concat());
    assert_eq!((before.phase, before.roof, before.capacity), (START, 0, rate(1_100)));
    let ramp = after_paced(&[&first, &second[..]].concat());
    assert_eq!((ramp.phase, ramp.roof), (RAMP, rate(1_250) / 16 * 15));
    let paused = [(0, 1, 11), (120, 2, 12), (240, 3, 13), (360, 4, 14), (3_900, 5, 15), (4_400, 10, 20)];
    assert_eq!(after_paced(&[&paused, &second[..]].concat()).phase, START);
}

/// A round of 100 ms that has used a roof of `RATE`. At its end the round trip exceeds `T` and the time of two segments by
/// `delay`, us.
fn delayed(state: bw_fit, delay: u64) -> bw_fit {
    let began = NOW - 100_000;
    let state = bw_fit {
        roof: RATE,
        capacity: RATE,
        round_at: began,
        window_at: began,
        window_least: u32::MAX,
        last_at: NOW - 1_000,
        ..state
    };
    after(state, &Sample { srtt: RTT + 2_000 + delay, ..sample(100, 100) })
}

/// The ramp's flights are spread out, so a delay that lasted through the whole ramp is not their queue.
#[test]
fn a_delay_that_lasts_through_the_ramp_belongs_to_the_path() {
    let ramp = |floor, delay| delayed(bw_fit { phase: RAMP, floor, ..bw_fit::default() }, delay);
    // Half of the shortest queue that counts, a sixteenth of a round trip and 1 ms; a step of a 32nd is added.
    let cases =
        [(9_000, 562, 0), (9_000, 563, 563 + 1_250), (9_000, 3_500, 3_500 + 1_250), (9_000, 3_501, 0)];
    for (floor, delay, allowed) in cases {
        let state = ramp(floor, delay);
        let step = if allowed == 0 { 16 } else { 128 };
        assert_eq!((state.phase, state.allowed, state.step), (FOLLOW, allowed, step), "{delay} us");
    }
    assert_eq!(ramp(500, 3_000).allowed, 0);
}

/// In the ramp, a path is full if the delay exceeds the one that lasted through the whole ramp by twice the threshold
/// (2.25 ms). A lasting delay that is longer than jitter (3.5 ms) counts as a queue from the beginning.
#[test]
fn a_ramp_ends_when_its_queue_grows_beyond_a_delay_that_was_there_before() {
    let known = |floor, delay| {
        let state = bw_fit { phase: RAMP, window_rate: RATE, floor, ..bw_fit::default() };
        delayed(state, delay).known
    };
    for (floor, most) in [(0, 2_250), (1_000, 3_250), (3_500, 5_750), (9_000, 3_500)] {
        assert_eq!([known(floor, most), known(floor, most + 1)], [0, RATE], "{floor} us");
    }
}

/// A host that pauses again and again leaves a part of the roof unused. The sender may then send faster between the pauses:
/// from the third such round on, the roof rises by a 51st of the path's rate per round, up to an eighth above that rate.
#[test]
fn a_roof_rises_where_a_hosts_pauses_leave_it_unused() {
    // The round lasts for 100 ms, and `roof` for 40 segments in a round trip.
    let after_round = |spare, roof, cwnd, delivered, known| {
        let began = NOW - 100_000;
        let (phase, capacity) = (FOLLOW, RATE);
        let state = bw_fit {
            phase,
            capacity,
            roof,
            known,
            spare,
            round_at: began,
            window_at: began,
            ..bw_fit::default()
        };
        let state = after(state, &sample(cwnd, delivered));
        (state.roof, state.spare)
    };
    let higher = RATE + RATE * 20 / 1024;
    assert_eq!(after_round(2, RATE, 100, 90, RATE), (higher, 3));
    assert_eq!(after_round(1, RATE, 100, 90, RATE), (RATE, 2));
    // No rise in three cases: the congestion window allows no more; less than three quarters are delivered; the path's whole
    // rate arrives.
    assert_eq!(after_round(2, RATE, 42, 90, RATE), (RATE, 0));
    assert_eq!(after_round(2, RATE, 100, 74, RATE), (RATE, 0));
    assert_eq!(after_round(2, RATE, 100, 90, RATE * 9 / 10), (RATE, 0));
    let highest = RATE + RATE / 8;
    assert_eq!(after_round(9, highest, 100, 98, RATE), (highest, 0));
    assert_eq!(after_round(9, highest - 1, 100, 98, RATE), (highest - 1 + RATE * 20 / 1024, 10));
}

/// Steps upwards are parts of C'. If the path carries far less than a train has shown, C' falls to eight times the path's
/// rate, by at most half in each round.
#[test]
fn the_capacity_falls_where_a_full_path_carries_an_eighth_of_it() {
    let began = NOW - 100_000;
    let capacity = |times| {
        let state = bw_fit {
            phase: FOLLOW,
            roof: RATE,
            capacity: times * RATE,
            queued_since: began,
            round_at: began,
            window_at: began,
            ..bw_fit::default()
        };
        after(state, &Sample { srtt: RTT + 12_000, ..sample(100, 100) }).capacity / RATE
    };
    assert_eq!([7, 8, 9, 16, 20].map(capacity), [7, 8, 8, 8, 10]);
}

/// A delay that is a queue in some rounds and none in others is allowed once it has stayed through a descent.
#[test]
fn a_delay_that_stays_through_a_descent_belongs_to_the_path() {
    let queued_since = NOW - 100_000;
    let state = bw_fit { phase: FOLLOW, known: RATE, queued_since, ..bw_fit::default() };
    let allowed =
        |floor_rounds, floor, delay| delayed(bw_fit { floor, floor_rounds, ..state }, delay).allowed;
    // This round is the fourth; a delay of 2 ms is a queue, and the roof comes down.
    assert_eq!(allowed(3, 563, 2_000), 563 + 1_250);
    assert_eq!([allowed(2, 563, 2_000), allowed(3, 562, 2_000), allowed(3, 563, 1_000)], [0; 3]);
}

/// The handshake's round trip was longer than a later one by more than a sixteenth and a millisecond: the path is jittery, and
/// trains tell nothing.
#[test]
fn a_handshake_that_took_longer_than_later_round_trips_keeps_the_start() {
    let phase = |first_rtt| after(bw_fit { first_rtt, ..with_train(0) }, &sample(20, 1)).phase;
    let longest = u32::try_from(RTT + RTT / 16 + 1_000).unwrap();
    assert_eq!([phase(0), phase(longest), phase(longest + 1)], [RAMP, RAMP, START]);
    let first = after(bw_fit::default(), &sample(10, 0)).first_rtt;
    assert_eq!(u64::from(first), RTT);
}

#[test]
fn the_best_round_trip_of_a_start_is_measured_while_there_is_no_roof() {
    let state =
        |elapsed, roof| bw_fit { round_at: NOW - elapsed, roof, last_at: NOW - 1_000, ..bw_fit::default() };
    let carried = |elapsed, roof| after(state(elapsed, roof), &sample(10, 40)).carried;
    assert_eq!([carried(RTT - 1, 0), carried(RTT, 0), carried(RTT, RATE)], [0, RATE, 0]);
}

#[test]
fn a_ramp_with_a_quarter_more_than_its_roof_begins_again() {
    let state = |roof| bw_fit {
        phase: RAMP,
        roof,
        capacity: roof,
        evidence: 9,
        window_at: NOW - 10_000,
        last_at: NOW - 1_000,
        ..bw_fit::default()
    };
    // 70 segments in 10 ms: 7,000 per second.
    let ended = |roof| after(state(roof), &sample(20, 70));
    let again = ended(7 * RATE * 4 / 5 - 1);
    assert_eq!((again.phase, again.roof, again.capacity, again.evidence), (START, 0, 0, 0));
    assert_eq!(ended(7 * RATE * 4 / 5).phase, FOLLOW);
}

#[test]
fn a_connection_that_is_left_alone_is_tried_again_when_its_time_is_over_and_it_has_stopped_growing() {
    let state = |open_until, carried| bw_fit {
        phase: OPEN,
        open_until,
        carried,
        hold: 2_000_000,
        round_at: NOW - 2 * RTT,
        ..bw_fit::default()
    };
    // 80 segments in two round trips.
    let after_sample = |open_until, carried| after(state(open_until, carried), &sample(100, 80));
    assert_eq!([after_sample(NOW, RATE).phase, after_sample(NOW + 1, RATE).phase], [FOLLOW, OPEN]);
    let grows = after_sample(NOW, RATE * 16 / 17 - 1);
    assert_eq!((grows.phase, grows.open_until, grows.carried), (OPEN, NOW + 2_000_000, RATE));
    assert_eq!(after_sample(NOW, RATE * 16 / 17 + MSS).phase, FOLLOW);
}

/// A connection that is left alone and sends little tells nothing about its path: a roof at its rate would bound its next
/// transfer.
#[test]
fn a_connection_that_is_left_alone_is_not_tried_again_while_its_application_sends_little() {
    let state = |limited| bw_fit {
        phase: OPEN,
        limited,
        carried: RATE,
        round_at: NOW - 2 * RTT,
        ..bw_fit::default()
    };
    // The congestion window has 100 segments, and these come in two round trips.
    let phase = |segments| after(state(0), &sample(100, segments)).phase;
    assert_eq!([phase(2), phase(49), phase(50)], [OPEN, OPEN, FOLLOW]);
    let limited = Sample { app_limited: 1, ..sample(100, 80) };
    assert_eq!([after(state(0), &limited).phase, after(state(1), &sample(100, 80)).phase], [OPEN; 2]);
}

/// Without privilege, samples are also taken while a path is interrupted and segments are retransmitted. The queue was there
/// before. If the rate became 0, it would count as unknown, and the roof would rise from two segments per round trip by
/// steps that do not grow.
#[test]
fn a_path_that_delivers_nothing_leaves_the_roof_as_it_is() {
    let began = NOW - 300_000;
    let roof_and_known = |delivered| {
        let state = bw_fit {
            phase: FOLLOW,
            roof: RATE,
            capacity: RATE,
            known: RATE,
            queued_since: began,
            round_at: began,
            window_at: began,
            ..bw_fit::default()
        };
        let state = after(state, &Sample { srtt: 60_000, retransmitted: 1, ..sample(100, delivered) });
        (state.roof, state.known)
    };
    assert_eq!(roof_and_known(0), (RATE, RATE));
    // 30 segments in 0.3 s are a tenth of the roof.
    assert_eq!(roof_and_known(30), (RATE / 10 - RATE / 80, RATE / 10));
}

/// An application changes to BBR, and back. The old roof tells nothing then, so the rate is first measured for 2 s.
#[test]
fn where_the_rule_applies_again_the_roof_begins_with_the_delivered_rate() {
    let began = NOW - RTT;
    let (phase, roof, capacity) = (FOLLOW, RATE, RATE);
    let mut state =
        bw_fit { phase, roof, capacity, step: 16, round_at: began, window_at: began, ..bw_fit::default() };
    assert_eq!(observe(&mut state, &Sample { paces_itself: 1, ..sample(100, 40) }), 0);
    let roofs: Vec<u64> = (1..=22_u32)
        .map(|round| {
            let later = sample(100, 40 + 100 * round);
            observe(&mut state, &Sample { now: NOW + 100_000 * u64::from(round), ..later })
        })
        .collect();
    assert_eq!(roofs, [vec![0; 21], vec![RATE]].concat());
}
