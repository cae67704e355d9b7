//! Closing connections and stalled senders keep the memory that they hold.

use super::*;

#[test]
fn what_closing_connections_hold_is_taken_from_what_the_others_share() {
    let round = |policy, held: u64, owned: bool| {
        let mut closing = FlowState { may_send: false, ..flow(1, 1) };
        (closing.sample.send_queued, closing.owned.send) = (Bytes(held), owned);
        let mut book = ShareBook::new(policy, Bytes(500_000), Bytes::ZERO);
        book.round(&[closing, flow(2, 1), flow(3, 1)], Bytes(held), NOW)
    };
    for policy in [PolicyKind::Eq, PolicyKind::Abt, PolicyKind::Fit] {
        let level = |held, owned| round(policy, held, owned).shares.level;
        assert_eq!(level(300_000, false), Some(Bytes(50_000)), "{policy}: half of what is left of 400,000");
        assert_eq!(level(500_000, false), Some(Bytes(15_625)), "{policy}: half of a 16th of the budget");
        assert_eq!(level(300_000, true), Some(Bytes(200_000)), "{policy}: it is outside the budget");
        let left = round(policy, 300_000, false);
        assert_eq!(left.shares.newcomer, Some(Bytes(25_000)), "{policy}");
        assert_eq!((left.asked.demand, left.asked.connections), (Bytes(300_004), 2), "{policy}");
    }
    let sabt = round(PolicyKind::Sabt, 300_000, false);
    let limits: Bytes = sabt.orders.iter().filter_map(|(_, order)| order.limit).sum();
    assert!(sabt.orders.len() == 2 && limits <= Bytes(200_000), "{limits}");
    let published = |held| round(PolicyKind::AbtPublished, held, false).shares;
    assert_eq!(published(300_000), published(0), "the paper does not consider them");
}

/// Returns a sender with a queue, of which `acked` bytes are acknowledged, last sampled at `seen_at`; and two that are live at
/// `now`, with empty queues.
fn beside_two(queued: u64, acked: u64, seen_at: Micros, now: Micros) -> [FlowState; 3] {
    let mut one = FlowState { seen_at, ..flow(1, 1) };
    (one.sample.send_queued, one.sample.bytes_acked) = (Bytes(queued), Bytes(acked));
    [one, FlowState { seen_at: now, ..flow(2, 1) }, FlowState { seen_at: now, ..flow(3, 1) }]
}

#[test]
fn what_stalled_senders_hold_is_taken_from_what_the_others_share() {
    let later = NOW + LATELY;
    let round = |book: &mut ShareBook, queued, acked, seen_at| {
        let flows = beside_two(queued, acked, seen_at, later);
        book.observe(&flows, later);
        book.round(&flows, Bytes(queued), later)
    };
    for policy in [PolicyKind::Eq, PolicyKind::Abt, PolicyKind::Fit] {
        let mut book = ShareBook::new(policy, Bytes(500_000), Bytes::ZERO);
        let a_third = Some(Bytes(133_333));
        assert_eq!(round(&mut book, 300_000, 7, later).shares.level, a_third, "{policy}: of 400,000");
        let left = round(&mut book, 300_000, 7, NOW);
        assert_eq!(left.shares.level, Some(Bytes(50_000)), "{policy}: half of what is left");
        assert_eq!(left.shares.newcomer, Some(Bytes(25_000)), "{policy}");
        assert_eq!((left.asked.demand, left.asked.connections), (Bytes(300_004), 3), "{policy}");
        let probed = round(&mut book, 300_000, 7, later);
        assert_eq!(probed.shares.level, left.shares.level, "{policy}: a probe of the window is no progress");
        assert_eq!(round(&mut book, 290_000, 8, later).shares.level, a_third, "{policy}: its peer reads on");
        let most = round(&mut book, 500_000, 8, NOW).shares.level;
        assert_eq!(most, Some(Bytes(15_625)), "{policy}: half of a 16th of the budget");
    }
    let published = |seen_at| {
        let mut book = ShareBook::new(PolicyKind::AbtPublished, Bytes(500_000), Bytes::ZERO);
        round(&mut book, 300_000, 7, seen_at).shares
    };
    assert_eq!(published(NOW), published(later), "the paper does not consider them");
    let mut sabt = ShareBook::new(PolicyKind::Sabt, Bytes(500_000), Bytes::ZERO);
    assert_eq!(round(&mut sabt, 300_000, 7, later).orders.len(), 3);
    let left = round(&mut sabt, 300_000, 7, NOW);
    let limits: BTreeMap<u64, Option<Bytes>> =
        left.orders.iter().map(|(cookie, order)| (*cookie, order.limit)).collect();
    assert_eq!(limits[&1], left.shares.level, "the stalled one begins again as a newcomer");
    assert!(limits[&2] <= Some(Bytes(50_000)) && limits[&3] <= Some(Bytes(50_000)), "{limits:?}");
}

#[test]
fn connections_that_come_after_others_have_stalled_stay_within_the_budget() {
    let (budget, later) = (Bytes(16 << 20), NOW + LATELY);
    for policy in [PolicyKind::Eq, PolicyKind::Abt, PolicyKind::Fit] {
        let mut book = ShareBook::new(policy, budget, Bytes::ZERO);
        let mut flows: Vec<FlowState> = (0..10).map(|cookie| flow(cookie, 4_000_000)).collect();
        // Each holds its whole share when its peer stops reading.
        let full = book.round(&flows, Bytes::ZERO, NOW).shares.level.unwrap();
        flows.iter_mut().for_each(|flow| flow.sample.send_queued = full);
        flows.extend((10..50).map(|cookie| FlowState { seen_at: later, ..flow(cookie, 4_000_000) }));
        book.observe(&flows, later);
        let level = book.round(&flows, full.times(10), later).shares.level.unwrap();
        let held = full.times(10) + level.times(40);
        assert!(held <= budget, "{policy}: {held} with a level of {level}");
        assert!(level >= budget.scaled(1, 16 * 40), "{policy}: no connection starves");
    }
}

#[test]
fn after_an_outage_all_that_begin_anew_fit_into_the_budget() {
    let (budget, later) = (Bytes(64 << 20), NOW + LATELY);
    for policy in [PolicyKind::Eq, PolicyKind::Abt, PolicyKind::Fit, PolicyKind::Sabt] {
        for count in [1, 20, 256, 257, 1_000] {
            let mut book = ShareBook::new(policy, budget, Bytes::ZERO);
            let mut flows: Vec<FlowState> = (0..count).map(|cookie| flow(cookie, 4_000_000)).collect();
            flows.iter_mut().for_each(|flow| flow.sample.send_queued = Bytes(10_000));
            book.observe(&flows, later);
            let shares = book.round(&flows, Bytes(10_000 * count), later).shares;
            let each = shares.newcomer.or(shares.level).unwrap();
            assert!(each.times(count) <= budget, "{policy}: {count} with {each}");
            assert!(each >= LEAST, "{policy}: {count} with {each}");
        }
    }
}
