//! Why a transfer failed.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use bufwise_socket::options::OptionError;
use bufwise_units::{BitRate, Rate};

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A connection could not be made.
    #[error("{operation} {address} failed: {source}")]
    Connect {
        /// The step that failed.
        operation: &'static str,
        /// The address it was for.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// A socket option could not be read or set.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The connection broke.
    #[error("the connection broke after {bytes} bytes: {source}{}", blame(.stalled))]
    Connection {
        /// Bytes moved until then.
        bytes: u64,
        /// The system's error.
        source: io::Error,
        /// The longest time that the local file kept the connection waiting, if that was long enough for a peer to give
        /// up.
        stalled: Option<Duration>,
    },
    /// An encrypted stream ended unannounced: an attacker may have cut it.
    #[error("the encrypted connection was cut after {bytes} bytes: the file may be incomplete")]
    Truncated {
        /// Bytes received until then.
        bytes: u64,
    },
    /// The local file could not be read or written.
    #[error("{operation} the local file failed after {bytes} bytes: {source}")]
    File {
        /// Reading or writing.
        operation: &'static str,
        /// Bytes moved until then.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The stream was shorter or longer than announced.
    #[error("the file should have {expected} bytes, but {received} came")]
    Length {
        /// Announced length.
        expected: u64,
        /// Bytes received when that was noticed.
        received: u64,
    },
    /// The local file became shorter while it was sent.
    #[error("the local file ended after {sent} of {expected} bytes: it became shorter while it was sent")]
    Shrunk {
        /// Length at the beginning.
        expected: u64,
        /// Bytes sent.
        sent: u64,
    },
    /// No byte moved for too long.
    #[error("no data for {seconds} s: the peer or the path has stopped")]
    Idle {
        /// The longest time allowed.
        seconds: f64,
    },
    /// Less moved than the lowest rate allows.
    #[error("less than {} for {seconds} s", BitRate(.lowest.bits_per_sec()))]
    Slow {
        /// The lowest rate.
        lowest: Rate,
        /// The time that it was the mean of.
        seconds: f64,
    },
    /// The whole took too long.
    #[error("the transfer did not end before its deadline")]
    Deadline,
    /// Ended on request.
    #[error("the transfer was cancelled after {bytes} bytes")]
    Cancelled {
        /// Bytes moved until then.
        bytes: u64,
    },
}

fn blame(stalled: &Option<Duration>) -> String {
    match stalled {
        Some(time) => format!(" (the local file kept it waiting for {:.1} s)", time.as_secs_f64()),
        None => String::new(),
    }
}
