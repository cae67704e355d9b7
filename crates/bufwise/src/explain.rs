//! `bufwise explain`: watches one connection for a second, and explains it in sentences.
//!
//! [`bufwise_host::judge`] finds the cause of its limit. The daemon knows what set its buffers. Without a daemon the locks of
//! the socket's buffers show it, if the process that holds the socket can be inspected. If both ends are on this host, each
//! end shows what the other cannot see.

mod by_run;
mod ends;
mod explanation;
mod sentences;
mod watch;

use std::collections::HashMap;
use std::fmt::Write;
use std::path::PathBuf;

use bufwise_host::address::Pattern;
use bufwise_host::budget::Budget;
use bufwise_host::control::{self, Reply, Request};
use bufwise_host::netns;
use bufwise_host::tcp_memory::TcpMemory;
use bufwise_host::view::{ConnectionView, Listing};
use bufwise_units::counted;
use clap::Args;
use serde::Serialize;

use crate::exit::{FAILED, Failure, Outcome};
use crate::figures::size;
use crate::ls::{AskedDaemon, LINE, budget};
use crate::output;
use ends::Ends;
pub(crate) use explanation::Explanation;
use watch::Watched;

/// Most connections in the text; JSON has them all.
const SHOWN: usize = 8;

/// Watch a connection, and say what limits it, what to do, and whether fit would help
///
/// It watches all connections of the address for a second, and for up to five seconds where data comes in bursts. It changes
/// nothing. Without root it sees only this network namespace, and does not always know what set the buffers.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise explain 198.18.0.2:443")]
pub(crate) struct ExplainArgs {
    /// Either end: an address with its port ([fd00::2]:443), only an address, or only a port
    #[expect(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    #[arg(value_name = "ADDR:PORT")]
    address: Pattern,
    /// Write what was found as JSON, into this file; - or none for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    json: Option<PathBuf>,
    #[command(flatten)]
    asked: AskedDaemon,
}

/// The JSON form of the report.
#[derive(Debug, Serialize)]
pub(crate) struct Report {
    address: Pattern,
    watched_s: f64,
    connections: Vec<Explanation>,
    /// The daemon's memory; `null` without a daemon.
    budget: Option<Budget>,
    notes: Vec<String>,
}

impl ExplainArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        let report = report(self.address, &self.asked)?;
        if report.connections.is_empty() {
            return Err(report.without_connections());
        }
        let home = netns::own()?.label();
        output::both(self.json.as_deref(), &report, || report.to_text(&home))?;
        Ok(0)
    }
}

/// Watches the connections with that address, and asks the daemon, if any, what it knows of them. Without such a connection the
/// report has none, and no daemon's memory.
///
/// # Errors
/// The kernel lists no sockets, or no daemon listens at the socket that was named.
pub(crate) fn report(address: Pattern, asked: &AskedDaemon) -> Result<Report, Failure> {
    let watch::Watch { seconds, connections, mut notes, short } = watch::watch(address)?;
    let known = known_to_daemon(address, asked)?;
    if connections.is_empty() {
        return Ok(Report { address, watched_s: seconds, connections: Vec::new(), budget: None, notes });
    }
    let known = known.unwrap_or_else(|why| {
        notes.push(format!("without the daemon's figures: {why}"));
        Listing::default()
    });
    let Listing { connections: known, budget, .. } = known;
    if let Some(memory) = short {
        notes.push(shortage(memory));
    }
    let ends = Ends::of(&connections);
    let known: HashMap<u64, &ConnectionView> = known.iter().map(|one| (one.cookie, one)).collect();
    let explained = |watched: Watched| {
        let known = known.get(&watched.view.cookie).copied();
        let other = ends.other(&watched.view).cloned();
        Explanation::new(watched, known, other, short.is_some())
    };
    let mut connections: Vec<Explanation> = connections.into_iter().map(explained).collect();
    connections.sort_by_key(|one| std::cmp::Reverse((one.view.goodput_bps, one.view.bytes())));
    Ok(Report { address, watched_s: seconds, connections, budget, notes })
}

/// Says how much memory the kernel's TCP held, and at which amount it stops shrinking buffers.
fn shortage(memory: TcpMemory) -> String {
    let (held, low) = (size(memory.held.0), size(memory.low.0));
    format!(
        "the kernel's TCP held {held}, and shrinks buffers until it holds less than {low} (net.ipv4.tcp_mem)"
    )
}

/// Returns the connections as the daemon knows them, with its memory; nothing without a daemon. The inner error is the
/// daemon's reason.
///
/// # Errors
/// No daemon listens at the socket that was named.
fn known_to_daemon(address: Pattern, asked: &AskedDaemon) -> Result<Result<Listing, String>, Failure> {
    let Some(socket) = asked.daemon() else { return Ok(Ok(Listing::default())) };
    Ok(match control::ask(&socket, &Request::Explain { address }) {
        Ok(None) if asked.socket.is_some() => {
            let message = format!("there is no daemon at {}", socket.display());
            return Err(Failure::new(FAILED, message));
        }
        Ok(None) => Ok(Listing::default()),
        Ok(Some(Reply::List(listing))) => Ok(*listing),
        Ok(Some(Reply::Error(error))) => Err(error),
        Ok(Some(_)) => Err("its answer is not a list".to_owned()),
        Err(error) => Err(bufwise_host::in_words(&error)),
    })
}

impl Report {
    /// Returns the failure of a command that has found no connection.
    fn without_connections(&self) -> Failure {
        let where_else = if self.notes.is_empty() { "; bufwise ls --all lists all" } else { "; " };
        let (address, notes) = (self.address, self.notes.join("; "));
        Failure::new(FAILED, format!("no connection from or to {address}{where_else}{notes}"))
    }

    /// Returns the text on the connection with that cookie, for a reader in the network namespace `home`; `None`: it
    /// was not watched, because it has ended.
    pub(crate) fn text_of(&self, cookie: u64, home: &str) -> Option<String> {
        let one = self.connections.iter().find(|one| one.view.cookie == cookie)?;
        Some(one.to_text(home) + &self.memory() + &self.notes())
    }

    /// Returns the daemon's memory, if the daemon sizes one of the connections, with the parts of their processes and
    /// cgroups.
    fn memory(&self) -> String {
        let sized: Vec<_> =
            self.connections.iter().map(|one| &one.view).filter(|view| view.policy.is_some()).collect();
        let Some(budget) = self.budget.as_ref().filter(|_| !sized.is_empty()) else { return String::new() };
        let process = |view: &&ConnectionView| Some(format!("{}/{}", view.process.as_ref()?, view.pid?));
        let processes: Vec<String> = sized.iter().filter_map(process).collect();
        let cgroups: Vec<String> = sized.iter().filter_map(|view| view.cgroup.clone()).collect();
        let lines = budget::lines(budget, LINE).into_iter();
        let lines: Vec<String> = lines
            .chain(budget::parts_of(budget, &processes, &cgroups))
            .map(|line| format!("  {line}\n"))
            .collect();
        let connections = counted(budget.connections, "connection");
        format!("The daemon's memory for {connections}:\n{}", lines.concat())
    }

    /// Returns the notes, one per line.
    fn notes(&self) -> String {
        self.notes.iter().map(|note| format!("note: {note}\n")).collect()
    }

    /// Returns the text for a reader in the network namespace `home`.
    fn to_text(&self, home: &str) -> String {
        let mut text = String::new();
        for one in self.connections.iter().take(SHOWN) {
            text += &one.to_text(home);
        }
        // Writing into a string cannot fail.
        if let Some(more @ 1..) = self.connections.len().checked_sub(SHOWN) {
            let _infallible = writeln!(text, "{more} more with less traffic: --json has all");
        }
        text + &self.memory() + &self.notes()
    }
}

#[cfg(test)]
mod tests {
    use bufwise_units::Bytes;

    use super::*;

    #[test]
    fn a_shortage_is_told_with_the_amount_at_which_it_ends() {
        // Pressure began above the larger bound and lasts.
        let memory =
            TcpMemory { held: Bytes(14_000_000), low: Bytes(12_000_000), pressure: Bytes(16_000_000) };
        let told = "the kernel's TCP held 14.00 MB, and shrinks buffers until it holds less than 12.00 MB";
        assert!(shortage(memory).starts_with(told), "{}", shortage(memory));
    }
}
