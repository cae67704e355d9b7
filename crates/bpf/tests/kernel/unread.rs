//! Readers that stop: their unread data stays within their share, and none of it is dropped.

use std::io::{ErrorKind, Read, Write};
use std::process::Command;

use bufwise_bpf::{Cgroup, Config, Engine, ReceiveRule, Shares};
use bufwise_socket::options;
use bufwise_units::Bytes;

use crate::support::{Connection, Netns, engine_on, root, wait_for};

/// The largest window, and the memory that it leaves a buffer.
const WINDOW: Bytes = Bytes(128 << 10);
const ROOM: u64 = 256 << 10;
/// Payload of a segment.
const SEGMENT: u32 = 1_448;
/// Memory of a segment. The kernel takes one if the memory before it is within the buffer (`tcp_can_ingest()`), so the last one may
/// exceed it.
const LAST: u64 = 2_304;

struct Scene {
    engine: Engine,
    netns: Netns,
    cgroup: Cgroup,
}

impl Scene {
    fn new(receive: ReceiveRule) -> Self {
        let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
        let narrow = || Command::new("ip").args(["link", "set", "lo", "mtu", "1500"]).status().unwrap();
        assert!(netns.inside(narrow).success());
        let engine =
            engine_on(&Config { receive, receive_cap: Bytes(64 << 20), ..Config::default() }, &cgroup);
        Self { engine, netns, cgroup }
    }

    fn share(&mut self, window: Bytes) {
        self.engine.heartbeat(Shares { window: Some(window), ..Shares::default() }).unwrap();
    }

    fn connect(&self) -> Connection {
        let connection = Connection::open(&self.cgroup, &self.netns, "127.0.0.1");
        connection.server.set_nonblocking(true).unwrap();
        connection
    }
}

/// Writes until the peer, which reads nothing, offers no window any more; returns the number of bytes written.
fn fill(connection: &Connection) -> usize {
    let mut written = 0;
    wait_for("a full buffer", || match (&connection.server).write(&[7; 1 << 16]) {
        Ok(bytes) => {
            written += bytes;
            None
        }
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
            let offered = options::tcp_info(&connection.server).unwrap().snd_wnd;
            (offered < 2 * SEGMENT).then_some(written)
        }
    })
}

fn unread(connection: &Connection) -> u64 {
    options::memory(&connection.client).unwrap().rmem_alloc.into()
}

/// Returns how often, in this thread's namespace, a segment within the offered window found no room.
fn pruned() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/net/netstat").unwrap();
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let of = |name: &str| {
        let mut counters = names.split(' ').zip(values.split(' '));
        counters.find(|(known, _)| *known == name).unwrap().1.parse::<u64>().unwrap()
    };
    ["PruneCalled", "RcvPruned", "OfoPruned", "TCPRcvQDrop"].into_iter().map(of).sum()
}

#[test]
fn root_what_readers_leave_unread_is_within_their_shares_together() {
    if !root() {
        return;
    }
    for rule in [ReceiveRule::Drs, ReceiveRule::Sobas, ReceiveRule::Fit] {
        let mut scene = Scene::new(rule);
        scene.share(WINDOW);
        let connections = [(); 4].map(|()| scene.connect());
        for connection in &connections {
            fill(connection);
            scene.share(WINDOW);
        }
        let held: u64 = connections.iter().map(unread).sum();
        assert!(held <= 4 * ROOM, "{rule:?}: {held}");
        // The level by which user space shares the rest.
        for connection in &connections {
            let told = connection.flow(&scene.engine).unwrap().sample.receive_queued;
            assert!(told.0 > ROOM / 4 && told.0 <= ROOM + LAST, "{rule:?}: {told}");
        }
    }
}

#[test]
fn root_a_buffer_that_shrinks_to_its_share_drops_nothing() {
    if !root() {
        return;
    }
    for rule in [ReceiveRule::Drs, ReceiveRule::Sobas, ReceiveRule::Fit] {
        let mut scene = Scene::new(rule);
        scene.share(WINDOW.times(4));
        let connection = scene.connect();
        let begun = (&connection.server).write(&[7; 100_000]).unwrap();
        wait_for("arrival", || (unread(&connection) >= begun as u64).then_some(()));
        let before = options::receive_buffer(&connection.client).unwrap();
        assert_eq!(before, Bytes(4 * ROOM), "{rule:?}");
        scene.share(Bytes(WINDOW.0 / 2));
        let sent = begun + fill(&connection);
        let after = options::receive_buffer(&connection.client).unwrap();
        assert!(after < before && after.0 >= unread(&connection), "{rule:?}: {before} to {after}");
        let mut back = vec![0; sent];
        (&connection.client).read_exact(&mut back).unwrap();
        assert!(back.iter().all(|byte| *byte == 7));
        assert_eq!(scene.netns.inside(pruned), 0, "{rule:?}");
        // It reads again: the buffer is the share's.
        connection.server.set_nonblocking(false).unwrap();
        connection.receive(2_000_000);
        let flow = connection.flow(&scene.engine).unwrap();
        assert!(
            flow.set_receive_buffer <= Some(Bytes(ROOM / 2 * 5 / 4)) && !flow.owned.receive,
            "{rule:?}: {flow:?}"
        );
    }
}
