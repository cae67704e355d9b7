//! A running transfer: the session's thread serves the control connection, another thread moves the bytes.
//!
//! ```text
//!   session's thread                         data thread
//!     Running::start(work)  ------------->     opens the data connection, moves the bytes
//!     sleeps on control, bell, stop
//!         <------ Link::progress, bell ----    some ten times a second
//!     ABOR, end of control: Link.cancel --->   ends at once
//!         <------ outcome, bell -----------    the reply, and the line for the log
//!     Running::outcome, next command
//! ```
//! Properties kept: there is always an outcome, even if the data thread panics; a session waits only for a data thread
//! that has been told to end.

use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

use bufwise_mover::wake::Bell;
use bufwise_mover::{Cancel, Progress, Unread};

use super::event::Event;
use super::sync::thread::{self, JoinHandle};
use super::sync::{AtomicBool, Mutex, MutexGuard};
use crate::wire::Reply;

/// The state that the two threads share.
#[derive(Debug)]
pub(super) struct Link {
    bell: Arc<Bell>,
    pub(super) cancel: Cancel,
    parted: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    progress: Unread,
    outcome: Option<Outcome>,
}

/// Outcome of a transfer.
#[derive(Debug)]
pub(super) struct Outcome {
    /// The reply to the client.
    pub(super) reply: Reply,
    /// The line for the log, if any.
    pub(super) event: Option<Event>,
}

impl Link {
    fn state(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds the lock, and every value in it is valid at any time.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the client has sent QUIT and hung up, without waiting for the end.
    pub(super) fn has_parted(&self) -> bool {
        self.parted.load(Ordering::Acquire)
    }

    /// Reports progress to the session.
    pub(super) fn progress(&self, progress: &Progress) {
        self.state().progress.put(progress);
        self.bell.ring();
    }

    fn end(&self, outcome: Outcome) {
        self.state().outcome.get_or_insert(outcome);
        self.bell.ring();
    }
}

/// Ends the link when the data thread ends, by a panic, too.
struct AtEnd(Arc<Link>);

impl Drop for AtEnd {
    fn drop(&mut self) {
        let reply = Reply::single(451, "The server failed.");
        let what = "a data thread has panicked".to_owned();
        self.0.end(Outcome { reply, event: Some(Event::Trouble { what }) });
    }
}

/// A transfer that runs.
#[derive(Debug)]
pub(super) struct Running {
    link: Arc<Link>,
    thread: JoinHandle<()>,
}

impl Running {
    /// Starts `work` on a thread of its own, which rings `bell`.
    pub(super) fn start(
        bell: &Arc<Bell>,
        work: impl FnOnce(&Link) -> Outcome + Send + 'static,
    ) -> io::Result<Self> {
        let (bell, cancel) = (Arc::clone(bell), Cancel::new()?);
        let link = Arc::new(Link { bell, cancel, parted: AtomicBool::new(false), state: Mutex::default() });
        let at_end = AtEnd(Arc::clone(&link));
        let thread = thread::Builder::new().name("bufwise-data".to_owned()).spawn(move || {
            let outcome = work(&at_end.0);
            at_end.0.end(outcome);
        })?;
        Ok(Self { link, thread })
    }

    /// Notes that the client has sent QUIT and hung up.
    pub(super) fn part(&self) {
        self.link.parted.store(true, Ordering::Release);
    }

    /// Cancels the transfer.
    pub(super) fn cancel(&self) {
        self.link.cancel.cancel();
    }

    pub(super) fn is_cancelled(&self) -> bool {
        self.link.cancel.is_cancelled()
    }

    /// Returns the newest progress, if there is any since the last call.
    pub(super) fn progress(&self) -> Option<Progress> {
        self.link.state().progress.take()
    }

    /// Whether the transfer has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.link.state().outcome.is_some()
    }

    /// Waits for the end; returns the outcome.
    pub(super) fn outcome(self) -> Outcome {
        // A panic has left an outcome behind, too.
        let _panicked = self.thread.join();
        self.link
            .state()
            .outcome
            .take()
            .unwrap_or_else(|| Outcome { reply: Reply::single(451, "The server failed."), event: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_units::Bytes;
    use nix::poll::PollFlags;
    use std::os::fd::AsFd;
    use std::time::{Duration, Instant};

    fn wait(bell: &Bell) {
        let deadline = Instant::now() + Duration::from_secs(30);
        assert_eq!(
            bufwise_mover::wake::until([(bell.as_fd(), PollFlags::POLLIN)], deadline).unwrap(),
            [true]
        );
        bell.silence();
    }

    #[test]
    fn an_outcome_comes_with_the_bell() {
        let bell = Arc::new(Bell::new().unwrap());
        let work = |link: &Link| {
            link.progress(&Progress { buffer_request: Some(Bytes(64_000)), ..Progress::default() });
            link.progress(&Progress { bytes: 7, ..Progress::default() });
            Outcome { reply: Reply::single(226, "Done."), event: None }
        };
        let running = Running::start(&bell, work).unwrap();
        while !running.has_ended() {
            wait(&bell);
        }
        let progress = running.progress().unwrap();
        assert_eq!((progress.bytes, progress.buffer_request), (7, Some(Bytes(64_000))));
        assert!(running.progress().is_none(), "told once");
        assert_eq!(running.outcome().reply.code, 226);
    }

    #[test]
    fn a_panic_is_an_outcome_too() {
        let bell = Arc::new(Bell::new().unwrap());
        let running = Running::start(&bell, |_| panic!("on purpose")).unwrap();
        wait(&bell);
        let outcome = running.outcome();
        assert_eq!(outcome.reply.code, 451);
        assert!(matches!(outcome.event, Some(Event::Trouble { .. })));
    }
}

#[cfg(test)]
#[cfg(feature = "shuttle")]
mod interleavings {
    use super::*;
    use crate::server::sync::{ORDERS, wait_for};
    use bufwise_units::Bytes;
    use std::time::Instant;

    #[test]
    fn shuttle_the_session_hears_of_each_end_and_of_each_request_before_it() {
        let body = || {
            let bell = Arc::new(Bell::new().unwrap());
            let work = |link: &Link| {
                link.progress(&Progress { buffer_request: Some(Bytes(64_000)), ..Progress::default() });
                // It waits to be cancelled, which the session does once it has heard of the request.
                while !link.cancel.is_cancelled() {
                    thread::yield_now();
                }
                Outcome { reply: Reply::single(426, "Aborted."), event: None }
            };
            let running = Running::start(&bell, work).unwrap();
            // As the session does: the bell is silenced first, and then it looks (`Control::hear`).
            while !running.has_ended() {
                wait_for(&bell, &Cancel::default(), Instant::now()).unwrap();
                bell.silence();
                if running.progress().is_some_and(|progress| progress.buffer_request.is_some()) {
                    running.cancel();
                }
            }
            assert_eq!(running.outcome().reply.code, 426);
        };
        shuttle::check_pct(body, ORDERS, 3);
        shuttle::check_random(body, ORDERS);
    }
}
