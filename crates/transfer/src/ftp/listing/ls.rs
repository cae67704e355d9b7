//! Lines of LIST: `ls -l` and what Windows servers write instead.
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::SystemTime;

use super::mlsx::listable;
use super::{Entry, Kind};
use crate::ftp::WireError;
use crate::ftp::timestamp::Civil;

/// Reads a line of LIST.
#[must_use]
pub fn parse_list_line(line: &[u8], now: SystemTime) -> Option<Entry> {
    let _ = now;
    let kind = match line.first()? {
        b'-' => Kind::File,
        b'd' => Kind::Dir,
        b'l' => Kind::Link,
        _ => return None,
    };
    let name = line.rsplit(|byte| *byte == b' ').next()?;
    Some(Entry::new(PathBuf::from(OsStr::from_bytes(name)), kind))
}

/// Writes the line for an entry.
///
/// # Errors
/// As [`super::encode_mlsx`].
pub fn encode_ls(entry: &Entry, now: SystemTime) -> Result<Vec<u8>, WireError> {
    let _ = Civil::of(now);
    Ok(listable(entry)?.to_vec())
}
