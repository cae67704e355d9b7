//! The daemon's loop: looks, namespaces, sweeps, and what it is asked for.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use bufwise_bpf::{Config, Engine, FlowState, Group, Owners, Released, now};
use bufwise_units::{Bytes, Micros};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::config::{self, Options, Settings};
use super::events::Events;
use super::namespaces::Namespaces;
use crate::caps::{Change, Setting, Wanted};
use crate::container;
use crate::control::server::Server;
use crate::error::{During, Result, in_words};
use crate::leftovers::{self, Cleared};
use crate::log::{Kind, Log};
use crate::notify::Notify;
use crate::signals::Signals;
use crate::tuner::plan::Plan;
use crate::tuner::{self, Tuner};

/// Newcomers must not wait for the next round of shares, so looks come more often than rounds where they cost little:
/// no sooner than this, nor sooner than this many times what the one before took (0.4% of a processor).
const LOOK: Duration = Duration::from_millis(100);
const LOOK_REST: u32 = 250;
/// How often network namespaces are looked for; at once when a connection is in one that is not known.
const DISCOVERY: Duration = Duration::from_secs(5);
/// A sweep costs some microseconds a socket. It comes no sooner than this after the one before, nor sooner than this
/// many times what that took, so that sweeps take 2% of a processor at most while there is something to give back.
const SWEEP: Duration = Duration::from_secs(2);
const SWEEP_REST: u32 = 50;
/// A sweep with nothing to give back still finds what was missed.
const SWEEP_AT_LEAST: Duration = Duration::from_secs(60);
/// Entries of connections that ended unseen are kept for so long where their namespace was not swept.
const UNSEEN: Micros = Micros(3_600_000_000);
/// Wishes are gathered for so long before they are carried out.
const GATHER: Duration = Duration::from_millis(50);
/// How often it is seen whether somebody else has changed a setting: a system call each.
const SETTINGS: Duration = Duration::from_secs(1);
/// The service manager's status line changes no more often.
const STATUS: Duration = Duration::from_secs(10);

/// The command line's part of the configuration; the file may change meanwhile.
#[derive(Debug)]
pub struct Orders {
    /// The configuration file; `None`: the default one, which need not exist.
    pub file: Option<PathBuf>,
    /// Flags win over the file.
    pub flags: Options,
    /// Decide and log, and change nothing.
    pub dry_run: bool,
}

/// What is to be done, checked: the plan, and the groups it is for.
pub struct Task {
    pub(super) settings: Settings,
    pub(super) plan: Plan,
    pub(super) groups: Vec<Group>,
}

impl Orders {
    /// Reads the configuration as it is now.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), [`Error::Cgroup`](crate::Error::Cgroup) where a cgroup does not exist,
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn task(&self) -> Result<Task> {
        let settings = config::settings(self.file.as_deref(), &self.flags)?;
        let plan = Plan::new(settings.policy, settings.asked)?;
        let plan = Plan { observe_only: self.dry_run, ..plan };
        let groups = settings.cgroups.iter().map(|path| Group::open(path)).collect::<Result<_, _>>();
        Ok(Task { settings, plan, groups: groups? })
    }
}

impl Task {
    /// Path of the control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.settings.socket
    }

    /// Bounds to raise, and those of devices.
    fn wanted(&self) -> Vec<Wanted> {
        if self.plan.observe_only {
            return Vec::new();
        }
        let caps = if self.settings.raise_caps { self.plan.caps() } else { Vec::new() };
        caps.into_iter().chain(self.plan.devices()).collect()
    }

    fn scope(&self) -> String {
        let names: Vec<String> =
            self.settings.cgroups.iter().map(|path| path.display().to_string()).collect();
        if names.is_empty() { "the whole host".to_owned() } else { format!("cgroup {}", names.join(", ")) }
    }
}

/// When what is due.
struct Due {
    look: Instant,
    discovery: Instant,
    sweep_at_least: Instant,
    sweep_at_most: Instant,
    wishes: Instant,
    settings: Instant,
    status: Instant,
    alive: Instant,
}

/// The daemon.
pub struct Service {
    orders: Orders,
    pub(super) task: Task,
    pub(super) began: Instant,
    pub(super) namespaces: Namespaces,
    /// `None` once everything was given back by `restore`.
    pub(super) tuner: Option<Tuner>,
    log: Log,
    notify: Notify,
    events: Events,
    due: Due,
    /// Idle connections that the last sweep could do nothing about.
    stubborn: usize,
    owners: Owners,
    /// Namespaces of connections that were not known at the last look.
    elsewhere: BTreeSet<u64>,
    /// What becomes of connections that existed, where it is not the usual, as it was logged.
    adoption_limit: Option<String>,
}

impl Service {
    /// A daemon that has changed nothing yet.
    ///
    /// # Errors
    /// The service manager's socket cannot be used.
    pub fn new(orders: Orders, task: Task) -> Result<Self> {
        let start = Instant::now();
        Ok(Self {
            orders,
            task,
            began: start,
            namespaces: Namespaces::default(),
            tuner: None,
            log: Log::to_stderr(),
            notify: Notify::from_environment()?,
            events: Events::default(),
            due: Due {
                look: start,
                discovery: start + DISCOVERY,
                sweep_at_least: start,
                sweep_at_most: start,
                wishes: start,
                settings: start,
                status: start + STATUS,
                alive: start,
            },
            stubborn: 0,
            owners: Owners::default(),
            elsewhere: BTreeSet::new(),
            adoption_limit: None,
        })
    }

    /// Tunes until it is told to stop, and puts everything back, whatever happens.
    ///
    /// # Errors
    /// The first failure that tuning could not go on after.
    pub fn run(mut self, signals: &Signals, server: &Server) -> Result<()> {
        let result = self.start().and_then(|()| self.serve(signals, server));
        self.notify.stopping();
        let given_back = self.give_back();
        match &result {
            Ok(()) => self.log.info(Kind::Life, "stopped"),
            Err(_) => self.log.warn(Kind::Life, "stopped by an error"),
        }
        result.and(given_back.map(drop))
    }

    fn start(&mut self) -> Result<()> {
        if !self.task.plan.observe_only {
            let Cleared { done, failed } = leftovers::clear()?;
            done.iter().for_each(|line| {
                self.log.info(Kind::PutBack, format_args!("left by a killed bufwise: {line}"));
            });
            failed.iter().for_each(|line| self.log.warn(Kind::PutBack, line));
        }
        self.begin(None)?;
        self.notify.ready(&self.headline());
        self.log.info(Kind::Life, self.headline());
        if self.task.groups.is_empty() && container::has_cgroups_of_its_own() {
            let warning =
                "the host's cgroups are out of reach, so only connections of this container are tuned";
            self.log.warn(Kind::Life, format_args!("{warning}: {}", container::ADVICE));
        }
        Ok(())
    }

    /// Raises the bounds, loads the programs, and adopts what is there. With entries of programs before, what those
    /// have set is taken over.
    fn begin(&mut self, before: Option<Tuner>) -> Result<()> {
        // Whatever fails, the one that knows what was set stays ours, to give it back.
        self.tuner = before;
        self.discover()?;
        let mut engine = Engine::load(&self.task.plan.engine_config())?;
        if let Some(before) = &mut self.tuner {
            before.engine().detach();
            engine.inherit(&before.engine().entries()?)?;
        }
        let tuner = self.tuner.insert(Tuner::new(&self.task.plan, engine)?);
        if self.task.groups.is_empty() {
            tuner.engine().attach(Group::open(Path::new("/"))?.as_fd())?;
        }
        for group in &self.task.groups {
            tuner.engine().attach(group.as_fd())?;
        }
        // Before the first sweep: what `bufwise run` has inside our groups is its own.
        tuner.engine().yield_to_others()?;
        self.events = Events::default();
        self.due.look = Instant::now();
        self.sweep()
    }

    /// What the daemon does, in one line.
    fn headline(&self) -> String {
        let Plan { choice, budget, receive_budget, observe_only, .. } = &self.task.plan;
        format!(
            "{} {}: policy {choice}; memory {} to send, {} to receive",
            if *observe_only { "dry run on" } else { "tuning" },
            self.task.scope(),
            budget.readable(),
            receive_budget.readable(),
        )
    }

    fn serve(&mut self, signals: &Signals, server: &Server) -> Result<()> {
        loop {
            let wishes = self.wait(signals, server)?;
            // Before the flags are read: a signal after that wakes again.
            let reload = signals.reload();
            if signals.stop() {
                return Ok(());
            }
            if reload {
                self.reload()?;
            }
            while server.accept_one(|request| self.answer(&request)) {}
            let time = Instant::now();
            if wishes {
                self.carry_out()?;
                self.due.wishes = time + GATHER;
            }
            if time >= self.due.look {
                self.look()?;
            }
            if time >= self.due.discovery {
                self.due.discovery = time + DISCOVERY;
                if self.tuner.is_some() && self.discover()? {
                    self.sweep()?;
                }
            }
            if let Some(pause) = self.notify.watchdog
                && time >= self.due.alive
            {
                self.due.alive = time + pause / 3;
                self.notify.alive();
            }
        }
    }

    /// Waits for something to do; whether there are wishes.
    fn wait(&self, signals: &Signals, server: &Server) -> Result<bool> {
        let time = Instant::now();
        let gathering = self.due.wishes > time;
        let mut next = self.due.look.min(self.due.discovery);
        if gathering {
            next = next.min(self.due.wishes);
        }
        if self.notify.watchdog.is_some() {
            next = next.min(self.due.alive);
        }
        // Rounded up, or the last millisecond would be spent asking.
        let millis = next.saturating_duration_since(time).as_micros().div_ceil(1_000);
        let mut fds = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(server.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(tuner) = self.tuner.as_ref().filter(|_| !gathering) {
            fds.push(PollFd::new(tuner.wishes_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).during(|| "cannot wait for something to do".to_owned()),
        }
        Ok(fds.get(2).and_then(PollFd::any).unwrap_or(false))
    }

    /// One look at all connections, and what follows from it.
    fn look(&mut self) -> Result<()> {
        let time = Instant::now();
        self.log.catch_up();
        let Some(tuner) = &mut self.tuner else {
            self.due.look = time + DISCOVERY;
            return Ok(());
        };
        tuner.engine().tend()?;
        let flows = tuner.flows()?;
        let held = tuner::held(&flows);
        let shares = tuner.look(&flows, held)?;
        self.events.look(&mut self.log, &self.task.plan, &flows, held, shares);
        if time >= self.due.status {
            self.due.status = time + STATUS;
            let open = flows.iter().filter(|flow| !flow.closed).count();
            let budget = self.task.plan.budget.readable();
            self.notify
                .status(&format!("{open} connections; send queues hold {} of {budget}", held.readable()));
        }
        let elsewhere = self.namespaces.unknown(&flows);
        // One that was looked for and not found is not looked for again.
        if !elsewhere.is_subset(&self.elsewhere) {
            self.due.discovery = time;
        }
        self.elsewhere = elsewhere;
        let silent = lying_idle(&flows);
        self.due.look = time + LOOK.max(time.elapsed() * LOOK_REST).min(tuner.interval());
        let due = if silent > self.stubborn { self.due.sweep_at_least } else { self.due.sweep_at_most };
        if time >= due {
            self.sweep()?;
        }
        if time >= self.due.settings {
            self.due.settings = time + SETTINGS;
            self.watch_settings()?;
        }
        Ok(())
    }

    /// Passes over the sockets of every namespace: adopts, and gives back.
    fn sweep(&mut self) -> Result<()> {
        let Some(tuner) = &mut self.tuner else { return Ok(()) };
        let began = Instant::now();
        let engine = tuner.engine();
        let mut given_back = 0;
        for (label, namespace) in self.namespaces.each() {
            match engine.sweep(namespace) {
                Ok(swept) => {
                    given_back += swept.given_back;
                    if swept.adopted > 0 {
                        let count = swept.adopted;
                        self.log.info(
                            Kind::Adopted,
                            format_args!(
                                "{count} connections that existed adopted in network namespace {label}"
                            ),
                        );
                    }
                }
                // Another namespace's connections are none the worse for it.
                Err(error) => {
                    self.log.warn(Kind::Refused, format_args!("network namespace {label}: {error}"));
                }
            }
        }
        let limit = engine.adoption_limit();
        if let Some(limit) = limit.filter(|limit| self.adoption_limit.as_deref() != Some(*limit)) {
            self.log.info(Kind::AdoptionLimit, format_args!("connections that existed are {limit}"));
            self.adoption_limit = Some(limit.to_owned());
        }
        if given_back > 0 {
            self.log.info(
                Kind::GivenBack,
                format_args!(
                    "buffers of {given_back} connections given back: nothing moved for {} s",
                    Config::IDLE.as_secs_f64(),
                ),
            );
        }
        engine.forget_unseen(UNSEEN)?;
        self.stubborn = lying_idle(&tuner.flows()?);
        let took = began.elapsed();
        self.due.sweep_at_least = began + SWEEP.max(took * SWEEP_REST);
        self.due.sweep_at_most = began + SWEEP_AT_LEAST;
        Ok(())
    }

    /// Looks for network namespaces; whether there are new ones.
    fn discover(&mut self) -> Result<bool> {
        let found = self.namespaces.discover(&self.task.groups, &self.task.wanted())?;
        for line in found.failed {
            self.log.warn(Kind::Refused, format_args!("bounds stay as they are in {line}"));
        }
        for label in found.gone {
            self.log.info(Kind::Namespace, format_args!("network namespace {label} is gone"));
        }
        let any = !found.new.is_empty();
        for (label, changes) in found.new {
            self.log.info(Kind::Namespace, format_args!("network namespace {label} found"));
            if !changes.is_empty() {
                let changes = with_reasons(changes);
                self.log.info(Kind::Cap, format_args!("in network namespace {label} {changes}"));
            }
        }
        Ok(any)
    }

    /// The administrator's changes of what was raised.
    fn watch_settings(&mut self) -> Result<()> {
        let mut reload = false;
        for (label, changes) in self.namespaces.changes() {
            match changes {
                Ok(changes) => {
                    for change in changes {
                        // The programs know these two from when they were loaded.
                        reload |= matches!(change.setting, Setting::RmemMax | Setting::WmemMax);
                        self.log.info(
                            Kind::Administrator,
                            format_args!(
                                "{change} in network namespace {label} was set by somebody else and stays"
                            ),
                        );
                    }
                }
                Err(error) => {
                    self.log
                        .warn(Kind::Refused, format_args!("network namespace {label}: {}", in_words(&error)));
                }
            }
        }
        if reload {
            let before = self.tuner.take();
            self.begin(before)?;
        }
        Ok(())
    }

    fn carry_out(&mut self) -> Result<()> {
        let Some(tuner) = &mut self.tuner else { return Ok(()) };
        let mut inodes = None;
        let flows = tuner.flows()?;
        let owners = &mut self.owners;
        let mut is_fresh = false;
        let refused = tuner.carry_out(|cookie| {
            let inodes: &HashMap<u64, u64> = inodes.get_or_insert_with(|| {
                flows.iter().filter_map(|flow| Some((flow.cookie, flow.origin.inode?))).collect()
            });
            let Some(inode) = inodes.get(&cookie) else {
                return owners.search(cookie);
            };
            owners.socket(*inode, cookie).or_else(|| {
                // Once for all wishes.
                if !std::mem::replace(&mut is_fresh, true) {
                    *owners = Owners::scan();
                }
                owners.socket(*inode, cookie)
            })
        })?;
        for error in refused {
            self.log.warn(Kind::Refused, format_args!("a buffer stays at the host's maximum: {error}"));
        }
        Ok(())
    }

    /// Reads the configuration again; one that is wrong changes nothing.
    fn reload(&mut self) -> Result<()> {
        self.notify.reloading();
        match self.orders.task() {
            Err(error) => {
                self.log.warn(Kind::Life, format_args!("the old configuration stays: {error}"));
            }
            Ok(task) => {
                if task.socket() != self.task.socket() {
                    self.log.warn(Kind::Life, "another control socket takes effect at the next start");
                }
                let before = self.tuner.take();
                let before = self.hand_over(before, &task)?;
                let (_, failed) = self.namespaces.release();
                failed.iter().for_each(|line| self.log.warn(Kind::PutBack, line));
                self.task = Task {
                    settings: Settings { socket: self.task.socket().to_owned(), ..task.settings },
                    ..task
                };
                self.begin(before)?;
                self.log.info(Kind::Life, format_args!("reloaded: {}", self.headline()));
            }
        }
        self.notify.ready(&self.headline());
        Ok(())
    }

    /// Programs whose connections the next ones take over as they are; with other rules everything is given back first.
    fn hand_over(&mut self, before: Option<Tuner>, task: &Task) -> Result<Option<Tuner>> {
        let Some(mut before) = before else { return Ok(None) };
        let same_groups = self.task.settings.cgroups == task.settings.cgroups;
        let same_rules = self.task.plan.choice == task.plan.choice
            && self.task.settings.asked.take_over == task.settings.asked.take_over;
        if same_groups && same_rules {
            return Ok(Some(before));
        }
        before.engine().release_all()?;
        Ok(None)
    }

    /// Puts everything back: settings, then sockets, which are sized within them. What was put back, line by line.
    pub(super) fn give_back(&mut self) -> Result<(Released, Vec<String>, Vec<String>)> {
        let (settings, failed) = self.namespaces.release();
        let settings: Vec<String> =
            settings.iter().map(|(namespace, change)| leftovers::put_back(change, namespace)).collect();
        for line in &settings {
            self.log.info(Kind::PutBack, format_args!("put back: {line}"));
        }
        for line in &failed {
            self.log.warn(Kind::PutBack, format_args!("not put back: {line}"));
        }
        let released = match self.tuner.take() {
            Some(mut tuner) => tuner.engine().release_all()?,
            None => Released::default(),
        };
        if released != Released::default() {
            self.log.info(Kind::PutBack, leftovers::given_back(released));
        }
        Ok((released, settings, failed))
    }
}

/// What was changed in a namespace, and why, in one line.
fn with_reasons(changes: Vec<Change>) -> String {
    let (devices, files): (Vec<_>, Vec<_>) =
        changes.into_iter().partition(|change| matches!(change.setting, Setting::Device(_)));
    let whys = [(files, "each socket is bounded by its policy"), (devices, "the memory holds more writers")];
    let parts = whys.into_iter().filter(|(changes, _)| !changes.is_empty()).map(|(changes, why)| {
        let changes: Vec<String> = changes.iter().map(ToString::to_string).collect();
        format!("{}: {why}", changes.join(", "))
    });
    parts.collect::<Vec<_>>().join("; ")
}

/// How many connections a sweep would change something of.
fn lying_idle(flows: &[FlowState]) -> usize {
    let now = now();
    flows.iter().filter(|flow| lies_idle(flow, now)).count()
}

/// Nothing has moved for a while, and its buffers are larger than it needs, or nobody has looked at its queue since.
fn lies_idle(flow: &FlowState, now: Micros) -> bool {
    let unswept = flow.swept_at.is_none_or(|at| at < flow.seen_at);
    let active = if unswept { flow.seen_at } else { flow.active_at };
    let is_large = |set: Option<Bytes>| set.is_some_and(|size| size > Config::IDLE_SIZE.times(2));
    let ours = flow.ours();
    let could_give =
        ours.send && is_large(flow.set_send_buffer) || ours.receive && is_large(flow.set_receive_buffer);
    !flow.closed
        && now.since(active) > Config::IDLE
        && (could_give && !flow.given_back || unswept && flow.sample.send_queued > Bytes::ZERO)
}
