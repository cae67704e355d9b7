//! Directories on the server: a session's current directory, and whether a path names a directory.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::ClientError;
use super::session::ClientSession;
use crate::wire::listing::parse_mlsx_line;
use crate::wire::{Command, Entry, Kind};

/// Returns the session's current directory.
pub(super) fn working_directory(session: &mut ClientSession) -> Result<PathBuf, ClientError> {
    let reply = session.order(&Command::Pwd)?;
    let here = reply.lines.first().and_then(|line| quoted(line));
    here.ok_or_else(|| ClientError::refused(&Command::Pwd, &reply))
}

/// Whether the server has a directory of this name. The session stays where it is.
pub(super) fn is_directory(session: &mut ClientSession, path: &Path) -> Result<bool, ClientError> {
    if has_mlst(session) {
        let reply = session.ask(&Command::Mlst(Some(path.to_owned())))?;
        let mut entries = reply.lines.iter().filter_map(|line| parse_mlsx_line(line));
        let is_dir = |entry: Entry| matches!(entry.kind, Kind::Dir | Kind::Current | Kind::Parent);
        return Ok(reply.is_completion() && entries.any(is_dir));
    }
    let here = working_directory(session)?;
    let there = session.ask(&Command::Cwd(path.to_owned()))?.is_completion();
    if there {
        session.order(&Command::Cwd(here))?;
    }
    Ok(there)
}

pub(super) fn has_mlst(session: &ClientSession) -> bool {
    session.server().features.has("MLST")
}

/// Returns the path in PWD's answer: in quotation marks, those in it doubled (RFC 959, appendix II).
fn quoted(line: &[u8]) -> Option<PathBuf> {
    let mut bytes = line.strip_prefix(b"\"")?.iter().copied().peekable();
    let mut path = Vec::new();
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' if bytes.next_if_eq(&b'"').is_none() => {
                return Some(PathBuf::from(OsStr::from_bytes(&path)));
            }
            byte => path.push(byte),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_working_directory_is_read_with_its_quotation_marks() {
        assert_eq!(quoted(b"\"/a \"\"b\"\"\" is here"), Some(PathBuf::from("/a \"b\"")));
        assert_eq!(quoted(b"\"/\""), Some(PathBuf::from("/")));
        assert_eq!((quoted(b"/a"), quoted(b"\"/a")), (None, None));
    }
}
