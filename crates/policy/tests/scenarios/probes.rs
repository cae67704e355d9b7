//! SOBAS's measurements beside the connection (Prasad 2004, section IV-B): capacity from five packet trains before the
//! data, round-trip time and losses from a probe every 10 ms.

use std::collections::VecDeque;

use bufwise_units::{Bytes, Micros, Nanos, Rate, Sample};

/// IP length of a probe, which has 100 bytes of UDP payload.
pub(crate) const PROBE_BYTES: u32 = 100 + 28;
const PROBE_EVERY: Nanos = Nanos::from_millis(10);
/// Number of the last probes among which losses are counted.
const REMEMBERED: usize = 100;

const TRAINS: u64 = 5;
const TRAIN_EVERY: Nanos = Nanos::from_millis(50);
/// Packets of a train: few enough for the shallow queue.
pub(crate) const TRAIN_PACKETS: u64 = 20;
/// IP length of a full packet, and its UDP payload.
pub(crate) const TRAIN_BYTES: u32 = 1_500;
const TRAIN_PAYLOAD: u64 = 1_472;

#[derive(Clone, Debug, Default)]
pub(crate) struct Prober {
    next_probe: Nanos,
    sent: u64,
    /// Number of the first probe that is neither answered nor lost.
    unsettled: u64,
    /// Whether each of the last probes was lost.
    settled: VecDeque<bool>,
    rtt: Option<Nanos>,
    trains_sent: u64,
    /// The arriving train: its number, first and last arrival, packets.
    train: Option<(u64, Nanos, Nanos, u64)>,
    /// Sums over the trains so far: nanoseconds, packet gaps.
    dispersion: (u64, u64),
}

impl Prober {
    /// Time at which the next train leaves the sender; `None`: all have left.
    pub(crate) fn next_train(&self) -> Option<Nanos> {
        (self.trains_sent < TRAINS).then_some(Nanos(self.trains_sent * TRAIN_EVERY.0))
    }

    /// Time at which the next probe leaves the receiver.
    pub(crate) const fn next_probe(&self) -> Nanos {
        self.next_probe
    }

    /// Sends a train now; returns its number.
    pub(crate) fn send_train(&mut self) -> u64 {
        self.trains_sent += 1;
        self.trains_sent - 1
    }

    /// Sends a probe now; returns its number.
    pub(crate) fn send_probe(&mut self) -> u64 {
        self.next_probe = Nanos(self.next_probe.0 + PROBE_EVERY.0);
        self.sent += 1;
        self.sent - 1
    }

    /// Takes a packet of a train; a packet of another train closes the one before.
    pub(crate) fn take_train(&mut self, now: Nanos, train: u64) {
        match &mut self.train {
            Some((current, _, last, packets)) if *current == train => {
                *last = now;
                *packets += 1;
            }
            _ => {
                self.close_train();
                self.train = Some((train, now, now, 1));
            }
        }
    }

    /// Adds the last train to the estimate.
    pub(crate) fn close_train(&mut self) {
        if let Some((_, first, last, packets)) = self.train.take() {
            self.dispersion.0 += last.0 - first.0;
            self.dispersion.1 += packets - 1;
        }
    }

    /// Takes the answer to a probe; earlier probes without an answer are lost.
    pub(crate) fn take_answer(&mut self, now: Nanos, number: u64, sent: Nanos) {
        while self.unsettled <= number {
            self.settled.push_back(self.unsettled < number);
            self.unsettled += 1;
        }
        while self.settled.len() > REMEMBERED {
            self.settled.pop_front();
        }
        let rtt = now.0 - sent.0;
        self.rtt = Some(Nanos(self.rtt.map_or(rtt, |before| (7 * before.0 + rtt) / 8)));
    }

    /// Adds the measurements to a receiver's sample.
    pub(crate) fn fill(&self, sample: &mut Sample) {
        let (nanos, gaps) = self.dispersion;
        sample.capacity =
            if nanos == 0 { Rate(0) } else { Bytes(gaps * TRAIN_PAYLOAD).per(Micros(nanos / 1_000)) };
        sample.probe_rtt = Micros(self.rtt.map_or(0, |rtt| rtt.0 / 1_000));
        let lost = self.settled.iter().filter(|&&lost| lost).count();
        sample.probes_lost = u32::try_from(lost).expect("of a hundred");
    }
}
