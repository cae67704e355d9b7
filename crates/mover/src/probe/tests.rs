//! Prober and responder against each other, and against peers that misbehave, over loopback.

use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_socket::options;
use bufwise_units::{Micros, Rate};

use super::packet::{MAX_TRAIN_PACKET, PROBE_LEN, Packet, Token};
use super::prober::{Measured, Prober, ProberConfig};
use super::responder::{Limits, Responder};
use crate::tests::await_that;

const TOKEN: Token = Token::from_bytes([9; 16]);
const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

fn socket() -> UdpSocket {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    socket
}

fn responder(limits: Limits) -> Responder {
    Responder::start(socket(), LOCALHOST, TOKEN, limits).unwrap()
}

fn send(from: &UdpSocket, to: SocketAddr, token: Token, packet: Packet) {
    from.send_to(packet.encode(token, &mut [0; MAX_TRAIN_PACKET]), to).unwrap();
}

fn receive(on: &UdpSocket) -> Packet {
    let mut buffer = [0; 2_000];
    let len = on.recv(&mut buffer).expect("an answer");
    Packet::decode(&buffer[..len], TOKEN).unwrap()
}

fn probe(sequence: u64, pacing: Option<Rate>) -> Packet {
    Packet::Probe { sequence, sent: Micros(5), pacing }
}

/// Returns the measurement that `holds`.
fn await_measured(prober: &Prober, what: &str, holds: impl Fn(&Measured) -> bool) -> Measured {
    let mut measured = prober.measured();
    await_that(what, || {
        measured = prober.measured();
        holds(&measured)
    });
    measured
}

#[test]
fn an_echo_is_numbered_and_as_long_as_its_probe() {
    let responder = responder(Limits::default());
    let client = socket();
    for (number, sequence) in [(0, 40), (1, 41), (2, 7)] {
        send(&client, responder.address(), TOKEN, probe(sequence, None));
        let mut buffer = [0; 2_000];
        let len = client.recv(&mut buffer).unwrap();
        assert_eq!(len, PROBE_LEN);
        let echo = Packet::decode(&buffer[..len], TOKEN).unwrap();
        assert_eq!(echo, Packet::Echo { sequence, sent: Micros(5), number });
    }
}

#[test]
fn wrong_tokens_and_garbage_are_ignored() {
    let responder = responder(Limits::default());
    let client = socket();
    send(&client, responder.address(), Token::from_bytes([8; 16]), probe(0, None));
    client.send_to(b"hello", responder.address()).unwrap();
    send(&client, responder.address(), TOKEN, Packet::Echo { sequence: 0, sent: Micros(5), number: 0 });
    send(&client, responder.address(), TOKEN, probe(3, None));
    // Datagrams on loopback keep their order, so the one answer is to the last.
    assert_eq!(receive(&client), Packet::Echo { sequence: 3, sent: Micros(5), number: 0 });
    await_that("all four are counted", || responder.counters().echoes == 1);
    assert_eq!(responder.counters().ignored, 3);
}

#[test]
fn other_peers_are_ignored_even_with_the_token() {
    let stranger = UdpSocket::bind("127.0.0.2:0").unwrap();
    let responder = responder(Limits::default());
    send(&stranger, responder.address(), TOKEN, probe(0, None));
    let client = socket();
    send(&client, responder.address(), TOKEN, probe(1, None));
    receive(&client);
    // The first right packet fixed the port as well.
    let other_port = socket();
    send(&other_port, responder.address(), TOKEN, probe(2, None));
    send(&client, responder.address(), TOKEN, probe(3, None));
    assert_eq!(receive(&client), Packet::Echo { sequence: 3, sent: Micros(5), number: 1 });
    assert_eq!(responder.counters().ignored, 2);
    for silent in [stranger, other_port] {
        silent.set_nonblocking(true).unwrap();
        assert!(silent.recv(&mut [0; 2_000]).is_err());
    }
}

#[test]
fn trains_are_limited_in_number_and_length() {
    let limits = Limits { trains: 2, train_packets: 8, train_spacing: Duration::ZERO, ..Limits::default() };
    let responder = responder(limits);
    let client = socket();
    let request = |train, packets, length| {
        send(&client, responder.address(), TOKEN, Packet::TrainRequest { train, packets, length });
    };
    request(0, 9, 1_472);
    request(1, 8, 1_473);
    request(2, 0, 1_472);
    request(3, 8, 1_472);
    for index in 0..8 {
        assert_eq!(receive(&client), Packet::Train { train: 3, packets: 8, index, length: 1_472 });
    }
    request(4, 1, 500);
    assert_eq!(receive(&client), Packet::Train { train: 4, packets: 1, index: 0, length: 500 });
    request(5, 1, 500);
    send(&client, responder.address(), TOKEN, probe(0, None));
    assert!(matches!(receive(&client), Packet::Echo { .. }), "the third train was not sent");
    await_that("the echo is counted", || responder.counters().echoes == 1);
    assert_eq!((responder.counters().trains, responder.counters().ignored), (2, 4));
}

#[test]
fn trains_are_limited_in_frequency() {
    let responder = responder(Limits { train_spacing: Duration::from_secs(3_600), ..Limits::default() });
    let client = socket();
    for train in 0..2 {
        let request = Packet::TrainRequest { train, packets: 1, length: 100 };
        send(&client, responder.address(), TOKEN, request);
    }
    send(&client, responder.address(), TOKEN, probe(0, None));
    assert_eq!(receive(&client), Packet::Train { train: 0, packets: 1, index: 0, length: 100 });
    assert!(matches!(receive(&client), Packet::Echo { .. }), "the second train was not sent");
}

#[test]
fn echoes_per_second_are_limited() {
    let responder = responder(Limits { echoes_per_second: 5, ..Limits::default() });
    let client = socket();
    let start = Instant::now();
    for sequence in 0..50 {
        send(&client, responder.address(), TOKEN, probe(sequence, None));
    }
    await_that("all are counted", || responder.counters().echoes + responder.counters().ignored == 50);
    // A second may end in between, on a machine that stalls.
    let seconds = 1 + start.elapsed().as_secs();
    let echoes = responder.counters().echoes;
    assert!((5..=5 * (seconds + 1)).contains(&echoes), "{echoes} in {seconds} s");
}

#[test]
fn a_request_paces_the_data_socket_within_bounds_and_newest_wins() {
    let responder = responder(Limits { slowest: Rate(10_000), ..Limits::default() });
    let client = socket();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let data = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let request = |sequence, rate| {
        send(&client, responder.address(), TOKEN, probe(sequence, rate));
        receive(&client);
    };
    let paced = |rate: Rate| {
        await_that("the rate is set", || options::max_pacing_rate(&data).unwrap() == rate);
    };
    request(0, None);
    assert_eq!(responder.requested_rate(), None);
    request(1, Some(Rate(5_000_000)));
    await_that("the request is heard", || responder.requested_rate() == Some(Rate(5_000_000)));
    responder.pace(&data, None).unwrap();
    paced(Rate(5_000_000));
    request(3, Some(Rate(6_000_000)));
    paced(Rate(6_000_000));
    request(2, Some(Rate(1_000_000)));
    request(4, Some(Rate(1)));
    paced(Rate(10_000));
    request(5, Some(Rate(u64::MAX)));
    paced(Rate(u64::MAX));
}

#[test]
fn prober_and_responder_measure_loopback() {
    let measure = || {
        let responder = responder(Limits::default());
        let prober = Prober::start(socket(), responder.address(), TOKEN, ProberConfig::default()).unwrap();
        let settled = prober.settled();
        await_that("five trains are counted", || {
            let counters = responder.counters();
            u64::from(counters.trains) + counters.ignored >= 5
        });
        let later = await_measured(&prober, "some echoes", |measured| measured.answered >= 20);
        (responder.counters().trains, settled.capacity, later)
    };
    // A machine that stands still asks for several trains at once, too soon for the responder; for a second, it gets none in
    // time, or the silence counts as loss. It does not stand still each time.
    let (_, capacity, later) = std::iter::repeat_with(measure)
        .take(5)
        .find(|(trains, capacity, later)| *trains == 5 && capacity.is_some() && later.lost == 0)
        .expect("all trains are sent and some arrive, and nothing is lost");
    // Loopback moves at least a packet in 100 us, and no faster than memory.
    let capacity = capacity.unwrap();
    assert!((10_000_000..100_000_000_000).contains(&capacity.0), "{capacity}");
    assert!(later.min_rtt > Micros::ZERO && later.min_rtt <= later.rtt, "{later:?}");
    assert!(later.min_rtt < Micros::from_millis(20), "{later:?}");
}

#[test]
fn a_request_reaches_the_responder_at_once() {
    let responder = responder(Limits::default());
    let slow = ProberConfig { interval: Duration::from_secs(60), trains: 0, ..ProberConfig::default() };
    let prober = Prober::start(socket(), responder.address(), TOKEN, slow).unwrap();
    await_measured(&prober, "first echo", |measured| measured.answered == 1);
    prober.request_rate(Rate(1_234_567));
    await_that("heard long before the next probe is due", || {
        responder.requested_rate() == Some(Rate(1_234_567))
    });
}

#[test]
fn without_an_answer_nothing_is_measured_and_nothing_lost() {
    let nobody = socket();
    let config = ProberConfig { timeout: Duration::from_millis(100), ..ProberConfig::default() };
    let prober = Prober::start(socket(), nobody.local_addr().unwrap(), TOKEN, config).unwrap();
    let settled = prober.settled();
    assert_eq!((settled.rtt, settled.lost, settled.capacity, settled.answered), (Micros::ZERO, 0, None, 0));
    // A port without a listener answers with ICMP, which must not end the probing either. A socket that listens to another
    // peer has none for the prober, and keeps the port from other tests.
    nobody.connect("127.0.0.1:9").unwrap();
    let sent = settled.sent;
    await_measured(&prober, "probing goes on", |measured| measured.sent > sent + 3);
}

/// Answers probes as a responder does, but says nothing to those whose number `loses`.
fn lossy_responder(socket: &UdpSocket, probes: u64, loses: impl Fn(u64) -> bool) {
    let mut buffer = [0; 2_000];
    let mut number = 0;
    while number < probes {
        let (len, from) = socket.recv_from(&mut buffer).unwrap();
        if let Ok(Packet::Probe { sequence, sent, .. }) = Packet::decode(&buffer[..len], TOKEN) {
            if !loses(number) {
                send(socket, from, TOKEN, Packet::Echo { sequence, sent, number });
            }
            number += 1;
        }
    }
}

#[test]
fn losses_on_the_datas_way_are_counted() {
    let server = socket();
    let address = server.local_addr().unwrap();
    let config = ProberConfig { interval: Duration::from_millis(2), trains: 0, ..ProberConfig::default() };
    let prober = Prober::start(socket(), address, TOKEN, config).unwrap();
    lossy_responder(&server, 90, |number| number % 20 == 10);
    // 10, 30, 50, 70 lost; the remaining 86 echoes are on their way.
    let measured = await_measured(&prober, "all echoes", |measured| measured.answered == 86);
    assert_eq!(measured.lost, 4);
}

/// The capacity that a prober measures, bytes per second, if the packets of trains come 2 ms apart.
fn capacity_of_spaced_trains() -> f64 {
    const GAP: Duration = Duration::from_millis(2);
    let server = socket();
    let address = server.local_addr().unwrap();
    let timeout = Duration::from_secs(10);
    let config = ProberConfig { trains: 3, train_packets: 8, timeout, ..ProberConfig::default() };
    let prober = Prober::start(socket(), address, TOKEN, config).unwrap();
    let mut buffer = [0; 2_000];
    let mut trains = 0;
    while trains < 3 {
        let (len, from) = server.recv_from(&mut buffer).unwrap();
        match Packet::decode(&buffer[..len], TOKEN).unwrap() {
            Packet::Probe { sequence, sent, .. } => {
                send(&server, from, TOKEN, Packet::Echo { sequence, sent, number: sequence });
            }
            Packet::TrainRequest { train, packets, length } => {
                let start = Instant::now();
                for index in 0..packets {
                    let due = start + GAP * u32::from(index);
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    send(&server, from, TOKEN, Packet::Train { train, packets, index, length });
                }
                trains += 1;
            }
            other => panic!("unexpected {other:?}"),
        }
    }
    prober.settled().capacity.map_or(0.0, |capacity| capacity.0 as f64)
}

#[test]
fn capacity_comes_from_the_spacing_of_trains() {
    // 1,472 bytes each 2 ms; sleeping is late by some 60 us each time. A busy machine disturbs two trains of three now and then,
    // but not each time.
    let mut measured = Vec::new();
    let is_as_spaced = |_| {
        measured.push(capacity_of_spaced_trains());
        measured.last().is_some_and(|capacity| (500_000.0..760_000.0).contains(capacity))
    };
    assert!((0..5).any(is_as_spaced), "{measured:?}");
}

/// Whether no probe counts as lost while probes rest and afterwards; `None`: some did on a machine that stood still.
fn rests_without_loss() -> Option<bool> {
    let responder = responder(Limits::default());
    let config = ProberConfig { trains: 0, ..ProberConfig::default() };
    let prober = Prober::start(socket(), responder.address(), TOKEN, config).unwrap();
    await_measured(&prober, "some echoes", |measured| measured.answered >= 5);
    let (mut sampled, mut stood_still) = (Instant::now(), false);
    let mut loses = || {
        thread::sleep(Duration::from_millis(1));
        let loses = prober.measured().lost > 0;
        stood_still |= sampled.elapsed() > Duration::from_millis(500);
        sampled = Instant::now();
        loses
    };
    prober.rest(true);
    // Almost two rare probes: without them the silence would count as loss.
    let (rested, mut lost) = (Instant::now(), false);
    while !lost && rested.elapsed() < Duration::from_millis(1_900) {
        lost = loses();
    }
    let sent = prober.measured().sent;
    prober.rest(false);
    let deadline = Instant::now() + Duration::from_secs(5);
    while !lost && prober.measured().sent < sent + 50 {
        assert!(Instant::now() < deadline, "probes are as frequent as before");
        lost = loses();
    }
    (!lost || !stood_still).then_some(!lost)
}

#[test]
fn probes_that_rested_go_on_at_once_and_count_no_loss() {
    assert_eq!((0..5).find_map(|_| rests_without_loss()), Some(true));
}

#[test]
fn both_sides_stop_at_once() {
    // Neither waits for the next probe. A machine that stands still takes longer, but not each time.
    let slow = ProberConfig { interval: Duration::from_secs(60), trains: 0, ..ProberConfig::default() };
    let stop_at_once = || {
        let responder = responder(Limits::default());
        let prober = Prober::start(socket(), responder.address(), TOKEN, slow).unwrap();
        await_measured(&prober, "running", |measured| measured.answered > 0);
        let start = Instant::now();
        drop(prober);
        drop(responder);
        start.elapsed() < Duration::from_secs(1)
    };
    assert!((0..5).any(|_| stop_at_once()));
}
