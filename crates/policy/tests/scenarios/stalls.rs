//! Hosts that stand still now and then, as busy ones do: what is under way comes to rest with them, so nothing is delivered
//! for as long, and what was held back comes at once. That is no news of the path, and none of the other end.

use bufwise_link::Path;
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::pauses::Pauses;
use crate::subject::{FIT, FIT_BOTH, FIT_WINDOW, Subject};
use crate::world::World;

const SECONDS: u64 = 15;
const SEED: u64 = 7;

/// Rates, round trips, queues; pauses: none, of 10 ms every 160, of 20 to 90 ms several times a second.
const PATHS: [(u64, u64, &str); 5] =
    [(100, 50, "6MB"), (100, 40, "62500"), (30, 80, "75000"), (200, 60, "375000"), (100, 20, "5bdp")];
type Range = (u64, u64);
/// With the share of the better single end that both have at least: 0.97 is wanted in each.
const STALLS: [(Option<(Range, Range)>, f64); 3] =
    [(None, 0.97), (Some(((10, 10), (150, 150))), 0.95), (Some(((20, 90), (100, 400))), 0.8)];

fn run(path: (u64, u64, &str), stalls: Option<(Range, Range)>, subject: Subject) -> Outcome {
    let (mbit, rtt_ms, queue) = path;
    let rtt = Nanos::from_millis(rtt_ms);
    let rate: BitRate = format!("{mbit}mbit").parse().expect("a rate");
    let path = Path::builder().rate(rate).rtt(rtt).queue(queue.parse().expect("a queue"));
    let pauses = stalls.map_or_else(Pauses::default, |(length, apart)| Pauses::drawn(SEED, length, apart));
    World::new(path.build(1).expect("a path"), rtt, subject, Algorithm::Cubic, false)
        .pausing(pauses.clone(), pauses)
        .run(SECONDS)
}

/// Neither end takes the other's answer to a pause for the path's.
#[test]
fn both_ends_have_what_one_has() {
    for path in PATHS {
        for (stalls, share) in STALLS {
            let [sender, receiver, both] =
                [FIT, FIT_WINDOW, FIT_BOTH].map(|subject| run(path, stalls, subject));
            let alone = sender.mbit().max(receiver.mbit());
            let named = format!("{path:?}, {stalls:?}");
            assert!(both.mbit() >= share * alone, "{named}: {} of {alone} Mbit/s", both.mbit());
        }
    }
}
