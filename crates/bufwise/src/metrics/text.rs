//! The metrics as text: OpenMetrics 1.0, or the older format of Prometheus (0.0.4).
//!
//! The formats differ in the heads of families, not in names and samples: OpenMetrics names a counter without `_total`
//! there, has units, and an end marker.

use std::fmt::Write;

use bufwise_host::metrics::{Histogram, Snapshot};
use clap::ValueEnum;

use super::families::{Family, Figures, Point, families};

/// How the figures are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Format {
    /// OpenMetrics 1.0
    Openmetrics,
    /// Prometheus' text format 0.0.4
    Prometheus,
}

impl Format {
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Openmetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes all metrics in `format`.
pub(super) fn render(snapshot: &Snapshot, format: Format) -> String {
    let mut page = Page { format, text: String::new() };
    families(snapshot).iter().for_each(|family| page.family(family));
    if format == Format::Openmetrics {
        page.text += "# EOF\n";
    }
    page.text
}

#[derive(Debug)]
struct Page {
    format: Format,
    text: String,
}

impl Page {
    fn family(&mut self, family: &Family) {
        let name = &family.name;
        match &family.figures {
            Figures::Gauge(points) => {
                self.head(family, name, "gauge");
                self.points(name, points);
            }
            Figures::Counter(points) => {
                let total = format!("{name}_total");
                let is_open = self.format == Format::Openmetrics;
                self.head(family, if is_open { name } else { &total }, "counter");
                self.points(&total, points);
            }
            Figures::Histogram(histogram) => {
                self.head(family, name, "histogram");
                self.histogram(name, histogram);
            }
        }
    }

    /// Writes the head of a family: help, kind and unit of the samples that follow.
    fn head(&mut self, family: &Family, name: &str, kind: &str) {
        self.line(format_args!("# HELP {name} {}", escaped(family.help)));
        self.line(format_args!("# TYPE {name} {kind}"));
        if let Some(unit) = family.unit().filter(|_| self.format == Format::Openmetrics) {
            self.line(format_args!("# UNIT {name} {unit}"));
        }
    }

    fn points(&mut self, name: &str, points: &[Point]) {
        for Point { labels, value } in points {
            let labels: Vec<String> =
                labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
            let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
            self.line(format_args!("{name}{labels} {value}"));
        }
    }

    fn histogram(&mut self, name: &str, histogram: &Histogram) {
        let mut all = 0;
        for (bound, count) in histogram.cumulative() {
            let bound = if bound.is_infinite() { "+Inf".to_owned() } else { format!("{bound:?}") };
            self.line(format_args!("{name}_bucket{{le=\"{bound}\"}} {count}"));
            all = count;
        }
        self.line(format_args!("{name}_sum {}", histogram.sum()));
        self.line(format_args!("{name}_count {all}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _infallible = writeln!(self.text, "{line}");
    }
}

/// Escapes the three characters that both formats escape in the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use bufwise_host::budget::PressureCause;
    use bufwise_host::judge::Direction;
    use bufwise_host::metrics::{
        Connections, Counts, Distributions, EngineCost, Group, Groups, Memory, PartFigures,
    };

    fn group(name: &str, connections: u64) -> Group {
        Group { name: name.to_owned(), connections, goodput_bps: 8_000_004, held_bytes: 5, waste_bytes: 6 }
    }

    /// Returns a snapshot of a daemon with one connection.
    pub(crate) fn snapshot() -> Snapshot {
        let mut distributions = Distributions {
            round_trip: Histogram::new(&[1.5, 3.0]),
            window: Histogram::new(&[1.0]),
            waste: Histogram::new(&[65_536.0]),
        };
        [1.25, 1.5, 7.0].into_iter().for_each(|value| distributions.round_trip.observe(value));
        distributions.waste.observe(65_537.0);
        Snapshot {
            version: "1.2.3".to_owned(),
            uptime_s: 60.5,
            dry_run: false,
            paused: true,
            interval_s: Some(15.0),
            connections: vec![Connections {
                direction: Direction::Send,
                policy: "a\"b\\c\nd".to_owned(),
                limited_by: "path".to_owned(),
                count: 1,
            }],
            queued_connections: 11,
            send: Memory { held_bytes: 1, allowed_bytes: 2, reserved_bytes: 13, budget_bytes: 3 },
            receive: Memory { held_bytes: 4, allowed_bytes: 5, reserved_bytes: 14, budget_bytes: 6 },
            waste_bytes: 7,
            pressure: true,
            pressure_causes: vec![PressureCause::Unread],
            untuned_connections: 12,
            parts: vec![PartFigures {
                group: "db".to_owned(),
                connections: 12,
                send: Memory { held_bytes: 13, allowed_bytes: 14, reserved_bytes: 19, budget_bytes: 15 },
                receive: Memory { held_bytes: 16, allowed_bytes: 17, reserved_bytes: 20, budget_bytes: 18 },
            }],
            groups: Groups {
                cgroups: vec![group("/a\"b", 1)],
                namespaces: vec![group("blue", 2)],
                prefixes: vec![group("198.18.0.0/24", 3), group("other", 4)],
            },
            counts: Counts { send_buffers: 8, refused_sizes: 9, ..Counts::default() },
            distributions,
            engine: Some(EngineCost { seconds: 0.25, runs: 10 }),
            history_bytes: 21,
            gathered_s: 0.002,
        }
    }

    /// Returns the lines without HELP, whose wording is free.
    fn lines(format: Format) -> String {
        let text = render(&snapshot(), format);
        text.lines().filter(|line| !line.starts_with("# HELP")).map(|line| format!("{line}\n")).collect()
    }

    #[test]
    fn each_line_of_openmetrics_is_as_its_readers_expect() {
        let expected = r#"# TYPE bufwise_build_info gauge
bufwise_build_info{version="1.2.3"} 1
# TYPE bufwise_uptime_seconds gauge
# UNIT bufwise_uptime_seconds seconds
bufwise_uptime_seconds 60.5
# TYPE bufwise_dry_run gauge
bufwise_dry_run 0
# TYPE bufwise_paused gauge
bufwise_paused 1
# TYPE bufwise_gathering_seconds gauge
# UNIT bufwise_gathering_seconds seconds
bufwise_gathering_seconds 0.002
# TYPE bufwise_history_bytes gauge
# UNIT bufwise_history_bytes bytes
bufwise_history_bytes 21
# TYPE bufwise_connections gauge
bufwise_connections{direction="send",policy="a\"b\\c\nd",limited_by="path"} 1
# TYPE bufwise_queued_connections gauge
bufwise_queued_connections 11
# TYPE bufwise_untuned_connections gauge
bufwise_untuned_connections 12
# TYPE bufwise_memory_held_bytes gauge
# UNIT bufwise_memory_held_bytes bytes
bufwise_memory_held_bytes{direction="send"} 1
bufwise_memory_held_bytes{direction="receive"} 4
# TYPE bufwise_memory_allowed_bytes gauge
# UNIT bufwise_memory_allowed_bytes bytes
bufwise_memory_allowed_bytes{direction="send"} 2
bufwise_memory_allowed_bytes{direction="receive"} 5
# TYPE bufwise_memory_reserved_bytes gauge
# UNIT bufwise_memory_reserved_bytes bytes
bufwise_memory_reserved_bytes{direction="send"} 13
bufwise_memory_reserved_bytes{direction="receive"} 14
# TYPE bufwise_memory_budget_bytes gauge
# UNIT bufwise_memory_budget_bytes bytes
bufwise_memory_budget_bytes{direction="send"} 3
bufwise_memory_budget_bytes{direction="receive"} 6
# TYPE bufwise_memory_waste_bytes gauge
# UNIT bufwise_memory_waste_bytes bytes
bufwise_memory_waste_bytes 7
# TYPE bufwise_memory_pressure gauge
bufwise_memory_pressure{cause="send-held"} 0
bufwise_memory_pressure{cause="send-demand"} 0
bufwise_memory_pressure{cause="receive-held"} 0
bufwise_memory_pressure{cause="unread"} 1
bufwise_memory_pressure{cause="receive-demand"} 0
bufwise_memory_pressure{cause="host"} 0
# TYPE bufwise_group_connections gauge
bufwise_group_connections{group="db"} 12
# TYPE bufwise_group_memory_held_bytes gauge
# UNIT bufwise_group_memory_held_bytes bytes
bufwise_group_memory_held_bytes{group="db",direction="send"} 13
bufwise_group_memory_held_bytes{group="db",direction="receive"} 16
# TYPE bufwise_group_memory_budget_bytes gauge
# UNIT bufwise_group_memory_budget_bytes bytes
bufwise_group_memory_budget_bytes{group="db",direction="send"} 15
bufwise_group_memory_budget_bytes{group="db",direction="receive"} 18
# TYPE bufwise_cgroup_connections gauge
bufwise_cgroup_connections{cgroup="/a\"b"} 1
# TYPE bufwise_cgroup_goodput_bytes_per_second gauge
bufwise_cgroup_goodput_bytes_per_second{cgroup="/a\"b"} 1000000.5
# TYPE bufwise_cgroup_memory_held_bytes gauge
# UNIT bufwise_cgroup_memory_held_bytes bytes
bufwise_cgroup_memory_held_bytes{cgroup="/a\"b"} 5
# TYPE bufwise_cgroup_memory_waste_bytes gauge
# UNIT bufwise_cgroup_memory_waste_bytes bytes
bufwise_cgroup_memory_waste_bytes{cgroup="/a\"b"} 6
# TYPE bufwise_namespace_connections gauge
bufwise_namespace_connections{namespace="blue"} 2
# TYPE bufwise_namespace_goodput_bytes_per_second gauge
bufwise_namespace_goodput_bytes_per_second{namespace="blue"} 1000000.5
# TYPE bufwise_namespace_memory_held_bytes gauge
# UNIT bufwise_namespace_memory_held_bytes bytes
bufwise_namespace_memory_held_bytes{namespace="blue"} 5
# TYPE bufwise_namespace_memory_waste_bytes gauge
# UNIT bufwise_namespace_memory_waste_bytes bytes
bufwise_namespace_memory_waste_bytes{namespace="blue"} 6
# TYPE bufwise_prefix_connections gauge
bufwise_prefix_connections{prefix="198.18.0.0/24"} 3
bufwise_prefix_connections{prefix="other"} 4
# TYPE bufwise_prefix_goodput_bytes_per_second gauge
bufwise_prefix_goodput_bytes_per_second{prefix="198.18.0.0/24"} 1000000.5
bufwise_prefix_goodput_bytes_per_second{prefix="other"} 1000000.5
# TYPE bufwise_prefix_memory_held_bytes gauge
# UNIT bufwise_prefix_memory_held_bytes bytes
bufwise_prefix_memory_held_bytes{prefix="198.18.0.0/24"} 5
bufwise_prefix_memory_held_bytes{prefix="other"} 5
# TYPE bufwise_prefix_memory_waste_bytes gauge
# UNIT bufwise_prefix_memory_waste_bytes bytes
bufwise_prefix_memory_waste_bytes{prefix="198.18.0.0/24"} 6
bufwise_prefix_memory_waste_bytes{prefix="other"} 6
# TYPE bufwise_decisions counter
bufwise_decisions_total{kind="send_buffer"} 8
bufwise_decisions_total{kind="receive_window"} 0
bufwise_decisions_total{kind="adopted"} 0
bufwise_decisions_total{kind="given_back"} 0
# TYPE bufwise_errors counter
bufwise_errors_total{kind="size"} 9
bufwise_errors_total{kind="sweep"} 0
bufwise_errors_total{kind="bound"} 0
bufwise_errors_total{kind="reload"} 0
# TYPE bufwise_engine_seconds counter
# UNIT bufwise_engine_seconds seconds
bufwise_engine_seconds_total 0.25
# TYPE bufwise_engine_runs counter
bufwise_engine_runs_total 10
# TYPE bufwise_round_trip_over_base_ratio histogram
# UNIT bufwise_round_trip_over_base_ratio ratio
bufwise_round_trip_over_base_ratio_bucket{le="1.5"} 2
bufwise_round_trip_over_base_ratio_bucket{le="3.0"} 2
bufwise_round_trip_over_base_ratio_bucket{le="+Inf"} 3
bufwise_round_trip_over_base_ratio_sum 9.75
bufwise_round_trip_over_base_ratio_count 3
# TYPE bufwise_window_over_bdp_ratio histogram
# UNIT bufwise_window_over_bdp_ratio ratio
bufwise_window_over_bdp_ratio_bucket{le="1.0"} 0
bufwise_window_over_bdp_ratio_bucket{le="+Inf"} 0
bufwise_window_over_bdp_ratio_sum 0
bufwise_window_over_bdp_ratio_count 0
# TYPE bufwise_connection_waste_bytes histogram
# UNIT bufwise_connection_waste_bytes bytes
bufwise_connection_waste_bytes_bucket{le="65536.0"} 0
bufwise_connection_waste_bytes_bucket{le="+Inf"} 1
bufwise_connection_waste_bytes_sum 65537
bufwise_connection_waste_bytes_count 1
# EOF
"#;
        assert_eq!(lines(Format::Openmetrics), expected);
    }

    #[test]
    fn the_older_format_has_the_same_samples_under_the_counters_whole_names() {
        let samples = |text: &str| text.lines().filter(|line| !line.starts_with('#')).count();
        let (open, older) = (lines(Format::Openmetrics), lines(Format::Prometheus));
        assert_eq!(samples(&open), samples(&older));
        assert!(
            older.contains("# TYPE bufwise_decisions_total counter\nbufwise_decisions_total{"),
            "{older}"
        );
        assert!(!older.contains("# UNIT") && !older.contains("# EOF"), "{older}");
    }

    /// Returns the words of `text` that are names of metrics.
    fn names(text: &str) -> BTreeSet<&str> {
        let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        words.filter(|word| word.starts_with("bufwise_")).collect()
    }

    #[test]
    fn the_documentation_names_every_metric_and_no_other() {
        let text = render(&snapshot(), Format::Prometheus);
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next());
        let documented = include_str!("../../../../docs/operate.md");
        let table: String = documented.lines().filter(|line| line.starts_with("| `bufwise_")).collect();
        assert_eq!(names(&table), types.collect());
        let rules = include_str!("../../../../docs/alerts.yml");
        for name in names(rules) {
            assert!(text.contains(&format!("\n{name}")), "{name}");
        }
    }

    #[test]
    fn every_family_is_explained() {
        for format in [Format::Openmetrics, Format::Prometheus] {
            let text = render(&snapshot(), format);
            let lines: Vec<&str> = text.lines().collect();
            for (place, line) in lines.iter().enumerate() {
                let Some(rest) = line.strip_prefix("# TYPE ") else { continue };
                let (name, _kind) = rest.split_once(' ').unwrap();
                let help = lines[place - 1].strip_prefix(&format!("# HELP {name} "));
                assert!(help.is_some_and(|help| help.ends_with('.')), "{line}");
            }
        }
    }
}
