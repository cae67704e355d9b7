//! Measuring the path beside a transfer, with small UDP packets.
//!
//! Problem: the receiver of a file must know the round-trip time, whether the path loses packets, and
//! roughly what it can carry; TCP's receiver measures none of that well.
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
//! Properties kept: the responder answers only packets that carry the session's token and come from the
//! session's peer; an echo is no larger than its probe; trains are bounded in number, length and frequency,
//! so that a session cannot be used to flood anybody.

mod capacity;
mod echoes;
mod packet;
mod prober;
mod responder;
#[cfg(test)]
mod tests;

pub use packet::{MAX_TRAIN_PACKET, PROBE_LEN, Packet, Rejected, Token};
pub use prober::{Measured, Prober, ProberConfig};
pub use responder::{Counters, Limits, Responder};
