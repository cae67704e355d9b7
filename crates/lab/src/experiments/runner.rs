//! Runs experiments: the methods in turn, each run on hosts of its own.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use thiserror::Error;

use super::cost::Counting;
use super::directory::Directory;
use super::kept::KeptError;
use super::machine;
use super::model::{Case, Experiment, Method, Way};
use super::ran::Ran;
use super::reading::Reading;
use super::result::{ExperimentResult, RunResult};
use super::script::{Commands, ERRORS};
use super::series;
use crate::commands::{ClientOutput, CommandError, Programs, stopping_signals};
use crate::last_words;
use crate::path::{Observed, PathError, observe};
use crate::sampler::DEFAULT_INTERVAL;
use crate::spec::PathSpec;
use crate::testbed::{Hosts, Testbed, TestbedError};

/// Time that a client has beyond that of its flows, which end themselves before.
const PATIENCE: Duration = Duration::from_secs(45);

/// Why an experiment has no result.
#[derive(Debug, Error)]
pub enum ExperimentError {
    /// A run could not be made.
    #[error("experiment {id}, {method}: {source}")]
    Run {
        /// The experiment.
        id: &'static str,
        /// The method.
        method: &'static str,
        /// The error that ended it.
        source: PathError,
    },
    /// Finished runs could not be read or kept.
    #[error(transparent)]
    Kept(#[from] KeptError),
    /// There is no directory for the programs' reports.
    #[error("cannot make a directory for the reports of a run: {0}")]
    Directory(io::Error),
    /// The kernel cannot be made to count the cost of its programs.
    #[error("cannot set kernel.bpf_stats_enabled: {0}; run as root, outside of containers")]
    Counting(io::Error),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
}

impl ExperimentError {
    /// Returns the exit status that a shell expects for this error.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Run { source, .. } => source.exit_status(),
            Self::Kept(_) | Self::Directory(_) | Self::Counting(_) | Self::Signals(_) => 1,
        }
    }
}

/// How experiments are run.
#[derive(Clone, Debug)]
pub struct Options {
    /// The file of bufwise itself.
    pub program: PathBuf,
    /// Whether to run the short form.
    pub quick: bool,
    /// Repetitions of every run; `None`: the experiment's own number.
    pub repeat: Option<u32>,
    /// Directory in which finished runs are kept; `None`: they are not kept.
    pub out: Option<PathBuf>,
    /// Whether to go on from kept runs; a survey always does.
    pub resume: bool,
}

/// Runs one experiment; `progress` gets a line before each run.
///
/// # Errors
/// [`ExperimentError`] when a run cannot be made at all, or a signal asks to stop. A program that fails, or a target
/// that is not met, is part of the result. The machine is left clean in either case.
pub fn run(
    experiment: &Experiment,
    options: &Options,
    progress: impl FnMut(&str),
) -> Result<ExperimentResult, ExperimentError> {
    let stop = StopSignal::watch().map_err(ExperimentError::Signals)?;
    let _counting =
        experiment.counts_cost.then(Counting::start).transpose().map_err(ExperimentError::Counting)?;
    let once = |case: &Case, method: &Method, attempts| {
        Run { experiment, case, method, options, stop: &stop }.once(attempts)
    };
    let ran = Ran::now(experiment);
    let mut result = series::measure(experiment, options, &machine::available(experiment), once, progress)?;
    result.ran = vec![ran];
    Ok(result)
}

struct Run<'a> {
    experiment: &'a Experiment,
    case: &'a Case,
    method: &'a Method,
    options: &'a Options,
    stop: &'a StopSignal,
}

impl Run<'_> {
    fn once(&self, attempts: u32) -> Result<RunResult, ExperimentError> {
        if let Some(problem) = small_limit(self.case) {
            return Ok(RunResult { problem: Some(problem), attempts, ..RunResult::default() });
        }
        let directory = Directory::make().map_err(ExperimentError::Directory)?;
        let seen = self.observed(directory.path());
        // A signal reaches the programs as well, so their outcome does not matter.
        let seen = match self.stop.continues().and(seen) {
            Ok(seen) => seen,
            Err(error) => {
                let problem = problem(error, directory.path()).map_err(|source| self.failed(source))?;
                return Ok(RunResult { problem: Some(problem), attempts, ..RunResult::default() });
            }
        };
        let reading = Reading::new(self.experiment, self.case, &seen, directory.path());
        let stalled = || seen.paths.iter().find_map(|path| path.invalid.clone());
        let incomplete = reading.incomplete().map(|what| with_last_words(&what, &seen, directory.path()));
        let problem = incomplete.or_else(stalled);
        let values = reading.values(&self.experiment.quantities);
        // A survey has hundreds of cases, which its maps sum up.
        let over_time = (!self.experiment.survey).then(|| reading.over_time());
        Ok(RunResult {
            valid: problem.is_none(),
            problem,
            attempts,
            values,
            notes: reading.notes(),
            over_time,
            ..RunResult::default()
        })
    }

    fn observed(&self, directory: &Path) -> Result<Observed, PathError> {
        self.stop.continues()?;
        let Self { experiment, case, method, options, .. } = self;
        let specs: Vec<PathSpec> = case.paths.iter().map(|path| self.spec(path)).collect();
        let testbed = Testbed::start_star(&specs)?;
        self.set(&testbed.hosts)?;
        // The run of the programs notices only signals that come after its start.
        self.stop.continues()?;
        let Commands { server, client, elsewhere } =
            Commands::new(experiment, case, method, options.quick, &options.program, directory);
        let seconds = Duration::from_secs(u64::from(case.seconds(method, options.quick)));
        let programs = Programs {
            server: Some(server.into()),
            listeners: case.flows.len(),
            client: client.into(),
            elsewhere: elsewhere.into_iter().map(|other| (other.path, other.client.into())).collect(),
            timeout: seconds + PATIENCE,
            output: ClientOutput::Kept,
        };
        observe(testbed, &programs, DEFAULT_INTERVAL)
    }

    fn spec(&self, path: &PathSpec) -> PathSpec {
        PathSpec {
            rmem: Some(self.method.rmem),
            wmem: Some(self.method.wmem),
            congestion_control: Some(self.method.congestion_control.to_owned()),
            ..path.clone()
        }
    }

    fn set(&self, paths: &[Hosts]) -> Result<(), TestbedError> {
        let (on_a, on_b) = match self.experiment.way {
            Way::Upload => (&self.method.sender, &self.method.receiver),
            Way::Download => (&self.method.receiver, &self.method.sender),
        };
        for (path, Hosts { a, b, .. }) in paths.iter().enumerate() {
            if let Some(segments) = self.method.initial_window {
                b.ip(&initial_window(path, segments, self.case.setup.ipv6))?;
            }
            for (key, value) in on_a {
                a.sysctl(key, value)?;
            }
            for (key, value) in on_b {
                b.sysctl(key, value)?;
            }
        }
        Ok(())
    }

    fn failed(&self, source: PathError) -> ExperimentError {
        ExperimentError::Run { id: self.experiment.id, method: self.method.name, source }
    }
}

/// Returns the command of ip(8) that sets the initial congestion window of the host B at the end of a path, by the protocol of the
/// flows.
fn initial_window(path: usize, segments: u32, ipv6: bool) -> String {
    let route = if ipv6 {
        // The kernel's own route to a prefix has this metric (`IP6_RT_PRIO_ADDRCONF`).
        format!("fd00:b:0:{path}::/64 dev bw{path} proto kernel metric 256")
    } else {
        format!("198.18.{path}.0/24 dev bw{path} proto kernel scope link src 198.18.{path}.2")
    };
    format!("route change {route} initcwnd {segments}\n")
}

/// Returns which limit of this machine is too small for the socket buffers that flows of `case` set; `None`: none is. The
/// kernel has these limits for all network namespaces together, so they cannot be set for the laboratory's hosts alone.
fn small_limit(case: &Case) -> Option<String> {
    let wanted = case.flows.iter().filter_map(|flow| flow.buffer).max()?;
    ["rmem_max", "wmem_max"].into_iter().find_map(|name| {
        let text = std::fs::read_to_string(format!("/proc/sys/net/core/{name}")).ok()?;
        let limit: u64 = text.trim().parse().ok()?;
        (limit < wanted).then(|| {
            format!("net.core.{name} is {limit} on this machine: a flow needs {wanted}, as by `sysctl -w net.core.{name}={wanted}`")
        })
    })
}

/// Returns why a run has no result: the programs' own failure. A signal, or hosts that cannot be made, is an error.
fn problem(error: PathError, directory: &Path) -> Result<String, PathError> {
    match error {
        PathError::Command(
            error @ (CommandError::Timeout { .. }
            | CommandError::Server { .. }
            | CommandError::NotListening { .. }),
        ) => Ok(in_short(error)),
        PathError::Command(error @ CommandError::ClientNotFound(_)) => {
            Ok(in_short(error) + &clients_last_words(directory))
        }
        other => Err(other),
    }
}

/// Returns what became of a run's commands, without the commands themselves, which a report shows elsewhere.
fn in_short(mut error: CommandError) -> String {
    if let CommandError::Server { command, .. }
    | CommandError::NotListening { command, .. }
    | CommandError::ClientNotFound(command)
    | CommandError::Timeout { command, .. } = &mut error
    {
        "of the experiment".clone_into(command);
    }
    error.to_string()
}

/// Returns `what` with the clients' status and the last line that they wrote on standard error.
fn with_last_words(what: &str, seen: &Observed, directory: &Path) -> String {
    format!("{what} (status {}){}", seen.outcome.status, clients_last_words(directory))
}

/// Returns the last line that the clients wrote on standard error, after a colon; empty if there is none.
fn clients_last_words(directory: &Path) -> String {
    let told = std::fs::read(directory.join(ERRORS)).unwrap_or_default();
    // Programs may write in any encoding.
    let told = String::from_utf8_lossy(&told);
    last_words::of(&told).map(|line| format!(": {line}")).unwrap_or_default()
}

/// Remembers a signal that asks to stop and arrived while no program ran. Each run catches signals as well, and leaves them without
/// effect, so a caller of several runs needs one of these for the time between them.
pub struct StopSignal {
    caught: Arc<AtomicUsize>,
    registered: Vec<signal_hook::SigId>,
}

impl StopSignal {
    /// Catches the signals that ask to stop, for as long as the value lives.
    ///
    /// # Errors
    /// The kernel's refusal.
    pub fn watch() -> io::Result<Self> {
        let mut stop = Self { caught: Arc::default(), registered: Vec::new() };
        for signal in stopping_signals() {
            let number = usize::try_from(signal).unwrap_or_default();
            stop.registered.push(signal_hook::flag::register_usize(
                signal,
                Arc::clone(&stop.caught),
                number,
            )?);
        }
        Ok(stop)
    }

    /// Checks that no signal has asked to stop.
    ///
    /// # Errors
    /// [`CommandError::Interrupted`] with the signal.
    pub fn continues(&self) -> Result<(), PathError> {
        match i32::try_from(self.caught.load(Ordering::Relaxed)) {
            Ok(0) | Err(_) => Ok(()),
            Ok(signal) => Err(CommandError::Interrupted(signal).into()),
        }
    }
}

impl Drop for StopSignal {
    fn drop(&mut self) {
        for id in self.registered.drain(..) {
            signal_hook::low_level::unregister(id);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::model::Flow;
    use super::*;
    use crate::commands::Outcome;

    #[test]
    fn a_signal_outlasts_the_programs_that_it_ended() {
        let of = |signal| StopSignal { caught: Arc::new(AtomicUsize::new(signal)), registered: Vec::new() };
        let ended = || -> Result<(), PathError> { Err(CommandError::PathEnded.into()) };
        let status = |signal| of(signal).continues().and(ended()).unwrap_err().exit_status();
        assert!(of(0).continues().is_ok());
        assert_eq!((status(0), status(2), status(15)), (1, 130, 143));
    }

    #[test]
    fn an_initial_window_is_that_of_the_routes_of_the_flows() {
        let v4 = "route change 198.18.3.0/24 dev bw3 proto kernel scope link src 198.18.3.2 initcwnd 2\n";
        assert_eq!(initial_window(3, 2, false), v4);
        let v6 = "route change fd00:b:0:3::/64 dev bw3 proto kernel metric 256 initcwnd 2\n";
        assert_eq!(initial_window(3, 2, true), v6);
    }

    #[test]
    fn a_runs_problem_has_no_command_in_it() {
        let command = "cd '/dev/shm/x' && { a long script ; }".to_owned();
        let error = CommandError::Server {
            command: command.clone(),
            how: "was not found on this machine, and ended".to_owned(),
            words: ": vsftpd: not found".to_owned(),
        };
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(ERRORS), "sh: 1: fetch: not found\n").unwrap();
        let of = |error: CommandError| problem(error.into(), directory.path());
        let server = of(error).unwrap();
        assert!(!server.contains("script") && server.ends_with(": vsftpd: not found"), "{server}");
        // The other experiments of the call run all the same.
        let client = of(CommandError::ClientNotFound(command)).unwrap();
        assert!(!client.contains("script") && client.ends_with(": sh: 1: fetch: not found"), "{client}");
        assert!(of(CommandError::Interrupted(2)).is_err() && of(CommandError::PathEnded).is_err());
    }

    #[test]
    fn the_last_words_of_a_program_are_shown_in_any_encoding() {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join(ERRORS), b"caf\xe9 closed\n\n").unwrap();
        let outcome = Outcome { status: 3, seconds: 1.0, stdout: Vec::new(), server_output: String::new() };
        let seen = Observed { outcome, samples: Vec::new(), paths: Vec::new() };
        let told = with_last_words("a flow has no report", &seen, directory.path());
        assert_eq!(told, "a flow has no report (status 3): caf\u{fffd} closed");
    }

    #[test]
    fn a_buffer_beyond_the_machines_limit_is_named() {
        let of = |buffer| {
            let catalogue = super::super::catalogue();
            let mut experiment = catalogue.into_iter().find(|one| one.id == "sobas-cross").unwrap();
            experiment.cases[0].flows.push(Flow { buffer, ..Flow::default() });
            small_limit(&experiment.cases[0])
        };
        assert_eq!((of(None), of(Some(4_096))), (None, None));
        // The kernel's number is a signed 32-bit one. Some containers do not show it.
        let Some(problem) = of(Some(1 << 32)) else {
            return assert!(std::fs::read("/proc/sys/net/core/rmem_max").is_err());
        };
        assert!(problem.contains("net.core.rmem_max") && problem.contains("4294967296"), "{problem}");
    }
}
