//! A flight of slow start tells of others on the path.
//!
//! Problem: packet trains that are sent in one go measure the tight link's rate, not the part that others leave of it. A flow paced at
//! that rate overflows the queue within a round trip where much of the link is taken, before a rate has stopped
//! growing anywhere.
//! Source: ours. In a first-come-first-served queue that grows, a flow that enters at some rate leaves at its share of what
//! enters, so slower than it came, and faster than what others leave free.
//! So: the rate at which a flight arrives while the queue grows is a better limit than the link's rate. Such a flight comes rounds before the
//! one that overflows the queue.
//! We: two spans in a row (an eighth of `T0` each, at least 10 ms) without a sample at which nothing came, their rates within a
//! tenth of each other. A host that stands still makes one span slower and the next one faster.
//! Keeps: no rate is told of less than two spans, nor of flights with gaps.

use std::collections::VecDeque;

use super::detectors::MOST_RATE;
use bufwise_units::{Bytes, Micros, Rate};

/// Spans in a round trip, and the shortest: five samples, if these are 2 ms apart.
const SPANS: u64 = 8;
const SHORTEST: Micros = Micros::from_millis(10);
/// Largest difference of two rates that are the same flight's: a tenth of the larger.
const ALIKE: (u64, u64) = (1, 10);
/// Samples that are remembered: two spans of the longest sensible length, 2 ms apart.
const REMEMBERED: usize = 512;

/// The samples of the flight that arrives.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    /// When, and what had arrived by then, oldest first; something came between any two, and all the time.
    samples: VecDeque<(Micros, Bytes)>,
    /// The last sample.
    last: (Micros, Bytes),
}

impl Flights {
    /// Takes a sample of what has arrived. The rate at which the flight comes, once it is known.
    pub(super) fn see(&mut self, received: Bytes, base_rtt: Micros, now: Micros) -> Option<Rate> {
        let (last_at, before) = self.last;
        if last_at == now {
            return None;
        }
        self.last = (now, received);
        if received <= before {
            // The next bytes come somewhere within the next interval, which tells no rate.
            self.samples.clear();
            return None;
        }
        if self.samples.len() == REMEMBERED {
            self.samples.pop_front();
        }
        self.samples.push_back((now, received));
        let span = Micros(base_rtt.0 / SPANS).max(SHORTEST);
        let last = self.rate_before(self.samples.len() - 1, span)?;
        let before = self.rate_before(last.1, span)?;
        let (larger, smaller) = (last.0.max(before.0), last.0.min(before.0));
        let alike = larger - smaller <= larger.scaled(ALIKE.0, ALIKE.1);
        alike.then_some(Rate(u64::midpoint(larger.0, smaller.0)))
    }

    /// The rate over at least `span` up to sample `end`, and the sample with which that began.
    fn rate_before(&self, end: usize, span: Micros) -> Option<(Rate, usize)> {
        let (at, received) = *self.samples.get(end)?;
        let begin = (0..end).rev().find(|sample| at.since(self.samples[*sample].0) >= span)?;
        let (began, before) = self.samples[begin];
        Some(((received - before).per(at.since(began)).min(MOST_RATE), begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPACING: u64 = 2_000;
    const RTT: Micros = Micros::from_millis(160);

    /// The first rate that is seen while so much comes at each sample.
    fn first_rate(came: impl IntoIterator<Item = u64>) -> Option<Rate> {
        let (mut flights, mut received) = (Flights::default(), 1);
        (0..).zip(came).find_map(|(sample, came)| {
            received += came;
            flights.see(Bytes(received), RTT, Micros(sample * SPACING))
        })
    }

    #[test]
    fn two_spans_alike_tell_the_rate() {
        assert_eq!(first_rate([10_000; 40]), Some(Rate(5_000_000)));
        assert_eq!(first_rate([10_000; 10]), None, "too short");
    }

    #[test]
    fn gaps_and_rates_that_differ_tell_nothing() {
        let gaps = (0..200).map(|sample| if sample % 9 == 0 { 0 } else { 10_000 });
        assert_eq!(first_rate(gaps), None);
        let growing = (0..60).map(|sample| 1_000 << (sample / 4));
        assert_eq!(first_rate(growing), None);
    }
}
