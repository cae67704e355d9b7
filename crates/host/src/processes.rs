//! Finds the processes that hold sockets: inode numbers from the links in `/proc/PID/fd`.
//!
//! Without root only the user's own processes can be seen; other sockets have no holder.

use std::collections::HashMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bufwise_bpf::reach;

/// Returns the effective capabilities of this process as bits (capabilities(7)); `None` if /proc does not show them.
pub fn effective_capabilities() -> Option<u64> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let field = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    u64::from_str_radix(field.trim(), 16).ok()
}

/// A process that holds a socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Process number.
    pub pid: i32,
    /// Name of its command (`/proc/PID/comm`); `?` stands for characters that a terminal would obey.
    pub name: String,
}

/// Holders by the inode of their socket. If several processes share a socket, the lowest number counts, mostly the
/// parent.
#[derive(Debug, Default)]
pub struct Holders {
    by_inode: HashMap<u64, Arc<Process>>,
    is_complete: bool,
}

impl Holders {
    /// Reads the sockets of all processes that may be seen.
    pub fn scan() -> Self {
        let listed = fs::read_dir("/proc");
        let mut holders = Self { is_complete: listed.is_ok(), ..Self::default() };
        let entries = listed.into_iter().flatten().flatten();
        let mut pids: Vec<i32> =
            entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        for pid in pids {
            holders.is_complete &= holders.add(pid).is_ok();
        }
        holders
    }

    /// Adds the sockets of a process. Fails for lack of descriptors or of memory, or if the process has ended meanwhile.
    fn add(&mut self, pid: i32) -> io::Result<()> {
        let mut sockets = reach::try_sockets_of(pid)?.peekable();
        if sockets.peek().is_some() {
            let process = Arc::new(Process { pid, name: printable(&read_name(pid)?) });
            for (inode, _) in sockets {
                self.by_inode.entry(inode).or_insert_with(|| Arc::clone(&process));
            }
        }
        Ok(())
    }

    /// Returns the holder of the socket with this inode; inode 0 has none.
    pub fn of(&self, inode: u32) -> Option<&Process> {
        self.by_inode.get(&inode.into()).map(Arc::as_ref)
    }

    /// Returns whether a socket without a holder has none that may be seen. Otherwise some processes could not be read, as for lack of
    /// descriptors, and the next search may find it.
    pub fn is_complete(&self) -> bool {
        self.is_complete
    }
}

/// Stands for a byte that is no UTF-8: patterns of programs have no control characters, so it matches what the byte does.
const NO_TEXT: char = '\u{1}';

/// Returns a process's name for comparison with what the kernel's programs see, byte by byte; empty if the process has
/// ended. The process chooses it (prctl(2)): [`printable`] is for what people read.
pub(crate) fn name_of(pid: i32) -> String {
    read_name(pid).unwrap_or_default()
}

fn read_name(pid: i32) -> io::Result<String> {
    let name = fs::read(format!("/proc/{pid}/comm"))?;
    let chunks = name.strip_suffix(b"\n").unwrap_or(&name).utf8_chunks();
    let unreadable = |bytes: &[u8]| bytes.iter().map(|_| NO_TEXT).collect::<String>();
    Ok(chunks.map(|chunk| chunk.valid().to_owned() + &unreadable(chunk.invalid())).collect())
}

/// Returns a name that a user has chosen with `?` for each character that would control a terminal, begin a line of the
/// log, or make the name look like another one: control characters, separators of lines, and characters that are
/// invisible or change the direction of writing.
pub(crate) fn printable(name: &str) -> String {
    name.replace(|c: char| c.is_control() || is_format(c), "?")
}

const fn is_format(c: char) -> bool {
    matches!(
        c,
        '\u{ad}' | '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
            // Fillers, annotations and tags.
            | '\u{115f}' | '\u{1160}' | '\u{180e}' | '\u{3164}' | '\u{ffa0}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e0fff}'
    )
}

/// Returns a path as [`printable`] text: every user names cgroups of his own.
pub(crate) fn printable_path(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    use std::net::TcpListener;
    use std::os::fd::{AsFd, AsRawFd};

    #[test]
    fn the_holder_of_a_socket_is_this_process() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = nix::sys::stat::fstat(listener.as_fd()).unwrap().st_ino;
        let holders = Holders::scan();
        let holder = holders.of(u32::try_from(inode).unwrap()).expect("our own can be seen");
        assert_eq!(holder.pid, std::process::id().cast_signed());
        assert!(!holder.name.is_empty());
        assert_eq!(holders.of(0), None);
    }

    #[test]
    fn a_search_that_lacks_descriptors_does_not_count_as_complete() {
        // The limit of descriptors holds for the whole process.
        if !bufwise_trial::alone(
            "processes::tests::a_search_that_lacks_descriptors_does_not_count_as_complete",
        ) {
            return;
        }
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = nix::sys::stat::fstat(listener.as_fd()).unwrap().st_ino;
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        // A limit at the next descriptor lets no directory be read; one more lets no name be read beside it.
        let next = u64::try_from(fs::File::open("/dev/null").unwrap().as_raw_fd()).unwrap();
        let scans = [0, 1].map(|more| {
            setrlimit(Resource::RLIMIT_NOFILE, next + more, hard).unwrap();
            Holders::scan()
        });
        setrlimit(Resource::RLIMIT_NOFILE, soft, hard).unwrap();
        for holders in scans {
            assert!(!holders.is_complete());
            assert_eq!(holders.of(u32::try_from(inode).unwrap()), None, "rather than one without a name");
        }
    }

    #[test]
    fn a_name_is_that_of_the_process_and_shown_without_control_characters() {
        let thread = |name: &'static [u8]| {
            // A thread has a name of its own, below its own number.
            let named = move || {
                fs::write("/proc/thread-self/comm", name).unwrap();
                name_of(nix::unistd::gettid().as_raw())
            };
            std::thread::spawn(named).join().unwrap()
        };
        assert_eq!(thread(b"a \x1b[2J\nb "), "a \u{1b}[2J\nb ", "the kernel's programs compare all of it");
        assert_eq!(printable(&thread(b"caf\xe9 \xff\xfe")), "caf? ??");
        assert_eq!(printable("a \u{1b}[2J\nb\u{9b}"), "a ?[2J?b?");
        assert_eq!(printable("a\u{202e}gpj\u{2066}b\u{2028}c\u{200f}\u{61c}\u{feff}"), "a?gpj?b?c???");
        assert_eq!(printable("ssh\u{e0041}\u{3164}\u{1160}\u{fff9}"), "ssh????");
        let letters = "caf\u{e9} \u{65e5}\u{672c} \u{5e9}\u{5dc}\u{5d5}\u{5dd}";
        assert_eq!(printable(letters), letters, "letters of every script stay");
        assert_eq!(name_of(0), "");
    }
}
