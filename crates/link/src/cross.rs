//! Load of others in the same queue: unresponsive, so neither drops nor delay slow it down.
//!
//! While it is on, packets of one size come at even distances that make up its rate; each burst begins at
//! a random point of that distance, so that short bursts carry the right load on average. The times of
//! on and off are constant (always on), exponential, or Pareto (long-range dependence, the pattern that
//! aggregated transfers of heavy-tailed sizes make: Willinger et al. 1997).
//!
//! Packets are made when the link's clock passes them; each costs what an own packet costs.

use crate::random::Random;
use bufwise_units::{BitRate, Nanos};

/// Background load, as its sender is made.
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
    /// Bits per second on the wire while it is on.
    pub rate: BitRate,
    /// IP length of its packets; the direction's overhead comes on top.
    pub packet_bytes: u32,
    /// When it is on.
    pub pattern: CrossPattern,
}

/// When cross traffic is on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum CrossPattern {
    /// Always.
    Constant,
    /// On and off in turn, on first.
    Bursty {
        /// Mean time on; at least 1 ms.
        on: Nanos,
        /// Mean time off; at least 1 ms.
        off: Nanos,
        /// How the times scatter about their means.
        durations: Durations,
    },
}

/// How the times of a burst scatter.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Durations {
    /// Without memory.
    Exponential,
    /// Heavy-tailed; the smaller the shape, the heavier. It must exceed 1.
    Pareto {
        /// The exponent of the tail.
        shape: f64,
    },
}

/// The arrivals of cross traffic, in order of time.
#[derive(Clone, Debug)]
pub(crate) struct Arrivals {
    traffic: CrossTraffic,
    wire_bytes: u64,
    /// 10^-9 bits of one packet.
    work: u128,
    random: Random,
    /// When the first packet of this burst comes, how many came since, and when the burst ends.
    burst: u64,
    sent: u64,
    burst_end: u64,
    next: u64,
}

impl Arrivals {
    pub(crate) fn new(traffic: CrossTraffic, overhead: u32, random: Random) -> Self {
        let wire_bytes = u64::from(traffic.packet_bytes) + u64::from(overhead);
        let work = u128::from(wire_bytes) * crate::schedule::BYTE;
        let mut arrivals =
            Self { traffic, wire_bytes, work, random, burst: 0, sent: 0, burst_end: 0, next: 0 };
        arrivals.start_burst(0);
        arrivals.find_next();
        arrivals
    }

    /// When the next packet comes; [`u64::MAX`]: never.
    pub(crate) const fn next(&self) -> u64 {
        self.next
    }

    /// Wire length of each packet.
    pub(crate) const fn wire_bytes(&self) -> u64 {
        self.wire_bytes
    }

    /// Goes on to the packet after the next.
    pub(crate) fn pass(&mut self) {
        self.sent += 1;
        self.find_next();
    }

    fn find_next(&mut self) {
        loop {
            self.next = self.burst.saturating_add(self.time_of(self.sent));
            if self.next < self.burst_end || self.burst_end == u64::MAX {
                return;
            }
            let CrossPattern::Bursty { off, durations, .. } = self.traffic.pattern else { return };
            let pause = self.draw(off, durations);
            self.start_burst(self.burst_end.saturating_add(pause));
        }
    }

    fn start_burst(&mut self, at: u64) {
        self.burst_end = match self.traffic.pattern {
            CrossPattern::Constant => u64::MAX,
            CrossPattern::Bursty { on, durations, .. } => at.saturating_add(self.draw(on, durations)),
        };
        let distance = self.time_of(1);
        self.burst = at.saturating_add(self.random.up_to(distance.saturating_sub(1)));
        self.sent = 0;
    }

    /// How long `packets` take at the rate; counted from the burst's start, so that nothing drifts.
    fn time_of(&self, packets: u64) -> u64 {
        let work = self.work.saturating_mul(u128::from(packets));
        u64::try_from(work / u128::from(self.traffic.rate.0)).unwrap_or(u64::MAX)
    }

    fn draw(&mut self, mean: Nanos, durations: Durations) -> u64 {
        let rest = 1.0 - self.random.unit(); // in (0, 1]
        let mean = mean.0 as f64;
        let drawn = match durations {
            Durations::Exponential => -rest.ln() * mean,
            Durations::Pareto { shape } => mean * (shape - 1.0) / shape / rest.powf(1.0 / shape),
        };
        drawn as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECONDS: u64 = 2_000;

    /// Mean rate in bit/s over a long time, and the arrivals of it.
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
        let pattern = CrossPattern::Bursty {
            on: Nanos::from_millis(20),
            off: Nanos::from_millis(60),
            durations: Durations::Exponential,
        };
        assert_eq!(run(pattern, 4), run(pattern, 4));
        assert_ne!(run(pattern, 4), run(pattern, 5));
    }
}
