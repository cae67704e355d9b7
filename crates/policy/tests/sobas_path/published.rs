//! SOBAS without pacing: the transitions of Prasad 2004 with our conditions on a flat rate, and as published.

use bufwise_policy::sobas::{Config, State};

use crate::model::{MSS, Path, run};
use crate::{DEEP, SHALLOW};

fn unpaced() -> Config {
    Config::default()
}

#[test]
fn unpaced_with_a_good_estimate_fills_a_deep_path_without_loss() {
    let outcome = run(unpaced(), DEEP, 10);
    assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{outcome:?}");
    // S starts at 1.2 BDPs: the queue holds a fifth of the BDP, and the bytes between two samples.
    assert!(outcome.used > 0.99 && (59.0..62.0).contains(&outcome.mean_rtt_ms), "{outcome:?}");
}

#[test]
fn unpaced_grows_out_of_an_estimate_that_is_four_times_too_low() {
    let outcome = run(unpaced(), Path { estimate: 0.25, ..DEEP }, 40);
    assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{outcome:?}");
    // The window grows by a few segments at a time, and stops at the first growth that the rate does not follow.
    assert!(outcome.used > 0.99 && outcome.mean_rtt_ms < 52.0, "{outcome:?}");
}

#[test]
fn unpaced_overflows_a_shallow_queue_and_says_so() {
    // The queue holds an eighth of the BDP; the first limit alone exceeds that (Prasad 2004, equation 16).
    let outcome = run(unpaced(), SHALLOW, 10);
    assert!(outcome.drops.0 > 0, "{outcome:?}");
    assert_eq!(outcome.drops.1, 0, "no loss after the decision: {outcome:?}");
}

#[test]
fn unpaced_recovers_from_that_however_it_looks() {
    for sample_ms in [1.0, 2.0, 5.0] {
        for jitter_ms in [0.0, 0.5, 1.0] {
            let outcome = run(unpaced(), Path { sample_ms, jitter_ms, ..SHALLOW }, 60);
            assert_eq!((outcome.state, outcome.drops.1), (State::Final, 0), "{outcome:?}");
            assert!(outcome.used > 0.99, "{sample_ms} ms, {jitter_ms} ms late: {outcome:?}");
        }
    }
}

/// A grid: 10, 100 and 1,000 Mbit/s; 10, 40 and 100 ms; queues of BDP/8, BDP and 4 BDP; close samples, and samples of a
/// late host. Prints each outcome (`--nocapture`).
#[test]
fn unpaced_decides_on_a_full_path_and_on_no_other() {
    println!("Mbit/s  RTT ms  queue  sample ms  late ms  state          S / BDP  used  slow start");
    for (mbit, rtt_ms, queue) in grid() {
        for (sample_ms, jitter_ms) in [(1.0, 0.0), (2.0, 0.5), (5.0, 0.5)] {
            let path = Path { sample_ms, jitter_ms, ..Path::new(mbit, rtt_ms, rtt_ms * queue) };
            let outcome = run(unpaced(), path, 30);
            let cut = if outcome.slow_start_cut { "cut by loss" } else { "" };
            println!(
                "{mbit:>6} {rtt_ms:>7} {queue:>6} {sample_ms:>10} {jitter_ms:>8}  {:<13} {:>8.2} {:>5.2}  {cut}",
                format!("{:?}", outcome.state),
                outcome.window,
                outcome.used,
            );
            if outcome.state == State::Final {
                // A BDP of eight segments is coarse: recovery may end a segment and a half below it. Without a loss, S
                // is 1.2 BDPs, its initial value, and at most a dozen segments that slow start adds until it is
                // detected.
                let least = if outcome.slow_start_cut { 0.8 } else { 1.04 };
                let most = 1.21 + 12.0 * MSS / path.bdp();
                assert!((least..most).contains(&outcome.window), "{path:?}: {outcome:?}");
                assert!(outcome.used > 0.8, "{path:?}: {outcome:?}");
            } else {
                assert!(outcome.slow_start_cut, "only recovery takes its time: {path:?}: {outcome:?}");
                assert!(outcome.window > 1.19, "the limit waits: {path:?}: {outcome:?}");
            }
            if !outcome.slow_start_cut {
                assert!(outcome.used > 0.99, "{path:?}: {outcome:?}");
            }
        }
    }
}

/// The paper's rule decides on the same paths, but after a loss in slow start wherever two rates are equal by chance.
#[test]
fn as_published_a_loss_in_slow_start_may_leave_a_part_of_the_path() {
    let outcome = run(Config::published(), DEEP, 10);
    assert_eq!((outcome.state, outcome.drops), (State::Final, (0, 0)), "{outcome:?}");
    assert!(outcome.used > 0.99 && outcome.mean_rtt_ms < 63.0, "{outcome:?}");
    let windows = grid().map(|(mbit, rtt_ms, queue)| {
        let path = Path { sample_ms: 2.0, jitter_ms: 0.5, ..Path::new(mbit, rtt_ms, rtt_ms * queue) };
        let outcome = run(Config::published(), path, 30);
        assert!(outcome.slow_start_cut || outcome.used > 0.99, "{path:?}: {outcome:?}");
        if outcome.state == State::Final { outcome.window } else { f64::INFINITY }
    });
    let least = windows.fold(f64::INFINITY, f64::min);
    assert!(least < 0.6, "the decision that comes earliest: {least} of the product");
}

fn grid() -> impl Iterator<Item = (f64, f64, f64)> {
    let paths = [10.0, 100.0, 1_000.0].into_iter();
    let paths = paths.flat_map(|mbit| [10.0, 40.0, 100.0].map(|rtt_ms| (mbit, rtt_ms)));
    paths.flat_map(|(mbit, rtt_ms)| [0.125, 1.0, 4.0].map(|queue| (mbit, rtt_ms, queue)))
}
