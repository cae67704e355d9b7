//! Connections that break at any byte, and servers that fall silent.

use std::fs;
use std::net::TcpStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_ftp::client::{ClientError, Event, Tree};
use bufwise_mover::MoveError;
use bufwise_mover::hash::{HashKind, Hasher};
use bufwise_units::Rate;
use socket2::{Domain, Socket, Type};

use crate::scripted::{ANSWER_TIMEOUT, Client, Script, Server, pattern};

const SIZE: usize = 200_000;

#[test]
fn a_download_cut_at_any_byte_is_resumed_and_whole() {
    for cut in [0, 1, 100, 65_535, 65_536, 65_537, 131_072, SIZE - 1, SIZE] {
        let cuts = vec![Some(cut)];
        let server = Server::start(Script { content: pattern(SIZE), cuts, ..Script::default() });
        let mut client = Client::of(&server);
        client.fails("file", "");
        assert!(client.kept("file").unwrap_or_default() == pattern(SIZE)[..cut], "cut at {cut}");
        client.settings.resume = true;
        let got = client.get("file").unwrap();
        assert_eq!(got.resumed_from, cut as u64);
        assert!(client.got("file").unwrap() == pattern(SIZE), "cut at {cut}");
        assert_eq!(client.kept("file"), None);
    }
}

#[test]
fn many_cuts_in_a_row_cost_no_byte_within_one_call() {
    let cuts = [1, 70_000, 80_000, 3, 66_000, 100_000].map(Some).to_vec();
    let server = Server::start(Script { content: pattern(SIZE), cuts, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.retries = 10;
    client.get("file").unwrap();
    assert!(client.got("file").unwrap() == pattern(SIZE));
}

#[test]
fn a_cut_while_the_end_is_compared_costs_no_byte() {
    for cut in [0, 100] {
        let cuts = vec![Some(150_000), Some(cut)];
        let server = Server::start(Script { content: pattern(SIZE), cuts, ..Script::default() });
        let mut client = Client::of(&server);
        client.settings.retries = 2;
        let mut resumed = Vec::new();
        let watch = |event: Event<'_>| {
            if let Event::Begun { resumed_from, .. } = event {
                resumed.push(resumed_from);
            }
        };
        client.worker().get(Path::new("file"), &client.target("file"), watch).unwrap();
        assert_eq!(resumed, [0, 150_000, 150_000], "cut at {cut}");
        assert!(client.got("file").unwrap() == pattern(SIZE), "cut at {cut}");
    }
}

#[test]
fn a_servers_file_that_is_shorter_than_what_is_there_is_got_whole() {
    let answers = [("SIZE", b"500 unknown\r\n".to_vec())].into();
    let server = Server::start(Script { content: pattern(1_000), answers, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.resume = true;
    fs::write(client.path(".file.bufwise-part"), pattern(2_000)).unwrap();
    client.get("file").unwrap();
    assert_eq!(client.got("file").unwrap(), pattern(1_000));
}

#[test]
fn a_servers_file_that_has_grown_since_its_size_was_asked_for_is_got_whole() {
    let once = Some(("SIZE", &b"213 999\r\n"[..]));
    let server = Server::start(Script { content: pattern(1_000), once, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.retries = 1;
    client.get("file").unwrap();
    assert_eq!(client.got("file").unwrap(), pattern(1_000));
}

#[test]
fn what_another_command_has_left_of_an_upload_is_not_taken_after_a_retry() {
    let once = Some(("STOR", &b"450 not now\r\n"[..]));
    let server = Server::start(Script { once, ..Script::default() });
    // A partial file with the same end, but another beginning.
    let mut stale = pattern(150_000);
    stale[0] ^= 1;
    server.store(".up.bufwise-part", &stale);
    let mut client = Client::of(&server);
    client.settings.retries = 1;
    client.put_with(&mut client.worker(), "up", &pattern(SIZE)).unwrap();
    assert_eq!(server.count("STOR"), 2);
    assert!(server.stored("up").unwrap() == pattern(SIZE));
}

#[test]
fn half_an_upload_is_not_lost_to_a_server_that_refuses_for_now() {
    for refusal in ["450 busy\r\n", "421 too many\r\n", "522 resume the session\r\n"] {
        let answers = [("RETR", refusal.into())].into();
        let server = Server::start(Script { answers, ..Script::default() });
        server.store(".up.bufwise-part", &pattern(SIZE)[..100_000]);
        let mut client = Client::of(&server);
        client.settings.resume = true;
        let error = client.put_with(&mut client.worker(), "up", &pattern(SIZE)).unwrap_err();
        assert!(error.to_string().contains(refusal.trim_end()), "{error}");
        assert_eq!(server.stored(".up.bufwise-part").unwrap().len(), 100_000);
    }
}

#[test]
fn a_server_that_closes_instead_of_a_transfer_fails_no_other_file() {
    let once = Some(("RETR", &b"421 time is over\r\n"[..]));
    let server = Server::start(Script { content: pattern(10), once, ..Script::default() });
    let client = Client::of(&server);
    let mut worker = client.worker();
    let error = client.get_with(&mut worker, "one").unwrap_err();
    assert!(error.to_string().contains("421 time is over"), "{error}");
    client.get_with(&mut worker, "two").unwrap();
    assert_eq!(server.count("USER"), 2, "each file had a session of its own");
}

/// Puts `up`, to be resumed, and asserts that it is begun anew and arrives whole.
fn assert_begun_anew(server: &Server) {
    let mut client = Client::of(server);
    client.settings.resume = true;
    let put = client.put_with(&mut client.worker(), "up", &pattern(SIZE)).unwrap();
    assert_eq!(put.resumed_from, 0);
    assert!(server.stored("up").unwrap() == pattern(SIZE));
}

#[test]
fn an_upload_is_begun_anew_where_the_half_of_it_may_not_be_read() {
    let answers = [("RETR", b"550 not yours\r\n".to_vec())].into();
    let server = Server::start(Script { answers, ..Script::default() });
    server.store(".up.bufwise-part", &pattern(SIZE)[..100_000]);
    assert_begun_anew(&server);
}

#[test]
fn an_interruption_ends_the_wait_for_a_connection() {
    // A listener with a full queue: the system does not answer further connections.
    let full = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    full.bind(&std::net::SocketAddr::from(([127, 0, 0, 1], 0)).into()).unwrap();
    full.listen(0).unwrap();
    let target = full.local_addr().unwrap().as_socket().unwrap();
    let _first = TcpStream::connect(target).unwrap();
    let mut client = Client::of(&Server::start(Script::default()));
    client.access.port = target.port();
    let cancel = client.access.cancel.clone();
    let start = Instant::now();
    let error = thread::scope(|scope| {
        let got = scope.spawn(|| client.get("file").unwrap_err());
        // The test cannot see that the client waits; a client that is interrupted before also ends at once.
        thread::sleep(Duration::from_millis(50));
        cancel.cancel();
        got.join().unwrap()
    });
    assert!(matches!(error, ClientError::Interrupted), "{error}");
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
}

#[test]
fn a_drip_below_the_lowest_rate_is_given_up_of_files_and_listings() {
    let listings = [("pub", "type=file; one\r\ntype=file; two\r\n")].into();
    let (content, features) = (pattern(SIZE), &["MLST type*;"][..]);
    let drip = Some(Duration::from_millis(150));
    let server = Server::start(Script { content, listings, features, drip, ..Script::default() });
    let mut client = Client::of(&server);
    // Longer than a machine may stand still, in which time nothing would come.
    client.settings.idle = Duration::from_secs(2);
    client.settings.lowest = Some(Rate(1_000));
    client.fails("file", "less than 8kbit for 2 s");
    let error = Tree::list(&mut client.worker(), Path::new("pub"), |_| ()).unwrap_err();
    assert!(matches!(error, ClientError::Move(MoveError::Slow { .. })), "{error}");
    assert!(error.is_transient());
}

#[test]
fn the_number_of_attempts_is_bounded() {
    let cuts = vec![Some(10); 50];
    let server = Server::start(Script { content: pattern(SIZE), cuts, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.retries = 4;
    client.fails("file", "");
    assert_eq!(server.count("RETR"), 5);
}

#[test]
fn an_upload_cut_at_any_byte_is_resumed_and_appears_whole() {
    for cut in [0, 1, 65_536, SIZE - 1] {
        let server = Server::start(Script { cuts: vec![Some(cut)], ..Script::default() });
        let mut client = Client::of(&server);
        client.settings.retries = 2;
        client.put_with(&mut client.worker(), "up", &pattern(SIZE)).unwrap();
        assert!(server.stored("up").unwrap() == pattern(SIZE), "cut at {cut}");
        assert_eq!(server.stored(".up.bufwise-part"), None);
    }
}

#[test]
fn an_upload_whose_success_was_not_heard_is_not_appended_to() {
    let mut hasher = Hasher::new(HashKind::Sha256);
    hasher.update(&pattern(SIZE));
    let sum = format!("213 SHA-256 0-{SIZE} {} up\r\n", hasher.finish()).into_bytes();
    // A server of bufwise; it has the whole file when the connection breaks.
    let (answers, features) = ([("HASH", sum)].into(), &["DRS SBUF;", "HASH SHA-256*"]);
    let server = Server::start(Script { cuts: vec![Some(SIZE)], answers, features, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.retries = 1;
    let put = client.put_with(&mut client.worker(), "up", &pattern(SIZE)).unwrap();
    assert_eq!((put.size, put.resumed_from), (SIZE as u64, SIZE as u64));
    assert_eq!((server.count("STOR"), server.count("APPE")), (1, 0));
    assert!(server.stored("up").unwrap() == pattern(SIZE));
}

#[test]
fn half_an_upload_of_another_file_is_begun_anew() {
    let server = Server::start(Script::default());
    server.store(".up.bufwise-part", &pattern(SIZE + 1)[1..100_000]);
    assert_begun_anew(&server);
}

#[test]
fn data_that_stops_is_given_up_in_time() {
    for stall in [0, 100_000] {
        let stall = Some(stall);
        let server = Server::start(Script { content: pattern(SIZE), stall, ..Script::default() });
        let mut client = Client::of(&server);
        // Only the data has so little time: on a machine that stands still, an answer may take longer.
        client.settings.idle = ANSWER_TIMEOUT;
        let start = Instant::now();
        client.fails("file", "no data for 0.7 s");
        assert!(start.elapsed() < client.access.timeout, "{:?}", start.elapsed());
    }
}

#[test]
fn a_server_that_says_nothing_is_given_up_in_time() {
    // Side by side, because each of them only waits.
    thread::scope(|scope| {
        for verb in ["USER", "FEAT", "SIZE", "EPSV", "RETR"] {
            scope.spawn(move || {
                let answers = [(verb, Vec::new())].into();
                let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
                let start = Instant::now();
                Client::of(&server).impatient().fails("file", "did not answer within 0.7 s");
                assert!(start.elapsed() < 10 * ANSWER_TIMEOUT, "{verb}");
            });
        }
        let server = Server::start(Script { greeting: Some(Vec::new()), ..Script::default() });
        Client::of(&server).impatient().fails("file", "the greeting");
    });
}

#[test]
fn the_word_that_ends_a_transfer_must_come() {
    // On a machine that stands still for so long, an earlier answer does not come in time, but not each time.
    let awaited = (0..5).any(|_| {
        let server = Server::start(Script { content: pattern(10), end: Some(b""), ..Script::default() });
        let mut client = Client::of(&server);
        client.access.timeout = ANSWER_TIMEOUT;
        let error = client.get("file").unwrap_err();
        let ClientError::Silent { during, .. } = &error else { panic!("{error}") };
        assert_eq!(client.got("file"), None, "nothing has the final name");
        during == "the end of RETR file" && client.kept("file") == Some(pattern(10))
    });
    assert!(awaited);
}

#[test]
fn an_interruption_keeps_what_has_come_and_ends_at_once() {
    let stall = Some(100_000);
    let server = Server::start(Script { content: pattern(SIZE), stall, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.idle = Duration::from_secs(60);
    let (cancel, path) = (client.access.cancel.clone(), client.path(".file.bufwise-part"));
    let stopper = thread::spawn(move || {
        let deadline = Instant::now() + Duration::from_secs(10);
        while fs::metadata(&path).map_or(0, |metadata| metadata.len()) < 100_000 && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(5));
        }
        cancel.cancel();
        Instant::now()
    });
    let error = client.get("file").unwrap_err();
    let took = stopper.join().unwrap().elapsed();
    assert!(matches!(error, ClientError::Interrupted), "{error}");
    // Long before the idle time is over.
    assert!(took < Duration::from_secs(20), "{took:?}");
    assert_eq!((client.got("file"), client.kept("file").unwrap().len()), (None, 100_000));
}
