//! The client of `bufwise probe` against a server of its own: one measurement after another.
//!
//! Source: capacity by the dispersion of trains that are sent back to back (as in [`capacity`](super::capacity)), first
//! joined ones, and single packets only if the joined ones show nothing (see [`train`]); available bandwidth by trains
//! at rising rates, in steps of a tenth of the capacity, until three steps in a row are too fast (Melander 2000; Jain
//! and Dovrolis 2002), see [`estimate`](super::estimate). Two trains at the whole capacity give the first rate.
//! Properties kept: every wait is bounded; a train is sent after the one before has arrived, so that its queue has
//! drained; figures without an answer stay "not measured".

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_units::{BitRate, Bytes, Micros, Nanos};
use nix::poll::PollFlags;

use super::datagram;
use super::estimate::{self, Available, Estimate};
use super::flight::Flight;
use super::packet::{MAX_TRAIN_PACKET, PROBE_LEN, Packet, Seen, Token};
use super::server;
use super::train::{self, Form};
use super::wait::{self, GRACE, LONGEST_SILENCE, TIMEOUT, Wait};
use crate::wake;

/// Payload of a train's packets: the largest that passes most tunnels unfragmented (WireGuard's 1,420 bytes over IPv6).
const PAYLOAD: u16 = 1_352;
/// Trains for the capacity of one direction, joined or not, and packets in each.
const CAPACITY_TRAINS: u32 = 4;
const CAPACITY_PACKETS: u16 = 32;
/// Nanoseconds between packets beyond which shorter trains suffice: slower than about 2 Mbit/s.
const SLOW: u32 = 5_000_000;
const SLOW_PACKETS: u16 = 8;
/// Duration of a train for the available bandwidth in seconds, and its least and most packets.
const TRAIN_TIME: f64 = 0.015;
const TRAIN_PACKETS: std::ops::RangeInclusive<f64> = 32.0..=1_000.0;
/// On a slow path a train ends after the first (seconds); a train of fewer packets than the second is not sent.
const LONGEST_TRAIN: f64 = 1.0;
const FEWEST_PACKETS: f64 = 8.0;
/// Rates are tenths of the capacity. The first trains have the whole capacity: their delay gives the rate to begin
/// with.
const STEPS: u64 = 10;
const SOUNDING: u64 = 10;
const LEAST_STEP: u64 = 2;
const MOST_STEP: u64 = 13;
const TRAINS_PER_STEP: u32 = 2;
const ATTEMPTS_PER_STEP: u32 = 6;
/// Number of steps in a row that are too fast, after which faster steps give no new information.
const ENOUGH_STEPS: u32 = 3;

/// Direction of the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathDirection {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    FromServer,
}

/// Echoes of some probes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Echoed {
    /// Probes sent.
    pub sent: u64,
    /// Round-trip times of those answered, in their order.
    pub round_trips: Vec<Micros>,
    /// Probes between the first and the last answer that were lost on the way to the server.
    pub lost_to_server: u64,
    /// Probes between the first and the last answer whose echoes were lost on the way back.
    pub lost_from_server: u64,
    /// Probes that were lost before the first answer or after the last: the server's numbers do not show in which direction.
    pub lost_unknown: u64,
}

/// One session with a server.
#[derive(Debug)]
pub struct PathClient {
    control: TcpStream,
    socket: UdpSocket,
    server: SocketAddr,
    token: Token,
    /// IP header and UDP header.
    headers: u16,
    next_train: u32,
    next_probe: u64,
    /// Shortest round trip so far.
    round_trip: Option<Micros>,
    /// The last train that showed a distance had its packets more than [`SLOW`] apart, in either direction.
    is_slow: bool,
    sent: Bytes,
    received: Bytes,
}

impl PathClient {
    /// Reads the server's first packet on `control`, for at most `patience`. The inner error returns the connection, if
    /// the server is not bufwise's.
    ///
    /// # Errors
    /// The kernel's error; [`io::ErrorKind::ResourceBusy`] when the server has another client.
    pub fn begin(control: TcpStream, patience: Duration) -> io::Result<Result<Self, TcpStream>> {
        control.set_nodelay(true)?;
        let Some(token) = greeting(&control, patience)? else { return Ok(Err(control)) };
        control.set_write_timeout(Some(TIMEOUT))?;
        let (server, mut own) = (control.peer_addr()?, control.local_addr()?);
        own.set_port(0);
        let socket = UdpSocket::bind(own)?;
        server::prepare(&socket)?;
        let headers = if server.ip().to_canonical().is_ipv4() { 28 } else { 48 };
        let (next_train, next_probe) = (0, 0);
        let (round_trip, sent, received) = (None, Bytes(0), Bytes(0));
        let client = Self {
            control,
            socket,
            server,
            token,
            headers,
            next_train,
            next_probe,
            round_trip,
            is_slow: false,
            sent,
            received,
        };
        Ok(Ok(client))
    }

    /// Returns the IP bytes sent to the server and received from it by UDP so far.
    #[must_use]
    pub fn moved(&self) -> (Bytes, Bytes) {
        (self.sent, self.received)
    }

    /// Sends a probe each `interval` for `time`, and waits for the answers.
    ///
    /// # Errors
    /// When nothing can be waited for.
    pub fn echoes(&mut self, interval: Duration, time: Duration) -> io::Result<Echoed> {
        let (start, first) = (Instant::now(), self.next_probe);
        let mut probes = Probes::default();
        let mut next = start;
        loop {
            let now = Instant::now();
            let sending = now < start + time;
            let patience = self.patience();
            if !sending && (probes.answered() || now >= start + time + patience) {
                break;
            }
            if sending && now >= next {
                probes.sent.push(Some(now));
                let sent = Micros(now.duration_since(start).as_micros() as u64);
                self.send(Packet::Probe { sequence: self.next_probe, sent, pacing: None });
                self.next_probe += 1;
                next = now + interval;
            }
            let until = if sending { next.min(start + time) } else { start + time + patience };
            for (packet, stamp) in self.receive(until)? {
                if let Packet::Echo { sequence, number, .. } = packet {
                    probes.came(sequence.wrapping_sub(first), number, moment(stamp));
                }
            }
        }
        let least = probes.round_trips.iter().min().copied();
        self.round_trip = [self.round_trip, least].into_iter().flatten().min();
        Ok(probes.outcome())
    }

    /// Returns the capacity of the tight link of one direction; `None`: the trains did not show it.
    ///
    /// # Errors
    /// The connection's error, when the server does not answer.
    pub fn capacity(&mut self, direction: PathDirection, deadline: Instant) -> io::Result<Option<Estimate>> {
        let mut trains: Vec<Seen> = Vec::new();
        let mut found = None;
        // Trains with even numbers are joined.
        for parity in [0_u32, 1] {
            for _ in 0..CAPACITY_TRAINS {
                if found.is_none() && Instant::now() < deadline {
                    let packets = if self.is_slow { SLOW_PACKETS } else { CAPACITY_PACKETS };
                    self.next_train = self.next_train.next_multiple_of(2) + parity;
                    let seen = self.train(direction, packets, Nanos(0))?;
                    if seen.dispersion > 0 {
                        self.is_slow = seen.dispersion > SLOW;
                    }
                    trains.push(seen);
                }
            }
            found = estimate::capacity(&trains, PAYLOAD + self.headers);
        }
        Ok(found)
    }

    /// Returns the part of `capacity` that is free in one direction.
    ///
    /// # Errors
    /// As for the capacity.
    pub fn available(
        &mut self,
        direction: PathDirection,
        capacity: BitRate,
        deadline: Instant,
    ) -> io::Result<Available> {
        let length = PAYLOAD + self.headers;
        let mut trains = Vec::new();
        self.step(direction, SOUNDING, capacity, deadline, &mut trains)?;
        let sounded = estimate::available(&trains, length, capacity).estimate;
        let left = sounded.map_or(STEPS, |left| left.high.0 * STEPS / capacity.0.max(1));
        let mut too_fast = 0;
        for step in left.saturating_sub(1).clamp(LEAST_STEP, STEPS - 1)..=MOST_STEP {
            let before = trains.len();
            self.step(direction, step, capacity, deadline, &mut trains)?;
            too_fast = estimate::steps_too_fast(too_fast, &trains[before..], length, capacity);
            if too_fast >= ENOUGH_STEPS {
                break;
            }
        }
        Ok(estimate::available(&trains, length, capacity))
    }

    /// Sends trains at `step` tenths of the capacity, until the deadline.
    fn step(
        &mut self,
        direction: PathDirection,
        step: u64,
        capacity: BitRate,
        deadline: Instant,
        trains: &mut Vec<Seen>,
    ) -> io::Result<()> {
        let rate = capacity.0 as f64 * step as f64 / STEPS as f64;
        let packet = f64::from(PAYLOAD + self.headers) * 8.0 / rate.max(1.0);
        let packets = (TRAIN_TIME / packet).clamp(*TRAIN_PACKETS.start(), *TRAIN_PACKETS.end());
        let packets = packets.min(LONGEST_TRAIN / packet);
        if packets < FEWEST_PACKETS {
            return Ok(());
        }
        // Trains that a busy host has disturbed are sent again.
        let mut good = 0;
        for _ in 0..ATTEMPTS_PER_STEP {
            if good < TRAINS_PER_STEP && Instant::now() < deadline {
                let seen = self.train(direction, packets as u16, Nanos((packet * 1e9) as u64))?;
                good += u32::from(seen.slope.is_some());
                trains.push(seen);
            }
        }
        Ok(())
    }

    /// Sends a train, or orders one, and returns its arrivals.
    fn train(&mut self, direction: PathDirection, packets: u16, spacing: Nanos) -> io::Result<Seen> {
        let form = Form { train: self.next_train, packets, length: PAYLOAD, spacing };
        self.next_train += 1;
        match direction {
            PathDirection::ToServer => {
                train::send_stamped(&self.socket, self.token, self.server, form);
                let bytes = Bytes(u64::from(packets) * u64::from(PAYLOAD + self.headers));
                self.sent += bytes;
                self.say(Packet::Collect { train: form.train })?;
                // A spaced train takes no longer on its way than the sending of it.
                self.hear(form.train, if spacing == Nanos(0) { wait::behind(bytes) } else { TIMEOUT })
            }
            PathDirection::FromServer => {
                let Form { train, length, .. } = form;
                self.say(Packet::Order { train, packets, length, spacing })?;
                self.fly(form)
            }
        }
    }

    /// Receives the train that was ordered.
    fn fly(&mut self, form: Form) -> io::Result<Seen> {
        let mut flight = Flight::new(form.train, form.packets);
        let length = Duration::from_nanos(form.spacing.0.saturating_mul(form.packets.into()));
        let mut wait = Wait::new(Instant::now(), length + self.patience());
        while !flight.is_complete() && Instant::now() < wait.until() {
            for (packet, stamp) in self.receive(wait.until())? {
                let Packet::Stamped { train, index, sent, .. } = packet else { continue };
                let now = Instant::now();
                wait.came(now);
                if train == form.train {
                    flight.arrived(index, sent.0, stamp);
                    if index + 1 == form.packets {
                        wait.ends(now);
                    }
                }
            }
        }
        Ok(flight.seen())
    }

    /// Returns the server's report on a train, which must come within `patience`.
    fn hear(&mut self, train: u32, patience: Duration) -> io::Result<Seen> {
        let answer = whole_packet(&self.control, Instant::now() + patience)?;
        match Packet::decode(&answer, self.token) {
            Ok(Packet::Seen(seen)) if seen.train == train => Ok(seen),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the server gave an unexpected answer")),
        }
    }

    fn say(&self, packet: Packet) -> io::Result<()> {
        (&self.control).write_all(packet.encode(self.token, &mut [0; MAX_TRAIN_PACKET]))
    }

    fn send(&mut self, packet: Packet) {
        let mut scratch = [0; MAX_TRAIN_PACKET];
        let bytes = packet.encode(self.token, &mut scratch);
        self.sent = Bytes(self.sent.0 + bytes.len() as u64 + u64::from(self.headers));
        // A datagram that the host cannot send is a datagram lost.
        let _lost_if_refused = self.socket.send_to(bytes, self.server);
    }

    /// Returns the packets that wait, with the times of their arrival. Waits for the first one until `until`; returns a bounded
    /// number of packets at once.
    fn receive(&mut self, until: Instant) -> io::Result<Vec<(Packet, u64)>> {
        wake::until([(self.socket.as_fd(), PollFlags::POLLIN)], until)?;
        let mut buffer = [0; MAX_TRAIN_PACKET + 1];
        let mut packets = Vec::new();
        for _ in 0..datagram::AT_ONCE {
            let Some(datagram) = datagram::receive(&self.socket, &mut buffer) else { break };
            let Ok(packet) = Packet::decode(&buffer[..datagram.len], self.token) else { continue };
            if datagram.from != Some(self.server) {
                continue;
            }
            self.received = Bytes(self.received.0 + datagram.len as u64 + u64::from(self.headers));
            packets.push((packet, datagram.stamp.unwrap_or_else(datagram::unix_nanos)));
        }
        Ok(packets)
    }

    /// Returns how long an answer may take.
    fn patience(&self) -> Duration {
        let round_trip =
            self.round_trip.map_or(Duration::from_secs(1), |least| Duration::from_micros(least.0));
        LONGEST_SILENCE.min(round_trip * 3 + GRACE)
    }
}

/// Returns the moment of a recent arrival, whose `stamp` is of the wall clock: that clock may step while a probe is under way.
fn moment(stamp: u64) -> Instant {
    let (now, wall) = (Instant::now(), datagram::unix_nanos());
    now.checked_sub(Duration::from_nanos(wall.saturating_sub(stamp))).unwrap_or(now)
}

/// Returns the token in the first packet of bufwise's server.
fn greeting(control: &TcpStream, patience: Duration) -> io::Result<Option<Token>> {
    let deadline = Instant::now() + patience;
    let mut hello = [0; PROBE_LEN];
    // Peeked, not read: the bytes may belong to another protocol.
    while wake::until([(control.as_fd(), PollFlags::POLLIN)], deadline)? == [true] {
        let came = control.peek(&mut hello)?;
        let is_ours = hello[..came.min(4)] == *b"bfwp";
        if came == PROBE_LEN && is_ours {
            (&mut &*control).read_exact(&mut hello)?;
            let busy = || io::Error::new(io::ErrorKind::ResourceBusy, "it measures with another client");
            return Token::of_hello(&hello).map(Some).ok_or_else(busy);
        }
        if came == 0 || !is_ours || Instant::now() >= deadline {
            break;
        }
        // The rest of it comes with the next segment; a socket that has some bytes stays readable.
        thread::sleep(Duration::from_millis(1));
    }
    Ok(None)
}

/// Returns the next packet of the control connection, which must be whole by the deadline, however slowly its bytes come.
fn whole_packet(mut control: &TcpStream, deadline: Instant) -> io::Result<[u8; PROBE_LEN]> {
    let mut packet = [0; PROBE_LEN];
    let mut came = 0;
    while came < PROBE_LEN {
        if wake::until([(control.as_fd(), PollFlags::POLLIN)], deadline)? != [true] {
            return Err(io::Error::new(io::ErrorKind::TimedOut, "it has stopped answering"));
        }
        match control.read(&mut packet[came..])? {
            0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has closed the connection")),
            more => came += more,
        }
    }
    Ok(packet)
}

/// Probes of one series.
#[derive(Debug, Default)]
struct Probes {
    /// When each probe was sent; removed when it is answered.
    sent: Vec<Option<Instant>>,
    round_trips: Vec<Micros>,
    /// Places of the first and the last that were answered, with the server's numbers.
    ends: Option<[(u64, u64); 2]>,
}

impl Probes {
    fn came(&mut self, place: u64, number: u64, arrived: Instant) {
        let slot = usize::try_from(place).ok().and_then(|place| self.sent.get_mut(place));
        let Some(sent) = slot.and_then(Option::take) else { return };
        // Before it was sent: the wall clock was set between the arrival and its reading.
        let took = arrived.checked_duration_since(sent).unwrap_or_else(|| sent.elapsed());
        self.round_trips.push(Micros((took.as_micros() as u64).max(1)));
        let [first, last] = self.ends.unwrap_or([(place, number); 2]);
        self.ends = Some([first.min((place, number)), last.max((place, number))]);
    }

    fn answered(&self) -> bool {
        self.sent.iter().all(Option::is_none)
    }

    fn outcome(self) -> Echoed {
        let sent = self.sent.len() as u64;
        let answers = self.round_trips.len() as u64;
        let lost = sent.saturating_sub(answers);
        let (between, missed) = self.ends.map_or((0, 0), |[first, last]| {
            let (probes, numbers) = (last.0 - first.0, last.1.saturating_sub(first.1));
            ((probes + 1).saturating_sub(answers), probes.saturating_sub(numbers))
        });
        let lost_to_server = missed.min(between);
        let (lost_from_server, lost_unknown) = (between - lost_to_server, lost.saturating_sub(between));
        Echoed { sent, round_trips: self.round_trips, lost_to_server, lost_from_server, lost_unknown }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    /// The moments at which a probe was sent and its echo arrived.
    fn a_round_trip() -> (Instant, Instant) {
        let start = Instant::now();
        (start, start + Duration::from_micros(40_999))
    }

    #[test]
    fn losses_belong_to_the_way_on_which_they_happened() {
        let (start, later) = a_round_trip();
        let mut probes = Probes { sent: vec![Some(start); 10], ..Probes::default() };
        // 2 and 3 never reached the server; its answer to 7 was lost.
        for (place, number) in [(0, 5), (1, 6), (4, 7), (5, 8), (6, 9), (8, 11), (9, 12)] {
            probes.came(place, number, later);
        }
        probes.came(9, 12, later + Duration::from_millis(1));
        probes.came(u64::MAX, 13, later + Duration::from_millis(1));
        let outcome = probes.outcome();
        assert_eq!((outcome.sent, outcome.round_trips.len()), (10, 7));
        assert_eq!((outcome.lost_to_server, outcome.lost_from_server, outcome.lost_unknown), (2, 1, 0));
        assert_eq!(outcome.round_trips[0], Micros(40_999));
    }

    #[test]
    fn losses_before_the_first_and_after_the_last_answer_belong_to_no_way() {
        let outcome = |answers: &[(u64, u64)]| {
            let (start, later) = a_round_trip();
            let mut probes = Probes { sent: vec![Some(start); 100], ..Probes::default() };
            answers.iter().for_each(|(place, number)| probes.came(*place, *number, later));
            let Echoed { lost_to_server, lost_from_server, lost_unknown, .. } = probes.outcome();
            (lost_to_server, lost_from_server, lost_unknown)
        };
        let half: Vec<(u64, u64)> = (0..50).map(|place| (place, place)).collect();
        assert_eq!(outcome(&half), (0, 0, 50), "a way has died, whichever");
        // The first two are missing; the server did not get 5, and its answer to 7 was lost.
        assert_eq!(outcome(&[(2, 0), (4, 2), (3, 1), (6, 3), (8, 5)]), (1, 1, 93));
        assert_eq!(outcome(&[(9, 3), (8, 2)]), (0, 0, 98), "the later one came first");
        assert_eq!(outcome(&[(7, 0)]), (0, 0, 99));
        assert_eq!(outcome(&[]), (0, 0, 100));
    }

    #[test]
    fn a_clock_that_is_set_forward_makes_no_round_trip_short() {
        let sent = Instant::now().checked_sub(Duration::from_millis(40)).unwrap();
        let mut probes = Probes { sent: vec![Some(sent)], ..Probes::default() };
        probes.came(0, 0, sent.checked_sub(Duration::from_millis(10)).unwrap());
        assert!(probes.round_trips[0] >= Micros::from_millis(40), "{probes:?}");
    }

    /// A client of a server that only greets; with the server's end of the connection, and its token.
    fn greeted() -> (PathClient, TcpStream, Token) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let control = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (mut server, _) = listener.accept().unwrap();
        let token = Token::from_bytes([7; 16]);
        let hello = Packet::Hello { busy: false };
        server.write_all(hello.encode(token, &mut [0; MAX_TRAIN_PACKET])).unwrap();
        let client = PathClient::begin(control, Duration::from_secs(10)).unwrap().unwrap();
        (client, server, token)
    }

    #[test]
    fn an_answer_in_pieces_ends_at_the_deadline_and_a_closed_connection_at_once() {
        let (client, mut server, _) = greeted();
        server.write_all(&[1; PROBE_LEN / 2]).unwrap();
        let late = whole_packet(&client.control, Instant::now()).unwrap_err();
        assert_eq!(late.kind(), io::ErrorKind::TimedOut);
        drop(server);
        let closed = whole_packet(&client.control, Instant::now() + Duration::from_secs(10)).unwrap_err();
        assert_eq!(closed.kind(), io::ErrorKind::UnexpectedEof);
    }

    #[test]
    fn a_train_over_a_slow_link_is_waited_for() {
        let (mut client, _server, token) = greeted();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.server = peer.local_addr().unwrap();
        client.round_trip = Some(Micros(1));
        let to = client.socket.local_addr().unwrap();
        // A machine that stands still for longer than the grace cuts a train off.
        let whole = (0..20).any(|train| {
            let (packets, length) = (8_u16, PROBE_LEN as u16);
            thread::scope(|scope| {
                scope.spawn(|| {
                    for index in 0..packets {
                        thread::sleep(GRACE / 4);
                        let sent = Nanos(index.into());
                        let packet = Packet::Stamped { train, packets, index, length, sent };
                        peer.send_to(packet.encode(token, &mut [0; MAX_TRAIN_PACKET]), to).unwrap();
                    }
                });
                client.fly(Form { train, packets, length, spacing: Nanos(0) }).unwrap().run == packets
            })
        });
        assert!(whole);
    }

    #[test]
    fn a_flood_is_read_in_parts() {
        let (mut client, _server, token) = greeted();
        let peer = UdpSocket::bind("127.0.0.1:0").unwrap();
        client.server = peer.local_addr().unwrap();
        let mut scratch = [0; MAX_TRAIN_PACKET];
        let most = datagram::AT_ONCE;
        for number in 0..most as u64 + 10 {
            let echo = Packet::Echo { sequence: number, sent: Micros(1), number };
            let bytes = echo.encode(token, &mut scratch);
            peer.send_to(bytes, client.socket.local_addr().unwrap()).unwrap();
        }
        let deadline = Instant::now() + Duration::from_secs(10);
        let mut came = 0;
        while came < most + 10 {
            let part = client.receive(deadline).unwrap().len();
            assert!((1..=most).contains(&part), "{part} after {came}");
            came += part;
        }
    }
}
