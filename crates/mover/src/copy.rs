//! Copies received bytes from the socket to the file.
//!
//! The published way (Feng 2002 (drsFTP), section 4.1): every read asks for a whole kernel buffer, into an application
//! buffer of twice the size, from which the file is written. This costs one copy more than needed.
//! All other policies: the bytes go from the socket to the file within the kernel. If they have to be summed or decrypted, each
//! read is instead written to the file from its own buffer, which begins small and grows while reads fill it.
//! Properties kept: bytes reach the sink in order, once; [`Copier::finish`] writes bytes that were read but not
//! written; urgent data neither end a stream nor hold it up; the time that the sink takes is measured.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_units::Bytes;

use crate::hash::{Digest, Hasher};
use crate::pipe::Pipe;
use crate::sink::Sink;
use crate::stream::Stream;

/// First buffer: enough for a short file.
const SMALLEST: usize = 64 << 10;
/// Largest buffer: a larger one is not faster, and does not fit the processor's cache.
const LARGEST: usize = 512 << 10;
/// Bytes read at once where splice(2) stops.
const FEW: usize = 4 << 10;

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Moved {
    /// This many bytes were moved.
    Bytes(usize),
    /// No bytes are waiting.
    Nothing,
    /// The stream has ended.
    End,
}

/// Why a piece could not be moved.
#[derive(Debug)]
pub(crate) enum CopyError {
    /// Reading the connection failed.
    Stream(io::Error),
    /// Writing the file failed.
    Sink(io::Error),
}

/// Takes received bytes to a sink.
#[derive(Debug)]
pub(crate) struct Copier {
    buffer: Vec<u8>,
    /// The pipe for copies within the kernel, as long as they work.
    pipe: Option<Pipe>,
    /// The published way: the application's buffer, and the bytes of it that a read may fill.
    staged: Option<(Vec<u8>, usize)>,
    hasher: Option<Hasher>,
    /// Time that the sink took.
    pub(crate) file_time: Duration,
    /// The longest single call to the sink.
    pub(crate) stalled: Duration,
}

impl Copier {
    /// Takes bytes from `stream` to `into`, summing them in `hasher` if there is one.
    pub(crate) fn new(stream: &Stream, into: &dyn Sink, hasher: Option<Hasher>) -> Self {
        let untouched = hasher.is_none() && !stream.is_tls() && into.place().is_some();
        // Without a pipe, for lack of descriptors or of pipe pages, bytes go by read and write.
        let pipe = untouched.then(Pipe::new).and_then(Result::ok);
        let (file_time, stalled) = (Duration::ZERO, Duration::ZERO);
        Self { buffer: Vec::new(), pipe, staged: None, hasher, file_time, stalled }
    }

    /// Switches to the published way, for a kernel buffer of this size.
    pub(crate) fn publish(&mut self, kernel: Bytes, application: Bytes) {
        let size = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
        self.pipe = None;
        self.buffer.resize(size(kernel).max(1), 0);
        let full = size(application).saturating_sub(size(kernel)).max(1);
        let mut staged = self.staged.take().map_or_else(Vec::new, |(staged, _)| staged);
        staged.reserve_exact(size(application).saturating_sub(staged.len()));
        self.staged = Some((staged, full));
    }

    /// Reads once, at most `at_most` bytes, and passes them on.
    pub(crate) fn step(
        &mut self,
        stream: &mut Stream,
        into: &mut dyn Sink,
        at_most: usize,
    ) -> Result<Moved, CopyError> {
        if let Some(pipe) = self.pipe.take() {
            return self.step_within(pipe, stream, into, at_most);
        }
        if self.buffer.is_empty() {
            self.buffer.resize(SMALLEST, 0);
        }
        let room = self.buffer.len().min(at_most);
        let len = match moved(stream.read(&mut self.buffer[..room]))? {
            Moved::Bytes(len) => len,
            other => return Ok(other),
        };
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.buffer[..len]);
        }
        let Some((mut staged, full)) = self.staged.take() else {
            self.timed(|copier| into.take(&copier.buffer[..len]))?;
            if len == self.buffer.len() && len < LARGEST {
                self.buffer.resize(2 * len, 0);
            }
            return Ok(Moved::Bytes(len));
        };
        staged.extend_from_slice(&self.buffer[..len]);
        let due = staged.len() >= full;
        self.staged = Some((staged, full));
        if due {
            self.finish(into)?;
        }
        Ok(Moved::Bytes(len))
    }

    /// As [`Copier::step`], within the kernel.
    fn step_within(
        &mut self,
        pipe: Pipe,
        stream: &mut Stream,
        into: &mut dyn Sink,
        at_most: usize,
    ) -> Result<Moved, CopyError> {
        let filled = moved(pipe.fill(stream.as_fd(), at_most));
        let Ok(Moved::Bytes(len)) = filled else {
            self.pipe = Some(pipe);
            return filled.and_then(|_| self.step_on(stream, into, at_most));
        };
        let placed = self.timed(|_| match into.place() {
            Some((file, offset)) => pipe.write(len, file, offset),
            None => Ok(false),
        });
        if placed? {
            into.advance(len);
            self.pipe = Some(pipe);
        } else {
            // The sink takes no pages: read and write from here on.
            self.timed(|_| into.take(&pipe.empty(len)?))?;
        }
        Ok(Moved::Bytes(len))
    }

    /// Reads where splice(2) got nothing. It stops at urgent data, as at the end, also if more has come (`tcp_read_sock()`);
    /// read(2) passes them over.
    fn step_on(
        &mut self,
        stream: &mut Stream,
        into: &mut dyn Sink,
        at_most: usize,
    ) -> Result<Moved, CopyError> {
        let mut few = [0; FEW];
        let read = moved(stream.read(&mut few[..FEW.min(at_most)]))?;
        if let Moved::Bytes(len) = read {
            self.timed(|_| into.take(&few[..len]))?;
        }
        Ok(read)
    }

    /// Writes what is left to the sink.
    pub(crate) fn finish(&mut self, into: &mut dyn Sink) -> Result<(), CopyError> {
        let Some((mut staged, full)) = self.staged.take() else { return Ok(()) };
        let taken = self.timed(|_| into.take(&staged));
        staged.clear();
        self.staged = Some((staged, full));
        taken
    }

    /// Returns the sum of all bytes, if one was wanted.
    pub(crate) fn digest(self) -> Option<Digest> {
        self.hasher.map(Hasher::finish)
    }

    /// Runs a call to the sink, and counts its time.
    fn timed<T>(&mut self, work: impl FnOnce(&Self) -> io::Result<T>) -> Result<T, CopyError> {
        let begun = Instant::now();
        let done = work(self);
        let time = begun.elapsed();
        self.file_time += time;
        self.stalled = self.stalled.max(time);
        done.map_err(CopyError::Sink)
    }
}

/// Translates the result of a read from a socket that does not block.
fn moved(read: io::Result<usize>) -> Result<Moved, CopyError> {
    match read {
        Ok(0) => Ok(Moved::End),
        Ok(len) => Ok(Moved::Bytes(len)),
        Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
            Ok(Moved::Nothing)
        }
        Err(error) => Err(CopyError::Stream(error)),
    }
}
