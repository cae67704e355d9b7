//! Values over time as lines.

use std::fmt::{self, Write};

use super::axis::Axis;
use super::html::Escaped;

/// Most points of a line: more than a screen shows apart.
pub(super) const MOST_POINTS: usize = 240;
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 190.0;
/// The plot's edges.
const LEFT: f64 = 44.0;
const RIGHT: f64 = 352.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 156.0;

/// Lines with the same axes.
pub(super) struct Curves<'a> {
    /// The quantity.
    pub(super) name: &'static str,
    /// Its unit.
    pub(super) unit: &'static str,
    pub(super) lines: [Line; 2],
    /// When the emulator stalled: from, to, seconds.
    pub(super) stalls: &'a [(f64, f64)],
    /// The end of time, seconds.
    pub(super) end: f64,
}

/// A line.
pub(super) struct Line {
    pub(super) name: &'static str,
    /// Time in seconds, and the value in the picture's unit.
    pub(super) points: Vec<(f64, f64)>,
}

impl Line {
    pub(super) fn new(name: &'static str, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Self { name, points: thinned(&points.collect::<Vec<_>>()) }
    }

    fn largest(&self) -> f64 {
        self.points.iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }
}

/// At most [`MOST_POINTS`] of the points: the largest of each stretch, so that no peak is lost.
fn thinned(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let stretch = points.len().div_ceil(MOST_POINTS).max(1);
    let largest = |stretch: &[(f64, f64)]| stretch.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(stretch).filter_map(largest).collect()
}

impl Curves<'_> {
    /// Draws a figure with its caption; nothing where no line has a point.
    pub(super) fn draw(&self, text: &mut String) -> fmt::Result {
        let lines: Vec<&Line> = self.lines.iter().filter(|line| !line.points.is_empty()).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let (across, up) =
            (Axis::up_to(self.end), Axis::up_to(lines.iter().map(|line| line.largest()).fold(0.0, f64::max)));
        let Self { name, unit, .. } = self;
        writeln!(text, "<figure><figcaption><b>{name}, {unit}</b>")?;
        for (number, line) in lines.iter().enumerate() {
            writeln!(
                text,
                "<span class=\"key\"><svg class=\"l{number}\" viewBox=\"0 0 24 8\" aria-hidden=\"true\">\
                 <path d=\"M0 4H24\"/></svg>{}</span>",
                line.name
            )?;
        }
        let told = lines.iter().map(|line| format!("{} at most {:.1}", line.name, line.largest()));
        let told = told.collect::<Vec<_>>().join("; ");
        writeln!(
            text,
            "</figcaption>\n<svg class=\"curves\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{name}, {unit}, over {:.1} s: {}\">",
            self.end,
            Escaped(&told)
        )?;
        self.axes(text, across, up)?;
        for (number, line) in lines.iter().enumerate() {
            let place = |(t, value): &(f64, f64)| {
                format!("{:.1} {:.1}", LEFT + across.place(*t) * (RIGHT - LEFT), height(up, *value))
            };
            let path = line.points.iter().map(place).collect::<Vec<_>>().join("L");
            writeln!(text, "<path class=\"line l{number}\" d=\"M{path}\"/>")?;
        }
        writeln!(text, "</svg></figure>")
    }

    fn axes(&self, text: &mut String, across: Axis, up: Axis) -> fmt::Result {
        let x = |t| LEFT + across.place(t) * (RIGHT - LEFT);
        for (from, to) in self.stalls {
            let width = (x(*to) - x(*from)).max(1.0);
            let (left, tall) = (x(*from), BOTTOM - TOP);
            writeln!(
                text,
                "<rect class=\"stall\" x=\"{left:.1}\" y=\"{TOP}\" width=\"{width:.1}\" height=\"{tall}\"/>"
            )?;
        }
        for (value, label) in up.ticks() {
            let y = height(up, value);
            writeln!(
                text,
                "<path class=\"grid\" d=\"M{LEFT} {y:.1}H{RIGHT}\"/>\
                 <text class=\"name\" x=\"{}\" y=\"{:.1}\">{label}</text>",
                LEFT - 5.0,
                y + 4.0
            )?;
        }
        for (value, label) in across.ticks() {
            let (x, y) = (x(value), BOTTOM + 14.0);
            writeln!(text, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\">{label}</text>")?;
        }
        let (x, y) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 29.0);
        writeln!(text, "<text class=\"tick\" x=\"{x}\" y=\"{y}\">seconds</text>")
    }
}

/// The place of a value.
fn height(up: Axis, value: f64) -> f64 {
    BOTTOM - up.place(value) * (BOTTOM - TOP)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_peaks_ends_and_order() {
        let points: Vec<_> =
            (0..10_000).map(|t| (f64::from(t), if t == 7_777 { 9.0 } else { 1.0 })).collect();
        let few = thinned(&points);
        assert!(few.len() <= MOST_POINTS && few.len() > MOST_POINTS / 2, "{}", few.len());
        assert!(few.contains(&(7_777.0, 9.0)));
        assert!(few.is_sorted_by(|a, b| a.0 < b.0) && few.last().unwrap().0 > 9_900.0);
        assert_eq!(thinned(&points[..3]), points[..3]);
        assert!(thinned(&[]).is_empty());
    }

    #[test]
    fn a_stall_is_drawn_where_it_was_and_empty_lines_are_not() {
        let line = Line::new("queue", [(0.0, 0.0), (5.0, 40.0), (10.0, 20.0)].into_iter());
        let none = || Line::new("other", std::iter::empty());
        let curves = |lines| Curves { name: "queue", unit: "kB", lines, stalls: &[(2.0, 4.0)], end: 10.0 };
        let mut text = String::new();
        curves([none(), none()]).draw(&mut text).unwrap();
        assert_eq!(text, "");
        curves([line, none()]).draw(&mut text).unwrap();
        // 308 wide from 44 on; 148 high down to 156; the axes end at 10 s and 40 kB.
        assert!(text.contains("<rect class=\"stall\" x=\"105.6\" y=\"8\" width=\"61.6\""), "{text}");
        assert!(text.contains("d=\"M44.0 156.0L198.0 8.0L352.0 82.0\""), "{text}");
        assert!(text.contains("aria-label=\"queue, kB, over 10.0 s: queue at most 40.0\""), "{text}");
    }
}
