//! A simulated host: it carries actions out at once and records them; time passes only when a test says so.

use std::collections::{BTreeMap, VecDeque};
use std::io;

use bufwise_bpf::{Conditions, FlowState, Matching, Released, Shares};
use bufwise_units::Micros;

use super::super::super::config::{Options, Settings};
use super::super::super::event::{Action, Event, Facts, Found, GivenBack, Notice, Regrouped, Sweep, Work};
use super::super::super::task::{PlannedGroup, Task};
use super::super::{Daemon, Phase, Surroundings};
use crate::caps::Change;
use crate::control::Reply;
use crate::error::{Error, Result, in_words};
use crate::leftovers::Cleared;
use crate::tcp_memory::TcpMemory;
use crate::tuner::plan::Plan;

/// Returns a task for the whole host, with 1 MiB to send and to receive.
pub(super) fn task(policy: &str) -> Task {
    let memory = Some("1MiB".parse().unwrap());
    let options = Options {
        policy: Some(policy.parse().unwrap()),
        memory,
        receive_memory: memory,
        ..Options::default()
    };
    let settings = Settings::from(options);
    let plan = Plan::new(settings.policy, settings.asked).unwrap();
    Task { settings, plan, cgroups: Vec::new(), groups: Vec::new(), matching: Matching::default() }
}

/// Returns the task of [`task`] with a group, whose policy is `eq`, beside the rest, which has `policy`.
pub(super) fn grouped(policy: &str) -> Task {
    let mut task = task(policy);
    let conditions = Conditions { cgroup: "/db".parse().ok(), ..Conditions::default() };
    task.groups.push(PlannedGroup { name: "db".to_owned(), conditions, plan: self::task("eq").plan });
    task
}

pub(super) fn failure(text: &str) -> Error {
    Error::System { operation: text.to_owned(), source: io::Error::other(text.to_owned()) }
}

/// The simulated host.
pub(super) struct World {
    pub(super) daemon: Daemon,
    pub(super) now: Micros,
    /// Connections that the engine reports.
    pub(super) flows: Vec<FlowState>,
    /// The kernel's memory for TCP.
    pub(super) host: Option<TcpMemory>,
    pub(super) leftovers: Cleared,
    /// Outcomes of the next actions; once a queue is empty, actions succeed and find nothing.
    pub(super) configurations: VecDeque<Result<Task>>,
    pub(super) loads: VecDeque<Result<Regrouped>>,
    pub(super) found: VecDeque<Result<Found>>,
    pub(super) regrouped: VecDeque<Regrouped>,
    pub(super) sweeps: VecDeque<Sweep>,
    /// How many of the next attempts at this work fail, for lack of memory.
    pub(super) failures: BTreeMap<Work, u32>,
    /// Number of attempts so far, failed or not.
    pub(super) attempts: BTreeMap<Work, u32>,
    /// The administrator's changes; reported once.
    pub(super) seen: Vec<(String, Result<Vec<Change>>)>,
    pub(super) released: Released,
    /// Events that come while an engine is being loaded.
    pub(super) during_load: VecDeque<Event>,
    pub(super) sample_cost: Micros,
    pub(super) sweep_cost: Micros,
    pub(super) discover_cost: Micros,
    /// How long a search for the programs of sockets takes.
    pub(super) programs_cost: Micros,
    /// Times at which the programs of sockets were searched for.
    pub(super) program_searches: Vec<Micros>,
    /// Connections that have come or gone since the last sample.
    pub(super) turnover: u64,
    /// Whether an engine is loaded.
    pub(super) engine: bool,
    pub(super) loaded_with: Shares,
    /// Actions on the host, in order.
    pub(super) did: Vec<String>,
    pub(super) log: Vec<String>,
    pub(super) notices: Vec<Notice>,
    pub(super) replies: Vec<Reply>,
    pub(super) facts: Option<Facts>,
    /// Samples of the history: the time, and the number of the engine's connections.
    pub(super) recorded: Vec<(Micros, usize)>,
    pub(super) shares: Vec<(Micros, Shares)>,
    /// Sizes to which the devices were bounded, bytes.
    pub(super) sizes: Vec<u64>,
    /// Times of signs of life for the engine, besides the shares.
    pub(super) beats: Vec<Micros>,
    /// The reason of the end, empty for success.
    pub(super) ended: Option<String>,
}

impl World {
    pub(super) fn new(task: Task) -> Self {
        Self::in_surroundings(task, Surroundings::default())
    }

    pub(super) fn with_watchdog(task: Task, watchdog: Micros) -> Self {
        Self::in_surroundings(task, Surroundings { watchdog: Some(watchdog), ..Surroundings::default() })
    }

    pub(super) fn in_the_first_namespace(task: Task) -> Self {
        Self::in_surroundings(task, Surroundings { in_the_first: true, ..Surroundings::default() })
    }

    fn in_surroundings(task: Task, surroundings: Surroundings) -> Self {
        let now = Micros::from_secs(1_000);
        Self {
            daemon: Daemon::new(task, surroundings, now),
            now,
            flows: Vec::new(),
            host: None,
            leftovers: Cleared::default(),
            configurations: VecDeque::new(),
            loads: VecDeque::new(),
            found: VecDeque::new(),
            regrouped: VecDeque::new(),
            sweeps: VecDeque::new(),
            failures: BTreeMap::new(),
            attempts: BTreeMap::new(),
            seen: Vec::new(),
            released: Released::default(),
            during_load: VecDeque::new(),
            sample_cost: Micros(50),
            sweep_cost: Micros::ZERO,
            discover_cost: Micros::ZERO,
            programs_cost: Micros::ZERO,
            program_searches: Vec::new(),
            turnover: 0,
            engine: false,
            loaded_with: Shares::default(),
            did: Vec::new(),
            log: Vec::new(),
            notices: Vec::new(),
            replies: Vec::new(),
            facts: None,
            recorded: Vec::new(),
            shares: Vec::new(),
            sizes: Vec::new(),
            beats: Vec::new(),
            ended: None,
        }
    }

    /// Returns a world whose daemon tunes, without the records of its start.
    pub(super) fn tuning(task: Task) -> Self {
        let mut world = Self::new(task);
        world.feed(Event::Begin);
        assert!(world.engine && world.ended.is_none());
        world.did.clear();
        world.log.clear();
        world.notices.clear();
        world
    }

    /// Feeds an event, and all results that follow at once.
    pub(super) fn feed(&mut self, event: Event) {
        let mut events = VecDeque::from([event]);
        while let Some(event) = events.pop_front()
            && self.ended.is_none()
        {
            let mut results = Vec::new();
            for action in self.daemon.step(self.now, event) {
                if matches!(action, Action::Load(_)) {
                    results.extend(self.during_load.drain(..));
                }
                results.extend(self.perform(action));
            }
            results.into_iter().rev().for_each(|event| events.push_front(event));
        }
    }

    /// Lets time pass, from one due time to the next.
    pub(super) fn run(&mut self, span: Micros) {
        let end = self.now + span;
        while self.ended.is_none() {
            let next = self.daemon.next(self.now).max(self.now);
            if next > end {
                break;
            }
            // Time always advances, or this would be a busy loop.
            self.now = next.max(self.now + Micros(1));
            self.feed(Event::Tick);
        }
        self.now = self.now.max(end);
    }

    pub(super) fn readies(&self) -> usize {
        self.notices.iter().filter(|notice| matches!(notice, Notice::Ready(_))).count()
    }

    /// Checks that the daemon tunes: shares are written.
    pub(super) fn goes_on(&mut self) {
        assert!(self.engine && self.ended.is_none());
        let before = self.shares.len();
        self.run(Micros::from_secs(5));
        assert!(self.shares.len() >= before + 5, "shares are written");
    }

    /// Returns whether no reload is under way.
    pub(super) fn is_settled(&self) -> bool {
        match self.daemon.phase {
            Phase::Tuning => self.engine,
            Phase::Paused => !self.engine,
            _ => false,
        }
    }

    fn did(&mut self, what: &str) {
        self.did.push(what.to_owned());
    }

    /// Counts an attempt at work on the engines; returns the event if it is to fail.
    fn failed(&mut self, action: &Action) -> Option<Event> {
        let work = match action {
            Action::Sample => Work::Sample,
            Action::Share(_) => Work::Share,
            Action::Beat => Work::Beat,
            Action::Grant => Work::Grant,
            _ => return None,
        };
        *self.attempts.entry(work).or_default() += 1;
        let left = self.failures.get_mut(&work).filter(|left| **left > 0)?;
        *left -= 1;
        Some(Event::Troubled(work, failure("ENOMEM")))
    }

    fn perform(&mut self, action: Action) -> Option<Event> {
        if let Some(event) = self.failed(&action) {
            return Some(event);
        }
        match action {
            Action::ClearLeftovers => {
                self.did("clear");
                Some(Event::Cleared(self.leftovers.clone()))
            }
            Action::ReadConfiguration => {
                self.did("read");
                let task = self.configurations.pop_front().unwrap_or_else(|| Ok(task("abt")));
                Some(Event::Configured(task.map(Box::new)))
            }
            Action::Discover(task) => {
                // The regular searches find nothing new.
                let regular = self.found.is_empty() && self.is_settled();
                if !regular {
                    let choice = task.plan.choice;
                    self.did(&format!("discover {} (send), {} (receive)", choice.send, choice.receive));
                }
                self.now += self.discover_cost;
                let nothing = || Ok(Found { known: [0].into(), ..Found::default() });
                Some(Event::Discovered(self.found.pop_front().unwrap_or_else(nothing)))
            }
            Action::Regroup { settle, programs } => {
                self.did(if settle { "settle" } else { "regroup" });
                if programs {
                    self.program_searches.push(self.now);
                    self.now += self.programs_cost;
                }
                let searched = programs.then_some(self.programs_cost);
                let nothing = Regrouped { settled: settle, searched, ..Regrouped::default() };
                Some(Event::Regrouped(self.regrouped.pop_front().unwrap_or(nothing)))
            }
            Action::LowerMaxima => {
                self.did("lower");
                Some(Event::Lowered(Vec::new()))
            }
            Action::Load(load) => {
                let inherits = |before: &Option<usize>| if before.is_some() { "inheriting" } else { "fresh" };
                let parts: Vec<&str> = load.inherit.iter().map(inherits).collect();
                self.did(&format!("load {}", parts.join(" ")));
                self.loaded_with = load.shares[0];
                let outcome = self.loads.pop_front().unwrap_or(Ok(Regrouped::default()));
                self.engine |= outcome.is_ok();
                Some(Event::Loaded(outcome))
            }
            Action::Sample => {
                self.now += self.sample_cost;
                Some(Event::Sampled(vec![self.flows.clone()], self.host, self.sample_cost))
            }
            Action::Share(bounds) => {
                self.shares.push((self.now, bounds[0].shares));
                self.sizes.extend(bounds.iter().filter_map(|bounds| bounds.at_once));
                Some(Event::Shared(Vec::new(), Micros::ZERO))
            }
            Action::Beat => {
                self.beats.push(self.now);
                Some(Event::Beaten(self.turnover, self.host))
            }
            Action::Sweep => {
                self.did("sweep");
                self.now += self.sweep_cost;
                Some(Event::Swept(self.sweeps.pop_front().unwrap_or_default(), self.sweep_cost))
            }
            Action::WatchMaxima => Some(Event::MaximaSeen(std::mem::take(&mut self.seen))),
            Action::Grant => {
                self.did("grant");
                Some(Event::Granted(Vec::new(), Micros::ZERO))
            }
            Action::GiveBack => {
                self.did("give back");
                self.engine = false;
                let settings = vec!["tcp_rmem (network namespace blue)".to_owned()];
                let released = Ok(self.released);
                Some(Event::GivenBack(GivenBack { settings, failed: Vec::new(), released }))
            }
            other => {
                self.note(other);
                None
            }
        }
    }

    fn note(&mut self, action: Action) {
        match action {
            Action::Describe(_, facts) => self.facts = Some(facts),
            Action::Record(parts, _) => self.recorded.push((self.now, parts.iter().map(Vec::len).sum())),
            Action::Answer(reply) => self.replies.push(reply),
            Action::Log(line) => self.log.push(line.text),
            Action::Notify(notice) => self.notices.push(notice),
            Action::Quit(end) => {
                self.ended = Some(end.map_or_else(|error| in_words(&error), |()| String::new()));
            }
            other => panic!("{other:?} changes the host"),
        }
    }
}
