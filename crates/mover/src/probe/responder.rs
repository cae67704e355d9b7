//! The data sender's side of the probes: echoes, trains, and the rate the receiver requests.
//!
//! Source: Prasad 2004 (SOBAS), section IV-B; the request is ours.
//! Properties kept: packets are sent only to the session's peer, in answer to a packet with its token; an echo is as
//! long as its probe; echoes per second and trains per session are limited; a requested rate is set on the data socket
//! as soon as it arrives, and never below a floor.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_socket::options::{self, OptionError};
use bufwise_units::Rate;
use nix::poll::PollFlags;

use super::packet::{MAX_TRAIN_PACKET, Packet, Token};
use super::train;
use crate::wake::{self, Bell};

/// Bounds of one peer's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Packet trains in all: the five of Prasad 2004, once repeated.
    pub trains: u32,
    /// Packets in one train.
    pub train_packets: u16,
    /// Shortest time between two trains.
    pub train_spacing: Duration,
    /// Echoes in a second: twice those of Prasad 2004, and room for catching up.
    pub echoes_per_second: u32,
    /// Lowest rate that a request can set.
    pub slowest: Rate,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            trains: 10,
            train_packets: 64,
            train_spacing: Duration::from_millis(5),
            echoes_per_second: 250,
            slowest: Rate(8_000),
        }
    }
}

/// Counts of a responder's work so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Probes answered.
    pub echoes: u64,
    /// Trains sent.
    pub trains: u32,
    /// Number of ignored datagrams: from a wrong peer, with a wrong token, malformed, or beyond a limit.
    pub ignored: u64,
}

/// Answers one session's probes on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Responder {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    stop: Bell,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counters: Counters,
    request: Option<Rate>,
    data: Option<TcpStream>,
    /// Upper bound of the rate, whatever is requested.
    limit: Option<Rate>,
}

impl State {
    /// Returns the rate that request and limit allow; `None`: neither is known.
    fn rate(&self) -> Option<Rate> {
        [self.request, self.limit].into_iter().flatten().min()
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds the lock, and every value in it is valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Responder {
    /// Answers packets that arrive on `socket` from `peer` (any port; the first valid packet fixes it).
    ///
    /// # Errors
    /// When the socket cannot be switched to non-blocking, or the thread not be started.
    pub fn start(socket: UdpSocket, peer: IpAddr, token: Token, limits: Limits) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        let address = socket.local_addr()?;
        let shared = Arc::new(Shared { stop: Bell::new()?, state: Mutex::default() });
        let mut session =
            ResponderThread::new(socket, peer.to_canonical(), token, limits, Arc::clone(&shared));
        let thread = thread::Builder::new().name("bufwise-echo".to_owned()).spawn(move || session.run())?;
        Ok(Self { shared, address, thread: Some(thread) })
    }

    /// Returns the address at which it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the rate that the receiver last requested, bounded below by [`Limits::slowest`]; all ones: no limit.
    #[must_use]
    pub fn requested_rate(&self) -> Option<Rate> {
        self.shared.state().request
    }

    /// Counts of answered and ignored packets.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.shared.state().counters
    }

    /// Bounds the rate of `data` by the receiver's requests from now on, by the present one at once, and by `limit`, if
    /// there is one.
    ///
    /// # Errors
    /// [`OptionError`] when the rate cannot be set.
    pub fn pace(&self, data: &TcpStream, limit: Option<Rate>) -> Result<(), OptionError> {
        let data = data.try_clone().map_err(|source| OptionError::Set {
            option: "SO_MAX_PACING_RATE",
            value: "the receiver's request".to_owned(),
            source,
        })?;
        let mut state = self.shared.state();
        state.limit = limit;
        if let Some(rate) = state.rate() {
            options::set_max_pacing_rate(&data, rate)?;
        }
        state.data = Some(data);
        Ok(())
    }
}

impl Drop for Responder {
    fn drop(&mut self) {
        self.shared.stop.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread does not matter here: the session is over either way.
            let _ended = thread.join();
        }
    }
}

/// The thread's side.
struct ResponderThread {
    socket: UdpSocket,
    peer: IpAddr,
    /// The peer with its port, once it has shown the token.
    known: Option<SocketAddr>,
    token: Token,
    limits: Limits,
    shared: Arc<Shared>,
    newest_probe: Option<u64>,
    last_train: Option<Instant>,
    /// Start of the present second, and echoes in it.
    second: (Instant, u32),
}

impl ResponderThread {
    fn new(socket: UdpSocket, peer: IpAddr, token: Token, limits: Limits, shared: Arc<Shared>) -> Self {
        let second = (Instant::now(), 0);
        Self {
            socket,
            peer,
            known: None,
            token,
            limits,
            shared,
            newest_probe: None,
            last_train: None,
            second,
        }
    }

    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        let mut buffer = [0; MAX_TRAIN_PACKET + 1];
        loop {
            let far = Instant::now() + Duration::from_secs(3_600);
            let watched =
                [(self.socket.as_fd(), PollFlags::POLLIN), (shared.stop.as_fd(), PollFlags::POLLIN)];
            // Without poll the thread cannot wait: end rather than spin.
            let Ok([_, false]) = wake::until(watched, far) else { return };
            // One datagram per round: a flood must not delay the bell.
            if let Ok((len, from)) = self.socket.recv_from(&mut buffer) {
                let answered = self.answer(&buffer[..len], from);
                let counters = &mut shared.state().counters;
                match answered {
                    Some(Answered::Echo) => counters.echoes += 1,
                    Some(Answered::Train) => counters.trains += 1,
                    None => counters.ignored += 1,
                }
            }
        }
    }

    fn answer(&mut self, datagram: &[u8], from: SocketAddr) -> Option<Answered> {
        let expected = self.known.map_or(from.ip().to_canonical() == self.peer, |known| known == from);
        let packet = expected.then(|| Packet::decode(datagram, self.token).ok()).flatten()?;
        let answered = match packet {
            Packet::Probe { sequence, sent, pacing } => {
                let number = self.take_echo()?;
                self.send(Packet::Echo { sequence, sent, number }, from);
                if self.newest_probe.is_none_or(|newest| sequence > newest) {
                    self.newest_probe = Some(sequence);
                    self.hear(pacing);
                }
                Answered::Echo
            }
            Packet::TrainRequest { train, packets, length } => {
                self.take_train(packets, length)?;
                let packet = |index| Packet::Train { train, packets, index, length };
                train::send_together(&self.socket, self.token, from, packets, train % 2 == 0, packet);
                Answered::Train
            }
            _ => return None,
        };
        self.known = Some(from);
        Some(answered)
    }

    /// Returns the next echo's number, if the second's allowance is not used up.
    fn take_echo(&mut self) -> Option<u64> {
        if self.second.0.elapsed() >= Duration::from_secs(1) {
            self.second = (Instant::now(), 0);
        }
        if self.second.1 >= self.limits.echoes_per_second {
            return None;
        }
        self.second.1 += 1;
        Some(self.shared.state().counters.echoes)
    }

    /// Whether a train of this form may be sent now.
    fn take_train(&mut self, packets: u16, length: u16) -> Option<()> {
        let sent = self.shared.state().counters.trains;
        let too_soon = self.last_train.is_some_and(|last| last.elapsed() < self.limits.train_spacing);
        let fits =
            (1..=self.limits.train_packets).contains(&packets) && usize::from(length) <= MAX_TRAIN_PACKET;
        if sent >= self.limits.trains || too_soon || !fits {
            return None;
        }
        self.last_train = Some(Instant::now());
        Some(())
    }

    fn send(&self, packet: Packet, to: SocketAddr) {
        // A datagram that the host cannot send is measured as lost.
        let _lost_if_refused = self.socket.send_to(packet.encode(self.token, &mut [0; MAX_TRAIN_PACKET]), to);
    }

    fn hear(&mut self, pacing: Option<Rate>) {
        let Some(rate) = pacing.map(|rate| rate.max(self.limits.slowest)) else { return };
        let mut state = self.shared.state();
        if state.request != Some(rate) {
            state.request = Some(rate);
            if let Some(data) = &state.data {
                // Refused only after the transfer's socket has gone; then there is nothing to pace.
                let _too_late = options::set_max_pacing_rate(data, state.rate().unwrap_or(rate));
            }
        }
    }
}

enum Answered {
    Echo,
    Train,
}
