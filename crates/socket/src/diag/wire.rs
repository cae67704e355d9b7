//! The netlink messages of a socket dump: one request out, many answers in.
//!
//! Source: netlink(7); `struct nlmsghdr`, `struct inet_diag_req_v2`, `struct inet_diag_msg`. Numbers are in
//! the host's byte order, except ports and addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crate::diag::{CongestionControl, Connection, State};
use crate::info::{SkMem, TcpInfo};

const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST | NLM_F_DUMP`.
const DUMP_REQUEST: u16 = 0x0001 | 0x0300;

const HEADER_LEN: usize = 16;
const REQUEST_LEN: usize = HEADER_LEN + 56;
/// `struct inet_diag_msg`, after which the attributes begin.
const MESSAGE_LEN: usize = 72;
const ATTRIBUTE_HEADER_LEN: usize = 4;
const ALIGNMENT: usize = 4;

const INET_DIAG_INFO: u16 = 2;
const INET_DIAG_CONG: u16 = 4;
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

/// What was wrong with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A message or attribute ends before its own length says.
    #[error("a message is cut off")]
    Truncated,
    /// A length field is smaller than the header it stands in.
    #[error("a length is smaller than its header")]
    BadLength,
    /// Neither IPv4 nor IPv6.
    #[error("unknown address family {0}")]
    Family(u8),
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
    pub(super) fn encode(self, sequence: u32) -> [u8; REQUEST_LEN] {
        let mut out = [0; REQUEST_LEN];
        let family = match self.family {
            Family::V4 => libc::AF_INET,
            Family::V6 => libc::AF_INET6,
        };
        let protocol = match self.protocol {
            Protocol::Tcp => libc::IPPROTO_TCP,
            Protocol::Udp => libc::IPPROTO_UDP,
        };
        out[0..4].copy_from_slice(&(REQUEST_LEN as u32).to_ne_bytes());
        out[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        out[6..8].copy_from_slice(&DUMP_REQUEST.to_ne_bytes());
        out[8..12].copy_from_slice(&sequence.to_ne_bytes());
        out[16] = family as u8;
        out[17] = protocol as u8;
        out[18] = EXTENSIONS;
        out[20..24].copy_from_slice(&self.states.to_ne_bytes());
        out[24..26].copy_from_slice(&self.port.to_be_bytes());
        // The rest of the socket's identity stays 0: any address, peer, interface and cookie.
        out
    }
}

/// How far a dump has come after a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    More,
    Done,
    /// The kernel's error number.
    Refused(i32),
}

/// Reads every message of one datagram; those that answer another request than `sequence` are skipped.
pub(super) fn read_datagram(
    datagram: &[u8],
    sequence: u32,
    mut each: impl FnMut(Message<'_>),
) -> Result<Progress, Malformed> {
    let mut rest = datagram;
    while !rest.is_empty() {
        let header = rest.first_chunk::<HEADER_LEN>().ok_or(Malformed::Truncated)?;
        let length = u32_at(header, 0)? as usize;
        if length < HEADER_LEN {
            return Err(Malformed::BadLength);
        }
        let body = rest.get(HEADER_LEN..length).ok_or(Malformed::Truncated)?;
        rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
        if u32_at(header, 8)? != sequence {
            continue;
        }
        match u16_at(header, 4)? {
            NLMSG_DONE => {
                // A dump that failed half-way ends with its (negative) error number.
                let status = u32_at(body, 0).unwrap_or(0).cast_signed();
                return Ok(if status < 0 {
                    Progress::Refused(status.saturating_neg())
                } else {
                    Progress::Done
                });
            }
            NLMSG_ERROR => {
                let status = u32_at(body, 0)?.cast_signed();
                return Ok(Progress::Refused(status.saturating_neg()));
            }
            SOCK_DIAG_BY_FAMILY => each(Message::read(body)?),
            _ => {}
        }
    }
    Ok(Progress::More)
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
}

impl<'a> Message<'a> {
    fn read(body: &'a [u8]) -> Result<Self, Malformed> {
        let (fixed, mut attributes) = body.split_first_chunk::<MESSAGE_LEN>().ok_or(Malformed::Truncated)?;
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
        };
        while !attributes.is_empty() {
            let length = usize::from(u16_at(attributes, 0)?);
            let kind = u16_at(attributes, 2)?;
            if length < ATTRIBUTE_HEADER_LEN {
                return Err(Malformed::BadLength);
            }
            let value = attributes.get(ATTRIBUTE_HEADER_LEN..length).ok_or(Malformed::Truncated)?;
            match kind {
                INET_DIAG_INFO => message.info = value,
                INET_DIAG_SKMEMINFO => message.mem = value,
                INET_DIAG_CONG => message.congestion = value,
                _ => {}
            }
            attributes = attributes.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
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
            state: State::from_kernel(self.state),
            inode: self.inode,
            uid: self.uid,
            cookie: self.cookie,
            info: TcpInfo::decode(self.info),
            mem: SkMem::decode(self.mem),
            congestion: CongestionControl(name),
        }
    }
}

/// The address at `at`; an IPv4 address in IPv6's clothes comes out as IPv4.
fn address(fixed: &[u8; MESSAGE_LEN], at: usize) -> Result<IpAddr, Malformed> {
    let bytes = fixed[at..].first_chunk::<16>().ok_or(Malformed::Truncated)?;
    match i32::from(fixed[0]) {
        libc::AF_INET => Ok(Ipv4Addr::new(bytes[0], bytes[1], bytes[2], bytes[3]).into()),
        libc::AF_INET6 => Ok(Ipv6Addr::from(*bytes).to_canonical()),
        _ => Err(Malformed::Family(fixed[0])),
    }
}

fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed::Truncated)?;
    Ok(u16::from_ne_bytes(*field))
}

fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed::Truncated)?;
    Ok(u32::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEQUENCE: u32 = 77;

    /// A netlink message of `kind` with `body`, padded to the alignment.
    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut out = Vec::new();
        out.extend(u32::try_from(HEADER_LEN + body.len()).unwrap().to_ne_bytes());
        out.extend(kind.to_ne_bytes());
        out.extend([0; 2]);
        out.extend(sequence.to_ne_bytes());
        out.extend([0; 4]);
        out.extend(body);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }

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
        for (kind, value) in attributes {
            out.extend(u16::try_from(ATTRIBUTE_HEADER_LEN + value.len()).unwrap().to_ne_bytes());
            out.extend(kind.to_ne_bytes());
            out.extend(*value);
            out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        }
        out
    }

    fn read(datagram: &[u8]) -> (Result<Progress, Malformed>, Vec<Connection>) {
        let mut seen = Vec::new();
        let progress = read_datagram(datagram, SEQUENCE, |message| seen.push(message.connection()));
        (progress, seen)
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
        ]);
        let mut datagram = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &body);
        datagram.extend(message(NLMSG_DONE, SEQUENCE, &[0; 4]));
        let (progress, seen) = read(&datagram);
        assert_eq!(progress, Ok(Progress::Done));
        assert_eq!(seen.len(), 1);
        assert_eq!(seen[0].peer, "198.18.0.2:80".parse().unwrap());
        assert_eq!((seen[0].inode, seen[0].info.rtt, seen[0].mem.rcvbuf), (12_345, 40_000, 6));
        assert_eq!(seen[0].congestion.as_str(), "cubic");
    }

    #[test]
    fn answers_to_an_earlier_request_are_skipped() {
        let datagram = message(SOCK_DIAG_BY_FAMILY, SEQUENCE - 1, &body(&[]));
        assert_eq!(read(&datagram), (Ok(Progress::More), Vec::new()));
    }

    #[test]
    fn a_refusal_carries_the_kernels_error_number() {
        let refusal = (-libc::ENOENT).to_ne_bytes();
        for kind in [NLMSG_ERROR, NLMSG_DONE] {
            let (progress, _) = read(&message(kind, SEQUENCE, &refusal));
            assert_eq!(progress, Ok(Progress::Refused(libc::ENOENT)));
        }
    }

    #[test]
    fn cut_messages_and_wrong_lengths_are_errors() {
        let whole = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &body(&[(INET_DIAG_CONG, b"reno\0")]));
        for cut in 1..whole.len() - 3 {
            assert_eq!(read(&whole[..cut]), (Err(Malformed::Truncated), Vec::new()), "cut at {cut}");
        }
        let mut short = whole.clone();
        short[0..4].copy_from_slice(&15_u32.to_ne_bytes());
        assert_eq!(read(&short).0, Err(Malformed::BadLength));
        let mut attribute = whole.clone();
        attribute[HEADER_LEN + MESSAGE_LEN] = 3;
        assert_eq!(read(&attribute).0, Err(Malformed::BadLength));
        let mut family = whole;
        family[HEADER_LEN] = 99;
        assert_eq!(read(&family).0, Err(Malformed::Family(99)));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(datagram in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&datagram);
        }

        #[test]
        fn a_damaged_message_never_panics(at in 0..160_usize, value: u8, extra in prop::collection::vec(any::<u8>(), 0..80)) {
            let mut datagram = message(SOCK_DIAG_BY_FAMILY, SEQUENCE, &body(&[(INET_DIAG_CONG, b"reno\0"), (INET_DIAG_INFO, &extra)]));
            let at = at % datagram.len();
            datagram[at] = value;
            let (_, seen) = read(&datagram);
            prop_assert!(seen.len() <= 1);
        }
    }
}
