//! Failing calls of `run` and of the daemon's start, reload and stop.

use std::fs;
use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::thread;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::errno::{Case, Short, each_case, watched};
use crate::run::{patience, root, within};
use crate::scene::{BOUND, PROGRAM, Scene, ended, silent};

/// Bytes that the command sends.
const BYTES: usize = 300_000;

/// Reads the command's data, if it connects; returns the number of bytes.
fn reader(listener: &TcpListener) -> usize {
    let mut stream = crate::stream::accepted(listener, BOUND).expect("the command connects");
    stream.set_nonblocking(false).unwrap();
    let mut bytes = Vec::new();
    stream.read_to_end(&mut bytes).unwrap();
    bytes.len()
}

#[test]
fn root_errno_run() {
    let Some(_alone) = root() else { return };
    let Some(_strace) = bufwise_trial::program("strace") else { return };
    let scene = Scene::new();
    let trace = scene.directory.path().join("trace");
    let listener = crate::stream::Stream::listener(&scene.net);
    let port = listener.local_addr().unwrap().port();
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; head -c {BYTES} /dev/zero >&3; exit 7");
    let run = |prepare: &dyn Fn(&mut Command)| {
        let mut command = scene.net.command("strace");
        prepare(&mut command);
        command.args([
            PROGRAM,
            "run",
            "--engine",
            "kernel",
            "--gso-max-size",
            "8KiB",
            "--",
            "bash",
            "-c",
            &script,
        ]);
        ended(silent(&mut command))
    };
    let output = thread::scope(|scope| {
        let reading = scope.spawn(|| reader(&listener));
        let output = run(&|command| watched(command, &trace));
        assert_eq!(reading.join().unwrap(), BYTES);
        output
    });
    assert_eq!(output.status.code(), Some(7));
    each_case("errno_run", Short { steps: 6, of_each_call: 1 }, &trace, |case| {
        thread::scope(|scope| {
            let listener = listener.try_clone().unwrap();
            let (stop, stopped) = std::sync::mpsc::channel::<()>();
            let reading = scope.spawn(move || {
                listener.set_nonblocking(true).unwrap();
                loop {
                    // After the end of the program its connection may still wait to be accepted.
                    let is_over = stopped.recv_timeout(std::time::Duration::from_millis(2))
                        == Err(std::sync::mpsc::RecvTimeoutError::Disconnected);
                    if let Ok((mut stream, _)) = listener.accept() {
                        stream.set_nonblocking(false).unwrap();
                        let mut bytes = Vec::new();
                        stream.read_to_end(&mut bytes).unwrap();
                        return Some(bytes.len());
                    }
                    if is_over {
                        return None;
                    }
                }
            });
            let output = run(&|command| case.traced(command));
            drop(stop);
            let read = reading.join().unwrap();
            if case.was_met() {
                let text = String::from_utf8_lossy(&output.stderr).into_owned();
                let is_well = case.must_be_sound(&output, 7);
                assert!(
                    read == Some(BYTES) || (!is_well && read.is_none()),
                    "{case}: {read:?} bytes of the command: {text}"
                );
            }
        });
        scene.restore();
        scene.must_be_as_before();
    });
}

#[test]
fn root_errno_tuning_that_ends_early_leaves_the_command_its_status() {
    let Some(_alone) = root() else { return };
    let Some(_strace) = bufwise_trial::program("strace") else { return };
    let mut command = Command::new("strace");
    // strace follows the first thread alone, which tunes.
    command.args(["-qq", "-o", "/dev/null", "-e", "trace=ppoll", "-e", "inject=ppoll:error=ENOMEM"]);
    command.args([PROGRAM, "run", "--engine", "user", "--", "sh", "-c", "exit 7"]);
    let output = ended(silent(&mut command));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    assert!(said.contains("tuning ended after") && said.contains("cannot wait for the command"), "{said}");
}

/// A daemon under strace; readiness is read from its log.
struct Traced<'a> {
    scene: &'a Scene,
    strace: std::process::Child,
    log: std::path::PathBuf,
}

impl Traced<'_> {
    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn is_running(&mut self) -> bool {
        self.strace.try_wait().unwrap().is_none()
    }

    /// Waits until the log has `times` lines with one of `words`, or the daemon ends; returns whether it still runs.
    fn says(&mut self, words: &[&str], times: usize) -> bool {
        within(patience(BOUND), &format!("{words:?}"), || {
            let log = self.log();
            !self.is_running() || words.iter().map(|words| log.matches(words).count()).sum::<usize>() >= times
        });
        self.is_running()
    }

    fn signal(&self, signal: Signal) {
        let path = format!("/proc/{0}/task/{0}/children", self.strace.id());
        let pid = fs::read_to_string(path).unwrap_or_default();
        if let Some(pid) = pid.split_whitespace().next() {
            let _gone = kill(Pid::from_raw(pid.parse().unwrap()), signal);
        }
    }

    /// Starts, reloads twice and stops the daemon.
    fn live(mut self, case: Option<&Case>) {
        let config = self.scene.directory.path().join("bufwise.toml");
        let is_ready = self.says(&["tuning cgroup"], 1);
        for (round, policy) in ["fixed:80KiB", "abt,sobas"].into_iter().enumerate().filter(|_| is_ready) {
            fs::write(&config, format!("policy = \"{policy}\"\n")).unwrap();
            self.signal(Signal::SIGHUP);
            // A daemon that cannot wait any more ends in order, which is checked below. Work on the engines is tried again.
            if !self.says(&["reloaded: ", "the old configuration stays"], round + 1) {
                assert!(!case.is_some_and(|case| case.is_of("bpf")), "it has ended: {}", self.log());
                break;
            }
        }
        self.signal(Signal::SIGTERM);
        let log = self.log.clone();
        let mut output = ended(self.strace);
        output.stderr = fs::read(log).unwrap();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        if let Some(case) = case.filter(|case| case.was_met()) {
            case.must_not_panic(&text);
            assert!(matches!(output.status.code(), Some(0..=2)), "{case}: {}: {text}", output.status);
        } else {
            assert_eq!(output.status.code(), Some(0), "{text}");
        }
    }
}

#[test]
fn root_errno_daemon() {
    let Some(_alone) = root() else { return };
    let Some(_strace) = bufwise_trial::program("strace") else { return };
    let scene = Scene::new();
    let (trace, log) = (scene.directory.path().join("trace"), scene.directory.path().join("log"));
    let config = scene.directory.path().join("bufwise.toml");
    let start = |prepare: &dyn Fn(&mut Command)| {
        fs::write(&config, "policy = \"abt,sobas\"\n").unwrap();
        let mut command = scene.net.command("strace");
        prepare(&mut command);
        command.args([
            PROGRAM,
            "daemon",
            "--cgroup",
            &scene.group.path(),
            "--config",
            config.to_str().unwrap(),
        ]);
        let file = fs::File::create(&log).unwrap();
        let strace = command.stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Traced { scene: &scene, strace, log: log.clone() }
    };
    let stream = scene.stream("the transfer");
    start(&|command| watched(command, &trace)).live(None);
    scene.must_be_as_before();
    each_case("errno_daemon", Short { steps: 4, of_each_call: 1 }, &trace, |case| {
        start(&|command| case.traced(command)).live(Some(case));
        stream.moves();
        scene.restore();
        scene.must_be_as_before();
        stream.must_be_free();
    });
    stream.finish();
}
