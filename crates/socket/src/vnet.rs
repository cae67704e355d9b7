//! The header that precedes every packet on a TUN device opened with `IFF_VNET_HDR`.
//!
//! Problem: a TUN device that passes one packet of at most one MTU per system call reaches only about 3 Gbit/s. With
//! this header the kernel delivers and accepts segments of up to 64 KiB with an unfinished checksum.
//! Source: virtio 1.2, section 5.1.6; Linux `struct virtio_net_hdr` in `linux/virtio_net.h`.
//! Property kept: `decode(encode(h)) == h` for every header.

/// Length of the header in bytes, without `num_buffers`; the value that `TUNSETVNETHDRSZ` sets.
pub const HEADER_LEN: usize = 10;

/// Flag: the checksum from `csum_start` on is still to be computed and stored at `csum_start + csum_offset`.
pub const NEEDS_CSUM: u8 = 1;

/// `gso_type`: an ordinary packet.
pub const GSO_NONE: u8 = 0;
/// `gso_type`: several TCP segments over IPv4.
pub const GSO_TCPV4: u8 = 1;
/// `gso_type`: several TCP segments over IPv6.
pub const GSO_TCPV6: u8 = 4;
/// Bit in `gso_type`: the segments carry ECN's CWR flag, which only the first may keep.
pub const GSO_ECN: u8 = 0x80;

/// One header, fields in the host's byte order (a TUN device's default). The default is that of an ordinary packet with
/// finished checksums.
///
/// ```
/// use bufwise_socket::vnet::VnetHeader;
///
/// let frame = [&VnetHeader::default().encode()[..], b"packet"].concat();
/// assert_eq!(VnetHeader::decode(&frame), Some((VnetHeader::default(), &b"packet"[..])));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VnetHeader {
    /// [`NEEDS_CSUM`], `VIRTIO_NET_HDR_F_DATA_VALID` (2: the checksum was verified) or 0.
    pub flags: u8,
    /// [`GSO_NONE`], [`GSO_TCPV4`] or [`GSO_TCPV6`], perhaps with [`GSO_ECN`].
    pub gso_type: u8,
    /// Bytes of the network and transport headers, as a hint.
    pub hdr_len: u16,
    /// Payload bytes of each segment but the last.
    pub gso_size: u16,
    /// Where the checksum begins, counted from the start of the packet.
    pub csum_start: u16,
    /// Where to store it, counted from `csum_start`.
    pub csum_offset: u16,
}

impl VnetHeader {
    /// Returns the header as the kernel reads it.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[0] = self.flags;
        out[1] = self.gso_type;
        out[2..4].copy_from_slice(&self.hdr_len.to_ne_bytes());
        out[4..6].copy_from_slice(&self.gso_size.to_ne_bytes());
        out[6..8].copy_from_slice(&self.csum_start.to_ne_bytes());
        out[8..10].copy_from_slice(&self.csum_offset.to_ne_bytes());
        out
    }

    /// Splits a frame that was read into header and packet; `None` if it is too short for a header.
    #[must_use]
    pub fn decode(read: &[u8]) -> Option<(Self, &[u8])> {
        let (header, packet) = read.split_first_chunk::<HEADER_LEN>()?;
        let word = |at: usize| u16::from_ne_bytes([header[at], header[at + 1]]);
        let decoded = Self {
            flags: header[0],
            gso_type: header[1],
            hdr_len: word(2),
            gso_size: word(4),
            csum_start: word(6),
            csum_offset: word(8),
        };
        Some((decoded, packet))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn decoding_undoes_encoding(bytes: [u8; HEADER_LEN], packet: Vec<u8>) {
            let mut read = bytes.to_vec();
            read.extend_from_slice(&packet);
            let (header, rest) = VnetHeader::decode(&read).unwrap();
            prop_assert_eq!(header.encode(), bytes);
            prop_assert_eq!(rest, packet.as_slice());
        }
    }

    #[test]
    fn a_read_shorter_than_the_header_is_refused() {
        assert_eq!(VnetHeader::decode(&[0; HEADER_LEN - 1]), None);
        assert_eq!(VnetHeader::decode(&[0; HEADER_LEN]), Some((VnetHeader::default(), &[][..])));
    }
}
