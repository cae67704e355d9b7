//! Runs a policy on one received file: samples the connection, applies the decisions, records them.
//!
//! Source: Prasad 2004 (SOBAS), section IV (the receiver decides).
//! Properties kept: the first decision is made before the connection (`prepare`), so it holds for the first segment; a
//! decision reaches the socket within one call of `observe`, and the sender within half a round trip; without probes
//! the policy works on TCP's own figures.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use bufwise_policy::sobas::{Config, Sobas, State};
use bufwise_policy::{Arrivals, BuildOptions, DrsFtp, Policy, PolicyKind, drs_ftp};
use bufwise_socket::options::{self, OptionError};
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};

use crate::drs::InfoDrs;
use crate::host;
use crate::probe::{Measured, Prober};
use crate::request::RequestPacer;
use crate::share::{Bound, Share};
use crate::window::Window;

/// Smallest window, segments: with less than two a receiver waits for its acknowledgement timer.
const SMALLEST_WINDOW_SEGMENTS: u64 = 2;
/// Time between probes (Prasad 2004, section IV-B), the resolution of their measurements.
const PROBE_INTERVAL: Micros = Micros::from_millis(10);
/// Smallest window under a rate limit: below it TCP recovers from a loss only by time-out.
const SMALLEST_LIMITED_SEGMENTS: u64 = 4;
/// How late a waiting thread may wake up: a window must hold the bytes of this time.
const WAKE_UP: Micros = Micros::from_millis(10);
/// Time between two samples of the tuner: a fifth of SOBAS's shortest rate window (10 ms). A sample costs some
/// microseconds.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(2);
/// [`SAMPLE_INTERVAL`] on the policies' clock.
const SAMPLE_INTERVAL_MICROS: Micros = Micros::from_millis(2);
/// Bytes that make a read worth a wake-up; each sample reads what has come in any case.
const MIN_READ: Bytes = Bytes(16 << 10);
/// Longest time between two reads of drsFTP: one clock tick of its hosts (Feng 2002, section 5: Linux 2.4 on i386, 100
/// per second). The size of a read is meaningful only if reads are not arbitrarily frequent.
const PUBLISHED_READS: Duration = Duration::from_millis(10);
/// Bytes that a full TCP segment (with timestamps) carries less than a full UDP packet, over IPv4 and IPv6.
const TCP_OVER_UDP: u64 = 24;

/// One decision, for tests.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// When, since the tuner was made.
    pub(crate) at: Micros,
    /// SOBAS's state; `None` for other policies.
    pub(crate) state: Option<State>,
    /// The probes' running average, else the receiver's own estimate; zero: not known.
    pub(crate) rtt: Micros,
    /// Limit of the window; [`Bytes::MAX`]: none.
    pub(crate) window: Bytes,
    /// The rate requested of the sender; [`Rate::MAX`]: none.
    pub(crate) pacing: Rate,
}

/// How a connection is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reading {
    /// Longest time between two samples of the tuner, with a read before each.
    pub(crate) sample_every: Duration,
    /// Bytes that make a read due earlier.
    pub(crate) low_water: Bytes,
    /// The published drsFTP: sizes of the kernel's buffer, for which each read asks whole, and of the application's.
    pub(crate) published: Option<(Bytes, Bytes)>,
}

/// A policy, the probes that feed it, and the socket settings that follow from it.
pub struct Tuner {
    rule: Rule,
    prober: Option<Prober>,
    start: Instant,
    window: Window,
    request: RequestPacer,
    share: Option<Share>,
    /// Upper bound of the rate, which the window enforces, too.
    limit: Option<Rate>,
    /// Smallest round-trip time seen.
    min_rtt: Option<Micros>,
    /// Payload that has arrived, for SOBAS.
    arrivals: Arrivals,
    /// Every decision.
    #[cfg(test)]
    pub(crate) timeline: Vec<Step>,
}

enum Rule {
    /// Created when the connection's window scale is known.
    Named(PolicyKind, BuildOptions),
    /// Held by their concrete types, to show their state.
    Sobas(Box<Sobas>),
    /// SOBAS as published: counts the bytes that the application gets, and the trains' mean dispersion.
    Published(Box<Sobas>),
    DrsFtp(Box<DrsFtp>),
    Drs(Box<InfoDrs>),
    Any(Box<dyn Policy + Send>),
}

impl Tuner {
    /// Makes a tuner with the policy `kind`, fed by `prober` if there is one.
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
            PolicyKind::SobasPublished => {
                let config = Config { max_window: options.max_window, ..Config::published() };
                Rule::Published(Box::new(Sobas::new(config)))
            }
            PolicyKind::DrsFtp => {
                // The kernel allows no larger buffer, and a read must not ask for more than the buffer.
                let max = options.max_window.min(host::rmem_max());
                Rule::DrsFtp(Box::new(DrsFtp::new(drs_ftp::Config { max, ..Default::default() })))
            }
            // The buffers were set before the connection; nothing is left to do.
            PolicyKind::Fixed(_) => Rule::Any(PolicyKind::Kernel.build(&options)),
            other => Rule::Named(other, options),
        };
        Self::with_rule(rule, prober)
    }

    /// Makes a tuner with a policy of the caller's.
    #[must_use]
    pub fn custom(policy: Box<dyn Policy + Send>, prober: Option<Prober>) -> Self {
        Self::with_rule(Rule::Any(policy), prober)
    }

    /// Makes a tuner that leaves everything to the kernel.
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
            request: RequestPacer::default(),
            share: None,
            limit: None,
            min_rtt: None,
            arrivals: Arrivals::default(),
            #[cfg(test)]
            timeline: Vec::new(),
        }
    }

    /// Keeps the buffer within `share`.
    #[must_use]
    pub fn within(self, share: Share) -> Self {
        Self { share: Some(share), ..self }
    }

    /// Waits for the probes' first results (a second at most) and tells the sender the first decision.
    ///
    /// Call it before the connection is made. Without probes it returns at once.
    pub fn prepare(&mut self) {
        let Some(prober) = &self.prober else { return };
        let measured = prober.settled();
        let sample = self.with_probes(Sample::default(), Some(&measured));
        let decision = self.decide(&sample);
        self.tell_sender(decision);
        #[cfg(test)]
        self.note(&sample, decision);
    }

    /// Returns the probes' measurements now; `None` without probes.
    #[must_use]
    pub fn measured(&self) -> Option<Measured> {
        self.prober.as_ref().map(Prober::measured)
    }

    /// Says whether the transfer stands still; while it does, probes are rare.
    pub(crate) fn rest(&self, resting: bool) {
        if let Some(prober) = &self.prober {
            prober.rest(resting);
        }
    }

    /// Returns the time since the tuner was made.
    pub(crate) fn clock(&self) -> Micros {
        Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    /// Returns the state of SOBAS; `None` for other policies.
    #[must_use]
    pub fn state(&self) -> Option<State> {
        match &self.rule {
            Rule::Sobas(sobas) | Rule::Published(sobas) => Some(sobas.state()),
            Rule::Named(..) | Rule::DrsFtp(_) | Rule::Drs(_) | Rule::Any(_) => None,
        }
    }

    /// Returns how to read the connection from now on.
    pub(crate) fn reading(&self) -> Reading {
        match &self.rule {
            Rule::DrsFtp(drs) => Reading {
                sample_every: PUBLISHED_READS,
                // A read of more than half of the buffer makes it grow.
                low_water: drs.buffer().scaled(1, 2) + Bytes(1),
                published: Some((drs.buffer(), drs.application_buffer())),
            },
            Rule::Sobas(_) | Rule::Published(_) | Rule::Named(..) | Rule::Drs(_) | Rule::Any(_) => {
                Reading { sample_every: SAMPLE_INTERVAL, low_water: MIN_READ, published: None }
            }
        }
    }

    /// Takes over a connection before its first byte is read: the first decision becomes its window. `limit` bounds the
    /// rate that the window allows. Returns the same as [`Tuner::observe`].
    pub(crate) fn attach(
        &mut self,
        stream: &TcpStream,
        limit: Option<Rate>,
    ) -> Result<Option<Bytes>, OptionError> {
        self.limit = limit;
        if let Rule::Named(kind, options) = &self.rule {
            let window_scale = options::tcp_info(stream)?.rcv_wscale();
            self.rule = match kind {
                PolicyKind::Drs => Rule::Drs(Box::new(InfoDrs::new(
                    window_scale,
                    options.max_window,
                    SAMPLE_INTERVAL_MICROS,
                ))),
                other => Rule::Any(other.build(&BuildOptions { window_scale, ..*options })),
            };
        }
        self.share.as_mut().map_or(Ok(()), |share| share.begin(stream))?;
        self.observe(stream, 0)
    }

    /// Samples the connection for the policy and applies the decision; `read`: bytes of the largest read since the last
    /// sample. Returns the buffer size to request of the sender, if a request is due.
    pub(crate) fn observe(&mut self, stream: &TcpStream, read: usize) -> Result<Option<Bytes>, OptionError> {
        let info = options::tcp_info(stream)?;
        let mut sample = info.to_sample(&options::memory(stream)?);
        sample.read_size = Bytes(read as u64);
        let mut sample = self.with_probes(sample, self.measured().as_ref());
        let seen = [sample.srtt, sample.rcv_rtt].into_iter().filter(|rtt| *rtt > Micros::ZERO);
        self.min_rtt = seen.chain(self.min_rtt).min();
        let present_rtt = [round_trip(&sample), sample.srtt].into_iter().find(|rtt| *rtt > Micros::ZERO);
        let now = self.clock();
        match &mut self.rule {
            Rule::Drs(drs) => sample = drs.sample(sample, now),
            Rule::Sobas(_) => {
                let rtt = sample.srtt.max(sample.rcv_rtt);
                sample.bytes_received = self.arrivals.observe(&sample, rtt, now);
            }
            Rule::Named(..) | Rule::Published(_) | Rule::DrsFtp(_) | Rule::Any(_) => {}
        }
        let mut decision = self.decide(&sample);
        let own_window = decision.receive_window;
        if let Some(share) = &mut self.share {
            let Bound { window, room } = share.bound(decision.receive_window, sample.rcvbuf);
            decision.receive_window = window;
            self.window.keep_within(room);
        }
        match (&self.rule, decision.receive_window) {
            (_, None) => {}
            (Rule::DrsFtp(_), Some(buffer)) => self.window.publish(stream, buffer)?,
            (_, Some(window)) => self.window.hold(stream, window)?,
        }
        self.tell_sender(decision);
        #[cfg(test)]
        self.note(&sample, decision);
        // A request takes half a round trip, and there is one per round trip: by then a sender in slow start needs
        // twice as much. Unsent data have their own bound, so a buffer that is too large costs nothing.
        let for_window = own_window.map(|own| match own {
            Bytes::MAX => Bytes::ZERO,
            own => decision.receive_window.unwrap_or(own).times(2),
        });
        let wanted = decision.send_buffer.or(for_window);
        Ok(self.request.due(wanted, present_rtt, self.clock()))
    }

    fn decide(&mut self, sample: &Sample) -> Decision {
        let now = self.clock();
        let decision = match &mut self.rule {
            Rule::Named(..) => Decision::NONE,
            Rule::Sobas(sobas) | Rule::Published(sobas) => sobas.observe(sample, now),
            Rule::DrsFtp(drs) => drs.observe(sample, now),
            Rule::Drs(drs) => drs.observe(sample, now),
            Rule::Any(policy) => policy.observe(sample, now),
        };
        // The policy may have decided before the segment size of this connection was known.
        let smallest = sample.mss_or_default().times(SMALLEST_WINDOW_SEGMENTS);
        let wanted = [decision.receive_window, self.window_of_limit(sample)];
        Decision {
            receive_window: wanted.into_iter().flatten().min().map(|window| window.max(smallest)),
            pacing: decision.pacing.map(|rate| rate.max(slowest(sample))),
            ..decision
        }
    }

    /// Returns the window for the rate limit: the bytes of a round trip, and a quarter more; `None`: no limit.
    fn window_of_limit(&self, sample: &Sample) -> Option<Bytes> {
        let rtt = self.min_rtt.unwrap_or_default().max(WAKE_UP);
        let floor = sample.mss_or_default().times(SMALLEST_LIMITED_SEGMENTS);
        Some(self.limit?.over(rtt).scaled(5, 4).max(floor))
    }

    /// Adds the probes' measurements to a sample.
    fn with_probes(&self, sample: Sample, measured: Option<&Measured>) -> Sample {
        let Some(measured) = measured else { return sample };
        let capacity =
            if matches!(self.rule, Rule::Published(_)) { measured.mean_rate } else { measured.capacity };
        Sample {
            probe_rtt: measured.rtt,
            probes_lost: measured.lost,
            capacity: capacity.unwrap_or_default(),
            ..sample
        }
    }

    fn tell_sender(&self, decision: Decision) {
        if let (Some(prober), Some(rate)) = (&self.prober, decision.pacing) {
            prober.request_rate(rate);
        }
    }

    #[cfg(test)]
    fn note(&mut self, sample: &Sample, decision: Decision) {
        self.timeline.push(Step {
            at: self.clock(),
            state: self.state(),
            rtt: round_trip(sample),
            window: decision.receive_window.unwrap_or(Bytes::MAX),
            pacing: decision.pacing.unwrap_or(Rate::MAX),
        });
    }
}

/// Returns `T`: the probes' average, else the receiver's own estimate; zero: not known.
fn round_trip(sample: &Sample) -> Micros {
    [sample.probe_rtt, sample.rcv_rtt].into_iter().find(|rtt| *rtt > Micros::ZERO).unwrap_or_default()
}

/// Returns the lowest rate to request: two segments per round trip, or per probe interval if that is longer. TCP's own
/// window hardly goes below; and a policy that measures the rate it allowed (zero, in two windows of a stalled host)
/// must not end at zero.
fn slowest(sample: &Sample) -> Rate {
    sample.mss_or_default().times(SMALLEST_WINDOW_SEGMENTS).per(round_trip(sample).max(PROBE_INTERVAL))
}
