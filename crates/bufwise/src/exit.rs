//! Exit status and last words, in one place: 0 done, 1 failed, 2 wrong usage; errors are one line.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;

use bufwise_host::in_words;

/// Wrong usage.
pub(crate) const USAGE: u8 = 2;
/// It failed.
pub(crate) const FAILED: u8 = 1;

/// Why the program ends with something other than success.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// A failure with an exit status of its own.
    pub(crate) fn new(status: u8, message: impl fmt::Display) -> Self {
        Self { status, message: message.to_string() }
    }

    /// Wrong usage: what was wrong and what to write instead.
    pub(crate) fn usage(message: impl fmt::Display) -> Self {
        Self::new(USAGE, message)
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl<E: Into<anyhow::Error>> From<E> for Failure {
    fn from(error: E) -> Self {
        Self::new(FAILED, in_words(error.into().as_ref()))
    }
}

/// The result of a command: the exit status of success, which is a program's own for `lab path`.
pub(crate) type Outcome = Result<u8, Failure>;

/// Says what went wrong on standard error, in one line, and gives the exit status.
pub(crate) fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, message }) => {
            let line = message.lines().map(str::trim).filter(|line| !line.is_empty());
            let line = line.collect::<Vec<_>>().join(" ");
            // An error here is ignored: without standard error there is no place left to report to.
            let _closed = writeln!(io::stderr(), "bufwise: {line}");
            ExitCode::from(status)
        }
    }
}
