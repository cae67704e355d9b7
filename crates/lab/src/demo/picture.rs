//! Draws the demo: throughput, round-trip time and queue over time, one column per path.

use std::fs;
use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use thiserror::Error;

use super::plan::{BBR, CUBIC, NO_ROOT, RECEIVER, SENDER};
use super::{DemoReport, MethodReport, PathSummary, Point};

const SIZE: (u32, u32) = (1_120, 840);
const LEGEND_HEIGHT: u32 = 56;
const ROWS: usize = 3;
/// Methods that are drawn, in colours that people with any colour vision can tell apart (Okabe and Ito 2008) and that
/// are visible on white and on black.
const DRAWN: [(&str, RGBColor); 5] = [
    (CUBIC.name, RGBColor(230, 159, 0)),
    (BBR.name, RGBColor(204, 121, 167)),
    (SENDER.name, RGBColor(0, 158, 115)),
    (RECEIVER.name, RGBColor(86, 180, 233)),
    (NO_ROOT.name, RGBColor(0, 114, 178)),
];
const GRID: RGBColor = RGBColor(225, 225, 225);
/// Colours for pages in dark mode; they override those of the elements.
const DARK: &str = "<style>@media (prefers-color-scheme: dark) { text { fill: #e6edf3 } \
    rect[fill=\"#FFFFFF\"] { fill: #0d1117 } [stroke=\"#000000\"] { stroke: #e6edf3 } \
    [stroke=\"#FFFFFF\"] { stroke: #0d1117 } [stroke=\"#E1E1E1\"] { stroke: #30363d } }</style>\n";

/// Why there is no picture.
#[derive(Debug, Error)]
#[error("cannot draw {path}: {reason}")]
pub struct PictureError {
    path: String,
    reason: String,
}

/// A row of the picture: its title, and the value of a point.
struct Row {
    title: &'static str,
    value: fn(&Point) -> f64,
    /// Least value that the axis must reach.
    least: f64,
}

const PANELS: [Row; ROWS] = [
    Row { title: "throughput at the link, Mbit/s", value: |point| point.rate_bps / 1e6, least: 105.0 },
    Row { title: "round-trip time, ms", value: |point| point.rtt_ms, least: 60.0 },
    Row { title: "queue of the link, KB", value: |point| point.queue_bytes as f64 / 1e3, least: 70.0 },
];

/// Draws the report as an SVG file.
///
/// # Errors
/// `PictureError` when the file cannot be written.
pub fn draw(report: &DemoReport, path: &Path) -> Result<(), PictureError> {
    let failed = |reason: String| PictureError { path: path.display().to_string(), reason };
    let picture = paint(report).map_err(|error| failed(error.to_string()))?;
    fs::write(path, picture).map_err(|error| failed(error.to_string()))
}

fn paint(report: &DemoReport) -> Result<String, Box<dyn std::error::Error>> {
    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (legend, panels) = root.split_vertically(LEGEND_HEIGHT);
    if let Some(first) = report.paths.first() {
        draw_legend(&legend, &drawn(report, first))?;
    }
    let areas = panels.split_evenly((ROWS, report.paths.len()));
    for (index, area) in areas.iter().enumerate() {
        let row = &PANELS[index / report.paths.len()];
        let path = &report.paths[index % report.paths.len()];
        draw_panel(area, &drawn(report, path), path, row)?;
    }
    root.present()?;
    drop((legend, areas, panels, root));
    let body = picture.find('\n').map_or(0, |end| end + 1);
    picture.insert_str(body, DARK);
    Ok(picture)
}

/// Returns the results on a path that are drawn, with their colours.
fn drawn<'a>(report: &'a DemoReport, path: &PathSummary) -> Vec<(&'a MethodReport, RGBColor)> {
    let colour = |result: &MethodReport| DRAWN.iter().find(|(name, _)| *name == result.method);
    let results = report.results.iter().filter(|result| result.path == path.name);
    results.filter_map(|result| Some((result, colour(result)?.1))).collect()
}

fn draw_legend(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    results: &[(&MethodReport, RGBColor)],
) -> Result<(), Box<dyn std::error::Error>> {
    const STEP: i32 = 210;
    for (index, (result, colour)) in results.iter().enumerate() {
        let left = 24 + STEP * i32::try_from(index)?;
        let line = vec![(left, 28), (left + 22, 28)];
        area.draw(&PathElement::new(line, colour.stroke_width(3)))?;
        area.draw(&Text::new(result.method, (left + 28, 21), ("sans-serif", 18)))?;
    }
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    results: &[(&MethodReport, RGBColor)],
    path: &PathSummary,
    row: &Row,
) -> Result<(), Box<dyn std::error::Error>> {
    let points = || results.iter().flat_map(|(result, _)| &result.series);
    let top = points().map(row.value).fold(row.least, f64::max) * 1.05;
    let end = points().map(|point| point.t).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .caption(format!("{}: {}", path.name, row.title), ("sans-serif", 15))
        .margin(8)
        .x_label_area_size(24)
        .y_label_area_size(46)
        .build_cartesian_2d(0.0..end, 0.0..top)?;
    chart
        .configure_mesh()
        .light_line_style(WHITE)
        .bold_line_style(GRID)
        .x_label_formatter(&|t| if end < 5.0 { format!("{t:.1} s") } else { format!("{t:.0} s") })
        .y_label_formatter(&|value| format!("{value:.0}"))
        .label_style(("sans-serif", 12))
        .draw()?;
    for (result, colour) in results {
        let line = result.series.iter().map(|point| (point.t, (row.value)(point)));
        chart.draw_series(LineSeries::new(line, colour.stroke_width(2)))?;
    }
    Ok(())
}
