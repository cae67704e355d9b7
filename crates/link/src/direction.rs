//! One direction of a path, and the fate of each packet that enters it.
//!
//! In this order: random loss, then the DropTail queue before the tight link, then the link's rate, then delay and
//! jitter. A packet that waits in the queue for longer than a threshold is marked (ECN). Cross traffic joins at the queue;
//! random loss does not touch it.
//!
//! Everything is decided when a packet is offered, so the caller needs no timer to drive the link: it offers the
//! packet, gets the time of delivery, and keeps the packet until then. Time is an argument: the same code runs in
//! virtual and in real time.
//!
//! Properties (each a test of this name in `tests/`): every packet is accounted for at any moment; without
//! `reorder` deliveries never overtake; the same seed gives the same fates; DropTail agrees with a naive queue.

use crate::config::{ConfigError, DATA_PACKET, DirectionConfig};
use crate::counters::Counters;
use crate::cross::Arrivals;
use crate::loss::LossProcess;
use crate::random::Random;
use crate::server::{Owner, Server, Tally};
use bufwise_units::Nanos;

/// Why a packet was dropped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The queue had no room for it.
    Queue,
    /// Random loss.
    Random,
}

/// The fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It arrives at the far end at this time.
    Deliver {
        /// When, on the link's clock.
        at: Nanos,
    },
    /// It arrives at this time, and has waited longer than [`DirectionConfig::mark`]. If its sender can be told of congestion,
    /// it arrives with the mark.
    DeliverMarked {
        /// When, on the link's clock.
        at: Nanos,
    },
    /// It never arrives.
    Drop(Cause),
}

/// The state of one direction.
///
/// Its clock starts at [`Nanos::ZERO`]: traces and time-weighted counters count from there, so a caller in real time
/// passes the time since it started the link. A `now` earlier than a previous one counts as the latest so far. Bytes on
/// the link are wire bytes: IP length plus the configured overhead.
///
/// ```
/// use bufwise_link::{Cause, Direction, DirectionConfig, Fate, QueueLimit};
/// use bufwise_units::{BitRate, Nanos};
///
/// let rate = Some(BitRate(12_000_000));
/// let config = DirectionConfig { rate, queue: QueueLimit::Packets(2), overhead: 0, ..Default::default() };
/// let mut direction = Direction::new(config, 1)?;
/// // A packet of 1,500 bytes takes a millisecond at this rate; the third finds the queue full.
/// let fates = [0; 3].map(|_| direction.offer(Nanos::ZERO, 1_500));
/// let delivered = |millis| Fate::Deliver { at: Nanos::from_millis(millis) };
/// assert_eq!(fates, [delivered(1), delivered(2), Fate::Drop(Cause::Queue)]);
/// assert_eq!(direction.counters(Nanos::from_millis(2)).delivered_packets, 2);
/// # Ok::<(), bufwise_link::ConfigError>(())
/// ```
#[derive(Clone, Debug)]
pub struct Direction {
    server: Server,
    loss: LossProcess,
    cross: Option<Arrivals>,
    jitter: u64,
    jitter_random: Random,
    reorder: bool,
    overhead: u64,
    /// Wait beyond which packets are marked.
    mark: Option<u64>,
    /// Whether the trace begins anew with the first packet of data, which has not come yet.
    awaits_data: bool,
    last_delivery: u64,
    offered: Tally,
    marked: u64,
    drops_random: Tally,
}

impl Direction {
    /// Returns an empty direction at time zero; all its random draws come from `seed`.
    ///
    /// # Errors
    /// [`ConfigError`] if the configuration is refused; see [`DirectionConfig::validate`].
    #[expect(clippy::needless_pass_by_value, reason = "a direction is made from its own configuration")]
    pub fn new(config: DirectionConfig, seed: u64) -> Result<Self, ConfigError> {
        config.validate()?;
        let [loss, jitter_random, cross] = Random::streams(seed);
        Ok(Self {
            server: Server::new(&config),
            loss: LossProcess::new(config.loss, loss),
            cross: config.cross.map(|traffic| Arrivals::new(traffic, config.overhead, cross)),
            jitter: config.jitter.0,
            jitter_random,
            reorder: config.reorder,
            overhead: u64::from(config.overhead),
            mark: config.mark.map(|mark| mark.0),
            awaits_data: config.trace_begins_with_data,
            last_delivery: 0,
            offered: Tally::default(),
            marked: 0,
            drops_random: Tally::default(),
        })
    }

    /// Offers a packet of this IP length at `now` and returns its fate.
    pub fn offer(&mut self, now: Nanos, bytes: u32) -> Fate {
        if bytes >= DATA_PACKET {
            self.begin_trace(now);
        }
        self.advance(now);
        let wire = u64::from(bytes) + self.overhead;
        self.offered.add(wire);
        if self.loss.strikes() {
            self.drops_random.add(wire);
            return Fate::Drop(Cause::Random);
        }
        let Some(departure) = self.server.admit(wire, Owner::Own) else {
            return Fate::Drop(Cause::Queue);
        };
        let is_marked = self.mark.is_some_and(|mark| departure.at.saturating_sub(self.server.now()) > mark);
        let mut at = departure.at.saturating_add(departure.delay);
        if self.jitter > 0 {
            // The jitter is at most the delay, so `at` is never before the departure.
            let shift = self.jitter_random.up_to(self.jitter.saturating_mul(2));
            at = at.saturating_sub(self.jitter).saturating_add(shift);
        }
        if !self.reorder {
            at = at.max(self.last_delivery);
            self.last_delivery = at;
        }
        if is_marked {
            self.marked += 1;
            return Fate::DeliverMarked { at: Nanos(at) };
        }
        Fate::Deliver { at: Nanos(at) }
    }

    /// Begins the trace anew at `now` if [`DirectionConfig::trace_begins_with_data`] asks for it and it has not yet begun
    /// anew. A direction does so by itself at its own first packet of data; the caller tells it of the other direction's.
    pub fn begin_trace(&mut self, now: Nanos) {
        if self.awaits_data {
            self.awaits_data = false;
            self.advance(now);
            self.server.begin_trace();
        }
    }

    /// Returns the counters up to `now`.
    pub fn counters(&mut self, now: Nanos) -> Counters {
        self.advance(now);
        Counters::read(&self.server, self.offered, self.drops_random, self.marked)
    }

    /// Returns the wire bytes that wait before the tight link at `now`, own and cross, with the unsent part of the
    /// packet in service. Cheap enough to follow a queue over time.
    pub fn backlog_bytes(&mut self, now: Nanos) -> u64 {
        self.advance(now);
        self.server.backlog_bytes()
    }

    /// Moves the clock to `now`; cross traffic up to `now` comes before an own packet at `now`.
    fn advance(&mut self, now: Nanos) {
        let now = now.0;
        if let Some(cross) = &mut self.cross {
            while cross.next() <= now && cross.next() != u64::MAX {
                self.server.advance(cross.next());
                // Cross packets have no receiver; the counters have their fate.
                let _ = self.server.admit(cross.wire_bytes(), Owner::Cross);
                cross.pass();
            }
        }
        self.server.advance(now);
    }
}
