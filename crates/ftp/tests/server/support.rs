//! A server for one test, and a client that sends whatever it is told to.

#[path = "../../../mover/src/pattern.rs"]
mod pattern;

use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, Shutdown, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_ftp::server::{AdmissionHandle, Config, Event, Rights, Server, Stop, Transfer, Users};
use bufwise_mover::stream::Stream;
use socket2::{Domain, Socket, Type};

pub(crate) use pattern::pattern;

/// Longest wait for anything that must come.
pub(crate) const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// A directory that is served.
pub(crate) struct Served {
    pub(crate) directory: tempfile::TempDir,
    pub(crate) address: SocketAddr,
    pub(crate) admission: AdmissionHandle,
    stop: Stop,
    thread: Option<JoinHandle<()>>,
    events: Arc<Mutex<Vec<Event>>>,
}

/// Serves an empty directory on 127.0.0.1, to anybody, for reading and writing, with the settings that `change` makes.
pub(crate) fn serve(change: impl FnOnce(&mut Config)) -> Served {
    let directory = tempfile::tempdir().unwrap();
    let mut config = Config::new("127.0.0.1:0".parse().unwrap(), directory.path());
    config.users = Users::anonymous(Rights::Write);
    config.times.grace = Duration::from_secs(2);
    change(&mut config);
    let events = Arc::<Mutex<Vec<Event>>>::default();
    let heard = Arc::clone(&events);
    let observer = Box::new(move |event: &Event| heard.lock().unwrap().push(event.clone()));
    let server = Server::bind(config, observer).unwrap();
    let (address, admission, stop) = (server.address(), server.admission(), server.stop());
    let thread = Some(thread::spawn(move || server.run().unwrap()));
    Served { directory, address, admission, stop, thread, events }
}

impl Served {
    /// A file or directory below the served one.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts a file there.
    pub(crate) fn put(&self, name: &str, bytes: &[u8]) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// A client that has not logged in.
    pub(crate) fn connect(&self) -> Client {
        let mut client = Client::on(TcpStream::connect(self.address).unwrap());
        client.expect(220);
        client
    }

    /// A client at this address of the loopback interface that has not logged in.
    pub(crate) fn connect_from(&self, address: IpAddr) -> Client {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
        socket.bind(&SocketAddr::new(address, 0).into()).unwrap();
        socket.connect(&self.address.into()).unwrap();
        let mut client = Client::on(socket.into());
        client.expect(220);
        client
    }

    /// A client, logged in, with a download that has begun.
    pub(crate) fn retrieving(&self, file: &str) -> (Client, TcpStream) {
        let mut client = self.client();
        let data = client.data();
        client.ask(&format!("RETR {file}"), 150);
        (client, data)
    }

    /// A client that has logged in.
    pub(crate) fn client(&self) -> Client {
        let mut client = self.connect();
        client.ask("USER anonymous", 331);
        client.ask("PASS me@example.org", 230);
        client
    }

    pub(crate) fn stop(&self) {
        self.stop.stop();
    }

    /// The lines of the log.
    pub(crate) fn log(&self) -> String {
        self.events.lock().unwrap().iter().map(|event| format!("{event}\n")).collect()
    }

    /// The transfers that were logged.
    pub(crate) fn transfers(&self) -> Vec<Transfer> {
        let events = self.events.lock().unwrap();
        events
            .iter()
            .filter_map(|event| match event {
                Event::Transfer(transfer) => Some(Transfer::clone(transfer)),
                _ => None,
            })
            .collect()
    }

    /// Waits for the server's end after a stop.
    pub(crate) fn ended(&mut self) {
        self.thread.take().unwrap().join().unwrap();
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop.stop();
        if let Some(thread) = self.thread.take() {
            // A test that fails has said why already.
            let _panicked = thread.join();
        }
    }
}

/// A control connection.
pub(crate) struct Client {
    lines: BufReader<TcpStream>,
}

impl Client {
    pub(crate) fn on(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { lines: BufReader::new(stream) }
    }

    pub(crate) fn stream(&self) -> &TcpStream {
        self.lines.get_ref()
    }

    /// Sends bytes as they are.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.lines.get_mut().write_all(bytes).unwrap();
    }

    /// Sends a command.
    pub(crate) fn say(&mut self, command: &str) {
        self.send(format!("{command}\r\n").as_bytes());
    }

    /// The next reply, all its lines; `None` at the end.
    pub(crate) fn reply(&mut self) -> Option<(u16, String)> {
        let mut text = String::new();
        loop {
            let mut line = Vec::new();
            self.lines.read_until(b'\n', &mut line).unwrap_or(0);
            if line.is_empty() {
                return None;
            }
            let line = String::from_utf8_lossy(&line).into_owned();
            text.push_str(&line);
            let code = line.get(..3).and_then(|code| code.parse::<u16>().ok());
            if let Some(code) = code.filter(|_| line.get(3..4) == Some(" ")) {
                return Some((code, text));
            }
        }
    }

    /// The next reply, which must have this code; its text.
    pub(crate) fn expect(&mut self, code: u16) -> String {
        let (got, text) = self.reply().unwrap_or_else(|| panic!("the connection ended, {code} was expected"));
        assert_eq!(got, code, "{text}");
        text
    }

    /// Sends a command and takes its reply.
    pub(crate) fn ask(&mut self, command: &str, code: u16) -> String {
        self.say(command);
        let (got, text) = self.reply().unwrap_or_else(|| panic!("{command}: the connection ended"));
        assert_eq!(got, code, "{command}: {text}");
        text
    }

    /// The connection must end, without a further reply.
    pub(crate) fn ends(&mut self) {
        let reply = self.reply();
        assert!(reply.is_none(), "{reply:?}");
    }

    /// A data connection.
    pub(crate) fn data(&mut self) -> TcpStream {
        let port = self.passive();
        let data = TcpStream::connect((self.stream().peer_addr().unwrap().ip(), port)).unwrap();
        data.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
        data
    }

    /// The port of the next data connection.
    pub(crate) fn passive(&mut self) -> u16 {
        let reply = self.ask("EPSV", 229);
        reply.split('|').nth(3).unwrap().parse().unwrap()
    }

    /// All that a command sends over a data connection.
    pub(crate) fn fetch(&mut self, command: &str) -> Vec<u8> {
        let mut data = self.data();
        self.ask(command, 150);
        let mut bytes = Vec::new();
        data.read_to_end(&mut bytes).unwrap();
        drop(data);
        self.expect(226);
        bytes
    }

    /// Sends bytes over a data connection, and ends it; the completing reply must have this code.
    pub(crate) fn deliver(&mut self, command: &str, bytes: &[u8], code: u16) -> String {
        let mut data = self.data();
        self.ask(command, 150);
        // A server that refuses may have hung up before the end.
        let _cut = data.write_all(bytes);
        drop(data);
        self.expect(code)
    }

    /// Begins an upload, of which these bytes have come.
    pub(crate) fn begin(&mut self, command: &str, bytes: &[u8]) -> TcpStream {
        let mut data = self.data();
        self.ask(command, 150);
        data.write_all(bytes).unwrap();
        data
    }

    /// Ends the connection without QUIT.
    pub(crate) fn vanish(self) {
        // The kernel may know of the end already.
        let _gone = self.stream().shutdown(Shutdown::Both);
    }
}

/// The result of a call, tried again while its socket is not ready.
pub(crate) fn patiently<T>(mut call: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let start = Instant::now();
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock && start.elapsed() < TEST_TIMEOUT => {
                thread::sleep(Duration::from_micros(200));
            }
            other => return other,
        }
    }
}

/// Writes all of these bytes, also while the socket is not ready.
pub(crate) fn write_all(stream: &mut Stream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        let len = patiently(|| stream.write(bytes))?;
        bytes = &bytes[len..];
    }
    patiently(|| stream.flush())
}

/// Waits until `condition` holds.
pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < TEST_TIMEOUT, "not in time: {what}");
        thread::sleep(Duration::from_millis(2));
    }
}
