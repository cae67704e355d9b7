//! Chooses, from the shares, how much a writer fills at once.
//!
//! Problem: a writer fills the buffer that it has begun, whatever its limit is (`tcp_sendmsg()`). The device sets the size
//! of that buffer (`gso_max_size`). A share of less than a few such buffers cannot be kept; but small buffers cost
//! processor time.
//! Rule: the size is the largest power of two within a sixth of an equal share of the budget, at least 4 KiB; from 64 KiB
//! on, it is as much as the device takes. [`NEWCOMERS`] count as connections as well, because they start before a sample
//! finds them. The size is lowered as soon as the shares require it. It is raised only to the least size that the shares
//! have allowed during [`PATIENCE`].

use bufwise_units::{Bytes, Micros};

/// Least size, bytes: room for two segments of 1,500 bytes.
pub(super) const LEAST: u64 = 4 << 10;
/// The kernel's own bound (`GSO_LEGACY_MAX_SIZE`), bytes; from here on no bound is set.
pub(super) const NEEDLESS: u64 = 64 << 10;
/// A share can be kept if it has at least this many of the buffers that a writer fills at once (`bw_limit_of_share()`).
pub(super) const KEPT_ABOVE: u64 = 3;
/// Buffers in a share: [`KEPT_ABOVE`], and three more for the writer's half-full buffer and for changes between two
/// samples. Measured with shares of 34 KB (500 connections): with 2 buffers in a share the budget was exceeded by 7%,
/// with 4 it was not.
const PARTS: u64 = 6;
/// Most connections that are expected to start between two samples.
const NEWCOMERS: u64 = 16;
/// Time for which the shares must have allowed a larger size before the size is raised.
const PATIENCE: Micros = Micros(2_000_000);

/// Returns the largest allowed size within `part`, in bytes; [`u64::MAX`]: whatever the devices take.
pub(super) fn within(part: Bytes) -> u64 {
    let size = 1 << part.0.max(LEAST).ilog2();
    if size < NEEDLESS { size } else { u64::MAX }
}

/// The present size, and the least that the shares have allowed recently.
#[derive(Debug)]
pub(super) struct AtOnce {
    budget: Bytes,
    size: u64,
    allowed: u64,
    since: Option<Micros>,
}

impl AtOnce {
    /// Starts with the size `first`, in bytes: the size that the devices take, or that an earlier plan has set. `budget` is
    /// the part of the budget that is shared out.
    pub(super) fn new(budget: Bytes, first: u64) -> Self {
        Self { budget, size: first, allowed: u64::MAX, since: None }
    }

    /// Makes the next [`AtOnce::observe`] return the size even if it has not changed: the devices may have another one.
    pub(super) fn tell_again(&mut self) {
        self.since = None;
    }

    /// Takes in the number of sending connections; returns the new size in bytes if it changes, and always at the
    /// first call.
    pub(super) fn observe(&mut self, senders: usize, now: Micros) -> Option<u64> {
        let wanted = within(self.budget.scaled(1, (senders as u64 + NEWCOMERS) * PARTS));
        self.allowed = self.allowed.min(wanted);
        let is_patient = self.since.is_some_and(|since| now.since(since) >= PATIENCE);
        let is_first = self.since.is_none();
        let next = if wanted < self.size {
            wanted
        } else if is_patient {
            self.allowed
        } else if is_first {
            self.size
        } else {
            return None;
        };
        (self.allowed, self.since) = (u64::MAX, Some(now));
        let before = std::mem::replace(&mut self.size, next);
        (is_first || next != before).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(tenths: u64) -> Micros {
        Micros::from_millis(1_000 + 100 * tenths)
    }

    #[test]
    fn it_follows_the_shares_down_at_once_and_up_to_the_least_of_two_seconds() {
        let mut at_once = AtOnce::new(Bytes(16 << 20), u64::MAX);
        assert_eq!(at_once.observe(1, at(0)), Some(u64::MAX), "another plan may have left less");
        assert_eq!(at_once.observe(10, at(1)), None);
        assert_eq!(at_once.observe(500, at(2)), Some(4_096));
        assert_eq!(at_once.observe(1, at(3)), None);
        assert_eq!(at_once.observe(100, at(9)), None);
        assert_eq!(at_once.observe(1, at(22)), Some(16_384), "the least of the last two seconds");
        assert_eq!(at_once.observe(1, at(41)), None);
        assert_eq!(at_once.observe(1, at(42)), Some(u64::MAX));
        assert_eq!(at_once.observe(1, at(99)), None);
        at_once.tell_again();
        assert_eq!(at_once.observe(10, at(100)), Some(u64::MAX));
        at_once.tell_again();
        assert_eq!(at_once.observe(500, at(101)), Some(4_096));
    }

    #[test]
    fn a_small_budget_begins_small_and_few_connections_get_more() {
        let mut at_once = AtOnce::new(Bytes(1 << 20), 4_096);
        assert_eq!(at_once.observe(0, at(0)), Some(4_096));
        assert_eq!(at_once.observe(1, at(19)), None);
        assert_eq!(at_once.observe(1, at(20)), Some(8_192));
    }

    proptest! {
        #[test]
        fn a_share_holds_six_of_them_and_none_is_below_the_least(
            senders in proptest::collection::vec(0_usize..3_000, 1..60),
            budget in 65_536_u64..200_000_000, step in 1_u64..4_000,
        ) {
            let mut at_once = AtOnce::new(Bytes(budget), 4_096);
            let mut size = 0;
            for (index, senders) in senders.into_iter().enumerate() {
                let now = Micros::from_millis(1_000 + index as u64 * step);
                size = at_once.observe(senders, now).unwrap_or(size);
                let share = budget / (senders as u64).max(1);
                prop_assert!(size >= LEAST);
                prop_assert!(size == LEAST || size.min(NEEDLESS) * PARTS <= share);
            }
        }
    }
}
