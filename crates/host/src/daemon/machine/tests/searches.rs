//! Searches for network namespaces and for the groups' cgroups that fail, or find more than there is room for.

use super::*;

#[test]
fn a_search_that_fails_while_it_tunes_is_told_once_for_each_cause_and_does_not_end_it() {
    let mut world = World::tuning(task("abt"));
    let told = |world: &World| -> Vec<String> {
        world.log.iter().filter(|line| line.contains("are not searched")).cloned().collect()
    };
    for cause in ["EMFILE", "EMFILE", "EMFILE", "ENOMEM", "ENOMEM"] {
        world.found.push_back(Err(failure(cause)));
    }
    world.run(MINUTE);
    let line = |cause| format!("network namespaces are not searched; known ones stay tuned: {cause}");
    assert_eq!(told(&world), [line("EMFILE"), line("ENOMEM")]);
    assert!(world.found.is_empty());
    world.goes_on();
    world.found.push_back(Err(failure("ENOMEM")));
    world.run(MINUTE);
    assert_eq!(told(&world).len(), 3, "a search has succeeded since");
}

#[test]
fn a_start_that_finds_no_namespace_ends() {
    let mut world = World::new(task("abt"));
    world.found.push_back(Err(failure("EMFILE")));
    world.feed(Event::Begin);
    assert_eq!(world.ended.as_deref(), Some("EMFILE"));
}

#[test]
fn namespaces_beyond_the_room_are_told_once() {
    let mut world = World::tuning(task("abt"));
    let found = |left_alone| Found { known: BTreeSet::from([0]), left_alone, ..Found::default() };
    world.found.extend([3, 4, 0, 1].map(|left_alone| Ok(found(left_alone))));
    // A line of the kind was written a moment ago.
    let unopened = || Ok(Found { unopened: Some("EMFILE".to_owned()), ..found(0) });
    world.found.extend([(); 3].map(|()| unopened()));
    world.run(MINUTE);
    let told: Vec<_> = world.log.iter().filter(|line| line.contains("left alone")).collect();
    assert!(
        matches!(told[..], [first, second] if first.starts_with("3 network namespaces are left alone: ")
            && second.starts_with("1 network namespace is left alone: ")),
        "{told:?}"
    );
    assert!(world.log.iter().any(|line| line.ends_with("known ones stay tuned: EMFILE")), "{:?}", world.log);
    world.goes_on();
}

#[test]
fn a_search_for_cgroups_that_fails_is_told_once_and_does_not_end_it() {
    let mut world = World::tuning(grouped("abt"));
    for _ in 0..3 {
        world.regrouped.push_back(Regrouped { failed: Some("EMFILE".to_owned()), ..Regrouped::default() });
    }
    world.run(MINUTE);
    let told: Vec<_> = world.log.iter().filter(|line| line.contains("passed on")).collect();
    assert!(matches!(told[..], [one] if one.ends_with("for now: EMFILE")), "{told:?}");
    world.goes_on();
}

#[test]
fn a_search_for_programs_rests_twenty_times_what_it_took_and_cgroups_are_followed_meanwhile() {
    let mut world = World::tuning(grouped("abt"));
    world.programs_cost = Micros::from_secs(1);
    world.run(MINUTE);
    let searches = &world.program_searches;
    assert!((2..=3).contains(&searches.len()), "{searches:?}");
    let mut pauses = searches.windows(2).map(|pair| pair[1].since(pair[0]));
    assert!(pauses.all(|pause| pause >= Micros::from_secs(21)), "{searches:?}");
    let regroups = world.did.iter().filter(|did| *did == "regroup").count();
    assert!(regroups > 3 * searches.len(), "{:?}", world.did);
}

#[test]
fn a_search_for_programs_that_fails_rests_as_well() {
    let mut world = World::tuning(grouped("abt"));
    let (failed, searched) = (Some("EMFILE".to_owned()), Some(Micros::from_secs(3)));
    world.regrouped.push_back(Regrouped { failed, searched, ..Regrouped::default() });
    world.run(MINUTE);
    assert_eq!(world.program_searches.len(), 1);
}

#[test]
fn a_cgroup_that_was_removed_and_made_again_is_told_and_its_connections_are_swept() {
    let mut world = World::tuning(grouped("abt"));
    let remade = vec!["/web".to_owned()];
    world.found.push_back(Ok(Found { remade, known: BTreeSet::from([0]), ..Found::default() }));
    world.run(Micros::from_secs(6));
    assert_eq!(world.did, ["discover abt (send), kernel (receive)", "settle", "sweep"]);
    let line = "cgroup /web was made again and is tuned";
    assert!(world.log.iter().any(|told| told == line), "{:?}", world.log);
}

#[test]
fn a_cgroup_that_was_made_again_and_cannot_be_attached_to_is_told_once() {
    let mut world = World::tuning(task("abt"));
    let refused = "cgroup /web was made again and is not tuned: E2BIG";
    let found =
        || Ok(Found { refused: vec![refused.to_owned()], known: BTreeSet::from([0]), ..Found::default() });
    for times in [5, 1] {
        world.found.extend((0..times).map(|_| found()));
        world.log.clear();
        world.run(MINUTE);
        let told = world.log.iter().filter(|line| *line == refused).count();
        assert_eq!(told, 1, "and again after it was attached to: {:?}", world.log);
    }
}

#[test]
fn bounds_that_are_raised_later_are_told() {
    let mut world = World::tuning(task("abt"));
    let value = Value::parse(Setting::TcpRmem, "4096 131072 67108864").unwrap();
    let raised = vec![("blue".to_owned(), vec![Change { setting: Setting::TcpRmem, value }])];
    world.found.push_back(Ok(Found { raised, known: BTreeSet::from([0]), ..Found::default() }));
    world.run(Micros::from_secs(6));
    let is_told = |line: &String| line.starts_with("in network namespace blue net.ipv4.tcp_rmem = 4096");
    assert!(world.log.iter().any(is_told), "{:?}", world.log);
}

#[test]
fn a_reload_tells_of_raised_maxima_who_is_bounded_by_its_own_task() {
    let mut world = World::tuning(task("abt"));
    // Beside the group, the kernel sizes all others.
    for (next, others_may_grow) in [(grouped("kernel"), true), (task("abt"), false)] {
        let value = Value::parse(Setting::TcpRmem, "4096 131072 67108864").unwrap();
        let new = vec![("blue".to_owned(), vec![Change { setting: Setting::TcpRmem, value }])];
        world.found.push_back(Ok(Found { new, known: BTreeSet::from([0]), ..Found::default() }));
        world.configurations.push_back(Ok(next));
        world.log.clear();
        // No other line of the kind keeps this one out of the log.
        world.now += MINUTE;
        world.feed(Event::Hangup);
        let is_told = |line: &&String| line.contains("net.ipv4.tcp_rmem = 4096");
        let told = world.log.iter().find(is_told).expect("it is told");
        assert_eq!(told.contains("other sockets there may grow"), others_may_grow, "{told}");
    }
}
