//! The engine of a part: of a group, or of the connections that are in none.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::Path;

use bufwise_bpf::{Engine, Group, Shares};
use bufwise_socket::diag::Connection;
use bufwise_units::Micros;

use super::super::event::{Load, Regrouped, Sweep};
use super::super::namespaces::Namespaces;
use super::super::task::{PlannedGroup, Task};
use crate::error::{Result, in_words};
use crate::tuner::plan::Plan;

/// Entries of connections that ended unseen are kept for so long where their namespace was not swept.
const UNSEEN: Micros = Micros(3_600_000_000);

/// One engine, and the cgroups that its group asks for.
pub(super) struct Unit {
    pub(super) engine: Engine,
    /// Those of them that it is attached to, by number; none where the group asks for none.
    cgroups: HashMap<u64, Group>,
    /// Those that it could not be attached to: each is told once.
    refused: HashSet<u64>,
}

impl Unit {
    /// Engines that touch nothing yet.
    pub(super) fn load_all(load: &Load) -> Result<Vec<Self>> {
        let (task, groups) = (&load.task, load.task.groups.len());
        let unit = |(number, ((_, plan), shares)): (usize, ((_, &Plan), &Shares))| {
            let own = (number < groups).then_some(number);
            let mut engine = Engine::load_for(&plan.engine_config(), &task.matching.of_group(own))?;
            // The first connections may come before the first look.
            engine.beat(*shares)?;
            Ok(Self { engine, cgroups: HashMap::new(), refused: HashSet::new() })
        };
        task.parts().zip(&load.shares).enumerate().map(unit).collect()
    }

    /// Takes over what the engine before has set, if there was one.
    pub(super) fn inherit(&mut self, before: Option<&Self>) -> Result<()> {
        if let Some(before) = before {
            self.engine.inherit(&before.engine.entries()?)?;
        }
        Ok(())
    }

    /// Off every cgroup, with the shares that were said last.
    pub(super) fn begin_again(&mut self) -> Result<()> {
        self.engine.detach();
        self.cgroups.clear();
        let shares = self.engine.shares().unwrap_or_default();
        Ok(self.engine.beat(shares)?)
    }

    /// Attaches the engine to the daemon's cgroups.
    pub(super) fn attach(&mut self, task: &Task) -> Result<()> {
        if task.cgroups.is_empty() {
            self.engine.attach(Group::open(Path::new("/"))?.as_fd())?;
        }
        for cgroup in &task.cgroups {
            self.engine.attach(cgroup.as_fd())?;
        }
        Ok(())
    }

    /// Attaches the engine to the cgroups that its group, of that number, asks for and that are new. Its own programs know of
    /// them first, so that no connection is left out.
    pub(super) fn follow(&mut self, number: usize, group: &PlannedGroup, told: &mut Regrouped) -> Result<()> {
        let Some(wanted) = &group.conditions.cgroup else { return Ok(()) };
        for cgroup in wanted.groups()? {
            // One that goes meanwhile is none.
            let Ok(inode) = cgroup.inode() else { continue };
            if self.cgroups.contains_key(&inode) {
                continue;
            }
            self.engine.add_member(inode, 1 << number)?;
            let (name, path) = (&group.name, cgroup.path().display());
            match self.engine.attach(cgroup.as_fd()) {
                Ok(()) => {
                    told.found.push(format!("group {name}: cgroup {path} found"));
                    self.cgroups.insert(inode, cgroup);
                }
                Err(error) => {
                    self.engine.detach_from(inode);
                    if cgroup.exists() && self.refused.insert(inode) {
                        told.refused.push(format!(
                            "group {name}: cgroup {path} stays the rest's: {}",
                            in_words(&error)
                        ));
                    }
                }
            }
        }
        Ok(())
    }

    /// Takes the engine off cgroups that are gone.
    pub(super) fn leave_gone(&mut self, group: &PlannedGroup, told: &mut Regrouped) {
        for (inode, cgroup) in self.cgroups.extract_if(|_, cgroup| !cgroup.exists()) {
            self.engine.detach_from(inode);
            told.gone.push(format!("group {}: cgroup {} is gone", group.name, cgroup.path().display()));
        }
    }

    pub(super) fn has_no_cgroup(&self) -> bool {
        self.cgroups.is_empty()
    }

    /// The cgroups that its group asks for, by number.
    pub(super) fn cgroups(&self) -> impl Iterator<Item = u64> + '_ {
        self.cgroups.keys().copied()
    }

    /// The same with those below them; none where the group asks for none.
    pub(super) fn cgroups_below(&self) -> HashSet<u64> {
        if self.has_no_cgroup() { HashSet::new() } else { self.engine.subtree() }
    }

    pub(super) fn sweep(
        &mut self,
        namespaces: &Namespaces,
        is_own: &dyn Fn(&Connection) -> bool,
        sum: &mut Sweep,
    ) -> Result<()> {
        for (label, namespace) in namespaces.each() {
            match self.engine.sweep_for(namespace, is_own) {
                Ok(swept) => {
                    sum.given_back += swept.given_back;
                    if swept.adopted > 0 {
                        sum.adopted.push((label, swept.adopted));
                    }
                }
                // Another namespace's connections are none the worse for it.
                Err(error) => sum.refused.push(format!("network namespace {label}: {error}")),
            }
        }
        if sum.adoption_limit.is_none() {
            sum.adoption_limit = self.engine.adoption_limit().map(str::to_owned);
        }
        self.engine.forget_unseen(UNSEEN)?;
        Ok(())
    }
}
