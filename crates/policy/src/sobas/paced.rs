//! SOBAS with pacing (ours): a window says how much may be under way, not how fast it is sent.
//!
//! Problem: in slow start each acknowledged segment lets two segments go. So even a window of one bandwidth-delay product
//! arrives at the tight link at twice its rate, and overflows a shallow queue. Sending at the path's rate fills the path
//! without a queue. But then the two signatures of a full path show nothing: below our limit the rate is flat because of
//! the limit, and it never exceeds the limit. The queue still shows a limit that is too high. It adds up the error: a
//! limit 0.2% too high shows within seconds, and no reading of a rate is that exact.
//! Source: ours, upon the states of Prasad 2004.
//! Terms: `P` is the rate limit; `T0` the smallest round-trip time; the path *queues* when `T`, averaged over a
//! reading, exceeds `T0` by a 32nd and 0.5 ms; a queue *stands* when eight readings in a row queue (a burst of other
//! traffic has gone by then); a reading is *near* when `R >= 0.97 * P`.
//!
//! - Start: `P = 0.995 * C'` in TCP payload, if there is an estimate; otherwise as published until the rate is flat.
//! - State 2: a flight that arrives at less than 0.85 of `P` while the path queues shares it with other flows
//!   (`flights.rs`): `P` becomes the rate at which it arrives, and the search begins there.
//! - State 5, *creep*: while near and without a queue, `P` grows by 0.2, 0.4, 0.8%, each half a second. A queue that
//!   stands means that `P` is too high: `P` goes back to the step before. The next creep waits 5 s, then 10, 20 ... 80.
//! - State 4, *search*: begins where creeping finds no end, or where `R` stays below `P` while a queue stands (the path
//!   carries less: `P = 0.995 * R`). While near and without a queue, `P` grows by 2, 4, then 5% per reading. Two flat
//!   queueing readings, of a rate that was reached before, end it in state 5: at the limit that was reached without a
//!   queue, or at `0.995 * R`.
//! - *Drain*: before any limit is lowered for a queue, the flow sends 15/16 of what arrives for some round trips. A
//!   queue of our own drains. If the round-trip time does not fall by a quarter of its excess, the queue is not ours:
//!   the path is longer, `T0` is measured anew and `P` stays.
//! - Losses in three readings in a row below `P`, or a const-rate-drop with a loss, mean a queue too short to show:
//!   `P = 0.995 * R`, and search. A loss just after a step takes the step back.
//! - `S = P * (1.07 * T0 + 0.5 ms) + 4 * mss`: enough slack that `P` limits, not `S`; small enough that a `P` too high
//!   queues less than an eighth of the bandwidth-delay product, large enough that the queue shows. While `P` is being
//!   raised, `S` follows the rate that was really reached.
//!
//! Properties kept: while a path is steady, state 5 never holds less than 0.97 of the best rate it has seen there, and
//! an unneeded cut is recovered by creeping up; an estimate that is too low does not last; no limit on a congested path
//! (state 6), where `P` is lifted too.

use super::detectors::falls;
use super::pacer::Drain;
use super::round_trips::STANDING;
use super::{Reading, Sobas, State, View};
use bufwise_units::{Bytes, Micros, Rate, Sample};

/// Share of a measured rate that is used: 0.995, because `S` bounds the queue that an error makes.
const USED: (u64, u64) = (995, 1_000);
/// A flight is slowed by other flows if it arrives at less than this share of the limit. (Slow start paces at twice the
/// congestion window per round trip, so a flight may be slower without them, but then there is no queue.)
const SLOWED: (u64, u64) = (85, 100);
/// A reading of at least this share of the limit is held back by the limit. The remaining 3% allow for half a segment of
/// jitter at the ends of a window of 20 segments; a change of the path is larger.
const NEAR: (u64, u64) = (97, 100);
/// Steps by which the limit is raised, in thousandths: first those of state 5, then those of a search. The last
/// is below the slack of the window.
const STEPS: [u64; 6] = [2, 4, 8, 20, 40, 50];
/// The first step of a search.
const SEARCH: usize = 3;
/// Time between the steps of state 5, which also need [`QUIET`] readings. In this time a limit 0.4% too high makes 2 ms
/// of queue.
const CREEP: Micros = Micros::from_millis(500);
/// Time before the first step after a cut, doubled with each further cut, at most [`DOUBLINGS`] times.
const CREEP_AFTER_CUT: Micros = Micros::from_secs(5);
const DOUBLINGS: u32 = 4;
/// The same bound for a continuous flow, which should find a higher rate within seconds.
const DOUBLINGS_CONTINUOUS: u32 = 1;
/// Flat queueing readings in a row that end a search: the second was measured at the tight link's own rate.
const QUEUED: usize = 2;
/// A search ends only if the rate of these readings is at most this share of the limit. The steps of a search exceed the
/// path's rate by more than the remaining 1.5%.
const BEYOND: (u64, u64) = (985, 1_000);
/// Number of readings whose mean must show no queue before the limit creeps up.
const QUIET: usize = 5;
/// Readings with losses below the limit, in a row, that mean a queue too short to show in the round-trip time.
const LOSSY: u32 = 3;
/// A loss within this time after a step is attributed to the step.
const BLAMED: Micros = Micros::from_secs(2);
/// Shares for a cut in state 5, in thousandths. The limit becomes 99.8% of the arriving rate, but at least 98% of the old
/// limit and 99.5% of the rate reached without a queue, and at most 99.8% of the old limit.
const CUT: (u64, u64, u64) = (980, 995, 998);
/// A cut leaves at least this share of the best rate in state 5.
const KEPT: (u64, u64) = (97, 100);

/// State of the search for the limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Index into [`STEPS`].
    step: usize,
    /// The limit before it was last raised, which was reached without a queue. Zero: none.
    reached: Rate,
    /// Best mean rate over [`STANDING`] readings in state 5 since the path changed.
    best: Rate,
    /// Number of cuts in state 5 since a step last gained rate.
    cuts: u32,
    /// When the limit last moved.
    moved_at: Micros,
    /// Readings in a row that were below the limit and saw losses.
    lossy: u32,
    /// Segments out of order at the last reading.
    out_of_order: u64,
}

impl Sobas {
    /// Goes from state 1 to 2: paces at 0.995 of the estimate from the first segment on.
    pub(super) fn start_paced(&mut self, estimate: Rate, mss: Bytes) {
        self.pacer.set(estimate.scaled(USED.0, USED.1));
        self.follow_base(mss);
    }

    /// Sets the window for `T0`, which may have fallen: before data flow, `T0` often contains the queue of the trains.
    pub(super) fn follow_base(&mut self, mss: Bytes) {
        if self.pacer.limit().is_some_and(|limit| limit < Rate::MAX) {
            self.window = self.clamped(self.pacer.window(self.path.shortest(), mss), mss);
        }
    }

    /// Begins a search in slow start if a flight shows other flows on the path.
    pub(super) fn follow_flights(&mut self, sample: &Sample, rtt: Micros, mss: Bytes, now: Micros) {
        let Some(limit) = self.pacer.limit().filter(|_| self.state == State::SlowStart) else { return };
        let arrived = self.flights.see(sample.bytes_received, self.path.base(), now);
        let slowed = |rate: &Rate| *rate < part(limit, SLOWED) && self.path.queues(rtt);
        if let Some(rate) = arrived.filter(slowed) {
            let reading = Reading { at: now, span: Micros::ZERO, rate };
            let view =
                View { reading, rtt, mss, estimate: Rate::ZERO, out_of_order: sample.rcv_out_of_order };
            self.search_from(used(rate), &view);
        }
    }

    /// Judges a reading, in any state.
    pub(super) fn step_paced(&mut self, view: &View) {
        let lost = std::mem::replace(&mut self.search.out_of_order, view.out_of_order) < view.out_of_order;
        let at = view.reading.at;
        if let Some(drain) = self.pacer.watch_drain(&mut self.path, view.rtt, lost, at) {
            self.end_drain(view, &drain);
            return;
        }
        match (self.state, self.pacer.limit()) {
            (State::Estimating | State::Congested, _) => {}
            _ if self.pacer.is_draining() => {}
            (_, None | Some(Rate::MAX)) => self.find_rate(view),
            (State::Final, Some(limit)) => self.step_final(view, limit, lost),
            (State::SlowStart | State::Recovery | State::BufferLimited, Some(limit)) => {
                self.step_searching(view, limit, lost);
            }
        }
    }

    /// Acts as published, without a known rate, until a rate is flat or falls; that rate then begins the search.
    fn find_rate(&mut self, view: &View) {
        let count = if self.state == State::SlowStart { 2 } else { 5 };
        let rate = self
            .series
            .dropped_from_constant()
            .or_else(|| self.series.is_flat(count, view.mss, view.rtt).then_some(view.reading.rate));
        if let Some(rate) = rate {
            self.search_from(used(rate), view);
        }
    }

    /// Whether the limit holds the rate back. Also counts the readings in a row that are below the limit and saw losses.
    fn is_near(&mut self, view: &View, limit: Rate, lost: bool) -> bool {
        let near = view.reading.rate >= part(limit, NEAR);
        self.search.lossy = if lost && !near { self.search.lossy.saturating_add(1) } else { 0 };
        near
    }

    /// Acts in states 2 to 4: raises the limit while it holds the rate back, until the path queues.
    fn step_searching(&mut self, view: &View, limit: Rate, lost: bool) {
        let near = self.is_near(view, limit, lost);
        // A rate that still rises is not yet the tight link's own; after twice as many lossy readings it counts anyway.
        let flat = self.series.is_flat(QUEUED, view.mss, view.rtt);
        let dropped = self.series.dropped_from_constant().filter(|rate| *rate < part(limit, NEAR));
        if let Some(rate) = dropped
            && lost
        {
            self.search_from(used(rate), view);
        } else if self.search.lossy >= if flat { LOSSY } else { 2 * LOSSY } {
            self.search_from(used(self.series.best_of_two()), view);
        } else if self.is_full(limit, flat) {
            self.settle(view, limit);
        } else if near && !self.path.queues(view.rtt) {
            self.raise(view, limit);
        } else if self.state == State::SlowStart {
            if falls(self.peak, &view.reading, view.mss) {
                self.state = State::Recovery;
            }
            self.peak = self.peak.max(view.reading.rate);
        }
    }

    fn is_full(&self, limit: Rate, flat: bool) -> bool {
        let beyond = self.path.mean_rate(QUEUED).is_some_and(|rate| rate <= part(limit, BEYOND));
        let expected = self.state != State::BufferLimited || self.still_arrives(limit);
        expected && beyond && flat && self.path.stands(QUEUED) || self.path.stands(STANDING)
    }

    /// Ends the search if the path still carries the rate reached; otherwise goes on from the rate that the path carries.
    fn settle(&mut self, view: &View, limit: Rate) {
        let rate = self.path.mean_rate(QUEUED).unwrap_or(view.reading.rate);
        self.search.cuts = 0;
        if self.still_arrives(limit) {
            let next = used(rate).max(self.search.reached.min(rate));
            self.drain(view, next, State::Final);
        } else {
            self.drain(view, used(rate), State::BufferLimited);
        }
    }

    /// Whether the rate reached before the last steps still arrives; then the limit is just above the path's rate.
    fn still_arrives(&self, limit: Rate) -> bool {
        let reached = if self.search.reached == Rate::ZERO { limit } else { self.search.reached };
        self.path.best_rate(QUEUED).is_some_and(|best| best >= part(reached, NEAR))
    }

    /// Raises the limit by one step, in state 5 or, with the larger steps, in state 4.
    fn raise(&mut self, view: &View, limit: Rate) {
        let more = STEPS[self.search.step.min(STEPS.len() - 1)];
        self.search.step = (self.search.step + 1).min(STEPS.len() - 1);
        self.search.reached = limit;
        self.search.moved_at = view.reading.at;
        self.pacer.raise(limit.scaled(1_000 + more, 1_000), view.reading.rate);
        self.path.forget();
        let searching = more >= STEPS[SEARCH];
        if searching {
            self.search.cuts = 0;
        }
        self.enter(if searching { State::BufferLimited } else { State::Final }, view);
    }

    /// Acts in state 5: creeps up to the path's rate, and back when a queue stands.
    fn step_final(&mut self, view: &View, limit: Rate, lost: bool) {
        let near = self.is_near(view, limit, lost);
        if let Some(rate) = self.path.mean_rate(STANDING) {
            self.search.best = self.search.best.max(rate);
        }
        let blamed =
            self.search.reached > Rate::ZERO && view.reading.at.since(self.search.moved_at) <= BLAMED;
        if self.path.stands(STANDING) {
            if self.path.best_rate(STANDING).is_some_and(|best| best >= part(limit, NEAR)) {
                let next = self.step_back(limit);
                self.drain(view, next, State::Final);
            } else {
                let rate = self.path.median_rate(STANDING / 2).unwrap_or(view.reading.rate);
                self.drain(view, used(rate), State::BufferLimited);
            }
        } else if self.search.lossy >= LOSSY {
            self.search_from(used(self.series.best_of_two()), view);
        } else if lost && blamed {
            // A loss costs more than a queue, so it counts as two cuts.
            self.search.cuts = self.search.cuts.saturating_add(1);
            let next = self.step_back(limit);
            self.hold(next, view);
        } else if near && !self.path.queues(view.rtt) && self.may_creep(view) {
            self.raise(view, limit);
        }
    }

    /// Returns the next limit after one that was too high, and counts a cut.
    fn step_back(&mut self, limit: Rate) -> Rate {
        self.search.cuts = self.search.cuts.saturating_add(1);
        let arriving = self.path.median_rate(STANDING).unwrap_or_default();
        let thousandths = |rate: Rate, thousandths| part(rate, (thousandths, 1_000));
        let least = thousandths(limit, CUT.0)
            .max(thousandths(self.search.reached, CUT.1))
            .max(part(self.search.best, KEPT));
        thousandths(arriving, CUT.2).max(least).min(thousandths(limit, CUT.2))
    }

    fn may_creep(&self, view: &View) -> bool {
        let most = if self.config.continuous { DOUBLINGS_CONTINUOUS } else { DOUBLINGS };
        let wait = match (self.search.step, self.search.cuts) {
            (0, 1..) => CREEP_AFTER_CUT.times(1 << (self.search.cuts - 1).min(most)),
            _ => CREEP,
        };
        let quiet = self.path.mean_rtt(QUIET).is_some_and(|rtt| !self.path.queues(rtt));
        quiet && view.reading.at.since(self.search.moved_at) >= wait
    }

    /// Sends less than what arrives for a while; the limit is `next` afterwards if the queue was our own.
    fn drain(&mut self, view: &View, next: Rate, then: State) {
        self.pacer.start_drain(&mut self.path, (next, then), view.reading.at);
        self.follow_base(view.mss);
    }

    fn end_drain(&mut self, view: &View, drain: &Drain) {
        let searching = drain.then == State::BufferLimited;
        if drain.was_ours {
            if searching {
                self.search_from(drain.next, view);
            } else {
                self.hold(drain.next, view);
            }
            return;
        }
        // On the longer path the old `S` was too small and held the rate back; a search finds the higher rate.
        if searching {
            self.search.step = SEARCH;
        }
        self.enter(if searching { State::BufferLimited } else { self.state }, view);
    }

    fn search_from(&mut self, rate: Rate, view: &View) {
        let out_of_order = self.search.out_of_order;
        self.search = Search { step: SEARCH, moved_at: view.reading.at, out_of_order, ..Search::default() };
        self.pacer.set(rate);
        self.path.forget();
        self.enter(State::BufferLimited, view);
    }

    /// Enters state 5 at this limit. Forgets the rate reached before, because that rate was wrong if a queue stands at
    /// this limit, too.
    fn hold(&mut self, rate: Rate, view: &View) {
        self.search.step = 0;
        self.search.reached = Rate::ZERO;
        self.search.moved_at = view.reading.at;
        self.search.lossy = 0;
        self.pacer.set(rate);
        self.path.forget();
        self.enter(State::Final, view);
    }

    fn enter(&mut self, state: State, view: &View) {
        self.state = state;
        self.follow_base(view.mss);
    }
}

fn used(rate: Rate) -> Rate {
    part(rate, USED)
}

fn part(rate: Rate, (part, of): (u64, u64)) -> Rate {
    rate.scaled(part, of)
}
