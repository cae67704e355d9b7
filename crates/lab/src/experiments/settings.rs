//! Describes paths and kernel settings in words.

use std::fs;

use bufwise_link::{CrossPattern, CrossTraffic, Durations, Loss, QueueLimit, Trace};
use bufwise_units::{BitRate, Nanos};

use super::model::Method;
use crate::spec::{DEFAULT_MTU, HEAVY_TAIL, PathSpec, SharedLink};

/// Describes a path in one line. Different paths have different lines, so that a later call recognises results of the same
/// path.
pub(super) fn path(spec: &PathSpec) -> String {
    // Without `..`, so that a new field cannot be forgotten. The last three fields belong to the method.
    let PathSpec {
        from,
        links,
        rate,
        rtt,
        queue,
        policer,
        mark,
        loss,
        jitter,
        reorder,
        trace,
        rate_a_to_b,
        trace_a_to_b,
        trace_begins_with_data,
        cross_a_to_b,
        cross_b_to_a,
        mtu,
        seed,
        rmem: _,
        wmem: _,
        congestion_control: _,
    } = spec;
    let limit = rate.map_or_else(|| "no limit".to_owned(), self::rate);
    let mut parts = vec![limit, millis(*rtt)];
    parts.extend(rate_a_to_b.map(|rate| format!("a to b {}", self::rate(rate))));
    let size = if *policer { "policer" } else { "queue" };
    let own = spec.queue_limit().ok();
    parts.extend(own.and_then(|own| match own {
        QueueLimit::Unlimited if queue.is_none() && !policer => None,
        limit => Some(format!("{size} {}", room(limit))),
    }));
    // A queue in time or in parts of the BDP is that of the direction's rate.
    let away = spec.a_to_b().queue_limit().ok().filter(|away| own.is_some_and(|own| own != *away));
    parts.extend(away.map(|away| format!("a to b {size} {}", room(away))));
    parts.extend(mark.map(|mark| format!("marks beyond {}", millis(mark))));
    parts.extend(lost(*loss));
    if *jitter > Nanos(0) {
        let order = if *reorder { " out of order" } else { "" };
        parts.push(format!("jitter {}{order}", millis(*jitter)));
    } else if *reorder {
        parts.push("out of order".to_owned());
    }
    let begin = if *trace_begins_with_data { ", from the first data on" } else { "" };
    parts.extend(trace.as_ref().map(|trace| over_time(trace) + begin));
    parts.extend(trace_a_to_b.as_ref().map(|trace| format!("a to b {}{begin}", over_time(trace))));
    for (cross, way) in [(cross_a_to_b, "a to b"), (cross_b_to_a, "b to a")] {
        parts.extend(cross.map(|cross| format!("others {way} {}", others(cross))));
    }
    parts.extend((*mtu != DEFAULT_MTU).then(|| format!("MTU {mtu}")));
    parts.extend((*seed != PathSpec::default().seed).then(|| format!("seed {seed}")));
    parts.extend(links.iter().map(|SharedLink { name, spec }| format!("then {name} ({})", path(spec))));
    let from = from.as_ref().map(|host| format!("from {host}: ")).unwrap_or_default();
    from + &parts.join(", ")
}

fn rate(BitRate(rate): BitRate) -> String {
    if rate < 1_000_000 {
        format!("{} kbit/s", rate as f64 / 1e3)
    } else {
        format!("{} Mbit/s", rate as f64 / 1e6)
    }
}

fn room(limit: QueueLimit) -> String {
    match limit {
        QueueLimit::Bytes(bytes) => format!("{bytes} B"),
        QueueLimit::Packets(packets) => format!("{packets} packets"),
        QueueLimit::Unlimited => "unlimited".to_owned(),
    }
}

fn millis(time: Nanos) -> String {
    format!("{} ms", time.0 as f64 / 1e6)
}

fn lost(loss: Loss) -> Option<String> {
    match loss {
        Loss::None => None,
        Loss::Uniform { probability } => Some(format!("loss {probability}")),
        Loss::GilbertElliott { good_to_bad, bad_to_good, loss_good, loss_bad } => Some(format!(
            "loss in bursts: good to bad {good_to_bad}, bad to good {bad_to_good}, lost {loss_good} and {loss_bad}"
        )),
    }
}

/// Returns the number of a trace's steps, and their hash, so that different traces have different texts.
fn over_time(trace: &Trace) -> String {
    let steps = format!("{trace:?}");
    // FNV-1a with 64 bits.
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    let hash = steps.bytes().fold(0xcbf2_9ce4_8422_2325, mix);
    format!("over time in {} steps ({hash:016x})", trace.steps().len())
}

/// Returns the rate and the bursts of cross traffic; also its packet size and the distribution of its times, if these are not
/// the usual ones.
fn others(CrossTraffic { rate, packet_bytes, pattern }: CrossTraffic) -> String {
    let mbit = format!("{} Mbit/s", rate.0 as f64 / 1e6);
    let times = |on, off, durations| {
        let unusual = match durations {
            _ if durations == HEAVY_TAIL => String::new(),
            Durations::Exponential => ", exponential".to_owned(),
            Durations::Pareto { shape } => format!(", heavy-tailed with shape {shape}"),
        };
        format!("{} on and {} off{unusual}", millis(on), millis(off))
    };
    let text = match pattern {
        CrossPattern::Constant => mbit,
        CrossPattern::Bursty { on, off, durations } => format!("{mbit}, {}", times(on, off, durations)),
        CrossPattern::Aggregate { sources, on, off, durations } => {
            format!("{mbit} from {sources} sources, {}", times(on, off, durations))
        }
    };
    if packet_bytes == u32::from(DEFAULT_MTU) {
        text
    } else {
        format!("{text} in packets of {packet_bytes} B")
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

#[cfg(test)]
mod tests {
    use bufwise_link::QueueSize;

    use super::super::model;
    use super::*;
    use crate::spec::CrossSpec;

    #[test]
    fn paths_that_differ_have_different_lines() {
        let usual = || model::path(10, 20);
        let cross = |text: &str| text.parse::<CrossSpec>().ok().map(|cross| cross.0);
        let trace = |text: &str| text.parse().ok();
        let burst =
            |loss_bad| Loss::GilbertElliott { good_to_bad: 0.01, bad_to_good: 0.5, loss_good: 0.0, loss_bad };
        let packets = |packets| Some(QueueSize::Limit(QueueLimit::Packets(packets)));
        // 250,000 bytes towards host A; half of that towards host B if the size is the BDP.
        let slow_away = |queue: &str| PathSpec {
            rtt: Nanos::from_millis(200),
            rate_a_to_b: Some(BitRate(5_000_000)),
            queue: queue.parse().ok(),
            ..usual()
        };
        let paths = [
            usual(),
            PathSpec { from: Some("C".to_owned()), ..usual() },
            PathSpec { rate: None, ..usual() },
            PathSpec { rtt: Nanos::from_millis(21), ..usual() },
            PathSpec { queue: packets(20), ..usual() },
            PathSpec { queue: packets(21), ..usual() },
            PathSpec { queue: "unlimited".parse().ok(), ..usual() },
            PathSpec { queue: packets(20), policer: true, ..usual() },
            PathSpec { mark: Some(Nanos::from_millis(5)), ..usual() },
            PathSpec { loss: burst(1.0), ..usual() },
            PathSpec { loss: burst(0.5), ..usual() },
            PathSpec { jitter: Nanos::from_millis(2), ..usual() },
            PathSpec { jitter: Nanos::from_millis(2), reorder: true, ..usual() },
            PathSpec { trace: trace("0 10mbit 10ms\n5 5mbit"), ..usual() },
            PathSpec { trace: trace("0 10mbit 10ms\n5 6mbit"), ..usual() },
            PathSpec { trace: trace("0 10mbit 10ms\n5 6mbit"), trace_begins_with_data: true, ..usual() },
            PathSpec { trace_a_to_b: trace("0 10mbit 10ms\n5 6mbit"), ..usual() },
            PathSpec { rate_a_to_b: Some(BitRate(1_000_000)), ..usual() },
            slow_away("bdp"),
            slow_away("250000"),
            PathSpec { cross_a_to_b: cross("1mbit"), ..usual() },
            PathSpec { cross_b_to_a: cross("1mbit"), ..usual() },
            PathSpec { cross_b_to_a: cross("1mbit:1ms,2ms"), ..usual() },
            PathSpec { mtu: 9_000, ..usual() },
            PathSpec { seed: 2, ..usual() },
        ];
        let lines: Vec<String> = paths.iter().map(path).collect();
        for (index, line) in lines.iter().enumerate() {
            assert!(!lines[..index].contains(line), "{line}");
        }
        // Texts that files of earlier versions have.
        assert_eq!(lines[0], "10 Mbit/s, 20 ms, queue 96896 B");
    }
}
