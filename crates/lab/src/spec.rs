//! A path as described by the user: `--rate 100mbit --rtt 40ms --queue bdp/8`.
//!
//! Both directions get the same rate unless the way to host B has one of its own, half the RTT as delay, and each its own
//! queue and losses.

use std::str::FromStr;

use bufwise_link::{
    ConfigError, CrossPattern, CrossTraffic, Direction, DirectionConfig, Durations, ETHERNET_HEADER, Loss,
    Path, QueueLimit, QueueSize, Trace,
};
use bufwise_units::{BitRate, Nanos};
use thiserror::Error;

/// Ethernet's usual MTU.
pub const DEFAULT_MTU: u16 = 1_500;
/// Smallest MTU that IPv6 allows (RFC 8200 section 5).
pub const MIN_MTU: u16 = 1_280;
/// Least size of the default queue, in packets, for paths with a short RTT.
const SHORTEST_BDP_PACKETS: u64 = 64;
/// Bursts like those of aggregated transfers with heavy-tailed sizes (Willinger et al. 1997).
pub(crate) const HEAVY_TAIL: Durations = Durations::Pareto { shape: 1.5 };
/// Most sources of cross traffic, each with a state of its own.
const MOST_SOURCES: u32 = 1_000;
/// Longest RTT that the lab emulates: beyond it, the memory for packets in flight has no sensible bound.
const MAX_RTT: Nanos = Nanos(60_000_000_000);

/// Why a path cannot be built.
#[derive(Debug, Error)]
pub enum SpecError {
    /// The link's configuration is invalid.
    #[error(transparent)]
    Link(#[from] ConfigError),
    /// A queue in units of time or BDP was given without a rate.
    #[error(
        "a queue as a time or a share of the BDP needs a rate: give one (`--rate`; `rate` in a file), or bytes or packets"
    )]
    QueueWithoutRate,
    /// The queue holds no packet.
    #[error("queue of {bytes} bytes holds no packet of {packet} bytes: make it larger")]
    QueueBelowPacket {
        /// The size that was given, in bytes.
        bytes: u64,
        /// A full packet on the wire, in bytes.
        packet: u64,
    },
    /// The MTU is out of range.
    #[error("MTU {0} is out of range: it must be {MIN_MTU} to 65535 bytes")]
    Mtu(u16),
    /// The rate is 0: no packet would ever arrive.
    #[error("a rate of 0 carries nothing: give one above zero, or none for no limit")]
    Rate,
    /// The RTT is out of range.
    #[error("RTT is longer than 60 s: make it shorter")]
    Rtt,
}

/// Random loss as the command line gives it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LossSpec(pub Loss);

/// Error for a text that is no loss.
#[derive(Debug, Error)]
#[error("loss {0:?}: give a probability (0.01, 1%), or gilbert:GOOD_TO_BAD,BAD_TO_GOOD[,LOSS_WHILE_BAD]")]
pub struct ParseLossError(String);

impl FromStr for LossSpec {
    type Err = ParseLossError;

    fn from_str(text: &str) -> Result<Self, ParseLossError> {
        let wrong = || ParseLossError(text.chars().take(80).collect());
        let probability = |text: &str| {
            let (digits, scale) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent, 100.0));
            let value = digits.trim().parse::<f64>().map_err(|_| wrong())? / scale;
            if (0.0..=1.0).contains(&value) { Ok(value) } else { Err(wrong()) }
        };
        let Some(states) = text.strip_prefix("gilbert:") else {
            let probability = probability(text)?;
            return Ok(Self(if probability > 0.0 { Loss::Uniform { probability } } else { Loss::None }));
        };
        let states = states.split(',').map(probability).collect::<Result<Vec<_>, _>>()?;
        let (good_to_bad, bad_to_good, loss_bad) = match states[..] {
            [good_to_bad, bad_to_good] => (good_to_bad, bad_to_good, 1.0),
            [good_to_bad, bad_to_good, loss_bad] => (good_to_bad, bad_to_good, loss_bad),
            _ => return Err(wrong()),
        };
        Ok(Self(Loss::GilbertElliott { good_to_bad, bad_to_good, loss_good: 0.0, loss_bad }))
    }
}

/// Unresponsive cross traffic as the command line gives it: packets of 1,500 bytes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CrossSpec(pub CrossTraffic);

/// Error for a text that is no cross traffic.
#[derive(Debug, Error)]
#[error(
    "cross traffic {0:?}: give a rate (57mbit), or one for bursts with their mean times on and off (800mbit:200ms,200ms), \
     from several sources (800mbit:200ms,200ms,32)"
)]
pub struct ParseCrossError(String);

impl FromStr for CrossSpec {
    type Err = ParseCrossError;

    fn from_str(text: &str) -> Result<Self, ParseCrossError> {
        let wrong = || ParseCrossError(text.chars().take(80).collect());
        let (rate, times) = text.split_once(':').map_or((text, None), |(rate, times)| (rate, Some(times)));
        let pattern = match times {
            None => CrossPattern::Constant,
            Some(times) => {
                let time = |text: &str| text.parse::<Nanos>().map_err(|_| wrong());
                let durations = HEAVY_TAIL;
                match times.split(',').collect::<Vec<_>>()[..] {
                    [on, off] => CrossPattern::Bursty { on: time(on)?, off: time(off)?, durations },
                    [on, off, sources] => {
                        let sources = sources.parse().map_err(|_| wrong())?;
                        if !(1..=MOST_SOURCES).contains(&sources) {
                            return Err(wrong());
                        }
                        CrossPattern::Aggregate { sources, on: time(on)?, off: time(off)?, durations }
                    }
                    _ => return Err(wrong()),
                }
            }
        };
        let rate = rate.parse().map_err(|_| wrong())?;
        Ok(Self(CrossTraffic { rate, packet_bytes: u32::from(DEFAULT_MTU), pattern }))
    }
}

/// A link that paths pass after their own link, as routers in a row. Paths that name the same link share it.
#[derive(Clone, Debug, PartialEq)]
pub struct SharedLink {
    /// Name, by which paths share it.
    pub name: String,
    /// The link: its rate, RTT, queue, losses, and cross traffic. Other fields have no effect.
    pub spec: PathSpec,
}

/// Returns each link that `paths` share, once, in the order in which the paths name them.
pub(crate) fn shared_links<'a>(paths: impl IntoIterator<Item = &'a PathSpec>) -> Vec<&'a SharedLink> {
    let mut links: Vec<&SharedLink> = Vec::new();
    for link in paths.into_iter().flat_map(|path| &path.links) {
        if links.iter().all(|other| other.name != link.name) {
            links.push(link);
        }
    }
    links
}

/// The full description of a path and its two hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct PathSpec {
    /// The host at which the path begins; `None`: host A. Paths that name the same host begin there together.
    pub from: Option<String>,
    /// Links that packets from host A pass after the path's own link, in this order.
    pub links: Vec<SharedLink>,
    /// Rate of the path's own link; `None`: as fast as the machine allows.
    pub rate: Option<BitRate>,
    /// Round-trip time of the path's own link when idle.
    pub rtt: Nanos,
    /// The link's queue, in each direction; `None`: one BDP. The BDP is that of the direction's rate.
    pub queue: Option<QueueSize>,
    /// Uses a token bucket of the queue's size instead of a queue, in each direction: it drops excess packets and
    /// delays none.
    pub policer: bool,
    /// Marks packets that wait longer than this in the link's queue, in each direction, if their sender supports ECN; `None`: marks
    /// no packet.
    pub mark: Option<Nanos>,
    /// Random loss, each direction.
    pub loss: Loss,
    /// Largest deviation of the delay, both ways, in each direction; packets stay in order.
    pub jitter: Nanos,
    /// Whether jitter puts packets out of order.
    pub reorder: bool,
    /// Rate and delay over time, both directions.
    pub trace: Option<Trace>,
    /// Rate from host A to host B, if it differs from the way back.
    pub rate_a_to_b: Option<BitRate>,
    /// Rate and delay over time from host A to host B, if they differ from the way back.
    pub trace_a_to_b: Option<Trace>,
    /// Begins the traces of both directions anew, once, with the first packet of data
    /// ([`DATA_PACKET`](bufwise_link::DATA_PACKET)) in either direction. Until then they run from the making of the path on.
    pub trace_begins_with_data: bool,
    /// Other traffic on the link from host A to host B.
    pub cross_a_to_b: Option<CrossTraffic>,
    /// Other traffic on the link from host B to host A.
    pub cross_b_to_a: Option<CrossTraffic>,
    /// Largest IP packet, in bytes.
    pub mtu: u16,
    /// Maximum of `tcp_rmem` in both hosts, bytes; `None`: the system's.
    pub rmem: Option<u64>,
    /// Maximum of `tcp_wmem` in both hosts, bytes; `None`: the system's.
    pub wmem: Option<u64>,
    /// Default congestion control of both hosts; `None`: the system's.
    pub congestion_control: Option<String>,
    /// Seed of all random parts.
    pub seed: u64,
}

impl Default for PathSpec {
    fn default() -> Self {
        Self {
            from: None,
            links: Vec::new(),
            rate: None,
            rtt: Nanos(0),
            queue: None,
            policer: false,
            mark: None,
            loss: Loss::None,
            jitter: Nanos(0),
            reorder: false,
            trace: None,
            rate_a_to_b: None,
            trace_a_to_b: None,
            trace_begins_with_data: false,
            cross_a_to_b: None,
            cross_b_to_a: None,
            mtu: DEFAULT_MTU,
            rmem: None,
            wmem: None,
            congestion_control: None,
            seed: 1,
        }
    }
}

impl PathSpec {
    /// Returns the path as packets from host A to host B meet it: rates and traces are those of that direction. The path
    /// itself is as packets from host B to host A meet it.
    #[must_use]
    pub fn a_to_b(&self) -> Self {
        let link = |link: &SharedLink| SharedLink { name: link.name.clone(), spec: link.spec.a_to_b() };
        Self {
            rate: self.rate_a_to_b.or(self.rate),
            rate_a_to_b: None,
            trace: self.trace_a_to_b.clone().or_else(|| self.trace.clone()),
            trace_a_to_b: None,
            links: self.links.iter().map(link).collect(),
            ..self.clone()
        }
    }

    /// Returns the bytes on the wire that fill the path towards host A: rate x RTT over all its links. `None` without a rate.
    #[must_use]
    pub fn bdp(&self) -> Option<u64> {
        self.tight_rate().map(|rate| rate.bytes_over(self.whole_rtt()))
    }

    /// Returns the rate of the slowest of its links towards host A; `None`: none has a rate.
    #[must_use]
    pub fn tight_rate(&self) -> Option<BitRate> {
        self.own_and_shared().filter_map(|link| link.rate).min()
    }

    /// Returns the round-trip time of the idle path over all its links.
    #[must_use]
    pub fn whole_rtt(&self) -> Nanos {
        Nanos(self.own_and_shared().map(|link| link.rtt.0).fold(0, u64::saturating_add))
    }

    /// Returns the path's own link, and then the links that it shares.
    pub(crate) fn own_and_shared(&self) -> impl Iterator<Item = &Self> {
        std::iter::once(self).chain(self.links.iter().map(|link| &link.spec))
    }

    /// Returns the size of the queue towards host A as the link counts it.
    ///
    /// # Errors
    /// [`SpecError`] when the queue needs a rate that is not given, or holds no packet.
    pub fn queue_limit(&self) -> Result<QueueLimit, SpecError> {
        let packet = u64::from(self.mtu) + u64::from(ETHERNET_HEADER);
        let limit = match (self.queue, self.rate) {
            (Some(QueueSize::Bdp(_) | QueueSize::Time(_)), None) => return Err(SpecError::QueueWithoutRate),
            (Some(size), rate) => size.limit(rate, self.rtt),
            // A path without delay still needs room for the packets that arrive while one is being sent.
            (None, Some(rate)) => {
                QueueLimit::Bytes(rate.bytes_over(self.rtt).max(SHORTEST_BDP_PACKETS * packet))
            }
            (None, None) => QueueLimit::Unlimited,
        };
        match limit {
            QueueLimit::Bytes(bytes) if bytes < packet => Err(SpecError::QueueBelowPacket { bytes, packet }),
            limit => Ok(limit),
        }
    }

    /// Returns how long the own link takes to empty a full queue, in the direction that takes less; `None` when nothing can
    /// queue.
    #[must_use]
    pub fn queue_drain_time(&self) -> Option<Nanos> {
        [self.drain_time(), self.a_to_b().drain_time()].into_iter().flatten().min()
    }

    /// Returns how long the own link takes to empty a full queue towards host A.
    fn drain_time(&self) -> Option<Nanos> {
        let rate = self.rate?;
        let bytes = match self.queue_limit().ok()? {
            QueueLimit::Unlimited => return None,
            QueueLimit::Bytes(bytes) => bytes,
            QueueLimit::Packets(packets) => u64::from(packets) * u64::from(self.mtu),
        };
        let nanos = u128::from(bytes) * 8 * 1_000_000_000 / u128::from(rate.0.max(1));
        Some(Nanos(u64::try_from(nanos).unwrap_or(u64::MAX)))
    }

    /// Returns the link's two directions, from host A to host B and back.
    ///
    /// # Errors
    /// [`SpecError`] with what is wrong and what to change.
    pub fn directions(&self) -> Result<(Direction, Direction), SpecError> {
        if self.mtu < MIN_MTU {
            return Err(SpecError::Mtu(self.mtu));
        }
        if self.rate == Some(BitRate(0)) || self.rate_a_to_b == Some(BitRate(0)) {
            return Err(SpecError::Rate);
        }
        if self.whole_rtt() > MAX_RTT {
            return Err(SpecError::Rtt);
        }
        let there = self.a_to_b();
        let config = DirectionConfig {
            rate: self.rate,
            jitter: self.jitter,
            reorder: self.reorder,
            queue: self.queue_limit()?,
            policer: self.policer,
            mark: self.mark,
            loss: self.loss,
            overhead: ETHERNET_HEADER,
            trace: self.trace.clone(),
            trace_begins_with_data: self.trace_begins_with_data,
            ..DirectionConfig::default()
        };
        let delay = Nanos(self.rtt.0 / 2);
        let back = Nanos(self.rtt.0 - delay.0);
        let a_to_b = DirectionConfig {
            rate: there.rate,
            queue: there.queue_limit()?,
            delay,
            cross: self.cross_a_to_b,
            trace: there.trace,
            ..config.clone()
        };
        let b_to_a = DirectionConfig { delay: back, cross: self.cross_b_to_a, ..config };
        let path = Path::new(a_to_b, b_to_a, self.seed)?;
        Ok((path.forward, path.backward))
    }
}

#[cfg(test)]
mod tests {
    use bufwise_link::Fate;

    use super::*;

    fn spec() -> PathSpec {
        PathSpec { rate: Some(BitRate(100_000_000)), rtt: Nanos::from_millis(40), ..PathSpec::default() }
    }

    #[test]
    fn the_default_queue_is_one_bandwidth_delay_product() {
        assert_eq!(spec().queue_limit().unwrap(), QueueLimit::Bytes(500_000));
        assert_eq!(spec().bdp(), Some(500_000));
        assert_eq!(spec().queue_drain_time(), Some(Nanos::from_millis(40)));
        assert_eq!(PathSpec::default().queue_limit().unwrap(), QueueLimit::Unlimited);
    }

    #[test]
    fn each_direction_has_the_queue_of_its_own_rate() {
        let slow = PathSpec { rate_a_to_b: Some(BitRate(50_000_000)), ..spec() };
        // A queue takes as many of a thousand simultaneous full packets as it holds.
        let taken = |mut way: Direction| {
            let fates = (0..1_000).map(|_| way.offer(Nanos(0), u32::from(DEFAULT_MTU)));
            fates.filter(|fate| matches!(fate, Fate::Deliver { .. })).count() as u64
        };
        let queues = |spec: &PathSpec| {
            let (a_to_b, b_to_a) = spec.directions().unwrap();
            [taken(a_to_b), taken(b_to_a)]
        };
        let bytes = |there: u64, back: u64| [there / 1_514, back / 1_514];
        assert_eq!(queues(&slow), bytes(250_000, 500_000));
        let half = PathSpec { queue: "bdp/2".parse().ok(), ..slow.clone() };
        assert_eq!(queues(&half), bytes(125_000, 250_000));
        let time = PathSpec { queue: "10ms".parse().ok(), ..slow.clone() };
        assert_eq!(queues(&time), bytes(62_500, 125_000));
        // The slow direction takes as long to empty its queue as the other one.
        assert_eq!(half.queue_drain_time(), Some(Nanos::from_millis(20)));
        let packets = PathSpec { queue: "100pkt".parse().ok(), ..slow };
        assert_eq!(packets.queue_drain_time(), Some(Nanos::from_millis(12)));
        // Only the way to host B has a rate.
        let open = PathSpec { rate: None, rate_a_to_b: Some(BitRate(50_000_000)), ..spec() };
        assert_eq!(queues(&open), [250_000 / 1_514, 1_000]);
    }

    #[test]
    fn a_path_that_cannot_be_is_refused_with_one_line() {
        let queue = |text: &str| Some(text.parse().unwrap());
        for (spec, words) in [
            (PathSpec { queue: queue("bdp/8"), rate: None, ..spec() }, "needs a rate: give one"),
            (PathSpec { queue: queue("1000"), ..spec() }, "holds no packet of 1514 bytes"),
            (PathSpec { mtu: 500, ..spec() }, "1280 to 65535"),
            (PathSpec { rate: Some(BitRate(0)), ..spec() }, "rate of 0"),
            (PathSpec { rtt: Nanos::from_secs(100), ..spec() }, "longer than 60 s"),
            (PathSpec { jitter: Nanos::from_millis(30), ..spec() }, "jitter"),
        ] {
            let error = spec.directions().expect_err(words).to_string();
            assert!(error.contains(words) && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn losses_read_as_people_write_them() {
        let loss = |text: &str| text.parse::<LossSpec>().map(|loss| loss.0);
        assert_eq!(loss("0").unwrap(), Loss::None);
        assert_eq!(loss("0.01").unwrap(), Loss::Uniform { probability: 0.01 });
        assert_eq!(loss("1%").unwrap(), Loss::Uniform { probability: 0.01 });
        let burst = |loss_bad| Loss::GilbertElliott {
            good_to_bad: 0.001,
            bad_to_good: 0.25,
            loss_good: 0.0,
            loss_bad,
        };
        assert_eq!(loss("gilbert:0.1%,0.25").unwrap(), burst(1.0));
        assert_eq!(loss("gilbert:0.1%,0.25,50%").unwrap(), burst(0.5));
        for wrong in ["", "x", "2", "-1", "NaN", "101%", "gilbert:", "gilbert:1", "gilbert:1,1,1,1"] {
            assert!(loss(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn others_read_as_a_rate_or_as_bursts() {
        let cross = |text: &str| text.parse::<CrossSpec>().map(|cross| cross.0);
        let rate = BitRate(57_000_000);
        let steady = CrossTraffic { rate, packet_bytes: 1_500, pattern: CrossPattern::Constant };
        assert_eq!(cross("57mbit").unwrap(), steady);
        let (on, off) = (Nanos::from_millis(200), Nanos::from_millis(300));
        let pattern = CrossPattern::Bursty { on, off, durations: HEAVY_TAIL };
        assert_eq!(cross("57mbit:200ms,300ms").unwrap(), CrossTraffic { pattern, ..steady });
        let pattern = CrossPattern::Aggregate { sources: 32, on, off, durations: HEAVY_TAIL };
        assert_eq!(cross("57mbit:200ms,300ms,32").unwrap(), CrossTraffic { pattern, ..steady });
        for wrong in ["", "x", "57mbit:", "57mbit:1ms", "57mbit:1ms,x", "1ms"] {
            assert!(cross(wrong).is_err(), "{wrong}");
        }
    }
}
