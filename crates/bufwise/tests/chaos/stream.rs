//! A transfer that must go on and end whole, whatever happens to the processes that tune it.

use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use bufwise_bpf::Owners;
use bufwise_socket::diag::{Diag, States};
use bufwise_socket::namespace;
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::Rate;

use crate::place::Net;
use crate::run::{eventually, patience};

/// Length of the file, which is sent repeatedly.
const LEN: usize = 300_007;
/// Bytes per read, and the pause after each: the transfer must outlast the experiment, and leave the processor to
/// others.
const PIECE: usize = 65_536;
const PAUSE: Duration = Duration::from_millis(4);

fn pattern() -> Vec<u8> {
    (0..LEN as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// A transfer: a script sends, the test reads.
pub(crate) struct Stream {
    /// `None` if the sender is a child of another process.
    client: Option<Child>,
    server: TcpStream,
    moved: Arc<AtomicU64>,
    reader: Option<JoinHandle<u64>>,
    name: &'static str,
}

impl Stream {
    /// Returns a script that connects to `listener` and sends the file repeatedly, until it is told to end.
    pub(crate) fn script(listener: &TcpListener, directory: &Path) -> String {
        let file = directory.join("pattern");
        // The file is written once, and shared with other transfers.
        if !file.exists() {
            fs::write(&file, pattern()).unwrap();
        }
        let port = listener.local_addr().unwrap().port();
        // The script reads the word that ends it, because closing a socket with unread data resets the connection.
        format!(
            "exec 3<>/dev/tcp/127.0.0.1/{port}; until read -t 0 -u 3; do cat {}; done >&3; read -u 3 word",
            file.display()
        )
    }

    pub(crate) fn listener(net: &Net) -> TcpListener {
        net.inside(|| TcpListener::bind("127.0.0.1:0").unwrap())
    }

    /// Waits for the client's connection.
    pub(crate) fn accept(listener: &TcpListener, client: Child, name: &'static str) -> Self {
        let server = accepted(listener, patience(Duration::from_secs(30)));
        Self::of(server.unwrap_or_else(|| panic!("{name}: nothing connects")), Some(client), name)
    }

    /// Begins a transfer whose sender has connected.
    pub(crate) fn of(server: TcpStream, client: Option<Child>, name: &'static str) -> Self {
        server.set_nonblocking(false).unwrap();
        server.set_read_timeout(Some(patience(Duration::from_secs(60)))).unwrap();
        let moved = Arc::new(AtomicU64::new(0));
        let (mut socket, count) = (server.try_clone().unwrap(), Arc::clone(&moved));
        let reader = thread::spawn(move || read_whole(&mut socket, &count));
        Self { client, server, moved, reader: Some(reader), name }
    }

    /// Waits until more data has come.
    pub(crate) fn moves(&self) {
        let before = self.moved.load(Ordering::Relaxed);
        eventually(&format!("{} moves on", self.name), || {
            self.moved.load(Ordering::Relaxed) > before + 200_000
        });
    }

    /// Ends the transfer; asserts that all data arrived in order.
    pub(crate) fn finish(mut self) {
        self.server.write_all(b"end\n").unwrap();
        let read = self.reader.take().unwrap().join().expect("every byte is as it was sent");
        assert!(
            read > 0 && read.is_multiple_of(LEN as u64),
            "{}: {read} bytes are not whole files",
            self.name
        );
        if let Some(client) = &mut self.client {
            let status = client.wait().unwrap();
            assert!(status.success(), "{}: {status}", self.name);
        }
    }

    /// Asserts that the sender's socket has the kernel's own settings again.
    pub(crate) fn must_be_free(&self) {
        let wanted = self.server.peer_addr().unwrap();
        let network = namespace::of_socket(&self.server).unwrap();
        let all = || Diag::open().unwrap().tcp(States::ESTABLISHED).unwrap();
        let all = namespace::inside(network.as_fd(), all).unwrap();
        let one = all.iter().find(|one| one.local == wanted).expect("it is connected");
        let mut socket = None;
        // The process that reads the file holds the socket, too, and may end between the two steps.
        eventually("its process is found", || {
            socket = Owners::scan().socket(one.inode.into(), one.cookie);
            socket.is_some()
        });
        let socket = socket.unwrap();
        assert_eq!(options::buffer_lock(&socket).unwrap(), BufferLock::default(), "{}", self.name);
        assert_eq!(options::max_pacing_rate(&socket).unwrap(), Rate::MAX, "{}", self.name);
    }
}

/// Returns a connection that comes within this time.
pub(crate) fn accepted(listener: &TcpListener, within: Duration) -> Option<TcpStream> {
    listener.set_nonblocking(true).unwrap();
    let began = Instant::now();
    while began.elapsed() < within {
        if let Ok((server, _)) = listener.accept() {
            return Some(server);
        }
        thread::sleep(Duration::from_millis(2));
    }
    None
}

fn read_whole(socket: &mut TcpStream, count: &AtomicU64) -> u64 {
    let (wanted, mut buffer, mut at) = (pattern(), vec![0; PIECE], 0);
    loop {
        let len = socket.read(&mut buffer).expect("the transfer goes on");
        if len == 0 {
            return at as u64;
        }
        let expected = wanted.iter().cycle().skip(at % LEN).take(len);
        assert!(buffer[..len].iter().eq(expected), "other bytes within {len} after {at}");
        at += len;
        count.store(at as u64, Ordering::Relaxed);
        thread::sleep(PAUSE);
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // Needed only after a failed test; otherwise the client has already ended.
        if let Some(client) = &mut self.client {
            let _ended = client.kill();
            let _reaped = client.wait();
        }
    }
}
