//! Connections that the daemon would tune if it had room for their records (`max-connections`).

use std::collections::HashMap;

use bufwise_bpf::{GroupPattern, Matching, RUN_PREFIX};
use bufwise_socket::diag::{Connection, State};

use super::task::Task;
use crate::processes::printable_path;
use crate::tuner::plan::Plan;

/// The connections in a daemon's scope, known while an engine has no room for more records.
#[derive(Clone, Debug, Default)]
pub(super) struct Scope {
    /// Which parts have no room, in the order of [`Task::parts`].
    is_full: Vec<bool>,
    /// Paths of the daemon's cgroups, as shown; empty: the whole host.
    cgroups: Vec<String>,
    matching: Matching,
    /// The groups' cgroups, in the order of the groups.
    groups: Vec<Option<GroupPattern>>,
    /// Cgroups met so far, by number: a bit for each group that matches; `None`: outside the daemon's scope.
    known: HashMap<u64, Option<u32>>,
}

impl Scope {
    /// Returns the scope of a task whose parts have `records` connections. A sweep fills room that has become free,
    /// so a part counts as full until a tenth of its room is free; the log uses the same bound.
    pub(super) fn new(task: &Task, records: &[usize]) -> Self {
        let is_full = |(plan, records): (&Plan, &usize)| {
            let most = plan.max_connections as usize;
            *records >= most - most / 10
        };
        Self {
            is_full: task.parts().map(|(_, plan)| plan).zip(records).map(is_full).collect(),
            cgroups: task.cgroups.iter().map(|cgroup| printable_path(cgroup.path())).collect(),
            matching: task.matching.clone(),
            groups: task.groups.iter().map(|group| group.conditions.cgroup.clone()).collect(),
            known: HashMap::new(),
        }
    }

    /// Returns whether [`Self::leaves_out`] depends on the programs that hold the connections.
    pub(super) fn asks_for_programs(&self) -> bool {
        self.is_full.contains(&true) && self.matching.asks_for_programs()
    }

    /// Returns whether a connection of that program has no record for lack of room; `path` returns a cgroup's path, as
    /// shown, by its number.
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

/// Returns a bit for each group that matches the cgroup; `None` if the cgroup is outside the daemon's scope.
fn groups_of(cgroups: &[String], groups: &[Option<GroupPattern>], cgroup: Option<&str>) -> Option<u32> {
    let asks = |group: &Option<GroupPattern>| {
        group.as_ref().zip(cgroup).is_some_and(|(group, path)| group.has(path))
    };
    let bits = groups.iter().enumerate().map(|(number, group)| u32::from(asks(group)) << number);
    is_inside(cgroups, cgroup).then(|| bits.fold(0, |all, bit| all | bit))
}

/// Returns whether the daemon tunes connections made in that cgroup: it is inside the daemon's cgroups and not inside
/// that of a `bufwise run`.
fn is_inside(cgroups: &[String], cgroup: Option<&str>) -> bool {
    // Before Linux 5.8 sockets do not report their cgroup.
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
        let asks = |records: [usize; 2]| Scope::new(&task, &records).asks_for_programs();
        assert!(asks([9, 0]) && !asks([0, 0]));
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
