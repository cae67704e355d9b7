//! Errors of loading and running the kernel's side.

use std::io;

/// Why the kernel's side does not run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// The kernel refused the programs.
    #[error("the kernel refused bufwise's programs ({step}): {reason}; bufwise check says what is missing")]
    Refused {
        /// The step that failed: opening, loading.
        step: &'static str,
        /// The kernel's answer.
        reason: String,
    },
    /// The programs could not be attached to the cgroup.
    #[error("attaching to the cgroup failed: {0}")]
    Attach(io::Error),
    /// The sockets of a network namespace could not be swept.
    #[error("{step} the connections of a network namespace failed: {source}")]
    Sweep {
        /// The operation that failed.
        step: &'static str,
        /// The kernel's answer.
        source: io::Error,
    },
    /// A map could not be read or written.
    #[error("{operation} failed: {reason}")]
    Map {
        /// The operation that failed.
        operation: &'static str,
        /// The kernel's answer.
        reason: String,
    },
}

pub(crate) fn refused(step: &'static str) -> impl Fn(libbpf_rs::Error) -> EngineError {
    move |error| EngineError::Refused { step, reason: error.to_string() }
}

pub(crate) fn failed(operation: &'static str) -> impl Fn(libbpf_rs::Error) -> EngineError {
    move |error| EngineError::Map { operation, reason: error.to_string() }
}

/// Returns whether an update failed because the map has no room for another entry.
pub(crate) fn is_full(error: &libbpf_rs::Error) -> bool {
    error.kind() == libbpf_rs::ErrorKind::TooBig
}

pub(crate) fn cannot(step: &'static str) -> impl Fn(io::Error) -> EngineError {
    move |source| EngineError::Sweep { step, source }
}
