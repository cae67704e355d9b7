//! `bufwise web` by HTTP: requests with and without the token, malformed and slow clients, events.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, geteuid};
use serde_json::Value;

use crate::connections::Pair;
use crate::run::{PROGRAM, command, eventually, only_error, patience, run};

/// The program, and its output.
pub(crate) struct Web {
    child: Child,
    pub(crate) url: String,
    pub(crate) place: SocketAddr,
    pub(crate) token: String,
}

impl Web {
    /// Starts the program without a daemon. It samples each second, also on a slow machine.
    pub(crate) fn start(more: &[&str]) -> Self {
        Self::started(command(&[&["web", "--no-daemon", "--interval", "1s"], more].concat()))
    }

    fn started(command: Command) -> Self {
        Self::spawned(command, |command| command.spawn().unwrap())
    }

    /// Starts the program by `spawn`.
    pub(crate) fn spawned(mut command: Command, spawn: impl FnOnce(&mut Command) -> Child) -> Self {
        let mut child = spawn(command.stdout(Stdio::piped()));
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut url).unwrap();
        let url = url.trim_end().to_owned();
        let rest = url.strip_prefix("http://").unwrap_or_else(|| panic!("a URL: {url:?}"));
        let (place, token) = rest.split_once("/?token=").expect("it has a token");
        Self { child, place: place.parse().unwrap(), token: token.to_owned(), url }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.place).unwrap();
        stream.set_read_timeout(Some(patience(Duration::from_secs(60)))).unwrap();
        stream
    }

    /// Sends a request with these fields; returns header and body of the response.
    fn exchange(&self, line: &str, fields: &str) -> (String, String) {
        let mut stream = self.connect();
        stream.write_all(format!("{line} HTTP/1.1\r\n{fields}\r\n").as_bytes()).unwrap();
        whole(stream)
    }

    /// Returns the fields of a browser's request.
    fn fields(&self) -> String {
        format!("Host: {}\r\nAuthorization: Bearer {}\r\n", self.place, self.token)
    }

    /// Opens a stream of events; returns it after its header.
    pub(crate) fn events(&self, query: &str) -> BufReader<TcpStream> {
        let mut stream = self.connect();
        write!(stream, "GET /events?{query} HTTP/1.1\r\n{}\r\n", self.fields()).unwrap();
        let mut stream = BufReader::new(stream);
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        assert!(line.starts_with("HTTP/1.1 200 "), "{line}");
        while line != "\r\n" {
            line.clear();
            stream.read_line(&mut line).unwrap();
        }
        stream
    }

    fn wait(&mut self) -> Option<i32> {
        let mut status = None;
        eventually("it ends", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.and_then(|status| status.code())
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        let _over = self.child.kill();
        let _over = self.child.wait();
    }
}

/// Reads a response to its end. A server that closes early resets the connection after its response.
fn whole(mut stream: TcpStream) -> (String, String) {
    let mut response = Vec::new();
    let _reset = stream.read_to_end(&mut response);
    let response = String::from_utf8(response).unwrap();
    let (header, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    (header.to_owned(), body.to_owned())
}

fn status(header: &str) -> &str {
    header.split(' ').nth(1).unwrap_or_default()
}

/// Returns the next event of a stream.
fn next(stream: &mut BufReader<TcpStream>) -> Value {
    let (mut event, mut empty) = (String::new(), String::new());
    stream.read_line(&mut event).expect("an event comes");
    stream.read_line(&mut empty).unwrap();
    assert_eq!(empty, "\n");
    serde_json::from_str(event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event}"))).unwrap()
}

/// Returns the first event for which `what` returns a value.
pub(crate) fn first_with<T>(stream: &mut BufReader<TcpStream>, what: impl Fn(&Value) -> Option<T>) -> T {
    for _ in 0..30 {
        if let Some(found) = what(&next(stream)) {
            return found;
        }
    }
    panic!("it never came");
}

#[test]
fn the_page_is_one_document_that_may_run_its_own_script_alone() {
    let web = Web::start(&[]);
    assert!(web.place.ip().is_loopback() && web.token.len() == 32, "{}", web.url);
    let (header, body) =
        web.exchange(&format!("GET /?token={}", web.token), &format!("Host: {}\r\n", web.place));
    for field in [
        "HTTP/1.1 200 OK",
        "Content-Type: text/html; charset=utf-8",
        "Content-Security-Policy: default-src 'none'; script-src 'nonce-",
        "X-Content-Type-Options: nosniff",
        "Referrer-Policy: no-referrer",
        "Cache-Control: no-store",
        "Cross-Origin-Opener-Policy: same-origin",
        "Cross-Origin-Embedder-Policy: require-corp",
        "Cross-Origin-Resource-Policy: same-origin",
    ] {
        assert!(header.contains(field), "{field}: {header}");
    }
    let nonce = |header: &str| header.split("'nonce-").nth(1).unwrap()[..32].to_owned();
    let (own, tags) = (nonce(&header), [body.matches("<script").count(), body.matches("<style").count()]);
    assert_eq!((body.matches(&format!(" nonce=\"{own}\">")).count(), tags), (2, [1, 1]));
    assert!(
        !header.contains("unsafe") && !header.contains("Set-Cookie") && !body.contains("@NONCE@"),
        "{header}"
    );
    assert!(!body.contains("innerHTML") && !body.contains("src=\"http") && !body.contains(&web.token));
    let (again, _) = web.exchange("GET /", &web.fields());
    assert_ne!(nonce(&again), own, "each response has its own");
}

#[test]
fn without_the_token_there_is_nothing() {
    let web = Web::start(&[]);
    let host = format!("Host: {}\r\n", web.place);
    let wrong: String = web.token.chars().rev().collect();
    for path in ["/", "/events", "/events?open=1", "/other", &format!("/?token={wrong}"), "/?token="] {
        for more in [
            String::new(),
            format!("Authorization: Bearer {wrong}\r\n"),
            format!("Authorization: {}\r\n", web.token),
            format!("Cookie: token={}\r\n", web.token),
        ] {
            let (header, body) = web.exchange(&format!("GET {path}"), &format!("{host}{more}"));
            assert_eq!(status(&header), "403", "{path} {more}: {header}");
            assert!(body.len() < 2_000 && !body.contains(&web.token) && !body.contains("data:{"), "{body}");
        }
    }
    let (header, _) = web.exchange("POST /", &host);
    assert_eq!(status(&header), "403");
}

#[test]
fn other_hosts_and_pages_are_refused_whatever_they_know() {
    let web = Web::start(&["--listen", "127.0.0.1:0"]);
    let port = web.place.port();
    let with = |fields: &str| {
        let fields = format!("{fields}Authorization: Bearer {}\r\n", web.token);
        ["/", "/events", "/other"]
            .map(|path| status(&web.exchange(&format!("GET {path}"), &fields).0).to_owned())
    };
    for host in [format!("rebound.example:{port}"), "127.0.0.1".to_owned(), format!("127.0.0.1:{}", port ^ 1)]
    {
        assert_eq!(with(&format!("Host: {host}\r\n")), ["421"; 3], "{host}");
    }
    assert_eq!(with(""), ["421"; 3]);
    for origin in ["null", "http://rebound.example", "http://127.0.0.1"] {
        assert_eq!(with(&format!("Host: localhost:{port}\r\nOrigin: {origin}\r\n")), ["403"; 3], "{origin}");
    }
    let own = format!("Host: localhost:{port}\r\nOrigin: http://localhost:{port}\r\n");
    let fields = format!("{own}Authorization: Bearer {}\r\n", web.token);
    for (line, expected) in [
        ("GET /", "200"),
        ("GET /other", "404"),
        ("GET /events?sort=colour", "400"),
        ("POST /", "405"),
        ("PUT /events", "405"),
    ] {
        assert_eq!(status(&web.exchange(line, &fields).0), expected, "{line}");
    }
}

#[test]
fn requests_that_are_long_senseless_or_slow_are_ended() {
    let web = Web::start(&[]);
    let long = format!("{}X: {}\r\n", web.fields(), "x".repeat(8_192));
    assert_eq!(status(&web.exchange("GET /", &long).0), "431");
    let mut senseless = web.connect();
    senseless.write_all(b"\x16\x03\x01\x02\x00\n\n").unwrap();
    assert_eq!(status(&whole(senseless).0), "400");
    let mut slow = web.connect();
    slow.write_all(b"GET / HTTP/1.1\r\nHost:").unwrap();
    let mut rest = Vec::new();
    let ended = slow.read_to_end(&mut rest);
    assert!(!ended.is_err_and(|error| error.kind() == ErrorKind::WouldBlock) && rest.is_empty(), "{rest:?}");
}

#[test]
fn crowds_and_readers_that_stop_keep_no_page_from_its_events() {
    let web = Web::start(&[]);
    let mut watched = web.events("");
    next(&mut watched);
    let still: Vec<_> = std::iter::repeat_with(|| web.events("all=1")).take(7).collect();
    let refused = format!("GET /events HTTP/1.1\r\n{}\r\n", web.fields());
    let mut one_more = web.connect();
    one_more.write_all(refused.as_bytes()).unwrap();
    assert_eq!(status(&whole(one_more).0), "503");
    // More clients than are served at a time, none of which sends a request.
    let crowd: Vec<TcpStream> = std::iter::repeat_with(|| web.connect()).take(60).collect();
    assert_eq!(status(&web.exchange("GET /", &web.fields()).0), "200");
    next(&mut watched);
    drop(still);
    // Their places are free again.
    eventually("a place is free", || {
        let mut one_more = web.connect();
        one_more.write_all(refused.as_bytes()).unwrap();
        let mut begin = [0; 12];
        one_more.read_exact(&mut begin).unwrap();
        &begin == b"HTTP/1.1 200"
    });
    next(&mut watched);
    drop(crowd);
}

#[test]
fn a_connection_is_told_with_the_figures_of_ls_and_explained() {
    let pair = Pair::on("127.0.0.1:0");
    (&pair.client).write_all(&[7; 10_000]).unwrap();
    let web = Web::start(&[]);
    let (own, peer) = (pair.client.local_addr().unwrap(), pair.address().to_string());
    let mut events = web.events(&format!("all=1&filter={own}"));
    let row = first_with(&mut events, |event| {
        let rows = event["table"]["rows"].as_array()?;
        rows.iter().find(|row| row["cells"][0] == *peer).cloned()
    });
    let listed: Value = crate::connections::json(&["ls", &own.to_string(), "--json"]);
    let listed = crate::connections::find(&listed, own);
    assert_eq!(row["id"], listed["cookie"].to_string());
    let process = format!("{}/{}", listed["process"].as_str().unwrap(), listed["pid"]);
    assert!(row["cells"].as_array().unwrap().contains(&Value::from(process)), "{row}");
    let query = format!("open={}", row["id"].as_str().unwrap());
    let opened = first_with(&mut web.events(&query), |event| {
        let opened = &event["opened"];
        (!opened["sentences"].as_array()?.is_empty()).then(|| opened.clone())
    });
    assert!(opened["title"].as_str().unwrap().starts_with(&format!("{own} to {peer}: ")), "{opened}");
    assert!(opened["sentences"].to_string().contains("Its other end is on this host"), "{opened}");
    assert_eq!(opened["graphs"].as_array().unwrap().len(), 5);
    // The end of a connection is an event, too.
    drop(pair);
    first_with(&mut web.events(&query), |event| event["opened"].is_null().then_some(()));
}

#[test]
fn a_signal_ends_it_in_order() {
    for signal in [Signal::SIGTERM, Signal::SIGINT] {
        let mut web = Web::start(&[]);
        let mut open = web.events("");
        next(&mut open);
        kill(Pid::from_raw(web.child.id().cast_signed()), signal).unwrap();
        assert_eq!(web.wait(), Some(0), "{signal}");
        open.read_to_end(&mut Vec::new()).expect("its pages are ended");
    }
}

#[test]
fn started_by_nohup_it_outlives_the_terminal() {
    let mut command = Command::new("env");
    command.args(["--ignore-signal=HUP", PROGRAM, "web", "--no-daemon"]).stdin(Stdio::null());
    let mut web = Web::started(command);
    let pid = Pid::from_raw(web.child.id().cast_signed());
    kill(pid, Signal::SIGHUP).unwrap();
    // The signal has been read when the second request is answered.
    for _ in 0..2 {
        assert_eq!(status(&web.exchange("GET /", &web.fields()).0), "200");
    }
    kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(web.wait(), Some(0));
}

#[test]
fn it_listens_where_only_this_host_is() {
    for place in ["0.0.0.0:0", "192.0.2.1:8080", "[::]:0"] {
        let line = only_error(&run(&["web", "--listen", place]), 2);
        assert!(line.contains("only at loopback addresses"), "{line}");
    }
    assert!(only_error(&run(&["web", "--listen", "localhost:80"]), 2).contains("127.0.0.1:0"));
    assert!(only_error(&run(&["web", "--interval", "5ms"]), 2).contains("1s to 60s"));
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let place = taken.local_addr().unwrap().to_string();
    let line = only_error(&run(&["web", "--no-daemon", "--listen", &place]), 1);
    assert!(line.contains(&format!("cannot listen at {place}")), "{line}");
    let line = only_error(&run(&["web", "--socket", "/nonexistent/bufwise/control"]), 1);
    assert!(line.contains("there is no daemon at"), "{line}");
}

#[test]
fn an_ipv6_address_is_as_good() {
    if bufwise_trial::ipv6() {
        let web = Web::start(&["--listen", "[::1]:0"]);
        assert_eq!(status(&web.exchange("GET /", &web.fields()).0), "200");
    }
}

#[test]
fn without_any_privilege_it_shows_and_says_what_it_lacks() {
    if !geteuid().is_root() {
        return bufwise_trial::skip("needs root, to give it up");
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
    // The unprivileged user may not reach the program's path: a descriptor that is already open starts it.
    let program = std::fs::File::open(env!("CARGO_BIN_EXE_bufwise")).unwrap();
    command.args(["--", "/proc/self/fd/0", "web", "--no-daemon"]).stdin(program);
    let web = Web::started(command);
    let event = next(&mut web.events("all=1"));
    assert!(event["notes"][0].as_str().unwrap().starts_with("without root"), "{event}");
}
