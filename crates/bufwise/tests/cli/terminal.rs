//! The program in a terminal of its own: the tests send keys, and its output becomes cells, lines and a picture.

use std::fmt::Write as _;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{Termios, tcgetattr};
use nix::unistd::Pid;

use crate::run::eventually;

/// A terminal's size in cells.
#[derive(Clone, Copy)]
pub(crate) struct Size {
    pub(crate) lines: u16,
    pub(crate) columns: u16,
}

/// A terminal with a shell that runs the program, and the output so far.
pub(crate) struct Session {
    shell: Child,
    keyboard: File,
    terminal: OwnedFd,
    /// The terminal's settings before the program ran.
    pub(crate) settings: Termios,
    written: Arc<Mutex<Vec<u8>>>,
}

impl Session {
    /// Starts the program in a terminal of 24 lines of 100 columns.
    pub(crate) fn start(arguments: &[&str]) -> Self {
        Self::spawned(arguments, Size { lines: 24, columns: 100 }, |command| {
            command.spawn().expect("setsid is there")
        })
    }

    /// Starts the program in a terminal of that size, by `spawn`.
    pub(crate) fn spawned(arguments: &[&str], size: Size, spawn: impl FnOnce(&mut Command) -> Child) -> Self {
        let size = Winsize { ws_row: size.lines, ws_col: size.columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(&size, None).unwrap();
        let settings = tcgetattr(pair.slave.as_fd()).unwrap();
        let stdio = || Stdio::from(pair.slave.try_clone().unwrap());
        // The terminal belongs to a shell that outlives the program, so that its settings can be read afterwards.
        let mut command = Command::new("setsid");
        command.args(["--ctty", "sh", "-c", "\"$@\"; echo status $?; read answer", "sh"]);
        command
            .arg(env!("CARGO_BIN_EXE_bufwise"))
            .args(arguments)
            .env("TERM", "xterm")
            .env_remove("NO_COLOR");
        let shell = spawn(command.stdin(stdio()).stdout(stdio()).stderr(stdio()));
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

    pub(crate) fn type_in(&mut self, keys: &str) {
        self.keyboard.write_all(keys.as_bytes()).unwrap();
    }

    /// Changes the terminal's size, after which the program draws everything again.
    pub(crate) fn resize(&self, columns: u16) {
        let mut command = Command::new("stty");
        command.args(["cols", &columns.to_string()]).stdin(Stdio::from(self.terminal.try_clone().unwrap()));
        assert!(command.status().expect("stty is there").success());
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.written.lock().unwrap()).into_owned()
    }

    /// Waits until a line of the screen contains `words`.
    pub(crate) fn shows(&self, words: &str) {
        eventually(&format!("{words:?} on the screen"), || {
            screen(&self.text()).iter().any(|line| line.contains(words))
        });
    }

    pub(crate) fn settings_now(&self) -> Termios {
        tcgetattr(self.terminal.as_fd()).unwrap()
    }

    /// The program's process ID.
    pub(crate) fn program(&self) -> Pid {
        let shell = self.shell.id();
        let children = std::fs::read_to_string(format!("/proc/{shell}/task/{shell}/children")).unwrap();
        Pid::from_raw(children.trim().parse().expect("the shell has one child"))
    }

    /// Waits for the program's end; asserts status 0 and unchanged settings of the terminal.
    pub(crate) fn ends(&self) {
        eventually("it ends", || {
            self.text().rsplit_once("status ").is_some_and(|(_, rest)| rest.contains('\n'))
        });
        let text = self.text();
        let (screen, after) = text.rsplit_once("\x1b[?1049l").expect("the screen from before is back");
        assert!(after.contains("status 0") && screen.contains("\x1b[?25h"), "{text:?}");
        assert_eq!(self.settings_now(), self.settings);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        // The shell leads the session: its terminal and the processes there end with it.
        let _over = self.shell.kill();
        let _over = self.shell.wait();
    }
}

/// The style of a cell: attributes of SGR, and the colour of its text.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Style {
    bold: bool,
    dim: bool,
    underlined: bool,
    reversed: bool,
    /// Index into the terminal's palette.
    colour: Option<u8>,
}

impl Style {
    /// Applies the numbers of a sequence `ESC [ .. m`.
    fn select(&mut self, numbers: &str) {
        let mut numbers = numbers.split(';').map(|number| number.parse().unwrap_or(0_u8));
        while let Some(number) = numbers.next() {
            match number {
                0 => *self = Self::default(),
                1 => self.bold = true,
                2 => self.dim = true,
                4 => self.underlined = true,
                7 => self.reversed = true,
                22 => (self.bold, self.dim) = (false, false),
                24 => self.underlined = false,
                27 => self.reversed = false,
                38 => self.colour = numbers.nth(1),
                39 => self.colour = None,
                _ => {}
            }
        }
    }
}

/// Returns the cells of a terminal after the output `text`. It handles only sequences that move the cursor, clear, or
/// set the style.
fn cells(text: &str) -> Vec<[(char, Style); 200]> {
    let blank = [(' ', Style::default()); 200];
    let mut cells = vec![blank; 50];
    let (mut line, mut column, mut style) = (0, 0, Style::default());
    let mut parts = text.split('\x1b');
    // The part before the first sequence draws nothing.
    parts.next();
    for part in parts {
        let Some(end) = part.find(|letter: char| letter.is_ascii_alphabetic()) else { break };
        let (sequence, printed) = part.split_at(end + 1);
        let place = sequence.strip_prefix('[').and_then(|rest| rest.strip_suffix('H')?.split_once(';'));
        if let Some((y, x)) = place {
            (line, column) = (y.parse::<usize>().unwrap() - 1, x.parse::<usize>().unwrap() - 1);
        } else if sequence.ends_with('J') {
            cells.fill(blank);
        } else if let Some(numbers) = sequence.strip_prefix('[').and_then(|rest| rest.strip_suffix('m')) {
            style.select(numbers);
        }
        for letter in printed.chars().filter(|letter| !letter.is_control()) {
            cells[line][column] = (letter, style);
            column += 1;
        }
    }
    cells
}

/// Returns the lines of that terminal.
pub(crate) fn screen(text: &str) -> Vec<String> {
    let line = |line: [(char, Style); 200]| line.iter().map(|(letter, _)| letter).collect::<String>();
    cells(text).into_iter().map(|cells| line(cells).trim_end().to_owned()).collect()
}

/// Width and height of a cell in a picture, and the height of its letters' base line.
const CELL: (f64, f64, f64) = (8.0, 18.0, 13.5);

/// Returns a picture of that terminal, for light and dark pages.
pub(crate) fn svg(text: &str, size: Size) -> String {
    let (width, height) = (f64::from(size.columns) * CELL.0 + 16.0, f64::from(size.lines) * CELL.1 + 16.0);
    let mut svg = format!(
        "<svg width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         xmlns=\"http://www.w3.org/2000/svg\">\n<style>\n\
         svg {{ --page: #ffffff; --text: #1f2328; --yellow: #8a6100; --green: #1a7f37 }}\n\
         @media (prefers-color-scheme: dark) {{ svg {{ --page: #0d1117; --text: #e6edf3; --yellow: #e3b341; --green: #56d364 }} }}\n\
         text {{ font: 13px monospace; white-space: pre; fill: var(--text) }}\n\
         .page {{ fill: var(--page) }} .text {{ fill: var(--text) }} .yellow {{ fill: var(--yellow) }} \
         .green {{ fill: var(--green) }}\n\
         .bold {{ font-weight: bold }} .dim {{ opacity: 0.65 }} .underlined {{ text-decoration: underline }}\n</style>\n\
         <rect class=\"page\" width=\"{width}\" height=\"{height}\" rx=\"6\"/>\n"
    );
    for (number, line) in cells(text).iter().take(size.lines.into()).enumerate() {
        let mut x = 0;
        for run in line[..size.columns.into()].chunk_by(|one, next| one.1 == next.1) {
            draw(&mut svg, run, x, number);
            x += run.len();
        }
    }
    svg + "</svg>\n"
}

/// Draws letters of one style, each in its cell, because the font of the page may be wider or narrower.
fn draw(svg: &mut String, run: &[(char, Style)], column: usize, line: usize) {
    let (left, top) = (column as f64 * CELL.0 + 8.0, line as f64 * CELL.1 + 8.0);
    let style = run[0].1;
    let colour = match style.colour {
        _ if style.reversed => "page",
        Some(3 | 11) => "yellow",
        Some(2 | 10) => "green",
        _ => "text",
    };
    let more = [(style.bold, " bold"), (style.dim, " dim"), (style.underlined, " underlined")];
    let more: String = more.into_iter().filter_map(|(is_so, name)| is_so.then_some(name)).collect();
    if style.reversed {
        let (width, height) = (run.len() as f64 * CELL.0, CELL.1);
        writeln!(svg, r#"<rect class="text" x="{left}" y="{top}" width="{width}" height="{height}"/>"#)
            .unwrap();
    }
    let words: String = run.iter().map(|(letter, _)| letter).collect();
    let (from, words) = (words.len() - words.trim_start().len(), words.trim());
    if words.is_empty() {
        return;
    }
    let (x, y, width) = (left + from as f64 * CELL.0, top + CELL.2, words.chars().count() as f64 * CELL.0);
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let place = format!(r#"x="{x}" y="{y}" textLength="{width}" lengthAdjust="spacingAndGlyphs""#);
    writeln!(svg, r#"<text class="{colour}{more}" {place}>{words}</text>"#).unwrap();
}
