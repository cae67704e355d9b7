//! Directories: MLST and MLSD facts, and `ls -l` as servers write it.
//!
//! Keeps: decoding undoes encoding; no name has a line break; a size is below 2^63.

mod ls;
mod mlsx;
#[cfg(test)]
mod tests;

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, PathBuf};
use std::time::SystemTime;

pub use ls::{encode_ls, parse_list_line};
pub use mlsx::{encode_mlsx, parse_mlsx_line};

/// What an entry is.
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
    /// A device, a socket, a pipe, or what the server calls something else.
    Other,
}

/// One entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// As the server gave it: may be a path, `.`, `..` or worse. See [`Entry::file_name`].
    pub name: PathBuf,
    /// What it is.
    pub kind: Kind,
    /// Its size in bytes, below 2^63.
    pub size: Option<u64>,
    /// When it was last modified.
    pub modified: Option<SystemTime>,
    /// Permission bits as of `chmod`, at most 0o7777.
    pub mode: Option<u32>,
    /// What the login may do with it (RFC 3659 section 7.5.5), lower-case letters.
    pub perm: Option<String>,
}

impl Entry {
    /// An entry of which only the name and the kind are known.
    #[must_use]
    pub fn new(name: impl Into<PathBuf>, kind: Kind) -> Self {
        Self { name: name.into(), kind, size: None, modified: None, mode: None, perm: None }
    }

    /// The name, if it is a plain one that can be joined to a local directory without leaving it.
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
    /// All of them.
    fn default() -> Self {
        Self { kind: true, size: true, modify: true, perm: true, mode: true }
    }
}

impl Facts {
    /// The facts that a list as `type;size;` names. Unknown ones are skipped.
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

    /// The parameters of MLST in FEAT: all that there are, these with an asterisk.
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
    /// The facts as OPTS MLST and its reply have them: `type;size;`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.named().iter().filter(|(_, on)| *on).try_for_each(|(name, _)| write!(f, "{name};"))
    }
}

/// Bytes from a peer as text that does nothing to a terminal: control characters, those that turn the
/// direction of writing, and bytes that are no UTF-8 are escaped.
#[must_use]
pub fn escape_for_terminal(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || turns_direction(c) {
                text.extend(c.escape_default());
            } else {
                text.push(c);
            }
        }
        text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
    }
    text
}

const fn turns_direction(c: char) -> bool {
    matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2028}' | '\u{2029}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
}
