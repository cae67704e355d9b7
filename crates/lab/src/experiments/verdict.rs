//! Judges whether the targets were met.

use std::fmt;
use std::slice;

use super::earlier::Reaches;
use super::model::{Bound, Case, Experiment, Quantity, Target, Way};
use super::result::{CaseResult, Verdict, method_left_out};

/// Judges every target of `experiment` in the cases that were run, with `quick` in the short form; `left_out` is what the machine
/// could not run, as in the result.
///
/// Only medians of valid runs are judged. A target to which no case applies gets a verdict as well, so that it is not
/// overlooked.
pub(super) fn judge(
    experiment: &Experiment,
    cases: &[CaseResult],
    quick: bool,
    left_out: &[String],
) -> Vec<Verdict> {
    let judged = |target| Judge { experiment, target, cases, quick, left_out }.verdicts();
    experiment.targets.iter().flat_map(judged).collect()
}

/// A target, and the results by which it is judged.
struct Judge<'a> {
    experiment: &'a Experiment,
    target: &'a Target,
    cases: &'a [CaseResult],
    quick: bool,
    left_out: &'a [String],
}

impl Judge<'_> {
    fn verdicts(&self) -> Vec<Verdict> {
        let Self { experiment, target, cases, .. } = *self;
        if let Some(reaches) = Reaches::of(target) {
            let mut wanted = self.that_run([reaches.method.as_str(), reaches.before.as_str()]);
            let none_can_run = self.can_run_none_of(&wanted);
            wanted.retain(|name| !self.is_without_methods(name));
            let verdict = self.excused(reaches.judged(cases, &wanted), cases);
            return vec![Verdict { left_out: verdict.left_out || none_can_run, ..verdict }];
        }
        let concerned = |case: &&CaseResult| target.names(&case.name) && case.method(target.method).is_some();
        let judged = |case: &CaseResult| {
            let of = experiment.cases.iter().find(|one| one.name == case.name);
            self.excused(in_case(target, case, of, experiment.way), slice::from_ref(case))
        };
        let mut verdicts: Vec<Verdict> = cases.iter().filter(concerned).map(judged).collect();
        verdicts.extend(self.unjudged(&verdicts));
        verdicts
    }

    /// Returns one more verdict for the cases that the target names but `verdicts` lack, or for all cases if there are no
    /// verdicts. The short form leaves out cases and methods; there `None` as soon as the target was judged in one case. Cases that
    /// this machine cannot run are left out as well.
    fn unjudged(&self, verdicts: &[Verdict]) -> Option<Verdict> {
        let Self { experiment, target, quick, .. } = *self;
        let lacks = |name: &&String| {
            let is_there = experiment.cases.iter().any(|case| case.name == **name);
            is_there && verdicts.iter().all(|verdict| verdict.case != **name)
        };
        let missing: Vec<&String> = target.cases.iter().filter(lacks).collect();
        if !verdicts.is_empty() && (quick || missing.is_empty()) {
            return None;
        }
        let name = if let [one] = missing[..] { one.as_str() } else { "" };
        let nothing = CaseResult::nothing(name);
        let verdict = in_case(target, &nothing, None, experiment.way);
        let several = if missing.len() > 1 { format!(", in {} cases", missing.len()) } else { String::new() };
        let verdict = self.excused(Verdict { text: verdict.text + &several, ..verdict }, &[]);
        let wanted: Vec<&str> = match missing[..] {
            [] => self.that_run([target.method; 2]),
            _ => missing.iter().copied().map(String::as_str).collect(),
        };
        let none_can_run = self.can_run_none_of(&wanted);
        Some(Verdict { left_out: verdict.left_out || none_can_run, ..verdict })
    }

    /// Whether there are cases of these names, and this machine can run none of them.
    fn can_run_none_of(&self, names: &[&str]) -> bool {
        !names.is_empty() && names.iter().all(|name| self.is_without_methods(name))
    }

    /// Whether this machine could run no method in the case of this name.
    fn is_without_methods(&self, name: &str) -> bool {
        self.cases.iter().any(|case| case.name == name && case.methods.is_empty())
    }

    /// Whether this machine lacks what the method of this name needs.
    fn is_absent(&self, name: &str) -> bool {
        let method = self.experiment.methods.iter().find(|method| method.name == name);
        method.is_some_and(|method| self.left_out.contains(&method_left_out(method)))
    }

    /// Marks a target that cannot be judged because the short form leaves out a method that it needs, or all of its cases, or
    /// because this machine cannot run such a method.
    fn excused(&self, verdict: Verdict, cases: &[CaseResult]) -> Verdict {
        let ran = |name: &str| cases.iter().any(|case| case.method(name).is_some());
        let others: &[&str] = match &self.target.bound {
            Bound::AtLeastTimes(_, other)
            | Bound::AtMostTimes(_, other, _)
            | Bound::WithinProducts(_, _, other)
            | Bound::EarlierThan(_, other) => slice::from_ref(other),
            Bound::AtLeastTimesBest(_, others) => others,
            Bound::AtLeast(_)
            | Bound::AtMost(_)
            | Bound::WithinMemory
            | Bound::WithinOwnProducts(..)
            | Bound::AtLeastOfCeiling(_)
            | Bound::NearRtt(..) => &[],
        };
        let has_others = others.is_empty() || others.iter().any(|other| ran(other));
        let is_incomplete = !(ran(self.target.method) && has_others);
        let cannot_run = self.is_absent(self.target.method)
            || !has_others && others.iter().all(|other| self.is_absent(other));
        let left_out = verdict.met.is_none() && is_incomplete && (self.quick || cannot_run);
        Verdict { left_out, ..verdict }
    }

    /// Returns the names of the cases in which all of `methods` run.
    fn that_run(&self, methods: [&str; 2]) -> Vec<&str> {
        let Self { experiment, quick, .. } = *self;
        let runs = |case: &&Case| {
            methods.iter().all(|name| experiment.methods(case, quick).any(|method| method.name == *name))
        };
        experiment.cases(quick).filter(runs).map(|case| case.name.as_str()).collect()
    }
}

/// Returns the bandwidth-delay product of the case's first path in the direction of the data, bytes.
pub(super) fn product(case: &Case, way: Way) -> Option<f64> {
    let path = way.of(case.paths.first()?);
    Some(path.tight_rate()?.0 as f64 / 8.0 * path.whole_rtt().0 as f64 / 1e9)
}

fn in_case(target: &Target, case: &CaseResult, of_case: Option<&Case>, way: Way) -> Verdict {
    let memory = of_case.and_then(|one| one.memory);
    let product = || product(of_case?, way);
    let Target { method, quantity, bound, .. } = target;
    let measured = case.valid_median(method, *quantity);
    let of = |other: &str| case.valid_median(other, *quantity);
    let show = |value: f64| with_unit(*quantity, value);
    let (text, limit, at_least) = match *bound {
        Bound::AtLeast(limit) => (format!("at least {}", show(limit)), Some(limit), true),
        Bound::AtMost(limit) => (format!("at most {}", show(limit)), Some(limit), false),
        Bound::AtLeastTimes(times, other) => {
            (format!("at least {} `{other}`'s", factor(times)), of(other).map(|value| value * times), true)
        }
        Bound::AtMostTimes(times, other, more) => {
            let plus = if more > 0.0 { format!(" + {}", show(more)) } else { String::new() };
            let limit = of(other).map(|value| value * times + more);
            (format!("at most {} `{other}`'s{plus}", factor(times)), limit, false)
        }
        Bound::WithinMemory => {
            let limit = memory.map(|bytes| bytes as f64);
            (format!("at most the memory of {}", limit.map_or_else(|| "-".to_owned(), show)), limit, false)
        }
        Bound::WithinProducts(times, more, other) => {
            let own = product().map(|product| product * times + more);
            let limit = own.zip(of(other)).map(|(own, others)| own.max(others));
            (format!("at most {times} BDP + {}, or `{other}`'s", show(more)), limit, false)
        }
        Bound::WithinOwnProducts(times, more) => {
            let limit = product().map(|product| product * times + more);
            (format!("at most {times} BDP + {}", show(more)), limit, false)
        }
        Bound::AtLeastOfCeiling(share) => {
            let ceiling = of_case.and_then(|one| one.setup.cell).map(|cell| cell.ceiling_bps());
            (format!("at least {} the ceiling", factor(share)), ceiling.map(|ceiling| ceiling * share), true)
        }
        Bound::AtLeastTimesBest(times, others) => {
            let there = others.iter().filter(|other| case.method(other).is_some());
            let values: Option<Vec<f64>> = there.map(|other| of(other)).collect();
            let best = values.and_then(|values| values.into_iter().reduce(f64::max));
            let names = others.map(|other| format!("`{other}`")).join(" and ");
            let text = format!("at least {} the better of {names}", factor(times));
            (text, best.map(|best| best * times), true)
        }
        Bound::NearRtt(share, more) => {
            let rtt = of_case.and_then(|one| one.paths.first()).map(|path| path.rtt.0 as f64 / 1e9);
            let limit = rtt.map(|rtt| rtt + (rtt * share).max(more));
            let text = format!("at most the RTT + {} it or {}, whichever is more", factor(share), show(more));
            (text, limit, false)
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
    // Rounded, a value that misses its bound by little reads like the bound.
    let looks_equal = measured.zip(limit).is_some_and(|(value, limit)| show(value) == show(limit));
    let text = match met {
        Some(false) if looks_equal => text + ", missed by less than the digits shown",
        _ => text,
    };
    Verdict {
        case: case.name.clone(),
        method: (*method).to_owned(),
        quantity: *quantity,
        text,
        measured,
        met,
        left_out: false,
    }
}

pub(super) fn with_unit(quantity: Quantity, value: f64) -> String {
    format!("{} {}", quantity.show(value), quantity.shown().unit).trim().to_owned()
}

/// Writes 0.98 as "98% of", 0.975 as "97.5% of", 7 as "7 times".
pub(super) fn factor(times: f64) -> String {
    let tenths = (times * 1e3).round();
    if times < 2.0 { format!("{}% of", tenths / 10.0) } else { format!("{times} times") }
}

impl Verdict {
    /// Returns `met`, `NOT MET`, `not measured`, or that the short form leaves it out.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.met {
            Some(true) => "met",
            Some(false) => "NOT MET",
            None if self.left_out => "left out",
            None => "not measured",
        }
    }

    /// Whether it is no failure: the target is met, or the short form leaves it out.
    #[must_use]
    pub fn passes(&self) -> bool {
        self.met.unwrap_or(self.left_out)
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
pub(super) mod tests {
    use std::collections::BTreeMap;

    use bufwise_units::BitRate;

    use super::super::cell::{Cell, Queue};
    use super::super::model::{Setup, path};
    use super::super::result::{ExperimentResult, MethodResult, RunResult};
    use super::super::shard::Shard;
    use super::*;
    use crate::spec::PathSpec;

    /// Returns a case whose methods have these medians of goodput, each of a valid run.
    pub(in super::super) fn case(name: &str, medians: &[(&str, f64)]) -> CaseResult {
        let method = |(name, value): &(&str, f64)| MethodResult {
            name: (*name).to_owned(),
            runs: vec![RunResult { valid: true, ..RunResult::default() }],
            medians: BTreeMap::from([(Quantity::GoodputBps, *value)]),
            ..MethodResult::default()
        };
        CaseResult { methods: medians.iter().map(method).collect(), ..CaseResult::nothing(name) }
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
        in_case(&target, &case("c", &[("own", own), ("other", other)]), Some(&of_case), Way::Download)
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
        let times = verdict(Bound::AtLeastTimes(7.0, "other"), 5e6, 10e6);
        assert_eq!(times.text, "at least 7 times `other`'s (70.0 Mbit/s)");
        let exact = verdict(Bound::AtLeastTimes(0.975, "other"), 488e6, 500e6);
        assert_eq!(exact.text, "at least 97.5% of `other`'s (487.5 Mbit/s)");
        let verdict = verdict(Bound::AtLeastTimes(0.98, "other"), 479e6, 500e6);
        let text = "NOT MET      c: goodput of `own` at least 98% of `other`'s (490.0 Mbit/s): 479.0 Mbit/s";
        assert_eq!(verdict.to_string(), text);
    }

    #[test]
    fn a_bound_that_is_missed_by_little_does_not_look_as_if_it_were_met() {
        let text = |own| verdict(Bound::AtLeast(10e6), own, 0.0).to_string();
        let near = "at least 10.0 Mbit/s, missed by less than the digits shown: 10.0 Mbit/s";
        assert!(text(9.99e6).starts_with("NOT MET ") && text(9.99e6).ends_with(near), "{}", text(9.99e6));
        assert!(text(10e6).ends_with("at least 10.0 Mbit/s: 10.0 Mbit/s"), "{}", text(10e6));
        assert!(text(9.9e6).ends_with("at least 10.0 Mbit/s: 9.9 Mbit/s"), "{}", text(9.9e6));
    }

    #[test]
    fn a_product_is_that_of_the_direction_of_the_data() {
        let slow_upload = PathSpec { rate_a_to_b: Some(BitRate(10_000_000)), ..path(100, 40) };
        let case = Case {
            name: String::new(),
            paths: vec![slow_upload],
            flows: Vec::new(),
            memory: None,
            quick: true,
            setup: Setup::default(),
        };
        assert_eq!([Way::Upload, Way::Download].map(|way| product(&case, way)), [Some(50e3), Some(500e3)]);
    }

    #[test]
    fn a_target_on_no_valid_run_is_not_measured() {
        let target = |bound| Target::new("own", Quantity::GoodputBps, bound);
        let judged = |bound, invalid: usize| {
            let mut case = case("c", &[("own", 10.0), ("other", 10.0)]);
            case.methods[invalid].runs[0].valid = false;
            in_case(&target(bound), &case, None, Way::Download)
        };
        let own = judged(Bound::AtLeast(1.0), 0);
        assert_eq!((own.met, own.measured, own.word(), own.passes()), (None, None, "not measured", false));
        assert_eq!(judged(Bound::AtLeast(1.0), 1).met, Some(true));
        assert_eq!(judged(Bound::AtLeastTimes(0.5, "other"), 1).met, None, "compared with no valid run");
    }

    /// Returns an experiment of two cases, in the second of which only the kernel runs, and its targets.
    fn two_cases(targets: Vec<Target>) -> Experiment {
        let catalogue = super::super::catalogue();
        let mut experiment = catalogue.into_iter().find(|one| one.id == "no-harm-together").unwrap();
        experiment.cases[0].quick = false;
        experiment.cases[1].setup.methods = vec!["kernel"];
        experiment.targets = targets;
        experiment
    }

    /// Judges `experiment` as if each run had a goodput of 1 Mbit/s.
    fn judged(experiment: &Experiment, quick: bool) -> Vec<(&'static str, String)> {
        let mut result = ExperimentResult::new(experiment, quick, Some(1), None);
        for method in result.cases.iter_mut().flat_map(|case| &mut case.methods) {
            let values = experiment.quantities.iter().map(|quantity| (*quantity, 1e6)).collect();
            method.runs.push(RunResult { valid: true, values, ..RunResult::default() });
        }
        result.conclude(experiment);
        result.targets.iter().map(|target| (target.word(), target.case.clone())).collect()
    }

    #[test]
    fn a_target_that_no_case_judges_cannot_pass_unseen() {
        let bound = Bound::AtLeast(1.0);
        let target = |cases: &[&str]| Target {
            cases: cases.iter().map(ToString::to_string).collect(),
            ..Target::new("bufwise", Quantity::GoodputBps, bound)
        };
        let of = |cases: &[&str], quick| judged(&two_cases(vec![target(cases)]), quick);
        let first = || ("met", "modest queue".to_owned());
        // A target that names no case applies to all cases in which its method runs.
        assert_eq!(of(&[], false), [first()]);
        let second = ("not measured", "deep queue".to_owned());
        assert_eq!(of(&["modest queue", "deep queue"], false), [first(), second.clone()]);
        assert_eq!(of(&["deep queue"], false), [second]);
        // The short form has the second case only.
        assert_eq!(of(&[], true), [("left out", String::new())]);
        assert_eq!(of(&["modest queue"], true), [("left out", "modest queue".to_owned())]);
        let shard: Shard = "2/2".parse().unwrap();
        let part = shard.of(two_cases(vec![target(&[]), target(&["modest queue"])]), false);
        assert!(judged(&part, false).is_empty(), "another part judges them");
    }

    #[test]
    fn the_short_form_measures_or_leaves_out_every_target_of_the_catalogue() {
        for experiment in super::super::catalogue() {
            for (quick, words) in [(false, &["met", "NOT MET"][..]), (true, &["met", "NOT MET", "left out"])]
            {
                for (word, case) in judged(&experiment, quick) {
                    assert!(words.contains(&word), "{}, {quick}: {case}: {word}", experiment.id);
                }
            }
        }
    }
}
