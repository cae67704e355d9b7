//! bufwise: automatic TCP buffer tuning for Linux.

mod address;
mod caps;
mod check;
mod cli;
mod container;
mod control;
mod daemon;
mod demo;
mod exit;
mod explain;
mod figures;
mod generate;
mod get;
mod judge;
mod lab;
mod leftovers;
mod ls;
mod netns;
mod output;
mod processes;
mod put;
mod restore;
mod run;
mod serve;
mod survey;
mod transfer;
mod tuner;
mod view;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(cli::parse().and_then(cli::Cli::run))
}
