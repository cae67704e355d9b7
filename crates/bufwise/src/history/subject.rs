//! The subject of a history: a peer, a network or a cgroup.

use std::net::IpAddr;
use std::str::FromStr;

use bufwise_host::address::Pattern;
use bufwise_host::history::{Kept, Moment, Sums};

/// Usual mount point of cgroups, which users may write before a path.
const MOUNT: &str = "/sys/fs/cgroup";

/// The peers or the cgroup that were asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subject {
    /// Connections that have the address or port at either end.
    Address(Pattern),
    /// Connections whose peer is in the network.
    Network(Network),
    /// Connections of a cgroup and of the cgroups below it; the path has no trailing slash.
    Cgroup(String),
}

/// A network, as `198.18.0.0/24`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Network {
    ip: IpAddr,
    length: u8,
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text.starts_with('/') {
            let below = text.strip_prefix(MOUNT).filter(|rest| rest.is_empty() || rest.starts_with('/'));
            return Ok(Self::Cgroup(below.unwrap_or(text).trim_end_matches('/').to_owned()));
        }
        if let Some(network) = Network::read(text) {
            return Ok(Self::Network(network));
        }
        text.parse().map(Self::Address).map_err(|_| {
            format!(
                "`{text}` is no peer and no cgroup: write 198.18.0.2:443, [fd00::2]:443, an address alone, a port alone, \
                 198.18.0.0/24 or /system.slice/nginx.service"
            )
        })
    }
}

impl Subject {
    /// Returns the subject as text.
    pub(super) fn name(&self) -> String {
        match self {
            Self::Address(address) => address.to_string(),
            Self::Network(Network { ip, length }) => format!("{ip}/{length}"),
            Self::Cgroup(path) if path.is_empty() => "/".to_owned(),
            Self::Cgroup(path) => path.clone(),
        }
    }

    /// Whether a connection belongs to it.
    pub(super) fn keeps(&self, one: &Kept) -> bool {
        match self {
            Self::Address(address) => address.matches(one.view.local, one.view.peer),
            Self::Network(network) => network.contains(one.view.peer.ip()),
            Self::Cgroup(path) => one.view.cgroup.as_ref().is_some_and(|cgroup| is_below(cgroup, path)),
        }
    }

    /// Returns the sums of a moment to which the subject contributes.
    pub(super) fn sums<'a>(&self, moment: &'a Moment) -> Vec<&'a Sums> {
        let networks = |wanted: Network| {
            let is_part = move |sums: &&Sums| {
                Network::read(&sums.name)
                    .is_some_and(|one| one.contains(wanted.ip) || wanted.contains(one.ip))
            };
            moment.prefixes.iter().filter(is_part).collect()
        };
        match self {
            Self::Address(address) => {
                address.ip().map_or_else(Vec::new, |ip| networks(Network { ip, length: bits(ip) }))
            }
            Self::Network(network) => networks(*network),
            Self::Cgroup(path) => moment.cgroups.iter().filter(|sums| is_below(&sums.name, path)).collect(),
        }
    }

    /// Removes from a moment what does not belong to the subject; the total stays that of all connections.
    pub(super) fn narrow(&self, moment: &mut Moment) {
        let sums: Vec<Sums> = self.sums(moment).into_iter().cloned().collect();
        moment.connections.retain(|one| self.keeps(one));
        let (prefixes, cgroups) =
            if matches!(self, Self::Cgroup(_)) { (Vec::new(), sums) } else { (sums, Vec::new()) };
        (moment.prefixes, moment.cgroups) = (prefixes, cgroups);
    }
}

/// Whether `cgroup` has the path `path` or is below it.
fn is_below(cgroup: &str, path: &str) -> bool {
    cgroup.strip_prefix(path).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

fn bits(ip: IpAddr) -> u8 {
    if ip.is_ipv4() { 32 } else { 128 }
}

impl Network {
    fn read(text: &str) -> Option<Self> {
        let (ip, length) = text.split_once('/')?;
        let ip: IpAddr = ip.parse().ok()?;
        let length = length.parse().ok().filter(|length| *length <= bits(ip))?;
        Some(Self { ip, length })
    }

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
    use super::super::tests::moment;
    use super::*;

    fn subject(text: &str) -> Subject {
        text.parse().unwrap()
    }

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
            assert_eq!(subject(text).name(), name);
        }
        for text in ["", "nginx", "198.18.0.0/33", "198.18/16", "host:80", "198.18.0.2:x"] {
            let error = text.parse::<Subject>().unwrap_err();
            assert!(error.contains("198.18.0.0/24") && error.contains("/system.slice/"), "{text}: {error}");
        }
    }

    #[test]
    fn connections_and_sums_are_those_that_belong_to_it() {
        // One connection is to 198.18.0.2:443, in /system.slice/rsync.service, the other to 198.18.7.7:80, in
        // /user.slice.
        for (text, connections, sums) in [
            ("198.18.0.2", 1, 1),
            ("443", 1, 0),
            ("198.18.0.0/24", 1, 1),
            ("198.18.0.0/16", 2, 2),
            ("198.18.0.128/25", 0, 1),
            ("0.0.0.0/0", 2, 2),
            ("198.18.9.9", 0, 0),
            ("fd00::2", 0, 0),
            ("/system.slice", 1, 1),
            ("/system.slice/rsync.service", 1, 1),
            ("/system", 0, 0),
            ("/", 2, 2),
        ] {
            let mut narrowed = moment(0);
            subject(text).narrow(&mut narrowed);
            assert_eq!(narrowed.connections.len(), connections, "{text}");
            assert_eq!(narrowed.prefixes.len() + narrowed.cgroups.len(), sums, "{text}");
        }
    }
}
