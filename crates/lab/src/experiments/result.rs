//! Result of an experiment: every run, medians, verdicts. The JSON is a contract; reports are also written from it.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::cell::Cell;
use super::earlier::Reaches;
use super::model::{Case, Comparison, Experiment, Method, Quantity, WEB_SERVER, Way};
use super::over_time::OverTime;
use super::ran::{self, Ran};
use super::script::{Commands, quoted};
use super::shard::Shard;
use super::{reported, verdict};

/// The result of an experiment.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ExperimentResult {
    /// Its name in the catalogue.
    pub id: String,
    /// The paper's figure, or `engine`.
    pub source: String,
    /// The question that it answers.
    pub question: String,
    /// How it differs from its source.
    pub scale: String,
    /// Release of the kernel it ran on.
    pub kernel: String,
    /// When and where it ran: of calls that continued one another the last one, of joined parts each.
    #[serde(default)]
    pub ran: Vec<Ran>,
    /// Whether it was the short form.
    pub quick: bool,
    /// Repetitions that were requested.
    pub repeat: u32,
    /// The quantities read.
    pub quantities: Vec<Quantity>,
    /// The result of each case.
    pub cases: Vec<CaseResult>,
    /// The verdicts on the targets.
    pub targets: Vec<Verdict>,
    /// The paper's figures, each with ours beside it.
    #[serde(default)]
    pub reported: Vec<Comparison>,
    /// Whether it is a survey, in which invalid runs never count.
    #[serde(default)]
    pub survey: bool,
    /// Methods that this kernel cannot run, and parts that are missing, each with the reason.
    #[serde(default)]
    pub left_out: Vec<String>,
    /// The part of the cases that it has; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shard: Option<Shard>,
    /// Number of cases of all parts together; `None`: it is no part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cases_in_all: Option<usize>,
    /// In a part: the targets over all cases, which are judged when the parts are joined.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reaches: Vec<Reaches>,
    /// The file that describes the experiment, as the call named it; `None`: it is one of the catalogue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
}

/// Verdict on a target in a case.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The case; empty: all cases together.
    pub case: String,
    /// The method.
    pub method: String,
    /// The quantity judged.
    pub quantity: Quantity,
    /// The bound, in words.
    pub text: String,
    /// The measured value, in the quantity's unit.
    pub measured: Option<f64>,
    /// Whether the target is met; `None`: a value of valid runs is missing.
    pub met: Option<bool>,
    /// Whether a value is missing because the short form leaves out the case or a method, or because this machine cannot run it,
    /// which is no failure.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub left_out: bool,
}

/// Result of one case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct CaseResult {
    /// Its name.
    pub name: String,
    /// Its paths, for people.
    pub paths: Vec<String>,
    /// Its methods.
    pub methods: Vec<MethodResult>,
    /// Valid runs that a method needs to be measured; 0: any run will do.
    #[serde(default)]
    pub needed: u32,
    /// Position in a grid of paths.
    #[serde(default)]
    pub cell: Option<Cell>,
    /// Memory that the queues of a tuned end may hold, bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// The way of the data, and for each flow whether it is background load, which the commands do not always show; empty: an
    /// earlier version wrote it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub flows: String,
}

/// Result of one method in one case.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct MethodResult {
    /// Its name.
    pub name: String,
    /// The commands that ran on host B.
    pub server: String,
    /// The commands that ran on host A.
    pub client: String,
    /// The commands on other hosts at which paths begin: host name and commands.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub elsewhere: Vec<(String, String)>,
    /// The settings of the kernels.
    pub settings: String,
    /// Every run.
    pub runs: Vec<RunResult>,
    /// Medians over the valid runs; if none is valid, over all runs (in a survey: no medians).
    pub medians: BTreeMap<Quantity, f64>,
}

/// One run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunResult {
    /// Whether the emulator kept time and every flow reached its end.
    pub valid: bool,
    /// Why the run is not valid.
    pub problem: Option<String>,
    /// Number of attempts.
    pub attempts: u32,
    /// The values it yielded.
    pub values: BTreeMap<Quantity, f64>,
    /// Remarks on how it was made, such as that `bufwise run` tuned from user space.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// The run over time. It is kept for one run of a method, in a file of its own ([`super::Samples`]).
    #[serde(skip)]
    pub over_time: Option<OverTime>,
    /// The round in which it was made, from 1; 0: not known. Only the runs that are kept singly have it on disk.
    #[serde(skip)]
    pub(super) round: u32,
}

impl ExperimentResult {
    /// Returns a result without runs. Methods whose congestion control is not `available` are left out: in a survey all of
    /// them, in other experiments those that are only for comparison. Cases whose web server, or the congestion control of a flow,
    /// is not available have no methods.
    pub(super) fn new(
        experiment: &Experiment,
        quick: bool,
        asked: Option<u32>,
        available: Option<&[String]>,
    ) -> Self {
        let known = |wanted: &str| available.is_none_or(|names| names.iter().any(|name| name == wanted));
        let has = |method: &Method| !(experiment.survey || method.beside) || known(method.congestion_control);
        let missing = experiment.methods.iter().filter(|method| !(has(method) || quick && method.beside));
        let without =
            experiment.cases(quick).filter_map(|case| Some(format!("{}: {}", case.name, lack(case, known)?)));
        let repeats = experiment.cases(quick).map(|case| experiment.repeat(case, quick, asked));
        Self {
            id: experiment.id.to_owned(),
            source: experiment.source.to_owned(),
            question: experiment.question.to_owned(),
            scale: experiment.scale.to_owned(),
            kernel: super::settings::kernel_release(),
            quick,
            repeat: repeats.min().unwrap_or(1),
            quantities: experiment.quantities.clone(),
            cases: experiment
                .cases(quick)
                .map(|case| {
                    let runs = lack(case, known).is_none();
                    CaseResult::new(experiment, case, quick, asked, |one| runs && has(one))
                })
                .collect(),
            survey: experiment.survey,
            left_out: missing.map(method_left_out).chain(without).collect(),
            ..Self::default()
        }
    }

    /// Computes medians, and compares them with the targets and the paper of `experiment`.
    pub(super) fn conclude(&mut self, experiment: &Experiment) {
        for case in &mut self.cases {
            for method in &mut case.methods {
                method.medians = medians(&method.runs, &self.quantities, case.needed);
            }
        }
        self.targets = verdict::judge(experiment, &self.cases, self.quick, &self.left_out);
        self.reported = reported::compare(experiment, &self.cases);
    }

    /// Whether it was measured as `wanted`, which has no runs, would be: the same kernel, form, quantities, cases, paths,
    /// commands and settings, as many repetitions at least, and a valid run of every method in every case.
    pub(super) fn covers(&self, wanted: &Self) -> bool {
        let form = |one: &Self| (one.kernel.clone(), one.quick, one.quantities.clone(), one.cases.len());
        form(self) == form(wanted)
            && self.repeat >= wanted.repeat
            && self.cases.iter().zip(&wanted.cases).all(|(case, wanted)| case.covers(wanted))
    }

    /// Whether every target was measured and met, except those that the short form leaves out.
    #[must_use]
    pub fn met(&self) -> bool {
        self.targets.iter().all(Verdict::passes)
    }

    /// Returns how many targets were met, how many were measured, and how many should have been but were not.
    pub(crate) fn outcome(&self) -> (usize, usize, usize) {
        let count = |of: fn(&&Verdict) -> bool| self.targets.iter().filter(of).count();
        (
            count(|target| target.met == Some(true)),
            count(|target| target.met.is_some()),
            count(|target| target.met.is_none() && !target.left_out),
        )
    }

    /// Returns the command that runs it again.
    pub(crate) fn command(&self) -> String {
        let usual = |letter: char| letter.is_ascii_alphanumeric() || "-_./".contains(letter);
        let what = match &self.file {
            None => self.id.clone(),
            Some(file) if file.chars().all(usual) => file.clone(),
            Some(file) => quoted(Path::new(file)),
        };
        let quick = if self.quick { " --quick" } else { "" };
        let runs = |case: &CaseResult| case.methods.iter().map(|method| method.runs.len()).max();
        let wanted = |case: &CaseResult| runs(case).unwrap_or_default().max(case.needed as usize);
        // The call named no number if cases have repetitions of their own.
        let has_own = self.cases.iter().any(|case| wanted(case) > self.repeat as usize);
        let repeat = if has_own { String::new() } else { format!(" --repeat {}", self.repeat) };
        format!("bufwise lab run {what}{quick}{repeat}")
    }

    /// Returns the verdicts to show: for a survey those that are not met, first the missed ones.
    pub(crate) fn shown_targets(&self) -> Vec<&Verdict> {
        let shown = self.targets.iter().filter(|target| !self.survey || target.met != Some(true));
        let mut shown: Vec<&Verdict> = shown.collect();
        shown.sort_by_key(|target| self.survey && target.met.is_none());
        shown
    }

    /// Returns for each method and quantity how many cases met the targets, did not, and cannot be judged.
    pub(crate) fn counted_targets(&self) -> Vec<(&str, Quantity, [usize; 3])> {
        let mut counts: Vec<(&str, Quantity, [usize; 3])> = Vec::new();
        for target in self.targets.iter().filter(|target| !target.left_out) {
            let kind = (target.method.as_str(), target.quantity);
            let index = counts.iter().position(|(method, quantity, _)| (*method, *quantity) == kind);
            let index = index.unwrap_or_else(|| {
                counts.push((kind.0, kind.1, [0; 3]));
                counts.len() - 1
            });
            let place = match target.met {
                Some(true) => 0,
                Some(false) => 1,
                None => 2,
            };
            counts[index].2[place] += 1;
        }
        counts
    }

    /// Returns in words how many of a survey's measured targets each method met; empty if it is no survey, or none was measured.
    pub(crate) fn met_by_method(&self) -> String {
        let mut counts: Vec<(&str, usize, usize)> = Vec::new();
        for target in self.targets.iter().filter(|target| self.survey && target.met.is_some()) {
            let met = usize::from(target.met == Some(true));
            match counts.iter_mut().find(|(method, ..)| *method == target.method) {
                Some((_, all_met, judged)) => {
                    *all_met += met;
                    *judged += 1;
                }
                None => counts.push((target.method.as_str(), met, 1)),
            }
        }
        let words = counts.iter().map(|(method, met, judged)| format!("`{method}` {met} of {judged}"));
        words.collect::<Vec<_>>().join(", ")
    }

    /// Returns when and where it ran, in lines.
    pub(crate) fn calls(&self) -> Vec<String> {
        ran::lines(&self.ran)
    }

    /// Whether any run is invalid.
    #[must_use]
    pub fn has_invalid_runs(&self) -> bool {
        self.cases.iter().flat_map(|case| &case.methods).flat_map(|method| &method.runs).any(|run| !run.valid)
    }

    /// Returns the cases that this machine can run.
    pub(crate) fn cases_that_run(&self) -> impl Iterator<Item = &CaseResult> {
        self.cases.iter().filter(|case| !case.methods.is_empty())
    }

    /// Returns the remarks on how runs were made, each once with its method.
    pub(crate) fn notes(&self) -> BTreeSet<String> {
        let of = |method: &MethodResult| {
            let notes = method.runs.iter().flat_map(|run| &run.notes);
            notes.map(|note| format!("`{}`: {note}", method.name)).collect::<Vec<_>>()
        };
        self.cases.iter().flat_map(|case| &case.methods).flat_map(of).collect()
    }

    /// Returns the problems of all runs, each once.
    pub(crate) fn problems(&self) -> BTreeSet<&str> {
        self.cases.iter().flat_map(|case| &case.methods).flat_map(MethodResult::problems).collect()
    }
}

impl CaseResult {
    fn new(
        experiment: &Experiment,
        case: &Case,
        quick: bool,
        asked: Option<u32>,
        has: impl Fn(&Method) -> bool,
    ) -> Self {
        let method = |method: Method| {
            let Commands { server, client, elsewhere } = Commands::shown(experiment, case, &method, quick);
            MethodResult {
                name: method.name.to_owned(),
                server,
                client,
                elsewhere: elsewhere.into_iter().map(|other| (other.host, other.client)).collect(),
                settings: super::settings::kernel(&method),
                ..MethodResult::default()
            }
        };
        Self {
            name: case.name.clone(),
            paths: case.paths.iter().map(super::settings::path).collect(),
            methods: experiment.methods(case, quick).filter(has).map(method).collect(),
            needed: if experiment.survey { experiment.repeat(case, quick, asked) } else { 0 },
            cell: case.setup.cell,
            memory: case.memory,
            flows: flows(experiment.way, case),
        }
    }

    /// Whether it has a valid run of every method of `wanted`, under the same conditions.
    fn covers(&self, wanted: &Self) -> bool {
        let has = |(method, wanted): (&MethodResult, _)| method.runs_as(wanted) && method.valid_runs() > 0;
        self.is_of(wanted)
            && self.methods.len() == wanted.methods.len()
            && self.methods.iter().zip(&wanted.methods).all(has)
    }

    /// Whether `other` is the same case, over the same paths.
    pub(super) fn is_of(&self, other: &Self) -> bool {
        let what = |one: &Self| (one.name.clone(), one.paths.clone(), one.cell, one.memory);
        let is_unknown = self.flows.is_empty() || other.flows.is_empty();
        what(self) == what(other) && (is_unknown || self.flows == other.flows)
    }

    /// Returns the result of a method, if it ran in this case.
    #[must_use]
    pub fn method(&self, name: &str) -> Option<&MethodResult> {
        self.methods.iter().find(|one| one.name == name)
    }

    /// Returns a case of this name in which nothing ran.
    pub(super) fn nothing(name: &str) -> Self {
        Self { name: name.to_owned(), ..Self::default() }
    }

    /// Returns the median of a quantity of a method over valid runs; `None`: none was valid.
    pub(super) fn valid_median(&self, method: &str, quantity: Quantity) -> Option<f64> {
        let method = self.method(method).filter(|method| method.valid_runs() > 0)?;
        method.medians.get(&quantity).copied()
    }

    /// Returns the median of a quantity of a method; if none of its runs was valid, the median of the invalid runs.
    #[must_use]
    pub fn median(&self, method: &str, quantity: Quantity) -> Option<f64> {
        self.method(method)?.medians.get(&quantity).copied()
    }
}

impl MethodResult {
    /// Returns the number of valid runs.
    pub(crate) fn valid_runs(&self) -> u32 {
        u32::try_from(self.runs.iter().filter(|run| run.valid).count()).unwrap_or(u32::MAX)
    }

    /// Whether a valid run of this round is there. Runs whose round is not known count as the first rounds that are missing.
    pub(super) fn has_round(&self, round: u32) -> bool {
        let known: Vec<u32> = self.runs.iter().filter(|run| run.valid).map(|run| run.round).collect();
        let unknown = known.iter().filter(|one| **one == 0).count();
        let missing = (1..=round).filter(|one| !known.contains(one)).count();
        known.contains(&round) || missing <= unknown
    }

    /// Returns the median of a quantity over the valid runs, even if these are fewer than wanted; `None`: none of them has it.
    pub(super) fn median_of_valid(&self, quantity: Quantity) -> Option<f64> {
        median(self.of_valid(quantity).collect())
    }

    /// Returns the values of a quantity in the valid runs that have it.
    pub(super) fn of_valid(&self, quantity: Quantity) -> impl Iterator<Item = f64> {
        let valid = self.runs.iter().filter(|run| run.valid);
        valid.filter_map(move |run| run.values.get(&quantity).copied())
    }

    /// Whether `other` is the same method, with the same commands and settings.
    pub(super) fn runs_as(&self, other: &Self) -> bool {
        let how = |one: &Self| [&one.name, &one.server, &one.client, &one.settings].map(String::clone);
        how(self) == how(other) && self.elsewhere == other.elsewhere
    }

    /// Returns every run's value of a quantity, with invalid runs marked.
    #[must_use]
    pub fn all(&self, quantity: Quantity) -> String {
        let show = |run: &RunResult| {
            let value =
                run.values.get(&quantity).map_or_else(|| "-".to_owned(), |value| quantity.show(*value));
            if run.valid { value } else { value + "*" }
        };
        self.runs.iter().map(show).collect::<Vec<_>>().join(", ")
    }

    /// Returns the median as text.
    #[must_use]
    pub fn median(&self, quantity: Quantity) -> String {
        self.medians.get(&quantity).map_or_else(|| "-".to_owned(), |value| quantity.show(*value))
    }

    /// Returns the least and the most of the runs that the median counts; `None` without a median.
    pub(crate) fn spread(&self, quantity: Quantity) -> Option<(f64, f64)> {
        self.medians.get(&quantity)?;
        let any_valid = self.valid_runs() > 0;
        let counted = self.runs.iter().filter(|run| run.valid || !any_valid);
        let values = counted.filter_map(|run| run.values.get(&quantity).copied());
        values.map(|value| (value, value)).reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))
    }

    /// Returns the run that is shown over time, with its index from 0.
    #[must_use]
    pub fn over_time(&self) -> Option<(usize, &OverTime)> {
        self.runs.iter().enumerate().find_map(|(number, run)| Some((number, run.over_time.as_ref()?)))
    }

    /// Drops the runs over time except at most `most`: those nearest to the median of `quantity`.
    pub(super) fn keep_over_time(&mut self, quantity: Option<Quantity>, most: usize) {
        let mut kept = self.nearest(quantity);
        kept.truncate(most);
        for (number, run) in self.runs.iter_mut().enumerate() {
            run.over_time = run.over_time.take().filter(|_| kept.contains(&number));
        }
    }

    /// Returns the run over time that is nearest to the median of `quantity`, with its index from 0.
    pub(super) fn nearest_over_time(&self, quantity: Option<Quantity>) -> Option<(usize, &OverTime)> {
        let number = *self.nearest(quantity).first()?;
        Some((number, self.runs.get(number)?.over_time.as_ref()?))
    }

    /// Returns the indices of the runs over time, the nearest to the median of `quantity` first; if any run is valid, only those of
    /// valid runs.
    fn nearest(&self, quantity: Option<Quantity>) -> Vec<usize> {
        let value = |run: &RunResult| quantity.and_then(|quantity| run.values.get(&quantity).copied());
        let any_valid = self.valid_runs() > 0;
        let counts = |run: &RunResult| run.valid || !any_valid;
        let middle = median(self.runs.iter().filter(|run| counts(run)).filter_map(value).collect());
        let distance = |number: &usize| match (value(&self.runs[*number]), middle) {
            (Some(value), Some(middle)) => (value - middle).abs(),
            _ => f64::INFINITY,
        };
        let runs = self.runs.iter().enumerate().filter(|(_, run)| counts(run) && run.over_time.is_some());
        let mut nearest: Vec<usize> = runs.map(|(number, _)| number).collect();
        nearest.sort_by(|one, other| distance(one).total_cmp(&distance(other)));
        nearest
    }

    /// Returns the problems of the runs, each once.
    #[must_use]
    pub fn problems(&self) -> BTreeSet<&str> {
        self.runs.iter().filter_map(|run| run.problem.as_deref()).collect()
    }
}

/// Returns the line on a method that is left out because the kernel lacks its congestion control.
pub(super) fn method_left_out(method: &Method) -> String {
    format!("{}: {}", method.name, without_congestion_control(method.congestion_control))
}

/// Returns what this machine lacks for `case`, in words; `known` tells whether it has a congestion control or the web server. `None`:
/// nothing.
fn lack(case: &Case, known: impl Fn(&str) -> bool) -> Option<String> {
    if case.needs_web_server() && !known(WEB_SERVER) {
        return Some(format!("no {WEB_SERVER} on this machine"));
    }
    let mut of_flows = case.flows.iter().filter_map(|flow| flow.congestion_control);
    of_flows.find(|name| !known(name)).map(without_congestion_control)
}

fn without_congestion_control(name: &str) -> String {
    format!("no {name} in this kernel")
}

/// Returns the way of the data and the kinds of the flows, in words.
fn flows(way: Way, case: &Case) -> String {
    let kinds = case.flows.iter().map(|flow| if flow.cross { "background" } else { "measured" });
    let way = if way == Way::Upload { "upload" } else { "download" };
    std::iter::once(way).chain(kinds).collect::<Vec<_>>().join(", ")
}

/// Computes medians over the valid runs. With fewer than `needed` valid runs there is no median; if `needed` is 0 and
/// no run is valid, all runs count.
fn medians(runs: &[RunResult], quantities: &[Quantity], needed: u32) -> BTreeMap<Quantity, f64> {
    let valid = runs.iter().filter(|run| run.valid).count();
    if valid < needed as usize {
        return BTreeMap::new();
    }
    let any_valid = valid > 0;
    let counted: Vec<&RunResult> = runs.iter().filter(|run| run.valid || !any_valid).collect();
    let of = |quantity: &Quantity| {
        let values = counted.iter().filter_map(|run| run.values.get(quantity).copied()).collect();
        Some((*quantity, median(values)?))
    };
    quantities.iter().filter_map(of).collect()
}

/// Returns the middle value; for an even number the mean of the two in the middle.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get((values.len() - 1) / 2)?;
    Some(f64::midpoint(lower, upper))
}

/// Writes the table that is shown while experiments run.
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
        self.left_out.iter().try_for_each(|method| writeln!(f, "  left out: {method}"))?;
        self.notes().iter().try_for_each(|note| writeln!(f, "  note: {note}"))?;
        self.shown_targets().iter().try_for_each(|verdict| writeln!(f, "  {verdict}"))?;
        self.reported.iter().try_for_each(|comparison| writeln!(f, "  {comparison}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(valid: bool, goodput: f64) -> RunResult {
        let values = BTreeMap::from([(Quantity::GoodputBps, goodput)]);
        RunResult { valid, attempts: 1, values, ..RunResult::default() }
    }

    #[test]
    fn the_run_that_is_kept_over_time_is_a_valid_one_near_the_median() {
        let seen = |valid, goodput| RunResult { over_time: Some(OverTime::default()), ..run(valid, goodput) };
        let kept = |runs: Vec<RunResult>| {
            let mut method = MethodResult { runs, ..MethodResult::default() };
            method.keep_over_time(Some(Quantity::GoodputBps), 1);
            assert!(method.runs.iter().filter(|run| run.over_time.is_some()).count() <= 1);
            method.over_time().map(|(number, _)| number)
        };
        assert_eq!(kept(vec![seen(true, 1.0), seen(true, 9.0), seen(false, 5.1), seen(true, 5.0)]), Some(3));
        assert_eq!(kept(vec![seen(false, 1.0), seen(false, 2.0), seen(false, 8.0)]), Some(1));
        // The valid run has no samples.
        assert_eq!(kept(vec![seen(false, 1.0), run(true, 2.0)]), None);
    }

    #[test]
    fn runs_of_unknown_rounds_count_as_the_first_that_are_missing() {
        let has = |rounds: &[u32]| {
            let runs = rounds.iter().map(|round| RunResult { round: *round, ..run(true, 1.0) }).collect();
            let method = MethodResult { runs, ..MethodResult::default() };
            [1, 2, 3, 4].map(|round| method.has_round(round))
        };
        assert_eq!(has(&[2, 3]), [false, true, true, false]);
        assert_eq!(has(&[0, 0]), [true, true, false, false], "an earlier version wrote them");
        assert_eq!(has(&[0, 2]), [true, true, false, false]);
    }

    #[test]
    fn an_experiment_with_repetitions_of_its_own_is_run_again_without_their_number() {
        let command = |needed: [u32; 2]| {
            let cases = needed.map(|needed| CaseResult { needed, ..CaseResult::nothing("c") }).to_vec();
            let id = "grid".to_owned();
            ExperimentResult { id, repeat: 3, cases, ..ExperimentResult::default() }.command()
        };
        assert_eq!(command([3, 3]), "bufwise lab run grid --repeat 3");
        assert_eq!(command([3, 5]), "bufwise lab run grid");
    }

    #[test]
    fn medians_leave_invalid_runs_out_unless_there_are_no_others() {
        let of = |runs: &[RunResult]| medians(runs, &[Quantity::GoodputBps], 0)[&Quantity::GoodputBps];
        assert_eq!(of(&[run(true, 1.0), run(true, 9.0), run(true, 2.0)]), 2.0);
        assert_eq!(of(&[run(true, 1.0), run(false, 90.0), run(true, 2.0)]), 1.5);
        assert_eq!(of(&[run(false, 7.0)]), 7.0);
        let survey = |runs: &[RunResult]| medians(runs, &[Quantity::GoodputBps], 2);
        assert_eq!(survey(&[run(true, 1.0), run(false, 9.0), run(true, 2.0)])[&Quantity::GoodputBps], 1.5);
        assert!(survey(&[run(true, 1.0), run(false, 9.0)]).is_empty());
        assert!(medians(&[], &[Quantity::GoodputBps], 0).is_empty());
    }
}
