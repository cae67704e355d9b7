//! The advantage of SABT: its demand stays steady while cwnd, and ABT with it, oscillates (Matsuo, section 2.2.1).

use bufwise_policy::sabt::{Config, LossCount, SMALL_DOCUMENT, Sabt};
use bufwise_policy::share::{AbtRounds, proportional};
use bufwise_policy::{Abt, Policy, abt};
use bufwise_units::{Bytes, CongestionControl, Decision, Micros, Sample};
use proptest::prelude::*;

const MSS: u64 = 1_448;
const RTT: Micros = Micros::from_millis(50);

/// A connection in congestion avoidance that loses one segment whenever cwnd reaches `peak`.
struct Sawtooth {
    sample: Sample,
    cwnd: u64,
    peak: u64,
    now: Micros,
}

impl Sawtooth {
    fn new(peak: u64) -> Self {
        let sample = Sample { mss: Bytes(MSS), srtt: RTT, rto: RTT.times(5), ..Sample::default() };
        Self { sample, cwnd: peak / 2, peak, now: Micros::ZERO }
    }

    /// Advances by one round trip; returns the sample and its time.
    fn step(&mut self) -> (&Sample, Micros) {
        self.now += RTT;
        self.sample.segs_out += self.cwnd;
        self.cwnd += 1;
        if self.cwnd > self.peak {
            self.cwnd = self.peak / 2;
            self.sample.segs_lost += 1;
        }
        self.sample.cwnd = Bytes(self.cwnd * MSS);
        (&self.sample, self.now)
    }
}

/// Returns the standard deviation divided by the mean.
fn variation(values: &[f64]) -> f64 {
    let mean = values.iter().sum::<f64>() / values.len() as f64;
    let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
    variance.sqrt() / mean
}

/// Adds a time-out in one of `every` rounds, so that cwnd oscillates by more than ABT's band.
fn with_timeouts(saw: &mut Sawtooth, round: u64, every: u64) {
    if round % every == every - 1 {
        saw.cwnd = saw.peak / 12;
    }
}

#[test]
fn with_an_oscillating_cwnd_sabt_holds_still_and_abt_does_not() {
    let mut saw = Sawtooth::new(60);
    let (mut abt, mut sabt) = (Abt::new(abt::Config::default()), Sabt::new(Config::default()));
    let (mut cwnds, mut abts, mut sabts) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..8_000 {
        with_timeouts(&mut saw, round, 500);
        let (sample, now) = saw.step();
        abt.observe(sample, now);
        sabt.observe(sample, now);
        if now >= Micros::from_secs(100) {
            cwnds.push(sample.cwnd.0 as f64);
            abts.push(abt.demand().unwrap().0 as f64);
            sabts.push(sabt.demand().unwrap().0 as f64);
        }
    }
    let [cwnd, abt, sabt] = [&cwnds, &abts, &sabts].map(|values| variation(values));
    // cwnd oscillates between a half and one (14%), and the time-outs add to that. SABT counts one loss more or less in
    // its window, of two hundred: the root of p changes by a quarter of a percent, the sum with the time-outs' term by
    // little more.
    assert!(cwnd > 0.2, "cwnd oscillates: {cwnd:.3}");
    assert!(abt > 0.15, "ABT goes along: {abt:.3}");
    assert!(sabt < 0.015 && sabt < abt / 10.0, "SABT does not: {sabt:.3} against {abt:.3}");
}

#[test]
fn shares_hold_still_under_sabt_and_swing_under_abt() {
    // Matsuo, figure 2: one connection needs much; the demands of the others oscillate between enough and too much.
    let mut saws: Vec<Sawtooth> = [400, 24, 20, 16].into_iter().map(Sawtooth::new).collect();
    let mut abts: Vec<Abt> = saws.iter().map(|_| Abt::new(abt::Config::default())).collect();
    let mut sabts: Vec<Sabt> = saws.iter().map(|_| Sabt::new(Config::default())).collect();
    let budget = Bytes(300 * MSS);
    let mut rounds = AbtRounds::new(budget);
    let (mut large_abt, mut large_sabt) = (Vec::new(), Vec::new());
    for round in 0..8_000 {
        for ((saw, abt), sabt) in saws.iter_mut().zip(&mut abts).zip(&mut sabts) {
            with_timeouts(saw, round, saw.peak * 6);
            let (sample, now) = saw.step();
            abt.observe(sample, now);
            sabt.observe(sample, now);
        }
        if round % 20 == 0 && round >= 2_000 {
            let abt: Vec<Bytes> = abts.iter().filter_map(Policy::demand).collect();
            large_abt.push(rounds.round(abt.iter().copied()).of(abt[0]).0 as f64);
            let sabt: Vec<Bytes> = sabts.iter().filter_map(Policy::demand).collect();
            large_sabt.push(proportional(&sabt, budget).of(sabt[0]).0 as f64);
        }
    }
    let (abt, sabt) = (variation(&large_abt), variation(&large_sabt));
    assert!(sabt < abt / 2.0, "{sabt:.3} against {abt:.3}");
}

#[test]
fn the_demand_is_the_throughput_equation_times_the_round_trip() {
    let published = Config { min: Bytes(1), ..Config::published() };
    let now = Config { min: Bytes(1), ..Config::default() };
    let cubic = CongestionControl::Cubic;
    for (config, congestion_control, demand) in [
        // p = 0.01, RTT 100 ms, RTO 400 ms, b = 2: 79.43 packets/s, 7.943 packets.
        (published, CongestionControl::Reno, 7_943),
        (published, cubic, 7_943),
        // b = 1: 112.33 packets/s.
        (now, CongestionControl::Reno, 11_233),
        (now, cubic, 11_233),
    ] {
        let mut sabt = Sabt::new(config);
        let at = |sent: u64| lossy(sent, 100, congestion_control);
        sabt.observe(&at(0), Micros::ZERO);
        let decision = sabt.observe(&at(10_000), Micros::from_secs(10));
        assert_eq!(decision.send_buffer, Some(Bytes(demand)), "{config:?}");
        assert!((sabt.loss_rate() - 0.01).abs() < 1e-12);
    }
}

/// A connection over 100 ms that has sent `sent` segments and lost one in `every`, each in a round trip of its own.
fn lossy(sent: u64, every: u64, congestion_control: CongestionControl) -> Sample {
    Sample {
        mss: Bytes(1_000),
        cwnd: Bytes(50_000),
        srtt: Micros::from_millis(100),
        rto: Micros::from_millis(400),
        segs_out: sent,
        segs_lost: sent / every,
        loss_events: Some(sent / every),
        congestion_control,
        ..Sample::default()
    }
}

#[test]
fn each_congestion_control_has_its_own_response() {
    // p = 10^-5: Reno sqrt(1.5 / p) = 387 segments, CUBIC 1.0538 * (0.1 / p)^0.75 = 1,054, minus 0.01 and 0.02% for
    // time-outs.
    for (congestion_control, demand) in [
        (CongestionControl::Reno, 386_000..388_000),
        (CongestionControl::Cubic, 1_050_000..1_054_000),
        // Without a model, the demand is twice the congestion window.
        (CongestionControl::Other, 100_000..100_001),
    ] {
        let mut sabt = Sabt::new(Config::default());
        sabt.observe(&lossy(0, 100_000, congestion_control), Micros::ZERO);
        sabt.observe(&lossy(1_000_000, 100_000, congestion_control), Micros::from_secs(10));
        let asked = sabt.demand().unwrap().0;
        assert!(demand.contains(&asked), "{congestion_control:?}: {asked}");
        assert_eq!(sabt.is_modelled(), congestion_control != CongestionControl::Other);
    }
}

#[test]
fn however_much_is_lost_the_demand_is_an_initial_window() {
    for config in [Config::default(), Config::published()] {
        let mut sabt = Sabt::new(config);
        sabt.observe(&lossy(0, 2, CongestionControl::Reno), Micros::ZERO);
        sabt.observe(&lossy(10_000, 2, CongestionControl::Reno), Micros::from_secs(10));
        assert_eq!((sabt.is_modelled(), sabt.demand()), (true, Some(Bytes(14_480))));
    }
}

#[test]
fn loss_events_of_the_source_count_before_our_own() {
    // Each sample, one per second, covers ten loss events, which only the source of the samples can count.
    let rate = |loss_events: fn(u64) -> Option<u64>, config| {
        let mut sabt = Sabt::new(config);
        for second in 0..20 {
            let sample = Sample {
                loss_events: loss_events(second),
                ..lossy(second * 1_000, 50, CongestionControl::Reno)
            };
            sabt.observe(&sample, Micros::from_secs(second));
        }
        (sabt.loss_rate() * 1_000.0).round() as u64
    };
    assert_eq!(rate(|second| Some(second * 10), Config::default()), 10);
    assert_eq!(rate(|_| None, Config::default()), 1);
    assert_eq!(rate(|second| Some(second * 10), Config::published()), 20);
}

#[test]
fn without_a_loss_the_demand_is_abt_s() {
    let mut sabt = Sabt::new(Config::default());
    assert_eq!(sabt.observe(&Sample::default(), Micros::ZERO), Decision::NONE);
    let sample = Sample { cwnd: Bytes(100_000), srtt: RTT, segs_out: 70, ..Sample::default() };
    assert_eq!(sabt.observe(&sample, RTT).send_buffer, Some(Bytes(200_000)));
    assert_eq!(sabt.demand(), Some(Bytes(200_000)));
}

#[test]
fn without_a_loss_a_window_that_is_not_used_is_demand_as_published_only() {
    for (config, demand) in [(Config::default(), 200_000), (Config::published(), 800_000)] {
        let mut sabt = Sabt::new(config);
        let used = Sample { cwnd: Bytes(100_000), srtt: RTT, segs_out: 70, ..Sample::default() };
        sabt.observe(&used, RTT);
        sabt.observe(&Sample { cwnd: Bytes(400_000), app_limited: true, ..used }, RTT.times(2));
        assert_eq!(sabt.demand(), Some(Bytes(demand)));
    }
}

#[test]
fn losses_leave_the_window_after_its_length() {
    let mut sabt = Sabt::new(Config::default());
    let mut sample = Sample { srtt: RTT, ..Sample::default() };
    for second in 0..200 {
        sample.segs_out += 1_000;
        sample.segs_lost += if second == 100 { 10 } else { 0 };
        sabt.observe(&sample, Micros::from_secs(second));
        let in_window = (100..160).contains(&second);
        // The window moves in steps of a 32nd of its length, so its edge is not checked.
        if !(160..=163).contains(&second) {
            assert_eq!(sabt.loss_rate() > 0.0, in_window, "at {second} s");
        }
    }
}

#[test]
fn a_burst_is_many_packets_and_one_event() {
    let burst = |losses| {
        let mut sabt = Sabt::new(Config { losses, ..Config::default() });
        let mut sample = Sample { srtt: RTT, ..Sample::default() };
        for round in 0..100 {
            sample.segs_out += 100;
            sample.segs_lost += if round == 50 { 200 } else { 0 };
            sabt.observe(&sample, RTT.times(round));
        }
        sabt.loss_rate() * 9_900.0
    };
    assert!((burst(LossCount::Packets) - 200.0).abs() < 1e-6);
    assert!((burst(LossCount::Events) - 1.0).abs() < 1e-6);
}

#[test]
fn a_small_document_goes_in_one_round_trip_and_outside_the_shares() {
    let mut small = Sabt::for_document(Config::default(), SMALL_DOCUMENT);
    assert_eq!(small.initial_window(), Some(SMALL_DOCUMENT));
    assert_eq!(small.demand(), None);
    small.set_limit(Some(Bytes(100)));
    assert_eq!(small.observe(&Sample::default(), Micros::ZERO).send_buffer, Some(SMALL_DOCUMENT));
    let large = Sabt::for_document(Config::default(), SMALL_DOCUMENT + Bytes(1));
    assert_eq!((large.initial_window(), large.demand()), (None, Some(Bytes::ZERO)));
}

#[test]
fn a_limit_bounds_the_buffer_and_not_the_demand() {
    let mut sabt = Sabt::new(Config::default());
    sabt.set_limit(Some(Bytes(5_000)));
    let sample = Sample { cwnd: Bytes(100_000), srtt: RTT, ..Sample::default() };
    assert_eq!(sabt.observe(&sample, RTT).send_buffer, Some(Bytes(5_000)));
    assert_eq!(sabt.demand(), Some(Bytes(200_000)));
}

proptest! {
    #[test]
    fn a_steady_path_means_a_steady_demand(
        every in 20_u64..2_000, windows in proptest::collection::vec(1_u64..1_000_000, 400),
    ) {
        // One loss in `every` segments; cwnd is arbitrary.
        let mut sabt = Sabt::new(Config::default());
        let mut demands = Vec::new();
        for (second, cwnd) in windows.into_iter().enumerate() {
            let sent = second as u64 * 5_000;
            let sample = Sample {
                cwnd: Bytes(cwnd), srtt: RTT, rto: RTT.times(4), mss: Bytes(MSS),
                segs_out: sent, loss_events: Some(sent / every), ..Sample::default()
            };
            sabt.observe(&sample, Micros::from_secs(second as u64));
            if second >= 60 {
                demands.push(sabt.demand().unwrap().0 as f64);
            }
        }
        prop_assert!(variation(&demands) < 0.01, "{}", variation(&demands));
    }

    #[test]
    fn more_loss_never_raises_the_demand(
        lost in 1_u64..10_000, more in 0_u64..10_000,
        congestion_control in prop_oneof![Just(CongestionControl::Reno), Just(CongestionControl::Cubic)],
    ) {
        let demand = |lost| {
            let mut sabt = Sabt::new(Config { min: Bytes(1), ..Config::default() });
            let at = |sent, lost| Sample {
                srtt: RTT, segs_out: sent, loss_events: Some(lost), congestion_control, ..Sample::default()
            };
            sabt.observe(&at(0, 0), Micros::ZERO);
            sabt.observe(&at(100_000, lost), Micros::from_secs(1));
            sabt.demand().unwrap()
        };
        prop_assert!(demand(lost + more) <= demand(lost));
    }
}
