//! Patterns that select connections: `ADDR:PORT`, a port alone, or an address alone (IPv6 in brackets if a port
//! follows); and the network prefixes by which addresses are summed.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A pattern that matches connections by either end; it has an address, a port, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Pattern {
    ip: Option<IpAddr>,
    port: Option<u16>,
}

impl Pattern {
    /// Returns the address, if the pattern has one.
    pub fn ip(&self) -> Option<IpAddr> {
        self.ip
    }

    /// Returns whether either end matches the pattern.
    pub fn matches(&self, local: SocketAddr, peer: SocketAddr) -> bool {
        [local, peer].into_iter().any(|end| {
            self.ip.is_none_or(|ip| ip == end.ip().to_canonical())
                && self.port.is_none_or(|port| port == end.port())
        })
    }
}

impl FromStr for Pattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
        let pattern = if let Ok(port) = text.parse() {
            Self { ip: None, port: Some(port) }
        } else if let Ok(ip) = inside.parse::<IpAddr>() {
            Self { ip: Some(ip.to_canonical()), port: None }
        } else if let Ok(end) = text.parse::<SocketAddr>() {
            Self { ip: Some(end.ip().to_canonical()), port: Some(end.port()) }
        } else {
            return Err(format!(
                "`{text}` is no address: write 198.18.0.2:443, [fd00::2]:443, an address alone or a port alone"
            ));
        };
        match pattern.port {
            Some(0) => Err("no connection has port 0".to_owned()),
            _ => Ok(pattern),
        }
    }
}

impl TryFrom<String> for Pattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Pattern> for String {
    fn from(pattern: Pattern) -> Self {
        pattern.to_string()
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.ip, self.port) {
            (Some(ip), Some(port)) => SocketAddr::new(ip, port).fmt(f),
            (Some(ip), None) => ip.fmt(f),
            (None, Some(port)) => port.fmt(f),
            (None, None) => Ok(()),
        }
    }
}

/// The network to which an address is counted in sums over peers: /24 of IPv4, /48 of IPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefix(IpAddr);

impl Prefix {
    /// Returns the prefix of an address; an IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn of(ip: IpAddr) -> Self {
        Self(match ip.to_canonical() {
            IpAddr::V4(ip) => Ipv4Addr::from_bits(ip.to_bits() & !0xff).into(),
            IpAddr::V6(ip) => Ipv6Addr::from_bits(ip.to_bits() & !(u128::MAX >> 48)).into(),
        })
    }
}

impl fmt::Display for Prefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.0, if self.0.is_ipv4() { 24 } else { 48 })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(pattern: &str, local: &str, peer: &str) -> bool {
        pattern.parse::<Pattern>().unwrap().matches(local.parse().unwrap(), peer.parse().unwrap())
    }

    #[test]
    fn either_end_may_be_the_one_that_is_meant() {
        let (local, peer) = ("198.18.0.1:40000", "198.18.0.2:443");
        for pattern in ["198.18.0.2:443", "443", "198.18.0.2", "198.18.0.1:40000", "40000", "[198.18.0.1]"] {
            assert!(matches(pattern, local, peer), "{pattern}");
        }
        for pattern in ["198.18.0.2:40000", "198.18.0.1:443", "198.18.0.3", "80"] {
            assert!(!matches(pattern, local, peer), "{pattern}");
        }
        for pattern in ["[fd00:b::2]:443", "fd00:b::2", "[fd00:b::2]"] {
            assert!(matches(pattern, "[fd00:b::1]:1", "[fd00:b::2]:443"), "{pattern}");
        }
        assert!(matches("[::ffff:198.18.0.2]:443", local, peer), "mapped addresses are IPv4");
    }

    #[test]
    fn a_prefix_is_a_24th_or_a_48th() {
        let prefix = |ip: &str| Prefix::of(ip.parse().unwrap()).to_string();
        assert_eq!(prefix("198.18.5.2"), "198.18.5.0/24");
        assert_eq!(prefix("::ffff:198.18.5.2"), "198.18.5.0/24");
        assert_eq!(prefix("fd00:b:1:2::3"), "fd00:b:1::/48");
    }

    #[test]
    fn it_reads_back_as_it_was_written() {
        for text in ["198.18.0.2:443", "[fd00:b::2]:443", "fd00:b::2", "443"] {
            assert_eq!(text.parse::<Pattern>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn what_is_no_address_is_refused_with_the_forms_that_are() {
        for text in ["", ":", "host:80", "198.18.0.2:", "198.18.0.2:70000", "[fd00::1", "70000", "-1"] {
            assert!(text.parse::<Pattern>().unwrap_err().contains("[fd00::2]:443"), "{text}");
        }
        assert!("0".parse::<Pattern>().unwrap_err().contains("port 0"));
    }
}
