//! Parses the sizes that users give, and checks that they are within sensible bounds.
//!
//! A number without a unit is refused: `memory = 64`, meant in megabytes, would hold a whole host at 64 bytes.

use std::str::FromStr;

use bufwise_bpf::Config;
use bufwise_units::Bytes;
use serde::Deserialize;

/// The least bound of a device: a packet of 1,500 bytes, and the 320 that the kernel reserves for headers
/// (`sk_setup_caps()`).
const LEAST_AT_ONCE: Bytes = Bytes(2 << 10);
/// The least memory for queues: what one writer fills at once (`GSO_LEGACY_MAX_SIZE`).
pub(crate) const LEAST_BUDGET: Bytes = Bytes(64 << 10);
/// The largest document that may go out in one round trip: 64 segments, as large as the loopback's.
const LARGEST_DOCUMENT: Bytes = Bytes(4 << 20);

/// The least size for `fixed`: a few segments; below this, acknowledgements wait for each other.
const LEAST_FIXED: Bytes = Bytes(4 << 10);

/// `--gso-max-size`: the size of the packet that a sender fills at once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AtOnce {
    /// A size that suits the memory set by the user, on devices that carry no other connections.
    #[default]
    Auto,
    /// As much as the devices take.
    Device,
    /// This many bytes.
    Size(Bytes),
}

/// `--memory`, `--receive-memory`: memory that all queues of a direction may hold together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget(Bytes);

/// `--small-documents`: largest size of a small document; zero: none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SmallDocuments(Bytes);

/// `--max-connections`: most connections that are tuned at a time; the kernel sizes further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "i64")]
pub struct MaxConnections(u32);

impl MaxConnections {
    /// The largest value allowed: 2 GB of records in the kernel.
    const MOST: u32 = 1_000_000;
}

impl Default for MaxConnections {
    fn default() -> Self {
        Self(Config::default().max_flows)
    }
}

impl TryFrom<i64> for MaxConnections {
    type Error = String;

    fn try_from(count: i64) -> Result<Self, String> {
        let count = u32::try_from(count).ok().filter(|count| (1..=Self::MOST).contains(count));
        count.map(Self).ok_or_else(|| format!("from 1 to {} connections can be tuned", Self::MOST))
    }
}

impl FromStr for MaxConnections {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let count = text.parse::<i64>().map_err(|_| format!("`{text}` is not a number of connections"))?;
        count.try_into()
    }
}

impl From<MaxConnections> for u32 {
    fn from(MaxConnections(count): MaxConnections) -> Self {
        count
    }
}

impl FromStr for AtOnce {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = match text {
            "auto" => return Ok(Self::Auto),
            "device" => return Ok(Self::Device),
            size => with_unit(size).map_err(|error| format!("{error}; or auto, or device"))?,
        };
        let (shown, least) = (wanted.readable(), LEAST_AT_ONCE.readable());
        let error = || format!("{shown} does not hold a packet: at least {least}");
        (wanted >= LEAST_AT_ONCE).then_some(Self::Size(wanted)).ok_or_else(error)
    }
}

impl FromStr for Budget {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = with_unit(text)?;
        let error =
            || format!("{} is less than a single connection fills: at least 64KiB", wanted.readable());
        (wanted >= LEAST_BUDGET).then_some(Self(wanted)).ok_or_else(error)
    }
}

impl FromStr for SmallDocuments {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = if text == "0" { Bytes::ZERO } else { with_unit(text)? };
        let error = || format!("{} does not go out in one round trip: at most 4MiB", wanted.readable());
        (wanted <= LARGEST_DOCUMENT).then_some(Self(wanted)).ok_or_else(error)
    }
}

/// Checks the size in `fixed:SIZE`, which needs a unit as well.
///
/// # Errors
/// One line that says what is wrong with it.
pub fn check_fixed(size: &str) -> Result<(), String> {
    let wanted = with_unit(size)?;
    let error = || format!("buffers of {} hold no two segments: at least 4KiB", wanted.readable());
    (wanted >= LEAST_FIXED).then_some(()).ok_or_else(error)
}

fn with_unit(text: &str) -> Result<Bytes, String> {
    let size = text.parse().map_err(|error: bufwise_units::ParseError| error.to_string())?;
    match text.bytes().last() {
        Some(last) if last.is_ascii_digit() => {
            Err(format!("`{text}` has no unit: write it as 64KiB, 512MiB, 4MB"))
        }
        _ => Ok(size),
    }
}

macro_rules! into_bytes {
    ($($size:ident),+) => {$(
        impl From<$size> for Bytes {
            fn from($size(size): $size) -> Self {
                size
            }
        }
    )+};
}

into_bytes!(Budget, SmallDocuments);

#[cfg(test)]
mod tests {
    use super::*;

    fn error<T: FromStr<Err = String>>(text: &str) -> String {
        text.parse::<T>().err().expect("it is refused")
    }

    #[test]
    fn a_size_needs_a_unit() {
        for text in ["0", "1", "64", "5000000", "1.5"] {
            assert!(error::<Budget>(text).contains("has no unit"), "{text}");
            assert!(error::<AtOnce>(text).contains("has no unit"), "{text}");
        }
        assert!(error::<SmallDocuments>("30720").contains("has no unit"));
        assert!(error::<Budget>("lots").contains("64KiB"), "what is accepted is said");
    }

    #[test]
    fn a_budget_holds_what_one_writer_fills() {
        for text in ["0B", "1KiB", "65535B"] {
            assert!(error::<Budget>(text).contains("at least 64KiB"), "{text}");
        }
        assert_eq!("64KiB".parse::<Budget>().map(Bytes::from), Ok(LEAST_BUDGET));
    }

    #[test]
    fn a_fixed_size_has_a_unit_and_holds_segments() {
        assert!(check_fixed("5").unwrap_err().contains("has no unit"));
        assert!(check_fixed("5B").unwrap_err().contains("at least 4KiB"));
        assert_eq!((check_fixed("4KiB"), check_fixed("64KiB")), (Ok(()), Ok(())));
    }

    #[test]
    fn a_small_document_is_small_and_none_may_be() {
        assert!(error::<SmallDocuments>("9GiB").contains("at most 4MiB"));
        assert_eq!("0".parse::<SmallDocuments>().map(Bytes::from), Ok(Bytes::ZERO));
        assert_eq!("8KB".parse::<SmallDocuments>().map(Bytes::from), Ok(Bytes(8_000)));
    }

    #[test]
    fn a_million_connections_can_be_tuned_and_65536_are_by_default() {
        let of = |text: &str| text.parse::<MaxConnections>().map(u32::from);
        assert_eq!((of("1"), of("1000000")), (Ok(1), Ok(1_000_000)));
        for text in ["0", "1000001", "-5", "99999999999"] {
            assert!(of(text).unwrap_err().contains("from 1 to 1000000"), "{text}");
        }
        assert!(of("many").unwrap_err().contains("not a number"));
        assert_eq!(u32::from(MaxConnections::default()), 65_536);
    }

    #[test]
    fn a_device_must_take_a_packet_at_once() {
        assert!(error::<AtOnce>("1500B").contains("at least 2048 B"));
        assert_eq!("4KiB".parse(), Ok(AtOnce::Size(Bytes(4_096))));
        assert_eq!(("auto".parse(), "device".parse()), (Ok(AtOnce::Auto), Ok(AtOnce::Device)));
        assert!(error::<AtOnce>("little").ends_with("or auto, or device"));
    }
}
