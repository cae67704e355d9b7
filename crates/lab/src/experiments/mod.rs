//! The papers' experiments and the engine's, by name: what is run is data, one file for each group.
//!
//! Every run has hosts, kernel settings and a path of its own; the methods of a case alternate; medians of several
//! repetitions are held against a stated target. A run in which the emulator stalled is made again, and marked if that
//! does not help.

mod abt;
mod drs;
mod expert;
mod markdown;
mod model;
mod reading;
mod result;
mod runner;
mod sabt;
mod script;
mod settings;
mod sobas;
mod verdict;

pub use markdown::write as markdown;
pub use model::{Amount, Bound, Case, Experiment, Flow, MAX_CONNECTIONS, Method, Quantity, Target, Way};
pub use result::{CaseResult, ExperimentResult, MethodResult, RunResult};
pub use runner::{ExperimentError, Options, run};
pub use script::Commands;
pub use verdict::Verdict;

/// All experiments, in the order in which they are listed and run.
#[must_use]
pub fn catalogue() -> Vec<Experiment> {
    [expert::experiments(), abt::experiments(), sabt::experiments(), drs::experiments(), sobas::experiments()]
        .concat()
}
