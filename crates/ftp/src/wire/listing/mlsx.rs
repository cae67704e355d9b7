//! Lines of MLST and MLSD (RFC 3659 section 7).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::entry::{Entry, Facts, Kind};
use crate::wire::address::decimal;
use crate::wire::error::WireError;
use crate::wire::terminal::shown;
use crate::wire::timestamp;

/// Parses `type=file;size=1; name`; `None` if it is no such line. Unknown facts and invalid values are skipped.
#[must_use]
pub fn parse_mlsx_line(line: &[u8]) -> Option<Entry> {
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    let space = line.iter().position(|byte| *byte == b' ')?;
    let (facts, name) = (&line[..space], &line[space + 1..]);
    if name.is_empty() || name.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
        return None;
    }
    let mut entry = Entry::new(PathBuf::from(OsStr::from_bytes(name)), Kind::Other);
    for fact in facts.split(|byte| *byte == b';').filter(|fact| !fact.is_empty()) {
        let equals = fact.iter().position(|byte| *byte == b'=')?;
        let (fact, value) = (fact[..equals].to_ascii_lowercase(), &fact[equals + 1..]);
        match fact.as_slice() {
            b"type" => entry.kind = kind(&value.to_ascii_lowercase()),
            b"size" => entry.size = decimal::<i64>(value).and_then(|size| u64::try_from(size).ok()),
            b"modify" => entry.modified = timestamp::parse(value),
            b"unix.mode" => entry.mode = mode(value),
            b"perm" => entry.perm = perm(value),
            _ => {}
        }
    }
    Some(entry)
}

fn kind(value: &[u8]) -> Kind {
    match value {
        b"file" => Kind::File,
        b"dir" => Kind::Dir,
        b"cdir" => Kind::Current,
        b"pdir" => Kind::Parent,
        _ if value.starts_with(b"os.unix=slink") || value.starts_with(b"os.unix=symlink") => Kind::Link,
        _ => Kind::Other,
    }
}

fn mode(value: &[u8]) -> Option<u32> {
    let digits = str::from_utf8(value).ok().filter(|text| text.bytes().all(|byte| byte.is_ascii_digit()))?;
    u32::from_str_radix(digits, 8).ok().filter(|mode| *mode <= 0o7777)
}

fn perm(value: &[u8]) -> Option<String> {
    let letters = value.iter().all(u8::is_ascii_alphabetic).then(|| value.to_ascii_lowercase())?;
    String::from_utf8(letters).ok()
}

/// Writes the line for an entry, without indentation and line break.
///
/// # Errors
/// [`WireError::LineBreak`] if the name has a CR, LF or NUL: such an entry cannot be listed;
/// [`WireError::Empty`] if there is no name.
pub fn encode_mlsx(entry: &Entry, facts: Facts) -> Result<Vec<u8>, WireError> {
    let name = listable(entry)?;
    let mut line = Vec::new();
    if facts.kind {
        let kind = match entry.kind {
            Kind::File => "file",
            Kind::Dir => "dir",
            Kind::Current => "cdir",
            Kind::Parent => "pdir",
            Kind::Link => "OS.unix=symlink",
            Kind::Other => "OS.unix=other",
        };
        line.extend(format!("type={kind};").bytes());
    }
    if let Some(size) = entry.size.filter(|_| facts.size) {
        line.extend(format!("size={size};").bytes());
    }
    if let Some(modified) = entry.modified.filter(|_| facts.modify) {
        line.extend(format!("modify={};", timestamp::format(modified)).bytes());
    }
    if let Some(perm) = entry.perm.as_ref().filter(|_| facts.perm) {
        line.extend(format!("perm={perm};").bytes());
    }
    if let Some(mode) = entry.mode.filter(|_| facts.mode) {
        line.extend(format!("UNIX.mode={:04o};", mode & 0o7777).bytes());
    }
    line.push(b' ');
    line.extend(name);
    Ok(line)
}

/// Returns the bytes of a name that can stand in a listing.
pub(super) fn listable(entry: &Entry) -> Result<&[u8], WireError> {
    let name = entry.name.as_os_str().as_bytes();
    if name.is_empty() {
        return Err(WireError::Empty { what: "the name of an entry" });
    }
    if name.iter().any(|byte| matches!(byte, 0 | b'\r' | b'\n')) {
        return Err(WireError::LineBreak { what: "the name", shown: shown(name) });
    }
    Ok(name)
}
