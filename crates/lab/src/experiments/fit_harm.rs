//! Whether `fit` makes anything worse, at either end or at both: beside other flows, over bad paths, for small
//! requests.

mod tables;

use std::iter;

use bufwise_link::{Loss, QueueLimit, QueueSize, Trace, media};
use bufwise_units::{BitRate, Nanos};

use super::fit::{self, LARGE, SLACK};
use super::model::{Amount, Bound, Case, Experiment, Flow, Method, Quantity, Setup, Target, Way, path};
use super::no_harm::bytes;
use super::result::ExperimentResult;
use super::table::Table;
use crate::spec::PathSpec;
use tables::{ALONE, BESIDE, Kind, REQUESTS, TOGETHER, VARYING, WITH_REQUESTS};

pub(super) const ID: &str = "fit-harm";
pub(super) const PAIR_ID: &str = "pair-harm";

const KERNEL: &str = "kernel";
/// Least share of the kernel's rate; times may be at most the kernel's over this share.
const AS_GOOD: f64 = 0.97;
/// Least share of what the kernel's flow gets beside other flows.
const AS_MUCH: f64 = 0.95;
/// Added to bounds of times: the error of the emulator and the scheduler, s.
const CLOCK: f64 = 0.001;
const FAIR: f64 = 0.95;
/// Seed of the traces.
const SEED: u64 = 7;
/// Size of a request beside a download, bytes.
const DOCUMENT: u64 = 2_000;
/// Time by which a flow beside others begins later in each run. A CUBIC flow whose application waits for a part of its buffer fills
/// and empties the queue in a cycle of some round trips. This time is no fraction of that cycle, so runs meet different parts of it.
const APART: Nanos = Nanos(170_000_000);
/// Runs of each method beside others. The moment of its start decides how much a flow gets: rates of the same method differ by a
/// quarter on the mean, and medians of five runs by up to a third.
const BESIDE_RUNS: u32 = 15;

pub(super) fn experiments() -> Vec<Experiment> {
    vec![
        survey(
            ID,
            "Does `fit` at either end make anything worse: beside others, over bad paths, or for small requests?",
            fit::methods(&Method::default()),
        ),
        survey(
            PAIR_ID,
            "In the cases of fit-harm: does abt,sobas, the daemon's default, do less harm than fit?",
            pair(),
        ),
    ]
}

/// Returns the daemon's pair of policies, `abt,sobas`, by the end that has it.
fn pair() -> [Method; 3] {
    let names = ["abt at the sender", "sobas at the receiver", "abt,sobas at both"];
    fit::by_end(names, "abt", "sobas", &Method::default())
}

fn groups() -> [Group; 7] {
    [
        Group { kind: &ALONE, cases: alone(), bounds: &[Wanted::Goodput, Wanted::Memory] },
        Group { kind: &VARYING, cases: varying(), bounds: &[Wanted::Goodput] },
        Group { kind: &WITH_REQUESTS, cases: with_requests(), bounds: &[Wanted::Goodput, Wanted::Response] },
        Group { kind: &REQUESTS, cases: requests(), bounds: &[Wanted::Response] },
        Group { kind: &BESIDE, cases: beside(), bounds: &[Wanted::Share, Wanted::Others] },
        Group { kind: &TOGETHER, cases: together(), bounds: &[Wanted::Goodput, Wanted::Fairness] },
        Group { kind: &VARYING, cases: marking(), bounds: &[Wanted::Goodput] },
    ]
}

/// Returns the tables of a result of these surveys, one for each kind of case.
pub(super) fn quoted(result: &ExperimentResult) -> Vec<Table> {
    let survey = experiments().into_iter().find(|survey| survey.id == result.id);
    let kinds = groups().into_iter().map(|group| (group.kind, group.cases));
    survey.map(|survey| tables::by_kind(&survey, kinds, result)).unwrap_or_default()
}

/// Returns all cases by the kernel alone and by these methods.
fn survey(id: &'static str, question: &'static str, ends: [Method; 3]) -> Experiment {
    let groups = groups();
    let targets = groups.iter().flat_map(|group| group.targets(&ends)).collect();
    Experiment {
        id,
        source: "engine",
        question,
        scale: "10 to 30 s a run; the distribution's limits at both ends, and 64 MB where the case says so; CUBIC. A flow \
                beside others begins 0.17 s later in each run.",
        way: Way::Download,
        cases: groups.into_iter().flat_map(|group| group.cases).collect(),
        methods: iter::once(Method::default()).chain(ends).collect(),
        quantities: vec![
            Quantity::GoodputBps,
            Quantity::OthersBps,
            Quantity::SettledJainIndex,
            Quantity::ResponseMedianS,
            Quantity::ResponseP99S,
            Quantity::RttMeanS,
            Quantity::Drops,
            Quantity::HeldPeakBytes,
            Quantity::ReceiveHeldPeakBytes,
        ],
        targets,
        counts_cost: false,
        survey: true,
    }
}

/// Cases with the same targets.
struct Group {
    kind: &'static Kind,
    cases: Vec<Case>,
    bounds: &'static [Wanted],
}

#[derive(Clone, Copy)]
enum Wanted {
    Goodput,
    Share,
    Others,
    Fairness,
    Response,
    Memory,
}

impl Group {
    fn targets(&self, ends: &[Method; 3]) -> Vec<Target> {
        let names: Vec<String> = self.cases.iter().map(|case| case.name.clone()).collect();
        let of = |method| self.bounds.iter().flat_map(move |wanted| wanted.targets(method));
        let targets = ends.iter().flat_map(of);
        targets.map(|target| Target { cases: names.clone(), ..target }).collect()
    }
}

impl Wanted {
    fn targets(self, method: &Method) -> Vec<Target> {
        let bounds = match self {
            Self::Goodput => vec![(Quantity::GoodputBps, Bound::AtLeastTimes(AS_GOOD, KERNEL))],
            Self::Share => vec![(Quantity::GoodputBps, Bound::AtLeastTimes(AS_MUCH, KERNEL))],
            Self::Others => vec![(Quantity::OthersBps, Bound::AtLeastTimes(AS_GOOD, KERNEL))],
            Self::Fairness => vec![(Quantity::SettledJainIndex, Bound::AtLeast(FAIR))],
            Self::Response => [Quantity::ResponseMedianS, Quantity::ResponseP99S]
                .map(|quantity| (quantity, Bound::AtMostTimes(1.0 / AS_GOOD, KERNEL, CLOCK)))
                .to_vec(),
            // Each tuned end has a bound of its own memory.
            Self::Memory => {
                let bound = Bound::WithinOwnProducts(2.0, SLACK);
                let sent = method.server.map(|_| (Quantity::HeldPeakBytes, bound));
                let received = method.client.map(|_| (Quantity::ReceiveHeldPeakBytes, bound));
                [sent, received].into_iter().flatten().collect()
            }
        };
        bounds.into_iter().map(|(quantity, bound)| Target::new(method.name, quantity, bound)).collect()
    }
}

fn download() -> Flow {
    Flow { amount: Amount::Seconds(12, 5), ..Flow::default() }
}

fn case(name: &str, path: PathSpec, flows: Vec<Flow>) -> Case {
    Case {
        name: name.to_owned(),
        paths: vec![path],
        flows,
        memory: None,
        quick: false,
        setup: Setup::default(),
    }
}

fn one(name: &str, path: PathSpec) -> Case {
    case(name, path, vec![download()])
}

impl Case {
    /// Also runs the case with `--quick`.
    fn quickly(self) -> Self {
        Self { quick: true, ..self }
    }

    fn set(self, setup: Setup) -> Self {
        Self { setup, ..self }
    }
}

fn sysctl(key: &'static str, value: &'static str) -> Setup {
    Setup { settings: vec![(key, value)], ..Setup::default() }
}

/// Returns `case`, and the same with large buffer limits.
fn both_limits(case: Case) -> [Case; 2] {
    let large = Case {
        name: format!("{}, large limits", case.name),
        quick: false,
        setup: Setup { limits: Some(LARGE), ..case.setup.clone() },
        ..case.clone()
    };
    [case, large]
}

/// Returns a path of 100 Mbit/s and 40 ms with a queue of one bandwidth-delay product.
fn usual() -> PathSpec {
    path(100, 40)
}

fn deep() -> PathSpec {
    PathSpec { queue: bytes(6_000_000), ..path(100, 50) }
}

fn shallow() -> PathSpec {
    PathSpec { queue: bytes(62_500), ..usual() }
}

/// Returns paths whose bandwidth-delay product is known, with peers of all kinds.
fn alone() -> Vec<Case> {
    let local = PathSpec {
        rtt: Nanos::from_micros(200),
        queue: Some(QueueSize::Time(Nanos::from_millis(1))),
        ..path(1_000, 0)
    };
    vec![
        one("LAN, 1 Gbit/s x 0.2 ms", local),
        one("ECN", usual()).set(sysctl("net.ipv4.tcp_ecn", "1")),
        one("IPv6", usual()).set(Setup { ipv6: true, ..Setup::default() }),
        one("no timestamps", usual()).set(sysctl("net.ipv4.tcp_timestamps", "0")),
        one("no SACK", usual()).set(sysctl("net.ipv4.tcp_sack", "0")),
        one("initial window of 2", shallow()).set(Setup { initial_window: Some(2), ..Setup::default() }),
    ]
}

/// Returns paths and writers that make measurements difficult.
fn varying() -> Vec<Case> {
    let lossy = |probability| PathSpec { loss: Loss::Uniform { probability }, ..usual() };
    let jittery = |millis| PathSpec { jitter: Nanos::from_millis(millis), ..path(100, 50) };
    // Each method has the first stage for as long, however late it starts.
    let stepping = |trace: &str| {
        let trace = trace.parse().ok();
        PathSpec { trace, trace_begins_with_data: true, ..usual() }
    };
    // Each method has the same part of the trace, whose rate wanders: half a second later it may carry 3% more in 12 s.
    let shared = |rate, trace: Option<Trace>| PathSpec {
        trace,
        trace_begins_with_data: true,
        queue: bytes(750_000),
        ..path(rate, 40)
    };
    let writer = |name, options| case(name, usual(), vec![Flow { writes: Some(options), ..download() }]);
    let packets = Some(QueueSize::Limit(QueueLimit::Packets(160)));
    vec![
        one("loss 0.01%", lossy(0.0001)),
        one("loss 0.1%", lossy(0.001)).quickly(),
        one("loss 1%", lossy(0.01)),
        one("reordering", PathSpec { reorder: true, ..jittery(2) }),
        one("jitter of 5 ms", jittery(5)),
        one("jitter of 20 ms", jittery(20)),
        one("LTE", shared(35, media::lte(SEED))).quickly(),
        one("Wi-Fi", shared(67, media::wifi(SEED))),
        one("policer of 64 KB", PathSpec { policer: true, queue: bytes(64 << 10), ..path(50, 40) }).quickly(),
        one(
            "thin return path",
            PathSpec { rate_a_to_b: Some(BitRate(1_000_000)), queue: packets, ..path(50, 40) },
        ),
        one("ACKs in bursts", PathSpec { trace_a_to_b: ack_bursts(), ..usual() }),
        one("rate x 2", stepping("0 50mbit\n5 100mbit")),
        one("rate / 2", stepping("0 100mbit\n5 50mbit")),
        one("RTT x 2", stepping("0 - 20ms\n5 - 40ms")),
        one("RTT / 2", stepping("0 - 40ms\n5 - 20ms")),
        writer("writes in bursts of 1 MB", "-b 30M/16 -l 64K"),
        writer("writes 5 Mbit/s", "-b 5M").quickly(),
    ]
}

/// Returns a trace with grants of 2 ms every 14 ms.
fn ack_bursts() -> Option<Trace> {
    "0 0\n0.012 100mbit\n0.014 repeat".parse().ok()
}

/// Returns cases of a download with a small request every 50 ms.
fn with_requests() -> Vec<Case> {
    let case = |name: &str, path| {
        let user = Flow { amount: Amount::Requests(DOCUMENT, 12, 5), ..Flow::default() };
        case(name, path, vec![download(), user])
    };
    [
        case("deep queue", deep()).quickly(),
        case("shallow queue", shallow()),
        case("500 Mbit/s", path(500, 100)),
    ]
    .into_iter()
    .flat_map(both_limits)
    .collect()
}

/// Returns cases with requests only, each over a connection of its own.
fn requests() -> Vec<Case> {
    let case = |name: &str, bytes| {
        case(name, usual(), vec![Flow { amount: Amount::Requests(bytes, 10, 5), ..Flow::default() }])
    };
    [case("1 KB", 1 << 10), case("16 KB", 16 << 10), case("128 KB", 128 << 10).quickly()]
        .into_iter()
        .chain(both_limits(case("1 MB", 1 << 20)))
        .collect()
}

/// Returns cases in which the measured flow starts 4 s after the others, and [`APART`] later in each run.
fn beside() -> Vec<Case> {
    let modest = || PathSpec { queue: bytes(350_000), ..path(80, 35) };
    let case = |name: &str, path, connections, congestion_control| {
        let own = Flow { amount: Amount::Seconds(20, 8), delay: Nanos::from_secs(4), ..Flow::default() };
        // The others end after the last run's own flow: before the deep queue its connections take 2.7 s, and the programs of a
        // `bufwise run` half a second.
        let amount = Amount::Seconds(30, 15);
        let others = Flow { amount, connections, congestion_control, cross: true, ..Flow::default() };
        case(name, path, vec![own, others]).set(Setup {
            repeat: Some(BESIDE_RUNS),
            apart: APART,
            ..Setup::default()
        })
    };
    both_limits(case("beside 1 CUBIC", modest(), 1, None).quickly())
        .into_iter()
        .chain([
            case("beside 1 CUBIC, deep queue", deep(), 1, None),
            case("beside 2 CUBIC", modest(), 2, None),
            case("beside 8 CUBIC", modest(), 8, None),
            case("beside BBR", modest(), 1, Some("bbr")),
        ])
        .collect()
}

/// Returns cases with flows of the same method, each `apart` seconds after the one before; all end together.
fn together() -> Vec<Case> {
    let case = |name: &str, flows: u32, apart: u32| {
        // Ten seconds to become equal, and some more that are measured.
        let end = 16 + (flows - 1) * apart;
        let flow = |number: u32| {
            let delay = number * apart;
            let amount = Amount::Seconds(end - delay, end - delay);
            Flow { amount, delay: Nanos::from_secs(delay.into()), ..Flow::default() }
        };
        let path = PathSpec { queue: bytes(500_000), ..usual() };
        case(name, path, (0..flows).map(flow).collect())
    };
    both_limits(case("2 together", 2, 0).quickly())
        .into_iter()
        .chain([
            case("4 together", 4, 0),
            case("8 together", 8, 0),
            case("2, the second 5 s late", 2, 5),
            case("4, each 2 s late", 4, 2),
        ])
        .collect()
}

/// Returns paths whose link tells senders of its queue (ECN).
fn marking() -> Vec<Case> {
    let marking = PathSpec { mark: Some(Nanos::from_millis(5)), ..usual() };
    vec![one("ECN, marks beyond 5 ms", marking).set(sysctl("net.ipv4.tcp_ecn", "1"))]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_case_is_judged_at_either_end_and_at_both() {
        for experiment in experiments() {
            let tuned: Vec<&str> = experiment.methods[1..].iter().map(|method| method.name).collect();
            assert_eq!(tuned.len(), 3);
            for (case, method) in
                experiment.cases.iter().flat_map(|case| tuned.iter().map(move |it| (case, it)))
            {
                let judged = |target: &&Target| target.method == *method && target.cases.contains(&case.name);
                assert!(experiment.targets.iter().any(|target| judged(&target)), "{}: {method}", case.name);
            }
        }
    }

    #[test]
    fn each_tuned_end_has_its_own_bound_of_memory() {
        let Experiment { methods, targets, .. } = experiments().remove(0);
        let (sent, received) = (Quantity::HeldPeakBytes, Quantity::ReceiveHeldPeakBytes);
        let wanted: [&[Quantity]; 4] = [&[], &[sent], &[received], &[sent, received]];
        for (method, wanted) in methods.iter().zip(wanted) {
            let of = targets.iter().filter(|target| target.method == method.name);
            let held = of.map(|target| target.quantity).filter(|one| [sent, received].contains(one));
            assert_eq!(held.collect::<Vec<_>>(), wanted, "{}", method.name);
        }
    }

    #[test]
    fn others_are_there_until_the_flow_beside_them_has_ended() {
        for case in beside() {
            let beyond = |round, quick| {
                let [own, others]: [Flow; 2] = case.of_round(round).flows.try_into().unwrap();
                let seconds = |flow: &Flow| u64::from(flow.amount.seconds(quick));
                let end = |flow: &Flow| flow.delay.0 / 1_000_000 + seconds(flow) * 1_000;
                end(&others) - end(&own)
            };
            assert!(beyond(BESIDE_RUNS, false) >= 3_200 && beyond(1, true) >= 1_000, "{}", case.name);
            // `--repeat` may ask for any number of runs.
            for round in 1..50 {
                assert!(beyond(round, false) >= 3_200 && beyond(round, true) > 0, "{}: {round}", case.name);
            }
        }
    }

    #[test]
    fn traces_are_there() {
        let path = |name: &str| {
            let experiment = experiments().remove(0);
            let case = experiment.cases.into_iter().find(|case| case.name == name).unwrap();
            case.paths.into_iter().next().unwrap()
        };
        for name in ["LTE", "Wi-Fi", "ACKs in bursts", "rate x 2", "rate / 2", "RTT x 2", "RTT / 2"] {
            let path = path(name);
            // The bursts are the same all the time.
            assert_eq!(path.trace_begins_with_data, name != "ACKs in bursts", "{name}");
            assert!(path.trace.or(path.trace_a_to_b).is_some(), "{name}");
        }
    }

    #[test]
    fn flows_together_have_ten_seconds_to_become_equal() {
        for case in together() {
            let begins = |flow: &Flow| u32::try_from(flow.delay.0 / 1_000_000_000).unwrap();
            let last = case.flows.iter().map(begins).max().unwrap();
            assert!(case.flows.iter().all(|flow| begins(flow) + flow.amount.seconds(true) >= last + 15));
        }
    }
}
