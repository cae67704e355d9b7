//! Draws the picture, from the state alone.

use bufwise_host::view::ConnectionView;
use ratatui::Frame;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::columns::{self, Column, GAP};
use super::detail;
use super::groups::{self, Group, Grouping};
use super::keys::ORDERS;
use super::lines::{Lines, MINUTE, spark, write};
use super::state::State;
use crate::ls::{PEER_WIDTH, Paint, Tint, budget, sums};

/// Least number of lines for connections; sums and notes are left out before them.
const LEAST_ROWS: u16 = 4;
/// Least width of a group's last minute, whatever the length of names.
const LEAST_MINUTE: usize = 20;

/// Draws the whole screen.
pub(super) fn draw(frame: &mut Frame<'_>, state: &State, paint: Paint) {
    let area = frame.area();
    match state.opened() {
        Some(opened) => detail::draw(frame.buffer_mut(), area, opened),
        None => list(frame.buffer_mut(), area, state, paint),
    }
}

fn list(buffer: &mut Buffer, area: Rect, state: &State, paint: Paint) {
    let mut lines = Lines::new(buffer, area);
    lines.last(&footer(state), Modifier::DIM);
    lines.first(&title(state), Modifier::BOLD);
    let mut remarks: Vec<String> = sums(&state.digest().sums).lines().map(str::to_owned).collect();
    remarks.extend(state.budget().iter().flat_map(|budget| budget::lines(budget, area.width.into())));
    for remark in remarks {
        if lines.left() > LEAST_ROWS {
            lines.first(&remark, Modifier::empty());
        }
    }
    for note in state.notes().iter().rev() {
        if lines.left() > LEAST_ROWS {
            lines.last(&format!("note: {note}"), Modifier::empty());
        }
    }
    let rest = lines.rest();
    match state.groups() {
        Some(all) => groups(buffer, rest, all, state),
        None => rows(buffer, rest, state, paint),
    }
}

fn title(state: &State) -> String {
    let order = if state.groups().is_some() { state.order.of_groups() } else { state.order };
    let order = ORDERS.iter().find(|(_, one, _)| *one == order).map_or("rate", |(.., name)| *name);
    let mut text = format!("bufwise top, by {order}");
    if !state.filter.is_empty() && state.typing.is_none() {
        text += &format!(", only {}", state.filter);
    }
    match state.grouping() {
        (Grouping::None, _) => {}
        (grouping, None) => text += &format!(", grouped by {}", grouping.title()),
        (grouping, Some(name)) => text += &format!(", of {} {name}", grouping.title()),
    }
    if let hidden @ 1.. = state.digest().hidden {
        text += &format!("; {hidden} not shown (loopback, or idle without waste): a shows them");
    }
    text
}

/// Returns the keys, or the filter that is being typed.
fn footer(state: &State) -> String {
    if state.typing.is_some() {
        return format!(
            "/{}_  address, port, program, limit, network, /cgroup, container or group; Enter keeps it, Esc does not",
            state.filter
        );
    }
    let orders: Vec<String> = ORDERS.iter().map(|(key, _, name)| format!("{key} {name}")).collect();
    format!("q leave  / filter  Enter opens  g group  a all  by: {}", orders.join("  "))
}

fn rows(buffer: &mut Buffer, area: Rect, state: &State, paint: Paint) {
    let columns = columns::fitting(area.width.into(), state.order, &optional(state));
    let sorted = Column::of(state.order);
    let titles = columns.iter().map(|(column, _)| column.title().to_owned());
    let style = |column: Column| {
        let underlined = if Some(column) == sorted { Modifier::UNDERLINED } else { Modifier::empty() };
        Style::from(Modifier::BOLD | underlined)
    };
    texts(buffer, area, &columns, titles, style);
    let (start, page) = page(area, state);
    for (line, one) in state.page(start, page).enumerate() {
        let (place, style) = place(buffer, area, line, tinted(one, paint), start + line == state.cursor());
        row(buffer, place, one, &columns, state, style);
    }
}

/// Returns the columns that are shown only with several namespaces or cgroups, or with a daemon's groups.
fn optional(state: &State) -> Vec<Column> {
    let digest = state.digest();
    let columns = [
        (Column::Namespace, digest.has_namespaces),
        (Column::Cgroup, digest.has_cgroups),
        (Column::Group, digest.has_groups),
    ];
    columns.into_iter().filter(|(_, shows)| *shows).map(|(column, _)| column).collect()
}

/// Returns the first visible line and the number of visible lines: the chosen line is in the middle, except at the
/// ends.
fn page(area: Rect, state: &State) -> (usize, usize) {
    let page = usize::from(area.height.saturating_sub(1));
    (state.cursor().saturating_sub(page / 2).min(state.lines().saturating_sub(page)), page)
}

/// Returns the place of a line below the titles, and its style; the chosen line is reversed.
fn place(buffer: &mut Buffer, area: Rect, line: usize, style: Style, is_chosen: bool) -> (Rect, Style) {
    let place = Rect { y: area.y + 1 + line as u16, height: 1, ..area };
    if !is_chosen {
        return (place, style);
    }
    let style = style.add_modifier(Modifier::REVERSED);
    buffer.set_style(place, style);
    (place, style)
}

/// Draws a line for each group: its name, its sums, and the last minute of its rate.
fn groups(buffer: &mut Buffer, area: Rect, all: &[Group], state: &State) {
    let grouping = state.grouping().0;
    let figures: usize = groups::TITLES.iter().map(|(_, width)| width + GAP).sum();
    let room = usize::from(area.width).saturating_sub(figures + GAP + LEAST_MINUTE).max(PEER_WIDTH);
    let width = state.digest().widest_name.min(room).max(PEER_WIDTH);
    let titles = groups::TITLES.map(|(title, _)| title.to_owned());
    let titles = groups::line(&grouping.title().to_uppercase(), titles, width);
    write(buffer, area, &format!("{titles}  LAST MINUTE"), Modifier::BOLD.into());
    let before = (titles.len() + GAP) as u16;
    let (start, page) = page(area, state);
    for (number, group) in all.iter().enumerate().skip(start).take(page) {
        let (place, style) = place(buffer, area, number - start, Style::new(), number == state.cursor());
        write(buffer, place, &groups::line(&group.name, group.cells(), width), style);
        let minute =
            Rect { x: place.x + before, width: place.width.saturating_sub(before).min(MINUTE), ..place };
        spark(buffer, minute, state.rates_of_group(number), style);
    }
}

fn row(
    buffer: &mut Buffer,
    place: Rect,
    one: &ConnectionView,
    columns: &[(Column, usize)],
    state: &State,
    style: Style,
) {
    texts(buffer, place, columns, columns::cells(one, columns).into_iter(), |_| style);
    if let Some((Column::Spark, width)) = columns.last() {
        let before: usize = columns[..columns.len() - 1].iter().map(|(_, width)| width + GAP).sum();
        let place = Rect { x: place.x + before as u16, width: *width as u16, ..place };
        spark(buffer, place, &state.rates(one.cookie), style);
    }
}

/// Writes a text into each column.
fn texts(
    buffer: &mut Buffer,
    area: Rect,
    columns: &[(Column, usize)],
    texts: impl Iterator<Item = String>,
    style: impl Fn(Column) -> Style,
) {
    let mut x = area.x;
    for ((column, width), text) in columns.iter().zip(texts) {
        let width = *width;
        let text = if column.is_figure() { format!("{text:>width$}") } else { text };
        let place = Rect { x, y: area.y, width: width as u16, height: 1 };
        write(buffer, place, &text, style(*column));
        x += (width + GAP) as u16;
    }
}

fn tinted(one: &ConnectionView, paint: Paint) -> Style {
    match Tint::of(one).filter(|_| paint.colours) {
        Some(Tint::Yellow) => Style::new().fg(Color::Yellow),
        Some(Tint::Green) => Style::new().fg(Color::Green),
        Some(Tint::Dim) => Style::new().add_modifier(Modifier::DIM),
        None => Style::new(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::keys::tests::type_in;
    use super::super::state::tests::{connection, empty, listing, state};
    use super::*;
    use bufwise_host::judge::Cause;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    const PLAIN: Paint = Paint { colours: false };

    fn drawn(state: &State, width: u16, height: u16, paint: Paint) -> Buffer {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| draw(frame, state, paint)).unwrap();
        terminal.backend().buffer().clone()
    }

    /// Returns the lines of the screen as text.
    pub(crate) fn picture(state: &State, width: u16, height: u16) -> Vec<String> {
        let buffer = drawn(state, width, height, PLAIN);
        let line = |cells: &[ratatui::buffer::Cell]| {
            cells.iter().map(ratatui::buffer::Cell::symbol).collect::<String>().trim_end().to_owned()
        };
        buffer.content().chunks(width.into()).map(line).collect()
    }

    #[test]
    fn a_terminal_of_eighty_columns() {
        let mut state = state();
        for rate in [2_000_000, 4_000_000, 8_000_000] {
            state.observe(listing(vec![connection(1, 1_000_000, "rsync"), connection(2, rate, "curl")]));
        }
        assert_eq!(
            picture(&state, 80, 9),
            [
                "bufwise top, by rate",
                "2 connections; send queues hold 200.0 KB of 8.00 MB allowed, receive queues 0 B",
                "PEER                    PROCESS         RATE  RTT ms  LIMITED BY   LAST MINUTE",
                "198.18.0.2:443          curl/7          8.0M    50.0  application           █▁▃▇",
                "198.18.0.1:443          rsync/7         1.0M    50.0  application           ████",
                "",
                "",
                "",
                "q leave  / filter  Enter opens  g group  a all  by: r rate  m memory  w waste  o",
            ]
        );
    }

    #[test]
    fn a_wide_terminal_has_every_column_of_ls_and_three_more() {
        let lines = picture(&state(), 160, 8);
        for title in ls_titles() {
            assert!(lines[2].contains(title), "{title}: {}", lines[2]);
        }
        assert!(lines[3].contains("100K/4.0M") && lines[3].contains("3.8M"), "{}", lines[3]);
    }

    fn ls_titles() -> impl Iterator<Item = &'static str> {
        crate::ls::TITLES.into_iter().chain(["+BASE", "WASTE", "LAST MINUTE"])
    }

    #[test]
    fn every_size_of_a_terminal_is_drawn() {
        let mut state = state();
        for width in [0, 1, 2, 7, 22, 23, 40, 79, 120, 250] {
            for height in 0..12 {
                drawn(&state, width, height, PLAIN);
            }
        }
        type_in(&mut state, "/198.18.0.3");
        let lines = picture(&state, 24, 5);
        assert_eq!(lines[2], "198.18.0.3:443");
        assert_eq!(lines[4], "/198.18.0.3_  address, p");
    }

    #[test]
    fn the_chosen_line_is_reversed_and_always_in_sight() {
        let mut state = empty();
        state.observe(listing((1..100).map(|number| connection(number, 1_000 - number, "curl")).collect()));
        for line in [0, 1, 50, 98] {
            state.choose(line);
            let buffer = drawn(&state, 80, 12, PLAIN);
            let reversed: Vec<String> = (0..12)
                .filter(|y| buffer[(0, *y)].modifier.contains(Modifier::REVERSED))
                .map(|y| (0..16).map(|x| buffer[(x, y)].symbol()).collect::<String>().trim_end().to_owned())
                .collect();
            assert_eq!(reversed, [format!("198.18.0.{}:443", line + 1)]);
        }
    }

    #[test]
    fn colours_say_what_limits_and_can_be_done_without() {
        let mut state = empty();
        let full = ConnectionView { limited_by: Some(Cause::SendBuffer), ..connection(1, 9, "curl") };
        state.observe(listing(vec![full]));
        let colours = |paint| {
            let buffer = drawn(&state, 80, 8, paint);
            buffer.content().iter().any(|cell| cell.fg != Color::Reset || cell.bg != Color::Reset)
        };
        assert!(colours(Paint { colours: true }));
        assert!(!colours(PLAIN));
    }

    #[test]
    fn a_daemons_memory_is_two_bars_and_the_cause_of_pressure() {
        let mut state = state();
        let mut sight = listing(vec![connection(1, 9, "curl")]);
        let list = &mut sight.listing;
        (list.summary.budget_bytes, list.summary.pressure) = (Some(16_000_000), Some(true));
        list.budget = Some(budget::tests::short());
        state.observe(sight);
        let lines = picture(&state, 80, 14);
        assert!(lines[2].starts_with("daemon: budget 16.00 MB for send queues, under pressure"), "{lines:?}");
        assert_eq!(
            lines[3],
            "to send    [#######======-------------] 4.00 MB held of 16.00 MB, 4.00 MB reserv"
        );
        assert!(
            lines[4].starts_with("to receive [------") && lines[5].starts_with("3 connections are beyond")
        );
        assert_eq!(lines[6], "pressure: 512 connections ask for 41.00 MB");
    }

    #[test]
    fn namespaces_have_a_column_where_there_are_several() {
        let mut state = state();
        assert!(!picture(&state, 100, 8)[2].contains("NAMESPACE"));
        let there = ConnectionView { netns: "green".to_owned(), ..connection(1, 9, "curl") };
        state.observe(listing(vec![there, connection(2, 1, "curl")]));
        let lines = picture(&state, 120, 8);
        assert!(lines[2].contains("NAMESPACE") && lines[3].contains("green"), "{lines:?}");
    }

    #[test]
    fn cgroups_have_a_column_where_there_are_several_and_room() {
        let mut state = state();
        assert!(!picture(&state, 200, 8)[2].contains("CGROUP"));
        let cgroup = Some("/system.slice/curl.service".to_owned());
        let one = ConnectionView { cgroup, ..connection(1, 9, "curl") };
        state.observe(listing(vec![one, connection(2, 1, "curl")]));
        let lines = picture(&state, 160, 8);
        assert!(lines[2].contains("CGROUP") && lines[3].contains("/system.sli~curl.service"), "{lines:?}");
        assert!(!picture(&state, 140, 8)[2].contains("CGROUP"), "narrow");
    }

    #[test]
    fn a_daemons_groups_have_a_column_where_there_are_any() {
        let mut state = state();
        assert!(!picture(&state, 200, 8)[2].contains("GROUP"));
        let grouped = ConnectionView { group: Some("database".to_owned()), ..connection(1, 9, "curl") };
        state.observe(listing(vec![grouped, connection(2, 1, "curl")]));
        let lines = picture(&state, 120, 8);
        assert!(lines[2].contains("GROUP") && lines[3].contains("  database  "), "{lines:?}");
        type_in(&mut state, "ggggg");
        assert!(picture(&state, 120, 8)[3].starts_with("database  "), "grouped by group");
    }

    #[test]
    fn groups_stand_with_their_sums() {
        let mut state = state();
        state.observe(listing(vec![connection(1, 5_000_000, "curl"), connection(2, 4_000_000, "curl")]));
        type_in(&mut state, "g");
        let lines = picture(&state, 90, 8);
        assert_eq!(lines[0], "bufwise top, by rate, grouped by process");
        assert_eq!(lines[2], "PROCESS                 CONNS  RATE       SEND    RECEIVE  WASTE  LAST MINUTE");
        let sums = "curl                        2  9.0M  200K/8.0M     0/262K   7.5M  ";
        assert!(lines[3].starts_with(sums) && lines[3].ends_with(" █▇"), "{}", lines[3]);
        assert_eq!(lines[3].chars().count(), 90, "the newest at the right");
        for (key, order) in [("t", "rate"), ("w", "waste"), ("l", "rate")] {
            type_in(&mut state, key);
            let title = picture(&state, 90, 8).remove(0);
            assert_eq!(title, format!("bufwise top, by {order}, grouped by process"), "{key}");
        }
    }

    #[test]
    fn the_name_of_a_group_takes_the_room_that_there_is() {
        let mut state = state();
        let path = "/system.slice/a-service-with-a-long-name.service";
        let one = ConnectionView { cgroup: Some(path.to_owned()), ..connection(1, 5_000_000, "curl") };
        state.observe(listing(vec![one, connection(2, 4_000_000, "curl")]));
        type_in(&mut state, "gggg");
        let lines = picture(&state, 120, 8);
        assert_eq!(lines[0], "bufwise top, by rate, grouped by cgroup");
        assert!(lines[3].starts_with(&format!("{path}      1  5.0M  ")), "{lines:?}");
        assert!(lines[4].starts_with("-   "), "{lines:?}");
        let narrow = picture(&state, 80, 8);
        assert!(narrow[3].starts_with("/system.sl~ame.service      1  5.0M  "), "{narrow:?}");
    }

    #[test]
    fn wide_letters_move_no_column_and_hide_no_process_number() {
        let mut state = state();
        let wide = "\u{65e5}\u{672c}\u{8a9e}\u{65e5}\u{672c}";
        let one = ConnectionView { pid: Some(4_194_304), ..connection(1, 5_000_000, wide) };
        state.observe(listing(vec![one, connection(2, 4_000_000, "curl")]));
        let lines = picture(&state, 90, 8);
        assert!(lines[3].contains("~4194304  "), "{lines:?}");
        type_in(&mut state, "g");
        let lines = picture(&state, 90, 8);
        // The cell behind a wide letter is a blank: each character of a line is a column.
        let place = |line: &str| line.find("100K/4.0M").map(|at| line[..at].chars().count());
        assert!(place(&lines[3]).is_some() && place(&lines[3]) == place(&lines[4]), "{lines:?}");
    }

    #[test]
    fn a_note_stands_above_the_keys() {
        let mut state = state();
        state.fail("it failed".to_owned());
        assert_eq!(picture(&state, 80, 10)[8], "note: it failed");
    }
}
