//! A small machine, as far as bufwise changes one: network, cgroups and `/run` of its own, and their initial state.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::Duration;

use bufwise_bpf::leftovers;
use bufwise_socket::device::GsoMaxSize;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::place::{Net, TestGroup, hierarchy};
use crate::run::{patience, without_logins};
use crate::stream::Stream;

pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_bufwise");
/// Time within which every process has to end.
pub(crate) const BOUND: Duration = Duration::from_secs(60);

/// Fields are dropped in this order: processes of a group end before the group above is removed.
pub(crate) struct Scene {
    pub(crate) group: TestGroup,
    pub(crate) net: Net,
    /// Another network namespace of the same machine.
    pub(crate) other: Net,
    pub(crate) directory: tempfile::TempDir,
    /// The group that those inside see as the root.
    top: TestGroup,
    before: State,
}

/// The state that bufwise may change, and must restore.
#[derive(Debug, PartialEq)]
struct State {
    /// Settings of both networks.
    settings: [BTreeMap<String, String>; 2],
    devices: Vec<GsoMaxSize>,
    groups: BTreeSet<String>,
    pins: BTreeSet<String>,
}

impl Scene {
    pub(crate) fn new() -> Self {
        let top = TestGroup::new();
        let before = format!("echo $$ >{}/cgroup.procs", top.directory().display());
        let inside = format!(
            "mount -t tmpfs none /run && umount {0} && mount -t cgroup2 none {0} && ip link add v0 type veth peer name v1",
            hierarchy().display()
        );
        let net = Net::unshared(&before, &["-n", "-m", "-C"], &inside);
        let group = TestGroup::below(top.directory());
        let other = Net::new();
        let before = State::of([&net, &other], &top);
        Self { group, net, other, directory: tempfile::tempdir().unwrap(), top, before }
    }

    /// Starts a transfer of the watched group in the scene's network.
    pub(crate) fn stream(&self, name: &'static str) -> Stream {
        self.stream_in(&self.net, name)
    }

    pub(crate) fn stream_in(&self, net: &Net, name: &'static str) -> Stream {
        let listener = Stream::listener(net);
        let script = Stream::script(&listener, self.directory.path());
        let mut command = net.command("bash");
        command.args(["-c", &script]);
        Stream::accept(&listener, self.in_group(&command).spawn().unwrap(), name)
    }

    /// Returns the command, started in the watched group.
    pub(crate) fn in_group(&self, command: &Command) -> Command {
        let mut born = Command::new("sh");
        born.args(["-c", "echo $$ >\"$0\"; exec \"$@\""]).arg(self.group.directory().join("cgroup.procs"));
        born.arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
        born
    }

    /// Runs `bufwise restore`; returns its output.
    pub(crate) fn restore(&self) -> String {
        let output = ended(self.restoring());
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "restore: {said}");
        said
    }

    /// Starts `bufwise restore`.
    pub(crate) fn restoring(&self) -> Child {
        let mut command = self.net.command(PROGRAM);
        command.arg("restore").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// The processes in the groups of commands.
    pub(crate) fn commands(&self) -> Vec<String> {
        let groups = fs::read_dir(self.top.directory()).unwrap().flatten();
        let commands = groups.filter(|group| group.file_name().to_string_lossy().starts_with("bufwise-run-"));
        let processes =
            commands.map(|group| fs::read_to_string(group.path().join("cgroup.procs")).unwrap_or_default());
        processes.filter(|processes| !processes.is_empty()).collect()
    }

    /// Asserts that the state is as it was when the scene was made.
    pub(crate) fn must_be_as_before(&self) {
        let now = State::of([&self.net, &self.other], &self.top);
        for (before, now) in self.before.settings.iter().zip(&now.settings) {
            let changed: Vec<_> =
                now.iter().filter(|&(name, value)| before.get(name) != Some(value)).collect();
            assert!(changed.is_empty(), "settings: {changed:?}");
        }
        assert!(now == self.before, "{:?} {:?} {:?}", now.devices, now.groups, now.pins);
        for group in [&self.group, &self.top] {
            let directory = File::open(group.directory()).unwrap();
            let left = leftovers(directory.as_fd()).unwrap();
            assert!(left.is_empty(), "programs on {}: {left:?}", group.path());
        }
        let state = format!("/proc/{}/root/run/bufwise", self.net.id());
        let files = names(Path::new(&state));
        assert!(
            files.iter().all(|name| ["lock", "control.lock"].contains(&name.as_str())),
            "/run/bufwise: {files:?}"
        );
    }
}

impl State {
    fn of(nets: [&Net; 2], top: &TestGroup) -> Self {
        let settings = nets.map(|net| {
            net.inside(|| {
                let mut settings = BTreeMap::new();
                for directory in ["core", "ipv4"].map(|name| Path::new("/proc/sys/net").join(name)) {
                    read_settings(&directory, &mut settings);
                }
                settings
            })
        });
        let net = nets[0];
        let mut groups = BTreeSet::new();
        walk(top.directory(), &mut groups);
        Self {
            settings,
            devices: ["v0", "v1"].map(|name| net.at_once(name)).into(),
            groups,
            pins: names(Path::new(&format!("/proc/{}/root/sys/fs/bpf", net.id()))),
        }
    }
}

fn read_settings(directory: &Path, settings: &mut BTreeMap<String, String>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        if entry.file_type().unwrap().is_dir() {
            read_settings(&entry.path(), settings);
        } else if let Ok(text) = fs::read_to_string(entry.path()) {
            settings.insert(entry.path().display().to_string(), text);
        }
    }
}

fn walk(group: &Path, found: &mut BTreeSet<String>) {
    for entry in fs::read_dir(group).unwrap().flatten().filter(|entry| entry.file_type().unwrap().is_dir()) {
        found.insert(entry.path().display().to_string());
        walk(&entry.path(), found);
    }
}

/// Names in a directory; none if it does not exist.
pub(crate) fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Starts a command without input; its output is captured.
pub(crate) fn silent(command: &mut Command) -> Child {
    without_logins(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a process, within [`BOUND`].
pub(crate) fn ended(child: Child) -> Output {
    let pid = Pid::from_raw(child.id().cast_signed());
    let (over, is_over) = channel::<()>();
    let watch = thread::spawn(move || {
        let hangs = is_over.recv_timeout(patience(BOUND)) == Err(RecvTimeoutError::Timeout);
        hangs && kill(pid, Signal::SIGKILL).is_ok()
    });
    let output = child.wait_with_output().unwrap();
    drop(over);
    assert!(!watch.join().unwrap(), "hangs: {}", String::from_utf8_lossy(&output.stderr));
    output
}
