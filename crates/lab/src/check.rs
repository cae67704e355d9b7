//! `bufwise lab check`: compares the emulated path on this machine with its description.
//!
//! Each row compares a measurement with what the description demands: the goodput of a window-limited iperf3 with rate
//! x payload/wire bytes, the base round trip (the smallest, as in Vegas's BaseRTT) with the RTT, the emulator's own
//! lateness, its speed without a limit, and its packet counters (no packet may be unaccounted for). A short form of it
//! judges the emulator before experiments run.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::net::UdpSocket;
use std::time::{Duration, Instant};

use bufwise_link::{QueueLimit, QueueSize};
use bufwise_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};
use thiserror::Error;

use crate::commands::{ClientOutput, CommandError, Programs};
use crate::experiments::StopSignal;
use crate::host::HostError;
use crate::path::{self, PathError};
use crate::pump::PumpError;
use crate::report::LabReport;
use crate::spec::{DEFAULT_MTU, PathSpec};
use crate::testbed::{Hosts, Testbed, TestbedError, goodput_ceiling, unaccounted};

const RATES_MBIT: [u64; 4] = [10, 100, 500, 1_000];
const RTTS_MS: [u64; 3] = [10, 40, 100];
/// Share by which goodput may differ from theory.
const GOODPUT_TOLERANCE: f64 = 0.01;
/// Microseconds by which the base RTT may exceed the configured one and the probe's transmission time, besides 1%.
const RTT_TOLERANCE_US: f64 = 100.0;
/// Lateness in microseconds that 99% of the packets must keep to.
const LATENESS_P99_US: f64 = 100.0;
/// Share of the time, in percent, for which the path may stand still because the machine was busy.
const PAUSED_PERCENT: f64 = 1.0;
/// Rate that the emulator must carry without a limit, in Mbit/s.
const UNLIMITED_MBIT: f64 = 5_000.0;
/// Attempts at a run in which the emulator stalled, or the path stood still for too long.
const ATTEMPTS: usize = 3;
/// Number of probes of the idle round trip, the payload of one, and its length on the wire (UDP, IPv4, Ethernet).
const PINGS: usize = 51;
const PING_BYTES: usize = 16;
const PING_WIRE_BYTES: u64 = PING_BYTES as u64 + 8 + 20 + 14;
/// Packets of the burst that fills a queue.
const BURST: usize = 500;
const PATIENCE: Duration = Duration::from_secs(2);
/// Seconds that [`before_runs`] takes on a machine on which the emulator does not stall.
pub const BEFORE_SECONDS: u64 = 6;

/// Why the check could not be run.
#[derive(Debug, Error)]
pub enum CheckError {
    /// A run failed.
    #[error(transparent)]
    Path(#[from] PathError),
    /// The hosts could not be set up or taken down.
    #[error(transparent)]
    Testbed(#[from] TestbedError),
    /// A host is gone.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The emulator failed.
    #[error(transparent)]
    Pump(#[from] PumpError),
    /// A probe of the check itself failed.
    #[error("probing the path failed: {0}")]
    Probe(#[from] io::Error),
    /// iperf3 printed no report.
    #[error("iperf3 ended with status {0} and no JSON report: install iperf3, or see its message above")]
    Iperf3(i32),
}

impl CheckError {
    /// Returns the exit status that a shell expects for this error.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Path(error) => error.exit_status(),
            _ => 1,
        }
    }

    /// Whether experiments may run nevertheless: true if only a program or a packet of the check failed, false if the hosts or
    /// the emulator failed.
    #[must_use]
    pub fn spares_runs(&self) -> bool {
        match self {
            Self::Path(PathError::Command(error)) => !matches!(error, CommandError::Interrupted(_)),
            Self::Probe(_) | Self::Iperf3(_) => true,
            _ => false,
        }
    }
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// The quantity measured, and the path on which.
    pub what: String,
    /// The measured value.
    pub measured: f64,
    /// Smallest value that passes.
    pub at_least: Option<f64>,
    /// Largest value that passes.
    pub at_most: Option<f64>,
    /// Unit of all three numbers.
    pub unit: Cow<'static, str>,
    /// Whether the emulator kept time; a row of an invalid run fails.
    pub valid: bool,
    /// Whether the value is in range and the run valid.
    pub passed: bool,
}

impl Row {
    fn new(
        what: String,
        unit: &'static str,
        measured: f64,
        at_least: Option<f64>,
        at_most: Option<f64>,
    ) -> Self {
        let passed =
            at_least.is_none_or(|least| measured >= least) && at_most.is_none_or(|most| measured <= most);
        Self { what, measured, at_least, at_most, unit: unit.into(), valid: true, passed }
    }

    fn of_run(self, report: &LabReport) -> Self {
        Self { valid: report.valid, passed: self.passed && report.valid, ..self }
    }

    /// Returns the value and the bounds that it misses, in words.
    fn failure(&self) -> String {
        let bound = |words: &str, bound: Option<f64>| bound.map(|bound| format!("{words} {bound:.1}"));
        let bounds = [bound("at least", self.at_least), bound("at most", self.at_most)];
        let why = match self.valid {
            true => bounds.into_iter().flatten().collect::<Vec<_>>().join(", "),
            false => "the emulator stalled".to_owned(),
        };
        format!("{} {:.1} {} ({why})", self.what, self.measured, self.unit)
    }
}

/// The result of the check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckReport {
    /// Its rows.
    pub rows: Vec<Row>,
    /// Whether all rows passed.
    pub passed: bool,
}

impl CheckReport {
    fn new(rows: Vec<Row>) -> Self {
        let passed = rows.iter().all(|row| row.passed);
        Self { rows, passed }
    }

    /// Returns the outcome in one line: `ok` with the figures that have an upper bound above zero, or the rows that failed.
    #[must_use]
    pub fn in_short(&self) -> String {
        if !self.passed {
            let failed = self.rows.iter().filter(|row| !row.passed).map(Row::failure);
            return format!("FAILED, {}", failed.collect::<Vec<_>>().join("; "));
        }
        let bounded = self.rows.iter().filter(|row| row.at_most.is_some_and(|most| most > 0.0));
        let figures = bounded.map(|row| {
            let quantity = row.what.rsplit(": ").next().unwrap_or_default();
            format!("{quantity} {:.1} {}", row.measured, row.unit)
        });
        format!("ok, {}", figures.collect::<Vec<_>>().join(", "))
    }
}

/// Runs the check; `progress` gets a line before each run.
///
/// # Errors
/// [`CheckError`] when a run could not be made at all, or a signal asks to stop. A value out of range is a row that fails, not an
/// error.
pub fn run(quick: bool, mut progress: impl FnMut(&str)) -> Result<CheckReport, CheckError> {
    let stop = watch_signals()?;
    let mut rows = Vec::new();
    let times = if quick { (2, 3) } else { (3, 6) };
    for rate in RATES_MBIT {
        for rtt in RTTS_MS {
            if quick && rtt != RTTS_MS[1] {
                continue;
            }
            progress(&format!("{rate} Mbit/s, {rtt} ms"));
            let spec = spec(rate, rtt);
            rows.extend(goodput_rows(&spec, (rate, rtt), times, &stop)?);
            rows.extend(unless_stopped(&stop, round_trip_rows(&spec, rate, rtt))?);
        }
    }
    progress("no limit");
    rows.push(unlimited_row(&stop)?);
    progress("a burst into a full queue");
    rows.extend(unless_stopped(&stop, burst_rows())?);
    Ok(CheckReport::new(rows))
}

/// Judges the emulator in short, before experiments run: delay, rate, lateness and stalls on one path, and the packet
/// counters of a full queue.
///
/// # Errors
/// As [`run`].
pub fn before_runs() -> Result<CheckReport, CheckError> {
    let (rate, rtt) = (RATES_MBIT[1], RTTS_MS[0]);
    let spec = spec(rate, rtt);
    let stop = watch_signals()?;
    let mut rows = Vec::from(unless_stopped(&stop, round_trip_rows(&spec, rate, rtt))?);
    rows.extend(unless_stopped(&stop, burst_rows())?);
    rows.extend(goodput_rows(&spec, (rate, rtt), (1, 2), &stop)?);
    Ok(CheckReport::new(rows))
}

/// Catches the signals that ask to stop. A run of iperf3 leaves them ignored, so those that come between two such runs, or while
/// hosts are set up, would be lost.
fn watch_signals() -> Result<StopSignal, CheckError> {
    Ok(StopSignal::watch().map_err(|source| PathError::from(CommandError::Signals(source)))?)
}

/// Returns the error of a signal that has asked to stop, else `done`. A signal reaches the programs as well, so their outcome does not
/// matter then.
fn unless_stopped<T, E: Into<CheckError>>(stop: &StopSignal, done: Result<T, E>) -> Result<T, CheckError> {
    stop.continues()?;
    done.map_err(Into::into)
}

fn spec(rate_mbit: u64, rtt_ms: u64) -> PathSpec {
    let rate = BitRate(rate_mbit * 1_000_000);
    let rtt = Nanos::from_millis(rtt_ms);
    let bdp = rate.bytes_over(rtt);
    PathSpec {
        rate: Some(rate),
        rtt,
        queue: Some(QueueSize::Bdp(1.0)),
        // About two thirds of the buffer become window: 1.5 BDP fill the path and half of the queue, without drops.
        rmem: Some((bdp * 9 / 4).max(64 << 10)),
        wmem: Some((bdp * 6).max(256 << 10)),
        ..PathSpec::default()
    }
}

fn iperf3(spec: &PathSpec, client: &str, stop: &StopSignal) -> Result<LabReport, CheckError> {
    let programs = Programs {
        server: Some("iperf3 -s -1".into()),
        listeners: 1,
        client: client.into(),
        elsewhere: Vec::new(),
        timeout: Duration::from_secs(60),
        output: ClientOutput::Kept,
    };
    let once = || unless_stopped(stop, path::run(spec, &programs, Duration::from_millis(200)));
    let mut last = once()?;
    for _ in 1..ATTEMPTS {
        if last.valid && paused_percent(&last) <= PAUSED_PERCENT {
            break;
        }
        last = once()?;
    }
    Ok(last)
}

fn paused_percent(report: &LabReport) -> f64 {
    report.paused_ms / 10.0 / report.seconds
}

/// Measures the goodput of a window-limited iperf3 for `seconds`, after those that it omits for slow start.
fn goodput_rows(
    spec: &PathSpec,
    (rate, rtt): (u64, u64),
    (omit, seconds): (u32, u32),
    stop: &StopSignal,
) -> Result<Vec<Row>, CheckError> {
    let client = format!("iperf3 -c 198.18.0.2 -C cubic -O {omit} -t {seconds} -J");
    let report = iperf3(spec, &client, stop)?;
    let goodput = report.goodput_bps.ok_or(CheckError::Iperf3(report.client_status))? / 1e6;
    let theory = goodput_ceiling(BitRate(rate * 1_000_000), DEFAULT_MTU) / 1e6;
    let path = format!("{rate} Mbit/s, {rtt} ms");
    let least = Some(theory * (1.0 - GOODPUT_TOLERANCE));
    let most = Some(theory * (1.0 + GOODPUT_TOLERANCE));
    let late = report.timing_error_us.p99 as f64;
    let paused = paused_percent(&report);
    // While the path stands still, no packet can pass: a row of its own judges that time.
    let goodput = goodput / (1.0 - paused / 100.0);
    Ok(vec![
        Row::new(format!("{path}: goodput"), "Mbit/s", goodput, least, most).of_run(&report),
        Row::new(format!("{path}: lateness p99"), "us", late, None, Some(LATENESS_P99_US)).of_run(&report),
        Row::new(format!("{path}: paused"), "%", paused, None, Some(PAUSED_PERCENT)).of_run(&report),
    ])
}

/// Measures the smallest round trip, which is judged, and the median, which is only reported: on an idle path the delay
/// is the path's, and occasional extra delay is the machine's.
fn round_trip_rows(spec: &PathSpec, rate: u64, rtt: u64) -> Result<[Row; 2], CheckError> {
    let testbed = Testbed::start(std::slice::from_ref(spec))?;
    let (a, b) = (bind(&testbed.hosts[0], true)?, bind(&testbed.hosts[0], false)?);
    let mut round_trips = Vec::with_capacity(PINGS);
    let mut buffer = [0; 64];
    for _ in 0..PINGS {
        let start = Instant::now();
        a.send_to(&[0; PING_BYTES], b.local_addr()?)?;
        let (length, from) = b.recv_from(&mut buffer)?;
        b.send_to(&buffer[..length], from)?;
        a.recv_from(&mut buffer)?;
        round_trips.push(start.elapsed().as_secs_f64() * 1e6);
    }
    testbed.finish()?;
    round_trips.sort_by(f64::total_cmp);
    let path = format!("{rate} Mbit/s, {rtt} ms");
    let transmission = 2.0 * (PING_WIRE_BYTES * 8) as f64 / rate as f64;
    let asked = rtt as f64 * 1e3 + transmission;
    let most = asked * 1.01 + RTT_TOLERANCE_US;
    let least = Some(asked);
    Ok([
        Row::new(format!("{path}: base round trip"), "us", round_trips[0], least, Some(most)),
        Row::new(format!("{path}: median round trip"), "us", round_trips[PINGS / 2], least, None),
    ])
}

fn bind(hosts: &Hosts, on_a: bool) -> Result<UdpSocket, CheckError> {
    let (host, address) = if on_a { (&*hosts.a, "198.18.0.1:0") } else { (&hosts.b, "198.18.0.2:0") };
    let socket = host.run(|| UdpSocket::bind(address))??;
    socket.set_read_timeout(Some(PATIENCE))?;
    Ok(socket)
}

fn unlimited_row(stop: &StopSignal) -> Result<Row, CheckError> {
    let report = iperf3(&PathSpec::default(), "iperf3 -c 198.18.0.2 -C cubic -O 1 -t 4 -J", stop)?;
    let goodput = report.goodput_bps.ok_or(CheckError::Iperf3(report.client_status))? / 1e6;
    // Without a rate the link drops no packet, so a late packet does no harm.
    Ok(Row::new("no limit: goodput".to_owned(), "Mbit/s", goodput, Some(UNLIMITED_MBIT), None))
}

/// Sends a burst of UDP packets into a queue of 50: the packets that arrive must be those that the link counts as
/// delivered.
fn burst_rows() -> Result<Vec<Row>, CheckError> {
    let spec = PathSpec {
        rate: Some(BitRate(10_000_000)),
        rtt: Nanos::from_millis(10),
        queue: Some(QueueSize::Limit(QueueLimit::Packets(50))),
        ..PathSpec::default()
    };
    let testbed = Testbed::start(std::slice::from_ref(&spec))?;
    let (a, b) = (bind(&testbed.hosts[0], true)?, bind(&testbed.hosts[0], false)?);
    let to = b.local_addr()?;
    for _ in 0..BURST {
        a.send_to(&[0; 1_000], to)?;
    }
    b.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut buffer = [0; 2_048];
    let arrived = std::iter::repeat_with(|| b.recv_from(&mut buffer)).take_while(Result::is_ok).count();
    let link = testbed.finish()?.pop().ok_or(PumpError::Panicked)?.link.last.a_to_b;
    // Other packets (neighbour and multicast housekeeping) would show as offered beyond the burst.
    let others = link.offered_packets as f64 - BURST as f64;
    let lost = link.delivered_packets as f64 - others - arrived as f64;
    let zero = |what: &str, value| Row::new(what.to_owned(), "packets", value, Some(0.0), Some(0.0));
    Ok(vec![
        zero("burst: delivered by the link, not arrived", lost),
        zero("burst: neither delivered, dropped nor queued", unaccounted(&link) as f64),
        Row::new("burst: dropped".to_owned(), "packets", link.drops_queue_packets as f64, Some(1.0), None),
    ])
}

impl fmt::Display for CheckReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.1}"));
        writeln!(f, "{:<46} {:>10} {:>10} {:>10}  {:<8}", "", "measured", "at least", "at most", "unit")?;
        for row in &self.rows {
            let verdict = match (row.valid, row.passed) {
                (false, _) => "stalled",
                (true, true) => "ok",
                (true, false) => "FAILED",
            };
            let (least, most) = (number(row.at_least), number(row.at_most));
            writeln!(
                f,
                "{:<46} {:>10.1} {least:>10} {most:>10}  {:<8} {verdict}",
                row.what, row.measured, row.unit
            )?;
        }
        write!(f, "{}", if self.passed { "all passed" } else { "some failed" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows() -> Vec<Row> {
        vec![
            Row::new("1 Mbit/s, 9 ms: goodput".to_owned(), "Mbit/s", 0.956, Some(0.94), Some(0.97)),
            Row::new("1 Mbit/s, 9 ms: median round trip".to_owned(), "us", 9_500.0, Some(9_000.0), None),
            Row::new("burst: not arrived".to_owned(), "packets", 0.0, Some(0.0), Some(0.0)),
        ]
    }

    #[test]
    fn the_outcome_in_short_is_the_figures_or_what_failed() {
        assert_eq!(CheckReport::new(rows()).in_short(), "ok, goodput 1.0 Mbit/s");
        let late = Row::new("1 Mbit/s, 9 ms: lateness p99".to_owned(), "us", 350.0, None, Some(100.0));
        let slow = Row::new("1 Mbit/s, 9 ms: goodput".to_owned(), "Mbit/s", 0.5, Some(0.9), Some(1.0));
        let stalled = Row { valid: false, passed: false, ..slow.clone() };
        let failed = CheckReport::new([rows(), vec![late, slow, stalled]].concat());
        assert!(!failed.passed);
        assert_eq!(
            failed.in_short(),
            "FAILED, 1 Mbit/s, 9 ms: lateness p99 350.0 us (at most 100.0); \
             1 Mbit/s, 9 ms: goodput 0.5 Mbit/s (at least 0.9, at most 1.0); \
             1 Mbit/s, 9 ms: goodput 0.5 Mbit/s (the emulator stalled)"
        );
    }

    #[test]
    fn a_report_reads_as_it_is_written() {
        let report = CheckReport::new(rows());
        let text = serde_json::to_string(&report).unwrap();
        assert_eq!(serde_json::from_str::<CheckReport>(&text).unwrap(), report);
    }

    #[test]
    fn experiments_run_without_iperf3_but_not_without_hosts_or_after_a_signal() {
        let of = |error: CommandError| CheckError::from(PathError::from(error));
        let interrupted = of(CommandError::Interrupted(2));
        assert_eq!((interrupted.spares_runs(), interrupted.exit_status()), (false, 130));
        assert!(of(CommandError::ClientNotFound("iperf3".to_owned())).spares_runs());
        assert!(CheckError::Iperf3(1).spares_runs());
        let no_hosts = CheckError::from(HostError::Namespaces(nix::Error::EPERM));
        assert_eq!((no_hosts.spares_runs(), no_hosts.exit_status()), (false, 1));
    }
}
