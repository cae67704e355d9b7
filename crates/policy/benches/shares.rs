//! Cost of sharing the budget: exact shares are to take under 1 ms for 10,000 connections and under 100 ms
//! for 1,000,000, on one core.

use bufwise_policy::share::{AbtRounds, max_min, proportional};
use bufwise_units::Bytes;
use divan::Bencher;

fn main() {
    divan::main();
}

const CONNECTIONS: [usize; 2] = [10_000, 1_000_000];

/// Demands over six orders of magnitude (Semke 1998, introduction), and a budget for half of their sum.
fn host(connections: usize) -> (Vec<Bytes>, Bytes) {
    let mut state = 42_u64;
    let demands: Vec<Bytes> = (0..connections)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            Bytes(1_000 + (state >> 33) % (1 << (state >> 60)) * 100)
        })
        .collect();
    let sum: Bytes = demands.iter().copied().sum();
    (demands, sum.scaled(1, 2))
}

#[divan::bench(args = CONNECTIONS, sample_count = 20)]
fn exact_max_min(bencher: Bencher, connections: usize) {
    let (demands, budget) = host(connections);
    bencher.bench_local(|| max_min(divan::black_box(&demands), budget));
}

#[divan::bench(args = CONNECTIONS, sample_count = 20)]
fn sabt_proportional(bencher: Bencher, connections: usize) {
    let (demands, budget) = host(connections);
    bencher.bench_local(|| proportional(divan::black_box(&demands), budget));
}

#[divan::bench(args = CONNECTIONS, sample_count = 20)]
fn one_abt_round(bencher: Bencher, connections: usize) {
    let (demands, budget) = host(connections);
    let mut rounds = AbtRounds::new(budget);
    bencher.bench_local(|| rounds.round(divan::black_box(&demands).iter().copied()));
}

#[divan::bench(args = CONNECTIONS, sample_count = 20)]
fn applying_a_share(bencher: Bencher, connections: usize) {
    let (demands, budget) = host(connections);
    let share = proportional(&demands, budget);
    bencher.bench_local(|| divan::black_box(&demands).iter().map(|&d| share.of(d)).sum::<Bytes>());
}
