//! The running kernel's version, where a feature cannot be found out by trying it.

use std::fs;
use std::sync::LazyLock;

/// First kernel whose `TCP_INFO` has the window on offer (`tcpi_rcv_wnd`).
const TELLS_WINDOWS: (u32, u32) = (6, 2);
/// First kernel on which an iterator can switch on the callbacks of a connection (`TCP_BPF_SOCK_OPS_CB_FLAGS`).
const SWITCHES_CALLBACKS_ON: (u32, u32) = (6, 12);

/// Returns the major and minor number of the running kernel; `None` if `/proc` does not show them.
#[must_use]
pub fn kernel_version() -> Option<(u32, u32)> {
    numbers(&fs::read_to_string("/proc/sys/kernel/osrelease").ok()?)
}

/// Returns whether an iterator may switch on the callbacks of a connection. If not, [`crate::Engine::sweep`] leaves it to
/// user space to size those that it finds.
#[must_use]
pub fn sweeps_switch_callbacks_on() -> bool {
    kernel_version().is_none_or(|version| version >= SWITCHES_CALLBACKS_ON)
}

/// Returns whether `TCP_INFO` has the window on offer, so that 0 stands for a full buffer.
pub(crate) fn tells_windows() -> bool {
    static TELLS: LazyLock<bool> =
        LazyLock::new(|| kernel_version().is_some_and(|version| version >= TELLS_WINDOWS));
    *TELLS
}

/// Parses a release, as `6.1.0-18-amd64`.
fn numbers(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(['.', '-']).map(|part| part.parse().ok());
    Some((numbers.next()??, numbers.next()??))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_parsed() {
        for (release, version) in
            [("6.1.0-18-amd64\n", Some((6, 1))), ("5.10-rc3", Some((5, 10))), ("", None), ("6", None)]
        {
            assert_eq!(numbers(release), version, "{release}");
        }
    }
}
