//! Connections that the daemon would tune if it had room for their records (`max-connections`).

use std::collections::HashMap;

use bufwise_bpf::{GroupPattern, Matching, RUN_PREFIX};
use bufwise_socket::diag::{Connection, State};

use super::task::Task;
use crate::tuner::plan::Plan;

/// The connections that a daemon is for, while room in an engine is used up.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Which parts have no room, in the order of [`Task::parts`].
    is_full: Vec<bool>,
    /// Paths of the cgroups; none: all of the host.
    cgroups: Vec<String>,
    matching: Matching,
    /// The cgroups that the groups ask for, in their order.
    groups: Vec<Option<GroupPattern>>,
    /// Each cgroup that was met, by its number: the groups (a bit each) that ask for it; `None`: the daemon is not for it.
    known: HashMap<u64, Option<u32>>,
}

impl Scope {
    /// The scope of a task while so many connections of each part have a record. Room that has come free is found by the next
    /// sweep, so there is none until a tenth is free, as the log has it.
    pub(super) fn new(task: &Task, records: &[usize]) -> Self {
        let is_full = |(plan, records): (&Plan, &usize)| {
            let most = plan.max_connections as usize;
            *records >= most - most / 10
        };
        Self {
            is_full: task.parts().map(|(_, plan)| plan).zip(records).map(is_full).collect(),
            cgroups: task.cgroups.iter().map(|cgroup| cgroup.path().display().to_string()).collect(),
            matching: task.matching.clone(),
            groups: task.groups.iter().map(|group| group.conditions.cgroup.clone()).collect(),
            known: HashMap::new(),
        }
    }

    /// Whether a connection of that program without a record has none for want of room; `path` finds a cgroup's by its number.
    pub(super) fn leaves_out(
        &mut self,
        connection: &Connection,
        program: Option<&str>,
        path: impl FnOnce(u64) -> Option<String>,
    ) -> bool {
        if connection.state != State::Established || !self.is_full.contains(&true) {
            return false;
        }
        let (number, cgroups, groups) = (connection.cgroup, &self.cgroups, &self.groups);
        let found = || groups_of(cgroups, groups, path(number).as_deref());
        let Some(asking) = *self.known.entry(number).or_insert_with(found) else { return false };
        let programs = program.map_or(0, |name| self.matching.groups_of_program(name));
        let group = self.matching.group_of(asking, programs, connection.local, connection.peer);
        self.is_full.get(group.unwrap_or(groups.len())).is_some_and(|is_full| *is_full)
    }
}

/// The groups (a bit each) that ask for that cgroup; `None`: the daemon is not for connections made there.
fn groups_of(cgroups: &[String], groups: &[Option<GroupPattern>], cgroup: Option<&str>) -> Option<u32> {
    let asks = |group: &Option<GroupPattern>| {
        group.as_ref().zip(cgroup).is_some_and(|(group, path)| group.has(path))
    };
    let bits = groups.iter().enumerate().map(|(number, group)| u32::from(asks(group)) << number);
    is_inside(cgroups, cgroup).then(|| bits.fold(0, |all, bit| all | bit))
}

/// Whether the daemon is for connections made in that cgroup: inside of its cgroups, and of no `run`'s.
fn is_inside(cgroups: &[String], cgroup: Option<&str>) -> bool {
    // Before Linux 5.8 no socket tells its cgroup.
    let Some(cgroup) = cgroup else { return cgroups.is_empty() };
    let is_below = |own: &String| {
        let rest = cgroup.strip_prefix(own.trim_end_matches('/'));
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    };
    let is_a_runs = cgroup.split('/').any(|name| name.starts_with(RUN_PREFIX));
    !is_a_runs && (cgroups.is_empty() || cgroups.iter().any(is_below))
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::configured;
    use super::*;

    #[test]
    fn a_daemon_is_for_what_is_made_in_its_cgroups_and_below_but_not_in_a_run() {
        let groups = ["/web.slice".to_owned(), "/db".to_owned()];
        for cgroup in ["/web.slice", "/web.slice/nginx.service", "/db"] {
            assert!(is_inside(&groups, Some(cgroup)), "{cgroup}");
        }
        for cgroup in ["/", "/web.slice2", "/web", "/web.slice/bufwise-run-7-0"] {
            assert!(!is_inside(&groups, Some(cgroup)), "{cgroup}");
        }
        assert!(
            is_inside(&[], Some("/")) && is_inside(&[], None) && is_inside(&["/".to_owned()], Some("/x"))
        );
        assert!(!is_inside(&groups, None) && !is_inside(&[], Some("/a/bufwise-run-7-0")));
    }

    #[test]
    fn a_cgroup_is_asked_for_by_groups_or_by_none() {
        let groups = ["/a/db*", "/a/web"].map(|group| group.parse().ok());
        let asking = |cgroup| groups_of(&["/a".to_owned()], &groups, Some(cgroup));
        assert_eq!(["/a/db7/x", "/a/web", "/a/x", "/a"].map(asking), [Some(1), Some(2), Some(0), Some(0)]);
        assert_eq!(["/b", "/a/db/bufwise-run-7-0"].map(asking), [None, None]);
        assert_eq!(groups_of(&[], &groups, None), Some(0));
    }

    #[test]
    fn a_connection_is_left_out_where_its_group_is_full() {
        let group = "[[group]]\nname = \"db\"\nprocess = \"postgres\"\nmax-connections = 10\n";
        let task = configured(&format!("memory = \"1MiB\"\nmax-connections = 100\n{group}"));
        let one = crate::view::tests::connection();
        let left_out = |records: [usize; 2], program| {
            Scope::new(&task, &records).leaves_out(&one, Some(program), |_| Some("/".to_owned()))
        };
        assert!(left_out([9, 0], "postgres") && !left_out([9, 0], "rsync"));
        assert!(left_out([0, 90], "rsync") && !left_out([0, 90], "postgres"));
    }

    #[test]
    fn each_part_has_room_of_its_own() {
        let group = "[[group]]\nname = \"db\"\ncgroup = \"db\"\nmax-connections = 10\n";
        let task = configured(&format!("memory = \"1MiB\"\nmax-connections = 100\n{group}"));
        for (records, is_full) in [([9, 89], [true, false]), ([8, 90], [false, true]), ([8, 89], [false; 2])]
        {
            assert_eq!(Scope::new(&task, &records).is_full, is_full, "{records:?}");
        }
    }
}
