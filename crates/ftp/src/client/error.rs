//! Why a transfer failed, and whether trying again may help.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

use bufwise_mover::MoveError;
use bufwise_mover::tls::TlsError;

use super::local::LocalError;
use crate::wire::terminal::escape_for_terminal;
use crate::wire::{Command, Reply, WireError};

/// "Insufficient storage": a 4yz, but trying again later does not help.
const FULL: u16 = 452;
/// How much of a reply an error repeats, in bytes.
const SHOWN: usize = 200;

/// Why a session or a transfer failed. One line each: the operation, the object, the cause.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// The host's name has no address.
    #[error("no address for {host}: {source}")]
    Resolve {
        /// The host's name.
        host: String,
        /// The system's error.
        source: io::Error,
    },
    /// The system has no descriptor or thread left.
    #[error("preparing a transfer failed: {source}")]
    Resources {
        /// The system's error.
        source: io::Error,
    },
    /// The server could not be connected to.
    #[error("connecting to {address} failed: {source}")]
    Connect {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        source: io::Error,
    },
    /// The control connection broke.
    #[error("the control connection broke while waiting for {during}: {source}")]
    Broken {
        /// The command or the step.
        during: String,
        /// The system's error.
        source: io::Error,
    },
    /// The server closed the control connection.
    #[error("the server closed the control connection while waiting for {during}")]
    Closed {
        /// The command or the step.
        during: String,
    },
    /// The server did not answer in time.
    #[error("the server did not answer within {seconds} s: {during}")]
    Silent {
        /// The command or the step.
        during: String,
        /// The time allowed, s.
        seconds: f64,
    },
    /// The server's bytes are not FTP, or beyond its limits; or a name is one that FTP cannot carry.
    #[error("{}", unreadable_or_unsendable(.0))]
    Wire(#[from] WireError),
    /// The server refused a command.
    #[error("the server refused {command}: {reply}")]
    Refused {
        /// The command.
        command: String,
        /// Its answer.
        reply: Answer,
    },
    /// The server refused the login.
    #[error("the server refused the login of {user}: {reply}")]
    Login {
        /// The user.
        user: String,
        /// Its answer.
        reply: Answer,
    },
    /// An answer that does not fit the command.
    #[error("the server answered {command} with {reply}")]
    Unexpected {
        /// The command.
        command: String,
        /// Its answer.
        reply: Answer,
    },
    /// A reply that belongs to no command.
    #[error("the server sent a reply that belongs to no command: {reply}")]
    OutOfStep {
        /// The reply.
        reply: Answer,
    },
    /// Too many preliminary replies.
    #[error("the server sent {count} preliminary replies to {during}, and no final one")]
    Endless {
        /// The command or the step.
        during: String,
        /// Number of preliminary replies.
        count: u64,
    },
    /// TLS failed, or the certificate is not trusted.
    #[error(transparent)]
    Tls(TlsError),
    /// The server has no TLS and it was required.
    #[error("{host} offers no TLS, which was required: nothing was sent in clear text")]
    NoTls {
        /// The server.
        host: String,
    },
    /// Moving the data failed.
    #[error(transparent)]
    Move(#[from] MoveError),
    /// A local file could not be opened, written or renamed.
    #[error(transparent)]
    Local(#[from] LocalError),
    /// A local file could not be read.
    #[error("reading {} failed: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The sizes at both ends differ after the transfer.
    #[error("the file should have {expected} bytes and has {found}")]
    Size {
        /// Bytes that the sender has.
        expected: u64,
        /// Bytes that have arrived.
        found: u64,
    },
    /// Checksums differ.
    #[error("the {algorithm} checksums differ: {local} here, {remote} there")]
    Checksum {
        /// The algorithm's name.
        algorithm: String,
        /// Ours.
        local: String,
        /// The server's.
        remote: String,
    },
    /// A checksum was requested, and there is none that both ends know.
    #[error("the server has no checksum that this program knows: leave out --checksum")]
    NoChecksum,
    /// The partial file is not the beginning of the file to be resumed.
    #[error("the part that is there differs from the file at the other end")]
    TailDiffers,
    /// The server cannot begin in the middle of a file.
    #[error("the server cannot resume a transfer: {reply}")]
    CannotResume {
        /// Its answer.
        reply: Answer,
    },
    /// A pipe or device has already taken a part of the file.
    #[error("the transfer broke off, and a pipe or device cannot give back the bytes that it has: {0}")]
    Partly(Box<ClientError>),
    /// The user has interrupted the transfer (Ctrl-C).
    #[error("interrupted")]
    Interrupted,
    /// A listing that has too many entries or bytes.
    #[error("the directory {} {what}", path.display())]
    Tree {
        /// The directory.
        path: PathBuf,
        /// The reason, for people.
        what: String,
    },
    /// The uploaded file did not get its name.
    #[error(
        "the file was uploaded as {}, but the server does not let it be renamed ({reply}): try --in-place",
        path.display()
    )]
    Rename {
        /// The temporary name on the server.
        path: PathBuf,
        /// Its answer.
        reply: Answer,
    },
}

impl From<TlsError> for ClientError {
    fn from(error: TlsError) -> Self {
        match error {
            TlsError::Cancelled { .. } => Self::Interrupted,
            other => Self::Tls(other),
        }
    }
}

/// Names the end to which an error of the wire belongs.
fn unreadable_or_unsendable(error: &WireError) -> String {
    match error {
        WireError::LineBreak { .. } | WireError::Empty { .. } | WireError::ArgumentTooLong { .. } => {
            error.to_string()
        }
        of_the_server => format!("the server's answer cannot be read: {of_the_server}"),
    }
}

/// A server's reply, safe to be shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its code.
    pub code: u16,
    /// Its lines as one, without control characters, shortened.
    pub text: String,
}

impl From<&Reply> for Answer {
    fn from(reply: &Reply) -> Self {
        let mut text = reply.lines.join(&b' ');
        text.truncate(SHOWN);
        let text = escape_for_terminal(&text);
        Self { code: reply.code, text }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text)
    }
}

impl ClientError {
    /// Whether another attempt may succeed.
    ///
    /// Yes: connections that broke or were not made in time, temporary refusals (4yz, except 452: a full disk), a file whose length
    /// changes meanwhile. No: permanent refusals, TLS handshakes that fail, other local errors, an interruption.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Connect { .. }
            | Self::Broken { .. }
            | Self::Closed { .. }
            | Self::Silent { .. }
            | Self::OutOfStep { .. } => true,
            Self::Refused { reply, .. } | Self::Unexpected { reply, .. } | Self::Login { reply, .. } => {
                reply.code / 100 == 4 && reply.code != FULL
            }
            Self::Size { expected, found } => found < expected,
            Self::Move(error) => matches!(
                error,
                MoveError::Connect { .. }
                    | MoveError::Connection { .. }
                    | MoveError::Truncated { .. }
                    | MoveError::Length { .. }
                    | MoveError::Idle { .. }
                    | MoveError::Slow { .. }
                    | MoveError::Shrunk { .. }
            ),
            _ => false,
        }
    }

    /// Returns the error that the unwanted `reply` to `command` means.
    pub(super) fn refused(command: &Command, reply: &Reply) -> Self {
        let (command, reply_shown) = (command.shown(), Answer::from(reply));
        if reply.is_transient() || reply.is_permanent() {
            Self::Refused { command, reply: reply_shown }
        } else {
            Self::Unexpected { command, reply: reply_shown }
        }
    }
}
