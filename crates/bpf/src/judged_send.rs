//! Tests, on the host, of single clauses of the send side's rules: `send.h`, `bound.h`, and the inputs that `rules_send.h`
//! takes from a connection's record. A clause that is deleted or inverted fails a test (`scripts/mutants`).

use bufwise_units::Bytes;
use proptest::prelude::*;

use crate::abi::{bw_abt, bw_bound, bw_config, bw_control, bw_fit, bw_flow, bw_order};
use crate::config::{ReceiveRule, SendRule};
use crate::differential::{BoundSample, SendBounds, SendSample, bound_of, pace, send_target};
use crate::engine::Shares;
use crate::judged::{config, control};
use crate::judged_roof::{self, Sample as FitSample};
use crate::rules::{self, NONE, SendDecision};

// ---- send.h ----

#[test]
fn a_pace_is_what_the_share_has_room_for_beside_the_last_buffer() {
    // In 50 ms: four fifths of what remains of 200,000 less five eighths of the last buffer.
    assert_eq!(pace(100_000, 65_536, 50_000, 1_448), 2_544_640);
    assert_eq!(pace(20_000, 65_536, 10_000, 1_448), 1_000_000, "a quarter of the share");
    assert_eq!(pace(2_000, 65_536, 10_000, 1_000), 200_000, "two segments");
    assert_eq!(pace(2_000, 65_536, 10_000, 0), 289_600, "of 1,448 bytes where the size is not known");
    assert_eq!(pace(NONE, 0, 100_000_000, 1_448), 549_755_813, "of 64 GiB at most");
    assert_eq!(pace(NONE, 0, 1, 1_448), u32::MAX - 1);
    assert_eq!(pace(100_000, 65_536, 0, 1_448), 0);
}

#[test]
fn abt_and_fit_go_by_the_window_whatever_is_demanded() {
    let sample = SendSample { cwnd: 50_000, mss: 1_448, ..SendSample::default() };
    let bounds = SendBounds { max: NONE, limit: NONE, demand: 7, least: 0, pressure: 0, stale: 0 };
    let target = |rule| send_target(rule, 0, &mut bw_abt::default(), &sample, &bounds);
    assert_eq!([target(3), target(4), target(5)], [100_000, 7, 100_000]);
}

// ---- bound.h ----

/// Length of a measurement, us; the rate of one segment per measurement, bytes per second.
const SPAN: u64 = 160_000;
const SEGMENT: u64 = 9_050;
/// The rate of 256 segments per measurement, and the memory of the lean bound for it.
const RATE: u64 = 256 * SEGMENT;
const LEAN: u64 = RATE * 40_000 / 1_000_000 * 5 / 2 + (192 << 10);
const BEGAN: u64 = 50_000_000;

/// A bound in its steady phase, at `RATE`.
fn steady() -> bw_bound {
    bw_bound {
        rate: RATE,
        began_at: BEGAN,
        memory: LEAN,
        since_growth: 3,
        since_rise: 4,
        ..bw_bound::default()
    }
}

/// The sample that ends a measurement in which `segments` were delivered.
fn after(segments: u32) -> BoundSample {
    BoundSample {
        now: BEGAN + SPAN,
        mss: 1_448,
        cwnd: LEAN,
        srtt: 100_000,
        min_rtt: 40_000,
        usual: LEAN,
        delivered: segments,
        ..BoundSample::default()
    }
}

fn observe(mut state: bw_bound, sample: BoundSample) -> bw_bound {
    bound_of(&mut state, &sample);
    state
}

#[test]
fn a_measurement_takes_four_round_trips_and_at_least_the_present_one_and_less_of_one_in_the_start() {
    let is_over = |state, elapsed, srtt| {
        let sample = BoundSample { now: BEGAN + elapsed, srtt, ..after(256) };
        observe(state, sample).began_at != BEGAN
    };
    let start = bw_bound { since_growth: 2, ..steady() };
    for (state, srtt, span) in
        [(steady(), 40_000, 160_000), (steady(), 170_000, 170_000), (start, 40_000, 35_000)]
    {
        assert!(!is_over(state, span - 1, srtt), "{span} us");
        assert!(is_over(state, span, srtt), "{span} us");
    }
}

#[test]
fn without_a_round_trip_time_there_is_no_bound_and_no_measurement() {
    let (mut state, sample) = (steady(), BoundSample { min_rtt: 0, ..after(256) });
    assert_eq!((bound_of(&mut state, &sample), state.began_at), (NONE, BEGAN));
}

#[test]
fn a_rate_has_fallen_below_seven_eighths_where_there_is_a_queue() {
    let fallen = |sample| observe(steady(), sample).fallen;
    assert_eq!((fallen(after(224)), fallen(after(223))), (0, 1));
    let window = |cwnd| BoundSample { cwnd, ..after(223) };
    assert_eq!(fallen(window(LEAN / 4)), 1, "whether or not the bound binds");
    let queued = |srtt| BoundSample { srtt, ..after(223) };
    assert_eq!((fallen(queued(51_000)), fallen(queued(51_001))), (0, 1), "a fourth, and a millisecond");
}

#[test]
fn a_queue_longer_than_the_lean_bound_makes_it_is_others_unless_it_drains() {
    // Payload is four fifths of memory.
    let longest = LEAN * 4 * 1_000_000 / 5 / RATE;
    let fallen = |srtt_before, srtt| {
        observe(bw_bound { srtt_before, ..steady() }, BoundSample { srtt, ..after(256) }).fallen
    };
    assert_eq!((fallen(0, longest), fallen(0, longest + 1)), (0, 1));
    let before = 160_000;
    assert_eq!(
        (fallen(before, before / 16 * 15 - 1), fallen(before, before / 16 * 15)),
        (0, 1),
        "an eighth a time"
    );
    assert_eq!(observe(steady(), after(256)).srtt_before, 100_000);
    let binding = |cwnd| observe(steady(), BoundSample { cwnd, srtt: longest + 1, ..after(256) }).fallen;
    assert_eq!((binding(LEAN / 2), binding(LEAN / 2 + 1)), (0, 1), "half of the bound");
}

#[test]
fn a_rate_rises_by_more_than_a_thirty_second_and_grows_by_more_than_a_quarter() {
    let rise = |segments| observe(steady(), after(segments)).since_rise;
    assert_eq!((rise(264), rise(265)), (4, 0));
    let start = bw_bound { since_growth: 1, ..steady() };
    let growth = |segments| observe(start, after(segments)).since_growth;
    assert_eq!((growth(320), growth(321)), (2, 0));
}

#[test]
fn a_period_has_eight_seconds_of_data() {
    let before = |period| observe(bw_bound { period, ..steady() }, after(200)).rate_before;
    assert_eq!((before(8_000_000 - SPAN - 1), before(8_000_000 - SPAN)), (0, RATE));
}

#[test]
fn the_bound_rises_at_once_but_not_for_a_sixteenth_and_falls_by_eighths() {
    let moved = |memory| observe(bw_bound { memory, ..steady() }, after(256)).memory;
    let near = 403_095;
    assert_eq!(near + near / 16, LEAN);
    assert_eq!((moved(near), moved(near - 1)), (near, LEAN));
    assert_eq!(moved(800_000), 700_000);
    assert_eq!(moved(LEAN + 8), LEAN);
}

#[test]
fn the_usual_bound_ends_at_its_time() {
    let until = |usual_until| observe(bw_bound { usual_until, ..steady() }, after(256)).usual_until;
    assert_eq!(until(BEGAN + SPAN), 0);
    assert_eq!(until(BEGAN + SPAN + 1), BEGAN + SPAN + 1);
}

#[test]
fn a_buffer_that_was_full_has_run_empty_below_a_quarter() {
    let hold = |sndbuf| {
        let sample = BoundSample { now: BEGAN + 1, app_limited: 1, send_queued: 1_000, sndbuf, ..after(0) };
        observe(bw_bound { was_full: 1, ..steady() }, sample).usual_until
    };
    assert_eq!((hold(4_000), hold(4_001)), (0, BEGAN + 1 + 2_000_000));
}

// ---- rules_send.h: the record ----

#[test]
fn what_was_counted_before_is_no_news_to_the_rules() {
    let mut config = config(SendRule::Fit, ReceiveRule::Sobas);
    config.max_window = 123_456;
    let begun = |bytes_acked| {
        let mut flow = bw_flow {
            bytes_acked,
            bytes_received: 7_000,
            segs_in: 11,
            out_of_order: 3,
            retrans: 5,
            ..bw_flow::default()
        };
        rules::begin(&config, &mut flow);
        flow
    };
    let flow = begun(65_537);
    assert_eq!((flow.abt.acked, flow.sobas.state, flow.sobas.window), (65_537, 1, 123_456));
    let arrivals = &flow.arrivals;
    let counted = (arrivals.total, arrivals.in_order, arrivals.segments, arrivals.out_of_order);
    assert_eq!(counted, (7_000, 7_000, 11, 0));
    assert_eq!(
        (flow.losses.in_order, flow.losses.out_of_order, flow.loss_events.retransmitted),
        (7_000, 0, 5)
    );
    assert_eq!((flow.out_of_order, flow.fit_window.found_out_of_order), (0, 3));
    assert_eq!((flow.fit.phase, begun(65_536).fit.phase), (3, 0), "64 KB sent: its start is over");
}

/// `BW_CC_CUBIC`.
const CUBIC: u32 = 2;

/// A sender with a window of 10 segments of 1,000 bytes, past its start; its bound does not bind.
fn sender() -> bw_flow {
    let mut flow = bw_flow {
        sampled_at: 10_000_000,
        cwnd: 10,
        mss: 1_000,
        bytes_acked: 1_000_000,
        srtt: 40_000,
        min_rtt: u32::MAX,
        congestion_control: CUBIC,
        ..bw_flow::default()
    };
    flow.abt.net_target = 40_000;
    flow
}

fn decide(rule: SendRule, all: &bw_control, flow: &mut bw_flow) -> u64 {
    rules::decide_send(&config(rule, ReceiveRule::Kernel), all, None, flow, false).payload
}

#[test]
fn under_pressure_a_buffer_shrinks_by_what_is_acknowledged_at_first_by_no_more_than_a_window() {
    let all = bw_control { pressure: 1, ..control() };
    let mut flow = sender();
    assert_eq!(decide(SendRule::Abt, &all, &mut flow), 30_000);
    flow.bytes_acked += 12_000;
    assert_eq!(decide(SendRule::Abt, &all, &mut flow), 18_000);
}

/// Shares fit into the budget. A connection with a short round trip gets dozens of acknowledgements before user space sees
/// that the pressure is over.
#[test]
fn under_pressure_a_buffer_keeps_half_of_its_share_and_the_papers_two_segments() {
    let shrunk = |published| {
        let config = bw_config { published, ..config(SendRule::Abt, ReceiveRule::Kernel) };
        let all = bw_control { pressure: 1, send_level: 60_000, ..control() };
        let mut flow = sender();
        let acknowledgements = (0..20).map(|_| {
            flow.bytes_acked += 10_000;
            rules::decide_send(&config, &all, None, &mut flow, false).payload
        });
        acknowledgements.last()
    };
    assert_eq!([shrunk(0), shrunk(1)], [Some(15_000), Some(2_000)]);
}

#[test]
fn a_payload_at_the_share_or_under_pressure_leaves_room_for_the_last_buffer() {
    let payload = |rule, send_level, pressure, net_target| {
        let mut flow = bw_flow { last_buffer: 200_000, cwnd: 25, ..sender() };
        flow.abt.net_target = net_target;
        decide(rule, &bw_control { send_level, pressure, ..control() }, &mut flow)
    };
    assert_eq!(payload(SendRule::Abt, 200_000, 0, 100_000), 60_000);
    assert_eq!(payload(SendRule::Abt, 200_000, 0, 99_999), 99_999);
    assert_eq!(payload(SendRule::Abt, 200_000, 1, 99_999), 60_000);
    assert_eq!(payload(SendRule::Eq, 200_000, 0, 0), 60_000);
    assert_eq!(payload(SendRule::Eq, NONE, 1, 0), NONE, "the buffer is left as it is");
}

#[test]
fn a_connection_sends_in_earnest_when_a_quarter_of_its_window_is_acknowledged() {
    let payload = |rule, send_level, bytes_acked| {
        let mut config = config(rule, ReceiveRule::Kernel);
        config.fixed = 50_000;
        let mut flow = bw_flow { bytes_acked, ..sender() };
        let all = bw_control { send_level, ..control() };
        rules::decide_send(&config, &all, None, &mut flow, false).payload
    };
    assert_eq!(payload(SendRule::Abt, 400_000, 2_500), 6_250);
    assert_eq!(payload(SendRule::Abt, 400_000, 2_501), 40_000);
    assert_eq!(payload(SendRule::Abt, NONE, 0), 40_000, "without a share its window does not bind");
    assert_eq!(payload(SendRule::Fixed, 400_000, 0), 50_000, "a choice of a size stays");
}

/// A paced CUBIC leaves slow start later: four times in five its queue overflowed, over ten paths (docs/results/engine.md).
#[test]
fn a_start_is_paced_only_where_its_next_window_does_not_fit_into_the_share() {
    let paced = |cwnd, bound: bw_bound| {
        let mut flow = bw_flow { cwnd, bound, ..sender() };
        flow.abt.net_target = 30_001;
        rules::decide_pace(&flow, 30_000)
    };
    let share = pace(30_000, 65_536, 40_000, 1_000);
    let mut flow = bw_flow { last_buffer: 65_536, ..sender() };
    flow.abt.net_target = 30_001;
    assert_eq!(rules::decide_pace(&flow, 30_000), share, "one buffer takes most of the share");
    // 4/5 of 60,000: 48 segments.
    let starts = bw_bound::default();
    assert_eq!([paced(24, starts), paced(25, starts)], [0, pace(30_000, 0, 40_000, 1_000)]);
    assert_eq!(
        paced(24, steady()),
        pace(30_000, 0, 40_000, 1_000),
        "later all that a share bounds are paced"
    );
}

#[test]
fn until_it_has_sent_32_kb_a_connection_has_a_newcomers_share() {
    let all = bw_control { send_level: 60_000, newcomer_level: 20_000, newest_at: 7, ..control() };
    let share = |bytes_acked| {
        let mut flow = bw_flow { began_at: 7, bytes_acked, ..sender() };
        rules::decide_send(&config(SendRule::Abt, ReceiveRule::Kernel), &all, None, &mut flow, false).share
    };
    assert_eq!([0, 32_767, 32_768].map(share), [10_000, 10_000, 30_000]);
}

/// Until user space has seen it send again, others have its share.
#[test]
fn a_sender_begins_anew_after_five_seconds_without_new_data_acknowledged() {
    const OPENED: u64 = 1_000_000;
    let began_at = |acknowledged: &[u64]| {
        let mut flow = bw_flow { opened_at: OPENED, began_at: OPENED, ..sender() };
        acknowledged.iter().for_each(|at| rules::note_rtt(&mut flow, *at));
        flow.began_at
    };
    assert_eq!(began_at(&[]), OPENED);
    assert_eq!(began_at(&[1_050_000, 6_049_999, 11_049_998]), OPENED);
    assert_eq!(began_at(&[1_050_000, 6_050_000, 6_100_000]), 6_050_000);
    assert_eq!(began_at(&[6_000_000, 6_050_000]), 6_000_000, "after it was opened");
    assert_eq!(began_at(&[990_000]), OPENED, "times may be read in another order");
}

/// It has such a share until a sample has seen it; an order for it counts at once.
#[test]
fn a_connection_that_is_newer_than_the_last_samples_newest_has_a_newcomers_share() {
    let share = |order, newcomer_level, began_at| {
        let all = bw_control { send_level: 60_000, newcomer_level, newest_at: 7, ..control() };
        let mut flow = bw_flow { began_at, ..sender() };
        rules::decide_send(&config(SendRule::Abt, ReceiveRule::Kernel), &all, order, &mut flow, false).share
    };
    assert_eq!([7, 8].map(|began_at| share(None, 20_000, began_at)), [30_000, 10_000]);
    let told = |newcomer| {
        let shares = Shares { level: Some(Bytes(60_000)), newcomer, ..Shares::default() };
        share(None, shares.control().newcomer_level, 8)
    };
    assert_eq!([None, Some(Bytes(20_000)), Some(Bytes(80_000))].map(told), [30_000, 10_000, 30_000]);
    let order = bw_order { demand: 0, limit: 50_000 };
    assert_eq!(share(Some(&order), 20_000, 8), 25_000);
}

#[test]
fn an_order_is_one_connections_own_share_and_demand_and_counts_while_user_space_lives() {
    let all = bw_control { send_level: 8_000, pressure: 1, ..control() };
    let order = bw_order { demand: 30_000, limit: 50_000 };
    let config = config(SendRule::Sabt, ReceiveRule::Kernel);
    let decide =
        |order, all: &bw_control, stale| rules::decide_send(&config, all, order, &mut sender(), stale);
    let calm = bw_control { pressure: 0, ..all };
    assert_eq!(decide(Some(&order), &calm, false), SendDecision { payload: 25_000, share: 25_000 });
    let wide = bw_order { limit: NONE, ..order };
    assert_eq!(decide(Some(&wide), &calm, false), SendDecision { payload: 30_000, share: NONE });
    assert_eq!(decide(None, &calm, false), SendDecision { payload: 4_000, share: 4_000 });
    assert_eq!(decide(Some(&order), &all, true), SendDecision { payload: 40_000, share: NONE });
}

#[test]
fn half_of_the_bound_and_what_fits_below_the_roof_bound_every_payload_but_none_that_is_left() {
    let payload = |rule, memory, roof| {
        let mut flow = bw_flow { min_rtt: 40_000, ..sender() };
        flow.bound = bw_bound { began_at: 9_999_999, memory, ..steady() };
        flow.fit.roof = roof;
        flow.abt.net_target = 1_000_000;
        flow.cwnd = 500;
        decide(rule, &control(), &mut flow)
    };
    assert_eq!(payload(SendRule::Abt, 30_000, 0), 15_000);
    assert_eq!(payload(SendRule::Eq, 30_000, 0), NONE);
    // 5/4 of 40 ms at the roof, and 96 KB.
    assert_eq!(payload(SendRule::Abt, 3_000_000, 1_000_000), 50_000 + (96 << 10));
    assert_eq!(payload(SendRule::Eq, 3_000_000, 1_000_000), NONE);
    assert_eq!(payload(SendRule::Abt, 3_000_000, 0), 1_000_000);
}

/// BBR takes a sender that waits for buffer space for one without data, and stays in its startup: this causes four times
/// the drops and a longer queue.
#[test]
fn a_congestion_control_other_than_cubic_and_reno_has_no_bound_below_the_kernels_maximum() {
    let payload = |congestion_control| {
        let mut flow = bw_flow { min_rtt: 40_000, congestion_control, ..sender() };
        flow.bound = bw_bound { began_at: 9_999_999, memory: 30_000, ..steady() };
        (flow.abt.net_target, flow.cwnd) = (1_000_000, 50);
        decide(SendRule::Abt, &control(), &mut flow)
    };
    // Twice the window, below half of the maximum.
    assert_eq!([0, 1, CUBIC].map(payload), [200_000, 15_000, 15_000]);
}

#[test]
fn what_fit_leaves_alone_has_the_usual_bound() {
    let payload = |phase, hold| {
        let mut flow = bw_flow { min_rtt: 40_000, ..sender() };
        flow.bound = bw_bound { began_at: 9_999_999, memory: 30_000, ..steady() };
        (flow.fit.phase, flow.fit.hold) = (phase, hold);
        (flow.abt.net_target, flow.cwnd) = (1_000_000, 50);
        decide(SendRule::Fit, &control(), &mut flow)
    };
    // The usual bound is memory for four windows of 50,000 bytes, and 192 KB.
    assert_eq!(payload(3, 2_000_000), (4 * 50_000 + (192 << 10)) / 2);
    assert_eq!([payload(3, 0), payload(2, 2_000_000)], [15_000; 2], "never left alone, and not now");
}

#[test]
fn a_small_document_goes_out_at_once_below_any_bound() {
    let mut config = config(SendRule::Abt, ReceiveRule::Kernel);
    config.small_document = 30_000;
    let payload = |bytes_acked| {
        let mut flow = bw_flow { min_rtt: 40_000, bytes_acked, ..sender() };
        flow.bound = bw_bound { began_at: 9_999_999, memory: 20_000, ..steady() };
        rules::decide_send(&config, &control(), None, &mut flow, false).payload
    };
    assert_eq!((payload(29_999), payload(30_000)), (30_000, 10_000));
    // A small document is exempt from the shares and from reductions under pressure.
    let shared = |send_level, pressure, bytes_acked| {
        let mut flow = bw_flow { bytes_acked, ..sender() };
        let all = bw_control { send_level, pressure, ..control() };
        rules::decide_send(&config, &all, None, &mut flow, false)
    };
    assert_eq!((shared(9_216, 0, 29_999).share, shared(9_216, 0, 30_000).share), (30_000, 4_608));
    assert_eq!((shared(NONE, 1, 29_999).payload, shared(NONE, 1, 30_000).payload), (40_000, 30_000));
}

#[test]
fn losses_are_counted_and_the_bound_sees_who_limits_a_sender_but_a_fixed_ones() {
    let seen = |rule, send_queued| {
        let mut flow = bw_flow {
            min_rtt: 40_000,
            retrans: 1,
            app_limited: 1,
            sndbuf: 100_000,
            send_queued,
            delivered_segs: 9,
            ..sender()
        };
        decide(rule, &control(), &mut flow);
        assert_eq!(flow.loss_events.count, 1);
        (flow.bound.began_at, flow.bound.began_limited, flow.bound.began_delivered)
    };
    assert_eq!(seen(SendRule::Abt, 49_999), (10_000_000, 1, 9));
    assert_eq!(seen(SendRule::Abt, 50_000), (10_000_000, 0, 9), "its buffer limits it");
    assert_eq!(seen(SendRule::Fixed, 0), (0, 0, 0));
    assert_eq!(seen(SendRule::Kernel, 0), (0, 0, 0));
}

proptest! {
    #[test]
    fn fit_sees_the_record(
        inputs in prop::collection::vec((100_u64..40_000, 0_u32..40, 20_000_u32..60_000, any::<bool>(), 0_u32..2), 1..80),
        (phase, roof) in (0_u32..4, 0_u64..10_000_000), paced in 0_u32..2, congestion_control in 0_u32..3,
        min_rtt in prop_oneof![8 => Just(20_000_u32), 1 => Just(u32::MAX), 1 => Just(1_999)],
    ) {
        let mut flow = bw_flow { paced, congestion_control, min_rtt, sndbuf: 100_000, ..sender() };
        flow.fit = bw_fit { phase, roof, ..bw_fit::default() };
        let (mut beside, before) = (flow.fit, flow.fit);
        let mut now = 10_000_000;
        for (step, segments, srtt, is_limited, lost) in inputs {
            now += step;
            (flow.srtt, flow.app_limited, flow.send_queued) = (srtt, is_limited.into(), segments * 2_000);
            flow.delivered_segs += segments;
            flow.retrans += lost;
            let sample = FitSample {
                now, mss: 1_000, srtt: srtt.into(), min_rtt: if min_rtt == u32::MAX { 0 } else { min_rtt.into() },
                cwnd: 10, delivered: flow.delivered_segs,
                app_limited: (is_limited && flow.send_queued < 50_000).into(),
                paces_itself: (congestion_control == 0).into(), paced, retransmitted: flow.retrans, unused: 0,
            };
            judged_roof::observe(&mut beside, &sample);
            rules::observe_fit(&config(SendRule::Fit, ReceiveRule::Kernel), &mut flow, now);
            prop_assert_eq!(format!("{:?}", flow.fit), format!("{beside:?}"));
        }
        flow.fit = before;
        rules::observe_fit(&config(SendRule::Abt, ReceiveRule::Kernel), &mut flow, now + 1);
        prop_assert_eq!(format!("{:?}", flow.fit), format!("{before:?}"));
    }
}

#[test]
fn fit_times_trains_of_the_start_alone() {
    let timing = |config: &bw_config, flow: &bw_flow| rules::is_fit_timing(config, flow);
    let sends = config(SendRule::Fit, ReceiveRule::Drs);
    let sender = bw_flow {
        min_rtt: 2_000,
        congestion_control: 2,
        segs_out: 7,
        delivered_segs: 8_191,
        segs_in: 255,
        ..bw_flow::default()
    };
    assert!(timing(&sends, &sender));
    assert!(
        timing(&sends, &bw_flow { congestion_control: 0, delivered_segs: 6, ..sender }),
        "CUBIC may yet be chosen"
    );
    assert!(!timing(&config(SendRule::Abt, ReceiveRule::Drs), &sender));
    let mut follows = sender;
    follows.fit.phase = 2;
    for (what, other) in [
        ("too few segments", bw_flow { segs_out: 6, ..sender }),
        ("too near", bw_flow { min_rtt: 1_999, ..sender }),
        ("it paces itself", bw_flow { congestion_control: 0, delivered_segs: 7, ..sender }),
        ("a long start", bw_flow { delivered_segs: 8_192, ..sender }),
        ("a receiver", bw_flow { segs_in: 256, ..sender }),
        ("a receiver", bw_flow { congestion_control: 0, delivered_segs: 6, segs_in: 256, ..sender }),
        ("after the start", follows),
    ] {
        assert!(!timing(&sends, &other), "{what}");
    }
    let receives = config(SendRule::Kernel, ReceiveRule::Fit);
    let receiver = |segs_in| bw_flow { segs_in, ..bw_flow::default() };
    assert!(timing(&receives, &receiver(7)) && timing(&receives, &receiver(8_191)));
    assert!(!timing(&receives, &receiver(6)) && !timing(&receives, &receiver(8_192)));
    assert!(!timing(&config(SendRule::Kernel, ReceiveRule::Drs), &receiver(7)));
    let mut ramps = receiver(7);
    ramps.fit_window.phase = 1;
    assert!(!timing(&receives, &ramps));
}

#[test]
fn the_pace_is_the_lower_of_the_shares_and_of_fits_roof() {
    let share = pace(30_000, 0, 40_000, 1_000);
    let decided = |roof, net_target, share| {
        let mut flow = bw_flow { bound: steady(), ..sender() };
        (flow.fit.roof, flow.abt.net_target) = (roof, net_target);
        rules::decide_pace(&flow, share)
    };
    assert_eq!(decided(0, 30_000, 30_000), 0, "the share does not bind");
    assert_eq!(decided(99, 30_000, 30_000), 99);
    assert_eq!(decided(0, 30_001, 30_000), share);
    assert_eq!(decided(99, 30_001, 30_000), 99);
    assert_eq!(decided(u64::from(share) + 1, 30_001, 30_000), share);
    // A rate of 34 Gbit/s, the highest that programs can set, is no bound: the path may carry more.
    let highest = u64::from(u32::MAX - 1);
    assert_eq!((decided(highest, 30_000, 30_000), decided(highest - 1, 30_000, 30_000)), (0, u32::MAX - 2));
    assert_eq!((decided(0, 1 << 40, 1 << 39), decided(99, 1 << 40, 1 << 39)), (0, 99));
}

/// 34 Gbit/s times 2 ms are 8.6 MB: the send buffer would hold the sender to 43 Gbit/s.
#[test]
fn a_roof_that_cannot_be_set_bounds_no_send_buffer() {
    let payload = |roof| {
        let mut flow = bw_flow { min_rtt: 2_000, srtt: 2_000, cwnd: 10_000, ..sender() };
        flow.bound = bw_bound { began_at: 9_999_999, memory: 100_000_000, ..steady() };
        (flow.fit.roof, flow.abt.net_target) = (roof, 20_000_000);
        decide(SendRule::Abt, &control(), &mut flow)
    };
    let highest = u64::from(u32::MAX - 1);
    assert_eq!(payload(highest), 20_000_000);
    assert!(payload(highest - 1) < 11_000_000);
}
