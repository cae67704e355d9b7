//! `bufwise lab list`, `lab run`, `lab report`: experiments by name, their outcomes, and nothing left behind.

use std::fs;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use bufwise_lab::experiments::{Amount, Experiment, Options, Quantity, catalogue};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::run::{command, only_error, patience, processes, root, run, until_valid, within};
use crate::run_command::groups;

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A result as `lab run --out` writes it, made by hand: two methods, one stalled run, one target missed.
pub(crate) const RESULT: &str = r#"{"id":"made-up","source":"001 figure 9","question":"Is it faster?","scale":"Half as long.",
 "kernel":"6.18","quick":false,"repeat":2,"quantities":["goodput_bps","held_peak_bytes","rtt_mean_s"],"cases":[
 {"name":"one","paths":["10 Mbit/s, 20 ms"],"methods":[
 {"name":"kernel","server":"iperf3 -s","client":"iperf3 -c","settings":"cubic","runs":[
 {"valid":true,"problem":null,"attempts":1,"values":{"goodput_bps":9e6,"held_peak_bytes":2e6}},
 {"valid":false,"problem":"it stalled","attempts":3,"values":{"goodput_bps":5e6}}],
 "medians":{"goodput_bps":9e6,"held_peak_bytes":2e6}},
 {"name":"abt","server":"iperf3 -s","client":"bufwise run","settings":"cubic","runs":[
 {"valid":true,"problem":null,"attempts":1,"values":{"goodput_bps":9.5e6,"held_peak_bytes":1e6}},
 {"valid":true,"problem":null,"attempts":1,"values":{"goodput_bps":9.3e6,"held_peak_bytes":1.5e6}}],
 "medians":{"goodput_bps":9.4e6,"held_peak_bytes":1.25e6}}]}],
 "targets":[
 {"case":"one","method":"abt","quantity":"goodput_bps","text":"at least 9.0 Mbit/s","measured":9.4e6,"met":true},
 {"case":"","method":"abt","quantity":"held_peak_bytes","text":"at most 1.00 MB","measured":1.25e6,"met":false}],
 "reported":[
 {"place":"figure 9","case":"one","method":"abt","quantity":"goodput_bps","claim":{"times":[1.5,"kernel"]},"conditions":"1 GB",
 "reason":"a deeper queue","of_then":true,"measured":9.4e6,"times":1.04,"verdict":"no_longer_true"},
 {"place":"figure 10","case":"one","method":"kernel","quantity":"rtt_mean_s","claim":{"at_most":0.023},
 "measured":null,"times":null,"verdict":null}]}"#;

const REPORT: &str = "\
# Experiments

| experiment | question | targets met | runs |
|---|---|---|---|
| [made-up](#made-up) | Is it faster? | 1 of 2 | medians of 2, some invalid |

## made-up
Is it faster?

Source: 001 figure 9. Half as long.
Linux 6.18; `bufwise lab run made-up --repeat 2`.

**one** (10 Mbit/s, 20 ms)

| method | goodput, Mbit/s | held at most, MB |
|---|---|---|
| kernel | 9.0 (9.0, 5.0*) | 2.00 (2.00, -*) |
| abt | 9.4 (9.5, 9.3) | 1.25 (1.00, 1.50) |

\\* not counted in the medians where there are others:
- it stalled

| target | case | measured | |
|---|---|---|---|
| goodput of `abt` at least 9.0 Mbit/s | one | 9.4 Mbit/s | met |
| held at most of `abt` at most 1.00 MB | all | 1.25 MB | NOT MET |

| the paper | case | reported | here | verdict |
|---|---|---|---|---|
| figure 9 | one | goodput of `abt` 1.50 times `kernel` (1 GB) | 1.04 times: 9.4 Mbit/s | no longer true: a deeper queue |
| figure 10 | one | mean RTT of `kernel` at most 23.0 ms | - | none: no valid run |

How each method ran (first case):
- **kernel**: cubic
  - host B: `iperf3 -s`
  - host A: `iperf3 -c`
- **abt**: cubic
  - host B: `iperf3 -s`
  - host A: `bufwise run`
";

#[test]
fn a_report_says_what_the_results_say() {
    let directory = tempfile::tempdir().unwrap();
    fs::write(directory.path().join("made-up.json"), RESULT).unwrap();
    let path = directory.path().to_str().unwrap();
    let output = run(&["lab", "report", path]);
    assert_eq!(text(&output.stdout), REPORT, "{}", text(&output.stderr));
    assert_eq!(text(&run(&["lab", "report", path, "-o", "-"]).stdout), REPORT);
    let file = directory.path().join("report.md");
    assert!(run(&["lab", "report", path, "--output", file.to_str().unwrap()]).status.success());
    assert_eq!(fs::read_to_string(file).unwrap(), REPORT);
}

#[test]
fn a_report_without_results_says_where_they_come_from() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    assert!(only_error(&run(&["lab", "report", path]), 1).contains("lab run --out"));
    assert!(only_error(&run(&["lab", "report", "/no/such/directory"]), 1).contains("/no/such/directory"));
    fs::write(directory.path().join("other.json"), "{}").unwrap();
    assert!(only_error(&run(&["lab", "report", path]), 1).contains("other.json"));
}

#[test]
fn an_unknown_experiment_is_wrong_usage() {
    let line = only_error(&run(&["lab", "run", "expert-500", "tahoe-fig1"]), 2);
    assert!(line.contains("tahoe-fig1") && line.contains("bufwise lab list"), "{line}");
    assert!(only_error(&run(&["lab", "run"]), 2).contains("ID"));
    assert!(only_error(&run(&["lab", "run", "--all", "expert-500"]), 2).contains("--all"));
    assert!(only_error(&run(&["lab", "run", "expert-500", "--repeat", "0"]), 2).contains("--repeat"));
    assert!(only_error(&run(&["lab", "run", "expert-500", "--shard", "3/2"]), 2).contains("K/N"));
    assert!(only_error(&run(&["lab", "run", "--all", "--budget", "30"]), 2).contains("30min"));
    let line = only_error(&run(&["lab", "run", "abt-fig1", "path-fig1-3", "--budget", "1s"]), 2);
    assert!(line.contains("nothing fits") && line.contains("path-fig1-3"), "{line}");
    assert!(only_error(&run(&["lab", "show", "tahoe-fig1"]), 2).contains("bufwise lab list"));
}

/// An experiment of two cases on a path of 10 Mbit/s, with the kernel and with fit at the sender.
const OWN: &str = r#"
question = "Is fit as fast on a path of mine?"
quantities = ["goodput_bps"]

[[path]]
rate = "10mbit"
rtt = "20ms"

[[method]]
name = "kernel"

[[method]]
name = "fit"
client = "fit"

[[case]]
name = "one"
workload = [{ time = "2s" }]

[[case]]
name = "two"
workload = [{ time = "2s", connections = 2 }]

[[expect]]
method = "fit"
quantity = "goodput_bps"
at-least = "5mbit"
"#;

#[test]
fn a_wrong_file_is_wrong_usage_with_its_line() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    let path = file.to_str().unwrap();
    for (from, to, words) in [
        ("rtt = \"20ms\"", "rtt = \"20\"", ["mine.toml: line 7: rtt: `20`", "40ms"]),
        ("client = \"fit\"", "client = \"tahoe\"", ["mine.toml: line 14: client", "sobas, fit"]),
        ("[[path]]", "memory = \"1KB\"\n[[path]]", ["mine.toml: line 5: memory: ", "at least 64KiB"]),
    ] {
        fs::write(&file, OWN.replace(from, to)).unwrap();
        for command in ["run", "show"] {
            let line = only_error(&run(&["lab", command, path]), 2);
            assert!(words.iter().all(|word| line.contains(word)), "{line}");
        }
    }
    fs::write(&file, b"# one\n# caf\xe9\n").unwrap();
    assert!(only_error(&run(&["lab", "run", path]), 2).contains("mine.toml: line 2: not UTF-8"));
    fs::write(&file, OWN).unwrap();
    assert!(only_error(&run(&["lab", "run", path, path]), 2).contains("mine: give one another `id`"));
    assert!(only_error(&run(&["lab", "run", "/no/such.toml"]), 1).contains("/no/such.toml"));
}

#[test]
fn a_file_that_names_what_this_machine_lacks_is_wrong_usage_before_anything_runs() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    let path = file.to_str().unwrap();
    for (key, words) in [
        ("congestion-control = \"tahoe\"", ["mine.toml: line 11: congestion-control: ", "\"tahoe\"", "reno"]),
        (
            "sender = { \"net.ipv4.tcp_no_such\" = \"1\" }",
            ["mine.toml: line 11: sender: ", "`net.ipv4.tcp_no_such`", "sysctl -a"],
        ),
    ] {
        let method = "name = \"kernel\"\n";
        fs::write(&file, OWN.replacen(method, &format!("{method}{key}\n"), 1)).unwrap();
        let line = only_error(&run(&["lab", "run", path]), 2);
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
        assert!(run(&["lab", "show", path]).status.success(), "another machine may have it: {key}");
    }
}

#[test]
fn results_of_the_other_form_are_not_replaced() {
    let out = tempfile::tempdir().unwrap();
    let kept = out.path().join("expert-500.json");
    for (quick, form) in [("false", "without --quick"), ("true", "with --quick")] {
        let before = RESULT.replace("\"quick\":false", &format!("\"quick\":{quick}"));
        fs::write(&kept, &before).unwrap();
        let call = ["lab", "run", "abt-fig1", "expert-500", "--out", out.path().to_str().unwrap()];
        let options: &[&[&str]] =
            if quick == "false" { &[&["--quick"], &["--quick", "--resume"]] } else { &[&[], &["--resume"]] };
        for options in options {
            let line = only_error(&run(&[&call[..], options].concat()), 2);
            assert!(line.contains("expert-500.json") && line.contains(form), "{line}");
            assert!(line.contains("another directory"), "{line}");
            assert_eq!(fs::read_to_string(&kept).unwrap(), before);
        }
    }
    assert_eq!(fs::read_dir(out.path()).unwrap().count(), 1, "nothing was run");
}

#[test]
fn a_file_does_not_replace_the_result_of_the_built_in_experiment_of_its_name() {
    let directory = tempfile::tempdir().unwrap();
    let (file, out) = (directory.path().join("mine.toml"), directory.path().join("out"));
    fs::write(&file, run(&["lab", "show", "abt-fig1"]).stdout).unwrap();
    fs::create_dir(&out).unwrap();
    let kept = out.join("abt-fig1.json");
    fs::write(&kept, RESULT).unwrap();
    let call = ["lab", "run", file.to_str().unwrap(), "--out", out.to_str().unwrap()];
    let line = only_error(&run(&call), 2);
    assert!(line.contains("abt-fig1.json") && line.contains("another `id`"), "{line}");
    assert_eq!(fs::read_to_string(&kept).unwrap(), RESULT);
}

#[test]
fn an_experiment_is_shown_as_a_file_or_as_what_can_be_said_of_it() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    let shown = run(&["lab", "show", "abt-fig1"]).stdout;
    fs::write(&file, &shown).unwrap();
    assert!(text(&shown).contains("quick-time = \"12s\""), "{}", text(&shown));
    assert_eq!(text(&run(&["lab", "show", file.to_str().unwrap()]).stdout), text(&shown));
    let outline = text(&run(&["lab", "show", "fit-grid"]).stdout);
    assert!(outline.starts_with("# fit-grid cannot be written as a file yet: it is a survey"), "{outline}");
    let written = |id| run(&["lab", "show", id, "--json", "-"]).stdout;
    let json = |id| serde_json::from_slice::<Value>(&written(id)).unwrap();
    let (own, survey) = (json("abt-fig1"), json("fit-grid"));
    assert_eq!((&own["id"], &own["survey"]), (&"abt-fig1".into(), &false.into()));
    assert!(own["experiment"]["method"][0]["name"].is_string() && own["seconds"].is_u64(), "{own}");
    assert!(survey["survey"] == true && survey["experiment"].is_null(), "{survey}");
}

#[test]
fn a_list_that_cannot_be_written_is_printed_all_the_same() {
    let output = run(&["lab", "list", "--json", "/no/such/directory/list.json"]);
    assert!(only_error(&output, 1).contains("/no/such/directory/list.json"));
    assert!(text(&output.stdout).contains("abt-fig1 "), "{}", text(&output.stdout));
}

#[test]
fn a_report_does_not_replace_the_file_that_describes_an_experiment() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("mine.toml");
    fs::write(&file, OWN).unwrap();
    for name in ["run", "show"] {
        let mut call = command(&["lab", name, "./mine.toml", "--json", "mine.toml"]);
        let line = only_error(&call.current_dir(&directory).output().unwrap(), 2);
        assert!(line.contains("--json would replace ./mine.toml"), "{line}");
        assert_eq!(fs::read_to_string(&file).unwrap(), OWN);
    }
}

#[test]
fn root_a_file_is_run_in_two_parts_and_judged() {
    let Some(_alone) = root() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    fs::write(path("mine.toml"), OWN).unwrap();
    for (shard, case) in [("1/2", "one"), ("2/2", "two")] {
        let measure = || {
            let part = ["--shard", shard, "--repeat", "1", "--out", &path("out"), "--json", "-"];
            let output = run(&[&["lab", "run", &path("mine.toml")], &part[..]].concat());
            let told = text(&output.stderr);
            assert_eq!(told.matches("the emulator before: ").count(), 1, "{told}");
            let results: Value = serde_json::from_slice(&output.stdout).unwrap();
            (output.status.code(), results[0].clone())
        };
        let (status, result) = until_valid(measure, |(_, result)| {
            let runs = (0..2).map(|method| result["cases"][0]["methods"][method]["runs"][0].clone());
            runs.filter(|run| run["valid"] != true).map(|run| run["problem"].to_string()).next()
        });
        assert_eq!((&result["id"], &result["shard"]), (&"mine".into(), &shard.into()), "{result}");
        assert!(result["ran"][0]["emulator"]["passed"].is_boolean(), "{result}");
        let cases = result["cases"].as_array().unwrap();
        assert_eq!((cases.len(), &cases[0]["name"]), (1, &case.into()), "{result}");
        for (method, name) in ["kernel", "fit"].into_iter().enumerate() {
            let of = &cases[0]["methods"][method];
            let goodput = of["medians"]["goodput_bps"].as_f64().unwrap();
            assert!(of["name"] == name && (5e6..9.8e6).contains(&goodput), "{of}");
        }
        assert_eq!((&result["targets"][0]["met"], status), (&true.into(), Some(0)), "{result}");
    }
    let report = text(&run(&["lab", "report", &path("out")]).stdout);
    assert_eq!(report.matches("Ran 20").count(), 2, "each part's date: {report}");
    assert_eq!(report.matches("; the emulator before: ").count(), 2, "{report}");
    let again = format!("`bufwise lab run {} --repeat 1`", path("mine.toml"));
    assert!(report.contains(&again), "{report}");
    let names = fs::read_dir(path("out")).unwrap().map(|entry| entry.unwrap().file_name());
    assert!(names.into_iter().all(|name| !name.to_string_lossy().contains("unfinished")));
    let over_time = fs::read_to_string(path("out/report-over-time.csv")).unwrap();
    for of in ["mine,one,kernel,1,", "mine,one,fit,1,", "mine,two,kernel,1,", "mine,two,fit,1,"] {
        // Two seconds, including start and end of the programs.
        let steps = over_time.lines().filter(|line| line.starts_with(of)).count();
        assert!((15..=40).contains(&steps), "{of} {steps}: {over_time}");
    }
    assert!(report.contains("**one**") && report.contains("**two**"), "{report}");
    assert!(report.contains("| Is fit as fast on a path of mine? | 2 of 2 |"), "{report}");
}

#[test]
fn the_list_names_every_experiment_with_its_time() {
    let shown = text(&run(&["lab", "list"]).stdout);
    let list: Value = serde_json::from_slice(&run(&["lab", "list", "--json", "-"]).stdout).unwrap();
    let list = list.as_array().unwrap();
    assert!(list.len() >= 12 && shown.lines().count() == list.len(), "{shown}");
    let column = |line: &str, listed: &Value| line.find(listed["question"].as_str().unwrap());
    let first = column(shown.lines().next().unwrap(), &list[0]);
    for (line, listed) in shown.lines().zip(list) {
        assert!(line.starts_with(listed["id"].as_str().unwrap()), "{line}");
        assert!(first.is_some() && column(line, listed) == first, "{line}");
        let (whole, quick) = (listed["seconds"].as_u64().unwrap(), listed["quick_seconds"].as_u64().unwrap());
        assert!(quick > 0 && quick < whole, "{listed}");
        let reported = listed["reported"].as_array().unwrap();
        assert_eq!(reported.is_empty(), listed["source"] == "engine", "{listed}");
    }
}

#[test]
fn root_documents_take_the_round_trips_that_their_window_says() {
    let Some(_alone) = root() else { return };
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().to_str().unwrap();
    let measure = || {
        let output = run(&["lab", "run", "sabt-fig10", "--quick", "--out", path]);
        // A run that stalled may miss its target, which is the status 1.
        let status = output.status.code();
        let told = format!("{status:?}: {} {}", text(&output.stdout), text(&output.stderr));
        assert!(matches!(status, Some(0 | 1)), "{told}");
        let result = fs::read(directory.path().join("sabt-fig10.json")).expect(&told);
        (status, text(&output.stdout), serde_json::from_slice::<Value>(&result).unwrap())
    };
    let runs = [(0, 0, 2.0), (0, 1, 1.0), (1, 0, 4.0), (1, 1, 2.0)];
    let of = |result: &Value, case: usize, method: usize| result["cases"][case]["methods"][method].clone();
    // All of them: --resume measures again what is not valid.
    let (status, shown, result) = until_valid(measure, |(.., result)| {
        let list = |value: &Value| value.as_array().unwrap().clone();
        let methods = list(&result["cases"]).into_iter().flat_map(|case| list(&case["methods"]));
        let mut runs = methods.flat_map(|method| list(&method["runs"]));
        runs.find(|run| run["valid"] != true).map(|run| run["problem"].to_string())
    });
    // With segments of 1,448 bytes and a window that doubles each round trip, 8 KB take 2 + 4 segments or one flight,
    // 30 KB take 2 + 4 + 8 + 7 or 10 + 11. A loaded machine adds some milliseconds, never a round trip.
    for (case, method, round_trips) in runs {
        let of = of(&result, case, method);
        let response = of["medians"]["response_s"].as_f64().unwrap();
        assert!((response / 0.1 - round_trips).abs() < 0.2, "{response} s for {round_trips}: {of}");
        assert_eq!(of["runs"].as_array().unwrap().len(), 1);
    }
    assert_eq!((status, &result["targets"][0]["met"]), (Some(0), &true.into()), "{shown}");
    assert!(shown.contains("met          8 KB: response of `window of 10`"), "{shown}");
    let report = text(&run(&["lab", "report", path]).stdout);
    assert!(report.contains("| [sabt-fig10](#sabt-fig10) |") && report.contains("4 of 4"), "{report}");
    let again = run(&["lab", "run", "sabt-fig10", "--quick", "--out", path, "--resume", "--json", "-"]);
    assert_eq!(again.status.code(), Some(0));
    assert_eq!(text(&again.stderr), "sabt-fig10: is there already; without --resume it runs again\n");
    let results = serde_json::from_slice::<Value>(&again.stdout).unwrap();
    assert_eq!(results[0]["ran"], result["ran"], "it was not measured again");
}

#[test]
fn root_an_interrupted_experiment_leaves_nothing() {
    let Some(_alone) = root() else { return };
    let out = tempfile::tempdir().unwrap();
    let told = tempfile::NamedTempFile::new().unwrap();
    let mut child = command(&["lab", "run", "drs-fig4", "--quick", "--out", out.path().to_str().unwrap()])
        .stdout(Stdio::null())
        .stderr(told.reopen().unwrap())
        .spawn()
        .unwrap();
    // The emulator is judged before.
    within(patience(Duration::from_secs(120)), "bufwise run tunes iperf3", || {
        groups().len() == 1 && !processes("198.18.0.2").is_empty()
    });
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(128 + 2));
    assert!(processes("198.18.0.2").is_empty());
    assert_eq!(groups(), [""; 0]);
    let told = fs::read_to_string(told.path()).unwrap();
    assert!(told.ends_with("; the same command with --resume goes on from here\n"), "{told}");
}

/// Returns one small cell of the grid for two seconds, with the kernel and with the engine's default policies.
fn tiny_grid() -> Experiment {
    let mut grid = catalogue().into_iter().find(|experiment| experiment.id == "fit-grid").unwrap();
    let small = |name: &str| name == "10 Mbit/s x 40 ms, BDP";
    grid.cases.retain(|case| small(&case.name));
    for case in &mut grid.cases {
        case.quick = true;
        case.flows[0].amount = Amount::Seconds(2, 2);
        case.setup.methods = vec!["cubic", "abt,sobas"];
    }
    grid
}

#[test]
fn root_a_cell_of_the_grid_is_measured_once_and_kept() {
    let Some(_alone) = root() else { return };
    let out = tempfile::tempdir().unwrap();
    let program = PathBuf::from(env!("CARGO_BIN_EXE_bufwise"));
    let options =
        Options { program, quick: true, repeat: None, out: Some(out.path().to_owned()), resume: false };
    let grid = tiny_grid();
    let measure = || {
        let mut made = 0;
        let measured = bufwise_lab::experiments::run(&grid, &options, |_| made += 1).unwrap();
        (made, measured)
    };
    // Valid runs are kept, so each call repeats only the others.
    let (_, first) = until_valid(measure, |(_, result)| {
        let methods = result.cases[0].methods.iter();
        methods.flat_map(|method| method.problems()).map(str::to_owned).next()
    });
    for method in ["cubic", "abt,sobas"] {
        let of = |quantity| first.cases[0].median(method, quantity).unwrap();
        // Slow start takes a tenth of the two seconds; the queue can at most double the RTT.
        assert!((6e6..9.6e6).contains(&of(Quantity::GoodputBps)), "{method}: {first}");
        assert!((0.040..0.100).contains(&of(Quantity::RttMeanS)), "{method}: {first}");
        assert!(of(Quantity::HeldPeakBytes) > 0.0 && of(Quantity::LateDrops) <= of(Quantity::Drops));
    }
    let (made, again) = measure();
    assert_eq!(made, 0, "{again}");
    let json = serde_json::to_vec(&again).unwrap();
    fs::write(out.path().join("fit-grid.json"), json).unwrap();
    let report = text(&run(&["lab", "report", out.path().to_str().unwrap()]).stdout);
    for (method, file) in [("cubic", "fit-grid-cubic.svg"), ("abt,sobas", "fit-grid-abt-sobas.svg")] {
        assert!(report.contains(&format!("![{method}]({file})")), "{report}");
        assert!(out.path().join(file).exists(), "{file}");
    }
}

/// A path over two links, and for each of the links a path from a host of its own.
const ROUTERS: &str = r#"
quantities = ["goodput_path1_bps", "goodput_path2_bps", "goodput_path3_bps", "rtt_mean_s", "drops"]
link = [
  { name = "left", rate = "8mbit", rtt = "20ms", queue = "40ms" },
  { name = "right", rate = "4mbit", rtt = "10ms", queue = "40ms" },
]
path = [
  { name = "both", links = ["left", "right"] },
  { name = "one", from = "C", links = ["left"] },
  { name = "other", from = "D", rtt = "5ms", links = ["right"] },
]

[[workload]]
path = "both"
time = "4s"

[[workload]]
path = "one"
time = "3s"

[[workload]]
path = "other"
start = "0.25s"
time = "3s"

[[method]]
name = "abt"
client = "abt"
"#;

#[test]
fn root_paths_share_links_in_a_row_and_begin_at_hosts_of_their_own() {
    let Some(_alone) = root() else { return };
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("routers.toml");
    fs::write(&file, ROUTERS).unwrap();
    let measure = || {
        // `abt-fig1` takes longer and does not fit into the budget.
        let own = file.to_str().unwrap();
        let output =
            run(&["lab", "run", own, "abt-fig1", "--budget", "1min", "--repeat", "1", "--json", "-"]);
        let told = text(&output.stderr);
        assert!(told.contains("1 of 2 experiments fit") && told.contains("left out: abt-fig1 ("), "{told}");
        let results: Value = serde_json::from_slice(&output.stdout).unwrap();
        results[0]["cases"][0]["methods"][0].clone()
    };
    let method = until_valid(measure, |method| {
        let run = &method["runs"][0];
        (run["valid"] != true).then(|| run["problem"].to_string())
    });
    let of = |quantity: &str| method["medians"][quantity].as_f64().unwrap();
    let rates = [1, 2, 3].map(|path| of(&format!("goodput_path{path}_bps")));
    let [both, one, other] = rates;
    // Each link is shared. The sum may exceed the link's rate a little: iperf3's intervals are shorter than the
    // transfers.
    assert!((5.5e6..8.5e6).contains(&(both + one)) && (2.8e6..4.4e6).contains(&(both + other)), "{method}");
    assert!(rates.iter().all(|rate| *rate > 0.2e6), "{method}");
    // Base round trips of 30, 20 and 15 ms, and two queues of up to 40 ms.
    assert!((0.015..0.110).contains(&of("rtt_mean_s")) && of("drops") > 0.0, "{method}");
    let [c, d] = [0, 1].map(|host| method["elsewhere"][host][1].as_str().unwrap().to_owned());
    assert!(c.contains("-c 198.18.1.2 ") && d.contains("sleep 0.25; "), "{method}");
}
