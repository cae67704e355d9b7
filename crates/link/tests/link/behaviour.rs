//! Single behaviours of a direction, each on the smallest case that shows it.

use bufwise_link::{Cause, CrossPattern, CrossTraffic, Direction, DirectionConfig, Fate, Loss, QueueLimit};
use bufwise_units::{BitRate, Nanos};

/// 8 Mbit/s: one byte takes 1 us on the wire. No overhead, no delay, room for 10,000 bytes.
fn megabyte_a_second() -> DirectionConfig {
    DirectionConfig {
        rate: Some(BitRate(8_000_000)),
        queue: QueueLimit::Bytes(10_000),
        overhead: 0,
        ..DirectionConfig::default()
    }
}

fn micros(micros: u64) -> Nanos {
    Nanos::from_micros(micros)
}

fn delivery(fate: Fate) -> Option<Nanos> {
    match fate {
        Fate::Deliver { at } | Fate::DeliverMarked { at } => Some(at),
        Fate::Drop(_) => None,
    }
}

#[test]
fn a_packet_waits_for_those_before_it() {
    let mut link = Direction::new(megabyte_a_second(), 1).unwrap();
    assert_eq!(link.offer(micros(0), 1_000), Fate::Deliver { at: micros(1_000) });
    assert_eq!(link.offer(micros(0), 500), Fate::Deliver { at: micros(1_500) });
    assert_eq!(link.offer(micros(5_000), 1_000), Fate::Deliver { at: micros(6_000) });
}

#[test]
fn a_packet_that_waits_longer_than_the_threshold_is_marked() {
    let config = DirectionConfig { mark: Some(micros(1_500)), ..megabyte_a_second() };
    let mut link = Direction::new(config, 1).unwrap();
    // A packet's own transmission counts as its wait.
    assert_eq!(link.offer(micros(0), 1_500), Fate::Deliver { at: micros(1_500) });
    assert_eq!(link.offer(micros(0), 1), Fate::DeliverMarked { at: micros(1_501) });
    assert_eq!(link.offer(micros(2), 1), Fate::Deliver { at: micros(1_502) });
    assert_eq!(link.counters(micros(9_000)).marked_packets, 1);
}

#[test]
fn a_packet_that_exactly_fills_the_queue_is_admitted() {
    let mut link = Direction::new(megabyte_a_second(), 1).unwrap();
    for _ in 0..10 {
        assert!(delivery(link.offer(micros(0), 1_000)).is_some());
    }
    assert_eq!(link.offer(micros(0), 1), Fate::Drop(Cause::Queue));
    // After 999.999 us a thousandth of the thousandth byte is still there.
    assert_eq!(link.offer(Nanos(999_999), 1_000), Fate::Drop(Cause::Queue));
    assert_eq!(link.offer(micros(1_000), 1_000), Fate::Deliver { at: micros(11_000) });
}

#[test]
fn a_packet_queue_counts_the_one_in_service() {
    let config = DirectionConfig { queue: QueueLimit::Packets(2), ..megabyte_a_second() };
    let mut link = Direction::new(config, 1).unwrap();
    assert!(delivery(link.offer(micros(0), 1_000)).is_some());
    assert!(delivery(link.offer(micros(999), 1)).is_some());
    assert_eq!(link.offer(Nanos(999_999), 1), Fate::Drop(Cause::Queue));
    assert!(delivery(link.offer(micros(1_000), 1)).is_some());
}

#[test]
fn a_policer_passes_a_burst_at_once_and_then_its_rate() {
    let mut link = Direction::new(DirectionConfig { policer: true, ..megabyte_a_second() }, 1).unwrap();
    for _ in 0..10 {
        assert_eq!(link.offer(micros(0), 1_000), Fate::Deliver { at: micros(0) });
    }
    assert_eq!(link.offer(micros(0), 1_000), Fate::Drop(Cause::Queue), "the bucket is empty");
    assert_eq!(link.offer(micros(999), 1_000), Fate::Drop(Cause::Queue));
    // At twice the rate for two seconds every other packet finds its tokens.
    let passed = (0..4_000).filter_map(|half| delivery(link.offer(micros(1_000 + half * 500), 1_000)));
    assert_eq!(passed.inspect(|at| assert_eq!(at.0 % 1_000_000, 0)).count(), 2_000);
    let counters = link.counters(micros(3_001_000));
    assert_eq!((counters.delivered_packets, counters.queued_packets), (2_010, 0));
    assert_eq!((counters.queue_max_bytes, link.backlog_bytes(micros(3_001_000))), (0, 0));
}

#[test]
fn overhead_counts_on_the_wire() {
    let mut link = Direction::new(DirectionConfig { overhead: 14, ..megabyte_a_second() }, 1).unwrap();
    assert_eq!(link.offer(micros(0), 986), Fate::Deliver { at: micros(1_000) });
    assert_eq!(link.counters(micros(0)).offered_bytes, 1_000);
}

#[test]
fn nothing_leaves_in_an_outage() {
    let trace = "0.001 0\n3 16mbit".parse().ok();
    let mut link = Direction::new(DirectionConfig { trace, ..megabyte_a_second() }, 1).unwrap();
    assert_eq!(link.offer(micros(0), 1_000), Fate::Deliver { at: micros(1_000) });
    // Without the outage half of the second packet would be sent by then; after it the rate has doubled.
    assert_eq!(link.offer(micros(0), 1_000), Fate::Deliver { at: micros(3_000_500) });
    let counters = link.counters(micros(2_999_999));
    assert_eq!((counters.delivered_packets, counters.queued_packets), (1, 1));
    assert_eq!(counters.utilisation, 1.0);
    // The queue stood still for three seconds.
    assert_eq!(counters.queue_mean_bytes, 1_000);
}

#[test]
fn the_delay_is_that_at_departure() {
    let trace = "0 8mbit 50ms\n0.0015 - 10ms".parse().ok();
    let config = DirectionConfig { trace, reorder: true, ..megabyte_a_second() };
    let mut link = Direction::new(config.clone(), 1).unwrap();
    assert_eq!(link.offer(micros(0), 1_000), Fate::Deliver { at: micros(51_000) });
    assert_eq!(link.offer(micros(0), 500), Fate::Deliver { at: micros(11_500) });
    // In order, the second packet waits for the first.
    let mut link = Direction::new(DirectionConfig { reorder: false, ..config }, 1).unwrap();
    assert_eq!(link.offer(micros(0), 1_000), Fate::Deliver { at: micros(51_000) });
    assert_eq!(link.offer(micros(0), 500), Fate::Deliver { at: micros(51_000) });
}

#[test]
fn a_trace_may_begin_anew_with_the_first_data() {
    let trace = "0 8mbit\n2 16mbit".parse().ok();
    let from_zero = DirectionConfig { trace, ..megabyte_a_second() };
    let config = DirectionConfig { trace_begins_with_data: true, ..from_zero.clone() };
    let mut link = Direction::new(config.clone(), 1).unwrap();
    // Small packets do not begin it, so the rate has doubled after two seconds.
    assert_eq!(link.offer(micros(0), 100), Fate::Deliver { at: micros(100) });
    assert_eq!(link.offer(micros(3_000_000), 511), Fate::Deliver { at: Nanos(3_000_255_500) });
    assert_eq!(link.offer(micros(5_000_000), 512), Fate::Deliver { at: micros(5_000_512) });
    // It begins anew only once.
    assert_eq!(link.offer(micros(6_000_000), 1_000), Fate::Deliver { at: micros(6_001_000) });
    assert_eq!(link.offer(micros(7_000_000), 1_000), Fate::Deliver { at: micros(7_000_500) });
    // The other direction is told.
    let mut back = Direction::new(config, 2).unwrap();
    back.begin_trace(micros(5_000_000));
    back.begin_trace(micros(6_000_000));
    assert_eq!(back.offer(micros(6_000_000), 40), Fate::Deliver { at: micros(6_000_040) });
    assert_eq!(back.offer(micros(7_000_000), 40), Fate::Deliver { at: micros(7_000_020) });
    let mut usual = Direction::new(from_zero, 1).unwrap();
    usual.begin_trace(micros(5_000_000));
    assert_eq!(usual.offer(micros(5_000_000), 512), Fate::Deliver { at: micros(5_000_256) });
}

#[test]
fn packets_that_wait_as_a_trace_begins_anew_keep_their_times() {
    let trace = "0 8mbit\n1 0\n9 8mbit".parse().ok();
    let config = DirectionConfig { trace, trace_begins_with_data: true, ..megabyte_a_second() };
    let mut link = Direction::new(config, 1).unwrap();
    assert_eq!(link.offer(micros(1_500_000), 100), Fate::Deliver { at: micros(9_000_100) });
    // The outage is over, but none overtakes the packet whose time was told.
    assert_eq!(link.offer(micros(2_000_000), 1_000), Fate::Deliver { at: micros(9_000_100) });
    assert_eq!(link.backlog_bytes(micros(2_000_000)), 1_100);
    let counters = [9_000_099, 9_000_100].map(|at| link.counters(micros(at)).delivered_packets);
    assert_eq!(counters, [0, 2]);
}

#[test]
fn random_loss_comes_before_the_queue() {
    let config = DirectionConfig { loss: Loss::Uniform { probability: 1.0 }, ..megabyte_a_second() };
    let mut link = Direction::new(config, 1).unwrap();
    assert_eq!(link.offer(micros(0), 1_000), Fate::Drop(Cause::Random));
    assert_eq!(link.backlog_bytes(micros(0)), 0);
}

#[test]
fn a_clock_that_goes_back_stands_still() {
    let mut link = Direction::new(megabyte_a_second(), 1).unwrap();
    assert_eq!(link.offer(micros(5_000), 1_000), Fate::Deliver { at: micros(6_000) });
    assert_eq!(link.offer(micros(4_000), 1_000), Fate::Deliver { at: micros(7_000) });
    assert_eq!(link.counters(micros(1)).queued_packets, 2);
}

#[test]
fn jitter_stays_in_its_band_and_reorders_only_when_asked() {
    let spread = |reorder| {
        let config = DirectionConfig {
            delay: Nanos::from_millis(20),
            jitter: Nanos::from_millis(5),
            reorder,
            ..DirectionConfig::default()
        };
        let mut link = Direction::new(config, 3).unwrap();
        (0..10_000_u64)
            .map(|packet| delivery(link.offer(micros(packet), 100)).unwrap().0 - packet * 1_000)
            .collect::<Vec<u64>>()
    };
    let free = spread(true);
    assert!(free.iter().all(|delay| (15_000_000..=25_000_000).contains(delay)));
    let mean = free.iter().sum::<u64>() / 10_000;
    // Standard deviation of the mean: 2.9 ms / 100.
    assert!((19_850_000..20_150_000).contains(&mean), "{mean}");
    assert!(free.windows(2).any(|pair| pair[1] + 1_000 < pair[0]), "some overtake");
    assert!(spread(false).windows(2).all(|pair| pair[1] + 1_000 >= pair[0]), "none overtakes");
}

#[test]
fn counters_weigh_by_time() {
    // A packet of 1 ms every 2 ms: half busy; the backlog falls from 1,000 to 0, with a mean of 500 while busy.
    let mut link = Direction::new(megabyte_a_second(), 1).unwrap();
    for packet in 0..1_000 {
        link.offer(micros(packet * 2_000), 1_000);
    }
    let counters = link.counters(micros(2_000_000));
    assert_eq!(counters.utilisation, 0.5);
    assert_eq!(counters.queue_mean_bytes, 250);
    assert_eq!(counters.queue_max_bytes, 1_000);
    assert!((870..=930).contains(&counters.queue_p95_bytes), "{}", counters.queue_p95_bytes);
    assert_eq!((counters.delivered_packets, counters.delivered_bytes), (1_000, 1_000_000));
}

#[test]
fn cross_traffic_takes_its_share_of_rate_and_queue() {
    let cross =
        CrossTraffic { rate: BitRate(6_000_000), packet_bytes: 1_000, pattern: CrossPattern::Constant };
    let mut link = Direction::new(DirectionConfig { cross: Some(cross), ..megabyte_a_second() }, 1).unwrap();
    // Own load of 4 Mbit/s beside 6 on a link of 8: the queue is full, and 8 of 10 packets pass, own or cross.
    for packet in 0..20_000 {
        link.offer(micros(packet * 2_000), 1_000);
    }
    let counters = link.counters(micros(40_000_000));
    assert!(counters.utilisation > 0.999);
    assert!(counters.cross_offered_packets.abs_diff(30_000) <= 1);
    let passed = counters.delivered_packets + counters.cross_delivered_packets;
    assert!((39_980..=40_000).contains(&passed), "{passed}");
    let dropped = counters.drops_queue_packets + counters.cross_drops_packets;
    assert!((9_980..=10_020).contains(&dropped), "{dropped}");
    assert!(counters.queue_mean_bytes > 8_000);
}

#[test]
fn without_a_rate_there_is_no_queue() {
    let config = DirectionConfig {
        queue: QueueLimit::Packets(1),
        trace: "0 - 3ms\n1 - 4ms".parse().ok(),
        ..DirectionConfig::default()
    };
    let mut link = Direction::new(config, 1).unwrap();
    for _ in 0..3 {
        assert_eq!(link.offer(micros(7), 65_535), Fate::Deliver { at: micros(3_007) });
    }
    assert_eq!(link.offer(micros(1_000_000), 1), Fate::Deliver { at: micros(1_004_000) });
    let counters = link.counters(micros(1_000_000));
    assert_eq!((counters.delivered_packets, counters.queued_packets, counters.utilisation), (4, 0, 0.0));
}

#[test]
fn absurd_times_and_sizes_saturate() {
    let config = DirectionConfig {
        rate: Some(BitRate(1)),
        delay: Nanos(u64::MAX),
        jitter: Nanos(u64::MAX),
        queue: QueueLimit::Unlimited,
        ..DirectionConfig::default()
    };
    let mut link = Direction::new(config, 1).unwrap();
    for _ in 0..10 {
        assert!(delivery(link.offer(Nanos(u64::MAX), u32::MAX)).is_some());
    }
    assert_eq!(link.counters(Nanos(u64::MAX)).offered_packets, 10);
}
