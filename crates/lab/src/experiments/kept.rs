//! Finds on disk what an earlier call has measured, so that a second one continues where the first one stopped.
//!
//! A survey keeps each finished run: each case has a file. Of any other experiment the result as a whole is taken. Both
//! only if the kernel, the paths, the commands and the settings are the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::model::Experiment;
use super::result::{CaseResult, ExperimentResult};
use super::runner::Options;
use super::settings::kernel_release;
use super::shard::{Shard, file_name};
use crate::congestion::available;

/// Why finished runs or results cannot be kept or read.
#[derive(Debug, Error)]
#[error("cannot {operation} {}: {source}", path.display())]
pub struct KeptError {
    operation: &'static str,
    path: PathBuf,
    source: io::Error,
}

/// The finished runs of one survey.
#[derive(Debug)]
pub(super) struct Kept {
    directory: PathBuf,
}

/// Contents of a case's file.
#[derive(Serialize, Deserialize)]
struct File {
    kernel: String,
    case: CaseResult,
}

impl Kept {
    /// Uses a directory of the survey's own inside `out`.
    pub(super) fn in_directory(out: &Path, experiment: &Experiment) -> Self {
        Self { directory: out.join(experiment.id) }
    }

    fn file(&self, case: &CaseResult) -> PathBuf {
        self.directory.join(format!("{}.json", plain(&case.name)))
    }

    /// Restores the runs of `case` that were kept, and returns how many valid ones were needed then; `None`: no usable
    /// file.
    pub(super) fn adopt(&self, case: &mut CaseResult) -> Result<Option<u32>, KeptError> {
        let path = self.file(case);
        let Some(file) = read::<File>(&path)? else { return Ok(None) };
        if file.kernel != kernel_release() || (&file.case.name, &file.case.paths) != (&case.name, &case.paths)
        {
            return Ok(None);
        }
        for method in &mut case.methods {
            if let Some(before) = file.case.methods.iter().find(|before| before.runs_as(method)) {
                method.runs.clone_from(&before.runs);
            }
        }
        Ok(Some(file.case.needed))
    }

    /// Writes the runs of `case`.
    pub(super) fn keep(&self, case: &CaseResult) -> Result<(), KeptError> {
        let path = self.file(case);
        let failed = |source| KeptError { operation: "write", path: path.clone(), source };
        fs::create_dir_all(&self.directory).map_err(failed)?;
        let file = File { kernel: kernel_release(), case: case.clone() };
        let text = serde_json::to_vec_pretty(&file).map_err(|error| failed(error.into()))?;
        // Renaming replaces the file as a whole: the process may be killed at any moment.
        let unfinished = path.with_extension("unfinished");
        fs::write(&unfinished, text).map_err(failed)?;
        fs::rename(unfinished, &path).map_err(failed)
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

/// Returns the result that an earlier call has left in the directory of `options`, judged by the targets of today; `None`: none of
/// the same form, cases and methods, with as many repetitions at least. Of a survey always `None`: its runs are kept singly.
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
    let wanted = ExperimentResult::new(experiment, options.quick, options.repeat, Some(&available()));
    let Some(mut found) = found.filter(|found| found.covers(&wanted)) else { return Ok(None) };
    found.conclude(experiment);
    Ok(Some(found))
}

/// Returns a survey's result from the runs that were kept in `out`, without cases that have none; `None`: there are no
/// runs.
///
/// # Errors
/// [`KeptError`] when a file cannot be read.
pub fn unfinished(experiment: &Experiment, out: &Path) -> Result<Option<ExperimentResult>, KeptError> {
    let kept = Kept::in_directory(out, experiment);
    for quick in [false, true] {
        let mut result = ExperimentResult::new(experiment, quick, None, Some(&available()));
        for case in &mut result.cases {
            case.needed = kept.adopt(case)?.unwrap_or(case.needed);
        }
        result.cases.retain(|case| case.methods.iter().any(|method| !method.runs.is_empty()));
        if !result.cases.is_empty() {
            result.repeat = result.cases.iter().map(|case| case.needed).min().unwrap_or(result.repeat);
            result.conclude(experiment);
            return Ok(Some(result));
        }
    }
    Ok(None)
}

/// Returns `name` in lower-case letters and digits, with a hyphen for each run of other characters.
pub(crate) fn plain(name: &str) -> String {
    let words = name.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join("-").to_ascii_lowercase()
}

#[cfg(test)]
mod tests {
    use super::super::shard::tests::{experiment, result};
    use super::*;

    #[test]
    fn a_result_is_taken_if_the_same_call_would_repeat_it() {
        let out = tempfile::tempdir().unwrap();
        let options = |repeat| {
            let (program, out) = (PathBuf::from("bufwise"), Some(out.path().to_owned()));
            Options { program, quick: false, repeat: Some(repeat), out }
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
        let mut changed = experiment.clone();
        changed.methods[0].rmem /= 2;
        assert!(finished(&changed, None, &options(1)).unwrap().is_none(), "it has other settings");
        fs::write(out.path().join(file_name(experiment.id, None)), "{").unwrap();
        let error = finished(&experiment, None, &options(1)).unwrap_err().to_string();
        assert!(error.starts_with("cannot read ") && error.contains("sabt-fig5.json"), "{error}");
    }
}
