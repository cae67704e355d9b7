//! Tests, on the host, of single clauses of a connection's upkeep and of the fast path (`upkeep.h`, `fast.h`). A clause
//! that is deleted or inverted fails a test (`scripts/mutants`).

#![expect(unsafe_code, reason = "calls C")]

use crate::abi::{bw_config, bw_control, bw_fast, bw_flow};
use crate::config::{ReceiveRule, SendRule};
use crate::judged::{View, config, control, is_round_due, rest_rounds, step_receive};
use crate::rules::{self, NONE, Step};

/// Bits that tell which buffer is locked: send, receive.
const SEND: u32 = 1;
const RECEIVE: u32 = 2;

unsafe extern "C" {
    fn bufwise_is_burst(fast: *const bw_fast, received: u32, advmss: u32) -> u32;
    fn bufwise_count_round(fast: *mut bw_fast, received: u32, advmss: u32) -> u32;
    fn bufwise_is_window_due(fast: *const bw_fast, now: u64, window_clamp: u32) -> u32;
    fn bufwise_next_window(config: *const bw_config, flow: *const bw_flow, now: u64) -> u64;
}

fn next_window(rule: ReceiveRule, flow: &bw_flow, now: u64) -> u64 {
    let config = config(SendRule::Kernel, rule);
    // SAFETY: the structures are those of flow.h and outlive the call.
    unsafe { bufwise_next_window(&raw const config, flow, now) }
}

// ---- Grants, ownership ----

#[test]
fn a_grant_has_the_size_that_was_requested_and_a_lock() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let asked = bw_flow {
        requested_sndbuf: 2_000_000,
        requested_rcvbuf: 3_000_000,
        sndbuf: 2_000_000,
        rcvbuf: 3_000_000,
        ..bw_flow::default()
    };
    let settled = |flow: bw_flow, locks| {
        let mut flow = flow;
        rules::settle(&config, &mut flow, locks);
        (flow.set_sndbuf, flow.set_rcvbuf, flow.send_changes)
    };
    assert_eq!(settled(asked, SEND | RECEIVE), (2_000_000, 3_000_000, 1));
    assert_eq!(settled(asked, RECEIVE), (0, 3_000_000, 0));
    assert_eq!(settled(asked, SEND), (2_000_000, 0, 1));
    let other = bw_flow { sndbuf: 1_000_000, rcvbuf: 1_000_000, ..asked };
    assert_eq!(settled(other, SEND | RECEIVE), (0, 0, 0), "autotuning's");
    let none = bw_flow { requested_sndbuf: 0, requested_rcvbuf: 0, ..asked };
    assert_eq!(settled(none, SEND | RECEIVE), (0, 0, 0), "the application's");
    let had = bw_flow { set_sndbuf: 2_000_000, ..asked };
    assert_eq!(settled(had, SEND), (2_000_000, 0, 0), "no change");
}

#[test]
fn a_locked_buffer_that_was_neither_set_nor_requested_is_the_applications() {
    let found = bw_flow { sndbuf: 100_000, rcvbuf: 200_000, ..bw_flow::default() };
    let owned = |take_over, flow: bw_flow, locks| {
        let (config, mut flow) = (bw_config { take_over, ..config(SendRule::Abt, ReceiveRule::Drs) }, flow);
        rules::settle(&config, &mut flow, locks);
        flow.owned
    };
    for locks in [0, SEND, RECEIVE, SEND | RECEIVE] {
        assert_eq!(owned(0, found, locks), locks);
        assert_eq!(owned(1, found, locks), 0, "taken over");
        let requested = bw_flow { requested_sndbuf: 300_000, requested_rcvbuf: 300_000, ..found };
        assert_eq!(owned(0, requested, locks), 0, "it may be a grant of an earlier request");
        let set = bw_flow { set_sndbuf: found.sndbuf, set_rcvbuf: found.rcvbuf, ..found };
        assert_eq!(owned(0, set, locks), 0, "the lock is bufwise's");
    }
}

#[test]
fn a_clamp_of_less_than_half_of_the_kernels_is_the_applications_unless_it_was_set_last() {
    const CLAMP: u32 = 4;
    let mut config = config(SendRule::Kernel, ReceiveRule::Drs);
    let flow = bw_flow { rcvbuf: 1 << 20, rcv_wscale: 7, set_clamp: 400_000, ..bw_flow::default() };
    let settled = |config: &bw_config, flow: bw_flow, clamp, ratio| {
        let mut flow = flow;
        rules::settle_clamp(config, &mut flow, clamp, ratio);
        (flow.owned, flow.set_clamp)
    };
    // Without a ratio the kernel's is a quarter of the memory at least; with one it is that part, and half at most.
    for (ratio, half) in [(0, 131_072), (16, 32_768), (128, 262_144), (255, 262_144)] {
        assert_eq!(settled(&config, flow, half - 1, ratio), (CLAMP, half - 1), "{ratio}");
        assert_eq!(settled(&config, flow, half, ratio), (0, 400_000), "{ratio}");
    }
    let small = bw_flow { set_clamp: 20_000, ..flow };
    assert_eq!(settled(&config, small, 20_000, 128), (0, 20_000), "bufwise's");
    let unscaled = bw_flow { rcv_wscale: 0, ..flow };
    assert_eq!(settled(&config, unscaled, 65_535, 128), (0, 400_000), "no window is larger");
    let theirs = bw_flow { owned: CLAMP, set_clamp: 20_000, rcvbuf: 32_768, ..flow };
    assert_eq!(settled(&config, theirs, 20_000, 128), (CLAMP, 20_000), "as before, whatever the buffer is");
    assert_eq!(settled(&config, theirs, 30_000, 128), (0, 0), "opened");
    let requested = bw_flow { requested_clamp: 50_000, ..flow };
    assert_eq!(settled(&config, requested, 20_000, 128), (0, 400_000), "an earlier one of bufwise's");
    config.take_over = 1;
    assert_eq!(settled(&config, flow, 20_000, 128), (0, 400_000), "taken over");
    // Autotuning keeps a buffer behind such a window, unless bufwise has ended it.
    let sized = [(0, 0), (CLAMP, 0), (CLAMP, 1), (RECEIVE, 1)].map(|(owned, set_rcvbuf)| {
        rules::may_size_receive_buffer(&bw_flow { owned, set_rcvbuf, ..bw_flow::default() })
    });
    assert_eq!(sized, [true, false, true, false]);
}

#[test]
fn a_size_at_the_cap_needs_no_request_and_what_is_set_already_no_step() {
    let mut config = config(SendRule::Abt, ReceiveRule::Drs);
    let cap = u64::from(config.send_cap);
    let new = bw_flow { sampled_at: 5_000_000, sndbuf: 87_040, rcvbuf: 131_072, ..bw_flow::default() };
    let send = |flow: bw_flow, payload| rules::step_send(&config, &mut { flow }, payload, false);
    let receive = |flow: bw_flow, memory| step_receive(&config, &mut { flow }, memory, false);
    let of_cap = Step { value: config.send_cap, request: 0 };
    assert_eq!((send(new, cap), receive(new, 2 * cap)), (of_cap, of_cap));
    let more = Step { request: 2 * config.send_cap + 2, ..of_cap };
    assert_eq!((send(new, cap + 1), receive(new, 2 * cap + 2)), (more, more));
    let same = bw_flow { sndbuf: 2 * config.send_cap, ..new };
    assert_eq!(send(same, cap), of_cap, "autotuning has reached it");
    assert_eq!(send(bw_flow { set_sndbuf: 1, ..same }, cap), Step::default());
    // Buffers that already have the size of the cap are not set again: a request alone.
    let large = bw_flow { sndbuf: 2 * config.send_cap, rcvbuf: 2 * config.receive_cap, ..new };
    let request = Step { value: 0, ..more };
    assert_eq!((send(large, cap + 1), receive(large, 2 * cap + 2)), (request, request));
    let smaller = bw_flow { sndbuf: large.sndbuf - 1, rcvbuf: large.rcvbuf - 1, ..new };
    assert_eq!((send(smaller, cap + 1), receive(smaller, 2 * cap + 2)), (more, more));
    // An open request for either buffer blocks new requests for a second.
    for asked in [bw_flow { requested_rcvbuf: 1, ..new }, bw_flow { requested_sndbuf: 1, ..new }] {
        let asked = bw_flow { requested_at: 4_000_001, ..asked };
        assert_eq!((send(asked, cap + 1), receive(asked, 2 * cap + 2)), (Step::default(), Step::default()));
        let asked = bw_flow { requested_at: 4_000_000, ..asked };
        assert_eq!((send(asked, cap + 1), receive(asked, 2 * cap + 2)), (more, more));
    }
    assert_eq!(send(bw_flow { requested_at: 4_500_000, ..new }, cap + 1), more, "none is open");
    // A callback of the sender may have a time that TCP has read before the receiver's request.
    let asked = bw_flow { requested_rcvbuf: 1, requested_at: 5_000_001, ..new };
    assert_eq!((send(asked, cap + 1), receive(asked, 2 * cap + 2)), (Step::default(), Step::default()));
    // Autotuning has reached the size requested: the buffer is not ours until it is set.
    let reached = bw_flow { sndbuf: 2 * config.send_cap + 2, ..new };
    assert_eq!(send(reached, cap + 1), request);
    assert_eq!(send(bw_flow { set_sndbuf: 1, ..reached }, cap + 1), Step::default());
    // Socket options take less than 1 GiB.
    (config.max_send, config.send_cap, config.receive_cap) = (NONE, u32::MAX, u32::MAX);
    let all = Step { value: (1 << 30) - 1, request: 0 };
    assert_eq!(rules::step_send(&config, &mut { new }, NONE, true), all);
    assert_eq!(step_receive(&config, &mut { new }, NONE, true), all);
    config.max_send = 77_777;
    assert_eq!(rules::step_send(&config, &mut { new }, NONE, false), Step { value: 77_777, request: 0 });
}

#[test]
fn a_buffer_that_was_set_gets_the_cap_while_a_request_for_either_buffer_is_open() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let set = bw_flow {
        sampled_at: 5_000_000,
        requested_at: 4_500_000,
        sndbuf: 87_040,
        set_sndbuf: 87_040,
        rcvbuf: 131_072,
        set_rcvbuf: 131_072,
        ..bw_flow::default()
    };
    let steps = |flow: bw_flow| {
        let (payload, memory) = (u64::from(config.send_cap) + 1, 2 * u64::from(config.receive_cap) + 2);
        let send = rules::step_send(&config, &mut { flow }, payload, false);
        (send, step_receive(&config, &mut { flow }, memory, false))
    };
    let of = |value| Step { value, request: 0 };
    for open in [bw_flow { requested_sndbuf: 1, ..set }, bw_flow { requested_rcvbuf: 1, ..set }] {
        assert_eq!(steps(open), (of(config.send_cap), of(config.receive_cap)));
        let large = bw_flow { sndbuf: 2 * config.send_cap, rcvbuf: 2 * config.receive_cap, ..open };
        assert_eq!(steps(large), (of(0), of(0)), "they have that size");
        let unset = bw_flow { set_sndbuf: 0, set_rcvbuf: 0, ..open };
        assert_eq!(steps(unset), (of(0), of(0)), "autotuning may grow them beyond the cap");
    }
}

/// A program's setsockopt() would cut the buffer to the cap, below what is under way or on offer.
#[test]
fn without_user_space_a_buffer_beyond_the_cap_keeps_what_was_granted() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let granted = bw_flow {
        sndbuf: 4 << 20,
        set_sndbuf: 4 << 20,
        rcvbuf: 4 << 20,
        set_rcvbuf: 4 << 20,
        ..bw_flow::default()
    };
    let send = |payload| rules::step_send(&config, &mut { granted }, payload, true);
    let receive = |memory| step_receive(&config, &mut { granted }, memory, true);
    for more_or_less in [8 << 20, 3 << 20] {
        let steps = (send(more_or_less / 2), receive(more_or_less));
        assert_eq!(steps, (Step::default(), Step::default()), "{more_or_less}");
    }
    let of_cap = Step { value: config.send_cap, request: 0 };
    assert_eq!((send(config.send_cap.into()), receive(2 * u64::from(config.receive_cap))), (of_cap, of_cap));
    let small = bw_flow { sndbuf: 87_040, rcvbuf: 131_072, ..bw_flow::default() };
    let steps = (
        rules::step_send(&config, &mut { small }, 8 << 20, true),
        step_receive(&config, &mut { small }, 8 << 20, true),
    );
    assert_eq!(steps, (of_cap, of_cap), "as far as a program may set it");
}

#[test]
fn a_cap_that_was_lowered_since_the_load_shows_by_a_size_that_was_cut() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let cut = bw_flow {
        sndbuf: 100_000,
        set_sndbuf: 100_000,
        cut_sndbuf: 100_000,
        rcvbuf: 80_000,
        set_rcvbuf: 80_000,
        cut_rcvbuf: 80_000,
        ..bw_flow::default()
    };
    let send = |flow: bw_flow, payload| rules::step_send(&config, &mut { flow }, payload, false);
    let receive = |flow: bw_flow, memory| step_receive(&config, &mut { flow }, memory, false);
    let requested = |value, request| Step { value, request };
    assert_eq!((send(cut, 60_000), receive(cut, 90_000)), (requested(0, 120_000), requested(0, 90_000)));
    let smaller = bw_flow { sndbuf: 50_000, rcvbuf: 50_000, ..cut };
    let steps = (send(smaller, 60_000), receive(smaller, 90_000));
    assert_eq!(steps, (requested(50_000, 120_000), requested(40_000, 90_000)));
    assert_eq!((send(cut, 40_000), receive(cut, 80_000)), (requested(40_000, 0), requested(40_000, 0)));
    let granted = bw_flow { sndbuf: 120_000, set_sndbuf: 120_000, ..cut };
    assert_eq!((send(granted, 60_000), send(granted, 55_000)), (Step::default(), requested(0, 110_000)));
    // A cap that has risen since does not count.
    let before = bw_flow { cut_sndbuf: u32::MAX, ..cut };
    assert_eq!(send(before, u64::from(config.send_cap) + 1).value, config.send_cap);
}

/// A payload of 0 is a decision; a value of 0 would stand for no step, and a large buffer would stay.
#[test]
fn a_send_buffer_is_never_smaller_than_the_kernels_smallest() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let step = |sndbuf, payload| {
        let mut flow = bw_flow { sndbuf, set_sndbuf: sndbuf, ..bw_flow::default() };
        (rules::step_send(&config, &mut flow, payload, false).value, flow.decided_send)
    };
    let large = 4 << 20;
    assert_eq!([0, 2_303, 2_304].map(|payload| step(large, payload)), [(2_304, 2_304); 3]);
    assert_eq!(step(large, 2_305), (2_305, 2_305));
    assert_eq!(step(4_608, 0), (0, 2_304), "it has that size");
}

// ---- Pace, unsent bytes ----

#[test]
fn a_small_change_of_the_pace_counts_where_it_is_fits_roof() {
    let mut flow = bw_flow { set_pace: 1_000_000, ..bw_flow::default() };
    assert!(!rules::step_pace(&flow, 1_000_000, 1_000_001));
    flow.fit.roof = 1_000_001;
    assert!(rules::step_pace(&flow, 1_000_000, 1_000_001));
    assert!(!rules::step_pace(&flow, 1_000_001, 1_000_001), "the application has set it");
    flow.fit.roof = 1_000_000;
    assert!(!rules::step_pace(&flow, 1_000_000, 1_000_000), "it has that rate");
}

#[test]
fn unsent_bytes_are_bound_below_the_hosts_bound_and_not_where_nothing_is_to_be_set() {
    let mut flow = bw_flow { srtt: 40_000, ..bw_flow::default() };
    flow.fit.roof = 12_500_000;
    let unsent = |usual_unsent, observe_only, present| {
        let config = bw_config { usual_unsent, observe_only, ..config(SendRule::Fit, ReceiveRule::Kernel) };
        rules::step_unsent(&config, &flow, present)
    };
    assert_eq!((unsent((256 << 10) + 1, 0, 0), unsent(256 << 10, 0, 0)), (256 << 10, 0));
    assert_eq!((unsent(NONE as u32, 1, 0), unsent(NONE as u32, 0, 1)), (0, 0));
}

// ---- Giving back ----

#[test]
fn what_the_kernel_or_a_choice_has_sized_is_not_given_back() {
    let flow = bw_flow {
        sndbuf: 4 << 20,
        set_sndbuf: 4 << 20,
        rcvbuf: 8 << 20,
        set_rcvbuf: 8 << 20,
        ..bw_flow::default()
    };
    let given = |send, receive| {
        let config = config(send, receive);
        (rules::give_back_send(&config, &flow), rules::give_back_receive(&config, &flow, 0, false))
    };
    assert_eq!(given(SendRule::Kernel, ReceiveRule::Kernel), (0, 0));
    assert_eq!(given(SendRule::Fixed, ReceiveRule::Fixed), (0, 0));
    assert_eq!(given(SendRule::Abt, ReceiveRule::Drs), (65_536, 65_537));
}

#[test]
fn a_receive_buffer_is_given_back_that_is_larger_than_what_stays() {
    let config = config(SendRule::Abt, ReceiveRule::Drs);
    let given = |rcvbuf, in_use| {
        let flow = bw_flow { rcvbuf, set_rcvbuf: rcvbuf, ..bw_flow::default() };
        rules::give_back_receive(&config, &flow, in_use, false)
    };
    assert_eq!((given(131_074, 0), given(131_075, 0)), (0, 65_537));
    assert_eq!(given(u32::MAX, 1 << 40), (1 << 30) - 1, "the largest option");
    let behind_a_hole =
        bw_flow { rcvbuf: 1 << 20, set_rcvbuf: 1 << 20, receive_queued: 1, ..bw_flow::default() };
    assert_eq!((given(1 << 20, 0), rules::give_back_receive(&config, &behind_a_hole, 0, false)), (65_537, 0));
}

// ---- The fast path ----

#[test]
fn a_round_trip_is_due_by_time_queue_losses_window_buffer_or_application() {
    let due =
        |rule, fast: &bw_fast, view: &View| is_round_due(&config(rule, ReceiveRule::Kernel), fast, view);
    let fast = bw_fast {
        sampled_at: 1_000_000,
        sndbuf: 500_000,
        least_cwnd: 10,
        most_cwnd: 20,
        send_queued: 200_000,
        ..bw_fast::default()
    };
    let same = View { now: 1_001_000, cwnd: 15, sndbuf: 500_000, send_queued: 200_000, ..View::default() };
    let queue = |queued| View { send_queued: queued, ..same };
    let cwnd = |cwnd| View { cwnd, ..same };
    let abt = |view: View| due(SendRule::Abt, &fast, &view);
    assert!(!abt(same));
    assert!(abt(View { now: 1_100_000, ..same }) && !abt(View { now: 1_099_999, ..same }));
    assert!(abt(queue(0)) && !abt(View { now: 1_000_999, ..queue(0) }));
    assert!(!abt(queue(67_232)) && abt(queue(67_231)), "half of it, and a buffer");
    assert!(!abt(queue(465_536)) && abt(queue(465_537)), "twice as much, and a buffer");
    assert!(!due(SendRule::Abt, &bw_fast { send_queued: 0, ..fast }, &queue(0)), "it was empty");
    assert!(!abt(cwnd(10)) && abt(cwnd(9)) && !abt(cwnd(20)) && abt(cwnd(21)));
    assert!(abt(View { sndbuf: 500_001, ..same }));
    assert!(due(SendRule::Kernel, &fast, &queue(0)) && !due(SendRule::Kernel, &fast, &cwnd(9)));
    let lost = View { retransmitted: 1, ..same };
    assert!(!abt(lost) && due(SendRule::Sabt, &fast, &lost) && !due(SendRule::Sabt, &fast, &same));
    let limited = bw_fast { app_limited: 1, ..fast };
    assert!(due(SendRule::Abt, &limited, &same));
    assert!(!due(SendRule::Abt, &limited, &View { app_limited: 1, ..same }));
    assert!(!abt(View { app_limited: 1, ..same }));
}

/// Returns the fast-path record after a sample of a connection with 1,000-byte segments: the time of the sample (0:
/// every round trip is due), the least and the largest congestion window (segments), and whether the application limits
/// the sender.
fn rest(config: &bw_config, all: &bw_control, flow: &bw_flow) -> (u64, u32, u32, u32) {
    let mut fast =
        bw_fast { sampled_at: 1, least_cwnd: 2, most_cwnd: 3, app_limited: 4, ..bw_fast::default() };
    rest_rounds(config, all, &mut fast, flow);
    assert_eq!((fast.sndbuf, fast.send_queued, fast.retransmitted), (500_000, 200_000, 6));
    (fast.sampled_at, fast.least_cwnd, fast.most_cwnd, fast.app_limited.into())
}

#[test]
fn a_decision_stands_for_the_windows_of_abts_band_and_not_in_a_start() {
    let mut flow = bw_flow {
        sampled_at: 9_000_000,
        mss: 1_000,
        sndbuf: 500_000,
        send_queued: 200_000,
        retrans: 6,
        bytes_acked: 30_000,
        ..bw_flow::default()
    };
    flow.abt.net_target = 41_001;
    flow.bound.since_growth = 3;
    let with = |rule| bw_config { small_document: 30_000, ..config(rule, ReceiveRule::Kernel) };
    let calm = control();
    for rule in [SendRule::Kernel, SendRule::Fixed] {
        assert_eq!(
            rest(&with(rule), &bw_control { pressure: 1, ..calm }, &flow),
            (9_000_000, 0, u32::MAX, 0)
        );
    }
    assert_eq!(rest(&with(SendRule::Abt), &calm, &flow), (9_000_000, 11, 20, 0));
    let pressed = bw_control { pressure: 1, ..calm };
    assert_eq!(rest(&with(SendRule::Abt), &pressed, &flow), (0, 0, u32::MAX, 0));
    let small = bw_flow { bytes_acked: 29_999, ..flow };
    assert_eq!(rest(&with(SendRule::Abt), &calm, &small), (0, 0, u32::MAX, 0));
    // The target is at its maximum.
    let most = bw_config { max_send: 41_001, ..with(SendRule::Abt) };
    assert_eq!(rest(&most, &calm, &flow), (9_000_000, 11, u32::MAX, 0));
    let limited = bw_flow { app_limited: 1, ..flow };
    assert_eq!(rest(&with(SendRule::Abt), &calm, &limited), (9_000_000, 11, u32::MAX, 1));
    // After the ramp, fit judges its roof every round trip.
    for (phase, at) in [(1, 9_000_000), (2, 0)] {
        flow.fit.phase = phase;
        assert_eq!(rest(&with(SendRule::Fit), &calm, &flow), (at, 11, 20, 0));
        assert_eq!(rest(&with(SendRule::Abt), &calm, &flow), (9_000_000, 11, 20, 0));
    }
    // In the bound's start phase every round trip counts, unless the application limits the sender.
    flow.bound.since_growth = 2;
    assert_eq!(rest(&with(SendRule::Abt), &calm, &flow), (0, 11, 20, 0));
    let limited = bw_flow { app_limited: 1, ..flow };
    assert_eq!(rest(&with(SendRule::Abt), &calm, &limited), (9_000_000, 11, u32::MAX, 1));
}

#[test]
fn a_segment_is_due_by_time_and_by_a_clamp_that_another_has_set() {
    // SAFETY: the structure is that of fast.h and outlives the call.
    let due = |fast: bw_fast, now, clamp| unsafe { bufwise_is_window_due(&raw const fast, now, clamp) != 0 };
    let fast = bw_fast { next_window: 1_000, clamp: 5_000, ..bw_fast::default() };
    assert!(!due(fast, 999, 5_000) && due(fast, 1_000, 5_000) && due(fast, 999, 5_001));
    assert!(!due(bw_fast { clamp: 0, ..fast }, 999, 5_001), "none was set");
}

/// `enum bw_watch`.
const AS_BEFORE: u32 = 0;
const WATCH: u32 = 1;
const REST: u32 = 2;

fn count_round(fast: &mut bw_fast, received: u32) -> u32 {
    // SAFETY: the structure is that of fast.h and outlives the call.
    unsafe { bufwise_count_round(fast, received, 1_000) }
}

#[test]
fn a_receiver_rests_after_256_round_trips_with_an_initial_window_at_most() {
    // The counter of bytes wraps around.
    let mut fast = bw_fast { received: u32::MAX - 5, ..bw_fast::default() };
    for round in 0..256_u32 {
        let received = fast.received.wrapping_add(10_000);
        assert_eq!(count_round(&mut fast, received), AS_BEFORE, "round trip {round}");
    }
    let received = fast.received;
    assert_eq!(count_round(&mut fast, received), REST);
    assert_eq!(count_round(&mut fast, received.wrapping_add(10_000)), REST);
    assert_eq!(count_round(&mut fast, received.wrapping_add(20_001)), WATCH, "an initial window and a byte");
    assert_eq!((count_round(&mut fast, received.wrapping_add(20_001)), fast.rounds), (AS_BEFORE, 1));
    let mut set = bw_fast { clamp: 1, rounds: 255, ..bw_fast::default() };
    assert_eq!((count_round(&mut set, 0), set.rounds), (WATCH, 0), "its window is set");
}

#[test]
fn more_than_a_little_is_due_at_once_where_no_window_is_set() {
    let due = |fast: bw_fast, received, advmss| {
        // SAFETY: the structure is that of fast.h and outlives the call.
        unsafe { bufwise_is_burst(&raw const fast, received, advmss) != 0 }
    };
    let fast = bw_fast { received: 500, ..bw_fast::default() };
    assert!(!due(fast, 10_500, 1_000) && due(fast, 10_501, 1_000));
    assert!(!due(bw_fast { clamp: 1, ..fast }, 10_501, 1_000));
    // Over loopback ten segments are more than the first window.
    assert!(!due(fast, 66_035, 65_483) && due(fast, 66_036, 65_483));
}

#[test]
fn the_next_window_is_measured_when_its_rule_has_something_to_measure() {
    const NOW: u64 = 5_000_000;
    let path = |min_rtt| bw_flow { min_rtt, ..bw_flow::default() };
    let drs = |rtt, began: u64| {
        let mut flow = path(rtt);
        flow.drs.began_at = began;
        next_window(ReceiveRule::Drs, &flow, NOW) - NOW
    };
    assert_eq!(drs(40_000, NOW - 10_000), 30_000, "the round trip's end");
    assert_eq!(drs(400_000, NOW - 10_000), 100_000, "a tenth of a second at most");
    assert_eq!(drs(40_000, NOW - 40_000), 10_000, "a quarter of a round trip after it");
    assert_eq!(drs(8_000, NOW - 9_000), 2_000);
    assert_eq!(drs(40_000, NOW - 39_999), 500, "not at once");
    let sobas = |rtt, start: u64, length| {
        let mut flow = path(rtt);
        (flow.sobas.start, flow.sobas.length) = (start, length);
        next_window(ReceiveRule::Sobas, &flow, NOW) - NOW
    };
    assert_eq!(sobas(8_000, NOW - 9_000, 10_000), 1_000, "the rate window's end");
    assert_eq!(sobas(8_000, NOW - 9_000, 20_000), 2_000, "a quarter of a round trip");
    assert_eq!(sobas(8_000, NOW - 10_000, 10_000), 2_000, "none is open");
    assert_eq!(sobas(400_000, NOW, 800_000), 10_000, "a slot of losses at most");
}

#[test]
fn fit_samples_closely_until_it_knows_the_capacity() {
    let distance = |phase, min_rtt, segs_in| {
        let mut flow = bw_flow { min_rtt, segs_in, ..bw_flow::default() };
        flow.fit_window.phase = phase;
        next_window(ReceiveRule::Fit, &flow, 5_000_000) - 5_000_000
    };
    let start = |rtt| distance(0, rtt, 4_096);
    assert_eq!([start(64_000), start(2_000), start(1_000_000)], [500, 100, 1_000]);
    assert_eq!([start(1_999), distance(0, 64_000, 4_097)], [500, 16_000], "nothing to see");
    let ramp = |rtt| distance(1, rtt, 4_097);
    assert_eq!([ramp(64_000), ramp(2_000), ramp(1_000_000)], [2_000, 100, 10_000]);
    let follow = |rtt| distance(2, rtt, 0);
    assert_eq!([follow(64_000), follow(1_000), follow(1_000_000)], [16_000, 500, 100_000]);
}
