//! Results as one self-contained HTML page: no network, no script, styles and pictures inside. It suits phones, paper,
//! and light and dark screens.
//!
//! All names and texts come from files, so all are escaped, and the page's policy allows only its one style sheet.

mod axis;
mod bars;
mod curves;
mod experiment;
mod figures;
mod html;
mod over_time;
mod recorded;
mod run;
mod tables;

use std::fmt::{self, Write};

pub use recorded::{Recorded, RecordedSample};

use crate::experiments::{Agreement, ExperimentResult, plain};
use html::Escaped;

/// The style sheet, and its hash, which lets browsers use it (CSP level 3, `hash-source`).
const STYLE: &str = include_str!("style.css");
const STYLE_HASH: &str = "sha256-vHz1JTW8+SV9svPo+CfN+v2JAZDTvsAH3x3Qj4Vr/5U=";

/// Writes the results of experiments and the runs over paths, each in the order given.
///
/// # Errors
/// Never: writing to a string does not fail.
pub fn write(results: &[ExperimentResult], runs: &[Recorded]) -> Result<String, fmt::Error> {
    let anchors = anchors(results, runs);
    let mut text = format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src '{STYLE_HASH}'; \
         base-uri 'none'; form-action 'none'\">\n\
         <meta name=\"viewport\" content=\"width=device-width,initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>Experiments with TCP's buffers</title>\n<style>{STYLE}</style>\n</head>\n<body>\n\
         <header><h1>Experiments with TCP's buffers</h1>\n\
         <p class=\"dim\">Real kernels over emulated paths, by <code>bufwise lab</code>.</p></header>\n<main>\n"
    );
    contents(&mut text, results, runs, &anchors)?;
    for (result, anchor) in results.iter().zip(&anchors) {
        experiment::section(&mut text, result, anchor)?;
    }
    for (run, anchor) in runs.iter().zip(&anchors[results.len()..]) {
        run::section(&mut text, run, anchor)?;
    }
    text.push_str("</main>\n</body>\n</html>\n");
    Ok(text)
}

/// Returns a name inside the page for each experiment and run, all different.
fn anchors(results: &[ExperimentResult], runs: &[Recorded]) -> Vec<String> {
    let names = results.iter().map(|result| &result.id).chain(runs.iter().map(|run| &run.name));
    let letters = names.map(|name| plain(name));
    distinct(letters.map(|name| if name.is_empty() { "unnamed".to_owned() } else { name }))
}

/// Returns `names`, all different: the second of the same name ends in `-2`. Directories of several machines have results of the same
/// experiments.
pub(crate) fn distinct(names: impl Iterator<Item = String>) -> Vec<String> {
    let mut distinct: Vec<String> = Vec::new();
    for name in names {
        let numbered = (2..).map(|number| format!("{name}-{number}"));
        let free = std::iter::once(name.clone()).chain(numbered).find(|name| !distinct.contains(name));
        distinct.extend(free);
    }
    distinct
}

fn contents(
    text: &mut String,
    results: &[ExperimentResult],
    runs: &[Recorded],
    anchors: &[String],
) -> fmt::Result {
    writeln!(text, "<nav aria-label=\"Contents\"><h2>Contents</h2>\n<ol>")?;
    for (result, anchor) in results.iter().zip(anchors) {
        writeln!(
            text,
            "<li><a href=\"#{anchor}\">{}</a> <span>{}</span>",
            Escaped(&result.id),
            Escaped(&result.question)
        )?;
        summary(text, result)?;
        writeln!(text, "</li>")?;
    }
    for (run, anchor) in runs.iter().zip(&anchors[results.len()..]) {
        let valid = if run.valid { "" } else { " <span class=\"badge missed\">invalid</span>" };
        writeln!(
            text,
            "<li><a href=\"#{anchor}\">{}</a> <span>a run over a path</span>{valid}</li>",
            Escaped(&run.name)
        )?;
    }
    writeln!(text, "</ol></nav>")
}

/// Writes the outcome in a few words.
fn summary(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    let (met, judged, unknown) = result.outcome();
    if judged > 0 {
        let class = if met == judged { "good" } else { "missed" };
        write!(text, " <span class=\"badge {class}\">{met} of {judged} targets met</span>")?;
    }
    if unknown > 0 {
        write!(text, " <span class=\"badge none\">{unknown} not measured</span>")?;
    }
    let claims = result.reported.len();
    if claims > 0 {
        let as_said = |one: &&_| Agreement::Reproduced == **one;
        let verdicts: Vec<Agreement> = result.reported.iter().filter_map(|one| one.verdict).collect();
        let reproduced = verdicts.iter().filter(as_said).count();
        let class = match verdicts.len() {
            0 => "none",
            _ if reproduced == claims => "good",
            _ => "partly",
        };
        write!(text, " <span class=\"badge {class}\">{reproduced} of {claims} figures reproduced</span>")?;
    }
    if result.has_invalid_runs() {
        write!(text, " <span class=\"badge none\">some runs invalid</span>")?;
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use serde_json::json;

    pub(crate) use super::recorded::tests::recorded;
    use super::*;

    /// Returns an experiment with two cases, made by hand: a run that stalled, a method without a valid run, markup in
    /// names.
    pub(crate) fn result() -> ExperimentResult {
        let run = |valid: bool, attempts: u32, problem: Option<&str>, values: serde_json::Value| json!({ "valid": valid, "problem": problem, "attempts": attempts, "values": values });
        let method = |name: &str, runs: serde_json::Value, medians: serde_json::Value| {
            json!({ "name": name, "server": "iperf3 -s", "client": "iperf3 -c \"$HOST\" <in", "settings": "cubic",
                "runs": runs, "medians": medians })
        };
        let stalled = "it \"stalled\", <twice>";
        let kernel = method(
            "kernel",
            json!([
                run(true, 1, None, json!({ "goodput_bps": 9e6, "held_peak_bytes": 2e6, "drops": 0.0 })),
                run(false, 3, Some(stalled), json!({ "goodput_bps": 5e6 })),
            ]),
            json!({ "goodput_bps": 9e6, "held_peak_bytes": 2e6, "drops": 0.0 }),
        );
        let abt = method(
            "abt & <b>",
            json!([
                run(true, 1, None, json!({ "goodput_bps": 9.5e6, "held_peak_bytes": 1e6, "drops": 12.0 })),
                run(true, 1, None, json!({ "goodput_bps": 9.3e6, "held_peak_bytes": 1.5e6, "drops": 10.0 })),
            ]),
            json!({ "goodput_bps": 9.4e6, "held_peak_bytes": 1.25e6, "drops": 11.0 }),
        );
        let never = run(false, 3, Some(stalled), json!({ "goodput_bps": 5e6 }));
        let case = |name: &str, methods: serde_json::Value| json!({ "name": name, "paths": ["10 Mbit/s, 20 ms"], "methods": methods });
        let claim = |place: &str, quantity: &str, claim: serde_json::Value, verdict: serde_json::Value| {
            json!({ "place": place, "case": "one", "method": "abt & <b>", "quantity": quantity, "claim": claim,
                "conditions": "1 GB", "reason": "a deeper queue", "of_then": true, "measured": 9.4e6, "times": null,
                "verdict": verdict })
        };
        serde_json::from_value(json!({
            "id": "made-up", "source": "Semke 1998, figure 9", "question": "Is it <faster>?", "scale": "Half as long.",
            "kernel": "6.18", "quick": true, "repeat": 2,
            "quantities": ["goodput_bps", "held_peak_bytes", "rtt_mean_s", "drops"],
            "cases": [
                case("one", json!([kernel, abt])),
                case("two", json!([method("kernel", json!([never]), json!({ "goodput_bps": 5e6 }))])),
            ],
            "targets": [
                { "case": "one", "method": "abt & <b>", "quantity": "held_peak_bytes", "text": "at most 1.00 MB",
                    "measured": 1.25e6, "met": false },
            ],
            "reported": [
                claim("figure 9", "goodput_bps", json!({ "times": [1.5, "kernel"] }), json!("no_longer_true")),
                claim("section 4", "goodput_bps", json!({ "at_least": 9e6 }), json!("reproduced")),
            ],
        }))
        .unwrap()
    }

    #[test]
    fn a_page_of_a_small_result() {
        let text = write(&[result()], &[]).unwrap();
        insta::assert_snapshot!(text.replace(STYLE, "...").replace(STYLE_HASH, "..."));
    }

    #[test]
    fn nothing_of_a_file_is_markup_and_nothing_comes_from_elsewhere() {
        let hostile = "</h2><script>alert(1)</script><img src=x onerror='a'>\"&";
        let mut result = crate::experiments::with_samples();
        for text in
            [&mut result.id, &mut result.question, &mut result.source, &mut result.scale, &mut result.kernel]
        {
            hostile.clone_into(text);
        }
        result.left_out.push(hostile.to_owned());
        for case in &mut result.cases {
            hostile.clone_into(&mut case.name);
            case.paths = vec![hostile.to_owned()];
            for method in &mut case.methods {
                for text in [&mut method.name, &mut method.server, &mut method.client, &mut method.settings] {
                    hostile.clone_into(text);
                }
                method.runs.iter_mut().for_each(|run| run.problem = Some(hostile.to_owned()));
            }
        }
        for target in &mut result.targets {
            for text in [&mut target.case, &mut target.method, &mut target.text] {
                hostile.clone_into(text);
            }
        }
        for one in result.reported.iter_mut().map(|one| &mut one.reported) {
            for text in [&mut one.place, &mut one.case, &mut one.method, &mut one.conditions, &mut one.reason]
            {
                hostile.clone_into(text);
            }
        }
        // A case with a cell gets heat maps.
        let path = json!({ "rate_bps": 10_000_000, "rtt_ms": 20, "queue": "bdp", "seconds": 4 });
        result.cases[0].cell = serde_json::from_value(path).unwrap();
        let run = Recorded { name: hostile.to_owned(), why_invalid: Some(hostile.to_owned()), ..recorded() };
        // The name of SVG's namespace is not an address that a browser opens.
        let text = write(&[result], &[run]).unwrap().replace("xmlns=\"http://www.w3.org/2000/svg\"", "");
        assert!(text.contains("&lt;script&gt;") && text.contains("class=\"map\""));
        for markup in ["<script", "<img", "src=", "</h2>\"", "http:", "https:", "url(", "@import", " style="]
        {
            let found = text.find(markup).map(|at| &text[at.saturating_sub(80)..(at + 40).min(text.len())]);
            let own = matches!(markup, "src=") && found.is_some_and(|found| found.contains("&lt;img src="));
            assert!(found.is_none() || own, "{markup}: {found:?}");
        }
    }

    #[test]
    fn queues_over_time_are_told_from_those_that_count_cross_traffic() {
        let text = write(&[crate::experiments::with_samples()], &[recorded()]).unwrap();
        assert!(text.contains("Queues are without emulated cross traffic."), "{text}");
        assert!(text.contains("Curves of the queue are without emulated cross traffic;"), "{text}");
    }

    #[test]
    fn only_cells_of_tables_that_scroll_keep_their_text_in_one_line() {
        for rule in STYLE.split('}').filter(|rule| rule.contains("nowrap")) {
            let selectors = rule.split_once('{').map_or("", |(selectors, _)| selectors.trim());
            // A method's name of 60 letters would make the page of a phone wider than its screen.
            assert!(selectors.split(", ").all(|one| one.starts_with(".medians ")), "{selectors}");
        }
    }

    #[test]
    fn the_policy_has_the_hash_of_the_style() {
        let digest = ring::digest::digest(&ring::digest::SHA256, STYLE.as_bytes());
        assert_eq!(STYLE_HASH, format!("sha256-{}", base64(digest.as_ref())), "write this into STYLE_HASH");
    }

    fn base64(bytes: &[u8]) -> String {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let group = |three: &[u8]| {
            let bits =
                (0..3).fold(0_u32, |bits, at| bits << 8 | u32::from(three.get(at).copied().unwrap_or(0)));
            let letter = |at: usize| {
                if at > three.len() { '=' } else { LETTERS[(bits >> (18 - 6 * at) & 63) as usize].into() }
            };
            (0..4).map(letter).collect::<String>()
        };
        bytes.chunks(3).map(group).collect()
    }

    #[test]
    fn each_section_has_an_anchor_of_its_own() {
        let named = |id: &str| ExperimentResult { id: id.to_owned(), ..result() };
        let run = Recorded { name: "One two".to_owned(), ..recorded() };
        let anchors = anchors(&[named("one-two"), named("One, two"), named("!"), named("")], &[run]);
        assert_eq!(anchors, ["one-two", "one-two-2", "unnamed", "unnamed-2", "one-two-3"]);
    }
}
