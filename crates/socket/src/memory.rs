//! The memory of the host.
//!
//! Source: `/proc/meminfo` in proc_meminfo(5).

use std::fs;

use bufwise_units::Bytes;

/// The memory of the host at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// All memory.
    pub total: Bytes,
    /// Memory that programs may still take without swapping, as the kernel estimates it.
    pub available: Bytes,
}

impl HostMemory {
    /// Reads the present figures; `None` if `/proc` does not show them.
    #[must_use]
    pub fn now() -> Option<Self> {
        Self::in_meminfo(&fs::read_to_string("/proc/meminfo").ok()?)
    }

    /// Returns the figures in `meminfo`, a text as `/proc/meminfo`; `None` if it lacks one.
    #[must_use]
    pub fn in_meminfo(meminfo: &str) -> Option<Self> {
        let field = |name: &str| {
            let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
            let kib = line.split_whitespace().next()?.parse().ok()?;
            Some(Bytes(kib).times(1 << 10))
        };
        Some(Self { total: field("MemTotal:")?, available: field("MemAvailable:")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_kib_and_unknown_if_a_figure_is_missing() {
        let meminfo = "MemTotal:        9000000 kB\nMemFree:  7 kB\nMemAvailable:    8000000 kB\n";
        let memory = HostMemory { total: Bytes(9_216_000_000), available: Bytes(8_192_000_000) };
        assert_eq!(HostMemory::in_meminfo(meminfo), Some(memory));
        for unknown in ["", "MemTotal: 9 kB\n", "MemAvailable: 8 kB\n", "MemTotal: 9\nMemAvailable: x\n"] {
            assert_eq!(HostMemory::in_meminfo(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn this_host_has_memory() {
        let memory = HostMemory::now().unwrap();
        assert!(memory.total > Bytes::ZERO && memory.available <= memory.total, "{memory:?}");
    }
}
