//! How a test says that it cannot run on this machine.
//!
//! A test that lacks something (root, a program, IPv6) prints `skipped: REASON` on standard error and passes.
//! `scripts/test` counts those lines by reason. Under CI (`CI` set and not empty) the test fails instead, with the same
//! reason.

use std::env;
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::Command;

/// Says why the calling test does not run. Its caller returns.
///
/// # Panics
/// Under CI, where every test must run.
pub fn skip(reason: &str) {
    let under_ci = env::var_os("CI").is_some_and(|value| !value.is_empty());
    assert!(!under_ci, "under CI no test may be skipped: {reason}");
    eprintln!("skipped: {reason}");
}

/// Whether the test is root; skips it if not.
#[must_use]
pub fn root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        skip("needs root");
    }
    root
}

/// Whether the loopback interface has IPv6; skips the test if not.
#[must_use]
pub fn ipv6() -> bool {
    let there = UdpSocket::bind("[::1]:0").is_ok();
    if !there {
        skip("needs IPv6 on the loopback interface");
    }
    there
}

/// Returns where `PATH` has the program; skips the test if nowhere.
#[must_use]
pub fn program(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    found(name, env::split_paths(&path).map(|directory| directory.join(name)))
}

/// Returns the first of these files that exists; skips the test, which needs `what`, if none does.
#[must_use]
pub fn found(what: &str, files: impl IntoIterator<Item = PathBuf>) -> Option<PathBuf> {
    let file = files.into_iter().find(|file| file.exists());
    if file.is_none() {
        skip(&format!("{what} is not installed (make peers)"));
    }
    file
}

/// Returns whether the calling test is alone in its process, so that it may change what holds for the whole process, as a limit of
/// resources. Otherwise runs the test of the name `test` (as `module::tests::name`) in a process of its own, where this returns
/// true; the caller returns.
///
/// # Panics
/// If the test fails there, or if no test has that name.
#[must_use]
pub fn alone(test: &str) -> bool {
    const ALONE: &str = "BUFWISE_TEST_ALONE";
    if env::var_os(ALONE).is_some() {
        return true;
    }
    let run = || Command::new(env::current_exe()?).args(["--exact", test]).env(ALONE, "1").output();
    let output = run();
    let passed = output.as_ref().is_ok_and(|output| {
        output.status.success() && String::from_utf8_lossy(&output.stdout).contains("1 passed")
    });
    assert!(passed, "{output:?}");
    false
}
