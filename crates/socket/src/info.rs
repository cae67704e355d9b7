//! The kernel's information on one TCP connection: `TCP_INFO` and the socket's memory.
//!
//! Problem: the structure grows with every few kernels, and libraries lag years behind. This module decodes up to
//! the newest field of Linux 6.18.
//! Source: `struct tcp_info` in `linux/tcp.h`, filled by `tcp_get_info()` in `net/ipv4/tcp.c`;
//! `sk_get_meminfo()` in `net/core/sock.c`; RFC 4898 for the counters' meaning.
//! Properties kept: decoding accepts any bytes of any length and never fails; a field that an older kernel
//! does not send is 0; bytes that a newer kernel adds are ignored.

use bufwise_units::{Bytes, Micros, Rate, Sample};

/// `tcpi_snd_ssthresh` of a connection that has not lost anything yet (`TCP_INFINITE_SSTHRESH`).
const INFINITE_SSTHRESH: u32 = 0x7fff_ffff;
/// `tcpi_min_rtt` before the first measurement.
const NO_MIN_RTT: u32 = u32::MAX;

/// Declares a structure as the kernel lays it out, without padding, and its decoder.
macro_rules! kernel_struct {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$doc:meta])* pub $field:ident: $type:ty,)+ }) => {
        $(#[$about])*
        #[repr(C)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name { $($(#[$doc])* pub $field: $type,)+ }

        impl $name {
            /// Decodes the structure from the kernel's bytes; fields missing at the end are 0.
            #[must_use]
            pub fn decode(bytes: &[u8]) -> Self {
                let mut rest = bytes;
                Self { $($field: take(&mut rest).map_or(0, <$type>::from_ne_bytes),)+ }
            }
        }

        // Reading field after field is right only while the layout has no holes.
        const _: () = assert!(size_of::<$name>() == 0 $(+ size_of::<$type>())+);
    };
}

/// Takes the next `N` bytes; if too few are left, takes the rest and returns `None`, so that later fields are absent
/// too.
fn take<const N: usize>(rest: &mut &[u8]) -> Option<[u8; N]> {
    let (field, after) = rest.split_first_chunk().unwrap_or((&[0; N], &[]));
    let present = rest.len() >= N;
    *rest = after;
    present.then_some(*field)
}

kernel_struct! {
    /// `struct tcp_info`, names as in `linux/tcp.h` without `tcpi_`. Times are in microseconds unless a field says
    /// otherwise.
    ///
    /// ```
    /// use bufwise_socket::info::TcpInfo;
    /// use bufwise_units::{Bytes, Micros};
    ///
    ///  // An old kernel sends less: missing fields are 0, and unmeasured values are `None`.
    /// let info = TcpInfo::decode(&[1; 72]);
    /// assert_eq!((info.state, info.min_rtt()), (1, None));
    /// let info = TcpInfo { rtt: 40_000, snd_cwnd: 10, snd_mss: 1_448, ..TcpInfo::default() };
    /// assert_eq!((info.srtt(), info.cwnd()), (Some(Micros::from_millis(40)), Bytes(14_480)));
    /// ```
    pub struct TcpInfo {
        /// Connection state (`TCP_ESTABLISHED` = 1 ...).
        pub state: u8,
        /// Congestion state: 0 open, 1 disorder, 2 CWR, 3 recovery, 4 loss.
        pub ca_state: u8,
        /// Retransmission time-outs in a row without an answer.
        pub retransmits: u8,
        /// Window or keep-alive probes without an answer.
        pub probes: u8,
        /// Exponent of the time-out's back-off.
        pub backoff: u8,
        /// Options agreed on: 1 timestamps, 2 SACK, 4 window scale, 8 ECN, 16 ECN seen, 32 SYN data.
        pub options: u8,
        /// Window scales of both ends; see [`TcpInfo::rcv_wscale`].
        pub wscales: u8,
        /// Bit 0: see [`TcpInfo::app_limited`]; bits 1-2: why TCP Fast Open failed.
        pub flags: u8,
        /// Retransmission time-out.
        pub rto: u32,
        /// Delayed-acknowledgement time-out.
        pub ato: u32,
        /// Payload of the segments sent, bytes.
        pub snd_mss: u32,
        /// Payload of the segments received (an estimate), bytes.
        pub rcv_mss: u32,
        /// Segments in flight or queued for retransmission; of a listener: connections waiting for `accept`.
        pub unacked: u32,
        /// Segments acknowledged selectively; of a listener: the backlog's limit.
        pub sacked: u32,
        /// Segments marked as lost.
        pub lost: u32,
        /// Segments retransmitted and not yet acknowledged.
        pub retrans: u32,
        /// Linux no longer fills this.
        pub fackets: u32,
        /// Milliseconds since data was last sent.
        pub last_data_sent: u32,
        /// Linux does not fill this.
        pub last_ack_sent: u32,
        /// Milliseconds since data last arrived.
        pub last_data_recv: u32,
        /// Milliseconds since an acknowledgement last arrived.
        pub last_ack_recv: u32,
        /// Path MTU, bytes.
        pub pmtu: u32,
        /// Largest window the receiver is ready to offer now, bytes.
        pub rcv_ssthresh: u32,
        /// Smoothed round-trip time.
        pub rtt: u32,
        /// Mean deviation of the round-trip time.
        pub rttvar: u32,
        /// Slow-start threshold, segments; 0x7fffffff: none yet.
        pub snd_ssthresh: u32,
        /// Congestion window, segments.
        pub snd_cwnd: u32,
        /// Largest segment that this end asked the peer to send, bytes.
        pub advmss: u32,
        /// Reordering distance that loss detection tolerates, segments.
        pub reordering: u32,
        /// The receiver's estimate of the round-trip time; 0: none.
        pub rcv_rtt: u32,
        /// Bytes the application read in the last receiver round trip (receive autotuning's measure).
        pub rcv_space: u32,
        /// Segments retransmitted since the connection began.
        pub total_retrans: u32,
        /// Rate the sender is paced at now, bytes/s.
        pub pacing_rate: u64,
        /// `SO_MAX_PACING_RATE`, bytes/s; all ones: no limit.
        pub max_pacing_rate: u64,
        /// Bytes acknowledged by the peer; the active opener's SYN and a FIN count as one each.
        pub bytes_acked: u64,
        /// Bytes received in order; a FIN counts as one.
        pub bytes_received: u64,
        /// Segments sent, pure acknowledgements included.
        pub segs_out: u32,
        /// Segments received, pure acknowledgements included.
        pub segs_in: u32,
        /// Bytes in the send queue that were never sent.
        pub notsent_bytes: u32,
        /// Smallest round-trip time of the last minutes (`tcp_min_rtt_wlen`, 5 by default); all ones: none yet.
        pub min_rtt: u32,
        /// Segments with data received.
        pub data_segs_in: u32,
        /// Segments with data sent, retransmissions included.
        pub data_segs_out: u32,
        /// Latest delivery-rate sample, bytes/s.
        pub delivery_rate: u64,
        /// Time with data outstanding; includes `rwnd_limited` and `sndbuf_limited`.
        pub busy_time: u64,
        /// Time the peer's receive window held the sender back.
        pub rwnd_limited: u64,
        /// Time the send buffer held the sender back.
        pub sndbuf_limited: u64,
        /// Segments delivered.
        pub delivered: u32,
        /// Segments delivered with a congestion mark.
        pub delivered_ce: u32,
        /// Payload bytes sent, retransmissions included.
        pub bytes_sent: u64,
        /// Payload bytes retransmitted.
        pub bytes_retrans: u64,
        /// Duplicates the peer reported (RFC 2883).
        pub dsack_dups: u32,
        /// Reordering events seen.
        pub reord_seen: u32,
        /// Segments received out of order.
        pub rcv_ooopack: u32,
        /// Window the peer offered last, bytes after scaling.
        pub snd_wnd: u32,
        /// Window offered to the peer, bytes after scaling.
        pub rcv_wnd: u32,
        /// Times the flow label or path hash was changed after time-outs.
        pub rehash: u32,
        /// Retransmission time-outs since the connection began.
        pub total_rto: u16,
        /// Recoveries from time-outs that ended.
        pub total_rto_recoveries: u16,
        /// Milliseconds spent in those recoveries.
        pub total_rto_time: u32,
        /// Packets received with a congestion mark (this and all below: Accurate ECN).
        pub received_ce: u32,
        /// Bytes delivered with ECT(1).
        pub delivered_e1_bytes: u32,
        /// Bytes delivered with ECT(0).
        pub delivered_e0_bytes: u32,
        /// Bytes delivered with a congestion mark.
        pub delivered_ce_bytes: u32,
        /// Bytes received with ECT(1).
        pub received_e1_bytes: u32,
        /// Bytes received with ECT(0).
        pub received_e0_bytes: u32,
        /// Bytes received with a congestion mark.
        pub received_ce_bytes: u32,
        /// Why Accurate ECN was given up, as bits.
        pub accecn_fail_mode: u16,
        /// Whether the peer's option was seen.
        pub accecn_opt_seen: u16,
    }
}

kernel_struct! {
    /// A socket's memory as the kernel counts it (`SO_MEMINFO`, `INET_DIAG_SKMEMINFO`), all in bytes of
    /// memory, overhead included: not payload.
    pub struct SkMem {
        /// Memory held by data received and not yet read.
        pub rmem_alloc: u32,
        /// Limit of the receive buffer.
        pub rcvbuf: u32,
        /// Memory held by data on its way to the device.
        pub wmem_alloc: u32,
        /// Limit of the send buffer.
        pub sndbuf: u32,
        /// Reserved and unused.
        pub fwd_alloc: u32,
        /// Memory held by data written and not yet acknowledged.
        pub wmem_queued: u32,
        /// Memory held by options and filters.
        pub optmem: u32,
        /// Memory of packets that wait because a system call owns the socket.
        pub backlog: u32,
        /// Packets dropped for lack of memory (a count, not bytes).
        pub drops: u32,
    }
}

impl TcpInfo {
    /// Returns the shift of the windows that this end offers; 0 to 14.
    #[must_use]
    pub fn rcv_wscale(&self) -> u8 {
        if cfg!(target_endian = "little") { self.wscales >> 4 } else { self.wscales & 15 }
    }

    /// Returns whether the sender had nothing to send during the latest delivery-rate sample.
    #[must_use]
    pub fn app_limited(&self) -> bool {
        let bit = if cfg!(target_endian = "little") { 1 } else { 0x80 };
        self.flags & bit != 0
    }

    /// Returns the smoothed round-trip time; `None` before the first measurement.
    #[must_use]
    pub fn srtt(&self) -> Option<Micros> {
        (self.rtt != 0).then(|| Micros(self.rtt.into()))
    }

    /// Returns the smallest round-trip time; `None` before the first measurement.
    #[must_use]
    pub fn min_rtt(&self) -> Option<Micros> {
        (self.min_rtt != 0 && self.min_rtt != NO_MIN_RTT).then(|| Micros(self.min_rtt.into()))
    }

    /// Returns the receiver's own estimate of the round-trip time; `None` before the first measurement.
    #[must_use]
    pub fn rcv_rtt(&self) -> Option<Micros> {
        (self.rcv_rtt != 0).then(|| Micros(self.rcv_rtt.into()))
    }

    /// Returns the congestion window in payload bytes.
    #[must_use]
    pub fn cwnd(&self) -> Bytes {
        Bytes(self.snd_cwnd.into()).times(self.snd_mss.into())
    }

    /// Returns the slow-start threshold in payload bytes; [`Bytes::MAX`] before the first loss.
    #[must_use]
    pub fn ssthresh(&self) -> Bytes {
        if self.snd_ssthresh >= INFINITE_SSTHRESH {
            Bytes::MAX
        } else {
            Bytes(self.snd_ssthresh.into()).times(self.snd_mss.into())
        }
    }

    /// Returns the payload of a full segment in the direction that carries more data.
    ///
    /// A receiver's estimate starts at 536 bytes and grows with the segments that arrive. Its own segment size for
    /// sending is nearly always the size it receives, so a receiver takes the larger of the two.
    #[must_use]
    pub fn mss(&self) -> Bytes {
        let receives = self.data_segs_in > 0 && self.bytes_received > self.bytes_sent;
        Bytes(if receives { self.rcv_mss.max(self.snd_mss) } else { self.snd_mss }.into())
    }

    /// Returns how many segments with data were sent, retransmissions included. The kernel counts 32 bits, an hour of a fast
    /// link; the bytes, which it counts in 64, tell how often that was full.
    #[must_use]
    pub fn segments_out(&self) -> u64 {
        in_64_bits(self.data_segs_out, self.bytes_sent, self.snd_mss)
    }

    /// Returns how many of these were retransmissions.
    #[must_use]
    pub fn segments_retransmitted(&self) -> u64 {
        in_64_bits(self.total_retrans, self.bytes_retrans, self.snd_mss)
    }

    /// Converts to the sample that policies decide on; fields that only probes and reads can fill stay 0.
    #[must_use]
    pub fn to_sample(&self, mem: &SkMem) -> Sample {
        Sample {
            mss: self.mss(),
            cwnd: self.cwnd(),
            ssthresh: self.ssthresh(),
            srtt: self.srtt().unwrap_or_default(),
            min_rtt: self.min_rtt().unwrap_or_default(),
            rto: Micros(self.rto.into()),
            segs_out: self.segments_out(),
            segs_lost: self.segments_retransmitted(),
            bytes_acked: Bytes(self.bytes_acked),
            delivery_rate: Rate(self.delivery_rate),
            app_limited: self.app_limited(),
            sndbuf: Bytes(mem.sndbuf.into()),
            send_queued: Bytes(mem.wmem_queued.into()),
            bytes_received: Bytes(self.bytes_received),
            rcv_rtt: self.rcv_rtt().unwrap_or_default(),
            rcvbuf: Bytes(mem.rcvbuf.into()),
            receive_queued: Bytes(mem.rmem_alloc.into()),
            rcv_wnd: Bytes(self.rcv_wnd.into()),
            segs_in: self.data_segs_in.into(),
            rcv_out_of_order: self.rcv_ooopack.into(),
            ..Sample::default()
        }
    }
}

/// Returns a count of segments whose low half is `count`: the one nearest to the number of full segments with these bytes.
fn in_64_bits(count: u32, bytes: u64, mss: u32) -> u64 {
    const TURN: u64 = 1 << 32;
    let count = u64::from(count);
    let full = bytes.checked_div(mss.into()).unwrap_or_default();
    let turns = full.saturating_sub(count).saturating_add(TURN / 2) / TURN;
    count.saturating_add(turns * TURN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::mem::offset_of;

    #[test]
    fn layout_is_that_of_linux_6_18() {
        assert_eq!(size_of::<TcpInfo>(), 280);
        assert_eq!(size_of::<SkMem>(), 36);
        assert_eq!(offset_of!(TcpInfo, rtt), 68);
        assert_eq!(offset_of!(TcpInfo, pacing_rate), 104);
        assert_eq!(offset_of!(TcpInfo, busy_time), 168);
        assert_eq!(offset_of!(TcpInfo, snd_wnd), 228);
        assert_eq!(offset_of!(TcpInfo, rcv_wnd), 232);
        assert_eq!(offset_of!(TcpInfo, total_rto_time), 244);
        assert_eq!(offset_of!(TcpInfo, accecn_opt_seen), 278);
    }

    #[test]
    fn a_field_cut_in_two_counts_as_missing() {
        let mut bytes = [0xff; 280];
        let info = TcpInfo::decode(&bytes[..231]);
        assert_eq!((info.rcv_ooopack, info.snd_wnd, info.rcv_wnd), (u32::MAX, 0, 0));
        bytes[68..72].copy_from_slice(&40_000_u32.to_ne_bytes());
        assert_eq!(TcpInfo::decode(&bytes[..72]).srtt(), Some(Micros(40_000)));
        assert_eq!(TcpInfo::decode(&bytes[..71]).srtt(), None);
    }

    #[test]
    fn nothing_measured_yet_is_none_and_zero_in_the_sample() {
        let info = TcpInfo { min_rtt: NO_MIN_RTT, snd_ssthresh: INFINITE_SSTHRESH, ..TcpInfo::default() };
        assert_eq!((info.srtt(), info.min_rtt(), info.rcv_rtt()), (None, None, None));
        let sample = info.to_sample(&SkMem::default());
        assert_eq!(sample, Sample { ssthresh: Bytes::MAX, ..Sample::default() });
    }

    #[test]
    fn counts_of_segments_go_on_where_the_kernels_begin_again() {
        let sent = |data_segs_out, bytes_sent| {
            let info = TcpInfo { data_segs_out, bytes_sent, snd_mss: 1_000, ..TcpInfo::default() };
            info.segments_out()
        };
        let turn = 1_u64 << 32;
        assert_eq!((sent(0, 0), sent(900, 500_000), sent(u32::MAX, 7)), (0, 900, turn - 1));
        // Of 10,000,000,000 segments some were not full.
        let count = 10_000_000_000_u64;
        assert_eq!(sent((count % turn) as u32, 1_000 * count - 900_000_000), count);
        assert_eq!(sent(u32::MAX, u64::MAX) % turn, turn - 1);
        let again = TcpInfo { total_retrans: 5, bytes_retrans: 5 + turn, snd_mss: 1, ..TcpInfo::default() };
        assert_eq!(again.segments_retransmitted(), 5 + turn);
        assert_eq!(again.to_sample(&SkMem::default()).segs_lost, 5 + turn, "policies see it, too");
        let nothing_known = TcpInfo { data_segs_out: 5, bytes_sent: u64::MAX, ..TcpInfo::default() };
        assert_eq!(nothing_known.segments_out(), 5);
    }

    #[test]
    fn segments_are_those_of_the_direction_that_carries_data() {
        let idle = TcpInfo { snd_mss: 1_428, rcv_mss: 536, ..TcpInfo::default() };
        assert_eq!(idle.mss(), Bytes(1_428));
        let receiver = TcpInfo { data_segs_in: 1, bytes_received: 1_448, ..idle };
        assert_eq!(receiver.mss(), Bytes(1_428), "nothing larger came yet");
        let receiver = TcpInfo { rcv_mss: 1_448, ..receiver };
        assert_eq!(receiver.mss(), Bytes(1_448));
        assert_eq!(TcpInfo { bytes_sent: 5_000, ..receiver }.mss(), Bytes(1_428));
    }

    proptest! {
        #[test]
        fn any_prefix_of_any_bytes_decodes(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
            let info = TcpInfo::decode(&bytes);
            let _ = info.to_sample(&SkMem::decode(&bytes));
            prop_assert!(info.rcv_wscale() <= 15);
            // The decoded fields do not depend on the bytes that follow.
            let mut longer = bytes.clone();
            longer.resize(400, 0);
            if bytes.len() % 8 == 0 {
                prop_assert_eq!(info, TcpInfo::decode(&longer));
            }
        }
    }
}
