//! Draws heat maps of a grid of paths as SVG: one file per method, with maps of goodput, drops, added delay and memory.
//! Rows are rate and RTT, columns the queue.

use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use plotters::coord::Shift;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use thiserror::Error;

use super::cell::{Cell, Queue};
use super::kept::plain;
use super::model::Quantity;
use super::result::{CaseResult, ExperimentResult};

const COLUMN: i32 = 74;
const ROW: i32 = 24;
/// Positions of the rows' heads, of a map's title, and of the columns' heads, in pixels.
const LEFT: i32 = 150;
const TITLE: i32 = 34;
const HEADS: i32 = 56;
const MARGIN: i32 = 20;
/// Height of the file's title, in pixels.
const TOP: u32 = 36;
/// Colours of a wanted value and of one far from it, which people with any colour vision can tell apart (Okabe and Ito
/// 2008).
const WANTED: (f64, f64, f64) = (86.0, 180.0, 233.0);
const MISSED: (f64, f64, f64) = (213.0, 94.0, 0.0);
const MIDDLE: (f64, f64, f64) = (247.0, 247.0, 247.0);
const NOT_MEASURED: RGBColor = RGBColor(225, 225, 225);

/// Why there is no picture.
#[derive(Debug, Error)]
#[error("cannot draw {}: {reason}", path.display())]
pub struct HeatMapError {
    path: PathBuf,
    reason: String,
}

/// Quantity of a map: a value of a cell, its text, and how far the value is from what is wanted, from 0 to 1.
struct Measure {
    title: &'static str,
    value: fn(&CaseResult, &Cell, &str) -> Option<f64>,
    text: fn(f64) -> String,
    badness: fn(f64) -> f64,
}

const MEASURES: [Measure; 4] = [
    Measure {
        title: "goodput over the ceiling, %",
        value: |case, cell, method| {
            // The share is of the ceiling for the time of the runs, which `--quick` may shorten.
            let share = case.median(method, Quantity::GoodputShare);
            let of_whole = || Some(case.median(method, Quantity::GoodputBps)? / cell.ceiling_bps());
            Some(share.or_else(of_whole)? * 100.0)
        },
        text: |percent| format!("{percent:.1}"),
        badness: |percent| (100.0 - percent) / 20.0,
    },
    Measure {
        title: "drops, packets",
        value: |case, _, method| case.median(method, Quantity::Drops),
        text: |packets| Quantity::Drops.show(packets),
        badness: |packets| (1.0 + packets).log10() / 3.0,
    },
    Measure {
        title: "added RTT, % of the path",
        value: |case, cell, method| {
            // Some surveys read the added RTT itself, others the whole one.
            let added = case.median(method, Quantity::AddedRttS);
            let of_whole = || Some(case.median(method, Quantity::RttMeanS)? - cell.rtt_ms as f64 / 1e3);
            Some(added.or_else(of_whole)? * 1e5 / cell.rtt_ms as f64)
        },
        text: |percent| format!("{percent:.0}"),
        badness: |percent| percent / 100.0,
    },
    Measure {
        title: "memory held by the sender, BDP",
        value: |case, cell, method| Some(case.median(method, Quantity::HeldPeakBytes)? / cell.bdp()),
        text: |products| format!("{products:.1}"),
        badness: |products| (products - 1.0) / 5.0,
    },
];

/// Values of a map, in rows and columns; a cell in which the method did not run has no entry.
#[derive(Debug, PartialEq)]
struct Map {
    rows: Vec<String>,
    /// Values by row and column; `None`: the method ran in the cell but has no value.
    values: BTreeMap<(usize, usize), Option<f64>>,
}

impl Map {
    fn of(result: &ExperimentResult, method: &str, measure: &Measure) -> Self {
        let cells = result.cases.iter().filter_map(|case| Some((case, case.cell?)));
        let mut paths: Vec<(u64, u64)> =
            cells.clone().map(|(_, cell)| (cell.rate_bps, cell.rtt_ms)).collect();
        paths.sort_unstable();
        paths.dedup();
        let (mut rows, mut values) = (vec![String::new(); paths.len()], BTreeMap::new());
        for (case, cell) in cells {
            let row = paths.partition_point(|path| *path < (cell.rate_bps, cell.rtt_ms));
            let column = Queue::ALL.iter().position(|queue| *queue == cell.queue).unwrap_or(0);
            rows[row] = cell.row();
            if case.method(method).is_some() {
                values.insert((row, column), (measure.value)(case, &cell, method));
            }
        }
        Self { rows, values }
    }
}

/// Returns the methods for which a grid has maps; empty if the result is no grid.
pub(crate) fn methods(result: &ExperimentResult) -> Vec<String> {
    let mut methods: Vec<String> = Vec::new();
    for case in result.cases.iter().filter(|case| case.cell.is_some()) {
        for method in &case.methods {
            if !methods.contains(&method.name) {
                methods.push(method.name.clone());
            }
        }
    }
    methods
}

/// Returns the methods of the result at `place` among `results`, each with the name of the file that [`draw`] writes for it. Results
/// of the same experiment have files of their own.
pub(super) fn pictures(results: &[ExperimentResult], place: usize) -> Vec<(String, String)> {
    let result = &results[place];
    let id = plain(&result.id);
    let number = match results[..place].iter().filter(|other| plain(&other.id) == id).count() {
        0 => String::new(),
        before => format!("-{}", before + 1),
    };
    let named = |method: String| {
        let file = format!("{id}{number}-{}.svg", plain(&method));
        (method, file)
    };
    methods(result).into_iter().map(named).collect()
}

/// Returns the maps of a method as an SVG element.
///
/// # Errors
/// Never: writing to a string does not fail.
pub(crate) fn map(result: &ExperimentResult, method: &str) -> Result<String, fmt::Error> {
    paint(result, method).map_err(|_| fmt::Error)
}

/// Draws the heat maps of every grid among the results into `directory`, one file per method.
///
/// # Errors
/// [`HeatMapError`] when a file cannot be written.
pub fn draw(results: &[ExperimentResult], directory: &Path) -> Result<(), HeatMapError> {
    for (place, result) in results.iter().enumerate() {
        for (method, file) in pictures(results, place) {
            let path = directory.join(file);
            let failed = |reason| HeatMapError { path: path.clone(), reason };
            let picture = paint(result, &method).map_err(|error| failed(error.to_string()))?;
            fs::write(&path, picture).map_err(|error| failed(error.to_string()))?;
        }
    }
    Ok(())
}

fn paint(result: &ExperimentResult, method: &str) -> Result<String, Box<dyn std::error::Error>> {
    let maps = MEASURES.map(|measure| (Map::of(result, method, &measure), measure));
    let rows = i32::try_from(maps[0].0.rows.len())?;
    let columns = i32::try_from(Queue::ALL.len())?;
    let width = 2 * u32::try_from(LEFT + columns * COLUMN + MARGIN)?;
    let height = TOP + 2 * u32::try_from(HEADS + rows * ROW + MARGIN)?;
    let mut picture = String::new();
    let root = SVGBackend::with_string(&mut picture, (width, height)).into_drawing_area();
    root.fill(&WHITE)?;
    let (head, body) = root.split_vertically(TOP);
    head.draw(&Text::new(format!("{}: {method}", result.id), (MARGIN, 12), ("sans-serif", 18)))?;
    for (area, (map, measure)) in body.split_evenly((2, 2)).iter().zip(&maps) {
        paint_map(area, map, measure)?;
    }
    root.present()?;
    drop((head, body, root));
    Ok(picture)
}

fn paint_map(
    area: &DrawingArea<SVGBackend<'_>, Shift>,
    map: &Map,
    measure: &Measure,
) -> Result<(), Box<dyn std::error::Error>> {
    let style = |size: i32, place| TextStyle::from(("sans-serif", size).into_font()).pos(place);
    let centre = Pos::new(HPos::Center, VPos::Center);
    let right = Pos::new(HPos::Right, VPos::Center);
    area.draw(&Text::new(measure.title, (LEFT, TITLE - 22), style(15, Pos::new(HPos::Left, VPos::Top))))?;
    for (column, queue) in (0..).zip(Queue::ALL) {
        let place = (LEFT + column * COLUMN + COLUMN / 2, HEADS - 12);
        area.draw(&Text::new(queue.to_string(), place, style(12, centre)))?;
    }
    for (row, name) in (0..).zip(&map.rows) {
        let place = (LEFT - 8, HEADS + row * ROW + ROW / 2);
        area.draw(&Text::new(name.clone(), place, style(12, right)))?;
    }
    for ((row, column), value) in &map.values {
        let (left, top) = (LEFT + i32::try_from(*column)? * COLUMN, HEADS + i32::try_from(*row)? * ROW);
        let corners = [(left + 1, top + 1), (left + COLUMN - 1, top + ROW - 1)];
        let colour = value.map_or(NOT_MEASURED, |value| colour((measure.badness)(value)));
        area.draw(&Rectangle::new(corners, colour.filled()))?;
        let text = value.map_or_else(|| "-".to_owned(), measure.text);
        area.draw(&Text::new(text, (left + COLUMN / 2, top + ROW / 2), style(12, centre)))?;
    }
    Ok(())
}

/// Returns the colour between the wanted one, white and the missed one.
fn colour(badness: f64) -> RGBColor {
    let badness = badness.clamp(0.0, 1.0);
    let (from, to, share) =
        if badness < 0.5 { (WANTED, MIDDLE, badness * 2.0) } else { (MIDDLE, MISSED, badness * 2.0 - 1.0) };
    let mix = |from: f64, to: f64| (from + (to - from) * share).round() as u8;
    RGBColor(mix(from.0, to.0), mix(from.1, to.1), mix(from.2, to.2))
}

#[cfg(test)]
mod tests {
    use super::super::model::Experiment;
    use super::super::result::RunResult;
    use super::*;

    fn grid() -> Experiment {
        super::super::catalogue().into_iter().find(|experiment| experiment.id == "fit-grid").unwrap()
    }

    /// A result in which every run of CUBIC has half of the ceiling; the other methods are not measured.
    fn measured() -> ExperimentResult {
        let mut result = ExperimentResult::new(&grid(), false, Some(1), None);
        for case in &mut result.cases {
            let cell = case.cell.unwrap();
            let values = BTreeMap::from([
                (Quantity::GoodputBps, cell.ceiling_bps() / 2.0),
                (Quantity::RttMeanS, cell.rtt_ms as f64 * 1.5e-3),
                (Quantity::HeldPeakBytes, cell.bdp() * 3.0),
                (Quantity::Drops, 7.0),
            ]);
            case.methods[0].runs =
                vec![RunResult { valid: true, attempts: 1, values, ..RunResult::default() }];
        }
        result.conclude(&grid());
        result
    }

    #[test]
    fn a_map_has_each_cell_at_its_path_and_queue() {
        let result = measured();
        for (measure, wanted) in MEASURES.iter().zip([50.0, 7.0, 50.0, 3.0]) {
            let map = Map::of(&result, "cubic", measure);
            assert_eq!(map.values.len(), result.cases.len());
            for case in &result.cases {
                let cell = case.cell.unwrap();
                let row = map.rows.iter().position(|row| *row == cell.row()).unwrap();
                let column = Queue::ALL.iter().position(|queue| *queue == cell.queue).unwrap();
                let value = map.values[&(row, column)].unwrap();
                assert!((value - wanted).abs() < 1e-6, "{cell}: {value} for {}", measure.title);
            }
        }
        let mut short = result.clone();
        short.cases[0].methods[0].medians.insert(Quantity::GoodputShare, 0.9);
        let goodput = Map::of(&short, "cubic", &MEASURES[0]);
        assert_eq!(goodput.values.values().flatten().filter(|value| **value > 89.0).count(), 1);
        let other = Map::of(&result, "fit at the receiver", &MEASURES[0]);
        assert_eq!(other.values.len(), 15);
        assert!(other.values.values().all(Option::is_none), "not measured is no number");
    }

    #[test]
    fn a_survey_that_reads_the_added_rtt_has_it_in_its_map() {
        let survey = super::super::catalogue().into_iter().find(|one| one.id == "head-to-head").unwrap();
        let mut result = ExperimentResult::new(&survey, false, Some(1), None);
        for case in &mut result.cases {
            let Some(cell) = case.cell else { continue };
            // A quarter of the path's round trip.
            let values = BTreeMap::from([(Quantity::AddedRttS, cell.rtt_ms as f64 / 4e3)]);
            case.methods[0].runs =
                vec![RunResult { valid: true, attempts: 1, values, ..RunResult::default() }];
        }
        result.conclude(&survey);
        let map = Map::of(&result, &result.cases[0].methods[0].name, &MEASURES[2]);
        let cells = result.cases.iter().filter(|case| case.cell.is_some()).count();
        assert!(cells > 1 && map.values.len() == cells, "{map:?}");
        assert!(map.values.values().all(|value| value.is_some_and(|value| (value - 25.0).abs() < 1e-6)));
    }

    #[test]
    fn a_median_of_half_a_packet_is_not_shown_as_none() {
        assert_eq!([0.0, 0.5, 7.0].map(MEASURES[1].text), ["0", "0.5", "7"]);
    }

    #[test]
    fn every_method_has_a_picture_of_four_maps() {
        let directory = tempfile::tempdir().unwrap();
        let result = measured();
        draw(std::slice::from_ref(&result), directory.path()).unwrap();
        let pictures = pictures(std::slice::from_ref(&result), 0);
        assert_eq!(pictures.len(), grid().methods.len());
        assert_eq!(pictures[0], ("cubic".to_owned(), "fit-grid-cubic.svg".to_owned()));
        for (_, file) in pictures {
            let svg = fs::read_to_string(directory.path().join(&file)).unwrap();
            assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{file}");
            assert!(MEASURES.iter().all(|measure| svg.contains(measure.title)), "{file}");
        }
        let cubic = fs::read_to_string(directory.path().join("fit-grid-cubic.svg")).unwrap();
        assert_eq!(cubic.matches("\n50.0\n").count(), result.cases.len(), "each cell's goodput");
    }

    #[test]
    fn each_result_has_files_of_its_own_in_the_directory() {
        let of = |id: &str| ExperimentResult { id: id.to_owned(), ..measured() };
        let results = [of("fit-grid"), of("../fit/grid"), of("/other")];
        let first = |place| pictures(&results, place).remove(0).1;
        assert_eq!([first(0), first(1)], ["fit-grid-cubic.svg", "fit-grid-2-cubic.svg"]);
        assert_eq!(first(2), "other-cubic.svg");
    }

    #[test]
    fn colours_run_from_wanted_to_missed() {
        let rgb = |(red, green, blue): (f64, f64, f64)| RGBColor(red as u8, green as u8, blue as u8);
        assert_eq!((colour(-1.0), colour(0.5), colour(9.0)), (rgb(WANTED), rgb(MIDDLE), rgb(MISSED)));
    }
}
