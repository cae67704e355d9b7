//! SOBAS with pacing (ours): a window says how much may be under way, not how fast it leaves.
//!
//! Problem: in slow start acknowledgements clock out two segments for each one delivered, so even a window
//! of one bandwidth-delay product arrives at the tight link at twice its rate and overflows a shallow queue.
//! Sending at just under the path's rate fills the path without a queue. But then the path's signatures
//! vanish too: a rate that we limit is flat because we limit it.
//! Source: ours, upon 000's states. Terms: `P` the rate limit; `T0` smallest round-trip time; the path
//! *queues* when `T` exceeds `T0` by a 32nd and 0.5 ms; a reading is *near* when `R >= 0.97 * P`.
//!
//! - Start: `P = 0.99 * C'` in TCP payload, if there is an estimate; else as published until the rate is flat.
//! - State 4 (limited by ourselves): near, and no queue: the path may hold more. `P` grows by 2, 4, then 5%
//!   per reading while that lasts. Two flat readings in a row that queue mean
//!   that the path is full.
//! - State 5: `P = 0.99 * R`, `R` being the tight link's own rate while a queue stands before it. The queue
//!   drains. Held from there on: measured under `P` no rate exceeds `P`, so following `R` would ratchet
//!   downwards. `P` is cut only when `R` is clearly below it *and* the path queues, or loses segments in
//!   three such readings in a row (one is a sender recovering, not a full path).
//! - A second cut within four readings means that the first did not empty the queue: it is not ours, the
//!   path has become longer. `T0` is measured anew.
//! - `S = P * (1.07 * T0 + 0.5 ms) + 4 * mss`: slack so that `P` limits, not `S`; small enough that raising
//!   `P` too far queues less than an eighth of the bandwidth-delay product, large enough that the queue shows.
//!   While `P` is being raised, `S` follows the rate that was really reached.
//! - More is tried again 5 s after a decision, then after 10, 20, ... as long as nothing is gained: always when
//!   continuous, else only if the decision was below 9/10 of the estimate and may have been a mistake.
//!
//! Keeps: a steady path never lowers `P`; an estimate that is too low does not last; no limit on a congested
//! path (state 6), where `P` is lifted too.

use super::detectors::falls;
use super::{Sobas, State, View};
use crate::units::{Bytes, Micros, Rate};

/// Share of a known rate that is used: what is left drains a queue within some hundred milliseconds.
const USED: (u64, u64) = (99, 100);
/// A rate this near to the limit is held back by the limit: half a segment's jitter at the ends of a window
/// of 20 segments, and little against any change of a path.
const NEAR: f64 = 0.97;
/// Steps by which the limit is raised; the last is below the slack of the window.
const STEPS: [u64; 3] = [2, 4, 5];
/// Window over `P * T0`: 7%, what hosts add to a round trip, and four segments.
const SLACK: (u64, u64) = (107, 100);
const SLACK_SEGMENTS: u64 = 4;
/// What the jitter of hosts may add to a round trip.
const HOST_JITTER: Micros = Micros(500);
/// Queueing shows from `T0 + T0 / 32 + jitter` on. A window made for a near reading holds at least
/// `0.97 * 1.07 = 1.038` bandwidth-delay products, so that the queue which it leaves shows.
const QUEUE_SHARE: u64 = 32;
/// Readings that must queue in a row: the second was measured at the tight link's own rate throughout.
const QUEUED_READINGS: u32 = 2;
/// Readings with losses, below the limit, in a row: a queue too short to show in the round-trip time.
const LOSSY_READINGS: u32 = 3;
/// A cut within this many readings of another did not help.
const CUT_MEMORY: u32 = 4;
/// How long a decision stands before more is tried; doubled each time that nothing was gained.
const RETRY: Micros = Micros::from_secs(5);
/// A gain: what the steps of the search can tell from nothing.
const GAIN: (u64, u64) = (102, 100);
/// A decision this far below the estimate is tried again in any case.
const DOUBTFUL: (u64, u64) = (9, 10);

/// The rate limit and what it rests on.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacer {
    /// `P`; none until a rate is known, [`Rate::MAX`] where it was lifted.
    rate: Option<Rate>,
    /// `T0`; zero until measured.
    base_rtt: Micros,
    /// Rate that the window is made for.
    window_rate: Rate,
    /// Place in [`STEPS`].
    step: usize,
    /// Readings in a row that queued.
    queued: u32,
    /// Readings in a row that were below the limit and saw losses.
    lossy: u32,
    /// Segments out of order at the last reading.
    out_of_order: u64,
    /// Readings since the last cut.
    since_cut: u32,
    decided_at: Micros,
    /// The limit at the start, and at the last decision.
    estimate: Rate,
    decided: Rate,
    /// Retries in a row that gained nothing.
    vain: u32,
}

impl Pacer {
    pub(super) fn rate(&self) -> Option<Rate> {
        self.rate
    }

    pub(super) fn see_rtt(&mut self, rtt: Micros) {
        if self.base_rtt == Micros::ZERO || rtt < self.base_rtt {
            self.base_rtt = rtt;
        }
    }

    /// Lifts the limit, if there was one.
    pub(super) fn release(&mut self) {
        self.rate = self.rate.map(|_| Rate::MAX);
    }

    fn set(&mut self, rate: Rate) {
        self.rate = Some(rate);
        self.window_rate = rate;
    }

    fn window(&self, mss: Bytes) -> Bytes {
        let round_trip = self.base_rtt.scaled(SLACK.0, SLACK.1) + HOST_JITTER;
        self.window_rate.over(round_trip) + mss.times(SLACK_SEGMENTS)
    }

    fn queues(&self, rtt: Micros) -> bool {
        rtt > self.base_rtt + Micros(self.base_rtt.0 / QUEUE_SHARE) + HOST_JITTER
    }

    fn retries(&self, continuous: bool, now: Micros) -> bool {
        let doubtful = self.decided < self.estimate.scaled(DOUBTFUL.0, DOUBTFUL.1);
        let wait = RETRY.times(1_u64 << self.vain.min(16));
        (continuous || doubtful) && now.since(self.decided_at) >= wait
    }
}

/// What a reading says of the limit.
#[derive(Clone, Copy, Debug)]
struct Signals {
    /// The limit is what limits.
    near: bool,
    /// A queue stands before the tight link.
    queues: bool,
    /// It has stood, or overflowed, for long enough to believe it.
    full: bool,
}

impl Sobas {
    /// State 1 to 2: paces at the estimate from the first segment on.
    pub(super) fn start_paced(&mut self, capacity: Rate, mss: Bytes) {
        let (tcp, train) = self.config.payload_ratio;
        self.pacer.set(capacity.scaled(tcp, train).scaled(USED.0, USED.1));
        self.pacer.estimate = self.pacer.window_rate;
        self.window = self.clamped(self.pacer.window(mss), mss);
    }

    /// Judges a reading.
    pub(super) fn step_paced(&mut self, view: &View) {
        let limit = self.pacer.rate;
        let signals = self.signals(view, limit);
        match (self.state, limit) {
            (State::Estimating | State::Congested, _) => {}
            (_, None | Some(Rate::MAX)) => self.find_rate(view),
            (State::SlowStart | State::Recovery | State::BufferLimited, Some(limit)) => {
                self.step_searching(view, signals, limit);
            }
            (State::Final, Some(_)) => self.step_final(view, signals),
        }
    }

    fn signals(&mut self, view: &View, limit: Option<Rate>) -> Signals {
        let near = limit.is_some_and(|limit| view.reading.rate >= NEAR * limit.0 as f64);
        let queues = self.pacer.queues(view.rtt);
        let pacer = &mut self.pacer;
        let lost = view.out_of_order > pacer.out_of_order;
        let again = |holds: bool, count: u32| if holds { count.saturating_add(1) } else { 0 };
        pacer.queued = again(queues, pacer.queued);
        pacer.lossy = again(lost && !near, pacer.lossy);
        pacer.since_cut = pacer.since_cut.saturating_add(1);
        pacer.out_of_order = view.out_of_order;
        let full = pacer.queued >= QUEUED_READINGS || pacer.lossy >= LOSSY_READINGS;
        Signals { near, queues, full }
    }

    /// No rate known: as published until a rate is flat or falls, then from that rate on.
    fn find_rate(&mut self, view: &View) {
        let count = if self.state == State::SlowStart { 2 } else { 5 };
        let rate = self
            .series
            .dropped_from_constant()
            .or_else(|| self.series.is_flat(count, view.mss, view.rtt).then_some(view.reading.rate));
        let Some(rate) = rate else { return };
        let full = self.pacer.queues(view.rtt);
        self.pacer.step = 0;
        // A float cast saturates.
        let rate = Rate(rate as u64);
        self.pacer.set(if full { rate.scaled(USED.0, USED.1) } else { rate });
        self.enter(if full { State::Final } else { State::BufferLimited }, view);
    }

    /// States 2 to 4: raises the limit while it is what limits; ends when the path queues.
    fn step_searching(&mut self, view: &View, signals: Signals, limit: Rate) {
        // Still rising: not yet the tight link's own rate. But not for ever.
        let steady = self.series.is_flat(QUEUED_READINGS as usize, view.mss, view.rtt)
            || self.pacer.queued.max(self.pacer.lossy) >= 2 * QUEUED_READINGS;
        if signals.full && steady {
            self.settle(view);
        } else if signals.near && !signals.queues {
            let reached = Rate(view.reading.rate as u64).min(limit);
            self.pacer.window_rate = reached.max(self.pacer.window_rate.min(limit));
            let more = STEPS[self.pacer.step.min(STEPS.len() - 1)];
            self.pacer.step += 1;
            self.pacer.rate = Some(limit.scaled(100 + more, 100));
            self.enter(State::BufferLimited, view);
        } else if self.state == State::SlowStart {
            if falls(self.peak, &view.reading, view.mss) {
                self.state = State::Recovery;
            }
            self.peak = self.peak.max(view.reading.rate);
        }
    }

    /// State 5: holds the limit; cuts it when the path carries clearly less.
    fn step_final(&mut self, view: &View, signals: Signals) {
        if signals.full && !signals.near {
            if self.pacer.since_cut <= CUT_MEMORY {
                self.pacer.base_rtt = view.rtt;
            }
            self.settle(view);
        } else if signals.near
            && !signals.queues
            && self.pacer.retries(self.config.continuous, view.reading.at)
        {
            self.pacer.step = 0;
            self.enter(State::BufferLimited, view);
        }
    }

    /// `P = 0.99 * R`.
    fn settle(&mut self, view: &View) {
        let rate = Rate(self.series.best_of_two() as u64).scaled(USED.0, USED.1);
        let gained = rate > self.pacer.decided.scaled(GAIN.0, GAIN.1);
        self.pacer.vain = if gained { 0 } else { self.pacer.vain.saturating_add(1) };
        self.pacer.decided = rate;
        self.pacer.set(rate);
        self.pacer.since_cut = 0;
        self.pacer.queued = 0;
        self.pacer.lossy = 0;
        self.enter(State::Final, view);
    }

    fn enter(&mut self, state: State, view: &View) {
        if state == State::Final {
            self.pacer.decided_at = view.reading.at;
        }
        self.state = state;
        self.window = self.clamped(self.pacer.window(view.mss), view.mss);
    }
}
