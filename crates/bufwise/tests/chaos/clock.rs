//! Clocks: the wall clock jumps while `serve` and the daemon work, and `run` and `daemon` are in time namespaces of their own.
//!
//! Namespaces have no wall clock of their own, and other programs use the machine's. Therefore a preloaded library
//! (`clock.c`, LD_PRELOAD) adds an offset to the clock. Programs in the kernel do not read the wall clock.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::run::{eventually, root};
use crate::scene::{PROGRAM, Scene, ended};
use crate::seeded::{Random, steps};
use crate::uploads::{Server, Uploads};

/// Offsets of the clock, seconds; the longest are some decades.
const JUMPS: [i64; 8] = [0, 1, -1, 3_600, -3_600, 31_536_000, -31_536_000, 1_000_000_000];
const BETWEEN: Duration = Duration::from_millis(3);

/// A wall clock that jumps.
struct Clock {
    directory: tempfile::TempDir,
}

impl Clock {
    /// `None`, and the test skipped, without a compiler.
    fn new() -> Option<Self> {
        let clang = bufwise_trial::program("clang")?;
        let directory = tempfile::tempdir().unwrap();
        let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/chaos/clock.c");
        let mut compiler = Command::new(clang);
        compiler.args(["-shared", "-fPIC", "-O1", source, "-o"]).arg(directory.path().join("clock.so"));
        assert!(compiler.status().unwrap().success());
        let clock = Self { directory };
        fs::write(clock.file(), 0_i64.to_ne_bytes()).unwrap();
        Some(clock)
    }

    fn file(&self) -> PathBuf {
        self.directory.path().join("clock")
    }

    /// Gives a command this clock.
    fn of(&self, command: &mut Command) {
        command.arg(format!("LD_PRELOAD={}", self.directory.path().join("clock.so").display()));
        command.arg(format!("CHAOS_CLOCK={}", self.file().display())).arg(PROGRAM);
    }

    /// Makes the clock jump back and forth while `work` runs.
    fn jumps_while<T>(&self, random: &mut Random, work: impl FnOnce() -> T) -> T {
        let file = fs::File::options().write(true).open(self.file()).unwrap();
        // The end of the work, by a failure, too, ends the jumps.
        let (working, over) = channel::<()>();
        thread::scope(|scope| {
            scope.spawn(move || {
                while over.recv_timeout(BETWEEN) == Err(RecvTimeoutError::Timeout) {
                    let jump = JUMPS[usize::try_from(random.below(JUMPS.len() as u64)).unwrap()];
                    file.write_all_at(&jump.to_ne_bytes(), 0).unwrap();
                }
            });
            let _working = working;
            work()
        })
    }
}

#[test]
fn clock_jumps_end_no_session_and_no_upload() {
    let Some(clock) = Clock::new() else { return };
    steps("clock_jumps_end_no_session_and_no_upload", 2, |_, random| {
        let served = tempfile::tempdir().unwrap();
        let mut command = Command::new("env");
        clock.of(&mut command);
        let server = Server::launch(command, served.path()).expect("the server starts");
        let (mut uploads, mut contents) = (Uploads::default(), random.fork());
        clock.jumps_while(random, || uploads.go_on(server.address(), "file", &mut contents, 40)).unwrap();
        uploads.check(served.path());
    });
}

fn bufwise(scene: &Scene, arguments: &[&str]) -> std::process::Output {
    ended(crate::scene::silent(scene.net.command(PROGRAM).args(arguments)))
}

#[test]
fn root_clock_jumps_leave_the_daemon_at_work() {
    let Some(_alone) = root() else { return };
    let Some(clock) = Clock::new() else { return };
    let scene = Scene::new();
    let stream = scene.stream("the transfer");
    let mut command = scene.net.command("env");
    clock.of(&mut command);
    command.args(["daemon", "--cgroup", &scene.group.path()]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut daemon = command.spawn().unwrap();
    clock.jumps_while(&mut Random::of(crate::seeded::seed(), 0), || {
        // Longer than the programs in the kernel wait for a heartbeat before they act alone.
        for _ in 0..4 {
            // `ls` goes on without a daemon that says nothing for 2 s.
            eventually("the transfer is tuned", || {
                let listed = bufwise(&scene, &["ls", "--all", "--json"]);
                String::from_utf8_lossy(&listed.stdout).contains("\"tuned\":{")
            });
            stream.moves();
        }
        assert!(scene.net.rmem().ends_with(" 67108864"));
        assert!(daemon.try_wait().unwrap().is_none());
        kill(Pid::from_raw(daemon.id().cast_signed()), Signal::SIGTERM).unwrap();
    });
    assert_eq!(ended(daemon).status.code(), Some(0));
    scene.must_be_as_before();
    stream.must_be_free();
    stream.finish();
}

#[test]
fn root_clock_of_a_time_namespace_does_not_make_a_living_run_a_dead_one() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let listener = crate::stream::Stream::listener(&scene.net);
    let script = crate::stream::Stream::script(&listener, scene.directory.path());
    for ahead in ["100000", "-5"] {
        let mut command = scene.net.command("unshare");
        command.args(["-T", "--boottime", ahead, "--monotonic", ahead, "-f", "--", PROGRAM, "run"]);
        command.args(["--engine", "kernel", "--", "bash", "-c", &script]);
        let run = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let stream = crate::stream::Stream::accept(&listener, run, "the command's transfer");
        stream.moves();
        let said = scene.restore();
        assert!(said.contains("nothing to put back"), "{said}");
        stream.moves();
        stream.finish();
        scene.must_be_as_before();
    }
}
