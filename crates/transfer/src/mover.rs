//! Moving the bytes of one file over one TCP connection.
//!
//! The sender reads, sums and writes; the receiver reads, sums, writes, and every few milliseconds shows the
//! connection to a policy and applies what that decides. The end of the file is the end of the stream, as
//! in FTP's stream mode (RFC 959, section 3.4.1).
//!
//! ```text
//!   sender                                      receiver
//!     Sockets::listen, Responder::start            Prober::start
//!                                                  Tuner::new, Tuner::prepare: capacity, first decision
//!     accept  <--------------- TCP --------------  Sockets::connect
//!     send(file, stream, responder)  ---------->   receive(stream, file, tuner)
//!     compare checksums
//! ```
//!
//! Properties kept: both ends sum what really passed, so equal sums mean an equal file; every wait is bounded
//! by an idle time and, if given, a deadline; buffer sizes are set before the connection is made, when the
//! window scale is still open.

mod error;
mod receive;
mod send;
mod sockets;
#[cfg(test)]
mod tests;
mod tuner;
mod window;

use std::fmt;
use std::time::{Duration, Instant};

pub use error::MoveError;
pub use receive::{Received, receive};
pub use send::{Sent, send};
pub use sockets::{Sockets, accept};
pub use tuner::{Step, Tuner};

/// Bytes read or written by one call.
const CHUNK: usize = 256 << 10;
/// How often a caller hears of progress.
const PROGRESS: Duration = Duration::from_millis(100);

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
    fn end(&self, last: Instant) -> Instant {
        let idle = last + self.idle;
        self.deadline.map_or(idle, |deadline| deadline.min(idle))
    }

    /// Whether that has come, and for what reason.
    fn check(&self, last: Instant, now: Instant) -> Result<(), MoveError> {
        if self.deadline.is_some_and(|deadline| now >= deadline) {
            Err(MoveError::Deadline)
        } else if now >= last + self.idle {
            Err(MoveError::Idle { seconds: self.idle.as_secs_f64() })
        } else {
            Ok(())
        }
    }
}

/// XXH3-128 of a file's bytes: finds every accident, at memory speed; it does not resist an attacker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Checksum(pub u128);

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}
