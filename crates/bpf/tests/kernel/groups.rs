//! Programs of several groups on one cgroup: each takes the connections of its group, whichever came first.

use std::collections::HashMap;
use std::os::fd::AsFd;

use bufwise_bpf::{Cgroup, Conditions, Config, Engine, Matching, Swept};
use nix::sys::stat::fstat;

use crate::support::{Connection, Netns, root};

/// Start of a bash command that gives bash another name.
const RENAMED: &str = "printf renamed >/proc/$$/comm &&";

fn asking(change: impl FnOnce(&mut Conditions)) -> Conditions {
    let mut conditions = Conditions::default();
    change(&mut conditions);
    conditions
}

/// Returns an engine for each group and one for the rest, attached to the cgroup in this order, or reversed.
fn engines(groups: &[Conditions], cgroup: &Cgroup, is_reversed: bool) -> Vec<Engine> {
    let matching = Matching::new(groups).unwrap();
    let load = |number| {
        let own = (number < groups.len()).then_some(number);
        Engine::load_for(&Config::default(), &matching.of_group(own)).unwrap()
    };
    let mut engines: Vec<Engine> = (0..=groups.len()).map(load).collect();
    let mut attach = |engine: &mut Engine| engine.attach(cgroup.as_fd()).unwrap();
    if is_reversed {
        engines.iter_mut().rev().for_each(&mut attach);
    } else {
        engines.iter_mut().for_each(&mut attach);
    }
    engines
}

/// Returns which of the engines have the connection.
fn takers(connection: &Connection, engines: &[Engine]) -> Vec<usize> {
    (0..engines.len()).filter(|number| connection.flow(&engines[*number]).is_some()).collect()
}

#[test]
fn root_a_new_connection_is_taken_by_the_first_group_that_has_its_peer_and_program() {
    if !root() {
        return;
    }
    let groups = [
        asking(|group| {
            group.peers = vec!["127.0.0.2".parse().unwrap()];
            group.programs = vec!["re*ed".parse().unwrap()];
        }),
        asking(|group| group.programs = vec!["renamed".parse().unwrap(), "other".parse().unwrap()]),
        asking(|group| group.peers = vec!["127.0.0.2/31".parse().unwrap(), "::1".parse().unwrap()]),
    ];
    let netns = Netns::new();
    for is_reversed in [false, true] {
        let cgroup = Cgroup::create().unwrap();
        let engines = engines(&groups, &cgroup, is_reversed);
        for (first, to, taker) in [
            (RENAMED, "127.0.0.2", 0),
            (RENAMED, "127.0.0.3", 1),
            ("", "127.0.0.3", 2),
            ("", "::1", 2),
            ("", "::ffff:127.0.0.2", 2),
            ("", "127.0.0.1", 3),
        ] {
            let connection = Connection::open_after(first, &cgroup, &netns, to);
            assert_eq!(takers(&connection, &engines), [taker], "{first} {to}");
        }
    }
}

#[test]
fn root_existing_connections_are_adopted_by_the_engine_of_their_group_alone() {
    if !root() {
        return;
    }
    let (netns, cgroup) = (Netns::new(), Cgroup::create().unwrap());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let port = connection.addresses().1.port().to_string();
    let groups = [
        asking(|group| group.programs = vec!["no-such-program".parse().unwrap()]),
        asking(|group| group.ports = vec![port.parse().unwrap()]),
    ];
    let mut engines = engines(&groups, &cgroup, false);
    let swept = |engines: &mut [Engine]| -> Vec<u64> {
        let sweep = |engine: &mut Engine| engine.sweep(netns.as_fd()).unwrap().adopted;
        engines.iter_mut().map(sweep).collect()
    };
    assert_eq!(swept(&mut engines), [0, 1, 0]);

    // Once its program is known, the first group takes the connection as soon as the second gives it away.
    for engine in &engines {
        engine.set_program_groups(connection.client.as_fd(), 0b1).unwrap();
    }
    engines[1].hand_over(|flow| flow.cookie == connection.cookie).unwrap();
    assert_eq!(swept(&mut engines), [1, 0, 0]);
    assert_eq!(connection.flow(&engines[0]).unwrap().program_groups, Some(0b1));
}

#[test]
fn root_a_cgroup_counts_once_the_programs_are_told_of_it() {
    if !root() {
        return;
    }
    let (netns, cgroup) = (Netns::new(), Cgroup::create().unwrap());
    let groups = [asking(|group| group.cgroup = "somewhere".parse().ok())];
    let mut engines = engines(&groups, &cgroup, false);
    let before = Connection::open(&cgroup, &netns, "127.0.0.1");
    assert_eq!(takers(&before, &engines), [1]);
    let inode = fstat(cgroup.as_fd()).unwrap().st_ino;
    for engine in &mut engines {
        engine.set_members(&HashMap::from([(inode, 0b1)])).unwrap();
    }
    let after = Connection::open(&cgroup, &netns, "127.0.0.1");
    assert_eq!(takers(&after, &engines), [0]);
    engines.iter_mut().for_each(|engine| engine.set_members(&HashMap::new()).unwrap());
    engines[0].hand_over(|_| true).unwrap();
    assert_eq!(engines[0].sweep(netns.as_fd()).unwrap(), Swept::default());
    assert_eq!(engines[1].sweep(netns.as_fd()).unwrap().adopted, 1);
    assert_eq!((takers(&before, &engines), takers(&after, &engines)), (vec![1], vec![1]));
}
