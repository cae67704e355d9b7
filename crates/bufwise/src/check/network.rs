//! Checks TCP's settings, and reports what they allow.

use std::fs;

use super::Point;
use crate::figures::{rate, size};

/// Largest exponent of a window scale (RFC 7323), and number of bits that need no scale.
const MAX_SCALE: u32 = 14;
const UNSCALED_BITS: u32 = 15;
/// Payload per byte of a send and of a receive buffer, as measured on Linux 6.18.
const SEND_PAYLOAD: f64 = 0.8;
const RECEIVE_PAYLOAD: f64 = 0.66;
/// Round trip for which the largest rate is given, in seconds.
const EXAMPLE_RTT: f64 = 0.1;

pub(super) fn points() -> Vec<Point> {
    vec![congestion_control(), maxima(), largest(), moderation(), scaling(), tcp_memory()]
}

fn read(name: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/sys/net/{name}")).ok()?;
    Some(text.split_whitespace().collect::<Vec<_>>().join(" "))
}

fn number(name: &str, place: usize) -> Option<u64> {
    read(name)?.split(' ').nth(place)?.parse().ok()
}

fn congestion_control() -> Point {
    let name = "congestion control";
    match (read("ipv4/tcp_congestion_control"), read("ipv4/tcp_available_congestion_control")) {
        (Some(default), Some(available)) => Point::ok(name, format!("{default}; available: {available}")),
        _ => Point::limited(name, "it cannot be read", "mount /proc"),
    }
}

fn maxima() -> Point {
    let shown = |name: &str, place| number(name, place).map_or_else(|| "not shown".to_owned(), size);
    let found = format!(
        "tcp_rmem {}, tcp_wmem {}, rmem_max {}, wmem_max {}",
        shown("ipv4/tcp_rmem", 2),
        shown("ipv4/tcp_wmem", 2),
        shown("core/rmem_max", 0),
        shown("core/wmem_max", 0),
    );
    Point::ok("buffer maxima", found)
}

fn largest() -> Point {
    let name = "largest BDP";
    let (Some(rmem), Some(wmem)) = (number("ipv4/tcp_rmem", 2), number("ipv4/tcp_wmem", 2)) else {
        return Point::limited(name, "tcp_rmem and tcp_wmem cannot be read", "mount /proc");
    };
    // Some kernels show rmem_max only in the first network namespace; without it TCP's own maximum gives the scale.
    let reach = Reach::of(rmem, wmem, number("core/rmem_max", 0).unwrap_or_default());
    let is_scaled = number("ipv4/tcp_window_scaling", 0) != Some(0);
    let Reach { scale, window, bdp } = if is_scaled { reach } else { reach.without_scaling() };
    let found = format!(
        "{} without bufwise ({} at a round trip of {:.0} ms); windows up to {} (scale {scale})",
        size(bdp),
        rate((bdp as f64 * 8.0 / EXAMPLE_RTT) as u64),
        EXAMPLE_RTT * 1e3,
        size(window),
    );
    Point::ok(name, found)
}

/// Largest window and BDP that the maxima allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Reach {
    scale: u32,
    /// Largest window that the scale can express, in bytes.
    window: u64,
    /// Largest BDP that both buffers can hold between two hosts like this, in bytes.
    bdp: u64,
}

impl Reach {
    /// Computes the scale as the kernel chooses it at the SYN (`tcp_select_initial_window()`).
    fn of(rmem: u64, wmem: u64, rmem_max: u64) -> Self {
        let space = rmem.max(rmem_max).max(1);
        let scale = space.ilog2().saturating_sub(UNSCALED_BITS).min(MAX_SCALE);
        let window = u64::from(u16::MAX) << scale;
        let receive = (rmem as f64 * RECEIVE_PAYLOAD) as u64;
        let send = (wmem as f64 * SEND_PAYLOAD) as u64;
        Self { scale, window, bdp: receive.min(send).min(window) }
    }

    /// Returns what is left of it where window scaling is off.
    fn without_scaling(self) -> Self {
        let window = u16::MAX.into();
        Self { scale: 0, window, bdp: self.bdp.min(window) }
    }
}

fn moderation() -> Point {
    let name = "receive autotuning";
    match number("ipv4/tcp_moderate_rcvbuf", 0) {
        Some(0) => Point::limited(
            name,
            "off (tcp_moderate_rcvbuf = 0)",
            "sysctl -w net.ipv4.tcp_moderate_rcvbuf=1, or let bufwise do it: bufwise run --policy drs -- CMD",
        ),
        Some(_) => Point::ok(name, "on (tcp_moderate_rcvbuf)"),
        None => Point::limited(name, "tcp_moderate_rcvbuf cannot be read", "mount /proc"),
    }
}

fn scaling() -> Point {
    let name = "window scaling";
    match number("ipv4/tcp_window_scaling", 0) {
        Some(0) => Point::limited(
            name,
            "off (tcp_window_scaling = 0): no window beyond 64 KB",
            "sysctl -w net.ipv4.tcp_window_scaling=1",
        ),
        Some(_) => Point::ok(name, "on (tcp_window_scaling)"),
        None => Point::limited(name, "tcp_window_scaling cannot be read", "mount /proc"),
    }
}

fn tcp_memory() -> Point {
    let name = "memory for TCP";
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten().unwrap_or(4_096);
    let bytes = |place| number("ipv4/tcp_mem", place).map(|pages| pages.saturating_mul(page.unsigned_abs()));
    match (bytes(1), bytes(2)) {
        (Some(pressure), Some(most)) => {
            Point::ok(name, format!("pressure from {}, at most {} (tcp_mem)", size(pressure), size(most)))
        }
        _ => Point::ok(name, "tcp_mem is visible only in the first network namespace"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_is_the_one_that_the_kernel_chooses() {
        let scale = |rmem| Reach::of(rmem, 4 << 20, 212_992).scale;
        assert_eq!([6 << 20, 32 << 20, 128 << 20].map(scale), [7, 10, 12]);
        assert_eq!(Reach::of(65_536, 65_536, 0).scale, 1);
        assert_eq!(Reach::of(u64::MAX, 1, 1).scale, 14);
        assert_eq!(Reach::of(0, 0, 0), Reach { scale: 0, window: 65_535, bdp: 0 });
    }

    #[test]
    fn the_smaller_of_both_buffers_bounds_the_bdp() {
        // A distribution's maxima carry about 3.4 MB per round trip; the measured rate was 249 Mbit/s at 100 ms, which
        // is 3.1 MB.
        let reach = Reach::of(6 << 20, 4 << 20, 212_992);
        assert_eq!((reach.bdp, reach.window), (3_355_443, 65_535 << 7));
        assert_eq!(Reach::of(1 << 20, 4 << 20, 0).bdp, 692_060);
        assert_eq!(reach.without_scaling(), Reach { scale: 0, window: 65_535, bdp: 65_535 });
    }
}
