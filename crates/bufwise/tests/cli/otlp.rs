//! The requests of `daemon --otlp`, parsed strictly by OpenTelemetry's schema: metrics/v1/metrics.proto in JSON.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::place::{Daemon, Net, TestGroup};
use crate::run::{only_error, patience, root, run};

/// Reads a client's request; asserts OTLP's path and content type.
fn request(stream: &TcpStream) -> Value {
    stream.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
    let mut reader = BufReader::new(stream);
    let mut head = Vec::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        match line.trim_end() {
            "" => break,
            line => head.push(line.to_ascii_lowercase()),
        }
    }
    assert_eq!(head[0], "post /v1/metrics http/1.1", "{head:?}");
    assert!(head.contains(&"content-type: application/json".to_owned()), "{head:?}");
    let length = head.iter().find_map(|line| line.strip_prefix("content-length: ")).expect("a length");
    let mut body = vec![0; length.parse().unwrap()];
    reader.read_exact(&mut body).unwrap();
    serde_json::from_slice(&body).unwrap()
}

/// Returns the fields of a message, which must be exactly `names`.
fn fields<'a, const N: usize>(message: &'a Value, names: [&str; N]) -> [&'a Value; N] {
    let map = message.as_object().unwrap_or_else(|| panic!("no message: {message}"));
    let found: BTreeSet<&str> = map.keys().map(String::as_str).collect();
    assert_eq!(found, BTreeSet::from(names), "{message}");
    names.map(|name| &map[name])
}

fn list(value: &Value) -> &Vec<Value> {
    value.as_array().unwrap_or_else(|| panic!("no list: {value}"))
}

/// Returns the only message of a list.
fn only(value: &Value) -> &Value {
    assert_eq!(list(value).len(), 1, "{value}");
    &list(value)[0]
}

/// Parses a 64-bit integer, which protobuf's JSON writes as a string.
fn integer(value: &Value) -> u64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or_else(|| panic!("no integer: {value}"))
}

/// Returns keys and values of attributes; each key may occur once.
fn attributes(value: &Value) -> Vec<(&str, &str)> {
    let of = |one| {
        let [key, value] = fields(one, ["key", "value"]);
        let [text] = fields(value, ["stringValue"]);
        (key.as_str().unwrap(), text.as_str().unwrap())
    };
    let all: Vec<_> = list(value).iter().map(of).collect();
    let keys: BTreeSet<&str> = all.iter().map(|(key, _)| *key).collect();
    assert_eq!(keys.len(), all.len(), "{value}");
    all
}

/// Returns the value of a number data point.
fn number(point: &Value, began: Option<u64>) -> f64 {
    let (time, value) = match began {
        None => {
            let [labels, time, value] = fields(point, ["attributes", "timeUnixNano", "asDouble"]);
            attributes(labels);
            (time, value)
        }
        Some(began) => {
            let [labels, since, time, value] =
                fields(point, ["attributes", "startTimeUnixNano", "timeUnixNano", "asDouble"]);
            attributes(labels);
            assert!(integer(since) <= integer(time) && integer(since) >= began, "{point}");
            (time, value)
        }
    };
    assert!(integer(time) > 1_700_000_000_000_000_000, "{point}");
    value.as_f64().unwrap()
}

/// Reads a metric by the kind of its data; returns its name and the sum of its values.
fn metric(one: &Value) -> (String, f64) {
    let name = one["name"].as_str().unwrap().to_owned();
    let kind = ["gauge", "sum", "histogram"].into_iter().find(|kind| one.get(kind).is_some()).expect("data");
    let [_, description, unit, data] = fields(one, ["name", "description", "unit", kind]);
    assert!(description.as_str().unwrap().ends_with('.') && unit.is_string(), "{one}");
    let sum = match kind {
        "gauge" => {
            let [points] = fields(data, ["dataPoints"]);
            list(points).iter().map(|point| number(point, None)).sum()
        }
        "sum" => {
            let [points, temporality, monotonic] =
                fields(data, ["dataPoints", "aggregationTemporality", "isMonotonic"]);
            assert_eq!((temporality, monotonic), (&2.into(), &true.into()));
            list(points).iter().map(|point| number(point, Some(1))).sum()
        }
        _ => {
            let [points, temporality] = fields(data, ["dataPoints", "aggregationTemporality"]);
            assert_eq!(temporality, &Value::from(2));
            let names =
                ["startTimeUnixNano", "timeUnixNano", "count", "sum", "bucketCounts", "explicitBounds"];
            let [since, time, count, sum, counts, bounds] = fields(only(points), names);
            assert!(integer(since) <= integer(time) && sum.is_f64(), "{one}");
            assert_eq!(list(counts).len(), list(bounds).len() + 1, "{one}");
            assert_eq!(list(counts).iter().map(integer).sum::<u64>(), integer(count), "{one}");
            assert!(list(bounds).is_sorted_by(|a, b| a.as_f64() < b.as_f64()), "{one}");
            integer(count) as f64
        }
    };
    (name, sum)
}

#[test]
fn a_receiver_that_bufwise_cannot_send_to_is_wrong_usage() {
    for (url, words) in [("127.0.0.1:4318", "http://"), ("https://collector:4318", "encrypts")] {
        let line = only_error(&run(&["daemon", "--cgroup", "/bufwise-no-such-group", "--otlp", url]), 2);
        assert!(line.contains(words), "{line}");
    }
}

#[test]
fn root_metrics_are_sent_and_a_receiver_that_stalls_delays_nothing() {
    let Some(_alone) = root() else { return };
    let (net, group) = (Net::new(), TestGroup::new());
    let _transfer = group.transfer(&net);
    let receiver = net.inside(|| TcpListener::bind("127.0.0.1:0").unwrap());
    let url = format!("http://{}", receiver.local_addr().unwrap());
    let arguments = [
        "--cgroup",
        &group.path(),
        "--policy",
        "fixed:80KiB",
        "--memory",
        "8MiB",
        "--otlp",
        &url,
        "--otlp-interval",
        "1s",
    ];
    let mut daemon = Daemon::ready(&net, &arguments);
    let (stream, _) = receiver.accept().unwrap();
    let request = request(&stream);

    // While the export waits for an answer, other requests to the daemon are served.
    let text = run(&["metrics", "--socket", &daemon.socket()]);
    let text = String::from_utf8(text.stdout).unwrap();
    let [all] = fields(&request, ["resourceMetrics"]);
    let [resource, scopes] = fields(only(all), ["resource", "scopeMetrics"]);
    let [resource] = fields(resource, ["attributes"]);
    assert_eq!(attributes(resource)[0], ("service.name", "bufwise"));
    let [scope, metrics] = fields(only(scopes), ["scope", "metrics"]);
    let [name, _] = fields(scope, ["name", "version"]);
    assert_eq!(name, "bufwise");
    let sent: Vec<(String, f64)> = list(metrics).iter().map(metric).collect();
    let families: Vec<&str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    assert_eq!(sent.iter().map(|(name, _)| name).collect::<Vec<_>>(), families);
    let value = |name: &str| sent.iter().find(|(one, _)| one == name).unwrap().1;
    assert!(value("bufwise_memory_budget_bytes") > 8_388_608.0, "of both directions: {sent:?}");
    assert!(value("bufwise_decisions") >= 1.0 && value("bufwise_cgroup_connections") >= 4.0, "{sent:?}");
    assert!(value("bufwise_connection_waste_bytes") >= 4.0, "{sent:?}");

    drop(stream);
    // "it answers nothing", unless this machine has stood still for the five seconds of an export.
    daemon.says(&format!("metrics to {url}/v1/metrics: not sent, and tried anew every 1 s: "));
    let began = Instant::now();
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0), "{}", daemon.log());
    assert!(began.elapsed() < patience(Duration::from_secs(10)), "{:?}", began.elapsed());
}
