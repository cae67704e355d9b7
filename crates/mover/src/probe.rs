//! Measuring the path beside a transfer, with small UDP packets.
//!
//! Problem: the receiver of a file must know the path's round-trip time, its losses, and roughly its capacity; TCP's
//! receiver measures none of these well.
//! Source: Prasad 2004 (SOBAS), section IV-B: the receiver sends 100-byte packets every 10 ms, the sender echoes
//! them with a sequence number; five packet trains before the data estimate the capacity.
//!
//! ```text
//!   data receiver: Prober                         data sender: Responder
//!     Probe(sequence, requested rate)  ---------->     notes the request, counts
//!     RTT average and minimum, losses  <-------     Echo(sequence, own number)
//!     TrainRequest(5 times, 20 ms apart)  ---->     within its limits
//!     capacity  <==============================     Train, packets back to back
//! ```
//!
//! `bufwise probe` measures more, with a server of its own ([`PathServer`], [`PathClient`]): capacity and available
//! bandwidth of both ways, round-trip times, losses; one train after another, ordered over a TCP connection that hands
//! out the token.
//!
//! Properties kept: the responder answers only packets that carry the session's token and come from the
//! session's peer; an echo is no larger than its probe; trains are bounded in number, length and frequency, so that a
//! session cannot be used to flood another host.

mod capacity;
mod client;
mod datagram;
mod echoes;
mod estimate;
mod first;
mod flight;
mod packet;
#[cfg(test)]
mod path_tests;
mod prober;
mod responder;
mod server;
#[cfg(test)]
mod tests;
mod train;
mod wait;

pub use client::{Echoed, PathClient, PathDirection};
pub use estimate::{Available, Estimate};
pub use first::{FirstFlight, first_flight};
pub use packet::{MAX_TRAIN_PACKET, PROBE_LEN, Packet, Rejected, Seen, Token};
pub use prober::{Measured, Prober, ProberConfig};
pub use responder::{Counters, Limits, Responder};
pub use server::{PathServer, Session, SessionLimits};
