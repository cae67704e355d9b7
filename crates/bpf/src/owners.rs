//! Finds the process that holds a socket.
//!
//! Problem: giving thousands of sockets back needs a descriptor of each, and the kernel does not say which process
//! has it. One pass over `/proc/PID/fd` of all processes finds all sockets; then each needs one pidfd_getfd(2).

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

use crate::reach::{self, Place};

/// All sockets of all visible processes, as they were at one moment.
#[derive(Debug, Default)]
pub struct Owners {
    places: HashMap<u64, Place>,
    by_cookie: OnceCell<HashMap<u64, Place>>,
}

impl Owners {
    /// Scans `/proc`. Processes that end meanwhile, or that may not be inspected, are skipped.
    #[must_use]
    pub fn scan() -> Self {
        let mut places = HashMap::new();
        for process in fs::read_dir("/proc").into_iter().flatten().flatten() {
            let Some(pid) = process.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            for (inode, place) in reach::sockets_of(pid) {
                places.entry(inode).or_insert(place);
            }
        }
        Self { places, by_cookie: OnceCell::new() }
    }

    /// Returns the number of sockets.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Returns whether no socket was found.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Returns the process that holds the socket with that inode (as in `/proc/PID/fd`).
    #[must_use]
    pub fn process(&self, inode: u64) -> Option<i32> {
        self.places.get(&inode).map(|place| place.pid())
    }

    /// Returns a descriptor of the socket with that inode, if its cookie is still `cookie`.
    ///
    /// Hold it for a moment only: while it exists, the owner's close() does not close the connection.
    #[must_use]
    pub fn socket(&self, inode: u64, cookie: u64) -> Option<OwnedFd> {
        reach::at(*self.places.get(&inode)?, cookie)
    }

    /// As [`Owners::socket`], for a socket whose inode is unknown. The first call reads the cookie of every socket,
    /// some microseconds each.
    #[must_use]
    pub fn search(&self, cookie: u64) -> Option<OwnedFd> {
        let index = || {
            let cookies = self.places.values().filter_map(|place| Some((reach::cookie_at(*place)?, *place)));
            cookies.collect()
        };
        reach::at(*self.by_cookie.get_or_init(index).get(&cookie)?, cookie)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsFd;

    #[test]
    fn a_socket_is_found_by_its_inode_and_no_other_is_taken_for_it() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = SockRef::from(&client).cookie().unwrap();
        let inode = nix::sys::stat::fstat(client.as_fd()).unwrap().st_ino;
        let owners = Owners::scan();
        assert_eq!(owners.process(inode), Some(std::process::id().cast_signed()));
        let copy = owners.socket(inode, cookie).expect("it is ours");
        assert_eq!(SockRef::from(&copy).cookie().unwrap(), cookie);
        assert!(owners.socket(inode, cookie + 1).is_none());
        assert!(owners.socket(u64::MAX, cookie).is_none());
        assert!(owners.search(cookie).is_some() && owners.search(u64::MAX).is_none());
    }
}
