//! Shares of the receive memory: the largest window that anybody may offer.
//!
//! Problem: what a receive queue holds is up to the peer and the application: all that can be bounded is the window.
//! Terms: a connection's *demand* is the memory that its window may fill: twice the most that a round trip brought
//! (Fisk 2000, section 6.5); the kernel takes two bytes of memory for one of payload.
//! Rule: max-min over the demands, as ABT's for sending (Semke 1998, appendix A): small demands are met, the largest
//! share the rest equally. While all are met, the level still bounds what growth until the next round could take. There is
//! always a level, unless it is beyond what the rules offer: buffers grow with the window on offer, and a reader that stops
//! lets its queue fill its buffer, which no demand shows beforehand.
//! Keeps: the windows of the level sum to no more than the budget, unless all are at the floor or met. A connection that has
//! not yet shown a demand may be offered a quarter of the budget. Not kept: what readers that stop hold. A window bounds what
//! is under way, and unread data up to the receive buffer, which is 1 MiB at least (`bw_decide_rcvbuf()`).

use bufwise_bpf::FlowState;
use bufwise_policy::{PolicyKind, Share};
use bufwise_units::Bytes;

use super::plan::MAX_WINDOW;
use super::shares::{OVERHEAD, max_min_with_newcomers};

/// The payload of a round trip may double until the window follows.
const DOUBLING: u64 = 2;
/// The least window: two segments of Ethernet's size, as DRS's own floor.
const FLOOR: Bytes = Bytes(2 * 1_460);
/// The rest of the budget takes in windows that were offered before and cannot be taken back.
const SHARED: (u64, u64) = (15, 16);

/// The rule for one budget.
#[derive(Clone, Copy, Debug)]
pub(super) struct WindowBook {
    policy: PolicyKind,
    budget: Bytes,
}

impl WindowBook {
    pub(super) fn new(policy: PolicyKind, budget: Bytes) -> Self {
        Self { policy, budget }
    }

    /// The largest window (payload) of any connection until the next round; `None`: no bound but that of the rules.
    pub(super) fn level(&self, flows: &[FlowState]) -> Option<Bytes> {
        if self.policy == PolicyKind::Kernel {
            return None;
        }
        let demands: Vec<Bytes> =
            flows.iter().filter(|flow| takes_part(flow)).map(|flow| self.demand(flow)).collect();
        let shared = self.budget.scaled(SHARED.0, SHARED.1);
        let Share::Level(level) = max_min_with_newcomers(&demands, shared) else { return None };
        let window = Bytes(level.min(shared).0 / OVERHEAD).max(FLOOR);
        // No rule offers more.
        (window < MAX_WINDOW).then_some(window)
    }

    fn demand(&self, flow: &FlowState) -> Bytes {
        let window = match self.policy {
            PolicyKind::Fixed(size) => size,
            _ => flow.drs_largest.times(DOUBLING),
        };
        window.times(OVERHEAD)
    }
}

/// Open, and its buffer is ours to size.
fn takes_part(flow: &FlowState) -> bool {
    !flow.closed && !flow.owned.receive
}

#[cfg(test)]
mod tests {
    use super::super::shares::tests::flow;
    use super::*;

    fn receiver(cookie: u64, largest: u64) -> FlowState {
        FlowState { drs_largest: Bytes(largest), ..flow(cookie, 0) }
    }

    #[test]
    fn the_large_are_bounded_and_the_small_are_met() {
        // 300,000 to share; 40,000 are met, two want 400,000 each.
        let book = WindowBook::new(PolicyKind::Drs, Bytes(320_000));
        let flows = [receiver(1, 10_000), receiver(2, 100_000), receiver(3, 100_000)];
        assert_eq!(book.level(&flows), Some(Bytes(65_000)));
    }

    #[test]
    fn what_is_not_ours_takes_no_share_and_a_newcomer_has_a_quarter() {
        let book = WindowBook::new(PolicyKind::Sobas, Bytes(320_000));
        let mut flows = [receiver(1, 100_000), receiver(2, 100_000)];
        flows[0].owned.receive = true;
        flows[1].closed = true;
        assert_eq!(book.level(&flows), Some(Bytes(37_500)), "of 300,000 of memory, two bytes for one");
        assert_eq!(WindowBook::new(PolicyKind::Kernel, Bytes(1)).level(&[receiver(1, 100_000)]), None);
    }

    #[test]
    fn a_slow_reader_is_offered_no_more_than_its_part_of_the_budget() {
        // Its demand is next to nothing, and its peer may fill all that it offers at once.
        let budget = Bytes(64 << 20);
        let book = WindowBook::new(PolicyKind::Sobas, budget);
        let memory = |flows: &[FlowState]| book.level(flows).unwrap().times(OVERHEAD);
        assert!(memory(&[receiver(1, 2_000)]) <= budget.scaled(1, 4));
        let fast = [receiver(1, 2_000), receiver(2, 2_000_000)];
        assert!(memory(&fast) >= Bytes(4 * 8_000_000), "the fast one may grow fourfold until the next round");
        assert!(memory(&[receiver(1, 1 << 24)]) <= budget, "one alone has no more than all");
        let many: Vec<FlowState> = (0..300).map(|cookie| receiver(cookie, 2_000)).collect();
        assert!(memory(&many).times(300) <= budget, "all windows together");
    }

    #[test]
    fn nobody_falls_below_two_segments() {
        let flows: Vec<FlowState> = (0..100).map(|cookie| receiver(cookie, 100_000)).collect();
        assert_eq!(WindowBook::new(PolicyKind::Drs, Bytes(1_000)).level(&flows), Some(FLOOR));
    }
}
