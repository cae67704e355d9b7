//! Experiments as files: `bufwise lab show`, and the files given to `lab run`.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use bufwise_host::tuner::choice::Choice;
use bufwise_host::tuner::sizes::{AtOnce, Budget, SmallDocuments};
use bufwise_lab::experiments::{Experiment, LARGEST_FILE, Policies, Quantity, outline, parse, show};
use clap::Args;
use serde::Serialize;

use super::experiments::{Listed, named};
use crate::exit::{Failure, Outcome};
use crate::output;
use crate::transfer;

/// Longest experiment name that is made from a file name, in bytes.
const LONGEST_NAME: usize = 60;

/// Print an experiment as a file that can be changed and run
///
/// A few cannot be written as a file yet; of these the question, source, paths and methods are printed as comments.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise lab show abt-fig1 >my.toml && bufwise lab run my.toml --quick")]
pub(crate) struct ShowArgs {
    /// Name of an experiment (`bufwise lab list`), or a file that describes one
    #[arg(value_name = "ID|FILE.toml")]
    id: String,
    /// Write the experiment as JSON into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An experiment as JSON.
#[derive(Debug, Serialize)]
struct Shown {
    #[serde(flatten)]
    listed: Listed,
    scale: &'static str,
    survey: bool,
    quantities: Vec<Quantity>,
    /// The tables and keys of its file; `None`: it cannot be written as one.
    experiment: Option<toml::Table>,
}

impl Shown {
    /// Returns the experiment whose file is `text`, if it can be written as one.
    fn of(one: &Experiment, text: Option<&str>) -> Result<Self> {
        let Experiment { scale, survey, .. } = *one;
        let (listed, quantities) = (Listed::of(one), one.quantities.clone());
        let tables = text.map(str::parse::<toml::Table>).transpose();
        let experiment = tables.context("cannot read the experiment as it is written")?;
        Ok(Self { listed, scale, survey, quantities, experiment })
    }
}

impl ShowArgs {
    pub(crate) fn run(self) -> Outcome {
        let is_file = is_file(&self.id);
        if let Some(json) = &self.json {
            if is_file {
                output::check_apart(json, Path::new(&self.id))?;
            }
            output::check_writable(json)?;
        }
        let experiments = match is_file {
            true => vec![read(Path::new(&self.id), &POLICIES)?],
            false => named(&[&self.id])?,
        };
        for experiment in &experiments {
            let text = show(experiment);
            let shown = Shown::of(experiment, text.as_deref())?;
            output::both(self.json.as_deref(), &shown, || text.unwrap_or_else(|| outline(experiment)))?;
        }
        Ok(0)
    }
}

/// Whether an argument is a file and not an experiment's name.
pub(super) fn is_file(argument: &str) -> bool {
    argument.ends_with(".toml") || argument.contains('/')
}

/// Reads the experiment that a file describes, and whose names pass `policies`; without a name of its own it is named after
/// the file.
///
/// # Errors
/// Wrong usage: the file, the line, the key, what is wrong, and what is allowed.
pub(super) fn read(path: &Path, policies: &Policies) -> Result<Experiment, Failure> {
    let mut text = Vec::new();
    fs::File::open(path)
        .and_then(|file| file.take(LARGEST_FILE + 1).read_to_end(&mut text))
        .with_context(|| format!("cannot read experiment {}", path.display()))?;
    if text.len() as u64 > LARGEST_FILE {
        return Err(Failure::usage(format!("{}: longer than {LARGEST_FILE} bytes", path.display())));
    }
    let text = String::from_utf8(text).map_err(|error| {
        let before = &error.as_bytes()[..error.utf8_error().valid_up_to()];
        let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
        Failure::usage(format!("{}: line {line}: not UTF-8: save it in that encoding", path.display()))
    })?;
    let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
    parse(&text, &name(stem), policies)
        .map_err(|error| Failure::usage(format!("{}: {error}", path.display())))
}

/// Returns the name in lower-case letters, digits and hyphens.
fn name(stem: &str) -> String {
    let words = stem.split(|letter: char| !letter.is_ascii_alphanumeric()).filter(|word| !word.is_empty());
    let name = words.collect::<Vec<_>>().join("-").to_ascii_lowercase();
    if name.is_empty() { "experiment".to_owned() } else { name.chars().take(LONGEST_NAME).collect() }
}

/// Checks policies and sizes only: a file may be shown on another machine than it is run.
pub(super) const POLICIES: Policies = Policies {
    run: |policy| policy.parse::<Choice>().map(|_| ()),
    get: |policy| transfer::policy(policy).map(|_| ()),
    memory: |size| size.parse::<Budget>().map(|_| ()),
    small_documents: |size| size.parse::<SmallDocuments>().map(|_| ()),
    gso_max_size: |size| size.parse::<AtOnce>().map(|_| ()),
    ..Policies::ANY
};
