//! Writes the history as tables: one line per step of time, or per group.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use bufwise_host::history::{Kept, Moment, Sums};
use bufwise_host::judge::Direction;
use bufwise_host::view::ConnectionView;
use bufwise_units::counted;

use crate::figures::narrow;
use crate::ls::{self, PEER_WIDTH, milliseconds};
use crate::terminal::{self, shortened};

/// Most lines of a table over time; more moments share a line.
const LINES: usize = 60;
/// Most connections per step, and most groups of a table.
const SHOWN: usize = 8;
/// Lines whose times differ by less than this factor count as equally long.
const ALIKE: f64 = 1.1;
/// Widest name of a group.
const NAME_WIDTH: usize = 44;

/// Returns the moments of each line, and a note if a line has several; `rest` says what the other columns are then.
fn steps<'a>(moments: &'a [Moment], rest: &str) -> (std::slice::Chunks<'a, Moment>, Option<String>) {
    let each = moments.len().div_ceil(LINES).max(1);
    let span = |step: &[Moment]| step.iter().map(|moment| moment.interval_s).sum::<f64>();
    let spans = moments.chunks_exact(each).map(span);
    let (least, most) =
        spans.fold((f64::INFINITY, 0.0_f64), |(least, most), span| (least.min(span), most.max(span)));
    // Samples are minutes apart while there are very many connections.
    let span = if most < ALIKE * least { format!("{most:.0}") } else { format!("{least:.0} to {most:.0}") };
    let note = format!("a line is {span} s: rates and times are means, REP a sum, {rest}\n");
    (moments.chunks(each), (each > 1).then_some(note))
}

/// Writes the sums of some connections over time, and the largest of these connections.
pub(super) fn over_time(
    moments: &[Moment],
    sums: impl Fn(&Moment) -> Sums,
    time: &dyn Fn(u64) -> String,
) -> String {
    let titles = ["TIME", "CONNS", "SEND", "RECEIVE", "RTT/BASE", "HELD", "REP", "LIMITED BY", "LARGEST"];
    let (steps, note) = steps(moments, "the rest the largest");
    let row = |step: &[Moment]| {
        let last = step.last()?;
        let all: Vec<_> = step.iter().map(|moment| (moment.interval_s, sums(moment))).collect();
        let all = mean(&all);
        let largest =
            step.iter().flat_map(|moment| &moment.connections).max_by_key(|one| one.view.goodput_bps);
        let largest = largest.map(|one| {
            let rate = one.view.goodput_bps.map(|rate| format!(" {}", narrow(rate)));
            format!("{}{}", peer(&one.view), rate.unwrap_or_default())
        });
        let [connections, send, receive, times, held, retransmitted, limit] = cells(&all);
        let largest = largest.unwrap_or_default();
        Some([time(last.time_s), connections, send, receive, times, held, retransmitted, limit, largest])
    };
    aligned(titles, steps.filter_map(row).collect(), &[0, 7, 8]) + &note.unwrap_or_default()
}

/// Writes the connections over time: for each step those that moved most.
pub(super) fn connections(moments: &[Moment], time: &dyn Fn(u64) -> String) -> String {
    let titles = ["TIME", "PEER", "WAY", "RATE", "RTT/BASE", "USED/LIMIT", "REP", "LIMITED BY", "SET"];
    let (steps, note) = steps(moments, "the limit the usual one, the rest the last");
    let (mut rows, mut more) = (Vec::new(), 0);
    for step in steps {
        let Some(last) = step.last() else { continue };
        let mut all: BTreeMap<u64, Vec<(f64, &Kept)>> = BTreeMap::new();
        for moment in step {
            for one in &moment.connections {
                all.entry(one.view.cookie).or_default().push((moment.interval_s, one));
            }
        }
        let mut all: Vec<_> = all.into_values().filter_map(|seen| row(time(last.time_s), &seen)).collect();
        all.sort_by_key(|(rate, _)| Reverse(*rate));
        more += all.len().saturating_sub(SHOWN);
        rows.extend(all.into_iter().take(SHOWN).map(|(_, row)| row));
    }
    let mut text = aligned(titles, rows, &[0, 1, 2, 7, 8]) + &note.unwrap_or_default();
    if more > 0 {
        text += &format!("{} with less traffic left out: --json has all\n", counted(more, "line"));
    }
    text
}

/// Returns the line of a connection that was seen at these moments, each with its seconds, and its rate.
fn row(time: String, seen: &[(f64, &Kept)]) -> Option<(u64, [String; 9])> {
    let one = &seen.last()?.1.view;
    let mean = |figure: fn(&ConnectionView) -> Option<f64>| {
        average(seen.iter().map(|(seconds, one)| (*seconds, figure(&one.view))))
    };
    let rate = mean(|one| one.goodput_bps.map(|rate| rate as f64));
    let times = mean(|one| one.srtt_s);
    let limits: Vec<String> =
        seen.iter().map(|(_, one)| ls::row(&one.view)[ls::COLUMNS - 1].clone()).collect();
    let limited_by =
        limits.iter().max_by_key(|limit| limits.iter().filter(|other| other == limit).count())?;
    let (way, held, limit) = match one.direction {
        Direction::Send => ("send", one.send_queued_bytes, one.send_buffer_bytes),
        Direction::Receive => ("recv", one.receive_queued_bytes, one.receive_buffer_bytes),
    };
    let cells = [
        time,
        peer(one),
        way.to_owned(),
        or_dash(rate.map(|rate| narrow(rate as u64))),
        round_trips(times, one.min_rtt_s),
        format!("{}/{}", narrow(held), narrow(limit)),
        seen.iter().map(|(_, one)| one.retransmitted).sum::<u64>().to_string(),
        limited_by.clone(),
        set(one),
    ];
    Some((rate.unwrap_or_default() as u64, cells))
}

/// Writes the groups of all these moments, the largest first, after an empty line; writes nothing without groups.
pub(super) fn groups(title: &str, moments: &[Moment], groups: impl Fn(&Moment) -> &[Sums]) -> String {
    let mut all: BTreeMap<&str, Vec<(f64, Sums)>> = BTreeMap::new();
    for moment in moments {
        for sums in groups(moment) {
            all.entry(&sums.name).or_default().push((moment.interval_s, sums.clone()));
        }
    }
    let whole: f64 = moments.iter().map(|moment| moment.interval_s).sum();
    let mut all: Vec<Sums> = all
        .into_values()
        .map(|sums| {
            // A group that is absent from a moment moved nothing then.
            let part = sums.iter().map(|(seconds, _)| seconds).sum::<f64>() / whole.max(f64::MIN_POSITIVE);
            let one = mean(&sums);
            let scaled = |rate: u64| (rate as f64 * part) as u64;
            Sums { send_bps: scaled(one.send_bps), receive_bps: scaled(one.receive_bps), ..one }
        })
        .collect();
    all.sort_by_key(|one| Reverse(one.rate()));
    let more = all.len().saturating_sub(SHOWN);
    let row = |one: &Sums| {
        let [connections, send, receive, times, held, retransmitted, limit] = cells(one);
        [shortened(&one.name, NAME_WIDTH), connections, send, receive, times, held, retransmitted, limit]
    };
    let rows: Vec<_> = all.iter().take(SHOWN).map(row).collect();
    if rows.is_empty() {
        return String::new();
    }
    let titles = [title, "CONNS", "SEND", "RECEIVE", "RTT/BASE", "HELD", "REP", "LIMITED BY"];
    let text = aligned(titles, rows, &[0, 7]);
    if more > 0 { format!("\n{text}{more} more: --json has all\n") } else { format!("\n{text}") }
}

/// Adds several groups of one moment; times and cause are those of the busiest one.
pub(super) fn added(name: &str, sums: &[&Sums]) -> Sums {
    let busiest = sums.iter().max_by_key(|one| one.rate());
    let sum = |figure: fn(&Sums) -> u64| sums.iter().map(|one| figure(one)).sum();
    Sums {
        name: name.to_owned(),
        connections: sum(|one| one.connections),
        send_bps: sum(|one| one.send_bps),
        receive_bps: sum(|one| one.receive_bps),
        held_bytes: sum(|one| one.held_bytes),
        allowed_bytes: sum(|one| one.allowed_bytes),
        retransmitted: sum(|one| one.retransmitted),
        srtt_s: busiest.and_then(|one| one.srtt_s),
        min_rtt_s: busiest.and_then(|one| one.min_rtt_s),
        limited_by: busiest.and_then(|one| one.limited_by),
    }
}

/// Averages one group over several moments, each with its seconds: means of rates and times, the sum of repetitions,
/// otherwise the largest value. The cause is that of the moment with the highest rate.
fn mean(moments: &[(f64, Sums)]) -> Sums {
    let sums = || moments.iter().map(|(_, one)| one);
    let busiest = sums().filter(|one| one.limited_by.is_some()).max_by_key(|one| one.rate());
    let most = |figure: fn(&Sums) -> u64| sums().map(figure).max().unwrap_or_default();
    let mean = |figure: fn(&Sums) -> Option<f64>| {
        average(moments.iter().map(|(seconds, one)| (*seconds, figure(one))))
    };
    let rate = |figure: fn(&Sums) -> Option<f64>| mean(figure).unwrap_or_default() as u64;
    Sums {
        name: sums().next().map(|one| one.name.clone()).unwrap_or_default(),
        connections: most(|one| one.connections),
        send_bps: rate(|one| Some(one.send_bps as f64)),
        receive_bps: rate(|one| Some(one.receive_bps as f64)),
        held_bytes: most(|one| one.held_bytes),
        allowed_bytes: most(|one| one.allowed_bytes),
        retransmitted: sums().map(|one| one.retransmitted).sum(),
        srtt_s: mean(|one| one.srtt_s),
        min_rtt_s: mean(|one| one.min_rtt_s),
        limited_by: busiest.and_then(|one| one.limited_by),
    }
}

/// Returns the mean of the known values, each of which held for so many seconds.
fn average(figures: impl Iterator<Item = (f64, Option<f64>)>) -> Option<f64> {
    let known = figures.filter_map(|(seconds, figure)| Some((seconds, figure?)));
    let (whole, sum) =
        known.fold((0.0, 0.0), |(whole, sum), (seconds, one)| (whole + seconds, sum + seconds * one));
    (whole > 0.0).then(|| sum / whole)
}

/// Returns the cells: connections, rates in both directions, times, memory, repetitions and cause.
fn cells(sums: &Sums) -> [String; 7] {
    [
        sums.connections.to_string(),
        narrow(sums.send_bps),
        narrow(sums.receive_bps),
        round_trips(sums.srtt_s, sums.min_rtt_s),
        narrow(sums.held_bytes),
        sums.retransmitted.to_string(),
        or_dash(sums.limited_by.map(|cause| ls::short(cause).to_owned())),
    ]
}

/// Formats the present and the smallest round trip, in milliseconds.
fn round_trips(now: Option<f64>, least: Option<f64>) -> String {
    let text = |time: Option<f64>| or_dash(time.map(|seconds| milliseconds(seconds * 1e3)));
    format!("{}/{}", text(now), text(least))
}

/// Returns the most informative of the sizes that bufwise had set.
fn set(one: &ConnectionView) -> String {
    let Some(tuned) = one.tuned else { return "-".to_owned() };
    let cell = |what: &str, figure: Option<u64>| figure.map(|figure| format!("{what} {}", narrow(figure)));
    or_dash(match one.direction {
        Direction::Send => {
            cell("rate", tuned.rate_bound_bps).or_else(|| cell("buf", tuned.send_buffer_bytes))
        }
        Direction::Receive => {
            cell("win", tuned.receive_window_bytes).or_else(|| cell("buf", tuned.receive_buffer_bytes))
        }
    })
}

fn peer(one: &ConnectionView) -> String {
    shortened(&one.peer.to_string(), PEER_WIDTH)
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "-".to_owned())
}

/// Aligns rows below their titles: the columns `left` to the left, all others to the right.
fn aligned<const N: usize>(titles: [&str; N], mut rows: Vec<[String; N]>, left: &[usize]) -> String {
    rows.insert(0, titles.map(str::to_owned));
    let width =
        |column: usize| rows.iter().map(|row| terminal::width(&row[column])).max().unwrap_or_default();
    let widths: [usize; N] = std::array::from_fn(width);
    let line = |row: &[String; N]| {
        let cells = row.iter().zip(widths).enumerate().map(|(column, (cell, width))| {
            if left.contains(&column) { terminal::left(cell, width) } else { terminal::right(cell, width) }
        });
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::super::tests::moment;
    use super::*;

    fn at(time_s: u64) -> String {
        format!("14:05:{time_s:02}")
    }

    #[test]
    fn the_whole_hosts_history_is_a_line_for_each_moment() {
        let text = over_time(&[moment(10), moment(20)], |moment| moment.total.clone(), &at);
        assert_eq!(
            text,
            "\
TIME      CONNS  SEND  RECEIVE   RTT/BASE  HELD  REP  LIMITED BY   LARGEST
14:05:10      3  8.0M     1.0M  50.0/40.0  100K   17  cong window  198.18.0.2:443 8.0M
14:05:20      3  8.0M     1.0M  50.0/40.0  100K   17  cong window  198.18.0.2:443 8.0M
"
        );
    }

    #[test]
    fn a_peers_history_is_a_line_for_each_connection() {
        let text = connections(&[moment(10)], &at);
        assert_eq!(
            text,
            "\
TIME      PEER            WAY   RATE   RTT/BASE  USED/LIMIT  REP  LIMITED BY   SET
14:05:10  198.18.0.2:443  send  8.0M  50.0/40.0   100K/4.0M   17  cong window  buf 4.0M
14:05:10  198.18.7.7:80   recv  1.0M  50.0/40.0      0/131K    0  reader       -
"
        );
    }

    #[test]
    fn groups_are_means_over_all_moments_also_those_that_they_missed() {
        let mut second = moment(20);
        second.prefixes.remove(0);
        let text = groups("PREFIX", &[moment(10), second], |moment| &moment.prefixes);
        assert_eq!(
            text,
            "
PREFIX         CONNS  SEND  RECEIVE   RTT/BASE  HELD  REP  LIMITED BY
198.18.0.0/24      2  4.0M        0  50.0/40.0  100K   17  cong window
198.18.7.0/24      1     0     1.0M        -/-     0    0  reader
"
        );
        assert_eq!(groups("CGROUP", &[], |moment| &moment.cgroups), "");
    }

    #[test]
    fn a_long_moment_counts_more_than_a_short_one() {
        let mut long = Moment { interval_s: 50.0, ..moment(70) };
        long.prefixes[0].send_bps = 2_000_000;
        let of_group = groups("PREFIX", &[moment(10), long], |moment| &moment.prefixes);
        assert!(of_group.contains("198.18.0.0/24      2  3.0M "), "{of_group}");
        let mut slow = moment(70).connections.remove(0);
        slow.view.goodput_bps = Some(2_000_000);
        let fast = moment(10).connections.remove(0);
        let (rate, cells) = row(at(10), &[(10.0, &fast), (50.0, &slow)]).expect("it was seen");
        assert_eq!((rate, cells[3].as_str()), (3_000_000, "3.0M"));
    }

    #[test]
    fn wide_letters_move_no_column() {
        let row = |name: &str, figure: &str| [name.to_owned(), figure.to_owned()];
        let wide = "/\u{65e5}\u{672c}";
        let text = aligned(["CGROUP", "CONNS"], vec![row(wide, "1"), row("/system", "20")], &[0]);
        assert_eq!(text, format!("CGROUP   CONNS\n{wide}        1\n/system     20\n"));
    }

    #[test]
    fn an_hour_is_sixty_lines_of_a_hundred_columns() {
        let mut wide = moment(0);
        let peer = "[fd00:1234:5678:9abc:def0:1234:5678:9abc]:65535".parse().unwrap();
        wide.connections[0].view.peer = peer;
        wide.connections[0].view.srtt_s = Some(1.2345);
        wide.connections[0].retransmitted = 12_345;
        (wide.total.connections, wide.total.srtt_s, wide.total.retransmitted) =
            (65_536, Some(1.2345), 123_456);
        let hour: Vec<Moment> = (0..360).map(|time| Moment { time_s: time, ..wide.clone() }).collect();
        let whole = over_time(&hour, |moment| moment.total.clone(), &|_| "14:05:10".to_owned());
        assert_eq!(whole.lines().count(), 62, "{whole}");
        assert!(
            whole.ends_with("a line is 60 s: rates and times are means, REP a sum, the rest the largest\n")
        );
        let all = connections(&hour, &|_| "14:05:10".to_owned());
        // USED/LIMIT and SET are those of the line's last moment.
        assert!(all.contains("REP a sum, the limit the usual one, the rest the last\n"), "{all}");
        let mut slow = hour;
        slow[180..].iter_mut().for_each(|moment| moment.interval_s = 50.0);
        let slow = over_time(&slow, |moment| moment.total.clone(), &|_| "14:05:10".to_owned());
        assert!(slow.contains("\na line is 60 to 300 s: rates "), "{slow}");
        for line in whole.lines().chain(all.lines()) {
            assert!(line.chars().count() <= 100, "{} columns: {line}", line.chars().count());
        }
    }
}
