//! Pauses of a host: packets that arrive and actions that fall due during a pause wait for its end.

use bufwise_link::Draw;
use bufwise_units::Nanos;

use crate::world::DATA_START;

/// Time for which pauses are drawn, us: longer than any run.
const HORIZON: u64 = 60_000_000;

/// Begin and end of each pause, in order; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Vec<(Nanos, Nanos)>);

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
        Self(spans)
    }

    /// Returns the time at which an action due at `at` is carried out: `at`, or the end of the pause that it falls
    /// into.
    pub(crate) fn end(&self, at: Nanos) -> Nanos {
        let next = self.0.partition_point(|(_, end)| *end <= at);
        self.0.get(next).filter(|(begin, _)| *begin <= at).map_or(at, |(_, end)| *end)
    }
}
