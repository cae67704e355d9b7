//! What `top` shows: the connections, their order and filter, the chosen line. No I/O and no clock.

use bufwise_host::view::{ConnectionView, Listing, Summary};
use bufwise_units::Micros;

use super::history::{Histories, Sample};
use crate::ls::{LsArgs, Order, is_notable, matches, sums_of};

/// Everything that the picture is made from.
#[derive(Debug)]
pub(super) struct State {
    /// All connections, in order.
    listing: Listing,
    /// Of these the ones shown, as positions in the list.
    shown: Vec<usize>,
    histories: Histories,
    pub(super) order: Order,
    /// Loopback and idle connections are shown, too.
    pub(super) all: bool,
    pub(super) filter: String,
    /// The filter as it was before the one that is being typed.
    pub(super) typing: Option<String>,
    /// The chosen connection; the first line until a key moves it.
    cursor: Option<u64>,
    /// The line that it had last.
    line: usize,
    /// Label of the caller's network namespace.
    pub(super) home: String,
}

impl State {
    /// Nothing seen yet.
    pub(super) fn new(options: &LsArgs, home: String, interval: Micros) -> Self {
        Self {
            listing: Listing::default(),
            shown: Vec::new(),
            histories: Histories::new(interval),
            order: options.sort,
            all: options.all,
            filter: options.filter.clone().unwrap_or_default(),
            typing: None,
            cursor: None,
            line: 0,
            home,
        }
    }

    /// Takes a new look at all connections.
    pub(super) fn observe(&mut self, listing: Listing) {
        self.histories.add(&listing.connections);
        self.listing = listing;
        self.arrange();
    }

    /// Takes a failure to look: the last look stays, with a note.
    pub(super) fn fail(&mut self, why: String) {
        self.listing.notes = vec![why];
    }

    /// Sorts and filters anew; the chosen connection stays chosen, or the one in its line.
    pub(super) fn arrange(&mut self) {
        self.order.sort(&mut self.listing.connections);
        let is_shown = |one: &ConnectionView| (self.all || is_notable(one)) && self.passes(one);
        self.shown = (0..self.listing.connections.len())
            .filter(|at| is_shown(&self.listing.connections[*at]))
            .collect();
        let found = self.cursor.and_then(|cursor| self.rows().position(|one| one.cookie == cursor));
        if self.cursor.is_some() {
            self.choose(found.unwrap_or(self.line));
        }
    }

    fn passes(&self, one: &ConnectionView) -> bool {
        self.filter.is_empty() || matches(one, &self.filter)
    }

    /// The connections shown, in order.
    pub(super) fn rows(&self) -> impl ExactSizeIterator<Item = &ConnectionView> {
        self.shown.iter().map(|at| &self.listing.connections[*at])
    }

    /// The line of the chosen connection.
    pub(super) fn cursor(&self) -> usize {
        self.line
    }

    /// Chooses the connection in that line, or the last one.
    pub(super) fn choose(&mut self, line: usize) {
        self.line = line.min(self.shown.len().saturating_sub(1));
        self.cursor = self.shown.get(self.line).map(|at| self.listing.connections[*at].cookie);
    }

    /// Goes so many lines up (negative) or down.
    pub(super) fn go(&mut self, lines: isize) {
        self.choose(self.line.saturating_add_signed(lines));
    }

    /// Connections that pass the filter and are not shown.
    pub(super) fn hidden(&self) -> usize {
        self.summary().connections as usize - self.shown.len()
    }

    /// The sums of what passes the filter, as `ls` has them.
    pub(super) fn summary(&self) -> Summary {
        let passing = self.listing.connections.iter().filter(|one| self.passes(one));
        sums_of(self.listing.summary, passing)
    }

    /// The send queues of the connections that the daemon sizes, and its budget for them.
    pub(super) fn budget(&self) -> Option<(u64, u64)> {
        let budget = self.listing.summary.budget_bytes?;
        let sized = self.listing.connections.iter().filter(|one| one.policy.is_some());
        Some((Summary::of(sized).send_queued_bytes, budget))
    }

    /// Remarks on the last look.
    pub(super) fn notes(&self) -> &[String] {
        &self.listing.notes
    }

    /// The last minute of a connection's rate, newest first.
    pub(super) fn rates(&self, cookie: u64) -> Vec<Option<u64>> {
        self.histories.of(cookie, |sample: &Sample| sample.rate)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ls::tests::connection_view;

    /// A connection to `198.18.0.COOKIE` that moves so many bit/s.
    pub(crate) fn connection(cookie: u64, rate: u64, process: &str) -> ConnectionView {
        ConnectionView {
            cookie,
            peer: format!("198.18.0.{cookie}:443").parse().unwrap(),
            goodput_bps: Some(rate),
            process: Some(process.to_owned()),
            ..connection_view()
        }
    }

    pub(crate) fn listing(connections: Vec<ConnectionView>) -> Listing {
        Listing { summary: Summary::of(&connections), connections, notes: Vec::new() }
    }

    pub(crate) fn empty() -> State {
        let options =
            LsArgs { filter: None, all: false, sort: Order::Rate, json: None, socket: None, no_daemon: true };
        State::new(&options, "blue".to_owned(), Micros::from_secs(1))
    }

    /// Three connections, the busiest of which is the second.
    pub(crate) fn state() -> State {
        let mut state = empty();
        state.observe(listing(vec![
            connection(1, 1_000_000, "rsync"),
            connection(2, 9_000_000, "curl"),
            connection(3, 5_000_000, "nginx"),
        ]));
        state
    }

    pub(crate) fn cookies(state: &State) -> Vec<u64> {
        state.rows().map(|one| one.cookie).collect()
    }

    #[test]
    fn the_chosen_connection_stays_chosen_when_the_order_changes() {
        let mut state = state();
        assert_eq!((cookies(&state), state.cursor()), (vec![2, 3, 1], 0));
        state.go(1);
        state.observe(listing(vec![connection(2, 1, "curl"), connection(3, 2, "nginx")]));
        assert_eq!((cookies(&state), state.cursor()), (vec![3, 2], 0));
        state.observe(listing(vec![connection(2, 1, "curl")]));
        assert_eq!(state.cursor(), 0, "the one in its line takes its place");
        state.go(7);
        assert_eq!(state.cursor(), 0, "there is no other");
    }

    #[test]
    fn until_a_key_moves_it_the_first_line_is_chosen() {
        let mut state = state();
        state.observe(listing(vec![connection(3, 2, "nginx"), connection(4, 9, "ssh")]));
        assert_eq!((cookies(&state), state.cursor()), (vec![4, 3], 0));
    }

    #[test]
    fn loopback_and_idle_connections_are_counted_and_the_sums_are_of_the_filter() {
        let mut state = state();
        let local = ConnectionView { peer: "127.0.0.1:80".parse().unwrap(), ..connection(4, 9, "curl") };
        state.observe(listing(vec![connection(2, 1, "curl"), connection(3, 2, "nginx"), local]));
        assert_eq!((state.rows().len(), state.hidden()), (2, 1));
        state.filter = "curl".to_owned();
        state.arrange();
        assert_eq!((cookies(&state), state.hidden(), state.summary().connections), (vec![2], 1, 2));
        state.all = true;
        state.arrange();
        assert_eq!((cookies(&state), state.hidden()), (vec![4, 2], 0));
    }

    #[test]
    fn the_budget_is_for_the_connections_that_the_daemon_sizes() {
        let mut state = state();
        assert_eq!(state.budget(), None);
        let sized = ConnectionView { policy: Some(Default::default()), ..connection(1, 1, "curl") };
        let mut list = listing(vec![sized, connection(2, 1, "curl")]);
        list.summary.budget_bytes = Some(1_000_000);
        state.observe(list);
        assert_eq!(state.budget(), Some((100_000, 1_000_000)));
    }

    #[test]
    fn a_failed_look_leaves_the_last_one_with_a_note() {
        let mut state = state();
        state.fail("no more descriptors".to_owned());
        assert_eq!((state.rows().len(), state.notes()), (3, &["no more descriptors".to_owned()][..]));
    }
}
