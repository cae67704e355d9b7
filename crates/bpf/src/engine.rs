//! Loading, attaching and feeding the kernel's side.
//!
//! Problem: the programs decide per round trip, alone; only what concerns all connections together comes from
//! user space, some times a second, and must cost little: one map of flows is read in batches, one small
//! structure holds the rule of the shares.
//! The programs are attached to the cgroup itself, not to a descriptor of ours: when this process is killed they
//! go on, notice after five seconds that nobody speaks to them, and then go by the congestion window alone.

#![expect(unsafe_code, reason = "the descriptor of the ring is lent by no library")]

mod handover;

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, channel};

use bufwise_policy::Share;
use bufwise_socket::diag::Connection;
use bufwise_units::{Bytes, Micros};
use libbpf_rs::{MapCore, MapFlags, RingBuffer, RingBufferBuilder};
use nix::sys::stat::fstat;

use crate::abi::{BwRequest, LAYOUT, Plain, bw_control, bw_order};
use crate::clock::now;
use crate::config::Config;
use crate::entries::Entries;
use crate::error::{EngineError, failed, refused};
use crate::flow::FlowState;
use crate::leftover::{Owner, tuned_groups};
use crate::load::{self, Maps};
use crate::matching::Matching;
use crate::orders::Writer;
use crate::program::{self, ProgramInfo};
use crate::release::{self, Released};
use crate::sweep::{Pass, Sweeper};
use crate::swept::Swept;

/// "No bound" in the kernel's structures.
const NO_LIMIT: u64 = u64::MAX;

/// Limits that the memory allows, the same for all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// Memory that any connection's send buffer may hold; `None`: no bound.
    pub level: Option<Bytes>,
    /// Largest receive window of any connection (payload); `None`: no bound.
    pub window: Option<Bytes>,
    /// Memory in use exceeds the budget: buffers shrink with every acknowledgement.
    pub pressure: bool,
}

/// The demand and limit of one connection, where they differ from [`Shares::level`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Order {
    /// Payload that its send buffer should hold; zero: not known.
    pub demand: Bytes,
    /// Memory that it may hold; `None`: no bound.
    pub limit: Option<Bytes>,
}

impl Shares {
    /// As the rules take them, said now.
    pub(crate) fn control(self) -> bw_control {
        bw_control {
            heartbeat_ns: now().0.saturating_mul(1_000),
            send_level: self.level.map_or(NO_LIMIT, |level| level.0),
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

/// A request for memory limits that a program may not set itself; `None` where a limit stays as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Which socket.
    pub cookie: u64,
    /// Limit of the send buffer (memory: twice `SO_SNDBUFFORCE`).
    pub send_buffer: Option<Bytes>,
    /// Limit of the receive buffer, likewise.
    pub receive_buffer: Option<Bytes>,
    /// Window clamp (payload), which programs may not set before Linux 5.11.
    pub window: Option<Bytes>,
}

/// The loaded programs. Dropping it detaches them.
#[derive(Debug)]
pub struct Engine {
    program: OwnedFd,
    /// With the inode of each.
    cgroups: Vec<(OwnedFd, u64)>,
    /// Loaded by the first sweep.
    sweeper: Option<Sweeper>,
    owner: Owner,
    config: Config,
    matching: Matching,
    /// Cgroups that groups ask for, as the programs were told.
    members: HashMap<u64, u32>,
    /// Cgroups of other engines within ours.
    yielded: Vec<u64>,
    /// The control structure as it was written last.
    said: bw_control,
    maps: Maps,
    orders: Writer,
    ring: RingBuffer<'static>,
    requests: Receiver<Request>,
    /// System calls with the same content are spared.
    last_shares: Option<Shares>,
    /// The buffers that the programs set could not be given back: the programs are left to the next start.
    stays: bool,
}

impl Engine {
    /// Loads the programs; nothing is touched before [`Engine::attach`]. The calling process owns them: what is found
    /// on a cgroup when it no longer lives is a leftover ([`crate::leftovers`]).
    ///
    /// # Errors
    /// [`EngineError::Refused`] without the privilege (CAP_BPF and CAP_NET_ADMIN, or root), BTF, or memory.
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
                // The receiver is gone once the engine is being dropped.
                let _over = BwRequest::read(bytes).map(|request| sender.send(from_kernel(request)));
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
            yielded: Vec::new(),
            said: bw_control::default(),
            maps,
            orders: Writer::default(),
            ring,
            requests,
            last_shares: None,
            stays: false,
        };
        engine.beat(Shares::default())?;
        Ok(engine)
    }

    /// Lets the programs see the connections made from now on by the processes of a cgroup (a descriptor of its
    /// directory) and of those below it; [`Engine::sweep`] adds those that exist.
    ///
    /// # Errors
    /// [`EngineError::Attach`], notably where a program of someone else on a cgroup above does not allow more.
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

    /// Leaves to the engines on other cgroups what is nearer to them, as a `bufwise run` inside what a daemon watches;
    /// on how many cgroups there are any. New connections are told apart without this, those that [`Engine::sweep`] finds
    /// are not: to be called once everything is attached, and before the first sweep. `siblings` are cgroups with engines of the
    /// same daemon, which tell by the groups whose a connection is.
    ///
    /// # Errors
    /// [`EngineError::Map`], notably when there are too many; [`EngineError::Attach`] without cgroup v2.
    pub fn yield_to_others(&mut self, siblings: &HashSet<u64>) -> Result<usize, EngineError> {
        let tuned = tuned_groups().map_err(|error| EngineError::Attach(io::Error::other(error)))?;
        let is_own =
            |inode: &u64| siblings.contains(inode) || self.cgroups.iter().any(|(_, own)| own == inode);
        let others: Vec<u64> = tuned.into_iter().filter(|inode| !is_own(inode)).collect();
        self.yielded.clear();
        others.iter().try_for_each(|inode| self.yield_to(*inode))?;
        Ok(others.len())
    }

    /// Takes the programs off every cgroup. Connections keep what was set.
    pub fn detach(&mut self) {
        for (cgroup, inode) in self.cgroups.drain(..) {
            let _not_there = self.maps.watched.delete(&inode.to_ne_bytes());
            let _removed_with_its_cgroup = program::detach(self.program.as_fd(), cgroup.as_fd());
        }
    }

    /// Has the programs set no connection any more, until the next [`Engine::beat`]. They stay where they are: whoever finds
    /// them after a kill finds what they have set.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn rest(&mut self) -> Result<(), EngineError> {
        self.say(bw_control { resting: 1, ..self.said })
    }

    /// Goes through all sockets of a network namespace (a descriptor as of `/proc/PID/ns/net`): takes the
    /// connections of the watched cgroups in that are not known, and gives the buffers of silent ones back.
    ///
    /// To be called for every namespace every second or two. The calling thread stays in its own namespace.
    ///
    /// # Errors
    /// [`EngineError::Sweep`], notably without CAP_SYS_ADMIN over the namespace; [`EngineError::Map`].
    pub fn sweep(&mut self, netns: BorrowedFd<'_>) -> Result<Swept, EngineError> {
        self.sweep_for(netns, &|_| true)
    }

    /// As [`Engine::sweep`], where user space says of connections that it has to size whether they belong to the engine's
    /// group; the iterator knows by itself.
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
        let pass = Pass { maps: &self.maps, all: &self.said, roots, others: &self.yielded, is_own };
        let swept = sweeper.sweep(netns, &pass);
        self.sweeper = Some(sweeper);
        swept
    }

    /// Sizes the connections for which the kernel makes no callbacks; to be called some times a second. It does nothing
    /// when that is not due, or when there is none.
    ///
    /// # Errors
    /// As [`Engine::sweep`].
    pub fn tend(&mut self) -> Result<(), EngineError> {
        self.sweeper.as_mut().map_or(Ok(()), |sweeper| sweeper.tend(&self.maps, &self.said))
    }

    /// The fate of earlier connections that the iterator does not adopt, and the reason, as the end of a sentence;
    /// known after the first sweep that met one.
    #[must_use]
    pub fn adoption_limit(&self) -> Option<&str> {
        self.sweeper.as_ref().and_then(Sweeper::limit)
    }

    /// Leaves to user space what sweeps do, as on a kernel that refuses the iterator.
    pub fn avoid_iterator(&mut self) {
        self.sweeper = Some(Sweeper::from_user_space(&self.config, "asked for"));
    }

    /// Loads what [`Engine::sweep`] needs, unless that was done before.
    ///
    /// # Errors
    /// [`EngineError::Refused`] for want of memory; a kernel that refuses the iterator is no error
    /// ([`Engine::adoption_limit`]).
    pub fn load_sweep(&mut self) -> Result<(), EngineError> {
        self.sweeper = Some(self.take_sweeper()?);
        Ok(())
    }

    fn take_sweeper(&mut self) -> Result<Sweeper, EngineError> {
        self.sweeper.take().map_or_else(|| Sweeper::load(&self.config, &self.matching, &self.maps), Ok)
    }

    /// Forgets connections that are gone without the programs having been told, as while they were not attached;
    /// how many.
    ///
    /// Gone is what was neither met by the last sweep of its network namespace nor seen since that began. Where a
    /// namespace was not swept within `patience` it says nothing; there a connection is gone when nothing was seen of
    /// it for `patience`. An entry that is forgotten by mistake is a connection that a later sweep takes for new, its
    /// buffers for the application's: patience should be an hour rather than a minute.
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

    /// Every connection that was seen and not yet forgotten.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn flows(&self) -> Result<Vec<FlowState>, EngineError> {
        Entries::states(&self.maps.flows).map_err(failed("reading the connections"))
    }

    /// Everything that is known of them, for another engine's [`Engine::inherit`].
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn entries(&self) -> Result<Entries, EngineError> {
        Entries::read(&self.maps.flows).map_err(failed("reading the connections"))
    }

    /// Takes over what other programs know of their connections, so that buffers that they set are not taken for the
    /// applications'; how many. In this order: those are told to rest, their entries are read, inherited, and then this
    /// engine is attached and sweeps, and those are detached. Where the rules differ, [`Engine::release_all`] of the other and a fresh start are
    /// right instead: what no rule of this engine sizes would stay as it is.
    ///
    /// # Errors
    /// [`EngineError::Map`], notably when there are too many.
    pub fn inherit(&mut self, entries: &Entries) -> Result<usize, EngineError> {
        entries.write(&self.maps.flows, self.config.take_over).map_err(failed("taking connections over"))
    }

    /// Gives every socket that the programs set back to the kernel, and takes them off every cgroup.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer; the programs then stay, at rest, for the next start to find.
    pub fn release_all(&mut self) -> Result<Released, EngineError> {
        if self.rest().is_err() {
            self.detach();
        }
        let entries = self.entries().inspect_err(|_| self.stays = true)?;
        let released = release::release_all(&entries);
        self.detach();
        for flow in entries.flows() {
            self.forget(flow.cookie);
        }
        Ok(released)
    }

    /// The kernel's information on the loaded programs; the iterator is loaded from the first sweep on.
    ///
    /// # Errors
    /// [`EngineError::Refused`] with its answer.
    pub fn programs(&self) -> Result<Vec<ProgramInfo>, EngineError> {
        let sweep = self.sweeper.as_ref().and_then(Sweeper::program);
        std::iter::once(self.program.as_fd())
            .chain(sweep)
            .map(ProgramInfo::of)
            .collect::<io::Result<_>>()
            .map_err(|error| EngineError::Refused { step: "describing", reason: error.to_string() })
    }

    /// Forgets a connection that is over, once its last figures were read.
    pub fn forget(&mut self, cookie: u64) {
        let _not_there = self.maps.flows.delete(&cookie.to_ne_bytes());
        let _not_there = self.maps.orders.delete(&cookie.to_ne_bytes());
    }

    /// Says that user space lives, and what the memory allows. To be called more often than every five seconds.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn beat(&mut self, shares: Shares) -> Result<(), EngineError> {
        let control = bw_control {
            owner_pid: self.owner.pid,
            owner_pidns: self.owner.namespace,
            owner_began: self.owner.began,
            ..shares.control()
        };
        self.say(control)?;
        self.last_shares = Some(shares);
        self.stays = false;
        Ok(())
    }

    fn say(&mut self, control: bw_control) -> Result<(), EngineError> {
        self.maps
            .control
            .update(&0_u32.to_ne_bytes(), control.bytes(), MapFlags::ANY)
            .map_err(failed("writing the shares"))?;
        self.said = control;
        Ok(())
    }

    /// The shares as they were said last.
    #[must_use]
    pub fn shares(&self) -> Option<Shares> {
        self.last_shares
    }

    /// Tells connections, by their cookies, their own demand and limit. Where there is no room for one, [`Shares::level`] holds
    /// for it as for newcomers.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn order(&mut self, orders: &[(u64, Order)]) -> Result<(), EngineError> {
        self.orders.write(&self.maps.orders, orders).map_err(failed("writing the connections' shares"))
    }

    /// The requests that have come since the last call.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn requests(&mut self) -> Result<Vec<Request>, EngineError> {
        self.ring.consume().map_err(failed("reading the programs' requests"))?;
        Ok(self.requests.try_iter().collect())
    }

    /// A descriptor that is readable when there are requests.
    #[must_use]
    pub fn requests_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring owns the descriptor and keeps it open as long as it lives, which is as long as `self`.
        unsafe { BorrowedFd::borrow_raw(self.ring.epoll_fd()) }
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if !self.stays {
            self.detach();
        }
    }
}

fn from_kernel(request: BwRequest) -> Request {
    let wanted = |size: u32| (size != 0).then_some(Bytes(size.into()));
    Request {
        cookie: request.cookie,
        send_buffer: wanted(request.sndbuf),
        receive_buffer: wanted(request.rcvbuf),
        window: wanted(request.clamp),
    }
}

/// The bound of a share for everyone, in the form that the programs take; `None`: no bound.
impl From<Share> for Shares {
    fn from(share: Share) -> Self {
        let level = match share {
            Share::Equal(part) | Share::Level(part) => Some(part),
            // Proportional shares differ by connection: they go out as orders.
            Share::Unlimited | Share::Proportional { .. } => None,
        };
        Self { level, ..Self::default() }
    }
}
