//! Finds the processes that hold sockets: inode numbers from the links in `/proc/PID/fd`.
//!
//! Without root only the user's own processes can be seen; other sockets have no holder.

use std::collections::HashMap;
use std::fs;
use std::sync::Arc;

use bufwise_bpf::reach;

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process number.
    pub pid: i32,
    /// Name of its command (`/proc/PID/comm`).
    pub name: String,
}

/// Holders by the inode of their socket. If several processes share a socket, the lowest number counts, mostly the
/// parent.
#[derive(Debug, Default)]
pub struct Holders(HashMap<u64, Arc<Process>>);

impl Holders {
    /// Reads the sockets of all processes that may be seen.
    pub fn scan() -> Self {
        let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
        let mut pids: Vec<i32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        let mut holders = HashMap::new();
        for pid in pids {
            let mut sockets = reach::sockets_of(pid).peekable();
            if sockets.peek().is_none() {
                continue;
            }
            let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
            let process = Arc::new(Process { pid, name: name.trim_end().to_owned() });
            for (inode, _) in sockets {
                holders.entry(inode).or_insert_with(|| Arc::clone(&process));
            }
        }
        Self(holders)
    }

    /// Returns the holder of the socket with this inode; inode 0 has none.
    pub fn of(&self, inode: u32) -> Option<&Process> {
        self.0.get(&inode.into()).map(Arc::as_ref)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn the_holder_of_a_socket_is_this_process() {
        use std::os::fd::AsFd;
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = nix::sys::stat::fstat(listener.as_fd()).unwrap().st_ino;
        let holders = Holders::scan();
        let holder = holders.of(u32::try_from(inode).unwrap()).expect("our own can be seen");
        assert_eq!(holder.pid, std::process::id().cast_signed());
        assert!(!holder.name.is_empty());
        assert_eq!(holders.of(0), None);
    }
}
