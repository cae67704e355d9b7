//! Puts one file: to a temporary name on the server, then to its final name.
//!
//! Problem: a server writes received bytes under the given name, and keeps half a file when the connection breaks.
//! Rules: the file goes to `.NAME.bufwise-part` in the same directory, and is renamed once its size there is right. It
//! goes to its final name directly in three cases: anonymous uploads, which servers usually forbid to rename; servers of
//! bufwise, which do all this themselves; and on request. Bytes of an earlier command are resumed on request only, those of this
//! command in any case. To resume, the last 64 KiB of the partial file are read back
//! and compared, or all of it by HASH where it cannot be read; then APPE continues or, where APPE is refused, REST and
//! STOR.
//! Properties kept: with renaming, the final name appears only after the size, and with `checksum` the sum, were
//! compared.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use bufwise_mover::{BufferGrants, Progress, Sent, Source};

use super::conduct::{Buffers, Conducted, Desk, conduct};
use super::download::TAIL;
use super::error::ClientError;
use super::event::Event;
use super::local::{self, temporary_name};
use super::outcome::Outcome;
use super::session::ClientSession;
use super::settings::Settings;
use super::verify;
use crate::wire::{Command, Reply};

/// Puts `file` to `remote`. With `resume` it continues what is there; that is set once the server has begun to write this
/// file.
pub(super) fn upload(
    session: &mut ClientSession,
    file: &File,
    remote: &Path,
    resume: &mut bool,
    settings: &Settings,
    watch: &mut impl FnMut(Event<'_>),
) -> Result<Outcome, ClientError> {
    let failed = |source| ClientError::Read { path: remote.to_owned(), source };
    let size = length(file).map_err(failed)?;
    let in_place = is_in_place(session, settings);
    let goal = if in_place { remote.to_owned() } else { beside(remote) };
    let have = if *resume { there(session, file, &goal, size.unwrap_or_default(), settings)? } else { 0 };
    // An earlier attempt was complete, but its reply was lost. Without this check the server would copy the whole file to append nothing.
    if have > 0
        && size == Some(have)
        && is_atomic(session)
        && has_end(session, file, remote, have, settings)?
        && let Some(outcome) = verify::already(session, remote, file, have, settings)?
    {
        return Ok(outcome);
    }
    watch(Event::Begun { size, resumed_from: have });
    let watch = |progress: &Progress| watch(Event::Progress(progress));
    // If the file grows meanwhile, only its present length is sent.
    let rest = size.map(|size| size - have);
    if let Some(rest) = rest {
        announce_length(session, rest)?;
    }
    let source = Source::File { file, offset: have, length: rest };
    let sent = push(session, source, &goal, have, resume, settings, watch)?;
    let moved = have + sent.moved.report.bytes;
    let size = size.unwrap_or(moved);
    // If the server reports no size, compare the bytes sent: the file may have become shorter meanwhile.
    let found = session.size(&goal)?.unwrap_or(moved);
    if found != size {
        return Err(ClientError::Size { expected: size, found });
    }
    let checksum = settings.checksum.then(|| verify::compare(session, &goal, file, size)).transpose();
    if matches!(checksum, Err(ClientError::Checksum { .. })) && !in_place {
        // No part of it can be resumed. It stays where the server does not let it be removed.
        let _may_stay = session.ask(&Command::Dele(goal.clone()));
    }
    let checksum = checksum?;
    if !in_place {
        rename(session, &goal, remote)?;
    }
    let (report, notes) = (Some(sent.moved.report), sent.notes);
    Ok(Outcome { size, resumed_from: have, report, notes, checksum, ..Outcome::default() })
}

/// Returns the file's length in bytes; `None`: its file system does not know it and reports 0, as /proc does.
fn length(file: &File) -> io::Result<Option<u64>> {
    let length = file.metadata()?.len();
    let is_known = length > 0 || file.read_at(&mut [0], 0)? == 0;
    Ok(is_known.then_some(length))
}

/// Returns the outcome if the final name already has the file, as far as size and end tell, at a server of bufwise its sum, and
/// with `checksum` the sum at any server; else `None`.
pub(super) fn is_there(
    session: &mut ClientSession,
    file: &File,
    remote: &Path,
    settings: &Settings,
) -> Result<Option<Outcome>, ClientError> {
    let Ok(Some(size)) = length(file) else { return Ok(None) };
    if session.size(remote)? != Some(size) {
        return Ok(None);
    }
    if has_end(session, file, remote, size, settings)?
        && (!is_atomic(session) || verify::beginning(session, remote, file, size)?)
    {
        verify::already(session, remote, file, size, settings)
    } else {
        Ok(None)
    }
}

/// Whether the server sends the end of the file under this name. A server of bufwise reports the size and the sum of an unfinished
/// upload as well, but sends none of its bytes.
fn has_end(
    session: &mut ClientSession,
    file: &File,
    remote: &Path,
    size: u64,
    settings: &Settings,
) -> Result<bool, ClientError> {
    let failed = |source| ClientError::Read { path: remote.to_owned(), source };
    let tail = local::tail(file, size, TAIL).map_err(failed)?;
    verify::remote_tail(session, remote, size, &tail, settings)
}

/// Returns how many bytes of the file the server has, verified by their last part.
fn there(
    session: &mut ClientSession,
    file: &File,
    remote: &Path,
    size: u64,
    settings: &Settings,
) -> Result<u64, ClientError> {
    let Some(have) = session.size(remote)?.filter(|have| (1..=size).contains(have)) else { return Ok(0) };
    let failed = |source| ClientError::Read { path: remote.to_owned(), source };
    let tail = local::tail(file, have, TAIL).map_err(failed)?;
    let same = if is_atomic(session) {
        verify::beginning(session, remote, file, have)?
    } else {
        verify::remote_tail(session, remote, have, &tail, settings)?
    };
    Ok(if same { have } else { 0 })
}

/// Whether a file goes to its final name directly.
pub(super) fn is_in_place(session: &ClientSession, settings: &Settings) -> bool {
    settings.in_place || is_atomic(session) || session.access().login.is_anonymous()
}

/// Whether the server is bufwise's, which shows an upload under its name only when it is whole; until then only SIZE
/// and HASH report the bytes that have arrived.
fn is_atomic(session: &ClientSession) -> bool {
    session.server().features.drs().is_some()
}

/// Announces to a server of bufwise how many bytes will come: it then takes fewer for an upload that was cut off, also where
/// this program ends before its file does.
fn announce_length(session: &mut ClientSession, bytes: u64) -> Result<(), ClientError> {
    if !session.server().dialect {
        return Ok(());
    }
    let command = Command::Allo(bytes);
    let reply = session.ask(&command)?;
    // A server that does not know the command stores without it; one without space says so here.
    if reply.is_transient() { Err(ClientError::refused(&command, &reply)) } else { Ok(()) }
}

fn push(
    session: &mut ClientSession,
    source: Source<'_>,
    goal: &Path,
    have: u64,
    begun_here: &mut bool,
    settings: &Settings,
    watch: impl FnMut(&Progress),
) -> Result<Conducted<Sent>, ClientError> {
    let responder = session.responder(settings)?;
    session.announce_buffer(settings)?;
    let desk = Desk::new()?;
    let tcp = session.data(&settings.sockets())?;
    let (order, begun) = order(session, goal, have)?;
    *begun_here = true;
    let stream = session.protect(tcp)?;
    let job = settings.job(&desk.cancel);
    let grants = BufferGrants::new(settings.send_cap);
    let buffers = if session.server().dialect { Buffers::Grant(&grants) } else { Buffers::Silent };
    let data = || {
        bufwise_mover::send(source, stream, &grants, responder.as_ref(), &job, |progress| desk.tell(progress))
    };
    conduct(session, &order, begun, &desk, buffers, data, watch)
}

/// Orders the transfer by the command that the server accepts.
fn order(session: &mut ClientSession, goal: &Path, have: u64) -> Result<(Command, Reply), ClientError> {
    if have > 0 {
        let append = Command::Appe(goal.to_owned());
        match session.begin(&append) {
            Ok(begun) => return Ok((append, begun)),
            Err(ClientError::Refused { reply, .. }) if reply.code / 100 == 5 => session.restart(have)?,
            Err(error) => return Err(error),
        }
    }
    let store = Command::Stor(goal.to_owned());
    let begun = session.begin(&store)?;
    Ok((store, begun))
}

fn rename(session: &mut ClientSession, from: &Path, to: &Path) -> Result<(), ClientError> {
    let refused = |reply: &Reply| ClientError::Rename { path: from.to_owned(), reply: reply.into() };
    let reply = session.ask(&Command::Rnfr(from.to_owned()))?;
    if !reply.is_intermediate() {
        return Err(refused(&reply));
    }
    let reply = session.ask(&Command::Rnto(to.to_owned()))?;
    if reply.is_completion() { Ok(()) } else { Err(refused(&reply)) }
}

/// Returns the temporary name in the same directory.
pub(super) fn beside(remote: &Path) -> PathBuf {
    match remote.file_name() {
        Some(name) => remote.with_file_name(temporary_name(name)),
        None => remote.to_owned(),
    }
}
