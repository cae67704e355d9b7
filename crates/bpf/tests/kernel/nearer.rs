//! Programs on cgroups inside each other: the nearer one has the connection, whichever came first.

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::os::fd::{AsFd, AsRawFd};

use bufwise_bpf::{Cgroup, Conditions, Config, Engine, FlowState, Matching, Owned, Released, SendRule};
use bufwise_socket::options;
use bufwise_units::Bytes;
use nix::sys::stat::fstat;

use crate::support::{Connection, Netns, root, wait_for};

/// A group inside another; the outer one is the test's own, so that programs on it see no other test's connections.
struct Nested {
    outer: Cgroup,
    inner: File,
    path: String,
}

impl Nested {
    fn new() -> Self {
        let outer = Cgroup::create().unwrap();
        let path = format!("/proc/{}/fd/{}/inner", std::process::id(), outer.as_fd().as_raw_fd());
        fs::create_dir(&path).unwrap();
        Self { inner: File::open(&path).unwrap(), outer, path }
    }

    /// A connection of the inner group.
    fn connection(&self, netns: &Netns) -> Connection {
        let step = format!("echo $$ >{}/cgroup.procs &&", self.path);
        Connection::open_after(&step, &self.outer, netns, "127.0.0.1")
    }
}

impl Drop for Nested {
    fn drop(&mut self) {
        wait_for("empty group", || fs::remove_dir(&self.path).ok());
    }
}

fn engine(size: u64) -> Engine {
    engine_for(size, &Matching::default())
}

fn engine_for(size: u64, matching: &Matching) -> Engine {
    let config = Config { send: SendRule::Fixed, fixed: Bytes(size), ..Config::default() };
    Engine::load_for(&config, matching).unwrap()
}

/// Checks that only the nearer engine sizes the connection.
fn is_the_nearers(connection: &Connection, netns: &Netns, near: &mut Engine, far: &Engine) -> FlowState {
    connection.send(100_000);
    let flow = wait_for("tuned connection", || {
        // Callbacks need not have seen the end of a burst; the sweep sees it.
        near.sweep(netns.as_fd()).unwrap();
        connection
            .flow(near)
            .filter(|flow| flow.set_send_buffer.is_some() && flow.sample.bytes_acked.0 > 100_000)
    });
    assert_eq!((flow.set_send_buffer, flow.owned), (Some(Bytes(120_000)), Owned::default()));
    assert_eq!(options::send_buffer(&connection.client).unwrap(), Bytes(120_000));
    assert_eq!(connection.flow(far), None);
    flow
}

#[test]
fn root_the_nearer_program_has_new_connections_and_no_sweep_takes_them() {
    if !root() {
        return;
    }
    let netns = Netns::new();
    for far_comes_first in [true, false] {
        let group = Nested::new();
        let (mut near, mut far) = (engine(60_000), engine(90_000));
        if far_comes_first {
            far.attach(group.outer.as_fd()).unwrap();
        }
        near.attach(group.inner.as_fd()).unwrap();
        if !far_comes_first {
            far.attach(group.outer.as_fd()).unwrap();
        }
        let connection = group.connection(&netns);
        let flow = is_the_nearers(&connection, &netns, &mut near, &far);
        // The far engine was not told of the inner group: it knows the connection by its mark.
        assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 0);
        let again = is_the_nearers(&connection, &netns, &mut near, &far);
        assert_eq!(flow.send_changes, again.send_changes, "nobody sets it to and fro");
    }
}

/// A connection of an inner engine, and then an outer engine, whose sweep has left the connection alone.
fn with_a_connection_from_before() -> (Netns, Nested, Connection, Engine, Engine) {
    let (netns, group) = (Netns::new(), Nested::new());
    let (mut near, mut far) = (engine(60_000), engine(90_000));
    near.attach(group.inner.as_fd()).unwrap();
    let connection = group.connection(&netns);
    far.attach(group.outer.as_fd()).unwrap();
    assert!(far.exclude_other_engines(&HashSet::new()).unwrap() >= 1);
    assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 0);
    (netns, group, connection, near, far)
}

#[test]
fn root_connections_from_before_are_left_to_a_nearer_engine_that_lives() {
    if !root() {
        return;
    }
    let (netns, group, connection, mut near, far) = with_a_connection_from_before();
    is_the_nearers(&connection, &netns, &mut near, &far);
    // Engines on cgroups above another one do not count as others to it.
    let mut nearest = engine(60_000);
    drop(near);
    nearest.attach(group.inner.as_fd()).unwrap();
    nearest.exclude_other_engines(&HashSet::new()).unwrap();
    assert_eq!(nearest.sweep(netns.as_fd()).unwrap().adopted, 1);
}

#[test]
fn root_connections_of_a_nearer_engine_that_has_gone_are_adopted() {
    if !root() {
        return;
    }
    let (netns, _group, connection, near, mut far) = with_a_connection_from_before();
    drop(near);
    far.exclude_other_engines(&HashSet::new()).unwrap();
    assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 1);
    assert!(connection.flow(&far).is_some());
}

#[test]
fn root_records_that_are_made_late_are_the_nearer_programs_alone() {
    if !root() {
        return;
    }
    let (netns, group) = (Netns::new(), Nested::new());
    let send_cap = Bytes(4 << 20);
    let config =
        Config { send: SendRule::Abt, send_cap, record_after: Config::SHORT_CONNECTION, ..Config::default() };
    let [mut near, mut far] = [(); 2].map(|()| Engine::load(&config).unwrap());
    near.attach(group.inner.as_fd()).unwrap();
    near.sweep(netns.as_fd()).unwrap();
    let before = group.connection(&netns);
    far.attach(group.outer.as_fd()).unwrap();
    far.exclude_other_engines(&HashSet::new()).unwrap();
    assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 0);
    let new = group.connection(&netns);
    for connection in [before, new] {
        connection.send(1_000);
        connection.send(1_000_000);
        let flow = connection.flow(&near);
        assert!(flow.is_some_and(|flow| flow.set_send_buffer.is_some()), "{flow:?}");
        assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 0);
        assert_eq!(connection.flow(&far), None);
    }
}

#[test]
fn root_who_only_observes_claims_nothing() {
    if !root() {
        return;
    }
    let (netns, group) = (Netns::new(), Nested::new());
    let observer = Config { observe_only: true, ..Config::default() };
    let (mut near, mut far) = (Engine::load(&observer).unwrap(), engine(90_000));
    near.attach(group.inner.as_fd()).unwrap();
    far.attach(group.outer.as_fd()).unwrap();
    let connection = group.connection(&netns);
    assert!(connection.flow(&near).is_some());
    assert_eq!(connection.flow(&far).unwrap().set_send_buffer, Some(Bytes(180_000)));
}

#[test]
fn root_a_subtree_passes_to_a_nearer_engine_and_back_without_a_size_that_stays() {
    if !root() {
        return;
    }
    let (netns, group) = (Netns::new(), Nested::new());
    let matching =
        Matching::new(&[Conditions { cgroup: "inner".parse().ok(), ..Conditions::default() }]).unwrap();
    let (mut near, mut far) =
        (engine_for(60_000, &matching.of_group(Some(0))), engine_for(90_000, &matching));
    far.attach(group.outer.as_fd()).unwrap();
    let connection = group.connection(&netns);
    connection.send(100_000);
    let size = || options::send_buffer(&connection.client).unwrap();
    wait_for("size of the far engine", || (size() == Bytes(180_000)).then_some(()));

    let inner = fstat(&group.inner).unwrap().st_ino;
    near.add_member(inner, 0b1).unwrap();
    near.attach(group.inner.as_fd()).unwrap();
    assert!([&near, &far].iter().all(|engine| engine.subtree().unwrap().contains(&inner)));
    far.set_members(&HashMap::from([(inner, 0b1)])).unwrap();
    assert_eq!(far.hand_over(|_| false).unwrap(), Released::default(), "nobody asked for it");
    let released = far.hand_over(|flow| flow.cookie == connection.cookie).unwrap();
    assert_eq!(released, Released { released: 1, ..Released::default() });
    assert!(!options::buffer_lock(&connection.client).unwrap().send);
    assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 0);
    assert_eq!(near.sweep(netns.as_fd()).unwrap().adopted, 1);
    is_the_nearers(&connection, &netns, &mut near, &far);

    near.hand_over(|flow| flow.cookie == connection.cookie).unwrap();
    near.detach_from(inner);
    far.set_members(&HashMap::new()).unwrap();
    assert_eq!(far.sweep(netns.as_fd()).unwrap().adopted, 1);
    connection.send(100_000);
    wait_for("size of the far engine", || {
        far.sweep(netns.as_fd()).unwrap();
        (size() == Bytes(180_000)).then_some(())
    });
    assert_eq!(connection.flow(&far).unwrap().owned, Owned::default());
}
