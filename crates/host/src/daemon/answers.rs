//! Answers to `ls`, `explain`, `check` and `metrics`: from the sockets, and from the engine's records. The history answers by
//! itself.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use bufwise_bpf::{Engine, FlowState, now};
use bufwise_socket::diag::Connection;
use bufwise_socket::limit::Look;
use bufwise_units::Micros;

use super::event::Facts;
use super::shell::Shell;
use crate::control::message::{Memory, Status};
use crate::control::{Reply, Request};
use crate::error::{Result, in_words};
use crate::processes::Holders;
use crate::tuner;
use crate::view::{ConnectionView, Listing, PolicyNames, Seen, Summary};

/// Rates are of the time between two looks at the sockets.
const BETWEEN: Duration = Duration::from_millis(100);

impl Shell {
    /// Answers at once, or nearly so. [`Request::Restore`] is the state machine's.
    pub(super) fn describe(&mut self, request: &Request, facts: &Facts) -> Reply {
        let reply = match request {
            Request::Status => self.status(facts).map(Reply::Status),
            Request::List => self.list(facts, |_| true, true).map(Reply::list),
            Request::Explain { address } => {
                self.list(facts, |one| address.matches(one.local, one.peer), false).map(Reply::list)
            }
            Request::Metrics => self.metrics(facts).map(|snapshot| Reply::Metrics(Box::new(snapshot))),
            Request::History(_) | Request::Restore => {
                Ok(Reply::Error("the daemon is busy: try again".to_owned()))
            }
        };
        reply.unwrap_or_else(|error| Reply::Error(in_words(&error)))
    }

    /// Connections that the engine's side knows, by cookie.
    pub(super) fn flows(&self) -> Result<HashMap<u64, FlowState>> {
        let flows = self.engine.as_ref().map_or_else(|| Ok(Vec::new()), Engine::flows)?;
        Ok(flows.into_iter().filter(|flow| !flow.closed).map(|flow| (flow.cookie, flow)).collect())
    }

    fn status(&mut self, facts: &Facts) -> Result<Status> {
        let flows = self.flows()?;
        let mut memory = Memory { budget_bytes: facts.plan.budget.0, ..Memory::default() };
        let mut own = 0;
        for connection in self.namespaces.connections()?.iter().flat_map(|(_, connections)| connections) {
            if flows.contains_key(&connection.cookie) {
                memory.held_send_bytes += u64::from(connection.mem.wmem_queued);
                memory.held_receive_bytes += u64::from(connection.mem.rmem_alloc);
                own += 1;
            }
        }
        memory.pressure = memory.held_send_bytes > memory.budget_bytes;
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: facts.uptime.as_secs_f64(),
            policy: facts.plan.choice.into(),
            dry_run: facts.plan.observe_only,
            paused: facts.paused,
            connections: own,
            tuned_connections: flows.values().filter(|flow| flow.is_touched()).count() as u64,
            memory,
            notes: Vec::new(),
        })
    }

    fn list(&mut self, facts: &Facts, wanted: impl Fn(&Connection) -> bool, twice: bool) -> Result<Listing> {
        let mut looks: HashMap<u64, Look> = HashMap::new();
        if twice {
            let at = now();
            for connection in self.namespaces.connections()?.iter().flat_map(|(_, all)| all) {
                looks.insert(connection.cookie, look(connection, at));
            }
            thread::sleep(BETWEEN);
        }
        let (flows, holders) = (self.flows()?, Holders::scan());
        let policy = PolicyNames::from(facts.plan.choice);
        let (mut connections, mut writers) = (Vec::new(), Vec::new());
        for (netns, all) in self.namespaces.connections()? {
            let at = now();
            for connection in all.iter().filter(|one| wanted(one)) {
                let previous = looks.get(&connection.cookie);
                let process = holders.of(connection.inode);
                let cgroup = self.cgroups.name(connection.cgroup);
                let view = ConnectionView::new(&Seen {
                    netns: &netns,
                    cgroup: cgroup.as_deref(),
                    process,
                    connection,
                    at,
                    previous,
                    period: None,
                });
                connections.push(match flows.get(&connection.cookie) {
                    Some(flow) => {
                        writers.extend((view.send_queued_bytes > 0).then_some(flow));
                        view.with_flow(flow, &policy, at)
                    }
                    None => view,
                });
            }
        }
        self.cgroups.settle();
        let budget = facts.plan.budget;
        let mut summary = Summary::of(&connections);
        summary.budget_bytes = Some(budget.0);
        summary.pressure = Some(summary.send_queued_bytes > budget.0);
        let notes = tuner::shortage(writers.into_iter(), budget).into_iter().collect();
        Ok(Listing { summary, connections, notes })
    }
}

pub(super) fn look(connection: &Connection, at: Micros) -> Look {
    Look { at, info: connection.info, mem: connection.mem }
}
