//! The thread that answers `check` and gathers the metrics, from the sockets and from the engines' records.
//!
//! It is separate from the thread of `ls`, which sleeps between its two samples, because a monitor waits only
//! briefly. The loop passes on its facts and waits for nothing, however many connections there are.

use std::sync::PoisonError;
use std::sync::mpsc::Receiver;

use bufwise_bpf::now;
use bufwise_socket::diag::{Connection, States};
use bufwise_units::Micros;

use super::lister::{Inquiry, WAITING};
use super::recorder::Watched;
use super::scrape::{Latest, Scrape};
use super::worker::Worker;
use crate::budget::Census;
use crate::control::message::{Memory, Status};
use crate::control::{Reply, Request};
use crate::error::Result;
use crate::metrics::{EngineCost, Snapshot};
use crate::tcp_memory::TcpMemory;

/// A client's request with the loop's facts, and the cost of the engine's programs.
type Question = (Inquiry, Option<EngineCost>);

/// Handle of the thread.
#[derive(Debug)]
pub(super) struct Answerer {
    worker: Worker<Question>,
    latest: Latest,
}

impl Answerer {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self> {
        let latest = Latest::default();
        let mut scrape = Scrape::new(latest.clone());
        let work = move |questions: &Receiver<Question>| {
            for (inquiry, engine) in questions {
                let reply = answer(&inquiry, engine, &mut scrape);
                inquiry.client.answer(reply);
            }
        };
        Ok(Self { worker: Worker::start("answers", WAITING, work)?, latest })
    }

    /// Returns the latest figures while they are recent enough to be reused.
    pub(super) fn latest(&self) -> Option<Snapshot> {
        self.latest.get(now())
    }

    /// Passes on a client that requests [`Request::Status`] or [`Request::Metrics`].
    pub(super) fn ask(&self, inquiry: Inquiry, engine: Option<EngineCost>) {
        if let Some((inquiry, _)) = self.worker.hand((inquiry, engine)) {
            inquiry.refuse();
        }
    }
}

fn answer(inquiry: &Inquiry, engine: Option<EngineCost>, scrape: &mut Scrape) -> Reply {
    match inquiry.request {
        Request::Metrics => Reply::Metrics(Box::new(scrape.metrics(inquiry, engine))),
        _ => Reply::Status(status(inquiry, listed)),
    }
}

/// The connected sockets of a namespace, with the time of the list.
pub(super) type Listed = (Micros, Vec<Connection>);

/// Lists all connected sockets of a namespace; `None` if they cannot be listed, as for lack of memory: the answer then
/// lacks that namespace.
pub(super) fn listed((_, diag): &Watched) -> Option<Listed> {
    let mut diag = diag.lock().unwrap_or_else(PoisonError::into_inner);
    let at = now();
    Some((at, diag.tcp(States::CONNECTED).ok()?))
}

fn status(
    Inquiry { facts, sized, places, .. }: &Inquiry,
    listed: impl Fn(&Watched) -> Option<Listed>,
) -> Status {
    let mut census = Census::new(&facts.parts);
    for (_, connections) in places.iter().filter_map(listed) {
        for connection in &connections {
            if let Some((part, flow)) = sized.get(connection.cookie) {
                census.add(connection, flow.owned, part);
            }
        }
    }
    let budget = census.finish(TcpMemory::now());
    Status {
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
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::lister::tests::inquiry;
    use super::*;
    use crate::tuner::tests::flow;
    use crate::view::{Part, Sized};
    use bufwise_socket::diag::Diag;
    use std::sync::mpsc::TryRecvError;
    use std::sync::{Arc, Mutex};

    /// Returns an inquiry on two namespaces, and a way to list them: one cannot be listed, the other has a connection.
    pub(crate) fn on_two(request: Request) -> (Inquiry, impl Fn(&Watched) -> Option<Listed>) {
        let (mut inquiry, _answered) = inquiry(request);
        let place = |name: &str| (name.to_owned(), Arc::new(Mutex::new(Diag::open().unwrap())));
        let one = crate::view::tests::connection();
        inquiry.places = ["red", "blue"].map(place).into();
        inquiry.sized = Sized::new(vec![(Part::default(), vec![flow(one.cookie, 0)])]);
        (inquiry, move |(netns, _): &Watched| (netns == "blue").then(|| (Micros::from_secs(1), vec![one])))
    }

    #[test]
    fn a_namespace_that_cannot_be_listed_is_left_out() {
        let (inquiry, listed) = on_two(Request::Status);
        assert_eq!(status(&inquiry, listed).connections, 1);
    }

    #[test]
    fn a_sample_that_takes_long_delays_those_who_ask_and_not_the_loop() {
        // Figures are valid for 0.9 s. A machine may stand still for longer, but not each time.
        assert!((0..5).any(|_| all_get_the_figures_of_a_long_sample()));
    }

    /// Returns whether all who ask during a sample get its figures.
    fn all_get_the_figures_of_a_long_sample() -> bool {
        let diag = Arc::new(Mutex::new(Diag::open().unwrap()));
        let slow = diag.lock().unwrap();
        let answerer = Answerer::start().unwrap();
        let ask = |request| {
            let (mut inquiry, answered) = inquiry(request);
            inquiry.places = vec![("blue".to_owned(), Arc::clone(&diag))];
            answerer.ask(inquiry, None);
            answered
        };
        let (status, metrics) = (ask(Request::Status), ask(Request::Metrics));
        let waiting: Vec<_> = (0..2 * WAITING).map(|_| ask(Request::Metrics)).collect();
        assert_eq!(status.try_recv(), Err(TryRecvError::Empty), "it is asked, and not waited for");
        let busy = waiting.last().unwrap().try_recv();
        assert!(matches!(&busy, Ok(Reply::Error(error)) if error.contains("busy")), "{busy:?}");
        assert!(answerer.latest().is_none());
        drop(slow);
        let Reply::Status(status) = status.recv().unwrap() else { panic!("the status was asked for") };
        assert_eq!((status.memory.budget_bytes, status.memory.pressure), (1_000_000, true));
        let Reply::Metrics(first) = metrics.recv().unwrap() else { panic!("metrics were asked for") };
        assert_eq!((first.interval_s, first.send.budget_bytes), (None, 1_000_000));
        let Reply::Metrics(second) = waiting[0].recv().unwrap() else { panic!("metrics were asked for") };
        // The loop itself gives them, too.
        second == first && answerer.latest().as_ref() == Some(&*first)
    }
}
