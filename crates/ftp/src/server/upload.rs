//! Uploads: the final name never stands for an incomplete file.
//!
//! Bytes go to a file of a reserved name in the same directory (`.NAME.bufwise-upload`). When all bytes have come, the
//! file is written to the disk (fsync) and renamed to the final name in one step.
//!
//! After an interruption:
//! - If the final name was new, the partial file stays under the reserved name. SIZE of the final name reports its
//!   length to users who may write, and `REST n` with STOR, or APPE, resumes there.
//! - If the final name existed, that file stays unchanged, and the new bytes are dropped: a client that asks for SIZE
//!   sees the old file, and must not resume a new one at that offset.
//! - If the disk was full, the new bytes are dropped in any case, to free the space; if the disk did not take them (fsync), too:
//!   the page cache may show bytes that the disk does not have.
//!
//! To resume in, or append to, an existing file, its beginning is copied first (shared on file systems that can), so
//! that this change, too, becomes visible in one step.
//! Properties kept: one upload of a name at a time (a lock on the reserved file, which only the lock's holder removes);
//! while it runs, no client removes or renames the file of that name, or gives the name to another ([`check_free`]); an
//! upload renames and removes only its own file; a file that replaces another gets its permissions, in the end, so that its
//! owner can write it until then; a cancelled upload ends within one piece of the copy ([`PIECE`]).

use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use bufwise_mover::Cancel;
use cap_std::fs::{Dir, OpenOptions, OpenOptionsExt};
use nix::fcntl::OFlag;

use super::error::StoreError;
use super::path::partial_name;
use super::sync::moment;

/// Attempts to lock a reserved file, which another session may finish between open and lock.
const LOCK_ATTEMPTS: u32 = 8;
/// Bytes of an existing file that are copied between two checks for a cancellation: a second of a slow disk.
const PIECE: u64 = 64 << 20;

/// Where an upload begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Start {
    /// A new file, or one that replaces another.
    New,
    /// At this byte of the existing file or partial file.
    At(u64),
    /// At the end of the existing file or partial file.
    Append,
}

/// A running upload.
#[derive(Debug)]
pub(super) struct Upload {
    directory: Dir,
    name: OsString,
    partial: OsString,
    file: File,
    offset: u64,
    /// There was no file of that name when the upload began.
    is_new: bool,
    /// Permissions of the file of that name.
    permissions: Option<Permissions>,
    /// The existing file of that name, whose beginning is still to be copied.
    base: Option<File>,
    state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Running,
    Finished,
    /// The disk is full, or did not take the bytes: they are dropped.
    Useless,
}

impl Upload {
    pub(super) fn begin(directory: Dir, name: &OsStr, start: Start) -> Result<Self, StoreError> {
        // Anything but a regular file under that name is an error; nothing is created.
        existing(&directory, name)?;
        let partial = partial_name(name);
        moment();
        let file = lock(&directory, Path::new(&partial), Purpose::Upload)?;
        let name = name.to_owned();
        let mut upload = Self {
            directory,
            name,
            partial,
            file,
            offset: 0,
            is_new: true,
            permissions: None,
            base: None,
            state: State::Running,
        };
        upload.prepare(start)?;
        Ok(upload)
    }

    /// Prepares the reserved file. The lock is held, and the final name is checked again: the upload that held the lock
    /// before may have created it since [`Upload::begin`] checked.
    fn prepare(&mut self, start: Start) -> Result<(), StoreError> {
        let existing = existing(&self.directory, &self.name)?;
        self.is_new = existing.is_none();
        let there = existing.as_ref().unwrap_or(&self.file).metadata()?.len();
        self.offset = match start {
            Start::New => 0,
            Start::Append => there,
            Start::At(offset) => offset,
        };
        self.base = existing.as_ref().filter(|_| self.offset > 0).map(File::try_clone).transpose()?;
        if self.offset > there {
            return Err(StoreError::Beyond);
        }
        self.file.set_len(if self.is_new { self.offset } else { 0 })?;
        if let Some(existing) = &existing {
            // Without the bits that make a program run as its owner: the kernel takes them off a file that is written, too.
            let mode = existing.metadata()?.permissions().mode() & 0o777;
            // After a kill the next upload has to open the file, and no other user gets more rights than before.
            self.file.set_permissions(Permissions::from_mode(mode | 0o600))?;
            self.permissions = Some(Permissions::from_mode(mode));
        }
        Ok(())
    }

    /// Returns the directory of the file.
    #[must_use]
    pub(super) fn directory(&self) -> &Dir {
        &self.directory
    }

    /// Returns the offset of the first received byte.
    #[must_use]
    pub(super) fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the file to write to, positioned where the upload begins; `None` once cancelled. Copies the beginning of
    /// the existing file first, if the upload continues it; this takes long for a large file.
    ///
    /// # Errors
    /// The system's error.
    pub(super) fn file(&mut self, cancel: &Cancel) -> Result<Option<&mut File>, StoreError> {
        if let Some(mut base) = self.base.take() {
            let copied = copy(&mut base, &mut self.file, self.offset, cancel);
            match copied.map_err(|error| self.note(error.into()))? {
                None => return Ok(None),
                Some(copied) if copied < self.offset => return Err(StoreError::Beyond),
                Some(_) => {}
            }
        }
        self.file.seek(SeekFrom::Start(self.offset))?;
        Ok(Some(&mut self.file))
    }

    /// Writes the file to the disk and, if `is_true` still holds then, gives it the final name.
    ///
    /// # Errors
    /// The system's error, and that of `is_true`; the existing file is untouched then.
    pub(super) fn finish(mut self, is_true: impl FnOnce() -> io::Result<bool>) -> Result<bool, StoreError> {
        if let Err(error) = self.file.sync_all() {
            self.state = State::Useless;
            return Err(error.into());
        }
        let finished = self.complete(is_true).map_err(|error| self.note(error))?;
        if finished {
            self.state = State::Finished;
        }
        Ok(finished)
    }

    /// Gives the file, which is on the disk, its name.
    fn complete(&self, is_true: impl FnOnce() -> io::Result<bool>) -> Result<bool, StoreError> {
        if !is_true()? {
            return Ok(false);
        }
        if !self.is_in_place()? {
            return Err(StoreError::Lost);
        }
        if let Some(permissions) = &self.permissions {
            self.file.set_permissions(permissions.clone())?;
        }
        moment();
        self.directory.rename(&self.partial, &self.directory, &self.name)?;
        moment();
        // The name must be on the disk, too, before the client gets the reply.
        match self.directory.open(".") {
            Ok(directory) => synchronise(&directory.into_std())?,
            // The server may not read the directory. On file systems with a journal this commits the new name as well.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => self.file.sync_all()?,
            Err(error) => return Err(error.into()),
        }
        Ok(true)
    }

    /// Whether the reserved name still belongs to this file: programs that ignore the lock may change that.
    fn is_in_place(&self) -> io::Result<bool> {
        is_named(&self.directory, &self.partial, &self.file)
    }

    /// Notes why the upload fails: if the disk is full, the bytes will be dropped.
    #[must_use]
    pub(super) fn note(&mut self, error: StoreError) -> StoreError {
        if matches!(error, StoreError::Full) {
            self.state = State::Useless;
        }
        error
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let is_empty = || self.file.metadata().is_ok_and(|metadata| metadata.len() == 0);
        let keep = match self.state {
            State::Finished => true,
            State::Running => self.is_new && !is_empty(),
            State::Useless => false,
        };
        if !keep && self.is_in_place().unwrap_or(false) {
            moment();
            // Already gone, or a directory that has become unwritable: nothing more can be done about it.
            let _left = self.directory.remove_file(&self.partial);
        }
    }
}

/// Copies `len` bytes, and returns how many there were; `None` once cancelled.
fn copy(from: &mut File, to: &mut File, len: u64, cancel: &Cancel) -> io::Result<Option<u64>> {
    let mut copied = 0;
    while copied < len {
        if cancel.is_cancelled() {
            return Ok(None);
        }
        match io::copy(&mut from.by_ref().take(PIECE.min(len - copied)), to)? {
            0 => break,
            piece => copied += piece,
        }
    }
    Ok(Some(copied))
}

/// Brings the names in a directory to the disk, where its file system can do so (fsync(2), EINVAL).
///
/// # Errors
/// The system's error.
pub(super) fn synchronise(directory: &File) -> io::Result<()> {
    match directory.sync_all() {
        Err(error) if error.kind() == io::ErrorKind::InvalidInput => Ok(()),
        synchronised => synchronised,
    }
}

/// Removes the partial file of an interrupted upload of `name`.
///
/// # Errors
/// [`StoreError::Busy`] while an upload holds it; the system's.
pub(super) fn remove_unfinished(directory: &Dir, name: &OsStr) -> Result<(), StoreError> {
    let partial = partial_name(name);
    let _locked = lock(directory, Path::new(&partial), Purpose::Removal)?;
    moment();
    Ok(directory.remove_file(partial)?)
}

/// Checks that no upload holds the reserved name `partial`, a path below `top`. An upload that begins later comes after
/// what the caller does now.
///
/// # Errors
/// [`StoreError::Busy`] while an upload holds it; the system's.
pub(super) fn check_free(top: &Dir, partial: &Path) -> Result<(), StoreError> {
    match lock(top, partial, Purpose::Check) {
        Ok(_) | Err(StoreError::NotFound) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Returns the regular file of that name, if there is one; an error if the name belongs to anything else.
fn existing(directory: &Dir, name: &OsStr) -> Result<Option<File>, StoreError> {
    match directory.symlink_metadata(name) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
        Ok(metadata) if metadata.is_file() => {
            let flags = OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW;
            let opened =
                directory.open_with(name, OpenOptions::new().read(true).custom_flags(flags.bits()))?;
            Ok(Some(opened.into_std()))
        }
        Ok(_) => Err(StoreError::NotAFile),
    }
}

/// Purpose of a lock on the reserved file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// To write to it; it is created if it is missing.
    Upload,
    /// To remove it.
    Removal,
    /// To see that no other holds it: the lock is shared, for which the file need not be writable.
    Check,
}

/// Opens the reserved file and locks it.
fn lock(directory: &Dir, partial: &Path, purpose: Purpose) -> Result<File, StoreError> {
    let is_shared = purpose == Purpose::Check;
    for _ in 0..LOCK_ATTEMPTS {
        let mut options = OpenOptions::new();
        options.read(true).write(!is_shared).create(purpose == Purpose::Upload).mode(0o666);
        options.custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOFOLLOW).bits());
        let file = directory.open_with(partial, &options)?.into_std();
        moment();
        match if is_shared { file.try_lock_shared() } else { file.try_lock() } {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Err(StoreError::Busy),
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
        if !file.metadata()?.is_file() {
            return Err(StoreError::NotAFile);
        }
        moment();
        // The former holder of the lock may have finished: then this is the final file by now.
        if is_named(directory, partial.as_os_str(), &file)? {
            return Ok(file);
        }
    }
    Err(StoreError::Busy)
}

/// Whether `name` refers to this file (the same inode).
fn is_named(directory: &Dir, name: &OsStr, file: &File) -> io::Result<bool> {
    use cap_std::fs::MetadataExt as _;
    let open = file.metadata()?;
    match directory.symlink_metadata(name) {
        Ok(there) => Ok((there.dev(), there.ino()) == (open.dev(), open.ino())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cancelled_upload_copies_no_further_and_leaves_nothing() {
        let there = tempfile::tempdir().unwrap();
        File::create(there.path().join("huge")).unwrap().set_len(1 << 40).unwrap();
        let directory = Dir::open_ambient_dir(there.path(), cap_std::ambient_authority()).unwrap();
        let mut upload = Upload::begin(directory, OsStr::new("huge"), Start::Append).unwrap();
        let cancel = Cancel::new().unwrap();
        cancel.cancel();
        assert!(upload.file(&cancel).unwrap().is_none());
        drop(upload);
        assert_eq!(std::fs::read_dir(there.path()).unwrap().count(), 1);
    }

    #[test]
    fn what_replaces_a_file_that_cannot_be_written_can_be_written_until_the_end() {
        let there = tempfile::tempdir().unwrap();
        let metadata = |name: &str| std::fs::metadata(there.path().join(name)).unwrap();
        let mode = |name| metadata(name).permissions().mode() & 0o777;
        std::fs::write(there.path().join("fixed"), "old").unwrap();
        std::fs::set_permissions(there.path().join("fixed"), Permissions::from_mode(0o440)).unwrap();
        let directory = Dir::open_ambient_dir(there.path(), cap_std::ambient_authority()).unwrap();
        let upload = Upload::begin(directory, OsStr::new("fixed"), Start::New).unwrap();
        assert_eq!(mode(".fixed.bufwise-upload"), 0o640, "after a kill the next upload opens it");
        assert!(upload.finish(|| Ok(true)).unwrap());
        assert_eq!(mode("fixed"), 0o440);
    }

    #[test]
    fn what_replaces_a_program_that_runs_as_its_owner_runs_as_its_caller() {
        let there = tempfile::tempdir().unwrap();
        let program = there.path().join("program");
        std::fs::write(&program, "old").unwrap();
        std::fs::set_permissions(&program, Permissions::from_mode(0o6755)).unwrap();
        let directory = Dir::open_ambient_dir(there.path(), cap_std::ambient_authority()).unwrap();
        let upload = Upload::begin(directory, OsStr::new("program"), Start::New).unwrap();
        assert!(upload.finish(|| Ok(true)).unwrap());
        assert_eq!(std::fs::metadata(&program).unwrap().permissions().mode() & 0o7777, 0o755);
    }

    #[test]
    fn a_file_system_that_synchronises_no_directories_takes_files() {
        let directory = File::open("/proc").unwrap();
        assert_eq!(directory.sync_all().unwrap_err().kind(), io::ErrorKind::InvalidInput);
        synchronise(&directory).unwrap();
    }

    #[test]
    fn a_beginning_longer_than_a_piece_is_copied_whole() {
        let [mut from, mut to] = [(); 2].map(|()| tempfile::tempfile().unwrap());
        from.set_len(PIECE + 3).unwrap();
        from.seek(SeekFrom::Start(PIECE)).unwrap();
        io::Write::write_all(&mut from, b"end").unwrap();
        from.rewind().unwrap();
        let copied = copy(&mut from, &mut to, PIECE + 9, &Cancel::default()).unwrap();
        assert_eq!(copied, Some(PIECE + 3), "the file is shorter");
        to.seek(SeekFrom::Start(PIECE)).unwrap();
        let mut end = Vec::new();
        to.read_to_end(&mut end).unwrap();
        assert_eq!(end, b"end");
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings {
    use super::*;
    use crate::server::sync::{Mutex, threads};
    use std::io::Write;
    use std::sync::Arc;

    /// Orders that the test tries: each makes files.
    const ORDERS: usize = 2_000;

    /// An upload of `bytes` that comes to its end; `None`: another one holds the name.
    fn put(directory: &Dir, start: Start, bytes: &[u8], holders: &Mutex<u32>) -> Option<()> {
        let mut upload = match Upload::begin(directory.try_clone().unwrap(), OsStr::new("w"), start) {
            Ok(upload) => upload,
            Err(StoreError::Busy) => return None,
            Err(error) => panic!("{error}"),
        };
        let count = |change: fn(u32) -> u32| {
            let mut holders = holders.lock().unwrap();
            *holders = change(*holders);
            assert!(*holders <= 1, "two uploads hold one name");
        };
        count(|holders| holders + 1);
        if !bytes.is_empty() {
            upload.file(&Cancel::default()).unwrap().unwrap().write_all(bytes).unwrap();
        }
        moment();
        count(|holders| holders - 1);
        // Without bytes: the session dies.
        assert!(bytes.is_empty() || upload.finish(|| Ok(true)).unwrap());
        Some(())
    }

    #[test]
    fn shuttle_a_name_is_held_by_one_upload_and_none_is_lost() {
        let body = || {
            // In memory: it is synchronised thousands of times.
            let there = tempfile::tempdir_in("/dev/shm").unwrap();
            let directory = Dir::open_ambient_dir(there.path(), cap_std::ambient_authority()).unwrap();
            let (shared, holders) = (directory.try_clone().unwrap(), Mutex::new(0));
            let done = Arc::new(Mutex::new([false; 4]));
            let results = Arc::clone(&done);
            threads(4, move |number| {
                let done = match number {
                    0 => put(&shared, Start::New, b"stored", &holders),
                    1 => put(&shared, Start::Append, b"+more", &holders),
                    2 => put(&shared, Start::New, b"", &holders),
                    _ => remove_unfinished(&shared, OsStr::new("w")).ok(),
                };
                results.lock().unwrap()[usize::from(number)] = done.is_some();
            });
            let [stored, appended, ..] = *done.lock().unwrap();
            let stands = std::fs::read(there.path().join("w")).unwrap_or_default();
            let right: &[&[u8]] = match (stored, appended) {
                (true, true) => &[b"stored+more", b"stored"],
                (true, false) => &[b"stored"],
                (false, true) => &[b"+more"],
                (false, false) => &[b""],
            };
            let said = String::from_utf8_lossy(&stands);
            assert!(right.contains(&stands.as_slice()), "{said:?} after {stored} and {appended}");
            let names: Vec<_> =
                std::fs::read_dir(there.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            assert!(names.iter().all(|name| name == "w"), "left: {names:?}");
        };
        shuttle::check_random(body, ORDERS);
    }
}
