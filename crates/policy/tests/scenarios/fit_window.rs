//! `fit` at the receiver alone, and at both ends, over a grid of paths.

use std::fmt::Write as _;

use crate::congestion::Algorithm;
use crate::fit::Cell;
use crate::subject::{ABT, FIT_BOTH, FIT_WINDOW};

fn grid() -> Vec<Cell> {
    let mut cells = Vec::new();
    for mbit in [10, 30, 100, 300] {
        for rtt_ms in [5, 20, 40, 100, 200] {
            for queue in [1, 2, 4, 16, 80] {
                if mbit * rtt_ms <= 30_000 {
                    cells.push(Cell { mbit, rtt_ms, queue });
                }
            }
        }
    }
    cells
}

#[test]
fn window_over_a_grid() {
    let only = std::env::var("CELL").ok();
    let both = std::env::var_os("BOTH").is_some();
    let mut text = String::new();
    for cell in grid() {
        if only.as_ref().is_some_and(|o| *o != format!("{},{},{}", cell.mbit, cell.rtt_ms, cell.queue)) { continue; }
        for algorithm in [Algorithm::Cubic, Algorithm::Reno] {
            let kernel = cell.run(ABT, algorithm);
            let fit = cell.run(if both {FIT_BOTH} else {FIT_WINDOW}, algorithm);
            let _ = writeln!(
                text,
                "{:>4} Mbit/s {:>3} ms q {:>2}/16 {:<5} | {:>5.1}% {:>5} {:>5.0} | {:>5.1}% {:>5} {:>5.1} ms, {:.0} KiB of {:.0} {}{}{}",
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
                if fit.mbit() < 0.97 * cell.ceiling() {"G"} else {""},
                if fit.drops * 10 > kernel.drops {"D"} else {""},
                if fit.rtt_ms() > (cell.rtt_ms as f64 * 1.1).max(cell.rtt_ms as f64 + 2.0) {"R"} else {""},
            );
            if only.is_some() {
                for p in &fit.points {
                    let _ = writeln!(text, "   {:.1} {:.2} Mbit/s rtt {:.1} queue {} window {}", p.seconds, p.bits_per_sec/1e6, p.rtt_ms, p.queue_bytes, p.window_bytes);
                }
            }
        }
    }
    eprintln!("{text}");
}
