//! Gathering the metrics: at most once a second, and at most a fiftieth of the loop's time.
//!
//! Causes and rates belong to the time between two snapshots. The sockets' figures of the last one are kept for that, some
//! 400 bytes for each connection, from the first time that somebody asks.

use std::collections::HashMap;

use bufwise_bpf::{ProgramInfo, now};
use bufwise_socket::limit::Look;
use bufwise_units::{Bytes, Micros};

use super::answers::look;
use super::event::Facts;
use super::shell::Shell;
use crate::error::Result;
use crate::judge::Queue;
use crate::metrics::groups::{Named, Sums};
use crate::metrics::{Distributions, EngineCost, Groups, Memory, PartFigures, Snapshot, Tally};
use crate::view::{ConnectionView, Part, PolicyNames, Seen, Sized};

/// A snapshot is given to all who ask for so long, and for so many times what it took.
const LIFE: Micros = Micros::from_millis(900);
const REST: u64 = 50;
/// Figures that are older say nothing of the present: scrapers come every two minutes at least.
const OLDEST: Micros = Micros::from_secs(150);

/// The last snapshot, and what the next one goes by.
#[derive(Debug, Default)]
pub(super) struct Scrape {
    last: Option<Snapshot>,
    /// When the last one was begun, and until when it is given again.
    at: Micros,
    until: Micros,
    looks: HashMap<u64, Look>,
    distributions: Distributions,
    named: Named,
}

impl Shell {
    /// The figures now, or those of a moment ago.
    pub(super) fn metrics(&mut self, facts: &Facts) -> Result<Snapshot> {
        let began = now();
        if let Some(last) = self.scrape.last.as_ref().filter(|_| began < self.scrape.until) {
            return Ok(last.clone());
        }
        let mut snapshot = self.gather(facts, began)?;
        let took = now().since(began);
        snapshot.gathered_s = took.as_secs_f64();
        self.scrape.at = began;
        self.scrape.until = began + life(took, snapshot.interval_s.is_some());
        self.scrape.last = Some(snapshot.clone());
        Ok(snapshot)
    }

    fn gather(&mut self, facts: &Facts, began: Micros) -> Result<Snapshot> {
        let sized = self.sized()?;
        let age = began.since(self.scrape.at);
        let before = std::mem::take(&mut self.scrape.looks);
        let interval = (self.scrape.last.is_some() && age <= OLDEST).then_some(age);
        // While it is paused there are no parts.
        let of_the_rest = PolicyNames::from(facts.plan.choice);
        let policies: Vec<_> = sized.parts().iter().map(|part| &part.policy).chain([&of_the_rest]).collect();
        let mut tally = Tally::new(&policies);
        let mut parts = part_figures(&sized, &self.running.budgets());
        let (mut waste_bytes, mut queued_connections, mut sums) = (0, 0, Sums::default());
        let namespaces = self.namespaces.connections()?;
        let at = now();
        for (netns, all) in namespaces {
            for connection in &all {
                let previous = before.get(&connection.cookie).filter(|_| interval.is_some());
                let seen = Seen {
                    netns: &netns,
                    cgroup: None,
                    process: None,
                    connection,
                    at,
                    previous,
                    period: None,
                };
                let view = ConnectionView::new(&seen);
                sums.add(connection, &view);
                tally.count(&view, sized.policy(connection.cookie));
                let look = look(connection, at);
                self.scrape.looks.insert(connection.cookie, look);
                let Some((part, _)) = sized.get(connection.cookie) else { continue };
                waste_bytes += view.waste_bytes;
                parts[part].add(&view);
                if let Some(previous) = previous {
                    self.scrape.distributions.observe(&view);
                    let mut queue = Queue::default();
                    queue.add(view.direction, previous, &look);
                    queued_connections += u64::from(queue.delay_s().is_some());
                }
            }
        }
        // Places are given by rates.
        let groups = if interval.is_some() { self.named(sums, began) } else { Groups::default() };
        let pressure = parts.iter().any(|part| part.send.held_bytes > part.send.budget_bytes);
        let (send, receive) = (facts.budgets.0.0, facts.budgets.1.0);
        Ok(Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: facts.uptime.as_secs_f64(),
            dry_run: facts.plan.observe_only,
            paused: facts.paused,
            interval_s: interval.map(Micros::as_secs_f64),
            connections: tally.into_counts(),
            queued_connections,
            send: total(&parts, send, |part| &part.send),
            receive: total(&parts, receive, |part| &part.receive),
            waste_bytes,
            pressure,
            // The last one is in no group.
            parts: parts.into_iter().rev().skip(1).rev().collect(),
            groups,
            counts: facts.counts,
            distributions: self.scrape.distributions.clone(),
            engine: cost(&self.running.programs()),
            gathered_s: 0.0,
        })
    }

    fn named(&mut self, sums: Sums, now: Micros) -> Groups {
        let groups = self.scrape.named.told(sums, now, |number| self.cgroups.path(number));
        self.cgroups.settle();
        groups
    }
}

/// Each part without connections, in the order of their numbers.
fn part_figures(sized: &Sized, budgets: &[(Bytes, Bytes)]) -> Vec<PartFigures> {
    let of = |budget: Bytes| Memory { budget_bytes: budget.0, ..Memory::default() };
    let parts = sized.parts().iter().zip(budgets);
    let figures = |(part, (send, receive)): (&Part, &(Bytes, Bytes))| PartFigures {
        group: part.group.clone().unwrap_or_default(),
        connections: 0,
        send: of(*send),
        receive: of(*receive),
    };
    parts.map(figures).collect()
}

/// The memory of all parts, whose budgets are `budget_bytes` together.
fn total(parts: &[PartFigures], budget_bytes: u64, of: fn(&PartFigures) -> &Memory) -> Memory {
    Memory {
        held_bytes: parts.iter().map(|part| of(part).held_bytes).sum(),
        allowed_bytes: parts.iter().map(|part| of(part).allowed_bytes).sum(),
        budget_bytes,
    }
}

/// How long a snapshot is given to all who ask. One without causes is only there for the next.
fn life(took: Micros, is_settled: bool) -> Micros {
    if is_settled { LIFE.max(took.times(REST)) } else { LIFE }
}

/// `None` where the kernel does not count, or does not tell.
fn cost(programs: &[ProgramInfo]) -> Option<EngineCost> {
    let (nanos, runs) = programs
        .iter()
        .fold((0, 0), |(nanos, runs), program| (nanos + program.run_nanoseconds, runs + program.runs));
    (runs > 0).then(|| EngineCost { seconds: nanos as f64 / 1e9, runs })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gathering_takes_a_fiftieth_of_the_time_at_most_and_comes_once_a_second() {
        assert_eq!(life(Micros(100), true), Micros::from_millis(900));
        assert_eq!(life(Micros::from_millis(100), true), Micros::from_secs(5));
        assert_eq!(
            life(Micros::from_millis(100), false),
            Micros::from_millis(900),
            "the second one has the causes"
        );
    }
}
