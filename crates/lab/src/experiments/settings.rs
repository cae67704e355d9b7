//! Describes paths and kernel settings in words.

use std::fs;

use bufwise_link::{CrossPattern, CrossTraffic, Loss, QueueLimit};

use super::model::Method;
use crate::spec::{PathSpec, SharedLink};

/// Returns a path in one line.
pub(super) fn path(spec: &PathSpec) -> String {
    let rate = match spec.rate.map(|rate| rate.0) {
        None => "no limit".to_owned(),
        Some(rate) if rate < 1_000_000 => format!("{} kbit/s", rate as f64 / 1e3),
        Some(rate) => format!("{} Mbit/s", rate as f64 / 1e6),
    };
    let from = spec.from.as_ref().map(|host| format!("from {host}: ")).unwrap_or_default();
    let mut text = format!("{from}{rate}, {} ms", spec.rtt.0 as f64 / 1e6);
    if let Ok(QueueLimit::Bytes(bytes)) = spec.queue_limit() {
        text += &format!(", queue {bytes} B");
    }
    if let Loss::Uniform { probability } = spec.loss {
        text += &format!(", loss {probability}");
    }
    for (cross, way) in [(spec.cross_a_to_b, "a to b"), (spec.cross_b_to_a, "b to a")] {
        if let Some(cross) = cross {
            text += &format!(", others {way} {}", others(cross));
        }
    }
    for SharedLink { name, spec } in &spec.links {
        text += &format!(", then {name} ({})", path(spec));
    }
    text
}

/// Returns cross traffic's rate and its bursts.
fn others(CrossTraffic { rate, pattern, .. }: CrossTraffic) -> String {
    let mbit = rate.0 as f64 / 1e6;
    let millis = |time: bufwise_units::Nanos| time.0 as f64 / 1e6;
    match pattern {
        CrossPattern::Constant => format!("{mbit} Mbit/s"),
        CrossPattern::Bursty { on, off, .. } => {
            format!("{mbit} Mbit/s, {} ms on and {} ms off", millis(on), millis(off))
        }
        CrossPattern::Aggregate { sources, on, off, .. } => {
            format!("{mbit} Mbit/s from {sources} sources, {} ms on and {} ms off", millis(on), millis(off))
        }
    }
}

/// Returns a method's kernel settings in one line.
pub(super) fn kernel(method: &Method) -> String {
    let mut parts = vec![
        method.congestion_control.to_owned(),
        format!("tcp_rmem at most {}", method.rmem),
        format!("tcp_wmem at most {}", method.wmem),
    ];
    for (side, settings) in [("sender", &method.sender), ("receiver", &method.receiver)] {
        parts.extend(settings.iter().map(|(key, value)| format!("{side}: {key}={value}")));
    }
    parts.extend(
        method.initial_window.map(|segments| format!("server: initial window of {segments} segments")),
    );
    parts.join(", ")
}

/// Returns the running kernel's release.
pub(super) fn kernel_release() -> String {
    fs::read_to_string("/proc/sys/kernel/osrelease")
        .map_or_else(|_| "unknown".to_owned(), |text| text.trim().to_owned())
}
