//! History of each connection: its last figures, its buffers over time, and the time spent by limiting cause.

use std::collections::BTreeMap;

use bufwise_bpf::FlowState;
use bufwise_host::judge::{Direction, Limited, Queue, offered_window};
use bufwise_socket::diag::{CongestionControl, Connection};
use bufwise_socket::limit::SocketSample;
use bufwise_units::Micros;
use serde::Serialize;

use super::totals::Sum;

/// Most points kept per connection, up to [`KEPT`] open ones; of more, each keeps fewer, but not fewer than `LEAST_POINTS`. When
/// that many are kept, every second point is dropped, and from then on points are recorded half as often.
const POINTS: usize = 120;
const LEAST_POINTS: usize = 8;

/// Buffers at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Point {
    /// Seconds since the connection was established.
    pub(super) t: f64,
    /// Limit of the send buffer, and the memory held by its queue.
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
    /// Empty until the socket's first sample.
    pub(super) congestion_control: CongestionControl,
    stride: u32,
    skipped: u32,
    previous: Option<SocketSample>,
    /// Microseconds by cause.
    pub(super) spent: Limited,
    /// Times with and without a queue on the path.
    pub(super) queue: Queue,
}

/// Number of ended connections whose histories are kept: those that lasted longest. When more than twice as many have ended,
/// the others are added to one sum, because a server may serve any number of connections.
pub(super) const KEPT: usize = 1_000;

/// The histories.
#[derive(Debug, Default)]
pub(super) struct Histories {
    /// By socket cookie; cookies grow with time.
    pub(super) kept: BTreeMap<u64, History>,
    /// The connections whose histories are not kept.
    past: Sum,
    /// Number of kept histories whose connections have ended.
    ended: usize,
}

impl Histories {
    /// Adds samples: the flows as the engine saw them last, and the state of sockets. These were listed at `listed_at`; `None`: the
    /// engine has sampled each of them when it last saw its flow.
    pub(super) fn observe(
        &mut self,
        flows: &[FlowState],
        connections: &[Connection],
        listed_at: Option<Micros>,
    ) {
        for flow in flows {
            let new = || History::new(FlowState { closed: false, ..*flow });
            let history = self.kept.entry(flow.cookie).or_insert_with(new);
            match (std::mem::replace(&mut history.last, *flow).closed, flow.closed) {
                (false, true) => {
                    history.record_flow();
                    self.ended += 1;
                }
                // It was out of sight, as while its descriptor passed from one process to another.
                (true, false) => self.ended -= 1,
                (true, true) | (false, false) => {}
            }
        }
        let most = most_points(self.kept.len().saturating_sub(self.ended));
        for connection in connections {
            if let Some(history) = self.kept.get_mut(&connection.cookie)
                && !history.last.closed
            {
                history.record(connection, listed_at.unwrap_or(history.last.seen_at), most);
            }
        }
        if self.ended > 2 * KEPT {
            self.fold();
        }
    }

    /// Keeps the histories of the ended connections that lasted longest, and adds the others to the sum.
    fn fold(&mut self) {
        let ended = self.kept.values().filter(|history| history.last.closed);
        let mut by_time: Vec<(Micros, u64)> =
            ended.map(|history| (history.time(), history.last.cookie)).collect();
        by_time.sort_unstable_by(|one, other| other.cmp(one));
        for (_, cookie) in by_time.drain(KEPT.min(by_time.len())..) {
            if let Some(history) = self.kept.remove(&cookie) {
                self.past.add(&history);
            }
        }
        self.ended = by_time.len();
    }

    /// Returns the sum of all connections.
    pub(super) fn sum(&self) -> Sum {
        let mut sum = self.past.clone();
        self.kept.values().for_each(|history| sum.add(history));
        sum
    }
}

impl History {
    fn new(flow: FlowState) -> Self {
        Self {
            last: flow,
            points: Vec::new(),
            congestion_control: CongestionControl::default(),
            stride: 1,
            skipped: 0,
            previous: None,
            spent: Limited::default(),
            queue: Queue::default(),
        }
    }

    /// Returns how long the connection was seen.
    pub(super) fn time(&self) -> Micros {
        self.last.seen_at.since(self.last.opened_at)
    }

    /// Returns the rate in the direction of more bytes, as long as the connection was seen, bit/s; 0 for no time.
    pub(super) fn goodput_bps(&self) -> f64 {
        let (sample, origin) = (&self.last.sample, &self.last.origin);
        let moved = match self.direction() {
            Direction::Receive => sample.bytes_received - origin.received,
            Direction::Send => sample.bytes_acked - origin.acked,
        };
        let seconds = self.time().as_secs_f64();
        if seconds > 0.0 { moved.0 as f64 * 8.0 / seconds } else { 0.0 }
    }

    /// Returns the smoothed round-trip time; a receiver's own estimate, if there is one.
    pub(super) fn srtt(&self) -> Micros {
        let sample = &self.last.sample;
        if self.receives() && sample.rcv_rtt > Micros::ZERO { sample.rcv_rtt } else { sample.srtt }
    }

    /// Returns the direction in which more bytes went.
    pub(super) fn direction(&self) -> Direction {
        if self.receives() { Direction::Receive } else { Direction::Send }
    }

    /// Whether more bytes came in than went out.
    fn receives(&self) -> bool {
        self.last.sample.bytes_received > self.last.sample.bytes_acked
    }

    fn record(&mut self, connection: &Connection, now: Micros, most: usize) {
        let sample = SocketSample::of(connection, now);
        if let Some(previous) = &self.previous {
            // The engine in user space samples each of many connections more rarely. This is no new sample then, because the
            // times since the last segments (`last_data_recv`) would differ.
            if (previous.info, previous.mem) == (sample.info, sample.mem) {
                return;
            }
            let direction = Direction::so_far(&sample);
            self.spent.add(direction, previous, &sample);
            self.queue.add(direction, previous, &sample);
        }
        self.previous = Some(sample);
        self.congestion_control = connection.congestion;
        let point = Point {
            t: now.since(self.last.opened_at).as_secs_f64(),
            send_buffer_bytes: connection.mem.sndbuf.into(),
            send_queued_bytes: connection.mem.wmem_queued.into(),
            cwnd_bytes: connection.info.cwnd().0,
            receive_buffer_bytes: connection.mem.rcvbuf.into(),
            receive_window_bytes: offered_window(&sample).into(),
        };
        self.add(point, most);
    }

    /// Records the last figures of a connection that has ended; this point is always kept.
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

    fn add(&mut self, point: Point, most: usize) {
        self.skipped += 1;
        if self.skipped < self.stride {
            return;
        }
        self.skipped = 0;
        self.points.push(point);
        if self.points.len() >= most {
            let mut place = 0;
            self.points.retain(|_| {
                place += 1;
                place % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Returns the shares of the observed time, by cause; `None` if there were fewer than two samples.
    pub(super) fn limited(&self) -> Option<Limited> {
        self.spent.shares()
    }
}

/// Returns how many points each of so many open connections keeps.
fn most_points(open: usize) -> usize {
    (POINTS * KEPT / open.max(1)).clamp(LEAST_POINTS, POINTS)
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use bufwise_bpf::{Config, UserEngine};
    use bufwise_units::Bytes;

    use super::*;

    #[test]
    fn beside_many_open_connections_each_keeps_fewer_points() {
        assert_eq!([0, KEPT, 10 * KEPT, 1_000_000].map(most_points), [POINTS, POINTS, 12, LEAST_POINTS]);
    }

    /// A connection of this process, and its record of the engine in user space.
    fn connected() -> (Connection, FlowState) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let one = Connection::of(&client, 0).unwrap();
        // The default configuration sets nothing.
        let mut engine = UserEngine::of_itself(&Config::default());
        engine.poll();
        let flow = engine.flows().into_iter().find(|flow| flow.cookie == one.cookie).unwrap();
        (one, flow)
    }

    #[test]
    fn a_connection_that_was_out_of_sight_ends_once() {
        let (_, flow) = connected();
        let mut histories = Histories::default();
        for (closed, ended) in [(false, 0), (true, 1), (true, 1), (false, 0), (true, 1)] {
            histories.observe(&[FlowState { closed, ..flow }], &[], None);
            assert_eq!(histories.ended, ended);
        }
        assert_eq!((histories.sum().connections(), histories.kept[&flow.cookie].points.len()), (1, 2));
    }

    #[test]
    fn a_sample_has_the_time_at_which_the_engine_took_it() {
        let (one, flow) = connected();
        let mut histories = Histories::default();
        let flow = FlowState { seen_at: flow.opened_at + Micros::from_millis(70), ..flow };
        for (listed_at, t) in [(None, 0.07), (Some(flow.opened_at + Micros::from_millis(99)), 0.099)] {
            let mut one = one;
            one.info.bytes_acked = listed_at.map_or(1, |at| at.0);
            histories.observe(&[flow], &[one], listed_at);
            assert_eq!(histories.kept[&flow.cookie].points.last().map(|point| point.t), Some(t));
        }
    }

    #[test]
    fn a_receivers_round_trip_is_its_own_estimate_in_the_totals_too() {
        let (_, mut flow) = connected();
        (flow.sample.srtt, flow.sample.rcv_rtt) = (Micros(50_000), Micros(107_000));
        assert_eq!(History::new(flow).srtt(), Micros(50_000));
        flow.sample.bytes_received = flow.sample.bytes_acked + Bytes(1);
        assert_eq!(History::new(flow).srtt(), Micros(107_000));
    }

    #[test]
    fn the_time_until_a_connection_is_sampled_again_does_not_count_as_a_pause_of_the_application() {
        let (mut one, flow) = connected();
        let mut history = History::new(flow);
        // Data is under way all the time, and waits.
        one.info.notsent_bytes = 1;
        for tenth in 0..=40 {
            if tenth % 4 == 0 {
                one.info.busy_time = 100_000 * tenth;
            }
            history.record(&one, Micros::from_millis(100 * tenth), POINTS);
        }
        let limited = history.limited().unwrap();
        assert_eq!((limited.application, limited.congestion_window), (0.0, 1.0));
    }
}
