//! Linux's own autotuning, as the thing to beat.
//!
//! Problem: every comparison needs to know what the kernel would have done. In a live measurement it is
//! simply left alone ([`Untouched`]); in virtual time it is modelled ([`KernelModel`]).
//! Source: Linux 6.x, `tcp_sndbuf_expand` and `tcp_rcv_space_adjust` (`net/ipv4/tcp_input.c`), retold.
//! Terms: *memory* counts what the kernel charges a socket for, *payload* what the application sees of it.
//!
//! - Send: `memory = ratio * max(10, cwnd, reordering + 1) * per_mss`, `ratio` 2 (3 under BBR) and `per_mss` a
//!   segment in the worst case, alone in a power-of-two buffer. Grown to at each observation, up to
//!   `tcp_wmem[2]`.
//! - Receive: once per receiver round trip, `copied` bytes having reached the application in it. If that is a
//!   new largest: `window = 2 * copied + 16 * mss`, plus twice its relative growth over the last largest,
//!   as the sender may be in slow start. Turned into memory, up to `tcp_rmem[2]`.
//!
//! Left out: memory pressure, out-of-order data, and that a filled window is not expanded further within the
//! same round trip; none of these lets the kernel do better than the model.
//! Keeps: neither buffer ever shrinks, neither exceeds its maximum.

use crate::policy::Policy;
use bufwise_units::{Bytes, Decision, Micros, Sample};

/// `TCP_INIT_CWND`.
const INITIAL_SEGMENTS: u64 = 10;
/// `tcp_reordering`, and one.
const REORDERED_SEGMENTS: u64 = 3 + 1;
/// Headers and bookkeeping beside a segment's payload: `MAX_TCP_HEADER` and `skb_shared_info`.
const SEGMENT_OVERHEAD: u64 = 320 + 320;
/// `struct sk_buff`.
const DESCRIPTOR: u64 = 256;
/// Segments added to a receive window for the sender's growth.
const RECEIVE_CUSHION: u64 = 16;

/// The host's settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
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

impl Default for Config {
    /// What a distribution comes with.
    fn default() -> Self {
        Self {
            wmem_max: Bytes(4 << 20),
            rmem_default: Bytes(128 << 10),
            rmem_max: Bytes(6 << 20),
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

/// What the kernel would have done with one connection.
///
/// Reads `cwnd`, `mss`, `bytes_received`, `rcv_rtt`.
#[derive(Clone, Debug)]
pub struct KernelModel {
    config: Config,
    /// `sk_sndbuf`.
    send_memory: Bytes,
    /// `sk_rcvbuf`.
    receive_memory: Bytes,
    /// `rcvq_space`: most that was copied in a round trip; begin of this one and what had arrived by then.
    most_copied: Bytes,
    began: Option<(Micros, Bytes)>,
}

impl KernelModel {
    /// A connection that has just been established.
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self {
            config,
            send_memory: Bytes::ZERO,
            receive_memory: config.rmem_default.min(config.rmem_max),
            most_copied: Bytes::ZERO,
            began: None,
        }
    }

    /// `sk_sndbuf`.
    #[must_use]
    pub fn send_memory(&self) -> Bytes {
        self.send_memory
    }

    /// `sk_rcvbuf`.
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

    fn adjust_receive(&mut self, received: Bytes, rtt: Micros, mss: Bytes, now: Micros) {
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
        if copied <= self.most_copied {
            return;
        }
        let window = copied.times(2) + mss.times(RECEIVE_CUSHION);
        let growth = window.scaled((copied - self.most_copied).0, self.most_copied.0);
        self.most_copied = copied;
        let (payload, memory) = self.config.receive_payload;
        let wanted = (window + growth.times(2)).scaled(memory, payload);
        self.receive_memory = self.receive_memory.max(wanted.min(self.config.rmem_max));
    }
}

impl Policy for KernelModel {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        let mss = sample.mss_or_default();
        self.expand_send(sample.cwnd, mss);
        self.adjust_receive(sample.bytes_received, sample.rcv_rtt, mss, now);
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

    #[test]
    fn a_new_socket_has_the_familiar_87040_bytes() {
        let mut kernel = KernelModel::new(Config::default());
        kernel.observe(&Sample { mss: Bytes(1_448), ..Sample::default() }, Micros::ZERO);
        assert_eq!(kernel.send_memory(), Bytes(87_040));
        assert_eq!(kernel.receive_memory(), Bytes(131_072));
    }

    #[test]
    fn the_send_buffer_holds_two_windows_of_worst_case_segments() {
        let mut kernel = KernelModel::new(Config::default());
        kernel.observe(&Sample { cwnd: Bytes(144_800), ..Sample::default() }, Micros::ZERO);
        assert_eq!(kernel.send_memory(), Bytes(2 * 100 * 4_352));
        kernel.observe(&Sample { cwnd: Bytes(14_480), ..Sample::default() }, Micros::ZERO);
        assert_eq!(kernel.send_memory(), Bytes(2 * 100 * 4_352), "never shrinks");
    }

    #[test]
    fn the_receive_window_allows_for_a_doubling_sender() {
        let mut kernel = KernelModel::new(Config::default());
        let rtt = Micros::from_millis(100);
        let sample = |bytes| Sample { bytes_received: Bytes(bytes), rcv_rtt: rtt, ..Sample::default() };
        kernel.observe(&sample(0), Micros::ZERO);
        kernel.observe(&sample(144_800), rtt);
        // 2 * 144,800 + 16 * 1,448 = 312,768; growth from 14,480: nine times, doubled: 19 in all, then 3/2.
        assert_eq!(kernel.receive_memory(), Bytes(312_768 * 19 * 3 / 2).min(Config::default().rmem_max));
        kernel.observe(&sample(144_800 + 144_800), rtt.times(2));
        assert_eq!(kernel.receive_memory(), Config::default().rmem_max);
    }

    #[test]
    fn the_policy_kernel_touches_nothing() {
        let busy = Sample { cwnd: Bytes(1 << 30), bytes_received: Bytes(1 << 30), ..Sample::default() };
        assert_eq!(Untouched.observe(&busy, Micros::from_secs(1)), Decision::NONE);
    }

    proptest! {
        #[test]
        fn buffers_never_shrink_and_never_exceed_their_maximum(
            steps in proptest::collection::vec((any::<u64>(), 0_u64..1 << 40, 0_u64..200_000, any::<u16>()), 1..50),
        ) {
            let config = Config::default();
            let mut kernel = KernelModel::new(config);
            let (mut send, mut receive, mut received) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
            for (second, (cwnd, bytes, rtt, mss)) in steps.into_iter().enumerate() {
                received += Bytes(bytes);
                let sample = Sample {
                    cwnd: Bytes(cwnd), bytes_received: received, rcv_rtt: Micros(rtt),
                    mss: Bytes(u64::from(mss)), ..Sample::default()
                };
                kernel.observe(&sample, Micros::from_secs(second as u64));
                prop_assert!(kernel.send_memory() >= send && kernel.send_memory() <= config.wmem_max);
                prop_assert!(kernel.receive_memory() >= receive && kernel.receive_memory() <= config.rmem_max);
                (send, receive) = (kernel.send_memory(), kernel.receive_memory());
            }
        }
    }
}
