//! `fit` on paths whose rate or delay varies, beside the kernel: an empty queue has nothing to send from when a path carries
//! more again, and what looks like a queue may be none. The shares are what it reaches, rounded down: 97% is wanted in each.

use bufwise_link::{CrossPattern, CrossTraffic, DirectionConfig, Durations, Loss, Path, Step, Trace};
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::subject::{ABT, FIT, FIT_SAMPLED, FIT_WINDOW};
use crate::world::World;

const SECONDS: u64 = 20;

/// Draws from a seed: splitmix64 (Steele, Lea and Flood 2014).
struct Draw(u64);

impl Draw {
    fn between(&mut self, from: u64, to: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        from + (mixed ^ (mixed >> 31)) % (to - from + 1)
    }
}

fn step(at_us: u64, rate: u64) -> Step {
    Step { at: Nanos::from_micros(at_us), rate: Some(BitRate(rate)), delay: None }
}

fn repeating(steps: Vec<Step>, period_us: u64) -> Option<Trace> {
    Trace::new(steps, Some(Nanos::from_micros(period_us))).ok()
}

/// A station waits 1 to 8 ms for the medium, then sends for 0.5 to 3 ms at 240 Mbit/s.
fn wifi() -> Option<Trace> {
    let (mut draw, mut at, mut steps) = (Draw(2), 0, Vec::new());
    while at < 10_000_000 {
        steps.push(step(at, 240_000_000));
        at += draw.between(500, 3_000);
        steps.push(step(at, 0));
        at += draw.between(1_000, 8_000);
    }
    repeating(steps, at)
}

/// Grants of 2 ms every 5 ms, at a rate that wanders between 25 and 150 Mbit/s every 100 ms.
fn lte() -> Option<Trace> {
    let (mut draw, mut rate, mut steps) = (Draw(1), 90_000_000, Vec::new());
    for at in (0..10_000_000).step_by(5_000) {
        if at % 100_000 == 0 {
            let wandered = rate + draw.between(0, 40_000_000);
            rate = wandered.saturating_sub(20_000_000).clamp(25_000_000, 150_000_000);
        }
        steps.extend([step(at, rate), step(at + 2_000, 0)]);
    }
    repeating(steps, 10_000_000)
}

fn bursts(millis: u64) -> Option<CrossTraffic> {
    let (on, off) = (Nanos::from_millis(millis), Nanos::from_millis(millis));
    let pattern = CrossPattern::Bursty { on, off, durations: Durations::Pareto { shape: 1.5 } };
    Some(CrossTraffic { rate: BitRate(30_000_000), packet_bytes: 1_000, pattern })
}

/// A path: rate (Mbit/s), round trip (ms), queue, and what is changed in each direction.
struct Varying {
    name: &'static str,
    path: (u64, u64, &'static str),
    forward: fn(DirectionConfig) -> DirectionConfig,
    backward: fn(DirectionConfig) -> DirectionConfig,
    /// Hundredths of the kernel's goodput that it has at least: at the sender, sampled there, at the receiver.
    least: [f64; 3],
}

fn paths() -> Vec<Varying> {
    let same = |config| config;
    let one = |name, path, forward, least| Varying { name, path, forward, backward: same, least };
    vec![
        one(
            "pauses of 10 ms every 160",
            (100, 40, "1bdp"),
            |c| DirectionConfig { trace: "0 100mbit\n0.15 0\n0.16 repeat".parse().ok(), ..c },
            [96.0, 95.0, 96.0],
        ),
        one("LTE", (35, 40, "750000"), |c| DirectionConfig { trace: lte(), ..c }, [80.0, 78.0, 97.0]),
        one("Wi-Fi", (67, 40, "750000"), |c| DirectionConfig { trace: wifi(), ..c }, [96.0, 84.0, 96.0]),
        one(
            "jitter of 5 ms",
            (100, 50, "1bdp"),
            |c| DirectionConfig { jitter: Nanos::from_millis(5), ..c },
            [95.0, 95.0, 88.0],
        ),
        one(
            "jitter of 20 ms",
            (100, 50, "1bdp"),
            |c| DirectionConfig { jitter: Nanos::from_millis(20), ..c },
            [95.0, 95.0, 73.0],
        ),
        one(
            "random loss of 0.1%",
            (100, 40, "1bdp"),
            |c| DirectionConfig { loss: Loss::Uniform { probability: 0.001 }, ..c },
            [97.0, 97.0, 97.0],
        ),
        one(
            "others' bursts of 50 ms",
            (100, 40, "1bdp"),
            |c| DirectionConfig { cross: bursts(50), ..c },
            [90.0, 90.0, 95.0],
        ),
        Varying {
            backward: |c| DirectionConfig { trace: "0 0\n0.012 100mbit\n0.014 repeat".parse().ok(), ..c },
            ..one("acknowledgements in bursts", (100, 40, "1bdp"), same, [97.0, 95.0, 88.0])
        },
    ]
}

#[test]
fn where_the_path_varies_it_has_nearly_what_the_kernel_has_with_a_shorter_queue() {
    for varying in paths() {
        let (mbit, rtt_ms, queue) = varying.path;
        let rtt = Nanos::from_millis(rtt_ms);
        let rate: BitRate = format!("{mbit}mbit").parse().expect("a rate");
        let run = |subject| {
            let (forward, backward) =
                Path::builder().rate(rate).rtt(rtt).queue(queue.parse().expect("a queue")).configs();
            let path = Path::new((varying.forward)(forward), (varying.backward)(backward), 1);
            World::new(path.expect("a path"), rtt, subject, Algorithm::Cubic, false).run(SECONDS)
        };
        let kernel = run(ABT);
        for (subject, least) in [FIT, FIT_SAMPLED, FIT_WINDOW].into_iter().zip(varying.least) {
            let fit = run(subject);
            let named = format!("{}, {}", varying.name, subject.name());
            let share = 100.0 * fit.mbit() / kernel.mbit();
            assert!(share >= least, "{named}: {share:.1}%, {} drops, {:.1} ms", fit.drops, fit.rtt_ms());
            let (delay, kernels) = (fit.rtt_ms(), kernel.rtt_ms());
            assert!(delay <= kernels + 6.0, "{named}: {delay:.1} ms, the kernel's {kernels:.1}");
        }
    }
}
