//! Tells from the round-trip time whether a queue stands before the tight link.
//!
//! Problem: a rate that no longer grows may be the path's, or that of a sender in loss recovery, of our own limit, or
//! of an application with little to send. Only a full path also makes its packets wait.
//! Source: ours; Prasad 2004, section IV-B: at the flat-rate point "any further increases ... cause persistent backlog
//! in the tight link and RTT increases".
//! Terms: `T0` smallest round-trip time; a reading *queues* when the mean `T` of its window exceeds `T0` by a
//! 32nd and 0.5 ms; a queue *stands* when several readings in a row queue.
//! Properties kept: once a window has been measured, `T0` is the mean of a whole one, so that jitter of single samples
//! neither lowers it nor passes for a queue.

use super::detectors::Reading;
use bufwise_units::{Micros, Rate};
use std::collections::VecDeque;

/// Number of readings kept; for the paced rules a queue stands when all of them queue.
pub(super) const STANDING: usize = 8;
/// Jitter that hosts may add to a round trip, in us.
pub(super) const HOST_JITTER: Micros = Micros(500);
/// Share of `T0` (1/32) by which a round trip varies without a queue. The window of a paced flow that is held back by
/// its rate has 1.07 * 0.97 = 1.038 bandwidth-delay products, so a queue that it leaves exceeds this.
const QUEUE_SHARE: u64 = 32;

/// `T0`, and the last few readings with their round-trip times.
#[derive(Clone, Debug, Default)]
pub(super) struct RoundTrips {
    /// `T0`; zero until measured.
    base: Micros,
    /// `T0` for windows: like `T0`, but not lengthened for a little jitter.
    shortest: Micros,
    /// Sum and count of the round-trip times since the last reading.
    seen: (Micros, u64),
    /// Whether a whole window has been measured.
    measured: bool,
    /// The last [`STANDING`] readings with their mean round-trip times, oldest first.
    recent: VecDeque<(Reading, Micros)>,
}

impl RoundTrips {
    /// Takes in a round-trip time.
    pub(super) fn see(&mut self, rtt: Micros) {
        self.seen = (self.seen.0 + rtt, self.seen.1.saturating_add(1));
        if !self.measured {
            self.lower_base(rtt);
        }
    }

    /// Takes a reading; returns the mean round-trip time of its window.
    pub(super) fn take(&mut self, reading: Reading) -> Micros {
        let (sum, count) = std::mem::take(&mut self.seen);
        let mean = Micros(sum.0 / count.max(1));
        if mean > Micros::ZERO {
            self.measured = true;
            self.lower_base(mean);
        }
        if self.recent.len() == STANDING {
            self.recent.pop_front();
        }
        self.recent.push_back((reading, mean));
        mean
    }

    fn lower_base(&mut self, rtt: Micros) {
        let lower = |base: Micros| if base == Micros::ZERO { rtt } else { base.min(rtt) };
        (self.base, self.shortest) = (lower(self.base), lower(self.shortest));
    }

    /// Returns `T0`, the smallest round-trip time.
    pub(super) fn base(&self) -> Micros {
        self.base
    }

    /// Returns `T0` for windows.
    pub(super) fn shortest(&self) -> Micros {
        self.shortest
    }

    /// Sets `T0` to `base` after round trips have become longer without a queue. Windows follow if their slack does not
    /// cover the change.
    pub(super) fn lengthen(&mut self, base: Micros, slack: Micros) {
        self.base = base;
        if base > self.shortest + slack {
            self.shortest = base;
        }
    }

    /// Forgets `T0` and the readings: the path has changed.
    pub(super) fn start_anew(&mut self) {
        (self.base, self.shortest) = (Micros::ZERO, Micros::ZERO);
        self.forget();
    }

    /// Forgets the readings, which say nothing of the time that follows.
    pub(super) fn forget(&mut self) {
        self.recent.clear();
    }

    /// Whether a round-trip time shows a queue.
    pub(super) fn queues(&self, rtt: Micros) -> bool {
        rtt > self.base + Micros(self.base.0 / QUEUE_SHARE) + HOST_JITTER
    }

    /// Whether the last `count` readings all queued.
    pub(super) fn stands(&self, count: usize) -> bool {
        self.last(count).is_some_and(|mut last| last.all(|(_, rtt)| self.queues(*rtt)))
    }

    fn last(&self, count: usize) -> Option<impl Iterator<Item = &(Reading, Micros)>> {
        let first = self.recent.len().checked_sub(count)?;
        Some(self.recent.range(first..))
    }

    /// Returns the mean rate over the last `count` readings, if there are as many.
    pub(super) fn mean_rate(&self, count: usize) -> Option<Rate> {
        let sum: Rate = self.last(count)?.map(|(reading, _)| reading.rate).sum();
        Some(sum.scaled(1, count as u64))
    }

    /// Returns the median rate over the last `count` readings: one reading of a paused host does not lower it.
    pub(super) fn median_rate(&self, count: usize) -> Option<Rate> {
        let mut rates: Vec<Rate> = self.last(count)?.map(|(reading, _)| reading.rate).collect();
        rates.sort_unstable();
        rates.get(count / 2).copied()
    }

    /// Returns the largest rate of the last `count` readings.
    pub(super) fn best_rate(&self, count: usize) -> Option<Rate> {
        self.last(count)?.map(|(reading, _)| reading.rate).max()
    }

    /// Returns the mean round-trip time of the last `count` readings.
    pub(super) fn mean_rtt(&self, count: usize) -> Option<Micros> {
        let sum: Micros = self.last(count)?.map(|(_, rtt)| *rtt).sum();
        Some(Micros(sum.0 / count as u64))
    }
}
