//! `bufwise serve`: an FTP server for one directory.

mod admit;
mod log;
mod people;
mod privilege;
mod record;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result};
use bufwise_ftp::server::{
    Admission, AdmissionHandle, BufferCaps, Config, DataConfig, Event, Limits, ReceiveCaps, ServeError,
    Server, Stop, Times, TuningConfig,
};
use bufwise_host::notify::Notify;
use bufwise_host::signals::{Request, Signals};
use bufwise_policy::PolicyKind;
use bufwise_units::{Bytes, Micros, ParseError, Rate};
use clap::Args;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SigSet, Signal};
use nix::sys::signalfd::{SfdFlags, SignalFd};

use crate::confine::{Confined, Confinement, filter_calls};
use crate::exit::{Failure, Outcome};
use crate::output;
use crate::transfer::{some_rate, without_engine};
use admit::{Sources, TlsArgs};
use log::Log;
use people::People;
use privilege::Needs;
use record::Records;

/// Default port, which needs no privilege, unlike port 21.
const DEFAULT_PORT: u16 = 2_121;
/// Signals that come within this time of the first one belong to it: timeout(1) sends one to the process and one to its group.
const AT_ONE_TIME: Duration = Duration::from_secs(1);
/// Least memory for the buffers of all transfers: four times the 128 KiB that each has in any case.
const LEAST_MEMORY: Bytes = Bytes(512 << 10);
/// Least size of a connection's largest buffer, as for `--policy fixed:SIZE`.
const LEAST_BUFFER: Bytes = Bytes(4 << 10);

/// Serve a directory by FTP; --policy tunes the buffers of uploads
///
/// The default policy, kernel, tunes nothing and only measures. Without --users and --user, anybody may log in and read. Clients
/// may use any FTP program; with bufwise get and put, both ends tune. SIGTERM and SIGINT end the server; running transfers then
/// have some seconds to end (--grace), or until a second signal. Log lines go to standard error.
#[derive(Debug, Args)]
#[command(after_help = "Examples:
  bufwise serve /srv/files
  bufwise serve /srv/files --user jo --writable --tls-self-signed --tls-required
  bufwise serve /srv/files --listen 0.0.0.0:21 --users /etc/bufwise/users --run-as ftp --policy drs

A line of the users' file is NAME:HASH:ro or NAME:HASH:rw; bufwise serve --hash-password NAME makes one.

SIGHUP reads --users, --tls-cert and --tls-key again; new sessions use them, open sessions continue as they began. A file with an \
error changes nothing. With --run-as, that user must be able to read the files.

Where the kernel has Landlock (Linux 5.19), a server that listens can open only DIR and the directories of the files that SIGHUP \
reads. If one of these is a link, and later leads to another directory than at the start, the server has to be restarted. The log \
says whether Landlock is in force.

An upload gets its name when all of it is on the disk. Until then it is .NAME.bufwise-upload in the same directory, and can be \
resumed.")]
pub(crate) struct ServeArgs {
    /// Directory to serve; clients cannot reach anything outside of it, not even through links
    #[arg(value_name = "DIR", required_unless_present = "hash_password")]
    directory: Option<PathBuf>,
    /// Where to listen: an address with a port, an address, or a port; default port 2121 of all addresses
    #[arg(long, value_name = "ADDR:PORT", value_parser = listen_address)]
    listen: Option<SocketAddr>,
    /// Append a line of JSON for each transfer to this file; - for standard output
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Become this user after listening, if started by root
    #[arg(long, value_name = "NAME")]
    run_as: Option<String>,
    /// Ask for a password, print a line for the users' file, and end
    #[arg(long, value_name = "NAME", conflicts_with_all = ["directory", "listen"])]
    hash_password: Option<String>,
    #[command(flatten)]
    people: People,
    #[command(flatten)]
    tls: TlsArgs,
    #[command(flatten)]
    data: DataArgs,
    #[command(flatten)]
    tuning: TuningArgs,
    #[command(flatten)]
    limits: LimitArgs,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Data connections")]
struct DataArgs {
    /// Wait for data connections on these ports, for a firewall
    #[arg(long, value_name = "A-B", value_parser = port_range)]
    passive_ports: Option<RangeInclusive<u16>>,
    /// IPv4 address that PASV tells clients, if address translation hides the server's own
    #[arg(long, value_name = "ADDR")]
    passive_address: Option<Ipv4Addr>,
    /// Connect to clients that ask for it (PORT, EPRT), only ever to their own address
    #[arg(long)]
    active: bool,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Tuning")]
struct TuningArgs {
    /// Policy for files that are received: kernel, fixed:SIZE, drs, drs-ftp, sobas or sobas:published; kernel changes nothing
    /// and only measures
    #[arg(long, value_name = "P", default_value = "kernel", value_parser = without_engine)]
    policy: PolicyKind,
    /// Neither answer nor send the UDP probes by which sobas measures the path
    #[arg(long)]
    no_probes: bool,
    /// Largest buffer that a client may ask for, for one connection (at least 4KiB)
    #[arg(long, value_name = "SIZE", default_value = "16MiB", value_parser = buffer_size)]
    max_buffer: Bytes,
    /// Memory that the send buffers of all downloads together may take, with those that clients ask for (at least 512KiB)
    ///
    /// One user may have a quarter of it. While there is enough, the buffers are left to the kernel or the client. Each has 128 KiB
    /// in any case.
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = memory_of_all)]
    buffer_memory: Bytes,
    /// Memory that the receive buffers of all uploads together may take (at least 512KiB)
    ///
    /// One user may have a quarter of it. While there is enough, the buffers are left to the kernel or the policy. Each has 128
    /// KiB in any case.
    #[arg(long, value_name = "SIZE", default_value = "512MiB", value_parser = memory_of_all)]
    receive_memory: Bytes,
    /// Largest rate of each transfer, as 100mbit
    #[arg(long, value_name = "RATE", value_parser = some_rate)]
    limit_rate: Option<Rate>,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Limits")]
struct LimitArgs {
    /// Sessions at a time
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = some_sessions)]
    max_sessions: usize,
    /// Sessions at a time from one address
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = some_sessions)]
    max_sessions_per_address: usize,
    /// End a session that sends no command and transfers nothing for this time
    #[arg(long, value_name = "TIME", default_value = "300s", value_parser = some_time)]
    idle: Micros,
    /// End a transfer that moves no byte for this time
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = some_time)]
    stall: Micros,
    /// Time for running transfers to end after SIGTERM or SIGINT; another signal, a second later or more, ends them at once
    #[arg(long, value_name = "TIME", default_value = "10s")]
    grace: Micros,
}

impl ServeArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(name) = &self.hash_password {
            output::line(&format!("{}\n", people::hash_line(name)?))?;
            return Ok(0);
        }
        privilege::allow_many_files();
        let log = Arc::new(Log::to_stderr());
        let json = self.json.clone();
        json.as_deref().map(output::check_writable).transpose()?;
        let run_as = self.run_as.as_deref().map(privilege::find).transpose()?;
        // While it asks for passwords, a signal ends the process.
        let (config, sources) = self.config()?;
        // A new file goes again if the start fails.
        let (records, new_file) = json.as_deref().map(Records::open).transpose()?.unzip();
        // Before any client can connect, so that a signal always ends the server in order.
        let signals = Signals::watch()?;
        let again = watch_stops().context("cannot watch for signals")?;
        // A file beyond the largest size (RLIMIT_FSIZE) fails its upload, instead of ending the server.
        SigSet::from(Signal::SIGXFSZ).thread_block().context("cannot block a signal")?;
        let notify = Notify::from_environment()?;
        let needs = Needs {
            directory: config.directory.clone(),
            writes: sources.may_let_write(),
            connects: config.data.active,
            ports: config.data.ports.clone(),
            files: sources.files(),
        };
        let directory = config.directory.clone();
        let server = bind(config, &log, records)?;
        let rules = needs.rules();
        if let Some(user) = &run_as {
            privilege::become_user(user)?;
        }
        // Before another thread starts, which would not be confined. Landlock must come first: the filter forbids its
        // calls.
        let (confined, filtered) = (rules.and_then(Confinement::begin), filter_calls());
        let place = format!("listening on {}, {}", server.address(), directory.display());
        let watch = Watch {
            stop: server.stop(),
            admission: server.admission(),
            sources,
            place,
            notify,
            again,
            log: Arc::clone(&log),
        };
        watch.begin(signals, confined, filtered)?;
        if let Some(file) = new_file {
            file.keep();
        }
        server.run().context("the server cannot go on")?;
        log.info("stopped");
        Ok(0)
    }

    /// Returns the server's configuration, and the sources of users and certificate.
    fn config(self) -> Result<(Config, Sources), Failure> {
        // clap's `required_unless_present` ensures that there is a directory.
        let directory = self.directory.unwrap_or_default();
        let anywhere = SocketAddr::from((Ipv6Addr::UNSPECIFIED, DEFAULT_PORT));
        let listen = self.listen.unwrap_or(anywhere);
        let (sources, Admission { users, tls }) = Sources::read(self.people, self.tls)?;
        let (host, receiving) = (self.tuning.buffer_memory, self.tuning.receive_memory);
        let defaults = (Limits::default(), Times::default());
        let config = Config {
            users,
            tls,
            data: DataConfig {
                ports: self.data.passive_ports,
                announced: self.data.passive_address,
                active: self.data.active,
            },
            tuning: TuningConfig {
                policy: self.tuning.policy,
                probes: !self.tuning.no_probes,
                buffers: BufferCaps { connection: self.tuning.max_buffer, user: host.scaled(1, 4), host },
                receiving: ReceiveCaps { user: receiving.scaled(1, 4), host: receiving },
                rate: self.tuning.limit_rate,
            },
            limits: Limits {
                sessions: self.limits.max_sessions,
                sessions_per_address: self.limits.max_sessions_per_address,
                ..defaults.0
            },
            times: Times {
                idle: duration(self.limits.idle),
                stall: duration(self.limits.stall),
                grace: duration(self.limits.grace),
                ..defaults.1
            },
            ..Config::new(listen, directory)
        };
        Ok((config, sources))
    }
}

/// Returns a descriptor that is readable after SIGTERM or SIGINT, which [`Signals`] has blocked unless they are ignored.
fn watch_stops() -> nix::Result<SignalFd> {
    let stops: SigSet = [Signal::SIGTERM, Signal::SIGINT].into_iter().collect();
    SignalFd::with_flags(&stops, SfdFlags::SFD_NONBLOCK | SfdFlags::SFD_CLOEXEC)
}

/// Logs whether the server is confined, and whether its system calls are filtered.
fn say_whether(confined: &Result<Confined>, filtered: &Result<()>, log: &Log) {
    match confined {
        Ok(_) => log.info("confined by Landlock to the directory and what a reload reads"),
        Err(error) => log.warn(format_args!(
            "not confined by Landlock: {}; permissions alone keep it from other files",
            bufwise_host::in_words(error.as_ref())
        )),
    }
    if let Err(error) = filtered {
        log.warn(format_args!("system calls are not filtered: {}", bufwise_host::in_words(error.as_ref())));
    }
}

/// Returns the address to listen at: on a host without IPv6, all addresses are those of IPv4.
fn reachable(listen: SocketAddr, has_ipv6: impl FnOnce() -> bool) -> SocketAddr {
    let is_any = listen.ip() == IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    if is_any && !has_ipv6() { SocketAddr::from((Ipv4Addr::UNSPECIFIED, listen.port())) } else { listen }
}

/// Listens, and logs each event.
fn bind(config: Config, log: &Arc<Log>, records: Option<Records>) -> Result<Server, Failure> {
    let log = Arc::clone(log);
    let observer = Box::new(move |event: &Event| {
        log.event(event);
        if let (Event::Transfer(transfer), Some(records)) = (event, &records)
            && let Err(error) = records.write(transfer)
        {
            // Guests may cause any number of these.
            log.event(&Event::Trouble { what: bufwise_host::in_words(error.as_ref()) });
        }
    });
    let has_ipv6 = || std::net::UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)).is_ok();
    let config = Config { listen: reachable(config.listen, has_ipv6), ..config };
    Server::bind(config, observer).map_err(|error| match error {
        ServeError::Policy(_) => Failure::usage(error),
        ServeError::Listen { ref source, address } => {
            let hint = match source.kind() {
                std::io::ErrorKind::AddrInUse => "; another program listens there: choose one with --listen",
                std::io::ErrorKind::PermissionDenied => {
                    "; ports below 1024 need root or CAP_NET_BIND_SERVICE"
                }
                _ => "",
            };
            Failure::new(crate::exit::FAILED, format!("cannot listen on {address}: {source}{hint}"))
        }
        _ => error.into(),
    })
}

/// The parts of the server on which signals act.
struct Watch {
    stop: Stop,
    admission: AdmissionHandle,
    sources: Sources,
    /// The part of the status text that a reload does not change.
    place: String,
    notify: Notify,
    /// Signals to stop, which [`Signals`] tells only once.
    again: SignalFd,
    log: Arc<Log>,
}

impl Watch {
    /// Logs where the server listens and waits for the signal to stop, on a thread of its own.
    fn begin(self, signals: Signals, confined: Result<Confined>, filtered: Result<()>) -> Result<()> {
        let waiting = move || {
            if nix::unistd::geteuid().is_root() {
                self.log.warn("running as root: --run-as NAME drops the privileges once the port is open");
            }
            // Logged only now: a reader of this line may rely on the server.
            let listening = self.status();
            self.log.info(&listening);
            say_whether(&confined, &filtered, &self.log);
            self.notify.ready(&listening);
            loop {
                match signals.request() {
                    Some(Request::Stop) => break,
                    Some(Request::Reload) => self.reload(),
                    None => {
                        let mut watched = [PollFd::new(signals.as_fd(), PollFlags::POLLIN)];
                        // Interrupted or woken: the loop checks the signals.
                        let _woken = poll(&mut watched, PollTimeout::NONE);
                    }
                }
            }
            self.log.info("stopping: waiting for transfers to end");
            self.notify.stopping();
            self.stop.stop();
            self.end_at_next_signal();
        };
        let thread = thread::Builder::new().name("bufwise-signal".to_owned());
        thread.spawn(waiting).context("cannot watch for signals")?;
        Ok(())
    }

    /// Ends the process at another signal to stop, unless the server has ended before. An upload that is cut off keeps its part.
    fn end_at_next_signal(&self) {
        thread::sleep(AT_ONE_TIME);
        while let Ok(Some(_)) = self.again.read_signal() {}
        let mut next = [PollFd::new(self.again.as_fd(), PollFlags::POLLIN)];
        while poll(&mut next, PollTimeout::NONE) == Err(Errno::EINTR) {}
        self.log.info("stopped at once, by a second signal");
        std::process::exit(0)
    }

    /// Reads users and certificate again, for clients that connect from now on.
    fn reload(&self) {
        self.notify.reloading();
        match self.sources.again() {
            Ok(admission) => {
                let about = admit::about(&admission);
                self.admission.replace(admission);
                self.log.info(format_args!("reloaded: {about}"));
            }
            Err(error) => {
                self.log.warn(format_args!("not reloaded, users and certificate stay as they were: {error}"));
            }
        }
        self.notify.ready(&self.status());
    }

    fn status(&self) -> String {
        format!("{}: {}", self.place, admit::about(&self.admission.now()))
    }
}

fn duration(time: Micros) -> Duration {
    Duration::from_micros(time.0)
}

fn listen_address(text: &str) -> Result<SocketAddr, String> {
    let inside = text.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).unwrap_or(text);
    if let Ok(port) = text.parse::<u16>() {
        Ok(SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)))
    } else if let Ok(ip) = inside.parse::<IpAddr>() {
        Ok(SocketAddr::new(ip, DEFAULT_PORT))
    } else {
        text.parse().map_err(|_| "write 192.0.2.1:2121, [2001:db8::1]:2121, an address or a port".to_owned())
    }
}

/// Parses `--buffer-memory` and `--receive-memory`: a user's quarter must hold at least one transfer.
fn memory_of_all(text: &str) -> Result<Bytes, String> {
    at_least(LEAST_MEMORY, text, "is too small: a user's quarter must hold 128 KiB; write at least 512KiB")
}

/// Parses `--max-buffer`; refuses less than the server accepts as a buffer.
fn buffer_size(text: &str) -> Result<Bytes, String> {
    at_least(LEAST_BUFFER, text, "cannot hold two segments: at least 4KiB")
}

fn at_least(least: Bytes, text: &str, reason: &str) -> Result<Bytes, String> {
    let size: Bytes = text.parse().map_err(|error: ParseError| error.to_string())?;
    if size < least { Err(format!("{} {reason}", size.readable())) } else { Ok(size) }
}

fn some_sessions(text: &str) -> Result<usize, String> {
    let count = text.parse().map_err(|_| format!("`{text}` is not a number of sessions"))?;
    if count == 0 { Err("at least 1 session is needed".to_owned()) } else { Ok(count) }
}

fn some_time(text: &str) -> Result<Micros, String> {
    let time: Micros = text.parse().map_err(|error: ParseError| error.to_string())?;
    if time == Micros::ZERO {
        Err("a time of 0 leaves no time: write a time such as 60s".to_owned())
    } else {
        Ok(time)
    }
}

fn port_range(text: &str) -> Result<RangeInclusive<u16>, String> {
    let wrong = || "write the first and the last port, as 50000-50100; they are at least 1024".to_owned();
    let (first, last) = text.split_once('-').ok_or_else(wrong)?;
    let (first, last) =
        (first.trim().parse().map_err(|_| wrong())?, last.trim().parse().map_err(|_| wrong())?);
    if first < 1_024 || first > last { Err(wrong()) } else { Ok(first..=last) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_a_port_or_both_say_where_to_listen() {
        for (text, address) in [
            ("2121", "[::]:2121"),
            ("127.0.0.1", "127.0.0.1:2121"),
            ("127.0.0.1:21", "127.0.0.1:21"),
            ("[::1]:21", "[::1]:21"),
            ("::1", "[::1]:2121"),
        ] {
            assert_eq!(listen_address(text).unwrap().to_string(), address);
        }
        for text in ["", "localhost:21", "127.0.0.1:", "70000"] {
            assert!(listen_address(text).is_err(), "{text}");
        }
    }

    #[test]
    fn without_ipv6_a_port_is_one_of_all_addresses_of_ipv4() {
        let at = |text: &str, has_ipv6| reachable(listen_address(text).unwrap(), || has_ipv6).to_string();
        assert_eq!([at("2100", true), at("2100", false)], ["[::]:2100", "0.0.0.0:2100"]);
        assert_eq!(at("[::1]:21", false), "[::1]:21", "the address that was named, or none");
    }

    #[test]
    fn ports_are_a_range_of_free_ones() {
        assert_eq!(port_range("50000-50100"), Ok(50_000..=50_100));
        for text in ["", "50000", "50100-50000", "21-30", "a-b", "50000-70000"] {
            assert!(port_range(text).is_err(), "{text}");
        }
    }
}
