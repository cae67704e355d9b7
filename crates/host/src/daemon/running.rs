//! The engines that run: one for each group, and the last for the connections that are in none.
//!
//! A group's cgroups come and go. Its engine is loaded with the others and waits; it is attached to each cgroup that fits
//! when that appears, and takes its programs off when it is gone. The last engine then leaves the subtree alone, and
//! gives what it has set there back.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;

use bufwise_bpf::{Engine, FlowState, Group, Owners, ProgramInfo, Released, Shares};
use bufwise_units::Micros;
use nix::poll::{PollFd, PollFlags};

use super::event::{Event, Load, Regrouped, Sweep};
use super::namespaces::Namespaces;
use super::scope::Scope;
use super::task::{PlannedGroup, Task};
use crate::error::{Error, Result, in_words};
use crate::tuner::{self, books::Bounds, plan::Plan};
use crate::view::{Part, Sized};

/// Entries of connections that ended unseen are kept for so long where their namespace was not swept.
const UNSEEN: Micros = Micros(3_600_000_000);

/// The engines; none before the first load, and once everything was given back.
#[derive(Default)]
pub(super) struct Running {
    units: Vec<Unit>,
    /// Task that they were attached for.
    task: Option<Arc<Task>>,
}

/// The engine of a part.
struct Unit {
    engine: Engine,
    /// Cgroups of the group that it is attached to, by number; unused for the rest.
    cgroups: HashMap<u64, Group>,
    /// Cgroups that it could not be attached to: each is told once.
    refused: HashSet<u64>,
}

impl Running {
    /// Puts new engines in the place of those that run. The new ones are loaded before the old ones are touched; if a
    /// later step fails, the old ones are attached again.
    pub(super) fn load(&mut self, load: Load, namespaces: &mut Namespaces) -> Event {
        let mut units = match loaded(&load) {
            Ok(units) => units,
            Err(error) => return Event::Loaded(Err(error)),
        };
        match self.exchange(&mut units, &load, namespaces) {
            Ok(regrouped) => {
                self.units = units;
                self.task = Some(load.task);
                Event::Loaded(Ok(regrouped))
            }
            Err(error) => {
                drop(units);
                self.resume().map_or_else(Event::Failed, |()| Event::Loaded(Err(error)))
            }
        }
    }

    /// Groups come before the rest: what a group's engine is not attached to yet, the rest's would take.
    fn exchange(
        &mut self,
        units: &mut [Unit],
        load: &Load,
        namespaces: &mut Namespaces,
    ) -> Result<Regrouped> {
        self.units.iter_mut().try_for_each(|unit| unit.engine.rest())?;
        for (number, before) in self.units.iter_mut().enumerate() {
            if !load.inherit.contains(&Some(number)) {
                before.engine.release_all()?;
            }
        }
        let mut regrouped = Regrouped::default();
        let Some((rest, groups)) = units.split_last_mut() else { return Ok(regrouped) };
        for ((unit, group), before) in groups.iter_mut().zip(&load.task.groups).zip(&load.inherit) {
            unit.inherit(before.and_then(|number| self.units.get(number)))?;
            unit.follow(group, &mut regrouped)?;
            if unit.cgroups.is_empty() {
                regrouped
                    .missing
                    .push(format!("group {}: there is no cgroup {} yet", group.name, group.cgroup));
            }
        }
        if let Some(number) = load.inherit.last().copied().flatten()
            && let Some(before) = self.units.get_mut(number)
        {
            before.hand_over_to(groups, namespaces)?;
            rest.inherit(Some(before))?;
        }
        attach(&mut rest.engine, &load.task)?;
        // Before the first sweep: what `bufwise run` has inside our cgroups is its own.
        for unit in units {
            unit.engine.yield_to_others()?;
        }
        Ok(regrouped)
    }

    /// Attaches the engines again that ran before.
    fn resume(&mut self) -> Result<()> {
        let (Some((rest, groups)), Some(task)) = (self.units.split_last_mut(), &self.task) else {
            return Ok(());
        };
        for (unit, group) in groups.iter_mut().zip(&task.groups) {
            unit.begin_again()?;
            unit.follow(group, &mut Regrouped::default())?;
        }
        rest.begin_again()?;
        attach(&mut rest.engine, task)?;
        for unit in &mut self.units {
            unit.engine.yield_to_others()?;
        }
        Ok(())
    }

    /// Looks which cgroups have come that belong to a group, and which have gone. With `settle` connections are passed on
    /// even if none has: some may be in a network namespace that was not known when their cgroup came.
    pub(super) fn regroup(&mut self, namespaces: &mut Namespaces, settle: bool) -> Result<Event> {
        let mut regrouped = Regrouped { settled: settle, ..Regrouped::default() };
        let (Some((rest, groups)), Some(task)) = (self.units.split_last_mut(), &self.task) else {
            return Ok(Event::Regrouped(regrouped));
        };
        for (unit, group) in groups.iter_mut().zip(&task.groups) {
            for inode in unit.leave_gone(group, &mut regrouped) {
                rest.engine.take_back(inode);
            }
            for inode in unit.follow(group, &mut regrouped)? {
                rest.engine.yield_to(inode)?;
            }
        }
        if !regrouped.gone.is_empty() {
            let cgroups = cgroups_of_connections(namespaces)?;
            for unit in groups.iter_mut() {
                let subtree = unit.engine.subtree();
                let is_outside =
                    |cookie| cgroups.get(&cookie).is_some_and(|number| !subtree.contains(number));
                unit.engine.hand_over(is_outside)?;
            }
        }
        if settle || !regrouped.found.is_empty() {
            regrouped.passed_on = rest.hand_over_to(groups, namespaces)?.released as u64;
        }
        Ok(Event::Regrouped(regrouped))
    }

    /// The connections of each part.
    pub(super) fn look(&mut self) -> Result<Vec<Vec<FlowState>>> {
        self.units.iter_mut().try_for_each(|unit| unit.engine.tend())?;
        self.flows()
    }

    pub(super) fn flows(&self) -> Result<Vec<Vec<FlowState>>> {
        let mut all: Vec<Vec<FlowState>> =
            self.units.iter().map(|unit| unit.engine.flows()).collect::<Result<_, _>>()?;
        let is_dry = self.task.as_ref().is_some_and(|task| task.plan.observe_only);
        // Programs that only observe claim no connection: those above see it, too.
        if let Some((rest, groups)) = all.split_last_mut().filter(|_| is_dry) {
            let theirs: HashSet<u64> = groups.iter().flatten().map(|flow| flow.cookie).collect();
            rest.retain(|flow| !theirs.contains(&flow.cookie));
        }
        Ok(all)
    }

    /// The connections with the parts that they belong to.
    pub(super) fn parts(&self) -> Result<Vec<(Part, Vec<FlowState>)>> {
        let parts = self.task.iter().flat_map(|task| task.told_parts());
        Ok(parts.zip(self.flows()?).collect())
    }

    /// Which connections are tuned while these have a record.
    pub(super) fn scope(&self, sized: &Sized) -> Scope {
        self.task.as_ref().map_or_else(Scope::default, |task| Scope::new(task, &sized.counts()))
    }

    pub(super) fn share(&mut self, bounds: Vec<Bounds>) -> Result<()> {
        for (unit, bounds) in self.units.iter_mut().zip(bounds) {
            tuner::tell(&mut unit.engine, bounds)?;
        }
        Ok(())
    }

    pub(super) fn sweep(&mut self, namespaces: &Namespaces) -> Result<Sweep> {
        let mut sweep = Sweep::default();
        for unit in &mut self.units {
            unit.sweep(namespaces, &mut sweep)?;
        }
        sweep.flows = self.flows()?.concat();
        Ok(sweep)
    }

    /// Grants the sizes that the programs request; what was refused.
    pub(super) fn grant(&mut self, owners: &mut Owners) -> Result<Vec<String>> {
        let mut refused = Vec::new();
        for unit in &mut self.units {
            refused.extend(grant(&mut unit.engine, owners)?);
        }
        Ok(refused)
    }

    /// Gives everything back and ends the engines, also where one of them fails.
    pub(super) fn release_all(&mut self) -> Result<Released> {
        let (mut sum, mut failure) = (Released::default(), None);
        for mut unit in std::mem::take(&mut self.units) {
            match unit.engine.release_all() {
                Ok(Released { released, not_found, refused }) => {
                    sum.released += released;
                    sum.not_found += not_found;
                    sum.refused += refused;
                }
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        failure.map_or(Ok(sum), |error| Err(error.into()))
    }

    /// To be waited for: readable when there are requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.units.iter().map(|unit| PollFd::new(unit.engine.requests_fd(), PollFlags::POLLIN))
    }

    /// The kernel's list of all programs.
    pub(super) fn programs(&self) -> Vec<ProgramInfo> {
        self.units.iter().filter_map(|unit| unit.engine.programs().ok()).flatten().collect()
    }
}

impl Unit {
    /// Takes over what the engine before has set, if there was one.
    fn inherit(&mut self, before: Option<&Self>) -> Result<()> {
        if let Some(before) = before {
            self.engine.inherit(&before.engine.entries()?)?;
        }
        Ok(())
    }

    /// Off every cgroup, with the shares that were said last.
    fn begin_again(&mut self) -> Result<()> {
        self.engine.detach();
        self.cgroups.clear();
        let shares = self.engine.shares().unwrap_or_default();
        Ok(self.engine.beat(shares)?)
    }

    /// Attaches the engine to the cgroups of its group that are new; their numbers.
    fn follow(&mut self, group: &PlannedGroup, told: &mut Regrouped) -> Result<Vec<u64>> {
        let mut new = Vec::new();
        for cgroup in group.cgroup.groups()? {
            // One that goes meanwhile is none.
            let Ok(inode) = cgroup.inode() else { continue };
            if self.cgroups.contains_key(&inode) {
                continue;
            }
            let (name, path) = (&group.name, cgroup.path().display());
            match self.engine.attach(cgroup.as_fd()) {
                Ok(()) => {
                    told.found.push(format!("group {name}: cgroup {path} found"));
                    self.cgroups.insert(inode, cgroup);
                    new.push(inode);
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
        Ok(new)
    }

    /// Takes the engine off cgroups that are gone; their numbers.
    fn leave_gone(&mut self, group: &PlannedGroup, told: &mut Regrouped) -> Vec<u64> {
        let gone: Vec<(u64, Group)> = self.cgroups.extract_if(|_, cgroup| !cgroup.exists()).collect();
        let leave = |(inode, cgroup): (u64, Group)| {
            self.engine.detach_from(inode);
            told.gone.push(format!("group {}: cgroup {} is gone", group.name, cgroup.path().display()));
            inode
        };
        gone.into_iter().map(leave).collect()
    }

    /// Gives back and forgets the connections that are in the subtrees of those groups.
    fn hand_over_to(&mut self, groups: &[Self], namespaces: &mut Namespaces) -> Result<Released> {
        let subtrees: HashSet<u64> = groups.iter().flat_map(|unit| unit.engine.subtree()).collect();
        if subtrees.is_empty() {
            return Ok(Released::default());
        }
        let cgroups = cgroups_of_connections(namespaces)?;
        let is_theirs = |cookie| cgroups.get(&cookie).is_some_and(|number| subtrees.contains(number));
        Ok(self.engine.hand_over(is_theirs)?)
    }

    fn sweep(&mut self, namespaces: &Namespaces, sum: &mut Sweep) -> Result<()> {
        for (label, namespace) in namespaces.each() {
            match self.engine.sweep(namespace) {
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

/// Engines that touch nothing yet.
fn loaded(load: &Load) -> Result<Vec<Unit>> {
    let parts = load.task.parts().zip(&load.shares);
    let unit = |((_, plan), shares): ((_, &Plan), &Shares)| {
        let mut engine = Engine::load(&plan.engine_config())?;
        // The first connections may come before the first look.
        engine.beat(*shares)?;
        Ok(Unit { engine, cgroups: HashMap::new(), refused: HashSet::new() })
    };
    parts.map(unit).collect()
}

/// Attaches the engine of the rest to the daemon's cgroups.
fn attach(engine: &mut Engine, task: &Task) -> Result<()> {
    if task.cgroups.is_empty() {
        engine.attach(Group::open(Path::new("/"))?.as_fd())?;
    }
    for cgroup in &task.cgroups {
        engine.attach(cgroup.as_fd())?;
    }
    Ok(())
}

/// The number of each connection's cgroup, by cookie.
fn cgroups_of_connections(namespaces: &mut Namespaces) -> Result<HashMap<u64, u64>> {
    let all = namespaces.connections()?;
    Ok(all.into_iter().flat_map(|(_, all)| all).map(|one| (one.cookie, one.cgroup)).collect())
}

fn grant(engine: &mut Engine, owners: &mut Owners) -> Result<Vec<String>, Error> {
    let mut inodes = None;
    let flows = engine.flows()?;
    let mut is_fresh = false;
    let refused = tuner::grant_all(engine, |cookie| {
        let inodes: &HashMap<u64, u64> = inodes.get_or_insert_with(|| {
            flows.iter().filter_map(|flow| Some((flow.cookie, flow.origin.inode?))).collect()
        });
        let Some(inode) = inodes.get(&cookie) else {
            return owners.search(cookie);
        };
        owners.socket(*inode, cookie).or_else(|| {
            // Once for all requests.
            if !std::mem::replace(&mut is_fresh, true) {
                *owners = Owners::scan();
            }
            owners.socket(*inode, cookie)
        })
    })?;
    Ok(refused.iter().map(ToString::to_string).collect())
}
