//! The work of the data thread: sends a file, receives a file, sends a listing.
//!
//! Properties kept: a received file gets its name only when all of it has come and the client is still connected, as
//! far as that can be known ([`super::presence`]); the reply's code tells the kind of an error, the log its cause.

use std::cell::Cell;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use bufwise_mover::probe::{Prober, Responder};
use bufwise_mover::stream::Stream;
use bufwise_mover::tls::{ServerTls, TlsError};
use bufwise_mover::{Bounds, BufferGrants, FilePart, Job, MoveError, Report, Share, Sockets, Source, Tuner};
use bufwise_policy::BuildOptions;

use super::budget::BudgetGrant;
use super::data::{DataError, Way};
use super::error::StoreError;
use super::event::{Event, Transfer};
use super::listing::Listing;
use super::presence::Presence;
use super::running::{Link, Outcome};
use super::shared::Shared;
use super::upload::Upload;
use crate::wire::Reply;

/// How a transfer gets its data connection.
pub(super) struct Channel {
    pub(super) server: Arc<Shared>,
    pub(super) way: Way,
    /// The options, for a connection that this end makes.
    pub(super) sockets: Sockets,
    pub(super) peer: IpAddr,
    /// TLS, if the connection is encrypted.
    pub(super) tls: Option<ServerTls>,
}

/// Why a transfer failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Data(#[from] DataError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("the data connection does not continue the control connection's TLS session")]
    NotReused,
    #[error(transparent)]
    Move(#[from] MoveError),
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("the client disconnected before the upload was complete")]
    Gone,
}

impl Failure {
    fn reply(&self) -> Reply {
        let (code, text) = match self {
            Self::Data(DataError::Cancelled)
            | Self::Tls(TlsError::Cancelled { .. })
            | Self::Move(MoveError::Cancelled { .. }) => (426, "The transfer was aborted.".to_owned()),
            Self::Data(_) => (425, "The data connection could not be made.".to_owned()),
            Self::Tls(_) => (425, "The TLS handshake on the data connection failed.".to_owned()),
            Self::NotReused => (425, "The data connection must continue the TLS session.".to_owned()),
            Self::Move(MoveError::File { .. }) => (451, "The file could not be read.".to_owned()),
            Self::Move(MoveError::Shrunk { .. }) => {
                (451, "The file became shorter while it was sent.".to_owned())
            }
            Self::Move(MoveError::Idle { .. } | MoveError::Deadline) => {
                (426, "No data for too long.".to_owned())
            }
            Self::Move(MoveError::Length { .. }) => {
                (426, "The number of bytes is not the announced one.".to_owned())
            }
            Self::Move(_) | Self::Gone => (426, "The data connection broke.".to_owned()),
            Self::Store(error) => (error.code(), error.to_string()),
        };
        Reply::single(code, text)
    }
}

impl Channel {
    fn open(self, link: &Link) -> Result<Stream, Failure> {
        let times = &self.server.config.times;
        let tcp = self.way.open(&self.sockets, self.peer, times.connect, &link.cancel)?;
        let Some(tls) = self.tls else { return Ok(tcp.into()) };
        let stream = tls.accept(tcp, times.answer, &link.cancel)?;
        let must_continue = self.server.admission.now().tls.as_ref().is_some_and(|tls| tls.require_reuse);
        if must_continue && !stream.resumed() {
            return Err(Failure::NotReused);
        }
        Ok(stream.into())
    }

    fn job(&self, link: &Link) -> Job {
        let config = &self.server.config;
        Job {
            bounds: Bounds { idle: config.times.stall, ..Bounds::default() },
            limit: config.tuning.rate,
            cancel: link.cancel.clone(),
            ..Job::default()
        }
    }
}

/// Sends a part of a file.
pub(super) fn send(
    channel: Channel,
    link: &Link,
    part: Source<'_>,
    grants: &BufferGrants,
    responder: Option<&Responder>,
    record: Transfer,
) -> Outcome {
    let (start, moved) = (Instant::now(), Cell::new(0));
    let done = (|| {
        let job = channel.job(link);
        let stream = channel.open(link)?;
        let sent = bufwise_mover::send(part, stream, grants, responder, &job, |progress| {
            moved.set(progress.bytes);
            link.progress(progress);
        })?;
        Ok(sent.report)
    })();
    finish(done, moved.get(), Transfer { elapsed: start.elapsed(), ..record })
}

/// The length of a file, as the client announced it (ALLO).
#[derive(Clone, Copy, Debug)]
pub(super) struct Announced {
    pub(super) bytes: Option<u64>,
    /// Length of the bytes that will come, as clients of bufwise announce it. Other clients may announce a rounded
    /// number, or the length of the whole file when they resume one.
    pub(super) is_exact: bool,
}

impl Announced {
    fn expected(&self) -> Option<u64> {
        self.bytes.filter(|_| self.is_exact)
    }

    /// Whether `received` bytes from `offset` on are as many as announced, for the part or for the whole file.
    fn is_met(&self, offset: u64, received: u64) -> bool {
        self.bytes.is_some_and(|bytes| bytes == received || bytes == offset + received)
    }
}

/// A file to receive.
pub(super) struct Incoming {
    pub(super) upload: Upload,
    pub(super) prober: Option<Prober>,
    pub(super) length: Announced,
    /// Its share of the memory for receive buffers.
    pub(super) buffer: BudgetGrant,
}

/// Receives a file.
pub(super) fn receive(
    channel: Channel,
    link: &Link,
    client: &Presence,
    incoming: Incoming,
    record: Transfer,
) -> Outcome {
    let Incoming { mut upload, prober, length, mut buffer } = incoming;
    let (start, moved, over) = (Instant::now(), Cell::new(0), Cell::new(None));
    let (tuning, hangup) = (&channel.server.config.tuning, channel.server.config.times.hangup);
    let policy = tuning.policy;
    let prober = prober.filter(|_| policy.probes());
    let options = BuildOptions {
        max_window: tuning.largest(),
        continuous: true,
        pacing: prober.is_some(),
        ..BuildOptions::default()
    };
    let done = (|| {
        let job = channel.job(link);
        let share = Share::new(move |wanted, there| buffer.ask(wanted, there));
        let mut tuner = Tuner::new(policy, options, prober).within(share);
        tuner.prepare();
        let offset = upload.offset();
        let Some(file) = upload.file(&link.cancel)? else { return Err(DataError::Cancelled.into()) };
        let stream = channel.open(link)?;
        // The end of an encrypted stream counts only if the client announced it (close_notify of TLS).
        let ends_knowingly = stream.is_tls();
        let mut sink = FilePart::new(file, offset);
        let received =
            bufwise_mover::receive(stream, &mut sink, &mut tuner, length.expected(), &job, |progress| {
                moved.set(progress.bytes);
                link.progress(progress);
            });
        let ended = Instant::now();
        over.set(Some(ended));
        let received = received.map_err(|error| match error {
            MoveError::File { source, .. } => Failure::Store(upload.note(source.into())),
            other => Failure::Move(other),
        })?;
        // Give the buffer's memory back now; the rest may take long.
        drop(tuner);
        let is_whole = ends_knowingly || length.is_met(offset, received.report.bytes);
        let until = if is_whole { ended } else { ended + client.timeout(hangup) };
        if upload.finish(|| client.lasts(until, link))? { Ok(received.report) } else { Err(Failure::Gone) }
    })();
    // The time ends with the data: it leaves out the disk, and the wait for the end of the control connection.
    let elapsed = over.get().unwrap_or_else(Instant::now).duration_since(start);
    finish(done, moved.get(), Transfer { policy: Some(policy), elapsed, ..record })
}

/// Returns the outcome of a file's transfer; `moved`: the bytes that it last reported, which a transfer does also when it fails.
fn finish(done: Result<Report, Failure>, moved: u64, record: Transfer) -> Outcome {
    let (reply, bytes, failure, report) = match done {
        Ok(report) => (Reply::single(226, "The transfer is complete."), report.bytes, None, Some(report)),
        Err(failure) => (failure.reply(), moved, Some(failure.to_string()), None),
    };
    let record = Transfer { bytes, failure, report, ..record };
    Outcome { reply, event: Some(Event::Transfer(Box::new(record))) }
}

/// Sends a directory listing.
pub(super) fn list(channel: Channel, link: &Link, mut listing: Listing, grants: &BufferGrants) -> Outcome {
    let done = (|| {
        let job = Job { limit: None, ..channel.job(link) };
        let stream = channel.open(link)?;
        bufwise_mover::send(Source::Reader(&mut listing), stream, grants, None, &job, |_| {})?;
        Ok::<(), Failure>(())
    })();
    let reply = match done {
        Ok(()) => Reply::single(226, "The listing is complete."),
        Err(failure) => failure.reply(),
    };
    Outcome { reply, event: None }
}
