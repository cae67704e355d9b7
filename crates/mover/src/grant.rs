//! The receiver's requests for the sender's buffer, as the sender grants them.
//!
//! Problem: a drsFTP receiver says how large the sender's buffer should be, in the middle of a transfer. A stranger's
//! number would become this host's memory; and the kernel takes no more than `wmem_max`, which may be less than its own
//! autotuning would give.
//! Source: Feng 2002 (drsFTP), section 4.2; the bounds are ours.
//! Properties kept: the buffer is never set below [`SMALLEST_BUFFER`] nor above the cap; changes that no receiver would tell
//! ([`is_notable`]), and changes sooner than [`MIN_GRANT_SPACING`] after the last, change nothing; a request beyond
//! `wmem_max` leaves the buffer to autotuning where that reaches further.

use std::net::TcpStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bufwise_socket::options::{self, BufferLock, OptionError};
use bufwise_units::Bytes;

use crate::host;
use crate::request::{MIN_REQUEST_SPACING, is_notable};

/// Least buffer: a sender below it would need a system call for every few segments.
const SMALLEST_BUFFER: Bytes = Bytes(16 << 10);
/// Shortest time between two changes: half of that between two words of a receiver, as the path may bring two closer
/// together.
const MIN_GRANT_SPACING: Duration = Duration::from_micros(MIN_REQUEST_SPACING.0 / 2);

/// Unsent bytes above which a tuned connection takes no more: what is in flight is the path's, the rest would
/// only wait in memory. 100 ms at 20 Mbit/s, 1 ms at 2 Gbit/s.
pub(crate) const MAX_UNSENT: Bytes = Bytes(256 << 10);

/// The grants of a peer's requests for the send buffer, of one transfer after the other; clones are the same.
#[derive(Clone, Debug)]
pub struct BufferGrants(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    cap: Bytes,
    wmem_max: Bytes,
    autotuned_max: Bytes,
    granted: Option<Bytes>,
    data: Option<TcpStream>,
    changed: Option<Instant>,
}

impl BufferGrants {
    /// No request yet; later ones are granted up to `cap`, a value for `SO_SNDBUF`.
    #[must_use]
    pub fn new(cap: Bytes) -> Self {
        Self::with_limits(cap, host::wmem_max(), host::tcp_wmem_max())
    }

    /// The same on a host with these limits: of `SO_SNDBUF`, and of the memory that autotuning gives.
    pub(crate) fn with_limits(cap: Bytes, wmem_max: Bytes, autotuned_max: Bytes) -> Self {
        let state = State { cap, wmem_max, autotuned_max, granted: None, data: None, changed: None };
        Self(Arc::new(Mutex::new(state)))
    }

    /// Takes a request, in bytes as for `SO_SNDBUF`: for the transfer that runs, else for the next one. Returns the size
    /// that counts now.
    ///
    /// # Errors
    /// [`OptionError`] when the kernel refuses.
    pub fn set(&self, request: Bytes) -> Result<Bytes, OptionError> {
        self.state().request(request, Instant::now())
    }

    /// The size that was granted last; `None` before the first request.
    #[must_use]
    pub fn granted(&self) -> Option<Bytes> {
        self.state().granted
    }

    /// From now on the requests count for `data`, the last one at once.
    pub(crate) fn attach(&self, data: &TcpStream) -> Result<(), OptionError> {
        let data = data.try_clone().map_err(|source| OptionError::Set {
            option: "SO_SNDBUF",
            value: "the receiver's request".to_owned(),
            source,
        })?;
        let mut state = self.state();
        state.data = Some(data);
        match state.granted {
            Some(size) => state.apply(size),
            None => Ok(()),
        }
    }

    /// The transfer is over.
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
        if let Some(before) = self.granted
            && (soon || !is_notable(before, size))
        {
            return Ok(before);
        }
        self.apply(size)?;
        self.granted = Some(size);
        self.changed = Some(now);
        Ok(size)
    }

    fn apply(&self, size: Bytes) -> Result<(), OptionError> {
        let Some(data) = &self.data else { return Ok(()) };
        // The size is meant for what is in flight; what waits before that needs no more than keeps the flight full.
        options::set_notsent_low_water(data, MAX_UNSENT)?;
        // The kernel doubles what it is given.
        if size > self.wmem_max && self.autotuned_max > self.wmem_max.times(2) {
            let lock = options::buffer_lock(data)?;
            return options::set_buffer_lock(data, BufferLock { send: false, ..lock });
        }
        options::set_send_buffer(data, size)
    }
}
