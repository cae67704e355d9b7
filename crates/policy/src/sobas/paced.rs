//! SOBAS with pacing (ours): a window says how much may be under way, not how fast it leaves.
//!
//! Problem: in slow start acknowledgements clock out two segments for each one delivered, so even a window
//! of one bandwidth-delay product arrives at the tight link at twice its rate and overflows a shallow queue.
//! Sending at the path's rate fills the path without a queue. But then the path's signatures vanish too: a
//! rate that we limit is flat because we limit it, and measured under a limit no rate exceeds it. The queue
//! is left. It integrates the limit's error: a limit 0.2% too high shows within seconds, where no reading
//! of a rate is that exact.
//! Source: ours, upon the states of Prasad 2004. Terms: `P` the rate limit; `T0` smallest round-trip time; the path
//! *queues* when `T`, averaged over a reading, exceeds `T0` by a 32nd and 0.5 ms; a queue *stands* when eight
//! readings in a row queue (a burst of others has gone by then); a reading is *near* when `R >= 0.97 * P`.
//!
//! - Start: `P = 0.995 * C'` in TCP payload, if there is an estimate; else as published until the rate is flat.
//! - State 2: a flight that arrives at less than 0.85 of `P` while the path queues meets others there (`flights.rs`): `P` is
//!   what it arrives at, and the search begins there.
//! - State 5, *creep*: near, and no queue: `P` grows by 0.2, 0.4, 0.8%, each half a second. A queue that stands
//!   means that `P` is too high: back to the step before. The next creep waits 5 s, then 10, 20 ... 80.
//! - State 4, *search*, where creeping finds no end, or where `R` stays below `P` while a queue stands (the path
//!   carries less: `P = 0.995 * R`): near, and no queue, `P` grows by 2, 4, then 5% per reading. Two flat
//!   queueing readings, of a rate that was reached before, end it in state 5: at the limit that was reached
//!   without a queue, or at `0.995 * R`.
//! - *Drain*: before any limit is lowered for a queue, the flow sends 15/16 of what arrives for some round
//!   trips. A queue of ours drains; if the round-trip time does not fall by a quarter of its excess, the queue
//!   is not ours: the path is longer, `T0` is measured anew and `P` stays.
//! - Losses in three readings in a row below `P`, or a const-rate-drop with a loss, mean a queue too short to
//!   show: `P = 0.995 * R`, and search. A loss just after a step takes the step back.
//! - `S = P * (1.07 * T0 + 0.5 ms) + 4 * mss`: slack so that `P` limits, not `S`; small enough that raising
//!   `P` too far queues less than an eighth of the bandwidth-delay product, large enough that the queue shows.
//!   While `P` is being raised, `S` follows the rate that was really reached.
//!
//! Keeps: while a path is steady, state 5 never holds less than 0.97 of the best rate it has seen there, and a
//! cut for nothing is crept back; an estimate that is too low does not last; no limit on a congested path
//! (state 6), where `P` is lifted too.

use super::detectors::falls;
use super::pacer::Drain;
use super::round_trips::STANDING;
use super::{Reading, Sobas, State, View};
use bufwise_units::{Bytes, Micros, Rate, Sample};

/// Share of a measured rate that is used: little, for `S` bounds what the error queues.
const USED: (u64, u64) = (995, 1_000);
/// A flight is slowed by others if it arrives at less than this share of the limit. (Slow start paces at twice the
/// congestion window in a round trip, so a flight may be slower; but then without a queue.)
const SLOWED: (u64, u64) = (85, 100);
/// A rate this near to the limit is held back by the limit: half a segment's jitter at the ends of a window
/// of 20 segments, and little against any change of a path.
const NEAR: (u64, u64) = (97, 100);
/// Steps by which the limit is raised, in thousandths: first those of state 5, then those of a search. The last
/// is below the slack of the window.
const STEPS: [u64; 6] = [2, 4, 8, 20, 40, 50];
/// The first step of a search.
const SEARCH: usize = 3;
/// Time between the steps of state 5 (and [`QUIET`] readings): 4 thousandths too much make 2 ms of queue in it.
const CREEP: Micros = Micros::from_millis(500);
/// Time before the first step after a cut; doubled with each further one, at most so often.
const CREEP_AFTER_CUT: Micros = Micros::from_secs(5);
const DOUBLINGS: u32 = 4;
/// The same for a continuous flow, which is to notice more rate within seconds.
const DOUBLINGS_CONTINUOUS: u32 = 1;
/// Flat readings in a row with a queue that end a search: the second was measured at the tight link's own rate.
const QUEUED: usize = 2;
/// ... if their rate is below this share of the limit: steps of a search go beyond a path's rate by more.
const BEYOND: (u64, u64) = (985, 1_000);
/// Readings without a queue, in the mean, before the limit creeps.
const QUIET: usize = 5;
/// Readings with losses, below the limit, in a row: a queue too short to show in the round-trip time.
const LOSSY: u32 = 3;
/// A loss within this time of a step was the step's.
const BLAMED: Micros = Micros::from_secs(2);
/// A cut in state 5 leaves, in thousandths: at least so much of the limit, at least so much of the rate reached without a
/// queue, and at most so much of the limit and of what arrives.
const CUT: (u64, u64, u64) = (980, 995, 998);
/// Cuts in state 5 leave so much of the best rate that it saw.
const KEPT: (u64, u64) = (97, 100);

/// Where the search for the limit stands.
#[derive(Clone, Debug, Default)]
pub(super) struct Search {
    /// Place in [`STEPS`].
    step: usize,
    /// The limit before it was last raised: reached, and without a queue. Zero: none.
    reached: Rate,
    /// Best mean rate over [`STANDING`] readings in state 5 since the path changed.
    best: Rate,
    /// Cuts in state 5 since something was gained.
    cuts: u32,
    /// When the limit last moved.
    moved_at: Micros,
    /// Readings in a row that were below the limit and saw losses.
    lossy: u32,
    /// Segments out of order at the last reading.
    out_of_order: u64,
}

impl Sobas {
    /// State 1 to 2: paces at the estimate from the first segment on.
    pub(super) fn start_paced(&mut self, estimate: Rate, mss: Bytes) {
        self.pacer.set(estimate.scaled(USED.0, USED.1));
        self.follow_base(mss);
    }

    /// Keeps the window to `T0`, which may have fallen: before data flow it is often that of the trains' own queue.
    pub(super) fn follow_base(&mut self, mss: Bytes) {
        if self.pacer.limit().is_some_and(|limit| limit < Rate::MAX) {
            self.window = self.clamped(self.pacer.window(self.path.shortest(), mss), mss);
        }
    }

    /// In slow start: does a flight show that others are on the path?
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

    /// Judges a reading.
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

    /// No rate known: as published until a rate is flat or falls, then from that rate on.
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

    /// Whether the limit is what limits; counts the readings in a row where losses do.
    fn is_near(&mut self, view: &View, limit: Rate, lost: bool) -> bool {
        let near = view.reading.rate >= part(limit, NEAR);
        self.search.lossy = if lost && !near { self.search.lossy.saturating_add(1) } else { 0 };
        near
    }

    /// States 2 to 4: raises the limit while it is what limits; ends when the path queues.
    fn step_searching(&mut self, view: &View, limit: Rate, lost: bool) {
        let near = self.is_near(view, limit, lost);
        // Still rising: not yet the tight link's own rate. But not for ever.
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

    /// Ends the search if the path carries what was reached; else goes on from what it carries.
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

    /// Whether the rate reached before the last steps still arrives: the limit is just beyond the path's rate.
    fn still_arrives(&self, limit: Rate) -> bool {
        let reached = if self.search.reached == Rate::ZERO { limit } else { self.search.reached };
        self.path.best_rate(QUEUED).is_some_and(|best| best >= part(reached, NEAR))
    }

    /// One step up, in state 5 or, with the larger ones, in state 4.
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

    /// State 5: creeps up to the path's rate, and back when a queue stands.
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
            // A loss costs more than a queue: twice the patience.
            self.search.cuts = self.search.cuts.saturating_add(1);
            let next = self.step_back(limit);
            self.hold(next, view);
        } else if near && !self.path.queues(view.rtt) && self.may_creep(view) {
            self.raise(view, limit);
        }
    }

    /// The limit after one that was too high.
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

    /// Sends less than what arrives for a while; the limit is `next` afterwards if the queue was ours.
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
        // A search finds the rate that `S` held back on the longer path.
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

    /// State 5 at this limit. The rate reached before is no guide from here on: if a queue stands here too, it was
    /// not right.
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
