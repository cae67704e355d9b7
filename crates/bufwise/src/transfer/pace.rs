//! The pace of a transfer: its rate over some seconds, and a time left that does not jump.
//!
//! The bytes read in a tenth of a second are not those that arrived in it: when a hole is filled, all bytes behind it
//! are released at once, at a rate that no link could carry.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Time over which the rate is averaged; time over which the rate for the time left is averaged.
const RATE: Duration = Duration::from_secs(3);
const LEFT: Duration = Duration::from_secs(15);
/// Shortest time over which a rate is computed.
const FIRST: Duration = Duration::from_millis(300);
/// Two counts that follow each other are kept if they come within this time, and of more only the newest: thousands of small
/// files a second make as many counts.
const APART: Duration = Duration::from_millis(50);

/// Byte counts with their times, oldest first.
#[derive(Debug, Default)]
pub(super) struct Pace(VecDeque<(Instant, u64)>);

impl Pace {
    /// Notes that `bytes` have moved in total. A smaller count than before belongs to another file: the pace starts over.
    pub(super) fn note(&mut self, now: Instant, bytes: u64) {
        if self.0.back().is_some_and(|(_, before)| bytes < *before) {
            self.0.clear();
        }
        let before = self.0.len().checked_sub(2).and_then(|index| self.0.get(index));
        if before.is_some_and(|(at, _)| now.duration_since(*at) < APART) {
            self.0.pop_back();
        }
        self.0.push_back((now, bytes));
        // The newest of the counts that are too old stays, as the beginning of the averaged time.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= LEFT) {
            self.0.pop_front();
        }
    }

    /// Returns the present rate, bytes per second.
    pub(super) fn rate(&self) -> Option<f64> {
        self.over(RATE)
    }

    /// Returns the time that another `bytes` will take.
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

    /// Total bytes every 100 ms from a link of 10 MB/s, which holds data back for 300 ms every two seconds.
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
    fn thousands_of_counts_a_second_are_few_to_keep() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for count in 0..200_000 {
            pace.note(start + Duration::from_micros(count * 100), count * 100);
        }
        assert!(pace.0.len() < 1_000, "{}", pace.0.len());
        let rate = pace.rate().unwrap();
        assert!((0.99e6..1.01e6).contains(&rate), "{rate}");
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
