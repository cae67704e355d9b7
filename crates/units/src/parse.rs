//! Parses sizes, rates and times as people write them.
//!
//! Problem: `64KiB`, `100mbit`, `1.5s` on a command line must become the right number or a clear error.
//! Terms: `k`, `M`, `G`, `T` are powers of 1,000; `Ki`, `Mi`, `Gi`, `Ti` are powers of 1,024. Rates are written in
//! bits per second, as links are named; [`Rate`] converts them to bytes per second. Case does not matter, one space
//! may precede the unit, and a fraction may have 18 digits; zeros at its end do not count. Fractions of a byte or microsecond are
//! cut off, but a value above zero never becomes zero: it is refused. A link's rates and times ([`BitRate`], [`Nanos`]) are exact;
//! finer values are refused.
//! Properties kept: the arithmetic is exact (integers); the output of a quantity's `Display` parses back to the same
//! value; nothing overflows silently; no input panics.

use std::str::FromStr;

use crate::quantity::{BitRate, Bytes, Micros, Nanos, Rate};

/// Longest excerpt of the input that an error repeats, in characters.
const LONGEST_TEXT: usize = 60;
/// Digits after the point that can be read with every unit: with all values of 64 bits the arithmetic fits 128 bits. More are
/// read where the arithmetic fits all the same.
const FRACTION_DIGITS: usize = 18;

/// Why a text is not a quantity. The message is one line: the text, and the accepted forms.
///
/// ```
/// use bufwise_units::{Bytes, Micros};
///
/// let error = "40".parse::<Micros>().unwrap_err();
/// assert!(error.to_string().starts_with("`40` is not a time: write a number with `us`, `ms` or `s`"));
/// assert!("16777216TiB".parse::<Bytes>().unwrap_err().to_string().ends_with("too large for a size"));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseError {
    /// Not a number with one of the units.
    #[error("`{text}` is not {what}: write {accepted}")]
    Syntax {
        /// The text that was given.
        text: String,
        /// The kind of quantity that was expected.
        what: &'static str,
        /// Examples of what is accepted.
        accepted: &'static str,
    },
    /// Too large for 64 bits.
    #[error("`{text}` is too large for {what}")]
    TooLarge {
        /// The text that was given.
        text: String,
        /// The kind of quantity that was expected.
        what: &'static str,
    },
    /// More digits after the point than the arithmetic has room for.
    #[error("`{text}` has too many digits for {what}: write at most {FRACTION_DIGITS} after the point")]
    TooLong {
        /// The text that was given.
        text: String,
        /// The kind of quantity that was expected.
        what: &'static str,
    },
    /// Above zero, but below the smallest unit.
    #[error("`{text}` is too small for {what}: the smallest is {smallest}")]
    TooSmall {
        /// The text that was given.
        text: String,
        /// The kind of quantity that was expected.
        what: &'static str,
        /// The smallest value above zero.
        smallest: &'static str,
    },
    /// Not a whole number of the smallest unit.
    #[error("`{text}` is too fine for {what}: it is counted in {smallest}")]
    TooFine {
        /// The text that was given.
        text: String,
        /// The kind of quantity that was expected.
        what: &'static str,
        /// The smallest unit.
        smallest: &'static str,
    },
}

/// A kind of quantity: its names for errors, and its units as (lower-case name, multiplier, divisor).
struct Grammar {
    what: &'static str,
    accepted: &'static str,
    smallest: &'static str,
    units: &'static [(&'static str, u128, u128)],
    /// Values finer than the smallest unit are refused; otherwise they are rounded down.
    exact: bool,
}

const BYTES: Grammar = Grammar {
    what: "a size",
    accepted: "bytes as `512`, or with a unit as `64KiB`, `1.5MiB`, `4MB` (k = 1000, Ki = 1024)",
    smallest: "1 byte",
    units: &[
        ("", 1, 1),
        ("b", 1, 1),
        ("k", 1_000, 1),
        ("kb", 1_000, 1),
        ("m", 1_000_000, 1),
        ("mb", 1_000_000, 1),
        ("g", 1_000_000_000, 1),
        ("gb", 1_000_000_000, 1),
        ("t", 1_000_000_000_000, 1),
        ("tb", 1_000_000_000_000, 1),
        ("ki", 1 << 10, 1),
        ("kib", 1 << 10, 1),
        ("mi", 1 << 20, 1),
        ("mib", 1 << 20, 1),
        ("gi", 1 << 30, 1),
        ("gib", 1 << 30, 1),
        ("ti", 1 << 40, 1),
        ("tib", 1 << 40, 1),
    ],
    exact: false,
};

const RATE: Grammar = Grammar {
    what: "a rate",
    accepted: "bits per second as `56000`, or with a unit as `9.6kbit`, `100mbit`, `1gbit` (k = 1000)",
    smallest: "8 bit (one byte per second)",
    units: &[
        ("", 1, 8),
        ("bit", 1, 8),
        ("kbit", 1_000, 8),
        ("mbit", 1_000_000, 8),
        ("gbit", 1_000_000_000, 8),
        ("tbit", 1_000_000_000_000, 8),
        ("b/s", 1, 1),
    ],
    exact: false,
};

const BIT_RATE: Grammar = Grammar {
    what: "a rate",
    accepted: RATE.accepted,
    smallest: "bits per second",
    units: &[
        ("", 1, 1),
        ("bit", 1, 1),
        ("kbit", 1_000, 1),
        ("mbit", 1_000_000, 1),
        ("gbit", 1_000_000_000, 1),
        ("tbit", 1_000_000_000_000, 1),
    ],
    exact: true,
};

const MICROS: Grammar = Grammar {
    what: "a time",
    accepted: "a number with `us`, `ms` or `s`, as `250us`, `40ms`, `1.5s`",
    smallest: "1us",
    units: &[("us", 1, 1), ("ms", 1_000, 1), ("s", 1_000_000, 1)],
    exact: false,
};

const NANOS: Grammar = Grammar {
    what: "a time",
    accepted: "a number with `ns`, `us`, `ms` or `s`, as `250us`, `40ms`, `1.5s`",
    smallest: "nanoseconds",
    units: &[("ns", 1, 1), ("us", 1_000, 1), ("ms", 1_000_000, 1), ("s", 1_000_000_000, 1)],
    exact: true,
};

const SECONDS: Grammar = Grammar {
    what: "a time in seconds",
    accepted: "a number without a unit, as `20.25`",
    smallest: "nanoseconds",
    units: &[("", 1_000_000_000, 1)],
    exact: true,
};

impl Grammar {
    fn read(&self, text: &str) -> Result<u64, ParseError> {
        let (what, smallest) = (self.what, self.smallest);
        let shown = || text.chars().take(LONGEST_TEXT).collect();
        let syntax = || ParseError::Syntax { text: shown(), what, accepted: self.accepted };
        let too_large = || ParseError::TooLarge { text: shown(), what };
        let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, rest) = text.split_at(end);
        let unit = match rest.strip_prefix(' ') {
            Some("") => return Err(syntax()),
            Some(unit) => unit,
            None => rest,
        };
        let unit = unit.to_ascii_lowercase();
        let &(_, times, by) = self.units.iter().find(|(name, ..)| *name == unit).ok_or_else(syntax)?;
        let (whole, fraction) = match number.split_once('.') {
            None => (number, ""),
            Some((whole, fraction)) if is_digits(fraction) => (whole, fraction),
            Some(_) => return Err(syntax()),
        };
        if !is_digits(whole) {
            return Err(syntax());
        }
        let fraction = fraction.trim_end_matches('0');
        let digits = format!("{}{fraction}", whole.trim_start_matches('0'));
        let overflow = || match fraction.len() {
            0..=FRACTION_DIGITS => too_large(),
            _ => ParseError::TooLong { text: shown(), what },
        };
        let mantissa = if digits.is_empty() { 0 } else { digits.parse().map_err(|_| overflow())? };
        let places = u32::try_from(fraction.len()).map_err(|_| overflow())?;
        let scale = 10_u128.checked_pow(places).ok_or_else(overflow)?;
        let product = u128::checked_mul(mantissa, times).ok_or_else(overflow)?;
        let divisor = scale.checked_mul(by).ok_or_else(overflow)?;
        if self.exact && product % divisor != 0 {
            return Err(ParseError::TooFine { text: shown(), what, smallest });
        }
        let value = product / divisor;
        if value == 0 && mantissa > 0 {
            return Err(ParseError::TooSmall { text: shown(), what, smallest });
        }
        u64::try_from(value).map_err(|_| too_large())
    }
}

fn is_digits(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())
}

macro_rules! from_str {
    ($($unit:ident by $grammar:ident),+) => {$(
        impl FromStr for $unit {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                $grammar.read(text).map(Self)
            }
        }
    )+};
}

from_str!(Bytes by BYTES, Rate by RATE, Micros by MICROS, Nanos by NANOS, BitRate by BIT_RATE);

impl Nanos {
    /// Parses a plain decimal number of seconds, as traces write them.
    ///
    /// # Errors
    /// [`ParseError`]: not a decimal number, too large, or finer than a nanosecond.
    pub fn from_seconds(text: &str) -> Result<Self, ParseError> {
        SECONDS.read(text).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytes(text: &str) -> Result<u64, String> {
        text.parse::<Bytes>().map(|b| b.0).map_err(|e| e.to_string())
    }

    fn bits(text: &str) -> Result<u64, String> {
        text.parse::<Rate>().map(Rate::bits_per_sec).map_err(|e| e.to_string())
    }

    #[test]
    fn sizes_read_as_people_write_them() {
        for (text, value) in [
            ("512", 512),
            ("512B", 512),
            ("64KiB", 65_536),
            ("64Ki", 65_536),
            ("64k", 64_000),
            ("4MB", 4_000_000),
            ("1.5MiB", 1_572_864),
            ("0.1KiB", 102),
            ("007", 7),
            ("0", 0),
            ("0.0GiB", 0),
            ("2TiB", 2 << 40),
            ("18446744073709551615", u64::MAX),
            ("00000000000000000000000000000000000000000000000001", 1),
        ] {
            assert_eq!(bytes(text), Ok(value), "{text}");
        }
    }

    #[test]
    fn rates_are_bits_and_decimal() {
        assert_eq!(bits("100mbit"), Ok(100_000_000));
        assert_eq!(bits("1gbit"), Ok(1_000_000_000));
        assert_eq!(bits("9.6kbit"), Ok(9_600));
        assert_eq!(bits("56000"), Ok(56_000));
        assert_eq!("125 B/s".parse(), Ok(Rate(125)));
    }

    #[test]
    fn times_need_a_unit() {
        assert_eq!("40ms".parse(), Ok(Micros(40_000)));
        assert_eq!("1.5s".parse(), Ok(Micros(1_500_000)));
        assert_eq!("250us".parse(), Ok(Micros(250)));
        let error = "40".parse::<Micros>().map_err(|e| e.to_string());
        assert_eq!(
            error,
            Err("`40` is not a time: write a number with `us`, `ms` or `s`, as `250us`, `40ms`, `1.5s`"
                .into())
        );
    }

    #[test]
    fn errors_name_the_text_and_what_is_accepted() {
        for text in
            ["", "B", "-1", "+1", "1e3", "1 ", " 1", "1  MB", "1.MB", ".5MB", "1.2.3", "5q", "5KiBB", "٣"]
        {
            let error = bytes(text).expect_err(text);
            assert!(error.starts_with(&format!("`{text}` is not a size: write bytes")), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert_eq!(bytes("16777216TiB"), Err("`16777216TiB` is too large for a size".into()));
        assert_eq!(bytes(&"9".repeat(60)).map_err(|e| e.contains("too large")), Err(true));
        let small = "`4bit` is too small for a rate: the smallest is 8 bit (one byte per second)";
        assert_eq!(bits("4bit"), Err(small.into()));
        assert_eq!(bytes("0.5"), Err("`0.5` is too small for a size: the smallest is 1 byte".into()));
    }

    #[test]
    fn a_fraction_with_too_many_digits_is_not_called_too_large() {
        let most = format!("15.{}MiB", "9".repeat(FRACTION_DIGITS));
        assert_eq!(bytes(&most), Ok((16 << 20) - 1));
        assert_eq!(bytes(&format!("1.5{}MiB", "0".repeat(60))), Ok(3 << 19), "zeros at the end do not count");
        for long in [format!("0.{}1", "0".repeat(60)), format!("1.{}TiB", "3".repeat(30))] {
            let error = bytes(&long).expect_err(&long);
            let why = "has too many digits for a size: write at most 18 after the point";
            assert!(error.ends_with(why), "{error}");
        }
    }

    #[test]
    fn a_links_rate_reads_as_people_write_it() {
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
    fn a_links_time_reads_as_people_write_it() {
        for (text, nanos) in [("40ms", 40_000_000), ("1.5s", 1_500_000_000), ("250us", 250_000), ("7ns", 7)] {
            assert_eq!(text.parse(), Ok(Nanos(nanos)), "{text}");
        }
        assert_eq!(Nanos::from_seconds("20.25"), Ok(Nanos(20_250_000_000)));
    }

    #[test]
    fn what_is_no_rate_of_a_link_is_refused_with_one_line() {
        for (text, why) in [
            ("", "is not a rate: write"),
            ("mbit", "is not a rate: write"),
            (".5mbit", "is not a rate: write"),
            ("5.mbit", "is not a rate: write"),
            ("1.2.3mbit", "is not a rate: write"),
            ("-1mbit", "is not a rate: write"),
            ("1mb", "is not a rate: write"),
            ("1é", "is not a rate: write"),
            ("0.5", "too fine"),
            ("99999999999gbit", "too large"),
            ("99999999999999999999999", "too large"),
        ] {
            let error = text.parse::<BitRate>().expect_err(text).to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{text}: {error}");
        }
        assert!("40".parse::<Nanos>().expect_err("no unit").to_string().contains("with `ns`"));
        assert!("18446744073.8s".parse::<Nanos>().expect_err("too large").to_string().contains("too large"));
    }

    proptest! {
        #[test]
        fn what_a_link_counts_reads_back(value in prop_oneof![any::<u64>(), (0..100_000_u64).prop_map(|k| k * 1_000_000)]) {
            prop_assert_eq!(Nanos(value).to_string().parse(), Ok(Nanos(value)));
            prop_assert_eq!(BitRate(value).to_string().parse(), Ok(BitRate(value)));
        }

        #[test]
        fn what_display_prints_reads_back(value: u64) {
            prop_assert_eq!(Bytes(value).to_string().parse(), Ok(Bytes(value)));
            prop_assert_eq!(Rate(value).to_string().parse(), Ok(Rate(value)));
            prop_assert_eq!(Micros(value).to_string().parse(), Ok(Micros(value)));
        }

        #[test]
        fn every_unit_is_its_multiple(value in 0_u64..1_000_000, index in 0_usize..18) {
            let (unit, times, _) = BYTES.units[index];
            let expected = value * u64::try_from(times).unwrap();
            prop_assert_eq!(format!("{value}{unit}").parse(), Ok(Bytes(expected)));
            prop_assert_eq!(format!("{value} {}", unit.to_uppercase()).parse::<Bytes>().is_ok(), !unit.is_empty());
        }

        #[test]
        fn a_fraction_is_exact(thousandths in 1_u64..10_000_000) {
            let text = format!("{}.{:03}kB", thousandths / 1_000, thousandths % 1_000);
            prop_assert_eq!(text.parse(), Ok(Bytes(thousandths)));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,40}") {
            let _ = (text.parse::<Bytes>(), text.parse::<Rate>(), text.parse::<Micros>());
            let _ = (text.parse::<Nanos>(), text.parse::<BitRate>());
        }
    }
}
