//! Judges which of two methods reaches a share of the best value in an earlier case: a bound over all cases together.

use serde::{Deserialize, Serialize};

use super::model::{Bound, Experiment, Quantity, Target};
use super::result::{CaseResult, ExperimentResult, Verdict};
use super::verdict::{factor, with_unit};

/// The method reaches a share of the best value of two methods in an earlier case than the other one does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reaches {
    /// The method.
    pub method: String,
    /// The quantity judged.
    pub quantity: Quantity,
    /// The share of the best value.
    pub share: f64,
    /// The other method.
    pub before: String,
}

impl Reaches {
    /// Returns the bounds of this kind that `experiment` has; a part of it lacks them.
    #[must_use]
    pub fn all_of(experiment: &Experiment) -> Vec<Self> {
        experiment.targets.iter().filter_map(Self::of).collect()
    }

    /// Returns the bound of `target`, if it is of this kind.
    pub(super) fn of(target: &Target) -> Option<Self> {
        let Bound::EarlierThan(share, before) = target.bound else { return None };
        let (method, before) = (target.method.to_owned(), before.to_owned());
        Some(Self { method, quantity: target.quantity, share, before })
    }

    /// Judges whether the method reaches the share in an earlier case of the list than the other one does. The best value is that of
    /// these two methods, because other methods may use another congestion control, which has another best value. If either method ran
    /// nowhere, or lacks a value in one of the `wanted` cases, the target cannot be judged: that case might be the earliest one, or have
    /// the best value.
    pub(super) fn judged(&self, cases: &[CaseResult], wanted: &[&str]) -> Verdict {
        let Self { method, quantity, share, before } = self;
        let of_two = |case: &CaseResult| [method, before].map(|name| case.valid_median(name, *quantity));
        let has = |name: &&str| {
            cases.iter().any(|case| case.name == **name && of_two(case).iter().all(Option::is_some))
        };
        let is_complete = self.both_ran(cases) && wanted.iter().all(has);
        let best = cases.iter().flat_map(of_two).flatten().fold(0.0, f64::max);
        let has_reached = |case: &CaseResult, method: &str| {
            case.valid_median(method, *quantity).is_some_and(|value| value >= share * best)
        };
        let reached = |method: &str| cases.iter().position(|case| has_reached(case, method));
        let (own, others) = (reached(method), reached(before));
        let name = |place: Option<usize>| place.map_or("none", |place| cases[place].name.as_str());
        let text = format!(
            "reaches {} the best of both, {}, in an earlier case than `{before}` (in {}; `{before}` in {})",
            factor(*share),
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
            method: method.clone(),
            quantity: *quantity,
            text,
            measured: own.and_then(|place| cases[place].valid_median(method, *quantity)),
            met: met.filter(|_| best > 0.0 && is_complete),
            left_out: false,
        }
    }

    /// Judges it over the cases of joined parts, whose results are all that is known of the experiment; `are_all` is whether no part
    /// is missing.
    pub(super) fn judged_when_joined(&self, joined: &ExperimentResult, are_all: bool) -> Verdict {
        let cases = &joined.cases;
        let wanted = cases.iter().filter(|&case| self.both_ran(std::slice::from_ref(case)));
        let wanted: Vec<&str> = wanted.map(|case| case.name.as_str()).collect();
        let verdict = self.judged(cases, &wanted);
        Verdict {
            met: verdict.met.filter(|_| are_all),
            left_out: joined.quick && are_all && !self.both_ran(cases),
            ..verdict
        }
    }

    /// Whether both methods ran, each in at least one of `cases`.
    fn both_ran(&self, cases: &[CaseResult]) -> bool {
        let ran = |name: &String| cases.iter().any(|case| case.method(name).is_some());
        ran(&self.method) && ran(&self.before)
    }
}

#[cfg(test)]
mod tests {
    use super::super::verdict::tests::case;
    use super::*;

    fn reaches(share: f64, method: &str, before: &str) -> Reaches {
        let (method, before) = (method.to_owned(), before.to_owned());
        Reaches { method, quantity: Quantity::GoodputBps, share, before }
    }

    #[test]
    fn the_earlier_method_depends_on_the_two_alone() {
        let judged = |own: [f64; 2], other: [f64; 2]| {
            let of = |at: usize, name: &'static str| {
                case(name, &[("own", own[at]), ("other", other[at]), ("beside", 1e9)])
            };
            reaches(0.95, "own", "other").judged(&[of(0, "a"), of(1, "b")], &["a", "b"]).met
        };
        assert_eq!(judged([95.0, 99.0], [94.0, 100.0]), Some(true));
        assert_eq!(judged([94.0, 99.0], [94.0, 100.0]), Some(false), "both at once");
        assert_eq!(judged([94.0, 94.0], [94.0, 100.0]), Some(false), "never");
    }

    #[test]
    fn the_one_that_needs_less_gets_there_first() {
        let cases = [
            case("small", &[("own", 90.0), ("other", 50.0)]),
            case("large", &[("own", 99.0), ("other", 100.0)]),
        ];
        let of = |share, method, before| reaches(share, method, before).judged(&cases, &["small", "large"]);
        assert_eq!(of(0.9, "own", "other").met, Some(true));
        assert_eq!(of(0.9, "other", "own").met, Some(false));
        assert_eq!(of(0.95, "own", "other").met, Some(false), "both in the second");
        assert_eq!(
            of(0.9, "other", "own").text,
            "reaches 90% of the best of both, 0.0001 Mbit/s, in an earlier case than `own` (in large; `own` in small)"
        );
    }

    #[test]
    fn neither_is_earlier_where_a_case_a_median_or_a_method_is_missing() {
        let target = reaches(0.9, "own", "other");
        let small = case("small", &[("own", 90.0), ("other", 50.0)]);
        let judged = |large: &[(&str, f64)]| {
            target.judged(&[small.clone(), case("large", large)], &["small", "large"]).met
        };
        assert_eq!(judged(&[("own", 99.0), ("other", 100.0)]), Some(true));
        assert_eq!(judged(&[("own", 99.0)]), None);
        assert_eq!(target.judged(&[small], &["small", "large"]).met, None);
        // The short form leaves the other method out, so that no case is wanted of both.
        assert_eq!(target.judged(&[case("small", &[("own", 90.0)])], &[]).met, None);
    }
}
