//! The metrics by families, from which each format is written: names, kinds, labels, values.
//!
//! Names follow Prometheus: a family's name ends with its unit; a counter's name here lacks `_total`. Values are in
//! base units.

use bufwise_host::budget::PRESSURE_CAUSES;
use bufwise_host::judge::Direction;
use bufwise_host::metrics::{Group, Histogram, Memory, Snapshot};

/// A family of metrics: one name with its values.
#[derive(Debug)]
pub(super) struct Family {
    pub(super) name: String,
    /// Description, one sentence.
    pub(super) help: &'static str,
    pub(super) figures: Figures,
}

/// The values of a family, by kind.
#[derive(Debug)]
pub(super) enum Figures {
    Gauge(Vec<Point>),
    Counter(Vec<Point>),
    Histogram(Histogram),
}

/// A value and its labels.
#[derive(Debug)]
pub(super) struct Point {
    pub(super) labels: Vec<(&'static str, String)>,
    pub(super) value: f64,
}

impl Family {
    /// Returns the unit with which its name ends: `seconds`, `bytes` or `ratio`.
    pub(super) fn unit(&self) -> Option<&str> {
        self.name.rsplit('_').next().filter(|unit| ["seconds", "bytes", "ratio"].contains(unit))
    }
}

/// Returns all families.
pub(super) fn families(snapshot: &Snapshot) -> Vec<Family> {
    let mut page = Page::default();
    page.daemon(snapshot);
    page.connections(snapshot);
    page.memory(snapshot);
    page.parts(snapshot);
    page.groups(snapshot);
    page.events(snapshot);
    page.distributions(snapshot);
    page.families
}

/// A value of a group of connections: end of the name, help, value.
type Figure = (&'static str, &'static str, fn(&Group) -> f64);
const FIGURES: [Figure; 4] = [
    ("connections", "Open connections, sized by the daemon or not.", |one| one.connections as f64),
    ("goodput_bytes_per_second", "Payload that they moved since the previous figures.", |one| {
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

#[derive(Debug, Default)]
struct Page {
    families: Vec<Family>,
}

impl Page {
    fn daemon(&mut self, snapshot: &Snapshot) {
        let version = point(&[("version", &snapshot.version)], 1.0);
        self.gauges("bufwise_build_info", "Version of the daemon.", vec![version]);
        self.gauge("bufwise_uptime_seconds", "Time since the daemon started.", snapshot.uptime_s);
        let dry_run = "1: the daemon decides and changes nothing (--dry-run).";
        self.gauge("bufwise_dry_run", dry_run, snapshot.dry_run.into());
        let paused = "1: bufwise restore has stopped the tuning.";
        self.gauge("bufwise_paused", paused, snapshot.paused.into());
        let gathered = "Time that the daemon took to gather these figures.";
        self.gauge("bufwise_gathering_seconds", gathered, snapshot.gathered_s);
        let history = "Memory of the daemon's history of the last hour.";
        self.gauge("bufwise_history_bytes", history, snapshot.history_bytes as f64);
    }

    fn connections(&mut self, snapshot: &Snapshot) {
        let name = "bufwise_connections";
        let help =
            "Open connections; policy none: not sized by this daemon; limited_by: since the last figures.";
        let rows = snapshot.connections.iter().map(|row| {
            let labels = [
                ("direction", direction(row.direction)),
                ("policy", &row.policy),
                ("limited_by", &row.limited_by),
            ];
            point(&labels, row.count as f64)
        });
        self.gauges(name, help, rows.collect());
        let queued = "Tuned connections whose round trips show a queue on the path.";
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
            let size = |(direction, size): (&str, u64)| point(&[("direction", direction)], size as f64);
            self.gauges(name, help, sizes.map(size).into());
        }
        let waste = "Memory that the limits allow beyond need.";
        self.gauge("bufwise_memory_waste_bytes", waste, snapshot.waste_bytes as f64);
        let pressure = "1: memory is short, for this cause.";
        let causes = PRESSURE_CAUSES
            .iter()
            .map(|(cause, name)| point(&[("cause", name)], snapshot.pressure_causes.contains(cause).into()));
        self.gauges("bufwise_memory_pressure", pressure, causes.collect());
    }

    /// Adds the groups of the configuration.
    fn parts(&mut self, Snapshot { parts, .. }: &Snapshot) {
        if parts.is_empty() {
            return;
        }
        let counts = parts.iter().map(|part| point(&[("group", &part.group)], part.connections as f64));
        let help = "Connections that the daemon sizes in a group of its configuration.";
        self.gauges("bufwise_group_connections", help, counts.collect());
        for (name, help, size) in PART_SIZES {
            let mut points = Vec::new();
            for part in parts {
                for (direction, memory) in [("send", &part.send), ("receive", &part.receive)] {
                    let labels = [("group", part.group.as_str()), ("direction", direction)];
                    points.push(point(&labels, size(memory) as f64));
                }
            }
            self.gauges(name, help, points);
        }
    }

    fn groups(&mut self, Snapshot { groups, .. }: &Snapshot) {
        let kinds =
            [("cgroup", &groups.cgroups), ("namespace", &groups.namespaces), ("prefix", &groups.prefixes)];
        for (label, all) in kinds.into_iter().filter(|(_, all)| !all.is_empty()) {
            for (name, help, figure) in FIGURES {
                let points = all.iter().map(|group| point(&[(label, &group.name)], figure(group)));
                self.gauges(&format!("bufwise_{label}_{name}"), help, points.collect());
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
        self.counters("bufwise_decisions", help, kinds(&decisions));
        let errors = [
            ("size", counts.refused_sizes),
            ("sweep", counts.refused_sweeps),
            ("bound", counts.refused_bounds),
            ("reload", counts.failed_reloads),
        ];
        let help = "Sizes, sweeps and bounds that the kernel refused, configurations that were not loaded.";
        self.counters("bufwise_errors", help, kinds(&errors));
        if let Some(cost) = engine {
            let help = "Time spent in the programs in the kernel (kernel.bpf_stats_enabled).";
            self.counters("bufwise_engine_seconds", help, vec![point(&[], cost.seconds)]);
            let help = "Calls of the programs in the kernel.";
            self.counters("bufwise_engine_runs", help, vec![point(&[], cost.runs as f64)]);
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

    fn gauge(&mut self, name: &str, help: &'static str, value: f64) {
        self.gauges(name, help, vec![Point { labels: Vec::new(), value }]);
    }

    fn gauges(&mut self, name: &str, help: &'static str, points: Vec<Point>) {
        self.families.push(Family { name: name.to_owned(), help, figures: Figures::Gauge(points) });
    }

    fn counters(&mut self, name: &str, help: &'static str, points: Vec<Point>) {
        self.families.push(Family { name: name.to_owned(), help, figures: Figures::Counter(points) });
    }

    fn histogram(&mut self, name: &str, help: &'static str, histogram: &Histogram) {
        let figures = Figures::Histogram(histogram.clone());
        self.families.push(Family { name: name.to_owned(), help, figures });
    }
}

/// Makes a value with these labels.
fn point(labels: &[(&'static str, &str)], value: f64) -> Point {
    let labels = labels.iter().map(|(label, text)| (*label, (*text).to_owned())).collect();
    Point { labels, value }
}

/// Makes counts with the label `kind`.
fn kinds(rows: &[(&'static str, u64)]) -> Vec<Point> {
    rows.iter().map(|(kind, count)| point(&[("kind", kind)], *count as f64)).collect()
}

fn direction(direction: Direction) -> &'static str {
    match direction {
        Direction::Send => "send",
        Direction::Receive => "receive",
    }
}
