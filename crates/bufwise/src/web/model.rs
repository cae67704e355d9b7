//! The last sample of the connections, and the events that are made of it for a page. No I/O and no clock.

use std::collections::{HashMap, VecDeque};

use bufwise_host::budget::Side;
use bufwise_host::view::{ConnectionView, Listing, Summary};
use bufwise_units::{Micros, counted};

use super::event::{self, Bar, Event, Opened, Row, Table};
use super::samples::{self, Sample, Total, spark};
use super::view::View;
use crate::figures::{rate, size};
use crate::ls::{budget, sums, sums_of};
use crate::top::columns::{self, Column};
use crate::top::detail;
use crate::top::groups::{Group, total};
use crate::top::history::Histories;
use crate::top::news::Sight;
use crate::top::pace;

/// Most lines of a page; it gets the sums of the others.
const ROWS: usize = 500;
/// Most bytes of an event; 500 usual lines take a third of it.
pub(super) const MAX_EVENT: usize = 256 << 10;
/// Most notes, or sentences on a connection; and most characters of each.
const MAX_TEXTS: usize = 30;
const MAX_TEXT: usize = 500;

/// The connections, the last minute of each, and the texts of `explain`.
pub(super) struct Model {
    listing: Listing,
    /// Whether there was a sample since [`Model::forget`].
    is_known: bool,
    histories: Histories<Sample>,
    /// The last minute of all connections together, newest first.
    totals: VecDeque<Total>,
    explained: HashMap<u64, Explained>,
    explanations: u64,
    host: String,
    /// Label of the caller's network namespace.
    home: String,
    /// Time between the last sample and the next.
    interval: Micros,
}

/// The text of `explain` on a connection.
struct Explained {
    /// Its number in the order of explanations.
    number: u64,
    sentences: Vec<String>,
}

impl Model {
    /// Returns the model before the first sample.
    pub(super) fn new(home: String) -> Self {
        let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned());
        Self {
            listing: Listing::default(),
            is_known: false,
            histories: Histories::new(),
            totals: VecDeque::new(),
            explained: HashMap::new(),
            explanations: 0,
            host: host.unwrap_or_default(),
            home,
            interval: pace::SHORTEST,
        }
    }

    /// Takes a new sample of all connections.
    pub(super) fn observe(&mut self, Sight { listing, interval }: Sight) {
        self.interval = interval;
        self.histories.add(&listing.connections, interval);
        self.totals.truncate(self.histories.samples() - 1);
        self.totals.push_front(Total::from(&listing));
        self.listing = listing;
        self.is_known = true;
    }

    /// Takes a failed sample: the last one stays, with a note.
    pub(super) fn fail(&mut self, why: String) {
        self.listing.notes = vec![why];
        self.is_known = true;
    }

    /// Forgets everything: later samples do not continue the earlier ones.
    pub(super) fn forget(&mut self) {
        *self = Self::new(std::mem::take(&mut self.home));
    }

    /// Whether there is a sample to show.
    pub(super) fn is_known(&self) -> bool {
        self.is_known
    }

    pub(super) fn home(&self) -> &str {
        &self.home
    }

    /// Returns the one of these connections whose explanation is the oldest; forgets all other explanations.
    pub(super) fn next_to_explain(&mut self, opened: &[u64]) -> Option<&ConnectionView> {
        self.explained.retain(|cookie, _| opened.contains(cookie));
        let number = |cookie: u64| self.explained.get(&cookie).map_or(0, |explained| explained.number);
        let there = self.listing.connections.iter().filter(|one| opened.contains(&one.cookie));
        there.min_by_key(|one| number(one.cookie))
    }

    /// Takes the text of `explain` on a connection.
    pub(super) fn explained(&mut self, cookie: u64, text: &str) {
        self.explanations += 1;
        // The first line names the connection, which the page's title also does.
        let sentences =
            text.lines().filter_map(|line| line.strip_prefix("  ").or(line.strip_prefix("note: ")));
        let mut sentences = bounded(sentences);
        if sentences.is_empty() {
            sentences = bounded(text.lines());
        }
        self.explained.insert(cookie, Explained { number: self.explanations, sentences });
    }

    /// Returns the next event of a page for its stream, at most [`MAX_EVENT`] bytes.
    pub(super) fn event(&self, view: &View) -> Vec<u8> {
        let mut rows = ROWS;
        loop {
            let event = self.event_with(view, rows);
            // JSON fails only for maps with keys that are not texts, and there are none.
            let json = serde_json::to_string(&event).unwrap_or_default();
            if json.len() + 8 <= MAX_EVENT || rows == 0 {
                return format!("data: {json}\n\n").into_bytes();
            }
            rows /= 2;
        }
    }

    fn event_with(&self, view: &View, rows: usize) -> Event {
        let passing: Vec<&ConnectionView> =
            self.listing.connections.iter().filter(|one| view.passes(one)).collect();
        let summary = sums_of(self.listing.summary, passing.iter().copied());
        Event {
            host: cut(&self.host),
            interval_s: self.interval.as_secs_f64(),
            samples: self.histories.samples(),
            sums: sums(&summary).lines().map(str::to_owned).collect(),
            budget: self.bars(),
            pressure: self.pressure(),
            totals: samples::of_all(&self.totals),
            table: view.opened.is_none().then(|| self.table(view, &passing, rows)),
            opened: view.opened.and_then(|cookie| self.opened(cookie)),
            notes: bounded(self.listing.notes.iter().map(String::as_str)),
        }
    }

    fn bars(&self) -> Vec<Bar> {
        let bar = |(name, side): (&'static str, &Side)| Bar {
            name,
            held: side.held_bytes,
            reserved: side.reserved_bytes(),
            budget: side.budget_bytes,
            text: budget::text(side),
        };
        self.listing.budget.iter().flat_map(budget::sides).map(bar).collect()
    }

    /// Returns the lines of `ls` below the bars.
    fn pressure(&self) -> Vec<String> {
        let lines: Vec<String> = self.listing.budget.iter().flat_map(budget::below).collect();
        bounded(lines.iter().map(String::as_str))
    }

    fn table(&self, view: &View, passing: &[&ConnectionView], rows: usize) -> Table {
        let mut shown: Vec<&ConnectionView> = passing.iter().copied().filter(|one| view.shows(one)).collect();
        let hidden = passing.len() - shown.len();
        shown.retain(|one| view.is_inside(one));
        if view.has_groups() {
            let groups = view.grouping.groups(shown.into_iter(), view.order);
            let (first, more) = groups.split_at(rows.min(groups.len()));
            return Table {
                columns: event::group_headings(view.grouping.title()),
                rows: first.iter().map(|group| self.group(group)).collect(),
                rest: (!more.is_empty()).then(|| counted(more.len(), "more group")),
                hidden,
            };
        }
        shown.sort_by(|a, b| view.order.compare(a, b));
        let (first, more) = shown.split_at(rows.min(shown.len()));
        let any = |has: &dyn Fn(&ConnectionView) -> bool| first.iter().any(|one| has(one));
        let optional = [
            (Column::Namespace, any(&|one| one.netns != self.home)),
            (Column::Cgroup, any(&|one| one.cgroup.is_some())),
            (Column::Group, any(&|one| one.group.is_some())),
        ];
        let optional: Vec<Column> =
            optional.into_iter().filter(|(_, shows)| *shows).map(|(column, _)| column).collect();
        let columns = columns::all(&optional);
        let row = |one: &&ConnectionView| {
            Row::of(one, &columns, spark(&self.histories.of(one.cookie, Sample::rate)))
        };
        Table {
            columns: event::headings(&columns),
            rows: first.iter().map(row).collect(),
            rest: (!more.is_empty()).then(|| rest(more)),
            hidden,
        }
    }

    fn group(&self, group: &Group) -> Row {
        let cells = std::iter::once(group.name.clone()).chain(group.cells()).collect();
        let spark = spark(&self.histories.sum(&group.cookies, Sample::rate));
        Row { id: group.name.clone(), cells, spark, tint: None }
    }

    fn opened(&self, cookie: u64) -> Option<Opened> {
        let view = self.listing.connections.iter().find(|one| one.cookie == cookie)?;
        let explained = self.explained.get(&cookie);
        Some(Opened {
            title: detail::title(view, false),
            figures: detail::figures(view),
            graphs: samples::of_connection(&self.histories, cookie),
            sentences: explained.map(|one| one.sentences.clone()).unwrap_or_default(),
        })
    }
}

/// Returns the sums of the connections beyond the last line.
fn rest(more: &[&ConnectionView]) -> String {
    let sums = Summary::of(more.iter().copied());
    let moved =
        total(more.iter().map(|one| one.goodput_bps)).map_or_else(|| "an unknown rate".to_owned(), rate);
    format!(
        "{}: {moved}; send queues hold {}, receive queues {}; {} beyond need",
        counted(more.len(), "more connection"),
        size(sums.send_queued_bytes),
        size(sums.receive_queued_bytes),
        size(sums.waste_bytes)
    )
}

/// Returns the first texts, each cut to its largest length.
fn bounded<'a>(texts: impl Iterator<Item = &'a str>) -> Vec<String> {
    texts.map(cut).take(MAX_TEXTS).collect()
}

/// Returns a text without what exceeds its largest length.
fn cut(text: &str) -> String {
    text.chars().take(MAX_TEXT).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ls::tests::connection_view;
    use serde_json::Value;

    /// A connection to a peer of its own, which moves `rate` bit/s.
    fn connection(cookie: u64, rate: u64) -> ConnectionView {
        let peer = format!("198.18.{}.{}:443", cookie / 256, cookie % 256).parse().unwrap();
        ConnectionView { cookie, peer, goodput_bps: Some(rate), ..connection_view() }
    }

    fn model(connections: Vec<ConnectionView>) -> Model {
        let mut model = Model::new("blue".to_owned());
        let listing = Listing { summary: Summary::of(&connections), connections, ..Listing::default() };
        model.observe(Sight { listing, interval: pace::SHORTEST });
        model
    }

    fn event(model: &Model, query: &str) -> Value {
        let bytes = model.event(&View::parse(query).unwrap());
        let text = String::from_utf8(bytes).unwrap();
        let json = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        assert!(!json.contains('\n'), "one line: {json}");
        serde_json::from_str(json).unwrap()
    }

    fn first_cells(event: &Value) -> Vec<&str> {
        event["table"]["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| row["cells"][0].as_str().unwrap())
            .collect()
    }

    #[test]
    fn lines_are_filtered_sorted_and_counted_as_in_top() {
        let local = ConnectionView { peer: "127.0.0.1:80".parse().unwrap(), ..connection(9, 9) };
        let mut all = vec![connection(1, 5), connection(2, 7), local];
        all[0].process = Some("curl".to_owned());
        let model = model(all);
        let seen = event(&model, "");
        assert_eq!(first_cells(&seen), ["198.18.0.2:443", "198.18.0.1:443"]);
        assert_eq!((&seen["table"]["hidden"], &seen["table"]["rest"]), (&Value::from(1), &Value::Null));
        assert_eq!(
            first_cells(&event(&model, "sort=peer&all=1")),
            ["127.0.0.1:80", "198.18.0.1:443", "198.18.0.2:443"]
        );
        let filtered = event(&model, "filter=curl");
        assert_eq!(first_cells(&filtered), ["198.18.0.1:443"]);
        assert!(filtered["sums"][0].as_str().unwrap().starts_with("1 connection; "), "{filtered}");
        assert_eq!(filtered["totals"][0]["most"], 21, "graphs are of all");
    }

    #[test]
    fn groups_have_sums_and_are_entered() {
        let mut all = vec![connection(1, 5), connection(2, 7), connection(3, 1)];
        all[1].process = Some("curl".to_owned());
        let model = model(all);
        let groups = event(&model, "group=process");
        assert_eq!(first_cells(&groups), ["curl", "rsync"]);
        assert_eq!(groups["table"]["rows"][1]["cells"][1], "2");
        let inside = event(&model, "group=process&inside=rsync");
        assert_eq!(first_cells(&inside), ["198.18.0.1:443", "198.18.0.3:443"]);
    }

    #[test]
    fn an_open_connection_comes_with_graphs_and_sentences_and_without_the_others() {
        let mut model = model(vec![connection(1, 5), connection(2, 7)]);
        assert_eq!(model.next_to_explain(&[2, 3]).map(|one| one.cookie), Some(2));
        model.explained(2, "a to b: c\n  Limited by path.\n  Advice: none.\nnote: be careful\n");
        let seen = event(&model, "open=2");
        assert_eq!(seen["table"], Value::Null);
        assert_eq!(seen["opened"]["graphs"][0]["lines"][0]["values"], serde_json::json!([7]));
        assert_eq!(
            seen["opened"]["sentences"],
            serde_json::json!(["Limited by path.", "Advice: none.", "be careful"])
        );
        assert_eq!(
            model.next_to_explain(&[1, 2]).map(|one| one.cookie),
            Some(1),
            "the oldest explanation first"
        );
        model.explained(1, "It ended.");
        assert_eq!(event(&model, "open=1")["opened"]["sentences"], serde_json::json!(["It ended."]));
        assert_eq!(event(&model, "open=3")["opened"], Value::Null);
        assert!(model.next_to_explain(&[]).is_none() && model.explained.is_empty());
    }

    #[test]
    fn a_daemons_memory_is_a_bar_for_each_direction_and_the_causes_of_pressure() {
        let mut model = model(vec![connection(1, 1)]);
        assert_eq!(event(&model, "")["budget"], serde_json::json!([]));
        model.listing.budget = Some(budget::tests::short());
        let seen = event(&model, "");
        let text = "4.00 MB held of 16.00 MB, 4.00 MB reserved, 8.00 MB allowed";
        let bar = serde_json::json!({
            "name": "to send", "held": 4_000_000, "reserved": 4_000_000, "budget": 16_000_000, "text": text,
        });
        assert_eq!((&seen["budget"][0], &seen["budget"][1]["name"]), (&bar, &"to receive".into()));
        assert_eq!(seen["pressure"][1], "pressure: 512 connections ask for 41.00 MB");
    }

    #[test]
    fn ten_thousand_connections_with_the_longest_texts_stay_below_the_bound() {
        let longest = |cookie: u64| ConnectionView {
            cookie: u64::MAX - cookie,
            peer: "[fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535".parse().unwrap(),
            netns: "\u{1}".repeat(255),
            process: Some("\u{1}".repeat(15)),
            pid: Some(4_194_304),
            ..connection(cookie, 999_999)
        };
        let mut model = model((0..10_000).map(longest).collect());
        for _ in 0..60 {
            let notes = vec!["\u{1}".repeat(10_000); 100];
            let listing = Listing { notes, ..model.listing.clone() };
            model.observe(Sight { listing, interval: pace::SHORTEST });
        }
        model.explained(u64::MAX, &"  \u{1}\u{1}\u{1}\n".repeat(100_000));
        for query in [
            "",
            "all=1&sort=peer",
            "group=namespace",
            "group=process&inside=x",
            &format!("open={}", u64::MAX),
        ] {
            let bytes = model.event(&View::parse(query).unwrap());
            assert!(bytes.len() <= MAX_EVENT, "{query}: {}", bytes.len());
        }
        assert_eq!(model.totals.len(), 60);
    }

    #[test]
    fn of_ten_thousand_the_first_500_are_shown_and_the_rest_is_summed_up() {
        let model = model((1..=10_000).map(|cookie| connection(cookie, cookie)).collect());
        let seen = event(&model, "");
        assert_eq!((first_cells(&seen).len(), first_cells(&seen)[0]), (ROWS, "198.18.39.16:443"));
        let rest = seen["table"]["rest"].as_str().unwrap();
        assert!(rest.starts_with("9500 more connections: 45.1 Mbit/s; send queues hold 950.00 MB"), "{rest}");
    }

    #[test]
    fn what_was_seen_before_a_pause_is_forgotten() {
        let mut model = model(vec![connection(1, 5)]);
        assert!(model.is_known());
        model.forget();
        assert!(!model.is_known() && model.totals.is_empty() && model.home() == "blue");
        model.fail("no more descriptors".to_owned());
        assert!(model.is_known());
        assert_eq!(event(&model, "")["notes"], serde_json::json!(["no more descriptors"]));
    }
}
