//! The daemon's log: one line per change, with its reason, on standard error, for people, the journal, or programs.
//!
//! A limiter keeps the lines few: at most one line per kind in ten seconds; the next line says how many were left
//! out. Lines are events of `tracing`, which [`start`] writes in the chosen [`Format`]:
//! - text: `bufwise: LINE`; if the journal reads, `<PRIORITY>LINE` instead (sd-daemon(3));
//! - JSON: an object per line with `time`, `level`, `kind`, `message`; if the journal reads, after `<PRIORITY>`,
//!   which the journal strips.

use std::collections::BTreeMap;
use std::env;
use std::fmt::{self, Display};
use std::io;
use std::str::FromStr;
use std::time::{Duration, Instant};

use bufwise_units::{Micros, counted};
use nix::sys::stat::fstat;
use serde::Serialize;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber, info, warn};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

use crate::processes::printable;

/// Least time between two lines of one kind.
const PAUSE: Micros = Micros::from_secs(10);
/// Least time between two lines on failures of work that the loop does not do.
const QUIET: Duration = Duration::from_secs(600);

/// Severity of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Priority {
    Warning,
    Info,
}

/// A line's subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// Start, reload, end: each once, and never limited.
    Life,
    /// Restored settings and connections, at the end or after a crash; never limited.
    PutBack,
    Namespace,
    /// A group's cgroup has appeared or gone, with its connections; never limited, because the search runs only every
    /// five seconds.
    Group,
    /// A bound of the host was raised.
    Cap,
    /// Another program or the administrator has changed a bound.
    Administrator,
    Adopted,
    AdoptionLimit,
    GivenBack,
    Send,
    Receive,
    Pressure,
    Shortage,
    /// `max-connections` connections are tuned; there is no room for more.
    Full,
    Bounded,
    Refused,
    /// Work on the engines fails, or succeeds again.
    Engine,
    /// The sending of metrics fails, or succeeds again.
    Metrics,
    /// The history's file cannot be used.
    History,
}

impl Kind {
    /// Returns the subject in words.
    fn about(self) -> &'static str {
        match self {
            Self::Life => "the daemon",
            Self::PutBack => "what was put back",
            Self::Namespace => "network namespaces",
            Self::Group => "cgroups of groups",
            Self::Cap => "raised bounds",
            Self::Administrator => "bounds that somebody else has set",
            Self::Adopted => "adopted connections",
            Self::AdoptionLimit => "existing connections",
            Self::GivenBack => "buffers given back",
            Self::Send => "send buffers",
            Self::Receive => "receive windows",
            Self::Pressure => "memory pressure",
            Self::Shortage => "a budget that is too small",
            Self::Full => "connections beyond the bound",
            Self::Bounded => "the budget's bounds",
            Self::Refused => "refusals",
            Self::Engine => "work on the engines",
            Self::Metrics => "metrics that are sent",
            Self::History => "the history",
        }
    }

    /// Returns the name in JSON; stable.
    fn name(self) -> &'static str {
        match self {
            Self::Life => "life",
            Self::PutBack => "put-back",
            Self::Namespace => "namespace",
            Self::Group => "group",
            Self::Cap => "cap",
            Self::Administrator => "administrator",
            Self::Adopted => "adopted",
            Self::AdoptionLimit => "adoption-limit",
            Self::GivenBack => "given-back",
            Self::Send => "send",
            Self::Receive => "receive",
            Self::Pressure => "pressure",
            Self::Shortage => "shortage",
            Self::Full => "full",
            Self::Bounded => "bounded",
            Self::Refused => "refused",
            Self::Engine => "engine",
            Self::Metrics => "metrics",
            Self::History => "history",
        }
    }

    fn is_limited(self) -> bool {
        !matches!(self, Self::Life | Self::PutBack | Self::Group)
    }
}

/// A line of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    pub(crate) priority: Priority,
    pub(crate) kind: Kind,
    pub(crate) text: String,
}

impl Line {
    pub(crate) fn info(kind: Kind, text: impl Display) -> Self {
        Self { priority: Priority::Info, kind, text: text.to_string() }
    }

    pub(crate) fn warning(kind: Kind, text: impl Display) -> Self {
        Self { priority: Priority::Warning, kind, text: text.to_string() }
    }

    /// Writes the line as an event of `tracing`.
    pub(crate) fn write(&self) {
        let Self { priority, kind, text } = self;
        match priority {
            Priority::Warning => warn!(kind = kind.name(), "{text}"),
            Priority::Info => info!(kind = kind.name(), "{text}"),
        }
    }
}

/// Leaves out lines of a kind of which another line was written within the last [`PAUSE`].
#[derive(Debug, Default)]
pub(crate) struct Limiter(BTreeMap<Kind, Told>);

/// Time of a kind's last line, and the number of lines left out since.
#[derive(Debug)]
struct Told {
    at: Micros,
    left_out: u64,
}

impl Limiter {
    /// Returns the line to write, with the number of lines left out before; `None` if it is too early for its kind.
    pub(crate) fn pass(&mut self, line: Line, now: Micros) -> Option<Line> {
        if !line.kind.is_limited() {
            return Some(line);
        }
        let Some(told) = self.0.get_mut(&line.kind) else {
            self.0.insert(line.kind, Told { at: now, left_out: 0 });
            return Some(line);
        };
        if now < told.at + PAUSE {
            told.left_out += 1;
            return None;
        }
        told.at = now;
        Some(match std::mem::take(&mut told.left_out) {
            0 => line,
            count => {
                let lines = counted(count, "line");
                Line { text: format!("{} ({lines} of this kind left out before)", line.text), ..line }
            }
        })
    }

    /// Returns whether a line of this kind would be written now. Callers add up counts until then, so that none is
    /// left out.
    pub(crate) fn is_ready(&self, kind: Kind, now: Micros) -> bool {
        !kind.is_limited() || self.0.get(&kind).is_none_or(|told| now >= told.at + PAUSE)
    }

    /// Returns a line with the number of lines left out for each kind that may have one again.
    pub(crate) fn catch_up(&mut self, now: Micros) -> Vec<Line> {
        let due = self.0.iter_mut().filter(|(_, told)| told.left_out > 0 && now >= told.at + PAUSE);
        due.map(|(kind, told)| {
            told.at = now;
            let count = std::mem::take(&mut told.left_out);
            Line::info(*kind, format_args!("left out, on {}: {}", kind.about(), counted(count, "line")))
        })
        .collect()
    }
}

/// Decides which failures of repeated work are logged: the first one, and another cause, at most one line in ten minutes.
/// The first success after a failure that was logged is logged as well.
#[derive(Debug, Default)]
pub struct Failures {
    /// The cause that was logged, until the work succeeds.
    told: Option<String>,
    /// Failures before this time are not logged.
    quiet: Option<Instant>,
}

impl Failures {
    /// Notes that the work has failed; returns whether to log the cause.
    pub fn failed(&mut self, cause: &str, now: Instant) -> bool {
        if self.told.as_deref() == Some(cause) || self.quiet.is_some_and(|quiet| now < quiet) {
            return false;
        }
        self.told = Some(cause.to_owned());
        self.quiet = Some(now + QUIET);
        true
    }

    /// Notes that the work has succeeded; returns whether to log that.
    pub fn succeeded(&mut self) -> bool {
        self.told.take().is_some()
    }
}

/// Format of the log's lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// Text for people.
    #[default]
    Text,
    /// A JSON object per line.
    Json,
}

impl FromStr for Format {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "text" => Ok(Self::Text),
            "json" => Ok(Self::Json),
            _ => Err(format!("`{text}` is no format of the log: text or json")),
        }
    }
}

impl Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Text => "text",
            Self::Json => "json",
        })
    }
}

/// Logs a warning at the daemon's start.
pub fn warn(text: impl Display) {
    Line::warning(Kind::Life, text).write();
}

/// Logs that sending metrics fails, or works again.
pub fn of_metrics(text: impl Display, is_failure: bool) {
    let line = if is_failure { Line::warning } else { Line::info };
    line(Kind::Metrics, text).write();
}

/// Sends lines to standard error in this format from now on. Only the first call in a process has an effect.
pub fn start(format: Format) {
    let form = Form { format, journal: is_journal() };
    // A second call keeps the first one's format.
    let _started_before = tracing_subscriber::fmt()
        .with_writer(io::stderr)
        // Otherwise, a line for which the disk has no room would end in a panic: the library reports its error on the
        // same disk.
        .log_internal_errors(false)
        .with_max_level(Level::INFO)
        .event_format(form)
        .try_init();
}

/// Returns whether standard error is the journal's stream: `JOURNAL_STREAM` names its device and inode
/// (systemd.exec(5)).
#[must_use]
pub fn is_journal() -> bool {
    let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(io::stderr()).is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
}

/// Formats an event as a line.
#[derive(Clone, Copy, Debug)]
struct Form {
    format: Format,
    journal: bool,
}

impl<S, N> FormatEvent<S, N> for Form
where
    S: Subscriber + for<'span> LookupSpan<'span>,
    N: for<'writer> FormatFields<'writer> + 'static,
{
    fn format_event(
        &self,
        _context: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let mut fields = Fields::default();
        event.record(&mut fields);
        let level = *event.metadata().level();
        if self.journal {
            // Numbered as syslog's priorities.
            write!(writer, "<{}>", if level == Level::WARN { 4 } else { 6 })?;
        }
        // In JSON control characters are escaped.
        match self.format {
            Format::Text if self.journal => writeln!(writer, "{}", printable(&fields.message)),
            Format::Text => writeln!(writer, "bufwise: {}", printable(&fields.message)),
            Format::Json => {
                let mut time = String::new();
                SystemTime.format_time(&mut Writer::new(&mut time))?;
                let level = if level == Level::WARN { "warning" } else { "info" };
                let object = Object { time: &time, level, kind: &fields.kind, message: &fields.message };
                writeln!(writer, "{}", serde_json::to_string(&object).map_err(|_| fmt::Error)?)
            }
        }
    }
}

/// The fields of an event that a line shows.
#[derive(Debug, Default)]
struct Fields {
    kind: String,
    message: String,
}

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "kind" {
            value.clone_into(&mut self.kind);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}

/// A line in JSON; the keys are stable.
#[derive(Serialize)]
struct Object<'a> {
    /// Time in RFC 3339 format, UTC.
    time: &'a str,
    level: &'a str,
    kind: &'a str,
    message: &'a str,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[test]
    fn a_kind_speaks_once_in_ten_seconds_and_tells_what_it_left_out() {
        let mut limiter = Limiter::default();
        let mut told = Vec::new();
        for (seconds, line) in [
            (0, Line::info(Kind::Adopted, "first")),
            (1, Line::info(Kind::Adopted, "second")),
            (9, Line::info(Kind::Adopted, "third")),
            (10, Line::info(Kind::Adopted, "fourth")),
            (11, Line::info(Kind::Adopted, "fifth")),
            (11, Line::warning(Kind::Pressure, "another kind")),
            (11, Line::info(Kind::Life, "begin")),
            (11, Line::info(Kind::Life, "end")),
        ] {
            told.extend(limiter.pass(line, Micros::from_secs(seconds)));
        }
        for seconds in [19, 20, 40] {
            told.extend(limiter.catch_up(Micros::from_secs(seconds)));
        }
        let told: Vec<&str> = told.iter().map(|line| line.text.as_str()).collect();
        assert_eq!(
            told,
            [
                "first",
                "fourth (2 lines of this kind left out before)",
                "another kind",
                "begin",
                "end",
                "left out, on adopted connections: 1 line",
            ]
        );
    }

    #[test]
    fn a_lasting_failure_is_a_line_for_each_cause_and_at_most_one_in_ten_minutes() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        assert!(!failures.succeeded());
        let told = [("gone", 0), ("gone", 15), ("full", 30), ("full", 600), ("full", 615), ("full", 1_300)];
        let told = told.map(|(cause, seconds)| failures.failed(cause, at(seconds)));
        assert_eq!(told, [true, false, false, true, false, false]);
        assert!(failures.succeeded() && !failures.succeeded());
        // Work that fails every other time.
        assert!(failures.failed("full", at(1_315)));
        assert!(failures.succeeded());
        assert!(!failures.failed("full", at(1_330)) && !failures.succeeded());
    }

    #[derive(Clone, Default)]
    struct Paper(Arc<Mutex<Vec<u8>>>);

    impl Write for Paper {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// Returns the lines as written in one format.
    fn written(format: Format, journal: bool, lines: &[Line]) -> String {
        let paper = Paper::default();
        let writer = paper.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_writer(move || writer.clone())
            .event_format(Form { format, journal })
            .finish();
        tracing::subscriber::with_default(subscriber, || lines.iter().for_each(Line::write));
        let text = paper.0.lock().unwrap().clone();
        String::from_utf8(text).unwrap()
    }

    #[test]
    fn text_has_our_name_on_a_terminal_and_the_priority_in_the_journal() {
        let lines = [Line::info(Kind::Life, "tuning 50%"), Line::warning(Kind::Refused, "no {room}")];
        assert_eq!(written(Format::Text, false, &lines), "bufwise: tuning 50%\nbufwise: no {room}\n");
        assert_eq!(written(Format::Text, true, &lines), "<6>tuning 50%\n<4>no {room}\n");
        let odd = [Line::info(Kind::Group, "cgroup /a\n<2>b\u{1b}[2J found")];
        assert_eq!(written(Format::Text, true, &odd), "<6>cgroup /a?<2>b?[2J found\n");
    }

    #[test]
    fn json_is_an_object_a_line_with_time_level_kind_and_message() {
        let line = Line::warning(Kind::PutBack, "not put back: \"blue\"\nagain");
        let text = written(Format::Json, false, std::slice::from_ref(&line));
        assert_eq!(text.lines().count(), 1, "{text}");
        let object: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(object["level"], "warning");
        assert_eq!(object["kind"], "put-back");
        assert_eq!(object["message"], "not put back: \"blue\"\nagain");
        let time = object["time"].as_str().unwrap();
        assert!(time.contains('T') && time.ends_with('Z'), "{time}");
        assert_eq!(object.as_object().unwrap().len(), 4);
        assert!(written(Format::Json, true, &[line]).starts_with("<4>{\"time\":"));
    }

    #[test]
    fn a_format_reads_back_as_it_was_written_and_others_are_refused() {
        for format in [Format::Text, Format::Json] {
            assert_eq!(format.to_string().parse(), Ok(format));
        }
        assert!("xml".parse::<Format>().unwrap_err().contains("text or json"));
    }
}
