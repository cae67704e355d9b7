//! Both ends of TLS over loopback, and peers that do not deserve trust.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::PollFlags;
use rustls::ClientConfig;

use super::*;
use crate::pattern::pattern;
use crate::stream::Stream;
use crate::wake;

const PROTOCOL: &[u8] = b"files";
const TEST_TIMEOUT: Duration = Duration::from_secs(10);

fn pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    (client, listener.accept().unwrap().0)
}

fn server() -> ServerTls {
    ServerTls::self_signed(&["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap()
}

fn anyone() -> ClientTls {
    ClientTls::new(&Trust::Anyone).unwrap()
}

/// Both ends after the handshake, or what each said of its failure.
fn shake(client: &ClientTls, server: &ServerTls) -> (Result<Stream, TlsError>, Result<Stream, TlsError>) {
    let (near, far) = pair();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| server.accept(far, TEST_TIMEOUT, &Cancel::default()));
        let connected = client.connect(near, "127.0.0.1", TEST_TIMEOUT, &Cancel::default());
        (connected.map(Stream::from), accepting.join().unwrap().map(Stream::from))
    })
}

/// Waits as the loops of this crate do: only when nothing is pending.
fn await_stream(stream: &Stream, events: PollFlags) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    let [ready] = wake::until([(stream.as_fd(), stream.events(events))], deadline).unwrap();
    assert!(ready, "nothing happens");
}

fn read_all(stream: &mut Stream, len: usize) -> io::Result<Vec<u8>> {
    let (mut all, mut buffer) = (Vec::new(), vec![0; 10_000]);
    while all.len() < len {
        match stream.read(&mut buffer) {
            Ok(0) => break,
            Ok(read) => all.extend_from_slice(&buffer[..read]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => {
                assert!(!stream.pending(), "what would block has nothing pending");
                await_stream(stream, PollFlags::POLLIN);
            }
            Err(error) => return Err(error),
        }
    }
    Ok(all)
}

fn write_all(stream: &mut Stream, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match stream.write(bytes) {
            Ok(taken) => bytes = &bytes[taken..],
            Err(error) if error.kind() == ErrorKind::WouldBlock => await_stream(stream, PollFlags::POLLOUT),
            Err(error) => panic!("{error}"),
        }
    }
    while let Err(error) = stream.flush() {
        assert_eq!(error.kind(), ErrorKind::WouldBlock);
        await_stream(stream, PollFlags::POLLOUT);
    }
}

#[test]
fn bytes_pass_both_ways_and_the_end_is_announced() {
    let (client, server) = shake(&anyone(), &server());
    let (mut client, mut server) = (client.unwrap(), server.unwrap());
    assert!(client.tls().unwrap().description().starts_with("TLSv1_3 "));
    thread::scope(|scope| {
        scope.spawn(|| {
            write_all(&mut client, b"short");
            let sent = read_all(&mut client, usize::MAX).unwrap();
            assert!(sent == pattern(3_000_000));
            client.end_writing().unwrap();
        });
        assert_eq!(read_all(&mut server, 5).unwrap(), b"short");
        write_all(&mut server, &pattern(3_000_000));
        server.end_writing().unwrap();
        assert_eq!(read_all(&mut server, 1).unwrap(), b"", "a clean end");
    });
}

#[test]
fn an_end_without_notice_is_no_end() {
    let (client, server) = shake(&anyone(), &server());
    let (client, mut server) = (client.unwrap(), server.unwrap());
    client.tcp().shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(read_all(&mut server, 1).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    drop(client);
}

#[test]
fn messages_without_data_do_not_hold_a_reader() {
    let mut config = ServerConfig::clone(&server().config);
    // Tickets have no data for the reader; the library takes 64 KiB of them at most.
    config.send_tls13_tickets = 350;
    let server = ServerTls { config: Arc::new(config), ..server() };
    let (near, far) = pair();
    thread::scope(|scope| {
        let accepting = scope.spawn(|| server.accept(far, TEST_TIMEOUT, &Cancel::default()));
        let client = anyone().connect(near, "127.0.0.1", TEST_TIMEOUT, &Cancel::default());
        let mut client = Stream::from(client.unwrap());
        // All of them are there: a reader that keeps up with the server would find each few alone.
        let _server = accepting.join().unwrap().unwrap();
        loop {
            match client.read(&mut [0]).unwrap_err().kind() {
                ErrorKind::WouldBlock => await_stream(&client, PollFlags::POLLIN),
                kind => return assert_eq!(kind, ErrorKind::Interrupted),
            }
        }
    });
}

/// A client's second connection, after one that has read something (and with it the tickets).
fn second(client: &ClientTls, first: &ServerTls, second: &ServerTls) -> bool {
    let (control, peer) = shake(client, first);
    let (mut control, mut peer) = (control.unwrap(), peer.unwrap());
    assert!(!control.tls().unwrap().resumed());
    write_all(&mut peer, b"220 hello\r\n");
    read_all(&mut control, 11).unwrap();
    let (data, peer) = shake(client, second);
    let resumed = data.unwrap().tls().unwrap().resumed();
    assert_eq!(peer.unwrap().tls().unwrap().resumed(), resumed, "both ends agree");
    resumed
}

#[test]
fn data_connections_resume_their_control_connections_session_and_no_others() {
    let (client, server) = (anyone(), server());
    let session = server.for_session(PROTOCOL);
    assert!(second(&client, &session, &session));
    assert!(!second(&anyone(), &session, &server.for_session(PROTOCOL)), "a ticket of another session");
    let (stranger, _) = shake(&anyone(), &session);
    assert!(!stranger.unwrap().tls().unwrap().resumed(), "no ticket");
}

#[test]
fn many_data_connections_in_a_row_resume() {
    let (client, session) = (anyone(), server().for_session(PROTOCOL));
    assert!(second(&client, &session, &session));
    for transfer in 0..6 {
        let (data, peer) = shake(&client, &session);
        let (mut data, mut peer) = (data.unwrap(), peer.unwrap());
        assert!(data.tls().unwrap().resumed(), "transfer {transfer}");
        write_all(&mut peer, b"x");
        read_all(&mut data, 1).unwrap();
    }
}

#[test]
fn only_the_pinned_certificate_is_believed() {
    let (right, other) = (server(), server());
    let text = right.fingerprint().to_string();
    assert_eq!(text.len(), 95);
    let pinned: Fingerprint = text.to_lowercase().parse().unwrap();
    let client = ClientTls::new(&Trust::Pinned(pinned)).unwrap();
    let (connected, _) = shake(&client, &right);
    assert_eq!(connected.unwrap().tls().unwrap().peer_fingerprint(), Some(pinned));
    let error = shake(&client, &other).0.unwrap_err().to_string();
    assert!(error.starts_with("the TLS handshake with 127.0.0.1:"), "{error}");
    for text in ["", "AB", &"g".repeat(64), &"ä".repeat(32)] {
        assert_eq!(text.parse::<Fingerprint>(), Err(FingerprintError), "{text}");
    }
}

#[test]
fn certificates_from_files_are_believed_by_name() {
    let made = rcgen::generate_simple_self_signed(vec!["ftp.example".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
    std::fs::write(&chain, made.cert.pem()).unwrap();
    std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
    let server = ServerTls::from_files(&chain, &key).unwrap();
    let client = ClientTls::new(&Trust::Authorities(chain.clone())).unwrap();
    let connect = |host: &str| {
        let (near, far) = pair();
        thread::scope(|scope| {
            scope.spawn(|| server.accept(far, TEST_TIMEOUT, &Cancel::default()).map(drop));
            client.connect(near, host, TEST_TIMEOUT, &Cancel::default()).map(drop)
        })
    };
    connect("ftp.example").unwrap();
    assert!(matches!(connect("other.example"), Err(TlsError::Handshake { .. })));
    assert!(matches!(connect("not a name"), Err(TlsError::Name(_))));
    let error = ServerTls::from_files(&chain, &chain).unwrap_err().to_string();
    assert!(error.starts_with("reading a private key from /"), "{error}");
    let error = ServerTls::from_files(&key, &key).unwrap_err().to_string();
    assert!(error.ends_with("key.pem failed: no certificate in it"), "{error}");
    let missing = Trust::Authorities(folder.path().join("none"));
    assert!(ClientTls::new(&missing).unwrap_err().to_string().starts_with("reading certificates from /"));
}

#[test]
fn a_client_of_another_protocol_is_refused() {
    let provider = provider();
    let mut config = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Trust::Anyone.verifier(&provider).unwrap())
        .with_no_client_auth();
    let server = server().for_session(PROTOCOL);
    for (protocols, accepted) in
        [(vec![], true), (vec![PROTOCOL.to_vec()], true), (vec![b"http/1.1".to_vec()], false)]
    {
        config.alpn_protocols = protocols;
        let client = ClientTls { config: Arc::new(config.clone()), older: Arc::new(config.clone()) };
        let (_, served) = shake(&client, &server);
        assert_eq!(served.is_ok(), accepted);
    }
}

#[test]
fn cancelling_ends_either_ends_handshake_at_once() {
    let cancel = Cancel::new().unwrap();
    let ((near, _silent), (_silent_too, far)) = (pair(), pair());
    let start = Instant::now();
    thread::scope(|scope| {
        let client = scope.spawn(|| anyone().connect(near, "127.0.0.1", TEST_TIMEOUT, &cancel));
        let server = scope.spawn(|| server().accept(far, TEST_TIMEOUT, &cancel));
        cancel.cancel();
        for end in [client, server] {
            let error = end.join().unwrap().unwrap_err();
            assert!(matches!(error, TlsError::Cancelled { .. }), "{error}");
        }
    });
    assert!(start.elapsed() < TEST_TIMEOUT, "nobody waited for the peer");
}

/// Fills the send buffer of a socket whose peer reads nothing.
fn fill(socket: &mut TcpStream) {
    socket.set_nonblocking(true).unwrap();
    loop {
        while matches!(socket.write(&[0; 4_096]), Ok(1..)) {}
        // An acknowledgement may be delayed.
        let until = Instant::now() + Duration::from_millis(100);
        if wake::until([(socket.as_fd(), PollFlags::POLLOUT)], until).unwrap() == [false] {
            break;
        }
    }
    while matches!(socket.write(&[0]), Ok(1..)) {}
}

#[test]
fn a_peer_that_takes_no_answer_is_given_up_although_it_has_sent_more() {
    let (mut near, mut far) = pair();
    fill(&mut far);
    near.write_all(&anyone().hello("localhost").unwrap()).unwrap();
    near.shutdown(std::net::Shutdown::Write).unwrap();
    let cancel = Cancel::new().unwrap();
    let (over, ended) = channel::<()>();
    let rescue = cancel.clone();
    // Ends a handshake that does not end by itself.
    let rescuer = thread::spawn(move || {
        if ended.recv_timeout(TEST_TIMEOUT) == Err(RecvTimeoutError::Timeout) {
            rescue.cancel();
        }
    });
    let error = server().accept(far, Duration::from_millis(20), &cancel).unwrap_err();
    drop(over);
    rescuer.join().unwrap();
    assert!(matches!(error, TlsError::Handshake { .. }), "{error}");
}

#[test]
fn silence_and_garbage_end_the_handshake() {
    let (near, far) = pair();
    let error =
        anyone().connect(near, "127.0.0.1", Duration::from_millis(20), &Cancel::default()).unwrap_err();
    let TlsError::Handshake { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::TimedOut);
    drop(far);
    let (mut near, far) = pair();
    near.write_all(b"USER anonymous\r\nPASS x\r\n").unwrap();
    let error = server().accept(far, TEST_TIMEOUT, &Cancel::default()).unwrap_err();
    let TlsError::Handshake { source, .. } = &error else { panic!("{error}") };
    assert_eq!(source.kind(), ErrorKind::InvalidData);
    let (near, far) = pair();
    drop(near);
    assert!(server().accept(far, TEST_TIMEOUT, &Cancel::default()).is_err(), "gone before it began");
}
