//! Errors of loading and running the kernel's side.

use std::io;

use nix::errno::Errno;

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
        /// The kernel's error.
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
    move |error| {
        // The kernel's words for this are "Argument list too long".
        let reason =
            if is_full(&error) { "there is no room for another entry".to_owned() } else { error.to_string() };
        EngineError::Map { operation, reason }
    }
}

/// Returns whether an update failed because the map has no room for another entry.
pub(crate) fn is_full(error: &libbpf_rs::Error) -> bool {
    error.kind() == libbpf_rs::ErrorKind::TooBig
}

/// Returns whether descriptors or memory are short, so that the same call may succeed later.
pub(crate) fn is_scarce(error: &io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw);
    matches!(errno, Some(Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM))
}

pub(crate) fn cannot(step: &'static str) -> impl Fn(io::Error) -> EngineError {
    move |source| EngineError::Sweep { step, source }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_map_without_room_is_told_in_words() {
        let error = |errno| libbpf_rs::Error::from(io::Error::from_raw_os_error(errno));
        let told = |errno| failed("noting the cgroup")(error(errno)).to_string();
        assert_eq!(told(libc::E2BIG), "noting the cgroup failed: there is no room for another entry");
        assert!(told(libc::EPERM).contains("not permitted"));
    }
}
