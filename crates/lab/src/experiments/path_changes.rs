//! A path that changes (Feng 2002, figures 1 to 3): capacity, RTT and their product, as probes measure them.

use bufwise_link::{Step, Trace};
use bufwise_units::{BitRate, Nanos};
use serde_json::Value;

use super::idle;
use super::model::{Amount, Bound, Case, Experiment, Flow, Ftp, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// The path's rates (kbit/s) and RTTs (ms), within the range of Feng 2002.
const STEPS: [(u64, u64); 5] = [(28_500, 119), (17_200, 157), (4_000, 240), (28_500, 475), (1_000, 300)];
/// Duration of a step, and when in a step a file is fetched, seconds.
const LASTS: u32 = 10;
const AFTER: u32 = 1;
/// Size of the file that is fetched in each step, bytes; the probes come before its data.
const FILE: u64 = 50_000;

pub(super) fn experiments() -> Vec<Experiment> {
    let fetch = |step: u32| Flow {
        delay: Nanos::from_secs((step * LASTS + AFTER).into()),
        amount: Amount::File(FILE, LASTS - AFTER, FILE, LASTS - AFTER),
        ..Flow::default()
    };
    vec![Experiment {
        id: "path-fig1-3",
        source: "Feng 2002, figures 1 to 3",
        question: "The rate and the RTT of a path change every 10 s: do probes find both, and how much does the BDP vary?",
        scale: "Five steps of 10 s instead of minutes of 20 s; the slowest has 1 Mbit/s instead of 0.026. The probes are those of \
            `bufwise get`, before the data of a small file.",
        way: Way::Download,
        cases: vec![Case {
            name: "five steps".to_owned(),
            paths: vec![PathSpec { trace: trace(), ..path(28, 119) }],
            flows: (0..).zip(STEPS).map(|(step, _)| fetch(step)).collect(),
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: vec![Method {
            name: "probes",
            ftp: Ftp { client: Some("sobas"), server: Some("") },
            ..Method::default()
        }],
        quantities: vec![
            Quantity::CapacityLeast,
            Quantity::CapacityMost,
            Quantity::ProbedRttLeast,
            Quantity::ProbedRttMost,
            Quantity::BdpRangeBits,
        ],
        targets: vec![
            Target::new("probes", Quantity::CapacityLeast, Bound::AtLeast(0.95)),
            Target::new("probes", Quantity::CapacityMost, Bound::AtMost(1.05)),
            Target::new("probes", Quantity::ProbedRttLeast, Bound::AtLeast(0.99)),
            Target::new("probes", Quantity::ProbedRttMost, Bound::AtMost(1.05)),
        ],
        ..Experiment::default()
    }]
}

fn trace() -> Option<Trace> {
    let step = |(number, (kilobits, rtt)): (u64, (u64, u64))| Step {
        at: Nanos::from_secs(number * u64::from(LASTS)),
        rate: Some(BitRate(kilobits * 1_000)),
        delay: Some(Nanos::from_millis(rtt / 2)),
    };
    Trace::new((0..).zip(STEPS).map(step).collect(), None).ok()
}

/// Results of probes beside the path's true values at that time: (found, true).
#[derive(Clone, Copy, Debug)]
pub(super) struct Probed {
    /// Capacity, bit/s.
    pub(super) capacity: (f64, f64),
    /// Round-trip time, s.
    pub(super) rtt: (f64, f64),
    /// Bandwidth that other traffic leaves, bit/s; `None`: not measured.
    pub(super) available: Option<(f64, f64)>,
}

impl Probed {
    /// Reads the end of a flow's report, which has its probes.
    pub(super) fn new(path: &PathSpec, flow: &Flow, end: &Value) -> Option<Self> {
        let found = |name: &str| end.pointer(name)?.as_f64();
        let begin = flow.delay.0 as f64 / 1e9;
        Some(Self {
            capacity: (found("/probes/capacity_bps")?, idle::rate(path, 0.0, begin)?.0 as f64),
            rtt: (found("/probes/min_rtt_s")?, idle::round_trip(path, 0.0, begin)),
            available: None,
        })
    }

    /// Returns `quantity` over all files.
    pub(super) fn value(quantity: Quantity, all: &[Self]) -> Option<f64> {
        let ratio = |(found, true_one): (f64, f64)| found / true_one;
        let of = |of: fn(&Self) -> (f64, f64)| all.iter().map(move |one| ratio(of(one)));
        let available = || all.iter().filter_map(|one| one.available.map(ratio));
        let products = || all.iter().map(|one| one.capacity.0 * one.rtt.0);
        match quantity {
            Quantity::CapacityLeast => of(|one| one.capacity).reduce(f64::min),
            Quantity::CapacityMost => of(|one| one.capacity).reduce(f64::max),
            Quantity::ProbedRttLeast => of(|one| one.rtt).reduce(f64::min),
            Quantity::ProbedRttMost => of(|one| one.rtt).reduce(f64::max),
            Quantity::AvailableLeast => available().reduce(f64::min),
            Quantity::AvailableMost => available().reduce(f64::max),
            Quantity::BdpRangeBits => Some(products().reduce(f64::max)? - products().reduce(f64::min)?),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_probes_found_is_held_against_the_step_of_their_time() {
        let [experiment] = <[Experiment; 1]>::try_from(experiments()).unwrap();
        let case = &experiment.cases[0];
        let probed = |step: usize, capacity_bps: f64, min_rtt_s: f64| {
            let end = json!({ "probes": { "capacity_bps": capacity_bps, "min_rtt_s": min_rtt_s } });
            Probed::new(&case.paths[0], &case.flows[step], &end).unwrap()
        };
        // Right in the second step; in the last step half the capacity and twice the RTT.
        let all = [probed(1, 17.2e6, 0.156), probed(4, 0.5e6, 0.6)];
        let value = |quantity| Probed::value(quantity, &all).unwrap();
        assert_eq!((value(Quantity::CapacityLeast), value(Quantity::CapacityMost)), (0.5, 1.0));
        assert_eq!((value(Quantity::ProbedRttLeast), value(Quantity::ProbedRttMost)), (1.0, 2.0));
        assert!((value(Quantity::BdpRangeBits) - (17.2e6 * 0.156 - 0.3e6)).abs() < 1.0);
        assert!(Probed::new(&case.paths[0], &case.flows[0], &json!({})).is_none());
        let end = json!({ "probes": { "capacity_bps": 9e6, "min_rtt_s": 0.03 } });
        let steady = Probed::new(&path(10, 20), &Flow::default(), &end).unwrap();
        assert_eq!((steady.capacity, steady.rtt), ((9e6, 10e6), (0.03, 0.02)), "a path that does not change");
        assert_eq!(Probed::value(Quantity::CapacityLeast, &[]), None);
    }
}
