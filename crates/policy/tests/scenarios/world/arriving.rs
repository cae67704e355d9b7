//! The receiving host as Linux has it: which segments it hands to TCP as one (GRO), and when the engine is called for them.
//!
//! Problem: the rule at the receiver takes the distances of what arrives for the path's. The host shows it less than each segment.
//! A device interrupts no more often than [`POLL`]; what has come by then, or while the host stood still, comes at once, and
//! neighbours become one segment. The engine's callback is made for each acknowledgement that leaves, not for each arrival, and
//! the rule says itself when it wants the next sample.
//!
//! Source: Linux `tcp_gro_receive` (the same time stamps, in milliseconds), `GRO_LEGACY_MAX_SIZE`; `crates/bpf/src/bpf/fast.h`.

use bufwise_bpf::Model;
use bufwise_policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Nanos, Sample};

use super::{Forward, World};
use crate::receiver::Ack;
use crate::sender::{MSS, Transmission};

/// Shortest time between two interrupts of a device: what drivers for 1 to 10 Gbit/s have as `rx-usecs`.
const POLL: Nanos = Nanos::from_micros(50);
/// Most segments of one: 64 KB with their header.
const MOST: usize = (65_535 / MSS) as usize;

/// What is handed to TCP at once, of segments that came together.
fn joined(segments: &[Transmission]) -> impl Iterator<Item = &[Transmission]> {
    let stamps = |segment: &Transmission| [segment.sent, segment.echo].map(|at| at.0 / 1_000_000);
    segments
        .chunk_by(move |a, b| b.seq == a.seq + 1 && stamps(a) == stamps(b))
        .flat_map(|neighbours| neighbours.chunks(MOST))
}

/// A policy at the receiver: one that is looked at, or the engine, which is called.
pub(crate) enum ReceiveSide {
    Policy(Box<dyn Policy + Send>),
    Engine(Box<Model>),
}

impl ReceiveSide {
    pub(crate) fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        match self {
            Self::Policy(policy) => policy.observe(sample, now),
            Self::Engine(model) => model.observe(sample, now),
        }
    }

    /// When the engine wants its next sample; `None`: this is none.
    pub(crate) fn next_sample(&self, now: Micros) -> Option<Micros> {
        match self {
            Self::Policy(_) => None,
            Self::Engine(model) => Some(model.next_window(now)),
        }
    }
}

impl World {
    /// With a receiving host that joins segments and is called for acknowledgements, as Linux is.
    pub(crate) fn joining(self) -> Self {
        let mut world = Self { joins: true, ..self };
        world.receiver.seek_shortest();
        world
    }

    /// The receiving host takes in what has come by now.
    pub(super) fn poll(&mut self) {
        let mut segments = Vec::new();
        while let Some((_, packet)) = self.forward.pop_front_if(|(at, _)| *at <= self.now) {
            match packet {
                Forward::Data(segment) if self.joins => segments.push(segment),
                packet => self.arrive_forward(packet),
            }
        }
        if !segments.is_empty() {
            self.next_poll = Nanos(self.now.0 + POLL.0);
        }
        for neighbours in joined(&segments) {
            if self.receiver.expects(neighbours) {
                let ack = self.receiver.receive_joined(self.now, neighbours);
                self.answer(ack);
                continue;
            }
            for segment in neighbours {
                let ack = self.receiver.receive(self.now, segment);
                self.answer(ack);
            }
        }
    }

    /// An acknowledgement leaves, if it is due; for it the engine is called, if it wants a sample.
    pub(super) fn answer(&mut self, ack: Option<Ack>) {
        let Some(ack) = ack else { return };
        if self.now >= self.next_look && self.next_read.is_none() {
            self.look_at_receiver(Bytes::ZERO);
        }
        // The window is that of after the look.
        self.send_ack(Ack { right: self.receiver.right(), ..ack });
    }
}
