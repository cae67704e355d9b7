//! Tests of the engine in user space, on connections of this process.

use std::net::{TcpListener, TcpStream};

use bufwise_units::Bytes;
use socket2::SockRef;

use super::*;
use crate::flow::{CLAMP, RECEIVE, SEND};

/// Tests run beside each other in one process: these rules set nothing.
fn observer() -> UserEngine {
    let (send, receive) = (SendRule::Kernel, ReceiveRule::Kernel);
    UserEngine::of_itself(&Config { send, receive, ..Config::default() })
}

/// Returns a listener, a client of it, and the client's cookie.
fn connected() -> (TcpListener, TcpStream, u64) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let cookie = SockRef::from(&client).cookie().unwrap();
    (listener, client, cookie)
}

#[test]
fn an_engine_of_its_own_process_has_both_ends_and_lets_go_of_what_is_closed() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    let cookies = [&client, &server].map(|end| SockRef::from(end).cookie().unwrap());
    let mut engine = observer();
    let open = |engine: &UserEngine| -> Vec<bool> {
        let flows = engine.flows();
        let is_open = |cookie| flows.iter().any(|flow| flow.cookie == cookie && !flow.closed);
        cookies.map(is_open).to_vec()
    };
    engine.look_for_sockets(now().0);
    assert_eq!(open(&engine), [true, true]);
    // Out of sight for too long: when it is found again, its settings are still ours.
    for is_forgotten in [false, true] {
        let watched = engine.connections.get_mut(&cookies[0]).unwrap();
        (watched.flow.set_pace, watched.missed) = (1_000, MISSED);
        record::close(&mut watched.flow);
        if is_forgotten {
            engine.forget(cookies[0]);
        }
        engine.look_for_sockets(now().0);
        assert_eq!(open(&engine), [true, true]);
        assert_eq!(engine.connections[&cookies[0]].flow.set_pace, 1_000);
    }
    drop(server);
    (0..MISSED).for_each(|_| engine.look_for_sockets(now().0));
    assert_eq!(open(&engine), [true, false]);
    assert_eq!(engine.limits().count(), 0);
}

#[test]
fn a_connection_is_shown_again_once_it_was_sampled_again() {
    let (_listener, _client, cookie) = connected();
    let mut engine = observer();
    engine.look_for_sockets(now().0);
    let is_shown = |engine: &mut UserEngine| engine.connections().any(|one| one.cookie == cookie);
    assert_eq!([is_shown(&mut engine), is_shown(&mut engine)], [true, false]);
    engine.sample(now().0 + 3_600_000_000);
    assert_eq!([is_shown(&mut engine), is_shown(&mut engine)], [true, false]);
}

#[test]
fn what_old_kernels_cannot_give_back_is_told_where_something_is_sized() {
    for (send, told) in [(SendRule::Kernel, 0), (SendRule::Fit, 1)] {
        let mut engine = UserEngine::of_itself(&Config { send, ..Config::default() });
        engine.sets_buffers = false;
        assert_eq!(engine.limits().count(), told, "{send:?}");
    }
}

#[test]
fn processes_that_outlive_the_command_are_told() {
    assert_eq!(left_running(0), None);
    let says = |count, words: [&str; 2]| {
        left_running(count).is_some_and(|line| words.iter().all(|words| line.contains(words)))
    };
    assert!(says(1, ["a process that the command has started still runs: ", "sizes its connections; "]));
    assert!(says(2, ["2 processes that the command has started still run", "sizes their connections; "]));
}

#[test]
fn samples_have_the_time_at_which_they_are_taken_however_long_the_work_before_takes() {
    let (_listener, _client, cookie) = connected();
    let mut engine = observer();
    let before = now().0;
    // The work began long ago, or will end in an hour.
    engine.look_for_sockets(0);
    engine.sample(before + 3_600_000_000);
    let flow = engine.connections[&cookie].flow;
    let times = [before, flow.opened_at, flow.sampled_at, now().0];
    assert!(times.is_sorted(), "{times:?}");
}

#[test]
fn a_congestion_control_that_the_application_chooses_later_is_seen() {
    let (_listener, client, cookie) = connected();
    let default = options::congestion_control(&client).unwrap();
    let mut engine = observer();
    engine.look_for_sockets(now().0);
    // Every user may choose Reno and the host's default.
    for name in ["reno", default.as_str()] {
        options::set_congestion_control(&client, name).unwrap();
        let mut watched = engine.connections.remove(&cookie).unwrap();
        let at = watched.settings_at;
        engine.sample_one(cookie, &mut watched, at).unwrap();
        assert_eq!(watched.one.congestion.as_str(), name);
        assert_eq!(watched.flow.congestion_control == 1, name == "reno");
        engine.connections.insert(cookie, watched);
    }
}

#[test]
fn buffers_that_the_application_sets_later_are_its_own() {
    let (_listener, client, cookie) = connected();
    let mut engine = observer();
    if !engine.sets_buffers {
        return bufwise_trial::skip("needs Linux 5.15");
    }
    engine.look_for_sockets(now().0);
    let mut watched = engine.connections.remove(&cookie).unwrap();
    assert_eq!(watched.flow.owned, 0);
    options::set_send_buffer(&client, Bytes(50_000)).unwrap();
    options::set_receive_buffer(&client, Bytes(50_000)).unwrap();
    let at = watched.settings_at;
    engine.sample_one(cookie, &mut watched, at).unwrap();
    assert_eq!(watched.flow.owned, SEND | RECEIVE);
}

#[test]
fn a_window_that_the_application_had_bounded_before_stays() {
    let (_listener, client, cookie) = connected();
    let inode = fstat(&client).unwrap().st_ino;
    options::set_window_clamp(&client, Bytes(3_000)).unwrap();
    let mut engine = UserEngine::of_itself(&Config { receive: ReceiveRule::Drs, ..Config::default() });
    // This socket alone: tests run beside each other in one process.
    let mut own = reach::sockets_of(std::process::id().cast_signed());
    let (_, place) = own.find(|(found, _)| *found == inode).unwrap();
    engine.take(inode, place);
    assert_eq!(options::window_clamp(&client).unwrap(), Bytes(3_000));
    assert_eq!(engine.connections[&cookie].flow.owned, CLAMP);
}

#[test]
fn a_socket_that_is_connected_anew_has_a_record_of_its_own() {
    let (_listener, _client, cookie) = connected();
    let mut engine = observer();
    engine.look_for_sockets(now().0);
    let watched = engine.connections.get_mut(&cookie).unwrap();
    // The earlier connection had moved more.
    (watched.flow.bytes_acked, watched.flow.set_pace, watched.missed) = (u64::MAX, 1_000, MISSED);
    record::close(&mut watched.flow);
    engine.look_for_sockets(now().0);
    let flow = engine.connections[&cookie].flow;
    assert!(flow.bytes_acked < u64::MAX && flow.set_pace == 0, "{}", flow.bytes_acked);
}
