//! The receiving end: reads as fast as data comes, and has the tuner sample the connection every few milliseconds.

use std::io;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_socket::info::TcpInfo;
use bufwise_socket::options;
use bufwise_units::Bytes;
use nix::poll::PollFlags;

use crate::bucket::Bucket;
use crate::copy::{Copier, CopyError, Moved};
use crate::error::MoveError;
use crate::hash::Hasher;
use crate::job::{Job, Pace, sample_after};
use crate::probe::Measured;
use crate::progress::{End, INTERVAL, Monitor, Progress, Report};
use crate::sink::Sink;
use crate::stream::Stream;
use crate::tuner::{Reading, Tuner};

/// If the connection breaks after the file has kept it waiting for longer than this, the error names the file as a possible cause.
const LONG_STALL: Duration = Duration::from_secs(5);
/// After this time without a byte the connection is quiet: samples and probes are rare until its next byte. The time is longer than
/// most round trips and retransmissions, so that connections which wait for these are sampled normally.
const QUIET: Duration = Duration::from_secs(1);

/// Result of a received file.
#[derive(Clone, Debug)]
pub struct Received {
    /// The report of the transfer.
    pub report: Report,
    /// The probes' measurements at the end; `None` without probes.
    pub measured: Option<Measured>,
    /// `TCP_INFO` of the connection at the end.
    pub info: TcpInfo,
}

/// Receives a file over `stream` and writes it to `into`, tuned by `tuner`.
///
/// The file ends with the stream; if `expected` is given, its length must be that. `on_progress` is called some ten
/// times a second, less often while no byte comes, whenever there is a request to send, and at the end, also of a transfer
/// that fails. `into` should not block for long: no byte is read meanwhile.
///
/// # Errors
/// Any [`MoveError`]; the bytes received before are then in `into`.
pub fn receive(
    stream: impl Into<Stream>,
    into: &mut dyn Sink,
    tuner: &mut Tuner,
    expected: Option<u64>,
    job: &Job,
    on_progress: impl FnMut(&Progress),
) -> Result<Received, MoveError> {
    let stream = stream.into();
    let start = Instant::now();
    stream.set_nonblocking(true).map_err(|source| MoveError::Connection {
        bytes: 0,
        source,
        stalled: None,
    })?;
    let first_request = tuner.attach(stream.tcp(), job.limit)?;
    let reading = tuner.reading();
    let mut transfer = Transfer {
        monitor: Monitor::new(End::Receiver, stream.tcp())?,
        copier: Copier::new(&stream, into, job.hash.map(Hasher::new)),
        stream,
        tuner,
        job,
        expected,
        bucket: job.limit.map(|rate| Bucket::new(rate, start)),
        reading,
        bytes: 0,
        largest_read: 0,
        last: start,
        quiet: false,
        pace: Pace::new(start),
        next_sample: start,
        next_word: start + INTERVAL,
        on_progress,
    };
    transfer.read_as_told()?;
    if first_request.is_some() {
        transfer.word(first_request)?;
    }
    let ended = transfer.run(into);
    // Write the bytes already read, even if the rest never comes.
    let written = transfer.copier.finish(into).map_err(|error| transfer.copy_failed(error));
    if let Err(error) = written.and(ended) {
        // Report the bytes moved. The transfer's own error is returned, whatever this report returns.
        let _unsampled = transfer.word(None);
        return Err(error);
    }
    // The time ends at the last byte; closing the connection tells the sender that we have everything.
    transfer.end(start.elapsed())
}

struct Transfer<'a, P> {
    stream: Stream,
    tuner: &'a mut Tuner,
    job: &'a Job,
    expected: Option<u64>,
    monitor: Monitor,
    copier: Copier,
    bucket: Option<Bucket>,
    reading: Reading,
    bytes: u64,
    /// Bytes of the largest read since the last sample.
    largest_read: usize,
    /// When a byte last came, or our own limit last kept one waiting.
    last: Instant,
    /// No byte has come for [`QUIET`].
    quiet: bool,
    pace: Pace,
    next_sample: Instant,
    next_word: Instant,
    on_progress: P,
}

impl<P: FnMut(&Progress)> Transfer<'_, P> {
    fn run(&mut self, into: &mut dyn Sink) -> Result<(), MoveError> {
        loop {
            if self.job.cancel.is_cancelled() {
                return Err(MoveError::Cancelled { bytes: self.bytes });
            }
            let now = Instant::now();
            let room = self.bucket.as_mut().map_or(usize::MAX, |bucket| bucket.allows(now));
            let ready = self.wait(room)?;
            if room == 0 {
                // Waiting for our own limit does not count against the peer.
                self.last = Instant::now();
            }
            if room > 0 && (ready || Instant::now() >= self.next_sample) && !self.read(into, room)? {
                return self.complete();
            }
            let now = Instant::now();
            self.fall_quiet(now)?;
            if now >= self.next_sample {
                self.sample()?;
                self.next_sample = now + self.spaced(self.reading.sample_every, now);
            }
            if now >= self.next_word {
                self.word(None)?;
                self.next_word = now + self.spaced(INTERVAL, now);
            }
            self.job.bounds.check(self.last, now)?;
            // Time spent on the file does not count against the peer.
            let waited = now.checked_sub(self.copier.file_time).unwrap_or(now);
            self.pace.check(&self.job.bounds, waited, || Ok(self.bytes))?;
        }
    }

    /// Notes whether the connection is quiet.
    fn fall_quiet(&mut self, now: Instant) -> Result<(), MoveError> {
        let quiet = now.duration_since(self.last) >= QUIET;
        if quiet != self.quiet {
            self.quiet = quiet;
            (self.next_sample, self.next_word) = (now, now);
            self.tuner.rest(quiet);
            self.read_as_told()?;
        }
        Ok(())
    }

    /// Returns the time from `now` to the next of events with the interval `every`, which is longer on a quiet
    /// connection.
    fn spaced(&self, every: Duration, now: Instant) -> Duration {
        if self.quiet { sample_after(every, now.duration_since(self.last)) } else { every }
    }

    /// Waits for data, for the next sample, or until the rate limit allows a read; returns whether there is data.
    fn wait(&mut self, room: usize) -> Result<bool, MoveError> {
        if room > 0 && self.stream.pending() {
            return Ok(true);
        }
        let wait = self.next_sample.min(self.job.bounds.end(self.last));
        let waited = match &self.bucket {
            Some(bucket) if room == 0 => self.job.cancel.pause(wait.min(bucket.opens())).map(|()| false),
            _ => {
                let events = self.stream.events(PollFlags::POLLIN);
                self.job.cancel.wait(self.stream.as_fd(), events, wait)
            }
        };
        waited.map_err(|source| self.broken(source))
    }

    /// Reads once and passes it on; false at the end of the stream.
    fn read(&mut self, into: &mut dyn Sink, room: usize) -> Result<bool, MoveError> {
        match self.copier.step(&mut self.stream, into, room) {
            Ok(Moved::Bytes(len)) => {
                self.bytes += len as u64;
                self.largest_read = self.largest_read.max(len);
                // Taken after the write: time spent on the file does not count against the peer.
                self.last = Instant::now();
                if let Some(bucket) = &mut self.bucket {
                    bucket.spend(len);
                }
                match self.expected {
                    Some(expected) if self.bytes > expected => {
                        Err(MoveError::Length { expected, received: self.bytes })
                    }
                    _ => Ok(true),
                }
            }
            Ok(Moved::Nothing) => Ok(true),
            Ok(Moved::End) => Ok(false),
            Err(CopyError::Stream(error)) if self.cut(&error) && self.ends_here() => Ok(false),
            Err(error) => Err(self.copy_failed(error)),
        }
    }

    /// Whether this is an unannounced end of an encrypted stream.
    fn cut(&self, error: &io::Error) -> bool {
        self.stream.is_tls() && error.kind() == io::ErrorKind::UnexpectedEof
    }

    /// Whether an unannounced end is accepted as the end of the file.
    fn ends_here(&self) -> bool {
        self.job.unannounced_end || self.expected == Some(self.bytes)
    }

    fn complete(&self) -> Result<(), MoveError> {
        match self.expected {
            Some(expected) if expected != self.bytes => {
                Err(MoveError::Length { expected, received: self.bytes })
            }
            _ => Ok(()),
        }
    }

    fn sample(&mut self) -> Result<(), MoveError> {
        let request = self.tuner.observe(self.stream.tcp(), std::mem::take(&mut self.largest_read))?;
        let reading = self.tuner.reading();
        if reading != self.reading {
            self.reading = reading;
            self.read_as_told()?;
        }
        if request.is_some() {
            self.word(request)?;
        }
        Ok(())
    }

    /// Sets up the socket and the buffers for the way of reading that the policy needs.
    fn read_as_told(&mut self) -> Result<(), MoveError> {
        let low_water = if self.quiet { Bytes(1) } else { self.reading.low_water };
        options::set_receive_low_water(self.stream.tcp(), low_water)?;
        if let Some((kernel, application)) = self.reading.published {
            self.copier.publish(kernel, application);
        }
        Ok(())
    }

    /// Reports progress to the caller.
    fn word(&mut self, buffer_request: Option<Bytes>) -> Result<(), MoveError> {
        let seen = self.monitor.sample(self.stream.tcp(), self.bytes, self.copier.file_time)?;
        let sobas_state = self.tuner.state();
        (self.on_progress)(&Progress { buffer_request, sobas_state, ..seen });
        Ok(())
    }

    fn broken(&self, source: io::Error) -> MoveError {
        let stalled = Some(self.copier.stalled).filter(|time| *time >= LONG_STALL);
        MoveError::Connection { bytes: self.bytes, source, stalled }
    }

    fn copy_failed(&self, error: CopyError) -> MoveError {
        match error {
            CopyError::Sink(source) => MoveError::File { operation: "writing", bytes: self.bytes, source },
            CopyError::Stream(error) if self.cut(&error) => MoveError::Truncated { bytes: self.bytes },
            CopyError::Stream(source) => self.broken(source),
        }
    }

    fn end(mut self, elapsed: Duration) -> Result<Received, MoveError> {
        self.word(None)?;
        // Only for the sender's sake: all bytes are here already.
        let _told = self.stream.end_writing();
        let digest = self.copier.digest();
        Ok(Received {
            report: self.monitor.report(elapsed, digest),
            measured: self.tuner.measured(),
            info: *self.monitor.info(),
        })
    }
}
