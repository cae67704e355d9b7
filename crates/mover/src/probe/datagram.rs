//! Datagrams, and pieces of streams, with their time of arrival, as the kernel records it (`SO_TIMESTAMPNS`).

use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, SockaddrStorage, recvmsg, setsockopt, sockopt};
use nix::sys::time::TimeSpec;

/// Most datagrams that are read before the caller checks its clock and its other descriptors again: a flood must not delay
/// these.
pub(super) const AT_ONCE: usize = 128;

/// A datagram in the caller's buffer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Datagram {
    pub(super) len: usize,
    pub(super) from: Option<SocketAddr>,
    /// Arrival, wall-clock nanoseconds.
    pub(super) stamp: Option<u64>,
}

/// Switches time stamps of arrivals on.
pub(super) fn stamp_arrivals(socket: &impl AsFd) -> io::Result<()> {
    Ok(setsockopt(socket, sockopt::ReceiveTimestampns, &true)?)
}

/// Returns the next datagram that waits; `None`: no more, or an ICMP answer to what was sent before.
pub(super) fn receive(socket: &impl AsRawFd, buffer: &mut [u8]) -> Option<Datagram> {
    let mut control = nix::cmsg_space!(TimeSpec);
    let mut parts = [IoSliceMut::new(buffer)];
    let (fd, flags) = (socket.as_raw_fd(), MsgFlags::MSG_DONTWAIT);
    let message = recvmsg::<SockaddrStorage>(fd, &mut parts, Some(&mut control), flags).ok()?;
    let stamp = message.cmsgs().ok().and_then(|mut all| {
        all.find_map(|one| match one {
            ControlMessageOwned::ScmTimestampns(time) => Some(Duration::from(time).as_nanos() as u64),
            _ => None,
        })
    });
    Some(Datagram { len: message.bytes, from: message.address.as_ref().and_then(address), stamp })
}

fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = storage.as_sockaddr_in().map(|v4| SocketAddr::from(*v4));
    v4.or_else(|| storage.as_sockaddr_in6().map(|v6| SocketAddr::from(*v6)))
}

/// Returns the time of the wall clock, in nanoseconds since 1970. Time stamps of arrivals have the same clock.
pub(super) fn unix_nanos() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_keeps_its_scope() {
        for text in ["192.0.2.1:5", "[2001:db8::1]:5", "[fe80::1%3]:5"] {
            let from: SocketAddr = text.parse().unwrap();
            assert_eq!(address(&SockaddrStorage::from(from)), Some(from), "{text}");
        }
    }
}
