//! From a socket to a file without passing through this program's memory.
//!
//! Problem: read and write copy every byte twice, kernel to program to page cache; over loopback that costs half of the
//! receiver's time.
//! Source: splice(2): a pipe takes references to the socket's pages, and the file takes the bytes from there.
//! Measured on Linux 6.18, loopback to a file in memory: 0.26-0.34 CPU seconds per GB at the receiver with a pipe
//! of 1 MiB, 0.37-0.47 with 256 KiB, 0.50-0.54 with read and write.
//! Properties kept: between two calls the pipe is empty; a file that cannot take pages gets the bytes copied.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;

/// Requested size of the pipe, bytes: the largest without privilege (`fs.pipe-max-size`).
const LARGE: usize = 1 << 20;
/// Default size of a pipe, bytes; with less, read and write are faster.
const USUAL: usize = 64 << 10;

/// A pipe between a socket and a file.
#[derive(Debug)]
pub(crate) struct Pipe {
    reading: OwnedFd,
    writing: OwnedFd,
    size: usize,
}

impl Pipe {
    pub(crate) fn new() -> io::Result<Self> {
        let (reading, writing) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let wanted = i32::try_from(LARGE).unwrap_or(i32::MAX);
        // Refused if the user has too many pipe pages (`fs.pipe-user-pages-soft`); a new pipe may have no more than two then.
        let size = fcntl(&writing, FcntlArg::F_SETPIPE_SZ(wanted));
        let size = size.or_else(|_| fcntl(&writing, FcntlArg::F_GETPIPE_SZ))?;
        Ok(Self { reading, writing, size: usable(size)? })
    }

    /// Takes up to `at_most` bytes from `socket`; 0 at its end.
    pub(crate) fn fill(&self, socket: BorrowedFd<'_>, at_most: usize) -> io::Result<usize> {
        let flags = SpliceFFlags::SPLICE_F_NONBLOCK | SpliceFFlags::SPLICE_F_MOVE;
        Ok(splice(socket, None, &self.writing, None, at_most.min(self.size), flags)?)
    }

    /// Writes the `left` bytes in it to `file` from `offset` on. False: the file takes no pages, and the bytes are
    /// still in the pipe, for [`Pipe::empty`].
    pub(crate) fn write(&self, mut left: usize, file: &File, offset: u64) -> io::Result<bool> {
        let mut at = i64::try_from(offset).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
        let whole = left;
        while left > 0 {
            match splice(&self.reading, None, file.as_fd(), Some(&mut at), left, SpliceFFlags::SPLICE_F_MOVE)
            {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => left -= len,
                Err(Errno::EINTR) => {}
                // The file is open for appending, or its file system has no page cache.
                Err(Errno::EINVAL | Errno::ESPIPE) if left == whole => return Ok(false),
                Err(errno) => return Err(errno.into()),
            }
        }
        Ok(true)
    }

    /// Returns the `len` bytes in it; consumes the pipe.
    pub(crate) fn empty(self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        File::from(self.reading).read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

/// Returns the `size` of a pipe, unless it is too small to be of use.
fn usable(size: i32) -> io::Result<usize> {
    let size = usize::try_from(size).unwrap_or_default();
    if size < USUAL { Err(io::ErrorKind::QuotaExceeded.into()) } else { Ok(size) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_of_two_pages_is_not_used() {
        assert_eq!(usable(8_192).unwrap_err().kind(), io::ErrorKind::QuotaExceeded);
        assert_eq!([65_536, 1 << 20].map(|size| usable(size).unwrap()), [USUAL, LARGE]);
    }
}
