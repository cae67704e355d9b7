//! Sweeps all sockets of a network namespace for connections that are older than the programs, and for silent ones.
//!
//! Problem: the programs see a connection when it is made and when it moves data. `bpf/sweep.h` says what a pass does
//! with the others. An iterator sees the network namespace of the thread that opened it, wherever it is read
//! afterwards. So a thread enters the namespace, opens the iterator and ends; the caller's thread stays where it is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::ops::AddAssign;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use bufwise_socket::diag::Connection;
use bufwise_socket::namespace;
use bufwise_units::Micros;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::errno::Errno;

use crate::abi::{Plain, bw_control, bw_flow, bw_order, bw_swept};
use crate::clock::now;
use crate::config::Config;
use crate::error::{EngineError, cannot, failed, is_full};
use crate::flow::FlowState;
use crate::load::{self, Maps};
use crate::matching::Matching;
use crate::program;
use crate::swept::Swept;
use crate::user::tells_locks;
use crate::user_space::{Records, UserSpace};
use crate::watched;

/// Sweeps the sockets of namespaces: by the iterator, and from user space if the kernel's iterator cannot do
/// everything. Keeps the time of the iterator's last pass per namespace (by inode).
#[derive(Debug)]
pub(crate) struct Sweeper {
    config: Config,
    iterator: Option<Iterator>,
    user_space: Option<UserSpace>,
    /// How existing connections are treated that the iterator does not adopt, and why.
    limit: Option<String>,
    passes: HashMap<u64, Micros>,
}

/// The iterator's program, its link, and the map of its counts.
#[derive(Debug)]
struct Iterator {
    program: OwnedFd,
    link: Link,
    counts: MapHandle,
}

/// The input of a pass.
pub(crate) struct Pass<'a> {
    pub(crate) maps: &'a Maps,
    pub(crate) all: &'a bw_control,
    /// Watched cgroups, and those below them that belong to another bufwise.
    pub(crate) roots: Vec<BorrowedFd<'a>>,
    pub(crate) others: &'a [u64],
    /// Returns whether a connection there belongs to the group of these programs.
    pub(crate) is_own: &'a dyn Fn(&Connection) -> bool,
}

impl Sweeper {
    /// Loads the iterator; if the kernel refuses it, user space does its work.
    pub(crate) fn load(config: &Config, matching: &Matching, maps: &Maps) -> Result<Self, EngineError> {
        match load::iterator(config, matching, maps) {
            Ok((program, link, counts)) => {
                let iterator = Some(Iterator { program, link, counts });
                Ok(Self { config: *config, iterator, user_space: None, limit: None, passes: HashMap::new() })
            }
            Err(EngineError::Refused { reason, .. }) => Ok(Self::from_user_space(config, &reason)),
            Err(error) => Err(error),
        }
    }

    /// Makes a sweeper without the iterator.
    pub(crate) fn from_user_space(config: &Config, why: &str) -> Self {
        let (user_space, limit) = if tells_locks() {
            (Some(UserSpace::new(config.into())), from_user_space(why))
        } else {
            (None, "left alone: before Linux 5.15 the kernel does not tell who set their buffers".to_owned())
        };
        Self { config: *config, iterator: None, user_space, limit: Some(limit), passes: HashMap::new() }
    }

    pub(crate) fn program(&self) -> Option<BorrowedFd<'_>> {
        self.iterator.as_ref().map(|iterator| iterator.program.as_fd())
    }

    pub(crate) fn limit(&self) -> Option<&str> {
        self.limit.as_deref()
    }

    /// Returns whether the iterator does everything: user space sizes no connection.
    pub(crate) fn is_complete(&self) -> bool {
        self.iterator.is_some() && self.user_space.is_none()
    }

    pub(crate) fn sweep(&mut self, netns: BorrowedFd<'_>, pass: &Pass<'_>) -> Result<Swept, EngineError> {
        let namespace = netns
            .try_clone_to_owned()
            .and_then(|copy| File::from(copy).metadata())
            .map_err(cannot("looking at"))?
            .ino();
        let mut swept = Swept::default();
        if let Some(iterator) = &self.iterator {
            let began = now();
            let counts = iterator.pass(netns)?;
            self.passes.insert(namespace, began);
            swept = Swept { seen: counts.seen, adopted: counts.adopted, given_back: counts.given_back };
            if counts.refused > 0 && self.user_space.is_none() {
                self.user_space = Some(UserSpace::new((&self.config).into()));
                self.limit = Some(from_user_space("before Linux 6.12 no iterator may switch callbacks on"));
            }
        }
        if let Some(user_space) = &mut self.user_space {
            let groups =
                watched::below(&pass.roots, pass.others).map_err(cannot("listing the cgroups of"))?;
            let is_ours = |one: &Connection| groups.contains(&one.cgroup) && (pass.is_own)(one);
            swept += user_space.adopt((namespace, netns), pass.maps, pass.all, is_ours)?;
        }
        Ok(swept)
    }

    /// Sizes the connections of user space, if that is due.
    pub(crate) fn poll(&mut self, maps: &Maps, all: &bw_control) -> Result<(), EngineError> {
        self.user_space.as_mut().map_or(Ok(()), |user_space| user_space.poll(maps, all))
    }

    /// Returns whether a connection with a record no longer exists; see [`crate::Engine::forget_unseen`].
    pub(crate) fn is_gone(&self, flow: &FlowState, patience: Micros, now: Micros) -> bool {
        let last = flow.seen_at.max(flow.swept_at.unwrap_or_default());
        match self.passes.get(&flow.origin.netns) {
            Some(pass) if now - *pass <= patience => last < *pass,
            _ => now - last > patience,
        }
    }

    /// Leaves a connection alone from now on.
    pub(crate) fn leave(&mut self, cookie: u64) {
        if let Some(user_space) = &mut self.user_space {
            user_space.leave(cookie);
        }
    }

    /// Forgets namespaces that were not swept for `patience`.
    pub(crate) fn forget_passes(&mut self, patience: Micros, now: Micros) {
        self.passes.retain(|_, pass| now - *pass <= patience);
    }
}

fn from_user_space(why: &str) -> String {
    format!("sized from user space, five times a second: {why}")
}

impl Iterator {
    fn pass(&self, netns: BorrowedFd<'_>) -> Result<bw_swept, EngineError> {
        let first = 0_u32.to_ne_bytes();
        self.counts
            .update(&first, bw_swept::default().bytes(), MapFlags::ANY)
            .map_err(failed("resetting the counts of a pass"))?;
        let pass = enter_and_open(netns, self.link.as_fd())?;
        read_to_end(File::from(pass)).map_err(cannot("going through"))?;
        let counts =
            self.counts.lookup(&first, MapFlags::ANY).map_err(failed("reading the counts of a pass"))?;
        Ok(counts.as_deref().and_then(bw_swept::read).unwrap_or_default())
    }
}

impl AddAssign for Swept {
    fn add_assign(&mut self, other: Self) {
        self.seen += other.seen;
        self.adopted += other.adopted;
        self.given_back += other.given_back;
    }
}

impl Records for Maps {
    fn record(&self, cookie: u64) -> Option<bw_flow> {
        let flow = self.flows.lookup(&cookie.to_ne_bytes(), MapFlags::ANY).ok()??;
        bw_flow::read(&flow)
    }

    fn keep(&self, cookie: u64, flow: &bw_flow) -> Result<bool, EngineError> {
        match self.flows.update(&cookie.to_ne_bytes(), flow.bytes(), MapFlags::ANY) {
            Ok(()) => Ok(true),
            Err(error) if is_full(&error) => Ok(false),
            Err(error) => Err(failed("keeping a connection's record")(error)),
        }
    }

    fn order(&self, cookie: u64) -> Option<bw_order> {
        let order = self.orders.lookup(&cookie.to_ne_bytes(), MapFlags::ANY).ok()??;
        bw_order::read(&order)
    }
}

/// Opens the iterator inside a network namespace.
fn enter_and_open(netns: BorrowedFd<'_>, link: BorrowedFd<'_>) -> Result<OwnedFd, EngineError> {
    let opened = namespace::inside(netns, || program::iterate(link)).map_err(cannot("entering"))?;
    opened.map_err(cannot("opening a pass over"))
}

/// Runs the program on every socket. A read returns no data; after a million sockets the kernel asks for another
/// call.
fn read_to_end(mut pass: File) -> io::Result<()> {
    let mut nothing = [0; 64];
    loop {
        match pass.read(&mut nothing) {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(Errno::EAGAIN as i32) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
