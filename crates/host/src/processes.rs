//! Finds the processes that hold sockets: inode numbers from the links in `/proc/PID/fd`.
//!
//! Without root only the user's own processes can be seen; other sockets have no holder.

use std::collections::HashMap;
use std::fs;
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
            let process = Arc::new(Process { pid, name: printable(&name_of(pid)) });
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

/// Stands for a byte that is no UTF-8: patterns of programs have no control characters, so it matches what the byte does.
const NO_TEXT: char = '\u{1}';

/// Returns a process's name for comparison with what the kernel's programs see, byte by byte; empty if the process has
/// ended. The process chooses it (prctl(2)): [`printable`] is for what people read.
pub(crate) fn name_of(pid: i32) -> String {
    let name = fs::read(format!("/proc/{pid}/comm")).unwrap_or_default();
    let chunks = name.strip_suffix(b"\n").unwrap_or(&name).utf8_chunks();
    chunks.flat_map(|chunk| chunk.valid().chars().chain(chunk.invalid().iter().map(|_| NO_TEXT))).collect()
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
    )
}

/// Returns a path as [`printable`] text: every user names cgroups of his own.
pub(crate) fn printable_path(path: &Path) -> String {
    printable(&path.display().to_string())
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
        let letters = "caf\u{e9} \u{65e5}\u{672c} \u{5e9}\u{5dc}\u{5d5}\u{5dd}";
        assert_eq!(printable(letters), letters, "letters of every script stay");
        assert_eq!(name_of(0), "");
    }
}
