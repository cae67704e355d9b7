//! `bufwise restore`, and the leftovers of a killed daemon.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use bufwise_socket::device::GsoMaxSize;

use crate::connections::unprivileged;
use crate::place::{Daemon, Net, RMEM, TestGroup};
use crate::run::{PROGRAM, eventually, only_error, patience, root, root_in_company, run, text};

const FIXED: u32 = 2 * 80 * 1_024;

fn restore(socket: &str) -> String {
    let Output { status, stdout, stderr } = run(&["restore", "--socket", socket]);
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    String::from_utf8(stdout).unwrap()
}

fn is_sized(net: &Net) -> bool {
    net.connections().iter().any(|one| one.mem.sndbuf == FIXED)
}

fn moved(net: &Net) -> u64 {
    net.connections().iter().map(|one| one.info.bytes_received).max().unwrap_or_default()
}

#[test]
fn root_a_killed_daemon_leaves_connections_running_and_its_traces_are_cleared() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let own = ["--cgroup", &group.path(), "--policy", "fixed:80KiB"];
    let mut daemon = Daemon::ready(&net, &own);
    eventually("buffers are set", || is_sized(&net));
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let before = moved(&net);
    eventually("data still moves", || moved(&net) > before + 1_000_000);
    assert!(is_sized(&net) && net.rmem().ends_with(" 67108864"), "what it did stays");

    // The next daemon clears the leftovers, as `restore` does, and tunes by its own rules.
    daemon.start_again(&net, &["--cgroup", &group.path(), "--policy", "kernel"]);
    daemon.hears("READY=1");
    daemon.says("left by a killed bufwise: net.ipv4.tcp_rmem");
    daemon.says(&format!("programs taken off cgroup {}; ", group.path()));
    assert_eq!(net.rmem(), RMEM);
    assert!(!is_sized(&net) && net.connections().len() >= 2, "given back, and not ended");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    let said = restore(&daemon.socket());
    assert!(said.contains(&format!("programs taken off cgroup {}", group.path())), "{said}");
    let said = restore(&daemon.socket());
    assert!(!said.contains(&group.path()), "{said}");
}

#[test]
fn root_what_devices_take_at_once_is_put_back_also_after_a_kill_but_not_over_the_administrators_value() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    net.ip("link add v0 type veth peer name v1");
    let both = |size| GsoMaxSize { size, ipv4: size };
    let own = ["--cgroup", &group.path(), "--gso-max-size", "4KiB"];
    let mut daemon = Daemon::ready(&net, &own);
    assert_eq!((net.at_once("v0"), net.at_once("v1")), (both(4_096), both(4_096)));
    daemon.says("gso_max_size of v0 (device ");
    daemon.signal(Signal::SIGTERM);
    daemon.wait();
    assert_eq!((net.at_once("v0"), net.at_once("v1")), (both(65_536), both(65_536)));

    let mut daemon = Daemon::ready(&net, &own);
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    assert_eq!(net.at_once("v0"), both(4_096), "what it did stays");
    net.ip("link set v0 name w0");
    net.ip("link set v1 gso_max_size 8192");
    let said = restore(&daemon.socket());
    assert!(said.contains(" = 65536 65536 (network namespace "), "{said}");
    assert_eq!((net.at_once("w0"), net.at_once("v1")), (both(65_536), both(8_192)));
}

#[test]
fn root_a_bound_of_devices_ends_with_its_owner_whoever_else_is_there() {
    let Some(_alone) = root() else { return };
    let (net, groups) = (Net::new(), [TestGroup::new(), TestGroup::new()]);
    net.ip("link add v0 type veth peer name v1");
    let both = |size| GsoMaxSize { size, ipv4: size };
    let mut other = Daemon::ready(&net, &["--cgroup", &groups[0].path()]);
    let own = ["--cgroup", &groups[1].path(), "--gso-max-size", "8KiB"];
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut daemon = Daemon::ready(&net, &own);
        assert_eq!(net.at_once("v0"), both(8_192));
        daemon.signal(signal);
        daemon.wait();
        if signal == Signal::SIGKILL {
            let said = restore(&daemon.socket());
            assert!(said.contains("gso_max_size of v0 (device "), "{said}");
        }
        assert_eq!((net.at_once("v0"), net.at_once("v1")), (both(65_536), both(65_536)), "{signal}");
        assert!(net.rmem().ends_with(" 67108864"), "the other one relies on it");
    }
    other.signal(Signal::SIGTERM);
    other.wait();
    assert_eq!(net.rmem(), RMEM);
}

#[test]
fn root_a_daemon_that_is_stopped_is_named_soon_and_does_nothing_of_it_later() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let daemon = Daemon::ready(&net, &["--cgroup", &group.path()]);
    let socket = daemon.socket();
    daemon.signal(Signal::SIGSTOP);
    let began = Instant::now();
    let soon = || assert!(began.elapsed() < patience(Duration::from_secs(20)), "{:?}", began.elapsed());
    let error = only_error(&run(&["restore", "--socket", &socket]), 1);
    assert!(error.contains("has said nothing for 2 s: is it stopped"), "{error}");
    let listed = run(&["ls", "--json", "--socket", &socket]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    assert!(listed.contains("has said nothing for 2 s"), "{listed}");
    soon();
    // With the two connections before, these fill the backlog.
    let waiting: Vec<_> = (0..15).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let error = only_error(&run(&["restore", "--socket", &socket]), 1);
    assert!(error.contains("is it stopped"), "{error}");
    soon();
    drop(waiting);
    daemon.signal(Signal::SIGCONT);
    eventually("it answers", || run(&["ls", "--json", "--socket", &socket]).status.success());
    assert!(net.rmem().ends_with(" 67108864"), "{}", daemon.log());
}

/// Returns the arguments of bufwise in the command that systemd runs after the end of the daemon.
fn after_the_end_of_the_unit() -> Vec<String> {
    let unit = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../etc/bufwise.service");
    let unit = fs::read_to_string(unit).unwrap();
    let command = unit.lines().find_map(|line| line.strip_prefix("ExecStopPost=-/usr/bin/bufwise "));
    command.expect("a command").split(' ').map(str::to_owned).collect()
}

#[test]
fn root_the_end_of_the_unit_leaves_a_daemon_alone_that_was_started_by_hand() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let daemon = Daemon::ready(&net, &["--cgroup", &group.path()]);
    let socket = daemon.socket();
    // The daemon has the socket of the unit's daemon in a mount namespace.
    let script = "mkdir -p /run/bufwise && mount --bind \"$0\" /run/bufwise && exec \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]).arg(Path::new(&socket).parent().unwrap());
    let Output { status, stderr, .. } =
        command.arg(PROGRAM).args(after_the_end_of_the_unit()).output().unwrap();
    assert!(status.success(), "{}", String::from_utf8_lossy(&stderr));
    assert!(net.rmem().ends_with(" 67108864"), "{}", daemon.log());
}

/// Runs `restore --leftovers` in a namespace without these capabilities, with the journals of that directory.
fn restore_without(capabilities: &str, net: &Net, journals: &Path) -> Output {
    let script = "mkdir -p /run/bufwise && mount --bind \"$0\" /run/bufwise && exec setpriv \"$@\"";
    let mut command = net.command("unshare");
    command.args(["-m", "sh", "-c", script]).arg(journals);
    command.arg(format!("--bounding-set={capabilities}")).arg("--inh-caps=-all");
    // Root without capabilities may not reach the program's path: a descriptor that is already open starts it.
    command.args(["--", "/proc/self/fd/0", "restore", "--leftovers"]);
    command.stdin(fs::File::open(PROGRAM).unwrap()).output().unwrap()
}

#[test]
fn root_settings_are_put_back_where_programs_cannot_be_listed() {
    let Some(_others) = root_in_company() else { return };
    let (net, journals) = (Net::new(), tempfile::tempdir().unwrap());
    let raised = "4096 131072 7654321";
    net.set_rmem(raised);
    let cookie = net.inside(|| bufwise_host::caps::here().unwrap());
    let journal = journals.path().join(format!("caps-{cookie}"));
    fs::write(&journal, format!("net.ipv4.tcp_rmem\t{RMEM}\t{raised}\n")).unwrap();
    // Without any capability, as in a container, root may still write the settings of a namespace.
    let output = restore_without("-all", &net, journals.path());
    let error = only_error(&output, 1);
    assert!(error.contains("cannot ask which programs are on the cgroup"), "{error}");
    let said = text(&output.stdout);
    assert!(said.contains(&format!("net.ipv4.tcp_rmem = {RMEM} (network namespace ")), "{said}");
    assert_eq!(net.rmem(), RMEM);
    assert!(!journal.exists());
}

#[test]
fn root_a_journal_is_kept_while_its_namespace_may_be_hidden() {
    let Some(_alone) = root() else { return };
    let (net, journals) = (Net::new(), tempfile::tempdir().unwrap());
    // It stands for the namespace of a process with more capabilities than `restore` has.
    let journal = journals.path().join("caps-999999999999");
    fs::write(&journal, format!("net.ipv4.tcp_rmem\t{RMEM}\t4096 131072 7654321\n")).unwrap();
    let output = restore_without("-sys_ptrace", &net, journals.path());
    // If what starts it failed, the journal would be kept, too.
    assert!(output.status.success() || text(&output.stderr).starts_with("bufwise: "), "{output:?}");
    assert!(journal.exists(), "{output:?}");
}

#[test]
fn root_the_list_that_a_killed_laboratory_has_left_widened_is_put_back() {
    let Some(_alone) = root() else { return };
    let journal = Path::new("/run/bufwise-allowed-congestion-control");
    let Ok(list) = fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control") else {
        return bufwise_trial::skip("the list of allowed congestion controls is hidden");
    };
    // The present list, so that nothing changes on this host.
    fs::write(journal, list).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("control");
    // The socket of a daemon that was killed.
    drop(UnixListener::bind(&socket).unwrap());
    restore(socket.to_str().unwrap());
    assert!(!journal.exists());
}

#[test]
fn a_socket_that_is_not_there_is_an_error() {
    for (path, words) in [("/nope", "No such file"), ("/etc/passwd", "it is no socket")] {
        let error = only_error(&run(&["restore", "--socket", path]), 1);
        assert!(error.contains(&format!("there is no daemon at {path}")) && error.contains(words), "{error}");
    }
}

#[test]
fn root_a_daemon_that_is_asked_gives_back_and_rests_until_it_is_reloaded() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "fixed:80KiB"]);
    eventually("buffers are set", || is_sized(&net));
    let said = restore(&daemon.socket());
    assert!(said.contains(&format!("net.ipv4.tcp_rmem = {RMEM}")), "{said}");
    // Their number depends on the connections that the transfer has open.
    assert!(said.contains(" given back to the kernel"), "{said}");
    assert!(!is_sized(&net) && net.connections().len() >= 2, "given back, and not ended");
    assert_eq!(net.rmem(), RMEM);
    daemon.signal(Signal::SIGHUP);
    daemon.hears("READY=1");
    eventually("buffers are set again", || is_sized(&net));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0));
}

#[test]
fn root_what_was_put_back_is_also_there_as_json() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let daemon = Daemon::ready(&net, &["--cgroup", &group.path()]);
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("restored.json");
    let said = run(&["restore", "--socket", &daemon.socket(), "--json", file.to_str().unwrap()]);
    assert!(said.status.success() && text(&said.stdout).contains("connections given back"), "{said:?}");
    let report: Value = serde_json::from_slice(&fs::read(file).unwrap()).unwrap();
    assert_eq!((&report["connections"], &report["not_put_back"]), (&0.into(), &Value::Array(Vec::new())));
    let put_back: Vec<_> = report["put_back"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let setting = format!("net.ipv4.tcp_rmem = {RMEM}");
    assert!(put_back.iter().any(|line| line.starts_with(&setting)), "{report}");
    // Of a daemon that rests nothing is left to put back.
    let again = run(&["restore", "--json", "--socket", &daemon.socket()]);
    assert_eq!(serde_json::from_slice::<Value>(&again.stdout).unwrap()["connections"], 0);
}

#[test]
fn root_another_user_is_turned_away_even_where_the_mode_would_let_it() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "fixed:80KiB"]);
    eventually("buffers are set", || is_sized(&net));
    let socket = daemon.socket();
    let as_another = || {
        let output = unprivileged(&["restore", "--socket", &socket]).expect("we are root");
        only_error(&output, 1)
    };
    let directory = Path::new(&socket).parent().unwrap();
    fs::set_permissions(directory, Permissions::from_mode(0o755)).unwrap();
    let error = as_another();
    assert!(error.contains("only root may ask the daemon"), "{error}");
    fs::set_permissions(&socket, Permissions::from_mode(0o666)).unwrap();
    let error = as_another();
    assert!(error.contains("user 65534 may not ask the daemon"), "{error}");
    assert!(is_sized(&net), "nothing was given back");
}
