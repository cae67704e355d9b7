//! TLS on both channels, and attempts to bypass it.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use bufwise_ftp::server::{Admission, Config, Rights, TlsConfig, Users, users};
use bufwise_mover::Cancel;
use bufwise_mover::stream::Stream;
use bufwise_mover::tls::{ClientTls, ServerTls, Trust};

use crate::support::{Client, Served, TEST_TIMEOUT, eventually, patiently, pattern, serve, write_all};

struct Encrypted {
    served: Served,
    tls: ClientTls,
}

fn encrypted(required: bool, require_reuse: bool) -> Encrypted {
    encrypted_with(required, require_reuse, |_| {})
}

fn encrypted_with(required: bool, require_reuse: bool, change: impl FnOnce(&mut Config)) -> Encrypted {
    let server = ServerTls::self_signed(&["localhost".to_owned()]).unwrap();
    let tls = ClientTls::new(&Trust::Pinned(server.fingerprint())).unwrap();
    let served = serve(|config| {
        config.tls = Some(TlsConfig { server, required, require_reuse });
        change(config);
    });
    Encrypted { served, tls }
}

/// A control connection over TLS, and what is needed to make data connections.
struct Private {
    stream: Stream,
    tls: ClientTls,
    unread: Vec<u8>,
}

impl Private {
    /// Begins TLS on a connection whose AUTH has been answered.
    fn on(client: &Client, tls: &ClientTls) -> Self {
        let tcp = client.stream().try_clone().unwrap();
        let stream = tls.connect(tcp, "localhost", TEST_TIMEOUT, &Cancel::default()).unwrap();
        Self { stream: stream.into(), tls: tls.clone(), unread: Vec::new() }
    }

    fn login(there: &Encrypted) -> Self {
        let mut client = there.served.connect();
        client.ask("AUTH TLS", 234);
        let mut private = Self::on(&client, &there.tls);
        private.ask("USER anonymous", 331);
        private.ask("PASS x", 230);
        private
    }

    fn protecting_data(mut self) -> Self {
        self.ask("PBSZ 0", 200);
        self.ask("PROT P", 200);
        self
    }

    /// Stores `file` by a data connection in TLS, and says where it ends.
    fn stores_all(&mut self) {
        let tls = self.tls.clone();
        let mut data = self.data("STOR file", &tls);
        write_all(&mut data, b"all of it").unwrap();
        patiently(|| data.end_writing()).unwrap();
        self.expect(226);
    }

    /// Fetches `file` by a data connection in TLS: what it says is `secret`.
    fn fetches_the_secret(&mut self) {
        let tls = self.tls.clone();
        let mut data = self.data("RETR file", &tls);
        assert_eq!(read_all(&mut data).unwrap(), b"secret");
        self.expect(226);
    }

    fn reply(&mut self) -> Option<String> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Some(String::from_utf8(line).unwrap());
            }
            let mut chunk = [0; 1_000];
            match patiently(|| self.stream.read(&mut chunk)) {
                Ok(0) | Err(_) => return None,
                Ok(len) => self.unread.extend(&chunk[..len]),
            }
        }
    }

    fn ask(&mut self, command: &str, code: u16) -> String {
        let line = format!("{command}\r\n");
        assert_eq!(patiently(|| self.stream.write(line.as_bytes())).unwrap(), line.len());
        patiently(|| self.stream.flush()).unwrap();
        let reply = self.reply().unwrap_or_else(|| panic!("{command}: the connection ended"));
        assert!(reply.starts_with(&code.to_string()), "{command}: {reply}");
        reply
    }

    fn expect(&mut self, code: u16) -> String {
        let reply = self.reply().unwrap_or_else(|| panic!("the connection ended, {code} was expected"));
        assert!(reply.starts_with(&code.to_string()), "{reply}");
        reply
    }

    fn passive(&mut self) -> TcpStream {
        let reply = self.ask("EPSV", 229);
        let port: u16 = reply.split('|').nth(3).unwrap().parse().unwrap();
        let data = TcpStream::connect(("127.0.0.1", port)).unwrap();
        data.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        data
    }

    /// A data connection over TLS, with a session of `tls`.
    fn data(&mut self, command: &str, tls: &ClientTls) -> Stream {
        let data = self.passive();
        self.ask(command, 150);
        tls.connect(data, "localhost", TEST_TIMEOUT, &Cancel::default()).unwrap().into()
    }
}

fn read_all(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let (mut all, mut chunk) = (Vec::new(), vec![0; 64 << 10]);
    loop {
        match patiently(|| stream.read(&mut chunk))? {
            0 => return Ok(all),
            len => all.extend(&chunk[..len]),
        }
    }
}

#[test]
fn both_channels_are_encrypted_on_request() {
    let there = encrypted(false, true);
    let bytes = pattern(1_000_000);
    there.served.put("file", &bytes);
    let mut client = Private::login(&there);
    client.ask("PROT P", 503);
    client.ask("PBSZ 0", 200);
    client.ask("PROT P", 200);
    let tls = client.tls.clone();
    let mut data = client.data("RETR file", &tls);
    assert!(read_all(&mut data).unwrap() == bytes);
    client.expect(226);
    let mut data = client.data("STOR new", &tls);
    write_all(&mut data, &bytes).unwrap();
    patiently(|| data.end_writing()).unwrap();
    client.expect(226);
    assert!(std::fs::read(there.served.path("new")).unwrap() == bytes);
    client.ask("PROT C", 200);
    let mut plain = client.passive();
    client.ask("RETR file", 150);
    let mut got = Vec::new();
    plain.read_to_end(&mut got).unwrap();
    assert!(got == bytes);
    client.expect(226);
    for (command, code) in [("PROT S", 536), ("CCC", 534), ("AUTH TLS", 503)] {
        client.ask(command, code);
    }
    let log = there.served.log();
    assert!(log.contains("logged in as anonymous, over TLS") && log.contains(", TLS"), "{log}");
}

#[test]
fn an_upload_whose_end_is_announced_over_tls_is_believed_at_once() {
    let there = encrypted_with(false, false, |config| config.times.hangup = Duration::from_secs(3_600));
    let mut client = Private::login(&there).protecting_data();
    client.stores_all();
}

#[test]
fn an_upload_that_is_cut_is_not_whole_over_tls_either() {
    let there = encrypted(false, false);
    let mut client = Private::login(&there).protecting_data();
    let tls = client.tls.clone();
    let mut data = client.data("STOR file", &tls);
    write_all(&mut data, b"some of it").unwrap();
    // An attacker on the path can end a TCP connection, but not say so within TLS.
    data.tcp().shutdown(std::net::Shutdown::Write).unwrap();
    client.expect(426);
    assert!(!there.served.path("file").exists());
}

#[test]
fn commands_sent_before_the_handshake_are_forgotten() {
    let there = encrypted(false, false);
    let mut client = there.served.connect();
    // In one packet with AUTH, as an attacker on the path could add it.
    client.send(b"AUTH TLS\r\nUSER anonymous\r\nPASS x\r\nMKD injected\r\n");
    client.expect(234);
    let mut client = Private::on(&client, &there.tls);
    // The first reply over TLS is to the first command over TLS.
    client.ask("SYST", 215);
    client.ask("MKD injected", 530);
    assert!(!there.served.path("injected").exists());
}

#[test]
fn a_login_in_clear_text_does_not_count_after_auth() {
    let there = encrypted(false, false);
    let mut client = there.served.client();
    client.ask("AUTH TLS", 234);
    let mut client = Private::on(&client, &there.tls);
    client.ask("PWD", 530);
}

#[test]
fn what_was_set_before_auth_has_no_effect_after_it() {
    let there = encrypted(false, false);
    there.served.put("file", b"0123456789");
    std::fs::create_dir(there.served.path("directory")).unwrap();
    let mut client = there.served.client();
    for (command, code) in [
        ("CWD directory", 250),
        ("OPTS MLST type;", 200),
        ("OPTS HASH SHA-1", 200),
        ("TYPE A", 200),
        ("SBUF 65536", 200),
        ("EPSV ALL", 200),
        ("REST 4", 350),
        ("AUTH TLS", 234),
    ] {
        client.ask(command, code);
    }
    let mut client = Private::on(&client, &there.tls);
    client.ask("USER anonymous", 331);
    client.ask("PASS x", 230);
    assert!(client.ask("PWD", 257).contains("\"/\""));
    client.ask("MLST file", 250);
    assert!(client.reply().unwrap().contains("size=10;"));
    client.expect(250);
    assert!(client.ask("OPTS HASH", 200).contains("SHA-256"));
    client.ask("PASV", 227);
    let mut data = client.passive();
    client.ask("RETR file", 150);
    let mut got = Vec::new();
    data.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"0123456789");
    client.expect(226);
}

#[test]
fn a_login_that_auth_has_ended_keeps_no_place() {
    let there = encrypted_with(false, false, |config| {
        config.users = Users::nobody();
        config.users.add("jo", &users::hash_password(b"secret").unwrap(), Rights::Read).unwrap();
        config.limits.sessions = 1;
    });
    let mut client = there.served.connect();
    client.ask("USER jo", 331);
    client.ask("PASS secret", 230);
    client.ask("AUTH TLS", 234);
    let mut client = Private::on(&client, &there.tls);
    client.ask("NOOP", 200);
    let _newcomer = there.served.connect_from([127, 0, 0, 2].into());
    assert!(client.reply().is_none());
}

#[test]
fn where_tls_is_required_nothing_passes_without() {
    let there = encrypted(true, false);
    there.served.put("file", b"secret");
    let mut client = there.served.connect();
    client.ask("USER anonymous", 530);
    client.ask("PASS x", 503);
    client.ask("AUTH SSL", 504);
    let mut client = Private::login(&there);
    client.ask("RETR file", 522);
    client.ask("LIST", 522);
    client.ask("PBSZ 0", 200);
    client.ask("PROT C", 534);
    client.ask("PROT P", 200);
    client.fetches_the_secret();
}

#[test]
fn a_data_connection_of_another_tls_session_is_refused() {
    let there = encrypted(true, true);
    there.served.put("file", b"secret");
    let mut client = Private::login(&there).protecting_data();
    // Another program behind the same address was the first to connect to the port.
    let fresh = ClientTls::new(&Trust::Anyone).unwrap();
    let mut data = client.data("RETR file", &fresh);
    assert!(read_all(&mut data).map_or(true, |bytes| bytes.is_empty()));
    client.expect(425);
    client.fetches_the_secret();
}

#[test]
fn a_transfer_whose_handshake_does_not_come_can_be_aborted() {
    let there = encrypted(false, false);
    let mut client = Private::login(&there).protecting_data();
    let _silent = client.passive();
    client.ask("STOR file", 150);
    // The reply comes within a time-out that is shorter than the limit for a handshake.
    client.ask("ABOR", 426);
    client.expect(226);
    assert!(there.served.log().contains("handshake") && !there.served.path("file").exists());
    client.stores_all();
}

#[test]
fn a_new_certificate_is_shown_to_who_comes_after_and_sessions_go_on_with_the_old() {
    let there = encrypted(true, true);
    there.served.put("file", b"secret");
    let before = Private::login(&there);
    let server = ServerTls::self_signed(&["localhost".to_owned()]).unwrap();
    let tls = ClientTls::new(&Trust::Pinned(server.fingerprint())).unwrap();
    let admission = Admission {
        users: Users::anonymous(Rights::Write),
        tls: Some(TlsConfig { server, required: true, require_reuse: true }),
    };
    there.served.admission.replace(admission);
    let mut client = there.served.connect();
    client.ask("AUTH TLS", 234);
    let tcp = client.stream().try_clone().unwrap();
    assert!(
        there.tls.connect(tcp, "localhost", TEST_TIMEOUT, &Cancel::default()).is_err(),
        "the old certificate"
    );
    let Encrypted { served, .. } = there;
    let there = Encrypted { served, tls };
    for mut client in [before, Private::login(&there)].map(Private::protecting_data) {
        client.fetches_the_secret();
    }
}

#[test]
fn a_handshake_that_does_not_come_ends_the_session_in_time() {
    let server = ServerTls::self_signed(&["localhost".to_owned()]).unwrap();
    let served = serve(|config| {
        config.tls = Some(TlsConfig { server, required: false, require_reuse: false });
        config.times.answer = Duration::from_millis(100);
    });
    let mut client = served.connect();
    client.ask("AUTH TLS", 234);
    client.ends();
    eventually("it is told", || served.log().contains("TLS handshake"));
}

#[test]
fn a_handshake_that_hangs_does_not_delay_the_servers_end() {
    let mut there = encrypted(false, false);
    let mut client = there.served.connect();
    client.ask("AUTH TLS", 234);
    let start = Instant::now();
    there.served.stop();
    there.served.ended();
    assert!(start.elapsed() < TEST_TIMEOUT / 2, "{:?}", start.elapsed());
}
