//! Where the two ends of a flow meet, and where its client reports.

/// The port of flow 0; each has its own.
pub(super) const FIRST_PORT: u16 = 5_201;

/// Where a flow's client reports.
pub(super) fn flow_report(flow: usize) -> String {
    format!("flow{flow}.json")
}

/// The flow's port.
pub(super) fn port(number: usize) -> u16 {
    FIRST_PORT + u16::try_from(number).unwrap_or(u16::MAX - FIRST_PORT)
}
