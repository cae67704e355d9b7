//! `bufwise check`: reports line by line what this host offers, what is missing, and what to do about it.
//!
//! Features are tried where possible: the programs are loaded and attached to a temporary cgroup, and a socket of this
//! process is fetched in the same way as those of other processes. Everything else is read from the system's files. The host
//! is left unchanged.

mod kernel;
mod network;
mod programs;

use std::fmt;
use std::path::{Path, PathBuf};

use bufwise_host::Error;
use bufwise_host::control::message::Status as DaemonStatus;
use bufwise_host::control::{self, ControlError, Reply, Request};
use bufwise_host::daemon::configured_socket;
use bufwise_units::counted;
use clap::Args;
use nix::sys::signal::Signal;
use serde::Serialize;

use crate::daemon::missing_capabilities;
use crate::exit::{FAILED, Outcome};
use crate::output;
use crate::signals::hold_back;

/// Say what this host offers to bufwise, what is missing, and what to do
///
/// The lines are about privileges, kernel, programs, TCP settings and tools. Lines that begin with limited or missing say what to do.
///
/// Exit status: 0 if run with the engine in the kernel works for the caller, 1 if it lacks something. The daemon also needs
/// CAP_SYS_ADMIN: without it the line `privileges` is limited, the status is 0, and the daemon does not start. The line
/// `run, any user` says what run does without privilege.
#[derive(Debug, Args)]
#[command(after_help = "Example: sudo bufwise check")]
pub(crate) struct CheckArgs {
    /// Write the lines as JSON, into this file; - or none for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    /// Control socket of the daemon; default the one that /etc/bufwise/bufwise.toml names, or /run/bufwise/control
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// Result of one check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Status {
    Ok,
    Limited,
    Missing,
}

/// One line of the report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Point {
    name: &'static str,
    status: Status,
    /// Whether the engine in the kernel, and so `daemon`, needs it.
    needed: bool,
    found: String,
    advice: Option<String>,
}

impl Point {
    fn ok(name: &'static str, found: impl fmt::Display) -> Self {
        Self { name, status: Status::Ok, needed: false, found: found.to_string(), advice: None }
    }

    fn limited(name: &'static str, found: impl fmt::Display, advice: &str) -> Self {
        Self { status: Status::Limited, advice: Some(advice.to_owned()), ..Self::ok(name, found) }
    }

    fn missing(name: &'static str, found: impl fmt::Display, advice: &str) -> Self {
        Self { status: Status::Missing, advice: Some(advice.to_owned()), ..Self::ok(name, found) }
    }

    fn needed(self) -> Self {
        Self { needed: true, ..self }
    }
}

/// All lines of the report.
#[derive(Debug, Serialize)]
struct Report {
    /// Whether `run` with the engine in the kernel would work.
    ready: bool,
    /// Whether `daemon` would.
    daemon_ready: bool,
    /// The capabilities that `daemon` needs and the caller lacks.
    #[serde(skip)]
    daemon_lacks: Vec<&'static str>,
    checks: Vec<Point>,
}

impl CheckArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        let mut checks = kernel::points();
        // The cgroup in which programs are tried must not outlive this process.
        checks.extend(hold_back(&[Signal::SIGHUP, Signal::SIGINT, Signal::SIGTERM], programs::points));
        checks.extend(network::points());
        checks.push(daemon(&self.socket.clone().unwrap_or_else(configured_socket)));
        let ready = !checks.iter().any(|point| point.needed && point.status == Status::Missing);
        let daemon_lacks = missing_capabilities();
        let report = Report { ready, daemon_ready: ready && daemon_lacks.is_empty(), daemon_lacks, checks };
        output::both(self.json.as_deref(), &report, || report.to_string())?;
        Ok(if report.ready { 0 } else { FAILED })
    }
}

fn daemon(socket: &Path) -> Point {
    match control::ask(socket, &Request::Status) {
        Ok(Some(Reply::Status(status))) => running(&status),
        Ok(Some(Reply::Error(error))) => Point::limited("daemon", error, "check again in some seconds"),
        Ok(Some(_)) => Point::limited("daemon", "its answer is not a status", "restart the daemon"),
        Ok(None) => Point::ok("daemon", format!("none at {}", socket.display())),
        Err(error) => Point::limited("daemon", bufwise_host::in_words(&error), advice(&error)),
    }
}

/// Describes a daemon that runs.
fn running(status: &DaemonStatus) -> Point {
    let connections = counted(status.connections, "connection");
    let does = if status.dry_run {
        format!("a dry run, which changes nothing: it watches {connections}")
    } else {
        format!("it sizes {connections}")
    };
    let found = format!(
        "version {} runs (process {}): policy {} (send), {} (receive); {does}",
        status.version, status.pid, status.policy.send, status.policy.receive
    );
    if status.paused {
        let advice = "restore has paused it: systemctl reload bufwise, or SIGHUP, makes it tune again";
        return Point::limited("daemon", found, advice);
    }
    Point::ok("daemon", found)
}

/// Returns what to do if the daemon cannot be asked.
fn advice(error: &Error) -> &'static str {
    match error {
        Error::Control(ControlError::NotAllowed { .. }) => "ask as root",
        Error::Control(ControlError::Stranger { .. }) => "name the daemon's own socket with --socket",
        _ => "continue it if it is stopped (kill -CONT), else restart it (systemctl restart bufwise)",
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for point in &self.checks {
            let status = match point.status {
                Status::Ok => "ok",
                Status::Limited => "limited",
                Status::Missing => "missing",
            };
            writeln!(f, "{status:<8} {:<21} {}", point.name, point.found)?;
            if let Some(advice) = &point.advice {
                writeln!(f, "{:<30} -> {advice}", "")?;
            }
        }
        let from_user_space =
            |point: &Point| point.name == programs::USER_SPACE && point.status != Status::Missing;
        if self.ready && !self.daemon_ready {
            let lacks = self.daemon_lacks.join(", ");
            return writeln!(f, "bufwise run works here; bufwise daemon does not: it also needs {lacks}.");
        }
        f.write_str(if self.daemon_ready {
            "bufwise run and bufwise daemon work here.\n"
        } else if self.checks.iter().any(from_user_space) {
            "bufwise run works here from user space; bufwise daemon does not work: see the lines `missing`.\n"
        } else {
            "bufwise run and bufwise daemon do not work here: see the lines `missing`.\n"
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bufwise_host::control::ExchangeError;
    use bufwise_host::control::message::Memory;
    use bufwise_host::view::PolicyNames;

    use super::*;

    #[test]
    fn a_daemon_that_does_not_answer_is_not_a_matter_of_privilege() {
        let path = || PathBuf::from("/run/bufwise/control");
        let of = |error: ControlError| advice(&error.into());
        assert_eq!(of(ControlError::NotAllowed { path: path() }), "ask as root");
        let source = ExchangeError::Silent(Duration::from_secs(2));
        assert!(of(ControlError::NoAnswer { path: path(), source }).contains("kill -CONT"));
        assert!(of(ControlError::Stranger { path: path(), owner: 7 }).contains("--socket"));
    }

    #[test]
    fn a_daemon_that_runs_is_described_with_what_it_sizes() {
        let status = |connections| DaemonStatus {
            pid: 7,
            version: "1.2.3".to_owned(),
            uptime_s: 1.0,
            policy: PolicyNames { send: "abt".to_owned(), receive: "sobas".to_owned() },
            dry_run: false,
            paused: false,
            connections,
            tuned_connections: 0,
            memory: Memory::default(),
            notes: Vec::new(),
        };
        let begins = "version 1.2.3 runs (process 7): policy abt (send), sobas (receive); it sizes";
        assert_eq!(running(&status(1)), Point::ok("daemon", format!("{begins} 1 connection")));
        assert_eq!(running(&status(12)), Point::ok("daemon", format!("{begins} 12 connections")));
        let dry = running(&DaemonStatus { dry_run: true, ..status(12) });
        let ends = "sobas (receive); a dry run, which changes nothing: it watches 12 connections";
        assert!(dry.status == Status::Ok && dry.found.ends_with(ends), "{}", dry.found);
        let paused = running(&DaemonStatus { paused: true, ..status(0) });
        assert_eq!(paused.status, Status::Limited);
        assert!(paused.advice.is_some_and(|advice| advice.contains("SIGHUP")));
    }

    #[test]
    fn every_line_says_how_it_stands_and_what_to_do() {
        let shown = |ready, lacks: &[&'static str], checks| {
            Report { ready, daemon_ready: false, daemon_lacks: lacks.to_vec(), checks }.to_string()
        };
        let checks = vec![Point::ok("one", "here"), Point::missing("two", "gone", "fetch it").needed()];
        let report = shown(false, &[], checks);
        assert!(report.starts_with("ok       one "), "{report}");
        assert!(report.contains("missing  two                   gone\n"), "{report}");
        assert!(report.contains("-> fetch it\n") && report.contains("do not work"), "{report}");
        let checks =
            vec![Point::ok(programs::USER_SPACE, "yes"), Point::missing("one", "gone", "fetch it").needed()];
        let report = shown(false, &[], checks);
        assert!(report.contains("run works here from user space; bufwise daemon does not"), "{report}");
        let report = shown(true, &["CAP_NET_ADMIN", "CAP_SYS_ADMIN"], Vec::new());
        let ends = "daemon does not: it also needs CAP_NET_ADMIN, CAP_SYS_ADMIN.\n";
        assert!(report.ends_with(ends), "{report}");
    }
}
