//! One connection over one path in virtual time, which advances from deadline to deadline.
//!
//! Before [`DATA_START`] only SOBAS is active, with its packet trains. Data start at [`DATA_START`] under every policy,
//! so that traces and cross traffic affect all policies alike. A message beside the connection (drsFTP's SBUF, the pace
//! for the sender) takes half of the unloaded round trip.

mod arriving;

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use bufwise_link::{Fate, Path};
use bufwise_units::{Bytes, Decision, Micros, Nanos, Rate};

use crate::congestion::Algorithm;
use crate::outcome::{DOCUMENT, Outcome, Point};
use crate::pauses::Pauses;
use crate::probes::{PROBE_BYTES, Prober, TRAIN_BYTES, TRAIN_PACKETS};
use crate::receiver::{Ack, Receiver};
use crate::sender::{MSS, Sender, Transmission};
use crate::subject::{KERNEL, MAXIMUM, SendSide, Subject};

pub(crate) use arriving::ReceiveSide;

/// Time at which the data start.
pub(crate) const DATA_START: Nanos = Nanos::from_millis(500);
/// IP lengths of a full segment and of an acknowledgement, both with time stamps, and of a SYN.
const SEGMENT_BYTES: u32 = MSS as u32 + 52;
const ACK_BYTES: u32 = 52;
const SYN_BYTES: u32 = 60;
const SYN_AGAIN: Nanos = Nanos::from_secs(1);
/// Shortest time between two samples of a policy at the receiver; the same for a policy that measures trains.
const RECEIVER_EVERY: Nanos = Nanos::from_millis(1);
const TRAINS_EVERY: Nanos = Nanos::from_micros(100);
/// The engine without privilege takes a sample per millisecond, plus the time of the sample itself, for this many round
/// trips; later four per round trip.
const SAMPLE_EVERY: Nanos = Nanos::from_micros(1_070);
const STARTING_ROUND_TRIPS: u64 = 30;
/// Time between two reads of an application that handles the data of a read before the next one.
const READ_EVERY: Nanos = Nanos::from_millis(25);
const SHARE_EVERY: Nanos = Nanos::from_millis(500);
const POINT_EVERY: Nanos = Nanos::from_millis(200);

#[derive(Clone, Copy)]
enum Forward {
    Data(Transmission),
    Train(u64),
    Answer { number: u64, sent: Nanos },
}

#[derive(Clone, Copy)]
enum Backward {
    Ack(Ack),
    Probe { number: u64, sent: Nanos },
}

/// The receiver's request to the sender, in a message beside the connection.
#[derive(Clone, Copy, PartialEq)]
struct Request {
    send_buffer: Option<Bytes>,
    pacing: Option<Rate>,
}

pub(crate) struct World {
    now: Nanos,
    path: Rc<RefCell<Path>>,
    half_rtt: Nanos,
    /// Time at which this connection's data start.
    start: Nanos,
    begun: bool,
    /// Round trip of the handshake; `None`: not yet known, because the queue may hold other flows' packets.
    handshake: Option<Nanos>,
    sender_pauses: Pauses,
    receiver_pauses: Pauses,
    sender: Sender,
    receiver: Receiver,
    send_side: Option<SendSide>,
    receive_side: Option<ReceiveSide>,
    prober: Option<Prober>,
    forward: VecDeque<(Nanos, Forward)>,
    backward: VecDeque<(Nanos, Backward)>,
    requests: VecDeque<(Nanos, Request)>,
    last_request: Request,
    sees_acknowledgements: bool,
    /// The last roof that `fit` decided, and the number of roofs so far.
    roofs: (Option<Rate>, u32),
    /// The round trip ends when this segment is acknowledged.
    round_until: u64,
    /// Next sample by the timer; `None`: the sender is sampled at acknowledgements.
    next_sample: Option<Nanos>,
    /// Whether the receiver has `fit`, which measures trains and knows the handshake's round trip.
    fits_window: bool,
    /// The size set by the policy, in eighths of the payload that the buffer then holds. Linux: 5, for the kernel
    /// doubles the size, and four fifths of that are payload. 8: the buffer holds the size set.
    held_eighths: u64,
    /// Whether the receiving host joins segments and calls the engine for acknowledgements alone; the time of its next
    /// interrupt.
    joins: bool,
    /// Whether the answer to the SYN crosses the path, too, and jitters with it.
    answers_over_path: bool,
    next_poll: Nanos,
    /// Time of the receiver's next sample.
    next_of_receiver: Nanos,
    is_engine: bool,
    /// Times of the last samples of the sender and of the receiver.
    sampled: (Nanos, Nanos),
    next_read: Option<Nanos>,
    next_share: Nanos,
    next_point: Nanos,
    rtts: (u64, u64),
    points: Vec<Point>,
    point_bytes: u64,
    document: f64,
}

impl World {
    /// `probing`: whether the path is fast enough for SOBAS's probes.
    pub(crate) fn new(path: Path, rtt: Nanos, subject: Subject, algorithm: Algorithm, probing: bool) -> Self {
        let receiver = Receiver::new(rtt, subject.first_window(), !subject.reads_in_pieces());
        let sender = Sender::new(algorithm, rtt, receiver.right());
        Self {
            now: Nanos::ZERO,
            path: Rc::new(RefCell::new(path)),
            half_rtt: Nanos(rtt.0 / 2),
            start: DATA_START,
            begun: false,
            handshake: Some(rtt),
            sender_pauses: Pauses::default(),
            receiver_pauses: Pauses::default(),
            sender,
            receiver,
            send_side: subject.sender(),
            receive_side: subject.receiver(),
            prober: (probing && subject.probes()).then(Prober::default),
            forward: VecDeque::new(),
            backward: VecDeque::new(),
            requests: VecDeque::new(),
            last_request: Request { send_buffer: None, pacing: None },
            sees_acknowledgements: subject.sees_acknowledgements(),
            roofs: (None, 0),
            round_until: 0,
            next_sample: subject.is_sampled().then_some(DATA_START),
            fits_window: subject.fits_window(),
            held_eighths: 8,
            joins: false,
            answers_over_path: false,
            next_poll: Nanos::ZERO,
            next_of_receiver: Nanos::ZERO,
            is_engine: subject.is_engine(),
            sampled: (Nanos::ZERO, Nanos::ZERO),
            next_read: subject.reads_in_pieces().then_some(DATA_START),
            next_share: DATA_START,
            next_point: DATA_START,
            rtts: (0, 0),
            points: Vec::new(),
            point_bytes: 0,
            document: f64::INFINITY,
        }
    }

    /// Adds pauses of the hosts.
    pub(crate) fn pausing(self, sender: Pauses, receiver: Pauses) -> Self {
        Self { sender_pauses: sender, receiver_pauses: receiver, ..self }
    }

    /// Makes the sender's TCP pace its windows once a rate has been set, as Linux does.
    pub(crate) fn pacing_itself(self) -> Self {
        Self { sender: self.sender.pacing_itself(), ..self }
    }

    /// Makes the sender's TCP pace from the start.
    pub(crate) fn pacing_from_start(self) -> Self {
        Self { sender: self.sender.pacing_from_start(), ..self }
    }

    /// Makes the sender's TCP that of a default Linux: it paces once a rate has been set, and CUBIC has HyStart.
    pub(crate) fn like_linux(self) -> Self {
        let held_eighths = if self.is_engine { 5 } else { 8 };
        Self { sender: self.sender.pacing_itself().with_hystart(), held_eighths, ..self }
    }

    /// Gives a sender without a rule the kernel's send buffer, instead of one without a bound.
    pub(crate) fn with_kernels_buffer(self) -> Self {
        Self { send_side: self.send_side.or_else(|| KERNEL.sender()), ..self }
    }

    /// Makes the sender's application wait, once its send buffer is full, until a third of it is free. A sender without a rule has
    /// the kernel's send buffer.
    pub(crate) fn waiting_for_a_third(self) -> Self {
        let world = self.with_kernels_buffer();
        Self { sender: world.sender.waiting_for_a_third(), ..world }
    }

    /// Runs until `seconds` after the data began.
    pub(crate) fn run(mut self, seconds: u64) -> Outcome {
        let end = Nanos(DATA_START.0 + Nanos::from_secs(seconds).0);
        self.run_until(DATA_START);
        self.begin();
        self.run_until(end);
        self.outcome()
    }

    /// Runs connections over the path of the first one, until `seconds` after its data began. Each connection comes
    /// with the delay of its own data after that.
    pub(crate) fn run_together(flows: Vec<(Self, Nanos)>, seconds: u64) -> Vec<Outcome> {
        let end = Nanos(DATA_START.0 + Nanos::from_secs(seconds).0);
        let Some(path) = flows.first().map(|(first, _)| first.path.clone()) else { return Vec::new() };
        let mut flows: Vec<Self> =
            flows.into_iter().map(|(flow, later)| flow.over(path.clone(), later)).collect();
        // A flow's next action changes only when it acts itself.
        let mut next: Vec<Nanos> = flows.iter().map(Self::next_action).collect();
        while let Some((number, at)) = next.iter().copied().enumerate().min_by_key(|(_, at)| *at)
            && at < end
        {
            flows[number].act(at);
            next[number] = flows[number].next_action();
        }
        for flow in &mut flows {
            flow.now = end;
        }
        flows.into_iter().map(Self::outcome).collect()
    }

    /// Moves this connection to a shared path, and delays its data by `later`.
    fn over(self, path: Rc<RefCell<Path>>, later: Nanos) -> Self {
        let start = Nanos(DATA_START.0 + later.0);
        let (next_sample, next_read) = (self.next_sample.map(|_| start), self.next_read.map(|_| start));
        Self {
            path,
            start,
            handshake: None,
            next_sample,
            next_read,
            next_share: start,
            next_point: start,
            ..self
        }
    }

    /// Time of this connection's next action, its beginning included.
    fn next_action(&self) -> Nanos {
        let next = self.next_deadline().unwrap_or(self.start);
        if self.begun { next } else { next.min(self.start) }
    }

    fn act(&mut self, at: Nanos) {
        self.now = at.max(self.now);
        match self.handshake {
            _ if self.begun || at < self.start => self.step(),
            Some(_) => self.begin(),
            None => self.connect(),
        }
    }

    /// Sends a SYN through the shared queue; the data start when it is answered, half a round trip later if the answer
    /// does not cross the path.
    fn connect(&mut self) {
        let Fate::Deliver { at } = self.path.borrow_mut().forward.offer(self.now, SYN_BYTES) else {
            self.start = Nanos(self.now.0 + SYN_AGAIN.0);
            return;
        };
        let answered = if self.answers_over_path {
            self.path.borrow_mut().backward.offer(at, SYN_BYTES)
        } else {
            Fate::Deliver { at: Nanos(at.0 + self.half_rtt.0) }
        };
        let Fate::Deliver { at } = answered else {
            self.start = Nanos(self.now.0 + SYN_AGAIN.0);
            return;
        };
        self.start = at;
        (self.next_sample, self.next_read) =
            (self.next_sample.map(|_| self.start), self.next_read.map(|_| self.start));
        let rtt = Nanos(self.start.0 - self.now.0);
        self.handshake = Some(rtt);
        self.sender = self.sender.clone().with_handshake(rtt);
    }

    fn run_until(&mut self, end: Nanos) {
        while let Some(at) = self.next_deadline()
            && at < end
        {
            self.now = at.max(self.now);
            self.step();
        }
        self.now = end;
    }

    fn next_deadline(&self) -> Option<Nanos> {
        let prober = self.prober.as_ref();
        [
            self.forward.front().map(|(at, _)| self.receiver_pauses.end(self.next_poll.max(*at))),
            self.backward.front().map(|(at, _)| self.sender_pauses.end(*at)),
            self.requests.front().map(|(at, _)| *at),
            self.sender.deadline().filter(|_| self.begun).map(|at| self.sender_pauses.end(at)),
            self.receiver.deadline().map(|at| self.receiver_pauses.end(at)),
            prober.and_then(Prober::next_train),
            prober.map(Prober::next_probe),
            self.next_read,
            self.next_sample.map(|at| self.sender_pauses.end(at)),
            Some(self.next_share),
            Some(self.next_point),
        ]
        .into_iter()
        .flatten()
        .min()
    }

    /// Begins the connection: both policies decide on the initial values, before the first segment leaves.
    fn begin(&mut self) {
        self.begun = true;
        if let Some(prober) = &mut self.prober {
            prober.close_train();
        }
        // The window was not advertised before the connection exists, so it begins with the policy's decision.
        let decision = self.decide_at_receiver(Bytes::ZERO);
        let window = decision.receive_window.unwrap_or(MAXIMUM).min(MAXIMUM);
        self.receiver = Receiver::new(Nanos(2 * self.half_rtt.0), window, self.next_read.is_none());
        self.sender = self.sender.clone().with_window(self.receiver.right());
        self.apply_request(Request { send_buffer: decision.send_buffer, pacing: decision.pacing });
        if self.send_side.is_none() && decision.send_buffer.is_none() {
            self.sender.set_send_buffer(MAXIMUM);
        }
        self.sample_sender();
        self.transmit();
    }

    fn step(&mut self) {
        let [receives, sends] =
            [&self.receiver_pauses, &self.sender_pauses].map(|pauses| pauses.has_none(self.now));
        if receives && self.next_poll <= self.now {
            self.poll();
        }
        while let Some((_, packet)) = self.backward.pop_front_if(|(at, _)| sends && *at <= self.now) {
            self.arrive_backward(packet);
        }
        while let Some((_, request)) = self.requests.pop_front_if(|(at, _)| *at <= self.now) {
            self.apply_request(request);
        }
        self.probe();
        if receives && let Some(ack) = self.receiver.tick(self.now) {
            if self.joins { self.answer(Some(ack)) } else { self.send_ack(ack) }
        }
        if self.next_read.is_some_and(|at| at <= self.now) {
            self.read();
        }
        if sends && self.next_sample.is_some_and(|at| at <= self.now) {
            self.sample_sender();
            let srtt = self.sender.srtt().0;
            let starts = self.now.0 - self.start.0 < STARTING_ROUND_TRIPS * srtt.max(1_000_000);
            let rest = if starts { SAMPLE_EVERY.0 } else { srtt / 4 };
            self.next_sample = Some(Nanos(self.now.0 + rest));
        }
        if self.next_share <= self.now {
            self.next_share = Nanos(self.now.0 + SHARE_EVERY.0);
            self.share();
        }
        if self.document.is_infinite() && self.receiver.received_bytes() >= DOCUMENT {
            self.document = self.now.as_secs_f64() - self.start.as_secs_f64();
        }
        if self.next_point <= self.now {
            self.next_point = Nanos(self.now.0 + POINT_EVERY.0);
            self.record_point();
        }
        if self.begun && sends {
            self.sender.tick(self.now);
            self.transmit();
        }
    }

    fn arrive_forward(&mut self, packet: Forward) {
        match packet {
            Forward::Data(segment) => {
                let ack = self.receiver.receive(self.now, &segment);
                let rest = if self.fits_window { TRAINS_EVERY } else { RECEIVER_EVERY };
                if self.now.0 >= self.sampled.1.0 + rest.0 && self.next_read.is_none() {
                    self.sample_receiver(Bytes::ZERO);
                }
                if let Some(ack) = ack {
                    // The acknowledgement carries the window decided just now.
                    self.send_ack(Ack { right: self.receiver.right(), ..ack });
                }
            }
            Forward::Train(train) => {
                if let Some(prober) = &mut self.prober {
                    prober.take_train(self.now, train);
                }
            }
            Forward::Answer { number, sent } => {
                if let Some(prober) = &mut self.prober {
                    prober.take_answer(self.now, number, sent);
                }
            }
        }
    }

    fn arrive_backward(&mut self, packet: Backward) {
        match packet {
            Backward::Ack(ack) => {
                if let Some(rtt) = self.sender.acknowledge(self.now, &ack) {
                    self.rtts.0 += rtt.0 / 1_000;
                    self.rtts.1 += 1;
                }
                if self.is_sender_due() {
                    self.sample_sender();
                }
            }
            Backward::Probe { number, sent } => {
                self.offer_forward(PROBE_BYTES, Forward::Answer { number, sent });
            }
        }
    }

    /// Whether the sender is due for a sample, as in the kernel: at each acknowledgement during `fit`'s start, which
    /// ends soon after its third roof; later once per round trip.
    fn is_sender_due(&self) -> bool {
        if self.sees_acknowledgements {
            return self.roofs.1 < 3 || self.sender.acknowledged() > self.round_until;
        }
        self.next_sample.is_none() && self.now.0 >= self.sampled.0.0 + self.sender.srtt().0
    }

    fn offer_forward(&mut self, bytes: u32, packet: Forward) {
        if let Fate::Deliver { at } = self.path.borrow_mut().forward.offer(self.now, bytes) {
            self.forward.push_back((at, packet));
        }
    }

    fn offer_backward(&mut self, bytes: u32, packet: Backward) {
        if let Fate::Deliver { at } = self.path.borrow_mut().backward.offer(self.now, bytes) {
            self.backward.push_back((at, packet));
        }
    }

    fn send_ack(&mut self, ack: Ack) {
        self.offer_backward(ACK_BYTES, Backward::Ack(ack));
    }

    fn transmit(&mut self) {
        while let Some(segment) = self.sender.transmit(self.now) {
            self.offer_forward(SEGMENT_BYTES, Forward::Data(segment));
        }
    }

    fn probe(&mut self) {
        let Some(prober) = &mut self.prober else { return };
        let train = prober.next_train().filter(|at| *at <= self.now).map(|_| prober.send_train());
        let probe = (prober.next_probe() <= self.now).then(|| prober.send_probe());
        if let Some(train) = train {
            for _ in 0..TRAIN_PACKETS {
                self.offer_forward(TRAIN_BYTES, Forward::Train(train));
            }
        }
        if let Some(number) = probe {
            self.offer_backward(PROBE_BYTES, Backward::Probe { number, sent: self.now });
        }
    }

    fn micros(&self) -> Micros {
        Micros(self.now.0 / 1_000)
    }

    fn sample_sender(&mut self) {
        self.sampled.0 = self.now;
        let now = self.micros();
        if let Some(side) = &mut self.send_side {
            let decision = side.observe(&self.sender.sample(), now);
            if let Some(payload) = decision.send_buffer {
                self.sender.set_send_buffer(Bytes(payload.0 * 8 / self.held_eighths).min(MAXIMUM));
            }
            if self.sees_acknowledgements || self.next_sample.is_some() {
                self.sender.set_max_pacing(decision.pacing.map(|rate| rate.0));
                self.roofs.1 += u32::from(decision.pacing != self.roofs.0);
                self.roofs.0 = decision.pacing;
            }
            self.round_until = self.sender.sent();
        }
    }

    fn decide_at_receiver(&mut self, read: Bytes) -> Decision {
        self.sampled.1 = self.now;
        let mut sample = self.receiver.sample();
        sample.read_size = read;
        if self.fits_window {
            sample.min_rtt = Micros(self.handshake.map_or(0, |rtt| rtt.0) / 1_000);
        }
        if let Some(prober) = &self.prober {
            prober.fill(&mut sample);
        }
        let now = self.micros();
        let Some(policy) = &mut self.receive_side else { return Decision::NONE };
        let decision = policy.observe(&sample, now);
        self.next_of_receiver =
            policy.next_sample(now).map_or(Nanos(self.now.0 + RECEIVER_EVERY.0), |at| Nanos(at.0 * 1_000));
        decision
    }

    fn sample_receiver(&mut self, read: Bytes) {
        let decision = self.decide_at_receiver(read);
        if let Some(window) = decision.receive_window {
            self.receiver.set_limit(window.min(MAXIMUM));
        }
        // The sender follows the receiver's policy if it has none of its own.
        let request = Request { send_buffer: decision.send_buffer, pacing: decision.pacing };
        if request != self.last_request {
            self.last_request = request;
            self.requests.push_back((Nanos(self.now.0 + self.half_rtt.0), request));
        }
    }

    fn apply_request(&mut self, request: Request) {
        if let Some(rate) = request.pacing {
            self.sender.set_pacing((rate != Rate::MAX).then_some(rate.0));
        }
        if let Some(buffer) = request.send_buffer.filter(|_| self.send_side.is_none()) {
            self.sender.set_send_buffer(buffer.min(MAXIMUM));
        }
    }

    /// The application of drsFTP reads all available bytes.
    fn read(&mut self) {
        self.next_read = Some(Nanos(self.now.0 + READ_EVERY.0));
        let read = self.receiver.read();
        self.sample_receiver(read);
        if let Some(ack) = self.receiver.update_window(self.now) {
            self.send_ack(ack);
        }
    }

    fn share(&mut self) {
        if let Some(side) = &mut self.send_side {
            side.share();
        }
    }

    fn record_point(&mut self) {
        let received = self.receiver.received_bytes();
        self.points.push(Point {
            seconds: self.now.as_secs_f64() - self.start.as_secs_f64(),
            bits_per_sec: (received - self.point_bytes) as f64 * 8.0 / POINT_EVERY.as_secs_f64(),
            rtt_ms: self.sender.srtt().as_secs_f64() * 1e3,
            queue_bytes: self.path.borrow_mut().forward.backlog_bytes(self.now),
            window_bytes: self.sender.window_bytes(),
        });
        self.point_bytes = received;
    }

    fn outcome(self) -> Outcome {
        let seconds = self.now.as_secs_f64() - self.start.as_secs_f64();
        let counters = self.path.borrow_mut().forward.counters(self.now);
        let lost = counters.drops_queue_packets + counters.drops_random_packets;
        let counted = counters.delivered_packets + lost + counters.queued_packets;
        assert_eq!(counters.offered_packets, counted, "the link accounts for every packet");
        Outcome {
            goodput_bps: (self.receiver.received_bytes() as f64 * 8.0 / seconds) as u64,
            drops: counters.drops_queue_packets,
            retransmissions: self.sender.retransmissions,
            timeouts: self.sender.timeouts,
            mean_rtt: Micros(self.rtts.0 / self.rtts.1.max(1)),
            peak_flight: self.sender.peak_flight,
            peak_held: self.receiver.peak_held,
            points: self.points,
            document: self.document,
            room: self.receive_side.as_ref().map_or(0, ReceiveSide::room),
        }
    }
}
