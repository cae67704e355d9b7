//! Whose queue is it? What a flow does before it believes that a long queue is its own.
//!
//! Problem: on a path that others fill, `S = R * T` with the path's unloaded `T` only gives way: they take what it leaves,
//! `R` falls, and the next decision is for less. 000 tells such a path by lost probes; behind a deep queue losses are
//! seconds apart, and the receiver of an unmodified program has no probes.
//! Source: ours, upon 000, section III-B: on a congested path "a limited socket buffer ... can only reduce the target
//! transfer's throughput", so `S` is the maximum there.
//! Terms: `T` the path's round trip without a queue, `Q` the present one; the queue is *long* when `Q > 1.25 * T`.
//!
//! `R * Q` is under way whoever the queue belongs to, so looking tells nothing. But where the queue is ours, half the window
//! halves the round trip and leaves the rate; where most of it is others', the round trip stays and the rate halves.
//! So where the queue is long, `S` is cut in two steps. *Trial* (state 7): `S = R * Q / 2`, at least `R * T`. If `Q` falls
//! by three quarters of what is expected, the queue is ours: to 5, `S = R * T`. If it has not, three round trips after
//! the window that was offered before is used up (two for what a slow start has under way, one to see), the path is
//! congested: to 6, `S` is the maximum.
//! - A decision for 5 goes through the trial where the queue is long.
//! - In 4 and 5, where our own limit holds the flow, four rates in a row below 0.8 of the decided one while the queue is
//!   long mean that others have come, or that the path has become slower: trial.
//! - 6 is left for 3 when the queue was short, and nothing lost, for two seconds. While the queue is long it may have
//!   become ours alone: trial, not earlier than ten seconds after one that failed, then 20, 40, 80; what a trial costs is
//!   less than a round trip's data.
//!
//! Without an unloaded round trip that is known apart (`Sample::path_rtt`) no queue is long, and none of this happens.
//! Keeps: where others hold the queue no limit lasts longer than its trial; a flow that is alone ends with its limit.

use super::detectors::HISTORY;
use super::published::held;
use super::{PATIENCE, Sobas, State, View};
use crate::sample::Sample;
use crate::units::{Bytes, Micros};

/// Time from a failed trial to the next; doubled with each further one, at most so often.
const RETRY: Micros = Micros::from_secs(10);
const DOUBLINGS: u32 = 3;
/// A trial is over after this many of the round trips that it began with.
const LASTS: u64 = 3;
/// Rates below this share of the decided one are not what was decided: 000's measure of a drop.
const STARVED: f64 = 0.95;
/// A queue is long for this many of the path's round trips before our own limit is blamed.
const STANDS: u64 = 4;
/// An offer has room for this many times what is under way: the next doubling, and as much again for what waits
/// behind a lost segment.
const OFFERED: u64 = 4;
/// What it has room for besides, as the kernel's own (`tcp_rcv_space_adjust()`).
const OFFERED_SEGMENTS: u64 = 16;

/// What the flow knows of others on its path.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Others {
    /// Whether the queue is long, and since when that is so.
    long: (bool, Micros),
    /// The present round trip, zero where it is not known apart; the largest rate ever.
    present: Micros,
    largest: f64,
    /// The trial: its rate, the round trip that it began with, the one that would show the queue to be ours.
    rate: f64,
    began_with: Micros,
    ours_by: Micros,
    /// When it ends; zero: more than `S` is still on offer.
    until: Micros,
    /// Failed trials, and when the next may be.
    pub(super) failures: u32,
    not_before: Micros,
}

impl Others {
    /// Takes the path's round trip and the present one; zero where that is not known apart.
    pub(super) fn see(&mut self, path: Micros, present: Micros, now: Micros) {
        self.present = present;
        let long = present.times(8) > path.times(9);
        if long != self.long.0 {
            self.long = (long, now);
        }
    }

    /// Takes a rate.
    pub(super) fn take(&mut self, rate: f64) {
        self.largest = self.largest.max(rate);
    }

    /// The queue is long.
    pub(super) fn are_there(&self) -> bool {
        self.long.0
    }

    /// No long queue for long enough to believe it.
    pub(super) fn are_gone(&self, now: Micros) -> bool {
        !self.long.0 && now.since(self.long.1) >= PATIENCE
    }
}

impl Sobas {
    /// State 7, or where the queue is short at once 5.
    pub(super) fn try_rate(&mut self, rate: f64, view: &View) {
        if !self.others.are_there() {
            self.conclude(rate, view.rtt, view.mss, view.reading.at);
            return;
        }
        let half = Micros(view.present.0 / 2).max(view.rtt);
        self.others.rate = rate;
        self.others.began_with = view.present;
        self.others.ours_by = half + Micros((view.present - half).0 / 4);
        self.others.until = Micros::ZERO;
        self.state = State::Trial;
        self.window = self.clamped(held(rate, half), view.mss);
        self.series.clear();
    }

    /// State 7: to 5 or to 6, if it is decided.
    pub(super) fn follow_trial(&mut self, sample: &Sample, rtt: Micros, present: Micros, now: Micros) {
        if self.state != State::Trial {
            return;
        }
        if present <= self.others.ours_by {
            self.conclude(self.others.rate, rtt, sample.mss_or_default(), now);
        } else if self.others.until == Micros::ZERO {
            if sample.rcv_wnd <= self.window.scaled(9, 8) {
                self.others.until = now + self.others.began_with.times(LASTS);
            }
        } else if now >= self.others.until {
            self.fail_trial(now);
        }
    }

    /// To 6: others fill the path.
    pub(super) fn fail_trial(&mut self, now: Micros) {
        let wait = RETRY.times(1 << self.others.failures.min(DOUBLINGS));
        self.others.failures = self.others.failures.saturating_add(1);
        self.others.not_before = now + wait;
        self.state = State::Congested;
        self.window = self.config.max_window;
    }

    /// States 4 and 5: whether a reading is one of a flow that gives way to others.
    pub(super) fn is_starved(&self, view: &View) -> bool {
        let (long, since) = self.others.long;
        let stands = long && view.reading.at.since(since) >= view.rtt.times(STANDS);
        stands && view.reading.rate < STARVED * self.decided.rate
    }

    /// A full path has a queue, where that can be seen.
    pub(super) fn may_be_full(&self, view: &View) -> bool {
        view.present == Micros::ZERO || self.others.are_there()
    }

    /// What is offered where `S` is the maximum: no more than a sender can use before the next reading, once its first
    /// slow start is over, so that a limit takes effect soon.
    pub(super) fn offer(&self, mss: Bytes) -> Bytes {
        let growing = matches!(self.state, State::Estimating | State::SlowStart);
        if growing || !self.others.are_there() {
            return self.window;
        }
        let used = held(self.others.largest, self.others.present);
        self.window.min(used.times(OFFERED) + mss.times(OFFERED_SEGMENTS))
    }

    /// State 6 while the queue is long: is it ours alone by now?
    pub(super) fn try_again(&mut self, view: &View) {
        let at = view.reading.at;
        let calm = !self.congestion.0 && at.since(self.congestion.1) >= PATIENCE;
        if self.config.continuous && calm && self.others.are_there() && at >= self.others.not_before {
            self.try_mean(HISTORY, view);
        }
    }

    /// Tries the mean of the last readings, once there are so many.
    pub(super) fn try_mean(&mut self, least: usize, view: &View) {
        if let Some(rate) = self.series.mean(least) {
            self.try_rate(rate, view);
        }
    }
}
