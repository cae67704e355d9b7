//! Local files that appear under their name only when they are whole.
//!
//! Problem: a transfer may end at any byte, by any cause; an incomplete file must never look complete, and the bytes
//! that arrived should not be lost.
//! Rule: data goes to `.NAME.bufwise-part` beside the target; after its last byte it is synchronised to the
//! disk, renamed, and the directory is synchronised, as are those in which directories are made. Where it replaces a file, it gets
//! that file's permissions, unless another user may have planted that file ([`Target::is_planted`]).
//! Properties kept: the final name changes in one step from the old content to the whole file; the temporary file is a
//! regular file with one writer at a time (locked, where the file system has locks), never followed through a link; in a
//! tree no path leaves the tree's directory, whatever links it contains (cap-std); links of this user and of root are
//! followed, those of other users are not.

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Permissions, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, Metadata, MetadataExt, OpenOptions, OpenOptionsExt};
use nix::errno::Errno;
use nix::fcntl::{OFlag, readlinkat};
use nix::unistd::geteuid;
use twox_hash::XxHash3_128;

/// Suffix of an unfinished file's name, which begins with a dot.
const SUFFIX: &str = ".bufwise-part";
/// Longest name of a file on Linux.
const NAME_MAX: usize = 255;
/// Most links in a row that are followed: the kernel's own limit.
const MAX_LINKS: usize = 40;
/// Attempts to lock a temporary file, which another process may finish between open and lock.
const LOCK_ATTEMPTS: u32 = 8;
/// Root, whose links are followed for every user.
const ROOT: u32 = 0;
/// The mode bit of a directory in which users rename and remove only their own files (`S_ISVTX`), as in `/tmp`.
const STICKY: u32 = 0o1000;

/// A local file could not be opened, written or renamed.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The system refused.
    #[error("{operation} {} failed: {source}", path.display())]
    System {
        /// The step that failed.
        operation: &'static str,
        /// The file it was for.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Another program writes it.
    #[error("{} is being written by another process", path.display())]
    Busy {
        /// The temporary file.
        path: PathBuf,
    },
    /// Another user's link.
    #[error("{} is a link of another user: it is not followed", path.display())]
    Foreign {
        /// The link.
        path: PathBuf,
    },
    /// Another file has this name until it is whole.
    #[error("{} is the name of another file until that one is whole", path.display())]
    Reserved {
        /// The file.
        path: PathBuf,
    },
    /// The name belongs to something other than a regular file.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
}

/// A local directory for transfers; paths below it cannot leave it.
#[derive(Clone, Debug)]
pub struct Folder {
    dir: Arc<Dir>,
    shown: PathBuf,
}

/// The final place of a file.
#[derive(Clone, Debug)]
pub struct Target {
    folder: Folder,
    name: OsString,
    /// As the caller named it.
    asked: Option<PathBuf>,
}

/// An unfinished file under its temporary name, locked.
#[derive(Debug)]
pub struct Partial {
    target: Target,
    temporary: OsString,
    file: File,
}

impl Folder {
    /// Opens an existing directory.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn open(path: &Path) -> Result<Self, LocalError> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let dir = Dir::open_ambient_dir(path, ambient_authority())
            .map_err(|source| failed("opening the directory", path, source))?;
        Ok(Self { dir: Arc::new(dir), shown: path.to_owned() })
    }

    /// Opens a directory, and creates it if necessary.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn create(path: &Path) -> Result<Self, LocalError> {
        let missing = missing(path, Path::exists);
        std::fs::create_dir_all(path).map_err(|source| failed("making the directory", path, source))?;
        for made in missing {
            synchronise(File::open(above(made)));
        }
        Self::open(path)
    }

    /// Returns the file `path` below this directory; creates missing directories on the way.
    ///
    /// # Errors
    /// [`LocalError::System`], also when a link leads out of the directory.
    pub fn target(&self, path: &Path) -> Result<Target, LocalError> {
        let shown = self.shown.join(path);
        let no_name = || failed("naming", &shown, io::ErrorKind::InvalidInput.into());
        let name = path.file_name().ok_or_else(no_name)?.to_owned();
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = match parent {
            None => self.clone(),
            Some(parent) => {
                let shown = self.shown.join(parent);
                self.make_directory(parent)?;
                let dir = self
                    .dir
                    .open_dir(parent)
                    .map_err(|source| failed("opening the directory", &shown, source))?;
                Self { dir: Arc::new(dir), shown }
            }
        };
        Ok(Target { folder, name, asked: None })
    }

    /// Makes the directory `path` below this one.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn make_directory(&self, path: &Path) -> Result<(), LocalError> {
        let missing = missing(path, |path| self.dir.metadata(path).is_ok());
        self.try_directory(path)?;
        for made in missing {
            self.synchronise(above(made));
        }
        Ok(())
    }

    /// Makes the directories `paths` below this one. Returns those that cannot be made, with the reason.
    #[must_use]
    pub fn make_directories(&self, paths: &[PathBuf]) -> Vec<(PathBuf, LocalError)> {
        let refused = |path: &PathBuf| Some((path.clone(), self.try_directory(path).err()?));
        let refused = paths.iter().filter_map(refused).collect();
        // Synchronise each parent directory once, also if an interrupted command has made its content.
        let changed: BTreeSet<&Path> = paths.iter().map(|path| above(path)).collect();
        for directory in changed {
            self.synchronise(directory);
        }
        refused
    }

    fn try_directory(&self, path: &Path) -> Result<(), LocalError> {
        let made = self.dir.create_dir_all(path);
        made.map_err(|source| failed("making the directory", &self.shown.join(path), source))
    }

    /// Synchronises the names in the directory `path` below this one.
    fn synchronise(&self, path: &Path) {
        // The directory itself was opened by its path alone, which cannot be synchronised.
        synchronise(self.dir.open(path).map(cap_std::fs::File::into_std));
    }
}

impl Target {
    /// Makes the target `path`, whose directory must be there.
    ///
    /// # Errors
    /// [`LocalError`] when the directory cannot be opened, or `path` is a directory or another user's link.
    pub fn new(path: &Path) -> Result<Self, LocalError> {
        // The file that a link points to is meant, not the link.
        let resolved = follow(path)?;
        let parent = resolved.parent().unwrap_or(Path::new(""));
        let name = Path::new(resolved.file_name().unwrap_or(OsStr::new("")));
        if name.as_os_str().is_empty() || (resolved.exists() && !resolved.is_file()) {
            return Err(LocalError::NotAFile { path: path.to_owned() });
        }
        let named = Folder::open(parent)?.target(name)?;
        Ok(Self { asked: Some(path.to_owned()), ..named })
    }

    /// Returns the final name with its directory, to be shown.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.asked.clone().unwrap_or_else(|| self.shown(&self.name))
    }

    /// Returns the directory of the final name.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.folder.shown
    }

    fn shown(&self, name: &OsStr) -> PathBuf {
        if self.folder.shown == Path::new(".") { PathBuf::from(name) } else { self.folder.shown.join(name) }
    }

    /// Returns the file that already has the final name, if it is a regular one that no other user may have planted.
    #[must_use]
    pub fn finished(&self) -> Option<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = self.folder.dir.open_with(&self.name, &options).ok()?;
        let metadata = file.metadata().ok()?;
        (metadata.is_file() && !self.is_planted(&metadata)).then(|| file.into_std())
    }

    /// Whether an unfinished file waits to be resumed.
    #[must_use]
    pub fn is_begun(&self) -> bool {
        self.folder.dir.symlink_metadata(temporary_name(&self.name)).is_ok()
    }

    /// Opens the temporary file, empty unless `resume`.
    ///
    /// # Errors
    /// [`LocalError`]: also when another process is writing it, or something else has its name.
    pub fn begin(&self, resume: bool) -> Result<Partial, LocalError> {
        let temporary = temporary_name(&self.name);
        let path = self.shown(&temporary);
        let file = self.locked(&temporary, || self.open(&temporary))?;
        if !resume {
            file.set_len(0).map_err(|source| failed("emptying", &path, source))?;
        }
        if let Some(mode) = self.mode() {
            // Until the end its owner may read and write it, or it could not be resumed.
            permit(&file, mode | 0o600);
        }
        Ok(Partial { target: self.clone(), temporary, file })
    }

    /// Returns the file that `open` opens under the temporary name, locked.
    fn locked(&self, temporary: &OsStr, open: impl Fn() -> io::Result<File>) -> Result<File, LocalError> {
        let path = self.shown(temporary);
        for _ in 0..LOCK_ATTEMPTS {
            // Without openat2 (old kernels, some containers) cap-std follows a link in spite of O_NOFOLLOW.
            if self.folder.dir.symlink_metadata(temporary).is_ok_and(|metadata| metadata.is_symlink()) {
                return Err(LocalError::NotAFile { path });
            }
            let file = open().map_err(|source| failed("opening", &path, source))?;
            if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
                return Err(LocalError::NotAFile { path });
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(LocalError::Busy { path }),
                Err(TryLockError::Error(error)) if lacks_locks(&error) => {}
                Err(TryLockError::Error(source)) => return Err(failed("locking", &path, source)),
            }
            // Between opening and locking another process may have finished this very file.
            if self.still_named(temporary, &file) {
                return Ok(file);
            }
        }
        Err(LocalError::Busy { path })
    }

    fn open(&self, name: &OsStr) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        Ok(self.folder.dir.open_with(name, &options)?.into_std())
    }

    /// Returns the permission bits of the file that already has the final name, unless another user may have planted it.
    fn mode(&self) -> Option<u32> {
        let metadata = self.folder.dir.symlink_metadata(&self.name).ok()?;
        (metadata.is_file() && !self.is_planted(&metadata)).then(|| metadata.mode() & 0o777)
    }

    /// Whether another user may have planted a file in a directory where all users can make files: the directory is sticky, and
    /// its owner, root and this user do not own the file.
    ///
    /// The kernel does not open such files for writing (`fs.protected_regular`); a rename into place would bypass this protection.
    fn is_planted(&self, file: &Metadata) -> bool {
        self.folder.dir.dir_metadata().is_ok_and(|directory| {
            let trusted = [ROOT, geteuid().as_raw(), directory.uid()];
            directory.mode() & STICKY != 0 && !trusted.contains(&file.uid())
        })
    }

    fn still_named(&self, name: &OsStr, file: &File) -> bool {
        use std::os::unix::fs::MetadataExt as _;
        let named = self.folder.dir.symlink_metadata(name);
        match (named, file.metadata()) {
            (Ok(named), Ok(opened)) => (named.dev(), named.ino()) == (opened.dev(), opened.ino()),
            _ => false,
        }
    }
}

impl Partial {
    /// Returns the open file. The caller keeps track of its position.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Returns the temporary name with its directory, for messages.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.target.shown(&self.temporary)
    }

    /// Returns the final name.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Returns the file's length in bytes.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn length(&self) -> Result<u64, LocalError> {
        let metadata = self.file.metadata().map_err(|source| self.failed("looking at", source))?;
        Ok(metadata.len())
    }

    /// Truncates the file to `len` bytes and seeks to that end.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn cut(&mut self, len: u64) -> Result<(), LocalError> {
        let cut = self.file.set_len(len).and_then(|()| self.file.seek(SeekFrom::Start(len)));
        cut.map(drop).map_err(|source| self.failed("cutting", source))
    }

    /// Synchronises the file to the disk and gives it its final name.
    ///
    /// # Errors
    /// [`LocalError::System`]; the temporary file is then still there, unless the disk did not take it.
    pub fn finish(mut self) -> Result<(), LocalError> {
        if let Err(source) = self.file.sync_all() {
            let error = self.failed("writing to the disk", source);
            // It is not known which bytes the disk has, so none of them can be resumed.
            let _stays = self.cut(0);
            self.leave();
            return Err(error);
        }
        let (dir, is_ours) = (&self.target.folder.dir, self.target.still_named(&self.temporary, &self.file));
        if let Some(mode) = self.target.mode() {
            permit(&self.file, mode);
        }
        let renamed = match is_ours {
            true => dir.rename(&self.temporary, dir, &self.target.name),
            false => Err(io::ErrorKind::NotFound.into()),
        };
        renamed.map_err(|source| LocalError::System {
            operation: "giving its name to",
            path: self.target.path(),
            source,
        })?;
        self.target.folder.synchronise(Path::new("."));
        Ok(())
    }

    /// Removes the temporary file if it is empty, and still this one.
    pub fn leave(self) {
        let is_empty = self.length().is_ok_and(|len| len == 0);
        if is_empty && self.target.still_named(&self.temporary, &self.file) {
            // An empty file has nothing to resume, and does no harm if it cannot be removed.
            let _may_stay = self.target.folder.dir.remove_file(&self.temporary);
        }
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> LocalError {
        failed(operation, &self.path(), source)
    }
}

/// Returns where `path` leads, through links of this user or of root. A link to nothing stands for itself.
///
/// The kernel does not follow other users' links in world-writable directories (`fs.protected_symlinks`); a rename into
/// place would bypass this protection.
///
/// # Errors
/// [`LocalError::Foreign`].
pub fn follow(path: &Path) -> Result<PathBuf, LocalError> {
    let mut at = path.to_owned();
    for _ in 0..MAX_LINKS {
        match link(&at) {
            Ok(Some((owner, _))) if ![ROOT, geteuid().as_raw()].contains(&owner) => {
                return Err(LocalError::Foreign { path: at });
            }
            Ok(Some((_, to))) => at = at.parent().unwrap_or(Path::new("")).join(to),
            Ok(None) => return Ok(at),
            Err(_) => break,
        }
    }
    Ok(path.to_owned())
}

/// Returns a link's owner and target, read from the same inode; `None` if it is no link.
fn link(path: &Path) -> io::Result<Option<(u32, PathBuf)>> {
    use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
    let flags = (OFlag::O_PATH | OFlag::O_NOFOLLOW).bits();
    let link = std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path)?;
    let metadata = link.metadata()?;
    if !metadata.is_symlink() {
        return Ok(None);
    }
    Ok(Some((metadata.uid(), readlinkat(&link, "")?.into())))
}

/// Returns the last bytes of the first `len` of a file, at most `most` of them.
///
/// # Errors
/// The system's error, and `UnexpectedEof` when the file is shorter.
pub(super) fn tail(file: &File, len: u64, most: u64) -> io::Result<Vec<u8>> {
    let count = len.min(most);
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, len - count)?;
    Ok(bytes)
}

/// Returns the directories on the way to `path`, itself included, that are not there: the deepest first.
fn missing(path: &Path, is_there: impl Fn(&Path) -> bool) -> Vec<&Path> {
    path.ancestors().take_while(|path| !path.as_os_str().is_empty() && !is_there(path)).collect()
}

/// Returns the directory that `path` is in.
fn above(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Brings the names in a directory to the disk, where it can be opened and its file system can do so.
fn synchronise(directory: io::Result<File>) {
    if let Ok(directory) = directory {
        let _not_everywhere = directory.sync_all();
    }
}

/// Whether this error of flock(2) means that the file system has no locks, as Lustre and NFS without their lock services. A
/// second writer is not noticed there.
fn lacks_locks(error: &io::Error) -> bool {
    let errno = error.raw_os_error();
    [Errno::ENOSYS, Errno::EOPNOTSUPP, Errno::ENOLCK].iter().any(|lacks| errno == Some(*lacks as i32))
}

/// Sets the permissions of a file, where its file system has them.
fn permit(file: &File, mode: u32) {
    let _not_everywhere = file.set_permissions(Permissions::from_mode(mode));
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> LocalError {
    LocalError::System { operation, path: path.to_owned(), source }
}

/// Returns `.NAME.bufwise-part`; a NAME too long for that is cut, and its hash is added.
pub(super) fn temporary_name(name: &OsStr) -> OsString {
    let bytes = name.as_bytes();
    let mut temporary = OsString::from(".");
    if bytes.len() + 1 + SUFFIX.len() <= NAME_MAX {
        temporary.push(name);
    } else {
        let hash = format!("-{:032x}", XxHash3_128::oneshot(bytes));
        let room = NAME_MAX - 1 - SUFFIX.len() - hash.len();
        temporary.push(OsStr::from_bytes(&bytes[..room]));
        temporary.push(hash);
    }
    temporary.push(SUFFIX);
    temporary
}
