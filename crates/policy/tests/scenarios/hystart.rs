//! CUBIC's early end of slow start (HyStart; Ha and Rhee 2011, as Linux has it in 6.18): a train of acknowledgements as long as
//! the path, or round trips that grow.
//!
//! Times are in seconds.

/// Below this window (segments) it does not look.
const LOW_WINDOW: f64 = 16.0;
/// Acknowledgements no further apart are of one train.
const TRAIN_GAP: f64 = 2e-3;
/// Acknowledgements that hosts hold back so long are no part of the train.
const HELD_BACK: f64 = 1e-3;
/// Samples of a round before its shortest round trip counts, and by how much more than the path's: a part of it, in bounds.
const SAMPLES: u32 = 8;
const DELAY_PART: f64 = 8.0;
const LEAST_DELAY: f64 = 4e-3;
const MOST_DELAY: f64 = 16e-3;

/// Its state in the present round.
#[derive(Clone, Debug)]
pub(crate) struct HyStart {
    /// The round is over when this segment is acknowledged.
    until: u64,
    began: f64,
    last_ack: f64,
    samples: u32,
    shortest: f64,
    /// The shortest round trip of the connection.
    path: f64,
}

/// An acknowledgement as it sees it.
#[derive(Clone, Copy)]
pub(crate) struct Seen {
    pub(crate) now: f64,
    pub(crate) rtt: f64,
    pub(crate) acknowledged: u64,
    pub(crate) sent: u64,
    pub(crate) cwnd: f64,
    /// Whether TCP paces: a train is then as long as its sender made it.
    pub(crate) paced: bool,
}

impl HyStart {
    pub(crate) const fn new() -> Self {
        Self { until: 0, began: 0.0, last_ack: 0.0, samples: 0, shortest: f64::INFINITY, path: f64::INFINITY }
    }

    /// Whether slow start ends here.
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
