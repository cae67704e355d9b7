//! Configuration of the programs, set when they are loaded: the rules, their bounds, and what is left alone.

use bufwise_units::{Bytes, Micros};

use crate::abi::bw_config;

/// The rule that sizes send buffers; numbered as in `send.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SendRule {
    /// The kernel's own autotuning.
    #[default]
    Kernel,
    /// The same size for all.
    Fixed,
    /// The same share for all.
    Eq,
    /// A target that follows cwnd.
    Abt,
    /// A target computed by user space ([`crate::Order::demand`]).
    Sabt,
    /// As [`SendRule::Abt`], with a roof over the rate (`fit.h`).
    Fit,
}

/// The rule that sizes receive windows; numbered as in `drs.h`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReceiveRule {
    /// The kernel's own autotuning.
    #[default]
    Kernel,
    /// The same size for all.
    Fixed,
    /// Twice the data that arrives in a round trip.
    Drs,
    /// As DRS until the path is full, then the data that the path holds.
    Sobas,
    /// The window that the path carries, opened smoothly (`fit_window.h`).
    Fit,
}

/// Settings that are fixed when the programs are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Rule of the send side.
    pub send: SendRule,
    /// Rule of the receive side.
    pub receive: ReceiveRule,
    /// Whether [`SendRule::Abt`] and [`SendRule::Sabt`] follow their papers exactly: the target follows cwnd, used or
    /// not, and only `SO_SNDBUF` keeps the share: no bound by the path, no pacing, no room for the buffer that a
    /// writer fills last.
    pub published: bool,
    /// Payload of the buffers under the fixed rules, bytes.
    pub fixed: Bytes,
    /// Largest payload of a send buffer, bytes.
    pub max_send: Bytes,
    /// Largest receive window, payload bytes.
    pub max_window: Bytes,
    /// `net.core.wmem_max`: the largest size that the programs can set with `SO_SNDBUF`; larger sizes are requested
    /// of user space.
    pub send_cap: Bytes,
    /// `net.core.rmem_max`: the same bound for `SO_RCVBUF`.
    pub receive_cap: Bytes,
    /// Largest send buffer of the kernel's own autotuning (memory): the maximum of `tcp_wmem` before it was raised.
    /// Send buffers may hold this much if a tighter bound costs rate.
    pub autotuning_send_max: Bytes,
    /// Bound of the bytes that any connection may have written and not sent (`tcp_notsent_lowat`); all ones: no
    /// bound.
    pub default_notsent_lowat: u32,
    /// Whether to size buffers that applications have set.
    pub take_over: bool,
    /// Whether to decide without setting anything: [`crate::FlowState::decided_send`] and
    /// [`crate::FlowState::decided_window`] show the decisions.
    pub observe_only: bool,
    /// Size (payload) up to which a document counts as small: it is sent in one round trip and takes no part in the
    /// shares (Matsuo, section 2.2.2); zero: none. At most 64 segments become the initial window.
    pub small_document: Bytes,
    /// Most connections at a time; the kernel sizes further ones.
    pub max_flows: u32,
    /// Time without [`crate::Engine::heartbeat`] after which the programs go by cwnd alone.
    pub stale: Micros,
    /// Time of silence after which the next [`crate::Engine::sweep`] gives a connection's buffers back.
    pub idle: Micros,
    /// Payload of the buffers that a silent connection keeps.
    pub idle_size: Bytes,
    /// Payload, written (acknowledged or not) or received, at which a new connection gets its record
    /// ([`Config::SHORT_CONNECTION`]); zero: each gets it when it is established. Records are made late only once the kernel's
    /// iterator has swept ([`crate::Engine::note_all_swept`]), or after [`crate::Engine::expect_only_new`]. A
    /// connection whose share is less than its buffers gets its record at once. Not for rules with a fixed size.
    pub record_after: Bytes,
    /// Payload of a received segment at which a connection gets its record, however little it moves:
    /// [`Config::FULL_SEGMENT`] where the receive rule times the segments of the first flight (`Fit`); zero: no
    /// segment makes a record due.
    pub record_at_segment: Bytes,
    /// Whether callbacks with data return at once, so that nothing is tuned: to measure the cost of an empty call.
    pub only_called: bool,
}

impl Config {
    /// A connection that has moved less than this needs no record: no buffer or window that the kernel gives at first
    /// is smaller than its first two flights (`bpf/late.h`).
    pub const SHORT_CONNECTION: Bytes = Bytes(16 << 10);
    /// Less than a full segment of IPv4 or IPv6 has: most requests are shorter.
    pub const FULL_SEGMENT: Bytes = Bytes(1_200);
    /// Default of [`Config::idle`]: 2 s.
    pub const IDLE: Micros = Micros(2_000_000);
    /// Default of [`Config::idle_size`]: the payload of Linux's initial receive buffer (`tcp_rmem`).
    pub const IDLE_SIZE: Bytes = Bytes(65_536);
    /// Default of [`Config::autotuning_send_max`]: Linux's own on hosts with 512 MB of memory or more (`tcp_init()`).
    pub const AUTOTUNING_SEND_MAX: Bytes = Bytes(4 << 20);

    /// Returns the kernel memory that the records of this many connections take once all exist: a record of 2 KiB, an
    /// order (SABT) of 96 bytes, and the fast path's figures in the socket's storage, 256 bytes; and, from the start,
    /// two hash tables of 16 bytes per connection.
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
            autotuning_send_max: Self::AUTOTUNING_SEND_MAX,
            default_notsent_lowat: u32::MAX,
            take_over: false,
            observe_only: false,
            small_document: Bytes::ZERO,
            max_flows: 65_536,
            stale: Micros(5_000_000),
            idle: Self::IDLE,
            idle_size: Self::IDLE_SIZE,
            record_after: Bytes::ZERO,
            record_at_segment: Bytes::ZERO,
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
            usual_send: config.autotuning_send_max.0,
            usual_unsent: config.default_notsent_lowat,
            published: config.published.into(),
            take_over: config.take_over.into(),
            observe_only: config.observe_only.into(),
            only_called: config.only_called.into(),
            small_document: word(config.small_document),
            idle_size: word(config.idle_size),
            stale_ns: config.stale.0.saturating_mul(1_000),
            idle: config.idle.0,
            record_after: config.record_after.0,
            record_at_segment: config.record_at_segment.0,
        }
    }
}
