//! Splits an experiment's cases over several machines, and joins the results.
//!
//! All runs of a case are in one part, so that its methods are compared on one machine. Bounds over all cases are
//! judged after the parts are joined.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use thiserror::Error;

use super::kept::plain;
use super::model::{Bound, Case, Experiment, Quantity};
use super::result::{CaseResult, ExperimentResult};

/// One of several parts, written as `2/3`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Shard {
    /// Number of the part, from 1.
    number: NonZeroU32,
    /// Number of parts.
    of: NonZeroU32,
}

/// Error for a text that is no part.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("shard {0:?}: give K/N, as 1/2 and 2/2, with K from 1 to N")]
pub struct ParseShardError(String);

impl FromStr for Shard {
    type Err = ParseShardError;

    fn from_str(text: &str) -> Result<Self, ParseShardError> {
        let numbers = text
            .split_once('/')
            .and_then(|(number, of)| Some(Self { number: number.parse().ok()?, of: of.parse().ok()? }));
        let shard = numbers.filter(|shard| shard.number <= shard.of);
        shard.ok_or_else(|| ParseShardError(text.chars().take(40).collect()))
    }
}

impl TryFrom<String> for Shard {
    type Error = ParseShardError;

    fn try_from(text: String) -> Result<Self, ParseShardError> {
        text.parse()
    }
}

impl From<Shard> for String {
    fn from(shard: Shard) -> Self {
        shard.to_string()
    }
}

impl fmt::Display for Shard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.number, self.of)
    }
}

impl Shard {
    /// Returns this part of `experiment`: of the cases that are run every Nth, beginning with the Kth. It may have no
    /// case.
    #[must_use]
    pub fn of(self, mut experiment: Experiment, quick: bool) -> Experiment {
        // Parts may keep their runs in one directory.
        let numbers = alike(&experiment.cases);
        for (case, before) in experiment.cases.iter_mut().zip(numbers) {
            case.setup.alike = Some(before);
        }
        let (number, of) = (self.number.get() as usize, self.of.get() as usize);
        let mut index = 0;
        let (own, others): (Vec<_>, Vec<_>) = experiment.cases.drain(..).partition(|case| {
            let is_run = case.quick || !quick;
            index += usize::from(is_run);
            is_run && (index - 1) % of == number - 1
        });
        // The other parts judge what concerns only their cases.
        experiment.targets.retain(|target| {
            let concerns = |cases: &[Case]| cases.iter().any(|case| target.concerns(case));
            !matches!(target.bound, Bound::EarlierThan(..)) && (concerns(&own) || !concerns(&others))
        });
        experiment.cases = own;
        experiment
    }
}

/// Returns for each of `cases` how many before it in the whole experiment have names that differ from its own in signs only.
pub(super) fn alike(cases: &[Case]) -> Vec<usize> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let before = |case: &Case| {
        let count = counts.entry(plain(&case.name)).or_default();
        *count += 1;
        case.setup.alike.unwrap_or(*count - 1)
    };
    cases.iter().map(before).collect()
}

/// Returns the name of the file with the result of an experiment, or of a part of it.
#[must_use]
pub fn file_name(id: &str, shard: Option<Shard>) -> String {
    let part = |shard: Shard| format!("{id}-{}-of-{}.json", shard.number, shard.of);
    shard.map_or_else(|| format!("{id}.json"), part)
}

/// Joins results of the same experiment that have no case in common: its parts, or results of a survey from several machines. Other
/// results of one name stay apart, because different users' files may have the same name. A joined result has the position of its first
/// part.
#[must_use]
pub fn join(mut results: Vec<ExperimentResult>, known: &[Experiment]) -> Vec<ExperimentResult> {
    results.sort_by_key(|result| result.shard);
    let mut groups: Vec<Vec<ExperimentResult>> = Vec::new();
    for result in results {
        let fits = |group: &&mut Vec<ExperimentResult>| {
            group.iter().all(|one| {
                let names: BTreeSet<&str> = one.cases.iter().map(|case| case.name.as_str()).collect();
                one.id == result.id
                    && one.quick == result.quick
                    && (one.survey || one.shard.is_some() && result.shard.is_some())
                    && result.cases.iter().all(|case| !names.contains(case.name.as_str()))
            })
        };
        match groups.iter_mut().find(fits) {
            Some(group) => group.push(result),
            None => groups.push(vec![result]),
        }
    }
    let of = |parts: Vec<ExperimentResult>| {
        let experiment = known.iter().find(|experiment| parts.iter().any(|part| part.id == experiment.id));
        whole(parts, experiment)
    };
    groups.into_iter().filter_map(of).collect()
}

/// Joins parts into one result; `None` if there are none.
fn whole(parts: Vec<ExperimentResult>, experiment: Option<&Experiment>) -> Option<ExperimentResult> {
    let missing = missing(&parts, experiment);
    let are_all = missing.is_empty();
    let are_several = parts.len() > 1;
    let kernels: BTreeSet<&str> = parts.iter().flat_map(|part| part.kernel.split(", ")).collect();
    let kernel = kernels.into_iter().collect::<Vec<_>>().join(", ");
    let mut rest = parts.into_iter();
    let mut joined = ExperimentResult { kernel, ..rest.next()? };
    let mut columns = vec![std::mem::take(&mut joined.cases)];
    for part in rest {
        joined.targets.extend(part.targets);
        joined.reported.extend(part.reported);
        joined.ran.extend(part.ran);
        let new = part.left_out.into_iter().filter(|line| !joined.left_out.contains(line));
        let new: Vec<String> = new.collect();
        joined.left_out.extend(new);
        joined.repeat = joined.repeat.min(part.repeat);
        // An earlier version may have read fewer.
        let new = part.quantities.into_iter().filter(|quantity| !joined.quantities.contains(quantity));
        let new: Vec<Quantity> = new.collect();
        joined.quantities.extend(new);
        columns.push(part.cases);
    }
    joined.cases = in_turn(columns);
    joined.left_out.extend(missing);
    let over_all = std::mem::take(&mut joined.reaches);
    if are_several {
        joined.shard = None;
        joined.cases_in_all = None;
        let place = |case: &CaseResult| experiment?.cases.iter().position(|one| one.name == case.name);
        // A file may have the name of an experiment of the catalogue but other cases or targets; then the verdicts of its parts stay.
        let is_known = joined.file.is_none() && joined.cases.iter().all(|case| place(case).is_some());
        if let Some(experiment) = experiment.filter(|_| is_known) {
            joined.cases.sort_by_key(place);
            joined.conclude(experiment);
            return Some(joined);
        }
    }
    let over_all: Vec<_> = over_all.iter().map(|one| one.judged_when_joined(&joined, are_all)).collect();
    joined.targets.extend(over_all);
    Some(joined)
}

/// Takes the first case of each part, then the second of each: the order in which they were dealt.
fn in_turn(columns: Vec<Vec<CaseResult>>) -> Vec<CaseResult> {
    let mut columns: Vec<_> = columns.into_iter().map(Vec::into_iter).collect();
    let mut cases = Vec::new();
    loop {
        let before = cases.len();
        cases.extend(columns.iter_mut().filter_map(Iterator::next));
        if cases.len() == before {
            return cases;
        }
    }
}

/// Returns a line for each missing part, of a survey of the catalogue one line that names the missing cases. Where there are more parts
/// than cases the last parts are empty and leave no file.
fn missing(parts: &[ExperimentResult], experiment: Option<&Experiment>) -> Vec<String> {
    if let Some(survey) = experiment.filter(|_| parts.iter().all(|part| part.survey)) {
        return without_run(parts, survey).into_iter().collect();
    }
    let there: BTreeSet<Shard> = parts.iter().filter_map(|part| part.shard).collect();
    let Some(of) = there.first().map(|shard| shard.of).filter(|_| there.len() == parts.len()) else {
        return Vec::new();
    };
    /// Missing parts beyond this number are not listed one by one.
    const LISTED: u32 = 100;
    let recorded = parts.iter().find_map(|part| part.cases_in_all);
    let known = || experiment.map(|one| one.cases(parts.iter().any(|part| part.quick)).count());
    let with_cases = recorded.or_else(known).and_then(|count| u32::try_from(count).ok()).unwrap_or(u32::MAX);
    let numbers = (1..=of.get().min(LISTED).min(with_cases)).filter_map(NonZeroU32::new);
    let absent = numbers.map(|number| Shard { number, of }).filter(|shard| !there.contains(shard));
    absent.map(|shard| format!("the cases of shard {shard}: not among these results")).collect()
}

/// Returns a line with the cases that the results of a survey lack: one that was stopped has only the cases in which something ran.
fn without_run(parts: &[ExperimentResult], survey: &Experiment) -> Option<String> {
    let there: BTreeSet<&str> =
        parts.iter().flat_map(|part| &part.cases).map(|case| case.name.as_str()).collect();
    let wanted: Vec<&str> =
        survey.cases(parts.iter().any(|part| part.quick)).map(|case| case.name.as_str()).collect();
    let absent: Vec<&str> = wanted.iter().copied().filter(|name| !there.contains(name)).collect();
    let line = || {
        format!("{} of {} cases, not among these results: {}", absent.len(), wanted.len(), absent.join("; "))
    };
    (!absent.is_empty()).then(line)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::catalogue;
    use super::super::earlier::Reaches;
    use super::super::kept::Kept;
    use super::super::result::{RunResult, Verdict};
    use super::*;

    pub(in super::super) fn experiment() -> Experiment {
        catalogue().into_iter().find(|experiment| experiment.id == "sabt-fig5").unwrap()
    }

    /// Returns a result of `experiment` whose runs all had the same rate.
    pub(in super::super) fn result(experiment: &Experiment, shard: Option<Shard>) -> ExperimentResult {
        let mut result = ExperimentResult::new(experiment, false, Some(1), None);
        for method in result.cases.iter_mut().flat_map(|case| &mut case.methods) {
            let values = BTreeMap::from([(Quantity::GoodputBps, 1e6)]);
            method.runs.push(RunResult { valid: true, attempts: 1, values, ..RunResult::default() });
        }
        result.shard = shard;
        result.conclude(experiment);
        result
    }

    fn names(result: &ExperimentResult) -> Vec<&str> {
        result.cases.iter().map(|case| case.name.as_str()).collect()
    }

    fn parts(of: u32) -> Vec<ExperimentResult> {
        let part = |number| {
            let shard: Shard = format!("{number}/{of}").parse().unwrap();
            result(&shard.of(experiment(), false), Some(shard))
        };
        (1..=of).map(part).collect()
    }

    #[test]
    fn parts_read_as_they_are_written() {
        let shard: Shard = "2/3".parse().unwrap();
        assert_eq!(
            (shard.to_string().as_str(), file_name("x", Some(shard)).as_str()),
            ("2/3", "x-2-of-3.json")
        );
        assert_eq!(file_name("x", None), "x.json");
        for wrong in ["", "2", "0/2", "3/2", "1/0", "a/b", "-1/2", "1/2/3"] {
            assert!(wrong.parse::<Shard>().unwrap_err().to_string().contains("K/N"), "{wrong}");
        }
    }

    #[test]
    fn every_case_is_in_one_part() {
        for (quick, of) in [(false, 2), (true, 2), (false, 4), (false, 9)] {
            let whole: Vec<String> = experiment().cases(quick).map(|case| case.name.clone()).collect();
            let of_part = |number| {
                let shard: Shard = format!("{number}/{of}").parse().unwrap();
                shard.of(experiment(), quick).cases(quick).map(|case| case.name.clone()).collect()
            };
            let dealt: Vec<Vec<String>> = (1..=of).map(of_part).collect();
            let most = dealt.iter().map(Vec::len).max().unwrap();
            assert!(dealt.iter().all(|part| part.len() + 1 >= most), "{dealt:?}");
            let mut all: Vec<String> = dealt.concat();
            all.sort_by_key(|name| whole.iter().position(|one| one == name));
            assert_eq!(all, whole, "{quick} {of}");
        }
    }

    #[test]
    fn parts_keep_their_runs_in_one_directory() {
        let out = tempfile::tempdir().unwrap();
        let mut whole = experiment();
        whole.cases.truncate(3);
        for (case, name) in whole.cases.iter_mut().zip(["queue", "queue <", "queue >"]) {
            name.clone_into(&mut case.name);
        }
        let part = |text: &str| text.parse::<Shard>().unwrap().of(whole.clone(), false);
        let parts = ["1/3", "2/3", "3/3"].map(part);
        for part in &parts {
            let kept = Kept::in_directory(out.path(), part, false);
            result(part, None).cases.iter().for_each(|case| kept.keep(case).unwrap());
        }
        // A later call may run the whole experiment.
        for experiment in parts.iter().chain([&whole]) {
            let kept = Kept::in_directory(out.path(), experiment, false);
            for case in &mut ExperimentResult::new(experiment, false, Some(1), None).cases {
                kept.adopt(case).unwrap();
                assert!(case.methods.iter().all(|method| method.runs.len() == 1), "{}", case.name);
            }
        }
    }

    #[test]
    fn parts_joined_are_as_one_run() {
        let (whole, known) = (result(&experiment(), None), [experiment()]);
        // The parts may come in any order, with another experiment between them.
        let mut parts = parts(4);
        parts.reverse();
        let other = ExperimentResult { id: "other".to_owned(), ..whole.clone() };
        parts.insert(1, other);
        let joined = join(parts, &known);
        assert_eq!(joined.iter().map(|one| one.id.as_str()).collect::<Vec<_>>(), ["other", "sabt-fig5"]);
        let json = |result: &ExperimentResult| serde_json::to_string(result).unwrap();
        assert_eq!(json(&joined[1]), json(&whole), "verdicts over all cases, too");
        // An experiment that is not in the catalogue keeps the order of its file.
        assert_eq!(names(&join(self::parts(4), &[])[0]), names(&whole));
    }

    #[test]
    fn a_part_that_is_missing_is_named() {
        let mut parts = parts(3);
        let without = parts.remove(1).cases.len();
        let joined = join(parts, &[experiment()]);
        assert_eq!(joined.len(), 1);
        assert_eq!(joined[0].left_out, ["the cases of shard 2/3: not among these results"]);
        assert_eq!(joined[0].cases.len(), experiment().cases.len() - without);
    }

    #[test]
    fn cases_that_a_survey_lacks_are_named() {
        let survey = catalogue().into_iter().find(|experiment| experiment.id == "probe-grid").unwrap();
        let of = |cases: std::ops::Range<usize>| {
            let some = Experiment { cases: survey.cases[cases].to_vec(), ..survey.clone() };
            result(&some, None)
        };
        let left_out = |results: Vec<ExperimentResult>| {
            let joined = join(results, std::slice::from_ref(&survey));
            assert_eq!(joined.len(), 1);
            joined[0].left_out.clone()
        };
        let names = |cases: std::ops::Range<usize>| {
            let names: Vec<&str> = survey.cases[cases].iter().map(|case| case.name.as_str()).collect();
            format!("{} of 45 cases, not among these results: {}", names.len(), names.join("; "))
        };
        assert_eq!(left_out(vec![of(0..40)]), [names(40..45)]);
        assert_eq!(left_out(vec![of(0..30), of(35..45)]), [names(30..35)]);
        assert!(left_out(vec![of(0..30), of(30..45)]).is_empty());
        // Numbered parts of a survey, of which most are missing, need no line each.
        let part = |text: &str| {
            let shard: Shard = text.parse().unwrap();
            result(&shard.of(survey.clone(), false), Some(shard))
        };
        assert_eq!(left_out(vec![part("45/45"), part("44/45")]), [names(0..43)]);
        assert_eq!(left_out(vec![part("45/45")]), [names(0..44)]);
    }

    #[test]
    fn a_part_of_an_earlier_version_takes_no_quantity_from_the_others() {
        let mut parts = parts(3);
        parts[0].quantities = vec![Quantity::Drops];
        let joined = join(parts, &[experiment()]).remove(0);
        assert!(joined.quantities.contains(&Quantity::GoodputBps), "{:?}", joined.quantities);
        assert!(joined.cases[1].methods[0].medians.contains_key(&Quantity::GoodputBps), "{joined}");
    }

    #[test]
    fn parts_from_several_kernels_name_each() {
        let mut parts = parts(3);
        let own = parts[0].kernel.clone();
        "0.0-other".clone_into(&mut parts[1].kernel);
        assert_eq!(join(parts, &[experiment()])[0].kernel, format!("0.0-other, {own}"));
    }

    #[test]
    fn a_part_without_a_case_is_not_missing() {
        let one_case = |id: &str| {
            let mut experiment = experiment();
            experiment.cases.truncate(1);
            let first: Shard = "1/4".parse().unwrap();
            let part = result(&first.of(experiment.clone(), false), Some(first));
            (ExperimentResult { id: id.to_owned(), ..part }, experiment)
        };
        let (part, experiment) = one_case("sabt-fig5");
        assert!(join(vec![part], &[experiment])[0].left_out.is_empty());
        // The number of cases of a user's file is in its parts.
        let (part, _) = one_case("mine");
        assert_eq!(join(vec![part.clone()], &[])[0].left_out.len(), 3);
        let part = ExperimentResult { cases_in_all: Some(1), ..part };
        assert!(join(vec![part], &[])[0].left_out.is_empty());
    }

    #[test]
    fn the_earlier_method_is_open_as_long_as_a_part_is_missing() {
        let earlier = |parts| {
            let joined = join(parts, &[experiment()]).remove(0);
            joined.targets.iter().map(|target| target.met).collect::<Vec<_>>()
        };
        assert_eq!(earlier(parts(3)), [Some(false); 2], "all have the same rate");
        let mut two = parts(3);
        two.remove(1);
        assert_eq!(earlier(two), [None; 2]);
    }

    #[test]
    fn a_file_with_the_name_of_an_experiment_keeps_its_own_verdicts() {
        let mut own = experiment();
        own.targets.clear();
        let part = |text: &str| {
            let shard: Shard = text.parse().unwrap();
            let part = result(&shard.of(own.clone(), false), Some(shard));
            ExperimentResult { file: Some("mine.toml".to_owned()), ..part }
        };
        let joined = join(vec![part("1/2"), part("2/2")], &[experiment()]).remove(0);
        assert!(joined.targets.is_empty() && names(&joined) == names(&result(&own, None)), "{joined}");
    }

    #[test]
    fn the_earlier_method_in_a_users_file_is_judged_once_all_parts_are_there() {
        let mine = Experiment { id: "mine", ..experiment() };
        let part = |number: u32| {
            let shard: Shard = format!("{number}/3").parse().unwrap();
            let part = result(&shard.of(mine.clone(), false), Some(shard));
            let cases_in_all = Some(mine.cases.len());
            ExperimentResult { cases_in_all, reaches: Reaches::all_of(&mine), ..part }
        };
        let joined = |parts: &[u32]| join(parts.iter().map(|number| part(*number)).collect(), &[]).remove(0);
        assert_eq!(joined(&[1, 2, 3]).targets, result(&mine, None).targets);
        for some in [&[1, 3][..], &[2]] {
            let targets = joined(some).targets;
            assert_eq!(targets.iter().map(Verdict::word).collect::<Vec<_>>(), ["not measured"; 2]);
        }
    }

    #[test]
    fn results_of_the_same_cases_stay_apart() {
        let twice = vec![result(&experiment(), None), result(&experiment(), None)];
        assert_eq!(join(twice, &[experiment()]).len(), 2);
    }

    #[test]
    fn two_files_of_one_name_stay_apart() {
        let mut other = result(&experiment(), None);
        other.cases.iter_mut().for_each(|case| case.name.push_str(", otherwise"));
        assert_eq!(join(vec![result(&experiment(), None), other], &[]).len(), 2);
    }
}
