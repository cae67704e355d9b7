//! Work on the engines that fails once, for a while, or for good.

use super::*;

/// Returns a world whose samples are expensive and therefore rare, so that heartbeats come in between.
fn with_rare_samples() -> World {
    let mut world = World::tuning(task("abt"));
    world.sample_cost = Micros::from_millis(100);
    world.flows = (0..40).map(|cookie| flow(cookie, 0)).collect();
    world
}

fn failed_sweep() -> Sweep {
    Sweep { failed: Some("ENOMEM".to_owned()), ..Sweep::default() }
}

/// Returns the lines on work that fails, or succeeds again.
fn told(world: &World) -> Vec<&str> {
    let lines = world.log.iter().map(String::as_str);
    lines.filter(|line| line.ends_with(": ENOMEM") || line.ends_with(" again")).collect()
}

#[test]
fn work_that_fails_once_is_told_once_and_so_is_its_next_success() {
    for (work, fails, succeeds) in [
        (
            Work::Sample,
            "connections cannot be sampled; the last shares hold for now: ENOMEM",
            "connections are sampled again",
        ),
        (
            Work::Share,
            "shares cannot be written; the last ones hold for now: ENOMEM",
            "shares are written again",
        ),
        (
            Work::Beat,
            "the heartbeat cannot be renewed; after 5 s without it no share counts: ENOMEM",
            "the heartbeat is renewed again",
        ),
        (
            Work::Grant,
            "requests cannot be read; buffers stay at the host's maxima for now: ENOMEM",
            "requests are read again",
        ),
    ] {
        let mut world = with_rare_samples();
        world.failures.insert(work, 1);
        for _ in 0..2 {
            world.feed(Event::SizesRequested);
            world.run(MINUTE);
        }
        assert_eq!(told(&world), [fails, succeeds], "{work:?}");
        assert!(world.ended.is_none() && !world.shares.is_empty(), "{work:?}");
    }
}

#[test]
fn a_sample_or_shares_that_fail_come_again_after_a_second_and_the_heartbeat_goes_on_meanwhile() {
    for work in [Work::Sample, Work::Share] {
        let mut world = World::tuning(task("abt"));
        world.failures.insert(work, 10);
        world.run(Micros::from_millis(9_500));
        assert!(world.shares.is_empty(), "{work:?}");
        let signs = world.beats.len();
        assert!((8..=10).contains(&signs), "{work:?}: {signs} signs of life");
        world.goes_on();
    }
}

#[test]
fn a_minute_of_failures_gives_everything_back_and_ends_with_the_first() {
    for work in [Work::Sample, Work::Share] {
        let mut world = World::tuning(task("abt"));
        world.feed(Event::Troubled(work, failure("first")));
        world.failures.insert(work, u32::MAX);
        world.run(Micros::from_secs(59));
        assert_eq!(world.ended, None, "{work:?}");
        world.run(Micros::from_secs(3));
        assert_eq!(world.ended.as_deref(), Some("first"), "{work:?}");
        assert_eq!(world.did.iter().filter(|one| *one == "give back").count(), 1);
        assert_eq!(world.did.last().map(String::as_str), Some("give back"));
        assert_eq!(world.notices.last(), Some(&Notice::Stopping));
        let ends = ["no attempt has succeeded for 60 s: everything is put back", "stopped by an error"];
        assert!(ends.iter().all(|end| world.log.iter().any(|line| line == end)), "{:?}", world.log);
    }
}

#[test]
fn a_success_or_a_reload_starts_the_minute_anew() {
    let mut world = World::tuning(task("abt"));
    for _ in 0..4 {
        world.failures.insert(Work::Share, 45);
        world.run(MINUTE);
    }
    world.goes_on();
    world.failures.insert(Work::Share, u32::MAX);
    world.run(Micros::from_secs(45));
    world.configurations.push_back(Ok(task("drs")));
    world.feed(Event::Hangup);
    assert_eq!(world.notices.last(), Some(&Notice::Ready(task("drs").headline())));
    world.run(Micros::from_secs(45));
    assert_eq!(world.ended, None);
    world.run(Micros::from_secs(20));
    assert_eq!(world.ended.as_deref(), Some("ENOMEM"));
}

#[test]
fn heartbeats_grants_and_sweeps_that_fail_for_good_do_not_end_a_daemon_that_shares_memory_out() {
    let mut world = with_rare_samples();
    world.failures.extend([(Work::Beat, u32::MAX), (Work::Grant, u32::MAX)]);
    world.sweeps.extend((0..100).map(|_| failed_sweep()));
    for _ in 0..20 {
        world.feed(Event::SizesRequested);
        world.run(Micros::from_secs(10));
    }
    assert_eq!(world.ended, None);
    let (last, _) = world.shares.last().expect("shares are written");
    assert!(world.now.since(*last) < Micros::from_secs(35));
}

#[test]
fn failures_do_not_make_the_loop_hot() {
    for works in [&[Work::Sample, Work::Beat, Work::Grant][..], &[Work::Sample], &[Work::Share]] {
        let mut world = with_rare_samples();
        // Each heartbeat that succeeds calls for a sample at once.
        world.turnover = 1_000;
        world.failures.extend(works.iter().map(|work| (*work, u32::MAX)));
        // The programs request sizes without pause.
        let end = world.now + Micros::from_secs(58);
        while world.now < end {
            if world.daemon.grants(world.now) {
                world.feed(Event::SizesRequested);
            }
            world.run(Micros::from_millis(50));
        }
        assert_eq!(world.ended, None, "{works:?}");
        for work in works {
            let attempts = world.attempts[work];
            assert!((45..=125).contains(&attempts), "{works:?}: {attempts} attempts at {work:?}");
        }
    }
}

#[test]
fn a_first_sweep_that_fails_does_not_hold_up_the_start_and_comes_again_soon() {
    let mut world = World::new(task("abt"));
    world.sweeps.extend([failed_sweep(), failed_sweep()]);
    world.feed(Event::Begin);
    assert_eq!(world.readies(), 1);
    world.run(Micros::from_secs(10));
    assert_eq!(world.did.iter().filter(|one| *one == "sweep").count(), 3, "until one succeeds");
    world.run(MINUTE);
    let fails = "sweeps fail; existing connections and idle buffers stay as they are for now: ENOMEM";
    assert_eq!(told(&world), [fails, "sweeps succeed again"]);
    world.feed(Event::Asked(Request::Metrics));
    assert_eq!(world.facts.expect("it answers").counts.refused_sweeps, 2);
}

#[test]
fn a_bound_of_devices_that_was_lost_with_its_shares_is_told_again() {
    let mut world = World::tuning(task("abt"));
    world.failures.insert(Work::Share, 1);
    world.run(Micros::from_millis(1_500));
    assert_eq!(world.sizes.len(), 1, "{:?}", world.sizes);
}
