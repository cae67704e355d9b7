//! Whether a sender that the daemon's policies size fares worse, or makes others fare worse, than under the kernel.

use bufwise_link::{Loss, QueueLimit, QueueSize};
use bufwise_units::Nanos;

use super::fit::PAIR;
use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// Size of the document that a user requests beside the flow, bytes.
const DOCUMENT: u64 = 2_000;
/// Memory allowed besides 5/2 of a bandwidth-delay product, bytes.
const SLACK: f64 = (256 << 10) as f64;
/// Differences allowed between two medians of the same thing on a shared machine: 3% of a rate, a twentieth of a time
/// and 5 ms.
const AS_FAST: f64 = 0.97;
const AS_SOON: f64 = 1.05;
const CLOCK: f64 = 0.005;
/// Least share beside other flows, which varies more.
const AS_MUCH: f64 = 0.9;

const TUNED: &str = "bufwise";

pub(super) fn experiments() -> Vec<Experiment> {
    vec![alone(), beside(), together()]
}

pub(super) fn bytes(bytes: u64) -> Option<QueueSize> {
    Some(QueueSize::Limit(QueueLimit::Bytes(bytes)))
}

fn alone() -> Experiment {
    let case = |name: &str, quick, path: PathSpec| Case {
        name: name.to_owned(),
        paths: vec![path],
        flows: vec![
            Flow { amount: Amount::Seconds(12, 5), ..Flow::default() },
            Flow { amount: Amount::Requests(DOCUMENT, 12, 5), ..Flow::default() },
        ],
        memory: None,
        quick,
        setup: Setup::default(),
    };
    Experiment {
        id: "no-harm",
        source: "engine",
        question: "A download, with a small request every 50 ms: does bufwise at the sender alone make anything worse?",
        scale: "12 s; the distribution's limits at both ends.",
        way: Way::Download,
        cases: vec![
            case("deep queue", true, PathSpec { queue: bytes(6_000_000), ..path(100, 50) }),
            case("500 Mbit/s", false, path(500, 100)),
            case("200 ms", false, path(50, 200)),
            case("shallow queue", true, PathSpec { queue: bytes(62_500), ..path(100, 40) }),
            case("1 Gbit/s", false, PathSpec { queue: bytes(625_000), ..path(1_000, 20) }),
            case("10 Mbit/s", false, path(10, 30)),
            case("10 Mbit/s, deep queue", false, PathSpec { queue: bytes(1_250_000), ..path(10, 30) }),
            case("5 ms", false, path(300, 5)),
            case("loss", false, PathSpec { loss: Loss::Uniform { probability: 0.001 }, ..path(50, 120) }),
            case("jitter", false, PathSpec { jitter: Nanos::from_millis(10), ..path(100, 50) }),
        ],
        methods: vec![Method::default(), Method { name: TUNED, server: Some(PAIR), ..Method::default() }],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::ResponseMedianS,
            Quantity::ResponseP95S,
            Quantity::HeldPeakBytes,
            Quantity::RampUpS,
            Quantity::RttMeanS,
            Quantity::Drops,
        ],
        targets: vec![
            Target::new(TUNED, Quantity::GoodputBps, Bound::AtLeastTimes(AS_FAST, "kernel")),
            Target::new(TUNED, Quantity::ResponseMedianS, Bound::AtMostTimes(AS_SOON, "kernel", CLOCK)),
            Target::new(TUNED, Quantity::ResponseP95S, Bound::AtMostTimes(AS_SOON, "kernel", CLOCK)),
            Target::new(TUNED, Quantity::HeldPeakBytes, Bound::WithinProducts(2.5, SLACK, "kernel")),
        ],
        ..Experiment::default()
    }
}

/// Makes a case in which the measured flow starts after `delay` seconds and the other flow after `others`.
fn competing(name: &str, quick: bool, path: PathSpec, delay: u32, others: u32) -> Case {
    let [delay, others] = [delay, others].map(|seconds| Nanos::from_secs(seconds.into()));
    let flow = Flow { amount: Amount::Seconds(30, 10), ..Flow::default() };
    Case {
        name: name.to_owned(),
        paths: vec![path],
        flows: vec![Flow { delay, ..flow.clone() }, Flow { cross: true, delay: others, ..flow }],
        memory: None,
        quick,
        setup: Setup::default(),
    }
}

fn beside() -> Experiment {
    let modest = PathSpec { queue: bytes(350_000), ..path(80, 35) };
    let deep = PathSpec { queue: bytes(6_000_000), ..path(100, 50) };
    Experiment {
        id: "no-harm-beside",
        source: "engine",
        question: "Beside a flow of the kernel on the same queue: does a tuned sender get less than an untuned one?",
        scale: "30 s each, four seconds apart; the other flow is CUBIC and not tuned.",
        way: Way::Upload,
        cases: vec![
            competing("second", true, modest.clone(), 4, 0),
            competing("first", false, modest, 0, 4),
            competing("second, deep queue", false, deep.clone(), 4, 0),
            competing("first, deep queue", false, deep, 0, 4),
        ],
        methods: vec![Method::default(), Method { name: TUNED, client: Some(PAIR), ..Method::default() }],
        quantities: vec![Quantity::GoodputBps, Quantity::RttMeanS, Quantity::Drops],
        targets: vec![Target::new(TUNED, Quantity::GoodputBps, Bound::AtLeastTimes(AS_MUCH, "kernel"))],
        ..Experiment::default()
    }
}

fn together() -> Experiment {
    let case = |name: &str, quick, path: PathSpec| {
        let flow = Flow { amount: Amount::Seconds(20, 10), ..Flow::default() };
        Case {
            name: name.to_owned(),
            paths: vec![path],
            flows: vec![flow.clone(), Flow { delay: Nanos::from_secs(5), ..flow }],
            memory: None,
            quick,
            setup: Setup::default(),
        }
    };
    Experiment {
        id: "no-harm-together",
        source: "engine",
        question: "Two flows of the same kind of sender start five seconds apart: are they as fast and as fair as the kernel's?",
        scale: "20 s each.",
        way: Way::Upload,
        cases: vec![
            case("modest queue", false, PathSpec { queue: bytes(350_000), ..path(80, 35) }),
            case("deep queue", true, PathSpec { queue: bytes(6_000_000), ..path(100, 50) }),
        ],
        methods: vec![Method::default(), Method { name: TUNED, client: Some(PAIR), ..Method::default() }],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::JainIndex,
            Quantity::RttMeanS,
            Quantity::HeldPeakBytes,
            Quantity::Drops,
        ],
        targets: vec![
            Target::new(TUNED, Quantity::GoodputBps, Bound::AtLeastTimes(AS_FAST, "kernel")),
            Target::new(TUNED, Quantity::JainIndex, Bound::AtLeastTimes(AS_MUCH, "kernel")),
        ],
        ..Experiment::default()
    }
}
