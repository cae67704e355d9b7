//! What a flight of slow start tells of others on the path.
//!
//! Problem: packet trains that are sent in one go measure the tight link's rate, not what others leave of it. A flow paced at
//! that rate overflows the queue within a round trip where much of the link is taken, before a rate has stopped
//! growing anywhere.
//! Source: ours. In a first-come-first-served queue that grows, a flow that enters at some rate leaves at its share of what
//! enters, so slower than it came, and faster than what others leave free.
//! So: what a flight arrives at while the queue grows is a better limit than the link's rate. Such a flight comes rounds before the
//! one that overflows the queue.
//! We: two spans in a row (an eighth of `T0` each, at least 10 ms) without a look at which nothing came, their rates within a
//! tenth of each other. A host that stands still makes one span slower and the next one faster.
//! Keeps: no rate is told of less than two spans, nor of flights with gaps.

use std::collections::VecDeque;

use bufwise_units::{Bytes, Micros};

/// Spans in a round trip, and the shortest: five looks, if these are 2 ms apart.
const SPANS: u64 = 8;
const SHORTEST: Micros = Micros::from_millis(10);
/// Largest difference of two rates that are the same flight's, over the larger.
const ALIKE: f64 = 0.1;
/// Looks that are remembered: two spans of the longest sensible length, 2 ms apart.
const REMEMBERED: usize = 512;

/// The looks at the flight that arrives.
#[derive(Clone, Debug, Default)]
pub(super) struct Flights {
    /// When, and what had arrived by then, oldest first; something came between any two, and all the time.
    looks: VecDeque<(Micros, Bytes)>,
    /// The last look.
    last: (Micros, Bytes),
}

impl Flights {
    /// Takes a look at what has arrived. The rate at which the flight comes, bytes per second, once it is known.
    pub(super) fn see(&mut self, received: Bytes, base_rtt: Micros, now: Micros) -> Option<f64> {
        let (last_at, before) = self.last;
        if last_at == now {
            return None;
        }
        self.last = (now, received);
        if received <= before {
            // What comes next comes somewhere within the next interval, which tells no rate.
            self.looks.clear();
            return None;
        }
        if self.looks.len() == REMEMBERED {
            self.looks.pop_front();
        }
        self.looks.push_back((now, received));
        let span = Micros(base_rtt.0 / SPANS).max(SHORTEST);
        let last = self.rate_before(self.looks.len() - 1, span)?;
        let before = self.rate_before(last.1, span)?;
        let larger = last.0.max(before.0);
        ((last.0 - before.0).abs() <= ALIKE * larger).then_some(f64::midpoint(last.0, before.0))
    }

    /// The rate over at least `span` up to look `end`, and the look with which that began.
    fn rate_before(&self, end: usize, span: Micros) -> Option<(f64, usize)> {
        let (at, received) = *self.looks.get(end)?;
        let begin = (0..end).rev().find(|look| at.since(self.looks[*look].0) >= span)?;
        let (began, before) = self.looks[begin];
        Some(((received - before).0 as f64 / at.since(began).as_secs_f64(), begin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOOK: u64 = 2_000;
    const RTT: Micros = Micros::from_millis(160);

    /// The first rate that is seen while so much comes at each look.
    fn first_rate(came: impl IntoIterator<Item = u64>) -> Option<f64> {
        let (mut flights, mut received) = (Flights::default(), 1);
        (0..).zip(came).find_map(|(look, came)| {
            received += came;
            flights.see(Bytes(received), RTT, Micros(look * LOOK))
        })
    }

    #[test]
    fn two_spans_alike_tell_the_rate() {
        let rate = first_rate([10_000; 40]).unwrap();
        assert!((rate - 5e6).abs() < 1.0, "{rate}");
        assert_eq!(first_rate([10_000; 10]), None, "too short");
    }

    #[test]
    fn gaps_and_rates_that_differ_tell_nothing() {
        let gaps = (0..200).map(|look| if look % 9 == 0 { 0 } else { 10_000 });
        assert_eq!(first_rate(gaps), None);
        let growing = (0..60).map(|look| 1_000 << (look / 4));
        assert_eq!(first_rate(growing), None);
    }
}
