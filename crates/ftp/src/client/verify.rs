//! Verifies that both ends have the same file.
//!
//! Whole files are compared by the sums that servers compute ([`crate::wire::question`]), ends of files by their bytes.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::time::Duration;

use bufwise_mover::hash::{Digest, HashKind, Hasher};
use bufwise_mover::{Job, Sockets};

use super::conduct::{Buffers, Desk, conduct};
use super::data;
use super::error::{Answer, ClientError};
use super::outcome::Outcome;
use super::session::ClientSession;
use super::settings::Settings;
use crate::wire::Command;
use crate::wire::question::Question;

/// Bytes of a file read at once to be summed.
const CHUNK: usize = 1 << 20;

/// A data connection over TLS that does not resume the session (vsftpd): tried again with another kind of session.
const NOT_RESUMED: u16 = 522;

/// How long a server may take for a sum: a terabyte at a gigabyte per second.
const CHECKSUM_TIMEOUT: Duration = Duration::from_secs(1_000);

/// Compares the server's checksum of `remote` with that of the first `len` bytes of `file`; returns it if they agree.
///
/// # Errors
/// [`ClientError::NoChecksum`] where the server has none, [`ClientError::Checksum`] where the sums differ.
pub(super) fn compare(
    session: &mut ClientSession,
    remote: &Path,
    file: &File,
    len: u64,
) -> Result<Digest, ClientError> {
    let theirs = ask(session, remote)?;
    let local = PathBuf::from("the local file");
    let ours = sum(file, theirs.kind(), len).map_err(|source| ClientError::Read { path: local, source })?;
    agreed(ours, theirs)
}

/// Compares the server's checksum of `remote` with `ours`, which is of [`kind`].
///
/// # Errors
/// As [`compare`].
pub(super) fn compare_sum(
    session: &mut ClientSession,
    remote: &Path,
    ours: Digest,
) -> Result<Digest, ClientError> {
    let theirs = ask(session, remote)?;
    agreed(ours, theirs)
}

/// Returns the strongest sum that both ends know.
///
/// # Errors
/// [`ClientError::NoChecksum`] where the server has none.
pub(super) fn kind(session: &ClientSession) -> Result<HashKind, ClientError> {
    Question::best(&session.server().features).map(|question| question.kind).ok_or(ClientError::NoChecksum)
}

fn agreed(ours: Digest, theirs: Digest) -> Result<Digest, ClientError> {
    if ours == theirs {
        return Ok(ours);
    }
    Err(ClientError::Checksum {
        algorithm: ours.kind().name().to_owned(),
        local: ours.to_string(),
        remote: theirs.to_string(),
    })
}

/// Returns the outcome for a file of `size` bytes that is at both ends, as far as its end tells; `None` if with
/// `checksum` the sums differ.
///
/// # Errors
/// As [`compare`].
pub(super) fn already(
    session: &mut ClientSession,
    remote: &Path,
    file: &File,
    size: u64,
    settings: &Settings,
) -> Result<Option<Outcome>, ClientError> {
    let checksum = match settings.checksum.then(|| compare(session, remote, file, size)).transpose() {
        Err(ClientError::Checksum { .. }) => return Ok(None),
        compared => compared?,
    };
    Ok(Some(Outcome { checksum, ..Outcome::already(size) }))
}

/// Whether a refusal is for good. After any other one the same command may succeed, so the part that is there must not be taken
/// for another file's: it would be lost.
fn is_final(reply: &Answer) -> bool {
    reply.code / 100 == 5 && reply.code != NOT_RESUMED
}

/// Whether the server's bytes of `remote` are the first `len` bytes of `file`, by their checksum.
///
/// # Errors
/// [`ClientError`] when the connection fails or the server refuses for now; for a server without an answer the result is
/// `false`.
pub(super) fn beginning(
    session: &mut ClientSession,
    remote: &Path,
    file: &File,
    len: u64,
) -> Result<bool, ClientError> {
    let theirs = match ask(session, remote) {
        Ok(theirs) => theirs,
        Err(ClientError::NoChecksum | ClientError::Unexpected { .. }) => return Ok(false),
        Err(ClientError::Refused { reply, .. }) if is_final(&reply) => return Ok(false),
        Err(error) => return Err(error),
    };
    let ours = sum(file, theirs.kind(), len);
    let ours = ours.map_err(|source| ClientError::Read { path: remote.to_owned(), source })?;
    Ok(ours == theirs)
}

/// Returns the server's sum of `remote`, by the strongest algorithm that both ends know.
fn ask(session: &mut ClientSession, remote: &Path) -> Result<Digest, ClientError> {
    let question = Question::best(&session.server().features).ok_or(ClientError::NoChecksum)?;
    if let Some(preparation) = question.preparation() {
        session.order(&preparation)?;
    }
    let command = question.command(remote);
    // The server reads the whole file first.
    let reply = session.ask_slowly(&command, CHECKSUM_TIMEOUT)?;
    question.answer(&reply).ok_or_else(|| ClientError::refused(&command, &reply))
}

/// Returns the sum of the first `len` bytes, or of all if there are fewer.
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
/// [`ClientError`] when the connection fails or the server refuses for now; for a server that refuses for good to send the
/// file the result is `false`.
pub(super) fn remote_tail(
    session: &mut ClientSession,
    remote: &Path,
    len: u64,
    tail: &[u8],
    settings: &Settings,
) -> Result<bool, ClientError> {
    let desk = Desk::new()?;
    let tcp = session.data(&Sockets::default())?;
    match session.restart(len - tail.len() as u64).and_then(|()| {
        let order = Command::Retr(remote.to_owned());
        session.begin(&order).map(|begun| (order, begun))
    }) {
        Ok((order, begun)) => {
            let mut stream = session.protect(tcp)?;
            let job = Job { bounds: settings.bounds(), cancel: desk.cancel.clone(), ..Job::default() };
            let mut continues = false;
            let noted = &mut continues;
            // Close the stream: some servers wait for that.
            let read = move || data::all(&mut stream, tail.len(), &job).inspect(|all| *noted = all.is_none());
            let conducted = conduct(session, &order, begun, &desk, Buffers::Silent, read, |_| {});
            match conducted {
                Ok(conducted) => Ok(conducted.moved.is_some_and(|bytes| bytes == tail)),
                // The file continues, we closed early, and the server reports that.
                Err(ClientError::Refused { reply, .. }) if continues || is_final(&reply) => Ok(false),
                Err(error) => Err(error),
            }
        }
        Err(ClientError::CannotResume { .. }) => Ok(false),
        Err(ClientError::Refused { reply, .. }) if is_final(&reply) => Ok(false),
        Err(error) => Err(error),
    }
}
