//! The thread that keeps the history: looks at all connections, finds names, remembers, writes to the disk, answers.
//!
//! The loop that tunes hands over what it has read anyway, the open diagnostics, and those who ask; it never waits for this
//! thread. What comes while it has too much to do is left out. A look, and each search for names, is followed by a rest of
//! [`REST`] times what it took: together they stay within some percent of a processor, however many connections there are.

use std::collections::{HashMap, HashSet};
use std::fmt::Display;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{SystemTime, UNIX_EPOCH};

use bufwise_bpf::{FlowState, Group, now};
use bufwise_socket::diag::{Connection, Diag, States};
use bufwise_units::Micros;
use nix::sys::stat::fstat;

use crate::control::Reply;
use crate::control::server::Pending;
use crate::error::{During, Result};
use crate::history::file::Disk;
use crate::history::moment::{Before, Names, Place, Scene};
use crate::history::{Query, Ring};
use crate::log::{Kind, Line};
use crate::processes::{Holders, Process};
use crate::tcp_memory::TcpMemory;
use crate::tuner::plan::Plan;
use crate::view::PolicyNames;

/// Rest after a piece of work, in times of what it took.
const REST: u64 = 100;
/// Messages that may wait: a look and as many clients as are served at a time.
const WAITING: usize = 9;

/// A namespace's name, and its sockets.
pub(super) type Watched = (String, Arc<Mutex<Diag>>);

/// A task for the thread.
enum Message {
    /// A look is due.
    Look { flows: Vec<FlowState>, plan: Plan, places: Vec<Watched> },
    /// A client waits.
    Ask(Query, Pending),
}

/// The way to the thread; dropping it ends the thread.
#[derive(Debug)]
pub(super) struct Recorder {
    sender: Option<SyncSender<Message>>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts the thread, which writes to `file` as well, if there is one.
    pub(super) fn start(file: Option<PathBuf>) -> Result<Self> {
        let (sender, messages) = sync_channel(WAITING);
        let work = move || Scribe::new(file).work(&messages);
        let thread = thread::Builder::new().name("history".to_owned()).spawn(work);
        let thread = thread.during(|| "cannot start the history's thread".to_owned())?;
        Ok(Self { sender: Some(sender), thread: Some(thread) })
    }

    /// Hands a look over; leaves it out where the thread is busy.
    pub(super) fn look(&self, flows: Vec<FlowState>, plan: Plan, places: Vec<Watched>) {
        let _left_out = self.hand(Message::Look { flows, plan, places });
    }

    /// Hands a client over.
    pub(super) fn ask(&self, query: Query, client: Pending) {
        if let Some(Message::Ask(_, client)) = self.hand(Message::Ask(query, client)) {
            client.answer(Reply::Error("the daemon is busy: try again".to_owned()));
        }
    }

    /// Gives back what the thread has no time for.
    fn hand(&self, message: Message) -> Option<Message> {
        let error = self.sender.as_ref()?.try_send(message).err()?;
        let (TrySendError::Full(message) | TrySendError::Disconnected(message)) = error;
        Some(message)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been told by the thread itself.
            let _over = thread.join();
        }
    }
}

/// The thread's state.
#[derive(Default)]
struct Scribe {
    ring: Ring,
    disk: Option<Disk>,
    /// The last write to the disk failed.
    is_failing: bool,
    before: Before,
    names: Found,
    /// The next look is not before that.
    next: Micros,
}

impl Scribe {
    fn new(file: Option<PathBuf>) -> Self {
        let mut scribe = Self::default();
        let Some(path) = file else { return scribe };
        match Disk::open(&path, &mut scribe.ring) {
            Ok((disk, wrong)) => {
                scribe.disk = Some(disk);
                if wrong > 0 {
                    warn(format_args!(
                        "{} lines of {} were torn or not understood, and are left out",
                        wrong,
                        path.display()
                    ));
                }
            }
            Err(error) => warn(format_args!("the history is not on disk: {error}")),
        }
        scribe
    }

    fn work(mut self, messages: &Receiver<Message>) {
        for message in messages {
            match message {
                Message::Look { flows, plan, places } => {
                    let began = now();
                    if began >= self.next {
                        self.look(&flows, &plan, &places);
                        self.next = began + now().since(began).times(REST);
                    }
                }
                Message::Ask(query, client) => {
                    client.answer(Reply::History(Box::new(self.ring.answer(&query))));
                }
            }
        }
    }

    fn look(&mut self, flows: &[FlowState], plan: &Plan, places: &[Watched]) {
        let at = now();
        let places: Vec<Place> = places.iter().filter_map(listed).collect();
        let open = flows.iter().filter(|flow| !flow.closed).map(|flow| (flow.cookie, *flow));
        let scene = Scene {
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            at,
            places: &places,
            before: &self.before,
            flows: &open.collect(),
            policy: &PolicyNames::from(plan.choice),
            budget: plan.budget,
            memory: TcpMemory::now(),
        };
        let moment = scene.moment(&mut self.names);
        self.names.settle();
        self.before = Before::new(at, &places);
        let Some(moment) = moment else { return };
        self.ring.push(moment);
        let Some(disk) = &mut self.disk else { return };
        match disk.add(&self.ring) {
            Ok(()) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                warn(format_args!("the history is not on disk for now: {error}"));
            }
            Err(_told) => {}
        }
    }
}

/// The connections of a namespace; `None` where they cannot be listed, which leaves a gap and no more.
fn listed((netns, diag): &Watched) -> Option<Place> {
    let at = now();
    let mut diag = diag.lock().unwrap_or_else(PoisonError::into_inner);
    let connections = diag.tcp(States::CONNECTED).ok()?;
    Some(Place { netns: netns.clone(), at, connections })
}

fn warn(text: impl Display) {
    Line::warning(Kind::History, text).write();
}

/// Names found so far, of what the last moment needed.
#[derive(Default)]
struct Found {
    processes: Search<Holders, Process>,
    cgroups: Search<HashMap<u64, String>, String>,
}

impl Found {
    /// A moment is over: what it did not need is forgotten.
    fn settle(&mut self) {
        self.processes.settle();
        self.cgroups.settle();
    }
}

impl Names for Found {
    fn process(&mut self, connection: &Connection) -> Option<Process> {
        let holder = |holders: &Holders| holders.of(connection.inode).cloned();
        self.processes.find(connection.cookie, Holders::scan, holder)
    }

    fn cgroup(&mut self, number: u64) -> Option<String> {
        self.cgroups.find(number, cgroups, |paths| paths.get(&number).cloned())
    }
}

/// Paths of all cgroups by their numbers.
fn cgroups() -> HashMap<u64, String> {
    let mut paths = HashMap::new();
    // Without the hierarchy none has a name.
    let _unknown = Group::walk(&mut |group| {
        if let Ok(status) = fstat(group.as_fd()) {
            paths.insert(status.st_ino, group.path().display().to_string());
        }
    });
    paths
}

/// Names that only a search through everything finds: once for all that a moment needs, and not too often.
struct Search<S, V> {
    /// Results of searches, by key; also of those in vain.
    known: HashMap<u64, Option<V>>,
    needed: HashSet<u64>,
    /// The result of this moment's search.
    fresh: Option<S>,
    /// The next search is not before that.
    next: Micros,
}

impl<S, V> Default for Search<S, V> {
    fn default() -> Self {
        Self { known: HashMap::new(), needed: HashSet::new(), fresh: None, next: Micros::ZERO }
    }
}

impl<S, V: Clone> Search<S, V> {
    fn find(&mut self, key: u64, search: impl FnOnce() -> S, of: impl FnOnce(&S) -> Option<V>) -> Option<V> {
        self.needed.insert(key);
        if let Some(known) = self.known.get(&key) {
            return known.clone();
        }
        let began = now();
        if self.fresh.is_none() && began >= self.next {
            self.fresh = Some(search());
            self.next = began + now().since(began).times(REST);
        }
        // Not in this moment, perhaps in the next.
        let found = of(self.fresh.as_ref()?);
        self.known.insert(key, found.clone());
        found
    }

    fn settle(&mut self) {
        self.known.retain(|key, _| self.needed.contains(key));
        self.needed.clear();
        self.fresh = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_serves_a_whole_moment_and_what_is_no_longer_needed_is_forgotten() {
        let mut names: Search<HashMap<u64, u32>, u32> = Search::default();
        let mut searches = 0;
        let mut find = |names: &mut Search<_, _>, key: u64| {
            let search = || {
                searches += 1;
                HashMap::from([(1, 10), (2, 20)])
            };
            names.find(key, search, |all| all.get(&key).copied())
        };
        assert_eq!([1, 2, 3, 1].map(|key| find(&mut names, key)), [Some(10), Some(20), None, Some(10)]);
        names.settle();
        assert_eq!((find(&mut names, 1), find(&mut names, 3)), (Some(10), None));
        names.settle();
        assert_eq!(names.known.len(), 2);
        names.next = Micros(u64::MAX);
        assert_eq!(find(&mut names, 2), None, "it rests");
        assert_eq!(find(&mut names, 1), Some(10), "what is known needs no search");
        assert_eq!(searches, 1);
    }

    #[test]
    fn cgroups_have_the_numbers_that_sockets_tell() {
        if bufwise_bpf::hierarchy().is_err() {
            return bufwise_trial::skip("no cgroup v2");
        }
        assert!(cgroups().values().any(|path| path == "/"), "the root is one of them");
    }
}
