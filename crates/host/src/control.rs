//! The daemon's control socket: who asks, what, and how it is answered.
//!
//! Problem: `ls`, `explain` and `restore` ask a privileged process that must go on tuning whatever they do.
//! - One line of JSON asks, one line answers, then the connection is over ([`message`]). A space goes ahead of the answer, as
//!   soon as the request is taken: a daemon that is stopped is told from one that has much to do.
//! - Only root and the daemon's own user are answered: the socket's mode says so, and SO_PEERCRED proves it.
//! - A client that is slow, silent or talks nonsense stalls a thread of its own, for seconds at most ([`server`]).

mod client;
mod error;
pub mod message;
pub mod server;
pub mod socket_file;

/// Where the daemon listens unless told otherwise.
pub const DEFAULT_PATH: &str = "/run/bufwise/control";
/// Longest request, in bytes, its line feed included.
const MAX_REQUEST: usize = 4 << 10;
/// Longest reply that a client reads, in bytes: [`message::MAX_CONNECTIONS`] of them, with room.
pub(crate) const MAX_REPLY: u64 = 1 << 30;

/// The sign that a request was taken; JSON skips it.
const TAKEN: u8 = b' ';

pub use client::ask;
pub use error::{ControlError, ExchangeError};
pub use message::{Reply, Request};
