//! The last minute of each connection, in bounded memory: at most sixty samples each, and none of connections that are
//! gone.
//!
//! With a sampling interval above a second, a minute has fewer samples.

use std::collections::{HashMap, VecDeque};

use bufwise_host::view::ConnectionView;
use bufwise_units::Micros;

use super::groups::total;

/// Time for which samples are kept.
const KEPT: Micros = Micros::from_secs(60);

/// One sample of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Sample {
    /// Goodput, bit/s; `None` at the first sample.
    pub(super) rate: Option<u64>,
    /// Smoothed round-trip time, microseconds.
    pub(super) rtt: Option<u32>,
}

/// The samples of every present connection, oldest first.
#[derive(Debug)]
pub(crate) struct Histories<S> {
    samples: usize,
    by_cookie: HashMap<u64, Minute<S>>,
    /// Number of the last round of samples.
    round: u64,
}

/// The samples of one connection.
#[derive(Debug)]
struct Minute<S> {
    samples: VecDeque<S>,
    /// Number of the last round that saw the connection.
    round: u64,
}

impl<S: for<'a> From<&'a ConnectionView>> Histories<S> {
    /// Returns an empty history.
    pub(crate) fn new() -> Self {
        Self { samples: 1, by_cookie: HashMap::new(), round: 0 }
    }

    /// Adds a sample of all connections; the next one follows after `interval`. Connections that are gone are
    /// forgotten.
    pub(crate) fn add(&mut self, connections: &[ConnectionView], interval: Micros) {
        let samples = usize::try_from(KEPT.0 / interval.0.max(1)).unwrap_or(usize::MAX);
        self.samples = samples.clamp(1, 60);
        self.round += 1;
        for one in connections {
            let new = || Minute { samples: VecDeque::new(), round: 0 };
            let minute = self.by_cookie.entry(one.cookie).or_insert_with(new);
            minute.round = self.round;
            minute.samples.push_back(S::from(one));
            let beyond = minute.samples.len().saturating_sub(self.samples);
            minute.samples.drain(..beyond);
        }
        self.by_cookie.retain(|_, minute| minute.round == self.round);
    }

    /// Returns the largest number of samples of a connection, which is a minute.
    pub(crate) fn samples(&self) -> usize {
        self.samples
    }

    /// Returns one value of a connection's samples, newest first.
    pub(crate) fn of(&self, cookie: u64, figure: impl Fn(&S) -> Option<u64>) -> Vec<Option<u64>> {
        self.newest_first(cookie).map(figure).collect()
    }

    /// Returns the sums over some connections, newest first.
    pub(crate) fn sum(&self, cookies: &[u64], figure: impl Fn(&S) -> Option<u64> + Copy) -> Vec<Option<u64>> {
        let mut sums: Vec<Option<u64>> = Vec::new();
        for cookie in cookies {
            for (place, sample) in self.newest_first(*cookie).enumerate() {
                if place == sums.len() {
                    sums.push(None);
                }
                sums[place] = total([sums[place], figure(sample)].into_iter());
            }
        }
        sums
    }

    fn newest_first(&self, cookie: u64) -> impl Iterator<Item = &S> {
        self.by_cookie.get(&cookie).into_iter().flat_map(|minute| minute.samples.iter().rev())
    }
}

impl From<&ConnectionView> for Sample {
    fn from(one: &ConnectionView) -> Self {
        let rtt = one.srtt_s.map(|seconds| (seconds * 1e6).round() as u32);
        Self { rate: one.goodput_bps, rtt }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ls::tests::connection_view;

    fn rates(histories: &Histories<Sample>, cookie: u64) -> Vec<Option<u64>> {
        histories.of(cookie, |sample| sample.rate)
    }

    #[test]
    fn a_minute_is_kept_and_the_dead_are_forgotten() {
        let mut histories = Histories::new();
        let second = Micros::from_secs(1);
        let with_rate = |cookie, rate| ConnectionView { cookie, goodput_bps: rate, ..connection_view() };
        histories.add(&[with_rate(1, None), with_rate(2, Some(7))], second);
        assert_eq!((rates(&histories, 1), rates(&histories, 2)), (vec![None], vec![Some(7)]));
        for rate in 0..100 {
            histories.add(&[with_rate(1, Some(rate))], second);
        }
        let kept = rates(&histories, 1);
        assert_eq!((kept.len(), kept[0], kept[59]), (60, Some(99), Some(40)));
        assert_eq!((rates(&histories, 2), histories.by_cookie.len()), (vec![], 1));
    }

    #[test]
    fn longer_intervals_need_fewer_samples_for_the_same_minute() {
        let mut histories = Histories::<Sample>::new();
        (0..50).for_each(|_| histories.add(&[connection_view()], Micros::from_secs(1)));
        assert_eq!(rates(&histories, 1).len(), 50);
        histories.add(&[connection_view()], Micros::from_secs(20));
        assert_eq!(rates(&histories, 1).len(), 3);
        assert_eq!(histories.of(1, |sample| sample.rtt.map(u64::from))[0], Some(50_000));
    }

    #[test]
    fn a_round_trip_has_the_microseconds_that_the_kernel_told() {
        for micros in [1_u32, 249, 1_001, 50_000] {
            let srtt_s = Some(Micros(micros.into()).as_secs_f64());
            assert_eq!(Sample::from(&ConnectionView { srtt_s, ..connection_view() }).rtt, Some(micros));
        }
    }
}
