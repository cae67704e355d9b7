//! Log lines on standard error, for a terminal and for the journal.
//!
//! One line per event. Events that clients can cause at any rate (refused connections, logins without a password, what
//! such sessions transfer and change, their ends, errors) are limited to one line of each kind in ten seconds, which counts
//! those left out.

use std::fmt;
use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use bufwise_ftp::server::Event;
use bufwise_host::log::is_journal;
use bufwise_units::counted;

/// Least time between two lines of a limited kind.
const PATIENCE: Duration = Duration::from_secs(10);
/// Priorities of syslog(3).
const WARNING: u8 = 4;
const INFO: u8 = 6;

/// Destination of the lines.
pub(super) struct Log {
    with_priority: bool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    refused: Told,
    /// Logins without a password.
    entered: Told,
    /// Files transferred by those who had logged in so.
    moved: Told,
    /// Files changed by them.
    changed: Told,
    /// Ends of sessions that had not logged in with a password.
    ended: Told,
    trouble: Told,
}

/// When a kind was last logged, and how many lines were left out since.
#[derive(Default)]
struct Told {
    at: Option<Instant>,
    left_out: u64,
}

impl Told {
    /// Returns the number of lines left out if a line may be logged now; otherwise counts one more as left out.
    fn may_speak(&mut self, now: Instant) -> Option<u64> {
        if self.at.is_some_and(|at| now < at + PATIENCE) {
            self.left_out += 1;
            return None;
        }
        self.at = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

impl State {
    /// As [`Told::may_speak`], for the kind of this event; other kinds are not limited.
    fn may_speak(&mut self, event: &Event, now: Instant) -> Option<u64> {
        match event {
            Event::Refused { .. } => self.refused.may_speak(now),
            Event::LoggedIn { is_known: false, .. } => self.entered.may_speak(now),
            Event::Transfer(transfer) if !transfer.is_known => self.moved.may_speak(now),
            Event::Changed { is_known: false, .. } => self.changed.may_speak(now),
            Event::Ended { is_known: false, .. } => self.ended.may_speak(now),
            Event::Trouble { .. } => self.trouble.may_speak(now),
            _ => Some(0),
        }
    }
}

impl Log {
    /// Logs to standard error, with priorities if that is the journal.
    pub(super) fn to_stderr() -> Self {
        Self { with_priority: is_journal(), state: Mutex::default() }
    }

    pub(super) fn info(&self, line: impl fmt::Display) {
        self.write(INFO, &line);
    }

    pub(super) fn warn(&self, line: impl fmt::Display) {
        self.write(WARNING, &line);
    }

    /// Logs an event of the server.
    pub(super) fn event(&self, event: &Event) {
        let left_out = {
            // Counters are valid at any time, also after a panic elsewhere.
            let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
            state.may_speak(event, Instant::now())
        };
        let priority = if event.is_warning() { WARNING } else { INFO };
        match left_out {
            None => {}
            Some(0) => self.write(priority, event),
            Some(count) => {
                let lines = counted(count, "line");
                self.write(priority, &format_args!("{event} ({lines} of this kind left out before)"));
            }
        }
    }

    fn write(&self, priority: u8, line: &dyn fmt::Display) {
        let text = match self.with_priority {
            true => format!("<{priority}>{line}\n"),
            false => format!("bufwise: {line}\n"),
        };
        // A single call keeps the lines of several threads whole. The server continues even if the log has no reader.
        let _unread = io::stderr().lock().write_all(text.as_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_ftp::server::{Direction, Transfer};

    #[test]
    fn a_bounded_kind_speaks_once_in_ten_seconds_and_tells_what_it_left_out() {
        let mut told = Told::default();
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let spoken: Vec<_> = [0, 1, 9, 10, 30].map(|seconds| told.may_speak(at(seconds))).into();
        assert_eq!(spoken, [Some(0), None, None, Some(2), Some(0)]);
    }

    #[test]
    fn files_of_those_without_a_password_are_bounded_kinds_and_those_of_others_are_not() {
        let (mut state, start) = (State::default(), Instant::now());
        let transfer = |is_known| {
            Event::Transfer(Box::new(Transfer {
                peer: [198, 18, 0, 1].into(),
                user: "jo".to_owned(),
                is_known,
                direction: Direction::Sent,
                path: "/file".to_owned(),
                offset: 0,
                bytes: 10,
                elapsed: Duration::ZERO,
                tls: false,
                failure: None,
                policy: None,
                buffer_request: None,
                report: None,
            }))
        };
        let changed = |is_known| Event::Changed {
            peer: ([198, 18, 0, 1], 1_024).into(),
            user: "jo".to_owned(),
            is_known,
            what: "made",
            path: "/new".to_owned(),
        };
        for event in [&transfer as &dyn Fn(bool) -> Event, &changed] {
            let mut spoken =
                |is_known, at| state.may_speak(&event(is_known), start + Duration::from_secs(at));
            assert_eq!([0, 1, 9, 10].map(|at| spoken(false, at)), [Some(0), None, None, Some(2)]);
            assert_eq!([spoken(true, 11), spoken(true, 11)], [Some(0); 2]);
        }
    }

    #[test]
    fn logins_and_ends_that_anybody_can_cause_are_bounded_kinds_of_their_own() {
        let (mut state, start) = (State::default(), Instant::now());
        let peer = ([198, 18, 0, 1], 1_024).into();
        let ended = |is_known| Event::Ended { peer, is_known, reason: "no login came in time".to_owned() };
        let mut spoken =
            |event: Event, seconds| state.may_speak(&event, start + Duration::from_secs(seconds));
        assert_eq!(spoken(ended(false), 0), Some(0));
        assert_eq!(spoken(Event::Refused { peer, reason: "it has too many sessions" }, 0), Some(0));
        assert_eq!(spoken(ended(false), 1), None);
        assert_eq!([spoken(ended(true), 2), spoken(ended(true), 2)], [Some(0); 2]);
        assert_eq!(spoken(ended(false), 10), Some(1));
        let entered = |is_known| Event::LoggedIn { peer, user: "jo".to_owned(), is_known, tls: false };
        assert_eq!([0, 1, 10].map(|at| spoken(entered(false), at)), [Some(0), None, Some(1)]);
        assert_eq!([spoken(entered(true), 2), spoken(entered(true), 2)], [Some(0); 2]);
    }
}
