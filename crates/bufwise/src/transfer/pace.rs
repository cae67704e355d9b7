//! The pace of a transfer over the last seconds: a rate that a link could carry, and a time left that does not jump.
//!
//! What a program reads in a tenth of a second is not what arrived in it: a hole that is filled releases what lay behind it at
//! once.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time that the rate is the mean of, and that the time left goes by.
const RATE: Duration = Duration::from_secs(3);
const LEFT: Duration = Duration::from_secs(15);
/// Before that nothing is known.
const FIRST: Duration = Duration::from_millis(300);

/// Counts of bytes with their times, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    /// So many bytes have moved in all; fewer than before: another file.
    pub(super) fn note(&mut self, now: Instant, bytes: u64) {
        if self.0.back().is_some_and(|(_, before)| bytes < *before) {
            self.0.clear();
        }
        self.0.push_back((now, bytes));
        // The newest of those that are too old is where the time begins.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= LEFT) {
            self.0.pop_front();
        }
    }

    /// Bytes per second now.
    pub(super) fn rate(&self) -> Option<f64> {
        self.over(RATE)
    }

    /// Time that `bytes` more take.
    pub(super) fn left(&self, bytes: u64) -> Option<Duration> {
        let rate = self.over(LEFT).filter(|rate| *rate > 0.0)?;
        Duration::try_from_secs_f64(bytes as f64 / rate).ok()
    }

    fn over(&self, span: Duration) -> Option<f64> {
        let (now, bytes) = *self.0.back()?;
        let is_within = |(at, _): &&(Instant, u64)| now.duration_since(*at) <= span;
        let (since, before) = *self.0.iter().find(is_within)?;
        let elapsed = now.duration_since(since);
        (elapsed >= FIRST).then(|| (bytes - before) as f64 / elapsed.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes every 100 ms of what has come of a link of 10 MB/s, which holds back for 300 ms every two seconds.
    fn link() -> Vec<(Duration, u64)> {
        let come = |tenth: u64| if tenth % 20 < 3 { tenth / 20 * 20 } else { tenth };
        (0..200).map(|tenth| (Duration::from_millis(tenth * 100), come(tenth) * 1_000_000)).collect()
    }

    #[test]
    fn what_was_held_back_and_comes_at_once_is_no_rate_of_the_link() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for (at, bytes) in link() {
            pace.note(start + at, bytes);
            let rate = pace.rate().unwrap_or(10e6);
            assert!(rate < 11.5e6, "{rate} at {at:?}");
        }
    }

    #[test]
    fn the_time_left_goes_down_with_the_time() {
        let (mut pace, start, size) = (Pace::default(), Instant::now(), 400_000_000);
        for (at, bytes) in link() {
            pace.note(start + at, bytes);
            let Some(left) = pace.left(size - bytes).filter(|_| at > Duration::from_secs(5)) else {
                continue;
            };
            let whole = (at + left).as_secs_f64();
            assert!((37.0..43.0).contains(&whole), "{whole} s in all, said at {at:?}");
        }
    }

    #[test]
    fn another_file_begins_anew() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        pace.note(start, 1_000_000);
        pace.note(start + Duration::from_secs(1), 2_000_000);
        assert_eq!(pace.rate(), Some(1e6));
        pace.note(start + Duration::from_secs(2), 5);
        assert_eq!((pace.rate(), pace.left(7)), (None, None));
    }
}
