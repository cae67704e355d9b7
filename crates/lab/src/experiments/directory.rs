//! The directory in which the programs of a run keep their files.
//!
//! Problem: writing a download of 970 Mbit/s to a disk stops the emulator. In a virtual machine the host spends the machine's own
//! processor time on its disk: measured were stops of 16 to 34 ms, up to ten a second. In memory there were none.
//!
//! So the files are in memory where there is plenty, and elsewhere on the disk. `TMPDIR` chooses another place. Files that a killed
//! laboratory has left would take memory or disk for ever, so the next run removes them, before it looks for room.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::{env, io};

use bufwise_socket::memory::HostMemory;
use bufwise_units::Bytes;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use nix::unistd::geteuid;
use tempfile::{Builder, TempDir};

/// Directory of files in memory, for every program (shm_overview(7)).
const IN_MEMORY: &str = "/dev/shm";
/// Memory that must be free, bytes. The files of a run take up to 1 GB each, and two downloads may run at once.
const ROOM: Bytes = Bytes(4 << 30);
/// Beginning of the names of the directories. It is hidden, so that no directory of a user has such a name.
const PREFIX: &str = ".bufwise-lab-";

/// An empty directory for a run. It is removed when this is dropped.
#[derive(Debug)]
pub(super) struct Directory {
    files: TempDir,
    /// Tells other laboratories that the directory is in use; dropped after it. `None`: the file system has no locks.
    _in_use: Option<Flock<File>>,
}

impl Directory {
    /// Makes the directory.
    ///
    /// # Errors
    /// The kernel's answer, if no directory can be made.
    pub(super) fn make() -> io::Result<Self> {
        let available = || HostMemory::now().map(|memory| memory.available);
        let has_room = || env::var_os("TMPDIR").is_none() && has_room(IN_MEMORY, available());
        Self::make_in(Path::new(IN_MEMORY), &env::temp_dir(), has_room)
    }

    /// Makes the directory in `memory` if that `has_room`, else in `usual`; what was left in either is removed before.
    fn make_in(memory: &Path, usual: &Path, has_room: impl FnOnce() -> bool) -> io::Result<Self> {
        remove_left(memory);
        remove_left(usual);
        if has_room()
            && let Ok(directory) = Self::locked(memory)
        {
            return Ok(directory);
        }
        Self::locked(usual).or_else(|_| Ok(Self { files: tempfile::tempdir_in(usual)?, _in_use: None }))
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

/// Whether `directory` is in memory, and may take [`ROOM`] of the memory that is `available`; `None`: unknown.
fn has_room(directory: &str, available: Option<Bytes>) -> bool {
    let takes = statfs(directory).is_ok_and(|system| {
        let block = u64::try_from(system.block_size()).unwrap_or(0);
        let free = Bytes(system.blocks_available()).times(block);
        system.filesystem_type() == TMPFS_MAGIC && free >= ROOM
    });
    takes && available.is_some_and(|free| free >= ROOM)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_used_only_where_there_is_plenty() {
        let plenty = Some(Bytes(8_192_000_000));
        assert!(!has_room("/proc", plenty), "files are not stored there");
        assert!(!has_room("/nowhere", plenty));
        for little in [Some(Bytes(4_096_000_000)), None] {
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
    fn what_was_left_is_removed_before_room_is_looked_for_and_on_the_disk_as_well() {
        let [memory, usual] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let left = [&memory, &usual].map(|parent| parent.path().join(format!("{PREFIX}left")));
        for (is_enough, parent) in [(true, &memory), (false, &usual)] {
            left.iter().for_each(|directory| fs::create_dir(directory).unwrap());
            let has_room = || is_enough && left.iter().all(|directory| !directory.exists());
            let made = Directory::make_in(memory.path(), usual.path(), has_room).unwrap();
            assert!(left.iter().all(|directory| !directory.exists()));
            assert_eq!(made.path().parent(), Some(parent.path()));
            let name = made.path().file_name().unwrap().to_string_lossy().into_owned();
            assert!(name.starts_with(PREFIX), "the next run knows it after a kill: {name}");
        }
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
