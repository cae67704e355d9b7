//! Traces of `bufwise run` in other places: groups that the command makes below its own, and network namespaces.

use std::fs;
use std::io::{Read, Write};
use std::process::{Command, Output, Stdio};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::place::{Daemon, Net, TestGroup};
use crate::run::{PROGRAM, command, eventually, processes, root, run};
use crate::run_command::groups;

/// Shell code that sets `own` to the group of the script's command.
const OWN_GROUP: &str =
    "own=$(awk '$3 == \"cgroup2\" { print $2; exit }' /proc/mounts)$(sed -n 's/^0:://p' /proc/self/cgroup)";

fn shell(arguments: &[&str], script: &str) -> Output {
    run(&[&["run"], arguments, &["--", "sh", "-c", script]].concat())
}

#[test]
fn root_orphans_of_a_command_in_a_container_are_taken_away() {
    let Some(_alone) = root() else { return };
    // Its output ends when the orphan does.
    let script = "orphan=$(sh -c 'true & echo $!'); \
                  for _ in $(seq 3000); do [ -e /proc/$orphan ] || exit 7; sleep 0.01; done";
    for engine in ["kernel", "user"] {
        let mut run = Command::new("unshare");
        run.args(["-p", "-f", "--mount-proc", PROGRAM, "run", "--engine", engine, "--", "sh", "-c", script]);
        let output = run.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{engine}: {said}");
    }
}

#[test]
fn root_an_orphan_that_a_real_time_signal_ends_keeps_no_later_one_from_being_taken_away() {
    let Some(_alone) = root() else { return };
    // The sleeps lose their parent, and become children of `run`.
    let script = "set -- $(sh -c 'for _ in 1 2; do sleep 60 >/dev/null 2>&1 & echo $!; done'); \
                  kill -40 $1; sleep 0.2; kill -TERM $2; \
                  for _ in $(seq 3000); do [ -e /proc/$1 ] || [ -e /proc/$2 ] || exit 7; sleep 0.01; done";
    for engine in ["kernel", "user"] {
        let mut run = Command::new("unshare");
        run.args(["-p", "-f", "--mount-proc", PROGRAM, "run", "--engine", engine, "--", "sh", "-c", script]);
        let output = run.stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(7), "{engine}: {said}");
    }
}

#[test]
fn root_beside_a_group_of_threads_the_command_runs_with_the_engine_in_user_space() {
    let Some(_alone) = root() else { return };
    let group = TestGroup::new();
    let threads = group.directory().join("threads");
    fs::create_dir(&threads).unwrap();
    fs::write(threads.join("cgroup.type"), "threaded").unwrap();
    let mut run = Command::new("sh");
    run.args(["-c", "echo $$ >\"$0\"; exec \"$@\""]).arg(group.directory().join("cgroup.procs"));
    run.args([PROGRAM, "run", "--json", "-", "--", "sh", "-c", "exit 7"]).stdin(Stdio::null());
    let output = run.output().unwrap();
    fs::remove_dir(&threads).unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(7), "{said}");
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["engine"], "user", "{report}");
    assert!(report["engine_reason"].as_str().unwrap().contains("cannot make a cgroup"), "{report}");
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_the_command_runs_where_its_cgroup_namespace_does_not_show_its_cgroup() {
    let Some(_alone) = root() else { return };
    let groups_of_it = [TestGroup::new(), TestGroup::new()];
    let [shown, hidden] = groups_of_it.each_ref().map(|group| group.directory().join("cgroup.procs"));
    let script = "echo $$ >\"$0\"; exec unshare --cgroup sh -c 'echo up; read moved; exec \"$@\"' \"$@\"";
    let mut run = Command::new("sh");
    run.args(["-c", script]).arg(shown).args(["sh", PROGRAM, "run", "--", "sh", "-c", "exit 7"]);
    run.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = run.spawn().unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).unwrap();
    fs::write(hidden, child.id().to_string()).unwrap();
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_groups_that_a_command_makes_go_with_its_own() {
    let Some(_alone) = root() else { return };
    let marker = "62.7124"; // seconds: it ends by itself should the test fail
    let enter = format!("{OWN_GROUP}; mkdir -p $own/a/b $own/c; echo $$ >$own/a/b/cgroup.procs");
    let output = shell(&["--engine", "kernel"], &enter);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(groups(), [""; 0]);

    // A process left running goes on, in the group above.
    let background = format!("{enter}; sleep {marker} >/dev/null 2>&1 &");
    assert!(shell(&["--engine", "kernel"], &background).status.success());
    // The process may still be a copy of the shell.
    eventually("it sleeps", || processes(marker).len() == 1);
    assert_eq!(groups(), [""; 0]);
    kill(Pid::from_raw(processes(marker)[0]), Signal::SIGKILL).unwrap();

    // The next `run` removes the groups of a killed one, once they have no processes.
    let waits = format!("{enter}; exec sleep {marker}");
    let mut killed = command(&["run", "--", "sh", "-c", &waits]).stderr(Stdio::null()).spawn().unwrap();
    let sleeps = || processes(marker).first().copied();
    eventually("the command is in its group", || {
        let group = sleeps().and_then(|pid| fs::read_to_string(format!("/proc/{pid}/cgroup")).ok());
        group.is_some_and(|group| group.contains("/a/b\n"))
    });
    let sleeper = sleeps().unwrap();
    killed.kill().unwrap();
    killed.wait().unwrap();
    assert!(run(&["run", "--", "true"]).status.success());
    assert_eq!((groups().len(), processes(marker).len()), (1, 1), "the command still runs in it");
    kill(Pid::from_raw(sleeper), Signal::SIGKILL).unwrap();
    eventually("its group is gone", || run(&["run", "--", "true"]).status.success() && groups().is_empty());
}

#[test]
fn root_a_namespace_that_a_command_leaves_has_the_maxima_of_before() {
    let Some(_alone) = root() else { return };
    let marker = "63.7125";
    let maximum = "cat /proc/sys/net/ipv4/tcp_rmem";
    let usual = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
    // The parent ends as soon as the namespace exists.
    let script = format!("unshare -n sh -c '{maximum}; sleep {marker} >/dev/null 2>&1 &'");
    let output = shell(&["--engine", "kernel", "--policy", "drs", "--memory", "64MiB"], &script);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    // The process may still be a copy of the shell.
    eventually("it sleeps", || processes(marker).len() == 1);
    let sleeper = processes(marker)[0];
    let mut inside = Command::new("nsenter");
    let now = inside.args(["-t", &sleeper.to_string(), "-n", "sh", "-c", maximum]).output().unwrap().stdout;
    kill(Pid::from_raw(sleeper), Signal::SIGKILL).unwrap();
    let maximum_of = |text: &str| text.split_whitespace().last().unwrap().parse::<u64>().unwrap();
    let inherited = maximum_of(&String::from_utf8_lossy(&output.stdout));
    assert_eq!(inherited, maximum_of(&usual).max(64 << 20), "it began with what was raised");
    assert_eq!(String::from_utf8_lossy(&now), usual);
}

#[test]
fn root_a_daemon_in_a_namespace_that_began_with_raised_maxima_puts_the_originals_back() {
    let Some(_alone) = root() else { return };
    let maxima = || {
        let text = fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap();
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let usual = maxima();
    let arguments =
        ["run", "--engine", "kernel", "--policy", "drs", "--memory", "64MiB", "--", "sleep", "64.7126"];
    let mut above = command(&arguments).stderr(Stdio::null()).spawn().unwrap();
    eventually("the command runs", || processes("64.7126").len() == 2);
    let (net, group) = (Net::new(), TestGroup::new());
    // A new namespace copies the host's maxima, which are raised now; `Net::new` has replaced them.
    net.set_rmem(&maxima());
    let mut daemon = Daemon::ready(&net, &["--cgroup", &group.path()]);
    daemon.signal(Signal::SIGTERM);
    assert_eq!(daemon.wait().code(), Some(0));
    kill(Pid::from_raw(above.id().cast_signed()), Signal::SIGTERM).unwrap();
    above.wait().unwrap();
    assert_eq!((net.rmem(), maxima()), (usual.clone(), usual));
}

#[test]
fn root_a_cgroup_mount_that_another_one_covers_is_not_taken_for_the_hierarchy() {
    let Some(_alone) = root() else { return };
    let script = format!(
        "mount -t tmpfs none $(awk '$3 == \"cgroup2\" {{ print $2; exit }}' /proc/mounts) && \
         exec {} run --engine kernel -- true",
        env!("CARGO_BIN_EXE_bufwise")
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(groups(), [""; 0]);
}
