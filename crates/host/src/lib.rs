//! The library of bufwise on a host: the work of the daemon and of `run` around the engine.
//!
//! - [`tuner`] samples connections, divides the memory among them, and grants requests of the programs in the kernel.
//! - [`daemon`] does this for a whole host, until it is stopped.
//! - [`caps`] raises the host's own bounds while bufwise runs; [`leftovers`] clears what a killed bufwise has left.
//! - [`budget`] computes the state of the daemon's memory, and why memory is short.
//! - [`control`] is the daemon's socket for requests of other commands.
//! - [`view`] is a connection as it is shown, and [`judge`] finds the cause that limits it.
//! - [`metrics`] has the daemon's figures for monitoring, and [`history`] the last hour of the connections.
//! - [`survey`] lists all connections. [`netns`] finds network namespaces, [`cgroups`] and [`containers`] find names,
//!   and [`processes`] finds the processes that hold sockets. [`tcp_memory`] reads the memory of the kernel's TCP.
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
