//! The connections that a daemon sizes, each with its part of the configuration.

use std::collections::HashMap;

use bufwise_bpf::FlowState;
use bufwise_units::Micros;

use super::{ConnectionView, PolicyNames};

/// A part of the connections: those of one group, or those in no group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    /// Name of the group; `None`: the connections in no group.
    pub(crate) group: Option<String>,
    pub(crate) policy: PolicyNames,
}

/// The open connections of all parts, by cookie.
#[derive(Debug, Default)]
pub(crate) struct Sized {
    parts: Vec<Part>,
    flows: HashMap<u64, (usize, FlowState)>,
}

impl Sized {
    /// Collects the open connections of all parts.
    pub(crate) fn new(all: Vec<(Part, Vec<FlowState>)>) -> Self {
        let mut sized = Self::default();
        for (number, (part, flows)) in all.into_iter().enumerate() {
            sized.parts.push(part);
            let open = flows.into_iter().filter(|flow| !flow.closed);
            sized.flows.extend(open.map(|flow| (flow.cookie, (number, flow))));
        }
        sized
    }

    pub(crate) fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Returns the number of connections of each part.
    pub(crate) fn counts(&self) -> Vec<usize> {
        let mut counts = vec![0; self.parts.len()];
        self.flows.values().for_each(|(part, _)| counts[*part] += 1);
        counts
    }

    pub(crate) fn flows(&self) -> impl Iterator<Item = &FlowState> {
        self.flows.values().map(|(_, flow)| flow)
    }

    /// Returns a connection with the number of its part.
    pub(crate) fn get(&self, cookie: u64) -> Option<(usize, &FlowState)> {
        self.flows.get(&cookie).map(|(part, flow)| (*part, flow))
    }

    /// Returns the policies of a connection, if the daemon sizes it.
    pub(crate) fn policy(&self, cookie: u64) -> Option<&PolicyNames> {
        let (part, _) = self.get(cookie)?;
        self.parts.get(part).map(|part| &part.policy)
    }

    /// Adds the daemon's figures at `at` to a view of the same connection.
    pub(crate) fn complete(&self, view: ConnectionView, at: Micros) -> ConnectionView {
        let Some((number, flow)) = self.get(view.cookie) else { return view };
        let Some(part) = self.parts.get(number) else { return view };
        ConnectionView { group: part.group.clone(), ..view.with_flow(flow, &part.policy, at) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tuner::tests::flow;
    use crate::view::tests::connection_view;

    #[test]
    fn a_view_is_completed_by_the_part_that_has_the_connection() {
        let part = |group: Option<&str>, policy: &str| Part {
            group: group.map(str::to_owned),
            policy: PolicyNames { send: policy.to_owned(), receive: "kernel".to_owned() },
        };
        let over = FlowState { closed: true, ..flow(3, 0) };
        let sized = Sized::new(vec![
            (part(Some("db"), "sabt"), vec![flow(1, 0)]),
            (part(None, "abt"), vec![flow(2, 0), over]),
        ]);
        let told = |cookie| {
            let view = sized.complete(ConnectionView { cookie, ..connection_view() }, Micros::ZERO);
            (view.group, view.policy.map(|policy| policy.send))
        };
        assert_eq!(told(1), (Some("db".to_owned()), Some("sabt".to_owned())));
        assert_eq!(told(2), (None, Some("abt".to_owned())));
        assert_eq!(told(3), (None, connection_view().policy.map(|policy| policy.send)));
        assert_eq!(sized.get(1).map(|(part, _)| part), Some(0));
        assert_eq!(sized.counts(), [1, 1]);
    }
}
