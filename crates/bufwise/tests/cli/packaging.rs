//! The scripts of the .deb, called as dpkg calls them, with the programs of the service manager replaced.

use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::text;

/// Runs `postinst` where systemd seems to run, and returns what it asks `deb-systemd-invoke` to do. All happens in a mount
/// namespace; the programs that it calls only tell their arguments.
fn postinst(arguments: &[&str]) -> Vec<String> {
    let script = r#"
        mount -t tmpfs none /run && mkdir -p /run/systemd/system /run/bin || exit
        for name in deb-systemd-helper deb-systemd-invoke systemctl systemd-tmpfiles; do
            printf '#!/bin/sh\necho "%s $*" >&2\n' "$name" >"/run/bin/$name" && chmod 755 "/run/bin/$name" || exit
        done
        PATH=/run/bin:$PATH exec sh "$0" "$@""#;
    let mut command = Command::new("unshare");
    command.args(["-m", "sh", "-c", script]);
    command.arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/deb/postinst"));
    let output = command.args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = text(&output.stderr);
    assert!(output.status.success(), "{said}");
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
