//! Results as sentences and as JSON.

use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context, Result};
use bufwise_mover::probe::Estimate;
use bufwise_units::{Micros, counted};
use chrono::Local;
use serde::Serialize;

use super::buffers::{self, Maximum};
use crate::figures::{rate, size, time};
use crate::output;

/// Quartiles further apart than this share of the median are written as a range.
const WIDE: f64 = 0.05;
/// Remark on a port that is not bufwise's.
const UNKNOWN: &str = "Loss, available bandwidth and the way there cannot be known without `bufwise probe --serve` at that end.";

/// How the values were measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Method {
    /// By trains and echoes, with a server of bufwise.
    #[default]
    Bufwise,
    /// By connections to a TCP port.
    Port,
}

/// A rate, with the range that contains half of the trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Figure {
    pub(super) middle_bps: u64,
    pub(super) low_bps: u64,
    pub(super) high_bps: u64,
}

impl From<Estimate> for Figure {
    fn from(estimate: Estimate) -> Self {
        Self { middle_bps: estimate.middle.0, low_bps: estimate.low.0, high_bps: estimate.high.0 }
    }
}

impl Figure {
    /// Returns the median of a few rates, with all of them as the range.
    pub(super) fn spanning(mut rates: Vec<u64>) -> Option<Self> {
        rates.sort_unstable();
        let (low, high) = (*rates.first()?, *rates.last()?);
        Some(Self { middle_bps: rates[rates.len() / 2], low_bps: low, high_bps: high })
    }

    /// Returns one number, or a range if the trains disagree.
    fn in_words(&self) -> String {
        if (self.high_bps - self.low_bps) as f64 > self.middle_bps as f64 * WIDE {
            format!("{} to {}", rate(self.low_bps), rate(self.high_bps))
        } else {
            rate(self.middle_bps)
        }
    }
}

/// One direction of the path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub(super) struct Direction {
    pub(super) capacity: Option<Figure>,
    /// `None`: not measured, or no train exceeded it.
    pub(super) available: Option<Figure>,
    /// Rate of the fastest train that met no queue, bit/s.
    pub(super) carried_bps: Option<u64>,
    pub(super) bdp_bytes: Option<u64>,
    /// This host's part: its receive buffers for incoming data, its send buffers for outgoing data.
    pub(super) buffers: Option<Maximum>,
}

impl Direction {
    /// Returns the first quantity that the trains did not show; `None` if they showed all.
    fn unknown(&self) -> Option<&'static str> {
        match (self.capacity, self.available, self.carried_bps) {
            (None, ..) => Some("capacity"),
            (_, None, None) => Some("available bandwidth"),
            _ => None,
        }
    }
}

/// Round-trip times.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct RoundTrip {
    pub(super) least_s: f64,
    mean_s: f64,
    /// Mean difference between successive round trips, seconds.
    jitter_s: f64,
    samples: usize,
}

impl RoundTrip {
    /// Returns the statistics of the times; `None` without any.
    pub(super) fn of(times: &[Micros]) -> Option<Self> {
        let least_s = times.iter().min()?.as_secs_f64();
        let mean_s = times.iter().map(|time| time.as_secs_f64()).sum::<f64>() / times.len() as f64;
        let steps = times.windows(2).map(|pair| pair[0].0.abs_diff(pair[1].0) as f64 / 1e6);
        let jitter_s = steps.sum::<f64>() / (times.len().max(2) - 1) as f64;
        Some(Self { least_s, mean_s, jitter_s, samples: times.len() })
    }
}

/// Losses of echoes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Loss {
    pub(super) probes: u64,
    /// Lost between the first and the last answer, on the way there.
    pub(super) lost_there: u64,
    /// Lost between the first and the last answer, on the way here.
    pub(super) lost_here: u64,
    /// Lost before the first answer or after the last one: on which way is not known.
    pub(super) lost_unknown: u64,
}

/// One measurement.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Report {
    pub(super) target: String,
    pub(super) method: Method,
    pub(super) seconds: f64,
    pub(super) round_trip: Option<RoundTrip>,
    pub(super) loss: Option<Loss>,
    /// Connections to a port whose first packet was retransmitted.
    pub(super) repeated_connects: Option<u64>,
    /// The direction towards this host.
    pub(super) here: Direction,
    /// The direction away from this host.
    pub(super) there: Direction,
    /// Bytes of IP packets over UDP; `None`: only TCP connections were used.
    pub(super) sent_bytes: Option<u64>,
    pub(super) received_bytes: Option<u64>,
    pub(super) remarks: Vec<String>,
}

impl Report {
    /// Computes what follows from the values.
    pub(super) fn advise(&mut self) {
        let Some(round_trip) = self.round_trip else { return };
        let ways = [(&mut self.here, "net.ipv4.tcp_rmem"), (&mut self.there, "net.ipv4.tcp_wmem")];
        for (way, setting) in ways {
            way.bdp_bytes = way.capacity.map(|carries| product(carries.middle_bps, round_trip.least_s));
            way.buffers = way.bdp_bytes.map(|bdp| Maximum::read(setting, buffers::need(bdp)));
        }
    }

    /// Returns how long the packets of this measurement occupied the tight link, in the direction in which that took longer.
    pub(super) fn load(&self) -> Duration {
        let ways = [(&self.here, self.received_bytes), (&self.there, self.sent_bytes)];
        let seconds = ways.into_iter().filter_map(|(way, bytes)| {
            let capacity = way.capacity?.middle_bps.max(1);
            Some(bytes? as f64 * 8.0 / capacity as f64)
        });
        Duration::from_secs_f64(seconds.fold(0.0, f64::max))
    }

    /// Returns the report as text.
    pub(super) fn to_text(&self) -> String {
        let (what, moved) = match (self.method, self.sent_bytes, self.received_bytes) {
            (Method::Bufwise, Some(sent), Some(received)) => {
                ("a bufwise server", format!("; {} sent, {} received", size(sent), size(received)))
            }
            _ => ("a TCP port", String::new()),
        };
        let mut sentences = vec![self.round_trip_sentence(), self.loss_sentence()];
        for (name, way) in [("From there to here", &self.here), ("From here to there", &self.there)] {
            sentences.extend(way_sentences(name, way));
            if let (Method::Bufwise, Some(unknown)) = (self.method, way.unknown()) {
                sentences.push(format!("{name} the trains did not show the {unknown}."));
            }
        }
        sentences.extend(self.remarks.iter().cloned());
        sentences.push(self.advice());
        let body: String = sentences.iter().map(|sentence| format!("  {sentence}\n")).collect();
        format!("{}, {what}: {:.1} s{moved}\n{body}", self.target, self.seconds)
    }

    fn round_trip_sentence(&self) -> String {
        self.round_trip.map_or_else(
            || "The round trip is not known.".to_owned(),
            |found| {
                let (least, mean) = (time(found.least_s), time(found.mean_s));
                let jitter = time(found.jitter_s);
                format!(
                    "Round trip at least {least}, mean {mean}, jitter {jitter} ({}).",
                    counted(found.samples, "sample")
                )
            },
        )
    }

    fn loss_sentence(&self) -> String {
        let Some(Loss { probes, lost_there, lost_here, lost_unknown }) = self.loss else {
            let repeated = match self.repeated_connects {
                Some(0) | None => String::new(),
                Some(times) => {
                    format!(" The first packet of {} had to be repeated.", counted(times, "connection"))
                }
            };
            return format!("{UNKNOWN}{repeated}");
        };
        match lost_there + lost_here + lost_unknown {
            0 => format!("None of {probes} probes was lost."),
            lost => {
                let share = lost as f64 * 100.0 / probes.max(1) as f64;
                let unknown = match lost_unknown {
                    0 => String::new(),
                    lost => format!(", {lost} not known where"),
                };
                format!(
                    "{lost} of {probes} probes were lost ({share:.1}%): {lost_there} on the way there, {lost_here} on the way here{unknown}."
                )
            }
        }
    }

    fn advice(&self) -> String {
        let settings: Vec<&str> =
            [&self.here, &self.there].iter().filter_map(|way| way.buffers.as_ref()?.set.as_deref()).collect();
        let is_known = |way: &Direction| way.buffers.as_ref().is_some_and(|one| one.found_bytes.is_some());
        let known = is_known(&self.here) || is_known(&self.there);
        let other = "The other end needs as much.";
        match (known, settings.is_empty(), self.round_trip) {
            (true, true, _) => {
                format!("Advice: leave the buffers here to autotuning, whose maxima suffice. {other}")
            }
            (true, false, _) => format!("Advice: sysctl -w {}. {other}", settings.join(" ")),
            (false, _, Some(found)) => format!(
                "Advice: each 100 Mbit/s over this round trip need a buffer of {} at both ends.",
                size(buffers::need(product(100_000_000, found.least_s)))
            ),
            (false, _, None) => "Advice: none, because figures are missing.".to_owned(),
        }
    }
}

/// Returns the bytes that a path carries in a round trip.
fn product(bits_per_second: u64, seconds: f64) -> u64 {
    (bits_per_second as f64 * seconds / 8.0).round() as u64
}

fn way_sentences(name: &str, way: &Direction) -> Vec<String> {
    let Some(capacity) = &way.capacity else { return Vec::new() };
    let left = match (&way.available, way.carried_bps) {
        (Some(left), _) => format!(", of which {} are available", left.in_words()),
        (None, Some(carried)) => format!(", of which at least {} are available", rate(carried)),
        (None, None) => String::new(),
    };
    let mut sentences = vec![format!("{name} the path carries {}{left}.", capacity.in_words())];
    if let (Some(bdp), Some(buffers)) = (way.bdp_bytes, &way.buffers) {
        let verdict = match (buffers.found_bytes, &buffers.set) {
            (None, _) => String::new(),
            (Some(found), None) => format!("; {} allows {}", buffers.setting, size(found)),
            (Some(found), Some(_)) => format!("; {} allows only {}", buffers.setting, size(found)),
        };
        let (bdp, need) = (size(bdp), size(buffers.need_bytes));
        sentences.push(format!("Filling it takes {bdp} under way (BDP), and a buffer of {need}{verdict}."));
    }
    sentences
}

/// Destination of the lines of repeated measurements.
#[derive(Debug)]
pub(super) struct Lines {
    json: Option<File>,
    json_to_stdout: bool,
    any: bool,
    /// The last remark that was written beside the columns.
    remark: Option<&'static str>,
}

impl Lines {
    pub(super) fn new(json: Option<PathBuf>) -> Result<Self> {
        let json_to_stdout = json.as_deref().is_some_and(output::is_stdout);
        let open =
            |path: PathBuf| File::create(&path).with_context(|| format!("cannot write {}", path.display()));
        let json = json.filter(|_| !json_to_stdout).map(open).transpose()?;
        Ok(Self { json, json_to_stdout, any: false, remark: None })
    }

    /// Writes one measurement, which left out the available bandwidth for the given reason, if for any.
    pub(super) fn report(&mut self, mut report: Report, left_out: Option<&'static str>) -> Result<()> {
        let left_out = if report.method == Method::Port { Some(UNKNOWN) } else { left_out };
        report.remarks.extend(left_out.map(str::to_owned));
        let now = Local::now();
        let json = serde_json::json!({ "time": now.to_rfc3339(), "report": report });
        if self.json_to_stdout {
            return output::line(&format!("{json}\n"));
        }
        if let Some(file) = &mut self.json {
            // A single call writes the line, so that Ctrl-C does not leave a part of it.
            file.write_all(format!("{json}\n").as_bytes()).context("cannot write the report")?;
        }
        if !std::mem::replace(&mut self.any, true) {
            output::line(&columns(HEADINGS))?;
        }
        output::line(&row(&now.format("%H:%M:%S").to_string(), &report))?;
        match left_out.filter(|_| self.remark != left_out) {
            Some(remark) => {
                self.remark = left_out;
                output::line(&format!("          {remark}\n"))
            }
            None => Ok(()),
        }
    }
}

const HEADINGS: [&str; 8] =
    ["TIME", "CAPACITY HERE", "AVAILABLE HERE", "CAPACITY THERE", "AVAILABLE THERE", "RTT", "LEAST", "BDP"];

fn columns(cells: [&str; 8]) -> String {
    let [at, here, left_here, there, left_there, mean, least, bdp] = cells;
    format!(
        "{at:8}  {here:>13}  {left_here:>15}  {there:>14}  {left_there:>15}  {mean:>7}  {least:>7}  {bdp:>8}\n"
    )
}

/// Returns the values of one line.
fn row(at: &str, report: &Report) -> String {
    let capacity =
        |way: &Direction| way.capacity.map_or_else(|| "-".to_owned(), |found| rate(found.middle_bps));
    let available = |way: &Direction| match (way.available, way.carried_bps) {
        (Some(left), _) => rate(left.middle_bps),
        (None, Some(carried)) => format!(">= {}", rate(carried)),
        (None, None) => "-".to_owned(),
    };
    let (mean, least) = report
        .round_trip
        .map_or(("-".to_owned(), "-".to_owned()), |found| (time(found.mean_s), time(found.least_s)));
    let bdp = report.here.bdp_bytes.or(report.there.bdp_bytes).map_or_else(|| "-".to_owned(), size);
    columns([
        at,
        &capacity(&report.here),
        &available(&report.here),
        &capacity(&report.there),
        &available(&report.there),
        &mean,
        &least,
        &bdp,
    ])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(low: u64, middle: u64, high: u64) -> Figure {
        Figure { middle_bps: middle * 1_000_000, low_bps: low * 1_000_000, high_bps: high * 1_000_000 }
    }

    fn report() -> Report {
        let millis = Micros::from_millis;
        let mut report = Report {
            target: "192.0.2.1:2122".to_owned(),
            round_trip: RoundTrip::of(&[millis(40), millis(44), millis(42)]),
            loss: Some(Loss { probes: 100, lost_there: 2, lost_here: 1, lost_unknown: 0 }),
            here: Direction {
                capacity: Some(figure(99, 100, 100)),
                available: Some(figure(40, 50, 55)),
                ..Direction::default()
            },
            sent_bytes: Some(1_000_000),
            received_bytes: Some(2_000_000),
            ..Report::default()
        };
        report.advise();
        report
    }

    #[test]
    fn round_trips_have_least_mean_and_jitter() {
        let found = report().round_trip.unwrap();
        assert_eq!((found.least_s, found.samples), (0.04, 3));
        assert!((found.mean_s - 0.042).abs() < 1e-9 && (found.jitter_s - 0.003).abs() < 1e-9, "{found:?}");
        assert_eq!(RoundTrip::of(&[]), None);
    }

    #[test]
    fn a_number_where_the_trains_agree_and_a_range_where_they_do_not() {
        let text = report().to_text();
        assert!(
            text.contains("carries 100.0 Mbit/s, of which 40.0 Mbit/s to 55.0 Mbit/s are available."),
            "{text}"
        );
        assert!(
            text.contains("3 of 100 probes were lost (3.0%): 2 on the way there, 1 on the way here."),
            "{text}"
        );
        assert!(text.contains("takes 500.0 KB under way (BDP), and a buffer of 1.00 MB"), "{text}");
        assert!(text.contains("1.00 MB sent, 2.00 MB received"), "{text}");
        assert!(text.contains("From here to there the trains did not show the capacity."), "{text}");
        let here = Direction { available: None, ..report().here };
        let text = Report { here, ..report() }.to_text();
        let unknown = "From there to here the trains did not show the available bandwidth.";
        assert!(text.contains(unknown), "{text}");
    }

    #[test]
    fn a_line_has_both_ways_under_their_headings() {
        let capacity = Some(figure(9, 9, 9));
        let there = Direction { capacity, carried_bps: Some(8_900_000), ..Direction::default() };
        let lines = [
            columns(HEADINGS),
            row("12:00:00", &Report { there, ..report() }),
            row("12:00:20", &Report::default()),
        ];
        let expected = "\
TIME      CAPACITY HERE   AVAILABLE HERE  CAPACITY THERE  AVAILABLE THERE      RTT    LEAST       BDP
12:00:00   100.0 Mbit/s      50.0 Mbit/s      9.0 Mbit/s    >= 8.9 Mbit/s  42.0 ms  40.0 ms  500.0 KB
12:00:20              -                -               -                -        -        -         -
";
        assert_eq!(lines.concat(), expected);
    }

    #[test]
    fn the_load_is_that_of_the_way_which_was_longer_busy() {
        let there = Direction { capacity: Some(figure(4, 4, 4)), ..Direction::default() };
        // 1 MB at 4 Mbit/s take 2 s, 2 MB at 100 Mbit/s 0.16 s.
        assert_eq!(Report { there, ..report() }.load(), Duration::from_secs(2));
        assert_eq!(report().load(), Duration::from_millis(160));
        assert_eq!(Report::default().load(), Duration::ZERO);
    }

    #[test]
    fn losses_that_belong_to_no_way_are_told_apart() {
        let loss = Loss { probes: 100, lost_there: 0, lost_here: 0, lost_unknown: 50 };
        let report = Report { loss: Some(loss), ..report() };
        assert_eq!(
            report.loss_sentence(),
            "50 of 100 probes were lost (50.0%): 0 on the way there, 0 on the way here, 50 not known where."
        );
        assert_eq!(serde_json::to_value(report).unwrap()["loss"]["lost_unknown"], 50);
    }

    #[test]
    fn a_port_of_tcp_claims_no_more_than_it_shows() {
        let whole = report();
        let mut port = Report {
            method: Method::Port,
            round_trip: whole.round_trip,
            repeated_connects: Some(2),
            ..Report::default()
        };
        port.advise();
        let text = port.to_text();
        assert!(text.contains("cannot be known without `bufwise probe --serve`"), "{text}");
        assert!(text.contains("The first packet of 2 connections had to be repeated."), "{text}");
        assert!(text.contains("each 100 Mbit/s over this round trip need a buffer of 1.00 MB"), "{text}");
        assert!(!text.contains("carries"), "{text}");
    }

    #[test]
    fn a_setting_that_cannot_be_read_is_not_said_to_suffice() {
        let mut report = report();
        let buffers = report.here.buffers.as_mut().unwrap();
        (buffers.found_bytes, buffers.set) = (None, None);
        assert!(report.advice().contains("each 100 Mbit/s"), "{}", report.advice());
    }

    #[test]
    fn figures_span_what_was_seen() {
        assert_eq!(
            Figure::spanning(vec![30, 10, 20]),
            Some(Figure { middle_bps: 20, low_bps: 10, high_bps: 30 })
        );
        assert_eq!(Figure::spanning(Vec::new()), None);
    }
}
