//! Draws medians as bars with whiskers from the least to the most value, and a paper's figures on the same axis.

use std::fmt::{self, Write};

use super::axis::Axis;
use super::html::{Escaped, shortened};

/// Positions in the picture, in pixels: names at the left, bars, values at the right. A phone shows it at about this
/// width.
const WIDTH: f64 = 360.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 304.0;
const GROUP_HEIGHT: f64 = 24.0;
const ROW_HEIGHT: f64 = 18.0;
const AXIS_HEIGHT: f64 = 36.0;
/// Most characters of a name.
const NAME: usize = 20;
const GROUP_NAME: usize = 58;

/// A bar chart of one quantity.
pub(super) struct Bars {
    /// The quantity.
    pub(super) name: String,
    /// Its unit; empty: none.
    pub(super) unit: &'static str,
    /// The cases.
    pub(super) groups: Vec<Group>,
}

/// A case.
pub(super) struct Group {
    pub(super) name: String,
    pub(super) rows: Vec<Row>,
}

/// A method, with its values in the picture's unit.
pub(super) struct Row {
    pub(super) name: String,
    /// Index of its colour.
    pub(super) colour: usize,
    pub(super) bar: Option<Bar>,
    /// The paper's figures.
    pub(super) marks: Vec<Mark>,
}

/// A method's median and spread.
pub(super) struct Bar {
    pub(super) median: f64,
    pub(super) least: f64,
    pub(super) most: f64,
    /// The median as text.
    pub(super) text: String,
    /// Whether any run is valid.
    pub(super) valid: bool,
}

/// A paper's figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Mark {
    At(f64),
    Between(f64, f64),
    AtLeast(f64),
    AtMost(f64),
}

impl Mark {
    fn largest(self) -> f64 {
        match self {
            Self::At(value) | Self::Between(_, value) | Self::AtLeast(value) | Self::AtMost(value) => value,
        }
    }

    /// Returns its SVG path around the height `y`.
    fn path(self, at: impl Fn(f64) -> f64, y: f64) -> String {
        let edge = |x: f64| format!("M{x:.1} {:.1}v13", y - 6.5);
        match self {
            Self::At(value) => format!("M{:.1} {:.1}l5 6-5 6-5-6z", at(value), y - 6.0),
            Self::Between(least, most) => {
                let (least, most) = (at(least), at(most));
                format!("{}{}M{least:.1} {y:.1}H{most:.1}", edge(least), edge(most))
            }
            Self::AtLeast(value) => format!("{}m0-6.5h9m-4-3 4 3-4 3", edge(at(value))),
            Self::AtMost(value) => format!("{}m0-6.5h-9m4-3-4 3 4 3", edge(at(value))),
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::At(value) => write!(f, "{}", short(*value)),
            Self::Between(least, most) => write!(f, "{} to {}", short(*least), short(*most)),
            Self::AtLeast(value) => write!(f, "at least {}", short(*value)),
            Self::AtMost(value) => write!(f, "at most {}", short(*value)),
        }
    }
}

/// Formats a value with four digits.
fn short(value: f64) -> String {
    let decimals = (3.0 - value.abs().max(1e-9).log10().floor()).clamp(0.0, 4.0) as usize;
    let text = format!("{value:.decimals$}");
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

impl Row {
    fn largest(&self) -> f64 {
        let bar = self.bar.as_ref().map_or(0.0, |bar| bar.median.max(bar.most));
        self.marks.iter().map(|mark| mark.largest()).fold(bar, f64::max)
    }

    /// Describes the row in words.
    fn told(&self) -> String {
        let mut text = match &self.bar {
            None => format!("{} not measured", self.name),
            Some(Bar { text, least, most, valid, .. }) => {
                let stalled = if *valid { "" } else { ", no valid run" };
                format!("{} {text} ({} to {}{stalled})", self.name, short(*least), short(*most))
            }
        };
        for mark in &self.marks {
            text += &format!(", paper {mark}");
        }
        text
    }
}

impl Bars {
    /// Draws the chart, with its numbers as text for screen readers.
    pub(super) fn draw(&self, text: &mut String) -> fmt::Result {
        let rows: usize = self.groups.iter().map(|group| group.rows.len()).sum();
        let body = self.groups.len() as f64 * GROUP_HEIGHT + rows as f64 * ROW_HEIGHT;
        let largest = self.groups.iter().flat_map(|group| &group.rows).map(Row::largest).fold(0.0, f64::max);
        let axis = Axis::up_to(largest);
        let told = |group: &Group| {
            format!("{}: {}", group.name, group.rows.iter().map(Row::told).collect::<Vec<_>>().join("; "))
        };
        let told = self.groups.iter().map(told).collect::<Vec<_>>().join(". ");
        let unit = if self.unit.is_empty() { String::new() } else { format!(", {}", self.unit) };
        writeln!(
            text,
            "<svg class=\"bars\" viewBox=\"0 0 {WIDTH} {}\" role=\"img\" aria-label=\"{}{unit}. {}\">",
            body + AXIS_HEIGHT,
            Escaped(&self.name),
            Escaped(&told)
        )?;
        self.axis(text, axis, body)?;
        let mut y = 0.0;
        for group in &self.groups {
            let name = shortened(&group.name, GROUP_NAME);
            writeln!(text, "<text class=\"group\" x=\"0\" y=\"{}\">{}</text>", y + 16.0, Escaped(&name))?;
            y += GROUP_HEIGHT;
            for one in &group.rows {
                row(text, one, axis, y + ROW_HEIGHT / 2.0)?;
                y += ROW_HEIGHT;
            }
        }
        writeln!(text, "</svg>")
    }

    fn axis(&self, text: &mut String, axis: Axis, bottom: f64) -> fmt::Result {
        for (value, label) in axis.ticks() {
            let x = across(axis, value);
            writeln!(
                text,
                "<path class=\"grid\" d=\"M{x:.1} {GROUP_HEIGHT}V{bottom}\"/>\
                 <text class=\"tick\" x=\"{x:.1}\" y=\"{}\">{label}</text>",
                bottom + 14.0
            )?;
        }
        let middle = f64::midpoint(LEFT, RIGHT);
        writeln!(text, "<text class=\"tick\" x=\"{middle}\" y=\"{}\">{}</text>", bottom + 29.0, self.unit)
    }
}

/// Returns the horizontal position of a value.
fn across(axis: Axis, value: f64) -> f64 {
    LEFT + axis.place(value) * (RIGHT - LEFT)
}

fn row(text: &mut String, row: &Row, axis: Axis, y: f64) -> fmt::Result {
    let at = |value| across(axis, value);
    writeln!(text, "<g><title>{}</title>", Escaped(&row.told()))?;
    let name = shortened(&row.name, NAME);
    writeln!(text, "<text class=\"name\" x=\"{}\" y=\"{}\">{}</text>", LEFT - 6.0, y + 4.0, Escaped(&name))?;
    if let Some(Bar { median, least, most, text: shown, valid }) = &row.bar {
        let hollow = if *valid { "" } else { " hollow" };
        writeln!(
            text,
            "<rect class=\"c{}{hollow}\" x=\"{LEFT}\" y=\"{}\" width=\"{:.1}\" height=\"11\"/>",
            row.colour,
            y - 5.5,
            (at(*median) - LEFT).max(0.8)
        )?;
        if least < most {
            let (from, to, top) = (at(*least), at(*most), y - 3.5);
            writeln!(
                text,
                "<path class=\"whisker\" d=\"M{from:.1} {y}H{to:.1}M{from:.1} {top}v7M{to:.1} {top}v7\"/>"
            )?;
        }
        let star = if *valid { "" } else { "*" };
        writeln!(text, "<text class=\"value\" x=\"{}\" y=\"{}\">{shown}{star}</text>", WIDTH - 2.0, y + 4.0)?;
    } else {
        writeln!(text, "<text class=\"value\" x=\"{}\" y=\"{}\">-</text>", WIDTH - 2.0, y + 4.0)?;
    }
    for mark in &row.marks {
        let path = mark.path(at, y);
        writeln!(text, "<path class=\"halo\" d=\"{path}\"/><path class=\"paper\" d=\"{path}\"/>")?;
    }
    writeln!(text, "</g>")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits() {
        for (value, wanted) in
            [(918.0, "918"), (0.0, "0"), (2.24, "2.24"), (1234.5, "1234"), (15.833_3, "15.83")]
        {
            assert_eq!(short(value), wanted);
        }
    }

    #[test]
    fn a_picture_says_in_words_what_it_shows() {
        let bar = Bar { median: 9.4, least: 9.3, most: 9.5, text: "9.4".to_owned(), valid: true };
        let row = |name: &str, bar, marks| Row { name: name.to_owned(), colour: 0, bar, marks };
        let rows = vec![
            row("<abt>", Some(bar), vec![Mark::At(12.0), Mark::AtLeast(8.0)]),
            row("eq", None, vec![Mark::Between(1.0, 2.0)]),
        ];
        let groups = vec![Group { name: "one & two".to_owned(), rows }];
        let mut text = String::new();
        Bars { name: "goodput".to_owned(), unit: "Mbit/s", groups }.draw(&mut text).unwrap();
        let told = "aria-label=\"goodput, Mbit/s. one &amp; two: &lt;abt&gt; 9.4 (9.3 to 9.5), paper 12, paper at least 8; \
                    eq not measured, paper 1 to 2\"";
        assert!(text.contains(told), "{text}");
        // The axis ends at 15, so the paper's 12 is at four fifths of it.
        assert!(
            text.contains(&format!("<path class=\"paper\" d=\"M{:.1} ", LEFT + 0.8 * (RIGHT - LEFT))),
            "{text}"
        );
        assert_eq!(text.matches("class=\"whisker\"").count(), 1, "{text}");
    }
}
