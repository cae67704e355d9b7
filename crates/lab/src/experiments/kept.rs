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
    /// By method: the number of the run that is kept over time, and that run.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    over_time: BTreeMap<String, (usize, OverTime)>,
    /// By method: the rounds of its runs. An earlier version wrote none.
    #[serde(default)]
    rounds: BTreeMap<String, Vec<u32>>,
}

impl File {
    /// Whether its runs have all of `quantities`, as far as the file tells.
    fn has(&self, quantities: &[Quantity]) -> bool {
        self.quantities.is_empty() || quantities.iter().all(|quantity| self.quantities.contains(quantity))
    }

    /// Returns how many valid runs each method needed, and gives `case` the runs of its methods; `None`: the file is of
    /// another case.
    fn give(mut self, case: &mut CaseResult) -> Option<u32> {
        if !self.case.is_of(case) {
            return None;
        }
        for method in &mut case.methods {
            if let Some(before) = self.case.methods.iter().find(|before| before.runs_as(method)) {
                method.runs.clone_from(&before.runs);
                let rounds = self.rounds.get(&method.name).into_iter().flatten();
                method.runs.iter_mut().zip(rounds).for_each(|(run, round)| run.round = *round);
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

    /// Restores the runs of `case` that were kept on this kernel, with all quantities.
    pub(super) fn adopt(&self, case: &mut CaseResult) -> Result<(), KeptError> {
        let counts = |file: &File| file.kernel == kernel_release() && file.has(&self.quantities);
        if let Some(file) = self.read(case)?.filter(counts) {
            file.give(case);
        }
        Ok(())
    }

    /// Restores the runs of `case` that were kept, even if an earlier version read fewer quantities, and how many valid ones were needed
    /// then; returns the kernel on which they ran, `None`: there are none.
    fn restore(&self, case: &mut CaseResult) -> Result<Option<String>, KeptError> {
        let Some(file) = self.read(case)? else { return Ok(None) };
        let kernel = file.kernel.clone();
        let Some(needed) = file.give(case) else { return Ok(None) };
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
        let rounds = |method: &MethodResult| {
            (method.name.clone(), method.runs.iter().map(|run| run.round).collect::<Vec<_>>())
        };
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
            rounds: case.methods.iter().map(rounds).collect(),
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

/// Reads a whole file. One that is not regular, such as a FIFO, is refused: reading it would wait for a writer.
///
/// # Errors
/// The file system's error, or that the file is not regular.
pub fn read_regular(path: &Path) -> io::Result<Vec<u8>> {
    if fs::metadata(path)?.is_file() {
        return fs::read(path);
    }
    let what = "it is not a regular file; remove it, or move it elsewhere";
    Err(io::Error::new(io::ErrorKind::InvalidInput, what))
}

/// Reads a file; `None`: there is none. One that is cut off, or of a later version, is an error.
fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, KeptError> {
    let failed = |source| KeptError { operation: "read", path: path.to_owned(), source };
    let damaged = |error: serde_json::Error| {
        let what = format!("{error}; move the file elsewhere, and its runs are made again");
        failed(io::Error::new(io::ErrorKind::InvalidData, what))
    };
    match read_regular(path) {
        Ok(text) => serde_json::from_slice(&text).map(Some).map_err(damaged),
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
            // A call that does not go on from kept runs removes them.
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
mod tests;
