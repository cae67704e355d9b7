//! Effects of a fixed socket buffer (Prasad 2004, figures 1 to 6), on a path with room and on a congested one.

use bufwise_link::{CrossPattern, CrossTraffic, QueueSize};
use bufwise_units::{BitRate, Nanos};

use super::model::{Bound, Case, Experiment, Flow, Ftp, Method, Quantity, Target, path};
use super::sobas::{LIMIT_17_MBIT, LIMITED_PAYLOAD, beside_a_limited_flow, file, movers, one, with_file};
use crate::spec::{HEAVY_TAIL, PathSpec};

pub(super) fn experiments() -> Vec<Experiment> {
    vec![sizes(), congested()]
}

/// Returns `bufwise get` with a receive buffer for this much payload, over Reno, as in the paper.
fn fixed(name: &'static str, policy: &'static str) -> Method {
    let [reno, ..] = movers();
    Method { name, ftp: Ftp { client: Some(policy), ..reno.ftp }, ..reno }
}

fn sizes() -> Experiment {
    // 550 KB and what they add in slow start fit beside the other flow, 900 KB do not.
    let spec = PathSpec { queue: Some(QueueSize::Bdp(0.8)), ..path(97, 40) };
    let case = one("80 free", spec, beside_a_limited_flow(file(80, 10), LIMIT_17_MBIT));
    let slow = Method { amount: Some(file(25, 10).amount), ..fixed("128 KB", "fixed:128KB") };
    let others = 17e6 * LIMITED_PAYLOAD;
    let quantities = vec![
        Quantity::GoodputBps,
        Quantity::SettledBps,
        Quantity::RttMeanS,
        Quantity::Drops,
        Quantity::OthersBps,
    ];
    Experiment {
        methods: vec![
            slow,
            fixed("400 KB", "fixed:400KB"),
            fixed("550 KB", "fixed:550KB"),
            fixed("900 KB", "fixed:900KB"),
        ],
        quantities,
        ..with_file(
            "sobas-fig1-4",
            "Prasad 2004, figures 1 to 4",
            "97 Mbit/s x 40 ms, of which 80 are free: what do sockets of 128, 400, 550 and 900 KB get?",
            "100 MB instead of 200, 31 MB with 128 KB; the others are a TCP flow limited by its buffer, as the paper supposes; \
             queue of 4/5 of a BDP; Reno, as then.",
            case,
            vec![
                // The other flow, where it meets no queue.
                Target::new("128 KB", Quantity::OthersBps, Bound::AtLeast(0.95 * others)),
                Target::new("128 KB", Quantity::OthersBps, Bound::AtMost(1.05 * others)),
                Target::new("400 KB", Quantity::Drops, Bound::AtMost(0.0)),
                Target::new("550 KB", Quantity::GoodputBps, Bound::AtLeastTimes(1.05, "400 KB")),
            ],
        )
    }
}

/// Returns a path with 6.7 Mbit/s of others on average; with 3 of ours that is the link's rate, so bursts make drops of
/// both.
pub(super) fn congested_path() -> PathSpec {
    let times = Nanos::from_millis(500);
    let pattern = CrossPattern::Aggregate { sources: 16, on: times, off: times, durations: HEAVY_TAIL };
    let cross = CrossTraffic { rate: BitRate(13_400_000), packet_bytes: 1_500, pattern };
    PathSpec {
        rate: Some(BitRate(9_700_000)),
        rtt: Nanos::from_millis(78),
        queue: "bdp/2".parse().ok(),
        cross_b_to_a: Some(cross),
        ..PathSpec::default()
    }
}

/// Returns the file that crosses the congested path.
pub(super) fn congested_file() -> Flow {
    file(3, 16)
}

fn congested() -> Experiment {
    let case: Case = one("3 free", congested_path(), vec![congested_file()]);
    let kernels = movers().into_iter().filter(|method| method.ftp.client == Some("kernel"));
    Experiment {
        methods: std::iter::once(fixed("30 KB", "fixed:30KB")).chain(kernels).collect(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::RttMeanS,
            Quantity::Retransmits,
        ],
        ..with_file(
            "sobas-fig5-6",
            "Prasad 2004, figures 5 and 6",
            "9.7 Mbit/s x 78 ms, congested, 3 free: does a socket for the free rate's BDP get less than the largest one?",
            "6 MB instead of 30; the others are sixteen unresponsive, heavy-tailed sources; they cause the queue and the losses.",
            case,
            vec![Target::new("maximum, cubic", Quantity::GoodputBps, Bound::AtLeastTimes(1.0, "30 KB"))],
        )
    }
}
