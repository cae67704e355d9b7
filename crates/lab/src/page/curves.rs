//! Draws values over time as lines.

use std::fmt::{self, Write};

use super::axis::Axis;
use super::html::Escaped;

/// Most points of a line: more than a screen can resolve.
pub(super) const MOST_POINTS: usize = 240;
const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 190.0;
/// The plot's edges.
const LEFT: f64 = 44.0;
const RIGHT: f64 = 352.0;
const TOP: f64 = 8.0;
const BOTTOM: f64 = 156.0;

/// Lines with common axes.
pub(super) struct Curves<'a> {
    /// The quantity.
    pub(super) name: &'static str,
    /// Its unit.
    pub(super) unit: &'static str,
    pub(super) lines: Vec<Line>,
    /// Whether the caption is a key of the lines.
    pub(super) keys: bool,
    /// Stalls of the emulator: from, to, in seconds.
    pub(super) stalls: &'a [(f64, f64)],
    /// The end of the time axis, in seconds.
    pub(super) end: f64,
}

/// A line.
pub(super) struct Line {
    pub(super) name: String,
    /// Index of its colour and dashes.
    pub(super) colour: usize,
    /// Time in seconds, and value in the picture's unit.
    pub(super) points: Vec<(f64, f64)>,
}

impl Line {
    pub(super) fn new(name: &str, colour: usize, points: impl Iterator<Item = (f64, f64)>) -> Self {
        Self::of_at_most(MOST_POINTS, name, colour, points)
    }

    /// Makes a line of at most `most` points.
    pub(super) fn of_at_most(
        most: usize,
        name: &str,
        colour: usize,
        points: impl Iterator<Item = (f64, f64)>,
    ) -> Self {
        Self { name: name.to_owned(), colour, points: thinned(&points.collect::<Vec<_>>(), most) }
    }

    /// Makes a line of at most `most` points, each the mean of a stretch: of rates the largest would tell of more than there was.
    pub(super) fn of_means(
        most: usize,
        name: &str,
        colour: usize,
        points: impl Iterator<Item = (f64, f64)>,
    ) -> Self {
        Self { name: name.to_owned(), colour, points: means(&points.collect::<Vec<_>>(), most) }
    }

    /// Returns its entry in the key: a sample of the line, and its name.
    pub(super) fn key(&self) -> String {
        format!(
            "<span class=\"key\"><svg class=\"l{}\" viewBox=\"0 0 24 8\" aria-hidden=\"true\"><path d=\"M0 4H24\"/></svg>{}</span>",
            self.colour,
            Escaped(&self.name)
        )
    }

    fn largest(&self) -> f64 {
        self.points.iter().map(|(_, value)| *value).fold(0.0, f64::max)
    }
}

/// Returns at most `most` of the points: the largest of each stretch, so that no peak is lost.
fn thinned(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let stretch = points.len().div_ceil(most).max(1);
    let largest = |stretch: &[(f64, f64)]| stretch.iter().copied().max_by(|a, b| a.1.total_cmp(&b.1));
    points.chunks(stretch).filter_map(largest).collect()
}

/// Returns at most `most` points: the mean of each stretch of the points, at the stretch's end.
fn means(points: &[(f64, f64)], most: usize) -> Vec<(f64, f64)> {
    let stretch = points.len().div_ceil(most).max(1);
    let mean = |stretch: &[(f64, f64)]| {
        let sum: f64 = stretch.iter().map(|(_, value)| value).sum();
        stretch.last().map(|(t, _)| (*t, sum / stretch.len() as f64))
    };
    points.chunks(stretch).filter_map(mean).collect()
}

impl Curves<'_> {
    /// Draws a figure with its caption; draws nothing if no line has a point.
    pub(super) fn draw(&self, text: &mut String) -> fmt::Result {
        let lines: Vec<&Line> = self.lines.iter().filter(|line| !line.points.is_empty()).collect();
        if lines.is_empty() {
            return Ok(());
        }
        let up = Axis::up_to(lines.iter().map(|line| line.largest()).fold(0.0, f64::max));
        let Self { name, unit, .. } = self;
        writeln!(text, "<figure><figcaption><b>{name}, {unit}</b>")?;
        let mut keys = lines.iter().filter(|_| self.keys);
        keys.try_for_each(|line| writeln!(text, "{}", line.key()))?;
        let told = lines.iter().map(|line| format!("{} at most {:.1}", line.name, line.largest()));
        let told = told.collect::<Vec<_>>().join("; ");
        writeln!(
            text,
            "</figcaption>\n<svg class=\"curves\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" \
             aria-label=\"{name}, {unit}, over {:.1} s: {}\">",
            self.end,
            Escaped(&told)
        )?;
        self.axes(text, up)?;
        for line in &lines {
            let place = |(t, value): &(f64, f64)| format!("{:.1} {:.1}", self.across(*t), height(up, *value));
            let path = line.points.iter().map(place).collect::<Vec<_>>().join("L");
            writeln!(text, "<path class=\"line l{}\" d=\"M{path}\"/>", line.colour)?;
        }
        writeln!(text, "</svg></figure>")
    }

    /// Returns the horizontal position of a time; the last time is at the edge.
    fn across(&self, t: f64) -> f64 {
        let share = if self.end > 0.0 { (t / self.end).clamp(0.0, 1.0) } else { 0.0 };
        LEFT + share * (RIGHT - LEFT)
    }

    fn axes(&self, text: &mut String, up: Axis) -> fmt::Result {
        let x = |t| self.across(t);
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
        for (value, label) in Axis::up_to(self.end).ticks().filter(|(value, _)| *value <= self.end) {
            let (x, y) = (x(value), BOTTOM + 14.0);
            writeln!(text, "<text class=\"tick\" x=\"{x:.1}\" y=\"{y}\">{label}</text>")?;
        }
        let (x, y) = (f64::midpoint(LEFT, RIGHT), BOTTOM + 29.0);
        writeln!(text, "<text class=\"tick\" x=\"{x}\" y=\"{y}\">seconds</text>")
    }
}

/// Returns the vertical position of a value.
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
        let few = thinned(&points, MOST_POINTS);
        assert!(few.len() <= MOST_POINTS && few.len() > MOST_POINTS / 2, "{}", few.len());
        assert!(few.contains(&(7_777.0, 9.0)));
        assert!(few.is_sorted_by(|a, b| a.0 < b.0) && few.last().unwrap().0 > 9_900.0);
        assert_eq!(thinned(&points[..3], MOST_POINTS), points[..3]);
        assert!(thinned(&[], MOST_POINTS).is_empty());
    }

    #[test]
    fn means_keep_the_whole_and_the_end() {
        // As much in bursts as at a steady rate of 3.
        let bursts: Vec<_> = (0..400).map(|t| (f64::from(t), if t % 4 == 1 { 12.0 } else { 0.0 })).collect();
        let few = means(&bursts, 120);
        assert!(few.len() == 100 && few.iter().all(|(_, value)| *value == 3.0), "{few:?}");
        assert_eq!(few.last().map(|(t, _)| *t), Some(399.0));
        assert_eq!(means(&bursts[..3], 120), bursts[..3]);
        assert!(means(&[], 120).is_empty());
    }

    #[test]
    fn time_ends_at_the_edge_and_has_no_tick_beyond() {
        let lines = vec![Line::new("queue", 0, [(0.0, 0.0), (21.0, 40.0)].into_iter())];
        let mut text = String::new();
        Curves { name: "queue", unit: "kB", lines, keys: true, stalls: &[], end: 21.0 }
            .draw(&mut text)
            .unwrap();
        assert!(text.contains("d=\"M44.0 156.0L352.0 8.0\""), "{text}");
        assert!(text.contains("y=\"170\">20</text>") && !text.contains("y=\"170\">30</text>"), "{text}");
    }

    #[test]
    fn a_stall_is_drawn_where_it_was_and_empty_lines_are_not() {
        let line = Line::new("queue", 0, [(0.0, 0.0), (5.0, 40.0), (10.0, 20.0)].into_iter());
        let none = || Line::new("other", 1, std::iter::empty());
        let curves = |lines: [Line; 2]| {
            let lines = lines.into();
            Curves { name: "queue", unit: "kB", lines, keys: true, stalls: &[(2.0, 4.0)], end: 10.0 }
        };
        let mut text = String::new();
        curves([none(), none()]).draw(&mut text).unwrap();
        assert_eq!(text, "");
        curves([line, none()]).draw(&mut text).unwrap();
        // 308 wide from 44 on; 148 high down to 156; the time axis ends at 10 s, the other one at 40 kB.
        assert!(text.contains("<rect class=\"stall\" x=\"105.6\" y=\"8\" width=\"61.6\""), "{text}");
        assert!(text.contains("d=\"M44.0 156.0L198.0 8.0L352.0 82.0\""), "{text}");
        assert!(text.contains("aria-label=\"queue, kB, over 10.0 s: queue at most 40.0\""), "{text}");
    }
}
