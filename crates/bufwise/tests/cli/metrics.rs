//! `bufwise metrics`, and the daemon's `--metrics`.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::place::{Daemon, Net, TestGroup};
use crate::run::{eventually, one_of_three, only_error, patience, root, run};

/// A request as Prometheus sends it, and one without a preferred format.
const SCRAPE: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\nAccept: application/openmetrics-text;version=1.0.0,text/plain\r\n\r\n";
const PLAIN: &str = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n";

/// Returns header and body of the response. A server that closes early resets the connection after its response.
fn exchange(mut stream: impl Read + Write, request: &[u8]) -> (String, String) {
    stream.write_all(request).unwrap();
    let mut response = Vec::new();
    let _reset = stream.read_to_end(&mut response);
    let response = String::from_utf8(response).unwrap();
    let (header, body) = response.split_once("\r\n\r\n").unwrap_or((&response, ""));
    (header.to_owned(), body.to_owned())
}

fn local(path: &Path) -> UnixStream {
    let stream = UnixStream::connect(path).unwrap();
    stream.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
    stream
}

/// Returns a sample's value.
fn value(text: &str, sample: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
    line.unwrap_or_else(|| panic!("no {sample} in {text}")).parse().unwrap()
}

/// Returns the sum of the samples that begin with `name` and contain a label.
fn sum(text: &str, name: &str, label: &str) -> f64 {
    let lines = text.lines().filter(|line| line.starts_with(name) && line.contains(label));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()).sum()
}

/// Returns the path of a program of Debian's package prometheus, unpacked by `make peers` or installed.
pub(crate) fn of_prometheus(program: &str) -> Option<PathBuf> {
    let unpacked = std::env::var_os("BUFWISE_FTP_SERVERS")
        .map_or_else(|| PathBuf::from("/opt/ftp-servers"), PathBuf::from)
        .join("prometheus/usr/bin")
        .join(program);
    bufwise_trial::found(program, [unpacked, Path::new("/usr/bin").join(program)])
}

/// Checks the text by promtool; skips this part if promtool is missing.
fn check_by_promtool(text: &str) {
    let Some(promtool) = of_prometheus("promtool") else { return };
    let mut check = Command::new(promtool);
    check.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut check = check.spawn().unwrap();
    check.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = check.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}\n{text}");
}

#[test]
fn without_a_daemon_there_are_no_metrics() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let line = only_error(&run(&["metrics", "--socket", path.to_str().unwrap()]), 1);
    assert!(line.contains("there is no daemon at"), "{line}");
}

#[test]
fn an_address_that_is_none_is_wrong_usage() {
    // No daemon starts with this group, even if all other settings are accepted.
    for place in ["9847", "unix:metrics", "localhost:9847"] {
        let line = only_error(&run(&["daemon", "--cgroup", "/bufwise-no-such-group", "--metrics", place]), 2);
        assert!(line.contains("unix:/PATH"), "{line}");
    }
}

#[test]
fn the_alert_rules_fire_when_they_should() {
    let Some(promtool) = of_prometheus("promtool") else { return };
    let cases = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cli/alerts.yml");
    let rules = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/alerts.yml");
    for arguments in [["check", "rules"], ["test", "rules"]] {
        let file = if arguments[0] == "check" { &rules } else { &cases };
        let output = Command::new(&promtool).args(arguments).arg(file).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
}

#[test]
fn root_a_daemon_tells_its_metrics_over_its_control_socket() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let daemon =
        Daemon::ready(&net, &["--cgroup", &group.path(), "--policy", "fixed:80KiB", "--memory", "8MiB"]);
    let print = |format: &str| {
        let output = run(&["metrics", "--socket", &daemon.socket(), "--format", format]);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let text = print("openmetrics");
    assert!(text.ends_with("# EOF\n"), "{text}");
    // Both ends of the data connection and of iperf3's control connection are in the group.
    assert!((sum(&text, "bufwise_connections{", "policy=\"fixed:") - 4.0).abs() < 0.1, "{text}");
    assert!(sum(&text, "bufwise_connections{", "\"unknown\"").abs() < 0.1, "causes are known: {text}");
    assert!((value(&text, "bufwise_memory_budget_bytes{direction=\"send\"}") - 8_388_608.0).abs() < 0.1);
    // At least the sizes that `fixed` has set on both ends of the data connection.
    assert!(value(&text, "bufwise_memory_allowed_bytes{direction=\"send\"}") >= 2.0 * 163_840.0, "{text}");
    assert!(value(&text, "bufwise_decisions_total{kind=\"send_buffer\"}") >= 1.0, "{text}");
    assert!(value(&text, "bufwise_decisions_total{kind=\"adopted\"}") >= 2.0, "{text}");
    assert!(value(&text, "bufwise_window_over_bdp_ratio_count") >= 1.0, "{text}");
    assert!(value(&text, "bufwise_connection_waste_bytes_count") >= 4.0, "{text}");
    let of_the_group = format!("bufwise_cgroup_connections{{cgroup=\"{}\"}}", group.path());
    assert!((value(&text, &of_the_group) - 4.0).abs() < 0.1, "{text}");
    assert!(sum(&text, "bufwise_namespace_goodput_bytes_per_second{", "") >= 1e6, "{text}");
    assert!(value(&text, "bufwise_prefix_connections{prefix=\"127.0.0.0/24\"}") >= 4.0, "{text}");
    check_by_promtool(&print("prometheus"));
    // The metrics agree with `ls`.
    let listed = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
    let listed: serde_json::Value = serde_json::from_slice(&listed.stdout).unwrap();
    let budget = listed["summary"]["budget_bytes"].as_f64().unwrap();
    assert!(
        (budget - value(&text, "bufwise_memory_budget_bytes{direction=\"send\"}")).abs() < 0.1,
        "{listed}"
    );
    let own = listed["summary"]["sized_connections"].as_f64().unwrap();
    assert!((own - sum(&text, "bufwise_connections{", "policy=\"fixed:")).abs() < 0.1, "{listed}\n{text}");
}

#[test]
fn root_metrics_are_served_at_a_unix_socket_until_the_daemon_ends() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("metrics");
    let place = format!("unix:{}", path.display());
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--metrics", &place]);
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o660);

    let (header, body) = exchange(local(&path), SCRAPE.as_bytes());
    assert!(header.starts_with("HTTP/1.1 200 OK"), "{header}");
    assert!(header.contains("Content-Type: application/openmetrics-text; version=1.0.0"), "{header}");
    assert!(
        header.contains(&format!("Content-Length: {}", body.len())) && body.ends_with("# EOF\n"),
        "{body}"
    );
    let (header, body) = exchange(local(&path), PLAIN.as_bytes());
    assert!(header.contains("Content-Type: text/plain; version=0.0.4"), "{header}");
    assert!(sum(&body, "bufwise_connections{", "policy=\"abt\"") >= 1.0, "{body}");
    check_by_promtool(&body);

    for (request, status) in [
        ("GET / HTTP/1.1\r\n\r\n", "404"),
        ("POST /metrics HTTP/1.1\r\n\r\n", "405"),
        ("{\"request\":\"restore\"}\n\n", "400"),
    ] {
        let (header, _) = exchange(local(&path), request.as_bytes());
        assert!(header.starts_with(&format!("HTTP/1.1 {status} ")), "{request:?}: {header}");
    }
    assert!(daemon.is_running(), "{}", daemon.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!path.exists());

    // The socket left by a killed daemon does not stop the next one.
    daemon.start_again(&net, &["--cgroup", &group.path(), "--metrics", &place]);
    daemon.hears("READY=1");
    daemon.signal(Signal::SIGKILL);
    daemon.wait();
    assert!(path.exists());
    daemon.start_again(&net, &["--cgroup", &group.path(), "--metrics", &place]);
    daemon.hears("READY=1");
    assert!(exchange(local(&path), PLAIN.as_bytes()).0.starts_with("HTTP/1.1 200 OK"));
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(!path.exists());
}

#[test]
fn root_slow_and_senseless_clients_keep_nobody_from_the_metrics_at_an_address() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path(), "--metrics", "127.0.0.1:9847"]);
    let connect = || net.inside(|| TcpStream::connect("127.0.0.1:9847").unwrap());
    let scrape = || {
        let stream = connect();
        stream.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
        exchange(stream, SCRAPE.as_bytes())
    };
    assert!(scrape().0.starts_with("HTTP/1.1 200 OK"));

    let mut slow: Vec<TcpStream> = Vec::new();
    let beside_them = || {
        let began = Instant::now();
        // More clients than are served at a time.
        slow = std::iter::repeat_with(|| {
            let mut slow = connect();
            slow.write_all(b"GET /met").unwrap();
            slow
        })
        .take(12)
        .collect();
        let mut senseless = connect();
        let _closed = senseless.write_all(&[0xff; 100_000]);
        let (header, body) = scrape();
        assert!(header.starts_with("HTTP/1.1 200 OK"), "{header}");
        assert!(value(&body, "bufwise_paused").abs() < 0.1);
        began.elapsed()
    };
    // Earlier than the slow clients' time-out of 3 s.
    one_of_three(beside_them, |took| *took < patience(Duration::from_secs(2)))
        .unwrap_or_else(|took| panic!("{took:?}"));
    for mut slow in slow {
        slow.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
        let mut rest = Vec::new();
        let ended = slow.read_to_end(&mut rest);
        assert!(!ended.is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock), "it is ended");
        assert!(rest.is_empty(), "without an answer");
    }
    assert!(!daemon.log().contains("unencrypted"), "{}", daemon.log());
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());

    // Listening on all interfaces causes a warning.
    daemon.start_again(&net, &["--cgroup", &group.path(), "--metrics", "0.0.0.0:9847"]);
    daemon.hears("READY=1");
    daemon.says("metrics are served at 0.0.0.0:9847 to whoever reaches it");
    eventually("it answers", || scrape().0.starts_with("HTTP/1.1 200 OK"));
}
