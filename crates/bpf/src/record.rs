//! Fills a connection's record (`struct bw_flow`) from socket diagnostics, as `sample()` in `socket.h` fills it from
//! the socket.

use std::net::{IpAddr, SocketAddr};

use bufwise_socket::diag::{CongestionControl as Name, Connection};
use bufwise_units::CongestionControl;

use crate::abi::bw_flow;
use crate::flow::{CLOSED, number_of};
use crate::rules;
use crate::version::tells_windows;

/// Bytes that a writer fills at once on most devices, whatever its limit (`GSO_LEGACY_MAX_SIZE`).
const LAST_BUFFER: u32 = 65_536;
/// Interval in microseconds over which a record counts delivered segments.
const SECOND: u32 = 1_000_000;

/// Makes the record of an existing connection; `locks` says which buffers are locked (bits as in `sk_userlocks`);
/// `at` is in microseconds.
pub(crate) fn adopted(one: &Connection, netns: u64, locks: u32, at: u64) -> bw_flow {
    let (family, local_ip) = words(one.local);
    let (_, remote_ip) = words(one.peer);
    let mut flow = bw_flow {
        local_ip,
        remote_ip,
        local_port: one.local.port().into(),
        remote_port: one.peer.port().into(),
        family,
        state: one.info.state.into(),
        opened_at: at,
        began_at: at,
        active_at: at,
        rcv_wscale: one.info.rcv_wscale().into(),
        inode: one.inode.into(),
        netns: u32::try_from(netns).unwrap_or_default(),
        user_space: 1,
        adopted: 1,
        // Socket diagnostics do not report this.
        paced: 1,
        found_locks: locks,
        found_sndbuf: one.mem.sndbuf,
        found_rcvbuf: one.mem.rcvbuf,
        base_acked: one.info.bytes_acked,
        base_received: one.info.bytes_received,
        ..bw_flow::default()
    };
    note(&mut flow, one, at);
    // The kernel's autotuning measures the same as DRS: the most data read in a round trip.
    flow.drs.largest = one.info.rcv_space.into();
    flow.drs_before = flow.drs.largest;
    flow
}

/// Updates the record from diagnostics at `at` (microseconds).
pub(crate) fn note(flow: &mut bw_flow, one: &Connection, at: u64) {
    let (info, mem) = (&one.info, &one.mem);
    if info.bytes_acked != flow.bytes_acked {
        rules::note_rtt(flow, at);
    }
    flow.sampled_at = at;
    flow.swept_at = at;
    flow.samples += 1;
    flow.state = info.state.into();
    flow.bytes_acked = info.bytes_acked;
    flow.bytes_received = info.bytes_received;
    flow.bytes_sent = info.bytes_sent;
    flow.cwnd = info.snd_cwnd;
    flow.mss = info.snd_mss;
    flow.rcv_mss = info.rcv_mss;
    flow.srtt = info.rtt;
    flow.min_rtt = info.min_rtt;
    flow.rcv_rtt = info.rcv_rtt;
    flow.retrans = info.total_retrans;
    flow.segs_out = info.data_segs_out;
    flow.segs_in = info.data_segs_in;
    flow.out_of_order = info.rcv_ooopack.wrapping_sub(flow.fit_window.found_out_of_order);
    flow.delivered_segs = info.delivered;
    flow.rcv_wnd = offered(info.rcv_wnd, mem.rcvbuf, tells_windows());
    flow.delivered = u32::try_from(info.delivery_rate / u64::from(info.snd_mss.max(1))).unwrap_or(u32::MAX);
    flow.delivered_in = SECOND;
    flow.sndbuf = mem.sndbuf;
    flow.rcvbuf = mem.rcvbuf;
    flow.last_buffer = LAST_BUFFER.min(info.snd_wnd / 2).max(info.snd_mss);
    flow.send_queued = mem.wmem_queued;
    flow.send_queued_max = flow.send_queued_max.max(mem.wmem_queued);
    flow.receive_queued = mem.rmem_alloc;
    flow.app_limited = info.app_limited().into();
    flow.rto = info.rto;
    flow.congestion_control = congestion_control(&one.congestion);
}

/// Returns the window on offer (bytes), as the kernel reports it. Where it reports none, the window is at most half of the buffer.
/// Otherwise 0 is the window of a reader that has stopped: a larger one would make its buffer grow.
fn offered(reported: u32, rcvbuf: u32, is_reported: bool) -> u32 {
    if reported == 0 && !is_reported { rcvbuf / 2 } else { reported }
}

/// Returns a number that grows whenever data moves: the bytes in both directions and the segments out of order, because the
/// kernel counts bytes behind a hole only when the hole is filled.
pub(crate) fn moved(one: &Connection) -> u64 {
    let info = &one.info;
    let bytes = info.bytes_sent.wrapping_add(info.bytes_acked).wrapping_add(info.bytes_received);
    bytes.wrapping_add(info.rcv_ooopack.into())
}

/// Returns the number in `enum bw_cc` of a congestion control.
fn congestion_control(name: &Name) -> u32 {
    number_of(match name.as_str() {
        "reno" => CongestionControl::Reno,
        "cubic" => CongestionControl::Cubic,
        _ => CongestionControl::Other,
    })
}

/// Marks the connection as closed; its last figures stay.
pub(crate) fn close(flow: &mut bw_flow) {
    flow.state = CLOSED;
}

/// Returns family and words of an address in the programs' form: IPv4 in the first word, network byte order.
fn words(address: SocketAddr) -> (u32, [u32; 4]) {
    match address.ip() {
        IpAddr::V4(ip) => (4, [u32::from_ne_bytes(ip.octets()), 0, 0, 0]),
        IpAddr::V6(ip) => {
            let mut words = [0; 4];
            for (word, bytes) in words.iter_mut().zip(ip.octets().chunks_exact(4)) {
                *word = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
            }
            (6, words)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_of_zero_is_unknown_only_where_the_kernel_reports_none() {
        assert_eq!([offered(0, 131_072, false), offered(0, 131_072, true)], [65_536, 0]);
        assert_eq!([false, true].map(|is_reported| offered(20_000, 131_072, is_reported)), [20_000; 2]);
    }
}
