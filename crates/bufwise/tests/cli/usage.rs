//! Wrong usage causes one line and status 2; help explains every command.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::run::{command, only_error, run};

const CLIENT: [&str; 2] = ["--client", "true"];

fn path_error(arguments: &[&str], words: &str) {
    let arguments = [&["lab", "path"], arguments, &CLIENT].concat();
    let line = only_error(&run(&arguments), 2);
    assert!(line.contains(words), "{words}: {line}");
}

#[test]
fn a_path_that_makes_no_sense_is_wrong_usage() {
    path_error(&["--rate", "fast"], "fast");
    path_error(&["--rate", "0mbit", "--queue", "1bdp"], "rate of 0");
    path_error(&["--rate", "100mbit", "--queue", "1000"], "holds no packet");
    path_error(&["--rate", "100mbit", "--queue", "wide"], "bdp/8");
    path_error(&["--queue", "1bdp"], "--rate");
    path_error(&["--loss", "2"], "probability");
    path_error(&["--rtt", "40"], "40");
    path_error(&["--mtu", "100"], "1280");
    path_error(&["--rmem", "lots"], "lots");
    path_error(&["--no-such-flag"], "--no-such-flag");
}

#[test]
fn a_client_is_required() {
    let line = only_error(&run(&["lab", "path"]), 2);
    assert!(line.contains("--client"), "{line}");
}

#[test]
fn a_wrong_trace_is_named_with_its_line() {
    let trace = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(trace.path(), "0 10mbit\n5 quick\n").unwrap();
    let path = trace.path().to_str().unwrap();
    path_error(&["--rate", "10mbit", "--trace", path], "line 2");
    std::fs::write(trace.path(), "0 10mbit\n").unwrap();
    path_error(&["--rate", "10mbit", "--trace", path, "--json", path], "--json would replace");
    // A part of a trace would be another trace.
    trace.as_file().set_len((16 << 20) + 1).unwrap();
    path_error(&["--rate", "10mbit", "--trace", path], "larger than 16 MiB");
    let missing = run(&["lab", "path", "--rate", "10mbit", "--trace", "/no/such/file", "--client", "true"]);
    assert!(only_error(&missing, 1).contains("/no/such/file"));
}

#[test]
fn a_report_that_cannot_be_written_is_said_before_the_run() {
    let output = run(&["lab", "path", "--json", "/no/such/directory/report.json", "--client", "true"]);
    assert!(only_error(&output, 1).contains("/no/such/directory/report.json"));
}

#[test]
fn unknown_commands_are_wrong_usage() {
    assert!(only_error(&run(&["launch"]), 2).contains("launch"));
    assert!(only_error(&run(&["lab", "launch"]), 2).contains("launch"));
}

#[test]
fn an_argument_that_is_not_unicode_is_wrong_usage() {
    let strange = OsStr::from_bytes(b"\xff");
    for arguments in [&[][..], &["run"], &["lab"], &["ls", "--sort"]] {
        let line = only_error(&command(arguments).arg(strange).output().unwrap(), 2);
        assert!(line.contains("--help"), "{arguments:?}: {line}");
    }
}

#[test]
fn what_was_meant_is_offered() {
    assert!(only_error(&run(&["explian", "443"]), 2).contains("'explain'"));
    assert!(only_error(&run(&["ls", "--jsno"]), 2).contains("'--json'"));
    let line = only_error(&run(&["run", "ls", "-l"]), 2);
    assert!(line.contains("bufwise run -- ls"), "{line}");
    let line = only_error(&run(&["run", "--policy", "tahoe", "--", "true"]), 2);
    assert!(line.contains("sobas, fit"), "{line}");
    assert!(!line.contains("drs-ftp") && !line.contains("did you mean"), "{line}");
    for (wrong, right) in [("fti", "'fit'"), ("abt,sobsa", "'abt,sobas'"), ("atbt,sobas", "'abt,sobas'")] {
        let line = only_error(&run(&["daemon", "--policy", wrong]), 2);
        assert!(line.contains(&format!("did you mean {right}?")), "{line}");
    }
    let line = only_error(&run(&["get", "ftp://h/x", "--policy", "tahoe"]), 2);
    assert!(line.contains("drs-ftp") && !line.contains("abt"), "{line}");
    let line = only_error(&run(&["get", "ftp://h/x", "--policy", "dsr"]), 2);
    assert!(line.contains("did you mean 'drs'?"), "{line}");
    let line = only_error(&run(&["run", "--policy", "fixed:5", "--", "true"]), 2);
    assert!(line.contains("has no unit"), "{line}");
}

#[test]
fn a_filter_that_would_be_the_file_of_json_is_wrong_usage() {
    let directory = tempfile::tempdir().unwrap();
    // Other tests search for processes with the word 198.18.0.2.
    let mut filters =
        vec![("ls", "send-buffer"), ("ls", "198.18.0.3:443"), ("top", "reader"), ("history", "198.18.0.3")];
    if Path::new("/sys/fs/cgroup").is_dir() {
        // The cgroup of all.
        filters.extend([("ls", "/"), ("history", "/")]);
    }
    for (name, word) in filters {
        let output = command(&[name, "--json", word]).current_dir(&directory).output().unwrap();
        let line = only_error(&output, 2);
        assert!(line.contains(&format!("file named {word}: write the filter before --json")), "{line}");
        assert!(word == "/" || !directory.path().join(word).exists(), "{name} {word}");
    }
    for (arguments, file) in [
        (&["ls", "--json", "./path"][..], "path"),
        (&["ls", "443", "--json", "reader"], "reader"),
        (&["ls", "--json=443"], "443"),
    ] {
        let output = command(arguments).arg("--no-daemon").current_dir(&directory).output().unwrap();
        assert!(output.status.success(), "{arguments:?}");
        assert!(directory.path().join(file).exists(), "{arguments:?}");
    }
}

#[test]
fn the_word_that_json_takes_is_told_where_it_lacks() {
    for command in ["explain", "probe"] {
        let line = only_error(&run(&[command, "--json", "198.18.0.2:443"]), 2);
        assert!(line.contains("write --json last"), "{line}");
        assert!(!only_error(&run(&[command]), 2).contains("--json"), "{command}");
    }
}

#[test]
fn help_fits_a_hundred_columns() {
    for command in ["run", "daemon", "serve", "get", "ls", "explain", "top", "web", "history", "probe"] {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        for line in help.lines().filter(|line| !line.contains("Example") && !line.contains("bufwise ")) {
            assert!(line.chars().count() <= 100, "{command}: {line}");
        }
    }
}

#[test]
fn every_command_explains_itself() {
    for command in [
        &["--help"][..],
        &["lab", "--help"],
        &["lab", "path", "--help"],
        &["lab", "check", "--help"],
        &["lab", "list", "--help"],
        &["lab", "show", "--help"],
        &["lab", "run", "--help"],
        &["lab", "report", "--help"],
        &["demo", "--help"],
        &["run", "--help"],
        &["ls", "--help"],
        &["top", "--help"],
        &["web", "--help"],
        &["explain", "--help"],
        &["history", "--help"],
        &["check", "--help"],
        &["probe", "--help"],
    ] {
        let output = run(command);
        assert_eq!(output.status.code(), Some(0), "{command:?}");
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(text.contains("Usage: bufwise"), "{command:?}: {text}");
        assert!(text.lines().count() >= 8, "{command:?}: {text}");
    }
}

#[test]
fn help_has_the_long_descriptions() {
    for (command, words) in [
        (&["run"][..], &["126 if it could not be started", "Connections of other programs"][..]),
        (
            &["daemon"],
            &[
                "SIGTERM and SIGINT end",
                "CAP_SYS_ADMIN",
                "top, web, explain, history, metrics, check and restore",
            ],
        ),
        (&["check"], &["Exit status: 0 if run with the engine in the kernel works"]),
        (&["explain"], &["five seconds"]),
        (&["get"], &["kernel, tunes nothing"]),
        (&["lab"], &["It needs root"]),
        (&["lab", "path"], &["198.18.0.2, fd00:b::2", "Only --client is required"]),
        (&["lab", "run"], &["Exit status: 1 if a target was missed", "pair-harm"]),
        (&["lab", "report"], &["NAME-over-time.csv"]),
    ] {
        let help = String::from_utf8(run(&[command, &["--help"]].concat()).stdout).unwrap();
        let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in words {
            assert!(help.contains(text), "{command:?}: {text}: {help}");
        }
    }
}

#[test]
fn commands_are_listed_by_task() {
    let help = String::from_utf8(run(&["--help"]).stdout).unwrap();
    let place = |name: &str| help.find(&format!("\n  {name} ")).unwrap_or_else(|| panic!("{name}: {help}"));
    let places = [
        "run", "daemon", "ls", "top", "web", "explain", "history", "probe", "check", "restore", "metrics",
        "get", "put", "serve", "demo", "lab",
    ]
    .map(place);
    assert!(places.is_sorted(), "{help}");
}

#[test]
fn run_and_daemon_name_fit_on_both_sides_and_on_one() {
    for command in ["run", "daemon"] {
        let help = String::from_utf8(run(&[command, "--help"]).stdout).unwrap();
        let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for text in [
            "sabt, fit;",
            "drs, sobas, fit",
            "fit,kernel is fit only at the sender",
            "kernel,fit only at the receiver",
        ] {
            assert!(words.contains(text), "{command}: {text}: {words}");
        }
    }
}

#[test]
fn no_command_prints_the_help_as_wrong_usage() {
    let output = run(&[]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("Usage: bufwise"));
}
