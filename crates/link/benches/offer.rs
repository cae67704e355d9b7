//! Measures the cost of one packet. A pump at 5 Gbit/s handles 450,000 packets per second: 2.2 us each for everything.

use bufwise_link::{CrossPattern, CrossTraffic, Direction, DirectionConfig, Durations, Loss, QueueLimit};
use bufwise_units::{BitRate, Nanos};
use divan::{Bencher, black_box, counter::ItemsCount};

const PACKETS: u64 = 100_000;

fn main() {
    divan::main();
}

/// Offers full packets a little faster than the link's rate, in bursts of 43 (a 64 KB super-packet).
fn offer(bencher: Bencher<'_, '_>, config: &DirectionConfig) {
    bencher
        .counter(ItemsCount::new(PACKETS))
        .with_inputs(|| Direction::new(config.clone(), 1).expect("the benchmark's configuration is valid"))
        .bench_local_values(|mut direction| {
            for packet in 0..PACKETS {
                let now = Nanos(packet / 43 * 43 * 2_400);
                black_box(direction.offer(now, 1_500));
            }
            direction
        });
}

fn five_gbit() -> DirectionConfig {
    DirectionConfig {
        rate: Some(BitRate(5_000_000_000)),
        delay: Nanos::from_millis(20),
        queue: QueueLimit::Bytes(25_000_000),
        ..DirectionConfig::default()
    }
}

#[divan::bench]
fn unlimited(bencher: Bencher<'_, '_>) {
    offer(bencher, &DirectionConfig::default());
}

#[divan::bench]
fn rate_and_queue(bencher: Bencher<'_, '_>) {
    offer(bencher, &five_gbit());
}

#[divan::bench]
fn everything(bencher: Bencher<'_, '_>) {
    let pattern = CrossPattern::Bursty {
        on: Nanos::from_millis(10),
        off: Nanos::from_millis(10),
        durations: Durations::Pareto { shape: 1.5 },
    };
    let config = DirectionConfig {
        jitter: Nanos::from_millis(1),
        loss: Loss::GilbertElliott { good_to_bad: 0.01, bad_to_good: 0.3, loss_good: 0.0, loss_bad: 0.5 },
        trace: "0.01 3gbit\n0.02 5gbit 10ms\n0.03 repeat".parse().ok(),
        cross: Some(CrossTraffic { rate: BitRate(2_000_000_000), packet_bytes: 1_500, pattern }),
        ..five_gbit()
    };
    offer(bencher, &config);
}
