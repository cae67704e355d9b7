//! One budget for the queues of many connections: whether it holds at full rate, without any other option.

use bufwise_link::QueueSize;

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Target, Way, path};
use crate::spec::PathSpec;

/// Most connections of one iperf3, which opens at most 128 at once.
const OF_ONE: u16 = 100;

pub(super) fn experiments() -> Vec<Experiment> {
    // With 1,000 connections the queues of many() hold less than a segment for each: the kernel alone serves 65 to 75%
    // of them.
    let many = rows("budget-many", many(), Bound::AtLeastTimes(0.97, "kernel"));
    vec![rows("budget-send", few(), Bound::AtLeast(1.0)), many, receive()]
}

/// Splits connections as evenly as possible among as few iperf3 as can open them.
fn split(connections: u16) -> impl Iterator<Item = u16> {
    let ends = connections.div_ceil(OF_ONE);
    (0..ends).map(move |end| (connections + end) / ends)
}

/// Makes a case: rate in Mbit/s, round trip in ms, connections, memory in MiB; the queue is one bandwidth-delay
/// product.
pub(super) fn case(rate: u64, rtt: u64, connections: u16, mebibytes: u64, quick: bool) -> Case {
    let flow = |connections| Flow { connections, amount: Amount::Seconds(9, 4), ..Flow::default() };
    let queue = Some(QueueSize::Bdp(1.0));
    Case {
        name: format!("{rate} Mbit/s, {rtt} ms, {connections} connections, {mebibytes} MiB"),
        paths: vec![PathSpec { queue, ..path(rate, rtt) }],
        flows: split(connections).map(flow).collect(),
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

/// Returns the cases with 34 to 42 KB for each connection: an initial window and little more.
fn many() -> Vec<Case> {
    vec![
        case(40, 68, 200, 8, true),
        case(200, 40, 500, 16, false),
        case(200, 40, 1_000, 32, false),
        case(200, 40, 2_000, 64, false),
    ]
}

/// Makes an experiment of `cases`; `served` is the bound for the share of connections served.
fn rows(id: &'static str, cases: Vec<Case>, served: Bound) -> Experiment {
    let by = |policy| Method { name: policy, client: Some(policy), ..Method::default() };
    let policies = ["abt", "eq", "sabt", "fit"];
    let of_each = |policy| {
        [
            Target::new(policy, Quantity::HeldPeakBytes, Bound::WithinMemory),
            Target::new(policy, Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "kernel")),
            Target::new(policy, Quantity::Served, served),
        ]
    };
    Experiment {
        id,
        source: "engine",
        question: "Many connections share one budget for their queues: is it kept in every sample, at the kernel's rate?",
        scale: "9 s; the kernel has no budget.",
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
        ..Experiment::default()
    }
}

/// Makes a case of connections to readers, half of which do not read for half of the time. A single reader is one of these.
fn readers(connections: u16, mebibytes: u64, quick: bool) -> Case {
    let amount = Amount::Seconds(10, 8);
    let flow = |connections, stops| Flow { connections, amount, stops, ..Flow::default() };
    let still = connections.div_ceil(2);
    let reading = split(connections - still).map(|part| flow(part, false));
    let flows = reading.chain(split(still).map(|part| flow(part, true))).collect();
    Case {
        name: format!("{connections} connections, {mebibytes} MiB"),
        paths: vec![PathSpec { queue: Some(QueueSize::Bdp(1.0)), ..path(200, 20) }],
        flows,
        memory: Some(mebibytes << 20),
        quick,
        setup: Default::default(),
    }
}

fn receive() -> Experiment {
    let by = |policy| Method { name: policy, client: Some(policy), ..Method::default() };
    let policies = ["drs", "sobas", "kernel,fit"];
    let of_each = |policy| {
        [
            Target::new(policy, Quantity::ReceiveHeldPeakBytes, Bound::WithinMemory),
            Target::new(policy, Quantity::GoodputBps, Bound::AtLeastTimes(0.9, "kernel")),
            Target::new(policy, Quantity::Served, Bound::AtLeast(1.0)).only_in([
                "1 connections, 2 MiB",
                "50 connections, 8 MiB",
                "200 connections, 32 MiB",
            ]),
            // The queue has less than a segment for each of these.
            Target::new(policy, Quantity::Served, Bound::AtLeastTimes(0.97, "kernel"))
                .only_in(["500 connections, 32 MiB"]),
        ]
    };
    Experiment {
        id: "budget-receive",
        source: "engine",
        question: "Fast senders, readers that pause, one budget for unread data: is it kept, and does no connection starve?",
        scale: "10 s; half of the clients stand still from a quarter to three quarters of it; the kernel has no budget.",
        way: Way::Download,
        cases: vec![
            readers(1, 2, false),
            readers(50, 8, true),
            readers(200, 32, false),
            readers(500, 32, false),
        ],
        methods: std::iter::once(Method::default()).chain(policies.map(by)).collect(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::ReceiveHeldPeakBytes,
            Quantity::Served,
            Quantity::JainIndex,
            Quantity::Drops,
        ],
        targets: policies.into_iter().flat_map(of_each).collect(),
        ..Experiment::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_case_has_the_connections_of_its_name_and_each_iperf3_can_open_its_part() {
        for case in experiments().iter().flat_map(|experiment| &experiment.cases) {
            let all: u16 = case.flows.iter().map(|flow| flow.connections).sum();
            assert!(format!(" {}", case.name).contains(&format!(" {all} connections")), "{}", case.name);
            assert!(case.flows.iter().all(|flow| flow.connections <= OF_ONE), "{}", case.name);
        }
    }

    #[test]
    fn half_of_five_hundred_readers_stand_still() {
        let cases = receive().cases;
        let flows = &cases.iter().find(|case| case.name.starts_with("500 ")).unwrap().flows;
        let still: Vec<u16> = flows.iter().filter(|flow| flow.stops).map(|flow| flow.connections).collect();
        assert_eq!(still, [83, 83, 84]);
        assert_eq!(flows.len(), 6);
    }
}
