//! `bufwise lab list`, `lab run`: experiments by name or from files, and their results.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};
use bufwise_lab::document;
use bufwise_lab::experiments::{
    Experiment, ExperimentResult, Options, Reported, SAMPLES, Samples, Shard, catalogue, file_name, finished,
    run,
};
use clap::Args;

use super::bar::Bar;
use super::budget::{Budget, Rest};
use super::file;
use crate::exit::{FAILED, Failure, Outcome};
use crate::output;

/// Lists the experiments: name, source, question, and about how long each takes. JSON has what its paper reported, too.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Write the list as JSON into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An experiment in the list.
#[derive(serde::Serialize)]
struct Listed {
    id: &'static str,
    source: &'static str,
    question: &'static str,
    seconds: u32,
    quick_seconds: u32,
    /// Figures of its paper, with which `lab run` compares.
    reported: Vec<Reported>,
}

impl ListArgs {
    pub(crate) fn run(self) -> Outcome {
        let listed = |experiment: Experiment| Listed {
            id: experiment.id,
            source: experiment.source,
            question: experiment.question,
            seconds: experiment.seconds(false, None),
            quick_seconds: experiment.seconds(true, None),
            reported: experiment.reported(),
        };
        let list: Vec<Listed> = catalogue().into_iter().map(listed).collect();
        if let Some(json) = &self.json {
            output::json(json, &list)?;
        }
        if !self.json.as_deref().is_some_and(output::is_stdout) {
            let line = |one: &Listed| {
                let (whole, quick) = (duration(one.seconds), duration(one.quick_seconds));
                format!("{:<14} {whole:>6}, quick {quick:>5}  {:<30} {}\n", one.id, one.source, one.question)
            };
            output::line(&list.iter().map(line).collect::<String>())?;
        }
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

/// Runs experiments over emulated paths with the real kernel, and holds the medians against their targets.
///
/// A paper's figures stand beside: reproduced, partly, not reproduced, no longer true (it rests on kernels as they were),
/// or none where no run was valid. This verdict is no target, and does not change the exit status.
///
/// A file FILE.toml describes an experiment of one's own (`bufwise lab show ID` prints one); what it expects must be met, or
/// the exit status is 1 as well.
///
/// The exit status is 1 if a target was missed. Runs in which the emulator was not given the processor are made again up
/// to twice, and marked with * if that does not help.
///
/// With --budget the time is kept as far as runs are not made again: each experiment is held against the clock before it begins.
///
/// The surveys fit-grid, fit-harm, pair-harm, sobas-queues, head-to-head (hours) and probe-grid (half an hour) run by name only. With --out they keep every run in DIR/ID, and the same command goes on
/// where it was stopped; an invalid run never counts, and a case without enough valid ones is not measured.
#[derive(Debug, Args)]
#[command(
    after_help = "Example: bufwise lab run expert-500 drs-fig4 --out results && bufwise lab report results"
)]
pub(crate) struct RunArgs {
    /// Names of experiments, which `bufwise lab list` has, or files that describe one
    #[arg(value_name = "ID|FILE.toml", required_unless_present = "all", conflicts_with = "all")]
    ids: Vec<String>,
    /// Run every experiment but the surveys
    #[arg(long)]
    all: bool,
    /// One repetition of shorter runs, and fewer cases
    #[arg(long)]
    quick: bool,
    /// Repetitions of every run; default 5, of a survey 3 and 5 in its corners, with --quick 1
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000))]
    repeat: Option<u32>,
    /// Run the Kth of N parts only, as 1/2: each Nth case; `bufwise lab report` joins what the parts leave with --out
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Run what fits into this time, as 30min or 2h: the shortest first, by the times of `bufwise lab list`; names what is left out
    #[arg(long, value_name = "TIME")]
    budget: Option<Budget>,
    /// Write what came out of each experiment into ID.json (of a part: ID-K-of-N.json) in this directory, and one run of each method over time into samples/ID.json; surveys go on from what they find there
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
    /// Leave out experiments that --out DIR has already, whole and in this form; their results count as if run now
    #[arg(long, requires = "out")]
    resume: bool,
    /// Write everything into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl RunArgs {
    pub(crate) fn run(self) -> Outcome {
        let (mut experiments, files) = self.experiments()?;
        if let Some(shard) = self.shard {
            experiments = experiments.into_iter().map(|one| shard.of(one, self.quick)).collect();
            experiments.retain(|experiment| !experiment.cases.is_empty());
            if experiments.is_empty() {
                output::note(&format!("no case is in shard {shard}\n"));
            }
        }
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let options = Options { program, quick: self.quick, repeat: self.repeat, out: self.out.clone() };
        let mut results = if self.resume { self.finished(&mut experiments, &options)? } else { Vec::new() };
        let seconds = |experiment: &Experiment| experiment.seconds(self.quick, self.repeat);
        let rest = Rest::of(self.budget, &mut experiments, seconds)?;
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        if let Some(out) = &self.out {
            fs::create_dir_all(out).with_context(|| format!("cannot make {}", out.display()))?;
        }
        let mut bar = Bar::new(experiments.iter().map(seconds).fold(0, u32::saturating_add));
        for experiment in &experiments {
            if !rest.allows(seconds(experiment)) {
                let time = duration(seconds(experiment));
                bar.line(&format!(
                    "{}: left out: the rest of the budget is less than its {time}",
                    experiment.id
                ));
                continue;
            }
            bar.begins(seconds(experiment));
            let mut result = run(experiment, &options, |line| bar.line(line))
                .map_err(|error| Failure::new(error.exit_status(), error))?;
            result.shard = self.shard;
            bar.above(|| self.tell(&result))?;
            results.push(result);
        }
        drop(bar);
        if let Some(json) = &self.json {
            output::json(json, &results)?;
        }
        let met = |result: &ExperimentResult| {
            if files.contains(&result.id) { result.all_met() } else { result.met() }
        };
        Ok(if results.iter().all(met) { 0 } else { FAILED })
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

    /// Returns the requested experiments (of the catalogue, in its order, then of files) and the names of those from
    /// files.
    fn experiments(&self) -> Result<(Vec<Experiment>, Vec<String>), Failure> {
        if self.all {
            return Ok((short(), Vec::new()));
        }
        let (files, ids): (Vec<&String>, Vec<&String>) = self.ids.iter().partition(|id| file::is_file(id));
        let mut experiments = named(&ids)?;
        let own = files.into_iter().map(|path| file::read(Path::new(path))).collect::<Result<Vec<_>, _>>()?;
        for (index, experiment) in own.iter().enumerate() {
            let others = experiments.iter().chain(&own[..index]);
            if others.map(|other| other.id).any(|id| id == experiment.id) {
                let id = experiment.id;
                return Err(Failure::usage(format!(
                    "two experiments are called {id}: give one another `id`"
                )));
            }
        }
        let names = own.iter().map(|experiment| experiment.id.to_owned()).collect();
        experiments.extend(own);
        Ok((experiments, names))
    }

    fn tell(&self, result: &ExperimentResult) -> Result<()> {
        if let Some(out) = &self.out {
            let name = file_name(&result.id, self.shard);
            output::json(&out.join(&name), result)?;
            if let Some(samples) = Samples::of(result) {
                let place = out.join(SAMPLES);
                fs::create_dir_all(&place).with_context(|| format!("cannot make {}", place.display()))?;
                output::json(&place.join(name), &samples)?;
            }
        }
        if self.json.as_deref().is_some_and(output::is_stdout) {
            return Ok(());
        }
        output::line(&format!("{result}\n"))
    }
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
    /// Answer every request with one of so many bytes
    #[arg(long, value_name = "BYTES", value_delimiter = ',', required_unless_present_any = ["fetch", "request_for"], conflicts_with = "fetch")]
    serve: Vec<u64>,
    /// Fetch so many, and print their response times as JSON
    #[arg(long, value_name = "COUNT", requires = "host")]
    fetch: Option<u32>,
    /// Fetch one every 50 ms at most for so many seconds, and print their times, connections included, as JSON
    #[arg(long, value_name = "SECONDS", requires = "host", conflicts_with_all = ["fetch", "serve"])]
    request_for: Option<u32>,
    /// The server
    #[arg(long, value_name = "ADDR")]
    host: Option<IpAddr>,
    /// Its port
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
            let seen = match (self.fetch, self.request_for) {
                (Some(count), _) => document::fetch(host, self.port, count),
                (None, seconds) => {
                    let seconds = seconds.unwrap_or_default();
                    document::request(host, self.port, Duration::from_secs(seconds.into()))
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
