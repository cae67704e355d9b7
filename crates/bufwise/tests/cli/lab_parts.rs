//! The laboratory on several machines, by the files for Kubernetes and Slurm: the parts that are run, and the outcomes
//! that count as a failure. A script that records its arguments replaces bufwise.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use bufwise_lab::experiments::{Shard, catalogue};
use serde_json::Value;
use tempfile::TempDir;

use crate::kubernetes::{documents, of_kind};

/// The script: it records its arguments, leaves results if `RUNS` is set, and ends with `STATUS`.
const STAND_IN: &str = "#!/bin/sh\necho \"$@\" >>\"$LOG\"\nfor last; do :; done\n\
    if [ -n \"${RUNS:-}\" ]; then echo '[]' >\"$last\"; fi\nexit \"${STATUS:-0}\"\n";

struct Machine {
    directory: TempDir,
}

impl Machine {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        // Another process writes it: a child that another test starts meanwhile would keep it open for writing, and
        // so not executable.
        let mut shell = Command::new("sh");
        shell.args(["-c", "printf %s \"$0\" >bufwise && chmod +x bufwise", STAND_IN]);
        assert!(shell.current_dir(directory.path()).status().unwrap().success());
        Self { directory }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs a command in the directory, with the script first in `PATH`.
    fn run(&self, command: &mut Command, settings: &[(&str, &str)]) -> Output {
        let path = format!("{}:{}", self.directory.path().display(), std::env::var("PATH").unwrap());
        command.current_dir(self.directory.path()).env("PATH", path).env("LOG", self.path("log"));
        command.env("TMPDIR", self.directory.path());
        command.envs(settings.iter().copied()).output().unwrap()
    }

    /// Returns the arguments of every call.
    fn calls(&self) -> Vec<Vec<String>> {
        let log = fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(|line| line.split_whitespace().map(str::to_owned).collect()).collect()
    }
}

fn after<'a>(call: &'a [String], option: &str) -> &'a str {
    let place = call.iter().position(|word| word == option);
    place.and_then(|place| call.get(place + 1)).unwrap_or_else(|| panic!("{option}: {call:?}"))
}

/// Asserts that the calls run each case of the catalogue once.
fn parts_are_all(calls: &[Vec<String>], experiments: &[&str]) {
    let parts: Vec<Shard> = calls.iter().map(|call| after(call, "--shard").parse().unwrap()).collect();
    assert_eq!(parts.iter().collect::<BTreeSet<_>>().len(), calls.len(), "{calls:?}");
    for experiment in catalogue() {
        let dealt: usize = parts.iter().map(|part| part.of(experiment.clone(), false).cases.len()).sum();
        assert_eq!(dealt, experiment.cases.len(), "{}", experiment.id);
    }
    for call in calls {
        let before = call.iter().position(|word| word == "--shard").unwrap();
        assert_eq!(call[..2], ["lab", "run"]);
        assert_eq!(call[2..before], *experiments, "{call:?}");
    }
}

/// Outcomes of a task: ran; ran and missed a target; failed; was called wrongly.
const OUTCOMES: [(&str, &str, bool); 4] =
    [("1", "0", true), ("1", "1", true), ("", "1", false), ("", "2", false)];

#[test]
fn the_indexed_job_runs_each_part_once_and_a_missed_target_is_no_failure() {
    let Some(all) = documents("lab.yaml") else { return };
    let job = of_kind(&all, "Job");
    let spec = &job["spec"];
    let pod = &spec["template"]["spec"];
    let container = &pod["containers"][0];
    let variable = |name: &str| -> &str {
        let variables = container["env"].as_array().unwrap();
        variables.iter().find(|one| one["name"] == name).and_then(|one| one["value"].as_str()).unwrap()
    };
    assert_eq!((&spec["completionMode"], &pod["restartPolicy"]), (&"Indexed".into(), &"Never".into()));
    assert_eq!(spec["completions"].to_string(), variable("SHARDS"));
    let labels = &spec["template"]["metadata"]["labels"];
    let alone = &pod["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0];
    assert_eq!(&alone["labelSelector"]["matchLabels"], labels, "one a node");
    let image = container["image"].as_str().unwrap();
    assert!(image.ends_with(&format!(":{}", env!("CARGO_PKG_VERSION"))), "{image}");
    let mount = &container["volumeMounts"][0];
    let claim = of_kind(&all, "PersistentVolumeClaim");
    assert_eq!(
        (&mount["mountPath"], &mount["name"]),
        (&variable("RESULTS").into(), &claim["metadata"]["name"])
    );
    assert_eq!(pod["volumes"][0]["persistentVolumeClaim"]["claimName"], claim["metadata"]["name"]);
    for one in [job, claim] {
        assert_eq!(one["metadata"]["namespace"], of_kind(&all, "Namespace")["metadata"]["name"]);
    }

    let words: Vec<&str> =
        container["command"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    let run = |machine: &Machine, index: &str, (runs, status): (&str, &str)| {
        let settings = ["SHARDS", "EXPERIMENTS", "RESULTS"].map(|name| (name, variable(name)));
        let settings =
            [&settings[..], &[("JOB_COMPLETION_INDEX", index), ("RUNS", runs), ("STATUS", status)]].concat();
        machine.run(Command::new(words[0]).args(&words[1..]), &settings).status.success()
    };
    let machine = Machine::new();
    let completions = spec["completions"].as_u64().unwrap();
    assert!((0..completions).all(|index| run(&machine, &index.to_string(), ("1", "0"))));
    parts_are_all(&machine.calls(), &["--all"]);
    assert!(machine.calls().iter().all(|call| after(call, "--out") == "/results"));
    for (runs, status, succeeds) in OUTCOMES {
        assert_eq!(run(&Machine::new(), "0", (runs, status)), succeeds, "{runs:?} {status}");
    }
}

fn script() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/slurm/bufwise-lab.sbatch")
}

#[test]
fn the_array_runs_each_part_once_and_a_missed_target_is_no_failure() {
    if bufwise_trial::program("bash").is_none() {
        return;
    }
    let run = |machine: &Machine, settings: &[(&str, &str)]| {
        machine.run(Command::new("bash").arg(script()).env("BUFWISE", "bufwise"), settings)
    };
    let text = fs::read_to_string(script()).unwrap();
    let array = text.lines().find_map(|line| line.strip_prefix("#SBATCH --array=")).unwrap();
    let (first, last) = array.split_once('-').unwrap();
    let machine = Machine::new();
    for part in first.parse::<u32>().unwrap()..=last.parse().unwrap() {
        let output = run(&machine, &[("SLURM_ARRAY_TASK_ID", &part.to_string()), ("RUNS", "1")]);
        assert!(output.status.success(), "{output:?}");
    }
    parts_are_all(&machine.calls(), &["--all"]);
    let results = machine.path("results");
    assert!(machine.calls().iter().all(|call| Path::new(after(call, "--out")) == results));
    // Other settings, and one part of eight.
    let machine = Machine::new();
    let settings = [
        ("SLURM_ARRAY_TASK_ID", "7"),
        ("SHARDS", "8"),
        ("EXPERIMENTS", "fit-grid --repeat 1"),
        ("RUNS", "1"),
    ];
    assert!(run(&machine, &settings).status.success());
    let calls = machine.calls();
    assert_eq!(calls[0][2..7], ["fit-grid", "--repeat", "1", "--shard", "7/8"]);
    for (runs, status, succeeds) in OUTCOMES {
        let settings = [("SLURM_ARRAY_TASK_ID", "1"), ("RUNS", runs), ("STATUS", status)];
        assert_eq!(run(&Machine::new(), &settings).status.success(), succeeds, "{runs:?} {status}");
    }
    for wrong in ["0", "5"] {
        let output = run(&machine, &[("SLURM_ARRAY_TASK_ID", wrong)]);
        let told = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && told.contains("--array=1-4"), "{told}");
    }
    assert_eq!(machine.calls().len(), 1, "nothing runs beyond the parts");
    let left: Vec<_> =
        fs::read_dir(machine.directory.path()).unwrap().map(|one| one.unwrap().file_name()).collect();
    assert_eq!(left.len(), 3, "the program, its log, the results: {left:?}");
}
