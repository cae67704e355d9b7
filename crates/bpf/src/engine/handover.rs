//! Passes connections between several engines of one process, each of which has a part of the connections.
//!
//! Problem: a daemon has an engine for each of its groups, and one for the connections in no group. A group's cgroups
//! appear and go while the engines run, and the program behind a socket may become known late. The engine that has
//! such a connection must then leave it alone, and its settings must not count as the application's own.
//! - New connections need no hand-over: each program knows its own (`group_of.h`).
//! - For existing connections, the engine that hands over gives the buffers back to the kernel and forgets the
//!   connections; the other engine's next sweep adopts them. Meanwhile the programs of the first engine are suspended: a
//!   callback in between would set the buffers again.
//!
//! Properties kept: at any time at most one engine sets a connection. If the process is killed during a hand-over,
//! the record of the settings remains until they are given back.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::{MapCore, MapFlags};

use super::Engine;
use crate::entries::Entries;
use crate::error::{EngineError, cannot, failed, is_full};
use crate::flow::{FlowState, KNOWN};
use crate::leftover::tuned_groups;
use crate::program;
use crate::release::{self, Released};
use crate::watched;

impl Engine {
    /// Returns the numbers of the cgroups to which the engine is attached.
    pub fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        self.cgroups.iter().map(|(_, inode)| *inode)
    }

    /// Returns these numbers and those of all cgroups below, as sockets report them.
    ///
    /// # Errors
    /// [`EngineError::Sweep`] for lack of descriptors or of memory, so that cgroups would be missed.
    pub fn subtree(&self) -> Result<HashSet<u64>, EngineError> {
        let roots: Vec<_> = self.cgroups.iter().map(|(cgroup, _)| cgroup.as_fd()).collect();
        watched::below(&roots, &[]).map_err(cannot("listing the cgroups of"))
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

    /// Leaves connections to other engines whose cgroups lie below this engine's, such as that of a `bufwise run` below a
    /// daemon; returns the number of such cgroups. New connections do not need this call, but those that
    /// [`Engine::sweep`] finds do: call it once everything is attached, and before the first sweep. `siblings` are
    /// cgroups with engines of the same daemon, which divide connections by their groups. Cgroups whose engine has gone
    /// since the last call belong to this engine again. [`Engine::unnoted`] tells whether there were too many cgroups.
    ///
    /// # Errors
    /// [`EngineError::Map`] with the kernel's answer; [`EngineError::Attach`] without cgroup v2.
    pub fn exclude_other_engines(&mut self, siblings: &HashSet<u64>) -> Result<usize, EngineError> {
        let tuned = tuned_groups().map_err(|error| EngineError::Attach(io::Error::other(error)))?;
        let is_own =
            |inode: &u64| siblings.contains(inode) || self.cgroups.iter().any(|(_, own)| own == inode);
        let others: Vec<u64> = tuned.into_iter().filter(|inode| !is_own(inode)).collect();
        let count = others.len();
        self.exclude(others)?;
        Ok(count)
    }

    /// Returns for how many cgroups of other engines the programs' map had no room at the last
    /// [`Engine::exclude_other_engines`]: a sweep in the kernel may adopt their existing connections.
    #[must_use]
    pub fn unnoted(&self) -> usize {
        self.unnoted
    }

    /// Leaves the connections in these cgroups (by number) and below them to the engines that are attached there. Cgroups
    /// of an earlier call that are not among them belong to this engine again.
    fn exclude(&mut self, others: Vec<u64>) -> Result<(), EngineError> {
        for inode in self.excluded.iter().filter(|inode| !others.contains(inode)) {
            let _not_there = self.maps.others.delete(&inode.to_ne_bytes());
        }
        self.unnoted = 0;
        for inode in &others {
            match self.maps.others.update(&inode.to_ne_bytes(), &1_u32.to_ne_bytes(), MapFlags::ANY) {
                Err(error) if is_full(&error) => self.unnoted += 1,
                noted => noted.map_err(failed("noting another's cgroup"))?,
            }
        }
        self.excluded = others;
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
        let before = self.control;
        if self.entries()?.only(&is_theirs).is_empty() {
            return Ok(Released::default());
        }
        self.suspend()?;
        // Read again, now that the programs are suspended.
        let theirs = self.entries()?.only(&is_theirs);
        let released = release::release_all(&theirs);
        self.forget_all(&theirs);
        self.write_control(before)?;
        Ok(released)
    }

    /// Forgets connections whose buffers were given back; a later sweep may adopt them anew. User space must not keep records of
    /// its own: it would take the changed sizes for the applications' settings.
    pub(super) fn forget_all(&mut self, entries: &Entries) {
        for flow in entries.flows() {
            self.forget(flow.cookie);
            if let Some(sweeper) = &mut self.sweeper {
                sweeper.leave(flow.cookie);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn root_cgroups_of_others_that_are_gone_make_room_and_too_many_are_counted() {
        if !bufwise_trial::root() {
            return;
        }
        let mut engine = Engine::load(&Config::default()).unwrap();
        let is_noted = |engine: &Engine, inode: u64| {
            engine.maps.others.lookup(&inode.to_ne_bytes(), MapFlags::ANY).unwrap().is_some()
        };
        let room = u64::from(engine.maps.others.max_entries());
        engine.exclude((1..=room).collect()).unwrap();
        assert_eq!((engine.unnoted(), is_noted(&engine, 1)), (0, true));
        engine.exclude((2..=room + 6).collect()).unwrap();
        assert_eq!((engine.unnoted(), is_noted(&engine, 1), is_noted(&engine, 2)), (5, false, true));
        engine.exclude(vec![room + 6]).unwrap();
        let noted = [2, room, room + 6].map(|inode| is_noted(&engine, inode));
        assert_eq!((engine.unnoted(), noted), (0, [false, false, true]));
    }
}
