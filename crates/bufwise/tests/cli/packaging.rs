//! The scripts of the .deb and the .rpm, called as dpkg and rpm call them, with the programs of the service manager replaced.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::run::text;

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
