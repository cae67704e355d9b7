//! bpftune's rule for the largest buffers of a network namespace, for comparisons.
//!
//! Problem: the kernel's own autotuning ends at the maxima of `tcp_wmem` and `tcp_rmem`. bpftune raises a maximum when
//! a socket gets near it, and lowers it where growth makes round trips longer or memory is short.
//!
//! Source: bpftune (Oracle, <https://github.com/oracle/bpftune>), its tuner `tcp_buffer` at its usual learning rate.
//! The original hooks the kernel's functions `tcp_sndbuf_expand` and `tcp_rcv_space_adjust`; this rule takes samples of
//! the sockets.
//!
//! Terms: *near* means within a quarter of the maximum. An *event* is a socket that needs more than the maximum, or a
//! short pool; the original handles one event of a kind per 25 ms. *Pool* is the memory that all TCP connections of the
//! host hold, as `tcp_mem` measures it.
//!
//! Properties kept: a maximum grows only for a socket that is near it; it never grows while the pool is short; it does
//! not grow while growth correlates with longer round trips, and falls for latency end above the default size.
//!
//! Differences from the original:
//! - Sockets are sampled; the original sees each attempt of the kernel to expand a buffer.
//! - A buffer that the application has set is treated like any other: socket diagnostics do not show the lock.
//! - The original may also raise `tcp_mem`. This rule assumes that `tcp_mem` is already as large as bpftune lets it
//!   become (a quarter of the free memory), so that only the maxima can fall.
//! - The correlation is computed in floating point. The original's 64-bit sums wrap after some hundred events.
//! - A fall for memory ends at a page; the original has no such bound.

use bufwise_units::{Bytes, Micros};

/// Shift for growth, fall and the distance that counts as near: a quarter (bpftune's learning rate of 4).
const STEP_SHIFT: u32 = 2;
/// Time in which at most one event is handled.
const BETWEEN_EVENTS: Micros = Micros(25_000);
/// Number of events before the correlation counts, and the value above which growth and latency are correlated.
const LEAST_EVENTS: f64 = 10.0;
const CORRELATED: f64 = 0.75;
/// Bound that no maximum reaches: the largest `int`.
const LARGEST: u64 = i32::MAX as u64;
/// The least value of the kernel's own maxima: a page.
const SMALLEST: u64 = 4_096;

/// A socket that may need more than the maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Its buffer: `SO_SNDBUF` of a sender whose congestion window has room, `SO_RCVBUF` of a receiver that reads.
    pub buffer: Bytes,
    /// Its smoothed round trip.
    pub srtt: Micros,
}

/// How short the host's memory for TCP is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pool {
    /// There is enough.
    Ample,
    /// Near the kernel's threshold of pressure: nothing grows.
    NearPressure,
    /// Near its end: maxima fall.
    NearExhaustion,
}

impl Pool {
    /// Judges the memory `held` against `limit`, the last number of `tcp_mem`. The threshold of pressure is taken as
    /// two thirds of `limit`, as the kernel sets it at boot.
    #[must_use]
    pub fn of(held: Bytes, limit: Bytes) -> Self {
        if is_near(held.0, limit.0) {
            Self::NearExhaustion
        } else if is_near(held.0, limit.0 / 3 * 2) {
            Self::NearPressure
        } else {
            Self::Ample
        }
    }
}

/// The rule for one maximum of a namespace.
///
/// ```
/// use bufwise_policy::bpftune::{Bpftune, Pool, Socket};
/// use bufwise_units::{Bytes, Micros};
///
/// let mut rule = Bpftune::new(Bytes(16_384), Bytes(4 << 20));
/// let near = Socket { buffer: Bytes(3 << 20), srtt: Micros::from_millis(40) };
/// assert_eq!(rule.sampled(Micros(0), [near], Pool::Ample), Some(Bytes(5 << 20)));
/// ```
#[derive(Clone, Debug)]
pub struct Bpftune {
    default: Bytes,
    maximum: Bytes,
    last_event: Option<Micros>,
    correlation: Correlation,
}

impl Bpftune {
    /// Starts from the default size and the maximum: the second and third number of `tcp_wmem` or `tcp_rmem`.
    #[must_use]
    pub fn new(default: Bytes, maximum: Bytes) -> Self {
        Self { default, maximum, last_event: None, correlation: Correlation::default() }
    }

    /// Takes one round of samples and returns the new maximum, if they change it.
    pub fn sampled(
        &mut self,
        now: Micros,
        sockets: impl IntoIterator<Item = Socket>,
        pool: Pool,
    ) -> Option<Bytes> {
        if self.last_event.is_some_and(|last| now.0.saturating_sub(last.0) < BETWEEN_EVENTS.0) {
            return None;
        }
        let maximum = self.maximum.0;
        let lower = maximum - (maximum >> STEP_SHIFT);
        let new = match pool {
            Pool::NearPressure => return None,
            Pool::NearExhaustion => lower.max(SMALLEST),
            Pool::Ample => {
                let near = sockets.into_iter().find(|socket| is_near(socket.buffer.0, maximum))?;
                let higher = maximum.saturating_add(maximum >> STEP_SHIFT);
                if higher >= LARGEST {
                    return None;
                }
                self.correlation.add(maximum as f64, near.srtt.0 as f64);
                if self.correlation.value() <= CORRELATED { higher } else { lower }
            }
        };
        self.last_event = Some(now);
        let is_for_latency = pool == Pool::Ample && new < maximum;
        if new == maximum || is_for_latency && new <= self.default.0 {
            return None;
        }
        self.maximum = Bytes(new);
        Some(self.maximum)
    }
}

fn is_near(value: u64, limit: u64) -> bool {
    value.saturating_add(limit >> STEP_SHIFT) >= limit
}

/// Pearson's correlation of maxima and round trips, as running means and products of distances from them (Welford
/// 1962).
#[derive(Clone, Copy, Debug, Default)]
struct Correlation {
    count: f64,
    means: (f64, f64),
    squares: (f64, f64),
    product: f64,
}

impl Correlation {
    fn add(&mut self, x: f64, y: f64) {
        self.count += 1.0;
        let before = (x - self.means.0, y - self.means.1);
        self.means.0 += before.0 / self.count;
        self.means.1 += before.1 / self.count;
        self.squares.0 += before.0 * (x - self.means.0);
        self.squares.1 += before.1 * (y - self.means.1);
        self.product += before.0 * (y - self.means.1);
    }

    /// Returns the coefficient; 0 before [`LEAST_EVENTS`] events, and where nothing varies.
    fn value(&self) -> f64 {
        let scale = (self.squares.0 * self.squares.1).sqrt();
        if self.count < LEAST_EVENTS || scale <= 0.0 { 0.0 } else { self.product / scale }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DEFAULT: Bytes = Bytes(16_384);
    const MAXIMUM: u64 = 4 << 20;

    fn rule() -> Bpftune {
        Bpftune::new(DEFAULT, Bytes(MAXIMUM))
    }

    fn socket(buffer: u64, srtt_ms: u64) -> Socket {
        Socket { buffer: Bytes(buffer), srtt: Micros::from_millis(srtt_ms) }
    }

    /// Runs events 25 ms apart of a socket whose buffer is always at the maximum; `srtt_ms` gives the round trip for a
    /// maximum. Returns the maxima.
    fn always_full(rule: &mut Bpftune, events: u64, srtt_ms: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut maxima = vec![rule.maximum.0];
        for event in 0..events {
            let at = rule.maximum.0;
            rule.sampled(Micros(event * 25_000), [socket(at, srtt_ms(at))], Pool::Ample);
            maxima.push(rule.maximum.0);
        }
        maxima
    }

    #[test]
    fn a_maximum_grows_by_a_quarter_for_a_socket_that_is_near_it() {
        let mut rule = rule();
        assert_eq!(rule.sampled(Micros(0), [socket(MAXIMUM / 4 * 3 - 1, 40)], Pool::Ample), None);
        let sockets = [socket(1 << 16, 40), socket(MAXIMUM / 4 * 3, 40)];
        assert_eq!(rule.sampled(Micros(0), sockets, Pool::Ample), Some(Bytes(MAXIMUM / 4 * 5)));
    }

    #[test]
    fn one_event_is_heard_each_25_ms() {
        let mut rule = rule();
        let full = [socket(1 << 30, 40)];
        assert!(rule.sampled(Micros(0), full, Pool::Ample).is_some());
        assert_eq!(rule.sampled(Micros(24_999), full, Pool::Ample), None);
        assert!(rule.sampled(Micros(25_000), full, Pool::Ample).is_some());
    }

    #[test]
    fn a_pool_near_pressure_stops_growth_and_near_its_end_maxima_fall() {
        let limit = Bytes(6_000_000);
        let pools = [2_999_999, 3_000_000, 4_499_999, 4_500_000].map(|held| Pool::of(Bytes(held), limit));
        assert_eq!(pools, [Pool::Ample, Pool::NearPressure, Pool::NearPressure, Pool::NearExhaustion]);
        let mut rule = rule();
        assert_eq!(rule.sampled(Micros(0), [socket(MAXIMUM, 40)], Pool::NearPressure), None);
        assert_eq!(rule.sampled(Micros(0), [], Pool::NearExhaustion), Some(Bytes(MAXIMUM / 4 * 3)));
    }

    #[test]
    fn growth_that_makes_round_trips_longer_is_taken_back_from_the_tenth_event_on() {
        // Each byte more waits in the path's queue: 4 MiB take 40 ms.
        let maxima = always_full(&mut rule(), 12, |maximum| maximum * 40 / MAXIMUM);
        assert!(maxima[..10].windows(2).all(|pair| pair[1] > pair[0]), "{maxima:?}");
        assert!(maxima[9..].windows(2).all(|pair| pair[1] < pair[0]), "{maxima:?}");
        // Without a queue the round trip does not change.
        let maxima = always_full(&mut rule(), 12, |_| 40);
        assert!(maxima.windows(2).all(|pair| pair[1] > pair[0]), "{maxima:?}");
    }

    #[test]
    fn no_maximum_passes_what_a_socket_can_have() {
        let maxima = always_full(&mut rule(), 200, |_| 40);
        let last = *maxima.last().unwrap();
        assert!(last < LARGEST && last + last / 4 >= LARGEST, "{last}");
    }

    proptest! {
        #[test]
        fn a_maximum_changes_by_a_quarter_at_most_and_stays_above_the_default_or_a_page(
            samples in prop::collection::vec((0_u64..1 << 32, 1_u64..1_000, 0_u64..8_000_000), 1..200)
        ) {
            let mut rule = rule();
            for (at, (buffer, srtt, held)) in (0_u64..).zip(samples) {
                let before = rule.maximum.0;
                let pool = Pool::of(Bytes(held), Bytes(6_000_000));
                let new = rule.sampled(Micros(at * 25_000), [socket(buffer, srtt)], pool);
                if let Some(Bytes(new)) = new {
                    prop_assert!(new != before && new.abs_diff(before) <= before / 4 + 1);
                    let grew = new > before;
                    prop_assert!(!grew || pool == Pool::Ample && buffer >= before - before / 4 - 1);
                    let floor = if pool == Pool::Ample { DEFAULT.0 } else { SMALLEST };
                    prop_assert!(grew || new >= floor);
                }
            }
        }
    }
}
