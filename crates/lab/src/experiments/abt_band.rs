//! ABT over time (Semke 1998, figure 1): the send buffer of one connection beside its congestion window.

use bufwise_link::{QueueLimit, QueueSize};

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// The link's queue, bytes (Semke 1998, figure 2).
const QUEUE_BYTES: u64 = 340_000;

pub(super) fn experiments() -> Vec<Experiment> {
    let queue = Some(QueueSize::Limit(QueueLimit::Bytes(QUEUE_BYTES)));
    vec![Experiment {
        id: "abt-fig1",
        source: "Semke 1998, figure 1",
        question: "40 Mbit/s x 68 ms, one connection over 40 s: does ABT's buffer stay within 2 to 4 windows?",
        scale: "As in the paper; the buffer is the payload for which it has room, 4/5 of its memory, in samples of 50 ms.",
        counts_cost: false,
        survey: false,
        way: Way::Upload,
        cases: vec![Case {
            name: "one connection".to_owned(),
            paths: vec![PathSpec { queue, ..path(40, 68) }],
            flows: vec![Flow { amount: Amount::Seconds(40, 12), ..Flow::default() }],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: vec![Method::default(), Method { name: "abt", client: Some("abt"), ..Method::default() }],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::BufferWindowsP5,
            Quantity::BufferWindowsP95,
            Quantity::HeldPeakBytes,
            Quantity::Drops,
        ],
        targets: vec![
            // A window of payload, and room for what waits while losses are repaired.
            Target::new("abt", Quantity::BufferWindowsP5, Bound::AtLeast(1.0)),
            // The band's upper edge in payload (docs/algorithms/abt.md).
            Target::new("abt", Quantity::BufferWindowsP95, Bound::AtMost(6.4)),
            Target::new("abt", Quantity::GoodputBps, Bound::AtLeastTimes(0.97, "kernel")),
        ],
    }]
}
