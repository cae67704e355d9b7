//! The daemon: the connections of the whole host, or of chosen cgroups, tuned until it is told to stop; then everything
//! is put back.
//!
//! `machine` decides, in steps that need neither a kernel nor a clock; `shell` does what it decides. Together they
//! are one thread: it looks at the flows some times a second and shares the memory out; other threads answer requests. Network
//! namespaces are found every few seconds, and swept for connections that existed before and for buffers that lie idle.
//! Groups of connections may have an engine, policies and memory of their own (`running`, `ledger`).
//! The connections of a `bufwise run` are its own, with its own budget, wherever in the daemon's cgroups it was started.

mod answers;
mod conditions;
mod config;
mod due;
mod event;
mod groups;
mod ledger;
mod lister;
mod machine;
mod namespaces;
mod news;
mod placing;
mod recorder;
mod running;
mod scope;
mod scrape;
mod shell;
mod task;
mod worker;

pub use config::{Options, configured_socket};
pub use groups::GroupOptions;
pub use shell::run;
pub use task::{Orders, Task};

use std::path::Path;

use crate::error::{ConfigError, Error};

/// Whether a daemon could start with this configuration file (`None`: the usual one, which need not exist) and these flags.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read, or says something that is not understood.
pub fn check(file: Option<&Path>, flags: &Options) -> Result<(), ConfigError> {
    let settings = config::settings(file, flags)?;
    match groups::plans(&settings, config::path(file)) {
        Err(Error::Config(error)) => Err(error),
        // How much memory there is, if that cannot be seen, is no fault of the configuration.
        Ok(_) | Err(_) => Ok(()),
    }
}
