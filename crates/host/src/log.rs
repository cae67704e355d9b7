//! Log lines on standard error, for people and for the journal.
//!
//! One line a change, with its reason, and at most one in ten seconds of each *kind*: what was left out meanwhile is
//! counted and told by the next one. Under systemd each line begins with its priority (sd-daemon(3)).

use std::collections::HashMap;
use std::env;
use std::fmt;
use std::io::{self, Write};
use std::time::{Duration, Instant};

use nix::sys::stat::fstat;

/// A kind of event speaks no more often than this.
const PATIENCE: Duration = Duration::from_secs(10);

/// How much an event matters; numbered as syslog's priorities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Priority {
    Warning = 4,
    Info = 6,
}

/// What a line is about. Kinds that come in numbers are bounded in rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// Start, reload, end: each once, and always told.
    Life,
    /// Put back, at the end or after a crash.
    PutBack,
    Namespace,
    /// A bound of the host was raised.
    Cap,
    /// A bound was changed by somebody else.
    Administrator,
    Adopted,
    AdoptionLimit,
    GivenBack,
    Send,
    Receive,
    Pressure,
    Shortage,
    Bounded,
    Refused,
}

impl Kind {
    /// What a line is about, in words.
    fn about(self) -> &'static str {
        match self {
            Self::Life => "the daemon",
            Self::PutBack => "what was put back",
            Self::Namespace => "network namespaces",
            Self::Cap => "raised bounds",
            Self::Administrator => "bounds that somebody else has set",
            Self::Adopted => "adopted connections",
            Self::AdoptionLimit => "connections that existed",
            Self::GivenBack => "buffers given back",
            Self::Send => "send buffers",
            Self::Receive => "receive windows",
            Self::Pressure => "memory pressure",
            Self::Shortage => "a budget that is too small",
            Self::Bounded => "the budget's bounds",
            Self::Refused => "refusals",
        }
    }
}

/// Where lines go.
pub(crate) struct Log {
    to: Box<dyn Write>,
    with_priority: bool,
    kinds: HashMap<Kind, Told>,
}

/// When a kind spoke last, and what it has been kept from saying since.
#[derive(Debug)]
struct Told {
    at: Instant,
    left_out: u64,
}

impl Log {
    /// Standard error, with priorities where that is the journal.
    pub(crate) fn to_stderr() -> Self {
        Self { to: Box::new(io::stderr()), with_priority: is_journal(), kinds: HashMap::new() }
    }

    pub(crate) fn info(&mut self, kind: Kind, line: impl fmt::Display) {
        self.say(Priority::Info, kind, &line, Instant::now());
    }

    pub(crate) fn warn(&mut self, kind: Kind, line: impl fmt::Display) {
        self.say(Priority::Warning, kind, &line, Instant::now());
    }

    /// Says what kinds have been kept from saying for long enough.
    pub(crate) fn catch_up(&mut self) {
        self.catch_up_at(Instant::now());
    }

    fn catch_up_at(&mut self, now: Instant) {
        let due = self.kinds.iter_mut().filter(|(_, told)| told.left_out > 0 && now >= told.at + PATIENCE);
        let lines: Vec<String> = due
            .map(|(kind, told)| {
                told.at = now;
                format!("left out, on {}: {} lines", kind.about(), std::mem::take(&mut told.left_out))
            })
            .collect();
        lines.iter().for_each(|line| self.write(Priority::Info, line));
    }

    fn say(&mut self, priority: Priority, kind: Kind, line: &dyn fmt::Display, now: Instant) {
        let is_bounded = !matches!(kind, Kind::Life | Kind::PutBack);
        let mut left_out = 0;
        if is_bounded {
            match self.kinds.get_mut(&kind) {
                Some(told) if now < told.at + PATIENCE => {
                    told.left_out += 1;
                    return;
                }
                Some(told) => {
                    left_out = std::mem::take(&mut told.left_out);
                    told.at = now;
                }
                None => {
                    self.kinds.insert(kind, Told { at: now, left_out: 0 });
                }
            }
        }
        match left_out {
            0 => self.write(priority, line),
            count => {
                self.write(priority, &format_args!("{line} ({count} lines of this kind left out before)"));
            }
        }
    }

    fn write(&mut self, priority: Priority, line: &dyn fmt::Display) {
        let text = match self.with_priority {
            true => format!("<{}>{line}\n", priority as u8),
            false => format!("bufwise: {line}\n"),
        };
        // Nobody reads the log: the tuning goes on.
        let _unread = self.to.write_all(text.as_bytes());
    }
}

/// Whether standard error is what `JOURNAL_STREAM` says the journal reads: device and inode (systemd.exec(5)).
pub fn is_journal() -> bool {
    let stream = env::var("JOURNAL_STREAM").unwrap_or_default();
    fstat(io::stderr()).is_ok_and(|stderr| stream == format!("{}:{}", stderr.st_dev, stderr.st_ino))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Arc, Mutex};

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

    #[test]
    fn a_kind_speaks_once_in_ten_seconds_and_tells_what_it_left_out() {
        let paper = Paper::default();
        let mut log = Log { to: Box::new(paper.clone()), with_priority: true, kinds: HashMap::new() };
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        for (seconds, line) in [(0, "first"), (1, "second"), (9, "third"), (10, "fourth"), (11, "fifth")] {
            log.say(Priority::Info, Kind::Adopted, &line, at(seconds));
        }
        log.say(Priority::Warning, Kind::Pressure, &"another kind", at(11));
        log.say(Priority::Info, Kind::Life, &"begin", at(11));
        log.say(Priority::Info, Kind::Life, &"end", at(11));
        log.catch_up_at(at(19));
        log.catch_up_at(at(20));
        log.catch_up_at(at(40));
        let text = String::from_utf8(paper.0.lock().unwrap().clone()).unwrap();
        assert_eq!(
            text.lines().collect::<Vec<_>>(),
            [
                "<6>first",
                "<6>fourth (2 lines of this kind left out before)",
                "<4>another kind",
                "<6>begin",
                "<6>end",
                "<6>left out, on adopted connections: 1 lines",
            ]
        );
    }
}
