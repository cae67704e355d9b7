//! Sets the default congestion control of a laboratory host.
//!
//! Problem: a network namespace accepts as its default only a congestion control that the administrator allows to all
//! users (`tcp_allowed_congestion_control`), even from root (Linux `tcp_set_default_congestion_control`). The kernel
//! checks the list only when the default is set. So the list is widened for that moment and restored at once; a journal
//! on disk lets the next start restore it if the process is killed in between.

use std::fs::{self, File, TryLockError};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use bufwise_socket::file::is_at;
use bufwise_socket::options;
use thiserror::Error;

use crate::host::{Host, HostError};

const DEFAULT: &str = "net.ipv4.tcp_congestion_control";
const ALLOWED: &str = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
const AVAILABLE: &str = "/proc/sys/net/ipv4/tcp_available_congestion_control";
/// File with the former value of the list while it is widened.
const JOURNAL: &str = "/run/bufwise-allowed-congestion-control";
/// How often the journal is opened while others remove it.
const ATTEMPTS: usize = 100;
/// The longest list that is read (bytes): the kernel's own bound is a page.
const LONGEST: usize = 4_096;

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
        /// The kernel's error.
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
    let is_there = available.is_empty() || available.iter().any(|known| known == name);
    if is_there || has_module(name) || loads(name) {
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

/// Whether a socket of this process may have the congestion control. Asking as root loads its module, also from inside a
/// container that does not see the modules' files.
pub(crate) fn loads(name: &str) -> bool {
    let socket = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
    socket.is_ok_and(|socket| options::set_congestion_control(&socket, name).is_ok())
}

/// Makes `name` the default congestion control of `host`; the kernel loads a module for it if it has one.
///
/// # Errors
/// [`CongestionError`] when the kernel does not have it or refuses it.
pub fn set_default(host: &Host, name: &str) -> Result<(), CongestionError> {
    // A list that a killed process left widened may allow the name: then nothing below would restore it.
    let _best_effort = restore_after_crash();
    if host.sysctl(DEFAULT, name).is_ok() {
        return Ok(());
    }
    let available = available();
    if available.iter().all(|known| known != name) {
        return Err(CongestionError::Unknown { name: name.to_owned(), available: available.join(" ") });
    }
    let not_allowed = |source| CongestionError::NotAllowed { name: name.to_owned(), source };
    let journal = Journal::lock(Path::new(JOURNAL), Path::new(ALLOWED)).map_err(not_allowed)?;
    let result = journal.widen(name).map_err(not_allowed).and_then(|()| Ok(host.sysctl(DEFAULT, name)?));
    journal.put_back().map_err(not_allowed)?;
    result
}

/// Restores the list if a killed process left it widened, and returns it then.
///
/// # Errors
/// The file system's error.
pub fn restore_after_crash() -> io::Result<Option<String>> {
    restore_from(Path::new(JOURNAL), Path::new(ALLOWED))
}

/// As [`restore_after_crash`], with a journal and a list in other files.
///
/// # Errors
/// The file system's error.
pub fn restore_from(journal: &Path, allowed: &Path) -> io::Result<Option<String>> {
    Journal::left_behind(journal, allowed)?.map_or(Ok(None), Journal::put_back)
}

/// The file with the former value of the list while it is widened. The process that widens the list holds its lock, which ends
/// with the process; the file ends with the widening.
struct Journal<'a> {
    path: &'a Path,
    /// The list of allowed congestion controls.
    allowed: &'a Path,
    file: File,
}

impl<'a> Journal<'a> {
    /// Waits for the lock, and restores what a killed process left.
    fn lock(path: &'a Path, allowed: &'a Path) -> io::Result<Self> {
        for _ in 0..ATTEMPTS {
            let file =
                File::options().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
            file.lock()?;
            // If it is no longer there, its former holder has removed it, and another may hold a new one.
            if is_at(&file, path) {
                let journal = Self { path, allowed, file };
                journal.write_back()?;
                return Ok(journal);
            }
        }
        Err(io::Error::new(io::ErrorKind::WouldBlock, "other processes keep replacing it"))
    }

    /// Returns the journal of a killed process; `None` if there is none, or a living process holds it.
    fn left_behind(path: &'a Path, allowed: &'a Path) -> io::Result<Option<Self>> {
        let file = match File::options().read(true).write(true).open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        match file.try_lock() {
            Ok(()) => Ok(is_at(&file, path).then_some(Self { path, allowed, file })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Adds `name` to the list, and notes the former one before.
    fn widen(&self, name: &str) -> io::Result<()> {
        let before = fs::read_to_string(self.allowed)?;
        self.file.set_len(0)?;
        self.file.write_all_at(before.as_bytes(), 0)?;
        fs::write(self.allowed, format!("{} {name}", before.trim()))
    }

    /// Restores the list, if one was noted, and returns it.
    fn write_back(&self) -> io::Result<Option<String>> {
        let mut noted = vec![0; LONGEST];
        let length = self.file.read_at(&mut noted, 0)?;
        if length == 0 {
            return Ok(None);
        }
        let list = String::from_utf8_lossy(&noted[..length]).into_owned();
        fs::write(self.allowed, &list)?;
        Ok(Some(list))
    }

    /// Restores the list, and removes the journal; returns the list if one was noted.
    fn put_back(self) -> io::Result<Option<String>> {
        let restored = self.write_back()?;
        fs::remove_file(self.path)?;
        Ok(restored)
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn a_list_that_a_killed_process_left_widened_is_restored_but_not_one_in_use() {
        let directory = tempfile::tempdir().unwrap();
        let [path, list] = ["journal", "list"].map(|name| directory.path().join(name));
        let restore = || restore_from(&path, &list).unwrap();
        fs::write(&list, "reno cubic\n").unwrap();
        let journal = Journal::lock(&path, &list).unwrap();
        journal.widen("bbr").unwrap();
        assert_eq!(restore(), None, "another process needs it now");
        assert_eq!(fs::read_to_string(&list).unwrap(), "reno cubic bbr");
        // The lock ends with the process.
        drop(journal);
        assert_eq!(restore().as_deref(), Some("reno cubic\n"));
        assert_eq!(fs::read_to_string(&list).unwrap(), "reno cubic\n");
        assert!(!path.exists() && restore().is_none());
    }

    #[test]
    fn the_next_one_waits_for_a_widened_list_and_restores_what_a_killed_one_left() {
        let directory = tempfile::tempdir().unwrap();
        let [path, list] = ["journal", "list"].map(|name| directory.path().join(name));
        fs::write(&list, "reno bbr").unwrap();
        fs::write(&path, "reno").unwrap();
        let first = Journal::lock(&path, &list).unwrap();
        assert_eq!(fs::read_to_string(&list).unwrap(), "reno");
        first.widen("cubic").unwrap();
        let next = thread::scope(|threads| {
            let next = threads.spawn(|| Journal::lock(&path, &list).unwrap().put_back().unwrap());
            first.put_back().unwrap();
            next.join().unwrap()
        });
        assert_eq!((next, fs::read_to_string(&list).unwrap()), (None, "reno".to_owned()));
        assert!(!path.exists());
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
