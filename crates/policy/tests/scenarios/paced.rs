//! `fit` where TCP paces from the start: only the first flight leaves as a burst, which shows the path's capacity. Later
//! flights put nothing into the queue until they are as fast as the path.

use bufwise_link::Path;
use bufwise_units::Nanos;

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::subject::{FIT, FIT_BOTH, FIT_WINDOW, KERNEL, Subject};
use crate::world::World;

/// Paths: rate, round trip (ms), queue.
const PATHS: [(&str, u64, &str); 8] = [
    ("100mbit", 40, "62500"),
    ("30mbit", 80, "75000"),
    ("96mbit", 20, "120000"),
    ("50mbit", 80, "125000"),
    ("100mbit", 50, "6MB"),
    ("20mbit", 40, "100000"),
    ("10mbit", 150, "bdp/4"),
    ("150mbit", 30, "bdp/8"),
];

fn run((rate, rtt_ms, queue): (&str, u64, &str), subject: Subject) -> Outcome {
    let rtt = Nanos::from_millis(rtt_ms);
    let path =
        Path::builder().rate(rate.parse().expect("a rate")).rtt(rtt).queue(queue.parse().expect("a queue"));
    World::new(path.build(1).expect("a path"), rtt, subject, Algorithm::Cubic, false)
        .pacing_from_start()
        .like_linux()
        .run(12)
}

/// Without `fit` such a start overflows all but long queues, and by more than any other start, because it goes on until two
/// BDPs are under way. With `fit` at either end, or at both, hardly anything is dropped, and the rate equals that of the
/// kernel, whose queue is full.
#[test]
fn where_tcp_paces_from_the_start_the_path_is_found_by_the_first_flight() {
    let mut drops = [0; 4];
    for path in PATHS {
        let [kernel, sender, receiver, both] =
            [KERNEL, FIT, FIT_WINDOW, FIT_BOTH].map(|subject| run(path, subject));
        for (name, own) in [("sender", &sender), ("receiver", &receiver), ("both", &both)] {
            assert!(
                own.mbit() >= 0.97 * kernel.mbit(),
                "{path:?}, {name}: {} of {}",
                own.mbit(),
                kernel.mbit()
            );
            assert!(own.rtt_ms() <= 1.08 * path.1 as f64, "{path:?}, {name}: {} ms", own.rtt_ms());
        }
        for (sum, run) in drops.iter_mut().zip([&kernel, &sender, &receiver, &both]) {
            *sum += run.drops;
        }
    }
    let [kernel, fit @ ..] = drops;
    assert!(fit.iter().all(|&drops| drops * 30 <= kernel), "{drops:?}");
}
