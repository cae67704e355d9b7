//! Results of the demo, as a table for people and as JSON.

use std::fmt;

use bufwise_mover::{Received, Step};
use bufwise_units::{Bytes, Nanos, Rate};
use serde::Serialize;

use super::transfer::Seen;
use super::{DemoPath, Method, Plan};
use crate::pump::LinkSample;
use crate::report::{DirectionReport, TimingError};
use crate::sampler::ConnectionSample;
use crate::testbed::PathReport;

/// Drops after this much of a transfer are no longer those of finding the rate.
const SETTLED_AFTER: f64 = 2.0;
/// Interval over which the picture averages the throughput.
const POINT: f64 = 0.1;

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
    /// Short name.
    pub name: &'static str,
    /// Description.
    pub about: &'static str,
    /// The most payload it carries, bit/s.
    pub ceiling_bps: f64,
    /// Round-trip time without a queue.
    pub rtt_ms: f64,
}

/// One transfer.
#[derive(Clone, Debug, Serialize)]
pub struct MethodReport {
    /// The path's short name.
    pub path: &'static str,
    /// The method.
    pub method: String,
    /// Whether the emulator kept time, so that the figures can be trusted.
    pub valid: bool,
    /// Why not.
    pub why_invalid: Option<String>,
    /// Payload that arrived.
    pub bytes: u64,
    /// From the connection to the last byte.
    pub seconds: f64,
    /// For how long of that the emulated path stood still, because the machine was busy elsewhere.
    pub paused_seconds: f64,
    /// Payload per second of the time in which the path did not stand still, bit/s.
    pub goodput_bps: f64,
    /// Packets dropped at the tight link.
    pub drops: u64,
    /// Those dropped later than two seconds after the start.
    pub drops_after_2s: u64,
    /// Mean of the sender's smoothed round-trip time.
    pub rtt_mean_ms: f64,
    /// Its 95th percentile.
    pub rtt_p95_ms: f64,
    /// Most memory that queued data held, sender and receiver together.
    pub memory_peak_bytes: u64,
    /// Segments retransmitted.
    pub retransmits: u32,
    /// The tight link.
    pub link: DirectionReport,
    /// The emulator's lateness.
    pub timing_error_us: TimingError,
    /// The transfer over time.
    pub series: Vec<Point>,
    /// SOBAS's measurements and decisions over time; empty for methods without it.
    pub decisions: Vec<DecisionPoint>,
}

/// SOBAS's measurements and decisions at one moment.
#[derive(Clone, Debug, Serialize)]
pub struct DecisionPoint {
    /// Seconds since the data began; before it, negative.
    pub t: f64,
    /// Its state (Prasad 2004, figure 8).
    pub state: String,
    /// `R`: what arrived since the point before, bit/s.
    pub rate_bps: f64,
    /// `T`: the probes' round-trip time.
    pub rtt_ms: f64,
    /// Lost among the last 100 probes.
    pub probes_lost: u32,
    /// `S`: limit of the window; `None`: none.
    pub window_bytes: Option<u64>,
    /// The rate wished of the sender, bit/s; `None`: none.
    pub pacing_bps: Option<f64>,
}

fn decisions(received: &Received) -> Vec<DecisionPoint> {
    let point = |step: &Step| {
        Some(DecisionPoint {
            t: step.at.as_secs_f64() - received.began.as_secs_f64(),
            state: format!("{:?}", step.state?),
            rate_bps: step.rate.bits_per_sec() as f64,
            rtt_ms: step.rtt.as_secs_f64() * 1e3,
            probes_lost: step.lost,
            window_bytes: (step.window < Bytes::MAX).then_some(step.window.0),
            pacing_bps: (step.pacing < Rate::MAX).then(|| step.pacing.bits_per_sec() as f64),
        })
    };
    received.timeline.iter().filter_map(point).collect()
}

/// A transfer at one moment.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Point {
    /// Seconds since the data began.
    pub t: f64,
    /// Rate at which data left the tight link since the point before, bit/s on the wire.
    pub rate_bps: f64,
    /// The sender's smoothed round-trip time; 0: not measured yet.
    pub rtt_ms: f64,
    /// The tight link's queue.
    pub queue_bytes: u64,
}

impl MethodReport {
    pub(super) fn new(path: &DemoPath, method: Method, seen: &Seen, report: &PathReport) -> Self {
        let Seen { received, began, samples: [on_a, on_b] } = seen;
        let seconds = received.report.elapsed.as_secs_f64();
        let end = began + seconds;
        let during: Vec<&ConnectionSample> =
            on_a.iter().filter(|sample| (*began..end).contains(&sample.t)).collect();
        let mut rtts: Vec<f64> = during.iter().map(|sample| f64::from(sample.srtt_us) / 1e3).collect();
        rtts.retain(|rtt| *rtt > 0.0);
        rtts.sort_by(f64::total_cmp);
        let at = |t: f64| {
            let before = report.link.timeline.iter().take_while(|sample| seconds_of(sample.wall) <= t).last();
            *before.unwrap_or(&report.link.last)
        };
        let drops_at = |t: f64| at(t).a_to_b.drops_queue_packets;
        let paused_at = |t: f64| seconds_of(at(t).wall) - seconds_of(at(t).at);
        let paused_seconds = paused_at(end) - paused_at(*began);
        Self {
            path: path.name,
            method: method.to_string(),
            valid: report.invalid.is_none(),
            why_invalid: report.invalid.clone(),
            bytes: received.report.bytes,
            seconds,
            paused_seconds,
            goodput_bps: received.report.bytes as f64 * 8.0 / (seconds - paused_seconds),
            drops: drops_at(end) - drops_at(*began),
            drops_after_2s: drops_at(end) - drops_at((began + SETTLED_AFTER).min(end)),
            rtt_mean_ms: rtts.iter().sum::<f64>() / rtts.len().max(1) as f64,
            rtt_p95_ms: percentile(&rtts, 0.95),
            memory_peak_bytes: peak(on_a, |sample| sample.wmem_queued)
                + peak(on_b, |sample| sample.rmem_alloc),
            retransmits: during.iter().map(|sample| sample.retrans).max().unwrap_or(0),
            link: (&at(end).a_to_b).into(),
            timing_error_us: TimingError::of(&report.link),
            series: series(&report.link.timeline, *began, end, &during),
            decisions: decisions(received),
        }
    }
}

fn peak(samples: &[ConnectionSample], memory: impl Fn(&ConnectionSample) -> u32) -> u64 {
    samples.iter().map(|sample| u64::from(memory(sample))).max().unwrap_or(0)
}

/// The value that a share of the sorted values does not exceed; 0 of none.
fn percentile(sorted: &[f64], share: f64) -> f64 {
    let index = (sorted.len() as f64 * share).ceil() as usize;
    sorted.get(index.saturating_sub(1)).copied().unwrap_or(0.0)
}

fn seconds_of(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

fn series(timeline: &[LinkSample], began: f64, end: f64, during: &[&ConnectionSample]) -> Vec<Point> {
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
        let rtt = during.iter().take_while(|sample| sample.t <= t).last();
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

    /// The results on one path, in the order they were run.
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
        write!(
            f,
            "goodput in Mbit/s, RTT in ms, memory (both ends, peak) in MB; everything arrived unchanged"
        )?;
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
