//! Runs the fuzz targets' checks on their seeds, and on damaged copies of them.
//!
//! `make fuzz` searches for new inputs; these tests repeat its findings, within seconds.

#[expect(unreachable_pub, reason = "public in the fuzz crate")]
#[path = "../../../fuzz/src/checks.rs"]
mod checks;
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
#[path = "../../../fuzz/src/host.rs"]
mod host;
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
#[path = "../../../fuzz/src/http.rs"]
mod http;
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
#[path = "../../../fuzz/src/lab.rs"]
mod lab;
#[expect(unreachable_pub, reason = "public in the fuzz crate")]
#[path = "../../../fuzz/src/local.rs"]
mod local;

use std::fs;
use std::path::Path;

use bufwise_link::Draw;

/// Number of damaged copies of each seed.
const COPIES: u64 = 4_000;
/// Bytes with a meaning for one of the parsers.
const TELLING: &[u8] = b"\r\n\0 -;=()|,./:*0129azAZ\"{}[]#_\xff\xf0\xfa\xfb\xc3\x1b";

/// Random numbers that are the same in every run.
struct Random(Draw);

impl Random {
    /// Returns a number below `bound`, or 0.
    fn below(&mut self, bound: usize) -> usize {
        let largest = bound.saturating_sub(1) as u64;
        usize::try_from(self.0.between(0, largest)).expect("it is below a usize")
    }
}

/// Damages a few places: changes bits or bytes, removes or repeats pieces, or takes pieces from another seed.
fn damage(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(6) {
        let at = random.below(bytes.len() + 1);
        let length = random.below(12).min(bytes.len() - at);
        match random.below(6) {
            0 if at < bytes.len() => bytes[at] ^= 1 << random.below(8),
            1 if at < bytes.len() => bytes[at] = TELLING[random.below(TELLING.len())],
            2 => bytes.insert(at, TELLING[random.below(TELLING.len())]),
            3 => drop(bytes.drain(at..at + length)),
            4 => bytes.extend_from_within(at..at + length),
            _ => {
                let from = random.below(other.len());
                bytes.splice(at..at + length, other[from..].iter().take(40).copied());
            }
        }
    }
}

fn replay(target: &str, check: fn(&[u8])) {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target);
    let files = fs::read_dir(&directory).expect("the seeds").map(|entry| entry.expect("a seed").path());
    let mut paths: Vec<_> = files.collect();
    paths.sort();
    let seeds: Vec<Vec<u8>> = paths.iter().map(|path| fs::read(path).expect("a seed")).collect();
    assert!(seeds.len() > 1, "{target} has no seeds");
    for (index, seed) in seeds.iter().enumerate() {
        check(seed);
        let mut random = Random(Draw(index as u64));
        for copy in 0..COPIES {
            let mut bytes = seed.clone();
            damage(&mut bytes, &seeds[random.below(seeds.len())], &mut random);
            let result = std::panic::catch_unwind(|| check(&bytes));
            assert!(result.is_ok(), "{}, copy {copy}: {}", paths[index].display(), bytes.escape_ascii());
        }
    }
}

#[test]
fn replies() {
    replay("reply", checks::reply);
}

#[test]
fn commands() {
    replay("command", checks::command);
}

#[test]
fn listings() {
    replay("listing", checks::listing);
}

#[test]
fn addresses_and_features() {
    replay("address", checks::address);
}

#[test]
fn checksums() {
    replay("checksum", checks::checksum);
}

#[test]
fn probe_packets() {
    replay("packet", checks::packet);
}

#[test]
fn configuration_files() {
    replay("configuration", host::configuration);
}

#[test]
fn requests_of_control_clients() {
    replay("request", host::request);
}

#[test]
fn answers_of_daemons() {
    replay("answer", host::answer);
}

#[test]
fn histories_on_disk() {
    replay("history", host::history);
}

#[test]
fn journals_of_changed_settings() {
    replay("journal", host::journal);
}

#[test]
fn names_of_containers() {
    replay("container", host::container);
}

#[test]
fn journals_of_laboratories() {
    replay("congestion", lab::congestion);
}

#[test]
fn kept_results() {
    replay("results", lab::results);
}

#[test]
fn packets_of_laboratories() {
    replay("segment", lab::segment);
}

#[test]
fn answers_of_receivers_of_metrics() {
    replay("collector", http::collector);
}

#[test]
fn requests_of_browsers_and_scrapers() {
    replay("http", http::http);
}

#[test]
fn traces() {
    replay("trace", local::trace);
}

#[test]
fn experiments_files() {
    replay("experiment", local::experiment);
}

#[test]
fn users_files() {
    replay("users", local::users);
}

#[test]
fn netrc_files() {
    replay("netrc", local::netrc);
}

#[test]
fn urls() {
    replay("url", local::url);
}
