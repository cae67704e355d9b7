//! Several engines of one process: each has a part of the cgroups, and connections pass from one to another.
//!
//! Problem: a daemon has an engine for each of its groups, and one for the rest of the host around them. A group's cgroup
//! comes and goes while they run. The engine around it must leave the subtree alone from then on, and what it has set on
//! connections there must not be taken for the applications' own setting.
//! - New connections need nothing of this: the nearer program takes them (`nearer.h`).
//! - Of those that exist, the one that hands over gives the buffers back to the kernel and forgets them; the next sweep of
//!   the other adopts them. Meanwhile its programs rest: a callback in between would set the buffers again.
//!
//! Properties kept: at any time at most one engine sets a connection. Should the process be killed during a hand-over,
//! the record of what was set is still there, until that is given back.

use std::collections::HashSet;
use std::os::fd::AsFd;

use libbpf_rs::{MapCore, MapFlags};

use super::Engine;
use crate::error::{EngineError, failed};
use crate::program;
use crate::release::{self, Released};
use crate::watched;

impl Engine {
    /// The numbers of the cgroups that it is attached to and of those below them, as sockets tell them.
    #[must_use]
    pub fn subtree(&self) -> HashSet<u64> {
        let roots: Vec<_> = self.cgroups.iter().map(|(cgroup, _)| cgroup.as_fd()).collect();
        watched::below(&roots, &[])
    }

    /// Leaves the connections in a cgroup (its number) and below it to the engine that is attached there. Those that exist
    /// need [`Engine::hand_over`] besides.
    ///
    /// # Errors
    /// [`EngineError::Map`], notably when there are too many.
    pub fn yield_to(&mut self, inode: u64) -> Result<(), EngineError> {
        self.maps
            .others
            .update(&inode.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("noting another's cgroup"))?;
        if !self.yielded.contains(&inode) {
            self.yielded.push(inode);
        }
        Ok(())
    }

    /// No engine is attached to that cgroup any more. Connections that the other one took when they were new stay out of
    /// this one's sight.
    pub fn take_back(&mut self, inode: u64) {
        let _not_there = self.maps.others.delete(&inode.to_ne_bytes());
        self.yielded.retain(|other| *other != inode);
    }

    /// Takes the programs off one cgroup (its number), which may be gone.
    pub fn detach_from(&mut self, inode: u64) {
        let Some(place) = self.cgroups.iter().position(|(_, own)| *own == inode) else { return };
        let (cgroup, _) = self.cgroups.swap_remove(place);
        let _not_there = self.maps.watched.delete(&inode.to_ne_bytes());
        let _removed_with_its_cgroup = program::detach(self.program.as_fd(), cgroup.as_fd());
    }

    /// Gives the buffers of those connections (by cookie) back to the kernel and forgets them, so that another engine may
    /// adopt them as they were. To be called once the other one is attached and this one yields to it, or else this one's
    /// next sweep adopts them again.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn hand_over(&mut self, is_theirs: impl Fn(u64) -> bool) -> Result<Released, EngineError> {
        let before = self.said;
        if self.entries()?.only(&is_theirs).is_empty() {
            return Ok(Released::default());
        }
        self.rest()?;
        // Read once more: nothing moves any longer.
        let theirs = self.entries()?.only(&is_theirs);
        let released = release::release_all(&theirs);
        for flow in theirs.flows() {
            self.forget(flow.cookie);
            if let Some(sweeper) = &mut self.sweeper {
                sweeper.leave(flow.cookie);
            }
        }
        self.say(before)?;
        Ok(released)
    }
}
