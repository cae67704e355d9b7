//! Buffers of connections that have fallen silent.

use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_bpf::{Cgroup, Config, Engine, FlowState, ReceiveRule, SendRule, now};
use bufwise_socket::options;
use bufwise_units::{Bytes, Micros, Rate};

use crate::support::{Connection, Netns, engine_on, patience, root, wait_for};

/// The least memory of a buffer: twice the idle size.
const SMALL: Bytes = Bytes(2 * 65_536);
const BURST: usize = 20_000_000;
/// Longer than a host may stop this machine between the last byte and the next sweep.
const IDLE: Micros = Micros(1_500_000);

fn config() -> Config {
    let cap = Bytes(64 << 20);
    Config {
        send: SendRule::Abt,
        receive: ReceiveRule::Drs,
        send_cap: cap,
        receive_cap: cap,
        idle: IDLE,
        ..Config::default()
    }
}

struct Scene {
    connection: Connection,
    engine: Engine,
    netns: Netns,
    _cgroup: Cgroup,
}

impl Scene {
    fn new() -> Self {
        let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
        let mut engine = engine_on(&config(), &cgroup);
        // Now, and not in the time in which a connection is not yet idle.
        engine.load_sweep().unwrap();
        let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
        Self { connection, engine, netns, _cgroup: cgroup }
    }

    fn sweep(&mut self) -> (u64, FlowState) {
        let swept = self.engine.sweep(self.netns.as_fd()).unwrap();
        assert_eq!(swept.adopted, 0, "its birth was seen");
        (swept.given_back, self.connection.flow(&self.engine).unwrap())
    }

    /// Sweeps until something is given back.
    fn sweep_until_given_back(&mut self) -> FlowState {
        wait_for("give-back", || {
            let (given_back, flow) = self.sweep();
            (given_back == 1).then_some(flow)
        })
    }
}

#[test]
fn root_after_a_burst_send_buffers_are_given_back_once_and_grow_again() {
    if !root() {
        return;
    }
    let mut scene = Scene::new();
    // A machine may stand still for longer than it takes to be idle, but not each time.
    let (silent_since, flow) = wait_for("sweep before it is idle", || {
        scene.connection.send(BURST);
        let silent_since = Instant::now();
        let (given_back, flow) = scene.sweep();
        let is_idle = silent_since.elapsed() >= Duration::from_micros(IDLE.0);
        assert!(given_back == 0 || is_idle, "it is not silent yet");
        (given_back == 0).then_some((silent_since, flow))
    });
    assert!(flow.set_send_buffer > Some(SMALL) && !flow.given_back, "{flow:?}");
    let flow = scene.sweep_until_given_back();
    let took = silent_since.elapsed();
    assert!(took >= Duration::from_micros(IDLE.0) / 2 && took < patience() / 2, "{took:?}");
    assert!(flow.given_back && flow.set_send_buffer == Some(SMALL), "{flow:?}");
    assert_eq!(options::send_buffer(&scene.connection.client).unwrap(), SMALL);
    let (again, after) = scene.sweep();
    assert_eq!((again, after.send_changes), (0, flow.send_changes));
    scene.connection.send(BURST);
    let (_, flow) = scene.sweep();
    assert!(flow.set_send_buffer > Some(SMALL) && !flow.given_back && !flow.owned.send, "{flow:?}");
}

#[test]
fn root_a_receive_buffer_keeps_room_for_the_window_that_was_offered() {
    if !root() {
        return;
    }
    let mut scene = Scene::new();
    // The window is sized by the bytes that arrive in a millisecond. At this rate these are 100 KB; an unpaced loopback
    // delivers some megabytes, for which the window needs the whole buffer.
    options::set_max_pacing_rate(&scene.connection.server, Rate(100_000_000)).unwrap();
    scene.connection.receive(BURST);
    let before = scene.sweep().1.set_receive_buffer.unwrap();
    let flow = scene.sweep_until_given_back();
    let after = flow.set_receive_buffer.unwrap();
    // The window that the peer may fill.
    let window = Bytes(options::tcp_info(&scene.connection.server).unwrap().snd_wnd.into());
    assert!(after < before && after >= SMALL && after >= window, "{before} to {after}, window {window}");
    assert_eq!(options::receive_buffer(&scene.connection.client).unwrap(), after);
    let drops = |scene: &Scene| options::memory(&scene.connection.client).unwrap().drops;
    let drops_before = drops(&scene);
    // The peer fills the window at once, while the client does not read: all of it has room.
    let data = vec![7; usize::try_from(window.0 * 9 / 10).unwrap()];
    (&scene.connection.server).write_all(&data).unwrap();
    let mut back = vec![0; data.len()];
    (&scene.connection.client).read_exact(&mut back).unwrap();
    assert_eq!((drops(&scene) - drops_before, back), (0, data));
    scene.connection.receive(BURST);
    let (_, flow) = scene.sweep();
    assert!(flow.set_receive_buffer > Some(after) && !flow.owned.receive, "{flow:?}");
}

#[test]
fn root_what_is_queued_or_the_applications_is_not_given_back() {
    if !root() {
        return;
    }
    let mut scene = Scene::new();
    scene.connection.send(BURST);
    scene.connection.receive(BURST);
    // The application sets one buffer, and leaves in the other what it was sent.
    options::set_send_buffer(&scene.connection.client, Bytes(150_000)).unwrap();
    (&scene.connection.server).write_all(&[7; 10_000]).unwrap();
    scene.connection.client.peek(&mut [0]).unwrap();
    let receive_buffer = options::receive_buffer(&scene.connection.client).unwrap();
    wait_for("a sweep that meets it silent", || {
        let before = now();
        let (given_back, flow) = scene.sweep();
        assert_eq!(given_back, 0);
        (before.since(flow.active_at) >= IDLE).then_some(())
    });
    let client = &scene.connection.client;
    assert_eq!(options::send_buffer(client).unwrap(), Bytes(300_000));
    assert_eq!(options::receive_buffer(client).unwrap(), receive_buffer);
    assert!(scene.sweep().1.owned.send);
}
