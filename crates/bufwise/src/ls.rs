//! `bufwise ls`: one line per connection, and what all connections hold together.
//!
//! The table leaves out connections within this host, and idle ones that waste nothing; `--all` and JSON have them. A
//! daemon adds what it has set for the connections that it sizes.

pub(crate) mod budget;
mod colour;
pub(crate) mod groups;
mod select;
mod subject;

use std::fmt::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use bufwise_host::control::{self, Reply, Request};
use bufwise_host::daemon;
use bufwise_host::judge::{Cause, Direction, Roof};
use bufwise_host::netns;
use bufwise_host::survey;
use bufwise_host::view::{ConnectionView, Known, Listing, Summary};
use bufwise_units::counted;
use clap::Args;
use serde::Serialize;

use crate::exit::Outcome;
use crate::figures::{narrow, size};
use crate::output;
use crate::terminal::{self, shortened};
pub(crate) use colour::{Paint, Tint};
use groups::{Group, Grouping};
use select::filtered;
pub(crate) use select::{Order, beyond_base, is_notable, matches, sums_of};
pub(crate) use subject::{Network, Subject, is_below};

/// Widest peer and process; a longer text loses its middle. With these a line has at most 100 columns.
pub(crate) const PEER_WIDTH: usize = 22;
pub(crate) const PROCESS_WIDTH: usize = 14;
/// Columns that are aligned to the right.
pub(crate) const RIGHT: std::ops::RangeInclusive<usize> = 3..=7;
pub(crate) const COLUMNS: usize = 9;
/// Widest name of a daemon's group. If a connection has one, a column follows those of peer and process.
pub(crate) const GROUP_WIDTH: usize = 12;
const GROUP_PLACE: usize = 2;
/// Width of a line without the column of groups.
pub(crate) const LINE: usize = 100;
/// Beginning of the note on a daemon that does not answer.
const WITHOUT_DAEMON: &str = "without the daemon's figures";
pub(crate) const TITLES: [&str; COLUMNS] =
    ["PEER", "PROCESS", "WAY", "RATE", "RTT ms", "BDP", "SEND", "RECEIVE", "LIMITED BY"];

/// List connections: rate, round trip, buffers, and what limits each of them
///
/// A line has the rate now (bit/s), the round-trip time, the BDP, the memory used and allowed to send and to receive, and the
/// limit. The connections with the highest rates come first. Loopback, and idle connections that waste nothing, are shown only with
/// --all. It changes nothing. Without root it lists this network namespace, with root every one.
#[derive(Debug, Args)]
#[command(after_help = "Examples: bufwise ls --group cgroup
          bufwise ls --json | jq '.connections[] | select(.limited_by == \"send-buffer\")'")]
pub(crate) struct LsArgs {
    /// Show only connections of this address, port or program, with this limit, or of this network, cgroup, pod or group
    ///
    /// An address, a port, or both (198.18.0.2:443), of either end; the peer's network (198.18.0.0/16); a part of a program's name
    /// (rsync); a limit (application, send-buffer, receive-window, congestion-window, path, reader); a cgroup with those below it
    /// (/system.slice); a Kubernetes namespace, a pod (namespace/pod) or a container; the name of a daemon's group.
    #[arg(value_name = "FILTER")]
    pub(crate) filter: Option<String>,
    /// Also show loopback connections and idle ones
    #[arg(long)]
    pub(crate) all: bool,
    /// Sort by this: numbers from the largest on, names alphabetically; groups have no round trip and no limit, and are sorted by
    /// rate instead
    #[arg(long, value_name = "BY", value_enum, default_value_t = Order::Rate)]
    pub(crate) sort: Order,
    /// Show a line with sums for each process, peer or other group of connections; JSON has them as `groups`, in addition
    #[arg(long, value_name = "BY", value_enum)]
    pub(crate) group: Option<Grouping>,
    /// Show the daemon's memory instead, whatever the filter: held, reserved and allowed, by group, process and cgroup, and why it
    /// is short; JSON has it as `budget`, in addition
    #[arg(long, conflicts_with_all = ["group", "no_daemon"])]
    pub(crate) budget: bool,
    /// Write all connections as JSON, into this file; - or none for standard output
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) asked: AskedDaemon,
}

/// The daemon that is asked what it knows of the connections that it sizes.
#[derive(Clone, Debug, Args)]
pub(crate) struct AskedDaemon {
    /// Ask the daemon at this control socket, and fail if none listens there; default the configured socket, if a daemon
    /// listens there
    #[arg(long, value_name = "PATH")]
    pub(crate) socket: Option<PathBuf>,
    /// Ask no daemon
    #[arg(long, conflicts_with = "socket")]
    pub(crate) no_daemon: bool,
}

impl LsArgs {
    pub(crate) fn run(self) -> Outcome {
        if let Some(json) = &self.json {
            if self.filter.is_none() {
                output::check_no_filter(json, select::is_filter)?;
            }
            output::check_writable(json)?;
        }
        let mut listing = self.asked.with_daemon(survey::listing()?)?;
        if let Some(filter) = &self.filter {
            listing = filtered(listing, filter);
        }
        if self.budget && listing.budget.is_none() {
            self.asked.bail_without_budget(&listing)?;
        }
        self.sort.sort(&mut listing.connections);
        let by = self.group.filter(|_| self.json.is_some());
        let groups = by.map(|by| by.groups(listing.connections.iter(), self.sort));
        let groups = by.zip(groups.as_deref()).map(|(by, groups)| groups::Document::new(by, groups));
        let home = netns::own()?.label();
        let as_text = || match listing.budget.as_ref().filter(|_| self.budget) {
            Some(budget) => budget::picture(budget),
            None => {
                let by = self.group.unwrap_or_default();
                text(&listing, self.all, by, self.sort, &home, Paint::of_stdout())
            }
        };
        output::both(self.json.as_deref(), &Document { listing: &listing, groups }, as_text)?;
        Ok(0)
    }
}

/// The list as JSON.
#[derive(Debug, Serialize)]
struct Document<'a> {
    #[serde(flatten)]
    listing: &'a Listing,
    #[serde(flatten)]
    groups: Option<groups::Document<'a>>,
}

impl AskedDaemon {
    /// Returns the socket at which a daemon is asked, if one is to be asked.
    pub(crate) fn daemon(&self) -> Option<PathBuf> {
        let socket = || self.socket.clone().unwrap_or_else(daemon::configured_socket);
        (!self.no_daemon).then(socket)
    }

    /// Fails with the reason why there is no daemon's memory to show.
    fn bail_without_budget(&self, listing: &Listing) -> Result<()> {
        let why = listing.notes.iter().find(|note| note.starts_with(WITHOUT_DAEMON)).map(String::as_str);
        let no_daemon = "--budget shows the memory of a daemon, and no daemon listens: start bufwise daemon";
        bail!("{}", why.unwrap_or(no_daemon))
    }

    /// Adds what a daemon knows to the listing from socket diagnostics.
    pub(crate) fn with_daemon(&self, mut listing: Listing) -> Result<Listing> {
        Ok(match self.known(&mut listing)? {
            Some(mut known) => known.add_to(listing),
            None => listing,
        })
    }

    /// Asks the daemon; a note in `listing` says why it does not answer. `None` if it does not, or if there is none.
    pub(crate) fn known(&self, listing: &mut Listing) -> Result<Option<Known>> {
        let Some(socket) = self.daemon() else { return Ok(None) };
        let why = match control::ask(&socket, &Request::List) {
            Ok(Some(Reply::List(known))) => return Ok(Some(Known::new(*known, listing))),
            Ok(Some(Reply::Error(error))) if self.socket.is_some() => {
                bail!("the daemon could not list its connections: {error}")
            }
            Ok(Some(Reply::Error(error))) => error,
            Ok(Some(_)) => "its answer is not a list".to_owned(),
            Ok(None) if self.socket.is_some() => bail!("there is no daemon at {}", socket.display()),
            Ok(None) => return Ok(None),
            Err(error) => bufwise_host::in_words(&error),
        };
        listing.notes.push(format!("{WITHOUT_DAEMON}: {why}"));
        Ok(None)
    }
}

/// Returns the table of connections or groups, their sums and the notes.
fn text(listing: &Listing, all: bool, by: Grouping, order: Order, home: &str, paint: Paint) -> String {
    let shown: Vec<&ConnectionView> =
        listing.connections.iter().filter(|one| all || is_notable(one)).collect();
    let mut text = match by {
        Grouping::None => table(&shown, home, paint),
        by => {
            let groups: Vec<Group> = by.groups(shown.iter().copied(), order);
            let mut lines = groups::lines(by, &groups);
            if let Some(head) = lines.first_mut() {
                *head = paint.title(head);
            }
            lines.concat()
        }
    };
    text += &sums(&listing.summary);
    let budget = listing.budget.iter().flat_map(|budget| budget::lines(budget, LINE));
    text.extend(budget.map(|line| line + "\n"));
    let hidden = listing.connections.len() - shown.len();
    if hidden > 0 {
        text += &format!("{hidden} not shown (loopback, or idle without waste): --all shows them\n");
    }
    for note in &listing.notes {
        // Writing into a string cannot fail.
        let _infallible = writeln!(text, "note: {note}");
    }
    text
}

/// Writes one line per connection; those outside of `home`, the caller's network namespace, follow under headings.
fn table(shown: &[&ConnectionView], home: &str, paint: Paint) -> String {
    let has_groups = shown.iter().any(|one| one.group.is_some());
    let with_group = |cells: [String; COLUMNS], group: String| {
        let mut cells = Vec::from(cells);
        if has_groups {
            cells.insert(GROUP_PLACE, group);
        }
        cells
    };
    let rows: Vec<Vec<String>> =
        shown.iter().map(|one| with_group(row(one), group(one, GROUP_WIDTH))).collect();
    let titles = with_group(TITLES.map(str::to_owned), "GROUP".to_owned());
    let widths: Vec<usize> = (0..titles.len())
        .map(|column| {
            let cells = rows.iter().chain([&titles]).map(|row| terminal::width(&row[column]));
            cells.max().unwrap_or_default()
        })
        .collect();
    let mut text = String::new();
    if !rows.is_empty() {
        text += &paint.title(&line(&titles, &widths));
    }
    let mut places = vec![home];
    for one in shown {
        if !places.contains(&one.netns.as_str()) {
            places.push(&one.netns);
        }
    }
    for place in places {
        let inside: Vec<_> = shown.iter().zip(&rows).filter(|(one, _)| one.netns == place).collect();
        if place != home && !inside.is_empty() {
            text += &format!("in network namespace {place}:\n");
        }
        text.extend(inside.into_iter().map(|(one, row)| paint.row(one, &line(row, &widths))));
    }
    text
}

/// Returns the cells of a connection's line.
pub(crate) fn row(one: &ConnectionView) -> [String; COLUMNS] {
    let or_dash = |figure: Option<String>| figure.unwrap_or_else(|| "-".to_owned());
    [
        shortened(&one.peer.to_string(), PEER_WIDTH),
        shortened(&process(one), PROCESS_WIDTH),
        match one.direction {
            Direction::Send => "send".to_owned(),
            Direction::Receive => "recv".to_owned(),
        },
        or_dash(one.goodput_bps.map(narrow)),
        or_dash(one.srtt_s.map(|seconds| milliseconds(seconds * 1e3))),
        or_dash(one.bdp_bytes.map(narrow)),
        format!("{}/{}", narrow(one.send_queued_bytes), narrow(one.send_buffer_bytes)),
        format!("{}/{}", narrow(one.receive_queued_bytes), narrow(one.receive_buffer_bytes)),
        or_dash(one.limited_by.map(|cause| limit(one, cause).to_owned())),
    ]
}

/// Returns program and number of the process that holds the connection: `rsync/7`.
pub(crate) fn process(one: &ConnectionView) -> String {
    match (&one.process, one.pid) {
        (Some(name), Some(pid)) => format!("{name}/{pid}"),
        _ => "-".to_owned(),
    }
}

/// Returns the daemon's group of the connection, in at most `width` columns of a terminal.
pub(crate) fn group(one: &ConnectionView, width: usize) -> String {
    shortened(one.group.as_deref().unwrap_or("-"), width)
}

/// Formats a time in milliseconds for a narrow column: `0.02`, `0.5`, `42.0`, `107`.
pub(crate) fn milliseconds(time: f64) -> String {
    match time {
        ..0.095 => format!("{time:.2}"),
        ..99.95 => format!("{time:.1}"),
        _ => format!("{time:.0}"),
    }
}

/// Returns the limit as text: where fit's rate is the real limit, it replaces the window or buffer that the kernel
/// reports.
fn limit(one: &ConnectionView, cause: Cause) -> &'static str {
    match cause {
        Cause::SendBuffer | Cause::CongestionWindow => match one.roof() {
            Roof::Limits => "rate (fit)",
            Roof::Bound => "rate bound",
            Roof::None | Roof::ForeignQueue => short(cause),
        },
        _ => short(cause),
    }
}

/// Returns a cause for a narrow column.
pub(crate) fn short(cause: Cause) -> &'static str {
    match cause {
        Cause::Application => "application",
        Cause::SendBuffer => "send buffer",
        Cause::ReceiveWindow => "recv window",
        Cause::CongestionWindow => "cong window",
        Cause::Path => "path",
        Cause::Reader => "reader",
    }
}

fn line(cells: &[String], widths: &[usize]) -> String {
    let more = cells.len() - COLUMNS;
    let padded = cells.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
        let is_figure = column > GROUP_PLACE && RIGHT.contains(&(column - more));
        if is_figure { terminal::right(cell, *width) } else { terminal::left(cell, *width) }
    });
    format!("{}\n", padded.collect::<Vec<_>>().join("  ").trim_end())
}

/// Writes the memory that all connections hold together, and the daemon's budget, one per line.
pub(crate) fn sums(summary: &Summary) -> String {
    let mut text = format!(
        "{}; send queues hold {} of {} allowed, receive queues {} of {}; {} beyond need\n",
        counted(summary.connections, "connection"),
        size(summary.send_queued_bytes),
        size(summary.send_allowed_bytes),
        size(summary.receive_queued_bytes),
        size(summary.receive_allowed_bytes),
        size(summary.waste_bytes),
    );
    if let Some(budget) = summary.budget_bytes {
        let pressure = if summary.pressure == Some(true) { "under pressure" } else { "no pressure" };
        let sized =
            summary.sized_connections.map(|sized| format!("; it sizes {}", counted(sized, "connection")));
        let sized = sized.unwrap_or_default();
        text += &format!("daemon: budget {} for send queues, {pressure}{sized}\n", size(budget));
    }
    text
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bufwise_host::view::{Fit, FitPhase, Tuned};

    const PLAIN: Paint = Paint { colours: false };

    /// A connection that moves 8 Mbit/s and wastes memory.
    pub(crate) fn connection_view() -> ConnectionView {
        let view = serde_json::json!({
            "netns": "blue", "cookie": 1, "local": "198.18.0.1:40000", "peer": "198.18.0.2:443",
            "pid": 7, "process": "rsync", "state": "established", "direction": "send",
            "congestion_control": "cubic", "bytes_acked": 100_000, "bytes_received": 0,
            "goodput_bps": 8_000_000, "delivery_rate_bps": 10_000_000, "srtt_s": 0.050, "min_rtt_s": 0.040,
            "cwnd_bytes": 0, "bdp_bytes": 50_000, "send_buffer_bytes": 4_000_000,
            "send_queued_bytes": 100_000, "receive_buffer_bytes": 131_072, "receive_queued_bytes": 0,
            "receive_window_bytes": 0, "send_window_bytes": 0, "segments_out": 0, "retransmits": 0,
            "limited_by": "application", "send_need_bytes": 250_000, "receive_need_bytes": 0,
            "waste_bytes": 3_750_000,
        });
        serde_json::from_value(view).unwrap()
    }

    fn with_peer(peer: &str) -> ConnectionView {
        ConnectionView { peer: peer.parse().unwrap(), ..connection_view() }
    }

    fn listing(connections: Vec<ConnectionView>) -> Listing {
        let notes = vec!["be careful".to_owned()];
        Listing { summary: Summary::of(&connections), connections, notes, ..Listing::default() }
    }

    fn by_itself(listing: &Listing, all: bool) -> String {
        text(listing, all, Grouping::None, Order::Rate, "blue", PLAIN)
    }

    #[test]
    fn groups_stand_in_the_connections_place_with_the_same_sums() {
        let local = with_peer("127.0.0.1:80");
        let list = listing(vec![with_peer("198.18.0.2:80"), with_peer("198.18.0.3:80"), local]);
        let text = text(&list, false, Grouping::Prefix, Order::Rate, "blue", PLAIN);
        assert!(text.starts_with("PREFIX         CONNS  RATE"), "{text}");
        assert!(text.contains("\n198.18.0.0/24      2   16M"), "{text}");
        assert!(text.contains("3 connections; ") && text.contains("1 not shown"), "{text}");
        assert!(text.ends_with("note: be careful\n"), "{text}");
    }

    #[test]
    fn a_single_connection_is_counted_in_the_singular() {
        let (budget_bytes, sized_connections) = (Some(16_000_000), Some(1));
        let summary =
            Summary { budget_bytes, sized_connections, ..Summary::of(&[with_peer("198.18.0.2:80")]) };
        let text = sums(&summary);
        assert!(text.starts_with("1 connection; send queues hold "), "{text}");
        assert!(
            text.ends_with("\ndaemon: budget 16.00 MB for send queues, no pressure; it sizes 1 connection\n"),
            "{text}"
        );
    }

    #[test]
    fn the_widest_line_fits_a_hundred_columns() {
        let wide = ConnectionView {
            process: Some("a-long-program".to_owned()),
            pid: Some(4_194_304),
            srtt_s: Some(1.234_5),
            limited_by: Some(Cause::ReceiveWindow),
            send_queued_bytes: 1_234_567_890,
            send_buffer_bytes: 1_234_567_890,
            receive_queued_bytes: 999_499,
            receive_buffer_bytes: 999_499,
            ..with_peer("[fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535")
        };
        let text = by_itself(&listing(vec![wide]), false);
        for line in text.lines().take(2) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
        assert!(text.contains("9abc]:65535") && text.contains("recv window"), "{text}");
    }

    #[test]
    fn a_sender_at_its_roof_is_limited_by_it_and_not_by_a_window() {
        let fit = Fit {
            phase: FitPhase::Follow,
            reason: None,
            roof_bps: Some(9_000_000),
            capacity_bps: None,
            descents: 0,
            opened: 0,
        };
        let tuned = |rate_bound_bps| Some(Tuned { rate_bound_bps, fit: Some(fit), ..Tuned::default() });
        let held = ConnectionView {
            limited_by: Some(Cause::CongestionWindow),
            tuned: tuned(Some(9_000_000)),
            ..with_peer("198.18.0.2:80")
        };
        let limit = |one: &ConnectionView| row(one)[COLUMNS - 1].clone();
        assert_eq!(limit(&held), "rate (fit)");
        assert_eq!(limit(&ConnectionView { tuned: tuned(None), ..held.clone() }), "cong window");
        let waits = ConnectionView { limited_by: Some(Cause::Application), ..held };
        assert_eq!(limit(&waits), "application");
    }

    #[test]
    fn loopback_and_idle_connections_are_counted_and_shown_on_demand() {
        let idle = ConnectionView {
            goodput_bps: Some(0),
            send_queued_bytes: 0,
            waste_bytes: 0,
            ..with_peer("198.18.0.3:80")
        };
        let wasteful = ConnectionView {
            waste_bytes: 1,
            ..ConnectionView { peer: "198.18.0.4:80".parse().unwrap(), ..idle.clone() }
        };
        let mut listing =
            listing(vec![with_peer("127.0.0.1:80"), idle, wasteful, with_peer("198.18.0.2:80")]);
        Order::Rate.sort(&mut listing.connections);
        let text = by_itself(&listing, false);
        let busy = text.find("198.18.0.2:80").expect("it moves");
        assert!(text.find("198.18.0.4:80").expect("it wastes") > busy, "the busiest first: {text}");
        assert!(!text.contains("198.18.0.3:80") && !text.contains("127.0.0.1:80"), "{text}");
        assert!(text.contains("4 connections") && text.contains("2 not shown"), "{text}");
        assert!(text.ends_with("note: be careful\n"), "{text}");
        let text = by_itself(&listing, true);
        assert!(text.contains("198.18.0.3:80") && text.contains("127.0.0.1:80"), "{text}");
    }

    #[test]
    fn a_daemons_groups_have_a_column_where_there_are_any() {
        let peer = |peer: &str| with_peer(peer);
        let group = Some("a-database-with-a-long-name".to_owned());
        let grouped = ConnectionView { group, ..peer("198.18.0.2:80") };
        let text = by_itself(&listing(vec![grouped, peer("198.18.0.30:80")]), false);
        let lines: Vec<&str> = text.lines().collect();
        let expected = "\
PEER            PROCESS  GROUP         WAY   RATE  RTT ms  BDP       SEND  RECEIVE  LIMITED BY
198.18.0.2:80   rsync/7  a-dat~g-name  send  8.0M    50.0  50K  100K/4.0M   0/131K  application
198.18.0.30:80  rsync/7  -             send  8.0M    50.0  50K  100K/4.0M   0/131K  application";
        assert_eq!(lines[..3].join("\n"), expected);
        assert!(!by_itself(&listing(vec![peer("198.18.0.2:80")]), false).contains("GROUP"));
    }

    #[test]
    fn wide_letters_and_marks_of_a_programs_name_move_no_column() {
        let named = |name: &str, pid| ConnectionView {
            process: Some(name.to_owned()),
            pid: Some(pid),
            ..with_peer("198.18.0.2:80")
        };
        let (wide, marked) = ("\u{65e5}\u{672c}\u{8a9e}", "cafe\u{301}");
        let all = vec![named(wide, 7), named(marked, 7), named(&wide.repeat(2), 4_194_304)];
        let text = by_itself(&listing(all), false);
        let before_way = |line: &str| line.find("  send  ").map(|at| terminal::width(&line[..at]));
        let places: Vec<_> = text.lines().skip(1).take(3).map(before_way).collect();
        assert_eq!(places, [Some(13 + 2 + PROCESS_WIDTH); 3], "{text}");
    }

    #[test]
    fn other_namespaces_have_a_heading() {
        let other = ConnectionView { netns: "green".to_owned(), ..with_peer("198.18.0.9:80") };
        let text = by_itself(&listing(vec![with_peer("198.18.0.2:80"), other]), false);
        let heading = text.find("in network namespace green:").unwrap();
        assert!(
            text.find("198.18.0.2:80").unwrap() < heading && heading < text.find("198.18.0.9:80").unwrap()
        );
        assert!(!text.contains("namespace blue"), "{text}");
    }

    #[test]
    fn a_daemons_budget_and_pressure_stand_in_the_sums() {
        let mut summary = Summary::of(&[with_peer("198.18.0.2:80")]);
        assert!(!sums(&summary).contains("budget"));
        (summary.budget_bytes, summary.pressure) = (Some(64 << 20), Some(true));
        assert!(sums(&summary).contains("budget 67.11 MB for send queues, under pressure"));
        let picture = Listing { budget: Some(budget::tests::short()), ..listing(Vec::new()) };
        let text = by_itself(&picture, false);
        assert!(text.contains("\nto send    [########===") && text.contains("\npressure: 512 "), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 108), "{text}");
    }
}
