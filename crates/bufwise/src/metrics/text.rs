//! The figures as text: OpenMetrics 1.0, or the older format of Prometheus (0.0.4).
//!
//! The formats differ in what they say of a family, not in names and samples: OpenMetrics names a counter without its
//! `_total`, has units, and an end. Numbers are in base units.

use std::fmt::Write;

use bufwise_host::budget::PRESSURE_CAUSES;
use bufwise_host::judge::Direction;
use bufwise_host::metrics::{Group, Histogram, Memory, Snapshot};
use clap::ValueEnum;

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

/// Writes all figures.
pub(super) fn render(snapshot: &Snapshot, format: Format) -> String {
    let mut page = Page { format, text: String::new() };
    page.daemon(snapshot);
    page.connections(snapshot);
    page.memory(snapshot);
    page.parts(snapshot);
    page.groups(snapshot);
    page.events(snapshot);
    page.distributions(snapshot);
    if format == Format::Openmetrics {
        page.text += "# EOF\n";
    }
    page.text
}

/// Kind of a family of figures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Gauge,
    Counter,
    Histogram,
}

/// Figures of a group of connections: end of the name, help, value.
type Figure = (&'static str, &'static str, fn(&Group) -> f64);
const FIGURES: [Figure; 4] = [
    ("connections", "Open connections, sized by the daemon or not.", |one| one.connections as f64),
    ("goodput_bytes_per_second", "Payload that they move, since the figures before.", |one| {
        one.goodput_bps as f64 / 8.0
    }),
    ("memory_held_bytes", "Content of their queues.", |one| one.held_bytes as f64),
    ("memory_waste_bytes", "Memory that their limits allow beyond need.", |one| one.waste_bytes as f64),
];

/// Memory of a group of the configuration: name, help, value.
type Size = (&'static str, &'static str, fn(&Memory) -> u64);
const PART_SIZES: [Size; 2] = [
    ("bufwise_group_memory_held_bytes", "Content of the group's queues.", |one| one.held_bytes),
    ("bufwise_group_memory_budget_bytes", "Memory that the group's queues may hold.", |one| one.budget_bytes),
];

#[derive(Debug)]
struct Page {
    format: Format,
    text: String,
}

impl Page {
    fn daemon(&mut self, snapshot: &Snapshot) {
        let version = [("version", snapshot.version.as_str())];
        self.family("bufwise_build_info", Kind::Gauge, "Version of the daemon.");
        self.sample("bufwise_build_info", &version, 1.0);
        self.gauge("bufwise_uptime_seconds", "Time since the daemon started.", snapshot.uptime_s);
        let dry_run = "1: the daemon decides and changes nothing (--dry-run).";
        self.gauge("bufwise_dry_run", dry_run, snapshot.dry_run.into());
        let paused = "1: bufwise restore has stopped the tuning.";
        self.gauge("bufwise_paused", paused, snapshot.paused.into());
        let gathered = "Time that the daemon took to gather these figures.";
        self.gauge("bufwise_gathering_seconds", gathered, snapshot.gathered_s);
    }

    fn connections(&mut self, snapshot: &Snapshot) {
        let name = "bufwise_connections";
        let help =
            "Open connections; policy none: not sized by this daemon; limited_by since the figures before.";
        self.family(name, Kind::Gauge, help);
        for row in &snapshot.connections {
            let labels = [
                ("direction", direction(row.direction)),
                ("policy", &row.policy),
                ("limited_by", &row.limited_by),
            ];
            self.sample(name, &labels, row.count as f64);
        }
        let queued = "Tuned connections in whose figures a queue on the path is evident.";
        self.gauge("bufwise_queued_connections", queued, snapshot.queued_connections as f64);
        let untuned = "Connections beyond max-connections, which the kernel sizes.";
        self.gauge("bufwise_untuned_connections", untuned, snapshot.untuned_connections as f64);
    }

    fn memory(&mut self, snapshot: &Snapshot) {
        let both =
            |of: fn(&Memory) -> u64| [("send", of(&snapshot.send)), ("receive", of(&snapshot.receive))];
        for (name, help, sizes) in [
            (
                "bufwise_memory_held_bytes",
                "Content of the tuned connections' queues.",
                both(|one| one.held_bytes),
            ),
            ("bufwise_memory_allowed_bytes", "Sum of their buffers' limits.", both(|one| one.allowed_bytes)),
            (
                "bufwise_memory_reserved_bytes",
                "Memory promised to newcomers and to idle connections, and not held.",
                both(|one| one.reserved_bytes),
            ),
            ("bufwise_memory_budget_bytes", "Memory that the queues may hold.", both(|one| one.budget_bytes)),
        ] {
            self.family(name, Kind::Gauge, help);
            for (direction, size) in sizes {
                self.sample(name, &[("direction", direction)], size as f64);
            }
        }
        let waste = "Memory that the limits allow beyond need.";
        self.gauge("bufwise_memory_waste_bytes", waste, snapshot.waste_bytes as f64);
        let pressure = "1: memory is short, for this cause.";
        self.family("bufwise_memory_pressure", Kind::Gauge, pressure);
        for (cause, name) in PRESSURE_CAUSES {
            let is_it = snapshot.pressure_causes.contains(&cause);
            self.sample("bufwise_memory_pressure", &[("cause", name)], is_it.into());
        }
    }

    /// The groups of the configuration.
    fn parts(&mut self, Snapshot { parts, .. }: &Snapshot) {
        if parts.is_empty() {
            return;
        }
        let name = "bufwise_group_connections";
        self.family(name, Kind::Gauge, "Connections that the daemon sizes in a group of its configuration.");
        for part in parts {
            self.sample(name, &[("group", &part.group)], part.connections as f64);
        }
        for (name, help, size) in PART_SIZES {
            self.family(name, Kind::Gauge, help);
            for part in parts {
                for (direction, memory) in [("send", &part.send), ("receive", &part.receive)] {
                    let labels = [("group", part.group.as_str()), ("direction", direction)];
                    self.sample(name, &labels, size(memory) as f64);
                }
            }
        }
    }

    fn groups(&mut self, Snapshot { groups, .. }: &Snapshot) {
        let kinds =
            [("cgroup", &groups.cgroups), ("namespace", &groups.namespaces), ("prefix", &groups.prefixes)];
        for (label, all) in kinds.into_iter().filter(|(_, all)| !all.is_empty()) {
            for (name, help, figure) in FIGURES {
                let name = format!("bufwise_{label}_{name}");
                self.family(&name, Kind::Gauge, help);
                for group in all {
                    self.sample(&name, &[(label, &group.name)], figure(group));
                }
            }
        }
    }

    fn events(&mut self, Snapshot { counts, engine, .. }: &Snapshot) {
        let decisions = [
            ("send_buffer", counts.send_buffers),
            ("receive_window", counts.receive_windows),
            ("adopted", counts.adopted),
            ("given_back", counts.given_back),
        ];
        let help =
            "Send buffers and receive windows that were set, connections adopted, idle ones given back.";
        self.counters("bufwise_decisions_total", help, &decisions);
        let errors = [
            ("size", counts.refused_sizes),
            ("sweep", counts.refused_sweeps),
            ("bound", counts.refused_bounds),
            ("reload", counts.failed_reloads),
        ];
        let help = "Sizes, sweeps and bounds that the kernel refused, configurations that were not taken in.";
        self.counters("bufwise_errors_total", help, &errors);
        if let Some(cost) = engine {
            let help = "Time spent in the programs in the kernel (kernel.bpf_stats_enabled).";
            self.family("bufwise_engine_seconds_total", Kind::Counter, help);
            self.sample("bufwise_engine_seconds_total", &[], cost.seconds);
            self.family("bufwise_engine_runs_total", Kind::Counter, "Calls of the programs in the kernel.");
            self.sample("bufwise_engine_runs_total", &[], cost.runs as f64);
        }
    }

    fn distributions(&mut self, Snapshot { distributions, .. }: &Snapshot) {
        let help = "Smoothed over smallest round-trip time, where data moved and no program held it back.";
        self.histogram("bufwise_round_trip_over_base_ratio", help, &distributions.round_trip);
        let help = "Congestion window (sender) or offered window (receiver) over the BDP, where data moved.";
        self.histogram("bufwise_window_over_bdp_ratio", help, &distributions.window);
        let help = "Memory that a tuned connection's limits allow beyond need.";
        self.histogram("bufwise_connection_waste_bytes", help, &distributions.waste);
    }

    fn gauge(&mut self, name: &str, help: &str, value: f64) {
        self.family(name, Kind::Gauge, help);
        self.sample(name, &[], value);
    }

    fn counters(&mut self, name: &str, help: &str, rows: &[(&str, u64)]) {
        self.family(name, Kind::Counter, help);
        for (kind, count) in rows {
            self.sample(name, &[("kind", kind)], *count as f64);
        }
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.family(name, Kind::Histogram, help);
        let mut all = 0;
        for (bound, count) in histogram.cumulative() {
            let bound = if bound.is_infinite() { "+Inf".to_owned() } else { format!("{bound:?}") };
            self.sample(&format!("{name}_bucket"), &[("le", &bound)], count as f64);
            all = count;
        }
        self.sample(&format!("{name}_sum"), &[], histogram.sum());
        self.sample(&format!("{name}_count"), &[], all as f64);
    }

    /// Writes the head of a family: help, kind and unit of the samples that follow.
    fn family(&mut self, name: &str, kind: Kind, help: &str) {
        let is_open = self.format == Format::Openmetrics;
        let family = if is_open { name.strip_suffix("_total").unwrap_or(name) } else { name };
        let kind = match kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        self.line(format_args!("# HELP {family} {}", escaped(help)));
        self.line(format_args!("# TYPE {family} {kind}"));
        let unit = family.rsplit('_').next().filter(|unit| ["seconds", "bytes", "ratio"].contains(unit));
        if let Some(unit) = unit.filter(|_| is_open) {
            self.line(format_args!("# UNIT {family} {unit}"));
        }
    }

    fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        let labels: Vec<String> =
            labels.iter().map(|(label, value)| format!("{label}=\"{}\"", escaped(value))).collect();
        let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        self.line(format_args!("{name}{labels} {value}"));
    }

    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _infallible = writeln!(self.text, "{line}");
    }
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "send",
        Direction::Receive => "receive",
    }
}

/// Both formats escape these three in the value of a label.
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use std::collections::BTreeSet;

    use bufwise_host::budget::PressureCause;
    use bufwise_host::metrics::{Connections, Counts, Distributions, EngineCost, Groups, PartFigures};

    fn group(name: &str, connections: u64) -> Group {
        Group { name: name.to_owned(), connections, goodput_bps: 8_000_004, held_bytes: 5, waste_bytes: 6 }
    }

    /// A daemon with one connection.
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
            gathered_s: 0.002,
        }
    }

    /// Without HELP, whose words are free.
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

    /// Words that are names of metrics.
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
