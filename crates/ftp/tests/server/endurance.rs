//! Many at once, and clients that do not behave.

use std::io::Write;
use std::net::TcpStream;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, TEST_TIMEOUT, pattern, serve};

#[test]
fn many_clients_at_once_get_and_put_what_is_theirs() {
    let served = serve(|_| {});
    let bytes = pattern(1 << 20);
    served.put("file", &bytes);
    thread::scope(|scope| {
        for number in 0..16 {
            let (served, bytes) = (&served, &bytes);
            scope.spawn(move || {
                let mut client = served.client();
                for round in 0..3 {
                    assert!(client.fetch("RETR file") == *bytes);
                    let part = &bytes[number * 1_000..];
                    client.deliver(&format!("STOR {number}-{round}"), part, 226);
                    assert!(std::fs::read(served.path(&format!("{number}-{round}"))).unwrap() == part);
                }
                client.ask("QUIT", 221);
            });
        }
    });
    let transfers = served.transfers();
    let failed = transfers.iter().filter(|transfer| transfer.failure.is_some()).count();
    assert_eq!((transfers.len(), failed), (16 * 3 * 2, 0));
}

#[test]
fn garbage_and_sudden_ends_harm_nobody_else() {
    let served = serve(|_| {});
    served.put("file", &pattern(100_000));
    let mut witness = served.client();
    let pieces = [
        &b"\xff\xfa"[..],
        b"\0\0\0\r\n",
        b"\r\n\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
        &[0xff; 3_000],
        b"USER",
    ];
    for (before, garbage) in pieces.into_iter().enumerate() {
        let mut client = Client::on(TcpStream::connect(served.address).unwrap());
        client.send(garbage);
        client.vanish();
        // A client that breaks off in the middle of a transfer.
        let mut client = served.client();
        let mut data = client.data();
        client.ask("STOR other", 150);
        let _cut = data.write_all(garbage);
        client.vanish();
        crate::support::eventually("the upload is given up", || {
            served.transfers().iter().filter(|one| one.failure.is_some()).count() > before
        });
    }
    assert!(witness.fetch("RETR file") == pattern(100_000));
    assert!(!served.path("other").exists());
}

#[test]
fn a_client_that_takes_no_replies_is_given_up() {
    let served = serve(|config| config.times.answer = Duration::from_millis(100));
    let client = served.client();
    let questions = b"FEAT\r\n".repeat(1_000);
    client.stream().set_nonblocking(true).unwrap();
    let start = Instant::now();
    // Until nothing can be sent any more because the other side has closed.
    loop {
        match client.stream().write(&questions) {
            Err(error) if error.kind() != std::io::ErrorKind::WouldBlock => break,
            _ => thread::sleep(Duration::from_millis(1)),
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "the server still waits");
    }
    served.client().ask("NOOP", 200);
}
