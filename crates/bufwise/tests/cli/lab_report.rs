//! The page and the tables of `bufwise lab report`, from a small directory of results: contents, refusals, and the page
//! in a browser.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use bufwise_lab::experiments::catalogue;
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::browser::Browser;
use crate::lab_run::RESULT;
use crate::run::{PROGRAM, only_error, run};

/// Report of `bufwise lab path --json` on iperf3 for six seconds over 20 Mbit/s and 40 ms, with one sample in twelve.
const PATH: &str = include_str!("recorded/path.json");

/// Samples of an experiment, as `lab run --out` writes them: two methods, two tracks.
const SAMPLES: &str = r#"{"id":"made-up","ran":[],"cases":{"one":{
 "kernel":{"run":0,"t_s":[0.1,0.2,0.3],"tracks":{"cwnd_bytes":[14480,28960,60000],"rtt_s":[0.02,0.03,0.05]}},
 "abt":{"run":1,"t_s":[0.1,0.2],"tracks":{"cwnd_bytes":[14480,null],"rtt_s":[0.02,0.021]}}}}}"#;

/// A directory with an experiment, its samples, and a run over a path.
fn results() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir(directory.path().join("samples")).unwrap();
    fs::write(directory.path().join("samples/made-up.json"), SAMPLES).unwrap();
    fs::write(directory.path().join("made-up.json"), RESULT).unwrap();
    fs::write(directory.path().join("iperf3.json"), PATH).unwrap();
    directory
}

fn names(directory: &TempDir) -> Vec<String> {
    let entries = fs::read_dir(directory.path()).unwrap();
    let mut names: Vec<String> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_page_and_tables_are_written_beside_the_document() {
    let directory = results();
    let path = directory.path().to_str().unwrap();
    let output = run(&["lab", "report", path]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let markdown = String::from_utf8(output.stdout).unwrap();
    assert!(markdown.contains("| iperf3 | 18.7 | 6.4 | 23 | valid |"), "{markdown}");
    let written = [
        "iperf3.json",
        "made-up.json",
        "report-links.csv",
        "report-over-time.csv",
        "report-samples.csv",
        "report.csv",
        "report.html",
        "samples",
    ];
    assert_eq!(names(&directory), written);
    let read = |name: &str| fs::read_to_string(directory.path().join(name)).unwrap();
    let page = read("report.html");
    assert!(page.contains("<section id=\"made-up\">") && page.contains("<section id=\"iperf3\">"), "{page}");
    assert!(page.contains("no longer true") && page.contains("a deeper queue"), "{page}");
    assert!(!page.contains("http:") && !page.contains("https:"), "{page}");
    assert_eq!(page.matches("<svg class=\"curves\"").count(), 2 + 7, "{page}");
    assert!(page.contains("<p class=\"keys\">") && page.contains("<path class=\"line l1\""), "{page}");
    let over_time = read("report-over-time.csv");
    assert_eq!(over_time.lines().count(), 1 + 3 + 2, "{over_time}");
    assert!(over_time.contains("\nmade-up,one,abt,2,0.2,,,,,,,,,,0.021\n"), "{over_time}");
    assert!(read("report.csv").contains("\nmade-up,one,kernel,2,false,3,it stalled,5000000,,\n"));
    assert_eq!(read("report-samples.csv").lines().count(), 1 + PATH.matches("\"host\":").count());

    // The page has the document's name and replaces an existing file; a link stays a link.
    let (document, elsewhere) = (directory.path().join("all.md"), directory.path().join("elsewhere"));
    fs::write(&elsewhere, "before").unwrap();
    symlink(&elsewhere, directory.path().join("all.html")).unwrap();
    for _ in 0..2 {
        assert!(run(&["lab", "report", path, "--output", document.to_str().unwrap()]).status.success());
        assert_eq!(read("all.md"), markdown);
        assert_eq!(fs::read_to_string(&elsewhere).unwrap(), page);
    }
    assert!(fs::symlink_metadata(directory.path().join("all.html")).unwrap().is_symlink());
    assert!(names(&directory).iter().all(|name| !name.contains("unfinished")), "{:?}", names(&directory));
}

#[test]
fn what_cannot_be_read_or_written_is_named_and_nothing_is_left() {
    let directory = results();
    let path = directory.path().to_str().unwrap();
    let line = only_error(&run(&["lab", "report", path, "-o", "all.html"]), 2);
    assert!(line.contains("all.html") && line.contains(".md"), "{line}");
    let half = &RESULT[..RESULT.len() / 2];
    for (broken, what) in [
        (half, "EOF"),
        ("[]", "an object"),
        ("{}", "missing field"),
        ("{\"link_samples\":[]}", "missing field"),
    ] {
        fs::write(directory.path().join("broken.json"), broken).unwrap();
        let line = only_error(&run(&["lab", "report", path]), 1);
        assert!(
            line.contains("broken.json") && line.contains(what) && line.contains("make it again"),
            "{line}"
        );
    }
    fs::remove_file(directory.path().join("broken.json")).unwrap();
    let before = ["iperf3.json", "made-up.json", "samples"];
    assert_eq!(names(&directory), before);
    let samples = directory.path().join("samples/made-up.json");
    fs::write(&samples, "[]").unwrap();
    let line = only_error(&run(&["lab", "report", path]), 1);
    assert!(line.contains("samples/made-up.json") && line.contains("remove it"), "{line}");
    fs::remove_file(samples).unwrap();
    assert_eq!(names(&directory), before);
    // A directory is in the way of the page.
    fs::create_dir(directory.path().join("report.html")).unwrap();
    let output = run(&["lab", "report", path]);
    assert!(only_error(&output, 1).contains("report.html") && output.stdout.is_empty());
    assert_eq!(names(&directory), ["iperf3.json", "made-up.json", "report.html", "samples"]);
}

#[test]
fn a_directory_and_a_fifo_with_names_of_results_are_skipped() {
    let directory = results();
    fs::create_dir(directory.path().join("before.json")).unwrap();
    mkfifo(&directory.path().join("pipe.json"), Mode::S_IRWXU).unwrap();
    let mut report = Command::new("timeout");
    let output = report.args(["20", PROGRAM, "lab", "report"]).arg(directory.path()).output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let markdown = String::from_utf8(output.stdout).unwrap();
    assert!(markdown.contains("| iperf3 | 18.7 | 6.4 | 23 | valid |"), "{markdown}");
}

#[test]
fn a_fifo_in_the_place_of_samples_is_refused_instead_of_waited_for() {
    let directory = results();
    let samples = directory.path().join("samples/made-up.json");
    fs::remove_file(&samples).unwrap();
    mkfifo(&samples, Mode::S_IRWXU).unwrap();
    let mut report = Command::new("timeout");
    let output = report.args(["20", PROGRAM, "lab", "report"]).arg(directory.path()).output().unwrap();
    let line = only_error(&output, 1);
    assert!(line.contains("samples/made-up.json") && line.contains("not a regular file"), "{line}");
}

/// Returns a part of `fit-harm` with one case, as an earlier version wrote it: three runs of each method with these rates in Mbit/s; of the
/// last method only `valid` runs count.
fn part(shard: &str, case: &str, rates: [f64; 4], valid: usize) -> Value {
    let names = ["kernel", "fit at the sender", "fit at the receiver", "fit at both"];
    let method = |(name, rate): (&str, f64)| {
        let run = |number: usize| {
            let counts = name != names[3] || number < valid;
            let values = json!({ "goodput_bps": rate * 1e6, "rtt_mean_s": 0.041, "drops": 2.0 });
            json!({ "valid": counts, "problem": null, "attempts": 1, "values": values })
        };
        let runs: Vec<Value> = (0..3).map(run).collect();
        json!({ "name": name, "server": "a", "client": "b", "settings": "c", "runs": runs, "medians": {} })
    };
    let methods: Vec<Value> = names.into_iter().zip(rates).map(method).collect();
    let case = json!({ "name": case, "paths": ["100 Mbit/s"], "methods": methods, "needed": 3 });
    json!({ "id": "fit-harm", "source": "engine", "question": "Is it worse?", "scale": "Short.", "kernel": "6.1",
        "quick": false, "repeat": 3, "quantities": ["goodput_bps", "rtt_mean_s", "drops"], "cases": [case], "targets": [],
        "survey": true, "shard": shard })
}

#[test]
fn parts_of_a_survey_from_several_directories_are_one_page_that_names_what_is_missing() {
    let directories = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
    let write = |directory: &TempDir, name: &str, result: &Value| {
        fs::write(directory.path().join(name), result.to_string()).unwrap();
    };
    let loss = part("9/47", "loss 1%", [4.1, 4.0, 4.1, 3.7], 3);
    let reordering = part("10/47", "reordering", [90.0, 89.4, 91.2, 76.4], 2);
    write(&directories[0], "fit-harm-10-of-47.json", &reordering);
    write(&directories[1], "fit-harm-9-of-47.json", &loss);
    let [first, second] = directories.each_ref().map(|one| one.path().to_str().unwrap());
    let output = run(&["lab", "report", first, second]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout).unwrap();
    let survey = catalogue().into_iter().find(|one| one.id == "fit-harm").unwrap();
    let all = survey.cases.len();
    let missing = format!("\nLeft out: {} of {all} cases, not among these results: LAN, 1 Gbit/s x", all - 2);
    for wanted in [
        "\nTargets met, of those that were measured: `fit at the sender` 2 of 2, `fit at the receiver` 2 of 2, `fit at both` 0 of 1.\n",
        missing.as_str(),
        "\n| loss 1% | 4.1, 41.0, 2 | 4.0 (98%), 41.0, 2 | 4.1 (100%), 41.0, 2 | **3.7 (90.2%)**, 41.0, 2 |\n| reordering | 90.0, ",
        " | 76.4 (85%), 41.0, 2; 2 of 3 runs |\n",
        "\n| goodput of `fit at both` at least 97% of `kernel`'s (4.0 Mbit/s) | loss 1% | 3.7 Mbit/s | NOT MET |\n",
    ] {
        assert!(text.contains(wanted), "{wanted}: {text}");
    }
    assert_eq!(text.matches("\n## fit-harm\n").count(), 1, "{text}");
}

/// Whether an expression holds in the page.
fn holds(browser: &mut Browser, expression: &str) -> bool {
    browser.value(&format!("Boolean({expression})")) == true
}

#[test]
fn a_browser_shows_the_page_on_a_phone_a_screen_and_paper() {
    let Some(mut browser) = Browser::start() else { return };
    let directory = results();
    assert!(run(&["lab", "report", directory.path().to_str().unwrap()]).status.success());
    let url = format!("file://{}/report.html", directory.path().display());
    browser.go_to(&url);
    browser.until("document.readyState === 'complete' && document.querySelector('#iperf3 .curves')");
    // The colours come from the style sheet, which the page's policy allows by its hash.
    for (scheme, colour) in [("light", "rgb(243, 245, 248)"), ("dark", "rgb(14, 19, 25)")] {
        for width in [375, 1280] {
            browser.view(scheme, width, 900);
            let fits = format!("document.documentElement.scrollWidth <= {width}");
            assert!(holds(&mut browser, &fits), "{scheme}, {width}");
            assert_eq!(browser.value("getComputedStyle(document.body).backgroundColor"), colour);
            browser.shot(&format!("report-{scheme}-{width}"));
        }
    }
    let named = "[...document.querySelectorAll('svg[role=img]')].every(svg => svg.getAttribute('aria-label').length > 20)";
    assert!(holds(&mut browser, named), "every picture has words");
    let leads = "[...document.querySelectorAll('nav a')].every(link => document.querySelector(link.hash))";
    assert!(holds(&mut browser, leads), "every entry of the contents leads somewhere");
    // In print the text is black on white even if the screen is dark, and folded parts are printed, too.
    let folded = "document.querySelector('details:not([open]) pre')";
    assert!(holds(&mut browser, folded), "the commands are folded");
    let shown =
        format!("{folded}.checkVisibility({{ contentVisibilityAuto: true }}) && {folded}.offsetHeight > 10");
    let white = "getComputedStyle(document.body).backgroundColor === 'rgb(255, 255, 255)'";
    assert!(!holds(&mut browser, white) && !holds(&mut browser, &shown));
    let dark = json!([{ "name": "prefers-color-scheme", "value": "dark" }]);
    browser.call("Emulation.setEmulatedMedia", &json!({ "media": "print", "features": dark }));
    assert!(holds(&mut browser, white) && holds(&mut browser, &shown));
    let paper = browser.call("Page.printToPDF", &json!({}));
    assert!(paper["data"].as_str().is_some_and(|data| data.starts_with("JVBER")), "a PDF");
    assert!(browser.complaints().is_empty(), "{:#?}", browser.complaints());
    assert_eq!(browser.requests(), [url.as_str()], "nothing else is loaded");
}
