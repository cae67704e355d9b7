//! Linux's own autotuning, the baseline to compare with.
//!
//! Problem: every comparison needs to know how the kernel would have sized the buffers. In a live measurement the
//! kernel is left alone ([`Untouched`]); in virtual time its rules are modelled ([`KernelModel`]).
//! Source: Linux, `tcp_sndbuf_expand`, `tcp_rcv_space_adjust` and `tcp_rcvbuf_grow` (`net/ipv4/tcp_input.c`),
//! paraphrased. The table names commits by their first twelve digits.
//! Terms: *memory* counts what the kernel charges a socket for, *payload* the bytes of it that the application sees.
//!
//! - Send: `memory = ratio * max(10, cwnd, reordering + 1) * per_mss`. `ratio` is 2 (3 under BBR), `per_mss` the memory
//!   of a segment in the worst case, alone in a power-of-two buffer. At each observation the buffer grows to that, up
//!   to `tcp_wmem[2]`.
//! - Receive: once per receiver round trip; `copied` is what reached the application in it. If `copied` is a new
//!   largest (the first value to exceed is an initial window), the buffer grows to hold a window, up to `tcp_rmem[2]`.
//!   The window depends on the [`Version`]:
//!
//! | version | window | `tcp_rmem[2]` |
//! |---|---|---|
//! | before 6.16 | `2 * copied + 16 * mss`, plus twice its growth relative to the last largest | 6 MB |
//! | 6.16, 6.17 | `2 * copied`, plus the bytes that wait out of order (65c5287892e9, 63ad7dfedfae) | 32 MB (572be9bf9d0d) |
//! | from 6.18 | the same, plus twice the growth again (aa251c84636c) | 32 MB |
//!
//! From 6.16 on a segment that comes out of order also grows the buffer at once, before the round trip ends. The bytes
//! that wait are estimated as the segments out of order since data last came in order, which is too few while several
//! holes are repaired.
//!
//! Not modelled: memory pressure, slower growth below 1 ms of round trip (6.19), and that a filled window is not
//! expanded further within the same round trip. With any of these the kernel would do no better than the model.
//! Properties kept: neither buffer ever shrinks, neither exceeds its maximum; below its maximum the receive buffer
//! holds twice the largest `copied` that exceeded an initial window.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// `TCP_INIT_CWND`.
const INITIAL_SEGMENTS: u64 = 10;
/// `tcp_reordering` and one more segment.
const REORDERED_SEGMENTS: u64 = 3 + 1;
/// Headers and bookkeeping beside a segment's payload, in bytes: `MAX_TCP_HEADER` and `skb_shared_info`.
const SEGMENT_OVERHEAD: u64 = 320 + 320;
/// Size of `struct sk_buff`, in bytes.
const DESCRIPTOR: u64 = 256;
/// Segments that kernels before 6.16 add to a receive window.
const RECEIVE_CUSHION: u64 = 16;

/// Kernel versions, as far as their autotuning differs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// Up to 6.15: Debian 12's 6.1 and 13's 6.12.
    Before6_16,
    /// 6.16 and 6.17.
    From6_16,
    /// 6.18 and newer.
    From6_18,
}

impl Version {
    /// Returns `tcp_rmem[2]` as the kernel sets it on a host with enough memory.
    const fn rmem_max(self) -> Bytes {
        match self {
            Self::Before6_16 => Bytes(6 << 20),
            Self::From6_16 | Self::From6_18 => Bytes(32 << 20),
        }
    }

    /// Returns the constant part of a receive window, in bytes, which is added to twice the bytes of a round trip.
    const fn cushion(self, mss: Bytes) -> Bytes {
        match self {
            Self::Before6_16 => mss.times(RECEIVE_CUSHION),
            Self::From6_16 | Self::From6_18 => Bytes::ZERO,
        }
    }

    /// Whether the window has extra room in proportion to the growth of `copied`.
    const fn foresees_growth(self) -> bool {
        matches!(self, Self::Before6_16 | Self::From6_18)
    }

    /// Whether the window has extra room for the bytes that wait behind a hole.
    const fn counts_out_of_order(self) -> bool {
        matches!(self, Self::From6_16 | Self::From6_18)
    }
}

/// Settings of the host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The kernel whose rule sizes the receive buffer.
    pub version: Version,
    /// `tcp_wmem[2]`.
    pub wmem_max: Bytes,
    /// `tcp_rmem[1]`.
    pub rmem_default: Bytes,
    /// `tcp_rmem[2]`.
    pub rmem_max: Bytes,
    /// Windows that a send buffer holds: 2, under BBR 3.
    pub send_ratio: u64,
    /// Payload over memory of a send buffer; measured on 6.18: 0.8.
    pub send_payload: (u64, u64),
    /// Payload over memory of a receive buffer; measured on 6.18: 0.66.
    pub receive_payload: (u64, u64),
}

impl Config {
    /// Returns a distribution's default settings under this kernel.
    #[must_use]
    pub const fn of(version: Version) -> Self {
        Self {
            version,
            wmem_max: Bytes(4 << 20),
            rmem_default: Bytes(128 << 10),
            rmem_max: version.rmem_max(),
            send_ratio: 2,
            send_payload: (4, 5),
            receive_payload: (2, 3),
        }
    }
}

/// The policy `kernel`: touches nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Untouched;

impl Policy for Untouched {
    fn observe(&mut self, _sample: &Sample, _now: Micros) -> Decision {
        Decision::NONE
    }
}

/// The buffers that the kernel would have given one connection.
///
/// Reads `cwnd`, `mss`, `bytes_received`, `rcv_rtt`, `rcv_out_of_order`.
///
/// ```
/// use bufwise_policy::kernel::{Config, KernelModel, Version};
/// use bufwise_policy::Policy;
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut kernel = KernelModel::new(Config::of(Version::From6_18));
/// let sample = |cwnd| Sample { mss: Bytes(1_448), cwnd: Bytes(cwnd), ..Sample::default() };
/// kernel.observe(&sample(144_800), Micros::ZERO);
/// // Two windows of 100 segments, each alone in 4 KB and a descriptor.
/// assert_eq!(kernel.send_memory(), Bytes(200 * (4_096 + 256)));
/// kernel.observe(&sample(1 << 30), Micros::from_secs(1));
/// assert_eq!(kernel.send_memory(), Bytes(4 << 20), "the maximum of tcp_wmem");
/// ```
#[derive(Clone, Debug)]
pub struct KernelModel {
    config: Config,
    /// `sk_sndbuf`.
    send_memory: Bytes,
    /// `sk_rcvbuf`.
    receive_memory: Bytes,
    /// `rcvq_space`: largest `copied` of a round trip; start of the present one and the bytes received by then.
    most_copied: Bytes,
    began: Option<(Micros, Bytes)>,
    /// Bytes in order, and the segments out of order when that number last changed.
    in_order: (Bytes, u64),
}

impl KernelModel {
    /// Returns the state of a connection that has just been established.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            send_memory: Bytes::ZERO,
            receive_memory: config.rmem_default.min(config.rmem_max),
            most_copied: Bytes::ZERO,
            began: None,
            in_order: (Bytes::ZERO, 0),
        }
    }

    /// Returns `sk_sndbuf`, in bytes of memory.
    #[must_use]
    pub fn send_memory(&self) -> Bytes {
        self.send_memory
    }

    /// Returns `sk_rcvbuf`, in bytes of memory.
    #[must_use]
    pub fn receive_memory(&self) -> Bytes {
        self.receive_memory
    }

    fn expand_send(&mut self, cwnd: Bytes, mss: Bytes) {
        let head = mss.0.saturating_add(SEGMENT_OVERHEAD).checked_next_power_of_two();
        let per_segment = Bytes(head.unwrap_or(u64::MAX)) + Bytes(DESCRIPTOR);
        let segments = cwnd.0.div_ceil(mss.0.max(1)).max(INITIAL_SEGMENTS).max(REORDERED_SEGMENTS);
        let wanted = per_segment.times(segments).times(self.config.send_ratio);
        self.send_memory = self.send_memory.max(wanted.min(self.config.wmem_max));
    }

    /// Adjusts the receive buffer once per round trip, as `tcp_rcv_space_adjust` does.
    fn adjust_receive(&mut self, sample: &Sample, mss: Bytes, now: Micros) {
        let (received, rtt) = (sample.bytes_received, sample.rcv_rtt);
        let Some((began, before)) = self.began else {
            self.began = Some((now, received));
            self.most_copied = mss.times(INITIAL_SEGMENTS);
            return;
        };
        if rtt == Micros::ZERO || now.since(began) < rtt {
            return;
        }
        self.began = Some((now, received));
        let copied = received - before;
        if copied > self.most_copied {
            self.grow_receive(copied, Bytes::ZERO, mss);
        }
    }

    /// Makes room in the buffer for data behind a hole, as `tcp_data_queue_ofo` does.
    fn take_out_of_order(&mut self, sample: &Sample, mss: Bytes) {
        let (in_order, by_then) = self.in_order;
        if sample.bytes_received != in_order {
            self.in_order = (sample.bytes_received, sample.rcv_out_of_order);
        } else if sample.rcv_out_of_order > by_then && self.config.version.counts_out_of_order() {
            let waiting = mss.times(sample.rcv_out_of_order - by_then);
            self.grow_receive(self.most_copied, waiting, mss);
        }
    }

    /// Grows the buffer as `tcp_rcvbuf_grow` does; `copied` is the largest of a round trip from now on.
    fn grow_receive(&mut self, copied: Bytes, out_of_order: Bytes, mss: Bytes) {
        let version = self.config.version;
        let before = std::mem::replace(&mut self.most_copied, copied);
        let window = copied.times(2) + version.cushion(mss);
        let growth = if version.foresees_growth() {
            window.scaled((copied - before).0, before.0).times(2)
        } else {
            Bytes::ZERO
        };
        let (payload, memory) = self.config.receive_payload;
        let wanted = (window + growth + out_of_order).scaled(memory, payload);
        self.receive_memory = self.receive_memory.max(wanted.min(self.config.rmem_max));
    }
}

impl Policy for KernelModel {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        let mss = sample.mss_or_default();
        self.expand_send(sample.cwnd, mss);
        self.adjust_receive(sample, mss, now);
        self.take_out_of_order(sample, mss);
        let payload = |memory: Bytes, (part, of): (u64, u64)| Some(memory.scaled(part, of));
        Decision {
            send_buffer: payload(self.send_memory, self.config.send_payload),
            receive_window: payload(self.receive_memory, self.config.receive_payload),
            pacing: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const OLD: Version = Version::Before6_16;
    const ALL: [Version; 3] = [OLD, Version::From6_16, Version::From6_18];

    #[test]
    fn a_new_socket_has_the_familiar_87040_bytes() {
        let mut kernel = KernelModel::new(Config::of(OLD));
        kernel.observe(&Sample { mss: Bytes(1_448), ..Sample::default() }, Micros::ZERO);
        assert_eq!(kernel.send_memory(), Bytes(87_040));
        assert_eq!(kernel.receive_memory(), Bytes(131_072));
    }

    #[test]
    fn the_send_buffer_holds_two_windows_of_worst_case_segments() {
        let mut kernel = KernelModel::new(Config::of(OLD));
        kernel.observe(&Sample { cwnd: Bytes(144_800), ..Sample::default() }, Micros::ZERO);
        assert_eq!(kernel.send_memory(), Bytes(2 * 100 * 4_352));
        kernel.observe(&Sample { cwnd: Bytes(14_480), ..Sample::default() }, Micros::ZERO);
        assert_eq!(kernel.send_memory(), Bytes(2 * 100 * 4_352), "never shrinks");
    }

    #[test]
    fn the_receive_window_allows_for_a_doubling_sender() {
        let mut kernel = KernelModel::new(Config::of(OLD));
        let rtt = Micros::from_millis(100);
        let sample = |bytes| Sample { bytes_received: Bytes(bytes), rcv_rtt: rtt, ..Sample::default() };
        kernel.observe(&sample(0), Micros::ZERO);
        kernel.observe(&sample(144_800), rtt);
        // 2 * 144,800 + 16 * 1,448 = 312,768; growth from 14,480: nine times, doubled: 19 in all, then 3/2.
        assert_eq!(kernel.receive_memory(), Bytes(312_768 * 19 * 3 / 2).min(Config::of(OLD).rmem_max));
        kernel.observe(&sample(144_800 + 144_800), rtt.times(2));
        assert_eq!(kernel.receive_memory(), Config::of(OLD).rmem_max);
    }

    /// Receive memory after `rounds` of so many bytes each, one per round trip.
    fn after(version: Version, rounds: &[u64]) -> Bytes {
        let rtt = Micros::from_millis(100);
        let mut kernel = KernelModel::new(Config::of(version));
        let (mut received, mut now) = (0, Micros::ZERO);
        for bytes in [0].iter().chain(rounds) {
            received += bytes;
            kernel
                .observe(&Sample { bytes_received: Bytes(received), rcv_rtt: rtt, ..Sample::default() }, now);
            now += rtt;
        }
        kernel.receive_memory()
    }

    #[test]
    fn each_version_has_its_own_window() {
        // 144,800 after an initial window of 14,480, and again 10% more.
        let rounds = [144_800, 159_280];
        assert_eq!(after(OLD, &rounds[..1]), Bytes(6 << 20), "312,768 and 18 times as much for the growth");
        assert_eq!(after(Version::From6_16, &rounds), Bytes(2 * 159_280 * 3 / 2));
        assert_eq!(after(Version::From6_18, &rounds[..1]), Bytes(289_600 * 19 * 3 / 2));
        assert_eq!(Config::of(Version::From6_18).rmem_max, Bytes(32 << 20));
    }

    #[test]
    fn from_6_16_on_bytes_behind_a_hole_have_room_of_their_own() {
        let memory = |version| {
            let mut kernel = KernelModel::new(Config::of(version));
            let mut sample = Sample { bytes_received: Bytes(1), ..Sample::default() };
            kernel.observe(&sample, Micros::ZERO);
            sample.rcv_out_of_order = 100;
            kernel.observe(&sample, Micros(1));
            let held = kernel.receive_memory();
            // The hole is filled: what was out of order is no longer.
            sample.bytes_received += Bytes(145_000);
            kernel.observe(&sample, Micros(2));
            assert_eq!(kernel.receive_memory(), held);
            held
        };
        assert_eq!(memory(OLD), Bytes(131_072));
        for version in [Version::From6_16, Version::From6_18] {
            // Twice the initial window, and 100 segments.
            assert_eq!(memory(version), Bytes((2 * 14_480 + 144_800) * 3 / 2));
        }
    }

    #[test]
    fn the_policy_kernel_touches_nothing() {
        let busy = Sample { cwnd: Bytes(1 << 30), bytes_received: Bytes(1 << 30), ..Sample::default() };
        assert_eq!(Untouched.observe(&busy, Micros::from_secs(1)), Decision::NONE);
    }

    proptest! {
        #[test]
        fn buffers_never_shrink_and_never_exceed_their_maximum(
            steps in proptest::collection::vec(
                (any::<u64>(), prop_oneof![Just(0), 0_u64..1 << 40], 0_u64..200_000, any::<u16>(), any::<u16>()), 1..50,
            ),
            version in proptest::sample::select(&ALL),
        ) {
            let config = Config::of(version);
            let mut kernel = KernelModel::new(config);
            let (mut send, mut receive, mut received) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
            for (second, (cwnd, bytes, rtt, mss, out_of_order)) in steps.into_iter().enumerate() {
                received += Bytes(bytes);
                let sample = Sample {
                    cwnd: Bytes(cwnd), bytes_received: received, rcv_rtt: Micros(rtt),
                    mss: Bytes(u64::from(mss)), rcv_out_of_order: u64::from(out_of_order), ..Sample::default()
                };
                kernel.observe(&sample, Micros::from_secs(second as u64));
                prop_assert!(kernel.send_memory() >= send && kernel.send_memory() <= config.wmem_max);
                prop_assert!(kernel.receive_memory() >= receive && kernel.receive_memory() <= config.rmem_max);
                (send, receive) = (kernel.send_memory(), kernel.receive_memory());
            }
        }

        #[test]
        fn the_window_is_twice_the_most_of_a_round_trip(
            rounds in proptest::collection::vec(0_u64..8 << 20, 1..30), version in proptest::sample::select(&ALL),
        ) {
            let config = Config::of(version);
            let memory = after(version, &rounds);
            let most = Bytes(rounds.iter().copied().max().unwrap_or(0));
            prop_assert!(most <= Bytes(14_480) || memory >= most.times(3).min(config.rmem_max), "{} for {}", memory, most);
            // Without the term for growth the memory is no more than that.
            let steady = after(version, &[14_480; 20]);
            prop_assert_eq!(steady, config.rmem_default);
            prop_assert!(
                version != Version::From6_16 || memory <= most.times(3).max(config.rmem_default),
                "{} for {}", memory, most
            );
        }
    }
}
