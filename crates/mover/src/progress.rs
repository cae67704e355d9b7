//! Samples of a transfer while it runs, and the report at its end.
//!
//! Problem: a slow transfer has a cause. At the sender the kernel measures it: it counts the time for which each limit
//! held the connection back ([`bufwise_socket::limit`]). A receiver has no such counters.
//! Rules for a receiver: the window is the limit if the bytes of a round trip come near to the offered window; the application
//! is the limit if it spends more than half of the time on the file. Otherwise the cause is the sender or the path, which a
//! receiver cannot distinguish.
//! Properties kept: a sample costs two system calls; peaks are those of the samples, which are at most [`INTERVAL`]
//! apart.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use bufwise_policy::sobas::State;
use bufwise_socket::info::TcpInfo;
use bufwise_socket::limit::{Limit, SocketSample, limited_by};
use bufwise_socket::options::{self, OptionError};
use bufwise_units::{Bytes, Micros, Rate};
use socket2::SockRef;

use crate::hash::Digest;

/// Time between two reports of progress to the caller.
pub(crate) const INTERVAL: Duration = Duration::from_millis(100);

/// The window is the limit if this part of it arrives in a round trip; acknowledgements and scheduling take the rest.
const USED_UP: (u64, u64) = (3, 4);

/// One sample of a running transfer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Bytes moved: received, or handed to the kernel.
    pub bytes: u64,
    /// Bytes moved per second since the sample before.
    pub rate: Rate,
    /// Round-trip time: the sender's smoothed one, or the receiver's estimate; `None`: not known.
    pub rtt: Option<Micros>,
    /// The window that the receiver offers, in bytes of payload.
    pub window: Bytes,
    /// Limit of the buffer on this side, in bytes of memory: the receive buffer of a receiver, the send buffer of a
    /// sender.
    pub buffer: Bytes,
    /// Fill of that buffer now, in bytes of memory.
    pub held: Bytes,
    /// The limit that held the transfer back since the last sample; `None`: not known, at a receiver the sender or the path.
    pub limited_by: Option<Limit>,
    /// At a receiver: the size to request of the sender for its buffer, as for `SO_SNDBUF`; `None`: no request now.
    pub buffer_request: Option<Bytes>,
    /// State of SOBAS, if that is the policy.
    pub sobas_state: Option<State>,
}

/// The newest unread sample of a transfer. A request in it is delivered once: it is kept when a newer sample has none.
#[derive(Debug, Default)]
pub struct Unread(Option<Progress>);

impl Unread {
    /// Replaces the unread sample, but keeps its request unless the newer one has its own.
    pub fn put(&mut self, newer: &Progress) {
        let request = self.0.and_then(|older| older.buffer_request);
        self.0 = Some(Progress { buffer_request: newer.buffer_request.or(request), ..*newer });
    }

    /// Takes the newest sample; `None` if it was read.
    pub fn take(&mut self) -> Option<Progress> {
        self.0.take()
    }
}

/// How long each limit held a transfer back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// The program at this end: nothing to send, or a slow file.
    pub application: Duration,
    /// The send buffer.
    pub send_buffer: Duration,
    /// The receive window.
    pub receive_window: Duration,
    /// The congestion window: the path.
    pub congestion_window: Duration,
    /// At a receiver: something at the other end or on the path.
    pub unknown: Duration,
}

/// Report of a transfer at its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Report {
    /// The number of its socket (`SO_COOKIE`), which no other gets while the system runs; zero: not known.
    pub cookie: u64,
    /// Bytes moved by it (of a resumed file: the rest).
    pub bytes: u64,
    /// Time from the connection to the end.
    pub elapsed: Duration,
    /// Bytes per second.
    pub goodput: Rate,
    /// Round-trip time at the end; `None`: not known.
    pub rtt: Option<Micros>,
    /// Smallest round-trip time; `None`: not known.
    pub min_rtt: Option<Micros>,
    /// Segments sent again, by this side.
    pub retransmitted: u64,
    /// Segments received out of order.
    pub out_of_order: u64,
    /// Largest window that the receiver offered, in bytes of payload.
    pub largest_window: Bytes,
    /// Largest limit of this side's buffer, in bytes of memory.
    pub largest_buffer: Bytes,
    /// Most that this side's buffer held, in bytes of memory.
    pub most_held: Bytes,
    /// How long each limit held it back.
    pub held: Held,
    /// The limit that held it back longest; `None`: not known, at a receiver the sender or the path.
    pub limited_by: Option<Limit>,
    /// Time spent reading or writing the file; with `sendfile`, that of the connection as well.
    pub file_time: Duration,
    /// Sum of the bytes, if it was asked for.
    pub hash: Option<Digest>,
}

/// The sampled end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Sender,
    Receiver,
}

/// Samples one connection repeatedly.
#[derive(Debug)]
pub(crate) struct Monitor {
    end: End,
    /// The kernel has reported the window that a receiver offers. Before Linux 6.2 it reports only the largest that it would offer.
    tells_window: bool,
    cookie: u64,
    start: Instant,
    last: SocketSample,
    bytes: u64,
    file_time: Duration,
    min_rtt: Option<Micros>,
    largest_window: Bytes,
    largest_buffer: Bytes,
    most_held: Bytes,
    held: Held,
}

impl Monitor {
    pub(crate) fn new(end: End, stream: &TcpStream) -> Result<Self, OptionError> {
        let mut monitor = Self {
            end,
            tells_window: false,
            cookie: SockRef::from(stream).cookie().unwrap_or_default(),
            start: Instant::now(),
            last: SocketSample::default(),
            bytes: 0,
            file_time: Duration::ZERO,
            min_rtt: None,
            largest_window: Bytes::ZERO,
            largest_buffer: Bytes::ZERO,
            most_held: Bytes::ZERO,
            held: Held::default(),
        };
        monitor.last = monitor.take(stream)?;
        Ok(monitor)
    }

    /// Returns the `TCP_INFO` of the last sample.
    pub(crate) fn info(&self) -> &TcpInfo {
        &self.last.info
    }

    fn take(&mut self, stream: &TcpStream) -> Result<SocketSample, OptionError> {
        let (info, mem) = (options::tcp_info(stream)?, options::memory(stream)?);
        let at = Micros(u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX));
        self.tells_window |= info.rcv_wnd > 0;
        let (window, buffer, held, rtt) = match self.end {
            End::Sender => (info.snd_wnd, mem.sndbuf, mem.wmem_queued, info.min_rtt()),
            End::Receiver => (self.offered(&info), mem.rcvbuf, mem.rmem_alloc, info.rcv_rtt()),
        };
        self.largest_window = self.largest_window.max(Bytes(window.into()));
        self.largest_buffer = self.largest_buffer.max(Bytes(buffer.into()));
        self.most_held = self.most_held.max(Bytes(held.into()));
        self.min_rtt = [self.min_rtt, rtt].into_iter().flatten().min();
        Ok(SocketSample { at, info, mem })
    }

    /// Samples `stream`, which has moved `bytes` so far and spent `file_time` on the file.
    pub(crate) fn sample(
        &mut self,
        stream: &TcpStream,
        bytes: u64,
        file_time: Duration,
    ) -> Result<Progress, OptionError> {
        let before = self.last;
        let now = self.take(stream)?;
        let span = now.at.since(before.at);
        let rate = Bytes(bytes.saturating_sub(self.bytes)).per(span);
        let on_file = file_time.saturating_sub(self.file_time);
        let limited_by = match self.end {
            End::Sender => Some(limited_by(&before, &now)),
            End::Receiver => self.receiver_limit(&now, rate, span, on_file),
        };
        self.held.add(limited_by, Duration::from_micros(span.0));
        (self.last, self.bytes, self.file_time) = (now, bytes, file_time);
        let (window, buffer, held) = match self.end {
            End::Sender => (now.info.snd_wnd, now.mem.sndbuf, now.mem.wmem_queued),
            End::Receiver => (self.offered(&now.info), now.mem.rcvbuf, now.mem.rmem_alloc),
        };
        Ok(Progress {
            bytes,
            rate,
            rtt: self.rtt(&now.info),
            window: Bytes(window.into()),
            buffer: Bytes(buffer.into()),
            held: Bytes(held.into()),
            limited_by,
            buffer_request: None,
            sobas_state: None,
        })
    }

    fn receiver_limit(
        &self,
        now: &SocketSample,
        rate: Rate,
        span: Micros,
        on_file: Duration,
    ) -> Option<Limit> {
        if on_file.as_micros() * 2 > u128::from(span.0) {
            return Some(Limit::Application);
        }
        let offered = Bytes(self.offered(&now.info).into());
        // Use the smallest estimate: the queue of a full window lengthens the round trip and would hide that it is
        // full.
        let in_a_round_trip = rate.over(self.min_rtt?);
        (in_a_round_trip >= offered.scaled(USED_UP.0, USED_UP.1)).then_some(Limit::ReceiveWindow)
    }

    /// Returns the window that a receiver offers, bytes.
    fn offered(&self, info: &TcpInfo) -> u32 {
        if self.tells_window { info.rcv_wnd } else { info.rcv_ssthresh }
    }

    fn rtt(&self, info: &TcpInfo) -> Option<Micros> {
        match self.end {
            End::Sender => info.srtt(),
            End::Receiver => info.rcv_rtt(),
        }
    }

    /// Returns the report, `elapsed` after the transfer began.
    pub(crate) fn report(&self, elapsed: Duration, hash: Option<Digest>) -> Report {
        let info = &self.last.info;
        let micros = Micros(u64::try_from(elapsed.as_micros()).unwrap_or(u64::MAX));
        Report {
            cookie: self.cookie,
            bytes: self.bytes,
            elapsed,
            goodput: Bytes(self.bytes).per(micros),
            rtt: self.rtt(info),
            min_rtt: self.min_rtt,
            retransmitted: info.total_retrans.into(),
            out_of_order: info.rcv_ooopack.into(),
            largest_window: self.largest_window,
            largest_buffer: self.largest_buffer,
            most_held: self.most_held,
            held: self.held,
            limited_by: self.held.longest(),
            file_time: self.file_time,
            hash,
        }
    }
}

impl Held {
    fn add(&mut self, limit: Option<Limit>, span: Duration) {
        *match limit {
            Some(Limit::Application) => &mut self.application,
            Some(Limit::SendBuffer) => &mut self.send_buffer,
            Some(Limit::ReceiveWindow) => &mut self.receive_window,
            Some(Limit::CongestionWindow) => &mut self.congestion_window,
            None => &mut self.unknown,
        } += span;
    }

    fn longest(&self) -> Option<Limit> {
        let all = [
            (self.application, Some(Limit::Application)),
            (self.send_buffer, Some(Limit::SendBuffer)),
            (self.receive_window, Some(Limit::ReceiveWindow)),
            (self.congestion_window, Some(Limit::CongestionWindow)),
            (self.unknown, None),
        ];
        all.into_iter().max_by_key(|(span, _)| *span).and_then(|(_, limit)| limit)
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_window_that_the_kernel_does_not_tell_is_not_closed() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let mut monitor = Monitor::new(End::Receiver, &stream).unwrap();
        monitor.min_rtt = Some(Micros::from_millis(10));
        let info = TcpInfo { rcv_ssthresh: 64_000, ..TcpInfo::default() };
        let sample = SocketSample { info, ..SocketSample::default() };
        let mut limit = |tells_window, rate| {
            monitor.tells_window = tells_window;
            monitor.receiver_limit(&sample, Rate(rate), Micros::from_millis(100), Duration::ZERO)
        };
        assert_eq!(limit(false, 1_000_000), None, "10 KB in a round trip");
        assert_eq!(limit(false, 6_000_000), Some(Limit::ReceiveWindow), "60 KB");
        assert_eq!(limit(true, 0), Some(Limit::ReceiveWindow), "it is closed");
    }

    #[test]
    fn a_request_outlives_words_that_are_not_read() {
        let word = |bytes, request: Option<u64>| Progress {
            bytes,
            buffer_request: request.map(Bytes),
            ..Progress::default()
        };
        let mut unread = Unread::default();
        assert_eq!(unread.take(), None);
        for (bytes, request) in [(1, None), (2, Some(64_000)), (3, None), (4, None)] {
            unread.put(&word(bytes, request));
        }
        assert_eq!(unread.take(), Some(word(4, Some(64_000))));
        unread.put(&word(5, None));
        assert_eq!(unread.take(), Some(word(5, None)), "and is told once");
        unread.put(&word(6, Some(64_000)));
        unread.put(&word(7, Some(128_000)));
        assert_eq!(unread.take(), Some(word(7, Some(128_000))));
    }
}
