//! Results of the demo, as a table and as JSON.

use std::fmt;

use bufwise_units::Nanos;
use serde::Serialize;
use serde_json::Value;

use super::{DemoPath, Method, Plan};
use crate::pump::LinkSample;
use crate::report::{DirectionReport, TimingError};
use crate::sampler::ConnectionSample;
use crate::testbed::PathReport;

/// Seconds after which drops no longer count as part of the start.
const SETTLED_AFTER: f64 = 2.0;
/// Interval over which the picture averages the throughput, in seconds.
const POINT: f64 = 0.1;
/// Bytes on the wire that count as the start of the data: more than connections and commands take, less than the first
/// flight.
const PRELUDE: u64 = 10_000;

/// The whole demo.
#[derive(Clone, Debug, Serialize)]
pub struct DemoReport {
    /// The paths.
    pub paths: Vec<PathSummary>,
    /// The result of each method on each path.
    pub results: Vec<MethodReport>,
}

/// A path.
#[derive(Clone, Debug, Serialize)]
pub struct PathSummary {
    /// Short name of the path.
    pub name: &'static str,
    /// Description of the path.
    pub about: &'static str,
    /// The most payload it carries, bit/s.
    pub ceiling_bps: f64,
    /// Round-trip time without a queue, ms.
    pub rtt_ms: f64,
}

/// The result of one transfer.
#[derive(Clone, Debug, Serialize)]
pub struct MethodReport {
    /// The path's short name.
    pub path: &'static str,
    /// The method.
    pub method: &'static str,
    /// Whether the emulator kept time, so that the values can be trusted.
    pub valid: bool,
    /// Why not; `None` if valid.
    pub why_invalid: Option<String>,
    /// Payload that arrived, in bytes.
    pub bytes: u64,
    /// Seconds from the start of the data to its end, as the receiver counts.
    pub seconds: f64,
    /// Seconds of that for which the emulated path stood still because the machine was busy.
    pub paused_seconds: f64,
    /// Payload per second, without the time in which the path stood still, bit/s.
    pub goodput_bps: f64,
    /// Packets dropped at the tight link.
    pub drops: u64,
    /// Packets dropped later than two seconds after the start.
    pub drops_after_2s: u64,
    /// Mean of the sender's smoothed round-trip time, ms.
    pub rtt_mean_ms: f64,
    /// 95th percentile of the sender's smoothed round-trip time, ms.
    pub rtt_p95_ms: f64,
    /// Most memory that queued data held, sender and receiver together, bytes.
    pub memory_peak_bytes: u64,
    /// Segments retransmitted.
    pub retransmits: u32,
    /// The tight link.
    pub link: DirectionReport,
    /// The emulator's lateness, in microseconds.
    pub timing_error_us: TimingError,
    /// The transfer over time.
    pub series: Vec<Point>,
}

/// A transfer at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Seconds since the data began.
    pub t: f64,
    /// Rate at which data left the tight link since the previous point, bit/s on the wire.
    pub rate_bps: f64,
    /// The sender's smoothed round-trip time, ms; 0: not measured yet.
    pub rtt_ms: f64,
    /// Bytes in the tight link's queue.
    pub queue_bytes: u64,
}

/// Measurements of a transfer at both ends.
#[derive(Debug)]
pub(super) struct Transfer {
    bytes: f64,
    seconds: f64,
    /// Samples of both hosts, oldest first.
    samples: Vec<ConnectionSample>,
}

impl Transfer {
    /// Reads iperf3's report; `None` if it has no result.
    pub(super) fn read(report: &Value, samples: Vec<ConnectionSample>) -> Option<Self> {
        let received = report.pointer("/end/sum_received")?;
        Some(Self { bytes: received["bytes"].as_f64()?, seconds: received["seconds"].as_f64()?, samples })
    }

    fn on<'a>(&'a self, host: &str) -> impl Iterator<Item = &'a ConnectionSample> {
        self.samples.iter().filter(move |sample| sample.host == host)
    }

    /// Returns the sender's samples of the connection that carries the data, without those of a closing socket, which
    /// show zeros.
    fn data(&self) -> Vec<&ConnectionSample> {
        let largest = self.on("a").max_by_key(|sample| sample.bytes_acked);
        let of_it = |sample: &&ConnectionSample| largest.is_some_and(|data| data.local == sample.local);
        self.on("a").filter(of_it).filter(|sample| sample.srtt_us > 0).collect()
    }
}

impl MethodReport {
    pub(super) fn new(path: &DemoPath, method: Method, transfer: &Transfer, report: &PathReport) -> Self {
        let Transfer { bytes, seconds, .. } = *transfer;
        let data = transfer.data();
        let timeline = &report.link.timeline;
        let began = timeline.iter().take_while(|sample| sample.a_to_b.delivered_bytes < PRELUDE).last();
        let began = began.map_or(0.0, |sample| seconds_of(sample.wall));
        let end = began + seconds;
        let mut rtts: Vec<f64> = data.iter().map(|sample| f64::from(sample.srtt_us) / 1e3).collect();
        rtts.sort_by(f64::total_cmp);
        let at = |t: f64| {
            let before = timeline.iter().take_while(|sample| seconds_of(sample.wall) <= t).last();
            *before.unwrap_or(&report.link.last)
        };
        let drops = report.link.last.a_to_b.drops_queue_packets;
        let paused_at = |t: f64| seconds_of(at(t).wall) - seconds_of(at(t).at);
        let paused_seconds = paused_at(end) - paused_at(began);
        Self {
            path: path.name,
            method: method.name,
            valid: report.invalid.is_none(),
            why_invalid: report.invalid.clone(),
            bytes: bytes as u64,
            seconds,
            paused_seconds,
            goodput_bps: bytes * 8.0 / (seconds - paused_seconds),
            drops,
            drops_after_2s: drops - at(began + SETTLED_AFTER).a_to_b.drops_queue_packets,
            rtt_mean_ms: rtts.iter().sum::<f64>() / rtts.len().max(1) as f64,
            rtt_p95_ms: percentile(&rtts, 0.95),
            memory_peak_bytes: peak(transfer.on("a"), |sample| sample.wmem_queued)
                + peak(transfer.on("b"), |sample| sample.rmem_alloc),
            retransmits: data.iter().map(|sample| sample.retrans).max().unwrap_or(0),
            link: (&at(end).a_to_b).into(),
            timing_error_us: TimingError::of(&report.link),
            series: series(timeline, began, end, &data),
        }
    }
}

fn peak<'a>(
    samples: impl Iterator<Item = &'a ConnectionSample>,
    memory: fn(&ConnectionSample) -> u32,
) -> u64 {
    samples.map(|sample| u64::from(memory(sample))).max().unwrap_or(0)
}

/// Returns the value that a share of the sorted values does not exceed; 0 if there are none.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn seconds_of(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

fn series(timeline: &[LinkSample], began: f64, end: f64, data: &[&ConnectionSample]) -> Vec<Point> {
    let mut points: Vec<Point> = Vec::new();
    let mut last: Option<&LinkSample> = None;
    for sample in timeline {
        let t = seconds_of(sample.wall);
        if t < began || t > end {
            continue;
        }
        let before = *last.get_or_insert(sample);
        let passed = seconds_of(sample.at) - seconds_of(before.at);
        if passed < POINT {
            continue;
        }
        let rtt = data.iter().take_while(|sample| sample.t <= t).last();
        let bytes = sample.a_to_b.delivered_bytes - before.a_to_b.delivered_bytes;
        points.push(Point {
            t: t - began,
            rate_bps: bytes as f64 * 8.0 / passed,
            rtt_ms: rtt.map_or(0.0, |sample| f64::from(sample.srtt_us) / 1e3),
            queue_bytes: sample.a_to_b.queued_bytes,
        });
        last = Some(sample);
    }
    points
}

impl DemoReport {
    pub(super) fn new(plan: &Plan, results: Vec<MethodReport>) -> Self {
        let summary = |path: &DemoPath| PathSummary {
            name: path.name,
            about: path.about,
            ceiling_bps: path.ceiling(),
            rtt_ms: path.spec.rtt.0 as f64 / 1e6,
        };
        Self { paths: plan.paths.iter().map(summary).collect(), results }
    }

    /// Returns the results on one path, in the order in which they were run.
    pub fn on<'a>(&'a self, path: &'a PathSummary) -> impl Iterator<Item = &'a MethodReport> {
        self.results.iter().filter(move |result| result.path == path.name)
    }
}

impl fmt::Display for DemoReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for path in &self.paths {
            writeln!(f, "{}: {}", path.name, path.about)?;
            writeln!(f, "  at most {:.1} Mbit/s of payload", path.ceiling_bps / 1e6)?;
            writeln!(
                f,
                "  {:<20} {:>8}  {:>7} {:>9}  {:>8} {:>7}  {:>8}",
                "", "goodput", "drops", "after 2 s", "mean RTT", "p95", "memory"
            )?;
            for result in self.on(path) {
                writeln!(
                    f,
                    "  {:<20} {:>8.1}  {:>7} {:>9}  {:>8.1} {:>7.1}  {:>8.2}{}",
                    result.method,
                    result.goodput_bps / 1e6,
                    result.drops,
                    result.drops_after_2s,
                    result.rtt_mean_ms,
                    result.rtt_p95_ms,
                    result.memory_peak_bytes as f64 / 1e6,
                    if result.valid { "" } else { "  *" }
                )?;
            }
            writeln!(f)?;
        }
        write!(f, "iperf3, goodput in Mbit/s, RTT in ms, memory (both ends, peak) in MB")?;
        if self.results.iter().any(|result| !result.valid) {
            write!(
                f,
                "\n* the emulator was not given the processor in time: run it again on an idle machine"
            )?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_percentile_is_a_value_that_was_seen() {
        let values: Vec<f64> = (1..=20).map(f64::from).collect();
        assert_eq!(percentile(&values, 0.95), 19.0);
        assert_eq!(percentile(&values[..1], 0.95), 1.0);
        assert_eq!(percentile(&[], 0.95), 0.0);
    }
}
