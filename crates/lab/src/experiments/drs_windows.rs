//! DRS over time (Fisk 2000, figures 5 and 6): the window that the receiver offers beside what is under way.

use super::drs::{LARGE, small};
use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};

pub(super) fn experiments() -> Vec<Experiment> {
    vec![Experiment {
        id: "drs-fig5-6",
        source: "Fisk 2000, figures 5 and 6",
        question: "100 Mbit/s x 100 ms: is DRS's window about twice the largest flight, and never the limit?",
        scale: "15 s in samples of 50 ms, after the first second; 100 Mbit/s are Feng 2002's, Fisk 2000 has 1 Gbit/s.",
        counts_cost: false,
        survey: false,
        way: Way::Download,
        cases: vec![Case {
            name: "100 Mbit/s".to_owned(),
            paths: vec![path(100, 100)],
            flows: vec![Flow { amount: Amount::Seconds(15, 6), ..Flow::default() }],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: vec![
            small(),
            Method { name: "drs", client: Some("drs"), ..small() },
            Method { name: "kernel", rmem: LARGE, wmem: LARGE, ..Method::default() },
        ],
        quantities: vec![
            Quantity::FlightMeanBytes,
            Quantity::WindowPerFlight,
            Quantity::WindowPeakBytes,
            Quantity::ReceiveWindowLimited,
            Quantity::GoodputBps,
        ],
        targets: vec![
            Target::new("drs", Quantity::ReceiveWindowLimited, Bound::AtMost(0.02)),
            Target::new("drs", Quantity::FlightMeanBytes, Bound::AtLeastTimes(7.0, "64 KB")),
        ],
    }]
}
