//! CUBIC's early end of slow start (HyStart; Ha and Rhee 2011, as in Linux 6.18): slow start ends when a train of
//! acknowledgements is as long as the one-way delay of the path, or when round trips grow.
//!
//! Times are in seconds.

/// HyStart is off below this window (segments).
const LOW_WINDOW: f64 = 16.0;
/// Acknowledgements at most this far apart belong to one train.
const TRAIN_GAP: f64 = 2e-3;
/// Allowance in the length of a train for acknowledgements that hosts hold back.
const HELD_BACK: f64 = 1e-3;
/// Samples of a round before its shortest round trip counts; the growth that ends slow start: this part of the shortest
/// round trip of the connection, within bounds.
const SAMPLES: u32 = 8;
const DELAY_PART: f64 = 8.0;
const LEAST_DELAY: f64 = 4e-3;
const MOST_DELAY: f64 = 16e-3;

/// The state in the present round.
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    /// The round ends when this segment is acknowledged.
    until: u64,
    began: f64,
    last_ack: f64,
    samples: u32,
    shortest: f64,
    /// Shortest round trip of the connection.
    path: f64,
}

/// The data of an acknowledgement that HyStart uses.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) now: f64,
    pub(crate) rtt: f64,
    pub(crate) acknowledged: u64,
    pub(crate) sent: u64,
    pub(crate) cwnd: f64,
    /// Whether TCP paces. A train is then spread by the sender itself, and must be twice as long.
    pub(crate) paced: bool,
}

impl HyStart {
    pub(crate) const fn new() -> Self {
        Self { until: 0, began: 0.0, last_ack: 0.0, samples: 0, shortest: f64::INFINITY, path: f64::INFINITY }
    }

    /// Takes an acknowledgement; returns whether slow start ends.
    pub(crate) fn ends(&mut self, seen: Seen) -> bool {
        self.path = self.path.min(seen.rtt);
        if seen.acknowledged > self.until {
            let (now, path) = (seen.now, self.path);
            *self = Self { until: seen.sent, began: now, last_ack: now, path, ..Self::new() };
        }
        if seen.cwnd < LOW_WINDOW {
            return false;
        }
        let mut ends = false;
        if seen.now - self.last_ack <= TRAIN_GAP {
            self.last_ack = seen.now;
            let longest = (self.path + HELD_BACK) * if seen.paced { 1.0 } else { 0.5 };
            ends = seen.now - self.began > longest;
        }
        self.shortest = self.shortest.min(seen.rtt);
        if self.samples < SAMPLES {
            self.samples += 1;
            return ends;
        }
        ends || self.shortest > self.path + (self.path / DELAY_PART).clamp(LEAST_DELAY, MOST_DELAY)
    }
}
