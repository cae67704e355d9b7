//! An emulated network path: rate, delay, DropTail queue, marks (ECN), random loss, cross traffic, and changes of these
//! over time.
//!
//! A [`Direction`] takes each packet and returns its fate at once: dropped, or delivered at a given time. It does no
//! I/O, has no clock (time is an argument, a lint forbids `Instant::now`) and draws its randomness from a seed, so the
//! same code serves simulations in virtual time and a packet pump in real time.
//!
//! ```
//! use bufwise_link::{Fate, Path};
//! use bufwise_units::{BitRate, Nanos};
//!
//! let rate: BitRate = "100mbit".parse()?;
//! let rtt: Nanos = "40ms".parse()?;
//! let mut path = Path::builder().rate(rate).rtt(rtt).queue("1bdp".parse()?).build(7)?;
//! // 1,514 bytes at 100 Mbit/s take 121.12 us, the way 20 ms.
//! assert_eq!(path.forward.offer(Nanos::ZERO, 1_500), Fate::Deliver { at: Nanos(20_121_120) });
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod config;
mod counters;
mod cross;
mod direction;
mod draw;
mod loss;
pub mod media;
mod occupancy;
mod path;
mod random;
mod schedule;
mod server;
mod trace;

pub use config::{ConfigError, DATA_PACKET, DirectionConfig, ETHERNET_HEADER, Loss, MTU, QueueLimit};
pub use counters::Counters;
pub use cross::{CrossPattern, CrossTraffic, Durations};
pub use direction::{Cause, Direction, Fate};
pub use draw::Draw;
pub use path::{ParseQueueError, Path, PathBuilder, QueueSize};
pub use trace::{MAX_STEPS, MAX_TEXT, Step, Trace, TraceError};
