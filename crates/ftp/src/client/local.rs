//! Local files that appear under their name only when they are whole.
//!
//! Problem: a transfer may end at any byte, by any cause; nobody may ever take half a file for a whole one,
//! and what did arrive should not be lost.
//! Rule: data goes to `.NAME.bufwise-part` beside the target; after its last byte it is synchronised to the
//! disk, renamed, and the directory is synchronised.
//! Properties kept: the final name changes at once from what was there to the whole file; the temporary file
//! is a regular file of one writer at a time (locked), never followed through a link; in a tree no path
//! leaves the tree's directory, whatever links stand in it (cap-std).

#[cfg(test)]
mod tests;

use std::ffi::{OsStr, OsString};
use std::fs::{File, TryLockError};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cap_std::ambient_authority;
use cap_std::fs::{Dir, MetadataExt, OpenOptions, OpenOptionsExt};
use nix::fcntl::OFlag;
use twox_hash::XxHash3_128;

/// Behind the name of an unfinished file; a dot stands in front.
const SUFFIX: &str = ".bufwise-part";
/// Longest name of a file on Linux.
const NAME_MAX: usize = 255;

/// A local file could not be had or finished.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The system refused.
    #[error("{operation} {} failed: {source}", path.display())]
    System {
        /// The step that failed.
        operation: &'static str,
        /// The file it was for.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// Another program writes it.
    #[error("{} is being written by another process", path.display())]
    Busy {
        /// The temporary file.
        path: PathBuf,
    },
    /// Something else stands in the way.
    #[error("{} is not a regular file", path.display())]
    NotAFile {
        /// The file.
        path: PathBuf,
    },
}

/// A directory that files are put into and taken from; paths below it cannot leave it.
#[derive(Clone, Debug)]
pub struct Folder {
    dir: Arc<Dir>,
    shown: PathBuf,
}

/// Where a file shall appear.
#[derive(Clone, Debug)]
pub struct Target {
    folder: Folder,
    name: OsString,
    /// As the caller named it.
    asked: Option<PathBuf>,
}

/// A file on its way: under its temporary name, ours alone.
#[derive(Debug)]
pub struct Partial {
    target: Target,
    temporary: OsString,
    file: File,
}

impl Folder {
    /// Opens a directory that is there.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn open(path: &Path) -> Result<Self, LocalError> {
        let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
        let dir = Dir::open_ambient_dir(path, ambient_authority())
            .map_err(|source| failed("opening the directory", path, source))?;
        Ok(Self { dir: Arc::new(dir), shown: path.to_owned() })
    }

    /// Opens a directory, and makes it first if it is not there.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn create(path: &Path) -> Result<Self, LocalError> {
        std::fs::create_dir_all(path).map_err(|source| failed("making the directory", path, source))?;
        Self::open(path)
    }

    /// The file `path` below this directory; directories on the way are made.
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
                self.dir
                    .create_dir_all(parent)
                    .map_err(|source| failed("making the directory", &shown, source))?;
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
        let made = self.dir.create_dir_all(path);
        made.map_err(|source| failed("making the directory", &self.shown.join(path), source))
    }
}

impl Target {
    /// The file `path`, whose directory must be there.
    ///
    /// # Errors
    /// [`LocalError`] when the directory cannot be opened, or `path` is a directory.
    pub fn new(path: &Path) -> Result<Self, LocalError> {
        // The file that a link points to is meant, not the link.
        let resolved = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        let parent = resolved.parent().unwrap_or(Path::new(""));
        let name = Path::new(resolved.file_name().unwrap_or(OsStr::new("")));
        if name.as_os_str().is_empty() || (resolved.exists() && !resolved.is_file()) {
            return Err(LocalError::NotAFile { path: path.to_owned() });
        }
        let named = Folder::open(parent)?.target(name)?;
        Ok(Self { asked: Some(path.to_owned()), ..named })
    }

    /// The final name with its directory, to be shown.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.asked.clone().unwrap_or_else(|| self.shown(&self.name))
    }

    fn shown(&self, name: &OsStr) -> PathBuf {
        if self.folder.shown == Path::new(".") { PathBuf::from(name) } else { self.folder.shown.join(name) }
    }

    /// The file that already has the final name, if it is a regular one.
    #[must_use]
    pub fn finished(&self) -> Option<File> {
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(OFlag::O_NONBLOCK.bits());
        let file = self.folder.dir.open_with(&self.name, &options).ok()?;
        file.metadata().ok()?.is_file().then(|| file.into_std())
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
        let file = loop {
            let file = self.open(&temporary).map_err(|source| failed("opening", &path, source))?;
            if !file.metadata().is_ok_and(|metadata| metadata.is_file()) {
                return Err(LocalError::NotAFile { path });
            }
            match file.try_lock() {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Err(LocalError::Busy { path }),
                Err(TryLockError::Error(source)) => return Err(failed("locking", &path, source)),
            }
            // Between opening and locking another process may have finished this very file.
            if self.still_named(&temporary, &file) {
                break file;
            }
        };
        if !resume {
            file.set_len(0).map_err(|source| failed("emptying", &path, source))?;
        }
        Ok(Partial { target: self.clone(), temporary, file })
    }

    fn open(&self, name: &OsStr) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true);
        options.custom_flags((OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK).bits());
        Ok(self.folder.dir.open_with(name, &options)?.into_std())
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
    /// The open file. Its position is the caller's business.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Where it is for now, to be shown.
    #[must_use]
    pub fn path(&self) -> PathBuf {
        self.target.shown(&self.temporary)
    }

    /// The name it will have.
    #[must_use]
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// Bytes in it.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn length(&self) -> Result<u64, LocalError> {
        let metadata = self.file.metadata().map_err(|source| self.failed("looking at", source))?;
        Ok(metadata.len())
    }

    /// Cuts it to `len` bytes and goes there.
    ///
    /// # Errors
    /// [`LocalError::System`].
    pub fn cut(&mut self, len: u64) -> Result<(), LocalError> {
        let cut = self.file.set_len(len).and_then(|()| self.file.seek(SeekFrom::Start(len)));
        cut.map(drop).map_err(|source| self.failed("cutting", source))
    }

    /// Gives it its name, once all of it is on the disk.
    ///
    /// # Errors
    /// [`LocalError::System`]; the temporary file is then still there.
    pub fn finish(self) -> Result<(), LocalError> {
        self.file.sync_all().map_err(|source| self.failed("writing to the disk", source))?;
        let dir = &self.target.folder.dir;
        dir.rename(&self.temporary, dir, &self.target.name).map_err(|source| LocalError::System {
            operation: "giving its name to",
            path: self.target.path(),
            source,
        })?;
        // The new name is what has to reach the disk; some file systems cannot do it for a directory.
        if let Ok(directory) = dir.try_clone() {
            let _not_everywhere = directory.into_std_file().sync_all();
        }
        Ok(())
    }

    /// Takes the temporary file away if nothing is in it.
    pub fn leave(self) {
        if self.length().is_ok_and(|len| len == 0) {
            // An empty file is no loss, and no harm if it stays.
            let _may_stay = self.target.folder.dir.remove_file(&self.temporary);
        }
    }

    fn failed(&self, operation: &'static str, source: io::Error) -> LocalError {
        failed(operation, &self.path(), source)
    }
}

/// The last bytes of the first `len` of a file, at most `most` of them.
///
/// # Errors
/// The system's, and `UnexpectedEof` when the file is shorter.
pub(super) fn tail(file: &File, len: u64, most: u64) -> io::Result<Vec<u8>> {
    let count = len.min(most);
    let mut bytes = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
    file.read_exact_at(&mut bytes, len - count)?;
    Ok(bytes)
}

fn failed(operation: &'static str, path: &Path, source: io::Error) -> LocalError {
    LocalError::System { operation, path: path.to_owned(), source }
}

/// `.NAME.bufwise-part`; a name that leaves no room for that is shortened, and told apart by its hash.
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
