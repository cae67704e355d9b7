//! Answers to `check` and `metrics`: from the sockets, and from the engine's records. The lister answers `ls` and `explain`, the
//! history by itself.

use super::event::Facts;
use super::shell::Shell;
use crate::budget::Census;
use crate::control::message::{Memory, Status};
use crate::control::{Reply, Request};
use crate::error::{Result, in_words};
use crate::tcp_memory::TcpMemory;
use crate::view::Sized;

impl Shell {
    /// Answers at once, or nearly so. Other requests are the state machine's, or a thread's.
    pub(super) fn describe(&mut self, request: &Request, facts: &Facts) -> Reply {
        let reply = match request {
            Request::Status => self.status(facts).map(Reply::Status),
            Request::Metrics => self.metrics(facts).map(|snapshot| Reply::Metrics(Box::new(snapshot))),
            Request::List | Request::Explain { .. } | Request::History(_) | Request::Restore => {
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
        let (sized, mut census) = (self.sized()?, Census::new(&facts.parts));
        for connection in self.namespaces.connections()?.iter().flat_map(|(_, connections)| connections) {
            if let Some((part, _)) = sized.get(connection.cookie) {
                census.add(connection, part);
            }
        }
        let budget = census.finish(TcpMemory::now());
        Ok(Status {
            pid: std::process::id(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: facts.uptime.as_secs_f64(),
            policy: facts.plan.choice.into(),
            dry_run: facts.plan.observe_only,
            paused: facts.paused,
            connections: budget.connections,
            tuned_connections: sized.flows().filter(|flow| flow.is_touched()).count() as u64,
            memory: Memory {
                budget_bytes: budget.send.budget_bytes,
                held_send_bytes: budget.send.held_bytes,
                held_receive_bytes: budget.receive.held_bytes,
                pressure: budget.is_short(),
            },
            notes: Vec::new(),
        })
    }
}
