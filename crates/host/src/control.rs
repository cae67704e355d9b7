//! The daemon's control socket: its clients, requests and replies.
//!
//! Problem: `ls`, `explain` and `restore` send requests to a privileged process that must go on tuning whatever they
//! do.
//! - The request is one line of JSON, the reply another; then the connection ends ([`message`]). A space precedes the
//!   reply as soon as the request is taken: it distinguishes a busy daemon from a stopped one.
//! - Only root and the daemon's own user are answered: the socket's mode restricts it, and SO_PEERCRED proves it.
//! - A client that is slow, silent or sends nonsense occupies only a thread of its own, for seconds at most
//!   ([`server`]).

mod client;
mod error;
pub mod message;
pub mod server;
pub mod socket_file;

/// Default path of the daemon's control socket.
pub const DEFAULT_PATH: &str = "/run/bufwise/control";
/// Longest request, in bytes, its line feed included.
const MAX_REQUEST: usize = 4 << 10;
/// Longest reply that a client reads, in bytes: room for [`message::MAX_CONNECTIONS`] connections.
pub(crate) const MAX_REPLY: u64 = 1 << 30;

/// The byte that says that a request was taken; JSON parsers skip it.
const TAKEN: u8 = b' ';

pub use client::ask;
pub use error::{ControlError, ExchangeError};
pub use message::{Reply, Request};
