//! Buffer overflow latency: how long a flow can keep growing after it has filled the path.
//!
//! Problem: SOBAS must see that the path is full before the tight link's buffer is. How long is that?
//! Source: Prasad 2004, appendix, equations 9 to 16.
//! Terms: `b` is the buffer of the tight link, `C` its capacity, `T0` the round-trip time before the flow, `L` a
//! segment. The backlog grows as the window does: in slow start by a window per round trip (latency `b / C`), in
//! congestion avoidance by `L` per round trip of `T0 + backlog / C` (latency `(b^2 + 2*b*C*T0) / (2*C*L)`). Delayed
//! acknowledgements halve the growth and double both latencies.
//! Latencies are seconds in floating point: they explain a limit of the method, and no rule reads them.
//! Properties kept: both latencies grow with the buffer; slow start is never the slower one for `b >= L`.

use bufwise_units::{Bytes, Micros, Rate};

/// The tight link as the appendix describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TightLink {
    /// DropTail buffer.
    pub buffer: Bytes,
    /// Transmission rate.
    pub capacity: Rate,
    /// Round-trip time before the flow adds a backlog.
    pub base_rtt: Micros,
}

/// How the receiver acknowledges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acks {
    /// One acknowledgement per segment.
    Every,
    /// One acknowledgement per two segments.
    Delayed,
}

impl Acks {
    fn slowdown(self) -> f64 {
        match self {
            Self::Every => 1.0,
            Self::Delayed => 2.0,
        }
    }
}

impl TightLink {
    /// Returns seconds from saturation to overflow in slow start; infinite without capacity (Prasad 2004, equations 13,
    /// 15).
    #[must_use]
    pub fn slow_start_overflow(&self, acks: Acks) -> f64 {
        if self.capacity.0 == 0 {
            return f64::INFINITY;
        }
        acks.slowdown() * self.buffer.0 as f64 / self.capacity.0 as f64
    }

    /// Returns seconds from saturation to overflow in congestion avoidance with segments of `mss`; infinite without
    /// capacity or segment (Prasad 2004, equations 10, 14).
    #[must_use]
    pub fn congestion_avoidance_overflow(&self, mss: Bytes, acks: Acks) -> f64 {
        if self.capacity.0 == 0 || mss == Bytes::ZERO {
            return f64::INFINITY;
        }
        let (b, c) = (self.buffer.0 as f64, self.capacity.0 as f64);
        let grown = b * b + 2.0 * b * c * self.base_rtt.as_secs_f64();
        acks.slowdown() * grown / (2.0 * c * mss.0 as f64)
    }

    /// Whether SOBAS can act before slow start overflows the buffer: two rate readings of two round trips
    /// each must fit, `4 * T0 < 2 * b / C` (Prasad 2004, equation 16).
    #[must_use]
    pub fn slow_start_is_caught(&self) -> bool {
        4.0 * self.base_rtt.as_secs_f64() < self.slow_start_overflow(Acks::Delayed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(buffer: u64, rtt_ms: u64) -> TightLink {
        TightLink {
            buffer: Bytes(buffer),
            capacity: Rate::from_bits_per_sec(100_000_000),
            base_rtt: Micros::from_millis(rtt_ms),
        }
    }

    #[test]
    fn a_buffer_of_500_ms_gives_one_second_in_slow_start() {
        let path = link(6_250_000, 100);
        assert!((path.slow_start_overflow(Acks::Every) - 0.5).abs() < 1e-9);
        assert!((path.slow_start_overflow(Acks::Delayed) - 1.0).abs() < 1e-9);
    }

    #[test]
    fn slow_start_is_caught_up_to_250_ms_with_a_buffer_of_500_ms() {
        assert!(link(6_250_000, 249).slow_start_is_caught());
        assert!(!link(6_250_000, 250).slow_start_is_caught());
        assert!(!link(62_500, 40).slow_start_is_caught(), "a buffer of BDP/8 overflows first");
    }

    #[test]
    fn congestion_avoidance_integrates_the_growing_round_trip() {
        let path = link(62_500, 40);
        let closed = path.congestion_avoidance_overflow(Bytes(1_448), Acks::Every);
        // The same by steps: one segment per round trip, each round trip longer than the last.
        let (mut backlog, mut seconds) = (0.0, 0.0);
        while backlog < 62_500.0 {
            backlog += 1.448;
            seconds += (0.040 + backlog / 12_500_000.0) / 1_000.0;
        }
        assert!((closed - seconds).abs() / closed < 0.001, "{closed} against {seconds}");
        let delayed = path.congestion_avoidance_overflow(Bytes(1_448), Acks::Delayed);
        assert!((delayed / closed - 2.0).abs() < 1e-12);
        assert!(path.slow_start_overflow(Acks::Every) < closed);
    }

    #[test]
    fn a_link_without_capacity_never_overflows_in_finite_time() {
        let idle = TightLink { buffer: Bytes(1), capacity: Rate(0), base_rtt: Micros(1) };
        assert!(idle.slow_start_overflow(Acks::Every).is_infinite());
        assert!(idle.congestion_avoidance_overflow(Bytes(1_448), Acks::Every).is_infinite());
        assert!(link(1, 1).congestion_avoidance_overflow(Bytes::ZERO, Acks::Every).is_infinite());
    }
}
