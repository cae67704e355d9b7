//! The command: started in its cgroup, if it has one, with our standard streams. Signals are passed on to it, and its
//! end is awaited.
//!
//! A signal that this process was started to ignore (`nohup`, `&` in a script, SIGPIPE in a service) is left ignored, because the
//! command inherits that: a handler here would be the default action there.

use std::cell::OnceCell;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{self, Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{env, thread};

use bufwise_bpf::{Cgroup, CgroupError};
use bufwise_socket::signals::Ignored;
use bufwise_socket::{broken_pipe, child};
use nix::errno::Errno;
use nix::sys::signal::{SigSet, Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::{Pid, getpgid, getsid};
use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGWINCH, SIGXFSZ};
use signal_hook::flag;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;
use signal_hook::low_level::emulate_default_handler;
use signal_hook::low_level::siginfo::{Cause, Origin};

/// Signals that are passed on to the command, besides SIGWINCH.
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
/// leave the engine behind. A report beyond the largest size of a file (`RLIMIT_FSIZE`) must not end it either. Ignored
/// signals stay ignored, except that of a child's end: where it is ignored, the kernel keeps no exit status.
pub(crate) fn catch_signals() -> Result<Signals, StartError> {
    let ignored = Ignored::by_this_process();
    for (signal, is_caught) in [(SIGCHLD, ignored.has(SIGCHLD)), (SIGXFSZ, !ignored.has(SIGXFSZ))] {
        if is_caught {
            flag::register(signal, Arc::new(AtomicBool::new(false))).map_err(StartError::Setup)?;
        }
    }
    Signals::new(PASSED_ON.into_iter().filter(|signal| !ignored.has(*signal))).map_err(StartError::Setup)
}

/// Catches SIGWINCH, too, by which service managers and container engines end Apache's httpd. The programs must have been loaded:
/// the kernel gives up a load while a signal is pending, and a window that is resized causes many.
fn catch_resizing(signals: &Signals) -> io::Result<()> {
    if Ignored::by_this_process().has(SIGWINCH) { Ok(()) } else { signals.add_signal(SIGWINCH) }
}

/// The running command.
pub(crate) struct Running {
    pid: Pid,
    target: Target,
    ended: Receiver<io::Result<ExitStatus>>,
    /// How the command has ended, once that has been received; `None` within: that is not known.
    status: OnceCell<Option<ExitStatus>>,
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
        catch_resizing(&signals).map_err(StartError::Setup)?;
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
        let spawn = |mut command: Command| {
            broken_pipe::inherit(&mut command);
            match cgroup {
                Some(cgroup) => cgroup.spawn(&mut command),
                None => command.spawn().map_err(CgroupError::Start),
            }
        };
        let child = match spawn(command_of(program.as_ref(), arguments)) {
            // A script without `#!` is the shell's, as for execvp(3).
            Err(CgroupError::Start(error)) if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => {
                spawn(by_shell("", program.as_ref(), arguments))
            }
            child => child,
        };
        let child =
            child.map_err(|source| StartError::Command { command: program.as_ref().to_owned(), source })?;
        let pid = Pid::from_raw(child.id().cast_signed());
        *target.lock() = Some(pid);
        // The other threads get it from now on, so that it interrupts no load. A blocked signal would be inherited by the command.
        let _stays = SigSet::from(Signal::SIGWINCH).thread_block();
        // Both threads wait for this.
        let _received = (begin.send(()), start.send(child));
        Ok(Self { pid, target, ended, status: OnceCell::new(), wake })
    }

    /// Returns the command's process ID.
    pub(crate) fn pid(&self) -> u32 {
        self.pid.as_raw().cast_unsigned()
    }

    /// Returns a descriptor that becomes readable when the command has ended.
    pub(crate) fn wake_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Returns the exit status, 128 + n after signal n; `None` while the command runs.
    pub(crate) fn status(&self) -> Option<u8> {
        if self.status.get().is_none() {
            let status = match self.ended.try_recv() {
                Ok(ended) => ended.ok(),
                Err(TryRecvError::Disconnected) => None,
                Err(TryRecvError::Empty) => return None,
            };
            let _first = self.status.set(status);
        }
        self.status.get().copied().map(code_of)
    }

    /// Lets signals end this process, as if it did not catch them: the command has ended, and whoever reads the report may let
    /// this process wait for ever.
    pub(crate) fn stop_catching(&self) {
        *self.target.lock() = Some(Pid::this());
    }

    /// Ends this process by SIGINT if the terminal has interrupted it, and the command has ended by that: a shell goes on with its
    /// loop or script if a program exits after Ctrl-C. The first process of a process namespace cannot end so, and exits.
    pub(crate) fn end_if_interrupted(&self) {
        let signal = self.status.get().copied().flatten().and_then(|status| status.signal());
        let is_interrupted = signal == Some(SIGINT) && self.target.interrupted.load(Ordering::Relaxed);
        if is_interrupted && process::id() != 1 {
            let _unknown = emulate_default_handler(SIGINT);
        }
    }

    /// Waits for the end of the command; returns its exit status, as [`Self::status`].
    pub(crate) fn wait(&self) -> u8 {
        code_of(*self.status.get_or_init(|| self.ended.recv().ok().and_then(Result::ok)))
    }
}

/// Returns the command as it is started. A service manager names the process that it hands sockets to, and that has to give
/// signs of life, by its ID (sd_listen_fds(3), sd_watchdog_enabled(3)). If it named this process, it meant the command: a
/// shell, which knows its own ID, writes that there and becomes the command.
fn command_of(program: &OsStr, arguments: &[impl AsRef<OsStr>]) -> Command {
    let own = process::id().to_string();
    let names_us = |name: &&str| env::var(name).is_ok_and(|pid| pid == own);
    let named = ["LISTEN_PID", "WATCHDOG_PID"].into_iter().filter(names_us);
    let script: String = named.map(|name| format!("{name}=$$; ")).collect();
    if script.is_empty() {
        let mut command = Command::new(program);
        command.args(arguments);
        return command;
    }
    let mut shell = by_shell(&script, program, arguments);
    // It names the same process in another form.
    shell.env_remove("LISTEN_PIDFDID");
    shell
}

/// Returns a shell that becomes the command, after the statements `before`. It finds the command in PATH, and interprets it
/// itself if that is a script without `#!`.
fn by_shell(before: &str, program: &OsStr, arguments: &[impl AsRef<OsStr>]) -> Command {
    let mut shell = Command::new("/bin/sh");
    shell.arg("-c").arg(format!("{before}exec \"$0\" \"$@\"")).arg(program).args(arguments);
    shell
}

/// Returns the exit status of a command that has ended, 128 + n after signal n.
fn code_of(ended: Option<ExitStatus>) -> u8 {
    let code = |status: ExitStatus| status.code().or_else(|| status.signal().map(|signal| 128 + signal));
    ended.and_then(code).and_then(|code| u8::try_from(code).ok()).unwrap_or(crate::exit::FAILED)
}

/// The process that gets the signals: the command, while it has not been waited for, because its number may be another
/// process's afterwards; and at last this process.
#[derive(Clone, Debug, Default)]
struct Target {
    process: Arc<Mutex<Option<Pid>>>,
    /// Whether the terminal has interrupted this process.
    interrupted: Arc<AtomicBool>,
}

impl Target {
    fn lock(&self) -> MutexGuard<'_, Option<Pid>> {
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
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
    loop {
        match child::wait_for_end() {
            Ok(ended) => match ended.map(Pid::from_raw).filter(|pid| *pid != command) {
                Some(orphan) => {
                    let _taken = waitpid(orphan, Some(WaitPidFlag::WNOHANG));
                }
                None => return,
            },
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // There is no child: the caller learns that as well.
            Err(_) => return,
        }
    }
}

/// Passes a signal on to the command, unless the terminal has sent it to the command, too. Nor does the command get back what
/// it sends to its parent, as some programs do once they are ready, or to its whole process group.
fn pass_on(origin: &Origin, target: &Target) {
    if origin.signal == SIGINT && matches!(origin.cause, Cause::Kernel) {
        target.interrupted.store(true, Ordering::Relaxed);
    }
    let command = target.lock();
    let Some(pid) = *command else { return };
    if pid == Pid::this() {
        let _unknown = emulate_default_handler(origin.signal);
        return;
    }
    let is_from_it = origin.process.is_some_and(|sender| sender.pid == pid.as_raw());
    if is_from_it || is_for_both(origin, pid) {
        return;
    }
    if let Ok(signal) = Signal::try_from(origin.signal) {
        let _ended_meanwhile = kill(pid, signal);
    }
}

/// Whether the command has received a signal of the terminal as well: the sender is the kernel, and the command is in the
/// process group of this process. Of the terminal's end (SIGHUP) the kernel informs only the leader of the session.
fn is_for_both(origin: &Origin, command: Pid) -> bool {
    let is_leaders = origin.signal == SIGHUP && getsid(None) == Ok(Pid::this());
    matches!(origin.cause, Cause::Kernel) && !is_leaders && getpgid(Some(command)) == getpgid(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_that_was_seen_stays_known() {
        let (sender, ended) = channel();
        let (wake, _other) = UnixStream::pair().unwrap();
        let target = Target::default();
        let running = Running { pid: Pid::this(), target, ended, status: OnceCell::new(), wake };
        assert_eq!(running.status(), None);
        sender.send(Ok(ExitStatus::from_raw(7 << 8))).unwrap();
        drop(sender);
        assert_eq!((running.status(), running.status(), running.wait()), (Some(7), Some(7), 7));
    }
}
