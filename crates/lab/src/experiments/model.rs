//! Experiments as data: paths and flows (the cases), methods that carry them, the quantities read, and targets.
//!
//! Terms: in a *case* some *flows* run over some paths that all begin at host A. A *method* says which side is tuned
//! by what, and how both hosts' kernels are set. A *run* is one method in one case; a *quantity* is a number that a
//! run yields. A *target* bounds the median of a quantity over the runs of one method.

use std::fmt;

use bufwise_units::{BitRate, Nanos};
use serde::{Deserialize, Serialize};

use crate::spec::PathSpec;

/// The distribution's maximum of `tcp_rmem`, bytes.
pub(super) const USUAL_RMEM: u64 = 6 << 20;
/// The distribution's maximum of `tcp_wmem`, bytes.
pub(super) const USUAL_WMEM: u64 = 4 << 20;

/// An experiment.
#[derive(Clone, Debug)]
pub struct Experiment {
    /// Short name, unique in the catalogue.
    pub id: &'static str,
    /// The paper's figure, or `engine`.
    pub source: &'static str,
    /// The question it answers, in one line.
    pub question: &'static str,
    /// How it differs from its source.
    pub scale: &'static str,
    /// Which way the data goes.
    pub way: Way,
    /// The cases: the flows and the paths that carry them.
    pub cases: Vec<Case>,
    /// The methods that carry the flows.
    pub methods: Vec<Method>,
    /// The quantities read of every run.
    pub quantities: Vec<Quantity>,
    /// The bounds that its results should keep to.
    pub targets: Vec<Target>,
    /// Whether the kernel counts what its BPF programs cost.
    pub counts_cost: bool,
}

/// Which way the data goes. The client is always on host A.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the client on host A to the servers.
    Upload,
    /// From the servers to the client on host A.
    Download,
}

/// The cases: the flows and the paths that carry them.
#[derive(Clone, Debug)]
pub struct Case {
    /// Name that tells it from the other cases.
    pub name: String,
    /// The paths, all from host A.
    pub paths: Vec<PathSpec>,
    /// The flows over them.
    pub flows: Vec<Flow>,
    /// Memory that a tuned sender's queues may hold, bytes.
    pub memory: Option<u64>,
    /// Whether `--quick` runs it.
    pub quick: bool,
}

/// One client and its server: iperf3, documents, or a file by FTP.
#[derive(Clone, Debug)]
pub struct Flow {
    /// Index of its path.
    pub path: u8,
    /// Its connections, at most [`MAX_CONNECTIONS`].
    pub connections: u16,
    /// How much it moves.
    pub amount: Amount,
    /// Seconds after which it starts.
    pub delay: u32,
    /// Whether it is there only to be in the way: never tuned, and not read.
    pub cross: bool,
    /// Socket buffers that iperf3 sets, bytes; `None`: it sets none.
    pub buffer: Option<u64>,
}

/// More than this iperf3 does not open at once.
pub const MAX_CONNECTIONS: u16 = 128;

impl Default for Flow {
    fn default() -> Self {
        Self { path: 0, connections: 1, amount: Amount::Seconds(10, 4), delay: 0, cross: false, buffer: None }
    }
}

/// How much a flow moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// As many bytes as can be sent in this many seconds; the second number is for `--quick`.
    Seconds(u32, u32),
    /// This many bytes, and the most time that takes, in seconds; with `--quick` as many as can be sent in
    /// the last number of seconds.
    Bytes(u64, u32, u32),
    /// Documents of this many bytes, one after the other, each over a connection of its own; this many, and with
    /// `--quick`.
    Documents(u64, u32, u32),
    /// Documents of this many bytes as a user asks for them beside other flows: one every 50 ms at most, each over a
    /// connection of its own, for so many seconds, and with `--quick`.
    Requests(u64, u32, u32),
    /// A file of this many bytes by FTP, and what that takes at most, in seconds; the same with `--quick`.
    File(u64, u32, u64, u32),
}

impl Amount {
    /// How many documents it is; none if it is something else.
    #[must_use]
    pub fn documents(self, quick: bool) -> u32 {
        match self {
            Self::Documents(_, _, count) if quick => count,
            Self::Documents(_, count, _) => count,
            Self::Seconds(..) | Self::Bytes(..) | Self::Requests(..) | Self::File(..) => 0,
        }
    }

    /// Seconds that it takes, or takes at most.
    #[must_use]
    pub fn seconds(self, quick: bool) -> u32 {
        match self {
            Self::Seconds(_, seconds)
            | Self::Bytes(_, _, seconds)
            | Self::Requests(_, _, seconds)
            | Self::File(.., seconds)
                if quick =>
            {
                seconds
            }
            Self::Seconds(seconds, _)
            | Self::Bytes(_, seconds, _)
            | Self::Requests(_, seconds, _)
            | Self::File(_, seconds, ..) => seconds,
            // About half a second each, on the longest paths here.
            Self::Documents(..) => self.documents(quick).div_ceil(2),
        }
    }
}

/// A way to carry the flows: the side that tunes, and the settings of the kernels.
#[derive(Clone, Debug)]
pub struct Method {
    /// Short name, unique in the experiment.
    pub name: &'static str,
    /// Policy of `bufwise run` around the client; `None`: none.
    pub client: Option<&'static str>,
    /// Policy of `bufwise run` around the servers; `None`: none.
    pub server: Option<&'static str>,
    /// `--only-called`: its programs in the kernel do nothing when they are called.
    pub only_called: bool,
    /// `--small-documents` for those that tune, bytes; `None`: the policy's own.
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
    /// `--gso-max-size` for those that tune, bytes: what a writer fills at once; `None`: as much as devices take.
    pub gso_max_size: Option<u32>,
    /// Amount that replaces the case's: a method with a steady rate need not run as long.
    pub amount: Option<Amount>,
    /// How it moves files.
    pub ftp: Ftp,
}

/// The programs that move a file by FTP.
#[derive(Clone, Copy, Debug, Default)]
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
            gso_max_size: None,
            amount: None,
            ftp: Ftp::default(),
        }
    }
}

/// A number that a run yields.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Quantity {
    /// Payload that arrived per second, all flows together, bit/s.
    GoodputBps,
    /// The same of the flows on the first path.
    GoodputPath1Bps,
    /// The same of the flows on the second path.
    GoodputPath2Bps,
    /// The same of the flows on the third path.
    GoodputPath3Bps,
    /// Most memory that the send queues held together, bytes.
    HeldPeakBytes,
    /// Most memory that the sockets held at their senders, and most at their receivers, together, bytes.
    SocketMemoryBytes,
    /// Time that a file took: of its data connection, s.
    TransferS,
    /// Payload per second from two seconds after the data's begin on, bit/s.
    SettledBps,
    /// Packets dropped in the tight links' queues from three seconds after the data's begin on.
    SettledDrops,
    /// Mean of the sender's smoothed round-trip time, s.
    RttMeanS,
    /// Packets dropped in the tight links' queues, in the data's direction.
    Drops,
    /// Share of the time, after the first second, in which the receiver's window held the sender back.
    ReceiveWindowLimited,
    /// Segments sent again.
    Retransmits,
    /// Segments sent again, as a share of those that were needed.
    RetransmitShare,
    /// Jain's index of fairness over the connections: 1 when all got the same.
    JainIndex,
    /// From the first data until the link carried 90% of its rate, s.
    RampUpS,
    /// Standard deviation over mean of each connection's send buffer over time, mean over the connections.
    BufferVariation,
    /// From the request for a document to its last byte, mean over the documents, s.
    ResponseS,
    /// The median of those times, s.
    ResponseMedianS,
    /// The time that 95 of 100 documents kept to, s.
    ResponseP95S,
    /// Mean time of a call of the program in the kernel, s.
    CallbackS,
    /// Calls of the program in the kernel.
    Callbacks,
    /// Share of the connections through which data arrived.
    Served,
}

/// How a quantity is shown to people.
pub(super) struct Shown {
    pub(super) name: &'static str,
    pub(super) unit: &'static str,
    /// Shown number for one of the quantity's own unit.
    pub(super) scale: f64,
    pub(super) decimals: usize,
}

impl Quantity {
    pub(super) fn shown(self) -> Shown {
        let (name, unit, scale, decimals) = match self {
            Self::GoodputBps => ("goodput", "Mbit/s", 1e-6, 1),
            Self::GoodputPath1Bps => ("path 1", "Mbit/s", 1e-6, 1),
            Self::GoodputPath2Bps => ("path 2", "Mbit/s", 1e-6, 1),
            Self::GoodputPath3Bps => ("path 3", "Mbit/s", 1e-6, 1),
            Self::HeldPeakBytes => ("held at most", "MB", 1e-6, 2),
            Self::SocketMemoryBytes => ("socket memory, both ends", "MB", 1e-6, 2),
            Self::TransferS => ("transfer", "s", 1.0, 2),
            Self::SettledBps => ("goodput after 2 s", "Mbit/s", 1e-6, 1),
            Self::SettledDrops => ("drops after 3 s", "packets", 1.0, 0),
            Self::RttMeanS => ("mean RTT", "ms", 1e3, 1),
            Self::Drops => ("drops", "packets", 1.0, 0),
            Self::ReceiveWindowLimited => ("receive window", "% of time", 1e2, 1),
            Self::Retransmits => ("sent again", "segments", 1.0, 0),
            Self::RetransmitShare => ("sent again", "%", 1e2, 2),
            Self::JainIndex => ("Jain index", "", 1.0, 3),
            Self::RampUpS => ("ramp-up", "s", 1.0, 2),
            Self::BufferVariation => ("buffer varies by", "%", 1e2, 1),
            Self::ResponseS => ("response", "ms", 1e3, 1),
            Self::ResponseMedianS => ("response, median", "ms", 1e3, 1),
            Self::ResponseP95S => ("response, p95", "ms", 1e3, 1),
            Self::CallbackS => ("callback", "ns", 1e9, 0),
            Self::Callbacks => ("callbacks", "", 1.0, 0),
            Self::Served => ("connections served", "%", 1e2, 0),
        };
        Shown { name, unit, scale, decimals }
    }

    /// `value` for people, without the unit.
    #[must_use]
    pub fn show(self, value: f64) -> String {
        let Shown { scale, decimals, unit, .. } = self.shown();
        let value = value * scale;
        // A slow line has its digits behind the point.
        let decimals = if unit == "Mbit/s" && value < 1.0 { 4 } else { decimals };
        format!("{value:.decimals$}")
    }
}

/// Name and unit, as a column's head.
impl fmt::Display for Quantity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shown() {
            Shown { name, unit: "", .. } => f.pad(name),
            Shown { name, unit, .. } => f.pad(&format!("{name}, {unit}")),
        }
    }
}

/// A bound for the median of a quantity.
#[derive(Clone, Debug)]
pub struct Target {
    /// Of this method.
    pub method: &'static str,
    /// This quantity.
    pub quantity: Quantity,
    /// Is to keep to this.
    pub bound: Bound,
    /// Names of the cases that it applies to; all when empty.
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
    /// At most this many times what another method has in the same case, and this more: what it is measured with.
    AtMostTimes(f64, &'static str, f64),
    /// At most the case's memory.
    WithinMemory,
    /// At most this many times the bandwidth-delay product of the case's first path and this many bytes more, or, if that
    /// is more, what another method has.
    WithinProducts(f64, f64, &'static str),
    /// Reaches this share of the best that any method has in any case, in an earlier case than another method: the
    /// cases are in order of what they cost.
    EarlierThan(f64, &'static str),
}

impl Target {
    pub(super) fn new(method: &'static str, quantity: Quantity, bound: Bound) -> Self {
        Self { method, quantity, bound, cases: Vec::new() }
    }

    /// Only in these cases.
    pub(super) fn only_in<const N: usize>(mut self, cases: [&str; N]) -> Self {
        self.cases = cases.map(str::to_owned).to_vec();
        self
    }
}

impl Experiment {
    /// The cases to run.
    pub fn cases(&self, quick: bool) -> impl Iterator<Item = &Case> {
        self.cases.iter().filter(move |case| case.quick || !quick)
    }

    /// About how long `repeat` repetitions take, seconds.
    #[must_use]
    pub fn seconds(&self, quick: bool, repeat: u32) -> u32 {
        /// Hosts, servers, and taking them down.
        const OVERHEAD: u32 = 1;
        let runs = self.cases(quick).flat_map(|case| self.methods.iter().map(move |method| (case, method)));
        let once: u32 = runs.map(|(case, method)| case.seconds(method, quick) + OVERHEAD).sum();
        once * repeat
    }
}

impl Case {
    /// How long one run takes, or takes at most, seconds.
    #[must_use]
    pub fn seconds(&self, method: &Method, quick: bool) -> u32 {
        let end = |flow: &Flow| {
            // iperf3 opens its connections one after the other.
            let rtt = self.paths.get(usize::from(flow.path)).map_or(0, |path| path.rtt.0);
            let opening = u64::from(flow.connections) * rtt / 1_000_000_000;
            let moving = method.amount.unwrap_or(flow.amount).seconds(quick);
            flow.delay + moving + u32::try_from(opening).unwrap_or(u32::MAX)
        };
        self.flows.iter().map(end).max().unwrap_or(0)
    }
}

/// A path of this rate (Mbit/s) and RTT (ms); its queue is one BDP.
pub(super) fn path(rate_mbit: u64, rtt_ms: u64) -> PathSpec {
    PathSpec {
        rate: Some(BitRate(rate_mbit * 1_000_000)),
        rtt: Nanos::from_millis(rtt_ms),
        ..PathSpec::default()
    }
}
