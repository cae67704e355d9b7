//! A receive buffer within memory that several connections share.
//!
//! Problem: a policy's decision for one connection may exceed the memory left for all, and the kernel's own autotuning
//! respects no common bound.
//! Rules: a policy's window is bounded by the memory granted for its buffer. A connection left to the kernel requests
//! the largest buffer that autotuning may give; while less is granted, the buffer is held at the grant.
//! Properties kept: as long as there is memory for it, a connection is not changed; the first grant applies before the
//! first byte is read; a buffer never grows beyond its grant.

use std::fmt;
use std::net::TcpStream;

use bufwise_socket::options::{self, OptionError};
use bufwise_units::Bytes;

use crate::host;
use crate::window;

/// Part of a buffer's memory that may be offered as window: the kernel's assumption for a new connection.
const PAYLOAD: (u64, u64) = (1, 2);

/// Called with the memory requested for a buffer and the buffer's memory; returns the memory granted.
type Ask = dyn FnMut(Bytes, Bytes) -> Bytes + Send;

/// One connection's share.
pub struct Share {
    ask: Box<Ask>,
    /// The memory that the connection requests while it is left to the kernel.
    untouched: Bytes,
    /// The window that lifts the bound again.
    whole: Bytes,
    bounded: bool,
}

/// The bounds of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bound {
    /// The window; `None`, and [`Bytes::MAX`]: the kernel's own.
    pub(crate) window: Option<Bytes>,
    /// Memory of its buffer.
    pub(crate) room: Bytes,
}

impl Share {
    /// The memory that every connection needs and may have: the kernel's default at its start.
    pub const LEAST: Bytes = Bytes(128 << 10);

    /// Makes a share of the memory that `ask` manages: called with the memory requested for the buffer and the buffer's
    /// memory, `ask` returns the memory granted, at least [`Share::LEAST`] if the request is not smaller. It is called every
    /// few milliseconds; each grant replaces the one before.
    #[must_use]
    pub fn new(ask: impl FnMut(Bytes, Bytes) -> Bytes + Send + 'static) -> Self {
        Self { ask: Box::new(ask), untouched: Bytes::ZERO, whole: Bytes::MAX, bounded: false }
    }

    /// Takes a connection over.
    pub(crate) fn begin(&mut self, stream: &TcpStream) -> Result<(), OptionError> {
        let buffer = options::receive_buffer(stream)?;
        // Before Linux 5.15 a lock does not show.
        (self.untouched, self.whole) = match options::buffer_lock(stream).is_ok_and(|lock| lock.receive) {
            // The size was set, and the kernel shows it doubled.
            true => (buffer, buffer.scaled(1, 2)),
            false => (buffer.max(host::tcp_rmem_max()), Bytes::MAX),
        };
        Ok(())
    }

    /// Bounds the window that a policy wants of a connection with this `buffer`.
    pub(crate) fn bound(&mut self, wanted: Option<Bytes>, buffer: Bytes) -> Bound {
        if let Some(window) = wanted.filter(|window| *window < Bytes::MAX) {
            // Request the present buffer, too: it is kept as long as no other connection needs the memory.
            let enough = window.times(window::OVERHEAD).max(buffer).max(Self::LEAST);
            let room = (self.ask)(enough, buffer);
            return Bound { window: Some(window.min(payload(room))), room };
        }
        let room = (self.ask)(self.untouched, buffer);
        if room < self.untouched {
            self.bounded = true;
            return Bound { window: Some(payload(room).min(self.whole)), room };
        }
        let window = if self.bounded { Some(self.whole) } else { wanted };
        Bound { window, room }
    }
}

fn payload(room: Bytes) -> Bytes {
    room.scaled(PAYLOAD.0, PAYLOAD.1)
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Share").field("untouched", &self.untouched).field("bounded", &self.bounded).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;

    use super::*;
    use crate::Sockets;

    const BUFFER: Bytes = Bytes(131_072);

    /// A share of memory of which so much is left, of a connection that was prepared as `sockets` says.
    fn share(sockets: &Sockets, left: &Arc<AtomicU64>) -> Share {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = sockets.connect(listener.local_addr().unwrap(), Duration::from_secs(20)).unwrap();
        let left = Arc::clone(left);
        let mut share = Share::new(move |wanted, _| wanted.min(Bytes(left.load(Ordering::Relaxed))));
        share.begin(&stream).unwrap();
        share
    }

    fn window(share: &mut Share, wanted: Option<u64>) -> Option<u64> {
        share.bound(wanted.map(Bytes), BUFFER).window.map(|window| window.0)
    }

    #[test]
    fn a_connection_is_left_alone_while_there_is_memory_and_given_back_when_there_is_again() {
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let mut share = share(&Sockets::default(), &left);
        for own in [None, Some(u64::MAX), Some(700_000)] {
            assert_eq!(window(&mut share, own), own);
        }
        left.store(400_000, Ordering::Relaxed);
        assert_eq!(share.bound(None, BUFFER), Bound { window: Some(Bytes(200_000)), room: Bytes(400_000) });
        assert_eq!(window(&mut share, Some(70_000)), Some(70_000));
        assert_eq!(window(&mut share, Some(700_000)), Some(200_000));
        left.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(window(&mut share, None), Some(u64::MAX));
    }

    #[test]
    fn a_buffer_of_a_size_that_was_set_gets_a_window_of_that_size_back() {
        let left = Arc::new(AtomicU64::new(u64::MAX));
        let mut share = share(&Sockets::fixed(Bytes(100_000)), &left);
        assert_eq!(window(&mut share, None), None);
        left.store(150_000, Ordering::Relaxed);
        assert_eq!(window(&mut share, None), Some(75_000));
        left.store(u64::MAX, Ordering::Relaxed);
        assert_eq!(share.bound(None, BUFFER), Bound { window: Some(Bytes(100_000)), room: Bytes(200_000) });
    }
}
