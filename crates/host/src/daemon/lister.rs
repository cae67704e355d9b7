//! The thread that answers `ls` and `explain`: it samples all sockets, twice for rates, and finds the processes that
//! hold them.
//!
//! The loop that tunes passes on the engine's records and the open diagnostics, and waits for nothing. Clients are
//! answered one after the other; beyond [`WAITING`] waiting clients, further ones are told that the daemon is busy.

use std::collections::HashMap;
use std::sync::PoisonError;
use std::sync::mpsc::Receiver;
use std::thread;
use std::time::Duration;

use bufwise_bpf::{FlowState, now};
use bufwise_socket::diag::{Connection, States};
use bufwise_socket::limit::SocketSample;
use bufwise_units::Micros;

use super::event::Facts;
use super::recorder::Watched;
use super::scope::Scope;
use super::worker::Worker;
use crate::budget::{Census, Terms};
use crate::cgroups::Cgroups;
use crate::control::message::MAX_CONNECTIONS;
use crate::control::server::Pending;
use crate::control::{Reply, Request};
use crate::error::Result;
use crate::processes::Holders;
use crate::tcp_memory::TcpMemory;
use crate::tuner;
use crate::view::{ConnectionView, Listing, Seen, Sized, Summary};

/// Time between the two samples of the sockets that rates are computed from.
const BETWEEN: Duration = Duration::from_millis(100);
/// Most clients that wait: as many as are served at a time.
pub(super) const WAITING: usize = 8;

/// A client's request, with the loop's facts.
#[derive(Debug)]
pub(super) struct Inquiry {
    /// The request of the client.
    pub(super) request: Request,
    pub(super) facts: Facts,
    /// The engines' records.
    pub(super) sized: Sized,
    pub(super) scope: Scope,
    pub(super) places: Vec<Watched>,
    /// Memory of the history, bytes.
    pub(super) history_bytes: u64,
    pub(super) client: Pending,
}

impl Inquiry {
    /// Tells the client that the daemon is busy.
    pub(super) fn refuse(self) {
        self.client.answer(Reply::Error("the daemon is busy: try again".to_owned()));
    }
}

/// Handle of the thread.
#[derive(Debug)]
pub(super) struct Lister(Worker<Inquiry>);

impl Lister {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self> {
        Worker::start("lister", WAITING, work).map(Self)
    }

    /// Passes on a client that requests [`Request::List`] or [`Request::Explain`].
    pub(super) fn ask(&self, inquiry: Inquiry) {
        if let Some(inquiry) = self.0.hand(inquiry) {
            inquiry.refuse();
        }
    }
}

fn work(inquiries: &Receiver<Inquiry>) {
    let mut cgroups = Cgroups::default();
    for inquiry in inquiries {
        let listing = list(&inquiry, &mut cgroups);
        inquiry.client.answer(Reply::List(Box::new(listing)));
        cgroups.settle();
    }
}

/// Returns the requested connections, and the memory of all connections.
fn list(inquiry: &Inquiry, cgroups: &mut Cgroups) -> Listing {
    let Inquiry { request, facts, sized, places, .. } = inquiry;
    let mut samples = HashMap::new();
    if *request == Request::List {
        for place in places {
            with_each(place, |one, at| {
                samples.insert(one.cookie, SocketSample::of(one, at));
            });
        }
        thread::sleep(BETWEEN);
    }
    let is_wanted = |one: &Connection| match request {
        Request::Explain { address } => address.matches(one.local, one.peer),
        _ => true,
    };
    let (mut scope, holders) = (inquiry.scope.clone(), Holders::scan());
    let (mut census, mut rows) = (Census::new(&facts.parts), Rows::new(MAX_CONNECTIONS));
    let mut writers = vec![Vec::new(); sized.parts().len()];
    for place in places {
        with_each(place, |connection, at| {
            let (process, cgroup) = (holders.of(connection.inode), cgroups.name(connection.cgroup));
            let own = sized.get(connection.cookie);
            if let Some((part, flow)) = own {
                census.add(connection, flow.owned, part);
                census.attribute(connection, flow.owned, process, cgroup.as_deref());
            } else if scope.leaves_out(connection, process.map(|process| process.name.as_str()), |number| {
                cgroups.path(number)
            }) {
                census.add_untuned();
            }
            if !is_wanted(connection) {
                return;
            }
            let view = ConnectionView::new(&Seen {
                netns: &place.0,
                cgroup: cgroup.as_deref(),
                process,
                connection,
                at,
                previous: samples.get(&connection.cookie),
                period: None,
            });
            if let Some((part, flow)) = own.filter(|_| view.send_queued_bytes > 0) {
                writers[part].push(flow);
            }
            let view = ConnectionView { container: cgroups.container(connection.cgroup), ..view };
            rows.add(sized.complete(view, at));
        });
    }
    let mut listing = rows.listing();
    listing
        .notes
        .extend(facts.parts.iter().zip(writers).filter_map(|(terms, writers)| shortage(terms, &writers)));
    let budget = census.finish(TcpMemory::now());
    listing.summary.budget_bytes = Some(budget.send.budget_bytes);
    listing.summary.pressure = Some(budget.is_short());
    listing.budget = Some(budget);
    listing
}

/// Returns why a part's budget cannot be kept with these writers; for a group the text has its name.
fn shortage(terms: &Terms, writers: &[&FlowState]) -> Option<String> {
    let text = tuner::shortage(writers.iter().copied(), &terms.plan)?;
    Some(match &terms.group {
        Some(name) => format!("group {name}: {text}"),
        None => text,
    })
}

/// Calls `show` for each connection of a namespace, with the time of the sample. A namespace that cannot be listed is
/// skipped.
fn with_each((_, diag): &Watched, mut show: impl FnMut(&Connection, Micros)) {
    let mut diag = diag.lock().unwrap_or_else(PoisonError::into_inner);
    let at = now();
    let listed = diag.tcp(States::CONNECTED);
    drop(diag);
    listed.iter().flatten().for_each(|connection| show(connection, at));
}

/// Rows of connections up to a bound, those that the daemon sizes before others; the summary covers all connections.
struct Rows {
    most: usize,
    summary: Summary,
    sized: Vec<ConnectionView>,
    others: Vec<ConnectionView>,
}

impl Rows {
    fn new(most: usize) -> Self {
        Self { most, summary: Summary::default(), sized: Vec::new(), others: Vec::new() }
    }

    fn add(&mut self, view: ConnectionView) {
        self.summary.add(&view);
        let rows = if view.policy.is_some() { &mut self.sized } else { &mut self.others };
        if rows.len() < self.most {
            rows.push(view);
        }
    }

    fn listing(self) -> Listing {
        let Self { most, summary, sized: mut connections, others } = self;
        let room = most - connections.len();
        connections.extend(others.into_iter().take(room));
        let unlisted_connections = summary.connections - connections.len() as u64;
        let note = || {
            let are = if unlisted_connections == 1 { "is" } else { "are" };
            format!(
                "the daemon's list ends at {most} connections, those that it sizes first: {unlisted_connections} {are} not in it"
            )
        };
        let notes = (unlisted_connections > 0).then(note).into_iter().collect();
        Listing { summary, connections, unlisted_connections, notes, ..Listing::default() }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::metrics::Counts;
    use crate::tuner::asked::{Asked, AskedBoth};
    use crate::tuner::plan::{Asked as Options, Plan};
    use crate::view::PolicyNames;
    use crate::view::tests::connection_view;
    use bufwise_socket::diag::Diag;
    use bufwise_units::Bytes;
    use std::sync::mpsc::TryRecvError;
    use std::sync::{Arc, Mutex};

    /// Returns an inquiry without connections, and the end at which its reply arrives.
    pub(crate) fn inquiry(request: Request) -> (Inquiry, Receiver<Reply>) {
        let memory = Some(Bytes(1_000_000));
        let options = Options { memory, receive_memory: memory, ..Options::default() };
        let asked =
            Asked { connections: 9, demand: Bytes(2_000_000), shared: Bytes(800_000), ..Asked::default() };
        let plan = Plan::new("abt".parse().unwrap(), options).unwrap();
        let asked = AskedBoth { send: asked, ..AskedBoth::default() };
        let facts = Facts {
            plan,
            parts: vec![Terms { group: None, plan, asked }],
            paused: false,
            uptime: Micros::ZERO,
            counts: Counts::default(),
        };
        let (client, answered) = Pending::of_test(request);
        let (sized, scope, places) = (Sized::default(), Scope::default(), Vec::new());
        (Inquiry { request, facts, sized, scope, places, history_bytes: 5, client }, answered)
    }

    #[test]
    fn who_asks_for_a_list_waits_for_two_samples_and_the_loop_does_not() {
        let (mut inquiry, answered) = inquiry(Request::List);
        let diag = Arc::new(Mutex::new(Diag::open().unwrap()));
        inquiry.places = vec![("blue".to_owned(), Arc::clone(&diag))];
        let slow = diag.lock().unwrap();
        let lister = Lister::start().unwrap();
        lister.ask(inquiry);
        assert_eq!(answered.try_recv(), Err(TryRecvError::Empty), "it is asked, and not waited for");
        drop(slow);
        let Reply::List(listing) = answered.recv().unwrap() else { panic!("a list was asked for") };
        let budget = listing.budget.unwrap();
        assert_eq!((budget.send.budget_bytes, budget.send.reserved_newcomers_bytes), (1_000_000, 200_000));
        assert!(budget.pressure[0].sentence.starts_with("9 connections ask for 2.00 MB"), "{budget:?}");
        assert_eq!(listing.summary.pressure, Some(true));
    }

    #[test]
    fn a_list_ends_at_its_bound_with_those_that_are_sized_first_and_says_what_is_left_out() {
        let other = connection_view();
        let sized = ConnectionView { policy: Some(PolicyNames::default()), ..other.clone() };
        let listing = |most: usize, all: &[&ConnectionView]| {
            let mut rows = Rows::new(most);
            all.iter().for_each(|one| rows.add((*one).clone()));
            rows.listing()
        };
        let all = [&other, &other, &sized, &other, &sized];
        let cut = listing(3, &all);
        let first: Vec<bool> = cut.connections.iter().map(|one| one.policy.is_some()).collect();
        assert_eq!(
            (first, cut.unlisted_connections, cut.summary.connections),
            (vec![true, true, false], 2, 5)
        );
        assert_eq!(
            cut.notes,
            ["the daemon's list ends at 3 connections, those that it sizes first: 2 are not in it"]
        );
        assert_eq!(listing(1, &all).connections.len(), 1);
        let whole = listing(5, &all);
        assert_eq!((whole.connections.len(), whole.unlisted_connections, whole.notes.len()), (5, 0, 0));
    }
}
