//! Gain of SOBAS over maximum buffers, by the size of the tight link's queue: a survey over the paper's paths.
//!
//! A shallow queue drops what a window that is too large adds; a deep one only delays it. So the gain should fall with
//! the queue; the survey shows where it ends.

use bufwise_link::{CrossPattern, QueueSize};

use super::model::{Bound, Case, Experiment, Method, Quantity, Setup, Target, path};
use super::result::ExperimentResult;
use super::sobas::{CUBIC, SOBAS, aggregate, file, movers, unresponsive, with_file};
use super::table::Table;
use crate::spec::PathSpec;

pub(super) const ID: &str = "sobas-queues";
const BBR: &str = "maximum, bbr";
/// Seconds that a file takes at the free rate.
const SECONDS: u64 = 8;

/// Sizes of the queue, in bandwidth-delay products.
const QUEUES: [(&str, f64); 8] = [
    ("BDP/32", 1.0 / 32.0),
    ("BDP/16", 1.0 / 16.0),
    ("BDP/8", 0.125),
    ("BDP/4", 0.25),
    ("BDP/2", 0.5),
    ("BDP", 1.0),
    ("2 BDP", 2.0),
    ("4 BDP", 4.0),
];
/// Queues that `--quick` runs.
const QUICK: [&str; 2] = ["BDP/8", "2 BDP"];

/// Rate (Mbit/s), RTT (ms), and rate of other traffic (Mbit/s), steady or in bursts.
const PATHS: [(u64, u64, u64, bool); 7] = [
    (970, 20, 0, false),
    (970, 20, 400, true),
    (620, 10, 0, false),
    (620, 60, 190, true),
    (97, 40, 0, false),
    (97, 40, 17, false),
    (97, 155, 57, false),
];

pub(super) fn experiments() -> Vec<Experiment> {
    let cases = PATHS.iter().flat_map(|path| QUEUES.map(|queue| case(*path, queue))).collect();
    let methods = movers().into_iter().filter(|method| [CUBIC, BBR, SOBAS].contains(&method.name));
    // A survey leaves out by itself the methods that the kernel lacks.
    let methods = methods.map(|method| Method { beside: false, ..method }).collect();
    let first = case(PATHS[0], QUEUES[0]);
    vec![Experiment {
        cases,
        methods,
        survey: true,
        ..with_file(
            ID,
            "engine",
            "SOBAS's paths with queues of BDP/32 to 4 BDP: where does the gain over maximum buffers end?",
            "Files of 8 s; medians of three valid runs; BBR and CUBIC with maximum buffers beside.",
            first,
            vec![
                Target::new(SOBAS, Quantity::GoodputBps, Bound::AtLeastTimes(1.0, CUBIC)),
                Target::new(SOBAS, Quantity::SettledDrops, Bound::AtMost(0.0)),
            ],
        )
    }]
}

fn row((rate, rtt, taken, _): (u64, u64, u64, bool)) -> String {
    let others = if taken > 0 { format!(", {} free", rate - taken) } else { String::new() };
    format!("{rate} Mbit/s x {rtt} ms{others}")
}

fn name(path: (u64, u64, u64, bool), queue: &str) -> String {
    format!("{}, {queue}", row(path))
}

fn case(of: (u64, u64, u64, bool), (queue, products): (&str, f64)) -> Case {
    let (rate, rtt, taken, bursts) = of;
    let cross_b_to_a = match (taken, bursts) {
        (0, _) => None,
        (mbit, true) => aggregate(mbit),
        (mbit, false) => unresponsive(mbit, CrossPattern::Constant),
    };
    let spec = PathSpec { queue: Some(QueueSize::Bdp(products)), cross_b_to_a, ..path(rate, rtt) };
    Case {
        name: name(of, queue),
        paths: vec![spec],
        flows: vec![file(rate - taken, SECONDS)],
        memory: None,
        quick: QUICK.contains(&queue),
        setup: Setup::default(),
    }
}

/// Returns SOBAS's goodput over that of maximum buffers, by path and queue.
pub(super) fn gains(result: &ExperimentResult) -> Vec<Table> {
    let of = |other: &str| {
        let gain = |path, queue| {
            let case = result.cases.iter().find(|case| case.name == name(path, queue))?;
            let goodput = |method| case.median(method, Quantity::GoodputBps);
            Some(goodput(SOBAS)? / goodput(other).filter(|rate| *rate > 0.0)?)
        };
        let cell =
            |path, queue| gain(path, queue).map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}"));
        let cells = |path| QUEUES.iter().map(|(queue, _)| cell(path, queue)).collect();
        Table {
            title: format!("Goodput of `{SOBAS}` over that of `{other}`"),
            of: "path",
            heads: QUEUES.iter().map(|(queue, _)| *queue).collect(),
            rows: PATHS.iter().map(|path| (row(*path), cells(*path))).collect(),
        }
    };
    [CUBIC, BBR].map(of).into()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::summary::tables;
    use super::*;

    #[test]
    fn every_queue_of_every_path_is_a_case() {
        let [survey] = <[Experiment; 1]>::try_from(experiments()).unwrap();
        assert_eq!(survey.cases.len(), PATHS.len() * QUEUES.len());
        let methods: Vec<_> = survey.methods.iter().map(|method| method.name).collect();
        assert_eq!(methods, [CUBIC, BBR, SOBAS]);
        for case in &survey.cases {
            let free = case.paths[0].cross_b_to_a.is_none();
            assert_eq!(free, !case.name.contains("free"), "{}", case.name);
        }
    }

    #[test]
    fn the_gain_stands_by_path_and_queue() {
        let [survey] = <[Experiment; 1]>::try_from(experiments()).unwrap();
        let mut result = ExperimentResult::new(&survey, false, None, None);
        for method in &mut result.cases[1].methods {
            let goodput = if method.name == SOBAS { 9e8 } else { 6e8 };
            method.medians = BTreeMap::from([(Quantity::GoodputBps, goodput)]);
        }
        let [over_cubic, _] = <[Table; 2]>::try_from(tables(&result)).ok().unwrap();
        assert_eq!(over_cubic.rows[0].0, "970 Mbit/s x 20 ms");
        assert_eq!(over_cubic.rows[0].1, ["-", "1.50", "-", "-", "-", "-", "-", "-"]);
        assert_eq!(over_cubic.rows[1].0, "970 Mbit/s x 20 ms, 570 free");
        assert!(over_cubic.rows[1].1.iter().all(|cell| cell == "-"));
        result.id = "other".to_owned();
        assert!(tables(&result).is_empty());
    }
}
