//! A second of a connection's life: several looks, and what they add up to.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bufwise_bpf::reach;
use bufwise_host::address::Pattern;
use bufwise_host::judge::{Direction, Limited};
use bufwise_host::processes::{Holders, Process};
use bufwise_host::survey::Survey;
use bufwise_host::view::{ConnectionView, Seen};
use bufwise_socket::diag::Connection;
use bufwise_socket::limit::Look;
use bufwise_socket::options::{self, BufferLock};

/// How long, and how often in that time.
const TIME: Duration = Duration::from_secs(1);
const LOOKS: u32 = 20;
/// `bufwise run` keeps its commands in groups of this name.
const RUN_GROUP: &str = "/bufwise-run-";

/// The connections watched and for how long.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) seconds: f64,
    pub(super) connections: Vec<Watched>,
    pub(super) notes: Vec<String>,
}

/// One connection that was watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) view: ConnectionView,
    /// Which buffers someone has set; `None` where the socket cannot be reached.
    pub(super) locked: Option<BufferLock>,
    /// It belongs to a command that `bufwise run` tunes.
    pub(super) tuned_by_run: bool,
}

/// The samples of one connection, and its last state.
struct Track {
    netns: String,
    looks: Vec<Look>,
    last: Connection,
}

/// Watches the connections with that address; returns at once if there are none.
pub(super) fn watch(address: Pattern) -> Result<Watch> {
    let mut survey = Survey::open()?;
    let mut tracks: BTreeMap<u64, Track> = BTreeMap::new();
    let start = Instant::now();
    for number in 0..=LOOKS {
        thread::sleep((start + TIME / LOOKS * number).saturating_duration_since(Instant::now()));
        survey.look()?;
        for found in survey.found().filter(|one| address.matches(one.connection.local, one.connection.peer)) {
            let new = || Track { netns: found.netns.to_owned(), looks: Vec::new(), last: *found.connection };
            let track = tracks.entry(found.connection.cookie).or_insert_with(new);
            track.looks.push(found.look());
            track.last = *found.connection;
        }
        if tracks.is_empty() {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let holders = Holders::scan();
    let connections = tracks.into_values().filter_map(|track| track.finish(&holders)).collect();
    Ok(Watch { seconds, connections, notes: survey.notes })
}

impl Track {
    fn finish(self, holders: &Holders) -> Option<Watched> {
        let (first, last) = (self.looks.first()?, self.looks.last()?);
        let before = Some(first).filter(|first| first.at != last.at);
        let process = holders.of(self.last.inode);
        let mut view = ConnectionView::new(&Seen {
            netns: &self.netns,
            process,
            connection: &self.last,
            at: last.at,
            previous: before,
        });
        view.limited = limited(view.direction, &self.looks);
        if let Some(limited) = &view.limited {
            view.limited_by = Some(limited.by_cause()[0].0);
        }
        Some(Watched {
            view,
            locked: process.and_then(|process| locked(process, self.last.cookie)),
            tuned_by_run: process.is_some_and(is_tuned_by_run),
        })
    }
}

/// The shares of the time; the way is that of the whole time, not of each moment.
fn limited(direction: Direction, looks: &[Look]) -> Option<Limited> {
    let mut spent = Limited::default();
    for pair in looks.windows(2) {
        spent.add(direction, &pair[0], &pair[1]);
    }
    spent.shares()
}

/// Reads the locks through a descriptor that is ours for that moment only.
fn locked(process: &Process, cookie: u64) -> Option<BufferLock> {
    let (_, socket) = reach::socket(cookie, &[process.pid], None)?;
    options::buffer_lock(socket).ok()
}

fn is_tuned_by_run(process: &Process) -> bool {
    std::fs::read_to_string(format!("/proc/{}/cgroup", process.pid))
        .is_ok_and(|text| text.contains(RUN_GROUP))
}
