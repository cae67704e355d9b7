//! Groups of connections, and what they hold together.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;

use bufwise_host::address::Prefix;
use bufwise_host::view::{ConnectionView, Summary};
use clap::ValueEnum;
use serde::Serialize;

use super::Order;
use crate::figures::narrow;
use crate::terminal::{self, shortened};

/// The property that connections are grouped by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Grouping {
    /// Each connection by itself.
    #[default]
    #[value(skip)]
    None,
    /// Program that holds the connections
    Process,
    /// Address of the peer, without its port
    Peer,
    /// Network of the peer, /24 or /48
    Prefix,
    /// Container, or else cgroup, in which their sockets were made
    Cgroup,
    /// Group of the daemon
    Group,
    /// Network namespace
    Namespace,
}

/// All groupings, in the order in which the key cycles through them.
const ALL: [Grouping; 7] = [
    Grouping::None,
    Grouping::Process,
    Grouping::Peer,
    Grouping::Prefix,
    Grouping::Cgroup,
    Grouping::Group,
    Grouping::Namespace,
];
/// Widest name in a table; with the figures a line has at most 100 columns.
const NAME_WIDTH: usize = 58;

/// Titles of a group's figures, with their widths.
pub(crate) const TITLES: [(&str, usize); 5] =
    [("CONNS", 5), ("RATE", 4), ("SEND", 9), ("RECEIVE", 9), ("WASTE", 5)];

/// One group of connections.
#[derive(Debug)]
pub(crate) struct Group {
    pub(crate) name: String,
    /// Memory of its connections, summed up as in `ls`.
    sums: Summary,
    /// Present rate of all, bit/s; `None` if no rate is known.
    rate: Option<u64>,
    /// Cookies of its connections.
    pub(crate) cookies: Vec<u64>,
}

impl Grouping {
    /// Returns the grouping that the key chooses next.
    pub(crate) fn next(self) -> Self {
        let place = ALL.iter().position(|one| *one == self).unwrap_or_default();
        ALL[(place + 1) % ALL.len()]
    }

    /// Returns its name; empty if connections are not grouped.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Process => "process",
            Self::Peer => "peer",
            Self::Prefix => "prefix",
            Self::Cgroup => "cgroup",
            Self::Group => "group",
            Self::Namespace => "namespace",
        }
    }

    /// Returns the grouping of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        ALL.into_iter().find(|one| one.title() == name)
    }

    /// Returns the name of a connection's group.
    pub(crate) fn name_of(self, one: &ConnectionView) -> String {
        let or_dash = |name: &Option<String>| name.clone().unwrap_or_else(|| "-".to_owned());
        match self {
            Self::None => String::new(),
            Self::Process => or_dash(&one.process),
            Self::Peer => one.peer.ip().to_canonical().to_string(),
            Self::Prefix => Prefix::of(one.peer.ip()).to_string(),
            Self::Cgroup => one.cgroup_label().map_or_else(|| "-".to_owned(), Cow::into_owned),
            Self::Group => or_dash(&one.group),
            Self::Namespace => one.netns.clone(),
        }
    }

    /// Groups connections, sorted by [`Order::of_groups`]; names are sorted alphabetically.
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
        match order.of_groups() {
            Order::Memory => {
                groups.sort_by_key(|one| Reverse(one.sums.send_queued_bytes + one.sums.receive_queued_bytes));
            }
            Order::Waste => groups.sort_by_key(|one| Reverse(one.sums.waste_bytes)),
            // Already in order of their names.
            Order::Process | Order::Peer => {}
            _ => groups.sort_by_key(|one| Reverse(one.rate)),
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

    /// Returns the texts of its values.
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

/// The sums of a group as JSON.
#[derive(Debug, Serialize)]
struct Sums<'a> {
    name: &'a str,
    connections: u64,
    /// `null` if no rate is known.
    goodput_bps: Option<u64>,
    send_queued_bytes: u64,
    receive_queued_bytes: u64,
    send_allowed_bytes: u64,
    receive_allowed_bytes: u64,
    waste_bytes: u64,
}

/// Groups as JSON, with the property that they have in common.
#[derive(Debug, Serialize)]
pub(super) struct Document<'a> {
    grouped_by: &'static str,
    groups: Vec<Sums<'a>>,
}

impl<'a> Document<'a> {
    pub(super) fn new(grouping: Grouping, groups: &'a [Group]) -> Self {
        let sums = |group: &'a Group| Sums {
            name: &group.name,
            connections: group.sums.connections,
            goodput_bps: group.rate,
            send_queued_bytes: group.sums.send_queued_bytes,
            receive_queued_bytes: group.sums.receive_queued_bytes,
            send_allowed_bytes: group.sums.send_allowed_bytes,
            receive_allowed_bytes: group.sums.receive_allowed_bytes,
            waste_bytes: group.sums.waste_bytes,
        };
        Self { grouped_by: grouping.title(), groups: groups.iter().map(sums).collect() }
    }
}

/// Returns the lines of a table: its head, and one per group.
pub(super) fn lines(grouping: Grouping, groups: &[Group]) -> Vec<String> {
    if groups.is_empty() {
        return Vec::new();
    }
    let width = name_width(groups, grouping, NAME_WIDTH);
    let head = line(&grouping.title().to_uppercase(), TITLES.map(|(title, _)| title.to_owned()), width);
    let rows = groups.iter().map(|group| line(&group.name, group.cells(), width));
    std::iter::once(head).chain(rows).map(|line| line + "\n").collect()
}

/// Returns the width of the column of names, at most `most`.
pub(crate) fn name_width(groups: &[Group], grouping: Grouping, most: usize) -> usize {
    let names = groups.iter().map(|group| terminal::width(&group.name));
    names.chain([grouping.title().len()]).max().unwrap_or_default().min(most)
}

/// Returns a group's line: its name, shortened to `width`, and its values.
pub(crate) fn line(name: &str, cells: [String; TITLES.len()], width: usize) -> String {
    let figures = cells.into_iter().zip(TITLES).map(|(cell, (_, width))| format!("  {cell:>width$}"));
    terminal::left(&shortened(name, width), width) + &figures.collect::<String>()
}

/// Returns the sum of the known values; `None` if there are none.
pub(crate) fn total(figures: impl Iterator<Item = Option<u64>>) -> Option<u64> {
    figures.flatten().reduce(u64::saturating_add)
}

#[cfg(test)]
mod tests {
    use super::super::tests::connection_view;
    use super::*;
    use bufwise_host::containers::Container;

    fn connection(cookie: u64, rate: u64, process: &str) -> ConnectionView {
        ConnectionView {
            cookie,
            peer: format!("198.18.{}.{cookie}:443", cookie / 3).parse().unwrap(),
            goodput_bps: Some(rate),
            process: Some(process.to_owned()),
            cgroup: (cookie != 2).then(|| format!("/{process}.service")),
            group: (cookie == 2).then(|| "database".to_owned()),
            ..connection_view()
        }
    }

    fn groups(grouping: Grouping, order: Order) -> Vec<Group> {
        let all = [connection(1, 5_000, "b"), connection(2, 9_000, "a"), connection(3, 6_000, "b")];
        grouping.groups(all.iter(), order)
    }

    fn names(grouping: Grouping, order: Order) -> Vec<String> {
        groups(grouping, order).into_iter().map(|group| group.name).collect()
    }

    #[test]
    fn groups_have_sums_and_the_largest_comes_first() {
        assert_eq!(names(Grouping::Process, Order::Rate), ["b", "a"]);
        assert_eq!(names(Grouping::Process, Order::Process), ["a", "b"]);
        assert_eq!(names(Grouping::Process, Order::Waste), ["b", "a"]);
        assert_eq!(names(Grouping::Peer, Order::Rate), ["198.18.0.2", "198.18.1.3", "198.18.0.1"]);
        assert_eq!(names(Grouping::Prefix, Order::Rate), ["198.18.0.0/24", "198.18.1.0/24"]);
        assert_eq!(names(Grouping::Cgroup, Order::Rate), ["/b.service", "-"]);
        assert_eq!(names(Grouping::Group, Order::Rate), ["-", "database"]);
        assert_eq!(names(Grouping::Namespace, Order::Memory), ["blue"]);
        let groups = groups(Grouping::Process, Order::Rate);
        assert_eq!(groups[0].cells(), ["2", "11K", "200K/8.0M", "0/262K", "7.5M"]);
        assert_eq!(groups[0].cookies, [1, 3]);
    }

    #[test]
    fn the_key_goes_round_and_each_has_its_name_on_the_command_line() {
        let mut grouping = Grouping::None;
        for (place, one) in ALL.iter().enumerate() {
            assert_eq!((grouping, Grouping::named(one.title())), (*one, Some(ALL[place])));
            let value = one.to_possible_value();
            assert_eq!(value.map_or(String::new(), |value| value.get_name().to_owned()), one.title());
            grouping = grouping.next();
        }
        assert_eq!(grouping, Grouping::None);
    }

    #[test]
    fn a_table_of_groups_has_a_hundred_columns_at_most() {
        let text = lines(Grouping::Cgroup, &groups(Grouping::Cgroup, Order::Rate)).concat();
        let expected = "\
CGROUP      CONNS  RATE       SEND    RECEIVE  WASTE
/b.service      2   11K  200K/8.0M     0/262K   7.5M
-               1  9.0K  100K/4.0M     0/131K   3.8M
";
        assert_eq!(text, expected);
        let long = ConnectionView { cgroup: Some(format!("/{}", "x".repeat(200))), ..connection(1, 1, "a") };
        let long = Grouping::Cgroup.groups([&long].into_iter(), Order::Rate);
        let lines = lines(Grouping::Cgroup, &long);
        assert!(lines.iter().all(|line| line.trim_end().chars().count() <= 100), "{lines:?}");
        assert_eq!(super::lines(Grouping::Cgroup, &[]), Vec::<String>::new());
    }

    #[test]
    fn cgroups_of_one_container_are_one_group() {
        let container =
            Container { id: "a".repeat(64), runtime: Some("docker".to_owned()), ..Container::default() };
        let below = |cookie: u64| ConnectionView {
            cgroup: Some(format!("/docker/{}/{cookie}", container.id)),
            container: Some(Box::new(container.clone())),
            ..connection(cookie, 1, "a")
        };
        let groups = Grouping::Cgroup.groups([&below(1), &below(2)].into_iter(), Order::Rate);
        let [group] = &groups[..] else { panic!("{groups:?}") };
        assert_eq!((group.name.as_str(), group.cookies.len()), ("docker aaaaaaaaaaaa", 2));
    }

    #[test]
    fn json_has_the_sums() {
        let groups = groups(Grouping::Cgroup, Order::Rate);
        let document = serde_json::to_value(Document::new(Grouping::Cgroup, &groups)).unwrap();
        let expected = serde_json::json!({
            "name": "/b.service", "connections": 2, "goodput_bps": 11_000, "send_queued_bytes": 200_000,
            "receive_queued_bytes": 0, "send_allowed_bytes": 8_000_000, "receive_allowed_bytes": 262_144,
            "waste_bytes": 7_500_000,
        });
        assert_eq!((&document["grouped_by"], &document["groups"][0]), (&"cgroup".into(), &expected));
    }

    #[test]
    fn what_is_not_known_is_no_zero() {
        assert_eq!(total([None, None].into_iter()), None);
        assert_eq!(total([None, Some(2), Some(3)].into_iter()), Some(5));
    }
}
