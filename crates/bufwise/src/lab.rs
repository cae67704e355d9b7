//! `bufwise lab`: emulated paths and the real kernel.

mod bar;
mod bpftune;
mod budget;
mod experiments;
mod file;
mod report;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use bufwise_host::in_words;
use bufwise_lab::commands::{ClientOutput, CommandError, Programs};
use bufwise_lab::path::PathError;
use bufwise_lab::spec::{CrossSpec, DEFAULT_MTU, LossSpec, PathSpec};
use bufwise_link::{QueueSize, Trace};
use bufwise_units::{BitRate, Bytes, Nanos};
use clap::{Args, Subcommand};

use crate::exit::{Failure, Outcome};
use crate::output;

/// Longest trace file that is read, in bytes.
const MAX_TRACE_FILE: u64 = 16 << 20;

#[derive(Debug, Subcommand)]
pub(crate) enum LabCommand {
    Path(Box<PathArgs>),
    Check(CheckArgs),
    List(experiments::ListArgs),
    Show(file::ShowArgs),
    Run(experiments::RunArgs),
    Report(report::ReportArgs),
    /// Serve or fetch documents for an experiment
    #[command(hide = true)]
    Document(experiments::DocumentArgs),
    /// Apply bpftune's rule while a command runs, for an experiment
    #[command(hide = true)]
    Bpftune(bpftune::BpftuneArgs),
}

impl LabCommand {
    pub(crate) fn run(self) -> Outcome {
        match self {
            Self::Path(args) => args.run(),
            Self::Check(args) => args.run(),
            Self::List(args) => args.run(),
            Self::Show(args) => args.run(),
            Self::Run(args) => args.run(),
            Self::Report(args) => args.run(),
            Self::Document(args) => args.run(),
            Self::Bpftune(args) => args.run(),
        }
    }
}

/// Run a server and a client on two hosts joined by an emulated path
///
/// Host A (198.18.0.1, fd00:b::1) runs the client, host B (198.18.0.2, fd00:b::2) the server. Each direction has the given rate,
/// half of the RTT, and a queue of its own. Only --client is required.
///
/// The exit status is the client's. The hosts and the path are removed however the command ends.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise lab path --rate 100mbit --rtt 40ms --queue bdp/8 \
    --server 'iperf3 -s -1' --client 'iperf3 -c 198.18.0.2 -t 10 -J' --json run.json")]
pub(crate) struct PathArgs {
    /// Rate of the link, as 100mbit, 1gbit, 56kbit; default as fast as this machine goes
    #[arg(long)]
    rate: Option<BitRate>,
    /// Round-trip time of the idle path, as 40ms
    #[arg(long, default_value = "0ms")]
    rtt: Nanos,
    /// Buffer of the link: bytes (62500, 64KB), packets (50pkt), time (480ms), or bdp/8, 1bdp; default 1bdp
    #[arg(long)]
    queue: Option<QueueSize>,
    /// Mark packets that wait in the queue longer than this, as 5ms, if their sender supports ECN (tcp_ecn=1)
    #[arg(long, value_name = "TIME")]
    mark: Option<Nanos>,
    /// Random loss, each direction: 0.01 or 1%; bursts: gilbert:GOOD_TO_BAD,BAD_TO_GOOD[,LOSS_WHILE_BAD]
    #[expect(rustdoc::broken_intra_doc_links, reason = "the text of --help")]
    #[arg(long)]
    loss: Option<LossSpec>,
    /// Largest deviation of the delay, both ways, in each direction; packets stay in order
    #[arg(long, default_value = "0ms")]
    jitter: Nanos,
    /// Rate and one-way delay over time: lines of `SECONDS RATE [DELAY]`
    #[arg(long, value_name = "FILE")]
    trace: Option<PathBuf>,
    /// Unresponsive cross traffic from host B to host A: its rate, as 57mbit; in bursts, with mean times:
    /// 800mbit:ON,OFF or, from several sources, 800mbit:ON,OFF,SOURCES
    #[arg(long, value_name = "RATE")]
    cross: Option<CrossSpec>,
    /// Largest IP packet in bytes
    #[arg(long, default_value_t = DEFAULT_MTU)]
    mtu: u16,
    /// Maximum of tcp_rmem in both hosts, as 64MB
    #[arg(long)]
    rmem: Option<Bytes>,
    /// Maximum of tcp_wmem in both hosts, as 64MB
    #[arg(long)]
    wmem: Option<Bytes>,
    /// Default congestion control of both hosts, as cubic
    #[arg(long = "cc", value_name = "NAME")]
    congestion_control: Option<String>,
    /// Seed of all random parts of the path
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time between two samples of the connections
    #[arg(long, default_value = "50ms")]
    interval: Nanos,
    /// Time that the client may take before it is killed
    #[arg(long, default_value = "600s")]
    timeout: Nanos,
    /// Write the report into this file; - for standard output (the client's output then goes to standard error)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Shell command on host B; the client starts once a program listens there
    #[arg(long, value_name = "CMD")]
    server: Option<OsString>,
    /// Shell command on host A
    #[arg(long, value_name = "CMD")]
    client: OsString,
}

impl PathArgs {
    fn run(self) -> Outcome {
        let spec = self.spec()?;
        // Before anything is set up, so that an impossible path is reported as wrong usage.
        spec.directions().map_err(Failure::usage)?;
        if let Some(json) = &self.json {
            self.trace.iter().try_for_each(|trace| output::check_apart(json, trace))?;
            output::check_writable(json)?;
        }
        let output = match &self.json {
            Some(json) if output::is_stdout(json) => ClientOutput::Stderr,
            _ => ClientOutput::Stdout,
        };
        let programs = Programs {
            server: self.server,
            listeners: 1,
            client: self.client,
            elsewhere: Vec::new(),
            timeout: Duration::from_nanos(self.timeout.0),
            output,
        };
        let interval = Duration::from_nanos(self.interval.0);
        let report = bufwise_lab::path::run(&spec, &programs, interval).map_err(|error| failure(&error))?;
        // Before the file, whose disk may be full.
        output::note(&format!("{report}\n"));
        let status = u8::try_from(report.client_status).unwrap_or(crate::exit::FAILED);
        match self.json.map_or(Ok(()), |json| output::json(&json, &report)) {
            // A failure of the client is worth more than one of its report.
            Err(error) if status != 0 => Err(Failure::new(status, in_words(error.as_ref()))),
            written => written.map(|()| status).map_err(Into::into),
        }
    }

    fn spec(&self) -> Result<PathSpec, Failure> {
        Ok(PathSpec {
            rate: self.rate,
            rtt: self.rtt,
            queue: self.queue,
            mark: self.mark,
            loss: self.loss.map(|loss| loss.0).unwrap_or_default(),
            jitter: self.jitter,
            trace: self.trace.as_ref().map(read_trace).transpose()?,
            cross_b_to_a: self.cross.map(|cross| cross.0),
            mtu: self.mtu,
            rmem: self.rmem.map(|bytes| bytes.0),
            wmem: self.wmem.map(|bytes| bytes.0),
            congestion_control: self.congestion_control.clone(),
            seed: self.seed,
            ..PathSpec::default()
        })
    }
}

fn failure(error: &PathError) -> Failure {
    let more = match error {
        PathError::Command(CommandError::Timeout { .. }) => "; give it more time with --timeout",
        _ => "",
    };
    Failure::new(error.exit_status(), format!("{error}{more}"))
}

fn read_trace(path: &PathBuf) -> Result<Trace, Failure> {
    use std::io::Read;
    let mut text = String::new();
    std::fs::File::open(path)
        .and_then(|file| file.take(MAX_TRACE_FILE + 1).read_to_string(&mut text))
        .with_context(|| format!("cannot read trace {}", path.display()))?;
    if text.len() as u64 > MAX_TRACE_FILE {
        return Err(Failure::usage(format!("trace {}: larger than 16 MiB", path.display())));
    }
    text.parse().map_err(|error| Failure::usage(format!("trace {}: {error}", path.display())))
}

/// Measure how exactly this machine emulates paths, and print a table
///
/// It runs iperf3 and sends single packets over a grid of paths, and compares the measurements with the values that the paths
/// should have. Exit status: 0 if the emulator is exact enough, 1 if not.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// Fewer paths and shorter runs: about half a minute
    #[arg(long)]
    quick: bool,
    /// Write the figures into this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

impl CheckArgs {
    fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            output::check_writable(json)?;
        }
        let report = bufwise_lab::check::run(self.quick, |line| output::note(&format!("{line}\n")))
            .map_err(|error| Failure::new(error.exit_status(), error))?;
        output::both(self.json.as_deref(), &report, || format!("{report}\n"))?;
        Ok(u8::from(!report.passed))
    }
}
