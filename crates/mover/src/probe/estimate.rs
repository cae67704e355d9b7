//! Estimates capacity and available bandwidth from several trains.
//!
//! Source: as [`capacity`](super::capacity) and [`flight`](super::flight). A train of rate `R` whose delay grows by `s`
//! gives the available bandwidth `A = R - s * C`. The quartiles enclose the figures of half of the trains. Rates count
//! IP packets (RFC 5136: IP-layer capacity, available IP-layer capacity).
//! Properties kept: even trains give the exact rates; the available bandwidth never exceeds the capacity; where no
//! delay grows, the fastest train is a lower bound and there is no other figure.

use bufwise_units::BitRate;

use super::packet::Seen;

/// Shortest run for an estimate of the capacity, packets.
const SHORTEST_RUN: u16 = 4;
/// Smaller slopes are noise: 3%.
const LEAST_SLOPE: f64 = 0.03;
/// A delay that grows by fewer packet times of the tight link may come from single packets of other flows.
const LEAST_GROWTH: f64 = 1.5;

/// Median and quartiles over several trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Estimate {
    /// Median.
    pub middle: BitRate,
    /// First quartile.
    pub low: BitRate,
    /// Third quartile.
    pub high: BitRate,
}

impl Estimate {
    /// Returns median and quartiles of `rates` (bits per second); `None` without rates.
    fn of(mut rates: Vec<f64>) -> Option<Self> {
        rates.sort_by(f64::total_cmp);
        let last = rates.len().checked_sub(1)?;
        let at = |share: f64| {
            let place = last as f64 * share;
            let (below, above) = (rates[place.floor() as usize], rates[place.ceil() as usize]);
            BitRate((below + (above - below) * place.fract()).round() as u64)
        };
        Some(Self { middle: at(0.5), low: at(0.25), high: at(0.75) })
    }
}

/// Available bandwidth of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Available {
    /// Estimate from trains whose delay grew; `None`: no train was too fast.
    pub estimate: Option<Estimate>,
    /// Rate of the fastest train whose delay did not grow.
    pub carried: Option<BitRate>,
}

/// Returns the tight link's rate from trains of packets of `length` bytes that were sent back to back.
///
/// Packets of other flows may have come between packets that left one by one; so only the joined trains (with even
/// numbers) count, unless they give no figure.
pub(super) fn capacity(trains: &[Seen], length: u16) -> Option<Estimate> {
    let longest = trains.iter().map(|seen| seen.run).max()?;
    let is_whole = |seen: &Seen| seen.run == seen.received || u32::from(seen.run) * 2 >= longest.into();
    let usable =
        trains.iter().filter(|seen| seen.dispersion > 0 && seen.run >= SHORTEST_RUN && is_whole(seen));
    let (joined, single): (Vec<&Seen>, Vec<&Seen>) = usable.partition(|seen| seen.train % 2 == 0);
    let rates = |trains: Vec<&Seen>| trains.into_iter().map(|seen| rate(length, seen.dispersion)).collect();
    Estimate::of(rates(joined)).or_else(|| Estimate::of(rates(single)))
}

/// Rate and delay growth of one spaced train.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    /// Bits per second.
    rate: f64,
    /// Growth of its delay; 0 where that is noise.
    slope: f64,
}

/// Returns rate and delay growth of a train; `None` if it was disturbed or is too short.
fn point(seen: &Seen, length: u16, capacity: BitRate) -> Option<Point> {
    let slope = seen.slope? as f64 / 1e9;
    if seen.gap == 0 || seen.run < 2 || capacity.0 == 0 {
        return None;
    }
    let packet = f64::from(length) * 8e9 / capacity.0 as f64;
    let duration = f64::from(seen.gap) * f64::from(seen.run - 1);
    let noise = LEAST_SLOPE.max(LEAST_GROWTH * packet / duration);
    // The delay grows by at most the time of sending: then no packet would leave the link.
    let slope = if slope > noise { slope.min(1.0) } else { 0.0 };
    Some(Point { rate: rate(length, seen.gap), slope })
}

/// Returns how many steps in a row were too fast; `before`: how many until this one. A step is too fast if the delay grew in
/// each of its trains that shows a delay. A step without trains, because its rate is too low for one, changes nothing.
pub(super) fn steps_too_fast(before: u32, step: &[Seen], length: u16, capacity: BitRate) -> u32 {
    if step.is_empty() {
        return before;
    }
    let mut told = step.iter().filter(|seen| seen.slope.is_some());
    if told.all(|seen| is_too_fast(seen, length, capacity)) { before + 1 } else { 0 }
}

/// Whether a train of packets of `length` bytes was faster than the available bandwidth of a link of `capacity`.
fn is_too_fast(seen: &Seen, length: u16, capacity: BitRate) -> bool {
    point(seen, length, capacity).is_some_and(|point| point.slope > 0.0)
}

/// Returns the available bandwidth, from spaced trains on a link of `capacity`: the figure with the smallest sum of
/// absolute differences to all slopes, so that a few disturbed trains do not count.
pub(super) fn available(trains: &[Seen], length: u16, capacity: BitRate) -> Available {
    let points: Vec<Point> = trains.iter().filter_map(|seen| point(seen, length, capacity)).collect();
    let whole = capacity.0 as f64;
    let left = |point: &Point| (point.rate - point.slope * whole).clamp(0.0, whole);
    let error = |left: f64| -> f64 {
        points.iter().map(|point| (point.slope - ((point.rate - left) / whole).max(0.0)).abs()).sum()
    };
    let carried = points.iter().filter(|point| point.slope == 0.0).map(|point| point.rate.min(whole));
    let carried = carried.max_by(f64::total_cmp).map(|rate| BitRate(rate.round() as u64));
    let grew = points.iter().filter(|point| point.slope > 0.0);
    let best = grew.map(left).min_by(|a, b| error(*a).total_cmp(&error(*b)));
    let estimate = best.and_then(|best| {
        let tells = |point: &&Point| point.slope > 0.0 || point.rate > best;
        let range = Estimate::of(points.iter().filter(tells).map(left).collect())?;
        let middle = BitRate(best.round() as u64);
        Some(Estimate { middle, low: range.low.min(middle), high: range.high.max(middle) })
    });
    Available { estimate, carried }
}

/// Returns the rate in bits per second of packets of `length` bytes, one each `gap` nanoseconds.
fn rate(length: u16, gap: u32) -> f64 {
    f64::from(length) * 8e9 / f64::from(gap)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// 1,500 bytes at 100 Mbit/s take 120 us.
    const CAPACITY: BitRate = BitRate(100_000_000);

    /// A train at `rate` Mbit/s on a link of 100 of which `left` are available.
    fn train(rate: f64, left: f64) -> Seen {
        let slope = ((rate - left) / 100.0).max(0.0);
        let gap = (12_000.0 / rate * 1_000.0).round() as u32;
        Seen {
            train: 0,
            received: 200,
            run: 200,
            gap,
            dispersion: 120_000,
            slope: Some((slope * 1e9) as i64),
        }
    }

    #[test]
    fn even_trains_give_the_exact_capacity_and_disturbed_ones_a_range() {
        let at = |dispersion| Seen { dispersion, ..train(100.0, 100.0) };
        let exact = capacity(&[at(120_000); 6], 1_500).unwrap();
        assert_eq!(exact, Estimate { middle: CAPACITY, low: CAPACITY, high: CAPACITY });
        let wide = capacity(&[at(120_000), at(240_000), at(120_000), at(60_000)], 1_500).unwrap();
        assert_eq!(wide, Estimate { middle: CAPACITY, low: BitRate(87_500_000), high: BitRate(125_000_000) });
        let single = Seen { train: 1, ..at(240_000) };
        assert_eq!(capacity(&[single, at(120_000), single], 1_500), Some(exact));
        assert_eq!(capacity(&[single, at(0)], 1_500).map(|found| found.middle), Some(BitRate(50_000_000)));
        assert_eq!(capacity(&[at(0)], 1_500), None);
        assert_eq!(capacity(&[Seen { run: 3, ..at(120_000) }], 1_500), None);
        assert_eq!(capacity(&[], 1_500), None);
    }

    #[test]
    fn trains_that_nothing_holds_up_are_a_lower_bound() {
        let trains = [train(40.0, 100.0), train(90.0, 100.0), train(80.0, 100.0)];
        let found = available(&trains, 1_500, CAPACITY);
        assert_eq!(found.estimate, None);
        assert!(found.carried.unwrap().0.abs_diff(90_000_000) < 10_000, "{found:?}");
        let silent = Seen { slope: None, ..train(40.0, 100.0) };
        assert_eq!(available(&[silent], 1_500, CAPACITY), Available { estimate: None, carried: None });
    }

    #[test]
    fn a_step_is_too_fast_if_all_delays_grow_and_one_without_trains_says_nothing() {
        let count = |before, step: &[Seen]| steps_too_fast(before, step, 1_500, CAPACITY);
        let (grows, steady) = (train(90.0, 50.0), train(40.0, 50.0));
        let disturbed = Seen { slope: None, ..grows };
        assert_eq!(count(1, &[grows, disturbed, grows]), 2);
        assert_eq!(count(1, &[grows, steady]), 0);
        assert_eq!((count(0, &[]), count(2, &[])), (0, 2));
    }

    proptest! {
        #[test]
        fn trains_that_are_too_fast_tell_what_is_left(left in 0.0..90.0_f64, over in prop::collection::vec(8.0..60.0_f64, 1..9)) {
            let trains: Vec<Seen> = over.iter().map(|over| train(left + over, left)).collect();
            let found = available(&trains, 1_500, CAPACITY).estimate.unwrap();
            prop_assert!((found.middle.0 as f64 - left * 1e6).abs() < 1e5, "{:?}", found);
        }

        #[test]
        fn a_quarter_of_disturbed_trains_changes_nothing(left in 20.0..90.0_f64, wild in prop::array::uniform4(any::<i64>())) {
            let mut trains: Vec<Seen> = (2..14).map(|step| train(f64::from(step) * 10.0, left)).collect();
            trains.extend((9..13).zip(wild).map(|(step, slope)| Seen { slope: Some(slope), ..train(f64::from(step) * 10.0, left) }));
            let found = available(&trains, 1_500, CAPACITY).estimate.unwrap();
            prop_assert!((found.middle.0 as f64 - left * 1e6).abs() < 3.1e6, "{:?}", found);
            prop_assert!(found.low <= found.middle && found.middle <= found.high);
        }

        #[test]
        fn any_figures_stay_below_the_capacity(gap: u32, run: u16, slope: Option<i64>, dispersion: u32) {
            let seen = Seen { train: 0, received: run, run, gap, dispersion, slope };
            let found = available(&[seen], 1_500, CAPACITY);
            let most = [found.estimate.map(|estimate| estimate.high), found.carried];
            prop_assert!(most.into_iter().flatten().all(|rate| rate <= CAPACITY));
            let _ = capacity(&[seen], 1_500);
        }
    }
}
