//! The buffers that a path needs, and whether autotuning on this host can reach them.
//!
//! Source: tcp(7). A window takes about half of a receive buffer (`tcp_adv_win_scale`, from Linux 6.6 on the ratio of
//! payload to memory), and a sender's congestion window half of its buffer (`tcp_sndbuf_expand()`), so both need twice
//! the bandwidth-delay product.

use std::fs;

use serde::Serialize;

/// Largest value that the kernel takes, bytes (an `int`). No window is larger than 1 GiB (RFC 7323, section 2.3).
const MOST: u64 = 0x7fff_ffff;

/// The maximum of `net.ipv4.tcp_rmem` or `tcp_wmem`, and the value that a path needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Maximum {
    pub(super) setting: &'static str,
    pub(super) need_bytes: u64,
    /// The present maximum in bytes; `None`: it cannot be read.
    pub(super) found_bytes: Option<u64>,
    /// The whole setting that would suffice, if the present one does not.
    pub(super) set: Option<String>,
}

/// Returns the buffer, in bytes, for a path with this bandwidth-delay product.
pub(super) fn need(bdp: u64) -> u64 {
    // At least the kernel's own default, in whole pages.
    bdp.min(1 << 50).saturating_mul(2).next_multiple_of(4_096).max(131_072)
}

impl Maximum {
    /// Reads the setting of this network namespace.
    pub(super) fn read(setting: &'static str, need_bytes: u64) -> Self {
        let path = format!("/proc/sys/net/ipv4/{}", setting.rsplit('.').next().unwrap_or(setting));
        Self::of(setting, need_bytes, fs::read_to_string(path).ok().as_deref())
    }

    fn of(setting: &'static str, need_bytes: u64, text: Option<&str>) -> Self {
        let values: Vec<u64> =
            text.unwrap_or_default().split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let [least, default, found] = values[..] else {
            return Self { setting, need_bytes, found_bytes: None, set: None };
        };
        let wanted = need_bytes.min(MOST);
        let set = (found < wanted).then(|| format!("{setting}='{least} {default} {wanted}'"));
        Self { setting, need_bytes, found_bytes: Some(found), set }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_maximum_that_is_too_small_is_named_with_what_would_do() {
        let read = |text| Maximum::of("net.ipv4.tcp_rmem", 10_002_432, Some(text));
        assert_eq!(read("4096 131072 33554432").set, None);
        let short = read("4096\t131072\t6291456\n");
        assert_eq!(short.set.as_deref(), Some("net.ipv4.tcp_rmem='4096 131072 10002432'"));
        assert_eq!(read("").found_bytes, None);
        let set = |found: u64| Maximum::of("tcp_rmem", 1 << 33, Some(&format!("4096 131072 {found}"))).set;
        assert_eq!(set(6_291_456).as_deref(), Some("tcp_rmem='4096 131072 2147483647'"));
        assert_eq!(set(MOST), None, "the kernel takes no more");
    }

    #[test]
    fn a_buffer_is_twice_the_product_in_pages() {
        assert_eq!((need(0), need(5_000_000)), (131_072, 10_002_432));
        assert_eq!(need(u64::MAX), 1 << 51);
    }
}
