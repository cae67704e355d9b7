//! The daemon tunes the connections of the whole host, or of chosen cgroups, until it is stopped; then it puts
//! everything back.
//!
//! `machine` decides, in steps that need neither a kernel nor a clock; `shell` carries the decisions out. Together
//! they are one thread, which samples the connections several times a second and shares out the memory; other threads
//! answer requests. The daemon searches for network namespaces every few seconds, and sweeps them for existing
//! connections and for idle buffers. Groups of connections may have an engine, policies and memory of their own (`running`,
//! `ledger`). The connections of a `bufwise run` belong to that run, with its own budget, wherever in the daemon's
//! cgroups it started.

mod answers;
mod conditions;
mod config;
pub(crate) mod descriptors;
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

/// Checks whether a daemon could start with this configuration file (`None`: the default file, which need not exist)
/// and these flags.
///
/// # Errors
/// [`ConfigError`]: the file cannot be read, or has invalid content.
pub fn check(file: Option<&Path>, flags: &Options) -> Result<(), ConfigError> {
    let settings = config::settings(file, flags)?;
    match groups::plans(&settings, config::path(file)) {
        Err(Error::Config(error)) => Err(error),
        // Failing to read the amount of memory is no fault of the configuration.
        Ok(_) | Err(_) => Ok(()),
    }
}
