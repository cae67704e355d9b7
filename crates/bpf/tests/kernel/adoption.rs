//! Connections that are older than the programs, and records of connections that no longer exist.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::ops::RangeInclusive;
use std::os::fd::AsFd;

use bufwise_bpf::{Cgroup, Config, Engine, Order, Owned, ReceiveRule, SendRule, Shares, Swept, hierarchy};
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::{Bytes, Micros};
use socket2::SockRef;

use crate::support::{Connection, Netns, disconnect, engine_on, in_turn, root, wait_for};

const HOUR: Micros = Micros(3_600_000_000);

/// The same size on both sides.
pub(crate) fn fixed(size: u64) -> Config {
    let cap = Bytes(4 << 20);
    Config {
        send: SendRule::Fixed,
        receive: ReceiveRule::Fixed,
        fixed: Bytes(size),
        send_cap: cap,
        receive_cap: cap,
        ..Config::default()
    }
}

/// Ways to adopt: by the iterator where the kernel allows it (Linux 6.12), or by user space, as on older kernels.
pub(crate) const WAYS: [fn(&mut Engine); 2] = [|_| (), Engine::avoid_iterator];

pub(crate) fn engine_by(way: fn(&mut Engine), config: &Config, group: &impl AsFd) -> Engine {
    let mut engine = engine_on(config, group);
    way(&mut engine);
    engine
}

#[test]
fn root_connections_from_before_are_adopted_in_every_family_and_namespace() {
    if !root() {
        return;
    }
    WAYS.into_iter().for_each(adopted_in_every_family_and_namespace);
}

fn adopted_in_every_family_and_namespace(way: fn(&mut Engine)) {
    let cgroup = Cgroup::create().unwrap();
    let namespaces = [Netns::new(), Netns::new()];
    let connections = namespaces
        .each_ref()
        .map(|netns| ["127.0.0.1", "::1", "::ffff:127.0.0.1"].map(|to| Connection::open(&cgroup, netns, to)));
    for connection in connections.iter().flatten() {
        connection.send(5_000);
        connection.receive(3_000);
    }
    let mut engine = engine_by(way, &fixed(100_000), &cgroup);
    assert_eq!(engine.flows().unwrap(), []);
    for (netns, connections) in namespaces.iter().zip(&connections) {
        let swept = engine.sweep(netns.as_fd()).unwrap();
        assert_eq!(swept, Swept { seen: 3, adopted: 3, given_back: 0 });
        assert_eq!(engine.sweep(netns.as_fd()).unwrap(), Swept { adopted: 0, ..swept });
        for connection in connections {
            let flow = connection.flow(&engine).unwrap();
            assert_eq!((flow.local, flow.peer), connection.addresses());
            assert!(flow.origin.adopted && !flow.closed && flow.owned == Owned::default());
            // The SYN counts as one.
            assert_eq!((flow.origin.acked, flow.origin.received), (Bytes(5_001), Bytes(3_000)));
            assert_eq!(flow.origin.netns, netns.inode());
            let inode = nix::sys::stat::fstat(&connection.client).unwrap().st_ino;
            assert_eq!(flow.origin.inode, Some(inode));
        }
    }
    for connection in connections.iter().flatten() {
        connection.send(200_000);
        connection.receive(200_000);
        let flow = wait_for("tuned connection", || {
            engine.poll().unwrap();
            let flow = connection.flow(&engine).unwrap();
            (flow.set_send_buffer.is_some() && flow.set_window.is_some()).then_some(flow)
        });
        assert_eq!((flow.set_send_buffer, flow.set_window), (Some(Bytes(200_000)), Some(Bytes(100_000))));
        assert_eq!(options::send_buffer(&connection.client).unwrap(), Bytes(200_000));
    }
}

#[test]
fn root_connections_beyond_the_bound_stay_the_kernels_and_are_no_error() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let open = || Connection::open(&cgroup, &netns, "127.0.0.1");
    let before = [open(), open(), open()];
    for way in WAYS {
        let mut engine = engine_by(way, &Config { max_flows: 2, ..fixed(100_000) }, &cgroup);
        assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 2, "{way:?}");
        let late = open();
        late.send(50_000);
        assert_eq!((engine.flows().unwrap().len(), late.flow(&engine)), (2, None), "{way:?}");
        for cookie in 1..5 {
            engine.order(&[(cookie, Order { demand: Bytes(10_000), limit: None })]).unwrap();
        }
        engine.sweep(netns.as_fd()).unwrap();
        let known = before.iter().filter(|connection| connection.flow(&engine).is_some());
        assert_eq!(known.count(), 2, "{way:?}");
        engine.release_all().unwrap();
    }
}

#[test]
fn root_what_the_kernel_had_offered_is_taken_after_adoption() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let rules = [ReceiveRule::Fixed, ReceiveRule::Drs, ReceiveRule::Sobas];
    for (way, receive) in WAYS.into_iter().flat_map(|way| rules.map(|rule| (way, rule))) {
        let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
        let offered = wait_for("autotuning", || {
            connection.receive(20_000_000);
            let window = options::tcp_info(&connection.server).unwrap().snd_wnd;
            usize::try_from(window).ok().filter(|window| *window > 1_500_000)
        });
        // No more than any host allows without root: a window that is wider is kept by a request.
        let config = Config { receive, receive_cap: Bytes(200_000), ..fixed(100_000) };
        let mut engine = engine_by(way, &config, &cgroup);
        assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 1);
        let flow = wait_for("the buffer that was there", || {
            connection.receive(1_000);
            connection.grant_receive_buffer(&mut engine);
            engine.poll().unwrap();
            connection.flow(&engine).filter(|flow| flow.set_receive_buffer.is_some())
        });
        assert!(flow.set_window.is_some(), "{receive:?}: {flow:?}");
        // The peer sends half of the offered window at once, and all of it arrives although nothing is read. (A segment may
        // have to be repeated: not even the kernel knows in advance how much memory a full window takes.)
        let data = vec![7; offered / 2];
        (&connection.server).write_all(&data).unwrap();
        (&connection.client).read_exact(&mut vec![0; data.len()]).unwrap();
    }
}

#[test]
fn root_buffers_that_the_application_set_are_respected_when_adopted() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    options::set_send_buffer(&connection.client, Bytes(70_000)).unwrap();
    let config = fixed(100_000);
    for (way, take_over) in WAYS.into_iter().flat_map(|way| [false, true].map(|take_over| (way, take_over))) {
        let mut engine = engine_by(way, &Config { take_over, ..config }, &cgroup);
        engine.sweep(netns.as_fd()).unwrap();
        connection.send(200_000);
        connection.receive(200_000);
        let flow = wait_for("tuned connection", || {
            engine.poll().unwrap();
            connection.flow(&engine).filter(|flow| flow.set_window.is_some())
        });
        assert!(flow.origin.locked.send && flow.origin.send_buffer == Bytes(140_000));
        assert_eq!(flow.owned, Owned { send: !take_over, receive: false });
        let size = if take_over { 200_000 } else { 140_000 };
        assert_eq!(options::send_buffer(&connection.client).unwrap(), Bytes(size));
        engine.release_all().unwrap();
        // It gets back what it had set, locked as before.
        assert_eq!(options::send_buffer(&connection.client).unwrap(), Bytes(140_000));
        let lock = options::buffer_lock(&connection.client).unwrap();
        assert!(lock.send && !lock.receive);
    }
}

#[test]
fn root_connections_outside_the_watched_groups_are_not_adopted() {
    if !root() {
        return;
    }
    let (watched, other, netns) = (Cgroup::create().unwrap(), Cgroup::create().unwrap(), Netns::new());
    let _connection = Connection::open(&other, &netns, "127.0.0.1");
    for way in WAYS {
        let mut engine = engine_by(way, &Config::default(), &watched);
        assert_eq!(engine.sweep(netns.as_fd()).unwrap(), Swept::default());
    }
}

#[test]
fn root_the_root_of_the_hierarchy_is_every_group() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    for way in WAYS {
        let mut engine = engine_by(way, &Config::default(), &hierarchy().unwrap());
        // The other end is the test's, which is in some group too.
        assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 2);
        assert!(connection.flow(&engine).unwrap().origin.adopted);
    }
}

#[test]
fn root_entries_of_connections_that_went_unseen_are_forgotten_and_no_others() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let (stays, goes) =
        (Connection::open(&cgroup, &netns, "127.0.0.1"), Connection::open(&cgroup, &netns, "127.0.0.1"));
    let mut engine = engine_on(&Config::default(), &cgroup);
    assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 2);
    engine.detach();
    drop(goes);
    assert_eq!(engine.forget_unseen(HOUR).unwrap(), 0, "no sweep has missed it yet");
    wait_for("end of the connection", || {
        engine.sweep(netns.as_fd()).unwrap();
        (engine.forget_unseen(HOUR).unwrap() == 1).then_some(())
    });
    let left: Vec<u64> = engine.flows().unwrap().iter().map(|flow| flow.cookie).collect();
    assert_eq!(left, [stays.cookie]);
    assert_eq!(
        engine.forget_unseen(Micros::ZERO).unwrap(),
        1,
        "no sweep tells, and it was not seen for so long"
    );
}

#[test]
fn root_user_space_leaves_autotuning_alone_until_a_share_binds_and_gives_it_back() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let config = Config { send: SendRule::Abt, ..Config::default() };
    let mut engine = engine_by(Engine::avoid_iterator, &config, &cgroup);
    assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 1);
    let mut set_under = |shares: Shares, wanted: Option<Bytes>| {
        let set = wait_for("another size", || {
            // Shares of a heartbeat that is five seconds old do not count.
            engine.heartbeat(shares).unwrap();
            connection.send(3_000_000);
            engine.poll().unwrap();
            let flow = connection.flow(&engine).filter(|flow| flow.decided_send.is_some())?;
            assert_eq!(flow.owned, Owned::default());
            (flow.set_send_buffer == wanted).then_some(flow.set_send_buffer)
        });
        (set, options::buffer_lock(&connection.client).unwrap().send)
    };
    let free = Shares::default();
    assert_eq!(set_under(free, None), (None, false));
    let level = Some(Bytes(300_000));
    assert_eq!(set_under(Shares { level, ..free }, level), (level, true));
    assert_eq!(set_under(free, None), (None, false));
}

#[test]
fn root_user_space_gives_the_buffers_of_silent_connections_back_and_marks_those_that_are_gone() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    // Longer than a host may stop this machine between the data and the next pass, of five a second.
    let config = Config { send: SendRule::Eq, idle: Micros(1_500_000), ..Config::default() };
    let shares = Shares { level: Some(Bytes(150_000)), ..Shares::default() };
    let mut engine = engine_by(Engine::avoid_iterator, &config, &cgroup);
    engine.heartbeat(shares).unwrap();
    assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 1);
    let idle = 2 * Config::IDLE_SIZE.0;
    // If the peer has offered a wide window, the writer's last buffer is larger, and the limit of a share lower.
    let share = idle + 1..=150_000;
    let sizes = |engine: &mut Engine, wanted: RangeInclusive<u64>| {
        engine.heartbeat(shares).unwrap();
        engine.poll().unwrap();
        wanted.contains(&connection.flow(engine)?.set_send_buffer?.0).then_some(())
    };
    connection.send(100_000);
    wait_for("its share", || sizes(&mut engine, share.clone()));
    wait_for("the idle size", || sizes(&mut engine, idle..=idle));
    assert!(connection.flow(&engine).unwrap().given_back);
    connection.send(100_000);
    wait_for("its share again", || sizes(&mut engine, share.clone()));
    let cookie = connection.cookie;
    drop(connection);
    wait_for("the end", || {
        engine.poll().unwrap();
        engine.flows().unwrap().iter().find(|flow| flow.cookie == cookie).filter(|flow| flow.closed).map(drop)
    });
}

#[test]
fn root_user_space_sizes_on_what_that_of_another_engine_had() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let mut before = engine_by(Engine::avoid_iterator, &fixed(100_000), &cgroup);
    assert_eq!(before.sweep(netns.as_fd()).unwrap().adopted, 1);
    let has = |engine: &mut Engine, size: u64| {
        wait_for("its size", || {
            connection.send(10_000);
            engine.poll().unwrap();
            connection.flow(engine).filter(|flow| flow.set_send_buffer == Some(Bytes(size)))
        })
    };
    has(&mut before, 200_000);
    before.detach();
    let mut engine = Engine::load(&fixed(120_000)).unwrap();
    engine.avoid_iterator();
    assert_eq!(engine.inherit(&before.entries().unwrap()).unwrap(), 1);
    drop(before);
    engine.attach(cgroup.as_fd()).unwrap();
    assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 0);
    assert_eq!(engine.forget_unseen(HOUR).unwrap(), 0);
    assert_eq!(has(&mut engine, 240_000).owned, Owned::default());
    assert_eq!(engine.release_all().unwrap().released, 1);
    assert!(!options::buffer_lock(&connection.client).unwrap().send);
}

/// A daemon attaches its engine again if it has given everything back for a reload that fails afterwards.
#[test]
fn root_user_space_adopts_a_connection_anew_that_was_given_back() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let mut engine = engine_by(Engine::avoid_iterator, &fixed(100_000), &cgroup);
    for _ in 0..2 {
        engine.heartbeat(Shares::default()).unwrap();
        assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 1);
        let flow = wait_for("its size", || {
            connection.send(10_000);
            engine.poll().unwrap();
            connection.flow(&engine).filter(|flow| flow.set_send_buffer == Some(Bytes(200_000)))
        });
        assert_eq!(flow.owned, Owned::default());
        assert_eq!(engine.release_all().unwrap().released, 1);
        engine.attach(cgroup.as_fd()).unwrap();
    }
}

#[test]
fn root_buffers_of_a_socket_that_is_connected_again_are_still_bufwises() {
    if !root() {
        return;
    }
    let rules = [
        // Two segments of loopback: with less the peer would wait for its timers.
        fixed(140_000),
        Config {
            record_after: Config::SHORT_CONNECTION,
            send: SendRule::Abt,
            receive: ReceiveRule::Drs,
            ..fixed(0)
        },
    ];
    for (config, is_read) in rules.into_iter().flat_map(|config| [(config, false), (config, true)]) {
        let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
        let mut engine = engine_on(&config, &cgroup);
        engine.expect_only_new().unwrap();
        engine.heartbeat(Shares::default()).unwrap();
        let mut connection = Connection::open(&cgroup, &netns, "127.0.0.1");
        let sized = |connection: &Connection, engine: &mut Engine| {
            connection.send(1_000_000);
            connection.receive(1_000_000);
            let flow = connection.flow(engine).unwrap();
            let is_sized = flow.set_send_buffer.is_some() && flow.set_receive_buffer.is_some();
            assert!(!flow.closed && is_sized, "{flow:?}");
            assert_eq!((flow.owned, flow.origin.locked), (Owned::default(), Owned::default()));
            // Five seconds after a heartbeat the kernel's part would forget a closed connection.
            engine.heartbeat(Shares::default()).unwrap();
        };
        sized(&connection, &mut engine);
        let listener = netns.inside(|| {
            let _turn = in_turn();
            TcpListener::bind("127.0.0.1:0").unwrap()
        });
        disconnect(&connection.client);
        assert!(connection.flow(&engine).unwrap().closed);
        // Over a long path, user space reads and forgets the closed record before the next one is made.
        if is_read {
            engine.forget(connection.cookie);
        }
        SockRef::from(&connection.client).connect(&listener.local_addr().unwrap().into()).unwrap();
        connection.server = listener.accept().unwrap().0;
        sized(&connection, &mut engine);
        engine.release_all().unwrap();
        assert_eq!(options::buffer_lock(&connection.client).unwrap(), BufferLock::default());
    }
}
