//! `bufwise daemon`: the command line of [`bufwise_host::daemon`].

use std::path::PathBuf;

use bufwise_host::control::server::Server;
use bufwise_host::daemon::{self, Options, Orders, Task};
use bufwise_host::log::{self, Format};
use bufwise_host::metrics::{Address, Endpoint, Interval};
use bufwise_host::processes::effective_capabilities;
use bufwise_host::signals::Signals;
use bufwise_host::tuner::choice::Choice;
use bufwise_host::tuner::sizes::{AtOnce, Budget, MaxConnections, SmallDocuments};
use bufwise_host::{Error, in_words};
use clap::Args;

use crate::exit::{FAILED, Failure, Outcome};
use crate::metrics::{Listener, Pusher};

/// The capabilities without which the daemon cannot work, by their bits in `/proc/PID/status` (capabilities(7)). CAP_SYS_ADMIN
/// includes CAP_BPF and CAP_PERFMON, which were split from it in Linux 5.8.
const CAPABILITIES: [(u32, &str); 2] = [(12, "CAP_NET_ADMIN"), (21, "CAP_SYS_ADMIN")];

/// Tune the connections of the whole host, or of chosen cgroups, until told to stop
///
/// It tunes existing connections, too, in every network namespace. SIGTERM and SIGINT end the daemon, and everything is put back.
/// Flags override the configuration file; SIGHUP reads the file again. Groups in the file give some connections policies and
/// memory of their own, by cgroup, program, peer or port. Log lines go to standard error.
///
/// It needs root, or CAP_NET_ADMIN and CAP_SYS_ADMIN; for connections of other users also CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH.
#[derive(Debug, Args)]
#[command(after_help = "Example: bufwise daemon --policy abt,sobas --memory 512MiB")]
pub(crate) struct DaemonArgs {
    /// Configuration file; default /etc/bufwise/bufwise.toml, which need not exist
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Policy for each side of a connection, as abt,sobas. Send side: kernel, fixed:SIZE, eq, abt, sabt, fit; receive side:
    /// kernel, fixed:SIZE, drs, sobas, fit
    ///
    /// A single name that exists for both sides (kernel, fixed:SIZE, fit) applies to both; any other single name leaves the other
    /// side to the kernel. Of two names that exist for both sides the first is for the sender: fit,kernel is fit only at the
    /// sender, kernel,fit only at the receiver. auto, the default, is abt,sobas, which costs short connections least. kernel
    /// changes nothing and only observes.
    ///
    /// abt,sobas keeps many connections within the memory, and lets each use the rate of its path. fit fills no queue on the
    /// path, and avoids the drops of slow start. At a sender it acts only on CUBIC and Reno; at either end it acts only on paths
    /// with a round trip of 2 ms or more. Elsewhere it sizes buffers as abt and drs do. sabt suits servers of documents of all
    /// sizes. eq gives equal shares of the memory. fixed:SIZE, abt:published and sabt:published are for comparisons; the published
    /// ones are the rules of the papers, as far as the kernel allows.
    #[arg(long, value_name = "P[,P]")]
    policy: Option<Choice>,
    /// Memory that all send queues together may hold, as 64MiB (at least 64KiB); default half of the second number of tcp_mem
    #[arg(long, value_name = "SIZE")]
    memory: Option<Budget>,
    /// Memory that the windows and the unread data of all receivers together may take (at least 64KiB); default half of the
    /// second number of tcp_mem
    ///
    /// Programs that stop reading all at once may exceed it for a tenth of a second, until the next sample.
    #[arg(long, value_name = "SIZE")]
    receive_memory: Option<Budget>,
    /// Send documents up to this size in one round trip (at most 64 segments), and leave them out of the shares of the memory;
    /// 0 for no document; default 8 KB under sabt, 0 under the other policies
    #[arg(long, value_name = "SIZE")]
    small_documents: Option<SmallDocuments>,
    /// Largest buffer that a sender fills at once, such as 4KiB; or auto, the default; or device: as much as the network devices
    /// take
    ///
    /// The kernel takes written data in buffers of mostly 64 KiB, and fills each of them to its end, even beyond the limit of the
    /// send buffer. Smaller ones let a small --memory hold many connections; at high rates they cost processor time. While the
    /// daemon runs, the size is set at the network devices of every namespace (except the loopback), and affects the connections
    /// of all programs.
    ///
    /// auto does nothing unless --memory, or the configuration file, sets the memory. With --cgroup it does nothing in the host's
    /// first network namespace, because other programs use its devices. Elsewhere the size begins at 1/256 of the memory, and then
    /// follows 1/6 of a connection's equal share. It is at least 4 KiB; from 64 KiB on there is no bound.
    #[arg(long, value_name = "SIZE")]
    gso_max_size: Option<AtOnce>,
    /// Most connections that are tuned at a time, 1 to 1000000; default 65536. The kernel sizes any further ones, and the log says
    /// so. Each takes about 2.4 KB of the kernel's memory while it is open
    #[arg(long, value_name = "N")]
    max_connections: Option<MaxConnections>,
    /// Tune only the connections of this cgroup and of those below it, as /system.slice; can be repeated
    #[arg(long = "cgroup", value_name = "PATH")]
    cgroups: Vec<PathBuf>,
    /// Also size the buffers that programs have set themselves
    #[arg(long = "override")]
    take_over: bool,
    /// Only decide and log; change nothing
    #[arg(long)]
    dry_run: bool,
    /// Control socket, which ls, top, web, explain, history, metrics, check and restore use; default /run/bufwise/control
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Form of the log's lines: text, the default, or json (an object a line: time, level, kind, message)
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<Format>,
    /// Serve metrics for Prometheus (GET /metrics) at unix:PATH (mode 0660) or ADDRESS:PORT; default nowhere
    #[arg(long, value_name = "WHERE")]
    metrics: Option<Address>,
    /// Send the same metrics to this receiver of OTLP over HTTP, such as an OpenTelemetry Collector on this host at
    /// http://127.0.0.1:4318; default nowhere
    #[arg(long, value_name = "URL")]
    otlp: Option<Endpoint>,
    /// Time between two requests of --otlp, 1s to 3600s; default 15s
    #[arg(long, value_name = "TIME")]
    otlp_interval: Option<Interval>,
    /// Also keep the history in this file, so that it outlives the daemon (mode 0600, 64 MiB at most); default only in memory
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
                otlp_interval: self.otlp_interval,
                history: self.history,
                groups: Vec::new(),
            },
            dry_run: self.dry_run,
        };
        bufwise_socket::heap::limit_retained_memory();
        // From here on, before any change and before the first thread, a signal restores everything.
        let signals = Signals::watch()?;
        let task = orders.task().map_err(wrong_task)?;
        check_privilege()?;
        let format = task.log_format();
        log::start(format);
        match tune(&orders, task, &signals) {
            Ok(()) => Ok(0),
            // Programs that read such a log expect only objects.
            Err(failure) if format == Format::Json => {
                log::warn(failure);
                Ok(FAILED)
            }
            Err(failure) => Err(failure),
        }
    }
}

/// Tunes until a signal, or an error, ends the daemon.
fn tune(orders: &Orders, task: Task, signals: &Signals) -> Result<(), Failure> {
    let server = Server::bind(task.socket())?;
    // Dropping the server removes the socket, however the daemon ends.
    let _metrics = task.metrics().map(|place| Listener::start(place, server.asker())).transpose()?;
    let push = |to: &Endpoint| Pusher::start(to.clone(), task.otlp_interval().into(), server.asker());
    let _otlp = task.otlp().map(push).transpose()?;
    daemon::run(orders, task, signals, &server)?;
    Ok(())
}

/// Turns an error into a failure: a wrong configuration, or a cgroup in it that does not exist, is wrong usage.
fn wrong_task(error: Error) -> Failure {
    match error {
        Error::Config(_) | Error::Cgroup(_) => Failure::usage(in_words(&error)),
        other => other.into(),
    }
}

/// Returns the capabilities that the daemon needs and this process lacks; none if /proc does not show which it has.
pub(crate) fn missing_capabilities() -> Vec<&'static str> {
    let Some(held) = effective_capabilities() else { return Vec::new() };
    CAPABILITIES.iter().filter(|(bit, _)| held & 1 << bit == 0).map(|(_, name)| *name).collect()
}

/// Fails early, with an explanation, if privileges are missing that the kernel would require later.
fn check_privilege() -> Result<(), Failure> {
    let missing = missing_capabilities();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Failure::new(FAILED, format!("the daemon needs root, or {}", missing.join(", "))))
}
