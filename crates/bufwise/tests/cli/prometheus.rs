//! A real Prometheus scrapes a daemon: the series exist, agree with `ls`, and answer the alert rules and every query of
//! docs/grafana-dashboard.json.

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::Duration;

use bufwise_lab::spec::PathSpec;
use bufwise_lab::testbed::Testbed;
use serde_json::Value;
use tempfile::TempDir;

use crate::metrics::of_prometheus;
use crate::place::{Daemon, Net, TestGroup, Transfer};
use crate::run::{patience, root, run, within};

const DAEMON: &str = "127.0.0.1:9847";
const PROMETHEUS: &str = "127.0.0.1:9090";
/// Value of the dashboard's variable `instance`: all hosts.
const EVERY_HOST: &str = ".+";
/// Longest time until Prometheus has started and has rates over several scrapes, of one per second.
const PATIENCE: Duration = Duration::from_secs(60);

/// A Prometheus server in a namespace, which scrapes the daemon there.
struct Prometheus<'a> {
    child: Child,
    net: &'a Net,
    _data: TempDir,
}

impl<'a> Prometheus<'a> {
    fn start(program: &Path, net: &'a Net) -> Self {
        let data = tempfile::tempdir().unwrap();
        let configuration = data.path().join("prometheus.yml");
        let rules = documented("alerts.yml").canonicalize().unwrap();
        let text = format!(
            "global: {{scrape_interval: 1s, evaluation_interval: 1s}}\nrule_files: [{}]\nscrape_configs:\n  - job_name: \
             bufwise\n    static_configs: [{{targets: [\"{DAEMON}\"]}}]\n",
            rules.display()
        );
        fs::write(&configuration, text).unwrap();
        let mut command = net.command(program.to_str().unwrap());
        command.arg(format!("--config.file={}", configuration.display()));
        command.arg(format!("--storage.tsdb.path={}", data.path().join("data").display()));
        command.arg(format!("--web.listen-address={PROMETHEUS}"));
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        Self { child, net, _data: data }
    }

    /// Returns the answer to a request of its HTTP interface; `None` while it does not answer.
    fn get(&self, path: &str) -> Option<Value> {
        let mut stream = self.net.inside(|| TcpStream::connect(PROMETHEUS)).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // With HTTP 1.0 the answer is not chunked.
        write!(stream, "GET /api/v1/{path} HTTP/1.0\r\nHost: {PROMETHEUS}\r\n\r\n").ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let body: Value = serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()?;
        assert!(body["status"] != "error", "{path}: {body}");
        Some(body["data"].clone())
    }

    /// Returns the values of a query that are numbers.
    fn values(&self, query: &str) -> Vec<f64> {
        let Some(data) = self.get(&format!("query?query={}", encoded(query))) else { return Vec::new() };
        let value = |one: &Value| one["value"][1].as_str().and_then(|text| text.parse::<f64>().ok());
        let all = data["result"].as_array().unwrap().iter().filter_map(value);
        all.filter(|value| value.is_finite()).collect()
    }

    /// Waits until a query returns one value for which `right` holds.
    fn says(&self, query: &str, mut right: impl FnMut(f64) -> bool) {
        let mut seen = Vec::new();
        within(patience(PATIENCE), query, || {
            seen = self.values(query);
            seen.len() == 1 && right(seen[0])
        });
    }
}

impl Drop for Prometheus<'_> {
    fn drop(&mut self) {
        let _over = self.child.kill();
        self.child.wait().unwrap();
    }
}

fn documented(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(name)
}

/// Encodes a query for a URL.
fn encoded(query: &str) -> String {
    query.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn dashboard() -> Value {
    serde_json::from_slice(&fs::read(documented("grafana-dashboard.json")).unwrap()).unwrap()
}

/// Returns each query of the dashboard with its panel's title; variables are replaced as Grafana does.
fn queries(dashboard: &Value) -> Vec<(String, String)> {
    let panels = dashboard["panels"].as_array().unwrap().iter();
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().unwrap().to_owned();
        let targets = panel["targets"].as_array().unwrap().clone();
        targets.into_iter().map(move |target| {
            let text = target["expr"].as_str().unwrap();
            assert!(text.contains("instance=~\"$instance\""), "{title} is of the chosen hosts: {text}");
            let text = text.replace("$instance", EVERY_HOST).replace("$__rate_interval", "5s");
            assert!(!text.contains('$'), "{title}: a variable that is unknown: {text}");
            (title.clone(), text)
        })
    };
    panels.flat_map(of_panel).collect()
}

/// Whether the kernel measures the cost of BPF programs: a setting of the whole machine, which tests do not change.
fn counts_cost() -> bool {
    fs::read_to_string("/proc/sys/kernel/bpf_stats_enabled").is_ok_and(|text| text.trim() == "1")
}

fn listed(daemon: &Daemon) -> Value {
    let output = run(&["ls", "--all", "--json", "--socket", &daemon.socket()]);
    assert!(output.status.success(), "{output:?}");
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn the_dashboard_is_one_that_grafana_can_place_and_has_what_operators_ask_for() {
    let dashboard = dashboard();
    let panels = dashboard["panels"].as_array().unwrap();
    let mut taken = std::collections::BTreeSet::new();
    for (panel, number) in panels.iter().zip(1..) {
        assert_eq!(panel["id"], number, "each has a number of its own: {}", panel["title"]);
        let place = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(place("x") + place("w") <= 24, "the grid has 24 columns: {}", panel["title"]);
        for x in place("x")..place("x") + place("w") {
            for y in place("y")..place("y") + place("h") {
                assert!(taken.insert((x, y)), "two panels overlap at {x}, {y}: {}", panel["title"]);
            }
        }
        assert!(panel["description"].as_str().is_some_and(|text| text.ends_with('.')), "{}", panel["title"]);
    }
    let all: String = queries(&dashboard).into_iter().map(|(_, query)| query + "\n").collect();
    for name in [
        "memory_held",
        "memory_allowed",
        "limited_by",
        "round_trip_over_base",
        "waste",
        "decisions",
        "errors",
        "engine_seconds",
    ] {
        assert!(all.contains(name), "{name}: {all}");
    }
}

#[test]
fn root_prometheus_scrapes_a_daemon_and_every_query_of_the_dashboard_has_data() {
    let Some(_alone) = root() else { return };
    let Some(program) = of_prometheus("prometheus") else { return };
    let path = PathSpec {
        rate: Some("20mbit".parse().unwrap()),
        rtt: "20ms".parse().unwrap(),
        queue: Some("60ms".parse().unwrap()),
        congestion_control: Some("cubic".to_owned()),
        ..PathSpec::default()
    };
    let testbed = Testbed::start(&[path]).unwrap();
    let (here, there) = (Net::of(&testbed.hosts[0].a), Net::of(&testbed.hosts[0].b));
    let (group, other) = (TestGroup::new(), TestGroup::new());
    let server = other.spawn(&there, "exec iperf3 -s -1");
    there.listens();
    let _transfer = Transfer([server, group.spawn(&here, "exec iperf3 -c 198.18.0.2 -t 3600")]);
    let daemon = Daemon::ready(&here, &["--cgroup", &group.path(), "--memory", "8MiB", "--metrics", DAEMON]);
    let prometheus = Prometheus::start(&program, &here);

    prometheus.says("up{job=\"bufwise\"}", |value| value > 0.5);
    // The series agree with `ls`.
    let same =
        |key: &str, value: f64| (listed(&daemon)["summary"][key].as_f64().unwrap() - value).abs() < 0.1;
    prometheus.says("bufwise_memory_budget_bytes{direction=\"send\"}", |value| same("budget_bytes", value));
    prometheus.says("sum(bufwise_connections{policy!=\"none\"})", |value| same("sized_connections", value));
    // The limits follow the path, and a scrape is up to two seconds old.
    prometheus.says("sum(bufwise_memory_allowed_bytes)", |value| {
        let all = listed(&daemon)["connections"].as_array().unwrap().clone();
        let sized = all.iter().filter(|one| !one["policy"].is_null());
        let limits = sized.flat_map(|one| [&one["send_buffer_bytes"], &one["receive_buffer_bytes"]]);
        let sum: f64 = limits.map(|limit| limit.as_f64().unwrap()).sum();
        sum > 0.0 && (0.9..1.1).contains(&(value / sum))
    });
    for (title, query) in queries(&dashboard()) {
        if query.contains("bufwise_engine_") && !counts_cost() {
            assert!(
                prometheus.values(&query).is_empty(),
                "{title}: what is not counted is not shown: {query}"
            );
            continue;
        }
        within(patience(PATIENCE), &format!("{title} has data: {query}"), || {
            !prometheus.values(&query).is_empty()
        });
    }
    let rules = prometheus.get("rules").unwrap();
    let rules = rules["groups"][0]["rules"].as_array().unwrap().clone();
    assert!(rules.len() >= 7 && rules.iter().all(|rule| rule["health"] == "ok"), "{rules:#?}");
}
