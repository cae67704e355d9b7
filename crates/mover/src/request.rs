//! Spaces the receiver's requests for the sender's buffer.
//!
//! Problem: each request costs a message on the control connection, which the other side must read while it moves data.
//! Source: Feng 2002 (drsFTP), section 4.2, for the message; the spacing is ours.
//! Properties kept: the first size is requested at once; then at most one per present round trip, and only for a change
//! of a quarter or more; a size that comes too soon is requested later, if it is still the wanted one; zero is never
//! requested.

use bufwise_units::{Bytes, Micros};

/// A change of less than this part is neither requested nor granted.
const NOTABLE_PART: u64 = 4;
/// Shortest time between two requests, whatever the round-trip time: a receiver cannot measure changes within it (Fisk
/// 2000 and Feng 2002: a clock of 10 ms).
pub(crate) const MIN_REQUEST_SPACING: Micros = Micros::from_millis(10);

/// Whether two sizes differ by a quarter of the first or more.
pub(crate) fn is_notable(before: Bytes, size: Bytes) -> bool {
    size != before && size.0.abs_diff(before.0) >= before.0.div_ceil(NOTABLE_PART)
}

/// The wanted size of the sender's buffer, and the size requested last.
#[derive(Debug, Default)]
pub(crate) struct RequestPacer {
    /// The wanted size; zero: none.
    wanted: Bytes,
    /// The size last requested, and when.
    told: Option<(Bytes, Micros)>,
}

impl RequestPacer {
    /// Takes the size that is wanted from now on; zero: none, `None`: unchanged. Returns the size to request at `now`,
    /// if a request is due; it counts as requested.
    pub(crate) fn due(&mut self, wanted: Option<Bytes>, rtt: Option<Micros>, now: Micros) -> Option<Bytes> {
        self.wanted = wanted.unwrap_or(self.wanted);
        let spacing = rtt.unwrap_or_default().max(MIN_REQUEST_SPACING);
        let due = match self.told {
            None => true,
            Some((before, at)) => now.since(at) >= spacing && is_notable(before, self.wanted),
        };
        if !due || self.wanted == Bytes::ZERO {
            return None;
        }
        self.told = Some((self.wanted, now));
        Some(self.wanted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Option<Micros> = Some(Micros::from_millis(100));

    fn told(request: &mut RequestPacer, wanted: impl Into<Option<u64>>, millis: u64) -> Option<u64> {
        request.due(wanted.into().map(Bytes), RTT, Micros::from_millis(millis)).map(|size| size.0)
    }

    #[test]
    fn the_first_size_and_notable_changes_are_told_but_no_zero() {
        let mut request = RequestPacer::default();
        assert_eq!(told(&mut request, None, 0), None);
        assert_eq!(told(&mut request, 0, 0), None);
        assert_eq!(told(&mut request, 64_000, 1), Some(64_000));
        assert_eq!(told(&mut request, 79_999, 101), None, "too little");
        assert_eq!(told(&mut request, 80_000, 101), Some(80_000));
        assert_eq!(told(&mut request, 60_000, 201), Some(60_000));
        assert_eq!(told(&mut request, 0, 301), None);
        assert_eq!(told(&mut request, 1, 301), Some(1));
    }

    #[test]
    fn a_withheld_size_is_told_when_it_is_time() {
        let mut request = RequestPacer::default();
        assert_eq!(told(&mut request, 64_000, 0), Some(64_000));
        assert_eq!(told(&mut request, 256_000, 99), None, "too soon");
        assert_eq!(told(&mut request, None, 100), Some(256_000), "though nothing is said of it any more");
        assert_eq!(told(&mut request, 64_000, 101), None, "too soon");
        assert_eq!(told(&mut request, 0, 102), None, "nothing is wanted any more");
        assert_eq!(told(&mut request, None, 300), None);
    }

    #[test]
    fn the_spacing_is_that_of_the_round_trip_now_and_never_none() {
        let (mut request, millis) = (RequestPacer::default(), Micros::from_millis);
        assert!(request.due(Some(Bytes(1)), RTT, millis(0)).is_some());
        assert!(
            request.due(Some(Bytes(2)), Some(millis(300)), millis(299)).is_none(),
            "a queue has built up"
        );
        assert!(request.due(None, Some(millis(20)), millis(300)).is_some(), "it has gone");
        assert!(request.due(Some(Bytes(4)), Some(millis(1)), millis(309)).is_none());
        assert!(request.due(None, None, millis(310)).is_some());
    }

    proptest! {
        #[test]
        fn no_two_words_in_a_round_trip_nor_without_a_change_and_none_is_lost(
            steps in proptest::collection::vec((proptest::option::of(any::<u64>()), 0_u64..300_000, 0_u64..500_000), 1..60),
        ) {
            let (mut request, mut now, mut told, mut wanted) = (RequestPacer::default(), Micros::ZERO, None, 0);
            for (size, step, rtt) in steps {
                now += Micros(step);
                wanted = size.unwrap_or(wanted);
                let word = request.due(size.map(Bytes), Some(Micros(rtt)), now);
                let in_time = told.is_none_or(|(_, at)| now.since(at) >= Micros(rtt).max(MIN_REQUEST_SPACING));
                let changed = told.is_none_or(|(before, _): (u64, _)| {
                    wanted != before && u128::from(wanted.abs_diff(before)) * 4 >= u128::from(before)
                });
                let due = wanted > 0 && in_time && changed;
                prop_assert_eq!(word, due.then_some(Bytes(wanted)));
                told = word.map(|word| (word.0, now)).or(told);
            }
        }
    }
}
