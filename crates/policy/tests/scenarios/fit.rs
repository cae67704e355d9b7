//! `fit` at the sender alone over a grid of paths: the whole path, an empty queue, no drops.

use std::fmt::Write as _;

use bufwise_link::{Path, QueueLimit, QueueSize};
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::sender::MSS;
use crate::subject::{ABT, FIT, Subject};
use crate::world::World;

const SECONDS: u64 = 15;
/// A path on which `fit` is judged.
#[derive(Clone, Copy)]
struct Cell {
    mbit: u64,
    rtt_ms: u64,
    /// Sixteenths of a bandwidth-delay product.
    queue: u64,
}

impl Cell {
    fn rtt(self) -> Nanos {
        Nanos::from_millis(self.rtt_ms)
    }

    fn run(self, subject: Subject, algorithm: Algorithm) -> Outcome {
        let rate: BitRate = format!("{}mbit", self.mbit).parse().expect("a rate");
        let bytes = (self.mbit * self.rtt_ms * 1_000 / 8 * self.queue / 16).max(8 * 1_514);
        let queue = QueueSize::Limit(QueueLimit::Bytes(bytes));
        let path = Path::builder().rate(rate).rtt(self.rtt()).queue(queue);
        World::new(path.build(1).expect("a path"), self.rtt(), subject, algorithm, false).run(SECONDS)
    }

    /// Payload rate of the path, Mbit/s.
    fn payload(self) -> f64 {
        self.mbit as f64 * MSS as f64 / (MSS + 66) as f64
    }

    /// Goodput of a slow start that doubles until the path is full, and then fills it.
    fn ceiling(self) -> f64 {
        let (rtt, rate) = (self.rtt_ms as f64 / 1e3, self.payload() * 1e6 / 8.0);
        let (mut window, mut sent, mut time) = (10.0 * MSS as f64, 0.0, 0.0);
        while window < rate * rtt {
            sent += window;
            window *= 2.0;
            time += rtt;
        }
        (sent + rate * (SECONDS as f64 - time - rtt / 2.0)) * 8.0 / 1e6 / SECONDS as f64
    }
}

fn grid() -> Vec<Cell> {
    let mut cells = Vec::new();
    for mbit in [10, 30, 100, 300] {
        for rtt_ms in [5, 20, 40, 100, 200] {
            for queue in [1, 2, 8, 16, 80] {
                if mbit * rtt_ms <= 30_000 {
                    cells.push(Cell { mbit, rtt_ms, queue });
                }
            }
        }
    }
    cells
}

#[test]
fn over_a_grid() {
    let only = std::env::var("CELL").ok();
    let mut text = String::new();
    for cell in grid() {
        if only.as_ref().is_some_and(|o| *o != format!("{},{},{}", cell.mbit, cell.rtt_ms, cell.queue)) {
            continue;
        }
        for algorithm in [Algorithm::Cubic] {
            let kernel = cell.run(ABT, algorithm);
            let fit = cell.run(FIT, algorithm);
            let _ = writeln!(
                text,
                "{:>4} Mbit/s {:>3} ms q {:>2}/16 {:<5} | {:>5.1}% {:>5} {:>5.0} | {:>5.1}% {:>5} {:>5.1} ms, {:.0} KiB of {:.0} {}",
                cell.mbit,
                cell.rtt_ms,
                cell.queue,
                algorithm.name(),
                100.0 * kernel.mbit() / cell.ceiling(),
                kernel.drops,
                kernel.rtt_ms(),
                100.0 * fit.mbit() / cell.ceiling(),
                fit.drops,
                fit.rtt_ms(),
                fit.peak_flight >> 10,
                cell.mbit as f64 * cell.rtt_ms as f64 * 1000.0 / 8.0 / 1024.0,
                if fit.mbit() < 0.98 * cell.ceiling()
                    || fit.drops * 10 > kernel.drops
                    || fit.rtt_ms() > (cell.rtt_ms as f64 * 1.1).max(cell.rtt_ms as f64 + 2.0)
                {
                    "<<<"
                } else {
                    ""
                }
            );
        }
    }
    eprintln!("{text}");
}
