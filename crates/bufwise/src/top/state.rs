//! The state of `top`: the connections, their order and filter, the chosen line. No I/O and no clock.
//!
//! All connections are processed once per sample, and when a key changes the order. A picture uses only the visible
//! lines and the sums computed then, so it costs the same with 10,000 connections as with ten.

use bufwise_host::budget::Budget;
use bufwise_host::view::{ConnectionView, Listing, Summary};

use super::groups::{self, Group, Grouping};
use super::history::{Histories, Sample};
use super::news::{ENDED, Sight};
use crate::ls::{LINE, LsArgs, Order, is_notable, matches, sums_of};
use crate::terminal::wrapped;

/// Everything from which the picture is made.
#[derive(Debug)]
pub(super) struct State {
    /// All connections, in no order.
    listing: Listing,
    /// Positions of the shown connections in the list, in order.
    shown: Vec<usize>,
    /// Values of all connections together.
    digest: Digest,
    histories: Histories<Sample>,
    pub(super) order: Order,
    /// Whether loopback and idle connections are shown.
    pub(super) all: bool,
    pub(super) filter: String,
    /// The former filter, while a new one is typed.
    pub(super) typing: Option<String>,
    grouping: Grouping,
    /// The groups of the shown connections, in order, each with the last minute of its rate; empty inside a group.
    groups: Vec<Group>,
    minutes: Vec<Vec<Option<u64>>>,
    /// The group whose connections are shown.
    inside: Option<String>,
    /// The chosen line; the first until a key moves it.
    cursor: Option<Chosen>,
    /// The chosen line's last position.
    line: usize,
    /// The connection that is shown alone.
    opened: Option<Opened>,
    /// Label of the caller's network namespace.
    pub(super) home: String,
    /// Columns of the terminal, which decide how many lines a text has.
    pub(super) width: usize,
}

/// Values of all connections together that a picture needs.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Digest {
    /// The sums of connections that pass the filter, as in `ls`.
    pub(super) sums: Summary,
    /// Number of connections that pass the filter but are not worth a line.
    pub(super) hidden: usize,
    /// Whether some shown connections are outside the caller's network namespace.
    pub(super) has_namespaces: bool,
    /// Whether the shown connections are of several cgroups.
    pub(super) has_cgroups: bool,
    /// Whether some shown connections are in a group of the daemon's configuration.
    pub(super) has_groups: bool,
    /// Widest name of a group.
    pub(super) widest_name: usize,
}

/// Content of a line.
#[derive(Clone, Debug, PartialEq)]
enum Chosen {
    /// A connection, by its cookie.
    Connection(u64),
    /// A group, by its name.
    Group(String),
}

/// One connection that is shown alone.
#[derive(Debug)]
pub(super) struct Opened {
    /// Its last sample.
    pub(super) view: ConnectionView,
    /// Whether the connection has ended.
    pub(super) is_gone: bool,
    /// The last minute of its rate, bit/s, newest first.
    pub(super) rates: Vec<Option<u64>>,
    /// The last minute of its round trip, microseconds, newest first.
    pub(super) rtts: Vec<Option<u64>>,
    /// The text of `explain`, once it is known.
    pub(super) explanation: Option<String>,
    /// Lines of that text, wrapped, above the screen.
    pub(super) scroll: usize,
}

impl State {
    /// Returns the state before the first sample.
    pub(super) fn new(options: &LsArgs, home: String) -> Self {
        Self {
            listing: Listing::default(),
            shown: Vec::new(),
            digest: Digest::default(),
            histories: Histories::new(),
            order: options.sort,
            all: options.all,
            filter: options.filter.clone().unwrap_or_default(),
            typing: None,
            grouping: options.group.unwrap_or_default(),
            groups: Vec::new(),
            minutes: Vec::new(),
            inside: None,
            cursor: None,
            line: 0,
            opened: None,
            home,
            width: LINE,
        }
    }

    /// Takes a new sample of all connections.
    pub(super) fn observe(&mut self, Sight { listing, interval }: Sight) {
        self.histories.add(&listing.connections, interval);
        self.listing = listing;
        self.arrange();
        if let Some(opened) = self.opened.take() {
            let found = self.listing.connections.iter().find(|one| one.cookie == opened.view.cookie);
            self.opened = Some(match found {
                Some(one) => Opened { view: one.clone(), ..self.minute(opened) },
                None => Opened { is_gone: true, ..opened },
            });
        }
    }

    /// Switches to the next grouping.
    pub(super) fn group(&mut self) {
        self.grouping = self.grouping.next();
        (self.inside, self.cursor, self.line) = (None, None, 0);
        self.arrange();
    }

    /// Returns the grouping, and the group whose connections are shown.
    pub(super) fn grouping(&self) -> (Grouping, Option<&str>) {
        (self.grouping, self.inside.as_deref())
    }

    /// Returns the groups, if they are shown in the place of the connections.
    pub(super) fn groups(&self) -> Option<&[Group]> {
        (self.grouping != Grouping::None && self.inside.is_none()).then_some(&self.groups)
    }

    /// Opens the chosen group or connection.
    pub(super) fn open(&mut self) {
        if let Some(groups) = self.groups() {
            self.inside = groups.get(self.line).map(|group| group.name.clone());
            (self.cursor, self.line) = (None, 0);
            self.arrange();
            return;
        }
        let Some(view) = self.row(self.line).cloned() else { return };
        let opened = Opened {
            view,
            is_gone: false,
            rates: Vec::new(),
            rtts: Vec::new(),
            explanation: None,
            scroll: 0,
        };
        self.choose(self.line);
        self.opened = Some(self.minute(opened));
    }

    /// Leaves an opened connection or a group; returns false if neither was open.
    pub(super) fn close(&mut self) -> bool {
        if self.opened.take().is_some() {
            return true;
        }
        let Some(name) = self.inside.take() else { return false };
        self.cursor = Some(Chosen::Group(name));
        self.arrange();
        true
    }

    /// Returns the opened connection, if any.
    pub(super) fn opened(&self) -> Option<&Opened> {
        self.opened.as_ref()
    }

    /// Scrolls the explanation up (negative) or down.
    pub(super) fn scroll(&mut self, lines: isize) {
        if let Some(opened) = &mut self.opened {
            let text = wrapped(opened.explanation.as_deref().unwrap_or_default(), self.width);
            let last = text.len().saturating_sub(1);
            opened.scroll = opened.scroll.min(last).saturating_add_signed(lines).min(last);
        }
    }

    /// Takes the text of `explain` on a connection, if it is still open; one that has ended (`None`) keeps its last text.
    pub(super) fn explained(&mut self, cookie: u64, text: Option<String>) {
        if let Some(opened) = self.opened.as_mut().filter(|opened| opened.view.cookie == cookie) {
            let text = text.or_else(|| opened.explanation.take());
            opened.explanation = Some(text.unwrap_or_else(|| ENDED.to_owned()));
        }
    }

    fn minute(&self, opened: Opened) -> Opened {
        let rtts = self.histories.of(opened.view.cookie, |sample| sample.rtt.map(u64::from));
        Opened { rates: self.rates(opened.view.cookie), rtts, ..opened }
    }

    /// Takes a failed sample: the last one stays, with a note.
    pub(super) fn fail(&mut self, why: String) {
        self.listing.notes = vec![why];
    }

    /// Sorts and filters again; the chosen connection stays chosen, or else the one in its line.
    pub(super) fn arrange(&mut self) {
        self.choose_rows();
        let all = &self.listing.connections;
        self.shown.sort_by(|a, b| self.order.compare(&all[*a], &all[*b]));
        self.groups = match self.groups() {
            Some(_) => self.grouping.groups(self.page(0, usize::MAX), self.order),
            None => Vec::new(),
        };
        let minute = |group: &Group| self.histories.sum(&group.cookies, |sample| sample.rate);
        self.minutes = self.groups.iter().map(minute).collect();
        self.digest.widest_name = groups::name_width(&self.groups, self.grouping, usize::MAX);
        if let Some(cursor) = &self.cursor {
            self.choose(self.line_of(cursor).unwrap_or(self.line));
        }
    }

    /// Selects the connections to show, and sums them up.
    fn choose_rows(&mut self) {
        let (mut shown, mut passing) = (Vec::with_capacity(self.shown.len()), Vec::new());
        let mut digest = Digest::default();
        for (at, one) in self.listing.connections.iter().enumerate().filter(|(_, one)| self.passes(one)) {
            passing.push(at);
            if !self.all && !is_notable(one) {
                digest.hidden += 1;
            } else if self.is_inside(one) {
                shown.push(at);
                digest.has_namespaces |= one.netns != self.home;
                digest.has_groups |= one.group.is_some();
            }
        }
        let all = &self.listing.connections;
        digest.sums = sums_of(self.listing.summary, passing.into_iter().map(|at| &all[at]));
        let first = shown.first().map(|at| &all[*at].cgroup);
        digest.has_cgroups = shown.iter().any(|at| Some(&all[*at].cgroup) != first);
        (self.shown, self.digest) = (shown, digest);
    }

    fn is_inside(&self, one: &ConnectionView) -> bool {
        self.inside.as_ref().is_none_or(|name| self.grouping.name_of(one) == *name)
    }

    /// Returns the number of lines, of groups or connections.
    pub(super) fn lines(&self) -> usize {
        self.groups().map_or(self.shown.len(), <[Group]>::len)
    }

    /// Returns what that line shows.
    fn chosen_by(&self, line: usize) -> Option<Chosen> {
        match self.groups() {
            Some(groups) => groups.get(line).map(|group| Chosen::Group(group.name.clone())),
            None => self.row(line).map(|one| Chosen::Connection(one.cookie)),
        }
    }

    /// Returns the line that shows it.
    fn line_of(&self, chosen: &Chosen) -> Option<usize> {
        match (chosen, self.groups()) {
            (Chosen::Group(name), Some(groups)) => groups.iter().position(|group| group.name == *name),
            (Chosen::Connection(cookie), None) => {
                self.shown.iter().position(|at| self.listing.connections[*at].cookie == *cookie)
            }
            _ => None,
        }
    }

    fn passes(&self, one: &ConnectionView) -> bool {
        matches(one, &self.filter)
    }

    /// Returns at most `count` of the shown connections, from line `first` on.
    pub(super) fn page(&self, first: usize, count: usize) -> impl ExactSizeIterator<Item = &ConnectionView> {
        let first = first.min(self.shown.len());
        let last = first.saturating_add(count).min(self.shown.len());
        self.shown[first..last].iter().map(|at| &self.listing.connections[*at])
    }

    /// Returns the connection in that line.
    fn row(&self, line: usize) -> Option<&ConnectionView> {
        self.shown.get(line).map(|at| &self.listing.connections[*at])
    }

    /// Returns the chosen line.
    pub(super) fn cursor(&self) -> usize {
        self.line
    }

    /// Chooses that line, or the last one.
    pub(super) fn choose(&mut self, line: usize) {
        self.line = line.min(self.lines().saturating_sub(1));
        self.cursor = self.chosen_by(self.line);
    }

    /// Moves the chosen line up (negative) or down.
    pub(super) fn go(&mut self, lines: isize) {
        self.choose(self.line.saturating_add_signed(lines));
    }

    /// Returns the values of all connections together.
    pub(super) fn digest(&self) -> &Digest {
        &self.digest
    }

    /// Returns the daemon's memory, as the daemon reports it.
    pub(super) fn budget(&self) -> Option<&Budget> {
        self.listing.budget.as_ref()
    }

    /// Returns remarks on the last sample.
    pub(super) fn notes(&self) -> &[String] {
        &self.listing.notes
    }

    /// Returns the last minute of a connection's rate, newest first.
    pub(super) fn rates(&self, cookie: u64) -> Vec<Option<u64>> {
        self.histories.of(cookie, |sample: &Sample| sample.rate)
    }

    /// Returns the last minute of the rate of that line's group, newest first.
    pub(super) fn rates_of_group(&self, line: usize) -> &[Option<u64>] {
        self.minutes.get(line).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::pace::SHORTEST;
    use super::*;
    use crate::ls::AskedDaemon;
    use crate::ls::tests::connection_view;

    /// Returns a connection to `198.18.0.COOKIE` that moves `rate` bit/s.
    pub(crate) fn connection(cookie: u64, rate: u64, process: &str) -> ConnectionView {
        ConnectionView {
            cookie,
            peer: format!("198.18.0.{cookie}:443").parse().unwrap(),
            goodput_bps: Some(rate),
            process: Some(process.to_owned()),
            ..connection_view()
        }
    }

    /// Returns a connection of the usual peer that moves `rate` bit/s.
    fn busy(cookie: u64, rate: u64) -> ConnectionView {
        ConnectionView { cookie, goodput_bps: Some(rate), ..connection_view() }
    }

    pub(crate) fn listing(connections: Vec<ConnectionView>) -> Sight {
        let listing = Listing { summary: Summary::of(&connections), connections, ..Listing::default() };
        Sight { listing, interval: SHORTEST }
    }

    pub(crate) fn empty() -> State {
        let asked = AskedDaemon { socket: None, no_daemon: true };
        let options = LsArgs {
            filter: None,
            all: false,
            sort: Order::Rate,
            group: None,
            budget: false,
            json: None,
            asked,
        };
        State::new(&options, "blue".to_owned())
    }

    /// Three connections, of which the second is the busiest.
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
        state.page(0, usize::MAX).map(|one| one.cookie).collect()
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
        assert_eq!((state.lines(), state.digest().hidden), (2, 1));
        state.filter = "curl".to_owned();
        state.arrange();
        let digest = state.digest();
        assert_eq!((cookies(&state), digest.hidden, digest.sums.connections), (vec![2], 1, 2));
        state.all = true;
        state.arrange();
        assert_eq!((cookies(&state), state.digest().hidden), (vec![4, 2], 0));
    }

    #[test]
    fn an_open_connection_is_followed_until_it_is_gone_and_then_stays_as_it_was() {
        let mut state = state();
        state.open();
        state.observe(listing(vec![connection(1, 8, "rsync"), connection(2, 7, "curl")]));
        let opened = state.opened().unwrap();
        assert_eq!((opened.view.cookie, opened.view.goodput_bps, opened.is_gone), (2, Some(7), false));
        state.observe(listing(vec![connection(1, 8, "rsync")]));
        state.explained(1, Some("another's".to_owned()));
        let opened = state.opened().unwrap();
        assert_eq!((opened.view.goodput_bps, opened.is_gone), (Some(7), true));
        assert_eq!((opened.rates.as_slice(), &opened.explanation), (&[Some(7), Some(9_000_000)][..], &None));
        state.close();
        assert!(state.opened().is_none());
    }

    #[test]
    fn a_group_is_opened_and_left_and_stays_chosen() {
        let mut state = empty();
        let all =
            || listing(vec![connection(1, 5, "curl"), connection(2, 9, "ssh"), connection(3, 6, "curl")]);
        state.observe(all());
        state.group();
        let names = |state: &State| -> Vec<String> {
            state.groups().into_iter().flatten().map(|group| group.name.clone()).collect()
        };
        assert_eq!((names(&state), state.lines()), (vec!["curl".to_owned(), "ssh".to_owned()], 2));
        state.observe(all());
        assert_eq!(state.rates_of_group(0), [Some(11), Some(11)]);
        state.go(1);
        state.open();
        assert_eq!((cookies(&state), state.lines(), state.grouping().1), (vec![2], 1, Some("ssh")));
        state.open();
        assert_eq!(state.opened().map(|opened| opened.view.cookie), Some(2));
        assert!(state.close() && state.opened().is_none() && state.grouping().1 == Some("ssh"));
        assert!(state.close());
        assert_eq!((names(&state).len(), state.cursor()), (2, 1));
        assert!(!state.close(), "there is nothing to leave");
        (0..6).for_each(|_| state.group());
        assert_eq!((state.groups().is_none(), state.lines()), (true, 3));
    }

    #[test]
    fn of_ten_thousand_a_picture_gets_the_lines_in_sight_and_one_that_was_chosen_keeps_its_place() {
        let mut state = empty();
        let all = |first: u64| listing((first..10_000 + first).map(|cookie| busy(cookie, cookie)).collect());
        state.observe(all(0));
        assert_eq!(
            (state.lines(), state.page(9_990, 24).len(), state.page(12_000, 24).len()),
            (10_000, 10, 0)
        );
        let page: Vec<u64> = state.page(100, 3).map(|one| one.cookie).collect();
        assert_eq!(page, [9_899, 9_898, 9_897]);
        state.go(5_000);
        state.observe(all(10));
        assert_eq!((state.cursor(), state.row(5_010).map(|one| one.cookie)), (5_010, Some(4_999)));
    }

    #[test]
    fn there_is_nothing_to_open_in_an_empty_list() {
        let mut state = empty();
        state.open();
        assert!(state.opened().is_none());
    }

    #[test]
    fn a_failed_sample_leaves_the_last_one_with_a_note() {
        let mut state = state();
        state.fail("no more descriptors".to_owned());
        assert_eq!((state.lines(), state.notes()), (3, &["no more descriptors".to_owned()][..]));
    }
}
