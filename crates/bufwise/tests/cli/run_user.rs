//! `bufwise run` without any privilege: it finds, sizes and releases connections of the command and of its descendants.

use std::fs::{self, File};
use std::io::Read;
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Stdio};
use std::thread;

use bufwise_bpf::Owners;
use bufwise_bpf::reach::SocketCopy;
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::Bytes;
use serde_json::Value;

use crate::place::Net;
use crate::run::{command, eventually, only_error, root};

/// Payload under `fixed:64KiB`.
const SIZE: Bytes = Bytes(65_536);

/// Returns `run` inside the namespace, by a user without any privilege.
fn unprivileged(net: &Net, arguments: &[&str]) -> Command {
    let mut command = net.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", "--"]);
    // The unprivileged user may not reach the program's path: a descriptor that is already open starts it.
    let program = File::open(env!("CARGO_BIN_EXE_bufwise")).unwrap();
    command.args(["/proc/self/fd/0", "run"]).args(arguments).stdin(program);
    command
}

fn report(net: &Net, arguments: &[&str]) -> Value {
    let output = unprivileged(net, &[&["--json", "-"], arguments].concat()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

/// Returns a descriptor of the socket with that local address, whichever process has it.
fn end_at(net: &Net, local: SocketAddr) -> SocketCopy {
    let all = net.connections();
    let one = all.iter().find(|one| one.local == local).expect("it is connected");
    Owners::scan().socket(one.inode.into(), one.cookie).expect("a process has it")
}

#[test]
fn root_without_privilege_an_orphans_connection_is_sized_and_given_back() {
    let Some(_alone) = root() else { return };
    let net = Net::new();
    let [listener, gate] = net.inside(|| [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap()));
    let connect =
        |to: &TcpListener| format!("exec 3<>/dev/tcp/127.0.0.1/{}", to.local_addr().unwrap().port());
    // The connecting process is an orphan: its parent has ended. The command waits until its own connection ends.
    let orphan = format!("{}; head -c 300000 /dev/zero >&3; cat <&3", connect(&listener));
    let script = format!("( ( {orphan} ) >/dev/null 2>&1 & ); {}; cat <&3", connect(&gate));
    let arguments =
        ["--engine", "user", "--policy", "fixed:64KiB", "--json", "-", "--", "bash", "-c", &script];
    let mut run = unprivileged(&net, &arguments);
    let run = run.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let (mut peer, address) = listener.accept().unwrap();
    let (command, _) = gate.accept().unwrap();
    peer.read_exact(&mut vec![0; 300_000]).unwrap();
    let socket = end_at(&net, address);
    eventually("its sizes are set", || {
        options::send_buffer(&socket).unwrap() == SIZE.times(2)
            && options::window_clamp(&socket).unwrap() == SIZE
    });
    assert!(options::buffer_lock(&socket).unwrap().send);
    drop(command);
    let output = run.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(report["notes"].to_string().contains("1 connection given back to the kernel"), "{report}");
    assert_eq!(options::buffer_lock(&socket).unwrap(), BufferLock::default());
    assert!(options::window_clamp(&socket).unwrap() > SIZE);
    let connection = &report["connections"][0];
    assert_eq!(connection["direction"], "send");
    assert!(connection["bytes_acked"].as_u64() > Some(100_000), "{connection}");
}

#[test]
fn a_connection_that_the_command_has_inherited_is_given_back_to_the_process_that_keeps_it() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (server, _) = listener.accept().unwrap();
    if options::buffer_lock(&client).is_err() {
        return bufwise_trial::skip("needs Linux 5.15");
    }
    let mut run =
        command(&["run", "--engine", "user", "--policy", "fixed:64KiB", "--json", "-", "--", "cat"]);
    run.stdin(OwnedFd::from(client.try_clone().unwrap())).stdout(Stdio::piped()).stderr(Stdio::null());
    let run = run.spawn().unwrap();
    eventually("its sizes are set", || {
        options::send_buffer(&client).unwrap() == SIZE.times(2)
            && options::window_clamp(&client).unwrap() == SIZE
    });
    // The command reads the end.
    server.shutdown(Shutdown::Write).unwrap();
    let report: Value = serde_json::from_slice(&run.wait_with_output().unwrap().stdout).unwrap();
    assert!(report["notes"].to_string().contains("1 connection given back to the kernel"), "{report}");
    assert_eq!(options::buffer_lock(&client).unwrap(), BufferLock::default());
    assert!(options::window_clamp(&client).unwrap() > SIZE);
}

#[test]
fn root_without_privilege_connected_and_accepted_ends_are_sized() {
    let Some(_alone) = root() else { return };
    let script = "iperf3 -s -1 >/dev/null & \
                  until iperf3 -c 127.0.0.1 -t 3 >/dev/null 2>&1; do sleep 0.05; done; wait";
    let transfer = |policy: &[&str]| {
        let net = Net::new();
        report(
            &net,
            &[&["--engine", "user", "--policy"], policy, &["--", "timeout", "100", "sh", "-c", script]]
                .concat(),
        )
    };
    let moved = |report: &Value, counter: &str| -> Value {
        let all = report["connections"].as_array().unwrap();
        let found = all.iter().find(|one| one[counter].as_u64() > Some(500_000));
        found.unwrap_or_else(|| panic!("the transfer was not seen: {report}")).clone()
    };
    // The assertions on these two depend on no rate, so they run beside each other.
    let transfer = &transfer;
    let [fixed, shared] = thread::scope(|scope| {
        let policies: [&[&str]; 2] = [&["fixed:64KiB"], &["abt,drs", "--memory", "256KiB"]];
        policies.map(|policy| scope.spawn(move || transfer(policy))).map(|one| one.join().unwrap())
    });
    assert_eq!((&fixed["engine"], &fixed["engine_reason"]), (&"user".into(), &Value::Null));
    assert_eq!(moved(&fixed, "bytes_acked")["tuned"]["send_buffer_bytes"], 2 * SIZE.0);
    let accepted = moved(&fixed, "bytes_received");
    assert!(accepted["local"].as_str().unwrap().ends_with(":5201"), "{accepted}");
    assert_eq!(accepted["tuned"]["receive_window_bytes"], SIZE.0);

    let send_buffer = moved(&shared, "bytes_acked")["tuned"]["send_buffer_bytes"].as_u64();
    assert!(send_buffer.is_some_and(|size| size <= 256 << 10), "within its share: {shared}");
    let window = moved(&shared, "bytes_received")["tuned"]["receive_window_bytes"].as_u64();
    assert!(window.is_some_and(|size| size <= 128 << 10), "half of its share: {shared}");

    let alone = transfer(&["kernel,drs"]);
    let window = moved(&alone, "bytes_received")["tuned"]["receive_window_bytes"].as_u64();
    assert!(window > Some(256 << 10), "the window followed the transfer: {alone}");
}

#[test]
fn root_without_privilege_the_report_says_which_engine_it_was_and_why() {
    let Some(_alone) = root() else { return };
    let net = Net::new();
    let report = report(&net, &["--", "true"]);
    assert_eq!(report["engine"], "user");
    assert!(report["engine_reason"].as_str().unwrap().contains("cgroup"), "{report}");
    let text = unprivileged(&net, &["--", "true"]).output().unwrap().stderr;
    let text = String::from_utf8(text).unwrap();
    assert_eq!(
        text.lines().filter(|line| line.starts_with("bufwise: engine: in user space")).count(),
        1,
        "{text}"
    );
    assert!(text.contains(" (not in the kernel: "), "{text}");
    let refused = unprivileged(&net, &["--engine", "kernel", "--", "true"]).output().unwrap();
    assert!(only_error(&refused, 1).contains("cgroup"));
}

#[test]
fn root_without_privilege_a_setuid_command_is_left_alone_and_named() {
    let Some(_alone) = root() else { return };
    let Some(sleep) = bufwise_trial::program("sleep") else { return };
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let copy = directory.path().join("sleep");
    // Another process writes it: a child that another test starts meanwhile would keep it open, and so not executable.
    let mut shell = Command::new("sh");
    shell.args(["-c", "cat \"$0\" >\"$1\""]).arg(sleep).arg(&copy);
    assert!(shell.status().unwrap().success());
    fs::set_permissions(&copy, fs::Permissions::from_mode(0o4711)).unwrap();
    let report = report(&Net::new(), &["--engine", "user", "--", copy.to_str().unwrap(), "2"]);
    assert!(report["notes"].to_string().contains("sleep is out of reach"), "{report}");
    assert_eq!(report["connections"], Value::Array(Vec::new()));
}
