//! Rate and delay as functions of time, integrated exactly.
//!
//! *Work* is what the link serves, in units of 10^-9 bit: a rate of `r` bit/s does `r * t` units in `t` nanoseconds, a
//! whole number. `W(t)` is the work done from time zero to `t`. The schedule gives `W(t)` and its inverse, the first
//! nanosecond by which a given work is done. Both are exact over any number of steps and hours, because no rounded
//! value is carried on. At the ends of the number range they saturate.
//!
//! A [`Cursor`] remembers the step of the last lookup: lookups that move forward cost O(1), and O(log steps) when they
//! enter another step.

use crate::trace::Trace;
use bufwise_units::{BitRate, Nanos};

/// Work of one byte: 8 bits of 10^9 units.
pub(crate) const BYTE: u128 = 8_000_000_000;

/// One stretch of constant rate (bit/s) and delay (ns) within a cycle; `work` counts from the cycle's start.
#[derive(Clone, Copy, Debug)]
struct Span {
    start: u64,
    end: u64,
    rate: u64,
    delay: u64,
    work: u128,
    work_end: u128,
}

/// Rate and delay over all time.
#[derive(Clone, Debug)]
pub(crate) struct Schedule {
    spans: Vec<Span>,
    cycle: Option<Cycle>,
    /// When the trace began, ns, and the work that was done by then.
    origin: (u64, u128),
}

/// The repeating part of a trace.
#[derive(Clone, Copy, Debug)]
struct Cycle {
    period: u64,
    work: u128,
}

/// A stretch of constant rate (bit/s) and delay (ns), in absolute time (ns) and work.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor {
    start: u64,
    /// First nanosecond after the stretch; [`u64::MAX`]: it never ends.
    pub(crate) end: u64,
    pub(crate) rate: u64,
    pub(crate) delay: u64,
    work: u128,
    work_end: u128,
}

impl Schedule {
    /// Builds the schedule: `rate` and `delay` hold before the trace's first step, then the trace does. A rate of zero
    /// stands for a direction without a rate; it allows only lookups of times.
    pub(crate) fn new(rate: BitRate, delay: Nanos, trace: Option<&Trace>) -> Self {
        let mut spans =
            vec![Span { start: 0, end: u64::MAX, rate: rate.0, delay: delay.0, work: 0, work_end: 0 }];
        for step in trace.map_or(&[][..], Trace::steps) {
            let before = spans[spans.len() - 1];
            let after = Span {
                start: step.at.0,
                rate: step.rate.map_or(before.rate, |rate| rate.0),
                delay: step.delay.map_or(before.delay, |delay| delay.0),
                ..before
            };
            if step.at == Nanos::ZERO {
                spans.clear();
            }
            spans.push(after);
        }
        let period = trace.and_then(Trace::period).map(|period| period.0);
        let mut work = 0_u128;
        for index in 0..spans.len() {
            let next = spans.get(index + 1).map(|span| span.start);
            let span = &mut spans[index];
            span.end = next.or(period).unwrap_or(u64::MAX);
            span.work = work;
            work = if span.end == u64::MAX {
                u128::MAX
            } else {
                work.saturating_add(u128::from(span.rate) * u128::from(span.end - span.start))
            };
            span.work_end = work;
        }
        Self { spans, cycle: period.map(|period| Cycle { period, work }), origin: (0, 0) }
    }

    /// Begins the trace anew at `time`, by which `work` is done. Earlier moments are no longer looked up.
    pub(crate) fn begin(&mut self, time: u64, work: u128) {
        self.origin = (time, work);
    }

    /// Returns the stretch that holds at `time`.
    pub(crate) fn at_time(&self, time: u64) -> Cursor {
        let time = time.saturating_sub(self.origin.0);
        let cycles = self.cycle.map_or(0, |cycle| time / cycle.period);
        let offset = self.cycle.map_or(time, |cycle| time % cycle.period);
        let index = self.spans.partition_point(|span| span.start <= offset);
        self.cursor(index.saturating_sub(1), cycles)
    }

    /// Returns the stretch in which `W` first reaches `work`.
    pub(crate) fn at_work(&self, work: u128) -> Cursor {
        let work = work.saturating_sub(self.origin.1);
        let (cycles, rest) = match self.cycle {
            Some(cycle) if cycle.work > 0 => {
                let cycles = work.saturating_sub(1) / cycle.work;
                (u64::try_from(cycles).unwrap_or(u64::MAX), work - cycles * cycle.work)
            }
            _ => (0, work),
        };
        let index = self.spans.partition_point(|span| span.work_end < rest);
        self.cursor(index.min(self.spans.len() - 1), cycles)
    }

    fn cursor(&self, index: usize, cycles: u64) -> Cursor {
        let span = self.spans[index];
        let cycle = self.cycle.unwrap_or(Cycle { period: 0, work: 0 });
        let (begin, done) = self.origin;
        let time = begin.saturating_add(cycles.saturating_mul(cycle.period));
        let work = done.saturating_add(u128::from(cycles).saturating_mul(cycle.work));
        Cursor {
            start: span.start.saturating_add(time),
            end: span.end.saturating_add(time),
            rate: span.rate,
            delay: span.delay,
            work: span.work.saturating_add(work),
            work_end: span.work_end.saturating_add(work),
        }
    }
}

impl Cursor {
    /// Moves to the stretch that holds at `time`, which is not before this one.
    pub(crate) fn seek_time(&mut self, schedule: &Schedule, time: u64) {
        if time >= self.end && self.end != u64::MAX {
            *self = schedule.at_time(time);
        }
    }

    /// Moves to the stretch in which `W` first reaches `work`, unless that is an earlier one.
    pub(crate) fn seek_work(&mut self, schedule: &Schedule, work: u128) {
        if work > self.work_end {
            *self = schedule.at_work(work);
        }
    }

    /// Returns `W(time)`, for a time in this stretch or at its end.
    pub(crate) fn work_at(&self, time: u64) -> u128 {
        let span = u128::from(self.rate) * u128::from(time.saturating_sub(self.start));
        self.work.saturating_add(span)
    }

    /// Returns the first nanosecond, not before this stretch, by which `work` is done. `work` must be done by the
    /// stretch's end.
    pub(crate) fn time_of(&self, work: u128) -> u64 {
        let missing = work.saturating_sub(self.work);
        // Except for absurd rates `u64` suffices; its division is several times quicker.
        let span = match u64::try_from(missing) {
            Ok(missing) => missing.div_ceil(self.rate.max(1)),
            Err(_) => u64::try_from(missing.div_ceil(u128::from(self.rate.max(1)))).unwrap_or(u64::MAX),
        };
        self.start.saturating_add(span)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::trace::Step;
    use proptest::prelude::*;

    fn steps() -> impl Strategy<Value = (Vec<(u64, u64)>, bool)> {
        (prop::collection::vec((1..40_u64, prop_oneof![Just(0), 1..50_u64]), 1..8), any::<bool>())
    }

    /// Steps of whole milliseconds; the last always has a rate.
    fn trace(steps: &[(u64, u64)], repeat: bool) -> Trace {
        let mut at = Nanos::ZERO;
        let mut list = Vec::new();
        for &(millis, rate) in steps {
            list.push(Step { at, rate: Some(BitRate(rate)), delay: Some(Nanos(rate)) });
            at = Nanos(at.0 + millis * 1_000_000);
        }
        list.push(Step { at, rate: Some(BitRate(7)), delay: Some(Nanos(7)) });
        Trace::new(list, repeat.then_some(Nanos(at.0 + 3_000_000))).unwrap()
    }

    /// Returns the work done by `time`, added up millisecond by millisecond.
    fn naive_work(trace: &Trace, time: u64) -> u128 {
        let rate_at = |time: u64| {
            let offset = trace.period().map_or(time, |period| time % period.0);
            trace.steps().iter().rev().find(|step| step.at.0 <= offset).and_then(|step| step.rate).unwrap().0
        };
        (0..time.div_ceil(1_000_000))
            .map(|millis| {
                let start = millis * 1_000_000;
                u128::from(rate_at(start)) * u128::from((time - start).min(1_000_000))
            })
            .sum()
    }

    proptest! {
        #[test]
        fn work_is_the_sum_of_the_steps((list, repeat) in steps(), time in 0..500_000_000_u64) {
            let trace = trace(&list, repeat);
            let schedule = Schedule::new(BitRate(0), Nanos::ZERO, Some(&trace));
            prop_assert_eq!(schedule.at_time(time).work_at(time), naive_work(&trace, time));
        }

        #[test]
        fn the_inverse_is_the_first_nanosecond_by_which_the_work_is_done(
            (list, repeat) in steps(),
            work in 1..8_000_000_000_u128,
        ) {
            let trace = trace(&list, repeat);
            let schedule = Schedule::new(BitRate(0), Nanos::ZERO, Some(&trace));
            let time = schedule.at_work(work).time_of(work);
            prop_assert!(naive_work(&trace, time) >= work);
            prop_assert!(naive_work(&trace, time - 1) < work);
        }

        #[test]
        fn a_cursor_that_moves_sees_what_a_fresh_one_sees(
            (list, repeat) in steps(),
            mut times in prop::collection::vec(0..2_000_000_000_u64, 1..50),
        ) {
            times.sort_unstable();
            let trace = trace(&list, repeat);
            let schedule = Schedule::new(BitRate(0), Nanos::ZERO, Some(&trace));
            let mut cursor = schedule.at_time(0);
            for time in times {
                cursor.seek_time(&schedule, time);
                let fresh = schedule.at_time(time);
                prop_assert_eq!((cursor.rate, cursor.delay), (fresh.rate, fresh.delay));
                prop_assert_eq!(cursor.work_at(time), fresh.work_at(time));
            }
        }
    }

    #[test]
    fn hours_later_nothing_has_drifted() {
        // At a third of a bit per nanosecond no packet's service time is a whole number of ns.
        let schedule = Schedule::new(BitRate(333_333_333), Nanos::ZERO, None);
        let mut tail = schedule.at_time(0);
        let mut finish = 0_u128;
        for _ in 0..1_000_000 {
            finish += 1_514_000 * BYTE;
            tail.seek_work(&schedule, finish);
        }
        let exact = (1_514_000_u128 * 1_000_000 * BYTE).div_ceil(333_333_333);
        assert_eq!(u128::from(tail.time_of(finish)), exact);
        assert!(exact > 3_600 * 1_000_000_000 * 10, "ten hours and more");
    }

    #[test]
    fn work_done_as_an_outage_begins_is_done_then() {
        let trace: Trace = "0 1000\n1 0\n2 1000\n3 0\n4 repeat".parse().unwrap();
        let schedule = Schedule::new(BitRate(0), Nanos::ZERO, Some(&trace));
        let second = 1_000 * 1_000_000_000_u128;
        for (seconds_of_work, done_at) in [(1, 1), (2, 3), (3, 5), (4, 7)] {
            let work = seconds_of_work * second;
            assert_eq!(schedule.at_work(work).time_of(work), done_at * 1_000_000_000);
            assert!(schedule.at_work(work + 1).time_of(work + 1) > (done_at + 1) * 1_000_000_000);
        }
    }

    #[test]
    fn a_trace_that_begins_anew_counts_from_then_on() {
        let trace: Trace = "0 1000\n1 2000\n3 repeat".parse().unwrap();
        let mut schedule = Schedule::new(BitRate(0), Nanos::ZERO, Some(&trace));
        let [anew, later, again] = [5, 7, 11].map(|halves| halves * 500_000_000_u64);
        let done = schedule.at_time(anew).work_at(anew);
        schedule.begin(anew, done);
        // A second at 1,000 bit/s is over at 3.5 s, and the next nanosecond does twice as much.
        let work = done + 1_000 * 1_000_000_000_u128;
        assert_eq!(schedule.at_time(later).work_at(later), work);
        assert_eq!(schedule.at_work(work).time_of(work), later);
        assert_eq!(schedule.at_work(work + 1).time_of(work + 1), later + 1);
        // So does its period.
        assert_eq!([again - 1, again].map(|time| schedule.at_time(time).rate), [2_000, 1_000]);
    }

    #[test]
    fn absurd_numbers_saturate() {
        let schedule = Schedule::new(BitRate(u64::MAX), Nanos::ZERO, None);
        let cursor = schedule.at_time(u64::MAX);
        assert_eq!(cursor.work_at(u64::MAX), u128::from(u64::MAX) * u128::from(u64::MAX));
        let slow = Schedule::new(BitRate(1), Nanos::ZERO, None);
        assert_eq!(slow.at_work(u128::MAX).time_of(u128::MAX), u64::MAX);
    }
}
