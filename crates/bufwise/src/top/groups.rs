//! Connections that have something in common, and what they hold together.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bufwise_host::view::{ConnectionView, Summary};

use crate::figures::narrow;
use crate::ls::Order;

/// The property that connections are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Grouping {
    /// Each connection by itself.
    #[default]
    None,
    /// The program that holds them.
    Process,
    /// The peer's address, without its port.
    Peer,
    /// The network namespace.
    Namespace,
}

/// Titles of a group's figures, with their widths.
pub(crate) const TITLES: [(&str, usize); 5] =
    [("CONNS", 5), ("RATE", 4), ("SEND", 9), ("RECEIVE", 9), ("WASTE", 5)];

/// One group.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// The memory that its connections hold together, as `ls` sums it up.
    sums: Summary,
    /// What all move now, bit/s; `None` where nothing is known of any.
    rate: Option<u64>,
    /// Its connections, by their cookies.
    pub(crate) cookies: Vec<u64>,
}

impl Grouping {
    /// The one that the key chooses next.
    pub(crate) fn next(self) -> Self {
        match self {
            Self::None => Self::Process,
            Self::Process => Self::Peer,
            Self::Peer => Self::Namespace,
            Self::Namespace => Self::None,
        }
    }

    /// Its name; empty where nothing is grouped.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Process => "process",
            Self::Peer => "peer",
            Self::Namespace => "namespace",
        }
    }

    /// The property of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::None, Self::Process, Self::Peer, Self::Namespace].into_iter().find(|one| one.title() == name)
    }

    /// The name of a connection's group.
    pub(crate) fn name_of(self, one: &ConnectionView) -> String {
        match self {
            Self::None => String::new(),
            Self::Process => one.process.clone().unwrap_or_else(|| "-".to_owned()),
            Self::Peer => one.peer.ip().to_canonical().to_string(),
            Self::Namespace => one.netns.clone(),
        }
    }

    /// The groups of some connections: by an order that has sums, else by the rate, and names by the alphabet.
    pub(crate) fn groups<'a>(
        self,
        some: impl Iterator<Item = &'a ConnectionView>,
        order: Order,
    ) -> Vec<Group> {
        let mut members: BTreeMap<String, Vec<&ConnectionView>> = BTreeMap::new();
        for one in some {
            members.entry(self.name_of(one)).or_default().push(one);
        }
        let mut groups: Vec<Group> = members.into_iter().map(Group::of).collect();
        match order {
            Order::Memory => {
                groups.sort_by_key(|one| Reverse(one.sums.send_queued_bytes + one.sums.receive_queued_bytes));
            }
            Order::Waste => groups.sort_by_key(|one| Reverse(one.sums.waste_bytes)),
            // As they come.
            Order::Process | Order::Peer => {}
            Order::Rate | Order::Rtt | Order::RttOverBase | Order::Limit => {
                groups.sort_by_key(|one| Reverse(one.rate));
            }
        }
        groups
    }
}

impl Group {
    fn of((name, members): (String, Vec<&ConnectionView>)) -> Self {
        Self {
            name,
            sums: Summary::of(members.iter().copied()),
            rate: total(members.iter().map(|one| one.goodput_bps)),
            cookies: members.iter().map(|one| one.cookie).collect(),
        }
    }

    /// The texts of its figures.
    pub(crate) fn cells(&self) -> [String; TITLES.len()] {
        let sums = &self.sums;
        let used = |held: u64, allowed: u64| format!("{}/{}", narrow(held), narrow(allowed));
        [
            sums.connections.to_string(),
            self.rate.map_or_else(|| "-".to_owned(), narrow),
            used(sums.send_queued_bytes, sums.send_allowed_bytes),
            used(sums.receive_queued_bytes, sums.receive_allowed_bytes),
            narrow(sums.waste_bytes),
        ]
    }
}

/// The sum of what is known; `None` where nothing is.
pub(crate) fn total(figures: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    figures.flatten().reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::super::state::tests::connection;
    use super::*;

    fn names(grouping: Grouping, order: Order) -> Vec<String> {
        let all = [connection(1, 5, "b"), connection(2, 9, "a"), connection(3, 6, "b")];
        grouping.groups(all.iter(), order).into_iter().map(|group| group.name).collect()
    }

    #[test]
    fn groups_have_sums_and_the_largest_comes_first() {
        assert_eq!(names(Grouping::Process, Order::Rate), ["b", "a"]);
        assert_eq!(names(Grouping::Process, Order::Process), ["a", "b"]);
        assert_eq!(names(Grouping::Process, Order::Waste), ["b", "a"]);
        assert_eq!(names(Grouping::Peer, Order::Rate), ["198.18.0.2", "198.18.0.3", "198.18.0.1"]);
        assert_eq!(names(Grouping::Namespace, Order::Memory), ["blue"]);
        let all = [connection(1, 5_000, "b"), connection(3, 6_000, "b")];
        let groups = Grouping::Process.groups(all.iter(), Order::Rate);
        assert_eq!(groups[0].cells(), ["2", "11K", "200K/8.0M", "0/262K", "7.5M"]);
        assert_eq!(groups[0].cookies, [1, 3]);
    }

    #[test]
    fn the_key_goes_round() {
        let mut grouping = Grouping::None;
        let titles: Vec<_> = (0..5)
            .map(|_| {
                grouping = grouping.next();
                grouping.title()
            })
            .collect();
        assert_eq!(titles, ["process", "peer", "namespace", "", "process"]);
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        assert_eq!(total([None, None].into_iter()), None);
        assert_eq!(total([None, Some(2), Some(3)].into_iter()), Some(5));
    }
}
