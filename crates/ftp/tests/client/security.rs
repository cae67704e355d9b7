//! Attacks by a hostile server, or on the path, that must fail.

use std::iter;
use std::net::{SocketAddr, TcpListener};

use bufwise_ftp::client::{ClientError, Security};
use bufwise_mover::tls::{ClientTls, Trust};
use socket2::{Domain, Socket, Type};

use crate::scripted::{Client, Script, Server, pattern};

fn required() -> Security {
    Security::Required(ClientTls::new(&Trust::Anyone).unwrap())
}

/// A listener at another address, and its port at the right one, bound so that nobody else listens there meanwhile; `None`
/// if somebody does.
fn elsewhere_only() -> Option<(TcpListener, Socket)> {
    let elsewhere = TcpListener::bind("127.0.0.2:0").unwrap();
    elsewhere.set_nonblocking(true).unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let taken = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    taken.bind(&SocketAddr::from(([127, 0, 0, 1], port)).into()).ok()?;
    Some((elsewhere, taken))
}

#[test]
fn the_address_in_227_is_not_believed() {
    let (elsewhere, _taken) = iter::repeat_with(elsewhere_only).take(100).flatten().next().unwrap();
    let port = elsewhere.local_addr().unwrap().port();
    let pasv = format!("227 Entering (127,0,0,2,{},{})\r\n", port >> 8, port & 255);
    let answers = [("EPSV", b"500 what\r\n".to_vec()), ("PASV", pasv.into_bytes())].into();
    let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
    Client::of(&server).fails("file", "connecting to 127.0.0.1:");
    assert!(elsewhere.accept().is_err(), "nobody was sent there");
}

#[test]
fn a_port_in_229_is_taken_from_its_own_format_only() {
    for epsv in
        ["229 (127,0,0,1,1,1)\r\n", "229 (|1|127.0.0.2|99999|)\r\n", "229 (|||0|)\r\n", "229 nothing\r\n"]
    {
        let answers = [("EPSV", epsv.into())].into();
        let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
        Client::of(&server).fails("file", "names no port");
    }
}

#[test]
fn where_tls_is_required_nothing_goes_in_clear_text() {
    for auth in [&b"500 no\r\n"[..], b"534 policy\r\n", b"230 logged in already\r\n", b"334 more\r\n"] {
        let answers = [("AUTH", auth.to_vec())].into();
        let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
        let mut client = Client::of(&server);
        client.access.security = required();
        client.fails("file", "offers no TLS");
        assert_eq!(server.heard(), ["AUTH TLS"]);
    }
}

#[test]
fn replies_injected_before_tls_are_dropped_and_a_failed_handshake_is_the_end() {
    let auth = b"234 go\r\n331 password\r\n230 welcome\r\n211 End\r\n200 fine\r\n213 10\r\n".to_vec();
    let answers = [("AUTH", auth)].into();
    let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
    let mut client = Client::of(&server);
    client.access.security = required();
    let error = client.get("file").unwrap_err();
    assert!(matches!(error, ClientError::Tls(_)), "{error}");
    assert!(!server.heard().iter().any(|line| line.starts_with("USER") || line.starts_with("PASS")));
}

#[test]
fn names_that_could_become_commands_are_not_sent() {
    let server = Server::start(Script { content: pattern(10), ..Script::default() });
    let client = Client::of(&server);
    let mut worker = client.worker();
    let error = worker.get("a\r\nDELE b".as_ref(), &client.target("x"), |_| ()).unwrap_err();
    assert!(error.to_string().contains("line break") && !error.to_string().contains('\n'), "{error}");
    assert_eq!(server.count("DELE"), 0);
}

#[test]
fn control_characters_of_a_server_do_not_reach_the_terminal() {
    let answers = [("RETR", b"550 \x1b]0;owned\x07 no\r\n".to_vec())].into();
    let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
    Client::of(&server).fails("file", "550");
}

#[test]
fn a_wrong_password_is_said_without_it() {
    let answers = [("PASS", b"530 wrong\r\n".to_vec())].into();
    let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
    Client::of(&server).fails("file", "refused the login of jo: 530 wrong");
}
