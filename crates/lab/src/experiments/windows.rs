//! Windows and flights over time, from the connections' samples on the sending side.

use std::collections::HashMap;

use super::reading::{Key, key, mean, quantile, starts};
use crate::sampler::ConnectionSample;

/// Seconds after a connection's start from which slow start is over.
const GROWN: f64 = 2.0;
/// Seconds after a connection's start from which flights say more about windows than about slow start.
const STARTED: f64 = 1.0;
/// Bytes of memory per byte of payload in a full segment (`SKB_TRUESIZE` of 1,448 bytes, rounded).
const MEMORY_OF_PAYLOAD: f64 = 1.25;

/// Returns the samples from `after` seconds after their connections' starts on.
fn since<'a>(data: &'a [&'a ConnectionSample], after: f64) -> impl Iterator<Item = &'a ConnectionSample> {
    let began = starts(data);
    let late = move |sample: &&ConnectionSample| {
        began.get(&key(sample)).is_some_and(|began| sample.t >= began + after)
    };
    data.iter().copied().filter(late)
}

/// Returns a quantile, over the settled samples, of this ratio: the payload for which the send buffer has room, divided by the
/// congestion window.
pub(super) fn of_buffer(data: &[&ConnectionSample], share: f64) -> Option<f64> {
    let room = |sample: &ConnectionSample| f64::from(sample.sndbuf) / MEMORY_OF_PAYLOAD;
    let windows = since(data, GROWN).map(|sample| room(sample) / sample.cwnd_bytes.max(1) as f64);
    quantile(windows.collect(), share)
}

pub(super) fn mean_flight(data: &[&ConnectionSample]) -> Option<f64> {
    mean(since(data, STARTED).map(|sample| sample.flight_bytes as f64))
}

/// Returns the median, over the samples after the start, of this ratio: the receiver's window, divided by the connection's
/// largest flight so far.
pub(super) fn per_flight(data: &[&ConnectionSample]) -> Option<f64> {
    let began = starts(data);
    let mut largest: HashMap<Key, u64> = HashMap::new();
    let mut over = Vec::new();
    for sample in data {
        let most = largest.entry(key(sample)).or_default();
        *most = sample.flight_bytes.max(*most);
        let started = began.get(&key(sample)).is_some_and(|began| sample.t >= began + STARTED);
        if started && *most > 0 {
            over.push(f64::from(sample.snd_wnd) / *most as f64);
        }
    }
    quantile(over, 0.5)
}

pub(super) fn peak(data: &[&ConnectionSample]) -> Option<f64> {
    data.iter().map(|sample| f64::from(sample.snd_wnd)).reduce(f64::max)
}

#[cfg(test)]
mod tests {
    use super::super::reading::tests::sample;
    use super::*;

    /// Samples every half second with the given send buffer, congestion window, flight and advertised window.
    fn data(windows: &[(u32, u64, u64, u32)]) -> Vec<ConnectionSample> {
        let one = |(step, (sndbuf, cwnd_bytes, flight_bytes, snd_wnd)): (usize, &(u32, u64, u64, u32))| {
            let (t, bytes) = (step as f64 / 2.0, (step as u64 + 1) * 1_000);
            ConnectionSample {
                sndbuf: *sndbuf,
                cwnd_bytes: *cwnd_bytes,
                flight_bytes: *flight_bytes,
                snd_wnd: *snd_wnd,
                ..sample(t, 1, 0, bytes, 20)
            }
        };
        windows.iter().enumerate().map(one).collect()
    }

    #[test]
    fn the_buffers_windows_are_payload_and_of_the_time_after_slow_start() {
        // Slow start for two seconds, then buffers of 2, 3 and 4 windows of payload.
        let start = (1_250, 10_000, 0, 0);
        let late = [(2_500, 1_000, 0, 0), (3_750, 1_000, 0, 0), (5_000, 1_000, 0, 0)];
        let samples = data(&[[start; 4].as_slice(), late.as_slice()].concat());
        let data: Vec<_> = samples.iter().collect();
        assert_eq!(of_buffer(&data, 0.05), Some(2.0));
        assert_eq!(of_buffer(&data, 0.5), Some(3.0));
        assert_eq!(of_buffer(&data, 0.95), Some(4.0));
        assert_eq!(of_buffer(&data[..4], 0.5), None);
    }

    #[test]
    fn a_window_is_held_against_the_largest_flight_so_far() {
        let samples = data(&[(0, 0, 10, 90), (0, 0, 40, 90), (0, 0, 20, 80), (0, 0, 30, 80)]);
        let data: Vec<_> = samples.iter().collect();
        assert_eq!(per_flight(&data), Some(2.0));
        assert_eq!(mean_flight(&data), Some(25.0));
        assert_eq!(peak(&data), Some(90.0));
        assert_eq!((per_flight(&[]), mean_flight(&[]), peak(&[])), (None, None, None));
    }
}
