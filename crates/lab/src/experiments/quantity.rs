//! The numbers that a run yields, and how people see them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that a run yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Payload that arrived per second, all flows together, bit/s.
    GoodputBps,
    /// The same of the flows on the first path.
    GoodputPath1Bps,
    /// The same of the flows on the second path.
    GoodputPath2Bps,
    /// The same of the flows on the third path.
    GoodputPath3Bps,
    /// Most memory that the send queues held together, bytes.
    HeldPeakBytes,
    /// Most memory that the sockets held at their senders, and most at their receivers, together, bytes.
    SocketMemoryBytes,
    /// Time that a file took, of its data connection, or a program, s.
    TransferS,
    /// Payload per second from two seconds after the data's begin on, bit/s.
    SettledBps,
    /// Packets dropped in the tight links' queues from three seconds after the data's begin on.
    SettledDrops,
    /// Mean of the sender's smoothed round-trip time, s.
    RttMeanS,
    /// Packets dropped in the tight links' queues, in the data's direction.
    Drops,
    /// Share of the time, after the first second, in which the receiver's window held the sender back.
    ReceiveWindowLimited,
    /// Segments sent again.
    Retransmits,
    /// Segments sent again, as a share of those that were needed.
    RetransmitShare,
    /// Jain's index of fairness over the connections: 1 when all got the same.
    JainIndex,
    /// From the first data until the link carried 90% of its rate, s.
    RampUpS,
    /// Standard deviation over mean of each connection's send buffer over time, mean over the connections.
    BufferVariation,
    /// From the request for a document to its last byte, mean over the documents, s.
    ResponseS,
    /// The median of those times, s.
    ResponseMedianS,
    /// The time that 95 of 100 documents kept to, s.
    ResponseP95S,
    /// Mean time of a call of the program in the kernel, s.
    CallbackS,
    /// Calls of the program in the kernel.
    Callbacks,
    /// Share of the connections through which data arrived.
    Served,
    /// Connections of the case if all together had the link's full rate within the case's memory, else none.
    CarriedWithin,
    /// Packets dropped in the tight links' queues from two seconds after the data's begin on.
    LateDrops,
    /// Most memory that the receive queues held together, bytes.
    ReceiveHeldPeakBytes,
    /// Payload that arrived per second of the flows that are in the way, bit/s.
    OthersBps,
    /// Jain's index over the connections from ten seconds after the last one's begin on.
    SettledJainIndex,
    /// The time that 99 of 100 documents kept to, s.
    ResponseP99S,
    /// Payload for which a sender's buffer has room, over its congestion window, at any moment: the value that all but 5%
    /// of the samples exceed, after two seconds.
    BufferWindowsP5,
    /// The same: the value that 95% of the samples keep to.
    BufferWindowsP95,
    /// Jain's index over what each connection has of an equal share of its path, from two seconds after the last one's
    /// begin on: 1 where connections that share a path get the same, and all paths are used alike.
    FairShareIndex,
    /// Payload under way, mean, after the first second, bytes.
    FlightMeanBytes,
    /// Window that the receiver offers over the most that was under way so far: median, after the first second.
    WindowPerFlight,
    /// Widest window that the receiver offered, bytes.
    WindowPeakBytes,
    /// Capacity that probes found over the path's own at that time: the least of all files'.
    CapacityLeast,
    /// The same: the most.
    CapacityMost,
    /// Shortest round trip that probes found over the path's own at that time: the least of all files'.
    ProbedRttLeast,
    /// The same: the most.
    ProbedRttMost,
    /// The largest product of capacity and round trip that probes found less the smallest, bits.
    BdpRangeBits,
    /// Processor time of the sending iperf3, and of the kernel in its name, for 10^9 bytes of payload, s.
    SenderCpuPerGigabyteS,
    /// Payload that arrived, all flows together, as a share of what the idle path carries in that time.
    GoodputShare,
    /// Mean of the sender's smoothed round-trip time less that of the idle path at that moment, s.
    AddedRttS,
    /// Available bandwidth that probes found over what others leave of the path: the least of the two ways.
    AvailableLeast,
    /// The same: the most.
    AvailableMost,
}

/// How a quantity is shown to people.
pub(crate) struct Shown {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Shown number for one of the quantity's own unit.
    pub(crate) scale: f64,
    pub(crate) decimals: usize,
}

impl Quantity {
    pub(crate) fn shown(self) -> Shown {
        let (name, unit, scale, decimals) = match self {
            Self::GoodputBps => ("goodput", "Mbit/s", 1e-6, 1),
            Self::GoodputPath1Bps => ("path 1", "Mbit/s", 1e-6, 1),
            Self::GoodputPath2Bps => ("path 2", "Mbit/s", 1e-6, 1),
            Self::GoodputPath3Bps => ("path 3", "Mbit/s", 1e-6, 1),
            Self::HeldPeakBytes => ("held at most", "MB", 1e-6, 2),
            Self::SocketMemoryBytes => ("socket memory, both ends", "MB", 1e-6, 2),
            Self::TransferS => ("transfer", "s", 1.0, 2),
            Self::SettledBps => ("goodput after 2 s", "Mbit/s", 1e-6, 1),
            Self::SettledDrops => ("drops after 3 s", "packets", 1.0, 0),
            Self::RttMeanS => ("mean RTT", "ms", 1e3, 1),
            Self::Drops => ("drops", "packets", 1.0, 0),
            Self::ReceiveWindowLimited => ("receive window", "% of time", 1e2, 1),
            Self::Retransmits => ("sent again", "segments", 1.0, 0),
            Self::RetransmitShare => ("sent again", "%", 1e2, 2),
            Self::JainIndex => ("Jain index", "", 1.0, 3),
            Self::RampUpS => ("ramp-up", "s", 1.0, 2),
            Self::BufferVariation => ("buffer varies by", "%", 1e2, 1),
            Self::ResponseS => ("response", "ms", 1e3, 1),
            Self::ResponseMedianS => ("response, median", "ms", 1e3, 1),
            Self::ResponseP95S => ("response, p95", "ms", 1e3, 1),
            Self::CallbackS => ("callback", "ns", 1e9, 0),
            Self::Callbacks => ("callbacks", "", 1.0, 0),
            Self::Served => ("connections served", "%", 1e2, 0),
            Self::CarriedWithin => ("full rate within the memory", "connections", 1.0, 0),
            Self::LateDrops => ("drops after 2 s", "packets", 1.0, 0),
            Self::ReceiveHeldPeakBytes => ("held to be read at most", "MB", 1e-6, 2),
            Self::OthersBps => ("the others' goodput", "Mbit/s", 1e-6, 1),
            Self::SettledJainIndex => ("Jain index after 10 s", "", 1.0, 3),
            Self::ResponseP99S => ("response, p99", "ms", 1e3, 1),
            Self::BufferWindowsP5 => ("buffer over cwnd, p5", "", 1.0, 2),
            Self::BufferWindowsP95 => ("buffer over cwnd, p95", "", 1.0, 2),
            Self::FairShareIndex => ("Jain index of shares", "", 1.0, 3),
            Self::FlightMeanBytes => ("mean flight", "kB", 1e-3, 1),
            Self::WindowPerFlight => ("window over largest flight", "", 1.0, 2),
            Self::WindowPeakBytes => ("widest window", "kB", 1e-3, 1),
            Self::CapacityLeast => ("capacity found, least", "% of the path's", 1e2, 1),
            Self::CapacityMost => ("capacity found, most", "% of the path's", 1e2, 1),
            Self::ProbedRttLeast => ("RTT found, least", "% of the path's", 1e2, 1),
            Self::ProbedRttMost => ("RTT found, most", "% of the path's", 1e2, 1),
            Self::BdpRangeBits => ("range of the BDP", "Mbit", 1e-6, 1),
            Self::SenderCpuPerGigabyteS => ("the sender's processor time", "s/GB", 1.0, 3),
            Self::GoodputShare => ("goodput", "% of the path's", 1e2, 1),
            Self::AddedRttS => ("added RTT", "ms", 1e3, 1),
            Self::AvailableLeast => ("available found, least", "% of the path's", 1e2, 1),
            Self::AvailableMost => ("available found, most", "% of the path's", 1e2, 1),
        };
        Shown { name, unit, scale, decimals }
    }

    /// The unit of its values: `bit/s`, `B`, `s`, or none where they are counts and shares.
    pub(super) fn unit(self) -> &'static str {
        match self.shown().unit {
            "Mbit/s" => "bit/s",
            "MB" | "kB" => "B",
            "s" | "ms" | "ns" => "s",
            _ => "",
        }
    }

    /// `value` for people, without the unit.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        let Shown { scale, decimals, unit, .. } = self.shown();
        let value = value * scale;
        // A slow line has its digits behind the point.
        let decimals = if unit == "Mbit/s" && value < 1.0 { 4 } else { decimals };
        format!("{value:.decimals$}")
    }
}

/// Name and unit, as a column's head.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown() {
            Shown { name, unit: "", .. } => f.pad(name),
            Shown { name, unit, .. } => f.pad(&format!("{name}, {unit}")),
        }
    }
}
