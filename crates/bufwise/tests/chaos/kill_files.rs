//! `bufwise get` and `bufwise put` are killed: at any instant, and at each call that matters to the disk or to the
//! server. The final name stands for the file that was there before or for the whole new one, the server is idle again,
//! and the same command then ends whole, with `--resume` and without. A client that tuned its connection leaves no
//! setting, cgroup or file behind.

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use crate::run::root;
use crate::scene::{PROGRAM, Scene, ended, silent};
use crate::seeded::{Random, steps};
use crate::transfer::{Transfer, Way};

/// The server's limit: a transfer lasts longer than the client's start and end.
const RATE: &str = "80mbit";
/// The calls at which a killed client may leave something behind, and how many of the first ones are tried.
const OF_GET: [(&str, u64); 5] =
    [("openat2", 4), ("ftruncate", 2), ("splice", 20), ("fsync", 2), ("renameat", 1)];
const OF_PUT: [(&str, u64); 4] = [("connect", 2), ("sendto", 10), ("recvfrom", 10), ("sendfile", 10)];

fn bufwise() -> Command {
    Command::new(PROGRAM)
}

/// Returns the command, to which a server's arguments are added later, with the limit of the rate after them.
fn limited(command: &Command) -> Command {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("exec \"$0\" \"$@\" --limit-rate {RATE}")]);
    shell.arg(command.get_program()).args(command.get_args());
    shell
}

/// Prepares the transfer, over an older file in half of the steps; returns that file.
fn prepare(transfer: &Transfer<impl Fn() -> Command>, random: &mut Random) -> Option<&'static [u8]> {
    let older = (random.below(2) == 0).then_some(&b"older"[..]);
    transfer.prepare(older);
    older
}

/// Duration of a transfer without a kill.
fn duration(transfer: &Transfer<impl Fn() -> Command>) -> Duration {
    let began = Instant::now();
    let output = ended(transfer.start(&[]));
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    began.elapsed()
}

fn kill_within(whole: Duration, transfer: &mut Transfer<impl Fn() -> Command>, random: &mut Random) {
    let older = prepare(transfer, random);
    let mut client = transfer.start(&[]);
    let instant = random.instant(whole);
    thread::sleep(instant);
    client.kill().unwrap();
    ended(client);
    transfer.check(&format!("killed after {instant:?}"), older, random.below(2) == 0);
}

fn at_any_instant(name: &'static str, way: Way) {
    let mut transfer = Transfer::new(way, limited(&bufwise()), bufwise, &[]);
    let whole = duration(&transfer);
    steps(name, 6, |_, random| kill_within(whole, &mut transfer, random));
}

fn at_each_call(name: &'static str, way: Way, calls: &[(&str, u64)]) {
    let Some(strace) = bufwise_trial::program("strace") else { return };
    let mut transfer = Transfer::new(way, limited(&bufwise()), bufwise, &[]);
    steps(name, calls.len() as u32, |step, random| {
        let (call, most) = calls[step as usize % calls.len()];
        let older = prepare(&transfer, random);
        let mut command = Command::new(&strace);
        let inject = format!("inject={call}:signal=KILL:when={}", 1 + random.below(most));
        command.args(["-f", "-qq", "-o", "/dev/null", "-e", &format!("trace={call}"), "-e", &inject]);
        command.arg(PROGRAM);
        ended(silent(&mut transfer.command(command, &[])));
        transfer.check(&inject, older, random.below(2) == 0);
    });
}

#[test]
fn kill_get_at_any_instant() {
    at_any_instant("kill_get_at_any_instant", Way::Get);
}

#[test]
fn kill_put_at_any_instant() {
    at_any_instant("kill_put_at_any_instant", Way::Put);
}

#[test]
fn kill_get_at_each_call() {
    at_each_call("kill_get_at_each_call", Way::Get, &OF_GET);
}

#[test]
fn kill_put_at_each_call() {
    at_each_call("kill_put_at_each_call", Way::Put, &OF_PUT);
}

#[test]
fn root_kill_get_and_kill_put_that_tune() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let inside = || scene.net.command(PROGRAM);
    let mut both = [Way::Get, Way::Put].map(|way| {
        let transfer = Transfer::new(way, limited(&inside()), inside, &["--policy", "fit"]);
        let whole = duration(&transfer);
        (transfer, whole)
    });
    steps("kill_get_and_kill_put_that_tune", 4, |step, random| {
        let (transfer, whole) = &mut both[step as usize % 2];
        kill_within(*whole, transfer, random);
        scene.must_be_as_before();
    });
}
