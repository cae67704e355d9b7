//! The books of one engine's connections: what each may hold until the next sample. Pure; time is passed in.
//!
//! A *round* computes the shares. There is one per interval, and a sample has an early one in these cases:
//! - Connections have come or gone, or senders have stalled or go on: neither a newcomer nor one that goes on must wait for the
//!   next round.
//! - The queues hold more than the budget.
//! - Under SABT a connection may soon need more than its limit, because it is at rest, has stalled, or has a small demand
//!   beside large ones.
//! - The memory suffices for all demands. Shares then bound only how fast a connection grows, and a few rounds a second
//!   would be too slow for slow start.
//!
//! The papers' rules as published (`:published`) have no early rounds, but their pressure begins and ends with a sample.
//! For all other rules pressure begins with a sample and ends with a round. The bound of the receive windows is computed
//! at each sample.

use std::time::Duration;

use bufwise_bpf::{FlowState, Order, Shares};
use bufwise_units::{Bytes, Micros};

use super::asked::AskedBoth;
use super::at_once::AtOnce;
use super::plan::Plan;
use super::shares::ShareBook;
use super::windows::WindowBook;

/// The books of one engine's connections.
#[derive(Debug)]
pub(crate) struct Books {
    shares: ShareBook,
    windows: WindowBook,
    /// Chooses how much writers fill at once; `None`: the devices or the user choose it.
    at_once: Option<AtOnce>,
    /// The last shares.
    said: Shares,
    /// Demands and grants of the last round.
    asked: AskedBoth,
    next_round: Micros,
    /// Whether the last round has requested another round at the next sample.
    soon: bool,
    /// Number of connections in the last sample, the time at which the newest of them opened, and the number of stalled
    /// senders.
    known: (usize, Option<Micros>, usize),
    held_max: Bytes,
}

/// The orders for the engine after a sample.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Shares for all connections alike.
    pub(crate) shares: Shares,
    /// Orders for single connections, by cookie.
    pub(crate) orders: Vec<(u64, Order)>,
    /// Cookies of closed connections.
    pub(crate) forget: Vec<u64>,
    /// The new bound of the devices in bytes, if it changes.
    pub(crate) at_once: Option<u64>,
}

impl Books {
    pub(crate) fn new(plan: &Plan) -> Self {
        let mut shares = ShareBook::new(plan.choice.send, plan.budget, plan.small_document);
        let windows = WindowBook::new(plan.choice.receive, plan.receive_budget);
        let said = Shares {
            window: windows.level(&[], Micros::ZERO),
            ..shares.round(&[], Bytes::ZERO, Micros::ZERO).shares
        };
        let at_once = plan.at_once.map(|first| AtOnce::new(shares.shared(), first));
        Self {
            shares,
            windows,
            at_once,
            said,
            asked: AskedBoth::default(),
            next_round: Micros::ZERO,
            soon: false,
            known: (0, None, 0),
            held_max: Bytes::ZERO,
        }
    }

    /// Returns demands and grants of the last round.
    pub(crate) fn asked(&self) -> AskedBoth {
        self.asked
    }

    /// Returns the last shares; before the first sample, the shares for the connections that begin until then.
    pub(crate) fn shares(&self) -> Shares {
        self.said
    }

    /// Returns the largest memory that the send queues were seen to hold together, bytes.
    pub(crate) fn held_max(&self) -> Bytes {
        self.held_max
    }

    /// Returns the time between two rounds.
    pub(crate) fn interval(&self) -> Duration {
        self.shares.interval()
    }

    /// Makes the next sample return the bound of the devices, and the next round all orders, even if they have not changed:
    /// the devices and the engine may not have the last ones.
    pub(crate) fn tell_again(&mut self) {
        self.shares.tell_again();
        self.at_once.iter_mut().for_each(AtOnce::tell_again);
    }

    /// Takes in a sample of the connections, whose send queues hold `held` together.
    pub(crate) fn observe(&mut self, flows: &[FlowState], held: Bytes, now: Micros) -> Bounds {
        self.held_max = self.held_max.max(held);
        self.shares.observe(flows, now);
        // As many may have come as have gone.
        let newest = flows.iter().map(|flow| flow.opened_at).max();
        let present = (flows.len(), newest, self.shares.stalled());
        let is_other = std::mem::replace(&mut self.known, present) != present;
        let early = is_other || self.soon || self.shares.is_exceeded(held) || self.asked.send.is_met();
        let early = early && !self.shares.keeps_its_times();
        let mut orders = Vec::new();
        if early || now >= self.next_round {
            let interval = u64::try_from(self.interval().as_micros()).unwrap_or(u64::MAX);
            self.next_round = now + Micros(interval);
            let round = self.shares.round(flows, held, now);
            (self.said, self.asked.send, self.soon) = (round.shares, round.asked, round.soon);
            orders = round.orders;
        } else if self.shares.keeps_its_times() {
            self.said.pressure = self.shares.is_pressed(held);
        }
        // Only the programs can empty a receive queue, so the bound of the windows does not wait for the next round.
        (self.said.window, self.asked.receive) = self.windows.round(flows, now);
        let forget: Vec<u64> = flows.iter().filter(|flow| flow.closed).map(|flow| flow.cookie).collect();
        forget.iter().for_each(|cookie| self.shares.forget(*cookie));
        let at_once =
            self.at_once.as_mut().and_then(|book| book.observe(ShareBook::senders(flows, now), now));
        Bounds { shares: self.said, orders, forget, at_once }
    }
}

#[cfg(test)]
mod tests {
    use super::super::shares::tests::flow;
    use super::*;
    use crate::tuner::plan::Asked;

    const BUDGET: Bytes = Bytes(1_000_000);

    fn books(policy: &str) -> Books {
        let asked = Asked { memory: Some(BUDGET), receive_memory: Some(BUDGET), ..Asked::default() };
        Books::new(&Plan::new(policy.parse().unwrap(), asked).unwrap())
    }

    fn at(millis: u64) -> Micros {
        Micros::from_millis(1_000 + millis)
    }

    #[test]
    fn scarce_memory_is_shared_anew_at_the_next_round_unless_a_connection_comes() {
        let mut books = books("eq");
        // In memory 1,000,000 of the 800,000 that are shared.
        let one = [flow(1, 500_000)];
        assert_eq!(books.observe(&one, Bytes::ZERO, at(0)).shares.level, Some(Bytes(800_000)));
        let own = [FlowState { owned: bufwise_bpf::Owned { send: true, receive: false }, ..one[0] }];
        let before_the_round = books.observe(&own, Bytes::ZERO, at(499)).shares.level;
        assert_eq!(before_the_round, Some(Bytes(800_000)), "the same number of connections: no new round");
        assert_eq!(books.observe(&own, Bytes::ZERO, at(500)).shares.level, Some(Bytes(200_000)));
        let two = [flow(1, 0), flow(2, 0)];
        assert_eq!(books.observe(&two, Bytes::ZERO, at(501)).shares.level, Some(Bytes(400_000)), "at once");
    }

    #[test]
    fn a_connection_that_comes_as_another_goes_waits_for_no_round() {
        let mut books = books("eq");
        let over = FlowState { closed: true, may_send: false, ..flow(1, 0) };
        let stays = flow(2, 500_000);
        assert_eq!(books.observe(&[over, stays], Bytes::ZERO, at(0)).shares.level, Some(Bytes(800_000)));
        let comes = FlowState { opened_at: at(50), ..flow(3, 0) };
        let level = books.observe(&[comes, stays], Bytes::ZERO, at(100)).shares.level;
        assert_eq!(level, Some(Bytes(400_000)), "as many connections as before");
    }

    #[test]
    fn a_sender_that_stalls_or_goes_on_waits_for_no_round() {
        let mut books = books("eq");
        let mut level = |acked, seen_at, millis| {
            let mut one = FlowState { seen_at, ..flow(1, 500_000) };
            (one.sample.bytes_acked, one.sample.send_queued) = (Bytes(acked), Bytes(600_000));
            let other = FlowState { seen_at: at(millis), ..flow(2, 500_000) };
            books.observe(&[one, other], Bytes(600_000), at(millis)).shares.level
        };
        assert_eq!(level(1, at(0), 4_900), Some(Bytes(400_000)));
        assert_eq!(level(1, at(0), 5_000), Some(Bytes(200_000)), "what the stalled one leaves");
        assert_eq!(level(2, at(5_100), 5_100), Some(Bytes(400_000)), "its peer reads on");
    }

    #[test]
    fn while_the_memory_suffices_each_sample_lets_connections_grow() {
        let mut books = books("abt");
        let mut level = |window, millis| {
            books.observe(&[flow(1, window), flow(2, 1)], Bytes::ZERO, at(millis)).shares.level
        };
        assert_eq!(level(30_000, 0), Some(Bytes(400_000)), "an equal part");
        // Four times a newcomer's 64 KB are kept for the second connection, which may grow as well.
        assert_eq!(level(110_000, 100), Some(Bytes(800_000 - 262_144)), "before the next round");
    }

    #[test]
    fn a_small_demand_that_grows_beside_large_ones_has_an_equal_part_within_three_samples() {
        let mut books = books("sabt");
        let with_small = |small: u64| -> Vec<FlowState> {
            let one = |(cookie, demand): (u64, u64)| {
                let mut flow = flow(cookie, 0);
                // ABT's target is two windows, and a byte of payload takes two of memory.
                flow.sample.cwnd = Bytes(demand / 4);
                (flow.sample.bytes_acked, flow.sample.send_queued) = (Bytes(10_000), Bytes(1));
                flow
            };
            [(1, small), (2, 2_000_000), (3, 2_000_000), (4, 2_000_000)].map(one).to_vec()
        };
        // Of the 1,000,000 four share 800,000, and 83,333 are for growth.
        let mut limit = Bytes(10_000);
        let limits = [0, 100, 200].map(|millis| {
            let bounds = books.observe(&with_small(limit.0), Bytes::ZERO, at(millis));
            let order = bounds.orders.iter().find(|(cookie, _)| *cookie == 1).map(|(_, order)| *order);
            limit = order.and_then(|order| order.limit).expect("each sample has a round");
            limit.0
        });
        assert!(limits[0] <= 93_333 && limits[2] >= 200_000, "{limits:?}");
    }

    #[test]
    fn pressure_is_told_at_once_and_ends_with_the_next_round() {
        let mut books = books("abt");
        let flows = [flow(1, 10_000)];
        assert!(!books.observe(&flows, BUDGET, at(0)).shares.pressure);
        assert!(books.observe(&flows, BUDGET + Bytes(1), at(100)).shares.pressure);
        assert_eq!(books.held_max(), BUDGET + Bytes(1));
        assert!(!books.observe(&flows, Bytes::ZERO, at(600)).shares.pressure);
    }

    #[test]
    fn the_papers_rules_keep_their_times_but_pressure_is_told_at_once() {
        let mut books = books("abt:published");
        let level = |books: &mut Books, flows: &[FlowState], millis| {
            books.observe(flows, Bytes::ZERO, at(millis)).shares.level
        };
        // In memory 2,000,000, of the whole budget.
        let two = [flow(1, 1_000_000), flow(2, 0)];
        assert_eq!(level(&mut books, &two[..1], 0), Some(BUDGET));
        assert_eq!(level(&mut books, &two, 100), Some(BUDGET), "a newcomer waits for the next round");
        let pressure =
            |books: &mut Books, held, millis| books.observe(&two, held, at(millis)).shares.pressure;
        assert!(pressure(&mut books, BUDGET + Bytes(1), 200));
        assert!(!pressure(&mut books, BUDGET, 300));
        let large = [flow(1, 1_000_000), flow(2, 1_000_000)];
        assert_eq!(level(&mut books, &large, 500), Some(BUDGET.scaled(1, 2)));
    }

    /// Samples a hundred thousand connections, and again without changes.
    fn two_rounds_of_many(policy: &str) {
        let mut flows: Vec<FlowState> =
            (0..100_000).map(|cookie| flow(cookie, 1_000 + cookie % 90_001)).collect();
        flows.iter_mut().for_each(|flow| flow.sample.bytes_acked = Bytes(1 << 20));
        let mut books = books(policy);
        let began = std::time::Instant::now();
        let bounds = books.observe(&flows, BUDGET, at(0));
        // Takes some milliseconds, and several times as long unoptimised; 10^10 steps would take minutes.
        assert!(began.elapsed() < Duration::from_secs(10), "{policy}: {:?}", began.elapsed());
        let first = began.elapsed();
        assert!(bounds.shares.level.is_some() || !bounds.orders.is_empty(), "{policy}");
        let again = books.observe(&flows, BUDGET, at(2_000));
        assert!(again.orders.len() * 8 < flows.len(), "{policy}: nothing has changed");
        println!("{policy}: {first:?}, again {:?}", began.elapsed() - first);
    }

    #[test]
    fn a_round_for_a_hundred_thousand_connections_is_not_quadratic() {
        ["abt,sobas", "eq,drs", "abt:published", "sabt:published"].into_iter().for_each(two_rounds_of_many);
    }

    /// To measure the cost, run this test alone under `valgrind --tool=callgrind --toggle-collect='*Books*observe*'`.
    #[test]
    fn a_round_of_orders_for_a_hundred_thousand_connections_is_not_quadratic() {
        two_rounds_of_many("sabt,fit");
    }

    #[test]
    fn connections_that_are_over_are_forgotten_once() {
        let mut books = books("sabt");
        let over = [FlowState { closed: true, ..flow(7, 0) }, flow(8, 0)];
        assert_eq!(books.observe(&over, Bytes::ZERO, at(0)).forget, [7]);
        assert_eq!(books.observe(&over[1..], Bytes::ZERO, at(100)).forget, Vec::<u64>::new());
    }
}
