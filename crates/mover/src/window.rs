//! Holds a connection's receive window at a chosen size.
//!
//! Problem: `TCP_WINDOW_CLAMP` bounds the window, but the kernel overwrites it: when receive autotuning
//! enlarges the buffer (`tcp_rcvbuf_grow()`), and when the first full segment changes its idea of how much
//! payload a buffer holds (`tcp_measure_rcv_mss()`), which happens even with autotuning off.
//! Rule: the buffer is set to a size that holds the window at any plausible overhead, after the handshake so that the
//! window scale stays; that ends autotuning. Where such a size is beyond the host's `rmem_max` and the privilege to
//! exceed it is missing, autotuning stays on (a smaller buffer could no longer grow). In both cases the clamp is
//! checked every few milliseconds and set again when it was overwritten. A buffer shrinks only after the sender has
//! used up the part of the offered window beyond the new one, for which there would be no room. Before Linux 6.2 the kernel does not
//! report the offered window; the largest that it may have offered is assumed instead.
//! Before Linux 5.15 a locked buffer cannot be returned to autotuning. There only a program that may exceed the host's maximum, or
//! has limited room, sets the buffer; once there is no limit, the buffer becomes as large as autotuning would make it at most.
//! Properties kept: the clamp equals the requested window within a few milliseconds after each change by the kernel;
//! "no limit" gives the buffer back to autotuning; a buffer set here never grows beyond its room.

use std::net::TcpStream;

use bufwise_socket::options::{self, BufferLock, OptionError};
use bufwise_units::Bytes;

use crate::host;

/// Buffer over window: a segment of 1,448 bytes may occupy a page and its bookkeeping.
pub(crate) const OVERHEAD: u64 = 4;
/// A buffer below this multiple of the window is replaced.
const AT_LEAST: u64 = 3;

/// The window at which one connection is held.
#[derive(Debug)]
pub(crate) struct Window {
    /// Whether to try buffers beyond the host's maximum.
    force: bool,
    /// Whether to try to read and to undo locks.
    undo_locks: bool,
    /// The host's maximum, `net.core.rmem_max`.
    ceiling: Bytes,
    asked: Option<Bytes>,
    /// The clamp as the kernel reported it after it was set.
    applied: Option<Bytes>,
    /// This program has locked the buffer.
    locked: bool,
    /// Largest memory of the buffer; [`Bytes::MAX`]: no limit.
    room: Bytes,
    /// The buffer as the kernel reported it after it was set.
    buffer: Bytes,
    /// The buffer is to shrink, once it can.
    waits: bool,
    /// Whether to read the offered window, where the kernel tells it.
    reads_offered: bool,
    /// The count of received bytes at which the sender has used up the largest window that it may have been offered. Needed while the
    /// buffer waits to shrink, on kernels that do not report the window.
    edge: Bytes,
}

impl Window {
    /// Starts without a window, within this host's limits.
    pub(crate) fn new() -> Self {
        Self {
            force: true,
            undo_locks: true,
            ceiling: host::rmem_max(),
            asked: None,
            applied: None,
            locked: false,
            room: Bytes::MAX,
            buffer: Bytes::ZERO,
            waits: false,
            reads_offered: true,
            edge: Bytes::ZERO,
        }
    }

    /// Keeps the buffer within `room` bytes of memory, from the next [`Window::hold`] on.
    pub(crate) fn keep_within(&mut self, room: Bytes) {
        self.room = room;
    }

    /// Holds the window at `window` from now on; [`Bytes::MAX`]: no limit.
    pub(crate) fn hold(&mut self, stream: &TcpStream, window: Bytes) -> Result<(), OptionError> {
        let fits = !self.locked || self.buffer <= self.room;
        if self.asked == Some(window) && fits && !self.waits {
            return self.keep(stream);
        }
        let first = self.asked.is_none();
        self.asked = Some(window);
        if window == Bytes::MAX {
            // A connection that never had a limit needs none lifted.
            return if first { Ok(()) } else { self.release(stream) };
        }
        self.make_room(stream, window)?;
        self.apply(stream, window)
    }

    /// Sets the receive buffer, as for `SO_RCVBUF`, and leaves the window to the kernel, as drsFTP does.
    pub(crate) fn publish(&mut self, stream: &TcpStream, buffer: Bytes) -> Result<(), OptionError> {
        if self.asked == Some(buffer) {
            return Ok(());
        }
        self.asked = Some(buffer);
        options::set_receive_buffer(stream, buffer)?;
        // The clamp still belongs to the buffer with which the connection began.
        options::set_window_clamp(stream, Bytes::MAX)
    }

    /// Sets the clamp again if the kernel has overwritten it.
    fn keep(&mut self, stream: &TcpStream) -> Result<(), OptionError> {
        match (self.asked, self.applied) {
            (Some(asked), Some(applied)) if options::window_clamp(stream)? != applied => {
                self.apply(stream, asked)
            }
            _ => Ok(()),
        }
    }

    fn apply(&mut self, stream: &TcpStream, window: Bytes) -> Result<(), OptionError> {
        options::set_window_clamp(stream, window.max(Bytes(1)))?;
        self.applied = Some(options::window_clamp(stream)?);
        Ok(())
    }

    /// Makes the buffer large enough for `window`, as far as there is room, or leaves it to autotuning.
    fn make_room(&mut self, stream: &TcpStream, window: Bytes) -> Result<(), OptionError> {
        let there = options::receive_buffer(stream)?;
        let enough = window.times(AT_LEAST).min(self.room);
        if self.locked && there >= enough && there <= self.room {
            return Ok(());
        }
        self.waits = there > self.room && self.offers_more(stream, window)?;
        if self.waits {
            return Ok(());
        }
        self.edge = Bytes::ZERO;
        // The kernel doubles the value. Never below the present buffer: autotuning grew it because it was needed.
        let size = window.scaled(OVERHEAD, 2).max(there.scaled(1, 2)).min(self.room.scaled(1, 2));
        let forced = self.force && options::force_receive_buffer(stream, size).is_ok();
        let can_set = || size <= self.ceiling && (self.room < Bytes::MAX || self.lock(stream).is_some());
        if forced || can_set() {
            if !forced {
                options::set_receive_buffer(stream, size)?;
            }
            (self.locked, self.waits) = (true, false);
            self.buffer = options::receive_buffer(stream)?;
            return Ok(());
        }
        self.unlock(stream)
    }

    /// Whether the sender may have been offered more than this window.
    fn offers_more(&mut self, stream: &TcpStream, window: Bytes) -> Result<bool, OptionError> {
        let info = options::tcp_info(stream)?;
        let offered = if self.reads_offered && info.rcv_wnd > 0 {
            Bytes(info.rcv_wnd.into())
        } else {
            let received = Bytes(info.bytes_received);
            let most = Bytes(info.rcv_ssthresh.into()).min(self.applied.unwrap_or(Bytes::MAX));
            self.edge = self.edge.max(received + most);
            self.edge - received
        };
        // On the wire a window is a multiple of this, rounded up.
        let unit = Bytes(1 << info.rcv_wscale());
        Ok(offered >= window + unit)
    }

    fn release(&mut self, stream: &TcpStream) -> Result<(), OptionError> {
        self.waits = false;
        if self.applied.take().is_some() {
            options::set_window_clamp(stream, Bytes::MAX)?;
        }
        self.unlock(stream)
    }

    fn unlock(&mut self, stream: &TcpStream) -> Result<(), OptionError> {
        if !std::mem::take(&mut self.locked) {
            return Ok(());
        }
        if let Some(lock) = self.lock(stream) {
            return options::set_buffer_lock(stream, BufferLock { receive: false, ..lock });
        }
        let most = options::receive_buffer(stream)?.max(host::tcp_rmem_max()).min(self.room).scaled(1, 2);
        if self.force && options::force_receive_buffer(stream, most).is_ok() {
            return Ok(());
        }
        options::set_receive_buffer(stream, most.min(self.ceiling))
    }

    /// Returns which buffers are locked; `None` before Linux 5.15.
    fn lock(&self, stream: &TcpStream) -> Option<BufferLock> {
        options::buffer_lock(stream).ok().filter(|_| self.undo_locks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn stream() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn receive_lock(stream: &TcpStream) -> bool {
        options::buffer_lock(stream).unwrap().receive
    }

    #[test]
    fn what_the_kernel_overwrites_is_set_again() {
        let (stream, _peer) = stream();
        let mut window = Window::new();
        window.hold(&stream, Bytes(200_000)).unwrap();
        assert_eq!(options::window_clamp(&stream).unwrap(), Bytes(200_000));
        assert!(receive_lock(&stream));
        assert!(options::receive_buffer(&stream).unwrap() >= Bytes(600_000));
        options::set_window_clamp(&stream, Bytes(3_000_000)).unwrap();
        window.hold(&stream, Bytes(200_000)).unwrap();
        assert_eq!(options::window_clamp(&stream).unwrap(), Bytes(200_000));
    }

    #[test]
    fn lifting_the_limit_gives_the_buffer_back() {
        let (stream, _peer) = stream();
        let mut window = Window::new();
        window.hold(&stream, Bytes(200_000)).unwrap();
        window.hold(&stream, Bytes::MAX).unwrap();
        assert!(!receive_lock(&stream));
        assert!(options::window_clamp(&stream).unwrap() > Bytes(1 << 30));
    }

    #[test]
    fn no_limit_from_the_start_touches_nothing() {
        let (stream, _peer) = stream();
        let before = options::window_clamp(&stream).unwrap();
        Window::new().hold(&stream, Bytes::MAX).unwrap();
        assert_eq!(options::window_clamp(&stream).unwrap(), before);
        assert!(!receive_lock(&stream));
    }

    #[test]
    fn beyond_the_hosts_maximum_without_privilege_autotuning_stays_on() {
        let (stream, _peer) = stream();
        let mut window = Window { force: false, ceiling: Bytes(300_000), ..Window::new() };
        let before = options::receive_buffer(&stream).unwrap();
        window.hold(&stream, Bytes(200_000)).unwrap();
        assert!(!receive_lock(&stream));
        assert_eq!(options::receive_buffer(&stream).unwrap(), before);
        assert_eq!(options::window_clamp(&stream).unwrap(), Bytes(200_000));
        window.hold(&stream, Bytes(150_000)).unwrap();
        assert!(receive_lock(&stream));
        window.hold(&stream, Bytes(250_000)).unwrap();
        assert!(!receive_lock(&stream), "the old lock would keep the buffer too small");
    }

    #[test]
    fn a_lock_that_stays_is_avoided_or_leaves_as_much_room_as_can_be() {
        let (stream, _peer) = stream();
        let mut window = Window { force: false, undo_locks: false, ceiling: Bytes(300_000), ..Window::new() };
        window.hold(&stream, Bytes(100_000)).unwrap();
        assert!(!receive_lock(&stream), "the buffer could not grow beyond the host's maximum later");
        assert_eq!(options::window_clamp(&stream).unwrap(), Bytes(100_000));
        window.keep_within(Bytes(150_000));
        window.hold(&stream, Bytes(50_000)).unwrap();
        assert!(receive_lock(&stream));
        let before = options::receive_buffer(&stream).unwrap();
        assert!(before <= Bytes(150_000), "{before}");
        window.keep_within(Bytes::MAX);
        window.hold(&stream, Bytes::MAX).unwrap();
        assert!(options::receive_buffer(&stream).unwrap() > before);
    }

    #[test]
    fn a_buffer_becomes_smaller_once_what_was_offered_is_used_up() {
        use std::io::{Read, Write};
        for reads_offered in [true, false] {
            let (mut stream, mut peer) = stream();
            let mut window = Window { reads_offered, ..Window::new() };
            let (large, small, room) = (Bytes(150_000), Bytes(50_000), Bytes(120_000));
            window.hold(&stream, large).unwrap();
            let (before, mut chunk) = (options::receive_buffer(&stream).unwrap(), vec![0; 40_000]);
            let mut pass = |stream: &mut TcpStream| {
                peer.write_all(&chunk).unwrap();
                stream.read_exact(&mut chunk).unwrap();
            };
            let offered = |stream: &TcpStream| u64::from(options::tcp_info(stream).unwrap().rcv_wnd);
            assert!((0..1_000).any(|_| {
                pass(&mut stream);
                offered(&stream) >= 100_000
            }));
            window.keep_within(room);
            window.hold(&stream, small).unwrap();
            assert_eq!(options::receive_buffer(&stream).unwrap(), before, "what was offered must find room");
            for _ in 0..100 {
                pass(&mut stream);
                window.hold(&stream, small).unwrap();
            }
            assert!(options::receive_buffer(&stream).unwrap() <= room);
            window.hold(&stream, large).unwrap();
            assert!(options::receive_buffer(&stream).unwrap() <= room, "it does not grow beyond its room");
        }
    }

    #[test]
    fn a_growing_window_gets_a_larger_buffer() {
        let (stream, _peer) = stream();
        let mut window = Window::new();
        for size in [Bytes(10_000), Bytes(100_000), Bytes(1_000_000)] {
            window.hold(&stream, size).unwrap();
            assert_eq!(options::window_clamp(&stream).unwrap(), size);
            assert!(options::receive_buffer(&stream).unwrap() >= size.times(3));
        }
    }
}
