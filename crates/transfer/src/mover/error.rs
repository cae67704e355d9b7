//! Why a transfer failed.

use std::io;
use std::net::SocketAddr;

use bufwise_socket::options::OptionError;

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
pub enum MoveError {
    /// A connection could not be had.
    #[error("{operation} {address} failed: {source}")]
    Connect {
        /// The step that failed.
        operation: &'static str,
        /// The address it was for.
        address: SocketAddr,
        /// The system's answer.
        source: io::Error,
    },
    /// A socket option could not be read or set.
    #[error(transparent)]
    Option(#[from] OptionError),
    /// The connection broke.
    #[error("the connection broke after {bytes} bytes: {source}")]
    Connection {
        /// Bytes moved until then.
        bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The local file could not be read or written.
    #[error("{operation} the local file failed after {bytes} bytes: {source}")]
    File {
        /// Reading or writing.
        operation: &'static str,
        /// Bytes moved until then.
        bytes: u64,
        /// The system's answer.
        source: io::Error,
    },
    /// The stream ended, or went on, where it should not.
    #[error("the file should have {expected} bytes, but {received} came")]
    Length {
        /// Announced length.
        expected: u64,
        /// Bytes received when that was noticed.
        received: u64,
    },
    /// No byte moved for too long.
    #[error("no data for {seconds} s: the peer or the path has stopped")]
    Idle {
        /// The longest time allowed.
        seconds: f64,
    },
    /// The whole took too long.
    #[error("the transfer did not end before its deadline")]
    Deadline,
}
