//! An owner is killed: its connections go on, and the next start finds the programs and settings that it left behind.
//!
//! The owner is a second process of this test binary: the environment tells it which test to run, on which cgroup.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use bufwise_bpf::{Cgroup, Config, Engine, Owned, Released, SendRule, Shares, leftovers};
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::{Bytes, Micros};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::support::{Connection, Netns, root, wait_for};

/// In the owner's environment: the directories of cgroup and network namespace.
const GROUP: &str = "BUFWISE_TEST_GROUP";
const READY: &str = "the owner is ready";
/// The owner's limit for a connection: far less than cwnd asks for on loopback, and no less than three of the
/// connection's buffers, below which the limit is not the share.
const LEVEL: Bytes = Bytes(200_000);

fn config() -> Config {
    Config { send: SendRule::Abt, send_cap: Bytes(4 << 20), stale: Micros(300_000), ..Config::default() }
}

/// Runs as the owner: renews the heartbeat until it is killed.
fn own(group: &str) -> ! {
    let mut engine = Engine::load(&config()).unwrap();
    let shares = Shares { level: Some(LEVEL), ..Shares::default() };
    engine.heartbeat(shares).unwrap();
    engine.attach(File::open(group).unwrap().as_fd()).unwrap();
    println!("{READY}");
    loop {
        engine.heartbeat(shares).unwrap();
        thread::sleep(Duration::from_millis(20));
    }
}

/// A connection under an owner that lives.
struct Scene {
    owner: Child,
    connection: Connection,
    netns: Netns,
    cgroup: Cgroup,
}

impl Scene {
    fn new(test: &str) -> Self {
        let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
        let path = |raw: i32| format!("/proc/{}/fd/{raw}", std::process::id());
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(GROUP, path(cgroup.as_fd().as_raw_fd()))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(owner.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap().contains(READY)), "the owner ended");
        let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
        Self { owner, connection, netns, cgroup }
    }

    /// Moves data until the send buffer is as it should be.
    fn send_until(&self, what: &str, fits: impl Fn(Bytes) -> bool) -> Bytes {
        wait_for(what, || {
            self.connection.send(1_000_000);
            Some(options::send_buffer(&self.connection.client).unwrap()).filter(|size| fits(*size))
        })
    }

    fn lock(&self) -> BufferLock {
        options::buffer_lock(&self.connection.client).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.owner.id().cast_signed()), signal).unwrap();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _killed_already = self.owner.kill();
        let _waited_for_already = self.owner.wait();
    }
}

#[test]
fn root_a_killed_owners_connections_go_on_by_cwnd_alone_and_are_inherited() {
    if let Ok(group) = std::env::var(GROUP) {
        own(&group);
    }
    if !root() {
        return;
    }
    let mut scene =
        Scene::new("leftovers::root_a_killed_owners_connections_go_on_by_cwnd_alone_and_are_inherited");
    scene.send_until("share", |size| size == LEVEL);
    // The owner is silent, but alive: a stopped process still owns its programs.
    scene.signal(Signal::SIGSTOP);
    let alone = scene.send_until("growth without user space", |size| size > LEVEL.times(2));
    assert!(leftovers(scene.cgroup.as_fd()).unwrap().is_empty(), "{alone}, but its owner lives");
    scene.signal(Signal::SIGKILL);
    scene.owner.wait().unwrap();
    scene.connection.receive(1_000_000);

    let mut left = leftovers(scene.cgroup.as_fd()).unwrap();
    let [left] = &mut left[..] else { panic!("{left:?}") };
    left.detach().unwrap();
    assert!(leftovers(scene.cgroup.as_fd()).unwrap().is_empty());
    let flows = left.flows().unwrap();
    let [flow] = flows[..] else { panic!("{flows:?}") };
    assert_eq!(flow.cookie, scene.connection.cookie);
    assert!(flow.set_send_buffer > Some(LEVEL), "{flow:?}");

    let mut engine = Engine::load(&config()).unwrap();
    assert_eq!(engine.inherit(&left.entries().unwrap()).unwrap(), 1);
    engine.attach(scene.cgroup.as_fd()).unwrap();
    assert_eq!(engine.sweep(scene.netns.as_fd()).unwrap().adopted, 0);
    engine.heartbeat(Shares { level: Some(LEVEL), ..Shares::default() }).unwrap();
    scene.connection.send(1_000_000);
    assert_eq!(scene.connection.flow(&engine).unwrap().owned, Owned::default());
    assert!(leftovers(scene.cgroup.as_fd()).unwrap().is_empty(), "this process lives");
    assert!(scene.lock().send);
    assert_eq!(engine.release_all().unwrap(), Released { released: 1, ..Released::default() });
    assert_eq!(scene.lock(), BufferLock::default());
}

#[test]
fn root_what_a_killed_owner_left_can_be_released() {
    if let Ok(group) = std::env::var(GROUP) {
        own(&group);
    }
    if !root() {
        return;
    }
    let mut scene = Scene::new("leftovers::root_what_a_killed_owner_left_can_be_released");
    scene.send_until("share", |size| size == LEVEL);
    scene.signal(Signal::SIGKILL);
    scene.owner.wait().unwrap();
    assert!(scene.lock().send);
    // As found on two cgroups with the same program.
    let [left, again] = [(); 2].map(|()| leftovers(scene.cgroup.as_fd()).unwrap().pop().unwrap());
    assert_eq!(left.release().unwrap(), Released { released: 1, ..Released::default() });
    assert_eq!(scene.lock(), BufferLock::default());
    assert!(again.entries().unwrap().is_empty(), "nothing is given back twice");
    assert!(leftovers(scene.cgroup.as_fd()).unwrap().is_empty());
    scene.send_until("autotuning", |size| size > LEVEL.times(2));
}

#[test]
fn root_nobody_else_can_open_and_lock_a_group() {
    if !root() {
        return;
    }
    let cgroup = Cgroup::create().unwrap();
    assert_eq!(nix::sys::stat::fstat(&cgroup).unwrap().st_mode & 0o777, 0o711);
}
