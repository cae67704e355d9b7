//! The subjects of the comparison: each policy at its end, or at both ends, of one connection.
//!
//! If a policy covers one side, the other side's buffer has the host's maximum, so that the policy is observed alone.
//! Send-side policies run on a host with [`SEND_MEMORY`] for the buffers of 16 connections, 15 of them idle, which
//! shows the difference between EQ and shares by demand. The kernel is its model before 6.16 with a distribution's
//! limits: on these paths the sender's maximum of 4 MB limits first, so that 6.18 behaves the same.

use bufwise_bpf::{Config, Model, ReceiveRule, SendRule};
use bufwise_policy::share::{self, AbtRounds, Share};
use bufwise_policy::{BuildOptions, KernelModel, Policy, PolicyKind, Sabt, Side, kernel, sabt};
use bufwise_units::{Bytes, Decision, Micros, Sample};

use crate::world::ReceiveSide;

/// Subjects used by the scenarios.
pub(crate) const KERNEL: Subject = Subject::of(PolicyKind::Kernel);
pub(crate) const EQ: Subject = Subject::of(PolicyKind::Eq);
pub(crate) const ABT: Subject = Subject::of(PolicyKind::Abt);
pub(crate) const FIXED: Subject = Subject::of(PolicyKind::Fixed(Bytes(64 << 10)));
pub(crate) const DRS: Subject = Subject::of(PolicyKind::Drs);
pub(crate) const SABT: Subject = Subject::of(PolicyKind::Sabt);
pub(crate) const SOBAS: Subject = Subject::of(PolicyKind::Sobas);
pub(crate) const SOBAS_PUBLISHED: Subject = Subject::of(PolicyKind::SobasPublished);
/// `fit` at the sender alone.
pub(crate) const FIT: Subject = Subject::of(PolicyKind::Fit).with(Variant::AtSender);
/// `fit` at the sender alone, with samples as user space takes them.
pub(crate) const FIT_SAMPLED: Subject = Subject::of(PolicyKind::Fit).with(Variant::SampledAtSender);
/// `fit` at the receiver alone.
pub(crate) const FIT_WINDOW: Subject = Subject::of(PolicyKind::Fit).with(Variant::AtReceiver);
/// `fit` at both ends.
pub(crate) const FIT_BOTH: Subject = Subject::of(PolicyKind::Fit).with(Variant::AtBoth);

/// The host's maximum for a buffer or window.
pub(crate) const MAXIMUM: Bytes = Bytes(64 << 20);
/// The host's memory for send buffers, and the other connections that share it.
const SEND_MEMORY: Bytes = Bytes(4 << 20);
const NEIGHBOURS: usize = 15;
/// Demand of an idle neighbour: twice the initial window.
const NEIGHBOUR_DEMAND: Bytes = Bytes(2 * 10 * 1_448);

/// Variants of a policy's configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variant {
    Plain,
    /// `sobas` with pacing of the sender.
    Paced,
    /// `sobas` that measures on after its decision.
    Continuous,
    /// Both.
    PacedContinuous,
    /// `sabt` by the paper's equation: with lost segments instead of loss events, two segments per acknowledgement, and
    /// Reno's formula for all.
    Published,
    /// The rule as it runs in the kernel: the C code of `bufwise-bpf`, with the bound below the send rules.
    Engine,
    /// `fit`, which runs in the engine only, at the sender alone.
    AtSender,
    /// `fit` at the sender alone, with samples of the engine without privilege.
    SampledAtSender,
    /// `fit` at the receiver alone.
    AtReceiver,
    /// `fit` at both ends.
    AtBoth,
}

/// A policy in a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Subject {
    kind: PolicyKind,
    variant: Variant,
    /// Room that the engine remembers on the peer's path: how often a ramp's steps are doubled.
    room: u32,
}

impl Subject {
    pub(crate) const fn of(kind: PolicyKind) -> Self {
        Self { kind, variant: Variant::Plain, room: 0 }
    }

    pub(crate) const fn with_room(self, room: u32) -> Self {
        Self { room, ..self }
    }

    pub(crate) const fn with(self, variant: Variant) -> Self {
        Self { variant, ..self }
    }

    /// Returns every policy, and the variants that make sense on any path.
    pub(crate) fn all() -> Vec<Self> {
        let plain = PolicyKind::ALL.into_iter().map(Self::of);
        let variants = [SABT.with(Variant::Published), SOBAS_PUBLISHED, SOBAS.with(Variant::Paced)];
        let engine = [PolicyKind::Eq, PolicyKind::Abt, PolicyKind::Sabt, PolicyKind::Drs, PolicyKind::Sobas];
        let engine = engine.map(|kind| Self::of(kind).with(Variant::Engine));
        let plain = plain.filter(|subject| subject.kind != PolicyKind::Fit && !subject.kind.is_published());
        plain.chain(variants).chain(engine).chain([FIT]).collect()
    }

    pub(crate) fn name(self) -> String {
        let name = match self.kind {
            PolicyKind::Fixed(Bytes(size)) => format!("fixed:{}KiB", size >> 10),
            PolicyKind::SobasPublished => "sobas as published".to_owned(),
            kind => kind.to_string(),
        };
        let suffix = match self.variant {
            Variant::Plain if self.kind == PolicyKind::Kernel => " before 6.16",
            Variant::Plain => "",
            Variant::Paced => "+pacing",
            Variant::Continuous => "+continuous",
            Variant::PacedContinuous => "+pacing+continuous",
            Variant::Published => " as published",
            Variant::Engine => " in the engine",
            Variant::AtSender => " at the sender",
            Variant::SampledAtSender => " at the sender, sampled",
            Variant::AtReceiver => " at the receiver",
            Variant::AtBoth => " at both ends",
        };
        name + suffix
    }

    /// Whether the subject measures the path beside the connection.
    pub(crate) fn probes(self) -> bool {
        self.kind.probes() && self.variant != Variant::Engine
    }

    /// Whether the sender is sampled at every acknowledgement, not only once per round trip.
    pub(crate) fn sees_acknowledgements(self) -> bool {
        matches!(self.variant, Variant::AtSender | Variant::AtBoth)
    }

    /// Whether the sender is sampled by a timer.
    pub(crate) fn is_sampled(self) -> bool {
        self.variant == Variant::SampledAtSender
    }

    /// Whether the subject is `fit` at the receiver, alone or not.
    pub(crate) fn fits_window(self) -> bool {
        matches!(self.variant, Variant::AtReceiver | Variant::AtBoth)
    }

    /// Whether the application is the drsFTP client, which learns from the size of its reads.
    pub(crate) fn reads_in_pieces(self) -> bool {
        self.kind == PolicyKind::DrsFtp
    }

    /// The receiver's initial window. Linux begins with half of its 128 KiB, and so does the engine; the Rust policies
    /// run without that limit.
    pub(crate) fn first_window(self) -> Bytes {
        match (self.variant, self.kind.side()) {
            (Variant::Engine, Side::Receive) => Bytes(64 << 10),
            _ if self.fits_window() => Bytes(64 << 10),
            _ => MAXIMUM,
        }
    }

    /// Whether the rule runs as in the engine.
    pub(crate) fn is_engine(self) -> bool {
        self.kind == PolicyKind::Fit || self.variant == Variant::Engine
    }

    fn build(self) -> Box<dyn Policy + Send> {
        let max = MAXIMUM;
        match self.variant {
            Variant::Published => {
                return Box::new(Sabt::new(sabt::Config { max, ..sabt::Config::published() }));
            }
            Variant::Engine
            | Variant::AtSender
            | Variant::SampledAtSender
            | Variant::AtReceiver
            | Variant::AtBoth => {
                return Box::new(Model::new(&self.engine()));
            }
            _ if self.kind == PolicyKind::Kernel => {
                return Box::new(KernelModel::new(kernel::Config::of(kernel::Version::Before6_16)));
            }
            _ => {}
        }
        self.kind.build(&BuildOptions {
            pacing: matches!(self.variant, Variant::Paced | Variant::PacedContinuous),
            continuous: matches!(self.variant, Variant::Continuous | Variant::PacedContinuous),
            max_window: max,
            ..Default::default()
        })
    }

    /// Returns the engine's configuration with this rule alone.
    fn engine(self) -> Config {
        let send = match self.kind {
            PolicyKind::Eq => SendRule::Eq,
            PolicyKind::Abt => SendRule::Abt,
            PolicyKind::Sabt => SendRule::Sabt,
            PolicyKind::Fit if self.variant != Variant::AtReceiver => SendRule::Fit,
            _ => SendRule::Kernel,
        };
        let receive = match self.kind {
            PolicyKind::Drs => ReceiveRule::Drs,
            PolicyKind::Sobas => ReceiveRule::Sobas,
            PolicyKind::Fit if !self.is_at_sender() => ReceiveRule::Fit,
            _ => ReceiveRule::Kernel,
        };
        Config { send, receive, max_send: MAXIMUM, max_window: MAXIMUM, ..Config::default() }
    }

    fn is_at_sender(self) -> bool {
        matches!(self.variant, Variant::AtSender | Variant::SampledAtSender)
    }

    /// Returns the policy at the sender, if there is one.
    pub(crate) fn sender(self) -> Option<SendSide> {
        let sharing = match self.kind {
            PolicyKind::Eq => Sharing::Equal,
            PolicyKind::Abt => Sharing::Rounds(AbtRounds::new(SEND_MEMORY)),
            PolicyKind::Sabt => Sharing::Proportional,
            _ => Sharing::None,
        };
        let alone = self.variant == Variant::AtReceiver;
        (!alone && matches!(self.kind.side(), Side::Send | Side::Both))
            .then(|| SendSide { policy: self.build(), sharing })
    }

    /// Returns the policy at the receiver, if there is one.
    pub(crate) fn receiver(self) -> Option<ReceiveSide> {
        let alone = self.is_at_sender();
        (!alone && matches!(self.kind.side(), Side::Receive | Side::Both)).then(|| {
            if self.is_engine() {
                return ReceiveSide::Engine(Box::new(Model::new(&self.engine()).with_room(self.room)));
            }
            ReceiveSide::Policy(self.build())
        })
    }
}

/// How a host shares its send memory.
enum Sharing {
    None,
    Equal,
    Rounds(AbtRounds),
    Proportional,
}

/// A policy at the sender, on a host with neighbours.
pub(crate) struct SendSide {
    policy: Box<dyn Policy + Send>,
    sharing: Sharing,
}

impl SendSide {
    pub(crate) fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        self.policy.observe(sample, now)
    }

    /// Computes the shares of the host's memory again; called twice a second.
    pub(crate) fn share(&mut self) {
        let Some(own) = self.policy.demand() else { return };
        let demands = [&[own][..], &[NEIGHBOUR_DEMAND; NEIGHBOURS]].concat();
        let share = match &mut self.sharing {
            Sharing::None => Share::Unlimited,
            Sharing::Equal => share::equal(demands.len(), SEND_MEMORY),
            Sharing::Rounds(rounds) => rounds.round(demands),
            Sharing::Proportional => share::proportional(&demands, SEND_MEMORY),
        };
        self.policy.set_limit(share.limit(own));
    }
}
