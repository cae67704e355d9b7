//! This host's limits of socket memory.
//!
//! Source: `Documentation/networking/ip-sysctl.rst` and `admin-guide/sysctl/net.rst` of Linux.
//! A limit that cannot be read counts as zero, so that nothing is attempted that needs more.

use std::fs;

use bufwise_units::Bytes;

/// Returns the most that `SO_RCVBUF` takes: `net.core.rmem_max`.
pub(crate) fn rmem_max() -> Bytes {
    last_number("/proc/sys/net/core/rmem_max")
}

/// Returns the most memory that autotuning gives a receive buffer: the third of `net.ipv4.tcp_rmem`.
pub(crate) fn tcp_rmem_max() -> Bytes {
    last_number("/proc/sys/net/ipv4/tcp_rmem")
}

/// Returns the most that `SO_SNDBUF` takes: `net.core.wmem_max`.
pub(crate) fn wmem_max() -> Bytes {
    last_number("/proc/sys/net/core/wmem_max")
}

/// Returns the most memory that autotuning gives a send buffer: the third of `net.ipv4.tcp_wmem`.
pub(crate) fn tcp_wmem_max() -> Bytes {
    last_number("/proc/sys/net/ipv4/tcp_wmem")
}

fn last_number(path: &str) -> Bytes {
    let text = fs::read_to_string(path).unwrap_or_default();
    Bytes(text.split_ascii_whitespace().last().and_then(|word| word.parse().ok()).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_host_has_limits_and_a_missing_one_is_zero() {
        for limit in [rmem_max(), wmem_max(), tcp_rmem_max(), tcp_wmem_max()] {
            assert!(limit > Bytes(4_096));
        }
        assert_eq!(last_number("/proc/sys/net/core/no-such"), Bytes::ZERO);
    }
}
