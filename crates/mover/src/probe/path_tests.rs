//! Client and server of `bufwise probe` against each other, and against peers that misbehave, over loopback.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_units::{BitRate, Bytes, Micros, Nanos};

use super::packet::{MAX_TRAIN_PACKET, PROBE_LEN, Packet, Seen, Token};
use super::{PathClient, PathDirection, PathServer, Session, SessionLimits};
use crate::wake::Bell;

const PATIENCE: Duration = Duration::from_secs(10);

/// A server that stops when this is dropped.
struct Served {
    address: SocketAddr,
    stop: Arc<Bell>,
    sessions: Receiver<Session>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.ring();
        self.thread.take().unwrap().join().unwrap();
    }
}

fn serve(limits: SessionLimits) -> Served {
    serve_at("127.0.0.1:0", limits)
}

fn serve_at(address: &str, limits: SessionLimits) -> Served {
    let server = PathServer::bind(address.parse().unwrap(), limits).unwrap();
    let address = server.address().unwrap();
    let stop = Arc::new(Bell::new().unwrap());
    let (tell, sessions) = channel();
    let heard = Arc::clone(&stop);
    let thread = thread::spawn(move || {
        let told = |session| {
            // A test that has seen enough listens no more.
            let _heard = tell.send(session);
        };
        server.run(&*heard, told).unwrap();
    });
    Served { address, stop, sessions, thread: Some(thread) }
}

impl Served {
    fn connect(&self) -> TcpStream {
        let control = TcpStream::connect(self.address).unwrap();
        control.set_read_timeout(Some(PATIENCE)).unwrap();
        control
    }

    fn client(&self) -> PathClient {
        PathClient::begin(self.connect(), PATIENCE).unwrap().unwrap()
    }

    /// A connection with its token, and a socket of UDP from `ip`.
    fn raw(&self, ip: &str) -> (TcpStream, Token, UdpSocket) {
        let mut control = self.connect();
        let mut hello = [0; PROBE_LEN];
        control.read_exact(&mut hello).unwrap();
        let socket = UdpSocket::bind((ip, 0)).unwrap();
        socket.connect(self.address).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        (control, Token::of_hello(&hello).expect("a token"), socket)
    }

    fn session(&self) -> Session {
        self.sessions.recv_timeout(PATIENCE).expect("the session ends")
    }
}

fn bytes(packet: Packet, token: Token) -> Vec<u8> {
    packet.encode(token, &mut [0; MAX_TRAIN_PACKET]).to_vec()
}

fn probe(sequence: u64) -> Packet {
    Packet::Probe { sequence, sent: Micros(1), pacing: None }
}

fn order(packets: u16, length: u16) -> Packet {
    Packet::Order { train: 1, packets, length, spacing: Nanos(0) }
}

#[test]
fn a_server_at_all_addresses_answers_from_the_one_that_was_called() {
    let served = serve_at("0.0.0.0:0", SessionLimits::default());
    for _ in 0..2 {
        let called = SocketAddr::from(([127, 0, 0, 2], served.address.port()));
        let mut client = PathClient::begin(TcpStream::connect(called).unwrap(), PATIENCE).unwrap().unwrap();
        let echoed = client.echoes(Duration::from_millis(5), Duration::from_millis(100)).unwrap();
        assert!(!echoed.round_trips.is_empty(), "{echoed:?}");
        drop(client);
        served.session();
    }
}

#[test]
fn both_ways_of_loopback_are_measured() {
    let served = serve(SessionLimits::default());
    let mut client = served.client();
    let mut asked = 0;
    let echoed = loop {
        let echoed = client.echoes(Duration::from_millis(5), Duration::from_millis(100)).unwrap();
        asked += echoed.sent;
        // A machine that stands still for all of that time sends one.
        if echoed.sent >= 2 {
            break echoed;
        }
        assert!(asked < 5, "{echoed:?}");
    };
    assert_eq!(echoed.round_trips.len() as u64, echoed.sent, "{echoed:?}");
    assert_eq!((echoed.lost_from_server, echoed.lost_to_server, echoed.lost_unknown), (0, 0, 0));
    for direction in [PathDirection::FromServer, PathDirection::ToServer] {
        let capacity =
            client.capacity(direction, Instant::now() + PATIENCE).unwrap().expect("trains arrived");
        assert!(capacity.low <= capacity.middle && capacity.middle <= capacity.high, "{capacity:?}");
        assert!(capacity.middle.0 > 10_000_000, "{capacity:?}");
    }
    let (sent, received) = client.moved();
    assert!(sent.0 > 4 * 32 * 1_380 && received.0 > 4 * 4 * 1_380, "{sent} {received}");
    drop(client);
    let session = served.session();
    assert_eq!(session.echoes, asked);
    // Loopback delivers a joined train at one moment, so that single packets are needed.
    assert!([4, 8].contains(&session.trains), "{session:?}");
    assert_eq!(session.sent, Bytes(u64::from(session.trains) * 32 * 1_352));
}

/// A client of a server that claims these distances of each train's packets, and the numbers of the trains.
fn claiming(distance: fn(u32) -> u32) -> (PathClient, JoinHandle<Vec<u32>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let control = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = thread::spawn(move || {
        let (mut control, _) = listener.accept().unwrap();
        let token = Token::from_bytes([7; 16]);
        control.write_all(&bytes(Packet::Hello { busy: false }, token)).unwrap();
        let (mut trains, mut request) = (Vec::new(), [0; PROBE_LEN]);
        while control.read_exact(&mut request).is_ok() {
            let Ok(Packet::Collect { train }) = Packet::decode(&request, token) else { panic!("no request") };
            let dispersion = distance(train);
            let seen = Seen { train, received: 32, run: 32, gap: 1, dispersion, slope: None };
            control.write_all(&bytes(Packet::Seen(seen), token)).unwrap();
            trains.push(train);
        }
        trains
    });
    (PathClient::begin(control, PATIENCE).unwrap().unwrap(), server)
}

#[test]
fn trains_of_single_packets_are_sent_only_where_joined_ones_show_nothing() {
    let of_all: fn(u32) -> u32 = |_| 120_000;
    let of_single: fn(u32) -> u32 = |train| train % 2 * 120_000;
    for (distance, numbers) in [(of_all, &[0, 2, 4, 6][..]), (of_single, &[0, 2, 4, 6, 9, 11, 13, 15])] {
        let (mut client, server) = claiming(distance);
        let capacity =
            client.capacity(PathDirection::ToServer, Instant::now() + PATIENCE).unwrap().expect("a capacity");
        assert_eq!(capacity.middle, BitRate(92_000_000));
        drop(client);
        assert_eq!(server.join().unwrap(), numbers);
    }
}

#[test]
fn a_slow_path_gets_short_trains_from_then_on() {
    let (mut client, server) = claiming(|_| 6_000_000);
    let mut packets = || {
        let before = client.moved().0.0;
        client.capacity(PathDirection::ToServer, Instant::now() + PATIENCE).unwrap().expect("a capacity");
        (client.moved().0.0 - before) / 1_380
    };
    assert_eq!([packets(), packets()], [32 + 3 * 8, 4 * 8]);
    drop(client);
    server.join().unwrap();
}

#[test]
fn others_hear_that_the_server_is_busy() {
    let served = serve(SessionLimits::default());
    let first = served.client();
    let busy = PathClient::begin(served.connect(), PATIENCE).expect_err("one at a time");
    assert_eq!(busy.kind(), std::io::ErrorKind::ResourceBusy);
    drop(first);
    served.session();
    served.client();
}

#[test]
fn a_server_of_another_kind_is_none_and_what_it_says_is_left_unread() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let control = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (mut other, _) = listener.accept().unwrap();
    other.write_all(b"SSH-2.0-x\r\n").unwrap();
    let mut control = PathClient::begin(control, PATIENCE).unwrap().expect_err("no server of ours");
    let mut said = [0; 11];
    control.read_exact(&mut said).unwrap();
    assert_eq!(&said, b"SSH-2.0-x\r\n");
}

#[test]
fn without_token_or_from_elsewhere_nothing_is_answered() {
    let served = serve(SessionLimits::default());
    let (_control, token, socket) = served.raw("127.0.0.1");
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    stranger.send_to(&bytes(probe(0), token), served.address).unwrap();
    socket.send(&bytes(probe(1), Token::from_bytes([7; 16]))).unwrap();
    socket.send(b"hello").unwrap();
    socket.send(&bytes(probe(2), token)).unwrap();
    let mut buffer = [0; 2_000];
    let len = socket.recv(&mut buffer).unwrap();
    // Datagrams on loopback keep their order: the first answer is to the last.
    assert_eq!(len, PROBE_LEN);
    let echo = Packet::decode(&buffer[..len], token).unwrap();
    assert_eq!(echo, Packet::Echo { sequence: 2, sent: Micros(1), number: 0 });
    stranger.set_nonblocking(true).unwrap();
    assert!(stranger.recv(&mut buffer).is_err());
}

#[test]
fn no_other_program_can_take_the_packets_of_a_session() {
    for address in ["127.0.0.1:0", "0.0.0.0:0"] {
        let served = serve_at(address, SessionLimits::default());
        let _session = served.raw("127.0.0.1");
        let thief = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::DGRAM, None).unwrap();
        thief.set_reuse_address(true).unwrap();
        let place = SocketAddr::from(([127, 0, 0, 1], served.address.port()));
        assert!(thief.bind(&place.into()).is_err(), "{address}");
    }
}

#[test]
fn a_train_goes_to_nobody_who_has_not_shown_where_it_receives() {
    let served = serve(SessionLimits::default());
    let (mut control, token, _silent) = served.raw("127.0.0.1");
    control.write_all(&bytes(order(8, 1_000), token)).unwrap();
    let session = served.session();
    assert_eq!((session.trains, session.sent), (0, Bytes(0)));
}

#[test]
fn trains_beyond_the_limits_end_the_session() {
    let limits = SessionLimits { bytes: Bytes(10_000), train_packets: 8, ..SessionLimits::default() };
    let long = Packet::Order { train: 1, packets: 8, length: 100, spacing: Nanos(u64::MAX) };
    for (orders, trains) in [
        (vec![order(9, 100)], 0),
        (vec![order(0, 100)], 0),
        (vec![order(1, 99)], 0),
        (vec![order(1, 1_473)], 0),
        (vec![long], 0),
        (vec![order(8, 1_000), order(2, 1_000), order(1, 100)], 2),
        (vec![Packet::Hello { busy: false }], 0),
    ] {
        let served = serve(limits);
        let (mut control, token, socket) = served.raw("127.0.0.1");
        socket.send(&bytes(probe(0), token)).unwrap();
        socket.recv(&mut [0; 2_000]).unwrap();
        for order in &orders {
            control.write_all(&bytes(*order, token)).unwrap();
        }
        let session = served.session();
        assert_eq!(session.trains, trains, "{orders:?}");
        assert!(session.sent.0 <= 10_000);
    }
}

#[test]
fn sessions_end_by_time_silence_and_garbage() {
    let short = Duration::from_millis(50);
    for limits in [
        SessionLimits { time: short, ..SessionLimits::default() },
        SessionLimits { idle: short, ..SessionLimits::default() },
    ] {
        let served = serve(limits);
        let _silent = served.connect();
        assert!(served.session().lasted >= short);
    }
    let served = serve(SessionLimits::default());
    let mut control = served.connect();
    control.write_all(&[b'x'; 300]).unwrap();
    assert_eq!(served.session().trains, 0);
}

#[test]
fn echoes_of_a_session_are_bounded() {
    let served = serve(SessionLimits { echoes: 3, ..SessionLimits::default() });
    let (control, token, socket) = served.raw("127.0.0.1");
    for sequence in 0..10 {
        socket.send(&bytes(probe(sequence), token)).unwrap();
    }
    for _ in 0..3 {
        socket.recv(&mut [0; 2_000]).unwrap();
    }
    drop(control);
    assert_eq!(served.session().echoes, 3);
}

#[test]
fn what_was_seen_of_a_train_comes_back_also_when_it_never_came() {
    let served = serve(SessionLimits::default());
    let (mut control, token, _silent) = served.raw("127.0.0.1");
    control.write_all(&bytes(Packet::Collect { train: 9 }, token)).unwrap();
    let mut answer = [0; PROBE_LEN];
    control.read_exact(&mut answer).unwrap();
    let Ok(Packet::Seen(seen)) = Packet::decode(&answer, token) else { panic!("no account of the train") };
    assert_eq!((seen.train, seen.received, seen.slope), (9, 0, None));
}
