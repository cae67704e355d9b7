//! Judges whether the targets were met.

use std::fmt;

use super::model::{Bound, Case, Experiment, Quantity, Target};
use super::result::{CaseResult, Verdict};

/// Judges every target of `experiment` in the cases that were run.
pub(super) fn judge(experiment: &Experiment, cases: &[CaseResult]) -> Vec<Verdict> {
    let mut verdicts = Vec::new();
    for target in &experiment.targets {
        if let Bound::EarlierThan(share, other) = target.bound {
            verdicts.push(earlier(target, share, other, cases));
            continue;
        }
        let concerned = |case: &&CaseResult| {
            let named = target.cases.is_empty() || target.cases.contains(&case.name);
            named && case.method(target.method).is_some()
        };
        for case in cases.iter().filter(concerned) {
            let of = experiment.cases.iter().find(|one| one.name == case.name);
            verdicts.push(in_case(target, case, of));
        }
    }
    verdicts
}

/// Returns the bandwidth-delay product of the case's first path, bytes.
fn product(case: &Case) -> Option<f64> {
    let path = case.paths.first()?;
    Some(path.tight_rate()?.0 as f64 / 8.0 * path.whole_rtt().0 as f64 / 1e9)
}

fn in_case(target: &Target, case: &CaseResult, of_case: Option<&Case>) -> Verdict {
    let memory = of_case.and_then(|one| one.memory);
    let Target { method, quantity, bound, .. } = target;
    let measured = case.median(method, *quantity);
    let of = |other: &str| case.median(other, *quantity);
    let show = |value: f64| with_unit(*quantity, value);
    let (text, limit, at_least) = match *bound {
        Bound::AtLeast(limit) => (format!("at least {}", show(limit)), Some(limit), true),
        Bound::AtMost(limit) => (format!("at most {}", show(limit)), Some(limit), false),
        Bound::AtLeastTimes(times, other) => {
            (format!("at least {} of `{other}`'s", factor(times)), of(other).map(|value| value * times), true)
        }
        Bound::AtMostTimes(times, other, more) => {
            let plus = if more > 0.0 { format!(" + {}", show(more)) } else { String::new() };
            let limit = of(other).map(|value| value * times + more);
            (format!("at most {} of `{other}`'s{plus}", factor(times)), limit, false)
        }
        Bound::WithinMemory => {
            let limit = memory.map(|bytes| bytes as f64);
            (format!("at most the memory of {}", limit.map_or_else(|| "-".to_owned(), show)), limit, false)
        }
        Bound::WithinProducts(times, more, other) => {
            let own = of_case.and_then(product).map(|product| product * times + more);
            let limit = own.zip(of(other)).map(|(own, others)| own.max(others));
            (format!("at most {times} BDP + {}, or `{other}`'s", show(more)), limit, false)
        }
        Bound::WithinOwnProducts(times, more) => {
            let limit = of_case.and_then(product).map(|product| product * times + more);
            (format!("at most {times} BDP + {}", show(more)), limit, false)
        }
        Bound::AtLeastOfCeiling(share) => {
            let ceiling = of_case.and_then(|one| one.setup.cell).map(|cell| cell.ceiling_bps());
            (
                format!("at least {} of the ceiling", factor(share)),
                ceiling.map(|ceiling| ceiling * share),
                true,
            )
        }
        Bound::AtLeastTimesBest(times, others) => {
            let there = others.iter().filter(|other| case.method(other).is_some());
            let values: Option<Vec<f64>> = there.map(|other| of(other)).collect();
            let best = values.and_then(|values| values.into_iter().reduce(f64::max));
            let names = others.map(|other| format!("`{other}`")).join(" and ");
            let text = format!("at least {} of the better of {names}", factor(times));
            (text, best.map(|best| best * times), true)
        }
        Bound::NearRtt(share, more) => {
            let rtt = of_case.and_then(|one| one.paths.first()).map(|path| path.rtt.0 as f64 / 1e9);
            let limit = rtt.map(|rtt| rtt + (rtt * share).max(more));
            (format!("at most the RTT + {} or {}", factor(share), show(more)), limit, false)
        }
        // Judged over all cases.
        Bound::EarlierThan(..) => (String::new(), None, true),
    };
    let met =
        measured.zip(limit).map(|(value, limit)| if at_least { value >= limit } else { value <= limit });
    let text = match (bound, limit) {
        (Bound::AtLeast(_) | Bound::AtMost(_) | Bound::WithinMemory | Bound::EarlierThan(..), _)
        | (_, None) => text,
        (_, Some(limit)) => format!("{text} ({})", show(limit)),
    };
    Verdict {
        case: case.name.clone(),
        method: (*method).to_owned(),
        quantity: *quantity,
        text,
        measured,
        met,
    }
}

/// Judges whether the method reaches `share` of the best value of the two in an earlier case of the list than `other` does.
/// Other methods do not count: another congestion control has another best.
fn earlier(target: &Target, share: f64, other: &str, cases: &[CaseResult]) -> Verdict {
    let Target { method, quantity, .. } = target;
    let of_two = |case: &CaseResult| [*method, other].map(|name| case.median(name, *quantity));
    let best = cases.iter().flat_map(of_two).flatten().fold(0.0, f64::max);
    let reached = |method: &str| {
        cases
            .iter()
            .position(|case| case.median(method, *quantity).is_some_and(|value| value >= share * best))
    };
    let (own, others) = (reached(method), reached(other));
    let name = |place: Option<usize>| place.map_or("none", |place| cases[place].name.as_str());
    let text = format!(
        "reaches {} of the best of both, {}, in an earlier case than `{other}`: {}, not {}",
        factor(share),
        with_unit(*quantity, best),
        name(own),
        name(others)
    );
    let met = match (own, others) {
        (Some(own), Some(others)) => Some(own < others),
        (Some(_), None) => Some(true),
        (None, _) => Some(false),
    };
    Verdict {
        case: String::new(),
        method: (*method).to_owned(),
        quantity: *quantity,
        text,
        measured: own.and_then(|place| cases[place].median(method, *quantity)),
        met: met.filter(|_| best > 0.0),
    }
}

pub(super) fn with_unit(quantity: Quantity, value: f64) -> String {
    format!("{} {}", quantity.show(value), quantity.shown().unit).trim().to_owned()
}

/// Writes 0.98 as 98%, 7 as 7 times.
fn factor(times: f64) -> String {
    if times < 2.0 { format!("{:.0}%", times * 100.0) } else { format!("{times} times") }
}

impl Verdict {
    /// Returns `met`, `NOT MET`, or that it cannot be judged.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None => "not measured",
        }
    }

    /// Returns the measured value, with its unit.
    #[must_use]
    pub fn measured(&self) -> String {
        self.measured.map_or_else(|| "-".to_owned(), |value| with_unit(self.quantity, value))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let case = if self.case.is_empty() { String::new() } else { format!("{}: ", self.case) };
        let what = self.quantity.shown().name;
        write!(
            f,
            "{:<12} {case}{} of `{}` {}: {}",
            self.word(),
            what,
            self.method,
            self.text,
            self.measured()
        )
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::cell::{Cell, Queue};
    use super::super::model::{Setup, path};
    use super::super::result::MethodResult;
    use super::*;

    fn case(name: &str, medians: &[(&str, f64)]) -> CaseResult {
        let method = |(name, value): &(&str, f64)| MethodResult {
            elsewhere: Vec::new(),
            name: (*name).to_owned(),
            server: String::new(),
            client: String::new(),
            settings: String::new(),
            runs: Vec::new(),
            medians: BTreeMap::from([(Quantity::GoodputBps, *value)]),
        };
        CaseResult {
            name: name.to_owned(),
            paths: Vec::new(),
            methods: medians.iter().map(method).collect(),
            needed: 0,
            cell: None,
        }
    }

    fn verdict(bound: Bound, own: f64, other: f64) -> Verdict {
        let target = Target::new("own", Quantity::GoodputBps, bound);
        // 100 Mbit/s over 40 ms: 500,000 bytes.
        let of_case = Case {
            name: "c".to_owned(),
            paths: vec![path(100, 40)],
            flows: Vec::new(),
            memory: Some(2_000_000),
            quick: true,
            setup: Setup {
                cell: Some(Cell { rate_bps: 100_000_000, rtt_ms: 40, queue: Queue::Bdp, seconds: 15 }),
                ..Setup::default()
            },
        };
        in_case(&target, &case("c", &[("own", own), ("other", other)]), Some(&of_case))
    }

    #[test]
    fn who_is_earlier_depends_on_the_two_alone() {
        let judged = |own: [f64; 2], other: [f64; 2]| {
            let cases: Vec<CaseResult> = (0..2)
                .map(|at| case("c", &[("own", own[at]), ("other", other[at]), ("beside", 1e9)]))
                .collect();
            let target = Target::new("own", Quantity::GoodputBps, Bound::EarlierThan(0.95, "other"));
            earlier(&target, 0.95, "other", &cases).met
        };
        assert_eq!(judged([95.0, 99.0], [94.0, 100.0]), Some(true));
        assert_eq!(judged([94.0, 99.0], [94.0, 100.0]), Some(false), "both at once");
        assert_eq!(judged([94.0, 94.0], [94.0, 100.0]), Some(false), "never");
    }

    #[test]
    fn bounds_hold_at_the_limit_and_not_beyond() {
        for (bound, met, missed) in [
            (Bound::AtLeast(10.0), 10.0, 9.9),
            (Bound::AtMost(10.0), 10.0, 10.1),
            (Bound::AtLeastTimes(0.5, "other"), 50.0, 49.0),
            (Bound::AtMostTimes(1.5, "other", 10.0), 160.0, 161.0),
            (Bound::WithinMemory, 2e6, 2_000_001.0),
            (Bound::WithinProducts(2.5, 1_000.0, "other"), 1_251_000.0, 1_251_001.0),
            (Bound::WithinOwnProducts(1.5, 1_000.0), 751_000.0, 751_001.0),
            // The link carries 95.64 Mbit/s of payload; slow start takes 1.1% of 15 s.
            (Bound::AtLeastOfCeiling(0.98), 92.8e6, 92.6e6),
            (Bound::AtLeastTimesBest(0.5, ["other", "not in the case"]), 50.0, 49.0),
            (Bound::NearRtt(0.1, 0.002), 0.0439, 0.0441),
            (Bound::NearRtt(0.01, 0.002), 0.0419, 0.0421),
        ] {
            assert_eq!(verdict(bound, met, 100.0).met, Some(true), "{bound:?}");
            assert_eq!(verdict(bound, missed, 100.0).met, Some(false), "{bound:?}");
        }
        assert_eq!(verdict(Bound::AtLeastTimes(0.5, "nobody"), 1.0, 1.0).met, None);
        assert_eq!(verdict(Bound::AtLeastTimesBest(0.5, ["nobody"; 2]), 1.0, 1.0).met, None);
    }

    #[test]
    fn a_verdict_says_what_was_wanted_and_what_came_out() {
        let verdict = verdict(Bound::AtLeastTimes(0.98, "other"), 479e6, 500e6);
        let text = "NOT MET      c: goodput of `own` at least 98% of `other`'s (490.0 Mbit/s): 479.0 Mbit/s";
        assert_eq!(verdict.to_string(), text);
    }

    #[test]
    fn the_one_that_needs_less_gets_there_first() {
        let cases = [
            case("small", &[("own", 90.0), ("other", 50.0)]),
            case("large", &[("own", 99.0), ("other", 100.0)]),
        ];
        let of = |share, method: &'static str, other| {
            let target = Target::new(method, Quantity::GoodputBps, Bound::EarlierThan(share, other));
            earlier(&target, share, other, &cases).met
        };
        assert_eq!(of(0.9, "own", "other"), Some(true));
        assert_eq!(of(0.9, "other", "own"), Some(false));
        assert_eq!(of(0.95, "own", "other"), Some(false), "both in the second");
    }
}
