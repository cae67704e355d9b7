//! Events for callers while a file moves.

use std::time::Duration;

use bufwise_mover::Progress;

use super::error::ClientError;

/// An event of a worker that moves a file.
#[derive(Debug)]
pub enum Event<'a> {
    /// A transfer begins.
    Begun {
        /// Bytes of the whole file; `None`: the server does not say.
        size: Option<u64>,
        /// Bytes that an earlier attempt has left.
        resumed_from: u64,
    },
    /// Data moves.
    Progress(&'a Progress),
    /// An attempt failed; the next one begins after this time.
    Retry {
        /// The error of the failed attempt.
        error: &'a ClientError,
        /// Time until the next attempt.
        wait: Duration,
    },
    /// The partial file belonged to another file: the transfer starts over.
    BegunAnew,
}
