//! Lack of room: a full disk, for files and for standard error; too few descriptors.

use std::fs::{self, OpenOptions};
use std::path::Path;
use std::process::{Command, Stdio};

use nix::mount::{MntFlags, MsFlags, mount, umount2};
use nix::sys::signal::Signal;

use crate::run::{eventually, root};
use crate::scene::{PROGRAM, Scene, ended, silent};
use crate::seeded::steps;
use crate::stream::Stream;
use crate::uploads::{Client, Server, visible};

/// Size of the small disk, bytes.
const ROOM: usize = 256 << 10;

/// A file system of that size, mounted on a temporary directory.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = format!("size={ROOM}");
        mount(Some("none"), directory.path(), Some("tmpfs"), MsFlags::empty(), Some(options.as_str()))
            .unwrap();
        Self(directory)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        umount2(self.path(), MntFlags::MNT_DETACH).unwrap();
    }
}

fn full() -> Stdio {
    OpenOptions::new().write(true).open("/dev/full").unwrap().into()
}

#[test]
fn disk_full_behind_standard_error_changes_no_status() {
    let run = |arguments: &[&str]| {
        let mut command = Command::new(PROGRAM);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(full());
        ended(command.spawn().unwrap()).status.code()
    };
    assert_eq!(run(&["run", "--engine", "user", "--", "sh", "-c", "exit 3"]), Some(3));
    assert_eq!(run(&["get", "ftp://127.0.0.1:1/file", "--retries", "1"]), Some(1));
    assert_eq!(run(&[]), Some(2));
}

#[test]
fn root_disk_full_behind_the_log_does_not_end_the_daemon() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let stream = scene.stream("the transfer");
    let mut command = scene.net.command(PROGRAM);
    command.args(["daemon", "--cgroup", &scene.group.path()]).stdout(Stdio::null()).stderr(full());
    let mut daemon = command.spawn().unwrap();
    eventually("it tunes", || {
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon has ended");
        scene.net.rmem().ends_with(" 67108864")
    });
    stream.moves();
    let pid = nix::unistd::Pid::from_raw(daemon.id().cast_signed());
    nix::sys::signal::kill(pid, Signal::SIGTERM).unwrap();
    assert_eq!(ended(daemon).status.code(), Some(0));
    scene.must_be_as_before();
    stream.must_be_free();
    stream.finish();
}

#[test]
fn root_disk_full_of_uploads_refuses_and_gives_the_room_back() {
    let Some(_alone) = root() else { return };
    let disk = SmallDisk::new();
    let server = Server::start(disk.path());
    let mut client = server.client().unwrap();
    client.store("small", &[1; 1_000]).unwrap();
    for name in ["large", "small"] {
        let error = client.store(name, &[2; 2 * ROOM]).unwrap_err();
        assert!(error.to_string().starts_with("452"), "{error}");
    }
    assert_eq!(fs::read(disk.path().join("small")).unwrap(), [1; 1_000]);
    assert_eq!(visible(disk.path()), ["small"]);
    assert_eq!(fs::read_dir(disk.path()).unwrap().count(), 1, "the room is given back");
    client.store("large", &[3; ROOM / 2]).unwrap();
    // No room is left for another entry in the directory, or for the first block of another file.
    fs::write(disk.path().join("filler"), vec![4; ROOM / 2 - 8_192]).unwrap();
    let error = client.store("last", &[5; ROOM / 4]).unwrap_err();
    assert!(error.to_string().starts_with("452"), "{error}");
    assert_eq!(fs::read(disk.path().join("large")).unwrap(), [3; ROOM / 2]);
}

#[test]
fn root_disk_full_of_downloads_leaves_what_was_there() {
    let Some(_alone) = root() else { return };
    let (served, disk) = (tempfile::tempdir().unwrap(), SmallDisk::new());
    fs::write(served.path().join("file"), vec![7; 2 * ROOM]).unwrap();
    let server = Server::start(served.path());
    let target = disk.path().join("file");
    fs::write(&target, b"before").unwrap();
    let mut command = Command::new(PROGRAM);
    command.args(["get", &format!("ftp://{}/file", server.address()), "--retries", "0", "-o"]).arg(&target);
    let output = ended(silent(&mut command));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.lines().count() == 1 && said.contains("No space left"), "{said}");
    assert_eq!(fs::read(&target).unwrap(), b"before");
}

/// Returns the command with a limit of `count` descriptors.
fn with_descriptors(count: u32, command: &Command) -> Command {
    let mut limited = Command::new("prlimit");
    limited.arg(format!("--nofile={count}")).arg(command.get_program()).args(command.get_args());
    limited
}

#[test]
fn disk_few_descriptors_of_the_server_keep_nobody_out_for_good() {
    steps("disk_few_descriptors_of_the_server", 2, |_, random| {
        let count = 20 + u32::try_from(random.below(30)).unwrap();
        let served = tempfile::tempdir().unwrap();
        let command = with_descriptors(count, &Command::new(PROGRAM));
        let mut server = Server::launch(command, served.path()).expect("the server starts");
        // More clients than descriptors: some are accepted, others wait or are refused.
        let waiting: Vec<_> =
            (0..count).map(|_| std::net::TcpStream::connect(server.address()).unwrap()).collect();
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert!(server.is_running(), "{count}: {}", server.log());
        drop(waiting);
        let uploaded =
            || Client::connect(server.address()).and_then(|mut client| client.store("file", b"whole"));
        eventually("there is room for a session again", || uploaded().is_ok());
        assert_eq!(fs::read(served.path().join("file")).unwrap(), b"whole");
        assert!(!server.log().contains("panicked"), "{}", server.log());
    });
}

#[test]
fn root_disk_few_descriptors_of_the_daemon_leave_connections_and_settings_alone() {
    let Some(_alone) = root() else { return };
    let scene = Scene::new();
    let streams: [Stream; 4] = [(); 4].map(|()| scene.stream("a transfer"));
    let log = scene.directory.path().join("log");
    steps("disk_few_descriptors_of_the_daemon", 3, |_, random| {
        let count = 6 + random.below(60);
        let mut command = scene.net.command("prlimit");
        command.arg(format!("--nofile={count}")).args([PROGRAM, "daemon", "--cgroup", &scene.group.path()]);
        let mut daemon =
            command.stdout(Stdio::null()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let pid = nix::unistd::Pid::from_raw(daemon.id().cast_signed());
        let said = || fs::read_to_string(&log).unwrap();
        eventually("it tunes, or it ends and says why", || {
            daemon.try_wait().unwrap().is_some() || said().contains("tuning cgroup")
        });
        let _ended = nix::sys::signal::kill(pid, Signal::SIGTERM);
        let status = ended(daemon).status;
        let said = said();
        assert!(matches!(status.code(), Some(0 | 1)), "{count}: {status}: {said}");
        assert!(!said.contains("panicked"), "{count}: {said}");
        streams.iter().for_each(Stream::moves);
        scene.restore();
        scene.must_be_as_before();
        streams.iter().for_each(Stream::must_be_free);
    });
    streams.into_iter().for_each(Stream::finish);
}
