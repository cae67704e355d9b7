//! SOBAS against a path: a fluid model of one Reno flow through a DropTail queue, in virtual time.
//!
//! Coarse on purpose (100 us steps, no retransmission detail): it answers whether the rules converge, not how
//! many packets a kernel loses.

use bufwise_policy::sobas::{Config, Sobas, State};
use bufwise_policy::{Bytes, Micros, Policy, Rate, Sample};
use std::collections::VecDeque;

const MSS: f64 = 1_448.0;
/// TCP payload of an Ethernet frame over what it takes on the wire.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
const TICK: f64 = 1e-4;

#[derive(Clone, Copy)]
struct Path {
    mbit: f64,
    rtt_ms: f64,
    /// Queue in milliseconds of the link's rate.
    queue_ms: f64,
    /// What the packet trains say, relative to the truth.
    estimate: f64,
    /// Where slow start ends by itself, in parts of the bandwidth-delay product.
    ssthresh: f64,
    /// Hosts that are late: probes and looks by up to this many milliseconds, now and then five times that.
    jitter_ms: f64,
    /// How often the receiver looks.
    look_ms: f64,
    /// From this second on, the link's rate times a factor.
    change: Option<(f64, f64)>,
}

impl Path {
    const fn new(mbit: f64, rtt_ms: f64, queue_ms: f64) -> Self {
        Self {
            mbit,
            rtt_ms,
            queue_ms,
            estimate: 1.0,
            ssthresh: f64::INFINITY,
            jitter_ms: 0.0,
            look_ms: 5.0,
            change: None,
        }
    }

    fn payload_rate(self) -> f64 {
        self.mbit * 125_000.0 * PAYLOAD
    }

    fn bdp(self) -> f64 {
        self.payload_rate() * self.rtt_ms / 1e3
    }
}

/// Lateness of hosts: seeded, uniform, one time in a hundred five times as much.
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

    /// Seconds late.
    fn late(&mut self) -> f64 {
        let spike = if self.uniform() < 0.01 { 5.0 } else { 1.0 };
        self.uniform() * spike * self.millis / 1e3
    }
}

/// What the last part of a run was like.
#[derive(Debug)]
struct Outcome {
    /// Goodput over what the link could carry.
    used: f64,
    mean_rtt_ms: f64,
    /// Overflows in the first two seconds, and later.
    drops: (u32, u32),
    state: State,
    /// The limit in bandwidth-delay products.
    window: f64,
}

/// A Reno sender, its queue, and the data and acknowledgements under way.
struct Flow {
    cwnd: f64,
    ssthresh: f64,
    inflight: f64,
    queue: f64,
    credit: f64,
    received: f64,
    halved_at: f64,
    /// Bytes that reach the receiver, and whose acknowledgements reach the sender, per tick.
    data: VecDeque<f64>,
    acks: VecDeque<f64>,
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
        }
    }

    /// One tick; true if the queue overflowed.
    fn step(&mut self, now: f64, rate: f64, buffer: f64, rtt: f64, window: f64, pacing: f64) -> bool {
        let acked = self.acks.pop_front().unwrap_or(0.0);
        self.inflight -= acked;
        let limit = self.cwnd.min(window);
        if self.inflight + acked + MSS >= self.cwnd.min(window) && self.cwnd < 2.0 * window {
            self.cwnd += if self.cwnd < self.ssthresh { acked } else { MSS * acked / self.cwnd };
        }
        self.credit = (self.credit + pacing * TICK).min(pacing * TICK + 8.0 * MSS);
        let sent = (limit - self.inflight).max(0.0).min(self.credit);
        self.credit -= sent;
        self.inflight += sent;
        self.queue += sent;
        let overflow = (self.queue - buffer).max(0.0);
        if overflow > 0.0 {
            self.queue = buffer;
            self.inflight -= overflow;
            if now - self.halved_at > 2.0 * rtt {
                self.halved_at = now;
                self.ssthresh = (self.cwnd.min(window) / 2.0).max(2.0 * MSS);
                self.cwnd = self.ssthresh;
            }
        }
        let leaves = self.queue.min(rate * TICK);
        self.queue -= leaves;
        self.data.push_back(leaves);
        let arrives = self.data.pop_front().unwrap_or(0.0);
        self.received += arrives;
        self.acks.push_back(arrives);
        overflow > 0.0
    }
}

fn run(config: Config, path: Path, seconds: u32) -> Outcome {
    let mut sobas = Sobas::new(config);
    let mut flow = Flow::new(path);
    let buffer = path.payload_rate() * path.queue_ms / 1e3;
    let estimate = path.payload_rate() * path.estimate * 1_472.0 / 1_448.0;
    let mut sample = Sample { mss: Bytes(1_448), capacity: Rate(estimate as u64), ..Sample::default() };
    let (mut rtt, mut drops, mut rtts) = (path.rtt_ms / 1e3, (0, 0), Vec::new());
    let (mut window, mut pacing) = (f64::MAX, f64::MAX);
    let (mut settled_bytes, half) = (0.0, f64::from(seconds) / 2.0);
    let mut rate = path.payload_rate();
    let mut jitter = Jitter { state: 42, millis: path.jitter_ms };
    let mut next_look = 0.0;
    for tick in 0..(f64::from(seconds) / TICK) as u64 {
        let now = tick as f64 * TICK;
        if let Some((at, factor)) = path.change
            && now >= at
        {
            rate = path.payload_rate() * factor;
        }
        if flow.step(now, rate, buffer, rtt, window, pacing) {
            sample.rcv_out_of_order += 1;
            if now < 2.0 { drops.0 += 1 } else { drops.1 += 1 }
        }
        if tick % 100 == 0 {
            rtt += (path.rtt_ms / 1e3 + flow.queue / rate + jitter.late() - rtt) / 8.0;
            rtts.push(rtt);
        }
        if now >= next_look {
            next_look = now + path.look_ms / 1e3 + jitter.late();
            sample.bytes_received = Bytes(flow.received as u64);
            sample.probe_rtt = Micros((rtt * 1e6) as u64);
            let decision = sobas.observe(&sample, Micros((now * 1e6) as u64));
            let or_none = |value: Option<u64>| value.filter(|&v| v < u64::MAX).map_or(f64::MAX, |v| v as f64);
            window = or_none(decision.receive_window.map(|w| w.0));
            pacing = or_none(decision.pacing.map(|r| r.0));
        }
        if now < half {
            settled_bytes = flow.received;
        }
    }
    let late = &rtts[rtts.len() / 2..];
    Outcome {
        used: (flow.received - settled_bytes) / (f64::from(seconds) - half) / rate,
        mean_rtt_ms: late.iter().sum::<f64>() / late.len() as f64 * 1e3,
        drops,
        state: sobas.state(),
        window: sobas.window().0 as f64 / path.bdp(),
    }
}

fn published() -> Config {
    Config::default()
}

fn paced() -> Config {
    Config { pacing: true, ..Config::default() }
}

const SHALLOW: Path = Path::new(100.0, 40.0, 5.0);
const DEEP: Path = Path::new(100.0, 50.0, 480.0);

#[test]
fn published_with_a_good_estimate_fills_a_deep_path_without_loss() {
    let outcome = run(published(), DEEP, 10);
    assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{outcome:?}");
    assert!(outcome.used > 0.97 && outcome.mean_rtt_ms < 65.0, "{outcome:?}");
}

#[test]
fn published_grows_out_of_an_estimate_that_is_four_times_too_low() {
    let outcome = run(published(), Path { estimate: 0.25, ..DEEP }, 40);
    assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{outcome:?}");
    assert!(outcome.used > 0.95 && outcome.mean_rtt_ms < 60.0, "{outcome:?}");
}

#[test]
fn published_overflows_a_shallow_queue_and_says_so() {
    // The queue holds an eighth of the path; the first limit alone exceeds that (000, equation 16).
    let outcome = run(published(), SHALLOW, 10);
    assert!(outcome.drops.0 > 0, "{outcome:?}");
    assert_eq!(outcome.drops.1, 0, "no loss after the decision: {outcome:?}");
}

#[test]
fn published_recovers_from_that_when_it_looks_closely() {
    for path in [SHALLOW, Path::new(1_000.0, 20.0, 5.0)] {
        let outcome = run(published(), Path { look_ms: 1.0, ..path }, 60);
        assert_eq!((outcome.state, outcome.drops.1), (State::Final, 0), "{outcome:?}");
        assert!(outcome.used > 0.95, "{outcome:?}");
    }
}

#[test]
fn paced_fills_a_shallow_path_without_a_drop() {
    for estimate in [0.25, 0.7, 0.9, 0.97, 1.0, 1.02] {
        let outcome = run(paced(), Path { estimate, ..SHALLOW }, 10);
        assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{estimate}: {outcome:?}");
        assert!(outcome.used > 0.975 && outcome.mean_rtt_ms < 42.0, "{estimate}: {outcome:?}");
    }
}

#[test]
fn paced_survives_an_estimate_that_is_too_high() {
    for estimate in [1.05, 1.1, 1.2, 1.5, 3.0] {
        let outcome = run(paced(), Path { estimate, ..SHALLOW }, 20);
        assert_eq!(outcome.drops.1, 0, "{estimate}: {outcome:?}");
        assert!(outcome.mean_rtt_ms < 44.0, "{estimate}: {outcome:?}");
        assert!(outcome.used > 0.9, "{estimate}: {outcome:?}");
    }
}

#[test]
fn paced_keeps_a_deep_queue_empty() {
    for estimate in [0.25, 0.9, 1.0, 1.1, 1.5] {
        let outcome = run(paced(), Path { estimate, ..DEEP }, 10);
        assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{estimate}: {outcome:?}");
        assert!(outcome.used > 0.975 && outcome.mean_rtt_ms < 56.0, "{estimate}: {outcome:?}");
    }
}

#[test]
fn paced_waits_for_a_sender_that_left_slow_start_early() {
    let outcome = run(paced(), Path { ssthresh: 0.6, ..SHALLOW }, 30);
    assert_eq!(outcome.drops, (0, 0), "{outcome:?}");
    assert!(outcome.used > 0.97, "{outcome:?}");
}

#[test]
fn paced_follows_a_path_that_loses_half_its_rate() {
    let outcome = run(paced(), Path { change: Some((4.0, 0.5)), ..DEEP }, 20);
    assert!(outcome.used > 0.95 && outcome.mean_rtt_ms < 60.0, "{outcome:?}");
}

#[test]
fn paced_and_continuous_follows_a_path_that_doubles_its_rate() {
    let config = Config { continuous: true, ..paced() };
    let outcome = run(config, Path { change: Some((4.0, 2.0)), ..DEEP }, 40);
    assert!(outcome.used > 0.95 && outcome.mean_rtt_ms < 60.0, "{outcome:?}");
    assert!(outcome.window > 1.5, "{outcome:?}");
}

#[test]
fn paced_suits_fast_short_and_slow_long_paths() {
    for path in [Path::new(1_000.0, 20.0, 5.0), Path::new(10.0, 200.0, 50.0), Path::new(2.0, 60.0, 60.0)] {
        let outcome = run(paced(), path, 30);
        assert_eq!(outcome.drops.1, 0, "{} Mbit/s: {outcome:?}", path.mbit);
        assert!(outcome.used > 0.93, "{} Mbit/s: {outcome:?}", path.mbit);
    }
}

#[test]
fn paced_bears_hosts_that_are_late() {
    for (path, used) in [(SHALLOW, 0.975), (DEEP, 0.975), (Path::new(1_000.0, 20.0, 5.0), 0.97)] {
        for jitter_ms in [0.2, 0.5, 1.0] {
            let outcome = run(paced(), Path { jitter_ms, ..path }, 10);
            assert_eq!(outcome.drops, (0, 0), "{jitter_ms} ms: {outcome:?}");
            assert!(outcome.used > used, "{jitter_ms} ms: {outcome:?}");
        }
    }
}
