//! Watches connections for a second, or for five if data comes in bursts: samples them, and adds the samples up.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bufwise_bpf::reach;
use bufwise_host::address::Pattern;
use bufwise_host::judge::{Bursts, Direction, Limited, Queue};
use bufwise_host::processes::{Holders, Process};
use bufwise_host::survey::Survey;
use bufwise_host::tcp_memory::TcpMemory;
use bufwise_host::view::{ConnectionView, Seen};
use bufwise_socket::diag::Connection;
use bufwise_socket::limit::SocketSample;
use bufwise_socket::options::{self, BufferLock};

use super::by_run::{self, ByRun};

/// Time between two samples.
const STEP: Duration = Duration::from_millis(50);
/// Duration of the watch, and its duration if data comes in bursts: their rate is that of whole periods.
const TIME: Duration = Duration::from_secs(1);
const MOST_TIME: Duration = Duration::from_secs(5);
/// Number of connections above which bursts do not prolong the watch: among many some always come in bursts.
const MANY: usize = 64;

/// The connections watched, and the duration.
#[derive(Debug)]
pub(super) struct Watch {
    pub(super) seconds: f64,
    pub(super) connections: Vec<Watched>,
    pub(super) notes: Vec<String>,
    /// TCP's memory at its largest, if the kernel was short of it then.
    pub(super) short: Option<TcpMemory>,
}

/// One connection that was watched.
#[derive(Debug)]
pub(super) struct Watched {
    pub(super) view: ConnectionView,
    /// Which buffers were set explicitly; `None` if the socket cannot be reached.
    pub(super) locked: Option<BufferLock>,
    /// The `bufwise run` that sizes it.
    pub(super) by_run: Option<ByRun>,
    /// Seconds that segments spend in a queue; `None` without evidence of one.
    pub(super) queue_s: Option<f64>,
    /// Share of the time in which data passed, if it came in bursts.
    pub(super) moving: Option<f64>,
    /// Segments that were retransmitted meanwhile.
    pub(super) repeated_now: u64,
}

/// The samples of one connection, and its last state.
struct Track {
    netns: String,
    samples: Vec<SocketSample>,
    last: Connection,
}

/// Watches the connections with that address; returns early if there are none.
pub(super) fn watch(address: Pattern) -> Result<Watch> {
    let mut survey = Survey::open()?;
    let mut tracks: BTreeMap<u64, Track> = BTreeMap::new();
    let mut short: Option<TcpMemory> = None;
    let start = Instant::now();
    for number in 0.. {
        thread::sleep((start + STEP * number).saturating_duration_since(Instant::now()));
        let elapsed = start.elapsed();
        survey.sample()?;
        for found in survey.found().filter(|one| address.matches(one.connection.local, one.connection.peer)) {
            let new =
                || Track { netns: found.netns.to_owned(), samples: Vec::new(), last: *found.connection };
            let track = tracks.entry(found.connection.cookie).or_insert_with(new);
            track.samples.push(found.sample());
            track.last = *found.connection;
        }
        let shrinks = |memory: &TcpMemory| tracks.values().any(|one| memory.shrinks(&one.last.info));
        let now = TcpMemory::now().filter(shrinks);
        short = short.into_iter().chain(now).max_by_key(|memory| memory.held);
        let is_over = number > 0
            && elapsed >= TIME
            && (elapsed >= MOST_TIME
                || tracks.len() > MANY
                || !tracks.values().any(|one| one.bursts().any()));
        if tracks.is_empty() || is_over {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let holders = Holders::scan();
    let mut finish = |track: Track| {
        let (cgroup, container) = (survey.cgroup(&track.last), survey.container(&track.last));
        let mut watched = track.finish(&holders, cgroup.as_deref())?;
        watched.view.container = container;
        Some(watched)
    };
    let connections = tracks.into_values().filter_map(&mut finish).collect();
    Ok(Watch { seconds, connections, notes: survey.notes, short })
}

impl Track {
    fn direction(&self) -> Direction {
        let first = self.samples.first().filter(|_| self.samples.len() > 1);
        self.samples.last().map_or(Direction::Send, |last| Direction::between(first, last))
    }

    fn bursts(&self) -> Bursts {
        Bursts::of(self.direction(), &self.samples)
    }

    fn finish(self, holders: &Holders, cgroup: Option<&str>) -> Option<Watched> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let before = Some(first).filter(|first| first.at != last.at);
        let process = holders.of(self.last.inode);
        let (direction, bursts) = (self.direction(), self.bursts());
        let period = bursts.whole_periods().map(|(from, to)| [&self.samples[from], &self.samples[to]]);
        let mut view = ConnectionView::new(&Seen {
            netns: &self.netns,
            cgroup,
            process,
            connection: &self.last,
            at: last.at,
            previous: before,
            period,
        });
        let (mut spent, mut queue) = (Limited::default(), Queue::default());
        // The direction is that of the whole time, not of each interval.
        for pair in self.samples.windows(2) {
            spent.add(direction, &pair[0], &pair[1]);
            queue.add(direction, &pair[0], &pair[1]);
        }
        view.limited = spent.shares();
        if let Some(limited) = &view.limited {
            view.limited_by = Some(limited.by_cause()[0].0);
        }
        Some(Watched {
            view,
            locked: process.and_then(|process| locked(process, self.last.cookie)),
            by_run: process.and_then(|process| by_run::find(process.pid)),
            queue_s: queue.delay_s(),
            moving: bursts.any().then_some(bursts.moving),
            repeated_now: last.info.total_retrans.saturating_sub(first.info.total_retrans).into(),
        })
    }
}

/// Reads the locks of a socket through a descriptor that is held only for that moment.
fn locked(process: &Process, cookie: u64) -> Option<BufferLock> {
    let (_, socket) = reach::socket(cookie, &[process.pid], None)?;
    options::buffer_lock(socket).ok()
}
