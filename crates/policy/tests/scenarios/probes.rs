//! SOBAS's measurements beside the connection (Prasad 2004, section IV-B): capacity from five packet trains before the
//! data, round-trip time and losses from a probe every 10 ms.

use std::collections::VecDeque;

use bufwise_units::{Bytes, Micros, Nanos, Rate, Sample};

/// 100 bytes of UDP payload, as an IP length.
pub(crate) const PROBE_BYTES: u32 = 100 + 28;
const PROBE_EVERY: Nanos = Nanos::from_millis(10);
/// Probes that the count of losses looks back on.
const REMEMBERED: usize = 100;

const TRAINS: u64 = 5;
const TRAIN_EVERY: Nanos = Nanos::from_millis(50);
/// Short enough for the shallow queue to take a whole train.
pub(crate) const TRAIN_PACKETS: u64 = 20;
/// A full packet, as an IP length, and its UDP payload.
pub(crate) const TRAIN_BYTES: u32 = 1_500;
const TRAIN_PAYLOAD: u64 = 1_472;

#[derive(Clone, Debug, Default)]
pub(crate) struct Prober {
    next_probe: Nanos,
    sent: u64,
    /// Number of the next probe that no answer has settled.
    unsettled: u64,
    /// Whether each of the last probes was lost.
    settled: VecDeque<bool>,
    rtt: Option<Nanos>,
    trains_sent: u64,
    /// The train that arrives: its number, first and last arrival, packets.
    train: Option<(u64, Nanos, Nanos, u64)>,
    /// Nanoseconds and packet gaps of the trains so far.
    dispersion: (u64, u64),
}

impl Prober {
    /// When the next train leaves the sender; `None`: all have left.
    pub(crate) fn next_train(&self) -> Option<Nanos> {
        (self.trains_sent < TRAINS).then_some(Nanos(self.trains_sent * TRAIN_EVERY.0))
    }

    /// When the next probe leaves the receiver.
    pub(crate) const fn next_probe(&self) -> Nanos {
        self.next_probe
    }

    /// Number of the train that leaves now.
    pub(crate) fn send_train(&mut self) -> u64 {
        self.trains_sent += 1;
        self.trains_sent - 1
    }

    /// Number of the probe that leaves now.
    pub(crate) fn send_probe(&mut self) -> u64 {
        self.next_probe = Nanos(self.next_probe.0 + PROBE_EVERY.0);
        self.sent += 1;
        self.sent - 1
    }

    /// A packet of a train arrives; another train's closes the one before.
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

    /// The answer to a probe arrives; those before it that no answer came for are lost.
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

    /// Adds what was learnt to a receiver's sample.
    pub(crate) fn fill(&self, sample: &mut Sample) {
        let (nanos, gaps) = self.dispersion;
        sample.capacity =
            if nanos == 0 { Rate(0) } else { Bytes(gaps * TRAIN_PAYLOAD).per(Micros(nanos / 1_000)) };
        sample.probe_rtt = Micros(self.rtt.map_or(0, |rtt| rtt.0 / 1_000));
        let lost = self.settled.iter().filter(|&&lost| lost).count();
        sample.probes_lost = u32::try_from(lost).expect("of a hundred");
    }
}
