//! Fluid model of one Reno flow through a DropTail queue, in virtual time.
//!
//! Coarse on purpose (steps of 100 us, no details of retransmission): it shows whether the rules converge, not how many
//! packets a kernel loses.

use bufwise_policy::Policy;
use bufwise_policy::sobas::{Config, Sobas, State};
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};
use std::collections::VecDeque;

pub(crate) const MSS: f64 = 1_448.0;
/// TCP payload of an Ethernet frame, divided by the length of the frame.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
const TICK: f64 = 1e-4;

/// A path, and the disturbances of the hosts at its ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Path {
    pub(crate) mbit: f64,
    pub(crate) rtt_ms: f64,
    /// Length of the queue, milliseconds at the link's rate.
    pub(crate) queue_ms: f64,
    /// The packet trains' estimate, relative to the truth.
    pub(crate) estimate: f64,
    /// Initial slow start threshold, as a part of the BDP.
    pub(crate) ssthresh: f64,
    /// Largest delay that hosts add to probes and samples, ms; now and then five times that.
    pub(crate) jitter_ms: f64,
    /// Time between two samples of the receiver, ms.
    pub(crate) sample_ms: f64,
    /// Largest error of the bytes between two samples, up or down, as a part of the bytes of two round trips.
    pub(crate) count_error: f64,
    /// Largest error of the round-trip time, up or down, ms; drawn again every two round trips.
    pub(crate) rtt_error_ms: f64,
    /// Length of a pause of the receiving host, once a second, ms.
    pub(crate) pause_ms: f64,
    /// A time (s), and the factor of the link's rate from then on.
    pub(crate) change: Option<(f64, f64)>,
    /// A time (s), and the additional round-trip time (ms) from then on.
    pub(crate) longer: Option<(f64, f64)>,
    pub(crate) seed: u64,
}

impl Path {
    pub(crate) const fn new(mbit: f64, rtt_ms: f64, queue_ms: f64) -> Self {
        Self {
            mbit,
            rtt_ms,
            queue_ms,
            estimate: 1.0,
            ssthresh: f64::INFINITY,
            jitter_ms: 0.0,
            sample_ms: 5.0,
            count_error: 0.0,
            rtt_error_ms: 0.0,
            pause_ms: 0.0,
            change: None,
            longer: None,
            seed: 42,
        }
    }

    pub(crate) fn payload_rate(self) -> f64 {
        self.mbit * 125_000.0 * PAYLOAD
    }

    pub(crate) fn bdp(self) -> f64 {
        self.payload_rate() * self.rtt_ms / 1e3
    }

    fn rate_at(self, now: f64) -> f64 {
        let factor = self.change.map_or(1.0, |(at, factor)| if now >= at { factor } else { 1.0 });
        self.payload_rate() * factor
    }

    /// Round-trip time without a queue, seconds.
    fn base_rtt_at(self, now: f64) -> f64 {
        let more = self.longer.map_or(0.0, |(at, more)| if now >= at { more } else { 0.0 });
        (self.rtt_ms + more) / 1e3
    }

    fn paused(self, now: f64) -> bool {
        now.fract() * 1e3 < self.pause_ms
    }
}

/// Delays and errors of hosts, drawn from a seed.
struct Jitter {
    state: u64,
    millis: f64,
}

impl Jitter {
    fn uniform(&mut self) -> f64 {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 40) as f64 / f64::from(1 << 24)
    }

    /// Draws a number between `-bound` and `bound`.
    fn either_way(&mut self, bound: f64) -> f64 {
        (2.0 * self.uniform() - 1.0) * bound
    }

    /// Draws a delay, seconds: uniform, and in one of a hundred cases five times as long.
    fn late(&mut self) -> f64 {
        let spike = if self.uniform() < 0.01 { 5.0 } else { 1.0 };
        self.uniform() * spike * self.millis / 1e3
    }
}

/// Figures of a run: those of its second half, except for the drops.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// Goodput, as a part of the link's capacity.
    pub(crate) used: f64,
    pub(crate) mean_rtt_ms: f64,
    /// Overflows in the first two seconds, and later ones.
    pub(crate) drops: (u32, u32),
    /// Whether the queue overflowed before SOBAS left the states `Estimating` and `SlowStart`.
    pub(crate) slow_start_cut: bool,
    pub(crate) state: State,
    /// The window's limit, in BDPs.
    pub(crate) window: f64,
    /// Lowest pacing rate after the first quarter, as a part of the link's rate.
    pub(crate) lowest_pacing: f64,
}

/// A Reno sender, its queue, and the data and acknowledgements in flight.
struct Flow {
    cwnd: f64,
    ssthresh: f64,
    inflight: f64,
    queue: f64,
    credit: f64,
    received: f64,
    halved_at: f64,
    /// Per tick: bytes that will reach the receiver, and bytes whose acknowledgements will reach the sender.
    data: VecDeque<f64>,
    acks: VecDeque<f64>,
    /// Bytes that arrived during a pause of the receiver.
    held: f64,
}

impl Flow {
    fn new(path: Path) -> Self {
        let half = (path.rtt_ms / 2e3 / TICK) as usize;
        let wire = || VecDeque::from(vec![0.0; half]);
        Self {
            cwnd: 10.0 * MSS,
            ssthresh: path.ssthresh * path.bdp(),
            inflight: 0.0,
            queue: 0.0,
            credit: 0.0,
            received: 0.0,
            halved_at: -1.0,
            data: wire(),
            acks: wire(),
            held: 0.0,
        }
    }

    fn send(&mut self, window: f64, pacing: f64) {
        let acked = self.acks.pop_front().unwrap_or(0.0);
        self.inflight -= acked;
        let limit = self.cwnd.min(window);
        if self.inflight + acked + MSS >= limit && self.cwnd < 2.0 * window {
            self.cwnd += if self.cwnd < self.ssthresh { acked } else { MSS * acked / self.cwnd };
        }
        self.credit = (self.credit + pacing * TICK).min(pacing * TICK + 8.0 * MSS);
        let sent = (limit - self.inflight).max(0.0).min(self.credit);
        self.credit -= sent;
        self.inflight += sent;
        self.queue += sent;
    }

    /// Cuts the queue to `buffer`; returns whether it overflowed.
    fn overflow(&mut self, now: f64, buffer: f64, rtt: f64, window: f64) -> bool {
        let overflow = (self.queue - buffer).max(0.0);
        if overflow == 0.0 {
            return false;
        }
        self.queue = buffer;
        self.inflight -= overflow;
        if now - self.halved_at > 2.0 * rtt {
            self.halved_at = now;
            self.ssthresh = (self.cwnd.min(window) / 2.0).max(2.0 * MSS);
            self.cwnd = self.ssthresh;
        }
        true
    }

    fn deliver(&mut self, rate: f64, base_rtt: f64, paused: bool) {
        let leaves = self.queue.min(rate * TICK);
        self.queue -= leaves;
        self.data.push_back(leaves);
        // If the path becomes longer, it does so in the direction of the data: nothing arrives until the added part is
        // filled.
        let way = ((base_rtt / TICK).round() as usize).saturating_sub(self.acks.len());
        let arrives = if self.data.len() > way { self.data.pop_front().unwrap_or(0.0) } else { 0.0 };
        self.held += arrives;
        let taken = if paused { 0.0 } else { std::mem::take(&mut self.held) };
        self.received += taken;
        self.acks.push_back(taken);
    }
}

/// The receiver: the samples for the policy, and its decisions.
struct Receiver {
    sobas: Sobas,
    sample: Sample,
    jitter: Jitter,
    /// Moving average of the probes' round-trip times, seconds.
    rtt: f64,
    /// Present error of that average, and the time of the next one, seconds.
    rtt_error: (f64, f64),
    next_sample: f64,
    window: f64,
    pacing: f64,
}

impl Receiver {
    fn new(config: Config, path: Path) -> Self {
        let estimate = path.payload_rate() * path.estimate * 1_472.0 / 1_448.0;
        Self {
            sobas: Sobas::new(config),
            sample: Sample { mss: Bytes(1_448), capacity: Rate(estimate as u64), ..Sample::default() },
            jitter: Jitter { state: path.seed, millis: path.jitter_ms },
            rtt: path.rtt_ms / 1e3,
            rtt_error: (0.0, 0.0),
            next_sample: 0.0,
            window: f64::MAX,
            pacing: f64::MAX,
        }
    }

    fn probe(&mut self, path: Path, now: f64, queue_delay: f64) {
        let pause = if path.paused(now) { path.pause_ms / 1e3 - now.fract() } else { 0.0 };
        let rtt = path.base_rtt_at(now) + queue_delay + self.jitter.late() + pause;
        self.rtt += (rtt - self.rtt) / 8.0;
        if now >= self.rtt_error.1 {
            self.rtt_error = (self.jitter.either_way(path.rtt_error_ms / 1e3), now + 2.0 * self.rtt);
        }
    }

    fn sample(&mut self, path: Path, now: f64, received: f64) {
        if now < self.next_sample || path.paused(now) {
            return;
        }
        self.next_sample = now + path.sample_ms / 1e3 + self.jitter.late();
        // A reading is the difference of two samples: each has half of the error.
        let error = self.jitter.either_way(path.count_error / 2.0) * 2.0 * path.bdp();
        self.sample.bytes_received = Bytes((received + error).max(0.0) as u64);
        self.sample.probe_rtt = Micros(((self.rtt + self.rtt_error.0) * 1e6) as u64);
        let decision = self.sobas.observe(&self.sample, Micros((now * 1e6) as u64));
        self.obey(decision);
    }

    fn obey(&mut self, decision: Decision) {
        let or_none = |value: Option<u64>| value.filter(|&v| v < u64::MAX).map_or(f64::MAX, |v| v as f64);
        self.window = or_none(decision.receive_window.map(|w| w.0));
        self.pacing = or_none(decision.pacing.map(|r| r.0));
    }
}

/// Runs one flow, from its first segment on.
pub(crate) fn run(config: Config, path: Path, seconds: u32) -> Outcome {
    let mut flow = Flow::new(path);
    let mut receiver = Receiver::new(config, path);
    let buffer = path.payload_rate() * path.queue_ms / 1e3;
    let (mut drops, mut rtts, mut slow_start_cut) = ((0, 0), Vec::new(), false);
    let (mut by_half, mut carried, mut lowest_pacing) = ((0.0, 0.0), 0.0, f64::MAX);
    let seconds = f64::from(seconds);
    for tick in 0..(seconds / TICK) as u64 {
        let now = tick as f64 * TICK;
        let rate = path.rate_at(now);
        flow.send(receiver.window, receiver.pacing);
        if flow.overflow(now, buffer, receiver.rtt, receiver.window) {
            receiver.sample.rcv_out_of_order += 1;
            if now < 2.0 {
                drops.0 += 1;
            } else {
                drops.1 += 1;
            }
            slow_start_cut |= matches!(receiver.sobas.state(), State::Estimating | State::SlowStart);
        }
        flow.deliver(rate, path.base_rtt_at(now), path.paused(now));
        carried += rate * TICK;
        if tick % 100 == 0 {
            receiver.probe(path, now, flow.queue / rate);
            rtts.push(path.base_rtt_at(now) + flow.queue / rate);
        }
        receiver.sample(path, now, flow.received);
        if now < seconds / 2.0 {
            by_half = (flow.received, carried);
        }
        if now >= seconds / 4.0 {
            lowest_pacing = lowest_pacing.min(receiver.pacing / rate);
        }
    }
    let late = &rtts[rtts.len() / 2..];
    Outcome {
        used: (flow.received - by_half.0) / (carried - by_half.1),
        mean_rtt_ms: late.iter().sum::<f64>() / late.len() as f64 * 1e3,
        drops,
        slow_start_cut,
        state: receiver.sobas.state(),
        window: receiver.sobas.window().0 as f64 / path.bdp(),
        lowest_pacing,
    }
}
