//! Memory that the kernel's TCP holds, over all connections of the host, against `net.ipv4.tcp_mem`.
//!
//! Above the second of its three values the kernel is under memory pressure: it shrinks windows and send buffers,
//! until it holds less than the first value. Between the two values a connection shows whether pressure lasts: under
//! pressure no window grows beyond four segments. Source: tcp(7), `__sk_mem_raise_allocated()` in `net/core/sock.c`,
//! `tcp_adjust_rcv_ssthresh()`.

use std::fs;

use bufwise_socket::info::TcpInfo;
use bufwise_units::Bytes;

/// Largest window under pressure, in segments.
const WINDOW_SEGMENTS: u32 = 4;

/// The memory held, and the bounds of pressure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpMemory {
    /// Memory held by all connections of the host.
    pub held: Bytes,
    /// Pressure ends below this.
    pub low: Bytes,
    /// Pressure begins above this.
    pub pressure: Bytes,
}

impl TcpMemory {
    /// Reads the host's present figures; `None` if they cannot be read: `tcp_mem` exists only in the first network
    /// namespace.
    pub fn now() -> Option<Self> {
        let held = fs::read_to_string("/proc/net/sockstat").ok()?;
        let bounds = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten()?;
        Self::read(&held, &bounds, page.unsigned_abs())
    }

    /// Parses the two files, which count pages of `page` bytes.
    fn read(sockstat: &str, tcp_mem: &str, page: u64) -> Option<Self> {
        let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP: "))?;
        let mut words = line.split_whitespace();
        let held: u64 = words.find(|word| *word == "mem").and_then(|_| words.next())?.parse().ok()?;
        let mut bounds =
            tcp_mem.split_whitespace().map(|word| word.parse().ok().map(|bound| Bytes(bound).times(page)));
        let (low, pressure) = (bounds.next()??, bounds.next()??);
        Some(Self { held: Bytes(held).times(page), low, pressure })
    }

    /// Returns whether the host's total is above the pressure mark, so that the kernel shrinks buffers.
    pub fn is_short(&self) -> bool {
        self.held > self.pressure
    }

    /// Returns whether the kernel shrinks this connection's window.
    pub fn shrinks(&self, info: &TcpInfo) -> bool {
        let is_clamped = info.rcv_ssthresh > 0 && info.rcv_ssthresh <= WINDOW_SEGMENTS * info.advmss;
        self.is_short() || self.held > self.low && is_clamped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOCKSTAT: &str =
        "sockets: used 309\nTCP: inuse 13 orphan 0 tw 4 alloc 20 mem 4096\nUDP: inuse 7 mem 9\n";

    #[test]
    fn pressure_begins_above_the_second_bound() {
        let memory = TcpMemory::read(SOCKSTAT, "3072\t4095\t6144\n", 4_096).unwrap();
        assert_eq!((memory.held, memory.pressure), (Bytes(16 << 20), Bytes(4_095 * 4_096)));
        assert_eq!(memory.low, Bytes(12 << 20));
        assert!(memory.is_short());
        assert!(!TcpMemory::read(SOCKSTAT, "3072 4096 6144", 4_096).unwrap().is_short());
    }

    #[test]
    fn until_less_than_the_first_bound_is_held_clamped_windows_tell() {
        let clamped = TcpInfo { rcv_ssthresh: 5_792, advmss: 1_448, ..TcpInfo::default() };
        let open = TcpInfo { rcv_ssthresh: 65_160, ..clamped };
        let between = TcpMemory::read(SOCKSTAT, "3072 4096 6144", 4_096).unwrap();
        assert!(between.shrinks(&clamped) && !between.shrinks(&open));
        let less = TcpMemory::read(SOCKSTAT, "4096 5000 6144", 4_096).unwrap();
        assert!(!less.shrinks(&clamped), "its buffer is small for another reason");
    }

    #[test]
    fn files_of_another_form_tell_nothing() {
        for (sockstat, tcp_mem) in [
            ("", "1 2 3"),
            (SOCKSTAT, "1"),
            (SOCKSTAT, "x 2 3"),
            ("TCP: mem", "1 2 3"),
            ("TCP: mem x", "1 2 3"),
        ] {
            assert_eq!(TcpMemory::read(sockstat, tcp_mem, 4_096), None);
        }
    }
}
