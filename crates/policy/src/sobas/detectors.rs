//! What the received rate says: measuring it, and the two signatures of a full path.
//!
//! Problem: the receiver sees bytes arrive, not windows or queues. When has the rate stopped growing for
//! the reason that the path is full?
//! Source: 000, section IV-B.
//! Terms: `R` rate over a window of two round trips; `T` round-trip time.
//! - *flat-rate*: successive `R` almost equal. Over five values the paper's measure is the slope: less than
//!   half of what the growth of cwnd would add, which in congestion avoidance with delayed acknowledgements
//!   is half a segment per round trip per round trip; so `|slope| < mss / (4 * T^2)`.
//! - *const-rate-drop*: `R` falls by more than 20% after two values within 5% of each other.
//!
//! We: the slope is the least-squares one, so that one segment more or less in a window (a slope error of
//! 0.03 `mss / T^2` over five values) cannot hide or fake it; the values must also lie within 5% (and one
//! segment) of their mean, for a zigzag has no slope either. With *two* values a slope says nothing: one
//! segment of noise is as much as the paper's threshold. Two values are used in slow start, where the rate
//! doubles per round trip, so there "almost equal" is the paper's other measure of it, within 5%, upwards;
//! downwards 2%: a rate that falls in slow start has met a loss, and says little of the path. Over five
//! values the slope and its standard error together must be below the threshold: a fit that is not as good as
//! that shows nothing. (What else shows a full path, and what a flat rate alone does not: `published.rs`.)
//! Keeps: scaling all rates and `mss` together changes nothing; no rate at all is never flat.

use bufwise_units::{Bytes, Micros};

/// Largest difference between two rates that count as constant: 5% (000, section IV-B).
const CONSTANT_WITHIN: f64 = 0.05;
/// A fall by more than this share is a drop: 20% (000, section IV-B).
const DROP_BY: f64 = 0.20;
/// A slow start whose rate falls by more than this share (and a segment) is over: jitter is less (we).
const FALL_BY: f64 = 0.02;
/// Readings that the detectors look back on.
const HISTORY: usize = 5;

/// The received rate over one window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Reading {
    /// When the window closed.
    pub at: Micros,
    /// How long it was.
    pub span: Micros,
    /// Payload received in it, bytes per second.
    pub rate: f64,
}

/// Cuts time into windows of two round trips and measures the rate in each (000, section IV-B).
///
/// A flow that its window limits arrives in bursts, one a round trip: a window a little longer than two round
/// trips would hold part of a third burst. So windows have exactly their length: what had arrived at a
/// window's end is interpolated between the calls before and after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    open: Option<Window>,
    /// The last call: time, and bytes received by then.
    last: (Micros, f64),
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: Micros,
    /// Bytes received by then.
    before: f64,
    length: Micros,
}

impl Meter {
    /// Takes the count of received bytes at `now`; a reading when a window has closed. The next one is to be
    /// `length` long. The first window opens with the first byte.
    ///
    /// Where calls are too rare for a window each, a window lasts from call to call.
    pub(super) fn observe(&mut self, received: Bytes, length: Micros, now: Micros) -> Option<Reading> {
        if received == Bytes::ZERO {
            return None;
        }
        let received = received.0 as f64;
        let (last_at, last) = std::mem::replace(&mut self.last, (now, received));
        let Some(window) = self.open else {
            self.open = Some(Window { start: now, before: received, length });
            return None;
        };
        let planned = window.start + window.length;
        if now < planned || now <= window.start {
            return None;
        }
        let between = now.since(last_at).as_secs_f64();
        let (end, by_then) = if now.since(planned) >= length || between <= 0.0 {
            (now, received)
        } else {
            let part = planned.since(last_at).as_secs_f64() / between;
            (planned, last + (received - last) * part)
        };
        self.open = Some(Window { start: end, before: by_then, length });
        let span = end.since(window.start);
        let rate = (by_then - window.before).max(0.0) / span.as_secs_f64();
        Some(Reading { at: end, span, rate })
    }
}

/// The last few readings, oldest first.
#[derive(Clone, Debug, Default)]
pub(super) struct Series {
    readings: Vec<Reading>,
}

impl Series {
    pub(super) fn push(&mut self, reading: Reading) {
        if self.readings.len() == HISTORY {
            self.readings.remove(0);
        }
        self.readings.push(reading);
    }

    /// Forgets everything: what was measured under another limit says nothing of the path.
    pub(super) fn clear(&mut self) {
        self.readings.clear();
    }

    /// The largest of the last two rates: one window may have been hit by a loss.
    pub(super) fn best_of_two(&self) -> f64 {
        self.readings.iter().rev().take(2).map(|reading| reading.rate).fold(0.0, f64::max)
    }

    /// Flat-rate over the last `count` readings (at least two).
    pub(super) fn is_flat(&self, count: usize, mss: Bytes, rtt: Micros) -> bool {
        let first = self.readings.len().checked_sub(count);
        first.is_some_and(|first| flat_rate(&self.readings[first..], mss, rtt))
    }

    /// Whether the last `count` readings are level, whatever their slope.
    pub(super) fn is_level(&self, count: usize, mss: Bytes) -> bool {
        let first = self.readings.len().checked_sub(count);
        first.is_some_and(|first| level_rate(&self.readings[first..], mss))
    }

    /// Const-rate-drop at the last reading; the rate before the drop if so.
    pub(super) fn dropped_from_constant(&self) -> Option<f64> {
        const_rate_drop(&self.readings)
    }
}

/// Whether `readings` are almost equal: two by their difference, more by their slope as well.
///
/// `rtt` is the present round-trip time. False for fewer than two readings, and when a window held less
/// than a segment.
#[must_use]
pub fn flat_rate(readings: &[Reading], mss: Bytes, rtt: Micros) -> bool {
    let segment = mss.0 as f64;
    if readings.len() < 2 || readings.iter().any(|r| r.rate * r.span.as_secs_f64() < segment) {
        return false;
    }
    if let [first, second] = readings {
        let rise = second.rate - first.rate;
        return rise <= CONSTANT_WITHIN * second.rate + one_segment(second, mss)
            && !falls(first.rate, second, mss);
    }
    // What half a segment per round trip per round trip adds to the rate, per second.
    let growth = segment / (2.0 * rtt.as_secs_f64().powi(2));
    let (slope, error) = slope(readings);
    level_rate(readings, mss) && slope.abs() + error < growth / 2.0
}

/// Whether `readings` all lie within 5%, and one segment, of their mean; false without readings.
#[must_use]
pub(super) fn level_rate(readings: &[Reading], mss: Bytes) -> bool {
    let mean = readings.iter().map(|r| r.rate).sum::<f64>() / readings.len() as f64;
    let level = |r: &Reading| (r.rate - mean).abs() <= CONSTANT_WITHIN * mean + one_segment(r, mss);
    !readings.is_empty() && readings.iter().all(level)
}

/// The rate before the drop, if the last reading fell by more than 20% after two within 5% of each other.
#[must_use]
pub fn const_rate_drop(readings: &[Reading]) -> Option<f64> {
    let [.., before, steady, last] = readings else { return None };
    let constant = (before.rate - steady.rate).abs() <= CONSTANT_WITHIN * before.rate.max(steady.rate);
    let drop = last.rate < (1.0 - DROP_BY) * steady.rate;
    (constant && drop).then(|| before.rate.max(steady.rate))
}

/// Whether a reading of a slow start is lower than the largest before it, and not by jitter.
#[must_use]
pub(super) fn falls(peak: f64, reading: &Reading, mss: Bytes) -> bool {
    reading.rate + one_segment(reading, mss) < (1.0 - FALL_BY) * peak
}

/// The rate of one segment in the window of a reading.
fn one_segment(reading: &Reading, mss: Bytes) -> f64 {
    mss.0 as f64 / reading.span.as_secs_f64().max(1e-6)
}

/// Least-squares slope of rate over time and its standard error, bytes per second per second.
fn slope(readings: &[Reading]) -> (f64, f64) {
    let origin = readings[0].at;
    let time = |r: &Reading| r.at.since(origin).as_secs_f64();
    let n = readings.len() as f64;
    let mean_time = readings.iter().map(time).sum::<f64>() / n;
    let mean_rate = readings.iter().map(|r| r.rate).sum::<f64>() / n;
    let deviations = || readings.iter().map(|r| (time(r) - mean_time, r.rate - mean_rate));
    let variance: f64 = deviations().map(|(t, _)| t * t).sum();
    if variance == 0.0 {
        return (0.0, 0.0);
    }
    let slope = deviations().map(|(t, r)| t * r).sum::<f64>() / variance;
    let residual: f64 = deviations().map(|(t, r)| (r - slope * t).powi(2)).sum();
    (slope, (residual / (n - 2.0).max(1.0) / variance).sqrt())
}
