//! Report of `bufwise lab path`: the JSON is a contract, bytes and seconds are numbers.

use std::fmt;

use bufwise_link::Counters;
use bufwise_units::Nanos;
use serde::{Deserialize, Serialize};

use crate::commands::{CLIENT_OUTPUT_KEPT, Outcome};
use crate::link_time::STALLS_KEPT;
use crate::pump::LinkLog;
use crate::sampler::ConnectionSample;
use crate::testbed::PathReport;

/// The report of one run.
#[derive(Clone, Debug, Serialize)]
pub struct LabReport {
    /// Goodput in bit/s, if the client printed iperf3's JSON.
    pub goodput_bps: Option<f64>,
    /// Why there is no goodput although the client printed JSON; `None`: there is one, or it printed none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why_no_goodput: Option<String>,
    /// Seconds for which the client ran.
    pub seconds: f64,
    /// The client's exit status; 128 + n when signal n killed it.
    pub client_status: i32,
    /// The server's last lines of output, if the client failed.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub server_output: String,
    /// Whether the emulator kept time, so that the run can be trusted.
    pub valid: bool,
    /// Why the run must not be trusted; `None` if valid.
    pub why_invalid: Option<String>,
    /// The tight link, both directions.
    pub link: LinkReport,
    /// How late packets left the emulator, without pauses.
    pub timing_error_us: TimingError,
    /// Milliseconds for which the path stood still because the emulator did not get the processor.
    pub paused_ms: f64,
    /// Times in which the emulator did not get the processor: the longest [`STALLS_KEPT`].
    pub stalls: Vec<Stall>,
    /// The connections of both hosts over time, at the interval that was requested; it doubles each time that a host has a million
    /// samples, of which every second one is then dropped.
    pub samples: Vec<ConnectionSample>,
    /// The tight link over time, at the distances of [`LinkLog::timeline`].
    pub link_samples: Vec<LinkPoint>,
}

/// Both directions of the tight link.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LinkReport {
    /// From host A to host B.
    pub a_to_b: DirectionReport,
    /// From host B to host A.
    pub b_to_a: DirectionReport,
}

/// One direction of the tight link. Sizes are bytes on the wire.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DirectionReport {
    /// Packets that arrived at the link.
    pub offered_packets: u64,
    /// Packets that left it.
    pub packets: u64,
    /// Bytes that left it.
    pub bytes: u64,
    /// Packets dropped because the queue was full.
    pub drops: u64,
    /// Packets lost at random.
    pub drops_random: u64,
    /// Packets that waited longer than the threshold for ECN marks; those whose senders support ECN are marked.
    #[serde(default)]
    pub marked: u64,
    /// Packets that wait in it at the end.
    #[serde(default)]
    pub queued_packets: u64,
    /// Mean of the queue, bytes; this and the next three are of the time from the making of the path to its end, and count emulated
    /// cross traffic, too.
    pub queue_mean_bytes: u64,
    /// Maximum of the queue, bytes.
    pub queue_max_bytes: u64,
    /// 95th percentile of the queue over time, bytes.
    pub queue_p95_bytes: u64,
    /// Share of the possible bytes that the link sent, `0.0..=1.0`.
    pub utilisation: f64,
}

/// Percentiles of the emulator's lateness, in microseconds.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct TimingError {
    /// Median.
    pub p50: u64,
    /// 99th percentile.
    pub p99: u64,
    /// Maximum.
    pub max: u64,
}

/// One stall of the emulator.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Stall {
    /// End of the stall, seconds since the start.
    pub at: f64,
    /// Duration of the stall, milliseconds.
    pub ms: f64,
}

/// The tight link at one moment; counters since the start.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct LinkPoint {
    /// Seconds since the start.
    pub t: f64,
    /// From host A to host B.
    pub a_to_b: DirectionPoint,
    /// From host B to host A.
    pub b_to_a: DirectionPoint,
}

/// One direction of the tight link at one moment.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct DirectionPoint {
    /// Bytes that left the link so far.
    pub bytes: u64,
    /// Packets dropped so far because the queue was full.
    pub drops: u64,
    /// Bytes in the queue now, without emulated cross traffic.
    pub queue_bytes: u64,
}

impl LabReport {
    /// Combines what the path, the programs and the samplers measured.
    #[must_use]
    pub fn new(path: PathReport, outcome: &Outcome, samples: Vec<ConnectionSample>) -> Self {
        let PathReport { link, stalls, paused, invalid } = path;
        let goodput_bps = iperf3_goodput(&outcome.stdout);
        Self {
            goodput_bps,
            why_no_goodput: if goodput_bps.is_none() { too_long(outcome) } else { None },
            seconds: outcome.seconds,
            client_status: outcome.status,
            server_output: outcome.server_output.clone(),
            valid: invalid.is_none(),
            why_invalid: invalid,
            link: LinkReport::of(&link),
            timing_error_us: TimingError::of(&link),
            paused_ms: seconds(paused) * 1e3,
            stalls: stalls
                .iter()
                .map(|stall| Stall { at: seconds(stall.at), ms: seconds(stall.lasted) * 1e3 })
                .collect(),
            samples,
            link_samples: LinkPoint::of(&link),
        }
    }
}

impl LinkReport {
    /// Returns the link at the end of a run.
    #[must_use]
    pub fn of(log: &LinkLog) -> Self {
        Self { a_to_b: (&log.last.a_to_b).into(), b_to_a: (&log.last.b_to_a).into() }
    }
}

impl LinkPoint {
    /// Returns the link over time, on the clock of the samples and the stalls.
    #[must_use]
    pub fn of(log: &LinkLog) -> Vec<Self> {
        let point = |counters: &Counters| DirectionPoint {
            bytes: counters.delivered_bytes,
            drops: counters.drops_queue_packets,
            queue_bytes: counters.queued_bytes,
        };
        let points = log.timeline.iter();
        points
            .map(|s| Self { t: seconds(s.wall), a_to_b: point(&s.a_to_b), b_to_a: point(&s.b_to_a) })
            .collect()
    }
}

impl From<&Counters> for DirectionReport {
    fn from(counters: &Counters) -> Self {
        Self {
            offered_packets: counters.offered_packets,
            packets: counters.delivered_packets,
            bytes: counters.delivered_bytes,
            drops: counters.drops_queue_packets,
            drops_random: counters.drops_random_packets,
            marked: counters.marked_packets,
            queued_packets: counters.queued_packets,
            queue_mean_bytes: counters.queue_mean_bytes,
            queue_max_bytes: counters.queue_max_bytes,
            queue_p95_bytes: counters.queue_p95_bytes,
            utilisation: counters.utilisation,
        }
    }
}

impl TimingError {
    /// Returns the lateness of all packets of a run; zeros if there were none.
    #[must_use]
    pub fn of(log: &LinkLog) -> Self {
        let late = &log.lateness_us;
        Self { p50: late.value_at_quantile(0.5), p99: late.value_at_quantile(0.99), max: late.max() }
    }
}

fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

/// Returns the receiver's rate in iperf3's JSON, in bit/s; `None` if `output` is something else.
fn iperf3_goodput(output: &[u8]) -> Option<f64> {
    let parsed: serde_json::Value = serde_json::from_slice(output).ok()?;
    let end = parsed.get("end")?;
    // iperf3's UDP tests have only `sum`.
    let sum = end.get("sum_received").or_else(|| end.get("sum"))?;
    sum.get("bits_per_second")?.as_f64()
}

/// Returns a message if the client printed more JSON than is kept.
fn too_long(outcome: &Outcome) -> Option<String> {
    let is_json = outcome.stdout.trim_ascii_start().starts_with(b"{");
    let most = CLIENT_OUTPUT_KEPT >> 20;
    let what = || format!("the client printed more than {most} MiB of JSON; let it report less often (-i)");
    (is_json && outcome.is_cut()).then(what)
}

impl fmt::Display for LabReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(goodput) = self.goodput_bps {
            writeln!(f, "goodput      {:.1} Mbit/s", goodput / 1e6)?;
        }
        if let Some(why) = &self.why_no_goodput {
            writeln!(f, "goodput      unknown: {why}")?;
        }
        writeln!(f, "client       {:.1} s, status {}", self.seconds, self.client_status)?;
        self.server_output.lines().try_for_each(|line| writeln!(f, "server       {line}"))?;
        for (name, way) in [("a to b", &self.link.a_to_b), ("b to a", &self.link.b_to_a)] {
            let marked = if way.marked > 0 { format!("{} marked, ", way.marked) } else { String::new() };
            writeln!(
                f,
                "link {name}  {} packets, {:.1} MB, {} dropped, {} lost at random, {marked}queue mean {} B, p95 {} B, max {} B, {:.1}% used",
                way.packets,
                way.bytes as f64 / 1e6,
                way.drops,
                way.drops_random,
                way.queue_mean_bytes,
                way.queue_p95_bytes,
                way.queue_max_bytes,
                way.utilisation * 100.0
            )?;
        }
        let late = self.timing_error_us;
        let least = if self.stalls.len() < STALLS_KEPT { "" } else { "at least " };
        write!(
            f,
            "emulator     late by p50 {} us, p99 {} us, max {} us; paused for {:.1} ms in all; {least}{} stalls of 1 ms or more",
            late.p50,
            late.p99,
            late.max,
            self.paused_ms,
            self.stalls.len()
        )?;
        match &self.why_invalid {
            None => write!(f, "; the run is valid"),
            Some(why) => write!(f, "\nINVALID      {why}; run it again on an idle machine"),
        }
    }
}

#[cfg(test)]
mod tests {
    use hdrhistogram::Histogram;

    use super::*;
    use crate::link_time::StallAt;
    use crate::pump::LinkSample;

    fn log() -> LinkLog {
        let counters = Counters::default();
        let (at, wall) = (Nanos(2_000_000_000), Nanos(2_500_000_000));
        let last = LinkSample { at, wall, a_to_b: counters, b_to_a: counters };
        let lateness_us = Histogram::new(2).unwrap();
        LinkLog { last, timeline: vec![last], lateness_us, data_at: None, refused: 0, unknown: 0 }
    }

    #[test]
    fn the_link_is_shown_on_the_wall_clock() {
        assert_eq!(LinkPoint::of(&log())[0].t, 2.5);
    }

    #[test]
    fn stalls_beyond_those_that_are_kept_are_told() {
        let text = |stalls: usize| {
            let stall = StallAt { at: Nanos(1), lasted: Nanos(1_000_000) };
            let path =
                PathReport { link: log(), stalls: vec![stall; stalls], paused: Nanos(0), invalid: None };
            let outcome =
                Outcome { status: 0, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
            LabReport::new(path, &outcome, Vec::new()).to_string()
        };
        assert!(text(STALLS_KEPT - 1).contains(" in all; 999 stalls of 1 ms or more;"));
        assert!(text(STALLS_KEPT).contains(" in all; at least 1000 stalls of 1 ms or more;"));
    }

    #[test]
    fn json_that_is_too_long_is_told() {
        let report = |begin: &[u8], length: usize| {
            let mut stdout = begin.to_vec();
            stdout.resize(length, b' ');
            let path = PathReport { link: log(), stalls: Vec::new(), paused: Nanos(0), invalid: None };
            let outcome = Outcome { status: 0, seconds: 1.0, stdout, server_output: String::new() };
            LabReport::new(path, &outcome, Vec::new())
        };
        let begin = b"{\"start\":[";
        let long = report(begin, CLIENT_OUTPUT_KEPT + 1);
        assert_eq!(long.goodput_bps, None);
        assert!(long.to_string().starts_with("goodput      unknown: the client printed more than 64 MiB"));
        assert!(long.why_no_goodput.is_some());
        assert_eq!(report(begin, CLIENT_OUTPUT_KEPT).why_no_goodput, None, "JSON of something else");
        assert_eq!(report(b"a file", CLIENT_OUTPUT_KEPT + 1).why_no_goodput, None, "other output");
    }

    #[test]
    fn goodput_is_what_iperf3s_receiver_counted() {
        let tcp = br#"{"end":{"sum_sent":{"bits_per_second":10.0},"sum_received":{"bits_per_second":9.5}}}"#;
        assert_eq!(iperf3_goodput(tcp), Some(9.5));
        let udp = br#"{"end":{"sum":{"bits_per_second":7.0}}}"#;
        assert_eq!(iperf3_goodput(udp), Some(7.0));
    }

    #[test]
    fn other_output_has_no_goodput() {
        for other in [&b""[..], b"[  5] 0.00-10.00 sec", b"{}", br#"{"end":{"sum_received":{}}}"#, b"[1]"] {
            assert_eq!(iperf3_goodput(other), None);
        }
    }
}
