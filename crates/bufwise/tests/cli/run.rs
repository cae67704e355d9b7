//! Running the program, and facts about this machine for its tests.

use std::fs;
use std::net::SocketAddr;
use std::process::{Command, Output, Stdio};
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, Instant};

use socket2::{Domain, Socket, Type};

/// Path of the program.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_bufwise");

/// Returns the program with these arguments, detached from the caller's terminal and logins.
pub(crate) fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(PROGRAM);
    command.args(arguments).stdin(Stdio::null()).env_remove("COLUMNS");
    without_logins(&mut command);
    command
}

/// Hides the caller's logins from a command: a netrc file may have one for every server, or be open to others, which is an error.
pub(crate) fn without_logins(command: &mut Command) {
    command.env("HOME", "/nonexistent");
    for name in ["NETRC", "BUFWISE_USER", "BUFWISE_PASSWORD"] {
        command.env_remove(name);
    }
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    command(arguments).output().expect("the program starts")
}

/// Returns what a program has written, as text.
pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Returns the only line on standard error of a run that failed with `status`.
pub(crate) fn only_error(output: &Output, status: i32) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{text}");
    assert_eq!(text.lines().count(), 1, "one line: {text}");
    assert!(text.starts_with("bufwise: "), "{text}");
    text
}

static ONE_PATH: RwLock<()> = RwLock::new(());

/// Returns a lock, for emulated paths run in real time, one at a time. `None`, and the test skipped, without root.
pub(crate) fn root() -> Option<RwLockWriteGuard<'static, ()>> {
    bufwise_trial::root().then(|| ONE_PATH.write().unwrap_or_else(PoisonError::into_inner))
}

/// As [`root`], for a test that depends on no rate, has namespaces and cgroups of its own, and asserts nothing of other instances: such
/// tests run beside each other.
pub(crate) fn root_in_company() -> Option<RwLockReadGuard<'static, ()>> {
    bufwise_trial::root().then(|| ONE_PATH.read().unwrap_or_else(PoisonError::into_inner))
}

/// Repeats a measurement until the emulator got the processor in time; that result counts, whatever it is. If the
/// emulator stalled in every run, the last one is judged all the same: stalls make a test fail that would pass, hardly
/// the other way round, and the output of a test that fails names them.
pub(crate) fn until_valid<T>(mut measure: impl FnMut() -> T, problem: impl Fn(&T) -> Option<String>) -> T {
    const ATTEMPTS: usize = 5;
    let mut problems = Vec::new();
    loop {
        let measured = measure();
        let Some(problem) = problem(&measured) else { return measured };
        problems.push(problem);
        if problems.len() == ATTEMPTS {
            println!("the emulator stalled in each of {ATTEMPTS} runs: {}", problems.join("; "));
            let causes = ["stalled for", "not given the processor", "paused for"];
            let stalled = |problem: &String| causes.iter().any(|cause| problem.contains(cause));
            assert!(problems.last().is_some_and(stalled), "the last run is no measurement");
            return measured;
        }
    }
}

/// Measures up to three times, until a result fits; returns all results if none does. For outcomes that a pause of the machine can
/// spoil without a trace in the report, but that without the tested feature never fit.
pub(crate) fn one_of_three<T>(
    mut measure: impl FnMut() -> T,
    fits: impl Fn(&T) -> bool,
) -> Result<(), Vec<T>> {
    let mut seen = Vec::new();
    for _ in 0..3 {
        let measured = measure();
        if fits(&measured) {
            return Ok(());
        }
        seen.push(measured);
    }
    Err(seen)
}

/// Returns why a report of the laboratory is invalid; `None` if it is valid.
pub(crate) fn why_invalid(report: &serde_json::Value) -> Option<String> {
    (report["valid"] != true).then(|| report["why_invalid"].to_string())
}

/// Returns the time to wait for an action that takes `alone` on an idle machine. `BUFWISE_TEST_PATIENCE` multiplies it,
/// because an emulated machine is far slower.
pub(crate) fn patience(alone: Duration) -> Duration {
    let times = std::env::var("BUFWISE_TEST_PATIENCE").ok().and_then(|times| times.parse().ok());
    alone * times.unwrap_or(1)
}

/// Waits until `condition` holds; fails after 30 seconds, far longer than a busy machine stands still.
pub(crate) fn eventually(what: &str, condition: impl FnMut() -> bool) {
    within(patience(Duration::from_secs(30)), what, condition);
}

/// Waits until `condition` holds; fails after `patience`.
pub(crate) fn within(patience: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < patience, "not within {} s: {what}", patience.as_secs());
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Returns the address of a port at which nothing listens, and the socket that keeps it from others meanwhile.
pub(crate) fn silent_port() -> (Socket, SocketAddr) {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).expect("a socket");
    socket.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into()).expect("a port");
    let address = socket.local_addr().expect("it is bound").as_socket().expect("it is of IPv4");
    (socket, address)
}

/// Returns the IDs of other processes whose command line contains `marker`.
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
