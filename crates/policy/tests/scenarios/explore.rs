use bufwise_link::Path;
use bufwise_units::{BitRate, Nanos};

use crate::congestion::Algorithm;
use crate::outcome::Outcome;
use crate::pauses::Pauses;
use crate::fit::Cell;
use crate::subject::{ABT, FIT, FIT_BOTH, FIT_SAMPLED, FIT_WINDOW, Subject};
use crate::world::World;

fn var(name: &str, usual: &str) -> String {
    std::env::var(name).unwrap_or(usual.to_owned())
}

fn subjects(usual: &str) -> Vec<Subject> {
    var("SUBJECTS", usual).split(',').map(subject).collect()
}
fn subject(n: &str) -> Subject {
    match n { "k" => ABT, "f" => FIT, "s" => FIT_SAMPLED, "w" => FIT_WINDOW, "b" => FIT_BOTH, _ => panic!() }
}

fn start(mbit: u64, rtt_ms: u64, queue: &str, len: (u64, u64), apart: (u64, u64), seed: u64, s: Subject, secs: u64) -> Outcome {
    let rtt = Nanos::from_millis(rtt_ms);
    let rate: BitRate = format!("{mbit}mbit").parse().unwrap();
    let path = Path::builder().rate(rate).rtt(rtt).queue(queue.parse().unwrap());
    let p = |seed| if len.1 == 0 { Pauses::default() } else { Pauses::drawn_in_micros(seed, len, apart) };
    World::new(path.build(seed).unwrap(), rtt, s, Algorithm::Cubic, false)
        .pausing(p(2 * seed), p(2 * seed + 1))
        .run(secs)
}

type R = (u64, u64);
const JITTERS: [(&str, R, R); 4] = [
    ("none", (0, 0), (0, 0)),
    (".1-.8/1-8", (100, 800), (1_000, 8_000)),
    (".5-3/3-30", (500, 3_000), (3_000, 30_000)),
    ("2-6/10-80", (2_000, 6_000), (10_000, 80_000)),
];

#[test]
#[ignore]
fn explore_starts() {
    let seeds: u64 = var("SEEDS", "12").parse().unwrap();
    let secs: u64 = var("SECS", "8").parse().unwrap();
    let all = [(10, 100, 2), (30, 40, 4), (30, 80, 4), (100, 20, 4), (100, 40, 2), (100, 100, 2), (100, 200, 1), (100, 5, 8), (300, 20, 2), (300, 40, 1), (1000, 20, 4)];
    let only = var("ONLY", "");
    for (mbit, rtt, q) in all {
        if !only.is_empty() && !only.split('/').any(|o| o == format!("{mbit}x{rtt}")) { continue; }
        for s in subjects("f,s") {
            for (name, len, apart) in JITTERS {
                let cell = Cell { mbit, rtt_ms: rtt, queue: q };
                let n = if len.1 == 0 { 1 } else { seeds };
                let mut shares = Vec::new();
                let (mut over, mut drops, mut rtts) = (0, 0, 0.0);
                for seed in 1..=n {
                    let queue = (mbit * rtt * 1_000 / 8 * q / 16).max(12 * 1_514).to_string();
                    let o = start(mbit, rtt, &queue, len, apart, seed, s, secs);
                    let c = cell.ceiling_over(secs);
                    shares.push(100.0 * o.mbit() / c);
                    over += u32::from(o.drops > 0);
                    drops += o.drops;
                    rtts += o.rtt_ms();
                }
                shares.sort_by(f64::total_cmp);
                let mean = shares.iter().sum::<f64>() / shares.len() as f64;
                println!("{mbit:>4}x{rtt:<3} q{q}/16 {:<28} {name:<10} over {over:>2}/{n} drops {drops:>5} mean {mean:5.1} min {:5.1} q1 {:5.1} rtt {:.1}", s.name(), shares[0], shares[shares.len() / 4], rtts / n as f64);
            }
        }
    }
}

#[test]
#[ignore]
fn explore_one() {
    let a: Vec<u64> = var("PATH_", "100,40,62500").split(',').map(|x| x.parse().unwrap()).collect();
    let j: usize = var("J", "2").parse().unwrap();
    let seed = var("SEED", "1").parse().unwrap();
    let (_, len, apart) = JITTERS[j];
    let o = start(a[0], a[1], &a[2].to_string(), len, apart, seed, subjects("f")[0], 8);
    println!("{} Mbit {} drops", o.mbit(), o.drops);
    for p in o.points.iter().take(50) {
        println!("{:.1} {:.1} {:.1} {} {}", p.seconds, p.bits_per_sec / 1e6, p.rtt_ms, p.queue_bytes, p.window_bytes);
    }
}

fn jain(x: &[f64]) -> f64 {
    let s: f64 = x.iter().sum();
    s * s / (x.len() as f64 * x.iter().map(|x| x * x).sum::<f64>())
}

fn mean(o: &Outcome, from: f64, to: f64) -> f64 {
    let v: Vec<f64> = o.points.iter().filter(|p| p.seconds > from && p.seconds <= to).map(|p| p.bits_per_sec / 1e6).collect();
    v.iter().sum::<f64>() / v.len().max(1) as f64
}

fn together(path: (u64, u64, &str), flows: &[(Subject, u64)], secs: u64, seed: u64, jitter: usize) -> Vec<Outcome> {
    let rtt = Nanos::from_millis(path.1);
    let rate: BitRate = format!("{}mbit", path.0).parse().unwrap();
    let (_, len, apart) = JITTERS[jitter];
    let flows = flows.iter().enumerate().map(|(i, (s, ms))| {
        let b = Path::builder().rate(rate).rtt(rtt).queue(path.2.parse().unwrap());
        let p = |seed| if len.1 == 0 { Pauses::default() } else { Pauses::drawn_in_micros(seed, len, apart) };
        let k = 100 * seed + 2 * i as u64;
        (World::new(b.build(seed).unwrap(), rtt, *s, Algorithm::Cubic, false).pausing(p(k), p(k + 1)), Nanos::from_millis(*ms))
    }).collect();
    World::run_together(flows, secs)
}

#[test]
#[ignore]
fn explore_shares() {
    let j: usize = var("J", "1").parse().unwrap();
    for s in subjects("f,w,b") {
        for path in [(80, 35, "350000"), (100, 40, "1bdp"), (50, 80, "1bdp"), (30, 20, "2bdp")] {
            for n in [2_u64, 4, 8] {
                let flows: Vec<_> = (0..n).map(|i| (s, if n == 2 { 3_000 * i } else { 1_000 * i })).collect();
                let last = flows.last().unwrap().1 as f64 / 1e3;
                let mut rows = String::new();
                for seed in 1..=2 {
                    let o = together(path, &flows, 30, seed, j);
                    let at = |t: f64| { let v: Vec<f64> = o.iter().zip(&flows).map(|(o, f)| { let b = f.1 as f64 / 1e3; mean(o, last + t - 3.0 - b, last + t - b) }).collect(); v };
                    let (a, b) = (at(10.0), at(20.0));
                    rows += &format!(" | j10 {:.3} j20 {:.3} sum {:.1} drops {} rtt {:.1}", jain(&a), jain(&b), a.iter().sum::<f64>(), o[0].drops, o[0].rtt_ms());
                    if n == 2 { rows += &format!(" ({:.1} {:.1}; {:.1} {:.1})", a[0], a[1], b[0], b[1]); }
                }
                println!("{} {path:?} n{n}{rows}", s.name());
            }
        }
    }
}

#[test]
#[ignore]
fn explore_others() {
    let j: usize = var("J", "1").parse().unwrap();
    for path in [(80, 35, "350000"), (100, 40, "1bdp"), (50, 80, "0.5bdp"), (30, 20, "4bdp")] {
        for later in [3_000_u64, 4_000] {
            for first in [true, false] {
                for s in subjects("k,f,s,w,b") {
                    let flows = if first { [(s, 0), (ABT, later)] } else { [(ABT, 0), (s, later)] };
                    let (mut own, mut other, mut rtt, mut drops) = (0.0, 0.0, 0.0, 0);
                    let n = 4;
                    for seed in 1..=n {
                        let o = together(path, &flows, 22, seed, j);
                        let b = later as f64 / 1e3;
                        let v = [mean(&o[0], b, 30.0), mean(&o[1], 0.0, 30.0)];
                        own += v[usize::from(!first)] / n as f64;
                        other += v[usize::from(first)] / n as f64;
                        rtt += o[0].rtt_ms() / n as f64;
                        drops += o[0].drops / n;
                    }
                    println!("{path:?} {} {later}: {:<28} own {own:5.1} other {other:5.1} rtt {rtt:.1} drops {drops}", if first { "first" } else { "last " }, s.name());
                }
            }
        }
    }
}
