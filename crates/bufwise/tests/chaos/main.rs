//! Injected faults, by name and seed, and the conditions that must hold after each of them.
//!
//! The suite runs a few steps of every experiment. `make chaos` runs the long form, 500 steps of each random
//! experiment; `CHAOS_SEED`, `CHAOS_RUNS` and `NAME` choose. A failing step prints how to repeat it.
//!
//! All experiments run in namespaces and cgroups of their own.

#![expect(clippy::unwrap_used, reason = "what a test cannot prepare fails the test")]

#[path = "../cli/place.rs"]
#[expect(dead_code, reason = "helpers of the other suite: some are of no use here")]
mod place;
#[path = "../cli/run.rs"]
#[expect(dead_code, reason = "helpers of the other suite: some are of no use here")]
mod run;

mod clock;
mod disk;
mod errno;
mod errno_files;
mod errno_tuning;
mod kill;
mod kill_files;
mod kill_run;
mod kill_serve;
mod power;
mod scene;
mod seeded;
mod stream;
mod transfer;
mod uploads;
mod vanish;
