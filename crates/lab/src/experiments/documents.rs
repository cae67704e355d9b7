//! How long documents may take that a client fetches one after the other.
//!
//! Each takes at least half a second, or a round trip for its connection, one for the request, one for each doubling of the
//! window, and its bytes at half of the path's rate, because others may have the other half. It is an upper bound for
//! plans and time limits.

use crate::spec::PathSpec;

/// Returns the seconds that `count` documents of `bytes` may take over `path`, one after the other.
pub(super) fn seconds(path: &PathSpec, bytes: u64, count: u32) -> u32 {
    const LEAST: f64 = 0.5;
    /// The usual initial window (RFC 6928), bytes.
    const INITIAL_WINDOW: f64 = 14_480.0;
    let bytes = bytes as f64;
    let round_trips = 2.0 + (bytes / INITIAL_WINDOW + 1.0).log2().ceil();
    let sending = path.tight_rate().map_or(0.0, |rate| 2.0 * bytes * 8.0 / rate.0 as f64);
    let each = (round_trips * path.whole_rtt().0 as f64 / 1e9 + sending).max(LEAST);
    (f64::from(count) * each).ceil() as u32
}

#[cfg(test)]
mod tests {
    use bufwise_units::BitRate;

    use super::super::model::{Amount, Case, Flow, Method, Setup, path};
    use crate::spec::PathSpec;

    #[test]
    fn documents_have_the_time_that_their_size_takes() {
        let seconds = |bytes, mbit, rtt| {
            let amount = Amount::Documents(bytes, 20, 5);
            let case = Case {
                name: String::new(),
                paths: vec![path(mbit, rtt)],
                flows: vec![Flow { amount, ..Flow::default() }],
                memory: None,
                quick: true,
                setup: Setup::default(),
            };
            [false, true].map(|quick| case.seconds(&Method::default(), quick))
        };
        assert_eq!(seconds(30_000, 100, 100), [10, 3], "half a second each");
        // 10 MB at 8 Mbit/s take 10 s, beside others 20 s; slow start takes twelve round trips of 50 ms.
        assert_eq!(seconds(10_000_000, 8, 50), [412, 103]);
        assert!(seconds(1_000, 100, 2_000)[0] >= 20 * 2 * 2, "two round trips of 2 s");
    }

    #[test]
    fn documents_that_would_take_for_ever_have_the_longest_time() {
        let mut experiment = super::super::catalogue().remove(0);
        experiment.cases.truncate(1);
        experiment.cases[0].paths = vec![PathSpec { rate: Some(BitRate(1)), ..path(1, 20) }];
        let amount = Amount::Documents(1 << 40, 20, 5);
        experiment.cases[0].flows = vec![Flow { amount, ..Flow::default() }];
        assert_eq!(experiment.seconds(false, Some(1)), u32::MAX);
    }
}
