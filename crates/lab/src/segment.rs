//! Super-packets: cut into wire packets for the link, and joined again for the receiver.
//!
//! Problem: the kernel hands a TUN device TCP "super-packets" of up to 64 KB (segmentation offload), but a link admits,
//! delays and drops packets of one MTU. Cutting them up in memory would cost a copy and a system call per packet on the
//! way out.
//!
//! So a super-packet stays whole in memory, and its wire packets are index ranges into it. Each wire packet gets its
//! own fate from the link, and neighbours that are due together leave as one super-packet again, as receive offload in
//! a network card would join them.
//!
//! Source: virtio 1.2 section 5.1.6 (`virtio_net_hdr`), RFC 9293 (TCP header), Linux `tcp_gso_segment` for what differs
//! between the packets of one super-packet: sequence number, PSH and FIN only on the last, CWR only on the first, IPv4
//! identification counted up.

use std::ops::Range;

use bufwise_socket::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, VnetHeader};
use thiserror::Error;

const IPV4: u8 = 4;
const IPV6: u8 = 6;
const IPV4_MIN_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_MIN_HEADER: usize = 20;
const PROTOCOL_TCP: u8 = 6;
/// The ECN field in the second byte of an IPv4 header (RFC 3168). Both bits set mean that the packet has experienced congestion;
/// both clear mean that its sender does not support ECN. In IPv6 the field is four bits higher.
const CONGESTION: u8 = 0b11;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Longest headers of a TCP packet, in bytes, rounded up: IPv4 with options (60) or IPv6, and TCP with options (60).
pub const MAX_HEADERS: usize = 128;

/// Why a frame from a TUN device is not a packet that the pump can carry.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum FrameError {
    /// Shorter than its own headers say.
    #[error("frame of {0} bytes is cut short")]
    Short(usize),
    /// Neither IPv4 nor IPv6.
    #[error("IP version {0} is neither 4 nor 6")]
    Version(u8),
    /// A super-packet that is not plain TCP.
    #[error("super-packet of type {0:#x} is not TCP")]
    NotTcp(u8),
}

/// One packet as the TUN device gave it: a plain IP packet, or a TCP super-packet.
#[derive(Debug)]
pub struct Frame {
    vnet: VnetHeader,
    packet: Box<[u8]>,
    layout: Option<SuperLayout>,
}

/// Positions of the parts of a super-packet.
#[derive(Clone, Copy, Debug)]
struct SuperLayout {
    ip_version: u8,
    ip_header: usize,
    headers: usize,
    mss: usize,
}

impl Frame {
    /// Parses a frame: virtio header, then an IP packet.
    ///
    /// # Errors
    /// [`FrameError`] when the frame is not a whole IP packet, or is a super-packet other than TCP.
    pub fn parse(vnet: VnetHeader, packet: &[u8]) -> Result<Self, FrameError> {
        let version = packet.first().ok_or(FrameError::Short(0))? >> 4;
        let minimum = match version {
            IPV4 => IPV4_MIN_HEADER,
            IPV6 => IPV6_HEADER,
            other => return Err(FrameError::Version(other)),
        };
        if packet.len() < minimum {
            return Err(FrameError::Short(packet.len()));
        }
        let layout =
            if vnet.gso_type != GSO_NONE { Some(SuperLayout::of(&vnet, version, packet)?) } else { None };
        Ok(Self { vnet, packet: packet.into(), layout })
    }

    /// Returns the number of wire packets in this frame, at least 1.
    #[must_use]
    pub fn wire_packets(&self) -> usize {
        self.layout.map_or(1, |layout| (self.packet.len() - layout.headers).div_ceil(layout.mss).max(1))
    }

    /// Returns the IP length of wire packet `index`, in bytes.
    #[must_use]
    pub fn wire_len(&self, index: usize) -> usize {
        match self.layout {
            None => self.packet.len(),
            Some(layout) => layout.headers + self.payload(layout, index..index + 1).len(),
        }
    }

    /// Returns the wire packets `range` as one frame to write: virtio header, headers, payload.
    ///
    /// If `marked`, the packets are marked "congestion experienced", unless their sender does not support ECN. `scratch` takes
    /// the rewritten headers. `range` must lie within `0..self.wire_packets()`.
    #[must_use]
    pub fn join<'a>(
        &'a self,
        range: Range<usize>,
        marked: bool,
        scratch: &'a mut [u8; MAX_HEADERS],
    ) -> (VnetHeader, &'a [u8], &'a [u8]) {
        let is_whole = range == (0..self.wire_packets());
        let Some(layout) = self.layout.filter(|_| !is_whole) else {
            if !marked {
                return (self.vnet, &self.packet, &[]);
            }
            let (ip, rest) = self.packet.split_at(self.ip_header());
            let headers = &mut scratch[..ip.len()];
            headers.copy_from_slice(ip);
            mark(headers);
            return (self.vnet, headers, rest);
        };
        let payload = self.payload(layout, range.clone());
        let headers = &mut scratch[..layout.headers];
        headers.copy_from_slice(&self.packet[..layout.headers]);
        layout.rewrite(headers, &range, payload.len(), range.end == self.wire_packets());
        if marked {
            mark(&mut headers[..layout.ip_header]);
        }
        let single = VnetHeader { gso_type: GSO_NONE, gso_size: 0, ..self.vnet };
        let vnet = if range.len() == 1 { single } else { self.vnet };
        (vnet, headers, payload)
    }

    /// Returns the length of the IP header, in bytes: 20 to 60, and at most the packet's.
    fn ip_header(&self) -> usize {
        let length = match self.packet[0] >> 4 {
            IPV4 => (usize::from(self.packet[0] & 0x0f) * 4).max(IPV4_MIN_HEADER),
            _ => IPV6_HEADER,
        };
        length.min(self.packet.len())
    }

    fn payload(&self, layout: SuperLayout, range: Range<usize>) -> &[u8] {
        let start = layout.headers + range.start * layout.mss;
        let end = (layout.headers + range.end * layout.mss).min(self.packet.len());
        &self.packet[start..end]
    }
}

impl SuperLayout {
    fn of(vnet: &VnetHeader, ip_version: u8, packet: &[u8]) -> Result<Self, FrameError> {
        let short = FrameError::Short(packet.len());
        if !matches!(vnet.gso_type & !GSO_ECN, GSO_TCPV4 | GSO_TCPV6) || vnet.gso_size == 0 {
            return Err(FrameError::NotTcp(vnet.gso_type));
        }
        let (ip_header, protocol) = match ip_version {
            IPV4 => (usize::from(packet[0] & 0x0f) * 4, packet[9]),
            _ => (IPV6_HEADER, packet[6]),
        };
        if protocol != PROTOCOL_TCP {
            return Err(FrameError::NotTcp(protocol));
        }
        if ip_header < IPV4_MIN_HEADER || packet.len() < ip_header + TCP_MIN_HEADER {
            return Err(short);
        }
        let tcp_header = usize::from(packet[ip_header + 12] >> 4) * 4;
        let headers = ip_header + tcp_header;
        if tcp_header < TCP_MIN_HEADER || headers > MAX_HEADERS || packet.len() < headers {
            return Err(short);
        }
        Ok(Self { ip_version, ip_header, headers, mss: usize::from(vnet.gso_size) })
    }

    /// Changes the copied headers into those of the packets `range`, which carry `payload` bytes.
    fn rewrite(&self, headers: &mut [u8], range: &Range<usize>, payload: usize, is_last: bool) {
        let (ip, tcp) = headers.split_at_mut(self.ip_header);
        let old_tcp_len = self.rewrite_ip(ip, range.start, payload);

        let skipped = u32::try_from(range.start * self.mss).unwrap_or(u32::MAX);
        let sequence = u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]]).wrapping_add(skipped);
        tcp[4..8].copy_from_slice(&sequence.to_be_bytes());
        if !is_last {
            tcp[13] &= !(TCP_FIN | TCP_PSH);
        }
        if range.start > 0 {
            tcp[13] &= !TCP_CWR;
        }
        // The checksum field holds the pseudo-header's sum (not complemented), which contains the length.
        let new_tcp_len = to_u16(self.headers - self.ip_header + payload);
        let sum = u16::from_be_bytes([tcp[16], tcp[17]]);
        let sum = add_ones_complement(add_ones_complement(sum, !old_tcp_len), new_tcp_len);
        tcp[16..18].copy_from_slice(&sum.to_be_bytes());
    }

    /// Sets length, identification and checksum; returns the TCP length that the header had before.
    fn rewrite_ip(&self, ip: &mut [u8], index: usize, payload: usize) -> u16 {
        if self.ip_version == IPV6 {
            let old = u16::from_be_bytes([ip[4], ip[5]]);
            let new = to_u16(self.headers - IPV6_HEADER + payload);
            ip[4..6].copy_from_slice(&new.to_be_bytes());
            return old;
        }
        let old = u16::from_be_bytes([ip[2], ip[3]]);
        ip[2..4].copy_from_slice(&to_u16(self.headers + payload).to_be_bytes());
        let identification = u16::from_be_bytes([ip[4], ip[5]]).wrapping_add(to_u16(index));
        ip[4..6].copy_from_slice(&identification.to_be_bytes());
        set_checksum(ip);
        old.saturating_sub(to_u16(self.ip_header))
    }
}

/// Sets the checksum of an IPv4 header.
fn set_checksum(ip: &mut [u8]) {
    ip[10..12].fill(0);
    let checksum = !ip
        .chunks_exact(2)
        .fold(0, |sum, word| add_ones_complement(sum, u16::from_be_bytes([word[0], word[1]])));
    ip[10..12].copy_from_slice(&checksum.to_be_bytes());
}

/// Marks an IP header of at least 20 bytes "congestion experienced"; changes nothing if the sender does not support ECN.
fn mark(ip: &mut [u8]) {
    let is_ipv4 = ip[0] >> 4 == IPV4;
    let bits = if is_ipv4 { CONGESTION } else { CONGESTION << 4 };
    if ip[1] & bits == 0 {
        return;
    }
    ip[1] |= bits;
    if is_ipv4 {
        set_checksum(ip);
    }
}

fn add_ones_complement(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(u16::from(carry))
}

/// Converts a length inside an IP packet, which fits 16 bits; a longer one saturates, and the receiver refuses it.
fn to_u16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_socket::vnet::NEEDS_CSUM;
    use proptest::prelude::*;

    const MSS: u16 = 1_448;
    const OPTIONS: usize = 12;
    const SEQUENCE: u32 = u32::MAX - 2_000;

    /// A super-packet as the kernel sends it: pseudo-header sum in the checksum field, CWR, PSH and FIN set.
    fn super_packet(version: u8, payload: usize) -> (VnetHeader, Vec<u8>) {
        let ip_header = if version == IPV4 { IPV4_MIN_HEADER } else { IPV6_HEADER };
        let tcp_len = TCP_MIN_HEADER + OPTIONS + payload;
        let mut packet = vec![0; ip_header];
        if version == IPV4 {
            packet[0] = 0x45;
            packet[2..4].copy_from_slice(&to_u16(ip_header + tcp_len).to_be_bytes());
            packet[4..6].copy_from_slice(&0xfffe_u16.to_be_bytes());
            packet[9] = PROTOCOL_TCP;
            packet[12..20].copy_from_slice(&[198, 18, 0, 1, 198, 18, 0, 2]);
        } else {
            packet[0] = 0x60;
            packet[4..6].copy_from_slice(&to_u16(tcp_len).to_be_bytes());
            packet[6] = PROTOCOL_TCP;
            packet[8..40].copy_from_slice(&[7; 32]);
        }
        let mut tcp = vec![0; TCP_MIN_HEADER + OPTIONS];
        tcp[4..8].copy_from_slice(&SEQUENCE.to_be_bytes());
        tcp[12] = 8 << 4;
        tcp[13] = 0x10 | TCP_PSH | TCP_FIN | TCP_CWR;
        tcp[16..18].copy_from_slice(&pseudo_sum(&packet, to_u16(tcp_len)).to_be_bytes());
        packet.extend(tcp);
        packet.extend((0..payload).map(|byte| (byte % 251) as u8));
        let vnet = VnetHeader {
            flags: NEEDS_CSUM,
            gso_type: if version == IPV4 { GSO_TCPV4 } else { GSO_TCPV6 },
            hdr_len: to_u16(ip_header + TCP_MIN_HEADER + OPTIONS),
            gso_size: MSS,
            csum_start: to_u16(ip_header),
            csum_offset: 16,
        };
        (vnet, packet)
    }

    fn sum(bytes: &[u8]) -> u16 {
        bytes.chunks(2).fold(0, |sum, word| add_ones_complement(sum, u16::from_be_bytes([word[0], word[1]])))
    }

    fn pseudo_sum(ip: &[u8], tcp_len: u16) -> u16 {
        let addresses = if ip[0] >> 4 == IPV4 { &ip[12..20] } else { &ip[8..40] };
        add_ones_complement(add_ones_complement(sum(addresses), PROTOCOL_TCP.into()), tcp_len)
    }

    /// Compares sums in one's complement, which has two zeros.
    fn same_sum(a: u16, b: u16) -> bool {
        a == b || [a, b].iter().all(|sum| sum.is_multiple_of(u16::MAX))
    }

    fn frame(version: u8, payload: usize) -> Frame {
        let (vnet, packet) = super_packet(version, payload);
        Frame::parse(vnet, &packet).unwrap()
    }

    #[test]
    fn a_super_packet_is_as_many_packets_as_its_payload_needs() {
        for version in [IPV4, IPV6] {
            let headers = if version == IPV4 { 52 } else { 72 };
            let frame = frame(version, 3 * 1_448 + 100);
            assert_eq!(frame.wire_packets(), 4);
            assert_eq!(frame.wire_len(0), headers + 1_448);
            assert_eq!(frame.wire_len(3), headers + 100);
        }
    }

    #[test]
    fn a_whole_super_packet_leaves_untouched() {
        let (vnet, packet) = super_packet(IPV4, 5_000);
        let frame = Frame::parse(vnet, &packet).unwrap();
        let mut scratch = [0; MAX_HEADERS];
        assert_eq!(frame.join(0..4, false, &mut scratch), (vnet, &packet[..], &[][..]));
    }

    #[test]
    fn flags_belong_to_the_first_and_the_last_packet() {
        let frame = frame(IPV4, 3 * 1_448);
        let flags = |range| {
            let mut scratch = [0; MAX_HEADERS];
            frame.join(range, false, &mut scratch).1[IPV4_MIN_HEADER + 13]
        };
        assert_eq!(flags(0..1), 0x10 | TCP_CWR);
        assert_eq!(flags(1..2), 0x10);
        assert_eq!(flags(2..3), 0x10 | TCP_PSH | TCP_FIN);
        assert_eq!(flags(1..3), 0x10 | TCP_PSH | TCP_FIN);
    }

    #[test]
    fn identification_and_sequence_wrap() {
        let frame = frame(IPV4, 3 * 1_448);
        let mut scratch = [0; MAX_HEADERS];
        let headers = frame.join(2..3, false, &mut scratch).1;
        assert_eq!(u16::from_be_bytes([headers[4], headers[5]]), 0);
        let sequence = u32::from_be_bytes([headers[24], headers[25], headers[26], headers[27]]);
        assert_eq!(sequence, SEQUENCE.wrapping_add(2 * 1_448));
    }

    #[test]
    fn marks_are_for_senders_that_can_be_told() {
        const CAPABLE: u8 = 0b10;
        for (version, shift) in [(IPV4, 0), (IPV6, 4)] {
            for (told, then) in [(0, 0), (CAPABLE, CONGESTION), (CONGESTION, CONGESTION)] {
                let (vnet, mut packet) = super_packet(version, 5_000);
                packet[1] |= told << shift;
                let plain = VnetHeader { gso_type: GSO_NONE, ..vnet };
                for (vnet, range) in [(vnet, 0..4), (vnet, 1..2), (plain, 0..1)] {
                    let frame = Frame::parse(vnet, &packet).unwrap();
                    let mut scratch = [0; MAX_HEADERS];
                    let (_, headers, payload) = frame.join(range, true, &mut scratch);
                    let piece = [headers, payload].concat();
                    assert_eq!(piece[1] >> shift & CONGESTION, then, "IPv{version}, {told}");
                    let is_touched = then != told;
                    assert!(
                        version == IPV6 || !is_touched || same_sum(sum(&piece[..IPV4_MIN_HEADER]), u16::MAX)
                    );
                    assert!(piece.ends_with(&packet[packet.len() - 10..]) || piece.len() < packet.len());
                }
            }
        }
    }

    #[test]
    fn what_is_not_a_packet_is_refused() {
        let (vnet, packet) = super_packet(IPV4, 5_000);
        assert_eq!(Frame::parse(vnet, &[]).unwrap_err(), FrameError::Short(0));
        assert_eq!(Frame::parse(vnet, &packet[..30]).unwrap_err(), FrameError::Short(30));
        assert_eq!(Frame::parse(vnet, &[0x55; 60]).unwrap_err(), FrameError::Version(5));
        let other = VnetHeader { gso_type: 3, ..vnet };
        assert_eq!(Frame::parse(other, &packet).unwrap_err(), FrameError::NotTcp(3));
    }

    proptest! {
        /// However the frame is cut, the pieces carry the payload in order, with correct lengths and checksums.
        #[test]
        fn pieces_are_packets_and_lose_nothing(
            v6: bool,
            payload in 1_usize..60_000,
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
            marked: bool,
        ) {
            let version = if v6 { IPV6 } else { IPV4 };
            let ip_header = if v6 { IPV6_HEADER } else { IPV4_MIN_HEADER };
            let (vnet, packet) = super_packet(version, payload);
            let frame = Frame::parse(vnet, &packet).unwrap();
            let count = frame.wire_packets();
            let mut edges: Vec<usize> = cuts.iter().map(|cut| cut.index(count)).chain([0, count]).collect();
            edges.sort_unstable();
            edges.dedup();
            let mut carried = Vec::new();
            for edge in edges.windows(2) {
                let mut scratch = [0; MAX_HEADERS];
                let (out, headers, body) = frame.join(edge[0]..edge[1], marked, &mut scratch);
                let piece = [headers, body].concat();
                let tcp_len = to_u16(piece.len() - ip_header);
                if v6 {
                    prop_assert_eq!(u16::from_be_bytes([piece[4], piece[5]]), tcp_len);
                } else {
                    prop_assert_eq!(usize::from(u16::from_be_bytes([piece[2], piece[3]])), piece.len());
                    // The kernel fills in the checksum of a packet that it did not cut up itself.
                    let untouched = edge[1] - edge[0] == count;
                    prop_assert!(untouched || same_sum(sum(&piece[..IPV4_MIN_HEADER]), u16::MAX));
                }
                let checksum = u16::from_be_bytes([piece[ip_header + 16], piece[ip_header + 17]]);
                prop_assert!(same_sum(checksum, pseudo_sum(&piece, tcp_len)));
                prop_assert_eq!(out.gso_type == GSO_NONE, count > 1 && edge[1] - edge[0] == 1);
                carried.extend_from_slice(&piece[ip_header + TCP_MIN_HEADER + OPTIONS..]);
            }
            prop_assert_eq!(&carried[..], &packet[ip_header + TCP_MIN_HEADER + OPTIONS..]);
        }

        #[test]
        fn no_frame_makes_it_panic(
            header: [u8; 10],
            bytes in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let mut read = header.to_vec();
            read.extend(bytes);
            let (vnet, packet) = VnetHeader::decode(&read).unwrap();
            if let Ok(frame) = Frame::parse(vnet, packet) {
                let mut scratch = [0; MAX_HEADERS];
                for index in 0..frame.wire_packets().min(300) {
                    prop_assert!(frame.wire_len(index) <= packet.len());
                    let _ = frame.join(index..index + 1, index % 2 == 0, &mut scratch);
                }
            }
        }
    }
}
