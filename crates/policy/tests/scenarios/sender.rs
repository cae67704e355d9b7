//! A TCP sender with endless data: slow start, loss recovery with exact selective acknowledgements, time-out, send
//! buffer, peer's window, optional pacing.
//!
//! Sequence numbers count segments; all are full. The path never reorders, so a segment is lost once a segment sent
//! three transmissions later has arrived (the three duplicates of RFC 5681; RACK, RFC 8985, finds lost retransmissions
//! by time). Recovery sends by proportional rate reduction (RFC 6937).

use std::collections::{BTreeSet, VecDeque};

use bufwise_units::{Bytes, CongestionControl, Micros, Nanos, Sample};

use crate::congestion::{Algorithm, Congestion};
use crate::hystart::Seen;
use crate::receiver::Ack;

/// Payload of a segment.
pub(crate) const MSS: u64 = 1_448;
/// Number of duplicates that show a loss.
const DUPLICATES: u64 = 3;
/// Segments that leave at once where TCP paces from the start.
const INITIAL_FLIGHT: u64 = 10;
/// The send buffer until one is set, payload.
const FIRST_BUFFER: Bytes = Bytes(64 << 10);
const MINIMUM_RTO: Nanos = Nanos::from_millis(200);
const INITIAL_RTO: Nanos = Nanos::from_secs(1);
const MAXIMUM_RTO: Nanos = Nanos::from_secs(120);

/// A transmitted segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transmission {
    pub(crate) seq: u64,
    /// The sender's clock.
    pub(crate) sent: Nanos,
    /// The receiver's clock, from the last acknowledgement (RFC 7323).
    pub(crate) echo: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct Outstanding {
    sent: Nanos,
    /// Number of the segment's latest transmission.
    order: u64,
    retransmitted: bool,
    sacked: bool,
    lost: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    Open,
    /// Fast recovery until `until` is acknowledged; the counters of RFC 6937.
    Recovery {
        until: u64,
        flight: u64,
        delivered: u64,
        out: u64,
    },
    /// After a time-out, until `until` is acknowledged.
    Loss {
        until: u64,
    },
}

#[derive(Clone, Debug)]
pub(crate) struct Sender {
    congestion: Congestion,
    phase: Phase,
    una: u64,
    next: u64,
    /// The segments `una..next`.
    outstanding: VecDeque<Outstanding>,
    /// Transmissions in order: number and segment.
    transmissions: VecDeque<(u64, u64)>,
    order: u64,
    delivered_order: u64,
    lost: BTreeSet<u64>,
    pipe: u64,
    /// Right edge of the peer's window, bytes from the start.
    right: u64,
    send_buffer: Bytes,
    /// Whether the application, once it has filled the buffer, waits until a third of it is free, as one that blocks in write() on
    /// Linux (`sk_stream_is_writeable`); the number of segments that it has written.
    waits_for_a_third: bool,
    written: u64,
    pacing: Option<u64>,
    /// Whether TCP paces by itself once a rate has been set, as Linux's `tcp_update_pacing_rate`; whether it does so
    /// now.
    may_pace_itself: bool,
    paces_itself: bool,
    paced_until: Nanos,
    /// Whether TCP has paced from the first segment on, as where `fq` is the queueing discipline, or where an application
    /// has left BBR when it had connected; segments that may still leave in the present burst.
    paced_from_start: bool,
    burst: u64,
    srtt: Option<Nanos>,
    rttvar: Nanos,
    min_rtt: Nanos,
    rto: Nanos,
    timer: Option<Nanos>,
    echo: Nanos,
    /// As in Linux's `tcp_rate_check_app_limited`: the sender counts as application-limited until this transmission has
    /// arrived.
    app_limited_until: Option<u64>,
    cwnd_limited: bool,
    most_out: u64,
    usage_until: u64,
    delivered: u64,
    pub(crate) segs_out: u64,
    pub(crate) retransmissions: u64,
    pub(crate) timeouts: u64,
    /// Number of reductions of the window by losses, at most one per round trip.
    loss_events: u64,
    pub(crate) peak_flight: u64,
}

impl Sender {
    /// A sender whose handshake has measured `rtt`.
    pub(crate) fn new(algorithm: Algorithm, rtt: Nanos, right: u64) -> Self {
        Self {
            congestion: Congestion::new(algorithm),
            phase: Phase::Open,
            una: 0,
            next: 0,
            outstanding: VecDeque::new(),
            transmissions: VecDeque::new(),
            order: 0,
            delivered_order: 0,
            lost: BTreeSet::new(),
            pipe: 0,
            right,
            send_buffer: FIRST_BUFFER,
            waits_for_a_third: false,
            written: FIRST_BUFFER.0 / MSS,
            pacing: None,
            may_pace_itself: false,
            paces_itself: false,
            paced_until: Nanos::ZERO,
            paced_from_start: false,
            burst: 0,
            srtt: None,
            rttvar: Nanos::ZERO,
            min_rtt: rtt,
            rto: INITIAL_RTO.max(Nanos(3 * rtt.0)),
            timer: None,
            echo: Nanos::ZERO,
            app_limited_until: None,
            cwnd_limited: false,
            most_out: 0,
            usage_until: 0,
            delivered: 0,
            segs_out: 0,
            retransmissions: 0,
            timeouts: 0,
            loss_events: 0,
            peak_flight: 0,
        }
    }

    pub(crate) fn set_send_buffer(&mut self, payload: Bytes) {
        self.send_buffer = payload;
        self.write();
    }

    /// Fills the send buffer, unless the application waits.
    fn write(&mut self) {
        let (held, full) = (self.written.saturating_sub(self.una), (self.send_buffer.0 / MSS).max(1));
        if !self.waits_for_a_third || held * 3 <= full * 2 {
            self.written = self.una + full;
        }
    }

    /// Makes the application wait until a third of its full send buffer is free.
    pub(crate) fn waiting_for_a_third(self) -> Self {
        Self { waits_for_a_third: true, ..self }
    }

    /// Sets the pacing rate, bytes per second of payload; `None`: as fast as the window allows.
    pub(crate) fn set_pacing(&mut self, rate: Option<u64>) {
        self.pacing = rate.filter(|&rate| rate > 0);
    }

    /// Sets the largest pacing rate, as `SO_MAX_PACING_RATE`: from the first one on, TCP paces its windows, too.
    pub(crate) fn set_max_pacing(&mut self, rate: Option<u64>) {
        self.paces_itself |= self.may_pace_itself && rate.is_some();
        self.set_pacing(rate);
    }

    /// Makes TCP pace by itself once a rate has been set.
    pub(crate) fn pacing_itself(self) -> Self {
        Self { may_pace_itself: true, ..self }
    }

    /// Makes TCP pace from the start.
    pub(crate) fn pacing_from_start(self) -> Self {
        Self { may_pace_itself: true, paces_itself: true, paced_from_start: true, ..self }
    }

    /// Adds HyStart: CUBIC leaves slow start early.
    pub(crate) fn with_hystart(self) -> Self {
        Self { congestion: self.congestion.with_hystart(), ..self }
    }

    /// The pacing rate: in slow start twice the window per round trip, later 1.2 times, but at most the rate set.
    fn pace(&self) -> Option<u64> {
        if !self.paces_itself {
            return self.pacing;
        }
        let ratio = if self.congestion.cwnd < self.congestion.ssthresh / 2.0 { 2.0 } else { 1.2 };
        let own = ratio * self.congestion.cwnd * MSS as f64 / self.srtt().as_secs_f64();
        Some(self.pacing.unwrap_or(u64::MAX).min(own as u64).max(1))
    }

    pub(crate) fn cwnd_bytes(&self) -> u64 {
        self.congestion.cwnd as u64 * MSS
    }

    /// Sets the round trip that the handshake has measured, before any segment is sent.
    pub(crate) fn with_handshake(self, rtt: Nanos) -> Self {
        Self { min_rtt: rtt, rto: INITIAL_RTO.max(Nanos(3 * rtt.0)), ..self }
    }

    /// Sets the peer's window, before any segment is sent.
    pub(crate) fn with_window(self, right: u64) -> Self {
        Self { right, ..self }
    }

    /// Bytes that may be in flight: the smallest of cwnd, the peer's window and the send buffer.
    pub(crate) fn window_bytes(&self) -> u64 {
        let peer = self.right.saturating_sub(self.una * MSS);
        self.cwnd_bytes().min(peer).min(self.send_buffer.0)
    }

    /// The first segment that is not acknowledged.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.una
    }

    pub(crate) fn sent(&self) -> u64 {
        self.next
    }

    pub(crate) fn srtt(&self) -> Nanos {
        self.srtt.unwrap_or(self.min_rtt)
    }

    /// Time of the sender's next action by itself: its timer, or the next paced segment.
    pub(crate) fn deadline(&self) -> Option<Nanos> {
        let paced = (self.pace().is_some() && self.has_room()).then_some(self.paced_until);
        self.timer.into_iter().chain(paced).min()
    }

    fn send_limit(&self) -> u64 {
        self.written.max(self.next).min(self.right / MSS)
    }

    fn has_room(&self) -> bool {
        self.pipe < self.congestion.cwnd as u64 && (!self.lost.is_empty() || self.next < self.send_limit())
    }

    /// Returns the next segment that may leave now; call until there is none.
    pub(crate) fn transmit(&mut self, now: Nanos) -> Option<Transmission> {
        if !self.has_room() {
            self.check_app_limited();
            self.validate_window(self.pipe >= self.congestion.cwnd as u64);
            return None;
        }
        if let Some(rate) = self.pace() {
            if now < self.paced_until && self.burst == 0 {
                self.validate_window(false);
                return None;
            }
            let gap = (u128::from(MSS) * 1_000_000_000 / u128::from(rate)) as u64;
            self.paced_until = self.after_pace(now, gap, rate);
        }
        self.order += 1;
        let record =
            Outstanding { sent: now, order: self.order, retransmitted: false, sacked: false, lost: false };
        let seq = if let Some(seq) = self.lost.pop_first() {
            self.outstanding[(seq - self.una) as usize] = Outstanding { retransmitted: true, ..record };
            self.retransmissions += 1;
            seq
        } else {
            self.outstanding.push_back(record);
            self.next += 1;
            self.next - 1
        };
        self.transmissions.push_back((self.order, seq));
        self.pipe += 1;
        self.segs_out += 1;
        if let Phase::Recovery { out, .. } = &mut self.phase {
            *out += 1;
        }
        self.peak_flight = self.peak_flight.max((self.next - self.una) * MSS);
        self.timer.get_or_insert(Nanos(now.0 + self.rto.0));
        Some(Transmission { seq, sent: now, echo: self.echo })
    }

    /// Returns when the next segment may leave, `gap` nanoseconds apart at `rate`. From the start, Linux lets the first ten
    /// segments go at once (`tcp_update_skb_after_send`), and later as many as the rate gives in a millisecond, two at
    /// least (`tcp_tso_autosize`).
    fn after_pace(&mut self, now: Nanos, gap: u64, rate: u64) -> Nanos {
        if !self.paced_from_start {
            return Nanos(self.paced_until.max(now).0 + gap);
        }
        if self.segs_out < INITIAL_FLIGHT {
            return self.paced_until;
        }
        if self.burst > 0 {
            self.burst -= 1;
            return self.paced_until;
        }
        self.burst = (rate / 1_000 / MSS).max(2) - 1;
        Nanos(self.paced_until.max(now).0 + (self.burst + 1) * gap)
    }

    /// Linux's `tcp_rate_check_app_limited`, called when the application writes: the sender is application-limited if
    /// cwnd has room, no segment waits for retransmission, and no unsent data are queued. The application here always
    /// has data, so that happens only if the send buffer is full.
    fn check_app_limited(&mut self) {
        let buffer_full = self.next >= self.una + (self.send_buffer.0 / MSS).max(1);
        if buffer_full && self.lost.is_empty() && self.pipe < self.congestion.cwnd as u64 {
            self.app_limited_until = Some(self.order);
        }
    }

    /// Linux's `tcp_cwnd_validate`: determines whether cwnd limited the last flight.
    fn validate_window(&mut self, limited: bool) {
        let out = self.next - self.una;
        if self.una >= self.usage_until || limited || (!self.cwnd_limited && out > self.most_out) {
            self.cwnd_limited = limited;
            self.most_out = out;
            self.usage_until = self.next;
        }
    }

    fn may_grow(&self) -> bool {
        let used = self.congestion.cwnd < 2.0 * self.most_out as f64;
        self.cwnd_limited || (self.congestion.in_slow_start() && used)
    }

    /// Takes an acknowledgement; returns the round-trip time that it measured, if any.
    pub(crate) fn acknowledge(&mut self, now: Nanos, ack: &Ack) -> Option<Nanos> {
        self.right = self.right.max(ack.right);
        self.echo = ack.clock;
        let flight = self.next - self.una;
        let (delivered, advanced, sent) = self.deliver(ack);
        self.write();
        let rtt = sent.map(|sent| Nanos(now.0 - sent.0));
        if let Some(rtt) = rtt {
            self.measure(rtt);
            self.congestion.see(Seen {
                now: now.as_secs_f64(),
                rtt: rtt.as_secs_f64(),
                acknowledged: self.una,
                sent: self.next,
                cwnd: self.congestion.cwnd,
                paced: self.pace().is_some(),
            });
        }
        let lost = self.find_losses();
        self.move_phase(lost, delivered, flight, now);
        if advanced {
            self.timer = (self.una < self.next).then_some(Nanos(now.0 + self.rto.0));
        }
        rtt
    }

    /// Takes acknowledged segments off the scoreboard. Returns the number that arrived, whether `una` advanced, and the
    /// time at which the last of them was sent that was sent only once.
    fn deliver(&mut self, ack: &Ack) -> (u64, bool, Option<Nanos>) {
        let (mut delivered, mut sent) = (0, None);
        let advanced = ack.next > self.una;
        while self.una < ack.next {
            let Some(segment) = self.outstanding.pop_front() else { break };
            if !segment.sacked {
                self.arrive(&segment, self.una);
                delivered += 1;
                sent = (!segment.retransmitted).then_some(segment.sent).or(sent);
            }
            self.una += 1;
        }
        if let Some(seq) = ack.sacked.filter(|&seq| seq >= self.una) {
            let index = (seq - self.una) as usize;
            let segment = self.outstanding[index];
            if !segment.sacked {
                self.outstanding[index] = Outstanding { sacked: true, lost: false, ..segment };
                self.arrive(&segment, seq);
                delivered += 1;
                sent = (!segment.retransmitted).then_some(segment.sent).or(sent);
            }
        }
        (delivered, advanced, sent)
    }

    fn arrive(&mut self, segment: &Outstanding, seq: u64) {
        self.delivered += 1;
        if segment.lost {
            self.lost.remove(&seq);
        } else {
            self.pipe -= 1;
        }
        self.delivered_order = self.delivered_order.max(segment.order);
        self.app_limited_until = self.app_limited_until.filter(|until| *until >= self.delivered_order);
    }

    fn find_losses(&mut self) -> bool {
        let mut found = false;
        while let Some(&(order, seq)) = self.transmissions.front()
            && order + DUPLICATES <= self.delivered_order
        {
            self.transmissions.pop_front();
            if seq < self.una {
                continue;
            }
            let segment = &mut self.outstanding[(seq - self.una) as usize];
            if segment.order == order && !segment.sacked && !segment.lost {
                segment.lost = true;
                self.lost.insert(seq);
                self.pipe -= 1;
                found = true;
            }
        }
        found
    }

    fn move_phase(&mut self, lost: bool, delivered: u64, flight_before: u64, now: Nanos) {
        match self.phase {
            Phase::Recovery { until, .. } if self.una >= until => {
                self.congestion.cwnd = self.congestion.ssthresh;
                self.phase = Phase::Open;
            }
            Phase::Loss { until } if self.una >= until => self.phase = Phase::Open,
            _ => {}
        }
        match self.phase {
            Phase::Open if lost => {
                self.congestion.reduce();
                self.loss_events += 1;
                self.phase =
                    Phase::Recovery { until: self.next, flight: flight_before.max(1), delivered: 0, out: 0 };
                self.reduce_rate(delivered);
            }
            Phase::Recovery { .. } => self.reduce_rate(delivered),
            Phase::Open | Phase::Loss { .. } => {
                if self.may_grow() {
                    let srtt = self.srtt().as_secs_f64();
                    self.congestion.grow(delivered, now.as_secs_f64(), srtt);
                }
            }
        }
    }

    /// RFC 6937, slow-start reduction bound.
    fn reduce_rate(&mut self, newly: u64) {
        let Phase::Recovery { flight, delivered, out, .. } = &mut self.phase else { return };
        *delivered += newly;
        let ssthresh = self.congestion.ssthresh as u64;
        let more = if self.pipe > ssthresh {
            (*delivered * ssthresh).div_ceil(*flight).saturating_sub(*out)
        } else {
            (ssthresh - self.pipe).min(delivered.saturating_sub(*out).max(newly) + 1)
        };
        // When recovery begins, one retransmission may leave at once.
        let more = if *out == 0 { more.max(1) } else { more };
        self.congestion.cwnd = (self.pipe + more) as f64;
    }

    /// RFC 6298.
    fn measure(&mut self, rtt: Nanos) {
        self.min_rtt = self.min_rtt.min(rtt);
        let srtt = match self.srtt {
            None => {
                self.rttvar = Nanos(rtt.0 / 2);
                rtt
            }
            Some(srtt) => {
                self.rttvar = Nanos((3 * self.rttvar.0 + srtt.0.abs_diff(rtt.0)) / 4);
                Nanos((7 * srtt.0 + rtt.0) / 8)
            }
        };
        self.srtt = Some(srtt);
        // As in Linux, the smallest time-out bounds the variance, not the sum.
        self.rto = Nanos(srtt.0 + (4 * self.rttvar.0).max(MINIMUM_RTO.0));
    }

    /// Handles the retransmission timer, if it is due.
    pub(crate) fn tick(&mut self, now: Nanos) {
        if self.timer.is_none_or(|at| now < at) {
            return;
        }
        self.timeouts += 1;
        self.loss_events += 1;
        if !matches!(self.phase, Phase::Loss { .. }) {
            self.congestion.reduce();
        }
        self.congestion.restart();
        for (index, segment) in self.outstanding.iter_mut().enumerate() {
            if !segment.sacked && !segment.lost {
                segment.lost = true;
                self.lost.insert(self.una + index as u64);
            }
        }
        self.transmissions.clear();
        self.pipe = 0;
        self.phase = Phase::Loss { until: self.next };
        self.rto = Nanos(2 * self.rto.0).min(MAXIMUM_RTO);
        self.timer = (self.una < self.next).then_some(Nanos(now.0 + self.rto.0));
    }

    /// Returns the sample for a policy at the sender.
    pub(crate) fn sample(&self) -> Sample {
        let ssthresh = self.congestion.ssthresh;
        Sample {
            mss: Bytes(MSS),
            cwnd: Bytes(self.cwnd_bytes()),
            ssthresh: if ssthresh.is_finite() { Bytes(ssthresh as u64 * MSS) } else { Bytes::MAX },
            srtt: Micros(self.srtt.map_or(0, |srtt| srtt.0 / 1_000)),
            min_rtt: Micros(self.min_rtt.0 / 1_000),
            rto: Micros(self.rto.0 / 1_000),
            segs_out: self.segs_out,
            segs_lost: self.retransmissions,
            loss_events: Some(self.loss_events),
            congestion_control: match self.congestion.algorithm() {
                Algorithm::Reno => CongestionControl::Reno,
                Algorithm::Cubic => CongestionControl::Cubic,
            },
            paced: self.paced_from_start,
            bytes_acked: Bytes(self.una * MSS),
            segs_delivered: self.delivered,
            app_limited: self.app_limited_until.is_some(),
            sndbuf: self.send_buffer,
            send_queued: Bytes((self.next - self.una) * MSS),
            ..Sample::default()
        }
    }
}
