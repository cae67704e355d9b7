//! Limits of password attempts, of time, and of numbers.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use bufwise_ftp::server::{Admission, Rights, Users, users};
use bufwise_units::{Bytes, Rate};

use crate::support::{Client, Served, TEST_TIMEOUT, eventually, pattern, serve};

/// Alice alone, whose password is `secret`.
fn alice() -> Users {
    let mut users = Users::nobody();
    users.add("alice", &users::hash_password(b"secret").unwrap(), Rights::Write).unwrap();
    users
}

#[test]
fn the_right_password_opens_and_a_wrong_one_looks_like_a_wrong_name() {
    let served = serve(|config| {
        config.users = alice();
        config.times.wrong_password = Duration::from_millis(1);
    });
    let mut client = served.connect();
    client.ask("PASS secret", 503);
    client.ask("RETR file", 530);
    client.ask("USER alice", 331);
    let wrong_password = client.ask("PASS other", 530);
    client.ask("USER anonymous", 331);
    assert_eq!(client.ask("PASS secret", 530), wrong_password);
    client.ask("USER alice", 331);
    client.ask("PASS secret", 230);
    client.ask("USER bob", 503);
    client.ask("MKD new", 257);
    let log = served.log();
    assert!(log.contains("logged in as alice") && log.contains("failed to log in as anonymous"), "{log}");
}

#[test]
fn who_is_let_in_can_change_and_who_is_in_goes_on() {
    let served = serve(|config| {
        config.users = alice();
        config.times.wrong_password = Duration::from_millis(1);
    });
    served.put("file", b"some bytes");
    let login = |client: &mut Client, name: &str, code| {
        client.ask(&format!("USER {name}"), 331);
        client.ask("PASS secret", code);
    };
    let (mut inside, mut before) = (served.connect(), served.connect());
    login(&mut inside, "alice", 230);
    before.ask("USER alice", 331);
    let mut users = Users::nobody();
    users.add("bob", &users::hash_password(b"secret").unwrap(), Rights::Read).unwrap();
    served.admission.replace(Admission { users, tls: None });
    // A user who was removed cannot log in over an older connection either.
    before.ask("PASS secret", 530);
    login(&mut before, "bob", 230);
    before.ask("MKD new", 550);
    assert_eq!(inside.fetch("RETR file"), b"some bytes");
    inside.ask("MKD new", 257);
    login(&mut served.connect(), "alice", 530);
}

#[test]
fn wrong_passwords_take_longer_each_time_and_end_the_session() {
    let delay = Duration::from_millis(100);
    let served = serve(|config| {
        config.users = alice();
        config.times.wrong_password = delay;
    });
    let mut client = served.connect();
    let start = Instant::now();
    for _ in 0..3 {
        client.ask("USER alice", 331);
        client.ask("PASS guess", 530);
    }
    client.expect(421);
    client.ends();
    // 1 + 2 + 4 delays; the hashes themselves take some time, too.
    assert!(start.elapsed() >= 7 * delay, "{:?}", start.elapsed());
}

#[test]
fn many_connections_guess_no_faster_than_one() {
    let delay = Duration::from_millis(50);
    let served = serve(|config| {
        config.users = alice();
        config.times.wrong_password = delay;
    });
    let guess = |client: &mut Client| {
        client.ask("USER alice", 331);
        client.ask("PASS guess", 530);
    };
    guess(&mut served.connect());
    let mut clients: Vec<Client> = (0..3).map(|_| served.connect()).collect();
    let start = Instant::now();
    thread::scope(|scope| {
        for client in &mut clients {
            scope.spawn(move || guess(client));
        }
    });
    // The three attempts queue; the more of them fail, the longer the next one waits.
    assert!(start.elapsed() >= 4 * delay, "{:?}", start.elapsed());
}

#[test]
fn guesses_at_one_name_do_not_hold_up_another_at_the_same_address() {
    let served = serve(|config| {
        config.users = alice();
        // Longer than a login may take.
        config.times.wrong_password = Duration::from_secs(120);
    });
    let mut guessing = served.connect();
    guessing.ask("USER root", 331);
    guessing.say("PASS guess");
    eventually("the guess has failed", || served.log().contains("failed to log in as root"));
    let mut client = served.connect();
    client.ask("USER alice", 331);
    client.ask("PASS secret", 230);
}

#[test]
fn where_all_sessions_are_taken_idle_strangers_make_room() {
    let served = serve(|config| {
        config.limits.sessions = 10;
        config.limits.sessions_per_address = 5;
    });
    let at = |last| served.connect_from([127, 0, 0, last].into());
    let mut inside = served.client();
    let mut idle: Vec<Client> = (0..5).map(|_| at(2)).chain((0..4).map(|_| at(3))).collect();
    let mut client = served.client();
    idle.remove(0).ends();
    client.ask("NOOP", 200);
    inside.ask("NOOP", 200);
    for other in &mut idle {
        other.ask("NOOP", 200);
    }
    assert!(served.log().contains("all sessions are taken, and it had no password and no transfer"));
}

#[test]
fn where_all_sessions_are_taken_idle_guests_make_room() {
    let served = serve(|config| {
        config.users = alice();
        config.users.set_anonymous(Some(Rights::Read));
        config.limits.sessions = 6;
        config.limits.sessions_per_address = 5;
    });
    for name in ["file", "huge"] {
        File::create(served.path(name)).unwrap().set_len(1 << 40).unwrap();
    }
    let elsewhere = |name: &str| {
        let mut client = served.connect_from([127, 0, 0, 2].into());
        client.ask(&format!("USER {name}"), 331);
        client.ask("PASS secret", 230);
        client
    };
    let mut inside = elsewhere("alice");
    let mut summing = elsewhere("anonymous");
    summing.say("HASH huge");
    summing.ask("NOOP", 200);
    let (mut busy, data) = served.retrieving("file");
    let mut idle: Vec<Client> = (0..3).map(|_| elsewhere("anonymous")).collect();
    let newcomers = [(); 2].map(|()| {
        let newcomer = served.connect();
        idle.remove(0).ends();
        // Commands without a transfer do not keep a session's place.
        idle.iter_mut().for_each(|guest| drop(guest.ask("NOOP", 200)));
        newcomer
    });
    // Now the newcomers' address has most of those that transfer nothing.
    Client::on(TcpStream::connect(served.address).unwrap()).expect(421);
    for client in [&mut busy, &mut summing] {
        client.ask("ABOR", 426);
        client.expect(226);
        client.ask("NOOP", 200);
    }
    // This address still has most, and its oldest session is idle by now.
    let _another = served.connect_from([127, 0, 0, 3].into());
    busy.ends();
    summing.ask("NOOP", 200);
    inside.ask("NOOP", 200);
    drop((data, newcomers));
}

#[test]
fn a_sum_ends_when_its_client_goes_also_after_a_goodbye() {
    let served = serve(|config| config.limits.sessions = 1);
    // A hole takes no space, and long to be summed.
    File::create(served.path("huge")).unwrap().set_len(1 << 40).unwrap();
    let mut client = served.client();
    for command in ["HASH huge", "HASH huge", "QUIT"] {
        client.say(command);
    }
    client.vanish();
    eventually("its place is free", || {
        let mut newcomer = Client::on(TcpStream::connect(served.address).unwrap());
        newcomer.reply().is_some_and(|(code, _)| code == 220)
    });
}

#[test]
fn ten_bad_commands_before_login_are_enough() {
    let served = serve(|_| {});
    let mut client = served.connect();
    // As a browser would be made to send (ALPACA).
    for line in ["POST / HTTP/1.1", "Host: example.org", "Content-Type: text/plain", "", "RETR x", "LIST"] {
        client.say(line);
        let (code, _) = client.reply().unwrap();
        assert!([500, 530].contains(&code), "{line}: {code}");
    }
    for _ in 0..3 {
        client.ask("XYZZY", 500);
    }
    client.ask("XYZZY", 500);
    client.expect(421);
    client.ends();
    assert!(served.log().contains("too many bad commands"));
}

#[test]
fn who_does_not_log_in_or_says_nothing_is_sent_away() {
    let served = serve(|config| {
        config.times.login = Duration::from_millis(300);
        config.times.idle = Duration::from_millis(150);
    });
    let mut silent = served.connect();
    silent.expect(421);
    silent.ends();
    // Commands before a login do not extend the time for it.
    let mut talker = served.connect();
    let start = Instant::now();
    loop {
        talker.say("NOOP");
        match talker.reply() {
            Some((200, _)) => thread::sleep(Duration::from_millis(20)),
            Some((421, _)) => break,
            other => panic!("{other:?}"),
        }
        assert!(start.elapsed() < TEST_TIMEOUT);
    }
    // On a machine that stands still, the time is over before the login, but not each time.
    let mut client = (0..20).find_map(|_| logged_in_time(&served)).expect("the time is enough");
    client.expect(421);
    client.ends();
}

#[test]
fn where_all_ports_are_taken_guests_that_only_wait_give_theirs_up() {
    // Below the ports that the system gives to connections.
    let mut firsts = (30_000 + (std::process::id() % 1_000) as u16..32_000).step_by(2);
    let is_free = |port: u16| TcpListener::bind(("127.0.0.1", port)).is_ok();
    let first = firsts.find(|port| is_free(*port) && is_free(port + 1)).unwrap();
    let served = serve(|config| config.data.ports = Some(first..=first + 1));
    served.put("file", b"some bytes");
    let mut waiting = [2, 2].map(|last| {
        let mut client = served.connect_from([127, 0, 0, last].into());
        client.ask("USER anonymous", 331);
        client.ask("PASS x", 230);
        client.passive();
        client
    });
    let mut client = served.client();
    assert_eq!(client.fetch("RETR file"), b"some bytes");
    // The first has lost its port, and can have another one.
    waiting[0].ask("RETR file", 150);
    waiting[0].expect(425);
    waiting[0].passive();
    client.ask("EPSV", 229);
    client.ask("PASV", 227);
    waiting[0].ask("EPSV", 425);
    let told = format!("no port for a data connection: all from {first} to {} are taken", first + 1);
    assert!(served.log().contains(&told), "{}", served.log());
}

/// A client that has logged in; `None` if the server has sent it away before.
fn logged_in_time(served: &Served) -> Option<Client> {
    let mut client = served.connect();
    for (command, code) in [("USER anonymous", 331), ("PASS me@example.org", 230)] {
        client.say(command);
        match client.reply()? {
            (421, _) => return None,
            (got, text) => assert_eq!(got, code, "{text}"),
        }
    }
    Some(client)
}

#[test]
fn a_flood_of_commands_does_not_put_the_login_deadline_off() {
    // The second is telnet's "no operation", which makes no line.
    for command in [b"NOOP\r\n".as_slice(), b"\xff\xf1"] {
        let served = serve(|config| config.times.login = Duration::from_millis(300));
        let mut client = served.connect();
        let mut flood = client.stream().try_clone().unwrap();
        let start = Instant::now();
        thread::scope(|scope| {
            scope.spawn(move || {
                let commands = command.repeat(10_000);
                while start.elapsed() < TEST_TIMEOUT && flood.write_all(&commands).is_ok() {}
            });
            while client.reply().is_some() {}
        });
        assert!(start.elapsed() < TEST_TIMEOUT, "the server still listens");
        assert!(served.log().contains("no login came in time"));
    }
}

/// Makes a directory with the given number of names of 100 bytes, which begin with `n`.
fn named(served: &Served, directory: &str, count: usize) {
    fs::create_dir(served.path(directory)).unwrap();
    for number in 0..count {
        File::create(served.path(&format!("{directory}/n{number:099}"))).unwrap();
    }
}

#[test]
fn the_names_of_all_listings_are_bounded_and_small_ones_come_in_any_case() {
    // A quarter of the memory, plus what each listing has in any case, holds the names of about 1,820 files.
    let served = serve(|config| config.limits.listed_names = Bytes(1 << 20));
    for (directory, count) in [("few", 300), ("some", 1_200), ("many", 2_000)] {
        named(&served, directory, count);
    }
    let lines = |bytes: Vec<u8>| bytes.iter().filter(|byte| **byte == b'\n').count();
    let mut client = served.client();
    client.passive();
    assert!(client.ask("LIST many", 450).contains("Too many names"));
    assert_eq!(lines(client.fetch("NLST many/*1")), 200);
    assert_eq!(lines(client.fetch(&format!("LIST many/n{:099}", 1))), 1);
    // A listing whose client does not fetch it keeps its memory.
    let port = client.passive();
    client.ask("NLST some", 150);
    let mut other = served.client();
    other.passive();
    other.ask("NLST some", 450);
    assert_eq!(lines(other.fetch("MLSD few")), 300);
    let mut elsewhere = served.connect_from([127, 0, 0, 2].into());
    elsewhere.ask("USER anonymous", 331);
    elsewhere.ask("PASS x", 230);
    elsewhere.passive();
    elsewhere.ask("NLST some", 150);
    let mut got = Vec::new();
    TcpStream::connect((served.address.ip(), port)).unwrap().read_to_end(&mut got).unwrap();
    assert_eq!(lines(got), 1_200);
    client.expect(226);
    assert_eq!(lines(other.fetch("NLST some")), 1_200);
}

#[test]
fn a_transfer_counts_as_activity_and_one_that_stands_still_is_given_up() {
    let served = serve(|config| {
        // Longer than a machine may stand still between two commands, or two bytes.
        config.times.idle = Duration::from_secs(4);
        config.times.stall = Duration::from_secs(3);
    });
    let (mut client, mut still) = (served.client(), served.client());
    thread::scope(|scope| {
        scope.spawn(|| {
            let _data = still.begin("STOR other", b"some");
            still.expect(426);
            still.ask("NOOP", 200);
        });
        let mut data = client.data();
        client.ask("STOR file", 150);
        let start = Instant::now();
        while start.elapsed() < Duration::from_millis(4_500) {
            data.write_all(b"some").unwrap();
            thread::sleep(Duration::from_millis(10));
        }
    });
    client.expect(226);
    client.ask("NOOP", 200);
    let log = served.log();
    assert!(log.contains("received /other") && log.contains("no data for 3 s"), "{log}");
    let stalled = served.transfers().into_iter().find(|transfer| transfer.failure.is_some()).unwrap();
    assert_eq!((stalled.path.as_str(), stalled.bytes), ("/other", 4), "its bytes are told all the same");
}

#[test]
fn a_line_without_an_end_ends_the_session() {
    let served = serve(|_| {});
    let client = served.connect();
    let mut sent = 0;
    let chunk = [b'a'; 64 << 10];
    while sent < 16 << 20 {
        match client.stream().write(&chunk) {
            Ok(len) => sent += len,
            Err(_) => break,
        }
    }
    assert!(sent < 16 << 20, "the server took it all");
    assert!(served.log().contains("without an end"));
    let mut client = served.client();
    // The longest valid line; a name in it that is too long gets its own error.
    client.ask(&format!("CWD {}", "a".repeat(4_000)), 553);
    client.say(&format!("CWD {}", "a".repeat(5_000)));
    client.expect(500);
    client.ends();
}

#[test]
fn five_hundred_connections_are_turned_away_and_the_rest_goes_on() {
    let served = serve(|config| {
        config.limits.sessions = 50;
        config.limits.sessions_per_address = 20;
    });
    served.put("file", &pattern(100_000));
    let mut client = served.client();
    let mut all: Vec<Client> =
        (0..500).map(|_| Client::on(TcpStream::connect(served.address).unwrap())).collect();
    let greetings: Vec<u16> = all.iter_mut().map(|client| client.reply().unwrap().0).collect();
    assert_eq!(greetings.iter().filter(|code| **code == 220).count(), 19);
    assert_eq!(greetings.iter().filter(|code| **code == 421).count(), 481);
    assert!(client.fetch("RETR file") == pattern(100_000));
    drop(all);
    let start = Instant::now();
    loop {
        let mut again = Client::on(TcpStream::connect(served.address).unwrap());
        if again.reply().unwrap().0 == 220 {
            break;
        }
        assert!(start.elapsed() < TEST_TIMEOUT, "places are given back");
        thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn told_to_stop_the_server_lets_transfers_end_and_sends_the_rest_away() {
    let mut served = serve(|config| config.times.grace = TEST_TIMEOUT);
    let bytes = pattern(8 << 20);
    served.put("file", &bytes);
    let (mut idle, mut busy) = (served.client(), served.client());
    let mut data = busy.data();
    busy.ask("RETR file", 150);
    served.stop();
    idle.expect(421);
    idle.ends();
    let mut got = Vec::new();
    data.read_to_end(&mut got).unwrap();
    assert!(got == bytes);
    drop(data);
    busy.expect(226);
    busy.expect(421);
    busy.ends();
    served.ended();
    // A command that another test starts meanwhile holds a copy of the listener for a moment.
    eventually("nobody listens", || TcpStream::connect(served.address).is_err());
}

#[test]
fn a_transfer_that_does_not_end_is_given_up_when_the_server_stops() {
    let mut served = serve(|config| config.times.grace = Duration::from_millis(200));
    let mut client = served.client();
    let _data = client.begin("STOR file", b"never ends");
    let start = Instant::now();
    served.stop();
    client.expect(426);
    client.expect(421);
    client.ends();
    served.ended();
    assert!(start.elapsed() < TEST_TIMEOUT / 2);
    assert!(!served.path("file").exists());
}

#[test]
fn a_rate_limit_is_kept() {
    let served = serve(|config| config.tuning.rate = Some(Rate(2_000_000)));
    served.put("file", &pattern(1_000_000));
    let mut client = served.client();
    let start = Instant::now();
    assert_eq!(client.fetch("RETR file").len(), 1_000_000);
    // Half a second at that rate, of which a first burst may come at once.
    assert!(start.elapsed() > Duration::from_millis(250), "{:?}", start.elapsed());
}
