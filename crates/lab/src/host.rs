//! A host of the lab: network, mount and process namespaces that live exactly as long as this value.
//!
//! Problem: a laboratory host must vanish with everything in it in any case, also when bufwise is killed and can run no
//! more code.
//!
//! So the namespaces have no names, and the kernel frees them with their last user. The host's process 1 waits on a
//! pipe whose other end only bufwise holds. When bufwise ends, for whatever reason, the pipe closes, process 1 exits,
//! and the kernel kills all other processes of that host (pid_namespaces(7)). The next start has nothing to clean up.

use std::fs;
use std::io::{self, BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::thread;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, setns, unshare};
use thiserror::Error;

/// Why a laboratory host could not be made or used.
#[derive(Debug, Error)]
pub enum HostError {
    /// The kernel refused new namespaces.
    #[error("cannot make network namespaces: {0}; run as root, or in a container with CAP_SYS_ADMIN")]
    Namespaces(nix::Error),
    /// Process 1 of the host did not start.
    #[error("cannot start the host's first process (sh): {0}")]
    Init(io::Error),
    /// The namespaces could not be entered.
    #[error("cannot enter host {host}: {source}")]
    Enter {
        /// Which host.
        host: &'static str,
        /// The kernel's error.
        source: io::Error,
    },
    /// A command that sets up the host failed.
    #[error("host {host}: `{command}` failed: {reason}")]
    Command {
        /// Which host.
        host: &'static str,
        /// The command.
        command: String,
        /// The first line of its output.
        reason: String,
    },
    /// A network setting could not be written.
    #[error("host {host}: cannot set {key} to {value}: {source}")]
    Sysctl {
        /// Which host.
        host: &'static str,
        /// The setting, in sysctl's notation.
        key: String,
        /// The value.
        value: String,
        /// The kernel's error.
        source: io::Error,
    },
}

/// A laboratory host. Dropping it kills every process on it and frees its network.
#[derive(Debug)]
pub struct Host {
    name: &'static str,
    init: Child,
}

/// Script of process 1: mounts its own /proc, prints a word when it is up, then waits for the pipe to close.
const INIT: &str = "mount -t proc proc /proc 2>/dev/null; echo up; exec cat >/dev/null";

/// Script that asks all processes except process 1 to end, and waits until only that and this shell are left, some five seconds at
/// most: on a busy machine a `bufwise run` may take more than two to give back what it has changed. Process 1 reaps no children, so
/// orphans that have ended stay as zombies and are not counted.
const END: &str = "kill -s TERM -- -1; tries=0; while [ $tries -lt 500 ]; do alive=0; \
    for stat in /proc/[0-9]*/stat; do read -r line <$stat && case $line in \
    *') Z '*) ;; *) alive=$((alive + 1)) ;; esac; done; \
    [ $alive -le 2 ] && exit; sleep 0.01; tries=$((tries + 1)); done";

/// Script that kills all processes except process 1 and its own shell (kill(2): -1 spares the caller).
const KILL: &str = "kill -s KILL -- -1";

impl Host {
    /// Makes a host with an empty network (its loopback is up).
    ///
    /// # Errors
    /// [`HostError`] when the kernel refuses namespaces or the first process does not start.
    pub fn new(name: &'static str) -> Result<Self, HostError> {
        let mut init = thread::scope(|scope| {
            scope.spawn(Self::unshare_and_spawn_init).join().unwrap_or_else(|panic| {
                std::panic::resume_unwind(panic);
            })
        })?;
        let mut word = String::new();
        if let Some(stdout) = init.stdout.take() {
            BufReader::new(stdout).read_line(&mut word).map_err(HostError::Init)?;
        }
        let host = Self { name, init };
        if word.trim() != "up" {
            return Err(HostError::Init(io::Error::other("it ended at once")));
        }
        host.ip("link set lo up")?;
        Ok(host)
    }

    /// Replaces the namespaces of the calling thread, so it must run on a thread of its own.
    fn unshare_and_spawn_init() -> Result<Child, HostError> {
        own_connection_table().map_err(HostError::Namespaces)?;
        let namespaces = CloneFlags::CLONE_NEWNET | CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_NEWPID;
        unshare(namespaces).map_err(HostError::Namespaces)?;
        mount(None::<&str>, "/", None::<&str>, MsFlags::MS_REC | MsFlags::MS_PRIVATE, None::<&str>)
            .map_err(HostError::Namespaces)?;
        Command::new("sh")
            .args(["-c", INIT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(HostError::Init)
    }

    /// Returns the host's name, for messages.
    #[must_use]
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Moves the calling thread into the host's network. Only for threads that do not leave it again.
    ///
    /// # Errors
    /// [`HostError::Enter`] when the host is gone.
    pub fn enter_network(&self) -> Result<(), HostError> {
        self.join("net", CloneFlags::CLONE_NEWNET)
    }

    fn join(&self, kind: &str, flag: CloneFlags) -> Result<(), HostError> {
        let enter = |source| HostError::Enter { host: self.name, source };
        let namespace = fs::File::open(format!("/proc/{}/ns/{kind}", self.init.id())).map_err(enter)?;
        setns(namespace, flag).map_err(|errno| enter(errno.into()))
    }

    /// Runs `work` in the host's network, on a thread of its own, and waits for it.
    ///
    /// # Errors
    /// [`HostError::Enter`] when the host is gone.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, HostError> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                self.enter_network()?;
                Ok(work())
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Starts `command` on this host, with the host's network, processes and /proc.
    ///
    /// # Errors
    /// [`HostError::Enter`] when the host is gone, or with the reason why the command did not start.
    pub fn spawn(&self, command: &mut Command) -> Result<Child, HostError> {
        thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let enter = |source| HostError::Enter { host: self.name, source };
                // The process namespace is entered by a path in the caller's /proc, so the mounts come last.
                self.join("pid", CloneFlags::CLONE_NEWPID)?;
                self.join("net", CloneFlags::CLONE_NEWNET)?;
                unshare(CloneFlags::CLONE_FS).map_err(|errno| enter(errno.into()))?;
                let directory = std::env::current_dir().map_err(enter)?;
                self.join("mnt", CloneFlags::CLONE_NEWNS)?;
                command.current_dir(directory).spawn().map_err(enter)
            });
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Asks every program on this host to end, and gives them five seconds to clean up. Dropping the host kills those
    /// that remain.
    pub fn end_programs(&self) {
        self.tell_programs(END);
    }

    /// Kills every program on this host except process 1.
    pub fn kill_programs(&self) {
        self.tell_programs(KILL);
    }

    fn tell_programs(&self, script: &str) {
        let told = self.spawn(Command::new("sh").args(["-c", script]).stderr(Stdio::null()));
        // A host that no longer exists has no programs.
        let _gone =
            told.and_then(|mut sh| sh.wait().map_err(|source| HostError::Enter { host: self.name, source }));
    }

    /// Runs iproute2's `ip` with these commands (one per line) in the host's network.
    ///
    /// # Errors
    /// [`HostError::Command`] with the command that failed and the first line of `ip`'s output, or that it is not installed.
    pub fn ip(&self, commands: &str) -> Result<(), HostError> {
        let failed = |words: &str, reason: String| HostError::Command {
            host: self.name,
            command: format!("ip {}", failed_command(commands, words)),
            reason,
        };
        let output = self.run(|| -> io::Result<_> {
            let mut ip = Command::new("ip")
                .args(["-batch", "-"])
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::piped())
                .spawn()?;
            if let Some(mut stdin) = ip.stdin.take() {
                stdin.write_all(commands.as_bytes())?;
            }
            ip.wait_with_output()
        })?;
        let output = output.map_err(|error| failed("", format!("{error}; install iproute2")))?;
        if output.status.success() {
            return Ok(());
        }
        let words = String::from_utf8_lossy(&output.stderr);
        Err(failed(&words, words.lines().next().unwrap_or("no reason given").to_owned()))
    }

    /// Sets a network parameter of this host, such as `net.ipv4.tcp_rmem`.
    ///
    /// # Errors
    /// [`HostError::Sysctl`] with the kernel's answer.
    pub fn sysctl(&self, key: &str, value: &str) -> Result<(), HostError> {
        self.run(|| fs::write(sysctl_path(key), value))?.map_err(|source| HostError::Sysctl {
            host: self.name,
            key: key.to_owned(),
            value: value.to_owned(),
            source,
        })
    }

    /// Reads a network parameter of this host.
    ///
    /// # Errors
    /// [`HostError::Sysctl`] with the kernel's answer.
    pub fn read_sysctl(&self, key: &str) -> Result<String, HostError> {
        let text = self.run(|| fs::read_to_string(sysctl_path(key)))?;
        text.map(|text| text.trim().to_owned()).map_err(|source| HostError::Sysctl {
            host: self.name,
            key: key.to_owned(),
            value: "(reading it)".to_owned(),
            source,
        })
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        drop(self.init.stdin.take());
        // Process 1 ignores signals for which it has no handler, but not SIGKILL from outside its namespace.
        let _already_gone = self.init.kill();
        let _reaped = self.init.wait();
    }
}

/// Slots in a host's own table of connections: two thousand connections fill a quarter of them.
const CONNECTION_SLOTS: &str = "8192";

/// Sees to it that the network namespace that the calling thread makes next has a table of connections of its own. Before Linux 6.1
/// nothing changes.
///
/// Otherwise all namespaces share one table, which has 262,144 slots on a machine with 24 GB. Each list of a host's connections then
/// takes 2 to 3 ms, in which the kernel may give the processor to no other thread. The samples of a path took 5% of its time from the
/// emulator.
///
/// The size is a setting of the namespace that makes the new one (`tcp_child_ehash_entries`, ip-sysctl). The thread moves to an empty
/// one, so that the machine's own setting stays as it is.
fn own_connection_table() -> nix::Result<()> {
    unshare(CloneFlags::CLONE_NEWNET)?;
    // The path leads to the namespace of the thread that opens it.
    let _since_linux_6_1 = fs::write(sysctl_path("net.ipv4.tcp_child_ehash_entries"), CONNECTION_SLOTS);
    Ok(())
}

fn sysctl_path(key: &str) -> String {
    format!("/proc/sys/{}", key.replace('.', "/"))
}

/// Returns the line of `commands` that failed, by the words of `ip -batch -`, which end with `Command failed -:NUMBER`. Without such
/// an end it is the first line.
fn failed_command<'a>(commands: &'a str, words: &str) -> &'a str {
    let number = words.lines().find_map(|line| line.strip_prefix("Command failed -:")?.trim().parse().ok());
    commands.lines().nth(number.unwrap_or(1_usize).saturating_sub(1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_a_host_has_a_table_of_connections_of_its_own() {
        if !bufwise_trial::root() {
            return;
        }
        let host = Host::new("a").unwrap();
        // Before Linux 6.1 there is one table for all.
        let Ok(slots) = host.read_sysctl("net.ipv4.tcp_ehash_entries") else {
            return bufwise_trial::skip("needs Linux 6.1");
        };
        assert_eq!(slots, CONNECTION_SLOTS, "a negative number: the table of the whole machine");
        assert_eq!(
            host.read_sysctl("net.ipv4.tcp_child_ehash_entries").unwrap(),
            "0",
            "for the host's own namespaces"
        );
    }

    #[test]
    fn the_command_that_failed_is_named() {
        let commands = "link set dev bw0 mtu 1500\naddr add x dev bw0\n";
        let words = "Error: any valid prefix is expected rather than \"x\".\nCommand failed -:2\n";
        assert_eq!(failed_command(commands, words), "addr add x dev bw0");
        assert_eq!(failed_command(commands, ""), "link set dev bw0 mtu 1500");
        assert_eq!(failed_command(commands, "Command failed -:9"), "");
    }
}
