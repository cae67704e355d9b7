//! A connection, plain or encrypted.
//!
//! Problem: code that waits, measures and tunes needs the socket itself; code that reads and writes should not depend
//! on encryption. With TLS a stream can be readable while its socket is not, because bytes were decrypted already.
//! Properties kept: read and write fail with `WouldBlock` only when the socket would; a read fails with `Interrupted`
//! when the peer sends much without data; a reader that reads until `WouldBlock` before it waits, or checks
//! [`Stream::pending`], misses no data; the end of a TLS stream without the peer's `close_notify` is an error of kind
//! `UnexpectedEof`, never a plain end.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};

use nix::poll::PollFlags;

use crate::tls::TlsStream;

/// A connection.
#[derive(Debug)]
pub enum Stream {
    /// Unencrypted.
    Plain(TcpStream),
    /// Within TLS; its socket does not block.
    Tls(Box<TlsStream>),
}

impl From<TcpStream> for Stream {
    fn from(tcp: TcpStream) -> Self {
        Self::Plain(tcp)
    }
}

impl From<TlsStream> for Stream {
    fn from(tls: TlsStream) -> Self {
        Self::Tls(Box::new(tls))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.tcp().as_fd()
    }
}

impl Stream {
    /// Returns the socket.
    #[must_use]
    pub fn tcp(&self) -> &TcpStream {
        match self {
            Self::Plain(tcp) => tcp,
            Self::Tls(tls) => tls.tcp(),
        }
    }

    /// Whether it is encrypted.
    #[must_use]
    pub fn is_tls(&self) -> bool {
        matches!(self, Self::Tls(_))
    }

    /// Returns the TLS session, if it is encrypted: whether it was resumed, and the peer's certificate.
    #[must_use]
    pub fn tls(&self) -> Option<&TlsStream> {
        match self {
            Self::Plain(_) => None,
            Self::Tls(tls) => Some(tls),
        }
    }

    /// Returns the socket of a stream that is not encrypted, to begin TLS on it; `None` for an encrypted stream.
    #[must_use]
    pub fn into_plain(self) -> Option<TcpStream> {
        match self {
            Self::Plain(tcp) => Some(tcp),
            Self::Tls(_) => None,
        }
    }

    /// Whether a read would return bytes that do not make the socket readable.
    #[must_use]
    pub fn pending(&self) -> bool {
        match self {
            Self::Plain(_) => false,
            Self::Tls(tls) => tls.pending(),
        }
    }

    /// Returns the events to wait for: `wanted`, and room in the socket if encrypted bytes are still to be sent.
    #[must_use]
    pub fn events(&self, wanted: PollFlags) -> PollFlags {
        match self {
            Self::Tls(tls) if tls.wants_write() => wanted | PollFlags::POLLOUT,
            Self::Plain(_) | Self::Tls(_) => wanted,
        }
    }

    /// Ends writing: sends `close_notify` if encrypted, then shuts down the socket's sending side. Reading goes on.
    ///
    /// # Errors
    /// The system's error; `WouldBlock`: call it again when there is room.
    pub fn end_writing(&mut self) -> io::Result<()> {
        if let Self::Tls(tls) = self {
            tls.notify_close()?;
        }
        self.tcp().shutdown(Shutdown::Write)
    }

    /// Whether reads and writes wait for the socket; an encrypted stream's never do.
    ///
    /// # Errors
    /// The system's error; asking an encrypted stream to block is one.
    pub fn set_nonblocking(&self, nonblocking: bool) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.set_nonblocking(nonblocking),
            Self::Tls(_) if nonblocking => Ok(()),
            Self::Tls(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

impl Read for Stream {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.read(into),
            Self::Tls(tls) => tls.read(into),
        }
    }
}

impl Write for Stream {
    /// Writes bytes; on an encrypted stream, accepted ones may still wait to be sent: see [`Write::flush`].
    fn write(&mut self, from: &[u8]) -> io::Result<usize> {
        match self {
            Self::Plain(tcp) => tcp.write(from),
            Self::Tls(tls) => tls.write(from),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Self::Plain(tcp) => tcp.flush(),
            Self::Tls(tls) => tls.flush(),
        }
    }
}
