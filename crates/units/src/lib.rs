//! The quantities and samples that every other crate uses.
//!
//! A number that has a unit carries it in its type: [`Bytes`], [`Micros`] and [`Rate`] on a host, [`Nanos`] and
//! [`BitRate`] on a link. A [`Sample`] is the state of one connection at one moment; a [`Decision`] is a policy's
//! answer to it.
//!
//! ```
//! use bufwise_units::{Bytes, Micros, Rate};
//!
//! let (rate, rtt): (Rate, Micros) = ("100mbit".parse()?, "40ms".parse()?);
//! assert_eq!(rate.over(rtt), Bytes(500_000));
//! # Ok::<(), bufwise_units::ParseError>(())
//! ```

mod decision;
mod parse;
mod quantity;
mod sample;

pub use decision::Decision;
pub use parse::ParseError;
pub use quantity::{BitRate, Bytes, Micros, Nanos, Rate, counted};
pub use sample::{CongestionControl, Sample};
