//! Answers to `ls`, `explain`, `check` and `metrics`: from the sockets, and from the engine's records. The history answers by
//! itself.

use std::collections::HashMap;
use std::thread;
use std::time::Duration;

use bufwise_bpf::{FlowState, now};
use bufwise_socket::diag::Connection;
use bufwise_socket::limit::Look;
use bufwise_units::{Bytes, Micros};

use super::event::Facts;
use super::shell::Shell;
use crate::control::message::{Memory, Status};
use crate::control::{Reply, Request};
use crate::error::{Result, in_words};
use crate::processes::Holders;
use crate::tuner;
use crate::view::{ConnectionView, Listing, Part, Seen, Sized, Summary};

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

    /// Connections that the engine's side knows.
    pub(super) fn sized(&self) -> Result<Sized> {
        Ok(Sized::new(self.running.parts()?))
    }

    fn status(&mut self, facts: &Facts) -> Result<Status> {
        let sized = self.sized()?;
        let mut memory = Memory { budget_bytes: facts.budgets.0.0, ..Memory::default() };
        let (mut own, mut held) = (0, vec![0; sized.parts().len()]);
        for connection in self.namespaces.connections()?.iter().flat_map(|(_, connections)| connections) {
            if let Some((part, _)) = sized.get(connection.cookie) {
                held[part] += u64::from(connection.mem.wmem_queued);
                memory.held_receive_bytes += u64::from(connection.mem.rmem_alloc);
                own += 1;
            }
        }
        memory.held_send_bytes = held.iter().sum();
        memory.pressure = is_pressed(&held, &self.running.budgets());
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: facts.uptime.as_secs_f64(),
            policy: facts.plan.choice.into(),
            dry_run: facts.plan.observe_only,
            paused: facts.paused,
            connections: own,
            tuned_connections: sized.flows().filter(|flow| flow.is_touched()).count() as u64,
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
        let (sized, holders) = (self.sized()?, Holders::scan());
        let (mut connections, mut writers) = (Vec::new(), vec![Vec::new(); sized.parts().len()]);
        let mut held = vec![0; sized.parts().len()];
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
                if let Some((part, flow)) = sized.get(connection.cookie) {
                    held[part] += view.send_queued_bytes;
                    writers[part].extend((view.send_queued_bytes > 0).then_some(flow));
                }
                connections.push(sized.complete(view, at));
            }
        }
        self.cgroups.settle();
        let budgets = self.running.budgets();
        let mut summary = Summary::of(&connections);
        summary.budget_bytes = Some(facts.budgets.0.0);
        summary.pressure = Some(is_pressed(&held, &budgets));
        let parts = sized.parts().iter().zip(writers).zip(budgets);
        let shortage = |((part, writers), (budget, _)): ((&Part, Vec<&FlowState>), (Bytes, Bytes))| {
            let text = tuner::shortage(writers.into_iter(), budget)?;
            Some(match &part.group {
                Some(name) => format!("group {name}: {text}"),
                None => text,
            })
        };
        let notes = parts.filter_map(shortage).collect();
        Ok(Listing { summary, connections, notes })
    }
}

/// A part's send queues hold more than its budget.
fn is_pressed(held: &[u64], budgets: &[(Bytes, Bytes)]) -> bool {
    held.iter().zip(budgets).any(|(held, (budget, _))| *held > budget.0)
}

pub(super) fn look(connection: &Connection, at: Micros) -> Look {
    Look { at, info: connection.info, mem: connection.mem }
}
