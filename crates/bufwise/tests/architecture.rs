//! The crates depend on each other only as ARCHITECTURE says.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// Each crate, and our crates that it may use outside tests: only crates listed before it.
const MAY_USE: &[(&str, &[&str])] = &[
    ("trial", &[]),
    ("units", &[]),
    ("policy", &["units"]),
    ("link", &["units"]),
    ("socket", &["units"]),
    ("bpf", &["units", "policy", "socket"]),
    ("host", &["units", "policy", "socket", "bpf"]),
    ("mover", &["units", "policy", "socket"]),
    ("ftp", &["units", "policy", "socket", "mover"]),
    ("lab", &["units", "link", "socket"]),
    ("bufwise", &["units", "policy", "link", "socket", "bpf", "host", "mover", "ftp", "lab"]),
];

fn crates() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns our crates among the dependencies in a crate's manifest, without the common prefix.
fn used_by(name: &str) -> BTreeSet<String> {
    let manifest = fs::read_to_string(crates().join(name).join("Cargo.toml")).expect("a manifest");
    let manifest: toml::Table = manifest.parse().expect("a table");
    let Some(dependencies) = manifest.get("dependencies").and_then(toml::Value::as_table) else {
        return BTreeSet::new();
    };
    dependencies.keys().filter_map(|key| key.strip_prefix("bufwise-")).map(str::to_owned).collect()
}

#[test]
fn a_crate_uses_only_what_stands_below_it() {
    for (index, (name, may_use)) in MAY_USE.iter().enumerate() {
        let may_use: BTreeSet<String> = may_use.iter().map(ToString::to_string).collect();
        let below: BTreeSet<&str> = MAY_USE[..index].iter().map(|(name, _)| *name).collect();
        assert!(may_use.iter().all(|other| below.contains(other.as_str())), "{name} would look upwards");
        assert_eq!(used_by(name), may_use, "what {name} uses: change this table and ARCHITECTURE together");
    }
}

#[test]
fn the_table_and_the_architecture_name_every_crate() {
    let listed: BTreeSet<String> = MAY_USE.iter().map(|(name, _)| (*name).to_owned()).collect();
    let present: BTreeSet<String> = fs::read_dir(crates())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(present, listed);
    let architecture = fs::read_to_string(crates().join("../ARCHITECTURE.md")).unwrap();
    for name in listed {
        assert!(
            architecture.contains(&format!("\n| `{name}` |")),
            "ARCHITECTURE's table does not name {name}"
        );
    }
}

/// Returns the text of all Rust files below `directory`.
fn sources(directory: &Path) -> String {
    let entries = fs::read_dir(directory).expect("a directory").map(|entry| entry.expect("an entry").path());
    let texts = entries.filter_map(|path| match path.is_dir() {
        true => Some(sources(&path)),
        false => path
            .extension()
            .is_some_and(|kind| kind == "rs")
            .then(|| fs::read_to_string(&path).expect("a text")),
    });
    texts.collect()
}

#[test]
fn the_tests_that_hold_what_security_promises_exist() {
    let sources = sources(&crates());
    let promises = fs::read_to_string(crates().join("../SECURITY.md")).unwrap();
    let is_test = |word: &&str| {
        let letters = word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_');
        letters && word.matches('_').count() > 2
    };
    let mut tests = promises.split('`').filter(is_test).peekable();
    assert!(tests.peek().is_some());
    for test in tests {
        assert!(sources.contains(&format!("fn {test}(")), "SECURITY.md names {test}: there is no such test");
    }
}
