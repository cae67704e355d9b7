//! `fit` over an emulated path with a queue of 480 ms: an unmodified program keeps its rate, and the queue stays empty.

use std::fs;

use serde_json::Value;

use crate::run::{root, run, until_valid};

/// Runs the program without privilege, through a descriptor, for another user may not reach its path.
const AS_NOBODY: &str =
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all -- /proc/self/fd/9";

/// Runs iperf3 for 4 s from a CUBIC sender over 50 Mbit/s and 40 ms. The arguments are put before the server's and the
/// client's command; returns the report.
fn transfer(server: &str, client: &str) -> Value {
    let attempt = || {
        let file = tempfile::NamedTempFile::new().unwrap();
        let json = file.path().to_str().unwrap();
        let server = format!("{server} iperf3 -s -1");
        let client = format!("{client} iperf3 -c 198.18.0.2 -t 4 -J");
        let output = run(&[
            "lab", "path", "--rate", "50mbit", "--rtt", "40ms", "--queue", "3MB", "--rmem", "64MB", "--wmem",
            "64MB", "--cc", "cubic", "--server", &server, "--client", &client, "--json", json,
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&fs::read(file.path()).unwrap()).expect("the report is JSON")
    };
    until_valid(attempt, stalled)
}

/// Returns why a run is invalid. Pauses of the emulator matter little with a queue of 480 ms: a fifth of a second in 4
/// s is allowed.
fn stalled(report: &Value) -> Option<String> {
    let paused = report["paused_ms"].as_f64().unwrap_or(f64::MAX);
    (paused > 200.0).then(|| format!("paused for {paused} ms"))
}

/// Returns the goodput (Mbit/s) and the sender's mean round trip (ms) after the start.
fn figures(report: &Value) -> (f64, f64) {
    let samples = report["samples"].as_array().unwrap().iter();
    let rtts: Vec<f64> = samples
        .filter(|one| one["host"] == "a" && one["bytes_acked"].as_f64() > Some(1e6))
        .filter_map(|one| one["srtt_us"].as_f64())
        .collect();
    assert!(rtts.len() > 20, "{} samples", rtts.len());
    (report["goodput_bps"].as_f64().unwrap() / 1e6, rtts.iter().sum::<f64>() / rtts.len() as f64 / 1e3)
}

/// Without bufwise, the kernel keeps some hundred milliseconds in that queue, unless its slow start ends early. The
/// capacity is 47.8 Mbit/s in payload; the start costs a part of it.
fn assert_fits((goodput, rtt): (f64, f64), (without, filled): (f64, f64)) {
    assert!(rtt < 50.0, "{rtt} ms, {filled} ms without");
    assert!(goodput > 0.8 * without, "{goodput} Mbit/s, {without} without");
}

/// Asserts the sender's memory: 250 KB are in flight, with a quarter more of memory, and 128 to 192 KB are not sent
/// yet.
fn assert_holds_little(report: &Value) {
    let samples = report["samples"].as_array().unwrap().iter().filter(|one| one["host"] == "a");
    let held = samples.filter_map(|one| one["wmem_queued"].as_u64()).max().unwrap();
    assert!((250_000..750_000).contains(&held), "{held} bytes");
}

#[test]
fn root_fit_keeps_a_deep_queue_empty_from_either_end() {
    let Some(_alone) = root() else { return };
    let bufwise = env!("CARGO_BIN_EXE_bufwise");
    let kernel = figures(&transfer("", ""));
    let sender = transfer("", &format!("{bufwise} run --engine kernel --policy fit,kernel --"));
    assert_fits(figures(&sender), kernel);
    assert_holds_little(&sender);
    let receiver = transfer(&format!("{bufwise} run --engine kernel --policy kernel,fit --"), "");
    assert_fits(figures(&receiver), kernel);
}

#[test]
fn root_fit_keeps_a_deep_queue_empty_without_privilege() {
    let Some(_alone) = root() else { return };
    let bufwise = env!("CARGO_BIN_EXE_bufwise");
    let kernel = figures(&transfer("", ""));
    let words = format!("exec 9<{bufwise}; exec {AS_NOBODY} run --policy fit,kernel --");
    let sender = transfer("", &words);
    assert_fits(figures(&sender), kernel);
    assert_holds_little(&sender);
}
