//! Ending a transfer from another thread.
//!
//! Problem: the decision that a transfer is over (`ABOR`, Ctrl-C, a control connection that is gone) is not made by
//! the thread that moves the bytes, and that one sleeps on a socket.
//! Properties kept: a cancelled transfer ends at once wherever it waits, and before its next system call elsewhere;
//! once cancelled is cancelled for ever, for every transfer with a clone of the value.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::poll::PollFlags;

use crate::wake::{self, Bell};

/// A way to end transfers; clones are the same. The default one can never be used.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    bell: Bell,
    cancelled: AtomicBool,
}

impl Cancel {
    /// One that can be used.
    ///
    /// # Errors
    /// The system's, when no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let shared = Shared { bell: Bell::new()?, cancelled: AtomicBool::new(false) };
        Ok(Self(Some(Arc::new(shared))))
    }

    /// Ends every transfer that has a clone of this, now or later. The default value: does nothing.
    pub fn cancel(&self) {
        if let Some(shared) = &self.0 {
            shared.cancelled.store(true, Ordering::Release);
            shared.bell.ring();
        }
    }

    /// Whether that has happened.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.cancelled.load(Ordering::Acquire))
    }

    /// Waits for `events` on `fd` until `deadline`, or until cancelled; says whether `fd` is ready.
    pub fn wait(&self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        let Some(shared) = &self.0 else {
            return wake::until([(fd, events)], deadline).map(|[ready]| ready);
        };
        // The bell is never silenced: it wakes all that wait, and all that will.
        let watched = [(fd, events), (shared.bell.as_fd(), PollFlags::POLLIN)];
        wake::until(watched, deadline).map(|[ready, _]| ready)
    }

    /// Waits until `deadline`, or until cancelled.
    pub fn pause(&self, deadline: Instant) -> io::Result<()> {
        match &self.0 {
            None => wake::until([], deadline).map(|[]| ()),
            Some(shared) => wake::until([(shared.bell.as_fd(), PollFlags::POLLIN)], deadline).map(|[_]| ()),
        }
    }
}
