//! Property tests of `fit` at the sender (`fit.h`), on the host: with any samples, and over a fluid model of a path.

#![expect(unsafe_code, reason = "calls C")]

use proptest::prelude::*;

use crate::abi::bw_fit;

const MSS: u64 = 1_448;
/// `BW_FIT_FOLLOW`, `BW_FIT_OPEN`.
const FOLLOW: u32 = 2;
const OPEN: u32 = 3;

/// `struct bw_fit_sample`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Sample {
    pub(crate) now: u64,
    pub(crate) mss: u64,
    pub(crate) srtt: u64,
    pub(crate) min_rtt: u64,
    pub(crate) cwnd: u64,
    pub(crate) delivered: u32,
    pub(crate) app_limited: u32,
    pub(crate) paces_itself: u32,
    pub(crate) paced: u32,
    pub(crate) retransmitted: u32,
    pub(crate) unused: u32,
}

unsafe extern "C" {
    fn bufwise_fit(state: *mut bw_fit, sample: *const Sample) -> u32;
}

pub(crate) fn observe(state: &mut bw_fit, sample: &Sample) -> u64 {
    // SAFETY: the structures are those of fit.h and outlive the call; C keeps no pointer.
    unsafe { bufwise_fit(state, sample) }.into()
}

/// Fluid model of a sender with endless data on a path without losses: bytes in flight beyond the BDP are in the queue.
struct Fluid {
    state: bw_fit,
    now: u64,
    /// Capacity, bytes per second of payload; shortest round trip, us.
    capacity: f64,
    rtt: f64,
    /// Bytes in the queue: the sender's own, and a constant amount of other flows.
    queue: f64,
    others: f64,
    /// Rate at which the kernel sends without a roof, bytes per second.
    kernel: f64,
    delivered: f64,
    app_limited: bool,
    /// Part of the time in which the sender's host stands still.
    still: f64,
}

impl Fluid {
    fn new(capacity: u64, rtt: u64) -> Self {
        Self {
            state: bw_fit::default(),
            now: 1_000_000,
            capacity: capacity as f64,
            rtt: rtt as f64,
            queue: 0.0,
            others: 0.0,
            kernel: 2.0 * capacity as f64,
            delivered: 0.0,
            app_limited: false,
            still: 0.0,
        }
    }

    /// Puts the sender into the phase Follow, with this roof.
    fn following(mut self, roof: u64) -> Self {
        let round_at = self.now;
        let capacity = self.capacity as u64;
        self.state = bw_fit {
            phase: FOLLOW,
            roof,
            capacity,
            step: 6,
            round_at,
            window_at: round_at,
            ..bw_fit::default()
        };
        self
    }

    fn roof(&self) -> f64 {
        self.state.roof as f64
    }

    /// Advances the model by one round trip.
    fn step(&mut self) {
        let rate = if self.state.roof == 0 {
            self.kernel
        } else {
            self.roof().min(self.kernel) * (1.0 - self.still)
        };
        let rtt = self.rtt + (self.queue + self.others) / self.capacity * 1e6;
        let seconds = rtt / 1e6;
        let left = (self.queue + (rate - self.capacity) * seconds).max(0.0);
        self.delivered += rate * seconds - (left - self.queue);
        // The queue holds at most five BDPs.
        self.queue = left.min(5.0 * self.capacity * self.rtt / 1e6);
        self.now += rtt as u64;
        let sample = Sample {
            now: self.now,
            mss: MSS,
            srtt: (self.rtt + (self.queue + self.others) / self.capacity * 1e6) as u64,
            min_rtt: self.rtt as u64,
            cwnd: (2.0 * self.capacity * rtt / 1e6) as u64 / MSS,
            delivered: ((self.delivered / MSS as f64) as u64) as u32,
            app_limited: self.app_limited.into(),
            ..Sample::default()
        };
        observe(&mut self.state, &sample);
    }

    fn run(&mut self, round_trips: u32) {
        for _ in 0..round_trips {
            self.step();
        }
    }

    /// Runs for `round_trips`; returns the delivered rate, bytes per second.
    fn rate(&mut self, round_trips: u32) -> f64 {
        let (before, began) = (self.delivered, self.now);
        self.run(round_trips);
        (self.delivered - before) / (self.now - began) as f64 * 1e6
    }
}

fn paths() -> impl Strategy<Value = (u64, u64)> {
    (prop_oneof![250_000_u64..12_500_000, 12_500_000_u64..312_500_000], 5_000_u64..250_000)
        .prop_filter("ten segments at least", |(capacity, rtt)| capacity * rtt / 1_000_000 > 10 * MSS)
}

proptest! {
    /// Counters that run backwards, clocks that jump and absurd sizes give no roof, or one that fits into 32 bits.
    #[test]
    fn no_sample_breaks_it(samples in prop::collection::vec(prop::array::uniform8(any::<u64>()), 1..60)) {
        let mut state = bw_fit::default();
        for f in samples {
            let delivered = f[5] as u32;
            let flags = (f[6] % 2) as u32;
            let sample = Sample {
                now: f[0], mss: f[1], srtt: f[2], min_rtt: f[3], cwnd: f[4], delivered, app_limited: flags,
                retransmitted: f[7] as u32, ..Sample::default()
            };
            let roof = observe(&mut state, &sample);
            prop_assert!(roof < u64::from(u32::MAX));
            prop_assert!(state.phase <= OPEN);
        }
    }

    /// Short paths and senders that pace themselves get no roof.
    #[test]
    fn what_it_does_not_suit_has_no_roof(steps in prop::collection::vec(1_u64..5_000, 1..100), paces: bool) {
        let (mut state, mut now, mut delivered) = (bw_fit::default(), 0, 0);
        for step in steps {
            now += step;
            delivered += 2;
            let min_rtt = if paces { 40_000 } else { 1_999 };
            let sample = Sample {
                now, mss: MSS, srtt: min_rtt, min_rtt, cwnd: 100, delivered, paces_itself: paces.into(),
                ..Sample::default()
            };
            prop_assert_eq!(observe(&mut state, &sample), 0);
        }
    }

    /// From any roof, the rate converges to within 4% of the capacity, with a queue of at most about a tenth of the
    /// round trip.
    #[test]
    fn it_finds_what_the_path_carries((capacity, rtt) in paths(), percent in 50_u64..180) {
        let mut path = Fluid::new(capacity, rtt).following(capacity * percent / 100);
        path.run(90);
        let rate = path.rate(60);
        prop_assert!(rate >= 0.96 * capacity as f64, "{} of {}", rate, capacity);
        let queue = path.queue / path.capacity * 1e6;
        // The rule does not count two segments as a queue.
        let most = 0.1 * rtt as f64 + 2_500.0 + 2.0 * MSS as f64 / path.capacity * 1e6;
        prop_assert!(queue <= most, "{} us of {}", queue, rtt);
        prop_assert_eq!(path.state.opened, 0, "its own queue drains");
    }

    /// After a paced start `C'` is lower, because clocks err: the roof rises by eighths to 15/16 of the train's rate, and no
    /// further in such steps. Seven steps, each of two round trips, lead there from less than a half; without such a train
    /// the roof takes longer.
    #[test]
    fn after_a_paced_start_the_roof_is_soon_what_the_train_told((capacity, rtt) in paths()) {
        let after = |evidence: u32| {
            let mut path = Fluid::new(capacity, rtt).following(capacity * 45 / 100);
            path.state.capacity = capacity * 48 / 100;
            (path.state.step, path.state.evidence) = (16, evidence);
            path.state.train_time = (u64::from(evidence) * MSS * 1_000_000 / capacity) as u32;
            path.run(16);
            path.roof() / capacity as f64
        };
        let (told, not_told) = (after(1_000), after(0));
        prop_assert!((0.8..1.02).contains(&told), "{told}");
        prop_assert!(not_told < told, "{not_told} beside {told}");
    }

    /// The roof follows a doubled capacity within 60 round trips (less one step down), and a halved one within 20.
    #[test]
    fn it_follows_the_path((capacity, rtt) in paths()) {
        let mut path = Fluid::new(capacity, rtt).following(capacity);
        path.run(60);
        path.capacity *= 2.0;
        path.kernel *= 2.0;
        path.run(60);
        prop_assert!(path.roof() >= 1.7 * capacity as f64, "{} of {}", path.roof(), 2 * capacity);
        path.capacity /= 2.0;
        path.run(20);
        prop_assert!(path.roof() <= 1.1 * capacity as f64, "{} of {capacity}", path.roof());
    }

    /// A paced TCP sends at once what its rate gives in a millisecond. Its segments wait for half of that, and hosts add two
    /// tenths of a millisecond: this delay is no queue, however short the path is.
    #[test]
    fn its_own_bursts_are_no_queue((capacity, rtt) in paths()) {
        let mut fluid = Fluid::new(capacity, rtt).following(capacity * 9 / 10);
        let mut delivered_after = |rounds| {
            for _ in 0..rounds {
                fluid.others = fluid.roof() / 2048.0 + fluid.capacity * 200e-6;
                fluid.step();
            }
            (fluid.delivered, fluid.now)
        };
        let [(before, began), (after, ended)] = [delivered_after(40), delivered_after(80)];
        let rate = (after - before) / ((ended - began) as f64 / 1e6);
        prop_assert!(rate > 0.97 * capacity as f64, "{rate} of {capacity}");
    }

    /// A host that stops for a tenth of the time, some tenths of a millisecond each time, has to send faster in between.
    #[test]
    fn a_hosts_pauses_cost_little((capacity, rtt) in paths(), thousandths in 100..110) {
        let mut path = Fluid::new(capacity, rtt).following(capacity);
        path.still = f64::from(thousandths) / 1_000.0;
        path.run(60);
        let rate = path.rate(60);
        prop_assert!(rate >= 0.925 * capacity as f64, "{rate} of {capacity}");
    }

    /// A queue that does not drain belongs to other flows: the roof is lifted within 16 round trips.
    #[test]
    fn beside_a_queue_of_others_it_opens((capacity, rtt) in paths()) {
        let mut path = Fluid::new(capacity, rtt).following(capacity * 15 / 16);
        path.others = 0.5 * capacity as f64 * rtt as f64 / 1e6;
        path.run(16);
        prop_assert!(path.state.opened >= 1);
    }

    /// A short delay that no descent shortens is jitter. Rates measured before that, below a roof of a third of the
    /// capacity, are dropped: within 32 round trips the roof is at least four fifths of the capacity.
    #[test]
    fn behind_jitter_the_search_begins_anew((capacity, rtt) in paths()) {
        let mut path = Fluid::new(capacity, rtt).following(capacity / 3);
        path.state.capacity = capacity / 3;
        // Three halves of the shortest queue that counts, and the time of two segments at C' (a third of the capacity).
        let jitter_us = 1.5 * (rtt as f64 / 64.0 + 500.0) + 6.0 * MSS as f64 / capacity as f64 * 1e6;
        path.others = capacity as f64 * jitter_us / 1e6;
        path.run(32);
        prop_assert!(path.roof() >= 0.8 * capacity as f64, "{} of {capacity}", path.roof());
        prop_assert_eq!(path.state.opened, 0);
    }

    /// On a path with random losses, before the path was ever seen full.
    #[test]
    fn a_loss_in_the_first_round_of_following_takes_little_from_the_roof((capacity, rtt) in paths()) {
        let roof = capacity / 2;
        let mut state = bw_fit { phase: 2, roof, capacity, step: 16, round_at: 1_000_000, ..bw_fit::default() };
        let delivered = (roof * 3 * rtt / 1_000_000 / MSS) as u32;
        let sample = Sample {
            now: 1_000_000 + 3 * rtt,
            mss: MSS,
            srtt: rtt,
            min_rtt: rtt,
            cwnd: 1_000,
            delivered,
            retransmitted: 1,
            ..Sample::default()
        };
        let after = observe(&mut state, &sample);
        prop_assert!(after * 10 >= roof * 9, "{roof} to {after}: {state:?}");
    }

    /// An application that limits the sender does not move the roof.
    #[test]
    fn an_application_that_pauses_moves_nothing((capacity, rtt) in paths()) {
        let mut path = Fluid::new(capacity, rtt).following(capacity);
        path.app_limited = true;
        path.kernel = capacity as f64 / 10.0;
        path.run(40);
        prop_assert_eq!(path.state.roof, capacity);
    }
}
