//! Data connections and probes are for the client of the control connection alone.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream, UdpSocket};
use std::time::Duration;

use bufwise_mover::probe::{Prober, ProberConfig, Token};
use socket2::{Domain, Socket, Type};

use crate::support::{Client, TEST_TIMEOUT, eventually, serve};

/// A connection to `to` from another address of this host.
fn stranger(to: SocketAddr) -> Option<TcpStream> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    socket.bind(&SocketAddr::from(([127, 0, 0, 2], 0)).into()).unwrap();
    socket.connect(&to.into()).ok()?;
    let stream = TcpStream::from(socket);
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    Some(stream)
}

fn waiting(client: &mut Client) -> SocketAddr {
    let port = client.passive();
    SocketAddr::from(([127, 0, 0, 1], port))
}

#[test]
fn a_stranger_at_the_data_port_gets_nothing_and_gives_nothing() {
    let served = serve(|_| {});
    served.put("file", b"for the client");
    let mut client = served.client();
    let port = waiting(&mut client);
    let mut thief = stranger(port).unwrap();
    client.ask("RETR file", 150);
    let mut stolen = Vec::new();
    // A reset counts as an end, too.
    let _reset = thief.read_to_end(&mut stolen);
    assert_eq!(stolen, b"");
    let mut got = Vec::new();
    TcpStream::connect(port).unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(got, b"for the client");
    client.expect(226);

    let port = waiting(&mut client);
    let mut forger = stranger(port).unwrap();
    client.ask("STOR new", 150);
    let _refused = forger.write_all(b"forged");
    drop(forger);
    TcpStream::connect(port).unwrap().write_all(b"true").unwrap();
    client.expect(226);
    assert_eq!(std::fs::read(served.path("new")).unwrap(), b"true");
}

#[test]
fn a_data_port_takes_one_connection_and_is_closed() {
    let served = serve(|_| {});
    served.put("file", b"12");
    let mut client = served.client();
    let port = waiting(&mut client);
    let mut data = TcpStream::connect(port).unwrap();
    client.ask("RETR file", 150);
    let mut got = Vec::new();
    data.read_to_end(&mut got).unwrap();
    client.expect(226);
    // A command that another test starts meanwhile holds a copy of a listener for a moment.
    eventually("the port is closed", || TcpStream::connect(port).is_err());
    let first = waiting(&mut client);
    let second = waiting(&mut client);
    eventually("the port before is closed", || TcpStream::connect(first).is_err());
    assert!(TcpStream::connect(second).is_ok());
}

#[test]
fn data_ports_cannot_be_foreseen() {
    let served = serve(|_| {});
    let mut client = served.client();
    let ports: Vec<u16> = (0..16).map(|_| client.passive()).collect();
    let steps: std::collections::BTreeSet<i32> =
        ports.windows(2).map(|pair| i32::from(pair[1]) - i32::from(pair[0])).collect();
    assert!(steps.len() > 4, "{ports:?}");
}

#[test]
fn the_server_connects_to_nobody_else_and_without_active_mode_to_nobody() {
    let served = serve(|_| {});
    let mut client = served.client();
    client.ask("PORT 127,0,0,1,200,10", 502);
    client.ask("EPRT |1|127.0.0.1|50000|", 502);
    let served = serve(|config| config.data.active = true);
    let mut client = served.client();
    for target in ["127,0,0,2,200,10", "198,18,0,1,0,22", "127,0,0,1,0,22", "127,0,0,1,3,255"] {
        client.ask(&format!("PORT {target}"), 501);
    }
    client.ask("EPRT |1|127.0.0.2|50000|", 501);
    client.ask("EPRT |1|127.0.0.1|25|", 501);
    client.ask("EPRT |2|::1|50000|", 501);
    assert!(served.log().contains("requested a data connection to another host"));
}

/// Port and token of a reply to PROB.
fn offer(reply: &str) -> (u16, Token) {
    let fields: Vec<&str> = reply.split('|').collect();
    let mut token = [0; 16];
    for (byte, digits) in token.iter_mut().zip(fields[4].as_bytes().chunks(2)) {
        *byte = u8::from_str_radix(std::str::from_utf8(digits).unwrap(), 16).unwrap();
    }
    (fields[3].parse().unwrap(), Token::from_bytes(token))
}

#[test]
fn probes_are_answered_to_the_client_with_its_token_only() {
    let served = serve(|_| {});
    let mut client = served.client();
    let (port, token) = offer(&client.ask("PROB", 200));
    let there = SocketAddr::from(([127, 0, 0, 1], port));
    let probe = |from: &str, token: Token| {
        let socket = UdpSocket::bind(from).unwrap();
        let config =
            ProberConfig { trains: 1, timeout: Duration::from_millis(300), ..ProberConfig::default() };
        Prober::start(socket, there, token, config).unwrap()
    };
    let stranger = probe("127.0.0.2:0", token);
    let guesser = probe("127.0.0.1:0", Token::from_bytes([7; 16]));
    let client_itself = probe("127.0.0.1:0", token);
    eventually("all have probed, and the client is answered", || {
        let others = [&stranger, &guesser].map(|other| other.measured().sent);
        client_itself.measured().answered > 3 && others.iter().all(|sent| *sent > 3)
    });
    assert_eq!((stranger.measured().answered, guesser.measured().answered), (0, 0));
    // The next PROB ends it.
    client.ask("PROB", 200);
    let late = probe("127.0.0.1:0", token);
    eventually("it is tried", || late.measured().sent > 5);
    assert_eq!(late.measured().answered, 0);
}

#[test]
fn probes_are_sent_to_no_service_and_not_at_all_when_switched_off() {
    let served = serve(|_| {});
    let mut client = served.client();
    let token = "00112233445566778899aabbccddeeff";
    client.ask(&format!("PROB (|||53|{token}|)"), 501);
    client.ask(&format!("PROB (|||50000|{token}|)"), 200);
    client.ask("PROB (|||50000|short|)", 501);
    let served = serve(|config| config.tuning.probes = false);
    let mut client = served.client();
    assert!(client.ask("FEAT", 211).contains("DRS SBUF;NOTIFY;\r\n"));
    client.ask("PROB", 502);
}
