//! `bufwise lab report`: writes the results of experiments and of runs over paths as a document, a page and tables.

use std::path::{Path, PathBuf};
use std::{fs, io};

use anyhow::{Context, Result};
use bufwise_lab::csv;
use bufwise_lab::experiments::{
    Experiment, ExperimentResult, SAMPLES, Samples, catalogue, heat_maps, join, markdown, read_regular,
    unfinished,
};
use bufwise_lab::page::{self, Recorded};
use clap::Args;
use serde::Deserialize;
use serde::de::IgnoredAny;

use crate::exit::{Failure, Outcome};
use crate::output;

/// Write a document, a page and tables from the results of experiments and paths
///
/// It reads the results of `bufwise lab run --out DIR`, of surveys also the runs so far, and joins the parts of --shard. The Markdown
/// document goes to standard output or --output. Beside it, or without --output in the first DIR as report.*, it writes:
///
/// NAME.html, one page that needs nothing else: pictures and styles are inside, for screens, phones and paper.
///
/// NAME.csv, a line for each run of the experiments, and NAME-over-time.csv, one run of each method over time.
///
/// NAME-samples.csv and NAME-links.csv, a line for each sample of a connection and of the link, for runs of `bufwise lab path
/// --json DIR/NAME.json`; the page shows these runs as curves.
///
/// A grid of paths gets heat maps, a file for each method. The first line of each table names its columns, with units. The second
/// result of the same name, from another DIR, is ID-2 in the tables.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise lab report results -o results/summary.md")]
pub(crate) struct ReportArgs {
    /// The directories
    #[arg(value_name = "DIR", required = true)]
    directories: Vec<PathBuf>,
    /// Write the document into this file; - for standard output, as without this option
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl ReportArgs {
    pub(crate) fn run(mut self) -> Outcome {
        self.output = self.output.filter(|file| !output::is_stdout(file));
        let place = self.place()?;
        let Found { results, runs } = Found::read(&self.directories)?;
        let failed = "cannot put the report together";
        let text = markdown(&results, &runs).context(failed)?;
        let mut files = vec![(".html", page::write(&results, &runs).context(failed)?)];
        if !results.is_empty() {
            files.push((".csv", csv::runs(&results).context(failed)?));
        }
        if results.iter().any(|result| Samples::of(result).is_some()) {
            files.push(("-over-time.csv", csv::over_time(&results).context(failed)?));
        }
        if !runs.is_empty() {
            files.push(("-samples.csv", csv::samples(&runs).context(failed)?));
            files.push(("-links.csv", csv::links(&runs).context(failed)?));
        }
        let directory = place.parent().filter(|parent| !parent.as_os_str().is_empty());
        heat_maps(&results, directory.unwrap_or(Path::new(".")))?;
        let mut written = Vec::new();
        for (ending, text) in &files {
            let mut file = place.clone().into_os_string();
            file.push(ending);
            output::whole(Path::new(&file), text)?;
            written.push(Path::new(&file).display().to_string());
        }
        match &self.output {
            None => output::line(&text)?,
            Some(file) => output::whole(file, &text)?,
        }
        output::note(&format!("wrote {}\n", written.join(", ")));
        Ok(0)
    }

    /// Returns the path of the page and the tables, without their extensions.
    fn place(&self) -> Result<PathBuf, Failure> {
        let in_directory = || self.directories[0].join("report");
        let Some(file) = &self.output else { return Ok(in_directory()) };
        let is = |ending: &str| file.extension().is_some_and(|own| own == ending);
        if is("html") || is("csv") {
            return Err(Failure::usage(format!(
                "--output {} is for the Markdown document, and the page and tables get its name: end it with .md",
                file.display()
            )));
        }
        // A device or a pipe can have no files beside it.
        if fs::metadata(file).is_ok_and(|kind| !kind.is_file()) {
            return Ok(in_directory());
        }
        Ok(if is("md") { file.with_extension("") } else { file.clone() })
    }
}

/// Adds to `result`, whose file is `path`, the samples that are kept beside it.
fn add_samples(result: &mut ExperimentResult, path: &Path) -> Result<()> {
    let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else { return Ok(()) };
    let path = directory.join(SAMPLES).join(name);
    let text = match read_regular(&path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        text => text.with_context(|| format!("cannot read {}", path.display()))?,
    };
    let samples: Samples = serde_json::from_slice(&text).with_context(|| {
        format!("{} has no samples of bufwise lab run --out: make it again, or remove it", path.display())
    })?;
    samples.give(result);
    Ok(())
}

/// The contents of the directories.
#[derive(Default)]
struct Found {
    /// Results in the catalogue's order, unfinished surveys included; experiments that are no longer in the catalogue
    /// come last.
    results: Vec<ExperimentResult>,
    /// Runs over paths, by name.
    runs: Vec<Recorded>,
}

/// The key by which a report of a run over a path differs from the result of an experiment.
#[derive(Deserialize)]
#[serde(expecting = "an object")]
struct Kind {
    link_samples: Option<IgnoredAny>,
}

impl Found {
    /// Reads the directories, and joins the parts of `--shard`.
    fn read(directories: &[PathBuf]) -> Result<Self> {
        let known = catalogue();
        let mut found = Self::default();
        for directory in directories {
            let Self { results, runs } = Self::read_one(directory, &known)?;
            anyhow::ensure!(
                !(results.is_empty() && runs.is_empty()),
                "{}: no results; bufwise lab run --out and bufwise lab path --json write them",
                directory.display()
            );
            found.results.extend(results);
            found.runs.extend(runs);
        }
        found.results = join(found.results, &known);
        found.results.sort_by_key(|result| {
            known.iter().position(|experiment| experiment.id == result.id).unwrap_or(known.len())
        });
        Ok(found)
    }

    fn read_one(directory: &Path, known: &[Experiment]) -> Result<Self> {
        let entries =
            fs::read_dir(directory).with_context(|| format!("cannot read {}", directory.display()))?;
        // Directories and FIFOs are no results, whatever their names; opening a FIFO would block.
        let is_other = |path: &Path| fs::metadata(path).is_ok_and(|found| !found.is_file());
        let is_read =
            |path: &PathBuf| path.extension().is_some_and(|extension| extension == "json") && !is_other(path);
        let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).filter(is_read).collect();
        files.sort();
        let mut found = Self::default();
        files.iter().try_for_each(|path| found.add(path))?;
        // A survey that was stopped has no result file, and of one in parts only some parts may have theirs.
        for survey in known.iter().filter(|experiment| experiment.survey) {
            let so_far = unfinished(survey, directory, &found.results)?;
            found.results.extend(so_far);
        }
        Ok(found)
    }

    fn add(&mut self, path: &Path) -> Result<()> {
        let text = fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        let not =
            |what: &str| format!("{} is not {what}: make it again, or move it elsewhere", path.display());
        let kind: Kind = serde_json::from_slice(&text)
            .with_context(|| not("a whole result of bufwise lab run --out or lab path --json"))?;
        if kind.link_samples.is_some() {
            let run: Recorded =
                serde_json::from_slice(&text).with_context(|| not("a report of bufwise lab path --json"))?;
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            self.runs.push(Recorded { name, ..run });
        } else {
            let result = serde_json::from_slice(&text);
            let mut result: ExperimentResult =
                result.with_context(|| not("a result of bufwise lab run --out"))?;
            add_samples(&mut result, path)?;
            self.results.push(result);
        }
        Ok(())
    }
}
