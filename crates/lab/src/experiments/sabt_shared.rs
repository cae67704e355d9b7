//! SABT where connections share bottlenecks (Matsuo, figures 2, 3 and 8): how memory and path are divided.

use bufwise_link::{QueueLimit, QueueSize};
use bufwise_units::{BitRate, Nanos};

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use super::sabt::{self, MTU, RTT_MS};
use crate::spec::PathSpec;

pub(super) fn experiments() -> Vec<Experiment> {
    let enough =
        "Seven connections over three 1.5 Mbit/s paths share memory for all: are they steady and fair?";
    let little =
        "Seven connections share memory for 57% of them: does the one alone on its path keep its rate?";
    vec![
        bottlenecks("sabt-fig2", "Matsuo, figure 2", enough, 350),
        bottlenecks("sabt-fig3", "Matsuo, figure 3", little, 200),
        beside_ethernet(),
    ]
}

/// Path of each of the seven connections.
const PATHS: [u8; 7] = [0, 1, 1, 2, 2, 2, 2];
/// Seconds between two connections' starts, and until all end (the last number is for `--quick`).
const APART: u32 = 2;
const LASTS: (u32, u32) = (45, 17);
/// Memory for the payload of one of Matsuo's packets, bytes: 200 packets are 200 KB in the paper, and the kernel takes
/// two bytes for one.
const PACKET_MEMORY: u64 = 2_000;

fn bottlenecks(id: &'static str, source: &'static str, question: &'static str, packets: u64) -> Experiment {
    // 100 ms between the routers and 1 ms to either side, each way; the queue is one bandwidth-delay product.
    let line = PathSpec {
        rate: Some(BitRate(1_500_000)),
        rtt: Nanos::from_millis(204),
        queue: Some(QueueSize::Bdp(1.0)),
        ..PathSpec::default()
    };
    let flow = |(delay, path): (u32, u8)| {
        let amount = Amount::Seconds(LASTS.0 - delay, LASTS.1 - delay);
        Flow { path, delay: Nanos::from_secs(delay.into()), amount, ..Flow::default() }
    };
    let starts = (0..).step_by(APART as usize);
    Experiment {
        id,
        source,
        question,
        scale: "Starts 2 s apart instead of 500, 45 s instead of 4,000; packets of 1,000 bytes as 200 of them are his 200 KBytes; \
            memory is twice the payload; each path has a receiver of its own and a queue of one BDP, which the paper does not give.",
        way: Way::Upload,
        cases: vec![Case {
            name: format!("{packets} packets"),
            paths: vec![line; 3],
            flows: starts.zip(PATHS).map(flow).collect(),
            memory: Some(packets * PACKET_MEMORY),
            quick: true,
            setup: Setup::default(),
        }],
        methods: sabt::methods(),
        quantities: vec![
            Quantity::GoodputPath1Bps,
            Quantity::GoodputPath2Bps,
            Quantity::GoodputPath3Bps,
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::FairShareIndex,
            Quantity::BufferVariation,
            Quantity::HeldPeakBytes,
        ],
        targets: vec![
            Target::new("sabt", Quantity::BufferVariation, Bound::AtMostTimes(1.0, "abt", 0.0)),
            Target::new("sabt", Quantity::FairShareIndex, Bound::AtLeast(0.9)),
            Target::new("sabt", Quantity::GoodputPath1Bps, Bound::AtLeastTimes(1.0, "eq")),
            Target::new("sabt", Quantity::HeldPeakBytes, Bound::WithinMemory),
        ],
        ..Experiment::default()
    }
}

/// Memory of figure 8, bytes: 256 KB of payload.
const MEMORY: u64 = 512 << 10;

fn beside_ethernet() -> Experiment {
    let fast =
        PathSpec { mtu: MTU, queue: Some(QueueSize::Limit(QueueLimit::Bytes(1 << 20))), ..path(622, RTT_MS) };
    let case = |connections: u16, quick| {
        let flow = Flow { amount: Amount::Seconds(8, 4), ..Flow::default() };
        Case {
            name: format!("{connections} beside"),
            paths: vec![fast.clone(), path(10, 1)],
            flows: vec![flow.clone(), Flow { path: 1, connections, ..flow }],
            memory: Some(MEMORY),
            quick,
            setup: Setup::default(),
        }
    };
    let fixed = |name, size| Method {
        name,
        client: None,
        sender: vec![("net.ipv4.tcp_wmem", size)],
        ..sabt::methods().remove(0)
    };
    let last = ["16 beside"];
    Experiment {
        id: "sabt-fig8",
        source: "Matsuo, figure 8",
        question: "A 622 Mbit/s connection shares memory with 4 to 16 at 10 Mbit/s: which rate does the fast one keep?",
        scale: "8 s; 3 ms and MTU 4352 as in sabt-fig5, 1 ms and MTU 1500 on the Ethernet; Reno, as then. 512 KiB of memory are \
            the paper's 256 KB of payload, which the static buffers do not keep to.",
        way: Way::Upload,
        cases: vec![case(4, true), case(8, false), case(12, false), case(16, true)],
        methods: [fixed("16 KB", "4096 32768 32768"), fixed("64 KB", "4096 131072 131072")]
            .into_iter()
            .chain(sabt::methods())
            .collect(),
        quantities: vec![
            Quantity::GoodputPath1Bps,
            Quantity::GoodputPath2Bps,
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
            Quantity::Served,
        ],
        targets: vec![
            Target::new("sabt", Quantity::GoodputPath1Bps, Bound::AtLeastTimes(1.0, "eq")).only_in(last),
            Target::new("sabt", Quantity::GoodputPath1Bps, Bound::AtLeastTimes(1.0, "abt")).only_in(last),
            Target::new("sabt", Quantity::GoodputPath2Bps, Bound::AtLeastTimes(0.97, "64 KB")),
            Target::new("sabt", Quantity::HeldPeakBytes, Bound::WithinMemory),
        ],
        ..Experiment::default()
    }
}
