//! Experiments as data: cases of paths and flows, methods that carry them, quantities that are read, and targets.
//!
//! Terms: in a *case* some *flows* run over some paths, which begin at host A unless stated otherwise. A *method* says
//! which side is tuned by what, and how the kernels of both hosts are set. A *run* is one method in one case; a
//! *quantity* is a number that a run yields. A *target* bounds the median of a quantity over the runs of one method.

use std::borrow::Cow;
use std::sync::LazyLock;

use bufwise_units::{BitRate, Nanos};

pub use super::quantity::Quantity;
pub use super::reported::{Agreement, Claim, Comparison, Reported};
use crate::experiments::cell::Cell;
use crate::experiments::{catalogue, documents, papers};
use crate::spec::{PathSpec, shared_links};
use crate::testbed::goodput_ceiling;

/// The distribution's maximum of `tcp_rmem`, in bytes.
pub(super) const USUAL_RMEM: u64 = 6 << 20;
/// The distribution's maximum of `tcp_wmem`, in bytes.
pub(super) const USUAL_WMEM: u64 = 4 << 20;

/// An experiment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Experiment {
    /// Short name, unique in the catalogue.
    pub id: &'static str,
    /// The paper's figure, or `engine`.
    pub source: &'static str,
    /// The question that it answers, in one line.
    pub question: &'static str,
    /// How it differs from its source.
    pub scale: &'static str,
    /// The direction of the data.
    pub way: Way,
    /// The cases: the flows and the paths that carry them.
    pub cases: Vec<Case>,
    /// The methods that carry the flows.
    pub methods: Vec<Method>,
    /// The quantities read of every run.
    pub quantities: Vec<Quantity>,
    /// Bounds that its results should meet.
    pub targets: Vec<Target>,
    /// Whether the kernel measures the cost of its BPF programs.
    pub counts_cost: bool,
    /// Whether it is a survey: hours long, run only by name, resumable. Invalid runs never count in it, and a method
    /// without enough valid runs is not measured.
    pub survey: bool,
}

/// The direction of the data. Clients run on the hosts at which paths begin, usually host A.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Way {
    /// From the client on host A to the servers.
    #[default]
    Upload,
    /// From the servers to the client on host A.
    Download,
}

impl Way {
    /// Returns `path` as the data meet it: with the rates and the traces of their direction.
    pub(super) fn of(self, path: &PathSpec) -> Cow<'_, PathSpec> {
        match self {
            Self::Upload => Cow::Owned(path.a_to_b()),
            Self::Download => Cow::Borrowed(path),
        }
    }
}

/// A case: the flows and the paths that carry them.
#[derive(Clone, Debug, PartialEq)]
pub struct Case {
    /// Name, unique in the experiment.
    pub name: String,
    /// The paths.
    pub paths: Vec<PathSpec>,
    /// The flows over them.
    pub flows: Vec<Flow>,
    /// Bytes of memory that the queues of a tuned sender, and of a tuned receiver, may hold.
    pub memory: Option<u64>,
    /// Whether `--quick` runs it.
    pub quick: bool,
    /// Differences from the experiment's other cases.
    pub setup: Setup,
}

/// Differences of a case from the others of its experiment; by default none.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Setup {
    /// Names of the methods that run in the case; empty: all.
    pub methods: Vec<&'static str>,
    /// Names of those methods that `--quick` runs; empty: all.
    pub quick: Vec<&'static str>,
    /// Valid runs of each method; `None`: as many as in the other cases.
    pub repeat: Option<u32>,
    /// Time by which late flows begin later in each run than in the run before. Many runs that begin at the same moment would
    /// meet the others' windows and queue at the same point of their cycle, as one run does. Runs beyond `repeat` begin at the same
    /// moments again, because the other flows are planned to last for these.
    pub apart: Nanos,
    /// Maxima of `tcp_rmem` and `tcp_wmem` in all hosts, bytes; `None`: the method's.
    pub limits: Option<u64>,
    /// Network settings of all hosts.
    pub settings: Vec<(&'static str, &'static str)>,
    /// Initial congestion window of the servers, segments; `None`: the method's.
    pub initial_window: Option<u32>,
    /// Whether the flows go over IPv6.
    pub ipv6: bool,
    /// Position in a grid of paths.
    pub cell: Option<Cell>,
    /// In a part (shard): how many cases before it in the whole experiment have names that differ from its own in signs
    /// only. `None`: the experiment is whole, and its cases show it.
    pub alike: Option<usize>,
}

/// One client and its server: iperf3, documents, a file by FTP, or the user's own programs.
#[derive(Clone, Debug, PartialEq)]
pub struct Flow {
    /// Index of the flow's path.
    pub path: u8,
    /// Number of connections, at most [`MAX_CONNECTIONS`].
    pub connections: u16,
    /// How much the flow moves.
    pub amount: Amount,
    /// Sizes of the documents in bytes, each equally likely; empty: the size in the amount.
    pub sizes: Vec<u64>,
    /// Whether the documents come from a web server ([`WEB_SERVER`]) instead of `bufwise lab document`.
    pub web: bool,
    /// Time after which the flow starts.
    pub delay: Nanos,
    /// Whether the flow is only background load: never tuned, and not measured.
    pub cross: bool,
    /// Socket buffers that iperf3 sets, bytes; `None`: it sets none.
    pub buffer: Option<u64>,
    /// Congestion control that iperf3 sets; `None`: it sets none.
    pub congestion_control: Option<&'static str>,
    /// iperf3's options that set how its sender writes, or the size of its segments; `None`: as fast as it can.
    pub writes: Option<&'static str>,
    /// Whether iperf3's client stands still, without reading or writing, from a quarter of the time to three quarters.
    pub stops: bool,
}

/// Most connections that one iperf3 opens at once.
pub const MAX_CONNECTIONS: u16 = 128;

/// The web server. Cases that need it are left out where it is not installed.
pub const WEB_SERVER: &str = "nginx";

impl Default for Flow {
    fn default() -> Self {
        Self {
            path: 0,
            connections: 1,
            amount: Amount::Seconds(10, 4),
            sizes: Vec::new(),
            web: false,
            delay: Nanos(0),
            cross: false,
            buffer: None,
            congestion_control: None,
            writes: None,
            stops: false,
        }
    }
}

/// How much a flow moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As many bytes as can be sent in this many seconds; the second number is for `--quick`.
    Seconds(u32, u32),
    /// This many bytes, and the seconds that they may take; the last number is the seconds of sending with `--quick`.
    Bytes(u64, u32, u32),
    /// Documents of this many bytes, one after the other, each over a connection of its own; the number of documents,
    /// and the same with `--quick`.
    Documents(u64, u32, u32),
    /// Documents of this many bytes, as a user requests them beside other flows: at most one every 50 ms, each over a
    /// connection of its own; seconds, and the same with `--quick`.
    Requests(u64, u32, u32),
    /// A file of this many bytes by FTP, and the seconds that it may take; the same with `--quick`.
    File(u64, u32, u64, u32),
    /// The bytes that the user's own programs move, and the seconds that they may take; the same with `--quick`.
    Program(Program, u32, u32),
    /// The packets that `bufwise probe` exchanges with `probe --serve`, and the seconds that it may take; the same with
    /// `--quick`.
    Probe(u32, u32),
}

/// Shell commands. Both have the port in `PORT`, the client also the server's address in `SERVER`. The server must
/// listen on that port; the client must end by itself, with status 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Program {
    /// Command on host B.
    pub server: &'static str,
    /// Command on host A.
    pub client: &'static str,
}

impl Amount {
    /// Whether it loads the path: documents that a user requests beside other flows, and probes, do not count.
    pub(super) fn is_load(self) -> bool {
        !matches!(self, Self::Requests(..) | Self::Documents(..) | Self::Probe(..))
    }

    /// Returns the number of documents; 0 if the amount is something else.
    #[must_use]
    pub fn documents(self, quick: bool) -> u32 {
        match self {
            Self::Documents(_, _, count) if quick => count,
            Self::Documents(_, count, _) => count,
            Self::Seconds(..)
            | Self::Bytes(..)
            | Self::Requests(..)
            | Self::File(..)
            | Self::Program(..)
            | Self::Probe(..) => 0,
        }
    }

    /// Returns the seconds that it takes, or may take.
    #[must_use]
    pub fn seconds(self, quick: bool) -> u32 {
        match self {
            Self::Seconds(_, seconds)
            | Self::Bytes(_, _, seconds)
            | Self::Requests(_, _, seconds)
            | Self::File(.., seconds)
            | Self::Program(_, _, seconds)
            | Self::Probe(_, seconds)
                if quick =>
            {
                seconds
            }
            Self::Seconds(seconds, _)
            | Self::Bytes(_, seconds, _)
            | Self::Requests(_, seconds, _)
            | Self::File(_, seconds, ..)
            | Self::Program(_, seconds, _)
            | Self::Probe(seconds, _) => seconds,
            // Half a second for each document; `Case::seconds` knows the path.
            Self::Documents(..) => self.documents(quick).div_ceil(2),
        }
    }
}

/// A method that carries the flows: the tuned side, and the settings of the kernels.
#[derive(Clone, Debug, PartialEq)]
pub struct Method {
    /// Short name, unique in the experiment.
    pub name: &'static str,
    /// Policy of `bufwise run` around the client; `None`: not tuned.
    pub client: Option<&'static str>,
    /// Policy of `bufwise run` around the servers; `None`: not tuned.
    pub server: Option<&'static str>,
    /// `--only-called`: the programs in the kernel return at once when they are called.
    pub only_called: bool,
    /// `--small-documents` of the tuned ends, bytes; `None`: the policy's own.
    pub small_documents: Option<u64>,
    /// Maximum of `tcp_rmem` in all hosts, bytes.
    pub rmem: u64,
    /// Maximum of `tcp_wmem` in all hosts, bytes.
    pub wmem: u64,
    /// Congestion control of all hosts, set before any connection is made.
    pub congestion_control: &'static str,
    /// Network settings of the sending hosts.
    pub sender: Vec<(&'static str, &'static str)>,
    /// Network settings of the receiving hosts.
    pub receiver: Vec<(&'static str, &'static str)>,
    /// Initial congestion window of the servers, segments; `None`: the kernel's.
    pub initial_window: Option<u32>,
    /// `--gso-max-size` of the tuned ends, the bytes that a writer fills at once; `None`: bufwise's choice.
    pub at_once: Option<&'static str>,
    /// Amount that replaces the case's, except for background flows: a method with a steady rate may run for less time.
    pub amount: Option<Amount>,
    /// The programs that transfer files.
    pub ftp: Ftp,
    /// Whether the method is the kernel alone, only for comparison: `--quick` leaves it out, and so does a kernel
    /// without its congestion control.
    pub beside: bool,
}

/// The programs that transfer a file by FTP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ftp {
    /// Policy of `bufwise get`; `None`: curl.
    pub client: Option<&'static str>,
    /// Options of `bufwise serve`; `None`: vsftpd.
    pub server: Option<&'static str>,
}

impl Default for Method {
    fn default() -> Self {
        Self {
            name: "kernel",
            client: None,
            server: None,
            only_called: false,
            small_documents: None,
            rmem: USUAL_RMEM,
            wmem: USUAL_WMEM,
            congestion_control: "cubic",
            sender: Vec::new(),
            receiver: Vec::new(),
            initial_window: None,
            at_once: None,
            amount: None,
            ftp: Ftp::default(),
            beside: false,
        }
    }
}

impl Method {
    /// Returns how much `flow` moves under this method.
    pub(super) fn amount_of(&self, flow: &Flow) -> Amount {
        self.amount.filter(|_| !flow.cross).unwrap_or(flow.amount)
    }
}

/// A bound for the median of a quantity.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The method.
    pub method: &'static str,
    /// The quantity.
    pub quantity: Quantity,
    /// The bound for its median.
    pub bound: Bound,
    /// Names of the cases to which the target applies; empty: all.
    pub cases: Vec<String>,
}

/// A bound, in the quantity's own unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// At least this many times what another method has in the same case.
    AtLeastTimes(f64, &'static str),
    /// At most this many times another method's value in the same case, plus a constant for the error of measurement.
    AtMostTimes(f64, &'static str, f64),
    /// At most the case's memory.
    WithinMemory,
    /// At most this many times the bandwidth-delay product of the case's first path plus this many bytes, or another
    /// method's value if that is larger.
    WithinProducts(f64, f64, &'static str),
    /// At most this many times the bandwidth-delay product of the case's first path plus this many bytes.
    WithinOwnProducts(f64, f64),
    /// At least this share of what an ideal slow start and the rate of the case's cell allow.
    AtLeastOfCeiling(f64),
    /// At least this many times the larger value of two other methods in the same case, as far as they ran in it.
    AtLeastTimesBest(f64, [&'static str; 2]),
    /// At most the RTT of the case's first path plus this share of it or these seconds, whichever is more.
    NearRtt(f64, f64),
    /// The method reaches this share of the best value that it or another method has in any case, in an earlier case than
    /// the other does; the cases are in order of cost.
    EarlierThan(f64, &'static str),
}

impl Target {
    pub(super) fn new(method: &'static str, quantity: Quantity, bound: Bound) -> Self {
        Self { method, quantity, bound, cases: Vec::new() }
    }

    /// Whether the target applies to the case of this name, if its method runs there.
    pub(super) fn names(&self, case: &str) -> bool {
        self.cases.is_empty() || self.cases.iter().any(|name| name == case)
    }

    /// Whether the target applies to `case`.
    pub(super) fn concerns(&self, case: &Case) -> bool {
        self.names(&case.name) && case.runs(self.method)
    }

    /// Restricts the target to these cases.
    pub(super) fn only_in<const N: usize>(mut self, cases: [&str; N]) -> Self {
        self.cases = cases.map(str::to_owned).to_vec();
        self
    }
}

impl Experiment {
    /// Returns the cases to run.
    pub fn cases(&self, quick: bool) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(move |case| case.quick || !quick)
    }

    /// Returns the number of valid runs of each method in `case`; `asked` is the user's choice.
    #[must_use]
    pub fn repeat(&self, case: &Case, quick: bool, asked: Option<u32>) -> u32 {
        /// Repetitions by default, in a survey, and with `--quick`.
        const REPEAT: u32 = 5;
        const SURVEY_REPEAT: u32 = 3;
        const QUICK_REPEAT: u32 = 1;
        let usual = match (quick, self.survey) {
            (true, _) => QUICK_REPEAT,
            (false, true) => case.setup.repeat.unwrap_or(SURVEY_REPEAT),
            (false, false) => case.setup.repeat.unwrap_or(REPEAT),
        };
        asked.unwrap_or(usual).max(1)
    }

    /// Returns the figures of its paper, of quantities that it reads. Empty for experiments of the engine, and for a user's
    /// experiment that has the name of a paper's one but runs otherwise.
    #[must_use]
    pub fn reported(&self) -> Vec<Reported> {
        let reported = papers::reported(self.id);
        if reported.is_empty() || !self.runs_as_in_the_catalogue() {
            return Vec::new();
        }
        reported.into_iter().filter(|one| self.quantities.contains(&one.quantity)).collect()
    }

    /// Whether its runs are those of the catalogue's experiment of this name: the same methods, and no other cases. Cases may be
    /// missing, as in a part; texts, targets and numbers of runs may differ.
    fn runs_as_in_the_catalogue(&self) -> bool {
        static CATALOGUE: LazyLock<Vec<Experiment>> = LazyLock::new(catalogue);
        CATALOGUE.iter().find(|own| own.id == self.id).is_some_and(|own| {
            let has = |case: &Case| own.cases.iter().any(|one| one.runs_as(case));
            (own.way, &own.methods) == (self.way, &self.methods) && self.cases.iter().all(has)
        })
    }

    /// Returns the methods that run in `case`, with the settings that they have there.
    pub fn methods(&self, case: &Case, quick: bool) -> impl Iterator<Item = Method> {
        let Setup { methods, quick: of_quick, .. } = &case.setup;
        let named = |names: &[&str], method: &Method| names.is_empty() || names.contains(&method.name);
        let quickly = move |method: &Method| !method.beside && named(of_quick, method);
        let runs = move |method: &&Method| named(methods, method) && (!quick || quickly(method));
        self.methods.iter().filter(runs).map(|method| case.applied(method))
    }

    /// Returns about how many seconds it takes, with `asked` repetitions if given.
    #[must_use]
    pub fn seconds(&self, quick: bool, asked: Option<u32>) -> u32 {
        /// Seconds to set up hosts and servers, and to take them down.
        const OVERHEAD: u32 = 1;
        let of_case = |case: &Case| {
            let methods = self.methods(case, quick);
            let each = methods.map(|method| case.seconds(&method, quick).saturating_add(OVERHEAD));
            each.fold(0, u32::saturating_add).saturating_mul(self.repeat(case, quick, asked))
        };
        self.cases(quick).map(of_case).fold(0, u32::saturating_add)
    }
}

impl Case {
    /// Whether the method of this name runs in the case.
    pub(super) fn runs(&self, method: &str) -> bool {
        let methods: &[&str] = &self.setup.methods;
        methods.is_empty() || methods.contains(&method)
    }

    /// Returns the case as the runs of a round have it (1: the first): flows that begin late do so by
    /// [`Setup::apart`] later than in the round before; after [`Setup::repeat`] rounds as in the first.
    #[must_use]
    pub fn of_round(&self, round: u32) -> Self {
        let before = round.saturating_sub(1) % self.setup.repeat.unwrap_or(u32::MAX).max(1);
        let later = self.setup.apart.0.saturating_mul(before.into());
        let mut case = self.clone();
        for flow in case.flows.iter_mut().filter(|flow| flow.delay > Nanos(0)) {
            flow.delay = Nanos(flow.delay.0.saturating_add(later));
        }
        case
    }

    /// Whether `other` has the same name, paths, flows and settings.
    fn runs_as(&self, other: &Self) -> bool {
        let setup = |case: &Self| Setup { repeat: None, alike: None, ..case.setup.clone() };
        (&self.name, &self.paths, &self.flows, self.memory)
            == (&other.name, &other.paths, &other.flows, other.memory)
            && setup(self) == setup(other)
    }

    /// Whether a flow needs the web server.
    pub(super) fn needs_web_server(&self) -> bool {
        self.flows.iter().any(|flow| flow.web)
    }

    /// Returns `method` with the settings that it has in this case.
    fn applied(&self, method: &Method) -> Method {
        let Setup { limits, settings, initial_window, .. } = &self.setup;
        let with = |own: &[(&'static str, &'static str)]| own.iter().chain(settings).copied().collect();
        Method {
            rmem: limits.unwrap_or(method.rmem),
            wmem: limits.unwrap_or(method.wmem),
            sender: with(&method.sender),
            receiver: with(&method.receiver),
            initial_window: initial_window.or(method.initial_window),
            ..method.clone()
        }
    }

    /// Returns the hosts at which the paths begin (`None`: host A), each with the index of its first path.
    pub(super) fn begins(&self) -> impl Iterator<Item = (usize, Option<&str>)> {
        let first = |path: usize| self.paths[..path].iter().all(|one| one.from != self.paths[path].from);
        let paths = self.paths.iter().enumerate();
        paths.filter(move |(path, _)| first(*path)).map(|(path, spec)| (path, spec.from.as_deref()))
    }

    /// Returns the slowest link of a path for the data: its index among the links of the testbed, and its rate.
    pub(super) fn tight_link(&self, path: usize, way: Way) -> Option<(usize, BitRate)> {
        let spec = way.of(self.paths.get(path)?);
        let shared = shared_links(&self.paths);
        let number = |name: &str| shared.iter().position(|link| link.name == name);
        let further = spec
            .links
            .iter()
            .filter_map(|link| Some((self.paths.len() + number(&link.name)?, link.spec.rate?)));
        spec.rate.map(|rate| (path, rate)).into_iter().chain(further).min_by_key(|(_, rate)| *rate)
    }

    /// Whether a flow passes the link with this index among the links of the testbed: those of the paths come first, then those that
    /// paths share.
    pub(super) fn passes(&self, flow: &Flow, link: usize) -> bool {
        let path = usize::from(flow.path);
        let number = link.checked_sub(self.paths.len());
        let shared = number.and_then(|number| shared_links(&self.paths).get(number).copied());
        let of_path = || self.paths.get(path).into_iter().flat_map(|path| &path.links);
        path == link || shared.is_some_and(|shared| of_path().any(|link| link.name == shared.name))
    }

    /// Returns the number of connections if their goodput was 95% of what their path can carry and their senders held
    /// no more than the case's memory; otherwise 0.
    pub(super) fn carried(&self, way: Way, goodput_bps: Option<f64>, held: f64) -> Option<f64> {
        let goodput_bps = goodput_bps?;
        const FULL: f64 = 0.95;
        let full = |path: &PathSpec| Some(FULL * goodput_ceiling(way.of(path).tight_rate()?, path.mtu));
        let is_full = self.paths.first().and_then(full).is_some_and(|full| goodput_bps >= full);
        let is_within = self.memory.is_some_and(|memory| held <= memory as f64);
        let own = self.flows.iter().filter(|flow| !flow.cross);
        Some(if is_full && is_within { own.map(|flow| f64::from(flow.connections)).sum() } else { 0.0 })
    }

    /// Returns the seconds that one run takes, or may take.
    #[must_use]
    pub fn seconds(&self, method: &Method, quick: bool) -> u32 {
        let end = |flow: &Flow| {
            // iperf3 opens its connections one after the other.
            let path = self.paths.get(usize::from(flow.path));
            let rtt = path.map_or(0, |path| path.whole_rtt().0);
            let opening = u64::from(flow.connections) * rtt / 1_000_000_000;
            let amount = method.amount_of(flow);
            let moving = match (amount, path) {
                (Amount::Documents(bytes, ..), Some(path)) => {
                    documents::seconds(path, bytes, amount.documents(quick))
                }
                _ => amount.seconds(quick),
            };
            let opening = u32::try_from(opening).unwrap_or(u32::MAX);
            let delay = u32::try_from(flow.delay.0.div_ceil(1_000_000_000)).unwrap_or(u32::MAX);
            delay.saturating_add(moving).saturating_add(opening)
        };
        self.flows.iter().map(end).max().unwrap_or(0)
    }
}

/// Returns a path of this rate (Mbit/s) and RTT (ms), with a queue of one BDP.
pub(super) fn path(rate_mbit: u64, rtt_ms: u64) -> PathSpec {
    PathSpec {
        rate: Some(BitRate(rate_mbit * 1_000_000)),
        rtt: Nanos::from_millis(rtt_ms),
        ..PathSpec::default()
    }
}
