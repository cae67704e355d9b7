//! Formats quantities with three digits and a unit.

use bufwise_units::Bytes;

/// Formats bytes in decimal units: `512 B`, `87.0 KB`, `6.29 MB`.
pub(crate) fn size(bytes: u64) -> String {
    Bytes(bytes).readable()
}

/// Formats bit/s: `512.0 kbit/s`, `94.3 Mbit/s`, `2.51 Gbit/s`.
pub(crate) fn rate(bits: u64) -> String {
    let bits = bits as f64;
    // From 999.95 of a unit on rounding would give four digits.
    match bits {
        ..999_950.0 => format!("{:.1} kbit/s", bits / 1e3),
        ..999_950_000.0 => format!("{:.1} Mbit/s", bits / 1e6),
        _ => format!("{:.2} Gbit/s", bits / 1e9),
    }
}

/// Formats seconds: `58 us`, `4.2 ms`, `107 ms`, `1.50 s`.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        ..0.000_999_5 => format!("{:.0} us", seconds * 1e6),
        ..0.099_95 => format!("{:.1} ms", seconds * 1e3),
        ..0.999_5 => format!("{:.0} ms", seconds * 1e3),
        _ => format!("{seconds:.2} s"),
    }
}

/// Formats bytes for a narrow column: `512`, `9.9K`, `131K`, `6.3M`; at most four characters.
pub(crate) fn narrow(number: u64) -> String {
    let mut number = number as f64;
    let mut unit = 0;
    // From 999.5 on rounding would give four digits.
    while number >= 999.5 && unit < 6 {
        number /= 1e3;
        unit += 1;
    }
    let unit = ["", "K", "M", "G", "T", "P", "E"][unit];
    if unit.is_empty() || number >= 9.95 {
        format!("{number:.0}{unit}")
    } else {
        format!("{number:.1}{unit}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn narrow_figures_stay_narrow() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1_000, "1.0K"),
            (9_949, "9.9K"),
            (9_951, "10K"),
            (131_072, "131K"),
            (999_499, "999K"),
            (999_501, "1.0M"),
            (6_291_456, "6.3M"),
            (u64::MAX, "18E"),
        ] {
            assert_eq!(narrow(number), text);
        }
    }

    #[test]
    fn times_have_the_unit_that_fits() {
        for (seconds, text) in [
            (0.000_058, "58 us"),
            (0.000_999_7, "1.0 ms"),
            (0.004_2, "4.2 ms"),
            (0.107, "107 ms"),
            (0.999_7, "1.00 s"),
            (1.5, "1.50 s"),
        ] {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn sizes_and_rates_have_decimal_units() {
        assert_eq!((size(9_999), size(87_040)), ("9999 B".to_owned(), "87.0 KB".to_owned()));
        assert_eq!((size(6_291_456), size(1 << 31)), ("6.29 MB".to_owned(), "2.15 GB".to_owned()));
        assert_eq!((rate(512_000), rate(94_300_000)), ("512.0 kbit/s".to_owned(), "94.3 Mbit/s".to_owned()));
        assert_eq!([rate(999_960), rate(999_960_000)], ["1.0 Mbit/s", "1.00 Gbit/s"]);
        assert_eq!([rate(999_940_000), rate(25_000_000_000)], ["999.9 Mbit/s", "25.00 Gbit/s"]);
    }
}
