//! The daemon: the connections of the whole host, or of chosen cgroups, tuned until it is told to stop; then everything
//! is put back.
//!
//! One thread: it looks at the flows once or twice a second, shares the memory out, and answers requests. Network
//! namespaces are found every few seconds, and swept for connections that existed before and for buffers that lie idle.
//! The connections of a `bufwise run` are its own, with its own budget, wherever in the daemon's cgroups it was started.

mod answers;
mod config;
mod events;
mod namespaces;
mod service;

pub use config::{ConfigError, Options};
pub use service::{Orders, Service, Task};
