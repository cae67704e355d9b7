//! The demo as a picture: throughput, round-trip time and queue over time, a column a path.

use std::path::Path;

use plotters::coord::Shift;
use plotters::prelude::*;
use thiserror::Error;

use super::{DemoReport, MethodReport, PathSummary, Point};

const SIZE: (u32, u32) = (1_120, 840);
const LEGEND_HEIGHT: u32 = 56;
const ROWS: usize = 3;
/// Colours that people with any colour vision tell apart (Okabe and Ito 2008), in the order of the methods.
const COLOURS: [RGBColor; 7] = [
    RGBColor(120, 120, 120),
    RGBColor(230, 159, 0),
    RGBColor(213, 94, 0),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(0, 158, 115),
    RGBColor(0, 114, 178),
];

/// Why there is no picture.
#[derive(Debug, Error)]
#[error("cannot draw {path}: {reason}")]
pub struct PictureError {
    path: String,
    reason: String,
}

/// A row of the picture: what it shows, and the value of a point.
struct Row {
    title: &'static str,
    value: fn(&Point) -> f64,
    /// The least value that the axis reaches to.
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
    paint(report, path)
        .map_err(|error| PictureError { path: path.display().to_string(), reason: error.to_string() })
}

fn paint(report: &DemoReport, path: &Path) -> Result<(), Box<dyn std::error::Error>> {
    let root = SVGBackend::new(path, SIZE).into_drawing_area();
    root.fill(&WHITE)?;
    let (legend, panels) = root.split_vertically(LEGEND_HEIGHT);
    if let Some(first) = report.paths.first() {
        draw_legend(&legend, report.on(first))?;
    }
    let areas = panels.split_evenly((ROWS, report.paths.len()));
    for (index, area) in areas.iter().enumerate() {
        let row = &PANELS[index / report.paths.len()];
        let path = &report.paths[index % report.paths.len()];
        draw_panel(area, report, path, row)?;
    }
    root.present()?;
    Ok(())
}

fn draw_legend<'a>(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    results: impl Iterator<Item = &'a MethodReport>,
) -> Result<(), Box<dyn std::error::Error>> {
    const STEP: i32 = 154;
    for (index, result) in results.enumerate() {
        let left = 24 + STEP * i32::try_from(index)?;
        let line = vec![(left, 28), (left + 22, 28)];
        area.draw(&PathElement::new(line, colour(index).stroke_width(3)))?;
        area.draw(&Text::new(result.method.clone(), (left + 28, 21), ("sans-serif", 14)))?;
    }
    Ok(())
}

fn draw_panel(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    report: &DemoReport,
    path: &PathSummary,
    row: &Row,
) -> Result<(), Box<dyn std::error::Error>> {
    let results: Vec<&MethodReport> = report.on(path).collect();
    let points = || results.iter().flat_map(|result| &result.series);
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
        .bold_line_style(RGBColor(225, 225, 225))
        .x_label_formatter(&|t| if end < 5.0 { format!("{t:.1} s") } else { format!("{t:.0} s") })
        .label_style(("sans-serif", 12))
        .draw()?;
    for (index, result) in results.iter().enumerate() {
        let line = result.series.iter().map(|point| (point.t, (row.value)(point)));
        chart.draw_series(LineSeries::new(line, colour(index).stroke_width(2)))?;
    }
    Ok(())
}

fn colour(index: usize) -> RGBColor {
    COLOURS[index % COLOURS.len()]
}
