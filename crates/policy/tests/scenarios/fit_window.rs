//! `fit` at the receiver alone and at both ends, over a grid of paths: it uses the whole path with a short queue and
//! hardly a drop.

use bufwise_link::{DirectionConfig, Path};
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::fit::Cell;
use crate::outcome::Outcome;
use crate::pauses::Pauses;
use crate::subject::{ABT, FIT_BOTH, FIT_WINDOW, KERNEL, Subject};
use crate::world::World;

/// Paths on which all assertions hold: rate (Mbit/s), round trip (ms), queue (16ths of the BDP).
///
/// The grid excludes queues of a sixteenth on paths of 10 to 40 ms below 300 Mbit/s and on paths beyond 40 ms, which
/// are shorter than the first flights or than a step of the ramp. It also excludes paths of less than 20 segments, on
/// which two segments are a tenth of the round trip.
const GRID: [(u64, u64, u64); 12] = [
    (10, 100, 16),
    (30, 40, 2),
    (30, 200, 2),
    (100, 5, 1),
    (100, 20, 4),
    (100, 40, 2),
    (100, 100, 2),
    (100, 200, 4),
    (300, 5, 16),
    (300, 20, 2),
    (300, 40, 1),
    (300, 40, 80),
];

/// Asserts a goodput of at least `share` hundredths of the ceiling, at most a tenth of the kernel's drops, and a mean
/// round trip at most a tenth or 2 ms longer than the shortest.
fn assert_fits(subject: Subject, grid: &[(u64, u64, u64)], share: f64) {
    for &(mbit, rtt_ms, queue) in grid {
        let cell = Cell { mbit, rtt_ms, queue };
        for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
            let (kernel, fit) = (cell.run(ABT, algorithm), cell.run(subject, algorithm));
            let what = format!("{mbit} Mbit/s, {rtt_ms} ms, {queue}/16, {}", algorithm.name());
            let reached = 100.0 * fit.mbit() / cell.ceiling();
            assert!(reached >= share, "{what}: {reached:.1}%");
            assert!(fit.drops * 10 <= kernel.drops, "{what}: {} drops for {}", fit.drops, kernel.drops);
            let longest = (rtt_ms as f64 * 1.1).max(rtt_ms as f64 + 2.0);
            assert!(fit.rtt_ms() <= longest, "{what}: {:.1} ms", fit.rtt_ms());
        }
    }
}

#[test]
fn a_receiver_alone_has_the_path_and_leaves_the_queue_empty() {
    assert_fits(FIT_WINDOW, &GRID, 97.0);
}

#[test]
fn both_ends_at_once_agree() {
    // Both ramps follow each other, and the receiver's first trial comes on top: the lowest is 96.8.
    assert_fits(FIT_BOTH, &[(30, 40, 16), (100, 20, 4), (100, 40, 2), (300, 100, 80)], 96.5);
}

/// While the sender recovers from an overflow, the window is larger by what arrives behind the holes: no burst follows when these
/// are filled.
#[test]
fn a_queue_that_the_start_overflows_costs_no_more_than_without() {
    for (mbit, rtt_ms) in [
        (10, 100),
        (30, 80),
        (30, 200),
        (100, 20),
        (100, 40),
        (100, 60),
        (100, 100),
        (100, 200),
        (300, 20),
        (300, 60),
        (300, 200),
    ] {
        let cell = Cell { mbit, rtt_ms, queue: 1 };
        for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
            let (kernel, fit) = (cell.run(KERNEL, algorithm), cell.run(FIT_WINDOW, algorithm));
            let named = format!("{mbit} Mbit/s, {rtt_ms} ms, {}", algorithm.name());
            // Over 200 ms, and beside Reno, both have the same within a thousandth.
            let least = if algorithm == Algorithm::Cubic && rtt_ms <= 40 { 1.0 } else { 0.999 };
            assert!(fit.mbit() > least * kernel.mbit(), "{named}: {} v. {}", fit.mbit(), kernel.mbit());
            // A trial of a larger window may drop a few segments more.
            assert!(fit.drops <= kernel.drops + 3, "{named}: {} v. {} drops", fit.drops, kernel.drops);
        }
    }
}

/// A document of 1 MB through a queue of one product, which takes slow start as it is. The ramp costs less than a third
/// of the time; a ramp of sixteen steps would cost three quarters (30 Mbit/s). Through a queue of an eighth, where slow
/// start loses segments, the document comes no later than from the kernel.
#[test]
fn a_document_waits_little_for_the_ramp() {
    for (mbit, rtt_ms, most) in
        [(10, 40, 1.05), (30, 40, 1.25), (50, 40, 1.35), (100, 20, 1.35), (100, 40, 1.2), (300, 40, 1.2)]
    {
        for (queue, most) in [(16, most), (2, 1.02)] {
            let cell = Cell { mbit, rtt_ms, queue };
            let [kernel, fit] =
                [KERNEL, FIT_WINDOW].map(|subject| cell.run(subject, Algorithm::Cubic).document);
            assert!(fit <= most * kernel, "{cell:?}: {fit:.3} s, the kernel's {kernel:.3} s");
        }
    }
}

/// A connection that shows room in the queue lets the next one to the same peer take larger steps. Through a queue of a quarter
/// of the BDP, a document of 1 MB then arrives within a twelfth of the kernel's time, without a drop. Through a queue of an
/// eighth, the larger steps lose segments, though fewer than the kernel's start does, and the connection after that has the
/// small steps again. After eight connections that have shown room, steps are twice as large again. Through a queue of one BDP
/// the document then arrives as soon as from the kernel. Through a queue of a quarter, it may lose about as many segments as the
/// kernel's start does; then steps do not grow for an hour.
#[test]
fn a_peer_is_remembered_by_what_its_queue_took() {
    for (mbit, rtt_ms) in [(30, 40), (50, 40), (100, 20), (100, 40), (100, 100), (300, 20), (300, 40)] {
        let run = |queue, subject| Cell { mbit, rtt_ms, queue }.run(subject, Algorithm::Cubic);
        for queue in [4, 16, 80] {
            let [kernel, first, second] =
                [KERNEL, FIT_WINDOW, FIT_WINDOW.with_room(1)].map(|subject| run(queue, subject));
            let what = format!("{mbit} Mbit/s, {rtt_ms} ms, {queue}/16: {:.3} s", second.document);
            assert_eq!((first.room, second.room), (1, 1), "{what}");
            assert!(second.document < first.document, "{what}, the first {:.3} s", first.document);
            assert!(
                second.document <= 13.0 / 12.0 * kernel.document,
                "{what}, the kernel {:.3} s",
                kernel.document
            );
            assert!(second.mbit() >= first.mbit() && second.drops == 0, "{what}: {} drops", second.drops);
            let tenth = run(queue, FIT_WINDOW.with_room(2));
            if queue > 4 {
                assert!(
                    tenth.document <= 1.03 * kernel.document,
                    "{what}, the tenth {:.3} s",
                    tenth.document
                );
                assert!(tenth.mbit() >= second.mbit() && (tenth.drops, tenth.room) == (0, 2), "{what}");
            } else {
                assert!(tenth.room == if tenth.drops > 0 { 1 } else { 2 }, "{what}, room {}", tenth.room);
                assert!(tenth.drops * 3 <= kernel.drops * 4, "{what}, the tenth {} drops", tenth.drops);
            }
        }
    }
    for (mbit, rtt_ms) in [(30, 40), (50, 40), (100, 20), (100, 40), (100, 100), (300, 20)] {
        let cell = Cell { mbit, rtt_ms, queue: 2 };
        let [kernel, first, second] =
            [KERNEL, FIT_WINDOW, FIT_WINDOW.with_room(1)].map(|subject| cell.run(subject, Algorithm::Cubic));
        assert_eq!((first.room, second.room), (1, 0), "{cell:?}");
        assert!(
            second.drops < kernel.drops && second.mbit() > kernel.mbit(),
            "{cell:?}: {} drops",
            second.drops
        );
    }
}

/// Runs 30 s over a path of 100 Mbit/s, 40 ms and a queue of half a BDP, changed as `trace` says; data start at 0.5 s.
fn over_a_trace(subject: Subject, trace: &str) -> Outcome {
    let rtt = Nanos::from_millis(40);
    let rate: BitRate = "100mbit".parse().expect("a rate");
    let (forward, backward) =
        Path::builder().rate(rate).rtt(rtt).queue("0.5bdp".parse().expect("a queue")).configs();
    let forward = DirectionConfig { trace: Some(trace.parse().expect("a trace")), ..forward };
    let path = Path::new(forward, backward, 1).expect("a path");
    World::new(path, rtt, subject, Algorithm::Cubic, false).run(30)
}

#[test]
fn a_path_that_changes_its_rate_is_followed() {
    let grows = over_a_trace(FIT_WINDOW, "10.5 200mbit\n20.5 100mbit");
    assert!(grows.mbit() > 1.05 * over_a_trace(ABT, "10.5 200mbit\n20.5 100mbit").mbit());
    assert!((120.0..127.5).contains(&grows.mbit()), "{}", grows.mbit());
    let falls = over_a_trace(FIT_WINDOW, "10.5 20mbit");
    let after = falls.points.iter().filter(|point| point.seconds > 15.0);
    for point in after {
        assert!(point.rtt_ms < 44.0 && point.bits_per_sec > 19e6, "{point:?}");
    }
}

#[test]
fn a_round_trip_that_grows_by_less_than_a_tenth_costs_no_rate() {
    let run = over_a_trace(FIT_WINDOW, "5.5 100mbit 23ms");
    assert!((93.0..95.7).contains(&run.mbit()) && run.drops == 0, "{}, {} drops", run.mbit(), run.drops);
    assert!(run.mbit_after(10.0) > 95.0, "{}", run.mbit_after(10.0));
}

/// A flow beside a CUBIC flow that began 4 s earlier, with a queue of four BDPs, on hosts that pause for some tenths of
/// a millisecond. The kernel's receiver gets 10 of 28.7 Mbit/s here. A window measured by the shortest round trip
/// instead of the present one would hold the flow far below that.
#[test]
fn a_window_left_open_beside_others_is_measured_by_the_present_round_trip() {
    let rtt = Nanos::from_millis(20);
    let mut own = 0.0;
    for seed in 1..=4 {
        let flow = |subject, number: u64, later| {
            let rate: BitRate = "30mbit".parse().expect("a rate");
            let path = Path::builder().rate(rate).rtt(rtt).queue("4bdp".parse().expect("a queue"));
            let [sender, receiver] = [0_u64, 1].map(|end| {
                let seed = 100 * seed + 2 * number + end;
                Pauses::drawn_in_micros(seed, (100, 800), (1_000, 8_000))
            });
            let world = World::new(path.build(seed).expect("a path"), rtt, subject, Algorithm::Cubic, false);
            (world.pausing(sender, receiver), later)
        };
        let flows = vec![flow(ABT, 0, Nanos::ZERO), flow(FIT_WINDOW, 1, Nanos::from_secs(4))];
        let runs = World::run_together(flows, 22);
        let shares = [runs[0].mbit_after(4.0), runs[1].mbit()];
        assert!(shares.iter().sum::<f64>() > 27.0, "seed {seed}: {shares:?} Mbit/s");
        own += shares[1] / 4.0;
    }
    assert!(own > 5.0, "{own} Mbit/s");
}
