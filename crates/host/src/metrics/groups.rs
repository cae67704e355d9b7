//! Sums over the connections that share a cgroup, a network namespace or a peer's prefix, under a bounded number of
//! names.
//!
//! Problem: each name stays a time series for ever in the database that stores the figures, and a host may have
//! thousands of peers in a day.
//!
//! Terms: the *largest* groups are those with the highest rate, then those that hold most. A group *has a place* if
//! it is listed by name; the sums of all others are listed as [`OTHER`].
//!
//! Properties kept, each a test:
//! - there are no more names than places, and the sums add up to the whole;
//! - a group keeps its place for [`HOLD`] after it was last among the largest, so that few names share a place in a
//!   day;
//! - the largest groups get the free places.

use std::cmp::Reverse;
use std::collections::HashMap;

use bufwise_socket::diag::Connection;
use bufwise_units::Micros;
use serde::{Deserialize, Serialize};

use crate::address::Prefix;
use crate::history::{MAX_CGROUPS, MAX_PREFIXES};
use crate::view::ConnectionView;

/// Name of all groups without a place.
pub(crate) const OTHER: &str = "other";
/// Most network namespaces that are listed, including the sum of all others.
const MAX_NAMESPACES: usize = 32;
/// Time for which a group keeps its place after it was last among the largest.
const HOLD: Micros = Micros::from_secs(3_600);

/// Sums over some connections.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Group {
    /// The cgroup's container as `namespace/pod/container` or its path, the network namespace's name or inode, or the
    /// prefix as `198.18.0.0/24`; or `other`.
    pub name: String,
    /// Number of connections.
    pub connections: u64,
    /// Payload rate now, bit/s.
    pub goodput_bps: u64,
    /// Content of the queues (memory), bytes.
    pub held_bytes: u64,
    /// Memory that the limits allow beyond need, bytes.
    pub waste_bytes: u64,
}

/// The sums over all connections by each of three properties.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Groups {
    /// Sums by cgroup; empty if the kernel does not report cgroups (before Linux 5.8).
    pub cgroups: Vec<Group>,
    /// Sums by network namespace.
    pub namespaces: Vec<Group>,
    /// Sums by the peer's prefix.
    pub prefixes: Vec<Group>,
}

/// Sums by key while they are added up.
#[derive(Debug, Default)]
pub(crate) struct Sums {
    cgroups: HashMap<u64, Group>,
    namespaces: HashMap<String, Group>,
    prefixes: HashMap<Prefix, Group>,
}

impl Sums {
    /// Adds a connection to its three groups.
    pub(crate) fn add(&mut self, connection: &Connection, view: &ConnectionView) {
        let one = Group {
            name: String::new(),
            connections: 1,
            goodput_bps: view.goodput_bps.unwrap_or_default(),
            held_bytes: view.send_queued_bytes + view.receive_queued_bytes,
            waste_bytes: view.waste_bytes,
        };
        if connection.cgroup != 0 {
            self.cgroups.entry(connection.cgroup).or_default().add(&one);
        }
        self.namespaces.entry(view.netns.clone()).or_default().add(&one);
        self.prefixes.entry(Prefix::of(connection.peer.ip())).or_default().add(&one);
    }
}

impl Group {
    fn add(&mut self, other: &Self) {
        self.connections += other.connections;
        self.goodput_bps = self.goodput_bps.saturating_add(other.goodput_bps);
        self.held_bytes += other.held_bytes;
        self.waste_bytes += other.waste_bytes;
    }
}

/// The groups of all three kinds that have a place.
#[derive(Debug)]
pub(crate) struct Named {
    cgroups: Places,
    namespaces: Places,
    prefixes: Places,
}

impl Default for Named {
    fn default() -> Self {
        let [cgroups, namespaces, prefixes] = [MAX_CGROUPS, MAX_NAMESPACES, MAX_PREFIXES].map(Places::new);
        Self { cgroups, namespaces, prefixes }
    }
}

impl Named {
    /// Returns the sums under bounded names; `label` returns a cgroup's name by its number.
    pub(crate) fn told(
        &mut self,
        sums: Sums,
        now: Micros,
        mut label: impl FnMut(u64) -> Option<String>,
    ) -> Groups {
        let other = || OTHER.to_owned();
        let cgroups =
            sums.cgroups.into_iter().map(|(number, sum)| (label(number).unwrap_or_else(other), sum));
        let prefixes = sums.prefixes.into_iter().map(|(prefix, sum)| (prefix.to_string(), sum));
        Groups {
            cgroups: self.cgroups.told(cgroups, now),
            namespaces: self.namespaces.told(sums.namespaces.into_iter(), now),
            prefixes: self.prefixes.told(prefixes, now),
        }
    }
}

/// The places of one kind.
#[derive(Debug)]
struct Places {
    /// Number of places, without that of [`OTHER`].
    most: usize,
    /// The time at which each group with a place was last among the largest.
    held: HashMap<String, Micros>,
}

impl Places {
    /// Makes places for that many names, including [`OTHER`].
    fn new(names: usize) -> Self {
        Self { most: names - 1, held: HashMap::new() }
    }

    /// Returns the groups that have a place, the largest first, and the sum of all others.
    fn told(&mut self, groups: impl Iterator<Item = (String, Group)>, now: Micros) -> Vec<Group> {
        let mut by_name: HashMap<String, Group> = HashMap::new();
        for (name, group) in groups {
            by_name.entry(name).or_default().add(&group);
        }
        // A namespace may have this name as well.
        let mut others = Group { name: OTHER.to_owned(), ..by_name.remove(OTHER).unwrap_or_default() };
        let mut all: Vec<Group> = by_name.into_iter().map(|(name, group)| Group { name, ..group }).collect();
        all.sort_by(|a, b| {
            let size = |one: &Group| Reverse((one.goodput_bps, one.held_bytes, one.connections));
            size(a).cmp(&size(b)).then_with(|| a.name.cmp(&b.name))
        });
        self.assign(&all[..all.len().min(self.most)], now);
        all.retain(|one| {
            let has_place = self.held.contains_key(&one.name);
            if !has_place {
                others.add(one);
            }
            has_place
        });
        all.extend((others.connections > 0).then_some(others));
        all
    }

    /// Gives free places to the largest groups.
    fn assign(&mut self, largest: &[Group], now: Micros) {
        for one in largest {
            if let Some(last) = self.held.get_mut(&one.name) {
                *last = now;
            }
        }
        self.held.retain(|_, last| now.since(*last) <= HOLD);
        for one in largest {
            if self.held.len() < self.most {
                self.held.entry(one.name.clone()).or_insert(now);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: u64) -> Micros {
        Micros::from_secs(seconds)
    }

    /// Returns names and rates listed for these groups, whose names have one letter each.
    fn told(places: &mut Places, groups: &[(&str, u64)], now: Micros) -> Vec<(String, u64)> {
        let group = |rate| Group { connections: 1, goodput_bps: rate, ..Group::default() };
        let groups = groups.iter().map(|(name, rate)| ((*name).to_owned(), group(*rate)));
        places.told(groups, now).into_iter().map(|one| (one.name, one.goodput_bps)).collect()
    }

    fn expected(groups: &[(&str, u64)]) -> Vec<(String, u64)> {
        groups.iter().map(|(name, rate)| ((*name).to_owned(), *rate)).collect()
    }

    #[test]
    fn the_largest_have_the_places_and_keep_them_for_an_hour() {
        let mut places = Places::new(3);
        let first = told(&mut places, &[("a", 1), ("b", 5), ("c", 3)], at(0));
        assert_eq!(first, expected(&[("b", 5), ("c", 3), ("other", 1)]));
        let larger = [("a", 9), ("b", 5), ("c", 3)];
        let later = told(&mut places, &larger, at(3_600));
        assert_eq!(later, expected(&[("b", 5), ("c", 3), ("other", 9)]), "its place is still held");
        assert_eq!(told(&mut places, &larger, at(3_601)), expected(&[("a", 9), ("b", 5), ("other", 3)]));
        assert_eq!(told(&mut places, &[("c", 1)], at(3_602)), expected(&[("other", 1)]));
    }

    #[test]
    fn groups_of_one_name_are_one_and_a_namespace_may_bear_that_of_all_others() {
        let mut places = Places::new(2);
        assert_eq!(
            told(&mut places, &[("other", 1), ("a", 5), ("b", 2)], at(0)),
            expected(&[("a", 5), ("other", 3)])
        );
        let twice = told(&mut places, &[("a", 5), ("a", 1)], at(1));
        assert_eq!(twice, expected(&[("a", 6)]), "a name is told once");
    }

    proptest! {
        #[test]
        fn names_are_bounded_and_sums_add_up(
            samples in prop::collection::vec(prop::collection::vec((0..40_u32, 0..1_000_u64), 0..60), 1..20),
            names in 1..12_usize,
            pause in 1..2_000_u64,
        ) {
            let mut places = Places::new(names);
            for (number, sample) in samples.iter().enumerate() {
                let mut groups: HashMap<String, Group> = HashMap::new();
                for (name, rate) in sample {
                    let one = Group { connections: 1, goodput_bps: *rate, ..Group::default() };
                    groups.entry(name.to_string()).or_default().add(&one);
                }
                let told = places.told(groups.into_iter(), at(number as u64 * pause));
                prop_assert!(told.len() <= names && places.held.len() < names.max(1));
                let sum = |figure: fn(&Group) -> u64| told.iter().map(figure).sum::<u64>();
                prop_assert_eq!(sum(|one| one.connections), sample.len() as u64);
                prop_assert_eq!(sum(|one| one.goodput_bps), sample.iter().map(|(_, rate)| rate).sum::<u64>());
            }
        }
    }
}
