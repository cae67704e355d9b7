//! Gathers the metrics: at most once a second, and in at most a fiftieth of the thread's time.
//!
//! Causes and rates belong to the time between two snapshots. For them the sockets' figures of the last snapshot are
//! kept, some 400 bytes per connection, from the first request on.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use bufwise_bpf::{ProgramInfo, now, processor_time};
use bufwise_socket::limit::SocketSample;
use bufwise_units::Micros;

use super::answers::{Listed, listed};
use super::lister::Inquiry;
use super::recorder::Watched;
use crate::budget::{Census, Sides, Terms};
use crate::cgroups::Cgroups;
use crate::judge::Queue;
use crate::metrics::groups::{Named, Sums};
use crate::metrics::{Distributions, EngineCost, Groups, PartFigures, Snapshot, Tally};
use crate::processes::Holders;
use crate::tcp_memory::TcpMemory;
use crate::view::{ConnectionView, PolicyNames, Seen};

/// Life of a snapshot: at least `LIFE`, and at least `REST` times the processor time that it took to gather. Within it all
/// clients get the same snapshot.
const LIFE: Micros = Micros::from_millis(900);
const REST: u64 = 50;
/// Older figures do not describe the present; scrapers ask every two minutes at least.
const OLDEST: Micros = Micros::from_secs(150);

/// The newest snapshot, and the time until which all clients get it.
#[derive(Clone, Debug, Default)]
pub(super) struct Latest(Arc<Mutex<Option<(Snapshot, Micros)>>>);

impl Latest {
    /// Returns the snapshot, unless it has expired.
    pub(super) fn get(&self, now: Micros) -> Option<Snapshot> {
        let latest = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        latest.as_ref().filter(|(_, until)| now < *until).map(|(snapshot, _)| snapshot.clone())
    }

    fn set(&self, snapshot: &Snapshot, until: Micros) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some((snapshot.clone(), until));
    }
}

/// The counts that the next snapshot builds on.
#[derive(Debug)]
pub(super) struct Scrape {
    latest: Latest,
    /// Start of the last snapshot.
    began: Option<Micros>,
    samples: HashMap<u64, SocketSample>,
    distributions: Distributions,
    named: Named,
    cgroups: Cgroups,
}

impl Scrape {
    /// Returns the state before the first snapshot.
    pub(super) fn new(latest: Latest) -> Self {
        Self {
            latest,
            began: None,
            samples: HashMap::new(),
            distributions: Distributions::default(),
            named: Named::default(),
            cgroups: Cgroups::default(),
        }
    }

    /// Returns the present figures, or a snapshot that has not expired.
    pub(super) fn metrics(&mut self, inquiry: &Inquiry, engine: Option<EngineCost>) -> Snapshot {
        let began = now();
        if let Some(latest) = self.latest.get(began) {
            return latest;
        }
        let before = processor_time();
        let mut snapshot = self.gather(inquiry, engine, began, listed);
        let cost = processor_time().since(before);
        snapshot.gathered_s = now().since(began).as_secs_f64();
        self.began = Some(began);
        self.latest.set(&snapshot, began + life(cost, snapshot.interval_s.is_some()));
        snapshot
    }

    fn gather(
        &mut self,
        inquiry: &Inquiry,
        engine: Option<EngineCost>,
        began: Micros,
        listed: impl Fn(&Watched) -> Option<Listed>,
    ) -> Snapshot {
        let Inquiry { facts, sized, .. } = inquiry;
        let before = std::mem::take(&mut self.samples);
        let interval = self.began.map(|last| began.since(last)).filter(|age| *age <= OLDEST);
        // A paused daemon has no parts.
        let of_the_rest = PolicyNames::from(facts.plan.choice);
        let policies: Vec<_> = sized.parts().iter().map(|part| &part.policy).chain([&of_the_rest]).collect();
        let mut tally = Tally::new(&policies);
        let (mut census, mut scope) = (Census::new(&facts.parts), inquiry.scope.clone());
        let holders = scope.asks_for_programs().then(Holders::scan);
        let (mut waste_bytes, mut queued_connections, mut sums) = (0, 0, Sums::default());
        for place in &inquiry.places {
            let Some((at, all)) = listed(place) else { continue };
            for connection in &all {
                let previous = before.get(&connection.cookie).filter(|_| interval.is_some());
                let seen = Seen {
                    netns: &place.0,
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
                let sample = SocketSample::of(connection, at);
                self.samples.insert(connection.cookie, sample);
                let Some((part, flow)) = sized.get(connection.cookie) else {
                    let process = holders.as_ref().and_then(|holders| holders.of(connection.inode));
                    let program = process.map(|process| process.name.as_str());
                    if scope.leaves_out(connection, program, |number| self.cgroups.path(number)) {
                        census.add_untuned();
                    }
                    continue;
                };
                waste_bytes += view.waste_bytes;
                census.add(connection, flow.owned, part);
                if let Some(previous) = previous {
                    self.distributions.observe(&view);
                    let mut queue = Queue::default();
                    queue.add(view.direction, previous, &sample);
                    queued_connections += u64::from(queue.delay_s().is_some());
                }
            }
        }
        // Names are assigned by rate.
        let groups = if interval.is_some() {
            self.named.told(sums, began, |number| self.cgroups.label(number))
        } else {
            Groups::default()
        };
        self.cgroups.settle();
        let parts = figures(&facts.parts, census.parts());
        let budget = census.finish(TcpMemory::now());
        Snapshot {
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
            distributions: self.distributions.clone(),
            engine,
            history_bytes: inquiry.history_bytes,
            gathered_s: 0.0,
        }
    }
}

/// Returns the figures of the groups; the last part is no group.
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

/// Returns how long a snapshot is valid. A snapshot without causes only prepares the next, so it expires sooner.
fn life(cost: Micros, is_settled: bool) -> Micros {
    if is_settled { LIFE.max(cost.times(REST)) } else { LIFE }
}

/// Returns the cost of the programs; `None` if the kernel does not count it.
pub(super) fn cost(programs: &[ProgramInfo]) -> Option<EngineCost> {
    let (nanos, runs) = programs
        .iter()
        .fold((0, 0), |(nanos, runs), program| (nanos + program.run_nanoseconds, runs + program.runs));
    (runs > 0).then(|| EngineCost { seconds: nanos as f64 / 1e9, runs })
}

#[cfg(test)]
mod tests {
    use super::super::answers::tests::on_two;
    use super::super::scope::Scope;
    use super::super::task::tests::configured;
    use super::*;
    use crate::control::Request;
    use crate::view::Sized;
    use bufwise_socket::diag::Connection;

    #[test]
    fn a_namespace_that_cannot_be_listed_is_left_out() {
        let mut scrape = Scrape::new(Latest::default());
        let (inquiry, listed) = on_two(Request::Metrics);
        let snapshot = scrape.gather(&inquiry, None, Micros::from_secs(1), listed);
        let counted: u64 = snapshot.connections.iter().map(|row| row.count).sum();
        assert_eq!((counted, scrape.samples.len(), snapshot.history_bytes), (1, 1, 5));
    }

    #[test]
    fn cgroups_are_forgotten_with_their_connections_also_where_snapshots_are_too_rare_for_rates() {
        let mut scrape = Scrape::new(Latest::default());
        let (mut inquiry, _listed) = on_two(Request::Metrics);
        // There is no room for a record: the cgroup tells whether the connection would be tuned.
        inquiry.sized = Sized::default();
        inquiry.scope = Scope::new(&configured("memory = \"1MiB\"\nmax-connections = 100"), &[100]);
        let one = crate::view::tests::connection();
        for number in 1..=3 {
            let at = Micros::from_secs(1_000 * number);
            let made_since = Connection { cgroup: u64::MAX - number, ..one };
            let snapshot = scrape.gather(&inquiry, None, at, |_| Some((at, vec![made_since])));
            assert_eq!((snapshot.interval_s, snapshot.untuned_connections), (None, 2));
        }
        assert!(scrape.cgroups.remembered() <= 1, "{:?}", scrape.cgroups);
    }

    #[test]
    fn a_connection_without_room_is_found_also_in_the_group_of_its_program() {
        let held = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let inode = u32::try_from(nix::sys::stat::fstat(&held).unwrap().st_ino).unwrap();
        let own = std::fs::read_to_string("/proc/self/comm").unwrap();
        let own = own.trim_end();
        let group = format!("[[group]]\nname = \"own\"\nprocess = {own:?}\nmax-connections = 10\n");
        let task = configured(&format!("memory = \"1MiB\"\nmax-connections = 100\n{group}"));
        let (mut inquiry, _listed) = on_two(Request::Metrics);
        inquiry.sized = Sized::default();
        inquiry.scope = Scope::new(&task, &[10, 0]);
        let (at, view) = (Micros::from_secs(1), crate::view::tests::connection());
        let untuned = |inode| {
            let one = Connection { inode, ..view };
            let mut scrape = Scrape::new(Latest::default());
            scrape.gather(&inquiry, None, at, |_| Some((at, vec![one]))).untuned_connections
        };
        assert_eq!((untuned(inode), untuned(0)), (2, 0), "in each of the two namespaces");
    }

    #[test]
    fn gathering_takes_a_fiftieth_of_a_processor_at_most_and_comes_once_a_second() {
        assert_eq!(life(Micros(100), true), Micros::from_millis(900));
        assert_eq!(life(Micros::from_millis(100), true), Micros::from_secs(5));
        assert_eq!(
            life(Micros::from_millis(100), false),
            Micros::from_millis(900),
            "the second one has the causes"
        );
    }
}
