//! The signals of programs that serve (`daemon`, `serve` and others), read through a descriptor.
//!
//! They are blocked, so that they interrupt no system call: the kernel's verifier gives up with EAGAIN as soon as a
//! signal is pending for the thread that loads a program, and libbpf gives up after five such attempts. Source:
//! signalfd(2), `bpf_check()` in `kernel/bpf/verifier.c`.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};

use bufwise_socket::signals::Ignored;
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::error::{During, Result};

/// A request that is made by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// To end: SIGTERM or SIGINT.
    Stop,
    /// To read the configuration again: SIGHUP.
    Reload,
}

/// Requests that signals have made.
#[derive(Debug)]
pub struct Signals {
    pending: SignalFd,
    stop: Cell<bool>,
    reload: Cell<bool>,
}

impl Signals {
    /// Blocks SIGTERM and SIGINT (stop) and SIGHUP (reload), and reads them from now on. Threads that the caller
    /// starts later inherit the block; a thread that is running already would let them end the process.
    ///
    /// SIGTERM and SIGINT stay ignored if this process was started to ignore them, as SIGINT by `&` in a script. SIGHUP is read
    /// in any case: a reload harms nothing, and under nohup(1) an administrator may request it, too.
    ///
    /// # Errors
    /// The kernel's refusal, for lack of descriptors.
    pub fn watch() -> Result<Self> {
        Self::watch_unless(Ignored::by_this_process())
    }

    fn watch_unless(ignored: Ignored) -> Result<Self> {
        let what = || "cannot watch for signals".to_owned();
        let mut stopping = vec![Signal::SIGTERM, Signal::SIGINT];
        stopping.retain(|signal| !ignored.has(*signal as i32));
        let signals: SigSet = stopping.into_iter().chain([Signal::SIGHUP]).collect();
        signals.thread_block().during(what)?;
        let flags = SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC;
        let pending = SignalFd::with_flags(&signals, flags).during(what)?;
        Ok(Self { pending, stop: Cell::new(false), reload: Cell::new(false) })
    }

    /// Returns what signals have requested since the last call; once it is [`Request::Stop`], always that. After `None` a
    /// caller may wait for the descriptor: all that was read has been returned.
    #[must_use]
    pub fn request(&self) -> Option<Request> {
        while let Ok(Some(signal)) = self.pending.read_signal() {
            let is = |wanted: Signal| i32::try_from(signal.ssi_signo) == Ok(wanted as i32);
            if is(Signal::SIGHUP) { self.reload.set(true) } else { self.stop.set(true) }
        }
        if self.stop.get() { Some(Request::Stop) } else { self.reload.take().then_some(Request::Reload) }
    }
}

/// The descriptor is readable after a signal.
impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.pending.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    use nix::sys::signal::raise;
    use std::thread;

    fn is_readable(signals: &Signals) -> bool {
        let mut fds = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
        poll(&mut fds, PollTimeout::ZERO).unwrap() > 0
    }

    #[test]
    fn any_number_of_hangups_is_one_reload_and_a_stop_stays() {
        // On a thread of its own, because `raise` signals the calling thread.
        let body = || {
            let signals = Signals::watch().unwrap();
            assert!(signals.request().is_none() && !is_readable(&signals));
            raise(Signal::SIGHUP).unwrap();
            raise(Signal::SIGHUP).unwrap();
            assert!(is_readable(&signals));
            assert_eq!([signals.request(), signals.request()], [Some(Request::Reload), None]);
            raise(Signal::SIGHUP).unwrap();
            raise(Signal::SIGTERM).unwrap();
            assert_eq!([signals.request(), signals.request()], [Some(Request::Stop); 2]);
            assert!(!is_readable(&signals));
        };
        thread::spawn(body).join().unwrap();
    }

    #[test]
    fn a_stop_that_was_ignored_at_the_start_stays_ignored_and_a_hangup_is_a_reload() {
        // On a thread of its own: the signal that stays ignored ends with it.
        let body = || {
            SigSet::from(Signal::SIGINT).thread_block().unwrap();
            // SIGHUP and SIGINT.
            let signals = Signals::watch_unless(Ignored::in_status("SigIgn:\t0000000000000003\n")).unwrap();
            raise(Signal::SIGINT).unwrap();
            assert!(signals.request().is_none() && !is_readable(&signals));
            raise(Signal::SIGHUP).unwrap();
            assert_eq!([signals.request(), signals.request()], [Some(Request::Reload), None]);
            raise(Signal::SIGTERM).unwrap();
            assert_eq!(signals.request(), Some(Request::Stop));
        };
        thread::spawn(body).join().unwrap();
    }

    #[test]
    fn a_system_call_is_not_interrupted() {
        let body = || {
            let signals = Signals::watch_unless(Ignored::default()).unwrap();
            raise(Signal::SIGINT).unwrap();
            let (silent, _other) = std::os::unix::net::UnixStream::pair().unwrap();
            let mut fds = [PollFd::new(silent.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(10_u8)), Ok(0), "no EINTR");
            assert_eq!(signals.request(), Some(Request::Stop));
        };
        thread::spawn(body).join().unwrap();
    }
}
