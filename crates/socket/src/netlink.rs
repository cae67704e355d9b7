//! Netlink: a socket to the kernel, messages and their attributes.
//!
//! Source: netlink(7), `linux/netlink.h`. Numbers are in the host's byte order. For any input from the kernel,
//! nothing is read beyond the end of a message or an attribute; answers to another request are skipped.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use nix::errno::Errno;
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockProtocol, SockType, recv, send, socket};

/// Bytes; in a dump the kernel sends at most 32 KiB per message.
const RECEIVE_BUFFER: usize = 64 << 10;

pub(crate) const NLMSG_ERROR: u16 = 2;
pub(crate) const NLMSG_DONE: u16 = 3;
/// `NLM_F_REQUEST`, `NLM_F_ACK`, `NLM_F_DUMP`.
pub(crate) const REQUEST: u16 = 0x0001;
pub(crate) const ACKNOWLEDGE: u16 = 0x0004;
pub(crate) const DUMP: u16 = 0x0300;
/// `NLM_F_DUMP_INTR`.
const CHANGED: u16 = 0x0010;

/// Length of `struct nlmsghdr`, bytes.
pub(crate) const HEADER_LEN: usize = 16;
/// Length of `struct nlattr`, bytes.
pub(crate) const ATTRIBUTE_HEADER_LEN: usize = 4;
/// Alignment of messages and attributes, in bytes.
pub(crate) const ALIGNMENT: usize = 4;

/// The fault in a message.
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

/// Why a request got no answer.
#[derive(Debug)]
pub(crate) enum AskError {
    /// A system call failed: the step, and the kernel's answer.
    Io(&'static str, io::Error),
    /// The kernel refused the request.
    Refused(io::Error),
    /// The answer is malformed.
    Malformed(Malformed),
}

impl From<Malformed> for AskError {
    fn from(source: Malformed) -> Self {
        Self::Malformed(source)
    }
}

/// A socket to one subsystem of the kernel, in the network namespace in which it was opened.
#[derive(Debug)]
pub(crate) struct Netlink {
    fd: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens the socket; needs no privilege.
    pub(crate) fn open(protocol: SockProtocol) -> io::Result<Self> {
        let fd = socket(AddressFamily::Netlink, SockType::Raw, SockFlag::SOCK_CLOEXEC, protocol)?;
        Ok(Self { fd, sequence: 0, buffer: vec![0; RECEIVE_BUFFER] })
    }

    /// Sends the request that `write` composes for a sequence number, and passes the kind and body of each message of
    /// the answer to `each`, up to the last. Returns whether the answer is whole: a list that changes while the kernel writes
    /// it may lack entries that were there all the time.
    pub(crate) fn ask(
        &mut self,
        write: impl FnOnce(u32) -> Vec<u8>,
        mut each: impl FnMut(u16, &[u8]) -> Result<(), Malformed>,
    ) -> Result<bool, AskError> {
        self.sequence = self.sequence.wrapping_add(1);
        send(self.fd.as_raw_fd(), &write(self.sequence), MsgFlags::empty())
            .map_err(|errno| AskError::Io("asking", errno.into()))?;
        let mut whole = true;
        loop {
            // With MSG_TRUNC the kernel returns the true length, so that a cut message cannot pass as whole.
            let len = match recv(self.fd.as_raw_fd(), &mut self.buffer, MsgFlags::MSG_TRUNC) {
                Ok(len) => len,
                Err(Errno::EINTR) => continue,
                Err(errno) => return Err(AskError::Io("reading", errno.into())),
            };
            let datagram = self.buffer.get(..len).ok_or(Malformed::Truncated)?;
            match read_datagram(datagram, self.sequence, &mut whole, &mut each)? {
                Progress::More => {}
                Progress::Done => return Ok(whole),
                Progress::Refused(errno) => {
                    return Err(AskError::Refused(io::Error::from_raw_os_error(errno)));
                }
            }
        }
    }
}

/// Returns a request: the header, then the body.
pub(crate) fn request(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(HEADER_LEN + body.len());
    out.extend(u32::try_from(HEADER_LEN + body.len()).unwrap_or(u32::MAX).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(flags.to_ne_bytes());
    out.extend(sequence.to_ne_bytes());
    // The kernel fills in the port.
    out.extend([0; 4]);
    out.extend(body);
    out
}

/// Appends an attribute, padded to [`ALIGNMENT`].
pub(crate) fn put_attribute(out: &mut Vec<u8>, kind: u16, value: &[u8]) {
    out.extend(u16::try_from(ATTRIBUTE_HEADER_LEN + value.len()).unwrap_or(u16::MAX).to_ne_bytes());
    out.extend(kind.to_ne_bytes());
    out.extend(value);
    out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
}

/// State of an answer after a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    More,
    Done,
    /// The kernel's error number.
    Refused(i32),
}

/// Reads every message of one datagram; messages that do not answer request `sequence` are skipped. `whole` becomes false if one says
/// that the list has changed.
pub(crate) fn read_datagram(
    datagram: &[u8],
    sequence: u32,
    whole: &mut bool,
    mut each: impl FnMut(u16, &[u8]) -> Result<(), Malformed>,
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
        let kind = u16_at(header, 4)?;
        *whole &= u16_at(header, 6)? & CHANGED == 0;
        // An acknowledgement is an error message with number 0; a dump that failed half-way ends with its negative
        // number.
        let status = match kind {
            NLMSG_DONE => u32_at(body, 0).unwrap_or(0),
            NLMSG_ERROR => u32_at(body, 0)?,
            _ => {
                each(kind, body)?;
                continue;
            }
        };
        let errno = status.cast_signed().saturating_neg();
        return Ok(if errno > 0 { Progress::Refused(errno) } else { Progress::Done });
    }
    Ok(Progress::More)
}

/// Iterates over the attributes of a message as pairs of kind and value.
pub(crate) fn attributes(mut rest: &[u8]) -> impl Iterator<Item = Result<(u16, &[u8]), Malformed>> {
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let one = attribute(rest);
        // The last attribute need not be padded; after a malformed attribute the rest is ignored.
        let length = one.map_or(rest.len(), |(_, value)| ATTRIBUTE_HEADER_LEN + value.len());
        rest = rest.get(length.next_multiple_of(ALIGNMENT)..).unwrap_or(&[]);
        Some(one)
    })
}

fn attribute(bytes: &[u8]) -> Result<(u16, &[u8]), Malformed> {
    let length = usize::from(u16_at(bytes, 0)?);
    let kind = u16_at(bytes, 2)?;
    if length < ATTRIBUTE_HEADER_LEN {
        return Err(Malformed::BadLength);
    }
    Ok((kind, bytes.get(ATTRIBUTE_HEADER_LEN..length).ok_or(Malformed::Truncated)?))
}

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> Result<u16, Malformed> {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed::Truncated)?;
    Ok(u16::from_ne_bytes(*field))
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let field = bytes.get(at..).and_then(<[u8]>::first_chunk).ok_or(Malformed::Truncated)?;
    Ok(u32::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SEQUENCE: u32 = 77;

    fn message(kind: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let mut out = request(kind, 0, sequence, body);
        out.resize(out.len().next_multiple_of(ALIGNMENT), 0);
        out
    }

    fn read(datagram: &[u8]) -> (Result<Progress, Malformed>, Vec<u16>) {
        let mut seen = Vec::new();
        let progress = read_datagram(datagram, SEQUENCE, &mut true, |kind, _| {
            seen.push(kind);
            Ok(())
        });
        (progress, seen)
    }

    #[test]
    fn messages_come_until_the_last_and_those_of_an_earlier_request_are_skipped() {
        let all =
            [message(30, SEQUENCE - 1, &[]), message(31, SEQUENCE, &[1; 5]), message(32, SEQUENCE, &[])];
        assert_eq!(read(&all.concat()), (Ok(Progress::More), vec![31, 32]));
        for end in [NLMSG_DONE, NLMSG_ERROR] {
            let datagram = [all.concat(), message(end, SEQUENCE, &[0; 4]), all.concat()].concat();
            assert_eq!(read(&datagram), (Ok(Progress::Done), vec![31, 32]));
        }
    }

    #[test]
    fn a_list_that_changed_meanwhile_is_not_whole() {
        let changed = |kind, sequence| request(kind, CHANGED, sequence, &[0; 4]);
        let (one, end) = (message(31, SEQUENCE, &[]), message(NLMSG_DONE, SEQUENCE, &[0; 4]));
        let is_whole = |messages: &[&[u8]]| {
            let mut whole = true;
            let progress = read_datagram(&messages.concat(), SEQUENCE, &mut whole, |_, _| Ok(()));
            assert_eq!(progress, Ok(Progress::Done));
            whole
        };
        assert!(is_whole(&[&one, &changed(31, SEQUENCE - 1), &end]), "that was another request");
        assert!(!is_whole(&[&changed(31, SEQUENCE), &one, &end]));
        assert!(!is_whole(&[&one, &changed(NLMSG_DONE, SEQUENCE)]));
    }

    #[test]
    fn a_refusal_carries_the_kernels_error_number() {
        let refusal = (-libc::ENOENT).to_ne_bytes();
        for kind in [NLMSG_ERROR, NLMSG_DONE] {
            assert_eq!(read(&message(kind, SEQUENCE, &refusal)).0, Ok(Progress::Refused(libc::ENOENT)));
        }
    }

    #[test]
    fn cut_messages_and_wrong_lengths_are_errors() {
        let whole = message(31, SEQUENCE, &[7; 8]);
        for cut in 1..whole.len() {
            assert_eq!(read(&whole[..cut]), (Err(Malformed::Truncated), vec![]), "cut at {cut}");
        }
        let mut short = whole;
        short[0..4].copy_from_slice(&15_u32.to_ne_bytes());
        assert_eq!(read(&short).0, Err(Malformed::BadLength));
    }

    proptest! {
        #[test]
        fn attributes_come_back_as_they_were_put(
            all in prop::collection::vec((any::<u16>(), prop::collection::vec(any::<u8>(), 0..40)), 0..8)
        ) {
            let mut bytes = Vec::new();
            all.iter().for_each(|(kind, value)| put_attribute(&mut bytes, *kind, value));
            let read: Vec<(u16, Vec<u8>)> =
                attributes(&bytes).map(|one| one.map(|(kind, value)| (kind, value.to_vec())).unwrap()).collect();
            prop_assert_eq!(read, all);
        }

        #[test]
        fn garbage_never_panics_and_comes_to_an_end(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = read(&bytes);
            prop_assert!(attributes(&bytes).count() <= bytes.len() / ATTRIBUTE_HEADER_LEN + 1);
        }
    }
}
