//! The clock of the kernel's side.

use std::time::Duration;

use bufwise_units::Micros;
use nix::time::{ClockId, clock_gettime};

/// Now, on the clock of the kernel's side.
#[must_use]
pub fn now() -> Micros {
    // The monotonic clock exists on every Linux.
    let time = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from).unwrap_or_default();
    Micros(u64::try_from(time.as_micros()).unwrap_or(u64::MAX))
}
