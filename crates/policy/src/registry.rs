//! The policies by name, as the command line and the configuration know them.

use crate::abt::{self, Abt};
use crate::drs::{self, Drs};
use crate::drs_ftp::{self, DrsFtp};
use crate::eq::EqualShare;
use crate::fixed::Fixed;
use crate::kernel::Untouched;
use crate::policy::Policy;
use crate::sabt::{self, Sabt};
use crate::sobas::{self, Sobas};
use bufwise_units::{Bytes, ParseError};
use std::fmt;
use std::str::FromStr;

/// A policy, with the parameter of its name.
///
/// ```
/// use bufwise_policy::{BuildOptions, PolicyKind, Side};
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let kind: PolicyKind = "abt".parse()?;
/// assert_eq!(kind.side(), Side::Send);
/// let mut policy = kind.build(&BuildOptions { max_window: Bytes(1 << 20), ..Default::default() });
/// let sample = Sample { cwnd: Bytes(100_000), ..Sample::default() };
/// assert_eq!(policy.observe(&sample, Micros::ZERO).send_buffer, Some(Bytes(200_000)));
/// assert!("cubic".parse::<PolicyKind>().is_err());
/// # Ok::<(), bufwise_policy::PolicyNameError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// `kernel`: changes nothing and leaves the kernel's own autotuning.
    Kernel,
    /// `fixed:SIZE`: the same size for every buffer.
    Fixed(Bytes),
    /// `eq`: each connection gets the same share of the send memory.
    Eq,
    /// `abt`: send buffers follow cwnd, memory is shared max-min fair.
    Abt,
    /// `abt:published`: ABT as written in Semke 1998, with the rounds of its appendix A and cwnd counted used or not.
    AbtPublished,
    /// `sabt`: send buffers follow the throughput equation, memory is shared in proportion to demand.
    Sabt,
    /// `sabt:published`: SABT as written in Matsuo, with its equation and shares in whole packets.
    SabtPublished,
    /// `drs`: receive windows follow what arrives in a round trip.
    Drs,
    /// `drs-ftp`: DRS in an FTP client, without the kernel's figures.
    DrsFtp,
    /// `sobas`: the receive window stops growing when the path is full.
    Sobas,
    /// `sobas:published`: SOBAS as written in Prasad 2004, with one decision and without pacing.
    SobasPublished,
    /// `fit`: sends what the path carries and no more, from either end alone.
    Fit,
}

/// The side of a connection that a policy sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// The sender's buffer.
    Send,
    /// The receiver's window.
    Receive,
    /// Both of them.
    Both,
}

/// The choices of [`PolicyKind::build`] that the name does not contain. The default suits a new connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BuildOptions {
    /// `sobas`: limits the sender's rate as well.
    pub pacing: bool,
    /// `sobas`: keeps watching after the decision.
    pub continuous: bool,
    /// `drs`: window scale of the connection, 0 to 14.
    pub window_scale: u8,
    /// Largest window or buffer that any policy may request; [`Bytes::MAX`]: no limit.
    pub max_window: Bytes,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self { pacing: false, continuous: false, window_scale: 7, max_window: Bytes::MAX }
    }
}

/// Why a text names no policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyNameError {
    /// No such policy.
    #[error("unknown policy `{0}`: the policies are {names}", names = PolicyKind::NAMES.join(", "))]
    Unknown(String),
    /// `fixed` without a size above zero.
    #[error("policy `fixed` needs a size above zero, as `fixed:64KiB`")]
    FixedNeedsSize,
    /// `fixed` with a text that is no size.
    #[error("policy `fixed`: {0}")]
    FixedSize(#[from] ParseError),
    /// A parameter for a policy that takes none.
    #[error("policy `{0}` takes no parameter")]
    NoParameter(&'static str),
    /// A parameter other than `published` for a policy that has that variant.
    #[error("policy `{0}` has one variant: {0}:published, the paper's rule as written")]
    NoVariant(&'static str),
}

impl PolicyKind {
    /// The names of all policies, as they are written.
    pub const NAMES: [&'static str; 12] = [
        "kernel",
        "fixed:SIZE",
        "eq",
        "abt",
        "abt:published",
        "sabt",
        "sabt:published",
        "drs",
        "drs-ftp",
        "sobas",
        "sobas:published",
        "fit",
    ];

    /// All policies; `fixed` with 64 KiB.
    pub const ALL: [Self; 12] = [
        Self::Kernel,
        Self::Fixed(Bytes(65_536)),
        Self::Eq,
        Self::Abt,
        Self::AbtPublished,
        Self::Sabt,
        Self::SabtPublished,
        Self::Drs,
        Self::DrsFtp,
        Self::Sobas,
        Self::SobasPublished,
        Self::Fit,
    ];

    /// Returns the name with its variant, but without a parameter.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Fixed(_) => "fixed",
            Self::Eq => "eq",
            Self::Abt => "abt",
            Self::AbtPublished => "abt:published",
            Self::Sabt => "sabt",
            Self::SabtPublished => "sabt:published",
            Self::Drs => "drs",
            Self::DrsFtp => "drs-ftp",
            Self::Sobas => "sobas",
            Self::SobasPublished => "sobas:published",
            Self::Fit => "fit",
        }
    }

    /// Returns one line that describes the rule.
    #[must_use]
    pub const fn description(self) -> &'static str {
        match self {
            Self::Kernel => "touch nothing: the kernel's own autotuning",
            Self::Fixed(_) => "the same size for every buffer, for ever",
            Self::Eq => "every connection the same share of the send memory",
            Self::Abt => "send buffers of 2 to 4 cwnd, memory shared max-min fair (Semke et al., 1998)",
            Self::AbtPublished => "abt with the rules of Semke et al. as written, for comparing",
            Self::SabtPublished => "sabt with the rules of Matsuo et al. as written, for comparing",
            Self::Sabt => {
                "send buffers from the TCP throughput equation, shared in proportion (Matsuo et al.)"
            }
            Self::Drs => "receive windows of twice what arrives in a round trip (Fisk and Feng)",
            Self::DrsFtp => {
                "DRS for an FTP client: times four when a read fills half the buffer (Feng et al.)"
            }
            Self::Sobas => "limit the receive window once the path is full (Prasad et al.)",
            Self::SobasPublished => "sobas with the rules of Prasad et al. as written, for comparing",
            Self::Fit => "what the path carries and no more: rate and window, from either end alone",
        }
    }

    /// Returns which side of a connection the policy sets.
    #[must_use]
    pub const fn side(self) -> Side {
        match self {
            Self::Kernel | Self::Fixed(_) | Self::Fit => Side::Both,
            Self::Eq | Self::Abt | Self::AbtPublished | Self::Sabt | Self::SabtPublished => Side::Send,
            Self::Drs | Self::DrsFtp | Self::Sobas | Self::SobasPublished => Side::Receive,
        }
    }

    /// Whether the policy is a paper's rule as written.
    #[must_use]
    pub const fn is_published(self) -> bool {
        matches!(self, Self::AbtPublished | Self::SabtPublished | Self::SobasPublished)
    }

    /// Whether a program that transfers files measures the path with UDP probes for the policy.
    #[must_use]
    pub const fn probes(self) -> bool {
        matches!(self, Self::Sobas | Self::SobasPublished)
    }

    /// Whether only the engine (`bufwise_bpf`) has the rule: a program that sizes its own sockets cannot run it.
    #[must_use]
    pub const fn needs_engine(self) -> bool {
        matches!(self, Self::Fit)
    }

    /// Builds a policy of this kind for a new connection. The rules of `fit` are in the engine (`bufwise_bpf::Model`):
    /// here `fit` changes nothing.
    #[must_use]
    pub fn build(self, options: &BuildOptions) -> Box<dyn Policy + Send> {
        let max = options.max_window;
        match self {
            Self::Kernel | Self::Fit => Box::new(Untouched),
            Self::Fixed(size) => Box::new(Fixed::new(size)),
            Self::Eq => Box::new(EqualShare::new(max)),
            Self::Abt => Box::new(Abt::new(abt::Config { max, ..Default::default() })),
            Self::AbtPublished => Box::new(Abt::new(abt::Config { max, ..abt::Config::published() })),
            Self::Sabt => Box::new(Sabt::new(sabt::Config { max, ..Default::default() })),
            Self::SabtPublished => Box::new(Sabt::new(sabt::Config { max, ..sabt::Config::published() })),
            Self::Drs => {
                let window_scale = options.window_scale;
                Box::new(Drs::new(drs::Config { window_scale, max, ..Default::default() }))
            }
            Self::DrsFtp => Box::new(DrsFtp::new(drs_ftp::Config { max, ..Default::default() })),
            Self::Sobas => Box::new(Sobas::new(sobas::Config {
                pacing: options.pacing,
                continuous: options.continuous,
                max_window: max,
                ..Default::default()
            })),
            Self::SobasPublished => {
                Box::new(Sobas::new(sobas::Config { max_window: max, ..sobas::Config::published() }))
            }
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(size) => write!(f, "fixed:{}", size.0),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for PolicyKind {
    type Err = PolicyNameError;

    fn from_str(text: &str) -> Result<Self, PolicyNameError> {
        if let Some(variant) = Self::ALL.into_iter().find(|kind| kind.is_published() && kind.name() == text) {
            return Ok(variant);
        }
        let (name, parameter) = match text.split_once(':') {
            Some((name, parameter)) => (name, Some(parameter)),
            None => (text, None),
        };
        let known = Self::ALL.into_iter().find(|kind| kind.name() == name);
        match (known.ok_or_else(|| PolicyNameError::Unknown(text.to_owned()))?, parameter) {
            (Self::Fixed(_), None | Some("")) => Err(PolicyNameError::FixedNeedsSize),
            (Self::Fixed(_), Some(size)) => match size.parse()? {
                Bytes::ZERO => Err(PolicyNameError::FixedNeedsSize),
                size => Ok(Self::Fixed(size)),
            },
            (kind, None) => Ok(kind),
            (kind @ (Self::Abt | Self::Sabt | Self::Sobas), Some(_)) => {
                Err(PolicyNameError::NoVariant(kind.name()))
            }
            (kind, Some(_)) => Err(PolicyNameError::NoParameter(kind.name())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bufwise_units::{CongestionControl, Decision, Micros, Rate, Sample};
    use proptest::prelude::*;

    #[test]
    fn names_read_back_and_are_all_listed() {
        for (kind, listed) in PolicyKind::ALL.into_iter().zip(PolicyKind::NAMES) {
            assert_eq!(kind.to_string().parse(), Ok(kind));
            assert_eq!(listed.strip_suffix(":SIZE").unwrap_or(listed), kind.name());
            assert!(!kind.description().is_empty() && !kind.description().contains('\n'));
        }
        assert_eq!("fixed:64KiB".parse(), Ok(PolicyKind::Fixed(Bytes(65_536))));
    }

    #[test]
    fn fit_alone_has_no_rule_for_a_program_that_sizes_its_own_sockets() {
        let need = PolicyKind::ALL.into_iter().filter(|kind| kind.needs_engine());
        assert_eq!(need.collect::<Vec<_>>(), [PolicyKind::Fit]);
    }

    #[test]
    fn a_published_name_builds_the_rule_of_its_paper() {
        let demand = |kind: PolicyKind, samples: [Sample; 2]| {
            let mut policy = kind.build(&BuildOptions::default());
            for (second, sample) in (0..).zip(&samples) {
                policy.observe(sample, Micros::from_secs(second));
            }
            policy.demand().unwrap()
        };
        // A window that the application does not use counts.
        let window = Sample { cwnd: Bytes(10_000), ..Sample::default() };
        let unused = Sample { cwnd: Bytes(100_000), app_limited: true, ..window };
        assert_eq!(demand(PolicyKind::Abt, [window, unused]), Bytes(20_000));
        assert_eq!(demand(PolicyKind::AbtPublished, [window, unused]), Bytes(200_000));
        // Lost segments (p = 0.01) and b = 2 give 7.943 packets; loss events (p = 0.001) and b = 1 give 38.38.
        let (srtt, rto) = (Micros::from_millis(100), Micros::from_millis(400));
        let path = Sample { mss: Bytes(10_000), srtt, rto, loss_events: Some(0), ..window };
        let lossy = Sample { segs_out: 10_000, segs_lost: 100, loss_events: Some(10), ..path };
        assert_eq!(demand(PolicyKind::SabtPublished, [path, lossy]), Bytes(79_430));
        assert!(demand(PolicyKind::Sabt, [path, lossy]) > Bytes(380_000));
        // 1.2 * C' * T, with the trains' rate as it is, and no rate for the sender.
        let options = BuildOptions { pacing: true, continuous: true, ..BuildOptions::default() };
        let (capacity, probe_rtt) = (Rate::from_bits_per_sec(100_000_000), Micros::from_millis(40));
        let estimated = Sample { capacity, probe_rtt, ..Sample::default() };
        let decision = PolicyKind::SobasPublished.build(&options).observe(&estimated, Micros::ZERO);
        assert_eq!((decision.receive_window, decision.pacing), (Some(Bytes(600_000)), None));
    }

    #[test]
    fn an_unknown_name_lists_the_known_ones() {
        let error = "cubic".parse::<PolicyKind>().expect_err("no such policy").to_string();
        assert_eq!(
            error,
            "unknown policy `cubic`: the policies are kernel, fixed:SIZE, eq, abt, \
             abt:published, sabt, sabt:published, drs, drs-ftp, sobas, sobas:published, fit"
        );
        for text in ["", "ABT", "abt ", "fits"] {
            assert_eq!(text.parse::<PolicyKind>(), Err(PolicyNameError::Unknown(text.into())));
        }
    }

    #[test]
    fn parameters_stand_only_where_they_belong() {
        assert_eq!("eq:1".parse::<PolicyKind>(), Err(PolicyNameError::NoParameter("eq")));
        for text in ["abt:1", "abt:", "abt:published:1"] {
            assert_eq!(text.parse::<PolicyKind>(), Err(PolicyNameError::NoVariant("abt")), "{text}");
        }
        for (text, variant) in [("sabt:paper", "sabt:published"), ("sobas:2004", "sobas:published")] {
            let error = text.parse::<PolicyKind>().expect_err("no such variant").to_string();
            assert!(error.contains(variant), "{error}");
        }
        for text in ["fixed", "fixed:", "fixed:0", "fixed:0KiB"] {
            assert_eq!(text.parse::<PolicyKind>(), Err(PolicyNameError::FixedNeedsSize), "{text}");
        }
        let error = "fixed:lots".parse::<PolicyKind>().expect_err("no size").to_string();
        assert!(error.starts_with("policy `fixed`: `lots` is not a size"), "{error}");
    }

    fn samples() -> impl Strategy<Value = Vec<[u64; 12]>> {
        let field = prop_oneof![Just(0_u64), Just(u64::MAX), 1_u64..100_000_000, any::<u64>()];
        proptest::collection::vec(proptest::array::uniform12(field), 1..30)
    }

    fn sample(f: &[u64; 12]) -> Sample {
        Sample {
            mss: Bytes(f[0]),
            cwnd: Bytes(f[1]),
            ssthresh: Bytes(f[2]),
            srtt: Micros(f[3]),
            rto: Micros(f[4]),
            segs_out: f[5],
            segs_lost: f[6],
            loss_events: (!f[2].is_multiple_of(3)).then_some(f[6]),
            congestion_control: match f[3] % 3 {
                0 => CongestionControl::Reno,
                1 => CongestionControl::Cubic,
                _ => CongestionControl::Other,
            },
            rcv_out_of_order: f[5],
            bytes_received: Bytes(f[7]),
            rcv_rtt: Micros(f[8]),
            read_size: Bytes(f[9]),
            probe_rtt: Micros(f[10]),
            capacity: Rate(f[11]),
            app_limited: f[0] % 2 == 1,
            probes_lost: u32::try_from(f[1] % 4).unwrap_or(0),
            ..Sample::default()
        }
    }

    proptest! {
        /// Counters that run backwards, zero segments and absurd sizes get an answer, never a panic.
        #[test]
        fn no_sample_makes_a_policy_panic(fields in samples(), steps in proptest::collection::vec(any::<u32>(), 30)) {
            for kind in PolicyKind::ALL {
                for pacing in [false, true] {
                    let options = BuildOptions { pacing, continuous: pacing, ..Default::default() };
                    let mut policy = kind.build(&options);
                    let mut now = Micros::ZERO;
                    for (field, step) in fields.iter().zip(&steps) {
                        now += Micros(u64::from(*step));
                        let decision = policy.observe(&sample(field), now);
                        policy.set_limit(policy.demand());
                        prop_assert!(!matches!(kind, PolicyKind::Kernel | PolicyKind::Fit) || decision == Decision::NONE);
                    }
                }
            }
        }

        /// A policy sets its own side of the connection only.
        #[test]
        fn decisions_stay_on_their_side(fields in samples()) {
            for kind in PolicyKind::ALL {
                let mut policy = kind.build(&BuildOptions::default());
                for (second, field) in fields.iter().enumerate() {
                    let decision = policy.observe(&sample(field), Micros::from_secs(second as u64));
                    match kind.side() {
                        Side::Send => prop_assert_eq!(decision.receive_window, None),
                        // drsFTP tells the sender its size too (SBUF).
                        Side::Receive if kind == PolicyKind::DrsFtp => {}
                        Side::Receive => prop_assert_eq!(decision.send_buffer, None),
                        Side::Both => {}
                    }
                }
            }
        }
    }
}
