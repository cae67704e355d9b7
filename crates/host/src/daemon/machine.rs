//! The daemon as a state machine: an event and the time go in, actions come out. No I/O, no clock.
//!
//! ```text
//!            Begin              Discovered         Loaded
//!   Starting ----> (leftovers) -----------> (load) ------> Tuning
//!                                                         |   ^  \ Restore
//!                                                  Hangup v   |   v
//!                                               Reading --+  Paused
//!                                  (wrong: as before) |         | Hangup: as from Tuning
//!                                                     v         v
//!                       Undoing <--- failed --- Loading --> Tuning
//!          any phase: Stop, Failed --> Ending --> GivenBack --> Quit
//! ```
//!
//! Properties, each a test:
//! - a configuration that is wrong, and an engine that cannot be loaded, leave what ran as it was;
//! - SIGHUP during a load is heard: the configuration is read again after it;
//! - shares are written more often than the heartbeat (5 s) expires, whatever the looks cost;
//! - a sign of life comes three times in the watchdog's time;
//! - whatever happens, everything is given back once before the end.

mod end;
#[cfg(test)]
mod tests;
mod work;

use std::collections::BTreeSet;
use std::sync::Arc;

use bufwise_units::Micros;

use super::due::Due;
use super::event::{Action, Event, Found, Load, Notice};
use super::news::News;
use super::task::Task;
use crate::caps::{Change, Setting};
use crate::container;
use crate::error::{Error, Result, in_words};
use crate::leftovers::Cleared;
use crate::log::{Kind, Limiter, Line};
use crate::metrics::Counts;
use crate::tuner::books::Books;

/// Where the daemon stands.
#[derive(Debug)]
enum Phase {
    /// Before the first engine.
    Starting,
    Tuning,
    /// Everything was given back by `restore`.
    Paused,
    /// The configuration is being read, or read and not taken in yet.
    Reloading(Reload),
    /// Everything is being given back; why.
    Ending(Option<Error>),
}

/// A reload under way.
#[derive(Debug)]
struct Reload {
    stage: Stage,
    /// The daemon was paused before.
    paused: bool,
    /// Asked for by SIGHUP; else it follows from a change of the administrator's.
    asked: bool,
}

/// How far a reload has come.
#[derive(Debug)]
enum Stage {
    /// The configuration is being read.
    Reading,
    /// An engine is being loaded for this.
    Loading(Arc<Task>),
    /// The load has failed: the former maxima are being raised again.
    Undoing,
}

/// Facts of the environment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Surroundings {
    /// How often the service manager wants a sign of life.
    pub(super) watchdog: Option<Micros>,
    /// The host's cgroups are out of reach.
    pub(super) contained: bool,
}

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    task: Arc<Task>,
    phase: Phase,
    began: Micros,
    due: Due,
    books: Books,
    news: News,
    limiter: Limiter,
    counts: Counts,
    contained: bool,
    /// SIGHUP came during a load.
    hung_up: bool,
    /// Told once the first sweep of an engine is over.
    announcement: Option<Announcement>,
    /// Network namespaces by inode: known, and those of connections that were not known at the last look.
    known: BTreeSet<u64>,
    elsewhere: BTreeSet<u64>,
    /// Idle connections that the last sweep could do nothing about.
    stubborn: usize,
    /// Fate of connections that existed, as it was logged.
    adoption_limit: Option<String>,
    look_began: Micros,
    sweep_began: Micros,
    actions: Vec<Action>,
}

/// A line for when an engine has begun to work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Announcement {
    Started,
    Reloaded,
}

impl Daemon {
    pub(super) fn new(task: Task, surroundings: Surroundings, now: Micros) -> Self {
        let task = Arc::new(task);
        Self {
            books: Books::new(&task.plan),
            task,
            phase: Phase::Starting,
            began: now,
            due: Due::new(surroundings.watchdog, now),
            news: News::default(),
            limiter: Limiter::default(),
            counts: Counts::default(),
            contained: surroundings.contained,
            hung_up: false,
            announcement: None,
            known: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            stubborn: 0,
            adoption_limit: None,
            look_began: now,
            sweep_began: now,
            actions: Vec::new(),
        }
    }

    /// Takes an event in; what is to be done now, in this order. Results of actions are to be fed back as they come.
    pub(super) fn step(&mut self, now: Micros, event: Event) -> Vec<Action> {
        match event {
            Event::Begin => self.begin(),
            Event::Tick => self.tick(now),
            Event::Stop => self.end(None),
            Event::Failed(error) => self.end(Some(error)),
            Event::Hangup => self.hang_up(),
            Event::Asked(request) => self.asked(request, now),
            Event::GivenBack(given_back) => self.given_back(given_back, now),
            // The end has begun: results of earlier actions no longer matter.
            _ if matches!(self.phase, Phase::Ending(_)) => {}
            Event::SizesRequested => {
                self.due.granted(now);
                self.act(Action::Grant);
            }
            Event::Cleared(cleared) => self.cleared(&cleared, now),
            Event::Configured(task) => self.configured(task, now),
            Event::Discovered(found) => self.discovered(found, now),
            Event::Lowered(failed) => {
                self.counts.refused_bounds += failed.len() as u64;
                self.say_all(failed, |line| Line::warning(Kind::PutBack, line), now);
            }
            Event::Loaded(loaded) => self.loaded(loaded, now),
            Event::Looked(flows) => self.looked(flows, now),
            Event::Shared(refused) => self.shared(refused, now),
            Event::Swept(sweep) => self.swept(sweep, now),
            Event::MaximaSeen(seen) => self.maxima_seen(seen, now),
            Event::Granted(refused) => self.granted(refused, now),
        }
        std::mem::take(&mut self.actions)
    }

    /// When a [`Event::Tick`] is due.
    pub(super) fn next(&self, now: Micros) -> Micros {
        self.due.next(now)
    }

    /// Whether requests of the engine's side are waited for now; else they gather.
    pub(super) fn grants(&self, now: Micros) -> bool {
        self.is_tuning() && now >= self.due.gathered
    }

    fn act(&mut self, action: Action) {
        self.actions.push(action);
    }

    fn say(&mut self, line: Line, now: Micros) {
        let line = self.limiter.pass(line, now);
        self.actions.extend(line.map(Action::Log));
    }

    fn say_all(&mut self, texts: Vec<String>, line: impl Fn(String) -> Line, now: Micros) {
        texts.into_iter().for_each(|text| self.say(line(text), now));
    }

    fn is_tuning(&self) -> bool {
        matches!(self.phase, Phase::Tuning)
    }

    fn begin(&mut self) {
        let first = if self.task.plan.observe_only {
            Action::Discover(Arc::clone(&self.task))
        } else {
            Action::ClearLeftovers
        };
        self.act(first);
    }

    fn cleared(&mut self, Cleared { done, failed }: &Cleared, now: Micros) {
        for line in done {
            let line = Line::info(Kind::PutBack, format_args!("left by a killed bufwise: {line}"));
            self.say(line, now);
        }
        self.say_all(failed.clone(), |line| Line::warning(Kind::PutBack, line), now);
        self.act(Action::Discover(Arc::clone(&self.task)));
    }

    fn hang_up(&mut self) {
        let paused = match self.phase {
            Phase::Tuning => false,
            Phase::Paused => true,
            Phase::Starting | Phase::Reloading(_) => {
                self.hung_up = true;
                return;
            }
            Phase::Ending(_) => return,
        };
        self.phase = Phase::Reloading(Reload { stage: Stage::Reading, paused, asked: true });
        self.act(Action::Notify(Notice::Reloading));
        self.act(Action::ReadConfiguration);
    }

    fn configured(&mut self, task: Result<Box<Task>>, now: Micros) {
        let Phase::Reloading(reload) = &mut self.phase else { return };
        let mut task = match task {
            Ok(task) => task,
            Err(error) => {
                self.phase = if reload.paused { Phase::Paused } else { Phase::Tuning };
                return self.stays(&error, now);
            }
        };
        // These are settled at the start.
        let same_socket = task.settings.socket == self.task.settings.socket;
        let same_format = task.settings.log_format == self.task.settings.log_format;
        let same_metrics = task.settings.metrics == self.task.settings.metrics;
        let same_history = task.settings.history == self.task.settings.history;
        task.settings.socket.clone_from(&self.task.settings.socket);
        task.settings.log_format = self.task.settings.log_format;
        task.settings.metrics.clone_from(&self.task.settings.metrics);
        task.settings.history.clone_from(&self.task.settings.history);
        let task = Arc::<Task>::from(task);
        reload.stage = Stage::Loading(Arc::clone(&task));
        for (same, what) in [
            (same_socket, "another control socket"),
            (same_format, "another log format"),
            (same_metrics, "another address of the metrics"),
            (same_history, "another file of the history"),
        ] {
            if !same {
                self.say(
                    Line::warning(Kind::Life, format_args!("{what} takes effect at the next start")),
                    now,
                );
            }
        }
        self.act(Action::LowerMaxima);
        self.act(Action::Discover(task));
    }

    /// The configuration that ran goes on.
    fn stays(&mut self, error: &Error, now: Micros) {
        self.counts.failed_reloads += 1;
        let words = in_words(error);
        self.say(Line::warning(Kind::Life, format_args!("the old configuration stays: {words}")), now);
        self.settled();
    }

    fn discovered(&mut self, found: Result<Found>, now: Micros) {
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.not_discovered(error, now),
        };
        self.known = found.known.clone();
        let any_new = !found.new.is_empty();
        self.tell_found(found, now);
        match &self.phase {
            Phase::Starting => {
                let task = Arc::clone(&self.task);
                self.load(task, false);
            }
            Phase::Reloading(Reload { stage: Stage::Loading(next), .. }) => {
                let (task, inherit) = (Arc::clone(next), next.continues(&self.task));
                self.load(task, inherit);
            }
            Phase::Reloading(Reload { stage: Stage::Undoing, .. }) => self.undone(now),
            Phase::Tuning if any_new => self.sweep(now),
            _ => {}
        }
    }

    fn not_discovered(&mut self, error: Error, now: Micros) {
        match &self.phase {
            Phase::Reloading(Reload { stage: Stage::Loading(_), .. }) => self.undo(&error, now),
            Phase::Reloading(_) => {
                let words = in_words(&error);
                self.say(Line::warning(Kind::Refused, format_args!("bounds are not raised: {words}")), now);
                self.undone(now);
            }
            _ => self.end(Some(error)),
        }
    }

    fn tell_found(&mut self, Found { new, gone, failed, .. }: Found, now: Micros) {
        self.counts.refused_bounds += failed.len() as u64;
        self.say_all(
            failed,
            |line| Line::warning(Kind::Refused, format_args!("bounds stay as they are in {line}")),
            now,
        );
        self.say_all(
            gone,
            |label| Line::info(Kind::Namespace, format_args!("network namespace {label} is gone")),
            now,
        );
        for (label, changes) in new {
            self.say(Line::info(Kind::Namespace, format_args!("network namespace {label} found")), now);
            if !changes.is_empty() {
                let changes = with_reasons(changes, self.task.groups.is_empty());
                self.say(Line::info(Kind::Cap, format_args!("in network namespace {label} {changes}")), now);
            }
        }
    }

    fn load(&mut self, task: Arc<Task>, inherit: bool) {
        let shares = Books::new(&task.plan).shares();
        self.act(Action::Load(Load { task, inherit, shares }));
    }

    fn loaded(&mut self, loaded: Result<()>, now: Micros) {
        if let Err(error) = loaded {
            return match &self.phase {
                Phase::Reloading(_) => self.undo(&error, now),
                _ => self.end(Some(error)),
            };
        }
        match std::mem::replace(&mut self.phase, Phase::Tuning) {
            Phase::Starting => self.announcement = Some(Announcement::Started),
            Phase::Reloading(Reload { stage, asked, .. }) => {
                if let Stage::Loading(task) = stage {
                    self.task = task;
                }
                self.announcement = asked.then_some(Announcement::Reloaded);
            }
            _ => {}
        }
        self.books = Books::new(&self.task.plan);
        self.news = News::default();
        self.due.look = now;
        self.sweep(now);
    }

    /// A reload has failed: the former maxima are raised again; the engine has not been replaced.
    fn undo(&mut self, error: &Error, now: Micros) {
        let Phase::Reloading(reload) = &mut self.phase else { return };
        reload.stage = Stage::Undoing;
        let (paused, asked) = (reload.paused, reload.asked);
        self.counts.failed_reloads += 1;
        let words = in_words(error);
        let what =
            if asked { "the old configuration stays" } else { "the programs keep the bounds that were" };
        self.say(Line::warning(Kind::Life, format_args!("{what}: {words}")), now);
        if !asked {
            return self.undone(now);
        }
        self.act(Action::LowerMaxima);
        if paused { self.undone(now) } else { self.act(Action::Discover(Arc::clone(&self.task))) }
    }

    fn undone(&mut self, now: Micros) {
        let Phase::Reloading(Reload { paused, asked, .. }) = self.phase else { return };
        self.phase = if paused { Phase::Paused } else { Phase::Tuning };
        if !paused {
            // Connections made while the programs were being exchanged.
            self.sweep(now);
        }
        if asked { self.settled() } else { self.hear_hangup() }
    }

    /// A reload is over.
    fn settled(&mut self) {
        self.act(Action::Notify(Notice::Ready(self.task.headline())));
        self.hear_hangup();
    }

    /// SIGHUP that came during a load.
    fn hear_hangup(&mut self) {
        if std::mem::take(&mut self.hung_up) {
            self.hang_up();
        }
    }

    fn announce(&mut self, now: Micros) {
        let Some(announcement) = self.announcement.take() else { return self.hear_hangup() };
        let headline = self.task.headline();
        match announcement {
            Announcement::Reloaded => {
                self.say(Line::info(Kind::Life, format_args!("reloaded: {headline}")), now);
            }
            Announcement::Started => {
                self.say(Line::info(Kind::Life, &headline), now);
                if self.task.groups.is_empty() && self.contained {
                    let warning = "the host's cgroups are out of reach, so only connections of this container are tuned";
                    let advice = container::ADVICE;
                    self.say(Line::warning(Kind::Life, format_args!("{warning}: {advice}")), now);
                }
            }
        }
        self.settled();
    }
}

/// Changes in a namespace with their reasons, in one line. A maximum is the namespace's: it cannot be raised for the
/// sockets of some cgroups alone.
fn with_reasons(changes: Vec<Change>, whole_host: bool) -> String {
    let (devices, files): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| matches!(change.setting, Setting::Device(_)));
    let why = if whole_host {
        "each socket is bounded by its policy"
    } else {
        "sockets of the cgroups are bounded by their policy; those of others there may grow so far, too, unless \
         raise-caps is false"
    };
    let whys = [(files, why), (devices, "the memory holds more writers")];
    let parts = whys.into_iter().filter(|(changes, _)| !changes.is_empty()).map(|(changes, why)| {
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        format!("{}: {why}", changes.join(", "))
    });
    parts.collect::<Vec<_>>().join("; ")
}
