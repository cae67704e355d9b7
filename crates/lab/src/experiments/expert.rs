//! Whether bufwise equals an expert who raised the kernel's limits by hand.

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};

/// Buffer limits that an expert would set, bytes.
const BY_HAND: u64 = 64 << 20;
/// A step of the link's timeline, with which the ramp-up is measured, seconds.
const STEP: f64 = 0.05;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        expert(
            "expert-500",
            "500 Mbit/s x 100 ms with the distribution's limits: as fast as with limits by hand?",
            500,
            100,
        ),
        expert(
            "expert-1g",
            "1 Gbit/s x 20 ms with the distribution's limits: as fast as with limits by hand?",
            1_000,
            20,
        ),
    ]
}

fn expert(id: &'static str, question: &'static str, rate_mbit: u64, rtt_ms: u64) -> Experiment {
    let flow = Flow { amount: Amount::Seconds(15, 6), ..Flow::default() };
    Experiment {
        id,
        source: "engine",
        question,
        scale: "One iperf3 flow of 15 s; queue of one bandwidth-delay product.",
        counts_cost: false,
        survey: false,
        way: Way::Upload,
        cases: vec![Case {
            name: "one connection".to_owned(),
            paths: vec![path(rate_mbit, rtt_ms)],
            flows: vec![flow],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: vec![
            Method::default(),
            Method { name: "by hand", rmem: BY_HAND, wmem: BY_HAND, ..Method::default() },
            Method { name: "abt", client: Some("abt"), ..Method::default() },
            Method { name: "abt and drs", client: Some("abt"), server: Some("drs"), ..Method::default() },
        ],
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::RampUpS,
            Quantity::Retransmits,
            Quantity::RttMeanS,
            Quantity::HeldPeakBytes,
            Quantity::ReceiveWindowLimited,
        ],
        targets: vec![
            Target::new("abt and drs", Quantity::GoodputBps, Bound::AtLeastTimes(0.98, "by hand")),
            Target::new("abt and drs", Quantity::RampUpS, Bound::AtMostTimes(1.2, "by hand", STEP)),
        ],
    }
}
