//! Tests, on the host, of single clauses of the receive side's rules: `drs.h`, `arrivals.h`, `losses.h`, and the inputs
//! that `rules_receive.h` takes from a connection's record. A clause that is deleted or inverted fails a test
//! (`scripts/mutants`).

use std::collections::BTreeSet;

use proptest::prelude::*;

use crate::abi::{bw_arrivals, bw_control, bw_drs, bw_fit_window, bw_flow, bw_loss_events, bw_losses};
use crate::config::{ReceiveRule, SendRule};
use crate::differential::{CSobas, ReceiveSample, arrivals_of as arrivals, drs_window};
use crate::judged::{config, control, loss_events, losses};
use crate::judged_window::{Sample as FitSample, observe as fit_window};
use crate::rules::{self, NONE};

const MSS: u64 = 1_448;

// ---- DRS ----

#[test]
fn a_measurement_is_over_after_exactly_a_round_trip_and_a_longer_one_counts_for_less() {
    for (elapsed, largest) in [(39_999, 0), (40_000, 1_000_000), (40_001, 999_975), (80_000, 500_000)] {
        let mut state = bw_drs { began: 1, began_at: 5_000_000, began_bytes: 7, ..bw_drs::default() };
        let sample = ReceiveSample {
            now: 5_000_000 + elapsed,
            received: 1_000_007,
            srtt: 40_000,
            ..ReceiveSample::default()
        };
        drs_window(&mut state, &sample, 0, 1 << 30);
        assert_eq!(state.largest, largest, "{elapsed} us");
    }
}

// ---- Arrivals ----

/// Bytes behind a hole are forgotten more than four round trips after the last segment out of order, and only if the
/// bytes in order grow by no more than 5/4 of the segments that came.
#[test]
fn bytes_behind_a_hole_are_forgotten_after_four_round_trips_without_progress() {
    let behind = |elapsed: u64, in_order, segments| {
        let mut state = bw_arrivals {
            payload: 1_000,
            behind: 50_000,
            disordered_at: 1_000_000,
            ..bw_arrivals::default()
        };
        arrivals(&mut state, 1_000_000 + elapsed, 10_000, in_order, segments, 0);
        state.behind
    };
    assert_eq!(behind(40_000, 4_000, 4), 50_000);
    assert_eq!(behind(40_001, 4_000, 4), 0);
    assert_eq!(behind(40_001, 5_000, 4), 0, "a quarter more than came");
    assert_eq!(behind(40_001, 5_001, 4), 48_999, "the hole is being filled");
    assert_eq!(behind(40_001, 0, 0), 50_000, "no segment came");
}

// ---- Losses ----

/// Reference version of `losses.h` with a set instead of bits: the slots in which a hole turned out to be a loss.
#[derive(Default)]
struct Slots {
    lossy: BTreeSet<u64>,
    hole_at: Option<u64>,
    counted: bool,
    in_order: u64,
    disorder: u32,
}

impl Slots {
    fn observe(&mut self, now: u64, rtt: u64, in_order: u64, disorder: u32) -> usize {
        if in_order != self.in_order {
            (self.hole_at, self.counted) = (None, false);
        }
        if disorder != self.disorder {
            self.hole_at.get_or_insert(now);
        }
        (self.in_order, self.disorder) = (in_order, disorder);
        if !self.counted && self.hole_at.is_some_and(|hole| now - hole >= rtt - rtt / 4) {
            self.counted = true;
            self.lossy.insert(now / 10_000);
        }
        self.lossy.range((now / 10_000).saturating_sub(99)..).count()
    }
}

proptest! {
    #[test]
    fn losses_are_the_slots_among_the_last_hundred_in_which_a_hole_has_stood_for_too_long(
        steps in prop::collection::vec(
            (
                prop_oneof![
                    20 => Just(2_500_u64), 5 => 0_u64..12_000,
                    1 => prop_oneof![Just(630_000_u64), Just(640_000), Just(650_000), Just(990_000), Just(1_000_000)],
                    1 => 0_u64..3_000_000,
                ],
                any::<bool>(), prop::bool::weighted(0.7),
            ),
            1..600,
        ),
        rtt in prop_oneof![Just(0_u64), Just(10_000), Just(3_333), Just(20_000)],
    ) {
        let (mut c, mut slots) = (bw_losses::default(), Slots::default());
        let (mut now, mut in_order, mut disorder) = (5_000_000, 0, 0);
        for (step, progress, disordered) in steps {
            now += step;
            in_order += u64::from(progress);
            disorder += u32::from(disordered);
            let wanted = slots.observe(now, rtt, in_order, disorder);
            prop_assert_eq!(losses(&mut c, now, rtt, in_order, disorder) as usize, wanted);
        }
    }
}

#[test]
fn retransmissions_within_a_round_trip_of_the_first_are_one_event() {
    for (elapsed, events) in [(40_000, 1), (40_001, 2)] {
        let mut state = bw_loss_events { began_at: 1_000_000, count: 1, ..bw_loss_events::default() };
        assert_eq!(loss_events(&mut state, 1_000_000 + elapsed, 40_000, 1), events);
    }
}

// ---- Inputs from the record ----

/// Reference version of the receive rules, which computes their inputs from the record by itself.
struct Beside {
    max: u64,
    arrivals: bw_arrivals,
    drs: bw_drs,
    began_at: u64,
    before: u64,
    grows: bool,
    losses: bw_losses,
    sobas: CSobas,
    fit: bw_fit_window,
}

impl Beside {
    fn new(max: u64, fit: bw_fit_window) -> Self {
        Self {
            max,
            arrivals: bw_arrivals::default(),
            drs: bw_drs::default(),
            began_at: 0,
            before: 0,
            grows: false,
            losses: bw_losses::default(),
            sobas: CSobas::new(max),
            fit,
        }
    }

    /// Returns the round-trip time without a queue, us: the shortest known; 0: none is known.
    fn rtt(&self, flow: &bw_flow) -> u64 {
        let of_socket = if flow.min_rtt == u32::MAX { 0 } else { u64::from(flow.min_rtt) };
        [of_socket, self.drs.own_rtt].into_iter().filter(|rtt| *rtt > 0).min().unwrap_or(0)
    }

    fn mss(flow: &bw_flow) -> u64 {
        flow.rcv_mss.max(flow.mss).into()
    }

    fn drs(&mut self, flow: &bw_flow, now: u64) -> u64 {
        let mss = Self::mss(flow);
        let of_path = self.rtt(flow);
        let received =
            arrivals(&mut self.arrivals, now, of_path, flow.bytes_received, flow.segs_in, flow.out_of_order);
        let own = u64::from(flow.rcv_rtt);
        let is_fresh = flow.rtt_at > 0 && now - flow.rtt_at < 8 * u64::from(flow.srtt);
        let shortest = |rtts: [u64; 2]| rtts.into_iter().filter(|rtt| *rtt > 0).min().unwrap_or(0);
        let rcv_rtt = shortest([own, of_path]);
        let srtt = if is_fresh { flow.srtt.into() } else { 0 };
        let over = if srtt > 0 { srtt } else { shortest([rcv_rtt, self.drs.own_rtt]) };
        let sample = ReceiveSample {
            now,
            received,
            mss,
            rcv_rtt,
            srtt: if (1..1_000).contains(&over) { 1_000 } else { srtt },
            losses: 0,
            scale: flow.rcv_wscale,
        };
        let initial = 8 * if mss == 0 { MSS } else { mss };
        let window = drs_window(&mut self.drs, &sample, initial, self.max);
        if self.drs.began_at != self.began_at {
            self.grows = self.drs.largest * 4 > self.before * 5;
            (self.began_at, self.before) = (self.drs.began_at, self.drs.largest);
        }
        let rtt = self.rtt(flow);
        let window = if self.grows {
            2 * window
        } else if own > rtt && 8 * own <= 17 * rtt {
            window * own / rtt
        } else {
            window
        };
        window.min(self.max)
    }

    fn sobas(&mut self, flow: &bw_flow, now: u64) -> u64 {
        let rtt = self.rtt(flow);
        let sample = ReceiveSample {
            now,
            received: self.arrivals.total,
            mss: Self::mss(flow),
            rcv_rtt: if rtt == 0 { 0 } else { rtt + rtt / 16 + 500 },
            srtt: 0,
            losses: losses(&mut self.losses, now, rtt, flow.bytes_received, flow.out_of_order),
            scale: flow.rcv_wscale,
        };
        self.sobas.observe(&sample)
    }

    fn fit(&mut self, flow: &bw_flow, now: u64, drs: u64) -> u64 {
        let sample = FitSample {
            now,
            received: self.arrivals.total,
            mss: Self::mss(flow),
            rtt: self.rtt(flow),
            rcv_rtt: flow.rcv_rtt.into(),
            drs,
            largest: self.drs.largest,
            max: self.max,
            scale: flow.rcv_wscale,
            out_of_order: flow.out_of_order,
            behind: self.arrivals.behind,
        };
        fit_window(&mut self.fit, &sample)
    }

    fn window(&mut self, rule: ReceiveRule, flow: &bw_flow, now: u64) -> u64 {
        let drs = self.drs(flow, now);
        match rule {
            ReceiveRule::Sobas => self.sobas(flow, now),
            ReceiveRule::Fit => self.fit(flow, now, drs),
            _ => drs,
        }
    }
}

/// One sample: time since the last one (us), bytes per millisecond, whether a segment came out of order, the receiver's
/// and the sender's round-trip times (us) with the age of the latter in units of itself, and the window level.
type Input = (u64, u64, bool, (u32, u32, u64), Option<u64>);

fn inputs() -> impl Strategy<Value = Vec<Input>> {
    let step = prop_oneof![6 => 500_u64..4_000, 2 => Just(20_000_u64), 1 => 0_u64..300_000];
    let rate = prop_oneof![6 => Just(1_448_u64), 1 => Just(0), 2 => 0_u64..30_000];
    // Paths of 8 and 16 ms, and unknown ones; most round trips are at or near the threshold of 17/8 of the base RTT.
    let rtts = prop_oneof![4 => Just(17_000_u32), 2 => Just(34_000), 1 => Just(0), 2 => 7_900_u32..36_000];
    let rtts = (rtts, prop_oneof![Just(0_u32), 5_000_u32..60_000], prop_oneof![Just(8_u64), 0_u64..10]);
    let level = prop_oneof![4 => Just(None), 1 => (0_u64..60_000).prop_map(Some)];
    prop::collection::vec((step, rate, prop::bool::weighted(0.03), rtts, level), 1..80)
}

proptest! {
    #[test]
    fn each_rule_sees_the_record_and_answers_within_the_share(
        inputs in inputs(),
        rule in prop_oneof![Just(ReceiveRule::Drs), Just(ReceiveRule::Sobas), Just(ReceiveRule::Fit)],
        min_rtt in prop_oneof![2 => Just(8_000_u32), 2 => Just(16_000), 1 => Just(0), 1 => Just(u32::MAX), 1 => Just(1_999)],
        (mss, rcv_mss, scale) in (prop_oneof![Just(0_u32), Just(1_448), Just(536)], prop_oneof![Just(0_u32), Just(1_448)], 0_u32..16),
        (phase, known) in (0_u32..4, prop_oneof![Just(0_u64), 10_000_u64..100_000]),
        max in prop_oneof![3 => Just(64_u64 << 20), 1 => 5_000_u64..200_000],
    ) {
        let mut config = config(SendRule::Kernel, rule);
        config.max_window = max;
        let mut flow = bw_flow { min_rtt, mss, rcv_mss, rcv_wscale: scale, ..bw_flow::default() };
        flow.fit_window = bw_fit_window {
            phase,
            known,
            start_rate: known,
            ramp_window: known,
            most_under_way: known,
            window: known,
            ..bw_fit_window::default()
        };
        rules::begin(&config, &mut flow);
        let mut beside = Beside::new(max, flow.fit_window);
        let mut now = 1_000_000;
        for (step, rate, disordered, (rcv_rtt, srtt, ago), level) in inputs {
            now += step;
            flow.bytes_received += rate * step / 1_000;
            flow.segs_in += u32::try_from(rate * step / 1_000 / MSS).unwrap();
            flow.out_of_order += u32::from(disordered);
            (flow.rcv_rtt, flow.srtt, flow.sampled_at) = (rcv_rtt, srtt, now);
            flow.rtt_at = now.saturating_sub(ago * u64::from(srtt));
            let all = bw_control { window_level: level.unwrap_or(NONE), ..control() };
            let wanted = beside.window(rule, &flow, now);
            let segment = if Beside::mss(&flow) == 0 { MSS } else { Beside::mss(&flow) };
            let least = 2 * segment;
            let is_stale = now % 3 == 0;
            let shared = if is_stale { wanted } else { wanted.min(all.window_level.max(least)) };
            prop_assert_eq!(rules::decide_window(&config, &all, &mut flow, now, is_stale), shared);
        }
    }
}

/// Windows fill paths of small and of large segments, with holes that last for a round trip now and then: SOBAS decides
/// and meets losses, with the same result from the record as in [`Beside`].
#[test]
fn sobas_of_a_record_decides_as_beside_it_on_paths_that_lose() {
    let (step, seconds) = (2_500_u64, 40_u64);
    for (rate, rtt, mss, scale) in [
        // Two small segments per round trip: less than one segment of the usual size.
        (2_000_u64, 500_000_u32, 536_u32, 0_u32),
        (20_000, 100_000, 536, 0),
        (150_000, 40_000, 536, 7),
        (1_000_000, 20_000, 536, 7),
        (1_000_000, 20_000, 8_948, 11),
        (5_000_000, 60_000, 1_220, 4),
    ] {
        let config = config(SendRule::Kernel, ReceiveRule::Sobas);
        let mut flow = bw_flow { min_rtt: rtt, mss, rcv_wscale: scale, ..bw_flow::default() };
        rules::begin(&config, &mut flow);
        let mut beside = Beside::new(config.max_window, flow.fit_window);
        let (mut window, mut narrowest, mut sent, mut behind) = (10 * u64::from(mss), NONE, 0, 0_u64);
        for now in (1..=seconds * 1_000_000 / step).map(|number| 1_000_000 + number * step) {
            let arrived = (rate * step / 1_000_000).min(window * step / u64::from(rtt));
            let segments = (sent + arrived) / u64::from(mss) - sent / u64::from(mss);
            sent += arrived;
            // From 10 s on, a hole begins every 700 ms; the bytes behind it are in order a round trip later.
            let since_hole = now % 700_000;
            let is_behind = now > 10_000_000 && since_hole < u64::from(rtt);
            flow.segs_in += u32::try_from(segments).unwrap();
            behind += arrived;
            if is_behind {
                flow.out_of_order += u32::try_from(segments).unwrap();
            } else {
                flow.bytes_received += std::mem::take(&mut behind);
            }
            (flow.rcv_rtt, flow.sampled_at) = (rtt, now);
            let wanted = beside.window(ReceiveRule::Sobas, &flow, now);
            window = rules::decide_window(&config, &control(), &mut flow, now, false);
            assert_eq!(window, wanted, "{rate} B/s, {rtt} us, {mss}, {scale}: {now}");
            narrowest = narrowest.min(window);
        }
        assert!(narrowest < config.max_window, "{rate} B/s, {rtt} us, {mss}: it never decided");
    }
}

#[test]
fn bytes_that_came_before_a_round_trip_was_known_are_not_measured() {
    let mut state = bw_drs::default();
    for (now, received, srtt) in [(1_000_000, 0, 0), (2_000_000, 1_000_000, 40_000)] {
        let sample = ReceiveSample { now, received, srtt, ..ReceiveSample::default() };
        drs_window(&mut state, &sample, 0, 1 << 30);
    }
    assert_eq!((state.largest, state.began_at, state.began_bytes), (0, 2_000_000, 1_000_000));
}

#[test]
fn a_measurement_that_has_not_grown_by_more_than_a_quarter_ends_the_doubling() {
    let config = config(SendRule::Kernel, ReceiveRule::Drs);
    for (arrived, window) in [(125_000, 250_000), (125_001, 500_008)] {
        let mut flow = bw_flow {
            rcv_rtt: 20_000,
            min_rtt: 20_000,
            mss: 1_448,
            rcv_wscale: 2,
            drs_before: 100_000,
            ..bw_flow::default()
        };
        flow.drs = bw_drs { began: 1, began_at: 1_000_000, largest: 100_000, ..bw_drs::default() };
        flow.drs_began_at = 1_000_000;
        flow.bytes_received = arrived;
        assert_eq!(rules::decide_window(&config, &control(), &mut flow, 1_020_000, false), window);
    }
}

/// Between two namespaces the round trip is 4 us; a reader that waits 250 us for a processor finds 64 KB.
#[test]
fn on_a_path_of_microseconds_the_window_has_room_for_what_comes_in_a_millisecond() {
    let config = config(SendRule::Kernel, ReceiveRule::Drs);
    let mut flow = bw_flow { rcv_rtt: 4, min_rtt: 3, mss: 1_448, rcv_wscale: 10, ..bw_flow::default() };
    rules::begin(&config, &mut flow);
    let mut window = 0;
    for wake in 1..40 {
        let now = 1_000_000 + wake * 250;
        flow.bytes_received += 65_536;
        (flow.sampled_at, flow.segs_in) = (now, flow.segs_in + 1);
        window = rules::decide_window(&config, &control(), &mut flow, now, false);
    }
    assert!(window >= 2 * 4 * 65_536, "{window}");
    assert!(window <= 4 * 5 * 65_536, "{window}");
}

/// A receiver that sends nothing keeps the handshake's round trip as `min_rtt`. After 10 s the route changes for good, to a round
/// trip of 80 ms. DRS learns that after a whole period of five minutes, also where `fit` has left a near path to it. On longer
/// paths `fit` keeps the shortest round trip.
#[test]
fn drs_learns_a_round_trip_that_has_become_longer_for_good() {
    let learnt = |rule, near: u32, seconds: u64| {
        let config = config(SendRule::Kernel, rule);
        let mut flow = bw_flow { min_rtt: near, mss: 1_448, rcv_wscale: 10, ..bw_flow::default() };
        rules::begin(&config, &mut flow);
        for now in (1..=seconds).map(|second| second * 1_000_000) {
            flow.rcv_rtt = if now <= 10_000_000 { near } else { 80_000 };
            (flow.sampled_at, flow.segs_in) = (now, flow.segs_in + 70);
            flow.bytes_received += 70 * MSS;
            rules::decide_window(&config, &control(), &mut flow, now, false);
        }
        (config, flow)
    };
    let rtt = |rule, near, seconds| learnt(rule, near, seconds).1.drs.own_rtt;
    use ReceiveRule::{Drs, Fit};
    assert_eq!([899, 900].map(|seconds| rtt(Drs, 20_000, seconds)), [20_000, 80_000]);
    assert_eq!([899, 900].map(|seconds| rtt(Fit, 500, seconds)), [500, 80_000]);
    assert_eq!(rtt(Fit, 20_000, 900), 20_000);
    // Up to 17/8 of the shortest it may be a queue.
    assert_eq!([37_647, 37_648].map(|near| rtt(Drs, near, 900)), [80_000, 37_648]);
    // A shorter one counts at once.
    let (config, mut flow) = learnt(Drs, 20_000, 900);
    flow.rcv_rtt = 30_000;
    rules::decide_window(&config, &control(), &mut flow, 901_000_000, false);
    assert_eq!(flow.drs.own_rtt, 30_000);
}

#[test]
fn the_fixed_rule_offers_its_size() {
    let mut config = config(SendRule::Kernel, ReceiveRule::Fixed);
    config.fixed = 77_777;
    let mut flow = bw_flow { min_rtt: 20_000, bytes_received: 5_000_000, ..bw_flow::default() };
    assert_eq!(rules::decide_window(&config, &control(), &mut flow, 1_000_000, false), 77_777);
    assert_eq!(flow.arrivals.total, 0, "nothing is measured");
}

#[test]
fn memory_of_a_window_is_by_the_ratio_and_an_eighth_more() {
    assert_eq!(rules::memory_of_window(1_000, 0), 2_250);
    assert_eq!(rules::memory_of_window(1_000, 250), 1_152);
    assert_eq!(rules::memory_of_window(u64::MAX, 128), 9 << 30);
}

#[test]
fn without_a_share_a_receive_buffer_grows_with_its_window_and_only_a_fixed_one_shrinks() {
    let buffer = |rule, (set, size, offered, adopted), window, in_use| {
        let flow = bw_flow { set_rcvbuf: set, rcvbuf: size, rcv_wnd: offered, adopted, ..bw_flow::default() };
        rules::decide_receive_buffer(&config(SendRule::Kernel, rule), &flow, NONE, window, in_use, 0)
    };
    use ReceiveRule::{Drs, Fixed, Sobas};
    let mb = 1_u32 << 20;
    let mb64 = u64::from(mb);
    // Not set yet: at least the memory in use, and at least the present size of an adopted connection.
    assert_eq!(buffer(Fixed, (0, 131_072, 0, 0), 100_000, 0), 200_000);
    assert_eq!(buffer(Fixed, (0, 131_072, 0, 0), 100_000, 300_000), 300_000);
    assert_eq!(buffer(Drs, (0, 131_072, 0, 0), 100, 0), mb64);
    assert_eq!(buffer(Drs, (0, 131_072, 0, 0), mb64, 0), 2 * mb64);
    assert_eq!(buffer(Drs, (0, 131_072, 0, 0), mb64, 5 * mb64), 5 * mb64);
    assert_eq!(buffer(Sobas, (0, 131_072, mb, 0), 64 * mb64, 0), mb64, "not with the window alone");
    assert_eq!(buffer(Drs, (0, 6 * mb, 0, 0), 100, 0), mb64);
    assert_eq!(buffer(Drs, (0, 6 * mb, 0, 1), 100, 0), 6 * mb64);
    // Set before: the size follows the rule.
    assert_eq!(buffer(Fixed, (400_000, 400_000, 0, 0), 100_000, 0), 200_000);
    assert_eq!(buffer(Fixed, (400_000, 400_000, 0, 1), 100_000, 0), 200_000);
    assert_eq!(buffer(Fixed, (400_000, 400_000, 0, 0), 100_000, 300_000), 300_000);
    assert_eq!(buffer(Fixed, (200_000, 200_000, 0, 0), 100_000, 0), 0);
    assert_eq!(buffer(Drs, (mb, mb, 0, 0), mb64, 5 * mb64), 2 * mb64, "what is in use grows by itself");
    assert_eq!(buffer(Drs, (mb, mb, mb, 0), mb64 / 2, 0), 0);
    assert_eq!(buffer(Drs, (4 * mb, 4 * mb, 0, 0), mb64, 0), 0);
    assert_eq!(buffer(Sobas, (mb, mb, mb / 4, 0), 0, 0), 0);
    assert_eq!(buffer(Sobas, (mb, mb, mb / 4 + 1, 0), 0, 0), 2 * mb64);
    // The size is at most twice the largest window.
    assert_eq!(buffer(Drs, (0, 131_072, 0, 0), 1 << 40, 0), 128 * mb64);
    let mut wide = config(SendRule::Kernel, Fixed);
    wide.max_window = 1 << 40;
    for window in [1_u64 << 40, 1 << 63] {
        assert_eq!(rules::decide_receive_buffer(&wide, &bw_flow::default(), NONE, window, 0, 0), 1 << 30);
    }
}

/// Returns the buffer decided for a window of at most 50,000 bytes within `share`. `size` is the present buffer (0: not
/// set yet).
fn within(rule: ReceiveRule, size: u32, share: u64, in_use: u64) -> u64 {
    let flow = bw_flow { set_rcvbuf: size, rcvbuf: size, ..bw_flow::default() };
    rules::decide_receive_buffer(&config(SendRule::Kernel, rule), &flow, share, share.min(50_000), in_use, 0)
}

#[test]
fn a_receive_buffer_has_room_for_twice_its_share() {
    use ReceiveRule::{Drs, Fit, Fixed, Sobas};
    for rule in [Drs, Sobas, Fit] {
        assert_eq!(within(rule, 0, 100_000, 0), 200_000);
        assert_eq!(within(rule, 0, 100_000, 300_000), 300_000, "what may come already has room");
        assert_eq!(within(rule, 0, 1_000, 0), 16_384, "the least");
        assert_eq!(within(rule, 0, 1 << 19, 0), 1 << 20);
        assert_eq!(within(rule, 0, NONE, 0), 1 << 20);
        // The buffer grows to twice the share and no further, however much is in use.
        assert_eq!(within(rule, 150_000, 100_000, 0), 200_000);
        assert_eq!(within(rule, 200_000, 100_000, 300_000), 0);
        // It shrinks if it is more than a quarter above that.
        assert_eq!(within(rule, 250_000, 100_000, 0), 0);
        assert_eq!(within(rule, 250_001, 100_000, 0), 200_000);
        assert_eq!(within(rule, 20_481, 1_000, 0), 16_384);
        // It shrinks by at least an eighth, and not below the memory in use.
        assert_eq!(within(rule, 800_000, 100_000, 700_000), 700_000);
        assert_eq!(within(rule, 800_000, 100_000, 700_001), 0);
        assert_eq!(within(rule, 800_000, 100_000, 900_000), 0);
    }
    assert_eq!(within(Fixed, 100_000, 1_000, 0), 2_000, "the window's, which the share bounds");
    assert_eq!(within(Fixed, 100_000, 50_000, 0), 0, "no room but its own size");
}

#[test]
fn a_receive_buffer_has_room_for_what_its_reader_waits_for_on_top_of_its_share() {
    const AWAITED: u64 = 3 << 20;
    use ReceiveRule::{Drs, Fit, Fixed, Sobas};
    let mb = 1_u32 << 20;
    let buffer = |rule, size: u32, offered: u32, share: u64| {
        let flow = bw_flow { set_rcvbuf: size, rcvbuf: size, rcv_wnd: offered, ..bw_flow::default() };
        let config = config(SendRule::Kernel, rule);
        rules::decide_receive_buffer(&config, &flow, share, share.min(50_000), 0, AWAITED)
    };
    for rule in [Drs, Sobas, Fit] {
        // Not set yet, or set before the reader waited for so much.
        assert_eq!([0, mb].map(|size| buffer(rule, size, 0, NONE)), [AWAITED + (1 << 20); 2]);
        assert_eq!([0, 200_000].map(|size| buffer(rule, size, 0, 100_000)), [AWAITED + 200_000; 2]);
        assert_eq!(buffer(rule, 4 * mb, 0, NONE), 0);
        assert_eq!(buffer(rule, 6 * mb, 0, 100_000), AWAITED + 200_000, "it shrinks no further");
    }
    assert_eq!(buffer(Fixed, 0, 0, 50_000), AWAITED + 100_000);
    // The window fills a quarter of the rest.
    let filled = [mb / 4, mb / 4 + 1].map(|offered| buffer(Sobas, 4 * mb, offered, NONE));
    assert_eq!(filled, [0, AWAITED + (2 << 20)]);
}

#[test]
fn the_floor_of_the_window_has_room_below_the_share() {
    let flow = bw_flow::default();
    let room = |window| {
        let config = config(SendRule::Kernel, ReceiveRule::Drs);
        rules::decide_receive_buffer(&config, &flow, 1_000, window, 0, 0)
    };
    // The second window is two segments of a device with a large MTU.
    assert_eq!((room(2_920), room(17_896)), (16_384, 35_792));
}

#[test]
fn an_adopted_connection_keeps_its_buffer_until_it_has_been_set() {
    let config = config(SendRule::Kernel, ReceiveRule::Sobas);
    let mut flow = bw_flow { adopted: 1, rcvbuf: 6 << 20, ..bw_flow::default() };
    let decided = |flow: &bw_flow| rules::decide_receive_buffer(&config, flow, 100_000, 100_000, 400_000, 0);
    assert_eq!(decided(&flow), 6 << 20);
    flow.set_rcvbuf = flow.rcvbuf;
    assert_eq!(decided(&flow), 400_000);
}

proptest! {
    #[test]
    fn a_buffer_shrinks_below_neither_its_room_nor_what_is_in_use(
        rule in prop_oneof![Just(ReceiveRule::Drs), Just(ReceiveRule::Sobas), Just(ReceiveRule::Fit)],
        (set, size) in (any::<bool>(), 4_608_u32..1 << 27),
        (share, window) in (prop_oneof![3 => 0_u64..1 << 26, 1 => Just(NONE)], 0_u64..1 << 26),
        in_use in 0_u64..1 << 27,
        rcv_wnd in 0_u32..1 << 26,
        adopted in 0_u32..2,
    ) {
        let window = window.min(share);
        let config = config(SendRule::Kernel, rule);
        let set_rcvbuf = if set { size } else { 0 };
        let flow = bw_flow { set_rcvbuf, rcvbuf: size, rcv_wnd, adopted, ..bw_flow::default() };
        let decided = rules::decide_receive_buffer(&config, &flow, share, window, in_use, 0);
        let free = rules::decide_receive_buffer(&config, &flow, NONE, window, in_use, 0);
        let room = share.saturating_mul(2).max(16_384);
        let size = u64::from(size);
        if decided != 0 && decided < size {
            prop_assert!(decided >= in_use && (!set || decided >= room), "{decided}");
        }
        if set && decided > size {
            prop_assert!(decided <= room && decided <= free);
        }
        if set && decided == 0 {
            prop_assert!(size <= room.saturating_add(room / 4) || in_use.max(room) > size - size / 8 - 1);
        }
        if room >= size.max(free) {
            prop_assert_eq!(decided, free);
        }
        prop_assert!(!set || free == 0 || free > size, "without a share nothing shrinks");
    }
}
