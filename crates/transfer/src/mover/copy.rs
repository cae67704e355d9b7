//! From the socket to the file: how received bytes are taken.
//!
//! Source: 001, section 4.1 for the published way: every read asks for a whole kernel buffer, into an
//! application buffer of twice the size, from which the file is written: one copy more than needed.
//! We, for everything else: what a read returns is written to the file from where it was read to. The buffer
//! begins small and grows while reads fill it.
//! Properties kept: bytes reach the sink in order, once; what was read but not written is written by
//! [`Copier::finish`]; the time that the sink takes is known.

use std::io::{self, Read};
use std::time::{Duration, Instant};

use bufwise_policy::Bytes;

use super::Sink;
use crate::hash::{Digest, Hasher};
use crate::stream::Stream;

/// First buffer: a short file needs no more.
const SMALLEST: usize = 64 << 10;
/// Largest buffer; beyond it nothing is gained, and the processor's cache is lost.
const LARGEST: usize = 512 << 10;

/// What one read brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Moved {
    /// So many bytes.
    Bytes(usize),
    /// Nothing is there.
    Nothing,
    /// The stream has ended.
    End,
}

/// Why a piece could not be moved.
#[derive(Debug)]
pub(super) enum CopyError {
    /// The connection.
    Stream(io::Error),
    /// The file.
    Sink(io::Error),
}

/// Takes received bytes to a sink.
#[derive(Debug)]
pub(super) struct Copier {
    buffer: Vec<u8>,
    /// The published way: the application's buffer, and how much of it may fill.
    staged: Option<(Vec<u8>, usize)>,
    hasher: Option<Hasher>,
    /// Time that the sink took.
    pub(super) file_time: Duration,
    /// The longest that it took at once.
    pub(super) stalled: Duration,
}

impl Copier {
    pub(super) fn new(hasher: Option<Hasher>) -> Self {
        let (file_time, stalled) = (Duration::ZERO, Duration::ZERO);
        Self { buffer: vec![0; SMALLEST], staged: None, hasher, file_time, stalled }
    }

    /// From now on as published, for a kernel buffer of this size.
    pub(super) fn publish(&mut self, kernel: Bytes, application: Bytes) {
        let size = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
        self.buffer.resize(size(kernel).max(1), 0);
        let full = size(application).saturating_sub(size(kernel)).max(1);
        let mut staged = self.staged.take().map_or_else(Vec::new, |(staged, _)| staged);
        staged.reserve_exact(size(application).saturating_sub(staged.len()));
        self.staged = Some((staged, full));
    }

    /// Reads once, `at_most` so many bytes, and passes them on.
    pub(super) fn step(
        &mut self,
        stream: &mut Stream,
        into: &mut dyn Sink,
        at_most: usize,
    ) -> Result<Moved, CopyError> {
        let room = self.buffer.len().min(at_most);
        let len = match stream.read(&mut self.buffer[..room]) {
            Ok(0) => return Ok(Moved::End),
            Ok(len) => len,
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                return Ok(Moved::Nothing);
            }
            Err(error) => return Err(CopyError::Stream(error)),
        };
        if let Some(hasher) = &mut self.hasher {
            hasher.update(&self.buffer[..len]);
        }
        let Some((mut staged, full)) = self.staged.take() else {
            let begun = Instant::now();
            let taken = into.take(&self.buffer[..len]);
            self.spent(begun.elapsed());
            taken.map_err(CopyError::Sink)?;
            if len == self.buffer.len() && len < LARGEST {
                self.buffer.resize(2 * len, 0);
            }
            return Ok(Moved::Bytes(len));
        };
        staged.extend_from_slice(&self.buffer[..len]);
        let due = staged.len() >= full;
        self.staged = Some((staged, full));
        if due {
            self.unload(into).map_err(CopyError::Sink)?;
        }
        Ok(Moved::Bytes(len))
    }

    /// Writes what is left to the sink.
    pub(super) fn finish(&mut self, into: &mut dyn Sink) -> io::Result<()> {
        self.unload(into)
    }

    /// The sum of all bytes, if one was wanted.
    pub(super) fn digest(self) -> Option<Digest> {
        self.hasher.map(Hasher::finish)
    }

    fn unload(&mut self, into: &mut dyn Sink) -> io::Result<()> {
        let Some((mut staged, full)) = self.staged.take() else { return Ok(()) };
        let begun = Instant::now();
        let taken = into.take(&staged);
        self.spent(begun.elapsed());
        staged.clear();
        self.staged = Some((staged, full));
        taken
    }

    fn spent(&mut self, time: Duration) {
        self.file_time += time;
        self.stalled = self.stalled.max(time);
    }
}
