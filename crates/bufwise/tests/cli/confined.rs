//! Processes drop the rights that they do not need, before a peer can reach them.

use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Child, Stdio};

use nix::sys::signal::Signal;

use crate::run::command;
use crate::serve::{Running, directory, line_of};

/// Returns a field of `/proc/PID/status`.
fn field<'a>(status: &'a str, name: &str) -> &'a str {
    let line = status.lines().find_map(|line| line.strip_prefix(name)).expect("the kernel tells");
    line.trim_start_matches(':').trim()
}

/// Returns the status of each thread of a process, without those that end meanwhile.
fn threads(pid: u32) -> Vec<String> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("status")).ok()).collect()
}

/// A transfer whose server has not sent its greeting yet.
struct Waiting(Child);

impl Waiting {
    fn start(arguments: &[&str]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("ftp://{}/file", listener.local_addr().unwrap());
        let waiting = Self(command(&[arguments, &[&url]].concat()).stderr(Stdio::null()).spawn().unwrap());
        listener.accept().unwrap();
        waiting
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        let _ended = self.0.kill();
        let _reaped = self.0.wait();
    }
}

#[test]
fn serve_reads_again_what_lies_where_its_files_lay_and_nothing_elsewhere() {
    let (_directory, path) = directory();
    let places = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let [near, far] = ["near", "far"].map(|name| places.path().join(name));
    for place in [&near, &far] {
        fs::create_dir(place).unwrap();
        for name in ["first", "second"] {
            fs::write(place.join(name), line_of(name)).unwrap();
            fs::set_permissions(place.join(name), fs::Permissions::from_mode(0o600)).unwrap();
        }
    }
    let users = near.join("users");
    let point_to = |target: &std::path::Path| {
        let _first_time = fs::remove_file(&users);
        symlink(target, &users).unwrap();
    };
    point_to(&near.join("first"));
    let running = Running::start(&[&path, "--users", users.to_str().unwrap()], &[]);
    if !running.says("Landlock").contains("confined") {
        return bufwise_trial::skip("needs Landlock (Linux 5.19)");
    }
    point_to(&near.join("second"));
    running.reload();
    running.says("reloaded: second may read");
    point_to(&far.join("first"));
    running.reload();
    let line = running.says("not reloaded");
    assert!(line.contains("ermission denied"), "{line}");
    running.client().login("second", "secret", "230");
    running.stop(Signal::SIGTERM);
}

#[test]
fn a_confined_server_renames_between_directories_and_renames_links() {
    let (directory, path) = directory();
    fs::create_dir(directory.path().join("a")).unwrap();
    fs::create_dir(directory.path().join("b")).unwrap();
    symlink("a", directory.path().join("link")).unwrap();
    let running = Running::start(&[&path, "--writable"], &[]);
    let mut client = running.client();
    client.login("anonymous", "x", "230");
    for (from, to) in [("file", "a/file"), ("a/file", "b/file"), ("b", "a/b"), ("link", "other")] {
        client.ask(&format!("RNFR {from}"), "350");
        client.ask(&format!("RNTO {to}"), "250");
    }
    client.ask("DELE a/b/file", "250");
    client.ask("RMD a/b", "250");
    client.ask("MKD new", "257");
    running.stop(Signal::SIGTERM);
}

#[test]
fn no_thread_of_serve_can_gain_a_privilege() {
    let (_directory, path) = directory();
    let running = Running::start(&[&path], &[]);
    let mut client = running.client();
    client.login("anonymous", "x", "230");
    let threads = threads(running.pid());
    assert!(threads.len() > 2, "one listens, one waits for signals, one has the session");
    for status in threads {
        assert_eq!(field(&status, "NoNewPrivs"), "1");
        assert_eq!(field(&status, "Seccomp"), "2", "SECCOMP_MODE_FILTER");
    }
    running.stop(Signal::SIGTERM);
}

#[test]
fn get_and_put_can_gain_no_privilege_once_a_server_can_talk_to_them() {
    let place = tempfile::tempdir().unwrap();
    let file = place.path().join("file");
    fs::write(&file, "some bytes").unwrap();
    let file = file.to_str().unwrap();
    for arguments in [&["get", "-o", file][..], &["get", "-r", "-o", file], &["put", file]] {
        let waiting = Waiting::start(arguments);
        let status = fs::read_to_string(format!("/proc/{}/status", waiting.0.id())).unwrap();
        assert_eq!(field(&status, "NoNewPrivs"), "1", "{arguments:?}");
    }
}
