//! The algorithms that size TCP buffers, as pure code: no I/O, no clock, no kernel types.
//!
//! A [`Policy`] turns a [`bufwise_units::Sample`] of one connection into a [`bufwise_units::Decision`]. Time is an
//! argument. How much the connections of a host may hold together is a second, separate question: each policy states
//! its [`Policy::demand`], [`share`] turns the demands and a budget into a [`share::Share`], and [`Policy::set_limit`]
//! gives the connection its part.
//!
//! [`PolicyKind`] lists the policies by name.
//!
//! The head of a module names the paper from which its rule is taken. *Ours* marks additions of bufwise, and *Properties
//! kept* lists what tests check.

pub mod abt;
mod arrivals;
pub mod bound;
pub mod bpftune;
pub mod drs;
pub mod drs_ftp;
pub mod eq;
pub mod fixed;
pub mod kernel;
mod policy;
mod registry;
pub mod sabt;
pub mod share;
pub mod sobas;
pub mod throughput;

pub use abt::Abt;
pub use arrivals::Arrivals;
pub use bound::Bound;
pub use drs::Drs;
pub use drs_ftp::DrsFtp;
pub use eq::EqualShare;
pub use fixed::Fixed;
pub use kernel::{KernelModel, Untouched};
pub use policy::Policy;
pub use registry::{BuildOptions, PolicyKind, PolicyNameError, Side};
pub use sabt::Sabt;
pub use share::Share;
pub use sobas::Sobas;
