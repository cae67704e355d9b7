//! bufwise: automatic TCP buffer tuning for Linux.

mod check;
mod cli;
mod confine;
mod daemon;
mod demo;
mod exit;
mod explain;
mod figures;
mod generate;
mod get;
mod history;
mod http;
mod lab;
mod ls;
mod metrics;
mod output;
mod probe;
mod put;
mod restore;
mod run;
mod serve;
mod signals;
mod terminal;
mod top;
mod transfer;
mod web;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(cli::parse().and_then(cli::Cli::run))
}
