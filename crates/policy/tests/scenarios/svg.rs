//! The series of a scenario as one picture: throughput, round-trip time, queue and window over time, under
//! Reno on the left and under CUBIC on the right; time in seconds since the data began.

use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;

use crate::outcome::{Outcome, Point};
use crate::scenario::Scenario;

const SIZE: (u32, u32) = (1_600, 1_400);
/// Width of the column with the names, on the right.
const LEGEND: u32 = 220;
const RULES: [&str; 2] = ["reno", "cubic"];

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Row = (String, Outcome);
type Value = fn(&Point) -> f64;

const PANELS: [(&str, Value); 4] = [
    ("throughput, Mbit/s", |point| point.bits_per_sec / 1e6),
    ("round-trip time, ms", |point| point.rtt_ms),
    ("queue, KiB", |point| point.queue_bytes as f64 / 1_024.0),
    ("window, KiB", |point| point.window_bytes as f64 / 1_024.0),
];

/// Writes `<folder>/<scenario>.svg`.
pub(crate) fn draw(scenario: &Scenario, runs: &[Row], folder: &Path) {
    fs::create_dir_all(folder).expect("the folder for pictures can be made");
    let file = folder.join(format!("{}.svg", scenario.name));
    let root = SVGBackend::new(&file, SIZE).into_drawing_area();
    paint(&root, scenario, runs).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
}

fn paint(root: &Area<'_>, scenario: &Scenario, runs: &[Row]) -> Result<(), Box<dyn std::error::Error>> {
    root.fill(&WHITE)?;
    let below = root.titled(scenario.path, ("sans-serif", 22))?;
    let (left, right) = below.split_horizontally(SIZE.0 - LEGEND);
    let of_rule = |rule: &str| runs.iter().filter(|(label, _)| label.ends_with(rule)).collect::<Vec<_>>();
    let panels = left.split_evenly((PANELS.len(), RULES.len()));
    for (row, (caption, value)) in PANELS.into_iter().enumerate() {
        for (column, rule) in RULES.into_iter().enumerate() {
            let area = &panels[RULES.len() * row + column];
            panel(area, &format!("{caption}, {rule}"), &of_rule(rule), value)?;
        }
    }
    legend(&right, &of_rule(RULES[0]))?;
    root.present()?;
    Ok(())
}

fn panel(
    area: &Area<'_>,
    caption: &str,
    runs: &[&Row],
    value: Value,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || runs.iter().flat_map(|(_, run)| &run.points);
    let until = points().map(|point| point.seconds).fold(1.0, f64::max);
    let top = points().map(value).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(caption, ("sans-serif", 16))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..until, 0.0..top * 1.05)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).draw()?;
    for (index, (_, run)) in runs.iter().enumerate() {
        let line = run.points.iter().map(|point| (point.seconds, value(point)));
        chart.draw_series(LineSeries::new(line, Palette99::pick(index)))?;
    }
    Ok(())
}

/// Draws the policies' names, in the colours of their lines in both columns.
fn legend(area: &Area<'_>, runs: &[&Row]) -> Result<(), Box<dyn std::error::Error>> {
    for (index, (label, _)) in runs.iter().enumerate() {
        let name = label.split(',').next().unwrap_or(label).to_owned();
        let y = 40 + 22 * index as i32;
        area.draw(&PathElement::new([(4, y), (28, y)], Palette99::pick(index).stroke_width(3)))?;
        area.draw(&Text::new(name, (34, y - 8), ("sans-serif", 15)))?;
    }
    Ok(())
}
