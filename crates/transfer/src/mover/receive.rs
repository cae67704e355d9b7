//! The receiving end: reads as fast as data comes, and lets the tuner look every few milliseconds.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_policy::{Bytes, Micros};
use bufwise_socket::info::TcpInfo;
use bufwise_socket::options;
use nix::poll::PollFlags;
use twox_hash::XxHash3_128;

use super::{Bounds, CHUNK, Checksum, MoveError, PROGRESS, Step, Tuner};
use crate::probe::Measured;
use crate::wake;

/// Time between two looks of the tuner: a fifth of SOBAS's shortest rate window (10 ms). A look costs some
/// microseconds.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// Bytes that make a read worth a wake-up; a look reads what is there in any case.
const READ_AT_LEAST: Bytes = Bytes(16 << 10);

/// A file that arrived.
#[derive(Clone, Debug)]
pub struct Received {
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub checksum: Checksum,
    /// From the connection to its end.
    pub elapsed: Duration,
    /// When the connection was there, on the timeline's clock.
    pub began: Micros,
    /// What the tuner saw and decided.
    pub timeline: Vec<Step>,
    /// What the probes measured in the end; `None` without probes.
    pub measured: Option<Measured>,
    /// What the kernel knew of the connection in the end.
    pub info: TcpInfo,
}

/// Receives a file over `stream` and writes it to `into`, tuned by `tuner`.
///
/// The file ends with the stream; with `expected` its length must be that. `progress` hears the bytes
/// received, some ten times a second. `into` should not block for long: while it does, nothing is read.
///
/// # Errors
/// As [`MoveError`] says; what had been received is then in `into`.
pub fn receive(
    stream: TcpStream,
    into: &mut impl Write,
    tuner: &mut Tuner,
    expected: Option<u64>,
    bounds: Bounds,
    progress: impl FnMut(u64),
) -> Result<Received, MoveError> {
    let start = Instant::now();
    let began = tuner.clock();
    tuner.attach(&stream)?;
    options::set_receive_low_water(&stream, READ_AT_LEAST)?;
    stream.set_nonblocking(true).map_err(|source| MoveError::Connection { bytes: 0, source })?;
    let mut transfer = Transfer { stream, tuner, sum: XxHash3_128::new(), bytes: 0, last_read: 0, progress };
    transfer.run(into, expected, bounds)?;
    let info = options::tcp_info(&transfer.stream)?;
    // The clock stops at the last byte; the sender learns that we have it from the connection's end.
    let elapsed = start.elapsed();
    Ok(Received {
        bytes: transfer.bytes,
        checksum: Checksum(transfer.sum.finish_128()),
        elapsed,
        began,
        timeline: transfer.tuner.timeline().to_vec(),
        measured: transfer.tuner.measured(),
        info,
    })
}

struct Transfer<'a, P> {
    stream: TcpStream,
    tuner: &'a mut Tuner,
    sum: XxHash3_128,
    bytes: u64,
    /// Bytes that the last read returned.
    last_read: usize,
    progress: P,
}

impl<P: FnMut(u64)> Transfer<'_, P> {
    fn run(&mut self, into: &mut impl Write, expected: Option<u64>, bounds: Bounds) -> Result<(), MoveError> {
        let mut buffer = vec![0; CHUNK];
        let mut last = Instant::now();
        let (mut next_look, mut next_word) = (last, last + PROGRESS);
        loop {
            let wait = next_look.min(bounds.end(last));
            let [ready] = wake::until([(self.stream.as_fd(), PollFlags::POLLIN)], wait)
                .map_err(|source| MoveError::Connection { bytes: self.bytes, source })?;
            let now = Instant::now();
            if ready || now >= next_look {
                match self.read(&mut buffer, into)? {
                    Some(0) => break,
                    Some(_) => last = now,
                    None => {}
                }
                if let Some(expected) = expected.filter(|expected| self.bytes > *expected) {
                    return Err(MoveError::Length { expected, received: self.bytes });
                }
            }
            if now >= next_look {
                self.tuner.observe(&self.stream, self.last_read)?;
                next_look = now + LOOK_EVERY;
            }
            if now >= next_word {
                (self.progress)(self.bytes);
                next_word = now + PROGRESS;
            }
            bounds.check(last, now)?;
        }
        (self.progress)(self.bytes);
        match expected {
            Some(expected) if expected != self.bytes => {
                Err(MoveError::Length { expected, received: self.bytes })
            }
            _ => Ok(()),
        }
    }

    /// Reads once and passes it on; 0 at the end of the stream, `None` if nothing was there.
    fn read(&mut self, buffer: &mut [u8], into: &mut impl Write) -> Result<Option<usize>, MoveError> {
        match self.stream.read(buffer) {
            Ok(len) => {
                self.last_read = len;
                self.sum.write(&buffer[..len]);
                into.write_all(&buffer[..len]).map_err(|source| MoveError::File {
                    operation: "writing",
                    bytes: self.bytes,
                    source,
                })?;
                self.bytes += len as u64;
                Ok(Some(len))
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => {
                Ok(None)
            }
            Err(source) => Err(MoveError::Connection { bytes: self.bytes, source }),
        }
    }
}
