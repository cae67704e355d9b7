//! The paper's rule as written: its first limit, and decisions on a flat rate alone.

use super::*;

fn published() -> Config {
    Config::published()
}

#[test]
fn the_first_limit_has_the_trains_rate_as_it_is() {
    let mut rig = Rig::new(published());
    rig.sample.capacity = Rate::from_bits_per_sec(100_000_000);
    let decision = rig.sobas.observe(&rig.sample, rig.now);
    assert_eq!(decision.receive_window, Some(Bytes(600_000)), "1.2 * 12.5 MB/s * 40 ms");
}

#[test]
fn two_flat_rates_decide_wherever_they_are() {
    // A loss at a fifth of the path, without a queue: our rule waits.
    let rates = [FULL * 0.05, FULL * 0.2, FULL * 0.2];
    assert_eq!(Rig::started(unpaced(), FULL).windows(&rates), State::Recovery);
    let mut rig = Rig::started(published(), FULL);
    assert_eq!(rig.windows(&rates), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.2), 1), "S = R * T");
}

#[test]
fn five_values_decide_by_their_slope_alone() {
    let mut rig = Rig::started(published(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL * 0.5]), State::Recovery);
    let zigzag = [0.5, 0.6, 0.5, 0.6, 0.5].map(|part| part * FULL);
    assert_eq!(rig.windows(&zigzag[..4]), State::Recovery, "four are not enough");
    assert_eq!(rig.windows(&zigzag[4..]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.5), 1));
}

#[test]
fn a_const_rate_drop_decides_far_below_the_largest_rate() {
    let mut rig = Rig::started(published(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL * 0.5, FULL * 0.5, FULL * 0.51]), State::Recovery);
    assert_eq!(rig.windows(&[FULL * 0.3]), State::Final);
    assert!(near(rig.sobas.window(), held(FULL * 0.51), 1), "the rate before the drop");
}

#[test]
fn the_first_sign_of_congestion_decides() {
    let mut rig = Rig::started(published(), FULL * 1.5);
    assert_eq!(rig.windows(&[FULL * 0.1]), State::SlowStart);
    rig.sample.probes_lost = 1;
    assert_eq!(rig.windows(&[FULL * 0.3]), State::SlowStart, "one lost probe is not congestion");
    rig.sample.probes_lost = 2;
    assert_eq!(rig.receive(FULL * 0.3, 1).receive_window, Some(Bytes::MAX));
    assert_eq!(rig.sobas.state(), State::Congested);
}

proptest! {
    /// The paper's rule decides once, and asks for no rate.
    #[test]
    fn the_decision_is_final(
        before in proptest::collection::vec(0.01_f64..1.2, 1..20),
        after in proptest::collection::vec((0.01_f64..1.2, 1_u32..100, 20_u64..90), 1..20),
    ) {
        let mut rig = Rig::started(published(), FULL);
        rig.windows(&before.iter().map(|part| part * FULL).collect::<Vec<_>>());
        rig.windows(&[FULL; 8]);
        rig.set_rtt(48);
        rig.windows(&[FULL; 8]);
        prop_assert_eq!(rig.sobas.state(), State::Final);
        let window = rig.sobas.window();
        for (part, lost, rtt) in after {
            rig.sample.probes_lost = lost;
            rig.set_rtt(rtt);
            prop_assert_eq!(rig.receive(part * FULL, 2 * rtt).pacing, None);
            prop_assert_eq!((rig.sobas.state(), rig.sobas.window()), (State::Final, window));
        }
    }
}
