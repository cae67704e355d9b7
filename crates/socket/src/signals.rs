//! The signals that a process ignores.
//!
//! Problem: a process inherits from its parent which signals are ignored: SIGHUP under nohup(1), SIGINT and SIGQUIT if a shell
//! without job control starts it by `&`. A program that installs a handler, or reads signals from a descriptor, must leave these
//! signals out; otherwise they take effect all the same.
//! Source: execve(2), signal(7), `SigIgn` in proc_pid_status(5).

use std::fs;

/// The signals that a process ignores: a bit for each, from the first on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored(u64);

impl Ignored {
    /// Returns the signals that this process ignores now; none if `/proc` does not show them.
    #[must_use]
    pub fn by_this_process() -> Self {
        Self::in_status(&fs::read_to_string("/proc/self/status").unwrap_or_default())
    }

    /// Returns the ignored signals in `status`, a text as `/proc/PID/status`; none if it does not name them.
    #[must_use]
    pub fn in_status(status: &str) -> Self {
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default())
    }

    /// Returns whether the signal with this number, 1 to 64, is ignored.
    #[must_use]
    pub fn has(self, signal: i32) -> bool {
        self.0 & 1 << (signal - 1) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use libc::{SIGHUP, SIGINT, SIGPIPE, SIGTERM};

    #[test]
    fn a_bit_stands_for_each_ignored_signal_from_the_first_on() {
        let ignored = |status: &str| {
            let ignored = Ignored::in_status(status);
            [SIGHUP, SIGINT, SIGTERM, 64].map(|signal| ignored.has(signal))
        };
        assert_eq!(ignored("Name:\tbufwise\nSigIgn:\t0000000000000001\n"), [true, false, false, false]);
        assert_eq!(ignored("SigIgn:\t0000000000001002\n"), [false, true, false, false]);
        assert_eq!(ignored("SigIgn:\t8000000000004000\nSigCgt:\t1\n"), [false, false, true, true]);
        for unknown in ["", "SigIgn:\tnone\n"] {
            assert_eq!(ignored(unknown), [false; 4]);
        }
    }

    #[test]
    fn a_rust_program_ignores_the_signal_of_a_broken_pipe() {
        let ignored = Ignored::by_this_process();
        assert!(ignored.has(SIGPIPE) && !ignored.has(SIGTERM));
    }
}
