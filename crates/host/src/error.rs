//! Failures on a host, with the operation and the object named.

use std::error::Error as StdError;
use std::io;
use std::path::PathBuf;

use bufwise_bpf::{CgroupError, EngineError, LeftoverError};
use bufwise_socket::device::DeviceError;
use bufwise_socket::diag::DiagError;
use thiserror::Error;

use crate::control::ControlError;

/// Why an operation on this host failed.
#[derive(Debug, Error)]
pub enum Error {
    /// The system refused.
    #[error("{operation}")]
    System {
        /// The operation and its object: `cannot read /proc`.
        operation: String,
        /// The system's error.
        source: io::Error,
    },
    /// The size of the host's memory cannot be read; the default budget is a part of it.
    #[error("cannot see how much memory there is: use --memory")]
    Memory,
    /// The connections of a network namespace cannot be listed.
    #[error("cannot list connections")]
    Diagnostics(#[from] DiagError),
    /// The network devices cannot be listed or set.
    #[error(transparent)]
    Devices(#[from] DeviceError),
    /// The engine could not be loaded, attached, or read.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// A cgroup cannot be used.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// Leftovers of a killed bufwise cannot be listed.
    #[error(transparent)]
    Leftovers(#[from] LeftoverError),
    /// The configuration cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The control socket cannot be used.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// The result of an operation on this host.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Adds the operation to an error of the system.
pub(crate) trait During<T> {
    /// Converts the error to [`Error::System`] with this `operation`.
    fn during(self, operation: impl FnOnce() -> String) -> Result<T>;
}

impl<T, E: Into<io::Error>> During<T> for Result<T, E> {
    fn during(self, operation: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::System { operation: operation(), source: source.into() })
    }
}

/// Formats an error with its causes in one line; causes whose text is already included are skipped.
#[must_use]
pub fn in_words(error: &(dyn StdError + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| (*error).source());
    causes.map(ToString::to_string).fold(String::new(), |words, cause| match words.as_str() {
        "" => cause,
        known if known.contains(&cause) => words,
        _ => format!("{words}: {cause}"),
    })
}

/// Why the configuration cannot be used; one line.
#[derive(Debug, Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// Path of the file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file has invalid content.
    #[error("{}, {what}", path.display())]
    Content {
        /// Path of the file.
        path: PathBuf,
        /// Line, key, what is wrong and what is allowed.
        what: String,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_the_operation_then_the_systems_answer() {
        let refused: Result<(), io::Error> = Err(io::Error::from_raw_os_error(1));
        let error = refused.during(|| "cannot read /proc".to_owned()).unwrap_err();
        assert_eq!(in_words(&error), "cannot read /proc: Operation not permitted (os error 1)");
    }

    #[test]
    fn a_cause_that_is_named_already_is_not_repeated() {
        let source = io::Error::other("it is full");
        let inner = Error::System { operation: "cannot write (it is full)".to_owned(), source };
        assert_eq!(in_words(&inner), "cannot write (it is full)");
    }
}
