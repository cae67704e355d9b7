//! bufwise on a host, as a library: what a daemon and `run` do around the engine.
//!
//! - [`tuner`]: the connections are looked at, the memory is shared out, requests of the kernel's side are granted.
//! - [`daemon`]: the same for a whole host, until it is told to stop.
//! - [`caps`]: the host's own bounds, raised meanwhile; [`leftovers`]: what a killed bufwise has left.
//! - [`budget`]: the picture of the daemon's memory, and why it is short.
//! - [`control`]: the daemon's socket; [`view`] and [`judge`]: what a connection looks like, and what limits it.
//! - [`metrics`]: the daemon's figures for monitoring; [`history`]: the last hour of the connections.
//! - [`netns`], [`cgroups`], [`containers`], [`processes`], [`survey`]: the network namespaces, names of cgroups and of containers,
//!   who holds which socket, all connections; [`tcp_memory`]: what the kernel's TCP holds of the memory that it may take.
//!
//! The command line, texts on standard output and exit statuses are the binary's.

pub mod address;
pub mod budget;
pub mod caps;
pub mod cgroups;
pub mod container;
pub mod containers;
pub mod control;
pub mod daemon;
mod error;
pub mod history;
pub mod judge;
pub mod leftovers;
pub mod log;
pub mod metrics;
pub mod netns;
pub mod notify;
pub mod processes;
mod search;
pub mod signals;
pub mod survey;
pub mod tcp_memory;
pub mod tuner;
pub mod view;

pub use error::{ConfigError, Error, Result, in_words};
