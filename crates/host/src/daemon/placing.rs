//! Decides which part a connection belongs to if the programs could not: the connection is older than they are, or
//! its cgroup or its listener's program was unknown to them.
//!
//! The programs place new connections by themselves (`group_of.h`). This module uses the same facts (what the
//! programs were told and have seen), so that no connection is passed back and forth.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;

use bufwise_bpf::{Engine, FlowState, Matching, Owners};
use bufwise_socket::diag::{Connection, State};

use super::namespaces::Namespaces;
use crate::error::Result;
use crate::processes::name_of;

/// Programs of sockets that user space has found: by the socket's cookie, a bit for each group that matches the
/// program.
#[derive(Debug, Default)]
pub(super) struct Programs(HashMap<u64, u32>);

impl Programs {
    /// Finds the programs of listeners, and of connections whose program the engines have not seen, and reports them
    /// to the engines. `seen` holds the cookies of connections whose program was seen. Returns whether any connection
    /// was reported.
    pub(super) fn search<'a>(
        &mut self,
        matching: &Matching,
        engines: &(impl Iterator<Item = &'a Engine> + Clone),
        seen: &HashSet<u64>,
        namespaces: &mut Namespaces,
    ) -> Result<bool> {
        if !matching.asks_for_programs() {
            return Ok(false);
        }
        let (owners, mut groups_of) = (Owners::scan(), HashMap::new());
        let (mut met, mut any_connection) = (HashSet::new(), false);
        for one in namespaces.sockets()? {
            met.insert(one.cookie);
            let Some(pid) = owners.process(one.inode.into()) else { continue };
            let groups = *groups_of.entry(pid).or_insert_with(|| matching.groups_of_program(&name_of(pid)));
            if !self.is_news(&one, groups, seen) {
                continue;
            }
            let Some(socket) = owners.socket(one.inode.into(), one.cookie) else { continue };
            // A socket that has closed meanwhile, or that the kernel refuses, keeps its part.
            if engines.clone().all(|engine| engine.set_program_groups(socket.as_fd(), groups).is_ok()) {
                self.0.insert(one.cookie, groups);
                any_connection |= one.state != State::Listen;
            }
        }
        self.0.retain(|cookie, _| met.contains(cookie));
        Ok(any_connection)
    }

    /// Returns whether to report a socket to the engines. The program that they have seen for a connection is kept:
    /// it may have another name since. A listener may have passed to another program.
    fn is_news(&self, one: &Connection, groups: u32, seen: &HashSet<u64>) -> bool {
        let told = self.0.get(&one.cookie);
        match one.state {
            State::Listen => told.copied().unwrap_or_default() != groups,
            _ => groups != 0 && told.is_none() && !seen.contains(&one.cookie),
        }
    }
}

/// Finds the part of each connection.
pub(super) struct Judge<'a> {
    matching: &'a Matching,
    cgroups: Vec<HashSet<u64>>,
    programs: &'a Programs,
    connections: HashMap<u64, Connection>,
}

impl<'a> Judge<'a> {
    /// Takes, for each group, the numbers of its cgroups and of those below them.
    pub(super) fn new(matching: &'a Matching, cgroups: Vec<HashSet<u64>>, programs: &'a Programs) -> Self {
        Self { matching, cgroups, programs, connections: HashMap::new() }
    }

    /// Adds the present connections.
    pub(super) fn with_connections(self, namespaces: &mut Namespaces) -> Result<Self> {
        let connections = namespaces.sockets()?.into_iter().map(|one| (one.cookie, one)).collect();
        Ok(Self { connections, ..self })
    }

    /// Returns the number of the part of a record's connection, as in [`super::task::Task::parts`]; `None` if the
    /// connection is gone.
    pub(super) fn part(&self, flow: &FlowState) -> Option<usize> {
        self.connections.get(&flow.cookie).map(|one| self.part_of(one, flow.program_groups))
    }

    /// Returns the part of a connection; `seen` is the engines' record of its program.
    pub(super) fn part_of(&self, one: &Connection, seen: Option<u32>) -> usize {
        let bit =
            |(number, numbers): (usize, &HashSet<u64>)| u32::from(numbers.contains(&one.cgroup)) << number;
        let cgroups = self.cgroups.iter().enumerate().map(bit).fold(0, |all, bit| all | bit);
        let programs = self.programs.0.get(&one.cookie).copied().or(seen).unwrap_or_default();
        self.matching.group_of(cgroups, programs, one.local, one.peer).unwrap_or(self.cgroups.len())
    }
}

#[cfg(test)]
mod tests {
    use super::super::task::tests::configured;
    use super::*;
    use crate::tuner::tests::flow;

    fn connection(cookie: u64, cgroup: u64, peer: &str) -> Connection {
        let found = crate::view::tests::connection();
        Connection { cookie, cgroup, peer: peer.parse().unwrap(), state: State::Established, ..found }
    }

    fn group(name: &str, conditions: &str) -> String {
        format!("[[group]]\nname = \"{name}\"\n{conditions}\n")
    }

    #[test]
    fn a_connection_is_of_the_first_group_that_has_all_it_asks_for() {
        let task = configured(
            &[
                group("a", "cgroup = \"x\"\nport = 443"),
                group("b", "process = \"rsync\""),
                group("c", "cgroup = \"x\""),
            ]
            .concat(),
        );
        let mut judge = Judge {
            matching: &task.matching,
            cgroups: vec![HashSet::from([7, 8]), HashSet::new(), HashSet::from([7, 8])],
            programs: &Programs(HashMap::from([(9, 0b10)])),
            connections: HashMap::new(),
        };
        let part = |cookie, cgroup, peer, seen| judge.part_of(&connection(cookie, cgroup, peer), seen);
        assert_eq!(part(1, 8, "198.18.0.2:443", Some(0b10)), 0);
        assert_eq!(part(1, 8, "198.18.0.2:80", Some(0b10)), 1);
        assert_eq!((part(1, 8, "198.18.0.2:80", None), part(1, 6, "198.18.0.2:443", None)), (2, 3));
        assert_eq!((part(9, 8, "198.18.0.2:80", None), part(9, 6, "198.18.0.2:80", Some(0))), (1, 1));
        assert_eq!(judge.part(&flow(1, 0)), None, "it is gone");
        judge.connections.insert(1, connection(1, 8, "198.18.0.2:80"));
        assert_eq!(judge.part(&FlowState { program_groups: Some(0b10), ..flow(1, 0) }), Some(1));
    }

    #[test]
    fn the_engines_are_told_once_of_what_they_have_not_seen_and_of_a_listener_as_often_as_it_changes() {
        let programs = Programs(HashMap::from([(1, 0b1), (2, 0b1)]));
        let seen = HashSet::from([3]);
        let is_news = |cookie, state, groups| {
            programs.is_news(&Connection { state, ..connection(cookie, 0, "198.18.0.2:80") }, groups, &seen)
        };
        let established = State::Established;
        assert!(is_news(4, established, 0b1) && !is_news(4, established, 0));
        assert!(!is_news(1, established, 0b10) && !is_news(3, established, 0b1));
        assert!(is_news(2, State::Listen, 0) && is_news(5, State::Listen, 0b1));
        assert!(!is_news(2, State::Listen, 0b1) && !is_news(5, State::Listen, 0));
    }
}
