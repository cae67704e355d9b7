//! Passwords that are asked for at the terminal, or taken from the environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use crate::run::{command, eventually, only_error};
use crate::terminal::{Session, Size};

#[test]
fn ctrl_c_at_a_password_leaves_the_terminal_as_it_was() {
    let empty = tempfile::tempdir().unwrap();
    for (call, prompt) in [
        (&["get", "ftp://jo@127.0.0.1:1/file"][..], "Password of jo at 127.0.0.1: "),
        (&["serve", "--hash-password", "jo"], "Password: "),
    ] {
        let mut session = Session::spawned(call, Size { lines: 24, columns: 100 }, |command| {
            command.env("HOME", empty.path()).env_remove("NETRC").env_remove("BUFWISE_PASSWORD");
            command.spawn().expect("setsid is there")
        });
        // The prompt comes before the terminal stops to show what is typed.
        eventually("it asks", || {
            session.text().contains(prompt) && session.settings_now() != session.settings
        });
        session.type_in("\x03");
        eventually("it ends", || session.text().contains("status 130"));
        assert_eq!(session.settings_now(), session.settings, "{call:?}");
    }
}

#[test]
fn a_password_that_is_not_utf8_is_said_to_be_that() {
    let directory = tempfile::tempdir().unwrap();
    let mut serve = command(&["serve", directory.path().to_str().unwrap(), "--user", "jo"]);
    let output = serve.env("BUFWISE_PASSWORD", OsStr::from_bytes(b"\xff")).output().unwrap();
    assert_eq!(only_error(&output, 2), "bufwise: BUFWISE_PASSWORD is not UTF-8\n");
}
