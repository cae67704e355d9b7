//! The clock of the kernel's side.
//!
//! The programs and the first time namespace use the same clock. In another time namespace a process reads the clock
//! with an offset (time_namespaces(7)); the same holds for the start of a process in `/proc/PID/stat`.

use std::fs;
use std::sync::LazyLock;
use std::time::Duration;

use bufwise_units::Micros;
use nix::time::{ClockId, clock_gettime};

/// Nanoseconds by which this process's clocks are ahead of the kernel's.
struct Offsets {
    monotonic: i64,
    boottime: i64,
}

static OFFSETS: LazyLock<Offsets> = LazyLock::new(|| {
    // Before Linux 5.6 there are no time namespaces, and no such file.
    let text = fs::read_to_string("/proc/self/timens_offsets").unwrap_or_default();
    Offsets { monotonic: offset(&text, "monotonic"), boottime: offset(&text, "boottime") }
});

/// Parses the offset of a clock, in nanoseconds, from its line: name, seconds, nanoseconds.
fn offset(text: &str, clock: &str) -> i64 {
    let numbers = text.lines().find_map(|line| line.strip_prefix(clock)).unwrap_or_default();
    let mut numbers = numbers.split_whitespace().map(|number| number.parse::<i64>().unwrap_or_default());
    let (seconds, nanos) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default());
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// Returns the present time on the clock of the kernel's side.
#[must_use]
pub fn now() -> Micros {
    // The monotonic clock exists on every Linux.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    let Micros(micros) = time.into();
    Micros(micros.saturating_add_signed(-(OFFSETS.monotonic / 1_000)))
}

/// Returns the processor time that the calling thread has used. Periodic work that pauses for a multiple of its cost measures the
/// cost by this, not by the clock: time in which the thread waited, or the machine stood still, is no cost.
#[must_use]
pub fn processor_time() -> Micros {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map(Duration::from).unwrap_or_default().into()
}

/// Converts the start of a process, in ticks as this process sees it, to the kernel's clock; `tick` is in
/// nanoseconds.
pub(crate) fn started(ticks: u64, tick: i64) -> u64 {
    ticks.saturating_add_signed(-OFFSETS.boottime.div_euclid(tick))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_read_in_nanoseconds() {
        let text = "monotonic      100000         5\nboottime          -2 500000000\n";
        assert_eq!(offset(text, "monotonic"), 100_000_000_000_005);
        assert_eq!(offset(text, "boottime"), -1_500_000_000);
        assert_eq!(offset("", "boottime"), 0);
    }
}
