//! The part of a moment that belongs to the subject of a history: a peer, a network or a cgroup.

use bufwise_host::history::{Moment, Sums};

use crate::ls::{Network, Subject, is_below};

impl Subject {
    /// Returns the sums of a moment to which the subject contributes.
    pub(super) fn sums<'a>(&self, moment: &'a Moment) -> Vec<&'a Sums> {
        let networks = |wanted: Network| {
            let is_part =
                move |sums: &&Sums| Network::read(&sums.name).is_some_and(|one| one.overlaps(wanted));
            moment.prefixes.iter().filter(is_part).collect()
        };
        match self {
            Self::Address(address) => address.ip().map_or_else(Vec::new, |ip| networks(Network::of_one(ip))),
            Self::Network(network) => networks(*network),
            Self::Cgroup(path) => moment.cgroups.iter().filter(|sums| is_below(&sums.name, path)).collect(),
        }
    }

    /// Removes from a moment what does not belong to the subject; the total stays that of all connections.
    pub(super) fn narrow(&self, moment: &mut Moment) {
        let sums: Vec<Sums> = self.sums(moment).into_iter().cloned().collect();
        moment.connections.retain(|one| self.has(&one.view));
        let (prefixes, cgroups) =
            if matches!(self, Self::Cgroup(_)) { (Vec::new(), sums) } else { (sums, Vec::new()) };
        (moment.prefixes, moment.cgroups) = (prefixes, cgroups);
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::moment;
    use super::*;

    #[test]
    fn connections_and_sums_are_those_that_belong_to_it() {
        // One connection is to 198.18.0.2:443, in /system.slice/rsync.service, the other to 198.18.7.7:80, in
        // /user.slice.
        for (text, connections, sums) in [
            ("198.18.0.2", 1, 1),
            ("443", 1, 0),
            ("198.18.0.0/24", 1, 1),
            ("198.18.0.0/16", 2, 2),
            ("198.18.0.128/25", 0, 1),
            ("0.0.0.0/0", 2, 2),
            ("198.18.9.9", 0, 0),
            ("fd00::2", 0, 0),
            ("/system.slice", 1, 1),
            ("/system.slice/rsync.service", 1, 1),
            ("/system", 0, 0),
            ("/", 2, 2),
        ] {
            let mut narrowed = moment(0);
            text.parse::<Subject>().unwrap().narrow(&mut narrowed);
            assert_eq!(narrowed.connections.len(), connections, "{text}");
            assert_eq!(narrowed.prefixes.len() + narrowed.cgroups.len(), sums, "{text}");
        }
    }
}
