//! Runs the user's programs on the two hosts: a server on host B, a client on host A.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_socket::diag::Diag;
use bufwise_socket::signals::Ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::{Handle, Signals};
use thiserror::Error;

use crate::host::{Host, HostError};
use crate::last_words;
use crate::testbed::Hosts;

/// Time that a server has until it must listen, also on a busy machine.
const SERVER_PATIENCE: Duration = Duration::from_secs(10);
/// Time between two checks of whether the server listens.
const SERVER_POLL: Duration = Duration::from_millis(10);
/// Time that a client's output has to end after the clients; then the programs that they left running are ended.
const OUTPUT_PATIENCE: Duration = Duration::from_millis(500);
/// Time between two checks of whether the output has ended.
const OUTPUT_POLL: Duration = Duration::from_millis(10);
/// Time between two checks of whether the emulator still runs.
const PUMP_POLL: Duration = Duration::from_millis(500);
/// Bytes of the client's output after which no more of it is kept for its JSON.
pub(crate) const CLIENT_OUTPUT_KEPT: usize = 64 << 20;
/// Most of the server's output that is kept, for messages, in bytes.
const SERVER_OUTPUT_KEPT: usize = 64 << 10;
/// Lines of the server's output that are shown after a failure.
const LINES_SHOWN: usize = 20;
/// A shell's exit status for a command that does not exist (POSIX, 2.8.2).
const STATUS_NOT_FOUND: i32 = 127;
/// The signals that ask to stop.
const STOPPING: [i32; 3] = [SIGINT, SIGTERM, SIGHUP];

/// Why the programs did not run to the client's end.
#[derive(Debug, Error)]
pub enum CommandError {
    /// A host failed.
    #[error(transparent)]
    Host(#[from] HostError),
    /// Signals cannot be caught.
    #[error("cannot catch signals: {0}")]
    Signals(io::Error),
    /// Threads cannot be started.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The server ended before the client began.
    #[error("server command {command:?} {how} before the client started{words}")]
    Server {
        /// The command.
        command: String,
        /// How it ended, in words.
        how: String,
        /// Its last line of output, after a colon.
        words: String,
    },
    /// The servers run, but too few ports are open.
    #[error("server command {command:?} {} after {seconds} s{words}", listens(*.found, *.wanted))]
    NotListening {
        /// The command.
        command: String,
        /// The number of ports on which servers listen.
        found: usize,
        /// The number on which they should.
        wanted: usize,
        /// The time that it had, in seconds.
        seconds: u64,
        /// Its last line of output, after a colon.
        words: String,
    },
    /// The client does not exist.
    #[error("client command {0:?} was not found on this machine")]
    ClientNotFound(String),
    /// The client did not end in time.
    #[error("client command {command:?} did not end within {seconds} s and was killed{words}")]
    Timeout {
        /// The command.
        command: String,
        /// The time that it had, in seconds.
        seconds: u64,
        /// The server's last line of output, if there was one.
        words: String,
    },
    /// A signal asked to stop.
    #[error("stopped by {}", signal_name(*.0))]
    Interrupted(i32),
    /// The emulator ended while the client ran.
    #[error("the emulated path ended before the client did")]
    PathEnded,
}

impl CommandError {
    /// Returns the exit status that a shell expects for this error.
    #[must_use]
    pub fn exit_status(&self) -> u8 {
        match self {
            Self::Interrupted(signal) => u8::try_from(128 + signal).unwrap_or(1),
            _ => 1,
        }
    }
}

/// The programs of a run.
#[derive(Clone, Debug)]
pub struct Programs {
    /// Shell command on host B of every path; `None`: the client needs no server.
    pub server: Option<OsString>,
    /// Number of ports on which servers must listen on a host B before the clients start.
    pub listeners: usize,
    /// Shell command on host A of the first path.
    pub client: OsString,
    /// Shell commands on the hosts A of other paths, each with the path's index. All clients start together.
    pub elsewhere: Vec<(usize, OsString)>,
    /// Time within which all clients must end.
    pub timeout: Duration,
    /// Where the standard output of the first path's client goes.
    pub output: ClientOutput,
}

/// Where the standard output of the first path's client goes; it is also kept for the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientOutput {
    /// It goes to standard output.
    Stdout,
    /// It goes to standard error, because standard output is used for the report.
    Stderr,
    /// It is only kept for the report.
    Kept,
}

/// How the clients ended.
#[derive(Debug)]
pub struct Outcome {
    /// The exit status; 128 + n when signal n killed the client. Of several clients, that of the first one that failed.
    pub status: i32,
    /// Seconds for which the clients ran.
    pub seconds: f64,
    /// The bytes that the client of the first path printed on standard output; of much output only the beginning.
    pub stdout: Vec<u8>,
    /// The servers' last lines of output; empty if the client succeeded.
    pub server_output: String,
}

impl Outcome {
    /// Returns whether `stdout` may be only the beginning of the output.
    pub(crate) fn is_cut(&self) -> bool {
        self.stdout.len() > CLIENT_OUTPUT_KEPT
    }
}

enum Event {
    /// The client with this number ended.
    Client(usize, ExitStatus),
    Server(ExitStatus),
    Signal(i32),
}

impl Programs {
    /// Runs the servers, waits until they listen, and runs the clients to their end.
    ///
    /// Dropping the hosts ends all programs that still run.
    ///
    /// # Errors
    /// [`CommandError`] that names the program that failed, and how.
    pub fn run(&self, hosts: &[Hosts], path_runs: &dyn Fn() -> bool) -> Result<Outcome, CommandError> {
        let (sender, events) = channel();
        let _signals = SignalWatch::start(sender.clone())?;
        let mut servers = Vec::new();
        for Hosts { b, .. } in hosts {
            let Some(server) = &self.server else { break };
            let words = start_server(b, server, &sender)?;
            self.await_server(b, server, &events, &words)?;
            servers.push(words);
        }
        let started = Instant::now();
        let clients = self.clients();
        let mut outputs = Vec::new();
        for (number, (path, command)) in clients.iter().enumerate() {
            let Some(Hosts { a, .. }) = hosts.get(*path) else { return Err(CommandError::PathEnded) };
            let output = if number == 0 { self.output } else { ClientOutput::Kept };
            outputs.push(start_client(a, command, output, number, &sender)?);
        }
        let (failed, status) = self.await_clients(path_runs, &events, started, &servers)?;
        let seconds = started.elapsed().as_secs_f64();
        if status.code() == Some(STATUS_NOT_FOUND) {
            return Err(CommandError::ClientNotFound(shown(clients[failed].1)));
        }
        self.await_outputs(&outputs, hosts, &events)?;
        let stdout = outputs.into_iter().next().and_then(|output| output.join().ok()).unwrap_or_default();
        let server_output = if status.success() { String::new() } else { last_lines(&servers, LINES_SHOWN) };
        Ok(Outcome { status: exit_code(status), seconds, stdout, server_output })
    }

    /// Returns each client's path and command.
    fn clients(&self) -> Vec<(usize, &OsStr)> {
        let elsewhere = self.elsewhere.iter().map(|(path, command)| (*path, command.as_os_str()));
        std::iter::once((0, self.client.as_os_str())).chain(elsewhere).collect()
    }

    /// Waits until all clients have ended; returns the first that failed, or else the last to end, and its status.
    fn await_clients(
        &self,
        path_runs: &dyn Fn() -> bool,
        events: &Receiver<Event>,
        started: Instant,
        servers: &[Words],
    ) -> Result<(usize, ExitStatus), CommandError> {
        let mut failed = None;
        let clients = self.clients();
        let mut running: Vec<usize> = (0..clients.len()).collect();
        loop {
            let left = self.timeout.saturating_sub(started.elapsed());
            match events.recv_timeout(left.min(PUMP_POLL)) {
                Ok(Event::Client(number, status)) => {
                    running.retain(|other| *other != number);
                    failed = failed.or((!status.success()).then_some((number, status)));
                    if running.is_empty() {
                        return Ok(failed.unwrap_or((number, status)));
                    }
                }
                Ok(Event::Signal(signal)) => return Err(CommandError::Interrupted(signal)),
                // A server may end after its client, or after one connection.
                Ok(Event::Server(_)) | Err(RecvTimeoutError::Disconnected) => {}
                Err(RecvTimeoutError::Timeout) if !path_runs() => return Err(CommandError::PathEnded),
                Err(RecvTimeoutError::Timeout) if started.elapsed() >= self.timeout => {
                    return Err(CommandError::Timeout {
                        command: running.first().map(|number| shown(clients[*number].1)).unwrap_or_default(),
                        seconds: self.timeout.as_secs(),
                        words: match servers.iter().filter_map(last_line).collect::<Vec<_>>().join("; ") {
                            words if words.is_empty() => words,
                            words => format!("; the server said: {words}"),
                        },
                    });
                }
                Err(RecvTimeoutError::Timeout) => {}
            }
        }
    }

    /// Waits until the clients' output has ended. A program that a client left running may hold it open, so the programs on
    /// the clients' hosts are ended if they do so; then only a slow reader of standard output is waited for.
    fn await_outputs(
        &self,
        outputs: &[thread::JoinHandle<Vec<u8>>],
        hosts: &[Hosts],
        events: &Receiver<Event>,
    ) -> Result<(), CommandError> {
        let ended = Instant::now();
        let mut are_left = true;
        while !outputs.iter().all(thread::JoinHandle::is_finished) {
            if are_left && ended.elapsed() >= OUTPUT_PATIENCE {
                for Hosts { a, .. } in self.clients().iter().filter_map(|(path, _)| hosts.get(*path)) {
                    a.end_programs();
                    a.kill_programs();
                }
                are_left = false;
            }
            if let Ok(Event::Signal(signal)) = events.recv_timeout(OUTPUT_POLL) {
                return Err(CommandError::Interrupted(signal));
            }
        }
        Ok(())
    }

    /// Waits until the servers listen on enough ports of their host; returns an error if the server fails or does not listen.
    fn await_server(
        &self,
        host: &Host,
        command: &OsStr,
        events: &Receiver<Event>,
        words: &Words,
    ) -> Result<(), CommandError> {
        let started = Instant::now();
        let mut diag = host.run(Diag::open)?.ok();
        loop {
            let found = diag.as_mut().map(listening);
            if found.is_some_and(|found| found >= self.listeners) {
                return Ok(());
            }
            if started.elapsed() >= SERVER_PATIENCE {
                // If the sockets cannot be listed, the client starts after the same time nevertheless.
                let Some(found) = found else { return Ok(()) };
                return Err(CommandError::NotListening {
                    command: shown(command),
                    found,
                    wanted: self.listeners,
                    seconds: SERVER_PATIENCE.as_secs(),
                    words: after_colon(words),
                });
            }
            match events.recv_timeout(SERVER_POLL) {
                Ok(Event::Server(status)) if !status.success() => {
                    return Err(CommandError::Server {
                        command: shown(command),
                        how: describe(status),
                        words: after_colon(words),
                    });
                }
                Ok(Event::Signal(signal)) => return Err(CommandError::Interrupted(signal)),
                Ok(_) | Err(_) => {}
            }
        }
    }
}

type Words = Arc<Mutex<Vec<u8>>>;

fn start_client(
    host: &Host,
    command: &OsStr,
    output: ClientOutput,
    number: usize,
    sender: &Sender<Event>,
) -> Result<thread::JoinHandle<Vec<u8>>, CommandError> {
    let mut client = host.spawn(shell(command).stdout(Stdio::piped()))?;
    let stdout = client.stdout.take();
    let reader =
        spawn_thread("client output", move || stdout.map(|stdout| tee(stdout, output)).unwrap_or_default())?;
    watch(client, sender.clone(), move |status| Event::Client(number, status))?;
    Ok(reader)
}

fn start_server(host: &Host, command: &OsStr, sender: &Sender<Event>) -> Result<Words, CommandError> {
    let mut server =
        host.spawn(shell(command).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()))?;
    let words = Words::default();
    let outputs: [Option<Box<dyn Read + Send>>; 2] = [
        server.stdout.take().map(|stdout| Box::new(stdout) as Box<dyn Read + Send>),
        server.stderr.take().map(|stderr| Box::new(stderr) as Box<dyn Read + Send>),
    ];
    for output in outputs.into_iter().flatten() {
        let words = Arc::clone(&words);
        spawn_thread("server output", move || keep(output, &words))?;
    }
    watch(server, sender.clone(), Event::Server)?;
    Ok(words)
}

/// Returns the last line that a server printed, after a colon; empty if there is none.
fn after_colon(words: &Words) -> String {
    last_line(words).map(|line| format!(": {line}")).unwrap_or_default()
}

/// Returns the last line that a server printed; `None`: there is none.
fn last_line(words: &Words) -> Option<String> {
    let words = words.lock().unwrap_or_else(PoisonError::into_inner);
    last_words::of(&String::from_utf8_lossy(&words)).map(str::to_owned)
}

/// Returns the last lines that each server printed, without empty ones.
fn last_lines(servers: &[Words], most: usize) -> String {
    let of_one = |words: &Words| {
        let words = words.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&words);
        let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(most)..].join("\n")
    };
    servers.iter().map(of_one).filter(|lines| !lines.is_empty()).collect::<Vec<_>>().join("\n")
}

/// Returns the number of ports on which sockets wait for clients. A server may have several sockets on one port: of TCP and UDP, of
/// IPv4 and IPv6.
fn listening(diag: &mut Diag) -> usize {
    let tcp = diag.listening(None).unwrap_or_default();
    let udp = diag.udp(None).unwrap_or_default();
    let tcp = tcp.into_iter().map(|socket| socket.local.port());
    tcp.chain(udp.into_iter().map(|socket| socket.local.port())).collect::<BTreeSet<u16>>().len()
}

/// Describes on how many ports servers listen, where more should be open.
fn listens(found: usize, wanted: usize) -> String {
    match found {
        0 => "does not listen on any port".to_owned(),
        _ => format!("listens on {found} of {wanted} ports"),
    }
}

fn shell(command: &OsStr) -> Command {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command);
    shell
}

/// Returns a command as text for messages.
fn shown(command: &OsStr) -> String {
    command.to_string_lossy().into_owned()
}

fn spawn_thread<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<thread::JoinHandle<T>, CommandError> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map_err(CommandError::Thread)
}

/// Reports the end of `child` as an event.
fn watch(
    mut child: Child,
    sender: Sender<Event>,
    event: impl FnOnce(ExitStatus) -> Event + Send + 'static,
) -> Result<(), CommandError> {
    spawn_thread("child", move || {
        if let Ok(status) = child.wait() {
            // After the run has ended the receiver no longer exists.
            let _run_may_be_over = sender.send(event(status));
        }
    })?;
    Ok(())
}

/// Passes the client's output on and keeps its beginning: more than [`CLIENT_OUTPUT_KEPT`] bytes if it is longer.
fn tee(mut from: impl Read, output: ClientOutput) -> Vec<u8> {
    let mut kept = Vec::new();
    let mut buffer = [0; 16 << 10];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            break;
        }
        let piece = &buffer[..length];
        // A reader that has ended (`| head`) must not end the measurement.
        let _reader_may_be_gone = match output {
            ClientOutput::Stdout => io::stdout().write_all(piece),
            ClientOutput::Stderr => io::stderr().write_all(piece),
            ClientOutput::Kept => Ok(()),
        };
        if kept.len() <= CLIENT_OUTPUT_KEPT {
            kept.extend_from_slice(piece);
        }
    }
    kept
}

/// Keeps the end of the server's output.
fn keep(mut from: impl Read, words: &Words) {
    let mut buffer = [0; 4 << 10];
    while let Ok(length) = from.read(&mut buffer) {
        if length == 0 {
            break;
        }
        let mut words = words.lock().unwrap_or_else(PoisonError::into_inner);
        words.extend_from_slice(&buffer[..length]);
        let surplus = words.len().saturating_sub(SERVER_OUTPUT_KEPT);
        words.drain(..surplus);
    }
}

fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1)
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(STATUS_NOT_FOUND), _) => "was not found on this machine, and ended".to_owned(),
        (Some(code), _) => format!("ended with status {code}"),
        (None, Some(signal)) => format!("was killed by {}", signal_name(signal)),
        (None, None) => "ended".to_owned(),
    }
}

fn signal_name(signal: i32) -> String {
    signal_hook::low_level::signal_name(signal).map_or_else(|| format!("signal {signal}"), str::to_owned)
}

/// Returns the signals that ask to stop, without those that this process was started to ignore, as by nohup(1).
pub(crate) fn stopping_signals() -> Vec<i32> {
    let ignored = Ignored::by_this_process();
    STOPPING.into_iter().filter(|signal| !ignored.has(*signal)).collect()
}

/// Turns the signals that ask to stop into events for as long as it lives.
struct SignalWatch {
    handle: Handle,
}

impl SignalWatch {
    fn start(sender: Sender<Event>) -> Result<Self, CommandError> {
        let mut signals = Signals::new(stopping_signals()).map_err(CommandError::Signals)?;
        let handle = signals.handle();
        spawn_thread("signals", move || {
            for signal in signals.forever() {
                let _run_may_be_over = sender.send(Event::Signal(signal));
            }
        })?;
        Ok(Self { handle })
    }
}

impl Drop for SignalWatch {
    fn drop(&mut self) {
        self.handle.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_that_do_not_all_listen_are_counted() {
        let error = |found| CommandError::NotListening {
            command: "serve".to_owned(),
            found,
            wanted: 3,
            seconds: 10,
            words: ": bind failed".to_owned(),
        };
        let texts = [0, 2].map(|found| error(found).to_string());
        assert_eq!(
            texts,
            [
                "server command \"serve\" does not listen on any port after 10 s: bind failed",
                "server command \"serve\" listens on 2 of 3 ports after 10 s: bind failed",
            ]
        );
    }

    #[test]
    fn long_output_is_known_to_be_cut() {
        let of = |bytes: usize| {
            let stdout = tee(io::repeat(b'x').take(bytes as u64), ClientOutput::Kept);
            let outcome = Outcome { status: 0, seconds: 1.0, stdout, server_output: String::new() };
            (outcome.is_cut(), outcome.stdout.len())
        };
        assert_eq!(of(CLIENT_OUTPUT_KEPT), (false, CLIENT_OUTPUT_KEPT));
        let (is_cut, length) = of(CLIENT_OUTPUT_KEPT + (1 << 20));
        assert!(is_cut && length < CLIENT_OUTPUT_KEPT + (1 << 20), "{length}");
    }
}
