//! Records how full a queue was, weighted by time, in constant space.
//!
//! Between arrivals a queue drains in a straight line. Its mean comes from the area under that line, its percentiles
//! from a histogram of the time spent at each level. Levels are log-linear: 64 bytes wide up to 2 KiB, above that 32
//! per power of two, so a percentile is off by at most 3%. Time with an empty queue is counted apart. A stretch of
//! draining costs one step for each level it passes, and an arrival filled each of those levels before: O(1) amortised,
//! with no allocation after construction.

const LINEAR_WIDTH: u64 = 64;
const LEVELS_PER_OCTAVE: usize = 32;
const FIRST_OCTAVE: u32 = 11;
const LEVELS: usize = LEVELS_PER_OCTAVE * (1 + 64 - FIRST_OCTAVE as usize);

/// Time-weighted record of a queue's length in bytes.
#[derive(Clone, Debug)]
pub(crate) struct Occupancy {
    /// Nanoseconds spent at each level, without those of an empty queue.
    levels: Box<[f64; LEVELS]>,
    empty: f64,
    busy: f64,
    area: f64,
    max: u64,
}

impl Occupancy {
    pub(crate) fn new() -> Self {
        Self { levels: Box::new([0.0; LEVELS]), empty: 0.0, busy: 0.0, area: 0.0, max: 0 }
    }

    /// Records that the queue reached this length, in bytes.
    pub(crate) fn rise(&mut self, bytes: u64) {
        self.max = self.max.max(bytes);
    }

    /// Records that the queue was empty for this many nanoseconds.
    pub(crate) fn idle(&mut self, nanos: f64) {
        self.empty += nanos;
    }

    /// Records that the queue fell from one length to another, or kept it, within this many nanoseconds.
    pub(crate) fn drain(&mut self, from: f64, to: f64, nanos: f64) {
        self.busy += nanos;
        self.area += f64::midpoint(from, to) * nanos;
        let (mut level, last) = (level_of(from), level_of(to));
        if level == last {
            self.levels[level] += nanos;
            return;
        }
        let nanos_per_byte = nanos / (from - to);
        let mut top = from;
        while level > last {
            let bottom = lower_edge(level) as f64;
            self.levels[level] += (top - bottom) * nanos_per_byte;
            top = bottom;
            level -= 1;
        }
        self.levels[last] += (top - to) * nanos_per_byte;
    }

    /// Returns the mean length over all time recorded, in bytes.
    pub(crate) fn mean(&self) -> u64 {
        let time = self.empty + self.busy;
        if time > 0.0 { (self.area / time).round() as u64 } else { 0 }
    }

    /// Returns the largest length reached, in bytes.
    pub(crate) const fn max(&self) -> u64 {
        self.max
    }

    /// Returns the length, in bytes, that the queue did not exceed for this share of the time.
    pub(crate) fn percentile(&self, share: f64) -> u64 {
        let mut missing = (self.empty + self.busy) * share - self.empty;
        if missing <= 0.0 {
            return 0;
        }
        for (level, &time) in self.levels.iter().enumerate() {
            if missing <= time {
                let (low, high) = (lower_edge(level), lower_edge(level + 1));
                let within = (high - low) as f64 * (missing / time);
                return (low + within.round() as u64).min(self.max);
            }
            missing -= time;
        }
        self.max
    }
}

fn level_of(bytes: f64) -> usize {
    let bytes = bytes as u64;
    let octave = bytes.checked_ilog2().unwrap_or(0);
    if octave < FIRST_OCTAVE {
        return (bytes / LINEAR_WIDTH) as usize;
    }
    let within = (bytes >> (octave - LEVELS_PER_OCTAVE.ilog2())) as usize % LEVELS_PER_OCTAVE;
    LEVELS_PER_OCTAVE * (1 + (octave - FIRST_OCTAVE) as usize) + within
}

fn lower_edge(level: usize) -> u64 {
    let (octave, within) = (level / LEVELS_PER_OCTAVE, (level % LEVELS_PER_OCTAVE) as u64);
    match octave.checked_sub(1) {
        None => within * LINEAR_WIDTH,
        Some(above) => (LEVELS_PER_OCTAVE as u64 + within)
            .checked_shl(FIRST_OCTAVE - LEVELS_PER_OCTAVE.ilog2() + above as u32)
            .filter(|_| level < LEVELS)
            .unwrap_or(u64::MAX),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn levels_cover_all_lengths_without_gap() {
        for level in 0..LEVELS {
            let low = lower_edge(level);
            assert!(low < lower_edge(level + 1));
            if low < 1 << 53 {
                assert_eq!(level_of(low as f64), level);
                assert_eq!(level_of((lower_edge(level + 1) - 1) as f64), level);
            }
        }
        assert_eq!(level_of(u64::MAX as f64), LEVELS - 1);
    }

    #[test]
    fn a_straight_drain_has_its_middle_as_mean_and_median() {
        let mut record = Occupancy::new();
        record.rise(100_000);
        record.drain(100_000.0, 0.0, 8_000.0);
        assert_eq!(record.mean(), 50_000);
        assert_eq!(record.percentile(1.0), 100_000);
        for (share, exact) in [(0.5, 50_000.0), (0.95, 95_000.0), (0.1, 10_000.0)] {
            let found = record.percentile(share) as f64;
            assert!((found / exact - 1.0).abs() < 0.03, "{share}: {found}");
        }
    }

    #[test]
    fn empty_time_counts() {
        let mut record = Occupancy::new();
        record.rise(1_000);
        record.idle(900.0);
        record.drain(1_000.0, 1_000.0, 100.0);
        assert_eq!(record.mean(), 100);
        assert_eq!(record.percentile(0.5), 0);
        assert!((970..=1_000).contains(&record.percentile(0.95)));
        assert_eq!(Occupancy::new().mean(), 0);
        assert_eq!(Occupancy::new().percentile(0.99), 0);
    }

    #[test]
    fn a_drain_within_a_nanosecond_is_a_straight_line_too() {
        let mut record = Occupancy::new();
        record.rise(418);
        record.drain(418.0, 0.0, 1.0);
        assert_eq!(record.percentile(0.01), 4);
        assert_eq!(record.percentile(0.5), 209);
    }

    fn lengths() -> impl Strategy<Value = u64> {
        prop_oneof![0..2_000_000_u64, 0..4_096_u64]
    }

    proptest! {
        #[test]
        fn percentiles_agree_with_a_sorted_list_of_lengths(
            drains in prop::collection::vec((lengths(), 0..100_u64, prop_oneof![1..1_000_u64, 1..4_u64]), 1..40),
            share in 0.01..1.0_f64,
        ) {
            let mut record = Occupancy::new();
            // The longest and the shortest length in each nanosecond. Within a nanosecond a steep drain passes many
            // lengths: the percentile lies between that of the shortest and that of the longest lengths.
            let (mut shortest, mut longest) = (Vec::new(), Vec::new());
            for (from, keep, nanos) in drains {
                let to = from * keep / 100;
                record.rise(from);
                record.drain(from as f64, to as f64, nanos as f64);
                let down = (from - to) as f64 / nanos as f64;
                longest.extend((0..nanos).map(|at| from as f64 - at as f64 * down));
                shortest.extend((1..=nanos).map(|at| from as f64 - at as f64 * down));
            }
            shortest.sort_by(f64::total_cmp);
            longest.sort_by(f64::total_cmp);
            let last = longest.len() - 1;
            let position = ((longest.len() as f64 * share).ceil() as usize).clamp(1, longest.len()) - 1;
            // Lengths with a gap between them (a step of the distribution) are resolved to a nanosecond; a level is
            // 1/32 of its lower edge wide, or LINEAR_WIDTH.
            let low = shortest[position.saturating_sub(1)] * (1.0 - 1.0 / 32.0) - LINEAR_WIDTH as f64;
            let high = longest[(position + 1).min(last)] * (1.0 + 1.0 / 32.0) + LINEAR_WIDTH as f64;
            let found = record.percentile(share) as f64;
            prop_assert!(low <= found && found <= high, "{low} <= {found} <= {high}");
        }
    }
}
