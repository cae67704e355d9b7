//! One connection under SOBAS as the engine has it, and TCP connections of others on the same path.
//!
//! The engine has neither probes nor trains: its round-trip times are the receiver's own, the path's without a queue is
//! the smallest seen, and what stands for lost probes are slots of 10 ms with segments out of order.

use std::collections::VecDeque;

use bufwise_link::{BitRate, Fate, Nanos, Path, PathBuilder};
use bufwise_policy::sobas::{Config, Sobas, State};
use bufwise_policy::{Bytes, Micros, Policy, Sample};

use crate::congestion::Algorithm;
use crate::receiver::{Ack, Receiver};
use crate::sender::{Sender, Transmission};
use crate::subject::MAXIMUM;
use crate::world::{ACK_BYTES, SEGMENT_BYTES};

/// The engine looks no more often than this.
const LOOK_EVERY: Nanos = Nanos::from_millis(1);
/// The window of a connection that begins.
const FIRST_OFFER: u64 = 64 << 10;
const SLOT: Nanos = Nanos::from_millis(10);
const SLOTS: u64 = 100;

/// What the engine's hook shows the rule, and what it makes of it.
struct Engine {
    sobas: Sobas,
    shortest: Nanos,
    looked: Nanos,
    out_of_order: u64,
    /// Slots with losses, oldest first.
    lossy: VecDeque<u64>,
}

impl Engine {
    fn new(handshake: Nanos) -> Self {
        let config = Config { continuous: true, max_window: MAXIMUM, ..Config::default() };
        Self {
            sobas: Sobas::new(config),
            shortest: handshake,
            looked: Nanos::ZERO,
            out_of_order: 0,
            lossy: VecDeque::new(),
        }
    }

    /// The window to advertise; `None`: it is not time to look.
    fn look(&mut self, now: Nanos, shown: &Sample) -> Option<Bytes> {
        if now.0 < self.looked.0 + LOOK_EVERY.0 {
            return None;
        }
        self.looked = now;
        if shown.rcv_rtt > Micros::ZERO {
            self.shortest = self.shortest.min(Nanos(shown.rcv_rtt.0 * 1_000));
        }
        let slot = now.0 / SLOT.0;
        if shown.rcv_out_of_order > self.out_of_order && self.lossy.back() != Some(&slot) {
            self.lossy.push_back(slot);
        }
        self.out_of_order = shown.rcv_out_of_order;
        while self.lossy.front().is_some_and(|first| first + SLOTS <= slot) {
            self.lossy.pop_front();
        }
        let shortest = self.shortest.0 / 1_000;
        let sample = Sample {
            mss: shown.mss,
            bytes_received: shown.bytes_received,
            rcv_wnd: shown.rcv_wnd,
            rcv_rtt: shown.rcv_rtt,
            path_rtt: Micros(shortest + shortest / 16 + 500),
            probes_lost: self.lossy.len() as u32,
            ..Sample::default()
        };
        self.sobas.observe(&sample, Micros(now.0 / 1_000)).receive_window
    }
}

struct Connection {
    ends: Option<Nanos>,
    sender: Sender,
    receiver: Receiver,
    engine: Option<Engine>,
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Shared {
    /// Of the first connection.
    pub(crate) bits_per_sec: f64,
    /// Mean round-trip time of the first over its last quarter.
    pub(crate) late_rtt_ms: f64,
    /// `None`: the kernel's alone.
    pub(crate) state: Option<State>,
}

/// Who is on the path.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Company {
    pub(crate) others: usize,
    /// When the others begin and end, milliseconds; the first connection begins at [`BEGIN`].
    pub(crate) from: u64,
    pub(crate) until: u64,
    pub(crate) algorithm: Algorithm,
    /// Whether the first connection is under SOBAS, or the kernel's alone.
    pub(crate) sobas: bool,
}

/// When the first connection begins.
pub(crate) const BEGIN: Nanos = Nanos::from_secs(1);
/// Nobody begins at the same instant as another.
const APART: Nanos = Nanos::from_millis(30);

/// A path, and who uses it.
pub(crate) struct SharedPath {
    now: Nanos,
    path: Path,
    rate: BitRate,
    rtt: Nanos,
    company: Company,
    /// Beginnings that are still to come: when, and whether it is the first connection's.
    to_begin: VecDeque<(Nanos, bool)>,
    connections: Vec<Connection>,
    forward: VecDeque<(Nanos, usize, Transmission)>,
    backward: VecDeque<(Nanos, usize, Ack)>,
    late_from: Nanos,
    rtts: (f64, u64),
}

impl SharedPath {
    /// Nobody has begun yet.
    pub(crate) fn new(builder: &PathBuilder, rate: BitRate, rtt: Nanos, company: Company, seed: u64) -> Self {
        let path = builder.build(seed).expect("a valid path");
        let others = (0..company.others as u64)
            .map(|n| (Nanos(Nanos::from_millis(company.from).0 + n * APART.0), false));
        let mut to_begin: Vec<(Nanos, bool)> = others.chain([(BEGIN, true)]).collect();
        to_begin.sort_unstable();
        Self {
            now: Nanos::ZERO,
            path,
            rate,
            rtt,
            company,
            to_begin: to_begin.into(),
            connections: Vec::new(),
            forward: VecDeque::new(),
            backward: VecDeque::new(),
            late_from: Nanos::ZERO,
            rtts: (0.0, 0),
        }
    }

    /// Runs until `seconds` after the first connection began.
    pub(crate) fn run(mut self, seconds: u64) -> Shared {
        let end = Nanos(BEGIN.0 + Nanos::from_secs(seconds).0);
        self.late_from = Nanos(end.0 - Nanos::from_secs(seconds).0 / 4);
        while let Some(at) = self.next_deadline().filter(|at| *at < end) {
            self.now = at.max(self.now);
            self.step();
        }
        let first = self.connections.iter().find(|connection| connection.ends.is_none());
        let first = first.expect("the first connection has begun");
        Shared {
            bits_per_sec: first.receiver.received_bytes() as f64 * 8.0 / seconds as f64,
            late_rtt_ms: self.rtts.0 / self.rtts.1.max(1) as f64,
            state: first.engine.as_ref().map(|engine| engine.sobas.state()),
        }
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let now = self.now;
        let of_connections = self.connections.iter().flat_map(|connection| {
            let sending =
                connection.sender.deadline().filter(|_| connection.ends.is_none_or(|end| now < end));
            sending.into_iter().chain(connection.receiver.deadline())
        });
        let forward = self.forward.front().map(|(at, ..)| *at);
        let backward = self.backward.front().map(|(at, ..)| *at);
        let beginning = self.to_begin.front().map(|(at, _)| *at);
        of_connections.chain(forward).chain(backward).chain(beginning).min()
    }

    fn step(&mut self) {
        while let Some((_, first)) = self.to_begin.pop_front_if(|(at, _)| *at <= self.now) {
            self.begin(first);
        }
        while let Some((_, index, segment)) = self.forward.pop_front_if(|(at, ..)| *at <= self.now) {
            self.arrive(index, &segment);
        }
        while let Some((_, index, ack)) = self.backward.pop_front_if(|(at, ..)| *at <= self.now) {
            self.acknowledge(index, &ack);
        }
        for index in 0..self.connections.len() {
            if let Some(ack) = self.connections[index].receiver.tick(self.now) {
                self.send_ack(index, ack);
            }
            self.transmit(index);
        }
    }

    fn begin(&mut self, first: bool) {
        let queued = self.path.forward.backlog_bytes(self.now) * 8_000_000_000 / self.rate.0;
        let handshake = Nanos(self.rtt.0 + queued);
        let receiver = Receiver::new(handshake, Bytes(FIRST_OFFER), true);
        let mut sender = Sender::new(self.company.algorithm, handshake, receiver.right());
        sender.set_send_buffer(MAXIMUM);
        // As Linux has it.
        let sender = if self.company.algorithm == Algorithm::Cubic { sender.heeding_delay() } else { sender };
        let ends = (!first).then_some(Nanos::from_millis(self.company.until));
        let engine = (first && self.company.sobas).then(|| Engine::new(handshake));
        self.connections.push(Connection { ends, sender, receiver, engine });
    }

    fn arrive(&mut self, index: usize, segment: &Transmission) {
        let Connection { receiver, engine, .. } = &mut self.connections[index];
        let ack = receiver.receive(self.now, segment);
        let window = engine.as_mut().and_then(|engine| engine.look(self.now, &receiver.sample()));
        // As Linux opens it: by what has arrived.
        let opened = Bytes(FIRST_OFFER + receiver.received_bytes());
        if let Some(window) = window.or_else(|| engine.is_none().then_some(MAXIMUM)) {
            receiver.set_limit(window.min(opened));
        }
        let right = receiver.right();
        if let Some(ack) = ack {
            self.send_ack(index, Ack { right, ..ack });
        }
    }

    fn send_ack(&mut self, index: usize, ack: Ack) {
        if let Fate::Deliver { at } = self.path.backward.offer(self.now, ACK_BYTES) {
            self.backward.push_back((at, index, ack));
        }
    }

    fn acknowledge(&mut self, index: usize, ack: &Ack) {
        let connection = &mut self.connections[index];
        let rtt = connection.sender.acknowledge(self.now, ack);
        if let Some(rtt) = rtt.filter(|_| connection.ends.is_none() && self.now >= self.late_from) {
            self.rtts.0 += rtt.as_secs_f64() * 1e3;
            self.rtts.1 += 1;
        }
    }

    fn transmit(&mut self, index: usize) {
        let connection = &mut self.connections[index];
        if connection.ends.is_some_and(|end| self.now >= end) {
            return;
        }
        connection.sender.tick(self.now);
        while let Some(segment) = self.connections[index].sender.transmit(self.now) {
            if let Fate::Deliver { at } = self.path.forward.offer(self.now, SEGMENT_BYTES) {
                self.forward.push_back((at, index, segment));
            }
        }
    }
}
