//! `fit` on random paths, which are on none of the grids, so that no rule was made for them. Rates, round trips, queues and
//! jitter are drawn on a logarithmic scale, as they vary between networks.

use bufwise_link::{Draw, Path};
use bufwise_units::{BitRate, Nanos};

use crate::jittery::{BUSY, QUIET, over};
use crate::subject::{FIT, FIT_BOTH, FIT_SAMPLED, FIT_WINDOW, KERNEL, Subject};

const SECONDS: u64 = 15;
/// Most bytes in flight: with more, a run would take too long.
const LARGEST_PRODUCT: f64 = 3_750_000.0;

struct Drawn {
    rate: BitRate,
    rtt: Nanos,
    /// The queue, bytes: a sixteenth of the product to eight of them, and ten packets at least.
    queue: u64,
    /// Largest deviation of the delay of each direction.
    jitter: Nanos,
    /// Ranges of the hosts' pauses, and of the times between them, us.
    pauses: [(u64, u64); 2],
}

fn logarithmic(draw: &mut Draw, from: f64, to: f64) -> f64 {
    let part = draw.between(0, 1_000_000) as f64 / 1e6;
    from * (to / from).powf(part)
}

fn drawn(seed: u64, count: usize, is_jittery: bool, pauses: [(u64, u64); 2]) -> Vec<Drawn> {
    let mut draw = Draw(seed);
    let path = |_| {
        let (rate, rtt) = (logarithmic(&mut draw, 3e6, 600e6), logarithmic(&mut draw, 4e6, 260e6));
        let rate = rate.min(LARGEST_PRODUCT * 8e9 / rtt);
        let queue = rate * rtt / 8e9 * logarithmic(&mut draw, 1.0 / 16.0, 8.0);
        let jitter = if is_jittery { logarithmic(&mut draw, 100e3, 5e6).min(rtt * 0.4) } else { 0.0 };
        Drawn {
            rate: BitRate(rate as u64),
            rtt: Nanos(rtt as u64),
            queue: queue.max(15_000.0) as u64,
            jitter: Nanos(jitter as u64),
            pauses,
        }
    };
    (0..count).map(path).collect()
}

impl Drawn {
    /// Mean goodput over the seeds, Mbit/s.
    fn goodput(&self, subject: Subject, seeds: u64) -> f64 {
        let queue = format!("{}", self.queue).parse().expect("a queue");
        let (mut forward, mut backward) =
            Path::builder().rate(self.rate).rtt(self.rtt).queue(queue).configs();
        (forward.jitter, backward.jitter) = (self.jitter, self.jitter);
        let run = |seed| {
            over((forward.clone(), backward.clone()), self.rtt, self.pauses, seed)(subject, SECONDS).mbit()
        };
        (1..=seeds).map(run).sum::<f64>() / seeds as f64
    }
}

/// Returns, in percent of the kernel's goodput, the least share, the one below which a tenth of the paths is, and the mean. A share
/// counts as 100 at most. `kernel`: the kernel's goodput on each path.
fn summary(paths: &[Drawn], kernel: &[f64], seeds: u64, subject: Subject) -> [f64; 3] {
    let share = |(path, kernel): (&Drawn, &f64)| 100.0 * path.goodput(subject, seeds) / kernel;
    let mut shares: Vec<f64> = paths.iter().zip(kernel).map(share).map(|share| share.min(100.0)).collect();
    shares.sort_by(f64::total_cmp);
    [shares[0], shares[shares.len() / 10], shares.iter().sum::<f64>() / shares.len() as f64]
}

/// The bounds are what was reached, rounded down; 97 is wanted on each path.
fn assert_summaries(paths: &[Drawn], seeds: u64, leasts: [(Subject, [f64; 3]); 4]) {
    let kernel: Vec<f64> = paths.iter().map(|path| path.goodput(KERNEL, seeds)).collect();
    for (subject, leasts) in leasts {
        let reached = summary(paths, &kernel, seeds, subject);
        let is_reached = reached.iter().zip(leasts).all(|(reached, least)| *reached >= least);
        assert!(is_reached, "{}: {reached:.1?} percent, not {leasts:?}", subject.name());
    }
}

#[test]
fn drawn_paths_have_what_the_kernel_has() {
    let leasts = [
        (FIT, [97.5, 98.5, 99.0]),
        (FIT_SAMPLED, [96.5, 98.0, 99.0]),
        (FIT_WINDOW, [92.5, 98.0, 99.0]),
        (FIT_BOTH, [94.0, 97.5, 99.0]),
    ];
    assert_summaries(&drawn(1, 60, false, QUIET), 1, leasts);
}

#[test]
fn drawn_paths_with_jitter_have_nearly_what_the_kernel_has() {
    let leasts = [
        (FIT, [92.5, 97.0, 98.5]),
        (FIT_SAMPLED, [88.5, 95.0, 98.0]),
        (FIT_WINDOW, [93.0, 97.5, 99.0]),
        (FIT_BOTH, [88.5, 95.0, 98.0]),
    ];
    assert_summaries(&drawn(1, 60, true, QUIET), 2, leasts);
}

/// Hosts that stop for 0.1 to 0.8 ms, every 1 to 8 ms, as virtual machines beside others do. A kernel's queue covers a sender's
/// pauses; without one, what is sent between them has to make up for them.
#[test]
fn drawn_paths_between_busy_hosts_have_nearly_what_the_kernel_has() {
    let leasts = [
        (FIT, [93.5, 94.5, 97.5]),
        (FIT_SAMPLED, [91.0, 93.5, 97.0]),
        (FIT_WINDOW, [95.5, 98.0, 99.0]),
        (FIT_BOTH, [90.5, 93.5, 96.5]),
    ];
    assert_summaries(&drawn(2, 40, false, BUSY), 2, leasts);
}
