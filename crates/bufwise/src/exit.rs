//! Exit status and error message, in one place: 0 done, 1 failed, 2 wrong usage; errors are one line.

use std::fmt;
use std::process::ExitCode;

use bufwise_host::in_words;

use crate::output;

/// Exit status for wrong usage.
pub(crate) const USAGE: u8 = 2;
/// Exit status for a failure.
pub(crate) const FAILED: u8 = 1;

/// Why the program ends without success.
#[derive(Debug)]
pub(crate) struct Failure {
    status: u8,
    message: String,
}

impl Failure {
    /// Makes a failure with its own exit status.
    pub(crate) fn new(status: u8, message: impl fmt::Display) -> Self {
        Self { status, message: message.to_string() }
    }

    /// Makes a failure for wrong usage: what was wrong and what to write instead.
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

/// The result of a command: the exit status on success, which for `lab path` is the client's.
pub(crate) type Outcome = Result<u8, Failure>;

/// Writes a failure to standard error, in one line, and returns the exit status.
pub(crate) fn report(outcome: Outcome) -> ExitCode {
    match outcome {
        Ok(status) => ExitCode::from(status),
        Err(Failure { status, message }) => {
            let line = message.lines().map(str::trim).filter(|line| !line.is_empty());
            output::note(&format!("bufwise: {}\n", line.collect::<Vec<_>>().join(" ")));
            ExitCode::from(status)
        }
    }
}
