//! A TLS connection over a socket that does not block.
//!
//! Problem: the library reads a socket 4 KiB at a time, which is too many system calls on a fast path. So this stream
//! reads the socket in large pieces and feeds them to the library.
//! Properties kept: `WouldBlock` means that the socket has no bytes and all bytes read from it were used, so a caller
//! that then waits for the socket misses none; a read ends after a bounded number of messages without data
//! (`Interrupted`), so that its caller can check the time; encrypted bytes are sent before new ones are made, so memory
//! is bounded; the peer's end counts only if the peer announced it (`close_notify`); a handshake ends at its deadline, whatever the
//! peer sends.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Instant;

use nix::poll::PollFlags;
use rustls::{Connection, HandshakeKind};

use super::trust::Fingerprint;
use crate::cancel::Cancel;

/// Number of bytes read from the socket at once at first, enough for commands and handshakes.
const SMALL: usize = 4 << 10;
/// Most bytes read from the socket at once; the size grows to this while reads come back full.
const LARGE: usize = 256 << 10;
/// Times that a read feeds the library without getting data: a record of 16 KiB takes five, because the library takes
/// 4 KiB at once. A peer may send any number of messages without data (tickets, empty records).
const FRUITLESS: u32 = 8;
/// Bytes that may be encrypted ahead of the socket.
const AHEAD: usize = 256 << 10;

/// A TLS connection after its handshake.
#[derive(Debug)]
pub struct TlsStream {
    tcp: TcpStream,
    tls: Connection,
    incoming: Incoming,
    /// `close_notify` is queued behind the bytes to send.
    closing: bool,
}

/// Encrypted bytes from the socket that the library has not taken yet.
#[derive(Debug)]
struct Incoming {
    buffer: Vec<u8>,
    at: usize,
    end: usize,
    /// The socket has ended.
    ended: bool,
}

impl TlsStream {
    /// Shakes hands on `tcp` until `deadline`, or until cancelled.
    pub(super) fn begin(
        tcp: TcpStream,
        tls: Connection,
        deadline: Instant,
        cancel: &Cancel,
    ) -> io::Result<Self> {
        tcp.set_nonblocking(true)?;
        let incoming = Incoming { buffer: vec![0; SMALL], at: 0, end: 0, ended: false };
        let mut stream = Self { tcp, tls, incoming, closing: false };
        stream.tls.set_buffer_limit(Some(AHEAD));
        while stream.tls.is_handshaking() || stream.tls.wants_write() {
            match stream.step() {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => stream.wait(deadline, cancel)?,
                Err(error) => return Err(error),
            }
        }
        Ok(stream)
    }

    /// Makes one step of the handshake.
    fn step(&mut self) -> io::Result<()> {
        self.drain()?;
        if self.tls.is_handshaking() && !self.fill()? {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(())
    }

    /// Waits for the socket. While this end has something to say, it reads nothing: bytes that the peer has sent would
    /// end each wait at once.
    fn wait(&self, deadline: Instant, cancel: &Cancel) -> io::Result<()> {
        let events = if self.tls.wants_write() { PollFlags::POLLOUT } else { PollFlags::POLLIN };
        let ready = cancel.wait(self.tcp.as_fd(), events, deadline)?;
        let in_time = ready && !cancel.is_cancelled() && Instant::now() < deadline;
        if in_time { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
    }

    /// Returns the socket.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        &self.tcp
    }

    /// Whether this side began the handshake.
    pub(crate) fn is_client(&self) -> bool {
        matches!(self.tls, Connection::Client(_))
    }

    /// Whether the handshake continued a session of an earlier connection.
    #[must_use]
    pub fn resumed(&self) -> bool {
        self.tls.handshake_kind() == Some(HandshakeKind::Resumed)
    }

    /// Returns the SHA-256 of the peer's certificate; `None` if it showed none, as clients do.
    #[must_use]
    pub fn peer_fingerprint(&self) -> Option<Fingerprint> {
        self.tls.peer_certificates()?.first().map(|leaf| Fingerprint::of(leaf))
    }

    /// Describes version and cipher suite for people.
    #[must_use]
    pub fn description(&self) -> String {
        let version = self.tls.protocol_version().and_then(|version| version.as_str().map(str::to_owned));
        let suite = self.tls.negotiated_cipher_suite().and_then(|suite| suite.suite().as_str());
        format!("{} {}", version.unwrap_or_default(), suite.unwrap_or_default()).trim().to_owned()
    }

    pub(crate) fn pending(&self) -> bool {
        // After `fill`, decrypted bytes are in the library; before it, bytes of the socket may be here.
        self.incoming.at < self.incoming.end || !self.tls.wants_read()
    }

    pub(crate) fn wants_write(&self) -> bool {
        self.tls.wants_write()
    }

    /// Queues `close_notify` behind unsent bytes, and sends them all.
    pub(crate) fn notify_close(&mut self) -> io::Result<()> {
        if !self.closing {
            self.closing = true;
            self.tls.send_close_notify();
        }
        self.drain()
    }

    /// Feeds the library bytes from the socket; false at the socket's end.
    fn fill(&mut self) -> io::Result<bool> {
        if self.incoming.at == self.incoming.end && !self.incoming.ended {
            self.incoming.read(&mut self.tcp)?;
        }
        let incoming = &mut self.incoming;
        let mut rest = &incoming.buffer[incoming.at..incoming.end];
        // Feeding no bytes tells the library of the end.
        let taken = self.tls.read_tls(&mut rest)?;
        incoming.at += taken;
        if let Err(error) = self.tls.process_new_packets() {
            // Try to send the alert that tells the peer the cause.
            let _told = self.drain();
            return Err(io::Error::new(io::ErrorKind::InvalidData, error));
        }
        Ok(taken > 0)
    }

    /// Sends the bytes that are already encrypted.
    fn drain(&mut self) -> io::Result<()> {
        while self.tls.wants_write() {
            match self.tls.write_tls(&mut self.tcp) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// As [`TlsStream::drain`], but a full socket is no error.
    fn drain_some(&mut self) -> io::Result<()> {
        match self.drain() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            other => other,
        }
    }
}

impl Incoming {
    fn read(&mut self, tcp: &mut TcpStream) -> io::Result<()> {
        (self.at, self.end) = (0, 0);
        self.end = tcp.read(&mut self.buffer)?;
        self.ended = self.end == 0;
        if self.end == self.buffer.len() && self.end < LARGE {
            self.buffer.resize(4 * self.end, 0);
        }
        Ok(())
    }
}

impl Read for TlsStream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        for _ in 0..FRUITLESS {
            match self.tls.reader().read(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                read => return read,
            }
            let filled = self.fill();
            let is_empty = matches!(&filled, Err(error) if error.kind() == io::ErrorKind::WouldBlock);
            // Send the library's own messages now, such as a key update: the next write may come much later, or never.
            if is_empty || filled.is_ok() {
                self.drain_some()?;
            }
            filled?;
        }
        Err(io::ErrorKind::Interrupted.into())
    }
}

impl Write for TlsStream {
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        self.drain()?;
        let taken = self.tls.writer().write(from)?;
        self.drain_some()?;
        Ok(taken)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.drain()
    }
}
