//! A connection as it is shown: to people in tables, to scripts as JSON with stable keys (bytes, seconds, bit/s).
//!
//! Terms: a buffer's *limit* and what its *queue* holds count the kernel's memory, overhead included; windows, BDP
//! and the bytes of a transfer count payload. The kernel takes two bytes of memory for one of payload (socket(7)).
//!
//! *Need* is the memory that a buffer must be allowed for the present rate: four times the payload of the smallest
//! round trip (one window under way and one to follow it, each in twice its size); zero if no data moves. *Waste* is
//! what the limits allow beyond need, the memory held, and a new connection's initial buffers.
//!
//! A view needs one sample of socket diagnostics, or better two, between which rates and causes are measured.

mod listing;
mod sized;
mod tuned;

use std::borrow::Cow;
use std::net::SocketAddr;

use bufwise_bpf::FlowState;
use bufwise_socket::diag::Connection;
use bufwise_socket::info::TcpInfo;
use bufwise_socket::limit::SocketSample;
use bufwise_units::Micros;
use serde::{Deserialize, Serialize};

use crate::containers::Container;
use crate::judge::{Cause, Direction, Limited, Roof, cause, offered_window};
use crate::processes::Process;
use crate::tuner::choice::Choice;

pub use listing::{Known, Listing, Summary};
pub(crate) use sized::{Part, Sized};
pub use tuned::{Fit, FitPhase, FitReason, Tuned};

/// Bytes of memory needed for each byte of payload that moves in a round trip; see above.
const MEMORY_PER_PAYLOAD: u64 = 4;
/// Initial send buffer of a connection, in segments: room for ten of them (RFC 6928), up to three times, each with
/// its memory (`tcp_sndbuf_expand()`; BBR uses the factor three).
const INITIAL_SEND_BUFFER: u64 = 48;
/// Initial receive buffer of a connection, bytes (the default of `tcp_rmem`).
const INITIAL_RECEIVE_BUFFER: u64 = 131_072;

/// Names of the policies of both sides, as `--policy` takes them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PolicyNames {
    /// Policy of senders.
    pub send: String,
    /// Policy of receivers.
    pub receive: String,
}

impl From<Choice> for PolicyNames {
    fn from(choice: Choice) -> Self {
        Self { send: choice.send.to_string(), receive: choice.receive.to_string() }
    }
}

/// One connection, as it is shown.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ConnectionView {
    /// Network namespace: its name, or its inode.
    pub netns: String,
    /// Path of the cgroup in which the socket was made, as in `/proc/PID/cgroup`; omitted if unknown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// The container that the cgroup is part of; omitted outside containers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<Box<Container>>,
    /// Unique number of the socket; never reused while the system runs.
    pub cookie: u64,
    /// Local address.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Number of a process that holds the socket, if visible.
    pub pid: Option<i32>,
    /// Name of that process.
    pub process: Option<String>,
    /// State as in RFC 9293, in lower case: `established`, `fin-wait-1`.
    pub state: String,
    /// Direction of the data.
    pub direction: Direction,
    /// Seconds since the connection was established; only a daemon that has seen it begin knows.
    pub age_s: Option<f64>,
    /// The algorithm's name, as `cubic`.
    pub congestion_control: String,
    /// Payload that the peer has acknowledged, bytes.
    pub bytes_acked: u64,
    /// Payload received from the peer, bytes.
    pub bytes_received: u64,
    /// Payload rate in `direction` between the two samples, bit/s; `null` after one sample.
    pub goodput_bps: Option<u64>,
    /// The kernel's latest delivery-rate sample, bit/s.
    pub delivery_rate_bps: u64,
    /// Bound of the sending rate (`SO_MAX_PACING_RATE`), bit/s, whichever program set it; `null`: none.
    #[serde(default)]
    pub pacing_limit_bps: Option<u64>,
    /// Smoothed round-trip time, seconds.
    pub srtt_s: Option<f64>,
    /// Smallest round-trip time of the last minutes, seconds.
    pub min_rtt_s: Option<f64>,
    /// Congestion window, payload bytes.
    pub cwnd_bytes: u64,
    /// Bandwidth-delay product, payload bytes: delivery rate (receiving: goodput) times the smallest round-trip time.
    pub bdp_bytes: Option<u64>,
    /// Limit of the send buffer, bytes of memory.
    pub send_buffer_bytes: u64,
    /// Content of the send queue, bytes of memory.
    pub send_queued_bytes: u64,
    /// Limit of the receive buffer, bytes of memory.
    pub receive_buffer_bytes: u64,
    /// Content of the receive queue, bytes of memory.
    pub receive_queued_bytes: u64,
    /// Window offered to the peer, payload bytes, as far as the window scale can express it; before Linux 6.2 the largest that it
    /// may be.
    pub receive_window_bytes: u64,
    /// Window that the peer offers, payload bytes.
    pub send_window_bytes: u64,
    /// Segments with data sent, retransmissions included.
    pub segments_out: u64,
    /// Retransmitted segments among these.
    pub retransmits: u64,
    /// Cause that limited the connection between the two samples.
    pub limited_by: Option<Cause>,
    /// Shares of the time by cause, if the connection was watched for longer.
    pub limited: Option<Limited>,
    /// Bytes of memory that the send buffer needs for the present rate; see the head of this file.
    pub send_need_bytes: u64,
    /// Bytes of memory that the receive buffer needs for the present rate.
    pub receive_need_bytes: u64,
    /// Memory that both limits allow beyond need, bytes.
    pub waste_bytes: u64,
    /// Name of the daemon's group that the connection belongs to (`[[group]]` in its configuration); omitted if none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<String>,
    /// The daemon's policies; `null` if no daemon tunes the connection.
    pub policy: Option<PolicyNames>,
    /// Sizes and rates set by the policies; `null` if no daemon tunes the connection.
    pub tuned: Option<Tuned>,
    /// Whether the program set its send buffer itself; `null` if unknown.
    pub application_set_send_buffer: Option<bool>,
    /// Whether the program set its receive buffer itself; `null` if unknown.
    pub application_set_receive_buffer: Option<bool>,
}

/// The inputs of one view.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Name or inode of the network namespace.
    pub netns: &'a str,
    /// Name of the cgroup ([`crate::cgroups`]), if known.
    pub cgroup: Option<&'a str>,
    /// Holder of the socket, if known.
    pub process: Option<&'a Process>,
    /// The present state of the socket.
    pub connection: &'a Connection,
    /// Time of that state.
    pub at: Micros,
    /// An earlier sample of the same socket.
    pub previous: Option<&'a SocketSample>,
    /// Two samples between which rates are computed; `None`: from `previous` to now.
    pub period: Option<[&'a SocketSample; 2]>,
}

impl ConnectionView {
    /// Makes the view from socket diagnostics.
    pub fn new(seen: &Seen<'_>) -> Self {
        let Seen { netns, cgroup, process, connection, at, previous, period } = *seen;
        let Connection { info, mem, .. } = connection;
        let now = SocketSample::of(connection, at);
        let direction = Direction::between(previous, &now);
        let period = period.or_else(|| Some([previous?, &now]));
        let goodput = period.map(|[from, to]| goodput(direction, from, to));
        let limited_by = previous.map(|previous| cause(direction, previous, &now));
        let need = Need::of(period, &now);
        let seconds = |time: Micros| time.as_secs_f64();
        Self {
            netns: netns.to_owned(),
            cgroup: cgroup.map(str::to_owned),
            container: None,
            cookie: connection.cookie,
            local: connection.local,
            peer: connection.peer,
            pid: process.map(|process| process.pid),
            process: process.map(|process| process.name.clone()),
            state: connection.state.as_str().to_owned(),
            direction,
            age_s: None,
            congestion_control: connection.congestion.to_string(),
            bytes_acked: info.bytes_acked,
            bytes_received: info.bytes_received,
            goodput_bps: goodput,
            delivery_rate_bps: info.delivery_rate.saturating_mul(8),
            pacing_limit_bps: pacing_limit(info),
            srtt_s: round_trip(direction, info).map(seconds),
            min_rtt_s: info.min_rtt().map(seconds),
            cwnd_bytes: info.cwnd().0,
            bdp_bytes: bdp(direction, info, goodput),
            send_buffer_bytes: mem.sndbuf.into(),
            send_queued_bytes: mem.wmem_queued.into(),
            receive_buffer_bytes: mem.rcvbuf.into(),
            receive_queued_bytes: mem.rmem_alloc.into(),
            receive_window_bytes: offered_window(&now).into(),
            send_window_bytes: info.snd_wnd.into(),
            segments_out: info.segments_out(),
            retransmits: retransmitted(info),
            limited_by,
            limited: None,
            send_need_bytes: need.send,
            receive_need_bytes: need.receive,
            waste_bytes: waste(need, &now),
            group: None,
            policy: None,
            tuned: None,
            application_set_send_buffer: None,
            application_set_receive_buffer: None,
        }
    }

    /// Adds the engine's figures of the same connection.
    pub fn with_flow(mut self, flow: &FlowState, policy: &PolicyNames, now: Micros) -> Self {
        // Of a connection that existed before, its record tells only when it was found.
        self.age_s = (!flow.origin.adopted).then(|| now.since(flow.opened_at).as_secs_f64());
        self.policy = Some(policy.clone());
        self.tuned = Some(Tuned::of(flow, policy));
        self.application_set_send_buffer = Some(flow.owned.send);
        self.application_set_receive_buffer = Some(flow.owned.receive);
        self
    }

    /// Copies the fields that only the daemon knows from its view of the same connection.
    pub fn take_over(&mut self, known: &Self) {
        self.age_s = known.age_s;
        if self.cgroup.is_none() {
            self.cgroup.clone_from(&known.cgroup);
        }
        // A daemon may be allowed to read what its clients may not.
        if known.container.is_some() && self.container.as_ref().is_none_or(|own| own.pod.is_none()) {
            self.container.clone_from(&known.container);
        }
        self.group.clone_from(&known.group);
        self.policy.clone_from(&known.policy);
        self.tuned = known.tuned;
        self.application_set_send_buffer = known.application_set_send_buffer;
        self.application_set_receive_buffer = known.application_set_receive_buffer;
    }

    /// Returns the cgroup's name for people: that of its container, or else its path.
    pub fn cgroup_label(&self) -> Option<Cow<'_, str>> {
        match &self.container {
            Some(container) => Some(container.label().into()),
            None => self.cgroup.as_deref().map(Cow::from),
        }
    }

    /// Returns the limit of its rate as a sender: fit's roof, or a bound that a program has set. Fit may have set one since the
    /// daemon's list, so beside fit no bound counts as a program's.
    pub fn roof(&self) -> Roof {
        let moved = self.goodput_bps.unwrap_or_default().max(self.delivery_rate_bps);
        let is_a_programs = self.tuned.is_none_or(|own| own.rate_bound_bps.is_none() && own.fit.is_none());
        match (self.direction, self.tuned, self.pacing_limit_bps) {
            (Direction::Receive, ..) => Roof::None,
            (_, _, Some(bound)) if is_a_programs && tuned::is_used(bound, moved) => Roof::Bound,
            (_, Some(tuned), _) => tuned.judged(moved),
            (_, None, _) => Roof::None,
        }
    }

    /// Returns the payload bytes moved so far in its direction.
    pub fn bytes(&self) -> u64 {
        match self.direction {
            Direction::Send => self.bytes_acked,
            Direction::Receive => self.bytes_received,
        }
    }
}

/// Returns the payload rate between two samples, in bit/s.
fn goodput(direction: Direction, previous: &SocketSample, now: &SocketSample) -> u64 {
    let elapsed = now.at.since(previous.at).0.max(1);
    let bits = u128::from(direction.moved(previous, now)) * 8_000_000 / u128::from(elapsed);
    u64::try_from(bits).unwrap_or(u64::MAX)
}

/// Returns how many segments with data were retransmitted. The kernel also counts those of the handshake, which have no
/// data; each of the others has a byte at least.
pub(crate) fn retransmitted(info: &TcpInfo) -> u64 {
    info.segments_retransmitted().min(info.bytes_retrans)
}

/// Returns the bound of the rate in bit/s. The kernel reports no bound as all ones; programs set it as 32 ones.
fn pacing_limit(info: &TcpInfo) -> Option<u64> {
    let limit = info.max_pacing_rate;
    let is_bound = ![0, u64::from(u32::MAX), u64::MAX].contains(&limit);
    is_bound.then(|| limit.saturating_mul(8))
}

/// Returns the round-trip time; at a receiver its own estimate, if any: it sends too few segments for another.
fn round_trip(direction: Direction, info: &TcpInfo) -> Option<Micros> {
    match direction {
        Direction::Send => info.srtt(),
        Direction::Receive => info.rcv_rtt().or_else(|| info.srtt()),
    }
}

/// Returns the path's own round-trip time, without its queue: a queue on the path needs no buffer here.
fn base_round_trip(direction: Direction, info: &TcpInfo) -> Option<Micros> {
    info.min_rtt().or_else(|| round_trip(direction, info))
}

/// Returns the payload bytes that a rate (bit/s) moves in a round trip.
fn in_a_round_trip(rate: u64, round_trip: Micros) -> u64 {
    let bytes = u128::from(rate) * u128::from(round_trip.0) / 8_000_000;
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn bdp(direction: Direction, info: &TcpInfo, goodput: Option<u64>) -> Option<u64> {
    let rate = match direction {
        Direction::Send => info.delivery_rate.saturating_mul(8),
        Direction::Receive => goodput?,
    };
    Some(in_a_round_trip(rate, base_round_trip(direction, info)?))
}

/// Memory that the buffers need for the present rates, bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Need {
    send: u64,
    receive: u64,
}

impl Need {
    fn of(period: Option<[&SocketSample; 2]>, now: &SocketSample) -> Self {
        let info = &now.info;
        let passing = |direction: Direction| {
            let rate = period.map_or(0, |[from, to]| goodput(direction, from, to));
            let sampled = match direction {
                Direction::Send if rate > 0 => info.delivery_rate.saturating_mul(8),
                _ => 0,
            };
            base_round_trip(direction, info).map_or(0, |time| in_a_round_trip(rate.max(sampled), time))
        };
        Self {
            send: MEMORY_PER_PAYLOAD.saturating_mul(passing(Direction::Send)),
            receive: MEMORY_PER_PAYLOAD.saturating_mul(passing(Direction::Receive)),
        }
    }
}

/// Returns the memory that both limits allow beyond need, beyond the queues' content and beyond the initial size.
fn waste(need: Need, SocketSample { info, mem, .. }: &SocketSample) -> u64 {
    let beyond = |limit: u32, held: u32, need: u64, start: u64| {
        u64::from(limit).saturating_sub(need.max(held.into()).max(start))
    };
    let start = INITIAL_SEND_BUFFER * u64::from(info.snd_mss);
    beyond(mem.sndbuf, mem.wmem_queued, need.send, start)
        + beyond(mem.rcvbuf, mem.rmem_alloc, need.receive, INITIAL_RECEIVE_BUFFER)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bufwise_socket::info::SkMem;

    /// Returns two samples: 100 KB in 100 ms over a path of 40 ms, through buffers far larger than needed.
    fn samples() -> (SocketSample, SocketSample) {
        let info = TcpInfo { rtt: 50_000, min_rtt: 40_000, snd_mss: 1_000, ..TcpInfo::default() };
        let mem = SkMem { sndbuf: 4_000_000, rcvbuf: 131_072, wmem_queued: 100_000, ..SkMem::default() };
        let previous = SocketSample { at: Micros::from_secs(1), info, mem };
        let later = TcpInfo { bytes_acked: 100_000, delivery_rate: 1_250_000, ..info };
        (previous, SocketSample { at: Micros::from_millis(1_100), info: later, mem })
    }

    /// Returns a connection for tests that need any.
    pub(crate) fn connection() -> Connection {
        let (client, _server) = {
            let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
            let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            (client, listener)
        };
        let mut diag = bufwise_socket::diag::Diag::open().unwrap();
        let all = diag.tcp(bufwise_socket::diag::States::CONNECTED).unwrap();
        let own = client.local_addr().unwrap();
        all.into_iter().find(|one| one.local == own).expect("ours is listed")
    }

    fn view(previous: Option<&SocketSample>, now: &SocketSample) -> ConnectionView {
        let connection = Connection { info: now.info, mem: now.mem, ..connection() };
        let process = Process { pid: 7, name: "rsync".to_owned() };
        ConnectionView::new(&Seen {
            netns: "blue",
            cgroup: Some("/system.slice/rsync.service"),
            process: Some(&process),
            connection: &connection,
            at: now.at,
            previous,
            period: None,
        })
    }

    /// Returns a view for tests that need any.
    pub(crate) fn connection_view() -> ConnectionView {
        let (previous, now) = samples();
        view(Some(&previous), &now)
    }

    #[test]
    fn rates_are_of_the_time_between_the_samples() {
        let view = connection_view();
        assert_eq!((view.direction, view.goodput_bps), (Direction::Send, Some(8_000_000)));
        assert_eq!(view.delivery_rate_bps, 10_000_000);
        // 1.25 MB/s over 40 ms.
        assert_eq!(view.bdp_bytes, Some(50_000));
        assert_eq!((view.srtt_s, view.min_rtt_s), (Some(0.050), Some(0.040)));
        assert_eq!(
            (view.netns.as_str(), view.pid, view.process.as_deref()),
            ("blue", Some(7), Some("rsync"))
        );
        assert_eq!(view.state, "established");
    }

    #[test]
    fn a_bound_of_the_rate_is_seen_without_a_daemon() {
        let (previous, now) = samples();
        let bound = |max_pacing_rate| {
            let info = TcpInfo { max_pacing_rate, ..now.info };
            view(Some(&previous), &SocketSample { info, ..now })
        };
        let held = bound(1_250_000);
        assert_eq!((held.pacing_limit_bps, held.roof()), (Some(10_000_000), Roof::Bound));
        assert_eq!(bound(2_500_000).roof(), Roof::None, "it is not used");
        for none in [u64::MAX, u64::from(u32::MAX), 0] {
            assert_eq!((bound(none).pacing_limit_bps, bound(none).roof()), (None, Roof::None));
        }
    }

    #[test]
    fn a_programs_bound_of_the_rate_is_seen_beside_a_daemon_that_has_set_none() {
        let (previous, now) = samples();
        let info = TcpInfo { max_pacing_rate: 1_250_000, ..now.info };
        let held = view(Some(&previous), &SocketSample { info, ..now });
        let roof = |tuned: Tuned| ConnectionView { tuned: Some(tuned), ..held.clone() }.roof();
        assert_eq!(roof(Tuned::default()), Roof::Bound);
        assert_eq!(roof(Tuned { rate_bound_bps: Some(10_000_000), ..Tuned::default() }), Roof::None);
    }

    #[test]
    fn a_handshake_that_was_repeated_is_no_loss_of_data() {
        let (previous, now) = samples();
        let retransmits = |total_retrans, bytes_retrans| {
            let info = TcpInfo { total_retrans, bytes_retrans, ..now.info };
            view(Some(&previous), &SocketSample { info, ..now }).retransmits
        };
        assert_eq!((retransmits(2, 0), retransmits(3, 2_000)), (0, 3));
    }

    #[test]
    fn a_kernel_that_does_not_report_the_window_shows_the_largest_one() {
        let (_, now) = samples();
        let offered = |rcv_wnd, rmem_alloc| {
            let info = TcpInfo { rcv_wnd, rcv_ssthresh: 65_160, ..now.info };
            let mem = SkMem { rmem_alloc, ..now.mem };
            view(None, &SocketSample { info, mem, ..now }).receive_window_bytes
        };
        assert_eq!((offered(0, 0), offered(30_000, 0)), (65_160, 30_000));
        assert_eq!(offered(0, 130_000), 0, "a full buffer");
    }

    #[test]
    fn after_one_sample_there_is_no_rate_and_no_cause() {
        let view = view(None, &samples().1);
        assert_eq!((view.goodput_bps, view.limited_by), (None, None));
    }

    #[test]
    fn waste_is_what_the_limits_allow_beyond_need() {
        let (previous, now) = samples();
        // 1.25 MB/s over 40 ms is 50,000 bytes; times four is the need of the send side.
        assert_eq!(waste(Need::of(Some([&previous, &now]), &now), &now), 4_000_000 - 200_000);
        // An idle connection needs its initial size; memory that is held is no waste.
        assert_eq!(waste(Need::of(Some([&now, &now]), &now), &now), 4_000_000 - 100_000);
        let small = SocketSample { mem: SkMem { sndbuf: 16_384, rcvbuf: 65_536, ..SkMem::default() }, ..now };
        assert_eq!(waste(Need::of(Some([&previous, &now]), &small), &small), 0);
    }

    #[test]
    fn a_queue_on_the_path_needs_no_buffer() {
        // 3.3 MB/s over a path of 60 ms: a BDP of 200 KB, and a queue that makes the round trip 107 ms.
        let info = TcpInfo { rcv_rtt: 107_000, min_rtt: 60_000, ..TcpInfo::default() };
        let previous = SocketSample { info, ..SocketSample::default() };
        let later = TcpInfo { bytes_received: 3_333_333, ..info };
        let now = SocketSample { at: Micros::from_secs(1), info: later, ..SocketSample::default() };
        assert_eq!(Need::of(Some([&previous, &now]), &now), Need { send: 0, receive: 4 * 199_999 });
        let sends = TcpInfo { bytes_acked: 3_333_333, rtt: 107_000, ..info };
        let now = SocketSample { info: sends, ..now };
        assert_eq!(Need::of(Some([&previous, &now]), &now), Need { send: 4 * 199_999, receive: 0 });
    }

    #[test]
    fn a_daemon_that_may_read_more_names_the_container() {
        let container = |pod: Option<&str>| {
            let pod = pod.map(str::to_owned);
            Some(Box::new(Container {
                id: "a".repeat(64),
                namespace: pod.clone(),
                pod,
                ..Container::default()
            }))
        };
        let told = |own: Option<&str>, known: Option<&str>| {
            let mut view = ConnectionView { container: container(own), ..connection_view() };
            view.take_over(&ConnectionView { container: container(known), ..view.clone() });
            view.cgroup_label().map(Cow::into_owned)
        };
        assert_eq!(told(None, Some("b")).as_deref(), Some("b/b"));
        assert_eq!(told(Some("a"), None).as_deref(), Some("a/a"));
        assert_eq!(told(None, None).as_deref(), Some("container aaaaaaaaaaaa"));
        assert_eq!(connection_view().cgroup_label().as_deref(), Some("/system.slice/rsync.service"));
    }

    #[test]
    fn what_the_engine_knows_of_it_is_added() {
        use bufwise_bpf::Owned;
        use bufwise_units::Bytes;
        let one = connection_view();
        let mut flow = FlowState {
            opened_at: Micros::from_secs(1),
            set_send_buffer: Some(Bytes(300_000)),
            send_changes: 3,
            owned: Owned { send: false, receive: true },
            ..crate::tuner::tests::flow(one.cookie, 0)
        };
        let policy = PolicyNames { send: "abt".to_owned(), receive: "sobas".to_owned() };
        let view = one.clone().with_flow(&flow, &policy, Micros::from_secs(4));
        flow.origin.adopted = true;
        let found = one.with_flow(&flow, &policy, Micros::from_secs(4));
        assert_eq!(found.age_s, None, "it may be older than its record");
        let tuned = Tuned { send_buffer_bytes: Some(300_000), send_changes: 3, ..Tuned::default() };
        assert_eq!((view.age_s, view.tuned, view.policy), (Some(3.0), Some(tuned), Some(policy)));
        assert_eq!(
            (view.application_set_send_buffer, view.application_set_receive_buffer),
            (Some(false), Some(true))
        );
    }
}
