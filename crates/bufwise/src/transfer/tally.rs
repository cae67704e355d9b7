//! The attempts at one file, added up.

use std::time::{Duration, Instant};

use bufwise_ftp::client::{Event, Outcome};

/// The attempts at one file.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Attempts after the first.
    repeated: u32,
    /// Bytes of the whole file; zero if the server does not say.
    size: u64,
    /// Bytes that were there before the first attempt.
    there: Option<u64>,
    /// Bytes that were there before the last attempt, and bytes that it has moved.
    last: (u64, u64),
    /// Time of the attempts that failed, from the beginning of their transfer to their end.
    earlier: Duration,
    /// When the transfer of the present attempt began.
    begun: Option<Instant>,
}

impl Tally {
    pub(super) fn note(&mut self, event: &Event<'_>) {
        self.note_at(event, Instant::now());
    }

    fn note_at(&mut self, event: &Event<'_>, now: Instant) {
        match event {
            Event::Begun { size, resumed_from } => {
                self.end_attempt(now);
                self.begun = Some(now);
                self.size = size.unwrap_or_default();
                self.last = (*resumed_from, 0);
                // An attempt that resumes from less moves the rest of what was there again.
                self.there = Some(self.there.map_or(*resumed_from, |there| there.min(*resumed_from)));
            }
            Event::Retry { .. } => {
                self.end_attempt(now);
                self.repeated += 1;
            }
            // Earlier attempts moved bytes of another file.
            Event::BegunAnew => *self = Self { repeated: self.repeated + 1, ..Self::default() },
            Event::Progress(progress) => self.last.1 = progress.bytes,
        }
    }

    fn end_attempt(&mut self, now: Instant) {
        if let Some(begun) = self.begun.take() {
            self.earlier += now.duration_since(begun);
        }
    }

    /// Returns the number of attempts.
    pub(super) fn attempts(&self) -> u32 {
        self.repeated + 1
    }

    /// Returns the bytes that were there before the first attempt.
    pub(super) fn resumed_from(&self, outcome: &Outcome) -> u64 {
        self.there.unwrap_or(outcome.resumed_from)
    }

    /// Returns the bytes of the file that all attempts moved.
    pub(super) fn bytes(&self, outcome: &Outcome) -> u64 {
        let last = outcome.report.map_or(0, |report| report.bytes);
        outcome.resumed_from.saturating_sub(self.resumed_from(outcome)) + last
    }

    /// Returns the time in which all attempts moved them.
    pub(super) fn elapsed(&self, outcome: &Outcome) -> Duration {
        self.earlier + outcome.report.map_or(Duration::ZERO, |report| report.elapsed)
    }

    /// Returns the figures of a file whose last attempt failed at `now`.
    pub(super) fn failed(&self, now: Instant) -> Failed {
        let resumed_from = self.there.unwrap_or_default();
        let (before, moved) = self.last;
        let present = self.begun.map_or(Duration::ZERO, |begun| now.duration_since(begun));
        Failed {
            size: self.size,
            resumed_from,
            bytes: before.saturating_sub(resumed_from) + moved,
            elapsed: self.earlier + present,
        }
    }
}

/// A file that was not moved as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed {
    /// Bytes of the whole file; zero: not known.
    pub(super) size: u64,
    /// Bytes that were there before the first attempt.
    pub(super) resumed_from: u64,
    /// Bytes that all attempts moved.
    pub(super) bytes: u64,
    /// Time in which they moved.
    pub(super) elapsed: Duration,
}

#[cfg(test)]
pub(super) mod tests {
    use bufwise_ftp::client::ClientError;
    use bufwise_mover::{Held, Progress, Report};
    use bufwise_units::{Bytes, Rate};

    use super::*;

    /// The outcome of a last attempt that moved `bytes` in a second.
    pub(in super::super) fn outcome(resumed_from: u64, bytes: u64) -> Outcome {
        let report = Report {
            cookie: 0,
            bytes,
            elapsed: Duration::from_secs(1),
            goodput: Rate(bytes),
            rtt: None,
            min_rtt: None,
            retransmitted: 0,
            out_of_order: 0,
            largest_window: Bytes::ZERO,
            largest_buffer: Bytes::ZERO,
            most_held: Bytes::ZERO,
            held: Held::default(),
            limited_by: None,
            file_time: Duration::ZERO,
            hash: None,
        };
        Outcome { size: resumed_from + bytes, resumed_from, report: Some(report), ..Outcome::default() }
    }

    /// The attempts with these events, which are a second apart.
    pub(in super::super) fn after(events: &[Event<'_>]) -> Tally {
        let (mut tally, mut now) = (Tally::default(), Instant::now());
        for event in events {
            tally.note_at(event, now);
            now += Duration::from_secs(1);
        }
        tally
    }

    pub(in super::super) fn begun(resumed_from: u64) -> Event<'static> {
        Event::Begun { size: Some(100), resumed_from }
    }

    pub(in super::super) const RETRY: Event<'static> =
        Event::Retry { error: &ClientError::NoChecksum, wait: Duration::ZERO };

    #[test]
    fn all_attempts_count_and_what_was_there_before_the_first_does_not() {
        let of = |tally: &Tally, outcome: &Outcome| {
            (tally.resumed_from(outcome), tally.bytes(outcome), tally.elapsed(outcome).as_secs())
        };
        let whole = after(&[begun(0)]);
        assert_eq!((of(&whole, &outcome(0, 100)), whole.attempts()), ((0, 100, 1), 1));
        let moved = Progress { bytes: 50, ..Progress::default() };
        let twice = after(&[begun(10), Event::Progress(&moved), RETRY, RETRY, begun(60)]);
        assert_eq!((of(&twice, &outcome(60, 40)), twice.attempts()), ((10, 90, 3), 3));
        let lost = after(&[begun(60), RETRY, begun(20)]);
        assert_eq!(of(&lost, &outcome(20, 80)), (20, 80, 2), "the server had kept less");
    }

    #[test]
    fn what_was_moved_of_another_file_does_not_count() {
        let anew = after(&[begun(0), RETRY, begun(60), Event::BegunAnew, begun(0)]);
        let last = outcome(0, 100);
        assert_eq!((anew.resumed_from(&last), anew.bytes(&last), anew.attempts()), (0, 100, 3));
        assert_eq!(anew.elapsed(&last), Duration::from_secs(1));
    }

    #[test]
    fn what_was_moved_before_a_failure_counts_too() {
        let moved = |bytes| Progress { bytes, ..Progress::default() };
        let (some, more) = (moved(50), moved(30));
        let mut tally = after(&[begun(10), Event::Progress(&some), RETRY, begun(60), Event::Progress(&more)]);
        // The second attempt began after 3 s; the first one had taken 2.
        let now = tally.begun.unwrap() + Duration::from_secs(5);
        let failed = Failed { size: 100, resumed_from: 10, bytes: 80, elapsed: Duration::from_secs(7) };
        assert_eq!(tally.failed(now), failed);
        tally.note_at(&RETRY, now);
        assert_eq!(tally.failed(now + Duration::from_secs(9)), failed, "no connection could be made since");
        assert_eq!(Tally::default().failed(now).bytes, 0);
    }

    #[test]
    fn what_an_attempt_has_moved_counts_though_its_success_was_not_heard() {
        let moved = Progress { bytes: 100, ..Progress::default() };
        let tally = after(&[begun(0), Event::Progress(&moved), RETRY]);
        let there = Outcome { size: 100, resumed_from: 100, ..Outcome::default() };
        assert_eq!((tally.resumed_from(&there), tally.bytes(&there), tally.attempts()), (0, 100, 2));
        assert_eq!(tally.elapsed(&there), Duration::from_secs(2));
    }

    #[test]
    fn a_file_that_was_there_already_has_moved_nothing() {
        let already = Outcome { size: 100, resumed_from: 100, ..Outcome::default() };
        let tally = after(&[RETRY]);
        assert_eq!((tally.resumed_from(&already), tally.bytes(&already)), (100, 0));
        assert_eq!(tally.elapsed(&already), Duration::ZERO);
    }
}
