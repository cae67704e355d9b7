//! The served directory: every file and directory of the server is reached through it.
//!
//! Problem: a client must not leave the directory, neither by `..` nor through a link (CVE-2017-7418).
//! Solution: the kernel resolves each path below a descriptor of the directory (cap-std: openat2 with `RESOLVE_BENEATH`).
//! A path is never checked first and opened later. Links that lead outside are refused at the moment of use.
//!
//! A listing is sorted, so it holds the names of its directory until the client has taken them; a million names take
//! some 100 MB. The memory of all listings together is therefore bounded, and requested while a directory is read.
//! Properties kept: only regular files are opened, without waiting (a FIFO would block); error texts are fixed, and
//! hold no bytes of the client; the names of all listings stay within their memory, except for [`NAMES_AT_ONCE`] of
//! each listing, and give it back when the listing ends.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use bufwise_units::Bytes;
use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, MetadataExt, OpenOptions, OpenOptionsExt};
use nix::fcntl::OFlag;
use nix::sys::statvfs::fstatvfs;

use super::error::StoreError;
use super::limits::Grant;
use super::path::{VirtualPath, is_partial, partial_name};
use super::upload::{self, Start, Upload, remove_unfinished};
use crate::wire::Kind;

/// Memory of a listed name beside its bytes: up to 48 in a vector that doubles as it grows, and up to 31 that the
/// allocator adds.
const NAME_OVERHEAD: u64 = 80;
/// Memory of a listing that is not counted, so that directories of some hundred names can be listed at any time. More is
/// requested in steps of this size.
const NAMES_AT_ONCE: u64 = 64 << 10;

/// The directory that is served.
#[derive(Debug)]
pub(super) struct Store {
    top: Arc<Dir>,
}

/// Kind, size and times of a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Status {
    /// Its kind. A link to a file counts as a file; a link to a directory as a link, so that clients do not walk in
    /// circles; devices, sockets and FIFOs are [`Kind::Other`] and never opened.
    pub kind: Kind,
    /// Length in bytes; of an unfinished upload, the bytes that have arrived.
    pub size: u64,
    /// When its content last changed, if the file system says so.
    pub modified: Option<SystemTime>,
    /// Permission bits, as `chmod` takes them.
    pub mode: u32,
}

impl Status {
    fn of(metadata: &Metadata) -> Self {
        let kind = if metadata.is_dir() {
            Kind::Dir
        } else if metadata.is_file() {
            Kind::File
        } else {
            Kind::Other
        };
        let modified = metadata.modified().ok().map(cap_std::time::SystemTime::into_std);
        Self { kind, size: metadata.len(), modified, mode: metadata.mode() & 0o7777 }
    }
}

impl Store {
    /// Serves `directory`.
    ///
    /// # Errors
    /// The system's error, when it cannot be opened or is no directory.
    pub(super) fn open(directory: &Path) -> io::Result<Self> {
        Ok(Self { top: Arc::new(Dir::open_ambient_dir(directory, ambient_authority())?) })
    }

    /// Returns the status of `path`; if there is no such file but an interrupted upload of it, and `with_partial`, the
    /// status of that, so that a client can resume.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub(super) fn status(&self, path: &VirtualPath, with_partial: bool) -> Result<Status, StoreError> {
        match self.top.metadata(path.relative()) {
            Err(error) if error.kind() == ErrorKind::NotFound && with_partial => {
                let name = path.name().ok_or(StoreError::NotFound)?;
                let partial = path.parent().relative().join(partial_name(name));
                Ok(Status::of(&self.top.symlink_metadata(partial)?))
            }
            other => Ok(Status::of(&other?)),
        }
    }

    /// Opens a regular file for reading.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub(super) fn read(&self, path: &VirtualPath) -> Result<(File, Status), StoreError> {
        self.open_file(&path.relative())
    }

    /// Opens the partial file of an interrupted upload.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub(super) fn read_partial(&self, path: &VirtualPath) -> Result<(File, Status), StoreError> {
        let name = path.name().ok_or(StoreError::NotAFile)?;
        self.open_file(&path.parent().relative().join(partial_name(name)))
    }

    fn open_file(&self, path: &Path) -> Result<(File, Status), StoreError> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits());
        // Checked before opening, so that no device is ever opened, and again afterwards: the file opened may be
        // another.
        if Status::of(&self.top.metadata(path)?).kind != Kind::File {
            return Err(StoreError::NotAFile);
        }
        let file = self.top.open_with(path, &options)?;
        let status = Status::of(&file.metadata()?);
        if status.kind != Kind::File {
            return Err(StoreError::NotAFile);
        }
        Ok((file.into_std(), status))
    }

    /// Begins an upload, of `bytes` if that is known, that will replace `path` once it is whole.
    ///
    /// # Errors
    /// [`StoreError::Full`] where there is no room for so much, beside what this upload replaces; else any [`StoreError`].
    pub(super) fn upload(
        &self,
        path: &VirtualPath,
        start: Start,
        bytes: Option<u64>,
    ) -> Result<Upload, StoreError> {
        let name = path.name().ok_or(StoreError::NotAFile)?;
        let upload = Upload::begin(self.directory(&path.parent())?, name, start)?;
        match (bytes, free(upload.directory())) {
            (Some(bytes), Some(free)) if bytes > free => Err(StoreError::Full),
            _ => Ok(upload),
        }
    }

    /// Checks that a directory exists and can be listed.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub(super) fn enter(&self, path: &VirtualPath) -> Result<(), StoreError> {
        self.directory(path).map(drop)
    }

    /// Opens a directory to list the names that `matches`, which are held within `memory`.
    ///
    /// # Errors
    /// [`StoreError::TooMany`] if the memory is used up; else any [`StoreError`].
    pub(super) fn list(
        &self,
        path: &VirtualPath,
        memory: Grant,
        matches: impl Fn(&OsStr) -> bool,
    ) -> Result<Listed, StoreError> {
        let directory = self.directory(path)?;
        let mut names = Names::within(memory);
        for entry in directory.entries()? {
            let name = entry?.file_name();
            if !is_partial(&name) && matches(&name) {
                names.add(name)?;
            }
        }
        let Names { mut names, memory, .. } = names;
        names.sort_unstable();
        let (top, path) = (Arc::clone(&self.top), path.clone());
        Ok(Listed { top, path, directory, names: names.into_iter(), _memory: memory })
    }

    /// Creates a directory and synchronises it to the disk, because files stored in it would be lost with it.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while an upload holds the name; else any [`StoreError`].
    pub(super) fn make_directory(&self, path: &VirtualPath) -> Result<(), StoreError> {
        path.name().ok_or(StoreError::Exists)?;
        self.check_free(path)?;
        self.top.create_dir(path.relative())?;
        let changed = match self.top.open(path.parent().relative()) {
            // The server may not read it. On file systems with a journal the new directory commits its name as well.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => self.top.open(path.relative()),
            opened => opened,
        };
        Ok(upload::synchronise(&changed?.into_std())?)
    }

    /// Removes an empty directory.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub(super) fn remove_directory(&self, path: &VirtualPath) -> Result<(), StoreError> {
        path.name().ok_or(StoreError::Denied)?;
        Ok(self.top.remove_dir(path.relative())?)
    }

    /// Checks that no upload holds `path`: its end would undo what is done to the name meanwhile.
    ///
    /// # Errors
    /// [`StoreError::Busy`] if one does; else any [`StoreError`].
    pub(super) fn check_free(&self, path: &VirtualPath) -> Result<(), StoreError> {
        let name = path.name().ok_or(StoreError::Denied)?;
        upload::check_free(&self.top, &path.parent().relative().join(partial_name(name)))
    }

    /// Removes a file (for a link, the link itself), or the partial file of an interrupted upload.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while an upload holds the name; else any [`StoreError`].
    pub(super) fn remove_file(&self, path: &VirtualPath) -> Result<(), StoreError> {
        let name = path.name().ok_or(StoreError::NotAFile)?;
        self.check_free(path)?;
        match self.top.remove_file(path.relative()) {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                remove_unfinished(&self.directory(&path.parent())?, name)
            }
            other => Ok(other?),
        }
    }

    /// Renames a file or directory; replaces a file of the new name.
    ///
    /// # Errors
    /// [`StoreError::Busy`] while an upload holds one of the names; else any [`StoreError`].
    pub(super) fn rename(&self, from: &VirtualPath, to: &VirtualPath) -> Result<(), StoreError> {
        self.check_free(from)?;
        self.check_free(to)?;
        Ok(self.top.rename(from.relative(), &self.top, to.relative())?)
    }

    /// Sets the time of a file's last change.
    ///
    /// # Errors
    /// Any [`StoreError`].
    pub(super) fn set_modified(&self, path: &VirtualPath, time: SystemTime) -> Result<(), StoreError> {
        let (file, _) = self.read(path)?;
        Ok(file.set_modified(time)?)
    }

    fn directory(&self, path: &VirtualPath) -> Result<Dir, StoreError> {
        Ok(self.top.open_dir(path.relative())?)
    }
}

/// Returns the bytes that an unprivileged program may still write in a directory; `None` where the file system does not
/// say.
fn free(directory: &Dir) -> Option<u64> {
    let system = fstatvfs(directory).ok()?;
    // File systems without a bound, and those that do not answer, have no blocks at all.
    if system.blocks() == 0 { None } else { system.blocks_available().checked_mul(system.fragment_size()) }
}

/// Names that were read of a directory.
struct Names {
    names: Vec<OsString>,
    /// The memory that they take.
    bytes: u64,
    /// The memory that they may take without a further request.
    allowed: u64,
    memory: Grant,
}

impl Names {
    fn within(memory: Grant) -> Self {
        Self { names: Vec::new(), bytes: 0, allowed: NAMES_AT_ONCE, memory }
    }

    fn add(&mut self, name: OsString) -> Result<(), StoreError> {
        self.bytes += name.len() as u64 + NAME_OVERHEAD;
        if self.bytes > self.allowed {
            let request = (self.bytes - NAMES_AT_ONCE).next_multiple_of(NAMES_AT_ONCE);
            self.allowed = NAMES_AT_ONCE + self.memory.ask(Bytes(request)).0;
        }
        if self.bytes > self.allowed {
            return Err(StoreError::TooMany);
        }
        self.names.push(name);
        Ok(())
    }
}

/// A directory being listed: names in the order of their bytes, each with its status.
///
/// Entries that have vanished meanwhile, and links that lead to nothing or outside, are skipped.
#[derive(Debug)]
pub(super) struct Listed {
    /// The served directory, in which links are followed as for every other command.
    top: Arc<Dir>,
    path: VirtualPath,
    directory: Dir,
    names: std::vec::IntoIter<OsString>,
    /// Gives the memory of the names back when dropped.
    _memory: Grant,
}

impl Listed {
    /// Returns how many names are still to come.
    #[must_use]
    pub(super) fn left(&self) -> usize {
        self.names.len()
    }

    fn status(&self, name: &OsStr) -> Option<Status> {
        let itself = self.directory.symlink_metadata(name).ok()?;
        if !itself.is_symlink() {
            return Some(Status::of(&itself));
        }
        let target = Status::of(&self.top.metadata(self.path.relative().join(name)).ok()?);
        let kind = if target.kind == Kind::Dir { Kind::Link } else { target.kind };
        Some(Status { kind, ..target })
    }
}

impl Iterator for Listed {
    type Item = (OsString, Status);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let name = self.names.next()?;
            if let Some(status) = self.status(&name) {
                return Some((name, status));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_that_reports_no_blocks_is_not_full() {
        let free = |path: &str| free(&Dir::open_ambient_dir(path, ambient_authority()).unwrap());
        assert_eq!(free("/proc"), None);
        assert!(free("/").is_some());
    }
}
