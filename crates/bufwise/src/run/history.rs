//! What became of each connection: its last figures, its buffers over time, and what limited it when.

use std::collections::BTreeMap;

use bufwise_bpf::FlowState;
use bufwise_policy::Micros;
use bufwise_socket::diag::Connection;
use bufwise_socket::limit::{Limit, Look, limited_by};
use serde::Serialize;

/// Points kept of a connection's buffers; beyond that every second one goes, and the pace halves.
const POINTS: usize = 120;

/// What held a connection back for a share of the time, 0 to 1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(super) struct Limited {
    /// No data to send; at a receiver: nothing came and nothing was missing, or it was not read.
    pub(super) application: f64,
    /// The send buffer.
    pub(super) send_buffer: f64,
    /// The window that the receiver offered.
    pub(super) receive_window: f64,
    /// The congestion window: the path, or what TCP believes of it.
    pub(super) congestion_window: f64,
    /// At a receiver: the path, or the sender.
    pub(super) path: f64,
}

/// Buffers at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    /// Seconds since the connection was established.
    pub(super) t: f64,
    /// Limit of the send buffer, and what its queue held (memory).
    pub(super) send_buffer_bytes: u64,
    pub(super) send_queued_bytes: u64,
    /// Congestion window.
    pub(super) cwnd_bytes: u64,
    /// Limit of the receive buffer (memory), and the window offered.
    pub(super) receive_buffer_bytes: u64,
    pub(super) receive_window_bytes: u64,
}

/// One connection's history.
#[derive(Clone, Debug)]
pub(super) struct History {
    pub(super) last: FlowState,
    pub(super) points: Vec<Point>,
    stride: u32,
    skipped: u32,
    previous: Option<Look>,
    /// Microseconds by cause.
    spent: Limited,
}

/// The histories by the socket's number, which grows with time.
#[derive(Debug, Default)]
pub(super) struct Histories {
    pub(super) all: BTreeMap<u64, History>,
}

impl Histories {
    /// Takes a look at `now`: the flows as the kernel's side saw them last, and the sockets as they are.
    pub(super) fn look(&mut self, flows: &[FlowState], connections: &[Connection], now: Micros) {
        for flow in flows {
            let history = self.all.entry(flow.cookie).or_insert_with(|| History::new(*flow));
            history.last = *flow;
            if flow.closed {
                history.record_flow();
            }
        }
        for connection in connections {
            if let Some(history) = self.all.get_mut(&connection.cookie)
                && !history.last.closed
            {
                history.record(connection, now);
            }
        }
    }
}

impl History {
    fn new(flow: FlowState) -> Self {
        Self {
            last: flow,
            points: Vec::new(),
            stride: 1,
            skipped: 0,
            previous: None,
            spent: Limited::default(),
        }
    }

    /// More came in than went out.
    pub(super) fn receives(&self) -> bool {
        self.last.sample.bytes_received > self.last.sample.bytes_acked
    }

    fn record(&mut self, connection: &Connection, now: Micros) {
        let look = Look { at: now, info: connection.info, mem: connection.mem };
        if let Some(previous) = &self.previous {
            let receives = connection.info.bytes_received > connection.info.bytes_acked;
            let span = now.since(previous.at).0 as f64;
            let cause = if receives { receiver(previous, &look) } else { sender(previous, &look) };
            *cause(&mut self.spent) += span;
        }
        self.previous = Some(look);
        self.add(Point {
            t: now.since(self.last.opened_at).as_secs_f64(),
            send_buffer_bytes: connection.mem.sndbuf.into(),
            send_queued_bytes: connection.mem.wmem_queued.into(),
            cwnd_bytes: connection.info.cwnd().0,
            receive_buffer_bytes: connection.mem.rcvbuf.into(),
            receive_window_bytes: connection.info.rcv_wnd.into(),
        });
    }

    /// The last figures of a connection that is over, always kept.
    fn record_flow(&mut self) {
        let sample = &self.last.sample;
        self.points.push(Point {
            t: self.last.seen_at.since(self.last.opened_at).as_secs_f64(),
            send_buffer_bytes: sample.sndbuf.0,
            send_queued_bytes: sample.send_queued.0,
            cwnd_bytes: sample.cwnd.0,
            receive_buffer_bytes: sample.rcvbuf.0,
            receive_window_bytes: sample.rcv_wnd.0,
        });
    }

    fn add(&mut self, point: Point) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.points.push(point);
        if self.points.len() >= POINTS {
            let mut place = 0;
            self.points.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Shares of the time that was watched; `None` if it was too short for two looks.
    pub(super) fn limited(&self) -> Option<Limited> {
        let Limited { application, send_buffer, receive_window, congestion_window, path } = self.spent;
        let total = application + send_buffer + receive_window + congestion_window + path;
        (total > 0.0).then(|| Limited {
            application: application / total,
            send_buffer: send_buffer / total,
            receive_window: receive_window / total,
            congestion_window: congestion_window / total,
            path: path / total,
        })
    }
}

type Cause = fn(&mut Limited) -> &mut f64;

/// The kernel counts a sender as limited by its buffer only while its queue is empty. A buffer that is full of data
/// under way, with next to nothing waiting behind it, limits as well.
fn sender(previous: &Look, now: &Look) -> Cause {
    let under_way = u64::from(now.info.unacked) * u64::from(now.info.snd_mss);
    let is_full = u64::from(now.mem.wmem_queued) * 5 >= u64::from(now.mem.sndbuf) * 4;
    let all_sent = u64::from(now.info.notsent_bytes) * 4 < under_way;
    match limited_by(previous, now) {
        Limit::CongestionWindow if is_full && all_sent => |limited| &mut limited.send_buffer,
        Limit::Application => |limited| &mut limited.application,
        Limit::SendBuffer => |limited| &mut limited.send_buffer,
        Limit::ReceiveWindow => |limited| &mut limited.receive_window,
        Limit::CongestionWindow => |limited| &mut limited.congestion_window,
    }
}

/// A receiver does not see the sender's windows, only what arrives: nothing (the application), a full window per
/// round trip (its window), or less (the path, or the sender's own limits). Data that lies unread in half the buffer is
/// its own application's doing.
fn receiver(previous: &Look, now: &Look) -> Cause {
    let arrived = now.info.bytes_received.saturating_sub(previous.info.bytes_received);
    let round_trip = if now.info.rcv_rtt == 0 { now.info.rtt } else { now.info.rcv_rtt };
    let elapsed = now.at.since(previous.at).0.max(1);
    let in_a_round_trip = u128::from(arrived) * u128::from(round_trip) / u128::from(elapsed);
    if arrived == 0 || u64::from(now.mem.rmem_alloc) * 2 > u64::from(now.mem.rcvbuf) {
        |limited| &mut limited.application
    } else if in_a_round_trip * 10 >= u128::from(now.info.rcv_wnd) * 9 {
        |limited| &mut limited.receive_window
    } else {
        |limited| &mut limited.path
    }
}
