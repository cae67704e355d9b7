//! The command: started in its cgroup, if it has one, with our standard streams. Signals are passed on to it, and its
//! end is awaited.

use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use bufwise_bpf::{Cgroup, CgroupError};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
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
/// leave the engine behind.
pub(crate) fn catch_signals() -> Result<Signals, StartError> {
    Signals::new(PASSED_ON).map_err(StartError::Setup)
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
        let mut command = Command::new(program);
        command.args(arguments);
        let child = match cgroup {
            Some(cgroup) => cgroup.spawn(&mut command),
            None => command.spawn().map_err(CgroupError::Start),
        };
        let mut child =
            child.map_err(|source| StartError::Command { command: program.as_ref().to_owned(), source })?;
        let pid = Pid::from_raw(child.id().cast_signed());
        thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || signals.forever().for_each(|origin| pass_on(&origin, pid)))
            .map_err(StartError::Setup)?;
        let (sender, ended) = channel();
        thread::Builder::new()
            .name("command".to_owned())
            .spawn(move || {
                let status = child.wait();
                // The receiver no longer exists if the report has failed meanwhile.
                let _over = sender.send(status);
                let _over = waker.write_all(b"!");
            })
            .map_err(StartError::Setup)?;
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
        let status = match self.ended.try_recv() {
            Ok(Ok(status)) => status,
            Ok(Err(_)) | Err(TryRecvError::Disconnected) => return Some(crate::exit::FAILED),
            Err(TryRecvError::Empty) => return None,
        };
        let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal));
        Some(code.and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::FAILED))
    }
}

/// Passes a signal on to the command, unless the terminal caused it (its sender is the kernel): the command is in the
/// same process group and has already received that signal.
fn pass_on(origin: &Origin, pid: Pid) {
    if matches!(origin.cause, Cause::Kernel) {
        return;
    }
    if let Ok(signal) = Signal::try_from(origin.signal) {
        let _ended_meanwhile = kill(pid, signal);
    }
}
