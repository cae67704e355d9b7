//! The order of an experiment's runs: its cases in turn, and in each case its methods alternating.

use super::kept::Kept;
use super::model::{Case, Experiment, Method};
use super::result::{ExperimentResult, RunResult};
use super::runner::{ExperimentError, Options};

/// Most attempts at a run that is invalid.
const ATTEMPTS: u32 = 3;
/// Most runs of a method that are kept over time until its case ends, 64 KB each. One of them is shown: the nearest to the median of
/// all, which is known only then.
const KEPT_OVER_TIME: usize = 16;

/// Makes every run of `experiment` that is not kept yet, by calling `once`; its last argument counts the attempts. Only a survey,
/// or a call that resumes, goes on from kept runs.
///
/// A survey leaves out methods whose congestion control is not among `available`. Every experiment leaves out cases whose web
/// server, or the congestion control of a flow, is not among them.
pub(super) fn measure(
    experiment: &Experiment,
    options: &Options,
    available: &[String],
    mut once: impl FnMut(&Case, &Method, u32) -> Result<RunResult, ExperimentError>,
    mut progress: impl FnMut(&str),
) -> Result<ExperimentResult, ExperimentError> {
    let kept = options.out.as_ref().map(|out| Kept::in_directory(out, experiment, options.quick));
    let mut result = ExperimentResult::new(experiment, options.quick, options.repeat, Some(available));
    let is_part = experiment.cases.iter().any(|case| case.setup.alike.is_some());
    let _alone = kept.as_ref().map(|kept| kept.lock(is_part)).transpose()?;
    if let Some(kept) = kept.as_ref().filter(|_| !experiment.survey && !options.resume) {
        kept.forget(&result.cases)?;
    }
    for left_out in &result.left_out {
        progress(&format!("{}: left out: {left_out}", experiment.id));
    }
    let first = experiment.quantities.first().copied();
    for (case, of_case) in experiment.cases(options.quick).zip(&mut result.cases) {
        if let Some(kept) = &kept {
            kept.adopt(of_case)?;
            // Invalid runs are repeated.
            of_case.methods.iter_mut().for_each(|method| method.runs.retain(|run| run.valid));
        }
        let repeat = experiment.repeat(case, options.quick, options.repeat);
        for round in 1..=repeat {
            for method in experiment.methods(case, options.quick) {
                let Some(of_method) = of_case.methods.iter_mut().find(|one| one.name == method.name) else {
                    continue;
                };
                if of_method.valid_runs() >= repeat || of_method.has_round(round) {
                    continue;
                }
                let (id, case_name, name) = (experiment.id, &case.name, method.name);
                progress(&format!("{id}: {case_name}, {name}, {round} of {repeat}"));
                let case = case.of_round(round);
                let run = until_valid(|attempts| once(&case, &method, attempts))?;
                of_method.runs.push(RunResult { round, ..run });
                of_method.keep_over_time(first, KEPT_OVER_TIME);
                if let Some(kept) = &kept {
                    kept.keep(of_case)?;
                }
            }
        }
        of_case.methods.iter_mut().for_each(|method| method.keep_over_time(first, 1));
    }
    result.conclude(experiment);
    Ok(result)
}

fn until_valid(
    mut once: impl FnMut(u32) -> Result<RunResult, ExperimentError>,
) -> Result<RunResult, ExperimentError> {
    let mut attempts = 1;
    loop {
        let run = once(attempts)?;
        if run.valid || attempts == ATTEMPTS {
            return Ok(run);
        }
        attempts += 1;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::{Path, PathBuf};

    use bufwise_units::Nanos;

    use super::super::kept::{forget_runs, unfinished};
    use super::super::model::{Flow, Quantity, Setup};
    use super::super::over_time::OverTime;
    use super::super::result::Verdict;
    use super::*;
    use crate::commands::CommandError;

    /// Two cells of the grid, the first a corner.
    fn survey() -> Experiment {
        let catalogue = super::super::catalogue();
        let mut survey = catalogue.into_iter().find(|experiment| experiment.id == "fit-grid").unwrap();
        survey.cases.truncate(2);
        for case in &mut survey.cases {
            case.setup = Setup { methods: vec!["cubic", "bbr", "fit at the sender"], ..case.setup.clone() };
        }
        survey
    }

    fn options(out: Option<&Path>) -> Options {
        let out = out.map(Path::to_path_buf);
        Options { program: PathBuf::from("bufwise"), quick: false, repeat: Some(2), out, resume: false }
    }

    fn names(names: &[&str]) -> Vec<String> {
        names.iter().map(ToString::to_string).collect()
    }

    fn one(valid: bool, attempts: u32) -> RunResult {
        let values = BTreeMap::from([(Quantity::GoodputBps, 1e6)]);
        let problem = (!valid).then(|| "it stalled".to_owned());
        RunResult { valid, problem, attempts, values, ..RunResult::default() }
    }

    /// Runs until `until` runs were made; returns their names, and whether the series was completed.
    fn runs(survey: &Experiment, out: &Path, until: usize) -> (Vec<String>, bool) {
        let (made, done) = measured(survey, &options(Some(out)), until);
        (made, done.is_some())
    }

    /// Runs until `until` runs were made; returns their names, and the result of a series that was completed.
    fn measured(
        survey: &Experiment,
        options: &Options,
        until: usize,
    ) -> (Vec<String>, Option<ExperimentResult>) {
        let mut made = Vec::new();
        let once = |case: &Case, method: &Method, attempts| {
            if made.len() == until {
                let source = CommandError::Interrupted(2).into();
                return Err(ExperimentError::Run { id: survey.id, method: method.name, source });
            }
            made.push(format!("{}: {}", case.name, method.name));
            let over_time = (!survey.survey).then(OverTime::default);
            Ok(RunResult { over_time, ..one(true, attempts) })
        };
        let done = measure(survey, options, &names(&["cubic", "bbr"]), once, |_| {}).ok();
        (made, done)
    }

    #[test]
    fn a_second_call_goes_on_where_the_first_was_stopped() {
        let survey = survey();
        let out = tempfile::tempdir().unwrap();
        let whole = runs(&survey, tempfile::tempdir().unwrap().path(), usize::MAX).0;
        assert_eq!(whole.len(), 2 * 2 * 3);
        assert!(unfinished(&survey, out.path(), &[]).unwrap().is_none());
        let mut made = Vec::new();
        for stop in [4, 5, usize::MAX] {
            let (some, done) = runs(&survey, out.path(), stop);
            assert_eq!(done, stop == usize::MAX);
            made.extend(some);
            assert_eq!(made, whole[..made.len()], "each run once, in the order of an unbroken call");
        }
        assert_eq!(made, whole);
        assert_eq!(runs(&survey, out.path(), usize::MAX), (Vec::new(), true));
    }

    #[test]
    fn late_flows_begin_later_in_each_round_and_at_the_same_moment_with_each_method() {
        let mut survey = survey();
        survey.cases.truncate(1);
        let late = Flow { delay: Nanos::from_secs(4), ..Flow::default() };
        survey.cases[0].flows.push(late);
        survey.cases[0].setup.apart = Nanos::from_millis(170);
        let mut begins: BTreeMap<&str, Vec<[u64; 2]>> = BTreeMap::new();
        let once = |case: &Case, method: &Method, attempts| {
            let delays = [&case.flows[0], &case.flows[1]].map(|flow| flow.delay.0 / 1_000_000);
            begins.entry(method.name).or_default().push(delays);
            Ok(one(true, attempts))
        };
        measure(&survey, &options(None), &names(&["cubic", "bbr"]), once, |_| {}).unwrap();
        assert_eq!(begins.len(), 3);
        assert!(begins.values().all(|begins| *begins == [[0, 4_000], [0, 4_170]]), "{begins:?}");
    }

    #[test]
    fn a_run_that_is_made_later_begins_at_the_moment_of_its_own_round() {
        let mut survey = survey();
        survey.cases.truncate(1);
        survey.cases[0].setup.methods = vec!["cubic"];
        survey.cases[0].setup.apart = Nanos::from_millis(170);
        survey.cases[0].flows.push(Flow { delay: Nanos::from_secs(4), ..Flow::default() });
        let out = tempfile::tempdir().unwrap();
        let begins = |first_stalls: bool| {
            let mut begins = Vec::new();
            let once = |case: &Case, _: &Method, attempts| {
                let delay = case.flows[1].delay.0 / 1_000_000;
                begins.push(delay);
                Ok(one(delay > 4_000 || !first_stalls, attempts))
            };
            measure(&survey, &options(Some(out.path())), &names(&["cubic"]), once, |_| {}).unwrap();
            begins
        };
        assert_eq!(begins(true), [4_000, 4_000, 4_000, 4_170], "three attempts at the first");
        assert_eq!(begins(false), [4_000]);
        assert!(begins(false).is_empty(), "all are there");
    }

    #[test]
    fn another_experiment_goes_on_if_asked_and_leaves_no_single_runs() {
        let experiment = Experiment { survey: false, ..survey() };
        let out = tempfile::tempdir().unwrap();
        let mut options = options(Some(out.path()));
        let mut until = |resume, until| {
            options.resume = resume;
            let (made, result) = measured(&experiment, &options, until);
            (made.len(), result)
        };
        assert_eq!(until(true, 7).0, 7);
        assert_eq!(until(true, 2).0, 2, "the eighth and ninth of twelve");
        assert_eq!(until(false, 4).0, 4, "from the first again");
        assert_eq!(until(false, 5).0, 5, "from the first again");
        let (made, result) = until(true, usize::MAX);
        let result = result.unwrap();
        assert_eq!((made, result.cases.len()), (7, 2));
        let methods = result.cases.iter().flat_map(|case| &case.methods);
        assert!(methods.clone().all(|method| method.runs.len() == 2 && method.over_time().is_some()));
        assert_eq!(methods.count(), 6);
        let left = || out.path().read_dir().unwrap().count();
        assert_eq!(left(), 1, "until the whole result is written");
        forget_runs(&experiment, &options).unwrap();
        assert_eq!(left(), 0);
    }

    #[test]
    fn the_run_over_time_is_the_nearest_to_the_median_of_all_runs() {
        let mut experiment = Experiment { survey: false, ..survey() };
        experiment.cases.truncate(1);
        experiment.cases[0].setup.methods = vec!["cubic"];
        // After two runs the median is as near to the first as to the second.
        let mut rates = [1.0, 5.0, 6.0].into_iter();
        let once = |_: &Case, _: &Method, attempts| {
            let values = BTreeMap::from([(experiment.quantities[0], rates.next().unwrap())]);
            Ok(RunResult { values, over_time: Some(OverTime::default()), ..one(true, attempts) })
        };
        let options = Options { repeat: Some(3), ..options(None) };
        let result = measure(&experiment, &options, &names(&["cubic"]), once, |_| {}).unwrap();
        let method = &result.cases[0].methods[0];
        assert_eq!(method.over_time().map(|(number, _)| number), Some(1));
        assert_eq!(method.runs.iter().filter(|run| run.over_time.is_some()).count(), 1);
    }

    #[test]
    fn a_stopped_survey_has_a_result_of_what_is_finished() {
        let survey = survey();
        let out = tempfile::tempdir().unwrap();
        runs(&survey, out.path(), 6);
        let result = unfinished(&survey, out.path(), &[]).unwrap().unwrap();
        assert_eq!(result.cases.len(), 1);
        assert_eq!(result.cases[0].median("cubic", Quantity::GoodputBps), Some(1e6));
        assert!(!result.targets.is_empty());
    }

    #[test]
    fn runs_of_other_commands_are_made_again() {
        let mut survey = survey();
        let out = tempfile::tempdir().unwrap();
        runs(&survey, out.path(), usize::MAX);
        survey.methods.iter_mut().find(|method| method.name == "bbr").unwrap().rmem /= 2;
        let (made, _) = runs(&survey, out.path(), usize::MAX);
        assert!(made.len() == 4 && made.iter().all(|run| run.ends_with(": bbr")), "{made:?}");
    }

    #[test]
    fn an_invalid_run_is_made_again_and_never_counts() {
        let survey = survey();
        let out = tempfile::tempdir().unwrap();
        let mut attempts_made = 0;
        let stalled = |_: &Case, method: &Method, attempts| {
            attempts_made += u32::from(method.name == "bbr");
            Ok(one(method.name != "bbr", attempts))
        };
        let available = names(&["cubic", "bbr"]);
        let result = measure(&survey, &options(Some(out.path())), &available, stalled, |_| {}).unwrap();
        assert_eq!(attempts_made, 2 * 2 * ATTEMPTS);
        for case in &result.cases {
            assert_eq!(case.median("bbr", Quantity::GoodputBps), None);
            assert_eq!(case.median("cubic", Quantity::GoodputBps), Some(1e6));
        }
        let better = |quantity| {
            result
                .targets
                .iter()
                .filter(move |target| target.text.contains("better") && target.quantity == quantity)
        };
        assert!(better(Quantity::GoodputBps).all(|target| target.met.is_none()), "{:?}", result.targets);
        assert!(!result.met(), "not measured is no pass");
        let (again, _) = runs(&survey, out.path(), usize::MAX);
        assert!(again.len() == 4 && again.iter().all(|run| run.ends_with(": bbr")), "{again:?}");
    }

    #[test]
    fn a_case_whose_web_server_is_not_installed_is_left_out_and_named() {
        let catalogue = super::super::catalogue();
        let documents = catalogue.into_iter().find(|experiment| experiment.id == "sabt-fig10").unwrap();
        let of = |available: &[&str]| {
            let fake = |_: &Case, _: &Method, attempts| Ok(one(true, attempts));
            measure(&documents, &options(None), &names(available), fake, |_| {}).unwrap()
        };
        let kernels = ["cubic", "reno", "bbr"];
        let without = of(&kernels);
        assert_eq!(without.left_out, ["web server: no nginx on this machine"]);
        assert_eq!(without.cases[2].methods.len(), 0);
        let with = of(&[&kernels[..], &["nginx"]].concat());
        assert!(with.left_out.is_empty() && with.cases[2].methods.len() == with.cases[0].methods.len());
    }

    #[test]
    fn a_method_that_the_kernel_lacks_is_left_out_and_named() {
        let fake = |_: &Case, _: &Method, attempts| Ok(one(true, attempts));
        let result = measure(&survey(), &options(None), &names(&["cubic", "reno"]), fake, |_| {}).unwrap();
        assert!(result.cases.iter().all(|case| case.method("bbr").is_none()));
        assert_eq!(result.left_out, ["bbr: no bbr in this kernel", "fit over bbr: no bbr in this kernel"]);
        let best = result.targets.iter().find(|target| target.text.contains("better")).unwrap();
        assert_eq!(best.met, Some(true), "{best}");
        assert_left_out(&result, |target| target.method == "fit over bbr");
    }

    /// Asserts that there are such targets, and that none of them is a failure, because this machine cannot measure it.
    fn assert_left_out(result: &ExperimentResult, of: impl Fn(&Verdict) -> bool) {
        let targets: Vec<&Verdict> = result.targets.iter().filter(|target| of(target)).collect();
        assert!(!targets.is_empty());
        assert!(targets.iter().all(|target| target.word() == "left out" && target.passes()), "{targets:?}");
    }

    #[test]
    fn a_case_whose_background_flow_needs_what_the_kernel_lacks_is_left_out_and_named() {
        let catalogue = super::super::catalogue();
        let harm = catalogue.into_iter().find(|experiment| experiment.id == "fit-harm").unwrap();
        let of = |available: &[&str]| {
            let fake = |_: &Case, _: &Method, attempts| Ok(one(true, attempts));
            measure(&harm, &options(None), &names(available), fake, |_| {}).unwrap()
        };
        let without = of(&["cubic"]);
        assert_eq!(without.left_out, ["beside BBR: no bbr in this kernel"]);
        let case = without.cases.iter().find(|case| case.name == "beside BBR").unwrap();
        assert!(case.methods.is_empty());
        assert_left_out(&without, |target| target.case == "beside BBR");
        let with = of(&["bbr", "cubic"]);
        assert!(with.left_out.is_empty() && with.cases.iter().all(|case| case.methods.len() == 4));
    }
}
