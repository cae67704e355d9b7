//! The server of `bufwise probe`: echoes and trains for one client at a time.
//!
//! A client connects by TCP and gets a token, which proves that it receives at its address. UDP packets count only with
//! that token and from that address, and the first one fixes the port. Two measurements at once would disturb each
//! other, so other clients are told that the server is busy.
//! Properties kept: packets are sent only to the address of the TCP connection, and from the address that it was made to; an
//! echo is as long as its probe; a session is bounded in time, in bytes sent, in silence; trains are bounded in packets and
//! time.

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_units::{Bytes, Nanos};
use nix::poll::PollFlags;
use socket2::{Domain, Socket, Type};

use super::datagram::{self, Datagram};
use super::flight::Flight;
use super::packet::{MAX_TRAIN_PACKET, PROBE_LEN, Packet, Token};
use super::train::{self, Form};
use crate::sockets::is_passing;
use crate::wake;

/// How long the answer to [`Packet::Collect`] waits for packets that are still on their way.
const STRAGGLERS: Duration = Duration::from_millis(150);
/// Pause while memory or descriptors for a client are lacking.
const LACKING: Duration = Duration::from_millis(10);
/// Receive buffer to set, bytes: room for a train that comes while this thread is not running.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Bounds of one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionLimits {
    /// Longest session.
    pub time: Duration,
    /// Longest silence.
    pub idle: Duration,
    /// Most bytes sent in trains.
    pub bytes: Bytes,
    /// Packets in one train.
    pub train_packets: u16,
    /// Longest train.
    pub train_time: Nanos,
    /// Echoes in one session.
    pub echoes: u64,
}

impl Default for SessionLimits {
    fn default() -> Self {
        Self {
            time: Duration::from_secs(30),
            idle: Duration::from_secs(5),
            bytes: Bytes(256 << 20),
            train_packets: 1_024,
            train_time: Nanos::from_secs(2),
            echoes: 10_000,
        }
    }
}

/// One session, summed up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Session {
    /// The client.
    pub peer: SocketAddr,
    /// How long it took.
    pub lasted: Duration,
    /// Probes answered.
    pub echoes: u64,
    /// Trains sent.
    pub trains: u32,
    /// Payload of these trains.
    pub sent: Bytes,
}

/// Listens, by TCP and UDP on one port.
#[derive(Debug)]
pub struct PathServer {
    listener: TcpListener,
    socket: UdpSocket,
    limits: SessionLimits,
}

impl PathServer {
    /// Listens at `address`; port 0 stands for one that the kernel chooses.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn bind(address: SocketAddr, limits: SessionLimits) -> io::Result<Self> {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        let socket = at(listener.local_addr()?)?;
        Ok(Self { listener, socket, limits })
    }

    /// Returns the socket for a session. On a host with several addresses, what a socket of all of them sends may leave from
    /// another than the one that the client has called, and the client would ignore it.
    fn socket_for(&self, control: &TcpStream) -> io::Result<UdpSocket> {
        if self.socket.local_addr()?.ip().is_unspecified() {
            control.local_addr().and_then(at).or_else(|_| self.socket.try_clone())
        } else {
            self.socket.try_clone()
        }
    }

    /// Returns the address at which it listens.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves one client after another, reports each session, until the descriptor `stop` is readable.
    ///
    /// # Errors
    /// When nothing can be waited for.
    pub fn run(&self, stop: impl AsFd, mut ended: impl FnMut(Session)) -> io::Result<()> {
        loop {
            let far = Instant::now() + Duration::from_secs(3_600);
            let watched = [(self.listener.as_fd(), PollFlags::POLLIN), (stop.as_fd(), PollFlags::POLLIN)];
            let [came, stopped] = wake::until(watched, far)?;
            if stopped {
                return Ok(());
            }
            if came && let Some((control, peer)) = self.accept() {
                // A session that cannot be served ends; the client sees that.
                if let Ok(session) = self.serve(control, peer, &stop) {
                    ended(session);
                }
            }
        }
    }

    /// Accepts a client that waits; `None`: it has gone already, or memory or descriptors are lacking.
    fn accept(&self) -> Option<(TcpStream, SocketAddr)> {
        match self.listener.accept() {
            Err(error) if !is_passing(&error) => {
                // The client still waits, so poll(2) would return at once.
                thread::sleep(LACKING);
                None
            }
            accepted => accepted.ok(),
        }
    }

    /// Tells another client that the server is busy.
    fn turn_away(&self) {
        let Some((mut other, _)) = self.accept() else { return };
        let mut scratch = [0; MAX_TRAIN_PACKET];
        // Errors do not matter: the client only misses this packet.
        let _gone = other.set_nonblocking(true).and_then(|()| {
            let busy = Packet::Hello { busy: true };
            other.write_all(busy.encode(Token::random()?, &mut scratch))
        });
    }

    fn serve(&self, control: TcpStream, peer: SocketAddr, stop: &impl AsFd) -> io::Result<Session> {
        let token = Token::random()?;
        control.set_nodelay(true)?;
        control.set_nonblocking(true)?;
        let (ip, socket) = (peer.ip().to_canonical(), self.socket_for(&control)?);
        let mut desk = Desk { server: self, control, socket, token, ip, state: State::default() };
        let start = Instant::now();
        desk.say(Packet::Hello { busy: false })?;
        // The end of a connection, in whatever way, is the end of its session.
        let _ended = desk.work(start, stop);
        let State { echoes, trains, sent, .. } = desk.state;
        Ok(Session { peer, lasted: start.elapsed(), echoes, trains, sent })
    }
}

/// Returns a socket for trains at this address. Sockets of single addresses can be beside one of all addresses, if all of them have
/// the same user (`SO_REUSEPORT`). With `SO_REUSEADDR` every user of this host could bind the port, too, and would get the packets.
fn at(address: SocketAddr) -> io::Result<UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, None)?;
    socket.set_reuse_port(true)?;
    socket.bind(&address.into())?;
    let socket = UdpSocket::from(socket);
    prepare(&socket)?;
    Ok(socket)
}

/// Sets the buffers and the time stamps of a socket that receives trains.
pub(super) fn prepare(socket: &UdpSocket) -> io::Result<()> {
    datagram::stamp_arrivals(socket)?;
    // A smaller buffer than requested has less room for trains, which shows as losses.
    let _less = socket2::SockRef::from(socket).set_recv_buffer_size(RECEIVE_BUFFER);
    Ok(())
}

#[derive(Debug, Default)]
struct State {
    /// The client's address of UDP, once it has shown the token from there.
    known: Option<SocketAddr>,
    /// A request that has not come whole.
    partial: Vec<u8>,
    flight: Option<Flight>,
    /// A train whose figures the client waits for, and until when stragglers count.
    collect: Option<(u32, Instant)>,
    echoes: u64,
    trains: u32,
    sent: Bytes,
}

/// One client's session.
struct Desk<'a> {
    server: &'a PathServer,
    control: TcpStream,
    socket: UdpSocket,
    token: Token,
    ip: IpAddr,
    state: State,
}

impl Desk<'_> {
    fn work(&mut self, start: Instant, stop: &impl AsFd) -> io::Result<()> {
        let limits = self.server.limits;
        let mut heard = start;
        loop {
            let now = Instant::now();
            let end = (start + limits.time).min(heard + limits.idle);
            if now >= end {
                return Ok(());
            }
            let next = self.state.collect.map_or(end, |(_, until)| until.min(end));
            let watched = [
                (self.control.as_fd(), PollFlags::POLLIN),
                (self.socket.as_fd(), PollFlags::POLLIN),
                (stop.as_fd(), PollFlags::POLLIN),
                (self.server.listener.as_fd(), PollFlags::POLLIN),
            ];
            let [spoken, arrived, stopped, another] = wake::until(watched, next)?;
            if stopped {
                return Ok(());
            }
            if another {
                self.server.turn_away();
            }
            if arrived && self.receive_all() {
                heard = Instant::now();
            }
            if spoken {
                self.listen()?;
                heard = Instant::now();
            }
            self.answer_collect()?;
        }
    }

    fn say(&self, packet: Packet) -> io::Result<()> {
        (&self.control).write_all(packet.encode(self.token, &mut [0; MAX_TRAIN_PACKET]))
    }

    /// Takes in the waiting datagrams; returns whether one was the client's.
    fn receive_all(&mut self) -> bool {
        let mut buffer = [0; MAX_TRAIN_PACKET + 1];
        let mut any = false;
        // A flood must not delay the control connection.
        for _ in 0..self.server.limits.train_packets {
            let Some(datagram) = datagram::receive(&self.socket, &mut buffer) else { break };
            any |= self.received(&buffer[..datagram.len], datagram).is_some();
        }
        any
    }

    fn received(&mut self, bytes: &[u8], datagram: Datagram) -> Option<()> {
        let from = datagram.from?;
        let expected = self.state.known.map_or(from.ip().to_canonical() == self.ip, |known| known == from);
        let packet = expected.then(|| Packet::decode(bytes, self.token).ok()).flatten()?;
        match packet {
            Packet::Probe { sequence, sent, .. } => {
                if self.state.echoes >= self.server.limits.echoes {
                    return None;
                }
                let echo = Packet::Echo { sequence, sent, number: self.state.echoes };
                self.state.echoes += 1;
                // A datagram that the host cannot send is measured as lost.
                let echo = echo.encode(self.token, &mut [0; MAX_TRAIN_PACKET]).to_vec();
                let _lost_if_refused = self.socket.send_to(&echo, from);
            }
            Packet::Stamped { train, packets, index, sent, .. }
                if packets <= self.server.limits.train_packets =>
            {
                let newer = self.state.flight.as_ref().is_none_or(|flight| flight.number() < train);
                if newer {
                    self.state.flight = Some(Flight::new(train, packets));
                }
                let flight = self.state.flight.as_mut().filter(|flight| flight.number() == train)?;
                flight.arrived(index, sent.0, datagram.stamp.unwrap_or_else(datagram::unix_nanos));
                if let Some((_, until)) = &mut self.state.collect {
                    *until = Instant::now() + STRAGGLERS;
                }
            }
            _ => return None,
        }
        self.state.known = Some(from);
        Some(())
    }

    /// Reads requests from the control connection and carries them out.
    fn listen(&mut self) -> io::Result<()> {
        let mut bytes = [0; PROBE_LEN];
        let missing = PROBE_LEN - self.state.partial.len();
        let read = match (&self.control).read(&mut bytes[..missing]) {
            Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            read => read?,
        };
        self.state.partial.extend_from_slice(&bytes[..read]);
        let Some((request, _)) = self.state.partial.split_first_chunk::<PROBE_LEN>() else { return Ok(()) };
        let packet = Packet::decode(request, self.token).map_err(io::Error::other)?;
        self.state.partial.drain(..PROBE_LEN);
        match packet {
            Packet::Order { train, packets, length, spacing } => {
                self.send_train(Form { train, packets, length, spacing })
                    .ok_or(io::ErrorKind::PermissionDenied)?;
            }
            Packet::Collect { train } => self.state.collect = Some((train, Instant::now() + STRAGGLERS)),
            _ => return Err(io::ErrorKind::InvalidData.into()),
        }
        Ok(())
    }

    /// Sends a train within the limits; `None`: it would pass them, or the client's port is not known.
    fn send_train(&mut self, form: Form) -> Option<()> {
        let limits = self.server.limits;
        let bytes = Bytes(u64::from(form.packets) * u64::from(form.length));
        let time = form.spacing.0.checked_mul(form.packets.into())?;
        let fits = (1..=limits.train_packets).contains(&form.packets)
            && (PROBE_LEN..=MAX_TRAIN_PACKET).contains(&form.length.into())
            && time <= limits.train_time.0
            && self.state.sent.0 + bytes.0 <= limits.bytes.0;
        let to = self.state.known.filter(|_| fits)?;
        self.state.sent = Bytes(self.state.sent.0 + bytes.0);
        self.state.trains += 1;
        train::send_stamped(&self.socket, self.token, to, form);
        Some(())
    }

    fn answer_collect(&mut self) -> io::Result<()> {
        let Some((train, until)) = self.state.collect else { return Ok(()) };
        let flight = self.state.flight.as_ref().filter(|flight| flight.number() == train);
        if flight.is_some_and(Flight::is_complete) || Instant::now() >= until {
            let seen = flight.map(Flight::seen).unwrap_or_default();
            self.state.collect = None;
            self.say(Packet::Seen(super::packet::Seen { train, ..seen }))?;
        }
        Ok(())
    }
}
