//! The received rate: its measurement, and the two signatures of a full path in it.
//!
//! Problem: the receiver sees bytes arrive, but no windows or queues. When has the rate stopped growing because the
//! path is full?
//! Source: Prasad 2004, section IV-B.
//! Terms: `R` is the rate over a window of two round trips, `T` the round-trip time. A *reading* is one such rate.
//! - *flat-rate*: successive `R` are almost equal. Over five values the paper's measure is the slope: less than half of
//!   what the growth of cwnd would add. In congestion avoidance with delayed acknowledgements that growth is half a
//!   segment per round trip per round trip, so `|slope| < mss / (4 * T^2)`.
//! - *const-rate-drop*: `R` falls by more than 20% after two values within 5% of each other.
//!
//! Ours:
//! - *Five values*: the slope is the least-squares one. One segment more or less in a window changes it by 0.03
//!   `mss / T^2`, which can neither hide nor fake growth. The slope and its standard error together must be below the
//!   threshold. The values must also lie within 5% (and one segment) of their mean, because a zigzag has no slope either.
//! - *Two values* are compared in slow start, where the rate doubles per round trip. Their slope says nothing: one
//!   segment of noise is as much as the paper's threshold. They are flat if the rate rises by at most 5% (and one
//!   segment), the paper's measure of constant, or falls by at most 2% (and one segment): a rate that falls further in
//!   slow start has met a loss, and says little of the path.
//! - *As published*, the slope of five values decides alone. Two values are judged as above, because the paper gives no
//!   figure for them. Half of slow start's own growth (its appendix, equation 11, with delayed acknowledgements) would
//!   allow a rise by a half, and rates after a loss would often pass for flat ones.
//!
//! `published.rs` says what else shows a full path, and why a flat rate alone does not.
//!
//! All arithmetic is in integers, in the order of operations of the kernel's SOBAS (`crates/bpf/src/bpf/sobas.h`); the
//! two are equal step by step. Caps keep products in 64 bits: rates up to 2^39 bytes/s, spans up to 2^24 us (16 s),
//! segments up to 2^20 bytes; deviations of a rate are scaled to 24 bits before they are squared.
//! Properties kept: scaling all rates and `mss` together changes nothing (but for rounding); a rate of zero is never
//! flat.

use bufwise_units::{Bytes, Micros, Rate};

/// Number of readings that the detectors keep.
const HISTORY: usize = 5;
/// Largest rate: 2^39 bytes/s (4.4 Tbit/s).
pub(super) const MOST_RATE: Rate = Rate(1 << 39);
/// Longest span of a reading, and longest round trip, that enters a product: 16 s.
pub(super) const LONGEST: Micros = Micros(1 << 24);
/// Longest time between two calls over which bytes are interpolated, in us: 134 s.
const LONGEST_GAP: u64 = 1 << 27;
/// Most bytes of one window that enter a product: 64 GiB.
const MOST_BYTES: u64 = 1 << 36;
/// Largest segment that enters a product: 1 MiB.
pub(super) const LARGEST_SEGMENT: Bytes = Bytes(1 << 20);
const MICROS_PER_SECOND: u64 = 1_000_000;

/// The received rate over one window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Reading {
    /// When the window closed.
    pub(super) at: Micros,
    /// Length of the window, at most 16 s.
    pub(super) span: Micros,
    /// Payload received in it, per second; at most 2^39 bytes.
    pub(super) rate: Rate,
}

/// Cuts time into windows of two round trips and measures the rate in each (Prasad 2004, section IV-B).
///
/// A flow that is limited by its window arrives in bursts, one per round trip. A rate window a little longer than two
/// round trips would hold part of a third burst. So rate windows have exactly their length: the bytes received by the
/// end of one are interpolated between the calls before and after it.
#[derive(Clone, Debug, Default)]
pub(super) struct Meter {
    open: Option<Window>,
    /// The last call: time, and bytes received by then.
    last: (Micros, Bytes),
}

#[derive(Clone, Copy, Debug)]
struct Window {
    start: Micros,
    /// Bytes received by `start`.
    before: Bytes,
    length: Micros,
}

impl Meter {
    /// Takes the count of received bytes at `now` and returns a reading when a window has closed. The next window is to
    /// be `length` long. The first window opens with the first byte.
    ///
    /// If calls are too rare for one window each, a window lasts from call to call.
    pub(super) fn observe(&mut self, received: Bytes, length: Micros, now: Micros) -> Option<Reading> {
        if received == Bytes::ZERO {
            return None;
        }
        let (last_at, last) = std::mem::replace(&mut self.last, (now, received));
        let Some(window) = self.open else {
            self.open = Some(Window { start: now, before: received, length });
            return None;
        };
        let planned = window.start + window.length;
        if now < planned || now <= window.start {
            return None;
        }
        let between = now.since(last_at).0;
        let (end, by_then) = if now.since(planned) >= length || !(1..LONGEST_GAP).contains(&between) {
            (now, received)
        } else {
            let part = planned.since(last_at).0.min(between);
            (planned, last + Bytes((received - last).0.min(MOST_BYTES) * part / between))
        };
        self.open = Some(Window { start: end, before: by_then, length });
        let span = end.since(window.start);
        let rate = Bytes((by_then - window.before).0.min(MOST_BYTES)).per(span).min(MOST_RATE);
        Some(Reading { at: end, span: span.min(LONGEST), rate })
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

    /// Forgets all readings: rates measured under another limit say nothing of the path.
    pub(super) fn clear(&mut self) {
        self.readings.clear();
    }

    pub(super) fn len(&self) -> usize {
        self.readings.len()
    }

    /// Returns the larger of the last two rates: a loss may have hit one of the windows.
    pub(super) fn best_of_two(&self) -> Rate {
        self.readings.iter().rev().take(2).map(|reading| reading.rate).max().unwrap_or_default()
    }

    /// Whether the last `count` readings (at least two) are flat.
    pub(super) fn is_flat(&self, count: usize, mss: Bytes, rtt: Micros) -> bool {
        let first = self.readings.len().checked_sub(count);
        first.is_some_and(|first| flat_rate(&self.readings[first..], mss, rtt))
    }

    /// Whether the last `count` readings are flat as Prasad 2004 writes it: more than two by their slope alone.
    pub(super) fn is_flat_by_slope(&self, count: usize, mss: Bytes, rtt: Micros) -> bool {
        let first = self.readings.len().checked_sub(count);
        first.is_some_and(|first| flat_by_slope(&self.readings[first..], mss, rtt))
    }

    /// Whether the last `count` readings are level, whatever their slope.
    pub(super) fn is_level(&self, count: usize, mss: Bytes) -> bool {
        let first = self.readings.len().checked_sub(count);
        first.is_some_and(|first| level_rate(&self.readings[first..], mss))
    }

    /// Returns the rate before the drop if the last reading shows a const-rate-drop.
    pub(super) fn dropped_from_constant(&self) -> Option<Rate> {
        const_rate_drop(&self.readings)
    }
}

/// Whether `readings` are almost equal: two by their difference, more by their distance from the mean and their slope.
///
/// `rtt` is the present round-trip time. Returns false for fewer than two readings, and when a window held less than a
/// segment.
pub(super) fn flat_rate(readings: &[Reading], mss: Bytes, rtt: Micros) -> bool {
    flat(readings, mss, rtt, |readings, mss, rtt| {
        level_rate(readings, mss) && has_no_slope(readings, mss, rtt)
    })
}

/// Whether `readings` are almost equal as Prasad 2004 writes it: two by their difference, more by their slope alone.
pub(super) fn flat_by_slope(readings: &[Reading], mss: Bytes, rtt: Micros) -> bool {
    flat(readings, mss, rtt, has_small_slope)
}

/// Whether two `readings` are almost equal by their difference; more than two are judged by `several`.
fn flat(
    readings: &[Reading],
    mss: Bytes,
    rtt: Micros,
    several: impl Fn(&[Reading], Bytes, Micros) -> bool,
) -> bool {
    let mss = mss.min(LARGEST_SEGMENT);
    if readings.len() < 2 || !readings.iter().all(|reading| holds_a_segment(reading, mss)) {
        return false;
    }
    if let [first, second] = readings {
        let rise = (second.rate - first.rate).0;
        return rise * 20 <= second.rate.0 + 20 * one_segment(second, mss) && !falls(first.rate, second, mss);
    }
    several(readings, mss, rtt)
}

/// Whether all `readings` lie within 5%, and one segment, of their mean; false without readings.
pub(super) fn level_rate(readings: &[Reading], mss: Bytes) -> bool {
    let (n, sum) = (readings.len() as u64, sum(readings));
    // Both sides are multiplied by the number of readings and by 20: 5% is a twentieth.
    let level = |r: &Reading| (n * r.rate.0).abs_diff(sum) * 20 <= sum + 20 * n * one_segment(r, mss);
    !readings.is_empty() && readings.iter().all(level)
}

/// Returns the rate before the drop, if the last reading fell by more than 20% after two within 5% of each other.
pub(super) fn const_rate_drop(readings: &[Reading]) -> Option<Rate> {
    let [.., before, steady, last] = readings else { return None };
    let largest = before.rate.max(steady.rate);
    let constant = before.rate.0.abs_diff(steady.rate.0) * 20 <= largest.0;
    let drop = last.rate.0 * 10 < steady.rate.0 * 8;
    (constant && drop).then_some(largest)
}

/// Whether a reading of slow start is below the largest before it by more than jitter: 2% and a segment (ours).
pub(super) fn falls(peak: Rate, reading: &Reading, mss: Bytes) -> bool {
    (reading.rate.0 + one_segment(reading, mss)) * 100 < peak.0 * 98
}

fn sum(readings: &[Reading]) -> u64 {
    readings.iter().map(|reading| reading.rate.0).sum()
}

fn holds_a_segment(reading: &Reading, mss: Bytes) -> bool {
    reading.rate.0 * reading.span.0 >= mss.0 * MICROS_PER_SECOND
}

/// Returns the rate of one segment in the window of a reading, in bytes per second.
fn one_segment(reading: &Reading, mss: Bytes) -> u64 {
    mss.0 * MICROS_PER_SECOND / reading.span.0.max(1)
}

/// The least-squares line through readings, and the slope that counts as growth.
///
/// Times are counted in 16ths of a round trip and slopes in 16ths of `(bytes/s) / (T/16)`; in these units the growth is
/// `mss / (32 * T)`.
struct Fit {
    /// Deviations of time and rate from their means, times the number of readings.
    deviations: Vec<(i64, i64)>,
    variance: i64,
    product: i64,
    /// The slope without its sign.
    steep: u64,
    /// Half of the growth that half a segment per round trip per round trip gives; below 2^32.
    growth: u64,
}

impl Fit {
    /// Returns `None` if all readings have the same time.
    fn new(readings: &[Reading], mss: Bytes, rtt: Micros) -> Option<Self> {
        const LATEST: u64 = 1 << 14;
        const LONG_AGO: u64 = 1 << 40;
        let rtt = rtt.clamp(Micros(1), LONGEST).0;
        let (n, sum) = (readings.len() as i64, sum(readings));
        let time = |r: &Reading| (r.at.since(readings[0].at).0.min(LONG_AGO) * 16 / rtt).min(LATEST) as i64;
        let times: i64 = readings.iter().map(time).sum();
        let largest = readings.iter().map(|r| (n as u64 * r.rate.0).abs_diff(sum)).max().unwrap_or(0);
        let shift = shift_to_24_bits(largest);
        let rate = |r: &Reading| (n * r.rate.0 as i64 - sum as i64) >> shift;
        let deviations: Vec<_> = readings.iter().map(|r| (n * time(r) - times, rate(r))).collect();
        let variance: i64 = deviations.iter().map(|(t, _)| t * t).sum();
        let product: i64 = deviations.iter().map(|(t, r)| t * r).sum();
        if variance == 0 {
            return None;
        }
        let steep = product.unsigned_abs() * 16 / variance as u64;
        // Kept below 2^32, because it is squared.
        let growth = ((mss.0 * MICROS_PER_SECOND / 4 / rtt) >> shift).min(u32::MAX.into());
        Some(Self { deviations, variance, product, steep, growth })
    }
}

/// Whether the least-squares slope is below half of the growth that half a segment per round trip per round trip gives.
fn has_small_slope(readings: &[Reading], mss: Bytes, rtt: Micros) -> bool {
    Fit::new(readings, mss, rtt).is_some_and(|fit| fit.steep < fit.growth)
}

/// Whether the least-squares slope and its standard error together are below that.
fn has_no_slope(readings: &[Reading], mss: Bytes, rtt: Micros) -> bool {
    let Some(fit) = Fit::new(readings, mss, rtt).filter(|fit| fit.steep < fit.growth) else { return false };
    let slope = fit.steep as i64 * fit.product.signum();
    let off = |(t, r): &(i64, i64)| r - ((slope * t) >> 4);
    let residual: i64 = fit.deviations.iter().map(off).map(|off| off * off).sum();
    // slope + error < growth / 2, squared; both sides in 256ths.
    let room = fit.growth - fit.steep;
    let n = readings.len() as i64;
    ((residual * 256 / ((n - 2) * fit.variance)) as u64) < room * room
}

/// Returns the shift that brings the largest deviation below 24 bits; at most 20.
fn shift_to_24_bits(largest: u64) -> u32 {
    (u64::BITS - largest.leading_zeros()).saturating_sub(24).min(20)
}
