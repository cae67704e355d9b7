//! The metrics as OTLP: the request `ExportMetricsServiceRequest` of OpenTelemetry, in its JSON encoding.
//!
//! Source: opentelemetry-proto 1.x, `metrics/v1/metrics.proto`, and the specification's *JSON Protobuf Encoding*: keys
//! in lowerCamelCase, 64-bit integers as texts, enumerations as numbers. Names, labels and values are those of the text
//! formats; gauges stay gauges, counters become monotonic sums, histograms explicit ones, both cumulative. A series
//! starts with the daemon, or anew when its count has fallen: after a reload the new programs count from zero. Its
//! start time is the same in each request, to the nanosecond, because a receiver takes a different one for a restart.

use std::collections::HashMap;

use bufwise_host::metrics::{Histogram, Snapshot};
use serde_json::{Value, json};

use super::families::{Family, Figures, Point, families};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u8 = 2;

/// Writes requests, and keeps the start time of each series.
#[derive(Debug)]
pub(super) struct Writer {
    /// This host's name; empty if unknown.
    host: String,
    /// For each counter's series: its last value, and its start time in ns of the Unix epoch.
    series: HashMap<String, (f64, u64)>,
    /// The daemon's start in ns of the Unix epoch, as computed for the first request (anew when the clock is set back).
    began_ns: Option<u64>,
    /// Time of the last request, ns of the Unix epoch.
    last_ns: u64,
}

impl Writer {
    /// Makes a writer for a host of that name.
    pub(super) fn new(host: String) -> Self {
        Self { host, series: HashMap::new(), began_ns: None, last_ns: 0 }
    }

    /// Returns the request with the values at `now_ns`, nanoseconds of the Unix epoch.
    pub(super) fn request(&mut self, snapshot: &Snapshot, now_ns: u64) -> Value {
        let uptime_ns = (snapshot.uptime_s * 1e9) as u64;
        // After the clock was set back, a start may lie in its future: all series begin anew.
        if now_ns < self.last_ns {
            (self.began_ns, self.series) = (None, HashMap::new());
        }
        let began_ns = *self.began_ns.get_or_insert_with(|| now_ns.saturating_sub(uptime_ns));
        let families = families(snapshot);
        let metrics: Vec<Value> =
            families.iter().map(|family| self.metric(family, began_ns, now_ns)).collect();
        self.last_ns = now_ns;
        let mut attributes =
            vec![("service.name", "bufwise"), ("service.version", snapshot.version.as_str())];
        if !self.host.is_empty() {
            attributes.push(("host.name", &self.host));
        }
        json!({ "resourceMetrics": [{
            "resource": { "attributes": attributes.into_iter().map(attribute).collect::<Vec<_>>() },
            "scopeMetrics": [{
                "scope": { "name": "bufwise", "version": snapshot.version },
                "metrics": metrics,
            }],
        }] })
    }

    fn metric(&mut self, family: &Family, began_ns: u64, now_ns: u64) -> Value {
        let mut metric = json!({ "name": family.name, "description": family.help, "unit": unit(family) });
        let (kind, data) = match &family.figures {
            Figures::Gauge(points) => {
                let points: Vec<Value> = points.iter().map(|point| number(point, None, now_ns)).collect();
                ("gauge", json!({ "dataPoints": points }))
            }
            Figures::Counter(points) => {
                let points: Vec<Value> = points
                    .iter()
                    .map(|point| {
                        let since = self.since(&family.name, point, began_ns);
                        number(point, Some(since), now_ns)
                    })
                    .collect();
                let sum = json!({
                    "dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true,
                });
                ("sum", sum)
            }
            Figures::Histogram(all) => {
                let points = [histogram(all, began_ns, now_ns)];
                ("histogram", json!({ "dataPoints": points, "aggregationTemporality": CUMULATIVE }))
            }
        };
        metric[kind] = data;
        metric
    }

    /// Returns the start time of a counter's series, ns of the Unix epoch.
    fn since(&mut self, name: &str, point: &Point, began_ns: u64) -> u64 {
        let key = format!("{name}{:?}", point.labels);
        let before = self.series.get(&key);
        let since = match before {
            Some((value, _)) if point.value < *value => self.last_ns,
            Some((_, since)) => *since,
            None => began_ns,
        };
        self.series.insert(key, (point.value, since));
        since
    }
}

/// Makes a point of a gauge, or of a counter that started at `since_ns`.
fn number(point: &Point, since_ns: Option<u64>, now_ns: u64) -> Value {
    let attributes = point.labels.iter().map(|(name, value)| attribute((name, value)));
    let mut number = json!({
        "attributes": attributes.collect::<Vec<_>>(),
        "timeUnixNano": now_ns.to_string(),
        "asDouble": point.value,
    });
    if let Some(since_ns) = since_ns {
        number["startTimeUnixNano"] = since_ns.to_string().into();
    }
    number
}

fn histogram(histogram: &Histogram, since_ns: u64, now_ns: u64) -> Value {
    let (mut before, mut bounds, mut counts) = (0, Vec::new(), Vec::new());
    for (bound, count) in histogram.cumulative() {
        counts.push((count - before).to_string());
        bounds.extend(Some(bound).filter(|bound| bound.is_finite()));
        before = count;
    }
    json!({
        "startTimeUnixNano": since_ns.to_string(),
        "timeUnixNano": now_ns.to_string(),
        "count": before.to_string(),
        "sum": histogram.sum(),
        "bucketCounts": counts,
        "explicitBounds": bounds,
    })
}

fn attribute((key, value): (&str, &str)) -> Value {
    json!({ "key": key, "value": { "stringValue": value } })
}

/// Returns the unit in UCUM notation; empty for counts.
fn unit(family: &Family) -> &'static str {
    match family.unit() {
        Some("bytes") => "By",
        Some("ratio") => "1",
        Some("seconds") => "s",
        _ if family.name.ends_with("_bytes_per_second") => "By/s",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::tests::snapshot;
    use super::super::text::{Format, render};
    use super::*;

    const NOW_NS: u64 = 1_700_000_000_123_456_789;

    fn writer() -> Writer {
        Writer::new("here".to_owned())
    }

    fn metrics(request: &Value) -> &Vec<Value> {
        request["resourceMetrics"][0]["scopeMetrics"][0]["metrics"].as_array().unwrap()
    }

    fn named<'a>(request: &'a Value, name: &str) -> &'a Value {
        metrics(request).iter().find(|metric| metric["name"] == name).unwrap()
    }

    #[test]
    fn a_request_has_the_form_of_opentelemetrys_json() {
        let request = writer().request(&snapshot(), NOW_NS);
        let resource = &request["resourceMetrics"][0]["resource"]["attributes"];
        assert_eq!(resource[0], json!({ "key": "service.name", "value": { "stringValue": "bufwise" } }));
        assert_eq!(resource[2], json!({ "key": "host.name", "value": { "stringValue": "here" } }));
        assert_eq!(
            named(&request, "bufwise_memory_waste_bytes"),
            &json!({
                "name": "bufwise_memory_waste_bytes",
                "description": "Memory that the limits allow beyond need.",
                "unit": "By",
                "gauge": { "dataPoints": [
                    { "attributes": [], "timeUnixNano": "1700000000123456789", "asDouble": 7.0 },
                ] },
            })
        );
        let decisions = &named(&request, "bufwise_decisions")["sum"];
        assert_eq!(
            (&decisions["aggregationTemporality"], &decisions["isMonotonic"]),
            (&2.into(), &true.into())
        );
        assert_eq!(
            decisions["dataPoints"][0],
            json!({
                "attributes": [{ "key": "kind", "value": { "stringValue": "send_buffer" } }],
                "startTimeUnixNano": "1699999939623456789",
                "timeUnixNano": "1700000000123456789",
                "asDouble": 8.0,
            })
        );
        let round_trip = &named(&request, "bufwise_round_trip_over_base_ratio")["histogram"];
        assert_eq!(
            round_trip["dataPoints"][0],
            json!({
                "startTimeUnixNano": "1699999939623456789",
                "timeUnixNano": "1700000000123456789",
                "count": "3", "sum": 9.75, "bucketCounts": ["2", "0", "1"], "explicitBounds": [1.5, 3.0],
            })
        );
        let units = ["bufwise_prefix_goodput_bytes_per_second", "bufwise_uptime_seconds", "bufwise_paused"];
        assert_eq!(units.map(|name| named(&request, name)["unit"].clone()), ["By/s", "s", ""]);
    }

    #[test]
    fn the_families_are_those_of_the_text_in_the_same_order() {
        let text = render(&snapshot(), Format::Openmetrics);
        let families: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        let request = writer().request(&snapshot(), NOW_NS);
        let sent: Vec<&str> =
            metrics(&request).iter().map(|metric| metric["name"].as_str().unwrap()).collect();
        assert_eq!(sent, families);
    }

    #[test]
    fn a_count_that_falls_begins_anew_after_the_last_request() {
        let mut writer = writer();
        let mut snapshot = snapshot();
        let since = |request: &Value, place: usize| {
            named(request, "bufwise_decisions")["sum"]["dataPoints"][place]["startTimeUnixNano"]
                .as_str()
                .unwrap()
                .parse::<u64>()
                .unwrap()
        };
        let first = writer.request(&snapshot, NOW_NS);
        let began = since(&first, 0);
        // The snapshot is a little older than the request, by a varying time.
        snapshot.uptime_s += 14.99;
        snapshot.counts.send_buffers = 9;
        let second = writer.request(&snapshot, NOW_NS + 15_000_000_000);
        assert_eq!(since(&second, 0), began, "it goes on");
        let of_round_trip = |request: &Value| {
            let histogram = &named(request, "bufwise_round_trip_over_base_ratio")["histogram"];
            histogram["dataPoints"][0]["startTimeUnixNano"].clone()
        };
        assert_eq!(of_round_trip(&second), of_round_trip(&first));
        snapshot.counts.send_buffers = 2;
        let third = writer.request(&snapshot, NOW_NS + 30_000_000_000);
        assert_eq!((since(&third, 0), since(&third, 1)), (NOW_NS + 15_000_000_000, began));
    }

    #[test]
    fn no_series_begins_after_its_values_where_the_clock_is_set_back() {
        const DAY_NS: u64 = 86_400_000_000_000;
        let mut writer = writer();
        let _first = writer.request(&snapshot(), NOW_NS + DAY_NS);
        let later = writer.request(&snapshot(), NOW_NS);
        for (name, kind) in [("bufwise_decisions", "sum"), ("bufwise_window_over_bdp_ratio", "histogram")] {
            let start = &named(&later, name)[kind]["dataPoints"][0]["startTimeUnixNano"];
            assert_eq!(start, "1699999939623456789", "{name}");
        }
    }
}
