//! Events of a server, for its log and its records.
//!
//! Properties kept: an event is displayed as one line; texts from clients (names, paths) are escaped in it; no event
//! has a password.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use bufwise_mover::Report;
use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;

/// A function that is called with each event, on the thread on which it happens; it should not block for long.
pub type Observer = dyn Fn(&Event) + Send + Sync;

/// An event of the server, for its log.
#[derive(Clone, Debug)]
pub enum Event {
    /// A connection was turned away.
    Refused {
        /// The client's address.
        peer: SocketAddr,
        /// The reason, for people.
        reason: &'static str,
    },
    /// A user has logged in.
    LoggedIn {
        /// The client's address.
        peer: SocketAddr,
        /// The user's name.
        user: String,
        /// Whether the user gave a password. Logins without one may come from anybody, and as often as a client likes.
        is_known: bool,
        /// Whether the control connection is encrypted.
        tls: bool,
    },
    /// A login failed: the password was wrong, or the name unknown.
    LoginFailed {
        /// The client's address.
        peer: SocketAddr,
        /// The name that was given, escaped and cut.
        name: String,
    },
    /// A transfer of a file ended, successfully or not.
    Transfer(Box<Transfer>),
    /// A file or directory was changed.
    Changed {
        /// The client's address.
        peer: SocketAddr,
        /// The user's name.
        user: String,
        /// Whether that user had logged in with a password. Other users may change files as often as they like.
        is_known: bool,
        /// The change: `removed`, `renamed` and so on.
        what: &'static str,
        /// Path of the file or directory, escaped.
        path: String,
    },
    /// A session ended for a reason that the client did not ask for.
    Ended {
        /// The client's address.
        peer: SocketAddr,
        /// Whether it had logged in with a password. Any client can cause ends of other sessions, as often as it likes.
        is_known: bool,
        /// The reason, for people.
        reason: String,
    },
    /// An operation of the server itself failed.
    Trouble {
        /// The failure, for people.
        what: String,
    },
}

impl Event {
    /// Whether the administrator should look into it.
    #[must_use]
    pub fn is_warning(&self) -> bool {
        match self {
            Self::Refused { .. } | Self::LoginFailed { .. } | Self::Trouble { .. } => true,
            // Clients may end transfers early on purpose: a part of a file was enough.
            Self::LoggedIn { .. } | Self::Transfer(_) | Self::Changed { .. } | Self::Ended { .. } => false,
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { peer, reason } => write!(f, "{peer} turned away: {reason}"),
            Self::LoggedIn { peer, user, tls, .. } => {
                write!(f, "{peer} logged in as {user}{}", if *tls { ", over TLS" } else { "" })
            }
            Self::LoginFailed { peer, name } => write!(f, "{peer} failed to log in as {name}"),
            Self::Transfer(transfer) => transfer.fmt(f),
            Self::Changed { peer, user, what, path, .. } => write!(f, "{peer} {user} {what} {path}"),
            Self::Ended { peer, reason, .. } => write!(f, "{peer} session ended: {reason}"),
            Self::Trouble { what } => f.write_str(what),
        }
    }
}

/// Which way a file went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// The server sent the file to the client.
    Sent,
    /// The server received the file from the client.
    Received,
}

impl Direction {
    /// Returns `sent` or `received`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Sent => "sent",
            Self::Received => "received",
        }
    }
}

/// One file's transfer, at its end.
#[derive(Clone, Debug)]
pub struct Transfer {
    /// The client.
    pub peer: IpAddr,
    /// The user's name.
    pub user: String,
    /// Whether that user had logged in with a password. Other users may transfer files as often as they like.
    pub is_known: bool,
    /// Which way the file went.
    pub direction: Direction,
    /// The file, as clients name it, escaped.
    pub path: String,
    /// Where in the file it began.
    pub offset: u64,
    /// Bytes moved.
    pub bytes: u64,
    /// From the command to the end of the data connection.
    pub elapsed: Duration,
    /// Whether the data connection was encrypted.
    pub tls: bool,
    /// Why it failed; `None`: it did not.
    pub failure: Option<String>,
    /// The receiver's rule, for received files.
    pub policy: Option<PolicyKind>,
    /// The buffer size that was granted last for an SBUF, or last requested of the client by 126.
    pub buffer_request: Option<Bytes>,
    /// The report of the data connection, if it came to its end.
    pub report: Option<Report>,
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { peer, user, path, bytes, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        write!(f, "{peer} {user} {} {path}", self.direction.as_str())?;
        if self.offset > 0 {
            write!(f, " from byte {}", self.offset)?;
        }
        write!(f, ": {} in {seconds:.2} s", Bytes(*bytes).readable())?;
        if let Some(report) = &self.report {
            describe(report, f)?;
        }
        if let Some(request) = self.buffer_request {
            write!(f, ", requested buffer {}", request.readable())?;
        }
        if let Some(policy) = self.policy {
            write!(f, ", {policy}")?;
        }
        if self.tls {
            f.write_str(", TLS")?;
        }
        match &self.failure {
            Some(reason) => write!(f, "; failed: {reason}"),
            None => Ok(()),
        }
    }
}

fn describe(report: &Report, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    write!(f, ", {:.1} Mbit/s", report.goodput.0 as f64 * 8e-6)?;
    if let Some(rtt) = report.rtt {
        write!(f, ", rtt {:.1} ms", rtt.as_secs_f64() * 1e3)?;
    }
    write!(f, ", window {}, buffer {}", report.largest_window.readable(), report.largest_buffer.readable())?;
    if report.retransmitted > 0 {
        write!(f, ", {} segments again", report.retransmitted)?;
    }
    match report.limited_by {
        Some(limit) => write!(f, ", limited by {limit}"),
        None => Ok(()),
    }
}
