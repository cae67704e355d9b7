//! Existing cgroups: one given by its path, or all of them.
//!
//! Paths are as in `/proc/PID/cgroup`: `/` is the root of the hierarchy, wherever it is mounted. A path below the
//! mount itself (`/sys/fs/cgroup/...`) is accepted as well, because users see such paths.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::statfs::{CGROUP2_SUPER_MAGIC, statfs};

use crate::cgroup::{self, CgroupError, PREFIX};
use crate::mount;

/// An existing cgroup.
#[derive(Debug)]
pub struct Group {
    directory: File,
    path: PathBuf,
}

impl Group {
    /// Opens a cgroup by its path.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2, [`CgroupError::Open`] if there is no such group.
    pub fn open(path: &Path) -> Result<Self, CgroupError> {
        let failed = |source| CgroupError::Open { group: path.display().to_string(), source };
        let is_below_mount = statfs(path).is_ok_and(|kind| kind.filesystem_type() == CGROUP2_SUPER_MAGIC);
        let directory = if is_below_mount {
            File::open(path)
        } else {
            let root = mount::hierarchy().map_err(CgroupError::Hierarchy)?;
            File::open(inside(&root, path.strip_prefix("/").unwrap_or(path)))
        };
        let directory = directory.map_err(failed)?;
        // A file inside a cgroup's directory is not a cgroup.
        if !directory.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { directory, path: path.to_owned() })
    }

    /// Visits every group, each after the groups below it. Few are open at a time, however many there are.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2.
    pub fn walk(visit: &mut impl FnMut(Self)) -> Result<(), CgroupError> {
        Self::root()?.walk_below(visit);
        Ok(())
    }

    /// Opens the root of the hierarchy.
    pub(crate) fn root() -> Result<Self, CgroupError> {
        let root = mount::hierarchy().map_err(CgroupError::Hierarchy)?;
        Ok(Self { directory: File::from(root), path: PathBuf::from("/") })
    }

    fn walk_below(self, visit: &mut impl FnMut(Self)) {
        self.children().for_each(|group| group.walk_below(visit));
        visit(self);
    }

    /// Returns the path by which it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the kernel's number of the group: the inode of its directory.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.directory.metadata()?.ino())
    }

    /// Returns the processes in it and below, as numbered in this process namespace.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        cgroup::processes(&itself(&self.directory))
    }

    /// Returns whether the group still exists.
    #[must_use]
    pub fn exists(&self) -> bool {
        inside(&self.directory, Path::new("cgroup.procs")).exists()
    }

    /// Returns whether bufwise made the group for a command.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    }

    /// Removes a group that bufwise made, and those below it, if its owner is gone and no process runs in them;
    /// returns whether it did.
    #[must_use]
    pub fn remove_if_abandoned(self) -> bool {
        let is_ours = self.is_ours();
        let (true, Ok(place)) = (is_ours, fs::read_link(itself(&self.directory))) else { return false };
        Flock::lock(self.directory, FlockArg::LockExclusiveNonblock).is_ok_and(|_unowned| {
            // This fails if a process is still in it, or if its path is not visible from here.
            cgroup::remove_empty(&place)
        })
    }

    fn children(&self) -> impl Iterator<Item = Self> {
        self.below(|_| true)
    }

    /// Returns the groups directly below whose names fit.
    pub(crate) fn children_named(&self, fits: impl Fn(&str) -> bool) -> Vec<Self> {
        self.below(fits).collect()
    }

    /// Returns the group of that name directly below, if there is one.
    pub(crate) fn child(&self, name: &str) -> Option<Self> {
        let directory = File::open(inside(&self.directory, Path::new(name))).ok()?;
        // A file inside a cgroup's directory is not a cgroup.
        directory
            .metadata()
            .is_ok_and(|kind| kind.is_dir())
            .then(|| Self { directory, path: self.path.join(name) })
    }

    fn below(&self, fits: impl Fn(&str) -> bool) -> impl Iterator<Item = Self> {
        cgroup::children(&itself(&self.directory)).filter_map(move |child| {
            let name = child.file_name().filter(|name| fits(&name.to_string_lossy()))?;
            let path = self.path.join(name);
            // Skipped if it was removed meanwhile.
            Some(Self { directory: File::open(child).ok()?, path })
        })
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Returns the path of an open directory.
fn itself(directory: &impl AsRawFd) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string())
}

/// Returns a path inside an open directory.
fn inside(directory: &impl AsRawFd, path: &Path) -> PathBuf {
    itself(directory).join(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_group_is_named() {
        if mount::hierarchy().is_err() {
            eprintln!("skipped: no cgroup v2");
            return;
        }
        for path in ["/bufwise-no-such-group", "/cgroup.procs"] {
            let error = Group::open(Path::new(path)).unwrap_err().to_string();
            assert!(error.contains(path), "{error}");
        }
        assert!(Group::open(Path::new("/")).is_ok());
    }
}
