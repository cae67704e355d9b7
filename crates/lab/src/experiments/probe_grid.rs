//! Compares `bufwise probe` with the emulator's true values: capacity, available bandwidth and round trip, both ways.

use bufwise_link::{CrossPattern, CrossTraffic, ETHERNET_HEADER};
use bufwise_units::BitRate;
use serde_json::Value;

use super::ends::{flow_report, port};
use super::idle;
use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use super::path_changes::Probed;
use super::script::wait;
use crate::spec::PathSpec;

/// The paths: rates in Mbit/s, round trips in ms, and other traffic on the way to the client in percent.
const RATES: [u64; 5] = [1, 10, 50, 100, 500];
const RTTS_MS: [u64; 3] = [5, 40, 200];
const OTHERS: [u64; 3] = [0, 25, 50];
/// The paths that `--quick` runs.
const QUICK: [(u64, u64, u64); 4] = [(10, 40, 0), (50, 40, 25), (100, 5, 50), (500, 200, 0)];
/// Seconds of a probe: ten, and some round trips for its connections.
const SECONDS: u32 = 12;
/// Seconds after that until the probe is ended.
const PATIENCE: u32 = 20;
/// IP length of a packet of a train, as `probe` counts it, bytes.
const TRAIN_PACKET: u32 = 1_380;
/// IP length of the packets by which `probe` measures round trips, bytes: 100 of payload, UDP and IPv4.
const ECHO_PACKET: u32 = 128;
/// Allowed errors: 5% of the capacity, 10% of the available bandwidth.
const CAPACITY: f64 = 0.05;
const AVAILABLE: f64 = 0.1;

/// Quantities that are read of a probe.
pub(super) const PROBED: [Quantity; 6] = [
    Quantity::CapacityLeast,
    Quantity::CapacityMost,
    Quantity::AvailableLeast,
    Quantity::AvailableMost,
    Quantity::ProbedRttLeast,
    Quantity::ProbedRttMost,
];

const METHOD: &str = "probe";

pub(super) fn experiments() -> Vec<Experiment> {
    let paths = RATES.iter().flat_map(|rate| RTTS_MS.map(|rtt| (*rate, rtt)));
    let bounds = [
        (Quantity::CapacityLeast, Bound::AtLeast(1.0 - CAPACITY)),
        (Quantity::CapacityMost, Bound::AtMost(1.0 + CAPACITY)),
        (Quantity::AvailableLeast, Bound::AtLeast(1.0 - AVAILABLE)),
        (Quantity::AvailableMost, Bound::AtMost(1.0 + AVAILABLE)),
        (Quantity::ProbedRttLeast, Bound::AtLeast(0.99)),
        (Quantity::ProbedRttMost, Bound::AtMost(1.05)),
    ];
    vec![Experiment {
        id: "probe-grid",
        source: "engine",
        question: "Over 45 paths: does `bufwise probe` find capacity within 5% and available bandwidth within 10%?",
        scale: "Other traffic is steady, and only on the way to the client; each figure is the worse of the two directions. The \
            queue holds one bandwidth-delay product, at least 64 packets.",
        way: Way::Download,
        cases: paths.flat_map(|(rate, rtt)| OTHERS.map(|others| case(rate, rtt, others))).collect(),
        methods: vec![Method { name: METHOD, ..Method::default() }],
        quantities: PROBED.to_vec(),
        targets: bounds.map(|(quantity, bound)| Target::new(METHOD, quantity, bound)).to_vec(),
        counts_cost: false,
        survey: true,
    }]
}

fn case(rate: u64, rtt: u64, others: u64) -> Case {
    let beside = if others > 0 { format!(", {others}% others") } else { String::new() };
    let cross = CrossTraffic {
        rate: BitRate(rate * others * 10_000),
        packet_bytes: 1_500,
        pattern: CrossPattern::Constant,
    };
    Case {
        name: format!("{rate} Mbit/s x {rtt} ms{beside}"),
        paths: vec![PathSpec { cross_b_to_a: (others > 0).then_some(cross), ..path(rate, rtt) }],
        flows: vec![Flow { amount: Amount::Probe(SECONDS, SECONDS), ..Flow::default() }],
        memory: None,
        quick: QUICK.contains(&(rate, rtt, others)),
        setup: Setup::default(),
    }
}

/// Returns the probe of flow `number`, which runs on the client's host and may take `seconds`.
pub(super) fn client(bufwise: &str, number: usize, host: &str, flow: &Flow, seconds: u32) -> String {
    let (wait, port, report) = (wait(flow), port(number), flow_report(number));
    format!("{wait}timeout {} {bufwise} probe {}:{port} --json {report}", seconds + PATIENCE, bracketed(host))
}

/// Returns the server that it probes.
pub(super) fn server(bufwise: &str, number: usize, host: &str) -> String {
    format!("{bufwise} probe --serve {}:{}", bracketed(host), port(number))
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

/// Returns the results of the report of `flow`, a probe, towards the client and away from it, beside the true values when the flow
/// begins. `None` without a capacity, or if the path has no rate; if no available bandwidth was found, it counts as 0.
pub(super) fn found(path: &PathSpec, flow: &Flow, report: &Value) -> Option<Vec<Probed>> {
    let number = |pointer: &str| report.pointer(pointer)?.as_f64();
    let of_ip = f64::from(TRAIN_PACKET) / f64::from(TRAIN_PACKET + ETHERNET_HEADER);
    let (away, begin) = (path.a_to_b(), flow.delay.0 as f64 / 1e9);
    // The links take their time to send a packet, also on an idle path: at 1 Mbit/s more than a millisecond.
    let least = idle::round_trip(path, 0.0, begin) + sending(path, begin) + sending(&away, begin);
    let rtt = (number("/round_trip/least_s")?, least);
    let here = free(path, begin, |link| link.cross_b_to_a)?;
    let there = free(&away, begin, |link| link.cross_a_to_b)?;
    let rate = |path: &PathSpec| idle::rate(path, 0.0, begin);
    [("here", rate(path)?, here), ("there", rate(&away)?, there)]
        .into_iter()
        .map(|(way, rate, free)| {
            let available = number(&format!("/{way}/available/middle_bps")).unwrap_or_default();
            Some(Probed {
                capacity: (number(&format!("/{way}/capacity/middle_bps"))?, rate.0 as f64 * of_ip),
                rtt,
                available: Some((available, free * of_ip)),
            })
        })
        .collect()
}

/// Returns the seconds that the links of `path` take to send an [`ECHO_PACKET`] at the time `t`.
fn sending(path: &PathSpec, t: f64) -> f64 {
    let bits = f64::from(ECHO_PACKET + ETHERNET_HEADER) * 8.0;
    let rates = path.own_and_shared().filter_map(|link| idle::rate_of_link(link, 0.0, t));
    rates.map(|rate| bits / rate.0 as f64).sum()
}

/// Returns the rate that other traffic (`cross` of a link) leaves at the time `t` on that link of `path` where it is least, bit/s;
/// `None`: no link has a rate.
fn free(path: &PathSpec, t: f64, cross: fn(&PathSpec) -> Option<CrossTraffic>) -> Option<f64> {
    let of_link = |link: &PathSpec| {
        let others = cross(link).map_or(0.0, mean_rate);
        Some((idle::rate_of_link(link, 0.0, t)?.0 as f64 - others).max(0.0))
    };
    path.own_and_shared().filter_map(of_link).reduce(f64::min)
}

/// Returns the mean rate of other traffic, bit/s: bursts take their rate for a part of the time.
fn mean_rate(CrossTraffic { rate, pattern, .. }: CrossTraffic) -> f64 {
    let rate = rate.0 as f64;
    match pattern {
        CrossPattern::Constant => rate,
        CrossPattern::Bursty { on, off, .. } | CrossPattern::Aggregate { on, off, .. } => {
            rate * on.0 as f64 / (on.0 as f64 + off.0 as f64)
        }
    }
}

#[cfg(test)]
mod tests {
    use bufwise_units::Nanos;
    use serde_json::json;

    use super::*;
    use crate::spec::SharedLink;

    #[test]
    fn every_path_is_probed_alone_and_beside_others() {
        let [grid] = <[Experiment; 1]>::try_from(experiments()).unwrap();
        assert_eq!(grid.cases.len(), 45);
        assert_eq!(grid.cases.iter().filter(|case| case.quick).count(), QUICK.len());
        assert!(grid.seconds(true, None) < 60);
        let alone = grid.cases.iter().filter(|case| case.paths[0].cross_b_to_a.is_none());
        assert_eq!(alone.count(), 15);
    }

    #[test]
    fn a_report_is_held_against_what_others_leave_on_each_way() {
        let case = case(50, 40, 25);
        let way = |capacity: f64, available: f64| json!({ "capacity": { "middle_bps": capacity }, "available": { "middle_bps": available } });
        let mut report = json!({
            "round_trip": { "least_s": 0.04 + 2.0 * 142.0 * 8.0 / 50e6 },
            "here": way(49.5e6, 1.1 * 37.5e6 * 1_380.0 / 1_394.0),
            "there": way(0.9 * 50e6 * 1_380.0 / 1_394.0, 49.5e6),
        });
        let found_of = |report: &Value| found(&case.paths[0], &case.flows[0], report);
        let all = found_of(&report).unwrap();
        let value = |quantity| Probed::value(quantity, &all).unwrap();
        assert!((value(Quantity::CapacityLeast) - 0.9).abs() < 1e-6);
        assert!((value(Quantity::CapacityMost) - 1.0).abs() < 1e-4);
        assert!((value(Quantity::AvailableMost) - 1.1).abs() < 1e-6);
        assert!((value(Quantity::AvailableLeast) - 1.0).abs() < 1e-4);
        assert!((value(Quantity::ProbedRttLeast) - 1.0).abs() < 1e-9);
        report["there"]["available"] = Value::Null;
        assert_eq!(Probed::value(Quantity::AvailableLeast, &found_of(&report).unwrap()), Some(0.0));
        report["there"]["capacity"] = Value::Null;
        assert!(found_of(&report).is_none());
    }

    #[test]
    fn others_on_a_shared_link_take_from_what_is_available_over_the_path() {
        let cross = "4mbit".parse::<crate::spec::CrossSpec>().unwrap().0;
        let line = PathSpec { cross_b_to_a: Some(cross), ..path(10, 20) };
        let links = vec![SharedLink { name: "line".to_owned(), spec: line }];
        let over = PathSpec { links, ..path(50, 40) };
        let way = json!({ "capacity": { "middle_bps": 1e7 }, "available": { "middle_bps": 5e6 } });
        let report = json!({ "round_trip": { "least_s": 0.06 }, "here": way, "there": way });
        let free = found(&over, &Flow::default(), &report).unwrap();
        let free = free.into_iter().filter_map(|one| Some(one.available?.1));
        let mbit = free.map(|rate| (rate * 1_394.0 / 1_380.0 / 1e6).round());
        assert_eq!(mbit.collect::<Vec<_>>(), [6.0, 10.0]);
    }

    #[test]
    fn a_slow_idle_path_takes_its_time_to_send_the_packets_of_a_probe() {
        let way = json!({ "capacity": { "middle_bps": 1e6 }, "available": { "middle_bps": 1e6 } });
        let report = json!({ "round_trip": { "least_s": 0.008 }, "here": way, "there": way });
        let rtt = |path: &PathSpec| found(path, &Flow::default(), &report).unwrap()[0].rtt.1;
        // 142 bytes on the wire take 1.136 ms at 1 Mbit/s.
        assert!((rtt(&path(1, 5)) - 0.007_272).abs() < 1e-9);
        let slow_away = PathSpec { rate_a_to_b: Some(BitRate(500_000)), ..path(1, 5) };
        assert!((rtt(&slow_away) - 0.008_408).abs() < 1e-9);
        let line = SharedLink { name: "line".to_owned(), spec: path(1, 5) };
        assert!((rtt(&PathSpec { links: vec![line], ..path(1, 5) }) - 0.014_544).abs() < 1e-9);
    }

    #[test]
    fn a_path_that_changes_is_as_it_is_when_the_probe_begins() {
        let way = json!({ "capacity": { "middle_bps": 1e7 }, "available": { "middle_bps": 5e6 } });
        let report = json!({ "round_trip": { "least_s": 0.06 }, "here": way, "there": way });
        let cross = "4mbit".parse::<crate::spec::CrossSpec>().unwrap().0;
        let trace = "0 20mbit 30ms\n20 50mbit".parse().ok();
        let changes = PathSpec { trace, cross_b_to_a: Some(cross), ..path(100, 40) };
        let at = |seconds| {
            let flow = Flow { delay: Nanos::from_secs(seconds), ..Flow::default() };
            let Probed { capacity, rtt, available } = found(&changes, &flow, &report).unwrap()[0];
            let on_the_wire = |rate: f64| (rate * 1_394.0 / 1_380.0 / 1e6).round();
            ([capacity.1, available.unwrap().1].map(on_the_wire), (rtt.1 * 1e3).round())
        };
        assert_eq!(at(0), ([20.0, 16.0], 60.0));
        assert_eq!(at(25), ([50.0, 46.0], 60.0));
    }

    #[test]
    fn bursts_leave_what_they_do_not_take_on_the_mean() {
        let cross = |text: &str| text.parse::<crate::spec::CrossSpec>().unwrap().0;
        let rates = ["10mbit", "40mbit:100ms,300ms", "40mbit:100ms,300ms,8"].map(cross).map(mean_rate);
        assert_eq!(rates, [10e6; 3]);
    }

    #[test]
    fn both_ends_of_a_probe_name_one_port() {
        let flow = Flow::default();
        let client = |seconds| client("bufwise", 1, "fd00:b:0:0::2", &flow, seconds);
        assert_eq!(client(SECONDS), "timeout 32 bufwise probe [fd00:b:0:0::2]:5202 --json flow1.json");
        assert!(client(60).starts_with("timeout 80 "), "its own time counts");
        assert_eq!(server("bufwise", 1, "198.18.0.2"), "bufwise probe --serve 198.18.0.2:5202");
    }
}
