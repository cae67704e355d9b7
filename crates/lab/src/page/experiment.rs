//! Writes an experiment's section: question, how it was run, pictures, verdicts, medians, commands.

use std::fmt::{self, Write};

use super::html::{Escaped, Ticked};
use super::{figures, over_time, tables};
use crate::experiments::{ExperimentResult, MethodResult};

pub(super) fn section(text: &mut String, result: &ExperimentResult, anchor: &str) -> fmt::Result {
    let (id, question) = (Escaped(&result.id), Escaped(&result.question));
    writeln!(text, "<section id=\"{anchor}\">\n<h2>{id}</h2>\n<p class=\"question\">{question}</p>")?;
    facts(text, result)?;
    figures::all(text, result)?;
    tables::reported(text, result)?;
    tables::targets(text, result)?;
    over_time::all(text, result)?;
    medians(text, result)?;
    problems(text, result)?;
    commands(text, result)?;
    writeln!(text, "</section>")
}

fn facts(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    let runs = || result.cases.iter().flat_map(|case| &case.methods).flat_map(|method| &method.runs);
    let (all, valid) = (runs().count(), runs().filter(|run| run.valid).count());
    writeln!(text, "<dl>")?;
    let fact = |text: &mut String, name: &str, value: &str| {
        writeln!(text, "<dt>{name}</dt><dd>{}</dd>", Ticked(value))
    };
    let met = result.met_by_method();
    if !met.is_empty() {
        fact(text, "Targets met", &format!("of those that were measured: {met}"))?;
    }
    fact(text, "Source", &result.source)?;
    fact(text, "Here", &result.scale)?;
    fact(text, "Kernel", &format!("Linux {}", result.kernel))?;
    for call in result.calls() {
        fact(text, "Ran", &call)?;
    }
    fact(text, "Command", &format!("`{}`", result.command()))?;
    fact(text, "Runs", &format!("{valid} valid of {all}; medians of {}", result.repeat))?;
    for method in &result.left_out {
        fact(text, "Left out", method)?;
    }
    for note in result.notes() {
        fact(text, "Note", &note)?;
    }
    writeln!(text, "</dl>")
}

fn medians(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    if result.cases.is_empty() {
        return Ok(());
    }
    let open = if result.survey { "" } else { " open" };
    writeln!(text, "<details{open}><summary><h3>Medians</h3></summary>")?;
    writeln!(
        text,
        "<p class=\"dim\">Below each median: the least and the most of the runs that it counts.</p>"
    )?;
    result.cases_that_run().try_for_each(|case| tables::medians(text, result, case))?;
    writeln!(text, "</details>")
}

fn problems(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    if !result.has_invalid_runs() {
        return Ok(());
    }
    let but = if result.survey { "" } else { " where there are valid ones" };
    writeln!(text, "<p>* Invalid runs are not counted in the medians{but}:</p>\n<ul>")?;
    result.problems().iter().try_for_each(|problem| writeln!(text, "<li>{}</li>", Escaped(problem)))?;
    writeln!(text, "</ul>")
}

fn commands(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    let Some(case) = result.cases_that_run().next() else { return Ok(()) };
    writeln!(
        text,
        "<details><summary><h3>How each method ran</h3></summary>\n<p class=\"dim\">In the case {}.</p>",
        Escaped(&case.name)
    )?;
    for MethodResult { name, settings, server, client, elsewhere, .. } in &case.methods {
        write!(
            text,
            "<h4>{}</h4>\n<p>{}</p>\n<pre><span>host B:</span> {}\n<span>host A:</span> {}",
            Escaped(name),
            Escaped(settings),
            Escaped(server),
            Escaped(client)
        )?;
        for (host, client) in elsewhere {
            write!(text, "\n<span>host {}:</span> {}", Escaped(host), Escaped(client))?;
        }
        writeln!(text, "</pre>")?;
    }
    writeln!(text, "</details>")
}
