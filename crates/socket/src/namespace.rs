//! Network namespaces: finds the namespace of a socket, and runs code inside a namespace.
//!
//! Problem: a namespace belongs to a thread, and a file below `/proc/sys/net` shows the namespace of the thread that
//! opens it. Work inside a namespace therefore runs on a thread that enters it and then ends; the caller's thread
//! stays where it is.
//! Source: network_namespaces(7), setns(2), `SIOCGSKNS` (`sock_ioctl()` in `net/socket.c`).

#![expect(unsafe_code, reason = "the ioctl is wrapped by no library")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::thread;

use nix::sched::{CloneFlags, setns};

/// `linux/sockios.h`.
const SIOCGSKNS: libc::Ioctl = 0x894C;

/// Returns a descriptor of the namespace that a socket belongs to, whichever process holds the socket.
///
/// # Errors
/// The kernel's refusal, without `CAP_NET_ADMIN` in that namespace.
pub fn of_socket(socket: impl AsFd) -> io::Result<OwnedFd> {
    // SAFETY: the descriptor is open for the call, which takes no pointer.
    let result = unsafe { libc::ioctl(socket.as_fd().as_raw_fd(), SIOCGSKNS) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel has just made this descriptor for us; nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(result) })
}

/// Runs `work` inside a namespace (a descriptor as of `/proc/PID/ns/net`), on a thread of its own, and waits for it.
/// Sockets and settings that `work` opens keep belonging to that namespace.
///
/// # Errors
/// The kernel's refusal to enter, mostly for lack of `CAP_SYS_ADMIN`, or to start a thread.
pub fn inside<T: Send>(namespace: BorrowedFd<'_>, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    let enter = move || -> io::Result<T> {
        setns(namespace, CloneFlags::CLONE_NEWNET)?;
        Ok(work())
    };
    thread::scope(|scope| {
        let thread = thread::Builder::new().name("namespace".to_owned()).spawn_scoped(scope, enter)?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::namespace_cookie;
    use nix::sched::unshare;
    use std::net::UdpSocket;

    #[test]
    fn root_a_sockets_namespace_is_found_and_entered() {
        let elsewhere = || unshare(CloneFlags::CLONE_NEWNET).map(|()| UdpSocket::bind("0.0.0.0:0").unwrap());
        let Ok(socket) = thread::spawn(elsewhere).join().unwrap() else {
            return bufwise_trial::skip("a network namespace needs root");
        };
        let here = || namespace_cookie(UdpSocket::bind("0.0.0.0:0").unwrap()).unwrap();
        let theirs = namespace_cookie(&socket).unwrap();
        assert_ne!(here(), theirs);
        assert_eq!(inside(of_socket(&socket).unwrap().as_fd(), here).unwrap(), theirs);
        assert_ne!(here(), theirs, "the caller stays where it is");
    }

    #[test]
    fn what_is_no_socket_or_no_namespace_is_refused() {
        let file = std::fs::File::open("/proc/self/status").unwrap();
        assert!(of_socket(&file).is_err());
        assert!(inside(file.as_fd(), || ()).is_err());
    }
}
