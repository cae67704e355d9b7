//! Moving a file over TCP with buffers that are tuned while it moves.
//!
//! [`probe`] measures the path beside the transfer: round-trip time, losses, capacity. [`mover`] moves the
//! bytes and applies what a policy decides: the window it advertises, and the rate it asks the sender for.
//! Threads and poll, no asynchronous runtime; no privilege is needed.

pub mod client;
pub mod ftp;
pub mod hash;
pub mod mover;
#[cfg(test)]
#[path = "../tests/server/pattern.rs"]
mod pattern;
pub mod probe;
pub mod server;
pub mod stream;
pub mod tls;
mod wake;
