//! Experiments as files: `lab run my.toml`, `lab show ID`, and the catalogue's experiments that are files.
//!
//! The format mirrors the types of [`model`](super::model) (docs/lab-files.md): texts with units as on the command
//! line, names instead of numbers, and defaults for everything that is left out. An error is one line: the line of the
//! file, the key, what is wrong, and what is allowed.

mod bounds;
mod format;
mod machine;
mod paths;
mod read;
mod workloads;
mod write;

use std::ops::Range;
use std::sync::LazyLock;

use thiserror::Error;

use super::model::Experiment;
pub use write::{outline, show};

/// Largest file that is read, in bytes: an experiment is a few screens.
pub const LARGEST_FILE: u64 = 1 << 20;

/// Why a text is no experiment, in one line: the line of the file, the key, what is wrong, and what is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct FileError(String);

/// Checks the sizes for `bufwise run`, and whether the policies, congestion controls and settings that a file names exist; each
/// error says what is allowed.
#[derive(Clone, Copy, Debug)]
pub struct Policies {
    /// Checks a policy of `bufwise run`.
    pub run: fn(&str) -> Result<(), String>,
    /// Checks a policy of `bufwise get`.
    pub get: fn(&str) -> Result<(), String>,
    /// Checks a size for `--memory` of `bufwise run`.
    pub memory: fn(&str) -> Result<(), String>,
    /// Checks a size for its `--small-documents`.
    pub small_documents: fn(&str) -> Result<(), String>,
    /// Checks a size for its `--gso-max-size`.
    pub gso_max_size: fn(&str) -> Result<(), String>,
    /// Checks a congestion control; a method that only stands beside the others is not checked.
    pub congestion_control: fn(&str) -> Result<(), String>,
    /// Checks a network setting of a host, as `net.ipv4.tcp_wmem`.
    pub setting: fn(&str) -> Result<(), String>,
}

impl Policies {
    /// Accepts any word.
    pub const ANY: Self = Self {
        run: |_| Ok(()),
        get: |_| Ok(()),
        memory: |_| Ok(()),
        small_documents: |_| Ok(()),
        gso_max_size: |_| Ok(()),
        congestion_control: |_| Ok(()),
        setting: |_| Ok(()),
    };
}

/// Parses the experiment that `text` describes; `id` is its name if the file gives none.
///
/// # Errors
/// [`FileError`] if something in it is wrong, missing, or unknown.
pub fn parse(text: &str, id: &str, policies: &Policies) -> Result<Experiment, FileError> {
    let one_line = |what: &str| what.lines().collect::<Vec<_>>().join(" ");
    let file = toml::from_str(text).map_err(|error| {
        let message = one_line(error.message());
        let message = format!("{message}{}", remedy(&message));
        FileError(error.span().map_or(message.clone(), |span| placed(text, &span, &message)))
    })?;
    read::experiment(&file, id, policies).map_err(|fault| {
        let what = one_line(&fault.what);
        // Something that the file as a whole lacks has no place of its own.
        FileError(fault.at.map_or_else(|| format!("line 1: {what}"), |at| placed(text, &at, &what)))
    })
}

/// Returns what to write instead, after the parser's message on a usual slip; empty if it is none.
fn remedy(message: &str) -> &'static str {
    match message {
        "invalid type: map, expected a sequence" => ": write its name in two brackets, as [[path]]",
        "invalid type: map, expected a string" => {
            ": write a name with full stops in quotation marks, as \"net.ipv4.tcp_wmem\""
        }
        _ => "",
    }
}

/// Returns `what` after the number of the line and the key whose value is at `at`.
fn placed(text: &str, at: &Range<usize>, what: &str) -> String {
    let before = text.get(..at.start).unwrap_or(text);
    let number = before.matches('\n').count() + 1;
    let line = text.lines().nth(number - 1).unwrap_or_default();
    // In `path = [{ rate = "fast" }]` the key of the value is the last one before it.
    let own = before.trim_end().strip_suffix('=').map(str::trim_end);
    let is_key = |letter: char| letter.is_ascii_alphanumeric() || letter == '-' || letter == '_';
    let own = own.and_then(|before| before.rsplit(|letter| !is_key(letter)).next());
    let key = own.or_else(|| Some(line.split_once('=')?.0.trim())).filter(|key| !key.is_empty());
    match key {
        Some(key) if !line.trim_start().starts_with('[') => format!("line {number}: {key}: {what}"),
        _ => format!("line {number}: {what}"),
    }
}

/// The catalogue's experiments that are files, in the catalogue's order.
const BUILT_IN: [&str; 4] = [
    include_str!("../../experiments/expert-500.toml"),
    include_str!("../../experiments/expert-1g.toml"),
    include_str!("../../experiments/abt-fig1.toml"),
    include_str!("../../experiments/drs-fig5-6.toml"),
];

/// Returns the built-in experiments whose names are `ids`.
pub(super) fn built_in(ids: &[&str]) -> Vec<Experiment> {
    static PARSED: LazyLock<Vec<Experiment>> = LazyLock::new(|| {
        // The files are part of the program, and a test reads them all.
        let read = |text| parse(text, "built-in", &Policies::ANY).unwrap_or_else(|error| panic!("{error}"));
        BUILT_IN.into_iter().map(read).collect()
    });
    PARSED.iter().filter(|experiment| ids.contains(&experiment.id)).cloned().collect()
}

#[cfg(test)]
mod tests;
