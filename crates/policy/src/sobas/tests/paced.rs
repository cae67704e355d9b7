//! The paced rules, reading by reading.

use super::*;

fn paced() -> Config {
    Config { pacing: true, ..Config::default() }
}

fn pacing(rig: &Rig) -> f64 {
    rig.sobas.pacing().map_or(0.0, |rate| rate.0 as f64)
}

#[test]
fn paced_starts_just_below_the_estimate_in_tcp_payload() {
    let rig = Rig::started(paced(), FULL);
    assert!((pacing(&rig) / FULL - 0.995).abs() < 1e-4);
    let window = (0.995 * FULL * (1.07 * 0.04 + 0.000_5)) as u64 + 4 * MSS;
    assert!(near(rig.sobas.window(), window, 1));
}

/// Takes readings at the limit and without a queue; returns the limit after each, over `FULL`.
fn limits_while_near(rig: &mut Rig, readings: usize) -> Vec<f64> {
    let reading = |_| {
        let limit = pacing(rig);
        rig.windows(&[limit]);
        pacing(rig) / FULL
    };
    (0..readings).map(reading).collect()
}

#[test]
fn paced_creeps_first_and_then_searches() {
    let mut rig = Rig::started(paced(), FULL);
    assert_eq!(rig.windows(&[FULL * 0.5]), State::SlowStart);
    let mut limits = vec![pacing(&rig) / FULL];
    limits.extend(limits_while_near(&mut rig, 30));
    limits.dedup();
    let steps: Vec<f64> = limits.windows(2).map(|pair| (pair[1] / pair[0] - 1.0) * 1e3).collect();
    let expected = [2.0, 4.0, 8.0, 20.0, 40.0, 50.0, 50.0];
    assert!(steps.iter().zip(expected).all(|(step, expected)| (step - expected).abs() < 0.1), "{steps:?}");
    assert!(steps.len() > expected.len(), "{steps:?}");
    assert_eq!(rig.sobas.state(), State::BufferLimited);
}

/// A transfer in state 5 at 0.995 of `FULL`.
fn settled() -> Rig {
    let mut rig = Rig::started(paced(), FULL);
    assert_eq!(rig.windows(&[FULL * 0.995]), State::Final);
    rig
}

/// Drains a queue of our own: it is gone after two readings.
fn drain(rig: &mut Rig) {
    rig.set_rtt(40);
    let rate = pacing(rig);
    rig.windows(&[rate, rate, rate]);
}

#[test]
fn paced_settles_at_what_was_reached_before_the_queue() {
    let mut rig = Rig::started(paced(), FULL * 0.9);
    while pacing(&rig) < FULL {
        limits_while_near(&mut rig, 1);
    }
    let reached = pacing(&rig);
    limits_while_near(&mut rig, 1);
    assert_eq!(rig.sobas.state(), State::BufferLimited);
    let carried = reached * 1.005;
    rig.set_rtt(43);
    rig.windows(&[carried]);
    assert!(pacing(&rig) > reached, "one reading with a queue may be a spike");
    rig.windows(&[carried]);
    assert!((pacing(&rig) / carried - 15.0 / 16.0).abs() < 1e-3, "the queue is drained");
    drain(&mut rig);
    assert_eq!(rig.sobas.state(), State::Final);
    assert!((pacing(&rig) / reached - 1.0).abs() < 1e-3, "{}", pacing(&rig) / reached);
}

#[test]
fn paced_steps_back_when_a_queue_stands_and_waits_longer_each_time() {
    let mut rig = settled();
    let mut waits = Vec::new();
    for _ in 0..4 {
        let began = rig.now;
        let before = pacing(&rig);
        while pacing(&rig) <= before {
            limits_while_near(&mut rig, 1);
            assert!(rig.now.since(began) < Micros::from_secs(60));
        }
        // Rounded to the second, because the drain's last readings count.
        waits.push((rig.now.since(began).0 + 500_000) / 1_000_000);
        let limit = pacing(&rig);
        rig.set_rtt(43);
        rig.windows(&[FULL * 0.996; 7]);
        assert!((pacing(&rig) - limit).abs() < 1.0, "seven readings may be a burst of others");
        rig.windows(&[FULL * 0.996]);
        drain(&mut rig);
        let cut = pacing(&rig) / limit;
        assert!((0.98..0.999).contains(&cut), "{cut}");
    }
    assert_eq!(waits, [1, 5, 10, 20]);
}

#[test]
fn paced_takes_a_step_back_that_made_a_loss() {
    let mut rig = settled();
    let before = pacing(&rig);
    while pacing(&rig) <= before {
        limits_while_near(&mut rig, 1);
    }
    rig.sample.rcv_out_of_order += 1;
    rig.windows(&[FULL * 0.8]);
    assert_eq!(rig.sobas.state(), State::Final);
    assert!((0.994..1.0).contains(&(pacing(&rig) / before)), "{}", pacing(&rig) / before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// With round-trip times 1 ms off either way, rates 3% off, pauses of 5 ms and losses now and then, no error of the
    /// readings lowers the limit of a steady path for good, and none raises it beyond the slack.
    #[test]
    fn paced_never_ratchets_on_a_steady_path(
        noise in proptest::collection::vec((-1_000_i64..1_000, -0.03_f64..0.03, 0_u8..100), 1_000),
        estimate in 0.7_f64..1.0, lossy in any::<bool>(),
    ) {
        // Where each step meets a loss, creeping gains nothing: the estimate must be right from the start.
        let estimate = if lossy { estimate.max(0.98) } else { estimate };
        let mut rig = Rig::started(paced(), FULL * estimate);
        let mut queue = 0.0_f64;
        for (round, (rtt, rate, event)) in noise.into_iter().enumerate() {
            let window = rig.sobas.window().0 as f64;
            // Seconds of queue: the excess that is sent, as far as the window allows.
            let offered = pacing(&rig).min(window / (0.04 + queue));
            let bound = (window / FULL - 0.04).max(0.0);
            queue = (queue + (offered / FULL - 1.0) * 0.08).clamp(0.0, bound);
            let pause = if event == 0 { 5_000 } else { 0 };
            rig.sample.rcv_out_of_order += u64::from(lossy && event == 1);
            let micros = 40_000 + (queue * 1e6) as i64 + rtt + pause;
            rig.sample.probe_rtt = Micros(micros.unsigned_abs());
            rig.receive(offered.min(FULL) * (1.0 + rate), 80);
            let limit = pacing(&rig) / FULL;
            prop_assert!(limit < 1.2, "round {}: {}", round, limit);
            // The slack of the window, computed for a rate that was read 3% too high: 5.1 ms, and the error of `T0`.
            prop_assert!(queue < 0.006, "round {}: {} s of queue", round, queue);
            // A drain sends 15/16 of what arrives.
            prop_assert!(round < 400 || limit > 0.88, "round {}: {}", round, limit);
        }
    }
}

#[test]
fn paced_ignores_a_sender_with_little_to_send() {
    let mut rig = Rig::started(paced(), FULL);
    rig.windows(&[FULL * 0.99]);
    let limit = pacing(&rig);
    rig.windows(&[FULL * 0.2; 20]);
    assert!((pacing(&rig) - limit).abs() < 1.0, "neither queue nor loss: not the path");
}

#[test]
fn paced_follows_a_path_that_carries_less_and_goes_on_searching() {
    let mut rig = settled();
    rig.set_rtt(60);
    rig.windows(&[FULL * 0.6; 8]);
    assert!((pacing(&rig) / FULL - 0.6 * 15.0 / 16.0).abs() < 1e-3, "the queue is drained");
    drain(&mut rig);
    assert_eq!(rig.sobas.state(), State::BufferLimited);
    assert!(pacing(&rig) >= 0.6 * 0.995 * FULL && pacing(&rig) < 0.65 * FULL);
    limits_while_near(&mut rig, 15);
    assert!(pacing(&rig) > 0.95 * FULL, "back within a second: {}", pacing(&rig) / FULL);
}

#[test]
fn paced_takes_the_round_trip_time_anew_when_a_drain_does_not_help() {
    let mut rig = settled();
    let limit = pacing(&rig);
    rig.set_rtt(80);
    // The window computed for 40 ms halves the rate until the new round-trip time is believed.
    for _ in 0..13 {
        let window = rig.sobas.window().0 as f64;
        let rate = (window / 0.08).min(pacing(&rig));
        rig.windows(&[rate]);
    }
    assert!(pacing(&rig) >= limit * 0.999, "nothing was cut for it: {}", pacing(&rig) / limit);
    assert!(rig.sobas.window().0 as f64 >= 0.08 * limit, "the window no longer limits");
}

#[test]
fn paced_without_an_estimate_starts_from_a_flat_rate() {
    let mut rig = Rig::started(paced(), 0.0);
    rig.receive(FULL * 0.3, 80);
    assert_eq!(rig.sobas.pacing(), None);
    assert_eq!(rig.windows(&[FULL * 0.6, FULL * 0.6]), State::BufferLimited);
    assert!(pacing(&rig) >= FULL * 0.59);
}

#[test]
fn paced_lifts_the_limit_on_a_path_that_stays_congested() {
    let mut rig = Rig::started(paced(), FULL);
    rig.sample.probes_lost = 5;
    rig.receive(FULL * 0.5, 1_500);
    assert_ne!(rig.sobas.state(), State::Congested, "a burst of our own is forgotten in a second");
    let decision = rig.receive(FULL * 0.5, 600);
    assert_eq!(rig.sobas.state(), State::Congested);
    assert_eq!(decision.receive_window, Some(Bytes::MAX));
    assert_eq!(decision.pacing, Some(Rate::MAX));
}

#[test]
fn without_pacing_the_rate_is_never_limited() {
    let mut rig = Rig::started(unpaced(), FULL);
    assert_eq!(rig.receive(FULL, 2_000).pacing, None);
}
