//! Connections that belong to a cgroup and are moved by the test, and network namespaces for them.

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_bpf::{Cgroup, Config, Engine, FlowState, reach};
use bufwise_socket::diag::{Diag, States};
use bufwise_socket::options;
pub(crate) use bufwise_trial::root;
use bufwise_units::Bytes;
use nix::sched::{CloneFlags, setns, unshare};
use socket2::SockRef;

/// Returns how long to wait for an event that should happen at once: long enough for a busy machine.
/// `BUFWISE_TEST_PATIENCE` multiplies it, for emulated machines, which are far slower.
pub(crate) fn patience() -> Duration {
    let times = std::env::var("BUFWISE_TEST_PATIENCE").ok().and_then(|times| times.parse().ok());
    Duration::from_secs(10) * times.unwrap_or(1)
}

/// Returns a lock to hold while sockets are made and commands are started. To start a command in a cgroup, the whole
/// process enters it; a socket that another test makes at that moment would belong to the wrong group.
pub(crate) fn in_turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Asks until there is an answer.
pub(crate) fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let patience = patience();
    let deadline = Instant::now() + patience;
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < deadline, "no {what} within {patience:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// An engine whose programs see the connections of a group.
pub(crate) fn engine_on(config: &Config, group: &impl AsFd) -> Engine {
    let mut engine = Engine::load(config).unwrap();
    engine.attach(group.as_fd()).unwrap();
    engine
}

/// A network namespace that has only its loopback. Dropping this ends the namespace, with all that is left in it.
pub(crate) struct Netns(File);

impl Netns {
    pub(crate) fn new() -> Self {
        let make = || {
            unshare(CloneFlags::CLONE_NEWNET).unwrap();
            assert!(Command::new("ip").args(["link", "set", "lo", "up"]).status().unwrap().success());
            Self(File::open("/proc/thread-self/ns/net").unwrap())
        };
        thread::spawn(make).join().unwrap()
    }

    pub(crate) fn inode(&self) -> u64 {
        self.0.metadata().unwrap().ino()
    }

    /// Does something inside.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let entered = || {
                setns(&self.0, CloneFlags::CLONE_NEWNET).unwrap();
                work()
            };
            scope.spawn(entered).join().unwrap()
        })
    }
}

impl AsFd for Netns {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// A connection that a process in a cgroup has opened, and holds until this is dropped. The test has a copy of its
/// descriptor, and the other end, which belongs to no group.
pub(crate) struct Connection {
    process: Child,
    pub(crate) client: TcpStream,
    pub(crate) server: TcpStream,
    pub(crate) cookie: u64,
}

impl Connection {
    /// Opens one to an address of the namespace's loopback; IPv4 in IPv6 (`::ffff:127.0.0.1`) makes an IPv6 socket.
    pub(crate) fn open(cgroup: &Cgroup, netns: &Netns, to: &str) -> Self {
        Self::open_after("", cgroup, netns, to)
    }

    /// As [`Connection::open`], by a process that first does something else.
    pub(crate) fn open_after(first: &str, cgroup: &Cgroup, netns: &Netns, to: &str) -> Self {
        netns.inside(|| {
            let _turn = in_turn();
            let any: SocketAddr = "[::]:0".parse().unwrap();
            let listener = TcpListener::bind(any).unwrap();
            let port = listener.local_addr().unwrap().port();
            let script = format!("{first} exec 3<>/dev/tcp/{to}/{port} && read -r _");
            let mut bash = Command::new("bash");
            let process = cgroup.spawn(bash.args(["-c", &script]).stdin(Stdio::piped())).unwrap();
            listener.set_nonblocking(true).unwrap();
            let server = wait_for("connection", || listener.accept().ok()).0;
            server.set_nonblocking(false).unwrap();
            let address = canonical(server.peer_addr().unwrap());
            let all = Diag::open().unwrap().tcp(States::ESTABLISHED).unwrap();
            let cookie = all.iter().find(|one| one.local == address).unwrap().cookie;
            let (_, client) = reach::socket(cookie, &[process.id().cast_signed()], None).unwrap();
            for end in [SockRef::from(&client), SockRef::from(&server)] {
                end.set_read_timeout(Some(patience())).unwrap();
                end.set_write_timeout(Some(patience())).unwrap();
            }
            let client = client.as_fd().try_clone_to_owned().unwrap();
            Self { process, client: client.into(), server, cookie }
        })
    }

    /// Sends from the client, all of which the server reads.
    pub(crate) fn send(&self, bytes: usize) {
        carry(&self.client, &self.server, bytes);
    }

    /// Sends from the server, all of which the client reads.
    pub(crate) fn receive(&self, bytes: usize) {
        carry(&self.server, &self.client, bytes);
    }

    /// An engine's state of the client's end.
    pub(crate) fn flow(&self, engine: &Engine) -> Option<FlowState> {
        engine.flows().unwrap().into_iter().find(|flow| flow.cookie == self.cookie)
    }

    /// Grants, as user space does, the client's receive buffer that the programs have requested since the last call.
    pub(crate) fn grant_receive_buffer(&self, engine: &mut Engine) -> Option<Bytes> {
        let requests = engine.requests().unwrap();
        let size = requests.iter().rev().find(|request| request.cookie == self.cookie)?.receive_buffer?;
        options::force_receive_buffer(&self.client, Bytes(size.0 / 2)).unwrap();
        Some(size)
    }

    /// The addresses of the client's end.
    pub(crate) fn addresses(&self) -> (SocketAddr, SocketAddr) {
        (canonical(self.client.local_addr().unwrap()), canonical(self.client.peer_addr().unwrap()))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _ended_already = self.process.wait();
    }
}

fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Ends a socket's connection, so that it can be connected again; its options stay.
#[expect(unsafe_code, reason = "no library has addresses of the family AF_UNSPEC")]
pub(crate) fn disconnect(socket: &TcpStream) {
    let address = libc::sockaddr { sa_family: libc::AF_UNSPEC.try_into().unwrap(), sa_data: [0; 14] };
    let length = size_of::<libc::sockaddr>().try_into().unwrap();
    // SAFETY: the address has that length and outlives the call; the kernel keeps no pointer.
    let result = unsafe { libc::connect(socket.as_raw_fd(), &raw const address, length) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
}

/// Sends from one end, all of which the other reads.
pub(crate) fn carry(mut from: &TcpStream, mut to: &TcpStream, bytes: usize) {
    thread::scope(|scope| {
        let data = vec![7; bytes.min(1 << 20)];
        scope.spawn(move || {
            let mut left = bytes;
            while left > 0 {
                left -= from.write(&data[..left.min(data.len())]).unwrap();
            }
        });
        let (mut buffer, mut left) = (vec![0; 1 << 18], bytes);
        while left > 0 {
            let most = left.min(buffer.len());
            left -= to.read(&mut buffer[..most]).unwrap();
        }
    });
}
