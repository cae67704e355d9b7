//! The four settings, as files that are open.
//!
//! A file below /proc/sys/net belongs to the network namespace in which it was opened, for as long as it is open, and
//! whoever reads it: so the namespace is entered once, and later looks cost one system call each.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// Longest content that is read, in bytes: three numbers.
const LONGEST: usize = 128;

/// A setting whose maximum bounds buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Setting {
    /// `net.ipv4.tcp_rmem`: its maximum settles the window scale at the SYN. One per network namespace.
    TcpRmem,
    /// `net.ipv4.tcp_wmem`: how far the kernel grows send buffers. One per network namespace.
    TcpWmem,
    /// `net.core.rmem_max`: what `SO_RCVBUF` may ask for. One for the host, writable in its first namespace alone.
    RmemMax,
    /// `net.core.wmem_max`: what `SO_SNDBUF` may ask for. As above.
    WmemMax,
}

impl Setting {
    pub(crate) const ALL: [Self; 4] = [Self::TcpRmem, Self::TcpWmem, Self::RmemMax, Self::WmemMax];

    /// Its file below the directory of all settings.
    pub(super) fn path(self) -> &'static str {
        match self {
            Self::TcpRmem => "net/ipv4/tcp_rmem",
            Self::TcpWmem => "net/ipv4/tcp_wmem",
            Self::RmemMax => "net/core/rmem_max",
            Self::WmemMax => "net/core/wmem_max",
        }
    }

    /// The setting with that name, as [`fmt::Display`] writes it.
    pub(super) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|setting| setting.to_string() == name)
    }

    /// How many numbers it has, the maximum being the last.
    fn numbers(self) -> usize {
        match self {
            Self::TcpRmem | Self::TcpWmem => 3,
            Self::RmemMax | Self::WmemMax => 1,
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.path().replace('/', "."))
    }
}

/// What a setting holds: numbers with single spaces between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Value(String);

impl Value {
    /// Reads numbers however far apart; `None` if `text` is not what the setting holds.
    pub(super) fn parse(setting: Setting, text: &str) -> Option<Self> {
        let numbers: Vec<&str> = text.split_whitespace().collect();
        let all = numbers.len() == setting.numbers() && numbers.iter().all(|one| one.parse::<u64>().is_ok());
        all.then(|| Self(numbers.join(" ")))
    }

    /// The same with a maximum of at least `size`.
    pub(super) fn with_maximum(&self, size: u64) -> Self {
        let (before, maximum) = self.0.rsplit_once(' ').unwrap_or(("", &self.0));
        // Only numbers come this far.
        let largest = maximum.parse::<u64>().unwrap_or(u64::MAX).max(size);
        Self(format!("{before} {largest}").trim_start().to_owned())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One setting of one namespace.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) setting: Setting,
    file: File,
}

impl Open {
    /// Opens it below `root` in the calling thread's network namespace; `None` where it is not, or not for us.
    pub(super) fn new(root: &Path, setting: Setting) -> Option<Self> {
        let file = File::options().read(true).write(true).open(root.join(setting.path())).ok()?;
        Some(Self { setting, file })
    }

    pub(super) fn read(&self) -> io::Result<Value> {
        let mut text = [0; LONGEST];
        let len = self.file.read_at(&mut text, 0)?;
        let text = String::from_utf8_lossy(text.get(..len).unwrap_or(&text));
        let first_line = text.lines().next().unwrap_or_default();
        Value::parse(self.setting, first_line).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn write(&self, value: &Value) -> io::Result<()> {
        self.file.write_all_at(format!("{value}\n").as_bytes(), 0)
    }
}
