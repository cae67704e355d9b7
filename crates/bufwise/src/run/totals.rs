//! Totals, percentiles and groups of all connections: a server has tens of thousands, too many to read one by one.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::net::IpAddr;

use bufwise_host::judge::Limited;
use bufwise_units::counted;
use serde::Serialize;

use super::history::History;
use crate::figures::{rate, size, time};

/// Groups listed in JSON; the others are only counted.
const GROUPS: usize = 20;
/// Groups shown in the text.
const GROUPS_SHOWN: usize = 5;

/// Number of groups (peer and port) kept while a command runs: when there are more than twice as many, the smallest are dropped
/// and only counted.
const GROUPS_KEPT: usize = 10_000;
/// Buckets of a [`Spread`] for each factor of two: a value is known within half a percent.
const BUCKETS: f64 = 64.0;

/// All connections of a command together.
#[derive(Debug, Serialize)]
pub(super) struct Totals {
    connections: u64,
    bytes_acked: u64,
    bytes_received: u64,
    segments_out: u64,
    retransmits: u64,
    seconds: Percentiles,
    goodput_bps: Percentiles,
    /// Smoothed round-trip times, of the connections that have one.
    srtt_s: Percentiles,
    /// Shares of the summed time of all connections.
    limited_by: Option<Limited>,
    /// Groups by peer and port (the lower port of the two ends, taken for the service's); those with most connections
    /// first.
    groups: Vec<Group>,
    /// Number of groups that are not listed.
    more_groups: u64,
}

/// The values that 50, 90 and 99 percent of the connections do not exceed, within half a percent, and the largest value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
struct Percentiles {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

/// Connections with the same peer and port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
struct Group {
    peer: IpAddr,
    port: u16,
    connections: u64,
    bytes: u64,
}

/// The figures of one connection that go into the totals.
#[derive(Clone, Copy, Debug)]
struct One {
    peer: IpAddr,
    port: u16,
    seconds: f64,
    acked: u64,
    received: u64,
    segments_out: u64,
    retransmits: u64,
    srtt_s: f64,
    goodput_bps: f64,
}

/// The sum of connections, of bounded size however many they are.
#[derive(Clone, Debug, Default)]
pub(super) struct Sum {
    connections: u64,
    acked: u64,
    received: u64,
    segments_out: u64,
    retransmits: u64,
    seconds: Spread,
    goodput_bps: Spread,
    srtt_s: Spread,
    spent: Limited,
    groups: Groups,
}

/// How often values occurred, in buckets whose width is a constant part of the value.
#[derive(Clone, Debug, Default)]
struct Spread {
    buckets: BTreeMap<i32, u64>,
    max: f64,
}

#[derive(Clone, Debug, Default)]
struct Groups {
    kept: HashMap<(IpAddr, u16), Group>,
    dropped: u64,
}

impl Sum {
    /// Returns the number of connections.
    pub(super) fn connections(&self) -> u64 {
        self.connections
    }

    pub(super) fn add(&mut self, history: &History) {
        self.add_one(&One::of(history));
        self.spent.merge(&history.spent);
    }

    fn add_one(&mut self, one: &One) {
        self.connections += 1;
        self.acked += one.acked;
        self.received += one.received;
        self.segments_out += one.segments_out;
        self.retransmits += one.retransmits;
        self.seconds.add(one.seconds);
        if one.seconds > 0.0 {
            self.goodput_bps.add(one.goodput_bps);
        }
        if one.srtt_s > 0.0 {
            self.srtt_s.add(one.srtt_s);
        }
        self.groups.add(one.peer, one.port, one.acked + one.received);
    }
}

impl One {
    fn of(history: &History) -> Self {
        let flow = &history.last;
        Self {
            peer: flow.peer.ip(),
            port: flow.peer.port().min(flow.local.port()),
            seconds: history.time().as_secs_f64(),
            acked: flow.sample.bytes_acked.0,
            received: flow.sample.bytes_received.0,
            segments_out: flow.sample.segs_out,
            retransmits: flow.sample.segs_lost,
            srtt_s: history.srtt().as_secs_f64(),
            goodput_bps: history.goodput_bps(),
        }
    }
}

impl Spread {
    fn add(&mut self, value: f64) {
        // Zero becomes the least bucket.
        let bucket = (value.log2() * BUCKETS).round() as i32;
        *self.buckets.entry(bucket).or_default() += 1;
        self.max = self.max.max(value);
    }

    /// Returns the nearest ranks: for each percentile the smallest value that this share of the values does not exceed.
    fn percentiles(&self) -> Percentiles {
        let count: u64 = self.buckets.values().sum();
        let at = |percent: u64| {
            let (rank, mut seen) = ((count * percent).div_ceil(100), 0);
            let bucket = self.buckets.iter().find(|(_, in_it)| {
                seen += **in_it;
                seen >= rank
            });
            bucket.map_or(0.0, |(bucket, _)| (f64::from(*bucket) / BUCKETS).exp2().min(self.max))
        };
        Percentiles { p50: at(50), p90: at(90), p99: at(99), max: self.max }
    }
}

impl Groups {
    fn add(&mut self, peer: IpAddr, port: u16, bytes: u64) {
        let new = Group { peer, port, connections: 0, bytes: 0 };
        let group = self.kept.entry((peer, port)).or_insert(new);
        group.connections += 1;
        group.bytes += bytes;
        if self.kept.len() > 2 * GROUPS_KEPT {
            let largest = self.largest().into_iter().take(GROUPS_KEPT);
            let largest: HashMap<_, _> = largest.map(|one| ((one.peer, one.port), one)).collect();
            self.dropped += (self.kept.len() - largest.len()) as u64;
            self.kept = largest;
        }
    }

    /// Returns the groups, those with most connections first.
    fn largest(&self) -> Vec<Group> {
        let mut groups: Vec<Group> = self.kept.values().copied().collect();
        groups.sort_by_key(|one| (std::cmp::Reverse((one.connections, one.bytes)), one.peer, one.port));
        groups
    }
}

impl From<Sum> for Totals {
    fn from(sum: Sum) -> Self {
        let mut groups = sum.groups.largest();
        let more_groups = sum.groups.dropped + groups.len().saturating_sub(GROUPS) as u64;
        groups.truncate(GROUPS);
        Self {
            connections: sum.connections,
            bytes_acked: sum.acked,
            bytes_received: sum.received,
            segments_out: sum.segments_out,
            retransmits: sum.retransmits,
            seconds: sum.seconds.percentiles(),
            goodput_bps: sum.goodput_bps.percentiles(),
            srtt_s: sum.srtt_s.percentiles(),
            limited_by: sum.spent.shares(),
            groups,
            more_groups,
        }
    }
}

impl Percentiles {
    fn shown(self, figure: impl Fn(f64) -> String) -> String {
        let Self { p50, p90, p99, max } = self;
        format!("median {}, 90% {}, 99% {}, most {}", figure(p50), figure(p90), figure(p99), figure(max))
    }
}

impl fmt::Display for Totals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "  all {}: {} sent, {} received, {} of {} segments retransmitted",
            self.connections,
            size(self.bytes_acked),
            size(self.bytes_received),
            self.retransmits,
            self.segments_out
        )?;
        writeln!(f, "    they lasted: {}", self.seconds.shown(time))?;
        writeln!(f, "    rates: {}", self.goodput_bps.shown(|bits| rate(bits as u64)))?;
        writeln!(f, "    round trips: {}", self.srtt_s.shown(time))?;
        if let Some(limited) = &self.limited_by {
            writeln!(f, "    limited by {limited}")?;
        }
        for Group { peer, port, connections, bytes } in self.groups.iter().take(GROUPS_SHOWN) {
            let connections = counted(*connections, "connection");
            writeln!(f, "    {peer}, port {port}: {connections}, {}", size(*bytes))?;
        }
        match self.more_groups + self.groups.len().saturating_sub(GROUPS_SHOWN) as u64 {
            0 => Ok(()),
            more => writeln!(f, "    {more} more peers and ports"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn one(number: u64) -> One {
        One {
            peer: format!("198.18.0.{}", 2 + number % 30).parse().unwrap(),
            port: 80,
            seconds: (number + 1) as f64 / 1e3,
            acked: 1_000,
            received: 0,
            segments_out: 3,
            retransmits: 0,
            srtt_s: 0.01,
            goodput_bps: 8e3,
        }
    }

    #[test]
    fn percentiles_are_values_that_so_many_do_not_exceed() {
        let mut spread = Spread::default();
        (1..=100).for_each(|value| spread.add(f64::from(value)));
        let Percentiles { p50, p90, p99, max } = spread.percentiles();
        for (found, exact) in [(p50, 50.0), (p90, 90.0), (p99, 99.0)] {
            assert!((found / exact - 1.0_f64).abs() < 0.006, "{found} instead of {exact}");
        }
        assert_eq!(max, 100.0);
        let mut one = Spread::default();
        one.add(7.0);
        assert_eq!(one.percentiles().max, 7.0);
        assert_eq!(Spread::default().percentiles(), Percentiles::default());
        one.add(0.0);
        assert_eq!(one.percentiles().p50, 0.0);
    }

    #[test]
    fn tens_of_thousands_are_some_lines_and_bounded_json() {
        let mut sum = Sum::default();
        (0..38_333).for_each(|number| sum.add_one(&one(number)));
        sum.spent = Limited { application: 7.0, ..Limited::default() };
        let totals = Totals::from(sum);
        let text = totals.to_string();
        assert!(text.contains("all 38333: 38.33 MB sent"), "{text}");
        assert!(text.contains("198.18.0.2, port 80: 1278 connections"), "{text}");
        assert!(text.contains("25 more peers and ports") && text.lines().count() <= 12, "{text}");
        let json = serde_json::to_value(&totals).unwrap();
        assert_eq!((&json["connections"], &json["more_groups"]), (&38_333.into(), &10.into()));
        assert_eq!(json["groups"].as_array().unwrap().len(), 20);
        assert!(json["seconds"]["p50"].as_f64() > Some(19.0), "{json}");
    }

    #[test]
    fn a_group_of_one_connection_is_told_in_the_singular() {
        let mut sum = Sum::default();
        sum.add_one(&one(0));
        let text = Totals::from(sum).to_string();
        assert!(text.contains("    198.18.0.2, port 80: 1 connection, 1000 B\n"), "{text}");
    }

    #[test]
    fn of_a_million_peers_the_busiest_are_kept() {
        let mut groups = Groups::default();
        for peer in 0..1_000_000_u32 {
            groups.add(Ipv4Addr::from(peer).into(), 80, 1);
            groups.add(Ipv4Addr::from(peer % 10).into(), 443, 1);
        }
        assert!(groups.kept.len() <= 2 * GROUPS_KEPT);
        let largest = groups.largest();
        assert!(
            largest[..10].iter().all(|one| (one.port, one.connections) == (443, 100_000)),
            "{:?}",
            &largest[..10]
        );
        assert_eq!(groups.dropped + largest.len() as u64, 1_000_010);
    }
}
