//! The engines that run: one for each group, and the last for the connections in no group.
//!
//! All programs know the conditions of all groups, and each takes its own connections. The programs of a group with
//! cgroups are attached to these only, so that other connections cost nothing; the attachments follow cgroups that
//! appear and go. The programs of a group without cgroups are attached where the rest's are. A connection that turns
//! out to belong to another part is given back by one engine and adopted by the other. A cgroup of the daemon's own that is
//! removed and made again is attached to as well.

mod unit;

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use bufwise_bpf::{Engine, EngineError, FlowState, Group, Owners, ProgramInfo, Released, processor_time};
use bufwise_socket::diag::Connection;
use bufwise_units::counted;
use nix::poll::{PollFd, PollFlags};

use super::event::{Event, Load, Regrouped, Sweep};
use super::namespaces::Namespaces;
use super::placing::{Judge, Programs};
use super::scope::Scope;
use super::task::Task;
use crate::error::{Error, Result, in_words};
use crate::processes::printable_path;
use crate::tuner::{self, books::Bounds};
use crate::view::{Part, Sized};
use unit::Unit;

/// The engines; empty before the first load and after everything was given back.
#[derive(Default)]
pub(super) struct Running {
    units: Vec<Unit>,
    programs: Programs,
    /// The task for which the engines were attached.
    task: Option<Arc<Task>>,
    /// Cgroups of the task that were removed and made again since, and to which the engines were attached.
    remade: Vec<Group>,
    /// [`Running::turnover`] at the last sample.
    seen_turnover: u64,
    /// A search for the groups' cgroups has failed before all engines were told what it had found.
    is_behind: bool,
}

impl Running {
    /// Replaces the running engines by new ones. The new ones are loaded before the old ones are changed; if a later
    /// step fails, the old ones are attached again.
    pub(super) fn load(&mut self, load: Load, namespaces: &mut Namespaces) -> Event {
        // All loads together may take longer than a heartbeat is valid.
        let keep_alive = || {
            let _left_to_the_next_heartbeat = each(self.units.iter_mut().map(Unit::renew));
        };
        let mut units = match Unit::load_all(&load, keep_alive) {
            Ok(units) => units,
            Err(error) => return Event::Loaded(Err(error)),
        };
        match self.exchange(&mut units, &load, namespaces) {
            Ok((regrouped, programs)) => {
                self.units = units;
                self.programs = programs;
                self.task = Some(load.task);
                self.remade = Vec::new();
                Event::Loaded(Ok(regrouped))
            }
            Err(error) => {
                drop(units);
                self.resume().map_or_else(Event::Failed, |()| Event::Loaded(Err(error)))
            }
        }
    }

    /// Passes the old engines' records to the engines of the parts that the connections belong to now, before the new
    /// programs see the sizes that were set.
    fn exchange(
        &mut self,
        units: &mut [Unit],
        load: &Load,
        namespaces: &mut Namespaces,
    ) -> Result<(Regrouped, Programs)> {
        self.units.iter_mut().try_for_each(|unit| unit.engine.suspend())?;
        for (number, before) in self.units.iter_mut().enumerate() {
            if !load.inherit.contains(&Some(number)) {
                before.engine.release_all()?;
            }
        }
        let (task, mut programs) = (&load.task, Programs::default());
        programs.search(&task.matching, &engines(units), &HashSet::new(), namespaces)?;
        self.hand_over_to_heirs(load, &programs, namespaces)?;
        for (unit, before) in units.iter_mut().zip(&load.inherit) {
            unit.inherit(before.and_then(|number| self.units.get(number)))?;
        }
        // The first heartbeat is older than all that was done since.
        each(units.iter_mut().map(Unit::renew))?;
        Ok((attach_all(units, task)?, programs))
    }

    /// Makes each running engine give away connections that do not belong to the part that inherits from it.
    fn hand_over_to_heirs(
        &mut self,
        load: &Load,
        programs: &Programs,
        namespaces: &mut Namespaces,
    ) -> Result<()> {
        if load.task.groups.is_empty() || self.units.is_empty() {
            return Ok(());
        }
        let judge = Judge::new(&load.task.matching, load.task.cgroups_of_groups()?, programs);
        let judge = judge.with_connections(namespaces)?;
        for (number, before) in self.units.iter_mut().enumerate() {
            let heir = load.inherit.iter().position(|inherited| *inherited == Some(number));
            // The groups may have had other numbers when the engine saw a program.
            let part = |flow: &FlowState| judge.part(&FlowState { program_groups: None, ..*flow });
            if let Some(heir) = heir {
                before.engine.hand_over(|flow| part(flow).is_some_and(|part| part != heir))?;
            }
        }
        Ok(())
    }

    /// Attaches the former engines again; the next search attaches them to cgroups that were made again.
    fn resume(&mut self) -> Result<()> {
        let Some(task) = &self.task else { return Ok(()) };
        self.units.iter_mut().for_each(Unit::begin_again);
        self.remade.clear();
        attach_all(&mut self.units, task).map(drop)
    }

    /// Follows the groups' cgroups that have appeared or gone; with `programs`, also finds programs that the engines have
    /// not seen. With `settle` connections are passed on even if nothing has changed: some may be in a network namespace
    /// that was unknown before. After a failure, as for lack of descriptors, the next call does what is left.
    pub(super) fn regroup(&mut self, namespaces: &mut Namespaces, settle: bool, programs: bool) -> Event {
        let settle = settle || self.is_behind;
        let mut regrouped = Regrouped { settled: settle, ..Regrouped::default() };
        if let Some(task) = self.task.clone() {
            let done = self.follow_groups(&task, namespaces, programs, &mut regrouped);
            self.is_behind = done.is_err();
            regrouped.failed = done.err().map(|error| in_words(&error));
        }
        Event::Regrouped(regrouped)
    }

    fn follow_groups(
        &mut self,
        task: &Task,
        namespaces: &mut Namespaces,
        programs: bool,
        regrouped: &mut Regrouped,
    ) -> Result<()> {
        for (unit, group) in self.units.iter_mut().zip(&task.groups) {
            unit.leave_gone(group, regrouped);
        }
        for (number, (unit, group)) in self.units.iter_mut().zip(&task.groups).enumerate() {
            unit.follow(number, group, regrouped)?;
        }
        let Regrouped { found, gone, refused, .. } = &*regrouped;
        let has_changed = self.is_behind || [found, gone, refused].iter().any(|lines| !lines.is_empty());
        if has_changed {
            tell_cgroups(&mut self.units)?;
            regrouped.refused.extend(exclude_other_engines(&mut self.units)?);
        }
        let mut is_news = false;
        if programs && task.matching.asks_for_programs() {
            let before = processor_time();
            let searched = self.find_programs(task, namespaces);
            regrouped.searched = Some(processor_time().since(before));
            is_news = searched?;
        }
        if regrouped.settled || has_changed || is_news {
            regrouped.passed_on = self.pass_on(task, namespaces)?;
        }
        Ok(())
    }

    /// Finds programs that the engines have not seen; returns whether any connection was reported to them.
    fn find_programs(&mut self, task: &Task, namespaces: &mut Namespaces) -> Result<bool> {
        let seen = self.seen()?;
        self.programs.search(&task.matching, &engines(&self.units), &seen, namespaces)
    }

    /// Attaches the engines to cgroups of the daemon that were removed and made again, as by the restart of a service.
    /// Returns their paths, and why the engines could not be attached to others.
    pub(super) fn follow_cgroups(&mut self) -> (Vec<String>, Vec<String>) {
        let (mut told, mut refused) = (Vec::new(), Vec::new());
        let Some(task) = self.task.clone().filter(|_| !self.units.is_empty()) else { return (told, refused) };
        let gone: Vec<&Group> = task.cgroups.iter().filter(|cgroup| !cgroup.exists()).collect();
        let numbers = gone.iter().copied().chain(&self.remade).filter_map(number_of_gone).collect();
        self.leave(numbers);
        self.remade.retain(Group::exists);
        for path in gone.into_iter().map(Group::path) {
            // It may not be there yet.
            let Ok(cgroup) = Group::open(path) else { continue };
            let Ok(number) = cgroup.inode() else { continue };
            if self.remade.iter().any(|known| known.inode().is_ok_and(|known| known == number)) {
                continue;
            }
            let shown = printable_path(path);
            match self.attach_to(&task, &cgroup) {
                Ok(()) => {
                    told.push(shown);
                    self.remade.push(cgroup);
                }
                Err(error) => {
                    self.leave(vec![number]);
                    let words = in_words(&error);
                    refused.push(format!("cgroup {shown} was made again and is not tuned: {words}"));
                }
            }
        }
        if !told.is_empty() {
            let others = exclude_other_engines(&mut self.units);
            refused.extend(others.unwrap_or_else(|error| Some(in_words(&error))));
        }
        (told, refused)
    }

    /// Attaches the engines of all parts whose groups name no cgroup.
    fn attach_to(&mut self, task: &Task, cgroup: &Group) -> Result<()> {
        let units = self.units.iter_mut().enumerate().filter(|(number, _)| !names_cgroup(task, *number));
        for (_, unit) in units {
            unit.engine.attach(cgroup.as_fd())?;
        }
        Ok(())
    }

    /// Detaches the engines from cgroups, by number.
    fn leave(&mut self, cgroups: Vec<u64>) {
        for cgroup in cgroups {
            self.units.iter_mut().for_each(|unit| unit.engine.detach_from(cgroup));
        }
    }

    /// Returns the cgroups of a task; with those that were made again, if the engines were attached for it.
    pub(super) fn cgroups_of<'a>(&'a self, task: &'a Arc<Task>) -> Vec<&'a Group> {
        let is_running = self.task.as_ref().is_some_and(|running| Arc::ptr_eq(running, task));
        task.cgroups.iter().chain(self.remade.iter().filter(|_| is_running)).collect()
    }

    /// Makes each engine give away connections of other parts; returns their number.
    fn pass_on(&mut self, task: &Task, namespaces: &mut Namespaces) -> Result<u64> {
        let of_groups = self.units.iter().take(task.groups.len());
        let cgroups = of_groups.map(Unit::cgroups_below).collect::<Result<_>>()?;
        let judge = Judge::new(&task.matching, cgroups, &self.programs).with_connections(namespaces)?;
        let mut count = 0;
        for (number, unit) in self.units.iter_mut().enumerate() {
            let is_anothers = |flow: &FlowState| judge.part(flow).is_some_and(|part| part != number);
            count += unit.engine.hand_over(is_anothers)?.released as u64;
        }
        Ok(count)
    }

    /// Returns the cookies of connections whose program the engines have seen.
    fn seen(&self) -> Result<HashSet<u64>> {
        let flows = self.flows()?;
        let seen = flows.iter().flatten().filter(|flow| flow.program_groups.is_some());
        Ok(seen.map(|flow| flow.cookie).collect())
    }

    /// Samples the connections of each part.
    pub(super) fn sample(&mut self) -> Result<Vec<Vec<FlowState>>> {
        each(self.units.iter_mut().map(|unit| unit.engine.poll()))?;
        self.seen_turnover = self.turnover()?;
        self.flows()
    }

    /// Renews the heartbeat of each engine; returns how many connections have come or gone since the last sample.
    pub(super) fn heartbeat(&mut self) -> Result<u64> {
        each(self.units.iter_mut().map(Unit::renew))?;
        Ok(self.turnover()?.saturating_sub(self.seen_turnover))
    }

    fn turnover(&self) -> Result<u64> {
        self.units.iter().map(|unit| Ok(unit.engine.turnover()?)).sum()
    }

    pub(super) fn flows(&self) -> Result<Vec<Vec<FlowState>>> {
        Ok(self.units.iter().map(|unit| unit.engine.flows()).collect::<Result<_, _>>()?)
    }

    /// Returns the connections by the part that they belong to.
    pub(super) fn parts(&self) -> Result<Vec<(Part, Vec<FlowState>)>> {
        let parts = self.task.iter().flat_map(|task| task.told_parts());
        Ok(parts.zip(self.flows()?).collect())
    }

    /// Returns which connections are tuned, given the records in use.
    pub(super) fn scope(&self, sized: &Sized) -> Scope {
        self.task.as_ref().map_or_else(Scope::default, |task| Scope::new(task, &sized.counts()))
    }

    pub(super) fn share(&mut self, bounds: Vec<Bounds>) -> Result<()> {
        let units = self.units.iter_mut().zip(bounds);
        each(units.map(|(unit, bounds)| tuner::tell(&mut unit.engine, bounds)))
    }

    /// Sweeps all namespaces for each part, even if the sweep of another part fails.
    pub(super) fn sweep(&mut self, namespaces: &Namespaces) -> Sweep {
        let mut sweep = Sweep::default();
        let Some(task) = &self.task else { return sweep };
        // Needed only on kernels whose iterator does not do everything in the kernel.
        let judge = OnceCell::new();
        let part = |one: &Connection| {
            let cgroups = || task.cgroups_of_groups();
            let made = || cgroups().map(|cgroups| Judge::new(&task.matching, cgroups, &self.programs));
            let judge: &Result<Judge<'_>> = judge.get_or_init(made);
            // Without the groups' cgroups no part is known: the next sweep adopts the connection.
            judge.as_ref().ok().map(|judge| judge.part_of(one, None))
        };
        for (number, unit) in self.units.iter_mut().enumerate() {
            let swept = unit.sweep(namespaces, &|one| part(one) == Some(number), &mut sweep);
            sweep.failed = sweep.failed.or(swept.err().map(|error| in_words(&error)));
        }
        if let Some(Err(error)) = judge.get() {
            sweep.failed.get_or_insert_with(|| in_words(error));
        }
        sweep
    }

    /// Grants the sizes that the programs request; returns the refusals.
    pub(super) fn grant(&mut self, owners: &mut Owners) -> Result<Vec<String>> {
        let mut refused = Vec::new();
        for unit in &mut self.units {
            refused.extend(grant(&mut unit.engine, owners)?);
        }
        Ok(refused)
    }

    /// Gives everything back and ends all engines, even if one of them fails.
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

    /// Returns descriptors to poll, readable while there are requests.
    pub(super) fn requests(&self) -> impl Iterator<Item = PollFd<'_>> {
        self.units.iter().map(|unit| PollFd::new(unit.engine.requests_fd(), PollFlags::POLLIN))
    }

    /// Returns the kernel's data on all programs.
    pub(super) fn programs(&self) -> Vec<ProgramInfo> {
        self.units.iter().filter_map(|unit| unit.engine.programs().ok()).flatten().collect()
    }
}

/// Carries out a step for each engine, even if another one's fails; returns the first failure.
fn each(steps: impl Iterator<Item = Result<(), EngineError>>) -> Result<()> {
    let first = steps.filter_map(Result::err).reduce(|first, _| first);
    first.map_or(Ok(()), |error| Err(error.into()))
}

/// Attaches all engines, to the cgroups of their group or else to the daemon's.
fn attach_all(units: &mut [Unit], task: &Task) -> Result<Regrouped> {
    let mut regrouped = Regrouped::default();
    for (number, (unit, group)) in units.iter_mut().zip(&task.groups).enumerate() {
        unit.follow(number, group, &mut regrouped)?;
        let missing = group.conditions.cgroup.as_ref().filter(|_| unit.has_no_cgroup());
        regrouped
            .missing
            .extend(missing.map(|cgroup| format!("group {}: there is no cgroup {cgroup} yet", group.name)));
    }
    tell_cgroups(units)?;
    for (_, unit) in units.iter_mut().enumerate().filter(|(number, _)| !names_cgroup(task, *number)) {
        unit.attach(task)?;
    }
    // Before the first sweep, so that connections of a `bufwise run` inside our cgroups are left to it.
    regrouped.refused.extend(exclude_other_engines(units)?);
    Ok(regrouped)
}

/// Returns whether the part with that number is a group that names a cgroup.
fn names_cgroup(task: &Task, number: usize) -> bool {
    task.groups.get(number).is_some_and(|group| group.conditions.cgroup.is_some())
}

/// Returns the number of a cgroup that no longer exists.
fn number_of_gone(cgroup: &Group) -> Option<u64> {
    if cgroup.exists() { None } else { cgroup.inode().ok() }
}

/// Tells the programs of all engines the cgroups of the groups.
fn tell_cgroups(units: &mut [Unit]) -> Result<()> {
    let mut members: HashMap<u64, u32> = HashMap::new();
    for (number, unit) in units.iter().enumerate() {
        unit.cgroups().for_each(|inode| *members.entry(inode).or_default() |= 1 << number);
    }
    units.iter_mut().try_for_each(|unit| Ok(unit.engine.set_members(&members)?))
}

/// Leaves the connections of other processes' programs to these; among the engines here the groups decide. Returns a
/// warning if there are too many.
fn exclude_other_engines(units: &mut [Unit]) -> Result<Option<String>> {
    let siblings: HashSet<u64> = units.iter().flat_map(|unit| unit.engine.cgroups()).collect();
    let mut unnoted = 0;
    for unit in units {
        unit.engine.exclude_other_engines(&siblings)?;
        unnoted = unnoted.max(unit.engine.unnoted());
    }
    Ok((unnoted > 0).then(|| {
        format!(
            "there is no room to note {} of other bufwise processes: connections from before may be tuned by both",
            counted(unnoted, "cgroup")
        )
    }))
}

fn engines(units: &[Unit]) -> impl Iterator<Item = &Engine> + Clone {
    units.iter().map(|unit| &unit.engine)
}

fn grant(engine: &mut Engine, owners: &mut Owners) -> Result<Vec<String>, Error> {
    let mut is_fresh = false;
    let refused = tuner::grant_all(engine, |engine, cookie| {
        let Some(inode) = engine.inode(cookie) else {
            return owners.search(cookie);
        };
        owners.socket(inode, cookie).or_else(|| {
            // One scan serves all requests of this call.
            if !std::mem::replace(&mut is_fresh, true) {
                *owners = Owners::scan();
            }
            owners.socket(inode, cookie)
        })
    })?;
    Ok(refused.iter().map(ToString::to_string).collect())
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use bufwise_bpf::Shares;

    use super::super::task::tests::configured;
    use super::*;

    #[test]
    fn engines_that_run_get_a_sign_of_life_before_each_load() {
        let task = Arc::new(configured("policy = \"kernel\"\nmemory = \"1MiB\""));
        let load = Load { task, inherit: vec![None], shares: vec![Shares::default()] };
        let mut signs = 0;
        // Without root the load fails.
        let _loaded = Unit::load_all(&load, || signs += 1);
        assert_eq!(signs, 1);
    }

    #[test]
    fn cgroups_that_were_made_again_are_not_known_to_engines_that_are_attached_again() {
        let Ok(cgroup) = Group::open(Path::new("/")) else {
            return bufwise_trial::skip("no cgroup v2");
        };
        let task = Some(Arc::new(configured("memory = \"1MiB\"")));
        let mut running = Running { task, remade: vec![cgroup], ..Running::default() };
        running.resume().unwrap();
        assert!(running.remade.is_empty(), "no search would attach the engines there");
    }
}
