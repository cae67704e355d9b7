//! Draws a daemon's memory: a bar for each direction and the cause of pressure; with `--budget` also who holds it: bars
//! of each group, and the parts of processes and cgroups.
//!
//! The values are the daemon's own, so that every view agrees: they cover all connections that it sizes, whatever a
//! filter leaves out.

use bufwise_host::budget::{Budget, GroupMemory, Part, Side};
use bufwise_units::counted;

use crate::figures::{narrow, size};
use crate::terminal::{self, shortened};

/// Characters of a bar on a line of a hundred columns.
const BAR: usize = 30;
/// Widest name of a process or cgroup.
const NAME_WIDTH: usize = 58;
/// Titles of a part's figures, with their widths.
const TITLES: [(&str, usize); 4] = [("CONNS", 6), ("SEND", 10), ("RECEIVE", 10), ("RESERVED", 11)];

/// Returns both directions with their names.
pub(crate) fn sides(budget: &Budget) -> [(&'static str, &Side); 2] {
    [("to send", &budget.send), ("to receive", &budget.receive)]
}

/// Returns the bars, connections without room, and the causes of pressure, one per line, for lines of `columns`
/// characters.
pub(crate) fn lines(budget: &Budget, columns: usize) -> Vec<String> {
    bars(sides(budget), BAR.min(columns / 3)).into_iter().chain(below(budget)).collect()
}

/// Returns a bar of `cells` characters for each direction, with its values.
fn bars(sides: [(&str, &Side); 2], cells: usize) -> [String; 2] {
    sides.map(|(name, side)| format!("{name:<10} [{}] {}", bar(side, cells), text(side)))
}

/// Returns a group's name and its bars.
fn group(group: &GroupMemory) -> Vec<String> {
    let count = counted(group.connections, "connection");
    let head = match &group.name {
        Some(name) => format!("group {name}, {count}:"),
        None => format!("in no group, {count}:"),
    };
    let bars = bars([("to send", &group.send), ("to receive", &group.receive)], BAR);
    std::iter::once(head).chain(bars.map(|bar| format!("  {bar}"))).collect()
}

/// Returns the lines below the bars: connections without room, and the causes of pressure.
pub(crate) fn below(budget: &Budget) -> Vec<String> {
    let count = budget.untuned_connections;
    let untuned = match count {
        0 => None,
        1 => Some("1 connection is beyond max-connections: the kernel sizes it".to_owned()),
        many => Some(format!("{many} connections are beyond max-connections: the kernel sizes them")),
    };
    let pressure = budget.pressure.iter().map(|pressure| format!("pressure: {pressure}"));
    untuned.into_iter().chain(pressure).collect()
}

/// Draws the parts of a budget that are held (`#`), reserved beyond that (`=`) and free (`-`).
fn bar(side: &Side, cells: usize) -> String {
    let upto = |bytes: u64| {
        let bytes = bytes.min(side.budget_bytes);
        (bytes as f64 / side.budget_bytes.max(1) as f64 * cells as f64).round() as usize
    };
    let held = upto(side.held_bytes);
    let reserved = upto(side.held_bytes.saturating_add(side.reserved_bytes())) - held;
    format!("{}{}{}", "#".repeat(held), "=".repeat(reserved), "-".repeat(cells - held - reserved))
}

/// Returns the values of one direction as text.
pub(crate) fn text(side: &Side) -> String {
    let outside = match side.outside_bytes {
        0 => String::new(),
        bytes => format!("; outside the budget {} in buffers that programs have set", size(bytes)),
    };
    format!(
        "{} held of {}, {} reserved, {} allowed{outside}",
        size(side.held_bytes),
        size(side.budget_bytes),
        size(side.reserved_bytes()),
        size(side.allowed_bytes)
    )
}

/// Returns the whole picture: bars, reservations, and the parts of groups, processes and cgroups.
pub(crate) fn picture(budget: &Budget) -> String {
    let mut lines = lines(budget, usize::MAX);
    if !budget.is_short() {
        lines.push("no pressure".to_owned());
    }
    for (name, side) in sides(budget) {
        lines.push(format!(
            "reserved {name}: {} for newcomers, {} for {}",
            size(side.reserved_newcomers_bytes),
            size(side.reserved_idle_bytes),
            counted(side.idle_connections, "idle connection")
        ));
    }
    lines.extend(budget.groups.iter().flat_map(group));
    for (title, parts) in [("PROCESS", &budget.processes), ("CGROUP", &budget.cgroups)] {
        lines.extend(table(title, parts));
    }
    lines.into_iter().map(|line| line + "\n").collect()
}

/// Returns the parts of these processes and cgroups, if they are among the largest.
pub(crate) fn parts_of(budget: &Budget, processes: &[String], cgroups: &[String]) -> Vec<String> {
    let named = |parts: &[Part], names: &[String]| -> Vec<Part> {
        parts.iter().filter(|part| names.contains(&part.name)).cloned().collect()
    };
    let of_processes = table("PROCESS", &named(&budget.processes, processes));
    of_processes.into_iter().chain(table("CGROUP", &named(&budget.cgroups, cgroups))).collect()
}

/// Returns one line per part below a head: held/allowed, and what is reserved for idle connections, to send/to receive.
fn table(title: &str, parts: &[Part]) -> Vec<String> {
    if parts.is_empty() {
        return Vec::new();
    }
    let names = parts.iter().map(|part| terminal::width(&part.name));
    let width = names.chain([title.len()]).max().unwrap_or_default().min(NAME_WIDTH);
    let line = |name: &str, cells: [String; TITLES.len()]| {
        let figures = cells.into_iter().zip(TITLES).map(|(cell, (_, width))| format!("  {cell:>width$}"));
        terminal::left(&shortened(name, width), width) + &figures.collect::<String>()
    };
    let used = |held: u64, allowed: u64| format!("{}/{}", narrow(held), narrow(allowed));
    let rows = parts.iter().map(|part| {
        let send = used(part.send_held_bytes, part.send_allowed_bytes);
        let receive = used(part.receive_held_bytes, part.receive_allowed_bytes);
        let reserved = used(part.send_reserved_bytes, part.receive_reserved_bytes);
        line(&part.name, [part.connections.to_string(), send, receive, reserved])
    });
    std::iter::once(line(title, TITLES.map(|(title, _)| title.to_owned()))).chain(rows).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use bufwise_host::budget::{Pressure, PressureCause};

    /// A budget of 16 MB to send, of which a quarter is held and as much reserved; nothing is received.
    pub(crate) fn budget() -> Budget {
        let part = |name: &str, connections: u64, held: u64| Part {
            name: name.to_owned(),
            connections,
            send_held_bytes: held,
            send_allowed_bytes: 2 * held,
            send_reserved_bytes: held / 5,
            receive_held_bytes: 0,
            receive_allowed_bytes: 131_072 * connections,
            receive_reserved_bytes: 0,
        };
        Budget {
            connections: 12,
            untuned_connections: 0,
            send: Side {
                budget_bytes: 16_000_000,
                held_bytes: 4_000_000,
                allowed_bytes: 8_000_000,
                reserved_newcomers_bytes: 3_200_000,
                reserved_idle_bytes: 800_000,
                idle_connections: 7,
                outside_bytes: 0,
            },
            receive: Side { budget_bytes: 32_000_000, ..Side::default() },
            pressure: Vec::new(),
            groups: Vec::new(),
            processes: vec![part("nginx/7", 2, 3_000_000), part("others", 10, 1_000_000)],
            cgroups: vec![part("/system.slice/nginx.service", 12, 4_000_000)],
        }
    }

    /// The same, short of memory.
    pub(crate) fn short() -> Budget {
        let sentence = "512 connections ask for 41.00 MB".to_owned();
        let pressure = vec![Pressure { cause: PressureCause::SendDemand, sentence }];
        Budget { pressure, untuned_connections: 3, ..budget() }
    }

    #[test]
    fn a_bar_shows_what_is_held_reserved_and_free() {
        let expected = [
            "to send    [########=======---------------] 4.00 MB held of 16.00 MB, 4.00 MB reserved, 8.00 MB allowed",
            "to receive [------------------------------] 0 B held of 32.00 MB, 0 B reserved, 0 B allowed",
        ];
        assert_eq!(lines(&budget(), 100), expected);
        let of = |held_bytes, reserved_idle_bytes| {
            bar(&Side { budget_bytes: 100, held_bytes, reserved_idle_bytes, ..Side::default() }, 10)
        };
        assert_eq!((of(250, 9), of(50, 900)), ("##########".to_owned(), "#####=====".to_owned()));
        assert_eq!(bar(&Side::default(), 4), "----", "without a budget");
        let outside = Side { outside_bytes: 3_000_000, ..budget().receive };
        let told = "0 B allowed; outside the budget 3.00 MB in buffers that programs have set";
        assert!(text(&outside).ends_with(told), "{}", text(&outside));
    }

    #[test]
    fn pressure_and_what_has_no_room_are_told_below_the_bars() {
        let lines = lines(&short(), 80);
        assert_eq!(lines[0].find(']'), Some(11 + 1 + 26));
        assert_eq!(
            lines[2..],
            [
                "3 connections are beyond max-connections: the kernel sizes them",
                "pressure: 512 connections ask for 41.00 MB",
            ]
        );
        let single = Budget { untuned_connections: 1, ..budget() };
        assert_eq!(below(&single), ["1 connection is beyond max-connections: the kernel sizes it"]);
    }

    #[test]
    fn each_group_has_bars_of_its_own_budget() {
        let whole = budget();
        let group = |name: Option<&str>, connections: u64| GroupMemory {
            name: name.map(str::to_owned),
            connections,
            send: Side { budget_bytes: 8_000_000, held_bytes: connections * 1_000_000, ..Side::default() },
            receive: whole.receive,
        };
        let budget = Budget { groups: vec![group(Some("database"), 1), group(None, 8)], ..whole.clone() };
        let text = picture(&budget);
        let lines: Vec<&str> = text.lines().skip(5).take(6).collect();
        let receive =
            "  to receive [------------------------------] 0 B held of 32.00 MB, 0 B reserved, 0 B allowed";
        assert_eq!(
            lines,
            [
                "group database, 1 connection:",
                "  to send    [####--------------------------] 1.00 MB held of 8.00 MB, 0 B reserved, 0 B allowed",
                receive,
                "in no group, 8 connections:",
                "  to send    [##############################] 8.00 MB held of 8.00 MB, 0 B reserved, 0 B allowed",
                receive,
            ]
        );
    }

    #[test]
    fn the_picture_has_the_parts_of_processes_and_cgroups() {
        let text = picture(&budget());
        let rest: Vec<&str> = text.lines().skip(2).collect();
        assert_eq!(
            rest,
            [
                "no pressure",
                "reserved to send: 3.20 MB for newcomers, 800.0 KB for 7 idle connections",
                "reserved to receive: 0 B for newcomers, 0 B for 0 idle connections",
                "PROCESS   CONNS        SEND     RECEIVE     RESERVED",
                "nginx/7       2   3.0M/6.0M      0/262K       600K/0",
                "others       10   1.0M/2.0M      0/1.3M       200K/0",
                "CGROUP                        CONNS        SEND     RECEIVE     RESERVED",
                "/system.slice/nginx.service      12   4.0M/8.0M      0/1.6M       800K/0",
            ]
        );
        let of_nginx = parts_of(&budget(), &["nginx/7".to_owned()], &["/elsewhere".to_owned()]);
        assert_eq!(of_nginx, rest[3..5]);
        assert!(!picture(&short()).contains("no pressure"));
    }

    #[test]
    fn wide_letters_of_a_programs_name_move_no_column() {
        let mut named = budget();
        named.processes[0].name = "\u{65e5}\u{672c}/7".to_owned();
        let text = picture(&named);
        let place = |figures: &str| {
            let line = text.lines().find(|line| line.contains(figures))?;
            line.split(figures).next().map(terminal::width)
        };
        assert!(place("3.0M/6.0M").is_some() && place("3.0M/6.0M") == place("1.0M/2.0M"), "{text}");
    }
}
