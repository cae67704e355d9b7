//! Counts the bytes that have arrived at a receiver, in order or not.
//!
//! Problem: a socket counts as received only the bytes *in order*. Behind a hole the count stands still, and when the
//! hole is filled a whole window is counted at once: a measurement over one round trip would see two. The kernel counts
//! segments when they arrive (`tcpi_data_segs_in`), but not their payload, and devices merge several segments, some
//! into a single count.
//! Source: ours; `tcp_data_queue()` and `tcp_segs_in()` of the kernel.
//! Rule: while segments come in order, the bytes in order are the total, and give the mean payload of a counted
//! segment. From the first segment out of order on, each counted segment adds that mean, until the bytes in order have
//! caught up. Duplicate segments never catch up: their bytes are forgotten when no segment has come out of order for
//! some round trips and no more bytes became in order than arrived.
//! Properties kept: the total never falls; without losses it equals the bytes in order; a hole that is filled adds no
//! more than what arrived meanwhile. The engine's rule (`bpf/arrivals.h`) is equal to this one step by step.

use bufwise_units::{Bytes, Micros, Sample};

/// Payload of a counted segment before any was measured, in bytes.
const SOME_SEGMENT: u64 = 1_448;
/// Weight of the last sample in the mean payload of a counted segment: 1/8.
const WEIGHT: u64 = 8;
/// Bytes behind a hole are forgotten no sooner than this many round trips after the last segment out of order.
const FILLED_WITHIN: u64 = 4;
/// Largest payload of a counted segment, in bytes: devices merge up to 512 KB.
const LARGEST: u64 = 1 << 20;
/// Most bytes in order that one sample adds, and longest round trip in a product: the C code multiplies in 64 bits.
const MOST: u64 = 1 << 36;
const LONGEST: Micros = Micros(1 << 27);

/// Counts the bytes that have arrived at one receiver.
///
/// ```
/// use bufwise_policy::Arrivals;
/// use bufwise_units::{Bytes, Micros, Sample};
///
/// let mut arrivals = Arrivals::default();
/// let rtt = Micros::from_millis(100);
/// let mut total = |bytes, segs_in, rcv_out_of_order, now| {
///     let sample = Sample { bytes_received: Bytes(bytes), segs_in, rcv_out_of_order, ..Sample::default() };
///     arrivals.observe(&sample, rtt, Micros::from_millis(now)).0
/// };
/// assert_eq!(total(14_480, 10, 0, 10), 14_480);
/// // Ten segments behind a hole: nothing is in order, but they have come.
/// assert_eq!(total(14_480, 20, 10, 20), 28_960);
/// // The eleventh fills the hole: it alone is new.
/// assert_eq!(total(30_408, 21, 10, 30), 30_408);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Arrivals {
    total: u64,
    /// Mean payload of a counted segment, in bytes.
    payload: u64,
    /// Estimated bytes behind a hole, which are not in order yet.
    behind: u64,
    /// The last sample: counted segments and segments out of order (modulo 2^32), and bytes in order.
    segments: u32,
    out_of_order: u32,
    in_order: u64,
    /// When the last segment out of order was seen.
    disordered_at: Micros,
}

impl Default for Arrivals {
    fn default() -> Self {
        let (total, behind, segments, out_of_order, in_order) = (0, 0, 0, 0, 0);
        let (payload, disordered_at) = (SOME_SEGMENT, Micros::ZERO);
        Self { total, payload, behind, segments, out_of_order, in_order, disordered_at }
    }
}

impl Arrivals {
    /// Returns all bytes that have arrived by `now`. `rtt` is the path's round-trip time; 0: not known.
    ///
    /// Reads `bytes_received`, `segs_in`, `rcv_out_of_order`.
    pub fn observe(&mut self, sample: &Sample, rtt: Micros, now: Micros) -> Bytes {
        // The kernel's counters have 32 bits.
        let (segments, out_of_order) = (sample.segs_in as u32, sample.rcv_out_of_order as u32);
        let newly = sample.bytes_received.0.saturating_sub(self.in_order).min(MOST);
        let came = u64::from(segments.wrapping_sub(self.segments));
        // Payload of the new segments if each carries the mean.
        let bytes = came * self.payload;
        let disordered = out_of_order != self.out_of_order;
        if disordered {
            self.disordered_at = now;
        } else if came > 0
            && now.since(self.disordered_at) > rtt.min(LONGEST).times(FILLED_WITHIN)
            && newly <= bytes + bytes / 4
        {
            self.behind = 0;
        }
        if disordered || self.behind > 0 {
            self.total += bytes;
            self.behind = (self.behind + bytes).saturating_sub(newly);
        } else {
            self.total += newly;
            if let Some(carried) = newly.checked_div(came) {
                self.payload = ((self.payload * (WEIGHT - 1) + carried) / WEIGHT).clamp(1, LARGEST);
            }
        }
        (self.segments, self.out_of_order, self.in_order) = (segments, out_of_order, sample.bytes_received.0);
        Bytes(self.total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const RTT: Micros = Micros::from_millis(100);

    fn sample(in_order: u64, out_of_order: u64, segments: u32) -> Sample {
        let (bytes_received, segs_in) = (Bytes(in_order), segments.into());
        Sample { bytes_received, segs_in, rcv_out_of_order: out_of_order, ..Sample::default() }
    }

    #[test]
    fn merged_segments_count_by_what_they_carried_before() {
        let mut arrivals = Arrivals::default();
        let mut now = Micros::ZERO;
        for number in 1..=60 {
            now += Micros(1_000);
            arrivals.observe(&sample(u64::from(number) * 30_000, 0, number * 7), RTT, now);
        }
        // A hole: 70 counted segments come behind it.
        let behind = arrivals.observe(&sample(1_800_000, 70, 60 * 7 + 70), RTT, now + Micros(1_000)).0;
        assert!((2_080_000..=2_110_000).contains(&behind), "{behind}");
        // One more segment fills the hole.
        let filled = arrivals.observe(&sample(2_104_000, 70, 60 * 7 + 71), RTT, now + Micros(2_000)).0;
        assert!(filled - behind < 10_000, "{behind} {filled}");
    }

    proptest! {
        #[test]
        fn without_losses_it_is_the_bytes_in_order(steps in prop::collection::vec((0..1_000_000_u64, 0..900_u32), 1..50)) {
            let (mut arrivals, mut bytes, mut segments, mut now) = (Arrivals::default(), 0, 0_u32, Micros::ZERO);
            for (more, count) in steps {
                bytes += more;
                segments += count;
                now += Micros(2_000);
                prop_assert_eq!(arrivals.observe(&sample(bytes, 0, segments), RTT, now), Bytes(bytes));
            }
        }

        #[test]
        fn it_never_falls_whatever_the_kernel_says(
            steps in prop::collection::vec((any::<u64>(), any::<u32>(), any::<u64>(), 0..200_000_u64), 1..50)
        ) {
            let (mut arrivals, mut last, mut now) = (Arrivals::default(), Bytes::ZERO, Micros::ZERO);
            for (in_order, segments, disorder, step) in steps {
                now += Micros(step);
                let total = arrivals.observe(&sample(in_order, disorder, segments), RTT, now);
                prop_assert!(total >= last);
                last = total;
            }
        }

        #[test]
        fn a_hole_that_is_filled_adds_what_came_meanwhile(behind in 1..2_000_u32, before in 50..500_u32) {
            let (mut arrivals, mut now) = (Arrivals::default(), Micros::ZERO);
            let mut in_order = 0;
            for number in 1..=before {
                in_order += 10 * 1_448;
                now += Micros(1_000);
                arrivals.observe(&sample(in_order, 0, number * 10), RTT, now);
            }
            let segments = before * 10 + behind;
            let open = arrivals.observe(&sample(in_order, u64::from(behind), segments), RTT, now + Micros(1_000));
            prop_assert_eq!(open, Bytes(in_order + u64::from(behind) * 1_448));
            let filled = in_order + u64::from(behind + 1) * 1_448;
            let closed =
                arrivals.observe(&sample(filled, u64::from(behind), segments + 1), RTT, now + Micros(2_000));
            prop_assert_eq!(closed, Bytes(filled));
        }
    }
}
