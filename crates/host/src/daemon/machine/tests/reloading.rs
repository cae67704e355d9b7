//! A new configuration is taken in, or leaves everything as it was.

use super::*;

#[test]
fn a_good_configuration_is_taken_in() {
    let mut world = World::tuning(task("abt"));
    world.configurations.push_back(Ok(task("drs")));
    world.feed(Event::Hangup);
    assert_eq!(world.did, ["read", "lower", "discover kernel (send), drs (receive)", "load fresh", "sweep"]);
    assert!(
        world.log.last().unwrap().starts_with("reloaded: tuning the whole host: policy kernel (send), drs")
    );
    assert_eq!(world.notices, [Notice::Reloading, Notice::Ready(task("drs").headline())]);
}

#[test]
fn the_same_rules_with_another_budget_keep_what_was_set() {
    let mut world = World::tuning(task("abt"));
    let mut larger = task("abt");
    larger.plan.budget = Bytes(1 << 30);
    world.configurations.push_back(Ok(larger));
    world.feed(Event::Hangup);
    assert_eq!(world.did[3], "load inheriting");
}

#[test]
fn a_reload_that_wants_the_same_maxima_leaves_them_raised() {
    let mut world = World::tuning(task("drs"));
    let search = "discover kernel (send), drs (receive)";
    world.configurations.push_back(Ok(task("drs")));
    world.feed(Event::Hangup);
    assert_eq!(world.did, ["read", search, "load inheriting", "sweep"]);
    world.did.clear();
    world.configurations.push_back(Ok(task("drs")));
    world.loads.push_back(Err(failure("EAGAIN")));
    world.feed(Event::Hangup);
    assert_eq!(world.did, ["read", search, "load inheriting", search, "sweep"]);
    // A pause has restored the maxima: the reload raises them anew.
    world.feed(Event::Asked(Request::Restore));
    world.did.clear();
    world.configurations.push_back(Ok(task("drs")));
    world.feed(Event::Hangup);
    assert_eq!(world.did[..3], ["read", "lower", search]);
}

#[test]
fn a_wrong_configuration_touches_nothing() {
    let mut world = World::tuning(task("abt"));
    world.configurations.push_back(Err(failure("bufwise.toml, line 1")));
    world.feed(Event::Hangup);
    assert_eq!(world.did, ["read"]);
    assert_eq!(world.log, ["the old configuration stays: bufwise.toml, line 1"]);
    assert_eq!(world.notices, [Notice::Reloading, Notice::Ready(task("abt").headline())]);
    world.goes_on();
}

#[test]
fn an_engine_that_cannot_be_loaded_leaves_what_ran_as_it_was() {
    let mut world = World::tuning(task("abt"));
    world.configurations.push_back(Ok(task("drs")));
    world.loads.push_back(Err(failure("EAGAIN")));
    world.feed(Event::Hangup);
    let old = "discover abt (send), kernel (receive)";
    let new = "discover kernel (send), drs (receive)";
    assert_eq!(world.did, ["read", "lower", new, "load fresh", "lower", old, "sweep"]);
    assert_eq!(world.log.last().unwrap(), "the old configuration stays: EAGAIN");
    assert_eq!(world.notices.last(), Some(&Notice::Ready(task("abt").headline())));
    world.goes_on();
    // The next reload may succeed.
    world.configurations.push_back(Ok(task("drs")));
    world.feed(Event::Hangup);
    assert_eq!(world.notices.last(), Some(&Notice::Ready(task("drs").headline())));
}

#[test]
fn a_reload_that_is_undone_leaves_the_devices_with_the_size_that_the_shares_had_chosen() {
    let mut world = World::tuning(task("abt"));
    // 800 KiB to share out: 4 KiB at once while many send, whatever the plan begins with.
    let mut sender = FlowState { bytes_sent: Bytes(1_000), ..flow(0, 0) };
    sender.sample.send_queued = Bytes(1);
    world.flows = (1..=100).map(|cookie| FlowState { cookie, ..sender }).collect();
    world.run(Micros::from_secs(3));
    let size = world.sizes.last().copied().expect("the shares choose one");
    for failure_of in ["load", "search"] {
        world.sizes.clear();
        world.run(Micros::from_secs(3));
        assert!(world.sizes.is_empty(), "it has not changed: {:?}", world.sizes);
        world.configurations.push_back(Ok(task("drs")));
        match failure_of {
            "load" => world.loads.push_back(Err(failure("EAGAIN"))),
            _ => world.found.extend([Err(failure("EMFILE")), Err(failure("EMFILE"))]),
        }
        world.feed(Event::Hangup);
        world.run(Micros::from_secs(1));
        assert_eq!(world.sizes, [size], "{failure_of}");
    }
}

#[test]
fn namespaces_that_cannot_be_seen_during_a_reload_leave_what_ran_as_it_was() {
    let mut world = World::tuning(task("abt"));
    world.configurations.push_back(Ok(task("drs")));
    world.found.push_back(Err(failure("cannot read /proc")));
    world.found.push_back(Err(failure("cannot read /proc")));
    world.feed(Event::Hangup);
    assert!(!world.did.iter().any(|one| one.starts_with("load")), "{:?}", world.did);
    assert_eq!(world.notices.last(), Some(&Notice::Ready(task("abt").headline())));
    world.goes_on();
}
