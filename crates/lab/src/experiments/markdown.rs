//! Writes results as one Markdown document.

use std::fmt::{self, Write};

use super::heat;
use super::model::{Quantity, Reported};
use super::result::{CaseResult, ExperimentResult, MethodResult};
use super::summary::tables;
use super::table::Table;
use crate::page::Recorded;

/// A text in a cell of a table, with the character that ends a cell escaped.
struct Cell<'a>(&'a str);

impl fmt::Display for Cell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.replace('|', "\\|").replace('\n', " "))
    }
}

/// Writes the results of experiments and the runs over paths, each in the order given.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn write(results: &[ExperimentResult], runs: &[Recorded]) -> Result<String, fmt::Error> {
    let mut text = String::from("# Experiments\n\n");
    if !results.is_empty() {
        summary(&mut text, results)?;
    }
    for place in 0..results.len() {
        experiment(&mut text, results, place)?;
    }
    over_paths(&mut text, runs)?;
    Ok(text)
}

fn over_paths(text: &mut String, runs: &[Recorded]) -> fmt::Result {
    if runs.is_empty() {
        return Ok(());
    }
    writeln!(
        text,
        "\n## Runs over paths\n\n| run | goodput, Mbit/s | time, s | dropped | |\n|---|---|---|---|---|"
    )?;
    for Recorded { name, goodput_bps, seconds, link, valid, why_invalid, .. } in runs {
        let goodput = goodput_bps.map_or_else(|| "-".to_owned(), |rate| format!("{:.1}", rate / 1e6));
        let drops = link.a_to_b.drops.saturating_add(link.b_to_a.drops);
        let why = why_invalid.as_deref().unwrap_or_default();
        let verdict = if *valid { "valid".to_owned() } else { format!("INVALID: {why}") };
        let (name, verdict) = (Cell(name), Cell(&verdict));
        writeln!(text, "| {name} | {goodput} | {seconds:.1} | {drops} | {verdict} |")?;
    }
    Ok(())
}

fn summary(text: &mut String, results: &[ExperimentResult]) -> fmt::Result {
    writeln!(text, "| experiment | question | targets met | runs |\n|---|---|---|---|")?;
    for (place, result) in results.iter().enumerate() {
        // The anchor of the second heading with the same text ends in `-1`.
        let before = results[..place].iter().filter(|other| other.id == result.id).count();
        let number = if before > 0 { format!("-{before}") } else { String::new() };
        let (met, judged, unknown) = result.outcome();
        let unknown = if unknown > 0 { format!(", {unknown} not measured") } else { String::new() };
        let marks = if result.has_invalid_runs() { ", some invalid" } else { "" };
        let quick = if result.quick { ", quick" } else { "" };
        writeln!(
            text,
            "| [{id}](#{id}{number}) | {} | {met} of {judged}{unknown} | medians of {}{quick}{marks} |",
            Cell(&result.question),
            result.repeat,
            id = result.id
        )?;
    }
    Ok(())
}

/// Writes the result at `place` among `results`.
fn experiment(text: &mut String, results: &[ExperimentResult], place: usize) -> fmt::Result {
    let result = &results[place];
    write!(text, "\n## {}\n{}", result.id, result.question)?;
    let met = result.met_by_method();
    if !met.is_empty() {
        write!(text, "\n\nTargets met, of those that were measured: {met}.")?;
    }
    writeln!(
        text,
        "\n\nSource: {}. {}\nLinux {}; `{}`.",
        result.source,
        result.scale,
        result.kernel,
        result.command()
    )?;
    result.calls().iter().try_for_each(|call| writeln!(text, "Ran {call}."))?;
    result.left_out.iter().try_for_each(|method| writeln!(text, "\nLeft out: {method}."))?;
    result.notes().iter().try_for_each(|note| writeln!(text, "\nNote: {note}."))?;
    summaries(text, result)?;
    for (method, file) in heat::pictures(results, place) {
        writeln!(text, "\n![{method}]({file})")?;
    }
    if result.survey {
        // Its cases take pages.
        targets(text, result)?;
        writeln!(text, "\n### Each case")?;
        cases(text, result)?;
    } else {
        cases(text, result)?;
        targets(text, result)?;
    }
    reported(text, result)?;
    writeln!(text, "\nHow each method ran (first case):")?;
    let methods = result.cases_that_run().next().map(|case| case.methods.as_slice()).unwrap_or_default();
    methods.iter().try_for_each(|method| {
        writeln!(
            text,
            "- **{}**: {}\n  - host B: `{}`\n  - host A: `{}`",
            method.name, method.settings, method.server, method.client
        )?;
        method.elsewhere.iter().try_for_each(|(host, client)| writeln!(text, "  - host {host}: `{client}`"))
    })
}

/// Writes the tables that sum up the result.
fn summaries(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    for Table { title, note, of, heads, rows } in tables(result) {
        writeln!(text, "\n### {title}")?;
        if !note.is_empty() {
            writeln!(text, "{note}")?;
        }
        writeln!(text, "\n| {of} | {} |", heads.join(" | "))?;
        writeln!(text, "|---|{}", "---|".repeat(heads.len()))?;
        rows.iter()
            .try_for_each(|(head, values)| writeln!(text, "| {} | {} |", Cell(head), values.join(" | ")))?;
    }
    Ok(())
}

/// Writes every run of each case.
fn cases(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    result.cases_that_run().try_for_each(|case| table(text, case, &result.quantities))?;
    if result.has_invalid_runs() {
        let but = if result.survey { "" } else { " where there are others" };
        writeln!(text, "\n\\* not counted in the medians{but}:")?;
        result.problems().iter().try_for_each(|problem| writeln!(text, "- {problem}"))?;
    }
    Ok(())
}

fn table(text: &mut String, case: &CaseResult, quantities: &[Quantity]) -> fmt::Result {
    // A survey's method with too few valid runs has no median.
    let has = |one: &MethodResult, quantity: &Quantity| {
        one.medians.contains_key(quantity) || one.median_of_valid(*quantity).is_some()
    };
    let measured = |quantity: &&Quantity| case.methods.iter().any(|one| has(one, quantity));
    let shown: Vec<&Quantity> = quantities.iter().filter(measured).collect();
    write!(text, "\n**{}** ({})\n\n| method |", case.name, case.paths.join("; "))?;
    shown.iter().try_for_each(|quantity| write!(text, " {quantity} |"))?;
    write!(text, "\n|---|{}\n", "---|".repeat(shown.len()))?;
    for method in &case.methods {
        write!(text, "| {} |", Cell(&method.name))?;
        for quantity in &shown {
            write!(text, " {} ({}) |", method.median(**quantity), method.all(**quantity))?;
        }
        writeln!(text)?;
    }
    Ok(())
}

/// Writes for a survey how many cases met each target; the table of targets then lists the others.
fn counts(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    writeln!(text, "\n| method | quantity | met | not met | not measured |\n|---|---|---|---|---|")?;
    for (method, quantity, [met, missed, unknown]) in result.counted_targets() {
        let what = quantity.shown().name;
        writeln!(text, "| {} | {what} | {met} | {missed} | {unknown} |", Cell(method))?;
    }
    Ok(())
}

fn targets(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    if result.targets.is_empty() {
        return Ok(());
    }
    let shown = result.shown_targets();
    if result.survey {
        writeln!(text, "\n### Targets")?;
        counts(text, result)?;
    }
    if shown.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n| target | case | measured | |\n|---|---|---|---|")?;
    for target in shown {
        let what = target.quantity.shown().name;
        let case = if target.case.is_empty() { "all" } else { &target.case };
        writeln!(
            text,
            "| {what} of `{}` {} | {} | {} | {} |",
            Cell(&target.method),
            Cell(&target.text),
            Cell(case),
            target.measured(),
            target.word()
        )?;
    }
    Ok(())
}

/// Writes the paper's figures with ours beside them.
fn reported(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    if result.reported.is_empty() {
        return Ok(());
    }
    writeln!(text, "\n| the paper | case | reported | here | verdict |\n|---|---|---|---|---|")?;
    for comparison in &result.reported {
        let Reported { place, case, method, quantity, .. } = &comparison.reported;
        let (what, claimed, here) =
            (quantity.shown().name, comparison.reported.claimed(), comparison.measured());
        let few = comparison.few().map(|few| format!(", {few}")).unwrap_or_default();
        let reason = match comparison.reason() {
            "" => String::new(),
            reason => format!(": {reason}"),
        };
        let verdict = format!("{}{few}{reason}", comparison.word());
        let [place, case, method, claimed, verdict] =
            [place, case, method, &claimed, &verdict].map(|it| Cell(it));
        writeln!(text, "| {place} | {case} | {what} of `{method}` {claimed} | {here} | {verdict} |")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::tests::{recorded, result};

    #[test]
    fn a_bar_in_a_name_is_no_edge_of_a_cell() {
        let mut result = result();
        let name = |text: &mut String| text.push_str(" a|b");
        name(&mut result.question);
        for case in &mut result.cases {
            name(&mut case.name);
            case.methods.iter_mut().for_each(|method| name(&mut method.name));
        }
        for target in &mut result.targets {
            [&mut target.case, &mut target.method, &mut target.text].into_iter().for_each(name);
        }
        for one in result.reported.iter_mut().map(|one| &mut one.reported) {
            let texts =
                [&mut one.place, &mut one.case, &mut one.method, &mut one.conditions, &mut one.reason];
            texts.into_iter().for_each(name);
        }
        let mut run = recorded();
        name(&mut run.name);
        let text = write(&[result], &[run]).unwrap();
        assert!(text.contains("abt & <b> a\\|b"), "{text}");
        let cells = |line: &str| line.replace("\\|", "").matches('|').count();
        let mut head = 0;
        for line in text.lines() {
            head = match line.starts_with('|') {
                false => 0,
                true if head == 0 => cells(line),
                true => head,
            };
            assert!(head == 0 || cells(line) == head, "{line}");
        }
    }

    #[test]
    fn a_remark_on_runs_is_shown_once_with_its_method() {
        let mut result = result();
        let runs = &mut result.cases[0].methods[1].runs;
        runs.iter_mut().for_each(|run| run.notes.push("tuned from user space".to_owned()));
        assert!(result.to_string().contains("\n  note: `abt & <b>`: tuned from user space\n"), "{result}");
        let text = write(std::slice::from_ref(&result), &[]).unwrap();
        assert_eq!(text.matches("\nNote: `abt & <b>`: tuned from user space.\n").count(), 1, "{text}");
        let page = crate::page::write(&[result], &[]).unwrap();
        let fact = "<dt>Note</dt><dd><code>abt &amp; &lt;b&gt;</code>: tuned from user space</dd>";
        assert_eq!(page.matches(fact).count(), 1, "{page}");
    }

    #[test]
    fn figures_of_a_damaged_report_are_shown_all_the_same() {
        let mut run = recorded();
        (run.link.a_to_b.drops, run.link.b_to_a.drops) = (u64::MAX, 1);
        let text = write(&[], &[run]).unwrap();
        assert!(text.contains(&format!("| {} |", u64::MAX)), "{text}");
    }

    #[test]
    fn results_of_the_same_experiment_have_anchors_of_their_own() {
        let text = write(&[result(), result()], &[]).unwrap();
        let leads_to = |anchor: &str| text.contains(&format!("| [made-up](#{anchor}) |"));
        assert!(leads_to("made-up") && leads_to("made-up-1"), "{text}");
    }

    #[test]
    fn a_users_experiment_is_run_again_from_its_file() {
        let command = |file: Option<&str>| {
            let file = file.map(str::to_owned);
            write(&[ExperimentResult { file, ..result() }], &[]).unwrap()
        };
        assert!(command(None).contains("; `bufwise lab run made-up --quick --repeat 2`."));
        assert!(command(Some("my/own.toml")).contains("; `bufwise lab run my/own.toml --quick --repeat 2`."));
        assert!(
            command(Some("my own.toml")).contains("; `bufwise lab run 'my own.toml' --quick --repeat 2`.")
        );
    }
}
