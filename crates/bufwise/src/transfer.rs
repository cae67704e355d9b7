//! Common parts of `get` and `put`: options, login, progress, the report.

mod engine;
mod login;
mod options;
mod pace;
mod progress;
mod report;
mod tally;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use bufwise_ftp::client::{
    Access, ClientError, Event, Outcome as Moved, Security, Settings, Tree, Url, Worker, follow, in_parallel,
};
use bufwise_host::tuner::choice::Choice;
use bufwise_mover::Cancel;
use bufwise_policy::PolicyKind;

use self::engine::OwnEngine;
use self::progress::Show;
use self::report::{FileReport, Report};
use self::tally::Tally;
use crate::confine::{Confinement, Right};
use crate::exit::{Failure, Outcome};
use crate::output;
use crate::run::Treated;

pub(crate) use self::options::{Options, policy, some_rate, without_engine};
pub(crate) use self::report::{Shares, shares};

/// Number of skipped entries that are named on standard error and in the report; the others are only counted.
const LEFT_OUT_SHOWN: usize = 10;

/// Signals that come within this time of the first one belong to it: timeout(1) sends one to the process and one to its group.
const AT_ONE_TIME: Duration = Duration::from_millis(500);

/// Outcome of one of many files: its remote path, its local path, and the result.
pub(crate) type Done = (PathBuf, PathBuf, Result<Moved, ClientError>);

/// The command: `get` or `put`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// `get`: this end receives.
    Get,
    /// `put`: this end sends.
    Put,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
        }
    }

    /// Returns the policies of this end: `policy` for the side that moves the data, the kernel's for the other side.
    fn choice(self, policy: PolicyKind) -> Choice {
        match self {
            Self::Get => Choice { send: PolicyKind::Kernel, receive: policy },
            Self::Put => Choice { send: policy, receive: PolicyKind::Kernel },
        }
    }
}

/// A running `get` or `put`.
pub(crate) struct Command {
    pub(crate) settings: Settings,
    /// Policies of the engine, if the policy is not one that the mover runs.
    engine_choice: Option<Choice>,
    engine: Option<OwnEngine>,
    access: Access,
    jobs: usize,
    show: Show,
    json: Option<PathBuf>,
    quiet: bool,
    report: Report,
    started: Instant,
}

/// Parses the address; an error counts as wrong usage.
pub(crate) fn address(text: &str) -> Result<Url, Failure> {
    text.parse().map_err(Failure::usage)
}

impl Command {
    /// Checks options, login and certificates before a connection is made. From then on this process can write only to
    /// the report and to `target`: a file, or a directory with its contents.
    pub(crate) fn prepare(
        way: Way,
        url: &Url,
        options: Options,
        target: Option<&Path>,
    ) -> Result<Self, Failure> {
        if let Some(json) = &options.json {
            output::check_writable(json)?;
        }
        let settings = options.settings()?;
        let security = options.security(url)?;
        let login = login::find(url, options.netrc.as_deref())?;
        // Before any other thread starts, for confinement does not reach threads that already run.
        confine(target, options.json.as_deref());
        let cancel = cancel_on_signal()?;
        let access = Access::to(url, login, security, options.patience(), cancel);
        let report = Report::new(way.name(), url, options.policy);
        let engine_choice = options.policy.needs_engine().then(|| way.choice(options.policy));
        let quiet = options.quiet || options.reports_to_stdout();
        let show = Show::new(options.quiet);
        let (jobs, json, started) = (usize::from(options.jobs), options.json, Instant::now());
        let engine = None;
        Ok(Self { settings, engine_choice, engine, access, jobs, show, json, quiet, report, started })
    }

    /// Confines this thread further: it can write only to `target` and the report.
    pub(crate) fn confine(&self, target: &Path) {
        confine(Some(target), self.json.as_deref());
    }

    /// Starts the engine if the policy needs one. Called after the last confinement, which then holds for the engine's
    /// thread, too.
    fn begin_engine(&mut self) {
        match self.engine_choice.map(OwnEngine::start) {
            Some(Ok(engine)) => self.engine = Some(engine),
            Some(Err(error)) => {
                self.show.say(&format!("fit cannot work here, the kernel sizes the connections: {error:#}"));
            }
            None => {}
        }
    }

    /// Moves one file.
    pub(crate) fn one(
        &mut self,
        remote: &Path,
        local: &Path,
        work: impl FnOnce(&mut Worker, &mut dyn FnMut(Event<'_>)) -> Result<Moved, ClientError>,
    ) {
        self.begin_engine();
        let started = Instant::now();
        let mut worker = Worker::new(&self.access, &self.settings);
        let mut tally = Tally::default();
        let show = &self.show;
        let moved = work(&mut worker, &mut |event| {
            tally.note(&event);
            show.event(local, &event);
        });
        self.show.clear();
        self.note_server(&worker);
        drop(worker);
        let treated = treated(self.engine.as_ref(), &moved);
        self.report.files.push(FileReport::new(remote, local, &moved, &tally, started.elapsed(), treated));
        if let Err(error) = moved {
            self.report.failed(error);
        }
    }

    /// Notes what the server of a worker's session has announced. Says so if a password went to it in clear text without need.
    fn note_server(&mut self, worker: &Worker) {
        let Some(server) = worker.server() else { return };
        self.report.server(server);
        let Access { login, security, .. } = &self.access;
        let sent_password = !login.is_anonymous() && login.password.is_some();
        if sent_password && matches!(security, Security::Plain) && server.features.auth_tls() {
            self.show.say("the password went in clear text, though the server offers TLS: --tls encrypts");
        }
    }

    /// Returns a worker that has no session yet.
    pub(crate) fn worker(&self) -> Worker {
        Worker::new(&self.access, &self.settings)
    }

    /// Keeps the summary off standard output, which receives the file.
    pub(crate) fn say_nothing_on_stdout(&mut self) {
        self.quiet = true;
    }

    /// Notes that the target, a pipe or a device, keeps no part of the file.
    pub(crate) fn keeps_no_part(&mut self) {
        self.report.keeps_part = false;
    }

    /// Notes the entries of a tree that are skipped: `count` in all, the first of them named.
    pub(crate) fn left_out(&mut self, named: impl Iterator<Item = String>, count: usize) {
        for line in named.take(LEFT_OUT_SHOWN) {
            self.show.say(&format!("left out {line}"));
            self.report.skipped.push(line);
        }
        self.report.skipped_count = count;
    }

    /// Shows how much of a tree has been listed so far.
    pub(crate) fn counted(&self, tree: &Tree) {
        self.show.counted(tree.files.len(), tree.directories.len());
    }

    /// Notes a directory or file of a tree that cannot be made.
    pub(crate) fn not_made(&mut self, remote: &Path, local: &Path, refused: ClientError) {
        let made = Err(refused);
        let refused = FileReport::new(remote, local, &made, &Tally::default(), Duration::ZERO, None);
        self.report.files.push(refused);
        if let Err(error) = made {
            self.report.failed(error);
        }
    }

    /// Ends the command for a tree of which nothing can be moved; the report names the error, too.
    pub(crate) fn give_up(
        mut self,
        worker: &Worker,
        remote: &Path,
        local: &Path,
        error: ClientError,
    ) -> Outcome {
        self.show.clear();
        self.note_server(worker);
        self.keeps_no_part();
        self.not_made(remote, local, error);
        self.finish()
    }

    /// Moves many files of `bytes` in total (`None`: not known), several at a time; `first` has a session already.
    pub(crate) fn many<T: Sync>(
        &mut self,
        first: Worker,
        items: &[T],
        bytes: Option<u64>,
        work: impl Fn(&mut Worker, &T, &mut dyn FnMut(Event<'_>)) -> Done + Sync,
    ) {
        self.note_server(&first);
        self.begin_engine();
        let in_flight = self.jobs.min(items.len()).max(1);
        self.settings.share_rates(in_flight as u64);
        let mut workers = vec![first.with_settings(&self.settings)];
        workers.resize_with(in_flight, || Worker::new(&self.access, &self.settings));
        self.show.many(items.len(), bytes);
        let before = self.report.files.len();
        let (show, report, engine) = (&self.show, &mut self.report, self.engine.as_ref());
        let work = |worker: &mut Worker, item: &T| {
            let (started, mut tally, mut part) = (Instant::now(), Tally::default(), show.part());
            let done = work(worker, item, &mut |event| {
                tally.note(&event);
                part.event(&event);
            });
            if let (.., Ok(outcome)) = &done {
                part.end(outcome);
            }
            (done, tally, started.elapsed())
        };
        let begun = in_parallel(workers, items, work, |_, ((remote, local, moved), tally, elapsed)| {
            show.done();
            let treated = treated(engine, &moved);
            report.files.push(FileReport::new(&remote, &local, &moved, &tally, elapsed, treated));
            if let Err(error) = moved {
                report.failed(error);
            }
        });
        self.show.clear();
        if let Err(source) = begun {
            self.report.failed(ClientError::Resources { source });
        }
        if self.report.files.len() - before < items.len() {
            self.report.failed(ClientError::Interrupted);
        }
    }

    /// Writes the report; returns success or the first error.
    pub(crate) fn finish(mut self) -> Outcome {
        self.report.ended(self.started.elapsed());
        let limits = self.engine.take().map(OwnEngine::end);
        limits.into_iter().flatten().for_each(|limit| self.show.say(&limit));
        let written = self.json.as_ref().map_or(Ok(()), |json| output::json(json, &self.report));
        let shown = if self.quiet { Ok(()) } else { output::line(&self.report.to_string()) };
        let Some(error) = self.report.error() else {
            written.and(shown)?;
            return Ok(0);
        };
        // A full disk has no room for the report either.
        for unwritten in [written, shown].into_iter().filter_map(Result::err) {
            self.show.say(&format!("{unwritten:#}"));
        }
        Err(Failure::new(crate::exit::FAILED, error))
    }
}

/// Returns the engine's settings on the connection that moved a file.
fn treated(engine: Option<&OwnEngine>, moved: &Result<Moved, ClientError>) -> Option<Treated> {
    engine?.treated(moved.as_ref().ok()?.report.as_ref()?.cookie)
}

/// Restricts writing to `target` and `json`, whatever a server sends. Reading is not confined: to resolve a host name,
/// the system's library reads files that are not known here.
fn confine(target: Option<&Path>, json: Option<&Path>) {
    let json = json.filter(|json| !output::is_stdout(json)).map(|json| {
        let file = follow(json).unwrap_or_else(|_| json.to_owned());
        // A missing file is created at the end, in its directory.
        if file.exists() { file } else { file.parent().unwrap_or(Path::new("")).to_owned() }
    });
    let begin = || {
        let mut rules = Confinement::of_writing()?;
        for path in target.into_iter().chain(json.as_deref()) {
            let path = if path.as_os_str().is_empty() { Path::new(".") } else { path };
            rules.allow(path, Right::Write)?;
        }
        rules.begin()
    };
    // Without Landlock in the kernel, files are moved unconfined.
    let _may_lack = begin();
}

/// Returns a handle that SIGINT and SIGTERM cancel, which ends the transfer in order; a later signal ends the program. Signals
/// that this process was started to ignore, as SIGINT by `&` in a script, stay ignored. A file beyond the largest size
/// (`RLIMIT_FSIZE`) fails, instead of ending the program.
fn cancel_on_signal() -> anyhow::Result<Cancel> {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    use bufwise_socket::signals::Ignored;
    use nix::sys::signal::{SigSet, Signal};
    use signal_hook::consts::{SIGINT, SIGTERM};

    let what = "cannot watch for signals";
    SigSet::from(Signal::SIGXFSZ).thread_block().context(what)?;
    let cancel = Cancel::new().context(what)?;
    let (mut wake, waker) = UnixStream::pair().context(what)?;
    let again = Arc::new(AtomicBool::new(false));
    let ignored = Ignored::by_this_process();
    for signal in [SIGINT, SIGTERM].into_iter().filter(|signal| !ignored.has(*signal)) {
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&again)).context(what)?;
        signal_hook::low_level::pipe::register(signal, waker.try_clone().context(what)?).context(what)?;
    }
    let told = cancel.clone();
    let watch = move || {
        if wake.read(&mut [0]).is_ok_and(|count| count > 0) {
            told.cancel();
            std::thread::sleep(AT_ONE_TIME);
            again.store(true, Ordering::SeqCst);
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).context(what)?;
    Ok(cancel)
}
