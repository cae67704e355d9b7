//! SOBAS's experiments (Prasad 2004): with an unmodified program, and with bufwise's own file mover.

use bufwise_link::{CrossPattern, CrossTraffic, QueueSize};
use bufwise_units::{BitRate, Nanos};

use super::model::{Amount, Bound, Case, Experiment, Flow, Ftp, Method, Quantity, Setup, Target, Way, path};
use crate::spec::{HEAVY_TAIL, PathSpec};

/// Buffer maximum, larger than what path and queue hold, bytes.
const LARGE: u64 = 32 << 20;

pub(super) fn experiments() -> Vec<Experiment> {
    let movers = gigabit().into_iter().chain(oc12()).chain(fast_ethernet());
    [unaware(), cross()].into_iter().chain(movers).collect()
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
        question: "100 Mbit/s x 50 ms, queue of 480 ms: does an unmodified program get the full rate and leave the queue empty?",
        scale: "One iperf3 download of 15 s.",
        way: Way::Download,
        cases: vec![Case {
            name: "alone".to_owned(),
            paths: vec![deep_queue()],
            flows: vec![flow],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: methods(),
        quantities: QUANTITIES.to_vec(),
        targets: vec![
            Target::new("sobas", Quantity::GoodputBps, Bound::AtLeast(92e6)),
            Target::new("sobas", Quantity::RttMeanS, Bound::AtMost(0.065)),
        ],
        ..Experiment::default()
    }
}

/// Runs the method under bufwise in any case, with the policy that changes nothing.
fn as_late(method: Method) -> Method {
    Method { client: method.client.or(Some("kernel")), ..method }
}

fn cross() -> Experiment {
    let own = Flow { amount: Amount::Seconds(25, 10), delay: Nanos::from_secs(4), ..Flow::default() };
    let others = Flow { amount: Amount::Seconds(32, 17), connections: 2, cross: true, ..Flow::default() };
    Experiment {
        id: "sobas-cross",
        source: "engine",
        question: "100 Mbit/s x 50 ms beside two TCP flows: does a download get as much as under the kernel alone?",
        scale: "One iperf3 download of 25 s, 4 s after two others. Behind a full queue CUBIC takes minutes to share, and a \
            tenth of a second at the start decides what it gets; so the download starts when the others have settled.",
        way: Way::Download,
        cases: vec![Case {
            name: "two others".to_owned(),
            paths: vec![deep_queue()],
            flows: vec![own, others],
            memory: None,
            quick: true,
            setup: Setup::default(),
        }],
        methods: methods().into_iter().map(as_late).collect(),
        quantities: QUANTITIES.to_vec(),
        targets: vec![Target::new("sobas", Quantity::GoodputBps, Bound::AtLeastTimes(0.95, "kernel"))],
        ..Experiment::default()
    }
}

/// Socket buffers of a background flow that they limit, bytes: iperf3's `-w`, which is about what its receiver advertises.
///
/// The kernel doubles the size, and advertises that part of it which payload takes of the packets' memory: half before Linux 6.11;
/// since then a measured ratio, 5/8 to 2/3 for usual segments. With segments of [`LIMITED_SEGMENTS`] this ratio, too, is about half
/// (0.51 to 0.54 here). The largest window of a scale is 65,535 shifted by the scale, which follows from the size of the buffer;
/// neither of these sizes is near it.
///
/// 17 Mbit/s on the wire over 40 ms.
pub(super) const LIMIT_17_MBIT: u64 = 80_500;
/// 500 Mbit/s on the wire over 20 ms.
pub(super) const LIMIT_500_MBIT: u64 = 1_132_000;
/// iperf3's option for segments of 1,200 bytes, timestamps included.
const LIMITED_SEGMENTS: &str = "-M 1200";
/// Payload over wire of these segments.
pub(super) const LIMITED_PAYLOAD: f64 = 1_188.0 / 1_254.0;

/// Payload over wire of full TCP segments with timestamps.
const PAYLOAD: f64 = 1_448.0 / 1_514.0;
/// Least share of the available bandwidth.
const USED: f64 = 0.97;

/// Names of the methods with which others are compared.
pub(super) const RENO: &str = "maximum, reno";
pub(super) const CUBIC: &str = "maximum, cubic";
pub(super) const BBR: &str = "maximum, bbr";
pub(super) const SOBAS: &str = "sobas";
pub(super) const PUBLISHED: &str = "sobas, published";

/// Returns `bufwise get` from `bufwise serve`: maximum buffers with each congestion control, and SOBAS as published and
/// as ours.
pub(super) fn movers() -> [Method; 6] {
    let method = |name, congestion_control, policy, server| Method {
        name,
        congestion_control,
        rmem: LARGE,
        wmem: LARGE,
        ftp: Ftp { client: Some(policy), server: Some(server) },
        ..Method::default()
    };
    [
        method(RENO, "reno", "kernel", ""),
        method(CUBIC, "cubic", "kernel", ""),
        Method { beside: true, ..method(BBR, "bbr", "kernel", "") },
        // Over Reno, as in the paper, so that it compares with maximum buffers over Reno.
        method(PUBLISHED, "reno", "sobas:published", ""),
        // Without probes there is no pacing either: only the window is limited.
        method("sobas, unpaced", "cubic", "sobas", "--no-probes"),
        method(SOBAS, "cubic", "sobas", ""),
    ]
}

/// Returns the targets for a link with `mbit` (Mbit/s) free: used, and without drops.
fn free(case: &str, mbit: u64) -> [Target; 2] {
    let enough = mbit as f64 * 1e6 * PAYLOAD * USED;
    [
        Target::new("sobas", Quantity::SettledBps, Bound::AtLeast(enough)).only_in([case]),
        Target::new("sobas", Quantity::SettledDrops, Bound::AtMost(0.0)).only_in([case]),
    ]
}

/// Returns unresponsive traffic on the way to host A.
pub(super) fn unresponsive(mbit: u64, pattern: CrossPattern) -> Option<CrossTraffic> {
    Some(CrossTraffic { rate: BitRate(mbit * 1_000_000), packet_bytes: 1_500, pattern })
}

/// Returns unresponsive traffic, bursty like aggregated transfers: `mean_mbit` on average, from 32 heavy-tailed sources
/// that are on for half of the time. At any moment it scatters by 18%.
pub(super) fn aggregate(mean_mbit: u64) -> Option<CrossTraffic> {
    let times = Nanos::from_millis(200);
    let pattern = CrossPattern::Aggregate { sources: 32, on: times, off: times, durations: HEAVY_TAIL };
    unresponsive(2 * mean_mbit, pattern)
}

pub(super) fn with_file(
    id: &'static str,
    source: &'static str,
    question: &'static str,
    scale: &'static str,
    case: Case,
    targets: Vec<Target>,
) -> Experiment {
    Experiment {
        id,
        source,
        question,
        scale,
        way: Way::Download,
        cases: vec![case],
        methods: movers().to_vec(),
        quantities: vec![
            Quantity::SettledBps,
            Quantity::GoodputBps,
            Quantity::RttMeanS,
            Quantity::Drops,
            Quantity::SettledDrops,
        ],
        targets,
        ..Experiment::default()
    }
}

/// Returns a file that takes `seconds` at this rate, and half as long with `--quick`.
pub(super) fn file(mbit: u64, seconds: u64) -> Flow {
    let bytes = mbit * 1_000_000 / 8 * seconds;
    let most = u32::try_from(seconds).unwrap_or(u32::MAX);
    Flow { amount: Amount::File(bytes, 2 * most, bytes / 2, most), ..Flow::default() }
}

/// Seconds for which a background flow sends before the file begins.
const LEAD: u32 = 1;

/// Returns `file` and a background flow with socket buffers of `buffer` bytes, which begins before the file and lasts longer
/// than the file may take.
pub(super) fn beside_a_limited_flow(file: Flow, buffer: u64) -> Vec<Flow> {
    let [whole, quick] = [false, true].map(|quick| file.amount.seconds(quick) + 2 * LEAD);
    let limited = Flow {
        amount: Amount::Seconds(whole, quick),
        cross: true,
        buffer: Some(buffer),
        writes: Some(LIMITED_SEGMENTS),
        ..Flow::default()
    };
    vec![Flow { delay: Nanos::from_secs(LEAD.into()), ..file }, limited]
}

pub(super) fn one(name: &str, path: PathSpec, flows: Vec<Flow>) -> Case {
    Case {
        name: name.to_owned(),
        paths: vec![path],
        flows,
        memory: None,
        quick: true,
        setup: Setup::default(),
    }
}

/// Returns the experiments at 970 Mbit/s, 20 ms.
fn gigabit() -> [Experiment; 3] {
    let spec = || PathSpec { queue: "bdp/4".parse().ok(), ..path(970, 20) };
    let limited = beside_a_limited_flow(file(450, 8), LIMIT_500_MBIT);
    let fig14_15 = with_file(
        "sobas-fig14-15",
        "Prasad 2004, figures 14 and 15",
        "970 Mbit/s x 20 ms beside a TCP flow of at most 500 Mbit/s: does SOBAS get more than maximum buffers?",
        "8 s (450 MB instead of 1 GB); the other flow is iperf3's, limited by its buffer, and begins 1 s before the file.",
        one("limited", spec(), limited),
        more("limited"),
    );
    let quantities = [fig14_15.quantities, vec![Quantity::OthersBps]].concat();
    [
        with_file(
            "sobas-fig9-10",
            "Prasad 2004, figures 9 and 10",
            "970 Mbit/s x 20 ms, queue of a quarter BDP: does SOBAS use the available bandwidth without drops?",
            "8 s (970 MB instead of 1 GB), without other traffic, so that A is 970 Mbit/s; the paper has 950.",
            one("alone", spec(), vec![file(970, 8)]),
            free("alone", 970).to_vec(),
        ),
        with_file(
            "sobas-fig11-13",
            "Prasad 2004, figures 11 to 13",
            "970 Mbit/s x 20 ms beside unresponsive bursts: does SOBAS get more than maximum buffers?",
            "10 s (690 MB instead of 1 GB); 400 Mbit/s on the mean from 32 heavy-tailed sources, instead of a recorded trace, so that \
             A is 570 Mbit/s; the paper has 550.",
            one("bursts", PathSpec { cross_b_to_a: aggregate(400), ..spec() }, vec![file(550, 10)]),
            more("bursts"),
        ),
        Experiment { quantities, ..fig14_15 },
    ]
}

/// Returns the target where the available bandwidth varies: not less than maximum buffers get.
fn more(case: &str) -> Vec<Target> {
    let bound = Bound::AtLeastTimes(1.0, CUBIC);
    vec![Target::new("sobas", Quantity::GoodputBps, bound).only_in([case])]
}

/// Returns the experiments at 620 Mbit/s, 10 and 60 ms.
fn oc12() -> [Experiment; 2] {
    let spec = |rtt| PathSpec { queue: "bdp/2".parse().ok(), ..path(620, rtt) };
    let near = with_file(
        "sobas-fig16-17",
        "Prasad 2004, figures 16 and 17",
        "620 Mbit/s x 10 ms: does SOBAS use the available bandwidth without drops?",
        "8 s (620 MB instead of 1 GB), without other traffic.",
        one("alone", spec(10), vec![file(620, 8)]),
        free("alone", 620).to_vec(),
    );
    let far = with_file(
        "sobas-fig18-19",
        "Prasad 2004, figures 18 and 19",
        "620 Mbit/s x 60 ms, of which bursts of others take 190: does SOBAS get more than maximum buffers?",
        "10 s (540 MB instead of 1 GB); 190 Mbit/s on the mean from 32 heavy-tailed sources, instead of live traffic.",
        one("430 free", PathSpec { cross_b_to_a: aggregate(190), ..spec(60) }, vec![file(430, 10)]),
        more("430 free"),
    );
    [near, far]
}

/// Returns the experiments at 97 Mbit/s, 40 and 155 ms.
fn fast_ethernet() -> [Experiment; 3] {
    let spec = |rtt| PathSpec { queue: "bdp/2".parse().ok(), ..path(97, rtt) };
    let loaded =
        |rtt, mbit| PathSpec { cross_b_to_a: unresponsive(mbit, CrossPattern::Constant), ..spec(rtt) };
    [
        with_file(
            "sobas-fig20-21",
            "Prasad 2004, figures 20 and 21",
            "97 Mbit/s x 40 ms: does SOBAS use the available bandwidth without drops?",
            "10 s (120 MB instead of 200), without other traffic.",
            one("97 free", spec(40), vec![file(97, 10)]),
            free("97 free", 97).to_vec(),
        ),
        with_file(
            "sobas-fig22-23",
            "Prasad 2004, figures 22 and 23",
            "97 Mbit/s x 40 ms, of which others take 17: does SOBAS use the rest without drops?",
            "10 s (100 MB instead of 200); the others are unresponsive and steady.",
            one("80 free", loaded(40, 17), vec![file(80, 10)]),
            free("80 free", 80).to_vec(),
        ),
        with_file(
            "sobas-fig24-25",
            "Prasad 2004, figures 24 and 25",
            "97 Mbit/s x 155 ms, of which others take 57: does SOBAS use the rest without drops?",
            "10 s (50 MB instead of 200); the others are unresponsive and steady.",
            one("40 free", loaded(155, 57), vec![file(40, 10)]),
            free("40 free", 40).to_vec(),
        ),
    ]
}
