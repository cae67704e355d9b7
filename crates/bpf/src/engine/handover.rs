//! Passes connections between several engines of one process, each of which has a part of the connections.
//!
//! Problem: a daemon has an engine for each of its groups, and one for the connections in no group. A group's cgroups
//! appear and go while the engines run, and the program behind a socket may become known late. The engine that has
//! such a connection must then leave it alone, and its settings must not count as the application's own.
//! - New connections need no hand-over: each program knows its own (`group_of.h`).
//! - For existing connections, the engine that hands over gives the buffers back to the kernel and forgets the
//!   connections; the other engine's next sweep adopts them. Meanwhile the programs of the first engine rest: a
//!   callback in between would set the buffers again.
//!
//! Properties kept: at any time at most one engine sets a connection. If the process is killed during a hand-over,
//! the record of the settings remains until they are given back.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags};

use super::Engine;
use crate::error::{EngineError, failed};
use crate::flow::{FlowState, KNOWN};
use crate::program;
use crate::release::{self, Released};
use crate::watched;

impl Engine {
    /// Returns the numbers of the cgroups to which the engine is attached.
    pub fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        self.cgroups.iter().map(|(_, inode)| *inode)
    }

    /// Returns these numbers and those of all cgroups below, as sockets report them.
    #[must_use]
    pub fn subtree(&self) -> HashSet<u64> {
        let roots: Vec<_> = self.cgroups.iter().map(|(cgroup, _)| cgroup.as_fd()).collect();
        watched::below(&roots, &[])
    }

    /// Tells the programs the cgroups of the groups: by number, a bit for each group. Existing connections in a
    /// cgroup that is new or gone stay until [`Engine::hand_over`] gives away those of other groups.
    ///
    /// # Errors
    /// [`EngineError::Map`], notably if there are too many.
    pub fn set_members(&mut self, members: &HashMap<u64, u32>) -> Result<(), EngineError> {
        for inode in self.members.keys().filter(|inode| !members.contains_key(inode)) {
            let _not_there = self.maps.members.delete(&inode.to_ne_bytes());
        }
        for (inode, groups) in
            members.iter().filter(|(inode, groups)| self.members.get(inode) != Some(groups))
        {
            self.maps
                .members
                .update(&inode.to_ne_bytes(), &groups.to_ne_bytes(), MapFlags::ANY)
                .map_err(failed("noting a group's cgroup"))?;
        }
        self.members.clone_from(members);
        Ok(())
    }

    /// Tells the programs one more cgroup, before the engine is attached there.
    ///
    /// # Errors
    /// As [`Engine::set_members`].
    pub fn add_member(&mut self, inode: u64, groups: u32) -> Result<(), EngineError> {
        let mut members = self.members.clone();
        *members.entry(inode).or_default() |= groups;
        self.set_members(&members)
    }

    /// Tells the programs which groups (a bit each) match the program of a socket that is older than they are.
    /// Connections that a listener accepts from now on inherit this.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn set_program_groups(&self, socket: BorrowedFd<'_>, groups: u32) -> Result<(), EngineError> {
        self.maps
            .programs
            .update(&socket.as_raw_fd().to_ne_bytes(), &(groups | KNOWN).to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("noting a socket's program"))
    }

    /// Leaves the connections in a cgroup (its number) and below it to the engine that is attached there.
    pub(super) fn yield_to(&mut self, inode: u64) -> Result<(), EngineError> {
        self.maps
            .others
            .update(&inode.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY)
            .map_err(failed("noting another's cgroup"))?;
        if !self.yielded.contains(&inode) {
            self.yielded.push(inode);
        }
        Ok(())
    }

    /// Detaches the programs from one cgroup (by number), which may be gone.
    pub fn detach_from(&mut self, inode: u64) {
        let Some(place) = self.cgroups.iter().position(|(_, own)| *own == inode) else { return };
        let (cgroup, _) = self.cgroups.swap_remove(place);
        let _not_there = self.maps.watched.delete(&inode.to_ne_bytes());
        let _removed_with_its_cgroup = program::detach(self.program.as_fd(), cgroup.as_fd());
    }

    /// Gives the buffers of the connections selected by `is_theirs` back to the kernel and forgets them, so that
    /// another engine can adopt them. Call this once they belong to another group; otherwise this engine's next sweep
    /// adopts them again.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer.
    pub fn hand_over(&mut self, is_theirs: impl Fn(&FlowState) -> bool) -> Result<Released, EngineError> {
        let before = self.said;
        if self.entries()?.only(&is_theirs).is_empty() {
            return Ok(Released::default());
        }
        self.rest()?;
        // Read again, now that the programs rest.
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
