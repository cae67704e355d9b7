//! Directory listings as a stream of bytes, produced line by line while they are sent.
//!
//! Properties kept: a directory takes the memory of its names alone, which is bounded (`store.rs`); a name with a line
//! break is skipped.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::SystemTime;

use super::path::VirtualPath;
use super::store::Status;
use super::users::Rights;
use crate::wire::listing::{Entry, Facts, Kind, encode_ls, encode_mlsx};

/// Format of the lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    /// LIST: as `ls -l`.
    Long,
    /// NLST: names alone.
    Names,
    /// MLSD: with these facts.
    Facts(Facts),
}

/// Names to be listed, each with its status.
pub(super) type Entries = Box<dyn Iterator<Item = (OsString, Status)> + Send>;

/// A listing to be read.
pub(super) struct Listing {
    entries: Entries,
    form: Form,
    rights: Rights,
    /// In front of every name of an NLST: the directory as the client gave it.
    prefix: PathBuf,
    now: SystemTime,
    line: Vec<u8>,
    at: usize,
}

impl Listing {
    pub(super) fn new(entries: Entries, form: Form, rights: Rights, prefix: PathBuf) -> Self {
        Self { entries, form, rights, prefix, now: SystemTime::now(), line: Vec::new(), at: 0 }
    }

    /// Returns the next line; `None` at the end.
    fn next_line(&mut self) -> Option<Vec<u8>> {
        loop {
            let (name, status) = self.entries.next()?;
            let name = match self.form {
                Form::Names => self.prefix.join(name),
                Form::Long | Form::Facts(_) => name.into(),
            };
            if let Some(line) = line(&entry(name, &status, self.rights), self.form, self.now) {
                return Some(line);
            }
        }
    }
}

impl Read for Listing {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let mut filled = 0;
        while filled < into.len() {
            if self.at == self.line.len() {
                match self.next_line() {
                    Some(line) => (self.line, self.at) = (line, 0),
                    None => break,
                }
            }
            let len = (self.line.len() - self.at).min(into.len() - filled);
            into[filled..filled + len].copy_from_slice(&self.line[self.at..self.at + len]);
            (self.at, filled) = (self.at + len, filled + len);
        }
        Ok(filled)
    }
}

/// Returns one line with its end; `None` if the name has a line break.
pub(super) fn line(entry: &Entry, form: Form, now: SystemTime) -> Option<Vec<u8>> {
    let mut line = match form {
        Form::Long => encode_ls(entry, now).ok()?,
        Form::Facts(facts) => encode_mlsx(entry, facts).ok()?,
        Form::Names => {
            use std::os::unix::ffi::OsStrExt;
            let name = entry.name.as_os_str().as_bytes();
            let breaks = name.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n'));
            (!breaks).then(|| name.to_vec())?
        }
    };
    line.extend_from_slice(b"\r\n");
    Some(line)
}

/// Returns the entry of `name` in a listing.
pub(super) fn entry(name: impl Into<PathBuf>, status: &Status, rights: Rights) -> Entry {
    // RFC 3659, section 7.5.5. File: r read; a append, d delete, f rename, w write. Directory: e enter, l list; c
    // create files, d delete, f rename, m make directories, p delete files in it.
    let perm = match (status.kind, rights) {
        (Kind::Dir | Kind::Link, Rights::Read) => "el",
        (Kind::Dir | Kind::Link, Rights::Write) => "cdeflmp",
        (Kind::File, Rights::Read) => "r",
        (Kind::File, Rights::Write) => "adfrw",
        _ => "",
    };
    Entry {
        size: (status.kind == Kind::File).then_some(status.size),
        modified: status.modified,
        mode: Some(status.mode),
        perm: Some(perm.to_owned()),
        ..Entry::new(name, status.kind)
    }
}

/// Whether a name matches a pattern with `*` (any characters) and `?` (any one character), as clients send for `mget`.
///
/// Takes at most as many steps as the product of both lengths.
pub(super) fn fits(pattern: &[u8], name: &[u8]) -> bool {
    let (mut p, mut n) = (0, 0);
    // Position of the last star, and of the name when that was reached.
    let mut star = None;
    while n < name.len() {
        match pattern.get(p) {
            Some(b'*') => {
                star = Some((p, n));
                p += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[n] => (p, n) = (p + 1, n + 1),
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, n) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern[p..].iter().all(|byte| *byte == b'*')
}

/// Returns the directory and the pattern, of a path whose last component has a wildcard.
pub(super) fn pattern_of(path: &VirtualPath) -> Option<(VirtualPath, Vec<u8>)> {
    use std::os::unix::ffi::OsStrExt;
    let name = path.name()?.as_bytes();
    name.iter().any(|byte| matches!(byte, b'*' | b'?')).then(|| (path.parent(), name.to_vec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_fit_as_a_shell_would_have_it() {
        for (pattern, name, fit) in [
            ("*", "", true),
            ("*.txt", "a.txt", true),
            ("*.txt", "a.text", false),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ab-ab-a", false),
            ("", "a", false),
        ] {
            assert_eq!(fits(pattern.as_bytes(), name.as_bytes()), fit, "{pattern} {name}");
        }
    }

    #[test]
    fn an_unfriendly_pattern_ends_soon() {
        let pattern = b"*a".repeat(1_000);
        assert!(!fits(&[&pattern[..], b"b"].concat(), &b"a".repeat(255)));
    }
}
