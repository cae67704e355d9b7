//! bufwise: automatic TCP buffer tuning for Linux.

mod caps;
mod cli;
mod demo;
mod exit;
mod lab;
mod output;
mod run;
mod tuner;

use std::process::ExitCode;

fn main() -> ExitCode {
    exit::report(cli::parse().and_then(cli::Cli::run))
}
