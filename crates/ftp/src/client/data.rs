//! Reads short data without the mover: listings, and the end of a file for comparison.
//!
//! Properties kept: every wait is bounded by the job's times and its cancellation, memory by the size asked for.

use std::io::{self, Read};
use std::os::fd::AsFd;
use std::time::Instant;

use bufwise_mover::stream::Stream;
use bufwise_mover::{Job, MoveError, Pace};
use nix::poll::PollFlags;

/// Bytes read at once.
const CHUNK: usize = 64 << 10;

/// Whether the stream continues with exactly `bytes`; reads them.
///
/// # Errors
/// [`MoveError::Length`] for a stream that ends before, with the same bytes until then.
pub(super) fn same(stream: &mut Stream, bytes: &[u8], job: &Job) -> Result<bool, MoveError> {
    let mut reader = Reader::new(stream, job)?;
    let mut theirs = vec![0; bytes.len()];
    let mut done = 0;
    while done < theirs.len() {
        match reader.read(&mut theirs[done..])? {
            0 if theirs[..done] == bytes[..done] => {
                return Err(MoveError::Length { expected: bytes.len() as u64, received: done as u64 });
            }
            0 => return Ok(false),
            len => done += len,
        }
    }
    Ok(theirs == bytes)
}

/// Returns the whole stream, at most `most` bytes; `None` if it has more. After `most` bytes TLS may end without notice.
pub(super) fn all(stream: &mut Stream, most: usize, job: &Job) -> Result<Option<Vec<u8>>, MoveError> {
    let mut reader = Reader::new(stream, job)?;
    let mut bytes = Vec::new();
    let mut chunk = vec![0; CHUNK];
    loop {
        match reader.read(&mut chunk) {
            Err(MoveError::Connection { source, .. })
                if source.kind() == io::ErrorKind::UnexpectedEof && bytes.len() == most =>
            {
                return Ok(Some(bytes));
            }
            Ok(0) => return Ok(Some(bytes)),
            Ok(len) if bytes.len() + len > most => return Ok(None),
            Ok(len) => bytes.extend_from_slice(&chunk[..len]),
            Err(error) => return Err(error),
        }
    }
}

struct Reader<'a> {
    stream: &'a mut Stream,
    job: &'a Job,
    bytes: u64,
    last: Instant,
    pace: Pace,
}

impl<'a> Reader<'a> {
    fn new(stream: &'a mut Stream, job: &'a Job) -> Result<Self, MoveError> {
        stream.set_nonblocking(true).map_err(|source| broken(0, source))?;
        let now = Instant::now();
        Ok(Self { stream, job, bytes: 0, last: now, pace: Pace::new(now) })
    }

    /// Waits for bytes and reads them; 0 at the stream's end.
    fn read(&mut self, into: &mut [u8]) -> Result<usize, MoveError> {
        loop {
            match self.stream.read(into) {
                Ok(len) => {
                    self.bytes += len as u64;
                    self.last = Instant::now();
                    return Ok(len);
                }
                Err(error)
                    if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) =>
                {
                    self.wait()?;
                }
                Err(source) => return Err(broken(self.bytes, source)),
            }
        }
    }

    fn wait(&mut self) -> Result<(), MoveError> {
        if self.job.cancel.is_cancelled() {
            return Err(MoveError::Cancelled { bytes: self.bytes });
        }
        let now = Instant::now();
        self.job.bounds.check(self.last, now)?;
        self.pace.check(&self.job.bounds, now, || Ok(self.bytes))?;
        if self.stream.pending() {
            return Ok(());
        }
        let until = self.job.bounds.end(self.last);
        let events = self.stream.events(PollFlags::POLLIN);
        let waited = self.job.cancel.wait(self.stream.as_fd(), events, until);
        waited.map(drop).map_err(|source| broken(self.bytes, source))
    }
}

fn broken(bytes: u64, source: io::Error) -> MoveError {
    MoveError::Connection { bytes, source, stalled: None }
}
