//! A whole path of two directions, and a builder for the usual ones.

use std::num::NonZeroU32;
use std::str::FromStr;

use crate::config::{ConfigError, DirectionConfig, QueueLimit};
use crate::direction::Direction;
use bufwise_units::{BitRate, Bytes, Nanos};

/// The two directions between two hosts.
#[derive(Clone, Debug)]
pub struct Path {
    /// From the client to the server.
    pub forward: Direction,
    /// From the server to the client.
    pub backward: Direction,
}

impl Path {
    /// Starts the description of a path; unlimited and without delay by default.
    #[must_use]
    pub fn builder() -> PathBuilder {
        PathBuilder::default()
    }

    /// Makes a path of two directions, each with its own random streams from one seed.
    ///
    /// # Errors
    /// [`ConfigError`] if one of the configurations is refused.
    pub fn new(forward: DirectionConfig, backward: DirectionConfig, seed: u64) -> Result<Self, ConfigError> {
        // Any fixed odd constant gives the directions different seeds; this one is 2^64 over the golden ratio.
        let other = seed ^ 0x9E37_79B9_7F4A_7C15;
        Ok(Self { forward: Direction::new(forward, seed)?, backward: Direction::new(backward, other)? })
    }
}

/// A queue's size as people give it.
///
/// ```
/// use bufwise_link::{QueueLimit, QueueSize};
/// use bufwise_units::{BitRate, Nanos};
///
/// let size: QueueSize = "0.5bdp".parse()?;
/// assert_eq!(size.limit(Some(BitRate(100_000_000)), Nanos::from_millis(40)), QueueLimit::Bytes(250_000));
/// assert_eq!("50pkt".parse(), Ok(QueueSize::Limit(QueueLimit::Packets(50))));
/// # Ok::<(), bufwise_link::ParseQueueError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum QueueSize {
    /// A limit in bytes or packets.
    Limit(QueueLimit),
    /// This many bandwidth-delay products of the path's rate and round-trip time.
    Bdp(f64),
    /// The bytes that the path sends in this time.
    Time(Nanos),
}

impl QueueSize {
    /// Returns the limit on a path of this rate and round-trip time; without a rate there is no queue to limit.
    #[must_use]
    pub fn limit(self, rate: Option<BitRate>, rtt: Nanos) -> QueueLimit {
        match (self, rate) {
            (Self::Limit(limit), _) => limit,
            (Self::Bdp(factor), Some(rate)) => {
                QueueLimit::Bytes((rate.bytes_over(rtt) as f64 * factor).round() as u64)
            }
            (Self::Time(time), Some(rate)) => QueueLimit::Bytes(rate.bytes_over(time)),
            (Self::Bdp(_) | Self::Time(_), None) => QueueLimit::Unlimited,
        }
    }
}

/// Why a text is no queue size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "queue size {0:?}: give bytes (62500, 64KiB, 2MB), packets (50pkt), time (480ms), bdp, 0.5bdp, bdp/8 or unlimited"
)]
pub struct ParseQueueError(String);

impl FromStr for QueueSize {
    type Err = ParseQueueError;

    /// Reads `62500`, `64KiB`, `2MB`, `bdp`, `0.125bdp`, `bdp/8`, `50pkt`, `480ms`, `unlimited`; units in any case.
    fn from_str(text: &str) -> Result<Self, ParseQueueError> {
        let lower = text.to_ascii_lowercase();
        let divisor = |text: &str| text.strip_prefix("bdp/")?.parse::<NonZeroU32>().ok();
        if let Some(divisor) = divisor(&lower) {
            return Ok(Self::Bdp(1.0 / f64::from(divisor.get())));
        }
        let end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(lower.len());
        let (number, unit) = lower.split_at(end);
        let size = match unit {
            "unlimited" if number.is_empty() => Some(Self::Limit(QueueLimit::Unlimited)),
            "bdp" if number.is_empty() => Some(Self::Bdp(1.0)),
            "bdp" => number.parse().ok().filter(|factor: &f64| factor.is_finite()).map(Self::Bdp),
            "us" | "ms" | "s" => lower.parse().ok().map(Self::Time),
            "pkt" => number.parse().ok().map(|packets| Self::Limit(QueueLimit::Packets(packets))),
            _ => lower.parse().ok().map(|Bytes(bytes)| Self::Limit(QueueLimit::Bytes(bytes))),
        };
        size.ok_or_else(|| ParseQueueError(text.chars().take(40).collect()))
    }
}

/// A path with one rate, round-trip time and queue size for both directions; other properties can be set in the two
/// configurations that [`Self::configs`] returns.
///
/// ```
/// use bufwise_link::{Loss, Path, QueueLimit};
///
/// let builder = Path::builder().rate("100mbit".parse()?).rtt("40ms".parse()?).queue("bdp/8".parse()?);
/// let (mut forward, backward) = builder.configs();
/// assert_eq!(forward.queue, QueueLimit::Bytes(62_500));
/// // All that the builder does not know of is set in the configurations.
/// forward.loss = Loss::Uniform { probability: 0.001 };
/// let path = Path::new(forward, backward, 7)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PathBuilder {
    rate: Option<BitRate>,
    rtt: Nanos,
    queue: Option<QueueSize>,
}

impl PathBuilder {
    /// Sets the rate of both directions.
    #[must_use]
    pub const fn rate(mut self, rate: BitRate) -> Self {
        self.rate = Some(rate);
        self
    }

    /// Sets the unloaded round-trip time; each direction gets half of it as its delay.
    #[must_use]
    pub const fn rtt(mut self, rtt: Nanos) -> Self {
        self.rtt = rtt;
        self
    }

    /// Sets the queue of both directions; the default is unlimited.
    #[must_use]
    pub const fn queue(mut self, queue: QueueSize) -> Self {
        self.queue = Some(queue);
        self
    }

    /// Returns the configurations of the forward and the backward direction.
    #[must_use]
    pub fn configs(&self) -> (DirectionConfig, DirectionConfig) {
        let queue = self.queue.map_or(QueueLimit::Unlimited, |size| size.limit(self.rate, self.rtt));
        let forward = DirectionConfig {
            rate: self.rate,
            delay: Nanos(self.rtt.0 / 2),
            queue,
            ..DirectionConfig::default()
        };
        let backward = DirectionConfig { delay: Nanos(self.rtt.0 - self.rtt.0 / 2), ..forward.clone() };
        (forward, backward)
    }

    /// Builds the path; all random draws come from `seed`.
    ///
    /// # Errors
    /// [`ConfigError`] if the parts do not fit together.
    pub fn build(&self, seed: u64) -> Result<Path, ConfigError> {
        let (forward, backward) = self.configs();
        Path::new(forward, backward, seed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::direction::Fate;

    #[test]
    fn a_packet_and_its_answer_take_a_round_trip() {
        let queue = "1bdp".parse().unwrap();
        let rtt = Nanos(40_000_001);
        let mut path = Path::builder().rate(BitRate(100_000_000)).rtt(rtt).queue(queue).build(1).unwrap();
        let Fate::Deliver { at } = path.forward.offer(Nanos::ZERO, 1_500) else { panic!("dropped") };
        assert_eq!(at, Nanos(20_000_000 + 1_514 * 80));
        let Fate::Deliver { at } = path.backward.offer(at, 40) else { panic!("dropped") };
        assert_eq!(at, Nanos(rtt.0 + (1_514 + 54) * 80));
    }

    #[test]
    fn a_queue_size_reads_as_people_write_it() {
        let rate = Some(BitRate(100_000_000));
        for (text, limit) in [
            ("62500", QueueLimit::Bytes(62_500)),
            ("64KiB", QueueLimit::Bytes(65_536)),
            ("2MB", QueueLimit::Bytes(2_000_000)),
            ("50pkt", QueueLimit::Packets(50)),
            ("1.5KiB", QueueLimit::Bytes(1_536)),
            ("bdp", QueueLimit::Bytes(500_000)),
            ("1bdp", QueueLimit::Bytes(500_000)),
            ("0.125BDP", QueueLimit::Bytes(62_500)),
            ("bdp/8", QueueLimit::Bytes(62_500)),
            ("480ms", QueueLimit::Bytes(6_000_000)),
            ("unlimited", QueueLimit::Unlimited),
        ] {
            let size: QueueSize = text.parse().unwrap();
            assert_eq!(size.limit(rate, Nanos::from_millis(40)), limit, "{text}");
        }
        assert_eq!(QueueSize::Bdp(1.0).limit(None, Nanos(1)), QueueLimit::Unlimited);
        for text in
            ["", "bdp/", "-1bdp", "pkt", "1.5pkt", "50 pkt", "1unlimited", "9e9", "99999999999999999999"]
        {
            assert!(text.parse::<QueueSize>().is_err(), "{text}");
        }
        assert!("bdp/0".parse::<QueueSize>().is_err(), "not one product");
    }

    #[test]
    fn a_queue_below_a_packet_is_refused() {
        let error = Path::builder().rate(BitRate(56_000)).queue("1bdp".parse().unwrap()).build(1);
        assert_eq!(error.err(), Some(ConfigError::QueueBelowPacket { limit: 0, packet: 1_514 }));
    }
}
