//! Plan of the demo: its methods, paths, and size of the file.

use std::fmt;
use std::time::Duration;

use bufwise_link::QueueSize;
use bufwise_units::{BitRate, Bytes, Nanos};

use crate::spec::{DEFAULT_MTU, PathSpec};
use crate::testbed::goodput_ceiling;

const RATE: BitRate = BitRate(100_000_000);
/// Buffers of the papers' time: 64 KB at both ends (Feng 2002, section 5.3).
const SMALL_BUFFER: Bytes = Bytes(64 << 10);
/// Kernel limits in both hosts, large enough to be none.
const LARGE_BUFFERS: u64 = 32 << 20;
/// More than the link carries in the time that each method has, so that all are judged over the same time.
const FILE: u64 = 215_000_000;
/// Slow start weighs 2% of it, and three rounds fit into a minute.
const TIME: Duration = Duration::from_secs(17);
/// File and time of `--quick`.
const QUICK_FILE: u64 = 90_000_000;
const QUICK_TIME: Duration = Duration::from_secs(7);
/// The small buffers move this part of the file; their rate is the same from the first second on.
const SMALL_SHARE: u64 = 16;

/// How a file is moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// 64 KB buffers at both ends.
    SmallBuffers,
    /// The kernel's autotuning, with this congestion control.
    Kernel(&'static str),
    /// SOBAS as published: the receiver limits its window.
    Sobas(&'static str),
    /// SOBAS with the sender paced at the measured rate.
    SobasPaced(&'static str),
}

impl Method {
    /// Congestion control of the sender.
    #[must_use]
    pub fn congestion_control(self) -> &'static str {
        match self {
            Self::SmallBuffers => "reno",
            Self::Kernel(name) | Self::Sobas(name) | Self::SobasPaced(name) => name,
        }
    }

    /// Size of both buffers, if it is fixed.
    #[must_use]
    pub fn fixed_buffers(self) -> Option<Bytes> {
        (self == Self::SmallBuffers).then_some(SMALL_BUFFER)
    }

    /// Whether it measures the path with probes.
    #[must_use]
    pub fn probes(self) -> bool {
        matches!(self, Self::Sobas(_) | Self::SobasPaced(_))
    }
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |name: &str| match name {
            "reno" => "Reno".to_owned(),
            other => other.to_ascii_uppercase(),
        };
        match self {
            Self::SmallBuffers => write!(f, "64 KB buffers"),
            Self::Kernel(name) => write!(f, "kernel, {}", shown(name)),
            Self::Sobas(name) => write!(f, "sobas, {}", shown(name)),
            Self::SobasPaced(name) => write!(f, "sobas paced, {}", shown(name)),
        }
    }
}

/// One of the two paths.
#[derive(Clone, Debug)]
pub struct DemoPath {
    /// Short name.
    pub name: &'static str,
    /// The property that makes it special.
    pub about: &'static str,
    /// The path.
    pub spec: PathSpec,
}

impl DemoPath {
    /// The most payload that this path carries, bit/s.
    #[must_use]
    pub fn ceiling(&self) -> f64 {
        goodput_ceiling(self.spec.rate.unwrap_or(RATE), self.spec.mtu)
    }
}

/// The paths and methods that the demo runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The paths, each method over all of them.
    pub paths: Vec<DemoPath>,
    /// The methods; those of one round run at the same time.
    pub rounds: Vec<Vec<Method>>,
    /// Size of the file.
    pub bytes: u64,
    /// Time for one method to move it, or what it can of it.
    pub time: Duration,
}

impl Plan {
    /// The whole demo, under a minute.
    #[must_use]
    pub fn whole() -> Self {
        let rounds = vec![
            vec![Method::SmallBuffers, Method::Kernel("cubic"), Method::Kernel("bbr")],
            vec![Method::Kernel("reno"), Method::Sobas("reno")],
            vec![Method::SobasPaced("reno"), Method::SobasPaced("cubic")],
        ];
        Self { paths: paths(), rounds, bytes: FILE, time: TIME }
    }

    /// A shorter one, under 20 seconds.
    #[must_use]
    pub fn quick() -> Self {
        let rounds = vec![
            vec![Method::SmallBuffers, Method::Kernel("cubic")],
            vec![Method::Sobas("reno"), Method::SobasPaced("cubic")],
        ];
        Self { paths: paths(), rounds, bytes: QUICK_FILE, time: QUICK_TIME }
    }

    /// How much of the file `method` moves.
    #[must_use]
    pub fn bytes_for(&self, method: Method) -> u64 {
        if method == Method::SmallBuffers { self.bytes / SMALL_SHARE } else { self.bytes }
    }
}

fn paths() -> Vec<DemoPath> {
    let path = |rtt_ms, queue| PathSpec {
        rate: Some(RATE),
        rtt: Nanos::from_millis(rtt_ms),
        queue: Some(queue),
        mtu: DEFAULT_MTU,
        rmem: Some(LARGE_BUFFERS),
        wmem: Some(LARGE_BUFFERS),
        ..PathSpec::default()
    };
    vec![
        DemoPath {
            name: "shallow queue",
            about: "100 Mbit/s, 40 ms, queue of an eighth of the bandwidth-delay product (5 ms)",
            spec: path(40, QueueSize::Bdp(0.125)),
        },
        DemoPath {
            name: "deep queue",
            about: "100 Mbit/s, 50 ms, queue of 480 ms",
            spec: path(50, QueueSize::Time(Nanos::from_millis(480))),
        },
    ]
}
