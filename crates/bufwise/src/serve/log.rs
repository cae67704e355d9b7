//! Log lines on standard error, for people and for the journal.
//!
//! One line an event. Events that strangers can cause at any rate (connections turned away, trouble) are bounded: one
//! line in ten seconds of each kind, which tells how many were left out.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bufwise_ftp::server::Event;
use bufwise_host::log::is_journal;

/// A kind that is bounded speaks no more often than this.
const PATIENCE: Duration = Duration::from_secs(10);
/// Priorities of syslog.
const WARNING: u8 = 4;
const INFO: u8 = 6;

/// Where lines go.
pub(super) struct Log {
    with_priority: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refused: Told,
    trouble: Told,
}

/// When a kind spoke last, and what it has been kept from saying since.
#[derive(Default)]
struct Told {
    at: Option<Instant>,
    left_out: u64,
}

impl Told {
    /// Whether it may speak now, and what it has left out; else one more is left out.
    fn may_speak(&mut self, now: Instant) -> Option<u64> {
        if self.at.is_some_and(|at| now < at + PATIENCE) {
            self.left_out += 1;
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl Log {
    /// Standard error, with priorities where that is the journal.
    pub(super) fn to_stderr() -> Self {
        Self { with_priority: is_journal(), state: Mutex::default() }
    }

    pub(super) fn info(&self, line: impl fmt::Display) {
        self.write(INFO, &line);
    }

    pub(super) fn warn(&self, line: impl fmt::Display) {
        self.write(WARNING, &line);
    }

    /// Something that the server tells.
    pub(super) fn event(&self, event: &Event) {
        let left_out = {
            // Counters are valid at any time, also after a panic elsewhere.
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            match event {
                Event::Refused { .. } => state.refused.may_speak(Instant::now()),
                Event::Trouble { .. } => state.trouble.may_speak(Instant::now()),
                _ => Some(0),
            }
        };
        let priority = if event.is_warning() { WARNING } else { INFO };
        match left_out {
            None => {}
            Some(0) => self.write(priority, event),
            Some(count) => {
                self.write(priority, &format_args!("{event} ({count} lines of this kind left out before)"));
            }
        }
    }

    fn write(&self, priority: u8, line: &dyn fmt::Display) {
        let text = match self.with_priority {
            true => format!("<{priority}>{line}\n"),
            false => format!("bufwise: {line}\n"),
        };
        // One call keeps the lines of several threads whole. The server goes on even if the log has no reader.
        let _unread = io::stderr().lock().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bounded_kind_speaks_once_in_ten_seconds_and_tells_what_it_left_out() {
        let mut told = Told::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let spoken: Vec<_> = [0, 1, 9, 10, 30].map(|seconds| told.may_speak(at(seconds))).into();
        assert_eq!(spoken, [Some(0), None, None, Some(2), Some(0)]);
    }
}
