//! Whose queue is it?

use super::*;

/// The engine's form, in slow start: the path's own round trip is known apart.
fn engine() -> Rig {
    let mut rig = Rig::new(Config { continuous: true, ..published() });
    rig.sample.path_rtt = RTT;
    rig.receive(MSS as f64, 1);
    assert_eq!(rig.sobas.state(), State::SlowStart);
    rig
}

impl Rig {
    /// Readings of this rate while the round trip is so many milliseconds.
    fn readings(&mut self, rate: f64, rtt: u64, count: u64) -> State {
        self.set_rtt(rtt);
        self.receive(rate, count * 80);
        self.sobas.state()
    }

    /// Until the trial begins; from then on no more than its limit is on offer.
    fn until_trial(&mut self, rate: f64, rtt: u64) {
        self.set_rtt(rtt);
        let begin = self.now;
        while self.sobas.state() != State::Trial {
            self.receive(rate, 1);
            assert!(self.now.since(begin) < Micros::from_secs(90));
        }
        self.sample.rcv_wnd = self.sobas.window();
    }
}

/// A full path with a queue of two round trips, on trial.
fn on_trial() -> Rig {
    let mut rig = engine();
    rig.until_trial(FULL, 120);
    rig
}

#[test]
fn a_flat_rate_without_a_queue_is_no_full_path() {
    let mut rig = engine();
    assert_eq!(rig.readings(FULL, 42, 30), State::Recovery);
    assert_eq!(rig.sobas.window(), Bytes::MAX);
}

#[test]
fn before_it_gives_way_to_a_long_queue_it_gives_half() {
    let rig = on_trial();
    assert!(near(rig.sobas.window(), (FULL * 0.06) as u64, 1), "half of what is under way");
}

#[test]
fn trial_to_final_when_the_queue_is_ours() {
    let mut rig = on_trial();
    rig.set_rtt(76);
    rig.receive(FULL, 1);
    assert_eq!(rig.sobas.state(), State::Trial, "not three quarters of the way to 60 ms");
    rig.set_rtt(74);
    rig.receive(FULL, 1);
    assert_eq!(rig.sobas.state(), State::Final);
    assert!(near(rig.sobas.window(), held(FULL), 1), "S = R * T");
}

#[test]
fn trial_to_congested_when_it_is_others() {
    let mut rig = on_trial();
    rig.receive(FULL / 2.0, 355);
    assert_eq!(rig.sobas.state(), State::Trial, "three round trips have not passed");
    let decision = rig.receive(FULL / 2.0, 10);
    assert_eq!(rig.sobas.state(), State::Congested);
    assert_eq!(rig.sobas.window(), Bytes::MAX);
    let offered = decision.receive_window.unwrap();
    assert!(
        offered > Bytes((4.0 * FULL * 0.12) as u64) && offered < Bytes(8_000_000),
        "no limit: {offered:?}"
    );
}

#[test]
fn a_trial_waits_until_what_was_offered_before_is_used_up() {
    let mut rig = on_trial();
    rig.sample.rcv_wnd = rig.sobas.window().times(2);
    rig.receive(FULL, 5_000);
    assert_eq!(rig.sobas.state(), State::Trial);
}

#[test]
fn trial_to_congested_on_losses() {
    let mut rig = on_trial();
    rig.sample.probes_lost = 2;
    rig.receive(FULL, 1);
    assert_eq!(rig.sobas.state(), State::Congested);
}

#[test]
fn final_to_trial_when_others_come() {
    let mut rig = on_trial();
    assert_eq!(rig.readings(FULL, 40, 5), State::Final);
    assert_eq!(rig.readings(FULL * 0.97, 44, 20), State::Final, "neither slower nor queueing by much");
    assert_eq!(rig.readings(FULL * 0.7, 57, 4), State::Trial);
}

#[test]
fn congested_to_recovery_when_the_queue_is_gone() {
    let mut rig = on_trial();
    assert_eq!(rig.readings(FULL / 2.0, 120, 6), State::Congested);
    assert_eq!(rig.readings(FULL, 42, 24), State::Congested);
    assert_eq!(rig.readings(FULL, 42, 2), State::Recovery);
}

#[test]
fn congested_to_trial_after_ten_seconds_then_twenty() {
    let mut rig = on_trial();
    for seconds in [10, 20, 40, 80, 80] {
        rig.receive(FULL / 2.0, 365);
        assert_eq!(rig.sobas.state(), State::Congested);
        let failed = rig.now;
        rig.until_trial(FULL / 2.0, 120);
        let waited = rig.now.since(failed).0 / 100_000;
        assert!((10 * seconds - 1..=10 * seconds + 1).contains(&waited), "{seconds} s: {waited} tenths");
    }
}

#[test]
fn without_the_paths_own_round_trip_there_is_no_trial() {
    let mut rig = Rig::started(Config { continuous: true, ..published() }, FULL * 1.5);
    assert_eq!(rig.windows(&[FULL, FULL]), State::Final);
    rig.set_rtt(120);
    for _ in 0..20 {
        assert_ne!(rig.windows(&[FULL * 0.5]), State::Trial);
    }
}
