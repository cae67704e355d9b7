//! The report on a `get` or `put`: as text, and as JSON with stable keys (bytes, seconds, bit/s).

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use bufwise_ftp::client::{ClientError, Outcome, Server, Url};
use bufwise_ftp::wire::terminal::escape_for_terminal;
use bufwise_mover::Held;
use bufwise_policy::PolicyKind;
use bufwise_units::{Bytes, Micros, counted};
use serde::Serialize;

use super::tally::{Failed, Tally};
use crate::figures::{rate, size};
use crate::run::Treated;

/// Files shown one by one in the text; if there are more, they are only counted.
const SHOWN: usize = 20;

/// Report on a `get` or `put`.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    command: &'static str,
    url: String,
    policy: String,
    seconds: f64,
    bytes: u64,
    rate_bps: u64,
    done: usize,
    failed: usize,
    server: Option<ServerReport>,
    pub(super) files: Vec<FileReport>,
    /// The first skipped entries of a tree, with the reason.
    pub(super) skipped: Vec<String>,
    pub(super) skipped_count: usize,
    /// Whether a target keeps the part of a file that was moved.
    #[serde(skip)]
    pub(super) keeps_part: bool,
    #[serde(skip)]
    first_error: Option<ClientError>,
}

#[derive(Debug, Serialize)]
struct ServerReport {
    address: Option<String>,
    greeting: String,
    tls: bool,
    drs: bool,
    features: Vec<String>,
}

/// One file.
#[derive(Debug, Serialize)]
pub(super) struct FileReport {
    remote: String,
    local: String,
    size: u64,
    /// Bytes of it that this command moved, in all attempts.
    bytes: u64,
    /// Bytes of it that were there before the first attempt.
    resumed_from: u64,
    /// Time in which they moved, without login and the waits between attempts.
    seconds: f64,
    /// Mean rate over that time. The further figures of the connection are those of the last attempt.
    rate_bps: u64,
    /// Time including login, retries and disk, seconds.
    total_seconds: f64,
    attempts: u32,
    rtt_s: Option<f64>,
    min_rtt_s: Option<f64>,
    retransmissions: u64,
    out_of_order: u64,
    buffer_peak_bytes: u64,
    held_peak_bytes: u64,
    window_peak_bytes: u64,
    limited_by: Option<Shares>,
    /// The engine's settings (`fit`); `null` under other policies, and for a connection that was too short to be
    /// sampled.
    tuned: Option<Treated>,
    sbuf_sent: u64,
    notices_received: u64,
    last_notice_bytes: Option<u64>,
    probes: Option<Probes>,
    checksum: Option<Sum>,
    error: Option<String>,
}

/// Shares of the time by limiting cause; their sum is 1.
#[derive(Debug, Serialize)]
pub(crate) struct Shares {
    application: f64,
    send_buffer: f64,
    receive_window: f64,
    congestion_window: f64,
    /// Limited by the sender or the path, which a receiver cannot tell apart.
    unknown: f64,
}

#[derive(Debug, Serialize)]
struct Probes {
    rtt_s: f64,
    min_rtt_s: f64,
    capacity_bps: Option<u64>,
    sent: u64,
    answered: u64,
}

#[derive(Debug, Serialize)]
struct Sum {
    algorithm: &'static str,
    digest: String,
}

impl Report {
    pub(super) fn new(command: &'static str, url: &Url, policy: PolicyKind) -> Self {
        Self {
            command,
            url: url.to_string(),
            policy: policy.to_string(),
            seconds: 0.0,
            bytes: 0,
            rate_bps: 0,
            done: 0,
            failed: 0,
            server: None,
            files: Vec::new(),
            skipped: Vec::new(),
            skipped_count: 0,
            keeps_part: true,
            first_error: None,
        }
    }

    pub(super) fn server(&mut self, server: &Server) {
        let lines = server.features.to_reply().lines;
        let inner = lines.get(1..lines.len().saturating_sub(1)).unwrap_or_default();
        self.server = Some(ServerReport {
            address: server.address.map(|address| address.to_string()),
            greeting: server.greeting.clone(),
            tls: server.tls,
            drs: server.dialect,
            features: inner.iter().map(|line| String::from_utf8_lossy(line).trim().to_owned()).collect(),
        });
    }

    pub(super) fn failed(&mut self, error: ClientError) {
        self.first_error.get_or_insert(error);
    }

    pub(super) fn ended(&mut self, elapsed: Duration) {
        self.seconds = elapsed.as_secs_f64();
        self.bytes = self.files.iter().map(|file| file.bytes).sum();
        self.rate_bps = bits_per_second(self.bytes, elapsed);
        self.failed = self.files.iter().filter(|file| file.error.is_some()).count();
        self.done = self.files.len() - self.failed;
    }

    /// Returns the error that ends the program; `None` if all files were moved.
    pub(super) fn error(&self) -> Option<String> {
        let error = self.first_error.as_ref()?;
        if matches!(error, ClientError::Interrupted) {
            let kept = match self.command {
                // A server may drop its part; one of bufwise does where the file would have replaced another.
                "put" => ": --resume continues what the server has kept",
                _ => ": the part that was moved is kept, and --resume continues it",
            };
            return Some(format!("interrupted{}", if self.keeps_part { kept } else { "" }));
        }
        if self.files.len() <= 1 {
            return Some(error.to_string());
        }
        Some(format!("{} of {} files failed, the first: {error}", self.failed, self.files.len()))
    }
}

impl FileReport {
    pub(super) fn new(
        remote: &Path,
        local: &Path,
        moved: &Result<Outcome, ClientError>,
        tally: &Tally,
        elapsed: Duration,
        tuned: Option<Treated>,
    ) -> Self {
        let outcome = moved.as_ref().copied().unwrap_or_default();
        let report = outcome.report;
        let of = |figure: fn(&bufwise_mover::Report) -> u64| report.as_ref().map_or(0, figure);
        let seconds = |time: Micros| time.as_secs_f64();
        let (size, resumed_from, bytes, moving) = if moved.is_ok() {
            (outcome.size, tally.resumed_from(&outcome), tally.bytes(&outcome), tally.elapsed(&outcome))
        } else {
            let Failed { size, resumed_from, bytes, elapsed } = tally.failed(Instant::now());
            (size, resumed_from, bytes, elapsed)
        };
        Self {
            remote: remote.display().to_string(),
            local: local.display().to_string(),
            size,
            bytes,
            resumed_from,
            seconds: moving.as_secs_f64(),
            rate_bps: bits_per_second(bytes, moving),
            total_seconds: elapsed.as_secs_f64(),
            attempts: tally.attempts(),
            rtt_s: report.and_then(|report| report.rtt).map(seconds),
            min_rtt_s: report.and_then(|report| report.min_rtt).map(seconds),
            retransmissions: of(|report| report.retransmitted),
            out_of_order: of(|report| report.out_of_order),
            buffer_peak_bytes: of(|report| report.largest_buffer.0),
            held_peak_bytes: of(|report| report.most_held.0),
            window_peak_bytes: of(|report| report.largest_window.0),
            limited_by: report.and_then(|report| shares(&report.held)),
            tuned,
            sbuf_sent: outcome.notes.requests_sent,
            notices_received: outcome.notes.notices_received,
            last_notice_bytes: outcome.notes.last_notice.map(|Bytes(bytes)| bytes),
            probes: outcome.measured.map(|measured| Probes {
                rtt_s: measured.rtt.as_secs_f64(),
                min_rtt_s: measured.min_rtt.as_secs_f64(),
                capacity_bps: measured.capacity.map(bufwise_units::Rate::bits_per_sec),
                sent: measured.sent,
                answered: measured.answered,
            }),
            checksum: outcome
                .checksum
                .map(|digest| Sum { algorithm: digest.kind().name(), digest: digest.to_string() }),
            error: moved.as_ref().err().map(ToString::to_string),
        }
    }
}

/// Returns the shares of a transfer's time by limiting cause; `None` for a transfer that took no time.
pub(crate) fn shares(held: &Held) -> Option<Shares> {
    let parts =
        [held.application, held.send_buffer, held.receive_window, held.congestion_window, held.unknown];
    let total: Duration = parts.iter().sum();
    if total.is_zero() {
        return None;
    }
    let [application, send_buffer, receive_window, congestion_window, unknown] =
        parts.map(|part| part.as_secs_f64() / total.as_secs_f64());
    Some(Shares { application, send_buffer, receive_window, congestion_window, unknown })
}

fn bits_per_second(bytes: u64, elapsed: Duration) -> u64 {
    if elapsed.is_zero() { 0 } else { (bytes as f64 * 8.0 / elapsed.as_secs_f64()) as u64 }
}

impl Shares {
    /// Returns the largest share, with its cause in words.
    fn largest(&self) -> (&'static str, f64) {
        let all = [
            ("an application or a disk", self.application),
            ("the send buffer", self.send_buffer),
            ("the receive window", self.receive_window),
            ("the path (congestion window)", self.congestion_window),
            ("the sender or the path", self.unknown),
        ];
        all.into_iter().max_by(|one, other| one.1.total_cmp(&other.1)).unwrap_or(("nothing", 0.0))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let done = || self.files.iter().filter(|file| file.error.is_none());
        if self.files.len() <= SHOWN {
            done().try_for_each(|file| writeln!(f, "{file}"))?;
        }
        if self.files.len() != 1 {
            let (bytes, rate) = (size(self.bytes), rate(self.rate_bps));
            let files = counted(self.done, "file");
            writeln!(f, "{files}, {bytes} in {:.2} s, {rate}", self.seconds)?;
        }
        Ok(())
    }
}

impl fmt::Display for FileReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", escape_for_terminal(self.local.as_bytes()), size(self.size))?;
        if self.bytes == 0 && self.resumed_from == self.size && self.size > 0 {
            return write!(f, ", was there already");
        }
        if self.resumed_from > 0 {
            write!(f, ", {} of them were there", size(self.resumed_from))?;
        }
        write!(f, ", {:.2} s, {}", self.seconds, rate(self.rate_bps))?;
        if let Some(rtt) = self.rtt_s {
            write!(f, ", RTT {:.1} ms", rtt * 1e3)?;
        }
        write!(f, ", window up to {}", size(self.window_peak_bytes))?;
        if let Some(shares) = &self.limited_by {
            let (name, share) = shares.largest();
            write!(f, ", limited by {name} ({:.0}% of the time)", share * 100.0)?;
        }
        if let Some(sum) = &self.checksum {
            write!(f, ", {} {}", sum.algorithm, sum.digest)?;
        }
        let Some(treated) = &self.tuned else { return Ok(()) };
        match treated.tuned.fit.and_then(|fit| fit.left_to_kernel("")) {
            Some(why) => write!(f, "\n    {why}"),
            None => write!(f, "\n    fit: {treated}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use bufwise_ftp::client::Event;
    use bufwise_host::view::{Fit, FitPhase, FitReason, Tuned};

    use super::super::tally::tests::{RETRY, after, begun, outcome};
    use super::*;

    fn line_of(tuned: Option<Tuned>) -> String {
        let none = Ok(Outcome::default());
        let treated = |tuned| Treated {
            tuned,
            application_set_send_buffer: false,
            application_set_receive_buffer: false,
        };
        FileReport::new(
            Path::new("r"),
            Path::new("l"),
            &none,
            &Tally::default(),
            Duration::ZERO,
            tuned.map(treated),
        )
        .to_string()
    }

    #[test]
    fn a_file_that_took_several_attempts_is_told_as_one() {
        let told = |events: &[Event<'_>], last: Outcome| {
            let (remote, local) = (Path::new("r"), Path::new("l"));
            let tally = after(events);
            FileReport::new(remote, local, &Ok(last), &tally, Duration::from_secs(9), None)
        };
        let file = told(&[begun(0), RETRY, begun(60_000_000)], outcome(60_000_000, 40_000_000));
        let line = file.to_string();
        assert!(line.starts_with("l: 100.00 MB, 2.00 s, 400.0 Mbit/s"), "{line}");
        assert_eq!((file.bytes, file.resumed_from, file.attempts), (100_000_000, 0, 2));
        let line = told(&[begun(0), RETRY, begun(100)], outcome(100, 0)).to_string();
        assert!(!line.contains("was there"), "only its last reply was lost: {line}");
        let line = told(&[begun(40), RETRY, begun(60)], outcome(60, 40)).to_string();
        assert!(line.contains("40 B of them were there"), "{line}");
    }

    #[test]
    fn what_a_file_that_failed_has_moved_is_reported() {
        let (remote, local) = (Path::new("r"), Path::new("l"));
        let some = bufwise_mover::Progress { bytes: 60, ..bufwise_mover::Progress::default() };
        let (tally, broken) = (after(&[begun(10), Event::Progress(&some)]), Err(ClientError::Interrupted));
        let file = FileReport::new(remote, local, &broken, &tally, Duration::from_secs(9), None);
        assert_eq!((file.size, file.bytes, file.resumed_from), (100, 60, 10));
        assert_eq!(file.error.as_deref(), Some("interrupted"));
        let unmade = FileReport::new(remote, local, &broken, &Tally::default(), Duration::ZERO, None);
        assert_eq!((unmade.size, unmade.bytes, unmade.seconds), (0, 0, 0.0));
    }

    #[test]
    fn an_interruption_promises_nothing_for_the_server() {
        let interrupted = |command| {
            let mut report = Report::new(command, &"ftp://h/x".parse().unwrap(), PolicyKind::Kernel);
            report.failed(ClientError::Interrupted);
            report.error().unwrap()
        };
        assert!(interrupted("get").contains("is kept"));
        assert_eq!(interrupted("put"), "interrupted: --resume continues what the server has kept");
    }

    #[test]
    fn a_name_does_nothing_to_the_terminal() {
        let (name, made) = (Path::new("a\u{1b}[2J\nb"), Ok(outcome(0, 1)));
        let file = FileReport::new(name, name, &made, &Tally::default(), Duration::ZERO, None);
        assert!(file.to_string().starts_with("a\\u{1b}[2J\\nb: 1 B"), "{file}");
        assert_eq!(file.local, "a\u{1b}[2J\nb", "JSON has the name itself");
    }

    #[test]
    fn a_file_has_a_second_line_under_fit_alone() {
        let window = Tuned { receive_window_bytes: Some(620_000), receive_changes: 9, ..Tuned::default() };
        assert!(
            line_of(Some(window)).ends_with("\n    fit: bufwise set: receive window 620.0 KB (9 changes)"),
            "{}",
            line_of(Some(window))
        );
        let reason = Some(FitReason::ShortRoundTrip);
        let fit = Fit {
            phase: FitPhase::Start,
            reason,
            roof_bps: None,
            capacity_bps: None,
            descents: 0,
            opened: 0,
        };
        let alone = line_of(Some(Tuned { fit: Some(fit), ..Tuned::default() }));
        assert!(alone.ends_with("\n    fit leaves it to the kernel: the round trip is too short"), "{alone}");
        assert_eq!(line_of(None).lines().count(), 1);
    }
}
