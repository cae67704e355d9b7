//! Causes that hold a connection back, and advice: the one place that judges.
//!
//! Problem: the same look at a connection must mean the same in the report of `run`, in `ls` and in `explain`.
//! - A sender's cause is the kernel's own account ([`bufwise_socket::limit`]), corrected where a buffer is full of
//!   data under way: the kernel counts the buffer only while its queue is empty.
//! - A receiver does not see the sender's windows, only what arrives: nothing (the application), a full window per
//!   round trip (its window), or less (the path, or the sender's own limits). Data that lies unread in half the buffer
//!   is its own application's doing.
//! - Advice names one thing to do about the largest cause that a person can do something about. Segments that are
//!   lost while the round trip is well above its minimum were dropped by a queue that the connection itself, or
//!   those beside it, had filled; losses without a queue are the path's. A sender that moves what fit's roof allows is
//!   held by it, whichever of its windows the kernel accounts for that.

use std::fmt;

use bufwise_socket::limit::{Limit, Look, limited_by};
use serde::{Deserialize, Serialize};

/// A cause that took this share of the time is worth a word.
const NOTABLE: f64 = 0.2;
/// The program itself is the limit from this share of the time on.
const MOSTLY: f64 = 0.5;
/// A path that loses more than this share of the segments is at fault itself.
const LOSSY: f64 = 0.005;
/// A round trip this many times its minimum stands in a queue.
const QUEUED: f64 = 2.0;
/// Less than this is a host's own delay, seconds.
const QUEUE_SECONDS: f64 = 0.005;

/// Which way the data goes that a connection is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Data goes to the peer.
    Send,
    /// Data comes from the peer.
    Receive,
}

impl Direction {
    /// The way that more has gone so far; sending, while nothing has.
    pub fn so_far(now: &Look) -> Self {
        if now.info.bytes_received > now.info.bytes_acked { Self::Receive } else { Self::Send }
    }

    /// The way that more went between two looks; as [`Direction::so_far`] where nothing went or there is but one look.
    pub fn between(previous: Option<&Look>, now: &Look) -> Self {
        let moved = |way: Self| previous.map_or(0, |previous| way.moved(previous, now));
        match moved(Self::Send).cmp(&moved(Self::Receive)) {
            std::cmp::Ordering::Greater => Self::Send,
            std::cmp::Ordering::Less => Self::Receive,
            std::cmp::Ordering::Equal => Self::so_far(now),
        }
    }

    /// Payload that went this way between two looks.
    pub fn moved(self, previous: &Look, now: &Look) -> u64 {
        let count = |look: &Look| match self {
            Self::Send => look.info.bytes_acked,
            Self::Receive => look.info.bytes_received,
        };
        count(now).saturating_sub(count(previous))
    }
}

/// The cause that holds a connection back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// No data to send; at a receiver: nothing came and nothing was missing, or it was not read.
    Application,
    /// The send buffer.
    SendBuffer,
    /// The window that the receiver offered.
    ReceiveWindow,
    /// The congestion window: the path, or what TCP believes of it.
    CongestionWindow,
    /// At a receiver: the path, or the sender.
    Path,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Application => "application",
            Self::SendBuffer => "send buffer",
            Self::ReceiveWindow => "receive window",
            Self::CongestionWindow => "congestion window",
            Self::Path => "path or sender",
        })
    }
}

/// Time by the cause that held a connection back: shares, 0 to 1, or while it is being added up any unit of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Limited {
    /// [`Cause::Application`].
    pub application: f64,
    /// [`Cause::SendBuffer`].
    pub send_buffer: f64,
    /// [`Cause::ReceiveWindow`].
    pub receive_window: f64,
    /// [`Cause::CongestionWindow`].
    pub congestion_window: f64,
    /// [`Cause::Path`].
    pub path: f64,
}

impl Limited {
    /// Adds the time between two looks to the cause of its limit.
    pub fn add(&mut self, direction: Direction, previous: &Look, now: &Look) {
        let place = match cause(direction, previous, now) {
            Cause::Application => &mut self.application,
            Cause::SendBuffer => &mut self.send_buffer,
            Cause::ReceiveWindow => &mut self.receive_window,
            Cause::CongestionWindow => &mut self.congestion_window,
            Cause::Path => &mut self.path,
        };
        *place += now.at.since(previous.at).0 as f64;
    }

    /// The shares of the whole time; `None` if there was none.
    pub fn shares(&self) -> Option<Self> {
        let total: f64 = self.by_cause().map(|(_, time)| time).iter().sum();
        (total > 0.0).then(|| Self {
            application: self.application / total,
            send_buffer: self.send_buffer / total,
            receive_window: self.receive_window / total,
            congestion_window: self.congestion_window / total,
            path: self.path / total,
        })
    }

    /// Each cause with its time, the largest first.
    pub fn by_cause(&self) -> [(Cause, f64); 5] {
        let mut causes = [
            (Cause::Application, self.application),
            (Cause::SendBuffer, self.send_buffer),
            (Cause::ReceiveWindow, self.receive_window),
            (Cause::CongestionWindow, self.congestion_window),
            (Cause::Path, self.path),
        ];
        causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        causes
    }
}

/// The causes above 1%, largest first.
impl fmt::Display for Limited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let worth = self.by_cause().into_iter().filter(|(_, share)| *share >= 0.01);
        for (place, (cause, share)) in worth.enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{cause} {:.0}%", share * 100.0)?;
        }
        Ok(())
    }
}

/// The cause that held a connection back between two looks at it.
pub fn cause(direction: Direction, previous: &Look, now: &Look) -> Cause {
    match direction {
        Direction::Send => sender(previous, now),
        Direction::Receive => receiver(previous, now),
    }
}

fn sender(previous: &Look, now: &Look) -> Cause {
    let under_way = u64::from(now.info.unacked) * u64::from(now.info.snd_mss);
    let is_full = u64::from(now.mem.wmem_queued) * 5 >= u64::from(now.mem.sndbuf) * 4;
    let all_sent = u64::from(now.info.notsent_bytes) * 4 < under_way;
    match limited_by(previous, now) {
        Limit::CongestionWindow if is_full && all_sent => Cause::SendBuffer,
        Limit::Application => Cause::Application,
        Limit::SendBuffer => Cause::SendBuffer,
        Limit::ReceiveWindow => Cause::ReceiveWindow,
        Limit::CongestionWindow => Cause::CongestionWindow,
    }
}

fn receiver(previous: &Look, now: &Look) -> Cause {
    let arrived = Direction::Receive.moved(previous, now);
    let round_trip = if now.info.rcv_rtt == 0 { now.info.rtt } else { now.info.rcv_rtt };
    let elapsed = now.at.since(previous.at).0.max(1);
    let in_a_round_trip = u128::from(arrived) * u128::from(round_trip) / u128::from(elapsed);
    if arrived == 0 || u64::from(now.mem.rmem_alloc) * 2 > u64::from(now.mem.rcvbuf) {
        Cause::Application
    } else if in_a_round_trip * 10 >= u128::from(now.info.rcv_wnd) * 9 {
        Cause::ReceiveWindow
    } else {
        Cause::Path
    }
}

/// The sizer of a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sizer {
    /// The program set it, and it is left alone.
    Application,
    /// The kernel's own autotuning.
    Kernel,
    /// SOBAS, which keeps windows small on purpose.
    Sobas,
    /// Any other policy of bufwise.
    Policy,
}

/// What fit does about a sender.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Roof {
    /// Nothing that explains its rate; another policy may be in charge.
    #[default]
    None,
    /// Holds its rate at what it found the path to carry, and the sender goes that fast.
    Limits,
    /// Leaves it to the kernel, for the queue on the path is not its own.
    ForeignQueue,
}

/// All that advice on a connection depends on.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// The way of the data.
    pub direction: Direction,
    /// Shares of the time; `None` if it was too short to tell.
    pub limited: Option<Limited>,
    /// Sizer of the send buffer.
    pub send: Sizer,
    /// Sizer of the receive buffer.
    pub receive: Sizer,
    /// Fit at the sender.
    pub roof: Roof,
    /// Segments with data that were sent.
    pub segments_out: u64,
    /// Segments of these that were repeated.
    pub retransmits: u64,
    /// Smoothed round-trip time, seconds; 0: not known.
    pub srtt_s: f64,
    /// Smallest round-trip time, seconds; 0: not known.
    pub min_rtt_s: f64,
}

impl Case {
    /// One sentence: what to do about what limited the connection most.
    pub fn advice(&self) -> String {
        let Some(limited) = self.limited else {
            return "Too short to tell what limited it.".to_owned();
        };
        // Below the roof the send buffer, too, holds what the path carries.
        if limited.send_buffer >= NOTABLE && self.roof != Roof::Limits {
            return match self.send {
                Sizer::Application => {
                    "The program's own SO_SNDBUF held it back: raise it there, or let bufwise size it with --override."
                }
                Sizer::Kernel => "The send buffer held it back: let bufwise size it with --policy abt.",
                Sizer::Sobas | Sizer::Policy => {
                    "The share of the memory held it back: give more with --memory."
                }
            }
            .to_owned();
        }
        if limited.receive_window >= NOTABLE {
            return self.receive_window_advice().to_owned();
        }
        if limited.application > MOSTLY {
            return "The program itself was the limit: larger buffers would not help.".to_owned();
        }
        self.path_advice()
    }

    fn receive_window_advice(&self) -> &'static str {
        if self.direction == Direction::Send {
            return "The receiver's window held it back: run bufwise there too, or raise tcp_rmem there.";
        }
        match self.receive {
            Sizer::Application => {
                "The program's own SO_RCVBUF held it back: raise it there, or let bufwise size it with --override."
            }
            Sizer::Kernel => {
                "The receive window held it back: let bufwise size it with --policy drs or sobas."
            }
            Sizer::Sobas => {
                "The path is full: the window was held at what it carries, so that no queue builds up."
            }
            Sizer::Policy => "The receive window held it back: its policy chose it so.",
        }
    }

    fn path_advice(&self) -> String {
        let loss = self.loss();
        let queue = self.queue_s().filter(|_| self.direction == Direction::Send).map(|queue| queue * 1e3);
        let lost = (loss > LOSSY).then_some(loss * 100.0);
        if let (Some(queue), Roof::ForeignQueue) = (queue, self.roof) {
            format!(
                "A queue of {queue:.0} ms stands in the path that is not its own: a lower rate did not shorten it."
            )
        } else if let (Some(queue), Roof::Limits) = (queue, self.roof) {
            format!(
                "A queue of {queue:.0} ms stands in the path though the rate is held at what fit found it to carry: other \
                 traffic may fill it."
            )
        } else if let (Some(queue), Some(lost)) = (queue, lost) {
            format!(
                "A queue of {queue:.0} ms stands in the path and dropped {lost:.1}% of the segments when it was full: a \
                 receiver with --policy sobas would avoid both."
            )
        } else if let Some(lost) = lost {
            format!(
                "The path loses {lost:.1}% of the segments, by its quality or a short queue: the buffers are not the \
                 limit."
            )
        } else if let Some(queue) = queue {
            format!(
                "A queue of {queue:.0} ms stands in the path: a receiver with --policy sobas would avoid it."
            )
        } else if self.roof == Roof::Limits {
            "The rate was held at what fit found the path to carry, so that no queue builds up.".to_owned()
        } else {
            "The path was the limit: the buffers are large enough.".to_owned()
        }
    }

    /// Share of the segments that had to be repeated.
    pub fn loss(&self) -> f64 {
        self.retransmits as f64 / self.segments_out.max(1) as f64
    }

    /// Time that segments spend in queues, in seconds, where that is worth a word.
    pub fn queue_s(&self) -> Option<f64> {
        let queue = self.srtt_s - self.min_rtt_s;
        (self.min_rtt_s > 0.0 && queue > QUEUE_SECONDS && self.srtt_s > QUEUED * self.min_rtt_s)
            .then_some(queue)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_socket::info::{SkMem, TcpInfo};
    use bufwise_units::Micros;

    fn case(limited: Limited) -> Case {
        Case {
            direction: Direction::Send,
            limited: Some(limited),
            send: Sizer::Kernel,
            receive: Sizer::Kernel,
            roof: Roof::None,
            segments_out: 1_000,
            retransmits: 0,
            srtt_s: 0.041,
            min_rtt_s: 0.040,
        }
    }

    /// A second between two looks, in which `received` bytes came.
    fn second(received: u64, now: Look) -> (Look, Look) {
        let later = TcpInfo { bytes_received: received, ..now.info };
        (Look { at: Micros::ZERO, ..now }, Look { at: Micros::from_secs(1), info: later, ..now })
    }

    #[test]
    fn the_way_is_that_of_the_present_before_that_of_the_past() {
        let past = Look { info: TcpInfo { bytes_acked: 9_000, ..TcpInfo::default() }, ..Look::default() };
        let (previous, now) = second(100, past);
        assert_eq!(Direction::between(Some(&previous), &now), Direction::Receive);
        assert_eq!(Direction::between(Some(&previous), &previous), Direction::Send);
        assert_eq!(Direction::between(None, &now), Direction::Send);
    }

    #[test]
    fn a_receiver_is_judged_by_what_arrives_against_its_window() {
        let info = TcpInfo { rcv_rtt: 100_000, rcv_wnd: 100_000, ..TcpInfo::default() };
        let mem = SkMem { rcvbuf: 200_000, ..SkMem::default() };
        let look = Look { at: Micros::ZERO, info, mem };
        let verdict = |received, look| {
            let (previous, now) = second(received, look);
            cause(Direction::Receive, &previous, &now)
        };
        assert_eq!(verdict(0, look), Cause::Application);
        assert_eq!(verdict(950_000, look), Cause::ReceiveWindow);
        assert_eq!(verdict(500_000, look), Cause::Path);
        let unread = Look { mem: SkMem { rmem_alloc: 150_000, ..mem }, ..look };
        assert_eq!(verdict(950_000, unread), Cause::Application);
    }

    #[test]
    fn a_buffer_full_of_data_under_way_limits_though_the_kernel_does_not_count_it() {
        let mem = SkMem { sndbuf: 32_768, wmem_queued: 30_000, ..SkMem::default() };
        let info = TcpInfo { unacked: 10, snd_mss: 1_448, ..TcpInfo::default() };
        let previous = Look { at: Micros::ZERO, info, mem };
        let busy = TcpInfo { busy_time: 1_000_000, ..info };
        let now = Look { at: Micros::from_secs(1), info: busy, mem };
        assert_eq!(cause(Direction::Send, &previous, &now), Cause::SendBuffer);
        let waiting = Look { info: TcpInfo { notsent_bytes: 20_000, ..busy }, ..now };
        assert_eq!(cause(Direction::Send, &previous, &waiting), Cause::CongestionWindow);
    }

    #[test]
    fn shares_add_up_and_the_largest_is_named_first() {
        let spent = Limited { application: 3.0, send_buffer: 1.0, ..Limited::default() };
        let shares = spent.shares().unwrap();
        assert_eq!((shares.application, shares.send_buffer, shares.path), (0.75, 0.25, 0.0));
        assert_eq!(shares.to_string(), "application 75%, send buffer 25%");
        assert_eq!(Limited::default().shares(), None);
    }

    #[test]
    fn advice_names_what_can_be_done() {
        let buffer = case(Limited { send_buffer: 0.9, application: 0.1, ..Limited::default() });
        let window = case(Limited { receive_window: 1.0, ..Limited::default() });
        let path = case(Limited { congestion_window: 1.0, ..Limited::default() });
        let receives = |receive| Case { direction: Direction::Receive, receive, ..window };
        for (case, words) in [
            (buffer, "--policy abt"),
            (Case { send: Sizer::Application, ..buffer }, "--override"),
            (Case { send: Sizer::Policy, ..buffer }, "--memory"),
            (window, "tcp_rmem there"),
            (receives(Sizer::Application), "SO_RCVBUF"),
            (receives(Sizer::Kernel), "drs or sobas"),
            (receives(Sizer::Sobas), "no queue builds up"),
            (path, "large enough"),
            (Case { retransmits: 20, ..path }, "loses 2.0%"),
            (
                Case { retransmits: 20, srtt_s: 0.140, ..path },
                "queue of 100 ms stands in the path and dropped 2.0%",
            ),
            (Case { srtt_s: 0.140, ..path }, "queue of 100 ms"),
            (Case { roof: Roof::Limits, ..path }, "found the path to carry, so that no queue"),
            (
                Case { roof: Roof::Limits, send: Sizer::Policy, ..buffer },
                "found the path to carry, so that no queue",
            ),
            (Case { roof: Roof::Limits, ..window }, "tcp_rmem there"),
            (Case { roof: Roof::Limits, retransmits: 20, ..path }, "loses 2.0%"),
            (Case { roof: Roof::Limits, srtt_s: 0.140, ..path }, "other traffic may fill it"),
            (
                Case { roof: Roof::ForeignQueue, srtt_s: 0.140, ..path },
                "queue of 100 ms stands in the path that is not",
            ),
            (Case { roof: Roof::ForeignQueue, retransmits: 20, srtt_s: 0.140, ..path }, "is not its own"),
            (Case { roof: Roof::ForeignQueue, ..path }, "large enough"),
            (case(Limited { application: 1.0, ..Limited::default() }), "program itself"),
            (Case { limited: None, ..path }, "Too short"),
        ] {
            let advice = case.advice();
            assert!(advice.contains(words), "{words}: {advice}");
        }
    }
}
