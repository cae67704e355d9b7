//! Keeps finished runs of a survey on disk, so that a second call continues where the first one stopped.
//!
//! Each case has a file. A run is taken from it if the kernel, the paths, the commands and the settings are the same.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::model::Experiment;
use super::result::{CaseResult, ExperimentResult};
use super::settings::kernel_release;
use crate::congestion::available;

/// Why finished runs cannot be kept or read.
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
        let failed = |source| KeptError { operation: "read", path: path.clone(), source };
        let text = match fs::read(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error)),
        };
        let file: File = serde_json::from_slice(&text).map_err(|error| failed(error.into()))?;
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
