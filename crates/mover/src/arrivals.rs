//! Bytes that have arrived at a receiver, in order or not.
//!
//! Problem: what `TCP_INFO` counts as received is received *in order*. Behind a hole nothing counts, and when the hole is
//! filled a whole window counts at once: a measurement of one round trip's arrivals would see two. Segments are
//! counted when they come (`tcpi_data_segs_in`), but what one of them carries is not known: below the socket
//! several are merged, with one segment's count on some ways.
//! Source: ours; `tcp_data_queue()` and `tcp_segs_in()` of the kernel.
//! We: while nothing comes out of order, the bytes in order count, and tell what a counted segment carries in the mean.
//! From the first that comes out of order on, the segments count by that; until the bytes in order have caught up, or
//! nothing came out of order for a while.
//! Properties kept: what is told never falls; without losses it is the bytes in order, exactly; a hole that is filled adds
//! no more than what came meanwhile.

use bufwise_units::{Bytes, Micros, Sample};

/// Payload of a counted segment, before it is known.
const SOME_SEGMENT: u64 = 1_448;
/// Weight of the last look in the mean payload of a counted segment: one in so many.
const WEIGHT: u64 = 8;
/// Holes are filled within so many round trips after the last segment that came out of order, or are no holes any more.
const FILLED_WITHIN: u64 = 4;

/// Arrivals at one receiver.
#[derive(Debug)]
pub(crate) struct Arrivals {
    total: Bytes,
    /// Mean payload of a counted segment.
    payload: u64,
    /// Bytes behind a hole, which do not count as in order yet.
    behind: u64,
    /// The last look: counted segments, bytes in order, segments out of order.
    segments: u32,
    in_order: Bytes,
    out_of_order: u64,
    /// When the last segment out of order was seen.
    disordered_at: Micros,
}

impl Arrivals {
    /// No arrivals yet.
    pub(crate) const fn new() -> Self {
        Self {
            total: Bytes::ZERO,
            payload: SOME_SEGMENT,
            behind: 0,
            segments: 0,
            in_order: Bytes::ZERO,
            out_of_order: 0,
            disordered_at: Micros::ZERO,
        }
    }

    /// All that has arrived by `now`, when `segments` (`tcpi_data_segs_in`) had been counted.
    pub(crate) fn see(&mut self, sample: &Sample, segments: u32, rtt: Micros, now: Micros) -> Bytes {
        let came = u64::from(segments.wrapping_sub(self.segments));
        let in_order = (sample.bytes_received - self.in_order).0;
        if sample.rcv_out_of_order != self.out_of_order {
            self.disordered_at = now;
        } else if now.since(self.disordered_at) > rtt.times(FILLED_WITHIN) {
            self.behind = 0;
        }
        let disordered = sample.rcv_out_of_order != self.out_of_order || self.behind > 0;
        let more = if disordered { self.by_segments(came, in_order) } else { in_order };
        self.total += Bytes(more);
        if !disordered && came > 0 {
            self.payload = (self.payload * (WEIGHT - 1) + in_order / came) / WEIGHT;
        }
        (self.segments, self.in_order, self.out_of_order) =
            (segments, sample.bytes_received, sample.rcv_out_of_order);
        self.total
    }

    /// Bytes that so many segments carried, of which (or of earlier ones) so many bytes are in order now.
    fn by_segments(&mut self, came: u64, in_order: u64) -> u64 {
        let bytes = came.saturating_mul(self.payload);
        self.behind = self.behind.saturating_add(bytes).saturating_sub(in_order);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Micros = Micros::from_millis(100);

    fn sample(in_order: u64, out_of_order: u64) -> Sample {
        Sample { bytes_received: Bytes(in_order), rcv_out_of_order: out_of_order, ..Sample::default() }
    }

    #[test]
    fn merged_segments_count_by_what_they_carried_before() {
        let mut arrivals = Arrivals::new();
        let mut now = Micros::ZERO;
        for look in 1..=60 {
            now += Micros(1_000);
            arrivals.see(&sample(u64::from(look) * 30_000, 0), look * 7, RTT, now);
        }
        // A hole: 70 counted segments come behind it.
        let behind = arrivals.see(&sample(1_800_000, 70), 60 * 7 + 70, RTT, now + Micros(1_000)).0;
        assert!((2_080_000..=2_110_000).contains(&behind), "{behind}");
        // It is filled by one more.
        let filled = arrivals.see(&sample(2_104_000, 70), 60 * 7 + 71, RTT, now + Micros(2_000)).0;
        assert!(filled - behind < 10_000, "{behind} {filled}");
    }

    proptest! {
        #[test]
        fn without_losses_it_is_the_bytes_in_order(steps in prop::collection::vec((0..1_000_000_u64, 0..900_u32), 1..50)) {
            let (mut arrivals, mut bytes, mut segments, mut now) = (Arrivals::new(), 0, 0_u32, Micros::ZERO);
            for (more, count) in steps {
                bytes += more;
                segments += count;
                now += Micros(2_000);
                prop_assert_eq!(arrivals.see(&sample(bytes, 0), segments, RTT, now), Bytes(bytes));
            }
        }

        #[test]
        fn it_never_falls_whatever_the_kernel_says(
            steps in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), 0..200_000_u64), 1..50)
        ) {
            let (mut arrivals, mut last, mut now) = (Arrivals::new(), Bytes::ZERO, Micros::ZERO);
            for (in_order, segments, disorder, step) in steps {
                now += Micros(step);
                let total = arrivals.see(&sample(in_order, disorder), segments, RTT, now);
                prop_assert!(total >= last);
                last = total;
            }
        }

        #[test]
        fn a_hole_that_is_filled_adds_what_came_meanwhile(behind in 1..2_000_u32, before in 50..500_u32) {
            let (mut arrivals, mut now) = (Arrivals::new(), Micros::ZERO);
            let mut in_order = 0;
            for look in 1..=before {
                in_order += 10 * 1_448;
                now += Micros(1_000);
                arrivals.see(&sample(in_order, 0), look * 10, RTT, now);
            }
            let segments = before * 10 + behind;
            let open = arrivals.see(&sample(in_order, u64::from(behind)), segments, RTT, now + Micros(1_000));
            prop_assert_eq!(open, Bytes(in_order + u64::from(behind) * 1_448));
            let filled = in_order + u64::from(behind + 1) * 1_448;
            let closed =
                arrivals.see(&sample(filled, u64::from(behind)), segments + 1, RTT, now + Micros(2_000));
            prop_assert_eq!(closed, Bytes(filled));
        }
    }
}
