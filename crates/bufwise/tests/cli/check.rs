//! `bufwise check`: a line for each point, with or without privilege, and the exit status for scripts.

use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::connections::{NO_DAEMON, unprivileged};
use crate::run::{PROGRAM, command, eventually, root};
use crate::run_command::groups;

fn point<'a>(report: &'a Value, name: &str) -> &'a Value {
    let all = report["checks"].as_array().expect("there are checks");
    all.iter().find(|one| one["name"] == name).unwrap_or_else(|| panic!("{name} is missing: {report}"))
}

#[test]
fn every_point_says_how_it_stands_and_what_to_do() {
    // As root, `check` makes a group for a moment, which would disturb tests that search for groups.
    let _alone = nix::unistd::geteuid().is_root().then(root);
    let output = command(&[&["check", "--json"], &NO_DAEMON[..]].concat()).output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).expect("it is JSON, whatever is missing");
    let ready = report["ready"].as_bool().unwrap();
    assert_eq!(output.status.code(), Some(i32::from(!ready)));
    assert!(ready || !report["daemon_ready"].as_bool().unwrap(), "a daemon needs more");
    for one in report["checks"].as_array().unwrap() {
        let status = one["status"].as_str().unwrap();
        assert!(["ok", "limited", "missing"].contains(&status), "{one}");
        assert!(!one["found"].as_str().unwrap().is_empty(), "{one}");
        assert_eq!(one["advice"].is_null(), status == "ok", "{one}");
    }
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    assert_eq!(point(&report, "kernel")["found"], format!("Linux {}", kernel.trim()));
    let default = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
    assert!(point(&report, "congestion control")["found"].as_str().unwrap().starts_with(default.trim()));
    assert!(point(&report, "largest BDP")["found"].as_str().unwrap().contains(" of 100 ms"));
    assert!(point(&report, "daemon")["found"].as_str().unwrap().starts_with("none at /nonexistent"));
}

#[test]
fn root_where_run_works_check_says_so_and_leaves_nothing() {
    let Some(_alone) = root() else { return };
    let mut check = command(&[&["check"], &NO_DAEMON[..]].concat());
    let child = check.stdout(Stdio::piped()).spawn().unwrap();
    let group = format!("bufwise-run-{}-", child.id());
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert_eq!(output.status.code(), Some(0), "{text}");
    assert!(text.ends_with("bufwise run and bufwise daemon work here.\n"), "{text}");
    for name in [
        "privileges",
        "BTF",
        "cgroup v2",
        "programs load",
        "programs attach",
        "sockets in reach",
        "run, any user",
    ] {
        let line = text.lines().find(|line| line.split_at(9).1.starts_with(name));
        // Before Linux 5.15 a user's buffers stay autotuned.
        let may_be_limited = name == "run, any user";
        let is_well =
            |line: &str| line.starts_with("ok ") || (may_be_limited && line.starts_with("limited "));
        assert!(line.is_some_and(is_well), "{name}: {text}");
    }
    let left: Vec<_> = groups().into_iter().filter(|name| name.starts_with(&group)).collect();
    assert_eq!(left, [""; 0]);
}

#[test]
fn root_a_check_that_is_interrupted_leaves_no_cgroup() {
    let Some(_alone) = root() else { return };
    let mut check = command(&[&["check"], &NO_DAEMON[..]].concat());
    let mut child = check.stdout(Stdio::null()).spawn().unwrap();
    let mut is_over = false;
    eventually("it tries the programs, or is over", || {
        is_over = child.try_wait().unwrap().is_some();
        is_over || !groups().is_empty()
    });
    if !is_over {
        kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    }
    child.wait().unwrap();
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_without_privilege_what_is_missing_is_said_and_the_status_is_1() {
    let Some(_alone) = root() else { return };
    let output = unprivileged(&["check", "--json", "--socket", NO_DAEMON[1]]).expect("we are root");
    assert_eq!((output.status.code(), output.stderr.as_slice()), (Some(1), &b""[..]));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["ready"], false);
    for name in ["privileges", "cgroup v2", "programs load", "programs attach"] {
        assert_eq!(point(&report, name)["status"], "missing", "{report}");
    }
    let privileges = point(&report, "privileges");
    assert!(privileges["found"].as_str().unwrap().starts_with("not root, without CAP_BPF"), "{privileges}");
    assert!(privileges["advice"].as_str().unwrap().contains("run as root"), "{privileges}");
    assert_eq!(point(&report, "kernel")["status"], "ok");
    let user = point(&report, "run, any user");
    assert_eq!(user["status"], "ok");
    assert!(user["found"].as_str().unwrap().starts_with("from user space (no privilege)"), "{user}");
}

#[test]
fn root_where_the_loopback_device_is_down_sockets_are_in_reach_all_the_same() {
    let Some(_alone) = root() else { return };
    let mut check = Command::new("unshare");
    check.args(["-n", PROGRAM, "check", "--json", "-"]).args(NO_DAEMON).stdin(Stdio::null());
    let report: Value = serde_json::from_slice(&check.output().unwrap().stdout).unwrap();
    assert_eq!(point(&report, "sockets in reach")["status"], "ok", "{report}");
    assert_ne!(point(&report, "run, any user")["status"], "missing", "{report}");
}
