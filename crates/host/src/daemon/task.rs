//! The daemon's task, as flags and file define it now.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use bufwise_bpf::{Conditions, Group, Matching};
use bufwise_units::{Bytes, counted};

use super::config::{self, Options, Settings};
use super::groups;
use crate::caps::Wanted;
use crate::error::{ConfigError, Result};
use crate::log::Format;
use crate::metrics::{Address, Endpoint, Interval};
use crate::processes::printable_path;
use crate::tuner::plan::Plan;
use crate::view::Part;

/// The command line's part of the configuration; the file may change while the daemon runs.
#[derive(Debug)]
pub struct Orders {
    /// The configuration file; `None`: the default one, which need not exist.
    pub file: Option<PathBuf>,
    /// Options given as flags, which take precedence over the file.
    pub flags: Options,
    /// Whether to decide and log only, without changing anything.
    pub dry_run: bool,
}

/// A valid task: the plans, and the cgroups they apply to.
#[derive(Debug)]
pub struct Task {
    pub(super) settings: Settings,
    /// Plan of the connections in no group.
    pub(super) plan: Plan,
    /// Cgroups whose connections are tuned, none inside another; empty: the whole host.
    pub(super) cgroups: Vec<Group>,
    pub(super) groups: Vec<PlannedGroup>,
    /// The conditions of all groups.
    pub(super) matching: Matching,
}

/// Connections with a plan of their own.
#[derive(Clone, Debug)]
pub(super) struct PlannedGroup {
    pub(super) name: String,
    pub(super) conditions: Conditions,
    pub(super) plan: Plan,
}

impl Orders {
    /// Reads the present configuration.
    ///
    /// # Errors
    /// [`Error::Config`](crate::Error::Config), [`Error::Cgroup`](crate::Error::Cgroup) where a cgroup does not exist,
    /// [`Error::Memory`](crate::Error::Memory).
    pub fn task(&self) -> Result<Task> {
        let settings = config::settings(self.file.as_deref(), &self.flags)?;
        let file = config::path(self.file.as_deref());
        let (plan, plans) = groups::plans(&settings, file)?;
        let dry = |plan| Plan { observe_only: self.dry_run, ..plan };
        let planned = settings.groups.iter().zip(plans).map(|(group, plan)| PlannedGroup {
            name: group.name.clone(),
            conditions: group.conditions.clone(),
            plan: dry(plan),
        });
        let groups: Vec<PlannedGroup> = planned.collect();
        let matching = Matching::new(groups.iter().map(|group| &group.conditions))
            .map_err(|what| ConfigError::Content { path: file.into(), what: format!("there are {what}") })?;
        let named = settings.cgroups.iter().map(|path| Group::open(path)).collect::<Result<_, _>>()?;
        Ok(Task { settings, plan: dry(plan), cgroups: Group::outermost(named), groups, matching })
    }
}

impl Task {
    /// Returns the path of the control socket.
    #[must_use]
    pub fn socket(&self) -> &Path {
        &self.settings.socket
    }

    /// Returns the format of the log's lines.
    #[must_use]
    pub fn log_format(&self) -> Format {
        self.settings.log_format
    }

    /// Returns the address at which metrics are served, if any.
    #[must_use]
    pub fn metrics(&self) -> Option<&Address> {
        self.settings.metrics.as_ref()
    }

    /// Returns the receiver to which metrics are sent, if any.
    #[must_use]
    pub fn otlp(&self) -> Option<&Endpoint> {
        self.settings.otlp.as_ref()
    }

    /// Returns the time between two requests to the receiver.
    #[must_use]
    pub fn otlp_interval(&self) -> Interval {
        self.settings.otlp_interval
    }

    /// Returns the file of the history on disk, if any.
    pub(super) fn history(&self) -> Option<&Path> {
        self.settings.history.as_deref()
    }

    /// Returns the parts of the connections, each with its own engine: the groups by name, and last the connections
    /// in no group.
    pub(super) fn parts(&self) -> impl Iterator<Item = (Option<&str>, &Plan)> {
        let groups = self.groups.iter().map(|group| (Some(group.name.as_str()), &group.plan));
        groups.chain([(None, &self.plan)])
    }

    /// Returns the engine's configuration for a part. Groups divide connections when these are established, so records
    /// are made late only where there are none.
    pub(super) fn engine_config(&self, plan: &Plan) -> bufwise_bpf::Config {
        if self.groups.is_empty() { plan.late_config() } else { plan.engine_config() }
    }

    /// Returns whether records are made late, so that connections that move little get theirs from a sweep. Reads the host's
    /// settings and, behind its lock, the journal of raised maxima.
    pub(super) fn is_late(&self) -> bool {
        self.engine_config(&self.plan).record_after > Bytes::ZERO
    }

    /// Returns the parts as views show them.
    pub(super) fn told_parts(&self) -> impl Iterator<Item = Part> {
        self.parts().map(|(name, plan)| Part { group: name.map(str::to_owned), policy: plan.choice.into() })
    }

    /// Returns the memory of all parts: to send, and to receive.
    pub(super) fn budgets(&self) -> (Bytes, Bytes) {
        let sum = |of: fn(&Plan) -> Bytes| self.parts().map(|(_, plan)| of(plan)).sum();
        (sum(|plan| plan.budget), sum(|plan| plan.receive_budget))
    }

    /// Returns, for each group, the present numbers of its cgroups and of those below them; an empty set for a group
    /// without cgroups.
    pub(super) fn cgroups_of_groups(&self) -> Result<Vec<HashSet<u64>>> {
        let numbers = |group: &PlannedGroup| match &group.conditions.cgroup {
            Some(cgroup) => Ok(cgroup.numbers()?),
            None => Ok(HashSet::new()),
        };
        self.groups.iter().map(numbers).collect()
    }

    /// Returns the maxima to raise, each as far as any part needs, and the bounds of devices to lower.
    pub(super) fn wanted(&self) -> Vec<Wanted> {
        if self.plan.observe_only {
            return Vec::new();
        }
        let mut wanted: Vec<Wanted> = Vec::new();
        let caps = self.parts().filter(|_| self.settings.raise_caps).flat_map(|(_, plan)| plan.caps());
        for one in caps {
            let Wanted::Maximum(setting, size) = one else { continue };
            let known = wanted.iter_mut().find_map(|other| match other {
                Wanted::Maximum(same, most) if *same == setting => Some(most),
                _ => None,
            });
            match known {
                Some(most) => *most = size.max(*most),
                None => wanted.push(one),
            }
        }
        wanted.extend(self.plan.devices);
        wanted
    }

    /// Returns whether a reload from `before` leaves the maxima raised as they are: both tasks raise the same ones in the same
    /// cgroups' namespaces, for the same reason, and bound no device, whose bound follows the shares.
    pub(super) fn keeps_maxima(&self, before: &Self) -> bool {
        let wanted = self.wanted();
        wanted == before.wanted()
            && wanted.iter().all(|one| matches!(one, Wanted::Maximum(..)))
            && self.settings.cgroups == before.settings.cgroups
            && self.bounds_all() == before.bounds_all()
    }

    /// Returns whether the connections' devices are left alone because the daemon is in the host's first namespace,
    /// where others use them.
    pub(super) fn leaves_devices_alone(&self, in_the_first: bool) -> bool {
        let alone = matches!(self.plan.devices, Some(Wanted::Devices { also_in_the_first: false, .. }));
        in_the_first && alone && !self.plan.observe_only
    }

    /// Returns whether every connection of a namespace with raised maxima is bounded: all are tuned, and all parts
    /// use the same maxima.
    pub(super) fn bounds_all(&self) -> bool {
        let concerned = |plan: &Plan| plan.caps().len();
        self.cgroups.is_empty() && self.parts().all(|(_, plan)| concerned(plan) == concerned(&self.plan))
    }

    /// Returns, for each part, the part of `other` whose settings an engine of this task can take over: same
    /// conditions, same rules, attached to the same cgroups.
    pub(super) fn inherits(&self, other: &Self) -> Vec<Option<usize>> {
        let same_cgroups = self.settings.cgroups == other.settings.cgroups;
        let of_group = |group: &PlannedGroup| {
            // The engine of a group that names no cgroup is attached to the daemon's.
            let same_place = same_cgroups || group.conditions.cgroup.is_some();
            let is_same = |before: &PlannedGroup| {
                before.conditions == group.conditions && continues(&group.plan, &before.plan)
            };
            other.groups.iter().position(is_same).filter(|_| same_place)
        };
        let rest = (same_cgroups && continues(&self.plan, &other.plan)).then_some(other.groups.len());
        self.groups.iter().map(of_group).chain([rest]).collect()
    }

    /// Describes the task in one line.
    pub(super) fn headline(&self) -> String {
        let Plan { choice, budget, receive_budget, observe_only, max_connections, .. } = &self.plan;
        let rest = format!(
            "{} {}: policy {choice}; memory {} to send, {} to receive; at most {}, whose records take {} of \
             the kernel's memory if all are there",
            if *observe_only { "dry run on" } else { "tuning" },
            self.scope(),
            budget.readable(),
            receive_budget.readable(),
            counted(*max_connections, "connection"),
            bufwise_bpf::Config::record_memory(*max_connections).readable(),
        );
        self.groups.iter().fold(rest, |all, PlannedGroup { name, plan, .. }| {
            let (send, receive) = (plan.budget.readable(), plan.receive_budget.readable());
            format!(
                "{all}; group {name}: policy {}, memory {send} to send, {receive} to receive",
                plan.choice
            )
        })
    }

    fn scope(&self) -> String {
        let names: Vec<String> = self.settings.cgroups.iter().map(|path| printable_path(path)).collect();
        if names.is_empty() { "the whole host".to_owned() } else { format!("cgroup {}", names.join(", ")) }
    }
}

/// Returns whether an engine by this plan can take over the settings of an engine by `before`.
fn continues(plan: &Plan, before: &Plan) -> bool {
    plan.choice == before.choice
        && plan.take_over == before.take_over
        // Otherwise some connections would lose their records, and their sizes would look like the applications' own.
        && plan.max_connections >= before.max_connections
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns the task of a configuration file.
    pub(in super::super) fn configured(text: &str) -> Task {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bufwise.toml");
        std::fs::write(&file, text).unwrap();
        Orders { file: Some(file), flags: Options::default(), dry_run: false }.task().unwrap()
    }

    /// Returns a task with two groups beside the rest, in 64 MiB each way; `more` precedes the groups.
    fn grouped(more: &str, groups: [(&str, &str, &str); 2]) -> Task {
        let groups: String = groups
            .into_iter()
            .map(|(name, cgroup, policy)| {
                format!("[[group]]\nname = \"{name}\"\ncgroup = \"{cgroup}\"\npolicy = \"{policy}\"\nmemory = \"16MiB\"\n")
            })
            .collect();
        configured(&format!("memory = \"64MiB\"\nreceive-memory = \"64MiB\"\n{more}\n{groups}"))
    }

    #[test]
    fn a_group_is_continued_by_the_one_with_its_cgroup_and_rules() {
        let two = [("a", "x", "abt"), ("b", "y", "kernel")];
        let before = grouped("policy = \"abt\"", two);
        let same = |task: Task| task.inherits(&before);
        assert_eq!(same(grouped("policy = \"abt\"", two)), [Some(0), Some(1), Some(2)]);
        assert_eq!(same(grouped("policy = \"drs\"", two)), [Some(0), Some(1), None]);
        let swapped = [("renamed", "y", "kernel"), ("a", "x", "abt")];
        assert_eq!(same(grouped("policy = \"abt\"", swapped)), [Some(1), Some(0), Some(2)]);
        let other = [("a", "x", "eq"), ("c", "z", "kernel")];
        assert_eq!(same(grouped("policy = \"abt\"", other)), [None, None, Some(2)]);
        let alone = configured("policy = \"abt\"\nmemory = \"64MiB\"\nreceive-memory = \"64MiB\"");
        assert_eq!(alone.inherits(&before), [Some(2)]);
        assert_eq!(before.inherits(&alone), [None, None, Some(0)]);
    }

    #[test]
    fn a_group_that_names_no_cgroup_is_continued_in_the_same_cgroups_alone() {
        for (condition, elsewhere) in [("port = 80", None), ("port = 80\ncgroup = \"x\"", Some(0))] {
            let text = format!("memory = \"1MiB\"\n[[group]]\nname = \"a\"\n{condition}\n");
            let (before, mut after) = (configured(&text), configured(&text));
            assert_eq!(after.inherits(&before), [Some(0), Some(1)]);
            after.settings.cgroups = vec!["/b".into()];
            assert_eq!(after.inherits(&before), [elsewhere, None], "{condition}");
        }
    }

    #[test]
    fn maxima_are_raised_as_far_as_the_part_that_wants_most() {
        let task = grouped("policy = \"kernel\"", [("a", "x", "fixed:64KiB"), ("b", "y", "drs")]);
        let maxima = task.wanted();
        assert_eq!(maxima.len(), 4, "each once: {maxima:?}");
        let window = task.groups[1].plan.max_window.0;
        assert!(maxima.contains(&Wanted::Maximum(crate::caps::Setting::TcpRmem, window)), "{maxima:?}");
        assert!(!task.bounds_all(), "the rest is the kernel's");
        assert!(grouped("policy = \"abt\"", [("a", "x", "abt"), ("b", "y", "eq")]).bounds_all());
    }

    #[test]
    fn a_reload_keeps_maxima_that_both_tasks_raise_in_the_same_places() {
        // Without a memory to send that was set, no device is bounded.
        let task = |more: &str| configured(&format!("receive-memory = \"64MiB\"\n{more}"));
        let before = task("policy = \"drs\"\n");
        assert!(task("policy = \"sobas\"\noverride = true\n").keeps_maxima(&before));
        assert!(!task("policy = \"abt,drs\"\n").keeps_maxima(&before), "it raises more");
        assert!(!task("policy = \"drs\"\nraise-caps = false\n").keeps_maxima(&before));
        let mut elsewhere = task("policy = \"drs\"\n");
        elsewhere.settings.cgroups = vec!["/b".into()];
        assert!(!elsewhere.keeps_maxima(&before));
        let bounded = configured("memory = \"64MiB\"\nreceive-memory = \"64MiB\"\npolicy = \"abt\"\n");
        assert!(!bounded.keeps_maxima(&bounded), "the devices' bound follows the shares");
    }

    #[test]
    fn the_budgets_are_those_of_all_parts_and_the_headline_names_each() {
        let task = grouped("", [("a", "x", "abt"), ("b", "y", "kernel")]);
        let whole = Bytes(64 << 20);
        assert_eq!(task.budgets().0, whole);
        let line = task.headline();
        assert!(line.contains("memory 33.55 MB to send, 22.37 MB to receive; at most"), "{line}");
        assert!(
            line.contains("; group a: policy abt (send), kernel (receive), memory 16.78 MB to send,"),
            "{line}"
        );
    }

    fn task(change: impl FnOnce(&mut Orders)) -> Task {
        let memory = Some("64MiB".parse().unwrap());
        let flags = Options { memory, receive_memory: memory, ..Options::default() };
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("bufwise.toml");
        std::fs::write(&file, "policy = \"abt,drs\"\n").unwrap();
        let mut orders = Orders { file: Some(file), flags, dry_run: false };
        change(&mut orders);
        orders.task().unwrap()
    }

    #[test]
    fn a_dry_run_raises_nothing() {
        let maxima =
            |task: &Task| task.wanted().iter().filter(|wanted| matches!(wanted, Wanted::Maximum(..))).count();
        assert_eq!(
            (maxima(&task(|_| {})), task(|_| {}).wanted().len()),
            (4, 5),
            "and what devices take at once"
        );
        assert!(task(|orders| orders.dry_run = true).wanted().is_empty());
        assert_eq!(maxima(&task(|orders| orders.flags.raise_caps = Some(false))), 0);
    }

    #[test]
    fn a_cgroup_that_is_named_twice_also_by_its_path_below_the_mount_is_attached_to_once() {
        let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap();
        let is_cgroup2 = |line: &&str| line.split(' ').nth(2) == Some("cgroup2");
        let Some(mount) = mounts.lines().find(is_cgroup2).and_then(|line| line.split(' ').nth(1)) else {
            return bufwise_trial::skip("no cgroup v2");
        };
        let task = configured(&format!(
            "memory = \"1MiB\"\nreceive-memory = \"1MiB\"\ncgroups = [\"{mount}\", \"/\"]\n\
             [[group]]\nname = \"below\"\ncgroup = \"x\"\n"
        ));
        assert_eq!(task.settings.cgroups, [Path::new("/"), Path::new("/")]);
        assert_eq!(task.cgroups.iter().map(Group::path).collect::<Vec<_>>(), [Path::new("/")]);
    }

    #[test]
    fn what_was_set_is_taken_over_by_the_same_rules_alone() {
        let before = task(|_| {});
        let continues = |change: fn(&mut Orders)| task(change).inherits(&before) == [Some(0)];
        assert!(continues(|orders| orders.flags.memory = Some("1MiB".parse().unwrap())));
        assert!(continues(|orders| orders.flags.raise_caps = Some(false)));
        assert!(!continues(|orders| orders.flags.policy = Some("abt".parse().unwrap())));
        assert!(!continues(|orders| orders.flags.take_over = Some(true)));
        assert!(continues(|orders| orders.flags.max_connections = Some("100000".parse().unwrap())));
        assert!(!continues(|orders| orders.flags.max_connections = Some("1000".parse().unwrap())));
    }

    #[test]
    fn the_headline_says_what_where_and_with_how_much_memory() {
        assert_eq!(
            task(|_| {}).headline(),
            "tuning the whole host: policy abt (send), drs (receive); memory 67.11 MB to send, 67.11 MB to receive; at most \
             65536 connections, whose records take 159.38 MB of the kernel's memory if all are there"
        );
        assert!(task(|orders| orders.dry_run = true).headline().starts_with("dry run on the whole host: "));
        let mut odd = task(|_| {});
        odd.settings.cgroups = vec!["/a\nb\u{1b}[2J".into()];
        assert!(odd.headline().starts_with("tuning cgroup /a?b?[2J: "), "{}", odd.headline());
    }
}
