//! Many connections, and what they hold together.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::ConnectionView;
use crate::budget::Budget;

/// Many connections and what they hold together.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// Sums over all of them.
    pub summary: Summary,
    /// A daemon's memory; `null` without one.
    #[serde(default)]
    pub budget: Option<Budget>,
    /// Each connection.
    pub connections: Vec<ConnectionView>,
    /// Connections that a daemon's list leaves out, because it is bounded.
    #[serde(default)]
    pub unlisted_connections: u64,
    /// Remarks on the list for people; one line each.
    pub notes: Vec<String>,
}

impl Listing {
    /// Adds a daemon's list to what socket diagnostics showed: its figures of the connections that it sizes, and those that
    /// were not seen from here.
    pub fn with_daemon(mut self, daemon: Self) -> Self {
        let mut known: HashMap<u64, ConnectionView> =
            daemon.connections.into_iter().map(|one| (one.cookie, one)).collect();
        for one in &mut self.connections {
            if let Some(known) = known.remove(&one.cookie) {
                one.take_over(&known);
            }
        }
        self.connections.extend(known.into_values());
        self.notes.extend(daemon.notes);
        self.budget = daemon.budget;
        self.unlisted_connections = daemon.unlisted_connections;
        let sized = self.connections.iter().filter(|one| one.policy.is_some()).count() as u64;
        let Summary { budget_bytes, pressure, .. } = daemon.summary;
        let summary = Summary::of(&self.connections);
        self.summary = Summary { budget_bytes, pressure, sized_connections: Some(sized), ..summary };
        self
    }
}

/// Memory that connections hold and may hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// How many there are.
    pub connections: u64,
    /// Content of their send queues.
    pub send_queued_bytes: u64,
    /// Content of their receive queues.
    pub receive_queued_bytes: u64,
    /// Sum of the send buffers' limits.
    pub send_allowed_bytes: u64,
    /// Sum of the receive buffers' limits.
    pub receive_allowed_bytes: u64,
    /// Memory that the limits allow beyond need.
    pub waste_bytes: u64,
    /// The daemon's budget for send queues; `null` without a daemon.
    pub budget_bytes: Option<u64>,
    /// Whether the daemon is short of memory ([`Budget::pressure`] says why); `null` without a daemon.
    pub pressure: Option<bool>,
    /// How many of the connections the daemon sizes; `null` without a daemon.
    #[serde(default)]
    pub sized_connections: Option<u64>,
}

impl Summary {
    /// The sums over these connections; the daemon's part is left open.
    pub fn of<'a>(connections: impl IntoIterator<Item = &'a ConnectionView>) -> Self {
        let mut sums = Self::default();
        connections.into_iter().for_each(|one| sums.add(one));
        sums
    }

    /// Adds a connection.
    pub fn add(&mut self, one: &ConnectionView) {
        self.connections += 1;
        self.send_queued_bytes += one.send_queued_bytes;
        self.receive_queued_bytes += one.receive_queued_bytes;
        self.send_allowed_bytes += one.send_buffer_bytes;
        self.receive_allowed_bytes += one.receive_buffer_bytes;
        self.waste_bytes += one.waste_bytes;
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
