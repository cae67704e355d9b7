//! The data receiver's side of the probes: sends them, measures, carries the requested rate.
//!
//! Source: Prasad 2004 (SOBAS), section IV-B: 100 bytes every 10 ms; five trains before the data.
//! Choices: trains are 20 ms apart without waiting for one another, so measuring takes about one round trip and 100 ms; each
//! train begins half-way between two probes. Arrival times are the kernel's (`SO_TIMESTAMPNS`), so scheduling delays of
//! this thread do not count. While the transfer stands still, a probe each second watches the path ([`Prober::rest`]).
//! Properties kept: measuring ends after [`ProberConfig::timeout`] at the latest, with the answers so far; without any
//! answer all figures stay "not measured", and no probe counts as lost.

use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_units::{Bytes, Micros, Rate};
use nix::poll::PollFlags;

use super::capacity::{self, Train};
use super::datagram;
use super::echoes::Echoes;
use super::packet::{MAX_TRAIN_PACKET, Packet, Token};
use crate::wake::{self, Bell};

/// Probes whose answer is still awaited; at 10 ms each, round trips up to ten seconds.
const MAX_AWAITED: usize = 1_024;
/// Time between probes while the transfer stands still.
const RESTING: Duration = Duration::from_secs(1);
/// An incomplete train ends when no packet of it has come for this time.
const ECHO_TIMEOUT: Duration = Duration::from_millis(50);

/// How a prober measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProberConfig {
    /// Time between probes: 10 ms (Prasad 2004, section IV-B).
    pub interval: Duration,
    /// Packet trains: 5 (Prasad 2004, section IV-B); 0: capacity is not measured.
    pub trains: u32,
    /// Packets in a train; 32 fit into a queue of 48 KB, and last 3.8 ms at 100 Mbit/s.
    pub train_packets: u16,
    /// Time between two requests for a train.
    pub train_spacing: Duration,
    /// Payload of a train's packets; `None`: what fits an Ethernet frame.
    pub train_payload: Option<u16>,
    /// How long to wait for trains, and for any answer at all.
    pub timeout: Duration,
}

impl Default for ProberConfig {
    fn default() -> Self {
        Self {
            interval: Duration::from_millis(10),
            trains: 5,
            train_packets: 32,
            train_spacing: Duration::from_millis(20),
            train_payload: None,
            timeout: Duration::from_secs(1),
        }
    }
}

/// The measurements so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Measured {
    /// Running average of the round-trip time; zero: no answer yet.
    pub rtt: Micros,
    /// Smallest round-trip time; zero: no answer yet.
    pub min_rtt: Micros,
    /// Lost among the last 100 probes.
    pub lost: u32,
    /// Rate at which packet trains arrived, UDP payload per second; `None`: not known (yet).
    pub capacity: Option<Rate>,
    /// The same by the trains' mean dispersion, without our treatment of late packets (Prasad 2004, section IV-B).
    pub mean_rate: Option<Rate>,
    /// Probes sent.
    pub sent: u64,
    /// Echoes received.
    pub answered: u64,
}

/// Probes one path on a thread of its own, until it is dropped.
#[derive(Debug)]
pub struct Prober {
    shared: Arc<Shared>,
    train_payload: u16,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    bell: Bell,
    stop: AtomicBool,
    /// The requested rate; 0: none.
    request: AtomicU64,
    /// The transfer stands still.
    resting: AtomicBool,
    progress: Mutex<Progress>,
    settled: Condvar,
}

#[derive(Debug, Default)]
struct Progress {
    measured: Measured,
    /// The trains have ended, or no answer came in time.
    settled: bool,
}

impl Shared {
    fn progress(&self) -> MutexGuard<'_, Progress> {
        // No thread panics while it holds the lock, and every value in it is valid at any time.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Prober {
    /// Begins to probe the responder at `peer` from `socket`; trains are asked for at once.
    ///
    /// # Errors
    /// When the socket cannot be connected to `peer` or has no time stamps, or the thread not be started.
    /// A silent peer is not an error.
    pub fn start(
        socket: UdpSocket,
        peer: SocketAddr,
        token: Token,
        config: ProberConfig,
    ) -> io::Result<Self> {
        socket.connect(peer)?;
        socket.set_nonblocking(true)?;
        datagram::stamp_arrivals(&socket)?;
        let shared = Arc::new(Shared {
            bell: Bell::new()?,
            stop: AtomicBool::new(false),
            request: AtomicU64::new(0),
            resting: AtomicBool::new(false),
            progress: Mutex::default(),
            settled: Condvar::new(),
        });
        let mut session = ProberThread::new(socket, peer, token, config, Arc::clone(&shared));
        let train_payload = session.train_payload;
        let thread = thread::Builder::new().name("bufwise-probe".to_owned()).spawn(move || session.run())?;
        Ok(Self { shared, train_payload, thread: Some(thread) })
    }

    /// Returns the payload of a train's packet in bytes, which [`Measured::capacity`] counts.
    #[must_use]
    pub fn train_payload(&self) -> u16 {
        self.train_payload
    }

    /// Returns the measurements so far.
    #[must_use]
    pub fn measured(&self) -> Measured {
        self.shared.progress().measured
    }

    /// Waits until the trains have been measured, at most [`ProberConfig::timeout`].
    #[must_use]
    pub fn settled(&self) -> Measured {
        let mut progress = self.shared.progress();
        while !progress.settled {
            progress = self.shared.settled.wait(progress).unwrap_or_else(PoisonError::into_inner);
        }
        progress.measured
    }

    /// Tells the sender at which rate to send the data, now and with every probe from here on.
    ///
    /// [`Rate`] of all ones lifts the limit.
    pub fn request_rate(&self, rate: Rate) {
        // Zero means "no request" on the wire.
        let rate = rate.0.max(1);
        if self.shared.request.swap(rate, Ordering::Relaxed) != rate {
            self.shared.bell.ring();
        }
    }

    /// Says whether the transfer stands still. Probes are rare then, because there may be very many such transfers.
    pub(crate) fn rest(&self, resting: bool) {
        if self.shared.resting.swap(resting, Ordering::Relaxed) != resting {
            self.shared.bell.ring();
        }
    }
}

impl Drop for Prober {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        self.shared.bell.ring();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread does not matter here: the session is over either way.
            let _ended = thread.join();
        }
    }
}

/// The thread's side.
struct ProberThread {
    socket: UdpSocket,
    token: Token,
    config: ProberConfig,
    shared: Arc<Shared>,
    train_payload: u16,
    start: Instant,
    /// Time between probes now.
    interval: Duration,
    next_probe: Instant,
    next_train: Instant,
    /// When each awaited probe was sent, at its number modulo [`MAX_AWAITED`].
    awaited: Vec<Option<Instant>>,
    sent: u64,
    answered: u64,
    echoes: Echoes,
    /// Trains asked for.
    trains: Vec<Train>,
    last_of_train: Instant,
    /// Capacity, and the rate by the mean dispersion.
    capacity: Option<Rate>,
    mean_rate: Option<Rate>,
    settled: bool,
}

impl ProberThread {
    fn new(
        socket: UdpSocket,
        peer: SocketAddr,
        token: Token,
        config: ProberConfig,
        shared: Arc<Shared>,
    ) -> Self {
        let start = Instant::now();
        // An Ethernet frame less the headers of UDP and of IPv6 or IPv4.
        let fits = if peer.ip().to_canonical().is_ipv4() { 1_472 } else { 1_452 };
        Self {
            socket,
            token,
            config,
            shared,
            train_payload: config.train_payload.unwrap_or(fits),
            start,
            interval: config.interval,
            next_probe: start,
            next_train: start + config.interval / 2,
            awaited: vec![None; MAX_AWAITED],
            sent: 0,
            answered: 0,
            echoes: Echoes::default(),
            trains: Vec::new(),
            last_of_train: start,
            capacity: None,
            mean_rate: None,
            settled: false,
        }
    }

    fn run(&mut self) {
        let shared = Arc::clone(&self.shared);
        while !shared.stop.load(Ordering::Relaxed) {
            let next = self.send_what_is_due();
            let watched =
                [(self.socket.as_fd(), PollFlags::POLLIN), (shared.bell.as_fd(), PollFlags::POLLIN)];
            // Without poll the thread cannot wait: end rather than spin.
            let Ok([readable, rung]) = wake::until(watched, next) else { break };
            if rung {
                shared.bell.silence();
                self.next_probe = Instant::now();
                self.set_interval(self.next_probe);
            }
            if readable {
                self.receive_all();
            }
            self.publish();
        }
        self.settled = true;
        self.publish();
    }

    /// Sets the interval for a transfer that moves or stands still.
    fn set_interval(&mut self, now: Instant) {
        let resting = self.shared.resting.load(Ordering::Relaxed);
        let interval = if resting { self.config.interval.max(RESTING) } else { self.config.interval };
        if interval != self.interval {
            self.interval = interval;
            self.echoes.interval_changed(micros(now - self.start));
        }
    }

    /// Sends the probe and the train request that are due; returns when the next one is.
    fn send_what_is_due(&mut self) -> Instant {
        let now = Instant::now();
        if now >= self.next_probe {
            let sequence = self.sent;
            self.sent += 1;
            self.awaited[sequence as usize % MAX_AWAITED] = Some(now);
            let request = self.shared.request.load(Ordering::Relaxed);
            let pacing = (request != 0).then_some(Rate(request));
            self.send(Packet::Probe { sequence, sent: micros(now - self.start), pacing });
            // After a pause the interval starts anew: missed probes are not sent later.
            let due = self.next_probe + self.interval;
            self.next_probe = if due > now { due } else { now + self.interval };
        }
        let left = self.config.trains.saturating_sub(self.trains.len() as u32);
        if left > 0 && now >= self.next_train {
            let train = self.trains.len() as u32;
            let (packets, length) = (self.config.train_packets, self.train_payload);
            self.trains.push(Train::new(packets));
            self.send(Packet::TrainRequest { train, packets, length });
            self.last_of_train = now;
            // After a pause the missed trains do not come all at once: the responder would ignore most of them.
            let spacing = self.config.train_spacing;
            self.next_train = (self.next_train + spacing).max(now + spacing / 2);
        }
        let over = self.trains.len() as u32 >= self.config.trains;
        if over { self.next_probe } else { self.next_probe.min(self.next_train) }
    }

    fn send(&self, packet: Packet) {
        // Refused while no one listens (ICMP) or no route is up: a lost probe.
        let _lost_if_refused = self.socket.send(packet.encode(self.token, &mut [0; MAX_TRAIN_PACKET]));
    }

    /// Takes in the datagrams that wait.
    fn receive_all(&mut self) {
        let mut buffer = [0; MAX_TRAIN_PACKET + 1];
        for _ in 0..datagram::AT_ONCE {
            let Some(datagram) = datagram::receive(&self.socket, &mut buffer) else { break };
            let now = (Instant::now(), datagram::unix_nanos());
            if let Ok(packet) = Packet::decode(&buffer[..datagram.len], self.token) {
                self.received(packet, now, datagram.stamp.unwrap_or(now.1));
            }
        }
    }

    /// Takes in a packet. `now` is the time on the monotonic clock and in wall-clock nanoseconds, `stamp` the arrival
    /// on the latter.
    fn received(&mut self, packet: Packet, now: (Instant, u64), stamp: u64) {
        match packet {
            Packet::Echo { sequence, number, .. } => {
                let slot = &mut self.awaited[sequence as usize % MAX_AWAITED];
                let recent = sequence < self.sent && self.sent - sequence <= MAX_AWAITED as u64;
                let Some(sent) = slot.take_if(|_| recent) else { return };
                // How long the echo waited for this thread, by the wall clock. If that is longer than all of its way, the
                // clock was set meanwhile.
                let waited = Duration::from_nanos(now.1.saturating_sub(stamp));
                let whole = now.0.saturating_duration_since(sent);
                let rtt = whole.checked_sub(waited).unwrap_or(whole);
                self.answered += 1;
                self.echoes.came(number, micros(rtt).max(Micros(1)), micros(now.0 - self.start));
            }
            // The rate is computed for packets of the length that was asked for.
            Packet::Train { train, index, length, .. } if !self.settled && length == self.train_payload => {
                if let Some(train) = self.trains.get_mut(train as usize) {
                    train.arrived(index, stamp);
                    self.last_of_train = now.0;
                }
            }
            _ => {}
        }
    }

    /// Whether the trains are over: all complete, or silent for long enough, or out of timeout.
    fn trains_are_over(&self, now: Instant) -> bool {
        if now - self.start >= self.config.timeout {
            return true;
        }
        let rtt = Duration::from_micros(self.echoes.average().0);
        let complete = self.trains.iter().all(Train::is_complete);
        self.answered > 0
            && self.trains.len() as u32 >= self.config.trains
            && (complete || now - self.last_of_train > rtt * 2 + ECHO_TIMEOUT)
    }

    fn publish(&mut self) {
        let now = Instant::now();
        if !self.settled && self.trains_are_over(now) {
            let length = Bytes(self.train_payload.into());
            self.capacity = capacity::capacity(&self.trains, length);
            self.mean_rate = capacity::mean_rate(&self.trains, length);
            self.settled = true;
        }
        let interval = micros(self.interval);
        let mut progress = self.shared.progress();
        progress.measured = Measured {
            rtt: self.echoes.average(),
            min_rtt: self.echoes.minimum(),
            lost: self.echoes.lost(micros(now - self.start), interval),
            capacity: self.capacity,
            mean_rate: self.mean_rate,
            sent: self.sent,
            answered: self.answered,
        };
        if self.settled && !progress.settled {
            progress.settled = true;
            self.shared.settled.notify_all();
        }
    }
}

fn micros(span: Duration) -> Micros {
    Micros(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A session with a peer that does not answer.
    fn session(config: ProberConfig) -> (ProberThread, UdpSocket) {
        let [socket, peer] = [(); 2].map(|()| UdpSocket::bind("127.0.0.1:0").unwrap());
        let to = peer.local_addr().unwrap();
        socket.connect(to).unwrap();
        let shared = Arc::new(Shared {
            bell: Bell::new().unwrap(),
            stop: AtomicBool::new(false),
            request: AtomicU64::new(0),
            resting: AtomicBool::new(false),
            progress: Mutex::default(),
            settled: Condvar::new(),
        });
        (ProberThread::new(socket, to, Token::from_bytes([1; 16]), config, shared), peer)
    }

    #[test]
    fn trains_that_were_missed_during_a_pause_do_not_come_all_at_once() {
        let config = ProberConfig::default();
        let (mut session, _peer) = session(config);
        session.next_train = Instant::now().checked_sub(Duration::from_millis(200)).unwrap();
        let before = Instant::now();
        session.send_what_is_due();
        assert_eq!(session.trains.len(), 1);
        assert!(session.next_train >= before + config.train_spacing / 2);
    }

    #[test]
    fn a_clock_that_is_set_forward_makes_no_round_trip_short() {
        let (mut session, _peer) = session(ProberConfig::default());
        session.send_what_is_due();
        let arrived = session.awaited[0].unwrap() + Duration::from_millis(40);
        let (stamp, an_hour_later) = (1_000_000_000, 3_601_000_000_000);
        let echo = Packet::Echo { sequence: 0, sent: Micros::ZERO, number: 0 };
        session.received(echo, (arrived, an_hour_later), stamp);
        assert_eq!(session.echoes.minimum(), Micros::from_millis(40));
    }

    #[test]
    fn packets_shorter_than_was_asked_for_are_no_part_of_a_train() {
        let (mut session, _peer) = session(ProberConfig::default());
        session.trains.push(Train::new(2));
        for (length, is_complete) in [(100, false), (session.train_payload, true)] {
            for index in 0..2 {
                let packet = Packet::Train { train: 0, packets: 2, index, length };
                session.received(packet, (Instant::now(), 0), u64::from(index));
            }
            assert_eq!(session.trains[0].is_complete(), is_complete, "{length}");
        }
    }

    #[test]
    fn the_last_train_does_not_wait_for_a_probe_either() {
        let (mut session, _peer) = session(ProberConfig { trains: 1, ..ProberConfig::default() });
        let soon = Instant::now() + Duration::from_secs(10);
        (session.next_train, session.next_probe) = (soon, soon + Duration::from_secs(1));
        assert_eq!(session.send_what_is_due(), soon);
        session.next_train = Instant::now();
        assert_eq!(session.send_what_is_due(), session.next_probe, "it was sent");
    }
}
