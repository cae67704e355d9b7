//! Both ends of connections within this host, in whichever network namespaces they are.

use std::collections::HashMap;
use std::net::SocketAddr;

use bufwise_host::judge::Limited;
use bufwise_host::view::ConnectionView;
use serde::Serialize;

use super::watch::Watched;

/// The other end of a connection, as seen on this host.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct OtherEnd {
    pub(super) netns: String,
    pub(super) pid: Option<i32>,
    pub(super) process: Option<String>,
    pub(super) limited: Option<Limited>,
}

/// The ends by their addresses. Ends with the same addresses in several namespaces cannot be told apart and have no
/// value.
pub(super) struct Ends(HashMap<(SocketAddr, SocketAddr), Option<OtherEnd>>);

impl Ends {
    pub(super) fn of(watched: &[Watched]) -> Self {
        let mut ends = HashMap::new();
        for Watched { view, .. } in watched {
            let end = OtherEnd {
                netns: view.netns.clone(),
                pid: view.pid,
                process: view.process.clone(),
                limited: view.limited,
            };
            ends.entry((view.local, view.peer)).and_modify(|one| *one = None).or_insert(Some(end));
        }
        Self(ends)
    }

    /// Returns the other end of the connection, if it is on this host.
    pub(super) fn other(&self, view: &ConnectionView) -> Option<&OtherEnd> {
        let own = self.0.get(&(view.local, view.peer))?;
        self.0.get(&(view.peer, view.local))?.as_ref().filter(|_| own.is_some())
    }
}

impl OtherEnd {
    /// Returns its program, as `curl (123)`.
    pub(super) fn program(&self) -> Option<String> {
        Some(format!("{} ({})", self.process.as_ref()?, self.pid?))
    }
}
