//! Experiments as files: `lab run my.toml`, `lab show ID`, and those of the catalogue that are files.
//!
//! The format is a mirror of the types of [`model`](super::model) (docs/lab-files.md): texts with units as on the command
//! line, names instead of numbers, and whatever is left out is as usual. An error is one line: the line of the file, the
//! key, what is wrong, and what is allowed.

mod bounds;
mod format;
mod paths;
mod read;
mod workloads;
mod write;

use std::ops::Range;
use std::sync::LazyLock;

use thiserror::Error;

use super::model::Experiment;
pub use write::{outline, show};

/// The most of a file that is read, in bytes: an experiment is a few screens.
pub const LARGEST_FILE: u64 = 1 << 20;

/// Why a text is no experiment, in one line: its line, the key, what is wrong, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FileError(String);

/// Whether policies exist; the error says which do.
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    /// Those of `bufwise run`.
    pub run: fn(&str) -> Result<(), String>,
    /// Those of `bufwise get`.
    pub get: fn(&str) -> Result<(), String>,
}

impl Policies {
    /// Any word may be a policy.
    pub const ANY: Self = Self { run: |_| Ok(()), get: |_| Ok(()) };
}

/// The experiment that `text` describes; `id` is its name if it has none of its own.
///
/// # Errors
/// [`FileError`] where something in it is wrong, missing, or unknown.
pub fn parse(text: &str, id: &str, policies: &Policies) -> Result<Experiment, FileError> {
    let one_line = |what: &str| what.lines().collect::<Vec<_>>().join(" ");
    let file = toml::from_str(text).map_err(|error| {
        let message = one_line(error.message());
        FileError(error.span().map_or(message.clone(), |span| placed(text, &span, &message)))
    })?;
    read::experiment(&file, id, policies).map_err(|fault| {
        let what = one_line(&fault.what);
        FileError(fault.at.map_or(what.clone(), |at| placed(text, &at, &what)))
    })
}

/// `what`, after the number of the line and the key whose value is at `at`.
fn placed(text: &str, at: &Range<usize>, what: &str) -> String {
    let before = text.get(..at.start).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    // In `path = [{ rate = "fast" }]` the value's own key is the last one before it.
    let own = before.trim_end().strip_suffix('=').map(str::trim_end);
    let is_key = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let own = own.and_then(|before| before.rsplit(|letter| !is_key(letter)).next());
    let key = own.or_else(|| Some(line.split_once('=')?.0.trim())).filter(|key| !key.is_empty());
    match key {
        Some(key) if !line.trim_start().starts_with('[') => format!("line {number}: {key}: {what}"),
        _ => format!("line {number}: {what}"),
    }
}

/// The catalogue's experiments that are files, in its order.
const BUILT_IN: [&str; 4] = [
    include_str!("../../experiments/expert-500.toml"),
    include_str!("../../experiments/expert-1g.toml"),
    include_str!("../../experiments/abt-fig1.toml"),
    include_str!("../../experiments/drs-fig5-6.toml"),
];

/// The built-in experiments whose names are `ids`.
pub(super) fn built_in(ids: &[&str]) -> Vec<Experiment> {
    static PARSED: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
        // They are part of the program, and a test reads them all.
        let read = |text| parse(text, "built-in", &Policies::ANY).unwrap_or_else(|error| panic!("{error}"));
        BUILT_IN.into_iter().map(read).collect()
    });
    PARSED.iter().filter(|experiment| ids.contains(&experiment.id)).cloned().collect()
}

#[cfg(test)]
mod tests;
