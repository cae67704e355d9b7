//! The settings of every policy, on connections inside one namespace. The tests depend on neither rates nor durations,
//! so they hold on an emulated machine, too.

use std::net::{SocketAddr, TcpStream};
use std::process::Stdio;

use bufwise_socket::diag::{Diag, States};
use serde_json::Value;

use crate::place::Net;
use crate::run::{eventually, root, root_in_company};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bufwise");

/// Runs both ends of iperf3 inside a namespace under a policy; returns the report.
fn transfer(policy: &[&str], host: &str, client: &str) -> Value {
    let net = Net::new();
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("report.json");
    let script = format!(
        "iperf3 -s -1 >/dev/null & until iperf3 -c {host} {client} >/dev/null 2>&1; do sleep 0.05; done; wait"
    );
    let mut command = net.command(PROGRAM);
    command.args(["run", "--engine", "kernel"]).args(policy).arg("--json").arg(&report);
    let output = command.args(["--", "timeout", "100", "sh", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&std::fs::read(&report).unwrap()).expect("the report is JSON")
}

fn connections(report: &Value) -> &[Value] {
    report["connections"].as_array().unwrap()
}

/// Returns the ends that have sent, or received, data.
fn ends<'a>(report: &'a Value, moved: &str) -> Vec<&'a Value> {
    let all = connections(report).iter();
    let found: Vec<_> = all.filter(|one| one[moved].as_u64() > Some(500_000)).collect();
    assert!(!found.is_empty(), "the transfer was not seen: {report}");
    found
}

fn senders(report: &Value) -> Vec<&Value> {
    ends(report, "bytes_acked")
}

fn receivers(report: &Value) -> Vec<&Value> {
    ends(report, "bytes_received")
}

fn changes(one: &Value, side: &str) -> u64 {
    one["tuned"][side].as_u64().unwrap()
}

/// Returns the limits of the send buffer in the samples of one connection.
fn limits(sender: &Value) -> Vec<u64> {
    let points = sender["buffers"].as_array().unwrap().iter();
    points.filter_map(|point| point["send_buffer_bytes"].as_u64()).collect()
}

/// Returns the median.
fn median(mut limits: Vec<u64>) -> u64 {
    limits.sort_unstable();
    limits[limits.len() / 2]
}

#[test]
fn root_kernel_sets_nothing() {
    let Some(_others) = root_in_company() else { return };
    let report = transfer(&["--policy", "kernel"], "127.0.0.1", "-t 1 -b 50M");
    assert!(!senders(&report).is_empty() && !receivers(&report).is_empty());
    for one in connections(&report) {
        assert_eq!((changes(one, "send_changes"), changes(one, "receive_changes")), (0, 0), "{one}");
    }
}

#[test]
fn root_fixed_sets_both_sides_in_every_family() {
    let Some(_others) = root_in_company() else { return };
    for host in ["127.0.0.1", "::1", "::ffff:127.0.0.1"] {
        let report = transfer(&["--policy", "fixed:64KiB"], host, "-t 1 -b 50M");
        for one in senders(&report) {
            assert_eq!(one["tuned"]["send_buffer_bytes"], 2 * 65_536, "{host}: {one}");
        }
        for one in receivers(&report) {
            assert_eq!(one["tuned"]["receive_window_bytes"], 65_536, "{host}: {one}");
        }
    }
}

#[test]
fn root_eq_gives_all_the_same() {
    let Some(_others) = root_in_company() else { return };
    let report = transfer(&["--policy", "eq", "--memory", "8MiB"], "127.0.0.1", "-P 4 -t 4 -b 20M");
    let senders = senders(&report);
    assert_eq!(senders.len(), 4, "{report}");
    let others: Vec<_> = senders[1..].iter().map(|one| limits(one)).collect();
    // Before the four begin, iperf3's two control connections share the memory.
    let mut quarters = limits(senders[0]).into_iter().filter(|size| 4 * size <= 8 << 20);
    assert!(quarters.any(|size| others.iter().all(|all| all.contains(&size))), "{report}");
}

#[test]
fn root_abt_sets_the_send_side_alone() {
    let Some(_others) = root_in_company() else { return };
    let report = transfer(&["--policy", "abt"], "127.0.0.1", "-t 1");
    assert!(senders(&report).iter().all(|one| changes(one, "send_changes") > 0), "{report}");
    assert!(connections(&report).iter().all(|one| changes(one, "receive_changes") == 0), "{report}");
}

#[test]
fn root_sabt_sets_the_send_side_alone() {
    let Some(_others) = root_in_company() else { return };
    let report = transfer(&["--policy", "sabt", "--memory", "8MiB"], "127.0.0.1", "-P 2 -t 2");
    assert!(senders(&report).iter().all(|one| changes(one, "send_changes") > 0), "{report}");
    assert!(connections(&report).iter().all(|one| changes(one, "receive_changes") == 0), "{report}");
}

#[test]
fn root_the_papers_rules_as_written_set_send_buffers_and_bound_no_rate() {
    let Some(_others) = root_in_company() else { return };
    for policy in ["abt:published", "sabt:published"] {
        let report = transfer(&["--policy", policy, "--memory", "1MiB"], "127.0.0.1", "-P 4 -t 2");
        assert_eq!(
            (&report["policy"]["send"], &report["policy"]["receive"]),
            (&policy.into(), &"kernel".into())
        );
        for one in senders(&report) {
            assert!(changes(one, "send_changes") > 0 && one["tuned"]["rate_bound_bps"].is_null(), "{one}");
        }
    }
}

#[test]
fn root_fit_leaves_a_short_path_to_the_kernel_and_says_why() {
    let Some(_alone) = root() else { return };
    let report = transfer(&["--policy", "fit,kernel"], "127.0.0.1", "-t 1 -C cubic");
    for one in senders(&report) {
        assert_eq!(one["tuned"]["fit"]["reason"], "short-round-trip", "{one}");
        assert!(
            one["tuned"]["fit"]["roof_bps"].is_null() && one["tuned"]["rate_bound_bps"].is_null(),
            "{one}"
        );
        assert_eq!(one["congestion_control"], "cubic");
    }
}

fn sets_the_window_alone(policy: &str) {
    let report = transfer(&["--policy", policy], "127.0.0.1", "-t 2");
    for one in receivers(&report) {
        assert!(changes(one, "receive_changes") > 0, "{policy}: {one}");
        assert!(one["tuned"]["receive_window_bytes"].as_u64() > Some(0), "{policy}: {one}");
    }
    assert!(connections(&report).iter().all(|one| changes(one, "send_changes") == 0), "{report}");
}

#[test]
fn root_drs_sets_the_window_alone() {
    let Some(_others) = root_in_company() else { return };
    sets_the_window_alone("drs");
}

#[test]
fn root_sobas_sets_the_window_alone() {
    let Some(_alone) = root() else { return };
    sets_the_window_alone("sobas");
}

/// Loopback's round trip is too short for fit: buffers are sized, but the rate is not bounded.
#[test]
fn root_fit_sizes_both_sides_and_leaves_the_rate_of_near_paths_alone() {
    let Some(_alone) = root() else { return };
    let report = transfer(&["--policy", "fit"], "127.0.0.1", "-t 1");
    for one in senders(&report) {
        assert!(changes(one, "send_changes") > 0, "{one}");
        assert_eq!(one["tuned"]["rate_bound_bps"], Value::Null, "{one}");
    }
    assert!(receivers(&report).iter().all(|one| changes(one, "receive_changes") > 0), "{report}");
}

#[test]
fn root_shares_are_within_the_memory() {
    let Some(_others) = root_in_company() else { return };
    for policy in ["eq", "abt", "sabt"] {
        let report = transfer(&["--policy", policy, "--memory", "2MiB"], "127.0.0.1", "-P 8 -t 4");
        let senders = senders(&report);
        assert_eq!(senders.len(), 8, "{report}");
        // Medians, because the first samples precede the shares, and the last ones follow the end of some connections.
        let sum: u64 = senders.iter().map(|one| median(limits(one))).sum();
        assert!(sum <= 2 << 20, "{policy}: {sum} of 2 MiB: {report}");
    }
}

#[test]
fn root_small_documents_have_an_initial_window_of_their_size() {
    let Some(_others) = root_in_company() else { return };
    let net = Net::new();
    // Loopback's usual segments are larger than a document.
    net.ip("link set lo mtu 1500");
    let mut command = net.command(PROGRAM);
    command.args(["run", "--policy", "kernel", "--small-documents", "30KB", "--", "iperf3", "-s", "-1"]);
    let mut server = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    net.listens();
    let address: SocketAddr = "127.0.0.1:5201".parse().unwrap();
    let client = net.inside(|| TcpStream::connect(address).unwrap());
    // The initial window for 30,000 bytes, in segments of 1,448.
    eventually("the server's end has the window", || {
        let all = net.inside(|| Diag::open().unwrap().tcp(States::ESTABLISHED).unwrap());
        all.iter().any(|one| one.local.port() == 5201 && one.info.snd_cwnd == 21)
    });
    drop(client);
    server.wait().unwrap();
}
