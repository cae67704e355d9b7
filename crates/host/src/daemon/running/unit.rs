//! The engine of one part: of a group, or of the connections in no group.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::Path;

use bufwise_bpf::{Engine, EngineError, Group, Shares};
use bufwise_socket::diag::Connection;
use bufwise_units::Micros;

use super::super::event::{Load, Regrouped, Sweep};
use super::super::namespaces::Namespaces;
use super::super::task::{PlannedGroup, Task};
use crate::error::{Result, in_words};
use crate::processes::printable_path;
use crate::tuner::plan::Plan;

/// Time for which entries of connections that ended unseen are kept if their namespace was not swept: 1 hour.
const UNSEEN: Micros = Micros(3_600_000_000);

/// One engine, and the cgroups of its group.
pub(super) struct Unit {
    pub(super) engine: Engine,
    /// Cgroups to which the engine is attached, by number; empty if the group names none.
    cgroups: HashMap<u64, Group>,
    /// Cgroups to which it could not be attached; each is reported once.
    refused: HashSet<u64>,
}

impl Unit {
    /// Loads engines that are attached nowhere yet. Calls `before_each` before each load, which may take a second.
    pub(super) fn load_all(load: &Load, mut before_each: impl FnMut()) -> Result<Vec<Self>> {
        let (task, groups) = (&load.task, load.task.groups.len());
        let unit = |(number, ((_, plan), shares)): (usize, ((_, &Plan), &Shares))| {
            before_each();
            let own = (number < groups).then_some(number);
            let mut engine = Engine::load_for(&task.engine_config(plan), &task.matching.of_group(own))?;
            // The first connections may come before the first sample.
            engine.heartbeat(*shares)?;
            Ok(Self { engine, cgroups: HashMap::new(), refused: HashSet::new() })
        };
        task.parts().zip(&load.shares).enumerate().map(unit).collect()
    }

    /// Takes over the settings of the former engine, if there was one.
    pub(super) fn inherit(&mut self, before: Option<&Self>) -> Result<()> {
        if let Some(before) = before {
            self.engine.inherit(&before.engine.entries()?)?;
        }
        Ok(())
    }

    /// Detaches the engine from every cgroup and renews its shares, which ends its rest; if that fails, the daemon's next
    /// heartbeat does it.
    pub(super) fn begin_again(&mut self) {
        self.engine.detach();
        self.cgroups.clear();
        let _left_to_the_next_heartbeat = self.renew();
    }

    /// Renews the heartbeat, with the last shares.
    pub(super) fn renew(&mut self) -> Result<(), EngineError> {
        let shares = self.engine.shares().unwrap_or_default();
        self.engine.heartbeat(shares)
    }

    /// Attaches the engine to the daemon's cgroups.
    pub(super) fn attach(&mut self, task: &Task) -> Result<()> {
        if task.cgroups.is_empty() {
            self.engine.attach(Group::open(Path::new("/"))?.as_fd())?;
        }
        for cgroup in &task.cgroups {
            match self.engine.attach(cgroup.as_fd()) {
                // It was removed meanwhile, and may be made again.
                Err(_) if !cgroup.exists() => {}
                attached => attached?,
            }
        }
        Ok(())
    }

    /// Attaches the engine to new cgroups of its group, which has that number. Its programs are told first, so that
    /// they miss no connection.
    pub(super) fn follow(&mut self, number: usize, group: &PlannedGroup, told: &mut Regrouped) -> Result<()> {
        let Some(wanted) = &group.conditions.cgroup else { return Ok(()) };
        for cgroup in wanted.groups()? {
            // A cgroup that has gone meanwhile is skipped.
            let Ok(inode) = cgroup.inode() else { continue };
            if self.cgroups.contains_key(&inode) {
                continue;
            }
            self.engine.add_member(inode, 1 << number)?;
            let (name, path) = (&group.name, printable_path(cgroup.path()));
            match self.engine.attach(cgroup.as_fd()) {
                Ok(()) => {
                    told.found.push(format!("group {name}: cgroup {path} found"));
                    self.cgroups.insert(inode, cgroup);
                }
                Err(error) => {
                    self.engine.detach_from(inode);
                    if cgroup.exists() && self.refused.insert(inode) {
                        told.refused.push(format!(
                            "group {name}: connections of cgroup {path} stay in no group: {}",
                            in_words(&error)
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Detaches the engine from cgroups that are gone.
    pub(super) fn leave_gone(&mut self, group: &PlannedGroup, told: &mut Regrouped) {
        for (inode, cgroup) in self.cgroups.extract_if(|_, cgroup| !cgroup.exists()) {
            self.engine.detach_from(inode);
            told.gone.push(format!("group {}: cgroup {} is gone", group.name, printable_path(cgroup.path())));
        }
    }

    pub(super) fn has_no_cgroup(&self) -> bool {
        self.cgroups.is_empty()
    }

    /// Returns the numbers of the group's cgroups.
    pub(super) fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        self.cgroups.keys().copied()
    }

    /// Returns these numbers and those of all cgroups below; empty if the group names no cgroup.
    pub(super) fn cgroups_below(&self) -> Result<HashSet<u64>> {
        Ok(if self.has_no_cgroup() { HashSet::new() } else { self.engine.subtree()? })
    }

    pub(super) fn sweep(
        &mut self,
        namespaces: &Namespaces,
        is_own: &dyn Fn(&Connection) -> bool,
        sum: &mut Sweep,
    ) -> Result<()> {
        let mut any = false;
        for (label, namespace) in namespaces.each() {
            match self.engine.sweep_for(namespace, is_own) {
                Ok(swept) => {
                    any = true;
                    sum.given_back += swept.given_back;
                    if swept.adopted > 0 {
                        sum.adopted.push((label, swept.adopted));
                    }
                }
                // A refusal in one namespace does not affect the others.
                Err(error) => sum.refused.push(format!("network namespace {label}: {error}")),
            }
        }
        if any {
            self.engine.note_all_swept()?;
        }
        if sum.adoption_limit.is_none() {
            sum.adoption_limit = self.engine.adoption_limit().map(str::to_owned);
        }
        self.engine.forget_unseen(UNSEEN)?;
        Ok(())
    }
}
