//! A fluid model of a path with one connection, which `fit` at the receiver judges by what arrives.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::{MAX, MSS, Sample, observe};
use crate::abi::bw_fit_window;

/// Length of a step of the model, us; steps between two samples.
const STEP: u64 = 100;
const STEPS: u64 = 2;
/// The window that DRS would offer, bytes.
pub(super) const DRS: u64 = 16 << 20;

/// Fluid model of a path with one connection, whose sender stays in slow start.
pub(super) struct Path {
    pub(super) state: bw_fit_window,
    now: u64,
    sampled_at: u64,
    /// Capacity, bytes per step; round-trip time without a queue, steps; extra delay since the handshake, steps.
    pub(super) capacity: f64,
    pub(super) rtt: usize,
    pub(super) beyond: usize,
    /// Bytes in the queue: the connection's own, and a constant amount of other flows.
    own: f64,
    pub(super) others: f64,
    /// Segments that have come out of order.
    pub(super) out_of_order: u32,
    /// Largest number of bytes that the application writes per step.
    pub(super) writes: f64,
    sent: f64,
    received: f64,
    rcv_rtt: f64,
    pub(super) window: u64,
    /// Feedback that reaches the sender a round trip later: the right edge of the window, and the bytes that have
    /// arrived.
    told: VecDeque<(f64, f64)>,
    edge: f64,
    history: VecDeque<f64>,
}

impl Path {
    pub(super) fn new(bytes_per_second: u64, rtt_us: u64) -> Self {
        let capacity = bytes_per_second as f64 * STEP as f64 / 1e6;
        let rtt = (rtt_us / STEP) as usize;
        Self {
            state: bw_fit_window::default(),
            now: 1_000_000,
            sampled_at: 0,
            capacity,
            rtt,
            beyond: 0,
            own: 0.0,
            others: 0.0,
            out_of_order: 0,
            writes: f64::INFINITY,
            sent: 0.0,
            received: 0.0,
            rcv_rtt: (rtt as u64 * STEP) as f64,
            window: 65_536,
            told: VecDeque::new(),
            edge: 65_536.0,
            history: VecDeque::new(),
        }
    }

    pub(super) fn product(&self) -> f64 {
        self.capacity * self.rtt as f64
    }

    pub(super) fn step(&mut self) {
        let (edge, arrived) = if self.told.len() > self.rtt + self.beyond {
            self.told.pop_front().unwrap_or_default()
        } else {
            (65_536.0, 0.0)
        };
        while self.told.len() > self.rtt + self.beyond {
            self.told.pop_front();
        }
        let slow_start = arrived * 2.0 + (10 * MSS) as f64;
        let sends = (edge.min(slow_start) - self.sent).clamp(0.0, self.writes);
        self.sent += sends;
        self.own += sends;
        let queue = self.own + self.others;
        let leaves = if queue > self.capacity { self.capacity * self.own / queue } else { self.own };
        self.own -= leaves;
        self.received += leaves;
        if leaves > 0.0 {
            let rtt = (self.rtt + self.beyond) as f64 + queue / self.capacity;
            self.rcv_rtt += (rtt * STEP as f64 - self.rcv_rtt) / 50.0;
        }
        self.history.push_back(self.received);
        self.now += STEP;
        if leaves > 0.0 && self.now >= self.sampled_at + STEPS * STEP {
            self.sampled_at = self.now;
            self.sample();
        }
        self.edge = self.edge.max(self.received + self.window as f64);
        self.told.push_back((self.edge, self.received));
    }

    fn sample(&mut self) {
        while self.history.len() > self.rtt {
            self.history.pop_front();
        }
        let before = self.history.front().copied().unwrap_or_default();
        let sample = Sample {
            now: self.now,
            received: self.received as u64,
            mss: MSS,
            rtt: self.rtt as u64 * STEP,
            rcv_rtt: self.rcv_rtt as u64,
            drs: DRS,
            largest: (self.received - before) as u64,
            max: MAX,
            scale: 7,
            out_of_order: self.out_of_order,
            behind: 0,
        };
        self.window = observe(&mut self.state, &sample);
    }

    /// Runs for `round_trips`; returns the share of the capacity that arrived, and the longest queue as a part of the
    /// BDP.
    pub(super) fn run(&mut self, round_trips: usize) -> (f64, f64) {
        let (before, mut longest) = (self.received, 0.0_f64);
        for _ in 0..round_trips * self.rtt {
            self.step();
            longest = longest.max((self.own + self.others) / self.product());
        }
        ((self.received - before) / self.product() / round_trips as f64, longest)
    }

    /// Leaves the state of a path of a 1/`part` of this one. Round trips are longer by a thirtieth, which is no queue.
    pub(super) fn shrink_window(&mut self, part: u64) {
        self.beyond = self.rtt / 30;
        let state = &mut self.state;
        for bytes in [&mut state.window, &mut state.known, &mut state.mean_window, &mut state.mean_rate] {
            *bytes /= part;
        }
        (state.anchor_window, state.anchor_rate) = (state.mean_window, state.mean_rate);
        (state.last_window, state.last_rate) = (state.mean_window, state.mean_rate);
        (state.fastest, state.trial, state.rest) = (0, 0, 0);
    }

    /// Runs until `is_so` holds; returns the number of round trips before that, `most` if it never holds.
    pub(super) fn until(&mut self, most: usize, is_so: impl Fn(&mut Self) -> bool) -> usize {
        (0..most)
            .find(|_| {
                self.run(1);
                is_so(self)
            })
            .unwrap_or(most)
    }
}

/// Generates paths of 8 Mbit/s to 8 Gbit/s and 5 to 200 ms whose BDP is between 60 segments and 8 MiB.
pub(super) fn paths() -> impl Strategy<Value = Path> {
    let sizes = (1_000_000_u64..1_000_000_000, 5_000_u64..200_000);
    let usual = |(rate, rtt): &(u64, u64)| (60 * MSS..8 << 20).contains(&(rate * rtt / 1_000_000));
    sizes.prop_filter("a window of the usual size", usual).prop_map(|(rate, rtt)| Path::new(rate, rtt))
}

impl std::fmt::Debug for Path {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} bytes/s, {} us: {:?}",
            self.capacity * 1e6 / STEP as f64,
            self.rtt as u64 * STEP,
            self.state
        )
    }
}
