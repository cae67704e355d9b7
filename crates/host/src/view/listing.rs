//! A list of connections, and the memory they hold together.

use std::collections::{BTreeMap, HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::ConnectionView;
use crate::budget::Budget;

/// A list of connections with the memory they hold together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Sums over all connections of the list.
    pub summary: Summary,
    /// A daemon's memory; `null` without one.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// The connections.
    pub connections: Vec<ConnectionView>,
    /// Connections that a daemon's list omits because its length is bounded.
    #[serde(default)]
    pub unlisted_connections: u64,
    /// Remarks on the list for people; one line each.
    pub notes: Vec<String>,
}

impl Listing {
    /// Completes a list from socket diagnostics with a daemon's: its figures of the connections that it sizes, and
    /// connections that are not visible here.
    pub fn with_daemon(self, daemon: Self) -> Self {
        Known::new(daemon, &self).add_to(self)
    }
}

/// A daemon's list, which completes lists of socket diagnostics at its time and for some time after.
#[derive(Clone, Debug)]
pub struct Known {
    /// Connections that are or were visible here as well, by cookie.
    seen: HashMap<u64, ConnectionView>,
    /// Connections that were not visible here so far, by cookie; those that have closed since disappear only with the
    /// daemon's next list.
    unseen: BTreeMap<u64, ConnectionView>,
    summary: Summary,
    budget: Option<Budget>,
    unlisted_connections: u64,
    notes: Vec<String>,
}

impl Known {
    /// Takes the daemon's list, requested at the time of `listing`.
    pub fn new(daemon: Listing, listing: &Listing) -> Self {
        let cookies: HashSet<u64> = listing.connections.iter().map(|one| one.cookie).collect();
        let Listing { summary, budget, connections, unlisted_connections, notes } = daemon;
        let is_seen = |one: &ConnectionView| cookies.contains(&one.cookie);
        let (seen, unseen): (Vec<_>, Vec<_>) = connections.into_iter().partition(is_seen);
        let seen = seen.into_iter().map(|one| (one.cookie, one)).collect();
        let unseen = unseen.into_iter().map(|one| (one.cookie, one)).collect();
        Self { seen, unseen, summary, budget, unlisted_connections, notes }
    }

    /// Completes a list of that time or a later one.
    pub fn add_to(&mut self, mut listing: Listing) -> Listing {
        for one in &mut listing.connections {
            if let Some(known) = self.seen.get(&one.cookie) {
                one.take_over(known);
            } else if let Some(known) = self.unseen.remove(&one.cookie) {
                // It began after the first of the two lists, or its namespace was found later.
                one.take_over(&known);
                self.seen.insert(one.cookie, known);
            }
        }
        listing.connections.extend(self.unseen.values().cloned());
        listing.notes.extend(self.notes.iter().cloned());
        listing.budget.clone_from(&self.budget);
        listing.unlisted_connections = self.unlisted_connections;
        let sized = listing.connections.iter().filter(|one| one.policy.is_some()).count() as u64;
        let Summary { budget_bytes, pressure, .. } = self.summary;
        let summary = Summary::of(&listing.connections);
        listing.summary = Summary { budget_bytes, pressure, sized_connections: Some(sized), ..summary };
        listing
    }
}

/// Memory that connections hold and may hold, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// Number of connections.
    pub connections: u64,
    /// Content of their send queues.
    pub send_queued_bytes: u64,
    /// Content of their receive queues.
    pub receive_queued_bytes: u64,
    /// Sum of the send buffers' limits.
    pub send_allowed_bytes: u64,
    /// Sum of the receive buffers' limits.
    pub receive_allowed_bytes: u64,
    /// Memory that the limits allow beyond need, bytes.
    pub waste_bytes: u64,
    /// The daemon's budget for send queues; `null` without a daemon.
    pub budget_bytes: Option<u64>,
    /// Whether the daemon is short of memory ([`Budget::pressure`] says why); `null` without a daemon.
    pub pressure: Option<bool>,
    /// Number of the connections that the daemon sizes; `null` without a daemon.
    #[serde(default)]
    pub sized_connections: Option<u64>,
}

impl Summary {
    /// Sums up these connections; the daemon's fields stay `None`.
    pub fn of<'a>(connections: impl IntoIterator<Item = &'a ConnectionView>) -> Self {
        let mut sums = Self::default();
        connections.into_iter().for_each(|one| sums.add(one));
        sums
    }

    /// Adds a connection, of which a daemon may have sent any figures.
    pub fn add(&mut self, one: &ConnectionView) {
        self.connections += 1;
        for (sum, bytes) in [
            (&mut self.send_queued_bytes, one.send_queued_bytes),
            (&mut self.receive_queued_bytes, one.receive_queued_bytes),
            (&mut self.send_allowed_bytes, one.send_buffer_bytes),
            (&mut self.receive_allowed_bytes, one.receive_buffer_bytes),
            (&mut self.waste_bytes, one.waste_bytes),
        ] {
            *sum = sum.saturating_add(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::connection_view;
    use crate::view::{ConnectionView, PolicyNames};

    #[test]
    fn a_daemons_list_adds_its_figures_and_hides_nothing() {
        let (own, other) = (connection_view(), connection_view());
        let policy = Some(PolicyNames { send: "abt".to_owned(), receive: "sobas".to_owned() });
        let known = ConnectionView { policy: policy.clone(), goodput_bps: None, ..own.clone() };
        let elsewhere = ConnectionView { cookie: own.cookie + other.cookie, ..own.clone() };
        let of = |connections: Vec<ConnectionView>| Listing {
            summary: Summary::of(&connections),
            connections,
            ..Listing::default()
        };
        let mut daemon = of(vec![known, elsewhere]);
        daemon.summary.budget_bytes = Some(1 << 20);
        let list = of(vec![own.clone(), other]).with_daemon(daemon);
        assert_eq!((list.connections.len(), list.summary.connections), (3, 3));
        assert_eq!((list.summary.budget_bytes, list.summary.sized_connections), (Some(1 << 20), Some(1)));
        assert_eq!(list.connections[0], ConnectionView { policy, ..own });
    }

    #[test]
    fn what_a_daemon_said_serves_later_samples_and_brings_nothing_back_that_has_ended() {
        let (own, ended, unseen) = (connection_view(), connection_view(), connection_view());
        let policy = Some(PolicyNames { send: "abt".to_owned(), receive: "sobas".to_owned() });
        let of = |connections: Vec<ConnectionView>| Listing { connections, ..Listing::default() };
        let sized = |one: &ConnectionView| ConnectionView { policy: policy.clone(), ..one.clone() };
        let mut known = Known::new(
            of(vec![sized(&own), sized(&ended), sized(&unseen)]),
            &of(vec![own.clone(), ended.clone()]),
        );
        let later = ConnectionView { goodput_bps: Some(7), ..own.clone() };
        let list = known.add_to(of(vec![later.clone()]));
        let own = ConnectionView { policy: policy.clone(), ..later.clone() };
        assert_eq!(list.connections, [own.clone(), sized(&unseen)]);
        assert_eq!((list.summary.connections, list.summary.sized_connections), (2, Some(2)));
        let list = known.add_to(of(vec![later.clone(), unseen.clone()]));
        assert_eq!(list.connections, [own.clone(), sized(&unseen)], "what becomes visible is there once");
        assert_eq!(known.add_to(of(vec![later])).connections, [own], "and goes when it ends");
    }

    #[test]
    fn figures_without_sense_are_summed_all_the_same() {
        let one = ConnectionView { waste_bytes: u64::MAX, send_buffer_bytes: u64::MAX, ..connection_view() };
        let all = Summary::of([&one, &one]);
        assert_eq!((all.waste_bytes, all.send_allowed_bytes, all.connections), (u64::MAX, u64::MAX, 2));
    }

    #[test]
    fn it_travels_as_json_and_back() {
        let one = connection_view();
        let listing = Listing {
            summary: Summary::of(std::slice::from_ref(&one)),
            connections: vec![one],
            ..Listing::default()
        };
        assert_eq!((listing.summary.connections, listing.summary.send_allowed_bytes), (1, 4_000_000));
        let text = serde_json::to_string(&listing).unwrap();
        assert_eq!(serde_json::from_str::<Listing>(&text).unwrap(), listing);
    }
}
