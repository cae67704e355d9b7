//! The server's end of the control connection: reads lines and sends replies, and bounds every wait.
//!
//! Properties kept: a line longer than [`crate::wire::MAX_LINE`] ends the session, so memory is bounded before any
//! login; a client that takes no replies is given up after a timeout; bytes read in clear text never count as having
//! come over TLS (STARTTLS injection, CVE-2011-0411 and similar ones).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use bufwise_mover::Cancel;
use bufwise_mover::stream::Stream;
use bufwise_mover::tls::{ServerTls, TlsError};
use bufwise_mover::wake::{self, Bell};
use nix::poll::PollFlags;
use socket2::{SockRef, TcpKeepalive};

use super::presence::Presence;
use crate::wire::{Lines, Reply, WireError};

/// Bytes read at once; commands are short.
const CHUNK: usize = 4_096;
/// TCP keepalive: a client that vanished is noticed after some minutes, even during a long transfer. It also keeps
/// address translators from forgetting a silent control connection.
const KEEPALIVE: Duration = Duration::from_secs(60);

/// The control connection of one session.
pub(super) struct Control {
    /// `None` only after a TLS handshake that failed.
    stream: Option<Stream>,
    lines: Lines,
    pub(super) peer: SocketAddr,
    pub(super) local: SocketAddr,
    /// Longest wait for a client to take a reply.
    timeout: Duration,
    /// The client has hung up.
    outlived: bool,
}

/// An event on the control connection, or beside it.
pub(super) enum Heard {
    /// A line, without its end.
    Line(Vec<u8>),
    /// A line that cannot be a command; the next one may.
    BadLine,
    /// The session's bell was rung.
    Bell,
    /// The server is to stop.
    Stop,
    /// The deadline has come.
    Late,
    /// The client has hung up.
    Closed,
    /// A line without an end.
    Endless,
}

impl Control {
    pub(super) fn new(tcp: TcpStream, timeout: Duration) -> io::Result<Self> {
        let (peer, local) = (canonical(tcp.peer_addr()?), canonical(tcp.local_addr()?));
        tcp.set_nonblocking(true)?;
        tcp.set_nodelay(true)?;
        let socket = SockRef::from(&tcp);
        socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE))?;
        // Telnet's urgent byte, which clients send with ABOR, stays in its place.
        socket.set_out_of_band_inline(true)?;
        Ok(Self { stream: Some(tcp.into()), lines: Lines::new(), peer, local, timeout, outlived: false })
    }

    pub(super) fn is_tls(&self) -> bool {
        self.stream.as_ref().is_some_and(Stream::is_tls)
    }

    /// Waits for a line, the bell, the server's end (unless `stop` is `None`), or `deadline`, which counts even if lines
    /// or bytes are waiting: a client that floods the server does not put it off.
    pub(super) fn hear(&mut self, bell: &Bell, stop: Option<&Bell>, deadline: Instant) -> io::Result<Heard> {
        let Some(stream) = &mut self.stream else { return Ok(Heard::Closed) };
        loop {
            // Checked after each read: telnet commands make no line, and any number of them may come.
            let now = Instant::now();
            if now >= deadline {
                return Ok(Heard::Late);
            }
            match self.lines.next_line() {
                Ok(Some(line)) => return Ok(Heard::Line(line)),
                Ok(None) => {}
                Err(WireError::ControlByte) => return Ok(Heard::BadLine),
                Err(_) => return Ok(Heard::Endless),
            }
            let until = if stream.pending() && !self.outlived { now } else { deadline };
            let client = (stream.as_fd(), stream.events(PollFlags::POLLIN));
            let watched = [
                if self.outlived { (bell.as_fd(), PollFlags::POLLIN) } else { client },
                (bell.as_fd(), PollFlags::POLLIN),
                (stop.unwrap_or(bell).as_fd(), PollFlags::POLLIN),
            ];
            let [ready, rung, stopped] = wake::until(watched, until)?;
            if rung {
                bell.silence();
                return Ok(Heard::Bell);
            }
            if stopped {
                return Ok(Heard::Stop);
            }
            if !ready && (self.outlived || !stream.pending()) {
                return Ok(Heard::Late);
            }
            let mut chunk = [0; CHUNK];
            match stream.read(&mut chunk) {
                Ok(0) => return Ok(Heard::Closed),
                Ok(len) => self.lines.feed(&chunk[..len]),
                // The socket may have had room for TLS's own messages (a change of keys).
                Err(error) if is_not_yet(&error) => match stream.flush() {
                    Err(error) if !is_not_yet(&error) => return Ok(Heard::Closed),
                    _ => {}
                },
                Err(_) => return Ok(Heard::Closed),
            }
        }
    }

    /// Sends a reply.
    pub(super) fn reply(&mut self, reply: &Reply) -> io::Result<()> {
        let Some(stream) = &mut self.stream else { return Err(io::ErrorKind::NotConnected.into()) };
        let deadline = Instant::now() + self.timeout;
        let bytes = reply.encode();
        let mut rest = bytes.as_slice();
        while !rest.is_empty() {
            match stream.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => rest = &rest[len..],
                Err(error) if is_not_yet(&error) => await_room(stream, deadline)?,
                Err(error) => return Err(error),
            }
        }
        loop {
            match stream.flush() {
                Err(error) if is_not_yet(&error) => await_room(stream, deadline)?,
                other => return other,
            }
        }
    }

    /// Begins TLS; discards everything that the client has sent before.
    pub(super) fn begin_tls(&mut self, tls: &ServerTls) -> Result<(), TlsError> {
        self.lines.clear();
        if let Some(tcp) = self.stream.take().and_then(Stream::into_plain) {
            self.stream = Some(tls.accept(tcp, self.timeout, &Cancel::default())?.into());
        }
        Ok(())
    }

    /// Returns a handle for waits that should end when the connection is shut down.
    pub(super) fn as_fd(&self) -> io::Result<BorrowedFd<'_>> {
        self.stream.as_ref().map(AsFd::as_fd).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Returns a watch by which another thread sees whether the client is still connected.
    pub(super) fn presence(&self) -> io::Result<Presence> {
        let stream = self.stream.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        Presence::of(stream.tcp())
    }

    /// Stops reading: the client has hung up while work is still to be done.
    pub(super) fn outlive(&mut self) {
        self.outlived = true;
    }

    /// Whether the client has hung up ([`Control::outlive`]).
    pub(super) fn is_outlived(&self) -> bool {
        self.outlived
    }

    /// Ends the connection politely.
    pub(super) fn end(&mut self) {
        if let Some(stream) = &mut self.stream {
            // The client may have gone already.
            let _gone = stream.end_writing();
        }
    }
}

/// Returns an IPv4-mapped address as IPv4; any other address as it is, an IPv6 address with its scope.
pub(super) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(v4) => SocketAddr::from((v4, address.port())),
        IpAddr::V6(_) => address,
    }
}

/// Returns the same address with another port.
pub(super) fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

fn is_not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted)
}

fn await_room(stream: &Stream, deadline: Instant) -> io::Result<()> {
    let [ready] = wake::until([(stream.as_fd(), PollFlags::POLLOUT)], deadline)?;
    if ready { Ok(()) } else { Err(io::ErrorKind::TimedOut.into()) }
}
