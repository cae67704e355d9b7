//! What many connections add up to: a server's tens of thousands are read as totals, percentiles and groups.

use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;

use bufwise_bpf::FlowState;
use bufwise_host::judge::Limited;
use serde::Serialize;

use super::history::Histories;
use crate::figures::{rate, size, time};

/// Groups that are told; the rest is one figure.
const GROUPS: usize = 20;
/// Groups shown to people.
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
    /// Of those that have one.
    srtt_s: Percentiles,
    /// Shares of the time of all of them together.
    limited_by: Option<Limited>,
    /// By peer and port (the lower one of both ends': the service's), those with most connections first.
    groups: Vec<Group>,
    /// Groups beyond those.
    more_groups: u64,
}

/// The values that half, nine tenths and 99 hundredths of the connections do not exceed.
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

impl Totals {
    pub(super) fn of(histories: &Histories) -> Self {
        let all = histories.all.values();
        let flows = || all.clone().map(|history| &history.last);
        let sum = |figure: fn(&FlowState) -> u64| flows().map(figure).sum();
        let lasted = |flow: &FlowState| flow.seen_at.since(flow.opened_at).as_secs_f64();
        let moved =
            |flow: &FlowState| flow.sample.bytes_acked.0.max(flow.sample.bytes_received.0) as f64 * 8.0;
        let srtt = flows().map(|flow| flow.sample.srtt.as_secs_f64()).filter(|srtt| *srtt > 0.0);
        let mut groups = groups(flows());
        let more_groups = groups.len().saturating_sub(GROUPS) as u64;
        groups.truncate(GROUPS);
        let mut spent = Limited::default();
        all.clone().for_each(|history| spent.merge(&history.spent));
        Self {
            connections: all.len() as u64,
            bytes_acked: sum(|flow| flow.sample.bytes_acked.0),
            bytes_received: sum(|flow| flow.sample.bytes_received.0),
            segments_out: sum(|flow| flow.sample.segs_out),
            retransmits: sum(|flow| flow.sample.segs_lost),
            seconds: Percentiles::of(flows().map(lasted)),
            goodput_bps: Percentiles::of(
                flows().filter(|flow| lasted(flow) > 0.0).map(|flow| moved(flow) / lasted(flow)),
            ),
            srtt_s: Percentiles::of(srtt),
            limited_by: spent.shares(),
            groups,
            more_groups,
        }
    }
}

impl Percentiles {
    fn of(values: impl Iterator<Item = f64>) -> Self {
        let mut values: Vec<f64> = values.collect();
        values.sort_by(f64::total_cmp);
        // The nearest rank: the smallest value that so many do not exceed.
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

fn groups<'a>(flows: impl Iterator<Item = &'a FlowState>) -> Vec<Group> {
    let mut groups: HashMap<(IpAddr, u16), Group> = HashMap::new();
    for flow in flows {
        let (peer, port) = (flow.peer.ip(), flow.peer.port().min(flow.local.port()));
        let new = Group { peer, port, connections: 0, bytes: 0 };
        let group = groups.entry((peer, port)).or_insert(new);
        group.connections += 1;
        group.bytes += flow.sample.bytes_acked.0 + flow.sample.bytes_received.0;
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
    use bufwise_units::{Bytes, Micros, Sample};

    fn flow(number: u64, peer: &str) -> FlowState {
        FlowState {
            cookie: number,
            local: "198.18.0.1:80".parse().unwrap(),
            peer: peer.parse().unwrap(),
            opened_at: Micros::from_secs(1),
            seen_at: Micros::from_secs(1) + Micros::from_millis(number + 1),
            sample: Sample {
                bytes_acked: Bytes(1_000),
                srtt: Micros::from_millis(10),
                segs_out: 3,
                ..Sample::default()
            },
            ..FlowState::default()
        }
    }

    fn histories(count: u64) -> Histories {
        let mut histories = Histories::default();
        let flows: Vec<FlowState> = (0..count)
            .map(|number| flow(number, &format!("198.18.0.{}:{}", 2 + number % 30, 40_000)))
            .collect();
        histories.look(&flows, &[], Micros::from_secs(9));
        histories
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
        let totals = Totals::of(&histories(38_333));
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
