//! `fit` where TCP paces from the start: the first flight alone leaves as a burst and tells the path's capacity, and later flights
//! put nothing into the queue before they are as fast as the path.

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
    let path = Path::builder().rate(rate.parse().expect("a rate")).rtt(rtt).queue(queue.parse().expect("a queue"));
    World::new(path.build(1).expect("a path"), rtt, subject, Algorithm::Cubic, false)
        .pacing_from_start()
        .like_linux()
        .run(12)
}

#[test]
fn x() {
    for path in PATHS {
        for (name, subject) in [("k", KERNEL), ("s", FIT), ("r", FIT_WINDOW), ("b", FIT_BOTH)] {
            let run = run(path, subject);
            println!("{path:?} {name} {:.1} d{} {:.1} ms", run.mbit(), run.drops, run.rtt_ms());
        }
    }
}
