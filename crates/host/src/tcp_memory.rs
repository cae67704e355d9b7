//! Memory that the kernel's TCP holds, of all connections of the host together, against `net.ipv4.tcp_mem`.
//!
//! Above the second of its three values the kernel speaks of pressure: it shrinks windows and send buffers, until less than
//! the first is held. No connection shows that itself. Source: tcp(7), `__sk_mem_raise_allocated()` in `net/core/sock.c`.

use std::fs;

use bufwise_units::Bytes;

/// What is held, and from where on it is too much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TcpMemory {
    /// Held by all connections of the host.
    pub held: Bytes,
    /// Pressure begins above this.
    pub pressure: Bytes,
}

impl TcpMemory {
    /// The host's figures now; `None` where they cannot be seen: `tcp_mem` shows in the first network namespace alone.
    pub fn now() -> Option<Self> {
        let held = fs::read_to_string("/proc/net/sockstat").ok()?;
        let bounds = fs::read_to_string("/proc/sys/net/ipv4/tcp_mem").ok()?;
        let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten()?;
        Self::read(&held, &bounds, page.unsigned_abs())
    }

    /// Reads the two files, which count pages.
    fn read(sockstat: &str, tcp_mem: &str, page: u64) -> Option<Self> {
        let line = sockstat.lines().find_map(|line| line.strip_prefix("TCP: "))?;
        let mut words = line.split_whitespace();
        let held: u64 = words.find(|word| *word == "mem").and_then(|_| words.next())?.parse().ok()?;
        let pressure: u64 = tcp_mem.split_whitespace().nth(1)?.parse().ok()?;
        Some(Self { held: Bytes(held).times(page), pressure: Bytes(pressure).times(page) })
    }

    /// The kernel shrinks buffers.
    pub fn is_short(&self) -> bool {
        self.held > self.pressure
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
        assert!(memory.is_short());
        assert!(!TcpMemory::read(SOCKSTAT, "3072 4096 6144", 4_096).unwrap().is_short());
    }

    #[test]
    fn files_of_another_form_tell_nothing() {
        for (sockstat, tcp_mem) in
            [("", "1 2 3"), (SOCKSTAT, "1"), ("TCP: mem", "1 2 3"), ("TCP: mem x", "1 2 3")]
        {
            assert_eq!(TcpMemory::read(sockstat, tcp_mem, 4_096), None);
        }
    }
}
