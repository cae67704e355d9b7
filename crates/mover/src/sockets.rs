//! Makes data connections, with buffers set before the handshake.
//!
//! Problem: the window scale is fixed at the SYN, from the receive buffer and its maximum at that moment; an
//! accepted connection inherits its listener's settings. So sizes are set between `socket` and `connect` or
//! `listen`.
//! Source: RFC 7323, section 2; `tcp_select_initial_window()`.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_policy::PolicyKind;
use bufwise_socket::options;
use bufwise_units::Bytes;
use nix::errno::Errno;
use nix::poll::PollFlags;
use nix::sys::socket::{setsockopt, sockopt};
use socket2::{Domain, Protocol, Socket, Type};

use crate::cancel::Cancel;
use crate::error::MoveError;

/// Number of connections that may wait to be accepted: a data port serves one transfer; a few strangers may connect,
/// too.
const ACCEPT_BACKLOG: i32 = 8;
/// The same where receive buffers have a set size: each connection that waits may fill one. The kernel lets one more
/// wait than this.
const SIZED_BACKLOG: i32 = 1;

/// Options to set before a connection is made; `None` leaves the system's choice.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sockets {
    /// `SO_SNDBUF`: ends the kernel's send autotuning.
    pub send_buffer: Option<Bytes>,
    /// `SO_RCVBUF`: ends the kernel's receive autotuning, and bounds the window scale.
    pub receive_buffer: Option<Bytes>,
    /// Congestion control by name.
    pub congestion: Option<String>,
    /// Own address of connections that are made, whatever its port. The system's choice may differ from one connection to the
    /// next: a host has several addresses, or a temporary one of IPv6 expires.
    pub source: Option<SocketAddr>,
}

impl Sockets {
    /// Returns options that give both buffers this size, as programs did before autotuning.
    #[must_use]
    pub fn fixed(size: Bytes) -> Self {
        Self { send_buffer: Some(size), receive_buffer: Some(size), ..Self::default() }
    }

    /// Returns the options that `policy` needs before the connection is made.
    ///
    /// Only `fixed` sets buffers. The others need none: the window scale of an unchanged socket suffices for the larger
    /// of `tcp_rmem`'s maximum and `rmem_max`, which they cannot exceed later, and a buffer set now would end
    /// autotuning.
    #[must_use]
    pub fn for_policy(policy: PolicyKind) -> Self {
        match policy {
            PolicyKind::Fixed(size) => Self::fixed(size),
            _ => Self::default(),
        }
    }

    /// Sets a congestion control, too.
    #[must_use]
    pub fn with_congestion(self, name: &str) -> Self {
        Self { congestion: Some(name.to_owned()), ..self }
    }

    /// Makes connections from this own address, too, whatever its port.
    #[must_use]
    pub fn with_source(self, own: SocketAddr) -> Self {
        Self { source: Some(own), ..self }
    }

    /// Listens on `address`; connections accepted there inherit the settings.
    ///
    /// # Errors
    /// [`MoveError::Connect`] or [`MoveError::Option`].
    pub fn listen(&self, address: SocketAddr) -> Result<TcpListener, MoveError> {
        let failed = |source| MoveError::Connect { operation: "listening on", address, source };
        let socket = self.prepare(address)?;
        socket.set_reuse_address(true).map_err(failed)?;
        socket.bind(&address.into()).map_err(failed)?;
        let backlog = if self.receive_buffer.is_some() { SIZED_BACKLOG } else { ACCEPT_BACKLOG };
        socket.listen(backlog).map_err(failed)?;
        Ok(socket.into())
    }

    /// Connects to `address` within `timeout`.
    ///
    /// # Errors
    /// [`MoveError::Connect`] or [`MoveError::Option`].
    pub fn connect(&self, address: SocketAddr, timeout: Duration) -> Result<TcpStream, MoveError> {
        self.connect_unless(address, timeout, &Cancel::default())
    }

    /// As [`Sockets::connect`], but a cancellation ends it.
    pub fn connect_unless(
        &self,
        address: SocketAddr,
        timeout: Duration,
        cancel: &Cancel,
    ) -> Result<TcpStream, MoveError> {
        let deadline = Instant::now() + timeout;
        let failed = |source| MoveError::Connect { operation: "connecting to", address, source };
        let socket = self.prepare(address)?;
        if let Some(mut own) = self.source {
            own.set_port(0);
            // The port is chosen when the peer is known: connections to different peers, or ports of one, can share it.
            let _chosen_now = setsockopt(&socket, sockopt::IpBindAddressNoPort, &true);
            socket.bind(&own.into()).map_err(failed)?;
        }
        socket.set_nonblocking(true).map_err(failed)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() == Some(Errno::EINPROGRESS as i32) => {
                let answered = cancel.wait(socket.as_fd(), PollFlags::POLLOUT, deadline).map_err(failed)?;
                if cancel.is_cancelled() {
                    return Err(MoveError::Cancelled { bytes: 0 });
                }
                let refused =
                    if answered { socket.take_error() } else { Err(io::ErrorKind::TimedOut.into()) };
                refused.and_then(|refused| refused.map_or(Ok(()), Err)).map_err(failed)?;
            }
            done => done.map_err(failed)?,
        }
        socket.set_nonblocking(false).map_err(failed)?;
        Ok(socket.into())
    }

    fn prepare(&self, address: SocketAddr) -> Result<Socket, MoveError> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))
            .map_err(|source| MoveError::Connect { operation: "a socket for", address, source })?;
        if let Some(size) = self.send_buffer {
            options::set_send_buffer(&socket, size)?;
        }
        if let Some(size) = self.receive_buffer {
            options::set_receive_buffer(&socket, size)?;
        }
        if let Some(name) = &self.congestion {
            options::set_congestion_control(&socket, name)?;
        }
        Ok(socket)
    }
}

/// Accepts the first connection from `peer`, within `timeout`; closes connections from other addresses.
///
/// # Errors
/// [`MoveError::Connect`], of kind `TimedOut` when no connection came.
pub fn accept(listener: &TcpListener, peer: IpAddr, timeout: Duration) -> Result<TcpStream, MoveError> {
    accept_unless(listener, peer, timeout, &Cancel::default())
}

/// As [`accept`], but a cancellation ends it.
pub fn accept_unless(
    listener: &TcpListener,
    peer: IpAddr,
    timeout: Duration,
    cancel: &Cancel,
) -> Result<TcpStream, MoveError> {
    let deadline = Instant::now() + timeout;
    let failed = |source| {
        let address = listener.local_addr().unwrap_or_else(|_| SocketAddr::new(peer, 0));
        MoveError::Connect { operation: "accepting on", address, source }
    };
    listener.set_nonblocking(true).map_err(failed)?;
    loop {
        let somebody = match listener.accept() {
            Ok((stream, from)) if from.ip().to_canonical() == peer.to_canonical() => return Ok(stream),
            Ok(_stranger) => false,
            Err(error) if is_passing(&error) => {
                cancel.wait(listener.as_fd(), PollFlags::POLLIN, deadline).map_err(failed)?
            }
            Err(error) => return Err(failed(error)),
        };
        if cancel.is_cancelled() {
            return Err(MoveError::Cancelled { bytes: 0 });
        }
        if !somebody && Instant::now() >= deadline {
            return Err(failed(io::ErrorKind::TimedOut.into()));
        }
    }
}

/// Whether this error of accept(2) means only that no connection waits, or that the waiting one was closed meanwhile.
pub fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(error.kind(), Kind::WouldBlock | Kind::Interrupted | Kind::ConnectionAborted)
}
