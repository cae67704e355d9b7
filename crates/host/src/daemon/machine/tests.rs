//! Tests of the daemon in virtual time, on a simulated host.

mod pacing;
mod reloading;
mod searches;
mod trying;
mod world;

use std::collections::BTreeSet;

use bufwise_bpf::{FlowState, Released, Shares};
use bufwise_units::{Bytes, Micros};
use proptest::prelude::*;

use super::super::event::{Event, Found, Notice, Regrouped, Sweep, Work};
use crate::caps::{Change, Setting, Value};
use crate::control::{Reply, Request};
use crate::leftovers::Cleared;
use crate::metrics::Counts;
use crate::tcp_memory::TcpMemory;
use crate::tuner::plan::Plan;
use crate::tuner::tests::flow;
use world::{World, failure, grouped, task};

const MINUTE: Micros = Micros::from_secs(60);

#[test]
fn a_start_clears_leftovers_first_and_is_ready_after_the_first_sweep() {
    let mut world = World::new(task("abt,sobas"));
    world.leftovers =
        Cleared { done: vec!["cgroup /bufwise-run-7-0 removed".to_owned()], failed: Vec::new() };
    world.feed(Event::Begin);
    assert_eq!(world.did, ["clear", "discover abt (send), sobas (receive)", "load fresh", "sweep"]);
    assert_eq!(world.log[0], "left by a killed bufwise: cgroup /bufwise-run-7-0 removed");
    assert!(world.log.iter().any(|line| line.starts_with("tuning the whole host: policy abt (send)")));
    assert_eq!(world.readies(), 1);
    assert_eq!(world.ended, None);
}

#[test]
fn raised_maxima_are_said_to_be_others_too_where_cgroups_alone_are_tuned() {
    let value = Value::parse(Setting::TcpRmem, "4096 131072 67108864").unwrap();
    let raised = || vec![Change { setting: Setting::TcpRmem, value: value.clone() }];
    let whole_host = super::telling::with_reasons(raised(), true);
    assert!(whole_host.ends_with("67108864: each socket is bounded by its policy"), "{whole_host}");
    let some = super::telling::with_reasons(raised(), false);
    assert!(some.contains("other sockets there may grow") && !some.contains("each socket"), "{some}");
}

#[test]
fn a_small_memory_is_told_at_the_start_with_how_many_it_holds() {
    let told = |task, in_the_first: bool| {
        let mut world = if in_the_first { World::in_the_first_namespace(task) } else { World::new(task) };
        world.feed(Event::Begin);
        let of_memory = |line: &&String| line.contains("busy connections");
        world.log.iter().find(of_memory).cloned().unwrap_or_default()
    };
    let of_cgroups = || {
        let mut task = task("abt");
        task.settings.asked.whole_host = false;
        task.plan = Plan::new(task.settings.policy, task.settings.asked).unwrap();
        task
    };
    let beside_others = told(of_cgroups(), true);
    assert!(
        beside_others.starts_with("more than 5 busy connections may exceed the memory"),
        "{beside_others}"
    );
    // The devices are the daemon's to bound in another namespace, and where the whole host is tuned.
    for alone in [told(of_cgroups(), false), told(task("abt"), true)] {
        assert!(alone.contains("is kept for up to 42 busy connections, 24KiB for each"), "{alone}");
    }
    let mut dry = task("abt");
    dry.plan.observe_only = true;
    assert_eq!(told(dry, true), "");
}

#[test]
fn one_connection_is_told_in_the_singular() {
    let mut world = World::tuning(task("abt"));
    let adopted = vec![("blue".to_owned(), 1)];
    world.feed(Event::Swept(Sweep { adopted, given_back: 1, ..Sweep::default() }, Micros::ZERO));
    let given_back = "buffers of 1 connection given back: nothing moved for 2 s";
    assert_eq!(world.log, ["1 existing connection adopted in network namespace blue", given_back]);
    world.flows = vec![flow(1, 0)];
    world.run(Micros::from_secs(11));
    let status = Notice::Status("1 connection; send queues hold 0 B of 1.05 MB".to_owned());
    assert!(world.notices.contains(&status), "{:?}", world.notices);
}

#[test]
fn a_dry_run_leaves_leftovers_alone() {
    let mut dry = task("abt");
    dry.plan.observe_only = true;
    let mut world = World::new(dry);
    world.feed(Event::Begin);
    assert_eq!(world.did, ["discover abt (send), kernel (receive)", "load fresh", "sweep"]);
}

#[test]
fn a_start_that_fails_gives_everything_back_and_ends_with_the_reason() {
    let mut world = World::new(task("abt"));
    world.loads.push_back(Err(failure("cannot load")));
    world.feed(Event::Begin);
    assert_eq!(world.did[2..], ["load fresh", "give back"]);
    assert_eq!(world.ended.as_deref(), Some("cannot load"));
    assert_eq!(world.readies(), 0);
}

#[test]
fn what_is_settled_at_the_start_is_kept_and_said() {
    let mut world = World::tuning(task("abt"));
    let mut other = task("abt");
    other.settings.socket = "/elsewhere".into();
    other.settings.log_format = crate::log::Format::Json;
    other.settings.metrics = Some("127.0.0.1:9847".parse().unwrap());
    other.settings.otlp = Some("http://127.0.0.1:4318".parse().unwrap());
    other.settings.otlp_interval = "60s".parse().unwrap();
    other.settings.history = Some("/elsewhere".into());
    world.configurations.push_back(Ok(other));
    world.feed(Event::Hangup);
    assert_eq!(
        world.log[..6],
        [
            "another control socket takes effect at the next start",
            "another log format takes effect at the next start",
            "another address of the metrics takes effect at the next start",
            "another receiver of the metrics takes effect at the next start",
            "another interval of the metrics takes effect at the next start",
            "another file of the history takes effect at the next start"
        ]
    );
}

#[test]
fn what_happens_is_counted_and_told_to_those_who_ask_for_metrics() {
    let mut world = World::tuning(task("abt"));
    world.flows = vec![FlowState { send_changes: 3, window_changes: 1, ..flow(1, 0) }];
    world.run(Micros::from_secs(1));
    world.feed(Event::Granted(vec!["EPERM".to_owned(); 2], Micros::ZERO));
    let sweep = Sweep {
        adopted: vec![("blue".to_owned(), 4), ("red".to_owned(), 1)],
        refused: vec!["network namespace blue: EPERM".to_owned()],
        given_back: 6,
        ..Sweep::default()
    };
    world.feed(Event::Swept(sweep, Micros::ZERO));
    world.configurations.push_back(Err(failure("wrong")));
    world.feed(Event::Hangup);
    world.feed(Event::Asked(Request::Metrics));
    let expected = Counts {
        send_buffers: 3,
        receive_windows: 1,
        adopted: 5,
        given_back: 6,
        refused_sizes: 2,
        refused_sweeps: 1,
        refused_bounds: 0,
        failed_reloads: 1,
    };
    assert_eq!(world.facts.expect("it answers").counts, expected);
}

#[test]
fn the_history_takes_a_sample_every_ten_seconds_while_it_tunes() {
    let mut world = World::tuning(task("abt"));
    world.flows = vec![flow(1, 0), flow(2, 0)];
    let began = world.now;
    world.run(MINUTE);
    let recorded = std::mem::take(&mut world.recorded);
    assert_eq!(recorded.len(), 6, "{recorded:?}");
    let pauses = recorded.windows(2).map(|pair| pair[1].0.since(pair[0].0));
    assert!(recorded[0].0.since(began) < Micros::from_secs(1), "{recorded:?}");
    assert!(pauses.into_iter().all(|pause| pause >= Micros::from_secs(10) && pause < Micros::from_secs(11)));
    assert!(recorded.iter().all(|(_, connections)| *connections == 2));
    world.feed(Event::Asked(Request::Restore));
    world.run(MINUTE);
    assert_eq!(world.recorded, [], "namespaces are forgotten while it is paused");
}

#[test]
fn a_hangup_during_a_load_is_heard_after_it() {
    let mut world = World::tuning(task("abt"));
    world.configurations.extend([Ok(task("drs")), Ok(task("sobas"))]);
    world.during_load.extend([Event::Hangup, Event::Hangup]);
    world.feed(Event::Hangup);
    assert_eq!(world.did.iter().filter(|one| *one == "read").count(), 2, "{:?}", world.did);
    assert_eq!(world.notices.last(), Some(&Notice::Ready(task("sobas").headline())));
}

#[test]
fn a_hangup_during_a_load_that_nobody_asked_for_is_heard_too() {
    for outcome in [Ok(Regrouped::default()), Err(failure("EAGAIN"))] {
        let mut world = World::tuning(task("abt"));
        let value = Value::parse(Setting::WmemMax, "7").unwrap();
        world.seen = vec![("blue".to_owned(), Ok(vec![Change { setting: Setting::WmemMax, value }]))];
        world.loads.push_back(outcome);
        world.during_load.push_back(Event::Hangup);
        world.configurations.push_back(Ok(task("drs")));
        world.run(Micros::from_secs(2));
        assert_eq!(world.notices.last(), Some(&Notice::Ready(task("drs").headline())));
    }
}

#[test]
fn a_hangup_during_the_start_is_heard_after_it() {
    let mut world = World::new(task("abt"));
    world.during_load.push_back(Event::Hangup);
    world.configurations.push_back(Ok(task("drs")));
    world.feed(Event::Begin);
    assert_eq!(world.notices.last(), Some(&Notice::Ready(task("drs").headline())));
}

#[test]
fn a_stop_during_a_load_gives_back_and_ends() {
    let mut world = World::tuning(task("abt"));
    world.configurations.push_back(Ok(task("drs")));
    world.during_load.push_back(Event::Stop);
    world.feed(Event::Hangup);
    assert_eq!(world.did.last().map(String::as_str), Some("give back"));
    assert_eq!(world.ended.as_deref(), Some(""));
}

#[test]
fn a_stop_gives_everything_back_and_says_what() {
    let mut world = World::tuning(task("abt"));
    world.released = Released { released: 3, ..Released::default() };
    world.feed(Event::Stop);
    assert_eq!(world.did, ["give back"]);
    assert_eq!(
        world.log,
        ["put back: tcp_rmem (network namespace blue)", "3 connections given back to the kernel", "stopped"]
    );
    assert_eq!(world.notices, [Notice::Stopping]);
    assert_eq!(world.ended.as_deref(), Some(""));
}

#[test]
fn a_failure_without_remedy_ends_the_daemon_after_giving_back() {
    let mut world = World::tuning(task("abt"));
    world.feed(Event::Failed(failure("cannot wait for something to do")));
    world.feed(Event::Stop);
    assert_eq!(world.did, ["give back"]);
    assert_eq!(world.log.last().unwrap(), "stopped by an error");
    assert_eq!(world.ended.as_deref(), Some("cannot wait for something to do"));
}

#[test]
fn restore_pauses_until_a_hangup() {
    let mut world = World::tuning(task("abt"));
    world.feed(Event::Asked(Request::Restore));
    let Some(Reply::Restored(restored)) = world.replies.pop() else { panic!("it is restored") };
    assert_eq!(restored.settings, ["tcp_rmem (network namespace blue)"]);
    let paused = super::telling::PAUSED.to_owned();
    assert_eq!(world.log.last(), Some(&paused));
    assert_eq!(world.notices, [Notice::Status(paused.clone())]);
    world.did.clear();
    world.run(MINUTE);
    assert!(world.did.is_empty(), "nothing is touched: {:?}", world.did);
    world.feed(Event::Asked(Request::Status));
    assert!(world.facts.as_ref().expect("it answers").paused);

    world.configurations.extend([Err(failure("wrong")), Ok(task("abt"))]);
    world.feed(Event::Hangup);
    world.run(MINUTE);
    assert_eq!(world.did, ["read"], "as it was: paused");
    assert_eq!(world.notices.last(), Some(&Notice::Ready(paused)));
    world.feed(Event::Hangup);
    assert_eq!(world.readies(), 2);
    world.goes_on();
}

#[test]
fn a_reload_from_a_pause_that_fails_stays_paused_with_nothing_raised() {
    let mut world = World::tuning(task("abt"));
    world.feed(Event::Asked(Request::Restore));
    world.did.clear();
    world.configurations.push_back(Ok(task("abt")));
    world.loads.push_back(Err(failure("EAGAIN")));
    world.feed(Event::Hangup);
    assert_eq!(world.did.last().map(String::as_str), Some("lower"));
    world.did.clear();
    world.run(MINUTE);
    assert!(world.did.is_empty(), "{:?}", world.did);
}

#[test]
fn bounds_that_cannot_be_checked_are_told_once_for_each_cause() {
    let mut world = World::tuning(task("abt"));
    let mut told = Vec::new();
    for causes in [&["full"][..], &["full"], &["gone"], &[], &["gone"]] {
        // No other line of the kind keeps this one out of the log.
        world.now += MINUTE;
        let seen = causes.iter().map(|cause| ("blue".to_owned(), Err(failure(cause))));
        world.feed(Event::MaximaSeen(seen.collect()));
        told.push(std::mem::take(&mut world.log).len());
    }
    assert_eq!(told, [1, 0, 1, 0, 1]);
    assert_eq!(world.daemon.counts.refused_bounds, 4, "the metrics show that it lasts");
}

#[test]
fn pressure_comes_and_goes() {
    let mut world = World::tuning(task("abt"));
    let budget = task("abt").plan.budget;
    let mut busy = flow(1, 10_000);
    busy.last_buffer = Bytes::ZERO;
    busy.sample.send_queued = budget + Bytes(1);
    world.flows = vec![busy];
    world.run(Micros::from_secs(11));
    assert!(world.shares.last().unwrap().1.pressure);
    assert!(world.log.iter().any(|line| line.starts_with("memory pressure begins")), "{:?}", world.log);
    world.flows[0].sample.send_queued = Bytes::ZERO;
    world.run(Micros::from_secs(1));
    assert!(!world.shares.last().unwrap().1.pressure);
    assert!(world.log.iter().any(|line| line.starts_with("memory pressure ends")), "{:?}", world.log);
}

#[test]
fn the_hosts_own_pressure_is_told_once() {
    let mut world = World::tuning(task("abt"));
    let (held, low, pressure) = (Bytes(9_000_000), Bytes(6_000_000), Bytes(8_000_000));
    world.host = Some(TcpMemory { held, low, pressure });
    world.run(MINUTE);
    let told: Vec<_> = world.log.iter().filter(|line| line.starts_with("memory pressure")).collect();
    let begins =
        "memory pressure begins: host: tcp_mem is above its pressure mark: TCP holds 9.00 MB of 8.00 MB; ";
    assert!(matches!(told[..], [one] if one.starts_with(begins)), "{told:?}");
}

#[test]
fn a_namespace_that_a_connection_is_in_is_looked_for_at_once_and_only_once() {
    let mut world = World::tuning(task("abt"));
    world.run(Micros::from_millis(200));
    world.did.clear();
    let mut stranger = flow(1, 0);
    stranger.origin.netns = 99;
    world.flows = vec![stranger];
    let found = Found {
        new: vec![("green".to_owned(), Vec::new())],
        known: BTreeSet::from([0, 99]),
        ..Found::default()
    };
    world.found.push_back(Ok(found));
    world.run(Micros::from_millis(700));
    assert_eq!(world.did, ["discover abt (send), kernel (receive)", "sweep"]);
    assert!(world.log.contains(&"network namespace green found".to_owned()));

    let gone = Found { gone: vec!["green".to_owned()], known: BTreeSet::from([0]), ..Found::default() };
    world.found.push_back(Ok(gone));
    world.flows.clear();
    world.run(Micros::from_secs(12));
    assert!(
        world.log.iter().any(|line| line.contains("green is gone") || line.contains("on network namespaces")),
        "{:?}",
        world.log
    );
}

#[test]
fn cgroups_of_groups_are_looked_for_with_namespaces_and_what_comes_is_swept() {
    let mut world = World::tuning(grouped("abt"));
    world.run(Micros::from_secs(4));
    world.did.clear();
    world.run(Micros::from_secs(2));
    assert_eq!(world.did, ["regroup"]);
    let found = vec!["group db: cgroup /db found".to_owned()];
    world.regrouped.push_back(Regrouped { found, passed_on: 3, ..Regrouped::default() });
    world.run(Micros::from_secs(5));
    assert_eq!(world.did[1..], ["regroup", "sweep"]);
    let told = "group db: cgroup /db found; 3 connections passed on to their groups";
    assert!(world.log.iter().any(|line| line == told), "{:?}", world.log);

    let found = (1..=20).map(|number| format!("group db: cgroup /db{number} found")).collect();
    let refused = vec!["cgroup /x stays".to_owned(), "cgroup /y stays".to_owned()];
    world.regrouped.push_back(Regrouped { found, refused, ..Regrouped::default() });
    world.run(Micros::from_secs(5));
    let told = world.log.iter().find(|line| line.contains("/db1 ")).expect("it is told");
    assert!(told.ends_with("cgroup /db16 found; 4 more cgroups"), "{told}");
    assert!(world.log.iter().any(|line| line == "cgroup /x stays; cgroup /y stays"), "{:?}", world.log);

    // Connections in a newly found namespace may be in a group.
    let new = vec![("green".to_owned(), Vec::new())];
    world.found.push_back(Ok(Found { new, known: [0].into(), ..Found::default() }));
    world.did.clear();
    world.run(Micros::from_secs(5));
    assert_eq!(world.did, ["discover abt (send), kernel (receive)", "settle", "sweep"]);
}

#[test]
fn a_reload_that_adds_or_removes_a_group_keeps_what_the_rest_has_set() {
    let mut world = World::tuning(task("abt"));
    world.configurations.extend([Ok(grouped("abt")), Ok(grouped("drs")), Ok(task("drs"))]);
    for expected in ["load fresh inheriting", "load inheriting fresh", "load inheriting"] {
        world.did.clear();
        world.feed(Event::Hangup);
        assert!(world.did.contains(&expected.to_owned()), "{expected}: {:?}", world.did);
        world.goes_on();
    }
}

#[test]
fn a_sign_of_life_comes_three_times_in_the_watchdogs_time() {
    let mut world = World::with_watchdog(task("abt"), Micros::from_secs(30));
    world.feed(Event::Begin);
    world.run(MINUTE);
    let alive = world.notices.iter().filter(|notice| **notice == Notice::Alive).count();
    assert!((6..=8).contains(&alive), "{alive} in a minute");
    // A paused daemon sends signs of life as well.
    world.feed(Event::Asked(Request::Restore));
    world.notices.clear();
    world.run(MINUTE);
    assert!(world.notices.iter().filter(|notice| **notice == Notice::Alive).count() >= 6);
}

#[test]
fn the_administrators_change_is_told_and_one_that_programs_know_loads_them_again() {
    let change =
        |setting: Setting, text: &str| Change { setting, value: Value::parse(setting, text).unwrap() };
    let mut world = World::tuning(task("abt"));
    world.seen = vec![("blue".to_owned(), Ok(vec![change(Setting::TcpRmem, "1 2 3")]))];
    world.run(Micros::from_secs(2));
    let told = "net.ipv4.tcp_rmem = 1 2 3 in network namespace blue was set by somebody else and stays";
    assert!(world.log.contains(&told.to_owned()), "{:?}", world.log);
    assert!(!world.did.iter().any(|one| one.starts_with("load")));

    for outcome in [Ok(Regrouped::default()), Err(failure("EAGAIN"))] {
        world.did.clear();
        world.loads.push_back(outcome);
        world.seen = vec![("blue".to_owned(), Ok(vec![change(Setting::WmemMax, "7")]))];
        world.run(Micros::from_secs(2));
        assert!(world.did.contains(&"load inheriting".to_owned()), "{:?}", world.did);
        world.goes_on();
    }
    assert_eq!(world.readies(), 0, "nobody asked for it");
}

#[test]
fn requests_of_the_kernels_side_are_gathered_for_a_moment() {
    let mut world = World::tuning(task("abt"));
    assert!(world.daemon.grants(world.now));
    world.feed(Event::SizesRequested);
    assert_eq!(world.did, ["grant"]);
    assert!(!world.daemon.grants(world.now));
    let next = world.daemon.next(world.now);
    assert!(next <= world.now + Micros::from_millis(50), "it wakes for the next ones");
    assert!(world.daemon.grants(world.now + Micros::from_millis(50)));
}

#[test]
fn a_client_is_answered_whatever_the_daemon_does() {
    let mut world = World::tuning(task("abt"));
    world.configurations.push_back(Ok(task("drs")));
    world.during_load.extend([Event::Asked(Request::Restore), Event::Asked(Request::Status)]);
    world.feed(Event::Hangup);
    assert!(
        matches!(&world.replies[..], [Reply::Error(busy)] if busy.contains("busy")),
        "{:?}",
        world.replies
    );
    assert!(world.facts.is_some());
}

#[test]
fn idle_connections_are_swept_and_those_that_stay_idle_do_not_keep_it_busy() {
    let mut world = World::tuning(task("abt"));
    // The first sweep did not meet the connection.
    world.run(Micros::from_secs(1));
    let size = Bytes(1 << 20);
    let idle = FlowState { set_send_buffer: Some(size), swept_at: Some(world.now), ..flow(1, 0) };
    world.flows = vec![idle];
    world.run(Micros::from_secs(58));
    let sweeps = world.did.iter().filter(|one| *one == "sweep").count();
    assert_eq!(sweeps, 1, "it could do nothing about it, and waits for the minute");
}

/// Returns the number of an event that may come at any time.
fn any_event() -> impl Strategy<Value = u8> {
    0..12_u8
}

proptest! {
    #[test]
    fn whatever_happens_everything_is_given_back_once_before_the_end(
        events in prop::collection::vec(any_event(), 1..60),
        outcomes in prop::collection::vec(any::<bool>(), 0..60),
    ) {
        let mut world = World::new(task("abt"));
        let mut outcomes = outcomes.into_iter();
        let mut fails = || !outcomes.next().unwrap_or(true);
        world.feed(Event::Begin);
        for event in events {
            if world.ended.is_some() { break }
            world.configurations = std::collections::VecDeque::from([
                if fails() { Err(failure("wrong")) } else { Ok(task(if fails() { "abt" } else { "drs" })) }
            ]);
            world.loads = std::collections::VecDeque::from([if fails() { Err(failure("no engine")) } else { Ok(Regrouped::default()) }]);
            match event {
                0..=2 => world.feed(Event::Hangup),
                3 => world.during_load.push_back(Event::Hangup),
                4 => world.during_load.push_back(Event::Asked(Request::Restore)),
                5 => world.feed(Event::Asked(Request::Restore)),
                6 => world.feed(Event::SizesRequested),
                7 if fails() => world.feed(Event::Failed(failure("lost"))),
                8 if fails() => world.during_load.push_back(Event::Stop),
                9 => {
                    let work = if fails() { Work::Sample } else { Work::Share };
                    world.failures.insert(work, 2);
                }
                _ => world.run(Micros::from_secs(3)),
            }
            // The daemon tunes with an engine, or is paused without one.
            prop_assert!(world.ended.is_some() || world.is_settled(), "{:?}", world.did);
        }
        world.feed(Event::Stop);
        prop_assert!(world.ended.is_some());
        prop_assert_eq!(world.did.last().map(String::as_str), Some("give back"));
        prop_assert!(!world.engine, "no engine is left");
        prop_assert_eq!(world.notices.iter().filter(|one| **one == Notice::Stopping).count(), 1);
    }
}

#[test]
fn the_first_shares_are_those_of_the_newcomer() {
    let world = World::tuning(task("abt"));
    assert_ne!(world.loaded_with, Shares::default(), "a bound is there before the first sample");
}
