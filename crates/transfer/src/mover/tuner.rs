//! A policy at work on one received file: what it sees, what it decides, what became of that.
//!
//! Source: 000, section IV (the receiver decides); DESIGN for the policies' interface.
//! Properties kept: the first decision stands before the connection is made (`prepare`), so the first segment
//! meets it; a decision reaches the socket within one call of `observe`, and the sender within half a round
//! trip; without probes everything works on what TCP itself shows.

use std::net::TcpStream;
use std::time::Instant;

use bufwise_policy::sobas::{Config, Sobas, State};
use bufwise_policy::{BuildOptions, Bytes, Decision, Micros, Policy, PolicyKind, Rate, Sample};
use bufwise_socket::info::TcpInfo;
use bufwise_socket::options::{self, OptionError};

use super::window::Window;
use crate::probe::{Measured, Prober};

/// A step is noted at least so often.
const NOTE_EVERY: Micros = Micros::from_millis(100);
/// Beyond so many steps only changes of state are noted: some 20 minutes.
const NOTES: usize = 16_384;
/// With less than two segments to offer, a receiver waits for its acknowledgement timer.
const SMALLEST_WINDOW_SEGMENTS: u64 = 2;
/// Time between probes (000, section IV-B): what happens within it cannot be told apart.
const PROBE_INTERVAL: Micros = Micros::from_millis(10);
/// What a full TCP segment (with timestamps) carries less than a full UDP packet, over IPv4 and IPv6.
const TCP_OVER_UDP: u64 = 24;

/// One moment of a tuned transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// When, since the tuner was made.
    pub at: Micros,
    /// SOBAS's state; `None` for other policies.
    pub state: Option<State>,
    /// `R`: what arrived since the step before.
    pub rate: Rate,
    /// `T`: the probes' running average, else the receiver's own estimate; zero: not known.
    pub rtt: Micros,
    /// Lost among the last 100 probes.
    pub lost: u32,
    /// `S`: limit of the window; [`Bytes::MAX`]: none.
    pub window: Bytes,
    /// The rate wished of the sender; [`Rate::MAX`]: none.
    pub pacing: Rate,
}

/// A policy, the probes that feed it, and the socket settings that follow from it.
pub struct Tuner {
    rule: Rule,
    prober: Option<Prober>,
    start: Instant,
    window: Window,
    timeline: Vec<Step>,
    /// Bytes received when the last step was noted.
    noted: Bytes,
}

enum Rule {
    /// Made when the connection's window scale is known.
    Named(PolicyKind, BuildOptions),
    /// Kept by its type, to show its state.
    Sobas(Box<Sobas>),
    Any(Box<dyn Policy + Send>),
}

impl Tuner {
    /// A tuner with the policy `kind`, fed by `prober` if there is one.
    #[must_use]
    pub fn new(kind: PolicyKind, options: BuildOptions, prober: Option<Prober>) -> Self {
        let rule = match kind {
            PolicyKind::Sobas => {
                let mut config = Config {
                    pacing: options.pacing,
                    continuous: options.continuous,
                    max_window: options.max_window,
                    ..Config::default()
                };
                if let Some(prober) = &prober {
                    let payload = u64::from(prober.train_payload()).max(TCP_OVER_UDP + 1);
                    config.payload_ratio = (payload - TCP_OVER_UDP, payload);
                }
                Rule::Sobas(Box::new(Sobas::new(config)))
            }
            other => Rule::Named(other, options),
        };
        Self::with_rule(rule, prober)
    }

    /// A tuner with a policy of the caller's.
    #[must_use]
    pub fn custom(policy: Box<dyn Policy + Send>, prober: Option<Prober>) -> Self {
        Self::with_rule(Rule::Any(policy), prober)
    }

    /// A tuner that leaves everything to the kernel.
    #[must_use]
    pub fn untouched() -> Self {
        Self::new(PolicyKind::Kernel, BuildOptions::default(), None)
    }

    fn with_rule(rule: Rule, prober: Option<Prober>) -> Self {
        Self {
            rule,
            prober,
            start: Instant::now(),
            window: Window::new(),
            timeline: Vec::new(),
            noted: Bytes::ZERO,
        }
    }

    /// Waits for the probes' first results (a second at most) and tells the sender the first decision.
    ///
    /// Call it before the connection is made. Without probes it returns at once.
    pub fn prepare(&mut self) {
        let Some(prober) = &self.prober else { return };
        let measured = prober.settled();
        let sample = with_probes(Sample::default(), Some(&measured));
        let decision = self.decide(&sample);
        self.tell_sender(decision);
        self.note(&sample, decision);
    }

    /// What the probes show now; `None` without probes.
    #[must_use]
    pub fn measured(&self) -> Option<Measured> {
        self.prober.as_ref().map(Prober::measured)
    }

    /// The transfer so far.
    #[must_use]
    pub fn timeline(&self) -> &[Step] {
        &self.timeline
    }

    /// Time since the tuner was made: the timeline's clock.
    #[must_use]
    pub fn clock(&self) -> Micros {
        Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Takes a connection over before its first byte is read: the first decision becomes its window.
    pub(super) fn attach(&mut self, stream: &TcpStream) -> Result<(), OptionError> {
        if let Rule::Named(kind, options) = &self.rule {
            let window_scale = options::tcp_info(stream)?.rcv_wscale();
            self.rule = Rule::Any(kind.build(&BuildOptions { window_scale, ..*options }));
        }
        self.observe(stream, 0).map(drop)
    }

    /// Shows the connection to the policy and applies its decision; `read` bytes came with the last read.
    pub(super) fn observe(&mut self, stream: &TcpStream, read: usize) -> Result<TcpInfo, OptionError> {
        let info = options::tcp_info(stream)?;
        let mut sample = info.to_sample(&options::memory(stream)?);
        sample.read_size = Bytes(read as u64);
        let sample = with_probes(sample, self.measured().as_ref());
        let decision = self.decide(&sample);
        if let Some(window) = decision.receive_window {
            self.window.hold(stream, window)?;
        }
        self.tell_sender(decision);
        self.note(&sample, decision);
        Ok(info)
    }

    fn decide(&mut self, sample: &Sample) -> Decision {
        let now = self.clock();
        let decision = match &mut self.rule {
            Rule::Named(..) => Decision::NONE,
            Rule::Sobas(sobas) => sobas.observe(sample, now),
            Rule::Any(policy) => policy.observe(sample, now),
        };
        // The policy may have decided before it could know how large this connection's segments are.
        let smallest = sample.mss_or_default().times(SMALLEST_WINDOW_SEGMENTS);
        Decision {
            receive_window: decision.receive_window.map(|window| window.max(smallest)),
            pacing: decision.pacing.map(|rate| rate.max(slowest(sample))),
            ..decision
        }
    }

    fn tell_sender(&self, decision: Decision) {
        if let (Some(prober), Some(rate)) = (&self.prober, decision.pacing) {
            prober.wish(rate);
        }
    }

    fn note(&mut self, sample: &Sample, decision: Decision) {
        let at = self.clock();
        let state = match &self.rule {
            Rule::Sobas(sobas) => Some(sobas.state()),
            Rule::Named(..) | Rule::Any(_) => None,
        };
        let window = decision.receive_window.unwrap_or(Bytes::MAX);
        let pacing = decision.pacing.unwrap_or(Rate::MAX);
        let (before, due) = match self.timeline.last() {
            Some(last) => {
                let changed = (last.window, last.pacing) != (window, pacing);
                let room = self.timeline.len() < NOTES;
                let due = room && (changed || at.since(last.at) >= NOTE_EVERY);
                (last.at, due || last.state != state)
            }
            None => (at, true),
        };
        if due {
            self.timeline.push(Step {
                at,
                state,
                rate: (sample.bytes_received - self.noted).per(at.since(before)),
                rtt: round_trip(sample),
                lost: sample.probes_lost,
                window,
                pacing,
            });
            self.noted = sample.bytes_received;
        }
    }
}

/// `T`: the probes' average, else the receiver's own estimate; zero: not known.
fn round_trip(sample: &Sample) -> Micros {
    [sample.probe_rtt, sample.rcv_rtt].into_iter().find(|rtt| *rtt > Micros::ZERO).unwrap_or_default()
}

/// The least rate to ask for: two segments a round trip, or a probe's interval if that is longer. TCP's own
/// window hardly goes below; and a policy that measures what it allowed (nothing, in two windows of a stalled
/// host) must not end at nothing.
fn slowest(sample: &Sample) -> Rate {
    sample.mss_or_default().times(SMALLEST_WINDOW_SEGMENTS).per(round_trip(sample).max(PROBE_INTERVAL))
}

fn with_probes(sample: Sample, measured: Option<&Measured>) -> Sample {
    match measured {
        None => sample,
        Some(measured) => Sample {
            probe_rtt: measured.rtt,
            probes_lost: measured.lost,
            capacity: measured.capacity.unwrap_or_default(),
            ..sample
        },
    }
}
