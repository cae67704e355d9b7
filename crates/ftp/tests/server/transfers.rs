//! Downloads, and commands during them.

use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bufwise_ftp::server::Direction;

use crate::support::{Client, TEST_TIMEOUT, pattern, serve};

/// More than both sockets' buffers hold, so that an unread transfer goes on.
const MUCH: usize = 32 << 20;

#[test]
fn a_file_arrives_as_it_is_and_is_told_of() {
    let served = serve(|_| {});
    let bytes = pattern(3_000_000);
    served.put("file", &bytes);
    served.put("empty", b"");
    let mut client = served.client();
    assert!(client.fetch("RETR file") == bytes);
    assert_eq!(client.fetch("RETR empty"), b"");
    let transfers = served.transfers();
    let first = &transfers[0];
    assert_eq!((first.direction, first.bytes, first.path.as_str()), (Direction::Sent, 3_000_000, "/file"));
    let report = first.report.unwrap();
    assert!(first.failure.is_none() && report.goodput.0 > 0 && report.limited_by.is_some());
    let log = served.log();
    assert!(
        log.contains("127.0.0.1 anonymous sent /file: 3.00 MB in") && log.contains("limited by"),
        "{log}"
    );
}

#[test]
fn a_restart_begins_where_it_should_and_counts_once() {
    let served = serve(|_| {});
    let bytes = pattern(100_000);
    served.put("file", &bytes);
    let mut client = served.client();
    client.ask("REST 60000", 350);
    assert!(client.fetch("RETR file") == bytes[60_000..]);
    assert!(client.fetch("RETR file") == bytes, "the restart was for one transfer");
    client.ask("REST 100000", 350);
    assert_eq!(client.fetch("RETR file"), b"");
    client.passive();
    client.ask("REST 100001", 350);
    client.ask("RETR file", 554);
    assert_eq!(served.transfers()[0].offset, 60_000);
}

#[test]
fn commands_that_come_at_once_are_answered_in_order() {
    let served = serve(|_| {});
    served.put("file", b"12");
    let mut client = served.client();
    client.send(b"NOOP\r\nSIZE file\nPWD\r\nsize nothing\r\nSYST\r\n");
    for code in [200, 213, 257, 550, 215] {
        client.expect(code);
    }
}

#[test]
fn without_a_data_connection_nothing_is_transferred() {
    let served = serve(|config| config.times.connect = Duration::from_millis(50));
    served.put("file", b"12");
    let mut client = served.client();
    client.ask("RETR file", 425);
    client.passive();
    client.ask("RETR none", 550);
    client.passive();
    client.ask("RETR file", 150);
    client.expect(425);
    assert_eq!(client.fetch("RETR file"), b"12");
    let failed = &served.transfers()[0];
    assert!(
        failed.failure.as_ref().is_some_and(|reason| reason.contains("no data connection")),
        "{failed:?}"
    );
}

#[test]
fn during_a_transfer_some_commands_are_answered_and_others_wait() {
    let served = serve(|_| {});
    served.put("file", &vec![7; MUCH]);
    let (mut client, mut data) = served.retrieving("file");
    client.ask("NOOP", 200);
    assert!(client.ask("STAT", 211).contains("A transfer is running"));
    // These commands wait; commands that are answered during a transfer are still answered.
    client.send(b"PWD\r\nSIZE file\r\nSBUF 65536\r\n");
    client.ask("NOOP", 200);
    assert_eq!(std::io::copy(&mut data, &mut std::io::sink()).unwrap(), MUCH as u64);
    for code in [226, 257, 213, 200] {
        client.expect(code);
    }
}

#[test]
fn an_abort_ends_the_transfer_at_once_and_the_session_goes_on() {
    let served = serve(|_| {});
    served.put("file", &vec![7; MUCH]);
    let (mut client, mut data) = served.retrieving("file");
    data.read_exact(&mut [0; 1_000]).unwrap();
    let start = Instant::now();
    // As clients send it: telnet's interrupt and data mark in front.
    client.send(b"\xff\xf4\xff\xf2ABOR\r\n");
    client.expect(426);
    client.expect(226);
    assert!(start.elapsed() < TEST_TIMEOUT / 2);
    client.ask("PWD", 257);
    served.put("small", b"12");
    assert_eq!(client.fetch("RETR small"), b"12");
    assert!(served.transfers()[0].failure.as_ref().is_some_and(|reason| reason.contains("cancelled")));
}

#[test]
fn each_of_many_aborts_is_answered_and_those_beyond_a_bound_may_come_again() {
    let served = serve(|_| {});
    served.put("file", &vec![7; MUCH]);
    let (mut client, mut data) = served.retrieving("file");
    data.read_exact(&mut [0; 1_000]).unwrap();
    // In one segment: the session hears them before it hears of the transfer's end.
    client.send(&b"ABOR\r\n".repeat(100));
    client.expect(426);
    // As many ABORs as may be noted, and as many commands as may be queued.
    (0..64).for_each(|_| drop(client.expect(226)));
    (64..100).for_each(|_| drop(client.expect(450)));
    client.ask("PWD", 257);
}

#[test]
fn a_goodbye_during_a_transfer_waits_for_its_end() {
    let served = serve(|_| {});
    let bytes = pattern(MUCH);
    served.put("file", &bytes);
    let (mut client, mut data) = served.retrieving("file");
    client.say("QUIT");
    let mut got = Vec::new();
    data.read_to_end(&mut got).unwrap();
    assert!(got == bytes);
    client.expect(226);
    client.expect(221);
    client.ends();
}

#[test]
fn commands_beyond_those_that_may_wait_are_refused_in_their_turn() {
    let served = serve(|_| {});
    served.put("file", &vec![7; MUCH]);
    let (mut client, mut data) = served.retrieving("file");
    client.send(&b"PWD\r\n".repeat(40));
    client.ask("NOOP", 200);
    assert_eq!(std::io::copy(&mut data, &mut std::io::sink()).unwrap(), MUCH as u64);
    client.expect(226);
    for code in [257; 32].into_iter().chain([450; 8]) {
        client.expect(code);
    }
    client.ask("PWD", 257);
}

#[test]
fn a_file_that_shrinks_while_it_is_sent_is_told() {
    let served = serve(|_| {});
    served.put("file", &vec![7; MUCH]);
    let (mut client, mut data) = served.retrieving("file");
    data.read_exact(&mut [0; 1_000]).unwrap();
    std::fs::OpenOptions::new().write(true).open(served.path("file")).unwrap().set_len(1_000).unwrap();
    assert!(std::io::copy(&mut data, &mut std::io::sink()).unwrap() < MUCH as u64 - 1_000);
    client.expect(451);
    assert!(served.transfers()[0].failure.as_ref().is_some_and(|reason| reason.contains("shorter while")));
}

#[test]
fn a_file_that_grows_while_it_is_sent_has_the_length_that_was_announced() {
    let served = serve(|_| {});
    let bytes = pattern(MUCH);
    served.put("file", &bytes);
    let (mut client, mut data) = served.retrieving("file");
    let mut got = vec![0; 1_000];
    data.read_exact(&mut got).unwrap();
    std::fs::OpenOptions::new().append(true).open(served.path("file")).unwrap().write_all(b"more").unwrap();
    data.read_to_end(&mut got).unwrap();
    client.expect(226);
    assert!(got == bytes);
}

#[test]
fn text_is_listed_and_no_file_goes_as_text() {
    let served = serve(|_| {});
    served.put("file", b"a\nb");
    let mut client = served.client();
    client.ask("TYPE A", 200);
    assert_eq!(client.fetch("NLST"), b"file\r\n");
    for command in ["RETR file", "STOR new", "APPE file"] {
        client.passive();
        assert!(client.ask(command, 504).contains("TYPE I"), "{command}");
    }
    client.ask("TYPE I", 200);
    assert_eq!(client.fetch("RETR file"), b"a\nb");
    assert_eq!(std::fs::read_dir(served.directory.path()).unwrap().count(), 1);
}

#[test]
fn pasv_names_the_announced_address_and_epsv_all_excludes_it() {
    let served = serve(|config| config.data.announced = Some([198, 18, 0, 9].into()));
    let mut client = served.client();
    assert!(client.ask("PASV", 227).contains("(198,18,0,9,"));
    client.ask("EPSV 2", 522);
    client.ask("EPSV 1", 229);
    client.ask("EPSV ALL", 200);
    client.ask("PASV", 503);
    client.ask("EPSV", 229);
}

#[test]
fn ports_are_those_allowed() {
    // Below the ports that the system gives to connections, one of which could take it before the server does.
    let mut ports = 20_000 + (std::process::id() % 5_000) as u16..30_000;
    let free = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let served = serve(|config| config.data.ports = Some(free..=free));
    let mut client = served.client();
    assert_eq!(client.passive(), free);
    let mut other = served.client();
    other.ask("EPSV", 425);
}

#[test]
fn with_active_mode_the_server_connects_to_the_client_only() {
    let served = serve(|config| config.data.active = true);
    served.put("file", b"12345");
    let mut client = served.client();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    client.ask(&format!("PORT 127,0,0,1,{},{}", port >> 8, port & 255), 200);
    client.ask("RETR file", 150);
    let mut got = Vec::new();
    listener.accept().unwrap().0.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"12345");
    client.expect(226);
    client.ask(&format!("EPRT |1|127.0.0.1|{port}|"), 200);
    client.ask("STOR new", 150);
    listener.accept().unwrap().0.write_all(b"67").unwrap();
    client.expect(226);
    assert_eq!(std::fs::read(served.path("new")).unwrap(), b"67");
}

#[test]
fn with_active_mode_the_server_connects_from_the_address_that_was_called() {
    let served = serve(|config| {
        config.listen = "0.0.0.0:0".parse().unwrap();
        config.data.active = true;
    });
    served.put("file", b"12345");
    let called = IpAddr::from([127, 0, 0, 2]);
    let control = TcpStream::connect((called, served.address.port())).unwrap();
    let own = control.local_addr().unwrap().ip();
    let listener = TcpListener::bind((own, 0)).unwrap();
    let mut client = Client::on(control);
    client.expect(220);
    client.ask("USER anonymous", 331);
    client.ask("PASS x", 230);
    client.ask(&format!("EPRT |1|{own}|{}|", listener.local_addr().unwrap().port()), 200);
    client.ask("RETR file", 150);
    let (mut data, from) = listener.accept().unwrap();
    assert_eq!(from.ip(), called);
    let mut got = Vec::new();
    data.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"12345");
    client.expect(226);
}

#[test]
fn ipv6_works_with_epsv_and_not_with_pasv() {
    if !bufwise_trial::ipv6() {
        return;
    }
    let served = serve(|config| config.listen = "[::1]:0".parse().unwrap());
    served.put("file", b"12345");
    let mut client = served.client();
    client.ask("PASV", 425);
    assert_eq!(client.fetch("RETR file"), b"12345");
}
