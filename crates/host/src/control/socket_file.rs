//! The file of the Unix socket at which the daemon listens.
//!
//! It is in a directory that no other user can write. The socket of a dead daemon is replaced; the socket of a live
//! daemon is an error. A lock serialises two daemons that start at once. The lock is on a file that only its owner
//! may open: any user who can read a directory could lock the directory itself, and keep a daemon from starting.

use std::fs::{self, DirBuilder, File, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind, listen as nix_listen, socket,
};
use nix::sys::stat::{Mode, fchmod};
use nix::unistd::geteuid;

use super::client::connect;
use super::error::ControlError;
use crate::error::{During, Result};

/// Suffix that is appended to the socket's path to get the path of the lock.
const LOCK: &str = ".lock";
/// Clients that may wait to be accepted.
const BACKLOG: i32 = 16;

/// The socket's file. Dropping this removes it, if it is still ours.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    inode: u64,
}

/// Listens at `path`, and makes its directory if needed; the socket's file gets this mode, whatever the umask is.
///
/// # Errors
/// A daemon listens there already, the directory is not safe, or the kernel's answer.
pub fn listen(path: &Path, mode: Mode) -> Result<(UnixListener, SocketFile)> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.ok_or_else(|| ControlError::NoDirectory { path: path.into() })?;
    safe_directory(directory)?;
    let _one_at_a_time = lock(path)?;
    remove_stale(path)?;
    let what = || format!("cannot listen at the socket {}", path.display());
    let listener = listening(path, mode).during(what)?;
    let inode = fs::symlink_metadata(path).during(|| format!("the socket {} is gone", path.display()))?.ino();
    let file = SocketFile { path: path.to_owned(), inode };
    fs::set_permissions(path, Permissions::from_mode(mode.bits())).during(what)?;
    Ok((listener, file))
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path).is_ok_and(|file| file.ino() == self.inode);
        if ours {
            let _gone_already = fs::remove_file(&self.path);
        }
    }
}

/// Makes the directory if it is missing; refuses a directory in which other users could put a socket of their own.
fn safe_directory(path: &Path) -> Result<()> {
    let what = || format!("the socket's directory {}", path.display());
    DirBuilder::new()
        .recursive(true)
        .mode(0o755)
        .create(path)
        .during(|| format!("cannot make {}", what()))?;
    let metadata = fs::metadata(path).during(|| format!("cannot read {}", what()))?;
    if !metadata.is_dir() {
        return Err(ControlError::NotADirectory { path: path.into() }.into());
    }
    let (owner, own) = (metadata.uid(), geteuid().as_raw());
    if owner != own && owner != 0 {
        return Err(ControlError::ForeignDirectory { path: path.into(), owner }.into());
    }
    if metadata.mode() & 0o022 != 0 {
        return Err(ControlError::WritableDirectory { path: path.into() }.into());
    }
    Ok(())
}

/// Waits for any other process that is binding the same socket. The lock's file is never removed: its removal would
/// need a lock as well.
fn lock(socket: &Path) -> Result<Flock<File>> {
    let mut path = socket.as_os_str().to_owned();
    path.push(LOCK);
    let what = || format!("cannot lock {}", path.display());
    let mut options = File::options();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(&path).during(what)?;
    // Reset the mode even if another process created the file.
    file.set_permissions(Permissions::from_mode(0o600)).during(what)?;
    Flock::lock(file, FlockArg::LockExclusive).map_err(|(_, errno)| errno).during(what)
}

/// Removes a socket at which no process listens.
fn remove_stale(path: &Path) -> Result<()> {
    let Ok(metadata) = fs::symlink_metadata(path) else { return Ok(()) };
    if !metadata.file_type().is_socket() {
        return Err(ControlError::InTheWay { path: path.into() }.into());
    }
    match connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).during(|| format!("cannot remove the stale socket {}", path.display()))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Ok(_) => Err(ControlError::Running { path: path.into() }.into()),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
            Err(ControlError::Running { path: path.into() }.into())
        }
        Err(error) => {
            Err(error).during(|| format!("cannot tell whether a daemon listens at {}", path.display()))
        }
    }
}

/// Returns a listening socket whose file never has a wider mode than `mode`; the umask may narrow it while it is
/// bound.
fn listening(path: &Path, mode: Mode) -> nix::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    fchmod(&fd, mode)?;
    bind(fd.as_raw_fd(), &UnixAddr::new(path)?)?;
    nix_listen(&fd, Backlog::new(BACKLOG)?)?;
    Ok(fd.into())
}
