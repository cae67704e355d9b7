//! Records that are made once a connection has moved some payload.

use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_bpf::{Cgroup, Config, Engine, ReceiveRule, Released, SendRule, Shares, Swept};
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::Bytes;

use crate::support::{Connection, Netns, engine_on, root, wait_for};

const SHORT: usize = 2_000;
const LONG: usize = 1_000_000;

fn config() -> Config {
    let cap = Bytes(4 << 20);
    Config {
        send: SendRule::Abt,
        receive: ReceiveRule::Drs,
        send_cap: cap,
        receive_cap: cap,
        record_after: Config::SHORT_CONNECTION,
        ..Config::default()
    }
}

struct Scene {
    engine: Engine,
    cgroup: Cgroup,
    netns: Netns,
}

impl Scene {
    /// Returns `None`, and skips the test, where the kernel's iterator does not do everything: records are made early there.
    fn new() -> Option<Self> {
        if !root() {
            return None;
        }
        let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
        let mut scene = Self { engine: engine_on(&config(), &cgroup), cgroup, netns };
        assert_eq!(scene.sweep(), Swept::default());
        if let Some(limit) = scene.engine.adoption_limit() {
            bufwise_trial::skip(&format!("existing connections are {limit}"));
            return None;
        }
        Some(scene)
    }

    fn open(&self) -> Connection {
        Connection::open(&self.cgroup, &self.netns, "127.0.0.1")
    }

    fn sweep(&mut self) -> Swept {
        self.engine.sweep(self.netns.as_fd()).unwrap()
    }
}

#[test]
fn root_a_short_connection_has_no_record_and_a_long_one_is_sized() {
    let Some(mut scene) = Scene::new() else { return };
    let short = scene.open();
    short.send(SHORT);
    short.receive(SHORT);
    assert_eq!(scene.engine.flows().unwrap(), []);
    let [sender, receiver] = [scene.open(), scene.open()];
    let initial = options::receive_buffer(&sender.client).unwrap();
    sender.send(LONG);
    receiver.receive(LONG);
    let flow = sender.flow(&scene.engine).unwrap();
    assert!(flow.set_send_buffer.is_some() && !flow.owned.send && !flow.owned.receive, "{flow:?}");
    assert!(flow.initiator && !flow.origin.adopted && !flow.closed, "{flow:?}");
    assert!(flow.origin.acked < Config::SHORT_CONNECTION && flow.origin.received == Bytes::ZERO, "{flow:?}");
    assert!(!flow.origin.locked.send && !flow.origin.locked.receive, "{flow:?}");
    assert!(flow.origin.send_buffer >= Bytes(16_384) && flow.origin.receive_buffer == initial, "{flow:?}");
    let flow = receiver.flow(&scene.engine).unwrap();
    assert!(flow.set_window.is_some() && flow.initiator, "{flow:?}");
    let cookies = [sender.cookie, receiver.cookie];
    drop((short, sender, receiver));
    wait_for("the end of both", || {
        // Five seconds after a heartbeat the kernel's part would forget closed connections.
        scene.engine.heartbeat(Shares::default()).unwrap();
        let flows = scene.engine.flows().unwrap();
        assert!(flows.iter().all(|flow| cookies.contains(&flow.cookie)));
        (flows.len() == 2 && flows.iter().all(|flow| flow.closed)).then_some(())
    });
}

#[test]
fn root_until_the_first_sweep_each_connection_has_a_record_at_once() {
    let Some(scene) = Scene::new() else { return };
    let cgroup = Cgroup::create().unwrap();
    let engine = engine_on(&config(), &cgroup);
    let connection = Connection::open(&cgroup, &scene.netns, "127.0.0.1");
    assert!(connection.flow(&engine).is_some());
}

#[test]
fn root_connections_of_an_engine_before_are_adopted_and_sized_in_every_namespace() {
    let Some(scene) = Scene::new() else { return };
    let cgroup = Cgroup::create().unwrap();
    let namespaces = [Netns::new(), Netns::new()];
    let connections = namespaces.each_ref().map(|netns| Connection::open(&cgroup, netns, "127.0.0.1"));
    // The sockets keep the callbacks that this engine has switched on.
    let mut before = engine_on(&config(), &cgroup);
    for netns in &namespaces {
        assert_eq!(before.sweep(netns.as_fd()).unwrap().adopted, 1);
    }
    before.release_all().unwrap();
    before.detach();
    drop((before, scene));
    let mut engine = engine_on(&config(), &cgroup);
    // Callbacks before the sweep leave the connections to it.
    connections.iter().for_each(|one| one.send(SHORT));
    for netns in &namespaces {
        assert_eq!(engine.sweep_for(netns.as_fd(), &|_| true).unwrap().adopted, 1);
    }
    engine.note_all_swept().unwrap();
    assert_eq!(engine.unrecorded().unwrap(), 0);
    for connection in &connections {
        connection.send(LONG);
        connection.receive(LONG);
        let flow = connection.flow(&engine).unwrap();
        assert!(flow.set_send_buffer.is_some() && flow.set_window.is_some(), "{flow:?}");
    }
}

#[test]
fn root_in_a_new_cgroup_records_are_late_from_the_start_and_those_without_are_counted() {
    let Some(scene) = Scene::new() else { return };
    let cgroup = Cgroup::create().unwrap();
    let fit = Config {
        send: SendRule::Fit,
        receive: ReceiveRule::Fit,
        record_at_segment: Config::FULL_SEGMENT,
        ..config()
    };
    let mut engine = engine_on(&fit, &cgroup);
    engine.expect_only_new().unwrap();
    engine.heartbeat(Shares::default()).unwrap();
    let [short, sender, receiver] = [(); 3].map(|()| Connection::open(&cgroup, &scene.netns, "127.0.0.1"));
    // Requests and answers, none of which is a full segment.
    for _ in 0..10 {
        short.send(1_000);
        short.receive(1_000);
    }
    assert_eq!((engine.flows().unwrap(), engine.unrecorded().unwrap()), (vec![], 3));
    sender.send(LONG);
    assert_eq!(engine.unrecorded().unwrap(), 2);
    receiver.receive(SHORT);
    assert_eq!(engine.unrecorded().unwrap(), 1);
    for connection in [sender, receiver] {
        let flow = connection.flow(&engine).unwrap();
        assert!(
            flow.initiator && !flow.origin.adopted && !flow.owned.send && !flow.owned.receive,
            "{flow:?}"
        );
    }
}

#[test]
fn root_a_connection_whose_share_is_small_is_sized_at_once() {
    let Some(mut scene) = Scene::new() else { return };
    let before = scene.open();
    before.send(SHORT);
    assert_eq!(before.flow(&scene.engine), None);
    let level = Bytes(60_000);
    scene.engine.heartbeat(Shares { level: Some(level), ..Shares::default() }).unwrap();
    let new = scene.open();
    let flow = new.flow(&scene.engine).unwrap();
    assert!(flow.set_send_buffer.is_some(), "{flow:?}");
    // A connection that has no record gets it with its next data.
    before.send(SHORT);
    let flow = before.flow(&scene.engine).unwrap();
    assert!(flow.set_send_buffer.is_some(), "{flow:?}");
    for connection in [new, before] {
        connection.send(LONG);
        let flow = connection.flow(&scene.engine).unwrap();
        assert!(flow.set_send_buffer.is_some_and(|size| size <= level), "{flow:?}");
    }
}

#[test]
fn root_all_is_given_back_and_a_short_connection_was_never_touched() {
    let Some(mut scene) = Scene::new() else { return };
    let [long, short] = [scene.open(), scene.open()];
    let sizes = |one: &Connection| {
        [options::send_buffer(&one.client), options::receive_buffer(&one.client)].map(Result::unwrap)
    };
    let first = sizes(&short);
    short.receive(SHORT);
    long.send(LONG);
    long.receive(LONG);
    let lock = |one: &Connection| options::buffer_lock(&one.client).unwrap();
    assert_eq!(lock(&long), BufferLock { send: true, receive: true });
    assert_eq!((lock(&short), sizes(&short)), (BufferLock::default(), first));
    let released = scene.engine.release_all().unwrap();
    assert_eq!(released, Released { released: 1, ..Released::default() });
    assert_eq!(lock(&long), BufferLock::default());
    assert_eq!(scene.engine.flows().unwrap(), []);
}

#[test]
fn root_a_sweep_takes_in_a_newcomer_whose_share_has_become_small_and_counts_it_once() {
    let Some(mut scene) = Scene::new() else { return };
    let connection = scene.open();
    connection.send(10);
    let before = scene.engine.unrecorded().unwrap();
    scene.engine.heartbeat(Shares { level: Some(Bytes(60_000)), ..Shares::default() }).unwrap();
    let swept = scene.sweep();
    assert_eq!((swept.seen, swept.adopted), (1, 0), "its birth was seen");
    assert_eq!(scene.engine.unrecorded().unwrap(), before - 1);
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.initiator && !flow.origin.adopted, "{flow:?}");
}

#[test]
fn root_a_record_that_is_made_again_leaves_no_fewer_connections_without_one_than_none() {
    let Some(mut scene) = Scene::new() else { return };
    let connection = scene.open();
    connection.send(LONG);
    assert!(connection.flow(&scene.engine).is_some());
    scene.engine.forget(connection.cookie);
    assert_eq!((scene.sweep().seen, scene.engine.unrecorded().unwrap()), (1, 0));
    assert!(connection.flow(&scene.engine).is_some());
}

#[test]
fn root_the_sweep_makes_the_record_of_a_silent_connection_and_leaves_busy_ones_out() {
    let Some(mut scene) = Scene::new() else { return };
    let connection = scene.open();
    let began = Instant::now();
    connection.send(10);
    let swept = wait_for("record of a silent connection", || {
        Some(scene.sweep()).filter(|swept| *swept != Swept::default())
    });
    assert!(began.elapsed() >= Duration::from_secs(1), "it was not silent yet");
    assert_eq!((swept.seen, swept.adopted), (1, 0), "its birth was seen");
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.initiator && !flow.origin.adopted, "{flow:?}");
    connection.send(LONG);
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.set_send_buffer.is_some() && !flow.owned.send, "{flow:?}");
}

#[test]
fn root_a_receiver_of_little_keeps_the_kernels_window_and_rests_until_more_comes() {
    let Some(mut scene) = Scene::new() else { return };
    let connection = scene.open();
    // A message every millisecond: far enough apart that a receiver with a callback takes a sample of each.
    let talk = |rounds| {
        for _ in 0..rounds {
            connection.send(100);
            connection.receive(100);
            thread::sleep(Duration::from_millis(1));
        }
        connection.flow(&scene.engine).unwrap()
    };
    // Once 16 KB have moved there is a record; 256 round trips later the receiver rests.
    connection.send(20_000);
    let watched = talk(100);
    let rests = talk(200);
    assert!(rests.set_window.is_none() && rests.set_receive_buffer.is_none(), "{rests:?}");
    assert!(!options::buffer_lock(&connection.client).unwrap().receive);
    let rested = talk(100);
    let samples = [watched.samples, rested.samples - rests.samples];
    assert!(samples[1] * 3 < samples[0], "{samples:?} samples in 100 round trips, watched and at rest");
    // A sweep switches the callback on again.
    scene.sweep();
    connection.receive(LONG);
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.set_window.is_some(), "{flow:?}");
    assert!(options::buffer_lock(&connection.client).unwrap().receive);
}

#[test]
fn root_a_share_that_is_less_than_the_buffer_reaches_a_receiver_at_rest() {
    let Some(mut scene) = Scene::new() else { return };
    let connection = scene.open();
    connection.send(20_000);
    for _ in 0..300 {
        connection.send(100);
        connection.receive(100);
    }
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.set_receive_buffer.is_none(), "{flow:?}");
    scene.engine.heartbeat(Shares { window: Some(Bytes(20_000)), ..Shares::default() }).unwrap();
    for _ in 0..3 {
        connection.send(100);
        connection.receive(100);
    }
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.set_window.is_some(), "{flow:?}");
}

/// Its window stays as the application has set it, so data that come fast need no sample for each acknowledgement.
#[test]
fn root_a_receive_buffer_of_the_applications_own_is_sampled_by_time_alone() {
    let Some(scene) = Scene::new() else { return };
    let connection = scene.open();
    options::force_receive_buffer(&connection.client, Bytes(1 << 20)).unwrap();
    let began = Instant::now();
    connection.receive(100 * LONG);
    let flow = connection.flow(&scene.engine).unwrap();
    assert!(flow.owned.receive && flow.set_window.is_none(), "{flow:?}");
    // Two samples of a receiver are half a millisecond apart at least.
    let most = 100 + 2 * began.elapsed().as_millis();
    assert!(u128::from(flow.samples) <= most, "{} samples, {most} at most", flow.samples);
}
