//! Figures of a run, and the table of a scenario in coarse whole numbers.

use std::fmt::Write as _;

use bufwise_units::Micros;

/// Size of a document whose time is taken (bytes).
pub(crate) const DOCUMENT: u64 = 1 << 20;

/// Figures of one run. Drops are those of the tight link's queue, including probes and trains.
#[derive(Clone)]
pub(crate) struct Outcome {
    pub(crate) goodput_bps: u64,
    pub(crate) drops: u64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    pub(crate) mean_rtt: Micros,
    /// Most payload that the sender kept unacknowledged.
    pub(crate) peak_flight: u64,
    /// Most payload that the receiver kept unread or out of order.
    pub(crate) peak_held: u64,
    pub(crate) points: Vec<Point>,
    /// Time at which [`DOCUMENT`] had arrived, seconds after the data began; infinite if it had not.
    pub(crate) document: f64,
    /// Room that the engine at the receiver remembers on the peer's path afterwards: how often a ramp's steps are doubled.
    pub(crate) room: u32,
}

/// One moment of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Point {
    pub(crate) seconds: f64,
    pub(crate) bits_per_sec: f64,
    pub(crate) rtt_ms: f64,
    pub(crate) queue_bytes: u64,
    /// Bytes that the sender may have in flight: the smallest of cwnd, the peer's window and the send buffer.
    pub(crate) window_bytes: u64,
}

impl Outcome {
    pub(crate) fn mbit(&self) -> f64 {
        self.goodput_bps as f64 / 1e6
    }

    /// Mean goodput (Mbit/s) from `seconds` after the data began.
    pub(crate) fn mbit_after(&self, seconds: f64) -> f64 {
        let late: Vec<f64> =
            self.points.iter().filter(|p| p.seconds > seconds).map(|p| p.bits_per_sec / 1e6).collect();
        late.iter().sum::<f64>() / late.len() as f64
    }

    pub(crate) fn rtt_ms(&self) -> f64 {
        self.mean_rtt.as_secs_f64() * 1e3
    }
}

/// Rounds to two significant digits: a few packets more or less do not change the behaviour.
fn coarse(value: u64) -> u64 {
    let digits = value.checked_ilog10().unwrap_or(0).saturating_sub(1);
    let unit = 10_u64.pow(digits);
    (value + unit / 2) / unit * unit
}

/// Returns the table, with a line per run. The last argument is the unit of goodput, in bit/s, and its name.
pub(crate) fn table(rows: &[(String, Outcome)], (unit, name): (u64, &str)) -> String {
    let mut text = format!(
        "{:<32}{name:>8}{:>8}{:>10}{:>10}{:>8}{:>12}{:>14}\n",
        "policy, cwnd rule", "drops", "retrans", "timeouts", "rtt ms", "sender KiB", "receiver KiB"
    );
    for (label, run) in rows {
        let _ = writeln!(
            text,
            "{label:<32}{:>8}{:>8}{:>10}{:>10}{:>8.0}{:>12}{:>14}",
            (run.goodput_bps + unit / 2) / unit,
            coarse(run.drops),
            coarse(run.retransmissions),
            run.timeouts,
            run.rtt_ms(),
            coarse(run.peak_flight >> 10),
            coarse(run.peak_held >> 10),
        );
    }
    text
}
