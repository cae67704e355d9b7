//! `fit` at the sender alone, over a grid of paths: it uses the whole path with an empty queue and without drops.

use bufwise_link::{DirectionConfig, Path, QueueLimit, QueueSize};
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::sender::MSS;
use crate::subject::{ABT, FIT, FIT_BOTH, FIT_SAMPLED, FIT_WINDOW, Subject};
use crate::world::World;

const SECONDS: u64 = 15;

/// A path of the grid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    pub(crate) mbit: u64,
    pub(crate) rtt_ms: u64,
    /// Length of the queue, in sixteenths of the BDP.
    pub(crate) queue: u64,
}

impl Cell {
    fn rtt(self) -> Nanos {
        Nanos::from_millis(self.rtt_ms)
    }

    pub(crate) fn run(self, subject: Subject, algorithm: Algorithm) -> Outcome {
        let rate: BitRate = format!("{}mbit", self.mbit).parse().expect("a rate");
        let bytes = (self.mbit * self.rtt_ms * 1_000 / 8 * self.queue / 16).max(12 * 1_514);
        let queue = QueueSize::Limit(QueueLimit::Bytes(bytes));
        let path = Path::builder().rate(rate).rtt(self.rtt()).queue(queue);
        World::new(path.build(1).expect("a path"), self.rtt(), subject, algorithm, false).run(SECONDS)
    }

    /// Capacity of the path in payload, Mbit/s.
    fn payload(self) -> f64 {
        self.mbit as f64 * MSS as f64 / (MSS + 66) as f64
    }

    /// Goodput (Mbit/s) of an ideal sender, which doubles its window until the path is full, and then keeps it full.
    pub(crate) fn ceiling(self) -> f64 {
        self.ceiling_over(SECONDS)
    }

    /// The same over `seconds`.
    pub(crate) fn ceiling_over(self, seconds: u64) -> f64 {
        let (rtt, rate) = (self.rtt_ms as f64 / 1e3, self.payload() * 1e6 / 8.0);
        let (mut window, mut sent, mut time) = (10.0 * MSS as f64, 0.0, 0.0);
        while window < rate * rtt {
            sent += window;
            window *= 2.0;
            time += rtt;
        }
        (sent + rate * (seconds as f64 - time - rtt / 2.0)) * 8.0 / 1e6 / seconds as f64
    }
}

/// Returns every other path of a grid of rates, round trips and queues; a queue holds at least 24 packets.
fn grid() -> Vec<Cell> {
    let mut cells = Vec::new();
    for mbit in [10, 30, 100, 300] {
        for rtt_ms in [20, 40, 100, 200] {
            for queue in [2, 8, 80] {
                let packets = mbit * rtt_ms * 1_000 / 8 * queue / 16 / 1_514;
                if mbit * rtt_ms <= 12_000 && packets >= 24 {
                    cells.push(Cell { mbit, rtt_ms, queue });
                }
            }
        }
    }
    cells.into_iter().step_by(2).collect()
}

/// With a queue of an eighth of the BDP or more, nothing is dropped, and the path is used from the start.
#[test]
fn at_the_sender_alone_it_has_the_whole_path_an_empty_queue_and_no_drops() {
    for cell in grid() {
        for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
            let run = cell.run(FIT, algorithm);
            let (goodput, ceiling) = (run.mbit(), cell.ceiling());
            let named = format!("{cell:?}, {}", algorithm.name());
            assert_eq!(run.drops, 0, "{named}");
            // A step takes two round trips: at 200 ms the search takes some of the 15 s.
            assert!(goodput >= 0.975 * ceiling, "{named}: {goodput:.1} of {ceiling:.1} Mbit/s");
            // The mean is at most 5% longer, plus the time of two segments, by which the handshake's small packets are
            // faster.
            let segments_ms = 2.0 * 12.1 / cell.mbit as f64;
            let most = cell.rtt_ms as f64 * 1.05 + segments_ms;
            assert!(run.rtt_ms() <= most, "{named}: {:.1} ms", run.rtt_ms());
            let product = cell.payload() * 1e6 / 8.0 * cell.rtt_ms as f64 / 1e3;
            assert!(
                run.peak_flight as f64 <= 1.15 * product + 20_000.0,
                "{named}: {} bytes",
                run.peak_flight
            );
        }
    }
}

/// The engine without privilege takes a sample per millisecond instead of one per acknowledgement. Trains are timed
/// less precisely, so a short queue may overflow once, by some packets.
#[test]
fn samples_of_a_millisecond_are_nearly_as_good() {
    for cell in grid() {
        let (sampled, kernel) = (cell.run(FIT_SAMPLED, Algorithm::Cubic), cell.run(ABT, Algorithm::Cubic));
        let (goodput, ceiling) = (sampled.mbit(), cell.ceiling());
        assert!(goodput >= 0.96 * ceiling, "{cell:?}: {goodput:.1} of {ceiling:.1} Mbit/s");
        assert!(sampled.drops * 10 <= kernel.drops, "{cell:?}: {} drops v. {}", sampled.drops, kernel.drops);
        assert!(sampled.rtt_ms() <= cell.rtt_ms as f64 * 1.05 + 24.2 / cell.mbit as f64, "{cell:?}");
    }
}

/// With queues of a sixteenth of the BDP, `fit` reaches CUBIC's goodput; on paths shorter than 2 ms it leaves CUBIC
/// alone.
#[test]
fn where_there_is_no_evidence_it_is_the_kernel() {
    for (mbit, rtt_ms) in [(100, 20), (300, 40), (30, 20)] {
        let cell = Cell { mbit, rtt_ms, queue: 1 };
        let (kernel, fit) = (cell.run(ABT, Algorithm::Cubic), cell.run(FIT, Algorithm::Cubic));
        assert!(fit.mbit() >= 0.99 * kernel.mbit(), "{cell:?}: {} v. {}", fit.mbit(), kernel.mbit());
        // Such a queue is shorter than the overshoot of the search for a first roof.
        assert!(fit.drops * 5 <= kernel.drops * 8, "{cell:?}: {} v. {}", fit.drops, kernel.drops);
    }
    let near = Cell { mbit: 300, rtt_ms: 1, queue: 80 };
    let (kernel, fit) = (near.run(ABT, Algorithm::Cubic), near.run(FIT, Algorithm::Cubic));
    assert!((0.99..=1.01).contains(&(fit.mbit() / kernel.mbit())), "{} v. {}", fit.mbit(), kernel.mbit());
}

/// A host or a radio link pauses again and again, also during the start: the rate delivered in such a round trip is not
/// the path's capacity.
#[test]
fn pauses_of_the_path_cost_little_more_than_they_last() {
    let rtt = Nanos::from_millis(50);
    let queue = "480ms".parse().expect("a queue");
    let rate: BitRate = "100mbit".parse().expect("a rate");
    let (forward, backward) = Path::builder().rate(rate).rtt(rtt).queue(queue).configs();
    for (pause_ms, every_ms) in [(10, 160), (20, 520), (25, 1_325)] {
        let (begin, end) = (f64::from(every_ms - pause_ms) / 1e3, f64::from(every_ms) / 1e3);
        let trace = format!("0 100mbit\n{begin} 0\n{end} repeat");
        let left = 95.6 * (1.0 - f64::from(pause_ms) / f64::from(every_ms));
        for (subject, share) in [(FIT, 0.93), (FIT_SAMPLED, 0.93), (FIT_WINDOW, 0.9), (FIT_BOTH, 0.85)] {
            let forward = DirectionConfig { trace: Some(trace.parse().expect("a trace")), ..forward.clone() };
            let path = Path::new(forward, backward.clone(), 1).expect("a path");
            let run = World::new(path, rtt, subject, Algorithm::Cubic, false).run(SECONDS);
            let named = format!("{pause_ms} ms every {every_ms}, {}", subject.name());
            assert!(run.mbit() > share * left, "{named}: {} of {left} Mbit/s", run.mbit());
            // If pauses are frequent, a queue of their length is allowed; with the kernel alone the round trip is 320
            // ms.
            assert!(run.rtt_ms() < 75.0, "{named}: {} ms", run.rtt_ms());
        }
    }
}
