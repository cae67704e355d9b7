//! SABT's experiments (Matsuo): connections with unequal loss share little send memory.

use bufwise_link::Loss;
use bufwise_units::{BitRate, Nanos};

use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use crate::spec::PathSpec;

/// Each connection's packet loss (Matsuo, figure 4).
const LOSSES: [f64; 3] = [0.005, 0.01, 0.02];
/// Segment size and round trip, which the paper does not give. Connection 1 of figure 4 has 220 Mbit/s and needs a
/// third of 240 KB, 17 segments at that loss: segments of about 4 KB and a round trip of 3 ms.
pub(super) const MTU: u16 = 4_352;
pub(super) const RTT_MS: u64 = 3;
const SCALE: &str = "Each connection on a path of its own to the same sender; 3 ms and MTU 4352 are derived from the \
    paper's rates and buffers; Reno, as then. Memory counts the kernel's overhead, about twice the payload.";

pub(super) fn experiments() -> Vec<Experiment> {
    vec![throughput(), variation(), documents()]
}

fn paths() -> Vec<PathSpec> {
    let rate = Some(BitRate(622_000_000));
    let lossy = |probability| PathSpec {
        rate,
        mtu: MTU,
        loss: Loss::Uniform { probability },
        // A queue that adds no drops of its own.
        queue: Some(bufwise_link::QueueSize::Limit(bufwise_link::QueueLimit::Bytes(1 << 20))),
        ..path(622, RTT_MS)
    };
    LOSSES.map(lossy).to_vec()
}

pub(super) fn methods() -> Vec<Method> {
    let policy = |name| Method {
        name,
        client: Some(name),
        rmem: 32 << 20,
        wmem: 32 << 20,
        congestion_control: "reno",
        ..Method::default()
    };
    ["eq", "abt", "sabt"].map(policy).to_vec()
}

fn flows(amount: Amount, delays: [u32; 3]) -> Vec<Flow> {
    (0..)
        .zip(delays)
        .map(|(path, delay)| Flow { path, delay: Nanos::from_secs(delay.into()), amount, ..Flow::default() })
        .collect()
}

fn throughput() -> Experiment {
    let case = |kilobytes: u64, quick| Case {
        name: format!("{kilobytes} KiB"),
        paths: paths(),
        flows: flows(Amount::Seconds(8, 4), [0; 3]),
        memory: Some(kilobytes << 10),
        quick,
        setup: Setup::default(),
    };
    // 340, 400 and 480 KiB are the paper's 170, 200 and 240 KB of payload.
    let sizes =
        [(160, false), (240, false), (340, true), (400, false), (480, false), (640, true), (896, false)];
    Experiment {
        id: "sabt-fig5",
        source: "Matsuo, figure 5",
        question: "Three lossy 622 Mbit/s connections share send memory: which policy needs the least for full rate?",
        scale: SCALE,
        way: Way::Upload,
        cases: sizes.map(|(size, quick)| case(size, quick)).to_vec(),
        methods: methods(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::GoodputPath1Bps,
            Quantity::GoodputPath2Bps,
            Quantity::GoodputPath3Bps,
            Quantity::HeldPeakBytes,
        ],
        targets: vec![
            Target::new("sabt", Quantity::GoodputBps, Bound::EarlierThan(0.95, "eq")),
            Target::new("sabt", Quantity::GoodputBps, Bound::EarlierThan(0.95, "abt")),
        ],
        ..Experiment::default()
    }
}

fn variation() -> Experiment {
    Experiment {
        id: "sabt-fig6",
        source: "Matsuo, figure 6",
        question: "Three lossy connections share 512 KiB of send memory: how much do their buffers vary over time?",
        scale: "Starts at 0, 3, 6 s instead of 0, 10, 20 s. 512 KiB of memory are the paper's 256 KB of payload.",
        way: Way::Upload,
        cases: vec![Case {
            name: "512 KiB".to_owned(),
            paths: paths(),
            flows: flows(Amount::Seconds(18, 12), [0, 3, 6]),
            memory: Some(512 << 10),
            quick: true,
            setup: Setup::default(),
        }],
        methods: methods().into_iter().filter(|method| method.name != "eq").collect(),
        quantities: vec![
            Quantity::BufferVariation,
            Quantity::GoodputBps,
            Quantity::SettledBps,
            Quantity::HeldPeakBytes,
        ],
        targets: vec![Target::new(
            "sabt",
            Quantity::BufferVariation,
            Bound::AtMostTimes(1.0 / 3.0, "abt", 0.0),
        )],
        ..Experiment::default()
    }
}

/// Sizes of a web server's documents, KiB: four of five have up to 8, and the mean is below 10 (Matsuo, 2.2.2).
const WEB_SIZES: [u64; 10] = [1, 1, 2, 2, 3, 4, 6, 8, 16, 48];

fn documents() -> Experiment {
    let case = |name: String, path, flow| Case {
        name,
        paths: vec![path],
        flows: vec![flow],
        memory: None,
        quick: true,
        setup: Setup::default(),
    };
    let of_size = |kilobytes: u64| {
        let flow = Flow { amount: Amount::Documents(kilobytes << 10, 20, 3), ..Flow::default() };
        case(format!("{kilobytes} KB"), path(100, 100), flow)
    };
    let sizes = WEB_SIZES.map(|kilobytes| kilobytes << 10).to_vec();
    let mean = sizes.iter().sum::<u64>() / sizes.len() as u64;
    let web = Flow { amount: Amount::Requests(mean, 10, 4), sizes, web: true, ..Flow::default() };
    // Propagation takes 0.8 ms each way. A queue that adds no drops of its own.
    let near = PathSpec {
        rtt: Nanos::from_micros(1_600),
        queue: Some(bufwise_link::QueueSize::Limit(bufwise_link::QueueLimit::Bytes(1 << 20))),
        ..path(100, 0)
    };
    Experiment {
        id: "sabt-fig10",
        source: "Matsuo, figure 10",
        question: "How many round trips does a document take: with 8 and 30 KB over 100 ms, and from a web server?",
        scale: "100 ms instead of 0.8 ms with 8 and 30 KB. `web server` is nginx (the paper: apache) at 0.8 ms each way, with ten sizes \
            of 1 to 48 KB, a mean of 9 and eight of them up to 8; its times include the connection's round trip. A window of 2 segments \
            is that of the paper's time, 10 is today's kernel. `sabt, SIZE` applies the rule at the server to documents up to SIZE.",
        way: Way::Download,
        cases: vec![of_size(8), of_size(30), case("web server".to_owned(), near, web)],
        methods: vec![
            Method { name: "window of 2", initial_window: Some(2), ..Method::default() },
            Method { name: "window of 10", ..Method::default() },
            Method { name: "sabt, 8 KB", server: Some("sabt"), ..Method::default() },
            Method {
                name: "sabt, 30 KB",
                server: Some("sabt"),
                small_documents: Some(30 << 10),
                ..Method::default()
            },
        ],
        quantities: vec![Quantity::ResponseS, Quantity::ResponseSmallS, Quantity::ResponseLargeS],
        targets: vec![
            Target::new("window of 10", Quantity::ResponseS, Bound::AtMost(0.11)).only_in(["8 KB"]),
            // A round trip less than today's window of 10 needs, and the clock's own error.
            Target::new("sabt, 8 KB", Quantity::ResponseS, Bound::AtMost(0.11)).only_in(["8 KB"]),
            Target::new("sabt, 30 KB", Quantity::ResponseS, Bound::AtMost(0.11)).only_in(["8 KB", "30 KB"]),
        ],
        ..Experiment::default()
    }
}
