//! Grants the receiver's requests for the sender's buffer, within memory that several senders share.
//!
//! Problem: a drsFTP receiver requests a size of the sender's buffer in the middle of a transfer. If it were granted
//! unchecked, a stranger would decide how much memory this host uses. The kernel sets at most `wmem_max`, which may be less
//! than its own autotuning would give. Without a request, autotuning enlarges the buffer of each connection, even while the
//! peer reads nothing.
//! Source: Feng 2002 (drsFTP), section 4.2; the bounds are ours.
//! Rules: a connection asks for the memory of its request, or for the most that autotuning gives; while less is granted
//! to it ([`BufferGrants::within`]), the buffer is held at the grant.
//! Properties kept: the buffer is never set below [`SMALLEST_BUFFER`] nor above the cap; a change that no receiver
//! would request ([`is_notable`]) has no effect; of the requests within [`MIN_GRANT_SPACING`] of a change, the last one
//! takes effect with the next sample of the transfer, because its receiver does not repeat it; a request beyond
//! `wmem_max` leaves the buffer to autotuning where that reaches further; the first grant of memory applies before the
//! first byte is written.

use std::fmt;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bufwise_socket::options::{self, BufferLock, OptionError};
use bufwise_units::Bytes;

use crate::host;
use crate::request::{MIN_REQUEST_SPACING, is_notable};

/// Smallest buffer: with less, a sender would need a system call for every few segments.
const SMALLEST_BUFFER: Bytes = Bytes(16 << 10);
/// Shortest time between two changes that the peer requests: half of the time between two requests, because a loss on the path, or a
/// pause of either host, may bring two requests closer together.
const MIN_GRANT_SPACING: Duration = Duration::from_micros(MIN_REQUEST_SPACING.0 / 2);

/// Unsent bytes above which a tuned connection takes no more: beyond the bytes in flight, data would only wait in
/// memory. 100 ms at 20 Mbit/s, 1 ms at 2 Gbit/s.
pub(crate) const MAX_UNSENT: Bytes = Bytes(256 << 10);

/// Grants a peer's requests for the send buffer, for one transfer after another; clones share the state.
#[derive(Clone, Debug)]
pub struct BufferGrants(Arc<Mutex<State>>);

/// Called with the memory requested for a buffer and the memory it holds; returns the memory granted.
type Ask = dyn FnMut(Bytes, Bytes) -> Bytes + Send;

struct State {
    cap: Bytes,
    wmem_max: Bytes,
    autotuned_max: Bytes,
    granted: Option<Bytes>,
    /// A request that came too soon after the last change.
    late: Option<Bytes>,
    data: Option<TcpStream>,
    changed: Option<Instant>,
    /// The buffer size with which the connection was made; `None`: autotuning.
    own: Option<Bytes>,
    ask: Option<Box<Ask>>,
    /// Memory granted for the buffer, where that is less than requested.
    room: Option<Bytes>,
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State")
            .field("granted", &self.granted)
            .field("room", &self.room)
            .finish_non_exhaustive()
    }
}

impl BufferGrants {
    /// Starts without a request; later requests are granted up to `cap`, a value for `SO_SNDBUF`.
    #[must_use]
    pub fn new(cap: Bytes) -> Self {
        Self::with_limits(cap, host::wmem_max(), host::tcp_wmem_max())
    }

    /// As [`Self::new`], on a host with these limits of `SO_SNDBUF` and of the memory that autotuning gives.
    pub(crate) fn with_limits(cap: Bytes, wmem_max: Bytes, autotuned_max: Bytes) -> Self {
        let state = State {
            cap,
            wmem_max,
            autotuned_max,
            granted: None,
            late: None,
            data: None,
            changed: None,
            own: None,
            ask: None,
            room: None,
        };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Keeps the grants within memory that `ask` manages. Called with the memory requested for the buffer and the memory that it
    /// holds, `ask` returns the memory granted. It is called repeatedly while the transfer runs; each grant replaces the
    /// previous one.
    #[must_use]
    pub fn within(self, ask: impl FnMut(Bytes, Bytes) -> Bytes + Send + 'static) -> Self {
        self.state().ask = Some(Box::new(ask));
        self
    }

    /// Takes a request, in bytes as for `SO_SNDBUF`: for the running transfer, else for the next one. Returns the size
    /// in force now, which is the former one if the request came within some milliseconds of a change.
    ///
    /// # Errors
    /// [`OptionError`] when the kernel refuses.
    pub fn set(&self, request: Bytes) -> Result<Bytes, OptionError> {
        self.state().request(request, Instant::now())
    }

    /// Returns the size that was granted last, though it may come into force within a tenth of a second only; `None` before
    /// the first request.
    #[must_use]
    pub fn granted(&self) -> Option<Bytes> {
        let state = self.state();
        state.late.or(state.granted)
    }

    /// Applies requests to `data` from now on, the last one at once.
    pub(crate) fn attach(&self, data: &TcpStream) -> Result<(), OptionError> {
        let data = data.try_clone().map_err(|source| OptionError::Set {
            option: "SO_SNDBUF",
            value: "the receiver's request".to_owned(),
            source,
        })?;
        let mut state = self.state();
        state.own = match is_locked(&data) {
            true => Some(options::send_buffer(&data)?.scaled(1, 2)),
            false => None,
        };
        state.data = Some(data);
        state.grant_late();
        state.share()?;
        if state.granted.is_some() || state.room.is_some() { state.apply() } else { Ok(()) }
    }

    /// Grants a request that came too soon, and asks for memory again.
    pub(crate) fn renew(&self) -> Result<(), OptionError> {
        let mut state = self.state();
        let (changed, before) = (state.grant_late(), state.room);
        state.share()?;
        if changed || before.is_some() || state.room.is_some() { state.apply() } else { Ok(()) }
    }

    /// Forgets the connection of a transfer that is over.
    pub(crate) fn detach(&self) {
        self.state().data = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // No thread panics while it holds the lock, and every value in it is valid at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn request(&mut self, request: Bytes, now: Instant) -> Result<Bytes, OptionError> {
        let size = request.min(self.cap).max(SMALLEST_BUFFER);
        let soon = self.changed.is_some_and(|last| now.duration_since(last) < MIN_GRANT_SPACING);
        // A newer request replaces one that waits.
        self.late = None;
        if let Some(before) = self.granted {
            let notable = is_notable(before, size);
            if notable && soon {
                self.late = Some(size);
            }
            if soon || !notable {
                return Ok(before);
            }
        }
        self.granted = Some(size);
        self.changed = Some(now);
        self.share()?;
        self.apply()?;
        Ok(size)
    }

    /// Grants the request that came too soon; returns whether there is one.
    fn grant_late(&mut self) -> bool {
        let late = self.late.take();
        self.granted = late.or(self.granted);
        late.is_some()
    }

    /// Returns the size that the buffer should have; `None`: autotuning, also where it reaches further than a request
    /// beyond `wmem_max`.
    fn wanted(&self) -> Option<Bytes> {
        let autotunes = |size: &Bytes| *size > self.wmem_max && self.autotuned_max > self.wmem_max.times(2);
        self.granted.map_or(self.own, |size| Some(size).filter(|size| !autotunes(size)))
    }

    /// Asks for the connection's memory, if that is shared.
    fn share(&mut self) -> Result<(), OptionError> {
        // The kernel doubles the sizes that it is given.
        let wanted = self.wanted().map_or(self.autotuned_max, |size| size.times(2));
        let (Some(ask), Some(data)) = (&mut self.ask, &self.data) else { return Ok(()) };
        let held = Bytes(options::memory(data)?.wmem_queued.into());
        self.room = Some(ask(wanted, held)).filter(|granted| *granted < wanted);
        Ok(())
    }

    fn apply(&self) -> Result<(), OptionError> {
        let Some(data) = &self.data else { return Ok(()) };
        if self.granted.is_some() {
            // The size is meant for data in flight; unsent data need only enough room to keep the flight full.
            options::set_notsent_low_water(data, MAX_UNSENT)?;
        }
        match (self.wanted(), self.room.map(|room| room.scaled(1, 2))) {
            (Some(size), half) => options::set_send_buffer(data, half.unwrap_or(size).min(size)),
            (None, None) => lock(data, false),
            (None, Some(half)) => {
                let (now, settable) = (options::send_buffer(data)?.scaled(1, 2), half.min(self.wmem_max));
                if !is_locked(data) && now.times(2) <= half {
                    // The buffer has room to grow until the next call of `ask`.
                    Ok(())
                } else if now > half || now < settable {
                    options::set_send_buffer(data, settable)
                } else {
                    lock(data, true)
                }
            }
        }
    }
}

/// Whether the send buffer is locked against autotuning. Before Linux 5.15 the lock can be neither read nor changed.
fn is_locked(data: &TcpStream) -> bool {
    options::buffer_lock(data).is_ok_and(|lock| lock.send)
}

fn lock(data: &TcpStream, send: bool) -> Result<(), OptionError> {
    let Ok(lock) = options::buffer_lock(data) else { return Ok(()) };
    options::set_buffer_lock(data, BufferLock { send, ..lock })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_that_comes_too_soon_or_is_too_small_is_not_made_at_once() {
        let grants = BufferGrants::with_limits(Bytes(150_000), Bytes(212_992), Bytes(4 << 20));
        let (mut state, start, soon) = (grants.state(), Instant::now(), MIN_GRANT_SPACING / 2);
        let mut at = |time: Duration, request| state.request(Bytes(request), start + time).unwrap();
        assert_eq!(at(Duration::ZERO, u64::MAX), Bytes(150_000), "up to the cap");
        assert_eq!(at(soon, 0), Bytes(150_000), "too soon after the last");
        assert_eq!(at(MIN_GRANT_SPACING, 140_000), Bytes(150_000), "less than a quarter");
        assert_eq!(at(MIN_GRANT_SPACING, 0), SMALLEST_BUFFER);
        assert_eq!(at(MIN_GRANT_SPACING + soon, 100_000), SMALLEST_BUFFER, "too soon after that one");
        assert_eq!(at(MIN_GRANT_SPACING * 2, 100_000), Bytes(100_000));
    }

    #[test]
    fn the_last_of_the_requests_that_come_too_soon_is_granted_with_the_next_sample() {
        let grants = BufferGrants::with_limits(Bytes(1 << 20), Bytes(212_992), Bytes(4 << 20));
        let (start, spacing) = (Instant::now(), MIN_GRANT_SPACING);
        let at = |time: Duration, request| grants.state().request(Bytes(request), start + time).unwrap().0;
        let in_force_later = || {
            grants.renew().unwrap();
            grants.state().granted
        };
        // A loss on the control connection brings three requests together.
        let together = [65_536, 262_144, 1 << 20].map(|request| at(Duration::ZERO, request));
        assert_eq!(together, [65_536; 3], "in force at once");
        assert_eq!(grants.granted(), Some(Bytes(1 << 20)));
        assert_eq!(in_force_later(), Some(Bytes(1 << 20)));
        // A request that is taken back is forgotten.
        let together = [100_000, 400_000, 100_000].map(|request| at(spacing, request));
        assert_eq!((together, in_force_later()), ([100_000; 3], Some(Bytes(100_000))));
        // A request that comes in time replaces the one that waits.
        assert_eq!([at(spacing, 400_000), at(spacing * 2, 300_000)], [100_000, 300_000]);
        assert_eq!(in_force_later(), Some(Bytes(300_000)));
    }
}
