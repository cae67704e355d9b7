//! Gets one file: from the first byte under its temporary name to the rename.
//!
//! Rules: a partial file is continued only after its last [`TAIL`] bytes were compared with the server's; the
//! comparison is the beginning of the same transfer, so it costs no round trip. The final length must be the server's
//! SIZE where the server tells it, else the length that the reply to RETR announces; with `checksum`, the sum of the
//! file on the disk, or of the bytes that went into a pipe or device, must be the server's.
//! Properties kept: the final name appears only after these checks; a failure leaves the bytes that arrived for the
//! next attempt; a file with a wrong checksum is deleted.

use std::fs::File;
use std::path::Path;

use bufwise_mover::hash::HashKind;
use bufwise_mover::{FilePart, Job, MoveError, Progress, Received, Sink};

use super::conduct::{Buffers, Desk, Notes, conduct};
use super::data;
use super::error::ClientError;
use super::event::Event;
use super::local::{self, Partial};
use super::outcome::Outcome;
use super::session::ClientSession;
use super::settings::Settings;
use super::verify;
use crate::wire::Command;

/// Bytes compared before a transfer is resumed.
pub(super) const TAIL: u64 = 64 << 10;

/// Gets `remote` into `partial`, continuing it if `resume`, and gives it its final name.
pub(super) fn download(
    session: &mut ClientSession,
    remote: &Path,
    partial: &mut Partial,
    resume: bool,
    settings: &Settings,
    watch: &mut impl FnMut(Event<'_>),
) -> Result<Outcome, ClientError> {
    let size = session.size(remote)?;
    let have = if resume { partial.length()? } else { 0 };
    // The partial file is longer than the server's: another file.
    let have = if size.is_some_and(|size| have > size) { 0 } else { have };
    partial.cut(have)?;
    watch(Event::Begun { size, resumed_from: have });
    let watch = |progress: &Progress| watch(Event::Progress(progress));
    let tail = local::tail(partial.file(), have, TAIL)
        .map_err(|source| ClientError::Read { path: partial.path(), source })?;
    let mut part = FilePart::new(partial.file(), have);
    let from = From { have, tail, size, hash: None };
    let (received, notes) = fetch(session, remote, &mut part, &from, settings, watch)?;
    let found = partial.length()?;
    if let Some(expected) = size.filter(|expected| *expected != found) {
        return Err(ClientError::Size { expected, found });
    }
    let checksum =
        if settings.checksum { Some(verify::compare(session, remote, partial.file(), found)?) } else { None };
    Ok(Outcome {
        size: found,
        resumed_from: have,
        report: Some(received.report),
        notes,
        checksum,
        measured: received.measured,
    })
}

/// Gets `remote` into a sink that is no file.
pub(super) fn stream(
    session: &mut ClientSession,
    remote: &Path,
    sink: &mut (dyn Sink + Send),
    settings: &Settings,
    watch: &mut impl FnMut(Event<'_>),
) -> Result<Outcome, ClientError> {
    let size = session.size(remote)?;
    // Asked before the first byte, which could not be taken back.
    let hash = if settings.checksum { Some(verify::kind(session)?) } else { None };
    let from = From { have: 0, tail: Vec::new(), size, hash };
    watch(Event::Begun { size, resumed_from: 0 });
    let watch = |progress: &Progress| watch(Event::Progress(progress));
    let (received, notes) = fetch(session, remote, sink, &from, settings, watch)?;
    let Received { report, measured, .. } = received;
    let checksum = report.hash.map(|ours| verify::compare_sum(session, remote, ours)).transpose()?;
    Ok(Outcome { size: report.bytes, report: Some(report), notes, measured, checksum, ..Outcome::default() })
}

/// Returns the outcome if the file that already has the final name is the server's, as far as size and end tell, and with
/// `checksum` the sum; else `None`.
pub(super) fn is_there(
    session: &mut ClientSession,
    remote: &Path,
    file: &File,
    settings: &Settings,
) -> Result<Option<Outcome>, ClientError> {
    let Some(size) = session.size(remote)? else { return Ok(None) };
    if !file.metadata().is_ok_and(|metadata| metadata.len() == size) {
        return Ok(None);
    }
    let Ok(tail) = local::tail(file, size, TAIL) else { return Ok(None) };
    if verify::remote_tail(session, remote, size, &tail, settings)? {
        verify::already(session, remote, file, size, settings)
    } else {
        Ok(None)
    }
}

/// Where a transfer continues.
struct From {
    /// Bytes of the partial file.
    have: u64,
    /// The last of them.
    tail: Vec<u8>,
    /// Bytes of the whole file.
    size: Option<u64>,
    /// The sum to make of the bytes that pass.
    hash: Option<HashKind>,
}

fn fetch(
    session: &mut ClientSession,
    remote: &Path,
    sink: &mut (dyn Sink + Send),
    from: &From,
    settings: &Settings,
    watch: impl FnMut(&Progress),
) -> Result<(Received, Notes), ClientError> {
    let From { have, tail, size, hash } = from;
    let prober = session.prober(settings)?;
    let mut tuner = settings.tuner(prober);
    tuner.prepare();
    session.announce_buffer(settings)?;
    let desk = Desk::new()?;
    let tcp = session.data(&settings.sockets())?;
    session.restart(have - tail.len() as u64)?;
    let order = Command::Retr(remote.to_owned());
    let begun = session.begin(&order)?;
    // After REST, servers announce either the whole file or the rest of it.
    let expected = size.map(|size| size - have).or_else(|| begun.announced().filter(|_| *have == 0));
    let mut stream = session.protect(tcp)?;
    let job = Job { hash: *hash, ..settings.job(&desk.cancel) };
    let mut differs = false;
    let buffers = if session.server().dialect { Buffers::Request } else { Buffers::Silent };
    let conducted = conduct(
        session,
        &order,
        begun,
        &desk,
        buffers,
        || {
            if !data::same(&mut stream, tail, &job)? {
                differs = true;
                return Err(MoveError::Cancelled { bytes: 0 });
            }
            bufwise_mover::receive(stream, sink, &mut tuner, expected, &job, |progress| desk.tell(progress))
        },
        watch,
    );
    // Without a size the server's file may be shorter. With one this connection was cut, and the partial file can be resumed.
    let is_shorter =
        *have > 0 && size.is_none() && matches!(conducted, Err(ClientError::Move(MoveError::Length { .. })));
    if differs || is_shorter {
        return Err(ClientError::TailDiffers);
    }
    conducted.map(|conducted| (conducted.moved, conducted.notes))
}
