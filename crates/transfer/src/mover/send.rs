//! The sending end: reads, sums and writes, at the rate that the receiver wishes.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_policy::Bytes;
use bufwise_socket::info::TcpInfo;
use bufwise_socket::options;
use nix::poll::PollFlags;
use twox_hash::XxHash3_128;

use super::{Bounds, CHUNK, Checksum, MoveError, PROGRESS};
use crate::probe::Responder;
use crate::wake;

/// Unsent bytes above which a tuned connection takes no more: what is in flight is the path's, the rest would
/// only wait in memory. 100 ms at 20 Mbit/s, 1 ms at 2 Gbit/s.
const UNSENT_AT_MOST: Bytes = Bytes(256 << 10);

/// A file that was sent and taken by the peer.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// Its length.
    pub bytes: u64,
    /// Its checksum.
    pub checksum: Checksum,
    /// Until the peer had closed the connection.
    pub elapsed: Duration,
    /// What the kernel knew of the connection in the end.
    pub info: TcpInfo,
}

/// Sends all of `from` over `stream`, paced as the receiver wishes of `responder`, if there is one.
///
/// Returns when the peer has closed its side too, which a receiver does when it has everything. `progress`
/// hears the bytes handed to the kernel, some ten times a second.
///
/// # Errors
/// As [`MoveError`] says.
pub fn send(
    from: &mut impl Read,
    stream: TcpStream,
    responder: Option<&Responder>,
    bounds: Bounds,
    progress: impl FnMut(u64),
) -> Result<Sent, MoveError> {
    let start = Instant::now();
    if let Some(responder) = responder {
        responder.pace(&stream)?;
        options::set_notsent_low_water(&stream, UNSENT_AT_MOST)?;
    }
    let mut transfer = Transfer {
        stream,
        bounds,
        bytes: 0,
        acknowledged: 0,
        last: start,
        next_word: start + PROGRESS,
        progress,
    };
    transfer.stream.set_nonblocking(true).map_err(|source| transfer.broken(source))?;
    let mut sum = XxHash3_128::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        let len = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(source) => {
                return Err(MoveError::File { operation: "reading", bytes: transfer.bytes, source });
            }
        };
        sum.write(&buffer[..len]);
        transfer.await_room()?;
        transfer.write_all(&buffer[..len])?;
    }
    let info = transfer.finish()?;
    Ok(Sent { bytes: transfer.bytes, checksum: Checksum(sum.finish_128()), elapsed: start.elapsed(), info })
}

struct Transfer<P> {
    stream: TcpStream,
    bounds: Bounds,
    bytes: u64,
    acknowledged: u64,
    /// When a byte last moved.
    last: Instant,
    next_word: Instant,
    progress: P,
}

impl<P: FnMut(u64)> Transfer<P> {
    fn broken(&self, source: io::Error) -> MoveError {
        MoveError::Connection { bytes: self.bytes, source }
    }

    /// Waits until the socket asks for more: until little enough of it is unsent.
    fn await_room(&mut self) -> Result<(), MoveError> {
        while !self.await_socket(PollFlags::POLLOUT)? {
            self.bounds.check(self.last, Instant::now())?;
        }
        Ok(())
    }

    fn write_all(&mut self, mut chunk: &[u8]) -> Result<(), MoveError> {
        while !chunk.is_empty() {
            match self.stream.write(chunk) {
                Ok(len) => {
                    chunk = &chunk[len..];
                    self.bytes += len as u64;
                    self.last = Instant::now();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.await_socket(PollFlags::POLLOUT)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
            if self.last >= self.next_word {
                (self.progress)(self.bytes);
                self.next_word = self.last + PROGRESS;
            }
            self.bounds.check(self.last, Instant::now())?;
        }
        Ok(())
    }

    /// Ends our side, waits until the peer ends its own, and takes a last look at the connection.
    fn finish(&mut self) -> Result<TcpInfo, MoveError> {
        self.stream.shutdown(Shutdown::Write).map_err(|source| self.broken(source))?;
        let mut waste = [0; 1_024];
        loop {
            match self.stream.read(&mut waste) {
                Ok(0) => break,
                Ok(_) => self.last = Instant::now(),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.await_socket(PollFlags::POLLIN)?;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
            self.bounds.check(self.last, Instant::now())?;
        }
        (self.progress)(self.bytes);
        Ok(options::tcp_info(&self.stream)?)
    }

    /// Waits for the socket, a tenth of a second at most, and says whether it is ready; what leaves the send
    /// buffer meanwhile has moved.
    fn await_socket(&mut self, events: PollFlags) -> Result<bool, MoveError> {
        let wait = self.bounds.end(self.last).min(Instant::now() + PROGRESS);
        let [ready] =
            wake::until([(self.stream.as_fd(), events)], wait).map_err(|source| self.broken(source))?;
        if ready {
            return Ok(true);
        }
        let acknowledged = options::tcp_info(&self.stream)?.bytes_acked;
        if acknowledged != self.acknowledged {
            self.acknowledged = acknowledged;
            self.last = Instant::now();
        }
        Ok(false)
    }
}
