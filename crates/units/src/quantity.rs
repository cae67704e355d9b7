//! Quantities that carry their unit in their type.
//!
//! All are unsigned and saturate instead of wrapping. A policy given an absurd sample therefore answers with an
//! absurdly large or small buffer, which the caller clamps, and never panics.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Sub};
use std::time::Duration;

/// A number of bytes: a window, a buffer, a queue.
///
/// ```
/// use bufwise_units::{Bytes, Micros, Rate};
///
/// let window: Bytes = "64KiB".parse()?;
/// assert_eq!(window.per(Micros::from_millis(64)), Rate(1_024_000));
/// assert_eq!(window - Bytes::MAX, Bytes::ZERO);
/// assert_eq!(window.readable(), "65.5 KB");
/// assert_eq!([999_949, 999_950].map(|size| Bytes(size).readable()), ["999.9 KB", "1.00 MB"]);
/// # Ok::<(), bufwise_units::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

/// A moment on the caller's monotonic clock, or a span of time, in microseconds.
///
/// ```
/// use bufwise_units::Micros;
///
/// let (began, now) = (Micros::from_millis(250), Micros::from_secs(1));
/// assert_eq!(now.since(began), "750ms".parse()?);
/// assert_eq!(began.since(now), Micros::ZERO);
/// # Ok::<(), bufwise_units::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Micros(pub u64);

/// A rate in bytes per second.
///
/// ```
/// use bufwise_units::{Bytes, Micros, Rate};
///
/// let rate = Rate::from_bits_per_sec(10_000_000);
/// assert_eq!(rate, Rate(1_250_000));
/// assert_eq!(rate.over(Micros::from_millis(100)), Bytes(125_000));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Rate(pub u64);

const MICROS_PER_SECOND: u128 = 1_000_000;
const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const RATE_UNITS: [(&str, u64); 4] =
    [("bit", 1), ("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000)];

impl Bytes {
    /// No bytes.
    pub const ZERO: Self = Self(0);
    /// The largest value: "no limit".
    pub const MAX: Self = Self(u64::MAX);

    /// Returns `factor` times this many bytes, saturating.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Returns `numerator / denominator` of this many bytes, rounded down, saturating.
    ///
    /// A zero denominator counts as one.
    #[must_use]
    pub fn scaled(self, numerator: u64, denominator: u64) -> Self {
        let scaled = u128::from(self.0) * u128::from(numerator) / u128::from(denominator.max(1));
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }

    /// Returns the rate that moves this many bytes in `span`, rounded down; zero for an empty span.
    #[must_use]
    pub fn per(self, span: Micros) -> Rate {
        if span.0 == 0 {
            return Rate(0);
        }
        let rate = u128::from(self.0) * MICROS_PER_SECOND / u128::from(span.0);
        Rate(u64::try_from(rate).unwrap_or(u64::MAX))
    }
}

impl Micros {
    /// The start of the clock, or an empty span ("not measured yet" where a field says so).
    pub const ZERO: Self = Self(0);

    /// Makes a span of whole milliseconds.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000))
    }

    /// Makes a span of whole seconds.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000))
    }

    /// Returns the span in seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }

    /// Returns the span from `earlier` to `self`; zero if `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// Returns `factor` times this span, saturating.
    #[must_use]
    pub const fn times(self, factor: u64) -> Self {
        Self(self.0.saturating_mul(factor))
    }

    /// Returns `numerator / denominator` of this span, rounded down, saturating.
    ///
    /// A zero denominator counts as one.
    #[must_use]
    pub fn scaled(self, numerator: u64, denominator: u64) -> Self {
        Self(Bytes(self.0).scaled(numerator, denominator).0)
    }
}

impl From<Micros> for Duration {
    fn from(span: Micros) -> Self {
        Self::from_micros(span.0)
    }
}

impl From<Duration> for Micros {
    /// Rounds down to whole microseconds, saturating.
    fn from(span: Duration) -> Self {
        Self(u64::try_from(span.as_micros()).unwrap_or(u64::MAX))
    }
}

impl Rate {
    /// No rate.
    pub const ZERO: Self = Self(0);
    /// The largest value: "no limit".
    pub const MAX: Self = Self(u64::MAX);

    /// Converts bits per second, the unit of links and tools, rounding down to whole bytes.
    #[must_use]
    pub const fn from_bits_per_sec(bits: u64) -> Self {
        Self(bits / 8)
    }

    /// Returns the rate in bits per second, saturating.
    #[must_use]
    pub const fn bits_per_sec(self) -> u64 {
        self.0.saturating_mul(8)
    }

    /// Returns the bytes that this rate moves in `span`, rounded down. For an RTT this is the bandwidth-delay
    /// product.
    #[must_use]
    pub fn over(self, span: Micros) -> Bytes {
        let bytes = u128::from(self.0) * u128::from(span.0) / MICROS_PER_SECOND;
        Bytes(u64::try_from(bytes).unwrap_or(u64::MAX))
    }

    /// Returns `numerator / denominator` of this rate, rounded down, saturating.
    #[must_use]
    pub fn scaled(self, numerator: u64, denominator: u64) -> Self {
        Self(Bytes(self.0).scaled(numerator, denominator).0)
    }
}

/// A moment on a link's clock, or a span of time, in nanoseconds. The clock starts at zero.
///
/// Nanoseconds are needed because a packet of 1,500 bytes takes only 120 ns at 100 Gbit/s.
///
/// ```
/// use bufwise_units::Nanos;
///
/// assert_eq!("1.5ms".parse(), Ok(Nanos::from_micros(1_500)));
/// assert_eq!(Nanos(2_000_000).to_string(), "2ms");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// A rate in bits per second on the wire, kept exactly as written: many rates, such as 33.3 kbit/s, are no whole
/// number of bytes per second.
///
/// ```
/// use bufwise_units::{BitRate, Nanos, Rate};
///
/// let modem: BitRate = "33.3kbit".parse()?;
/// assert_eq!(modem.bytes_over(Nanos::from_secs(1)), 4_162);
/// assert!("0.5".parse::<BitRate>().is_err(), "a link's rate is exact");
/// assert_eq!("33.3kbit".parse(), Ok(Rate(4_162)));
/// # Ok::<(), bufwise_units::ParseError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

impl Nanos {
    /// The start of the clock, or an empty span.
    pub const ZERO: Self = Self(0);

    /// Makes a span of whole microseconds, saturating.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// Makes a span of whole milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// Makes a span of whole seconds, saturating.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// Returns the span in seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl BitRate {
    /// Returns the bytes that this rate moves in `span`, rounded down, saturating. For an RTT this is the
    /// bandwidth-delay product.
    #[must_use]
    pub fn bytes_over(self, span: Nanos) -> u64 {
        let bytes = u128::from(self.0) * u128::from(span.0) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

macro_rules! saturating_arithmetic {
    ($($unit:ident),+) => {$(
        impl Add for $unit {
            type Output = Self;
            fn add(self, other: Self) -> Self {
                Self(self.0.saturating_add(other.0))
            }
        }

        impl AddAssign for $unit {
            fn add_assign(&mut self, other: Self) {
                *self = *self + other;
            }
        }

        impl Sub for $unit {
            type Output = Self;
            fn sub(self, other: Self) -> Self {
                Self(self.0.saturating_sub(other.0))
            }
        }

        impl Sum for $unit {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
                iter.fold(Self(0), Add::add)
            }
        }
    )+};
}

saturating_arithmetic!(Bytes, Micros, Rate);

impl Bytes {
    /// Formats the size for people, in decimal units: `512 B`, `87.0 KB`, `6.29 MB`.
    #[must_use]
    pub fn readable(self) -> String {
        let bytes = self.0 as f64;
        match bytes {
            ..1e4 => format!("{bytes:.0} B"),
            // Rounded, more would be 1000.0 KB.
            ..999_950.0 => format!("{:.1} KB", bytes / 1e3),
            ..999_995_000.0 => format!("{:.2} MB", bytes / 1e6),
            _ => format!("{:.2} GB", bytes / 1e9),
        }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B", self.0)
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} us", self.0)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} B/s", self.0)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        written(f, self.0, &TIME_UNITS)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        written(f, self.0, &RATE_UNITS)
    }
}

/// Returns a count with its noun for people: `1 connection`, `2 connections`. The plural is the noun with an `s`;
/// a final `y` becomes `ies`.
///
/// ```
/// assert_eq!(bufwise_units::counted(1, "change"), "1 change");
/// assert_eq!(bufwise_units::counted(12, "change"), "12 changes");
/// ```
#[must_use]
pub fn counted<N: Copy + PartialEq + From<u8> + fmt::Display>(count: N, noun: &str) -> String {
    if count == N::from(1_u8) {
        return format!("{count} {noun}");
    }
    match noun.strip_suffix('y') {
        Some(stem) => format!("{count} {stem}ies"),
        None => format!("{count} {noun}s"),
    }
}

/// Writes the value in the largest unit that keeps it whole, so that it parses back to the same value.
fn written(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let unit = units.iter().rev().find(|(_, scale)| value != 0 && value.is_multiple_of(*scale));
    let (name, scale) = unit.unwrap_or(&units[0]);
    write!(f, "{}{name}", value / scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_over_an_rtt_is_the_bandwidth_delay_product() {
        assert_eq!(Rate::from_bits_per_sec(100_000_000).over(Micros::from_millis(40)), Bytes(500_000));
        assert_eq!(Bytes(500_000).per(Micros::from_millis(40)), Rate(12_500_000));
    }

    #[test]
    fn a_links_bandwidth_delay_product_is_in_bytes() {
        assert_eq!(BitRate(100_000_000).bytes_over(Nanos::from_millis(40)), 500_000);
        assert_eq!(BitRate(u64::MAX).bytes_over(Nanos(u64::MAX)), u64::MAX);
    }

    #[test]
    fn a_span_of_time_is_rounded_down_to_microseconds_and_saturates() {
        assert_eq!(Micros::from(Duration::from_nanos(2_999)), Micros(2));
        assert_eq!(Micros::from(Duration::MAX), Micros(u64::MAX));
        assert_eq!(Duration::from(Micros::from_millis(3)), Duration::from_millis(3));
    }

    #[test]
    fn only_one_is_singular() {
        let counts = [0_u64, 1, 2].map(|count| counted(count, "connection"));
        assert_eq!(counts, ["0 connections", "1 connection", "2 connections"]);
        assert_eq!(counted(1_u32, "directory"), "1 directory");
        assert_eq!(counted(21_usize, "directory"), "21 directories");
    }

    #[test]
    fn arithmetic_saturates() {
        assert_eq!(Bytes::MAX + Bytes(1), Bytes::MAX);
        assert_eq!(Bytes(1) - Bytes(2), Bytes::ZERO);
        assert_eq!(Bytes::MAX.times(3), Bytes::MAX);
        assert_eq!(Rate(u64::MAX).over(Micros(u64::MAX)), Bytes::MAX);
        assert_eq!(Bytes(5).per(Micros::ZERO), Rate(0));
        assert_eq!(Bytes(6).scaled(1, 0), Bytes(6));
    }
}
