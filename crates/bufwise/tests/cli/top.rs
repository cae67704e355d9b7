//! `bufwise top` in a terminal of its own, with a transfer to look at; and for scripts, without one.

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::pty::{Winsize, openpty};
use nix::sys::signal::{Signal, kill};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;

use crate::connections::{Pair, Transfer, find};
use crate::run::{eventually, only_error, run};

/// A shell in a terminal that runs the program, and what was written there.
struct Session {
    shell: Child,
    keyboard: File,
    terminal: OwnedFd,
    /// The terminal's settings before anything ran.
    settings: Termios,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Session {
    /// In a terminal of 24 lines of 100 columns.
    fn start(arguments: &[&str]) -> Self {
        let size = Winsize { ws_row: 24, ws_col: 100, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).unwrap();
        let settings = tcgetattr(pair.slave.as_fd()).unwrap();
        let stdio = || Stdio::from(pair.slave.try_clone().unwrap());
        // The terminal is that of a shell, which outlives the program: who looks at it afterwards finds it in use.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", "\"$@\"; echo status $?; read answer", "sh"]);
        command
            .arg(env!("CARGO_BIN_EXE_bufwise"))
            .args(arguments)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        let shell = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().expect("setsid is there");
        let keyboard = File::from(pair.master);
        let written: Arc<Mutex<Vec<u8>>> = Arc::default();
        let (mut screen, seen) = (keyboard.try_clone().unwrap(), Arc::clone(&written));
        thread::spawn(move || {
            let mut bytes = [0; 4096];
            while let Ok(count @ 1..) = screen.read(&mut bytes) {
                seen.lock().unwrap().extend(&bytes[..count]);
            }
        });
        Self { shell, keyboard, terminal: pair.slave, settings, written }
    }

    fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the terminal's size: everything is drawn anew.
    fn resize(&self, columns: u16) {
        let mut command = Command::new("stty");
        command.args(["cols", &columns.to_string()]).stdin(Stdio::from(self.terminal.try_clone().unwrap()));
        assert!(command.status().expect("stty is there").success());
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until the screen has these words in a line.
    fn shows(&self, words: &str) {
        eventually(&format!("{words:?} on the screen"), || {
            screen(&self.text()).iter().any(|line| line.contains(words))
        });
    }

    fn settings_now(&self) -> Termios {
        tcgetattr(self.terminal.as_fd()).unwrap()
    }

    /// The program's number.
    fn program(&self) -> Pid {
        let shell = self.shell.id();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        Pid::from_raw(children.trim().parse().expect("the shell has one child"))
    }

    /// Waits for its end, with status 0 and the terminal as it was.
    fn ends(&self) {
        eventually("it ends", || self.text().contains("status "));
        let text = self.text();
        let (screen, after) = text.rsplit_once("\x1b[?1049l").expect("the screen from before is back");
        assert!(after.contains("status 0") && screen.contains("\x1b[?25h"), "{text:?}");
        assert_eq!(self.settings_now(), self.settings);
    }
}

/// The lines of a terminal that was sent `text`: it knows how to move the cursor and to clear, and nothing else.
fn screen(text: &str) -> Vec<String> {
    let mut cells = vec![[' '; 200]; 50];
    let (mut line, mut column) = (0, 0);
    let mut parts = text.split('\x1b');
    // Before the first sequence nothing was drawn.
    parts.next();
    for part in parts {
        let Some(end) = part.find(|letter: char| letter.is_ascii_alphabetic()) else { break };
        let (sequence, printed) = part.split_at(end + 1);
        let place = sequence.strip_prefix('[').and_then(|rest| rest.strip_suffix('H')?.split_once(';'));
        if let Some((y, x)) = place {
            (line, column) = (y.parse::<usize>().unwrap() - 1, x.parse::<usize>().unwrap() - 1);
        } else if sequence.ends_with('J') {
            cells.iter_mut().for_each(|line| line.fill(' '));
        }
        for letter in printed.chars().filter(|letter| !letter.is_control()) {
            cells[line][column] = letter;
            column += 1;
        }
    }
    cells.iter().map(|line| line.iter().collect::<String>().trim_end().to_owned()).collect()
}

impl Drop for Session {
    fn drop(&mut self) {
        // The shell leads the session: its terminal and what runs there end with it.
        let _over = self.shell.kill();
        let _over = self.shell.wait();
    }
}

#[test]
fn a_transfer_is_seen_sorted_and_left_with_the_terminal_as_it_was() {
    let pair = Pair::on("127.0.0.1:0");
    let _transfer = Transfer::start(&pair);
    let (address, port) = (pair.address().to_string(), pair.address().port().to_string());
    let mut session = Session::start(&["top", "--all", "--no-daemon", &port]);
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
    let port = pair.address().port().to_string();
    let mut session = Session::start(&["top", "--all", "--no-daemon", &port]);
    session.shows("LAST MINUTE");
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
    // Control-C, as it is typed.
    session = Session::start(&["top", "--no-daemon"]);
    session.shows("bufwise top");
    session.type_in("\x03");
    session.ends();
}

#[test]
fn a_terminal_that_goes_away_ends_it_in_order() {
    let pair = openpty(None, None).unwrap();
    // A copy is closed in the program; the original would keep its terminal.
    let mut screen = File::from(pair.master.try_clone().unwrap());
    drop(pair.master);
    let stdio = || Stdio::from(pair.slave.try_clone().unwrap());
    let mut command = Command::new("setsid");
    command.args(["--ctty", env!("CARGO_BIN_EXE_bufwise"), "top", "--no-daemon"]).env("TERM", "xterm");
    let mut child = command.stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
    drop((command, pair.slave));
    screen.read_exact(&mut [0; 100]).expect("it draws");
    drop(screen);
    eventually("it ends", || child.try_wait().unwrap().is_some());
    let status = child.wait().unwrap();
    assert!(status.code().is_some(), "neither by a signal nor by an abort: {status}");
}

#[test]
fn without_a_terminal_it_says_what_does_without() {
    let line = only_error(&run(&["top"]), 2);
    assert!(line.contains("top --once"), "{line}");
    assert!(only_error(&run(&["top", "--interval", "5ms"]), 2).contains("1s to 60s"));
}

#[test]
fn once_is_the_table_of_ls_and_json_its_document() {
    let pair = Pair::on("127.0.0.1:0");
    let port = pair.address().port().to_string();
    let text = |command: &str, more: &[&str]| {
        let output = run(&[&[command, "--all", "--no-daemon", &port], more].concat());
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
