//! How often the daemon samples, by what samples cost and by what happens.

use super::*;
use crate::history;

#[test]
fn the_heartbeat_does_not_expire_whatever_a_sample_costs_and_whether_or_not_much_changes() {
    for cost in [Micros(20), Micros::from_millis(3), Micros::from_millis(900)] {
        for flows in [vec![], vec![flow(1, 0)]] {
            let mut world = World::tuning(task("sabt"));
            (world.sample_cost, world.flows) = (cost, flows);
            world.run(MINUTE);
            let shares = world.shares.iter().map(|(at, _)| *at);
            let mut signs: Vec<Micros> = shares.chain(world.beats).collect();
            signs.sort_unstable();
            let longest = signs.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
            assert!(longest < Micros::from_millis(2_500), "{longest:?} between two, a sample takes {cost:?}");
        }
    }
}

#[test]
fn cheap_samples_stay_frequent_beside_expensive_sweeps_and_searches() {
    // So much that records are made late, and sweeps come every 5 s.
    let mut large = task("abt");
    (large.plan.budget, large.plan.receive_budget) = (Bytes(1 << 30), Bytes(1 << 30));
    let mut world = World::tuning(large);
    (world.sweep_cost, world.discover_cost) = (Micros::from_millis(10), Micros::from_millis(20));
    world.flows = vec![flow(1, 0)];
    world.run(MINUTE);
    let samples: Vec<Micros> = world.shares.iter().map(|(at, _)| *at).collect();
    let longest = samples.windows(2).map(|pair| pair[1].since(pair[0])).max().unwrap();
    assert!(world.did.iter().filter(|one| *one == "sweep").count() >= 10, "{:?}", world.did);
    // Every 100 ms, and what is done in between.
    assert!(longest <= Micros::from_millis(140), "{longest:?}");
}

#[test]
fn sweeps_for_late_records_begin_and_end_with_the_task_that_makes_them() {
    let mut world = World::tuning(task("abt"));
    world.flows = vec![flow(1, 0)];
    // From 64 MiB on records are made late.
    for (budget, is_late) in [(Bytes(1 << 30), true), (Bytes(1 << 20), false)] {
        let mut next = task("abt");
        (next.plan.budget, next.plan.receive_budget) = (budget, budget);
        world.configurations.push_back(Ok(next));
        world.feed(Event::Hangup);
        world.did.clear();
        world.run(MINUTE);
        let sweeps = world.did.iter().filter(|one| *one == "sweep").count();
        assert_eq!(sweeps >= 10, is_late, "{sweeps} in a minute");
    }
}

#[test]
fn expensive_samples_are_rare_while_little_changes_and_come_at_once_where_many_come_or_go() {
    let mut world = World::tuning(task("abt"));
    world.sample_cost = Micros::from_millis(100);
    world.flows = (0..40).map(|cookie| flow(cookie, 0)).collect();
    let mut samples_in_a_minute = |turnover| {
        world.turnover = turnover;
        world.run(history::INTERVAL);
        let before = world.shares.len();
        world.run(MINUTE);
        world.shares.len() - before
    };
    assert_eq!(samples_in_a_minute(0), 2);
    assert_eq!(samples_in_a_minute(2), 2, "two of forty are few");
    assert!((45..=60).contains(&samples_in_a_minute(3)), "each second");
}

#[test]
fn namespaces_that_come_without_end_are_searched_for_and_swept_for_a_part_of_the_time() {
    let mut world = World::tuning(task("abt"));
    world.sweep_cost = Micros::from_millis(100);
    for number in 1..=100 {
        let netns = 1_000 + number;
        let mut stranger = flow(number, 0);
        stranger.origin.netns = netns;
        world.flows = vec![stranger];
        let (new, known) = (vec![(netns.to_string(), Vec::new())], BTreeSet::from([0, netns]));
        world.found.clear();
        world.found.push_back(Ok(Found { new, known, took: Micros::from_millis(50), ..Found::default() }));
        world.run(Micros::from_millis(100));
    }
    // In some ten seconds; a search rests for one, and so does a sweep.
    for what in ["discover", "sweep"] {
        let count = world.did.iter().filter(|did| did.starts_with(what)).count();
        assert!((8..=13).contains(&count), "{what}: {:?}", world.did);
    }
}

#[test]
fn a_long_pause_ends_when_the_hosts_tcp_holds_much_more() {
    let mut world = World::tuning(task("abt"));
    let eighth = task("abt").plan.budget.scaled(1, 8);
    world.sample_cost = Micros::from_millis(100);
    world.flows = (0..40).map(|cookie| flow(cookie, 0)).collect();
    for (more, is_early) in [(eighth, false), (eighth + Bytes(1), true)] {
        let few = TcpMemory { held: Bytes(5_000_000), low: Bytes(1 << 40), pressure: Bytes(1 << 40) };
        world.host = Some(few);
        world.run(MINUTE);
        world.shares.clear();
        world.run(Micros::from_secs(31));
        let sampled = world.shares.last().map(|(at, _)| *at).expect("a sample comes every 30 s");
        world.run(Micros::from_secs(20) - world.now.since(sampled));
        world.shares.clear();
        world.host = Some(TcpMemory { held: few.held + more, ..few });
        // A sign of life comes each second.
        world.run(Micros::from_millis(1_200));
        assert_eq!(!world.shares.is_empty(), is_early, "{more:?} more");
    }
}
