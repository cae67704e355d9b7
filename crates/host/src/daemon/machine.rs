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
//!   Tuning: Troubled for a minute --> Ending
//! ```
//!
//! Properties, each a test:
//! - an invalid configuration, or an engine that cannot be loaded, leaves the running state as it was;
//! - SIGHUP during a load is not lost: the configuration is read again after the load;
//! - shares are written more often than the heartbeat (5 s) expires, however long samples take;
//! - three signs of life are sent per watchdog interval;
//! - namespaces that come without end are searched for, and their connections swept, in a bounded part of the time;
//! - a search that fails while the daemon tunes, as for lack of descriptors, is logged once and does not end it;
//! - work on the engines that fails is tried again about once a second; its failure and its next success are logged once
//!   each; a minute without a sample, or without shares that could be written, ends the daemon;
//! - in every case everything is given back once before the end.

mod end;
mod reload;
mod telling;
#[cfg(test)]
mod tests;
mod trying;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bufwise_units::Micros;

use super::due::Due;
use super::event::{Action, Event, Found, Load, Regrouped, Work};
use super::ledger::Ledgers;
use super::task::Task;
use crate::error::{Error, Result, in_words};
use crate::leftovers::Cleared;
use crate::log::{Kind, Limiter, Line};
use crate::metrics::Counts;
use crate::tcp_memory::TcpMemory;
use reload::{Reload, Stage};
use telling::{Announcement, Trouble};

/// The state of the machine.
#[derive(Debug)]
enum Phase {
    /// Before the first engine.
    Starting,
    Tuning,
    /// Everything was given back by `restore`.
    Paused,
    /// A reload is under way.
    Reloading(Reload),
    /// Everything is being given back; holds the reason if it is a failure.
    Ending(Option<Error>),
}

/// Facts of the environment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Surroundings {
    /// Interval in which the service manager requires a sign of life.
    pub(super) watchdog: Option<Micros>,
    /// Whether the host's cgroups are out of reach, as in a container.
    pub(super) contained: bool,
    /// Whether the daemon is in the host's first network namespace.
    pub(super) in_the_first: bool,
}

/// The daemon.
#[derive(Debug)]
pub(super) struct Daemon {
    task: Arc<Task>,
    phase: Phase,
    began: Micros,
    due: Due,
    ledgers: Ledgers,
    limiter: Limiter,
    counts: Counts,
    contained: bool,
    in_the_first: bool,
    /// [`Task::is_late`] of the task; it reads the host's settings, so it is asked once per task.
    is_late: bool,
    /// SIGHUP came during a load.
    hung_up: bool,
    /// Logged once the first sweep of an engine is over.
    announcement: Option<Announcement>,
    /// Network namespaces by inode: the known ones, and unknown ones of connections in the last sample.
    known: BTreeSet<u64>,
    elsewhere: BTreeSet<u64>,
    /// Causes that keep searches and work on the engines from being carried through, as logged.
    troubles: BTreeMap<Trouble, String>,
    /// Work that has failed since it last succeeded: the time of the first failure, and its error.
    failing: BTreeMap<Work, (Micros, Error)>,
    /// Namespaces whose bounds cannot be checked for changes by the administrator, and those that the last sweep could not
    /// sweep, with the causes, as logged.
    unwatched: BTreeSet<String>,
    unswept: BTreeSet<String>,
    /// Cgroups that were made again and to which the engines could not be attached, with the causes, as logged.
    unattached: BTreeSet<String>,
    /// Idle connections that the last sweep could not change.
    stubborn: usize,
    /// How existing connections are adopted, as logged.
    adoption_limit: Option<String>,
    sample_began: Micros,
    /// Processor time that this sample took, without what was done beside it.
    sample_took: Micros,
    /// Number of connections in that sample.
    looked_at: usize,
    /// The kernel's memory for TCP then.
    memory: Option<TcpMemory>,
    /// Whether that sample showed enough memory and few connections that had ended.
    calm: bool,
    sweep_began: Micros,
    /// When the last sweep began; `None` once a sample was taken after it.
    unseen_sweep: Option<Micros>,
    actions: Vec<Action>,
}

impl Daemon {
    pub(super) fn new(task: Task, surroundings: Surroundings, now: Micros) -> Self {
        let task = Arc::new(task);
        Self {
            ledgers: Ledgers::new(&task),
            is_late: task.is_late(),
            task,
            phase: Phase::Starting,
            began: now,
            due: Due::new(surroundings.watchdog, now),
            limiter: Limiter::default(),
            counts: Counts::default(),
            contained: surroundings.contained,
            in_the_first: surroundings.in_the_first,
            hung_up: false,
            announcement: None,
            known: BTreeSet::new(),
            elsewhere: BTreeSet::new(),
            troubles: BTreeMap::new(),
            failing: BTreeMap::new(),
            unwatched: BTreeSet::new(),
            unswept: BTreeSet::new(),
            unattached: BTreeSet::new(),
            stubborn: 0,
            adoption_limit: None,
            sample_began: now,
            sample_took: Micros::ZERO,
            looked_at: 0,
            memory: None,
            calm: false,
            sweep_began: now,
            unseen_sweep: None,
            actions: Vec::new(),
        }
    }

    /// Takes in an event and returns the actions to carry out, in order. The caller feeds back the actions' results
    /// as events.
    pub(super) fn step(&mut self, now: Micros, event: Event) -> Vec<Action> {
        match event {
            Event::Begin => self.begin(),
            Event::Tick => self.tick(now),
            Event::Stop => self.end(None),
            Event::Failed(error) => self.end(Some(error)),
            Event::Hangup => self.hang_up(),
            Event::Asked(request) => self.asked(request, now),
            Event::GivenBack(given_back) => self.given_back(given_back, now),
            // Results of earlier actions no longer matter at the end.
            _ if matches!(self.phase, Phase::Ending(_)) => {}
            Event::SizesRequested => self.act(Action::Grant),
            Event::Troubled(work, error) => self.troubled(work, error, now),
            Event::Cleared(cleared) => self.cleared(&cleared, now),
            Event::Configured(task) => self.configured(task, now),
            Event::Discovered(found) => self.discovered(found, now),
            Event::Lowered(failed) => {
                self.counts.refused_bounds += failed.len() as u64;
                self.say_all(failed, |line| Line::warning(Kind::PutBack, line), now);
            }
            Event::Loaded(loaded) => self.loaded(loaded, now),
            Event::Regrouped(regrouped) => self.regrouped(regrouped, now),
            Event::Sampled(parts, host, took) => self.sampled(parts, host, took, now),
            Event::Shared(refused, took) => self.shared(refused, took, now),
            Event::Beaten(turnover, host) => self.beaten(turnover, host, now),
            Event::Swept(sweep, took) => self.swept(sweep, took, now),
            Event::MaximaSeen(seen) => self.maxima_seen(seen, now),
            Event::Granted(refused, took) => self.granted(refused, took, now),
        }
        std::mem::take(&mut self.actions)
    }

    /// Returns the time at which the next [`Event::Tick`] is due.
    pub(super) fn next(&self, now: Micros) -> Micros {
        self.due.next(now)
    }

    /// Returns whether to wait for requests of the programs in the kernel now; otherwise they are left to collect.
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

    fn discovered(&mut self, found: Result<Found>, now: Micros) {
        let found = match found {
            Ok(found) => found,
            Err(error) => return self.not_discovered(error, now),
        };
        self.due.discovered(found.took, now);
        self.known = found.known.clone();
        let any_new = !found.new.is_empty() || !found.remade.is_empty();
        self.tell_trouble(Trouble::Search, None, now);
        let bounds_all = match &self.phase {
            Phase::Reloading(Reload { stage: Stage::Loading(next), .. }) => next.bounds_all(),
            _ => self.task.bounds_all(),
        };
        self.tell_found(found, bounds_all, now);
        match &self.phase {
            Phase::Starting => {
                let task = Arc::clone(&self.task);
                let none = task.parts().map(|_| None).collect();
                self.load(task, none);
            }
            Phase::Reloading(Reload { stage: Stage::Loading(next), .. }) => {
                let (task, inherit) = (Arc::clone(next), next.inherits(&self.task));
                self.load(task, inherit);
            }
            Phase::Reloading(Reload { stage: Stage::Undoing, .. }) => self.undone(now),
            Phase::Tuning if !self.task.groups.is_empty() => {
                let programs = self.due.may_search_programs(now);
                self.act(Action::Regroup { settle: any_new, programs });
            }
            Phase::Tuning if any_new => self.sweep_early(now),
            _ => {}
        }
    }

    /// Adopts connections that were passed on, and those of newly found namespaces, at once, or as soon as the last
    /// sweep has rested.
    fn regrouped(&mut self, regrouped: Regrouped, now: Micros) {
        let any = !regrouped.found.is_empty() || !regrouped.gone.is_empty() || regrouped.passed_on > 0;
        let sweeps = self.is_tuning() && (regrouped.settled || any);
        if let Some(took) = regrouped.searched {
            self.due.searched_programs(took, now);
        }
        self.tell_trouble(Trouble::Groups, regrouped.failed.clone(), now);
        self.tell_regrouped(regrouped, now);
        if sweeps {
            self.sweep_early(now);
        }
    }

    /// Handles a search that failed. One at a start or a reload must succeed; afterwards the next one comes soon, and
    /// what is known is tuned.
    fn not_discovered(&mut self, error: Error, now: Micros) {
        match &self.phase {
            Phase::Reloading(Reload { stage: Stage::Loading(_), .. }) => self.undo(&error, now),
            Phase::Reloading(_) => {
                let words = in_words(&error);
                self.say(Line::warning(Kind::Refused, format_args!("bounds are not raised: {words}")), now);
                self.undone(now);
            }
            Phase::Tuning | Phase::Paused => self.tell_trouble(Trouble::Search, Some(in_words(&error)), now),
            Phase::Starting | Phase::Ending(_) => self.end(Some(error)),
        }
    }

    fn load(&mut self, task: Arc<Task>, inherit: Vec<Option<usize>>) {
        let shares = self.ledgers.shares_of(&task, &inherit);
        self.act(Action::Load(Load { task, inherit, shares }));
    }

    fn loaded(&mut self, loaded: Result<Regrouped>, now: Micros) {
        let regrouped = match (loaded, &self.phase) {
            (Ok(regrouped), _) => regrouped,
            (Err(error), Phase::Reloading(_)) => return self.undo(&error, now),
            (Err(error), _) => return self.end(Some(error)),
        };
        match std::mem::replace(&mut self.phase, Phase::Tuning) {
            Phase::Starting => self.announcement = Some(Announcement::Started),
            Phase::Reloading(Reload { stage, asked, .. }) => {
                if let Stage::Loading(task) = stage {
                    self.ledgers.renew(&task, &task.inherits(&self.task));
                    self.is_late = task.is_late();
                    self.task = task;
                }
                self.announcement = asked.then_some(Announcement::Reloaded);
            }
            _ => {}
        }
        self.failing.clear();
        self.tell_regrouped(regrouped, now);
        self.due.sample = now;
        self.sweep(now);
    }
}
