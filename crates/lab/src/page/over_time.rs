//! Draws an experiment over time: in each case one run of each method, in common axes.

use std::fmt::{self, Write};

use super::curves::{Curves, Line};
use super::figures::colour;
use super::html::Escaped;
use crate::experiments::{CaseResult, ExperimentResult, OverTime, Track};

/// Most points of a line: a page of all experiments has some hundreds of pictures with several lines each.
const MOST_POINTS: usize = 120;

pub(super) fn all(text: &mut String, result: &ExperimentResult) -> fmt::Result {
    let mut cases =
        result.cases.iter().filter(|case| case.methods.iter().any(|one| one.over_time().is_some()));
    let Some(first) = cases.next() else { return Ok(()) };
    writeln!(
        text,
        "<h3>Over time</h3>\n<p class=\"dim\">Of each method the run nearest to its median. Windows, what is in flight and the round-trip time are \
         those of the connection that moved most; buffers and what they hold, those of all of a host together. Queues are without \
         emulated cross traffic. A point is the largest value since the one before, of what was acknowledged the mean.</p>"
    )?;
    writeln!(text, "<h4>{}</h4>", Escaped(&first.name))?;
    case(text, result, first)?;
    for other in cases {
        writeln!(text, "<details><summary><h4>{}</h4></summary>", Escaped(&other.name))?;
        case(text, result, other)?;
        writeln!(text, "</details>")?;
    }
    Ok(())
}

/// Returns a track's name, the unit in which it is drawn, and the factor from its own unit to that.
fn shown(track: Track) -> (&'static str, &'static str, f64) {
    match track {
        Track::RateBps => ("Acknowledged", "Mbit/s", 1e-6),
        Track::QueueBytes => ("Queues of the links", "kB", 1e-3),
        Track::CwndBytes => ("Congestion window", "kB of payload", 1e-3),
        Track::FlightBytes => ("In flight", "kB of payload", 1e-3),
        Track::WindowBytes => ("Receiver's window", "kB of payload", 1e-3),
        Track::SendBufferBytes => ("Send buffers", "kB of memory", 1e-3),
        Track::HeldBytes => ("Held by send buffers", "kB of memory", 1e-3),
        Track::ReceiveBufferBytes => ("Receive buffers", "kB of memory", 1e-3),
        Track::ReceiveHeldBytes => ("Held to be read", "kB of memory", 1e-3),
        Track::RttS => ("Round-trip time", "ms", 1e3),
    }
}

fn case(text: &mut String, result: &ExperimentResult, case: &CaseResult) -> fmt::Result {
    let runs: Vec<(&str, &OverTime)> =
        case.methods.iter().filter_map(|one| Some((one.name.as_str(), one.over_time()?.1))).collect();
    let end = runs.iter().filter_map(|(_, run)| run.t_s.last().copied()).fold(0.0, f64::max);
    write!(text, "<p class=\"keys\">")?;
    let key = |(name, _): &(&str, _)| Line::new(name, colour(result, name), std::iter::empty()).key();
    runs.iter().try_for_each(|run| writeln!(text, "{}", key(run)))?;
    writeln!(text, "</p>\n<div class=\"figures\">")?;
    for track in Track::ALL {
        let (name, unit, scale) = shown(track);
        let line = |(name, run): &(&str, &OverTime)| {
            let values = run.tracks.get(&track).map(Vec::as_slice).unwrap_or_default();
            let points = run.t_s.iter().zip(values).filter_map(|(t, value)| Some((*t, (*value)? * scale)));
            match (track, colour(result, name)) {
                (Track::RateBps, colour) => Line::of_means(MOST_POINTS, name, colour, points),
                (_, colour) => Line::of_at_most(MOST_POINTS, name, colour, points),
            }
        };
        let lines = runs.iter().map(line).collect();
        Curves { name, unit, lines, keys: false, stalls: &[], end }.draw(text)?;
    }
    writeln!(text, "</div>")
}

#[cfg(test)]
mod tests {
    use super::super::tests::result;
    use super::*;
    use crate::experiments::with_samples;

    #[test]
    fn each_method_has_the_colour_of_its_bars_and_a_key() {
        let mut text = String::new();
        all(&mut text, &with_samples()).unwrap();
        // The line of the second method; only one track has a value.
        assert!(text.contains("<path class=\"line l1\"") && text.matches("<figure>").count() == 1, "{text}");
        assert!(text.contains("</svg>abt &amp; &lt;b&gt;</span>") && !text.contains("<b>\""), "{text}");
        assert!(text.contains("<b>Congestion window, kB of payload</b>"), "{text}");
        let mut none = String::new();
        all(&mut none, &result()).unwrap();
        assert_eq!(none, "");
    }
}
