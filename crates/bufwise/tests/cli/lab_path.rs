//! `bufwise lab path`: the kernel's TCP over the emulated path, and nothing left behind.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Stdio;
use std::time::Instant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{command, eventually, only_error, processes, root, run, until_valid, why_invalid};

/// Runs over a path and returns the report.
fn report(arguments: &[&str]) -> Value {
    until_valid(|| attempt(arguments), why_invalid)
}

fn attempt(arguments: &[&str]) -> Value {
    let file = tempfile::NamedTempFile::new().unwrap();
    let json = file.path().to_str().unwrap();
    let output = run(&[&["lab", "path", "--json", json], arguments].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&fs::read(file.path()).unwrap()).expect("the report is JSON")
}

fn number(value: &Value, pointer: &str) -> f64 {
    value.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {pointer}"))
}

fn every_packet_is_accounted_for(report: &Value) {
    for way in ["a_to_b", "b_to_a"] {
        let count = |key: &str| number(report, &format!("/link/{way}/{key}"));
        // The hosts may say something at the very end, which is then on its way.
        let counted = ["packets", "drops", "drops_random", "queued_packets"].map(count).iter().sum::<f64>();
        assert_eq!(count("offered_packets"), counted, "{way}");
    }
}

#[test]
fn root_iperf3_gets_what_the_path_gives_and_no_more() {
    let Some(_alone) = root() else { return };
    let report = report(&[
        "--rate",
        "50mbit",
        "--rtt",
        "20ms",
        "--queue",
        "1bdp",
        "--server",
        "iperf3 -s -1",
        "--client",
        "iperf3 -c 198.18.0.2 -C cubic -t 3 -J",
    ]);
    // The ceiling is payload divided by wire bytes. Slow start lasts a sixth of a second of three, and uses half of the
    // path meanwhile.
    let goodput = number(&report, "/goodput_bps");
    let ceiling = 50e6 * 1_448.0 / 1_514.0;
    assert!(goodput < ceiling * 1.01, "{goodput}");
    assert!(goodput > ceiling * 0.9, "{goodput}");
    assert_eq!(report["client_status"], 0);
    every_packet_is_accounted_for(&report);
    assert!(number(&report, "/link/a_to_b/queue_max_bytes") <= 125_000.0);
    let timing = &report["timing_error_us"];
    assert!(
        number(timing, "/p50") <= number(timing, "/p99") && number(timing, "/p99") <= number(timing, "/max")
    );
}

#[test]
fn root_both_hosts_are_sampled_with_the_paths_round_trip() {
    let Some(_alone) = root() else { return };
    let report = report(&[
        "--rate",
        "50mbit",
        "--rtt",
        "30ms",
        "--rmem",
        "1MB",
        "--server",
        "iperf3 -s -1",
        "--client",
        "iperf3 -c 198.18.0.2 -t 2 -J",
    ]);
    let samples = report["samples"].as_array().unwrap();
    let sender = |sample: &&Value| sample["host"] == "a" && number(sample, "/bytes_acked") > 1e6;
    let senders: Vec<&Value> = samples.iter().filter(sender).collect();
    assert!(senders.len() >= 10, "{} of {}", senders.len(), samples.len());
    for sample in senders {
        assert!(number(sample, "/min_rtt_us") >= 30_000.0, "{sample}");
        assert!(number(sample, "/cwnd_bytes") > 0.0 && number(sample, "/sndbuf") > 0.0, "{sample}");
        assert_eq!(sample["peer"], "198.18.0.2:5201");
    }
    let receivers =
        samples.iter().filter(|sample| sample["host"] == "b" && number(sample, "/bytes_received") > 1e6);
    assert!(receivers.clone().count() >= 10);
    let largest = receivers.map(|sample| number(sample, "/rcvbuf") as u64).max();
    assert!(largest <= Some(1_000_000), "the maximum of tcp_rmem holds: {largest:?}");
}

#[test]
fn root_a_command_may_have_bytes_that_are_no_text() {
    let Some(_alone) = root() else { return };
    let client = OsStr::from_bytes(b"printf %s '\xff\xfe'");
    let path = ["lab", "path", "--rate", "20mbit", "--rtt", "10ms", "--client"];
    let output = command(&path).arg(client).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"\xff\xfe");
}

#[test]
fn root_ipv6_and_udp_pass() {
    let Some(_alone) = root() else { return };
    let path = ["--rate", "20mbit", "--rtt", "10ms"];
    let v6 = report(
        &[&path[..], &["--server", "iperf3 -s -1", "--client", "iperf3 -6 -c fd00:b::2 -t 1 -J"]].concat(),
    );
    // 1,428 bytes of payload in 1,514 on the wire: 18.9 Mbit/s, minus slow start.
    assert!((16e6..18.9e6).contains(&number(&v6, "/goodput_bps")), "{}", v6["goodput_bps"]);
    every_packet_is_accounted_for(&v6);
    let udp = report(
        &[&path[..], &["--server", "iperf3 -s -1", "--client", "iperf3 -c 198.18.0.2 -u -b 5M -t 1 -J"]]
            .concat(),
    );
    assert!((4.8e6..5.1e6).contains(&number(&udp, "/goodput_bps")), "{}", udp["goodput_bps"]);
    every_packet_is_accounted_for(&udp);
}

#[test]
fn root_random_loss_is_counted_apart_from_drops() {
    let Some(_alone) = root() else { return };
    let report = report(&[
        "--rate",
        "50mbit",
        "--rtt",
        "4ms",
        // A sender that was paused sends what it has missed at once.
        "--queue",
        "480ms",
        "--loss",
        "5%",
        "--server",
        "iperf3 -s -1",
        "--client",
        "iperf3 -c 198.18.0.2 -u -b 20M -l 1400 -t 2 -J",
    ]);
    let lost = number(&report, "/link/a_to_b/drops_random");
    let offered = number(&report, "/link/a_to_b/offered_packets");
    // Four standard deviations are 1.5% for about 3,500 packets.
    assert!((lost / offered - 0.05).abs() < 0.02, "{lost} of {offered}");
    assert_eq!(number(&report, "/link/a_to_b/drops"), 0.0);
}

#[test]
fn root_marks_tell_a_sender_of_the_queue_before_it_overflows() {
    let Some(_alone) = root() else { return };
    let path = ["--rate", "50mbit", "--rtt", "20ms", "--queue", "4bdp", "--server", "iperf3 -s -1"];
    let client = "echo 1 > /proc/sys/net/ipv4/tcp_ecn; iperf3 -c 198.18.0.2 -C reno -t 2 -J";
    let run = |mark: &[&str]| report(&[&path[..], &["--client", client], mark].concat());
    let (silent, marking) = (run(&[]), run(&["--mark", "5ms"]));
    let count = |report: &Value, key: &str| number(report, &format!("/link/a_to_b/{key}"));
    // Reno's slow start doubles until packets are lost.
    assert!(count(&silent, "drops") > 0.0 && count(&silent, "marked") == 0.0);
    // The sender learns of the queue of 5 ms a round trip later; its window has doubled at most twice since.
    assert!(count(&marking, "drops") == 0.0 && count(&marking, "marked") > 0.0);
    every_packet_is_accounted_for(&marking);
}

#[test]
fn root_the_clients_status_is_the_programs_status() {
    let Some(_alone) = root() else { return };
    assert_eq!(run(&["lab", "path", "--client", "exit 7"]).status.code(), Some(7));
    assert_eq!(run(&["lab", "path", "--client", "kill -TERM $$"]).status.code(), Some(128 + 15));
}

#[test]
fn root_hosts_have_the_settings_asked_for_and_the_machine_keeps_its_own() {
    let Some(_alone) = root() else { return };
    let allowed = "/proc/sys/net/ipv4/tcp_allowed_congestion_control";
    let before = fs::read_to_string(allowed).unwrap();
    let shown = "cd /proc/sys/net/ipv4; cat tcp_rmem tcp_wmem tcp_congestion_control; ip -o addr show bw0";
    let output = run(&[
        "lab",
        "path",
        "--rmem",
        "7MB",
        "--wmem",
        "9MB",
        "--cc",
        "cubic",
        "--mtu",
        "9000",
        "--client",
        &format!("{shown}; cat /sys/class/net/bw0/mtu 2>/dev/null; ip link show bw0"),
    ]);
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    assert!(lines.next().unwrap().ends_with("7000000"), "{text}");
    assert!(lines.next().unwrap().ends_with("9000000"), "{text}");
    assert_eq!(lines.next(), Some("cubic"), "{text}");
    for words in ["198.18.0.1/24", "fd00:b::1/64", "mtu 9000"] {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert_eq!(fs::read_to_string(allowed).unwrap(), before);
    let unknown = run(&["lab", "path", "--cc", "tahoe", "--client", "true"]);
    assert!(only_error(&unknown, 1).contains("tahoe"));
}

#[test]
fn root_programs_that_do_not_exist_are_named() {
    let Some(_alone) = root() else { return };
    let server = run(&["lab", "path", "--server", "no-such-server -x", "--client", "true"]);
    let line = only_error(&server, 1);
    assert!(line.contains("server command \"no-such-server -x\"") && line.contains("not found"), "{line}");
    let refused =
        run(&["lab", "path", "--server", "echo cannot open the port >&2; exit 3", "--client", "true"]);
    let line = only_error(&refused, 1);
    assert!(line.contains("status 3") && line.contains("cannot open the port"), "{line}");
    let client = run(&["lab", "path", "--client", "no-such-client"]);
    assert!(
        String::from_utf8_lossy(&client.stderr).contains("client command \"no-such-client\" was not found")
    );
    assert_eq!(client.status.code(), Some(1));
}

#[test]
fn root_a_server_that_does_not_listen_is_an_error_and_the_client_does_not_run() {
    // For the ten seconds that a server has, nothing runs: it holds up no other test.
    if !bufwise_trial::root() {
        return;
    }
    let server = "echo waiting for nothing; sleep 71234568";
    let output = run(&["lab", "path", "--server", server, "--client", "echo the client ran"]);
    let line = only_error(&output, 1);
    assert!(line.contains("does not listen") && line.contains("waiting for nothing"), "{line}");
    eventually("the server is gone", || processes("71234568").is_empty());
}

#[test]
fn root_a_client_that_fails_shows_what_the_server_said() {
    let Some(_alone) = root() else { return };
    let server = "echo no space left; exec iperf3 -s -1 --logfile /dev/null";
    let output = run(&["lab", "path", "--server", server, "--client", "exit 7"]);
    assert_eq!(output.status.code(), Some(7));
    let text = String::from_utf8_lossy(&output.stderr);
    assert!(text.contains("server       no space left"), "{text}");
}

#[test]
fn root_a_client_that_hangs_is_killed_with_all_its_children() {
    let Some(_alone) = root() else { return };
    let start = Instant::now();
    let output = run(&["lab", "path", "--timeout", "1s", "--client", "sleep 71234567 & sleep 71234567"]);
    assert!(only_error(&output, 1).contains("--timeout"));
    // By themselves the children end after two years.
    assert!(start.elapsed().as_secs() < 60);
    eventually("the client's children are gone", || processes("71234567").is_empty());
}

#[test]
fn root_what_a_client_leaves_running_does_not_hold_up_the_end() {
    let Some(_alone) = root() else { return };
    // The second one ignores the signal that asks it to end.
    for (client, marker) in [
        ("sleep 125.712341 & echo done", "125.712341"),
        ("(trap '' TERM; exec sleep 125.712342) & echo done", "125.712342"),
    ] {
        let start = Instant::now();
        let output = run(&["lab", "path", "--timeout", "2s", "--client", client]);
        assert!(start.elapsed().as_secs() < 60, "{client}: {:?}", start.elapsed());
        assert_eq!((output.status.code(), &output.stdout[..]), (Some(0), &b"done\n"[..]), "{client}");
        eventually("what the client left is gone", || processes(marker).is_empty());
    }
}

/// Starts a run that waits for ever, ends it with `signal`, and asserts that nothing is left.
fn ended_by(signal: Signal, marker: &str) -> Option<i32> {
    let mut child = command(&[
        "lab",
        "path",
        "--rate",
        "10mbit",
        "--server",
        &format!("iperf3 -s & sleep {marker}"),
        "--client",
        &format!("sleep {marker} & sleep {marker}"),
    ])
    .stdout(Stdio::null())
    .stderr(Stdio::null())
    .spawn()
    .unwrap();
    eventually("server, client and its child run", || processes(marker).len() == 3);
    kill(Pid::from_raw(child.id().cast_signed()), signal).unwrap();
    let status = child.wait().unwrap();
    eventually("nothing is left", || processes(marker).is_empty());
    status.code()
}

#[test]
fn root_interrupted_it_leaves_nothing_and_says_so_in_its_status() {
    let Some(_alone) = root() else { return };
    assert_eq!(ended_by(Signal::SIGINT, "71234001"), Some(130));
    assert_eq!(ended_by(Signal::SIGTERM, "71234002"), Some(143));
}

#[test]
fn root_a_report_that_cannot_be_written_does_not_hide_the_clients_status() {
    let Some(_alone) = root() else { return };
    if !fs::exists("/dev/full").unwrap() {
        return bufwise_trial::skip("needs /dev/full");
    }
    let output = run(&["lab", "path", "--client", "exit 7", "--json", "/dev/full"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.lines().last().unwrap().starts_with("bufwise: cannot write /dev/full: "), "{said}");
}

#[test]
fn root_killed_it_leaves_nothing() {
    let Some(_alone) = root() else { return };
    assert_eq!(ended_by(Signal::SIGKILL, "71234003"), None);
    assert!(fs::read_dir("/sys/class/net").unwrap().flatten().all(|entry| entry.file_name() != "bw0"));
}
