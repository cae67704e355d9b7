//! The numbers that a run yields, and how they are shown.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A number that a run yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Payload that arrived per second, all flows together, bit/s. Of flows that start or end at different times: from the first
    /// start to the last end.
    GoodputBps,
    /// Payload per second of the flows on the first path, bit/s.
    GoodputPath1Bps,
    /// Payload per second of the flows on the second path, bit/s.
    GoodputPath2Bps,
    /// Payload per second of the flows on the third path, bit/s.
    GoodputPath3Bps,
    /// Most memory that the send queues of the measured flows held together on one host, bytes.
    HeldPeakBytes,
    /// Most memory that the sockets held at their senders plus the most at their receivers, bytes.
    SocketMemoryBytes,
    /// Time of a file's data connection, or of a program, s; mean over several.
    TransferS,
    /// Payload per second, all flows together, from two seconds after the last connection's start until the first one's
    /// end, bit/s. Transfers that are too short for that, or follow one another, have none.
    SettledBps,
    /// Packets dropped in the tight links' queues from three seconds after the start of the data on.
    SettledDrops,
    /// Mean of the sender's smoothed round-trip time, s.
    RttMeanS,
    /// Packets dropped in the tight links' queues, in the data's direction.
    Drops,
    /// Share of the time, after the first second, in which the receiver's window held the sender back.
    ReceiveWindowLimited,
    /// Number of retransmitted segments.
    Retransmits,
    /// Retransmitted segments, as a share of the segments needed.
    RetransmitShare,
    /// Jain's index of fairness over the connections: 1 if all got the same.
    JainIndex,
    /// Time from the first data until the link carried 90% of its rate, s.
    RampUpS,
    /// Standard deviation over mean of each connection's send buffer, from two seconds after the last connection's start until the
    /// first one's end; mean over the connections.
    BufferVariation,
    /// Time from the request for a document to its last byte, mean over the documents, s.
    ResponseS,
    /// Median of the times from request to last byte, s.
    ResponseMedianS,
    /// 95th percentile of these times, s.
    ResponseP95S,
    /// Mean time of a call of the program in the kernel, s.
    CallbackS,
    /// Calls of the program in the kernel.
    Callbacks,
    /// Share of iperf3's connections through which data arrived.
    Served,
    /// Number of connections if all together had the link's full rate within the case's memory, else 0.
    CarriedWithin,
    /// Packets dropped in the tight links' queues from two seconds after the start of the data on.
    LateDrops,
    /// Most memory that the receive queues of the measured flows held together on one host, bytes.
    ReceiveHeldPeakBytes,
    /// Payload that arrived per second of the background flows, bit/s.
    OthersBps,
    /// Jain's index over the connections from ten seconds after the last one's start on.
    SettledJainIndex,
    /// 99th percentile of the documents' times, s.
    ResponseP99S,
    /// Payload for which a sender's buffer has room, over its congestion window: 5th percentile of the samples after
    /// two seconds.
    BufferWindowsP5,
    /// The 95th percentile of the same.
    BufferWindowsP95,
    /// Jain's index over each connection's rate relative to an equal share of its path, from two seconds after the last
    /// one's start on: 1 if connections that share a path get the same and all paths are used alike.
    FairShareIndex,
    /// Mean payload under way after the first second, bytes.
    FlightMeanBytes,
    /// Window that the receiver advertises over the largest payload under way so far: median after the first second.
    WindowPerFlight,
    /// Largest window that the receiver advertised, bytes.
    WindowPeakBytes,
    /// Capacity that probes measured, divided by the path's own at that time: the least over all files.
    CapacityLeast,
    /// The largest of these quotients over all files.
    CapacityMost,
    /// Shortest round trip that probes measured, divided by the path's own at that time: the least over all files.
    ProbedRttLeast,
    /// The largest of these quotients over all files.
    ProbedRttMost,
    /// Largest product of capacity and round trip that probes measured, minus the smallest, bits.
    BdpRangeBits,
    /// Processor time of the sending iperf3, and of the kernel on its behalf, per 10^9 bytes of payload, s.
    SenderCpuPerGigabyteS,
    /// Payload that arrived of all flows on the first path together, as a share of what that path carries in the time when idle.
    GoodputShare,
    /// Mean of the sender's smoothed round-trip time minus that of its idle path at the same moment, s.
    AddedRttS,
    /// Available bandwidth that probes measured, divided by what other traffic leaves: the smaller of both directions.
    AvailableLeast,
    /// The larger of these quotients.
    AvailableMost,
    /// Payload per second of a file's data connection, or of a program, bit/s; mean over several.
    TransferBps,
    /// Standard deviation over mean of the times of several files or programs.
    TransferVariation,
    /// Mean time of the documents of up to 8 KiB, s.
    ResponseSmallS,
    /// Mean time of the larger documents, s.
    ResponseLargeS,
}

/// How a quantity is shown.
pub(crate) struct Shown {
    pub(crate) name: &'static str,
    pub(crate) unit: &'static str,
    /// Factor from the quantity's own unit to the shown one.
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
            Self::TransferBps => ("rate of a transfer", "Mbit/s", 1e-6, 1),
            Self::TransferVariation => ("transfers vary by", "%", 1e2, 1),
            Self::ResponseSmallS => ("response up to 8 KB", "ms", 1e3, 2),
            Self::ResponseLargeS => ("response beyond 8 KB", "ms", 1e3, 2),
        };
        Shown { name, unit, scale, decimals }
    }

    /// Returns the unit of its values: `bit/s`, `B`, `s`, or empty for counts and shares.
    pub(super) fn unit(self) -> &'static str {
        match self.shown().unit {
            "Mbit/s" => "bit/s",
            "MB" | "kB" => "B",
            "s" | "ms" | "ns" => "s",
            _ => "",
        }
    }

    /// Returns `value` as text, in the shown unit but without its name.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        let Shown { scale, decimals, unit, .. } = self.shown();
        let value = value * scale;
        // Rates below 1 Mbit/s need more decimals, and so do whole numbers that are none: the median of 0 and 1 drops, 99.8% of the
        // connections.
        let is_between = decimals == 0 && unit != "ns" && (value - value.round()).abs() > 1e-6;
        let decimals =
            if unit == "Mbit/s" && value < 1.0 { 4 } else { decimals.max(usize::from(is_between)) };
        let text = format!("{value:.decimals$}");
        // An added RTT of next to nothing may be below zero.
        match text.strip_prefix('-') {
            Some(zero) if zero.bytes().all(|byte| matches!(byte, b'0' | b'.')) => zero.to_owned(),
            _ => text,
        }
    }
}

/// Writes name and unit, as the head of a column.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown() {
            Shown { name, unit: "", .. } => f.pad(name),
            Shown { name, unit, .. } => f.pad(&format!("{name}, {unit}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_shown_whole_only_if_it_is() {
        for (quantity, value, wanted) in [
            (Quantity::Drops, 0.5, "0.5"),
            (Quantity::Drops, 2.5, "2.5"),
            (Quantity::Drops, 43.0, "43"),
            (Quantity::Served, 499.0 / 500.0, "99.8"),
            (Quantity::Served, 0.97, "97"),
            (Quantity::Served, 1.0, "100"),
            (Quantity::CallbackS, 312.4e-9, "312"),
            (Quantity::AddedRttS, -0.04e-3, "0.0"),
            (Quantity::AddedRttS, -0.06e-3, "-0.1"),
            (Quantity::GoodputBps, 95_640_000.0, "95.6"),
            (Quantity::GoodputBps, 56_000.0, "0.0560"),
        ] {
            assert_eq!(quantity.show(value), wanted, "{quantity}");
        }
    }
}
