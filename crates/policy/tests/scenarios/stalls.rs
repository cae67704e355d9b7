//! Hosts that pause now and then, as busy hosts do: nothing is delivered during a pause, and the segments held back are
//! delivered at once after it. Neither tells anything about the path or the other end.

use bufwise_link::Path;
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::pauses::Pauses;
use crate::subject::{FIT, FIT_BOTH, FIT_WINDOW, Subject};
use crate::world::World;

const SECONDS: u64 = 15;
const SEED: u64 = 7;

/// Paths: rate (Mbit/s), round trip (ms), queue.
const PATHS: [(u64, u64, &str); 5] =
    [(100, 50, "6MB"), (100, 40, "62500"), (30, 80, "75000"), (200, 60, "375000"), (100, 20, "5bdp")];
type Range = (u64, u64);
/// Pauses (ranges of their lengths and of the times between them, ms), and the least goodput of both ends together, as
/// a share of the better single end's; the aim is 0.97.
const STALLS: [(Option<(Range, Range)>, f64); 3] =
    [(None, 0.97), (Some(((10, 10), (150, 150))), 0.95), (Some(((20, 90), (100, 400))), 0.79)];

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

/// Neither end takes the other's reaction to a pause for a change of the path.
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

/// Pauses during a start: ranges of their lengths and of the times between them, us.
const START_STALLS: [(Range, Range); 3] =
    [((100, 800), (1_000, 8_000)), ((500, 3_000), (3_000, 30_000)), ((2_000, 6_000), (10_000, 80_000))];

/// Acknowledgements that a host has held back arrive at once. A burst in answer to them overflows a queue of 5 ms at a
/// window far below the BDP, and CUBIC then needs 10 s to recover.
#[test]
fn no_start_overflows_a_short_queue_while_the_window_is_small() {
    for (length, apart) in START_STALLS {
        for seed in 1..=8 {
            let rtt = Nanos::from_millis(40);
            let path = Path::builder().rate("100mbit".parse().expect("a rate")).rtt(rtt);
            let path = path.queue("62500".parse().expect("a queue")).build(seed).expect("a path");
            let pauses = |seed| Pauses::drawn_in_micros(seed, length, apart);
            let run = World::new(path, rtt, FIT, Algorithm::Cubic, false)
                .pausing(pauses(2 * seed), pauses(2 * seed + 1))
                .pacing_itself()
                .run(6);
            // Without pauses it is 92.4 Mbit/s.
            assert!(run.mbit() > 77.0, "{length:?}, seed {seed}: {} Mbit/s, {} drops", run.mbit(), run.drops);
        }
    }
}
