//! SOBAS as the engine has it among TCP connections of others, and alone.
//!
//! How TCP flows share a path is chaotic: a segment more or less at the start moves a run by a fifth either way. So what
//! is held is the mean over a grid, against the kernel alone on the same paths with the same others.

use bufwise_link::{BitRate, Nanos, Path};
use bufwise_policy::sobas::State;

use crate::congestion::Algorithm;
use crate::neighbours::{Company, Shared, SharedPath};

const ALGORITHMS: [Algorithm; 2] = [Algorithm::Reno, Algorithm::Cubic];
const SECONDS: u64 = 20;
/// Others that stay, milliseconds.
const FOR_EVER: u64 = 1_000_000;

/// Rate in Mbit/s, round trip in ms, queue.
type Place = (u64, u64, &'static str);

fn run((mbit, rtt, queue): Place, company: Company) -> Shared {
    let rate = BitRate(mbit * 1_000_000);
    let rtt = Nanos::from_millis(rtt);
    let builder = Path::builder().rate(rate).rtt(rtt).queue(queue.parse().expect("a queue size"));
    SharedPath::new(&builder, rate, rtt, company, 1).run(SECONDS)
}

/// The kernel alone, and under SOBAS.
fn both(place: Place, company: Company) -> (Shared, Shared) {
    let kernel = run(place, Company { sobas: false, ..company });
    (kernel, run(place, Company { sobas: true, ..company }))
}

fn places(rates: &[u64], rtts: &[u64], queues: &[&'static str]) -> Vec<Place> {
    let paths = rates.iter().flat_map(|&mbit| rtts.iter().map(move |&rtt| (mbit, rtt)));
    paths.flat_map(|(mbit, rtt)| queues.iter().map(move |&queue| (mbit, rtt, queue))).collect()
}

#[test]
fn on_a_path_that_others_fill_it_gets_what_the_kernel_gets() {
    let mut ratios = Vec::new();
    for place in places(&[10, 30], &[20, 80], &["0.125bdp", "1bdp", "480ms"]) {
        for algorithm in ALGORITHMS {
            for (others, from) in [(1, 0), (2, 1_000), (4, 500)] {
                let company = Company { others, from, until: FOR_EVER, algorithm, sobas: false };
                let (kernel, sobas) = both(place, company);
                let ratio = sobas.bits_per_sec / kernel.bits_per_sec;
                assert!(ratio > 0.5, "{place:?}, {company:?}: {sobas:?} v. {kernel:?}");
                ratios.push(ratio);
            }
        }
    }
    let mean = ratios.iter().sum::<f64>() / ratios.len() as f64;
    println!("{mean:.3} of the kernel's over {} runs", ratios.len());
    assert!(mean >= 0.95, "{mean}");
}

#[test]
fn alone_it_keeps_a_deep_queue_empty_and_loses_nothing() {
    for place in places(&[30, 100], &[20, 50], &["480ms"]) {
        for algorithm in ALGORITHMS {
            let company = Company { others: 0, from: 0, until: 0, algorithm, sobas: true };
            let (kernel, sobas) = both(place, company);
            assert!(sobas.bits_per_sec >= 0.97 * kernel.bits_per_sec, "{place:?}: {sobas:?} v. {kernel:?}");
            assert!(sobas.late_rtt_ms < 1.15 * place.1 as f64 + 1.0, "{place:?}: {sobas:?}");
            assert!(kernel.late_rtt_ms > 3.0 * place.1 as f64, "{place:?}: {kernel:?}");
        }
    }
}

#[test]
fn when_others_come_it_does_not_give_way_and_when_they_have_gone_it_has_its_limit_again() {
    for algorithm in ALGORITHMS {
        // They come when the limit has been found.
        let company = Company { others: 2, from: 5_000, until: FOR_EVER, algorithm, sobas: true };
        let sobas = run((30, 20, "480ms"), company);
        assert!(matches!(sobas.state, Some(State::Congested | State::Trial)), "{algorithm:?}: {sobas:?}");
        let gone = run((30, 20, "480ms"), Company { from: 2_000, until: 5_000, ..company });
        assert!(matches!(gone.state, Some(State::Final | State::BufferLimited)), "{algorithm:?}: {gone:?}");
        assert!(gone.late_rtt_ms < 30.0, "{algorithm:?}: {gone:?}");
    }
}
