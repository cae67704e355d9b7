//! Property tests of `fit` at the receiver (`fit_window.h`), on the host: with any samples, and over a fluid model of a
//! path.

#![expect(unsafe_code, reason = "calls C")]

mod path;

use proptest::{prelude::*, test_runner::RngSeed};

use crate::abi::{bw_config, bw_control, bw_fit_window, bw_flow, bw_room};
use crate::config::{Config, ReceiveRule, SendRule};
use crate::judged::{config, control};
use crate::rules::{self, NONE};
use path::{DRS, Path, paths};

const MSS: u64 = 1_448;
const MAX: u64 = 64 << 20;
/// `enum bw_fit_phase`.
const START: u32 = 0;
const RAMP: u32 = 1;
const FOLLOW: u32 = 2;
const OPEN: u32 = 3;
/// `BW_ROOM_TAKEN`.
const SHOWN_TAKEN: u32 = 1;
/// `BW_ROOM_FORGOTTEN`, us.
const TEN_MINUTES: u64 = 600_000_000;

/// `struct bw_fit_window_sample`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) now: u64,
    pub(crate) received: u64,
    pub(crate) mss: u64,
    pub(crate) rtt: u64,
    pub(crate) rcv_rtt: u64,
    pub(crate) drs: u64,
    pub(crate) largest: u64,
    pub(crate) max: u64,
    pub(crate) scale: u32,
    pub(crate) out_of_order: u32,
    pub(crate) behind: u64,
}

unsafe extern "C" {
    fn bufwise_fit_window(state: *mut bw_fit_window, sample: *const Sample) -> u64;
    fn bufwise_next_window(config: *const bw_config, flow: *const bw_flow, now: u64) -> u64;
}

pub(crate) fn observe(state: &mut bw_fit_window, sample: &Sample) -> u64 {
    // SAFETY: the structures are those of fit_window.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_fit_window(state, sample) }
}

proptest! {
    // The same cases each time: a path that shrinks opens the window in one of some thousands (CONTRIBUTING's known gaps).
    #![proptest_config(ProptestConfig { cases: 256, rng_seed: RngSeed::Fixed(1), ..ProptestConfig::default() })]

    #[test]
    fn a_path_is_full_and_its_queue_short(mut path in paths()) {
        path.run(60);
        let (share, queue) = path.run(20);
        prop_assert!(share > 0.97, "{share} of {path:?}");
        prop_assert!(queue < 0.1 + 6.0 * MSS as f64 / path.product(), "{queue} in {path:?}");
    }

    #[test]
    fn a_path_that_grows_is_full_again_within_forty_round_trips(mut path in paths()) {
        path.run(60);
        path.capacity *= 2.0;
        let taken = path.until(41, |path| path.run(1).0 > 0.95);
        prop_assert!(taken <= 40, "{taken}: {path:?}");
    }

    /// Round trips are longer than `T`, but by less than the threshold of a queue. So a window far below the BDP seems to fill
    /// the path. There is no queue, because arrivals fall when the window becomes smaller.
    #[test]
    fn a_window_far_below_the_path_grows_though_round_trips_are_a_little_longer(mut path in paths()) {
        path.run(60);
        path.shrink_window(2);
        let taken = path.until(151, |path| path.run(1).0 > 0.95);
        prop_assert!(taken <= 150, "{taken}: {path:?}");
    }

    /// The ramp has taken a small part of the path's rate for its whole rate. Once arrivals refute that, trials have larger
    /// steps.
    #[test]
    fn a_window_of_an_eighth_of_the_path_grows_in_large_steps(mut path in paths()) {
        path.run(60);
        path.shrink_window(8);
        path.state.capacity /= 8;
        let taken = path.until(86, |path| path.run(1).0 > 0.95);
        prop_assert!(taken <= 85, "{taken}: {path:?}");
    }

    #[test]
    fn the_queue_of_a_path_that_shrinks_is_short_again_within_forty_round_trips(mut path in paths()) {
        path.run(60);
        path.capacity /= 2.0;
        path.run(40);
        let (share, queue) = path.run(20);
        prop_assert!(share > 0.95, "{share} of {path:?}");
        prop_assert!(queue < 0.15 + 6.0 * MSS as f64 / path.product(), "{queue} in {path:?}");
    }

    #[test]
    fn beside_others_that_keep_a_queue_the_window_neither_shrinks_far_nor_doubles(
        mut path in paths(), others in 0.3..3.0_f64,
    ) {
        path.run(100);
        let before = path.window;
        path.others = path.product() * others;
        // The window is opened, or grows as arrivals do; otherwise the connection's share of the queue would shrink
        // steadily.
        let taken = path.until(121, |path| path.state.phase == OPEN || path.window >= before + before / 4);
        prop_assert!(taken <= 120 || path.window * 4 >= before * 3, "{before} to {}: {path:?}", path.window);
        // The window must not jump to DRS's size, which a sender in slow start would fill.
        prop_assert!(path.window <= before * 2, "{before} to {}: {path:?}", path.window);
    }

    #[test]
    fn a_little_jitter_costs_little(mut path in paths(), part in 0.0..0.2_f64) {
        path.run(60);
        path.beyond = (path.rtt as f64 * part) as usize;
        path.run(60);
        // The lowest share seen is 85%, on one path of some thousands.
        let (share, _) = path.run(200);
        prop_assert!(share > 0.8, "{share} of {path:?}");
    }

    #[test]
    fn a_window_that_the_sender_leaves_unused_does_not_fall(mut path in paths(), part in 0.05..0.7_f64) {
        path.run(60);
        path.writes = path.capacity * part;
        path.run(6);
        // A trial's step that the sender does not use goes back.
        let bw_fit_window { trial, trial_window, .. } = path.state;
        let before = if trial > 0 && trial_window > 0 { trial_window } else { path.window };
        path.run(100);
        prop_assert!(path.window * 100 >= before * 99, "{before} to {}: {path:?}", path.window);
    }
}

/// Generates numbers of every magnitude up to 64 bits.
fn any_scale() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0..64_u32).prop_map(|(value, shift)| value >> shift)
}

fn any_sample() -> impl Strategy<Value = Sample> {
    let sizes = (any_scale(), any_scale(), any_scale(), any_scale());
    let times = (any_scale(), any_scale(), any_scale());
    (sizes, times, 0..20_u32, any::<u32>(), any_scale()).prop_map(
        |((received, mss, drs, largest), (now, rtt, rcv_rtt), scale, out_of_order, behind)| Sample {
            now,
            received,
            mss,
            rtt,
            rcv_rtt,
            drs,
            largest,
            max: MAX,
            scale,
            out_of_order,
            behind,
        },
    )
}

proptest! {
    #[test]
    fn any_samples_give_a_window_in_bounds(samples in prop::collection::vec(any_sample(), 1..200)) {
        let mut state = bw_fit_window::default();
        // The window does not change until data arrives, so the smallest segment so far is its bound.
        let mut smallest = MSS;
        for sample in samples {
            smallest = smallest.min(sample.mss);
            let sample = Sample { drs: sample.drs.clamp(2 * MSS, MAX), ..sample };
            let window = observe(&mut state, &sample);
            prop_assert!((2 * smallest..=MAX).contains(&window), "{window} after {sample:?}: {state:?}");
        }
    }

    #[test]
    fn short_paths_are_left_to_drs(samples in prop::collection::vec(any_sample(), 1..100)) {
        let mut state = bw_fit_window::default();
        for sample in samples {
            let sample = Sample { rtt: sample.rtt % 2_000, ..sample };
            prop_assert_eq!(observe(&mut state, &sample), sample.drs);
        }
    }
}

proptest! {
    #[test]
    fn samples_are_close_while_trains_tell_the_capacity_and_never_too_close(
        rtt in 1_u32..1_000_000, phase in 0..=OPEN, segs_in in prop_oneof![0_u32..24, 0_u32..8_192], now in 0..1_u64 << 40, behind in 0_u64..2,
    ) {
        let config: bw_config = (&Config { receive: ReceiveRule::Fit, ..Config::default() }).into();
        let mut flow = bw_flow { min_rtt: rtt, segs_in, ..bw_flow::default() };
        flow.fit_window.phase = phase;
        flow.arrivals.behind = behind;
        // SAFETY: the structures are those of flow.h and outlive the call.
        let next = unsafe { bufwise_next_window(&raw const config, &raw const flow, now) };
        let starts = phase == 0 && rtt >= 2_000 && segs_in <= 4_096;
        let is_first_flight = starts && segs_in < 12;
        let follows_closely = (phase == 1 || behind > 0) && rtt >= 2_000;
        let (closest, furthest) = if follows_closely {
            (100, 10_000)
        } else if is_first_flight {
            (0, 0)
        } else if starts {
            (100, 1_000)
        } else {
            (500, 100_000)
        };
        prop_assert!((now + closest..=now + furthest).contains(&next), "{} in phase {phase}, {rtt} us", next - now);
    }
}

/// Feeds trains to a start on a path of 40 ms, one each round trip, whose present lengths are `rcv_rtts` (us; the last one
/// stays). A train is the distances (us) between its pairs of segments.
fn after_trains(rcv_rtts: &[u64], trains: &[&[u64]]) -> bw_fit_window {
    after_trains_with(40_000, rcv_rtts, trains)
}

/// The same with this window of DRS's.
fn after_trains_with(drs: u64, rcv_rtts: &[u64], trains: &[&[u64]]) -> bw_fit_window {
    let (mut state, mut now, mut received) = (bw_fit_window::default(), 1_000_000, 0);
    for (number, train) in trains.iter().enumerate() {
        let rcv_rtt = rcv_rtts[number.min(rcv_rtts.len() - 1)];
        let began = now;
        for distance in [&[0], *train].concat() {
            now += distance;
            received += 2 * MSS;
            let base =
                Sample { now, received, mss: MSS, rtt: 40_000, rcv_rtt, max: MAX, ..Sample::default() };
            observe(&mut state, &Sample { drs, largest: drs / 2, ..base });
        }
        now = began + 40_000;
    }
    state
}

/// Two trains of the same rate begin the ramp; one train, two of different rates, or trains in bunches do not.
#[test]
fn a_ramp_begins_with_two_even_trains_of_the_same_rate() {
    let (even, slower, bunched) = ([240; 10], [400; 10], [40, 40, 40, 40, 1_100, 40, 40, 40, 40, 1_100]);
    assert_eq!(after_trains(&[40_000], &[&even]).phase, START);
    assert_eq!(after_trains(&[40_000], &[&even, &slower]).phase, START);
    assert_eq!(after_trains(&[40_000], &[&even, &even]).phase, RAMP);
    assert_eq!(after_trains(&[40_000], &[&bunched, &bunched, &bunched]).phase, START);
}

/// The second flight shows that a sender paces: it has twice the segments of the first, over half a round trip. The ramp then
/// begins at half of C' T. C' is the rate that the first flight would have if it had taken 0.15 ms longer. Flights that
/// jitter has spread have other rates.
#[test]
fn a_sender_that_paces_is_known_by_its_second_flight() {
    let (first, second, slower) = ([240; 4], [2_000; 9], [4_000; 5]);
    let capacity = 8 * MSS * 1_000_000 / 1_110;
    let half = capacity * 40_000 / 2_000_000 + 1;
    let ramp = after_trains_with(half, &[40_000], &[&first, &second]);
    assert_eq!((ramp.phase, ramp.capacity), (RAMP, capacity));
    assert_eq!(after_trains_with(half - 2, &[40_000], &[&first, &second]).phase, START);
    assert_eq!(after_trains_with(half, &[40_000], &[&first, &slower]).phase, START);
    assert_eq!(after_trains_with(half, &[60_000], &[&first, &second]).phase, START, "jitter");
}

/// A first flight that takes 0.5 ms cannot be measured by this path's usual samples, which are 0.31 ms apart. It is evidence
/// if the sender paces, and none if it does not.
#[test]
fn a_short_first_flight_counts_where_the_sender_paces() {
    let (first, second) = ([120; 4], [2_000; 9]);
    let ramp = after_trains_with(400_000, &[40_000], &[&first, &second]);
    assert_eq!((ramp.phase, ramp.capacity), (RAMP, 8 * MSS * 1_000_000 / 630));
    assert_eq!(after_trains_with(400_000, &[40_000], &[&first, &first]).phase, START);
    let usual = after_trains_with(400_000, &[40_000], &[&first, &[240; 10], &[240; 10]]);
    assert_eq!((usual.phase, usual.capacity), (RAMP, 20 * MSS * 1_000_000 / 2_400));
}

/// The phase of a start after two trains of 1 MB/s; `state` has the rest.
fn phase_with_even_trains(mut state: bw_fit_window) -> u32 {
    state.round_at = 1;
    (state.capacity, state.train_rate, state.former_train_rate) = (1_000_000, 1_000_000, 1_000_000);
    state.evidence = 10_000;
    let base = Sample { now: 1, received: MSS, mss: MSS, rtt: 40_000, max: MAX, ..Sample::default() };
    observe(&mut state, &Sample { drs: 40_000, largest: 20_000, ..base });
    state.phase
}

/// Trains are no evidence if a round trip has delivered more than 5/4 of their rate.
#[test]
fn a_round_trip_that_delivers_far_more_refutes_trains() {
    let phase = |start_rate| phase_with_even_trains(bw_fit_window { start_rate, ..bw_fit_window::default() });
    assert_eq!([phase(1_250_000), phase(1_250_001)], [RAMP, START]);
}

/// Data that waits behind a hole is not under way any more. So the window is larger by that amount, in each phase, and does
/// not jump when the hole is filled. A peer that never fills the hole gets three windows at most.
#[test]
fn the_window_is_larger_by_what_waits_behind_a_hole() {
    let mut path = Path::new(12_500_000, 40_000);
    for round_trips in [1, 4, 60] {
        path.run(round_trips);
        let base = Sample { drs: DRS, max: MAX, rtt: 40_000, mss: MSS, ..Sample::default() };
        // No segment has arrived since the last sample, so the rule itself stays as it is.
        let received = path.state.last_bytes;
        let [without, with, ever] = [0, 100_000, 1 << 40]
            .map(|behind| observe(&mut path.state, &Sample { received, behind, ..base }));
        assert_eq!(with, without + 100_000, "{path:?}");
        assert!(ever.abs_diff(3 * without) < 512, "{ever} beside {without}");
    }
}

/// If the first flights fill the path, no pause ends a train. The train counts once it has lasted half a round trip, even
/// if the previous train had one segment more. A single train is no evidence, however long it is.
#[test]
fn a_train_without_an_end_counts_after_half_a_round_trip() {
    assert_eq!(after_trains(&[40_000], &[&[2_000; 40]]).phase, START);
    assert_ne!(after_trains(&[40_000], &[&[2_000; 10], &[2_100; 11]]).phase, START);
}

/// A path is jittery if round trips, or the handshake's, are longer than the queue of a train explains (2.4 ms; half of that
/// and 3.5 ms more are allowed). On such a path trains of the same rate begin no ramp.
#[test]
fn a_jittery_path_begins_no_ramp() {
    let even = [240; 10];
    let phase = |rcv_rtt| after_trains(&[rcv_rtt], &[&even, &even, &even, &even]).phase;
    assert_eq!([phase(44_000), phase(45_000)], [RAMP, START]);
    let state = |first_rtt| phase_with_even_trains(bw_fit_window { first_rtt, ..bw_fit_window::default() });
    assert_eq!([state(43_500), state(43_501)], [RAMP, START]);
}

/// At a steady rate, the path is full once round trips are a quarter longer than any before that. Jitter, which has
/// made them as long before, does not end the start. Then `T` counts as longer by what it was before the queue.
#[test]
fn a_start_is_full_when_round_trips_are_longer_than_ever_before() {
    // A segment every 8 ms, which is no train; round trips of 40 ms at least.
    let after = |rcv_rtts: &[u64]| {
        let (mut state, mut received) = (bw_fit_window::default(), 0);
        for at in 0..rcv_rtts.len() as u64 * 5 {
            // The rate doubles after the first round trip, and stays.
            received += if at < 5 { MSS } else { 2 * MSS };
            let now = 1_000_000 + 8_000 * at;
            let rcv_rtt = rcv_rtts[at as usize / 5];
            let base =
                Sample { now, received, mss: MSS, rtt: 40_000, rcv_rtt, max: MAX, ..Sample::default() };
            observe(&mut state, &Sample { drs: 40_000, largest: 20_000, ..base });
        }
        state
    };
    let jittery = [60_000, 41_000, 60_000, 41_000, 58_000, 70_000, 41_000, 60_000];
    assert_eq!(after(&jittery).phase, START);
    let full = after(&[40_000, 44_000, 48_000, 54_000, 60_000, 66_000]);
    assert_eq!(full.phase, FOLLOW);
    // From 40 to 48 ms, at which the rate was first measured twice.
    assert_eq!(full.extra, 204);
}

/// Trains that are far faster than the `C'` of the ramp leave the window open. Slower trains (a sender that writes in
/// pieces) or no trains (a flight that has spread) do not, unless round trips are longer as well.
#[test]
fn a_ramp_whose_trains_are_faster_leaves_the_window_open() {
    let (even, slower, faster, single) = ([240; 10], [500; 10], [120; 10], [240; 1]);
    assert_eq!(after_trains(&[40_000], &[&even, &even, &even, &even, &even]).phase, RAMP);
    assert_eq!(after_trains(&[40_000], &[&even, &even, &slower, &slower, &slower]).phase, RAMP);
    assert_eq!(after_trains(&[40_000], &[&even, &even, &faster, &faster, &single]).phase, OPEN);
    let spread: &[&[u64]] = &[&[&even[..], &even][..], &[&single[..]; 9]].concat();
    assert_eq!(after_trains(&[40_000], spread).phase, RAMP);
    assert_eq!(after_trains(&[40_000, 40_000, 46_000], spread).phase, OPEN);
}

/// A queue of more than two windows cannot be the ramp's own. The ramp then leaves the window open for 16 s, even if trains
/// confirm the capacity, and also after losses, because such a queue drops packets of all flows. A queue that may be the
/// ramp's own does not have this effect.
#[test]
fn a_ramp_in_a_crowd_leaves_the_window_open() {
    for (rate, rtt) in [(1_250_000, 40_000), (12_500_000, 20_000), (12_500_000, 100_000)] {
        let ramping = || {
            let mut path = Path::new(rate, rtt);
            path.until(30, |path| path.state.phase == RAMP);
            assert_eq!(path.state.phase, RAMP, "{path:?}");
            path
        };
        for out_of_order in [0, 3] {
            let mut crowded = ramping();
            crowded.others = 4.0 * crowded.product();
            crowded.out_of_order = out_of_order;
            crowded.until(40, |path| path.state.phase == OPEN);
            assert_eq!((crowded.state.phase, crowded.state.hold), (OPEN, 16_000_000), "{crowded:?}");
        }
        let mut alone = ramping();
        alone.others = alone.product() / 4.0;
        alone.until(40, |path| path.state.phase != RAMP);
        assert_ne!(alone.state.hold, 16_000_000, "{alone:?}");
    }
}

/// Returns how often the next connection's steps are doubled after this one, a receiver in `state` with that number of
/// segments out of order.
fn shows(room: &mut bw_room, state: bw_fit_window, out_of_order: u32, now: u64) -> u32 {
    let mut flow = bw_flow { out_of_order, fit_window: state, ..bw_flow::default() };
    rules::learn_room(&mut flow, now, || room);
    rules::learn_room(&mut flow, now + 1, || unreachable!("it shows the same once"));
    rules::room_doublings(room, now)
}

fn ramp(ramp_rounds: u32) -> bw_fit_window {
    bw_fit_window { phase: RAMP, ramp_rounds, ..bw_fit_window::default() }
}

/// A ramp that loses no segment shows room for ten minutes; after a loss steps do not grow for an hour.
#[test]
fn room_is_forgotten_after_ten_minutes_and_a_loss_after_an_hour() {
    let now = 1 << 40;
    let mut room = bw_room::default();
    assert_eq!([now, 1].map(|now| rules::room_doublings(&room, now)), [0, 0], "nothing is known");
    assert_eq!(shows(&mut room, ramp(3), 0, now), 1);
    let later = [TEN_MINUTES, TEN_MINUTES + 1].map(|later| rules::room_doublings(&room, now + later));
    assert_eq!(later, [1, 0]);
    assert_eq!(shows(&mut room, ramp(3), 1, now), 0);
    assert_eq!(shows(&mut room, ramp(3), 0, now + 6 * TEN_MINUTES), 0);
    assert_eq!(shows(&mut room, ramp(3), 0, now + 6 * TEN_MINUTES + 1), 1);
}

/// A ramp that shows room doubles the steps of the next connections. Eight such connections double them once more, which is
/// the most. A loss halves them.
#[test]
fn steps_double_with_ramps_that_show_room_and_halve_with_a_loss() {
    let now = 1 << 40;
    let mut room = bw_room::default();
    let with = |doublings| bw_fit_window { doublings, phase: FOLLOW, last_rate: 1, ..ramp(3) };
    assert_eq!(shows(&mut room, with(0), 0, now), 1);
    let next: Vec<u32> = (0..9).map(|_| shows(&mut room, with(1), 0, now)).collect();
    assert_eq!(next, [1, 1, 1, 1, 1, 1, 1, 2, 2]);
    for (doublings, out_of_order, next) in
        [(0, 0, 2), (2, 0, 2), (2, 1, 1), (1, 0, 1), (0, 0, 1), (1, 1, 0), (0, 0, 0)]
    {
        assert_eq!(shows(&mut room, with(doublings), out_of_order, now), next, "after {doublings}");
    }
    // Ten minutes later the peer is as one that was never seen.
    let mut room = bw_room { taken_at: now, doublings: 2, ..bw_room::default() };
    assert_eq!(shows(&mut room, with(0), 0, now + TEN_MINUTES + 1), 1);
}

/// A start, a ramp that has just begun, and a window that was left open show neither room nor a loss. A ramp of one round
/// trip shows room at the first rate measured after it, and a loss until then counts.
#[test]
fn a_ramp_shows_room_once_its_steps_have_arrived() {
    let now = 1 << 40;
    let taken = |state| shows(&mut bw_room::default(), state, 0, now) > 0;
    let known = bw_room { taken_at: now, doublings: 1, ..bw_room::default() };
    let lost = |state| shows(&mut known.clone(), state, 1, now) == 0;
    let follow = |last_rate| bw_fit_window { phase: FOLLOW, last_rate, ..ramp(1) };
    assert_eq!([ramp(2), ramp(3), follow(0), follow(1)].map(taken), [false, true, false, true]);
    let after = |state| bw_fit_window { shown: SHOWN_TAKEN, ..state };
    assert_eq!([after(ramp(4)), after(follow(0))].map(lost), [true; 2]);
    assert!(!lost(after(follow(1))));
    assert_eq!([ramp(1), ramp(3), follow(0), follow(1)].map(lost), [true; 4]);
    let start = bw_fit_window { phase: START, ..ramp(0) };
    let without_ramp = bw_fit_window { ramp_rounds: 0, ..follow(1) };
    let open = bw_fit_window { phase: OPEN, ..ramp(3) };
    for silent in [start, without_ramp, open] {
        assert!(!taken(silent) && !lost(silent), "{silent:?}");
    }
}

/// If the application bounds the window, the rule's window was never set, so it shows nothing.
#[test]
fn a_window_that_the_application_bounds_shows_no_room_and_no_loss() {
    for out_of_order in [0, 1] {
        let mut flow = bw_flow { owned: 2, out_of_order, fit_window: ramp(3), ..bw_flow::default() };
        rules::learn_room(&mut flow, 1, || unreachable!("the receive buffer is the application's"));
        flow.owned = 1;
        let mut room = bw_room::default();
        rules::learn_room(&mut flow, 1, || &mut room);
        assert_eq!((room.taken_at, room.lost_at), if out_of_order == 0 { (1, 0) } else { (0, 1) });
    }
}

/// The queue has not met the steps of such a ramp.
#[test]
fn a_ramp_that_a_share_cuts_off_shows_no_room_and_no_loss() {
    let config = config(SendRule::Kernel, ReceiveRule::Fit);
    let wanted = 1 << 20;
    for (window_level, cut) in [(wanted - 1, true), (wanted, false), (NONE, false)] {
        let all = bw_control { window_level, ..control() };
        let fit_window = bw_fit_window { window: wanted, ..ramp(3) };
        let mut flow =
            bw_flow { mss: 1_448, min_rtt: 40_000, rcv_rtt: 40_000, fit_window, ..bw_flow::default() };
        let window = rules::decide_window(&config, &all, &mut flow, 1_000_000, false);
        assert_eq!(window, wanted.min(window_level));
        for out_of_order in [0, 1] {
            let (mut flow, mut room) = (bw_flow { out_of_order, ..flow }, bw_room::default());
            rules::learn_room(&mut flow, 1, || &mut room);
            assert_eq!((room.taken_at, room.lost_at) == (0, 0), cut, "{window_level}");
        }
        // Without user space no share counts.
        flow.fit_window.cut = 0;
        rules::decide_window(&config, &all, &mut flow, 2_000_000, true);
        assert_eq!(flow.fit_window.cut, 0);
    }
}
