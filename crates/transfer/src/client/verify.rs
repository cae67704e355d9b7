//! Is it the same file at both ends?
//!
//! Sources: draft-bryan-ftpext-hash (HASH, `213 ALGORITHM FIRST-LAST DIGITS NAME`); for the ends of files, the bytes
//! themselves.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::conduct::{Buffers, Desk, conduct};
use super::data;
use super::error::ClientError;
use super::session::Session;
use crate::ftp::{Command, Opts};
use crate::hash::{Digest, HashKind, Hasher};
use crate::mover::{Bounds, Job, Sockets};

/// Bytes of a file read at once to be summed.
const CHUNK: usize = 1 << 20;

/// How long a server may sum: a terabyte at a gigabyte per second.
const WORK: Duration = Duration::from_secs(1_000);

/// A checksum that both ends agree on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// The sum.
    pub digest: Digest,
}

/// Compares the server's checksum of `remote` with that of `file`.
///
/// # Errors
/// [`ClientError::NoChecksum`] where there is none to compare with, [`ClientError::Checksum`] where it differs.
pub(super) fn compare(session: &mut Session, remote: &Path, file: &File) -> Result<Checked, ClientError> {
    let kind = agree(session)?;
    let command = Command::Hash(remote.to_owned());
    // The server reads the whole file first.
    let reply = session.ask_slowly(&command, WORK)?;
    if !reply.is_completion() {
        return Err(ClientError::refused(&command, &reply));
    }
    let theirs = digits(&reply.text(), kind).ok_or(ClientError::NoChecksum)?;
    let local = PathBuf::from("the local file");
    let digest = sum(file, kind, u64::MAX).map_err(|source| ClientError::Read { path: local, source })?;
    if digest.is(&theirs) {
        return Ok(Checked { digest });
    }
    Err(ClientError::Checksum {
        algorithm: kind.name().to_owned(),
        local: digest.to_string(),
        remote: theirs,
    })
}

/// Whether what the server has of `remote` is the first `len` bytes of `file`, by its checksum.
///
/// # Errors
/// [`ClientError`] when the connection fails; a server that does not say is no error: `false`.
pub(super) fn beginning(
    session: &mut Session,
    remote: &Path,
    file: &File,
    len: u64,
) -> Result<bool, ClientError> {
    let kind = match agree(session) {
        Ok(kind) => kind,
        Err(ClientError::NoChecksum | ClientError::Refused { .. }) => return Ok(false),
        Err(error) => return Err(error),
    };
    let reply = session.ask_slowly(&Command::Hash(remote.to_owned()), WORK)?;
    let Some(theirs) = digits(&reply.text(), kind).filter(|_| reply.is_completion()) else {
        return Ok(false);
    };
    let ours =
        sum(file, kind, len).map_err(|source| ClientError::Read { path: remote.to_owned(), source })?;
    Ok(ours.is(&theirs))
}

/// The algorithm that both know, the stronger first; selected if it is not yet.
fn agree(session: &mut Session) -> Result<HashKind, ClientError> {
    let features = session.server().features.clone();
    let offered = features.hashes();
    let known = |kind: &HashKind| offered.iter().any(|name| name.eq_ignore_ascii_case(kind.name()));
    let kind = HashKind::ALL.into_iter().find(known).ok_or(ClientError::NoChecksum)?;
    if features.hash_selected().is_none_or(|name| !name.eq_ignore_ascii_case(kind.name())) {
        session.order(&Command::Opts(Opts::Hash(Some(kind.name().to_owned()))))?;
    }
    Ok(kind)
}

/// The digits in `SHA-256 0-49 DIGITS name`.
fn digits(text: &str, kind: HashKind) -> Option<String> {
    let mut words = text.split_ascii_whitespace();
    words.next().filter(|name| name.eq_ignore_ascii_case(kind.name()))?;
    let _range = words.next()?;
    words.next().filter(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit())).map(str::to_owned)
}

/// The sum of the first `len` bytes, or of all there are.
fn sum(mut file: &File, kind: HashKind, len: u64) -> io::Result<Digest> {
    file.seek(SeekFrom::Start(0))?;
    let mut rest = file.take(len);
    let mut hasher = Hasher::new(kind);
    let mut chunk = vec![0; CHUNK];
    loop {
        match rest.read(&mut chunk) {
            Ok(0) => return Ok(hasher.finish()),
            Ok(len) => hasher.update(&chunk[..len]),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Whether the first `len` bytes of `remote` end in `tail`, and nothing follows.
///
/// # Errors
/// [`ClientError`] when the connection fails; a server that lets nobody read the file is no error: `false`.
pub(super) fn remote_tail(
    session: &mut Session,
    remote: &Path,
    len: u64,
    tail: &[u8],
) -> Result<bool, ClientError> {
    let tcp = session.data(&Sockets::default())?;
    match session.restart(len - tail.len() as u64).and_then(|()| {
        let order = Command::Retr(remote.to_owned());
        session.begin(&order).map(|early| (order, early))
    }) {
        Ok((order, early)) => {
            let mut stream = session.protect(tcp)?;
            let desk = Desk::new()?;
            let bounds = Bounds { idle: session.access().patience, deadline: None };
            let job = Job { bounds, cancel: desk.cancel.clone(), ..Job::default() };
            // It ends with the stream closed: some servers wait for that.
            let read = move || data::all(&mut stream, tail.len(), &job);
            let conducted = conduct(session, &order, early, &desk, Buffers::Silent, read, |_| {});
            match conducted {
                Ok(conducted) => Ok(conducted.moved.is_some_and(|bytes| bytes == tail)),
                // The file goes on, we did not want it, and the server says so.
                Err(ClientError::Refused { .. }) => Ok(false),
                Err(error) => Err(error),
            }
        }
        Err(ClientError::Refused { .. } | ClientError::CannotResume { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digits_are_those_of_the_algorithm_that_was_asked_for() {
        let reply = "SHA-256 0-49 6Aa5b9 some name";
        assert_eq!(digits(reply, HashKind::Sha256).as_deref(), Some("6Aa5b9"));
        assert_eq!(digits(reply, HashKind::Xxh3), None);
        assert_eq!(digits("SHA-256 0-49 nonsense name", HashKind::Sha256), None);
        assert_eq!(digits("SHA-256", HashKind::Sha256), None);
    }
}
