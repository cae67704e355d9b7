//! A bound on the size of a send buffer, whichever rule of the send side chooses the size.
//!
//! Problem: the rules of the send side follow the congestion window, and a loss-based window grows until the queue of its
//! path is full, however deep it is. Linux's own autotuning ends at the maximum of `tcp_wmem`, 4 MB by default, and so
//! bounds the queue by chance. A rule without that maximum fills the queue for all other flows too, and holds several
//! windows of memory besides.
//! Source: ours. Two ideas are from Cardwell 2016 (BBR): the largest recent delivery rate stands for the path's rate, and
//! the start ends when that rate no longer grows.
//! Terms: `R` is the largest recent delivery rate, `T` the shortest round-trip time. The *lean* bound is memory for
//! `2 R T` and a slack (for `4 R T` while `R` grows). The *usual* bound is what the kernel's autotuning would have
//! allowed: memory for the window, at most the maximum of `tcp_wmem`.
//! - The lean bound holds as long as it costs no rate.
//! - When the rate falls below `7/8 R` while there is a queue, either other flows fill the queue or the path has changed,
//!   whether or not the bound limits the window. The bound then rises to the usual one, to compete as under the kernel.
//!   It also rises where it limits the window and round trips stay longer than `R` needs for the payload of the lean
//!   bound.
//! - After a while `R` is measured anew and the bound descends, an eighth at a time. If that costs rate, the bound
//!   rises again, and the next attempt comes later.
//! - The usual bound also holds after a full buffer has run empty: a program that writes late needs a larger buffer than
//!   its path does.
//! - Where there is no queue, the lean bound would gain nothing, and the usual bound holds.
//!
//! Properties kept: there is no bound without a measured rate; a bound is never below the slack; a time in which the
//! application limits the sender neither lowers `R` nor counts as lost rate; a start that doubles its window each round
//! trip has room for the next window.

use bufwise_units::{Bytes, Micros, Rate};

/// The lean bound in units of `R T`, as a fraction: payload for 2, at 5/4 bytes of memory per byte of payload.
const LEAN: (u64, u64) = (5, 2);
/// Constant part of the bounds: 256 KB for the start and for host delays, less the last 64 KB buffer of a writer.
const SLACK: Bytes = Bytes(192 << 10);
/// Shortest round-trip time that is used: below 5 ms the hosts' own delays count for more than the path's.
const SHORTEST: Micros = Micros(5_000);
/// Longest time, largest rate and most bytes that enter a product, so that the same rule in C (`bpf/bound.h`) needs no more than
/// 64 bits.
const LONGEST: Micros = Micros(1 << 27);
const FASTEST: Rate = Rate(1 << 36);
const MOST: Bytes = Bytes(1 << 36);
/// Length of a measurement: this many of the shortest round-trip times, and at least the present one.
const ROUNDS: u64 = 4;
/// The rate grows as long as one of this many measurements exceeds all before by a quarter (as BBR ends its start).
const PATIENCE: u32 = 3;
/// The rate still rises as long as one of this many measurements exceeds all before by 1/32 ([`RISE`]).
const RISING: u32 = 4;
const RISE: u64 = 32;
/// The rate has fallen when this many measurements in a row are below 7/8 of `R`.
const FALLEN: u32 = 2;
/// `R` is the largest rate of the present period and of the one before, counted in time with data to send.
const PERIOD: Micros = Micros(8_000_000);
/// Time for which the usual bound holds: the first time, and at most, because each attempt doubles it.
const HOLD: Micros = Micros(2_000_000);
const LONGEST_HOLD: Micros = Micros(64_000_000);
/// While the bound descends, a queue of the connection's own drains: each round trip measured is at least 1/16 shorter
/// than the one before.
const DRAINS: u64 = 16;
/// Memory per window in the usual bound: Linux 6.18 gives 3.2 windows; below 4 throughput was lost (ABT's lower edge).
const USUAL: u64 = 4;
/// There is no queue if this many measurements in a row find none.
const EMPTY: u32 = 2;
/// A buffer has run empty when it holds less than a quarter of its limit.
const RUN_EMPTY: u64 = 4;

/// One sample of a connection, as the bound reads it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BoundSample {
    /// Congestion window, payload.
    pub cwnd: Bytes,
    /// Payload of a full segment; zero: not known.
    pub mss: Bytes,
    /// Segments delivered so far, modulo 2^32 (`tcpi_delivered`).
    pub delivered: u32,
    /// Smoothed round-trip time.
    pub srtt: Micros,
    /// Shortest round-trip time; zero: none yet.
    pub min_rtt: Micros,
    /// The application left the sender without data ([`bufwise_units::Sample::application_limits`]).
    pub app_limited: bool,
    /// The most that the kernel's autotuning would have allowed: the maximum of `tcp_wmem`, in bytes of memory.
    pub autotuning_max: Bytes,
    /// Memory that the send queue holds.
    pub send_queued: Bytes,
    /// The limit of the send queue (`SO_SNDBUF` as the kernel holds it), in bytes of memory.
    pub sndbuf: Bytes,
}

/// The bound of one connection, at its sender.
///
/// Observe about once per round trip while the window grows, later a few times per second.
///
/// ```
/// use bufwise_policy::bound::{Bound, BoundSample};
/// use bufwise_units::{Bytes, Micros};
///
/// let mut bound = Bound::default();
/// let (srtt, min_rtt) = (Micros::from_millis(40), Micros::from_millis(40));
/// let mut memory = None;
/// for round in 0..20 {
///     // 345 segments in each round trip of 40 ms: 100 Mbit/s.
///     let sample = BoundSample { cwnd: Bytes(499_560), mss: Bytes(1_448), delivered: round * 345, srtt, min_rtt,
///         autotuning_max: Bytes(4 << 20), ..BoundSample::default() };
///     memory = bound.observe(&sample, min_rtt.times(round.into()));
/// }
/// assert_eq!(bound.rate().over(min_rtt), Bytes(499_560));
/// assert!(memory.is_some());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// Largest rates of this period and of the one before, and the rate of the last measurement.
    rate: Rate,
    rate_before: Rate,
    rate_last: Rate,
    /// Time of this period in which there was data to send.
    period: Micros,
    /// The running measurement.
    began: Option<Began>,
    /// The bound (memory).
    memory: Option<Bytes>,
    usual_until: Option<Micros>,
    /// The smoothed round-trip time at the last measurement.
    srtt_before: Micros,
    /// How long the usual bound will hold the next time; `None`: [`HOLD`].
    hold: Option<Micros>,
    since_growth: u32,
    since_rise: u32,
    fallen: u32,
    /// Measurements in a row without a queue.
    empty: u32,
    /// The bound has limited the window while the buffer was full.
    was_full: bool,
}

/// The sample with which a measurement began.
#[derive(Clone, Copy, Debug)]
struct Began {
    at: Micros,
    delivered: u32,
    app_limited: bool,
}

impl Bound {
    /// Takes one sample at `now` and returns how much memory the send buffer may hold; `None`: no bound.
    pub fn observe(&mut self, sample: &BoundSample, now: Micros) -> Option<Bytes> {
        if sample.min_rtt == Micros::ZERO {
            return None;
        }
        self.watch_writer(sample, now);
        if let Some(began) = self.began {
            let elapsed = now.since(began.at);
            if elapsed < self.span(sample) {
                return self.memory;
            }
            self.measure(sample, now, began, elapsed);
        }
        self.began = Some(Began { at: now, delivered: sample.delivered, app_limited: sample.app_limited });
        if self.rate() == Rate::ZERO {
            return None;
        }
        if self.usual_until.is_some_and(|end| now >= end) {
            self.usual_until = None;
            self.memory = self.memory.map(|memory| memory.min(usual(sample)));
        }
        self.step(self.wanted(sample));
        self.memory
    }

    /// Returns `R`, the largest recent delivery rate.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate.max(self.rate_before)
    }

    /// Whether the rate still grows, as in slow start.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.since_growth < PATIENCE
    }

    /// Whether the usual bound holds now.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        self.usual_until.is_some()
    }

    /// Returns the length of a measurement; while the rate grows, 7/8 of the shortest round trip.
    fn span(&self, sample: &BoundSample) -> Micros {
        let rtt = sample.min_rtt.min(LONGEST);
        if self.grows() { rtt.since(Micros(rtt.0 / 8)) } else { rtt.times(ROUNDS).max(sample.srtt) }
    }

    /// Raises the bound to the usual one when a full buffer has run empty: the bound was too tight for a late writer.
    fn watch_writer(&mut self, sample: &BoundSample, now: Micros) {
        if self.grows() || self.usual_until.is_some() || self.memory.is_none() {
            return;
        }
        if !sample.app_limited && self.binds(sample) {
            self.was_full = true;
        } else if self.was_full && sample.send_queued.times(RUN_EMPTY) < sample.sndbuf {
            self.begin_usual(now);
        }
    }

    /// Whether the window is more than half of the bound.
    fn binds(&self, sample: &BoundSample) -> bool {
        self.memory.is_some_and(|memory| sample.cwnd.times(2) > memory)
    }

    /// Ends a measurement. A segment below 1,448 bytes counts as 1,448: it takes about as much memory.
    fn measure(&mut self, sample: &BoundSample, now: Micros, began: Began, elapsed: Micros) {
        let mss = sample.mss.max(Bytes(1_448)).min(Bytes(1 << 16));
        let segments = sample.delivered.wrapping_sub(began.delivered);
        let rate = mss.times(segments.into()).min(MOST).per(elapsed);
        let largest = self.rate().0;
        if rate.0 > largest + largest / RISE {
            self.since_rise = 0;
        } else if self.since_rise < RISING {
            self.since_rise += 1;
        }
        if self.grows() && rate.0 > largest + largest / 4 {
            self.since_growth = 0;
        } else if !sample.app_limited && !began.app_limited {
            self.follow(sample, now, rate, elapsed);
        }
        self.rate = self.rate.max(rate);
        self.rate_last = rate;
        self.srtt_before = sample.srtt;
    }

    /// Judges a measurement during which the sender always had data.
    fn follow(&mut self, sample: &BoundSample, now: Micros, rate: Rate, elapsed: Micros) {
        if self.grows() {
            self.since_growth += 1;
            if !self.grows() {
                // Drop the rates of the start's bursts.
                self.rate = rate.max(self.rate_last);
                self.rate_before = Rate::ZERO;
                self.memory = None;
            }
        } else if self.usual_until.is_none() {
            self.fallen = if self.has_fallen(sample, rate) { self.fallen + 1 } else { 0 };
            if self.fallen >= FALLEN {
                self.begin_usual(now);
                (self.rate, self.rate_before, self.period) = (rate, Rate::ZERO, Micros::ZERO);
            }
        }
        self.empty = if is_queued(sample) { 0 } else { (self.empty + 1).min(EMPTY) };
        self.period = Micros(self.period.0.saturating_add(elapsed.0));
        if self.period >= PERIOD {
            self.period = Micros::ZERO;
            self.rate_before = std::mem::replace(&mut self.rate, rate);
            if self.usual_until.is_none() {
                self.hold = None;
            }
        }
    }

    fn has_fallen(&self, sample: &BoundSample, rate: Rate) -> bool {
        let fell = rate.0 < self.rate().0 - self.rate().0 / 8;
        is_queued(sample) && (fell || (self.binds(sample) && self.is_others(sample)))
    }

    /// Whether the queue belongs to other flows: the round trip is longer than `R` needs for the lean bound's payload,
    /// and does not become shorter.
    fn is_others(&self, sample: &BoundSample) -> bool {
        self.rate().min(FASTEST).over(sample.srtt.min(LONGEST)).times(5) > self.lean(sample).times(4)
            && sample.srtt.0 >= self.srtt_before.0 - self.srtt_before.0 / DRAINS
    }

    fn begin_usual(&mut self, now: Micros) {
        let hold = self.hold.unwrap_or(HOLD);
        self.usual_until = Some(Micros(now.0.saturating_add(hold.0)));
        self.hold = Some(hold.times(2).min(LONGEST_HOLD));
        (self.fallen, self.was_full) = (0, false);
    }

    /// Returns the memory for `2 R T` and the slack.
    fn lean(&self, sample: &BoundSample) -> Bytes {
        let product = self.rate().min(FASTEST).over(sample.min_rtt.max(SHORTEST).min(LONGEST));
        product.scaled(LEAN.0, LEAN.1) + SLACK
    }

    /// Returns the bound to approach. A connection whose rate no longer doubles but still rises gets the room of one whose
    /// rate grows, but at most what the kernel would have given: within that limit it harms no other flow.
    fn wanted(&self, sample: &BoundSample) -> Bytes {
        let lean = self.lean(sample);
        let growing = lean.times(2) - SLACK;
        match () {
            () if self.grows() && !is_queued(sample) => growing,
            () if self.usual_until.is_some() || self.empty >= EMPTY => lean.max(usual(sample)),
            () if self.since_rise < RISING => lean.max(growing.min(sample.autotuning_max)),
            () => lean,
        }
    }

    /// Moves the bound towards `wanted`: down by an eighth at a time; up at once, but only by more than a sixteenth. While
    /// the rate grows, the bound becomes `wanted` at once.
    fn step(&mut self, wanted: Bytes) {
        self.memory = Some(match self.memory {
            Some(memory) if !self.grows() && wanted.0 <= memory.0 + memory.0 / 16 => {
                wanted.min(memory).max(memory - Bytes(memory.0 / 8))
            }
            _ => wanted,
        });
    }
}

/// Returns the memory that the kernel's autotuning would have allowed.
fn usual(sample: &BoundSample) -> Bytes {
    (sample.cwnd.min(MOST).times(USUAL) + SLACK).min(sample.autotuning_max)
}

/// Whether there is a queue: the smoothed round trip exceeds the shortest by more than a quarter and 1 ms.
fn is_queued(sample: &BoundSample) -> bool {
    sample.srtt.0 > sample.min_rtt.0.saturating_add(sample.min_rtt.0 / 4).saturating_add(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 1_448;
    const USUAL: Bytes = Bytes(4 << 20);
    const BASE: u64 = 50_000;

    /// A sender that is always busy and sampled once per round trip, on a path of a given payload rate.
    struct Path {
        bound: Bound,
        now: u64,
        delivered: f64,
        /// Payload per second for this sender, and the round-trip time in us with the queue of other flows.
        rate: f64,
        srtt: u64,
    }

    impl Path {
        fn new(rate: f64) -> Self {
            Self { bound: Bound::default(), now: 1_000_000, delivered: 0.0, rate, srtt: BASE }
        }

        fn sample(&mut self, cwnd: u64, app_limited: bool) -> Option<Bytes> {
            self.now += self.srtt;
            let carried = self.rate * self.srtt as f64 / 1e6;
            self.delivered += carried / MSS as f64;
            let sample = BoundSample {
                cwnd: Bytes(cwnd),
                mss: Bytes(MSS),
                delivered: self.delivered as u64 as u32,
                srtt: Micros(self.srtt),
                min_rtt: Micros(BASE),
                app_limited,
                autotuning_max: USUAL,
                ..BoundSample::default()
            };
            self.bound.observe(&sample, Micros(self.now))
        }

        /// Runs for `seconds` with a window that always exceeds the bound; returns the last bound.
        fn run(&mut self, seconds: u64) -> Bytes {
            let end = self.now + seconds * 1_000_000;
            let mut last = None;
            while self.now < end {
                last = self.sample(1 << 30, false);
            }
            last.unwrap()
        }

        fn lean(&self) -> u64 {
            (self.rate * BASE as f64 / 1e6 * 2.5) as u64 + SLACK.0
        }
    }

    #[test]
    fn without_a_rate_there_is_no_bound() {
        let mut path = Path::new(0.0);
        for _ in 0..10 {
            assert_eq!(path.sample(1 << 20, false), None);
        }
        let sample = BoundSample { delivered: 5, ..BoundSample::default() };
        assert_eq!(Bound::default().observe(&sample, Micros(1)), None, "no round-trip time");
    }

    #[test]
    fn alone_on_a_path_two_and_a_half_times_its_product_and_the_slack_are_held() {
        for rate in [1e6, 12.5e6, 125e6] {
            let mut path = Path::new(rate);
            path.srtt = 2 * BASE;
            let bound = path.run(30).0;
            assert!(bound.abs_diff(path.lean()) < path.lean() / 50, "{bound} at {rate}");
            assert!(!path.bound.is_usual());
        }
    }

    #[test]
    fn where_the_rate_falls_before_a_queue_the_kernel_s_bound_holds() {
        let mut path = Path::new(12.5e6);
        path.srtt = 2 * BASE;
        assert!(path.run(5) < USUAL);
        (path.rate, path.srtt) = (4e6, 4 * BASE);
        assert_eq!(path.run(1), USUAL);
    }

    #[test]
    fn where_there_is_no_queue_the_kernel_s_bound_holds() {
        assert_eq!(Path::new(12.5e6).run(5), USUAL);
        let mut path = Path::new(125e6);
        let bound = path.run(5).0;
        assert!(bound.abs_diff(path.lean()) < path.lean() / 50, "{bound} is more than the kernel's");
    }

    #[test]
    fn a_full_buffer_that_runs_empty_needs_the_kernel_s_bound() {
        let mut path = Path::new(12.5e6);
        path.srtt = 2 * BASE;
        let before = path.run(5);
        let empty = BoundSample {
            cwnd: Bytes(1 << 30),
            srtt: Micros(2 * BASE),
            min_rtt: Micros(BASE),
            app_limited: true,
            autotuning_max: USUAL,
            send_queued: Bytes(0),
            sndbuf: before,
            ..BoundSample::default()
        };
        path.bound.observe(&empty, Micros(path.now));
        assert!(path.bound.is_usual());
    }

    #[test]
    fn a_fallen_rate_without_a_queue_changes_nothing() {
        let mut path = Path::new(12.5e6);
        let before = path.run(5);
        path.rate = 4e6;
        assert_eq!(path.run(2), before);
    }

    #[test]
    fn a_slower_path_has_its_lean_bound_after_a_while() {
        let mut path = Path::new(12.5e6);
        path.run(5);
        (path.rate, path.srtt) = (4e6, 2 * BASE);
        let bound = path.run(20).0;
        assert!(bound.abs_diff(path.lean()) < path.lean() / 50, "{bound}");
    }

    #[test]
    fn attempts_that_cost_rate_come_ever_later() {
        let mut path = Path::new(12.5e6);
        path.run(5);
        path.srtt = 4 * BASE;
        let (mut lean, mut samples) = (0, 0);
        while path.now < 300_000_000 {
            // Other flows fill the queue: the bytes under way decide the share of the rate.
            path.rate = if path.bound.is_usual() { 6e6 } else { 3e6 };
            path.sample(1 << 30, false);
            samples += 1;
            lean += u32::from(!path.bound.is_usual());
        }
        assert!(lean * 20 < samples, "{lean} of {samples} samples");
    }

    proptest! {
        #[test]
        fn a_start_that_doubles_its_window_has_room_for_the_next(first in 1_u64..64, rounds in 2_u32..15) {
            let mut path = Path::new(0.0);
            let mut window = first * MSS;
            path.sample(window, false);
            for _ in 0..rounds {
                path.rate = window as f64 * 1e6 / BASE as f64;
                window *= 2;
                let bound = path.sample(window, false).unwrap();
                prop_assert!(bound.scaled(4, 5).0 >= 2 * window, "{} for {}", bound, window);
            }
        }

        #[test]
        fn it_is_never_below_the_slack(
            samples in proptest::collection::vec((0_u64..1 << 22, any::<u32>(), 0_u64..1 << 22, 0_u64..1 << 20, any::<bool>()), 1..80),
        ) {
            let (mut bound, mut now) = (Bound::default(), 1);
            for (step, delivered, srtt, min_rtt, app_limited) in samples {
                now += step;
                let sample = BoundSample {
                    cwnd: Bytes(1 << 24), mss: Bytes(MSS), delivered, srtt: Micros(srtt), min_rtt: Micros(min_rtt),
                    app_limited, autotuning_max: USUAL, ..BoundSample::default()
                };
                let memory = bound.observe(&sample, Micros(now));
                prop_assert!(memory.is_none_or(|memory| memory >= SLACK));
            }
        }

        #[test]
        fn an_idle_application_does_not_lower_it(rates in proptest::collection::vec(0.0_f64..12.5e6, 1..100)) {
            let mut path = Path::new(12.5e6);
            let before = path.run(5);
            path.sample(1 << 30, true);
            path.srtt = 2 * BASE;
            for rate in rates {
                path.rate = rate;
                prop_assert_eq!(path.sample(1 << 30, true), Some(before));
            }
        }
    }
}
