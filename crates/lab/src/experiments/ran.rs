//! When and on what machine an experiment ran.

use std::fmt;
use std::thread::available_parallelism;

use chrono::{SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use super::model::Experiment;
use crate::check::CheckReport;
use crate::spec::PathSpec;

/// Circumstances of one call of `lab run`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// Start of the call: RFC 3339, UTC.
    pub began: String,
    /// Number of processors that it could use.
    pub cores: usize,
    /// Name and architecture of the processor.
    pub machine: String,
    /// Seeds of all random parts of the paths, each once.
    pub seeds: Vec<u64>,
    /// How the emulator was judged before the call's first run; `None`: it was not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub emulator: Option<CheckReport>,
}

impl Ran {
    /// Returns the present time and machine.
    pub(super) fn now(experiment: &Experiment) -> Self {
        let paths = experiment.cases.iter().flat_map(|case| &case.paths);
        let mut seeds: Vec<u64> = paths.flat_map(PathSpec::own_and_shared).map(|link| link.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            began: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
            cores: available_parallelism().map_or(1, usize::from),
            machine: machine(&cpuinfo),
            seeds,
            emulator: None,
        }
    }
}

/// Returns the processor's name, which some architectures lack, and architecture.
fn machine(cpuinfo: &str) -> String {
    let mut lines = cpuinfo.lines().filter_map(|line| line.split_once(':'));
    let name = lines.find(|(key, _)| key.trim() == "model name").map(|(_, name)| name.trim());
    let name = name.filter(|name| !name.is_empty()).map(|name| format!("{name}, ")).unwrap_or_default();
    name + std::env::consts::ARCH
}

/// Returns a line for each call; where parts were many calls on the same machine, one line for all of them.
pub(super) fn lines(calls: &[Ran]) -> Vec<String> {
    /// Calls of one machine that still have lines of their own.
    const FEW: usize = 3;
    let mut machines: Vec<Vec<&Ran>> = Vec::new();
    for call in calls {
        let is_alike = |of: &&mut Vec<&Ran>| {
            of.iter().all(|one| (one.cores, &one.machine) == (call.cores, &call.machine))
        };
        match machines.iter_mut().find(is_alike) {
            Some(of) => of.push(call),
            None => machines.push(vec![call]),
        }
    }
    let line = |of: Vec<&Ran>| {
        if of.len() > FEW { vec![together(&of)] } else { of.iter().map(ToString::to_string).collect() }
    };
    machines.into_iter().flat_map(line).collect()
}

/// Describes calls on one machine in a line.
fn together(calls: &[&Ran]) -> String {
    let mut all = calls.iter().map(|call| (*call).clone());
    let Some(mut whole) = all.next() else { return String::new() };
    let mut last = whole.began.clone();
    for call in all {
        last = last.max(call.began.clone());
        whole.began = whole.began.min(call.began);
        whole.seeds.extend(call.seeds);
    }
    whole.seeds.sort_unstable();
    whole.seeds.dedup();
    whole.emulator = None;
    let outcomes: Vec<bool> = calls.iter().filter_map(|call| Some(call.emulator.as_ref()?.passed)).collect();
    let passed = outcomes.iter().filter(|passed| **passed).count();
    let judged = match outcomes.len() {
        0 => String::new(),
        judged => format!("; the emulator before: ok in {passed} of {judged}"),
    };
    format!("{} calls, the first {whole}, the last {} UTC{judged}", calls.len(), minutes(&last))
}

/// Returns a time without seconds and zone.
fn minutes(began: &str) -> String {
    began.get(..16).map_or_else(|| began.to_owned(), |time| time.replace('T', " "))
}

/// Writes one line: `2026-03-01 09:30 UTC, 2 cores of a Xeon, x86_64, seed 1; the emulator before: ok, ..`.
impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { began, cores, machine, seeds, emulator } = self;
        let cores = if *cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
        let word = if seeds.len() == 1 { "seed" } else { "seeds" };
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        write!(f, "{} UTC, {cores}, {machine}, {word} {}", minutes(began), seeds.join(", "))?;
        let Some(emulator) = emulator else { return Ok(()) };
        write!(f, "; the emulator before: {}", emulator.in_short())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::SharedLink;

    #[test]
    fn a_machine_is_its_processor() {
        let cpuinfo =
            "processor\t: 0\nmodel name\t: A Processor @ 2.5GHz\n\nprocessor\t: 1\nmodel name\t: Other\n";
        assert_eq!(machine(cpuinfo), format!("A Processor @ 2.5GHz, {}", std::env::consts::ARCH));
        assert_eq!(machine("processor\t: 0\n"), std::env::consts::ARCH);
    }

    #[test]
    fn people_read_date_cores_machine_and_seeds() {
        let ran = Ran {
            began: "2026-03-01T09:30:59Z".to_owned(),
            cores: 2,
            machine: "A Processor, x86_64".to_owned(),
            seeds: vec![1, 7],
            emulator: None,
        };
        assert_eq!(ran.to_string(), "2026-03-01 09:30 UTC, 2 cores, A Processor, x86_64, seeds 1, 7");
        let failed = CheckReport { rows: Vec::new(), passed: false };
        let judged = Ran { emulator: Some(failed), ..ran.clone() };
        assert!(judged.to_string().starts_with(&format!("{ran}; the emulator before: FAILED")), "{judged}");
        let mut experiment = super::super::catalogue().remove(0);
        let now = Ran::now(&experiment);
        assert!(now.cores > 0 && now.seeds == [1] && now.began.ends_with('Z'), "{now:?}");
        let spec = PathSpec { seed: 9, ..PathSpec::default() };
        experiment.cases[0].paths[0].links.push(SharedLink { name: "line".to_owned(), spec });
        assert_eq!(Ran::now(&experiment).seeds, [1, 9]);
    }

    #[test]
    fn many_calls_on_a_machine_are_one_line() {
        let call = |hour: u64, passed| Ran {
            began: format!("2026-03-01T{hour:02}:30:00Z"),
            cores: 2,
            machine: "x86_64".to_owned(),
            seeds: vec![hour % 2],
            emulator: Some(CheckReport { rows: Vec::new(), passed }),
        };
        let few: Vec<Ran> = (1..4).map(|hour| call(hour, true)).collect();
        assert_eq!(lines(&few), few.iter().map(ToString::to_string).collect::<Vec<_>>());
        let elsewhere = Ran { machine: "aarch64".to_owned(), emulator: None, ..call(5, true) };
        let many = [vec![call(9, false)], few, vec![elsewhere.clone(), call(4, true)]].concat();
        let line = "5 calls, the first 2026-03-01 01:30 UTC, 2 cores, x86_64, seeds 0, 1, the last 2026-03-01 09:30 UTC; the \
            emulator before: ok in 4 of 5";
        assert_eq!(lines(&many), [line.to_owned(), elsewhere.to_string()]);
        assert!(lines(&[]).is_empty());
    }

    #[test]
    fn a_call_of_an_earlier_version_has_no_judgement_of_the_emulator() {
        let ran: Ran = serde_json::from_str(
            r#"{"began":"2026-03-01T09:30:59Z","cores":2,"machine":"x86_64","seeds":[1]}"#,
        )
        .unwrap();
        assert_eq!(ran.emulator, None);
        let judged = Ran { emulator: Some(CheckReport { rows: Vec::new(), passed: true }), ..ran };
        let text = serde_json::to_string(&judged).unwrap();
        assert_eq!(serde_json::from_str::<Ran>(&text).unwrap(), judged);
    }
}
