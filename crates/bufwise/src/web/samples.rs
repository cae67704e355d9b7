//! Values over time, and the graphs that are drawn of them.

use std::collections::VecDeque;

use bufwise_host::view::{ConnectionView, Listing, Summary};
use serde::Serialize;

use crate::figures;
use crate::top::groups::total;
use crate::top::history::Histories;

/// A value of a connection that is drawn over time.
#[derive(Clone, Copy, Debug)]
enum Figure {
    Rate,
    /// The round trip, in microseconds.
    Rtt,
    /// The smallest round trip, in microseconds.
    Base,
    Bdp,
    CongestionWindow,
    PeersWindow,
    OwnWindow,
    SendQueue,
    SendBuffer,
    ReceiveQueue,
    ReceiveBuffer,
}

const FIGURES: usize = 11;

/// One sample of a connection. With 10,000 connections a minute of samples takes about 30 MB, hence 4 bytes (seven
/// digits) per value. Unknown values are NaN.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sample([f32; FIGURES]);

impl From<&ConnectionView> for Sample {
    fn from(one: &ConnectionView) -> Self {
        let known = |figure: Option<u64>| figure.map_or(f32::NAN, |figure| figure as f32);
        let micros = |seconds: Option<f64>| seconds.map_or(f32::NAN, |seconds| (seconds * 1e6) as f32);
        // In the order of `Figure`.
        Self([
            known(one.goodput_bps),
            micros(one.srtt_s),
            micros(one.min_rtt_s),
            known(one.bdp_bytes),
            one.cwnd_bytes as f32,
            one.send_window_bytes as f32,
            one.receive_window_bytes as f32,
            one.send_queued_bytes as f32,
            one.send_buffer_bytes as f32,
            one.receive_queued_bytes as f32,
            one.receive_buffer_bytes as f32,
        ])
    }
}

impl Sample {
    /// Returns the rate, in bit/s.
    pub(super) fn rate(&self) -> Option<u64> {
        self.figure(Figure::Rate)
    }

    fn figure(&self, figure: Figure) -> Option<u64> {
        let value = self.0[figure as usize];
        (!value.is_nan()).then_some(value as u64)
    }
}

/// One sample of all connections together.
#[derive(Clone, Copy, Debug)]
pub(super) struct Total {
    rate: Option<u64>,
    send_queued: u64,
    receive_queued: u64,
    waste: u64,
}

impl From<&Listing> for Total {
    fn from(listing: &Listing) -> Self {
        let Summary { send_queued_bytes, receive_queued_bytes, waste_bytes, .. } = listing.summary;
        Self {
            rate: total(listing.connections.iter().map(|one| one.goodput_bps)),
            send_queued: send_queued_bytes,
            receive_queued: receive_queued_bytes,
            waste: waste_bytes,
        }
    }
}

/// A graph of values of one kind over the last minute.
#[derive(Debug, Serialize)]
pub(super) struct Graph {
    title: &'static str,
    /// The largest value, as a number and as text.
    most: u64,
    most_text: String,
    lines: Vec<Line>,
}

/// A value over the last minute.
#[derive(Debug, Serialize)]
struct Line {
    name: &'static str,
    /// The newest value, as text.
    now: String,
    /// Oldest first; `null` where unknown.
    values: Vec<Option<u64>>,
}

impl Graph {
    /// Makes a graph of named values, newest first; `text` formats a value.
    fn of(
        title: &'static str,
        text: fn(u64) -> String,
        lines: Vec<(&'static str, Vec<Option<u64>>)>,
    ) -> Self {
        let most = lines.iter().flat_map(|(_, values)| values).flatten().copied().max().unwrap_or_default();
        let line = |(name, mut values): (&'static str, Vec<Option<u64>>)| {
            let now = values.first().copied().flatten().map_or_else(|| "not known".to_owned(), text);
            values.reverse();
            Line { name, now, values }
        };
        Self { title, most, most_text: text(most), lines: lines.into_iter().map(line).collect() }
    }
}

fn time(micros: u64) -> String {
    figures::time(micros as f64 / 1e6)
}

/// Returns the graphs of one connection.
pub(super) fn of_connection(histories: &Histories<Sample>, cookie: u64) -> Vec<Graph> {
    let of = |figure: Figure| histories.of(cookie, |sample| sample.figure(figure));
    vec![
        Graph::of("Rate", figures::rate, vec![("rate", of(Figure::Rate))]),
        Graph::of("Round trip", time, vec![("RTT", of(Figure::Rtt)), ("base", of(Figure::Base))]),
        Graph::of(
            "Windows",
            figures::size,
            vec![
                ("congestion", of(Figure::CongestionWindow)),
                ("offered by the peer", of(Figure::PeersWindow)),
                ("offered to it", of(Figure::OwnWindow)),
                ("BDP", of(Figure::Bdp)),
            ],
        ),
        Graph::of(
            "Send buffer",
            figures::size,
            vec![("queue", of(Figure::SendQueue)), ("limit", of(Figure::SendBuffer))],
        ),
        Graph::of(
            "Receive buffer",
            figures::size,
            vec![("queue", of(Figure::ReceiveQueue)), ("limit", of(Figure::ReceiveBuffer))],
        ),
    ]
}

/// Returns the graphs of all connections together; samples are newest first.
pub(super) fn of_all(totals: &VecDeque<Total>) -> Vec<Graph> {
    let of = |figure: fn(&Total) -> Option<u64>| totals.iter().map(figure).collect();
    vec![
        Graph::of("Rate of all", figures::rate, vec![("rate", of(|one| one.rate))]),
        Graph::of(
            "Queues",
            figures::size,
            vec![("send", of(|one| Some(one.send_queued))), ("receive", of(|one| Some(one.receive_queued)))],
        ),
        Graph::of("Beyond need", figures::size, vec![("waste", of(|one| Some(one.waste)))]),
    ]
}

/// Encodes a minute of a value, newest first, as heights from 0 to 35 relative to the largest: one digit or letter
/// each, oldest first. A space means unknown.
pub(super) fn spark(newest_first: &[Option<u64>]) -> String {
    const HEIGHTS: &[u8; 36] = b"0123456789abcdefghijklmnopqrstuvwxyz";
    let most = newest_first.iter().flatten().copied().max().unwrap_or_default().max(1);
    let letter = |value: &Option<u64>| {
        value.map_or(' ', |value| char::from(HEIGHTS[(value as f64 / most as f64 * 35.0).round() as usize]))
    };
    newest_first.iter().rev().map(letter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ls::tests::connection_view;
    use bufwise_units::Micros;

    #[test]
    fn a_spark_is_relative_to_its_largest_and_ends_with_the_newest() {
        assert_eq!(spark(&[Some(70), Some(38), None, Some(0)]), "0 jz");
        assert_eq!(spark(&[Some(0), Some(0)]), "00");
        assert_eq!(spark(&[Some(u64::MAX), Some(1)]), "0z");
        assert_eq!(spark(&[]), "");
    }

    #[test]
    fn the_graphs_of_a_connection_have_its_figures_as_they_are_written_elsewhere() {
        let mut histories = Histories::new();
        let second = Micros::from_secs(1);
        histories.add(&[ConnectionView { goodput_bps: None, ..connection_view() }], second);
        histories.add(&[connection_view()], second);
        let graphs = of_connection(&histories, connection_view().cookie);
        let rate = &graphs[0];
        assert_eq!((rate.most, rate.most_text.as_str()), (8_000_000, "8.0 Mbit/s"));
        assert_eq!(rate.lines[0].values, [None, Some(8_000_000)]);
        let now: Vec<String> = graphs
            .iter()
            .flat_map(|graph| &graph.lines)
            .map(|line| format!("{} {}", line.name, line.now))
            .collect();
        assert_eq!(now[1..3], ["RTT 50.0 ms", "base 40.0 ms"]);
        assert_eq!(now[6..9], ["BDP 50.0 KB", "queue 100.0 KB", "limit 4.00 MB"]);
    }
}
