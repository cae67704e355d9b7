//! Several connections over one path: `fit` shares it with other `fit` connections and with the kernel's, and a late
//! connection gets its share.

use bufwise_link::Path;
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::pauses::Pauses;
use crate::subject::{ABT, FIT, FIT_BOTH, FIT_WINDOW, Subject};
use crate::world::World;

const SECONDS: u64 = 22;
const APART: Nanos = Nanos::from_secs(3);
const SEEDS: u64 = 12;
/// Paths: rate (Mbit/s), round trip (ms), queue (of 1, 4, 10 and 0.5 BDP).
const PATHS: [(u64, u64, &str); 4] =
    [(80, 35, "350000"), (30, 20, "4bdp"), (100, 50, "6MB"), (100, 40, "bdp/2")];

/// Runs connections, each 3 s after the one before, on hosts that pause for some tenths of a millisecond. Each sender has a bounded
/// send buffer, as on real hosts: two senders without a bound would overflow the deep queue by several times the kernel's drops.
fn run(subjects: &[Subject], path: (u64, u64, &str), seed: u64) -> Vec<Outcome> {
    let (mbit, rtt_ms, queue) = path;
    let rtt = Nanos::from_millis(rtt_ms);
    let flows = (0_u64..).zip(subjects).map(|(number, subject)| {
        let rate: BitRate = format!("{mbit}mbit").parse().expect("a rate");
        let path = Path::builder().rate(rate).rtt(rtt).queue(queue.parse().expect("a queue"));
        let world = World::new(path.build(seed).expect("a path"), rtt, *subject, Algorithm::Cubic, false);
        let [sender, receiver] = [0, 1]
            .map(|end| Pauses::drawn_in_micros(100 * seed + 2 * number + end, (100, 800), (1_000, 8_000)));
        (world.pausing(sender, receiver).pacing_itself().with_kernels_buffer(), Nanos(APART.0 * number))
    });
    World::run_together(flows.collect(), SECONDS)
}

/// Returns each connection's goodput (Mbit/s) in the last 8 s, and the drops of the whole run; means over the seeds.
fn shares(subjects: &[Subject], path: (u64, u64, &str)) -> (Vec<f64>, f64) {
    let (mut rates, mut drops) = (vec![0.0; subjects.len()], 0.0);
    for seed in 1..=SEEDS {
        let runs = run(subjects, path, seed);
        for (number, (rate, run)) in rates.iter_mut().zip(&runs).enumerate() {
            let began = APART.as_secs_f64() * number as f64;
            *rate += run.mbit_after(SECONDS as f64 - 8.0 - began) / SEEDS as f64;
        }
        drops += runs.iter().map(|run| run.drops).max().unwrap_or(0) as f64 / SEEDS as f64;
    }
    (rates, drops)
}

fn jain(rates: &[f64]) -> f64 {
    let (sum, squares): (f64, f64) = (rates.iter().sum(), rates.iter().map(|rate| rate * rate).sum());
    sum * sum / squares / rates.len() as f64
}

/// A late connection's handshake passes the queue of the earlier ones, so its shortest round trip is longer than
/// theirs.
#[test]
fn two_of_them_share_a_path_though_one_comes_late() {
    for path in PATHS {
        let (_, kernels) = shares(&[ABT; 2], path);
        for subject in [FIT, FIT_WINDOW, FIT_BOTH] {
            let (rates, drops) = shares(&[subject; 2], path);
            let named = format!("{}, {path:?}: {rates:.1?} Mbit/s, {drops} drops", subject.name());
            // A receiver before the deep queue has 0.92, as the kernel's newcomer has 0.85; everywhere else it is 0.97 at least.
            assert!(jain(&rates) > 0.9, "{named}");
            assert!(drops < 0.9 * kernels, "{named}, the kernel's {kernels}");
            assert!(rates.iter().sum::<f64>() > 0.9 * path.0 as f64, "{named}");
        }
    }
}
