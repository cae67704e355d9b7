//! `bufwise restore`: restores everything that bufwise changed on this host.

use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use bufwise_host::caps::Caps;
use bufwise_host::control::message::Restored;
use bufwise_host::control::{self, Reply, Request};
use bufwise_host::leftovers::{self, Cleared};
use bufwise_host::{daemon, in_words};
use bufwise_lab::congestion;
use bufwise_units::counted;
use clap::Args;
use serde::Serialize;

use crate::exit::{Failure, Outcome};
use crate::output;

/// The list that the laboratory widens for a moment.
const ALLOWED: &str = "net.ipv4.tcp_allowed_congestion_control";

/// Put back everything that bufwise has changed on this host
///
/// A running daemon gives everything back, and pauses until SIGHUP or systemctl reload bufwise. Then restore clears what killed
/// daemons, runs and labs have left. Settings of a running bufwise run stay.
#[derive(Debug, Args)]
pub(crate) struct RestoreArgs {
    /// Control socket of the daemon, which has to exist; default the one that /etc/bufwise/bufwise.toml names, or
    /// /run/bufwise/control, which need not exist
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Only clear what killed daemons and runs have left; a running daemon is left alone
    #[arg(long, conflicts_with = "socket")]
    leftovers: bool,
    /// Write what was put back as JSON, into this file; - or none for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
}

/// The outcome of a call: the changes that were put back, and those that were not.
#[derive(Debug, Default, Serialize)]
struct Report {
    /// Connections that a daemon gave back; `None`: no daemon was asked, or none listens.
    connections: Option<u64>,
    /// Lines on what was put back or removed.
    put_back: Vec<String>,
    /// Lines on what could not be, with the reason.
    not_put_back: Vec<String>,
}

impl RestoreArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        // If a daemon refuses or fails, that is the result: nothing is changed without it.
        let restored = if self.leftovers { None } else { ask_daemon(self.socket.clone())? };
        let report = self.clear(restored);
        let written = output::both(self.json.as_deref(), &report, || report.to_text());
        // These count even if the report cannot be written.
        let mut failed = report.not_put_back;
        failed.extend(written.err().map(|error| in_words(error.as_ref())));
        if failed.is_empty() { Ok(0) } else { Err(Failure::new(crate::exit::FAILED, failed.join("; "))) }
    }

    /// Clears what killed programs have left, and adds what the daemon has `restored`.
    fn clear(&self, restored: Option<Restored>) -> Report {
        let tried = Caps::of_host().ownerless().is_ok_and(|left| !left.is_empty());
        // Where programs cannot be listed, the settings and the laboratory's list are still put back, and the daemon's own
        // work is told.
        let (mut cleared, refused) = leftovers::clear_most();
        cleared.failed.extend(refused.map(|error| in_words(&error)));
        if !self.leftovers {
            clear_laboratory(&mut cleared);
        }
        let restored = restored.map(|mut restored| {
            restored.notes.retain(|note| is_kept(note, &cleared, tried));
            restored
        });
        let mut report = Report { put_back: cleared.done, not_put_back: cleared.failed, ..Report::default() };
        if let Some(restored) = restored {
            report.connections = Some(restored.connections);
            report.put_back.extend(restored.settings);
            report.not_put_back.extend(restored.notes);
            report.not_put_back.extend(kept(restored.failed_connections));
        }
        report
    }
}

impl Report {
    /// Returns what was put back as lines; what was not is the command's error.
    fn to_text(&self) -> String {
        let given_back = |count: u64| format!("{} given back to the kernel", counted(count, "connection"));
        let connections = self.connections.map(given_back);
        let mut lines: Vec<&str> = connections.iter().chain(&self.put_back).map(String::as_str).collect();
        if lines.is_empty() && self.not_put_back.is_empty() {
            lines.push("nothing to put back");
        }
        lines.iter().map(|line| format!("{line}\n")).collect()
    }
}

/// Makes the daemon at this socket, or at the configured one, give everything back; `None` if there is no daemon.
fn ask_daemon(socket: Option<PathBuf>) -> Result<Option<Restored>, Failure> {
    if let Some(named) = &socket {
        check_socket(named)?;
    }
    let socket = socket.unwrap_or_else(daemon::configured_socket);
    match control::ask(&socket, &Request::Restore)? {
        None => Ok(None),
        Some(Reply::Restored(restored)) => Ok(Some(restored)),
        Some(Reply::Error(error)) => Err(Failure::new(crate::exit::FAILED, error)),
        Some(_) => {
            let answer = "the daemon's answer does not say what was put back: restart the daemon";
            Err(Failure::new(crate::exit::FAILED, answer))
        }
    }
}

/// Returns whether a setting still holds that the daemon could not put back, by its `note`. This process tries the same after the
/// daemon: where it has put back a setting, or says why it could not, its own words count. `tried`: it found settings of ended
/// owners, and so tried what concerns no single namespace.
fn is_kept(note: &str, Cleared { done, failed }: &Cleared, tried: bool) -> bool {
    match namespace_in(note) {
        Some(place) => !done.iter().chain(failed).any(|line| namespace_in(line) == Some(place)),
        None => !tried,
    }
}

/// Returns the network namespace that a line names, at its end or before the reason of a failure.
fn namespace_in(line: &str) -> Option<&str> {
    let (before, named) = line.split_once("network namespace ")?;
    match before {
        "" | "not put back: " => named.split(": ").next(),
        _ => named.strip_suffix(')').filter(|_| before.ends_with('(')),
    }
}

/// Describes the connections that could not be given back; `None` if there are none.
fn kept(connections: u64) -> Option<String> {
    let (verb, it) = if connections == 1 { ("keeps", "it") } else { ("keep", "them") };
    let kept = counted(connections, "connection");
    let line = format!("{kept} {verb} what was set: no process holds {it}, or the kernel refuses");
    (connections > 0).then_some(line)
}

/// Puts the list of allowed congestion controls back if a killed laboratory has left it widened.
fn clear_laboratory(cleared: &mut Cleared) {
    match congestion::restore_after_crash() {
        Ok(None) => {}
        Ok(Some(list)) => cleared.done.push(format!("{ALLOWED} = {}", list.trim())),
        Err(error) => cleared.failed.push(format!("{ALLOWED}: {error}")),
    }
}

/// Fails if a named socket does not exist or is no socket. If it exists, a daemon listens there, or did until it was
/// killed.
fn check_socket(path: &Path) -> Result<(), Failure> {
    let error = match fs::metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => "it is no socket".to_owned(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => error.to_string(),
        // Asking the daemon reports any other error.
        _ => return Ok(()),
    };
    let advice = "without --socket, what killed daemons have left is put back";
    Err(Failure::new(
        crate::exit::FAILED,
        format!("there is no daemon at {}: {error}; {advice}", path.display()),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_setting_that_the_daemon_could_not_put_back_is_told_unless_it_was_put_back_since() {
        let note = "not put back: network namespace blue: cannot write: Read-only file system (os error 30)";
        let nothing = Cleared::default();
        let done = |namespace: &str| {
            let line = format!("net.ipv4.tcp_rmem = 4096 131072 6291456 (network namespace {namespace})");
            Cleared { done: vec![line], ..Cleared::default() }
        };
        let refused = vec!["network namespace blue: cannot write: Input/output error".to_owned()];
        assert!(is_kept(note, &nothing, true) && is_kept(note, &done("red"), true));
        assert!(!is_kept(note, &done("blue"), true));
        assert!(!is_kept(note, &Cleared { failed: refused, ..Cleared::default() }, true));
        let anywhere = "not put back: not every network namespace could be opened";
        assert!(is_kept(anywhere, &done("blue"), false) && !is_kept(anywhere, &nothing, true));
    }

    #[test]
    fn the_lines_tell_what_was_put_back_or_that_there_was_nothing() {
        let line = || vec!["net.ipv4.tcp_rmem = 4096 131072 6291456 (network namespace blue)".to_owned()];
        assert_eq!(Report::default().to_text(), "nothing to put back\n");
        assert_eq!(Report { not_put_back: line(), ..Report::default() }.to_text(), "");
        let report = Report { connections: Some(1), put_back: line(), ..Report::default() };
        assert_eq!(report.to_text(), format!("1 connection given back to the kernel\n{}\n", line()[0]));
        assert_eq!(
            serde_json::to_value(&report).unwrap(),
            serde_json::json!({ "connections": 1, "put_back": line(), "not_put_back": [] })
        );
    }

    #[test]
    fn connections_that_keep_what_was_set_are_counted() {
        assert_eq!(kept(0), None);
        let [one, two] = [1, 2].map(|count| kept(count).unwrap());
        assert_eq!(one, "1 connection keeps what was set: no process holds it, or the kernel refuses");
        assert_eq!(two, "2 connections keep what was set: no process holds them, or the kernel refuses");
    }
}
