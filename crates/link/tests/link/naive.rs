//! A naive DropTail queue: a list of what is left of each packet, drained step by step.

use bufwise_link::{DirectionConfig, QueueLimit};

/// Work of one byte, in 10^-9 bit: a rate in bit/s does a whole number of these in a nanosecond.
const BYTE: u128 = 8_000_000_000;

pub(crate) struct NaiveQueue {
    config: DirectionConfig,
    now: u64,
    /// The unsent rest of each packet, as work.
    left: Vec<u128>,
}

impl NaiveQueue {
    pub(crate) fn new(config: &DirectionConfig) -> Self {
        Self { config: config.clone(), now: 0, left: Vec::new() }
    }

    /// Returns rate and delay at `time`, and when they next change.
    fn conditions(&self, time: u64) -> (u64, u64, u64) {
        let (mut rate, mut delay) =
            (self.config.rate.expect("a naive queue has a rate").0, self.config.delay.0);
        let Some(trace) = &self.config.trace else { return (rate, delay, u64::MAX) };
        let cycle = trace.period().map_or(0, |period| time / period.0 * period.0);
        let mut until = trace.period().map_or(u64::MAX, |period| cycle + period.0);
        for step in trace.steps() {
            if step.at.0 + cycle > time {
                until = until.min(step.at.0 + cycle);
                break;
            }
            rate = step.rate.map_or(rate, |rate| rate.0);
            delay = step.delay.map_or(delay, |delay| delay.0);
        }
        (rate, delay, until)
    }

    fn drain(&mut self, to: u64) {
        while self.now < to {
            let (rate, _, until) = self.conditions(self.now);
            let end = until.min(to);
            let mut work = u128::from(rate) * u128::from(end - self.now);
            for left in &mut self.left {
                let part = work.min(*left);
                *left -= part;
                work -= part;
            }
            self.left.retain(|&left| left > 0);
            self.now = end;
        }
    }

    /// Returns when a packet (of at least one byte) that arrives now departs, and its delay; `None`: it is dropped.
    pub(crate) fn offer(&mut self, now: u64, bytes: u64) -> Option<(u64, u64)> {
        self.drain(now);
        let work = u128::from(bytes) * BYTE;
        let backlog: u128 = self.left.iter().sum();
        let room = match self.config.queue {
            QueueLimit::Unlimited => true,
            QueueLimit::Bytes(limit) => backlog + work <= u128::from(limit) * BYTE,
            QueueLimit::Packets(limit) => self.left.len() < limit as usize,
        };
        if !room {
            return None;
        }
        self.left.push(work);
        let mut missing = backlog + work;
        let mut time = now;
        loop {
            let (rate, _, until) = self.conditions(time);
            let step = u128::from(rate) * u128::from(until - time);
            if missing <= step {
                time += u64::try_from(missing.div_ceil(u128::from(rate))).expect("some seconds");
                return Some((time, self.conditions(time).1));
            }
            missing -= step;
            time = until;
        }
    }

    pub(crate) fn backlog_bytes(&self) -> u64 {
        u64::try_from(self.left.iter().sum::<u128>().div_ceil(BYTE)).expect("some packets")
    }

    pub(crate) fn packets(&self) -> u64 {
        self.left.len() as u64
    }
}
