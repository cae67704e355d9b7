//! A plain version of SABT's round, one connection after the other, without optimised maps: the book must give the
//! same result for any input.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::tests::{NOW, flow};
use super::*;

/// The plain books: each figure is looked up when it is needed.
struct Plain {
    policy: PolicyKind,
    budget: Bytes,
    small_document: Bytes,
    models: BTreeMap<u64, Sabt>,
}

impl Plain {
    fn observe(&mut self, flows: &[FlowState], now: Micros) {
        let published = self.policy.is_published();
        for flow in flows.iter().filter(|flow| takes_part(flow, self.small_document)) {
            let config = if published { sabt::Config::published() } else { model() };
            self.models.entry(flow.cookie).or_insert_with(|| Sabt::new(config)).observe(&flow.sample, now);
        }
    }

    fn demand(&self, flow: &FlowState) -> Bytes {
        let observed = self.models.get(&flow.cookie).and_then(Policy::demand);
        observed.unwrap_or_else(|| by_window(flow, NOW)).times(OVERHEAD)
    }

    fn modelled(&self, cookie: u64) -> Bytes {
        let model = self.models.get(&cookie).filter(|model| model.is_modelled());
        model.and_then(Policy::demand).unwrap_or(Bytes::ZERO)
    }

    /// Returns every order of the round, and the sum of the demands.
    fn round(&self, all: &[FlowState]) -> (Vec<(u64, Order)>, Bytes) {
        let flows: Vec<&FlowState> = all.iter().filter(|one| takes_part(one, self.small_document)).collect();
        let demands: Vec<Bytes> = flows.iter().map(|one| self.demand(one)).collect();
        let asked: Bytes = demands.iter().copied().sum();
        if self.policy.is_published() {
            let share = share::proportional(&demands, self.budget);
            let order = |(flow, demand): (&&FlowState, &Bytes)| {
                let packet = flow.sample.mss;
                let limit = share.limit(*demand);
                let limit = limit.map(|limit| share::in_packets(limit, packet.times(OVERHEAD)).max(FLOOR));
                let demand = share::in_packets(self.modelled(flow.cookie), packet);
                (flow.cookie, Order { demand, limit })
            };
            return (flows.iter().zip(&demands).map(order).collect(), asked);
        }
        let closing = all.iter().filter(|one| !one.may_send && !one.closed && !one.owned.send);
        let closing: Bytes = closing.map(|one| one.sample.send_queued).sum();
        let asked = asked + closing;
        let least = self.budget.scaled(LEFT.0, LEFT.1);
        let shared = (self.budget.scaled(SHARED.0, SHARED.1) - closing).max(least);
        let senders: Vec<&FlowState> = all.iter().filter(|one| is_ours(one)).collect();
        // If no connection is busy, count one: it may be busy soon.
        let busy = senders.iter().filter(|one| one.sample.send_queued.0 > 0).count().max(1) as u64;
        let limits = if shared.0 / busy < NEWCOMER.0 {
            let windows: Vec<Bytes> = senders.iter().map(|one| by_window(one, NOW).times(OVERHEAD)).collect();
            let grown = with_room_to_grow(&senders, &windows, NOW);
            let level = level_of(&grown, shared);
            let order = Order { demand: Bytes::ZERO, limit: Some(level.max(FLOOR)) };
            return (flows.iter().map(|flow| (flow.cookie, order)).collect(), asked);
        } else {
            proportional_with_growth(&demands, shared, self.budget.scaled(GROWING.0, GROWING.1)).0
        };
        let order = |(flow, limit): (&&FlowState, Bytes)| {
            let demand = self.modelled(flow.cookie).scaled(SWING.0, SWING.1);
            (flow.cookie, Order { demand, limit: Some(limit.max(FLOOR)) })
        };
        (flows.iter().zip(limits).map(order).collect(), asked)
    }
}

/// Generates a connection's figures in one sample.
fn seen() -> impl Strategy<Value = FlowState> {
    let window = (1_u64..40, 0_u64..4_000_000, 0_u64..2_000_000);
    let path = (0_u64..300, 0_u64..20_000_000, 0_u64..50_000, 0_u64..60);
    (0_u64..12, window, path, 0_u64..20_000, any::<(bool, bool)>()).prop_map(
        |(number, (mss, cwnd, target), (rtt, rate, sent, lost), acked, (may_send, owned))| {
            // Each processor takes its cookies from a batch of its own.
            let mut flow =
                FlowState { may_send: may_send || owned, ..flow(1 + number % 3 * 4_096 + number, target) };
            flow.owned.send = owned && !may_send;
            let sample = &mut flow.sample;
            (sample.mss, sample.cwnd, sample.ssthresh) = (Bytes(mss * 40), Bytes(cwnd), Bytes(cwnd));
            (sample.srtt, sample.delivery_rate) = (Micros::from_millis(rtt), Rate(rate));
            (sample.segs_out, sample.segs_lost, sample.loss_events) = (sent, lost, Some(lost / 3));
            sample.bytes_acked = Bytes(acked);
            sample.send_queued = Bytes(acked % 2 * 4_000);
            flow
        },
    )
}

proptest! {
    #[test]
    fn a_round_says_for_each_connection_what_it_says_plainly(
        inputs in prop::collection::vec((prop::collection::vec(seen(), 0..12), 0_u64..12, any::<bool>()), 1..12),
        budget in 65_536_u64..16_000_000, is_published: bool,
    ) {
        let policy = if is_published { PolicyKind::SabtPublished } else { PolicyKind::Sabt };
        let (budget, small_document) = (Bytes(budget), Bytes(8_192));
        let mut book = ShareBook::new(policy, budget, small_document);
        let mut plain = Plain { policy, budget, small_document, models: BTreeMap::new() };
        let mut told = BTreeMap::new();
        for (number, (mut flows, over, is_round)) in inputs.into_iter().enumerate() {
            flows.sort_by_key(|flow| flow.cookie);
            flows.dedup_by_key(|flow| flow.cookie);
            let now = Micros::from_secs(number as u64);
            // No sender stalls.
            flows.iter_mut().for_each(|flow| flow.seen_at = now);
            book.observe(&flows, now);
            plain.observe(&flows, now);
            if is_round {
                let round = book.round(&flows, Bytes::ZERO, NOW);
                let (all, asked) = plain.round(&flows);
                prop_assert_eq!(round.asked.demand, asked);
                // Orders that were not written again are close to the last written ones.
                told.extend(round.orders.iter().copied());
                for (cookie, order) in all {
                    let near = |a: Bytes, b: Bytes| a.0.abs_diff(b.0) <= if is_published { 0 } else { a.0 / 64 };
                    let last: &Order = told.get(&cookie).expect("told once at least");
                    prop_assert!(near(last.demand, order.demand), "{:?} {:?}", last, order);
                    prop_assert_eq!(last.limit.is_some(), order.limit.is_some());
                    prop_assert!(near(last.limit.unwrap_or_default(), order.limit.unwrap_or_default()));
                    if let Some((_, now)) = round.orders.iter().find(|(one, _)| *one == cookie) {
                        prop_assert_eq!(*now, order);
                    }
                }
            }
            let gone = flows.get(over as usize).map(|flow| flow.cookie);
            gone.iter().for_each(|cookie| {
                book.forget(*cookie);
                plain.models.remove(cookie);
                told.remove(cookie);
            });
        }
    }
}
