//! A worker moves one file after another: opens a session when needed, replaces a spent one, repeats failed attempts.
//!
//! Rules: after a transient failure the worker tries again after 1 s, 2 s, 4 s .. at most 30 s, resuming the partial
//! file. A partial file that belongs to another file is replaced, once. If the server refuses an encrypted data
//! connection, the worker tries once more with TLS 1.2, whose sessions can be resumed any number of times.
//! Properties kept: a file is tried at most `retries + 1` times (and once more after a wrong partial file); an
//! interruption ends every wait; the session is ended politely in every case.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bufwise_mover::Sink;

use super::access::{Access, Server};
use super::directory::is_directory;
use super::download::{self, download, stream};
use super::error::ClientError;
use super::event::Event;
use super::local::Target;
use super::outcome::Outcome;
use super::session::ClientSession;
use super::settings::Settings;
use super::upload::{self, upload};
use crate::wire::Command;

/// Longest wait between attempts.
const MAX_RETRY_WAIT: Duration = Duration::from_secs(30);

/// Moves one file after the other.
#[derive(Debug)]
pub struct Worker {
    access: Access,
    settings: Settings,
    session: Option<ClientSession>,
}

impl Worker {
    /// Makes a worker without a session yet.
    #[must_use]
    pub fn new(access: &Access, settings: &Settings) -> Self {
        Self { access: access.clone(), settings: settings.clone(), session: None }
    }

    /// Moves files by these settings from now on.
    #[must_use]
    pub fn with_settings(mut self, settings: &Settings) -> Self {
        self.settings = settings.clone();
        self
    }

    /// Returns the session; opens one if there is no usable one.
    ///
    /// # Errors
    /// As [`ClientSession::open`].
    pub fn session(&mut self) -> Result<&mut ClientSession, ClientError> {
        if self.session.as_ref().is_none_or(ClientSession::is_spent) {
            self.session = None;
        }
        match &mut self.session {
            Some(session) => Ok(session),
            none => Ok(none.insert(ClientSession::open(&self.access)?)),
        }
    }

    /// Returns the settings of transfers.
    pub(super) fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Whether the command was cancelled.
    pub(super) fn is_cancelled(&self) -> bool {
        self.access.cancel.is_cancelled()
    }

    /// Returns the server's abilities, if a session has been opened.
    #[must_use]
    pub fn server(&self) -> Option<&Server> {
        self.session.as_ref().map(ClientSession::server)
    }

    /// Gets `remote`; it appears as `target` when all of it is there.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn get(
        &mut self,
        remote: &Path,
        target: &Target,
        mut watch: impl FnMut(Event<'_>),
    ) -> Result<Outcome, ClientError> {
        let settings = &self.settings.clone();
        if settings.resume
            && !target.is_begun()
            && let Some(file) = target.finished()
            && let Some(there) = self
                .attempts(&mut watch, |session, _, _| download::is_there(session, remote, &file, settings))?
        {
            return Ok(there);
        }
        let mut partial = target.begin(settings.resume)?;
        let got = self.attempts(&mut watch, |session, again, watch| {
            let resume = again.unwrap_or(settings.resume);
            download(session, remote, &mut partial, resume, settings, watch)
        });
        match got {
            Ok(outcome) => partial.finish().map(|()| outcome).map_err(ClientError::from),
            Err(error) => {
                // No part of a file with a wrong checksum can be resumed.
                if matches!(error, ClientError::Checksum { .. }) {
                    let _stays = partial.cut(0);
                }
                partial.leave();
                Err(error)
            }
        }
    }

    /// Gets `remote` into a pipe or device. Written bytes cannot be taken back there: nothing is resumed, and only a
    /// failure before the first byte is tried again.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn get_into(
        &mut self,
        remote: &Path,
        sink: &mut (dyn Sink + Send),
        mut watch: impl FnMut(Event<'_>),
    ) -> Result<Outcome, ClientError> {
        let settings = &self.settings.clone();
        let mut sink = Noticed { sink, taken: false };
        self.attempts(&mut watch, |session, _, watch| {
            let got = stream(session, remote, &mut sink, settings, watch);
            // Only transient errors are tried again.
            let again = !sink.taken;
            got.map_err(|error| match error {
                error if again || !error.is_transient() => error,
                error => ClientError::Partly(Box::new(error)),
            })
        })
    }

    /// Returns those of `paths` on the server that are the temporary names of others of them: uploads of the others
    /// would replace them.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn clashing(&mut self, paths: &[PathBuf]) -> Result<BTreeSet<PathBuf>, ClientError> {
        let settings = self.settings.clone();
        if self.with_session(|session| Ok(upload::is_in_place(session, &settings)))? {
            return Ok(BTreeSet::new());
        }
        let taken: BTreeSet<PathBuf> = paths.iter().map(|path| upload::beside(path)).collect();
        Ok(paths.iter().filter(|path| taken.contains(*path)).cloned().collect())
    }

    /// Creates the directories, parents first. Returns those that neither were created nor existed, with the server's
    /// refusals.
    ///
    /// # Errors
    /// When the connection fails.
    pub fn make_directories(
        &mut self,
        paths: &[PathBuf],
    ) -> Result<Vec<(PathBuf, ClientError)>, ClientError> {
        let mut refused = Vec::new();
        for path in paths {
            let command = Command::Mkd(path.clone());
            // The name may be one that FTP cannot carry.
            if let Err(error) = command.encode() {
                refused.push((path.clone(), error.into()));
                continue;
            }
            let failure = self.with_session(|session| {
                let reply = session.ask(&command)?;
                // A refusal does not tell whether the directory exists already.
                let there = reply.is_completion() || is_directory(session, path)?;
                Ok((!there).then(|| ClientError::refused(&command, &reply)))
            })?;
            refused.extend(failure.map(|error| (path.clone(), error)));
        }
        Ok(refused)
    }

    /// Puts `file`; it appears as `remote`.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn put(
        &mut self,
        file: &File,
        remote: &Path,
        mut watch: impl FnMut(Event<'_>),
    ) -> Result<Outcome, ClientError> {
        let settings = &self.settings.clone();
        if settings.resume
            && let Some(there) =
                self.attempts(&mut watch, |session, _, _| upload::is_there(session, file, remote, settings))?
        {
            return Ok(there);
        }
        let mut resume = settings.resume;
        self.attempts(&mut watch, |session, again, watch| {
            resume &= again != Some(false);
            upload(session, file, remote, &mut resume, settings, watch)
        })
    }

    /// Runs `work` with a session, and again after a transient failure; for listings and the like.
    ///
    /// # Errors
    /// The error of the last attempt.
    pub fn with_session<T>(
        &mut self,
        mut work: impl FnMut(&mut ClientSession) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        self.attempts(&mut |_| (), |session, _, _| work(session))
    }

    /// Runs `work` until it succeeds or the retries are used up; its argument: whether to resume, `None` the first
    /// time.
    fn attempts<T, W: FnMut(Event<'_>)>(
        &mut self,
        watch: &mut W,
        mut work: impl FnMut(&mut ClientSession, Option<bool>, &mut W) -> Result<T, ClientError>,
    ) -> Result<T, ClientError> {
        let (mut left, mut wait, mut again, mut anew) =
            (self.settings.retries, self.settings.retry_wait, None, false);
        let mut lasting = false;
        // The choice of TLS before that of TLS 1.2, and the refusal that led to it.
        let mut former = None;
        loop {
            let mut done = self.session().and_then(|session| work(session, again, watch));
            // The server has no TLS 1.2, so its refusal had another cause.
            if matches!(done, Err(ClientError::Tls(_)))
                && let Some((security, refusal)) = former.take()
            {
                self.access.security = security;
                done = Err(refusal);
            }
            match done {
                Err(ClientError::TailDiffers | ClientError::CannotResume { .. }) if !anew => {
                    watch(Event::BegunAnew);
                    (anew, again) = (true, Some(false));
                }
                Err(error) if !lasting && self.wants_resumption(&error) => {
                    let older = self.access.security.with_lasting_sessions();
                    former = Some((std::mem::replace(&mut self.access.security, older), error));
                    if let Some(session) = self.session.take() {
                        session.close();
                    }
                    (lasting, again) = (true, Some(true));
                }
                Err(error) if error.is_transient() && left > 0 => {
                    left -= 1;
                    watch(Event::Retry { error: &error, wait });
                    self.pause(wait)?;
                    wait = (wait * 2).min(MAX_RETRY_WAIT);
                    again = Some(true);
                }
                done => return done,
            }
        }
    }

    /// Whether a data connection may have been refused because it did not resume the TLS session: tickets ran out.
    fn wants_resumption(&self, error: &ClientError) -> bool {
        let encrypted = self.session.as_ref().is_some_and(|session| session.server().tls);
        encrypted && matches!(error, ClientError::Refused { reply, .. } if matches!(reply.code, 425 | 522))
    }

    fn pause(&mut self, wait: Duration) -> Result<(), ClientError> {
        let failed = |source| ClientError::Resources { source };
        self.access.cancel.pause(Instant::now() + wait).map_err(failed)?;
        if self.access.cancel.is_cancelled() { Err(ClientError::Interrupted) } else { Ok(()) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(session) = self.session.take() {
            if self.access.cancel.is_cancelled() { session.abort() } else { session.close() }
        }
    }
}

/// A sink that remembers whether bytes were written to it.
struct Noticed<'a> {
    sink: &'a mut (dyn Sink + Send),
    taken: bool,
}

impl Sink for Noticed<'_> {
    fn take(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.taken = true;
        self.sink.take(bytes)
    }
}
