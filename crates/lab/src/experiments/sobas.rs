//! SOBAS's experiments (000) with a program that knows nothing of it.

use bufwise_link::{Nanos, QueueSize};

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Target, Way, path};
use crate::spec::PathSpec;

/// More than path and queue hold, bytes.
const LARGE: u64 = 32 << 20;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![unaware(), cross()]
}

fn deep_queue() -> PathSpec {
    PathSpec { queue: Some(QueueSize::Time(Nanos::from_millis(480))), ..path(100, 50) }
}

fn methods() -> Vec<Method> {
    let kernel = Method { rmem: LARGE, wmem: LARGE, ..Method::default() };
    vec![kernel.clone(), Method { name: "sobas", client: Some("sobas"), ..kernel }]
}

const QUANTITIES: [Quantity; 4] =
    [Quantity::GoodputBps, Quantity::RttMeanS, Quantity::Drops, Quantity::Retransmits];

fn unaware() -> Experiment {
    let flow = Flow { amount: Amount::Seconds(15, 8), ..Flow::default() };
    Experiment {
        id: "sobas-unaware",
        source: "engine",
        question: "100 Mbit/s x 50 ms, queue of 480 ms: full rate without the queue, for a program that knows nothing?",
        scale: "One iperf3 download of 15 s.",
        counts_cost: false,
        way: Way::Download,
        cases: vec![Case {
            name: "alone".to_owned(),
            paths: vec![deep_queue()],
            flows: vec![flow],
            memory: None,
            quick: true,
        }],
        methods: methods(),
        quantities: QUANTITIES.to_vec(),
        targets: vec![
            Target::new("sobas", Quantity::GoodputBps, Bound::AtLeast(92e6)),
            Target::new("sobas", Quantity::RttMeanS, Bound::AtMost(0.065)),
        ],
    }
}

/// Under bufwise in any case, which then leaves it alone.
fn as_late(method: Method) -> Method {
    Method { client: method.client.or(Some("kernel")), ..method }
}

fn cross() -> Experiment {
    let own = Flow { amount: Amount::Seconds(25, 10), delay: 4, ..Flow::default() };
    let others = Flow { amount: Amount::Seconds(32, 17), connections: 2, cross: true, ..Flow::default() };
    Experiment {
        id: "sobas-cross",
        source: "engine",
        question: "The same path with two TCP flows of others on it: as much as the kernel alone gets there?",
        scale: "One iperf3 download of 25 s, 4 s after two others. Behind a full queue CUBIC takes minutes to share, and a \
            tenth of a second more or less at the start decides what it gets: so nobody starts while others start.",
        counts_cost: false,
        way: Way::Download,
        cases: vec![Case {
            name: "two others".to_owned(),
            paths: vec![deep_queue()],
            flows: vec![own, others],
            memory: None,
            quick: true,
        }],
        methods: methods().into_iter().map(as_late).collect(),
        quantities: QUANTITIES.to_vec(),
        targets: vec![Target::new("sobas", Quantity::GoodputBps, Bound::AtLeastTimes(0.95, "kernel"))],
    }
}
