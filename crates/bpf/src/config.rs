//! Configuration of the programs, set when they are loaded: the rules, their bounds, and what is left alone.

use bufwise_units::{Bytes, Micros};

use crate::abi::bw_config;

/// Which rule sizes send buffers; numbered as in `send.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendRule {
    /// The kernel's own autotuning.
    #[default]
    Kernel,
    /// The same size for all.
    Fixed,
    /// The same share for all.
    Eq,
    /// From cwnd.
    Abt,
    /// From the demand that user space computes ([`crate::Order::demand`]).
    Sabt,
    /// As [`SendRule::Abt`], with a roof over the rate (`fit.h`).
    Fit,
}

/// Which rule sizes receive windows; numbered as in `drs.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveRule {
    /// The kernel's own autotuning.
    #[default]
    Kernel,
    /// The same size for all.
    Fixed,
    /// Twice what arrives in a round trip.
    Drs,
    /// As DRS until the path is full, then what it holds.
    Sobas,
    /// What the path carries, opened smoothly (`fit_window.h`).
    Fit,
}

/// Settings that are fixed when the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rule of the send side.
    pub send: SendRule,
    /// Rule of the receive side.
    pub receive: ReceiveRule,
    /// [`SendRule::Abt`] and [`SendRule::Sabt`] as their papers have them: the target follows cwnd, used or not, and nothing
    /// but `SO_SNDBUF` keeps a share: no bound by the path, no pacing, no room for the buffer that a writer fills last.
    pub published: bool,
    /// Payload of the buffers under the fixed rules.
    pub fixed: Bytes,
    /// Largest payload of a send buffer.
    pub max_send: Bytes,
    /// Largest receive window.
    pub max_window: Bytes,
    /// `net.core.wmem_max`: what programs may set with `SO_SNDBUF` themselves; beyond it they make a request.
    pub send_cap: Bytes,
    /// `net.core.rmem_max`, likewise.
    pub receive_cap: Bytes,
    /// Largest send buffer of the kernel's own autotuning (memory): the maximum of `tcp_wmem` before it was raised.
    /// Where a tighter bound costs rate, send buffers may hold as much.
    pub usual_send: Bytes,
    /// Bound of the bytes that any connection may have written and not sent (`tcp_notsent_lowat`); all ones: none.
    pub usual_unsent: u32,
    /// Take buffers that applications have set.
    pub take_over: bool,
    /// Decide and set nothing: [`crate::FlowState::decided_send`] and [`crate::FlowState::decided_window`] tell what would be.
    pub observe_only: bool,
    /// A document up to this size (payload) goes out in one round trip and takes no part in the shares (Matsuo,
    /// section 2.2.2); zero: none is small. At most 64 segments become the initial window.
    pub small_document: Bytes,
    /// Most connections at a time; those beyond stay the kernel's.
    pub max_flows: u32,
    /// After so long without [`crate::Engine::beat`] the programs go by cwnd alone.
    pub stale: Micros,
    /// A connection that has been silent for so long has its buffers given back by the next [`crate::Engine::sweep`].
    pub idle: Micros,
    /// Payload of the buffers that it is left with.
    pub idle_size: Bytes,
    /// Callbacks that come with data return at once, so that nothing is tuned: for measuring what a call costs that does
    /// nothing.
    pub only_called: bool,
}

impl Config {
    /// [`Config::idle`] by default.
    pub const IDLE: Micros = Micros(2_000_000);
    /// [`Config::idle_size`] by default: what Linux starts a connection with, on the receive side (`tcp_rmem`).
    pub const IDLE_SIZE: Bytes = Bytes(65_536);
    /// [`Config::usual_send`] by default: Linux's own, with 512 MB of memory or more (`tcp_init()`).
    pub const USUAL_SEND: Bytes = Bytes(4 << 20);

    /// Memory of the kernel that the records of so many connections take once they are there: a record in 2 KiB, an order of its
    /// own (SABT) in 96 bytes, the fast path's figures in the socket's storage in 256; and, from the start, two hash tables of 16
    /// bytes for each.
    #[must_use]
    pub const fn record_memory(connections: u32) -> Bytes {
        const EACH: u64 = 2_048 + 96 + 256;
        const BUCKETS: u64 = 2 * 16;
        let tables = (connections as u64).next_power_of_two() * BUCKETS;
        Bytes(connections as u64 * EACH + tables)
    }
}

impl Default for Config {
    /// Observes and changes nothing.
    fn default() -> Self {
        Self {
            send: SendRule::Kernel,
            receive: ReceiveRule::Kernel,
            published: false,
            fixed: Bytes::ZERO,
            max_send: Bytes(64 << 20),
            max_window: Bytes(64 << 20),
            send_cap: Bytes(212_992),
            receive_cap: Bytes(212_992),
            usual_send: Self::USUAL_SEND,
            usual_unsent: u32::MAX,
            take_over: false,
            observe_only: false,
            small_document: Bytes::ZERO,
            max_flows: 65_536,
            stale: Micros(5_000_000),
            idle: Self::IDLE,
            idle_size: Self::IDLE_SIZE,
            only_called: false,
        }
    }
}

impl From<&Config> for bw_config {
    fn from(config: &Config) -> Self {
        let word = |size: Bytes| u32::try_from(size.0).unwrap_or(u32::MAX).min(i32::MAX.cast_unsigned());
        Self {
            send_rule: config.send as u32,
            receive_rule: config.receive as u32,
            fixed: config.fixed.0,
            max_send: config.max_send.0,
            max_window: config.max_window.0,
            send_cap: word(config.send_cap),
            receive_cap: word(config.receive_cap),
            usual_send: config.usual_send.0,
            usual_unsent: config.usual_unsent,
            published: config.published.into(),
            take_over: config.take_over.into(),
            observe_only: config.observe_only.into(),
            only_called: config.only_called.into(),
            small_document: word(config.small_document),
            idle_size: word(config.idle_size),
            stale_ns: config.stale.0.saturating_mul(1_000),
            idle: config.idle.0,
        }
    }
}
