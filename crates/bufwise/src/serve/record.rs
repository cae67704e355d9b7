//! Writes one line of JSON per transfer, with stable keys (bytes, seconds, bit/s).

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use bufwise_ftp::server::Transfer;
use bufwise_mover::Report;
use bufwise_units::Micros;
use serde::Serialize;

use crate::output;
use crate::transfer::{Shares, shares};

/// Destination of the lines.
pub(super) struct Records {
    path: PathBuf,
    to: Mutex<Box<dyn Write + Send>>,
}

#[derive(Debug, Serialize)]
struct Record<'a> {
    /// End of the transfer, in seconds since 1970.
    time_s: f64,
    peer: IpAddr,
    user: &'a str,
    direction: &'static str,
    path: &'a str,
    offset_bytes: u64,
    bytes: u64,
    seconds: f64,
    complete: bool,
    failure: Option<&'a str>,
    tls: bool,
    policy: Option<String>,
    wish_bytes: Option<u64>,
    /// Values of the data connection, if it came to its end.
    #[serde(flatten)]
    connection: Option<Connection>,
}

/// Values of a data connection; the keys are those of `get` and `put`.
#[derive(Debug, Serialize)]
struct Connection {
    rate_bps: u64,
    rtt_s: Option<f64>,
    min_rtt_s: Option<f64>,
    window_peak_bytes: u64,
    buffer_peak_bytes: u64,
    held_peak_bytes: u64,
    retransmissions: u64,
    out_of_order: u64,
    limited_by: Option<Shares>,
}

impl Records {
    /// Appends to `path`, or to standard output for `-`.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let to: Box<dyn Write + Send> = if output::is_stdout(path) {
            Box::new(io::stdout())
        } else {
            let file = OpenOptions::new().append(true).create(true).open(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        };
        Ok(Self { path: path.to_owned(), to: Mutex::new(to) })
    }

    pub(super) fn write(&self, transfer: &Transfer) -> Result<()> {
        let mut line = serde_json::to_string(&record(transfer, SystemTime::now()))
            .context("cannot turn the report into JSON")?;
        line.push('\n');
        // The writer is valid also after a panic elsewhere: each line is one call.
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        to.write_all(line.as_bytes())
            .and_then(|()| to.flush())
            .with_context(|| format!("cannot write {}", self.path.display()))
    }
}

fn record(transfer: &Transfer, now: SystemTime) -> Record<'_> {
    Record {
        time_s: now.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64(),
        peer: transfer.peer,
        user: &transfer.user,
        direction: transfer.direction.as_str(),
        path: &transfer.path,
        offset_bytes: transfer.offset,
        bytes: transfer.bytes,
        seconds: transfer.elapsed.as_secs_f64(),
        complete: transfer.failure.is_none(),
        failure: transfer.failure.as_deref(),
        tls: transfer.tls,
        policy: transfer.policy.map(|policy| policy.to_string()),
        wish_bytes: transfer.buffer_request.map(|size| size.0),
        connection: transfer.report.as_ref().map(connection),
    }
}

fn connection(report: &Report) -> Connection {
    Connection {
        rate_bps: report.goodput.bits_per_sec(),
        rtt_s: report.rtt.map(Micros::as_secs_f64),
        min_rtt_s: report.min_rtt.map(Micros::as_secs_f64),
        window_peak_bytes: report.largest_window.0,
        buffer_peak_bytes: report.largest_buffer.0,
        held_peak_bytes: report.most_held.0,
        retransmissions: report.retransmitted,
        out_of_order: report.out_of_order,
        limited_by: shares(&report.held),
    }
}
