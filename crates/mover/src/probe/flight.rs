//! The arrivals of one train: the distance of its packets, and the growth of its delay.
//!
//! Problem: a train that is faster than the available bandwidth of the tight link builds a queue there, and the one-way
//! delay grows from packet to packet. The clocks need not agree: only differences count.
//! Source: Jain and Dovrolis 2002 (Pathload): the trend of one-way delays; Melander 2000 (TOPP): in a fluid model, a train of
//! rate `R` beyond what is available (`A`) on a link of capacity `C` arrives at `R * C / (R + C - A)`, so the delay grows by
//! `(R - A) / C` per unit of time.
//! Method: a disturbance at a host can only delay a packet, so the train is cut into eight parts and the quickest packet of
//! each counts; the slope is the median over all pairs of these packets (Theil and Sen), which two disturbed parts do
//! not change.
//! Properties kept: any arrivals give a figure or none; an even train gives its exact distances; late packets change
//! nothing; a train whose sender was kept waiting has no slope.

use super::capacity::Train;
use super::packet::Seen;

/// Parts of a train; the quickest packet of each counts.
const PARTS: usize = 8;
/// After a pause of the sender longer than this share of the train the queue may have drained: there is no slope then.
const LONGEST_PAUSE: f64 = 0.2;

/// Arrivals of one train.
#[derive(Clone, Debug)]
pub(super) struct Flight {
    number: u32,
    packets: u16,
    received: u16,
    /// Sent and arrived, nanoseconds of two clocks, of the packets 0, 1, 2 ... up to the first gap.
    run: Vec<(u64, u64)>,
    broken: bool,
}

impl Flight {
    pub(super) fn new(number: u32, packets: u16) -> Self {
        Self { number, packets, received: 0, run: Vec::with_capacity(packets.into()), broken: false }
    }

    pub(super) fn number(&self) -> u32 {
        self.number
    }

    /// Notes that packet `index` arrived; both times are in nanoseconds.
    pub(super) fn arrived(&mut self, index: u16, sent: u64, at: u64) {
        // The path has duplicated a packet.
        if usize::from(index) < self.run.len() {
            return;
        }
        self.received = self.received.saturating_add(1).min(self.packets);
        if !self.broken && usize::from(index) == self.run.len() && index < self.packets {
            self.run.push((sent, at));
        } else {
            self.broken = true;
        }
    }

    /// Whether as many packets have come as the train has.
    pub(super) fn is_complete(&self) -> bool {
        self.received >= self.packets
    }

    pub(super) fn seen(&self) -> Seen {
        let mut train = Train::new(self.packets);
        for (index, (_, at)) in (0..).zip(&self.run) {
            train.arrived(index, *at);
        }
        let gap = self.duration() / (self.run.len().max(2) - 1) as f64;
        let nanos = |span: f64| span.round() as u32;
        Seen {
            train: self.number,
            received: self.received,
            run: self.run.len() as u16,
            gap: nanos(gap),
            dispersion: train.dispersion().map_or(0, nanos),
            slope: self.slope().map(|slope| (slope * 1e9).round() as i64),
        }
    }

    /// Returns the time that it took to send the run, nanoseconds.
    fn duration(&self) -> f64 {
        match self.run[..] {
            [(first, _), .., (last, _)] => last.saturating_sub(first) as f64,
            _ => 0.0,
        }
    }

    fn slope(&self) -> Option<f64> {
        let (first_sent, first_at) = *self.run.first()?;
        let pause = self.run.windows(2).map(|pair| pair[1].0.saturating_sub(pair[0].0)).max()? as f64;
        let duration = self.duration();
        if self.run.len() < PARTS || duration <= 0.0 || pause > duration * LONGEST_PAUSE {
            return None;
        }
        let delays = self.run.iter().map(|(sent, at)| {
            let sent = sent.saturating_sub(first_sent) as f64;
            (sent, at.saturating_sub(first_at) as f64 - sent)
        });
        let delays: Vec<(f64, f64)> = delays.collect();
        let quickest: Vec<(f64, f64)> = delays
            .chunks(delays.len().div_ceil(PARTS))
            .filter_map(|part| part.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)))
            .collect();
        let pairs =
            quickest.iter().enumerate().flat_map(|(at, a)| quickest[at + 1..].iter().map(move |b| (a, b)));
        let mut slopes: Vec<f64> =
            pairs.filter(|(a, b)| b.0 > a.0).map(|(a, b)| (b.1 - a.1) / (b.0 - a.0)).collect();
        slopes.sort_by(f64::total_cmp);
        slopes.get(slopes.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A train of 64 packets sent each 100 us, whose delay grows by `growth` ns per packet.
    fn flight(growth: u64) -> Flight {
        let mut flight = Flight::new(3, 64);
        for index in 0..64_u64 {
            flight.arrived(index as u16, index * 100_000, 5_000_000_000 + index * (100_000 + growth));
        }
        flight
    }

    #[test]
    fn an_even_train_has_its_distances_and_slope() {
        let seen = flight(25_000).seen();
        assert_eq!((seen.received, seen.run, seen.gap, seen.dispersion), (64, 64, 100_000, 125_000));
        assert_eq!(seen.slope, Some(250_000_000));
        assert_eq!(flight(0).seen().slope, Some(0));
    }

    #[test]
    fn late_packets_change_nothing() {
        let mut disturbed = flight(25_000);
        for late in &mut disturbed.run[10..14] {
            late.1 += 3_000_000;
        }
        for late in &mut disturbed.run[60..] {
            late.1 += 900_000;
        }
        assert_eq!(disturbed.seen().slope, flight(25_000).seen().slope);
    }

    #[test]
    fn a_sender_that_waited_shows_no_slope() {
        let mut waited = flight(25_000);
        for late in &mut waited.run[30..] {
            late.0 += 4_000_000;
            late.1 += 4_000_000;
        }
        assert_eq!(waited.seen().slope, None);
    }

    #[test]
    fn duplicates_change_nothing() {
        let (whole, mut duplicated) = (flight(25_000), Flight::new(3, 64));
        for (index, (sent, at)) in (0..).zip(&whole.run) {
            duplicated.arrived(index, *sent, *at);
            duplicated.arrived(index, *sent, at + 1_000);
        }
        assert_eq!(duplicated.seen(), whole.seen());
    }

    #[test]
    fn what_comes_after_a_gap_is_counted_and_left_out() {
        let mut flight = Flight::new(0, 64);
        for index in (0..40).chain(50..64) {
            flight.arrived(index, u64::from(index) * 1_000, u64::from(index) * 1_000);
        }
        assert_eq!((flight.seen().received, flight.seen().run), (54, 40));
        assert!(!flight.is_complete());
    }

    proptest! {
        #[test]
        fn any_arrivals_give_figures(
            arrivals in prop::collection::vec((0..40_u16, any::<u64>(), any::<u64>()), 0..60)
        ) {
            let mut flight = Flight::new(1, 32);
            for (index, sent, at) in arrivals {
                flight.arrived(index, sent, at);
            }
            let seen = flight.seen();
            prop_assert!(seen.run <= seen.received && seen.received <= 32);
        }
    }
}
