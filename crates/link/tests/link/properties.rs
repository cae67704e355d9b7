//! Properties of every direction, over random traffic, configurations and traces.

use crate::naive::NaiveQueue;
use bufwise_link::{
    Cause, Counters, CrossPattern, CrossTraffic, Direction, DirectionConfig, Durations, Fate, Loss,
    QueueLimit, Step, Trace,
};
use bufwise_units::{BitRate, Nanos};
use proptest::prelude::*;

/// Gaps between packets in nanoseconds, and their IP lengths: bursts, and pauses long enough to drain.
fn traffic() -> impl Strategy<Value = Vec<(u64, u32)>> {
    let gap = prop_oneof![3 => Just(0_u64), 5 => 0..3_000_000_u64, 1 => 0..200_000_000_u64];
    prop::collection::vec((gap, 1..3_000_u32), 1..200)
}

fn queue() -> impl Strategy<Value = QueueLimit> {
    prop_oneof![
        Just(QueueLimit::Unlimited),
        (1_514..30_000_u64).prop_map(QueueLimit::Bytes),
        (1..20_u32).prop_map(QueueLimit::Packets),
    ]
}

/// Steps at 0 and later, with outages; the last step has a rate. Some traces repeat.
fn trace() -> impl Strategy<Value = Trace> {
    let rate = prop_oneof![1 => Just(0_u64), 4 => 100_000..50_000_000_u64];
    let step = (1..50_000_000_u64, rate, prop::option::of(5_000_000..9_000_000_u64));
    (prop::collection::vec(step, 0..6), 100_000..50_000_000_u64, any::<bool>()).prop_map(
        |(list, last, repeat)| {
            let mut at = 0;
            let mut steps = Vec::new();
            for (length, rate, delay) in list {
                steps.push(Step { at: Nanos(at), rate: Some(BitRate(rate)), delay: delay.map(Nanos) });
                at += length;
            }
            steps.push(Step { at: Nanos(at), rate: Some(BitRate(last)), delay: None });
            Trace::new(steps, repeat.then_some(Nanos(at + 7_000_001))).expect("steps are in order")
        },
    )
}

/// A rate and a queue, with a trace or without; delay 6 ms.
fn limited() -> impl Strategy<Value = DirectionConfig> {
    (100_000..50_000_000_u64, queue(), prop::option::of(trace()), any::<bool>(), 0..40_u32).prop_map(
        |(rate, queue, trace, trace_begins_with_data, overhead)| DirectionConfig {
            rate: Some(BitRate(rate)),
            delay: Nanos::from_millis(6),
            // The smallest queue that is accepted depends on the overhead.
            queue: if let QueueLimit::Bytes(limit) = queue {
                QueueLimit::Bytes(limit + u64::from(overhead))
            } else {
                queue
            },
            overhead,
            trace,
            trace_begins_with_data,
            ..DirectionConfig::default()
        },
    )
}

fn loss() -> impl Strategy<Value = Loss> {
    prop_oneof![
        Just(Loss::None),
        (0.0..1.0).prop_map(|probability| Loss::Uniform { probability }),
        (0.0..1.0, 0.0..1.0).prop_map(|(good_to_bad, bad_to_good)| Loss::GilbertElliott {
            good_to_bad,
            bad_to_good,
            loss_good: 0.0,
            loss_bad: 0.9
        }),
    ]
}

fn cross() -> impl Strategy<Value = CrossTraffic> {
    let burst =
        |durations| CrossPattern::Bursty { on: Nanos::from_millis(5), off: Nanos::from_millis(5), durations };
    let pattern = prop_oneof![
        Just(CrossPattern::Constant),
        Just(burst(Durations::Exponential)),
        Just(burst(Durations::Pareto { shape: 1.3 })),
    ];
    (10_000..20_000_000_u64, 500..2_000_u32, pattern).prop_map(|(rate, packet_bytes, pattern)| CrossTraffic {
        rate: BitRate(rate),
        packet_bytes,
        pattern,
    })
}

/// Any configuration of a direction; without a rate it has neither cross traffic nor marks.
fn anything() -> impl Strategy<Value = DirectionConfig> {
    let mark = prop::option::of((0..9_000_000_u64).prop_map(Nanos));
    let extras = (loss(), prop::option::of(cross()), 0..5_000_000_u64, any::<bool>(), mark, any::<bool>());
    (limited(), extras).prop_map(|(config, (loss, cross, jitter, reorder, mark, unlimited))| {
        let config = DirectionConfig { loss, cross, jitter: Nanos(jitter), reorder, mark, ..config };
        if unlimited {
            DirectionConfig { rate: None, trace: None, cross: None, mark: None, ..config }
        } else {
            config
        }
    })
}

fn assert_accounted(counters: &Counters) -> Result<(), TestCaseError> {
    let c = counters;
    prop_assert_eq!(
        c.offered_packets,
        c.delivered_packets + c.drops_queue_packets + c.drops_random_packets + c.queued_packets
    );
    prop_assert_eq!(
        c.offered_bytes,
        c.delivered_bytes + c.drops_queue_bytes + c.drops_random_bytes + c.queued_bytes
    );
    prop_assert_eq!(
        c.cross_offered_packets,
        c.cross_delivered_packets + c.cross_drops_packets + c.cross_queued_packets
    );
    prop_assert!((0.0..=1.0).contains(&c.utilisation));
    prop_assert!(c.queue_p95_bytes <= c.queue_max_bytes && c.queue_mean_bytes <= c.queue_max_bytes);
    Ok(())
}

proptest! {
    #[test]
    fn every_packet_is_accounted_for_at_any_moment(
        config in anything(),
        packets in traffic(),
        seed: u64,
    ) {
        let mut direction = Direction::new(config.clone(), seed).unwrap();
        let mut now = 0;
        let (mut delivered, mut marked, mut queue_drops, mut random_drops) = (0, 0, 0, 0);
        for (gap, bytes) in packets {
            now += gap;
            match direction.offer(Nanos(now), bytes) {
                fate @ (Fate::Deliver { at } | Fate::DeliverMarked { at }) => {
                    delivered += 1;
                    marked += u64::from(matches!(fate, Fate::DeliverMarked { .. }));
                    prop_assert!(at >= Nanos(now));
                }
                Fate::Drop(Cause::Queue) => queue_drops += 1,
                Fate::Drop(Cause::Random) => random_drops += 1,
            }
            let counters = direction.counters(Nanos(now));
            assert_accounted(&counters)?;
            prop_assert_eq!(counters.offered_packets, delivered + queue_drops + random_drops);
            prop_assert_eq!(counters.marked_packets, marked);
            prop_assert_eq!(counters.drops_queue_packets, queue_drops);
            prop_assert_eq!(counters.drops_random_packets, random_drops);
            if let QueueLimit::Bytes(limit) = config.queue {
                prop_assert!(counters.queue_max_bytes <= limit);
            }
            if let QueueLimit::Packets(limit) = config.queue {
                prop_assert!(counters.queued_packets <= u64::from(limit));
            }
        }
        // The outages of the traces are short: ten minutes later the queue is empty.
        if config.cross.is_none() {
            let counters = direction.counters(Nanos(now + 600_000_000_000));
            assert_accounted(&counters)?;
            prop_assert_eq!(counters.queued_packets, 0);
            prop_assert_eq!(counters.delivered_packets, delivered);
        }
    }

    #[test]
    fn drop_tail_and_departures_agree_with_a_naive_queue(config in limited(), packets in traffic()) {
        let config = DirectionConfig { trace_begins_with_data: false, ..config };
        let mut direction = Direction::new(config.clone(), 1).unwrap();
        let mut naive = NaiveQueue::new(&config);
        let mut now = 0;
        let mut latest = 0;
        for (gap, bytes) in packets {
            now += gap;
            let wanted = naive.offer(now, u64::from(bytes + config.overhead)).map(|(departure, delay)| {
                latest = latest.max(departure + delay);
                latest
            });
            let found = match direction.offer(Nanos(now), bytes) {
                Fate::Deliver { at } | Fate::DeliverMarked { at } => Some(at.0),
                Fate::Drop(cause) => {
                    prop_assert_eq!(cause, Cause::Queue);
                    None
                }
            };
            prop_assert_eq!(found, wanted);
            prop_assert_eq!(direction.backlog_bytes(Nanos(now)), naive.backlog_bytes());
            prop_assert_eq!(direction.counters(Nanos(now)).queued_packets, naive.packets());
        }
    }

    #[test]
    fn without_reorder_deliveries_never_overtake(config in anything(), packets in traffic(), seed: u64) {
        let mut direction = Direction::new(DirectionConfig { reorder: false, ..config }, seed).unwrap();
        let mut now = 0;
        let mut last = Nanos::ZERO;
        for (gap, bytes) in packets {
            now += gap;
            if let Fate::Deliver { at } | Fate::DeliverMarked { at } = direction.offer(Nanos(now), bytes) {
                prop_assert!(at >= last);
                last = at;
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_fates(config in anything(), packets in traffic(), seed: u64) {
        let run = || {
            let mut direction = Direction::new(config.clone(), seed).unwrap();
            let mut now = 0;
            let fates: Vec<Fate> = packets
                .iter()
                .map(|&(gap, bytes)| {
                    now += gap;
                    direction.offer(Nanos(now), bytes)
                })
                .collect();
            (fates, direction.counters(Nanos(now)))
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn looking_more_often_changes_nothing(config in anything(), packets in traffic(), seed: u64) {
        let mut watched = Direction::new(config.clone(), seed).unwrap();
        let mut alone = Direction::new(config, seed).unwrap();
        let mut now = 0;
        for (gap, bytes) in packets {
            for part in 0..3 {
                watched.counters(Nanos(now + gap * part / 3));
            }
            now += gap;
            prop_assert_eq!(watched.offer(Nanos(now), bytes), alone.offer(Nanos(now), bytes));
        }
        let (seen, unseen) = (watched.counters(Nanos(now)), alone.counters(Nanos(now)));
        prop_assert_eq!(seen.queued_bytes, unseen.queued_bytes);
        prop_assert_eq!(seen.utilisation, unseen.utilisation);
        // Floats are summed in another order: the last byte may round differently.
        prop_assert!(seen.queue_mean_bytes.abs_diff(unseen.queue_mean_bytes) <= 1);
        prop_assert!(seen.queue_p95_bytes.abs_diff(unseen.queue_p95_bytes) <= 1 + seen.queue_p95_bytes / 16);
    }
}
