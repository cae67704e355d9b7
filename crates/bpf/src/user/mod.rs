//! The engine in user space, without any privilege: sizes a command's own sockets by the rules of the programs.
//!
//! Problem: programs in the kernel need root. Without root, a process may do the same for the sockets of its own user's
//! processes, on any kernel since 5.6: pidfd_getfd(2) reaches the sockets, `TCP_INFO` shows what the programs would have
//! read, the rules in C decide (`rules.h`, compiled for the host), and options that need no privilege set the sockets.
//!
//! [`sockets`] finds the connections, [`schedule`] decides when to sample which, [`sizing`] samples and sets one of
//! them. Sockets are not held: while a second descriptor exists, the owner's close() does not close the connection.
//! So each sample fetches a descriptor and closes it some microseconds later.
//!
//! Socket diagnostics would need no descriptor, but would list all sockets of the namespace each time.

mod process;
mod schedule;
pub(crate) mod sizing;
mod sockets;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixDatagram;

use bufwise_socket::diag::{CongestionControl, Connection, State};
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::Micros;
use nix::sys::prctl;
use nix::sys::stat::fstat;

use crate::abi::{bw_config, bw_control, bw_flow, bw_order, bw_room};
use crate::clock::{now, processor_time};
use crate::config::{Config, ReceiveRule, SendRule};
use crate::engine::{Order, Shares};
use crate::flow::{FlowState, word};
use crate::means::Means;
use crate::reach::{self, Place, SocketCopy};
use crate::record;
use crate::release::{self, Released};
use crate::rules;
use schedule::{Allowance, PART, Schedule, Search, chosen};
use sizing::Sizing;
use sockets::{Finder, is_tcp};

/// Number of searches without the socket after which it counts as closed: it may pass from one process to another
/// meanwhile. Searches that do not know the newest processes do not count: a server that forks closes its own descriptor.
const MISSED: u32 = 2;
/// Largest number of peers whose paths are remembered; with one more all are forgotten.
const PEERS: usize = 1_024;
/// Largest number of connections whose records are kept though they count as closed; with one more all are forgotten.
const LOST: usize = 1_024;
/// Time after which a sample also reads the congestion control and the locks of the buffers again, microseconds: an application
/// may change them.
const SETTINGS_AGAIN: u64 = 50_000;

/// Sizes the connections of the calling process's descendants ([`UserEngine::new`]), or its own ([`UserEngine::of_itself`]).
#[derive(Debug)]
pub struct UserEngine {
    config: bw_config,
    control: bw_control,
    orders: HashMap<u64, bw_order>,
    /// Room on the peers' paths, by address (`bpf/peers.h`).
    rooms: HashMap<[u32; 4], bw_room>,
    /// Connections by cookie.
    connections: BTreeMap<u64, Watched>,
    /// Connections that were out of sight until they counted as closed, by cookie. A socket that waits between two processes comes
    /// back with the settings of the engine, which would look like the application's.
    lost: BTreeMap<u64, Watched>,
    /// Inodes of sockets that are not connections and never become one.
    no_connections: HashSet<u64>,
    /// Inodes of all sockets that the last search found.
    met: HashSet<u64>,
    finder: Finder,
    search: Search,
    /// Time at which the next sample is due, microseconds; `u64::MAX`: none.
    sample_at: u64,
    /// Processor time for all work, searches included.
    allowance: Allowance,
    /// Whether buffers are set: only if their lock can be removed again.
    sets_buffers: bool,
    /// Whether TCP may pace connections whose congestion control does not ask for it.
    may_be_paced: bool,
    /// A line on processes that outlive the command.
    left: Option<String>,
}

/// A connection, and the place where its socket was found.
#[derive(Debug)]
struct Watched {
    flow: bw_flow,
    one: Connection,
    place: Place,
    schedule: Schedule,
    missed: u32,
    /// Time from which a sample also reads the congestion control and the locks, microseconds.
    settings_at: u64,
    /// Whether it was sampled since [`UserEngine::connections`].
    is_fresh: bool,
}

impl UserEngine {
    /// Makes an engine for the processes that this one starts from now on. This process becomes their reaper, so that
    /// none is lost.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        // If this fails, processes are found only while their parents live.
        let _since_linux_3_4 = prctl::set_child_subreaper(true);
        Self::with(config, Finder::new())
    }

    /// Makes an engine for the connections of this process itself, which another of its threads makes and uses.
    #[must_use]
    pub fn of_itself(config: &Config) -> Self {
        wake_up_in_time();
        Self::with(config, Finder::of_itself())
    }

    fn with(config: &Config, finder: Finder) -> Self {
        let at = now().0;
        let mut engine = Self {
            config: config.into(),
            control: bw_control::default(),
            orders: HashMap::new(),
            rooms: HashMap::new(),
            connections: BTreeMap::new(),
            lost: BTreeMap::new(),
            no_connections: HashSet::new(),
            met: HashSet::new(),
            finder,
            search: Search::new(at),
            sample_at: u64::MAX,
            allowance: Allowance::new(PART, at),
            sets_buffers: tells_locks(),
            may_be_paced: may_be_paced(),
            left: None,
        };
        engine.set_shares(Shares::default());
        engine
    }

    /// Sets the command's process, which its starter waits for. The engine reaps other children that it inherits.
    pub fn watch(&mut self, command: u32) {
        // The command was started before, so that it does not inherit this.
        wake_up_in_time();
        self.finder.leave_to_its_starter(command.cast_signed());
        self.search.made(now().0, true);
    }

    /// Returns every connection that was found and not yet forgotten.
    #[must_use]
    pub fn flows(&self) -> Vec<FlowState> {
        self.connections.iter().map(|(cookie, one)| FlowState::from_kernel(*cookie, &one.flow)).collect()
    }

    /// Returns the open connections that were sampled since the last call. Beside many connections, each call returns few of them.
    pub fn connections(&mut self) -> impl Iterator<Item = &Connection> {
        let open = self.connections.values_mut().filter(|one| one.is_open());
        open.filter_map(|one| std::mem::take(&mut one.is_fresh).then_some(&one.one))
    }

    /// Takes the shares that the memory allows.
    pub fn set_shares(&mut self, shares: Shares) {
        self.control = shares.control();
    }

    /// Takes the demand and limit of one connection.
    pub fn order(&mut self, cookie: u64, order: Order) {
        self.orders.insert(cookie, order.into());
    }

    /// Forgets a closed connection, once its last figures were read.
    pub fn forget(&mut self, cookie: u64) {
        self.orders.remove(&cookie);
        let forgotten = self.connections.remove(&cookie);
        if let Some(lost) = forgotten.filter(|one| one.missed >= MISSED) {
            if self.lost.len() == LOST {
                self.lost.clear();
            }
            self.lost.insert(cookie, lost);
        }
    }

    /// Returns the time at which [`UserEngine::poll`] is due next.
    #[must_use]
    pub fn next_at(&self) -> Micros {
        Micros(self.sample_at.min(self.search.next_at()).max(self.allowance.ready_at()))
    }

    /// Searches for sockets and samples connections, as far as due.
    pub fn poll(&mut self) {
        let at = now().0;
        if at < self.next_at().0 {
            return;
        }
        let before = processor_time();
        let mut searched = 0;
        if at >= self.search.next_at() {
            self.look_for_sockets(at);
            searched = processor_time().since(before).0;
            self.search.spend(at, searched);
        }
        // The search may have taken some milliseconds. Rates are computed from the times of samples.
        self.sample(now().0);
        let reached = self.connections.values().filter(|one| one.is_reached());
        self.sample_at = reached.map(|one| one.schedule.next_at).min().unwrap_or(u64::MAX);
        let all = processor_time().since(before).0;
        self.allowance.spend(at, self.search.counted(at, all, searched));
    }

    /// Returns why the kernel goes on sizing some sockets of the command, as far as known; one line each.
    pub fn limits(&self) -> impl Iterator<Item = &str> {
        let buffers =
            "before Linux 5.15 buffers stay autotuned: they could not be given back; windows are bounded";
        let (send, receive) = (SendRule::Kernel as u32, ReceiveRule::Kernel as u32);
        let sizes = self.config.send_rule != send || self.config.receive_rule != receive;
        let before = (sizes && !self.sets_buffers).then_some(buffers);
        self.finder.refusals().iter().map(String::as_str).chain(before).chain(self.left.as_deref())
    }

    /// Gives back every socket that has a setting, in the processes that outlive the command, or inherited by this one.
    pub fn release_all(&mut self) -> Released {
        // A process that was started just before the command's end may hold a socket by now.
        self.finder.list_next();
        self.look_for_sockets(now().0);
        let there = |flow: &FlowState| self.connections.get(&flow.cookie).is_some_and(Watched::is_reached);
        let mut flows = self.flows();
        flows.retain(|flow| there(flow) && flow.is_touched());
        let (finder, connections) = (&mut self.finder, &self.connections);
        let released = release::release_each(flows, Means::Plain, || {
            finder.list_next();
            let found = finder.search(now().0);
            move |flow: &FlowState| {
                let inode = u64::from(connections.get(&flow.cookie)?.one.inode);
                reach::at(found.place_of(inode)?, flow.cookie)
            }
        });
        self.connections.clear();
        self.left = left_running(self.finder.left());
        released
    }

    fn look_for_sockets(&mut self, at: u64) {
        let found = self.finder.search(at);
        let met: HashSet<u64> = found.places.keys().copied().collect();
        let is_new = found.started || !met.is_subset(&self.met);
        self.no_connections.retain(|inode| met.contains(inode));
        let mut known = HashSet::new();
        for watched in self.connections.values_mut().filter(|one| one.is_open()) {
            let inode = u64::from(watched.one.inode);
            known.insert(inode);
            if let Some(place) = found.place_of(inode) {
                (watched.place, watched.missed) = (place, 0);
            } else if found.is_complete {
                watched.missed += 1;
                if watched.missed >= MISSED {
                    record::close(&mut watched.flow);
                }
            }
        }
        for (inode, place) in found.places {
            if !known.contains(&inode) && !self.no_connections.contains(&inode) {
                self.take(inode, place);
            }
        }
        self.met = met;
        self.search.made(at, is_new);
    }

    /// Adopts a socket if it is a connection; if it is not established yet, the next search checks it again.
    fn take(&mut self, inode: u64, place: Place) {
        let Some(socket) = self.finder.fetch(place) else { return };
        self.take_one(&socket, inode, place);
    }

    fn take_one(&mut self, socket: &SocketCopy, inode: u64, place: Place) {
        // The search has taken a while.
        let at = now().0;
        // The descriptor's number may belong to another socket by now.
        let is_it = fstat(socket).is_ok_and(|found| found.st_ino == inode);
        if !is_it {
            return;
        }
        let one = u32::try_from(inode).ok().filter(|_| is_tcp(socket));
        let Some(one) = one.and_then(|inode| Connection::of(socket, inode).ok()) else {
            self.no_connections.insert(inode);
            return;
        };
        match one.state {
            State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait => {}
            State::Listen => {
                self.no_connections.insert(inode);
                return;
            }
            _ => return,
        }
        let known = self.connections.remove(&one.cookie).or_else(|| self.lost.remove(&one.cookie));
        if let Some(mut watched) = known.filter(|known| known.is_of(&one)) {
            // It was out of sight for so long that it counted as closed.
            record::note(&mut watched.flow, &one, at);
            (watched.one, watched.place, watched.missed, watched.is_fresh) = (one, place, 0, true);
            self.connections.insert(one.cookie, watched);
            return;
        }
        let Some(lock) = self.lock_of(socket) else { return };
        let mut flow = sizing::take(&self.config, &one, 0, lock, at);
        flow.paced = self.may_be_paced.into();
        if let Ok(clamp) = options::window_clamp(socket) {
            rules::settle_clamp(&self.config, &mut flow, word(clamp.0), 0);
        }
        let room = self.rooms.get(&flow.remote_ip);
        flow.fit_window.doublings = room.map_or(0, |room| rules::room_doublings(room, at));
        let schedule = Schedule::new(at);
        let mut watched = Watched { flow, one, place, schedule, missed: 0, settings_at: at, is_fresh: true };
        // Rules that depend only on a size or a share apply from the start.
        self.sizing(&mut watched, socket).decide(at);
        self.connections.insert(one.cookie, watched);
    }

    fn sample(&mut self, at: u64) {
        let is_due = |one: &Watched| one.is_reached() && one.schedule.next_at <= at;
        let due = self.connections.iter().filter(|(_, one)| is_due(one));
        let due = due.map(|(cookie, one)| (*cookie, one.schedule));
        for cookie in chosen(due, self.connections.len()) {
            let Some(mut watched) = self.connections.remove(&cookie) else { continue };
            // The samples before it have taken some microseconds each.
            let at = now().0;
            if self.sample_one(cookie, &mut watched, at).is_none() {
                watched.missed = 1;
                self.search.hasten(at);
            }
            let (rooms, peer) = (&mut self.rooms, watched.flow.remote_ip);
            rules::learn_room(&mut watched.flow, at, || {
                if rooms.len() == PEERS && !rooms.contains_key(&peer) {
                    rooms.clear();
                }
                rooms.entry(peer).or_default()
            });
            self.connections.insert(cookie, watched);
        }
    }

    /// Samples one connection; `None`: the socket is not where it was.
    fn sample_one(&self, cookie: u64, watched: &mut Watched, at: u64) -> Option<()> {
        let socket = reach::at(watched.place, cookie)?;
        let moved = self.sample_at(&socket, watched, at)?;
        let rtt = if watched.flow.srtt == 0 { watched.flow.rcv_rtt } else { watched.flow.srtt };
        let shortest = rtt.min(NonZeroU32::new(watched.flow.min_rtt).map_or(u32::MAX, NonZeroU32::get));
        let trains = rules::is_fit_timing(&self.config, &watched.flow).then(|| shortest.into());
        watched.schedule.sampled(at, moved, rtt.into(), trains);
        // fit's window grows by what arrives behind holes.
        if watched.flow.arrivals.behind > 0 {
            watched.schedule.hasten(at);
        }
        Some(())
    }

    /// Samples and sizes a connection whose socket is at hand; returns whether data has moved.
    fn sample_at(&self, socket: &SocketCopy, watched: &mut Watched, at: u64) -> Option<bool> {
        watched.one.refresh(socket).ok()?;
        let mut lock = BufferLock::default();
        if at >= watched.settings_at {
            watched.one.congestion = CongestionControl::named(&options::congestion_control(socket).ok()?);
            lock = self.lock_of(socket)?;
            watched.settings_at = at + SETTINGS_AGAIN;
        }
        let moved = record::moved(&watched.one) != watched.flow.moved;
        self.sizing(watched, socket).sample(at, lock);
        watched.is_fresh = true;
        Some(moved)
    }

    /// Returns which buffers are locked, by the application or by the engine; none on kernels that do not show it, where the engine
    /// sets no buffer.
    fn lock_of(&self, socket: &SocketCopy) -> Option<BufferLock> {
        if self.sets_buffers { options::buffer_lock(socket).ok() } else { Some(BufferLock::default()) }
    }

    fn sizing<'a>(&'a self, watched: &'a mut Watched, socket: &'a SocketCopy) -> Sizing<'a, BorrowedFd<'a>> {
        Sizing {
            config: &self.config,
            all: &self.control,
            order: self.orders.get(&watched.one.cookie).copied(),
            flow: &mut watched.flow,
            one: &watched.one,
            socket: socket.as_fd(),
            means: Means::Plain,
            sets_buffers: self.sets_buffers,
        }
    }
}

impl Watched {
    fn is_open(&self) -> bool {
        !FlowState::is_over(&self.flow)
    }

    /// Returns whether a socket with its cookie still has the same connection: it may have been connected anew.
    fn is_of(&self, one: &Connection) -> bool {
        (self.one.local, self.one.peer) == (one.local, one.peer)
            && one.info.bytes_acked >= self.flow.bytes_acked
            && one.info.bytes_received >= self.flow.bytes_received
    }

    /// Returns whether it is open, and the last search found its socket in its place.
    fn is_reached(&self) -> bool {
        self.is_open() && self.missed == 0
    }
}

/// Returns a line that tells the user how many processes outlive the command; `None` for 0.
#[must_use]
pub fn left_running(processes: usize) -> Option<String> {
    let (subject, their) = match processes {
        0 => return None,
        1 => ("a process that the command has started still runs".to_owned(), "its"),
        more => (format!("{more} processes that the command has started still run"), "their"),
    };
    Some(format!(
        "{subject}: from now on the kernel sizes {their} connections; a server is tuned while it stays in the foreground"
    ))
}

/// Returns whether the kernel shows locked buffers, and lets them be unlocked (`SO_BUF_LOCK`, Linux 5.15).
pub(crate) fn tells_locks() -> bool {
    UnixDatagram::unbound().is_ok_and(|any| options::buffer_lock(any).is_ok())
}

/// Returns whether new connections may be paced although CUBIC or Reno does not ask for it: a connection that changes
/// from BBR to one of them stays paced, and the fq queueing discipline paces all.
fn may_be_paced() -> bool {
    let setting = |name: &str| fs::read_to_string(format!("/proc/sys/net/{name}")).unwrap_or_default();
    let (control, queue) = (setting("ipv4/tcp_congestion_control"), setting("core/default_qdisc"));
    !matches!(control.trim(), "cubic" | "reno") || queue.trim() == "fq"
}

/// Makes the calling thread wake up at the time that it asks for, not up to 50 us later, because segments of a train are
/// some tenths of a millisecond apart. If the kernel refuses this, trains are timed less precisely.
fn wake_up_in_time() {
    let _since_linux_2_6_28 = prctl::set_timerslack(1);
}
