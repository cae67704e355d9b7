//! SABT: a send buffer from the throughput that the path allows.
//!
//! Problem: a buffer that follows cwnd swings with it, and makes the buffers of all connections that share the memory
//! swing too. The mean throughput of a connection does not swing.
//! Source: Matsuo, section 2.2; the equation is in [`crate::throughput`], the shares in [`crate::share::proportional`].
//! Terms: `p` is the loss rate over a moving window; the demand is `B = throughput * RTT * mss`, the mean window in
//! bytes.
//!
//! - `p` counts loss *indications*: losses within one round trip are one ([`LossCount::Events`]; RFC 5348, section
//!   5.2), because a DropTail queue that overflows in slow start loses hundreds of segments at once. Matsuo divides
//!   segments lost by segments sent ([`LossCount::Packets`]).
//! - Each connection has the response function of its own congestion control: Reno's or CUBIC's. If losses do not
//!   determine the window (BBR), or the window of `p` holds no loss, the equation gives no bound: the demand is then
//!   ABT's network target, which follows the measured window (ours).
//! - A document of up to 8 KB takes no part in the shares: its buffer and its initial window are its own size.
//!
//! [`Config::published`] is the paper's rule: lost segments, `b = 2`, Reno for all. Without a loss its demand is ABT's
//! network target too, with our reading of application-limited samples, because Matsuo has no rule for that case.
//! Properties kept: steady `p`, RTT and RTO give a steady demand, however cwnd moves; more loss never raises it; the
//! modelled demand is within the configured bounds.

use crate::abt::{self, Abt};
use crate::policy::Policy;
use crate::throughput::{PathModel, Response};
use bufwise_units::{Bytes, CongestionControl, Decision, Micros, Sample};
use std::collections::VecDeque;

/// Largest document that is sent in one round trip, in bytes: 8 KB (Matsuo, section 2.2.2).
pub const SMALL_DOCUMENT: Bytes = Bytes(8_192);
/// Number of marks in the loss window: a finer edge would not change `p` visibly.
const MARKS: u64 = 32;
/// Added to the round trip where the sample has no RTO: the kernel's smallest.
const SMALLEST_RTO: Micros = Micros::from_millis(200);

/// The events that count as losses in `p`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LossCount {
    /// Each lost segment (Matsuo).
    Packets,
    /// Each round trip with losses (the equation's meaning; RFC 5348): [`Sample::loss_events`] where the source counts
    /// them, else derived from `segs_lost` between calls.
    #[default]
    Events,
}

/// Parameters of SABT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Length of the window for `p`. Default: one minute (ours), to hold several losses of a long fat path, whose
    /// windows take seconds to recover from one.
    pub loss_window: Micros,
    /// The unit of `p`.
    pub losses: LossCount,
    /// Acknowledged packets per step of window growth: 1 for Linux, which counts packets; 2 in Matsuo's equation, for
    /// receivers that delay acknowledgements.
    pub packets_per_ack: u32,
    /// Uses the response function of the connection's own congestion control; if false Reno's for all (Matsuo).
    pub own_response: bool,
    /// Counts windows that the application does not use as demand, before the first loss ([`abt::Config::unused_counts`]).
    pub unused_counts: bool,
    /// Smallest modelled demand: 10 segments, an initial window (RFC 6928), so that `p` can be measured again.
    pub min: Bytes,
    /// Largest demand; [`Bytes::MAX`]: no limit.
    pub max: Bytes,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            loss_window: Micros::from_secs(60),
            losses: LossCount::Events,
            packets_per_ack: 1,
            own_response: true,
            unused_counts: false,
            min: Bytes(14_480),
            max: Bytes::MAX,
        }
    }
}

impl Config {
    /// Returns SABT as published: lost segments, two packets per acknowledgement, Reno's equation for all, ABT as published before
    /// the first loss.
    #[must_use]
    pub fn published() -> Self {
        Self {
            losses: LossCount::Packets,
            packets_per_ack: 2,
            own_response: false,
            unused_counts: true,
            ..Self::default()
        }
    }
}

/// Counts of segments at one moment.
#[derive(Clone, Copy, Debug, Default)]
struct Mark {
    at: Micros,
    sent: u64,
    lost: u64,
}

/// SABT for one connection, at its sender.
///
/// Reads `srtt`, `rto`, `segs_out`, `segs_lost`, `loss_events`, `congestion_control`, `mss`, and what [`Abt`] reads.
///
/// ```
/// use bufwise_policy::{Policy, Sabt, sabt};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut sabt = Sabt::new(sabt::Config::default());
/// let mut demand = |seconds, segs_out, loss_events| {
///     let srtt = Micros::from_millis(100);
///     let (mss, cwnd) = (Bytes(1_448), Bytes(2_000_000));
///     let sample = Sample { mss, cwnd, srtt, segs_out, loss_events: Some(loss_events), ..Sample::default() };
///     sabt.observe(&sample, Micros::from_secs(seconds));
///     sabt.demand().map_or(0, |demand| demand.0)
/// };
/// let without_loss = demand(1, 10_000, 0);
/// assert_eq!(without_loss, 4_000_000, "ABT's target");
/// // With a loss in 10,000 segments Reno's mean window is 122 of them.
/// assert!((160_000..180_000).contains(&demand(2, 20_000, 1)));
/// ```
#[derive(Clone, Debug)]
pub struct Sabt {
    config: Config,
    /// Gives the demand where the equation has no bound.
    unmodelled: Abt,
    /// Marks of the loss window, oldest first.
    marks: VecDeque<Mark>,
    /// Number of loss indications; start of the last one, and the segments lost by then.
    events: u64,
    event: Option<(Micros, u64)>,
    demand: Bytes,
    is_modelled: bool,
    limit: Option<Bytes>,
    document: Option<Bytes>,
}

impl Sabt {
    /// Returns the state of a new connection.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            unmodelled: Abt::new(abt::Config { max: config.max, unused_counts: config.unused_counts }),
            marks: VecDeque::new(),
            events: 0,
            event: None,
            demand: Bytes::ZERO,
            is_modelled: false,
            limit: None,
            document: None,
        }
    }

    /// Returns a connection that will send one document of `size`. Up to [`SMALL_DOCUMENT`] it stays out of the shares,
    /// and `size` is both its initial window and its buffer.
    #[must_use]
    pub fn for_document(config: Config, size: Bytes) -> Self {
        let document = (size <= SMALL_DOCUMENT).then_some(size);
        Self { document, ..Self::new(config) }
    }

    /// Returns the initial window to set, if the connection sends a small document.
    #[must_use]
    pub fn initial_window(&self) -> Option<Bytes> {
        self.document
    }

    /// Returns losses per segment over the window, `0.0..=1.0`; 0 before anything was sent.
    #[must_use]
    pub fn loss_rate(&self) -> f64 {
        let (Some(first), Some(last)) = (self.marks.front(), self.marks.back()) else { return 0.0 };
        let sent = last.sent.saturating_sub(first.sent);
        let lost = last.lost.saturating_sub(first.lost);
        if sent == 0 { 0.0 } else { (lost as f64 / sent as f64).min(1.0) }
    }

    /// Whether the demand comes from the equation; if not, it is ABT's target, which moves with the window.
    #[must_use]
    pub fn is_modelled(&self) -> bool {
        self.is_modelled
    }

    fn count(&mut self, sample: &Sample, now: Micros) {
        let lost = match (self.config.losses, sample.loss_events) {
            (LossCount::Packets, _) => sample.segs_lost,
            (LossCount::Events, Some(events)) => events,
            (LossCount::Events, None) => self.indications(sample, now),
        };
        let mark = Mark { at: now, sent: sample.segs_out, lost };
        let apart = Micros(self.config.loss_window.0 / MARKS);
        // The newest mark moves on until it is far enough from the one before.
        let before = self.marks.len().checked_sub(2).and_then(|index| self.marks.get(index));
        if before.is_some_and(|before| now.since(before.at) < apart) {
            self.marks.pop_back();
        }
        self.marks.push_back(mark);
        while self.marks.get(1).is_some_and(|second| now.since(second.at) >= self.config.loss_window) {
            self.marks.pop_front();
        }
    }

    /// Counts loss indications: losses within a round trip of the first belong to the same one.
    fn indications(&mut self, sample: &Sample, now: Micros) -> u64 {
        let (began, lost) = self.event.unwrap_or((Micros::ZERO, 0));
        let anew = self.event.is_none() || now.since(began) > sample.srtt;
        if sample.segs_lost > lost {
            if anew {
                self.events += 1;
            }
            self.event = Some((if anew { now } else { began }, sample.segs_lost));
        }
        self.events
    }

    /// Returns the response function that applies; `None`: losses do not determine the window.
    fn response(&self, sample: &Sample) -> Option<Response> {
        match sample.congestion_control {
            _ if !self.config.own_response => Some(Response::Reno),
            CongestionControl::Reno => Some(Response::Reno),
            CongestionControl::Cubic => Some(Response::Cubic),
            CongestionControl::Other => None,
        }
    }

    /// Returns `throughput * RTT * mss`; `None` where the equation gives no bound, as without a loss.
    fn modelled(&self, sample: &Sample) -> Option<Bytes> {
        let loss = self.loss_rate();
        if loss <= 0.0 {
            return None;
        }
        let rto = if sample.rto > Micros::ZERO { sample.rto } else { sample.srtt + SMALLEST_RTO };
        let model = PathModel {
            response: self.response(sample)?,
            loss,
            rtt: sample.srtt.as_secs_f64(),
            rto: rto.as_secs_f64(),
            packets_per_ack: f64::from(self.config.packets_per_ack),
            max_window: f64::INFINITY,
        };
        let window = model.mean_window();
        // A float cast saturates.
        let demand = Bytes((window * sample.mss_or_default().0 as f64) as u64);
        window.is_finite().then(|| demand.max(self.config.min).min(self.config.max))
    }
}

impl Policy for Sabt {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        if let Some(size) = self.document {
            return Decision { send_buffer: Some(size), ..Decision::NONE };
        }
        self.unmodelled.observe(sample, now);
        self.count(sample, now);
        let modelled = self.modelled(sample);
        self.is_modelled = modelled.is_some();
        self.demand = modelled.unwrap_or(self.unmodelled.net_target());
        if self.demand == Bytes::ZERO {
            return Decision::NONE;
        }
        let buffer = self.limit.map_or(self.demand, |limit| limit.min(self.demand));
        Decision { send_buffer: Some(buffer), ..Decision::NONE }
    }

    fn demand(&self) -> Option<Bytes> {
        self.document.is_none().then_some(self.demand)
    }

    fn set_limit(&mut self, limit: Option<Bytes>) {
        self.limit = limit;
    }
}
