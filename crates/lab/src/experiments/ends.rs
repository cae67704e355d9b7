//! The port at which the two ends of a flow meet, and the file into which its client reports.

/// The port of flow 0; flow n has the nth port after it.
pub(super) const FIRST_PORT: u16 = 5_201;

/// Returns the name of the file into which a flow's client reports.
pub(super) fn flow_report(flow: usize) -> String {
    format!("flow{flow}.json")
}

/// Returns what the names of a flow's other files end in, so that flows do not share them: nothing for flow 0.
pub(super) fn own_end(flow: usize) -> String {
    if flow == 0 { String::new() } else { flow.to_string() }
}

/// Returns the flow's port.
pub(super) fn port(number: usize) -> u16 {
    FIRST_PORT + u16::try_from(number).unwrap_or(u16::MAX - FIRST_PORT)
}
