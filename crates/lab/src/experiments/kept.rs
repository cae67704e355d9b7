//! Finds on disk what an earlier call has measured, so that the next call continues where it stopped.
//!
//! Each finished run is kept, in one file per case. A survey's stay. Those of any other experiment are removed once its whole
//! result is written, and are used again only if the caller asks for it. Runs and results are used again only if the kernel,
//! the paths, the quantities, the commands and the settings are the same.
//!
//! The short form (`--quick`) and the whole form of an experiment have the same file names, so a directory can hold its results
//! in one form only ([`other_form`]).

mod lock;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::catalogue;
use super::machine::available;
use super::model::{Experiment, Quantity};
use super::over_time::OverTime;
use super::result::{CaseResult, ExperimentResult, MethodResult};
use super::runner::Options;
use super::samples::SAMPLES;
use super::settings::kernel_release;
use super::shard::{Shard, alike, file_name};

/// Why finished runs or results cannot be kept or read.
#[derive(Debug, Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct KeptError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// Extension of a file while it is written.
const UNFINISHED: &str = "unfinished";

/// The finished runs of one experiment, in one form.
#[derive(Debug)]
pub(super) struct Kept {
    directory: PathBuf,
    quick: bool,
    quantities: Vec<Quantity>,
    /// Names of the experiment's cases, each with the number of those before it that differ from it in signs only.
    cases: BTreeMap<String, usize>,
}

/// Contents of a case's file.
#[derive(Serialize, Deserialize)]
struct File {
    kernel: String,
    /// Whether it was the short form; `None`: an earlier version wrote the file.
    #[serde(default)]
    quick: Option<bool>,
    /// The quantities that were read; empty: an earlier version wrote the file.
    #[serde(default)]
    quantities: Vec<Quantity>,
    case: CaseResult,
    /// Of each method that has one: the number of a run, and that run over time.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    over_time: BTreeMap<String, (usize, OverTime)>,
}

impl File {
    /// Returns how many valid runs each method needed, and gives `case` the runs of its methods; `None`: the file is of
    /// another case, or its runs lack a quantity.
    fn give(mut self, case: &mut CaseResult, quantities: &[Quantity]) -> Option<u32> {
        let has = |quantity| self.quantities.is_empty() || self.quantities.contains(quantity);
        if !(self.case.is_of(case) && quantities.iter().all(has)) {
            return None;
        }
        for method in &mut case.methods {
            if let Some(before) = self.case.methods.iter().find(|before| before.runs_as(method)) {
                method.runs.clone_from(&before.runs);
                let over_time = self.over_time.remove(&method.name);
                if let Some((number, over_time)) = over_time
                    && let Some(run) = method.runs.get_mut(number)
                {
                    run.over_time = Some(over_time);
                }
            }
        }
        Some(self.case.needed)
    }
}

impl Kept {
    /// Uses a directory of the experiment's own inside `out`.
    pub(super) fn in_directory(out: &Path, experiment: &Experiment, quick: bool) -> Self {
        let directory = match experiment.id {
            // The directory of this name has the runs over time; no experiment has a full stop in its name.
            SAMPLES => out.join(format!("{SAMPLES}.runs")),
            id => out.join(id),
        };
        let names = experiment.cases.iter().map(|case| case.name.clone());
        let cases = names.zip(alike(&experiment.cases)).collect();
        Self { directory, quick, quantities: experiment.quantities.clone(), cases }
    }

    fn file(&self, case: &CaseResult) -> PathBuf {
        // Names may differ in signs only, as `< BDP` and `> BDP`: all files but the first get a number.
        let number = match self.cases.get(&case.name) {
            None | Some(0) => String::new(),
            Some(before) => format!("+{}", before + 1),
        };
        self.directory.join(format!("{}{number}.json", plain(&case.name)))
    }

    /// Reads the file of `case`; `None`: there is none in this form.
    fn read(&self, case: &CaseResult) -> Result<Option<File>, KeptError> {
        let file = read::<File>(&self.file(case))?;
        Ok(file.filter(|file| file.quick.is_none_or(|quick| quick == self.quick)))
    }

    /// Restores the runs of `case` that were kept on this kernel.
    pub(super) fn adopt(&self, case: &mut CaseResult) -> Result<(), KeptError> {
        if let Some(file) = self.read(case)?.filter(|file| file.kernel == kernel_release()) {
            file.give(case, &self.quantities);
        }
        Ok(())
    }

    /// Restores the runs of `case` that were kept, and how many valid ones were needed then; returns the kernel on which
    /// they ran, `None`: there are none.
    fn restore(&self, case: &mut CaseResult) -> Result<Option<String>, KeptError> {
        let Some(file) = self.read(case)? else { return Ok(None) };
        let kernel = file.kernel.clone();
        let Some(needed) = file.give(case, &self.quantities) else { return Ok(None) };
        case.needed = needed;
        Ok(case.methods.iter().any(|method| !method.runs.is_empty()).then_some(kernel))
    }

    /// Removes the runs of `cases`, and files that a killed call has not finished.
    pub(super) fn forget(&self, cases: &[CaseResult]) -> Result<(), KeptError> {
        let absent = |error: &io::Error| error.kind() == io::ErrorKind::NotFound;
        let files = cases.iter().map(|case| self.file(case));
        for path in files.flat_map(|path| [path.with_extension(UNFINISHED), path]) {
            if let Err(source) = fs::remove_file(&path)
                && !absent(&source)
            {
                return Err(KeptError { operation: "remove", path, source });
            }
        }
        Ok(())
    }

    /// Writes the runs of `case`.
    pub(super) fn keep(&self, case: &CaseResult) -> Result<(), KeptError> {
        let path = self.file(case);
        let failed = |source| KeptError { operation: "write", path: path.clone(), source };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let first = self.quantities.first().copied();
        let file = File {
            kernel: kernel_release(),
            quick: Some(self.quick),
            quantities: self.quantities.clone(),
            case: case.clone(),
            over_time: case
                .methods
                .iter()
                .filter_map(|method| {
                    let (number, over_time) = method.nearest_over_time(first)?;
                    Some((method.name.clone(), (number, over_time.clone())))
                })
                .collect(),
        };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        // Renaming replaces the file as a whole: the process may be killed at any moment.
        let unfinished = path.with_extension(UNFINISHED);
        let written = fs::write(&unfinished, text).and_then(|()| fs::rename(&unfinished, &path));
        if written.is_err() {
            let _gone = fs::remove_file(&unfinished);
        }
        written.map_err(failed)
    }
}

/// Reads a file; `None`: there is none.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, KeptError> {
    let failed = |source| KeptError { operation: "read", path: path.to_owned(), source };
    match fs::read(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(|error| failed(error.into())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed(error)),
    }
}

/// Returns the result that an earlier call has left in the directory of `options`, judged by the present targets. `None`: there is
/// no result of the same form, cases and methods with at least as many repetitions. For a survey always `None`, because it keeps
/// single runs instead.
///
/// # Errors
/// [`KeptError`] when a file cannot be read.
pub fn finished(
    experiment: &Experiment,
    shard: Option<Shard>,
    options: &Options,
) -> Result<Option<ExperimentResult>, KeptError> {
    let Some(out) = options.out.as_ref().filter(|_| !experiment.survey) else { return Ok(None) };
    let found = read::<ExperimentResult>(&out.join(file_name(experiment.id, shard)))?;
    let wanted =
        ExperimentResult::new(experiment, options.quick, options.repeat, Some(&available(experiment)));
    // Each case may have repetitions of its own.
    let is_repeated = |found: &ExperimentResult| {
        experiment.cases(options.quick).zip(&found.cases).all(|(case, of_case)| {
            let repeat = experiment.repeat(case, options.quick, options.repeat) as usize;
            of_case.methods.iter().all(|method| method.runs.len() >= repeat)
        })
    };
    let found = found.filter(|found| found.covers(&wanted) && is_repeated(found));
    let Some(mut found) = found else { return Ok(None) };
    found.conclude(experiment);
    Ok(Some(found))
}

/// Removes the single runs that were kept of an experiment whose whole result is written. Those of a survey stay.
///
/// # Errors
/// [`KeptError`] when a file cannot be removed.
pub fn forget_runs(experiment: &Experiment, options: &Options) -> Result<(), KeptError> {
    let Some(out) = options.out.as_ref().filter(|_| !experiment.survey) else { return Ok(()) };
    let cases = ExperimentResult::new(experiment, options.quick, options.repeat, None).cases;
    let kept = Kept::in_directory(out, experiment, options.quick);
    kept.forget(&cases)?;
    // Another part (shard) may have runs there.
    let _keeps_what_is_not_empty = fs::remove_dir(&kept.directory);
    Ok(())
}

/// Returns a survey's result from the runs that this machine or another one has kept in `out`, without the cases that have no
/// run, and without those that `finished` has, the results in the same directory. `None`: there are no other runs.
///
/// # Errors
/// [`KeptError`] when a file cannot be read.
pub fn unfinished(
    experiment: &Experiment,
    out: &Path,
    finished: &[ExperimentResult],
) -> Result<Option<ExperimentResult>, KeptError> {
    let of_survey = finished.iter().filter(|result| result.id == experiment.id);
    let there: BTreeSet<&str> =
        of_survey.flat_map(|result| &result.cases).map(|case| case.name.as_str()).collect();
    for quick in [false, true] {
        let kept = Kept::in_directory(out, experiment, quick);
        let mut result = ExperimentResult::new(experiment, quick, None, None);
        result.cases.retain(|case| !there.contains(case.name.as_str()));
        let mut kernels = BTreeSet::new();
        for case in &mut result.cases {
            kernels.extend(kept.restore(case)?);
        }
        result.cases.retain(|case| case.methods.iter().any(|method| !method.runs.is_empty()));
        if !result.cases.is_empty() {
            result.kernel = kernels.into_iter().collect::<Vec<_>>().join(", ");
            result.repeat = result.cases.iter().map(|case| case.needed).min().unwrap_or(result.repeat);
            result.conclude(experiment);
            return Ok(Some(result));
        }
    }
    Ok(None)
}

/// Returns a file of `experiment` with a result or single runs of the other form (short or whole), which a run would replace or
/// stand beside; `None`: there is no such file.
///
/// # Errors
/// [`KeptError`] when a file cannot be read.
pub fn other_form(
    experiment: &Experiment,
    shard: Option<Shard>,
    options: &Options,
) -> Result<Option<PathBuf>, KeptError> {
    let Some(out) = &options.out else { return Ok(None) };
    let whole = out.join(file_name(experiment.id, shard));
    if read::<Form>(&whole)?.is_some_and(|form| form.quick != options.quick) {
        return Ok(Some(whole));
    }
    let [own, other] = [options.quick, !options.quick]
        .map(|quick| ExperimentResult::new(experiment, quick, None, None).cases);
    let kept = Kept::in_directory(out, experiment, options.quick);
    // The whole form has all cases.
    let cases = if options.quick { &other } else { &own };
    for case in cases {
        let path = kept.file(case);
        let file = match read::<File>(&path) {
            // Such a call removes what was kept.
            Err(_) if !(experiment.survey || options.resume) => continue,
            file => file?,
        };
        let Some(file) = file else { continue };
        // A file of an earlier version does not name its form; the commands in it show the form.
        let runs_as = |cases: &[CaseResult]| {
            let same = cases.iter().find(|one| one.name == file.case.name);
            let runs = |method: &MethodResult| file.case.methods.iter().any(|one| one.runs_as(method));
            same.is_some_and(|case| case.methods.iter().any(runs))
        };
        let is_other = || runs_as(&other) && !runs_as(&own);
        if file.quick.map_or_else(is_other, |quick| quick != options.quick) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Returns the file that a run of `experiment` would replace although the file holds the result of another one of this name: that of
/// the catalogue if `experiment` is a user's own (`is_own`), else a user's. `None`: there is no such file.
///
/// # Errors
/// [`KeptError`] when the file cannot be read.
pub fn other_origin(
    experiment: &Experiment,
    is_own: bool,
    shard: Option<Shard>,
    options: &Options,
) -> Result<Option<PathBuf>, KeptError> {
    let Some(out) = &options.out else { return Ok(None) };
    let path = out.join(file_name(experiment.id, shard));
    let is_other = read::<Form>(&path)?.is_some_and(|form| form.file.is_some() != is_own);
    // An earlier version did not note the file of a user's own.
    let is_in_the_catalogue = || catalogue().iter().any(|one| one.id == experiment.id);
    Ok((is_other && is_in_the_catalogue()).then_some(path))
}

/// The keys by which results of the two forms differ, and those of users' experiments from those of the catalogue.
#[derive(Deserialize)]
struct Form {
    quick: bool,
    #[serde(default)]
    file: Option<String>,
}

/// Returns `name` in lower-case letters and digits, with a hyphen for each run of other characters.
pub(crate) fn plain(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::super::model::Amount;
    use super::super::result::RunResult;
    use super::super::shard::tests::{experiment, result};
    use super::*;

    fn options(out: &Path, quick: bool) -> Options {
        let program = PathBuf::from("bufwise");
        Options { program, quick, repeat: None, out: Some(out.to_owned()), resume: false }
    }

    #[test]
    fn results_of_another_form_are_found_before_they_are_replaced() {
        let out = tempfile::tempdir().unwrap();
        let experiment = experiment();
        let clash = |quick| other_form(&experiment, None, &options(out.path(), quick)).unwrap();
        assert_eq!((clash(false), clash(true)), (None, None));
        let path = out.path().join("sabt-fig5.json");
        fs::write(&path, serde_json::to_vec(&result(&experiment, None)).unwrap()).unwrap();
        assert_eq!((clash(false), clash(true)), (None, Some(path)));
        let part = other_form(&experiment, "1/2".parse().ok(), &options(out.path(), true)).unwrap();
        assert_eq!(part, None, "a part has a file of its own");
    }

    #[test]
    fn results_of_a_users_experiment_and_of_the_catalogues_one_are_found_before_they_are_replaced() {
        let out = tempfile::tempdir().unwrap();
        let (own, built_in) = (Experiment { id: "mine", ..experiment() }, experiment());
        let written = result(&built_in, None);
        let write = |id: &str, file: Option<&str>| {
            let result = ExperimentResult { file: file.map(str::to_owned), ..written.clone() };
            let path = out.path().join(file_name(id, None));
            fs::write(&path, serde_json::to_vec(&result).unwrap()).unwrap();
            path
        };
        let options = options(out.path(), false);
        let clash = |of: &Experiment, is_own| other_origin(of, is_own, None, &options).unwrap();
        assert_eq!((clash(&built_in, false), clash(&built_in, true)), (None, None));
        let path = write("sabt-fig5", None);
        assert_eq!((clash(&built_in, false), clash(&built_in, true)), (None, Some(path)));
        let path = write("sabt-fig5", Some("mine.toml"));
        assert_eq!((clash(&built_in, true), clash(&built_in, false)), (None, Some(path)));
        write("mine", None);
        assert_eq!(clash(&own, true), None, "an earlier version wrote it");
    }

    #[test]
    fn runs_of_a_stopped_call_of_another_form_are_found_before_they_are_replaced() {
        let experiment = experiment();
        for case in &result(&experiment, None).cases {
            let out = tempfile::tempdir().unwrap();
            let kept = Kept::in_directory(out.path(), &experiment, false);
            kept.keep(case).unwrap();
            let clash = |quick| other_form(&experiment, None, &options(out.path(), quick)).unwrap();
            // The short form lacks some of the cases.
            assert_eq!((clash(false), clash(true)), (None, Some(kept.file(case))), "{}", case.name);
            // A torn file is in the way only of a call that goes on from it.
            fs::write(kept.file(case), "{").unwrap();
            assert_eq!((clash(false), clash(true)), (None, None));
            let resumed = Options { resume: true, ..options(out.path(), false) };
            assert!(other_form(&experiment, None, &resumed).is_err());
        }
    }

    /// A survey, and its first case that the short form has, with a run of the whole form.
    fn case() -> (Experiment, CaseResult) {
        let survey = catalogue().into_iter().find(|one| one.id == "fit-harm").unwrap();
        let quick: Vec<&str> = survey.cases(true).map(|case| case.name.as_str()).collect();
        let mut cases = ExperimentResult::new(&survey, false, None, None).cases;
        cases.retain(|case| quick.contains(&case.name.as_str()));
        let mut case = cases.remove(0);
        let values = [(Quantity::GoodputBps, 1e6)].into();
        case.methods[0].runs = vec![RunResult { valid: true, values, ..RunResult::default() }];
        (survey, case)
    }

    #[test]
    fn kept_cases_of_another_form_are_found_before_they_are_replaced() {
        let out = tempfile::tempdir().unwrap();
        let (survey, case) = case();
        let kept = Kept::in_directory(out.path(), &survey, false);
        kept.keep(&case).unwrap();
        let path = kept.file(&case);
        let clash = |quick| other_form(&survey, None, &options(out.path(), quick)).unwrap();
        assert_eq!((clash(false), clash(true)), (None, Some(path.clone())));
        // An earlier version did not write the form.
        let mut file: serde_json::Value = read(&path).unwrap().unwrap();
        for key in ["quick", "quantities"] {
            file.as_object_mut().unwrap().remove(key).unwrap();
        }
        fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
        assert_eq!((clash(false), clash(true)), (None, Some(path)));
    }

    #[test]
    fn a_case_that_cannot_be_written_leaves_no_unfinished_file() {
        let out = tempfile::tempdir().unwrap();
        let (survey, case) = case();
        let kept = Kept::in_directory(out.path(), &survey, false);
        // A directory in its place lets the renaming fail, as a full disk lets the writing fail.
        fs::create_dir_all(kept.file(&case)).unwrap();
        let error = kept.keep(&case).unwrap_err().to_string();
        assert!(error.starts_with("cannot write "), "{error}");
        assert_eq!(kept.directory.read_dir().unwrap().count(), 1);
    }

    #[test]
    fn cases_of_another_machine_are_reported_but_not_continued() {
        let out = tempfile::tempdir().unwrap();
        let (survey, case) = case();
        let kept = Kept::in_directory(out.path(), &survey, false);
        kept.keep(&case).unwrap();
        let file = fs::read_to_string(kept.file(&case)).unwrap();
        let elsewhere = file.replace(&format!("\"{}\"", kernel_release()), "\"5.4.0-other\"");
        fs::write(kept.file(&case), elsewhere).unwrap();
        let report = unfinished(&survey, out.path(), &[]).unwrap().unwrap();
        assert_eq!((report.kernel.as_str(), report.cases.len()), ("5.4.0-other", 1));
        let mut empty = case.clone();
        empty.methods[0].runs.clear();
        kept.adopt(&mut empty).unwrap();
        assert!(empty.methods[0].runs.is_empty(), "another kernel");
    }

    #[test]
    fn runs_of_another_part_are_reported_beside_the_result_of_a_finished_one() {
        let out = tempfile::tempdir().unwrap();
        let (survey, case) = case();
        Kept::in_directory(out.path(), &survey, false).keep(&case).unwrap();
        let cases = |finished: ExperimentResult| {
            let so_far = unfinished(&survey, out.path(), &[finished]).unwrap();
            so_far.map(|result| result.cases.into_iter().map(|case| case.name).collect::<Vec<_>>())
        };
        let part = ExperimentResult { id: survey.id.to_owned(), ..ExperimentResult::default() };
        assert_eq!(cases(part.clone()), Some(vec![case.name.clone()]));
        let of_case = ExperimentResult { cases: vec![case.clone()], ..part };
        assert_eq!(cases(of_case.clone()), None, "it has them already");
        let other = ExperimentResult { id: "other".to_owned(), ..of_case };
        assert_eq!(cases(other), Some(vec![case.name]));
    }

    #[test]
    fn cases_without_a_wanted_quantity_are_measured_again() {
        let out = tempfile::tempdir().unwrap();
        let (survey, mut case) = case();
        Kept::in_directory(out.path(), &survey, false).keep(&case).unwrap();
        let runs = |quantity: Quantity, case: &mut CaseResult| {
            let more = Experiment { quantities: vec![Quantity::GoodputBps, quantity], ..survey.clone() };
            case.methods[0].runs.clear();
            Kept::in_directory(out.path(), &more, false).adopt(case).unwrap();
            case.methods[0].runs.len()
        };
        assert_eq!(runs(Quantity::Drops, &mut case), 1);
        assert_eq!(runs(Quantity::TransferS, &mut case), 0);
    }

    #[test]
    fn cases_whose_names_differ_in_signs_only_have_files_of_their_own() {
        let out = tempfile::tempdir().unwrap();
        let mut experiment = experiment();
        experiment.cases.truncate(2);
        for (case, name) in experiment.cases.iter_mut().zip(["queue < BDP", "queue > BDP"]) {
            name.clone_into(&mut case.name);
        }
        let kept = Kept::in_directory(out.path(), &experiment, false);
        result(&experiment, None).cases.iter().for_each(|case| kept.keep(case).unwrap());
        // As a call that was killed meanwhile leaves it.
        fs::write(kept.directory.join("queue-bdp+2.unfinished"), "{").unwrap();
        let mut empty = ExperimentResult::new(&experiment, false, Some(1), None);
        for case in &mut empty.cases {
            kept.adopt(case).unwrap();
            assert!(case.methods.iter().all(|method| method.runs.len() == 1), "{}", case.name);
        }
        forget_runs(&experiment, &options(out.path(), false)).unwrap();
        assert_eq!(out.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn runs_of_an_experiment_called_samples_are_not_among_the_runs_over_time() {
        let out = tempfile::tempdir().unwrap();
        let mut experiment = Experiment { id: SAMPLES, ..experiment() };
        // The only case of a file without cases is named after the file.
        experiment.cases.truncate(1);
        SAMPLES.clone_into(&mut experiment.cases[0].name);
        let over_time = out.path().join(SAMPLES).join(file_name(SAMPLES, None));
        fs::create_dir(out.path().join(SAMPLES)).unwrap();
        fs::write(&over_time, "over time").unwrap();
        let kept = Kept::in_directory(out.path(), &experiment, false);
        kept.keep(&result(&experiment, None).cases[0]).unwrap();
        forget_runs(&experiment, &options(out.path(), false)).unwrap();
        assert_eq!(fs::read_to_string(over_time).unwrap(), "over time");
        assert_eq!(out.path().read_dir().unwrap().count(), 1);
    }

    #[test]
    fn a_result_is_not_taken_if_one_of_its_cases_is_to_run_more_often() {
        let out = tempfile::tempdir().unwrap();
        let mut experiment = experiment();
        experiment.cases.iter_mut().for_each(|case| case.setup.repeat = Some(1));
        let text = serde_json::to_vec(&result(&experiment, None)).unwrap();
        fs::write(out.path().join(file_name(experiment.id, None)), text).unwrap();
        let options = options(out.path(), false);
        assert!(finished(&experiment, None, &options).unwrap().is_some());
        experiment.cases[1].setup.repeat = Some(2);
        assert!(finished(&experiment, None, &options).unwrap().is_none());
    }

    #[test]
    fn a_result_is_not_taken_if_another_flow_is_measured() {
        let out = tempfile::tempdir().unwrap();
        let mut experiment = experiment();
        experiment.methods.truncate(1);
        experiment.cases.truncate(1);
        let case = &mut experiment.cases[0];
        case.flows.truncate(2);
        (case.setup.methods, case.setup.repeat) = (Vec::new(), Some(1));
        // Without a policy no command shows which flows are background load.
        experiment.methods[0].client = None;
        let text = serde_json::to_vec(&result(&experiment, None)).unwrap();
        fs::write(out.path().join(file_name(experiment.id, None)), text).unwrap();
        let is_taken = |one: &Experiment| finished(one, None, &options(out.path(), false)).unwrap().is_some();
        assert!(is_taken(&experiment));
        experiment.cases[0].flows[0].cross = true;
        assert!(!is_taken(&experiment));
    }

    #[test]
    fn a_result_is_taken_if_the_same_call_would_repeat_it() {
        let out = tempfile::tempdir().unwrap();
        let options = |repeat| {
            let (program, out) = (PathBuf::from("bufwise"), Some(out.path().to_owned()));
            Options { program, quick: false, repeat: Some(repeat), out, resume: true }
        };
        let experiment = experiment();
        let shard: Shard = "1/2".parse().unwrap();
        let part = shard.of(experiment.clone(), false);
        assert!(finished(&experiment, None, &options(1)).unwrap().is_none());
        for (experiment, shard) in [(&experiment, None), (&part, Some(shard))] {
            let text = serde_json::to_vec(&result(experiment, shard)).unwrap();
            fs::write(out.path().join(file_name(experiment.id, shard)), text).unwrap();
            let found = finished(experiment, shard, &options(1)).unwrap().unwrap();
            assert_eq!((found.cases.len(), found.shard), (experiment.cases.len(), shard));
        }
        assert!(finished(&experiment, None, &options(2)).unwrap().is_none(), "it has one repetition");
        assert!(finished(&experiment, None, &Options { quick: true, ..options(1) }).unwrap().is_none());
        assert!(finished(&part, None, &options(1)).unwrap().is_none(), "it has other cases");
        let survey = Experiment { survey: true, ..experiment.clone() };
        assert!(finished(&survey, None, &options(1)).unwrap().is_none(), "its runs are kept singly");
        let is_taken_as = |change: &dyn Fn(&mut Experiment)| {
            let mut changed = experiment.clone();
            change(&mut changed);
            finished(&changed, None, &options(1)).unwrap().is_some()
        };
        assert!(is_taken_as(&|_| ()));
        assert!(!is_taken_as(&|one| one.methods[0].rmem /= 2), "it has other settings");
        assert!(!is_taken_as(&|one| one.quantities.truncate(1)), "it has other quantities");
        assert!(!is_taken_as(&|one| one.cases[0].paths[1].seed = 9), "it has another seed");
        assert!(!is_taken_as(&|one| one.cases[0].paths[1].trace = "0 1mbit".parse().ok()), "it has no trace");
        assert!(!is_taken_as(&|one| one.cases[0].memory = Some(1)), "it has another memory");
        assert!(!is_taken_as(&|one| one.cases[0].flows[0].delay.0 += 1), "its flows begin at other times");
        // The clients of the other paths run at another host.
        let elsewhere = |one: &mut Experiment| {
            one.cases[0].paths[1].from = Some("C".to_owned());
            one.cases[0].paths[2].from = Some("C".to_owned());
        };
        let mut away = experiment.clone();
        elsewhere(&mut away);
        let mut other = away.clone();
        other.cases[0].flows[1].amount = Amount::Seconds(9, 9);
        let write = |one: &ExperimentResult| {
            fs::write(out.path().join("sabt-fig5.json"), serde_json::to_vec(one).unwrap()).unwrap();
        };
        write(&result(&away, None));
        assert!(is_taken_as(&elsewhere));
        assert!(finished(&other, None, &options(1)).unwrap().is_none(), "another command at host C");
        let mut invalid = result(&experiment, None);
        invalid.cases[0].methods[0].runs[0].valid = false;
        write(&invalid);
        assert!(!is_taken_as(&|_| ()), "a method has no valid run");
        fs::write(out.path().join(file_name(experiment.id, None)), "{").unwrap();
        let error = finished(&experiment, None, &options(1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("sabt-fig5.json"), "{error}");
    }
}
