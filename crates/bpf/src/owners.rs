//! Finds the process that holds a socket.
//!
//! Problem: giving thousands of sockets back needs a descriptor of each, and the kernel does not say which process
//! has it. One pass over `/proc/PID/fd` finds all sockets; then each needs one pidfd_getfd(2).
//!
//! Several processes may share a socket, such as a shell and the commands that it starts one after another. Each may end
//! between the pass and the use, and where the numbers of processes have begun anew, the short-lived child is met before
//! its parent. So the pass keeps every place of a socket, and a use tries them in turn.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fs;

use crate::reach::{self, Place, SocketCopy};

/// All sockets of some processes, as they were at one moment.
#[derive(Debug, Default)]
pub struct Owners {
    /// Where each socket was met first, by inode.
    places: HashMap<u64, Place>,
    /// Where it was met again.
    more: HashMap<u64, Vec<Place>>,
    by_cookie: OnceCell<HashMap<u64, u64>>,
}

impl Owners {
    /// Finds the sockets of all visible processes.
    #[must_use]
    pub fn scan() -> Self {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        Self::of(processes.filter_map(|process| process.file_name().to_str()?.parse::<i32>().ok()))
    }

    /// Finds the sockets of these processes. Processes that end meanwhile, or that may not be inspected, are skipped.
    #[must_use]
    pub fn of(processes: impl IntoIterator<Item = i32>) -> Self {
        let mut owners = Self::default();
        for (inode, place) in processes.into_iter().flat_map(reach::sockets_of) {
            owners.add(inode, place);
        }
        owners
    }

    fn add(&mut self, inode: u64, place: Place) {
        match self.places.entry(inode) {
            Entry::Vacant(first) => {
                first.insert(place);
            }
            Entry::Occupied(_) => self.more.entry(inode).or_default().push(place),
        }
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

    /// Returns a process that holds the socket with that inode (as in `/proc/PID/fd`): the one that was met first.
    #[must_use]
    pub fn process(&self, inode: u64) -> Option<i32> {
        self.places.get(&inode).map(|place| place.pid())
    }

    /// Returns a descriptor of the socket with that inode, if its cookie is still `cookie`, from any process that still
    /// holds it.
    ///
    /// Hold it for a moment only: while it exists, the owner's close() does not close the connection.
    #[must_use]
    pub fn socket(&self, inode: u64, cookie: u64) -> Option<SocketCopy> {
        self.places_of(inode).find_map(|place| reach::at(place, cookie))
    }

    /// As [`Owners::socket`], for a socket whose inode is unknown. The first call reads the cookie of every socket,
    /// some microseconds each.
    #[must_use]
    pub fn search(&self, cookie: u64) -> Option<SocketCopy> {
        let index = || {
            let cookie_of = |inode: &u64| self.places_of(*inode).find_map(reach::cookie_at);
            self.places.keys().filter_map(|inode| Some((cookie_of(inode)?, *inode))).collect()
        };
        self.socket(*self.by_cookie.get_or_init(index).get(&cookie)?, cookie)
    }

    fn places_of(&self, inode: u64) -> impl Iterator<Item = Place> + '_ {
        let more = self.more.get(&inode).into_iter().flatten();
        self.places.get(&inode).into_iter().chain(more).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use socket2::SockRef;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::{AsFd, OwnedFd};
    use std::process::{Child, Command};

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
        assert!(Owners::of([std::process::id().cast_signed()]).socket(inode, cookie).is_some());
        assert!(Owners::of([]).is_empty());
    }

    /// Starts a process that holds the socket.
    fn holder(socket: &TcpStream) -> Child {
        let input = OwnedFd::from(socket.try_clone().unwrap());
        Command::new("sleep").arg("60").stdin(input).spawn().unwrap()
    }

    #[test]
    fn root_a_socket_of_several_processes_is_found_when_the_first_has_ended_since() {
        if !bufwise_trial::root() {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let cookie = SockRef::from(&client).cookie().unwrap();
        let inode = nix::sys::stat::fstat(client.as_fd()).unwrap().st_ino;
        let mut holders = [holder(&client), holder(&client)];
        drop(client);
        let owners = Owners::scan();
        let first = owners.process(inode).expect("both hold it");
        let (mut ended, mut left): (Vec<_>, Vec<_>) =
            holders.iter_mut().partition(|holder| holder.id().cast_signed() == first);
        ended[0].kill().unwrap();
        ended[0].wait().unwrap();
        let (by_inode, by_cookie) = (owners.socket(inode, cookie), owners.search(cookie));
        left[0].kill().unwrap();
        left[0].wait().unwrap();
        assert_eq!((by_inode.is_some(), by_cookie.is_some()), (true, true));
    }
}
