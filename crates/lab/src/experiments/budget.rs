//! One budget for the send queues of many connections: does it hold, at full rate, without any other option?

use bufwise_link::QueueSize;

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Target, Way, path};
use crate::spec::PathSpec;

/// Connections of one iperf3, which does not open more than 128 at once.
const OF_ONE: u16 = 100;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![rows("budget-send", few()), rows("budget-many", many())]
}

/// A row: rate in Mbit/s and round trip in ms, connections, memory in MiB; a queue of one bandwidth-delay product.
fn case(rate: u64, rtt: u64, connections: u16, mebibytes: u64, quick: bool) -> Case {
    let ends = connections.div_ceil(OF_ONE);
    let flow = Flow { connections: connections / ends, amount: Amount::Seconds(12, 7), ..Flow::default() };
    let queue = Some(QueueSize::Bdp(1.0));
    Case {
        name: format!("{rate} Mbit/s, {rtt} ms, {connections} connections, {mebibytes} MiB"),
        paths: vec![PathSpec { queue, ..path(rate, rtt) }],
        flows: vec![flow; usize::from(ends)],
        memory: Some(mebibytes << 20),
        quick,
        setup: Default::default(),
    }
}

fn few() -> Vec<Case> {
    vec![
        case(25, 120, 24, 1, true),
        case(90, 30, 40, 2, false),
        case(40, 68, 50, 2, false),
        case(40, 68, 100, 4, false),
    ]
}

/// Each has 34 to 42 KB: an initial window and little more.
fn many() -> Vec<Case> {
    vec![
        case(40, 68, 200, 8, true),
        case(200, 40, 500, 16, false),
        case(200, 40, 1_000, 32, false),
        case(200, 40, 2_000, 64, false),
    ]
}

fn rows(id: &'static str, cases: Vec<Case>) -> Experiment {
    let by = |policy| Method { name: policy, client: Some(policy), ..Method::default() };
    let policies = ["abt", "eq", "sabt"];
    let of_each = |policy| {
        [
            Target::new(policy, Quantity::HeldPeakBytes, Bound::WithinMemory),
            Target::new(policy, Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "kernel")),
            Target::new(policy, Quantity::Served, Bound::AtLeast(1.0)),
        ]
    };
    Experiment {
        id,
        source: "engine",
        question: "Many connections and one budget for what they hold: is it kept in every sample, at the kernel's rate?",
        scale: "12 s; the kernel has no budget.",
        counts_cost: false,
        survey: false,
        way: Way::Upload,
        cases,
        methods: std::iter::once(Method::default()).chain(policies.map(by)).collect(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::HeldPeakBytes,
            Quantity::JainIndex,
            Quantity::Served,
            Quantity::Drops,
        ],
        targets: policies.into_iter().flat_map(of_each).collect(),
    }
}
