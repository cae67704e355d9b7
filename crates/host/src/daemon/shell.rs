//! The daemon's hands: carries the state machine's actions out, and tells it the results and what else has happened.
//!
//! One thread. It waits for signals, clients, requests of the engine's side and the next time that the machine names;
//! between two actions it looks for signals, so that a start or a reload can be stopped.

use std::collections::{HashMap, VecDeque};
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use bufwise_bpf::{Engine, Group, Owners, Released, now};
use bufwise_units::Micros;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::event::{Action, Event, GivenBack, Load, Notice, Sweep};
use super::machine::{Daemon, Surroundings};
use super::namespaces::Namespaces;
use super::recorder::Recorder;
use super::scrape::Scrape;
use super::task::{Orders, Task};
use crate::cgroups::Cgroups;
use crate::container;
use crate::control::server::{Pending, Server};
use crate::control::{Reply, Request};
use crate::error::{During, Error, Result};
use crate::leftovers::{self, Cleared};
use crate::notify::Notify;
use crate::signals::Signals;
use crate::tuner::{self, books::Bounds};

/// Entries of connections that ended unseen are kept for so long where their namespace was not swept.
const UNSEEN: Micros = Micros(3_600_000_000);

/// The parts of the host that the daemon holds.
#[derive(Default)]
pub(super) struct Shell {
    pub(super) namespaces: Namespaces,
    /// `None` before the first load, and once everything was given back.
    pub(super) engine: Option<Engine>,
    /// Task that the engine was attached for.
    task: Option<Arc<Task>>,
    owners: Owners,
    pub(super) cgroups: Cgroups,
    pub(super) scrape: Scrape,
    notify: Notify,
    recorder: Option<Recorder>,
    /// The client whose request is being answered.
    client: Option<Pending>,
}

/// Tunes until SIGTERM or SIGINT, and puts everything back, whatever happens.
///
/// # Errors
/// The first failure that tuning could not go on after.
pub fn run(orders: &Orders, task: Task, signals: &Signals, server: &Server) -> Result<()> {
    let notify = Notify::from_environment()?;
    let surroundings =
        Surroundings { watchdog: notify.watchdog(), contained: container::has_cgroups_of_its_own() };
    let recorder = Some(Recorder::start(task.history().map(Path::to_owned))?);
    let mut daemon = Daemon::new(task, surroundings, now());
    let mut shell = Shell { notify, recorder, ..Shell::default() };
    let mut events = VecDeque::from([Event::Begin]);
    let mut stopped = false;
    loop {
        if signals.stop() && !std::mem::replace(&mut stopped, true) {
            events.push_front(Event::Stop);
        }
        if signals.reload() {
            events.push_back(Event::Hangup);
        }
        let Some(event) = events.pop_front() else {
            let waited = shell.wait(&daemon, signals, server);
            events.extend(waited.unwrap_or_else(|error| vec![Event::Failed(error)]));
            continue;
        };
        let mut results = Vec::new();
        for action in daemon.step(now(), event) {
            match shell.perform(action, orders) {
                ControlFlow::Continue(event) => results.extend(event),
                ControlFlow::Break(end) => return end,
            }
        }
        // Before whatever else has happened meanwhile.
        results.into_iter().rev().for_each(|event| events.push_front(event));
    }
}

impl Shell {
    /// Waits for something to do; returns the events, of which one at least is that time has passed.
    fn wait(&mut self, daemon: &Daemon, signals: &Signals, server: &Server) -> Result<Vec<Event>> {
        let time = now();
        // Rounded up, or the last millisecond would be spent asking.
        let millis = daemon.next(time).since(time).0.div_ceil(1_000);
        let mut fds = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(server.as_fd(), PollFlags::POLLIN),
        ];
        if let Some(engine) = self.engine.as_ref().filter(|_| daemon.grants(time)) {
            fds.push(PollFd::new(engine.requests_fd(), PollFlags::POLLIN));
        }
        match poll(&mut fds, PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).during(|| "cannot wait for something to do".to_owned()),
        }
        let mut events = Vec::new();
        if fds.get(2).and_then(PollFd::any).unwrap_or(false) {
            events.push(Event::SizesRequested);
        }
        // One at a time: the next one is still readable then.
        if let Some(client) = server.next() {
            events.push(Event::Asked(client.request()));
            self.client = Some(client);
        }
        events.push(Event::Tick);
        Ok(events)
    }

    /// Carries an action out; the event that it ends in, if it has a result, or the daemon's end.
    fn perform(&mut self, action: Action, orders: &Orders) -> ControlFlow<Result<()>, Option<Event>> {
        let event = match action {
            Action::ClearLeftovers => Some(leftovers::clear().map_or_else(Event::Failed, Event::Cleared)),
            Action::ReadConfiguration => Some(Event::Configured(orders.task().map(Box::new))),
            Action::Discover(task) => {
                Some(Event::Discovered(self.namespaces.discover(&task.groups, &task.wanted())))
            }
            Action::LowerMaxima => Some(Event::Lowered(self.namespaces.release().failed)),
            Action::Load(load) => Some(self.load(load)),
            Action::Look => Some(self.look().unwrap_or_else(Event::Failed)),
            Action::Share(bounds) => Some(self.share(bounds).unwrap_or_else(Event::Failed)),
            Action::Sweep => Some(self.sweep().unwrap_or_else(Event::Failed)),
            Action::WatchMaxima => Some(Event::MaximaSeen(self.namespaces.changes())),
            Action::Grant => Some(self.grant().unwrap_or_else(Event::Failed)),
            Action::GiveBack => Some(self.give_back()),
            Action::Record(flows, plan) => {
                let places = self.namespaces.recorded();
                if let Some(recorder) = &self.recorder {
                    recorder.look(flows, plan, places);
                }
                None
            }
            Action::Describe(Request::History(query), _) => {
                if let (Some(recorder), Some(client)) = (&self.recorder, self.client.take()) {
                    recorder.ask(query, client);
                }
                None
            }
            Action::Describe(request, facts) => {
                let reply = self.describe(&request, &facts);
                self.answer(reply);
                None
            }
            Action::Answer(reply) => {
                self.answer(reply);
                None
            }
            Action::Log(line) => {
                line.write();
                None
            }
            Action::Notify(notice) => {
                self.tell(&notice);
                None
            }
            Action::Quit(end) => return ControlFlow::Break(end),
        };
        ControlFlow::Continue(event)
    }

    fn answer(&mut self, reply: Reply) {
        if let Some(client) = self.client.take() {
            client.answer(reply);
        }
    }

    fn tell(&self, notice: &Notice) {
        match notice {
            Notice::Ready(status) => self.notify.ready(status),
            Notice::Status(status) => self.notify.status(status),
            Notice::Reloading => self.notify.reloading(),
            Notice::Alive => self.notify.alive(),
            Notice::Stopping => self.notify.stopping(),
        }
    }

    /// Puts a new engine in the place of the one that runs. The new one is loaded before the old one is touched; if a
    /// later step fails, the old one is attached again.
    fn load(&mut self, load: Load) -> Event {
        let mut engine = match loaded(&load) {
            Ok(engine) => engine,
            Err(error) => return Event::Loaded(Err(error)),
        };
        let taken = self.take_over(&mut engine, load.inherit);
        match taken.and_then(|()| attach(&mut engine, &load.task)) {
            Ok(()) => {
                self.engine = Some(engine);
                self.task = Some(load.task);
                Event::Loaded(Ok(()))
            }
            Err(error) => {
                drop(engine);
                let (Some(before), Some(task)) = (&mut self.engine, &self.task) else {
                    return Event::Loaded(Err(error));
                };
                before.detach();
                let resumed =
                    before.beat(load.shares).map_err(Error::from).and_then(|()| attach(before, task));
                resumed.map_or_else(Event::Failed, |()| Event::Loaded(Err(error)))
            }
        }
    }

    /// Passes on the buffers that the engine before has set, or gives them back.
    fn take_over(&mut self, engine: &mut Engine, inherit: bool) -> Result<()> {
        let Some(before) = &mut self.engine else { return Ok(()) };
        if inherit {
            before.rest()?;
            engine.inherit(&before.entries()?)?;
        } else {
            before.release_all()?;
        }
        Ok(())
    }

    fn look(&mut self) -> Result<Event> {
        let Some(engine) = &mut self.engine else { return Ok(Event::Looked(Vec::new())) };
        engine.tend()?;
        Ok(Event::Looked(engine.flows()?))
    }

    fn share(&mut self, bounds: Bounds) -> Result<Event> {
        let refused = bounds.at_once.map_or_else(Vec::new, |size| self.namespaces.bound_devices(size));
        if let Some(engine) = &mut self.engine {
            tuner::tell(engine, bounds)?;
        }
        Ok(Event::Shared(refused))
    }

    fn sweep(&mut self) -> Result<Event> {
        let mut sweep = Sweep::default();
        let Some(engine) = &mut self.engine else { return Ok(Event::Swept(sweep)) };
        for (label, namespace) in self.namespaces.each() {
            match engine.sweep(namespace) {
                Ok(swept) => {
                    sweep.given_back += swept.given_back;
                    if swept.adopted > 0 {
                        sweep.adopted.push((label, swept.adopted));
                    }
                }
                // Another namespace's connections are none the worse for it.
                Err(error) => sweep.refused.push(format!("network namespace {label}: {error}")),
            }
        }
        sweep.adoption_limit = engine.adoption_limit().map(str::to_owned);
        engine.forget_unseen(UNSEEN)?;
        sweep.flows = engine.flows()?;
        Ok(Event::Swept(sweep))
    }

    fn grant(&mut self) -> Result<Event> {
        let Some(engine) = &mut self.engine else { return Ok(Event::Granted(Vec::new())) };
        let mut inodes = None;
        let flows = engine.flows()?;
        let owners = &mut self.owners;
        let mut is_fresh = false;
        let refused = tuner::grant_all(engine, |cookie| {
            let inodes: &HashMap<u64, u64> = inodes.get_or_insert_with(|| {
                flows.iter().filter_map(|flow| Some((flow.cookie, flow.origin.inode?))).collect()
            });
            let Some(inode) = inodes.get(&cookie) else {
                return owners.search(cookie);
            };
            owners.socket(*inode, cookie).or_else(|| {
                // Once for all requests.
                if !std::mem::replace(&mut is_fresh, true) {
                    *owners = Owners::scan();
                }
                owners.socket(*inode, cookie)
            })
        })?;
        Ok(Event::Granted(refused.iter().map(ToString::to_string).collect()))
    }

    /// Settings come first: sockets are sized within them.
    fn give_back(&mut self) -> Event {
        let Cleared { done: settings, failed } = self.namespaces.release();
        let released = self.engine.take().map_or(Ok(Released::default()), |mut engine| engine.release_all());
        Event::GivenBack(GivenBack { settings, failed, released: released.map_err(Into::into) })
    }
}

/// An engine that touches nothing yet.
fn loaded(load: &Load) -> Result<Engine> {
    let mut engine = Engine::load(&load.task.plan.engine_config())?;
    // The first connections may come before the first look.
    engine.beat(load.shares)?;
    Ok(engine)
}

fn attach(engine: &mut Engine, task: &Task) -> Result<()> {
    if task.groups.is_empty() {
        engine.attach(Group::open(Path::new("/"))?.as_fd())?;
    }
    for group in &task.groups {
        engine.attach(group.as_fd())?;
    }
    // Before the first sweep: what `bufwise run` has inside our groups is its own.
    engine.yield_to_others()?;
    Ok(())
}
