//! Moving the bytes of one file over one TCP connection, with buffers that are tuned while it moves.
//!
//! The sender hands the file to the kernel; the receiver reads, writes, and every few milliseconds samples the
//! connection for a policy and applies its decision. [`probe`] measures the path meanwhile: round-trip time, losses,
//! capacity. Either end sums the bytes on request. The end of the stream is the end of the file. Threads and poll, no
//! asynchronous runtime; no privilege is needed.
//!
//! ```text
//!   sender                                      receiver
//!     Sockets::listen, Responder::start            Prober::start
//!                                                  Tuner::new, Tuner::prepare: capacity, first decision
//!     accept  <--------------- TCP --------------  Sockets::connect
//!     send(file, stream, ..)  ----------------->   receive(stream, file, tuner, ..)
//!     BufferGrants::set  <----- control channel --------   Progress::buffer_request
//! ```
//!
//! Properties kept: both ends sum the bytes that passed, so equal sums mean an equal file; every wait is bounded by an
//! idle time and, if given, a deadline, and ends when cancelled; fixed buffer sizes are set before the connection is
//! made, while the window scale is still open; requests of a peer are bounded.

mod bucket;
mod cancel;
mod copy;
mod drs;
mod error;
mod grant;
pub mod hash;
mod host;
mod job;
#[cfg(test)]
mod pattern;
mod pipe;
pub mod probe;
mod progress;
mod receive;
mod request;
mod send;
mod share;
mod sink;
mod sockets;
mod source;
pub mod stream;
#[cfg(test)]
mod tests;
pub mod tls;
mod tuner;
pub mod wake;
mod window;

pub use cancel::Cancel;
pub use error::MoveError;
pub use grant::BufferGrants;
pub use job::{Bounds, Job, Pace};
pub use progress::{Held, Progress, Report, Unread};
pub use receive::{Received, receive};
pub use send::{Sent, send};
pub use share::Share;
pub use sink::{FilePart, Sink, Writer};
pub use sockets::{Sockets, accept, accept_unless, is_passing};
pub use source::Source;
pub use tuner::Tuner;
