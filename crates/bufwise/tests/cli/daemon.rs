//! `bufwise daemon`: adoption, tuning, changes by others, and restoring. Every test has a network namespace and a
//! cgroup of its own; only the dry run looks at the host's.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpListener;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::place::{Daemon, Net, RMEM, TestGroup};
use crate::run::{
    eventually, one_of_three, only_error, patience, root, root_in_company, run, until_valid, why_invalid,
};

/// Buffer size under `fixed:80KiB`: the kernel doubles it.
const FIXED: u32 = 2 * 80 * 1_024;

fn config(text: &str) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("bufwise.toml");
    fs::write(&path, text).unwrap();
    (directory, path.to_str().unwrap().to_owned())
}

#[test]
fn a_wrong_configuration_is_named_with_its_line() {
    let of = |text: &str| {
        let (_directory, path) = config(text);
        only_error(&run(&["daemon", "--config", &path]), 2)
    };
    let error = of("# mine\nmemry = \"1MiB\"\n");
    assert!(error.contains("bufwise.toml, line 2: memry") && error.contains("receive-memory"), "{error}");
    assert!(of("policy = \"abt,sabt\"").contains("line 1: policy: `abt,sabt` names two policies"));
    let missing = only_error(&run(&["daemon", "--config", "/nonexistent/bufwise.toml"]), 2);
    assert!(missing.contains("cannot read /nonexistent/bufwise.toml"), "{missing}");
    assert!(only_error(&run(&["daemon", "--policy", "tahoe"]), 2).contains("unknown policy"));
}

#[test]
fn sizes_that_make_no_sense_and_a_file_that_cannot_be_read_again_are_refused() {
    // No daemon starts with this group, even if all other settings are accepted.
    let nowhere = ["--cgroup", "/bufwise-no-such-group"];
    for (text, words) in [
        ("memory = 5", "text in quotes"),
        ("memory = \"0\"", "`0` has no unit"),
        ("memory = \"1\"", "`1` has no unit"),
        ("receive-memory = \"1KiB\"", "at least 64KiB"),
        ("small-documents = \"9GiB\"", "at most 4MiB"),
    ] {
        let (_directory, path) = config(text);
        let error = only_error(&run(&[&["daemon", "--config", &path][..], &nowhere].concat()), 2);
        let key = text.split(' ').next().unwrap();
        assert!(error.contains(&format!("line 1: {key}")) && error.contains(words), "{error}");
    }
    let error = only_error(&run(&[&["daemon", "--memory", "64"][..], &nowhere].concat()), 2);
    assert!(error.contains("`64` has no unit"), "{error}");

    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut daemon = std::process::Command::new("timeout");
    daemon.args(["20", env!("CARGO_BIN_EXE_bufwise"), "daemon", "--config"]).arg(&fifo).args(nowhere);
    let error = only_error(&daemon.output().unwrap(), 2);
    assert!(error.contains("cannot read ") && error.contains("it is a FIFO"), "{error}");
    let large = directory.path().join("large");
    fs::write(&large, "#".repeat((1 << 20) + 1)).unwrap();
    let large = large.to_str().unwrap();
    let error = only_error(&run(&[&["daemon", "--config", large][..], &nowhere].concat()), 2);
    assert!(error.contains("cannot read ") && error.contains("larger than 1 MiB"), "{error}");
}

#[test]
fn root_a_cgroup_that_is_not_there_is_wrong_usage() {
    let Some(_others) = root_in_company() else { return };
    let error = only_error(&run(&["daemon", "--cgroup", "/bufwise-no-such-group"]), 2);
    assert!(error.contains("/bufwise-no-such-group"), "{error}");
}

#[test]
fn root_existing_connections_in_two_namespaces_are_tuned_and_given_back() {
    let Some(_others) = root_in_company() else { return };
    let (net, other, group) = (Net::new(), Net::new(), TestGroup::new());
    let _transfers = [group.transfer(&net), group.transfer(&other)];
    let own = ["--cgroup", &group.path(), "--policy", "fixed:80KiB"];
    let mut daemon = Daemon::ready(&net, &own);
    daemon.says("existing connections adopted in network namespace");
    let sized = |net: &Net| {
        let all = net.connections();
        all.iter().any(|one| one.mem.sndbuf == FIXED) && all.iter().any(|one| one.mem.rcvbuf == FIXED)
    };
    eventually("the transfer in the daemon's namespace is sized", || sized(&net));
    eventually("the transfer in the other namespace is sized", || sized(&other));
    assert!(net.rmem().ends_with(" 67108864") && other.rmem() == net.rmem(), "{}", other.rmem());

    // Only one daemon may use a socket.
    let second = run(&["daemon", "--cgroup", &group.path(), "--socket", &daemon.socket()]);
    assert!(only_error(&second, 1).contains("running already"));
    let listed = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
    let listed: Value = serde_json::from_slice(&listed.stdout).expect("ls writes JSON");
    let tuned = listed["connections"].as_array().unwrap();
    assert!(tuned.iter().any(|one| one["tuned"]["send_buffer_bytes"] == FIXED), "{listed}");

    // A value set by the administrator is noticed and kept, and is not raised again.
    other.set_rmem("4096 131072 7000001");
    daemon.says("net.ipv4.tcp_rmem = 4096 131072 7000001 in network namespace");
    daemon.hears("WATCHDOG=1");
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    daemon.hears("STOPPING=1");
    assert_eq!((net.rmem().as_str(), other.rmem().as_str()), (RMEM, "4096 131072 7000001"));
    assert!(!std::path::Path::new(&daemon.socket()).exists());
    // The buffers are no longer locked, so autotuning goes on, and so does each transfer.
    eventually("buffers are the kernel's", || {
        let all = [&net, &other].map(Net::connections).concat();
        all.len() >= 4 && all.iter().all(|one| one.mem.sndbuf != FIXED)
    });
}

#[test]
fn root_a_cgroup_that_is_removed_and_made_again_is_tuned_again() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "fixed:80KiB"]);
    // As the service manager does when a service restarts.
    fs::remove_dir(group.directory()).unwrap();
    fs::create_dir(group.directory()).unwrap();
    daemon.says(&format!("cgroup {} was made again and is tuned", group.path()));
    let transfer = group.transfer(&net);
    eventually("it is sized", || net.connections().iter().any(|one| one.mem.sndbuf == FIXED));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    eventually("it is the kernel's", || {
        let all = net.connections();
        all.len() >= 2 && all.iter().all(|one| one.mem.sndbuf != FIXED)
    });
    drop(transfer);
}

/// Makes a network namespace while a daemon runs; returns the time until the maximum is raised for a connection there.
fn raised_in_a_new_namespace() -> Duration {
    let (net, group) = (Net::new(), TestGroup::new());
    let _daemon = Daemon::ready(&net, &["--cgroup", &group.path()]);
    let began = Instant::now();
    let other = Net::new();
    let _transfer = group.transfer(&other);
    eventually("the maximum is raised", || other.rmem().ends_with(" 67108864"));
    began.elapsed()
}

/// Runs on every kernel, also on an emulated machine.
#[test]
fn root_a_connection_in_a_new_namespace_has_its_bounds_raised() {
    let Some(_others) = root_in_company() else { return };
    raised_in_a_new_namespace();
}

#[test]
fn root_a_connection_in_a_new_namespace_need_not_wait_for_the_next_sample() {
    let Some(_alone) = root() else { return };
    // The periodic search for namespaces takes up to five seconds: it alone would not find the namespace earlier.
    one_of_three(raised_in_a_new_namespace, |waited| *waited < Duration::from_millis(4_500))
        .unwrap_or_else(|waited| panic!("{waited:?}"));
}

#[test]
fn root_a_new_configuration_is_taken_in_and_a_wrong_one_is_not() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let (_directory, path) = config("policy = \"fixed:80KiB\"\n");
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--config", &path]);
    let has = |size: u32| net.connections().iter().any(|one| one.mem.sndbuf == size);
    eventually("the first size is set", || has(FIXED));

    fs::write(&path, "policy = \"fixed:lots\"\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    let told = daemon.hears("READY=1");
    assert!(told.contains("RELOADING=1\nMONOTONIC_USEC="), "{told}");
    daemon.says("the old configuration stays");
    assert!(daemon.log().contains("line 1: policy"), "{}", daemon.log());

    fs::write(&path, "policy = \"fixed:96KiB\"\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.hears("READY=1");
    eventually("the new size is set", || has(2 * 96 * 1_024));

    // The same rule with other bounds: buffers set before are recognised as ours, and sized further.
    fs::write(&path, "policy = \"fixed:96KiB\"\nmemory = \"64MiB\"\nraise-caps = false\n").unwrap();
    daemon.signal(Signal::SIGHUP);
    daemon.hears("READY=1");
    assert_eq!(net.rmem(), RMEM, "nothing is raised any more");
    assert!(has(2 * 96 * 1_024));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0));
    eventually("the buffer is the kernel's", || !has(2 * 96 * 1_024));
}

#[test]
fn root_signals_while_programs_are_loaded_do_not_end_the_daemon() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "abt,sobas"]);
    // From the first reload to the end of the third, a signal is always pending.
    let mut told = String::new();
    daemon.signal(Signal::SIGHUP);
    while told.matches("READY=1").count() < 3 {
        daemon.signal(Signal::SIGHUP);
        told += &daemon.hears_for(Duration::from_millis(1));
        assert!(daemon.is_running(), "{}", daemon.log());
    }
    let status = run(&["ls", "--json", "--socket", &daemon.socket()]);
    assert!(status.status.success(), "it answers");
    assert!(daemon.log().matches("reloaded: ").count() >= 3, "{}", daemon.log());
    assert!(!daemon.log().contains("the old configuration stays"), "{}", daemon.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
}

#[test]
fn root_log_lines_are_objects_where_that_is_asked_for() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--log-format", "json"]);
    daemon.says("tuning cgroup");
    let own = ["daemon", "--log-format", "json", "--cgroup", &group.path(), "--socket", &daemon.socket()];
    let second = run(&own);
    let error: Value = serde_json::from_slice(&second.stderr).expect("an error is an object, too");
    assert!(error["message"].as_str().unwrap().contains("running already"), "{error}");
    assert_eq!((second.status.code(), &error["level"]), (Some(1), &"warning".into()));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    let log = daemon.log();
    let lines: Vec<Value> =
        log.lines().map(|line| serde_json::from_str(line).expect("a line is an object")).collect();
    let last = lines.last().expect("there are lines");
    assert_eq!(
        (&last["level"], &last["kind"], &last["message"]),
        (&"info".into(), &"life".into(), &"stopped".into())
    );
    let wrong = only_error(&run(&["daemon", "--log-format", "xml"]), 2);
    assert!(wrong.contains("text or json"), "{wrong}");
}

#[test]
fn root_a_command_that_is_run_tuned_inside_what_a_daemon_tunes_is_the_commands_own() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let directory = tempfile::tempdir().unwrap();
    let (report, over) = (directory.path().join("report.json"), directory.path().join("over"));
    let own = ["--cgroup", &group.path(), "--policy", "fixed:80KiB"];
    let mut daemon = Daemon::ready(&net, &own);
    let mut server = group.spawn(&net, "exec iperf3 -s -1");
    net.listens();
    // Two daemons start during the transfer, which ends when the test makes a file; should the test fail, after five minutes.
    let client = format!(
        "exec {} run --policy fixed:120KiB --json {} -- sh -c 'iperf3 -c 127.0.0.1 -t 300 -b 100M & \
         while kill -0 $! && [ ! -e {} ]; do sleep 0.05; done; kill $!; wait $!; exit 0'",
        env!("CARGO_BIN_EXE_bufwise"),
        report.display(),
        over.display()
    );
    let mut client = group.spawn(&net, &client);
    let is_the_commands = |daemon: &Daemon| {
        eventually("the command's connection is sized by its policy", || {
            net.connections().iter().any(|one| one.mem.sndbuf == 2 * 120 * 1_024)
        });
        eventually("the server's end is the daemon's", || {
            let listed = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
            let listed: Value = serde_json::from_slice(&listed.stdout).expect("ls writes JSON");
            let all = listed["connections"].as_array().unwrap();
            let of = |end: &str| {
                let found = all.iter().filter(|one| one[end].as_str().unwrap().ends_with(":5201"));
                found.filter(|one| one["state"] == "established").cloned().collect::<Vec<_>>()
            };
            let is_untouched = |one: &Value| one["policy"].is_null() && one["tuned"].is_null();
            assert!(of("peer").iter().all(is_untouched), "{listed}");
            !of("peer").is_empty() && of("local").iter().any(|one| !one["tuned"].is_null())
        });
    };
    is_the_commands(&daemon);
    // A daemon that starts later treats the connection in the same way.
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    let daemon = Daemon::ready(&net, &own);
    daemon.says("existing connections adopted in network namespace");
    is_the_commands(&daemon);

    fs::write(&over, "").unwrap();
    assert_eq!(client.wait().unwrap().code(), Some(0));
    let _ended = server.kill();
    server.wait().unwrap();
    let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
    let connections = report["connections"].as_array().unwrap();
    assert!(!connections.is_empty());
    for one in connections {
        assert_eq!(one["tuned"]["application_set_send_buffer"], false, "{report}");
        assert_eq!(one["tuned"]["application_set_receive_buffer"], false, "{report}");
    }
}

#[test]
fn root_after_a_burst_a_silent_connections_buffers_are_small_again() {
    let Some(_others) = root_in_company() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "abt,drs"]);
    let listener = net.inside(|| TcpListener::bind("127.0.0.1:5201").unwrap());
    let burst = 20_000_000;
    // The script sends a burst for each line that it receives.
    let script = format!(
        "exec bash -c 'exec 3<>/dev/tcp/127.0.0.1/5201; while read -r <&3; do head -c {burst} /dev/zero >&3; done'"
    );
    let mut client = group.spawn(&net, &script);
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
    // No limits are known before the connection has moved data.
    let limits = || {
        let all = net.connections();
        let client = all.iter().find(|one| one.peer.port() == 5201);
        client.map_or((0, 0), |client| (client.mem.sndbuf, client.mem.rcvbuf))
    };
    // The client receives a line for each burst, which needs no more than the kernel's first buffer.
    let grown = |(send, _): (u32, u32)| send > 500_000;
    let mut bursts = 0;
    // Over loopback cwnd grows while both ends get the processor: one burst nearly always suffices.
    while !grown(limits()) {
        bursts += 1;
        assert!(bursts <= 20, "the bursts have not grown it: {:?}", limits());
        server.write_all(b"\n").unwrap();
        server.read_exact(&mut vec![0; burst]).unwrap();
    }
    // 2 s of silence, then up to 2 s until the next sweep: 4 s; longer on a busy machine. The kernel alone would leave them large.
    let began = Instant::now();
    // Room for the offered window of 64 KB stays, and an eighth more.
    let idle = 2 * 65_536;
    while !(limits().0 <= idle && limits().1 <= idle + idle / 8 + 4_096) {
        assert!(began.elapsed() < patience(Duration::from_secs(20)), "{:?}", limits());
        thread::sleep(Duration::from_millis(20));
    }
    client.kill().unwrap();
    client.wait().unwrap();
}

#[test]
fn root_a_dry_run_changes_nothing() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let own = ["--cgroup", &group.path(), "--policy", "fixed:80KiB", "--dry-run"];
    let daemon = Daemon::ready(&net, &own);
    daemon.says("dry run: ");
    daemon.says("would be sized, up to 81.9 KB");
    let all = net.connections();
    assert!(all.len() >= 2 && all.iter().all(|one| one.mem.sndbuf != FIXED && one.mem.rcvbuf != FIXED));
    assert_eq!(net.rmem(), RMEM);
    // The whole host may be watched, too: here in a dry run only, or other tests would be affected.
    let before = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    let mut whole = Daemon::ready(&net, &["--dry-run"]);
    whole.says("dry run on the whole host");
    assert_eq!(fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap(), before);
    whole.signal(Signal::SIGINT);
    assert_eq!(whole.wait().code(), Some(0));
}

/// Runs fifty connections over a path beside a daemon; returns the report on the path, and the daemon's log.
fn fifty_connections() -> (Value, String) {
    let group = TestGroup::new();
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let client = format!(
        "{} daemon --cgroup {} --policy abt --memory 6MiB --socket {} 2>{} & \
         until grep -q tuning {}; do sleep 0.01; done; \
         {{ echo 0 >$(awk '$3 == \"cgroup2\" {{ print $2; exit }}' /proc/mounts){}/cgroup.procs; }}; \
         iperf3 -c 198.18.0.2 -P 50 -t 3 -J; kill $!; wait $!",
        env!("CARGO_BIN_EXE_bufwise"),
        group.path(),
        path("control"),
        path("log"),
        path("log"),
        group.path(),
    );
    let arguments = ["lab", "path", "--rate", "200mbit", "--rtt", "40ms", "--queue", "1bdp", "--server"];
    let json = path("path.json");
    let output = run(&[&arguments[..], &["iperf3 -s -1", "--client", &client, "--json", &json]].concat());
    let log = fs::read_to_string(path("log")).unwrap_or_default();
    assert!(output.status.success(), "{} {log}", String::from_utf8_lossy(&output.stderr));
    (serde_json::from_slice(&fs::read(&json).unwrap()).unwrap(), log)
}

#[test]
fn root_fifty_connections_stay_within_the_budget() {
    let Some(_alone) = root() else { return };
    let (report, log) = until_valid(fifty_connections, |(report, _)| why_invalid(report));
    let mut held = std::collections::BTreeMap::<u64, f64>::new();
    for sample in report["samples"].as_array().unwrap().iter().filter(|sample| sample["host"] == "a") {
        let millis = (sample["t"].as_f64().unwrap() * 1e3) as u64;
        *held.entry(millis).or_default() += sample["wmem_queued"].as_f64().unwrap();
    }
    // New connections count after a tenth of a second, and no queue is smaller than one segment of 64 KB: a fifth of
    // the budget allows for both.
    let peak = held.values().copied().fold(0.0, f64::max);
    assert!((1e6..1.2 * 6.0 * 1_048_576.0).contains(&peak), "{peak} of 6 MiB; {log}");
    assert!(report["goodput_bps"].as_f64().unwrap() > 100e6, "{} {log}", report["goodput_bps"]);
}
