//! `get` and `put` under `--policy fit`, with a server without bufwise's extensions, over an emulated path with a queue
//! of 480 ms.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::run::{root, run, until_valid};

/// Size of the file: it takes 1.7 s at the path's rate, and half a second more with the start.
const SIZE: u64 = 20_000_000;
const BASE_MS: f64 = 50.0;

/// Transfers `SIZE` bytes over 100 Mbit/s and 50 ms with CUBIC at both ends; returns the reports on the path and on the
/// transfer.
fn transfer(command: &str) -> (Value, Value) {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name);
    let (served, own) = (at("served"), at("own"));
    for directory in [&served, &own] {
        fs::create_dir(directory).unwrap();
    }
    let from = if command == "get" { &served } else { &own };
    fs::File::create(from.join("file")).unwrap().set_len(SIZE).unwrap();
    let (bufwise, own) = (env!("CARGO_BIN_EXE_bufwise"), own.display());
    let server = format!("exec {bufwise} serve {} --writable --listen 198.18.0.2:2121", served.display());
    let url = "ftp://198.18.0.2:2121/file";
    let words = if command == "get" {
        format!("get {url} -o {own}/got")
    } else {
        format!("put {own}/file {url}.new")
    };
    let client = format!("{bufwise} {words} --policy fit --json {own}/report.json");
    let json = at("path.json");
    let output = run(&[
        "lab",
        "path",
        "--rate",
        "100mbit",
        "--rtt",
        "50ms",
        "--queue",
        "480ms",
        "--rmem",
        "64MB",
        "--wmem",
        "64MB",
        "--cc",
        "cubic",
        "--server",
        &server,
        "--client",
        &client,
        "--json",
        json.to_str().unwrap(),
    ]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let read = |path: &Path| serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    (read(&json), read(&at("own/report.json")))
}

/// Returns why a run is invalid. Pauses of the emulator matter little with such a queue: a tenth of a second in 2 s is
/// allowed.
fn stalled((path, _): &(Value, Value)) -> Option<String> {
    let paused = path["paused_ms"].as_f64().unwrap_or(f64::MAX);
    (paused > 100.0).then(|| format!("paused for {paused} ms"))
}

/// Returns the sender's mean round trip after the start, ms.
fn round_trip(path: &Value, sender: &str) -> f64 {
    let samples = path["samples"].as_array().unwrap().iter();
    let rtts: Vec<f64> = samples
        .filter(|one| one["host"] == sender && one["bytes_acked"].as_f64() > Some(1e6))
        .filter_map(|one| one["srtt_us"].as_f64())
        .collect();
    assert!(rtts.len() > 15, "{} samples", rtts.len());
    rtts.iter().sum::<f64>() / rtts.len() as f64 / 1e3
}

/// Asserts round trip and rate. Without fit the mean round trip is at least twice the base, because CUBIC fills the queue;
/// with fit it is a few percent longer than the base. At half of the path's rate, start and stalls may take as long as
/// the file.
fn assert_fits(path: &Value, report: &Value, (way, sender): (&str, &str)) {
    let rtt = round_trip(path, sender);
    assert!(rtt < 1.25 * BASE_MS, "{rtt} ms");
    assert_eq!(path["link"][way]["drops"], 0);
    let file = &report["files"][0];
    assert_eq!((&report["policy"], &file["bytes"]), (&"fit".into(), &SIZE.into()));
    assert!(file["rate_bps"].as_f64() > Some(50e6), "{file}");
}

#[test]
fn root_get_by_fit_keeps_a_deep_queue_empty() {
    let Some(_alone) = root() else { return };
    let (path, report) = until_valid(|| transfer("get"), stalled);
    assert_fits(&path, &report, ("b_to_a", "b"));
    // The BDP is 597 KB of payload (95.6 Mbit/s over 50 ms).
    let window = report["files"][0]["tuned"]["receive_window_bytes"].as_u64();
    assert!(window.is_some_and(|window| (400_000..900_000).contains(&window)), "{report}");
}

#[test]
fn root_put_by_fit_keeps_a_deep_queue_empty() {
    let Some(_alone) = root() else { return };
    let (path, report) = until_valid(|| transfer("put"), stalled);
    assert_fits(&path, &report, ("a_to_b", "a"));
    let tuned = &report["files"][0]["tuned"];
    let bound = tuned["rate_bound_bps"].as_f64();
    assert!(bound.is_some_and(|bound| (60e6..110e6).contains(&bound)), "{report}");
    assert!(tuned["fit"]["phase"].is_string(), "{report}");
}
