//! Super-packets: cut into wire packets for the link, joined again for the receiver.
//!
//! Problem: the kernel hands a TUN device TCP "super-packets" of up to 64 KB (segmentation offload), but a
//! link admits, delays and drops packets of one MTU. Cutting them up in memory would cost a copy and a
//! system call per packet on the way out.
//!
//! Here a super-packet stays whole in memory. Its wire packets are index ranges into it; each range gets
//! its own fate from the link, and neighbouring ranges that are due together leave as one super-packet
//! again, as receive offload in a network card would join them.
//!
//! Source: virtio 1.2 section 5.1.6 (`virtio_net_hdr`), RFC 9293 (TCP header), Linux `tcp_gso_segment`
//! for what differs between the packets of one super-packet: sequence number, PSH and FIN only on the
//! last, CWR only on the first, IPv4 identification counted up.

use std::ops::Range;

use bufwise_socket::vnet::{GSO_ECN, GSO_NONE, GSO_TCPV4, GSO_TCPV6, VnetHeader};
use thiserror::Error;

const IPV4: u8 = 4;
const IPV6: u8 = 6;
const IPV4_MIN_HEADER: usize = 20;
const IPV6_HEADER: usize = 40;
const TCP_MIN_HEADER: usize = 20;
const PROTOCOL_TCP: u8 = 6;

const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;

/// Longest header stack of a TCP packet: IPv4 with options (60) or IPv6, and TCP with options (60).
pub const MAX_HEADERS: usize = 128;

/// Why a frame that was read from a TUN device is not a packet we can carry.
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

/// Where the parts of a super-packet are.
#[derive(Clone, Copy, Debug)]
struct SuperLayout {
    ip_version: u8,
    ip_header: usize,
    headers: usize,
    mss: usize,
}

impl Frame {
    /// Takes a frame apart: virtio header, then an IP packet.
    ///
    /// # Errors
    /// [`FrameError`] when the frame is not a whole IP packet, or a super-packet other than TCP.
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
        let layout = if vnet.gso_type != GSO_NONE { Some(SuperLayout::of(&vnet, version, packet)?) } else { None };
        Ok(Self { vnet, packet: packet.into(), layout })
    }

    /// Number of wire packets in this frame, at least 1.
    #[must_use]
    pub fn wire_packets(&self) -> usize {
        self.layout.map_or(1, |layout| (self.packet.len() - layout.headers).div_ceil(layout.mss).max(1))
    }

    /// IP length of wire packet `index`, in bytes.
    #[must_use]
    pub fn wire_len(&self, index: usize) -> usize {
        match self.layout {
            None => self.packet.len(),
            Some(layout) => layout.headers + self.payload(layout, index..index + 1).len(),
        }
    }

    /// The wire packets `range` as one frame to write: virtio header, headers, payload.
    ///
    /// `scratch` takes the rewritten headers. `range` lies within `0..self.wire_packets()`.
    #[must_use]
    pub fn join<'a>(
        &'a self,
        range: Range<usize>,
        scratch: &'a mut [u8; MAX_HEADERS],
    ) -> (VnetHeader, &'a [u8], &'a [u8]) {
        let Some(layout) = self.layout else {
            return (self.vnet, &self.packet, &[]);
        };
        if range == (0..self.wire_packets()) {
            return (self.vnet, &self.packet, &[]);
        }
        let payload = self.payload(layout, range.clone());
        let headers = &mut scratch[..layout.headers];
        headers.copy_from_slice(&self.packet[..layout.headers]);
        layout.rewrite(headers, &range, payload.len(), range.end == self.wire_packets());
        let single = VnetHeader { gso_type: GSO_NONE, gso_size: 0, ..self.vnet };
        let vnet = if range.len() == 1 { single } else { self.vnet };
        (vnet, headers, payload)
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

    /// Makes the copied headers those of the packets `range`, which carry `payload` bytes.
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

    /// Sets length, identification and checksum; returns the TCP length the header had before.
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
        ip[10..12].fill(0);
        let checksum = !ip.chunks_exact(2).fold(0, |sum, word| {
            add_ones_complement(sum, u16::from_be_bytes([word[0], word[1]]))
        });
        ip[10..12].copy_from_slice(&checksum.to_be_bytes());
        old.saturating_sub(to_u16(self.ip_header))
    }
}

fn add_ones_complement(a: u16, b: u16) -> u16 {
    let (sum, carry) = a.overflowing_add(b);
    sum.wrapping_add(u16::from(carry))
}

/// Lengths inside an IP packet fit 16 bits; a longer one saturates, and the receiver refuses it.
fn to_u16(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}
