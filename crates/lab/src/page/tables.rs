//! Tables of an experiment. A wide table scrolls by itself, not the page.

use std::fmt::{self, Display, Write};

use super::html::{Escaped, Marked, Ticked};
use crate::experiments::{
    Agreement, CaseResult, Comparison, ExperimentResult, MethodResult, Quantity, Table, tables,
};

/// Begins a table inside a region that scrolls and that the keyboard can reach.
fn begin(text: &mut String, label: &str, class: &str) -> fmt::Result {
    writeln!(
        text,
        "<div class=\"wide\" role=\"region\" tabindex=\"0\" aria-label=\"{}\"><table class=\"{class}\">",
        Escaped(label)
    )
}

fn head<T: Display>(text: &mut String, titles: impl IntoIterator<Item = T>) -> fmt::Result {
    write!(text, "<thead><tr>")?;
    titles.into_iter().try_for_each(|title| write!(text, "<th scope=\"col\">{title}</th>"))?;
    writeln!(text, "</tr></thead>\n<tbody>")
}

fn end(text: &mut String) -> fmt::Result {
    writeln!(text, "</tbody></table></div>")
}

/// Writes a case: one column per method, one row per quantity.
pub(super) fn medians(text: &mut String, result: &ExperimentResult, case: &CaseResult) -> fmt::Result {
    let paths = case.paths.join("; ");
    writeln!(text, "<h4>{}</h4>\n<p class=\"dim\">{}</p>", Escaped(&case.name), Escaped(&paths))?;
    begin(text, &format!("Medians: {}", case.name), "medians")?;
    write!(text, "<thead><tr><th scope=\"col\">median</th>")?;
    case.methods.iter().try_for_each(|one| write!(text, "<th scope=\"col\">{}</th>", Escaped(&one.name)))?;
    writeln!(text, "</tr></thead>\n<tbody>")?;
    let measured = |quantity: &&Quantity| case.methods.iter().any(|one| one.medians.contains_key(quantity));
    for quantity in result.quantities.iter().filter(measured) {
        write!(text, "<tr><th scope=\"row\">{quantity}</th>")?;
        case.methods.iter().try_for_each(|one| cell(text, one, *quantity))?;
        writeln!(text, "</tr>")?;
    }
    write!(text, "<tr><th scope=\"row\">valid runs</th>")?;
    for method in &case.methods {
        let (valid, all) = (method.valid_runs() as usize, method.runs.len());
        let stalled =
            if valid < all { format!("<small>{} invalid*</small>", all - valid) } else { String::new() };
        write!(text, "<td>{valid} of {all}{stalled}</td>")?;
    }
    writeln!(text, "</tr>")?;
    end(text)
}

fn cell(text: &mut String, method: &MethodResult, quantity: Quantity) -> fmt::Result {
    let Some((least, most)) = method.spread(quantity) else {
        return write!(text, "<td>-</td>");
    };
    let star = if method.valid_runs() == 0 { "*" } else { "" };
    write!(text, "<td>{}{star}", method.median(quantity))?;
    if least < most {
        write!(text, "<small>{} to {}</small>", quantity.show(least), quantity.show(most))?;
    }
    write!(text, "</td>")
}

/// Writes the paper's figures, ours, and the verdicts with their reasons.
pub(super) fn reported(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    if result.reported.is_empty() {
        return Ok(());
    }
    writeln!(text, "<h3>The paper's figures</h3>")?;
    begin(text, "The paper's figures", "verdicts")?;
    head(text, ["place", "case", "reported", "here", "verdict"])?;
    for comparison in &result.reported {
        claim(text, comparison)?;
    }
    end(text)
}

fn claim(text: &mut String, comparison: &Comparison) -> fmt::Result {
    let reported = &comparison.reported;
    let class = match comparison.verdict {
        Some(Agreement::Reproduced) => "good",
        Some(Agreement::Partly) => "partly",
        Some(Agreement::Not) => "missed",
        Some(Agreement::NoLongerTrue) | None => "none",
    };
    let what = reported.quantity.shown().name;
    writeln!(
        text,
        "<tr><td data-head=\"place\">{}</td><td data-head=\"case\">{}</td>\
         <td data-head=\"reported\">{what} of <code>{}</code> {}</td><td data-head=\"here\">{}</td>\
         <td data-head=\"verdict\"><span class=\"badge {class}\">{}</span>",
        Escaped(&reported.place),
        Escaped(&reported.case),
        Escaped(&reported.method),
        Ticked(&reported.claimed()),
        Ticked(&comparison.measured()),
        comparison.word(),
    )?;
    for words in [comparison.few().as_deref().unwrap_or_default(), comparison.reason()] {
        if !words.is_empty() {
            write!(text, "<small>{}</small>", Escaped(words))?;
        }
    }
    writeln!(text, "</td></tr>")
}

/// Writes the targets; for a survey how many cases met each, and the targets that are not met.
pub(super) fn targets(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    if result.targets.is_empty() {
        return Ok(());
    }
    writeln!(text, "<h3>Targets</h3>")?;
    if result.survey {
        begin(text, "Cases that met each target", "counts")?;
        head(text, ["method", "quantity", "met", "not met", "not measured"])?;
        for (method, quantity, [met, missed, unknown]) in result.counted_targets() {
            let (method, what) = (Escaped(method), quantity.shown().name);
            writeln!(
                text,
                "<tr><td>{method}</td><td>{what}</td><td>{met}</td><td>{missed}</td><td>{unknown}</td></tr>"
            )?;
        }
        end(text)?;
    }
    let shown = result.shown_targets();
    if shown.is_empty() {
        return Ok(());
    }
    begin(text, "Targets", "verdicts")?;
    head(text, ["target", "case", "measured", "verdict"])?;
    for target in shown {
        let class = match target.met {
            Some(true) => "good",
            Some(false) => "missed",
            None => "none",
        };
        writeln!(
            text,
            "<tr><td data-head=\"target\">{} of <code>{}</code> {}</td><td data-head=\"case\">{}</td>\
             <td data-head=\"measured\">{}</td><td data-head=\"verdict\"><span class=\"badge {class}\">{}</span></td></tr>",
            target.quantity.shown().name,
            Escaped(&target.method),
            Ticked(&target.text),
            Escaped(if target.case.is_empty() { "all" } else { &target.case }),
            target.measured(),
            target.word()
        )?;
    }
    end(text)
}

/// Writes the tables that sum up the result.
pub(super) fn summaries(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    for Table { title, note, of, heads, rows } in tables(result) {
        writeln!(text, "<h3>{}</h3>", Ticked(&title))?;
        if !note.is_empty() {
            writeln!(text, "<p class=\"dim\">{}</p>", Ticked(&note))?;
        }
        begin(text, &title, "medians")?;
        head(text, std::iter::once(of).chain(heads))?;
        for (name, values) in rows {
            write!(text, "<tr><th scope=\"row\">{}</th>", Escaped(&name))?;
            values.iter().try_for_each(|value| write!(text, "<td>{}</td>", Marked(value)))?;
            writeln!(text, "</tr>")?;
        }
        end(text)?;
    }
    Ok(())
}
