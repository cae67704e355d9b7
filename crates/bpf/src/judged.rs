//! Property tests, on the host, of the C rules that have no Rust twin: arrivals, losses, the fast path, requests,
//! ownership, giving back.

#![expect(unsafe_code, reason = "calls C")]

use proptest::prelude::*;

use crate::abi::{bw_arrivals, bw_config, bw_control, bw_fast, bw_fit, bw_flow, bw_loss_events, bw_losses};
use crate::config::{Config, ReceiveRule, SendRule};
use crate::differential::arrivals_of as arrivals;
use crate::rules::{self, NONE, Step};

/// Bits that tell which buffer is locked: send, receive.
const SEND: u32 = 1;
const RECEIVE: u32 = 2;
const MSS: u64 = 1_448;

/// `struct bw_fast_view`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct View {
    pub(crate) now: u64,
    pub(crate) cwnd: u32,
    pub(crate) sndbuf: u32,
    pub(crate) send_queued: u32,
    pub(crate) retransmitted: u32,
    pub(crate) app_limited: u32,
    pub(crate) unused: u32,
}

unsafe extern "C" {
    fn bufwise_losses(state: *mut bw_losses, now: u64, rtt: u64, in_order: u64, out_of_order: u32) -> u32;
    fn bufwise_loss_events(state: *mut bw_loss_events, now: u64, srtt: u64, retransmitted: u32) -> u32;
    fn bufwise_is_stale(config: *const bw_config, all: *const bw_control, now: u64) -> u32;
    fn bufwise_step_receive(
        step: *mut Step,
        config: *const bw_config,
        flow: *mut bw_flow,
        memory: u64,
        stale: u32,
    );
    fn bufwise_is_round_due(config: *const bw_config, fast: *const bw_fast, view: *const View) -> u32;
    fn bufwise_rest_rounds(
        config: *const bw_config,
        all: *const bw_control,
        fast: *mut bw_fast,
        flow: *const bw_flow,
    );
    fn bufwise_is_window_due(fast: *const bw_fast, now: u64, window_clamp: u32) -> u32;
    fn bufwise_next_window(config: *const bw_config, flow: *const bw_flow, now: u64) -> u64;
}

pub(crate) fn losses(state: &mut bw_losses, now: u64, rtt: u64, in_order: u64, disorder: u32) -> u32 {
    // SAFETY: the structure is that of losses.h and outlives the call; C keeps no pointer.
    unsafe { bufwise_losses(state, now, rtt, in_order, disorder) }
}

pub(crate) fn loss_events(state: &mut bw_loss_events, now: u64, srtt: u64, retransmitted: u32) -> u32 {
    // SAFETY: as above.
    unsafe { bufwise_loss_events(state, now, srtt, retransmitted) }
}

pub(crate) fn step_receive(config: &bw_config, flow: &mut bw_flow, memory: u64, stale: bool) -> Step {
    // The C function must overwrite both fields.
    let mut step = Step { value: u32::MAX, request: u32::MAX };
    // SAFETY: the structures are those of flow.h and upkeep.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_step_receive(&raw mut step, config, flow, memory, stale.into()) }
    step
}

pub(crate) fn is_round_due(config: &bw_config, fast: &bw_fast, view: &View) -> bool {
    // SAFETY: the structures are those of fast.h and outlive the call.
    unsafe { bufwise_is_round_due(config, fast, view) != 0 }
}

pub(crate) fn rest_rounds(config: &bw_config, all: &bw_control, fast: &mut bw_fast, flow: &bw_flow) {
    // SAFETY: the structures are those of fast.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_rest_rounds(config, all, fast, flow) }
}

pub(crate) fn config(send: SendRule, receive: ReceiveRule) -> bw_config {
    (&Config { send, receive, ..Config::default() }).into()
}

/// Control values without bounds and pressure; the last heartbeat of user space is at time 0.
pub(crate) fn control() -> bw_control {
    bw_control { send_level: NONE, newcomer_level: NONE, window_level: NONE, ..bw_control::default() }
}

// ---- Arrivals ----

proptest! {
    #[test]
    fn without_losses_the_bytes_in_order_have_arrived(
        steps in prop::collection::vec((0..1_000_000_u64, 0..900_u32), 1..50), start in any::<u32>(),
    ) {
        let mut state = bw_arrivals { segments: start, ..bw_arrivals::default() };
        let (mut bytes, mut segments, mut now) = (0, start, 0);
        for (more, count) in steps {
            bytes += more;
            segments = segments.wrapping_add(count);
            now += 2_000;
            prop_assert_eq!(arrivals(&mut state, now, 100_000, bytes, segments, 0), bytes);
        }
    }

    #[test]
    fn arrivals_never_fall_whatever_the_kernel_says(
        steps in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u32>(), 0..200_000_u64), 1..50),
    ) {
        let (mut state, mut last, mut now) = (bw_arrivals::default(), 0, 0);
        for (in_order, segments, disorder, step) in steps {
            now += step;
            let total = arrivals(&mut state, now, 100_000, in_order, segments, disorder);
            prop_assert!(total >= last);
            last = total;
        }
    }

    #[test]
    fn a_hole_that_is_filled_adds_what_came_meanwhile(behind in 1..2_000_u32, before in 50..500_u32) {
        let (mut state, mut now, mut in_order) = (bw_arrivals::default(), 0, 0);
        for sample in 1..=before {
            in_order += 10 * MSS;
            now += 1_000;
            arrivals(&mut state, now, 100_000, in_order, sample * 10, 0);
        }
        let segments = before * 10 + behind;
        let open = arrivals(&mut state, now + 1_000, 100_000, in_order, segments, behind);
        prop_assert_eq!(open, in_order + u64::from(behind) * MSS);
        let filled = in_order + u64::from(behind + 1) * MSS;
        let closed = arrivals(&mut state, now + 2_000, 100_000, filled, segments + 1, behind);
        prop_assert_eq!(closed, filled);
    }
}

/// Returns DRS's largest measurement and the BDP, bytes, of a receiver of 10 segments per millisecond. One segment is
/// lost at 1 s, and its retransmission arrives a round trip (`rtt`, us) later.
fn largest_measurement_after_one_loss(rtt: u64) -> (u64, u64) {
    let config = config(SendRule::Kernel, ReceiveRule::Drs);
    let mut flow =
        bw_flow { rcv_rtt: u32::try_from(rtt).unwrap(), mss: 1_448, rcv_mss: 1_448, ..bw_flow::default() };
    flow.min_rtt = flow.rcv_rtt;
    rules::begin(&config, &mut flow);
    let (lost, filled) = (1_000_000, 1_000_000 + rtt);
    let (mut in_order, mut behind) = (0_u64, 0_u64);
    for now in (1_000..3_000_000).step_by(1_000) {
        flow.segs_in += 10;
        if (lost..filled).contains(&now) {
            flow.out_of_order += 10;
            behind += 10 * MSS;
        } else {
            in_order += 10 * MSS + std::mem::take(&mut behind);
        }
        flow.bytes_received = in_order;
        flow.sampled_at = now;
        rules::decide_window(&config, &control(), &mut flow, now, false);
    }
    (flow.drs.largest, rtt * 10 * MSS / 1_000)
}

#[test]
fn one_loss_does_not_double_what_drs_measures() {
    for rtt in [5_000, 40_000, 200_000] {
        let (largest, product) = largest_measurement_after_one_loss(rtt);
        // Samples are 1 ms apart: a measurement may exceed a round trip by two samples.
        assert!(largest >= product, "{rtt} us: {largest} of {product}");
        assert!(largest <= product + 20 * MSS, "{rtt} us: {largest} of {product}");
    }
}

/// For `lossy` ms every second segment is lost, as when slow start overflows a queue; then each retransmission brings
/// two segments in order.
#[test]
fn a_repair_that_releases_two_segments_for_each_that_comes_counts_one() {
    let config = config(SendRule::Kernel, ReceiveRule::Drs);
    let rtt = 50_000;
    for lossy in [100, 500, 2_000] {
        let mut flow =
            bw_flow { rcv_rtt: rtt, min_rtt: rtt, mss: 1_448, rcv_mss: 1_448, ..bw_flow::default() };
        rules::begin(&config, &mut flow);
        for ms in 1..3_000 + 2 * lossy {
            flow.segs_in += 10;
            let lossy_until = 1_000 + lossy;
            match ms {
                _ if (1_000..lossy_until).contains(&ms) => flow.out_of_order += 10,
                _ if (lossy_until..lossy_until + lossy).contains(&ms) => flow.bytes_received += 20 * MSS,
                _ => flow.bytes_received += 10 * MSS,
            }
            flow.sampled_at = ms * 1_000;
            rules::decide_window(&config, &control(), &mut flow, ms * 1_000, false);
        }
        let product = u64::from(rtt) * 10 * MSS / 1_000;
        let largest = flow.drs.largest;
        assert!((product..=product + 20 * MSS).contains(&largest), "{lossy} ms: {largest} of {product}");
    }
}

// ---- Losses ----

/// Returns the lossy slots after samples of a receiver, one per millisecond; each tells whether bytes came in order,
/// and whether segments came out of order. `rtt`: us.
fn slots_of(rtt: u64, samples: impl IntoIterator<Item = (bool, bool)>) -> u32 {
    let mut state = bw_losses::default();
    let (mut now, mut in_order, mut disorder, mut slots) = (5_000_000, 0, 0, 0);
    for (progress, disordered) in samples {
        now += 1_000;
        in_order += u64::from(progress) * MSS;
        disorder += u32::from(disordered);
        slots = losses(&mut state, now, rtt, in_order, disorder);
    }
    slots
}

#[test]
fn a_hole_is_one_loss_however_many_segments_come_behind_it() {
    for rtt in [20_u64, 100, 300] {
        let hole = std::iter::repeat_n((false, true), usize::try_from(rtt).unwrap());
        let flow = || std::iter::repeat_n((true, false), 20);
        assert_eq!(slots_of(rtt * 1_000, flow().chain(hole.clone()).chain(flow())), 1, "{rtt} ms");
        let twice = flow().chain(hole.clone()).chain(flow()).chain(hole).chain(flow());
        assert_eq!(slots_of(rtt * 1_000, twice), 2, "{rtt} ms");
    }
}

#[test]
fn segments_that_overtake_each_other_are_no_loss() {
    // Every 20 ms, half of the round trip, a late segment arrives and fills its hole.
    let overtaken = (0..900).map(|sample| (sample % 20 == 0, sample % 20 != 0));
    assert_eq!(slots_of(40_000, overtaken), 0);
}

proptest! {
    #[test]
    fn losses_are_no_more_than_one_in_three_quarters_of_a_round_trip(
        samples in prop::collection::vec((any::<bool>(), any::<bool>()), 1..2_000), rtt in 1_000_u64..400_000,
    ) {
        let most = samples.len() as u64 * 1_000 / (rtt - rtt / 4) + 1;
        prop_assert!(u64::from(slots_of(rtt, samples)) <= most);
    }

    #[test]
    fn without_disorder_there_is_no_loss(progress in prop::collection::vec(any::<bool>(), 1..500), rtt in 0_u64..400_000) {
        prop_assert_eq!(slots_of(rtt, progress.into_iter().map(|progress| (progress, false))), 0);
    }

    #[test]
    fn a_sender_counts_a_burst_of_retransmissions_once_per_round_trip(
        steps in prop::collection::vec((0_u64..50_000, 0_u32..30), 1..200), srtt in 1_000_u64..200_000, start in any::<u32>(),
    ) {
        let mut state = bw_loss_events { retransmitted: start, ..bw_loss_events::default() };
        let (mut now, mut retransmitted, mut began, mut events) = (1_000, start, None, 0);
        for (step, more) in steps {
            now += step;
            retransmitted = retransmitted.wrapping_add(more);
            if more > 0 && began.is_none_or(|began| now - began > srtt) {
                began = Some(now);
                events += 1;
            }
            prop_assert_eq!(loss_events(&mut state, now, srtt, retransmitted), events);
        }
    }
}

// ---- The fast path ----

/// Samples a sender once; returns its fast-path record and the payload that was decided.
fn rested(config: &bw_config, all: &bw_control, flow: &mut bw_flow) -> (bw_fast, u64) {
    let mut fast = bw_fast::default();
    let decided = rules::decide_send(config, all, None, flow, false).payload;
    rest_rounds(config, all, &mut fast, flow);
    (fast, decided)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// The fast path may skip a round trip only if the full rule would have decided the same.
    #[test]
    fn a_round_trip_that_is_let_go_would_have_decided_nothing_new(
        before in 1_u32..5_000, now in 1_u32..5_000, sndbuf in 10_000_u32..10_000_000, pressure in any::<bool>(),
        limit in prop_oneof![Just(NONE), 100_000_u64..20_000_000], rule in prop_oneof![Just(SendRule::Abt), Just(SendRule::Eq)],
    ) {
        let config = config(rule, ReceiveRule::Kernel);
        let all = bw_control { send_level: limit, pressure: pressure.into(), ..control() };
        let mut flow = bw_flow {
            sampled_at: 10_000_000, cwnd: before, mss: 1_448, bytes_acked: 1 << 30, min_rtt: u32::MAX, srtt: 50_000,
            sndbuf, send_queued: sndbuf / 2, ..bw_flow::default()
        };
        // The bound is in its steady phase, where it changes at samples only.
        flow.bound.since_growth = 3;
        rules::begin(&config, &mut flow);
        let (fast, decided) = rested(&config, &all, &mut flow);
        let view = View { now: 10_050_000, cwnd: now, sndbuf, send_queued: sndbuf / 2, ..View::default() };
        if is_round_due(&config, &fast, &view) {
            return Ok(());
        }
        prop_assert!(!pressure, "under pressure every round trip is sampled");
        (flow.cwnd, flow.sampled_at) = (now, view.now);
        prop_assert_eq!(rules::decide_send(&config, &all, None, &mut flow, false).payload, decided);
    }

    #[test]
    fn a_round_trip_is_due_when_something_has_changed(cwnd in 10_u32..5_000, sndbuf in 300_000_u32..10_000_000) {
        let config = config(SendRule::Sabt, ReceiveRule::Kernel);
        let mut flow = bw_flow {
            sampled_at: 10_000_000, cwnd, mss: 1_448, bytes_acked: 1 << 30, min_rtt: u32::MAX, srtt: 50_000,
            sndbuf, send_queued: sndbuf, retrans: 7, ..bw_flow::default()
        };
        flow.bound.since_growth = 3;
        rules::begin(&config, &mut flow);
        let (fast, _) = rested(&config, &control(), &mut flow);
        let same = View {
            now: 10_050_000, cwnd, sndbuf, send_queued: sndbuf, retransmitted: 7, app_limited: 0, unused: 0,
        };
        prop_assert!(!is_round_due(&config, &fast, &same));
        for (what, other) in [
            ("rest", View { now: 10_100_000, ..same }),
            ("window below the band", View { cwnd: cwnd / 2 - 1, ..same }),
            ("window above the band", View { cwnd: cwnd + 1, ..same }),
            ("buffer", View { sndbuf: sndbuf + 1, ..same }),
            ("empty queue", View { send_queued: 0, ..same }),
            ("half of the queue", View { send_queued: sndbuf / 2 - 65_537, ..same }),
            ("loss", View { retransmitted: 8, ..same }),
        ] {
            prop_assert!(is_round_due(&config, &fast, &other), "{}", what);
        }
        let soon = View { now: 10_000_999, send_queued: 0, ..same };
        prop_assert!(!is_round_due(&config, &fast, &soon), "a change of the queue counts after a millisecond");
    }

    #[test]
    fn an_application_that_has_data_again_is_noticed(cwnd in 10_u32..5_000) {
        let config = config(SendRule::Abt, ReceiveRule::Kernel);
        let mut flow = bw_flow {
            sampled_at: 10_000_000, cwnd, mss: 1_448, bytes_acked: 1 << 30, min_rtt: u32::MAX, sndbuf: 1 << 20,
            app_limited: 1, ..bw_flow::default()
        };
        rules::begin(&config, &mut flow);
        let (fast, _) = rested(&config, &control(), &mut flow);
        let view = View { now: 10_050_000, cwnd, sndbuf: 1 << 20, app_limited: 1, ..View::default() };
        prop_assert!(!is_round_due(&config, &fast, &view));
        let again = View { app_limited: 0, ..view };
        prop_assert!(is_round_due(&config, &fast, &again));
    }

    #[test]
    fn the_next_window_is_measured_within_a_tenth_of_a_second_and_not_at_once(
        now in 1_000_000_u64..1 << 40, rtt in 0_u32..1_000_000, began in 0_u64..2_000_000, length in 0_u64..2_000_000,
        sobas in any::<bool>(),
    ) {
        let rule = if sobas { ReceiveRule::Sobas } else { ReceiveRule::Drs };
        let config = config(SendRule::Kernel, rule);
        let mut flow = bw_flow { min_rtt: rtt.max(1), ..bw_flow::default() };
        flow.drs.began_at = now + 1_000 - began.min(now);
        flow.sobas.start = flow.drs.began_at;
        flow.sobas.length = length;
        // SAFETY: the structures are those of flow.h and outlive the call.
        let next = unsafe { bufwise_next_window(&raw const config, &raw const flow, now) };
        let longest = if sobas { 10_000 } else { 100_000 };
        prop_assert!((now + 500..=now + longest).contains(&next), "{} after {}", next - now, now);
        let fast = bw_fast { next_window: next, clamp: 5_000, ..bw_fast::default() };
        // SAFETY: the structure is that of fast.h and outlives the call.
        let is_due = |now, clamp| unsafe { bufwise_is_window_due(&raw const fast, now, clamp) != 0 };
        prop_assert!(!is_due(next - 1, 5_000));
        prop_assert!(is_due(next, 5_000) && is_due(now, 5_001));
    }
}

// ---- Requests, ownership, giving back ----

#[test]
fn user_space_is_gone_when_it_has_been_silent_for_longer_than_configured() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let all = bw_control { heartbeat_ns: 7_000_000_000, ..control() };
    // SAFETY: the structures are those of flow.h and outlive the call.
    let is_stale = |now| unsafe { bufwise_is_stale(&raw const config, &raw const all, now) != 0 };
    assert!(!is_stale(6_000_000), "it spoke after the clock was read");
    assert!(!is_stale(12_000_000));
    assert!(is_stale(12_000_001));
}

#[test]
fn a_size_beyond_the_cap_is_requested_once_a_second_and_the_cap_set_meanwhile() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let (cap, wanted) = (212_992, 1_000_000);
    let mut flow = bw_flow { sampled_at: 5_000_000, sndbuf: 87_040, rcvbuf: 131_072, ..bw_flow::default() };
    assert_eq!(rules::step_send(&config, &mut flow, wanted, false), Step { value: cap, request: 2_000_000 });
    assert_eq!(flow.decided_send, wanted);
    (flow.requested_sndbuf, flow.requested_at) = (2_000_000, 5_000_000);
    assert_eq!(rules::step_send(&config, &mut flow, wanted, false), Step::default(), "it was requested");
    flow.sampled_at += 1_000_000;
    (flow.sndbuf, flow.set_sndbuf) = (2 * cap, 2 * cap);
    assert_eq!(rules::step_send(&config, &mut flow, wanted, false), Step { value: 0, request: 2_000_000 });
    assert_eq!(rules::step_send(&config, &mut flow, wanted, true), Step::default(), "nobody grants");
    // The request is granted.
    flow.sndbuf = 2_000_000;
    rules::settle(&config, &mut flow, 0);
    assert_eq!((flow.set_sndbuf, flow.owned), (2 * cap, SEND), "without a lock it was not granted");
    flow.owned = 0;
    rules::settle(&config, &mut flow, SEND);
    assert_eq!((flow.set_sndbuf, flow.requested_sndbuf, flow.owned), (2_000_000, 0, 0));
    assert_eq!(rules::step_send(&config, &mut flow, wanted, false), Step::default(), "it has that size");
    // The same for the receive side.
    let mut flow = bw_flow { sampled_at: 5_000_000, rcvbuf: 131_072, ..bw_flow::default() };
    assert_eq!(step_receive(&config, &mut flow, 2_000_000, false), Step { value: cap, request: 2_000_000 });
    (flow.requested_rcvbuf, flow.requested_at) = (2_000_000, 5_000_000);
    assert_eq!(step_receive(&config, &mut flow, 2_000_000, false), Step::default());
    assert_eq!(step_receive(&config, &mut flow, 2_000_000, true), Step { value: cap, request: 0 });
    flow.rcvbuf = 2_000_000;
    rules::settle(&config, &mut flow, RECEIVE);
    assert_eq!((flow.set_rcvbuf, flow.requested_rcvbuf, flow.owned), (2_000_000, 0, 0));
}

#[test]
fn a_buffer_of_another_size_is_the_applications_unless_it_is_taken_over() {
    let mut config = config(SendRule::Abt, ReceiveRule::Drs);
    let other = bw_flow { sndbuf: 1, set_sndbuf: 2, rcvbuf: 3, set_rcvbuf: 4, ..bw_flow::default() };
    for (take_over, owned) in [(0, SEND | RECEIVE), (1, 0)] {
        config.take_over = take_over;
        let mut flow = other;
        rules::settle(&config, &mut flow, SEND | RECEIVE);
        assert_eq!(flow.owned, owned);
    }
    let mut untouched = bw_flow { sndbuf: 1, rcvbuf: 3, ..bw_flow::default() };
    config.take_over = 0;
    rules::settle(&config, &mut untouched, 0);
    assert_eq!(untouched.owned, 0);
}

#[test]
fn observing_decides_and_sets_nothing() {
    let mut config = config(SendRule::Abt, ReceiveRule::Drs);
    config.observe_only = 1;
    let mut flow = bw_flow {
        sndbuf: 1 << 20,
        set_sndbuf: 1 << 20,
        rcvbuf: 1 << 20,
        set_rcvbuf: 1 << 20,
        ..bw_flow::default()
    };
    assert_eq!(rules::step_send(&config, &mut flow, 99_999, false), Step::default());
    assert_eq!(flow.decided_send, 99_999);
    assert_eq!(rules::give_back_send(&config, &flow), 0);
    assert_eq!(rules::give_back_receive(&config, &flow, 0, false), 0);
}

#[test]
fn another_pacing_rate_is_the_applications_and_small_changes_are_none() {
    let mut flow = bw_flow::default();
    assert!(rules::step_pace(&flow, NONE, 1_000_000));
    assert!(!rules::step_pace(&flow, 5_000, 1_000_000), "the application has set one");
    assert!(!rules::step_pace(&flow, NONE, 0));
    flow.set_pace = 1_000_000;
    assert!(!rules::step_pace(&flow, 1_000_000, 1_124_999));
    assert!(rules::step_pace(&flow, 1_000_000, 1_125_000));
    assert!(rules::step_pace(&flow, 1_000_000, 875_000));
    assert!(rules::step_pace(&flow, 1_000_000, 0));
    assert!(!rules::step_pace(&flow, NONE, 0), "the application has lifted it");
}

#[test]
fn below_a_roof_a_writer_is_20_ms_ahead_and_its_own_bound_stays() {
    let config = config(SendRule::Fit, ReceiveRule::Kernel);
    let roof = |roof, srtt| {
        let fit = bw_fit { roof, ..bw_fit::default() };
        bw_flow { fit, srtt, ..bw_flow::default() }
    };
    assert_eq!(rules::step_unsent(&config, &roof(0, 40_000), 0), 0);
    assert_eq!(rules::step_unsent(&config, &roof(12_500_000, 40_000), 0), 256 << 10, "250 KB");
    assert_eq!(rules::step_unsent(&config, &roof(1_250_000, 40_000), 0), 128 << 10, "at least");
    assert_eq!(rules::step_unsent(&config, &roof(125_000_000, 200_000), 0), 4 << 20, "2.5 MB");
    assert_eq!(rules::step_unsent(&config, &roof(12_500_000, 40_000), 16_384), 0, "the application's");
    let owned = bw_flow { owned: 1, ..roof(12_500_000, 40_000) };
    assert_eq!(rules::step_unsent(&config, &owned, 0), 0);
    let lifted = bw_flow { set_unsent: 128 << 10, ..roof(0, 40_000) };
    assert_eq!(rules::step_unsent(&config, &lifted, 128 << 10), 0);
    let lower = bw_config { usual_unsent: 65_536, ..config };
    assert_eq!(rules::step_unsent(&lower, &roof(12_500_000, 40_000), 0), 0, "the host's is tighter");
}

#[test]
fn a_silent_connection_keeps_room_for_its_window_and_gives_back_the_rest_once() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let mut flow = bw_flow {
        sndbuf: 4 << 20,
        set_sndbuf: 4 << 20,
        rcvbuf: 8 << 20,
        set_rcvbuf: 8 << 20,
        active_at: 1_000_000,
        moved: 5,
        ..bw_flow::default()
    };
    assert!(!rules::is_idle(&config, &mut flow, 5, 2_999_999));
    assert!(rules::is_idle(&config, &mut flow, 5, 3_000_000));
    assert_eq!(rules::give_back_send(&config, &flow), 65_536);
    let offered = rules::memory_of_window(3 << 20, 128);
    assert_eq!(offered, 2 * (3 << 20) + (2 * (3 << 20)) / 8, "a half, and an eighth more");
    assert_eq!(u64::from(rules::give_back_receive(&config, &flow, offered, false)), offered / 2 + 1);
    assert_eq!(rules::give_back_receive(&config, &flow, 0, false), 65_537);
    assert_eq!(rules::give_back_receive(&config, &flow, 0, true), 0, "unread data");
    assert_eq!(rules::give_back_receive(&config, &flow, 16 << 20, false), 0, "no room to give");
    for (what, kept) in [
        ("queued data", bw_flow { send_queued: 1, ..flow }),
        ("not set by bufwise", bw_flow { set_sndbuf: 0, ..flow }),
        ("the application's", bw_flow { owned: SEND, ..flow }),
        ("given back", bw_flow { given_back: SEND, ..flow }),
        ("small", bw_flow { sndbuf: 131_072, ..flow }),
    ] {
        assert_eq!(rules::give_back_send(&config, &kept), 0, "{what}");
    }
    for (what, kept) in [
        ("not set by bufwise", bw_flow { set_rcvbuf: 0, ..flow }),
        ("the application's", bw_flow { owned: RECEIVE, ..flow }),
        ("given back", bw_flow { given_back: RECEIVE, ..flow }),
    ] {
        assert_eq!(rules::give_back_receive(&config, &kept, 0, false), 0, "{what}");
    }
    flow.given_back = SEND | RECEIVE;
    assert!(!rules::is_idle(&config, &mut flow, 6, 9_000_000), "it moves again");
    assert_eq!((flow.given_back, flow.active_at), (0, 9_000_000));
    assert!(rules::is_idle(&config, &mut flow, 6, 11_000_000), "it has not moved since");
}
