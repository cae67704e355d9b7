//! The sampling interval: sampling and drawing take at most one hundredth of a processor.
//!
//! Problem: the kernel lists a connection in some microseconds, so sampling 10,000 connections every second costs
//! several hundredths of a processor, and 100,000 a third of it.
//! Rule: the interval is a whole number of seconds, the least that is [`REST`] times the cost of a sample and its
//! picture. Single samples cost more than others (a search for processes, a daemon's answer), so the rule uses a moving
//! mean.
//! Properties, each a test: over time no more than the hundredth is used, however many connections there are; few
//! connections are sampled each second; an interval given by the user is kept.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bufwise_bpf::processor_time;
use bufwise_units::Micros;

/// Interval while samples are cheap.
pub(crate) const SHORTEST: Micros = Micros::from_secs(1);
/// Longest interval: the view stays alive, whatever a sample costs.
const LONGEST: Micros = Micros::from_secs(60);
/// Interval as a multiple of the cost of a sample.
const REST: u64 = 100;
/// Weight of the newest cost in the moving mean: 1/4.
const WEIGHT: u64 = 4;

/// The interval between samples.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pace {
    /// Interval given by the user.
    asked: Option<Micros>,
    /// Moving mean of a sample's cost, in processor time.
    cost: Option<Micros>,
}

impl Pace {
    /// Keeps the interval given by the user, or else chooses it.
    pub(crate) fn new(asked: Option<Micros>) -> Self {
        Self { asked, cost: None }
    }

    /// Returns the present interval.
    pub(crate) fn interval(&self) -> Micros {
        let needed = self.cost.unwrap_or_default().times(REST).0.div_ceil(SHORTEST.0);
        self.asked.unwrap_or(SHORTEST.times(needed).clamp(SHORTEST, LONGEST))
    }

    /// Adds the processor time of a sample and of the picture of the sample before.
    pub(crate) fn spent(&mut self, cost: Micros) {
        let mean = self.cost.map_or(cost, |mean| Micros((mean.0 * (WEIGHT - 1) + cost.0).div_ceil(WEIGHT)));
        self.cost = Some(mean);
    }

    /// Returns a line of at most 80 columns that says why the interval exceeds a second; `None` if it does not.
    pub(crate) fn note(&self) -> Option<String> {
        let interval = self.interval().as_secs_f64();
        let cost = self.cost.unwrap_or_default().as_secs_f64();
        (self.asked.is_none() && self.interval() > SHORTEST).then(|| {
            format!(
                "samples every {interval} s take {:.0}% of a processor ({:.0} ms each); --interval 1s has more",
                cost / interval * 100.0,
                cost * 1e3,
            )
        })
    }
}

/// Processor time of the drawing thread, for the sampling thread to read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Meter(Arc<AtomicU64>);

impl Meter {
    /// Sets it to the processor time of the calling thread.
    pub(crate) fn set(&self) {
        self.0.store(processor_time().0, Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> Micros {
        Micros(self.0.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Samples for an hour of virtual time; `cost` returns the cost of a sample at a time. Returns the share of a
    /// processor that the samples took, and the last interval.
    fn hour(asked: Option<Micros>, cost: impl Fn(u64) -> Micros) -> (f64, Micros) {
        let mut pace = Pace::new(asked);
        let (mut now, mut samples, mut used) = (Micros::ZERO, 0, Micros::ZERO);
        while now < Micros::from_secs(3_600) {
            let one = cost(samples);
            pace.spent(one);
            (now, samples, used) = (now + pace.interval(), samples + 1, used + one);
        }
        (used.as_secs_f64() / now.as_secs_f64(), pace.interval())
    }

    #[test]
    fn samples_take_a_hundredth_of_a_processor_at_most_whatever_they_cost() {
        for micros in [100, 9_999, 10_001, 31_000, 44_000, 310_000, 600_000] {
            let (share, interval) = hour(None, |_| Micros(micros));
            assert!(share <= 0.01, "{micros} us: {share} at {interval:?}");
            // No longer than the rule needs.
            let needed = (micros * REST).div_ceil(1_000_000).max(1);
            assert_eq!(interval, Micros::from_secs(needed), "{micros} us");
        }
    }

    #[test]
    fn dear_samples_among_cheap_ones_count_as_well() {
        let (share, _) = hour(None, |number| Micros(if number % 5 == 0 { 150_000 } else { 30_000 }));
        assert!((0.007..=0.0105).contains(&share), "{share}");
    }

    #[test]
    fn few_connections_are_sampled_each_second_and_a_bound_keeps_the_view_alive() {
        assert_eq!(hour(None, |_| Micros(1_000)).1, SHORTEST);
        assert_eq!(hour(None, |_| Micros::from_secs(5)).1, LONGEST);
        let (_, interval) = hour(None, |number| Micros(if number < 20 { 500_000 } else { 1_000 }));
        assert_eq!(interval, SHORTEST, "the many have gone");
    }

    #[test]
    fn an_interval_that_was_asked_for_stays_and_needs_no_word() {
        let (share, interval) = hour(Some(Micros::from_secs(2)), |_| Micros(200_000));
        assert_eq!(interval, Micros::from_secs(2));
        assert!(share > 0.09, "{share}");
        let mut pace = Pace::new(None);
        assert_eq!(pace.note(), None);
        pace.spent(Micros(31_000));
        let note = "samples every 4 s take 1% of a processor (31 ms each); --interval 1s has more";
        assert_eq!(pace.note().as_deref(), Some(note));
        let mut most = Pace::new(None);
        most.spent(Micros::from_secs(3));
        assert!(most.note().is_some_and(|note| note.starts_with("samples every 60 s take 5% ")));
        let mut asked = Pace::new(Some(SHORTEST));
        asked.spent(Micros(31_000));
        assert_eq!(asked.note(), None);
    }

    #[test]
    fn a_thread_that_works_uses_time_of_its_processor_and_tells_another() {
        let meter = Meter::default();
        let reader = meter.clone();
        let began = processor_time();
        while processor_time().since(began) < Micros(200) {}
        meter.set();
        assert!(reader.read() >= Micros(200));
    }
}
