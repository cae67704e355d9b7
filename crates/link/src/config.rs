//! Configuration of one direction of a path, and its validation.

use crate::cross::{CrossPattern, CrossTraffic, Durations};
use crate::trace::Trace;
use bufwise_units::{BitRate, Nanos};

/// Largest packet that a queue must be able to take: Ethernet's MTU, as an IP length in bytes.
pub const MTU: u32 = 1_500;
/// Bytes of an Ethernet header, the usual difference between a packet's IP length and its wire length.
pub const ETHERNET_HEADER: u32 = 14;

/// Smallest packet that counts as data where a trace begins with them, as an IP length in bytes; those of handshakes and
/// bare acknowledgements are smaller.
pub const DATA_PACKET: u32 = 512;

/// Capacity of the DropTail queue before the tight link, for own and cross packets together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum QueueLimit {
    /// No limit.
    #[default]
    Unlimited,
    /// Limit in bytes on the wire. A packet is dropped if its bytes and those not yet sent exceed the limit; of the
    /// packet in service only the unsent part counts (a fluid). A packet that exactly fills the queue is admitted.
    Bytes(u64),
    /// Limit in packets. A packet is dropped if this many have not left completely, the one in service included.
    Packets(u32),
}

/// Random loss, applied to each packet before the queue. Probabilities are in `0.0..=1.0`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Each packet is lost independently.
    Uniform {
        /// Probability of losing a packet.
        probability: f64,
    },
    /// Two states, good and bad, each with its own loss (Gilbert 1960, Elliott 1963). The first state is good; for each
    /// packet the state may change first, then the packet may be lost.
    GilbertElliott {
        /// Probability of going from good to bad at a packet.
        good_to_bad: f64,
        /// Probability of going from bad to good at a packet.
        bad_to_good: f64,
        /// Probability of losing a packet in the good state.
        loss_good: f64,
        /// Probability of losing a packet in the bad state.
        loss_bad: f64,
    },
}

/// One direction of a path. The default has no limit, no delay and no loss.
///
/// ```
/// use bufwise_link::{DirectionConfig, Loss};
/// use bufwise_units::Nanos;
///
/// // A satellite's downlink: half a second of round trip, and bursts of losses.
/// let loss = Loss::GilbertElliott { good_to_bad: 0.001, bad_to_good: 0.1, loss_good: 0.0, loss_bad: 0.5 };
/// let rate = Some("20mbit".parse()?);
/// let downlink = DirectionConfig { rate, delay: Nanos::from_millis(250), loss, ..Default::default() };
/// downlink.validate()?;
/// let jitter = Nanos::from_millis(300);
/// let error = DirectionConfig { jitter, ..downlink }.validate().unwrap_err();
/// assert_eq!(error.to_string(), "link jitter: 300ms exceeds the delay of 250ms");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct DirectionConfig {
    /// Bits per second on the wire; `None`: unlimited, so there is no queue and `queue` has no effect.
    pub rate: Option<BitRate>,
    /// One-way delay after the queue.
    pub delay: Nanos,
    /// Largest deviation from the delay, which varies uniformly from `delay - jitter` to `delay + jitter`. Without
    /// `reorder`, a packet also waits for the one before it, so the mean delay of a dense stream exceeds `delay`.
    pub jitter: Nanos,
    /// Lets jitter, or a delay that falls, put packets out of order.
    pub reorder: bool,
    /// The DropTail queue's limit.
    pub queue: QueueLimit,
    /// Replaces the queue by a token bucket: the rate fills it, `queue` is its depth in bytes. A packet that finds its
    /// tokens passes at once, any other is dropped.
    pub policer: bool,
    /// Marks packets that wait in the queue longer than this, their own transmission included (congestion experienced, RFC
    /// 3168), as the step threshold of an active queue management does; `None`: none is marked.
    pub mark: Option<Nanos>,
    /// Random loss.
    pub loss: Loss,
    /// Bytes that a packet takes on the wire beyond its IP length.
    pub overhead: u32,
    /// Changes of rate and delay over time.
    pub trace: Option<Trace>,
    /// Begins the trace anew, once, with the first packet of at least [`DATA_PACKET`] bytes, or with the other direction's
    /// ([`Direction::begin_trace`](crate::Direction::begin_trace)). Until then it runs from time zero on.
    pub trace_begins_with_data: bool,
    /// Load of other senders in the same queue.
    pub cross: Option<CrossTraffic>,
}

impl Default for DirectionConfig {
    fn default() -> Self {
        Self {
            rate: None,
            delay: Nanos::ZERO,
            jitter: Nanos::ZERO,
            reorder: false,
            queue: QueueLimit::Unlimited,
            policer: false,
            mark: None,
            loss: Loss::None,
            overhead: ETHERNET_HEADER,
            trace: None,
            trace_begins_with_data: false,
            cross: None,
        }
    }
}

/// Why a configuration is refused.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ConfigError {
    /// A rate of zero; only a trace may have outages.
    #[error("link rate: 0 carries nothing; give a rate, or none for unlimited")]
    ZeroRate,
    /// A byte queue with no room for a full packet.
    #[error("link queue: {limit} bytes is smaller than one packet of {packet} bytes")]
    QueueBelowPacket {
        /// The limit that was given.
        limit: u64,
        /// Wire length of a full packet, in bytes.
        packet: u64,
    },
    /// A policer without a depth in bytes, or without a rate that fills its bucket.
    #[error("link policer: give a rate, and the depth of its bucket in bytes")]
    PolicerWithoutBucket,
    /// A threshold for marks where nothing waits.
    #[error("link mark: packets wait in a queue only; give a rate, and no policer")]
    MarkWithoutQueue,
    /// A queue of no packets.
    #[error("link queue: 0 packets; at least 1 is needed")]
    ZeroPackets,
    /// A probability outside `0.0..=1.0`.
    #[error("link loss: {name} is {value}, not a probability from 0 to 1")]
    Probability {
        /// The name of the probability.
        name: &'static str,
        /// The value that was given.
        value: f64,
    },
    /// A jitter that exceeds the delay: packets would arrive before they left.
    #[error("link jitter: {jitter} exceeds the delay of {delay}")]
    JitterExceedsDelay {
        /// The jitter that was given.
        jitter: Nanos,
        /// The shortest delay, of the direction or of its trace.
        delay: Nanos,
    },
    /// A trace that sets rates only from some later moment on, for a link without a rate.
    #[error("link trace: sets a rate later than at 0, so the link needs a rate to start with")]
    TraceNeedsRate,
    /// Cross traffic on a link without a rate, where nothing can queue.
    #[error("cross traffic needs a link with a rate: without one nothing would queue")]
    CrossWithoutRate,
    /// Cross traffic with a rate, packet size or number of sources of 0.
    #[error("cross traffic: rate, packet size and sources must not be 0")]
    CrossEmpty,
    /// Mean on or off times below 1 ms.
    #[error("cross traffic: mean on and off times must be at least 1ms")]
    CrossTooShort,
    /// A Pareto distribution without a mean: its shape is not above 1.
    #[error("cross traffic: the Pareto shape is {0}; it must exceed 1 for a mean to exist")]
    CrossShape(f64),
}

impl DirectionConfig {
    /// Checks everything that [`Direction::new`](crate::Direction::new) refuses.
    ///
    /// # Errors
    /// Returns the first fault found.
    pub fn validate(&self) -> Result<(), ConfigError> {
        if self.rate == Some(BitRate(0)) {
            return Err(ConfigError::ZeroRate);
        }
        self.validate_queue()?;
        self.loss.validate()?;
        let delay = self.shortest_delay();
        if self.jitter > delay {
            return Err(ConfigError::JitterExceedsDelay { jitter: self.jitter, delay });
        }
        match &self.trace {
            Some(trace) if self.rate.is_none() && trace.has_rates() && !trace.starts_with_a_rate() => {
                return Err(ConfigError::TraceNeedsRate);
            }
            _ => {}
        }
        match &self.cross {
            Some(_) if !self.is_limited() => Err(ConfigError::CrossWithoutRate),
            Some(cross) => cross.validate(),
            None => Ok(()),
        }
    }

    /// Returns the shortest delay at any time: the direction's own ends where the trace first sets one.
    fn shortest_delay(&self) -> Nanos {
        let Some(traced) = self.trace.as_ref().and_then(Trace::shortest_delay) else { return self.delay };
        let is_set_at_once = self.trace.as_ref().is_some_and(Trace::starts_with_a_delay);
        if is_set_at_once { traced } else { traced.min(self.delay) }
    }

    /// Whether there is a rate, and so a queue.
    pub(crate) fn is_limited(&self) -> bool {
        self.rate.is_some() || self.trace.as_ref().is_some_and(Trace::has_rates)
    }

    fn validate_queue(&self) -> Result<(), ConfigError> {
        let packet = u64::from(MTU) + u64::from(self.overhead);
        if self.policer && !(self.is_limited() && matches!(self.queue, QueueLimit::Bytes(_))) {
            return Err(ConfigError::PolicerWithoutBucket);
        }
        if self.mark.is_some() && (self.policer || !self.is_limited()) {
            return Err(ConfigError::MarkWithoutQueue);
        }
        match self.queue {
            QueueLimit::Bytes(limit) if limit < packet => {
                Err(ConfigError::QueueBelowPacket { limit, packet })
            }
            QueueLimit::Packets(0) => Err(ConfigError::ZeroPackets),
            _ => Ok(()),
        }
    }
}

impl Loss {
    fn validate(&self) -> Result<(), ConfigError> {
        let named: &[(&'static str, f64)] = match *self {
            Self::None => &[],
            Self::Uniform { probability } => &[("probability", probability)],
            Self::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => &[
                ("good_to_bad", good_to_bad),
                ("bad_to_good", bad_to_good),
                ("loss_good", loss_good),
                ("loss_bad", loss_bad),
            ],
        };
        match named.iter().find(|(_, value)| !(0.0..=1.0).contains(value)) {
            Some(&(name, value)) => Err(ConfigError::Probability { name, value }),
            None => Ok(()),
        }
    }
}

impl CrossTraffic {
    fn validate(&self) -> Result<(), ConfigError> {
        const SHORTEST: Nanos = Nanos::from_millis(1);
        if self.rate.0 == 0 || self.packet_bytes == 0 {
            return Err(ConfigError::CrossEmpty);
        }
        let (on, off, durations) = match self.pattern {
            CrossPattern::Constant => return Ok(()),
            CrossPattern::Aggregate { sources: 0, .. } => return Err(ConfigError::CrossEmpty),
            CrossPattern::Bursty { on, off, durations }
            | CrossPattern::Aggregate { on, off, durations, .. } => (on, off, durations),
        };
        if on < SHORTEST || off < SHORTEST {
            return Err(ConfigError::CrossTooShort);
        }
        match durations {
            // Negated, so that NaN is refused as well.
            Durations::Pareto { shape } if !(shape > 1.0 && shape.is_finite()) => {
                Err(ConfigError::CrossShape(shape))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limited() -> DirectionConfig {
        DirectionConfig { rate: Some(BitRate(1_000_000)), ..DirectionConfig::default() }
    }

    fn bursty(on: Nanos, off: Nanos, durations: Durations) -> Option<CrossTraffic> {
        let pattern = CrossPattern::Bursty { on, off, durations };
        Some(CrossTraffic { rate: BitRate(1_000), packet_bytes: 1_000, pattern })
    }

    #[test]
    fn each_wrong_direction_gets_its_own_line() {
        let second = Nanos::from_secs(1);
        let wrong = [
            (DirectionConfig { rate: Some(BitRate(0)), ..limited() }, "0 carries nothing"),
            (
                DirectionConfig { queue: QueueLimit::Bytes(1_513), ..limited() },
                "smaller than one packet of 1514",
            ),
            (DirectionConfig { queue: QueueLimit::Packets(0), ..limited() }, "0 packets"),
            (DirectionConfig { policer: true, ..limited() }, "depth of its bucket in bytes"),
            (
                DirectionConfig { policer: true, queue: QueueLimit::Packets(9), ..limited() },
                "depth of its bucket in bytes",
            ),
            (DirectionConfig { mark: Some(second), rate: None, ..limited() }, "wait in a queue only"),
            (
                DirectionConfig {
                    mark: Some(second),
                    policer: true,
                    queue: QueueLimit::Bytes(9_000),
                    ..limited()
                },
                "wait in a queue only",
            ),
            (DirectionConfig { loss: Loss::Uniform { probability: 1.1 }, ..limited() }, "probability is 1.1"),
            (DirectionConfig { loss: Loss::Uniform { probability: f64::NAN }, ..limited() }, "NaN"),
            (DirectionConfig { jitter: Nanos(1), ..limited() }, "1ns exceeds the delay of 0ns"),
            (
                DirectionConfig { trace: "1 1mbit".parse().ok(), rate: None, ..limited() },
                "needs a rate to start with",
            ),
            (
                DirectionConfig {
                    delay: second,
                    jitter: Nanos::from_millis(3),
                    trace: "1 1mbit 2ms".parse().ok(),
                    ..limited()
                },
                "3ms exceeds the delay of 2ms",
            ),
            (
                DirectionConfig {
                    rate: None,
                    cross: bursty(second, second, Durations::Exponential),
                    ..limited()
                },
                "needs a link with a rate",
            ),
            (
                DirectionConfig { cross: bursty(second, Nanos(0), Durations::Exponential), ..limited() },
                "at least 1ms",
            ),
            (
                DirectionConfig {
                    cross: bursty(second, second, Durations::Pareto { shape: 1.0 }),
                    ..limited()
                },
                "shape is 1",
            ),
        ];
        for (config, wanted) in wrong {
            let error = config.validate().expect_err(wanted).to_string();
            assert!(error.contains(wanted) && !error.contains('\n'), "{wanted}: {error}");
        }
    }

    #[test]
    fn the_smallest_things_that_work_are_accepted() {
        for config in [
            DirectionConfig::default(),
            DirectionConfig { rate: Some(BitRate(1)), queue: QueueLimit::Bytes(1_514), ..limited() },
            DirectionConfig { queue: QueueLimit::Packets(1), ..limited() },
            DirectionConfig { loss: Loss::Uniform { probability: 1.0 }, ..limited() },
            DirectionConfig { delay: Nanos(5), jitter: Nanos(5), ..limited() },
            DirectionConfig { rate: None, trace: "1 - 5ms".parse().ok(), ..limited() },
            DirectionConfig {
                jitter: Nanos::from_millis(5),
                trace: "0 - 5ms\n1 - 6ms".parse().ok(),
                ..limited()
            },
            DirectionConfig { rate: None, trace: "0 1mbit".parse().ok(), ..limited() },
        ] {
            assert_eq!(config.validate(), Ok(()), "{config:?}");
        }
    }
}
