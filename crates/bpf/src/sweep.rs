//! Passes over all sockets of a network namespace: connections that were there before, and those that are silent.
//!
//! Problem: the programs see a connection when it is made and when it moves data. What a pass does with the others
//! stands in `bpf/sweep.h`. An iterator sees the network namespace of the thread that opened it, wherever it is
//! read afterwards; so a thread enters the namespace, opens it and ends, and the caller's thread stays where it is.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;

use bufwise_policy::Micros;
use bufwise_socket::namespace;
use libbpf_rs::{Link, MapCore, MapFlags, MapHandle};
use nix::errno::Errno;

use crate::abi::{Plain, bw_swept};
use crate::engine::{Config, EngineError, failed, now};
use crate::flow::FlowState;
use crate::load::{self, Maps};
use crate::program;

/// What one pass over a network namespace did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Connections of the watched cgroups that it met.
    pub seen: u64,
    /// Of these, those that had not been known.
    pub adopted: u64,
    /// Of these, those whose buffers were given back now, because they have been silent.
    pub given_back: u64,
}

/// The iterator, and when it last went through which namespace (by inode).
#[derive(Debug)]
pub(crate) struct Sweeper {
    program: OwnedFd,
    link: Link,
    counts: MapHandle,
    passes: HashMap<u64, Micros>,
}

fn cannot(step: &'static str) -> impl Fn(io::Error) -> EngineError {
    move |source| EngineError::Sweep { step, source }
}

impl Sweeper {
    pub(crate) fn load(config: &Config, maps: &Maps) -> Result<Self, EngineError> {
        let (program, link, counts) = load::iterator(config, maps)?;
        Ok(Self { program, link, counts, passes: HashMap::new() })
    }

    pub(crate) fn program(&self) -> BorrowedFd<'_> {
        self.program.as_fd()
    }

    pub(crate) fn sweep(&mut self, netns: BorrowedFd<'_>) -> Result<Swept, EngineError> {
        let namespace = netns
            .try_clone_to_owned()
            .and_then(|copy| File::from(copy).metadata())
            .map_err(cannot("looking at"))?;
        let first = 0_u32.to_ne_bytes();
        self.counts
            .update(&first, bw_swept::default().bytes(), MapFlags::ANY)
            .map_err(failed("resetting the counts of a pass"))?;
        let began = now();
        let pass = enter_and_open(netns, self.link.as_fd())?;
        read_to_end(File::from(pass)).map_err(cannot("going through"))?;
        self.passes.insert(namespace.ino(), began);
        let counts =
            self.counts.lookup(&first, MapFlags::ANY).map_err(failed("reading the counts of a pass"))?;
        let counts = counts.as_deref().and_then(bw_swept::read).unwrap_or_default();
        Ok(Swept { seen: counts.seen, adopted: counts.adopted, given_back: counts.given_back })
    }

    /// Whether a connection that is still among the flows exists no longer; see [`crate::Engine::forget_unseen`].
    pub(crate) fn is_gone(&self, flow: &FlowState, patience: Micros, now: Micros) -> bool {
        let last = flow.seen_at.max(flow.swept_at.unwrap_or_default());
        match self.passes.get(&flow.origin.netns) {
            Some(pass) if now - *pass <= patience => last < *pass,
            _ => now - last > patience,
        }
    }

    /// Namespaces that were not swept for so long are not remembered.
    pub(crate) fn forget_passes(&mut self, patience: Micros, now: Micros) {
        self.passes.retain(|_, pass| now - *pass <= patience);
    }
}

/// Opens the iterator inside a network namespace.
fn enter_and_open(netns: BorrowedFd<'_>, link: BorrowedFd<'_>) -> Result<OwnedFd, EngineError> {
    let opened = namespace::inside(netns, || program::iterate(link)).map_err(cannot("entering"))?;
    opened.map_err(cannot("opening a pass over"))
}

/// Runs the program on every socket. It writes nothing; after a million sockets the kernel asks to be called again.
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
