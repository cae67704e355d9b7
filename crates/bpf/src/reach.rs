//! Sets options of another process's sockets that the kernel lets only user space set.
//!
//! Problem: programs in the kernel cannot set buffers beyond `net.core.wmem_max` and `rmem_max`; a process with
//! CAP_NET_ADMIN can (`SO_SNDBUFFORCE`), but only on a descriptor of its own. pidfd_getfd(2) provides one.
//! The descriptor ([`SocketCopy`]) is held only for the moment of the call: while a second one exists, the owner's close()
//! does not close the connection. If the owner calls it in that moment, closing the copy closes the connection, and waits
//! for what is not acknowledged yet, as long as `SO_LINGER` says.

#![expect(
    unsafe_code,
    reason = "pidfd_getfd is wrapped by no library; a descriptor passes to another thread when it is dropped"
)]

use std::ffi::c_int;
use std::fs;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;

use nix::sys::stat::fstat;
use socket2::SockRef;

use crate::group::present;

/// The place of a socket, process and descriptor, where the next search looks first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pid: c_int,
    fd: c_int,
}

/// A copy of a process's descriptor, for the moment of a call. Dropping it does not wait for the peer, whatever `SO_LINGER` says.
#[derive(Debug)]
pub struct SocketCopy {
    place: Place,
    descriptor: ManuallyDrop<OwnedFd>,
}

/// Returns a descriptor of the socket with that cookie, held by one of `processes`; `None` if none of them has it.
///
/// `hint` is the place where it was found the last time.
#[must_use]
pub fn socket(cookie: u64, processes: &[i32], hint: Option<Place>) -> Option<(Place, SocketCopy)> {
    let known = hint.and_then(|place| Some((place, at(place, cookie)?)));
    known.or_else(|| processes.iter().find_map(|pid| search(*pid, cookie)))
}

impl Place {
    /// Returns the process.
    #[must_use]
    pub fn pid(self) -> c_int {
        self.pid
    }
}

/// Returns a descriptor of the socket at a place, if it still has that cookie.
pub(crate) fn at(place: Place, cookie: u64) -> Option<SocketCopy> {
    whatever_is_at(place).ok().filter(|socket| has_cookie(socket, cookie))
}

/// Returns a copy of whatever descriptor is at a place. A process duplicates its own: containers may forbid pidfd_getfd(2).
pub(crate) fn whatever_is_at(place: Place) -> io::Result<SocketCopy> {
    let is_own = place.pid == std::process::id().cast_signed();
    let copied = if is_own { duplicate(place.fd) } else { copy(&open_process(place.pid)?, place.fd) };
    Ok(SocketCopy { place, descriptor: ManuallyDrop::new(copied?) })
}

impl AsFd for SocketCopy {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

impl Drop for SocketCopy {
    /// Closes the copy. If the owner has closed its own descriptor meanwhile, and closing may wait (`SO_LINGER`), a thread of its own
    /// waits, not the caller.
    ///
    /// Less than some microseconds remain in which the owner may close its own unseen.
    fn drop(&mut self) {
        // SAFETY: nothing uses the descriptor's field again.
        let socket = unsafe { ManuallyDrop::take(&mut self.descriptor) };
        let time = SockRef::from(&socket).linger().ok().flatten();
        if time.is_none_or(|time| time.is_zero()) || is_there(&socket, self.place) {
            return;
        }
        // If no thread can be started, the socket is closed here.
        let _best_effort = thread::Builder::new().name("close".to_owned()).spawn(move || drop(socket));
    }
}

/// Returns whether a process still has this socket at a place.
fn is_there(socket: &OwnedFd, place: Place) -> bool {
    let Ok(status) = fstat(socket) else { return false };
    let target = fs::read_link(format!("/proc/{}/fd/{}", place.pid, place.fd));
    target.is_ok_and(|target| target.as_os_str() == format!("socket:[{}]", status.st_ino).as_str())
}

/// Returns the sockets of a process, by inode (as in `/proc/PID/fd`); none if it may not be inspected or is gone.
pub fn sockets_of(pid: c_int) -> impl Iterator<Item = (u64, Place)> {
    sockets_if_allowed(pid).into_iter().flatten()
}

/// As [`sockets_of`].
///
/// # Errors
/// A lack of descriptors or of memory: a later call may find more.
pub fn try_sockets_of(pid: c_int) -> io::Result<impl Iterator<Item = (u64, Place)>> {
    Ok(present(sockets_if_allowed(pid))?.into_iter().flatten())
}

/// As [`sockets_of`], but returns the kernel's refusal.
pub(crate) fn sockets_if_allowed(pid: c_int) -> io::Result<impl Iterator<Item = (u64, Place)>> {
    let entries = fs::read_dir(format!("/proc/{pid}/fd"))?.flatten();
    Ok(entries.filter_map(move |entry| {
        let target = fs::read_link(entry.path()).ok()?;
        let inode = target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()?;
        Some((inode, Place { pid, fd: entry.file_name().to_str()?.parse().ok()? }))
    }))
}

fn search(pid: c_int, cookie: u64) -> Option<(Place, SocketCopy)> {
    let process = open_process(pid).ok()?;
    sockets_of(pid).find_map(|(_, place)| Some((place, take(&process, place, cookie)?)))
}

/// Returns whether descriptors may be copied at all: a process may always copy its own, unless seccomp or an old
/// kernel forbids it.
pub(crate) fn may_copy() -> bool {
    let own = open_process(std::process::id().cast_signed());
    own.is_ok_and(|own| copy(&own, own.as_raw_fd()).is_ok())
}

/// Returns the cookie of the socket at a place.
pub(crate) fn cookie_at(place: Place) -> Option<u64> {
    SockRef::from(&whatever_is_at(place).ok()?).cookie().ok()
}

/// Returns a copy of the process's descriptor, if it is the socket with that cookie.
fn take(process: &OwnedFd, place: Place, cookie: u64) -> Option<SocketCopy> {
    let descriptor = ManuallyDrop::new(copy(process, place.fd).ok()?);
    Some(SocketCopy { place, descriptor }).filter(|socket| has_cookie(socket, cookie))
}

fn has_cookie(socket: &SocketCopy, cookie: u64) -> bool {
    SockRef::from(socket).cookie().is_ok_and(|found| found == cookie)
}

fn duplicate(fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers; a number that is no descriptor is an error.
    owned(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, 0) }.into())
}

fn copy(process: &OwnedFd, fd: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_getfd, process.as_raw_fd(), fd, 0) })
}

fn open_process(pid: c_int) -> io::Result<OwnedFd> {
    // SAFETY: the call takes no pointers.
    owned(unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) })
}

/// Takes ownership of the descriptor that one of the calls above or below returned.
fn owned(result: libc::c_long) -> io::Result<OwnedFd> {
    let raw = c_int::try_from(result).ok().filter(|raw| *raw >= 0).ok_or_else(io::Error::last_os_error)?;
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};
    use std::time::{Duration, Instant};

    #[test]
    fn a_socket_is_found_by_its_cookie_and_again_by_its_place() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = SockRef::from(&client).cookie().unwrap();
        let own = std::process::id().cast_signed();
        let (place, copy) = socket(cookie, &[1, own], None).expect("it is ours");
        assert_eq!(place, Place { pid: own, fd: client.as_raw_fd() });
        assert_eq!(SockRef::from(&copy).cookie().unwrap(), cookie);
        let (again, _) = socket(cookie, &[], Some(place)).expect("it is still there");
        assert_eq!(again, place);
        assert!(socket(u64::MAX, &[own], Some(place)).is_none());
        assert_eq!(cookie_at(place), Some(cookie));
        assert!(whatever_is_at(Place { pid: own, fd: -1 }).is_err());
        assert!(may_copy());
    }

    #[test]
    fn the_last_copy_of_a_socket_that_lingers_is_closed_without_a_wait() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let server = listener.accept().unwrap().0;
        SockRef::from(&client).set_linger(Some(Duration::from_secs(60))).unwrap();
        // More than the server's window takes, so that some of it stays in the send buffer.
        client.set_nonblocking(true).unwrap();
        while client.write(&[0; 65_536]).is_ok_and(|written| written > 0) {}
        let place = Place { pid: std::process::id().cast_signed(), fd: client.as_raw_fd() };
        let [first, last] = [(); 2].map(|()| whatever_is_at(place).unwrap());
        assert!(is_there(&first.descriptor, place));
        drop(first);
        drop(client);
        let began = Instant::now();
        drop(last);
        assert!(began.elapsed() < Duration::from_secs(30), "{:?}", began.elapsed());
        // The thread's wait ends.
        drop(server);
    }
}
