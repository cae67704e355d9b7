//! When the receiver tells the sender how large its buffer should be.
//!
//! Problem: each word costs a message on the control connection, which the other side must read while it moves data.
//! Source: 001, section 4.2, for the message; the spacing is ours.
//! Properties kept: the first size is told at once; then at most one in a round trip, and only for a change of a
//! quarter or more.

use bufwise_policy::{Bytes, Micros};

/// A change of less than this part is not told.
const NOTABLE: u64 = 4;
/// Taken for the round-trip time while none is known (001 and 003: a clock of 10 ms).
const UNKNOWN_RTT: Micros = Micros::from_millis(10);

/// What the sender was told last, and when.
#[derive(Debug, Default)]
pub(super) struct WishOfSender {
    told: Option<(Bytes, Micros)>,
}

impl WishOfSender {
    /// The size to tell at `now`, if it is time.
    pub(super) fn due(&mut self, size: Bytes, rtt: Option<Micros>, now: Micros) -> Option<Bytes> {
        if let Some((before, at)) = self.told {
            let spacing = rtt.unwrap_or(UNKNOWN_RTT).max(Micros(1));
            if size.0.abs_diff(before.0) < before.0.div_ceil(NOTABLE).max(1) || now.since(at) < spacing {
                return None;
            }
        }
        self.told = Some((size, now));
        Some(size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_first_size_and_notable_changes_are_told() {
        let (mut wish, rtt) = (WishOfSender::default(), Some(Micros::from_millis(100)));
        let mut at =
            |size, millis| wish.due(Bytes(size), rtt, Micros::from_millis(millis)).map(|size| size.0);
        assert_eq!(at(64_000, 0), Some(64_000));
        assert_eq!(at(256_000, 99), None, "too soon");
        assert_eq!(at(79_999, 100), None, "too little");
        assert_eq!(at(80_000, 100), Some(80_000));
        assert_eq!(at(60_000, 200), Some(60_000));
        assert_eq!(at(0, 300), Some(0));
        assert_eq!(at(0, 400), None);
    }

    proptest! {
        #[test]
        fn no_two_words_in_a_round_trip_nor_without_a_change(
            steps in proptest::collection::vec((any::<u64>(), 0_u64..300_000), 1..60), rtt in 1_u64..500_000,
        ) {
            let (mut wish, mut now, mut told) = (WishOfSender::default(), Micros::ZERO, None::<(u64, Micros)>);
            for (size, step) in steps {
                now += Micros(step);
                if wish.due(Bytes(size), Some(Micros(rtt)), now).is_some() {
                    if let Some((before, at)) = told {
                        prop_assert!(now.since(at).0 >= rtt);
                        prop_assert!(u128::from(size.abs_diff(before)) * 4 >= u128::from(before));
                    }
                    told = Some((size, now));
                }
            }
        }
    }
}
