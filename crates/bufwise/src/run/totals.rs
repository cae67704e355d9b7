//! Totals, percentiles and groups of all connections: a server has tens of thousands, too many to read one by one.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use bufwise_bpf::FlowState;
use bufwise_host::judge::Limited;
use serde::Serialize;

use super::history::Histories;
use crate::figures::{rate, size, time};

/// Groups listed in JSON; the others are only counted.
const GROUPS: usize = 20;
/// Groups shown in the text.
const GROUPS_SHOWN: usize = 5;

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

/// The values that 50, 90 and 99 percent of the connections do not exceed, and the largest value.
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
}

impl Totals {
    pub(super) fn of(histories: &Histories) -> Self {
        let all: Vec<One> = histories.all.values().map(|history| One::of(&history.last)).collect();
        let mut spent = Limited::default();
        histories.all.values().for_each(|history| spent.merge(&history.spent));
        Self::sum(&all, &spent)
    }

    fn sum(all: &[One], spent: &Limited) -> Self {
        let sum = |figure: fn(&One) -> u64| all.iter().map(figure).sum();
        let lasting = all.iter().filter(|one| one.seconds > 0.0);
        let mut groups = groups(all);
        let more_groups = groups.len().saturating_sub(GROUPS) as u64;
        groups.truncate(GROUPS);
        Self {
            connections: all.len() as u64,
            bytes_acked: sum(|one| one.acked),
            bytes_received: sum(|one| one.received),
            segments_out: sum(|one| one.segments_out),
            retransmits: sum(|one| one.retransmits),
            seconds: Percentiles::of(all.iter().map(|one| one.seconds)),
            goodput_bps: Percentiles::of(
                lasting.map(|one| one.acked.max(one.received) as f64 * 8.0 / one.seconds),
            ),
            srtt_s: Percentiles::of(all.iter().map(|one| one.srtt_s).filter(|srtt| *srtt > 0.0)),
            limited_by: spent.shares(),
            groups,
            more_groups,
        }
    }
}

impl One {
    fn of(flow: &FlowState) -> Self {
        Self {
            peer: flow.peer.ip(),
            port: flow.peer.port().min(flow.local.port()),
            seconds: flow.seen_at.since(flow.opened_at).as_secs_f64(),
            acked: flow.sample.bytes_acked.0,
            received: flow.sample.bytes_received.0,
            segments_out: flow.sample.segs_out,
            retransmits: flow.sample.segs_lost,
            srtt_s: flow.sample.srtt.as_secs_f64(),
        }
    }
}

impl Percentiles {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        // The nearest rank: the smallest value that `percent` of the values do not exceed.
        let at = |percent: usize| {
            let rank = (values.len() * percent).div_ceil(100).max(1);
            values.get(rank - 1).copied().unwrap_or_default()
        };
        Self { p50: at(50), p90: at(90), p99: at(99), max: at(100) }
    }

    fn shown(self, figure: impl Fn(f64) -> String) -> String {
        let Self { p50, p90, p99, max } = self;
        format!("median {}, 90% {}, 99% {}, most {}", figure(p50), figure(p90), figure(p99), figure(max))
    }
}

fn groups(all: &[One]) -> Vec<Group> {
    let mut groups: HashMap<(IpAddr, u16), Group> = HashMap::new();
    for one in all {
        let new = Group { peer: one.peer, port: one.port, connections: 0, bytes: 0 };
        let group = groups.entry((one.peer, one.port)).or_insert(new);
        group.connections += 1;
        group.bytes += one.acked + one.received;
    }
    let mut groups: Vec<Group> = groups.into_values().collect();
    groups.sort_by_key(|one| (std::cmp::Reverse((one.connections, one.bytes)), one.peer, one.port));
    groups
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
            writeln!(f, "    {peer}, port {port}: {connections} connections, {}", size(*bytes))?;
        }
        match self.more_groups + self.groups.len().saturating_sub(GROUPS_SHOWN) as u64 {
            0 => Ok(()),
            more => writeln!(f, "    {more} more peers and ports"),
        }
    }
}

#[cfg(test)]
mod tests {
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
        }
    }

    #[test]
    fn percentiles_are_values_that_so_many_do_not_exceed() {
        let of = Percentiles::of((1..=100).map(f64::from));
        assert_eq!(of, Percentiles { p50: 50.0, p90: 90.0, p99: 99.0, max: 100.0 });
        assert_eq!(Percentiles::of([7.0].into_iter()).p50, 7.0);
        assert_eq!(Percentiles::of(std::iter::empty()), Percentiles::default());
    }

    #[test]
    fn tens_of_thousands_are_some_lines_and_bounded_json() {
        let all: Vec<One> = (0..38_333).map(one).collect();
        let totals = Totals::sum(&all, &Limited { application: 7.0, ..Limited::default() });
        let text = totals.to_string();
        assert!(text.contains("all 38333: 38.33 MB sent"), "{text}");
        assert!(text.contains("198.18.0.2, port 80: 1278 connections"), "{text}");
        assert!(text.contains("25 more peers and ports") && text.lines().count() <= 12, "{text}");
        let json = serde_json::to_value(&totals).unwrap();
        assert_eq!((&json["connections"], &json["more_groups"]), (&38_333.into(), &10.into()));
        assert_eq!(json["groups"].as_array().unwrap().len(), 20);
        assert!(json["seconds"]["p50"].as_f64() > Some(19.0), "{json}");
    }
}
