//! Lists all TCP and UDP sockets of a network namespace with their details: the data of `ss`, typed.
//!
//! Problem: observing some hundred connections twenty times a second must cost little and need no parsing
//! of text. One dump per address family brings addresses, owner, `TCP_INFO`, memory and congestion control.
//! Source: sock_diag(7), `linux/inet_diag.h`, `net/ipv4/inet_diag.c`.
//! Properties kept: for any input from the kernel, nothing panics and nothing is read beyond a message's end;
//! a malformed message is an error, an unknown attribute is skipped; an IPv4 connection of an IPv6 socket
//! is shown as IPv4; buffers are reused from call to call.

mod wire;

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use nix::sys::socket::SockProtocol;
use socket2::SockRef;

use crate::info::{SkMem, TcpInfo};
pub use crate::netlink::Malformed;
use crate::netlink::{AskError, Netlink};
use crate::options::{self, OptionError};
pub use wire::Protocol;
use wire::{Family, Request, SOCK_DIAG_BY_FAMILY};

/// A set of TCP states to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct States(u32);

impl States {
    /// Connections that can carry data in both directions.
    pub const ESTABLISHED: Self = Self(1 << 1);
    /// Listening sockets.
    pub const LISTENING: Self = Self(1 << 10);
    /// Connections with a socket: everything but listening, TIME_WAIT and half-open requests.
    pub const CONNECTED: Self = Self(0b1011_1011_0110);
    /// Every state.
    pub const ALL: Self = Self(0x1ffe);
    const TIME_WAIT: Self = Self(1 << 6);

    /// Returns the states that are in either set.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// State of a TCP connection, numbered as in the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "the names are those of RFC 9293")]
pub enum State {
    Established,
    SynSent,
    SynRecv,
    FinWait1,
    FinWait2,
    TimeWait,
    Close,
    CloseWait,
    LastAck,
    Listen,
    Closing,
    /// A half-open request without a socket of its own, or a state that a later kernel adds.
    Other,
}

impl State {
    fn from_kernel(number: u8) -> Self {
        match number {
            1 => Self::Established,
            2 => Self::SynSent,
            3 => Self::SynRecv,
            4 => Self::FinWait1,
            5 => Self::FinWait2,
            6 => Self::TimeWait,
            7 => Self::Close,
            8 => Self::CloseWait,
            9 => Self::LastAck,
            10 => Self::Listen,
            11 => Self::Closing,
            _ => Self::Other,
        }
    }

    /// Returns the name in reports: RFC 9293's, in lower case.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Established => "established",
            Self::SynSent => "syn-sent",
            Self::SynRecv => "syn-received",
            Self::FinWait1 => "fin-wait-1",
            Self::FinWait2 => "fin-wait-2",
            Self::TimeWait => "time-wait",
            Self::Close => "closed",
            Self::CloseWait => "close-wait",
            Self::LastAck => "last-ack",
            Self::Listen => "listen",
            Self::Closing => "closing",
            Self::Other => "other",
        }
    }
}

/// Name of a congestion control algorithm, at most 15 bytes; empty if the kernel gave none.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct CongestionControl([u8; 16]);

impl CongestionControl {
    /// Returns the congestion control with that name. It cuts longer names to 15 bytes, as the kernel does.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let mut bytes = [0; 16];
        bytes[..15].iter_mut().zip(name.bytes()).for_each(|(into, byte)| *into = byte);
        Self(bytes)
    }

    /// Returns the name, `""` if unknown.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap_or(self.0.len());
        std::str::from_utf8(&self.0[..end]).unwrap_or("")
    }
}

impl fmt::Display for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for CongestionControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.as_str())
    }
}

/// The state of one TCP socket at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connection {
    /// Own address.
    pub local: SocketAddr,
    /// The peer's address; unspecified with port 0 for a listener.
    pub peer: SocketAddr,
    /// State.
    pub state: State,
    /// Inode of the socket in `/proc/PID/fd`; 0 once no process holds it.
    pub inode: u32,
    /// User that created the socket.
    pub uid: u32,
    /// Unique number of the socket; never reused while the system runs.
    pub cookie: u64,
    /// Details; all 0 for sockets in TIME_WAIT.
    pub info: TcpInfo,
    /// Memory; all 0 for sockets in TIME_WAIT.
    pub mem: SkMem,
    /// Congestion control.
    pub congestion: CongestionControl,
    /// Number of the cgroup (v2) in which the socket was made: the inode of its directory; 0 if the kernel does not
    /// report it (before Linux 5.8).
    pub cgroup: u64,
}

impl Connection {
    /// Reads the state of the TCP socket behind a descriptor, whose inode is `inode`; cgroup and user stay 0.
    ///
    /// # Errors
    /// [`OptionError::Get`] for anything but a TCP socket.
    pub fn of(socket: impl AsFd, inode: u32) -> Result<Self, OptionError> {
        let info = options::tcp_info(&socket)?;
        let any = || SocketAddr::from(([0, 0, 0, 0], 0));
        let address = |found: io::Result<socket2::SockAddr>| {
            let address = found.ok().and_then(|address| address.as_socket()).unwrap_or_else(any);
            SocketAddr::new(address.ip().to_canonical(), address.port())
        };
        let reference = SockRef::from(&socket);
        let cookie = reference.cookie();
        Ok(Self {
            local: address(reference.local_addr()),
            peer: address(reference.peer_addr()),
            state: State::from_kernel(info.state),
            inode,
            uid: 0,
            cookie: cookie.map_err(|source| OptionError::Get { option: "SO_COOKIE", source })?,
            info,
            mem: options::memory(&socket)?,
            congestion: CongestionControl::named(&options::congestion_control(&socket)?),
            cgroup: 0,
        })
    }

    /// Reads again the fields that change while a connection lives: details, memory and state.
    ///
    /// # Errors
    /// [`OptionError::Get`] for anything but a TCP socket.
    pub fn refresh(&mut self, socket: impl AsFd) -> Result<(), OptionError> {
        self.info = options::tcp_info(&socket)?;
        self.mem = options::memory(&socket)?;
        self.state = State::from_kernel(self.info.state);
        Ok(())
    }
}

/// A UDP socket that has a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BoundUdp {
    /// Own address.
    pub local: SocketAddr,
    /// Inode of the socket in `/proc/PID/fd`.
    pub inode: u32,
    /// User that created the socket.
    pub uid: u32,
}

/// Why the sockets could not be listed.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    /// A system call failed.
    #[error("{operation} socket diagnostics (netlink) failed: {source}")]
    Io {
        /// The step that failed.
        operation: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// The kernel refused the request.
    #[error("the kernel refused to list {what} sockets: {source}{}", hint(*what, source))]
    Refused {
        /// `TCP` or `UDP`.
        what: Protocol,
        /// The kernel's error.
        source: io::Error,
    },
    /// A message did not have the form that `linux/inet_diag.h` gives.
    #[error("the kernel's list of {what} sockets is malformed: {source}")]
    Malformed {
        /// `TCP` or `UDP`.
        what: Protocol,
        /// The fault in it.
        source: Malformed,
    },
}

impl DiagError {
    fn asking_for(what: Protocol, error: AskError) -> Self {
        match error {
            AskError::Io(operation, source) => Self::Io { operation, source },
            AskError::Refused(source) => Self::Refused { what, source },
            AskError::Malformed(source) => Self::Malformed { what, source },
        }
    }
}

fn hint(what: Protocol, source: &io::Error) -> &'static str {
    match what {
        _ if source.kind() != io::ErrorKind::NotFound => "",
        Protocol::Tcp => "; load its module (modprobe tcp_diag)",
        Protocol::Udp => "; load its module (modprobe udp_diag)",
    }
}

/// An open diagnostics socket: lists the sockets of the network namespace in which it was opened.
///
/// ```
/// use std::net::{TcpListener, TcpStream};
///
/// use bufwise_socket::diag::{Diag, States};
///
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let stream = TcpStream::connect(listener.local_addr()?)?;
/// let local = stream.local_addr()?;
/// let connections = Diag::open()?.tcp(States::ESTABLISHED)?;
/// let ours = connections.iter().find(|connection| connection.local == local).expect("it is established");
/// assert_eq!(ours.peer, listener.local_addr()?);
/// println!("{local}: {} bytes of window, {}", ours.info.cwnd().0, ours.congestion);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Diag(Netlink);

impl Diag {
    /// Opens the socket in the calling thread's network namespace; needs no privilege.
    ///
    /// # Errors
    /// [`DiagError::Io`] if the kernel has no socket diagnostics or no descriptor is free.
    pub fn open() -> Result<Self, DiagError> {
        let netlink = Netlink::open(SockProtocol::NetlinkSockDiag);
        netlink.map(Self).map_err(|source| DiagError::Io { operation: "opening", source })
    }

    /// Returns all TCP sockets in one of `states`, IPv4 first.
    ///
    /// # Errors
    /// Any [`DiagError`]; a list that cannot be read to its end is not returned.
    pub fn tcp(&mut self, states: States) -> Result<Vec<Connection>, DiagError> {
        let mut connections = Vec::new();
        self.tcp_into(states, &mut connections)?;
        Ok(connections)
    }

    /// As [`Diag::tcp`], into a vector that is cleared first; for callers that list many times a second.
    ///
    /// # Errors
    /// As [`Diag::tcp`].
    pub fn tcp_into(&mut self, states: States, into: &mut Vec<Connection>) -> Result<(), DiagError> {
        into.clear();
        self.dump(Protocol::Tcp, states, None, |message| {
            let connection = message.connection();
            // The kernel lists some connections without a socket with those in FIN_WAIT_2.
            if connection.state != State::TimeWait || states.0 & States::TIME_WAIT.0 != 0 {
                into.push(connection);
            }
        })
    }

    /// Returns the listening TCP sockets: all, or those on one port.
    ///
    /// # Errors
    /// As [`Diag::tcp`].
    pub fn listening(&mut self, port: Option<u16>) -> Result<Vec<Connection>, DiagError> {
        let mut listeners = Vec::new();
        self.dump(Protocol::Tcp, States::LISTENING, port, |message| {
            listeners.push(message.connection());
        })?;
        Ok(listeners)
    }

    /// Returns the UDP sockets that have a port: all, or those on one port.
    ///
    /// # Errors
    /// As [`Diag::tcp`].
    pub fn udp(&mut self, port: Option<u16>) -> Result<Vec<BoundUdp>, DiagError> {
        let mut sockets = Vec::new();
        self.dump(Protocol::Udp, States::ALL, port, |message| {
            let Connection { local, inode, uid, .. } = message.connection();
            if local.port() != 0 {
                sockets.push(BoundUdp { local, inode, uid });
            }
        })?;
        Ok(sockets)
    }

    fn dump(
        &mut self,
        what: Protocol,
        states: States,
        port: Option<u16>,
        mut each: impl FnMut(wire::Message<'_>),
    ) -> Result<(), DiagError> {
        for family in [Family::V4, Family::V6] {
            let request = Request { protocol: what, family, states: states.0, port: port.unwrap_or(0) };
            let listed = self.0.ask(
                |sequence| request.encode(sequence),
                |kind, body| {
                    if kind == SOCK_DIAG_BY_FAMILY {
                        each(wire::Message::read(body)?);
                    }
                    Ok(())
                },
            );
            listed.map_err(|error| DiagError::asking_for(what, error))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream, UdpSocket};
    use std::time::{Duration, Instant};

    fn inode(socket: impl AsFd) -> u32 {
        let ino = nix::sys::stat::fstat(socket.as_fd()).unwrap().st_ino;
        u32::try_from(ino).unwrap()
    }

    fn pair(address: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(address).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn find(client: &TcpStream) -> Connection {
        let all = Diag::open().unwrap().tcp(States::ESTABLISHED).unwrap();
        let inode = inode(client);
        all.into_iter().find(|connection| connection.inode == inode).expect("our connection is listed")
    }

    #[test]
    fn connected_names_every_state_with_a_socket_and_data() {
        let listed: Vec<u32> = (0..13).filter(|state| States::CONNECTED.0 & 1 << state != 0).collect();
        assert_eq!(listed, [1, 2, 4, 5, 7, 8, 9, 11]);
    }

    #[test]
    fn a_missing_module_is_named() {
        let refused = |what, errno| {
            let source = io::Error::from_raw_os_error(errno);
            DiagError::Refused { what, source }.to_string()
        };
        for (what, advice) in [(Protocol::Tcp, "(modprobe tcp_diag)"), (Protocol::Udp, "(modprobe udp_diag)")]
        {
            let error = refused(what, libc::ENOENT);
            assert!(error.ends_with(advice), "modprobe loads the first module that is named: {error}");
        }
        assert!(!refused(Protocol::Tcp, libc::EPERM).contains("modprobe"));
    }

    #[test]
    fn own_connection_is_found_with_its_addresses_and_counters() {
        let (mut client, mut server) = pair("127.0.0.1:0");
        client.write_all(&[7; 100_000]).unwrap();
        server.read_exact(&mut [0; 100_000]).unwrap();
        let seen = find(&client);
        assert_eq!(seen.local, client.local_addr().unwrap());
        assert_eq!(seen.peer, client.peer_addr().unwrap());
        assert_eq!(seen.state, State::Established);
        assert_eq!(seen.uid, nix::unistd::getuid().as_raw());
        // A machine that stands still may repeat a segment.
        assert_eq!(seen.info.bytes_sent - seen.info.bytes_retrans, 100_000);
        assert!(seen.mem.sndbuf > 0 && seen.mem.rcvbuf > 0);
        assert_eq!(
            seen.congestion.as_str(),
            std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap().trim()
        );
        let other_end = find(&server);
        assert_eq!(other_end.peer, seen.local);
        assert!(other_end.info.bytes_received >= 100_000);
        assert_ne!(other_end.cookie, seen.cookie);
    }

    #[test]
    fn a_descriptor_shows_the_same_connection_as_the_list() {
        let (client, _server) = pair("127.0.0.1:0");
        let (listed, mut held) = (find(&client), Connection::of(&client, inode(&client)).unwrap());
        assert_eq!((held.local, held.peer, held.state), (listed.local, listed.peer, listed.state));
        assert_eq!((held.cookie, held.inode), (listed.cookie, listed.inode));
        assert_eq!((held.congestion, held.mem.sndbuf), (listed.congestion, listed.mem.sndbuf));
        client.shutdown(std::net::Shutdown::Write).unwrap();
        held.refresh(&client).unwrap();
        assert!(matches!(held.state, State::FinWait1 | State::FinWait2), "{:?}", held.state);
        assert!(Connection::of(UdpSocket::bind("127.0.0.1:0").unwrap(), 0).is_err());
    }

    #[test]
    fn a_closed_connection_that_waits_for_its_peer_without_a_socket_is_not_listed_as_connected() {
        let (client, _server) = pair("127.0.0.1:0");
        let local = client.local_addr().unwrap();
        drop(client);
        let listed = |states| {
            let all = Diag::open().unwrap().tcp(states).unwrap();
            all.into_iter().filter(|one| one.local == local).map(|one| one.state).collect::<Vec<_>>()
        };
        let deadline = Instant::now() + Duration::from_secs(10);
        // Its socket stays if tcp_fin_timeout is longer than the 60 s of TIME_WAIT.
        while listed(States::ALL) != [State::TimeWait] {
            assert!(Instant::now() < deadline, "{:?}", listed(States::ALL));
            std::thread::yield_now();
        }
        assert!(listed(States::CONNECTED).is_empty());
    }

    #[test]
    fn unread_data_shows_in_the_receivers_memory() {
        let (mut client, server) = pair("127.0.0.1:0");
        client.write_all(&[7; 20_000]).unwrap();
        server.peek(&mut [0]).unwrap();
        assert!(find(&server).mem.rmem_alloc > 0);
    }

    #[test]
    fn ipv6_connection_is_found() {
        if !bufwise_trial::ipv6() {
            return;
        }
        let (client, _server) = pair("[::1]:0");
        assert_eq!(find(&client).local, client.local_addr().unwrap());
    }

    #[test]
    fn ipv4_connection_of_an_ipv6_socket_shows_as_ipv4() {
        if !bufwise_trial::ipv6() {
            return;
        }
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let server = listener.accept().unwrap().0;
        let seen = find(&server);
        assert_eq!(seen.peer, client.local_addr().unwrap());
        assert_eq!(seen.local, SocketAddr::from(([127, 0, 0, 1], port)));
    }

    #[test]
    fn listeners_and_bound_sockets_are_found_by_port() {
        let mut diag = Diag::open().unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let found = diag.listening(Some(port)).unwrap();
        assert_eq!(
            found.iter().map(|one| (one.local, one.inode)).collect::<Vec<_>>(),
            [(listener.local_addr().unwrap(), inode(&listener))]
        );
        drop(listener);
        // A command that another test starts meanwhile holds a copy of the descriptor for a moment.
        let deadline = Instant::now() + Duration::from_secs(10);
        while !diag.listening(Some(port)).unwrap().is_empty() {
            assert!(Instant::now() < deadline, "it is still listed");
            std::thread::yield_now();
        }

        if !bufwise_trial::ipv6() {
            return;
        }
        let socket = UdpSocket::bind("[::1]:0").unwrap();
        let address = socket.local_addr().unwrap();
        let found = diag.udp(Some(address.port())).unwrap();
        assert!(found.contains(&BoundUdp {
            local: address,
            inode: inode(&socket),
            uid: nix::unistd::getuid().as_raw()
        }));
    }

    #[test]
    fn a_few_hundred_connections_are_all_listed_in_one_dump() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let pairs: Vec<_> =
            (0..150).map(|_| (TcpStream::connect(address).unwrap(), listener.accept().unwrap())).collect();
        let all = Diag::open().unwrap().tcp(States::CONNECTED).unwrap();
        for (client, _) in &pairs {
            let local = client.local_addr().unwrap();
            assert_eq!(all.iter().filter(|seen| seen.local == local).count(), 1);
        }
    }
}
