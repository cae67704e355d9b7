//! Sums over connections that share a property, and the bounded number of groups that are kept.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::hash::Hash;

use serde::{Deserialize, Serialize};

use crate::judge::Cause;

/// Name of the sum of all further groups.
const OTHERS: &str = "others";

/// Sums over some connections of a moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sums {
    /// The peers' prefix, as `198.18.0.0/24`, or the cgroup's path; `others` for all further ones; empty for the sum
    /// of all.
    pub name: String,
    /// Number of connections.
    pub connections: u64,
    /// Payload sent per second, bit/s.
    pub send_bps: u64,
    /// Payload received per second, bit/s.
    pub receive_bps: u64,
    /// Content of their queues, bytes of memory.
    pub held_bytes: u64,
    /// Sum of their buffers' limits, bytes of memory.
    pub allowed_bytes: u64,
    /// Segments retransmitted since the previous moment.
    #[serde(rename = "repeated")]
    pub retransmitted: u64,
    /// Mean smoothed round-trip time of the connections that moved data, seconds.
    pub srtt_s: Option<f64>,
    /// Mean of the smallest round-trip times of the same connections, seconds.
    pub min_rtt_s: Option<f64>,
    /// Cause that held back the most data.
    pub limited_by: Option<Cause>,
}

impl Sums {
    /// Returns the payload per second in both directions, bit/s.
    #[must_use]
    pub fn rate(&self) -> u64 {
        self.send_bps.saturating_add(self.receive_bps)
    }
}

/// One connection's part of a sum.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Figures {
    /// Payload per second, bit/s.
    pub(super) send_bps: u64,
    pub(super) receive_bps: u64,
    /// Memory in bytes: content of the queues, and sum of the limits.
    pub(super) held: u64,
    pub(super) allowed: u64,
    pub(super) retransmitted: u64,
    /// Smoothed and smallest round-trip time, if data moved, microseconds.
    pub(super) round_trip: Option<(u64, u64)>,
    pub(super) cause: Option<Cause>,
}

impl Figures {
    /// Returns the payload per second both ways, bit/s.
    pub(super) fn rate(&self) -> u64 {
        self.send_bps.saturating_add(self.receive_bps)
    }
}

/// A sum while it is added up.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sum {
    connections: u64,
    send_bps: u64,
    receive_bps: u64,
    held: u64,
    allowed: u64,
    retransmitted: u64,
    /// Number of connections with round trips, and sums of their smoothed and smallest times, microseconds.
    round_trips: (u64, u64, u64),
    /// Bytes that moved, by cause.
    by_cause: [u64; Cause::ALL.len()],
}

impl Sum {
    pub(super) fn add(&mut self, one: &Figures) {
        self.merge(&Self {
            connections: 1,
            send_bps: one.send_bps,
            receive_bps: one.receive_bps,
            held: one.held,
            allowed: one.allowed,
            retransmitted: one.retransmitted,
            round_trips: one.round_trip.map_or((0, 0, 0), |(now, least)| (1, now, least)),
            by_cause: Cause::ALL.map(|cause| if one.cause == Some(cause) { one.rate() } else { 0 }),
        });
    }

    fn merge(&mut self, other: &Self) {
        self.connections += other.connections;
        self.send_bps = self.send_bps.saturating_add(other.send_bps);
        self.receive_bps = self.receive_bps.saturating_add(other.receive_bps);
        self.held += other.held;
        self.allowed += other.allowed;
        self.retransmitted += other.retransmitted;
        let (number, times, least_times) = other.round_trips;
        self.round_trips.0 += number;
        self.round_trips.1 += times;
        self.round_trips.2 += least_times;
        self.by_cause.iter_mut().zip(other.by_cause).for_each(|(sum, one)| *sum = sum.saturating_add(one));
    }

    fn rate(&self) -> u64 {
        self.send_bps.saturating_add(self.receive_bps)
    }

    pub(super) fn named(&self, name: String) -> Sums {
        let (number, times, least_times) = self.round_trips;
        let mean = |sum: u64| (number > 0).then(|| sum as f64 / number as f64 / 1e6);
        let most = self.by_cause.iter().zip(Cause::ALL).max_by_key(|(moved, _)| **moved);
        Sums {
            name,
            connections: self.connections,
            send_bps: self.send_bps,
            receive_bps: self.receive_bps,
            held_bytes: self.held,
            allowed_bytes: self.allowed,
            retransmitted: self.retransmitted,
            srtt_s: mean(times),
            min_rtt_s: mean(least_times),
            limited_by: most.filter(|(moved, _)| **moved > 0).map(|(_, cause)| cause),
        }
    }
}

/// Sums by group.
#[derive(Debug)]
pub(super) struct Groups<K>(HashMap<K, Sum>);

impl<K> Default for Groups<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash + Ord + Copy> Groups<K> {
    pub(super) fn add(&mut self, group: K, one: &Figures) {
        self.0.entry(group).or_default().add(one);
    }

    /// Returns the largest groups by rate, then by memory, and the sum of all others: at most `most` in all.
    pub(super) fn largest(self, most: usize, mut name: impl FnMut(K) -> String) -> Vec<Sums> {
        let mut all: Vec<(K, Sum)> = self.0.into_iter().collect();
        // Ties have an order that does not change from moment to moment.
        all.sort_by_key(|(key, sum)| (Reverse((sum.rate(), sum.held, sum.connections)), *key));
        let kept = if all.len() > most { most - 1 } else { all.len() };
        let rest = all.split_off(kept);
        let mut sums = Vec::with_capacity(kept + usize::from(!rest.is_empty()));
        sums.extend(all.into_iter().map(|(key, sum)| sum.named(name(key))));
        if !rest.is_empty() {
            let mut others = Sum::default();
            rest.iter().for_each(|(_, sum)| others.merge(sum));
            sums.push(others.named(OTHERS.to_owned()));
        }
        sums
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn figures(rate: u64, cause: Cause) -> Figures {
        Figures { send_bps: rate, held: 1, retransmitted: 2, cause: Some(cause), ..Figures::default() }
    }

    #[test]
    fn the_cause_of_a_sum_is_that_of_most_of_its_data() {
        let mut sum = Sum::default();
        assert_eq!(sum.named(String::new()).limited_by, None);
        sum.add(&figures(0, Cause::Reader));
        assert_eq!(sum.named(String::new()).limited_by, None, "nothing moved");
        for _ in 0..9 {
            sum.add(&figures(10, Cause::Application));
        }
        sum.add(&Figures { round_trip: Some((50_000, 40_000)), ..figures(91, Cause::CongestionWindow) });
        let sums = sum.named("x".to_owned());
        assert_eq!((sums.limited_by, sums.rate()), (Some(Cause::CongestionWindow), 181));
        assert_eq!((sums.srtt_s, sums.min_rtt_s), (Some(0.050), Some(0.040)));
        assert_eq!((sums.connections, sums.held_bytes, sums.retransmitted), (11, 11, 22));
    }

    proptest! {
        #[test]
        fn groups_are_bounded_and_add_up_to_the_whole(
            parts in prop::collection::vec((0..200_u32, 0..1_000_000_u64), 0..300),
            most in 1..80_usize,
        ) {
            let (mut groups, mut whole) = (Groups::default(), Sum::default());
            for (group, rate) in &parts {
                let one = figures(*rate, Cause::Path);
                groups.add(*group, &one);
                whole.add(&one);
            }
            let whole = whole.named(String::new());
            let sums = groups.largest(most, |group| group.to_string());
            prop_assert!(sums.len() <= most);
            let add = |figure: fn(&Sums) -> u64| sums.iter().map(figure).sum::<u64>();
            prop_assert_eq!(add(|one| one.connections), whole.connections);
            prop_assert_eq!(add(Sums::rate), whole.rate());
            prop_assert_eq!(add(|one| one.held_bytes), whole.held_bytes);
            prop_assert_eq!(add(|one| one.retransmitted), whole.retransmitted);
            let named: Vec<_> = sums.iter().filter(|one| one.name != OTHERS).collect();
            prop_assert!(named.is_sorted_by_key(|one| Reverse(one.rate())));
        }
    }
}
