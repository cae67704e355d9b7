//! The rate limit of the paced rules, the window for it, and the draining of a queue.
//!
//! Source: ours; `paced.rs` has the rules and the terms.
//! Properties kept: the window exceeds `P * T0` by the slack and no more; a drain ends after a bounded time, whatever
//! its readings show.

use super::State;
use super::round_trips::{HOST_JITTER, RoundTrips};
use bufwise_units::{Bytes, Micros, Rate};

/// Window over `P * T0`: 7%, the jitter of hosts, and four segments.
const SLACK: (u64, u64) = (107, 100);
const SLACK_SEGMENTS: u64 = 4;
/// Share of the arriving rate that is sent during a drain. In 4 round trips a drain removes a quarter of a round trip's
/// data, more than the slack.
const DRAINING: (u64, u64) = (15, 16);
/// Time after which a drain shows. Its first reading still includes data sent before the drain. The running average of
/// the probes' round-trip times still includes old ones: each probe, one per 10 ms, has a weight of an eighth, so after
/// 80 ms two thirds of the average are new.
const DRAIN_SHOWS_AFTER: Micros = Micros::from_millis(80);
/// Readings and time that end a drain: by then the average holds a 400th of the old round-trip time.
const DRAIN_AT_MOST: (u32, Micros) = (4, Micros::from_millis(500));
/// During a drain a queue of our own shrinks by at least this part (a quarter) of the excess of the round trip over `T0`.
const DRAINED: u64 = 4;
/// Readings whose mean is the round-trip time before a drain.
const BEFORE: usize = 5;

/// The rate limit.
#[derive(Clone, Debug, Default)]
pub(super) struct Pacer {
    /// `P`; `None` until a rate is known, [`Rate::MAX`] where it was lifted.
    limit: Option<Rate>,
    /// Rate for which the window is computed.
    window_rate: Rate,
    drain: Option<Drain>,
}

/// A queue that is being drained.
#[derive(Clone, Copy, Debug)]
pub(super) struct Drain {
    rate: Rate,
    /// Limit and state after the drain, if the queue was our own.
    pub(super) next: Rate,
    pub(super) then: State,
    began: Micros,
    readings: u32,
    /// Mean round-trip time before the drain; sum and count of the round-trip times measured since the drain can show.
    before: Micros,
    left: (Micros, u64),
    /// Whether the round-trip time fell or segments were lost: the queue was our own.
    pub(super) was_ours: bool,
}

/// Returns by how much a round trip may exceed `T0` before the window limits the flow.
fn slack(base_rtt: Micros) -> Micros {
    base_rtt.scaled(SLACK.0, SLACK.1) - base_rtt + HOST_JITTER
}

impl Drain {
    /// Returns the mean round-trip time since the drain can show.
    fn left(&self) -> Option<Micros> {
        (self.left.1 > 0).then(|| Micros(self.left.0.0 / self.left.1))
    }
}

impl Pacer {
    /// Returns the rate that the sender should keep to now.
    pub(super) fn rate(&self) -> Option<Rate> {
        self.drain.as_ref().map_or(self.limit, |drain| Some(drain.rate))
    }

    /// Returns the rate limit `P`.
    pub(super) fn limit(&self) -> Option<Rate> {
        self.limit
    }

    /// Lifts the limit, if there is one.
    pub(super) fn release(&mut self) {
        self.limit = self.limit.map(|_| Rate::MAX);
        self.drain = None;
    }

    /// Sets the limit and the rate for which the window is computed.
    pub(super) fn set(&mut self, rate: Rate) {
        self.limit = Some(rate);
        self.window_rate = rate;
    }

    /// Raises the limit to `rate`; the window follows what was `reached` under the old limit.
    pub(super) fn raise(&mut self, rate: Rate, reached: Rate) {
        let old = self.limit.unwrap_or(rate);
        self.limit = Some(rate);
        self.window_rate = reached.min(old).max(self.window_rate.min(old));
    }

    /// Returns the window for the present rate. During a drain it is the data of `1.07 * T0` at the reduced rate, which is
    /// one bandwidth-delay product of the rate that arrived before.
    pub(super) fn window(&self, base_rtt: Micros, mss: Bytes) -> Bytes {
        match &self.drain {
            Some(drain) => drain.rate.over(base_rtt.scaled(SLACK.0, SLACK.1)),
            None => self.window_rate.over(base_rtt + slack(base_rtt)) + mss.times(SLACK_SEGMENTS),
        }
    }

    /// Whether a queue is being drained.
    pub(super) fn is_draining(&self) -> bool {
        self.drain.is_some()
    }

    /// Starts to send less than what arrives, to see whether the queue is our own; if so, `next` are the limit and the
    /// state afterwards.
    pub(super) fn start_drain(&mut self, path: &mut RoundTrips, next: (Rate, State), at: Micros) {
        let arriving = path.mean_rate(2).unwrap_or(Rate::MAX);
        self.drain = Some(Drain {
            rate: self.limit.unwrap_or(arriving).min(arriving).scaled(DRAINING.0, DRAINING.1),
            next: next.0,
            then: next.1,
            began: at,
            readings: 0,
            before: path.mean_rtt(BEFORE).or(path.mean_rtt(1)).unwrap_or(path.base()),
            left: (Micros::ZERO, 0),
            was_ours: false,
        });
        path.forget();
    }

    /// Takes a reading of a drain and returns the drain after its last one. If the queue was not our own, `T0` becomes
    /// the round-trip time that the drain has left.
    pub(super) fn watch_drain(
        &mut self,
        path: &mut RoundTrips,
        rtt: Micros,
        lost: bool,
        at: Micros,
    ) -> Option<Drain> {
        let drain = self.drain.as_mut()?;
        let lasted = at.since(drain.began);
        drain.readings += 1;
        if drain.readings > 1 && lasted > DRAIN_SHOWS_AFTER {
            drain.left = (drain.left.0 + rtt, drain.left.1 + 1);
        }
        let enough = drain.before - Micros(drain.before.since(path.base()).0 / DRAINED);
        let fell = drain.left().is_some_and(|left| left < enough);
        // A path that has only become longer loses no segments, so a loss also shows a queue of our own.
        drain.was_ours |= fell || lost;
        let drain = *drain;
        let empty = fell && !path.queues(rtt);
        let over = drain.readings >= DRAIN_AT_MOST.0 && lasted >= DRAIN_AT_MOST.1;
        if !empty && !over {
            return None;
        }
        self.drain = None;
        path.forget();
        if let Some(left) = drain.left().filter(|_| !drain.was_ours) {
            path.lengthen(left, slack(path.shortest()));
        }
        Some(drain)
    }
}
