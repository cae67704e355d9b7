//! Judges which cause holds a connection back, and gives advice. No other module judges.
//!
//! Problem: the same sample of a connection must mean the same in the report of `run`, in `ls` and in `explain`.
//! - A sender's cause is the kernel's own account ([`bufwise_socket::limit`]), corrected if a buffer is full of data
//!   under way: the kernel counts the buffer only while its queue is empty.
//! - A receiver does not see the sender's windows, only the data that arrives: nothing (the application), a full
//!   window per round trip (its window), or less (the path, or the sender's own limits). The kernel counts data behind
//!   a hole only when the hole is filled; until then the path is the cause. If unread data fills half the buffer, its
//!   own program is the cause ([`Cause::Reader`]).
//! - A sender recognises a slow reading program by the window: shut, or larger than the data of a round trip although
//!   the kernel counts the window as the limit. A window that is too small for the path is used up in every round
//!   trip.
//! - [`Case`] turns this into conclusions and advice; [`Queue`] collects the evidence of a queue on the path.

mod advice;
mod bursts;
mod limited;
mod outlook;
mod queue;
#[cfg(test)]
mod tests;

use std::fmt;

use bufwise_socket::info::TcpInfo;
use bufwise_socket::limit::{Limit, SocketSample, limited_by};
use serde::{Deserialize, Serialize};

pub use advice::{BufferOwner, Case, Roof};
pub use bursts::Bursts;
pub use limited::Limited;
pub use outlook::{Effect, Outlook};
pub use queue::Queue;

/// A window of fewer segments counts as shut: receivers do not offer a smaller one (RFC 1122, 4.2.3.3), and a sender
/// leaves less than a segment of an offered window unused.
const SHUT_SEGMENTS: u64 = 2;
/// Least number of round trips over which the data per round trip is estimated.
const ROUND_TRIPS: u64 = 4;
/// Largest value of the window field, and largest shift of the window scale option (RFC 7323, 2.3).
const LARGEST_FIELD: u32 = 65_535;
const LARGEST_SCALE: u8 = 14;

/// The direction of a connection's main data flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Data goes to the peer.
    Send,
    /// Data comes from the peer.
    Receive,
}

impl Direction {
    /// Returns the direction of more data so far; sending if there was none.
    pub fn so_far(now: &SocketSample) -> Self {
        if now.info.bytes_received > written(&now.info) { Self::Receive } else { Self::Send }
    }

    /// Returns the direction of more data between two samples; as [`Direction::so_far`] if they are equal or there is
    /// only one sample.
    pub fn between(previous: Option<&SocketSample>, now: &SocketSample) -> Self {
        let Some(previous) = previous else { return Self::so_far(now) };
        let sent = written(&now.info).saturating_sub(written(&previous.info));
        match sent.cmp(&Self::Receive.moved(previous, now)) {
            std::cmp::Ordering::Greater => Self::Send,
            std::cmp::Ordering::Less => Self::Receive,
            std::cmp::Ordering::Equal => Self::so_far(now),
        }
    }

    /// Returns the payload bytes that moved in this direction between two samples.
    pub fn moved(self, previous: &SocketSample, now: &SocketSample) -> u64 {
        let count = |sample: &SocketSample| match self {
            Self::Send => sample.info.bytes_acked,
            Self::Receive => sample.info.bytes_received,
        };
        count(now).saturating_sub(count(previous))
    }
}

/// Returns the payload bytes that the program has written: acknowledged, under way, or waiting. In a connection's
/// first round trip no byte is acknowledged.
fn written(info: &TcpInfo) -> u64 {
    info.bytes_acked.max(info.bytes_sent.saturating_sub(info.bytes_retrans)) + u64::from(info.notsent_bytes)
}

/// The cause that holds a connection back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No data to send; at a receiver: no data arrived, and none was missing.
    Application,
    /// The send buffer is too small.
    SendBuffer,
    /// The window that the receiver offered is used up.
    ReceiveWindow,
    /// The congestion window is used up: the path, or TCP's estimate of it, is the limit.
    CongestionWindow,
    /// At a receiver: the path or the sender is the limit.
    Path,
    /// The receiving program is slow: its receive buffer is full of unread data.
    Reader,
}

impl Cause {
    /// All causes.
    pub const ALL: [Self; 6] = [
        Self::Application,
        Self::SendBuffer,
        Self::ReceiveWindow,
        Self::CongestionWindow,
        Self::Path,
        Self::Reader,
    ];

    /// Returns the cause's name for people.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Application => "application",
            Self::SendBuffer => "send buffer",
            Self::ReceiveWindow => "receive window",
            Self::CongestionWindow => "congestion window",
            Self::Path => "path or sender",
            Self::Reader => "reading program",
        }
    }
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

/// Returns the cause that held a connection back between two samples.
pub fn cause(direction: Direction, previous: &SocketSample, now: &SocketSample) -> Cause {
    match direction {
        Direction::Send => sender(previous, now),
        Direction::Receive => receiver(previous, now),
    }
}

fn sender(previous: &SocketSample, now: &SocketSample) -> Cause {
    let under_way = u64::from(now.info.unacked) * u64::from(now.info.snd_mss);
    let is_full = u64::from(now.mem.wmem_queued) * 5 >= u64::from(now.mem.sndbuf) * 4;
    let all_sent = u64::from(now.info.notsent_bytes) * 4 < under_way;
    match limited_by(previous, now) {
        Limit::CongestionWindow if is_full && all_sent => Cause::SendBuffer,
        Limit::Application => Cause::Application,
        Limit::SendBuffer => Cause::SendBuffer,
        Limit::ReceiveWindow if is_unread(previous, now) => Cause::Reader,
        Limit::ReceiveWindow => Cause::ReceiveWindow,
        Limit::CongestionWindow => Cause::CongestionWindow,
    }
}

/// Returns whether the limiting window is shut, or larger than the data of a round trip: then the receiving program
/// is the cause.
fn is_unread(previous: &SocketSample, now: &SocketSample) -> bool {
    let offered = previous.info.snd_wnd.max(now.info.snd_wnd);
    let is_shut = u64::from(now.info.snd_wnd) < SHUT_SEGMENTS * u64::from(now.info.snd_mss);
    let round_trip = now.info.rtt.into();
    let can_tell = now.at.since(previous.at).0 >= ROUND_TRIPS * round_trip;
    is_shut
        || can_tell && in_a_round_trip(Direction::Send, round_trip, previous, now) * 2 < u128::from(offered)
}

fn receiver(previous: &SocketSample, now: &SocketSample) -> Cause {
    let info = &now.info;
    let round_trip = if info.rcv_rtt == 0 { info.rtt } else { info.rcv_rtt };
    let has_moved = Direction::Receive.moved(previous, now) > 0;
    // Data behind a hole fills the buffer as unread data does.
    if !has_moved && info.rcv_ooopack != previous.info.rcv_ooopack {
        Cause::Path
    } else if is_half_full(now) {
        Cause::Reader
    } else if !has_moved {
        Cause::Application
    } else if in_a_round_trip(Direction::Receive, round_trip.into(), previous, now) * 10
        >= u128::from(offered_window(now)) * 9
    {
        Cause::ReceiveWindow
    } else {
        Cause::Path
    }
}

/// Returns whether the content of the receive queue takes more than half of the buffer.
fn is_half_full(now: &SocketSample) -> bool {
    u64::from(now.mem.rmem_alloc) * 2 > u64::from(now.mem.rcvbuf)
}

/// Returns the window that the connection offers to its peer, payload bytes. The kernel reports it before it cuts it to what the
/// window scale can express (`tcp_select_window()`). Before Linux 6.2 it reports only the largest window, and the window as 0;
/// other kernels report 0 for a full buffer.
pub fn offered_window(now: &SocketSample) -> u32 {
    let is_reported = now.info.rcv_wnd > 0 || is_half_full(now);
    let window = if is_reported { now.info.rcv_wnd } else { now.info.rcv_ssthresh };
    largest_window(now).map_or(window, |largest| window.min(largest))
}

/// Returns the largest window that the connection's window scale can express, bytes; `None` if the scale is 0 or not known.
fn largest_window(now: &SocketSample) -> Option<u32> {
    let scale = now.info.rcv_wscale();
    (1..=LARGEST_SCALE).contains(&scale).then(|| LARGEST_FIELD << scale)
}

/// Returns whether the window scale, which the handshake fixes, keeps the connection from offering more.
fn is_at_scale(now: &SocketSample) -> bool {
    largest_window(now) == Some(offered_window(now))
}

/// Returns the payload bytes that moved per round trip of `round_trip` microseconds.
fn in_a_round_trip(
    direction: Direction,
    round_trip: u64,
    previous: &SocketSample,
    now: &SocketSample,
) -> u128 {
    let elapsed = now.at.since(previous.at).0.max(1);
    u128::from(direction.moved(previous, now)) * u128::from(round_trip) / u128::from(elapsed)
}
