//! DRS in a program that sees `TCP_INFO`: between the published user-space version and the kernel's.
//!
//! Problem: what `TCP_INFO` counts as received is received *in order*. When a hole is filled, a whole window counts at
//! once, the largest measurement doubles, and with it the window, for ever: on 100 Mbit/s x 100 ms that cost 844
//! drops and a fifth of the goodput. And once slow start is over, twice what arrives in a round trip is a queue.
//! Source: 003 and 001, section 3 ([`bufwise_policy::drs`]); what follows is ours.
//! - Arrivals are counted in segments, in order or not.
//! - While the largest measurement has not grown by an eighth in three round trips, the sender is not in slow start: then
//!   the window is one and a half times that measurement, which is more than congestion avoidance adds in a
//!   round trip.
//! - Four measurements run at once, each a quarter of a round trip after the one before: a sender doubles all the time, not
//!   once in a round trip.
//! - The first window is twice what today's senders begin with (RFC 6928: ten segments), as DRS has it of any flight.
//! - Round trips shorter than the time between two looks count as that: what arrives meanwhile needs room.
//!
//! Properties kept: the window never falls below one and a half times the largest measurement (within the policy's own
//! bounds); growth makes room for doubling again at once.

use bufwise_policy::{Bytes, Decision, Drs, Micros, Policy, Sample, drs};
use bufwise_socket::info::TcpInfo;

/// Growth of the measurement that counts as slow start's.
const GROWTH: (u64, u64) = (9, 8);
/// Round trips without it after which slow start is over.
const STEADY_AFTER: u64 = 3;
/// Window over measurement from then on.
const STEADY: (u64, u64) = (3, 2);
/// Measurements in a round trip.
const PHASES: u64 = 4;
/// First window: twice ten segments of 1,448 bytes.
const INITIAL: Bytes = Bytes(20 * 1_448);
/// Largest payload of a jumbo frame. Larger segments (loopback's) are often not full, and never lost.
const LARGEST_SEGMENT: Bytes = Bytes(9_000);

/// DRS for one connection, at its receiver.
#[derive(Debug)]
pub(super) struct InfoDrs {
    /// The same rule, begun one after the other.
    phases: [Drs; PHASES as usize],
    began: Option<Micros>,
    /// Least round-trip time.
    look: Micros,
    /// The measurement that last grew, and when it did.
    grown: (Bytes, Micros),
}

impl InfoDrs {
    /// For a connection with this window scale, looked at this often.
    pub(super) fn new(window_scale: u8, max: Bytes, look: Micros) -> Self {
        let config = drs::Config { window_scale, max, initial: INITIAL, ..drs::Config::default() };
        let phases = std::array::from_fn(|_| Drs::new(config));
        Self { phases, began: None, look, grown: (Bytes::ZERO, Micros::ZERO) }
    }

    /// `sample` as DRS should see it.
    pub(super) fn sample(&self, sample: Sample, info: &TcpInfo) -> Sample {
        let segments = Bytes(u64::from(info.data_segs_in)).times(sample.mss.0);
        let countable = sample.mss > Bytes::ZERO && sample.mss <= LARGEST_SEGMENT;
        let at_least = |rtt: Micros| if rtt > Micros::ZERO { rtt.max(self.look) } else { rtt };
        Sample {
            bytes_received: if countable { segments } else { sample.bytes_received },
            srtt: at_least(sample.srtt),
            rcv_rtt: at_least(sample.rcv_rtt),
            ..sample
        }
    }
}

impl Policy for InfoDrs {
    fn observe(&mut self, sample: &Sample, now: Micros) -> Decision {
        let began = *self.began.get_or_insert(now);
        let known = |drs: &Drs| [sample.srtt, drs.own_rtt()].into_iter().find(|rtt| *rtt > Micros::ZERO);
        let mss = sample.mss_or_default();
        let (mut window, mut largest, mut quantum) = (Bytes::ZERO, Bytes::ZERO, Bytes::ZERO);
        for (phase, drs) in (0..).zip(&mut self.phases) {
            let begins = known(drs).unwrap_or_default().scaled(phase, PHASES);
            if now.since(began) >= begins {
                drs.observe(sample, now);
            }
            window = window.max(drs.window(mss));
            largest = largest.max(drs.largest_measurement());
            quantum = drs.quantum();
        }
        if largest >= self.grown.0.scaled(GROWTH.0, GROWTH.1).max(Bytes(1)) {
            self.grown = (largest, now);
        }
        let rtt = known(&self.phases[0]);
        let steady = rtt.is_some_and(|rtt| now.since(self.grown.1) > rtt.times(STEADY_AFTER));
        if steady && largest > Bytes::ZERO {
            window = window.min((largest.scaled(STEADY.0, STEADY.1) + quantum).max(INITIAL));
        }
        Decision { receive_window: Some(window), ..Decision::NONE }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RTT: Micros = Micros::from_millis(100);
    const LOOK: Micros = Micros::from_millis(2);
    const MSS: u64 = 1_448;

    /// A round trip in which so many segments arrived in all, of which the first `in_order` in order.
    fn seen(drs: &InfoDrs, segments: u32, in_order: u64) -> Sample {
        let info = TcpInfo { data_segs_in: segments, ..TcpInfo::default() };
        let bytes_received = Bytes(in_order * MSS);
        let sample = Sample { mss: Bytes(MSS), srtt: RTT, bytes_received, ..Sample::default() };
        drs.sample(sample, &info)
    }

    fn window(drs: &mut InfoDrs, round: u64, segments: u32, in_order: u64) -> u64 {
        let sample = seen(drs, segments, in_order);
        drs.observe(&sample, RTT.times(round)).receive_window.unwrap().0
    }

    #[test]
    fn twice_what_arrives_while_it_grows_and_half_more_when_it_no_longer_does() {
        let mut drs = InfoDrs::new(7, Bytes::MAX, LOOK);
        let mut arrived = 0;
        for (round, segments) in [0, 100, 200, 400, 400, 400, 400].into_iter().enumerate() {
            arrived += segments;
            let now = window(&mut drs, round as u64, arrived, u64::from(arrived));
            assert!(round == 0 || now >= 2 * u64::from(segments) * MSS, "round {round}: {now}");
        }
        let steady = window(&mut drs, 7, arrived + 400, u64::from(arrived) + 400);
        assert!((600 * MSS..610 * MSS).contains(&steady), "{steady}");
        let again = window(&mut drs, 8, arrived + 400 + 460, u64::from(arrived) + 860);
        assert!(again >= 920 * MSS, "growth has room at once: {again}");
    }

    #[test]
    fn a_hole_that_is_filled_is_no_burst() {
        let mut drs = InfoDrs::new(7, Bytes::MAX, LOOK);
        window(&mut drs, 0, 0, 0);
        let before = window(&mut drs, 1, 400, 400);
        window(&mut drs, 2, 800, 400);
        let after = window(&mut drs, 3, 1_200, 1_200);
        assert_eq!(before, after, "800 segments became readable at once");
    }

    #[test]
    fn short_round_trips_count_as_long_as_a_look() {
        let drs = InfoDrs::new(7, Bytes::MAX, LOOK);
        let sample = Sample { srtt: Micros(30), mss: Bytes(65_483), ..Sample::default() };
        let shown = drs.sample(Sample { bytes_received: Bytes(5), ..sample }, &TcpInfo::default());
        assert_eq!((shown.srtt, shown.rcv_rtt, shown.bytes_received), (LOOK, Micros::ZERO, Bytes(5)));
    }
}
