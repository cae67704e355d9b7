//! Writes the section of a run over a path: its results, and its values over time.

use std::fmt::{self, Write};

use super::html::Escaped;
use super::recorded::Recorded;

pub(super) fn section(text: &mut String, run: &Recorded, anchor: &str) -> fmt::Result {
    writeln!(text, "<section id=\"{anchor}\">\n<h2>{}</h2>\n<dl>", Escaped(&run.name))?;
    let fact = |text: &mut String, name: &str, value: &str| {
        writeln!(text, "<dt>{name}</dt><dd>{}</dd>", Escaped(value))
    };
    if let Some(goodput) = run.goodput_bps {
        fact(text, "Goodput", &format!("{:.1} Mbit/s", goodput / 1e6))?;
    }
    fact(text, "Client", &format!("{:.1} s, status {}", run.seconds, run.client_status))?;
    for (name, way) in [("Link, A to B", run.link.a_to_b), ("Link, B to A", run.link.b_to_a)] {
        let used = way.utilisation * 100.0;
        let queue = way.queue_max_bytes as f64 / 1e3;
        let marked = if way.marked > 0 { format!("{} marked, ", way.marked) } else { String::new() };
        let value = format!(
            "{} packets, {} dropped, {} lost at random, {marked}queue at most {queue:.1} kB, {used:.1}% used",
            way.packets, way.drops, way.drops_random
        );
        fact(text, name, &value)?;
    }
    match &run.why_invalid {
        None if run.valid => fact(text, "Emulator", "kept time: the run is valid")?,
        why => fact(text, "Emulator", &format!("INVALID: {}", why.as_deref().unwrap_or("no reason given")))?,
    }
    // The two differ in that by the contract of the report's keys.
    let queues =
        "Curves of the queue are without emulated cross traffic; queue and use of the link above count it.";
    writeln!(text, "</dl>\n<h3>Over time</h3>")?;
    let stalls = run.stalled();
    let grey = if stalls.is_empty() { "" } else { " Grey: the emulator stalled." };
    let connections = match run.connections() {
        0 => "No connection moved data.".to_owned(),
        1 => "Windows and buffers of the connection.".to_owned(),
        count => format!("Windows and buffers of the connection that moved most, of {count}."),
    };
    writeln!(text, "<p class=\"dim\">{connections} {queues}{grey}</p>\n<div class=\"figures\">")?;
    run.panels(&stalls).iter().try_for_each(|panel| panel.draw(text))?;
    writeln!(text, "</div>\n</section>")
}
