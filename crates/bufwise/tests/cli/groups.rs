//! `[[group]]` in the daemon's configuration: the connections of a group have its policy, from their begin or since
//! they were passed on to it; the others have the daemon's own.

use std::fs;
use std::path::PathBuf;

use std::process::Child;

use bufwise_socket::diag::Connection;
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::place::{Daemon, Net, TestGroup, Transfer};
use crate::run::{eventually, only_error, root_in_company, run};

/// Send buffers under `fixed:64KiB` and `fixed:96KiB`: the kernel doubles them.
const OF_GROUP: u32 = 2 * 64 * 1_024;
const OF_REST: u32 = 2 * 96 * 1_024;
const REST: &str = "policy = \"fixed:96KiB\"\nmemory = \"64MiB\"\nreceive-memory = \"64MiB\"\n";

/// A configuration in a directory of its own.
struct Config {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

impl Config {
    fn new(text: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bufwise.toml");
        fs::write(&path, text).unwrap();
        Self { _directory: directory, path }
    }

    fn path(&self) -> &str {
        self.path.to_str().unwrap()
    }

    /// Replaces the configuration of a running daemon, and waits until it has been read.
    fn reload(&self, text: &str, daemon: &mut Daemon) {
        fs::write(&self.path, text).unwrap();
        daemon.signal(Signal::SIGHUP);
        daemon.hears("READY=1");
    }
}

fn with_group(cgroup: &str) -> String {
    format!(
        "{REST}[[group]]\nname = \"database\"\ncgroup = \"{cgroup}\"\npolicy = \"fixed:64KiB\"\nmemory = \"16MiB\"\n"
    )
}

/// Whether a connection in `net` has a send buffer of `size`, and none has one of `other`.
fn sized(net: &Net, size: u32, other: u32) -> bool {
    let all = net.connections();
    all.iter().any(|one| one.mem.sndbuf == size) && all.iter().all(|one| one.mem.sndbuf != other)
}

fn listed(daemon: &Daemon) -> Value {
    let listed = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("ls writes JSON");
    assert_eq!(listed["notes"], Value::Array(Vec::new()), "the daemon answers");
    listed
}

#[test]
fn groups_that_cannot_be_are_refused_with_the_line() {
    // No daemon starts with this cgroup, even if all other settings are accepted.
    let nowhere = "/bufwise-no-such-group";
    let below = with_group("bufwise-no-such-group/a");
    for (text, words) in [
        (with_group("/"), &["line 6: cgroup", "the root of all cgroups"][..]),
        (with_group("a"), &["line 6: cgroup", "/a is not below", nowhere]),
        (
            format!("{below}[[group]]\nname = \"b\"\ncgroup = \"{nowhere}/a/b\"\n"),
            &["line 10: name", "`b` would have no connection", "group `database` comes first"],
        ),
        (
            format!("{below}[[group]]\nname = \"b\"\npeer = \"198.18.0.1/15\"\n"),
            &["line 11: peer", "write 198.18.0.0/15"],
        ),
        (below.replace("16MiB", "64MiB"), &["line 5: name", "67.11 MB of 67.11 MB", "64KiB"]),
    ] {
        let config = Config::new(&text);
        let error = only_error(&run(&["daemon", "--config", config.path(), "--cgroup", nowhere]), 2);
        assert!(words.iter().all(|word| error.contains(word)), "{error}");
        assert!(error.contains("bufwise.toml, line"), "{error}");
    }
}

#[test]
fn root_each_group_has_its_own_policy_through_reloads_and_all_is_given_back() {
    let Some(_others) = root_in_company() else { return };
    let outer = TestGroup::new();
    let (database, backup) = (TestGroup::below(outer.directory()), TestGroup::below(outer.directory()));
    let (net, others, later) = (Net::new(), Net::new(), Net::new());
    let _existing = [database.transfer(&net), backup.transfer(&others)];
    let grouped = with_group(&(outer.path() + &database.path()));
    let config = Config::new(&grouped);
    let mut daemon = Daemon::ready(&net, &["--cgroup", &outer.path(), "--config", config.path()]);
    daemon.says("group database: cgroup ");
    eventually("the group's connection has its size", || sized(&net, OF_GROUP, OF_REST));
    eventually("the other one has the rest's", || sized(&others, OF_REST, OF_GROUP));
    let _new = database.transfer(&later);
    eventually("so has a new one", || sized(&later, OF_GROUP, OF_REST));

    let told = |net: &Net| {
        let one = net.busiest(&listed(&daemon));
        (one["group"].clone(), one["policy"]["send"].clone())
    };
    // The programs size a connection from its begin; the list has it once its namespace is found.
    eventually("the list has the new one", || told(&later) == ("database".into(), "fixed:65536".into()));
    assert_eq!(told(&net), ("database".into(), "fixed:65536".into()));
    assert_eq!(told(&others), (Value::Null, "fixed:98304".into()));
    let metrics = run(&["metrics", "--socket", &daemon.socket()]);
    let metrics = String::from_utf8(metrics.stdout).unwrap();
    let budget = "bufwise_group_memory_budget_bytes{group=\"database\",direction=\"send\"} 16777216";
    assert!(metrics.contains(budget), "{metrics}");
    assert!(metrics.contains("bufwise_memory_budget_bytes{direction=\"send\"} 67108864"), "{metrics}");

    config.reload(&grouped.replace("fixed:64KiB", "fixed:lots"), &mut daemon);
    daemon.says("the old configuration stays");
    assert!(daemon.log().contains("line 7: policy"), "{}", daemon.log());
    assert!(sized(&net, OF_GROUP, OF_REST) && sized(&others, OF_REST, OF_GROUP));

    config.reload(REST, &mut daemon);
    eventually("without the group the rest has all", || {
        sized(&net, OF_REST, OF_GROUP)
            && sized(&later, OF_REST, OF_GROUP)
            && sized(&others, OF_REST, OF_GROUP)
    });
    assert_eq!(net.busiest(&listed(&daemon))["group"], Value::Null);

    // Sizes set under the daemon's own policy are not taken for the application's.
    config.reload(&grouped, &mut daemon);
    eventually("the group has its own again", || {
        sized(&net, OF_GROUP, OF_REST) && sized(&later, OF_GROUP, OF_REST)
    });
    assert!(sized(&others, OF_REST, OF_GROUP));

    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    eventually("all buffers are the kernel's", || {
        let all = [&net, &others, &later].map(Net::connections).concat();
        all.len() >= 6 && all.iter().all(|one| ![OF_GROUP, OF_REST].contains(&one.mem.sndbuf))
    });
}

#[test]
fn root_a_group_follows_cgroups_that_come_and_go() {
    let Some(_others) = root_in_company() else { return };
    let outer = TestGroup::new();
    let (net, others) = (Net::new(), Net::new());
    let config = Config::new(&with_group(&format!("{}/bufwise-test-*", outer.path())));
    let mut daemon = Daemon::ready(&net, &["--cgroup", &outer.path(), "--config", config.path()]);
    daemon.says("group database: there is no cgroup ");
    let _others = outer.transfer(&others);
    let service = TestGroup::below(outer.directory());
    // Its first connections may have the daemon's own policy, until the group's engine runs.
    let transfer = service.transfer(&net);
    daemon.says("group database: cgroup ");
    eventually("the connection is the group's", || sized(&net, OF_GROUP, OF_REST));
    eventually("the other one is the rest's", || sized(&others, OF_REST, OF_GROUP));
    assert_eq!(net.busiest(&listed(&daemon))["group"], "database");
    drop((transfer, service));
    daemon.says(" is gone");
    assert!(sized(&others, OF_REST, OF_GROUP) && daemon.is_running());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
}

/// iperf3 under another name in `/proc/PID/comm`.
struct Renamed {
    directory: tempfile::TempDir,
}

impl Renamed {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = std::env::var_os("PATH").unwrap();
        let iperf3 = std::env::split_paths(&path).map(|one| one.join("iperf3")).find(|one| one.is_file());
        std::os::unix::fs::symlink(iperf3.expect("iperf3 is installed"), directory.path().join("moves-data"))
            .unwrap();
        Self { directory }
    }

    fn program(&self) -> String {
        self.directory.path().join("moves-data").display().to_string()
    }
}

/// Starts a server of that program.
fn serve(group: &TestGroup, net: &Net, program: &str) -> Child {
    let server = group.spawn(net, &format!("exec {program} -s"));
    net.listens();
    server
}

/// Starts a transfer by that program to a listening server.
fn transfer(group: &TestGroup, net: &Net, (server, program): (Child, &str), to: &str) -> Transfer {
    let client = group.spawn(net, &format!("exec {program} -c {to} -t 600 -b 100M"));
    eventually("data moves", || net.connections().len() >= 2);
    Transfer([client, server])
}

/// Asserts that `explain`, `ls` and its bars name the groups, as text and as JSON.
fn told_in_every_view(daemon: &Daemon) {
    let socket = daemon.socket();
    let text = |arguments: &[&str]| {
        let output = run(&[arguments, &["--socket", &socket]].concat());
        String::from_utf8(output.stdout).unwrap()
    };
    let explained = text(&["explain", "127.0.0.2:5201"]);
    assert!(explained.contains("/bufwise-test-") && explained.contains(", group far.\n"), "{explained}");
    let table = text(&["ls", "--all"]);
    assert!(table.contains("  GROUP  ") && table.contains("  mover  "), "{table}");
    let grouped = text(&["ls", "--all", "--group", "group"]);
    assert!(grouped.starts_with("GROUP ") && grouped.contains("\nmover "), "{grouped}");
    let bars = text(&["ls", "--budget"]);
    assert!(bars.contains("\ngroup far, ") && bars.contains("\nin no group, "), "{bars}");
    let groups = listed(daemon)["budget"]["groups"].clone();
    let names: Vec<&Value> = groups.as_array().unwrap().iter().map(|group| &group["name"]).collect();
    assert_eq!(names, [&Value::from("far"), &"mover".into(), &Value::Null]);
}

/// Returns the send buffers of the client's and of the server's end.
fn send_buffers(net: &Net) -> [Option<u32>; 2] {
    let all = net.connections();
    let of = |is_client: fn(&Connection) -> bool| Some(all.iter().find(|one| is_client(one))?.mem.sndbuf);
    [of(|one| one.peer.port() == 5201), of(|one| one.local.port() == 5201)]
}

#[test]
fn root_groups_are_told_by_program_peer_and_port_from_birth_and_of_existing_connections() {
    let Some(_others) = root_in_company() else { return };
    let (outer, renamed, plain) = (TestGroup::new(), Renamed::new(), "iperf3");
    let program = renamed.program();
    let [existing, listener, client, far] = std::array::from_fn(|_| Net::new());
    let of_far = 2 * 80 * 1_024;
    let far_group = "[[group]]\nname = \"far\"\npeer = [\"127.0.0.2\", \"fd00::/8\"]\nport = 5201\npolicy = \"fixed:80KiB\"\n";
    let mover_group = "[[group]]\nname = \"mover\"\nprocess = \"moves-*\"\npolicy = \"fixed:64KiB\"\n";
    let _existing = transfer(&outer, &existing, (serve(&outer, &existing, &program), &program), "127.0.0.1");
    // The server is older than the daemon; the client is not.
    let old_server = serve(&outer, &listener, &program);

    let config = Config::new(&format!("{REST}{far_group}{mover_group}"));
    let mut daemon = Daemon::ready(&existing, &["--cgroup", &outer.path(), "--config", config.path()]);
    let _listener = transfer(&outer, &listener, (old_server, plain), "127.0.0.1");
    let _client = transfer(&outer, &client, (serve(&outer, &client, plain), &program), "127.0.0.1");
    let _far = transfer(&outer, &far, (serve(&outer, &far, plain), plain), "127.0.0.2");
    // An end that only receives after its adoption keeps the kernel's send buffer.
    let clients = |expected: [u32; 4]| {
        [&existing, &listener, &client, &far].map(|net| send_buffers(net)[0]) == expected.map(Some)
    };
    eventually("each has its group's size", || clients([OF_GROUP, OF_REST, OF_GROUP, of_far]));
    eventually("so have those that were accepted", || {
        [&listener, &client, &far].map(|net| send_buffers(net)[1]) == [OF_GROUP, OF_REST, OF_REST].map(Some)
    });
    assert!(!daemon.log().contains("passed on"), "from birth: {}", daemon.log());
    let group = |net: &Net| net.busiest(&listed(&daemon))["group"].clone();
    let named = ["mover".into(), Value::Null, "mover".into(), "far".into()];
    eventually("the list names the groups", || [&existing, &listener, &client, &far].map(group) == named);

    told_in_every_view(&daemon);

    // Groups whose order changes keep their connections; those of a removed group get the daemon's own policy.
    config.reload(&format!("{REST}{mover_group}{far_group}"), &mut daemon);
    assert!(clients([OF_GROUP, OF_REST, OF_GROUP, of_far]) && send_buffers(&listener)[1] == Some(OF_GROUP));
    config.reload(&format!("{REST}{far_group}"), &mut daemon);
    eventually("the rest has the program's", || clients([OF_REST, OF_REST, OF_REST, of_far]));
    eventually("so has the server of its client", || send_buffers(&listener)[1] != Some(OF_GROUP));

    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    eventually("all buffers are the kernel's", || {
        let all = [&existing, &listener, &client, &far].map(Net::connections).concat();
        all.len() >= 8 && all.iter().all(|one| ![OF_GROUP, OF_REST, of_far].contains(&one.mem.sndbuf))
    });
}
