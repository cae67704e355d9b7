//! Tests of what is kept and found again.

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

use super::super::model::Amount;
use super::super::result::RunResult;
use super::super::shard::tests::{experiment, result};
use super::*;

fn options(out: &Path, quick: bool) -> Options {
    let program = PathBuf::from("bufwise");
    Options { program, quick, repeat: None, out: Some(out.to_owned()), resume: false }
}

#[test]
fn results_of_another_form_are_found_before_they_are_replaced() {
    let out = tempfile::tempdir().unwrap();
    let experiment = experiment();
    let clash = |quick| other_form(&experiment, None, &options(out.path(), quick)).unwrap();
    assert_eq!((clash(false), clash(true)), (None, None));
    let path = out.path().join("sabt-fig5.json");
    fs::write(&path, serde_json::to_vec(&result(&experiment, None)).unwrap()).unwrap();
    assert_eq!((clash(false), clash(true)), (None, Some(path)));
    let part = other_form(&experiment, "1/2".parse().ok(), &options(out.path(), true)).unwrap();
    assert_eq!(part, None, "a part has a file of its own");
}

#[test]
fn results_of_a_users_experiment_and_of_the_catalogues_one_are_found_before_they_are_replaced() {
    let out = tempfile::tempdir().unwrap();
    let (own, built_in) = (Experiment { id: "mine", ..experiment() }, experiment());
    let written = result(&built_in, None);
    let write = |id: &str, file: Option<&str>| {
        let result = ExperimentResult { file: file.map(str::to_owned), ..written.clone() };
        let path = out.path().join(file_name(id, None));
        fs::write(&path, serde_json::to_vec(&result).unwrap()).unwrap();
        path
    };
    let options = options(out.path(), false);
    let clash = |of: &Experiment, is_own| other_origin(of, is_own, None, &options).unwrap();
    assert_eq!((clash(&built_in, false), clash(&built_in, true)), (None, None));
    let path = write("sabt-fig5", None);
    assert_eq!((clash(&built_in, false), clash(&built_in, true)), (None, Some(path)));
    let path = write("sabt-fig5", Some("mine.toml"));
    assert_eq!((clash(&built_in, true), clash(&built_in, false)), (None, Some(path)));
    write("mine", None);
    assert_eq!(clash(&own, true), None, "an earlier version wrote it");
}

#[test]
fn runs_of_a_stopped_call_of_another_form_are_found_before_they_are_replaced() {
    let experiment = experiment();
    for case in &result(&experiment, None).cases {
        let out = tempfile::tempdir().unwrap();
        let kept = Kept::in_directory(out.path(), &experiment, false);
        kept.keep(case).unwrap();
        let clash = |quick| other_form(&experiment, None, &options(out.path(), quick)).unwrap();
        // The short form lacks some of the cases.
        assert_eq!((clash(false), clash(true)), (None, Some(kept.file(case))), "{}", case.name);
        // A torn file is in the way only of a call that goes on from it.
        fs::write(kept.file(case), "{").unwrap();
        assert_eq!((clash(false), clash(true)), (None, None));
        let resumed = Options { resume: true, ..options(out.path(), false) };
        let error = other_form(&experiment, None, &resumed).unwrap_err().to_string();
        assert!(error.contains(": EOF ") && error.contains("; move the file elsewhere"), "{error}");
    }
}

/// A survey, and its first case that the short form has, with a run of the whole form.
fn case() -> (Experiment, CaseResult) {
    let survey = catalogue().into_iter().find(|one| one.id == "fit-harm").unwrap();
    let quick: Vec<&str> = survey.cases(true).map(|case| case.name.as_str()).collect();
    let mut cases = ExperimentResult::new(&survey, false, None, None).cases;
    cases.retain(|case| quick.contains(&case.name.as_str()));
    let mut case = cases.remove(0);
    let values = [(Quantity::GoodputBps, 1e6)].into();
    case.methods[0].runs = vec![RunResult { valid: true, values, ..RunResult::default() }];
    (survey, case)
}

#[test]
fn kept_cases_of_another_form_are_found_before_they_are_replaced() {
    let out = tempfile::tempdir().unwrap();
    let (survey, case) = case();
    let kept = Kept::in_directory(out.path(), &survey, false);
    kept.keep(&case).unwrap();
    let path = kept.file(&case);
    let clash = |quick| other_form(&survey, None, &options(out.path(), quick)).unwrap();
    assert_eq!((clash(false), clash(true)), (None, Some(path.clone())));
    // An earlier version did not write the form.
    let mut file: serde_json::Value = read(&path).unwrap().unwrap();
    for key in ["quick", "quantities"] {
        file.as_object_mut().unwrap().remove(key).unwrap();
    }
    fs::write(&path, serde_json::to_vec(&file).unwrap()).unwrap();
    assert_eq!((clash(false), clash(true)), (None, Some(path)));
}

#[test]
fn a_case_that_cannot_be_written_leaves_no_unfinished_file() {
    let out = tempfile::tempdir().unwrap();
    let (survey, case) = case();
    let kept = Kept::in_directory(out.path(), &survey, false);
    // A directory in its place lets the renaming fail, as a full disk lets the writing fail.
    fs::create_dir_all(kept.file(&case)).unwrap();
    let error = kept.keep(&case).unwrap_err().to_string();
    assert!(error.starts_with("cannot write "), "{error}");
    assert_eq!(kept.directory.read_dir().unwrap().count(), 1);
}

#[test]
fn a_fifo_in_the_place_of_a_file_is_refused_instead_of_waited_for() {
    let out = tempfile::tempdir().unwrap();
    let (survey, mut case) = case();
    let kept = Kept::in_directory(out.path(), &survey, false);
    fs::create_dir_all(&kept.directory).unwrap();
    mkfifo(&kept.file(&case), Mode::S_IRWXU).unwrap();
    for refused in [kept.adopt(&mut case).err(), unfinished(&survey, out.path(), &[]).err()] {
        let error = refused.unwrap().to_string();
        assert!(error.starts_with("cannot read ") && error.contains(": it is not a regular file"), "{error}");
    }
}

#[test]
fn cases_of_another_machine_are_reported_but_not_continued() {
    let out = tempfile::tempdir().unwrap();
    let (survey, case) = case();
    let kept = Kept::in_directory(out.path(), &survey, false);
    kept.keep(&case).unwrap();
    let file = fs::read_to_string(kept.file(&case)).unwrap();
    let elsewhere = file.replace(&format!("\"{}\"", kernel_release()), "\"5.4.0-other\"");
    fs::write(kept.file(&case), elsewhere).unwrap();
    let report = unfinished(&survey, out.path(), &[]).unwrap().unwrap();
    assert_eq!((report.kernel.as_str(), report.cases.len()), ("5.4.0-other", 1));
    let mut empty = case.clone();
    empty.methods[0].runs.clear();
    kept.adopt(&mut empty).unwrap();
    assert!(empty.methods[0].runs.is_empty(), "another kernel");
}

#[test]
fn runs_of_another_part_are_reported_beside_the_result_of_a_finished_one() {
    let out = tempfile::tempdir().unwrap();
    let (survey, case) = case();
    Kept::in_directory(out.path(), &survey, false).keep(&case).unwrap();
    let cases = |finished: ExperimentResult| {
        let so_far = unfinished(&survey, out.path(), &[finished]).unwrap();
        so_far.map(|result| result.cases.into_iter().map(|case| case.name).collect::<Vec<_>>())
    };
    let part = ExperimentResult { id: survey.id.to_owned(), ..ExperimentResult::default() };
    assert_eq!(cases(part.clone()), Some(vec![case.name.clone()]));
    let of_case = ExperimentResult { cases: vec![case.clone()], ..part };
    assert_eq!(cases(of_case.clone()), None, "it has them already");
    let other = ExperimentResult { id: "other".to_owned(), ..of_case };
    assert_eq!(cases(other), Some(vec![case.name]));
}

#[test]
fn cases_without_a_wanted_quantity_are_measured_again() {
    let out = tempfile::tempdir().unwrap();
    let (survey, mut case) = case();
    Kept::in_directory(out.path(), &survey, false).keep(&case).unwrap();
    let runs = |quantity: Quantity, case: &mut CaseResult| {
        let more = Experiment { quantities: vec![Quantity::GoodputBps, quantity], ..survey.clone() };
        case.methods[0].runs.clear();
        Kept::in_directory(out.path(), &more, false).adopt(case).unwrap();
        case.methods[0].runs.len()
    };
    assert_eq!(runs(Quantity::Drops, &mut case), 1);
    assert_eq!(runs(Quantity::TransferS, &mut case), 0);
}

#[test]
fn cases_that_lack_a_newer_quantity_are_reported_with_the_others() {
    let out = tempfile::tempdir().unwrap();
    let (survey, case) = case();
    let earlier = Experiment { quantities: vec![Quantity::GoodputBps], ..survey.clone() };
    Kept::in_directory(out.path(), &earlier, false).keep(&case).unwrap();
    let report = unfinished(&survey, out.path(), &[]).unwrap().unwrap();
    assert_eq!(report.cases.len(), 1);
    let method = &report.cases[0].methods[0];
    assert_eq!(method.median_of_valid(Quantity::GoodputBps), Some(1e6));
    assert_eq!(method.median_of_valid(Quantity::Drops), None);
}

#[test]
fn cases_whose_names_differ_in_signs_only_have_files_of_their_own() {
    let out = tempfile::tempdir().unwrap();
    let mut experiment = experiment();
    experiment.cases.truncate(2);
    for (case, name) in experiment.cases.iter_mut().zip(["queue < BDP", "queue > BDP"]) {
        name.clone_into(&mut case.name);
    }
    let kept = Kept::in_directory(out.path(), &experiment, false);
    result(&experiment, None).cases.iter().for_each(|case| kept.keep(case).unwrap());
    // As a call that was killed meanwhile leaves it.
    fs::write(kept.directory.join("queue-bdp+2.unfinished"), "{").unwrap();
    let mut empty = ExperimentResult::new(&experiment, false, Some(1), None);
    for case in &mut empty.cases {
        kept.adopt(case).unwrap();
        assert!(case.methods.iter().all(|method| method.runs.len() == 1), "{}", case.name);
    }
    forget_runs(&experiment, &options(out.path(), false)).unwrap();
    assert_eq!(out.path().read_dir().unwrap().count(), 0);
}

#[test]
fn runs_of_an_experiment_called_samples_are_not_among_the_runs_over_time() {
    let out = tempfile::tempdir().unwrap();
    let mut experiment = Experiment { id: SAMPLES, ..experiment() };
    // The only case of a file without cases is named after the file.
    experiment.cases.truncate(1);
    SAMPLES.clone_into(&mut experiment.cases[0].name);
    let over_time = out.path().join(SAMPLES).join(file_name(SAMPLES, None));
    fs::create_dir(out.path().join(SAMPLES)).unwrap();
    fs::write(&over_time, "over time").unwrap();
    let kept = Kept::in_directory(out.path(), &experiment, false);
    kept.keep(&result(&experiment, None).cases[0]).unwrap();
    forget_runs(&experiment, &options(out.path(), false)).unwrap();
    assert_eq!(fs::read_to_string(over_time).unwrap(), "over time");
    assert_eq!(out.path().read_dir().unwrap().count(), 1);
}

#[test]
fn a_result_is_not_taken_if_one_of_its_cases_is_to_run_more_often() {
    let out = tempfile::tempdir().unwrap();
    let mut experiment = experiment();
    experiment.cases.iter_mut().for_each(|case| case.setup.repeat = Some(1));
    let text = serde_json::to_vec(&result(&experiment, None)).unwrap();
    fs::write(out.path().join(file_name(experiment.id, None)), text).unwrap();
    let options = options(out.path(), false);
    assert!(finished(&experiment, None, &options).unwrap().is_some());
    experiment.cases[1].setup.repeat = Some(2);
    assert!(finished(&experiment, None, &options).unwrap().is_none());
}

#[test]
fn a_result_is_not_taken_if_another_flow_is_measured() {
    let out = tempfile::tempdir().unwrap();
    let mut experiment = experiment();
    experiment.methods.truncate(1);
    experiment.cases.truncate(1);
    let case = &mut experiment.cases[0];
    case.flows.truncate(2);
    (case.setup.methods, case.setup.repeat) = (Vec::new(), Some(1));
    // Without a policy no command shows which flows are background load.
    experiment.methods[0].client = None;
    let text = serde_json::to_vec(&result(&experiment, None)).unwrap();
    fs::write(out.path().join(file_name(experiment.id, None)), text).unwrap();
    let is_taken = |one: &Experiment| finished(one, None, &options(out.path(), false)).unwrap().is_some();
    assert!(is_taken(&experiment));
    experiment.cases[0].flows[0].cross = true;
    assert!(!is_taken(&experiment));
}

#[test]
fn a_result_is_taken_if_the_same_call_would_repeat_it() {
    let out = tempfile::tempdir().unwrap();
    let options = |repeat| {
        let (program, out) = (PathBuf::from("bufwise"), Some(out.path().to_owned()));
        Options { program, quick: false, repeat: Some(repeat), out, resume: true }
    };
    let experiment = experiment();
    let shard: Shard = "1/2".parse().unwrap();
    let part = shard.of(experiment.clone(), false);
    assert!(finished(&experiment, None, &options(1)).unwrap().is_none());
    for (experiment, shard) in [(&experiment, None), (&part, Some(shard))] {
        let text = serde_json::to_vec(&result(experiment, shard)).unwrap();
        fs::write(out.path().join(file_name(experiment.id, shard)), text).unwrap();
        let found = finished(experiment, shard, &options(1)).unwrap().unwrap();
        assert_eq!((found.cases.len(), found.shard), (experiment.cases.len(), shard));
    }
    assert!(finished(&experiment, None, &options(2)).unwrap().is_none(), "it has one repetition");
    assert!(finished(&experiment, None, &Options { quick: true, ..options(1) }).unwrap().is_none());
    assert!(finished(&part, None, &options(1)).unwrap().is_none(), "it has other cases");
    let survey = Experiment { survey: true, ..experiment.clone() };
    assert!(finished(&survey, None, &options(1)).unwrap().is_none(), "its runs are kept singly");
    let is_taken_as = |change: &dyn Fn(&mut Experiment)| {
        let mut changed = experiment.clone();
        change(&mut changed);
        finished(&changed, None, &options(1)).unwrap().is_some()
    };
    assert!(is_taken_as(&|_| ()));
    assert!(!is_taken_as(&|one| one.methods[0].rmem /= 2), "it has other settings");
    assert!(!is_taken_as(&|one| one.quantities.truncate(1)), "it has other quantities");
    assert!(!is_taken_as(&|one| one.cases[0].paths[1].seed = 9), "it has another seed");
    assert!(!is_taken_as(&|one| one.cases[0].paths[1].trace = "0 1mbit".parse().ok()), "it has no trace");
    assert!(!is_taken_as(&|one| one.cases[0].memory = Some(1)), "it has another memory");
    assert!(!is_taken_as(&|one| one.cases[0].flows[0].delay.0 += 1), "its flows begin at other times");
    // The clients of the other paths run at another host.
    let elsewhere = |one: &mut Experiment| {
        one.cases[0].paths[1].from = Some("C".to_owned());
        one.cases[0].paths[2].from = Some("C".to_owned());
    };
    let mut away = experiment.clone();
    elsewhere(&mut away);
    let mut other = away.clone();
    other.cases[0].flows[1].amount = Amount::Seconds(9, 9);
    let write = |one: &ExperimentResult| {
        fs::write(out.path().join("sabt-fig5.json"), serde_json::to_vec(one).unwrap()).unwrap();
    };
    write(&result(&away, None));
    assert!(is_taken_as(&elsewhere));
    assert!(finished(&other, None, &options(1)).unwrap().is_none(), "another command at host C");
    let mut invalid = result(&experiment, None);
    invalid.cases[0].methods[0].runs[0].valid = false;
    write(&invalid);
    assert!(!is_taken_as(&|_| ()), "a method has no valid run");
    fs::write(out.path().join(file_name(experiment.id, None)), "{").unwrap();
    let error = finished(&experiment, None, &options(1)).unwrap_err().to_string();
    assert!(error.starts_with("cannot read ") && error.contains("sabt-fig5.json"), "{error}");
}
