//! Running the program, and what a test of it needs to know about this machine.

use std::fs;
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The program with these arguments; nothing of the caller's terminal.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_bufwise"));
    command.args(arguments).stdin(Stdio::null());
    command
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program starts")
}

/// The only line on standard error of a run that failed with `status`.
pub(crate) fn only_error(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    assert!(text.starts_with("bufwise: "), "{text}");
    text
}

/// Paths are real-time: one at a time. `None`, the test skipped, without root.
pub(crate) fn root() -> Option<MutexGuard<'static, ()>> {
    static ONE_PATH: Mutex<()> = Mutex::new(());
    bufwise_trial::root().then(|| ONE_PATH.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Measures until the emulator was given the processor in time; what is measured then counts, whatever it is. A machine
/// that never lets the emulator keep time cannot show what is claimed: the test fails.
pub(crate) fn until_valid<T>(measure: impl FnMut() -> T, problem: impl Fn(&T) -> Option<String>) -> T {
    const ATTEMPTS: usize = 5;
    let mut problems = Vec::new();
    for measured in std::iter::repeat_with(measure).take(ATTEMPTS) {
        match problem(&measured) {
            Some(problem) => problems.push(problem),
            None => return measured,
        }
    }
    panic!("the emulator stalled in each of {ATTEMPTS} runs: {}", problems.join("; "));
}

/// Why a report of the laboratory is not to be trusted, if it is not.
pub(crate) fn why_invalid(report: &serde_json::Value) -> Option<String> {
    (report["valid"] != true).then(|| report["why_invalid"].to_string())
}

/// How long to wait for something that takes an idle machine no time. `BUFWISE_TEST_PATIENCE` multiplies it: an emulated
/// machine is slower by far.
pub(crate) fn patience(alone: Duration) -> Duration {
    let times = std::env::var("BUFWISE_TEST_PATIENCE").ok().and_then(|times| times.parse().ok());
    alone * times.unwrap_or(1)
}

/// Waits until `condition` holds; fails after ten seconds.
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(patience(Duration::from_secs(10)), what, condition);
}

/// Waits so long for something that should happen.
pub(crate) fn within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience, "not within {} s: {what}", patience.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Process numbers whose command line contains `marker`, other than ours.
pub(crate) fn processes(marker: &str) -> Vec<i32> {
    let entries = fs::read_dir("/proc").expect("/proc is there").flatten();
    let numbers = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let own = std::process::id().cast_signed();
    numbers
        .filter(|number| *number != own)
        .filter(|number| {
            let command = fs::read(format!("/proc/{number}/cmdline")).unwrap_or_default();
            let words: Vec<&[u8]> = command.split(|byte| *byte == 0).collect();
            words.contains(&marker.as_bytes())
        })
        .collect()
}
