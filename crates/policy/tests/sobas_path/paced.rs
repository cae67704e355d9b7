//! SOBAS with pacing of the sender.

use bufwise_policy::sobas::{Config, State};

use crate::model::{Path, run};
use crate::{DEEP, SHALLOW};

fn paced() -> Config {
    Config { pacing: true, ..Config::default() }
}

/// Returns paths with the disturbances of two noisy virtual machines, one at a time and all at once.
fn disturbed(path: Path) -> [(&'static str, Path); 6] {
    let path = Path { sample_ms: 2.0, ..path };
    [
        ("undisturbed", path),
        ("late by 1 ms", Path { jitter_ms: 1.0, ..path }),
        ("RTT off by 1 ms", Path { rtt_error_ms: 1.0, ..path }),
        ("R off by 3%", Path { count_error: 0.03, ..path }),
        ("pauses of 5 ms", Path { pause_ms: 5.0, ..path }),
        ("all of it", Path { jitter_ms: 1.0, rtt_error_ms: 1.0, count_error: 0.03, pause_ms: 5.0, ..path }),
    ]
}

/// Least goodput, as a part of the capacity: 95.0 of 95.6 Mbit/s; a little less with all disturbances at once.
fn floor(how: &str) -> f64 {
    if how == "all of it" { 0.99 } else { 0.993 }
}

#[test]
fn paced_fills_a_shallow_path_without_a_drop() {
    for estimate in [0.25, 0.7, 0.9, 0.97, 1.0, 1.02] {
        for (how, path) in disturbed(Path { estimate, ..SHALLOW }) {
            let outcome = run(paced(), path, 20);
            assert_eq!(
                (outcome.state, outcome.drops),
                (State::Final, (0, 0)),
                "{how}, {estimate}: {outcome:?}"
            );
            assert!(outcome.used > floor(how), "{how}, {estimate}: {outcome:?}");
            // The rate leaves no queue, except for a millisecond because of late samples.
            assert!(outcome.mean_rtt_ms < 41.0, "{how}, {estimate}: {outcome:?}");
            // The window is 1.07 BDPs by the measured rate, and four segments: it must neither limit the flow nor let a
            // queue of an eighth of the BDP overflow.
            assert!((0.99..1.11).contains(&outcome.window), "{how}, {estimate}: {outcome:?}");
            assert!(outcome.lowest_pacing > 0.9 || estimate < 0.5, "{how}, {estimate}: {outcome:?}");
        }
    }
}

#[test]
fn paced_keeps_a_deep_queue_empty() {
    for estimate in [0.25, 0.7, 0.9, 1.0, 1.1, 1.3, 1.5] {
        for (how, path) in disturbed(Path { estimate, ..DEEP }) {
            let outcome = run(paced(), path, 20);
            assert_eq!(
                (outcome.state, outcome.drops),
                (State::Final, (0, 0)),
                "{how}, {estimate}: {outcome:?}"
            );
            assert!(outcome.used > floor(how), "{how}, {estimate}: {outcome:?}");
            // All disturbances at once leave 2.4 ms.
            assert!(outcome.mean_rtt_ms < 53.0, "{how}, {estimate}: {outcome:?}");
            assert!((1.05..1.11).contains(&outcome.window), "{how}, {estimate}: {outcome:?}");
        }
    }
}

#[test]
fn paced_survives_an_estimate_that_is_too_high() {
    // The window by such an estimate overflows the queue by itself, and the sender needs time to recover.
    for estimate in [1.05, 1.1, 1.2, 1.3, 1.5, 3.0] {
        for (how, path) in disturbed(Path { estimate, ..SHALLOW }) {
            let outcome = run(paced(), path, 30);
            assert!(outcome.drops.1 <= 2, "{how}, {estimate}: {outcome:?}");
            assert!(outcome.mean_rtt_ms < 41.5, "{how}, {estimate}: {outcome:?}");
            // Each later drop halves the window once more, which costs 4% of the second half of the run.
            let floor = 0.99 - 0.04 * f64::from(outcome.drops.1);
            assert!(outcome.used > floor, "{how}, {estimate}: {outcome:?}");
        }
    }
}

#[test]
fn paced_loses_nothing_over_a_long_transfer() {
    // Ten minutes show the cost of creeping up, and any drift.
    for (how, path) in disturbed(SHALLOW) {
        let outcome = run(paced(), path, 600);
        assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{how}: {outcome:?}");
        assert!(outcome.used > floor(how) && outcome.mean_rtt_ms < 41.0, "{how}: {outcome:?}");
        assert!(outcome.lowest_pacing > 0.9, "{how}: {outcome:?}");
    }
}

#[test]
fn paced_believes_a_path_that_becomes_longer() {
    for (how, path) in disturbed(Path { longer: Some((5.0, 40.0)), ..Path::new(100.0, 40.0, 10.0) }) {
        let outcome = run(paced(), path, 40);
        assert_eq!(outcome.drops.1, 0, "{how}: {outcome:?}");
        assert!(outcome.used > 0.99 && outcome.mean_rtt_ms < 81.0, "{how}: {outcome:?}");
    }
}

#[test]
fn paced_waits_for_a_sender_that_left_slow_start_early() {
    let outcome = run(paced(), Path { ssthresh: 0.6, ..SHALLOW }, 30);
    assert_eq!(outcome.drops, (0, 0), "{outcome:?}");
    assert!(outcome.used > 0.99, "{outcome:?}");
}

#[test]
fn paced_follows_a_path_that_loses_half_its_rate() {
    let outcome = run(paced(), Path { change: Some((4.0, 0.5)), ..DEEP }, 20);
    assert!(outcome.used > 0.99 && outcome.mean_rtt_ms < 51.5, "{outcome:?}");
}

#[test]
fn paced_and_continuous_follows_a_path_that_doubles_its_rate() {
    let config = Config { continuous: true, ..paced() };
    let outcome = run(config, Path { change: Some((4.0, 2.0)), ..DEEP }, 40);
    assert!(outcome.used > 0.99 && outcome.mean_rtt_ms < 51.5, "{outcome:?}");
    // 1.07 of the new BDP, which is two of the old, and four segments.
    assert!((2.1..2.25).contains(&outcome.window), "{outcome:?}");
}

#[test]
fn paced_suits_fast_short_and_slow_long_paths() {
    for path in [Path::new(1_000.0, 20.0, 5.0), Path::new(10.0, 200.0, 50.0), Path::new(2.0, 60.0, 60.0)] {
        for (how, path) in disturbed(path) {
            let outcome = run(paced(), path, 40);
            assert_eq!(outcome.drops.1, 0, "{how}, {} Mbit/s: {outcome:?}", path.mbit);
            assert!(outcome.used > 0.98, "{how}, {} Mbit/s: {outcome:?}", path.mbit);
        }
    }
}

#[test]
fn paced_does_not_drop_forever_on_a_queue_smaller_than_its_slack() {
    let outcome = run(paced(), Path::new(100.0, 40.0, 2.5), 120);
    // After each step that causes a drop, the next waits longer, 5 s, 10, 20, 40 and 80: five steps fit into two
    // minutes.
    assert!(outcome.drops.1 <= 5, "each step that drops waits longer: {outcome:?}");
}
