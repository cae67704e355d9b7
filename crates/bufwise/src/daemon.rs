//! `bufwise daemon`: the command line of [`bufwise_host::daemon`].

use std::path::PathBuf;

use bufwise_host::control::server::Server;
use bufwise_host::daemon::{self, Options, Orders};
use bufwise_host::log::{self, Format};
use bufwise_host::metrics::{Address, Endpoint};
use bufwise_host::signals::Signals;
use bufwise_host::tuner::choice::Choice;
use bufwise_host::tuner::sizes::{AtOnce, Budget, MaxConnections, SmallDocuments};
use bufwise_host::{Error, in_words};
use clap::Args;

use crate::check::effective_capabilities;
use crate::exit::{Failure, Outcome};
use crate::metrics::{Listener, Pusher};

/// Bits of the capability sets in `/proc/PID/status` (capabilities(7)).
const CAPABILITIES: [(u32, &str); 4] =
    [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN"), (38, "CAP_PERFMON"), (39, "CAP_BPF")];

/// Tune the connections of the whole host, or of chosen cgroups, until SIGTERM or SIGINT; then everything is put back.
///
/// Connections that exist are adopted, in every network namespace. Flags win over the configuration file; SIGHUP reads
/// it again. Groups in the file give the connections of some cgroups policies and memory of their own. Log lines go to
/// standard error.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise daemon --policy abt,sobas --memory 512MiB")]
pub(crate) struct DaemonArgs {
    /// Configuration; default /etc/bufwise/bufwise.toml, which need not exist
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Send side: kernel, fixed:SIZE, eq, abt, sabt, fit; receive side: kernel, fixed:SIZE, drs, sobas, fit; one of each
    /// as abt,sobas. A policy of both sides alone is for both; of two such names the first is the sender's: fit,kernel is
    /// fit at the sender alone, kernel,fit at the receiver alone; fit,sobas and abt,fit pair it with others. kernel alone
    /// only observes; auto is abt,sobas, for it costs a short connection least
    ///
    /// Which suits whom: auto keeps many connections within the memory and each as fast as its path; fit, for CUBIC and Reno
    /// over paths of 2 ms and more, takes away the queue that a connection fills and the drops at its start; sabt suits
    /// servers of many documents of all sizes; eq is for those who want equal shares, fixed for comparing, kernel for
    /// looking only. abt:published and sabt:published are their papers' rules as written, for comparing.
    #[arg(long, value_name = "P[,P]")]
    policy: Option<Choice>,
    /// Memory that the send queues may hold together, as 64MiB (at least 64KiB); without it half of what the kernel gives
    /// TCP
    #[arg(long, value_name = "SIZE")]
    memory: Option<Budget>,
    /// Memory that the windows of all receivers may fill together; without it half of what the kernel gives TCP. What a program
    /// leaves unread may fill its buffer besides, 1 MiB at least
    #[arg(long, value_name = "SIZE")]
    receive_memory: Option<Budget>,
    /// Documents up to this size are sent in one round trip (at most 64 segments) and take no part in the shares;
    /// without it 8 KB under sabt, and none otherwise; 0: none
    #[arg(long, value_name = "SIZE")]
    small_documents: Option<SmallDocuments>,
    /// What a sender fills at once, as 4KiB: bounds the network devices of every namespace meanwhile, for everybody's
    /// connections, so that a small --memory holds many. auto, the default: a sixth of a connection's equal share of
    /// --memory, 4 KiB at least, but with --cgroup never in the host's first namespace, whose devices others share; device: as much as
    /// the devices take, mostly 64 KiB
    #[arg(long, value_name = "SIZE")]
    gso_max_size: Option<AtOnce>,
    /// Connections that are tuned at a time, up to 1000000; those beyond stay the kernel's, and the log says so. Each takes
    /// about 2.4 KB of the kernel's memory while it is open; default 65536
    #[arg(long, value_name = "N")]
    max_connections: Option<MaxConnections>,
    /// Tune the connections of this cgroup (and of those below it) alone, as /system.slice; can be repeated
    #[arg(long = "cgroup", value_name = "PATH")]
    cgroups: Vec<PathBuf>,
    /// Size buffers that programs have set themselves, too
    #[arg(long = "override")]
    take_over: bool,
    /// Decide and log, and change nothing
    #[arg(long)]
    dry_run: bool,
    /// Where ls, explain, metrics, history and restore ask; default /run/bufwise/control
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Form of the log's lines: text, or json (an object a line: time, level, kind, message); default text
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
    /// Serve metrics for Prometheus (GET /metrics) at unix:PATH (mode 0660) or ADDRESS:PORT; default nowhere
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Address>,
    /// Send the same metrics every 15 s to this receiver of OTLP over HTTP, mostly an OpenTelemetry Collector on this host, as
    /// http://127.0.0.1:4318; default to nobody
    #[arg(long, value_name = "URL")]
    otlp: Option<Endpoint>,
    /// Keep the history in this file, too, so that it outlives the daemon (mode 0600, 64 MiB at most); default in memory
    /// alone
    #[arg(long, value_name = "FILE")]
    history: Option<PathBuf>,
}

impl DaemonArgs {
    pub(crate) fn run(self) -> Outcome {
        let orders = Orders {
            file: self.config,
            flags: Options {
                policy: self.policy,
                memory: self.memory,
                receive_memory: self.receive_memory,
                small_documents: self.small_documents,
                gso_max_size: self.gso_max_size,
                max_connections: self.max_connections,
                cgroups: (!self.cgroups.is_empty()).then_some(self.cgroups),
                take_over: self.take_over.then_some(true),
                raise_caps: None,
                socket: self.socket,
                log_format: self.log_format,
                metrics: self.metrics,
                otlp: self.otlp,
                history: self.history,
                groups: Vec::new(),
            },
            dry_run: self.dry_run,
        };
        // From here on, before any change and before the first thread, a signal restores everything.
        let signals = Signals::watch()?;
        let task = orders.task().map_err(wrong_task)?;
        check_privilege()?;
        log::start(task.log_format());
        let server = Server::bind(task.socket())?;
        // Dropping the server removes the socket, however the daemon ends.
        let _metrics = task.metrics().map(|place| Listener::start(place, server.asker())).transpose()?;
        let _otlp = task.otlp().map(|to| Pusher::start(to.clone(), server.asker())).transpose()?;
        daemon::run(&orders, task, &signals, &server)?;
        Ok(0)
    }
}

/// Turns an error into a failure: a wrong configuration, or a cgroup in it that does not exist, is wrong usage.
fn wrong_task(error: Error) -> Failure {
    match error {
        Error::Config(_) | Error::Cgroup(_) => Failure::usage(in_words(&error)),
        other => other.into(),
    }
}

/// Fails early, with an explanation, if privileges are missing that the kernel would require later.
fn check_privilege() -> Result<(), Failure> {
    let Some(held) = effective_capabilities() else { return Ok(()) };
    let missing: Vec<&str> =
        CAPABILITIES.iter().filter(|(bit, _)| held & 1 << bit == 0).map(|(_, name)| *name).collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(crate::exit::FAILED, format!("the daemon needs root, or {}", missing.join(", "))))
}
