//! Sets the default congestion control of a laboratory host.
//!
//! Problem: a network namespace accepts as its default only a congestion control that the administrator allows to all
//! users (`tcp_allowed_congestion_control`), even from root (Linux `tcp_set_default_congestion_control`). The kernel
//! checks the list only when the default is set. So the list is widened for that moment and restored at once; a journal
//! on disk lets the next start restore it if the process is killed in between.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use thiserror::Error;

use crate::host::{Host, HostError};

const DEFAULT: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// File with the former value of the list while it is widened.
const JOURNAL: &str = "/run/bufwise-allowed-congestion-control";
/// Age from which the journal is a killed process's: the list is widened for milliseconds.
const LEFT_BEHIND: Duration = Duration::from_secs(10);

/// Why a congestion control could not become a host's default.
#[derive(Debug, Error)]
pub enum CongestionError {
    /// The kernel does not have the congestion control.
    #[error("congestion control {name:?} is not in this kernel: it has {available}")]
    Unknown {
        /// The congestion control that was requested.
        name: String,
        /// The congestion controls that the kernel has.
        available: String,
    },
    /// The list of allowed congestion controls cannot be changed.
    #[error(
        "congestion control {name}: not allowed in network namespaces, and {ALLOWED} cannot be changed: {source}"
    )]
    NotAllowed {
        /// The congestion control that was requested.
        name: String,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The host is gone.
    #[error(transparent)]
    Host(#[from] HostError),
}

/// Returns the congestion controls that the kernel has now.
#[must_use]
pub fn available() -> Vec<String> {
    let names = fs::read_to_string(AVAILABLE).unwrap_or_default();
    names.split_whitespace().map(str::to_owned).collect()
}

/// Checks that the kernel has the congestion control `name`, now or as a module.
///
/// # Errors
/// [`CongestionError::Unknown`] if it has neither.
pub fn check(name: &str) -> Result<(), CongestionError> {
    let available = available();
    // A system that hides the list cannot be judged before a host's default is set.
    if available.is_empty() || available.iter().any(|known| known == name) || has_module(name) {
        return Ok(());
    }
    Err(CongestionError::Unknown { name: name.to_owned(), available: available.join(" ") })
}

/// Whether the running kernel has a module with the congestion control.
fn has_module(name: &str) -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let modules = fs::read_to_string(format!("/lib/modules/{}/modules.dep", release.trim()));
    modules.is_ok_and(|modules| modules.contains(&format!("/tcp_{name}.ko")))
}

/// Makes `name` the default congestion control of `host`; the kernel loads a module for it if it has one.
///
/// # Errors
/// [`CongestionError`] when the kernel does not have it or refuses it.
pub fn set_default(host: &Host, name: &str) -> Result<(), CongestionError> {
    // A list that was left widened may allow the name, so it would stay as it is.
    let _best_effort = restore(Path::new(JOURNAL), Path::new(ALLOWED), LEFT_BEHIND);
    if host.sysctl(DEFAULT, name).is_ok() {
        return Ok(());
    }
    let available = available();
    if available.iter().all(|known| known != name) {
        return Err(CongestionError::Unknown { name: name.to_owned(), available: available.join(" ") });
    }
    let not_allowed = |source| CongestionError::NotAllowed { name: name.to_owned(), source };
    restore_after_crash().map_err(not_allowed)?;
    let before = fs::read_to_string(ALLOWED).map_err(not_allowed)?;
    fs::write(JOURNAL, &before).map_err(not_allowed)?;
    let result = fs::write(ALLOWED, format!("{} {name}", before.trim()))
        .map_err(not_allowed)
        .and_then(|()| Ok(host.sysctl(DEFAULT, name)?));
    restore_after_crash().map_err(not_allowed)?;
    result
}

/// Restores the list if a killed process left it widened; does nothing otherwise.
///
/// # Errors
/// The file system's error.
pub fn restore_after_crash() -> io::Result<()> {
    restore(Path::new(JOURNAL), Path::new(ALLOWED), Duration::ZERO)
}

/// Restores the list `allowed` if there is a journal of at least this age.
fn restore(journal: &Path, allowed: &Path, least_age: Duration) -> io::Result<()> {
    let Ok(found) = fs::metadata(journal) else { return Ok(()) };
    if found.modified()?.elapsed().is_ok_and(|age| age < least_age) {
        return Ok(());
    }
    fs::write(allowed, fs::read_to_string(journal)?)?;
    fs::remove_file(journal)
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use super::*;

    #[test]
    fn a_list_that_a_killed_process_left_widened_is_restored_but_not_one_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let [journal, list] = ["journal", "list"].map(|name| directory.path().join(name));
        fs::write(&journal, "reno cubic").unwrap();
        fs::write(&list, "reno cubic bbr").unwrap();
        restore(&journal, &list, LEFT_BEHIND).unwrap();
        assert_eq!(fs::read_to_string(&list).unwrap(), "reno cubic bbr", "another process needs it now");
        let file = fs::File::options().write(true).open(&journal).unwrap();
        file.set_modified(SystemTime::now() - LEFT_BEHIND).unwrap();
        restore(&journal, &list, LEFT_BEHIND).unwrap();
        assert_eq!(fs::read_to_string(&list).unwrap(), "reno cubic");
        assert!(!journal.exists());
        restore(&journal, &list, LEFT_BEHIND).unwrap();
    }

    #[test]
    fn an_unknown_congestion_control_is_named_with_those_that_there_are() {
        assert!(check("reno").is_ok());
        // Some containers hide the list.
        let Err(error) = check("tahoe") else { return assert!(available().is_empty()) };
        let error = error.to_string();
        assert!(error.contains("\"tahoe\"") && error.contains("reno"), "{error}");
    }
}
