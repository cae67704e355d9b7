//! Carries the state machine's actions out, and passes it the results and all other events.
//!
//! It is one thread. It waits for signals, clients, requests of the programs in the kernel, and the machine's next due time;
//! it checks for signals between two actions, so that a start or a reload can be stopped.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::os::fd::AsFd;
use std::path::Path;

use bufwise_bpf::{Owners, now, processor_time};
use bufwise_units::Micros;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::answers::Answerer;
use super::descriptors;
use super::event::{Action, Event, Facts, Found, GivenBack, Notice, Work};
use super::lister::{Inquiry, Lister};
use super::machine::{Daemon, Surroundings};
use super::namespaces::Namespaces;
use super::recorder::Recorder;
use super::running::Running;
use super::scrape;
use super::task::{Orders, Task};
use crate::caps::Caps;
use crate::container;
use crate::control::server::{Pending, Server};
use crate::control::{Reply, Request};
use crate::error::{During, Error, Result, in_words};
use crate::leftovers::{self, Cleared};
use crate::notify::Notify;
use crate::signals::{self, Signals};
use crate::tcp_memory::TcpMemory;
use crate::tuner::books::Bounds;
use crate::view::Sized;

/// The parts of the host that the daemon holds.
#[derive(Default)]
struct Shell {
    namespaces: Namespaces,
    running: Running,
    owners: Owners,
    notify: Notify,
    recorder: Option<Recorder>,
    lister: Option<Lister>,
    answerer: Option<Answerer>,
    /// The client whose request is being answered.
    client: Option<Pending>,
}

/// Tunes until SIGTERM or SIGINT, and puts everything back in every case.
///
/// # Errors
/// The first failure after which tuning could not go on.
pub fn run(orders: &Orders, task: Task, signals: &Signals, server: &Server) -> Result<()> {
    descriptors::raise_limit();
    let notify = Notify::from_environment()?;
    let surroundings = Surroundings {
        watchdog: notify.watchdog(),
        contained: container::has_cgroups_of_its_own(),
        in_the_first: Caps::of_host().is_in_the_first(),
    };
    let recorder = Some(Recorder::start(task.history().map(Path::to_owned))?);
    let mut daemon = Daemon::new(task, surroundings, now());
    let (lister, answerer) = (Some(Lister::start()?), Some(Answerer::start()?));
    let namespaces = Namespaces::with_room_for(descriptors::room_for_namespaces());
    let mut shell = Shell { namespaces, notify, recorder, lister, answerer, ..Shell::default() };
    let mut events = VecDeque::from([Event::Begin]);
    let mut stopped = false;
    loop {
        match signals.request() {
            Some(signals::Request::Stop) if !stopped => {
                stopped = true;
                events.push_front(Event::Stop);
            }
            Some(signals::Request::Reload) => events.push_back(Event::Hangup),
            _ => {}
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
        // Results come before other events that arrived meanwhile.
        results.into_iter().rev().for_each(|event| events.push_front(event));
    }
}

impl Shell {
    /// Waits for something to do; returns the events, of which the last is [`Event::Tick`].
    fn wait(&mut self, daemon: &Daemon, signals: &Signals, server: &Server) -> Result<Vec<Event>> {
        let time = now();
        // Rounded up; otherwise the loop would poll without pause for the last millisecond.
        let millis = daemon.next(time).since(time).0.div_ceil(1_000);
        let mut fds = vec![
            PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(server.as_fd(), PollFlags::POLLIN),
        ];
        if daemon.grants(time) {
            fds.extend(self.running.requests());
        }
        match poll(&mut fds, PollTimeout::from(u16::try_from(millis).unwrap_or(u16::MAX))) {
            Ok(_) | Err(nix::errno::Errno::EINTR) => {}
            Err(errno) => return Err(errno).during(|| "cannot wait for something to do".to_owned()),
        }
        let mut events = Vec::new();
        if fds.iter().skip(2).any(|fd| fd.any().unwrap_or(false)) {
            events.push(Event::SizesRequested);
        }
        // One client at a time: the descriptor stays readable for the next.
        if let Some(client) = server.next() {
            events.push(Event::Asked(client.request()));
            self.client = Some(client);
        }
        events.push(Event::Tick);
        Ok(events)
    }

    /// Carries out an action; returns the resulting event, if any, or breaks at the daemon's end.
    fn perform(&mut self, action: Action, orders: &Orders) -> ControlFlow<Result<()>, Option<Event>> {
        let event = match action {
            Action::ClearLeftovers => {
                Some(leftovers::clear_before_daemon().map_or_else(Event::Failed, Event::Cleared))
            }
            Action::ReadConfiguration => Some(Event::Configured(orders.task().map(Box::new))),
            Action::Discover(task) => {
                let before = processor_time();
                let (remade, refused) = self.running.follow_cgroups();
                let cgroups = self.running.cgroups_of(&task);
                let found = self.namespaces.discover(&cgroups, &task.wanted());
                let took = processor_time().since(before);
                Some(Event::Discovered(found.map(|found| Found { remade, refused, took, ..found })))
            }
            Action::LowerMaxima => Some(Event::Lowered(self.namespaces.release().failed)),
            Action::Load(load) => Some(self.running.load(load, &mut self.namespaces)),
            Action::Regroup { settle, programs } => {
                Some(self.running.regroup(&mut self.namespaces, settle, programs))
            }
            Action::Sample => Some(self.sample().unwrap_or_else(troubled(Work::Sample))),
            Action::Share(bounds) => Some(self.share(bounds).unwrap_or_else(troubled(Work::Share))),
            Action::Beat => {
                let beaten = |turnover| Event::Beaten(turnover, TcpMemory::now());
                Some(self.running.heartbeat().map_or_else(troubled(Work::Beat), beaten))
            }
            Action::Sweep => {
                let (sweep, took) = timed(|| self.running.sweep(&self.namespaces));
                Some(Event::Swept(sweep, took))
            }
            Action::WatchMaxima => Some(Event::MaximaSeen(self.namespaces.changes())),
            Action::Grant => {
                let (granted, took) = timed(|| self.running.grant(&mut self.owners));
                Some(granted.map_or_else(troubled(Work::Grant), |refused| Event::Granted(refused, took)))
            }
            Action::GiveBack => Some(self.give_back()),
            Action::Record(flows, task) => {
                let places = self.namespaces.recorded();
                if let Some(recorder) = &self.recorder {
                    recorder.record(task.told_parts().zip(flows).collect(), task.budgets().0, places);
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
                self.hand_over(request, facts);
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

    /// Passes the client on to a thread, with the engines' present records.
    fn hand_over(&mut self, request: Request, facts: Facts) {
        let is_metrics = request == Request::Metrics;
        if let Some(latest) = self.answerer.as_ref().and_then(Answerer::latest).filter(|_| is_metrics) {
            return self.answer(Reply::Metrics(Box::new(latest)));
        }
        let sized = match self.running.parts() {
            Ok(parts) => Sized::new(parts),
            Err(error) => return self.answer(Reply::Error(in_words(&error))),
        };
        let (scope, places) = (self.running.scope(&sized), self.namespaces.recorded());
        let Some(client) = self.client.take() else { return };
        let history_bytes = self.recorder.as_ref().map_or(0, Recorder::held_bytes);
        let inquiry = Inquiry { request, facts, sized, scope, places, history_bytes, client };
        match (&self.lister, &self.answerer) {
            (Some(lister), _) if matches!(request, Request::List | Request::Explain { .. }) => {
                lister.ask(inquiry);
            }
            (_, Some(answerer)) => {
                let cost = is_metrics.then(|| scrape::cost(&self.running.programs())).flatten();
                answerer.ask(inquiry, cost);
            }
            _ => inquiry.refuse(),
        }
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

    fn sample(&mut self) -> Result<Event> {
        let (sample, took) = timed(|| self.running.sample());
        Ok(Event::Sampled(sample?, TcpMemory::now(), took))
    }

    fn share(&mut self, bounds: Vec<Bounds>) -> Result<Event> {
        let at_once = bounds.iter().find_map(|bounds| bounds.at_once);
        let (shared, took) = timed(|| self.running.share(bounds));
        shared?;
        // Only the part without a group bounds devices. Bounding them is rare, so its time does not count as a sample's.
        let refused = at_once.map_or_else(Vec::new, |size| self.namespaces.bound_devices(size));
        Ok(Event::Shared(refused, took))
    }

    /// Restores the settings first, because sockets are sized within them.
    fn give_back(&mut self) -> Event {
        let Cleared { done: settings, failed } = self.namespaces.release();
        Event::GivenBack(GivenBack { settings, failed, released: self.running.release_all() })
    }
}

/// Returns how a failure of this work becomes an event.
fn troubled(work: Work) -> impl FnOnce(Error) -> Event {
    move |error| Event::Troubled(work, error)
}

/// Does some work, and measures the processor time that it took: the pause until the next of its kind depends on it. Other
/// actions of the same step do not count.
fn timed<T>(work: impl FnOnce() -> T) -> (T, Micros) {
    let before = processor_time();
    let done = work();
    (done, processor_time().since(before))
}
