//! Name and limits of the protocol, and errors of decoding and encoding.

/// The protocol's name in TLS (IANA's registry of ALPN identifiers).
pub const ALPN: &[u8] = b"ftp";

/// Longest command line, without its line break: 4,096 bytes, enough for a verb and all but the longest paths of Linux.
/// A longer line ends the session.
pub const MAX_LINE: usize = 4_096;

/// Longest reply, all its lines together: 64 KiB. Each line counts as at least 32 bytes.
pub const MAX_REPLY: usize = 64 << 10;

/// Bytes of the peer that are not FTP, or an argument that FTP cannot carry.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WireError {
    /// The stream has a line beyond the limit; its later bytes cannot be trusted.
    #[error("the peer sent a line of more than {limit} bytes")]
    LineTooLong {
        /// The limit in bytes.
        limit: usize,
    },
    /// A NUL or a carriage return within a line. The line is lost, the stream goes on.
    #[error("the peer sent a line with a NUL or a lone carriage return in it")]
    ControlByte,
    /// A reply of more than [`MAX_REPLY`] bytes.
    #[error("the peer sent a reply of more than {MAX_REPLY} bytes")]
    ReplyTooLong,
    /// A line where a reply should begin does not begin with a code from 100 to 599.
    #[error("the peer sent `{line}`, which is no FTP reply")]
    NotAReply {
        /// The line's beginning, escaped for a terminal.
        line: String,
    },
    /// A reply that should name the port of a data connection does not.
    #[error("the peer's reply `{reply}` names no port")]
    NoPort {
        /// The reply's beginning, escaped for a terminal.
        reply: String,
    },
    /// An argument that FTP cannot carry: it has a line break or a NUL in it.
    #[error("{what} `{shown}` has a line break or a NUL in it, which FTP cannot carry")]
    LineBreak {
        /// The command or argument.
        what: &'static str,
        /// The argument's beginning, escaped for a terminal.
        shown: String,
    },
    /// A required argument is empty.
    #[error("{what} needs an argument that is not empty")]
    Empty {
        /// The command.
        what: &'static str,
    },
    /// The command would be longer than [`MAX_LINE`].
    #[error("{what} with this argument is longer than {MAX_LINE} bytes")]
    ArgumentTooLong {
        /// The command.
        what: &'static str,
    },
}

/// Why a line is no command: the reply to send.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code} {text}")]
pub struct CommandError {
    /// 500 (no command at all), 501 (wrong argument), 504 (argument not supported) or 522 (protocol).
    pub code: u16,
    /// The reason, for people. Never holds a byte that the peer chose.
    pub text: &'static str,
}
