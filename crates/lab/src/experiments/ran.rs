//! When and on what machine an experiment ran.

use std::fmt;
use std::thread::available_parallelism;

use chrono::{SecondsFormat, Utc};
use serde::{Deserialize, Serialize};

use super::model::Experiment;

/// Circumstances of one call of `lab run`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ran {
    /// Start of the call: RFC 3339, UTC.
    pub began: String,
    /// Number of processors that it could use.
    pub cores: usize,
    /// Name and architecture of the processor.
    pub machine: String,
    /// Seeds of all random parts of the paths, each once.
    pub seeds: Vec<u64>,
}

impl Ran {
    /// Returns the present time and machine.
    pub(super) fn now(experiment: &Experiment) -> Self {
        let paths = experiment.cases.iter().flat_map(|case| &case.paths);
        let mut seeds: Vec<u64> = paths.map(|path| path.seed).collect();
        seeds.sort_unstable();
        seeds.dedup();
        let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Self {
            began: Utc::now().to_rfc3339_opts(SecondsFormat::Secs, true),
            cores: available_parallelism().map_or(1, usize::from),
            machine: machine(&cpuinfo),
            seeds,
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

/// Writes one line: `2026-03-01 09:30 UTC, 2 cores of a Xeon, x86_64, seed 1`.
impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { began, cores, machine, seeds } = self;
        let minutes = began.get(..16).map_or_else(|| began.clone(), |time| time.replace('T', " "));
        let cores = if *cores == 1 { "1 core".to_owned() } else { format!("{cores} cores") };
        let word = if seeds.len() == 1 { "seed" } else { "seeds" };
        let seeds: Vec<String> = seeds.iter().map(u64::to_string).collect();
        write!(f, "{minutes} UTC, {cores}, {machine}, {word} {}", seeds.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        };
        assert_eq!(ran.to_string(), "2026-03-01 09:30 UTC, 2 cores, A Processor, x86_64, seeds 1, 7");
        let now = Ran::now(&super::super::catalogue()[0]);
        assert!(now.cores > 0 && now.seeds == [1] && now.began.ends_with('Z'), "{now:?}");
    }
}
