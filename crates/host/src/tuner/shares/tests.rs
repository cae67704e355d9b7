//! Shares of small hosts, computed by hand; and records of connections for other tests.

mod held;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use bufwise_units::Sample;

/// A moment at which connections that never moved data are not at rest yet.
pub(crate) const NOW: Micros = Micros::from_secs(1);

pub(crate) fn flow(cookie: u64, net_target: u64) -> FlowState {
    let address = "127.0.0.1:1".parse().unwrap();
    FlowState {
        cookie,
        local: address,
        peer: address,
        initiator: true,
        closed: false,
        may_send: true,
        opened_at: Micros::ZERO,
        began_at: Micros::ZERO,
        seen_at: Micros::ZERO,
        sample: Sample::default(),
        bytes_sent: Bytes::ZERO,
        set_send_buffer: None,
        set_receive_buffer: None,
        requested_send_buffer: None,
        requested_receive_buffer: None,
        set_window: None,
        set_pacing: None,
        set_unsent: None,
        decided_send: None,
        decided_window: None,
        send_changes: 0,
        window_changes: 0,
        owned: bufwise_bpf::Owned::default(),
        net_target: Bytes(net_target),
        send_queued_max: Bytes::ZERO,
        last_buffer: Bytes(65_536),
        sobas: bufwise_bpf::SobasState::Estimating,
        drs_largest: Bytes::ZERO,
        fit: bufwise_bpf::FitState::default(),
        samples: 0,
        origin: bufwise_bpf::Origin::default(),
        swept_at: None,
        active_at: Micros::ZERO,
        given_back: false,
        program_groups: None,
    }
}

#[test]
fn abt_bounds_the_large_and_meets_the_small() {
    let mut book = ShareBook::new(PolicyKind::Abt, Bytes(375_000), Bytes::ZERO);
    let flows = [flow(1, 10_000), flow(2, 100_000), flow(3, 400_000)];
    let round = book.round(&flows, Bytes(100_000), NOW);
    let newest_at = flows[0].began_at;
    let (level, newcomer) = (Some(Bytes(140_000)), Some(Bytes(75_000)));
    assert_eq!(round.shares, Shares { level, newcomer, newest_at, window: None, pressure: false });
    assert!(round.orders.is_empty());
    assert!(book.round(&flows, Bytes(375_001), NOW).shares.pressure);
}

#[test]
fn connections_that_leave_without_a_record_of_their_end_are_forgotten() {
    let mut book = ShareBook::new(PolicyKind::Sabt, Bytes(1 << 30), Bytes::ZERO);
    for turn in 0..20 {
        let flows: Vec<FlowState> = (0..50).map(|number| flow(turn * 50 + number, 10_000)).collect();
        book.observe(&flows, NOW);
        book.round(&flows, Bytes::ZERO, NOW);
        assert!(flows.iter().all(|flow| book.models.contains_key(&flow.cookie)));
    }
    // Twice the sample's and 64, and orders of one more round.
    assert!(book.models.len() <= 164 && book.orders.len() <= 214, "{}", book.orders.len());
}

#[test]
fn a_window_that_is_not_filled_claims_no_memory() {
    let mut book = ShareBook::new(PolicyKind::Abt, Bytes(1_250_000), Bytes::ZERO);
    let mut flows = [flow(1, 4_000_000), flow(2, 400_000)];
    // 1 MB/s over 50 ms is 50,000 bytes in a round trip; with room to grow, 200,000.
    flows[0].sample.srtt = Micros::from_millis(50);
    flows[0].sample.delivery_rate = Rate(1_000_000);
    // Memory demands are 400,000 and 800,000 of 1,000,000; without the delivery rate the first would take half.
    assert_eq!(book.round(&flows, Bytes::ZERO, NOW).shares.level, Some(Bytes(600_000)));
    flows[0].sample.delivery_rate = Rate(1);
    assert_eq!(used(&flows[0], NOW), NEWCOMER, "a rate of next to nothing leaves room for a begin");
}

#[test]
fn who_answers_small_requests_leaves_the_memory_to_a_download() {
    let later = NOW + LATELY;
    let level = |queued: u64, opened_at: Micros| {
        let mut book = ShareBook::new(PolicyKind::Abt, Bytes(16 << 20), Bytes::ZERO);
        // Windows of ten segments, of which a round trip takes 2 KB.
        let answers = |cookie| {
            let mut flow = FlowState { opened_at, seen_at: later, ..flow(cookie, 28_960) };
            flow.sample.srtt = Micros::from_millis(50);
            flow.sample.delivery_rate = Rate(40_000);
            flow.sample.send_queued = Bytes(queued);
            flow
        };
        let download = FlowState { seen_at: later, ..flow(1_000, 4_000_000) };
        let flows: Vec<FlowState> = (0..400).map(answers).chain([download]).collect();
        book.round(&flows, Bytes::ZERO, later).shares.level
    };
    // 16,384 of memory each, of 13,421,772.
    assert_eq!(level(0, Micros::ZERO), Some(Bytes(13_421_772 - 400 * 16_384)));
    // The same level for all: a connection that is busy, or new, may need its window in a moment.
    for all in [level(1, Micros::ZERO), level(0, later)] {
        assert!(all < Some(Bytes(40_000)), "{all:?}");
    }
}

#[test]
fn the_small_that_are_busy_keep_room_to_grow() {
    let mut book = ShareBook::new(PolicyKind::Abt, Bytes(375_000), Bytes::ZERO);
    let mut flows = [flow(1, 10_000), flow(2, 40_000), flow(3, 400_000)];
    flows.iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(1));
    // Memory demands are 20, 80 and 800 KB of 300 KB; with room to grow 80 and 320.
    assert_eq!(book.round(&flows, Bytes::ZERO, NOW).shares.level, Some(Bytes(110_000)));
    flows[0].sample.send_queued = Bytes::ZERO;
    let level = book.round(&flows, Bytes::ZERO, NOW).shares.level;
    assert_eq!(level, Some(Bytes(140_000)), "an empty queue leaves its part to the others");
}

#[test]
fn connections_that_only_control_others_do_not_raise_the_level() {
    let mut book = ShareBook::new(PolicyKind::Abt, Bytes(524_288), Bytes::ZERO);
    // As seen on a path of 3 ms: two transfers, one of them after a loss, and their idle control connections.
    let mut flows = [flow(1, 206_400), flow(2, 34_400), flow(3, 0), flow(4, 0)];
    flows[..2].iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(100_000));
    assert_eq!(
        book.round(&flows, Bytes::ZERO, NOW).shares.level,
        Some(Bytes(209_715)),
        "half of what is shared"
    );
}

#[test]
fn connections_at_rest_leave_the_memory_to_the_busy() {
    let budget = Bytes(16 << 20);
    let shared = budget.scaled(4, 5);
    let later = NOW + LATELY;
    let busy = FlowState { seen_at: later, ..flow(1_000, 2_000_000) };
    let with_idle = |send_queued: u64, moved_at: Micros| -> Vec<FlowState> {
        let one = |cookie| {
            let mut idle = FlowState { seen_at: moved_at, ..flow(cookie, 60_000) };
            idle.sample.send_queued = Bytes(send_queued);
            idle
        };
        (0..200).map(one).chain([busy]).collect()
    };
    let level = |policy, flows: &[FlowState]| {
        ShareBook::new(policy, budget, Bytes::ZERO).round(flows, Bytes::ZERO, later).shares.level
    };
    let alone = level(PolicyKind::Abt, &[busy]);
    assert!(alone >= Some(Bytes(8_000_000)), "{alone:?}");
    assert_eq!(level(PolicyKind::Abt, &with_idle(0, NOW)), alone);
    assert_eq!(level(PolicyKind::Eq, &with_idle(0, NOW)), Some(shared));
    for busy_too in [with_idle(1, NOW), with_idle(0, later)] {
        assert_eq!(level(PolicyKind::Abt, &busy_too), Some(shared.scaled(1, 201)));
    }
    // A sweep samples all of them.
    let swept: Vec<FlowState> = with_idle(0, later)
        .into_iter()
        .map(|flow| {
            if flow.cookie == 1_000 {
                flow
            } else {
                FlowState { swept_at: Some(later), active_at: NOW, ..flow }
            }
        })
        .collect();
    assert_eq!(level(PolicyKind::Abt, &swept), alone);
    assert_eq!(ShareBook::senders(&swept, later), 0, "nothing was sent");
    let round = ShareBook::new(PolicyKind::Sabt, budget, Bytes::ZERO).round(&swept, Bytes::ZERO, later);
    assert_eq!(round.orders.len(), 1);
    assert!(round.orders[0].1.limit >= alone, "{round:?}", round = round.orders);
}

#[test]
fn growth_until_the_next_round_is_bounded_and_cuts_nobody() {
    let mut book = ShareBook::new(PolicyKind::Abt, Bytes(1_250_000), Bytes::ZERO);
    let level = |book: &mut ShareBook, flows: &[FlowState]| book.round(flows, Bytes::ZERO, NOW).shares.level;
    assert_eq!(level(&mut book, &[flow(1, 1_000)]), Some(Bytes(1_000_000)), "alone");
    assert_eq!(
        level(&mut book, &[flow(1, 1_000), flow(2, 50_000)]),
        Some(Bytes(500_000)),
        "both may grow to that"
    );
    let four: Vec<FlowState> = (0..4).map(|cookie| flow(cookie, 50_000)).collect();
    assert_eq!(level(&mut book, &four), Some(Bytes(250_000)));
    assert_eq!(level(&mut book, &[flow(1, 300_000), flow(2, 100_000)]), Some(Bytes(600_000)));
}

#[test]
fn who_comes_first_finds_a_bound() {
    for policy in [PolicyKind::Eq, PolicyKind::Abt, PolicyKind::Sabt] {
        let mut book = ShareBook::new(policy, Bytes(1_250_000), Bytes::ZERO);
        assert_eq!(book.round(&[], Bytes::ZERO, NOW).shares.level, Some(Bytes(250_000)), "{policy}");
    }
}

#[test]
fn sabt_leaves_nobody_unbounded_and_cuts_nobody_while_the_memory_suffices() {
    let mut book = ShareBook::new(PolicyKind::Sabt, Bytes(1_250_000), Bytes::ZERO);
    let round = book.round(&[flow(1, 50_000), flow(2, 300_000)], Bytes::ZERO, NOW);
    let limits: Vec<u64> = round.orders.iter().map(|(_, order)| order.limit.unwrap().0).collect();
    assert!(limits[0] >= 100_000 && limits[1] >= 600_000, "{limits:?}");
    assert!(limits.iter().sum::<u64>() <= 1_250_000, "{limits:?}");
    assert_eq!(round.shares.level, Some(Bytes(250_000)), "for a newcomer");
}

#[test]
fn abt_as_published_moves_a_round_at_a_time_over_the_whole_budget() {
    let mut book = ShareBook::new(PolicyKind::AbtPublished, Bytes(300_000), Bytes::ZERO);
    assert_eq!(book.round(&[], Bytes::ZERO, NOW).shares.level, None, "no connection, no limit");
    let mut flows = [flow(1, 10_000), flow(2, 100_000), flow(3, 400_000)];
    flows.iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(1));
    // A window that is not filled still counts.
    flows[2].sample.srtt = Micros::from_millis(50);
    flows[2].sample.delivery_rate = Rate(1);
    let levels = [(); 4].map(|()| book.round(&flows, Bytes::ZERO, NOW).shares.level);
    // Matsuo's example: at first all count as small, so each gets a third; then the other two share what the first
    // leaves.
    assert_eq!(levels, [100_000, 140_000, 140_000, 140_000].map(|level| Some(Bytes(level))));
}

#[test]
fn sabt_as_published_orders_whole_packets_and_knows_no_pressure() {
    let mut book = ShareBook::new(PolicyKind::SabtPublished, Bytes(300_000), Bytes::ZERO);
    let mut flows = [flow(1, 10_000), flow(2, 100_000), flow(3, 400_000)];
    flows.iter_mut().for_each(|flow| flow.sample.mss = Bytes(1_000));
    let round = book.round(&flows, Bytes(1_000_000), NOW);
    let limits: Vec<u64> = round.orders.iter().map(|(_, order)| order.limit.unwrap().0).collect();
    assert_eq!(limits[1..], [116_000, 164_000], "Matsuo's example, in packets of 2,000 bytes of memory");
    assert!(limits.iter().all(|limit| limit % 2_000 == 0), "{limits:?}");
    assert_eq!(round.shares, Shares { level: Some(Bytes(75_000)), ..Shares::default() });
    let enough = ShareBook::new(PolicyKind::SabtPublished, Bytes(2_000_000), Bytes::ZERO).round(
        &flows,
        Bytes::ZERO,
        NOW,
    );
    let limits: Vec<Option<Bytes>> = enough.orders.iter().map(|(_, order)| order.limit).collect();
    assert_eq!(limits, [None::<Bytes>; 3], "what it demands, and no more");
}

#[test]
fn a_policy_without_shares_knows_no_pressure() {
    let is_pressed = |policy| {
        let mut book = ShareBook::new(policy, Bytes(300_000), Bytes::ZERO);
        book.round(&[flow(1, 1)], Bytes(300_001), NOW).shares.pressure
    };
    assert!(is_pressed(PolicyKind::Eq));
    for policy in [PolicyKind::Kernel, PolicyKind::Fixed(Bytes(65_536))] {
        assert!(!is_pressed(policy), "{policy}: every round trip would be sampled for nothing");
    }
}

#[test]
fn newcomers_beside_few_find_the_part_of_one_more() {
    let budget = Bytes(1_000_000);
    let round = |policy, number: u64, queued: u64| {
        let one = |cookie| FlowState { began_at: Micros(cookie), ..flow(cookie, 1_000_000) };
        let mut flows: Vec<FlowState> = (1..=number).map(one).collect();
        flows.iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(queued));
        ShareBook::new(policy, budget, Bytes::ZERO).round(&flows, Bytes::ZERO, NOW).shares
    };
    for policy in [PolicyKind::Abt, PolicyKind::Eq, PolicyKind::Fit] {
        let one = round(policy, 1, 1);
        let bounds = (one.level, one.newcomer, one.newest_at);
        assert_eq!(bounds, (Some(Bytes(800_000)), Some(Bytes(100_000)), Micros(1)), "{policy}");
        assert_eq!(round(policy, 1, 0).newcomer, Some(Bytes(200_000)), "{policy}: beside idle ones");
        assert_eq!(round(policy, 9, 1).newcomer, Some(Bytes(80_000)), "{policy}");
        assert_eq!([256, 257].map(|number| round(policy, number, 1).newcomer.is_some()), [true, false]);
    }
    assert_eq!(round(PolicyKind::AbtPublished, 1, 1).newcomer, None);
}

#[test]
fn a_connection_that_waits_has_a_part_for_a_second_and_always_a_newcomers_bound() {
    let mut book = ShareBook::new(PolicyKind::Abt, Bytes(2 << 20), Bytes::ZERO);
    let opened = Micros(2);
    let busy = |cookie| FlowState { opened_at: Micros(1), began_at: Micros(1), ..flow(cookie, 40_000) };
    let waiting = |cookie| FlowState { opened_at: opened, began_at: opened, ..flow(cookie, 0) };
    let mut flows: Vec<FlowState> = (0..10).map(busy).chain((10..20).map(waiting)).collect();
    flows[..10].iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(80_000));
    let mut at = |now| book.round(&flows, Bytes::ZERO, now).shares;
    let budget = 2_u64 << 20;
    let level = |shares: Shares| shares.level.unwrap().0;
    let first = at(opened);
    assert!(level(first) * 10 + 10 * NEWCOMER.0 <= budget, "{first:?}: room for ten that begin");
    let later = at(opened + ABOUT_TO_BEGIN);
    assert_eq!(
        level(later),
        budget * 4 / 5 / 10,
        "after a second the ten busy ones share the part of the waiting"
    );
    for shares in [first, later] {
        assert!(shares.newest_at < opened, "{shares:?}");
        assert!(shares.newcomer.unwrap().0 <= budget * 4 / 5 / 21, "{shares:?}");
    }
}

#[test]
fn sabt_as_published_orders_the_mean_window_without_room_for_swings() {
    let ordered = |policy| {
        let mut book = ShareBook::new(policy, Bytes(1 << 30), Bytes::ZERO);
        let mut flows = [flow(1, 1_000_000)];
        for second in 0..3 {
            let sample = &mut flows[0].sample;
            (sample.mss, sample.cwnd) = (Bytes(1_448), Bytes(1_000_000));
            (sample.srtt, sample.rto) = (Micros::from_millis(100), Micros::from_millis(300));
            (sample.segs_out, sample.segs_lost) = (1 + 10_000 * second, 100 * second);
            sample.loss_events = Some(10 * second);
            book.observe(&flows, Micros::from_secs(second));
        }
        book.round(&flows, Bytes::ZERO, NOW).orders[0].1.demand.0
    };
    let (ours, published) = (ordered(PolicyKind::Sabt), ordered(PolicyKind::SabtPublished));
    assert_eq!(published % 1_448, 0);
    // Ten times the losses, and two packets per acknowledgement: the square root of twenty, and the swings.
    assert!((14..24).contains(&(ours / published)), "{ours} and {published}");
}

#[test]
fn a_connection_at_rest_has_a_newcomers_bound_instead_of_its_last_order() {
    let budget = Bytes(100 << 20);
    let mut book = ShareBook::new(PolicyKind::Sabt, budget, Bytes::ZERO);
    let mut flows = [flow(1, 4_000_000), flow(2, 4_000_000)];
    flows.iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(1));
    let limit = |round: &Round| {
        round.orders.iter().find(|(cookie, _)| *cookie == 1).and_then(|(_, order)| order.limit)
    };
    let before = book.round(&flows, Bytes::ZERO, NOW);
    assert!(limit(&before) >= Some(budget.scaled(1, 4)) && !before.soon, "{:?}", before.orders);
    let later = NOW + LATELY;
    flows[0].sample.send_queued = Bytes::ZERO;
    flows[1].seen_at = later;
    let after = book.round(&flows, Bytes::ZERO, later);
    // Together with one that opens meanwhile it may hold an eighth of what is shared.
    assert_eq!(limit(&after), Some(budget.scaled(1, 20)));
    assert_eq!(after.shares.level, limit(&after), "as a newcomer");
    assert!(after.soon, "it may begin");
}

#[test]
fn small_documents_take_no_part() {
    let mut book = ShareBook::new(PolicyKind::Eq, Bytes(500_000), Bytes(8_192));
    let mut flows = [flow(1, 1), flow(2, 1), flow(3, 1)];
    flows[0].sample.bytes_acked = Bytes(8_192);
    flows[1].sample.bytes_acked = Bytes(8_191);
    assert_eq!(book.round(&flows, Bytes::ZERO, NOW).shares.level, Some(Bytes(400_000)));
}

#[test]
fn connections_that_size_their_own_buffer_or_are_over_take_no_share() {
    let mut book = ShareBook::new(PolicyKind::Eq, Bytes(500_000), Bytes::ZERO);
    let mut flows = [flow(1, 1), flow(2, 1), flow(3, 1)];
    flows[1].owned.send = true;
    // FIN_WAIT1 and beyond.
    flows[2].may_send = false;
    assert_eq!(book.round(&flows, Bytes::ZERO, NOW).shares.level, Some(Bytes(400_000)));
}

#[test]
fn sabt_orders_by_connection_and_leaves_slow_start_to_the_kernels_side() {
    let mut book = ShareBook::new(PolicyKind::Sabt, Bytes(375_000), Bytes::ZERO);
    let flows = [flow(1, 10_000), flow(2, 100_000), flow(3, 400_000)];
    let limits: Vec<u64> = book
        .round(&flows, Bytes::ZERO, NOW)
        .orders
        .into_iter()
        .map(|(_, order)| {
            assert_eq!(order.demand, Bytes::ZERO);
            order.limit.unwrap().0
        })
        .collect();
    // Matsuo's worked example, times 1,000.
    assert_eq!(limits[1..], [116_000, 164_000]);
    assert!(limits[0] >= 20_000);
}

#[test]
fn sabt_bounds_all_alike_where_shares_are_small() {
    let budget = Bytes(1_250_000);
    let limits = |connections: u64| -> Vec<u64> {
        let mut book = ShareBook::new(PolicyKind::Sabt, budget, Bytes::ZERO);
        let flows: Vec<FlowState> = (0..connections)
            .map(|number| {
                let mut flow = flow(number + 1, if number % 2 == 0 { 4_000 } else { 400_000 });
                flow.sample.send_queued = Bytes(4_000);
                flow
            })
            .collect();
        let round = book.round(&flows, Bytes::ZERO, NOW);
        round.orders.iter().map(|(_, order)| order.limit.unwrap_or_default().0).collect()
    };
    // A million bytes for 40 are 25,000 each: no connection gets memory that another may need in a moment.
    assert_eq!(limits(40), [25_000; 40]);
    // For four it is 250,000: small ones leave most of theirs to the large ones.
    let wide = limits(4);
    assert!(wide[1] > 450_000, "{wide:?}");
}

#[test]
fn sabt_shares_as_abt_does_where_shares_are_small_and_losses_have_made_windows_small() {
    let budget = Bytes(1_250_000);
    // After many losses the throughput equation gives some segments; half of the connections wait for a time-out.
    let at = |second: u64| -> Vec<FlowState> {
        let one = |number: u64| {
            let mut flow = flow(number + 1, 60_000);
            let sample = &mut flow.sample;
            (sample.mss, sample.cwnd) = (Bytes(1_448), Bytes(30_000));
            (sample.srtt, sample.rto) = (Micros::from_millis(100), Micros::from_millis(300));
            (sample.segs_out, sample.segs_lost) = (1 + 100 * second, 10 * second);
            sample.loss_events = Some(10 * second);
            sample.delivery_rate = Rate(1_000_000);
            sample.send_queued = if number.is_multiple_of(2) { Bytes(4_000) } else { Bytes::ZERO };
            flow
        };
        (0..80).map(one).collect()
    };
    let mut sabt = ShareBook::new(PolicyKind::Sabt, budget, Bytes::ZERO);
    (0..3).for_each(|second| sabt.observe(&at(second), Micros::from_secs(second)));
    let round = sabt.round(&at(2), Bytes::ZERO, NOW);
    assert!(round.orders.iter().all(|(_, order)| order.demand == Bytes::ZERO), "they go by the windows");
    let limits: Vec<Option<Bytes>> = round.orders.iter().map(|(_, order)| order.limit).collect();
    let abt = ShareBook::new(PolicyKind::Abt, budget, Bytes::ZERO).round(&at(2), Bytes::ZERO, NOW);
    // Half of the connections have not outgrown a small document.
    let mut begun = at(2);
    begun[..40].iter_mut().for_each(|flow| flow.sample.bytes_acked = Bytes(8_192));
    let documents = ShareBook::new(PolicyKind::Sabt, budget, Bytes(8_192)).round(&begun, Bytes::ZERO, NOW);
    let half: Vec<Option<Bytes>> = documents.orders.iter().map(|(_, order)| order.limit).collect();
    assert_eq!(half, vec![abt.shares.level; 40]);
    assert_eq!(limits, vec![abt.shares.level; 80]);
    assert_eq!(abt.shares.level, Some(Bytes(12_500)));
}

/// Generates a network target: of a connection that has not begun, a small, or a large one.
fn target() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0_u64), 1_000_u64..100_000, 100_000_u64..4_000_000]
}

proptest! {
    /// Each round has other demands; connections come to rest and begin again, and one is always busy.
    #[test]
    fn sabts_limits_sum_to_at_most_the_budget_at_any_time(
        count in 2_usize..30, seen in prop::collection::vec((target(), 0_u8..3), 30..180),
        budget in 8_000_000_u64..80_000_000,
    ) {
        let mut book = ShareBook::new(PolicyKind::Sabt, Bytes(budget), Bytes::ZERO);
        let mut told: BTreeMap<u64, Bytes> = BTreeMap::new();
        for (number, figures) in (1..).zip(seen.chunks_exact(count)) {
            let now = Micros::from_secs(10 * number);
            let one = |(cookie, (net_target, state)): (u64, &(u64, u8))| {
                let is_busy = cookie == 0 || *state == 0;
                let seen_at = if is_busy || *state == 1 { now } else { Micros::ZERO };
                let mut flow = FlowState { seen_at, ..flow(cookie, *net_target) };
                flow.sample.send_queued = Bytes(u64::from(is_busy));
                flow
            };
            let flows: Vec<FlowState> = (0..).zip(figures).map(one).collect();
            let round = book.round(&flows, Bytes::ZERO, now);
            for (cookie, order) in &round.orders {
                told.insert(*cookie, order.limit.expect("each has a limit"));
                let sum: Bytes = told.values().copied().sum();
                prop_assert!(sum <= Bytes(budget), "{sum:?} of {budget} while orders are written");
            }
            let newcomer = round.shares.level.expect("newcomers have a bound");
            let sum = told.values().copied().sum::<Bytes>() + newcomer;
            prop_assert!(sum <= Bytes(budget), "{sum:?} of {budget} with a newcomer");
        }
    }

    #[test]
    fn sabts_limits_meet_small_demands_and_use_the_memory_up(
        targets in prop::collection::vec(target(), 1..50), shared in 1_000_000_u64..50_000_000,
    ) {
        let demands: Vec<Bytes> = targets.iter().map(|target| Bytes(target * OVERHEAD)).collect();
        let (shared, growing, count) = (Bytes(shared), Bytes(shared / 10), demands.len() as u64);
        let (limits, soon) = proportional_with_growth(&demands, shared, growing);
        let sum: Bytes = limits.iter().copied().sum();
        prop_assert!(sum <= shared + growing, "{sum:?}");
        // Proportional parts leave at most three bytes for each connection (`bufwise_policy::share`), equal ones one.
        prop_assert!(sum + Bytes(4 * count) >= shared, "{sum:?}");
        let all = |least: Bytes, factor: u64| -> Vec<Bytes> {
            demands.iter().map(|demand| (*demand).max(least).times(factor)).collect()
        };
        let (present, grown) = (all(FLOOR, 1), all(NEWCOMER, GROWTH));
        let of_matsuo = share::proportional(&present, shared);
        for (limit, demand) in limits.iter().zip(&present) {
            prop_assert!(*limit >= (*demand).min(shared.scaled(1, count)).max(FLOOR));
            prop_assert!(*limit >= of_matsuo.of(*demand));
            prop_assert!(*limit >= *demand || *limit == of_matsuo.of(*demand));
        }
        prop_assert!(!soon || of_matsuo != Share::Unlimited, "while the memory suffices each sample has a round");
        if grown.iter().copied().sum::<Bytes>() <= shared {
            prop_assert!(limits.iter().zip(&grown).all(|(limit, grown)| limit >= grown));
        }
    }

    #[test]
    fn connections_that_wait_or_rest_fit_beside_the_busy_if_all_begin_at_once(
        busy in prop::collection::vec(1_000_u64..4_000_000, 1..20), waiting in 0_usize..100,
        resting in 0_usize..100, budget in 60_000_000_u64..1_000_000_000,
    ) {
        let now = NOW + LATELY;
        let sends = |target: &u64| {
            let mut flow = FlowState { began_at: Micros(1), seen_at: now, ..flow(1, *target) };
            flow.sample.send_queued = Bytes(1);
            flow
        };
        let mut rests = flow(2, 60_000);
        rests.sample.bytes_acked = Bytes(1_000_000);
        let waits = FlowState { opened_at: Micros(2), began_at: Micros(2), seen_at: now, ..flow(3, 0) };
        let mut flows: Vec<FlowState> = busy.iter().map(sends).collect();
        flows.extend(vec![rests; resting]);
        flows.extend(vec![waits; waiting]);
        let mut book = ShareBook::new(PolicyKind::Abt, Bytes(budget), Bytes::ZERO);
        let shares = book.round(&flows, Bytes::ZERO, now).shares;
        let (level, newcomer) = (shares.level.unwrap(), shares.newcomer.unwrap());
        prop_assert!(shares.newest_at < now, "what begins now has a newcomer's bound");
        prop_assert!(newcomer >= LEAST);
        let of_busy = busy.iter().map(|target| Bytes(target * OVERHEAD * GROWTH).min(level));
        let begun = newcomer.min(level).times((waiting + resting) as u64 + 1);
        prop_assert!(of_busy.sum::<Bytes>() + begun <= Bytes(budget), "{shares:?}");
    }

    /// Until the next round, connections that grow no faster than [`GROWTH`] stay within what is shared.
    #[test]
    fn growth_until_the_next_round_stays_within_what_is_shared(
        seen in prop::collection::vec((0u64..1_000_000, any::<bool>()), 1..40),
        budget in 100_000u64..20_000_000,
    ) {
        let flows: Vec<FlowState> = seen.iter().zip(1..).map(|((net_target, is_busy), cookie)| {
            let mut flow = flow(cookie, *net_target);
            flow.sample.send_queued = Bytes(u64::from(*is_busy));
            flow
        }).collect();
        let mut book = ShareBook::new(PolicyKind::Abt, Bytes(budget), Bytes::ZERO);
        let level = book.round(&flows, Bytes::ZERO, NOW).shares.level.unwrap();
        let reached: Bytes = seen.iter().map(|(net_target, is_busy)| {
            let growth = if *is_busy { GROWTH } else { 1 };
            Bytes(net_target * OVERHEAD * growth).min(level)
        }).sum();
        prop_assert!(level == FLOOR || reached <= book.shared(), "level {level:?}, reached {reached:?}");
    }
}
