//! The thread that keeps the history: samples all connections, finds names, stores the moments, writes them to the
//! disk, and answers requests.
//!
//! The loop that tunes passes on its records, the open diagnostics, and the clients; it never waits for this thread.
//! Samples that come while the thread is busy are dropped. Each sample is followed by a rest of [`REST`] times its
//! processor time, a third of a percent of a processor, however many connections there are; names are searched for seldom
//! (`search.rs`).

use std::fmt::Display;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use bufwise_bpf::{FlowState, now, processor_time};
use bufwise_socket::diag::{Connection, Diag, States};
use bufwise_units::{Bytes, Micros, counted};

use super::worker::Worker;
use crate::cgroups::Cgroups;
use crate::control::Reply;
use crate::control::server::Pending;
use crate::error::Result;
use crate::history::file::Disk;
use crate::history::moment::{Before, Names, Place, Scene};
use crate::history::{Query, Ring};
use crate::log::{Failures, Kind, Line};
use crate::processes::{Holders, Process};
use crate::search::Search;
use crate::tcp_memory::TcpMemory;
use crate::view::{Part, Sized};

/// Rest after a sample, as a multiple of its processor time.
const REST: u64 = 300;
/// Most messages that wait: a sample, and as many clients as are served at a time.
const WAITING: usize = 9;

/// A namespace's name, and its sockets.
pub(super) type Watched = (String, Arc<Mutex<Diag>>);

/// A task for the thread.
#[derive(Debug)]
enum Message {
    /// Take a sample.
    Record { parts: Vec<(Part, Vec<FlowState>)>, budget: Bytes, places: Vec<Watched> },
    /// Answer a client.
    Ask(Query, Pending),
}

/// Handle of the thread.
#[derive(Debug)]
pub(super) struct Recorder {
    worker: Worker<Message>,
    held_bytes: Arc<AtomicU64>,
    /// Whether a sample waits or is being taken: more of them would take the memory of all connections each, and the
    /// places of clients.
    is_sampling: Arc<AtomicBool>,
}

impl Recorder {
    /// Starts the thread, which also writes to `file`, if given.
    pub(super) fn start(file: Option<PathBuf>) -> Result<Self> {
        let (held_bytes, is_sampling) = (Arc::<AtomicU64>::default(), Arc::<AtomicBool>::default());
        let (told, over) = (Arc::clone(&held_bytes), Arc::clone(&is_sampling));
        let work = move |messages: &Receiver<Message>| Scribe::new(file, told).work(messages, &over);
        Ok(Self { worker: Worker::start("history", WAITING, work)?, held_bytes, is_sampling })
    }

    /// Returns the memory of the moments, bytes.
    pub(super) fn held_bytes(&self) -> u64 {
        self.held_bytes.load(Ordering::Relaxed)
    }

    /// Passes on a sample; drops it if the thread is busy.
    pub(super) fn record(&self, parts: Vec<(Part, Vec<FlowState>)>, budget: Bytes, places: Vec<Watched>) {
        if self.is_sampling.swap(true, Ordering::AcqRel) {
            return;
        }
        if self.worker.hand(Message::Record { parts, budget, places }).is_some() {
            self.is_sampling.store(false, Ordering::Release);
        }
    }

    /// Passes on a client.
    pub(super) fn ask(&self, query: Query, client: Pending) {
        if let Some(Message::Ask(_, client)) = self.worker.hand(Message::Ask(query, client)) {
            client.answer(Reply::Error("the daemon is busy: try again".to_owned()));
        }
    }
}

/// The thread's state.
#[derive(Default)]
struct Scribe {
    ring: Ring,
    /// The ring's bytes, for other threads.
    held_bytes: Arc<AtomicU64>,
    disk: Option<Disk>,
    /// Writes to the disk that have failed.
    failures: Failures,
    before: Before,
    names: Found,
    /// Earliest time of the next sample.
    next: Micros,
}

impl Scribe {
    fn new(file: Option<PathBuf>, held_bytes: Arc<AtomicU64>) -> Self {
        let mut scribe = Self { held_bytes, ..Self::default() };
        let Some(path) = file else { return scribe };
        match Disk::open(&path, &mut scribe.ring) {
            Ok((disk, wrong)) => {
                scribe.disk = Some(disk);
                if wrong > 0 {
                    let (were, are) = if wrong == 1 { ("was", "is") } else { ("were", "are") };
                    warn(format_args!(
                        "{} of {} {were} torn or not understood, and {are} left out",
                        counted(wrong, "line"),
                        path.display()
                    ));
                }
            }
            Err(error) => warn(format_args!("the history is not on disk: {error}")),
        }
        scribe.write();
        scribe.tell_bytes();
        scribe
    }

    /// Writes the ring's new moments to the disk, if a file was named; after a failure the next call tries again.
    fn write(&mut self) {
        let Some(disk) = &mut self.disk else { return };
        let written = disk.add(&self.ring).map_err(|error| error.to_string());
        if let Some(line) = line(&mut self.failures, written, Instant::now()) {
            line.write();
        }
    }

    fn tell_bytes(&self) {
        self.held_bytes.store(self.ring.bytes(), Ordering::Relaxed);
    }

    fn work(mut self, messages: &Receiver<Message>, is_sampling: &AtomicBool) {
        for message in messages {
            match message {
                Message::Record { parts, budget, places } => {
                    let began = now();
                    if began >= self.next {
                        let before = processor_time();
                        let is_new = self.record(parts, budget, &places);
                        self.next = began + processor_time().since(before).times(REST);
                        // Writing needs no rest: the thread waits for the disk without using the processor.
                        if is_new {
                            self.write();
                        }
                    }
                    is_sampling.store(false, Ordering::Release);
                }
                Message::Ask(query, client) => {
                    client.answer(Reply::Written(self.ring.answer(query)));
                }
            }
        }
    }

    /// Takes a sample; returns whether the ring has a new moment.
    fn record(&mut self, parts: Vec<(Part, Vec<FlowState>)>, budget: Bytes, places: &[Watched]) -> bool {
        let at = now();
        let places: Vec<Place> = places.iter().filter_map(listed).collect();
        let scene = Scene {
            time_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
            at,
            places: &places,
            before: &self.before,
            sized: &Sized::new(parts),
            budget,
            memory: TcpMemory::now(),
        };
        let moment = scene.moment(&mut self.names);
        self.names.settle();
        // The sample before goes first: together they would take twice the memory.
        self.before = Before::default();
        self.before = Before::new(at, &places);
        let Some(moment) = moment else { return false };
        self.ring.push(&moment);
        self.tell_bytes();
        true
    }
}

/// Returns the connections of a namespace; `None` if they cannot be listed, which leaves a gap in the history.
fn listed((netns, diag): &Watched) -> Option<Place> {
    let mut diag = diag.lock().unwrap_or_else(PoisonError::into_inner);
    let at = now();
    let connections = diag.tcp(States::CONNECTED).ok()?;
    Some(Place { netns: netns.clone(), at, connections })
}

fn warn(text: impl Display) {
    Line::warning(Kind::History, text).write();
}

/// Returns the log line on a write to the disk, if there should be one.
fn line(failures: &mut Failures, written: Result<(), String>, now: Instant) -> Option<Line> {
    match written {
        Ok(()) => failures.succeeded().then(|| Line::info(Kind::History, "the history is on disk again")),
        Err(cause) => {
            let text = format_args!("the history is not on disk for now: {cause}");
            failures.failed(&cause, now).then(|| Line::warning(Kind::History, text))
        }
    }
}

/// Names found so far that the last moment needed.
#[derive(Default)]
struct Found {
    processes: Search<Holders, Process>,
    /// The last search for processes has not read all.
    is_incomplete: bool,
    cgroups: Cgroups,
}

impl Found {
    /// Ends a moment: forgets names that it did not need.
    fn settle(&mut self) {
        self.processes.settle();
        if self.is_incomplete {
            self.processes.forget_missing();
        }
        self.cgroups.settle();
    }
}

impl Names for Found {
    fn process(&mut self, connection: &Connection) -> Option<Process> {
        // No process holds it, but one may accept it later.
        if connection.inode == 0 {
            return None;
        }
        let holder = |holders: &Holders| holders.of(connection.inode).cloned();
        let is_incomplete = &mut self.is_incomplete;
        let scan = || {
            let holders = Holders::scan();
            *is_incomplete = !holders.is_complete();
            holders
        };
        self.processes.find(connection.cookie, scan, holder)
    }

    fn cgroup(&mut self, number: u64) -> Option<String> {
        self.cgroups.name(number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Request;
    use crate::history::tests::moment;

    #[test]
    fn a_file_that_cannot_be_written_at_the_start_is_written_once_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let inside = directory.path().join("inside");
        let path = inside.join("history");
        let mut scribe = Scribe::new(Some(path.clone()), Arc::default());
        assert!(!path.exists());
        std::fs::create_dir(&inside).unwrap();
        scribe.ring.push(&moment(1, 2, 9));
        scribe.write();
        assert!(path.exists() && !scribe.failures.succeeded(), "the success was told");
        let mut ring = Ring::default();
        let (_disk, wrong) = Disk::open(&path, &mut ring).unwrap();
        assert_eq!(wrong, 0);
        assert_eq!(ring.answer(Query::default()), scribe.ring.answer(Query::default()));
    }

    #[test]
    fn a_disk_that_fails_is_told_with_each_cause_and_its_return_as_well() {
        let (mut failures, start) = (Failures::default(), Instant::now());
        let mut told = |written: Result<(), &str>, seconds| {
            let now = start + std::time::Duration::from_secs(seconds);
            line(&mut failures, written.map_err(str::to_owned), now).map(|line| line.text)
        };
        assert_eq!(told(Ok(()), 0), None);
        let full = Some("the history is not on disk for now: full".to_owned());
        assert_eq!([told(Err("full"), 10), told(Err("full"), 20)], [full, None]);
        let gone = Some("the history is not on disk for now: gone".to_owned());
        assert_eq!([told(Err("gone"), 30), told(Err("gone"), 610)], [None, gone]);
        let again = Some("the history is on disk again".to_owned());
        assert_eq!([told(Ok(()), 620), told(Ok(()), 630)], [again, None]);
    }

    #[test]
    fn samples_that_come_while_the_thread_is_busy_take_no_places_of_clients() {
        let diag = Arc::new(Mutex::new(Diag::open().unwrap()));
        let slow = diag.lock().unwrap();
        let recorder = Recorder::start(None).unwrap();
        for _ in 0..2 * WAITING {
            recorder.record(Vec::new(), Bytes(1), vec![("blue".to_owned(), Arc::clone(&diag))]);
        }
        let query = Query::default();
        let (client, answered) = Pending::of_test(Request::History(query));
        recorder.ask(query, client);
        drop(slow);
        assert!(matches!(answered.recv(), Ok(Reply::Written(_))), "it waits for its answer");
    }

    #[test]
    fn a_connection_has_a_name_once_a_process_has_accepted_it() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = nix::sys::stat::fstat(&held).unwrap().st_ino;
        let waiting = Connection { inode: 0, ..crate::view::tests::connection() };
        let mut names = Found::default();
        assert_eq!(names.process(&waiting), None);
        names.settle();
        let accepted = Connection { inode: u32::try_from(inode).unwrap(), ..waiting };
        let process = names.process(&accepted).expect("it is this one");
        assert_eq!(process.pid, std::process::id().cast_signed());
    }

    #[test]
    fn a_connection_without_a_process_is_searched_again_after_a_search_that_has_not_read_all() {
        let mut names = Found::default();
        let unheld = Connection { inode: u32::MAX, ..crate::view::tests::connection() };
        for is_incomplete in [false, true] {
            assert_eq!(names.process(&unheld), None);
            names.is_incomplete = is_incomplete;
            names.settle();
            assert_eq!(names.processes.known(), usize::from(!is_incomplete));
        }
    }

    #[test]
    fn the_memory_of_the_history_is_known_to_other_threads() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("history");
        let mut ring = Ring::default();
        let (mut disk, _) = Disk::open(&path, &mut ring).unwrap();
        ring.push(&moment(1, 2, 9));
        disk.add(&ring).unwrap();
        let recorder = Recorder::start(Some(path)).unwrap();
        let query = Query::default();
        let (client, answered) = Pending::of_test(Request::History(query));
        recorder.ask(query, client);
        let Reply::Written(answer) = answered.recv().unwrap() else { panic!("the history was asked for") };
        assert_eq!((answer, recorder.held_bytes()), (ring.answer(query), ring.bytes()));
    }
}
