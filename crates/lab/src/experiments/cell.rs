//! A cell of a grid of paths: its rate, RTT and queue, and the most that TCP can carry there in its time.

use std::fmt;

use bufwise_link::QueueSize;
use bufwise_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};

use crate::spec::{DEFAULT_MTU, PathSpec};
use crate::testbed::goodput_ceiling;

/// Initial window, in segments (RFC 6928).
const INITIAL_WINDOW: f64 = 10.0;
/// Payload of a full segment with timestamps, and its length on the wire, in bytes.
const PAYLOAD: f64 = 1_448.0;
const WIRE: f64 = 1_514.0;

/// A cell of a grid of paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Cell {
    /// Rate of the tight link, bit/s.
    pub rate_bps: u64,
    /// RTT of the idle path, ms.
    pub rtt_ms: u64,
    /// The tight link's queue.
    pub queue: Queue,
    /// How long a flow runs, s.
    pub seconds: u32,
}

/// Size of a cell's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Queue {
    /// A sixteenth of the bandwidth-delay product.
    SixteenthBdp,
    /// An eighth of the bandwidth-delay product.
    EighthBdp,
    /// Half of the bandwidth-delay product.
    HalfBdp,
    /// One bandwidth-delay product.
    Bdp,
    /// Five bandwidth-delay products.
    FiveBdp,
    /// The bytes that the link sends in half a second.
    HalfSecond,
}

impl Queue {
    /// All sizes, in the order of the grid's columns.
    pub const ALL: [Self; 6] =
        [Self::SixteenthBdp, Self::EighthBdp, Self::HalfBdp, Self::Bdp, Self::FiveBdp, Self::HalfSecond];

    fn size(self) -> QueueSize {
        match self {
            Self::SixteenthBdp => QueueSize::Bdp(1.0 / 16.0),
            Self::EighthBdp => QueueSize::Bdp(1.0 / 8.0),
            Self::HalfBdp => QueueSize::Bdp(0.5),
            Self::Bdp => QueueSize::Bdp(1.0),
            Self::FiveBdp => QueueSize::Bdp(5.0),
            Self::HalfSecond => QueueSize::Time(Nanos::from_millis(500)),
        }
    }
}

impl fmt::Display for Queue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::SixteenthBdp => "BDP/16",
            Self::EighthBdp => "BDP/8",
            Self::HalfBdp => "BDP/2",
            Self::Bdp => "BDP",
            Self::FiveBdp => "5 BDP",
            Self::HalfSecond => "500 ms",
        })
    }
}

impl Cell {
    /// Returns the cell's path.
    #[must_use]
    pub fn path(&self) -> PathSpec {
        PathSpec {
            rate: Some(BitRate(self.rate_bps)),
            rtt: Nanos::from_millis(self.rtt_ms),
            queue: Some(self.queue.size()),
            ..PathSpec::default()
        }
    }

    /// Returns the cell's bandwidth-delay product, bytes.
    #[must_use]
    pub fn bdp(&self) -> f64 {
        self.rate_bps as f64 / 8.0 * self.rtt_ms as f64 / 1e3
    }

    /// Whether the cell's queue holds `packets` full packets.
    #[must_use]
    pub fn holds(&self, packets: u32) -> bool {
        let bytes = match self.queue.size() {
            QueueSize::Time(time) => self.rate_bps as f64 / 8.0 * time.0 as f64 / 1e9,
            QueueSize::Bdp(share) => self.bdp() * share,
            QueueSize::Limit(_) => return true,
        };
        bytes >= f64::from(packets) * WIRE
    }

    /// Returns the mean rate of payload, bit/s, if the window doubles every round trip, from ten segments until it
    /// fills the path, and the link is busy from then on.
    #[must_use]
    pub fn ceiling_bps(&self) -> f64 {
        let (end, round_trip) = (f64::from(self.seconds), self.rtt_ms as f64 / 1e3);
        let (mut window, mut time, mut bits) = (INITIAL_WINDOW, 0.0, 0.0);
        while window * WIRE < self.bdp() && time + round_trip <= end {
            bits += window * PAYLOAD * 8.0;
            time += round_trip;
            window *= 2.0;
        }
        bits += goodput_ceiling(BitRate(self.rate_bps), DEFAULT_MTU) * (end - time);
        bits / end.max(1e-3)
    }

    /// Returns rate and RTT, as the head of a row.
    #[must_use]
    pub fn row(&self) -> String {
        let rate = match self.rate_bps {
            rate if rate >= 1_000_000_000 => format!("{} Gbit/s", rate as f64 / 1e9),
            rate => format!("{} Mbit/s", rate as f64 / 1e6),
        };
        format!("{rate} x {} ms", self.rtt_ms)
    }
}

impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}", self.row(), self.queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(mbit: u64, rtt_ms: u64) -> Cell {
        Cell { rate_bps: mbit * 1_000_000, rtt_ms, queue: Queue::Bdp, seconds: 15 }
    }

    #[test]
    fn the_ceiling_is_the_payload_rate_less_slow_start() {
        let share = |cell: Cell| cell.ceiling_bps() / goodput_ceiling(BitRate(cell.rate_bps), DEFAULT_MTU);
        // The initial window is more than the BDP of 6,250 bytes, so it fills the path at once.
        assert_eq!(share(cell(10, 5)), 1.0);
        // A BDP of 500,000 bytes: windows of 10, 20 .. 320 segments, six round trips of 40 ms that carry 630 segments.
        let exact = (630.0 * PAYLOAD * 8.0 / 15.0) / goodput_ceiling(BitRate(100_000_000), DEFAULT_MTU)
            + (15.0 - 0.24) / 15.0;
        assert!((share(cell(100, 40)) - exact).abs() < 1e-9, "{}", share(cell(100, 40)));
        // A BDP of 25 MB: eleven round trips of 200 ms, most of them nearly empty.
        assert!((0.86..0.88).contains(&share(cell(1_000, 200))), "{}", share(cell(1_000, 200)));
    }

    #[test]
    fn a_ceiling_without_the_time_for_slow_start_is_what_slow_start_carries() {
        let short = Cell { seconds: 1, ..cell(1_000, 200) };
        // Five round trips: 10 + 20 + .. + 160 segments.
        assert!((short.ceiling_bps() - 310.0 * PAYLOAD * 8.0).abs() < 1.0);
    }

    #[test]
    fn a_queue_holds_whole_packets() {
        let shallow = |cell: Cell| Cell { queue: Queue::SixteenthBdp, ..cell };
        assert!(!shallow(cell(10, 5)).holds(1) && shallow(cell(10, 40)).holds(2));
        assert!(Cell { queue: Queue::HalfSecond, ..cell(10, 5) }.holds(400));
    }
}
