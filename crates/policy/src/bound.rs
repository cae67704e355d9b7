//! A bound on what a send buffer may hold at all, below every rule of the send side.
//!
//! Problem: the rules of the send side follow the congestion window, and before a deep queue a loss-based window grows
//! until the queue is full. Linux's own autotuning ends at the maximum of `tcp_wmem`, 4 MB by default, and so bounds the
//! queue by chance; a rule without that maximum fills it for all others behind it, and holds several windows of memory
//! besides.
//! Source: ours. The rate of a path as the largest delivery rate lately, and the end of a start: Cardwell 2016 (BBR).
//! Terms: `R` the largest delivery rate seen lately, `T` the shortest round-trip time. The *lean* bound is memory for
//! `2 R T` and a slack (for `4 R T` while `R` grows), the *usual* bound what the kernel's autotuning would have allowed, for
//! the window and at most.
//! - The bound is the lean one as long as that costs nothing.
//! - When the rate falls below `7/8 R` while there is a queue, the queue is others' or the path has changed, whether or
//!   not the bound binds by then: the bound rises to the usual one, so that the connection competes as the kernel would.
//!   So it does where the bound binds and the round trip stays longer than `R` takes for what the lean bound holds.
//! - After a while `R` is measured anew and the bound descends, an eighth at a time. If that costs rate, it rises again,
//!   and the next attempt comes later.
//! - The same when a buffer that was full runs empty: a writer that comes late needs more than its path.
//! - Where there is no queue the lean bound has nothing to gain, and the usual one holds.
//!
//! Keeps: no bound without a measured rate; never below the slack; a time in which the application limits the sender
//! neither makes `R` smaller nor counts as lost rate; a start that doubles its window each round trip has room for it.

use bufwise_units::{Bytes, Micros, Rate};

/// Memory per payload, times payload in units of `R T`: 5/4 of two.
const LEAN: (u64, u64) = (5, 2);
/// For the start, and for what hosts and devices hold back: 256 KB less the buffer that a writer fills to its end.
const SLACK: Bytes = Bytes(192 << 10);
/// Below this the hosts' own delays count for more than the path's.
const SHORTEST: Micros = Micros(5_000);
/// Longest time, largest rate and most bytes that enter a product; `bpf/number.h` and `bpf/bound.h` name them too.
const LONGEST: Micros = Micros(1 << 27);
const FASTEST: Rate = Rate(1 << 36);
const MOST: Bytes = Bytes(1 << 36);
/// A measurement takes so many of the shortest round-trip times, and at least the present one.
const ROUNDS: u64 = 4;
/// The rate grows as long as one of so many measurements exceeds all before by a quarter (as BBR ends its start).
const PATIENCE: u32 = 3;
/// The rate still rises as long as one of so many measurements exceeds all before by a 32nd.
const RISING: u32 = 4;
const RISE: u64 = 32;
/// The rate counts as fallen below 7/8 of `R`, in so many measurements one after the other.
const FALLEN: u32 = 2;
/// `R` is the largest of this period of data and of the one before.
const PERIOD: Micros = Micros(8_000_000);
/// The usual bound holds for so long at first, and at most.
const HOLD: Micros = Micros(2_000_000);
const LONGEST_HOLD: Micros = Micros(64_000_000);
/// An own queue drains by a part of so many, at least, from one measurement to the next while the bound descends.
const DRAINS: u64 = 16;
/// Memory per window that the kernel gives: 3.2 of 6.18's, rounded up to what loses no rate (ABT's lower edge).
const USUAL: u64 = 4;
/// There is no queue if so many measurements one after the other find none.
const EMPTY: u32 = 2;
/// A buffer has run empty if it holds less than this share of its limit.
const RUN_EMPTY: u64 = 4;

/// One look at a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look {
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
    /// The most that the kernel's autotuning would have allowed (memory: the maximum of `tcp_wmem`).
    pub usual: Bytes,
    /// Memory that the send queue holds.
    pub send_queued: Bytes,
    /// Its limit.
    pub sndbuf: Bytes,
}

/// The bound of one connection, at its sender.
///
/// Observe about once per round trip while it grows, and some times a second later.
///
/// ```
/// use bufwise_policy::bound::{Bound, Look};
/// use bufwise_units::{Bytes, Micros};
///
/// let mut bound = Bound::default();
/// let (srtt, min_rtt) = (Micros::from_millis(40), Micros::from_millis(40));
/// let mut memory = None;
/// for round in 0..20 {
///     // 345 segments in each round trip of 40 ms: 100 Mbit/s.
///     let look = Look { cwnd: Bytes(499_560), mss: Bytes(1_448), delivered: round * 345, srtt, min_rtt,
///         usual: Bytes(4 << 20), ..Look::default() };
///     memory = bound.observe(&look, min_rtt.times(round.into()));
/// }
/// assert_eq!(bound.rate().over(min_rtt), Bytes(499_560));
/// assert!(memory.is_some());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Bound {
    /// Largest rates of this period and of the one before, and the last one.
    rate: Rate,
    rate_before: Rate,
    rate_last: Rate,
    /// Time of this period in which there was data to send.
    period: Micros,
    /// The measurement that runs.
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
    /// The bound was seen to bind with a buffer that was full.
    was_full: bool,
}

#[derive(Clone, Copy, Debug)]
struct Began {
    at: Micros,
    delivered: u32,
    app_limited: bool,
}

impl Bound {
    /// Takes one look at `now` and says what memory the send buffer may hold; `None`: no bound.
    pub fn observe(&mut self, look: &Look, now: Micros) -> Option<Bytes> {
        if look.min_rtt == Micros::ZERO {
            return None;
        }
        self.watch_writer(look, now);
        if let Some(began) = self.began {
            let elapsed = now.since(began.at);
            if elapsed < self.span(look) {
                return self.memory;
            }
            self.measure(look, now, began, elapsed);
        }
        self.began = Some(Began { at: now, delivered: look.delivered, app_limited: look.app_limited });
        if self.rate() == Rate::ZERO {
            return None;
        }
        if self.usual_until.is_some_and(|end| now >= end) {
            self.usual_until = None;
            self.memory = self.memory.map(|memory| memory.min(usual(look)));
        }
        self.step(self.wanted(look));
        self.memory
    }

    /// `R`, the largest delivery rate seen lately.
    #[must_use]
    pub fn rate(&self) -> Rate {
        self.rate.max(self.rate_before)
    }

    /// Whether the rate still grows, as in slow start.
    #[must_use]
    pub fn grows(&self) -> bool {
        self.since_growth < PATIENCE
    }

    /// Whether the usual bound holds.
    #[must_use]
    pub fn is_usual(&self) -> bool {
        self.usual_until.is_some()
    }

    /// How long a measurement takes. While the rate grows, a round trip.
    fn span(&self, look: &Look) -> Micros {
        let rtt = look.min_rtt.min(LONGEST);
        if self.grows() { rtt.since(Micros(rtt.0 / 8)) } else { rtt.times(ROUNDS).max(look.srtt) }
    }

    /// A writer that comes late lets a buffer run empty that was full: the bound was too tight for it.
    fn watch_writer(&mut self, look: &Look, now: Micros) {
        if self.grows() || self.usual_until.is_some() || self.memory.is_none() {
            return;
        }
        if !look.app_limited && self.binds(look) {
            self.was_full = true;
        } else if self.was_full && look.send_queued.times(RUN_EMPTY) < look.sndbuf {
            self.begin_usual(now);
        }
    }

    /// A window is more than half of the bound.
    fn binds(&self, look: &Look) -> bool {
        self.memory.is_some_and(|memory| look.cwnd.times(2) > memory)
    }

    /// A segment of less than the usual size takes about as much memory, and counts as such.
    fn measure(&mut self, look: &Look, now: Micros, began: Began, elapsed: Micros) {
        let mss = look.mss.max(Bytes(1_448)).min(Bytes(1 << 16));
        let segments = look.delivered.wrapping_sub(began.delivered);
        let rate = mss.times(segments.into()).min(MOST).per(elapsed);
        let largest = self.rate().0;
        if rate.0 > largest + largest / RISE {
            self.since_rise = 0;
        } else if self.since_rise < RISING {
            self.since_rise += 1;
        }
        if self.grows() && rate.0 > largest + largest / 4 {
            self.since_growth = 0;
        } else if !look.app_limited && !began.app_limited {
            self.follow(look, now, rate, elapsed);
        }
        self.rate = self.rate.max(rate);
        self.rate_last = rate;
        self.srtt_before = look.srtt;
    }

    /// A sender that had data for all of a measurement.
    fn follow(&mut self, look: &Look, now: Micros, rate: Rate, elapsed: Micros) {
        if self.grows() {
            self.since_growth += 1;
            if !self.grows() {
                // The start's bursts count no more.
                self.rate = rate.max(self.rate_last);
                self.rate_before = Rate::ZERO;
                self.memory = None;
            }
        } else if self.usual_until.is_none() {
            self.fallen = if self.has_fallen(look, rate) { self.fallen + 1 } else { 0 };
            if self.fallen >= FALLEN {
                self.begin_usual(now);
                (self.rate, self.rate_before, self.period) = (rate, Rate::ZERO, Micros::ZERO);
            }
        }
        self.empty = if is_queued(look) { 0 } else { (self.empty + 1).min(EMPTY) };
        self.period = Micros(self.period.0.saturating_add(elapsed.0));
        if self.period >= PERIOD {
            self.period = Micros::ZERO;
            self.rate_before = std::mem::replace(&mut self.rate, rate);
            if self.usual_until.is_none() {
                self.hold = None;
            }
        }
    }

    fn has_fallen(&self, look: &Look, rate: Rate) -> bool {
        let fell = rate.0 < self.rate().0 - self.rate().0 / 8;
        is_queued(look) && (fell || (self.binds(look) && self.is_others(look)))
    }

    /// The round trip is longer than `R` takes for the payload of the lean bound, and becomes no shorter: the queue is others'.
    fn is_others(&self, look: &Look) -> bool {
        self.rate().min(FASTEST).over(look.srtt.min(LONGEST)).times(5) > self.lean(look).times(4)
            && look.srtt.0 >= self.srtt_before.0 - self.srtt_before.0 / DRAINS
    }

    fn begin_usual(&mut self, now: Micros) {
        let hold = self.hold.unwrap_or(HOLD);
        self.usual_until = Some(Micros(now.0.saturating_add(hold.0)));
        self.hold = Some(hold.times(2).min(LONGEST_HOLD));
        (self.fallen, self.was_full) = (0, false);
    }

    /// Memory for two `R T`.
    fn lean(&self, look: &Look) -> Bytes {
        let product = self.rate().min(FASTEST).over(look.min_rtt.max(SHORTEST).min(LONGEST));
        product.scaled(LEAN.0, LEAN.1) + SLACK
    }

    /// A rate that no longer doubles and still rises gets the room of one that grows, too, as far as the kernel would have
    /// given that much: there it costs nobody anything.
    fn wanted(&self, look: &Look) -> Bytes {
        let lean = self.lean(look);
        let growing = lean.times(2) - SLACK;
        match () {
            () if self.grows() && !is_queued(look) => growing,
            () if self.usual_until.is_some() || self.empty >= EMPTY => lean.max(usual(look)),
            () if self.since_rise < RISING => lean.max(growing.min(look.usual)),
            () => lean,
        }
    }

    /// Down an eighth at a time; up at once, but not for a sixteenth. While the rate grows, at once.
    fn step(&mut self, wanted: Bytes) {
        self.memory = Some(match self.memory {
            Some(memory) if !self.grows() && wanted.0 <= memory.0 + memory.0 / 16 => {
                wanted.min(memory).max(memory - Bytes(memory.0 / 8))
            }
            _ => wanted,
        });
    }
}

/// The kernel's autotuning would have allowed so much.
fn usual(look: &Look) -> Bytes {
    (look.cwnd.min(MOST).times(USUAL) + SLACK).min(look.usual)
}

/// There is more of a queue than a fourth of the shortest round trip, and a millisecond.
fn is_queued(look: &Look) -> bool {
    look.srtt.0 > look.min_rtt.0.saturating_add(look.min_rtt.0 / 4).saturating_add(1_000)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MSS: u64 = 1_448;
    const USUAL: Bytes = Bytes(4 << 20);
    const BASE: u64 = 50_000;

    /// A sender that is always busy, one look per round trip, on a path of so much payload per second.
    struct Path {
        bound: Bound,
        now: u64,
        delivered: f64,
        /// Payload per second that is the sender's, and the round-trip time that others' queue makes of the base.
        rate: f64,
        srtt: u64,
    }

    impl Path {
        fn new(rate: f64) -> Self {
            Self { bound: Bound::default(), now: 1_000_000, delivered: 0.0, rate, srtt: BASE }
        }

        fn look(&mut self, cwnd: u64, app_limited: bool) -> Option<Bytes> {
            self.now += self.srtt;
            let carried = self.rate * self.srtt as f64 / 1e6;
            self.delivered += carried / MSS as f64;
            let look = Look {
                cwnd: Bytes(cwnd),
                mss: Bytes(MSS),
                delivered: self.delivered as u64 as u32,
                srtt: Micros(self.srtt),
                min_rtt: Micros(BASE),
                app_limited,
                usual: USUAL,
                ..Look::default()
            };
            self.bound.observe(&look, Micros(self.now))
        }

        /// So many seconds with a window that always exceeds the bound.
        fn run(&mut self, seconds: u64) -> Bytes {
            let end = self.now + seconds * 1_000_000;
            let mut last = None;
            while self.now < end {
                last = self.look(1 << 30, false);
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
            assert_eq!(path.look(1 << 20, false), None);
        }
        let look = Look { delivered: 5, ..Look::default() };
        assert_eq!(Bound::default().observe(&look, Micros(1)), None, "no round-trip time");
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
        let empty = Look {
            cwnd: Bytes(1 << 30),
            srtt: Micros(2 * BASE),
            min_rtt: Micros(BASE),
            app_limited: true,
            usual: USUAL,
            send_queued: Bytes(0),
            sndbuf: before,
            ..Look::default()
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
        let (mut lean, mut looks) = (0, 0);
        while path.now < 300_000_000 {
            // Others fill the queue: what is under way decides the share.
            path.rate = if path.bound.is_usual() { 6e6 } else { 3e6 };
            path.look(1 << 30, false);
            looks += 1;
            lean += u32::from(!path.bound.is_usual());
        }
        assert!(lean * 20 < looks, "{lean} of {looks} looks");
    }

    proptest! {
        #[test]
        fn a_start_that_doubles_its_window_has_room_for_the_next(first in 1_u64..64, rounds in 2_u32..15) {
            let mut path = Path::new(0.0);
            let mut window = first * MSS;
            path.look(window, false);
            for _ in 0..rounds {
                path.rate = window as f64 * 1e6 / BASE as f64;
                window *= 2;
                let bound = path.look(window, false).unwrap();
                prop_assert!(bound.scaled(4, 5).0 >= 2 * window, "{} for {}", bound, window);
            }
        }

        #[test]
        fn it_is_never_below_the_slack(
            looks in proptest::collection::vec((0_u64..1 << 22, any::<u32>(), 0_u64..1 << 22, 0_u64..1 << 20, any::<bool>()), 1..80),
        ) {
            let (mut bound, mut now) = (Bound::default(), 1);
            for (step, delivered, srtt, min_rtt, app_limited) in looks {
                now += step;
                let look = Look {
                    cwnd: Bytes(1 << 24), mss: Bytes(MSS), delivered, srtt: Micros(srtt), min_rtt: Micros(min_rtt),
                    app_limited, usual: USUAL, ..Look::default()
                };
                let memory = bound.observe(&look, Micros(now));
                prop_assert!(memory.is_none_or(|memory| memory >= SLACK));
            }
        }

        #[test]
        fn an_idle_application_does_not_lower_it(rates in proptest::collection::vec(0.0_f64..12.5e6, 1..100)) {
            let mut path = Path::new(12.5e6);
            let before = path.run(5);
            path.look(1 << 30, true);
            path.srtt = 2 * BASE;
            for rate in rates {
                path.rate = rate;
                prop_assert_eq!(path.look(1 << 30, true), Some(before));
            }
        }
    }
}
