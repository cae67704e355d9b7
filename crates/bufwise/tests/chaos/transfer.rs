//! A file that `bufwise get` or `bufwise put` moves while it is disturbed, and what must hold afterwards.

use std::fmt::Display;
use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command};

use crate::run::{eventually, processes};
use crate::scene::{ended, names, silent};
use crate::uploads::Server;

/// Size of the file, bytes: some calls of splice and sendfile.
const LEN: u32 = 500_000;

#[derive(Clone, Copy)]
pub(crate) enum Way {
    Get,
    Put,
}

/// A file in one directory, which a client moves to another one. A server has one of the two.
pub(crate) struct Transfer<F> {
    way: Way,
    server: Server,
    /// The server's process.
    pid: i32,
    /// Threads and descriptors of the server while it has no session.
    idle: [usize; 2],
    from: tempfile::TempDir,
    to: tempfile::TempDir,
    /// Makes a command that runs the program.
    bufwise: F,
    options: &'static [&'static str],
    bytes: Vec<u8>,
}

impl<F: Fn() -> Command> Transfer<F> {
    /// Starts the server by a command that runs the program.
    pub(crate) fn new(way: Way, server: Command, bufwise: F, options: &'static [&'static str]) -> Self {
        let [from, to] = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let bytes: Vec<u8> = (0..LEN).map(|at| (at.wrapping_mul(2_654_435_769) >> 24) as u8).collect();
        fs::write(from.path().join("file"), &bytes).unwrap();
        let served = match way {
            Way::Get => &from,
            Way::Put => &to,
        };
        let server = Server::launch(server, served.path()).expect("the server starts");
        let pid = processes(served.path().to_str().unwrap())[0];
        Self { way, server, pid, idle: held(pid), from, to, bufwise, options, bytes }
    }

    /// Empties the directory of the final name, which then has the file `older`, or none.
    pub(crate) fn prepare(&self, older: Option<&[u8]>) {
        for name in names(self.to.path()) {
            fs::remove_file(self.to.path().join(name)).unwrap();
        }
        if let Some(older) = older {
            fs::write(self.target(), older).unwrap();
        }
    }

    /// Returns `command`, which runs the program, with the arguments of this transfer and `more`.
    pub(crate) fn command(&self, mut command: Command, more: &[&str]) -> Command {
        let url = format!("ftp://{}/file", self.server.address());
        match self.way {
            Way::Get => command.args(["get", &url, "-o"]).arg(self.target()),
            Way::Put => command.arg("put").arg(self.from.path().join("file")).arg(&url),
        };
        command.args(["--retries", "0"]).args(self.options).args(more);
        command
    }

    /// Starts the client.
    pub(crate) fn start(&self, more: &[&str]) -> Child {
        silent(&mut self.command((self.bufwise)(), more))
    }

    /// Asserts that the final name stands for `older`, as before, or for the whole file, that the server is idle again,
    /// and that the same command, with `--resume` if `resume`, then moves the whole file and leaves nothing else.
    pub(crate) fn check(&mut self, what: &dyn Display, older: Option<&[u8]>, resume: bool) {
        assert!(self.server.is_running(), "{what}: the server has ended: {}", self.server.log());
        eventually("the server has let the session go", || held(self.pid) == self.idle);
        let there = fs::read(self.target()).ok();
        assert!(
            there.as_deref() == older || there.as_ref() == Some(&self.bytes),
            "{what}: {:?} bytes have the final name: {}",
            there.map(|there| there.len()),
            self.server.log()
        );
        let unfinished = match (self.way, older) {
            (Way::Get, _) => Some(".file.bufwise-part"),
            (Way::Put, None) => Some(".file.bufwise-upload"),
            // SIZE reports the older file, at whose end a new one must not be resumed.
            (Way::Put, Some(_)) => None,
        };
        let left = names(self.to.path());
        assert!(
            left.iter().all(|name| name == "file" || Some(name.as_str()) == unfinished),
            "{what}: {left:?}"
        );
        let more: &[&str] = if resume { &["--resume"] } else { &[] };
        let again = ended(self.start(more));
        let said = String::from_utf8_lossy(&again.stderr);
        assert!(again.status.success(), "{what}: the next command fails: {said}");
        self.must_be_whole(what);
        for directory in [&self.from, &self.to] {
            let left = names(directory.path());
            assert!(left.iter().eq(["file"]), "{what}: {left:?}");
        }
        assert!(!self.server.log().contains("panicked"), "{what}: {}", self.server.log());
    }

    /// Asserts that the final name stands for the whole file.
    pub(crate) fn must_be_whole(&self, what: &dyn Display) {
        assert!(fs::read(self.target()).unwrap() == self.bytes, "{what}: the file is another one");
    }

    fn target(&self) -> PathBuf {
        self.to.path().join("file")
    }
}

/// Threads and descriptors of a process.
fn held(pid: i32) -> [usize; 2] {
    ["task", "fd"].map(|what| fs::read_dir(format!("/proc/{pid}/{what}")).map_or(0, Iterator::count))
}
