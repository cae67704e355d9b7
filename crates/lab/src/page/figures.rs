//! Draws an experiment's pictures: a paper's figures with ours beside them, the quantities with targets, and the others
//! folded.
//!
//! Papers mostly compare methods, so a claim on two of them is drawn from our median of the other one: "4 times
//! `64 KB`" is a mark at four times the value of `64 KB` here.

use std::fmt::{self, Write};

use super::bars::{Bar, Bars, Group, Mark, Row};
use super::html::Escaped;
use super::tables;
use crate::experiments::{
    CaseResult, Claim, ExperimentResult, MethodResult, Quantity, Reported, heat_map, maps,
};

pub(super) fn all(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    tables::summaries(text, result)?;
    for method in maps(result) {
        let map = heat_map(result, &method)?;
        writeln!(
            text,
            "<figure class=\"map\" role=\"img\" aria-label=\"Heat maps of {}; the medians below have the numbers\">\
             {map}</figure>",
            Escaped(&method)
        )?;
    }
    // A survey has hundreds of cases; the maps and tables above sum them up.
    if result.survey && result.reported.is_empty() {
        return Ok(());
    }
    let reported = in_order(result.reported.iter().map(|one| one.reported.quantity));
    let targets = in_order(result.targets.iter().map(|target| target.quantity));
    let targets: Vec<Quantity> = targets.into_iter().filter(|one| !reported.contains(one)).collect();
    let others = in_order(result.quantities.iter().copied());
    let others: Vec<Quantity> =
        others.into_iter().filter(|one| !reported.contains(one) && !targets.contains(one)).collect();
    if !reported.is_empty() {
        writeln!(text, "<h3>The paper's figures and ours</h3>\n{LEGEND}")?;
        figures(text, result, &reported, true)?;
    }
    if !targets.is_empty() {
        writeln!(text, "<h3>Measured</h3>\n<p class=\"dim\">Bars: medians; whiskers: least to most.</p>")?;
        figures(text, result, &targets, false)?;
    }
    if !others.is_empty() {
        writeln!(text, "<details><summary><h3>More that was measured</h3></summary>")?;
        figures(text, result, &others, false)?;
        writeln!(text, "</details>")?;
    }
    Ok(())
}

const LEGEND: &str = "<p class=\"dim\">Bars: our medians; whiskers: least to most; hollow: no valid run.\n\
    <span class=\"key\"><svg viewBox=\"0 0 12 14\" aria-hidden=\"true\"><path class=\"paper\" d=\"M6 1l5 6-5 6-5-6z\"/></svg>\
    the paper's figure</span>\n\
    <span class=\"key\"><svg viewBox=\"0 0 14 14\" aria-hidden=\"true\"><path class=\"paper\" d=\"M2 .5v13m0-6.5h9m-4-3 4 3-4 3\"/></svg>\
    its bound</span>.\n\
    A claim on two methods is drawn from our median of the other one.</p>";

/// Returns each quantity once, in order of first occurrence.
fn in_order(quantities: impl Iterator<Item = Quantity>) -> Vec<Quantity> {
    let mut once = Vec::new();
    for quantity in quantities {
        if !once.contains(&quantity) {
            once.push(quantity);
        }
    }
    once
}

fn figures(
    text: &mut String,
    result: &ExperimentResult,
    quantities: &[Quantity],
    of_paper: bool,
) -> fmt::Result {
    writeln!(text, "<div class=\"figures\">")?;
    for quantity in quantities {
        let bars = bars(result, *quantity, of_paper);
        if bars.groups.is_empty() {
            continue;
        }
        write!(text, "<figure><figcaption><b>{quantity}</b>")?;
        if of_paper {
            let places = result.reported.iter().filter(|one| one.reported.quantity == *quantity);
            let mut places: Vec<&str> = places.map(|one| one.reported.place.as_str()).collect();
            places.dedup();
            write!(text, " <span class=\"dim\">{}</span>", Escaped(&places.join("; ")))?;
        }
        writeln!(text, "</figcaption>")?;
        bars.draw(text)?;
        writeln!(text, "</figure>")?;
    }
    writeln!(text, "</div>")
}

/// Returns the picture of a quantity: of the cases in the paper, or of all in which it was measured.
fn bars(result: &ExperimentResult, quantity: Quantity, of_paper: bool) -> Bars {
    let claims = |case: &CaseResult| -> Vec<&Reported> {
        let reported = result.reported.iter().map(|one| &one.reported);
        reported.filter(|one| one.quantity == quantity && one.case == case.name).collect()
    };
    let measured = |case: &CaseResult| case.methods.iter().any(|one| one.medians.contains_key(&quantity));
    let shown = |case: &&CaseResult| if of_paper { !claims(case).is_empty() } else { measured(case) };
    let group = |case: &CaseResult| Group {
        name: case.name.clone(),
        rows: case.methods.iter().map(|method| row(result, case, method, quantity, &claims(case))).collect(),
    };
    let shape = quantity.shown();
    Bars {
        name: shape.name.to_owned(),
        unit: shape.unit,
        groups: result.cases.iter().filter(shown).map(group).collect(),
    }
}

fn row(
    result: &ExperimentResult,
    case: &CaseResult,
    method: &MethodResult,
    quantity: Quantity,
    claims: &[&Reported],
) -> Row {
    let scale = quantity.shown().scale;
    let bar = method.medians.get(&quantity).zip(method.spread(quantity));
    let bar = bar.map(|(median, (least, most))| Bar {
        median: median * scale,
        least: least * scale,
        most: most * scale,
        text: method.median(quantity),
        valid: method.valid_runs() > 0,
    });
    let own = claims.iter().filter(|claim| claim.method == method.name);
    Row {
        name: method.name.clone(),
        colour: colour(result, &method.name),
        bar,
        marks: own.filter_map(|one| mark(&one.claim, case, quantity)).collect(),
    }
}

/// Number of colours in the style sheet.
const COLOURS: usize = 8;

/// Returns the index of a method's colour, which is the same in all cases and pictures of an experiment.
pub(super) fn colour(result: &ExperimentResult, method: &str) -> usize {
    let mut names: Vec<&str> = Vec::new();
    for name in result.cases.iter().flat_map(|case| &case.methods).map(|one| one.name.as_str()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names.iter().position(|name| *name == method).unwrap_or(0) % COLOURS
}

/// Returns a claim's mark on the axis; `None` if it compares with a method that was not measured.
fn mark(claim: &Claim, case: &CaseResult, quantity: Quantity) -> Option<Mark> {
    let scale = quantity.shown().scale;
    let other = claim.other().and_then(|other| case.median(other, quantity)).map(|value| value * scale);
    Some(match *claim {
        Claim::Number(value) => Mark::At(value * scale),
        Claim::Between(least, most) => Mark::Between(least * scale, most * scale),
        Claim::AtLeast(least) => Mark::AtLeast(least * scale),
        Claim::AtMost(most) => Mark::AtMost(most * scale),
        Claim::Times(times, _) => Mark::At(other? * times),
        Claim::MoreThan(_) => Mark::AtLeast(other?),
        Claim::LessThan(_) => Mark::AtMost(other?),
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::result;
    use super::*;

    #[test]
    fn a_claim_on_two_methods_is_drawn_from_our_median_of_the_other() {
        let result = result();
        let of = |claim| mark(&claim, &result.cases[0], Quantity::GoodputBps);
        // The other method has 9 Mbit/s.
        let kernel = || "kernel".to_owned();
        assert_eq!(of(Claim::Times(1.5, kernel())), Some(Mark::At(13.5)));
        assert_eq!(of(Claim::MoreThan(kernel())), Some(Mark::AtLeast(9.0)));
        assert_eq!(of(Claim::LessThan(kernel())), Some(Mark::AtMost(9.0)));
        assert_eq!(of(Claim::Between(1e6, 2e6)), Some(Mark::Between(1.0, 2.0)));
        assert_eq!(of(Claim::Times(1.5, "bbr".to_owned())), None);
    }

    #[test]
    fn a_paper_is_drawn_in_its_cases_and_what_was_measured_in_all() {
        let mut result = result();
        let names = |bars: Bars| bars.groups.into_iter().map(|group| group.name).collect::<Vec<_>>();
        let goodput = |result: &ExperimentResult, of_paper| bars(result, Quantity::GoodputBps, of_paper);
        assert_eq!(names(goodput(&result, true)), ["one"]);
        assert_eq!(names(goodput(&result, false)), ["one", "two"]);
        result.reported.clear();
        assert!(names(goodput(&result, true)).is_empty());
        let row = &goodput(&result, false).groups[1].rows[0];
        assert!(row.bar.as_ref().is_some_and(|bar| !bar.valid && bar.median == 5.0), "hollow");
    }
}
