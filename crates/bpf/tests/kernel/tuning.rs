//! The programs see one cgroup's connections and no others, and size their buffers.

use std::collections::HashSet;
use std::io::Write as _;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_bpf::{Cgroup, Config, Engine, FlowState, Owned, ReceiveRule, SendRule, Shares};
use bufwise_socket::options::{self, BufferLock};
use bufwise_units::{Bytes, Micros};

use crate::support::{Connection, Netns, engine_on, in_turn, root, wait_for};

/// Sender and receiver of 50 MB over loopback, both in a group under these rules. iperf3 resets the connection once
/// enough was sent, so the last figures are a little short of it.
fn transfer(config: &Config, shares: Shares, host: &str) -> (FlowState, FlowState) {
    transfer_watched(config, shares, host, |_| {})
}

/// The same; `watch` sees the connections meanwhile, every few milliseconds.
fn transfer_watched(
    config: &Config,
    shares: Shares,
    host: &str,
    mut watch: impl FnMut(&[FlowState]),
) -> (FlowState, FlowState) {
    let cgroup = Cgroup::create().unwrap();
    let mut engine = engine_on(config, &cgroup);
    engine.heartbeat(shares).unwrap();
    let script = format!(
        "iperf3 -s -1 >/dev/null & until iperf3 -c {host} -n 50M >/dev/null 2>&1; do sleep 0.01; done; wait"
    );
    // Runs in a namespace of its own, in which the port is free, and with a time limit in case the server does not start.
    let mut shell = Command::new("timeout");
    let mut shell = Netns::new().inside(|| {
        let _turn = in_turn();
        cgroup.spawn(shell.args(["300", "sh", "-c", &script]).stdin(Stdio::null())).unwrap()
    });
    // The heartbeat goes on, or on a slow machine closed connections would be forgotten before they are read.
    let status = loop {
        match shell.try_wait().unwrap() {
            Some(status) => break status,
            None => thread::sleep(Duration::from_millis(5)),
        }
        engine.heartbeat(shares).unwrap();
        watch(&engine.flows().unwrap());
    };
    assert!(status.success(), "{status}");
    let flows = engine.flows().unwrap();
    let find = |sends: bool| {
        let moved =
            |flow: &&FlowState| if sends { flow.sample.bytes_acked } else { flow.sample.bytes_received };
        *flows
            .iter()
            .find(|flow| moved(flow) > Bytes(40_000_000))
            .unwrap_or_else(|| panic!("the transfer was not seen: {flows:?}"))
    };
    (find(true), find(false))
}

const FREE: Shares =
    Shares { level: None, newcomer: None, newest_at: Micros::ZERO, window: None, pressure: false };

#[test]
fn root_observing_changes_nothing() {
    if !root() {
        return;
    }
    let (sender, receiver) = transfer(&Config::default(), FREE, "127.0.0.1");
    for flow in [sender, receiver] {
        assert!(flow.closed && flow.samples >= 2, "{flow:?}");
        assert_eq!((flow.set_send_buffer, flow.set_receive_buffer, flow.set_window), (None, None, None));
        assert!(!flow.owned.send && !flow.owned.receive);
    }
    assert_eq!((sender.local, sender.peer), (receiver.peer, receiver.local));
    assert!(sender.initiator && !receiver.initiator);
}

#[test]
fn root_abt_follows_cwnd_within_its_share() {
    if !root() {
        return;
    }
    let config = Config { send: SendRule::Abt, send_cap: Bytes(4 << 20), ..Config::default() };
    // Each sample ends with a target of 2 to 4 of the windows that it saw, but for a sample while the application had nothing to
    // send: that raises no target.
    let is_under_way = |flow: &&FlowState| !flow.closed && flow.sample.bytes_acked > Bytes(1_000_000);
    let (sender, receiver) = wait_for("a sample in the middle of a transfer", || {
        let mut watched = 0;
        let ended = transfer_watched(&config, FREE, "127.0.0.1", |flows| {
            for flow in flows.iter().filter(is_under_way) {
                let (cwnd, target) = (flow.sample.cwnd, flow.net_target);
                watched += 1;
                assert!(target <= cwnd.times(4), "{target} for {cwnd}");
                assert!(cwnd.times(2) <= target || flow.sample.application_limits(), "{target} for {cwnd}");
            }
        });
        (watched > 0).then_some(ended)
    });
    assert!(sender.send_changes > 0 && receiver.set_window.is_none());
    let level = Bytes(200_000);
    let (sender, _) = transfer(&config, Shares { level: Some(level), ..FREE }, "::1");
    assert_eq!(sender.set_send_buffer, Some(level));
    // A share of less than three buffers is kept on the mean by a lower limit.
    let level = Bytes(60_000);
    let (sender, _) = transfer(&config, Shares { level: Some(level), ..FREE }, "127.0.0.1");
    assert!(sender.last_buffer.0 * 3 > level.0, "{}", sender.last_buffer);
    let limit = sender.set_send_buffer.unwrap();
    assert!(limit.0 >= 4_608 && limit < level, "{limit}");
}

#[test]
fn root_round_trips_of_a_sender_with_little_to_send_are_let_go() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let engine = engine_on(&Config { send: SendRule::Abt, ..Config::default() }, &cgroup);
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    connection.send(1_000);
    let before = connection.flow(&engine).unwrap();
    let began = Instant::now();
    for _ in 0..400 {
        connection.send(1_000);
    }
    let after = connection.flow(&engine).unwrap();
    // Each message is a round trip. Figures are renewed ten times a second, and when the queue has changed.
    let (samples, renewals) = (u64::from(after.samples - before.samples), 10 * began.elapsed().as_secs());
    assert!(samples < 100 + renewals, "{samples} samples of 400 round trips");
}

#[test]
fn root_windows_are_clamped_under_each_rule_of_the_receive_side() {
    if !root() {
        return;
    }
    let config = Config { receive: ReceiveRule::Drs, receive_cap: Bytes(4 << 20), ..Config::default() };
    let (sender, receiver) = transfer(&config, FREE, "127.0.0.1");
    assert!(sender.send_changes == 0 && receiver.window_changes > 0);
    assert!(receiver.set_window >= Some(receiver.drs_largest.times(2)), "{receiver:?}");
    // Loopback is a short path, on which the rule is DRS.
    let (sender, receiver) = transfer(&Config { receive: ReceiveRule::Fit, ..config }, FREE, "127.0.0.1");
    assert!(sender.send_changes == 0 && receiver.window_changes > 0);
    assert!(receiver.set_window >= Some(receiver.drs_largest.times(2)), "{receiver:?}");
    let config = Config { receive: ReceiveRule::Fixed, fixed: Bytes(300_000), ..config };
    let (_, receiver) = transfer(&config, FREE, "127.0.0.1");
    assert_eq!(receiver.set_window, Some(Bytes(300_000)));
    assert!(receiver.sample.rcv_wnd <= Bytes(300_000 + (1 << 14)), "{}", receiver.sample.rcv_wnd);
}

#[test]
fn root_what_the_programs_may_not_set_they_request() {
    if !root() {
        return;
    }
    let cgroup = Cgroup::create().unwrap();
    let config = Config {
        send: SendRule::Fixed,
        fixed: Bytes(900_000),
        send_cap: Bytes(100_000),
        ..Config::default()
    };
    let mut engine = engine_on(&config, &cgroup);
    let _turn = in_turn();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = format!("exec 3<>/dev/tcp/127.0.0.1/{}", listener.local_addr().unwrap().port());
    let status = cgroup.spawn(Command::new("bash").args(["-c", &target])).unwrap().wait().unwrap();
    assert!(status.success());
    let requests = engine.requests().unwrap();
    let flows = engine.flows().unwrap();
    let [request] = requests[..] else { panic!("{requests:?}") };
    assert_eq!((request.send_buffer, request.receive_buffer), (Some(Bytes(1_800_000)), None));
    let [flow] = flows[..] else { panic!("{flows:?}") };
    assert_eq!((flow.cookie, flow.set_send_buffer), (request.cookie, Some(Bytes(200_000))));
    engine.forget(flow.cookie);
    assert_eq!(engine.flows().unwrap(), []);
}

#[test]
fn root_a_size_that_the_kernel_cuts_because_its_maximum_was_lowered_is_requested() {
    if !root() {
        return;
    }
    let shown = std::fs::read_to_string("/proc/sys/net/core/wmem_max").unwrap_or_default();
    let most = shown.trim().parse().unwrap_or(212_992);
    // As if the maximum had been higher when the programs were loaded.
    let fixed = Bytes(most + 100_000);
    let config =
        Config { send: SendRule::Fixed, fixed, send_cap: fixed, max_send: fixed, ..Config::default() };
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let mut engine = engine_on(&config, &cgroup);
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    assert_eq!(connection.flow(&engine).unwrap().set_send_buffer, Some(Bytes(2 * most)));
    let asked = wait_for("a request", || {
        engine.heartbeat(FREE).unwrap();
        connection.send(100_000);
        engine.requests().unwrap().into_iter().find_map(|request| request.send_buffer)
    });
    assert_eq!(asked, fixed.times(2));
    options::force_send_buffer(&connection.client, fixed).unwrap();
    wait_for("its size", || {
        engine.heartbeat(FREE).unwrap();
        connection.send(100_000);
        connection.flow(&engine).filter(|flow| flow.set_send_buffer == Some(asked))
    });
}

#[test]
fn root_the_socket_of_a_request_is_known_also_if_the_record_is_older_than_accept() {
    if !root() {
        return;
    }
    let config = Config {
        receive: ReceiveRule::Fixed,
        fixed: Bytes(3 << 20),
        receive_cap: Bytes(100_000),
        ..Config::default()
    };
    // User space finds a socket by its inode, which it gets at accept(). Each later sample makes the request anew.
    let (_, receiver) = transfer(&config, FREE, "127.0.0.1");
    assert!(!receiver.initiator && !receiver.origin.adopted);
    assert!(receiver.origin.inode.is_some(), "{receiver:?}");
}

#[test]
fn root_a_receive_buffer_has_room_for_what_its_reader_waits_for() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let config = Config { receive: ReceiveRule::Drs, receive_cap: Bytes(100_000), ..Config::default() };
    let mut engine = engine_on(&config, &cgroup);
    engine.heartbeat(FREE).unwrap();
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    // The kernel allows no more than half of a locked buffer.
    options::set_receive_low_water(&connection.client, Bytes(100_000)).unwrap();
    // The window alone has 1 MiB, requested before the reader said what it waits for.
    let asked = wait_for("a request with room for the low water", || {
        engine.heartbeat(FREE).unwrap();
        // A reader would sleep here until the low water is unread.
        (&connection.server).write_all(&[7; 2_000]).unwrap();
        connection.grant_receive_buffer(&mut engine).filter(|asked| *asked > Bytes(1 << 20))
    });
    assert!(asked >= Bytes((1 << 20) + 99_999), "{asked}");
}

#[test]
fn root_a_request_for_the_size_that_is_there_is_granted_by_the_lock_and_not_by_the_size() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    // As if autotuning had reached this size.
    let grown = |memory: u64| {
        options::force_receive_buffer(client, Bytes(memory / 2)).unwrap();
        options::set_buffer_lock(client, BufferLock::default()).unwrap();
    };
    grown(400_000);
    let config = Config {
        receive: ReceiveRule::Fixed,
        fixed: Bytes(60_000),
        receive_cap: Bytes(60_000),
        ..Config::default()
    };
    let mut engine = engine_on(&config, &cgroup);
    engine.heartbeat(FREE).unwrap();
    let began = Instant::now();
    assert_eq!(engine.sweep(netns.as_fd()).unwrap().adopted, 1);
    let looked_again = |engine: &Engine| {
        let before = connection.flow(engine).unwrap().samples;
        wait_for("samples", || {
            connection.receive(10_000);
            connection.flow(engine).filter(|flow| flow.samples > before + 1)
        })
    };
    looked_again(&engine);
    let mut sizes: Vec<_> = engine.requests().unwrap().iter().map(|request| request.receive_buffer).collect();
    // A request that is not granted is repeated after a second.
    if began.elapsed() > Duration::from_secs(1) {
        sizes.dedup();
    }
    assert_eq!(sizes, [Some(Bytes(400_000))]);
    grown(600_000);
    let flow = looked_again(&engine);
    assert_eq!((flow.set_receive_buffer, flow.owned), (None, Owned::default()));
    wait_for("another request", || {
        connection.receive(10_000);
        connection.grant_receive_buffer(&mut engine)
    });
    // The buffer is bufwise's now, so the rule may shrink it; the kernel doubles the value that is set.
    let last = wait_for("the rule's buffer", || {
        let flow = looked_again(&engine);
        Some(flow).filter(|flow| flow.set_receive_buffer == Some(Bytes(120_000)))
    });
    assert_eq!(last.owned, Owned::default());
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock { send: false, receive: true });
}

#[test]
fn root_a_request_granted_after_the_rule_has_changed_its_mind_is_not_taken_for_the_applications() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let config = Config { send: SendRule::Abt, send_cap: Bytes(200_000), ..Config::default() };
    let mut engine = engine_on(&config, &cgroup);
    engine.heartbeat(FREE).unwrap();
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let request = wait_for("a request", || {
        connection.send(100_000);
        engine.requests().unwrap().into_iter().find_map(|request| request.send_buffer)
    });
    let level = Bytes(200_000);
    engine.heartbeat(Shares { level: Some(level), ..FREE }).unwrap();
    let shared = || {
        connection.send(100_000);
        let flow = connection.flow(&engine).unwrap();
        assert_eq!(flow.owned, Owned::default());
        (options::send_buffer(&connection.client).unwrap() == level).then_some(flow.set_send_buffer)
    };
    assert_eq!(wait_for("the share", shared), Some(level));
    options::force_send_buffer(&connection.client, Bytes(request.0 / 2)).unwrap();
    assert_eq!(wait_for("the share again", shared), Some(level));
}

#[test]
fn root_other_groups_connections_are_not_seen() {
    if !root() {
        return;
    }
    let cgroup = Cgroup::create().unwrap();
    let engine = engine_on(&Config { send: SendRule::Abt, ..Config::default() }, &cgroup);
    let _turn = in_turn();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let _ours = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    assert_eq!(engine.flows().unwrap(), []);
}

/// More than two batches of 256, of which the kernel fills none to its end.
#[test]
fn root_all_connections_are_read_however_many_batches_they_take() {
    const CONNECTIONS: usize = 600;
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let engine = engine_on(&Config::default(), &cgroup);
    let (mut client, servers) = netns.inside(|| {
        let turn = in_turn();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let script = format!(
            "for ((i = 0; i < {CONNECTIONS}; i++)); do exec {{fd}}<>/dev/tcp/127.0.0.1/{port} || exit; done; read -r _"
        );
        let mut bash = Command::new("bash");
        let client = cgroup.spawn(bash.args(["-c", &script]).stdin(Stdio::piped())).unwrap();
        drop(turn);
        listener.set_nonblocking(true).unwrap();
        let accept = |_| wait_for("connection", || listener.accept().ok()).0;
        (client, (0..CONNECTIONS).map(accept).collect::<Vec<_>>())
    });
    let read = wait_for("all connections", || {
        let flows = engine.flows().unwrap();
        (flows.len() == CONNECTIONS).then_some(flows)
    });
    let cookies: HashSet<u64> = read.iter().map(|flow| flow.cookie).collect();
    assert_eq!(cookies.len(), CONNECTIONS, "each once");
    assert!(engine.entries().unwrap().flows().all(|flow| cookies.contains(&flow.cookie)));
    assert_eq!(engine.turnover().unwrap(), CONNECTIONS as u64, "each has come");
    let inodes: HashSet<u64> = cookies.iter().filter_map(|cookie| engine.inode(*cookie)).collect();
    assert_eq!((inodes.len(), engine.inode(0)), (CONNECTIONS, None), "a socket has one of its own");
    drop(servers);
    client.kill().unwrap();
    client.wait().unwrap();
    wait_for("end of each", || (engine.turnover().unwrap() == 2 * CONNECTIONS as u64).then_some(()));
}

#[test]
fn root_buffers_that_the_application_sets_later_are_its_own_and_its_window_is_opened() {
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    let config = Config { send: SendRule::Abt, receive: ReceiveRule::Drs, ..Config::default() };
    let mut engine = engine_on(&config, &cgroup);
    engine.heartbeat(FREE).unwrap();
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    let found = connection.flow(&engine).unwrap();
    assert_eq!((found.set_send_buffer, found.owned), (None, Owned::default()), "nothing has moved");
    options::set_send_buffer(client, Bytes(70_000)).unwrap();
    wait_for("the rule's window, and the application's send buffer", || {
        connection.send(20_000);
        connection.receive(20_000);
        connection.flow(&engine).filter(|flow| flow.owned.send && flow.set_window.is_some())
    });
    let opened = Bytes(65_535 << options::tcp_info(client).unwrap().rcv_wscale());
    assert!(options::window_clamp(client).unwrap() < opened);
    options::set_receive_buffer(client, Bytes(100_000)).unwrap();
    wait_for("the open window", || {
        connection.receive(20_000);
        (options::window_clamp(client).unwrap() == opened).then_some(())
    });
    let flow = connection.flow(&engine).unwrap();
    assert_eq!(flow.owned, Owned { send: true, receive: true });
    engine.release_all().unwrap();
    assert_eq!(options::send_buffer(client).unwrap(), Bytes(140_000));
    assert_eq!(options::receive_buffer(client).unwrap(), Bytes(200_000));
    assert_eq!(options::buffer_lock(client).unwrap(), BufferLock { send: true, receive: true });
}

#[test]
fn root_a_window_that_the_application_bounds_later_stays_until_it_is_opened() {
    const THEIRS: Bytes = Bytes(20_000);
    if !root() {
        return;
    }
    let (cgroup, netns) = (Cgroup::create().unwrap(), Netns::new());
    // The window takes several segments.
    let narrow = || Command::new("ip").args(["link", "set", "lo", "mtu", "1500"]).status().unwrap();
    assert!(netns.inside(narrow).success());
    let config = Config { receive: ReceiveRule::Drs, ..Config::default() };
    let mut engine = engine_on(&config, &cgroup);
    engine.heartbeat(FREE).unwrap();
    let connection = Connection::open(&cgroup, &netns, "127.0.0.1");
    let client = &connection.client;
    let window = || connection.flow(&engine).and_then(|flow| flow.set_window);
    wait_for("the rule's window", || {
        connection.receive(100_000);
        window()
    });
    for _ in 0..2 {
        options::set_window_clamp(client, THEIRS).unwrap();
        connection.receive(100_000);
        assert_eq!((options::window_clamp(client).unwrap(), window()), (THEIRS, None));
        options::set_window_clamp(client, Bytes(64 << 20)).unwrap();
        connection.receive(100_000);
        assert!(window().is_some(), "the rule's again");
    }
    options::set_window_clamp(client, THEIRS).unwrap();
    connection.receive(100_000);
    assert_eq!(engine.release_all().unwrap().released, 1, "its buffer");
    assert_eq!(options::window_clamp(client).unwrap(), THEIRS);
}
