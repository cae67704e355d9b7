//! `bufwise run`: the connections of a command are sized by the policies, within the memory, and reported.

use std::fs;
use std::process::Output;

use serde_json::Value;

use crate::run::{PROGRAM, root, run, text, until_valid, why_invalid};

fn number(value: &Value, pointer: &str) -> f64 {
    value
        .pointer(pointer)
        .and_then(Value::as_f64)
        .unwrap_or_else(|| panic!("no number at {pointer}: {value}"))
}

/// Runs a tuned command on one host of a path; returns the report on the command and that on the path.
fn over_a_path(path: &[&str], server: &str, client: &str) -> (Value, Value) {
    until_valid(|| attempt(path, server, client), |(_, path)| why_invalid(path))
}

fn attempt(path: &[&str], server: &str, client: &str) -> (Value, Value) {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (on_run, on_path) = (file("run.json"), file("path.json"));
    let expand = |text: &str| {
        text.replace("RUN", &format!("{PROGRAM} run --json {on_run}")).replace("REPORT", &on_run)
    };
    let (server, client) = (expand(server), expand(client));
    let fixed = ["--json", &on_path, "--server", &server, "--client", &client];
    let output = run(&[&["lab", "path"], path, &fixed].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = |path: &str| serde_json::from_slice(&fs::read(path).unwrap()).expect("the report is JSON");
    (json(&on_run), json(&on_path))
}

/// Returns the connection that moved most bytes.
fn main_connection(report: &Value) -> &Value {
    &report["connections"][0]
}

#[test]
fn root_kernel_changes_nothing_and_says_what_limited_the_connection() {
    // The first four lists are taken whatever they cost, later ones for a 250th of the time. The first may come before the data.
    const LISTINGS: usize = 3;
    let Some(_alone) = root() else { return };
    let listed = |report: &Value| main_connection(report)["buffers"].as_array().map_or(0, Vec::len);
    let rarely = |report: &Value| {
        let count = listed(report);
        (count < LISTINGS).then(|| format!("sockets were listed {count} times: the machine paused for long"))
    };
    // 1 MB of send buffer is less than the path's 5 MB.
    let path = ["--rate", "400mbit", "--rtt", "100ms", "--wmem", "1MB", "--rmem", "32MB"];
    let (report, path) = until_valid(
        || attempt(&path, "iperf3 -s -1", "RUN --policy kernel -- iperf3 -c 198.18.0.2 -t 3 -J"),
        |(report, path)| why_invalid(path).or_else(|| rarely(report)),
    );
    let connection = main_connection(&report);
    assert_eq!((&report["status"], &report["policy"]["send"]), (&0.into(), &"kernel".into()));
    assert_eq!((&report["engine"], &report["engine_reason"]), (&"kernel".into(), &Value::Null));
    assert_eq!((&connection["peer"], &connection["direction"]), (&"198.18.0.2:5201".into(), &"send".into()));
    assert_eq!(
        (number(connection, "/tuned/send_changes"), number(connection, "/tuned/receive_changes")),
        (0.0, 0.0)
    );
    let goodput = number(connection, "/goodput_bps");
    let iperf3 = number(&path, "/goodput_bps");
    assert!((goodput / iperf3 - 1.0).abs() < 0.2, "{goodput} for {iperf3}");
    assert!(number(connection, "/min_rtt_s") >= 0.1 && number(connection, "/srtt_s") >= 0.1);
    let share = |cause: &str| number(connection, &format!("/limited_by/{cause}"));
    let sum: f64 = ["application", "send_buffer", "receive_window", "congestion_window", "path"]
        .iter()
        .map(|c| share(c))
        .sum();
    assert!((sum - 1.0).abs() < 1e-6);
    assert!(share("send_buffer") > 0.5, "{}", connection["limited_by"]);
    assert!(connection["advice"].as_str().unwrap().contains("--policy abt"), "{}", connection["advice"]);
    let buffers = connection["buffers"].as_array().unwrap();
    assert!(
        buffers.len() >= LISTINGS && buffers.iter().all(|point| number(point, "/send_buffer_bytes") <= 1e6)
    );
}

#[test]
fn root_abt_grows_the_send_buffer_beyond_the_hosts_maxima() {
    let Some(_alone) = root() else { return };
    let (report, _) = over_a_path(
        &["--rate", "400mbit", "--rtt", "100ms", "--wmem", "1MB", "--rmem", "32MB"],
        "iperf3 -s -1",
        "RUN --policy abt -- iperf3 -c 198.18.0.2 -t 3 -J",
    );
    let connection = main_connection(&report);
    // Without bufwise the kernel sends at most 1 MB per 100 ms: 80 Mbit/s.
    assert!(number(connection, "/goodput_bps") > 120e6, "{}", connection["goodput_bps"]);
    let maximum: f64 = fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap().trim().parse().unwrap();
    let largest = number(connection, "/tuned/send_buffer_bytes");
    assert!(largest > 2.0 * maximum, "{largest}: wmem_max is {maximum}");
    assert!(number(connection, "/tuned/send_changes") >= 3.0);
    assert_eq!(connection["tuned"]["receive_window_bytes"], Value::Null);
}

#[test]
fn root_fixed_holds_the_buffer_and_with_it_the_rate() {
    let Some(_alone) = root() else { return };
    let (report, path) = over_a_path(
        &["--rate", "100mbit", "--rtt", "40ms"],
        "iperf3 -s -1",
        "RUN --policy fixed:64KiB -- iperf3 -c 198.18.0.2 -t 2 -J",
    );
    assert_eq!(main_connection(&report)["tuned"]["send_buffer_bytes"], 2 * 65_536);
    let senders = path["samples"].as_array().unwrap().iter();
    let senders: Vec<_> = senders
        .filter(|s| s["host"] == "a" && number(s, "/bytes_acked") > 1e5)
        .map(|s| s["sndbuf"].clone())
        .collect();
    assert!(senders.len() >= 10 && senders.iter().all(|size| *size == 2 * 65_536), "{senders:?}");
    // At most 128 KiB of memory per round trip, four fifths of which are payload, and one skb begun beyond that.
    let full = 131_072.0 * 8.0 / 0.040;
    assert!((0.7 * full..1.3 * full).contains(&number(&path, "/goodput_bps")), "{}", path["goodput_bps"]);
}

/// Returns the sender's mean round trip after the first 3 s, ms.
fn settled_round_trip(path: &Value) -> f64 {
    let samples = path["samples"].as_array().unwrap().iter();
    let late = samples.filter(|s| s["host"] == "b" && number(s, "/t") > 3.0);
    let rtts: Vec<f64> =
        late.filter(|s| number(s, "/bytes_acked") > 1e6).map(|s| number(s, "/srtt_us") / 1e3).collect();
    assert!(rtts.len() > 10, "{}", rtts.len());
    rtts.iter().sum::<f64>() / rtts.len() as f64
}

#[test]
fn root_sobas_holds_the_window_so_that_no_queue_stands() {
    let Some(_alone) = root() else { return };
    let (report, path) = over_a_path(
        &["--rate", "50mbit", "--rtt", "40ms", "--queue", "400ms", "--cc", "cubic"],
        "iperf3 -s -1",
        "RUN --policy sobas -- iperf3 -c 198.18.0.2 -R -t 5 -J",
    );
    let connection = main_connection(&report);
    assert_eq!(connection["direction"], "receive");
    let window = number(connection, "/tuned/receive_window_bytes");
    let (goodput, round_trip) = (number(connection, "/goodput_bps"), settled_round_trip(&path));
    // The BDP is 239 KB of payload, and the window starts at 1.2 times that (Prasad 2004, equation 16): the queue may
    // add a fifth of the round trip, where CUBIC alone adds 200 ms and more. The start takes half a second of five.
    assert!((0.9..1.3).contains(&(window / 239e3)), "{window}");
    assert!(goodput > 0.9 * 47.8e6, "{goodput}");
    assert!(round_trip < 1.25 * 40.0, "{round_trip}");
}

#[test]
fn root_drs_opens_the_window_where_the_kernels_own_tuning_is_off() {
    let Some(_alone) = root() else { return };
    let path = ["--rate", "100mbit", "--rtt", "80ms", "--wmem", "16MB"];
    let off = "sysctl -q net.ipv4.tcp_moderate_rcvbuf=0 net.ipv4.tcp_rmem='4096 65536 65536'; ";
    let through = |policy: &str| {
        let client = format!("{off} RUN --policy {policy} -- iperf3 -c 198.18.0.2 -R -t 3 -J");
        let (report, _) = over_a_path(&path, "iperf3 -s -1", &client);
        number(main_connection(&report), "/goodput_bps")
    };
    let (kernel, drs) = (through("kernel"), through("drs"));
    // A buffer of 64 KiB offers a window of between half and all of it: 3.3 to 6.6 Mbit/s. The path carries 95 Mbit/s,
    // and slow start takes half a second of three.
    assert!((3.2e6..6.6e6).contains(&kernel), "{kernel}");
    assert!(drs > 65e6, "{drs}");
}

#[test]
fn root_buffers_that_the_program_sets_are_left_alone_unless_told_otherwise() {
    let Some(_alone) = root() else { return };
    let path = ["--rate", "100mbit", "--rtt", "20ms"];
    let through = |more: &str| {
        let client = format!("RUN {more} --policy abt,drs -- iperf3 -c 198.18.0.2 -w 100K -t 1 -J");
        over_a_path(&path, "iperf3 -s -1", &client).0
    };
    let report = through("");
    let tuned = &main_connection(&report)["tuned"];
    assert_eq!((&tuned["application_set_send_buffer"], &tuned["send_changes"]), (&true.into(), &0.into()));
    assert_eq!(
        (&tuned["application_set_receive_buffer"], &tuned["receive_changes"]),
        (&true.into(), &0.into())
    );
    let report = through("--override");
    assert!(number(main_connection(&report), "/tuned/send_changes") > 0.0);
}

#[test]
fn root_servers_and_ipv4_peers_of_ipv6_sockets_are_tuned_too() {
    let Some(_alone) = root() else { return };
    // iperf3 listens on an IPv6 socket. The report is whole when its only line has ended.
    let (report, _) = over_a_path(
        &["--rate", "100mbit", "--rtt", "20ms"],
        "RUN --policy abt,sobas -- iperf3 -s -1",
        "iperf3 -c 198.18.0.2 -R -t 1 -J; until [ $(wc -l <REPORT) -eq 1 ]; do sleep 0.01; done",
    );
    let connection = main_connection(&report);
    let peer = connection["peer"].as_str().unwrap();
    assert!(peer.starts_with("198.18.0.1:"), "{peer}");
    assert!(number(connection, "/tuned/send_changes") > 0.0);
}

#[test]
fn root_many_connections_share_the_memory() {
    let Some(_alone) = root() else { return };
    let (report, _) = over_a_path(
        &["--rate", "100mbit", "--rtt", "40ms", "--queue", "1bdp"],
        "iperf3 -s -1",
        "RUN --policy abt --memory 3MiB -- iperf3 -c 198.18.0.2 -P 12 -t 4 -J",
    );
    let held = number(&report, "/held_send_peak_bytes");
    // The kernel alone holds 10 MB here. A writer may begin a buffer of 64 KB just before its share shrinks: on a
    // loaded machine, three of them at the same moment are tolerated.
    assert!(held <= 3.0 * 1_048_576.0 + 3.0 * 65_536.0, "{held} of 3 MiB");
    let connections = report["connections"].as_array().unwrap();
    let sum: f64 = connections.iter().map(|one| number(one, "/goodput_bps")).sum();
    assert!(connections.len() == 13 && sum > 70e6, "{sum} over {}", connections.len());
}

/// Serves a page over each connection, and goes on sending over a connection that asks for more. At the other end, many
/// connections stay idle after their page, and one asks for more. Prints the rate of that one.
const BESIDE_IDLE: &str = r#"
import socket, sys, threading, time
from concurrent.futures import ThreadPoolExecutor

def serve(connection):
    connection.sendall(bytes(100_000))
    if connection.recv(1):
        end = time.monotonic() + 3
        while time.monotonic() < end:
            connection.sendall(bytes(65_536))
        connection.close()

def page(number=0):
    connection = socket.create_connection(("198.18.0.2", 5000))
    left = 100_000
    while left:
        left -= len(connection.recv(left))
    return connection

if sys.argv[1] == "serve":
    listener = socket.create_server(("0.0.0.0", 5000), backlog=128)
    while True:
        threading.Thread(target=serve, args=listener.accept()[:1], daemon=True).start()
while True:
    try:
        idle = [page()]
        break
    except ConnectionRefusedError:
        time.sleep(0.05)
with ThreadPoolExecutor(20) as pool:
    idle += pool.map(page, range(60))
# At rest is who was silent for five seconds.
time.sleep(6)
busy = page()
began, moved = time.monotonic(), 0
busy.send(b"x")
while data := busy.recv(1 << 20):
    moved += len(data)
print("rate", moved * 8 / (time.monotonic() - began))
"#;

/// Returns why a rate over three seconds is invalid: pauses of the emulator may take a tenth of them.
fn why_paused(path: &Value) -> Option<String> {
    let paused = number(path, "/paused_ms");
    (paused > 300.0).then(|| format!("paused for {paused} ms"))
}

#[test]
fn root_idle_connections_leave_the_memory_to_a_busy_one() {
    let Some(_alone) = root() else { return };
    if bufwise_trial::program("python3").is_none() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("beside_idle.py");
    fs::write(&script, BESIDE_IDLE).unwrap();
    let python = format!("python3 {}", script.display());
    let under = |policy: &str| format!("{PROGRAM} run --policy {policy} --memory 4MiB --");
    // Sixty windows of 29 KB would be all of the memory, at either end, and leave a busy sender 55 KB: 5 Mbit/s. Both ends are tuned:
    // either one alone would hold the rate down.
    let server = format!("{} {python} serve", under("abt"));
    let client = format!("{} {python} get", under("drs"));
    let json = directory.path().join("path.json");
    let json = json.to_str().unwrap();
    let measure = || {
        let path = ["lab", "path", "--rate", "100mbit", "--rtt", "40ms", "--queue", "1bdp", "--json", json];
        let shown = run(&[&path[..], &["--server", &server, "--client", &client]].concat());
        assert!(shown.status.success(), "{}", text(&shown.stderr));
        (shown, serde_json::from_slice(&fs::read(json).unwrap()).unwrap())
    };
    let (shown, _) = until_valid(measure, |(_, path): &(Output, Value)| why_paused(path));
    let said = text(&shown.stdout);
    let rate = said.lines().find_map(|line| line.split_once("rate ")?.1.trim().parse::<f64>().ok());
    assert!(rate > Some(60e6), "{rate:?}: {said} {}", text(&shown.stderr));
}

/// Serves one connection after the other, with both ends in this process, and sends the given number of bytes over each.
const ONE_AFTER_THE_OTHER: &str = r#"
import socket, sys
listener = socket.create_server(("127.0.0.1", 0))
for _ in range(int(sys.argv[1])):
    client = socket.create_connection(listener.getsockname())
    server, _ = listener.accept()
    server.sendall(bytes(int(sys.argv[2])))
    server.close()
    while client.recv(1 << 20):
        pass
    client.close()
"#;

#[test]
fn root_thousands_of_connections_are_counted_summed_and_listed_in_part() {
    let Some(_alone) = root() else { return };
    if bufwise_trial::program("python3").is_none() {
        return;
    }
    let report = |count: &str, bytes: &str| -> Value {
        let command = ["run", "--json", "-", "--", "python3", "-c", ONE_AFTER_THE_OTHER, count, bytes];
        let shown = run(&command);
        serde_json::from_slice(&shown.stdout)
            .unwrap_or_else(|error| panic!("{error}: {}", text(&shown.stderr)))
    };
    let counts = |report: &Value| {
        let listed = report["connections"].as_array().unwrap().len() as f64;
        let of = |pointer| number(report, pointer);
        [of("/totals/connections"), listed, of("/connections_left_out"), of("/connections_of_little")]
    };
    assert_eq!(counts(&report("1500", "1000")), [0.0, 0.0, 0.0, 3_000.0], "both ends of each");
    let long = report("1500", "20000");
    assert_eq!(counts(&long), [3_000.0, 1_000.0, 2_000.0, 0.0]);
    // SYN and FIN count as acknowledged bytes.
    assert!((30_000_000.0..=30_004_500.0).contains(&number(&long, "/totals/bytes_acked")), "{long}");
}

#[test]
fn root_fifty_connections_stay_within_little_memory() {
    let Some(_alone) = root() else { return };
    let (report, path) = over_a_path(
        &["--rate", "40mbit", "--rtt", "68ms", "--queue", "340KB"],
        "iperf3 -s -1",
        "RUN --policy abt --memory 2MiB -- iperf3 -c 198.18.0.2 -P 50 -t 4 -J",
    );
    let held = number(&report, "/held_send_peak_bytes");
    let notes = report["notes"].as_array().unwrap();
    let says = |note: &Value| note.as_str().unwrap().starts_with("meanwhile gso_max_size of ");
    assert!(notes.iter().any(says), "{notes:?}");
    // With 64 KB at once the connections hold 2.7 MB, and without bufwise 5 MB: a tenth above the budget excludes both.
    assert!(held <= 1.1 * 2.0 * 1_048_576.0, "{held} of 2 MiB");
    assert!(number(&path, "/goodput_bps") > 0.75 * 40e6, "{}", path["goodput_bps"]);
}
