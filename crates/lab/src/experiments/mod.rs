//! The papers' experiments and the engine's, by name. Each experiment is data, in one file per group.
//!
//! Every run has its own hosts, kernel settings and path. The methods of a case alternate; medians of several
//! repetitions are compared with stated targets. A run in which the emulator stalled is repeated, and marked if that
//! does not help; in a survey it never counts. Surveys take hours: their finished runs are kept, and a second call
//! continues.

mod abt;
mod beside;
mod budget;
mod cell;
mod cost;
mod directory;
mod documents;
mod drs;
mod drs_ftp;
mod earlier;
mod ends;
mod engine;
mod fairness;
mod file;
mod fit;
mod fit_grid;
mod fit_harm;
mod ftp;
mod head_to_head;
mod heat;
mod idle;
mod kept;
mod machine;
mod markdown;
mod model;
mod no_harm;
mod over_time;
mod papers;
mod path_changes;
mod probe_grid;
mod program;
mod quantity;
mod ran;
mod reading;
mod reported;
mod reports;
mod result;
mod runner;
mod sabt;
mod sabt_shared;
mod samples;
mod script;
mod series;
mod settings;
mod shard;
mod sobas;
mod sobas_fixed;
mod sobas_queues;
mod summary;
mod table;
mod transfers;
mod verdict;
mod windows;

pub use cell::{Cell, Queue};
pub use earlier::Reaches;
use file::built_in;
pub use file::{FileError, LARGEST_FILE, Policies, outline, parse, show};
pub use heat::{HeatMapError, draw as heat_maps};
pub(crate) use heat::{map as heat_map, methods as maps};
pub(crate) use kept::plain;
pub use kept::{KeptError, finished, forget_runs, other_form, other_origin, read_regular, unfinished};
pub use markdown::write as markdown;
pub use model::{
    Agreement, Amount, Bound, Case, Claim, Comparison, Experiment, Flow, Ftp, MAX_CONNECTIONS, Method,
    Program, Quantity, Reported, Setup, Target, WEB_SERVER, Way,
};
pub use over_time::{OverTime, Track};
pub use ran::Ran;
pub use result::{CaseResult, ExperimentResult, MethodResult, RunResult, Verdict};
pub use runner::{ExperimentError, Options, StopSignal, run};
#[cfg(test)]
pub(crate) use samples::tests::with_samples;
pub use samples::{SAMPLES, Samples};
pub use script::Commands;
pub(crate) use script::quoted;
pub use shard::{ParseShardError, Shard, file_name, join};
pub(crate) use summary::tables;
pub(crate) use table::Table;

/// Returns all experiments, in the order in which they are listed and run.
#[must_use]
pub fn catalogue() -> Vec<Experiment> {
    [
        built_in(&["expert-500", "expert-1g", "abt-fig1"]),
        abt::experiments(),
        budget::experiments(),
        sabt_shared::experiments(),
        sabt::experiments(),
        drs::experiments(),
        built_in(&["drs-fig5-6"]),
        drs_ftp::experiments(),
        path_changes::experiments(),
        sobas_fixed::experiments(),
        sobas::experiments(),
        sobas_queues::experiments(),
        no_harm::experiments(),
        cost::experiments(),
        fit_grid::experiments(),
        fit_harm::experiments(),
        head_to_head::experiments(),
        probe_grid::experiments(),
    ]
    .concat()
    .into_iter()
    .map(beside::with_kernels)
    .collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Returns the set of names; fails if one occurs twice.
    fn unique<'a>(names: impl Iterator<Item = &'a str>) -> BTreeSet<String> {
        let mut seen = BTreeSet::new();
        for name in names {
            assert!(seen.insert(name.to_owned()), "{name} twice");
        }
        seen
    }

    #[test]
    fn every_experiment_has_a_name_a_question_and_a_target() {
        let catalogue = catalogue();
        let ids = unique(catalogue.iter().map(|experiment| experiment.id));
        for id in [
            "expert-500",
            "abt-many",
            "sabt-fig10",
            "drs-fig4",
            "drsftp-fig11-12",
            "sobas-unaware",
            "sobas-fig9-10",
        ] {
            assert!(ids.contains(id), "{id}");
        }
        for Experiment { id, source, question, scale, targets, .. } in &catalogue {
            assert!(!targets.is_empty(), "{id}");
            assert!(question.ends_with('?') && question.len() < 120 && !question.contains('\n'), "{id}");
            assert!(!source.is_empty() && scale.ends_with('.'), "{id}");
        }
    }

    #[test]
    fn targets_speak_of_what_is_there() {
        for experiment in catalogue() {
            let id = experiment.id;
            let methods = unique(experiment.methods.iter().map(|method| method.name));
            let cases = unique(experiment.cases.iter().map(|case| case.name.as_str()));
            for target in &experiment.targets {
                assert!(methods.contains(target.method), "{id}: {}", target.method);
                assert!(experiment.quantities.contains(&target.quantity), "{id}: {:?}", target.quantity);
                assert!(target.cases.iter().all(|case| cases.contains(case)), "{id}: {:?}", target.cases);
                if let Bound::AtLeastTimesBest(_, others) = target.bound {
                    assert!(others.iter().all(|other| methods.contains(*other)), "{id}: {others:?}");
                }
                if let Bound::AtLeastTimes(_, other)
                | Bound::AtMostTimes(_, other, _)
                | Bound::WithinProducts(_, _, other)
                | Bound::EarlierThan(_, other) = target.bound
                {
                    assert!(methods.contains(other) && other != target.method, "{id}: {other}");
                }
                let memory = experiment.cases.iter().all(|case| case.memory.is_some());
                assert!(target.bound != Bound::WithinMemory || memory, "{id}");
            }
        }
    }

    #[test]
    fn cases_can_be_run() {
        for experiment in catalogue() {
            let id = experiment.id;
            assert!(experiment.cases(true).count() > 0, "{id}: nothing is quick");
            let (quick, whole) = (experiment.seconds(true, Some(1)), experiment.seconds(false, Some(1)));
            if experiment.survey {
                // Under a quarter of an hour, with some runs repeated; five hours with all repetitions.
                assert!(quick < 780, "{id}: {quick} s");
                let whole = experiment.seconds(false, None);
                assert!(whole < 5 * 3_600, "{id}: {whole} s");
            } else {
                assert!(quick < 60, "{id}: {quick} s");
                assert!(whole <= 300, "{id}: {whole} s");
            }
            for case in &experiment.cases {
                for path in &case.paths {
                    path.directions().unwrap_or_else(|error| panic!("{id}: {error}"));
                }
                assert!(case.flows.iter().any(|flow| !flow.cross), "{id}");
                for flow in &case.flows {
                    assert!(usize::from(flow.path) < case.paths.len(), "{id}");
                    assert!((1..=MAX_CONNECTIONS).contains(&flow.connections), "{id}");
                }
            }
        }
    }
}
