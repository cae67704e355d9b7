//! Compares automatic buffer tuning over the same paths: the kernel's, bpftune's, and each policy of bufwise.

use bufwise_link::{QueueLimit, QueueSize};

use super::budget;
use super::cell::{Cell, Queue};
use super::fit::{self, BOTH, LARGE, RECEIVER, SENDER};
use super::fit_grid;
use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use super::model::{USUAL_RMEM, USUAL_WMEM};
use super::result::{CaseResult, ExperimentResult, MethodResult};
use super::script::BPFTUNE;
use super::table::Table;
use crate::spec::PathSpec;

pub(super) const ID: &str = "head-to-head";

const CUBIC: &str = "cubic";
const CUBIC_LARGE: &str = "cubic, 64 MB";
const BBR: &str = "bbr, 64 MB";

/// A cell besides the corners that `--quick` runs, and the seconds there.
const MIDDLE: Cell = Cell { rate_bps: 100_000_000, rtt_ms: 40, queue: Queue::Bdp, seconds: 15 };
const QUICK_SECONDS: u32 = 2;
/// Numbers of connections, each with the MiB that they may hold.
const PRESSURE: [(u16, u64); 4] = [(1, 2), (50, 4), (500, 16), (2_000, 64)];
/// Methods that `--quick` runs in cases where it does not run all.
const FEW: [&str; 2] = [CUBIC, SENDER];

const CHANGES_SLOWLY: &str = "a path that changes every 20 s";
const CHANGES_FAST: &str = "a path that changes every 2 s";

pub(super) fn experiments() -> Vec<Experiment> {
    let cases = [in_cells(), under_pressure(), on_changing_paths()].concat();
    let targets = targets(&cases);
    vec![Experiment {
        id: ID,
        source: "engine",
        question: "How do the kernel, bpftune's rule and every policy compare in goodput, drops, added RTT and memory?",
        scale: "iperf3 downloads of 15 s (12 s with many connections, 60 and 12 s where the path changes), slow start included; medians of \
            three valid runs. This machine's kernel alone: 6.1, 6.12 and others were not run. The distribution's limits (6 MB to \
            receive, 4 MB to send) at an end that is tuned, and at both for `cubic`; 64 MB at an end that is not tuned, so that its buffer \
            is not the limit. `bpftune` is its rule from user space, on samples, at both ends. A memory bounds bufwise's policies, and \
            is `tcp_mem` to bpftune's rule; the kernel alone has none.",
        way: Way::Download,
        cases,
        methods: methods(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::GoodputShare,
            Quantity::Drops,
            Quantity::AddedRttS,
            Quantity::HeldPeakBytes,
            Quantity::ReceiveHeldPeakBytes,
            Quantity::Served,
        ],
        targets,
        counts_cost: false,
        survey: true,
    }]
}

/// Returns the methods; a tuned end has the distribution's limits, an untuned one large limits.
fn methods() -> Vec<Method> {
    let usual = Method::default();
    let sends = Method { rmem: LARGE, wmem: USUAL_WMEM, ..usual.clone() };
    let receives = Method { rmem: USUAL_RMEM, wmem: LARGE, ..usual.clone() };
    let large = |name, congestion_control| Method { name, congestion_control, wmem: LARGE, ..sends.clone() };
    let by_sender = |policy| Method { name: policy, server: Some(policy), ..sends.clone() };
    let by_receiver = |policy| Method { name: policy, client: Some(policy), ..receives.clone() };
    let [fit_sends, ..] = fit::methods(&sends);
    let [_, fit_receives, _] = fit::methods(&receives);
    let [.., fit_both] = fit::methods(&usual);
    vec![
        Method { name: CUBIC, ..usual.clone() },
        large(CUBIC_LARGE, "cubic"),
        large(BBR, "bbr"),
        Method { name: BPFTUNE, server: Some(BPFTUNE), client: Some(BPFTUNE), ..usual },
        by_sender("abt"),
        by_sender("sabt"),
        by_receiver("drs"),
        by_receiver("sobas"),
        fit_sends,
        fit_receives,
        fit_both,
    ]
}

fn in_cells() -> Vec<Case> {
    let middle = Case { quick: true, ..fit_grid::download(MIDDLE, QUICK_SECONDS) };
    let corners = fit_grid::corners().into_iter().map(|cell| fit_grid::download(cell, QUICK_SECONDS));
    corners.chain([middle]).collect()
}

/// Returns cases of a host with many connections and little memory.
fn under_pressure() -> Vec<Case> {
    let case = |(connections, mebibytes)| {
        let quick = connections == 50;
        let mut case = budget::case(200, 40, connections, mebibytes, quick);
        for flow in &mut case.flows {
            flow.amount = Amount::Seconds(12, QUICK_SECONDS);
        }
        Case { setup: Setup { quick: FEW.to_vec(), ..Setup::default() }, ..case }
    };
    PRESSURE.map(case).to_vec()
}

/// Returns cases of paths that change: 100 Mbit/s x 20 ms, then a quarter of the rate, then three times the round trip;
/// the queue stays.
fn on_changing_paths() -> Vec<Case> {
    let case = |name: &str, lasts: u32, amount, quick| {
        let trace =
            format!("0 100mbit 10ms\n{lasts} 25mbit 10ms\n{} 100mbit 30ms\n{} repeat", 2 * lasts, 3 * lasts);
        let queue = Some(QueueSize::Limit(QueueLimit::Bytes(250_000)));
        Case {
            name: name.to_owned(),
            paths: vec![PathSpec {
                trace: trace.parse().ok(),
                trace_begins_with_data: true,
                queue,
                ..path(100, 20)
            }],
            flows: vec![Flow { amount, ..Flow::default() }],
            memory: None,
            quick,
            setup: Setup { quick: FEW.to_vec(), ..Setup::default() },
        }
    };
    vec![
        case(CHANGES_SLOWLY, 20, Amount::Seconds(60, 60), false),
        case(CHANGES_FAST, 2, Amount::Seconds(12, 3), true),
    ]
}

fn targets(cases: &[Case]) -> Vec<Target> {
    let named = |of: fn(&&Case) -> bool| -> Vec<String> {
        cases.iter().filter(of).map(|case| case.name.clone()).collect()
    };
    let alone = named(|case| case.memory.is_none());
    let of_fit = |method| {
        let best = Bound::AtLeastTimesBest(0.97, [CUBIC_LARGE, BBR]);
        [
            (Quantity::GoodputShare, best),
            (Quantity::Drops, Bound::AtMostTimes(0.1, CUBIC_LARGE, 0.0)),
            (Quantity::AddedRttS, Bound::AtMostTimes(0.5, CUBIC_LARGE, 0.002)),
        ]
        .map(|(quantity, bound)| Target { cases: alone.clone(), ..Target::new(method, quantity, bound) })
    };
    let (sent, received) = (Quantity::HeldPeakBytes, Quantity::ReceiveHeldPeakBytes);
    let bounded = [
        ("abt", sent),
        ("sabt", sent),
        (SENDER, sent),
        (BOTH, sent),
        ("drs", received),
        ("sobas", received),
        (RECEIVER, received),
        (BOTH, received),
    ];
    let within = cases.iter().filter_map(|case| Some((case, case.memory?))).flat_map(|(case, memory)| {
        let of = move |(method, quantity)| Target {
            cases: vec![case.name.clone()],
            ..Target::new(method, quantity, Bound::AtMost(memory as f64))
        };
        bounded.map(of)
    });
    [SENDER, RECEIVER, BOTH].into_iter().flat_map(of_fit).chain(within).collect()
}

/// Returns the tables to quote: one of all cells together, and one of each other case. A cell that still lacks runs is not counted,
/// because methods without a median there would have no mean.
pub(super) fn quoted(result: &ExperimentResult) -> Vec<Table> {
    let (mut cells, others): (Vec<&CaseResult>, Vec<&CaseResult>) =
        result.cases.iter().partition(|case| case.cell.is_some());
    cells.retain(|case| !is_under_way(case));
    let title = match cells[..] {
        [] | [_] => cells.iter().map(|case| case.name.clone()).collect(),
        _ => format!("Over {} paths (means; of drops the sum)", cells.len()),
    };
    let all = (!cells.is_empty()).then(|| table(title, &cells));
    all.into_iter().chain(others.into_iter().map(|case| table(case.name.clone(), &[case]))).collect()
}

/// Whether a method of `case` has some of its runs, but not all.
fn is_under_way(case: &CaseResult) -> bool {
    let lacks_runs = |method: &MethodResult| {
        method.medians.is_empty() && (1..case.needed as usize).contains(&method.runs.len())
    };
    case.methods.iter().any(lacks_runs)
}

/// Makes a table of the methods over some cases. A method without a value in one of the cases has `-`.
fn table(title: String, cases: &[&CaseResult]) -> Table {
    let cell = |method: &str, quantity: Quantity| {
        let values: Option<Vec<f64>> = cases.iter().map(|case| case.median(method, quantity)).collect();
        let sum = values.map(|values| values.into_iter().sum::<f64>());
        let shown = sum.map(|sum| if quantity == Quantity::Drops { sum } else { sum / cases.len() as f64 });
        shown.map_or_else(|| "-".to_owned(), |value| quantity.show(value))
    };
    // Parts may come from machines that lack different methods.
    let mut methods: Vec<&str> = Vec::new();
    for method in cases.iter().flat_map(|case| &case.methods) {
        if !methods.contains(&method.name.as_str()) {
            methods.push(&method.name);
        }
    }
    Table {
        title,
        note: String::new(),
        of: "method",
        heads: vec![
            "goodput, % of the path's",
            "drops, packets",
            "added RTT, ms",
            "held by the sender, MB",
            "held by the receiver, MB",
        ],
        rows: methods
            .into_iter()
            .map(|method| {
                let quantities = [
                    Quantity::GoodputShare,
                    Quantity::Drops,
                    Quantity::AddedRttS,
                    Quantity::HeldPeakBytes,
                    Quantity::ReceiveHeldPeakBytes,
                ];
                (method.to_owned(), quantities.map(|quantity| cell(method, quantity)).to_vec())
            })
            .collect(),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::result::RunResult;
    use super::super::script::Commands;
    use super::super::summary::tables;
    use super::*;

    fn experiment() -> Experiment {
        experiments().remove(0)
    }

    #[test]
    fn the_quick_form_has_every_method_and_every_kind_of_case_within_a_minute() {
        let experiment = experiment();
        let quick: Vec<(&Case, usize)> =
            experiment.cases(true).map(|case| (case, experiment.methods(case, true).count())).collect();
        assert!(quick.iter().any(|(case, methods)| case.setup.cell.is_some() && *methods == 11));
        assert!(quick.iter().any(|(case, methods)| case.memory.is_some() && *methods == FEW.len()));
        assert!(quick.iter().any(|(case, _)| case.paths[0].trace_begins_with_data));
        assert!(experiment.seconds(true, None) < 60, "{} s", experiment.seconds(true, None));
        let whole = experiment.cases.iter().flat_map(|case| experiment.methods(case, false)).count();
        assert_eq!(whole, experiment.cases.len() * 11);
    }

    #[test]
    fn only_an_end_that_is_tuned_has_the_distributions_limits() {
        for Method { name, rmem, wmem, server, client, .. } in methods() {
            let (sends, receives) = (wmem == USUAL_WMEM, rmem == USUAL_RMEM);
            let tuned = |policy: Option<&str>| policy.is_some();
            let wanted = if name == CUBIC { (true, true) } else { (tuned(server), tuned(client)) };
            assert_eq!((sends, receives), wanted, "{name}");
        }
    }

    #[test]
    fn bpftunes_rule_has_a_command_of_its_own_at_both_ends() {
        let experiment = experiment();
        let case = experiment.cases.iter().find(|case| case.memory == Some(2 << 20)).unwrap();
        let method = experiment.methods.iter().find(|method| method.name == BPFTUNE).unwrap();
        let Commands { server, client, .. } = Commands::shown(&experiment, case, method, false);
        let around = "bufwise lab bpftune --memory 2097152B -- sh -c 'iperf3";
        assert_eq!(server, format!("{around} -s -1 -p 5201'"));
        assert!(client.starts_with("bufwise lab bpftune --memory 2097152B -- sh -c 'timeout "), "{client}");
    }

    #[test]
    fn a_table_has_means_over_the_cells_and_the_sum_of_their_drops() {
        let mut result = ExperimentResult::new(&experiment(), false, None, None);
        let mut share = 0.5;
        for case in result.cases.iter_mut().filter(|case| case.cell.is_some()) {
            for method in case.methods.iter_mut().filter(|method| method.name != BBR) {
                let values = [(Quantity::GoodputShare, share), (Quantity::Drops, 3.0)];
                method.medians = BTreeMap::from(values);
            }
            share += 0.05;
        }
        let tables = tables(&result);
        assert_eq!(tables.len(), 1 + PRESSURE.len() + 2);
        assert_eq!(tables[0].title, "Over 9 paths (means; of drops the sum)");
        let row = |name: &str| tables[0].rows.iter().find(|row| row.0 == name).unwrap().1.clone();
        assert_eq!(row(CUBIC), ["70.0", "27", "-", "-", "-"]);
        assert_eq!(row(BBR), ["-"; 5]);
        assert!(tables[1].rows.iter().all(|(_, cells)| cells.iter().all(|cell| cell == "-")));
    }

    /// Returns the title of the first table, and its first column by method.
    fn first_table(result: &ExperimentResult) -> (String, BTreeMap<String, String>) {
        let Table { title, rows, .. } = tables(result).remove(0);
        (title, rows.into_iter().map(|(method, cells)| (method, cells[0].clone())).collect())
    }

    #[test]
    fn a_cell_under_way_takes_no_mean_from_the_others() {
        let mut result = ExperimentResult::new(&experiment(), false, None, None);
        let cells = result.cases.iter_mut().filter(|case| case.cell.is_some());
        for method in cells.flat_map(|case| &mut case.methods) {
            method.medians = BTreeMap::from([(Quantity::GoodputShare, 0.5)]);
        }
        // Two of three rounds, and the first run of the third.
        let run = RunResult { valid: true, ..RunResult::default() };
        let [first, others @ ..] = &mut result.cases[0].methods[..] else { panic!("no method") };
        first.runs = vec![run.clone(); 3];
        for method in others {
            (method.runs, method.medians) = (vec![run.clone(); 2], BTreeMap::new());
        }
        let (title, shares) = first_table(&result);
        assert_eq!(title, "Over 8 paths (means; of drops the sum)");
        assert!(shares.len() == 11 && shares.values().all(|share| share == "50.0"), "{shares:?}");
        // As many runs as wanted, of which one does not count: the method has no median there.
        result.cases[0].methods[1..].iter_mut().for_each(|method| method.runs.push(RunResult::default()));
        let (title, shares) = first_table(&result);
        assert_eq!(title, "Over 9 paths (means; of drops the sum)");
        assert_eq!((shares[CUBIC].as_str(), shares[BBR].as_str()), ("50.0", "-"));
    }

    #[test]
    fn a_method_that_the_machine_of_the_first_cell_lacks_has_a_row() {
        let mut result = ExperimentResult::new(&experiment(), false, None, None);
        result.cases[0].methods.retain(|method| method.name != BBR);
        assert!(first_table(&result).1.contains_key(BBR));
    }
}
