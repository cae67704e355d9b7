//! TLS that is refused, manipulated, or ended too soon.

use std::io::Read;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use bufwise_ftp::client::{ClientError, Security, Worker};
use bufwise_mover::Cancel;
use bufwise_mover::stream::Stream;
use bufwise_mover::tls::{ClientTls, ServerTls, Trust};

use crate::support::{Client, Going, Scripted, TEST_TIMEOUT, Talk, patiently, pattern, write_all};

fn certificate() -> (ServerTls, Security) {
    let server = ServerTls::self_signed(&["localhost".to_owned()]).unwrap();
    let client = ClientTls::new(&Trust::Pinned(server.fingerprint())).unwrap();
    (server, Security::Required(client))
}

/// Our client of this server, over TLS.
fn over_tls(server: &Scripted, security: Security) -> Client {
    let mut client = Client::of(server);
    client.access.security = security;
    client
}

/// Gets the server's file, over TLS, at the second attempt.
fn gets_at_the_second_attempt(server: &Scripted, security: Security) {
    let mut client = over_tls(server, security);
    (client.settings.retries, client.settings.retry_wait) = (1, Duration::ZERO);
    client.get().unwrap();
    assert_eq!(client.got(), *server.content);
}

/// Answers AUTH with these bytes, all at once, and begins TLS.
fn begin(talk: &mut Talk, tls: &ServerTls, answer: &[u8]) -> Going {
    talk.send(answer)?;
    let tcp = talk.control.tcp().try_clone()?;
    talk.control = tls.accept(tcp, TEST_TIMEOUT, &Cancel::default()).map_err(std::io::Error::other)?.into();
    Ok(true)
}

#[test]
fn replies_sent_before_the_handshake_are_forgotten() {
    for injected in [
        "234 go\r\n530 not you\r\n",
        "234 go\r\n331 pass\r\n230 in\r\n200 a\r\n200 b\r\n211-Features:\r\n INJECTED\r\n211 End\r\n",
        "234 go\r\n53",
        "234 go\r\n211-",
    ] {
        let (tls, security) = certificate();
        let server = Scripted::new(pattern(10), move |talk, line| match line {
            "AUTH TLS" => begin(talk, &tls, injected.as_bytes()),
            "RETR file" => encrypted(talk, &tls, usize::MAX, true),
            _ => talk.usual(line),
        });
        let client = over_tls(&server, security);
        let mut worker = Worker::new(&client.access, &client.settings);
        let session = worker.session().unwrap_or_else(|error| panic!("{injected:?}: {error}"));
        // In step: the answers are those that came over TLS.
        assert!(session.server().tls && !session.server().features.has("INJECTED"));
        worker.get("file".as_ref(), &client.target(), |_| ()).unwrap();
        assert_eq!(client.got(), *server.content);
        assert_eq!(server.said().first().map(String::as_str), Some("AUTH TLS"));
    }
}

#[test]
fn a_server_with_another_certificate_is_not_believed() {
    let (tls, _) = certificate();
    let (_, other) = certificate();
    let server = Scripted::new(pattern(10), move |talk, line| match line {
        "AUTH TLS" => begin(talk, &tls, b"234 go\r\n"),
        _ => talk.usual(line),
    });
    let client = over_tls(&server, other);
    let error = client.fails();
    assert!(matches!(error, ClientError::Tls(_)), "{error}");
    assert_eq!(server.said(), ["AUTH TLS"]);
}

#[test]
fn protection_that_is_refused_ends_the_session_before_any_data() {
    let (tls, security) = certificate();
    let server = Scripted::new(pattern(10), move |talk, line| match line {
        "AUTH TLS" => begin(talk, &tls, b"234 go\r\n"),
        "PROT P" => talk.say("536 no"),
        _ => talk.usual(line),
    });
    let client = over_tls(&server, security);
    client.fails();
    assert!(!server.said().iter().any(|line| line.starts_with("EPSV")), "{:?}", server.said());
}

#[test]
fn encrypted_data_that_is_cut_short_is_not_the_file() {
    // Without a size, only the announced end of the TLS stream shows that a file is whole.
    for told in [false, true] {
        let (tls, security) = certificate();
        let server = Scripted::new(pattern(200_000), move |talk, line| {
            let (verb, _) = line.split_once(' ').unwrap_or((line, ""));
            match verb {
                "AUTH" => begin(talk, &tls, b"234 go\r\n"),
                "SIZE" => talk.say("502 no"),
                "RETR" => encrypted(talk, &tls, if told { usize::MAX } else { 100_000 }, told),
                _ => talk.usual(line),
            }
        });
        let client = over_tls(&server, security);
        if told {
            client.get().unwrap();
            assert_eq!(client.got(), *server.content);
        } else {
            let error = client.fails();
            assert!(matches!(error, ClientError::Move(_)), "{error}");
        }
    }
}

#[test]
fn encrypted_data_that_is_cut_is_tried_again() {
    let (tls, security) = certificate();
    let attempts = AtomicUsize::new(0);
    let server = Scripted::new(pattern(200_000), move |talk, line| match line {
        "AUTH TLS" => begin(talk, &tls, b"234 go\r\n"),
        "RETR file" if attempts.fetch_add(1, Ordering::Relaxed) == 0 => encrypted(talk, &tls, 100_000, false),
        "RETR file" => encrypted(talk, &tls, usize::MAX, true),
        _ => talk.usual(line),
    });
    gets_at_the_second_attempt(&server, security);
}

#[test]
fn a_file_that_is_there_is_known_where_the_server_announces_no_end() {
    let (tls, security) = certificate();
    let server = Scripted::new(pattern(200_000), move |talk, line| match line {
        "AUTH TLS" => begin(talk, &tls, b"234 go\r\n"),
        "RETR file" => encrypted(talk, &tls, usize::MAX, false),
        _ => talk.usual(line),
    });
    let mut client = over_tls(&server, security);
    client.get().unwrap();
    assert_eq!(client.got(), *server.content);
    client.settings.resume = true;
    assert!(client.get().unwrap().report.is_none(), "nothing had to be moved");
}

#[test]
fn a_server_without_tls_1_2_may_refuse_a_data_connection_for_a_while() {
    let (tls, security) = certificate();
    let sessions = AtomicUsize::new(0);
    let server = Scripted::new(pattern(10), move |talk, line| match line {
        // The second session is the one with TLS 1.2.
        "AUTH TLS" if sessions.fetch_add(1, Ordering::Relaxed) == 1 => talk.say("234 go").map(|_| false),
        "AUTH TLS" => begin(talk, &tls, b"234 go\r\n"),
        "RETR file" if sessions.load(Ordering::Relaxed) == 1 => talk.say("425 not now"),
        "RETR file" => encrypted(talk, &tls, usize::MAX, true),
        _ => talk.usual(line),
    });
    gets_at_the_second_attempt(&server, security);
    assert_eq!(server.said().iter().filter(|line| *line == "AUTH TLS").count(), 3);
}

/// Sends at most `most` bytes of the file over TLS; then announces the end of the stream (`told`), or just ends the connection.
fn encrypted(talk: &mut Talk, tls: &ServerTls, most: usize, told: bool) -> Going {
    let tcp = talk.data()?;
    talk.say("150 here")?;
    let mut data: Stream =
        tls.accept(tcp, TEST_TIMEOUT, &Cancel::default()).map_err(std::io::Error::other)?.into();
    let rest = talk.rest();
    write_all(&mut data, &rest[..rest.len().min(most)])?;
    if told {
        patiently(|| data.end_writing())?;
        // Until the client has taken it all.
        let _end = patiently(|| data.read(&mut [0; 100]));
    }
    drop(data);
    talk.say("226 all of it, believe me")
}
