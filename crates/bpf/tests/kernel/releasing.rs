//! Sockets given back to the kernel.

use std::os::fd::AsFd;

use bufwise_bpf::{Cgroup, Config, ReceiveRule, Released, SendRule};
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::Bytes;

use crate::support::{Connection, Netns, engine_on, root, wait_for};

/// Two segments of loopback: with less the peer would wait for its timers.
const SIZE: Bytes = Bytes(140_000);

fn fixed() -> Config {
    Config {
        send: SendRule::Fixed,
        receive: ReceiveRule::Fixed,
        fixed: SIZE,
        send_cap: SIZE,
        receive_cap: SIZE,
        ..Config::default()
    }
}

#[test]
fn root_released_connections_are_unlocked_and_grow_by_autotuning_again() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let mut engine = engine_on(&fixed(), &cgroup);
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    connection.send(1_000_000);
    connection.receive(300_000);
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock { send: true, receive: true });
    assert_eq!(options::send_buffer(client).unwrap(), SIZE.times(2));
    assert_eq!(options::window_clamp(client).unwrap(), SIZE);
    // No sweep has noted the socket's inode: the socket is found all the same.
    let released = engine.release_all().unwrap();
    assert_eq!(released, Released { released: 1, ..Released::default() });
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock::default());
    assert_eq!(engine.flows().unwrap(), []);
    let first = options::receive_buffer(client).unwrap();
    wait_for("growth of the receive buffer", || {
        connection.receive(20_000_000);
        (options::receive_buffer(client).unwrap() > first).then_some(())
    });
    wait_for("growth of the send buffer", || {
        connection.send(20_000_000);
        (options::send_buffer(client).unwrap() > SIZE.times(4)).then_some(())
    });
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock::default());
}

#[test]
fn root_a_connection_that_was_fast_gets_room_for_what_it_used_to_receive() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    let most = wait_for("autotuning of a fast connection", || {
        connection.receive(20_000_000);
        Some(Bytes(options::tcp_info(client).unwrap().rcv_space.into())).filter(|most| *most > SIZE.times(2))
    });
    let mut engine = engine_on(&fixed(), &cgroup);
    assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 1);
    // The size is beyond what the programs may set, so a request keeps it at first.
    wait_for("shrinking of the receive buffer", || {
        connection.receive(2_000_000);
        connection.grant_receive_buffer(&mut engine);
        (options::receive_buffer(client).unwrap() == SIZE.times(2)).then_some(())
    });
    assert_eq!(engine.release_all().unwrap().released, 1);
    // Autotuning grows the buffer when a round trip brings more than ever before: the window must allow that.
    wait_for("window", || {
        connection.receive(2_000_000);
        let offered = Bytes(options::tcp_info(&connection.server).unwrap().snd_wnd.into());
        (offered > most).then_some(())
    });
}

#[test]
fn root_a_released_connection_is_sized_by_the_settings_of_its_own_namespace() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let mut engine = engine_on(&fixed(), &cgroup);
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    connection.send(1_000_000);
    connection.receive(300_000);
    // First size and bound in one: whatever the connection needs, this is what the kernel would have given.
    netns.inside(|| {
        std::fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 5000000 5000000").unwrap();
        std::fs::write("/proc/sys/net/ipv4/tcp_rmem", "4096 7000000 7000000").unwrap();
    });
    assert_eq!(engine.release_all().unwrap().released, 1);
    assert_eq!(options::send_buffer(&connection.client).unwrap(), Bytes(5_000_000));
    assert_eq!(options::receive_buffer(&connection.client).unwrap(), Bytes(7_000_000));
}

#[test]
fn root_a_buffer_that_was_granted_after_the_last_sample_is_given_back() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    // As if autotuning had grown the send buffer beyond what the programs may set.
    netns.inside(|| std::fs::write("/proc/sys/net/ipv4/tcp_wmem", "4096 200000 4194304").unwrap());
    let config = Config { send: SendRule::Fixed, fixed: SIZE, send_cap: Bytes(60_000), ..Config::default() };
    let mut engine = engine_on(&config, &cgroup);
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    let asked = engine.requests().unwrap().iter().find_map(|request| request.send_buffer);
    assert_eq!(asked, Some(SIZE.times(2)));
    options::force_send_buffer(client, SIZE).unwrap();
    // No data move, so no callback sees the grant.
    assert_eq!(connection.flow(&engine).unwrap().set_send_buffer, None);
    assert_eq!(engine.release_all().unwrap(), Released { released: 1, ..Released::default() });
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock::default());
}

#[test]
fn root_what_bufwise_did_not_set_is_not_touched_by_a_release() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let config = Config { send: SendRule::Abt, send_cap: Bytes(4 << 20), ..Config::default() };
    let mut engine = engine_on(&config, &cgroup);
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    options::set_receive_buffer(client, Bytes(60_000)).unwrap();
    connection.send(1_000_000);
    let flow = connection.flow(&engine).unwrap();
    assert!(flow.set_send_buffer.is_some() && flow.set_receive_buffer.is_none());
    engine.release_all().unwrap();
    assert_eq!(options::receive_buffer(client).unwrap(), Bytes(120_000));
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock { send: false, receive: true });
}
