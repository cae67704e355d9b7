//! One transfer: data on a thread of its own, while this one reads the control connection.
//!
//! Problem: during a transfer the server may send any reply at any time: 126 with a buffer's size, 4yz because its disk
//! is full, 226 before this end has read the last byte, or none because the connection is lost.
//! Rules: 1yz are events. A refusal ends the data at once. A transfer succeeds only when both the data and the final
//! reply have come; each is awaited. After the data has failed, the final reply is awaited for a short time only.
//! If both fail, the server's reply is reported as the cause, unless this end caused the failure. A lost control
//! connection does not end the data: bytes that still arrive are kept.
//! Properties kept: the data thread has ended when this returns; every wait is bounded.

use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_mover::wake::{self, Bell};
use bufwise_mover::{BufferGrants, Cancel, MoveError, Progress, Unread};
use bufwise_units::Bytes;
use nix::poll::PollFlags;

use super::control::Control;
use super::error::{Answer, ClientError};
use super::session::ClientSession;
use crate::wire::dialect::parse_buffer_notice;
use crate::wire::{Command, Reply};

/// How long to wait for the server's final reply after the data has failed.
const FINAL_REPLY_TIMEOUT: Duration = Duration::from_secs(2);
/// Longest sleep. Within it the data's end is noticed even if the bell could not be rung, and an interruption even
/// without a control connection.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Codes of replies to an SBUF that the server did not understand: no reply that ends a transfer has them.
const NOT_UNDERSTOOD: std::ops::RangeInclusive<u16> = 500..=504;

/// Requests and notices about buffers during a transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notes {
    /// Number of requests (SBUF) sent.
    pub requests_sent: u64,
    /// Number of notices (126) received.
    pub notices_received: u64,
    /// The size in the last one.
    pub last_notice: Option<Bytes>,
}

/// Messages between the data thread and the control thread. Made before the transfer is ordered: a failure then leaves the
/// session in step.
pub(super) struct Desk {
    /// Rung by the data thread when its state has changed.
    bell: Bell,
    progress: Mutex<Unread>,
    done: AtomicBool,
    /// Cancels the data thread's work.
    pub(super) cancel: Cancel,
}

impl Desk {
    pub(super) fn new() -> Result<Self, ClientError> {
        let failed = |source| ClientError::Resources { source };
        let (bell, cancel) = (Bell::new().map_err(failed)?, Cancel::new().map_err(failed)?);
        Ok(Self { bell, progress: Mutex::default(), done: AtomicBool::new(false), cancel })
    }

    /// Takes the data thread's report.
    pub(super) fn tell(&self, progress: &Progress) {
        self.progress().put(progress);
        self.bell.ring();
    }

    fn take(&self) -> Option<Progress> {
        self.bell.silence();
        self.progress().take()
    }

    fn is_done(&self) -> bool {
        self.done.load(Ordering::Acquire)
    }

    fn progress(&self) -> MutexGuard<'_, Unread> {
        // No thread panics while it holds the lock, and every value in it is valid at any time.
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Handling of requests for buffers during a transfer.
pub(super) enum Buffers<'a> {
    /// No requests are made or granted.
    Silent,
    /// We receive: our requests for the server's buffer go out as SBUF.
    Request,
    /// We send: the server's 126 are requests for our buffer.
    Grant(&'a BufferGrants),
}

/// A transfer that came to its end.
pub(super) struct Conducted<T> {
    /// The data thread's result.
    pub(super) moved: T,
    /// Requests and notices about buffers.
    pub(super) notes: Notes,
}

struct Conductor<'a> {
    desk: &'a Desk,
    buffers: Buffers<'a>,
    notes: Notes,
    /// The transfer's final reply.
    last: Option<Reply>,
    /// SBUFs that 126 has not answered.
    unanswered: u64,
}

/// Runs `data` beside the control connection until both have ended; `begun` is the reply that began the transfer, or ended it
/// already.
pub(super) fn conduct<T: Send>(
    session: &mut ClientSession,
    order: &Command,
    begun: Reply,
    desk: &Desk,
    buffers: Buffers<'_>,
    data: impl FnOnce() -> Result<T, MoveError> + Send,
    mut watch: impl FnMut(&Progress),
) -> Result<Conducted<T>, ClientError> {
    let last = Some(begun).filter(Reply::is_completion);
    let mut conductor = Conductor { desk, buffers, notes: Notes::default(), last, unanswered: 0 };
    let shown = order.shown();
    let done = thread::scope(|scope| {
        let work = || {
            let moved = data();
            desk.done.store(true, Ordering::Release);
            desk.bell.ring();
            moved
        };
        let thread = thread::Builder::new().spawn_scoped(scope, work)?;
        let attended = conductor.attend(session.control(), &shown, &mut watch);
        match &attended {
            Ok(()) => {}
            Err(ClientError::Closed { .. } | ClientError::Broken { .. }) => {
                outlast(session.control(), desk, &mut watch);
            }
            Err(_) => desk.cancel.cancel(),
        }
        Ok((thread.join(), attended))
    });
    let (moved, attended) = done.map_err(|source| {
        session.spend();
        ClientError::Resources { source }
    })?;
    // A panic of the data thread becomes a panic of this thread.
    let moved = moved.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    // The data thread's last progress may have come after its end was seen.
    if let Some(progress) = desk.take() {
        watch(&progress);
    }
    let ended = match (attended, moved) {
        (Ok(()), moved) => conductor.conclude(session.control(), order, moved),
        // The server hung up because the data had ended, and this end caused that.
        (Err(ClientError::Closed { .. } | ClientError::Broken { .. }), Err(error)) if is_ours(&error) => {
            Err(error.into())
        }
        (Err(error), _) => Err(error),
    };
    // After a failure the two ends may disagree on which transfer a reply belongs to. An SBUF may have arrived after the
    // transfer's end, and its reply may still come.
    if ended.is_err() || (conductor.unanswered > 0 && session.control().fence().is_err()) {
        session.spend();
    }
    ended.map(|moved| Conducted { moved, notes: conductor.notes })
}

/// Whether this end has given up the data transfer.
fn is_ours(error: &MoveError) -> bool {
    matches!(
        error,
        MoveError::File { .. }
            | MoveError::Option(_)
            | MoveError::Idle { .. }
            | MoveError::Slow { .. }
            | MoveError::Deadline
    )
}

/// Goes on with the data after the control connection is lost, so that bytes that still arrive are kept for the next attempt.
/// Address translators drop control connections that are silent during a long transfer.
fn outlast(control: &Control, desk: &Desk, watch: &mut impl FnMut(&Progress)) {
    while !desk.is_done() {
        if control.is_cancelled() {
            desk.cancel.cancel();
        }
        let rung = [(desk.bell.as_fd(), PollFlags::POLLIN)];
        if wake::until(rung, Instant::now() + POLL_INTERVAL).is_err() {
            desk.cancel.cancel();
        }
        if let Some(progress) = desk.take() {
            watch(&progress);
        }
    }
}

impl Conductor<'_> {
    /// Reads the control connection while data moves.
    fn attend(
        &mut self,
        control: &mut Control,
        shown: &str,
        watch: &mut impl FnMut(&Progress),
    ) -> Result<(), ClientError> {
        while !self.desk.is_done() {
            let soon = Instant::now() + POLL_INTERVAL;
            if let Some(reply) = control.next(shown, soon, Some(&self.desk.bell))? {
                self.heard(control, reply)?;
            }
            if let Some(progress) = self.desk.take() {
                watch(&progress);
                self.request(control, &progress)?;
            }
        }
        Ok(())
    }

    fn heard(&mut self, control: &mut Control, reply: Reply) -> Result<(), ClientError> {
        if let Some(size) = parse_buffer_notice(&reply) {
            self.noticed(control, size);
        } else if reply.is_preliminary() {
            // 150, 125 and other codes: events that need no action.
        } else if self.unanswered > 0 && NOT_UNDERSTOOD.contains(&reply.code) {
            self.unanswered -= 1;
            self.buffers = Buffers::Silent;
        } else if self.last.is_none() {
            if !reply.is_completion() {
                self.desk.cancel.cancel();
            }
            self.last = Some(reply);
        } else if self.unanswered > 0 {
            // An SBUF that came after the end of the transfer.
            self.unanswered -= 1;
        } else {
            return Err(ClientError::OutOfStep { reply: Answer::from(&reply) });
        }
        Ok(())
    }

    /// Handles a 126: the answer to our SBUF, or the receiver's request.
    fn noticed(&mut self, control: &mut Control, size: Bytes) {
        self.notes.notices_received += 1;
        self.notes.last_notice = Some(size);
        if self.unanswered > 0 {
            self.unanswered -= 1;
            control.forgive();
        }
        if let Buffers::Grant(grants) = &self.buffers {
            // A refusal by the kernel costs speed, not the transfer.
            let _refused = grants.set(size);
        }
    }

    fn request(&mut self, control: &mut Control, progress: &Progress) -> Result<(), ClientError> {
        let (Buffers::Request, Some(size), None) = (&self.buffers, progress.buffer_request, &self.last)
        else {
            return Ok(());
        };
        control.send(&Command::Sbuf(size))?;
        self.notes.requests_sent += 1;
        self.unanswered += 1;
        Ok(())
    }

    /// Returns the result of the transfer: that of the data and the final reply combined.
    fn conclude<T>(
        &mut self,
        control: &mut Control,
        order: &Command,
        moved: Result<T, MoveError>,
    ) -> Result<T, ClientError> {
        let timeout =
            if moved.is_ok() { control.timeout() } else { control.timeout().min(FINAL_REPLY_TIMEOUT) };
        let heard = self.last_word(control, order, Instant::now() + timeout);
        let refusal = self.last.as_ref().filter(|reply| !reply.is_completion());
        match moved {
            Err(error @ (MoveError::File { .. } | MoveError::Option(_) | MoveError::Slow { .. })) => {
                Err(error.into())
            }
            Err(_) if refusal.is_some() => Err(self.refused(order)),
            Err(error) => Err(error.into()),
            Ok(_) if refusal.is_some() => Err(self.refused(order)),
            Ok(moved) => heard.map(|()| moved),
        }
    }

    fn refused(&self, order: &Command) -> ClientError {
        match &self.last {
            Some(reply) => ClientError::refused(order, reply),
            None => ClientError::Interrupted,
        }
    }

    /// Waits for the transfer's final reply.
    fn last_word(
        &mut self,
        control: &mut Control,
        order: &Command,
        deadline: Instant,
    ) -> Result<(), ClientError> {
        let during = format!("the end of {}", order.shown());
        while self.last.is_none() {
            if let Some(reply) = control.next(&during, deadline, None)? {
                self.heard(control, reply)?;
            }
            // Endless preliminary replies do not count as the final one.
            if self.last.is_none() && Instant::now() >= deadline {
                return Err(control.silent(&during));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_that_the_control_thread_was_too_slow_for_is_still_sent() {
        let desk = Desk::new().unwrap();
        desk.tell(&Progress { buffer_request: Some(Bytes(64_000)), ..Progress::default() });
        desk.tell(&Progress { bytes: 7, ..Progress::default() });
        let progress = desk.take().unwrap();
        assert_eq!((progress.bytes, progress.buffer_request), (7, Some(Bytes(64_000))));
        assert_eq!(desk.take(), None);
    }
}
