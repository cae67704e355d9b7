//! The library of bufwise on a host: the work of the daemon and of `run` around the engine.
//!
//! - [`tuner`]: samples connections, shares out the memory, grants requests of the kernel's side.
//! - [`daemon`]: the same for a whole host, until it is stopped.
//! - [`caps`]: raises the host's own bounds meanwhile; [`leftovers`]: clears what a killed bufwise has left.
//! - [`budget`]: the state of the daemon's memory, and why it is short.
//! - [`control`]: the daemon's socket; [`view`] and [`judge`]: what a connection looks like, and what limits it.
//! - [`metrics`]: the daemon's figures for monitoring; [`history`]: the last hour of the connections.
//! - [`netns`], [`cgroups`], [`containers`], [`processes`], [`survey`]: the network namespaces, names of cgroups and of
//!   containers, the holders of sockets, all connections; [`tcp_memory`]: what the kernel's TCP holds of its memory.
//!
//! The binary owns the command line, texts on standard output and exit statuses.

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
