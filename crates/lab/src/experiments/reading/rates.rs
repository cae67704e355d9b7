//! The time over which rates of several connections are measured together: while all are present, and from the first flow's
//! start to the last one's end.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use super::{GREETING, Key, key, number, sends, starts};
use crate::experiments::ends::port;
use crate::experiments::model::{Amount, Case, Way};
use crate::experiments::reports::Report;
use crate::sampler::ConnectionSample;

/// Seconds after the start of the data from which rates are counted.
const SETTLED: f64 = 2.0;
/// Least time that is measured while all connections are present, seconds: samples are 50 ms apart, and round trips up to some hundred.
const PRESENT_FOR: f64 = 1.0;

/// Returns the time from `after` seconds after the last connection's start until the first one's end, in seconds of the run. `None` if
/// that is less than [`PRESENT_FOR`]: transfers are short, or follow one another.
pub(in crate::experiments) fn all_present(
    data: &[&ConnectionSample],
    after: f64,
) -> Option<RangeInclusive<f64>> {
    let from = starts(data).into_values().reduce(f64::max)? + after;
    let ends: HashMap<Key, f64> = data.iter().map(|sample| (key(sample), sample.t)).collect();
    let until = ends.into_values().reduce(f64::min)?;
    (until - from >= PRESENT_FOR).then_some(from..=until)
}

/// Returns the rate of the connections `sending` together, bit/s, from [`SETTLED`] after the last start until the first end of
/// those that carry data; `None` if that is less than [`PRESENT_FOR`].
pub(super) fn of_all(data: &[&ConnectionSample], sending: &[&ConnectionSample]) -> Option<f64> {
    let present = all_present(data, SETTLED)?;
    let mut spans: HashMap<Key, (&ConnectionSample, &ConnectionSample)> = HashMap::new();
    for sample in sending.iter().filter(|sample| present.contains(&sample.t)) {
        spans.entry(key(sample)).or_insert((sample, sample)).1 = sample;
    }
    let lasts = spans.values().map(|(first, last)| last.t - first.t).fold(0.0, f64::max);
    let moved = spans.values().map(|(first, last)| last.bytes_acked.saturating_sub(first.bytes_acked));
    (lasts >= PRESENT_FOR).then(|| moved.sum::<u64>() as f64 * 8.0 / lasts)
}

/// Returns the seconds from the first flow's start to the last one's end; `data` are the samples of the connections that carry data.
///
/// A flow starts when its first data were seen: before a full queue its connections take seconds, and it ends as much later. If
/// the start of one was not seen, all have their planned starts.
pub(super) fn span(
    way: Way,
    case: &Case,
    data: &[&ConnectionSample],
    reports: &[&Report<'_>],
) -> Option<f64> {
    let seen = reports.iter().map(|report| seen_start(way, case, data, report));
    let planned = || reports.iter().map(|report| report.flow.delay.0 as f64 / 1e9).collect();
    let begins = seen.collect::<Option<Vec<f64>>>().unwrap_or_else(planned);
    let ends = reports.iter().zip(&begins).map(|(report, begin)| Some(begin + lasts(report)?));
    let last = ends.collect::<Option<Vec<_>>>()?.into_iter().reduce(f64::max)?;
    let first = begins.into_iter().reduce(f64::min)?;
    (last > first).then_some(last - first)
}

/// Returns the seconds that a flow lasted, as its client reports.
pub(super) fn lasts(report: &Report<'_>) -> Option<f64> {
    number(report, "/sum_received/seconds").or_else(|| number(report, "/seconds"))
}

/// Returns when the receiver of an iperf3 began to count its seconds; `None`: the flow is no iperf3's, or its data were not seen.
///
/// A server counts from when it lets the client send, a round trip before the first data are acknowledged; a client, from when
/// the data come, about when the first ones are acknowledged.
fn seen_start(way: Way, case: &Case, data: &[&ConnectionSample], report: &Report<'_>) -> Option<f64> {
    if !matches!(report.flow.amount, Amount::Seconds(..) | Amount::Bytes(..)) {
        return None;
    }
    let own = port(case.flows.iter().position(|flow| std::ptr::eq(flow, report.flow))?);
    let carries =
        |sample: &&&ConnectionSample| sample.bytes_acked > GREETING && sends(way, sample, |one| one == own);
    let first = data.iter().find(carries)?;
    let before = if way == Way::Upload { f64::from(first.srtt_us) / 1e6 } else { 0.0 };
    Some(first.t - before)
}
