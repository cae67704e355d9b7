//! Events, one per interval for each page: formatted texts as in `top`, so that the page needs no units.

use std::borrow::Cow;

use bufwise_host::view::ConnectionView;
use clap::ValueEnum;
use serde::Serialize;

use super::samples::Graph;
use crate::ls::{Order, Tint, process};
use crate::top::columns::{self, Column};
use crate::top::groups;
use crate::top::keys::ORDERS;

/// One event of the stream.
#[derive(Debug, Serialize)]
pub(super) struct Event {
    /// This host's name.
    pub(super) host: String,
    /// Seconds between two events.
    pub(super) interval_s: f64,
    /// Number of samples in a minute, which is the width of each graph.
    pub(super) samples: usize,
    /// The sums of `ls` over the connections that pass the filter, one per line.
    pub(super) sums: Vec<String>,
    /// The daemon's memory, a bar for each direction; empty without a daemon.
    pub(super) budget: Vec<Bar>,
    /// Why memory is short, and which connections have no room, one per line.
    pub(super) pressure: Vec<String>,
    /// Values of all connections over time.
    pub(super) totals: Vec<Graph>,
    /// `None` if one connection is open.
    pub(super) table: Option<Table>,
    /// `None` if no connection is open, or the open one has ended.
    pub(super) opened: Option<Opened>,
    pub(super) notes: Vec<String>,
}

/// The daemon's memory for one direction.
#[derive(Debug, Serialize)]
pub(super) struct Bar {
    /// The direction.
    pub(super) name: &'static str,
    pub(super) held: u64,
    pub(super) reserved: u64,
    pub(super) budget: u64,
    pub(super) text: String,
}

/// Connections or groups, one per line.
#[derive(Debug, Serialize)]
pub(super) struct Table {
    pub(super) columns: Vec<Heading>,
    pub(super) rows: Vec<Row>,
    /// Sums of the lines beyond these, if any.
    pub(super) rest: Option<String>,
    /// Number of connections that pass the filter but are not worth a line.
    pub(super) hidden: usize,
}

/// The head of a column.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Heading {
    title: String,
    /// Rank: where space is short, columns with larger ranks are left out first.
    rank: usize,
    /// Whether the column is aligned to the right.
    is_figure: bool,
    /// Name of the order by this column.
    sort: Option<String>,
}

/// One line.
#[derive(Debug, Serialize)]
pub(super) struct Row {
    /// A connection's cookie, as text because it is too large for a number in a browser, or a group's name.
    pub(super) id: String,
    pub(super) cells: Vec<String>,
    /// The last minute of the rate; see [`super::samples::spark`].
    pub(super) spark: String,
    /// Kind of the limit, which the last cell gives in words: `small` (a buffer or window), `fit`, `program`.
    pub(super) tint: Option<&'static str>,
}

/// The opened connection.
#[derive(Debug, Serialize)]
pub(super) struct Opened {
    pub(super) title: String,
    pub(super) figures: Vec<String>,
    pub(super) graphs: Vec<Graph>,
    /// The sentences of `explain`; empty until it has watched.
    pub(super) sentences: Vec<String>,
}

/// Returns the name of an order in `--sort`.
fn name(order: Order) -> Option<String> {
    Some(order.to_possible_value()?.get_name().to_owned())
}

/// Returns the heads of the columns of connections.
pub(super) fn headings(columns: &[(Column, usize)]) -> Vec<Heading> {
    let sort = |column: Column| match column {
        Column::SEND | Column::RECEIVE => name(Order::Memory),
        _ => ORDERS
            .iter()
            .find(|(_, order, _)| Column::of(*order) == Some(column))
            .and_then(|(_, one, _)| name(*one)),
    };
    let heading = |column: Column| Heading {
        title: column.title().to_owned(),
        rank: column.rank(),
        is_figure: column.is_figure(),
        sort: sort(column),
    };
    columns.iter().map(|(column, _)| heading(*column)).collect()
}

/// Returns the heads of the columns of groups by that property.
pub(super) fn group_headings(property: &str) -> Vec<Heading> {
    let plain = |title: String, is_figure: bool| Heading { title, rank: 0, is_figure, sort: None };
    let figure = |(title, _): (&str, usize)| match title {
        "RATE" => Heading { sort: name(Order::Rate), ..plain(title.to_owned(), true) },
        "WASTE" => Heading { sort: name(Order::Waste), ..plain(title.to_owned(), true) },
        "SEND" | "RECEIVE" => Heading { sort: name(Order::Memory), rank: 7, ..plain(title.to_owned(), true) },
        _ => plain(title.to_owned(), true),
    };
    let name = std::iter::once(plain(property.to_uppercase(), false));
    let figures = groups::TITLES.into_iter().map(figure);
    name.chain(figures).chain([plain(Column::Spark.title().to_owned(), false)]).collect()
}

impl Row {
    /// Makes a connection's line; names are in full, because the page has more space than a terminal.
    pub(super) fn of(one: &ConnectionView, columns: &[(Column, usize)], spark: String) -> Self {
        let texts = columns::cells(one, columns);
        let whole = |((column, _), text): (&(Column, usize), String)| match *column {
            Column::PEER => Some(one.peer.to_string()),
            Column::PROCESS => Some(process(one)),
            Column::Namespace => Some(one.netns.clone()),
            Column::Cgroup => Some(one.cgroup_label().map_or(text, Cow::into_owned)),
            Column::Group => Some(one.group.clone().unwrap_or(text)),
            Column::Spark => None,
            _ => Some(text),
        };
        let tint = Tint::of(one).map(|tint| match tint {
            Tint::Yellow => "small",
            Tint::Green => "fit",
            Tint::Dim => "program",
        });
        let cells = columns.iter().zip(texts).filter_map(whole).collect();
        Self { id: one.cookie.to_string(), cells, spark, tint }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ls::tests::connection_view;

    #[test]
    fn a_line_has_a_cell_for_each_column_but_the_picture() {
        let columns = columns::all(&[Column::Namespace, Column::Cgroup, Column::Group]);
        let heads = headings(&columns);
        let cgroup = "/system.slice/a-service-with-a-long-name.service";
        let one = ConnectionView {
            netns: "cni-of-a-pod-with-a-long-name".to_owned(),
            cgroup: Some(cgroup.to_owned()),
            group: Some("a-database-with-a-long-name".to_owned()),
            ..connection_view()
        };
        let row = Row::of(&one, &columns, "0z".to_owned());
        assert_eq!((heads.len(), row.cells.len(), row.tint), (15, 14, Some("program")));
        let cells: Vec<(&str, &str)> =
            heads.iter().map(|head| head.title.as_str()).zip(row.cells.iter().map(String::as_str)).collect();
        assert_eq!(cells[0], ("PEER", "198.18.0.2:443"));
        assert_eq!(
            cells[2..5],
            [
                ("GROUP", "a-database-with-a-long-name"),
                ("NAMESPACE", "cni-of-a-pod-with-a-long-name"),
                ("CGROUP", cgroup),
            ]
        );
        assert_eq!(cells[6..9], [("RATE", "8.0M"), ("RTT ms", "50.0"), ("+BASE", "10.0")]);
        assert_eq!(cells[13], ("LIMITED BY", "application"));
    }

    #[test]
    fn every_order_can_be_chosen_by_a_head() {
        let heads = headings(&columns::all(&[]));
        let chosen = |order: &Order| heads.iter().any(|head| head.sort == name(*order));
        assert!(Order::value_variants().iter().all(chosen), "{heads:?}");
    }
}
