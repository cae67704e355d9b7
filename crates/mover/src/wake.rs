//! Waiting for a socket, a moment, or a call from another thread, whichever comes first.
//!
//! Source: poll(2), eventfd(2). Property kept: no thread of this crate waits by spinning, and each that
//! waits here can be woken at once.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};

/// Attempts to ring a bell if the system refuses.
const RINGS: u32 = 3;

/// Wakes a thread that waits in [`until`].
#[derive(Debug)]
pub struct Bell(EventFd);

impl Bell {
    /// Makes a bell that has not been rung.
    ///
    /// # Errors
    /// The system's error, when no descriptor is free.
    pub fn new() -> io::Result<Self> {
        let flags = EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC;
        Ok(Self(EventFd::from_value_and_flags(0, flags)?))
    }

    /// Wakes all threads that wait now or later, until the bell is silenced.
    pub fn ring(&self) {
        for _ in 0..RINGS {
            match self.0.write(1) {
                // A full counter is readable already.
                Ok(_) | Err(Errno::EAGAIN) => return,
                // eventfd(2) names no other error, but a lost ring would leave a thread asleep.
                Err(_) => {}
            }
        }
    }

    /// Undoes all ringing so far.
    pub fn silence(&self) {
        // Fails only if the bell was not rung.
        let _was_silent = self.0.read();
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Waits until one of `watched` is ready or `deadline` has come; returns which are ready.
///
/// An error or hang-up counts as ready: the next read or write reports it. May end up to 1 ms after the deadline, never
/// before.
///
/// # Errors
/// The system's error.
pub fn until<const N: usize>(
    watched: [(BorrowedFd<'_>, PollFlags); N],
    deadline: Instant,
) -> io::Result<[bool; N]> {
    let mut polled = watched.map(|(fd, events)| PollFd::new(fd, events));
    loop {
        match poll(&mut polled, timeout(deadline.saturating_duration_since(Instant::now()))) {
            Ok(_) => return Ok(polled.map(|one| one.any().unwrap_or(true))),
            Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno.into()),
        }
    }
}

/// Returns the wait in whole milliseconds, rounded up so that it does not end early, at most an hour.
fn timeout(wait: Duration) -> PollTimeout {
    let millis = wait.as_micros().div_ceil(1_000).min(3_600_000);
    PollTimeout::try_from(u32::try_from(millis).unwrap_or(3_600_000)).unwrap_or(PollTimeout::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_round_up_and_end() {
        assert_eq!(timeout(Duration::ZERO), PollTimeout::ZERO);
        assert_eq!(timeout(Duration::from_nanos(1)).as_millis(), Some(0));
        assert_eq!(timeout(Duration::from_micros(1)).as_millis(), Some(1));
        assert_eq!(timeout(Duration::from_micros(1_001)).as_millis(), Some(2));
        assert_eq!(timeout(Duration::MAX).as_millis(), Some(3_600_000));
    }

    #[test]
    fn a_bell_wakes_and_stays_rung_until_silenced() {
        let bell = Bell::new().unwrap();
        let far = || Instant::now() + Duration::from_secs(30);
        bell.ring();
        bell.ring();
        assert_eq!(until([(bell.as_fd(), PollFlags::POLLIN)], far()).unwrap(), [true]);
        bell.silence();
        assert_eq!(until([(bell.as_fd(), PollFlags::POLLIN)], Instant::now()).unwrap(), [false]);
    }
}
