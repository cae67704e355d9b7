//! Time and rate as a link counts them, and how a person writes them.
//!
//! Both are whole numbers: nanoseconds and bits per second. Text is read exactly (`28.5mbit` is 28,500,000
//! bit/s, not a float near it); what cannot be held exactly is refused rather than rounded.

use std::fmt;
use std::str::FromStr;

/// A moment on the link's clock, or a span of time, in nanoseconds. The clock starts at zero.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Nanos(pub u64);

/// A rate in bits per second, counted on the wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(pub u64);

const TIME_UNITS: [(&str, u64); 4] = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
const RATE_UNITS: [(&str, u64); 5] =
    [("bit", 1), ("kbit", 1_000), ("mbit", 1_000_000), ("gbit", 1_000_000_000), ("", 1)];

impl Nanos {
    /// The start of the clock, or an empty span.
    pub const ZERO: Self = Self(0);

    /// A span of whole microseconds, saturating.
    #[must_use]
    pub const fn from_micros(micros: u64) -> Self {
        Self(micros.saturating_mul(1_000))
    }

    /// A span of whole milliseconds, saturating.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis.saturating_mul(1_000_000))
    }

    /// A span of whole seconds, saturating.
    #[must_use]
    pub const fn from_secs(secs: u64) -> Self {
        Self(secs.saturating_mul(1_000_000_000))
    }

    /// The span in seconds.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl BitRate {
    /// What this rate moves in `span`, in bytes, rounded down, saturating: with an RTT, the
    /// bandwidth-delay product.
    #[must_use]
    pub fn bytes_over(self, span: Nanos) -> u64 {
        let bytes = u128::from(self.0) * u128::from(span.0) / 8_000_000_000;
        u64::try_from(bytes).unwrap_or(u64::MAX)
    }
}

/// Why a text is not a quantity.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what} {text:?}: {why}")]
pub struct ParseUnitError {
    what: &'static str,
    text: String,
    why: &'static str,
}

impl FromStr for Nanos {
    type Err = ParseUnitError;

    /// Reads `40ms`, `1.5s`, `250us`, `10ns`; the unit is required.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        quantity(text, &TIME_UNITS)
            .map(Self)
            .map_err(|problem| problem.of("time", text, "a time needs a unit: ns, us, ms or s"))
    }
}

impl FromStr for BitRate {
    type Err = ParseUnitError;

    /// Reads `100mbit`, `56kbit`, `2.5gbit`, `9600bit` (decimal multiples); a plain number is in bit/s.
    fn from_str(text: &str) -> Result<Self, ParseUnitError> {
        quantity(text, &RATE_UNITS)
            .map(Self)
            .map_err(|problem| problem.of("rate", text, "the unit is bit, kbit, mbit or gbit"))
    }
}

/// Reads a plain decimal number of seconds, as traces write them.
pub(crate) fn seconds(text: &str) -> Result<Nanos, ParseUnitError> {
    quantity(text, &[("", 1_000_000_000)])
        .map(Nanos)
        .map_err(|problem| problem.of("time", text, "a plain number of seconds is wanted"))
}

#[derive(Clone, Copy)]
enum Problem {
    NotANumber,
    Unit,
    TooLarge,
    TooFine,
}

impl Problem {
    fn of(self, what: &'static str, text: &str, units: &'static str) -> ParseUnitError {
        let why = match self {
            Self::NotANumber => "not a decimal number",
            Self::Unit => units,
            Self::TooLarge => "too large",
            Self::TooFine => "finer than can be counted",
        };
        ParseUnitError { what, text: text.chars().take(40).collect(), why }
    }
}

/// `digits[.digits]unit` as a whole multiple of the smallest unit.
fn quantity(text: &str, units: &[(&str, u64)]) -> Result<u64, Problem> {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    if whole.is_empty() || fraction.is_empty() || fraction.contains('.') {
        return Err(Problem::NotANumber);
    }
    let (_, scale) = units.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit)).ok_or(Problem::Unit)?;
    let whole: u64 = whole.parse().map_err(|_| Problem::TooLarge)?;
    let fraction = fraction.trim_end_matches('0');
    let mut value = whole.checked_mul(*scale).ok_or(Problem::TooLarge)?;
    let mut place = *scale;
    for digit in fraction.bytes() {
        if !place.is_multiple_of(10) {
            return Err(Problem::TooFine);
        }
        place /= 10;
        value = value.checked_add(u64::from(digit - b'0') * place).ok_or(Problem::TooLarge)?;
    }
    Ok(value)
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        written(f, self.0, &TIME_UNITS)
    }
}

impl fmt::Display for BitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        written(f, self.0, &RATE_UNITS[..4])
    }
}

/// The value in the largest unit that keeps it whole, so that it reads back as the same value.
fn written(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    let unit = units.iter().rev().find(|(_, scale)| value != 0 && value.is_multiple_of(*scale));
    let (name, scale) = unit.unwrap_or(&units[0]);
    write!(f, "{}{name}", value / scale)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_rate_reads_as_people_write_it() {
        for (text, bits) in [
            ("100mbit", 100_000_000),
            ("28.5mbit", 28_500_000),
            ("56kbit", 56_000),
            ("1gbit", 1_000_000_000),
            ("2.5Gbit", 2_500_000_000),
            ("9600", 9_600),
            ("7bit", 7),
            ("0", 0),
            ("1.50kbit", 1_500),
        ] {
            assert_eq!(text.parse(), Ok(BitRate(bits)), "{text}");
        }
    }

    #[test]
    fn a_time_reads_as_people_write_it() {
        for (text, nanos) in [("40ms", 40_000_000), ("1.5s", 1_500_000_000), ("250us", 250_000), ("7ns", 7)] {
            assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        }
        assert_eq!(seconds("20.25"), Ok(Nanos(20_250_000_000)));
    }

    #[test]
    fn what_is_no_quantity_is_refused_with_one_line() {
        for (text, why) in [
            ("", "not a decimal number"),
            ("mbit", "not a decimal number"),
            (".5mbit", "not a decimal number"),
            ("5.mbit", "not a decimal number"),
            ("1.2.3mbit", "not a decimal number"),
            ("-1mbit", "not a decimal number"),
            ("1 mbit", "the unit is"),
            ("1mb", "the unit is"),
            ("1é", "the unit is"),
            ("0.5", "finer"),
            ("99999999999gbit", "too large"),
            ("99999999999999999999999", "too large"),
        ] {
            let error = text.parse::<BitRate>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{text}: {error}");
        }
        assert!("40".parse::<Nanos>().expect_err("no unit").to_string().contains("needs a unit"));
        assert!("18446744073.8s".parse::<Nanos>().expect_err("too large").to_string().contains("too large"));
    }

    #[test]
    fn the_bandwidth_delay_product_is_in_bytes() {
        assert_eq!(BitRate(100_000_000).bytes_over(Nanos::from_millis(40)), 500_000);
        assert_eq!(BitRate(u64::MAX).bytes_over(Nanos(u64::MAX)), u64::MAX);
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(value in prop_oneof![any::<u64>(), (0..100_000_u64).prop_map(|k| k * 1_000_000)]) {
            prop_assert_eq!(Nanos(value).to_string().parse(), Ok(Nanos(value)));
            prop_assert_eq!(BitRate(value).to_string().parse(), Ok(BitRate(value)));
        }

        #[test]
        fn no_text_panics(text in "[0-9.a-z -]{0,30}") {
            let _: Result<Nanos, _> = text.parse();
            let _: Result<BitRate, _> = text.parse();
        }
    }
}
