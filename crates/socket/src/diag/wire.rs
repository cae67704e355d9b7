//! The netlink messages of a socket dump: one request out, many answers in.
//!
//! Source: `struct inet_diag_req_v2`, `struct inet_diag_msg`. Numbers are in
//! the host's byte order, except ports and addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::diag::{CongestionControl, Connection, State};
use crate::info::{SkMem, TcpInfo};
use crate::netlink::{self, Malformed, u32_at};

pub(super) const SOCK_DIAG_BY_FAMILY: u16 = 20;

/// Length of `struct inet_diag_req_v2`, bytes.
const REQUEST_LEN: usize = 56;
/// Length of `struct inet_diag_msg`, bytes; the attributes begin after it.
const MESSAGE_LEN: usize = 72;

const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
const INET_DIAG_CGROUP_ID: u16 = 21;
const INET_DIAG_SKMEMINFO: u16 = 7;
/// The attributes above, as the request's bits.
const EXTENSIONS: u8 = 1 << (INET_DIAG_INFO - 1) | 1 << (INET_DIAG_CONG - 1) | 1 << (INET_DIAG_SKMEMINFO - 1);

/// Transport protocol to list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
        })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

/// A request to list sockets.
#[derive(Clone, Copy, Debug)]
pub(super) struct Request {
    pub(super) protocol: Protocol,
    pub(super) family: Family,
    /// Bit n: state n.
    pub(super) states: u32,
    /// Own port; 0: any.
    pub(super) port: u16,
}

impl Request {
    pub(super) fn encode(self, sequence: u32) -> Vec<u8> {
        let mut body = [0; REQUEST_LEN];
        let family = match self.family {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        };
        let protocol = match self.protocol {
            Protocol::Tcp => libc::IPPROTO_TCP,
            Protocol::Udp => libc::IPPROTO_UDP,
        };
        body[0] = family as u8;
        body[1] = protocol as u8;
        body[2] = EXTENSIONS;
        body[4..8].copy_from_slice(&self.states.to_ne_bytes());
        body[8..10].copy_from_slice(&self.port.to_be_bytes());
        // The rest of the socket's identity stays 0: any address, peer, interface and cookie.
        netlink::request(SOCK_DIAG_BY_FAMILY, netlink::REQUEST | netlink::DUMP, sequence, &body)
    }
}

/// One listed socket, checked but not yet decoded.
pub(super) struct Message<'a> {
    local: SocketAddr,
    peer: SocketAddr,
    state: u8,
    cookie: u64,
    uid: u32,
    inode: u32,
    info: &'a [u8],
    mem: &'a [u8],
    congestion: &'a [u8],
    cgroup: &'a [u8],
}

impl<'a> Message<'a> {
    pub(super) fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, attributes) = body.split_first_chunk::<MESSAGE_LEN>().ok_or(Malformed::Truncated)?;
        let port = |at: usize| u16::from_be_bytes([fixed[at], fixed[at + 1]]);
        let mut message = Self {
            local: SocketAddr::new(address(fixed, 8)?, port(4)),
            peer: SocketAddr::new(address(fixed, 24)?, port(6)),
            state: fixed[1],
            cookie: u64::from(u32_at(fixed, 44)?) | u64::from(u32_at(fixed, 48)?) << 32,
            uid: u32_at(fixed, 64)?,
            inode: u32_at(fixed, 68)?,
            info: &[],
            mem: &[],
            congestion: &[],
            cgroup: &[],
        };
        for attribute in netlink::attributes(attributes) {
            match attribute? {
                (INET_DIAG_INFO, value) => message.info = value,
                (INET_DIAG_SKMEMINFO, value) => message.mem = value,
                (INET_DIAG_CONG, value) => message.congestion = value,
                (INET_DIAG_CGROUP_ID, value) => message.cgroup = value,
                _ => {}
            }
        }
        Ok(message)
    }

    pub(super) fn connection(&self) -> Connection {
        let mut name = [0; 16];
        for (to, from) in name.iter_mut().zip(self.congestion) {
            *to = *from;
        }
        Connection {
            local: self.local,
            peer: self.peer,
            state: match State::from_kernel(self.state) {
                // The kernel keeps no socket of a closed connection that only waits for its peer (`tcp_time_wait()`).
                State::FinWait2 if self.info.is_empty() => State::TimeWait,
                state => state,
            },
            inode: self.inode,
            uid: self.uid,
            cookie: self.cookie,
            info: TcpInfo::decode(self.info),
            mem: SkMem::decode(self.mem),
            congestion: CongestionControl(name),
            cgroup: self.cgroup.first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes)),
        }
    }
}

/// Returns the address at offset `at`; an IPv4-mapped IPv6 address is returned as IPv4.
fn address(fixed: &[u8; MESSAGE_LEN], at: usize) -> Result<IpAddr, Malformed> {
    let bytes = fixed[at..].first_chunk::<16>().ok_or(Malformed::Truncated)?;
    match i32::from(fixed[0]) {
        libc::AF_INET => Ok(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        libc::AF_INET6 => Ok(Ipv6Addr::from(*bytes).to_canonical()),
        _ => Err(Malformed::Family(fixed[0])),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The body for an established connection 198.18.0.1:4000 -> 198.18.0.2:80 with the given attributes.
    fn body(attributes: &[(u16, &[u8])]) -> Vec<u8> {
        let mut out = vec![0; MESSAGE_LEN];
        out[0] = libc::AF_INET as u8;
        out[1] = 1;
        out[4..6].copy_from_slice(&4_000_u16.to_be_bytes());
        out[6..8].copy_from_slice(&80_u16.to_be_bytes());
        out[8..12].copy_from_slice(&[198, 18, 0, 1]);
        out[24..28].copy_from_slice(&[198, 18, 0, 2]);
        out[68..72].copy_from_slice(&12_345_u32.to_ne_bytes());
        attributes.iter().for_each(|(kind, value)| netlink::put_attribute(&mut out, *kind, value));
        out
    }

    fn read(body: &[u8]) -> Result<Connection, Malformed> {
        Message::read(body).map(|message| message.connection())
    }

    #[test]
    fn attributes_are_read_and_unknown_ones_skipped() {
        let mut info = [0_u8; 248];
        info[68..72].copy_from_slice(&40_000_u32.to_ne_bytes());
        let mem = [5_u32, 6].map(u32::to_ne_bytes).concat();
        let body = body(&[
            (99, b"xyz"),
            (INET_DIAG_INFO, &info),
            (INET_DIAG_SKMEMINFO, &mem),
            (INET_DIAG_CONG, b"cubic\0"),
            (INET_DIAG_CGROUP_ID, &77_u64.to_ne_bytes()),
        ]);
        let seen = read(&body).unwrap();
        assert_eq!(seen.peer, "198.18.0.2:80".parse().unwrap());
        assert_eq!((seen.inode, seen.info.rtt, seen.mem.rcvbuf), (12_345, 40_000, 6));
        assert_eq!((seen.congestion.as_str(), seen.cgroup), ("cubic", 77));
    }

    #[test]
    fn a_connection_that_waits_for_its_peer_without_a_socket_is_in_time_wait() {
        let state = |attributes: &[(u16, &[u8])]| {
            let mut body = body(attributes);
            body[1] = 5;
            read(&body).unwrap().state
        };
        assert_eq!((state(&[]), state(&[(INET_DIAG_INFO, &[5])])), (State::TimeWait, State::FinWait2));
    }

    #[test]
    fn cut_messages_wrong_lengths_and_families_are_errors() {
        let whole = body(&[(INET_DIAG_CONG, b"reno\0")]);
        for cut in (0..whole.len() - 3).filter(|cut| *cut != MESSAGE_LEN) {
            assert_eq!(read(&whole[..cut]), Err(Malformed::Truncated), "cut at {cut}");
        }
        let mut attribute = whole.clone();
        attribute[MESSAGE_LEN] = 3;
        assert_eq!(read(&attribute), Err(Malformed::BadLength));
        let mut family = whole;
        family[0] = 99;
        assert_eq!(read(&family), Err(Malformed::Family(99)));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
        }

        #[test]
        fn a_damaged_message_never_panics(at: prop::sample::Index, value: u8, extra in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut bytes = body(&[(INET_DIAG_CONG, b"reno\0"), (INET_DIAG_INFO, &extra)]);
            let at = at.index(bytes.len());
            bytes[at] = value;
            let _ = read(&bytes);
        }
    }
}
