//! Connections sized from user space: those for which the kernel calls no program.
//!
//! Problem: a connection that existed before the programs gets their callbacks only where an iterator may switch them on
//! (Linux 6.12). On older kernels it is sized from here, some times a second, by the same rules (`rules.h`): socket
//! diagnostics show what the programs would have read, pidfd_getfd(2) reaches the socket, its options set it.
//! It needs nothing of BPF but somewhere to keep the records ([`Records`]).
//!
//! A sample comes later here than a callback would, up to 50 round trips of a near path. So settings that need no sample are
//! left to the kernel:
//! - The send buffer stays autotuned as long as its share does not bind it.
//! - The receive buffer only grows, but for silent connections, whose buffers are given back as `sweep.h` does.
//!
//! Cost: a pass takes some microseconds a socket of the namespace, and comes no sooner than [`REST`] times what the one
//! before took: 2% of a processor.

use std::collections::{HashMap, HashSet};
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use bufwise_socket::diag::{Connection, Diag, State, States};
use bufwise_socket::namespace;
use bufwise_socket::options::{self, OptionError};
use bufwise_units::{Bytes, Rate};

use crate::abi::{bw_config, bw_control, bw_flow, bw_order};
use crate::clock::now;
use crate::config::{ReceiveRule, SendRule};
use crate::error::{EngineError, cannot};
use crate::flow::word;
use crate::owners::Owners;
use crate::record;
use crate::rules::{self, NONE, SendDecision};
use crate::swept::Swept;

/// A pass comes no sooner than this after the one before, nor sooner than so many times what that took.
const PASS: Duration = Duration::from_millis(200);
const REST: u32 = 50;
/// `/proc` is searched for a socket's process no more often: some milliseconds on a busy host.
const SEARCH: Duration = Duration::from_secs(2);
/// Bits of `owned` and of `given_back`.
const SEND: u32 = 1;
const RECEIVE: u32 = 2;

/// Where records are kept, and where other parts say what they want of a connection.
pub(crate) trait Records {
    /// The record of a connection that somebody sizes.
    fn record(&self, cookie: u64) -> Option<bw_flow>;
    /// Keeps a record.
    fn keep(&self, cookie: u64, flow: &bw_flow) -> Result<(), EngineError>;
    /// The order for this connection alone.
    fn order(&self, cookie: u64) -> Option<bw_order>;
}

/// The connections of one network namespace.
#[derive(Debug)]
struct Place {
    diag: Diag,
    listed: Vec<Connection>,
}

/// The connections that are sized from here.
#[derive(Debug)]
pub(crate) struct UserSpace {
    config: bw_config,
    places: HashMap<u64, Place>,
    sized: HashMap<u64, bw_flow>,
    sockets: Sockets,
    due: Instant,
}

impl UserSpace {
    pub(crate) fn new(config: bw_config) -> Self {
        let (due, sockets) = (Instant::now(), Sockets::default());
        Self { config, places: HashMap::new(), sized: HashMap::new(), sockets, due }
    }

    /// Goes through the connections of a network namespace (its inode and a descriptor): takes those that `is_ours` and
    /// that nobody sizes, and sizes those that it has.
    pub(crate) fn adopt(
        &mut self,
        (inode, netns): (u64, BorrowedFd<'_>),
        records: &impl Records,
        all: &bw_control,
        is_ours: impl Fn(&Connection) -> bool,
    ) -> Result<Swept, EngineError> {
        if let std::collections::hash_map::Entry::Vacant(place) = self.places.entry(inode) {
            let opened = namespace::inside(netns, Diag::open).map_err(cannot("entering"))?;
            let diag = opened.map_err(|error| cannot("listing")(std::io::Error::other(error)))?;
            place.insert(Place { diag, listed: Vec::new() });
        }
        let mut swept = self.pass(inode, records, all)?;
        let listed = self.places.get(&inode).into_iter().flat_map(|place| &place.listed);
        let is_stranger = |one: &&Connection| {
            is_open(one.state) && one.inode != 0 && !self.sized.contains_key(&one.cookie) && is_ours(one)
        };
        let strangers: Vec<Connection> = listed.filter(is_stranger).copied().collect();
        for one in &strangers {
            match records.record(one.cookie) {
                // Another engine's user space had it.
                Some(flow) if flow.user_space != 0 => {
                    self.sized.insert(one.cookie, flow);
                    continue;
                }
                Some(_) => continue,
                None => {}
            }
            // No process holds it any more, its process may not be inspected, or the kernel does not tell who set its buffers.
            let Some(flow) = self.take(inode, one) else { continue };
            records.keep(one.cookie, &flow)?;
            self.sized.insert(one.cookie, flow);
            swept.adopted += 1;
            swept.seen += 1;
        }
        if !self.sized.values().any(|flow| u64::from(flow.netns) == inode) {
            self.places.remove(&inode);
        }
        Ok(swept)
    }

    /// Sizes the connections that it has, if that is due.
    pub(crate) fn tend(&mut self, records: &impl Records, all: &bw_control) -> Result<(), EngineError> {
        let began = Instant::now();
        if began < self.due {
            return Ok(());
        }
        let inodes: Vec<u64> = self.places.keys().copied().collect();
        for inode in inodes {
            self.pass(inode, records, all)?;
        }
        self.due = began + PASS.max(began.elapsed() * REST);
        Ok(())
    }

    /// Lists a namespace, and sizes what it has there. Connections that are gone are marked closed.
    fn pass(&mut self, inode: u64, records: &impl Records, all: &bw_control) -> Result<Swept, EngineError> {
        let Some(place) = self.places.get_mut(&inode) else { return Ok(Swept::default()) };
        let listed = place.diag.tcp_into(States::CONNECTED, &mut place.listed);
        listed.map_err(|error| cannot("listing")(std::io::Error::other(error)))?;
        let (at, mut swept) = (now().0, Swept::default());
        let mut met = HashSet::new();
        for one in &place.listed {
            let Some(flow) = self.sized.get_mut(&one.cookie) else { continue };
            met.insert(one.cookie);
            let mut sizing = Sizing { config: &self.config, all, flow, one, sockets: &mut self.sockets };
            swept.given_back += u64::from(sizing.sample(records, at));
            swept.seen += 1;
            records.keep(one.cookie, flow)?;
        }
        let gone = |cookie: &u64, flow: &mut bw_flow| u64::from(flow.netns) == inode && !met.contains(cookie);
        for (cookie, mut flow) in self.sized.extract_if(gone) {
            record::close(&mut flow);
            records.keep(cookie, &flow)?;
        }
        Ok(swept)
    }

    /// The record of a connection that is found.
    fn take(&mut self, netns: u64, one: &Connection) -> Option<bw_flow> {
        let socket = self.sockets.reach(one)?;
        let lock = options::buffer_lock(&socket).ok()?;
        let locks = if lock.send { SEND } else { 0 } | if lock.receive { RECEIVE } else { 0 };
        let mut flow = record::adopted(one, netns, locks, now().0);
        if self.config.take_over == 0 {
            flow.owned = locks;
        }
        rules::begin(&self.config, &mut flow);
        Some(flow)
    }
}

/// States in which a process can still move data.
fn is_open(state: State) -> bool {
    matches!(state, State::Established | State::FinWait1 | State::FinWait2 | State::CloseWait)
}

/// The way to sockets of other processes.
#[derive(Debug, Default)]
struct Sockets {
    owners: Owners,
    searched: Option<Instant>,
}

impl Sockets {
    /// A descriptor of the connection's socket, to be held for a moment only.
    fn reach(&mut self, one: &Connection) -> Option<OwnedFd> {
        self.owners.socket(one.inode.into(), one.cookie).or_else(|| {
            if self.searched.is_some_and(|at| at.elapsed() < SEARCH) {
                return None;
            }
            self.owners = Owners::scan();
            self.searched = Some(Instant::now());
            self.owners.socket(one.inode.into(), one.cookie)
        })
    }
}

/// One connection at one sample.
struct Sizing<'a> {
    config: &'a bw_config,
    all: &'a bw_control,
    flow: &'a mut bw_flow,
    one: &'a Connection,
    sockets: &'a mut Sockets,
}

impl Sizing<'_> {
    /// Samples the connection, decides and sets; whether buffers were given back because nothing has moved.
    fn sample(&mut self, records: &impl Records, at: u64) -> bool {
        record::note(self.flow, self.one, at);
        rules::settle(self.config, self.flow, 0);
        let moved = record::moved(self.one);
        let is_silent = moved == self.flow.moved;
        let is_idle = rules::is_idle(self.config, self.flow, moved, at);
        if is_silent {
            // Buffers that the kernel refuses to change stay as they are; the next sample tries again.
            return is_idle && self.give_back().unwrap_or_default();
        }
        let order = records.order(self.one.cookie);
        if self.config.send_rule != SendRule::Kernel as u32 {
            let decision = rules::decide_send(self.config, self.all, order.as_ref(), self.flow, false);
            let _stays_as_it_is = self.send(decision);
        }
        if self.config.receive_rule != ReceiveRule::Kernel as u32 {
            let window = rules::decide_window(self.config, self.all, self.flow, at, false);
            let _stays_as_it_is = self.receive(window);
        }
        false
    }

    /// The send buffer stays autotuned as long as the share does not bind.
    fn send(&mut self, decision: SendDecision) -> Result<(), OptionError> {
        if decision.payload == NONE || self.flow.owned & SEND != 0 {
            return Ok(());
        }
        let step = rules::step_send(self.config, self.flow, decision.payload, true);
        let binds = rules::share_binds(self.config, self.all, self.flow, decision.share);
        let paced = binds && self.config.send_rule != SendRule::Fixed as u32;
        let rate = if paced { rules::decide_pace(self.flow, decision.share) } else { 0 };
        let nothing_to_do =
            if binds { step.value == 0 && rate == self.flow.set_pace } else { self.flow.set_sndbuf == 0 };
        if self.config.observe_only != 0 || nothing_to_do {
            return Ok(());
        }
        let Some(socket) = self.sockets.reach(self.one) else { return Ok(()) };
        if !binds {
            let lock = options::buffer_lock(&socket)?;
            options::set_buffer_lock(&socket, options::BufferLock { send: false, ..lock })?;
            self.flow.set_sndbuf = 0;
        } else if step.value != 0 {
            self.set_send(&socket, step.value)?;
        }
        self.pace(&socket, rate)
    }

    fn set_send(&mut self, socket: &OwnedFd, payload: u32) -> Result<(), OptionError> {
        options::force_send_buffer(socket, Bytes(payload.into()))?;
        self.flow.sndbuf = word(options::send_buffer(socket)?.0);
        self.flow.set_sndbuf = self.flow.sndbuf;
        self.flow.send_changes += 1;
        Ok(())
    }

    fn set_receive(&mut self, socket: &OwnedFd, size: u64) -> Result<(), OptionError> {
        options::force_receive_buffer(socket, Bytes(size))?;
        self.flow.rcvbuf = word(options::receive_buffer(socket)?.0);
        self.flow.set_rcvbuf = self.flow.rcvbuf;
        Ok(())
    }

    fn pace(&mut self, socket: &OwnedFd, rate: u32) -> Result<(), OptionError> {
        if rules::step_pace(self.flow, options::max_pacing_rate(socket)?.0, rate) {
            options::set_max_pacing_rate(socket, Rate(if rate == 0 { NONE } else { rate.into() }))?;
            self.flow.set_pace = rate;
        }
        Ok(())
    }

    fn receive(&mut self, window: u64) -> Result<(), OptionError> {
        let window = window.min(1 << 30);
        self.flow.decided_window = window;
        if self.config.observe_only != 0 || self.flow.owned & RECEIVE != 0 {
            return Ok(());
        }
        let memory = rules::decide_receive_buffer(self.config, self.flow, window, self.in_use());
        let Some(socket) = self.sockets.reach(self.one) else { return Ok(()) };
        if memory != 0 {
            self.set_receive(&socket, memory / 2)?;
        }
        if window != 0 {
            if options::window_clamp(&socket)?.0 != window {
                options::set_window_clamp(&socket, Bytes(window))?;
            }
            self.flow.clamp_changes += u32::from(u64::from(self.flow.set_clamp) != window);
            self.flow.set_clamp = word(window);
        }
        Ok(())
    }

    /// Memory for the data that is not yet read, and for the window that the peer may fill.
    fn in_use(&self) -> u64 {
        u64::from(self.one.mem.rmem_alloc) + rules::memory_of_window(self.flow.rcv_wnd.into(), 0)
    }

    fn give_back(&mut self) -> Result<bool, OptionError> {
        let before = self.flow.given_back;
        let send = rules::give_back_send(self.config, self.flow);
        let unread = self.one.mem.rmem_alloc != 0;
        let receive = rules::give_back_receive(self.config, self.flow, self.in_use(), unread);
        if send == 0 && receive == 0 {
            return Ok(false);
        }
        let Some(socket) = self.sockets.reach(self.one) else { return Ok(false) };
        if send != 0 {
            self.set_send(&socket, send)?;
            self.flow.given_back |= SEND;
        }
        if receive != 0 {
            self.set_receive(&socket, receive.into())?;
            self.flow.given_back |= RECEIVE;
        }
        Ok(before == 0)
    }
}
