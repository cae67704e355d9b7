//! The rate and the round trip of a case's idle path, at any moment.
//!
//! Terms: `t` and `begin` are seconds of the run, and so is `data`, the moment at which its first data came to the path. A
//! trace counts from the making of the path, or from then on ([`PathSpec::trace_begins_with_data`]).

use std::net::IpAddr;

use bufwise_link::{Step, Trace};
use bufwise_units::{BitRate, Nanos};

use super::cell::Cell;
use super::model::{Case, Way};
use super::reading::mean;
use crate::sampler::ConnectionSample;
use crate::spec::PathSpec;
use crate::testbed::goodput_ceiling;

/// Interval at which a changing rate is sampled, s.
const STEP: f64 = 0.05;

/// Returns the most payload per second that the case's first path carries in `seconds` from `begin` on, bit/s; for a cell of a
/// grid with an ideal slow start. `None` without a rate.
pub(super) fn goodput(case: &Case, way: Way, data: f64, begin: f64, seconds: f64) -> Option<f64> {
    if let Some(cell) = case.setup.cell {
        return Some(Cell { seconds: seconds.round() as u32, ..cell }.ceiling_bps());
    }
    let path = way.of(case.paths.first()?);
    let moments = (seconds / STEP).ceil().max(1.0) as u32;
    let at = |moment: u32| rate(&path, data, begin + f64::from(moment) * STEP);
    let rates = (0..moments).map(|moment| Some(at(moment)?.0 as f64));
    let mean = rates.sum::<Option<f64>>()? / f64::from(moments);
    Some(goodput_ceiling(BitRate(mean as u64), path.mtu))
}

/// Returns the mean of the senders' smoothed round trips minus that of their idle paths at the same moment, s; `data` returns when
/// the first data came to the path with this index.
pub(super) fn added_rtt(
    case: &Case,
    data: impl Fn(usize) -> f64,
    samples: &[&ConnectionSample],
) -> Option<f64> {
    let added = |sample: &&ConnectionSample| {
        let index = path_of(sample);
        let idle = round_trip(case.paths.get(index)?, data(index), sample.t);
        Some(f64::from(sample.srtt_us) / 1e6 - idle)
    };
    mean(samples.iter().map(added).collect::<Option<Vec<f64>>>()?.into_iter())
}

/// Returns the index of a connection's path, which the address of its host B has: 198.18.n.2 or fd00:b:0:n::2, both with n in decimal
/// digits.
pub(super) fn path_of(sample: &ConnectionSample) -> usize {
    let of_b = if sample.host == "a" { sample.peer } else { sample.local };
    match of_b.ip().to_canonical() {
        IpAddr::V4(address) => address.octets()[2].into(),
        // Its digits are written as hexadecimal ones.
        IpAddr::V6(address) => format!("{:x}", address.segments()[3]).parse().unwrap_or(usize::MAX),
    }
}

/// Returns the rate of the path's slowest link at `t`; `None`: none has a rate.
pub(super) fn rate(path: &PathSpec, data: f64, t: f64) -> Option<BitRate> {
    path.own_and_shared().filter_map(|link| rate_of_link(link, data, t)).min()
}

/// Returns the rate of `link` alone at `t`; `None`: it has none.
pub(super) fn rate_of_link(link: &PathSpec, data: f64, t: f64) -> Option<BitRate> {
    latest(link.trace.as_ref(), of_traces(link, data, t), |step| step.rate).or(link.rate)
}

/// Returns the round trip of the idle path over all its links at `t`, s.
pub(super) fn round_trip(path: &PathSpec, data: f64, t: f64) -> f64 {
    let one_way = |link: &PathSpec, trace: Option<&Trace>| {
        let delay = latest(trace, of_traces(link, data, t), |step| step.delay);
        delay.map_or(link.rtt.0 as f64 / 2.0, |delay| delay.0 as f64)
    };
    let both_ways = |link: &PathSpec| {
        let back = link.trace.as_ref();
        one_way(link, link.trace_a_to_b.as_ref().or(back)) + one_way(link, back)
    };
    path.own_and_shared().map(both_ways).sum::<f64>() / 1e9
}

/// Returns the seconds that the link's traces have run at `t`.
fn of_traces(link: &PathSpec, data: f64, t: f64) -> f64 {
    if link.trace_begins_with_data && t >= data { t - data } else { t }
}

/// Returns the value that is in force after `t` seconds of the trace, from the latest step that sets it.
fn latest<T>(trace: Option<&Trace>, t: f64, of: impl Fn(&Step) -> Option<T>) -> Option<T> {
    let trace = trace?;
    let nanos = (t * 1e9) as u64;
    let now = Nanos(trace.period().map_or(nanos, |period| nanos % period.0.max(1)));
    let reached = trace.steps().partition_point(|step| step.at <= now);
    trace.steps()[..reached].iter().rev().find_map(of)
}

#[cfg(test)]
mod tests {
    use super::super::model::path;
    use super::super::reading::tests::sample;
    use super::*;
    use crate::spec::SharedLink;

    fn case(path: PathSpec) -> Case {
        Case {
            name: String::new(),
            paths: vec![path],
            flows: Vec::new(),
            memory: None,
            quick: false,
            setup: Default::default(),
        }
    }

    #[test]
    fn a_path_that_changes_has_the_rate_and_round_trip_of_the_moment() {
        let trace = "0 100mbit 10ms\n20 20mbit\n40 100mbit 30ms\n60 repeat".parse().ok();
        let changes = PathSpec { trace, ..path(100, 20) };
        let at = [0.0, 19.9, 20.0, 40.0, 59.9, 60.1, 81.0].map(|t| round_trip(&changes, 0.0, t));
        assert_eq!(at, [0.02, 0.02, 0.02, 0.06, 0.06, 0.02, 0.02]);
        let steady = |mbit: u64| goodput(&case(path(mbit, 20)), Way::Download, 0.0, 0.0, 60.0).unwrap();
        let mean = goodput(&case(changes.clone()), Way::Download, 0.0, 0.0, 60.0).unwrap();
        assert!((mean / ((steady(100) * 2.0 + steady(20)) / 3.0) - 1.0).abs() < 0.01, "{mean}");
        let later = goodput(&case(changes), Way::Download, 0.0, 20.0, 20.0).unwrap();
        assert!((later / steady(20) - 1.0).abs() < 0.01, "{later}");
    }

    #[test]
    fn a_trace_may_count_from_the_first_data_on() {
        let trace = "0 100mbit 10ms\n5 20mbit 30ms".parse().ok();
        let changes = PathSpec { trace, trace_begins_with_data: true, ..path(100, 20) };
        // Data come after 6 s. Until then the trace runs from the making of the path on.
        let at = [4.9, 5.9, 6.1, 10.9, 11.1].map(|t| round_trip(&changes, 6.0, t));
        assert_eq!(at, [0.02, 0.06, 0.02, 0.02, 0.06]);
        let steady = |mbit: u64| goodput(&case(path(mbit, 20)), Way::Download, 6.0, 6.0, 10.0).unwrap();
        let mean = goodput(&case(changes), Way::Download, 6.0, 6.0, 10.0).unwrap();
        assert!((mean / f64::midpoint(steady(100), steady(20)) - 1.0).abs() < 0.01, "{mean}");
    }

    #[test]
    fn what_is_added_is_above_the_path_of_the_moment() {
        let trace = "0 100mbit 10ms\n20 - 30ms".parse().ok();
        let case = case(PathSpec { trace, ..path(100, 20) });
        let samples = [sample(1.0, 1, 0, 0, 30), sample(30.0, 1, 0, 0, 90)];
        let added = added_rtt(&case, |_| 0.0, &samples.each_ref()).unwrap();
        assert!((added - 0.02).abs() < 1e-9, "{added}");
        assert_eq!(added_rtt(&case, |_| 0.0, &[]), None);
    }

    #[test]
    fn what_is_added_is_above_the_connections_own_path() {
        let mut case = case(path(100, 20));
        case.paths.push(path(10, 200));
        let far = ConnectionSample { peer: "198.18.1.2:5202".parse().unwrap(), ..sample(1.0, 2, 0, 0, 201) };
        let by_ipv6 = ConnectionSample {
            host: "b",
            local: "[fd00:b:0:1::2]:5202".parse().unwrap(),
            peer: "[fd00:b:0:1::1]:40000".parse().unwrap(),
            ..far.clone()
        };
        let tenth = ConnectionSample { local: "[fd00:b:0:10::2]:5202".parse().unwrap(), ..by_ipv6.clone() };
        assert_eq!([&far, &by_ipv6, &tenth].map(path_of), [1, 1, 10]);
        let samples = [sample(1.0, 1, 0, 0, 21), far, by_ipv6];
        let added = added_rtt(&case, |_| 0.0, &samples.each_ref()).unwrap();
        assert!((added - 0.001).abs() < 1e-9, "{added}");
    }

    #[test]
    fn a_cell_has_a_slow_start() {
        let cell = super::super::fit_grid::corners().remove(0);
        let in_a_grid = Case {
            setup: super::super::model::Setup { cell: Some(cell), ..Default::default() },
            ..case(cell.path())
        };
        let own = Cell { seconds: 2, ..cell }.ceiling_bps();
        assert_eq!(goodput(&in_a_grid, Way::Download, 0.0, 0.0, 2.1), Some(own));
        assert_eq!(goodput(&case(PathSpec::default()), Way::Download, 0.0, 0.0, 2.0), None);
    }

    #[test]
    fn each_direction_has_its_own_rate_and_trace() {
        let slow = PathSpec { rate_a_to_b: Some(BitRate(10_000_000)), ..path(100, 20) };
        let of = |path: &PathSpec, way| goodput(&case(path.clone()), way, 0.0, 0.0, 10.0).unwrap();
        let (up, down) = (of(&slow, Way::Upload), of(&slow, Way::Download));
        assert!((down / up - 10.0).abs() < 1e-3, "{up} {down}");
        let changes = PathSpec { trace_a_to_b: "0 50mbit\n5 100mbit".parse().ok(), ..path(100, 20) };
        let (up, down) = (of(&changes, Way::Upload), of(&changes, Way::Download));
        assert!((up / down - 0.75).abs() < 0.01, "{up} {down}");
    }

    #[test]
    fn a_path_that_changes_passes_its_shared_links_too() {
        let line = SharedLink { name: "line".to_owned(), spec: path(10, 40) };
        let trace = || "0 100mbit 10ms\n5 5mbit 20ms".parse().ok();
        let changes = PathSpec { trace: trace(), links: vec![line.clone()], ..path(100, 20) };
        assert_eq!([0.0, 6.0].map(|t| round_trip(&changes, 0.0, t)), [0.06, 0.08]);
        let mbit = |rates: [u64; 2]| rates.map(|rate| Some(BitRate(rate * 1_000_000)));
        assert_eq!([0.0, 6.0].map(|t| rate(&changes, 0.0, t)), mbit([10, 5]));
        // The shared link changes, and only on the way to host B.
        let spec = PathSpec { trace_a_to_b: trace(), ..line.spec };
        let over = PathSpec { links: vec![SharedLink { spec, ..line }], ..path(100, 20) };
        assert_eq!([0.0, 6.0].map(|t| round_trip(&over, 0.0, t)), [0.05, 0.06]);
        let there = Way::Upload.of(&over);
        assert_eq!([0.0, 6.0].map(|t| rate(&there, 0.0, t)), mbit([100, 5]));
    }
}
