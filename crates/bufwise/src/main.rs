//! bufwise: automatic TCP buffer tuning for Linux.

mod address;
mod check;
mod cli;
mod control;
mod demo;
mod exit;
mod explain;
mod figures;
mod judge;
mod lab;
mod ls;
mod netns;
mod output;
mod processes;
mod run;
mod survey;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(cli::parse().and_then(cli::Cli::run))
}
