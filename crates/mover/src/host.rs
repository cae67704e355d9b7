//! This host's limits of socket memory.
//!
//! Problem: older kernels show the maxima of `net.core` in the first network namespace alone, so programs in containers find no
//! files. The maxima apply there all the same.
//! Rule: where the file is missing, request the largest buffer of a new socket: the kernel cuts the request to the maximum, and shows
//! twice that.
//! Source: `Documentation/networking/ip-sysctl.rst` and `admin-guide/sysctl/net.rst` of Linux; `sk_setsockopt()` in
//! `net/core/sock.c`.
//! A limit of autotuning that cannot be read counts as zero, so that nothing is attempted that needs more.

use std::fs;

use bufwise_socket::options;
use bufwise_units::Bytes;
use socket2::{Domain, Socket, Type};

/// The kernel's built-in `net.core.rmem_max` and `wmem_max`.
const BUILT_IN: Bytes = Bytes(212_992);

/// Returns the most that `SO_RCVBUF` takes: `net.core.rmem_max`.
pub(crate) fn rmem_max() -> Bytes {
    last_number("/proc/sys/net/core/rmem_max").or_else(most_to_receive).unwrap_or(BUILT_IN)
}

/// Returns the most memory that autotuning gives a receive buffer: the third of `net.ipv4.tcp_rmem`.
pub(crate) fn tcp_rmem_max() -> Bytes {
    last_number("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default()
}

/// Returns the most that `SO_SNDBUF` takes: `net.core.wmem_max`.
pub(crate) fn wmem_max() -> Bytes {
    last_number("/proc/sys/net/core/wmem_max").or_else(most_to_send).unwrap_or(BUILT_IN)
}

/// Returns the most memory that autotuning gives a send buffer: the third of `net.ipv4.tcp_wmem`.
pub(crate) fn tcp_wmem_max() -> Bytes {
    last_number("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default()
}

fn last_number(path: &str) -> Option<Bytes> {
    fs::read_to_string(path).ok()?.split_ascii_whitespace().last()?.parse().ok().map(Bytes)
}

fn most_to_receive() -> Option<Bytes> {
    let socket = any_socket()?;
    options::set_receive_buffer(&socket, Bytes::MAX).ok()?;
    Some(options::receive_buffer(&socket).ok()?.scaled(1, 2))
}

fn most_to_send() -> Option<Bytes> {
    let socket = any_socket()?;
    options::set_send_buffer(&socket, Bytes::MAX).ok()?;
    Some(options::send_buffer(&socket).ok()?.scaled(1, 2))
}

fn any_socket() -> Option<Socket> {
    Socket::new(Domain::IPV4, Type::DGRAM, None).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_limits_and_a_missing_one_is_none() {
        for limit in [rmem_max(), wmem_max(), tcp_rmem_max(), tcp_wmem_max()] {
            assert!(limit > Bytes(4_096));
        }
        assert_eq!(last_number("/proc/sys/net/core/no-such"), None);
    }

    #[test]
    fn a_socket_tells_the_maxima_that_no_file_shows() {
        // The kernel doubles the value in an `int`, so half of the largest `int` is the largest value.
        let of_file = |name: &str| {
            let shown = last_number(&format!("/proc/sys/net/core/{name}"));
            shown.map(|most| most.min(Bytes(i32::MAX as u64 / 2)))
        };
        let (receive, send) = (most_to_receive().unwrap(), most_to_send().unwrap());
        assert_eq!(of_file("rmem_max").unwrap_or(receive), receive);
        assert_eq!(of_file("wmem_max").unwrap_or(send), send);
        assert!(receive > Bytes(4_096) && send > Bytes(4_096));
    }
}
