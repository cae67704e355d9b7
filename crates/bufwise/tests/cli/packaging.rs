//! The scripts of the .deb and the .rpm, called as dpkg and rpm call them, with the programs of the service manager replaced; the
//! commands of the tarball's INSTALL; the restarts of the units. Scripts that contributors call: they end what they have started, and
//! do not disturb each other.

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
/// commands `after` follow. The programs of the service manager only tell their arguments. No socket of the machine shows in
/// `/proc/net`.
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
    command.args(["-n", "-m", "sh", "-c", &around]).arg(script).args(arguments);
    let output = command.stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    output
}

fn packaging(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging").join(path)
}

/// Returns the shell commands that have `program` append its arguments to `/run/asked`, and end with the status of `command`.
fn noting(program: &str, command: &str) -> String {
    let script = format!(r#"'#!/bin/sh\necho "$*" >>/run/asked; {command}\n'"#);
    format!("touch /run/asked && printf {script} >/run/bin/{program}")
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
fn root_an_installation_takes_the_mask_of_a_removal_off_and_enables_nothing_new() {
    if !bufwise_trial::root() {
        return;
    }
    // The helper knows no earlier installation, as if the links of the units could not be recorded.
    let before = noting("deb-systemd-helper", r#"[ "$1" != debian-installed ]"#);
    let asked = text(&call(&packaging("deb/postinst"), &["configure", ""], &before, "cat /run/asked").stdout);
    for unit in ["bufwise.service", "bufwise-serve.service"] {
        assert!(asked.lines().any(|line| line == format!("unmask {unit}")), "{asked}");
    }
    assert!(!asked.lines().any(|line| line.starts_with("enable ")), "{asked}");
}

/// Returns a scriptlet of the .rpm.
fn scriptlet(name: &str) -> String {
    let spec = fs::read_to_string(packaging("rpm/bufwise.spec")).unwrap();
    let after = spec.split(&format!("\n%{name}\n")).nth(1).unwrap();
    after.split("\n%").next().unwrap().to_owned()
}

#[test]
fn root_a_removal_of_the_rpm_disables_the_units_also_where_systemd_does_not_run() {
    if !bufwise_trial::root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let preun = directory.path().join("preun");
    // A bufwise that is installed on this machine is not called.
    fs::write(&preun, scriptlet("preun").replace("/usr/bin/bufwise", "true")).unwrap();
    let note = noting("systemctl", "true");
    for (before, argument, asked) in [
        (
            "mkdir -p /run/systemd/system",
            "0",
            "--no-reload disable --now bufwise.service bufwise-serve.service\n",
        ),
        ("true", "0", "--no-reload disable bufwise.service bufwise-serve.service\n"),
        ("mkdir -p /run/systemd/system", "1", ""),
    ] {
        let output = call(&preun, &[argument], &format!("{note} && {before} || exit"), "cat /run/asked");
        assert_eq!(text(&output.stdout), asked, "{before}, {argument}");
    }
}

/// Removes the package for good, as dpkg and as rpm do, after the shell commands `before`, and asserts what `then` becomes of the
/// journal: "kept" or "gone".
fn purge(before: &str, then: &str) {
    let directory = tempfile::tempdir().unwrap();
    let of_rpm = directory.path().join("postun");
    fs::write(&of_rpm, scriptlet("postun")).unwrap();
    for (script, argument) in [(packaging("deb/postrm"), "purge"), (of_rpm, "0")] {
        let before = format!("{JOURNAL}; {before} || exit");
        let after = "if [ -e /run/bufwise/caps-7 ]; then echo kept; else echo gone; fi";
        let output = call(&script, &[argument], &before, after);
        assert_eq!(text(&output.stdout).trim_end(), then, "{}: {before}", script.display());
    }
}

#[test]
fn root_journals_that_a_run_needs_outlive_the_package() {
    if !bufwise_trial::root() {
        return;
    }
    for owners in ["caps-7.owners", "caps-7.device-owners"] {
        for (lock, then) in [("flock --shared 9", "kept"), ("true", "gone")] {
            purge(&format!("exec 9>/run/bufwise/{owners} && {lock}"), then);
        }
    }
}

#[test]
fn root_the_directory_of_a_daemon_that_listens_outlives_the_package() {
    if !bufwise_trial::root() || bufwise_trial::program("python3").is_none() {
        return;
    }
    let python = "import socket, sys; one = socket.socket(socket.AF_UNIX); \
        one.bind(\"/run/bufwise/control\"); one.listen(); print(\"listens\", flush=True); sys.stdin.read()";
    // It listens until its standard input ends: the pipe that the shell holds open for writing.
    let daemon = format!("python3 -c '{python}' </run/in >/run/out 2>&1");
    let started = format!("{{ {daemon} & }} && exec 8>/run/in && read -r _ </run/out");
    purge(&format!("mkfifo /run/in /run/out && {started}"), "kept");
    // A daemon that was killed leaves its socket.
    purge(&format!("python3 -c '{python}' </dev/null >/dev/null"), "gone");
}

#[test]
fn the_tarballs_instructions_leave_the_administrators_files_alone() {
    let instructions = fs::read_to_string(packaging("tar/INSTALL")).unwrap();
    let commands = instructions.lines().filter_map(|line| line.strip_prefix("    "));
    let commands: Vec<String> = commands
        .filter(|command| command.contains("install "))
        .map(|command| command.replace(" /", " root/"))
        .collect();
    assert_eq!(commands.len(), 8, "{commands:?}");
    let directory = tempfile::tempdir().unwrap();
    let script = format!(
        "mkdir -p man systemd completions root/usr/bin root/etc/bufwise root/etc/systemd/system
        touch bufwise bufwise.toml bufwise.tmpfiles man/bufwise.1
        touch systemd/bufwise.service systemd/bufwise-serve.service
        touch completions/bufwise.bash completions/_bufwise completions/bufwise.fish
        echo own >root/etc/bufwise/bufwise.toml
        ln -s /dev/null root/etc/systemd/system/bufwise-serve.service
        {}
        cat root/etc/bufwise/bufwise.toml
        readlink root/etc/systemd/system/bufwise-serve.service
        ls root/usr/lib/systemd/system",
        commands.join("\n")
    );
    let output = Command::new("sh").args(["-ec", &script]).current_dir(directory.path()).output().unwrap();
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "own\n/dev/null\nbufwise-serve.service\nbufwise.service\n");
}

#[test]
fn units_whose_start_fails_are_started_again_for_minutes() {
    for name in ["bufwise.service", "bufwise-serve.service"] {
        let unit = fs::read_to_string(packaging("../etc").join(name)).unwrap();
        let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix('='));
        let number = |key: &str| value(key).and_then(|text| text.parse::<u64>().ok());
        assert_eq!(value("Restart"), Some("on-failure"), "{name}");
        // The limit, which ends the attempts, counts those of ten minutes.
        assert_eq!(value("StartLimitIntervalSec"), Some("10min"), "{name}");
        let spent = number("StartLimitBurst").zip(number("RestartSec")).map(|(count, pause)| count * pause);
        assert!(spent.is_some_and(|seconds| (300..600).contains(&seconds)), "{name}: {spent:?}");
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
fn a_root_test_that_passes_at_its_second_run_does_not_hide_an_example_that_fails() {
    if bufwise_trial::program("bash").is_none() {
        return;
    }
    // Answers for the whole suite, for its last part, and for the second run of a test.
    let cargo = r#"case "$*" in
        *--features*) ;;
        *--workspace*) cat "$SUITE"; exit 101 ;;
        *) echo "test result: ok. 1 passed; 0 failed; 0 ignored" ;;
        esac"#;
    let directory = copied(&["test"], "bin/cargo", cargo);
    let root = "failures:\n    root_measures\n\ntest result: FAILED. 1 passed; 1 failed; 0 ignored\n\n\
        error: test failed, to rerun pass `-p bufwise --test cli`\n";
    let example = "failures:\n    crates/policy/src/abt.rs - abt::Abt (line 58)\n\n\
        test result: FAILED. 0 passed; 1 failed; 0 ignored\n\n\
        error: doctest failed, to rerun pass `-p bufwise-policy --doc`\n";
    let path = format!("{}:{}", directory.path().join("bin").display(), std::env::var("PATH").unwrap());
    let suite = directory.path().join("suite");
    for (failed, status) in [(root.to_owned(), 0), (format!("{root}{example}"), 101)] {
        fs::write(&suite, &failed).unwrap();
        let mut test = Command::new("bash");
        test.arg("scripts/test").current_dir(directory.path()).env_remove("CI");
        let output = test.env("PATH", &path).env("SUITE", &suite).stdin(Stdio::null()).output().unwrap();
        assert_eq!(output.status.code(), Some(status), "{failed}{}", text(&output.stdout));
    }
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
