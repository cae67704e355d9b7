//! `bufwise run`: the command has its own streams, status and signals; the host is left as it was, and nothing behind.

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::pty::{PtyMaster, grantpt, posix_openpt, ptsname_r, unlockpt};
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};
use serde_json::Value;

use crate::run::{PROGRAM, command, eventually, only_error, processes, root, run, text};

/// Prefix of the names of groups made for a command, followed by the ID of the process that made the group.
const PREFIX: &str = "bufwise-run-";

/// Returns our groups anywhere in the cgroup hierarchy, without those of another bufwise on this host.
pub(crate) fn groups() -> Vec<String> {
    all_groups().into_iter().filter(|name| !is_anothers(name)).collect()
}

/// Whether the process in the group's name is a running bufwise that was not started by this process or its children.
fn is_anothers(name: &str) -> bool {
    let maker = name.strip_prefix(PREFIX).and_then(|rest| rest.split('-').next()?.parse::<u32>().ok());
    let parent = |pid: u32| -> Option<u32> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        status.lines().find_map(|line| line.strip_prefix("PPid:"))?.trim().parse().ok()
    };
    let Some(maker) = maker else { return false };
    let runs =
        fs::read_to_string(format!("/proc/{maker}/comm")).is_ok_and(|name| name.starts_with("bufwise"));
    let mut above = std::iter::successors(Some(maker), |pid| parent(*pid));
    runs && !above.any(|pid| pid == std::process::id())
}

fn all_groups() -> Vec<String> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let mut found = Vec::new();
    for line in mounts.lines().filter(|line| line.split(' ').nth(2) == Some("cgroup2")) {
        let mut open = vec![std::path::PathBuf::from(line.split(' ').nth(1).unwrap())];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let name = entry.file_name().into_string().unwrap();
                    if name.starts_with(PREFIX) {
                        found.push(name);
                    }
                    open.push(entry.path());
                }
            }
        }
    }
    found
}

#[test]
fn what_makes_no_sense_is_wrong_usage() {
    let policy = |policy: &str| only_error(&run(&["run", "--policy", policy, "--", "true"]), 2);
    assert!(policy("abt,sabt").contains("same side"));
    assert!(policy("tahoe").contains("unknown policy"));
    assert!(only_error(&run(&["run"]), 2).contains("CMD"));
    assert!(only_error(&run(&["run", "--memory", "lots", "--", "true"]), 2).contains("lots"));
    assert!(only_error(&run(&["run", "--engine", "steam", "--", "true"]), 2).contains("steam"));
    let size = |flag: &str, size: &str| only_error(&run(&["run", flag, size, "--", "true"]), 2);
    assert!(size("--gso-max-size", "1500B").contains("at least 2048 B"));
    assert!(size("--memory", "64").contains("`64` has no unit"));
    assert!(size("--memory", "1KiB").contains("at least 64KiB"));
    assert!(size("--small-documents", "9GiB").contains("at most 4MiB"));
}

#[test]
fn words_that_are_not_unicode_reach_the_command() {
    let directory = tempfile::tempdir().unwrap();
    let name = OsStr::from_bytes(b"caf\xe9");
    fs::write(directory.path().join(name), "strong").unwrap();
    fs::create_dir(directory.path().join("to")).unwrap();
    let options = ["run", "--engine", "user", "--policy", "kernel", "--json", "report.json", "--"];
    let bufwise = |words: &[&OsStr]| {
        command(&options).args(words).current_dir(directory.path()).output().expect("the program starts")
    };
    let output = bufwise(&["cp".as_ref(), name, "to/".as_ref()]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert_eq!(fs::read(directory.path().join("to").join(name)).unwrap(), b"strong");
    let report = fs::read(directory.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    assert_eq!(report["command"], serde_json::json!(["cp", "caf\u{fffd}", "to/"]));
    let line = only_error(&bufwise(&[name]), 127);
    assert!(line.contains(r#"cannot run "caf\xE9""#), "{line}");
}

#[test]
fn a_script_that_names_no_interpreter_is_run_by_the_shell_as_by_env() {
    let directory = tempfile::tempdir().unwrap();
    // Another process writes it: a child that another test starts meanwhile would keep it open, and so not executable.
    let write = "echo 'echo \"$0\" \"$@\"; exit 7' >plain && chmod +x plain";
    let mut shell = Command::new("sh");
    assert!(shell.args(["-c", write]).current_dir(directory.path()).status().unwrap().success());
    let path = format!("{}:{}", directory.path().display(), std::env::var("PATH").unwrap());
    let said = |program: &str| {
        let mut command = command(&["run", "--engine", "user", "--", program, "a", "b c"]);
        let output = command.current_dir(directory.path()).env("PATH", &path).output().unwrap();
        (text(&output.stdout), output.status.code())
    };
    assert_eq!(said("./plain"), ("./plain a b c\n".to_owned(), Some(7)));
    let found = directory.path().join("plain");
    assert_eq!(said("plain"), (format!("{} a b c\n", found.display()), Some(7)));
}

/// Runs a script by `run` that was started with these signals ignored.
fn ignoring(signals: &str, script: &str) -> Output {
    let mut command = Command::new("env");
    command.arg(format!("--ignore-signal={signals}")).arg(PROGRAM);
    command.args(["run", "--engine", "user", "--", "sh", "-c", script]).stdin(Stdio::null());
    command.output().unwrap()
}

#[test]
fn what_is_ignored_as_by_nohup_is_ignored_by_the_command_and_its_status_is_known_all_the_same() {
    let output = ignoring("HUP,USR1", "kill -HUP $$; kill -USR1 $$; echo alive; exit 7");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("alive\n", Some(7)));
    // If a process ignores the end of its children, the kernel keeps no status.
    assert_eq!(ignoring("CHLD", "exit 7").status.code(), Some(7));
}

#[test]
fn the_signal_of_a_broken_pipe_is_ignored_by_the_command_exactly_if_it_was_at_the_start() {
    let output = ignoring("PIPE", "kill -PIPE $$; echo alive; exit 7");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("alive\n", Some(7)));
    let output = ignoring("USR1", "kill -PIPE $$; echo alive");
    assert_eq!((text(&output.stdout).as_str(), output.status.code()), ("", Some(128 + 13)));
}

#[test]
fn what_the_command_sends_to_its_parent_does_not_come_back() {
    let script = "trap 'echo back' USR1; trap 'echo end; exit 9' TERM; kill -USR1 $PPID; echo sent; \
                  while :; do sleep 0.01; done";
    let mut child = command(&["run", "--engine", "user", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut said = String::new();
    output.read_line(&mut said).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    output.read_to_string(&mut said).unwrap();
    assert_eq!((said.as_str(), child.wait().unwrap().code()), ("sent\nend\n", Some(9)));
}

/// Makes a terminal, which ends with the side that is returned first; the other one is for programs.
pub(crate) fn terminal() -> (PtyMaster, fs::File) {
    // No process that another test starts meanwhile must keep it open.
    let terminal = posix_openpt(OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC).unwrap();
    grantpt(&terminal).unwrap();
    unlockpt(&terminal).unwrap();
    let side = ptsname_r(&terminal).unwrap();
    let side = fs::File::options().read(true).write(true).custom_flags(OFlag::O_NOCTTY.bits()).open(side);
    (terminal, side.unwrap())
}

/// Starts `run` as the leader of the session of a new terminal, and waits until its command has said `up`. Returns it with the
/// other side of the terminal, which ends with that.
fn at_a_terminal(words: &[&str]) -> (Child, PtyMaster) {
    let (mut terminal, side) = terminal();
    let stdio = || Stdio::from(side.try_clone().unwrap());
    let mut command = Command::new("setsid");
    command.args(["--ctty", "env", "--default-signal=HUP,INT", PROGRAM, "run", "--engine", "user", "--"]);
    let child = command.args(words).stdin(stdio()).stdout(stdio()).stderr(stdio()).spawn().unwrap();
    let (mut said, mut bytes) = (Vec::<u8>::new(), [0; 256]);
    while !text(&said).contains("up") {
        let count = terminal.read(&mut bytes).expect("the command goes on");
        said.extend_from_slice(&bytes[..count]);
    }
    (child, terminal)
}

/// A command that ends with status 9 after this signal; it ends by itself should the test fail.
fn ends_after(signal: &str) -> String {
    format!("trap 'exit 9' {signal}; echo up; for _ in $(seq 6000); do sleep 0.01; done")
}

/// Returns the exit status, once it has ended.
fn status_of(child: &mut Child) -> Option<i32> {
    let mut status = None;
    eventually("it ends", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    status.and_then(|status| status.code())
}

#[test]
fn the_end_of_the_terminal_is_told_to_the_command_where_bufwise_leads_the_session() {
    let (mut child, terminal) = at_a_terminal(&["sh", "-c", &ends_after("HUP")]);
    drop(terminal);
    assert_eq!(status_of(&mut child), Some(9));
}

#[test]
fn a_key_that_interrupts_reaches_a_command_that_has_left_the_terminal() {
    let (mut child, mut terminal) = at_a_terminal(&["setsid", "sh", "-c", &ends_after("INT")]);
    terminal.write_all(b"\x03").unwrap();
    assert_eq!(status_of(&mut child), Some(9));
}

#[test]
fn a_key_that_ends_the_command_ends_bufwise_likewise_so_that_a_shell_ends_its_loop() {
    let (mut child, mut terminal) = at_a_terminal(&["sh", "-c", "echo up; exec sleep 60"]);
    terminal.write_all(b"\x03").unwrap();
    eventually("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!(child.wait().unwrap().signal(), Some(2));
}

#[test]
fn the_signal_by_which_service_managers_end_httpd_reaches_the_command() {
    let mut child = command(&["run", "--engine", "user", "--", "sh", "-c", &ends_after("WINCH")])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGWINCH).unwrap();
    assert_eq!((said.as_str(), status_of(&mut child)), ("up\n", Some(9)));
}

#[test]
fn a_signal_ends_bufwise_while_its_report_waits_for_a_reader() {
    let directory = tempfile::tempdir().unwrap();
    let fifo = directory.path().join("fifo");
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    let mut command = command(&["run", "--engine", "user", "--json"]);
    command.arg(&fifo).args(["--", "true"]).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut said = String::new();
    BufReader::new(child.stderr.take().unwrap()).read_line(&mut said).unwrap();
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    eventually("it ends", || child.try_wait().unwrap().is_some());
    assert_eq!((said.starts_with("bufwise: policy"), child.wait().unwrap().signal()), (true, Some(15)));
}

#[test]
fn what_a_service_manager_hands_to_bufwise_by_its_number_is_the_commands() {
    let said = |variables: &str, words: &str| {
        let script = format!("export {variables}; exec {PROGRAM} run --engine user -- {words}");
        Command::new("sh").args(["-c", &script]).stdin(Stdio::null()).output().unwrap()
    };
    let numbers = "sh -c 'echo $$ $LISTEN_PID $WATCHDOG_PID; exit 7' x y";
    let output = said("LISTEN_PID=$$ WATCHDOG_PID=$$", numbers);
    let all = text(&output.stdout);
    let all: Vec<&str> = all.split_whitespace().collect();
    assert!(all.len() == 3 && all.iter().all(|number| *number == all[0]), "{output:?}");
    assert_eq!(output.status.code(), Some(7));
    let output = said("LISTEN_PID=1 WATCHDOG_PID=$$", numbers);
    let all = text(&output.stdout);
    assert!(all.split_whitespace().nth(1) == Some("1"), "another's stays another's: {output:?}");
    assert_eq!(said("LISTEN_PID=$$", "no-such-command").status.code(), Some(127));
}

#[test]
fn a_report_that_cannot_be_written_hides_neither_the_commands_failure_nor_the_text() {
    for (script, status) in [("exit 3", 3), ("exit 0", 1)] {
        let output = run(&["run", "--engine", "user", "--json", "/dev/full", "--", "sh", "-c", script]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{said}");
        assert!(said.contains("bufwise: engine: in user space"), "{said}");
        assert!(said.lines().last().unwrap().starts_with("bufwise: cannot write /dev/full: "), "{said}");
    }
}

#[test]
fn a_report_beyond_the_largest_size_of_a_file_does_not_hide_the_commands_status() {
    let directory = tempfile::tempdir().unwrap();
    let script = format!("ulimit -f 0; exec {PROGRAM} run --engine user --json report -- sh -c 'exit 7'");
    let mut shell = Command::new("sh");
    shell.args(["-c", &script]).current_dir(directory.path()).stdin(Stdio::null());
    let output = shell.output().unwrap();
    assert_eq!(output.status.code(), Some(7), "{output:?}");
    assert!(text(&output.stderr).contains("bufwise: cannot write report: "), "{output:?}");
}

#[test]
fn a_fifo_gets_the_whole_report_and_a_link_without_a_target_gets_one() {
    let directory = tempfile::tempdir().unwrap();
    let [fifo, link, target] = ["fifo", "link", "target"].map(|name| directory.path().join(name));
    mkfifo(&fifo, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    // Without a reader it would wait for ever.
    let write = |file: &std::path::Path| {
        let mut command = Command::new("timeout");
        command.args(["60", PROGRAM, "run", "--engine", "user", "--json"]).arg(file).args(["--", "true"]);
        command.stdin(Stdio::null()).stderr(Stdio::null()).status().unwrap().code()
    };
    let read = thread::spawn({
        let fifo = fifo.clone();
        move || fs::read(fifo).unwrap()
    });
    assert_eq!((write(&fifo), write(&link)), (Some(0), Some(0)));
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    for report in [read.join().unwrap(), fs::read(&target).unwrap()] {
        let report: Value = serde_json::from_slice(&report).expect("the report is whole");
        assert_eq!(report["command"], serde_json::json!(["true"]));
    }
}

#[test]
fn root_the_status_and_the_streams_are_the_commands_own() {
    let Some(_alone) = root() else { return };
    let status = |script: &str| run(&["run", "--", "sh", "-c", script]).status.code();
    assert_eq!((status("exit 7"), status("kill -TERM $$")), (Some(7), Some(128 + 15)));
    let mut child =
        command(&["run", "--", "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(text(&output.stdout), "through and through");
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn with_the_engine_in_user_space_the_status_and_the_streams_are_the_commands_own_too() {
    let options = ["run", "--engine", "user", "--policy", "kernel", "--"];
    let status = |script: &str| run(&[&options[..], &["sh", "-c", script]].concat()).status.code();
    assert_eq!((status("exit 7"), status("kill -TERM $$")), (Some(7), Some(128 + 15)));
    let mut cat = command(&[&options[..], &["cat"]].concat());
    cat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = cat.spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"through and through").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), text(&output.stdout)), (Some(0), "through and through".to_owned()));
}

#[test]
fn a_run_inside_a_run_has_the_connections_of_its_command_to_itself() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let directory = tempfile::tempdir().unwrap();
    let inner = directory.path().join("inner");
    let options = ["run", "--engine", "user", "--policy", "kernel", "--json"];
    let script = format!("exec 3<>/dev/tcp/127.0.0.1/{port}; cat <&3");
    let connections = |report: &[u8]| {
        let report: Value = serde_json::from_slice(report).expect("the report is JSON");
        report["connections"].as_array().unwrap().len()
    };
    // The inner one has to find the connection while it lasts.
    let mut lasts = Duration::from_millis(100);
    let found = loop {
        let mut outer = command(&options);
        outer.args(["-", "--", PROGRAM]).args(options).arg(&inner).args(["--", "bash", "-c", &script]);
        let outer = outer.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let (peer, _) = listener.accept().unwrap();
        thread::sleep(lasts);
        drop(peer);
        let report = outer.wait_with_output().unwrap().stdout;
        let found = [report, fs::read(&inner).unwrap()].map(|report| connections(&report));
        if found[1] > 0 || lasts > Duration::from_secs(10) {
            break found;
        }
        lasts *= 2;
    };
    assert_eq!(found, [0, 1]);
}

#[test]
fn with_the_engine_in_user_space_a_process_that_outlives_the_command_is_told_too() {
    let script = "sleep 60 </dev/null >/dev/null 2>&1 & echo $!";
    let output = run(&["run", "--engine", "user", "--policy", "kernel", "--", "sh", "-c", script]);
    let sleep = Pid::from_raw(text(&output.stdout).trim().parse().unwrap());
    kill(sleep, Signal::SIGKILL).unwrap();
    let said = text(&output.stderr);
    assert!(said.contains("bufwise: note: a process that the command has started still runs"), "{said}");
}

#[test]
fn root_auto_is_fit_at_either_end() {
    let Some(_alone) = root() else { return };
    for more in [&[][..], &["--policy", "auto"]] {
        let output = run(&[&["run", "--json", "-"], more, &["--", "true"]].concat());
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["policy"], serde_json::json!({ "send": "fit", "receive": "fit" }));
    }
}

#[test]
fn root_a_command_that_cannot_be_started_is_named() {
    let Some(_alone) = root() else { return };
    assert!(only_error(&run(&["run", "--", "no-such-command"]), 127).contains("no-such-command"));
    assert!(only_error(&run(&["run", "--", "/etc/passwd"]), 126).contains("/etc/passwd"));
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_signals_are_passed_on_and_do_not_end_bufwise_itself() {
    let Some(_alone) = root() else { return };
    let script = "trap 'echo caught; exit 9' TERM; echo up; while :; do sleep 0.01; done";
    let mut child = command(&["run", "--", "sh", "-c", script])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut output = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    output.read_line(&mut line).unwrap();
    assert_eq!(line, "up\n");
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    let mut rest = String::new();
    output.read_to_string(&mut rest).unwrap();
    assert_eq!(rest, "caught\n");
    assert_eq!(child.wait().unwrap().code(), Some(9));
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_a_signal_while_the_programs_are_loaded_leaves_nothing() {
    let Some(_alone) = root() else { return };
    let marker = "61.7124"; // seconds: it ends by itself should the test fail
    let mut child = command(&["run", "--", "sleep", marker]).stderr(Stdio::null()).spawn().unwrap();
    eventually("the command's group is made, before the programs are loaded", || groups().len() == 1);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGTERM).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 15));
    assert!(processes(marker).is_empty());
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_devices_take_less_at_once_for_the_command_and_as_much_as_before_afterwards() {
    let Some(_alone) = root() else { return };
    let show = "ip -d -o link show bw0";
    let client = format!("{PROGRAM} run --gso-max-size 4KiB -- {show}; {show}");
    let output = run(&["lab", "path", "--client", &client]);
    let shown = text(&output.stdout);
    let sizes: Vec<&str> =
        shown.lines().filter_map(|line| line.split(" gso_max_size ").nth(1)?.split(' ').next()).collect();
    assert_eq!(sizes, ["4096", "65536"], "{shown}");
}

#[test]
fn root_devices_take_less_at_once_when_many_connections_have_come() {
    let Some(_alone) = root() else { return };
    let show = "ip -d -o link show bw0";
    // The client may start as soon as one server listens, so a file says when both do.
    let directory = tempfile::tempdir().unwrap();
    let both = directory.path().join("both");
    let both = both.display();
    let servers = format!(
        "iperf3 -s -1 -p 5201 >/dev/null & iperf3 -s -1 -p 5202 >/dev/null & \
         until [ $(ss -Hlt | wc -l) -ge 2 ]; do sleep 0.02; done; touch {both}; wait"
    );
    // With 16 MiB, devices keep their maxima at first; each of 200 connections may then hold 67 KB.
    let script = format!(
        "for port in 5201 5202; do iperf3 -c 198.18.0.2 -p $port -P 100 -t 12 >/dev/null & clients=\"$clients $!\"; done; \
         for _ in $(seq 300); do {show} | grep -q \" gso_max_size 8192 \" && break; sleep 0.05; done; {show}; \
         kill $clients; wait"
    );
    let client = format!(
        "until [ -e {both} ]; do sleep 0.02; done; {PROGRAM} run --policy abt --memory 16MiB -- sh -c '{script}'; {show}"
    );
    let path =
        ["lab", "path", "--rate", "100mbit", "--rtt", "20ms", "--server", &servers, "--client", &client];
    let shown = text(&run(&path).stdout);
    let sizes: Vec<&str> =
        shown.lines().filter_map(|line| line.split(" gso_max_size ").nth(1)?.split(' ').next()).collect();
    assert_eq!(sizes, ["8192", "65536"], "{shown}");
}

#[test]
fn root_a_small_memory_is_told_before_the_command_starts_with_how_many_it_holds() {
    let Some(_alone) = root() else { return };
    let said = |memory: &str, more: &[&str]| {
        let options =
            [&["run", "--policy", "abt", "--memory", memory], more, &["--", "sh", "-c", "echo started >&2"]];
        text(&run(&options.concat()).stderr)
    };
    // Only the host's first namespace has this file; in others devices are bounded.
    let in_the_first = fs::exists("/proc/sys/net/ipv4/tcp_mem").unwrap();
    let told = said("1MiB", &[]);
    let before = told.split("started").next().unwrap();
    assert_eq!(
        before.contains("more than 5 busy connections may exceed the memory of 1.05 MB"),
        in_the_first,
        "{told}"
    );
    let client = format!("{PROGRAM} run --policy abt --memory 1MiB -- true 2>&1");
    let bounded = text(&run(&["lab", "path", "--client", &client]).stdout);
    assert!(bounded.contains("is kept for up to 42 busy connections, 24KiB for each"), "{bounded}");
    assert!(!said("64MiB", &[]).contains("busy connections"), "it holds many all the same");
    assert!(!said("1MiB", &["--gso-max-size", "device"]).contains("busy connections"), "it was asked for");
}

#[test]
fn root_devices_are_put_back_by_whoever_leaves_last() {
    let Some(_alone) = root() else { return };
    // A command that cannot be started, under a policy that also raises a maximum.
    let show = "ip -d -o link show bw0";
    let client = format!("{PROGRAM} run --policy drs --gso-max-size 4KiB -- /no/such/command; {show}");
    let shown = text(&run(&["lab", "path", "--client", &client]).stdout);
    assert!(shown.contains(" gso_max_size 65536 "), "{shown}");
}

#[test]
fn root_window_scale_is_raised_for_the_command_and_put_back() {
    let Some(_alone) = root() else { return };
    let show = "cat /proc/sys/net/ipv4/tcp_rmem";
    let client = format!("{PROGRAM} run --policy drs -- {show}; {show}");
    let output = run(&["lab", "path", "--rmem", "7MB", "--client", &client]);
    let shown = text(&output.stdout);
    let maxima: Vec<&str> = shown.lines().filter_map(|line| line.split_whitespace().nth(2)).collect();
    assert_eq!(maxima, ["67108864", "7000000"], "{shown}");
}

#[test]
fn root_without_a_cgroup_mount_one_is_made_that_nobody_sees() {
    let Some(_alone) = root() else { return };
    let script = format!(
        "umount -a -t cgroup2; {PROGRAM} run -- sh -c 'cat /proc/self/cgroup; grep -c cgroup2 /proc/mounts'"
    );
    let output = Command::new("unshare").args(["-m", "sh", "-c", &script]).output().unwrap();
    let shown = text(&output.stdout);
    assert!(shown.contains("bufwise-run-"), "{shown} {}", text(&output.stderr));
    assert!(shown.ends_with("\n0\n"), "{shown}");
    assert_eq!(groups(), [""; 0]);
}

#[test]
fn root_a_connection_that_outlives_the_command_is_given_back() {
    let Some(_alone) = root() else { return };
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    // The background process ends at the end of its input, which is our end of the connection.
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; head -c 300000 /dev/zero >&3; cat <&3 >/dev/null & sleep 0.5"
    );
    // This policy sizes a connection as soon as it is made.
    let child = command(&["run", "--policy", "fixed:64KiB", "--json", "-", "--", "bash", "-c", &script])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    Read::read_exact(&mut peer, &mut vec![0; 300_000]).unwrap();
    let output = child.wait_with_output().unwrap();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let notes = report["notes"].to_string();
    assert!(notes.contains("1 connection given back to the kernel"), "{report}");
    assert!(notes.contains("a process that the command has started still runs"), "{report}");
    drop(peer);
    eventually("its group is gone", || run(&["run", "--", "true"]).status.success() && groups().is_empty());
}

#[test]
fn root_killed_it_leaves_the_command_running_and_the_next_start_cleans_up() {
    let Some(_alone) = root() else { return };
    let marker = "61.7123"; // seconds: it ends by itself should the test fail
    let mut child = command(&["run", "--", "sleep", marker]).stderr(Stdio::null()).spawn().unwrap();
    // Before it becomes the command, a copy of bufwise has the same words.
    let is_sleep =
        |pid: &i32| fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name == "sleep\n");
    let sleeps = || processes(marker).into_iter().filter(is_sleep).collect::<Vec<_>>();
    eventually("the command runs", || !sleeps().is_empty());
    let sleeper = sleeps()[0];
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGKILL).unwrap();
    assert_eq!(child.wait().unwrap().signal(), Some(9));
    assert_eq!(groups().len(), 1);
    assert!(run(&["run", "--", "true"]).status.success());
    assert_eq!(groups().len(), 1, "the command still runs in it");
    assert_eq!(processes(marker), [sleeper]);
    kill(Pid::from_raw(sleeper), Signal::SIGKILL).unwrap();
    // Its group is busy a little longer than the process can be found.
    eventually("its group is gone", || run(&["run", "--", "true"]).status.success() && groups().is_empty());
    assert!(processes(marker).is_empty());
}
