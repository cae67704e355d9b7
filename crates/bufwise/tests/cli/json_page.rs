//! docs/json.md names every key that a command writes as JSON, and no other.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The files whose structs are written as JSON by a command.
const SOURCES: [&str; 36] = [
    "bufwise/src/check.rs",
    "bufwise/src/explain.rs",
    "bufwise/src/explain/ends.rs",
    "bufwise/src/explain/explanation.rs",
    "bufwise/src/history/past.rs",
    "bufwise/src/lab/experiments.rs",
    "bufwise/src/lab/file.rs",
    "bufwise/src/ls.rs",
    "bufwise/src/ls/groups.rs",
    "bufwise/src/probe/buffers.rs",
    "bufwise/src/probe/report.rs",
    "bufwise/src/restore.rs",
    "bufwise/src/run/history.rs",
    "bufwise/src/run/report.rs",
    "bufwise/src/run/totals.rs",
    "bufwise/src/serve/record.rs",
    "bufwise/src/transfer/report.rs",
    "host/src/budget.rs",
    "host/src/budget/pressure.rs",
    "host/src/containers.rs",
    "host/src/history.rs",
    "host/src/history/sums.rs",
    "host/src/judge/limited.rs",
    "host/src/judge/outlook.rs",
    "host/src/view.rs",
    "host/src/view/listing.rs",
    "host/src/view/tuned.rs",
    "lab/src/check.rs",
    "lab/src/demo/result.rs",
    "lab/src/experiments/cell.rs",
    "lab/src/experiments/earlier.rs",
    "lab/src/experiments/ran.rs",
    "lab/src/experiments/reported.rs",
    "lab/src/experiments/result.rs",
    "lab/src/report.rs",
    "lab/src/sampler.rs",
];
/// A question to the daemon, which no command writes.
const NOT_WRITTEN: &str = "struct Query ";

fn read(path: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the keys of the structs in a source that are written as JSON.
fn keys(source: &str) -> Vec<&str> {
    let mut keys = Vec::new();
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if !(line.starts_with("#[derive(") && line.contains("Serialize")) {
            continue;
        }
        let head = lines.find(|line| line.ends_with('{')).unwrap();
        if !head.contains("struct ") || head.contains(NOT_WRITTEN) {
            continue;
        }
        let (mut is_key, mut renamed) = (true, None);
        for line in lines.by_ref().take_while(|line| *line != "}").map(str::trim_start) {
            if line.starts_with("#[serde(skip)]") || line.starts_with("#[serde(flatten)]") {
                is_key = false;
            } else if let Some((_, name)) = line.split_once("#[serde(rename = \"") {
                renamed = name.split_once('"').map(|(name, _)| name);
            } else if !line.starts_with(['/', '#'])
                && let Some((field, _)) = line.split_once(": ")
                && std::mem::replace(&mut is_key, true)
            {
                keys.extend(renamed.take().or_else(|| field.rsplit(' ').next()));
            }
        }
    }
    keys
}

/// Returns the keys in the first column of the page's tables.
fn named(page: &str) -> BTreeSet<&str> {
    let rows = page.lines().filter(|line| line.starts_with("| `"));
    let cells = rows.filter_map(|row| row.trim_start_matches("| ").split(" | ").next());
    cells.flat_map(|cell| cell.split('`').skip(1).step_by(2)).collect()
}

#[test]
fn the_page_names_every_key_and_no_other() {
    let page = read("../docs/json.md");
    let named = named(&page);
    let sources: Vec<(&str, String)> = SOURCES.into_iter().map(|path| (path, read(path))).collect();
    let mut written = BTreeSet::new();
    for (path, source) in &sources {
        for key in keys(source) {
            assert!(named.contains(key), "docs/json.md has no `{key}`, which {path} writes");
            written.insert(key);
        }
    }
    let unwritten: Vec<_> = named.difference(&written).collect();
    assert!(unwritten.is_empty(), "docs/json.md names keys that no command writes: {unwritten:?}");
}
