//! DRS in a program that reads `TCP_INFO`: between the published user-space version and the kernel's.
//!
//! Problem: published DRS reacts up to a round trip late, which slows slow start. After slow start its window, twice what
//! arrives in a round trip, builds a queue.
//! Source: Fisk 2000 (DRS) and Feng 2002 (drsFTP), section 3 ([`bufwise_policy::drs`]); what follows is ours.
//! - Data count when they arrive, in order or not ([`Arrivals`]).
//! - If the largest measurement has not grown by an eighth in three round trips, the sender is not in slow start: then
//!   the window is one and a half times that measurement, which is more than congestion avoidance adds in a round trip.
//! - Several measurements run at once, each begun a little after the one before, because a sender doubles continuously
//!   and not once per round trip.
//! - In slow start a flight comes as one burst, and its last acknowledgement leaves before the next sample: twice what
//!   arrived is then a round trip late. So the window is up to four times the measurement, within what the path could
//!   carry: at most twice what would arrive in a round trip at the highest rate between two samples.
//! - The first window is the kernel's own (64 KB).
//! - Round trips shorter than the time between two samples count as that time: data that arrive meanwhile need room.
//!
//! Properties kept: the window never falls below one and a half times the largest measurement (within the policy's own
//! bounds); when the measurement grows again, the window has room for doubling at once; in slow start the window does
//! not limit the sender.

use bufwise_policy::{Arrivals, Drs, Policy, drs};
use bufwise_units::{Bytes, Decision, Micros, Rate, Sample};

/// Growth of the measurement that counts as slow start's.
const GROWTH: (u64, u64) = (9, 8);
/// Round trips without that growth after which slow start is over.
const STEADY_AFTER: u64 = 3;
/// Window over measurement after slow start.
const STEADY: (u64, u64) = (3, 2);
/// Measurements in a round trip.
const PHASES: u64 = 32;
/// First window: what the kernel offers (`tcp_select_initial_window()`), in segments of 1,448 bytes.
const INITIAL: Bytes = Bytes(45 * 1_448);
/// Largest window over measurement in slow start: room for the flight under way and the next one.
const AHEAD: u64 = 4;
/// Largest window in slow start, over what arrives in a round trip at the highest rate: the path and a queue as large.
const CARRIED: u64 = 2;

/// DRS for one connection, at its receiver.
#[derive(Debug)]
pub(crate) struct InfoDrs {
    /// Instances of the same rule, begun one after the other.
    phases: [Drs; PHASES as usize],
    began: Option<Micros>,
    /// Time between two samples: no round trip counts as shorter.
    interval: Micros,
    /// The measurement that last grew, and when it did.
    grown: (Bytes, Micros),
    /// The last sample's time, and the bytes that had arrived by then.
    sampled: Option<(Micros, Bytes)>,
    arrivals: Arrivals,
    /// Highest rate between two samples.
    peak: Rate,
}

impl InfoDrs {
    /// Returns the state of a new connection with this window scale, sampled at this interval.
    pub(crate) fn new(window_scale: u8, max: Bytes, interval: Micros) -> Self {
        let config = drs::Config { window_scale, max, initial: INITIAL, ..drs::Config::default() };
        let phases = std::array::from_fn(|_| Drs::new(config));
        let grown = (Bytes::ZERO, Micros::ZERO);
        let arrivals = Arrivals::default();
        Self { phases, began: None, interval, arrivals, grown, sampled: None, peak: Rate::ZERO }
    }

    /// Adapts `sample`, taken at `now`, for DRS: all arrived bytes count, and no round trip is shorter than the time
    /// between two samples.
    pub(crate) fn sample(&mut self, sample: Sample, now: Micros) -> Sample {
        let at_least = |rtt: Micros| if rtt > Micros::ZERO { rtt.max(self.interval) } else { rtt };
        let (srtt, rcv_rtt) = (at_least(sample.srtt), at_least(sample.rcv_rtt));
        let bytes_received = self.arrivals.observe(&sample, srtt.max(rcv_rtt), now);
        Sample { bytes_received, srtt, rcv_rtt, ..sample }
    }

    /// Follows the rate between samples.
    fn follow_peak(&mut self, received: Bytes, now: Micros) {
        let (at, before) = *self.sampled.get_or_insert((now, received));
        // Over a shorter time, a few segments that waited together would look like a high rate.
        if now.since(at) >= self.interval {
            self.peak = self.peak.max((received - before).per(now.since(at)));
            self.sampled = Some((now, received));
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
        self.follow_peak(sample.bytes_received, now);
        if largest >= self.grown.0.scaled(GROWTH.0, GROWTH.1).max(Bytes(1)) {
            self.grown = (largest, now);
        }
        let rtt = known(&self.phases[0]);
        let steady = rtt.is_some_and(|rtt| now.since(self.grown.1) > rtt.times(STEADY_AFTER));
        if steady && largest > Bytes::ZERO {
            window = window.min((largest.scaled(STEADY.0, STEADY.1) + quantum).max(INITIAL));
        } else if let Some(rtt) = rtt {
            let carried = self.peak.over(rtt).times(CARRIED);
            window = window.max(self.phases[0].offer(largest.times(AHEAD).min(carried), mss));
        }
        Decision { receive_window: Some(window), ..Decision::NONE }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;

    use super::*;

    const RTT: Micros = Micros::from_millis(100);
    const INTERVAL: Micros = Micros::from_millis(2);
    const MSS: u64 = 1_448;

    /// The sample at `at`, when so many segments arrived in all, of which the first `in_order` in order.
    fn window_at(drs: &mut InfoDrs, at: Micros, segments: u32, in_order: u64) -> u64 {
        let sample = Sample {
            mss: Bytes(MSS),
            srtt: RTT,
            segs_in: segments.into(),
            bytes_received: Bytes(in_order * MSS),
            rcv_out_of_order: u64::from(segments) - in_order,
            ..Sample::default()
        };
        let sample = drs.sample(sample, at);
        drs.observe(&sample, at).receive_window.unwrap().0
    }

    fn window(drs: &mut InfoDrs, round: u64, segments: u32, in_order: u64) -> u64 {
        window_at(drs, RTT.times(round), segments, in_order)
    }

    #[test]
    fn twice_what_arrives_while_it_grows_and_half_more_when_it_no_longer_does() {
        let mut drs = InfoDrs::new(7, Bytes::MAX, INTERVAL);
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
        let mut drs = InfoDrs::new(7, Bytes::MAX, INTERVAL);
        window(&mut drs, 0, 0, 0);
        let before = window(&mut drs, 1, 400, 400);
        window(&mut drs, 2, 800, 400);
        let filled = Sample {
            segs_in: 1_200,
            mss: Bytes(MSS),
            srtt: RTT,
            bytes_received: Bytes(1_200 * MSS),
            rcv_out_of_order: 400,
            ..Sample::default()
        };
        let filled = drs.sample(filled, RTT.times(3));
        let after = drs.observe(&filled, RTT.times(3)).receive_window.unwrap().0;
        assert_eq!(before, after, "800 segments became readable at once");
    }

    #[test]
    fn short_round_trips_count_as_long_as_the_time_between_samples() {
        let mut drs = InfoDrs::new(7, Bytes::MAX, INTERVAL);
        let sample = Sample { srtt: Micros(30), mss: Bytes(65_483), ..Sample::default() };
        let shown = drs.sample(Sample { bytes_received: Bytes(5), ..sample }, Micros::ZERO);
        assert_eq!((shown.srtt, shown.rcv_rtt, shown.bytes_received), (INTERVAL, Micros::ZERO, Bytes(5)));
    }

    /// How long a sender in slow start takes for so many segments over a link of so many segments per millisecond, with
    /// at most `most` under way. Without `drs` there is no other limit.
    fn slow_start(mut drs: Option<InfoDrs>, segments: u64, per_milli: u64, most: u64) -> u64 {
        let half = RTT.0 / 2_000;
        let (mut cwnd, mut window, mut sent, mut acked, mut arrived) = (10, u64::MAX, 0, 0, 0);
        // Segments on their way to the link, and acknowledgements on theirs back: when, how many, with which window.
        let (mut data, mut acks) = (VecDeque::new(), VecDeque::new());
        let (mut queue, mut advertised) = (0, INITIAL.0 / MSS);
        for milli in 0.. {
            while let Some((_, count, offered)) =
                acks.pop_front_if(|(at, ..): &mut (u64, u64, u64)| *at <= milli)
            {
                acked += count;
                cwnd = most.min(cwnd + count);
                window = offered;
            }
            let room = cwnd.min(window).saturating_sub(sent - acked).min(segments - sent);
            if room > 0 {
                sent += room;
                data.push_back((milli + half, room));
            }
            while let Some((_, count)) = data.pop_front_if(|(at, _): &mut (u64, u64)| *at <= milli) {
                queue += count;
            }
            let passed = queue.min(per_milli);
            (queue, arrived) = (queue - passed, arrived + passed);
            if arrived == segments {
                return milli;
            }
            if passed > 0 {
                acks.push_back((milli + half, passed, advertised));
            }
            if let Some(drs) = &mut drs
                && milli % 2 == 0
            {
                let at = Micros::from_millis(milli);
                advertised = window_at(drs, at, u32::try_from(arrived).unwrap(), arrived) / MSS;
            } else if drs.is_none() {
                advertised = u64::MAX;
            }
        }
        unreachable!()
    }

    #[test]
    fn a_sender_in_slow_start_is_not_limited() {
        for (per_milli, segments) in [(1, 1_000), (8, 7_000), (80, 50_000)] {
            let most = per_milli * 150;
            let free = slow_start(None, segments, per_milli, most);
            let drs = InfoDrs::new(9, Bytes::MAX, INTERVAL);
            let limited = slow_start(Some(drs), segments, per_milli, most);
            assert!(limited <= free + free / 100, "{limited} ms instead of {free} at {per_milli} per ms");
        }
    }
}
