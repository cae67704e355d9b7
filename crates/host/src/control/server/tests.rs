use super::*;
use crate::control::ask;
use crate::control::message::Restored;
use crate::error::in_words;
use nix::fcntl::{Flock, FlockArg};
use proptest::prelude::*;
use std::fs::{self, File, Permissions};
use std::net::Shutdown;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// More bytes than an unread socket holds.
const LONG: usize = 4 << 20;

/// A server whose loop answers `List` with a long text, and every other request with the number of requests so far,
/// until the test ends.
struct Served {
    path: PathBuf,
    _directory: tempfile::TempDir,
    stop: Option<UnixStream>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Served {
    fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("control");
        let server = Server::bind(&path).unwrap();
        let (stop, stopped) = UnixStream::pair().unwrap();
        let thread = thread::spawn(move || {
            let mut count = 0;
            loop {
                let mut fds = [server.as_fd(), stopped.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
                poll(&mut fds, PollTimeout::NONE).unwrap();
                if fds[1].any().unwrap() {
                    return;
                }
                let Some(pending) = server.next() else { continue };
                count += 1;
                let reply = match pending.request() {
                    Request::List => Reply::Error("x".repeat(LONG)),
                    _ => Reply::Restored(Restored { connections: count, ..Restored::default() }),
                };
                pending.answer(reply);
            }
        });
        Self { path, _directory: directory, stop: Some(stop), thread: Some(thread) }
    }

    /// Returns the server's reply to these bytes; `close` closes the sending side after them.
    fn says_to(&self, bytes: &[u8], close: bool) -> String {
        let mut stream = UnixStream::connect(&self.path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        // The server may close before it has read everything.
        let _closed = stream.write_all(bytes);
        if close {
            let _closed = stream.shutdown(Shutdown::Write);
        }
        let mut text = Vec::new();
        // Bytes that the server left unread turn its close into a reset, after its reply.
        let _reset = stream.read_to_end(&mut text);
        String::from_utf8(text).unwrap()
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the loop ends well");
        }
    }
}

/// Makes a socket at which nobody listens.
fn abandon(path: &Path) {
    drop(UnixListener::bind(path).unwrap());
    // A command that another test starts meanwhile holds a copy of the descriptor for a moment.
    let deadline = Instant::now() + Duration::from_secs(10);
    while UnixStream::connect(path).is_ok() {
        assert!(Instant::now() < deadline, "it still listens");
        thread::sleep(Duration::from_millis(1));
    }
}

fn is_error(text: &str, words: &str) -> bool {
    matches!(serde_json::from_str(text), Ok(Reply::Error(error)) if error.contains(words))
}

#[test]
fn a_request_that_is_taken_before_its_byte_comes_wakes_the_loop_once_more_and_not_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::bind(&directory.path().join("control")).unwrap();
    let is_awake = || poll(&mut [PollFd::new(server.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1);
    let (early, _first) = Pending::of_test(Request::Status);
    let (late, _second) = Pending::of_test(Request::List);
    server.asker.sender.send(early).unwrap();
    // The loop was woken for another reason, before the byte came.
    assert!(server.next().is_some() && server.next().is_none() && !is_awake());
    (&*server.asker.wake).write_all(&[1]).unwrap();
    assert!(is_awake() && server.next().is_none() && !is_awake(), "it would spin");
    server.asker.sender.send(late).unwrap();
    (&*server.asker.wake).write_all(&[1]).unwrap();
    assert!(is_awake() && server.next().is_some() && !is_awake(), "no request is overlooked");
}

#[test]
fn a_request_whose_client_was_told_that_the_daemon_is_busy_is_not_carried_out_later() {
    let directory = tempfile::tempdir().unwrap();
    let server = Server::bind(&directory.path().join("control")).unwrap();
    assert_eq!(server.asker().ask(Request::Restore, Duration::ZERO), busy());
    assert!(server.next().is_none());
    assert_eq!(server.asker().ask(Request::Restore, Duration::ZERO), busy());
    let (waiting, _answered) = Pending::of_test(Request::Status);
    server.asker.sender.send(waiting).unwrap();
    assert_eq!(server.next().map(|pending| pending.request()), Some(Request::Status), "the next one is");
}

#[test]
fn seats_are_bounded_and_a_thread_that_panics_gives_its_seat_back() {
    let seats = Seats::default();
    let taken: Vec<_> = (0..MAX_CLIENTS).map(|_| seats.take().unwrap()).collect();
    assert!(seats.take().is_none());
    for seat in taken {
        let client = thread::spawn(move || {
            let _seat = seat;
            panic!("on purpose");
        });
        assert!(client.join().is_err());
    }
    let again: Vec<_> = (0..=MAX_CLIENTS).map_while(|_| seats.take()).collect();
    assert_eq!(again.len(), MAX_CLIENTS);
}

#[test]
fn requests_are_answered_one_after_the_other() {
    let served = Served::start();
    for count in 1..=20 {
        let reply = ask(&served.path, &Request::Restore).unwrap();
        assert_eq!(reply, Some(Reply::Restored(Restored { connections: count, ..Restored::default() })));
    }
}

#[test]
fn without_a_daemon_there_is_no_answer_and_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    assert_eq!(ask(&path, &Request::Status).unwrap(), None);
    abandon(&path);
    assert_eq!(ask(&path, &Request::Status).unwrap(), None, "nobody listens any more");
}

#[test]
fn a_daemon_that_takes_no_request_is_named_soon() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let _stopped = UnixListener::bind(&path).unwrap();
    let start = Instant::now();
    let error = in_words(&ask(&path, &Request::Restore).unwrap_err());
    assert!(error.ends_with("has said nothing for 2 s: is it stopped, as by SIGSTOP?"), "{error}");
    assert!(start.elapsed() < ANSWER_TIME);
}

#[test]
fn a_reply_without_its_end_is_that_of_a_daemon_that_is_gone() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let listener = UnixListener::bind(&path).unwrap();
    let daemon = thread::spawn(move || {
        let (mut client, _) = listener.accept().unwrap();
        assert!(client.read(&mut [0; 100]).unwrap() > 0);
        client.write_all(b" {\"reply\":\"error\",\"content\":\"it").unwrap();
    });
    let error = in_words(&ask(&path, &Request::Status).unwrap_err());
    assert!(error.ends_with("did not answer: it closed the connection"), "{error}");
    daemon.join().unwrap();
}

#[test]
fn the_socket_is_its_owners_alone_and_goes_with_the_server() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("new/control");
    let server = Server::bind(&path).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::metadata(path.parent().unwrap()).unwrap().permissions().mode() & 0o022, 0);
    drop(server);
    assert!(!path.exists());
}

#[test]
fn a_live_daemon_is_left_alone_and_a_dead_ones_socket_replaced() {
    let served = Served::start();
    let error = Server::bind(&served.path).unwrap_err().to_string();
    assert!(error.contains("a daemon is running already"), "{error}");
    assert!(ask(&served.path, &Request::Status).unwrap().is_some());

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    abandon(&path);
    let server = Server::bind(&path).expect("nobody listens there");
    drop(server);
    fs::write(&path, "precious").unwrap();
    assert!(Server::bind(&path).unwrap_err().to_string().contains("is no socket"));
    assert_eq!(fs::read_to_string(&path).unwrap(), "precious");
}

#[test]
fn a_directory_that_others_can_write_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), Permissions::from_mode(0o777)).unwrap();
    let error = Server::bind(&directory.path().join("control")).unwrap_err().to_string();
    // It may be /tmp, whose mode has to stay.
    assert!(error.contains("can be written by others: choose another one"), "{error}");
}

#[test]
fn nobody_else_can_hold_the_lock_that_a_start_waits_for() {
    let directory = tempfile::tempdir().unwrap();
    // Any user can lock a directory that all may read.
    let _held = Flock::lock(File::open(directory.path()).unwrap(), FlockArg::LockExclusive).unwrap();
    let lock = directory.path().join("control.lock");
    fs::write(&lock, "").unwrap();
    let _server = Server::bind(&directory.path().join("control")).unwrap();
    assert_eq!(fs::metadata(&lock).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn garbage_gets_an_error_and_the_next_client_its_answer() {
    let served = Served::start();
    for (bytes, words) in [
        (&b"launch the rockets\n"[..], "not understood"),
        (b"\xff\xfe\n", "UTF-8"),
        (b"{\"request\":\"launch\"}\n", "launch"),
        (b"\n", "not understood"),
        (&[b'x'; MAX_REQUEST], "longer than"),
        (&[b' '; 4 * MAX_REQUEST], "longer than"),
    ] {
        let text = served.says_to(bytes, false);
        assert!(is_error(&text, words), "{words}: {text}");
    }
    assert!(is_error(&served.says_to(b"{\"request\":", true), "not understood"));
    assert!(ask(&served.path, &Request::Status).unwrap().is_some());
}

#[test]
fn slow_clients_delay_nobody_and_are_told_when_their_time_is_over() {
    let answered_beside_silent_ones = || {
        let served = Served::start();
        let start = Instant::now();
        let silent = [(); MAX_CLIENTS - 1].map(|()| UnixStream::connect(&served.path).unwrap());
        (&silent[0]).write_all(b"{").unwrap();
        assert!(ask(&served.path, &Request::Status).unwrap().is_some());
        (start.elapsed() < CLIENT_TIME).then_some((served, start, silent))
    };
    // A machine may stand still for as long as a client may be silent, but not each time.
    let (_served, start, silent) =
        (0..5).find_map(|_| answered_beside_silent_ones()).expect("it was answered at once");
    let mut trickle = &silent[0];
    // A byte now and then does not extend the time.
    trickle.set_read_timeout(Some(CLIENT_TIME / 20)).unwrap();
    let mut reply = [0; 1_000];
    let len = loop {
        match trickle.read(&mut reply) {
            Ok(len) => break len,
            Err(error) => assert_eq!(error.kind(), io::ErrorKind::WouldBlock),
        }
        assert!(start.elapsed() < 10 * CLIENT_TIME, "it listens still");
        // The server may have closed it since.
        let _closed = trickle.write_all(b"x");
    };
    let text = String::from_utf8_lossy(&reply[..len]);
    assert!(is_error(&text, "no request came"), "{text}");
}

#[test]
fn a_client_that_does_not_read_delays_nobody_and_loses_its_reply() {
    let served = Served::start();
    let answered_beside_a_deaf_one = || {
        let mut deaf = UnixStream::connect(&served.path).unwrap();
        deaf.write_all(b"{\"request\":\"list\"}\n").unwrap();
        let start = Instant::now();
        assert_eq!(ask(&served.path, &Request::List).unwrap(), Some(Reply::Error("x".repeat(LONG))));
        (start.elapsed() < CLIENT_TIME).then_some(deaf)
    };
    // A machine may stand still for as long as the server waits for a client, but not each time.
    let mut deaf = (0..5).find_map(|_| answered_beside_a_deaf_one()).expect("it was answered at once");
    // The server gives up: it closes its end while most of the reply is still unsent.
    let mut fds = [PollFd::new(deaf.as_fd(), PollFlags::empty())];
    assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)).unwrap(), 1, "it hangs up");
    let mut text = Vec::new();
    let _reset = deaf.read_to_end(&mut text);
    assert!(text.len() < LONG, "{} bytes", text.len());
}

#[test]
fn beyond_the_bound_clients_are_turned_away() {
    let served = Served::start();
    let _silent: Vec<_> = (0..MAX_CLIENTS).map(|_| UnixStream::connect(&served.path).unwrap()).collect();
    let reply = ask(&served.path, &Request::Status).unwrap();
    assert_eq!(reply, Some(busy()));
}

#[test]
fn only_root_and_the_daemons_own_user_are_answered() {
    let own = geteuid().as_raw();
    assert!(is_allowed(0) && is_allowed(own));
    assert!(!is_allowed(own + 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn whatever_is_said_there_is_one_line_in_answer(bytes in prop::collection::vec(any::<u8>(), 0..6_000)) {
        use std::sync::LazyLock;
        static SERVED: LazyLock<Served> = LazyLock::new(Served::start);
        let text = SERVED.says_to(&bytes, true);
        prop_assert_eq!(text.lines().count(), 1, "{}", text);
        prop_assert!(serde_json::from_str::<Reply>(&text).is_ok(), "{}", text);
    }
}
