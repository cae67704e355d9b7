//! Load of other senders in the same queue. It is unresponsive: neither drops nor delay slow it down.
//!
//! While a source is on, packets of one size come at even distances that make up its rate. Each burst begins at a
//! random point of that distance, so that short bursts carry the right load on average. The on and off times are
//! constant (always on), exponential, or Pareto (long-range dependence, the pattern of aggregated transfers with
//! heavy-tailed sizes: Willinger et al. 1997).
//!
//! An aggregate is many such sources. With `n` sources, each on for a share `p` of the time, the rate at any moment
//! scatters by `sqrt((1 - p) / (n p))` of its mean, and with heavy-tailed times it stays bursty over every time scale.
//! An aggregate begins in its steady state: each source is on with probability `p`.
//!
//! Packets are made when the link's clock passes them; each costs as much computing time as an own packet.

use crate::random::Random;
use bufwise_units::{BitRate, Nanos};

/// Background load as its sender offers it.
///
/// ```
/// use bufwise_link::{CrossPattern, CrossTraffic, Direction, DirectionConfig};
/// use bufwise_units::{BitRate, Nanos};
///
/// let (rate, pattern) = (BitRate(5_000_000), CrossPattern::Constant);
/// let cross = Some(CrossTraffic { rate, packet_bytes: 1_500, pattern });
/// let config = DirectionConfig { rate: Some(BitRate(10_000_000)), cross, ..Default::default() };
/// let counters = Direction::new(config, 1)?.counters(Nanos::from_secs(10));
/// // Half of the link is taken before anything of one's own is offered.
/// assert!((0.49..0.51).contains(&counters.utilisation));
/// # Ok::<(), bufwise_link::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossTraffic {
    /// Bits per second on the wire while on; for an aggregate, while all its sources are on.
    pub rate: BitRate,
    /// IP length of its packets, in bytes; the direction's overhead is added.
    pub packet_bytes: u32,
    /// When the load is on.
    pub pattern: CrossPattern,
}

/// When cross traffic is on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CrossPattern {
    /// Always on.
    Constant,
    /// On and off in turn, beginning with on.
    Bursty {
        /// Mean time on; at least 1 ms.
        on: Nanos,
        /// Mean time off; at least 1 ms.
        off: Nanos,
        /// Distribution of the times about their means.
        durations: Durations,
    },
    /// Several independent sources, each with its own on and off times and an equal part of the rate.
    Aggregate {
        /// Number of sources; at least 1.
        sources: u32,
        /// Mean time on of each source; at least 1 ms.
        on: Nanos,
        /// Mean time off of each source; at least 1 ms.
        off: Nanos,
        /// Distribution of the times about their means.
        durations: Durations,
    },
}

/// Distribution of on and off times.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Durations {
    /// Exponential: without memory.
    Exponential,
    /// Heavy-tailed; the smaller the shape, the heavier the tail.
    Pareto {
        /// The exponent of the tail; above 1.
        shape: f64,
    },
}

/// The arrivals of cross traffic, in order of time.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    wire_bytes: u64,
    random: Random,
    sources: Vec<Source>,
    /// Index of the source that sends the next packet.
    first: usize,
}

impl Arrivals {
    pub(crate) fn new(traffic: CrossTraffic, overhead: u32, mut random: Random) -> Self {
        let wire_bytes = u64::from(traffic.packet_bytes) + u64::from(overhead);
        let work = u128::from(wire_bytes) * crate::schedule::BYTE;
        let (count, times) = match traffic.pattern {
            CrossPattern::Constant => (1, None),
            CrossPattern::Bursty { on, off, durations } => (1, Some(Times { on, off, durations })),
            CrossPattern::Aggregate { sources, on, off, durations } => {
                (sources, Some(Times { on, off, durations }))
            }
        };
        let steady = matches!(traffic.pattern, CrossPattern::Aggregate { .. });
        // Each source has an equal part of the rate, so its packet takes `count` times as long.
        let work = work.saturating_mul(u128::from(count));
        let source = |_| Source::new(times, work, traffic.rate, steady, &mut random);
        let sources = (0..count).map(source).collect();
        let mut arrivals = Self { wire_bytes, random, sources, first: 0 };
        arrivals.find_first();
        arrivals
    }

    /// Returns when the next packet comes, in ns; [`u64::MAX`]: never.
    pub(crate) fn next(&self) -> u64 {
        self.sources.get(self.first).map_or(u64::MAX, |source| source.next)
    }

    /// Returns the wire length of each packet.
    pub(crate) const fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// Moves on to the packet after the next.
    pub(crate) fn pass(&mut self) {
        if let Some(source) = self.sources.get_mut(self.first) {
            source.sent += 1;
            source.find_next(&mut self.random);
        }
        self.find_first();
    }

    fn find_first(&mut self) {
        let next = |index: &usize| self.sources[*index].next;
        self.first = (0..self.sources.len()).min_by_key(next).unwrap_or(0);
    }
}

/// Mean times on and off.
#[derive(Clone, Copy, Debug)]
struct Times {
    on: Nanos,
    off: Nanos,
    durations: Durations,
}

/// One sender of cross traffic.
#[derive(Clone, Debug)]
struct Source {
    /// `None`: always on.
    times: Option<Times>,
    /// Work of one packet at `rate`, in 10^-9 bit.
    work: u128,
    rate: BitRate,
    /// When the first packet of this burst comes, how many have come since, and when the burst ends (ns).
    burst: u64,
    sent: u64,
    burst_end: u64,
    next: u64,
}

impl Source {
    /// Starts on; with `steady` in a state drawn from the long-run shares of on and off.
    fn new(times: Option<Times>, work: u128, rate: BitRate, steady: bool, random: &mut Random) -> Self {
        let mut source = Self { times, work, rate, burst: 0, sent: 0, burst_end: 0, next: 0 };
        let pause = times.filter(|_| steady).map_or(0, |Times { on, off, durations }| {
            let share = on.0 as f64 / (on.0 as f64 + off.0 as f64);
            if random.chance(share) { 0 } else { draw(off, durations, random) }
        });
        source.start_burst(pause, random);
        source.find_next(random);
        source
    }

    fn find_next(&mut self, random: &mut Random) {
        loop {
            self.next = self.burst.saturating_add(self.time_of(self.sent));
            if self.next < self.burst_end || self.burst_end == u64::MAX {
                return;
            }
            let Some(Times { off, durations, .. }) = self.times else { return };
            let pause = draw(off, durations, random);
            self.start_burst(self.burst_end.saturating_add(pause), random);
        }
    }

    fn start_burst(&mut self, at: u64, random: &mut Random) {
        self.burst_end = self
            .times
            .map_or(u64::MAX, |Times { on, durations, .. }| at.saturating_add(draw(on, durations, random)));
        let distance = self.time_of(1);
        self.burst = at.saturating_add(random.up_to(distance.saturating_sub(1)));
        self.sent = 0;
    }

    /// Returns how long `packets` take at the rate, in ns; counted from the burst's start, so no rounding accumulates.
    fn time_of(&self, packets: u64) -> u64 {
        let work = self.work.saturating_mul(u128::from(packets));
        u64::try_from(work / u128::from(self.rate.0)).unwrap_or(u64::MAX)
    }
}

fn draw(mean: Nanos, durations: Durations, random: &mut Random) -> u64 {
    let rest = 1.0 - random.unit(); // in (0, 1]
    let mean = mean.0 as f64;
    let drawn = match durations {
        Durations::Exponential => -rest.ln() * mean,
        Durations::Pareto { shape } => mean * (shape - 1.0) / shape / rest.powf(1.0 / shape),
    };
    drawn as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: u64 = 2_000;

    /// Returns the mean rate in bit/s over a long time, and the arrival times.
    fn run(pattern: CrossPattern, seed: u64) -> (f64, Vec<u64>) {
        let [random] = Random::streams(seed);
        let traffic = CrossTraffic { rate: BitRate(1_000_000), packet_bytes: 986, pattern };
        let mut arrivals = Arrivals::new(traffic, 14, random);
        let mut times = Vec::new();
        while arrivals.next() < SECONDS * 1_000_000_000 {
            times.push(arrivals.next());
            arrivals.pass();
        }
        (times.len() as f64 * 8_000.0 / SECONDS as f64, times)
    }

    #[test]
    fn constant_load_is_even_and_exact() {
        let (rate, times) = run(CrossPattern::Constant, 1);
        assert_eq!(rate, 1e6);
        assert!(times.windows(2).all(|pair| pair[1] - pair[0] == 8_000_000));
    }

    #[test]
    fn bursts_carry_their_share_of_the_time() {
        for durations in [Durations::Exponential, Durations::Pareto { shape: 2.5 }] {
            let (on, off) = (Nanos::from_millis(20), Nanos::from_millis(60));
            let (rate, times) = run(CrossPattern::Bursty { on, off, durations }, 2);
            // 25,000 bursts: the mean of the on share scatters by about 1%.
            assert!((rate / 250_000.0 - 1.0).abs() < 0.05, "{durations:?}: {rate}");
            assert!(times.windows(2).all(|pair| pair[0] < pair[1]));
        }
    }

    #[test]
    fn pareto_bursts_have_the_longer_tail() {
        let longest = |durations| {
            let (on, off) = (Nanos::from_millis(20), Nanos::from_millis(60));
            let (_, times) = run(CrossPattern::Bursty { on, off, durations }, 3);
            times.windows(2).map(|pair| pair[1] - pair[0]).max()
        };
        assert!(longest(Durations::Pareto { shape: 1.5 }) > longest(Durations::Exponential));
    }

    #[test]
    fn the_same_seed_gives_the_same_load() {
        let (on, off, durations) = (Nanos::from_millis(20), Nanos::from_millis(60), Durations::Exponential);
        let aggregate = CrossPattern::Aggregate { sources: 16, on, off, durations };
        for pattern in [CrossPattern::Bursty { on, off, durations }, aggregate] {
            assert_eq!(run(pattern, 4), run(pattern, 4));
            assert_ne!(run(pattern, 4), run(pattern, 5));
        }
    }

    /// Returns sixteen sources, each on for a quarter of the time.
    fn aggregate(durations: Durations) -> CrossPattern {
        let (on, off) = (Nanos::from_millis(200), Nanos::from_millis(600));
        CrossPattern::Aggregate { sources: 16, on, off, durations }
    }

    /// Returns standard deviation over mean of the packets in each whole span of this length (ns).
    fn scatter(times: &[u64], span: u64) -> f64 {
        let mut counts = vec![0.0; usize::try_from(SECONDS * 1_000_000_000 / span).unwrap()];
        for time in times {
            if let Some(count) = counts.get_mut(usize::try_from(time / span).unwrap()) {
                *count += 1.0;
            }
        }
        let mean = counts.iter().sum::<f64>() / counts.len() as f64;
        let square = counts.iter().map(|count| (count - mean).powi(2)).sum::<f64>() / counts.len() as f64;
        square.sqrt() / mean
    }

    #[test]
    fn an_aggregate_carries_its_mean_from_the_first_second_on() {
        for seed in 0..4 {
            let (rate, times) = run(aggregate(Durations::Pareto { shape: 1.5 }), seed);
            // Heavy tails converge slowly.
            assert!((rate / 250_000.0 - 1.0).abs() < 0.1, "{seed}: {rate}");
            assert!(times.windows(2).all(|pair| pair[0] <= pair[1]));
        }
        let first_second = |seed| {
            let (_, times) = run(aggregate(Durations::Exponential), seed);
            times.iter().filter(|time| **time < 1_000_000_000).count() as f64 * 8_000.0
        };
        let mean = (0..16).map(first_second).sum::<f64>() / 16.0;
        // One second scatters by a third; 16 of them by a tenth.
        assert!((mean / 250_000.0 - 1.0).abs() < 0.3, "{mean}");
    }

    #[test]
    fn many_sources_scatter_as_theory_says_and_heavy_tails_stay_bursty() {
        let of = |pattern, span| scatter(&run(pattern, 6).1, span);
        let (short, long) = (200_000_000, 12_800_000_000);
        // sqrt((1 - p) / (n p)) = 0.43 at a moment; a span as long as a burst averages part of it out.
        let heavy = aggregate(Durations::Pareto { shape: 1.5 });
        let at_once = of(heavy, short);
        assert!((0.25..0.50).contains(&at_once), "{at_once}");
        // Without memory, the scatter of spans much longer than a burst falls with the root of their length: to 0.19 of
        // that of the short spans. With heavy tails it stays.
        let light = aggregate(Durations::Exponential);
        let lasting = |pattern| of(pattern, long) / of(pattern, short);
        assert!((0.14..0.24).contains(&lasting(light)), "{}", lasting(light));
        assert!(lasting(heavy) > 1.3 * lasting(light), "{} {}", lasting(heavy), lasting(light));
    }
}
