//! `bufwise probe`: measures what the path to a host carries, and the buffers that it needs.
//!
//! [`own`] measures against a server of `probe --serve` ([`serve`]), [`port`] against any TCP port, as far as that is
//! possible; [`report`] writes the results.

mod buffers;
mod own;
mod port;
mod report;
mod serve;
mod target;

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bufwise_mover::probe::PathClient;
use bufwise_mover::wake;
use bufwise_units::Micros;
use clap::Args;
use nix::poll::PollFlags;

use crate::exit::{Failure, Outcome};
use crate::output;
use own::Depth;
use report::Report;
use target::Target;

/// Default port of the server.
const PORT: u16 = 2_122;
/// Shortest interval of measurements with the available bandwidth, each of which may take ten seconds.
const LEAST_EVERY: Duration = Duration::from_secs(20);
/// These measurements occupy at most one part in this many of the capacity of either direction, on average.
const ONE_IN: u32 = 20;
const TOO_OFTEN: &str =
    "Available bandwidth is not measured at intervals below 20s: its trains may take seven seconds.";
const TOO_MUCH: &str =
    "Available bandwidth is not measured each time: that would take more than 5% of the path.";

/// Measure what the path to a host carries, and say which buffers it needs
///
/// Against bufwise probe --serve it takes about ten seconds, and measures capacity, available bandwidth, round-trip time and loss in
/// both directions, by packet trains over UDP. Against any other TCP port it measures round trips by connecting, and the capacity
/// towards this host as far as the server's first answer shows it; loss and available bandwidth stay unknown. The report says how
/// many bytes were sent.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bufwise probe --serve 192.0.2.1
  bufwise probe 192.0.2.1
  bufwise probe www.example.org:443
  bufwise probe 192.0.2.1 --every 20s --for 600s --json

The server listens by TCP and UDP on one port (2122), at the address that is named, else at 127.0.0.1. It hands out a token by \
TCP, and answers by UDP only packets that carry it; one client at a time, for 30 s, with at most 256 MiB of trains.

With --every 20s or more, a measurement takes at most ten seconds, and includes the available bandwidth unless that would take \
more than 5% of the capacity of a direction on average. At shorter intervals it is left out. Each measurement of the capacity takes \
80 to 360 KB in each direction.

Capacity and available bandwidth count IP packets. A range is given where the trains disagree.")]
pub(crate) struct ProbeArgs {
    /// A host or an address; without a port: a bufwise server at port 2122, or else port 443
    #[arg(value_name = "HOST[:PORT]", required_unless_present = "serve", conflicts_with = "serve")]
    target: Option<Target>,
    /// Answer others that probe, until SIGTERM or SIGINT, at this address, with or without a port
    #[arg(long, value_name = "ADDR", num_args = 0..=1, default_missing_value = "127.0.0.1", value_parser = target::listen)]
    serve: Option<SocketAddr>,
    /// Write the report as JSON, into this file; - or none for standard output; with --every a line each time
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-", conflicts_with = "serve")]
    json: Option<PathBuf>,
    /// Measure at this interval, 5s to 3600s, a line each time, until Ctrl-C; from 20s on with the available bandwidth
    #[arg(long, value_name = "TIME", value_parser = every, conflicts_with = "serve")]
    every: Option<Micros>,
    /// With --every: end after this time
    #[arg(long = "for", value_name = "TIME", requires = "every")]
    duration: Option<Micros>,
}

impl ProbeArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(address) = self.serve {
            return serve::run(address);
        }
        // clap's `required_unless_present` ensures that there is a target.
        let Some(target) = self.target else { return Err(Failure::usage("name a host")) };
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        if let Some(every) = self.every {
            return repeat(&target, self.json, every, self.duration);
        }
        let report = measure(&target, Depth::Full)?;
        output::both(self.json.as_deref(), &report, || report.to_text())?;
        Ok(0)
    }
}

/// Measures the path to the target once.
fn measure(target: &Target, depth: Depth) -> Result<Report> {
    let began = Instant::now();
    let reached = target.connect()?;
    let (name, connected) = (reached.name, reached.took);
    // The greeting comes at most a round trip after the connection.
    let patience = connected * 2 + Duration::from_millis(300);
    let begun = match PathClient::begin(reached.control, patience) {
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            anyhow::bail!("{name} is busy: {error}; try again in half a minute")
        }
        begun => begun.with_context(|| format!("cannot probe {name}"))?,
    };
    let mut report = match begun {
        Ok(client) => own::measure(client, depth).with_context(|| format!("cannot probe {name}"))?,
        Err(control) => port::measure(target, control, depth)?,
    };
    report.target = name;
    report.seconds = began.elapsed().as_secs_f64();
    report.advise();
    Ok(report)
}

/// Decides which of the repeated measurements include the available bandwidth.
#[derive(Debug)]
struct Rounds {
    every: Duration,
    /// Measurements that begin earlier leave it out.
    due: Instant,
}

impl Rounds {
    /// Returns what a measurement that begins `now` includes, and why it leaves out the available bandwidth, if it does.
    fn depth(&self, now: Instant) -> (Depth, Option<&'static str>) {
        if self.every < LEAST_EVERY {
            (Depth::Short, Some(TOO_OFTEN))
        } else if now < self.due {
            (Depth::Short, Some(TOO_MUCH))
        } else {
            (Depth::Repeated, None)
        }
    }

    /// Notes that a measurement that included it began then, and occupied the path for `load`.
    fn included(&mut self, began: Instant, load: Duration) {
        self.due = began + load * ONE_IN;
    }
}

/// Measures again and again, and writes one line each time.
fn repeat(target: &Target, json: Option<PathBuf>, every: Micros, duration: Option<Micros>) -> Outcome {
    let start = Instant::now();
    let every = Duration::from_micros(every.0);
    let end = duration.map(|duration| start + Duration::from_micros(duration.0));
    let mut lines = report::Lines::new(json)?;
    let mut rounds = Rounds { every, due: start };
    let mut next = start;
    loop {
        let began = Instant::now();
        let (depth, left_out) = rounds.depth(began);
        let round = measure(target, depth);
        // If a round took longer than the interval, the missed rounds are skipped.
        while next <= Instant::now() {
            next += every;
        }
        let is_last = end.is_some_and(|end| next >= end);
        match round {
            Ok(report) => {
                if depth == Depth::Repeated {
                    rounds.included(began, report.load());
                }
                lines.report(report, left_out)?;
            }
            Err(error) if is_last => return Err(error.into()),
            Err(error) => output::note(&format!("bufwise: {}\n", bufwise_host::in_words(error.as_ref()))),
        }
        // Standard output has an error once the reader of the lines has gone, as `head` does.
        if is_last || wake::until([(io::stdout().as_fd(), PollFlags::empty())], next)? == [true] {
            return Ok(0);
        }
    }
}

fn every(text: &str) -> Result<Micros, String> {
    let time: Micros = text.parse().map_err(|error: bufwise_units::ParseError| error.to_string())?;
    let sane = Micros::from_secs(5)..=Micros::from_secs(3_600);
    if sane.contains(&time) { Ok(time) } else { Err("an interval is 5s to 3600s".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number of the measurements in an hour that include the available bandwidth, each of which has this load.
    fn included(every: u64, load: Duration) -> u32 {
        let start = Instant::now();
        let mut rounds = Rounds { every: Duration::from_secs(every), due: start };
        let mut count = 0;
        for at in (0..3_600).step_by(every as usize).map(|seconds| start + Duration::from_secs(seconds)) {
            if rounds.depth(at).0 == Depth::Repeated {
                rounds.included(at, load);
                count += 1;
            }
        }
        count
    }

    #[test]
    fn available_bandwidth_takes_at_most_a_twentieth_of_the_path() {
        // The trains of 10 and of 1 Mbit/s; 64 s are 20 times the latter, and 80 s the next multiple of the interval.
        assert_eq!(included(20, Duration::from_millis(900)), 180);
        assert_eq!(included(20, Duration::from_millis(3_200)), 3_600 / 80);
        assert_eq!(included(300, Duration::from_millis(3_200)), 12);
    }

    #[test]
    fn short_intervals_leave_it_out_and_say_so() {
        assert_eq!(included(19, Duration::ZERO), 0);
        let start = Instant::now();
        let mut rounds = Rounds { every: Duration::from_secs(5), due: start };
        assert_eq!(rounds.depth(start), (Depth::Short, Some(TOO_OFTEN)));
        rounds.every = LEAST_EVERY;
        assert_eq!(rounds.depth(start), (Depth::Repeated, None));
        rounds.included(start, Duration::from_millis(1));
        assert_eq!(rounds.depth(start), (Depth::Short, Some(TOO_MUCH)));
    }
}
