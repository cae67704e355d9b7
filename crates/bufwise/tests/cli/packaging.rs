//! The scripts of the .deb and the .rpm, called as dpkg and rpm call them, with the programs of the service manager replaced.
//! Scripts that contributors call, which end what they have started and do not disturb each other.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tempfile::TempDir;

use crate::run::text;

/// Longest time that a script may take to end: shorter than what it has started would last.
const PATIENCE: Duration = Duration::from_secs(60);

/// Makes the journal of a network namespace.
const JOURNAL: &str = "mkdir /run/bufwise && touch /run/bufwise/caps-7 || exit";

/// Calls a script in a mount namespace, in which `/run` and `/etc` have only what the shell commands `before` make there; the
/// commands `after` follow. The programs of the service manager only tell their arguments.
fn call(script: &Path, arguments: &[&str], before: &str, after: &str) -> Output {
    let around = format!(
        r#"
        mount -t tmpfs none /run && mount -t tmpfs none /etc && mkdir /run/bin || exit
        for name in deb-systemd-helper deb-systemd-invoke systemctl systemd-tmpfiles; do
            printf '#!/bin/sh\necho "%s $*" >&2\n' "$name" >"/run/bin/$name" && chmod 755 "/run/bin/$name" || exit
        done
        {before}
        PATH=/run/bin:$PATH sh "$0" "$@" || exit
        {after}"#
    );
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", &around]).arg(script).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

/// Runs `postinst` where systemd seems to run, and returns what it asks `deb-systemd-invoke` to do.
fn postinst(arguments: &[&str]) -> Vec<String> {
    let said = text(&call(&packaging("deb/postinst"), arguments, "mkdir -p /run/systemd/system", "").stderr);
    said.lines().filter_map(|line| line.strip_prefix("deb-systemd-invoke ")).map(str::to_owned).collect()
}

#[test]
fn root_a_removal_that_fails_starts_the_services_again_and_an_upgrade_restarts_what_runs() {
    if !bufwise_trial::root() {
        return;
    }
    for (arguments, asked) in [
        (&["abort-remove"][..], &["start bufwise.service bufwise-serve.service"][..]),
        (&["abort-remove", "in-favour", "other", "1.0"], &["start bufwise.service bufwise-serve.service"]),
        (&["configure", "0.1.0"], &["try-restart bufwise.service bufwise-serve.service"]),
        (&["abort-upgrade", "9.0"], &["try-restart bufwise.service bufwise-serve.service"]),
        (&["configure", ""], &[]),
    ] {
        assert_eq!(postinst(arguments), asked, "{arguments:?}");
    }
}

#[test]
fn root_journals_that_a_run_needs_outlive_the_package() {
    if !bufwise_trial::root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let spec = fs::read_to_string(packaging("rpm/bufwise.spec")).unwrap();
    let postun = spec.split("\n%postun\n").nth(1).and_then(|rest| rest.split("\n%files").next()).unwrap();
    let of_rpm = directory.path().join("postun");
    fs::write(&of_rpm, postun).unwrap();
    for (script, argument) in [(packaging("deb/postrm"), "purge"), (of_rpm, "0")] {
        for owners in ["caps-7.owners", "caps-7.device-owners"] {
            for (lock, then) in [("flock --shared 9", "kept"), ("true", "gone")] {
                let before = format!("{JOURNAL}; exec 9>/run/bufwise/{owners} && {lock} || exit");
                let after = "if [ -e /run/bufwise/caps-7 ]; then echo kept; else echo gone; fi";
                let output = call(&script, &[argument], &before, after);
                assert_eq!(text(&output.stdout).trim_end(), then, "{}: {owners}, {lock}", script.display());
            }
        }
    }
}

fn script(name: &str) -> PathBuf {
    packaging("../scripts").join(name)
}

/// Returns a directory with copies of these scripts, which look for files from there, and with a program that runs `commands` in
/// the place of `program`.
fn copied(scripts: &[&str], program: &str, commands: &str) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for name in scripts {
        let copy = directory.path().join("scripts").join(name);
        fs::create_dir_all(copy.parent().unwrap()).unwrap();
        fs::copy(script(name), copy).unwrap();
    }
    // Another process writes it: a child that another test starts meanwhile would keep it open for writing, and so not
    // executable.
    let write = r#"mkdir -p "${0%/*}" && printf '#!/bin/sh\n%s\n' "$1" >"$0" && chmod +x "$0""#;
    let mut shell = Command::new("sh");
    shell.args(["-c", write, program, commands]).current_dir(directory.path());
    assert!(shell.status().unwrap().success());
    directory
}

#[test]
fn a_program_whose_time_is_over_ends_with_what_it_has_started() {
    if bufwise_trial::program("bash").is_none() {
        return;
    }
    // `sleep` ignores SIGTERM and holds the output open.
    let commands = "trap '' TERM; sleep 100 & trap - TERM; wait";
    let mut limited = Command::new("bash");
    limited.arg(script("limited")).args(["1", "sh", "-c", commands]).stdin(Stdio::null());
    let began = Instant::now();
    let output = limited.output().unwrap();
    assert_eq!(output.status.code(), Some(124), "{}", text(&output.stdout));
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn a_fetch_of_kernels_that_is_ended_ends_what_it_has_started() {
    if bufwise_trial::program("bash").is_none() {
        return;
    }
    // One download holds the output open; the other one, which begins after it, says that both have begun.
    let download = "[ \"$1\" = sid ] || exec sleep 100\necho begun";
    let directory = copied(&["kernels", "vm/lib"], "scripts/vm/kernel", download);
    let mut command = Command::new("bash");
    command.arg(directory.path().join("scripts/kernels")).arg("--fetch").stdin(Stdio::null());
    let mut fetch = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut output = BufReader::new(fetch.stdout.take().unwrap());
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    assert_eq!(said, "begun\n");
    let began = Instant::now();
    kill(Pid::from_raw(fetch.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(output.read_line(&mut said).unwrap(), 0, "{said}");
    assert_eq!(fetch.wait().unwrap().code(), Some(143));
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
}

#[test]
fn one_call_at_a_time_installs_the_checkers_and_the_next_one_finds_them() {
    if bufwise_trial::program("bash").is_none() {
        return;
    }
    // Called as `python3 -m venv DIRECTORY`; fails if another call could install at the same time.
    let python = "echo called >>calls\nflock --nonblock target/tools.lock true && exit 1\n\
        mkdir -p \"$3/bin\" && printf '#!/bin/sh\\n' >\"$3/bin/pip\" && chmod +x \"$3/bin/pip\"";
    let directory = copied(&["install-tools", "tools.txt"], "bin/python3", python);
    let path = format!("{}:{}", directory.path().join("bin").display(), std::env::var("PATH").unwrap());
    for _ in 0..2 {
        let mut install = Command::new("bash");
        let output = install.arg(directory.path().join("scripts/install-tools")).env("PATH", &path).output();
        let output = output.unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
    }
    assert_eq!(fs::read_to_string(directory.path().join("calls")).unwrap(), "called\n");
}
