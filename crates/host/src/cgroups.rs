//! Names of cgroups: a socket reports the number of the cgroup in which it was made; the hierarchy has the paths.
//!
//! The kernel reports the number since Linux 5.8; without cgroup v2 no number has a path.

use std::collections::HashMap;
use std::os::fd::AsFd;

use bufwise_bpf::{CgroupError, Group, now};
use nix::sys::stat::fstat;

use crate::containers::{Container, Containers};
use crate::processes::printable_path;
use crate::search::Search;

/// Paths of cgroups by their numbers, looked up at the first request.
#[derive(Debug, Default)]
pub struct Cgroups {
    search: Search<HashMap<u64, String>, String>,
    unavailable: Option<String>,
    containers: Containers,
}

impl Cgroups {
    /// Returns the path as in `/proc/PID/cgroup`; `unknown (NUMBER)` for a group that is gone or out of reach. `None`
    /// without cgroup v2, or if `number` is 0 (not reported by the kernel).
    pub fn name(&mut self, number: u64) -> Option<String> {
        let path = self.path(number);
        // Where the last search has found no hierarchy, the groups that were found before keep their names.
        path.or_else(|| (number != 0 && self.unavailable.is_none()).then(|| unnamed(number)))
    }

    /// Returns the path; `None` also for a group that is gone or out of reach.
    pub(crate) fn path(&mut self, number: u64) -> Option<String> {
        self.path_by(number, paths)
    }

    /// As [`Cgroups::path`], with a walk through the hierarchy that may fail, as for lack of descriptors.
    fn path_by(
        &mut self,
        number: u64,
        walk: impl FnOnce() -> Result<HashMap<u64, String>, CgroupError>,
    ) -> Option<String> {
        if number == 0 {
            return None;
        }
        let unavailable = &mut self.unavailable;
        let walk = || {
            let walked = walk();
            *unavailable = walked.as_ref().err().map(ToString::to_string);
            walked.unwrap_or_default()
        };
        self.search.find(number, walk, |paths| paths.get(&number).cloned())
    }

    /// Returns the container that a group is part of; `None` also for a group without a path.
    pub fn container(&mut self, number: u64) -> Option<Box<Container>> {
        let path = self.path(number)?;
        self.containers.of(number, &path, now())
    }

    /// Returns the group's name for people: its container's name, or else its path.
    pub(crate) fn label(&mut self, number: u64) -> Option<String> {
        match self.container(number) {
            Some(container) => Some(container.label()),
            None => self.path(number),
        }
    }

    /// Forgets names that were not requested since the last call; call this after each list of connections.
    pub fn settle(&mut self) {
        self.search.settle();
        if self.unavailable.is_some() {
            self.search.forget_missing();
        }
        self.containers.settle();
    }

    /// Returns how many groups are remembered.
    #[cfg(test)]
    pub(crate) fn remembered(&self) -> usize {
        self.search.known()
    }

    /// Returns why no group has a name, if the last search of [`Cgroups::name`] has failed to find the hierarchy.
    #[must_use]
    pub fn unavailable(&self) -> Option<&str> {
        self.unavailable.as_deref()
    }
}

/// Returns the name of a group without a path.
pub(crate) fn unnamed(number: u64) -> String {
    format!("unknown ({number})")
}

/// Returns the paths of all cgroups by their numbers. Control characters are replaced, because names go to terminals.
fn paths() -> Result<HashMap<u64, String>, CgroupError> {
    let mut paths = HashMap::new();
    Group::walk(&mut |group| {
        if let Ok(status) = fstat(group.as_fd()) {
            paths.insert(status.st_ino, printable_path(group.path()));
        }
    })?;
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroups_have_the_numbers_that_sockets_tell() {
        let Ok(root) = bufwise_bpf::hierarchy() else { return bufwise_trial::skip("no cgroup v2") };
        let mut cgroups = Cgroups::default();
        let number = fstat(root).unwrap().st_ino;
        assert_eq!(cgroups.name(number).as_deref(), Some("/"));
        assert_eq!((cgroups.name(u64::MAX), cgroups.path(u64::MAX)), (Some(unnamed(u64::MAX)), None));
        assert_eq!((cgroups.name(0), cgroups.container(0), cgroups.unavailable()), (None, None, None));
        assert_eq!((cgroups.container(number), cgroups.label(number)), (None, Some("/".to_owned())));
    }

    #[test]
    fn without_a_hierarchy_no_group_has_a_name() {
        let failure = || CgroupError::Hierarchy(std::io::ErrorKind::NotFound.into());
        let mut cgroups = Cgroups::default();
        assert_eq!(cgroups.path_by(7, || Err(failure())), None);
        let why = failure().to_string();
        assert_eq!((cgroups.name(7), cgroups.unavailable()), (None, Some(why.as_str())));
        // The next search may find it.
        cgroups.settle();
        cgroups.search.allow();
        let paths = || Ok(HashMap::from([(7, "/a".to_owned())]));
        assert_eq!(cgroups.path_by(7, paths).as_deref(), Some("/a"));
        assert_eq!((cgroups.name(7).as_deref(), cgroups.unavailable()), (Some("/a"), None));
        cgroups.settle();
        cgroups.search.allow();
        assert_eq!(cgroups.path_by(8, || Err(failure())), None);
        assert_eq!((cgroups.name(7).as_deref(), cgroups.name(8)), (Some("/a"), None), "it was found before");
    }
}
