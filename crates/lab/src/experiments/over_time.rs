//! A run over time, of bounded size: the page draws it, and the tables list it.
//!
//! The time is cut into steps of equal length. For each track a step has the largest value that was sampled in it, so
//! that no peak is lost; for the rate it has the mean. Time counts from the first sample of a measured connection, so
//! that runs with different methods can be compared.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::model::Way;
use super::reading::{Key, key};
use crate::path::Observed;
use crate::sampler::ConnectionSample;

/// Most steps of a run, and the shortest step in seconds: two samples of the connections.
const MOST_STEPS: usize = 400;
const SHORTEST_STEP: f64 = 0.1;

/// A value that varies during a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Track {
    /// Payload acknowledged per second, of all measured connections together, bit/s.
    RateBps,
    /// Bytes that wait before the links on the data's way, all paths together, without emulated cross traffic.
    QueueBytes,
    /// Congestion window of the connection that moved most, bytes.
    CwndBytes,
    /// Payload that it has under way: sent and not yet acknowledged, bytes.
    FlightBytes,
    /// Window that its receiver advertises, bytes.
    WindowBytes,
    /// Limits of the send buffers of the measured connections of one host together, bytes of memory.
    SendBufferBytes,
    /// Memory that their send queues hold, bytes.
    HeldBytes,
    /// Limits of the receive buffers at the other end, bytes of memory.
    ReceiveBufferBytes,
    /// Memory at that end that holds data not yet read, bytes.
    ReceiveHeldBytes,
    /// Smoothed round-trip time of the connection that moved most, s.
    RttS,
}

impl Track {
    /// All of them, in the order in which they are shown.
    pub const ALL: [Self; 10] = [
        Self::RateBps,
        Self::QueueBytes,
        Self::CwndBytes,
        Self::FlightBytes,
        Self::WindowBytes,
        Self::SendBufferBytes,
        Self::HeldBytes,
        Self::ReceiveBufferBytes,
        Self::ReceiveHeldBytes,
        Self::RttS,
    ];
}

/// A run over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OverTime {
    /// End of each step, in seconds.
    pub t_s: Vec<f64>,
    /// A value for each step; `None`: no sample in it.
    pub tracks: BTreeMap<Track, Vec<Option<f64>>>,
}

impl OverTime {
    /// Builds the run from the samples of its measured senders (`data`), of their peers, and of the links.
    pub(super) fn new(way: Way, seen: &Observed, data: &[&ConnectionSample]) -> Self {
        let times = || data.iter().map(|sample| sample.t);
        let (Some(begin), Some(end)) = (times().reduce(f64::min), times().reduce(f64::max)) else {
            return Self::default();
        };
        let mut steps = Steps::new(begin, end);
        links(&mut steps, way, seen);
        one(&mut steps, data);
        let sum = |samples: &[&ConnectionSample], value: fn(&ConnectionSample) -> u32| {
            let mut sums: BTreeMap<u64, (f64, u64)> = BTreeMap::new();
            for sample in samples {
                sums.entry(sample.t.to_bits()).or_insert((sample.t, 0)).1 += u64::from(value(sample));
            }
            sums.into_values()
        };
        let keys: BTreeSet<Key> = data.iter().map(|sample| key(sample)).collect();
        let is_peer = |sample: &&ConnectionSample| keys.contains(&(sample.peer, sample.local));
        let peers: Vec<&ConnectionSample> = seen.samples.iter().filter(is_peer).collect();
        for (track, samples, value) in [
            (Track::SendBufferBytes, data, (|sample| sample.sndbuf) as fn(&ConnectionSample) -> u32),
            (Track::HeldBytes, data, |sample| sample.wmem_queued),
            (Track::ReceiveBufferBytes, &peers, |sample| sample.rcvbuf),
            (Track::ReceiveHeldBytes, &peers, |sample| sample.rmem_alloc),
        ] {
            sum(samples, value).for_each(|(t, bytes)| steps.see(track, t, bytes as f64));
        }
        rate(&mut steps, data);
        steps.done
    }
}

/// The steps, with the values sampled in each.
struct Steps {
    begin: f64,
    length: f64,
    done: OverTime,
}

impl Steps {
    fn new(begin: f64, end: f64) -> Self {
        // Slightly longer steps, so that the last sample belongs to the last step.
        let length = ((end - begin) * 1.000_001 / MOST_STEPS as f64).max(SHORTEST_STEP);
        let count = ((end - begin) / length) as usize + 1;
        let rounded = |step: usize| ((step + 1) as f64 * length * 1e3).round() / 1e3;
        let t_s: Vec<f64> = (0..count.min(MOST_STEPS)).map(rounded).collect();
        let tracks = Track::ALL.map(|track| (track, vec![None; t_s.len()])).into();
        Self { begin, length, done: OverTime { t_s, tracks } }
    }

    fn place(&mut self, track: Track, t: f64) -> Option<&mut Option<f64>> {
        let step = ((t - self.begin) / self.length).floor();
        if step < 0.0 {
            return None;
        }
        self.done.tracks.get_mut(&track)?.get_mut(step as usize)
    }

    fn see(&mut self, track: Track, t: f64, value: f64) {
        if let Some(place) = self.place(track, t) {
            *place = Some(place.map_or(value, |before| before.max(value)));
        }
    }
}

fn links(steps: &mut Steps, way: Way, seen: &Observed) {
    // The emulator samples all links at the same moments.
    let mut queues: BTreeMap<u64, u64> = BTreeMap::new();
    for sample in seen.paths.iter().flat_map(|path| &path.link.timeline) {
        let queued = match way {
            Way::Upload => sample.a_to_b.queued_bytes,
            Way::Download => sample.b_to_a.queued_bytes,
        };
        *queues.entry(sample.wall.0).or_default() += queued;
    }
    for (wall, bytes) in queues {
        steps.see(Track::QueueBytes, wall as f64 / 1e9, bytes as f64);
    }
}

/// Adds the tracks of the connection that moved most.
fn one(steps: &mut Steps, data: &[&ConnectionSample]) {
    let Some(most) = data.iter().max_by_key(|sample| sample.bytes_acked) else { return };
    for sample in data.iter().filter(|sample| key(sample) == key(most)) {
        steps.see(Track::CwndBytes, sample.t, sample.cwnd_bytes as f64);
        steps.see(Track::FlightBytes, sample.t, sample.flight_bytes as f64);
        steps.see(Track::WindowBytes, sample.t, f64::from(sample.snd_wnd));
        steps.see(Track::RttS, sample.t, f64::from(sample.srtt_us) / 1e6);
    }
}

/// Adds the rate: from the last sample of one step to the last sample of the next step that has one.
fn rate(steps: &mut Steps, data: &[&ConnectionSample]) {
    let mut acked: HashMap<Key, u64> = HashMap::new();
    let (mut whole, mut sums): (u64, BTreeMap<usize, (f64, u64)>) = (0, BTreeMap::new());
    for sample in data {
        let before = acked.entry(key(sample)).or_default();
        whole += sample.bytes_acked.saturating_sub(*before);
        *before = sample.bytes_acked.max(*before);
        sums.insert(((sample.t - steps.begin) / steps.length) as usize, (sample.t, whole));
    }
    let sums: Vec<(f64, u64)> = sums.into_values().collect();
    for pair in sums.windows(2) {
        let (passed, bytes) = (pair[1].0 - pair[0].0, pair[1].1 - pair[0].1);
        if let Some(place) = steps.place(Track::RateBps, pair[1].0).filter(|_| passed > 0.0) {
            *place = Some((bytes as f64 * 8.0 / passed).round());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::{link, moment, sample};
    use super::*;
    use crate::commands::Outcome;
    use crate::testbed::PathReport;

    fn of(samples: Vec<ConnectionSample>) -> OverTime {
        over(samples, Vec::new())
    }

    fn over(samples: Vec<ConnectionSample>, paths: Vec<PathReport>) -> OverTime {
        let outcome = Outcome { status: 0, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
        let seen = Observed { outcome, samples, paths };
        let data: Vec<_> = seen.samples.iter().filter(|sample| sample.host == "a").collect();
        OverTime::new(Way::Upload, &seen, &data)
    }

    /// A sample every 50 ms at 8 Mbit/s, from 3 s on.
    fn steady(seconds: u32) -> Vec<ConnectionSample> {
        let one = |number: u32| {
            let moved = u64::from(number + 1) * 50_000;
            ConnectionSample {
                cwnd_bytes: 10_000,
                sndbuf: 4_000,
                ..sample(3.0 + f64::from(number) * 0.05, 1, 0, moved, 20)
            }
        };
        (0..=seconds * 20).map(one).collect()
    }

    #[test]
    fn a_run_has_at_most_so_many_steps_and_each_has_a_value() {
        for (seconds, steps) in [(2, 21), (40, 400), (400, 400)] {
            let run = of(steady(seconds));
            assert!(run.t_s.len().abs_diff(steps) <= 1 && run.t_s.len() <= MOST_STEPS, "{}", run.t_s.len());
            assert!(run.tracks.values().all(|values| values.len() == run.t_s.len()));
            assert!(run.t_s.is_sorted() && (run.t_s.last().unwrap() - f64::from(seconds)).abs() < 1.1);
            let cwnd = &run.tracks[&Track::CwndBytes];
            assert!(cwnd.iter().all(|value| *value == Some(10_000.0)), "{cwnd:?}");
            assert!(run.tracks[&Track::ReceiveHeldBytes].iter().all(Option::is_none));
        }
        assert_eq!(of(Vec::new()), OverTime::default());
    }

    #[test]
    fn the_rate_is_that_of_the_bytes_acknowledged() {
        let run = of(steady(10));
        let rates: Vec<f64> = run.tracks[&Track::RateBps].iter().flatten().copied().collect();
        assert!(rates.len() > 95 && rates.iter().all(|rate| (rate - 8e6).abs() < 1e3), "{rates:?}");
    }

    #[test]
    fn the_queues_of_all_links_are_summed_at_each_moment() {
        let timeline = |queued| (0..=80).map(|step| moment(step * 50, 0, 0, queued)).collect();
        let run = over(steady(1), vec![link(timeline(100)), link(timeline(20))]);
        let queues: Vec<f64> = run.tracks[&Track::QueueBytes].iter().flatten().copied().collect();
        assert!(queues.len() > 8 && queues.iter().all(|bytes| *bytes == 120.0), "{queues:?}");
    }

    #[test]
    fn a_peak_stays_and_the_memory_of_all_is_summed_up() {
        let mut samples = steady(100);
        samples[777].cwnd_bytes = 99_000;
        samples[900].flight_bytes = 88_000;
        let second =
            |first: &ConnectionSample| ConnectionSample { sndbuf: 500, ..sample(first.t, 2, 0, 5_000, 20) };
        let others: Vec<_> = samples.iter().map(second).collect();
        // The peer of the first connection.
        let peer = ConnectionSample {
            host: "b",
            local: samples[0].peer,
            peer: samples[0].local,
            rmem_alloc: 70,
            ..sample(9.0, 1, 0, 0, 20)
        };
        samples.extend(others);
        samples.push(peer);
        samples.sort_by(|one, other| one.t.total_cmp(&other.t));
        let run = of(samples);
        let most = |track| run.tracks[&track].iter().flatten().copied().fold(0.0, f64::max);
        assert_eq!(most(Track::CwndBytes), 99_000.0, "of the one that moves most");
        assert_eq!(most(Track::FlightBytes), 88_000.0);
        assert_eq!((most(Track::SendBufferBytes), most(Track::ReceiveHeldBytes)), (4_500.0, 70.0));
    }
}
