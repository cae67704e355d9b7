//! Watches connections for a second, or for five if data comes in bursts: samples them, and adds the samples up.

use std::collections::{BTreeMap, HashMap};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use bufwise_bpf::reach;
use bufwise_host::address::Pattern;
use bufwise_host::judge::{Bursts, Direction, Limited, Queue};
use bufwise_host::processes::Holders;
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
    pub(super) retransmitted_now: u64,
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
                || !tracks.values().any(|one| one.bursts().is_bursty()));
        if tracks.is_empty() || is_over {
            break;
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let (holders, mut inspected) = (Holders::scan(), Inspected::default());
    let mut finish = |track: Track| {
        let (cgroup, container) = (survey.cgroup(&track.last), survey.container(&track.last));
        let mut watched = track.finish(&holders, &mut inspected, cgroup.as_deref())?;
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

    fn finish(self, holders: &Holders, inspected: &mut Inspected, cgroup: Option<&str>) -> Option<Watched> {
        let (first, last) = (self.samples.first()?, self.samples.last()?);
        let before = Some(first).filter(|first| first.at != last.at);
        let process = holders.of(self.last.inode);
        let (locked, by_run) = process.map_or((None, None), |process| {
            let holder = inspected.process(process.pid);
            (holder.locked(&self.last), holder.by_run)
        });
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
            locked,
            by_run,
            queue_s: queue.delay_s(),
            moving: bursts.is_bursty().then_some(bursts.moving),
            retransmitted_now: last.info.total_retrans.saturating_sub(first.info.total_retrans).into(),
        })
    }
}

/// The processes that hold the connections, by their numbers. Each is inspected once: it may hold tens of thousands.
#[derive(Default)]
struct Inspected(HashMap<i32, Holder>);

/// A process that holds connections.
struct Holder {
    /// The places of its sockets, by inode.
    places: HashMap<u64, reach::Place>,
    /// The `bufwise run` above it.
    by_run: Option<ByRun>,
}

impl Inspected {
    fn process(&mut self, pid: i32) -> &Holder {
        self.0
            .entry(pid)
            .or_insert_with(|| Holder { places: reach::sockets_of(pid).collect(), by_run: by_run::find(pid) })
    }
}

impl Holder {
    /// Reads the locks of a connection's buffers through a descriptor that is held only for that moment.
    fn locked(&self, connection: &Connection) -> Option<BufferLock> {
        let place = self.places.get(&u64::from(connection.inode)).copied()?;
        let (_, socket) = reach::socket(connection.cookie, &[], Some(place))?;
        options::buffer_lock(socket).ok()
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::MetadataExt;

    use bufwise_units::Bytes;

    use super::*;

    #[test]
    fn each_socket_of_a_process_shows_its_own_locks() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let [set, free] = [(); 2].map(|()| TcpStream::connect(listener.local_addr().unwrap()).unwrap());
        options::set_send_buffer(&set, Bytes(50_000)).unwrap();
        if options::buffer_lock(&set).is_err() {
            return bufwise_trial::skip("needs SO_BUF_LOCK (Linux 5.15)");
        }
        let mut inspected = Inspected::default();
        let holder = inspected.process(std::process::id().cast_signed());
        let sends = |socket: &TcpStream| {
            let inode = fs::metadata(format!("/proc/self/fd/{}", socket.as_raw_fd())).unwrap().ino();
            let connection = Connection::of(socket, u32::try_from(inode).unwrap()).unwrap();
            holder.locked(&connection).map(|lock| lock.send)
        };
        assert_eq!((sends(&set), sends(&free)), (Some(true), Some(false)));
    }
}
