//! Figures of the daemon for monitoring: the reply to [`crate::control::Request::Metrics`].
//!
//! The number of figures is bounded, whatever the number of connections: labels are directions, policies, causes and
//! kinds, and a bounded number of groups. Each figure of a connection comes from [`crate::view`], so that `ls` shows
//! the same.

mod endpoint;
pub(crate) mod groups;

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::budget::{PressureCause, Side};
use crate::judge::{Cause, Direction};
use crate::view::{ConnectionView, PolicyNames};
pub use endpoint::{Endpoint, Interval};
pub use groups::{Group, Groups};

/// Histogram bounds of the smoothed round-trip time over the smallest one. Above 17/8 `fit` takes the excess for a
/// queue.
const ROUND_TRIP: [f64; 8] = [1.1, 1.25, 1.5, 2.125, 3.0, 5.0, 10.0, 30.0];
/// Histogram bounds of the window over the BDP.
const WINDOW: [f64; 9] = [0.25, 0.5, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0];
/// Histogram bounds of a connection's waste, bytes: nothing, then powers of four from 16 KiB.
const WASTE: [f64; 8] =
    [0.0, 16_384.0, 65_536.0, 262_144.0, 1_048_576.0, 4_194_304.0, 16_777_216.0, 67_108_864.0];
/// Each cause with its name in JSON.
const CAUSES: [(Cause, &str); 6] = [
    (Cause::Application, "application"),
    (Cause::SendBuffer, "send-buffer"),
    (Cause::ReceiveWindow, "receive-window"),
    (Cause::CongestionWindow, "congestion-window"),
    (Cause::Path, "path"),
    (Cause::Reader, "reader"),
];
/// Label of the cause at a connection's first sample.
const UNKNOWN: &str = "unknown";
/// Label of the policy if the daemon does not size the connection.
const NONE: &str = "none";

/// Address at which the daemon serves its metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Address {
    /// A Unix socket.
    Unix(PathBuf),
    /// TCP.
    Tcp(SocketAddr),
}

impl FromStr for Address {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_prefix("unix:") {
            Some(path) if path.starts_with('/') => Ok(Self::Unix(path.into())),
            _ => text.parse().map(Self::Tcp).map_err(|_| {
                format!("`{text}` is no address for metrics: unix:/PATH, or as 127.0.0.1:9847, [::1]:9847")
            }),
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unix(path) => write!(f, "unix:{}", path.display()),
            Self::Tcp(address) => address.fmt(f),
        }
    }
}

/// The daemon's figures at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// The daemon's version.
    pub version: String,
    /// Seconds since the daemon started.
    pub uptime_s: f64,
    /// The daemon decides and logs, but changes nothing.
    pub dry_run: bool,
    /// `restore` has stopped the tuning.
    pub paused: bool,
    /// Seconds since the previous sample, to which causes and rates belong; `null`: there was none, so they are
    /// unknown.
    pub interval_s: Option<f64>,
    /// Number of open connections by direction, policy and cause, including combinations without connections.
    pub connections: Vec<Connections>,
    /// Connections, among those that the daemon sizes, with evidence of a queue on the path, judged as by `explain`.
    pub queued_connections: u64,
    /// Memory of the send buffers of the connections that the daemon sizes.
    pub send: Memory,
    /// Memory of the receive buffers of these connections.
    pub receive: Memory,
    /// Memory that the limits of these connections allow beyond need, bytes.
    pub waste_bytes: u64,
    /// Whether memory is short.
    pub pressure: bool,
    /// Why memory is short.
    #[serde(default)]
    pub pressure_causes: Vec<PressureCause>,
    /// Connections beyond `max-connections`, which the kernel sizes.
    #[serde(default)]
    pub untuned_connections: u64,
    /// Groups of the configuration (`[[group]]`), each with memory of its own, included in the sums above.
    #[serde(default)]
    pub parts: Vec<PartFigures>,
    /// Sums by cgroup, network namespace and peers' prefix; empty until rates are known.
    #[serde(default)]
    pub groups: Groups,
    /// Events since the daemon's start.
    pub counts: Counts,
    /// Observations of single connections since the daemon's start.
    pub distributions: Distributions,
    /// Time spent in the programs; `null` unless the kernel counts it (`kernel.bpf_stats_enabled`).
    pub engine: Option<EngineCost>,
    /// Memory of the daemon's history ([`crate::history`]), bytes.
    #[serde(default)]
    pub history_bytes: u64,
    /// Seconds spent gathering this snapshot, on a thread of its own.
    pub gathered_s: f64,
}

/// Number of the connections that have these labels.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connections {
    /// Direction of the data.
    pub direction: Direction,
    /// Policy of that direction; `none`: the daemon does not size them.
    pub policy: String,
    /// Name of the cause as in JSON; `unknown` at the first sample.
    pub limited_by: String,
    /// Number of connections.
    pub count: u64,
}

/// Memory of one direction, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    /// Content of the queues.
    pub held_bytes: u64,
    /// Sum of the buffers' limits.
    pub allowed_bytes: u64,
    /// Memory promised to newcomers and to idle connections, and not held ([`crate::budget`]).
    #[serde(default)]
    pub reserved_bytes: u64,
    /// Bound of the memory that the queues may hold together.
    pub budget_bytes: u64,
}

impl From<Side> for Memory {
    fn from(side: Side) -> Self {
        Self {
            held_bytes: side.held_bytes,
            allowed_bytes: side.allowed_bytes,
            reserved_bytes: side.reserved_bytes(),
            budget_bytes: side.budget_bytes,
        }
    }
}

/// The connections that the daemon sizes in one group.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartFigures {
    /// The group's name.
    pub group: String,
    /// Number of connections.
    pub connections: u64,
    /// Memory of the send buffers.
    pub send: Memory,
    /// Memory of the receive buffers.
    pub receive: Memory,
}

/// Events since the daemon's start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Number of times that a send buffer was set.
    pub send_buffers: u64,
    /// Number of times that a receive window was set.
    pub receive_windows: u64,
    /// Existing connections that were adopted.
    pub adopted: u64,
    /// Idle connections whose buffers were given back.
    pub given_back: u64,
    /// Number of sizes that the kernel refused to set.
    pub refused_sizes: u64,
    /// Number of sweeps that the kernel refused.
    pub refused_sweeps: u64,
    /// Number of times that a maximum could not be raised, read or put back.
    pub refused_bounds: u64,
    /// Number of reloads that failed.
    pub failed_reloads: u64,
}

/// Time spent in the loaded programs.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct EngineCost {
    /// Time in seconds.
    pub seconds: f64,
    /// Number of calls.
    pub runs: u64,
}

/// Distributions over the connections that the daemon sizes; each is observed once per snapshot.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Distributions {
    /// Smoothed round-trip time over the smallest one, of connections that moved data and were not limited by a
    /// program: with a slow program the round trip includes delayed acknowledgements.
    pub round_trip: Histogram,
    /// Congestion window of a sender, offered window of a receiver, over the BDP, of connections that moved data.
    pub window: Histogram,
    /// Memory that the limits allow beyond need, bytes.
    pub waste: Histogram,
}

impl Default for Distributions {
    fn default() -> Self {
        Self {
            round_trip: Histogram::new(&ROUND_TRIP),
            window: Histogram::new(&WINDOW),
            waste: Histogram::new(&WASTE),
        }
    }
}

impl Distributions {
    /// Observes one connection, which an earlier sample contains.
    pub(crate) fn observe(&mut self, one: &ConnectionView) {
        self.waste.observe(one.waste_bytes as f64);
        if one.goodput_bps.unwrap_or_default() == 0 {
            return;
        }
        let is_a_programs = matches!(one.limited_by, Some(Cause::Application | Cause::Reader));
        if let (Some(now), Some(base), false) =
            (one.srtt_s, one.min_rtt_s.filter(|base| *base > 0.0), is_a_programs)
        {
            self.round_trip.observe(now / base);
        }
        let window = match one.direction {
            Direction::Send => one.cwnd_bytes,
            Direction::Receive => one.receive_window_bytes,
        };
        if let Some(bdp) = one.bdp_bytes.filter(|bdp| *bdp > 0) {
            self.window.observe(window as f64 / bdp as f64);
        }
    }
}

/// Observations, counted by upper bounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Histogram {
    /// Upper bounds, ascending.
    bounds: Vec<f64>,
    /// Number of observations in each bin: above the previous bound, up to this one; the last bin is above all
    /// bounds.
    counts: Vec<u64>,
    /// Sum of the observed values.
    sum: f64,
}

impl Histogram {
    /// Makes a histogram without observations.
    #[must_use]
    pub fn new(bounds: &[f64]) -> Self {
        Self { bounds: bounds.to_vec(), counts: vec![0; bounds.len() + 1], sum: 0.0 }
    }

    /// Adds an observation.
    pub fn observe(&mut self, value: f64) {
        let place = self.bounds.partition_point(|bound| *bound < value);
        self.counts[place] += 1;
        self.sum += value;
    }

    /// Returns each upper bound with the number of observations up to it; the last bound is infinite.
    pub fn cumulative(&self) -> impl Iterator<Item = (f64, u64)> {
        let bounds = self.bounds.iter().copied().chain([f64::INFINITY]);
        bounds.zip(&self.counts).scan(0_u64, |sum, (bound, count)| {
            // A daemon may have sent any figures.
            *sum = sum.saturating_add(*count);
            Some((bound, *sum))
        })
    }

    /// Returns the sum of the observed values.
    #[must_use]
    pub fn sum(&self) -> f64 {
        self.sum
    }
}

/// Counts connections by their labels.
pub(crate) struct Tally(Vec<Connections>);

impl Tally {
    /// Starts all counts, for these policies, at zero.
    pub(crate) fn new(policies: &[&PolicyNames]) -> Self {
        let mut counts = Vec::new();
        for direction in [Direction::Send, Direction::Receive] {
            let mut names: Vec<&str> = Vec::new();
            for name in policies.iter().map(|policy| of(policy, direction)).chain([NONE]) {
                if !names.contains(&name) {
                    names.push(name);
                }
            }
            for policy in names {
                for limited_by in CAUSES.map(|(_, name)| name).into_iter().chain([UNKNOWN]) {
                    let (policy, limited_by) = (policy.to_owned(), limited_by.to_owned());
                    counts.push(Connections { direction, policy, limited_by, count: 0 });
                }
            }
        }
        Self(counts)
    }

    /// Counts a connection, sized by `policy` or by the kernel.
    pub(crate) fn count(&mut self, one: &ConnectionView, policy: Option<&PolicyNames>) {
        let policy = policy.map_or(NONE, |policy| of(policy, one.direction));
        let known = CAUSES.iter().find(|(cause, _)| Some(*cause) == one.limited_by);
        let limited_by = known.map_or(UNKNOWN, |(_, name)| name);
        let is_its = |row: &&mut Connections| {
            row.direction == one.direction && row.policy == policy && row.limited_by == limited_by
        };
        if let Some(row) = self.0.iter_mut().find(is_its) {
            row.count += 1;
        }
    }

    pub(crate) fn into_counts(self) -> Vec<Connections> {
        self.0
    }
}

/// Returns the policy of a direction.
fn of(policy: &PolicyNames, direction: Direction) -> &str {
    match direction {
        Direction::Send => &policy.send,
        Direction::Receive => &policy.receive,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::view::tests::connection_view;

    #[test]
    fn an_address_is_a_socket_or_a_port_of_an_address() {
        for text in ["unix:/run/bufwise/metrics", "127.0.0.1:9847", "[::1]:9847"] {
            assert_eq!(text.parse::<Address>().unwrap().to_string(), text);
        }
        for text in ["", "unix:", "unix:metrics", "9847", "localhost:9847", "/run/metrics", "127.0.0.1"] {
            let error = text.parse::<Address>().unwrap_err();
            assert!(error.contains("unix:/PATH"), "{error}");
        }
    }

    #[test]
    fn an_observation_on_a_bound_is_below_it_and_counts_add_up() {
        let mut histogram = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.0, 1.5, 2.0, 7.0].into_iter().for_each(|value| histogram.observe(value));
        let counts: Vec<_> = histogram.cumulative().collect();
        assert_eq!(counts, [(1.0, 2), (2.0, 4), (f64::INFINITY, 5)]);
        assert!((histogram.sum() - 12.0).abs() < 1e-9);
    }

    #[test]
    fn bounds_ascend() {
        for bounds in [&ROUND_TRIP[..], &WINDOW, &WASTE] {
            assert!(bounds.is_sorted_by(|a, b| a < b), "{bounds:?}");
        }
    }

    #[test]
    fn causes_have_their_names_in_json() {
        for (cause, name) in CAUSES {
            assert_eq!(serde_json::to_value(cause).unwrap(), name);
        }
    }

    #[test]
    fn each_connection_is_counted_once_under_its_direction_policy_and_cause() {
        let policy = PolicyNames { send: "fit".to_owned(), receive: "fit".to_owned() };
        let mut tally = Tally::new(&[&policy, &policy]);
        let one = ConnectionView { limited_by: Some(Cause::Reader), ..connection_view() };
        assert_eq!(one.direction, Direction::Send);
        tally.count(&one, Some(&policy));
        let received = ConnectionView { direction: Direction::Receive, limited_by: None, ..one.clone() };
        tally.count(&received, Some(&policy));
        tally.count(&one, None);
        tally.count(&one, None);
        let counts = tally.into_counts();
        assert_eq!(counts.len(), 2 * 2 * 7, "also what there is none of");
        let counted: Vec<_> = counts.iter().filter(|row| row.count > 0).collect();
        let labels =
            |row: &Connections| (row.direction, row.policy.clone(), row.limited_by.clone(), row.count);
        let expected = |direction, policy: &str, cause: &str, count| {
            (direction, policy.to_owned(), cause.to_owned(), count)
        };
        assert_eq!(
            counted.into_iter().map(labels).collect::<Vec<_>>(),
            [
                expected(Direction::Send, "fit", "reader", 1),
                expected(Direction::Send, "none", "reader", 2),
                expected(Direction::Receive, "fit", "unknown", 1),
            ]
        );
    }

    #[test]
    fn a_connection_is_observed_as_far_as_its_figures_mean_something() {
        let mut distributions = Distributions::default();
        let one = connection_view();
        distributions.observe(&ConnectionView { goodput_bps: Some(0), ..one.clone() });
        let all = |histogram: &Histogram| histogram.cumulative().last().unwrap().1;
        assert_eq!((all(&distributions.waste), all(&distributions.round_trip)), (1, 0));
        distributions.observe(&ConnectionView { limited_by: Some(Cause::Application), ..one.clone() });
        assert_eq!((all(&distributions.round_trip), all(&distributions.window)), (0, 1));
        distributions.observe(&ConnectionView { limited_by: Some(Cause::CongestionWindow), ..one });
        assert_eq!((all(&distributions.round_trip), all(&distributions.window)), (1, 2));
        // 50 ms over a path of 40 ms.
        assert!((distributions.round_trip.sum() - 1.25).abs() < 1e-9);
    }
}
