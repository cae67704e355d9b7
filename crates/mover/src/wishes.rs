//! The receiver's wishes for the sender's buffer, as the sender grants them.
//!
//! Problem: a drsFTP receiver says (`SBUF`, reply 126) how large the sender's buffer should be, in the middle of
//! a transfer. That is a stranger's number which would become this host's memory; and the kernel takes no
//! more than `wmem_max`, which may be less than its own autotuning would give.
//! Source: 001, section 4.2; the bounds are ours.
//! Properties kept: the buffer is never set below [`SMALLEST`] nor above the cap; changes that no receiver would tell
//! ([`is_notable`]), and changes sooner than [`SPACING`] after the last, change nothing; a wish beyond `wmem_max` leaves the buffer to
//! autotuning where that reaches further.

use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bufwise_socket::options::{self, BufferLock, OptionError};
use bufwise_units::Bytes;

use crate::host;
use crate::wish::{LEAST_SPACING, is_notable};

/// Least buffer: a sender below it would need a system call for every few segments.
const SMALLEST: Bytes = Bytes(16 << 10);
/// Shortest time between two changes: half of that between two words of a receiver, as the path may bring two closer
/// together.
const SPACING: Duration = Duration::from_micros(LEAST_SPACING.0 / 2);

/// Unsent bytes above which a tuned connection takes no more: what is in flight is the path's, the rest would
/// only wait in memory. 100 ms at 20 Mbit/s, 1 ms at 2 Gbit/s.
pub(crate) const UNSENT_AT_MOST: Bytes = Bytes(256 << 10);

/// What a peer may wish of the send buffer of one transfer after the other; clones are the same.
#[derive(Clone, Debug)]
pub struct Wishes(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    cap: Bytes,
    wmem_max: Bytes,
    autotuned_max: Bytes,
    wished: Option<Bytes>,
    data: Option<TcpStream>,
    changed: Option<Instant>,
}

impl Wishes {
    /// No wish yet; later ones are granted up to `cap`, a value for `SO_SNDBUF`.
    #[must_use]
    pub fn new(cap: Bytes) -> Self {
        Self::with_limits(cap, host::wmem_max(), host::tcp_wmem_max())
    }

    /// The same on a host with these limits: of `SO_SNDBUF`, and of the memory that autotuning gives.
    pub(crate) fn with_limits(cap: Bytes, wmem_max: Bytes, autotuned_max: Bytes) -> Self {
        let state = State { cap, wmem_max, autotuned_max, wished: None, data: None, changed: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Takes a wish, in bytes as for `SO_SNDBUF`: for the transfer that runs, else for the next one. Returns the size
    /// that counts now.
    ///
    /// # Errors
    /// [`OptionError`] when the kernel refuses.
    pub fn set(&self, wish: Bytes) -> Result<Bytes, OptionError> {
        self.state().wish(wish, Instant::now())
    }

    /// The size that was granted last; `None` before the first wish.
    #[must_use]
    pub fn granted(&self) -> Option<Bytes> {
        self.state().wished
    }

    /// From now on the wishes count for `data`, the last one at once.
    pub(crate) fn attach(&self, data: &TcpStream) -> Result<(), OptionError> {
        let data = data.try_clone().map_err(|source| OptionError::Set {
            option: "SO_SNDBUF",
            value: "the receiver's wish".to_owned(),
            source,
        })?;
        let mut state = self.state();
        state.data = Some(data);
        match state.wished {
            Some(size) => state.apply(size),
            None => Ok(()),
        }
    }

    /// The transfer is over.
    pub(crate) fn detach(&self) {
        self.state().data = None;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Nothing panics while it holds the lock, and every value in it is valid at any time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn wish(&mut self, wish: Bytes, now: Instant) -> Result<Bytes, OptionError> {
        let size = wish.min(self.cap).max(SMALLEST);
        let soon = self.changed.is_some_and(|last| now.duration_since(last) < SPACING);
        if let Some(before) = self.wished
            && (soon || !is_notable(before, size))
        {
            return Ok(before);
        }
        self.apply(size)?;
        self.wished = Some(size);
        self.changed = Some(now);
        Ok(size)
    }

    fn apply(&self, size: Bytes) -> Result<(), OptionError> {
        let Some(data) = &self.data else { return Ok(()) };
        // The size is meant for what is in flight; what waits before that needs no more than keeps the flight full.
        options::set_notsent_low_water(data, UNSENT_AT_MOST)?;
        // The kernel doubles what it is given.
        if size > self.wmem_max && self.autotuned_max > self.wmem_max.times(2) {
            let lock = options::buffer_lock(data)?;
            return options::set_buffer_lock(data, BufferLock { send: false, ..lock });
        }
        options::set_send_buffer(data, size)
    }
}
