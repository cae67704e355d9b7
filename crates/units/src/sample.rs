//! One look at one connection: what a policy sees of it.

use crate::quantity::{Bytes, Micros, Rate};

/// One look at one connection, both directions, as `TCP_INFO`, the probes and the application show it.
///
/// Counters are cumulative since the connection began. A field that its source cannot fill stays at its
/// default; the comment says what that means to a policy.
///
/// ```
/// use bufwise_units::{Bytes, Sample};
///
/// // A sender with nothing to send and a send buffer that is all but empty: its application sets the pace.
/// let sample = Sample { app_limited: true, sndbuf: Bytes(87_040), send_queued: Bytes(512), ..Sample::default() };
/// assert!(sample.application_limits());
/// // The kernel says the same of a full buffer; there the buffer sets the pace.
/// assert!(!Sample { send_queued: Bytes(87_000), ..sample }.application_limits());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Payload of a full segment (`tcpi_snd_mss`, or `tcpi_rcv_mss` on a pure receiver); 0: unknown, 1,448 is taken.
    pub mss: Bytes,

    // Sending side.
    /// Congestion window: `snd_cwnd * mss`.
    pub cwnd: Bytes,
    /// Slow-start threshold in bytes; [`Bytes::MAX`] while the first slow start lasts.
    pub ssthresh: Bytes,
    /// Smoothed round-trip time at the sender; 0: not measured.
    pub srtt: Micros,
    /// Smallest round-trip time seen at the sender; 0: not measured.
    pub min_rtt: Micros,
    /// Retransmission time-out; 0: not measured.
    pub rto: Micros,
    /// Data segments sent, retransmissions included (`tcpi_data_segs_out`).
    pub segs_out: u64,
    /// Segments retransmitted (`tcpi_total_retrans`): the sender's count of losses.
    pub segs_lost: u64,
    /// Round trips with losses (RFC 5348, section 5.2); `None`: the source does not count them.
    pub loss_events: Option<u64>,
    /// The sender's response to a loss.
    pub congestion_control: CongestionControl,
    /// Bytes acknowledged (`tcpi_bytes_acked`).
    pub bytes_acked: Bytes,
    /// Segments delivered since the connection began, those acknowledged selectively included.
    pub segs_delivered: u64,
    /// The kernel's delivery-rate estimate; 0: none yet.
    pub delivery_rate: Rate,
    /// The sender ran out of unsent data while this was measured (`tcpi_delivery_rate_app_limited`). The kernel
    /// sets it too when the send buffer was what ended them: see [`Sample::application_limits`].
    pub app_limited: bool,
    /// Limit of the send buffer (`sk_sndbuf`: memory, not payload).
    pub sndbuf: Bytes,
    /// Memory that queued send data holds (`sk_wmem_queued`).
    pub send_queued: Bytes,

    // Receiving side.
    /// Payload received in order (`tcpi_bytes_received`).
    pub bytes_received: Bytes,
    /// The receiver's own estimate of the round-trip time (`tcpi_rcv_rtt`); 0: none yet.
    pub rcv_rtt: Micros,
    /// Limit of the receive buffer (`sk_rcvbuf`: memory, not payload).
    pub rcvbuf: Bytes,
    /// Memory that received data holds until it is read (`sk_rmem_alloc`); 0: nothing, or the source does not tell.
    pub receive_queued: Bytes,
    /// Window that is advertised now.
    pub rcv_wnd: Bytes,
    /// Data segments that arrived, in order or not (`tcpi_data_segs_in`); 0: the source does not count them.
    pub segs_in: u64,
    /// Segments that arrived out of order (`tcpi_rcv_ooopack`): the receiver's hint of losses.
    pub rcv_out_of_order: u64,

    // Values that only an application on the receiving side knows.
    /// Bytes the last read from the socket returned (drsFTP); 0: no read since the last sample.
    pub read_size: Bytes,
    /// Running average of the probes' round-trip time (SOBAS); 0: no probes.
    pub probe_rtt: Micros,
    /// Probes lost among the last 100 (SOBAS).
    pub probes_lost: u32,
    /// Path capacity from the packet trains (SOBAS); 0: not estimated.
    pub capacity: Rate,
}

/// The congestion control of a sender, as far as its mean window under random loss depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CongestionControl {
    /// Reno and NewReno: half of the window at a loss, a segment more per round trip (RFC 5681).
    #[default]
    Reno,
    /// CUBIC (RFC 9438), Linux's default.
    Cubic,
    /// Any other one, or one that does not go by losses (BBR): only its own window tells what it uses.
    Other,
}

impl Sample {
    /// Payload of a full segment, with Ethernet's usual 1,448 when the source did not say.
    #[must_use]
    pub fn mss_or_default(&self) -> Bytes {
        if self.mss == Bytes::ZERO { Bytes(1_448) } else { self.mss }
    }

    /// Whether the application, and not the send buffer, left the sender without data.
    ///
    /// `tcp_rate_check_app_limited` asks only whether anything unsent is queued; with a full buffer nothing is,
    /// however much the application has. A buffer limits if more than half of it is used: Linux wakes a blocked
    /// writer when two thirds are (`sk_stream_is_writeable`), so between 2/3 and all of it is used then, less what
    /// a look sees acknowledged and not yet refilled. An unknown `sndbuf` (0): the kernel's word.
    #[must_use]
    pub fn application_limits(&self) -> bool {
        self.app_limited && (self.sndbuf == Bytes::ZERO || self.send_queued.times(2) < self.sndbuf)
    }
}
