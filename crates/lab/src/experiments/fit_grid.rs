//! `fit` over a grid of paths: rate, RTT and queue, from either end, over three congestion controls.

use bufwise_link::Draw;

use super::cell::{Cell, Queue};
use super::fit::{self, BOTH, LARGE, PAIR, RECEIVER, SENDER, SLACK};
use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way};

const RATES: [u64; 4] = [10_000_000, 100_000_000, 500_000_000, 1_000_000_000];
const RTTS_MS: [u64; 5] = [5, 20, 40, 100, 200];
/// Duration of a flow, slow start included, s.
const SECONDS: u32 = 15;
/// Smallest queue in packets: a shorter one drops packets of every window, whatever the sender does.
const LEAST_QUEUE: u32 = 2;

/// Seed of the list of cells, so that the list stays the same.
const SEED: u64 = 20_261_122;
const CELLS: usize = 40;
/// Numbers of cells with other congestion controls below `fit`, and with `fit` at the receiver's end.
const OTHERS_BELOW: usize = 10;
const OTHER_ENDS: usize = 15;
/// Valid runs in the corners of the grid.
const CORNER_REPEAT: u32 = 5;

const CUBIC: &str = "cubic";
const BBR: &str = "bbr";
const RENO: &str = "reno";
const OVER_RENO: &str = "fit over reno";
const OVER_BBR: &str = "fit over bbr";

pub(super) fn experiments() -> Vec<Experiment> {
    vec![Experiment {
        id: "fit-grid",
        source: "engine",
        question: "Does a download over forty paths reach the full rate, without drops and queues, with one BDP of memory?",
        scale: "iperf3 for 15 s, slow start included; maxima of 64 MB at both ends; medians of three valid runs, five in the \
            corners. The ceiling is an ideal slow start, then the link's payload rate.",
        way: Way::Download,
        cases: cells().into_iter().map(Chosen::case).collect(),
        methods: methods(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::Drops,
            Quantity::LateDrops,
            Quantity::RttMeanS,
            Quantity::HeldPeakBytes,
            Quantity::ReceiveHeldPeakBytes,
            Quantity::RampUpS,
        ],
        targets: targets(),
        counts_cost: false,
        survey: true,
    }]
}

/// A cell of the list, and what runs in it.
#[derive(Clone, Copy, Debug)]
struct Chosen {
    cell: Cell,
    corner: bool,
    others_below: bool,
    other_ends: bool,
    quick: bool,
}

impl Chosen {
    fn case(self) -> Case {
        let mut methods = vec![CUBIC, BBR, PAIR, SENDER];
        if self.other_ends {
            methods.extend([RECEIVER, BOTH]);
        }
        if self.others_below {
            methods.extend([RENO, OVER_RENO, OVER_BBR]);
        }
        let case = download(self.cell, self.cell.seconds);
        let repeat = self.corner.then_some(CORNER_REPEAT);
        Case { quick: self.quick, setup: Setup { methods, repeat, ..case.setup.clone() }, ..case }
    }
}

/// Makes a case of a download over a cell's path. `--quick` does not run it unless set later; there it takes
/// `quick_seconds`.
pub(super) fn download(cell: Cell, quick_seconds: u32) -> Case {
    Case {
        name: cell.to_string(),
        paths: vec![cell.path()],
        flows: vec![Flow { amount: Amount::Seconds(cell.seconds, quick_seconds), ..Flow::default() }],
        memory: None,
        quick: false,
        setup: Setup { cell: Some(cell), ..Setup::default() },
    }
}

/// Returns the corners of the grid, in its order.
pub(super) fn corners() -> Vec<Cell> {
    let grid = grid();
    grid.iter().filter(|cell| is_corner(cell, &grid)).copied().collect()
}

/// Returns every path whose queue holds at least some packets, in the order of the grid.
fn grid() -> Vec<Cell> {
    let paths = RATES.into_iter().flat_map(|rate| RTTS_MS.map(|rtt| (rate, rtt)));
    let cell =
        |(rate_bps, rtt_ms)| Queue::ALL.map(|queue| Cell { rate_bps, rtt_ms, queue, seconds: SECONDS });
    paths.flat_map(cell).filter(|cell| cell.holds(LEAST_QUEUE)).collect()
}

/// Whether the cell is a corner: the smallest or the deepest queue of a path whose rate and RTT are both extremes.
fn is_corner(cell: &Cell, grid: &[Cell]) -> bool {
    let extreme = |all: &[u64], value| all.first() == Some(&value) || all.last() == Some(&value);
    let of_path = |other: &&Cell| (other.rate_bps, other.rtt_ms) == (cell.rate_bps, cell.rtt_ms);
    let smallest = grid.iter().find(of_path).map(|other| other.queue);
    extreme(&RATES, cell.rate_bps)
        && extreme(&RTTS_MS, cell.rtt_ms)
        && (Some(cell.queue) == smallest || cell.queue == Queue::HalfSecond)
}

/// Draws the corners and a sample of the other cells: equally many of each rate, with every RTT and every queue among
/// them.
fn sample(draw: &mut Draw, grid: &[Cell]) -> Vec<Cell> {
    let mut cells: Vec<Cell> = Vec::new();
    for rate in RATES {
        let of_rate = || grid.iter().filter(move |cell| cell.rate_bps == rate);
        let mut chosen: Vec<Cell> = of_rate().filter(|cell| is_corner(cell, grid)).copied().collect();
        for rtt in RTTS_MS {
            if chosen.iter().all(|cell| cell.rtt_ms != rtt) {
                let new = |cell: &&Cell| chosen.iter().all(|other| other.queue != cell.queue);
                let of_path = || of_rate().filter(|cell| cell.rtt_ms == rtt);
                let better: Vec<Cell> = of_path().filter(new).copied().collect();
                let any = if better.is_empty() { of_path().copied().collect() } else { better };
                chosen.extend(draw.sample(any, 1));
            }
        }
        for queue in Queue::ALL {
            if chosen.iter().all(|cell| cell.queue != queue) {
                let with_queue = of_rate().filter(|cell| cell.queue == queue).copied();
                chosen.extend(draw.sample(with_queue.collect(), 1));
            }
        }
        let left = of_rate().filter(|cell| !chosen.contains(cell)).copied().collect();
        chosen.extend(draw.sample(left, (CELLS / RATES.len()).saturating_sub(chosen.len())));
        cells.extend(chosen);
    }
    cells.sort();
    cells
}

/// Returns the list, in the order of the grid.
fn cells() -> Vec<Chosen> {
    let mut draw = Draw(SEED);
    let grid = grid();
    let cells = sample(&mut draw, &grid);
    let others_below = draw.sample(cells.clone(), OTHERS_BELOW);
    let other_ends = draw.sample(cells.clone(), OTHER_ENDS);
    let quick = quick(&cells, &others_below);
    let chosen = |cell: Cell| Chosen {
        cell,
        corner: is_corner(&cell, &grid),
        others_below: others_below.contains(&cell),
        other_ends: other_ends.contains(&cell),
        quick: quick.contains(&cell),
    };
    cells.into_iter().map(chosen).collect()
}

/// Returns a shallow and a deep queue of each rate, if possible from cells without other congestion controls, which
/// take fewer runs.
fn quick(cells: &[Cell], slow: &[Cell]) -> Vec<Cell> {
    let of = |rate: u64, deep: bool| {
        let fits = |cell: &&Cell| cell.rate_bps == rate && (cell.queue >= Queue::Bdp) == deep;
        let (slow, fitting): (Vec<&Cell>, Vec<&Cell>) =
            cells.iter().filter(fits).partition(|cell| slow.contains(cell));
        fitting.get(fitting.len() / 2).or(slow.first()).map(|cell| **cell)
    };
    RATES.into_iter().flat_map(|rate| [of(rate, false), of(rate, true)]).flatten().collect()
}

fn methods() -> Vec<Method> {
    let kernel =
        |name| Method { name, congestion_control: name, rmem: LARGE, wmem: LARGE, ..Method::default() };
    let over = |name, below| {
        let [sender, ..] = fit::methods(&kernel(below));
        Method { name, ..sender }
    };
    let pair = Method { name: PAIR, server: Some(PAIR), ..kernel(CUBIC) };
    let plain = [kernel(CUBIC), kernel(BBR), pair].into_iter().chain(fit::methods(&kernel(CUBIC)));
    plain.chain([kernel(RENO), over(OVER_RENO, RENO), over(OVER_BBR, BBR)]).collect()
}

fn targets() -> Vec<Target> {
    let of = |method, ceiling, best, held: &[Quantity]| {
        let memory = |held: &Quantity| Target::new(method, *held, Bound::WithinOwnProducts(1.5, SLACK));
        let mut targets = vec![
            Target::new(method, Quantity::GoodputBps, Bound::AtLeastOfCeiling(ceiling)),
            Target::new(method, Quantity::GoodputBps, Bound::AtLeastTimesBest(best, [CUBIC, BBR])),
            Target::new(method, Quantity::LateDrops, Bound::AtMost(0.0)),
            Target::new(method, Quantity::Drops, Bound::AtMostTimes(0.1, CUBIC, 0.0)),
            Target::new(method, Quantity::RttMeanS, Bound::NearRtt(0.1, 0.002)),
        ];
        targets.extend(held.iter().map(memory));
        targets
    };
    let (sends, receives) = (Quantity::HeldPeakBytes, Quantity::ReceiveHeldPeakBytes);
    [
        of(SENDER, 0.98, 0.99, &[sends]),
        of(RECEIVER, 0.97, 0.98, &[receives]),
        of(BOTH, 0.98, 0.99, &[sends, receives]),
        of(OVER_RENO, 0.98, 0.99, &[sends]),
        of(OVER_BBR, 0.98, 0.99, &[sends]),
    ]
    .concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: [&str; 20] = [
        "10 Mbit/s x 5 ms: BDP/2, BDP, 500 ms",
        "10 Mbit/s x 20 ms: BDP/8",
        "10 Mbit/s x 40 ms: BDP, 5 BDP",
        "10 Mbit/s x 100 ms: 5 BDP",
        "10 Mbit/s x 200 ms: BDP/16, BDP/8, 500 ms",
        "100 Mbit/s x 5 ms: 500 ms",
        "100 Mbit/s x 20 ms: BDP/8, BDP/2, 5 BDP, 500 ms",
        "100 Mbit/s x 40 ms: BDP/2, BDP",
        "100 Mbit/s x 100 ms: BDP/16",
        "100 Mbit/s x 200 ms: BDP/16, BDP",
        "500 Mbit/s x 5 ms: BDP/8, BDP/2, BDP, 500 ms",
        "500 Mbit/s x 20 ms: 5 BDP",
        "500 Mbit/s x 40 ms: BDP/8, BDP/2",
        "500 Mbit/s x 100 ms: BDP, 5 BDP",
        "500 Mbit/s x 200 ms: BDP/16",
        "1 Gbit/s x 5 ms: BDP/16, BDP, 500 ms",
        "1 Gbit/s x 20 ms: 5 BDP",
        "1 Gbit/s x 40 ms: BDP/8",
        "1 Gbit/s x 100 ms: BDP/2, BDP",
        "1 Gbit/s x 200 ms: BDP/16, BDP, 500 ms",
    ];

    #[test]
    fn the_list_has_forty_cells_with_the_corners() {
        let cells = cells();
        let count = |of: fn(&Chosen) -> bool| cells.iter().filter(|chosen| of(chosen)).count();
        assert_eq!(cells.len(), CELLS);
        assert_eq!(count(|chosen| chosen.corner), 8);
        assert_eq!((count(|chosen| chosen.others_below), count(|chosen| chosen.other_ends)), (10, 15));
        assert!(cells.windows(2).all(|pair| pair[0].cell < pair[1].cell), "in order, each once");
        let names: Vec<String> =
            cells.iter().filter(|chosen| chosen.corner).map(|chosen| chosen.cell.to_string()).collect();
        assert_eq!(
            names,
            [
                "10 Mbit/s x 5 ms, BDP/2",
                "10 Mbit/s x 5 ms, 500 ms",
                "10 Mbit/s x 200 ms, BDP/16",
                "10 Mbit/s x 200 ms, 500 ms",
                "1 Gbit/s x 5 ms, BDP/16",
                "1 Gbit/s x 5 ms, 500 ms",
                "1 Gbit/s x 200 ms, BDP/16",
                "1 Gbit/s x 200 ms, 500 ms",
            ]
        );
        for (rate, queue) in RATES.iter().flat_map(|rate| Queue::ALL.map(|queue| (*rate, queue))) {
            let there = |chosen: &Chosen| (chosen.cell.rate_bps, chosen.cell.queue) == (rate, queue);
            assert!(cells.iter().any(there), "{rate}, {queue}");
        }
        for (rate, rtt) in RATES.iter().flat_map(|rate| RTTS_MS.map(|rtt| (*rate, rtt))) {
            let of_path = |chosen: &Chosen| (chosen.cell.rate_bps, chosen.cell.rtt_ms) == (rate, rtt);
            assert!(cells.iter().any(of_path), "{rate} x {rtt}");
        }
    }

    #[test]
    fn the_quick_form_has_a_shallow_and_a_deep_queue_of_each_rate() {
        let quick: Vec<Chosen> = cells().into_iter().filter(|chosen| chosen.quick).collect();
        assert_eq!(quick.len(), 8);
        for rate in RATES {
            let deep = quick.iter().filter(|chosen| chosen.cell.rate_bps == rate);
            let deep: Vec<bool> = deep.map(|chosen| chosen.cell.queue >= Queue::Bdp).collect();
            assert!(deep.len() == 2 && deep.contains(&true) && deep.contains(&false), "{rate}: {deep:?}");
        }
        assert!(quick.iter().any(|chosen| chosen.other_ends));
    }

    #[test]
    fn the_list_is_stable() {
        // Results of one version must be resumable by the next, and comparable with its own.
        let cells = cells();
        let paths = cells.chunk_by(|one, other| one.cell.row() == other.cell.row());
        let line = |of_path: &[Chosen]| {
            let queues: Vec<String> = of_path.iter().map(|chosen| chosen.cell.queue.to_string()).collect();
            format!("{}: {}", of_path[0].cell.row(), queues.join(", "))
        };
        assert_eq!(paths.map(line).collect::<Vec<_>>(), LIST);
    }
}
