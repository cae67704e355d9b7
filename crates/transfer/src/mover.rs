//! Moving the bytes of one file over one TCP connection.
//!
//! The sender hands the file to the kernel; the receiver reads, writes, and every few milliseconds shows the
//! connection to a policy and applies what that decides. Either sums the bytes on request. The end of the file
//! is the end of the stream, as in FTP's stream mode (RFC 959, section 3.4.1).
//!
//! ```text
//!   sender                                      receiver
//!     Sockets::listen, Responder::start            Prober::start
//!                                                  Tuner::new, Tuner::prepare: capacity, first decision
//!     accept  <--------------- TCP --------------  Sockets::connect
//!     send(file, stream, ..)  ----------------->   receive(stream, file, tuner, ..)
//!     Wishes::set  <----- control channel --------   Progress::wish_of_sender
//! ```
//!
//! Properties kept: both ends sum what really passed, so equal sums mean an equal file; every wait is bounded
//! by an idle time and, if given, a deadline, and ends when cancelled; fixed buffer sizes are set before the
//! connection is made, when the window scale is still open; what a peer wishes is bounded here.

mod arrivals;
mod bucket;
mod cancel;
mod copy;
mod drs;
mod error;
mod host;
mod pipe;
mod progress;
mod receive;
mod send;
mod share;
mod sink;
mod sockets;
mod source;
#[cfg(test)]
mod tests;
mod tuner;
mod window;
mod wish;
mod wishes;

use std::time::{Duration, Instant};

use bufwise_units::{Bytes, Rate};

pub use cancel::Cancel;
pub use error::MoveError;
pub(crate) use progress::Unread;
pub use progress::{Held, Progress, Report};
pub use receive::{Received, receive};
pub use send::{Sent, send};
pub use share::Share;
pub use sink::{FilePart, Sink, Writer};
pub use sockets::{Sockets, accept};
pub(crate) use sockets::{accept_unless, is_passing};
pub use source::Source;
pub use tuner::{Step, Tuner};
pub use wishes::Wishes;

use crate::hash::HashKind;

/// How often a caller hears of progress.
const PROGRESS: Duration = Duration::from_millis(100);

/// Unsent bytes above which a tuned connection takes no more: what is in flight is the path's, the rest would
/// only wait in memory. 100 ms at 20 Mbit/s, 1 ms at 2 Gbit/s.
const UNSENT_AT_MOST: Bytes = Bytes(256 << 10);

/// What a transfer keeps to, at either end.
#[derive(Clone, Debug, Default)]
pub struct Job {
    /// How long it may take.
    pub bounds: Bounds,
    /// Upper bound of the rate, in bytes per second.
    pub limit: Option<Rate>,
    /// The sum to make of the bytes that pass.
    pub hash: Option<HashKind>,
    /// What ends it early.
    pub cancel: Cancel,
    /// A receiver takes the end of an encrypted stream for the end of the file though the peer did not announce it
    /// (`close_notify`), as some stock programs do not. Whoever can cut the connection can then cut the file.
    pub unannounced_end: bool,
}

/// How long a transfer may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// Longest time without a byte moving.
    pub idle: Duration,
    /// Moment at which the transfer is given up.
    pub deadline: Option<Instant>,
}

impl Default for Bounds {
    /// A minute without a byte (we: FTP servers allow some minutes for the whole session), no deadline.
    fn default() -> Self {
        Self { idle: Duration::from_secs(60), deadline: None }
    }
}

impl Bounds {
    /// When a wait that began with a byte at `last` must end.
    pub(crate) fn end(&self, last: Instant) -> Instant {
        let idle = last + self.idle;
        self.deadline.map_or(idle, |deadline| deadline.min(idle))
    }

    /// Whether that has come, and for what reason.
    pub(crate) fn check(&self, last: Instant, now: Instant) -> Result<(), MoveError> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            Err(MoveError::Deadline)
        } else if now >= last + self.idle {
            Err(MoveError::Idle { seconds: self.idle.as_secs_f64() })
        } else {
            Ok(())
        }
    }
}
