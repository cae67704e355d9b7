//! Shares of the receive memory: the largest window that any connection may offer, and with it the largest receive
//! buffer.
//!
//! Problem: the peer and the application determine what a receive queue holds. The window bounds the data under way;
//! unread data may fill the buffer, so the programs keep the buffer within twice the window's bound
//! (`bw_decide_rcvbuf()`).
//! Terms: a connection's *demand* is the memory that its window may fill: twice the most data that a round trip
//! brought (Fisk 2000, section 6.5); the kernel takes two bytes of memory for one of payload. A reader has *stalled*
//! if more is unread than a round trip brought, or than an equal part of the budget.
//! A connection is *at rest* if nothing is unread and it has moved no data for some seconds. It has no demand until it moves
//! data again; otherwise the idle connections of a server would leave no window to the busy ones.
//! Rule: stalled readers keep the memory that they hold and have offered, because neither can be taken back. The others
//! share the rest, max-min over the demands, as under ABT for sending (Semke 1998, appendix A): small demands are met, the
//! largest share what remains equally. While all demands are met, the level still bounds growth until the next sample.
//! The level is absent only if it would exceed the largest window that any rule offers.
//! Properties kept: the memory of stalled readers, and the others' demands as far as the level allows them, sum to at
//! most the budget, unless the level is at its floor of two segments. A connection without a demand yet may be offered a
//! quarter of the rest. The level is never below an equal part of a sixteenth of the budget, so stalled readers starve no
//! other connection.
//! Not kept: if many readers with small demands, or at rest, stop reading at once, they may exceed the budget until the
//! next sample. A reader that stops after the level has fallen may still be sent the window that it offered before. A reader that
//! sleeps until much is unread (`SO_RCVLOWAT`) has room for that beside its share (`bw_decide_rcvbuf()`): its unread data count
//! once it has stalled, but are not bounded by the level.

use bufwise_bpf::FlowState;
use bufwise_policy::PolicyKind;
use bufwise_units::{Bytes, Micros};

use super::asked::Asked;
use super::plan::MAX_WINDOW;
use super::shares::{OVERHEAD, is_silent, max_min_with_newcomers};

/// Factor by which the payload of a round trip may grow until the window follows.
const DOUBLING: u64 = 2;
/// The least window, payload bytes: two segments of Ethernet's size, as DRS's own floor.
const FLOOR: Bytes = Bytes(2 * 1_460);
/// Part of the budget that is shared out. The rest is for windows that were offered before and cannot be taken back, and
/// for the least level.
const SHARED: (u64, u64) = (15, 16);

/// Computes the bound of the receive windows for the connections of one engine.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowBook {
    policy: PolicyKind,
    budget: Bytes,
}

impl WindowBook {
    pub(super) fn new(policy: PolicyKind, budget: Bytes) -> Self {
        Self { policy, budget }
    }

    /// Returns the largest window (payload) of any connection until the next sample; `None`: only the rules bound it.
    pub(super) fn level(&self, flows: &[FlowState], now: Micros) -> Option<Bytes> {
        self.round(flows, now).0
    }

    /// As [`Self::level`]; also returns the demands of the connections.
    pub(super) fn round(&self, flows: &[FlowState], now: Micros) -> (Option<Bytes>, Asked) {
        if self.policy == PolicyKind::Kernel {
            return (None, Asked::default());
        }
        let takes_part = |flow: &&FlowState| takes_part(flow) && !rests(flow, now);
        let connections = flows.iter().filter(takes_part).count();
        let shared = self.shared();
        let equal = |memory: Bytes| memory.scaled(1, connections.max(1) as u64);
        let (part, mut left, mut demands) = (equal(shared), shared, Vec::with_capacity(connections));
        let mut asked = Asked { connections: connections as u64, shared, ..Asked::default() };
        for flow in flows.iter().filter(takes_part) {
            if stands(flow, part) {
                let taken = taken(flow);
                left = left - taken;
                asked.demand += taken;
                asked.standing += 1;
                asked.unread += flow.sample.receive_queued;
            } else {
                demands.push(self.demand(flow));
            }
        }
        asked.demand += demands.iter().copied().sum();
        let level = max_min_with_newcomers(&demands, left).limit(Bytes::MAX).unwrap_or(left);
        let least = equal(self.budget - shared);
        let window = Bytes(level.min(left).max(least).0 / OVERHEAD).max(FLOOR);
        // No rule offers a larger window.
        let window = (window < MAX_WINDOW).then_some(window);
        asked.level = window.map(|window| window.times(OVERHEAD));
        (window, asked)
    }

    /// Returns the part of the budget that is shared out.
    pub(super) fn shared(&self) -> Bytes {
        self.budget.scaled(SHARED.0, SHARED.1)
    }

    fn demand(&self, flow: &FlowState) -> Bytes {
        let window = match self.policy {
            PolicyKind::Fixed(size) => size,
            _ => flow.drs_largest.times(DOUBLING),
        };
        window.times(OVERHEAD)
    }
}

/// Returns whether the reader has stalled: it leaves data unread that it could have read.
fn stands(flow: &FlowState, equal: Bytes) -> bool {
    flow.sample.receive_queued > flow.drs_largest.times(OVERHEAD).min(equal)
}

/// Returns the memory that the connection holds, with the offered window that its peer may fill, up to the buffer's limit.
fn taken(flow: &FlowState) -> Bytes {
    let (held, offered) = (flow.sample.receive_queued, flow.sample.rcv_wnd.times(OVERHEAD));
    (held + offered).min(flow.sample.rcvbuf.max(held))
}

/// Returns whether the connection is open, and bufwise sizes its buffer.
fn takes_part(flow: &FlowState) -> bool {
    !flow.closed && !flow.owned.receive
}

/// Returns whether the connection is at rest as a receiver.
fn rests(flow: &FlowState, now: Micros) -> bool {
    flow.sample.receive_queued == Bytes::ZERO && is_silent(flow, now)
}

#[cfg(test)]
mod tests {
    use super::super::shares::tests::flow;
    use super::*;

    const NOW: Micros = Micros::from_secs(1);

    fn receiver(cookie: u64, largest: u64) -> FlowState {
        FlowState { drs_largest: Bytes(largest), ..flow(cookie, 0) }
    }

    #[test]
    fn the_large_are_bounded_and_the_small_are_met() {
        // 300,000 to share; the demand of 40,000 is met, two demand 400,000 each.
        let book = WindowBook::new(PolicyKind::Drs, Bytes(320_000));
        let flows = [receiver(1, 10_000), receiver(2, 100_000), receiver(3, 100_000)];
        assert_eq!(book.level(&flows, NOW), Some(Bytes(65_000)));
    }

    #[test]
    fn connections_at_rest_leave_the_windows_to_the_busy() {
        let book = WindowBook::new(PolicyKind::Drs, Bytes(16 << 20));
        let later = Micros::from_secs(20);
        let busy = FlowState { seen_at: later, ..receiver(1_000, 1_000_000) };
        let with_idle = |seen_at, unread| -> Vec<FlowState> {
            let one = |cookie| {
                let mut idle = FlowState { seen_at, ..receiver(cookie, 100_000) };
                idle.sample.receive_queued = Bytes(unread);
                idle
            };
            (0..200).map(one).chain([busy]).collect()
        };
        let alone = book.level(&[busy], later);
        assert!(alone >= Some(Bytes(2_000_000)), "{alone:?}");
        assert_eq!(book.level(&with_idle(NOW, 0), later), alone);
        for counts in [with_idle(later, 0), with_idle(NOW, 1)] {
            assert!(book.level(&counts, later) < Some(Bytes(100_000)));
        }
    }

    #[test]
    fn what_is_not_ours_takes_no_share_and_a_newcomer_has_a_quarter() {
        let book = WindowBook::new(PolicyKind::Sobas, Bytes(320_000));
        let mut flows = [receiver(1, 100_000), receiver(2, 100_000)];
        flows[0].owned.receive = true;
        flows[1].closed = true;
        assert_eq!(book.level(&flows, NOW), Some(Bytes(37_500)), "of 300,000 of memory, two bytes for one");
        assert_eq!(WindowBook::new(PolicyKind::Kernel, Bytes(1)).level(&[receiver(1, 100_000)], NOW), None);
    }

    #[test]
    fn a_slow_reader_is_offered_no_more_than_its_part_of_the_budget() {
        // Its demand is almost zero, but its peer may fill the whole offered window at once.
        let budget = Bytes(64 << 20);
        let book = WindowBook::new(PolicyKind::Sobas, budget);
        let memory = |flows: &[FlowState]| book.level(flows, NOW).unwrap().times(OVERHEAD);
        assert!(memory(&[receiver(1, 2_000)]) <= budget.scaled(1, 4));
        let fast = [receiver(1, 2_000), receiver(2, 2_000_000)];
        assert!(memory(&fast) >= Bytes(4 * 8_000_000), "the fast one may grow fourfold until the next round");
        assert!(memory(&[receiver(1, 1 << 24)]) <= budget, "one alone has no more than all");
        let many: Vec<FlowState> = (0..300).map(|cookie| receiver(cookie, 2_000)).collect();
        assert!(memory(&many).times(300) <= budget, "all windows together");
    }

    /// Returns a stalled reader, whose buffer is full.
    fn standing(cookie: u64, held: u64) -> FlowState {
        let mut flow = receiver(cookie, 1_000);
        (flow.sample.receive_queued, flow.sample.rcvbuf) = (Bytes(held), Bytes(held));
        flow
    }

    #[test]
    fn what_stands_is_taken_from_what_the_others_share() {
        // 300,000 to share, of which a stalled reader holds 200,000: the others have 25,000 of payload each.
        let book = WindowBook::new(PolicyKind::Drs, Bytes(320_000));
        let two = [receiver(2, 100_000), receiver(3, 100_000)];
        let level = |one: FlowState| book.level(&[two[0], one, two[1]], NOW);
        assert_eq!(level(standing(1, 200_000)), Some(Bytes(25_000)));
        let mut filling = standing(1, 100_000);
        (filling.sample.rcv_wnd, filling.sample.rcvbuf) = (Bytes(30_000), Bytes(400_000));
        assert_eq!(level(filling), Some(Bytes(35_000)), "with the 60,000 that its window may take");
        filling.sample.rcvbuf = Bytes(120_000);
        assert_eq!(level(filling), Some(Bytes(45_000)), "and its buffer takes in");
        // Unread data up to the amount of a round trip counts as read in time.
        let mut reads = receiver(1, 100_000);
        reads.sample.receive_queued = Bytes(100_000);
        assert_eq!(level(reads), Some(Bytes(50_000)));
        reads.sample.receive_queued += Bytes(1);
        assert!(
            level(reads) < Some(Bytes(50_000)),
            "more than an equal part is not given back by the level alone"
        );
    }

    #[test]
    fn a_newcomer_is_offered_a_quarter_of_what_is_left() {
        let book = WindowBook::new(PolicyKind::Sobas, Bytes(320_000));
        assert_eq!(
            book.level(&[standing(1, 220_000)], NOW),
            Some(Bytes(10_000)),
            "a quarter of 80,000 of memory"
        );
    }

    #[test]
    fn readers_that_stand_starve_nobody() {
        let book = WindowBook::new(PolicyKind::Fit, Bytes(32 << 20));
        let mut flows: Vec<FlowState> = (0..8).map(|cookie| standing(cookie, 8 << 20)).collect();
        flows.extend((8..16).map(|cookie| receiver(cookie, 100_000)));
        assert_eq!(book.level(&flows, NOW), Some(Bytes(64 << 10)), "an equal part of 2 MiB, in payload");
    }

    #[test]
    fn readers_that_stop_one_after_the_other_hold_no_more_than_the_budget() {
        let budget = Bytes(8 << 20);
        let book = WindowBook::new(PolicyKind::Sobas, budget);
        for (connections, largest) in [(2, 1_000_000), (10, 2_000), (50, 2_000), (50, 40_000), (300, 40_000)]
        {
            let mut flows: Vec<FlowState> =
                (0..connections).map(|cookie| receiver(cookie, largest)).collect();
            let mut held = Bytes::ZERO;
            for stops in 0..flows.len() {
                // Its buffer fills with as much as the level allowed.
                let memory = book.level(&flows, NOW).unwrap().times(OVERHEAD);
                flows[stops] = standing(stops as u64, memory.0);
                held += memory;
                assert!(held <= budget, "{held} after {stops} of {connections}");
            }
        }
    }

    #[test]
    fn nobody_falls_below_two_segments() {
        let flows: Vec<FlowState> = (0..100).map(|cookie| receiver(cookie, 100_000)).collect();
        assert_eq!(WindowBook::new(PolicyKind::Drs, Bytes(1_000)).level(&flows, NOW), Some(FLOOR));
    }
}
