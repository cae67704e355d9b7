//! The receiving host as in Linux: it hands several segments to TCP as one (GRO), and calls the engine for
//! acknowledgements.
//!
//! Problem: the rule at the receiver takes the distances of arrivals for the path's, but the host hides some of them. A
//! device interrupts at most once per [`POLL`]. Segments that came since the last interrupt, or during a pause of the
//! host, are handed over at once, and consecutive ones become one segment. The engine's callback runs for each
//! acknowledgement sent, not for each arrival, and the rule itself sets the time of its next sample.
//!
//! Source: Linux `tcp_gro_receive` (the same time stamps, in milliseconds), `GRO_LEGACY_MAX_SIZE`; `crates/bpf/src/bpf/fast.h`.

use bufwise_bpf::Model;
use bufwise_policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Nanos, Sample};

use super::{Forward, World};
use crate::receiver::Ack;
use crate::sender::{MSS, Transmission};

/// Shortest time between two interrupts of a device: a common `rx-usecs` of drivers for 1 to 10 Gbit/s.
const POLL: Nanos = Nanos::from_micros(50);
/// Largest number of segments that are joined into one: 64 KB with its header.
const MOST: usize = (65_535 / MSS) as usize;

/// Groups segments that came together into those that are handed to TCP as one.
fn joined(segments: &[Transmission]) -> impl Iterator<Item = &[Transmission]> {
    let stamps = |segment: &Transmission| [segment.sent, segment.echo].map(|at| at.0 / 1_000_000);
    segments
        .chunk_by(move |a, b| b.seq == a.seq + 1 && stamps(a) == stamps(b))
        .flat_map(|neighbours| neighbours.chunks(MOST))
}

/// A policy at the receiver: a Rust policy, which is sampled, or the engine, which is called.
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

    /// Room that the engine remembers on the peer's path afterwards.
    pub(crate) fn room(&self) -> u32 {
        match self {
            Self::Policy(_) => 0,
            Self::Engine(model) => model.room(),
        }
    }

    /// Time at which the engine requests its next sample; `None`: not an engine.
    pub(crate) fn next_sample(&self, now: Micros) -> Option<Micros> {
        match self {
            Self::Policy(_) => None,
            Self::Engine(model) => Some(model.next_window(now)),
        }
    }
}

impl World {
    /// Makes the receiving host join segments and call the engine for acknowledgements alone, as Linux does.
    pub(crate) fn joining(self) -> Self {
        let mut world = Self { joins: true, answers_over_path: true, ..self };
        world.receiver.seek_shortest();
        world
    }

    /// Takes in the segments that have come by now.
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

    /// Sends an acknowledgement, if there is one; before that, calls the engine if its next sample is due.
    pub(super) fn answer(&mut self, ack: Option<Ack>) {
        let Some(ack) = ack else { return };
        if self.now >= self.next_of_receiver && self.next_read.is_none() {
            self.sample_receiver(Bytes::ZERO);
        }
        // The acknowledgement carries the window decided just now.
        self.send_ack(Ack { right: self.receiver.right(), ..ack });
    }
}
