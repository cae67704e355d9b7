//! The state of one connection at one moment, as a policy sees it.

use crate::quantity::{Bytes, Micros, Rate};

/// One sample of one connection, both directions, from `TCP_INFO`, the probes and the application.
///
/// Counters are cumulative since the connection began. A field that its source cannot fill keeps its default; the
/// field's comment says what the default means to a policy.
///
/// ```
/// use bufwise_units::{Bytes, Sample};
///
/// // The sender has nothing to send and its send buffer is nearly empty: the application sets the pace.
/// let sample = Sample { app_limited: true, sndbuf: Bytes(87_040), send_queued: Bytes(512), ..Sample::default() };
/// assert!(sample.application_limits());
/// // With a full buffer the kernel sets the same flag, but the buffer sets the pace.
/// assert!(!Sample { send_queued: Bytes(87_000), ..sample }.application_limits());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// Payload of a full segment (`tcpi_snd_mss`, or `tcpi_rcv_mss` on a pure receiver); 0: unknown, 1,448 is
    /// assumed.
    pub mss: Bytes,

    // Sending side.
    /// Congestion window in payload bytes: `snd_cwnd * mss`; 0: unknown.
    pub cwnd: Bytes,
    /// Slow-start threshold in payload bytes; [`Bytes::MAX`] while the first slow start lasts; 0: unknown.
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
    /// TCP itself paces, whatever the congestion control is (`sk_pacing_status`): after the first flight nothing leaves
    /// as a burst. `false`: it does not, or the source does not know.
    pub paced: bool,
    /// Bytes acknowledged (`tcpi_bytes_acked`).
    pub bytes_acked: Bytes,
    /// Segments delivered since the connection began, those acknowledged selectively included.
    pub segs_delivered: u64,
    /// The kernel's delivery-rate estimate; 0: none yet.
    pub delivery_rate: Rate,
    /// The sender ran out of unsent data during the delivery-rate sample (`tcpi_delivery_rate_app_limited`). The
    /// kernel also sets this when a full send buffer was the reason: see [`Sample::application_limits`].
    pub app_limited: bool,
    /// Limit of the send buffer (`sk_sndbuf`: memory, not payload); 0: unknown.
    pub sndbuf: Bytes,
    /// Memory that queued send data holds (`sk_wmem_queued`); 0: none, or the source does not report it.
    pub send_queued: Bytes,

    // Receiving side.
    /// Payload received in order (`tcpi_bytes_received`).
    pub bytes_received: Bytes,
    /// The receiver's own estimate of the round-trip time (`tcpi_rcv_rtt`); 0: none yet.
    pub rcv_rtt: Micros,
    /// Limit of the receive buffer (`sk_rcvbuf`: memory, not payload); 0: unknown.
    pub rcvbuf: Bytes,
    /// Memory that received data holds until it is read (`sk_rmem_alloc`); 0: none, or the source does not report it.
    pub receive_queued: Bytes,
    /// Window that is advertised now, in payload bytes; 0: none, or the source does not report it.
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
    /// Reno and NewReno: halves the window at a loss, adds one segment per round trip (RFC 5681).
    #[default]
    Reno,
    /// CUBIC (RFC 9438), Linux's default.
    Cubic,
    /// Any other, or one that does not respond to losses (BBR): only its measured window shows its use of the path.
    Other,
}

impl Sample {
    /// Returns the payload of a full segment; 1,448 bytes, usual on Ethernet, if the source did not report it.
    #[must_use]
    pub fn mss_or_default(&self) -> Bytes {
        if self.mss == Bytes::ZERO { Bytes(1_448) } else { self.mss }
    }

    /// Returns whether the application, and not the send buffer, left the sender without data.
    ///
    /// `tcp_rate_check_app_limited` tests only whether unsent data is queued. With a full buffer none is queued,
    /// however much the application has to send. The buffer counts as the limit if at least half of it is in use:
    /// Linux wakes a blocked writer when the use falls to two thirds (`sk_stream_is_writeable`), so a buffer that
    /// limits is between 2/3 and completely full, less the bytes acknowledged and not yet refilled. If `sndbuf` is
    /// unknown (0), the kernel's flag decides.
    #[must_use]
    pub fn application_limits(&self) -> bool {
        self.app_limited && (self.sndbuf == Bytes::ZERO || self.send_queued.times(2) < self.sndbuf)
    }
}
