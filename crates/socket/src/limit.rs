//! Finds the cause that held a connection's sender back between two samples.
//!
//! Problem: a slow transfer has one of four causes, each with a remedy of its own: the application has no data to
//! send, the send buffer is full, the peer offers no window, or the congestion window (the path) is used up.
//! Source: the kernel times three of them per connection (`tcp_chrono_start()` in `net/ipv4/tcp_output.c`):
//! busy (data outstanding), and within it limited by the receive window or by the send buffer.
//!
//! Rule, over the time between two samples:
//! 1. application = elapsed - busy; congestion window = busy - receive window - send buffer. The largest of
//!    the four shares is the answer. Ties go to the first of: path, receive window, send buffer, application.
//! 2. The kernel counts a sender as busy while anything is unacknowledged, even if it trickles; and it counts
//!    the send buffer only while a writer sleeps on an *empty* queue. So when "congestion window" wins, but
//!    nothing waits to be sent and the kernel marks its rate sample application-limited (there was room in
//!    the window), the cause is the send buffer if it is at least two thirds full (above that a writer is not
//!    woken, `sk_stream_is_writeable()`), else the application.
//!
//! Properties kept: exactly one answer for any two samples; a connection that only receives is limited by
//! its application; a counter that runs backwards counts as no time.

use std::fmt;

use bufwise_units::Micros;

use crate::diag::Connection;
use crate::info::{SkMem, TcpInfo};

/// One sample of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SocketSample {
    /// Time of the sample, on any monotonic clock.
    pub at: Micros,
    /// The kernel's information on the connection.
    pub info: TcpInfo,
    /// The connection's memory.
    pub mem: SkMem,
}

impl SocketSample {
    /// Returns the sample of a connection that was listed at the time `at`.
    #[must_use]
    pub const fn of(connection: &Connection, at: Micros) -> Self {
        Self { at, info: connection.info, mem: connection.mem }
    }
}

/// The cause that holds a sender back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Limit {
    /// The application has nothing to send.
    Application,
    /// The send buffer is too small to keep the window full.
    SendBuffer,
    /// The window that the peer offers is used up.
    ReceiveWindow,
    /// The congestion window is used up, or pacing spreads it: the path, or TCP's estimate of the path, is the limit.
    CongestionWindow,
}

impl Limit {
    /// Returns the name in reports: `application`, `send-buffer`, `receive-window`, `congestion-window`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::SendBuffer => "send-buffer",
            Self::ReceiveWindow => "receive-window",
            Self::CongestionWindow => "congestion-window",
        }
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns the cause that held the sender back from `previous` to `now`, two samples of one connection.
///
/// ```
/// use bufwise_socket::info::TcpInfo;
/// use bufwise_socket::limit::{Limit, SocketSample, limited_by};
/// use bufwise_units::Micros;
///
/// let before = SocketSample::default();
/// // Busy for 0.9 of a second, for 0.7 of it without a window to send into.
/// let info = TcpInfo { busy_time: 900_000, rwnd_limited: 700_000, ..TcpInfo::default() };
/// let now = SocketSample { at: Micros::from_secs(1), info, ..SocketSample::default() };
/// assert_eq!(limited_by(&before, &now), Limit::ReceiveWindow);
/// ```
#[must_use]
pub fn limited_by(previous: &SocketSample, now: &SocketSample) -> Limit {
    let spent = |counter: fn(&TcpInfo) -> u64| counter(&now.info).saturating_sub(counter(&previous.info));
    let elapsed = now.at.since(previous.at).0;
    let busy = spent(|info| info.busy_time).min(elapsed);
    let receive_window = spent(|info| info.rwnd_limited);
    let send_buffer = spent(|info| info.sndbuf_limited);
    let shares = [
        (elapsed - busy, Limit::Application),
        (send_buffer, Limit::SendBuffer),
        (receive_window, Limit::ReceiveWindow),
        (busy.saturating_sub(receive_window.saturating_add(send_buffer)), Limit::CongestionWindow),
    ];
    // max_by_key returns the last of equals.
    let largest = shares.into_iter().max_by_key(|(share, _)| *share);
    match largest {
        Some((_, Limit::CongestionWindow)) | None => room_in_the_window(now),
        Some((_, limit)) => limit,
    }
}

/// Applies the second part of the rule: decides whether the congestion window really was the cause.
fn room_in_the_window(now: &SocketSample) -> Limit {
    if now.info.notsent_bytes > 0 || !now.info.app_limited() {
        Limit::CongestionWindow
    } else if u64::from(now.mem.wmem_queued) * 3 >= u64::from(now.mem.sndbuf) * 2 {
        Limit::SendBuffer
    } else {
        Limit::Application
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns two samples 100 ms apart, between which the counters grew by the given milliseconds.
    fn interval(busy: u64, receive_window: u64, send_buffer: u64) -> (SocketSample, SocketSample) {
        let before =
            TcpInfo { busy_time: 7_000, rwnd_limited: 5_000, sndbuf_limited: 1_000, ..TcpInfo::default() };
        let after = TcpInfo {
            busy_time: before.busy_time + busy * 1_000,
            rwnd_limited: before.rwnd_limited + receive_window * 1_000,
            sndbuf_limited: before.sndbuf_limited + send_buffer * 1_000,
            ..before
        };
        let sample = |at, info| SocketSample { at: Micros::from_millis(at), info, mem: SkMem::default() };
        (sample(1_000, before), sample(1_100, after))
    }

    fn verdict(busy: u64, receive_window: u64, send_buffer: u64) -> &'static str {
        let (previous, now) = interval(busy, receive_window, send_buffer);
        limited_by(&previous, &now).as_str()
    }

    #[test]
    fn the_largest_share_of_the_time_names_the_limit() {
        assert_eq!(verdict(0, 0, 0), "application");
        assert_eq!(verdict(40, 0, 0), "application");
        assert_eq!(verdict(100, 0, 0), "congestion-window");
        assert_eq!(verdict(100, 60, 0), "receive-window");
        assert_eq!(verdict(100, 20, 60), "send-buffer");
        assert_eq!(verdict(100, 30, 30), "congestion-window");
    }

    #[test]
    fn a_trickle_that_is_always_unacknowledged_is_the_applications() {
        let (previous, mut now) = interval(100, 0, 0);
        now.info.flags = if cfg!(target_endian = "little") { 1 } else { 0x80 };
        now.mem = SkMem { sndbuf: 90_000, wmem_queued: 20_000, ..SkMem::default() };
        assert_eq!(limited_by(&previous, &now), Limit::Application);
        now.mem.wmem_queued = 60_000;
        assert_eq!(limited_by(&previous, &now), Limit::SendBuffer);
        now.info.notsent_bytes = 1;
        assert_eq!(limited_by(&previous, &now), Limit::CongestionWindow);
    }

    #[test]
    fn counters_of_another_connection_count_as_no_time() {
        let (previous, now) = interval(100, 60, 0);
        assert_eq!(limited_by(&now, &previous), Limit::CongestionWindow);
        let later = SocketSample { at: Micros::from_secs(9), ..previous };
        assert_eq!(limited_by(&now, &later), Limit::Application);
    }
}
