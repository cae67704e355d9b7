//! Cgroups that exist: one that was named, or each of them.
//!
//! Paths are as in `/proc/PID/cgroup`: `/` is the root of the hierarchy, wherever it is mounted. A path below the mount
//! itself (`/sys/fs/cgroup/...`) is taken as well, for that is what people see.

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
    /// Opens one by its path.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2, [`CgroupError::Open`] where there is no such group.
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
        // A file of a group is no group.
        if !directory.metadata().map_err(failed)?.is_dir() {
            return Err(failed(io::ErrorKind::NotADirectory.into()));
        }
        Ok(Self { directory, path: path.to_owned() })
    }

    /// Visits every group, each after those below it. Few are open at a time, however many there are.
    ///
    /// # Errors
    /// [`CgroupError::Hierarchy`] without cgroup v2.
    pub fn walk(visit: &mut impl FnMut(Self)) -> Result<(), CgroupError> {
        Self::root()?.walk_below(visit);
        Ok(())
    }

    /// The root of the hierarchy.
    pub(crate) fn root() -> Result<Self, CgroupError> {
        let root = mount::hierarchy().map_err(CgroupError::Hierarchy)?;
        Ok(Self { directory: File::from(root), path: PathBuf::from("/") })
    }

    fn walk_below(self, visit: &mut impl FnMut(Self)) {
        self.children().for_each(|group| group.walk_below(visit));
        visit(self);
    }

    /// Its path, as it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number that the kernel knows it by: the inode of its directory.
    ///
    /// # Errors
    /// The kernel's answer.
    pub fn inode(&self) -> io::Result<u64> {
        Ok(self.directory.metadata()?.ino())
    }

    /// The processes in it and below, as numbered in this process namespace.
    #[must_use]
    pub fn processes(&self) -> Vec<i32> {
        cgroup::processes(&itself(&self.directory))
    }

    /// It was not removed since it was opened.
    #[must_use]
    pub fn exists(&self) -> bool {
        inside(&self.directory, Path::new("cgroup.procs")).exists()
    }

    /// It was made by bufwise for a command.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(PREFIX))
    }

    /// Removes one of ours whose owner is gone, with those below it, if nothing runs in them any more; whether it did.
    #[must_use]
    pub fn remove_if_abandoned(self) -> bool {
        let is_ours = self.is_ours();
        let (true, Ok(place)) = (is_ours, fs::read_link(itself(&self.directory))) else { return false };
        Flock::lock(self.directory, FlockArg::LockExclusiveNonblock).is_ok_and(|_unowned| {
            // Someone is still in it, or it cannot be named from here.
            cgroup::remove_empty(&place)
        })
    }

    fn children(&self) -> impl Iterator<Item = Self> {
        self.below(|_| true)
    }

    /// Those right below it whose names fit.
    pub(crate) fn children_named(&self, fits: impl Fn(&str) -> bool) -> Vec<Self> {
        self.below(fits).collect()
    }

    /// The one right below it of that name, if there is one.
    pub(crate) fn child(&self, name: &str) -> Option<Self> {
        let directory = File::open(inside(&self.directory, Path::new(name))).ok()?;
        // A file of a group is no group.
        directory
            .metadata()
            .is_ok_and(|kind| kind.is_dir())
            .then(|| Self { directory, path: self.path.join(name) })
    }

    fn below(&self, fits: impl Fn(&str) -> bool) -> impl Iterator<Item = Self> {
        cgroup::children(&itself(&self.directory)).filter_map(move |child| {
            let name = child.file_name().filter(|name| fits(&name.to_string_lossy()))?;
            let path = self.path.join(name);
            // Removed meanwhile.
            Some(Self { directory: File::open(child).ok()?, path })
        })
    }
}

impl AsFd for Group {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// A directory that is open.
fn itself(directory: &impl AsRawFd) -> PathBuf {
    Path::new("/proc/self/fd").join(directory.as_raw_fd().to_string())
}

/// Something in a directory that is open.
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
