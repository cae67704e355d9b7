//! Capacity from the spacing of packet trains.
//!
//! Problem: packets sent back to back leave the tight link one transmission time apart, which gives the link's rate.
//! But receivers and routers delay single packets by tens of microseconds.
//! Source: Prasad 2004 (SOBAS), section IV-B: "the average dispersion of five packet trains".
//! Terms: *dispersion* is the mean distance of a train's packets; a *run* is a train up to its first gap: on a DropTail
//! queue the packets before a drop left back to back.
//! Method: a disturbance can only delay an arrival, and then several packets arrive at once. So the line below all arrivals
//! (the edge of their lower convex hull at the middle; Moon, Skelly and Towsley 1999 find clock skew in this way) is
//! nearly undisturbed. The dispersion is the slope of the least-squares line through the packets within half a packet
//! time of that line; the result is the median over the trains. Measured over the emulated path with 32 packets: within
//! 0.2% at 10, 100 and 500 Mbit/s, where the plain mean is 0.3% to 6% high.
//! Modes of the distances of single pairs (Dovrolis 2001, pathrate) would see through packets of other flows that come
//! between those of a train, but are not used: receivers, shapers with a bucket, Wi-Fi and cable modems pass several
//! packets on closer together than the tight link carries them over time, with larger gaps between, and no rule on one
//! train's distances separates these from other flows; the capacity would then be too high, today it is too low.
//! Properties kept: evenly spaced trains give their rate exactly, even when some of their packets are late; a minority
//! of disturbed trains moves the result only within the spread of the others; runs under four packets are not used.

use bufwise_units::{Bytes, Micros, Rate};

/// Shortest usable run, packets.
const SHORTEST_RUN: usize = 4;
/// A packet counts as punctual if it is late by less than this share of a packet time.
const PUNCTUAL: f64 = 0.5;

/// The arrivals of one train.
#[derive(Clone, Debug)]
pub(super) struct Train {
    packets: usize,
    /// Nanoseconds on the receiver's clock, of the packets 0, 1, 2 ... up to the first gap.
    run: Vec<u64>,
    broken: bool,
}

impl Train {
    pub(super) fn new(packets: u16) -> Self {
        Self { packets: packets.into(), run: Vec::with_capacity(packets.into()), broken: false }
    }

    /// Notes that packet `index` arrived at `nanos`.
    pub(super) fn arrived(&mut self, index: u16, nanos: u64) {
        // The path has duplicated a packet.
        if usize::from(index) < self.run.len() {
            return;
        }
        if !self.broken && usize::from(index) == self.run.len() {
            self.run.push(nanos);
        } else {
            self.broken = true;
        }
    }

    pub(super) fn is_complete(&self) -> bool {
        self.run.len() == self.packets
    }

    /// Returns the distance of the run's first and last packet over the number of distances between, in nanoseconds.
    fn mean_distance(&self) -> Option<f64> {
        let (first, last) = (self.run.first()?, self.run.last()?);
        let all = last.checked_sub(*first).filter(|all| *all > 0 && self.run.len() >= SHORTEST_RUN)?;
        Some(all as f64 / (self.run.len() - 1) as f64)
    }

    /// Returns the mean distance of the run's packets in nanoseconds.
    pub(super) fn dispersion(&self) -> Option<f64> {
        if self.run.len() < SHORTEST_RUN {
            return None;
        }
        let first = self.run[0];
        let arrivals: Vec<Point> = self
            .run
            .iter()
            .enumerate()
            .map(|(index, nanos)| (index as f64, nanos.saturating_sub(first) as f64))
            .collect();
        let (start, slope) = line_below(&arrivals)?;
        let late = |arrival: &Point| arrival.1 - (start.1 + slope * (arrival.0 - start.0));
        let punctual: Vec<Point> =
            arrivals.into_iter().filter(|arrival| late(arrival) <= PUNCTUAL * slope).collect();
        // The line goes through two packets, which are punctual, so there is a slope.
        Some(slope_through(&punctual)).filter(|slope| *slope > 0.0)
    }
}

/// Index of a packet, and its arrival in nanoseconds.
type Point = (f64, f64);

/// Returns the line (a point and its slope) that is nearest to all arrivals with none below it: the edge of the lower
/// convex hull at the middle. `None` unless it rises.
fn line_below(arrivals: &[Point]) -> Option<(Point, f64)> {
    let mut hull: Vec<Point> = Vec::with_capacity(arrivals.len());
    for point in arrivals {
        while let [.., a, b] = hull[..] {
            let turns_up = (b.1 - a.1) * (point.0 - a.0) < (point.1 - a.1) * (b.0 - a.0);
            if turns_up {
                break;
            }
            hull.pop();
        }
        hull.push(*point);
    }
    let middle = (arrivals.len() as f64 - 1.0) / 2.0;
    let edge = hull.windows(2).find(|edge| edge[1].0 >= middle)?;
    let slope = (edge[1].1 - edge[0].1) / (edge[1].0 - edge[0].0);
    (slope > 0.0).then_some((edge[0], slope))
}

/// Returns the slope of the least-squares line through at least two points with different indices.
fn slope_through(points: &[Point]) -> f64 {
    let n = points.len() as f64;
    let mean = |part: fn(&Point) -> f64| points.iter().map(part).sum::<f64>() / n;
    let (mean_index, mean_time) = (mean(|point| point.0), mean(|point| point.1));
    let product = |(index, time): &Point| (index - mean_index) * (time - mean_time);
    let square = |(index, _): &Point| (index - mean_index) * (index - mean_index);
    points.iter().map(product).sum::<f64>() / points.iter().map(square).sum::<f64>()
}

/// Returns the rate, in payload bytes per second, at which trains of packets of `length` bytes arrived.
///
/// `None` when no train had a run that can be used.
pub(super) fn capacity(trains: &[Train], length: Bytes) -> Option<Rate> {
    let longest = trains.iter().map(|train| train.run.len()).max()?;
    let usable = trains.iter().filter(|train| train.run.len() * 2 >= longest);
    let mut dispersions: Vec<f64> = usable.filter_map(Train::dispersion).collect();
    dispersions.sort_by(f64::total_cmp);
    let middle = dispersions.len() / 2;
    let median = match dispersions.len() {
        0 => return None,
        even if even % 2 == 0 => f64::midpoint(dispersions[middle - 1], dispersions[middle]),
        _ => dispersions[middle],
    };
    rate(length, median)
}

/// Returns the rate by the mean dispersion of all trains, as Prasad 2004 (section IV-B) has it: from the first packet
/// of a run to its last.
///
/// `None` when no train had a run that can be used.
pub(super) fn mean_rate(trains: &[Train], length: Bytes) -> Option<Rate> {
    let dispersions: Vec<f64> = trains.iter().filter_map(Train::mean_distance).collect();
    if dispersions.is_empty() {
        return None;
    }
    rate(length, dispersions.iter().sum::<f64>() / dispersions.len() as f64)
}

/// Returns the rate of packets of `length` bytes that are `dispersion` nanoseconds apart; `None` if it cannot be
/// expressed.
fn rate(length: Bytes, dispersion: f64) -> Option<Rate> {
    // Computed for a thousand packets: for one packet at 1 Gbit/s a fraction of a microsecond would be lost.
    let thousand = Micros(dispersion.round() as u64);
    Some(length.times(1_000).per(thousand)).filter(|rate| rate.0 > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LENGTH: Bytes = Bytes(1_472);
    /// 1,500 bytes and 14 of Ethernet at 100 Mbit/s.
    const GAP: u64 = 121_120;

    fn train(arrivals: &[(u16, u64)]) -> Train {
        let mut train = Train::new(32);
        for (index, nanos) in arrivals {
            train.arrived(*index, *nanos);
        }
        train
    }

    fn even(gap: u64) -> Vec<(u16, u64)> {
        (0..32).map(|i| (i, 5_000_000_000 + u64::from(i) * gap)).collect()
    }

    #[test]
    fn even_spacing_gives_the_exact_rate() {
        let rate = capacity(&[train(&even(GAP))], LENGTH).unwrap();
        assert_eq!(rate, Rate(1_472_000_000_000 / GAP));
        assert_eq!(mean_rate(&[train(&even(GAP))], LENGTH), Some(rate));
    }

    #[test]
    fn the_published_rate_is_that_of_the_mean_dispersion() {
        let trains = [train(&even(GAP)), train(&even(3 * GAP))];
        assert_eq!(mean_rate(&trains, LENGTH), Some(Rate(1_472_000_000_000 / (2 * GAP))));
        let mut late = even(GAP);
        late[31].1 += 31 * GAP;
        assert_eq!(mean_rate(&[train(&late)], LENGTH), Some(Rate(1_472_000_000_000 / (2 * GAP))));
        assert_eq!(mean_rate(&[train(&even(GAP)[..3])], LENGTH), None);
        assert_eq!(mean_rate(&[train(&even(0))], LENGTH), None);
    }

    #[test]
    fn what_comes_after_a_gap_is_ignored() {
        let mut arrivals = even(GAP);
        arrivals.drain(10..20);
        for late in &mut arrivals[10..] {
            late.1 += 90_000_000;
        }
        let broken = train(&arrivals);
        assert!(!broken.is_complete());
        assert_eq!(capacity(&[broken], LENGTH), capacity(&[train(&even(GAP))], LENGTH));
        assert_eq!(capacity(&[train(&even(GAP)[..3])], LENGTH), None);
        assert_eq!(capacity(&[train(&even(GAP)[1..])], LENGTH), None);
        assert_eq!(capacity(&[], LENGTH), None);
    }

    #[test]
    fn duplicates_change_nothing() {
        let pairs: Vec<_> = even(GAP).into_iter().flat_map(|(i, at)| [(i, at), (i, at + 1_000)]).collect();
        assert!(train(&pairs).is_complete());
        assert_eq!(capacity(&[train(&pairs)], LENGTH), capacity(&[train(&even(GAP))], LENGTH));
    }

    #[test]
    fn a_short_run_does_not_outvote_whole_trains() {
        let whole = train(&even(GAP));
        let short = train(&even(GAP / 3)[..8]);
        assert_eq!(capacity(&[short.clone(), whole.clone(), short], LENGTH), capacity(&[whole], LENGTH));
    }

    #[test]
    fn late_packets_that_come_in_one_go_change_nothing() {
        let mut arrivals = even(GAP);
        // The receiver slept twice: packets that arrived meanwhile carry the time at which it woke.
        for (from, to) in [(0, 5), (17, 25)] {
            let woke = arrivals[to].1 - 1_000;
            arrivals[from..to].iter_mut().for_each(|arrival| arrival.1 = woke);
        }
        assert_eq!(capacity(&[train(&arrivals)], LENGTH), capacity(&[train(&even(GAP))], LENGTH));
    }

    #[test]
    fn arrivals_at_one_moment_give_no_rate() {
        assert_eq!(capacity(&[train(&even(0))], LENGTH), None);
    }

    proptest! {
        #[test]
        fn two_disturbed_trains_of_five_change_nothing(first in 1..1_000_000_u64, second in 1..1_000_000_u64) {
            let good = train(&even(GAP));
            let trains = [train(&even(first)), good.clone(), good.clone(), train(&even(second)), good.clone()];
            prop_assert_eq!(capacity(&trains, LENGTH), capacity(&[good], LENGTH));
        }

        #[test]
        fn jitter_of_a_tenth_of_the_spacing_costs_two_percent(
            jitter in prop::collection::vec(0..GAP / 10, 32)
        ) {
            let arrivals: Vec<_> = even(GAP).iter().zip(jitter).map(|((i, at), late)| (*i, at + late)).collect();
            let rate = capacity(&[train(&arrivals)], LENGTH).unwrap().0 as f64;
            prop_assert!((rate / 12_153_236.0 - 1.0).abs() < 0.02, "{}", rate);
        }

        #[test]
        fn any_arrivals_give_a_rate_or_none(arrivals in prop::collection::vec((0..40_u16, any::<u64>()), 0..60)) {
            let _ = (capacity(&[train(&arrivals)], LENGTH), mean_rate(&[train(&arrivals)], LENGTH));
        }
    }
}
