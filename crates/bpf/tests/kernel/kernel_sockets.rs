//! Sockets of the kernel itself are left to it, because no process holds them: here the subflows of MPTCP.
//!
//! The program that has the connections is a second process of this test binary: the environment tells it so.

use std::fs;
use std::io::{BufRead, BufReader, Read, stdin};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::process::{Child, Command, Stdio};

use bufwise_bpf::{Cgroup, Config, Engine, Released};
use bufwise_socket::diag::{Diag, States};
use bufwise_units::Bytes;
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::adoption::{WAYS, engine_by, fixed};
use crate::support::{Netns, carry, engine_on, in_turn, patience, root};

const TEST: &str =
    "kernel_sockets::root_subflows_of_mptcp_stay_the_kernels_and_plain_clients_of_a_listener_are_tuned";
/// In the environment of the program.
const TALKS: &str = "BUFWISE_TEST_TALKS";
/// The program prints this and the plain client's port.
const READY: &str = "the plain client has port";
/// Bytes that each connection carries in either direction.
const MOVED: usize = 1_000_000;
/// Payload of a buffer that is tuned.
const SIZE: u64 = 100_000;

/// Runs as the program: a listener of MPTCP accepts a client of MPTCP and a plain one. Both connections last until the
/// input ends.
fn talk() {
    let socket = |protocol| Socket::new(Domain::IPV4, Type::STREAM, Some(protocol)).unwrap();
    let listener = socket(Protocol::MPTCP);
    listener.bind(&SockAddr::from(SocketAddr::from(([127, 0, 0, 1], 0)))).unwrap();
    listener.listen(2).unwrap();
    let listener = TcpListener::from(listener);
    let address = SockAddr::from(listener.local_addr().unwrap());
    let connections = [Protocol::MPTCP, Protocol::TCP].map(|protocol| {
        let client = socket(protocol);
        client.connect(&address).unwrap();
        let (client, server) = (TcpStream::from(client), listener.accept().unwrap().0);
        for end in [&client, &server] {
            end.set_read_timeout(Some(patience())).unwrap();
            end.set_write_timeout(Some(patience())).unwrap();
        }
        carry(&client, &server, MOVED);
        carry(&server, &client, MOVED);
        (client, server)
    });
    println!("{READY} {}", connections[1].0.local_addr().unwrap().port());
    stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// The program, until this is dropped.
struct Program {
    process: Child,
    /// Port of the plain client.
    plain: u16,
}

impl Program {
    fn start(cgroup: &Cgroup, netns: &Netns) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", TEST, "--nocapture"]).env(TALKS, "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = netns.inside(|| {
            let _turn = in_turn();
            cgroup.spawn(&mut command).unwrap()
        });
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let plain = lines.find_map(|line| line.unwrap().split_once(READY)?.1.trim().parse().ok());
        Self { process, plain: plain.expect("the program ended") }
    }

    /// Returns whether a socket with these addresses is an end of the plain connection.
    fn is_plain(&self, addresses: [SocketAddr; 2]) -> bool {
        addresses.iter().any(|address| address.port() == self.plain)
    }

    /// Checks that the engine has both ends of the plain connection, and no subflow.
    fn check(&self, engine: &Engine) {
        let flows = engine.flows().unwrap();
        assert_eq!(flows.len(), 2, "{flows:?}");
        assert!(flows.iter().all(|flow| self.is_plain([flow.local, flow.peer])), "{flows:?}");
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _ended_already = self.process.wait();
    }
}

#[test]
fn root_subflows_of_mptcp_stay_the_kernels_and_plain_clients_of_a_listener_are_tuned() {
    if std::env::var_os(TALKS).is_some() {
        return talk();
    }
    if !root() {
        return;
    }
    // Records are made when connections are established, or late.
    for record_after in [Bytes::ZERO, Config::SHORT_CONNECTION] {
        let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
        if netns.inside(|| fs::write("/proc/sys/net/mptcp/enabled", "1")).is_err() {
            return bufwise_trial::skip("needs MPTCP");
        }
        let mut engine = engine_on(&Config { record_after, ..fixed(SIZE) }, &cgroup);
        engine.sweep(netns.as_fd()).unwrap();
        let program = Program::start(&cgroup, &netns);
        program.check(&engine);
        let all = netns.inside(|| Diag::open().unwrap().tcp(States::ESTABLISHED).unwrap());
        assert_eq!(all.len(), 4, "{all:?}");
        for one in all {
            let is_tuned = u64::from(one.mem.sndbuf) == 2 * SIZE;
            assert_eq!(is_tuned, program.is_plain([one.local, one.peer]), "{one:?}");
        }
        let swept = engine.sweep(netns.as_fd()).unwrap();
        assert_eq!((swept.seen, swept.adopted), (2, 0));
        let released = engine.release_all().unwrap();
        assert_eq!(released, Released { released: 2, ..Released::default() });
        drop(engine);
        for way in WAYS {
            let mut engine = engine_by(way, &fixed(SIZE), &cgroup);
            assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 2, "{way:?}");
            program.check(&engine);
            engine.release_all().unwrap();
        }
    }
}
