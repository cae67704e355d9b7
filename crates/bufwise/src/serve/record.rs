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

use crate::output::{self, NewFile};
use crate::transfer::{Shares, shares};

/// Destination of the records.
pub(super) struct Records {
    path: PathBuf,
    to: Mutex<Lines<Box<dyn Write + Send>>>,
}

/// Writes lines, none of which begins on another that was written in part, as to a full disk.
struct Lines<W> {
    to: W,
    /// Only a part of the last line was written.
    is_cut: bool,
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
    /// Appends to `path`, or to standard output for `-`. The file, if it is new, goes with its [`NewFile`].
    pub(super) fn open(path: &Path) -> Result<(Self, NewFile)> {
        let mut new = NewFile::default();
        let to: Box<dyn Write + Send> = if output::is_stdout(path) {
            Box::new(io::stdout())
        } else {
            new = NewFile::at(path);
            let file = OpenOptions::new().append(true).create(true).open(path);
            Box::new(file.with_context(|| format!("cannot write {}", path.display()))?)
        };
        Ok((Self { path: path.to_owned(), to: Mutex::new(Lines { to, is_cut: false }) }, new))
    }

    pub(super) fn write(&self, transfer: &Transfer) -> Result<()> {
        let mut line = serde_json::to_string(&record(transfer, SystemTime::now()))
            .context("cannot turn the report into JSON")?;
        line.push('\n');
        // The writer is valid also after a panic elsewhere: each line is one call.
        let mut to = self.to.lock().unwrap_or_else(PoisonError::into_inner);
        to.add(line.as_bytes()).with_context(|| format!("cannot write {}", self.path.display()))
    }
}

impl<W: Write> Lines<W> {
    fn add(&mut self, line: &[u8]) -> io::Result<()> {
        if self.is_cut {
            self.to.write_all(b"\n")?;
            self.is_cut = false;
        }
        let mut rest = line;
        while !rest.is_empty() {
            match self.to.write(rest) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(len) => {
                    rest = &rest[len..];
                    self.is_cut = !rest.is_empty();
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        self.to.flush()
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

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with room for so many bytes.
    struct Disk {
        bytes: Vec<u8>,
        room: usize,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let len = bytes.len().min(self.room);
            if len == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= len;
            self.bytes.extend(&bytes[..len]);
            Ok(len)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_new_file_is_removed_unless_it_is_kept_and_an_old_one_stays() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("records");
        let open = || Records::open(&path).unwrap().1;
        drop(open());
        assert!(!path.exists());
        open().keep();
        drop(open());
        assert!(path.exists());
    }

    #[test]
    fn a_record_after_one_that_the_disk_took_in_part_has_a_line_of_its_own() {
        let mut lines = Lines { to: Disk { bytes: Vec::new(), room: 12 }, is_cut: false };
        lines.add(b"{\"one\":1}\n").unwrap();
        assert!(lines.add(b"{\"two\":2}\n").is_err() && lines.add(b"{\"lost\":0}\n").is_err());
        lines.to.room = 100;
        lines.add(b"{\"three\":3}\n").unwrap();
        lines.add(b"{\"four\":4}\n").unwrap();
        let written = String::from_utf8(lines.to.bytes).unwrap();
        assert_eq!(written, "{\"one\":1}\n{\"\n{\"three\":3}\n{\"four\":4}\n");
    }
}
