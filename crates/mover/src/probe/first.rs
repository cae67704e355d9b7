//! The rate of a path from the first flight of any TCP server, the only packets that an unknown server sends back to
//! back.
//!
//! Source: RFC 6928: a server may send ten segments before the first acknowledgement; their spacing gives the rate of
//! the tight link (Keshav 1991: packet pairs).
//! Choices: arrivals have the kernel's times (`SO_TIMESTAMPNS`). Segments that come more than half a round trip after the
//! first one may have waited for an acknowledgement, and are ignored; arrivals at one moment count as one (receive
//! offload).
//! Properties kept: fewer than four arrivals give no rate; at most 64 KiB are read; every wait is bounded.

use std::io;
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bufwise_units::{BitRate, Bytes, Micros};
use nix::poll::PollFlags;

use super::datagram;
use crate::wake;

/// Least arrivals for a rate: two distances, from three arrivals, may be chance.
const LEAST_ARRIVALS: usize = 4;
/// Length of a segment's headers, bytes: those of IPv4 or IPv6, and of TCP with timestamps.
const HEADERS: f64 = 52.0;
const HEADERS_IPV6: f64 = 72.0;
/// Most bytes of the answer that are read.
const MOST: u64 = 64 << 10;

/// Arrivals of a first flight.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FirstFlight {
    /// Payload so far and nanoseconds, at each arrival.
    arrivals: Vec<(u64, u64)>,
    is_ipv6: bool,
}

impl FirstFlight {
    /// Returns the payload that arrived.
    #[must_use]
    pub fn bytes(&self) -> Bytes {
        Bytes(self.arrivals.last().map_or(0, |last| last.0))
    }

    /// Returns the number of moments at which payload arrived.
    #[must_use]
    pub fn arrivals(&self) -> usize {
        self.arrivals.len()
    }

    /// Returns the rate of arrival, in IP packets with segments of `segment` bytes; `None`: too few arrivals.
    #[must_use]
    pub fn rate(&self, segment: u32) -> Option<BitRate> {
        let [first, .., last] = self.arrivals[..] else { return None };
        let nanos = last.1.saturating_sub(first.1);
        if self.arrivals.len() < LEAST_ARRIVALS || nanos == 0 {
            return None;
        }
        let headers = if self.is_ipv6 { HEADERS_IPV6 } else { HEADERS };
        let packets = 1.0 + headers / f64::from(segment.max(1));
        Some(BitRate(((last.0 - first.0) as f64 * packets * 8e9 / nanos as f64) as u64))
    }

    fn came(&mut self, bytes: u64, at: u64) {
        let whole = self.bytes().0 + bytes;
        match self.arrivals.last_mut() {
            Some(last) if last.1 >= at => last.0 = whole,
            _ => self.arrivals.push((whole, at)),
        }
    }
}

/// Reads the first flight on `tcp`: waits for its first bytes for `patience`, then reads for half of `round_trip`.
///
/// # Errors
/// When nothing can be waited for, or the kernel has no time stamps.
pub fn first_flight(tcp: &TcpStream, patience: Duration, round_trip: Micros) -> io::Result<FirstFlight> {
    datagram::stamp_arrivals(tcp)?;
    let half = Duration::from_micros(round_trip.0 / 2);
    let is_ipv6 = tcp.peer_addr().is_ok_and(|peer| peer.ip().to_canonical().is_ipv6());
    let mut flight = FirstFlight { is_ipv6, ..FirstFlight::default() };
    let mut until = Instant::now() + patience;
    // Read one segment at a time: for several at once the kernel gives the arrival of the last one only.
    let mut buffer = [0; 1_460];
    while flight.bytes().0 < MOST && wake::until([(tcp.as_fd(), PollFlags::POLLIN)], until)? == [true] {
        let Some(piece) = datagram::receive(tcp, &mut buffer).filter(|piece| piece.len > 0) else { break };
        let at = piece.stamp.unwrap_or_else(datagram::unix_nanos);
        let first = flight.arrivals.first().map(|first| first.1);
        if first.is_some_and(|first| at.saturating_sub(first) > half.as_nanos() as u64) {
            break;
        }
        if first.is_none() {
            until = Instant::now() + half;
        }
        flight.came(piece.len as u64, at);
    }
    Ok(flight)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_arrivals_give_a_rate_and_fewer_none() {
        let mut flight = FirstFlight::default();
        for segment in 0..10 {
            // 1,500 bytes at 10 Mbit/s take 1.2 ms; two reads of one segment are one arrival.
            flight.came(1_000, 5_000_000 + segment * 1_200_000);
            flight.came(448, 5_000_000 + segment * 1_200_000);
            assert_eq!(flight.rate(1_448).is_some(), segment >= 3, "{segment}");
        }
        assert_eq!((flight.bytes(), flight.arrivals()), (Bytes(14_480), 10));
        assert!(flight.rate(1_448).unwrap().0.abs_diff(10_000_000) < 10, "{flight:?}");
    }

    #[test]
    fn the_headers_of_ipv6_count() {
        let mut flight = FirstFlight { is_ipv6: true, ..FirstFlight::default() };
        // 1,500 bytes at 10 Mbit/s take 1.2 ms.
        (0..10).for_each(|segment| flight.came(1_428, segment * 1_200_000));
        assert!(flight.rate(1_428).unwrap().0.abs_diff(10_000_000) < 10, "{flight:?}");
    }

    #[test]
    fn arrivals_at_one_moment_give_none() {
        let mut flight = FirstFlight::default();
        (0..10).for_each(|_| flight.came(1_448, 7));
        assert_eq!((flight.arrivals(), flight.rate(1_448)), (1, None));
    }
}
