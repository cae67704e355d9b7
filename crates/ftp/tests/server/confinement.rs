//! Confinement to the served directory, and clients' texts that must not become commands or log lines.

use std::fs;
use std::os::unix::fs::symlink;

use crate::support::{Served, serve};

/// A served directory with a secret beside it, and links to that.
fn with_a_secret_outside() -> (Served, tempfile::TempDir) {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    let served = serve(|_| {});
    served.put("inside", b"inside");
    symlink(outside.path().join("secret"), served.path("absolute")).unwrap();
    symlink(outside.path(), served.path("directory")).unwrap();
    symlink("../../../../../../etc/passwd", served.path("relative")).unwrap();
    symlink("inside", served.path("fine")).unwrap();
    (served, outside)
}

#[test]
fn dots_do_not_lead_out() {
    let (served, _outside) = with_a_secret_outside();
    let mut client = served.client();
    client.ask("CWD ../../..", 250);
    assert!(client.ask("PWD", 257).contains("\"/\""));
    for command in ["RETR ../../../../etc/passwd", "RETR /etc/passwd", "RETR inside/../../../etc/passwd"] {
        client.passive();
        client.ask(command, 550);
    }
    for command in ["SIZE ../../etc/passwd", "MLST /../etc", "CWD /etc", "HASH ../../../etc/passwd"] {
        client.ask(command, 550);
    }
    client.deliver("STOR ../../up", b"x", 226);
    assert!(served.path("up").exists(), "the top is above itself");
}

#[test]
fn links_do_not_lead_out() {
    let (served, outside) = with_a_secret_outside();
    let mut client = served.client();
    assert_eq!(client.fetch("RETR fine"), b"inside");
    for command in
        ["RETR absolute", "RETR relative", "RETR directory/secret", "LIST directory", "STOR directory/new"]
    {
        client.passive();
        client.ask(command, 550);
    }
    for command in [
        "CWD directory",
        "SIZE absolute",
        "MDTM relative",
        "MKD directory/new",
        "DELE directory/secret",
        "RMD directory/x",
    ] {
        client.ask(command, 550);
    }
    client.ask("RNFR inside", 350);
    client.ask("RNTO directory/stolen", 550);
    assert_eq!(client.fetch("NLST"), b"fine\r\ninside\r\n", "what leads outside is not listed");
    // Overwriting through a link would write outside the directory.
    client.passive();
    client.ask("STOR absolute", 550);
    assert_eq!(fs::read(outside.path().join("secret")).unwrap(), b"secret");
    assert_eq!(fs::read_dir(outside.path()).unwrap().count(), 1);
}

#[test]
fn a_link_itself_can_be_removed() {
    let (served, outside) = with_a_secret_outside();
    let mut client = served.client();
    client.ask("DELE absolute", 250);
    assert!(fs::symlink_metadata(served.path("absolute")).is_err());
    assert!(outside.path().join("secret").exists());
}

#[test]
fn links_to_directories_are_entered_but_not_walked() {
    let served = serve(|_| {});
    fs::create_dir(served.path("real")).unwrap();
    symlink("..", served.path("real/up")).unwrap();
    symlink("real", served.path("link")).unwrap();
    let mut client = served.client();
    client.ask("CWD link", 250);
    client.ask("CWD /", 250);
    let facts = String::from_utf8(client.fetch("MLSD")).unwrap();
    assert!(facts.contains("type=OS.unix=symlink;") && facts.matches("type=dir;").count() == 1, "{facts}");
}

#[test]
fn a_link_that_leads_up_and_stays_inside_is_listed_like_its_target() {
    let served = serve(|_| {});
    served.put("file", b"bytes");
    fs::create_dir(served.path("below")).unwrap();
    symlink("../file", served.path("below/link")).unwrap();
    symlink("../../file", served.path("below/out")).unwrap();
    let mut client = served.client();
    assert_eq!(client.fetch("RETR below/link"), b"bytes");
    assert_eq!(client.fetch("NLST below"), b"below/link\r\n");
    let facts = String::from_utf8(client.fetch("MLSD below")).unwrap();
    assert!(facts.starts_with("type=file;size=5;") && facts.ends_with(" link\r\n"), "{facts}");
}

#[test]
fn what_is_no_regular_file_is_never_opened() {
    let served = serve(|_| {});
    nix::unistd::mkfifo(&served.path("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(served.path("socket")).unwrap();
    let mut client = served.client();
    for path in ["fifo", "socket"] {
        for verb in ["RETR", "STOR", "APPE"] {
            client.passive();
            client.ask(&format!("{verb} {path}"), 550);
        }
        client.ask(&format!("HASH {path}"), 550);
        client.ask(&format!("SIZE {path}"), 550);
        client.ask(&format!("MFMT 20200102030405 {path}"), 550);
    }
}

#[test]
fn a_line_break_in_an_argument_is_no_second_command() {
    let served = serve(|_| {});
    let mut client = served.client();
    // A carriage return alone, a NUL: neither ends a line, and neither may be within one.
    client.send(b"MKD one\rMKD two\r\n");
    client.expect(500);
    client.send(b"MKD one\0two\r\n");
    client.expect(500);
    // The same characters as telnet encodes them.
    client.send(b"MKD one\r\0two\r\n");
    client.expect(500);
    client.ask("NOOP", 200);
    assert_eq!(fs::read_dir(served.directory.path()).unwrap().count(), 0);
}

#[test]
fn replies_do_not_repeat_what_a_client_sends() {
    let served = serve(|_| {});
    let mut client = served.connect();
    let bait = "227 Entering Passive Mode (198,18,0,1,0,21)";
    for command in [
        format!("USER {bait}"),
        format!("PASS {bait}"),
        bait.to_owned(),
        format!("XYZZY {bait}"),
        format!("OPTS {bait}"),
        format!("HELP {bait}"),
        format!("AUTH {bait}"),
    ] {
        client.say(&command);
        let (_, text) = client.reply().unwrap();
        assert!(!text.contains("227"), "{command}: {text}");
    }
    let mut client = served.client();
    for verb in ["SITE", "CWD", "SIZE", "RNFR", "TYPE", "RETR", "MLST", "STAT", "HASH"] {
        client.say(&format!("{verb} {bait}"));
        let (_, text) = client.reply().unwrap();
        assert!(!text.contains("227"), "{verb}: {text}");
    }
}

#[test]
fn the_log_escapes_what_clients_chose_and_has_no_password() {
    let served = serve(|_| {});
    let mut client = served.connect();
    client.ask("USER evil\x1b[2J", 331);
    client.ask("PASS hunter2", 530);
    let mut client = served.client();
    client.deliver("STOR bell\x07", b"x", 226);
    let log = served.log();
    assert!(!log.contains('\x1b') && !log.contains('\x07') && !log.contains("hunter2"), "{log}");
    assert!(log.contains("failed to log in as evil\\u{1b}[2J"), "{log}");
}
