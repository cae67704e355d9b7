//! `bufwise probe`: its figures agree with the emulator's settings, and wrong targets cause one line.

use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::process::Stdio;

use serde_json::Value;

use crate::run::{command, eventually, only_error, root, run};

/// Probes a path with a server at the other end; returns what was written, which must be JSON.
fn over(path: &[&str], options: &str) -> Value {
    let program = env!("CARGO_BIN_EXE_bufwise");
    let server = format!("{program} probe --serve 198.18.0.2");
    let client = format!("{program} probe 198.18.0.2 --json {options}");
    let output = run(&[&["lab", "path"], path, &["--server", &server, "--client", &client]].concat());
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).expect("the report is JSON")
}

fn number(report: &Value, pointer: &str) -> f64 {
    report
        .pointer(pointer)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("no number at {pointer}: {report}"))
}

/// Checks that a figure is within `share` of the true value.
fn near(report: &Value, pointer: &str, truth: f64, share: f64) -> Result<(), String> {
    let found = report.pointer(pointer).and_then(Value::as_f64).unwrap_or(f64::NAN);
    let is_near = (found / truth - 1.0).abs() <= share;
    if is_near { Ok(()) } else { Err(format!("{pointer} is {found}, not {truth}: {report}")) }
}

/// Returns the report of a path beside traffic of others, whose figures are near the truth.
fn beside_others(options: &str, pointer: &str) -> Value {
    // IP packets of 1,380 bytes have 14 bytes more on the wire.
    let ip = |wire: f64| wire * 1_380.0 / 1_394.0;
    let path = ["--rate", "50mbit", "--rtt", "30ms", "--queue", "50ms", "--cross", "20mbit"];
    let measure = || {
        let report = over(&path, options).pointer(pointer).cloned().unwrap_or_default();
        let judged = near(&report, "/here/capacity/middle_bps", ip(50e6), 0.05)
            .and_then(|()| near(&report, "/there/capacity/middle_bps", ip(50e6), 0.05))
            .and_then(|()| near(&report, "/here/available/middle_bps", ip(30e6), 0.1))
            .and_then(|()| near(&report, "/there/available/middle_bps", ip(50e6), 0.1))
            .and_then(|()| near(&report, "/round_trip/least_s", 0.030, 0.05));
        judged.map(|()| report)
    };
    // A busy host disturbs trains and emulator, so there are five attempts.
    let mut wrong = Vec::new();
    while wrong.len() < 5 {
        match measure() {
            Ok(report) => return report,
            Err(error) => wrong.push(error),
        }
    }
    panic!("no figures near the truth: {wrong:#?}");
}

#[test]
fn root_repeated_measurements_include_the_available_bandwidth() {
    let Some(_alone) = root() else { return };
    let report = beside_others("--every 20s --for 1s", "/report");
    assert_eq!(report["remarks"], serde_json::json!([]));
    // The trains of one way take at most a second of the path, a twentieth of the interval.
    assert!(number(&report, "/received_bytes") < 50e6 / 8.0, "{report}");
}

#[test]
fn root_a_path_is_measured_both_ways_beside_traffic_of_others() {
    let Some(_alone) = root() else { return };
    let report = beside_others("", "");
    assert_eq!(report["method"], "bufwise");
    assert!(number(&report, "/loss/probes") > 50.0, "{report}");
    // A hundredth of the rate over ten seconds is 0.6 MB in each direction; the trains add to that.
    assert!(number(&report, "/sent_bytes") < 5e6 && number(&report, "/received_bytes") < 5e6, "{report}");
    let bdp = number(&report, "/here/bdp_bytes");
    assert!((170_000.0..210_000.0).contains(&bdp), "{bdp}");
    assert!(number(&report, "/here/buffers/need_bytes") >= 2.0 * bdp);
}

/// Returns the address of a port that speaks first.
fn speaking() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap().to_string();
    // The thread ends with the test's process.
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            // Fails if the client has already left.
            let _gone = client.write_all(b"SSH-2.0-test\r\n");
        }
    });
    target
}

#[test]
fn a_port_that_speaks_first_shows_its_round_trip_and_no_more() {
    let report = run(&["probe", &speaking(), "--json"]);
    assert!(report.status.success(), "{}", String::from_utf8_lossy(&report.stderr));
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    assert_eq!(report["method"], "port");
    assert!(number(&report, "/round_trip/least_s") < 1.0);
    assert!(report["loss"].is_null() && report["here"]["available"].is_null(), "{report}");
    assert!(report["here"]["capacity"].is_null() && report["here"]["bdp_bytes"].is_null(), "{report}");
}

#[test]
fn repeated_measurements_end_with_the_reader_of_their_lines() {
    let target = speaking();
    let mut probe = command(&["probe", &target, "--every", "60s", "--for", "90s"]);
    let mut probe = probe.stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(probe.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("TIME"), "{line}");
    eventually("the probe ends", || probe.try_wait().unwrap().is_some());
    assert_eq!(probe.wait().unwrap().code(), Some(0));
}

#[test]
fn the_failure_of_the_last_measurement_is_one_line() {
    let line = only_error(&run(&["probe", "127.0.0.1:1", "--every", "5s", "--for", "1s"]), 1);
    assert!(line.contains("cannot connect to 127.0.0.1:1"), "{line}");
}

#[test]
fn a_server_says_where_it_listens_and_a_client_repeats_until_the_time_is_over() {
    let mut server = command(&["probe", "--serve", "127.0.0.1:0"]).stderr(Stdio::piped()).spawn().unwrap();
    let mut said = BufReader::new(server.stderr.take().unwrap());
    let mut line = String::new();
    said.read_line(&mut line).unwrap();
    let target = line.split_whitespace().find(|word| word.starts_with("127.0.0.1:")).expect("an address");
    let target = target.trim_end_matches(',').to_owned();
    let output = run(&["probe", &target, "--every", "5s", "--for", "2s", "--json"]);
    nix::sys::signal::kill(
        nix::unistd::Pid::from_raw(server.id().cast_signed()),
        nix::sys::signal::Signal::SIGTERM,
    )
    .unwrap();
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines: Vec<Value> = output
        .stdout
        .split(|byte| *byte == b'\n')
        .filter_map(|line| serde_json::from_slice(line).ok())
        .collect();
    assert_eq!(lines.len(), 1);
    assert!(lines[0]["time"].is_string());
    assert!(number(&lines[0], "/report/here/capacity/middle_bps") > 1e6, "{}", lines[0]);
    assert!(lines[0]["report"]["remarks"].to_string().contains("intervals below 20s"), "{}", lines[0]);
    let told: Vec<String> = said.lines().map_while(Result::ok).collect();
    assert!(told.iter().any(|line| line.contains(" trains of")), "{told:?}");
    assert_eq!(told.last().map(String::as_str), Some("bufwise: stopped"));
}

#[test]
fn bad_targets_and_times_are_one_line() {
    for (arguments, status, words) in [
        (&["probe"][..], 2, "HOST[:PORT]"),
        (&["probe", "a b"], 2, "HOST:PORT"),
        (&["probe", "host:0"], 2, "HOST:PORT"),
        (&["probe", "127.0.0.1", "--every", "1s"], 2, "5s to 3600s"),
        (&["probe", "127.0.0.1", "--for", "60s"], 2, "--every"),
        (&["probe", "127.0.0.1", "--serve"], 2, "cannot be used"),
        (&["probe", "--serve", "localhost"], 2, "192.0.2.1:2122"),
        (&["probe", "127.0.0.1:1"], 1, "cannot connect to 127.0.0.1:1"),
        (&["probe", "--serve", "198.51.100.1"], 1, "cannot listen on 198.51.100.1:2122"),
    ] {
        let line = only_error(&run(arguments), status);
        assert!(line.contains(words), "{arguments:?}: {line}");
    }
}
