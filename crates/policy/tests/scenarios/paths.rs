//! The paths, and the assertions for each, which hold independently of the goldens.

use bufwise_link::{CrossPattern, CrossTraffic, DirectionConfig, Durations, Path, PathBuilder};
use bufwise_units::{BitRate, Nanos};

use crate::outcome::Outcome;
use crate::scenario::{Runs, Scenario, trace};
use crate::subject::{ABT, DRS, EQ, FIXED, KERNEL, SOBAS, SOBAS_PUBLISHED, Subject, Variant};

const MBIT: (u64, &str) = (1_000_000, "Mbit/s");
const KBIT: (u64, &str) = (1_000, "kbit/s");

fn path(rate: &str, rtt: Nanos, queue: &str) -> PathBuilder {
    let queue = queue.parse().expect("a queue size");
    Path::builder().rate(rate.parse::<BitRate>().expect("a rate")).rtt(rtt).queue(queue)
}

const PACED: Subject = SOBAS.with(Variant::Paced);
/// Policies as they run in the engine. SOBAS has no estimate of the capacity there: it decides only after slow start,
/// and bounds the window from then on.
const ENGINE_ABT: Subject = ABT.with(Variant::Engine);
const ENGINE_DRS: Subject = DRS.with(Variant::Engine);

/// Pairs the outcomes of two subjects under the same congestion control, with its name.
fn pairs(runs: &Runs, one: Subject, other: Subject) -> [(&'static str, &Outcome, &Outcome); 2] {
    let [(reno, a), (cubic, b)] = runs.both(one);
    let [(_, c), (_, d)] = runs.both(other);
    [(reno, a, c), (cubic, b, d)]
}

/// Asserts that ABT, which acts once per round trip, equals the kernel at the sender if memory suffices.
fn assert_abt_equals_kernel(runs: &Runs) {
    for (rule, abt, kernel) in pairs(runs, ABT, KERNEL) {
        let ratio = abt.mbit() / kernel.mbit();
        // In slow start, ABT's buffer is at most a round trip late.
        assert!((0.97..1.01).contains(&ratio), "{rule}: {} v. {}", abt.mbit(), kernel.mbit());
    }
}

/// Asserts that the engine's rules, with the bound below the send rule, cost hardly any rate.
fn assert_the_engine_costs_no_rate(runs: &Runs) {
    for (rule, engine, abt) in pairs(runs, ENGINE_ABT, ABT) {
        assert!(engine.mbit() >= 0.97 * abt.mbit(), "{rule}: {} v. {}", engine.mbit(), abt.mbit());
    }
    for (rule, engine, drs) in pairs(runs, ENGINE_DRS, DRS) {
        assert!(engine.mbit() >= 0.93 * drs.mbit(), "{rule}: {} v. {}", engine.mbit(), drs.mbit());
    }
}

/// The path of Fisk 2000, whose BDP is far larger than 64 KiB.
#[test]
fn long_fat_path() {
    let rtt = Nanos::from_millis(100);
    let scenario = Scenario {
        name: "long_fat_path",
        path: "200 Mbit/s, 100 ms, queue of one BDP, 20 s",
        builder: path("200mbit", rtt, "1bdp"),
        rtt,
        forward: |config| config,
        seconds: 20,
        subjects: Subject::all(),
        probing: true,
        unit: MBIT,
    };
    let runs = scenario.run();
    assert_abt_equals_kernel(&runs);
    assert_the_engine_costs_no_rate(&runs);
    for (rule, engine) in runs.both(ENGINE_ABT) {
        assert_eq!(engine.drops, 0, "{rule}: the bound leaves room in a queue of one BDP");
    }
    for (rule, drs, fixed) in pairs(&runs, DRS, FIXED) {
        // 64 KiB per 100 ms; Fisk 2000 found a factor of seven with its sender and its path.
        assert!((5.0..5.3).contains(&fixed.mbit()), "{rule}: {}", fixed.mbit());
        assert!(drs.mbit() > 7.0 * fixed.mbit(), "{rule}: {} v. {}", drs.mbit(), fixed.mbit());
    }
    for (rule, eq) in runs.both(EQ) {
        // A sixteenth of 4 MiB per 100 ms, although the neighbours use nothing of their shares.
        assert!((20.0..21.0).contains(&eq.mbit()), "{rule}: {}", eq.mbit());
    }
    for subject in [SOBAS, SOBAS_PUBLISHED, PACED] {
        for (rule, run) in runs.both(subject) {
            let name = subject.name();
            assert_eq!(run.drops, 0, "{name}, {rule}");
            assert!(run.mbit() >= 180.0, "{name}, {rule}: {}", run.mbit());
        }
    }
    scenario.assert_golden(&runs);
}

/// A path on which a window alone cannot avoid drops: the queue is BDP/8.
#[test]
fn shallow_queue() {
    let rtt = Nanos::from_millis(40);
    let scenario = Scenario {
        name: "shallow_queue",
        path: "100 Mbit/s, 40 ms, queue of BDP/8 (62.5 kB), 20 s",
        builder: path("100mbit", rtt, "0.125bdp"),
        rtt,
        forward: |config| config,
        seconds: 20,
        subjects: Subject::all(),
        probing: true,
        unit: MBIT,
    };
    let runs = scenario.run();
    assert_the_engine_costs_no_rate(&runs);
    for (rule, paced) in runs.both(PACED) {
        assert_eq!(paced.drops, 0, "{rule}");
        assert!(paced.mbit() >= 94.0, "{rule}: {}", paced.mbit());
        // The capacity is 95.6, less the rate of the probes.
        assert!(paced.mbit_after(3.0) >= 95.0, "{rule}: {}", paced.mbit_after(3.0));
        assert!(paced.rtt_ms() <= 42.0, "{rule}: {}", paced.rtt_ms());
    }
    for (rule, published, paced) in pairs(&runs, SOBAS_PUBLISHED, PACED) {
        // Its first limit overflows the queue; the decision comes before the loss is repaired, and is final.
        assert!(published.drops > 0, "{rule}");
        assert!(published.mbit() <= 0.85 * paced.mbit(), "{rule}: {}", published.mbit());
    }
    assert_abt_equals_kernel(&runs);
    // Linux on this path: Reno 65 to 69 Mbit/s, CUBIC 79 to 82 with HyStart. These runs are without HyStart: their
    // CUBIC begins with one more overflow, which costs 5 Mbit/s over 20 s.
    for ((rule, kernel), band) in runs.both(KERNEL).into_iter().zip([65.0..70.0, 73.0..82.0]) {
        assert!(band.contains(&kernel.mbit()), "{rule}: {}", kernel.mbit());
    }
    scenario.assert_golden(&runs);
}

/// A path on which an unbounded window keeps a standing queue.
#[test]
fn deep_queue() {
    let rtt = Nanos::from_millis(50);
    let scenario = Scenario {
        name: "deep_queue",
        path: "100 Mbit/s, 50 ms, queue of 480 ms (6 MB), 20 s",
        builder: path("100mbit", rtt, "6MB"),
        rtt,
        forward: |config| config,
        seconds: 20,
        subjects: Subject::all(),
        probing: true,
        unit: MBIT,
    };
    let runs = scenario.run();
    assert_the_engine_costs_no_rate(&runs);
    for (rule, engine) in runs.both(ENGINE_ABT) {
        // At most two BDPs in flight, so two round trips, and a slack of 192 KiB of memory (8 ms).
        assert!(engine.rtt_ms() <= 108.0, "{rule}: {}", engine.rtt_ms());
    }
    assert_abt_equals_kernel(&runs);
    for (rule, kernel, paced) in pairs(&runs, KERNEL, PACED) {
        assert!(kernel.rtt_ms() > 4.0 * paced.rtt_ms(), "{rule}: {}", kernel.rtt_ms());
    }
    for subject in [SOBAS, SOBAS_PUBLISHED, PACED] {
        for (rule, run) in runs.both(subject) {
            let name = subject.name();
            assert_eq!(run.drops, 0, "{name}, {rule}");
            assert!(run.mbit() >= 93.0, "{name}, {rule}: {}", run.mbit());
            // Without pacing S starts at 1.2 BDP: a fifth of the BDP is in the queue.
            let bound = if subject == PACED { 52.0 } else { 63.0 };
            assert!(run.rtt_ms() <= bound, "{name}, {rule}: {}", run.rtt_ms());
        }
    }
    for (rule, paced) in runs.both(PACED) {
        assert!(paced.mbit_after(3.0) >= 95.0, "{rule}: {}", paced.mbit_after(3.0));
    }
    scenario.assert_golden(&runs);
}

/// Fisk 2000, section 8.2. SOBAS runs without probes here, for they alone take 114 kbit/s (Prasad 2004, section IV-B:
/// "not be useful in very low bandwidth paths").
#[test]
fn modem_line() {
    let rtt = Nanos::from_millis(100);
    let scenario = Scenario {
        name: "modem_line",
        path: "56 kbit/s, 100 ms, queue of 32 KiB, 120 s",
        builder: path("56kbit", rtt, "32KiB"),
        rtt,
        forward: |config| config,
        seconds: 120,
        subjects: Subject::all(),
        probing: false,
        unit: KBIT,
    };
    let runs = scenario.run();
    for (rule, drs, fixed) in pairs(&runs, DRS, FIXED) {
        let (few, many) = (drs.retransmissions, fixed.retransmissions);
        assert!(few < many, "{rule}: {few} v. {many}");
        assert!(drs.goodput_bps * 100 >= fixed.goodput_bps * 98, "{rule}: for no less goodput");
        assert!(drs.peak_flight < 13_000, "{rule}: {} B, Fisk 2000 has less than 13 KB", drs.peak_flight);
        assert!(drs.rtt_ms() < 2_000.0, "{rule}: {}", drs.rtt_ms());
    }
    scenario.assert_golden(&runs);
}

/// A path that changes abruptly: first to a fifth of the rate, then to half of the original rate with a longer delay.
#[test]
fn changing_path() {
    let rtt = Nanos::from_millis(40);
    let mut subjects = Subject::all();
    subjects.extend([SOBAS.with(Variant::Continuous), SOBAS.with(Variant::PacedContinuous)]);
    let scenario = Scenario {
        name: "changing_path",
        path: "100 Mbit/s, 40 ms; from 10 s 20 Mbit/s; from 20 s 50 Mbit/s, 80 ms; queue of 250 kB, 30 s",
        builder: path("100mbit", rtt, "0.5bdp"),
        rtt,
        forward: |config| DirectionConfig { trace: trace("10.5 20mbit\n20.5 50mbit 60ms"), ..config },
        seconds: 30,
        subjects,
        probing: true,
        unit: MBIT,
    };
    let runs = scenario.run();
    assert_abt_equals_kernel(&runs);
    for subject in [KERNEL, DRS, SOBAS] {
        for (rule, run) in runs.both(subject) {
            // Capacities of 95.6, 19.1 and 47.8 Mbit/s in payload: 54.2 on the mean.
            let name = subject.name();
            assert!((0.89 * 54.2..54.2).contains(&run.mbit()), "{name}, {rule}: {}", run.mbit());
            assert_eq!(run.timeouts, 0, "{name}, {rule}");
        }
    }
    for (rule, on, once) in pairs(&runs, SOBAS.with(Variant::Continuous), SOBAS) {
        // Repeated decisions cost losses, and here the first limit happens to fit the last path, too.
        assert!(on.mbit() >= 0.95 * once.mbit(), "{rule}: {} v. {}", on.mbit(), once.mbit());
    }
    for subject in [PACED, SOBAS.with(Variant::PacedContinuous)] {
        for (rule, run) in runs.both(subject) {
            // The last BDP is five times the one before, and Reno grows by one segment per round trip.
            let name = subject.name();
            assert!(run.mbit() >= 45.0, "{name}, {rule}: {}", run.mbit());
            assert!(run.mbit_after(28.0) >= 34.0, "{name}, {rule}: {} at last", run.mbit_after(28.0));
            assert_eq!(run.timeouts, 0, "{name}, {rule}");
        }
    }
    scenario.assert_golden(&runs);
}

/// Prasad 2004, figures 24 and 25: unresponsive cross traffic takes more than half of a long path.
#[test]
fn mostly_taken() {
    let rtt = Nanos::from_millis(155);
    let scenario = Scenario {
        name: "mostly_taken",
        path: "97 Mbit/s, 155 ms, queue of half a BDP; others take 57 Mbit/s steadily; 20 s",
        builder: path("97mbit", rtt, "bdp/2"),
        rtt,
        forward: |config| DirectionConfig {
            cross: Some(CrossTraffic {
                rate: BitRate(57_000_000),
                packet_bytes: 1_500,
                pattern: CrossPattern::Constant,
            }),
            ..config
        },
        seconds: 20,
        subjects: Subject::all(),
        probing: true,
        unit: MBIT,
    };
    let runs = scenario.run();
    for (rule, paced, kernel) in pairs(&runs, PACED, KERNEL) {
        // The cross traffic leaves 38 Mbit/s.
        assert!(paced.mbit() >= 33.0, "{rule}: {}", paced.mbit());
        assert!(paced.drops * 5 < kernel.drops, "{rule}: {} v. {}", paced.drops, kernel.drops);
    }
    scenario.assert_golden(&runs);
}

/// Prasad 2004, section V: unresponsive cross traffic, here in bursts, takes 30% of the path on the mean.
#[test]
fn cross_traffic() {
    let rtt = Nanos::from_millis(40);
    let scenario = Scenario {
        name: "cross_traffic",
        path: "100 Mbit/s, 40 ms, queue of one BDP; bursts of 60 Mbit/s, half of the time; 20 s",
        builder: path("100mbit", rtt, "1bdp"),
        rtt,
        forward: |config| DirectionConfig {
            cross: Some(CrossTraffic {
                rate: BitRate(60_000_000),
                packet_bytes: 1_000,
                pattern: CrossPattern::Bursty {
                    on: Nanos::from_millis(200),
                    off: Nanos::from_millis(200),
                    durations: Durations::Pareto { shape: 1.5 },
                },
            }),
            ..config
        },
        seconds: 20,
        subjects: Subject::all(),
        probing: true,
        unit: MBIT,
    };
    let runs = scenario.run();
    assert_abt_equals_kernel(&runs);
    for (rule, sobas, kernel) in pairs(&runs, SOBAS, KERNEL) {
        assert!(sobas.mbit() >= 0.95 * kernel.mbit(), "{rule}: {} v. {}", sobas.mbit(), kernel.mbit());
        assert!(sobas.drops < kernel.drops, "{rule}: {} v. {}", sobas.drops, kernel.drops);
    }
    for (rule, paced, kernel) in pairs(&runs, PACED, KERNEL) {
        // The cross traffic leaves 66 Mbit/s on the mean. Only a queue as long as a burst could use all of it.
        assert!(paced.mbit() >= 47.0, "{rule}: {}", paced.mbit());
        assert!(paced.drops * 5 < kernel.drops, "{rule}: {} v. {}", paced.drops, kernel.drops);
    }
    for (rule, fixed) in runs.both(FIXED) {
        assert!((12.0..13.2).contains(&fixed.mbit()), "{rule}: small windows are spared: {}", fixed.mbit());
    }
    scenario.assert_golden(&runs);
}
