//! The environment of a test's daemon: a network namespace, a cgroup and a directory of its own, apart from the host's
//! settings and connections.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_lab::host::Host;
use bufwise_socket::device::{Devices, GsoMaxSize};
use bufwise_socket::diag::{Connection, Diag, States};
use nix::sched::{CloneFlags, setns};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{eventually, patience};

const PROGRAM: &str = env!("CARGO_BIN_EXE_bufwise");
/// Initial maxima of a test's namespace.
pub(crate) const RMEM: &str = "4096 131072 6291456";

/// A network namespace, which ends when this is dropped.
pub(crate) struct Net {
    holder: Child,
    kinds: &'static [&'static str],
}

impl Net {
    pub(crate) fn new() -> Self {
        Self::unshared("true", &["-n"], "true")
    }

    /// Makes it together with other namespaces, given as options of unshare(1) and nsenter(1). The script `before` runs
    /// before they are made, `inside` runs in them.
    pub(crate) fn unshared(before: &str, kinds: &'static [&'static str], inside: &str) -> Self {
        let inside = format!(
            "{inside} && ip link set lo up && echo '{RMEM}' >/proc/sys/net/ipv4/tcp_rmem && echo up && exec cat"
        );
        let before = format!("{before} && exec unshare {} sh -c \"$0\"", kinds.join(" "));
        let mut command = Command::new("sh");
        command.args(["-c", &before, &inside]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = command.spawn().unwrap();
        holder.stdout.as_mut().unwrap().read_exact(&mut [0; 3]).expect("the namespace is ready");
        Self { holder, kinds }
    }

    /// Returns the namespace of a host of the laboratory.
    pub(crate) fn of(host: &Host) -> Self {
        let mut command = Command::new("cat");
        command.stdin(Stdio::piped()).stdout(Stdio::null());
        let holder = host.run(|| command.spawn().unwrap()).unwrap();
        Self { holder, kinds: &["-n"] }
    }

    /// The process that keeps the namespace alive.
    pub(crate) fn id(&self) -> u32 {
        self.holder.id()
    }

    pub(crate) fn command(&self, program: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.id().to_string()]).args(self.kinds).args(["--", program]);
        command.stdin(Stdio::null());
        command
    }

    /// Runs `work` in the namespace.
    pub(crate) fn inside<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/proc/{}/ns/net", self.id())).unwrap();
        let enter = move || {
            setns(namespace, CloneFlags::CLONE_NEWNET).unwrap();
            work()
        };
        thread::scope(|scope| scope.spawn(enter).join().unwrap())
    }

    pub(crate) fn rmem(&self) -> String {
        let text = self.inside(|| fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap());
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    }

    pub(crate) fn set_rmem(&self, value: &str) {
        self.inside(|| fs::write("/proc/sys/net/ipv4/tcp_rmem", value).unwrap());
    }

    /// Runs ip(8) in the namespace.
    pub(crate) fn ip(&self, arguments: &str) {
        assert!(self.command("ip").args(arguments.split(' ')).status().unwrap().success(), "ip {arguments}");
    }

    /// Returns the GSO maximum of a device: the most bytes that it accepts at once.
    pub(crate) fn at_once(&self, device: &str) -> GsoMaxSize {
        self.inside(|| {
            let mut devices = Devices::open().unwrap();
            let all = devices.all().unwrap();
            let found = all.into_iter().find(|one| one.to_string() == device).expect("the device is there");
            devices.gso_max_size(found).unwrap()
        })
    }

    /// Waits until iperf3 listens.
    pub(crate) fn listens(&self) {
        eventually("iperf3 listens", || {
            self.inside(|| !Diag::open().unwrap().listening(Some(5201)).unwrap().is_empty())
        });
    }

    /// Returns the connections to or from port 5201 that have moved data.
    pub(crate) fn connections(&self) -> Vec<Connection> {
        let all = self.inside(|| Diag::open().unwrap().tcp(States::ESTABLISHED).unwrap());
        all.into_iter().filter(|one| one.info.bytes_acked + one.info.bytes_received > 100_000).collect()
    }

    /// Returns the figures, from a list of `ls` or `explain`, of the connection to port 5201 that has sent most. Other
    /// namespaces of this machine may have connections with the same addresses.
    pub(crate) fn busiest(&self, list: &Value) -> Value {
        let sent = |one: &Connection| one.info.bytes_acked;
        let all = self.connections().into_iter().filter(|one| one.peer.port() == 5201);
        let cookie = all.max_by_key(sent).expect("data moves").cookie;
        let listed = list["connections"].as_array().unwrap().iter().find(|one| one["cookie"] == cookie);
        listed.unwrap_or_else(|| panic!("{cookie} is missing: {list}")).clone()
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        drop(self.holder.stdin.take());
        self.holder.wait().unwrap();
    }
}

/// Returns the mount point of cgroup v2.
pub(crate) fn hierarchy() -> PathBuf {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.split(' ').nth(2) == Some("cgroup2")).expect("cgroup v2");
    line.split(' ').nth(1).unwrap().into()
}

/// A cgroup of the test. Dropping it ends the processes in it.
pub(crate) struct TestGroup(PathBuf);

impl TestGroup {
    pub(crate) fn new() -> Self {
        Self::below(&hierarchy())
    }

    /// Makes a cgroup in this directory.
    pub(crate) fn below(directory: &Path) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("bufwise-test-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let path = directory.join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// The path as in `/proc/PID/cgroup`, relative to the directory above.
    pub(crate) fn path(&self) -> String {
        format!("/{}", self.0.file_name().unwrap().display())
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.0
    }

    /// Runs a script in the group and the namespace.
    pub(crate) fn spawn(&self, net: &Net, script: &str) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "echo $$ >\"$0\"; exec \"$@\""]).arg(self.directory().join("cgroup.procs"));
        let inside = net.command("sh");
        command.arg(inside.get_program()).args(inside.get_args()).args(["-c", script]).stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
    }

    /// Starts a transfer at a bounded rate, which lasts longer than any test.
    pub(crate) fn transfer(&self, net: &Net) -> Transfer {
        let server = self.spawn(net, "exec iperf3 -s -1");
        net.listens();
        let client = self.spawn(net, "exec iperf3 -c 127.0.0.1 -t 3600 -b 100M");
        eventually("data moves", || net.connections().len() >= 2);
        Transfer([client, server])
    }
}

impl Drop for TestGroup {
    fn drop(&mut self) {
        // A process may start another one meanwhile, and a thread that ends keeps the group busy though no process is listed.
        eventually("the group is removed", || {
            let processes = fs::read_to_string(self.0.join("cgroup.procs")).unwrap_or_default();
            for pid in processes.lines().filter_map(|line| line.parse().ok()) {
                let _gone = kill(Pid::from_raw(pid), Signal::SIGKILL);
            }
            fs::remove_dir(&self.0).is_ok()
        });
    }
}

/// iperf3's two processes.
pub(crate) struct Transfer(pub(crate) [Child; 2]);

impl Drop for Transfer {
    fn drop(&mut self) {
        for child in &mut self.0 {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

fn spawn(net: &Net, arguments: &[&str], directory: &Path) -> Child {
    let mut command = net.command(PROGRAM);
    command.arg("daemon").args(arguments).arg("--socket").arg(directory.join("control"));
    command.env("NOTIFY_SOCKET", directory.join("notify")).env_remove("JOURNAL_STREAM");
    command.env("WATCHDOG_USEC", "300000").env_remove("WATCHDOG_PID");
    let log = File::create(directory.join("log")).unwrap();
    command.stdout(Stdio::null()).stderr(log).spawn().unwrap()
}

/// A daemon, its log, and its messages to the service manager.
pub(crate) struct Daemon {
    child: Child,
    directory: tempfile::TempDir,
    notify: UnixDatagram,
    heard: String,
}

impl Daemon {
    /// Starts a daemon with a control socket of its own.
    pub(crate) fn start(net: &Net, arguments: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let notify = UnixDatagram::bind(directory.path().join("notify")).unwrap();
        notify.set_read_timeout(Some(patience(Duration::from_secs(30)))).unwrap();
        let child = spawn(net, arguments, directory.path());
        Self { child, directory, notify, heard: String::new() }
    }

    /// Replaces this daemon, which has ended, by another one at the same socket.
    pub(crate) fn start_again(&mut self, net: &Net, arguments: &[&str]) {
        self.heard.clear();
        self.notify.set_nonblocking(true).unwrap();
        while self.notify.recv(&mut [0; 512]).is_ok() {}
        self.notify.set_nonblocking(false).unwrap();
        self.child = spawn(net, arguments, self.directory.path());
    }

    /// As [`Daemon::start`], but waits until the daemon is ready.
    pub(crate) fn ready(net: &Net, arguments: &[&str]) -> Self {
        let mut daemon = Self::start(net, arguments);
        daemon.hears("READY=1");
        daemon
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn socket(&self) -> String {
        self.directory.path().join("control").to_str().unwrap().to_owned()
    }

    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Waits for a line of the log that contains `words`.
    pub(crate) fn says(&self, words: &str) {
        let start = Instant::now();
        while !self.log().contains(words) {
            assert!(
                start.elapsed() < patience(Duration::from_secs(30)),
                "no line with {words:?}:\n{}",
                self.log()
            );
            thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for a message to the service manager that contains `words`; returns the messages since the last call.
    pub(crate) fn hears(&mut self, words: &str) -> String {
        let (start, mut buffer) = (Instant::now(), [0; 512]);
        loop {
            // Signs of life come all the time, so that no single wait ends.
            assert!(
                start.elapsed() < patience(Duration::from_secs(30)),
                "{words} was not told but {}:\n{}",
                self.heard,
                self.log()
            );
            if let Some(at) = self.heard.find(words) {
                let rest = self.heard.split_off(at + words.len());
                return std::mem::replace(&mut self.heard, rest);
            }
            let len = match self.notify.recv(&mut buffer) {
                Ok(len) => len,
                // Stopping and continuing the test's command interrupts this call, too: the kernel does not resume a
                // wait with a time-out.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => panic!("{words} was not told ({error}) but {}:\n{}", self.heard, self.log()),
            };
            self.heard += &String::from_utf8_lossy(&buffer[..len]);
            self.heard.push('\n');
        }
    }

    /// Returns the message that the service manager gets within `time`.
    pub(crate) fn hears_for(&mut self, time: Duration) -> String {
        let usual = self.notify.read_timeout().unwrap();
        self.notify.set_read_timeout(Some(time)).unwrap();
        let mut buffer = [0; 512];
        let told = self.notify.recv(&mut buffer).unwrap_or_default();
        self.notify.set_read_timeout(usual).unwrap();
        String::from_utf8_lossy(&buffer[..told]).into_owned()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id().cast_signed()), signal).unwrap();
    }

    pub(crate) fn wait(&mut self) -> ExitStatus {
        self.child.wait().unwrap()
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        self.child.wait().unwrap();
    }
}
