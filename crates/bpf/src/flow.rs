//! One connection as the kernel's side last sampled it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use bufwise_socket::info::TcpInfo;
use bufwise_units::{Bytes, CongestionControl, Micros, Rate, Sample};

use crate::abi::bw_flow;
use crate::fit::FitState;

/// `tcpi_min_rtt` before the first measurement.
const NO_RTT: u32 = u32::MAX;
/// Bits of `owned` and `given_back`: as in the kernel's `sk_userlocks`; and in `owned` the window clamp.
pub(crate) const SEND: u32 = 1;
pub(crate) const RECEIVE: u32 = 2;
pub(crate) const CLAMP: u32 = 4;
/// The kernel's numbers of states.
const ESTABLISHED: u32 = 1;
const CLOSE_WAIT: u32 = 8;
pub(crate) const CLOSED: u32 = 7;
/// `BW_KNOWN` of `bpf/match.h`: the connection's program is known.
pub(crate) const KNOWN: u32 = 1 << 31;
/// IPv4 in the word of `family`.
const V4: u32 = 4;

/// Marks buffers whose size the application has set, so that bufwise leaves them alone ([`FlowState::owned`]), or whose
/// size bufwise has set ([`FlowState::ours`]).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    /// The send buffer.
    pub send: bool,
    /// The receive buffer.
    pub receive: bool,
}

/// How bufwise found a connection, and where.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// It existed before the programs; the end that opened it is then unknown.
    pub adopted: bool,
    /// Bytes acknowledged when it was found; subtract them from the current count for the bytes since. A connection whose
    /// record is late has moved a little by then.
    pub acked: Bytes,
    /// Bytes received when it was found.
    pub received: Bytes,
    /// Buffers that were locked when it was found.
    pub locked: Owned,
    /// Limit of the send buffer when it was found (memory).
    pub send_buffer: Bytes,
    /// Limit of the receive buffer when it was found (memory).
    pub receive_buffer: Bytes,
    /// Inode in `/proc/PID/fd`; `None` until it is known, at the latest after the next sweep.
    pub inode: Option<u64>,
    /// Inode of its network namespace; 0: not known, as in user space without privilege.
    pub netns: u64,
}

/// The state of SOBAS (Prasad 2004, figure 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "the names are those of bufwise_policy::sobas::State")]
pub enum SobasState {
    Estimating,
    SlowStart,
    Recovery,
    BufferLimited,
    Final,
    Congested,
}

/// The state of one connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Unique number of the socket; never reused while the system runs.
    pub cookie: u64,
    /// Local address; an IPv4 connection of an IPv6 socket is shown as IPv4.
    pub local: SocketAddr,
    /// The peer's address.
    pub peer: SocketAddr,
    /// Whether this end opened the connection.
    pub initiator: bool,
    /// Whether the connection has closed; these are then its last figures.
    pub closed: bool,
    /// Whether its application may still send: ESTABLISHED or CLOSE_WAIT.
    pub may_send: bool,
    /// Time at which its record was made, on the clock of [`crate::now`]: when it was established, or later if it was found or
    /// its record is late.
    pub opened_at: Micros,
    /// Time at which it began as a sender: when its record was made, or with the first new data acknowledged after five
    /// seconds without any.
    pub began_at: Micros,
    /// Time of its last sample.
    pub seen_at: Micros,
    /// The last sample, on which policies decide.
    pub sample: Sample,
    /// Payload sent, retransmissions included.
    pub bytes_sent: Bytes,
    /// Limit of the send buffer (memory) that bufwise set last; `None`: none.
    pub set_send_buffer: Option<Bytes>,
    /// Limit of the receive buffer (memory) that bufwise set last; `None`: none.
    pub set_receive_buffer: Option<Bytes>,
    /// Limit of the send buffer (memory) that was requested of user space, and not granted by the last sample; `None`: none.
    pub requested_send_buffer: Option<Bytes>,
    /// The same for the receive buffer.
    pub requested_receive_buffer: Option<Bytes>,
    /// Window clamp (payload) that bufwise set last; `None`: none, or the application has set its own.
    pub set_window: Option<Bytes>,
    /// Pacing rate that keeps it to its share of the memory, or below fit's roof; `None`: none.
    pub set_pacing: Option<Rate>,
    /// Bound of the bytes written and not sent (`TCP_NOTSENT_LOWAT`); `None`: none.
    pub set_unsent: Option<Bytes>,
    /// Payload that the send buffer should hold by the last decision, whether applied or not.
    pub decided_send: Option<Bytes>,
    /// Window (payload) by the last decision, whether applied or not.
    pub decided_window: Option<Bytes>,
    /// Number of changes of the send buffer.
    pub send_changes: u32,
    /// Number of changes of the window clamp.
    pub window_changes: u32,
    /// Buffers that the application has set.
    pub owned: Owned,
    /// ABT's network target, payload bytes.
    pub net_target: Bytes,
    /// Largest memory that the send queue was seen to hold, bytes.
    pub send_queued_max: Bytes,
    /// Memory that its writer fills at once, whatever the limit is (`tcp_xmit_size_goal()`), bytes.
    pub last_buffer: Bytes,
    /// State of SOBAS, if it runs.
    pub sobas: SobasState,
    /// Largest measurement of DRS, payload bytes per round trip.
    pub drs_largest: Bytes,
    /// State of fit for it as a sender.
    pub fit: FitState,
    /// Number of callbacks and sweeps that sampled the connection.
    pub samples: u32,
    /// How it was found, and where.
    pub origin: Origin,
    /// Time at which a sweep last met it.
    pub swept_at: Option<Micros>,
    /// Time at which it last moved data, as seen by sweeps.
    pub active_at: Micros,
    /// Whether its buffers were given back because it is silent.
    pub given_back: bool,
    /// Groups (a bit each) that match its program; `None`: the programs have not seen its program.
    pub program_groups: Option<u32>,
}

impl FlowState {
    /// Returns whether no sweep has met it since it last moved data. A sweep samples each connection, whether it has moved
    /// data or not.
    #[must_use]
    pub fn is_unswept(&self) -> bool {
        self.swept_at.is_none_or(|at| at < self.seen_at)
    }

    /// Returns when it last moved data, as far as samples show.
    #[must_use]
    pub fn moved_at(&self) -> Micros {
        if self.is_unswept() { self.seen_at } else { self.active_at }
    }

    pub(crate) fn from_kernel(cookie: u64, flow: &bw_flow) -> Self {
        Self {
            cookie,
            local: address(flow.family, flow.local_ip, flow.local_port),
            peer: address(flow.family, flow.remote_ip, flow.remote_port),
            initiator: flow.initiator != 0,
            closed: Self::is_over(flow),
            may_send: matches!(flow.state, ESTABLISHED | CLOSE_WAIT),
            opened_at: Micros(flow.opened_at),
            began_at: Micros(flow.began_at),
            seen_at: Micros(flow.sampled_at),
            sample: sample(flow),
            bytes_sent: Bytes(flow.bytes_sent),
            set_send_buffer: set(flow.set_sndbuf),
            set_receive_buffer: set(flow.set_rcvbuf),
            requested_send_buffer: set(flow.requested_sndbuf),
            requested_receive_buffer: set(flow.requested_rcvbuf),
            set_window: set(flow.set_clamp).filter(|_| flow.owned & CLAMP == 0),
            set_pacing: (flow.set_pace != 0).then_some(Rate(flow.set_pace.into())),
            set_unsent: set(flow.set_unsent),
            decided_send: (flow.decided_send != 0).then_some(Bytes(flow.decided_send)),
            decided_window: (flow.decided_window != 0).then_some(Bytes(flow.decided_window)),
            send_changes: flow.send_changes,
            window_changes: flow.clamp_changes,
            owned: owned(flow.owned),
            net_target: Bytes(flow.abt.net_target),
            send_queued_max: Bytes(flow.send_queued_max.into()),
            last_buffer: Bytes(flow.last_buffer.into()),
            sobas: sobas(flow.sobas.state),
            drs_largest: Bytes(flow.drs.largest),
            fit: FitState::from_kernel(flow),
            samples: flow.samples,
            origin: origin(flow),
            swept_at: (flow.swept_at != 0).then_some(Micros(flow.swept_at)),
            active_at: Micros(flow.active_at),
            given_back: flow.given_back != 0,
            program_groups: (flow.program_groups & KNOWN != 0).then_some(flow.program_groups & !KNOWN),
        }
    }

    /// Returns the buffers that bufwise has set and the application has not set since.
    #[must_use]
    pub fn ours(&self) -> Owned {
        Owned {
            send: self.set_send_buffer.is_some() && !self.owned.send,
            receive: self.set_receive_buffer.is_some() && !self.owned.receive,
        }
    }

    /// Returns whether it is open and has a setting of bufwise.
    #[must_use]
    pub fn is_touched(&self) -> bool {
        let sizes = [self.set_send_buffer, self.set_receive_buffer, self.set_window, self.set_unsent];
        !self.closed && (sizes.iter().any(Option::is_some) || self.set_pacing.is_some())
    }

    /// Returns whether it is open and a request for one of its buffers may have been granted since the last sample.
    pub(crate) fn is_requesting(&self) -> bool {
        !self.closed && (self.requested_send_buffer.is_some() || self.requested_receive_buffer.is_some())
    }

    pub(crate) fn is_over(flow: &bw_flow) -> bool {
        flow.state == CLOSED
    }
}

fn owned(bits: u32) -> Owned {
    Owned { send: bits & SEND != 0, receive: bits & RECEIVE != 0 }
}

fn origin(flow: &bw_flow) -> Origin {
    Origin {
        adopted: flow.adopted != 0,
        acked: Bytes(flow.base_acked),
        received: Bytes(flow.base_received),
        locked: owned(flow.found_locks),
        send_buffer: Bytes(flow.found_sndbuf.into()),
        receive_buffer: Bytes(flow.found_rcvbuf.into()),
        inode: (flow.inode != 0).then_some(flow.inode),
        netns: flow.netns.into(),
    }
}

fn set(size: u32) -> Option<Bytes> {
    (size != 0).then_some(Bytes(size.into()))
}

pub(crate) fn sobas(state: u32) -> SobasState {
    match state {
        2 => SobasState::SlowStart,
        3 => SobasState::Recovery,
        4 => SobasState::BufferLimited,
        5 => SobasState::Final,
        6 => SobasState::Congested,
        _ => SobasState::Estimating,
    }
}

fn sample(flow: &bw_flow) -> Sample {
    let mss = if flow.bytes_received > flow.bytes_sent { flow.rcv_mss.max(flow.mss) } else { flow.mss };
    let delivered = Bytes(u64::from(flow.delivered) * u64::from(flow.mss));
    Sample {
        mss: Bytes(mss.into()),
        cwnd: Bytes(u64::from(flow.cwnd) * u64::from(flow.mss)),
        srtt: Micros(flow.srtt.into()),
        min_rtt: Micros(if flow.min_rtt == NO_RTT { 0 } else { flow.min_rtt.into() }),
        segs_out: segments_out(flow),
        segs_lost: flow.retrans.into(),
        loss_events: Some(flow.loss_events.count.into()),
        congestion_control: congestion_control(flow.congestion_control),
        rto: Micros(flow.rto.into()),
        app_limited: flow.app_limited != 0,
        bytes_acked: Bytes(flow.bytes_acked),
        delivery_rate: if flow.delivered_in == 0 {
            Rate::ZERO
        } else {
            delivered.per(Micros(flow.delivered_in.into()))
        },
        sndbuf: Bytes(flow.sndbuf.into()),
        send_queued: Bytes(flow.send_queued.into()),
        bytes_received: Bytes(flow.bytes_received),
        rcv_rtt: Micros(flow.rcv_rtt.into()),
        rcvbuf: Bytes(flow.rcvbuf.into()),
        receive_queued: Bytes(flow.receive_queued.into()),
        rcv_wnd: Bytes(flow.rcv_wnd.into()),
        segs_in: flow.segs_in.into(),
        rcv_out_of_order: flow.out_of_order.into(),
        ..Sample::default()
    }
}

/// Returns how many segments with data were sent. The record has 32 bits, as the kernel does; the bytes sent tell the others.
fn segments_out(flow: &bw_flow) -> u64 {
    let (data_segs_out, bytes_sent, snd_mss) = (flow.segs_out, flow.bytes_sent, flow.mss);
    TcpInfo { data_segs_out, bytes_sent, snd_mss, ..TcpInfo::default() }.segments_out()
}

/// Returns the congestion control with this number in `enum bw_cc`.
fn congestion_control(number: u32) -> CongestionControl {
    let known = [CongestionControl::Reno, CongestionControl::Cubic];
    known.into_iter().find(|one| number_of(*one) == number).unwrap_or(CongestionControl::Other)
}

/// Returns the number in `enum bw_cc`.
pub(crate) fn number_of(control: CongestionControl) -> u32 {
    match control {
        CongestionControl::Other => 0,
        CongestionControl::Reno => 1,
        CongestionControl::Cubic => 2,
    }
}

/// Converts a size to the 32 bits of a record; the kernel's sizes are below 2^31.
pub(crate) fn word(size: u64) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

fn address(family: u32, words: [u32; 4], port: u32) -> SocketAddr {
    let ip = if family == V4 {
        IpAddr::V4(Ipv4Addr::from(words[0].to_ne_bytes()))
    } else {
        let mut bytes = [0; 16];
        for (part, word) in bytes.chunks_exact_mut(4).zip(words) {
            part.copy_from_slice(&word.to_ne_bytes());
        }
        IpAddr::V6(Ipv6Addr::from(bytes)).to_canonical()
    };
    // The kernel's ports have 16 bits.
    SocketAddr::new(ip, u16::try_from(port).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::abi::bw_fit;

    #[test]
    fn the_rate_that_was_set_and_the_roof_that_was_decided_are_both_shown() {
        let fit = bw_fit { phase: 2, roof: 3_000_000, ..bw_fit::default() };
        let flow = bw_flow { family: V4, set_pace: 2_000_000, fit, ..bw_flow::default() };
        let state = FlowState::from_kernel(1, &flow);
        assert_eq!((state.set_pacing, state.fit.roof), (Some(Rate(2_000_000)), Some(Rate(3_000_000))));
        assert_eq!(FlowState::from_kernel(1, &bw_flow::default()).set_pacing, None);
    }

    #[test]
    fn segments_are_counted_beyond_32_bits() {
        let sent = |segs_out, bytes_sent| {
            let flow = bw_flow { family: V4, mss: 1_000, segs_out, bytes_sent, ..bw_flow::default() };
            FlowState::from_kernel(1, &flow).sample.segs_out
        };
        let turn = 1_u64 << 32;
        assert_eq!((sent(5, 5_000), sent(5, 5_000 + 1_000 * turn)), (5, 5 + turn));
    }

    #[test]
    fn addresses_are_read_in_network_order_and_mapped_ones_show_as_ipv4() {
        let word = |bytes: [u8; 4]| u32::from_ne_bytes(bytes);
        let v4 = [word([198, 18, 0, 2]), 0, 0, 0];
        assert_eq!(address(4, v4, 5_201), "198.18.0.2:5201".parse().unwrap());
        let v6 = [word([0xfd, 0, 0, 0x0b]), 0, 0, word([0, 0, 0, 2])];
        assert_eq!(address(6, v6, 80), "[fd00:b::2]:80".parse().unwrap());
        let mapped = [0, 0, word([0, 0, 0xff, 0xff]), word([127, 0, 0, 1])];
        assert_eq!(address(6, mapped, 443), "127.0.0.1:443".parse().unwrap());
    }
}
