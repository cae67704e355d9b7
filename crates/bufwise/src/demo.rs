//! `bufwise demo`: shows what bufwise does in a first minute.

use std::path::PathBuf;

use anyhow::Context;
use bufwise_lab::demo::{self, Plan, Progress};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};

use crate::exit::{Failure, Outcome};
use crate::output;

/// Default file name of the picture.
const PICTURE: &str = "bufwise-demo.svg";
/// Steps of the progress bar for each round.
const STEPS: u64 = 100;

/// Show on this machine what bufwise gains: iperf3 over two emulated paths
///
/// It runs iperf3, unmodified, over two wide-area paths with the real kernel: with 64 KB buffers, with the kernel's autotuning, and
/// under `bufwise run --policy fit` at one end: the sender, the receiver, and the sender without root. It prints a table and draws a
/// picture. It takes less than a minute, and needs root and iperf3. It removes the paths however it ends.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Without the rows of BBR and of no root: under 25 seconds
    #[arg(long)]
    quick: bool,
    /// Write all figures into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Where to draw the picture (SVG); default bufwise-demo.svg, if that can be written
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
}

impl DemoArgs {
    pub(crate) fn run(self) -> Outcome {
        if self.plot.as_deref().is_some_and(output::is_stdout) {
            return Err(Failure::usage("--plot needs a file: standard output gets the table"));
        }
        if let (Some(json), Some(plot)) = (&self.json, &self.plot) {
            output::check_apart(json, plot)?;
        }
        let plan = if self.quick { Plan::quick() } else { Plan::whole() };
        for file in self.json.iter().chain(&self.plot) {
            output::check_writable(file)?;
        }
        let usual = || Some(PathBuf::from(PICTURE)).filter(|file| output::check_writable(file).is_ok());
        let plot = self.plot.clone().or_else(usual);
        let program = std::env::current_exe().context("cannot find this program's own file")?;
        let bar = bar(plan.rounds.len());
        let report = demo::run(&plan, &program, |progress| show(&bar, progress));
        bar.finish_and_clear();
        let report = report.map_err(|error| Failure::new(error.exit_status(), error))?;
        let has_run = |name: &str| report.results.iter().any(|result| result.method == name);
        for method in plan.rounds.iter().flatten().filter(|method| !has_run(method.name)) {
            output::note(&format!("left out, because this machine cannot run it: {}\n", method.name));
        }
        // Of a minute, what can be shown is shown.
        let drawn = plot.as_ref().map_or(Ok(()), |file| demo::draw(&report, file));
        let picture = match (&plot, &drawn) {
            (_, Err(error)) => format!("none: {error}"),
            (Some(file), Ok(())) => file.display().to_string(),
            (None, Ok(())) => {
                format!("none: {PICTURE} cannot be written here; --plot FILE draws it elsewhere")
            }
        };
        let written = self.json.as_ref().map_or(Ok(()), |json| output::json(json, &report));
        if !self.json.as_deref().is_some_and(output::is_stdout) {
            output::line(&format!("{report}\npicture: {picture}\n"))?;
        }
        drawn?;
        written?;
        Ok(0)
    }
}

fn bar(rounds: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{wide_bar} {msg} {elapsed}");
    let bar = ProgressBar::new(STEPS * rounds as u64);
    bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
}

fn show(bar: &ProgressBar, progress: &Progress) {
    let share = (progress.share.clamp(0.0, 1.0) * STEPS as f64) as u64;
    bar.set_position(STEPS * progress.done as u64 + share);
    bar.set_message(format!("{} of {}: {}", progress.done + 1, progress.of, progress.methods));
}
