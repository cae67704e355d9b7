//! Whole transfers over loopback, with and without tuning, and transfers that go wrong.

mod control;
mod files;

use std::io::{self, Cursor, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_policy::sobas::State;
use bufwise_policy::{BuildOptions, Policy, PolicyKind};
use bufwise_socket::options;
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};

use super::{
    Bounds, BufferGrants, Cancel, FilePart, Job, MoveError, Progress, Received, Sent, Sink, Sockets, Source,
    Tuner, Writer, accept, receive, send,
};
use crate::hash::HashKind;
use crate::pattern::pattern;
use crate::probe::{Limits, Prober, ProberConfig, Responder, Token};

const LOCALHOST: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const TEST_TIMEOUT: Duration = Duration::from_secs(10);
const TOKEN: Token = Token::from_bytes([3; 16]);

fn any_port() -> SocketAddr {
    SocketAddr::new(LOCALHOST, 0)
}

fn job() -> Job {
    let bounds =
        Bounds { idle: TEST_TIMEOUT, deadline: Some(Instant::now() + TEST_TIMEOUT * 2), lowest: None };
    Job { bounds, hash: Some(HashKind::Xxh3), ..Job::default() }
}

/// A job that gives up after `idle` without a byte.
fn impatient(idle: Duration) -> Job {
    Job { bounds: Bounds { idle, ..Bounds::default() }, ..Job::default() }
}

/// No request reaches the sender.
fn no_grants() -> BufferGrants {
    BufferGrants::new(Bytes::ZERO)
}

/// A connection over loopback with these settings: sender's end, receiver's end.
fn pair(sockets: &Sockets) -> (TcpStream, TcpStream) {
    let listener = sockets.listen(any_port()).unwrap();
    let receiver = sockets.connect(listener.local_addr().unwrap(), TEST_TIMEOUT).unwrap();
    (accept(&listener, LOCALHOST, TEST_TIMEOUT).unwrap(), receiver)
}

/// Moves `from` to a vector, tuned by `tuner`.
fn transfer(
    from: &mut (impl Read + Send),
    tuner: &mut Tuner,
    ends: (TcpStream, TcpStream),
    responder: Option<&Responder>,
) -> (Sent, Received, Vec<u8>) {
    let (sending, receiving) = ends;
    thread::scope(|scope| {
        let sender = scope.spawn(move || {
            send(Source::Reader(from), sending, &no_grants(), responder, &job(), |_| {}).unwrap()
        });
        let mut into = Writer(Vec::new());
        let received = receive(receiving, &mut into, tuner, None, &job(), |_| {}).unwrap();
        (sender.join().unwrap(), received, into.0)
    })
}

/// Waits until `holds`; a deadline far beyond any sensible delay.
pub(crate) fn await_that(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The first of up to five measurements that took less than two seconds: a machine that stands still takes longer, but not
/// each time.
fn in_time<T>(measure: impl FnMut() -> (f64, T)) -> (f64, T) {
    std::iter::repeat_with(measure).take(5).find(|(seconds, _)| *seconds < 2.0).expect("2 s are enough")
}

/// A policy that always decides the same.
struct Constant(Decision);

impl Policy for Constant {
    fn observe(&mut self, _: &Sample, _: Micros) -> Decision {
        self.0
    }
}

fn constant(decision: Decision, prober: Option<Prober>) -> Tuner {
    Tuner::custom(Box::new(Constant(decision)), prober)
}

fn probes() -> (Responder, Prober) {
    let responder =
        Responder::start(UdpSocket::bind(any_port()).unwrap(), LOCALHOST, TOKEN, Limits::default()).unwrap();
    let socket = UdpSocket::bind(any_port()).unwrap();
    // All trains are awaited, also on a machine that stands still meanwhile.
    let config = ProberConfig { timeout: TEST_TIMEOUT, ..ProberConfig::default() };
    let prober = Prober::start(socket, responder.address(), TOKEN, config).unwrap();
    (responder, prober)
}

#[test]
fn a_file_arrives_whole_and_both_sums_agree() {
    for len in [0, 1, 5_000_000] {
        let file = pattern(len);
        let ends = pair(&Sockets::default());
        let (sent, received, into) = transfer(&mut &file[..], &mut Tuner::untouched(), ends, None);
        assert!(into == file, "{len} bytes");
        assert_eq!((sent.report.bytes, received.report.bytes), (len as u64, len as u64));
        assert_eq!(sent.report.hash, received.report.hash);
        assert_eq!(received.info.bytes_received.min(len as u64), len as u64);
    }
}

#[test]
fn sums_of_different_files_differ() {
    let mut file = pattern(300_000);
    let sum = |file: &[u8]| {
        let ends = pair(&Sockets::default());
        transfer(&mut &*file, &mut Tuner::untouched(), ends, None).1.report.hash.unwrap()
    };
    let before = sum(&file);
    file[299_999] ^= 1;
    assert_ne!(sum(&file), before);
    assert_eq!(before.to_string().len(), 32);
}

/// A file that notes the window which the receiver offers, after `from` bytes were read from it.
struct Watching {
    file: Cursor<Vec<u8>>,
    from: u64,
    stream: TcpStream,
    windows: Vec<u32>,
}

impl Read for Watching {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.file.position() >= self.from {
            self.windows.push(options::tcp_info(&self.stream).unwrap().snd_wnd);
        }
        self.file.read(buffer)
    }
}

#[test]
fn a_decided_window_is_honoured() {
    let window = Bytes(200_000);
    let ends = pair(&Sockets::default());
    let mut file = Watching {
        file: Cursor::new(pattern(40_000_000)),
        from: 20_000_000,
        stream: ends.0.try_clone().unwrap(),
        windows: Vec::new(),
    };
    let mut tuner = constant(Decision { receive_window: Some(window), ..Decision::NONE }, None);
    transfer(&mut file, &mut tuner, ends, None);
    let largest = *file.windows.iter().max().unwrap();
    // Rounded up by the window scale, at most 16 KiB.
    assert!((65_536..=216_384).contains(&largest), "{largest}");
    assert!(tuner.timeline.iter().all(|step| step.window == window));
}

#[test]
fn a_decided_rate_is_kept_and_known_before_the_connection() {
    let rate = Rate(20_000_000);
    let (responder, prober) = probes();
    let mut tuner = constant(Decision { pacing: Some(rate), ..Decision::NONE }, Some(prober));
    tuner.prepare();
    await_that("the request arrives before any connection is made", || {
        responder.requested_rate() == Some(rate)
    });
    let file = pattern(5_000_000);
    // 0.25 s; the first segments are a burst, and a busy machine is slower.
    let (seconds, sent) = in_time(|| {
        let ends = pair(&Sockets::default());
        let (sent, received, _) = transfer(&mut &file[..], &mut tuner, ends, Some(&responder));
        (received.report.elapsed.as_secs_f64(), sent)
    });
    assert!(seconds >= 0.2, "{seconds} s");
    assert_eq!(sent.info.max_pacing_rate, rate.0);
    assert!(tuner.timeline.iter().all(|step| step.pacing == rate));
    assert!(tuner.timeline.len() >= 3, "{:?}", tuner.timeline);
}

#[test]
fn a_rate_of_nothing_becomes_two_segments_a_round_trip_or_probe() {
    let (responder, prober) = probes();
    let mut tuner = constant(Decision { pacing: Some(Rate(0)), ..Decision::NONE }, Some(prober));
    tuner.prepare();
    let file = pattern(1_000_000);
    let ends = pair(&Sockets::default());
    let (_, _, into) = transfer(&mut &file[..], &mut tuner, ends, Some(&responder));
    assert!(into == file);
    let slowest = |mss: u64, rtt: Micros| Bytes(2 * mss).per(rtt.max(Micros::from_millis(10)));
    let (first, last) = (tuner.timeline[0], *tuner.timeline.last().unwrap());
    // Before the connection the segment has its usual size; no segment of the loopback exceeds its MTU of 64 KiB.
    assert_eq!(first.pacing, slowest(1_448, first.rtt));
    assert!((slowest(536, last.rtt)..=slowest(65_536, last.rtt)).contains(&last.pacing), "{last:?}");
}

#[test]
fn sobas_moves_a_file_over_loopback_with_and_without_pacing() {
    for pacing in [false, true] {
        let (responder, prober) = probes();
        let options = BuildOptions { pacing, ..BuildOptions::default() };
        let mut tuner = Tuner::new(PolicyKind::Sobas, options, Some(prober));
        tuner.prepare();
        let file = pattern(20_000_000);
        let ends = pair(&Sockets::default());
        let began = tuner.clock();
        let (sent, received, into) = transfer(&mut &file[..], &mut tuner, ends, Some(&responder));
        assert!(into == file);
        assert_eq!(sent.report.hash, received.report.hash);
        let first = tuner.timeline[0];
        assert_eq!(first.state, Some(State::SlowStart), "the capacity is known before the data");
        assert_eq!(first.pacing != Rate::MAX, pacing);
        assert!(first.window < Bytes::MAX && first.at <= began);
        let measured = received.measured.unwrap();
        assert!(measured.capacity.is_some() && measured.answered > 0, "{measured:?}");
    }
}

#[test]
fn sobas_as_published_begins_at_its_first_limit_and_never_asks_for_a_rate() {
    let (responder, prober) = probes();
    // The file client asks for all that it has; the published rule takes neither.
    let options = BuildOptions { pacing: true, continuous: true, ..BuildOptions::default() };
    let mut tuner = Tuner::new(PolicyKind::SobasPublished, options, Some(prober));
    tuner.prepare();
    let file = pattern(20_000_000);
    let (_, received, into) =
        transfer(&mut &file[..], &mut tuner, pair(&Sockets::default()), Some(&responder));
    assert!(into == file);
    let first = tuner.timeline[0];
    assert_eq!(first.state, Some(State::SlowStart), "the capacity is known before the data");
    let measured = received.measured.unwrap();
    let limit = measured.mean_rate.unwrap().over(first.rtt).scaled(12, 10);
    // At least two segments, as any window.
    assert!(first.window == limit || limit < Bytes(4_096), "{first:?}: {limit:?}");
    assert!(tuner.timeline.iter().all(|step| step.pacing == Rate::MAX));
    assert_eq!(responder.requested_rate(), None);
}

#[test]
fn sobas_without_echoes_still_moves_the_file() {
    let nobody = UdpSocket::bind(any_port()).unwrap();
    let config = ProberConfig { timeout: Duration::from_millis(50), ..ProberConfig::default() };
    let socket = UdpSocket::bind(any_port()).unwrap();
    let prober = Prober::start(socket, nobody.local_addr().unwrap(), TOKEN, config).unwrap();
    let mut tuner = Tuner::new(PolicyKind::Sobas, BuildOptions::default(), Some(prober));
    tuner.prepare();
    let file = pattern(5_000_000);
    let (_, received, into) = transfer(&mut &file[..], &mut tuner, pair(&Sockets::default()), None);
    assert!(into == file);
    assert_eq!(tuner.timeline[0].state, Some(State::Estimating));
    assert_eq!(received.measured.unwrap().lost, 0);
}

#[test]
fn fixed_buffers_and_congestion_control_reach_both_ends() {
    let sockets = Sockets::fixed(Bytes(65_536)).with_congestion("reno");
    let (sending, receiving) = pair(&sockets);
    for end in [&sending, &receiving] {
        assert_eq!(options::send_buffer(end).unwrap(), Bytes(131_072));
        assert_eq!(options::receive_buffer(end).unwrap(), Bytes(131_072));
        assert_eq!(options::congestion_control(end).unwrap(), "reno");
    }
    assert!(options::tcp_info(&receiving).unwrap().rcv_wscale() <= 2, "the window scale fits 64 KiB");
    let error = Sockets::default().with_congestion("no-such").listen(any_port()).unwrap_err();
    assert!(error.to_string().contains("TCP_CONGESTION to no-such"), "{error}");
}

#[test]
fn fewer_connections_wait_where_each_may_fill_a_buffer_of_a_set_size() {
    let most = |sockets: &Sockets| {
        let listener = sockets.listen(any_port()).unwrap();
        // Of a listener, `sacked` is the number of connections that may wait.
        options::tcp_info(&listener).unwrap().sacked
    };
    assert_eq!((most(&Sockets::default()), most(&Sockets::fixed(Bytes(65_536)))), (8, 1));
}

#[test]
fn a_connection_comes_from_the_address_that_is_named() {
    let listener = Sockets::default().listen(any_port()).unwrap();
    let own = SocketAddr::from(([127, 0, 0, 2], listener.local_addr().unwrap().port()));
    let sockets = Sockets::default().with_source(own);
    let connected = sockets.connect(listener.local_addr().unwrap(), TEST_TIMEOUT).unwrap();
    assert_eq!(connected.local_addr().unwrap().ip(), own.ip());
}

#[test]
fn strangers_are_hung_up_on_and_waiting_ends() {
    let listener = Sockets::default().listen(any_port()).unwrap();
    let address = listener.local_addr().unwrap();
    let stranger = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    stranger.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    stranger.connect(&address.into()).unwrap();
    let friend = Sockets::default().connect(address, TEST_TIMEOUT).unwrap();
    let accepted = accept(&listener, LOCALHOST, TEST_TIMEOUT).unwrap();
    assert_eq!(accepted.peer_addr().unwrap(), friend.local_addr().unwrap());
    let mut stranger = TcpStream::from(stranger);
    stranger.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    assert_eq!(stranger.read(&mut [0]).unwrap_or(0), 0, "the stranger's connection is closed");
    let error = accept(&listener, LOCALHOST, Duration::from_millis(10)).unwrap_err();
    let MoveError::Connect { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), io::ErrorKind::TimedOut);
}

fn receive_from(peer: impl FnOnce(TcpStream) + Send, expected: Option<u64>, job: &Job) -> MoveError {
    let (sending, receiving) = pair(&Sockets::default());
    thread::scope(|scope| {
        scope.spawn(move || peer(sending));
        let mut tuner = Tuner::untouched();
        receive(receiving, &mut Writer(io::sink()), &mut tuner, expected, job, |_| {}).unwrap_err()
    })
}

#[test]
fn a_file_of_another_length_is_an_error() {
    let write = |len| move |mut stream: TcpStream| stream.write_all(&pattern(len)).unwrap_or_default();
    let short = receive_from(write(99), Some(100), &job());
    assert_eq!(short.to_string(), "the file should have 100 bytes, but 99 came");
    let long = receive_from(write(1_000_000), Some(100), &job());
    assert!(matches!(long, MoveError::Length { expected: 100, received: 101.. }), "{long}");
}

#[test]
fn a_silent_peer_and_a_passed_deadline_end_the_transfer() {
    let (release, hold) = std::sync::mpsc::channel::<()>();
    let (sending, receiving) = pair(&Sockets::default());
    let idle = impatient(Duration::from_millis(30));
    let error = receive(receiving, &mut Writer(io::sink()), &mut Tuner::untouched(), None, &idle, |_| {})
        .unwrap_err();
    drop(sending);
    assert!(matches!(error, MoveError::Idle { .. }), "{error}");

    let trickle = move |mut stream: TcpStream| {
        // Writes until the receiver gives up, or the test has failed.
        while stream.write_all(b"x").is_ok() && hold.recv_timeout(Duration::from_millis(2)).is_err() {}
    };
    let deadline = Some(Instant::now() + Duration::from_millis(50));
    let bounds = Bounds { idle: TEST_TIMEOUT, deadline, ..Bounds::default() };
    let error = receive_from(trickle, None, &Job { bounds, ..Job::default() });
    assert!(matches!(error, MoveError::Deadline), "{error}");
    drop(release);
}

#[test]
fn a_sender_whose_peer_does_not_read_gives_up() {
    let (sending, receiving) = pair(&Sockets::fixed(Bytes(65_536)));
    let job = impatient(Duration::from_millis(250));
    let error = send(Source::Reader(&mut io::repeat(7)), sending, &no_grants(), None, &job, |_| {});
    let error = error.unwrap_err();
    assert!(matches!(error, MoveError::Idle { .. }), "{error}");
    drop(receiving);
}

/// How the ends of a transfer without an end have ended it.
fn endless(sends: &Job, receives: &Job) -> (Result<(), MoveError>, Result<(), MoveError>) {
    let (sending, receiving) = pair(&Sockets::default());
    thread::scope(|scope| {
        let sent = scope.spawn(move || {
            send(Source::Reader(&mut io::repeat(7)), sending, &no_grants(), None, sends, |_| {})
        });
        let (mut into, mut tuner) = (Writer(io::sink()), Tuner::untouched());
        let received = receive(receiving, &mut into, &mut tuner, None, receives, |_| {});
        (sent.join().unwrap().map(drop), received.map(drop))
    })
}

#[test]
fn a_peer_slower_than_the_lowest_rate_is_given_up_at_either_end() {
    let bounds =
        Bounds { idle: Duration::from_millis(400), lowest: Some(Rate(1 << 40)), ..Bounds::default() };
    let (strict, limited) =
        (Job { bounds, ..Job::default() }, Job { limit: Some(Rate(10_000_000)), ..Job::default() });
    for (sends, receives) in [(&strict, &limited), (&limited, &strict)] {
        // On a machine that stands still for so long the peer is silent instead, but not each time.
        let idle = |ended: &Result<(), MoveError>| matches!(ended, Err(MoveError::Idle { .. }));
        let mut ends = std::iter::repeat_with(|| endless(sends, receives)).take(5);
        let (sent, received) = ends.find(|(sent, received)| !idle(sent) && !idle(received)).unwrap();
        let slow = |ended: &Result<(), MoveError>| matches!(ended, Err(MoveError::Slow { .. }));
        assert!(slow(&sent) != slow(&received), "{sent:?} {received:?}");
        let error = if slow(&sent) { sent } else { received }.unwrap_err().to_string();
        assert!(error.starts_with("less than ") && error.ends_with("bit for 0.4 s"), "{error}");
    }
}

#[test]
fn a_reset_names_the_bytes_that_came() {
    let error = receive_from(
        |stream| {
            socket2::SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();
            (&stream).write_all(b"some bytes").unwrap();
            // Bytes that have arrived can be read after a reset, too.
            await_that("they arrive", || options::tcp_info(&stream).unwrap().bytes_acked >= 10);
        },
        None,
        &job(),
    );
    assert!(matches!(error, MoveError::Connection { bytes: 10, .. }), "{error}");
}

#[test]
fn a_local_file_that_fails_is_named_so() {
    struct Full;
    impl Sink for Full {
        fn take(&mut self, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    let (mut sending, receiving) = pair(&Sockets::default());
    sending.write_all(b"x").unwrap();
    let mut tuner = Tuner::untouched();
    let error = receive(receiving, &mut Full, &mut tuner, None, &job(), |_| {}).unwrap_err();
    assert!(error.to_string().starts_with("writing the local file failed after 0 bytes"), "{error}");
}

#[test]
fn progress_ends_with_the_whole() {
    let (sending, receiving) = pair(&Sockets::default());
    let (mut out, mut inn) = (Progress::default(), Progress::default());
    thread::scope(|scope| {
        let out = &mut out;
        scope.spawn(move || {
            let mut file = &pattern(900_000)[..];
            let from = Source::Reader(&mut file);
            send(from, sending, &no_grants(), None, &job(), |seen| *out = *seen).unwrap();
        });
        let (mut into, mut tuner) = (Writer(io::sink()), Tuner::untouched());
        receive(receiving, &mut into, &mut tuner, Some(900_000), &job(), |seen| inn = *seen).unwrap();
    });
    assert_eq!((out.bytes, inn.bytes), (900_000, 900_000));
    assert!(out.buffer > Bytes::ZERO && inn.buffer > Bytes::ZERO && inn.window > Bytes::ZERO, "{inn:?}");
}

#[test]
fn a_port_without_a_listener_is_a_clear_error() {
    // Bound and not listening: no other test gets the port.
    let silent = socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
    silent.bind(&any_port().into()).unwrap();
    let address = silent.local_addr().unwrap().as_socket().unwrap();
    let error = Sockets::default().connect(address, TEST_TIMEOUT).unwrap_err();
    assert!(error.to_string().starts_with(&format!("connecting to {address} failed: ")), "{error}");
}
