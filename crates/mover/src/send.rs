//! The sending end: hands the file to the kernel as fast as the connection takes it, at the rate and with the buffer
//! that the receiver requests.
//!
//! A file that is neither summed nor encrypted goes from the page cache to the socket without a copy (`sendfile`);
//! otherwise it is read first.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use bufwise_socket::info::TcpInfo;
use bufwise_socket::options;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::sendfile::sendfile64;

use crate::bucket::Bucket;
use crate::error::MoveError;
use crate::grant::{BufferGrants, MAX_UNSENT};
use crate::hash::{Digest, Hasher};
use crate::job::{Job, Pace, sample_after};
use crate::probe::Responder;
use crate::progress::{End, INTERVAL, Monitor, Progress, Report};
use crate::source::Source;
use crate::stream::Stream;
use crate::tls::TlsStream;

/// Bytes read and written by one call.
const CHUNK: usize = 256 << 10;
/// Most bytes handed over by one call, which ends when the socket takes no more.
const SENDFILE_CHUNK: usize = 2 << 20;
/// First wait for the acknowledgement of the stream's end; each next is twice as long.
const FIRST_ACK_POLL: Duration = Duration::from_millis(1);

/// How long to wait for the end of a peer that has all bytes.
const TICKETS_TIMEOUT: Duration = Duration::from_millis(500);

/// States of a TCP connection whose end the peer has acknowledged (`include/net/tcp_states.h`).
const FIN_WAIT2: u8 = 5;
const TIME_WAIT: u8 = 6;
const CLOSED: u8 = 7;

/// Result of a file that was sent and acknowledged by the peer's host.
#[derive(Clone, Copy, Debug)]
pub struct Sent {
    /// The report of the transfer.
    pub report: Report,
    /// `TCP_INFO` of the connection at the end.
    pub info: TcpInfo,
}

/// Sends `from` over `stream`, with the buffer that `requests` grants, paced by the requests to `responder`, if there
/// is one.
///
/// Returns when the peer's host has acknowledged everything, the end included. `on_progress` is called some ten times a
/// second, less often while no byte moves, and at the end, also of a transfer that fails.
///
/// # Errors
/// Any [`MoveError`].
pub fn send(
    from: Source<'_>,
    stream: impl Into<Stream>,
    grants: &BufferGrants,
    responder: Option<&Responder>,
    job: &Job,
    on_progress: impl FnMut(&Progress),
) -> Result<Sent, MoveError> {
    let stream = stream.into();
    let start = Instant::now();
    stream.set_nonblocking(true).map_err(|source| MoveError::Connection {
        bytes: 0,
        source,
        stalled: None,
    })?;
    match (responder, job.limit) {
        (Some(responder), limit) => {
            responder.pace(stream.tcp(), limit)?;
            options::set_notsent_low_water(stream.tcp(), MAX_UNSENT)?;
        }
        (None, Some(limit)) => options::set_max_pacing_rate(stream.tcp(), limit)?,
        (None, None) => {}
    }
    grants.attach(stream.tcp())?;
    let mut transfer = Transfer {
        grants,
        monitor: Monitor::new(End::Sender, stream.tcp())?,
        stream,
        job,
        hasher: job.hash.map(Hasher::new),
        bucket: job.limit.map(|rate| Bucket::new(rate, start)),
        bytes: 0,
        file_time: Duration::ZERO,
        acknowledged: 0,
        last: start,
        pace: Pace::new(start),
        next_word: start + INTERVAL,
        on_progress,
    };
    let sent = transfer.run(from);
    if sent.is_err() {
        // Report the bytes moved. The transfer's own error is returned, whatever this report returns.
        let _unsampled = transfer.word();
    }
    grants.detach();
    sent?;
    let digest: Option<Digest> = transfer.hasher.take().map(Hasher::finish);
    Ok(Sent { report: transfer.monitor.report(start.elapsed(), digest), info: *transfer.monitor.info() })
}

struct Transfer<'a, P> {
    grants: &'a BufferGrants,
    stream: Stream,
    job: &'a Job,
    monitor: Monitor,
    hasher: Option<Hasher>,
    bucket: Option<Bucket>,
    bytes: u64,
    file_time: Duration,
    acknowledged: u64,
    /// When a byte last moved.
    last: Instant,
    pace: Pace,
    next_word: Instant,
    on_progress: P,
}

impl<P: FnMut(&Progress)> Transfer<'_, P> {
    fn run(&mut self, from: Source<'_>) -> Result<(), MoveError> {
        match from {
            Source::File { file, offset, length } if !self.stream.is_tls() && self.hasher.is_none() => {
                self.hand_over(file, offset, length)?;
            }
            Source::File { file, offset, length } => self.read_out(file, offset, length)?,
            Source::Reader(reader) => self.pass_on(None, &mut |buffer| reader.read(buffer))?,
        }
        self.finish()
    }

    /// Sends a file from the page cache, without reading it.
    fn hand_over(&mut self, file: &File, offset: u64, length: Option<u64>) -> Result<(), MoveError> {
        let failed = |bytes, source| MoveError::File { operation: "reading", bytes, source };
        let mut at =
            i64::try_from(offset).map_err(|_| failed(0, io::Error::from(io::ErrorKind::InvalidInput)))?;
        loop {
            let room = self.await_room(SENDFILE_CHUNK)?;
            let want = length.map_or(room, |length| within(length - self.bytes, room));
            if want == 0 {
                return Ok(());
            }
            let begun = Instant::now();
            let handed = sendfile64(self.stream.as_fd(), file.as_fd(), Some(&mut at), want);
            // A slow disk or server of files holds this call up; a slow peer does not.
            self.file_time += begun.elapsed();
            match handed {
                Ok(0) => return self.ended(length),
                Ok(len) => self.moved(len)?,
                Err(Errno::EAGAIN | Errno::EINTR) => {}
                Err(errno) if is_of_connection(errno) => return Err(self.broken(errno.into())),
                // The file has no page cache, such as a device.
                Err(Errno::EINVAL | Errno::ENOSYS | Errno::EOPNOTSUPP) if self.bytes == 0 => {
                    return self.read_out(file, offset, length);
                }
                Err(errno) => return Err(failed(self.bytes, errno.into())),
            }
        }
    }

    /// Sends a file through a buffer.
    fn read_out(&mut self, file: &File, offset: u64, length: Option<u64>) -> Result<(), MoveError> {
        let (mut at, mut left) = (offset, length);
        self.pass_on(length, &mut |buffer| {
            let room = left.map_or(buffer.len(), |left| within(left, buffer.len()));
            let len = file.read_at(&mut buffer[..room], at)?;
            at += len as u64;
            left = left.map(|left| left - len as u64);
            Ok(len)
        })
    }

    /// Sends what `read` returns, until it returns no bytes.
    fn pass_on(
        &mut self,
        length: Option<u64>,
        read: &mut dyn FnMut(&mut [u8]) -> io::Result<usize>,
    ) -> Result<(), MoveError> {
        let mut buffer = vec![0; CHUNK];
        loop {
            let room = self.await_room(buffer.len())?;
            let begun = Instant::now();
            let len = match read(&mut buffer[..room]) {
                Ok(0) => return self.ended(length),
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => {
                    return Err(MoveError::File { operation: "reading", bytes: self.bytes, source });
                }
            };
            self.file_time += begun.elapsed();
            if let Some(hasher) = &mut self.hasher {
                hasher.update(&buffer[..len]);
            }
            self.write_all(&buffer[..len])?;
        }
    }

    fn write_all(&mut self, mut chunk: &[u8]) -> Result<(), MoveError> {
        while !chunk.is_empty() {
            match self.stream.write(chunk) {
                Ok(len) => {
                    chunk = &chunk[len..];
                    self.moved(len)?;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.await_socket()?,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(self.broken(source)),
            }
        }
        Ok(())
    }

    /// Notes that bytes went to the kernel.
    fn moved(&mut self, len: usize) -> Result<(), MoveError> {
        self.bytes += len as u64;
        self.last = Instant::now();
        if let Some(bucket) = &mut self.bucket {
            bucket.spend(len);
        }
        self.now_and_then(self.last)
    }

    /// Checks, at the end of the source, that all of it was sent.
    fn ended(&self, length: Option<u64>) -> Result<(), MoveError> {
        match length {
            Some(expected) if self.bytes < expected => Err(MoveError::Shrunk { expected, sent: self.bytes }),
            _ => Ok(()),
        }
    }

    /// Waits until the socket takes more (little enough is unsent) and the rate limit allows it; returns how many
    /// bytes, at most `most`.
    fn await_room(&mut self, most: usize) -> Result<usize, MoveError> {
        loop {
            self.wait(PollFlags::POLLOUT, INTERVAL)?;
            let now = Instant::now();
            let Some(bucket) = &mut self.bucket else { return Ok(most) };
            match bucket.allows(now).min(most) {
                0 => {
                    let opens = bucket.opens().min(now + INTERVAL);
                    self.job.cancel.pause(opens).map_err(|source| self.broken(source))?;
                    // Waiting for our own limit does not count against the peer.
                    self.last = Instant::now();
                    self.now_and_then(self.last)?;
                }
                room => return Ok(room),
            }
        }
    }

    fn await_socket(&mut self) -> Result<(), MoveError> {
        self.wait(PollFlags::POLLOUT, INTERVAL)
    }

    /// Waits for `events`; bytes that leave the send buffer meanwhile count as moved.
    fn wait(&mut self, events: PollFlags, step: Duration) -> Result<(), MoveError> {
        while !self.wait_once(events, step)? {}
        Ok(())
    }

    /// Waits for `events`, at most `step`, longer while no byte moves; returns whether they came.
    fn wait_once(&mut self, events: PollFlags, step: Duration) -> Result<bool, MoveError> {
        let wait = self.next_sample(step);
        let ready = self.job.cancel.wait(self.stream.as_fd(), self.stream.events(events), wait);
        let ready = ready.map_err(|source| self.broken(source))?;
        self.waited(ready)?;
        Ok(ready)
    }

    /// Checks the bounds after a wait; `ready`: it ended with an event.
    fn waited(&mut self, ready: bool) -> Result<(), MoveError> {
        if self.job.cancel.is_cancelled() {
            return Err(MoveError::Cancelled { bytes: self.bytes });
        }
        let now = Instant::now();
        // This host may have stood still while the peer took bytes: a stopped process, a paused container.
        if !ready || self.job.bounds.check(self.last, now).is_err() {
            let acknowledged = options::tcp_info(self.stream.tcp())?.bytes_acked;
            if acknowledged != self.acknowledged {
                self.acknowledged = acknowledged;
                self.last = now;
            }
        }
        if !ready {
            self.now_and_then(now)?;
        }
        self.job.bounds.check(self.last, now)?;
        // Count bytes that the peer's host has: the send buffer may hold many more. Time spent on the file does not
        // count.
        let waited = now.checked_sub(self.file_time).unwrap_or(now);
        let tcp = self.stream.tcp();
        self.pace.check(&self.job.bounds, waited, || Ok(options::tcp_info(tcp)?.bytes_acked))
    }

    /// Returns when to sample the connection again: `step` from now, later while no byte moves.
    fn next_sample(&self, step: Duration) -> Instant {
        let now = Instant::now();
        self.job.bounds.end(self.last).min(now + sample_after(step, now.duration_since(self.last)))
    }

    fn now_and_then(&mut self, now: Instant) -> Result<(), MoveError> {
        if now >= self.next_word {
            self.next_word = now + INTERVAL;
            self.word()?;
        }
        Ok(())
    }

    fn word(&mut self) -> Result<(), MoveError> {
        self.grants.renew()?;
        let seen = self.monitor.sample(self.stream.tcp(), self.bytes, self.file_time)?;
        (self.on_progress)(&seen);
        Ok(())
    }

    /// Ends our side, and waits until the peer's host has acknowledged that or has ended its own.
    fn finish(&mut self) -> Result<(), MoveError> {
        loop {
            match self.stream.end_writing() {
                Ok(()) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.await_socket()?,
                Err(source) => return Err(self.broken(source)),
            }
        }
        let (mut waste, mut step, mut peer_ended) = ([0; 4_096], FIRST_ACK_POLL, false);
        while !self.acknowledged()? {
            if peer_ended {
                self.pause(step)?;
            } else {
                self.wait_once(PollFlags::POLLIN, step)?;
            }
            step = (step * 2).min(INTERVAL);
            match self.stream.read(&mut waste) {
                Ok(0) => peer_ended = true,
                // TLS's own messages, or data from the peer: both are ignored, and are no progress.
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::UnexpectedEof => peer_ended = true,
                    io::ErrorKind::Interrupted | io::ErrorKind::WouldBlock => {}
                    _ => return Err(self.broken(error)),
                },
            }
        }
        if self.stream.tls().is_some_and(TlsStream::is_client) {
            self.take_tickets();
        }
        self.word()
    }

    /// Reads to the peer's end, for a short time: a server's tickets come after the handshake, and each resumed session
    /// uses one up, so the next data connection needs a new one.
    fn take_tickets(&mut self) {
        let deadline = Instant::now() + TICKETS_TIMEOUT;
        let mut waste = [0; 4_096];
        while Instant::now() < deadline && !self.job.cancel.is_cancelled() {
            match self.stream.read(&mut waste) {
                Ok(0) => return,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let waited = self.job.cancel.wait(self.stream.as_fd(), PollFlags::POLLIN, deadline);
                    if waited.is_err() {
                        return;
                    }
                }
                // The peer has all bytes, so errors no longer matter.
                Err(_) => return,
            }
        }
    }

    /// As [`Self::wait_once`], without an event to wait for.
    fn pause(&mut self, step: Duration) -> Result<(), MoveError> {
        self.job.cancel.pause(self.next_sample(step)).map_err(|source| self.broken(source))?;
        self.waited(false)
    }

    /// Whether the peer's host has everything, the end included.
    fn acknowledged(&self) -> Result<bool, MoveError> {
        match options::tcp_info(self.stream.tcp())?.state {
            FIN_WAIT2 | TIME_WAIT => Ok(true),
            // Both have ended, or the peer has reset the connection.
            CLOSED => match self.stream.tcp().take_error() {
                Ok(None) => Ok(true),
                Ok(Some(source)) | Err(source) => Err(self.broken(source)),
            },
            _ => Ok(false),
        }
    }

    fn broken(&self, source: io::Error) -> MoveError {
        MoveError::Connection { bytes: self.bytes, source, stalled: None }
    }
}

/// Whether this error of sendfile(2) is the connection's and not the file's. A connection that times out has the error that ICMP last
/// reported of its path (`icmp_err_convert`, `icmpv6_err_convert()`: a firewall's refusal is EACCES; `tcp_write_err()`).
fn is_of_connection(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EPIPE
            | Errno::ECONNRESET
            | Errno::ECONNREFUSED
            | Errno::ECONNABORTED
            | Errno::ETIMEDOUT
            | Errno::EHOSTUNREACH
            | Errno::EHOSTDOWN
            | Errno::ENETUNREACH
            | Errno::ENETDOWN
            | Errno::ENONET
            | Errno::EACCES
            | Errno::ENOPROTOOPT
            | Errno::EPROTO
    )
}

/// Returns `left`, or `room` if that is less; both in bytes.
fn within(left: u64, room: usize) -> usize {
    usize::try_from(left).unwrap_or(usize::MAX).min(room)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unreachable_network_is_no_error_of_the_file() {
        for errno in
            [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::ECONNREFUSED, Errno::EPROTO, Errno::EACCES]
        {
            assert!(is_of_connection(errno), "{errno}");
        }
        for errno in [Errno::EIO, Errno::ENOMEM, Errno::EISDIR, Errno::ESTALE] {
            assert!(!is_of_connection(errno), "{errno}");
        }
    }
}
