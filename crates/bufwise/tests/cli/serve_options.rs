//! Options of `bufwise serve`: places of data connections, bounds of time, rate and number; and the certificates that `get`
//! believes.

use std::fs::{self, File};
use std::io::Read;
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::run::{only_error, run};
use crate::serve::{Client, Running, directory};

/// Returns a client that has logged in as anybody.
fn guest(running: &Running) -> Client {
    let mut client = running.client();
    client.login("anonymous", "x", "230");
    client
}

/// Returns a client with a download that goes on, for nobody reads it.
fn retrieving(running: &Running) -> (Client, TcpStream) {
    let mut client = guest(running);
    let data = client.data();
    client.ask("RETR large", "150");
    (client, data)
}

/// Makes a file that is larger than the buffers of a connection, and takes no room.
fn with_large(directory: &tempfile::TempDir) {
    File::create(directory.path().join("large")).unwrap().set_len(1 << 30).unwrap();
}

fn read_all(mut data: TcpStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    data.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn data_connections_have_the_ports_and_the_address_that_are_given() {
    let (_directory, path) = directory();
    // Below the ports that the system gives to connections, one of which could take it before the server does.
    let mut ports = 20_000 + (std::process::id() % 5_000) as u16..30_000;
    let port = ports.find(|port| TcpListener::bind(("127.0.0.1", *port)).is_ok()).unwrap();
    let range = format!("{port}-{port}");
    let running =
        Running::start(&[&path, "--passive-ports", &range, "--passive-address", "198.18.0.77"], &[]);
    let mut client = guest(&running);
    let reply = client.ask("PASV", "227");
    assert!(reply.contains(&format!("(198,18,0,77,{},{})", port >> 8, port & 255)), "{reply}");
    let data = TcpStream::connect(("127.0.0.1", port)).unwrap();
    client.ask("RETR file", "150");
    assert_eq!(read_all(data), b"some bytes");
    client.expect("226");
    running.stop(Signal::SIGTERM);
}

#[test]
fn only_an_active_server_connects_to_its_clients() {
    let (_directory, path) = directory();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let target = format!("PORT 127,0,0,1,{},{}", port >> 8, port & 255);
    // The ports are those on which the server waits.
    let running = Running::start(&[&path, "--active", "--passive-ports", "50000-50100"], &[]);
    let mut client = guest(&running);
    client.ask(&target, "200");
    client.ask("RETR file", "150");
    assert_eq!(read_all(listener.accept().unwrap().0), b"some bytes");
    client.expect("226");
    running.stop(Signal::SIGTERM);
    let running = Running::start(&[&path], &[]);
    guest(&running).ask(&target, "502");
    running.stop(Signal::SIGTERM);
}

#[test]
fn probes_are_answered_unless_that_is_switched_off() {
    let (_directory, path) = directory();
    let running = Running::start(&[&path], &[]);
    guest(&running).ask("PROB", "200");
    running.stop(Signal::SIGTERM);
    let running = Running::start(&[&path, "--no-probes"], &[]);
    guest(&running).ask("PROB", "502");
    running.stop(Signal::SIGTERM);
}

#[test]
fn the_bound_of_idle_sessions_and_that_of_transfers_that_stand_still_are_two() {
    let (directory, path) = directory();
    with_large(&directory);
    // Far longer than a machine stands still between two commands of a login.
    let [idle, stall] = ["--idle", "--stall"].map(|bound| Running::start(&[&path, bound, "5s"], &[]));
    let ((mut busy, _unread), mut silent) = (retrieving(&idle), guest(&idle));
    let ((mut stalled, _unread_too), mut waiting) = (retrieving(&stall), guest(&stall));
    silent.expect("421");
    stalled.expect("426");
    busy.ask("NOOP", "200");
    waiting.ask("NOOP", "200");
}

#[test]
fn a_transfer_that_does_not_end_has_the_grace_that_is_given() {
    let (directory, path) = directory();
    with_large(&directory);
    let running = Running::start(&[&path, "--grace", "100ms"], &[]);
    let _unread = retrieving(&running);
    let start = Instant::now();
    running.stop(Signal::SIGTERM);
    assert!(start.elapsed() < Duration::from_secs(10), "as long as without the option");
}

#[test]
fn another_signal_ends_the_grace() {
    let (directory, path) = directory();
    with_large(&directory);
    let running = Running::start(&[&path, "--grace", "3600s"], &[]);
    let _unread = retrieving(&running);
    running.stop_at_once();
}

#[test]
fn a_limit_of_the_rate_holds_for_a_transfer() {
    let (directory, path) = directory();
    fs::write(directory.path().join("file"), vec![7; 1_000_000]).unwrap();
    let running = Running::start(&[&path, "--limit-rate", "16mbit"], &[]);
    let mut client = guest(&running);
    let start = Instant::now();
    assert_eq!(client.get("file").len(), 1_000_000);
    // Half a second at that rate, of which a first burst may come at once.
    assert!(start.elapsed() > Duration::from_millis(250), "{:?}", start.elapsed());
    running.stop(Signal::SIGTERM);
}

#[test]
fn sessions_are_bounded_for_all_and_for_each_address() {
    let (_directory, path) = directory();
    let bounds = ["--max-sessions", "2", "--max-sessions-per-address", "1"];
    let jo = [&path[..], "--user", "jo"];
    let running = Running::start(&[&jo[..], &bounds].concat(), &[("BUFWISE_PASSWORD", "secret")]);
    let at = |last| running.connect_from(Ipv4Addr::new(127, 0, 0, last));
    let mut inside = [at(1), at(2)];
    for client in &mut inside {
        client.expect("220");
        client.login("jo", "secret", "230");
    }
    for last in [1, 3] {
        at(last).expect("421");
    }
    for client in &mut inside {
        client.ask("NOOP", "200");
    }
    running.stop(Signal::SIGTERM);
}

#[test]
fn a_certificate_is_believed_by_its_fingerprint_or_without_proof_where_that_is_asked_for() {
    let (directory, path) = directory();
    let running = Running::start(&[&path, "--tls-self-signed", "--tls-required"], &[]);
    running.reload();
    let line = running.says("reloaded: ");
    // 32 bytes, with colons between.
    let fingerprint = &line.split_once("(fingerprint ").expect("it is told").1[..95];
    let got = directory.path().join("got");
    let get = |url: &str, trust: &[&str]| {
        let whole = ["get", url, "--retries", "0", "-o", got.to_str().unwrap()];
        run(&[&whole[..], trust].concat())
    };
    let comes = |url: &str, trust: &[&str]| {
        let output = get(url, trust);
        assert!(output.status.success(), "{trust:?}: {}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(fs::read(&got).unwrap(), b"some bytes");
        fs::remove_file(&got).unwrap();
    };
    let url = running.url("file");
    comes(&url, &["--pin", fingerprint]);
    comes(&url, &["--insecure"]);
    comes(&url, &["--tls", "--insecure"]);
    let other = format!("{}00", "00:".repeat(31));
    let line = only_error(&get(&url, &["--pin", &other]), 1);
    assert!(line.contains("TLS handshake") && !got.exists(), "{line}");
    running.stop(Signal::SIGTERM);

    // If the server offers no TLS, `--tls` alone goes on without it.
    let running = Running::start(&[&path], &[]);
    let url = running.url("file");
    comes(&url, &["--tls", "--insecure"]);
    assert!(only_error(&get(&url, &["--insecure"]), 1).contains("offers no TLS"));
    running.stop(Signal::SIGTERM);
}

/// Fetches `file` over TLS with another TLS session for the data, and prints it, or `refused`.
const ANOTHER_SESSION: &str = r#"
import ftplib, ssl, sys
ftp = ftplib.FTP_TLS(context=ssl._create_unverified_context(), timeout=20)
ftp.connect("127.0.0.1", int(sys.argv[1]))
ftp.login()
ftp.prot_p()
try:
    ftp.retrbinary("RETR file", lambda data: print(data.decode()))
except (OSError, ftplib.Error):
    print("refused")
"#;

#[test]
fn data_of_another_tls_session_is_refused_where_that_is_asked_for() {
    let Some(python) = bufwise_trial::program("python3") else { return };
    let (directory, path) = directory();
    let got = directory.path().join("got");
    for (more, said) in [(&["--tls-reuse"][..], "refused\n"), (&[], "some bytes\n")] {
        let running = Running::start(&[&[&path[..], "--tls-self-signed"][..], more].concat(), &[]);
        let mut client = Command::new(&python);
        client.args(["-W", "ignore", "-c", ANOTHER_SESSION, &running.address.port().to_string()]);
        let output = client.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&output.stdout), said, "{more:?}: {output:?}");
        // Ours continues the session.
        let get = run(&["get", &running.url("file"), "--insecure", "-o", got.to_str().unwrap()]);
        assert!(get.status.success(), "{more:?}: {get:?}");
        running.stop(Signal::SIGTERM);
    }
}
