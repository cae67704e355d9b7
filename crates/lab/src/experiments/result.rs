//! Result of an experiment: every run, medians, verdicts. The JSON is a contract; reports are written from it, too.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use serde::{Deserialize, Serialize};

use super::model::{Case, Experiment, Quantity};
use super::script::Commands;

/// An experiment's outcome.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// Its name in the catalogue.
    pub id: String,
    /// The paper's figure, or `engine`.
    pub source: String,
    /// The question it answers.
    pub question: String,
    /// How it differs from its source.
    pub scale: String,
    /// Release of the kernel it ran on.
    pub kernel: String,
    /// Whether it was the short form.
    pub quick: bool,
    /// Repetitions that were asked for.
    pub repeat: u32,
    /// The quantities read.
    pub quantities: Vec<Quantity>,
    /// The result of each case.
    pub cases: Vec<CaseResult>,
    /// The verdicts on the targets.
    pub targets: Vec<Verdict>,
}

/// Verdict of the medians on a target in a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The case; empty: all of them together.
    pub case: String,
    /// The method.
    pub method: String,
    /// The quantity judged.
    pub quantity: Quantity,
    /// The bound that it should keep to, in words.
    pub text: String,
    /// The measured value, in the quantity's unit.
    pub measured: Option<f64>,
    /// Whether it is as it should be; `None`: a number is missing.
    pub met: Option<bool>,
}

/// Result of one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CaseResult {
    /// Its name.
    pub name: String,
    /// Its paths, for people.
    pub paths: Vec<String>,
    /// Its methods.
    pub methods: Vec<MethodResult>,
}

/// Result of one method in one case.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MethodResult {
    /// Its name.
    pub name: String,
    /// The commands that ran on host B.
    pub server: String,
    /// The commands that ran on host A.
    pub client: String,
    /// How the kernels were set.
    pub settings: String,
    /// Every run.
    pub runs: Vec<RunResult>,
    /// Medians over the valid runs; over all when none is valid.
    pub medians: BTreeMap<Quantity, f64>,
}

/// One run.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RunResult {
    /// Whether the emulator kept time and every flow reached its end.
    pub valid: bool,
    /// Why not.
    pub problem: Option<String>,
    /// Attempts it took.
    pub attempts: u32,
    /// The values it yielded.
    pub values: BTreeMap<Quantity, f64>,
}

impl ExperimentResult {
    pub(super) fn new(experiment: &Experiment, quick: bool, repeat: u32) -> Self {
        let case = |case: &Case| CaseResult {
            name: case.name.clone(),
            paths: case.paths.iter().map(super::settings::path).collect(),
            methods: experiment
                .methods
                .iter()
                .map(|method| {
                    let Commands { server, client } = Commands::shown(experiment, case, method, quick);
                    MethodResult {
                        name: method.name.to_owned(),
                        server,
                        client,
                        settings: super::settings::kernel(method),
                        runs: Vec::new(),
                        medians: BTreeMap::new(),
                    }
                })
                .collect(),
        };
        Self {
            id: experiment.id.to_owned(),
            source: experiment.source.to_owned(),
            question: experiment.question.to_owned(),
            scale: experiment.scale.to_owned(),
            kernel: super::settings::kernel_release(),
            quick,
            repeat,
            quantities: experiment.quantities.clone(),
            cases: experiment.cases(quick).map(case).collect(),
            targets: Vec::new(),
        }
    }

    /// Computes medians.
    pub(super) fn conclude(&mut self) {
        for case in &mut self.cases {
            for method in &mut case.methods {
                method.medians = medians(&method.runs, &self.quantities);
            }
        }
    }

    /// Whether every target was met that could be judged.
    #[must_use]
    pub fn met(&self) -> bool {
        self.targets.iter().all(|target| target.met != Some(false))
    }

    /// Whether a run is not to be trusted.
    #[must_use]
    pub fn has_invalid_runs(&self) -> bool {
        self.cases.iter().flat_map(|case| &case.methods).flat_map(|method| &method.runs).any(|run| !run.valid)
    }
}

impl CaseResult {
    /// The median of a quantity of a method.
    #[must_use]
    pub fn median(&self, method: &str, quantity: Quantity) -> Option<f64> {
        self.methods.iter().find(|one| one.name == method)?.medians.get(&quantity).copied()
    }
}

impl MethodResult {
    /// Every run's value of a quantity, the invalid ones marked.
    #[must_use]
    pub fn all(&self, quantity: Quantity) -> String {
        let show = |run: &RunResult| {
            let value =
                run.values.get(&quantity).map_or_else(|| "-".to_owned(), |value| quantity.show(*value));
            if run.valid { value } else { value + "*" }
        };
        self.runs.iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// The median for people.
    #[must_use]
    pub fn median(&self, quantity: Quantity) -> String {
        self.medians.get(&quantity).map_or_else(|| "-".to_owned(), |value| quantity.show(*value))
    }

    /// The problems of the runs, each reason once.
    #[must_use]
    pub fn problems(&self) -> BTreeSet<&str> {
        self.runs.iter().filter_map(|run| run.problem.as_deref()).collect()
    }
}

fn medians(runs: &[RunResult], quantities: &[Quantity]) -> BTreeMap<Quantity, f64> {
    let any_valid = runs.iter().any(|run| run.valid);
    let counted: Vec<&RunResult> = runs.iter().filter(|run| run.valid || !any_valid).collect();
    let of = |quantity: &Quantity| {
        let values = counted.iter().filter_map(|run| run.values.get(quantity).copied()).collect();
        Some((*quantity, median(values)?))
    };
    quantities.iter().filter_map(of).collect()
}

/// The middle value; of an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// The table that people see while experiments run.
impl fmt::Display for ExperimentResult {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}  {}", self.id, self.question)?;
        for case in &self.cases {
            writeln!(f, "  {}: {}", case.name, case.paths.join("; "))?;
            for method in &case.methods {
                writeln!(f, "    {}", method.name)?;
                for quantity in &self.quantities {
                    if method.medians.contains_key(quantity) {
                        let head = quantity.to_string();
                        writeln!(
                            f,
                            "      {head:<26} {:>9}   of {}",
                            method.median(*quantity),
                            method.all(*quantity)
                        )?;
                    }
                }
                method.problems().iter().try_for_each(|problem| writeln!(f, "      * {problem}"))?;
            }
        }
        self.targets.iter().try_for_each(|verdict| writeln!(f, "  {verdict}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(valid: bool, goodput: f64) -> RunResult {
        let values = BTreeMap::from([(Quantity::GoodputBps, goodput)]);
        RunResult { valid, problem: None, attempts: 1, values }
    }

    #[test]
    fn medians_leave_invalid_runs_out_unless_there_are_no_others() {
        let of = |runs: &[RunResult]| medians(runs, &[Quantity::GoodputBps])[&Quantity::GoodputBps];
        assert_eq!(of(&[run(true, 1.0), run(true, 9.0), run(true, 2.0)]), 2.0);
        assert_eq!(of(&[run(true, 1.0), run(false, 90.0), run(true, 2.0)]), 1.5);
        assert_eq!(of(&[run(false, 7.0)]), 7.0);
        assert!(medians(&[], &[Quantity::GoodputBps]).is_empty());
    }
}
