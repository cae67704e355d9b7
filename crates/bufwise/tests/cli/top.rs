//! `bufwise top` in a terminal of its own, with a transfer to show; and for scripts, without a terminal.

use std::io::Read;
use std::process::{Command, Stdio};

use nix::sys::signal::{Signal, kill};

use crate::connections::{Pair, Transfer, find};
use crate::run::{eventually, only_error, run};
use crate::run_command::terminal;
use crate::terminal::{Session, Size};

#[test]
fn a_transfer_is_seen_sorted_and_left_with_the_terminal_as_it_was() {
    let pair = Pair::on("127.0.0.1:0");
    let _transfer = Transfer::start(&pair);
    let (address, port) = (pair.address().to_string(), pair.address().port().to_string());
    let mut session = Session::start(&["top", "--all", "--no-daemon", "--interval", "1s", &port]);
    for words in [&address, "bufwise top, by rate", "LAST MINUTE", "\u{2588}"] {
        session.shows(words);
    }
    assert_ne!(session.settings_now(), session.settings, "keys come one by one");
    session.type_in("w");
    session.shows("bufwise top, by waste");
    session.resize(140);
    session.shows("BDP");
    session.type_in("g");
    session.shows("bufwise top, by waste, only");
    session.shows("grouped by process");
    session.type_in("q");
    session.ends();
}

#[test]
fn enter_opens_a_connection_with_the_sentences_of_explain() {
    let pair = Pair::on("127.0.0.1:0");
    let _transfer = Transfer::start(&pair);
    let (address, port) = (pair.address().to_string(), pair.address().port().to_string());
    let mut session = Session::start(&["top", "--all", "--no-daemon", "--interval", "1s", &port]);
    // The titles come before the first sample.
    session.shows(&address);
    session.type_in("\r");
    for words in
        ["over base", "no daemon sizes it", "Limited by ", "Its other end is on this host", "Esc back"]
    {
        session.shows(words);
    }
    session.type_in("\x1b");
    session.shows("LAST MINUTE");
    session.type_in("q");
    session.ends();
}

#[test]
fn a_signal_ends_it_like_a_key() {
    let mut session = Session::start(&["top", "--no-daemon"]);
    session.shows("bufwise top");
    kill(session.program(), Signal::SIGTERM).unwrap();
    session.ends();
    // Control-C, typed as a key.
    session = Session::start(&["top", "--no-daemon"]);
    session.shows("bufwise top");
    session.type_in("\x03");
    session.ends();
}

#[test]
fn a_terminal_that_goes_away_ends_it_in_order() {
    let (mut screen, side) = terminal();
    let stdio = || Stdio::from(side.try_clone().unwrap());
    let mut command = Command::new("setsid");
    command.args(["--ctty", env!("CARGO_BIN_EXE_bufwise"), "top", "--no-daemon"]).env("TERM", "xterm");
    let mut child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
    drop((command, side));
    screen.read_exact(&mut [0; 100]).expect("it draws");
    drop(screen);
    eventually("it ends", || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert!(status.code().is_some(), "neither by a signal nor by an abort: {status}");
}

#[test]
fn a_paste_of_more_than_a_kilobyte_keeps_no_processor_busy() {
    let mut session = Session::start(&["top", "--no-daemon", "--interval", "60s"]);
    session.shows("bufwise top");
    session.type_in("/");
    session.shows("/_  address");
    // Less than the terminal keeps.
    session.type_in(&"x".repeat(4_000));
    session.shows(&format!("/{}", "x".repeat(90)));
    let stat = format!("/proc/{}/stat", session.program());
    // Ticks of a hundredth of a second; user and system time follow the name and eleven fields.
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(&stat).unwrap();
        let fields = stat.rsplit_once(')').unwrap().1.split_whitespace().skip(11).take(2);
        fields.map(|field| field.parse::<u64>().unwrap()).sum()
    };
    let before = ticks();
    std::thread::sleep(std::time::Duration::from_secs(1));
    assert!(ticks() - before < 30, "{} ticks in a second", ticks() - before);
}

#[test]
fn in_a_terminal_without_a_cursor_it_says_what_does_without() {
    let size = Size { lines: 24, columns: 200 };
    let session = Session::spawned(&["top", "--no-daemon"], size, |command| {
        command.env("TERM", "dumb").spawn().expect("setsid is there")
    });
    eventually("it ends", || session.text().contains("status 2"));
    assert!(session.text().contains("other than TERM=dumb; top --once"), "{}", session.text());
}

#[test]
fn without_a_terminal_it_says_what_does_without() {
    let line = only_error(&run(&["top"]), 2);
    assert!(line.contains("top --once"), "{line}");
    assert!(only_error(&run(&["top", "--interval", "5ms"]), 2).contains("1s to 60s"));
    assert!(only_error(&run(&["top", "--budget"]), 2).contains("--budget needs --once"));
}

#[test]
fn once_is_the_table_of_ls_and_json_its_document() {
    // An address of its own: another test's connection may have the same port.
    let pair = Pair::on("127.0.31.7:0");
    let text = |command: &str, more: &[&str]| {
        let output = run(&[&[command, "--all", "--no-daemon", "127.0.31.7"], more].concat());
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    let table = text("top", &["--once"]);
    assert_eq!(table, text("ls", &[]));
    let document: serde_json::Value = serde_json::from_str(&text("top", &["--json"])).unwrap();
    let own = pair.client.local_addr().unwrap();
    let list: serde_json::Value = serde_json::from_str(&text("ls", &["--json"])).unwrap();
    let keys = |one: &serde_json::Value| one.as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys(find(&document, own)), keys(find(&list, own)));
    assert_eq!(keys(&document), keys(&list));
}
