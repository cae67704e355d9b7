//! The verifier's work on the programs, so that a change that makes it explode is seen before a kernel refuses it.

use std::fmt::Write as _;
use std::path::Path;

use bufwise_bpf::{Conditions, Config, Engine, MOST_GROUPS, Matching, ReceiveRule, SendRule};

use crate::support::root;

/// Environment variable that makes the test write the file anew; read the diff then.
const REWRITE: &str = "BUFWISE_REWRITE_VERIFIER_COSTS";
const HEAD: &str = "\
# Instructions that the kernel's verifier went through before it took each program, by the rules it was loaded
# with (settings are constants to it: what a rule does not need falls away). The kernel's bound is 1000000.
# Held within 25% by root_verifier_costs_are_as_recorded; BUFWISE_REWRITE_VERIFIER_COSTS=1 writes it anew.
# rules program instructions
";
const RULES: [(&str, SendRule, ReceiveRule); 8] = [
    ("kernel", SendRule::Kernel, ReceiveRule::Kernel),
    ("abt", SendRule::Abt, ReceiveRule::Kernel),
    ("sabt", SendRule::Sabt, ReceiveRule::Kernel),
    ("fit", SendRule::Fit, ReceiveRule::Kernel),
    ("drs", SendRule::Kernel, ReceiveRule::Drs),
    ("sobas", SendRule::Kernel, ReceiveRule::Sobas),
    ("kernel,fit", SendRule::Kernel, ReceiveRule::Fit),
    ("abt,sobas", SendRule::Abt, ReceiveRule::Sobas),
];

/// Returns a table with as many groups, peers, ports and programs as it can hold.
fn full_table() -> Matching {
    let group = |number: usize| Conditions {
        cgroup: (number == 0).then(|| "a".parse().unwrap()),
        programs: vec!["program-*-name*".parse().unwrap(); 1],
        peers: vec!["198.18.0.0/15".parse().unwrap(); 4],
        ports: vec!["443".parse().unwrap(); 4],
    };
    Matching::new(&(0..MOST_GROUPS).map(group).collect::<Vec<_>>()).unwrap()
}

#[test]
fn root_verifier_costs_are_as_recorded() {
    if !root() {
        return;
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/kernel/verifier-costs.txt");
    let mut now = Vec::new();
    let mut note = |name: &str, mut engine: Engine| {
        engine.load_sweep().unwrap();
        for program in engine.programs().unwrap() {
            now.push((format!("{name} {}", program.name), program.verified_instructions));
        }
    };
    for (name, send, receive) in RULES {
        note(name, Engine::load(&Config { send, receive, ..Config::default() }).unwrap());
    }
    let late = Config { record_after: Config::SHORT_CONNECTION, send: SendRule::Abt, ..Config::default() };
    note("abt,sobas+late", Engine::load(&Config { receive: ReceiveRule::Sobas, ..late }).unwrap());
    note("kernel+groups", Engine::load_for(&Config::default(), &full_table()).unwrap());
    let largest = Config { receive: ReceiveRule::Fit, ..Config::default() };
    note("kernel,fit+groups", Engine::load_for(&largest, &full_table()).unwrap());
    if std::env::var_os(REWRITE).is_some() {
        let mut text = HEAD.to_owned();
        for (what, instructions) in &now {
            writeln!(text, "{what} {instructions}").unwrap();
        }
        std::fs::write(&path, text).unwrap();
    }
    let recorded = std::fs::read_to_string(&path).unwrap();
    let mut recorded = recorded.lines().filter(|line| !line.starts_with('#'));
    for (what, instructions) in now {
        let line = recorded.next().unwrap_or_default();
        let (before, figure) = line.rsplit_once(' ').unwrap_or_default();
        assert_eq!(before, what, "the record names other programs; {REWRITE}=1 writes it anew");
        let figure: u32 = figure.parse().unwrap();
        let band = figure - figure / 4..=figure + figure / 4;
        assert!(
            band.contains(&instructions),
            "{what}: {instructions}, recorded {figure}; see {}",
            path.display()
        );
    }
    assert_eq!(recorded.next(), None);
}
