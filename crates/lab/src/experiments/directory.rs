//! The directory in which the programs of a run keep their files.
//!
//! Problem: writing a download of 970 Mbit/s to a disk stops the emulator. In a virtual machine the host spends the machine's own
//! processor time on its disk: measured were stops of 16 to 34 ms, up to ten a second. In memory there were none.
//!
//! So the files are in memory where there is plenty, and elsewhere on the disk. `TMPDIR` chooses another place. Files in memory that a
//! killed laboratory has left would take it for ever, so the next run removes them.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{env, io};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::geteuid;
use tempfile::{Builder, TempDir};

/// Directory of files in memory, for every program (shm_overview(7)).
const IN_MEMORY: &str = "/dev/shm";
/// Memory that must be free, bytes. The files of a run take up to 1 GB each, and two downloads may run at once.
const ROOM: u64 = 4 << 30;
/// Beginning of the names of the directories in memory.
const PREFIX: &str = "bufwise-lab-";

/// An empty directory for a run. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    files: TempDir,
    /// Tells other laboratories that the directory is in use; dropped after it.
    _in_use: Option<Flock<File>>,
}

impl Directory {
    /// Makes the directory.
    ///
    /// # Errors
    /// The kernel's answer, if no directory can be made.
    pub(super) fn make() -> io::Result<Self> {
        if env::var_os("TMPDIR").is_none() && has_room(IN_MEMORY, &meminfo()) {
            remove_left(Path::new(IN_MEMORY));
            if let Ok(directory) = Self::locked(Path::new(IN_MEMORY)) {
                return Ok(directory);
            }
        }
        Ok(Self { files: tempfile::tempdir()?, _in_use: None })
    }

    fn locked(parent: &Path) -> io::Result<Self> {
        let files = Builder::new().prefix(PREFIX).tempdir_in(parent)?;
        // Another laboratory may remove it until it is locked.
        let lock = lock(files.path()).filter(|_| files.path().exists());
        let lock = lock.ok_or_else(|| io::Error::other("another laboratory has removed it"))?;
        Ok(Self { files, _in_use: Some(lock) })
    }

    /// Returns where it is.
    pub(super) fn path(&self) -> &Path {
        self.files.path()
    }
}

fn lock(directory: &Path) -> Option<Flock<File>> {
    Flock::lock(File::open(directory).ok()?, FlockArg::LockExclusiveNonblock).ok()
}

/// Removes the directories of this user's laboratories that have ended without removing them.
fn remove_left(parent: &Path) {
    let user = geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let named = entry.file_name().to_string_lossy().starts_with(PREFIX);
        let own = || entry.metadata().is_ok_and(|data| data.is_dir() && data.uid() == user);
        if named
            && own()
            && let Some(_lock) = lock(&entry.path())
        {
            // The next run finds again a directory that cannot be removed now.
            let _best_effort = fs::remove_dir_all(entry.path());
        }
    }
}

/// Whether `directory` is in memory, and may take [`ROOM`] of the memory that is available.
fn has_room(directory: &str, meminfo: &str) -> bool {
    let takes = statfs(directory).is_ok_and(|system| {
        let block = u64::try_from(system.block_size()).unwrap_or(0);
        system.filesystem_type() == TMPFS_MAGIC && system.blocks_available().saturating_mul(block) >= ROOM
    });
    takes && available(meminfo).is_some_and(|free| free >= ROOM)
}

fn meminfo() -> String {
    fs::read_to_string("/proc/meminfo").unwrap_or_default()
}

/// Returns the bytes of memory that programs may still take, by the text of `/proc/meminfo`.
fn available(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    kib.checked_mul(1 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_only_where_there_is_plenty() {
        let plenty = "MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n";
        assert_eq!(available(plenty), Some(8_192_000_000));
        assert!(!has_room("/proc", plenty), "files are not stored there");
        assert!(!has_room("/nowhere", plenty));
        for little in ["MemAvailable: 4000000 kB\n", "MemAvailable: many\n", ""] {
            assert!(!has_room(IN_MEMORY, little), "{little:?}");
        }
    }

    #[test]
    fn a_runs_directory_is_empty_and_goes_with_it() {
        let directory = Directory::make().unwrap();
        let path = directory.path().to_owned();
        assert_eq!(fs::read_dir(&path).unwrap().count(), 0);
        fs::write(path.join("file"), b"x").unwrap();
        drop(directory);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_killed_laboratory_has_left_is_removed_and_nothing_else() {
        let parent = tempfile::tempdir().unwrap();
        let [left, other] =
            [format!("{PREFIX}left"), "other".to_owned()].map(|name| parent.path().join(name));
        for directory in [&left, &other] {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join("file"), b"x").unwrap();
        }
        let in_use = Directory::locked(parent.path()).unwrap();
        remove_left(parent.path());
        assert!(!left.exists() && other.exists() && in_use.path().exists());
    }
}
