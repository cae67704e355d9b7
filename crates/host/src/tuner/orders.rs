//! Selects the orders of a SABT round that must be written: those that have changed.
//!
//! Problem: an order is a write into a kernel map. In a large set of connections most orders change little per round.
//! Rule: an order is written if its demand or its limit differs from the last written one by more than 1/64. Each order is
//! also written once in 16 rounds, because the map may have had no room for it. All orders are written in the round after
//! a write has failed. Under the papers' rules (`:published`) any change is written.
//! Properties kept: the last written limit is at most 64/63 of the limit that the round gave. Orders that lower a limit are
//! written first, so that at no time the limits sum to more than before or after the round.

use std::collections::hash_map::Entry;

use bufwise_bpf::Order;
use bufwise_units::Bytes;

use super::by_cookie::ByCookie;

/// An order that differs by at most this part (1/64) is not written again.
const NEAR: u64 = 64;
/// Number of rounds in which each order is written at least once.
const REPEAT: u64 = 16;

/// The last written orders, by cookie.
#[derive(Debug, Default)]
pub(super) struct Orders {
    told: ByCookie<Order>,
    rounds: u64,
    is_exact: bool,
    /// Whether the next round writes all orders.
    repeats_all: bool,
}

impl Orders {
    /// Starts without written orders; `is_exact`: any change is written.
    pub(super) fn new(is_exact: bool) -> Self {
        Self { is_exact, ..Self::default() }
    }

    /// Makes the next round write all orders, because some of the last ones may be missing in the kernel.
    pub(super) fn tell_again(&mut self) {
        self.repeats_all = true;
    }

    /// Returns the orders of a round that must be written, in the order of writing.
    pub(super) fn changed(&mut self, mut round: Vec<(u64, Order)>) -> Vec<(u64, Order)> {
        self.rounds += 1;
        let (turn, is_exact) = (self.rounds % REPEAT, self.is_exact);
        let repeats_all = std::mem::take(&mut self.repeats_all);
        // One allocation for all new orders.
        self.told.reserve(round.len().saturating_sub(self.told.len()));
        let mut raised = Vec::new();
        round.retain(|(cookie, order)| {
            let told = self.told.entry(*cookie);
            let before = match &told {
                Entry::Occupied(told) => Some(*told.get()),
                Entry::Vacant(_) => None,
            };
            let is_due = repeats_all || cookie % REPEAT == turn;
            if !is_due && before.is_some_and(|told| is_near(&told, order, is_exact)) {
                return false;
            }
            told.insert_entry(*order);
            let raises = before.is_none_or(|told| limit_of(order) > limit_of(&told));
            if raises {
                raised.push((*cookie, *order));
            }
            !raises
        });
        round.append(&mut raised);
        round
    }

    /// Returns whether an order was written for the connection.
    pub(super) fn has(&self, cookie: u64) -> bool {
        self.told.contains_key(&cookie)
    }

    /// Forgets a connection.
    pub(super) fn forget(&mut self, cookie: u64) {
        self.told.remove(&cookie);
    }

    /// Returns the number of connections that are remembered.
    pub(super) fn len(&self) -> usize {
        self.told.len()
    }

    /// Forgets all connections but those to keep.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(u64) -> bool) {
        self.told.retain(|cookie, _| keeps(*cookie));
    }
}

/// Returns the limit of an order; without one, the largest number of bytes.
fn limit_of(order: &Order) -> Bytes {
    order.limit.unwrap_or(Bytes::MAX)
}

/// Returns whether the last written order is close enough.
fn is_near(told: &Order, order: &Order, is_exact: bool) -> bool {
    let near = |told: Bytes, now: Bytes| told.0.abs_diff(now.0) <= if is_exact { 0 } else { told.0 / NEAR };
    let limits = match (told.limit, order.limit) {
        (Some(told), Some(now)) => near(told, now),
        (told, now) => told == now,
    };
    near(told.demand, order.demand) && limits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(cookie: u64, limit: u64) -> (u64, Order) {
        (cookie, Order { demand: Bytes::ZERO, limit: Some(Bytes(limit)) })
    }

    #[test]
    fn an_order_goes_out_when_it_has_changed_and_once_in_sixteen_rounds() {
        let mut orders = Orders::new(false);
        let all = [order(100, 64_000), order(101, 64_000)];
        assert_eq!(orders.changed(all.to_vec()), all);
        let [near, off] = [order(100, 65_000), order(101, 65_001)];
        assert_eq!(orders.changed(vec![near, off]), [off]);
        let least = order(100, 63_000);
        assert_eq!(orders.changed(vec![least, off]), [], "the written 64,000 are 64/63 of it");
        let rounds: Vec<_> = (0..16).map(|_| orders.changed(vec![near, off])).collect();
        assert_eq!(rounds.concat().len(), 2, "each once: {rounds:?}");
    }

    #[test]
    fn after_orders_that_could_not_be_written_the_next_round_writes_all() {
        let mut orders = Orders::new(false);
        let all = [order(108, 64_000), order(109, 64_000)];
        orders.changed(all.to_vec());
        assert_eq!(orders.changed(all.to_vec()), []);
        orders.tell_again();
        assert_eq!(orders.changed(all.to_vec()), all);
        assert_eq!(orders.changed(all.to_vec()), []);
    }

    #[test]
    fn orders_that_lower_a_limit_are_written_first() {
        let mut orders = Orders::new(false);
        orders.changed(vec![order(100, 64_000), order(101, 64_000)]);
        let [raised, lowered, new] = [order(100, 80_000), order(101, 48_000), order(102, 1)];
        assert_eq!(orders.changed(vec![raised, new, lowered]), [lowered, raised, new]);
    }

    #[test]
    fn a_bound_that_comes_or_goes_is_a_change_and_a_forgotten_connection_is_new() {
        let mut orders = Orders::new(false);
        let unbounded = (100, Order { demand: Bytes::ZERO, limit: None });
        for one in [order(100, 7), unbounded, order(100, 7)] {
            assert_eq!(orders.changed(vec![one]), [one]);
        }
        orders.forget(100);
        assert_eq!(orders.changed(vec![order(100, 7)]).len(), 1);
    }

    #[test]
    fn the_papers_orders_are_told_exactly() {
        let mut orders = Orders::new(true);
        orders.changed(vec![order(100, 64_000)]);
        assert_eq!(orders.changed(vec![order(100, 64_000)]), []);
        assert_eq!(orders.changed(vec![order(100, 64_001)]).len(), 1);
    }
}
