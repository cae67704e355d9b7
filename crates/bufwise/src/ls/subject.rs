//! The connections that an address, a port, a network or a cgroup selects, for the filters of lists and for the history.

use std::net::IpAddr;
use std::str::FromStr;

use bufwise_host::address::Pattern;
use bufwise_host::view::ConnectionView;

/// Usual mount point of cgroups, which users may write before a path.
const MOUNT: &str = "/sys/fs/cgroup";

/// The peers or the cgroup that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Subject {
    /// Connections that have the address or port at either end.
    Address(Pattern),
    /// Connections whose peer is in the network.
    Network(Network),
    /// Connections of a cgroup and of the cgroups below it; the path has no trailing slash.
    Cgroup(String),
}

/// A network, as `198.18.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Network {
    ip: IpAddr,
    length: u8,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::read(text).ok_or_else(|| {
            format!(
                "`{text}` is no peer and no cgroup: write 198.18.0.2:443, [fd00::2]:443, an address alone, a port alone, \
                 198.18.0.0/24 or /system.slice/nginx.service"
            )
        })
    }
}

impl Subject {
    /// Parses an address, a port, both, a network or the path of a cgroup; `None`: the text is none of them.
    pub(crate) fn read(text: &str) -> Option<Self> {
        if text.starts_with('/') {
            let below = text.strip_prefix(MOUNT).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            return Some(Self::Cgroup(below.unwrap_or(text).trim_end_matches('/').to_owned()));
        }
        Network::read(text).map(Self::Network).or_else(|| text.parse().ok().map(Self::Address))
    }

    /// Returns the subject as text.
    pub(crate) fn name(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Network(Network { ip, length }) => format!("{ip}/{length}"),
            Self::Cgroup(path) if path.is_empty() => "/".to_owned(),
            Self::Cgroup(path) => path.clone(),
        }
    }

    /// Whether a connection belongs to it.
    pub(crate) fn has(&self, one: &ConnectionView) -> bool {
        match self {
            Self::Address(address) => address.matches(one.local, one.peer),
            Self::Network(network) => network.contains(one.peer.ip()),
            Self::Cgroup(path) => one.cgroup.as_ref().is_some_and(|cgroup| is_below(cgroup, path)),
        }
    }
}

/// Whether `cgroup` has the path `path`, which has no trailing slash, or is below it.
pub(crate) fn is_below(cgroup: &str, path: &str) -> bool {
    cgroup.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns the number of bits of an address.
fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl Network {
    /// Parses a network of any length; `None`: the text is no network.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let (ip, length) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let length = length.parse().ok().filter(|length| *length <= bits(ip))?;
        Some(Self { ip, length })
    }

    /// Returns the network of this address alone.
    pub(crate) fn of_one(ip: IpAddr) -> Self {
        Self { ip, length: bits(ip) }
    }

    /// Whether one of the two networks is a part of the other.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        self.contains(other.ip) || other.contains(self.ip)
    }

    /// Whether the address is in the network; an IPv4-mapped IPv6 address counts as IPv4.
    fn contains(self, ip: IpAddr) -> bool {
        let beyond = u32::from(bits(self.ip) - self.length);
        match (self.ip, ip.to_canonical()) {
            (IpAddr::V4(own), IpAddr::V4(ip)) => {
                (own.to_bits() ^ ip.to_bits()).checked_shr(beyond).unwrap_or(0) == 0
            }
            (IpAddr::V6(own), IpAddr::V6(ip)) => {
                (own.to_bits() ^ ip.to_bits()).checked_shr(beyond).unwrap_or(0) == 0
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_peer_a_prefix_or_a_cgroup() {
        for (text, name) in [
            ("198.18.0.2:443", "198.18.0.2:443"),
            ("443", "443"),
            ("fd00::2", "fd00::2"),
            ("198.18.0.0/15", "198.18.0.0/15"),
            ("fd00:b::/48", "fd00:b::/48"),
            ("/system.slice/", "/system.slice"),
            ("/sys/fs/cgroup/system.slice/a.service", "/system.slice/a.service"),
            ("/sys/fs/cgroup", "/"),
            ("/", "/"),
        ] {
            assert_eq!(text.parse::<Subject>().unwrap().name(), name);
        }
        for text in ["", "nginx", "198.18.0.0/33", "198.18/16", "host:80", "198.18.0.2:x"] {
            let error = text.parse::<Subject>().unwrap_err();
            assert!(error.contains("198.18.0.0/24") && error.contains("/system.slice/"), "{text}: {error}");
        }
    }
}
