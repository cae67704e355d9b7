//! Finds other flows on the path from one flight of slow start.
//!
//! Problem: packet trains that are sent at once measure the tight link's rate, not the part of it that other flows
//! leave. If other flows use much of the link, a flow paced at the link's rate overflows the queue within a round trip,
//! before any rate has stopped growing.
//! Source: ours. A flow that enters a growing first-come-first-served queue leaves it at its share of all that enters.
//! This share is less than the rate at which it entered, and more than the rate that other flows leave free.
//! Terms: a *flight* is what the sender has under way in one round trip; a *span* is a part of the time in which it arrives.
//! Rule: the rate at which a flight arrives while the queue grows is a better limit than the link's rate. Such a flight
//! arrives some round trips before the one that overflows the queue.
//! Ours: two spans in a row are needed (an eighth of `T0` each, at least 10 ms) in which bytes arrived at each sample,
//! with rates within a tenth of each other. A host that pauses makes one span slower and the next one faster.
//! Properties kept: fewer than two spans give no rate, and neither do flights with gaps.

use std::collections::VecDeque;

use super::detectors::MOST_RATE;
use bufwise_units::{Bytes, Micros, Rate};

/// Spans in a round trip, and the shortest span: five samples, if these are 2 ms apart.
const SPANS: u64 = 8;
const SHORTEST: Micros = Micros::from_millis(10);
/// Largest difference of two rates of the same flight: a tenth of the larger.
const ALIKE: (u64, u64) = (1, 10);
/// Number of samples kept: enough for two spans of the longest sensible length, with samples 2 ms apart.
const REMEMBERED: usize = 512;

/// Samples of the arriving flight.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    /// Time and bytes received by then, oldest first; bytes arrived between any two.
    samples: VecDeque<(Micros, Bytes)>,
    /// The last sample.
    last: (Micros, Bytes),
}

impl Flights {
    /// Takes a sample of the bytes received; returns the rate at which the flight arrives, once it is known.
    pub(super) fn see(&mut self, received: Bytes, base_rtt: Micros, now: Micros) -> Option<Rate> {
        let (last_at, before) = self.last;
        if last_at == now {
            return None;
        }
        self.last = (now, received);
        if received <= before {
            // The next bytes come at an unknown time within their interval. So the next span begins after these bytes.
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

    /// Returns the rate over at least `span` up to sample `end`, and the index of the sample at which that span began.
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

    /// Returns the first rate that is found when `came` bytes arrive at each sample.
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
