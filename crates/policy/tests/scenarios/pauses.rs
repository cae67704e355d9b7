//! When a host stands still: what arrives meanwhile, and what is due, waits for its end.

use bufwise_link::Draw;
use bufwise_units::Nanos;

use crate::world::DATA_START;

/// Pauses as long as a run may take.
const HORIZON: u64 = 60_000_000;

/// Begin and end of each pause, one after the other; none by default.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pauses(Vec<(Nanos, Nanos)>);

impl Pauses {
    /// Lengths and the times between them (ms) are drawn from these ranges.
    pub(crate) fn drawn(seed: u64, length: (u64, u64), apart: (u64, u64)) -> Self {
        let micros = |range: (u64, u64)| (range.0 * 1_000, range.1 * 1_000);
        Self::drawn_in_micros(seed, micros(length), micros(apart))
    }

    /// The same in microseconds.
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

    /// When the host goes on that would do something at `at`.
    pub(crate) fn end(&self, at: Nanos) -> Nanos {
        let next = self.0.partition_point(|(_, end)| *end <= at);
        self.0.get(next).filter(|(begin, _)| *begin <= at).map_or(at, |(_, end)| *end)
    }
}
