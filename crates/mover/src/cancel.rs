//! Cancels a transfer from another thread.
//!
//! Problem: the decision to end a transfer (`ABOR`, Ctrl-C, a lost control connection) is made by another thread than
//! the one that moves the bytes, which sleeps on a socket.
//! Properties kept: a cancelled transfer ends at once wherever it waits, and before its next system call elsewhere; a
//! cancellation is permanent, for every transfer with a clone of the value.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use nix::poll::PollFlags;

use crate::wake::{self, Bell};

/// A handle to cancel transfers; clones share its state. The default value cannot cancel anything.
#[derive(Clone, Debug, Default)]
pub struct Cancel(Option<Arc<Shared>>);

#[derive(Debug)]
struct Shared {
    bell: Bell,
    cancelled: AtomicBool,
}

impl Cancel {
    /// Makes a handle that can cancel.
    ///
    /// # Errors
    /// The system's error, when no descriptor is left.
    pub fn new() -> io::Result<Self> {
        let shared = Shared { bell: Bell::new()?, cancelled: AtomicBool::new(false) };
        Ok(Self(Some(Arc::new(shared))))
    }

    /// Ends every transfer that has a clone of this, now or later; with the default value, does nothing.
    pub fn cancel(&self) {
        if let Some(shared) = &self.0 {
            shared.cancelled.store(true, Ordering::Release);
            shared.bell.ring();
        }
    }

    /// Whether [`Cancel::cancel`] was called.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.as_ref().is_some_and(|shared| shared.cancelled.load(Ordering::Acquire))
    }

    /// Waits for `events` on `fd` until `deadline`, or until cancelled; says whether `fd` is ready.
    pub fn wait(&self, fd: BorrowedFd<'_>, events: PollFlags, deadline: Instant) -> io::Result<bool> {
        let Some(shared) = &self.0 else {
            return wake::until([(fd, events)], deadline).map(|[ready]| ready);
        };
        // The bell is never silenced: it also wakes threads that wait later.
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
