//! Quantities and samples: what every other crate counts in.
//!
//! A number that has a unit carries it in its type: [`Bytes`], [`Micros`], [`Rate`] where a host counts, [`Nanos`] and
//! [`BitRate`] where a link does. A [`Sample`] is one look at one connection, a [`Decision`] what a policy
//! answers to it.
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
pub use quantity::{BitRate, Bytes, Micros, Nanos, Rate};
pub use sample::{CongestionControl, Sample};
