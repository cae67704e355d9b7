//! One entry of a directory, and the facts that a listing gives of it.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};
use std::time::SystemTime;

/// Kind of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A plain file.
    File,
    /// A directory.
    Dir,
    /// A symbolic link.
    Link,
    /// The listed directory itself (`cdir`): to be skipped when walking.
    Current,
    /// The directory above (`pdir`): to be skipped when walking.
    Parent,
    /// A device, a socket, a pipe, or another type that the server names.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name as the server gave it: it may be a path, `.`, `..` or worse. See [`Entry::file_name`].
    pub name: PathBuf,
    /// Its kind.
    pub kind: Kind,
    /// Its size in bytes, below 2^63.
    pub size: Option<u64>,
    /// When it was last modified.
    pub modified: Option<SystemTime>,
    /// Permission bits, as `chmod` takes them: at most 0o7777.
    pub mode: Option<u32>,
    /// The login's permissions on it (RFC 3659 section 7.5.5), lower-case letters.
    pub perm: Option<String>,
}

impl Entry {
    /// Makes an entry of which only the name and the kind are known.
    #[must_use]
    pub fn new(name: impl Into<PathBuf>, kind: Kind) -> Self {
        Self { name: name.into(), kind, size: None, modified: None, mode: None, perm: None }
    }

    /// Returns the name, if it is a plain one that can be joined to a local directory without leaving it.
    #[must_use]
    pub fn file_name(&self) -> Option<&OsStr> {
        let mut components = self.name.components();
        match (components.next(), components.next()) {
            (Some(Component::Normal(name)), None)
                if name == self.name.as_os_str() && !name.as_bytes().contains(&0) =>
            {
                Some(name)
            }
            _ => None,
        }
    }
}

/// Which facts MLST and MLSD give.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Facts {
    /// `type`.
    pub kind: bool,
    /// `size`.
    pub size: bool,
    /// `modify`.
    pub modify: bool,
    /// `perm`.
    pub perm: bool,
    /// `UNIX.mode`.
    pub mode: bool,
}

impl Default for Facts {
    /// Returns the set of all facts.
    fn default() -> Self {
        Self { kind: true, size: true, modify: true, perm: true, mode: true }
    }
}

impl Facts {
    /// Returns the facts named in a list such as `type;size;`. Unknown ones are skipped.
    #[must_use]
    pub fn decode(list: &[u8]) -> Self {
        let has = |name: &str| {
            list.split(|byte| *byte == b';')
                .any(|given| given.trim_ascii().eq_ignore_ascii_case(name.as_bytes()))
        };
        Self {
            kind: has("type"),
            size: has("size"),
            modify: has("modify"),
            perm: has("perm"),
            mode: has("UNIX.mode"),
        }
    }

    /// Returns the parameters of MLST in FEAT: all that there are, these with an asterisk.
    #[must_use]
    pub fn feature(self) -> String {
        let mark = |on: bool| if on { "*" } else { "" };
        self.named().iter().map(|(name, on)| format!("{name}{};", mark(*on))).collect()
    }

    const fn named(self) -> [(&'static str, bool); 5] {
        [
            ("type", self.kind),
            ("size", self.size),
            ("modify", self.modify),
            ("perm", self.perm),
            ("UNIX.mode", self.mode),
        ]
    }
}

impl fmt::Display for Facts {
    /// Writes the facts as OPTS MLST and its reply have them: `type;size;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named().iter().filter(|(_, on)| *on).try_for_each(|(name, _)| write!(f, "{name};"))
    }
}
