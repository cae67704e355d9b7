//! The command: started in its cgroup, if it has one, with our standard streams. Signals are passed on to it, and its
//! end is awaited.
//!
//! A signal that this process was started to ignore (`nohup`, `&` in a script) is left ignored, because the command inherits
//! that: a handler here would be the default action there.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use bufwise_bpf::{Cgroup, CgroupError};
use nix::errno::Errno;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{Id, WaitPidFlag, waitid, waitpid};
use nix::unistd::Pid;
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// Signals that are passed on to the command.
const PASSED_ON: [i32; 6] = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2];

/// Reason why the command does not run.
#[derive(Debug)]
pub(crate) enum StartError {
    /// The command could not be started.
    Command { command: OsString, source: CgroupError },
    /// The signal handlers, the pipe or the threads around the command could not be set up.
    Setup(io::Error),
}

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Command { command, source } => write!(f, "cannot run {command:?}: {source}"),
            Self::Setup(source) => write!(f, "cannot watch a command: {source}"),
        }
    }
}

/// Signals that are passed on to the command, with their senders.
pub(crate) type Signals = SignalsInfo<WithOrigin>;

/// Catches signals from now on: a signal that comes while the engine is being loaded must not end this process and
/// leave the engine behind. Ignored signals stay ignored, except that of a child's end: where it is ignored, the kernel keeps
/// no exit status.
pub(crate) fn catch_signals() -> Result<Signals, StartError> {
    let ignored = ignored();
    let is_ignored = |signal: i32| ignored & 1 << (signal - 1) != 0;
    if is_ignored(SIGCHLD) {
        flag::register(SIGCHLD, Arc::new(AtomicBool::new(false))).map_err(StartError::Setup)?;
    }
    Signals::new(PASSED_ON.into_iter().filter(|signal| !is_ignored(*signal))).map_err(StartError::Setup)
}

/// Returns the signals that this process ignores, a bit each, from the first on; none if `/proc` does not show them.
fn ignored() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default()
}

/// The running command.
pub(crate) struct Running {
    pid: Pid,
    ended: Receiver<io::Result<ExitStatus>>,
    wake: UnixStream,
}

impl Running {
    /// Starts the command, in the group if there is one, and passes signals on to it.
    pub(crate) fn start(
        cgroup: Option<&Cgroup>,
        words: &[impl AsRef<OsStr>],
        mut signals: Signals,
    ) -> Result<Self, StartError> {
        let (wake, mut waker) = UnixStream::pair().map_err(StartError::Setup)?;
        let (program, arguments) = words.split_first().ok_or_else(|| {
            StartError::Setup(io::Error::new(io::ErrorKind::InvalidInput, "no command was given"))
        })?;
        // The threads come first: without them nothing would wait for a command that has started.
        let target = Target::default();
        let (begin, begun) = channel::<()>();
        let receiver = target.clone();
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                if begun.recv().is_ok() {
                    signals.forever().for_each(|origin| pass_on(&origin, &receiver));
                }
            })
            .map_err(StartError::Setup)?;
        let (start, started) = channel::<Child>();
        let (sender, ended) = channel();
        let waited_for = target.clone();
        thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || {
                let Ok(mut child) = started.recv() else { return };
                let status = waited_for.wait(&mut child);
                // The receiver no longer exists if the report has failed meanwhile.
                let _over = sender.send(status);
                let _over = waker.write_all(b"!");
            })
            .map_err(StartError::Setup)?;
        let mut command = Command::new(program);
        command.args(arguments);
        let child = match cgroup {
            Some(cgroup) => cgroup.spawn(&mut command),
            None => command.spawn().map_err(CgroupError::Start),
        };
        let child =
            child.map_err(|source| StartError::Command { command: program.as_ref().to_owned(), source })?;
        let pid = Pid::from_raw(child.id().cast_signed());
        *target.lock() = Some(pid);
        // Both threads wait for this.
        let _received = (begin.send(()), start.send(child));
        Ok(Self { pid, ended, wake })
    }

    /// The command's process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// A descriptor that becomes readable when the command has ended.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// The exit status, 128 + n after signal n; `None` while the command runs.
    pub(crate) fn status(&self) -> Option<u8> {
        match self.ended.try_recv() {
            Ok(ended) => Some(code_of(ended)),
            Err(TryRecvError::Disconnected) => Some(crate::exit::FAILED),
            Err(TryRecvError::Empty) => None,
        }
    }

    /// Waits for the end of the command; returns its exit status, as [`Self::status`].
    pub(crate) fn wait(&self) -> u8 {
        self.ended.recv().map_or(crate::exit::FAILED, code_of)
    }
}

/// Returns the exit status of a command that has ended, 128 + n after signal n.
fn code_of(ended: io::Result<ExitStatus>) -> u8 {
    let code = |status: ExitStatus| status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ended.ok().and_then(code).and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::FAILED)
}

/// The process that gets the signals: the command, while it has not been waited for. Its number may be another process's
/// afterwards.
#[derive(Clone, Debug, Default)]
struct Target(Arc<Mutex<Option<Pid>>>);

impl Target {
    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for the end of the command, and passes nothing on to it any more before its number becomes free.
    fn wait(&self, child: &mut Child) -> io::Result<ExitStatus> {
        wait_until_over(Pid::from_raw(child.id().cast_signed()));
        *self.lock() = None;
        child.wait()
    }
}

/// Waits until the command has ended, and leaves its status. Takes away orphans that end meanwhile: where this process is the
/// first of its process namespace, as in a container, they are its children.
fn wait_until_over(command: Pid) {
    let left = WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT;
    loop {
        match waitid(Id::All, left) {
            Ok(ended) => match ended.pid().filter(|pid| *pid != command) {
                Some(orphan) => {
                    let _taken = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
                }
                None => return,
            },
            Err(Errno::EINTR) => {}
            // A signal without a name ended some child.
            Err(_) => {
                let _over = waitid(Id::Pid(command), left);
                return;
            }
        }
    }
}

/// Passes a signal on to the command, unless the terminal caused it (its sender is the kernel): the command is in the
/// same process group and has already received that signal. Nor does the command get back what it sends to its parent, as
/// some programs do once they are ready, or to its whole process group.
fn pass_on(origin: &Origin, target: &Target) {
    let command = target.lock();
    let Some(pid) = *command else { return };
    let is_from_it = origin.process.is_some_and(|sender| sender.pid == pid.as_raw());
    if matches!(origin.cause, Cause::Kernel) || is_from_it {
        return;
    }
    if let Ok(signal) = Signal::try_from(origin.signal) {
        let _ended_meanwhile = kill(pid, signal);
    }
}
