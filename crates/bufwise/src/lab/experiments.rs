//! `bufwise lab list`, `lab run`: experiments by name or from files, and their results.

use std::collections::HashMap;
use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bufwise_lab::check::{self, CheckReport};
use bufwise_lab::document::{self, Ask};
use bufwise_lab::experiments::{
    Experiment, ExperimentResult, Options, Reaches, Reported, SAMPLES, Samples, Shard, StopSignal, catalogue,
    file_name, finished, forget_runs, other_form, other_origin, run,
};
use clap::Args;

use super::bar::Bar;
use super::budget::{Budget, Rest};
use super::file;
use crate::exit::{FAILED, Failure, Outcome};
use crate::output;

/// List the experiments: name, source, question, and about how long each takes
///
/// The times are without the runs that are repeated because the emulator stalled. JSON also has the figures that its paper reported.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Write the list as JSON into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An experiment in the list.
#[derive(Debug, serde::Serialize)]
pub(super) struct Listed {
    id: &'static str,
    source: &'static str,
    question: &'static str,
    seconds: u32,
    quick_seconds: u32,
    /// Figures of its paper, with which `lab run` compares.
    reported: Vec<Reported>,
}

impl Listed {
    /// Returns what the list has of an experiment.
    pub(super) fn of(experiment: &Experiment) -> Self {
        Self {
            id: experiment.id,
            source: experiment.source,
            question: experiment.question,
            seconds: experiment.seconds(false, None),
            quick_seconds: experiment.seconds(true, None),
            reported: experiment.reported(),
        }
    }
}

impl ListArgs {
    pub(crate) fn run(self) -> Outcome {
        let list: Vec<Listed> = catalogue().iter().map(Listed::of).collect();
        let width = list.iter().map(|one| one.id.len()).max().unwrap_or_default();
        let line = |one: &Listed| {
            let (whole, quick) = (duration(one.seconds), duration(one.quick_seconds));
            format!("{:<width$} {whole:>7}, quick {quick:>7}  {:<30} {}\n", one.id, one.source, one.question)
        };
        output::both(self.json.as_deref(), &list, || list.iter().map(line).collect())?;
        Ok(0)
    }
}

pub(super) fn duration(seconds: u32) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds.div_ceil(60)),
        _ => format!("{:.1} h", f64::from(seconds) / 3_600.0),
    }
}

/// Run experiments over emulated paths with the real kernel, and judge the medians by targets
///
/// Exit status: 1 if a target was missed, or was not measured because no run was valid. Runs in which the emulator did not get
/// the processor in time are repeated up to twice, and marked with * if they stay invalid.
///
/// The report also compares the results with the figures of the paper. The verdict on a figure is reproduced, partly, not
/// reproduced, no longer true (the figure depends on the kernels of its time), or none if no run was valid. It does not change
/// the exit status.
///
/// Before the first run, a few rows of `bufwise lab check` judge the emulator; that takes about six seconds. If it fails, a warning
/// says so, and the experiments run nevertheless.
///
/// A file FILE.toml describes an experiment of your own (`bufwise lab show ID` prints one); its expectations are targets.
///
/// Six surveys run only by name: fit-grid, fit-harm, pair-harm, sobas-queues, head-to-head (hours) and probe-grid (half an hour).
/// With --out they keep every run in DIR/ID, and the same command continues where it was stopped. An invalid run never counts in
/// them, and a case without enough valid ones is not measured.
///
/// --budget is checked before each experiment begins; repetitions of invalid runs may exceed it.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: bufwise lab run expert-500 drs-fig4 --out results && bufwise lab report results"
)]
pub(crate) struct RunArgs {
    /// Names of experiments (`bufwise lab list`), or files that describe one
    #[arg(value_name = "ID|FILE.toml", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Run every experiment except the surveys
    #[arg(long)]
    all: bool,
    /// The short form: one repetition of shorter runs, and fewer cases
    #[arg(long)]
    quick: bool,
    /// Repetitions of every run; default 5; in a survey 3, and 5 in its corners; with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: Option<u32>,
    /// Run only the Kth of N parts, as 1/2: each Nth case; `bufwise lab report` joins the results of the parts
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Run the experiments that fit into this time, as 30min or 2h: the shortest first, by the times of `bufwise lab list`; the
    /// others are named
    #[arg(long, value_name = "TIME")]
    budget: Option<Budget>,
    /// Write the result of each experiment into ID.json (of a part: ID-K-of-N.json) in this directory, and one run of each method
    /// over time into samples/ID.json. Single runs are kept in ID/ until then; surveys continue from what they find there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Skip experiments whose whole results, in the same form, are in --out DIR already, and continue those that were stopped; what
    /// is there counts as if measured now
    #[arg(long, requires = "out")]
    resume: bool,
    /// Write everything into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl RunArgs {
    pub(crate) fn run(self) -> Outcome {
        let Chosen { mut experiments, files } = self.experiments()?;
        let cases: HashMap<&str, usize> =
            experiments.iter().map(|one| (one.id, one.cases(self.quick).count())).collect();
        let reaches: HashMap<&str, Vec<Reaches>> =
            experiments.iter().map(|one| (one.id, Reaches::all_of(one))).collect();
        if let Some(shard) = self.shard {
            experiments = experiments.into_iter().map(|one| shard.of(one, self.quick)).collect();
            experiments.retain(|experiment| !experiment.cases.is_empty());
            if experiments.is_empty() {
                output::note(&format!("no case is in shard {shard}\n"));
            }
        }
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let Self { quick, repeat, out, resume, .. } = &self;
        let options = Options { program, quick: *quick, repeat: *repeat, out: out.clone(), resume: *resume };
        self.refuse_other_results(&experiments, &files, &options)?;
        let mut results = if self.resume { self.finished(&mut experiments, &options)? } else { Vec::new() };
        let seconds = |experiment: &Experiment| experiment.seconds(self.quick, self.repeat);
        let rest = Rest::of(self.budget, &mut experiments, seconds)?;
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        if let Some(out) = &self.out {
            fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        }
        // The check catches signals, too, and leaves them ignored.
        let stop = StopSignal::watch().context("cannot catch signals")?;
        let emulator = if experiments.is_empty() { None } else { judge_emulator()? };
        let mut bar = Bar::new(experiments.iter().map(seconds).fold(0, u32::saturating_add));
        for experiment in &experiments {
            stop.continues().map_err(|error| Failure::new(error.exit_status(), error))?;
            if !rest.allows(seconds(experiment)) {
                let time = duration(seconds(experiment));
                bar.line(&format!(
                    "{}: left out: the rest of the budget is less than its {time}",
                    experiment.id
                ));
                continue;
            }
            bar.begins(seconds(experiment));
            let mut result = run(experiment, &options, |line| bar.line(line)).map_err(|error| {
                let goes_on = match (&self.out, experiment.survey) {
                    (None, _) => "",
                    (Some(_), true) => "; the same command goes on from here",
                    (Some(_), false) => "; the same command with --resume goes on from here",
                };
                Failure::new(error.exit_status(), format!("{error}{goes_on}"))
            })?;
            result.ran.iter_mut().for_each(|ran| ran.emulator.clone_from(&emulator));
            result.shard = self.shard;
            result.cases_in_all = self.shard.and_then(|_| cases.get(experiment.id).copied());
            result.reaches = self.shard.and_then(|_| reaches.get(experiment.id).cloned()).unwrap_or_default();
            result.file = files.get(experiment.id).cloned();
            bar.above(|| self.tell(&result))?;
            forget_runs(experiment, &options)?;
            results.push(result);
        }
        drop(bar);
        if let Some(json) = &self.json {
            output::json(json, &results)?;
        }
        Ok(if results.iter().all(ExperimentResult::met) { 0 } else { FAILED })
    }

    /// Refuses to replace results and kept runs of the short form by those of the whole form, and results of the catalogue by those of a
    /// user's experiment of the same name; and the reverse of each.
    fn refuse_other_results(
        &self,
        experiments: &[Experiment],
        files: &HashMap<&str, String>,
        options: &Options,
    ) -> Result<(), Failure> {
        for experiment in experiments {
            let is_own = files.contains_key(experiment.id);
            if let Some(path) = other_origin(experiment, is_own, self.shard, options)? {
                return Err(Failure::usage(format!(
                    "--out: {} has the result of {} {}: give another directory, or the file another `id`",
                    path.display(),
                    if is_own { "the built-in" } else { "a file's" },
                    experiment.id
                )));
            }
            if let Some(path) = other_form(experiment, self.shard, options)? {
                let forms = ["without --quick", "with --quick"];
                let (before, now) = if self.quick { (forms[0], forms[1]) } else { (forms[1], forms[0]) };
                return Err(Failure::usage(format!(
                    "--out: {} has results of {} {before}: give another directory for a run {now}",
                    path.display(),
                    experiment.id
                )));
            }
        }
        Ok(())
    }

    /// Takes those out of `experiments` that --out has already; returns their results.
    fn finished(
        &self,
        experiments: &mut Vec<Experiment>,
        options: &Options,
    ) -> Result<Vec<ExperimentResult>> {
        let mut results = Vec::new();
        for experiment in std::mem::take(experiments) {
            let Some(result) = finished(&experiment, self.shard, options)? else {
                experiments.push(experiment);
                continue;
            };
            output::note(&format!("{}: is there already; without --resume it runs again\n", experiment.id));
            results.push(result);
        }
        Ok(results)
    }

    fn experiments(&self) -> Result<Chosen, Failure> {
        if self.all {
            return Ok(Chosen { experiments: short(), files: HashMap::new() });
        }
        let (files, ids): (Vec<&String>, Vec<&String>) = self.ids.iter().partition(|id| file::is_file(id));
        if let Some(json) = &self.json {
            files.iter().try_for_each(|file| output::check_apart(json, Path::new(file)))?;
        }
        let mut experiments = named(&ids)?;
        // A congestion control or setting that this machine lacks must be found now, not after minutes of runs.
        let policies = file::POLICIES.on_this_machine();
        let own = files.iter().map(|path| file::read(Path::new(path), &policies));
        let own = own.collect::<Result<Vec<_>, _>>()?;
        for (index, experiment) in own.iter().enumerate() {
            let others = experiments.iter().chain(&own[..index]);
            if others.map(|other| other.id).any(|id| id == experiment.id) {
                let id = experiment.id;
                return Err(Failure::usage(format!(
                    "two experiments are called {id}: give one another `id`"
                )));
            }
        }
        tell_of_papers(&own);
        let files = own.iter().zip(files).map(|(experiment, path)| (experiment.id, path.clone())).collect();
        experiments.extend(own);
        Ok(Chosen { experiments, files })
    }

    /// Keeps the result, and prints it, also if it cannot be kept, as on a full disk.
    fn tell(&self, result: &ExperimentResult) -> Result<()> {
        let kept = self.keep(result);
        if !self.json.as_deref().is_some_and(output::is_stdout) {
            output::line(&format!("{result}\n"))?;
        }
        kept
    }

    fn keep(&self, result: &ExperimentResult) -> Result<()> {
        let Some(out) = &self.out else { return Ok(()) };
        let name = file_name(&result.id, self.shard);
        keep(&out.join(&name), result)?;
        let Some(samples) = Samples::of(result) else { return Ok(()) };
        let place = out.join(SAMPLES);
        fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
        keep(&place.join(name), &samples)
    }
}

/// The requested experiments: of the catalogue, in its order, then of files.
struct Chosen {
    experiments: Vec<Experiment>,
    /// The files as the call names them, by their experiments' names.
    files: HashMap<&'static str, String>,
}

/// Names those of the users' experiments that have the name of a paper's experiment, but other methods, cases or quantities.
fn tell_of_papers(own: &[Experiment]) {
    let has_figures = |experiment: &Experiment| !experiment.reported().is_empty();
    let of_papers: Vec<Experiment> = catalogue().into_iter().filter(has_figures).collect();
    let is_named = |one: &&Experiment| of_papers.iter().any(|paper| paper.id == one.id);
    for Experiment { id, .. } in own.iter().filter(is_named).filter(|one| !has_figures(one)) {
        output::note(&format!(
            "{id}: its methods, cases or quantities are not those of the built-in {id}: the paper's figures are left out\n"
        ));
    }
}

/// Judges the emulator before the first run, and prints the outcome in a line. `None`: a program of the check failed; the
/// experiments may not need it.
fn judge_emulator() -> Result<Option<CheckReport>, Failure> {
    match check::before_runs() {
        Ok(report) => {
            let doubt =
                "; results may show this machine instead of the paths: run them again when it is idle";
            let doubt = if report.passed { "" } else { doubt };
            output::note(&format!("the emulator before: {}{doubt}\n", report.in_short()));
            Ok(Some(report))
        }
        Err(error) if error.spares_runs() => {
            output::note(&format!("the emulator was not judged before the runs: {error}\n"));
            Ok(None)
        }
        Err(error) => Err(Failure::new(error.exit_status(), error)),
    }
}

/// Writes `value` as JSON into a file that the next call may read: as a whole or not at all.
fn keep(path: &Path, value: &impl serde::Serialize) -> Result<()> {
    let text = serde_json::to_string(value).context("cannot turn the result into JSON")?;
    output::whole(path, &(text + "\n"))
}

/// Returns the experiments that are not surveys.
fn short() -> Vec<Experiment> {
    catalogue().into_iter().filter(|experiment| !experiment.survey).collect()
}

/// Returns the experiments of these names, in the catalogue's order.
pub(super) fn named(ids: &[&String]) -> Result<Vec<Experiment>, Failure> {
    let mut experiments = catalogue();
    if let Some(id) = ids.iter().find(|id| experiments.iter().all(|experiment| experiment.id != **id)) {
        return Err(Failure::usage(format!(
            "no experiment {id:?}: bufwise lab list shows what there is; a file's name ends in .toml"
        )));
    }
    experiments.retain(|experiment| ids.iter().any(|id| *id == experiment.id));
    Ok(experiments)
}

/// Serves or fetches documents on a laboratory host.
#[derive(Debug, Args)]
pub(crate) struct DocumentArgs {
    /// Answer every request with a document of this many bytes; several sizes are equally likely
    #[arg(long, value_name = "BYTES", value_delimiter = ',', required_unless_present_any = ["fetch", "request_for"], conflicts_with = "fetch")]
    serve: Vec<u64>,
    /// Fetch this many documents, and print their response times as JSON
    #[arg(long, value_name = "COUNT", requires = "host")]
    fetch: Option<u32>,
    /// For this many seconds fetch a document every 50 ms at most; print the times, connection setup included, as JSON
    #[arg(long, value_name = "SECONDS", requires = "host", conflicts_with_all = ["fetch", "serve"])]
    request_for: Option<u32>,
    /// Fetch the files of a web server, which have these sizes as their names
    #[arg(long, value_name = "BYTES", value_delimiter = ',', requires = "host", conflicts_with = "serve")]
    web: Vec<u64>,
    /// Address of the server
    #[arg(long, value_name = "ADDR")]
    host: Option<IpAddr>,
    /// Port of the server
    #[arg(long)]
    port: u16,
}

impl DocumentArgs {
    pub(crate) fn run(self) -> Outcome {
        if !self.serve.is_empty() {
            document::serve(self.port, &self.serve)
                .with_context(|| format!("cannot serve on port {}", self.port))?;
        }
        if let Some(host) = self.host {
            let ask = if self.web.is_empty() { Ask::Any } else { Ask::Web(&self.web) };
            let seen = match (self.fetch, self.request_for) {
                (Some(count), _) => document::fetch(host, self.port, count, ask),
                (None, seconds) => {
                    let seconds = seconds.unwrap_or_default();
                    document::request(host, self.port, Duration::from_secs(seconds.into()), ask)
                }
            };
            output::json(
                Path::new("-"),
                &seen.with_context(|| format!("cannot fetch from {host}:{}", self.port))?,
            )?;
        }
        Ok(0)
    }
}
