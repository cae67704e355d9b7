//! Ten thousand connections come and go while a daemon runs: it frees all that it allocated for them.

use std::fs;
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use serde_json::Value;

use crate::place::{Daemon, Net, TestGroup};
use crate::run::{root, run, within};

const CONNECTIONS: usize = 10_000;
/// Longest time for a step on a busy machine; on an idle one it takes some seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// Descriptors needed besides the connections', by the shell and by this process.
const SPARE: u64 = 200;

/// Growth of memory that is tolerated, KB: a leak of 100 bytes in each of 10,000 connections would be as much.
const LEAK_KB: u64 = 1_024;
/// Most ramps until memory stops growing; on an idle machine two suffice.
const MOST_RAMPS: usize = 6;

/// Descriptors, memory and maps held by a process.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Held {
    descriptors: usize,
    /// Resident memory, KB.
    memory: u64,
    /// Memory of its BPF maps with their entries, as the kernel counts it, bytes.
    maps: u64,
}

impl Held {
    fn by(pid: u32) -> Self {
        let entries: Vec<_> = fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten().collect();
        let infos = entries.iter().filter_map(|entry| fs::read_to_string(entry.path()).ok());
        // Descriptors of programs have the same field for their own memory.
        let maps = infos.filter(|info| info.contains("map_type:"));
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        Self {
            descriptors: entries.len(),
            memory: number(&status, "VmRSS:"),
            maps: maps.map(|info| number(&info, "memlock:")).sum(),
        }
    }
}

/// Returns the number after a word at the beginning of a line.
fn number(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)).expect("the kernel says it");
    line.split_whitespace().next().unwrap().parse().unwrap()
}

/// Opens all connections from a process of the group, waits until the daemon has them all, and closes them; returns the
/// daemon's holdings at the peak.
fn ramp(net: &Net, group: &TestGroup, daemon: &Daemon) -> Held {
    let listed = || {
        let output = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
        let list: Value = serde_json::from_slice(&output.stdout).expect("ls writes JSON");
        let all = list["connections"].as_array().unwrap();
        let of_daemon = all.iter().filter(|one| !one["policy"].is_null());
        of_daemon.filter(|one| one["peer"].as_str().is_some_and(|peer| peer.ends_with(":5201"))).count()
    };
    let listener = net.inside(|| TcpListener::bind("127.0.0.1:5201").unwrap());
    let script = format!(
        "exec bash -c 'ulimit -n {}; for ((i = 0; i < {CONNECTIONS}; i++)); do \
         exec {{fd}}<>/dev/tcp/127.0.0.1/5201; done; exec sleep 300'",
        CONNECTIONS as u64 + SPARE
    );
    let mut client = group.spawn(net, &script);
    listener.set_nonblocking(true).unwrap();
    let mut servers: Vec<TcpStream> = Vec::new();
    let began = Instant::now();
    while servers.len() < CONNECTIONS {
        assert!(began.elapsed() < PATIENCE, "only {} connections", servers.len());
        match listener.accept() {
            Ok((server, _)) => servers.push(server),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
    within(PATIENCE, "all connections are known", || listed() == CONNECTIONS);
    let held = Held::by(daemon.id());
    client.kill().unwrap();
    client.wait().unwrap();
    drop(servers);
    within(PATIENCE, "all connections are forgotten", || listed() == 0);
    held
}

#[test]
fn root_ten_thousand_connections_come_and_go_without_a_leak() {
    let Some(_alone) = root() else { return };
    let wanted = CONNECTIONS as u64 + SPARE;
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, soft.max(wanted), hard.max(wanted)).unwrap();
    let (net, group) = (Net::new(), TestGroup::new());
    let daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "abt,drs"]);
    let before = Held::by(daemon.id());
    // The first ramp allocates memory that is kept for the next ones.
    let full = ramp(&net, &group, &daemon);
    assert!(full.maps > before.maps + CONNECTIONS as u64 * 500, "entries are counted: {before:?}, {full:?}");
    // The memory kept depends on the connections between two passes; a leak grows with each ramp.
    let mut held = vec![Held::by(daemon.id())];
    let settled = |held: &[Held]| held.windows(2).any(|two| two[1].memory <= two[0].memory + LEAK_KB);
    while held.len() < MOST_RAMPS && !settled(&held) {
        ramp(&net, &group, &daemon);
        held.push(after_all_is_freed(&daemon, Held { maps: before.maps, ..held[0] }));
    }
    let last = held.last().unwrap();
    assert_eq!(last.maps, before.maps, "{before:?}, {held:?}");
    // The daemon keeps a descriptor of the group's network namespace, which it finds during the first ramp.
    assert!(last.descriptors <= held[0].descriptors, "{held:?}");
    assert!(settled(&held), "the daemon's memory grows each time: {held:?}");
}

/// Returns the daemon's holdings once it has no more descriptors, and no more memory of maps, than these: the kernel frees the
/// maps' entries a little later, and the daemon has descriptors for a moment to serve a client or to search.
fn after_all_is_freed(daemon: &Daemon, few: Held) -> Held {
    let began = Instant::now();
    let mut held = Held::by(daemon.id());
    while (held.maps > few.maps || held.descriptors > few.descriptors) && began.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(50));
        held = Held::by(daemon.id());
    }
    held
}
