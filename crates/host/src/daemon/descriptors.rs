//! The limit of open descriptors (`RLIMIT_NOFILE`), and how many network namespaces it allows.
//!
//! Problem: a known namespace takes up to [`EACH`] descriptors, and nothing bounds how many namespaces there are: a node
//! has one for each pod, and on most hosts every user can make thousands. A daemon without a free descriptor can
//! neither search nor answer.
//! Rule: half of the descriptors are for namespaces; the rest are for engines (some 20 each, and at a reload twice as
//! many engines), cgroups of groups (2 each), clients and files that are open for a moment. Namespaces beyond that are
//! left alone: their new connections are tuned, as all are by the programs on the cgroups, but existing ones are not
//! adopted, idle buffers stay, and no bound is raised there.

use nix::sys::resource::{Resource, getrlimit, setrlimit};

/// Descriptors that are wanted, as `LimitNOFILE=` of the unit: room for 819 namespaces, three times the pods of the
/// largest nodes (250). More are not used, because each namespace also takes up to 200 KB of memory, and its settings are
/// checked each second.
const WANTED: u64 = 16_384;
/// Descriptors of a known namespace: itself; two settings and the flush of its routes; a socket each for its devices,
/// its connections and the history; two memberships in the journals; and one that a search has open. The first
/// namespace has three more.
const EACH: u64 = 10;

/// Raises the soft limit to [`WANTED`], as far as the hard limit allows. The limit stays as it is if the system
/// refuses.
pub(crate) fn raise_limit() {
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < WANTED.min(hard)
    {
        let _stays = setrlimit(Resource::RLIMIT_NOFILE, WANTED.min(hard), hard);
    }
}

/// Returns how many namespaces may be known at a time.
pub(super) fn room_for_namespaces() -> usize {
    getrlimit(Resource::RLIMIT_NOFILE).map_or(1, |(soft, _)| room(soft))
}

fn room(descriptors: u64) -> usize {
    // The daemon's own is known in any case.
    usize::try_from(descriptors.min(WANTED) / 2 / EACH).unwrap_or(usize::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_the_descriptors_are_for_namespaces_and_there_is_a_bound() {
        assert_eq!([0, 1_024, 16_384, u64::MAX].map(room), [1, 51, 819, 819]);
    }

    #[test]
    fn the_unit_has_the_limit_that_is_wanted() {
        let unit = include_str!("../../../../etc/bufwise.service");
        assert!(unit.lines().any(|line| line == format!("LimitNOFILE={WANTED}")), "{WANTED}");
    }

    #[test]
    fn the_limit_is_raised_as_far_as_it_goes() {
        raise_limit();
        let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        assert!(soft >= WANTED.min(hard), "{soft} of {hard}");
    }
}
