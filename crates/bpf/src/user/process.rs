//! Reads processes from `/proc`.

use std::collections::HashSet;
use std::fs;
use std::io;

/// Flag of a process that ends (`PF_EXITING`): its descriptors may not be read any more, and it becomes a zombie once its memory
/// is freed, which takes tenths of a second for some gigabytes.
const EXITING: u32 = 4;

/// Returns the number that was last assigned to a process or thread.
pub(super) fn last_started() -> Option<i32> {
    let text = fs::read_to_string("/proc/loadavg").ok()?;
    text.rsplit(' ').next()?.trim().parse().ok()
}

pub(super) fn processes() -> io::Result<HashSet<i32>> {
    let entries = fs::read_dir("/proc")?.flatten();
    Ok(entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
}

/// Returns whether `/proc` is mounted, and shows the process namespace of this process.
pub(super) fn shows_this_process() -> bool {
    let own: Option<u32> = fs::read_link("/proc/self").ok().and_then(|own| own.to_str()?.parse().ok());
    own == Some(std::process::id())
}

/// Returns whether a process is a `bufwise run`.
pub(super) fn is_run(pid: i32) -> bool {
    let is_bufwise = Process::of(pid).is_some_and(|process| process.name.starts_with("bufwise"));
    let words = || fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    is_bufwise && words().split(|byte| *byte == 0).nth(1) == Some(b"run".as_slice())
}

/// The fields of `/proc/PID/stat` that are used.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Process {
    pub(super) name: String,
    /// Whether it is a zombie, or becomes one.
    pub(super) is_over: bool,
    /// Whether it is a thread that its process began later.
    pub(super) is_thread: bool,
    pub(super) parent: i32,
}

impl Process {
    /// Reads a process, or a thread by its own number; `None`: there is none, or `/proc` hides it.
    pub(super) fn of(pid: i32) -> Option<Self> {
        Self::parse(&fs::read(format!("/proc/{pid}/stat")).ok()?)
    }

    /// Parses the fields. The name is in parentheses and may contain some, and any other bytes: the kernel cuts it to 15 bytes
    /// (proc_pid_stat(5)).
    fn parse(stat: &[u8]) -> Option<Self> {
        let stat = String::from_utf8_lossy(stat);
        let (before, after) = stat.rsplit_once(')')?;
        let mut fields = after.split_whitespace();
        let is_zombie = matches!(fields.next()?, "Z" | "X");
        let parent = fields.next()?.parse().ok()?;
        let flags: Option<u32> = fields.nth(4).and_then(|flags| flags.parse().ok());
        let is_over = is_zombie || flags.is_some_and(|flags| flags & EXITING != 0);
        // The signal to the parent at its end: a thread has none.
        let is_thread = fields.nth(28) == Some("-1");
        Some(Self { name: before.split_once('(')?.1.to_owned(), is_over, is_thread, parent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name_is() {
        let process = |name: &str, is_over, parent| {
            Some(Process { name: name.to_owned(), is_over, is_thread: false, parent })
        };
        assert_eq!(Process::parse(b"12 (sh) S 7 12 7 0"), process("sh", false, 7));
        assert_eq!(Process::parse(b"12 (a) Z (b) 3) Z 9 12 7 0"), process("a) Z (b) 3", true, 9));
        assert_eq!(Process::parse(b"12 (caf\xc3) S 7 12 7 0"), process("caf\u{fffd}", false, 7));
        assert_eq!(Process::parse(b"12 sh S"), None);
        // Its memory is being freed.
        assert_eq!(Process::parse(b"12 (java) R 7 12 7 0 -1 4194308 5"), process("java", true, 7));
        assert_eq!(Process::parse(b"12 (java) R 7 12 7 0 -1 4194304 5"), process("java", false, 7));
        let own = Process::of(std::process::id().cast_signed()).unwrap();
        let parent = nix::unistd::getppid().as_raw();
        assert_eq!((own.is_over, own.is_thread, own.parent), (false, false, parent));
    }

    #[test]
    fn a_thread_is_told_from_a_process() {
        let number = || nix::unistd::gettid().as_raw();
        let thread = std::thread::spawn(move || Process::of(number()).map(|process| process.is_thread));
        assert_eq!(thread.join().unwrap(), Some(true));
    }
}
