//! Real connections for the tests: on loopback, in a namespace, over an emulated path.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixListener;
use std::process::{Command, Output};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use serde_json::Value;
use socket2::{Domain, Socket, Type};

use crate::run::command;

/// A socket at which no daemon listens, so that the output does not depend on the machine.
pub(crate) const NO_DAEMON: [&str; 2] = ["--socket", "/nonexistent/bufwise/control"];

/// Both ends of a connection.
pub(crate) struct Pair {
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
}

impl Pair {
    /// Connects the two. The client's address is bound, so no other connection of this machine has it.
    pub(crate) fn on(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let to = listener.local_addr().unwrap();
        let client = Socket::new(Domain::for_address(to), Type::STREAM, None).unwrap();
        client.bind(&SocketAddr::new(to.ip(), 0).into()).unwrap();
        client.connect(&to.into()).unwrap();
        let client = TcpStream::from(client);
        let server = listener.accept().unwrap().0;
        Self { client, server }
    }

    /// The server's address. Its port is fresh, so it identifies the connection.
    pub(crate) fn address(&self) -> SocketAddr {
        self.client.peer_addr().unwrap()
    }
}

/// A transfer that goes on until it is dropped.
pub(crate) struct Transfer {
    stop: Arc<AtomicBool>,
    client: TcpStream,
    threads: Vec<JoinHandle<()>>,
}

impl Transfer {
    /// Starts a transfer from the client to the server, at full rate.
    pub(crate) fn start(pair: &Pair) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut client, mut server) = (pair.client.try_clone().unwrap(), pair.server.try_clone().unwrap());
        let over = Arc::clone(&stop);
        let sender = std::thread::spawn(move || {
            while !over.load(Ordering::Relaxed) && client.write_all(&[7; 16_384]).is_ok() {}
        });
        let reader = std::thread::spawn(move || {
            let mut buffer = vec![0; 65_536];
            while server.read(&mut buffer).is_ok_and(|count| count > 0) {}
        });
        Self { stop, client: pair.client.try_clone().unwrap(), threads: vec![sender, reader] }
    }
}

impl Drop for Transfer {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _over = self.client.shutdown(std::net::Shutdown::Both);
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// Returns the arguments that keep a command from asking this machine's daemon.
fn without_daemon(arguments: &[&str]) -> &'static [&'static str] {
    if arguments[0] == "check" { &NO_DAEMON } else { &["--no-daemon"] }
}

/// Returns the JSON that a command writes to standard output, without any other output.
pub(crate) fn json(arguments: &[&str]) -> Value {
    let output = command(&[arguments, without_daemon(arguments)].concat()).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && error.is_empty(), "{error}");
    serde_json::from_slice(&output.stdout).expect("it is JSON")
}

/// Returns the connection of a list whose local address is `local`.
pub(crate) fn find(list: &Value, local: SocketAddr) -> &Value {
    let local = local.to_string();
    let all = list["connections"].as_array().expect("there is a list");
    all.iter().find(|one| one["local"] == *local).unwrap_or_else(|| panic!("{local} is missing: {list}"))
}

/// Runs the program as a user without any privilege; `None` if this process has no privilege to drop.
pub(crate) fn unprivileged(arguments: &[&str]) -> Option<Output> {
    nix::unistd::geteuid().is_root().then(|| {
        let mut command = Command::new("setpriv");
        command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all"]);
        // The unprivileged user may not reach the program's path: a descriptor that is already open starts it.
        let program = std::fs::File::open(env!("CARGO_BIN_EXE_bufwise")).unwrap();
        command.args(["--", "/proc/self/fd/0"]).args(arguments).stdin(program);
        command.output().expect("setpriv is part of util-linux")
    })
}

/// A listener in place of a daemon: one client, one reply.
pub(crate) struct FakeDaemon {
    path: String,
    _directory: tempfile::TempDir,
    thread: JoinHandle<String>,
}

impl FakeDaemon {
    pub(crate) fn start(reply: &Value) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control").to_str().unwrap().to_owned();
        let listener = UnixListener::bind(&path).unwrap();
        let reply = format!("{reply}\n");
        let thread = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(client.try_clone().unwrap()).read_line(&mut request).unwrap();
            client.write_all(reply.as_bytes()).unwrap();
            request
        });
        Self { path, _directory: directory, thread }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// Returns the request received.
    pub(crate) fn heard(self) -> String {
        self.thread.join().unwrap().trim_end().to_owned()
    }
}
