//! The algorithms that size TCP buffers, as pure code: no I/O, no clock, no kernel types.
//!
//! A [`Policy`] turns a [`Sample`] of one connection into a [`Decision`]. Time is an argument.

mod sample;
mod units;

pub use sample::{Decision, Policy, Sample};
pub use units::{Bytes, Micros, Rate};
