//! `bufwise metrics`, and the metrics that the daemon serves with `--metrics` or sends with `--otlp`.
//!
//! - [`families`]: the values by name; [`text`]: as text for Prometheus; [`otlp`]: as OTLP for OpenTelemetry.
//! - [`serve`]: answers over HTTP, on one thread; [`push`]: sends, on another thread, and reads the receiver's [`answer`].

mod answer;
mod families;
mod otlp;
mod push;
mod serve;
mod text;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Result, bail};
use bufwise_host::control::{self, Reply, Request};
use bufwise_host::daemon;
use bufwise_host::metrics::Snapshot;
use clap::Args;

use crate::exit::Outcome;
use crate::output;
pub(crate) use push::Pusher;
pub(crate) use serve::Listener;
use text::Format;

/// Least time between two snapshots, over which causes are counted. Requests within this time get the earlier snapshot.
const BETWEEN: Duration = Duration::from_secs(1);

/// Print the daemon's metrics once
///
/// The metrics are connections by what limits them, memory, decisions, errors and distributions. The command takes a second if nothing
/// has asked in the last minutes. The daemon serves the same metrics with --metrics, and sends them to a receiver of OpenTelemetry with
/// --otlp. Only root, or the daemon's user, may ask. Both formats are for programs, so there is no --json.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise metrics --format prometheus >bufwise.prom")]
pub(crate) struct MetricsArgs {
    /// OpenMetrics, or the older text format of Prometheus for the textfile collector and promtool
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = Format::Openmetrics)]
    format: Format,
    /// Control socket of the daemon; default the one that /etc/bufwise/bufwise.toml names, or /run/bufwise/control
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

impl MetricsArgs {
    pub(crate) fn run(self) -> Outcome {
        let socket = self.socket.unwrap_or_else(daemon::configured_socket);
        let snapshot = settled(|| match control::ask(&socket, &Request::Metrics)? {
            Some(reply) => snapshot(reply),
            None => bail!("there is no daemon at {}: bufwise daemon starts one", socket.display()),
        })?;
        output::line(&text::render(&snapshot, self.format))?;
        Ok(0)
    }
}

fn snapshot(reply: Reply) -> Result<Snapshot> {
    match reply {
        Reply::Metrics(snapshot) => Ok(*snapshot),
        Reply::Error(error) => bail!("the daemon has no metrics now: {error}"),
        _ => bail!("the daemon's answer has no metrics"),
    }
}

/// Returns a snapshot that has causes: the second one, if there was none before.
fn settled(ask: impl Fn() -> Result<Snapshot>) -> Result<Snapshot> {
    let first = ask()?;
    if first.interval_s.is_some() {
        return Ok(first);
    }
    thread::sleep(BETWEEN);
    ask()
}
