//! `fit` over an emulated path with a queue of 480 ms: an unmodified program keeps its rate, and the queue stays empty.

use std::fs;
use std::sync::OnceLock;

use serde_json::Value;

use crate::run::{one_of_three, root, run, until_valid};

/// Runs the program without privilege, through a descriptor, because another user may not reach its path.
const AS_NOBODY: &str =
    "setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all -- /proc/self/fd/9";

/// Runs iperf3 for 4 s from a CUBIC sender over 50 Mbit/s and 40 ms, and a queue of 480 ms. The arguments are put before the
/// server's and the client's command; returns the report.
fn transfer(server: &str, client: &str) -> Value {
    transfer_over(&["--queue", "3MB"], server, client)
}

/// The same over another queue.
pub(crate) fn transfer_over(queue: &[&str], server: &str, client: &str) -> Value {
    let attempt = || {
        let file = tempfile::NamedTempFile::new().unwrap();
        let json = file.path().to_str().unwrap();
        let server = format!("{server} iperf3 -s -1");
        let client = format!("{client} iperf3 -c 198.18.0.2 -t 4 -J");
        let path = ["lab", "path", "--rate", "50mbit", "--rtt", "40ms", "--rmem", "64MB", "--wmem", "64MB"];
        let programs = ["--cc", "cubic", "--server", &server, "--client", &client, "--json", json];
        let output = run(&[&path, queue, &programs].concat());
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

/// Returns the figures without bufwise; measured once, by the test that comes first.
fn of_the_kernel() -> (f64, f64) {
    static FIGURES: OnceLock<(f64, f64)> = OnceLock::new();
    *FIGURES.get_or_init(|| figures(&transfer("", "")))
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
    let kernel = of_the_kernel();
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
    let kernel = of_the_kernel();
    let words = format!("exec 9<{bufwise}; exec {AS_NOBODY} run --policy fit,kernel --");
    let sender = transfer("", &words);
    assert_fits(figures(&sender), kernel);
    assert_holds_little(&sender);
}

/// A peer whose window stays as it is, as iperf3's does in the first flights, is acknowledged in TCP's fast path, which makes no
/// callback. A sender that missed these acknowledgements overflowed the queue in each run, and had 22 Mbit/s. One of three runs
/// has to do well, because a pause of the emulator overflows such a queue, too.
#[test]
fn root_fit_at_the_sender_knows_the_path_before_a_short_queue_overflows() {
    let Some(_alone) = root() else { return };
    let client = format!("{} run --engine kernel --policy fit,kernel --", env!("CARGO_BIN_EXE_bufwise"));
    let rate = || figures(&transfer_over(&["--queue", "bdp/8"], "", &client)).0;
    one_of_three(rate, |&rate| rate > 42.0).unwrap_or_else(|rates| panic!("{rates:?} Mbit/s"));
}

/// On a path that loses a packet now and then, the window grows by what arrives after the hole. If the window stood still, the
/// sender would send all of that at once when the hole is filled: 78 to 109 packets were dropped then, in each run. One of three
/// runs has to do well, because a pause of the emulator overflows this queue of 10 ms, too.
#[test]
fn root_a_lost_packet_at_fits_receiver_ends_in_no_burst() {
    let Some(_alone) = root() else { return };
    let bufwise = env!("CARGO_BIN_EXE_bufwise");
    for engine in ["kernel", "user"] {
        let server = format!("{bufwise} run --engine {engine} --policy kernel,fit --");
        let dropped = || {
            let report = transfer_over(&["--queue", "bdp/4", "--loss", "0.0003"], &server, "");
            let link = &report["link"]["a_to_b"];
            let [lost, dropped] = ["drops_random", "drops"].map(|what| link[what].as_u64().unwrap());
            assert!(lost > 0, "the path has lost packets: {link}");
            dropped
        };
        one_of_three(dropped, |&dropped| dropped < 40)
            .unwrap_or_else(|runs| panic!("{engine}: {runs:?} packets dropped by the queue"));
    }
}

/// Fetches six documents of 1 MB, each over a new connection, over 50 Mbit/s, 40 ms and a queue of one product; returns the
/// response time of each (ms).
fn documents(client: &str) -> Vec<f64> {
    let bufwise = env!("CARGO_BIN_EXE_bufwise");
    let attempt = || {
        let out = tempfile::tempdir().unwrap();
        let [json, times] =
            ["run.json", "times.json"].map(|name| out.path().join(name).display().to_string());
        let server = format!("{bufwise} lab document --serve 1000000 --port 5201");
        let fetch = format!("{bufwise} lab document --fetch 6 --host 198.18.0.2 --port 5201");
        let client = format!("{client} {fetch} >{times}");
        let output = run(&[
            "lab", "path", "--rate", "50mbit", "--rtt", "40ms", "--queue", "bdp", "--cc", "cubic",
            "--server", &server, "--client", &client, "--json", &json,
        ]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let read = |file: &str| serde_json::from_slice::<Value>(&fs::read(file).unwrap()).unwrap();
        (read(&json), read(&times))
    };
    let (_, times) = until_valid(attempt, |(report, _)| stalled(report));
    times["response_s"].as_array().unwrap().iter().map(|one| one.as_f64().unwrap() * 1e3).collect()
}

/// The first connection to a peer opens its window by small steps, which costs two to three round trips, and shows that the queue has
/// room. The later ones have longer steps: a document comes as soon as from the kernel, give or take a round trip.
#[test]
fn root_fit_at_the_receiver_remembers_what_a_peers_path_took() {
    let Some(_alone) = root() else { return };
    let bufwise = env!("CARGO_BIN_EXE_bufwise");
    let least = |times: &[f64]| times.iter().copied().fold(f64::INFINITY, f64::min);
    let kernel = least(&documents(""));
    let fit = documents(&format!("{bufwise} run --engine kernel --policy kernel,fit --"));
    assert!(fit[0] > kernel + 60.0, "{fit:?} ms, {kernel} ms without: the first has care");
    assert!(least(&fit[2..]) < kernel + 40.0, "{fit:?} ms, {kernel} ms without");
}
