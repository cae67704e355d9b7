//! Compares a paper's figures with ours, and judges how far the two agree.
//!
//! Problem: a paper's figure comes from another machine, kernel and path, mostly from a single transfer, and is read
//! off a plot or given in two digits. So it is compared as the claim that it is: a number, a range, a factor between
//! two methods, or the order of two methods.
//!
//! The rule, with medians of valid runs:
//! - *A number* is reproduced within 10%: the papers round, some count IP and some TCP bytes (4 to 7% apart), and a
//!   median here scatters by some per cent. It is partly reproduced within a factor of 3/2: the same size, on another
//!   path.
//! - *A range* is reproduced inside it, because its edges are round numbers already, and partly up to 3/2 beyond an
//!   edge.
//! - *A factor* between two methods is compared as its logarithm, so that 2 and 1/2 are equally far from 1. It is
//!   reproduced from three quarters of the paper's gain on, with no upper bound, and partly (the paper's direction)
//!   from a quarter on. The factor 1 ("as much as") is a number: the other method's value.
//! - *An order* is reproduced if the two are at least 5% apart; there is no partly.
//!
//! A claim that is not reproduced and rests on how kernels were then is *no longer true*, not wrong. Without a valid
//! run of every method concerned there is no verdict.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::model::{Experiment, Quantity};
use super::result::CaseResult;
use super::verdict::with_unit;

/// Factor within which numbers are the same.
const SAME: f64 = 1.1;
/// Factor within which numbers are of the same size.
const ALIKE: f64 = 1.5;
/// Parts of a factor, in logarithms, that count as the paper's gain, and as its direction.
const GAIN: f64 = 0.75;
const DIRECTION: f64 = 0.25;
/// Valid runs below which a verdict says on how many it rests.
const ENOUGH: u32 = 5;
/// Factor by which two methods must be apart to be in order.
const APART: f64 = 1.05;

/// A figure that a paper reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reported {
    /// Where it is in the paper that is the experiment's source: `figure 9`, `section 4.2`.
    pub place: String,
    /// Case of the experiment that corresponds to the paper's.
    pub case: String,
    /// Method of the experiment that corresponds to the paper's.
    pub method: String,
    /// The quantity of the figure.
    pub quantity: Quantity,
    /// The paper's statement, in the quantity's own unit.
    pub claim: Claim,
    /// Conditions in the paper that differ from the case; empty: the experiment's `scale` lists them all.
    #[serde(default)]
    pub conditions: String,
    /// Why the result may differ here; empty: not known.
    #[serde(default)]
    pub reason: String,
    /// Whether the claim rests on kernels of that time, so that it may no longer hold.
    #[serde(default)]
    pub of_then: bool,
}

/// A paper's statement on a quantity, in the quantity's own unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Claim {
    /// About this value.
    Number(f64),
    /// Between these values.
    Between(f64, f64),
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
    /// This many times another method's value in the same case.
    Times(f64, String),
    /// More than another method has in the same case.
    MoreThan(String),
    /// Less than another method has in the same case.
    LessThan(String),
}

/// How far our figure agrees with the paper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agreement {
    /// As the paper says.
    Reproduced,
    /// In the paper's direction, or of the same size, but not as the paper says.
    Partly,
    /// It does not agree with the paper.
    Not,
    /// It does not agree with the paper, because kernels have changed.
    NoLongerTrue,
}

/// A paper's figure with ours beside it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The paper's figure.
    #[serde(flatten)]
    pub reported: Reported,
    /// Our median of the quantity, in its own unit; `None`: no run was valid.
    pub measured: Option<f64>,
    /// Our median over that of the claim's other method, if it has one.
    pub times: Option<f64>,
    /// The verdict; `None`: a run that it needs was not valid, or not made.
    pub verdict: Option<Agreement>,
    /// How many runs were valid, and how many were made, of the method with fewer valid ones; `None`: enough.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rests_on: Option<(u32, u32)>,
}

impl Reported {
    pub(super) fn new(place: &str, case: &str, method: &str, quantity: Quantity, claim: Claim) -> Self {
        Self {
            place: place.to_owned(),
            case: case.to_owned(),
            method: method.to_owned(),
            quantity,
            claim,
            conditions: String::new(),
            reason: String::new(),
            of_then: false,
        }
    }

    /// Adds conditions of the paper that differ from ours.
    pub(super) fn under(mut self, conditions: &str) -> Self {
        self.conditions = conditions.to_owned();
        self
    }

    /// Adds why the result may differ here.
    pub(super) fn because(mut self, reason: &str) -> Self {
        self.reason = reason.to_owned();
        self
    }

    /// Marks the claim as one that may no longer be true, because of this change.
    pub(super) fn of_then(self, change: &str) -> Self {
        Self { of_then: true, ..self.because(change) }
    }

    /// Returns the claim as text.
    #[must_use]
    pub fn claimed(&self) -> String {
        let show = |value: &f64| with_unit(self.quantity, *value);
        let claim = match &self.claim {
            Claim::Number(value) => show(value),
            Claim::Between(least, most) => format!("{} to {}", self.quantity.show(*least), show(most)),
            Claim::AtLeast(value) => format!("at least {}", show(value)),
            Claim::AtMost(value) => format!("at most {}", show(value)),
            Claim::Times(1.0, other) => format!("the same as `{other}`"),
            Claim::Times(times, other) => format!("{times:.2} times `{other}`"),
            Claim::MoreThan(other) => format!("more than `{other}`"),
            Claim::LessThan(other) => format!("less than `{other}`"),
        };
        if self.conditions.is_empty() { claim } else { format!("{claim} ({})", self.conditions) }
    }

    fn compared(self, case: &CaseResult) -> Comparison {
        let median = |method: &str| case.valid_median(method, self.quantity);
        let measured = median(&self.method);
        let other = self.claim.other().and_then(median);
        let verdict = measured.and_then(|own| self.claim.judged(own, other)).map(|agreement| {
            if agreement == Agreement::Not && self.of_then { Agreement::NoLongerTrue } else { agreement }
        });
        let times = measured.zip(other).map(|(own, other)| own / other).filter(|times| times.is_finite());
        let methods = [Some(self.method.as_str()), self.claim.other()].into_iter().flatten();
        let runs = methods.filter_map(|name| case.method(name));
        let runs = runs.map(|one| (one.valid_runs(), u32::try_from(one.runs.len()).unwrap_or(u32::MAX)));
        let rests_on = runs.min().filter(|(valid, _)| verdict.is_some() && *valid < ENOUGH);
        Comparison { reported: self, measured, times, verdict, rests_on }
    }
}

impl Claim {
    /// Returns the other method of a claim that compares two.
    pub(crate) fn other(&self) -> Option<&str> {
        match self {
            Self::Times(_, other) | Self::MoreThan(other) | Self::LessThan(other) => Some(other),
            Self::Number(_) | Self::Between(..) | Self::AtLeast(_) | Self::AtMost(_) => None,
        }
    }

    /// Judges our value `own`, with the other method's value; `None` if that is needed and missing.
    fn judged(&self, own: f64, other: Option<f64>) -> Option<Agreement> {
        let verdict = match *self {
            Self::Number(value) => near(own, value),
            Self::Between(least, most) => inside(own, least, most),
            Self::AtLeast(least) => inside(own, least, f64::INFINITY),
            Self::AtMost(most) => inside(own, f64::NEG_INFINITY, most),
            Self::Times(1.0, _) => near(own, other?),
            Self::Times(times, _) => {
                let part = (own / other?).ln() / times.ln();
                graded(part >= GAIN, part >= DIRECTION)
            }
            Self::MoreThan(_) => graded(own > other? * APART, false),
            Self::LessThan(_) => graded(own * APART < other?, false),
        };
        Some(verdict)
    }
}

fn graded(reproduced: bool, partly: bool) -> Agreement {
    match (reproduced, partly) {
        (true, _) => Agreement::Reproduced,
        (false, true) => Agreement::Partly,
        (false, false) => Agreement::Not,
    }
}

fn near(own: f64, value: f64) -> Agreement {
    let within = |factor: f64| (value / factor..=value * factor).contains(&own);
    graded(within(SAME), within(ALIKE))
}

fn inside(own: f64, least: f64, most: f64) -> Agreement {
    graded((least..=most).contains(&own), (least / ALIKE..=most * ALIKE).contains(&own))
}

/// Compares the figures of the experiment's paper with the cases that were run.
pub(super) fn compare(experiment: &Experiment, cases: &[CaseResult]) -> Vec<Comparison> {
    let of_case = |reported: Reported| {
        let case = cases.iter().find(|case| case.name == reported.case)?;
        Some(reported.compared(case))
    };
    experiment.reported().into_iter().filter_map(of_case).collect()
}

impl Comparison {
    /// Returns the verdict in words, `none` if there is none.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self.verdict {
            Some(Agreement::Reproduced) => "reproduced",
            Some(Agreement::Partly) => "partly",
            Some(Agreement::Not) => "not reproduced",
            Some(Agreement::NoLongerTrue) => "no longer true",
            None => "none",
        }
    }

    /// Returns on how many of the runs the verdict rests, in words; `None`: on enough, or there is none.
    #[must_use]
    pub fn few(&self) -> Option<String> {
        let (valid, all) = self.rests_on?;
        Some(format!("rests on {valid} of {all} run{}", if all == 1 { "" } else { "s" }))
    }

    /// Returns our figure, with its unit.
    #[must_use]
    pub fn measured(&self) -> String {
        let Some(value) = self.measured else { return "-".to_owned() };
        let own = with_unit(self.reported.quantity, value);
        self.times.map_or_else(|| own.clone(), |times| format!("{times:.2} times: {own}"))
    }

    /// Returns why ours differs from the paper's figure, if it does and the reason is known.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self.verdict {
            None if self.measured.is_some() => "no valid run of the other method",
            None => "no valid run",
            Some(Agreement::Reproduced) => "",
            Some(_) => &self.reported.reason,
        }
    }
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Reported { place, case, method, quantity, .. } = &self.reported;
        let (what, claimed) = (quantity.shown().name, self.reported.claimed());
        write!(
            f,
            "{:<15} {place}: {case}: {what} of `{method}` {claimed}; here {}",
            self.word(),
            self.measured()
        )?;
        let few = self.few();
        match [few.as_deref().unwrap_or_default(), self.reason()] {
            ["", ""] => Ok(()),
            [one, ""] | ["", one] => write!(f, " ({one})"),
            [few, reason] => write!(f, " ({few}; {reason})"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::result::{MethodResult, RunResult};
    use super::*;

    /// A method with one run.
    fn method(name: &str, valid: bool, goodput: f64) -> MethodResult {
        let values = BTreeMap::from([(Quantity::GoodputBps, goodput)]);
        MethodResult {
            name: name.to_owned(),
            runs: vec![RunResult { valid, attempts: 1, values: values.clone(), ..RunResult::default() }],
            medians: values,
            ..MethodResult::default()
        }
    }

    fn case(methods: Vec<MethodResult>) -> CaseResult {
        CaseResult { methods, ..CaseResult::nothing("c") }
    }

    fn reported(claim: Claim) -> Reported {
        Reported::new("figure 9", "c", "own", Quantity::GoodputBps, claim)
    }

    fn verdict(claim: Claim, own: f64, other: f64) -> Option<Agreement> {
        reported(claim).compared(&case(vec![method("own", true, own), method("other", true, other)])).verdict
    }

    #[test]
    fn each_claim_has_an_inside_a_margin_and_an_outside() {
        let other = || "other".to_owned();
        for (claim, reproduced, partly, not) in [
            (Claim::Number(100.0), [91.0, 109.0], [67.0, 149.0], [66.0, 151.0]),
            (Claim::Between(50.0, 100.0), [50.0, 100.0], [34.0, 149.0], [33.0, 151.0]),
            (Claim::AtLeast(90.0), [90.0, 9e9], [61.0, 89.0], [0.0, 59.0]),
            (Claim::AtMost(90.0), [0.0, 90.0], [91.0, 134.0], [136.0, 9e9]),
            // The other method has 100: a gain of 4 is 400; 3/4 of it (in logarithms) are 283, and 1/4 is 142.
            (Claim::Times(4.0, other()), [284.0, 9e9], [142.0, 282.0], [0.0, 141.0]),
            (Claim::Times(0.25, other()), [0.0, 35.0], [36.0, 70.0], [71.0, 9e9]),
            (Claim::Times(1.0, other()), [91.0, 109.0], [67.0, 149.0], [66.0, 151.0]),
        ] {
            let all =
                [(reproduced, Agreement::Reproduced), (partly, Agreement::Partly), (not, Agreement::Not)];
            for (values, wanted) in all {
                for own in values {
                    assert_eq!(verdict(claim.clone(), own, 100.0), Some(wanted), "{claim:?}: {own}");
                }
            }
        }
    }

    #[test]
    fn an_order_is_seen_or_not() {
        let (more, less) = (Claim::MoreThan("other".to_owned()), Claim::LessThan("other".to_owned()));
        for (claim, own, wanted) in [
            (&more, 106.0, Agreement::Reproduced),
            (&more, 104.0, Agreement::Not),
            (&less, 95.0, Agreement::Reproduced),
            (&less, 96.0, Agreement::Not),
            (&less, 0.0, Agreement::Reproduced),
        ] {
            assert_eq!(verdict(claim.clone(), own, 100.0), Some(wanted), "{claim:?}: {own}");
        }
        assert_eq!(verdict(less, 0.0, 0.0), Some(Agreement::Not), "no difference is no order");
    }

    #[test]
    fn nothing_is_a_number_too() {
        assert_eq!(verdict(Claim::Number(0.0), 0.0, 1.0), Some(Agreement::Reproduced));
        assert_eq!(verdict(Claim::Number(0.0), 1.0, 1.0), Some(Agreement::Not));
        assert_eq!(verdict(Claim::Times(0.5, "other".to_owned()), 0.0, 1.0), Some(Agreement::Reproduced));
        assert_eq!(verdict(Claim::Times(0.5, "other".to_owned()), 0.0, 0.0), Some(Agreement::Not));
    }

    #[test]
    fn without_a_valid_run_there_is_no_verdict() {
        let of = |claim, methods| reported(claim).because("known").compared(&case(methods));
        let stalled = of(Claim::Number(1.0), vec![method("own", false, 1.0)]);
        assert_eq!((stalled.measured, stalled.verdict), (None, None));
        assert!(stalled.to_string().starts_with("none "), "{stalled}");
        assert!(stalled.to_string().ends_with("here - (no valid run)"), "{stalled}");
        let times = || Claim::Times(2.0, "other".to_owned());
        let without = of(times(), vec![method("own", true, 2.0), method("other", false, 1.0)]);
        assert_eq!((without.measured, without.verdict), (Some(2.0), None));
        assert!(without.to_string().ends_with(" (no valid run of the other method)"), "{without}");
        assert_eq!(of(times(), vec![method("own", true, 2.0)]).verdict, None, "left out");
    }

    #[test]
    fn a_claim_of_then_is_no_longer_true_where_it_is_not_reproduced() {
        let claim = || reported(Claim::Times(4.0, "other".to_owned())).of_then("CUBIC");
        let with =
            |own| claim().compared(&case(vec![method("own", true, own), method("other", true, 100.0)]));
        assert_eq!(with(100.0).verdict, Some(Agreement::NoLongerTrue));
        assert_eq!(with(100.0).reason(), "CUBIC");
        assert_eq!(with(200.0).verdict, Some(Agreement::Partly));
        assert_eq!((with(400.0).verdict, with(400.0).reason()), (Some(Agreement::Reproduced), ""));
    }

    #[test]
    fn a_verdict_on_few_valid_runs_says_so() {
        let of = |own: &[bool], other: &[bool]| {
            let runs = |name, valid: &[bool]| {
                let run = |valid: &bool| RunResult { valid: *valid, ..RunResult::default() };
                MethodResult { runs: valid.iter().map(run).collect(), ..method(name, true, 1.0) }
            };
            let claim = Claim::Times(1.0, "other".to_owned());
            reported(claim).compared(&case(vec![runs("own", own), runs("other", other)])).few()
        };
        let five = [true; 5];
        assert_eq!(of(&five, &five), None);
        let two = [true, false, false, true, false];
        assert_eq!(of(&two, &five).as_deref(), Some("rests on 2 of 5 runs"));
        assert_eq!(of(&five, &two).as_deref(), Some("rests on 2 of 5 runs"));
        assert_eq!(of(&[false], &five), None, "there is no verdict");
    }

    #[test]
    fn a_comparison_reads_as_a_line_and_comes_back_from_json() {
        let claim = reported(Claim::Times(1.41, "other".to_owned())).under("1 GB").because("a deeper queue");
        let compared = claim.compared(&case(vec![method("own", true, 9e8), method("other", true, 7.5e8)]));
        assert_eq!(
            compared.to_string(),
            "partly          figure 9: c: goodput of `own` 1.41 times `other` (1 GB); here 1.20 times: 900.0 Mbit/s \
             (rests on 1 of 1 run; a deeper queue)"
        );
        let text = serde_json::to_string(&compared).unwrap();
        assert!(
            text.contains(r#""claim":{"times":[1.41,"other"]}"#) && text.contains(r#""verdict":"partly""#),
            "{text}"
        );
        assert_eq!(serde_json::from_str::<Comparison>(&text).unwrap(), compared);
        assert_eq!(reported(Claim::Times(1.0, "other".to_owned())).claimed(), "the same as `other`");
    }
}
