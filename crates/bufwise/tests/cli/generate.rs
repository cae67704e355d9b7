//! Manual pages and completions are generated from the command line: none is missing, and they show no hidden options.

use std::fs;
use std::path::Path;

use crate::run::{only_error, run};

/// Returns the commands that the help of a command lists, without clap's `help`.
fn commands(of: &[&str]) -> Vec<String> {
    let output = run(&[of, &["--help"]].concat());
    let text = String::from_utf8(output.stdout).unwrap();
    let list = text.split("Commands:\n").nth(1).and_then(|rest| rest.split("\n\n").next()).unwrap();
    let names = list.lines().filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    let names = names.map(|line| line.split_whitespace().next().unwrap().to_owned());
    names.filter(|name| name != "help").collect()
}

fn page(directory: &Path, name: &str) -> String {
    let path = directory.join("man").join(format!("{name}.1"));
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn every_visible_command_has_its_manual_page() {
    let directory = tempfile::tempdir().unwrap();
    let place = directory.path().to_str().unwrap();
    let output = run(&["generate", place, "--date", "2026-11-22"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");

    let (main, lab) = (commands(&[]), commands(&["lab"]));
    assert!(main.contains(&"daemon".to_owned()) && lab.contains(&"path".to_owned()), "{main:?} {lab:?}");
    let names = main.iter().map(|name| format!("bufwise-{name}"));
    let names = names.chain(lab.iter().map(|name| format!("bufwise-lab-{name}")));
    let names: Vec<String> = names.chain(["bufwise".to_owned()]).collect();
    for name in &names {
        let page = page(directory.path(), name);
        assert!(page.contains(&format!(".TH {name} 1 2026-11-22")), "{name}: {page}");
        assert!(!page.contains(".br\n\n"), "mandoc finds {name} unsound: {page}");
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "\"EXIT STATUS\"", "\"SEE ALSO\""] {
            assert!(page.contains(&format!(".SH {section}\n")), "{name} has no {section}: {page}");
        }
    }
    let written = fs::read_dir(directory.path().join("man")).unwrap().count();
    assert_eq!(written, names.len(), "no page of a hidden command");
    assert!(page(directory.path(), "bufwise-run").contains(".SH EXAMPLES\n"));
    for (name, description) in
        [("bufwise-run", "The command and its descendants run"), ("bufwise-lab-path", "Host A (198.18.0.1")]
    {
        let page = page(directory.path(), name);
        assert!(page.contains(description), "{name} has the whole description: {page}");
    }
}

#[test]
fn completions_know_every_visible_command() {
    let directory = tempfile::tempdir().unwrap();
    let output = run(&["generate", directory.path().to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    for file in ["bufwise.bash", "_bufwise", "bufwise.fish"] {
        let text = fs::read_to_string(directory.path().join("completions").join(file)).unwrap();
        for name in commands(&[]).iter().chain(&commands(&["lab"])) {
            assert!(text.contains(name.as_str()), "{file} knows {name}");
        }
        assert!(text.contains("small-documents"), "{file} knows options");
        assert!(!text.contains("Write manual pages"), "{file} does not offer what is hidden");
    }
}

#[test]
fn a_directory_that_cannot_be_made_is_named() {
    let line = only_error(&run(&["generate", "/proc/no/such"]), 1);
    assert!(line.contains("/proc/no/such/man"), "{line}");
}
