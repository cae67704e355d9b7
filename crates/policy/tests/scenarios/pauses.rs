//! Pauses of a host: packets that arrive and actions that fall due during a pause wait for its end.

use std::cell::Cell;

use bufwise_link::Draw;
use bufwise_units::Nanos;

use crate::world::DATA_START;

/// Time for which pauses are drawn, us: longer than any run.
const HORIZON: u64 = 60_000_000;

/// Begin and end of each pause, in order; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses {
    spans: Vec<(Nanos, Nanos)>,
    /// Number of pauses that were over at the last [`Pauses::has_none`]: each search begins here, because times asked for are
    /// hardly ever far from the present one.
    over: Cell<usize>,
}

impl Pauses {
    /// Draws pauses from a range of lengths and a range of the times between them, ms.
    pub(crate) fn drawn(seed: u64, length: (u64, u64), apart: (u64, u64)) -> Self {
        let micros = |range: (u64, u64)| (range.0 * 1_000, range.1 * 1_000);
        Self::drawn_in_micros(seed, micros(length), micros(apart))
    }

    /// The same, in microseconds.
    pub(crate) fn drawn_in_micros(seed: u64, length: (u64, u64), apart: (u64, u64)) -> Self {
        let mut draw = Draw(seed);
        let mut micros = |range: (u64, u64)| draw.between(range.0, range.1);
        let (mut at, mut spans) = (DATA_START.0 / 1_000, Vec::new());
        while at < HORIZON {
            let begin = at + micros(apart);
            at = begin + micros(length);
            spans.push((Nanos::from_micros(begin), Nanos::from_micros(at)));
        }
        Self { spans, over: Cell::new(0) }
    }

    /// Returns the time at which an action due at `at` is carried out: `at`, or the end of the pause that it falls
    /// into.
    pub(crate) fn end(&self, at: Nanos) -> Nanos {
        let next = self.spans.get(self.count_over(at));
        next.filter(|(begin, _)| *begin <= at).map_or(at, |(_, end)| *end)
    }

    /// Whether the host does not pause at the present time.
    pub(crate) fn has_none(&self, now: Nanos) -> bool {
        self.over.set(self.count_over(now));
        self.end(now) == now
    }

    /// Returns the number of pauses that have ended by `at`.
    fn count_over(&self, at: Nanos) -> usize {
        let is_over = |(_, end): &(Nanos, Nanos)| *end <= at;
        let (mut first, mut width) = (self.over.get(), 1);
        if first > 0 && !is_over(&self.spans[first - 1]) {
            return self.spans[..first].partition_point(is_over);
        }
        while self.spans.get(first + width - 1).is_some_and(is_over) {
            first += width;
            width *= 2;
        }
        let last = self.spans.len().min(first + width - 1);
        first + self.spans[first..last].partition_point(is_over)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_from_anywhere_finds_what_a_search_of_all_finds() {
        let pauses = Pauses::drawn_in_micros(1, (100, 800), (1_000, 8_000));
        let of_all = |at: Nanos| {
            let span = pauses.spans.iter().find(|(_, end)| *end > at);
            span.filter(|(begin, _)| *begin <= at).map_or(at, |(_, end)| *end)
        };
        let mut draw = Draw(2);
        for _ in 0..100 {
            let now = Nanos::from_micros(draw.between(0, HORIZON + 100_000));
            assert_eq!(pauses.has_none(now), of_all(now) == now);
            let near = (0..20).map(|step| Nanos((now.0 + (1_000_u64 << step)).saturating_sub(1_000_000)));
            let far = [Nanos::ZERO, Nanos::from_micros(draw.between(0, HORIZON + 100_000))];
            let begins_and_ends = pauses.spans[pauses.over.get().saturating_sub(1)..].iter().take(2);
            let edges = begins_and_ends.flat_map(|(begin, end)| [*begin, *end, Nanos(end.0 - 1)]);
            for at in near.chain(far).chain(edges) {
                assert_eq!(pauses.end(at), of_all(at), "{at:?} at {now:?}");
            }
        }
        assert_eq!(Pauses::default().end(Nanos(5)), Nanos(5));
    }
}
