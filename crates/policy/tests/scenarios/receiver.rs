//! A TCP receiver: delayed acknowledgements, reassembly, an advertised window whose right edge never moves back, and
//! the receiver's estimate of the round-trip time (by time stamps, as in Linux).

use std::collections::BTreeSet;

use bufwise_units::{Bytes, Micros, Nanos, Sample};

use crate::sender::{MSS, Transmission};

/// Linux's shortest delay of an acknowledgement.
const DELAYED: Nanos = Nanos::from_millis(40);
/// Segments that are acknowledged one by one at the start of a connection.
const QUICK: u32 = 16;
/// A window update is sent if the window has opened by this much, bytes.
const UPDATE: u64 = 2 * MSS;

/// An acknowledgement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ack {
    /// The next segment expected.
    pub(crate) next: u64,
    /// The segment out of order that caused this acknowledgement.
    pub(crate) sacked: Option<u64>,
    /// Right edge of the window, bytes from the start.
    pub(crate) right: u64,
    /// The receiver's clock.
    pub(crate) clock: Nanos,
}

#[derive(Clone, Debug)]
pub(crate) struct Receiver {
    next: u64,
    /// Segments behind a hole.
    held: BTreeSet<u64>,
    limit: Bytes,
    right: u64,
    /// The right edge last advertised to the sender.
    told: u64,
    /// Bytes in order that the application has not read.
    unread: u64,
    reads_at_once: bool,
    unacknowledged: u32,
    quick: u32,
    delayed_until: Option<Nanos>,
    echo: Nanos,
    rtt: Option<Nanos>,
    handshake_rtt: Nanos,
    out_of_order: u64,
    /// A shorter round trip counts at once, as since Linux 6.16.
    seeks_shortest: bool,
    pub(crate) peak_held: u64,
}

impl Receiver {
    /// A receiver with a window of `limit`, whose handshake has measured `rtt`. Its application reads at once, or only
    /// by [`Self::read`].
    pub(crate) fn new(rtt: Nanos, limit: Bytes, reads_at_once: bool) -> Self {
        Self {
            next: 0,
            held: BTreeSet::new(),
            limit,
            right: limit.0,
            told: limit.0,
            unread: 0,
            reads_at_once,
            unacknowledged: 0,
            quick: QUICK,
            delayed_until: None,
            echo: Nanos::ZERO,
            rtt: None,
            handshake_rtt: rtt,
            out_of_order: 0,
            seeks_shortest: false,
            peak_held: 0,
        }
    }

    /// Makes a shorter round trip count at once, as since Linux 6.16; before, each sample counts for an eighth.
    pub(crate) fn seek_shortest(&mut self) {
        self.seeks_shortest = true;
    }

    pub(crate) fn right(&self) -> u64 {
        self.right
    }

    pub(crate) fn received_bytes(&self) -> u64 {
        self.next * MSS
    }

    /// Sets the largest window to advertise; a window already offered is not taken back.
    pub(crate) fn set_limit(&mut self, limit: Bytes) {
        self.limit = limit;
        self.open();
    }

    fn open(&mut self) {
        let room = self.limit.0.saturating_sub(self.unread);
        self.right = self.right.max((self.next * MSS).saturating_add(room));
    }

    pub(crate) fn deadline(&self) -> Option<Nanos> {
        self.delayed_until
    }

    /// Whether consecutive `segments` begin with the next one expected, and no segment is missing.
    pub(crate) fn expects(&self, segments: &[Transmission]) -> bool {
        self.held.is_empty() && segments.first().is_some_and(|first| first.seq == self.next)
    }

    /// Takes expected segments that were handed over as one; returns an acknowledgement that is to leave at once.
    pub(crate) fn receive_joined(&mut self, now: Nanos, segments: &[Transmission]) -> Option<Ack> {
        let quick = self.quick.saturating_sub(1);
        let due = segments.iter().filter_map(|segment| self.receive(now, segment)).count();
        self.quick = quick;
        (due > 0).then(|| self.acknowledge(now, None))
    }

    /// Takes a segment; returns an acknowledgement that is to leave at once.
    pub(crate) fn receive(&mut self, now: Nanos, segment: &Transmission) -> Option<Ack> {
        self.measure(now, segment.echo);
        let in_order = segment.seq == self.next;
        let gap = !self.held.is_empty();
        if segment.seq > self.next {
            self.out_of_order += 1;
            self.held.insert(segment.seq);
        } else if in_order {
            let before = self.next;
            self.next += 1;
            while self.held.first() == Some(&self.next) {
                self.held.pop_first();
                self.next += 1;
            }
            if !self.reads_at_once {
                self.unread += (self.next - before) * MSS;
            }
        }
        self.open();
        self.peak_held = self.peak_held.max(self.unread + self.held.len() as u64 * MSS);
        self.unacknowledged += 1;
        let quick = self.quick > 0;
        self.quick = self.quick.saturating_sub(1);
        if !in_order || gap || quick || self.unacknowledged >= 2 {
            return Some(self.acknowledge(now, (segment.seq > self.next).then_some(segment.seq)));
        }
        self.delayed_until = Some(Nanos(now.0 + DELAYED.0));
        None
    }

    fn acknowledge(&mut self, now: Nanos, sacked: Option<u64>) -> Ack {
        self.unacknowledged = 0;
        self.delayed_until = None;
        self.told = self.right;
        Ack { next: self.next, sacked, right: self.right, clock: now }
    }

    /// Returns the delayed acknowledgement, if it is due.
    pub(crate) fn tick(&mut self, now: Nanos) -> Option<Ack> {
        let due = self.delayed_until.is_some_and(|at| now >= at);
        due.then(|| self.acknowledge(now, None))
    }

    /// Lets the application read all available bytes; returns their number.
    pub(crate) fn read(&mut self) -> Bytes {
        Bytes(std::mem::take(&mut self.unread))
    }

    /// Returns a window update, if reading has opened the window far enough.
    pub(crate) fn update_window(&mut self, now: Nanos) -> Option<Ack> {
        self.open();
        (self.right >= self.told + UPDATE).then(|| self.acknowledge(now, None))
    }

    /// Linux's `tcp_rcv_rtt_measure_ts`: one sample for each new echo of the receiver's clock.
    fn measure(&mut self, now: Nanos, echo: Nanos) {
        if echo == self.echo || echo == Nanos::ZERO {
            return;
        }
        self.echo = echo;
        let rtt = now.0 - echo.0;
        let latches = |before: Nanos| self.seeks_shortest && rtt < before.0;
        let mean = |before: Nanos| if latches(before) { rtt } else { (7 * before.0 + rtt) / 8 };
        self.rtt = Some(Nanos(self.rtt.map_or(rtt, mean)));
    }

    /// Returns the sample for a policy at the receiver.
    pub(crate) fn sample(&self) -> Sample {
        Sample {
            mss: Bytes(MSS),
            bytes_received: Bytes(self.received_bytes()),
            // The receiver sends no data, so no later round trip is measured on this side.
            srtt: Micros(self.handshake_rtt.0 / 1_000),
            rcv_rtt: Micros(self.rtt.map_or(0, |rtt| rtt.0 / 1_000)),
            rcvbuf: self.limit,
            rcv_wnd: Bytes(self.right.saturating_sub(self.received_bytes())),
            segs_in: self.next + self.held.len() as u64,
            rcv_out_of_order: self.out_of_order,
            ..Sample::default()
        }
    }
}
