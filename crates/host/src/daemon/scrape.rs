//! Gathering the metrics: at most once a second, and at most a fiftieth of the loop's time.
//!
//! Causes and rates belong to the time between two snapshots. The sockets' figures of the last one are kept for that, some
//! 400 bytes for each connection, from the first time that somebody asks.

use std::collections::HashMap;

use bufwise_bpf::{ProgramInfo, now};
use bufwise_socket::limit::Look;
use bufwise_units::Micros;

use super::event::Facts;
use super::lister::look;
use super::shell::Shell;
use crate::budget::{Census, Sides, Terms};
use crate::error::Result;
use crate::judge::Queue;
use crate::metrics::groups::{Named, Sums};
use crate::metrics::{Distributions, EngineCost, Groups, PartFigures, Snapshot, Tally};
use crate::tcp_memory::TcpMemory;
use crate::view::{ConnectionView, PolicyNames, Seen};

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
        let (mut census, mut scope) = (Census::new(&facts.parts), self.running.scope(&sized));
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
                let Some((part, _)) = sized.get(connection.cookie) else {
                    if scope.leaves_out(connection, |number| self.cgroups.path(number)) {
                        census.add_untuned();
                    }
                    continue;
                };
                waste_bytes += view.waste_bytes;
                census.add(connection, part);
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
        let parts = figures(&facts.parts, census.parts());
        let budget = census.finish(TcpMemory::now());
        Ok(Snapshot {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            uptime_s: facts.uptime.as_secs_f64(),
            dry_run: facts.plan.observe_only,
            paused: facts.paused,
            interval_s: interval.map(Micros::as_secs_f64),
            connections: tally.into_counts(),
            queued_connections,
            send: budget.send.into(),
            receive: budget.receive.into(),
            waste_bytes,
            pressure: budget.is_short(),
            pressure_causes: budget.pressure.iter().map(|pressure| pressure.cause).collect(),
            untuned_connections: budget.untuned_connections,
            parts,
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

/// The groups; the last part is in none.
fn figures(terms: &[Terms], parts: &[Sides]) -> Vec<PartFigures> {
    let named = terms.iter().zip(parts).filter_map(|(terms, sides)| Some((terms.group.clone()?, sides)));
    let figures = |(group, sides): (String, &Sides)| PartFigures {
        group,
        connections: sides.connections,
        send: sides.send.into(),
        receive: sides.receive.into(),
    };
    named.map(figures).collect()
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
