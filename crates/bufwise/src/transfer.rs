//! What `get` and `put` have in common: options, who logs in, progress, the report.

mod login;
mod options;
mod progress;
mod report;

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use bufwise_transfer::client::{Access, ClientError, Event, Outcome as Moved, Settings, Url, Worker};
use bufwise_transfer::mover::Cancel;

use self::progress::Show;
use self::report::{FileReport, Report};
use crate::exit::{Failure, Outcome};
use crate::output;

pub(crate) use self::options::Options;

/// A running `get` or `put`.
pub(crate) struct Command {
    pub(crate) settings: Settings,
    access: Access,
    show: Show,
    json: Option<std::path::PathBuf>,
    quiet: bool,
    report: Report,
    started: Instant,
}

/// Reads the address; what is wrong with it is wrong usage.
pub(crate) fn address(text: &str) -> Result<Url, Failure> {
    text.parse().map_err(Failure::usage)
}

impl Command {
    /// Looks at everything that can be wrong before a connection is made.
    pub(crate) fn prepare(name: &'static str, url: &Url, options: Options) -> Result<Self, Failure> {
        if let Some(json) = &options.json {
            output::check_writable(json)?;
        }
        let settings = options.settings()?;
        let security = options.security(url)?;
        let login = login::find(url, options.netrc.as_deref())?;
        let cancel = cancel_on_signal()?;
        let access = Access::to(url, login, security, options.patience(), cancel);
        let report = Report::new(name, url, settings.policy);
        let quiet = options.quiet || options.json.as_deref().is_some_and(output::is_stdout);
        let show = Show::new(options.quiet);
        Ok(Self { settings, access, show, json: options.json, quiet, report, started: Instant::now() })
    }

    /// Moves one file.
    pub(crate) fn one(
        &mut self,
        remote: &Path,
        local: &Path,
        work: impl FnOnce(&mut Worker<'_>, &mut dyn FnMut(Event<'_>)) -> Result<Moved, ClientError>,
    ) {
        let started = Instant::now();
        let mut worker = Worker::new(&self.access, &self.settings);
        let mut attempts = 1;
        let show = &self.show;
        let moved = work(&mut worker, &mut |event| {
            attempts += u32::from(matches!(event, Event::Retry { .. } | Event::BegunAnew));
            show.event(local, &event);
        });
        self.show.clear();
        if let Some(server) = worker.server() {
            self.report.server(server);
        }
        drop(worker);
        self.report.files.push(FileReport::new(remote, local, &moved, attempts, started.elapsed()));
        if let Err(error) = moved {
            self.report.failed(error);
        }
    }

    /// The end: the report, and success or the first error.
    pub(crate) fn finish(mut self) -> Outcome {
        self.report.ended(self.started.elapsed());
        if let Some(json) = &self.json {
            output::json(json, &self.report)?;
        }
        if !self.quiet {
            output::line(&self.report.to_string())?;
        }
        match self.report.error() {
            None => Ok(0),
            Some(error) => Err(Failure::new(crate::exit::FAILED, error)),
        }
    }
}

/// SIGINT and SIGTERM end the transfer in order; a second one ends the program.
fn cancel_on_signal() -> anyhow::Result<Cancel> {
    use std::io::Read;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::AtomicBool;

    use signal_hook::consts::{SIGINT, SIGTERM};

    let what = "cannot watch for signals";
    let cancel = Cancel::new().context(what)?;
    let (mut wake, waker) = UnixStream::pair().context(what)?;
    let again = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        // In this order the first signal finds the flag unset.
        signal_hook::flag::register_conditional_default(signal, Arc::clone(&again)).context(what)?;
        signal_hook::flag::register(signal, Arc::clone(&again)).context(what)?;
        signal_hook::low_level::pipe::register(signal, waker.try_clone().context(what)?).context(what)?;
    }
    let told = cancel.clone();
    let watch = move || {
        if wake.read(&mut [0]).is_ok() {
            told.cancel();
        }
    };
    std::thread::Builder::new().name("signals".to_owned()).spawn(watch).context(what)?;
    Ok(cancel)
}
