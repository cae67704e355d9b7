//! drsFTP's experiments (Feng 2002, section 5.3): a file by FTP, with buffers too small, right, or too large.

use bufwise_link::{Step, Trace};
use bufwise_units::{BitRate, Nanos};

use super::model::{Amount, Bound, Case, Experiment, Flow, Ftp, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// Buffer maximum, larger than what the path holds, bytes.
const LARGE: u64 = 32 << 20;
/// Size of the file over a path of one rate, bytes; Feng 2002 (section 5.3) has 100 MB.
const FILE: u64 = 30_000_000;
/// Size of each file over the path whose rate moves, bytes: the slowest method fetches one within [`APART`].
const PART: u64 = 10_000_000;
/// Bytes that a sender limited to 64 KB moves in five seconds.
const LITTLE: u64 = 3_000_000;

/// Names of the cases.
const STEADY: &str = "100 Mbit/s";
const MOVING: &str = "12 to 100 Mbit/s";
/// Rates of the path that moves, Mbit/s, each for a second; then again from the first on.
const RATES: [u64; 11] = [100, 40, 12, 70, 25, 90, 15, 55, 30, 80, 20];
/// Files of a run, one after the other, and seconds between their starts: each finds another part of the rates.
const FILES: u32 = 5;
const APART: u32 = 6;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![file()]
}

/// Returns the method in which `bufwise get` with a policy fetches from `bufwise serve`.
fn by(policy: &'static str, name: &'static str) -> Method {
    let ftp = Ftp { client: Some(policy), server: Some("") };
    Method { name, rmem: LARGE, wmem: LARGE, ftp, ..Method::default() }
}

/// Returns the rates over time; they repeat.
fn rates() -> Option<Trace> {
    let step = |(second, mbit): (u64, u64)| Step {
        at: Nanos::from_secs(second),
        rate: Some(BitRate(mbit * 1_000_000)),
        delay: None,
    };
    let period = Nanos::from_secs(RATES.len() as u64);
    Trace::new((0..).zip(RATES).map(step).collect(), Some(period)).ok()
}

fn case(name: &str, path: PathSpec, flows: Vec<Flow>, quick: bool) -> Case {
    Case { name: name.to_owned(), paths: vec![path], flows, memory: None, quick, setup: Setup::default() }
}

/// Returns the case with a path of one rate, and the one with a path whose rate moves.
fn cases() -> Vec<Case> {
    let file = Flow { amount: Amount::File(FILE, 10, FILE, 6), ..Flow::default() };
    let one_of = |number: u32| Flow {
        delay: Nanos::from_secs((number * APART).into()),
        amount: Amount::File(PART, APART, PART, APART),
        ..Flow::default()
    };
    let moving =
        case(MOVING, PathSpec { trace: rates(), ..path(100, 100) }, (0..FILES).map(one_of).collect(), false);
    let setup =
        Setup { methods: vec!["64 KB", SMALLEST, LARGEST, "drs-ftp", "drs", "kernel"], ..Setup::default() };
    vec![case(STEADY, path(100, 100), vec![file], true), Case { setup, ..moving }]
}

/// Names of the methods with static buffers.
const SMALLEST: &str = "smallest BDP";
const LARGEST: &str = "largest BDP";

fn file() -> Experiment {
    let little = Amount::File(LITTLE, APART, LITTLE, APART);
    let stock = Method { amount: Some(little), ..by("fixed:64KiB", "64 KB") };
    let curl = Method { name: "curl, vsftpd", ftp: Ftp::default(), ..by("kernel", "") };
    let target = Target::new;
    Experiment {
        id: "drsftp-fig11-12",
        source: "Feng 2002, figures 11 and 12",
        question: "FTP over 100 ms, at 100 Mbit/s or at a changing rate: how fast is a file, and how much memory does it take?",
        scale: "30 MB over 100 Mbit/s; 25 transfers over a rate that moves every second, five runs of five files of 10 MB instead of \
            25 files of 100 MB; 64 KB, whose rate is steady, moves 3 MB. Smallest and largest BDP: 25 and 320 Mbit/s, as the paper \
            gives neither. The report draws the memory over time.",
        way: Way::Download,
        cases: cases(),
        methods: vec![
            stock,
            by("fixed:320KiB", SMALLEST),
            by("fixed:4MiB", LARGEST),
            by("drs-ftp", "drs-ftp"),
            by("drs", "drs"),
            by("sobas", "sobas"),
            by("kernel", "kernel"),
            curl,
        ],
        quantities: vec![
            Quantity::TransferBps,
            Quantity::TransferS,
            Quantity::TransferVariation,
            Quantity::SocketMemoryBytes,
            Quantity::RttMeanS,
            Quantity::Drops,
        ],
        targets: vec![
            target("drs", Quantity::TransferBps, Bound::AtLeastTimes(0.97, LARGEST)).only_in([STEADY]),
            target("drs", Quantity::TransferBps, Bound::AtLeastTimes(4.0, "64 KB")),
            target("drs", Quantity::SocketMemoryBytes, Bound::AtMostTimes(0.5, LARGEST, 0.0))
                .only_in([STEADY]),
            target("drs-ftp", Quantity::TransferBps, Bound::AtLeastTimes(3.0, "64 KB")).only_in([STEADY]),
        ],
        ..Experiment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_files_over_a_moving_rate_come_one_after_the_other_and_find_different_rates() {
        let catalogue = super::super::catalogue();
        let experiment = catalogue.iter().find(|one| one.id == "drsftp-fig11-12").unwrap();
        let case = experiment.cases.iter().find(|case| case.name == MOVING).unwrap();
        let starts: Vec<u64> = case.flows.iter().map(|flow| flow.delay.0 / 1_000_000_000).collect();
        assert_eq!(starts, [0, 6, 12, 18, 24]);
        let phases: std::collections::BTreeSet<u64> =
            starts.iter().map(|start| start % RATES.len() as u64).collect();
        assert_eq!(phases.len(), starts.len());
        // With a window of the smallest product, 25 Mbit/s, a file takes four seconds wherever it begins, after a second for
        // its connections.
        let moved = |start: u64| -> u64 {
            let rate = |second: u64| RATES[usize::try_from(second).unwrap() % RATES.len()].min(25);
            (start + 1..start + 5).map(rate).sum::<u64>() * 1_000_000 / 8
        };
        assert!(starts.iter().all(|start| moved(*start) >= PART));
        assert_eq!(experiment.repeat(case, false, None) * FILES, 25, "as many transfers as in the paper");
    }
}
