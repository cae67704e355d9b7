//! The transitions of Prasad 2004, figure 8, and the watch after a decision.
//!
//! Where the figure leaves a choice, ours is:
//! - *buffer-limited* means `R * T >= 0.9 * S`, or within two segments of `S`. (`S` starts at `1.2 * C' * T`, so a path
//!   that is full without our limit shows 0.83; delayed acknowledgements and sampling cost a few percent of `R * T`.)
//! - The rate of a const-rate-drop is the constant one *before* the drop: the rate after it is the sender's recovery,
//!   and would hold the flow below the path.
//! - A *rate drop* in slow start is any fall of more than 2% below its largest rate: there the rate can only rise, so a
//!   fall means a loss. (With 20%, as for const-rate-drop, a loss in a window that was half slow start passes for two
//!   flat values, and the flow ends at a fifth of the path.)
//!
//! Beyond the paper (ours): a flat rate alone does not show a full path. After a loss far below the path's rate two
//! windows may hold the same number of bytes by chance. With windows of hundreds of segments, Reno's growth over five
//! readings, some segments, is less than the noise of a host that samples every few milliseconds. A full path has a
//! queue, or a rate near the largest seen and near the estimate. So
//! - flat-rate counts only if a queue stands during those readings, or if the rate is at least 0.8 of the largest (Prasad
//!   2004's measure of a drop) and 0.6 of `C'` (which may be a third too high, but not more); const-rate-drop counts
//!   only if the rate before the drop fulfils the second condition;
//! - while a queue stands, five readings within 5% are flat whatever their slope, because then only the path limits the
//!   rate;
//! - a slow start whose rate is flat without either condition has ended in a loss: state 3 follows.
//!
//! With [`Config::flat_alone`](super::Config::flat_alone) these three do not apply, and five readings are flat by their
//! slope alone: the paper's rule as written. The choices above remain, because the paper needs some choice there.

use super::detectors::{LONGEST, falls};
use super::{Sobas, State, View};
use bufwise_units::{Bytes, Micros, Rate};

/// This many readings in a row that differ from the decision by a fifth mean another path, or other flows on it. Fewer
/// may come from a host that paused; opening the window then would fill the queue for seconds.
const OUTLIERS: u32 = 4;
/// The first limit over the estimated bandwidth-delay product: 1.2 (Prasad 2004, figure 8).
const INITIAL_EXCESS: (u64, u64) = (12, 10);
/// Readings that make a rate flat: two in slow start, five later (Prasad 2004, section IV-B).
const FLAT_IN_SLOW_START: usize = 2;
const FLAT_LATER: usize = 5;
/// Least share of the largest rate that a full path has: 0.8, Prasad 2004's measure of a drop.
const NEAR_LARGEST: (u64, u64) = (4, 5);
/// Least share of the estimate that a full path has: 0.6. Trains err by up to a third; the rest is a margin.
const NEAR_ESTIMATE: (u64, u64) = (3, 5);
/// For a continuous transfer, a change of rate or round trip by this part (a fifth) means another path; Prasad 2004's
/// measure of a drop, in both directions.
const CHANGED_BY: u64 = 5;
/// Time after which a continuous transfer tests its decision again (ours: a test takes ten round trips, much less).
const RETRY: Micros = Micros::from_secs(10);
/// For a continuous transfer, a retried rate within 5% of the old one counts as the old one (Prasad 2004's measure of
/// constant).
const SAME_RATE: (u64, u64) = (21, 20);
/// Larger windows count as this when nine tenths of them are computed: the product stays in 64 bits.
const LARGEST_FILLED: Bytes = Bytes(1 << 50);
/// Most round trips of growth that one call adds.
const MOST_ROUNDS: u64 = 1 << 32;

/// The measurements on which a decision rested.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SobasDecision {
    /// The path's rate.
    pub rate: Rate,
    /// The path's round-trip time.
    pub rtt: Micros,
    /// Time of the decision.
    pub at: Micros,
    /// The limit that was set.
    pub window: Bytes,
    /// Readings in a row that no longer fit the decision.
    pub outliers: u32,
}

impl Sobas {
    /// Returns `1.2 * C' * T`, within the bounds.
    pub(super) fn initial_window(&self, estimate: Rate, rtt: Micros, mss: Bytes) -> Bytes {
        self.clamped(estimate.over(rtt).scaled(INITIAL_EXCESS.0, INITIAL_EXCESS.1), mss)
    }

    /// Acts in state 4: grows by one segment for each round trip that passed since the last increase.
    pub(super) fn grow(&mut self, rtt: Micros, mss: Bytes, now: Micros) {
        if self.state != State::BufferLimited || rtt == Micros::ZERO {
            return;
        }
        let rounds = now.since(self.grown_at).0 / rtt.0;
        self.grown_at += rtt.times(rounds);
        self.window = self.clamped(self.window + mss.times(rounds.min(MOST_ROUNDS)), mss);
    }

    /// Judges a reading, in the states 2 to 5.
    pub(super) fn step(&mut self, view: &View) {
        self.peak = self.peak.max(view.reading.rate);
        match self.state {
            State::Estimating | State::Congested => {}
            State::SlowStart => self.step_growing(view, FLAT_IN_SLOW_START),
            State::Recovery => self.step_growing(view, FLAT_LATER),
            State::BufferLimited => {
                self.step_to_final(view, FLAT_LATER);
            }
            State::Final => self.watch(view),
        }
    }

    fn step_growing(&mut self, view: &View, flat: usize) {
        if let Some(rate) = self.dropped() {
            self.decide(rate, view);
        } else if self.is_buffer_limited(view) {
            self.state = State::BufferLimited;
            self.window = self.clamped(self.window + view.mss, view.mss);
            self.grown_at = view.reading.at;
            self.series.clear();
        } else if self.step_to_final(view, flat) || self.state == State::Recovery {
        } else if falls(self.peak, &view.reading, view.mss) {
            self.recover();
        }
    }

    /// Enters state 5 if either signature shows, or 3 if slow start has ended for another reason; returns whether it
    /// entered one of them.
    fn step_to_final(&mut self, view: &View, flat: usize) -> bool {
        let dropped = self.dropped();
        let alone = self.config.flat_alone;
        let queues = !alone && !self.config.unloaded_rtt && self.path.stands(flat);
        let level = queues && flat == FLAT_LATER && self.series.is_level(flat, view.mss);
        let flat = if alone {
            self.series.is_flat_by_slope(flat, view.mss, view.rtt)
        } else {
            self.series.is_flat(flat, view.mss, view.rtt)
        };
        if let Some(rate) = dropped {
            self.decide(rate, view);
        } else if level || flat && (queues || self.could_be_full(view.reading.rate)) {
            self.decide(view.reading.rate, view);
        } else if flat && self.state == State::SlowStart {
            self.recover();
        } else {
            return false;
        }
        true
    }

    /// Returns the rate before a const-rate-drop, if the path could have been full at it.
    fn dropped(&self) -> Option<Rate> {
        self.series.dropped_from_constant().filter(|rate| self.could_be_full(*rate))
    }

    /// Whether the rate is near the largest rate and near the estimate. As published, any rate may be that of a full path.
    fn could_be_full(&self, rate: Rate) -> bool {
        let near = |(part, of), largest: Rate| rate.0 * of >= largest.0 * part;
        self.config.flat_alone || near(NEAR_LARGEST, self.peak) && near(NEAR_ESTIMATE, self.estimate)
    }

    fn recover(&mut self) {
        self.state = State::Recovery;
        self.series.clear();
    }

    fn is_buffer_limited(&self, view: &View) -> bool {
        if self.window == self.config.max_window {
            return false;
        }
        let held = held(view.reading.rate, view.rtt);
        held >= self.window.min(LARGEST_FILLED).scaled(9, 10) || held + view.mss.times(2) >= self.window
    }

    /// Begins again on another path than before: enters state 3 without a rate to compare with.
    pub(super) fn forget_the_path(&mut self) {
        self.decided = SobasDecision::default();
        (self.peak, self.estimate) = (Rate::ZERO, Rate::ZERO);
        self.path.start_anew();
        self.recover();
    }

    /// Enters state 5 with `S = R * T`.
    fn decide(&mut self, rate: Rate, view: &View) {
        let mut window = self.clamped(held(rate, view.rtt), view.mss);
        // A retry that found no more than before must not add its own standing queue to the limit.
        let (more, of) = SAME_RATE;
        if self.decided.window > Bytes::ZERO && rate.0 * of <= self.decided.rate.0 * more {
            window = window.min(self.decided.window);
        }
        self.state = State::Final;
        self.window = window;
        self.decided = SobasDecision { rate, rtt: view.rtt, at: view.reading.at, window, outliers: 0 };
        self.series.clear();
    }

    /// Watches in state 5 of a continuous transfer: [`OUTLIERS`] readings in a row off by a fifth mean another path.
    fn watch(&mut self, view: &View) {
        if !self.config.continuous {
            return;
        }
        let off = |new: u64, old: u64| new.abs_diff(old).saturating_mul(CHANGED_BY) > old;
        let is_outlier = off(view.reading.rate.0, self.decided.rate.0) || off(view.rtt.0, self.decided.rtt.0);
        self.decided.outliers = if is_outlier { self.decided.outliers + 1 } else { 0 };
        if self.decided.outliers >= OUTLIERS {
            self.forget_the_path();
            self.window = if view.estimate.0 > 0 {
                self.initial_window(view.estimate, view.rtt, view.mss)
            } else {
                self.config.max_window
            };
        } else if view.reading.at.since(self.decided.at) >= RETRY {
            self.state = State::BufferLimited;
            self.grown_at = view.reading.at;
            self.series.clear();
        }
    }
}

/// Returns `R * T`, the bytes that the path holds.
fn held(rate: Rate, rtt: Micros) -> Bytes {
    rate.over(rtt.min(LONGEST))
}
