//! Buffers that clients request: before a transfer as in GridFTP, during one as in drsFTP, always within bounds.

use std::net::UdpSocket;
use std::time::Duration;

use bufwise_ftp::server::BufferCaps;
use bufwise_mover::probe::{Limits, Responder, Token};
use bufwise_policy::PolicyKind;
use bufwise_units::Bytes;

use crate::support::{eventually, pattern, serve};

const MUCH: usize = 32 << 20;

/// The size in `126 Buffer Size (n)`.
fn size(reply: &str) -> u64 {
    reply.strip_prefix("126 Buffer Size (").unwrap().trim_end().strip_suffix(')').unwrap().parse().unwrap()
}

#[test]
fn before_a_transfer_a_request_is_for_the_connections_to_come() {
    let served = serve(|_| {});
    served.put("file", &pattern(100_000));
    let mut client = served.client();
    assert!(client.ask("SBUF 100000", 200).contains("100000 bytes"));
    client.fetch("RETR file");
    let transfers = served.transfers();
    // The kernel doubles what it is given.
    assert_eq!(transfers[0].report.unwrap().largest_buffer, Bytes(200_000));
}

#[test]
fn absurd_sizes_are_refused_or_bounded() {
    let caps = BufferCaps { connection: Bytes(1 << 20), user: Bytes(3 << 19), host: Bytes(1 << 21) };
    let served = serve(|config| config.tuning.buffers = caps);
    let mut client = served.client();
    for request in ["0", "-1", "1e9", "0x10", "99999999999999999999999999", "", "many"] {
        client.ask(&format!("SBUF {request}"), 501);
    }
    assert!(client.ask("SBUF 18446744073709551615", 200).contains(" 1048576 bytes"));
    assert!(
        client.ask("SBUF 18446744073709551615", 200).contains(" 1048576 bytes"),
        "a new request, not one more"
    );
    let mut second = served.client();
    assert!(second.ask("SBUF 1000000000", 200).contains(" 524288 bytes"), "what is left for the user");
    let mut third = served.client();
    third.ask("SBUF 1000000000", 452);
    drop(client);
    eventually("it is given back", || {
        third.say("SBUF 1000000000");
        third.reply().unwrap().0 == 200
    });
}

#[test]
fn a_port_that_waits_keeps_the_memory_of_its_connections() {
    let caps = BufferCaps { connection: Bytes(1 << 20), user: Bytes(3 << 19), host: Bytes(1 << 21) };
    let served = serve(|config| config.tuning.buffers = caps);
    let (mut first, mut second) = (served.client(), served.client());
    first.ask("SBUF 1048576", 200);
    first.passive();
    first.ask("SBUF 4096", 200);
    assert!(second.ask("SBUF 1048576", 200).contains(" 520192 bytes"));
    first.passive();
    assert!(second.ask("SBUF 1048576", 200).contains(" 1048576 bytes"), "given back with the port");
}

#[test]
fn without_the_option_there_is_no_126_and_a_request_waits() {
    let served = serve(|config| config.tuning.policy = PolicyKind::Drs);
    served.put("file", &vec![7; MUCH]);
    let mut client = served.client();
    let mut data = client.data();
    client.ask("RETR file", 150);
    client.say("SBUF 300000");
    client.ask("NOOP", 200);
    assert_eq!(std::io::copy(&mut data, &mut std::io::sink()).unwrap(), MUCH as u64);
    client.expect(226);
    client.expect(200);
    client.deliver("STOR new", &pattern(1 << 20), 226);
}

#[test]
fn during_a_transfer_a_request_is_answered_by_126_alone() {
    let caps = BufferCaps { connection: Bytes(500_000), ..BufferCaps::default() };
    let served = serve(|config| config.tuning.buffers = caps);
    served.put("file", &vec![7; MUCH]);
    let mut client = served.client();
    assert!(client.ask("FEAT", 211).contains(" DRS SBUF;NOTIFY;PROBE;\r\n"));
    client.ask("OPTS DRS NOTIFY=1;", 200);
    let mut data = client.data();
    client.ask("RETR file", 150);
    assert_eq!(size(&client.ask("SBUF 100000", 126)), 100_000);
    // Within 5 ms of a change, requests change nothing at once. A machine that stalls reads some of them later than
    // that, but not each time; the first differs from all that may have been granted before.
    let mut firsts = [40_000, 100_000].into_iter().cycle();
    eventually("requests that come too soon change nothing", || {
        std::thread::sleep(Duration::from_millis(6));
        let first = firsts.next().unwrap();
        client.send(format!("SBUF {first}\r\nSBUF 200000\r\nSBUF 400000\r\nSBUF 250000\r\n").as_bytes());
        [(); 4].map(|()| size(&client.expect(126))) == [first; 4]
    });
    std::thread::sleep(Duration::from_millis(30));
    assert_eq!(size(&client.ask("SBUF 18446744073709551615", 126)), 500_000, "the cap");
    client.ask("SBUF nonsense", 501);
    assert_eq!(std::io::copy(&mut data, &mut std::io::sink()).unwrap(), MUCH as u64);
    client.expect(226);
    client.ask("NOOP", 200);
    assert_eq!(served.transfers()[0].buffer_request, Some(Bytes(500_000)));
    assert!(served.log().contains("requested buffer 500.0 KB"), "{}", served.log());
}

#[test]
fn the_last_request_of_a_client_that_vanishes_is_on_record() {
    let served = serve(|_| {});
    served.put("file", &vec![7; MUCH]);
    let mut client = served.client();
    client.ask("OPTS DRS NOTIFY=1;", 200);
    let _data = client.data();
    client.ask("RETR file", 150);
    assert_eq!(size(&client.ask("SBUF 100000", 126)), 100_000);
    client.vanish();
    eventually("the transfer is given up", || !served.transfers().is_empty());
    assert_eq!(served.transfers()[0].buffer_request, Some(Bytes(100_000)));
}

#[test]
fn while_receiving_only_preliminary_replies_precede_the_226() {
    for policy in [PolicyKind::Drs, PolicyKind::DrsFtp, PolicyKind::Sobas, PolicyKind::Fixed(Bytes(200_000))]
    {
        let served = serve(|config| config.tuning.policy = policy);
        let bytes = pattern(4 << 20);
        let mut client = served.client();
        client.ask("OPTS DRS NOTIFY=1;", 200);
        let data = client.begin("STOR file", &bytes);
        drop(data);
        loop {
            let (code, text) = client.reply().unwrap();
            match code {
                126 => assert!(size(&text) > 0),
                226 => break,
                _ => panic!("{policy}: {text}"),
            }
        }
        assert!(std::fs::read(served.path("file")).unwrap() == bytes, "{policy}");
        assert_eq!(served.transfers()[0].policy, Some(policy));
    }
}

#[test]
fn a_status_during_an_upload_takes_no_request_away() {
    let served = serve(|config| config.tuning.policy = PolicyKind::Drs);
    let mut client = served.client();
    client.ask("OPTS DRS NOTIFY=1;", 200);
    let data = client.data();
    // The first request is made while these are answered.
    client.send(format!("STOR file\r\n{}", "STAT\r\n".repeat(500)).as_bytes());
    while client.reply().expect("a request").0 != 126 {}
    drop(data);
    while client.reply().expect("the end").0 != 226 {}
}

#[test]
fn before_an_upload_under_sobas_the_server_probes_the_client_at_the_port_it_named() {
    let served = serve(|config| config.tuning.policy = PolicyKind::Sobas);
    let token = Token::random().unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    // A machine that stands still asks for several trains at once, all of which count.
    let limits = Limits { train_spacing: Duration::ZERO, ..Limits::default() };
    let responder = Responder::start(socket, "127.0.0.1".parse().unwrap(), token, limits).unwrap();
    let hex: String = token.to_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
    let mut client = served.client();
    client.ask(&format!("PROB (|||{}|{hex}|)", responder.address().port()), 200);
    let bytes = pattern(1 << 20);
    client.deliver("STOR file", &bytes, 226);
    assert!(std::fs::read(served.path("file")).unwrap() == bytes);
    let counters = responder.counters();
    assert!(counters.echoes > 0 && counters.trains > 0 && counters.ignored == 0, "{counters:?}");
    // An offer is for one transfer.
    client.deliver("STOR other", &bytes, 226);
    assert_eq!(responder.counters().trains, counters.trains);
}

#[test]
fn an_upload_goes_on_without_answers_to_probes() {
    let served = serve(|config| config.tuning.policy = PolicyKind::Sobas);
    let silent = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut client = served.client();
    let port = silent.local_addr().unwrap().port();
    client.ask(&format!("PROB (|||{port}|00112233445566778899aabbccddeeff|)"), 200);
    client.deliver("STOR file", &pattern(100_000), 226);
    assert!(served.transfers()[0].failure.is_none());
}
