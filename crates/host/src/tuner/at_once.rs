//! How much a writer fills at once, chosen by the shares.
//!
//! Problem: a writer fills the buffer that it has begun, whatever its limit (`tcp_sendmsg()`), and its device says how large
//! that is (`gso_max_size`). A share of less than some of these buffers cannot be kept; and small ones cost processor time.
//! Rule: a sixth of what a connection may hold, the largest power of two within it, from 4 KiB to as much as was chosen for the
//! budget at the start. Lowered as soon as the shares ask for it; raised to the least that they have allowed in
//! [`PATIENCE`], for they swing (after a loss many ask for little, and grow together).

use bufwise_units::{Bytes, Micros};

/// Two segments of 1,500 bytes.
const LEAST: u64 = 4 << 10;
/// The kernel's own bound (`GSO_LEGACY_MAX_SIZE`), from which on none is needed.
const NEEDLESS: u64 = 64 << 10;
/// Buffers in a share: it is kept above three; the half full one of the writer and what varies between two looks come to that
/// again. Measured: with 2 in 34 KB (500 connections) the budget was exceeded by 7%, with 4 it was not.
const PARTS: u64 = 6;
/// So long the shares must have allowed more.
const PATIENCE: Micros = Micros(8_000_000);

/// The largest size within `part`, in bytes; [`u64::MAX`]: whatever the devices take.
pub(super) fn within(part: Bytes) -> u64 {
    let size = 1 << part.0.max(LEAST).ilog2();
    if size < NEEDLESS { size } else { u64::MAX }
}

/// The size that holds now, and what the shares have allowed since a while.
#[derive(Debug)]
pub(super) struct AtOnce {
    most: u64,
    size: u64,
    allowed: u64,
    since: Micros,
}

impl AtOnce {
    /// Devices shall never take more than `most` bytes at once; what they take now is not known.
    pub(super) fn new(most: u64) -> Self {
        Self { most, size: u64::MAX, allowed: most, since: Micros::ZERO }
    }

    /// Sees what a connection may hold (`None`: no bound); the new size in bytes, if it changes.
    pub(super) fn observe(&mut self, level: Option<Bytes>, now: Micros) -> Option<u64> {
        let wanted = level.map_or(self.most, |level| within(level.scaled(1, PARTS)).min(self.most));
        self.allowed = self.allowed.min(wanted);
        let is_less = wanted < self.size;
        if !is_less && now.since(self.since) < PATIENCE {
            return None;
        }
        let next = if is_less { wanted } else { self.allowed };
        (self.allowed, self.since) = (self.most, now);
        let before = std::mem::replace(&mut self.size, next);
        (next != before).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Micros {
        Micros::from_millis(1_000 * seconds)
    }

    #[test]
    fn it_follows_the_shares_down_at_once_and_up_to_the_least_of_eight_seconds() {
        let mut at_once = AtOnce::new(32_768);
        assert_eq!(at_once.observe(Some(Bytes(1 << 20)), at(1)), Some(32_768), "nobody knows what holds");
        assert_eq!(at_once.observe(Some(Bytes(107_000)), at(2)), Some(16_384));
        assert_eq!(at_once.observe(Some(Bytes(26_000)), at(3)), Some(4_096));
        assert_eq!(at_once.observe(None, at(4)), None);
        assert_eq!(at_once.observe(Some(Bytes(60_000)), at(5)), None);
        assert_eq!(at_once.observe(None, at(10)), None);
        assert_eq!(at_once.observe(None, at(11)), Some(8_192), "the least since 3 s");
        assert_eq!(at_once.observe(None, at(18)), None);
        assert_eq!(at_once.observe(None, at(19)), Some(32_768));
        assert_eq!(at_once.observe(None, at(30)), None);
    }

    proptest! {
        #[test]
        fn a_share_of_24_kb_holds_six_and_no_size_is_above_the_most_or_below_the_least(
            levels in proptest::collection::vec(proptest::option::of(24_576u64..10_000_000), 1..60),
            most in 12u32..16, step in 1u64..4_000,
        ) {
            let mut at_once = AtOnce::new(1 << most);
            let mut size = 1 << most;
            for (index, level) in levels.iter().enumerate() {
                let now = Micros::from_millis(1_000 + index as u64 * step);
                size = at_once.observe(level.map(Bytes), now).unwrap_or(size);
                prop_assert!((LEAST..=1 << most).contains(&size) && size.is_power_of_two());
                prop_assert!(level.is_none_or(|level| size * PARTS <= level));
            }
        }
    }
}
