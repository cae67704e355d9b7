//! Memory of this process, for tests that run in one of their own.

use std::fs;

pub(crate) const MIB: usize = 1 << 20;

/// Returns the resident memory of this process, bytes.
pub(crate) fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").expect("a process has a status");
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
    kib.and_then(|kib| kib.parse::<usize>().ok()).expect("the status has its memory") << 10
}
