//! Decides which group of a daemon a connection belongs to: the conditions as written, and the table of them that the
//! programs read (`bpf/match.h`). The same C code decides here and in the kernel.

#![expect(unsafe_code, reason = "calls C")]

use std::ffi::c_char;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;
use std::sync::Arc;

use crate::abi::{bw_match, bw_name, bw_network, bw_ports};
use crate::pattern::GroupPattern;

/// Most groups: each needs a bit below `BW_KNOWN`, and programs of its own.
pub const MOST_GROUPS: usize = 16;
/// `TASK_COMM_LEN`: bytes of a program's name, with the final 0.
const NAME: usize = 16;
/// Bits of an IPv4 address, and of an IPv6 one.
const V4_BITS: u32 = 32;
const V6_BITS: u32 = 128;

/// Addresses with the same first bits, as `198.18.0.0/15`, `fd00::/8` or `192.0.2.7`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    address: IpAddr,
    bits: u32,
}

/// A range of ports, as `443` or `50000-50100`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ports {
    first: u16,
    last: u16,
}

/// A pattern of program names, as in `/proc/PID/comm`; `*` stands for any letters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramPattern(String);

/// The conditions of a group. A connection must satisfy each kind that is given, by any one of its values; kinds that
/// are not given are ignored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Conditions {
    /// A cgroup, in which or below which the socket was made.
    pub cgroup: Option<GroupPattern>,
    /// Programs, one of which made the socket.
    pub programs: Vec<ProgramPattern>,
    /// Networks, one of which has the peer's address.
    pub peers: Vec<Network>,
    /// Port ranges, one of which has the port of either end.
    pub ports: Vec<Ports>,
}

/// The conditions of all groups in order: a connection belongs to the first group that matches.
#[derive(Clone, Debug)]
pub struct Matching {
    table: Arc<bw_match>,
    own: u32,
}

unsafe extern "C" {
    fn bufwise_groups_of_name(table: *const bw_match, name: *const c_char) -> u32;
    fn bufwise_group_of(
        table: *const bw_match,
        cgroups: u32,
        programs: u32,
        peer: *const u32,
        local_port: u32,
        peer_port: u32,
    ) -> u32;
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            format!(
                "`{}` is no address or prefix: write 192.0.2.7, 198.18.0.0/15 or fd00::/8",
                text.escape_debug()
            )
        };
        let (address, bits) =
            text.split_once('/').map_or((text, None), |(address, bits)| (address, Some(bits)));
        let address: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if address.is_ipv4() { V4_BITS } else { V6_BITS };
        let bits = bits.map_or(Ok(most), |bits| bits.parse().map_err(|_| wrong()))?;
        if bits > most {
            return Err(wrong());
        }
        let network = Self { address, bits };
        let first = network.first();
        if first != address {
            return Err(format!("`{text}` has bits beyond its prefix: write {first}/{bits}"));
        }
        Ok(network)
    }
}

impl Network {
    /// Returns the address without the bits after the prefix.
    fn first(&self) -> IpAddr {
        let kept = |most: u32| most - self.bits;
        match self.address {
            IpAddr::V4(ip) => {
                let bits = ip.to_bits();
                let mask = u32::MAX.checked_shl(kept(V4_BITS)).unwrap_or_default();
                IpAddr::V4((bits & mask).into())
            }
            IpAddr::V6(ip) => {
                let mask = u128::MAX.checked_shl(kept(V6_BITS)).unwrap_or_default();
                IpAddr::V6((ip.to_bits() & mask).into())
            }
        }
    }

    /// Converts to the programs' entry, IPv4 as mapped IPv6.
    fn entry(&self, groups: u32) -> bw_network {
        let bits = if self.address.is_ipv4() { V6_BITS - V4_BITS + self.bits } else { self.bits };
        let mask = u128::MAX.checked_shl(V6_BITS - bits).unwrap_or_default();
        bw_network { address: words(mapped(self.address)), mask: words(mask), groups }
    }
}

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = first.trim().parse().ok().zip(last.trim().parse().ok());
        ports
            .filter(|(first, last)| *first > 0 && first <= last)
            .map(|(first, last)| Self { first, last })
            .ok_or_else(|| {
                format!("`{}` is no port or range: write 443 or \"50000-50100\"", text.escape_debug())
            })
    }
}

impl FromStr for ProgramPattern {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let letters = text.bytes().filter(|letter| *letter != b'*').count();
        if text.is_empty() || letters >= NAME || text.contains(|one: char| one.is_control() || one == '/') {
            return Err(format!(
                "`{}` is no name of a program: 1 to {} bytes as in /proc/PID/comm, * for any letters",
                text.escape_debug(),
                NAME - 1
            ));
        }
        Ok(Self(text.to_owned()))
    }
}

impl ProgramPattern {
    fn entry(&self, groups: u32) -> bw_name {
        let mut entry = bw_name { groups, ..bw_name::default() };
        for letter in self.0.bytes() {
            match entry.letters.get_mut(entry.count as usize) {
                _ if letter == b'*' => entry.stars |= 1 << entry.count,
                Some(place) => {
                    *place = c_char::from_ne_bytes([letter]);
                    entry.count += 1;
                }
                None => {}
            }
        }
        entry
    }
}

impl Conditions {
    /// Returns whether any connection that satisfies `other` certainly satisfies these conditions; may miss some
    /// cases.
    #[must_use]
    pub fn cover(&self, other: &Self) -> bool {
        let is_cgroup = match (&self.cgroup, &other.cgroup) {
            (None, _) => true,
            (Some(own), Some(others)) => own.covers(others),
            (Some(_), None) => false,
        };
        is_cgroup
            && (self.programs.is_empty() || self.programs == other.programs)
            && (self.peers.is_empty() || self.peers == other.peers)
            && (self.ports.is_empty() || self.ports == other.ports)
    }
}

impl Default for Matching {
    /// Makes a table without groups.
    fn default() -> Self {
        Self { table: Arc::new(empty()), own: 0 }
    }
}

impl Matching {
    /// Makes the table of some groups, in their order.
    ///
    /// # Errors
    /// Says what there is too much of, and the bound, as the end of a sentence.
    pub fn new<'a>(groups: impl IntoIterator<Item = &'a Conditions>) -> Result<Self, String> {
        let mut table = empty();
        for (number, group) in groups.into_iter().enumerate() {
            if number == MOST_GROUPS {
                return Err(format!("more than {MOST_GROUPS} groups"));
            }
            add(&mut table, group, 1 << number)?;
        }
        Ok(Self { table: Arc::new(table), own: 0 })
    }

    /// Returns the table for the programs of that group; `None`: for the programs of the connections in no group.
    #[must_use]
    pub fn of_group(&self, group: Option<usize>) -> Self {
        Self { table: Arc::clone(&self.table), own: group.map_or(0, |number| 1 << number) }
    }

    /// Returns whether any group has a condition on programs.
    #[must_use]
    pub fn asks_for_programs(&self) -> bool {
        self.table.names_count > 0
    }

    /// Returns the groups (a bit each) that match a program of that name.
    #[must_use]
    pub fn groups_of_program(&self, name: &str) -> u32 {
        let mut letters = [0; NAME];
        let bytes = name.bytes().take(NAME - 1);
        letters.iter_mut().zip(bytes).for_each(|(place, letter)| *place = c_char::from_ne_bytes([letter]));
        // SAFETY: the table outlives the call, and the name has the length that C reads.
        unsafe { bufwise_groups_of_name(&raw const *self.table, letters.as_ptr()) }
    }

    /// Returns the group of a connection; `None`: it is in none. `cgroups` are the groups (a bit each) that match a
    /// cgroup of the connection, `programs` those that match its program.
    #[must_use]
    pub fn group_of(
        &self,
        cgroups: u32,
        programs: u32,
        local: SocketAddr,
        peer: SocketAddr,
    ) -> Option<usize> {
        let ip = words(mapped(peer.ip()));
        // SAFETY: the table and the address outlive the call.
        let group = unsafe {
            bufwise_group_of(
                &raw const *self.table,
                cgroups,
                programs,
                ip.as_ptr(),
                local.port().into(),
                peer.port().into(),
            )
        };
        (group != 0).then(|| group.trailing_zeros() as usize)
    }

    /// Returns the table as the programs read it.
    pub(crate) fn table(&self) -> bw_match {
        bw_match { own: self.own, ..*self.table }
    }
}

fn empty() -> bw_match {
    // SAFETY: the structure has only integers, of which every bit pattern is a value.
    unsafe { std::mem::zeroed() }
}

/// Adds the conditions of one group, which has that bit.
fn add(table: &mut bw_match, group: &Conditions, bit: u32) -> Result<(), String> {
    table.all |= bit;
    let without = |is_empty: bool| if is_empty { bit } else { 0 };
    table.any_cgroup |= without(group.cgroup.is_none());
    table.any_name |= without(group.programs.is_empty());
    table.any_peer |= without(group.peers.is_empty());
    table.any_port |= without(group.ports.is_empty());
    let bw_match { networks, networks_count, ports, ports_count, names, names_count, .. } = table;
    fill(networks, networks_count, "peers", group.peers.iter().map(|one| one.entry(bit)))?;
    let range = |one: &Ports| bw_ports { first: one.first, last: one.last, groups: bit };
    fill(ports, ports_count, "ports", group.ports.iter().map(range))?;
    fill(names, names_count, "processes", group.programs.iter().map(|one| one.entry(bit)))
}

fn fill<T>(
    places: &mut [T],
    count: &mut u32,
    what: &str,
    new: impl Iterator<Item = T>,
) -> Result<(), String> {
    let most = places.len();
    for one in new {
        let place = places.get_mut(*count as usize);
        *place.ok_or_else(|| format!("more than {most} {what} in all groups"))? = one;
        *count += 1;
    }
    Ok(())
}

/// Returns an address in 128 bits, IPv4 as mapped IPv6.
fn mapped(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
        IpAddr::V6(ip) => ip.to_bits(),
    }
}

/// Returns the bits as four words in network byte order, as in the kernel.
fn words(bits: u128) -> [u32; 4] {
    let bytes = bits.to_be_bytes();
    std::array::from_fn(|word| u32::from_ne_bytes(std::array::from_fn(|byte| bytes[4 * word + byte])))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn of<T: FromStr<Err = String>>(texts: &[&str]) -> Vec<T> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn peers(texts: &[&str]) -> Conditions {
        Conditions { peers: of(texts), ..Conditions::default() }
    }

    fn programs(texts: &[&str]) -> Conditions {
        Conditions { programs: of(texts), ..Conditions::default() }
    }

    fn group(matching: &Matching, cgroups: u32, programs: u32, local: u16, peer: &str) -> Option<usize> {
        matching.group_of(
            cgroups,
            programs,
            SocketAddr::from(([198, 18, 0, 1], local)),
            peer.parse().unwrap(),
        )
    }

    #[test]
    fn the_first_group_that_has_everything_it_asks_for_wins() {
        let both = Conditions { programs: of(&["rsync"]), ports: of(&["873"]), ..Conditions::default() };
        let cgroup = Conditions { cgroup: "a".parse().ok(), ..Conditions::default() };
        let matching = Matching::new(&[both, cgroup, peers(&["10.0.0.0/8"])]).unwrap();
        let rsync = matching.groups_of_program("rsync");
        assert_eq!(rsync, 0b001);
        assert_eq!(group(&matching, 0b010, rsync, 1, "10.0.0.1:873"), Some(0));
        assert_eq!(group(&matching, 0b010, rsync, 873, "10.0.0.1:1"), Some(0), "the port of either end");
        assert_eq!(group(&matching, 0b010, 0, 1, "10.0.0.1:873"), Some(1));
        assert_eq!(group(&matching, 0, 0, 1, "10.0.0.1:873"), Some(2));
        assert_eq!(group(&matching, 0, rsync, 1, "11.0.0.1:80"), None);
        assert_eq!(group(&Matching::default(), 0b1, 0b1, 1, "10.0.0.1:873"), None);
    }

    #[test]
    fn peers_are_prefixes_of_both_families_and_mapped_ones_are_ipv4() {
        let matching = Matching::new(&[peers(&["198.18.0.0/15", "192.0.2.7", "fd00::/8", "::/0"])]).unwrap();
        let narrow = Matching::new(&[peers(&["198.18.0.0/15", "192.0.2.7", "fd00::/8"])]).unwrap();
        for peer in ["198.19.255.255:1", "192.0.2.7:1", "[fdff::1]:1", "[::ffff:198.18.0.1]:1"] {
            assert_eq!(group(&narrow, 0, 0, 1, peer), Some(0), "{peer}");
        }
        for peer in ["198.20.0.0:1", "192.0.2.8:1", "[fe00::1]:1", "[c612::]:1"] {
            assert_eq!(group(&narrow, 0, 0, 1, peer), None, "{peer}");
            assert_eq!(group(&matching, 0, 0, 1, peer), Some(0), "{peer}");
        }
        let all_of_four = Matching::new(&[peers(&["0.0.0.0/0"])]).unwrap();
        assert_eq!(group(&all_of_four, 0, 0, 1, "8.8.8.8:1"), Some(0));
        assert_eq!(group(&all_of_four, 0, 0, 1, "[fd00::1]:1"), None);
    }

    #[test]
    fn a_wrong_condition_says_what_to_write() {
        for (text, words) in [("10.0.0.1/8", "write 10.0.0.0/8"), ("fd00::1/8", "write fd00::/8")] {
            assert!(text.parse::<Network>().unwrap_err().contains(words), "{text}");
        }
        for text in ["", "a", "10.0.0.0/", "10.0.0.0/33", "fd00::/129", "10.0.0.0/-1", "/8"] {
            assert!(text.parse::<Network>().unwrap_err().contains("198.18.0.0/15"), "{text}");
        }
        for text in ["", "0", "0-9", "9-8", "65536", "http", "1-2-3", "-"] {
            assert!(text.parse::<Ports>().unwrap_err().contains("50000-50100"), "{text}");
        }
        for text in ["", "a/b", "a\n", "sixteen-letters!"] {
            assert!(text.parse::<ProgramPattern>().unwrap_err().contains("1 to 15 bytes"), "{text}");
        }
        assert!("fifteen-letters*".parse::<ProgramPattern>().is_ok());
    }

    #[test]
    fn the_table_has_bounds() {
        let many =
            |count: usize| Conditions { ports: vec!["1".parse().unwrap(); count], ..Conditions::default() };
        assert!(Matching::new(&[many(32), many(32)]).is_ok());
        assert_eq!(Matching::new(&[many(33), many(32)]).unwrap_err(), "more than 64 ports in all groups");
        assert_eq!(Matching::new(&vec![many(1); 17]).unwrap_err(), "more than 16 groups");
    }

    #[test]
    fn conditions_cover_those_that_ask_for_more() {
        let port = Conditions { ports: of(&["80"]), ..Conditions::default() };
        let both = Conditions { ports: of(&["80"]), ..programs(&["rsync"]) };
        assert!(
            port.cover(&both)
                && port.cover(&port)
                && !both.cover(&port)
                && !both.cover(&programs(&["rsync"]))
        );
        let cgroup = |path: &str| Conditions { cgroup: path.parse().ok(), ..Conditions::default() };
        assert!(cgroup("a").cover(&cgroup("a/b")) && !cgroup("a/b").cover(&cgroup("a")));
        assert!(!cgroup("a").cover(&port) && !port.cover(&cgroup("a")));
    }

    /// The simple recursive version, as a reference.
    fn fits(pattern: &[u8], name: &[u8]) -> bool {
        match pattern.split_first() {
            None => name.is_empty(),
            Some((b'*', rest)) => (0..=name.len()).any(|from| fits(rest, &name[from..])),
            Some((letter, rest)) => {
                name.split_first().is_some_and(|(first, more)| first == letter && fits(rest, more))
            }
        }
    }

    proptest! {
        #[test]
        fn a_program_fits_its_pattern(pattern in "[ab*]{1,15}", name in "[ab]{0,15}") {
            let matching = Matching::new(&[programs(&["b", &pattern])]).unwrap();
            let expected = name == "b" || fits(pattern.as_bytes(), name.as_bytes());
            prop_assert_eq!(matching.groups_of_program(&name) == 1, expected);
        }

        #[test]
        fn a_peer_is_in_a_network_whose_first_bits_it_has(ip in any::<u32>(), other in any::<u32>(), bits in 0..=32_u32) {
            let first = Network { address: IpAddr::V4(other.into()), bits }.first();
            let matching = Matching::new(&[peers(&[&format!("{first}/{bits}")])]).unwrap();
            let expected = u64::from(ip ^ other) >> (V4_BITS - bits) == 0;
            let peer = SocketAddr::from((std::net::Ipv4Addr::from(ip), 1));
            prop_assert_eq!(matching.group_of(0, 0, peer, peer) == Some(0), expected);
        }
    }
}
