//! Loads and attaches the kernel's side, and exchanges data with it.
//!
//! Problem: the programs decide per round trip, each for one connection. User space supplies only the shares, which concern
//! all connections together, several times a second, and must cost little. So it reads one map of flows in batches, and
//! writes one small structure with the shares.
//! The programs are attached to the cgroup itself, not to a descriptor of this process. If this process is killed, they
//! continue; after five seconds without a heartbeat they follow only the congestion window and the bound of the path.

#![expect(unsafe_code, reason = "the descriptor of the ring is lent by no library")]

mod handover;
mod requests;

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};
use std::thread;

use bufwise_policy::Share;
use bufwise_socket::diag::Connection;
use bufwise_units::{Bytes, Micros};
use libbpf_rs::{MapCore, MapFlags, RingBuffer, RingBufferBuilder};
use nix::sys::stat::fstat;

use crate::abi::{BwRequest, LAYOUT, Plain, SweptState, bw_control, bw_order, bw_turnover};
use crate::clock::now;
use crate::config::Config;
use crate::entries::Entries;
use crate::error::{EngineError, failed, refused};
use crate::flow::FlowState;
use crate::leftover::Owner;
use crate::load::{self, Maps};
use crate::matching::Matching;
use crate::orders::Writer;
use crate::program::{self, ProgramInfo};
use crate::release::{self, Released};
use crate::sweep::{Pass, Sweeper};
use crate::swept::Swept;
use crate::user_space::Records;
use crate::version::sweeps_switch_callbacks_on;
pub use requests::Request;

/// "No bound" in the kernel's structures.
const NO_LIMIT: u64 = u64::MAX;

/// Limits that apply to all connections alike.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Memory that any connection's send buffer may hold; `None`: no bound.
    pub level: Option<Bytes>,
    /// The same for newcomers: connections that have begun after [`Self::newest_at`] or have sent less than 32 KB; `None`:
    /// as for all others.
    pub newcomer: Option<Bytes>,
    /// The latest [`FlowState::began_at`] of the connections that have sent.
    pub newest_at: Micros,
    /// Largest receive window of any connection (payload); `None`: no bound.
    pub window: Option<Bytes>,
    /// Whether memory in use exceeds the budget, so that buffers shrink with every acknowledgement.
    pub pressure: bool,
}

/// The demand and limit of one connection, used instead of [`Shares::level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Payload that its send buffer should hold; zero: unknown.
    pub demand: Bytes,
    /// Memory that it may hold, bytes; `None`: no bound.
    pub limit: Option<Bytes>,
}

impl Shares {
    /// Converts to the structure that the rules read, with a heartbeat at the present time.
    pub(crate) fn control(self) -> bw_control {
        let send_level = self.level.map_or(NO_LIMIT, |level| level.0);
        bw_control {
            heartbeat_ns: now().0.saturating_mul(1_000),
            send_level,
            newcomer_level: self.newcomer.map_or(send_level, |newcomer| newcomer.0),
            newest_at: self.newest_at.0,
            window_level: self.window.map_or(NO_LIMIT, |window| window.0),
            pressure: self.pressure.into(),
            layout: LAYOUT,
            ..bw_control::default()
        }
    }
}

impl From<Order> for bw_order {
    fn from(order: Order) -> Self {
        Self { demand: order.demand.0, limit: order.limit.map_or(NO_LIMIT, |limit| limit.0) }
    }
}

/// The loaded programs. Dropping the engine detaches them, except in a panic.
#[derive(Debug)]
pub struct Engine {
    program: OwnedFd,
    /// The cgroups to which the programs are attached, each with its inode.
    cgroups: Vec<(OwnedFd, u64)>,
    /// Loaded by the first sweep.
    sweeper: Option<Sweeper>,
    owner: Owner,
    config: Config,
    matching: Matching,
    /// Cgroups of the groups, as written to the programs' map.
    members: HashMap<u64, u32>,
    /// Cgroups of other engines, below ours, and the number of those for which the programs' map had no room.
    excluded: Vec<u64>,
    unnoted: usize,
    /// The control structure as last written to the programs' map.
    control: bw_control,
    maps: Maps,
    orders: Writer,
    ring: RingBuffer<'static>,
    requests: Receiver<Request>,
    /// The last shares: an unchanged value need not be written again.
    last_shares: Option<Shares>,
    /// The buffers could not be given back, so the programs stay attached, and the next start finds them.
    stays: bool,
}

impl Engine {
    /// Loads the programs; nothing changes before [`Engine::attach`]. The calling process owns them: once it has
    /// ended, programs that are still on a cgroup are leftovers ([`crate::leftovers`]).
    ///
    /// # Errors
    /// [`EngineError::Refused`] if the privilege (CAP_BPF and CAP_NET_ADMIN, or root), BTF, or memory is missing.
    pub fn load(config: &Config) -> Result<Self, EngineError> {
        Self::load_for(config, &Matching::default())
    }

    /// As [`Engine::load`], for the connections of one group.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_for(config: &Config, matching: &Matching) -> Result<Self, EngineError> {
        let (program, maps) = load::callbacks(config, matching)?;
        let (sender, requests) = channel();
        let mut builder = RingBufferBuilder::new();
        builder
            .add(&maps.requests, move |bytes| {
                // The receiver is gone while the engine is being dropped.
                let _over = BwRequest::read(bytes).map(|request| sender.send(Request::from_kernel(request)));
                0
            })
            .map_err(refused("opening the ring"))?;
        let ring = builder.build().map_err(refused("opening the ring"))?;
        let mut engine = Self {
            program,
            cgroups: Vec::new(),
            sweeper: None,
            owner: Owner::own(),
            config: *config,
            matching: matching.clone(),
            members: HashMap::new(),
            excluded: Vec::new(),
            unnoted: 0,
            control: bw_control::default(),
            maps,
            orders: Writer::default(),
            ring,
            requests,
            last_shares: None,
            stays: false,
        };
        engine.heartbeat(Shares::default())?;
        Ok(engine)
    }

    /// Makes the programs see the connections made from now on by the processes of a cgroup (a descriptor of its
    /// directory) and of those below it; [`Engine::sweep`] adds existing ones.
    ///
    /// # Errors
    /// [`EngineError::Attach`], notably if another owner's program on a cgroup above forbids further programs;
    /// [`EngineError::Map`], notably if there are too many cgroups.
    pub fn attach(&mut self, cgroup: BorrowedFd<'_>) -> Result<(), EngineError> {
        let kept = cgroup.try_clone_to_owned().map_err(EngineError::Attach)?;
        let inode = fstat(&kept).map_err(|errno| EngineError::Attach(errno.into()))?.st_ino;
        program::attach(self.program.as_fd(), cgroup).map_err(EngineError::Attach)?;
        self.cgroups.push((kept, inode));
        self.maps
            .watched
            .update(&inode.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("noting the cgroup"))
    }

    /// Detaches the programs from every cgroup. Connections keep their settings.
    pub fn detach(&mut self) {
        for (cgroup, inode) in self.cgroups.drain(..) {
            let _not_there = self.maps.watched.delete(&inode.to_ne_bytes());
            let _removed_with_its_cgroup = program::detach(self.program.as_fd(), cgroup.as_fd());
        }
    }

    /// Stops the programs from setting any connection until the next [`Engine::heartbeat`]. They stay attached, so that
    /// after a kill the next start finds their records.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn suspend(&mut self) -> Result<(), EngineError> {
        self.write_control(bw_control { suspended: 1, ..self.control })
    }

    /// Sweeps all sockets of a network namespace (a descriptor as of `/proc/PID/ns/net`): adopts unknown connections
    /// of the watched cgroups, and gives back the buffers of silent ones. Connections without a record count as new
    /// afterwards, in every namespace.
    ///
    /// The buffers of a silent connection wait for the next call: make it every two seconds while there are such
    /// connections, and at least once a minute. The calling thread stays in its own namespace.
    ///
    /// # Errors
    /// [`EngineError::Sweep`], notably without CAP_SYS_ADMIN over the namespace; [`EngineError::Map`].
    pub fn sweep(&mut self, netns: BorrowedFd<'_>) -> Result<Swept, EngineError> {
        let swept = self.sweep_for(netns, &|_| true)?;
        self.note_all_swept()?;
        Ok(swept)
    }

    /// As [`Engine::sweep`], for one of several namespaces: [`Engine::note_all_swept`] comes after the last one. `is_own`
    /// tells whether a connection belongs to the engine's group, for connections that user space must size; the iterator
    /// tests this by itself.
    ///
    /// # Errors
    /// As [`Engine::sweep`].
    pub fn sweep_for(
        &mut self,
        netns: BorrowedFd<'_>,
        is_own: &dyn Fn(&Connection) -> bool,
    ) -> Result<Swept, EngineError> {
        let mut sweeper = self.take_sweeper()?;
        let roots = self.cgroups.iter().map(|(cgroup, _)| cgroup.as_fd()).collect();
        let pass = Pass { maps: &self.maps, all: &self.control, roots, others: &self.excluded, is_own };
        let swept = sweeper.sweep(netns, &pass);
        self.sweeper = Some(sweeper);
        swept
    }

    /// Tells the programs that all namespaces have been swept, each by [`Engine::sweep_for`]. From now on a connection without a
    /// record is new, unless user space sizes such connections. Before that, a callback cannot distinguish a new connection
    /// from one that is older than the programs and whose namespace was not swept yet.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn note_all_swept(&mut self) -> Result<(), EngineError> {
        let state = match self.sweeper.as_ref().is_some_and(Sweeper::is_complete) {
            false => SweptState::NotSwept,
            true if sweeps_switch_callbacks_on() => SweptState::Swept,
            true => SweptState::AllNew,
        };
        let all = bw_control { swept: state as u32, ..self.control };
        if all.swept == self.control.swept { Ok(()) } else { self.write_control(all) }
    }

    /// Tells the programs that no connection of their cgroups is older than they are, as in a cgroup that was just made. So
    /// records may be late ([`Config::record_after`]).
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn expect_only_new(&mut self) -> Result<(), EngineError> {
        self.write_control(bw_control { swept: SweptState::AllNew as u32, ..self.control })
    }

    /// Sizes the connections for which the kernel makes no callbacks; call this several times a second. It does
    /// nothing if that is not due, or if there is no such connection.
    ///
    /// # Errors
    /// As [`Engine::sweep`].
    pub fn poll(&mut self) -> Result<(), EngineError> {
        self.sweeper.as_mut().map_or(Ok(()), |sweeper| sweeper.poll(&self.maps, &self.control))
    }

    /// Returns what happens to existing connections that the iterator does not adopt, and why, as the end of a
    /// sentence; known after the first sweep that met one.
    #[must_use]
    pub fn adoption_limit(&self) -> Option<&str> {
        self.sweeper.as_ref().and_then(Sweeper::limit)
    }

    /// Sweeps from user space, as on a kernel that refuses the iterator.
    pub fn avoid_iterator(&mut self) {
        self.sweeper = Some(Sweeper::from_user_space(&self.config, "asked for"));
    }

    /// Loads what [`Engine::sweep`] needs, unless it is loaded already.
    ///
    /// # Errors
    /// [`EngineError::Attach`] for lack of descriptors; a kernel that refuses the iterator is no error
    /// ([`Engine::adoption_limit`]).
    pub fn load_sweep(&mut self) -> Result<(), EngineError> {
        self.sweeper = Some(self.take_sweeper()?);
        Ok(())
    }

    fn take_sweeper(&mut self) -> Result<Sweeper, EngineError> {
        self.sweeper.take().map_or_else(|| Sweeper::load(&self.config, &self.matching, &self.maps), Ok)
    }

    /// Forgets connections that have closed without a callback, as while the programs were not attached; returns
    /// their number.
    ///
    /// A connection counts as gone if the last sweep of its network namespace did not meet it, and no sample of it was taken
    /// since that sweep began. If its namespace was not swept within `patience`, it counts as gone when no sample of it was
    /// taken for `patience`. If an entry is forgotten by mistake, a later sweep takes the connection for new, and its buffers
    /// for the application's. So `patience` should be an hour rather than a minute.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn forget_unseen(&mut self, patience: Micros) -> Result<usize, EngineError> {
        let now = now();
        let flows = self.flows()?;
        let is_gone = |flow: &&FlowState| match &self.sweeper {
            Some(sweeper) => sweeper.is_gone(flow, patience, now),
            None => now - flow.seen_at > patience,
        };
        let gone: Vec<u64> = flows.iter().filter(is_gone).map(|flow| flow.cookie).collect();
        for cookie in &gone {
            self.forget(*cookie);
        }
        if let Some(sweeper) = &mut self.sweeper {
            sweeper.forget_passes(patience, now);
        }
        Ok(gone.len())
    }

    /// Returns every connection that was seen and not yet forgotten.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn flows(&self) -> Result<Vec<FlowState>, EngineError> {
        Entries::states(&self.maps.flows).map_err(failed("reading the connections"))
    }

    /// Returns the inode of a connection's socket, as in `/proc/PID/fd`; `None` if it is not known yet.
    #[must_use]
    pub fn inode(&self, cookie: u64) -> Option<u64> {
        self.maps.record(cookie).map(|record| record.inode).filter(|inode| *inode > 0)
    }

    /// Returns how many connections' records were made, plus how many connections have closed, since the programs were
    /// loaded: a cheap sign of whether [`Engine::flows`] has changed much.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn turnover(&self) -> Result<u64, EngineError> {
        Ok(self.counts()?.changes)
    }

    /// Returns how many connections since the programs were loaded have had no record, because they moved less than
    /// [`Config::record_after`]. Open connections without a record are included. A record that is made again, because it was
    /// forgotten while its connection lived, counts as one less; the number never falls below zero.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn unrecorded(&self) -> Result<u64, EngineError> {
        Ok(self.counts()?.unrecorded.cast_signed().max(0).cast_unsigned())
    }

    fn counts(&self) -> Result<bw_turnover, EngineError> {
        let value = self.maps.turnover.lookup(&0_u32.to_ne_bytes(), MapFlags::ANY);
        let value = value.map_err(failed("reading the counts"))?;
        Ok(value.as_deref().and_then(bw_turnover::read).unwrap_or_default())
    }

    /// Returns the records of all connections, for [`Engine::inherit`] of another engine.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn entries(&self) -> Result<Entries, EngineError> {
        Entries::read(&self.maps.flows).map_err(failed("reading the connections"))
    }

    /// Takes over other programs' records of their connections, so that buffers that they set do not count as the
    /// applications'; returns the number of records. The order is: suspend the other programs, read their entries,
    /// inherit them, attach and sweep with this engine, detach the others. If the rules differ, use
    /// [`Engine::release_all`] of the other engine and a fresh start instead: settings that no rule of this engine
    /// sizes would stay.
    ///
    /// # Errors
    /// [`EngineError::Map`], notably if there are too many.
    pub fn inherit(&mut self, entries: &Entries) -> Result<usize, EngineError> {
        entries.write(&self.maps.flows, self.config.take_over).map_err(failed("taking connections over"))
    }

    /// Gives every socket that the programs have set back to the kernel, and detaches the programs from every cgroup.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer; the programs then stay attached, suspended, for the next start to
    /// find.
    pub fn release_all(&mut self) -> Result<Released, EngineError> {
        if self.suspend().is_err() {
            self.detach();
        }
        let entries = self.entries().inspect_err(|_| self.stays = true)?;
        let released = release::release_all(&entries);
        self.detach();
        self.forget_all(&entries);
        Ok(released)
    }

    /// Returns the kernel's information on the loaded programs; the iterator is loaded from the first sweep on.
    ///
    /// # Errors
    /// [`EngineError::Refused`] with the kernel's answer.
    pub fn programs(&self) -> Result<Vec<ProgramInfo>, EngineError> {
        let sweep = self.sweeper.as_ref().and_then(Sweeper::program);
        std::iter::once(self.program.as_fd())
            .chain(sweep)
            .map(ProgramInfo::of)
            .collect::<io::Result<_>>()
            .map_err(|error| EngineError::Refused { step: "describing", reason: error.to_string() })
    }

    /// Forgets a closed connection, once its last figures were read.
    pub fn forget(&mut self, cookie: u64) {
        let _not_there = self.maps.flows.delete(&cookie.to_ne_bytes());
        let _not_there = self.maps.orders.delete(&cookie.to_ne_bytes());
    }

    /// Renews the heartbeat and writes the shares. Call this more often than every five seconds.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn heartbeat(&mut self, shares: Shares) -> Result<(), EngineError> {
        let control = bw_control {
            owner_pid: self.owner.pid,
            owner_pidns: self.owner.namespace,
            owner_began: self.owner.began,
            swept: self.control.swept,
            ..shares.control()
        };
        self.write_control(control)?;
        self.last_shares = Some(shares);
        self.stays = false;
        Ok(())
    }

    /// Writes the control structure to the programs' map.
    fn write_control(&mut self, control: bw_control) -> Result<(), EngineError> {
        self.maps
            .control
            .update(&0_u32.to_ne_bytes(), control.bytes(), MapFlags::ANY)
            .map_err(failed("writing the shares"))?;
        self.control = control;
        Ok(())
    }

    /// Returns the last shares written.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        self.last_shares
    }

    /// Writes the demand and limit of single connections, by cookie. If the map has no room for an order,
    /// [`Shares::level`] applies to the connection, as for newcomers.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn order(&mut self, orders: &[(u64, Order)]) -> Result<(), EngineError> {
        self.orders.write(&self.maps.orders, orders).map_err(failed("writing the connections' shares"))
    }

    /// Returns the requests that have come since the last call, one for each connection.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn requests(&mut self) -> Result<Vec<Request>, EngineError> {
        self.ring.consume().map_err(failed("reading the programs' requests"))?;
        Ok(requests::latest(self.requests.try_iter()))
    }

    /// Returns a descriptor that is readable while there are requests.
    #[must_use]
    pub fn requests_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and keeps it open for its own life, which is that of `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // After a panic the buffers are not given back: as after a kill, the next start finds the programs and their records.
        if !self.stays && !thread::panicking() {
            self.detach();
        }
    }
}

/// Converts a share that is the same for all connections; `None`: no bound.
impl From<Share> for Shares {
    fn from(share: Share) -> Self {
        let level = match share {
            Share::Equal(part) | Share::Level(part) => Some(part),
            // Proportional shares differ by connection, so they are written as orders.
            Share::Unlimited | Share::Proportional { .. } => None,
        };
        Self { level, ..Self::default() }
    }
}
