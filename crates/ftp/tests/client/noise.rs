//! Invalid replies, too many, too long, too early.

use proptest::prelude::*;

use crate::scripted::{Client, Script, Server, pattern};

#[test]
fn what_is_no_reply_is_said_and_ends_the_session() {
    for garbage in
        [&b"SSH-2.0-OpenSSH\r\n"[..], b"<html>\r\n", b"\0\0\0\0\r\n", b"999 no\r\n", b"2200 no\r\n"]
    {
        let server = Server::start(Script { greeting: Some(garbage.to_vec()), ..Script::default() });
        Client::of(&server).fails("file", "the server's answer cannot be read");
    }
    let server = Server::start(Script { greeting: Some(b"421 too many\r\n".to_vec()), ..Script::default() });
    Client::of(&server).fails("file", "421 too many");
}

#[test]
fn endless_lines_and_replies_end_early() {
    let line = vec![b'2'; 1 << 20];
    let reply = [b"220-hello\r\n".to_vec(), b" and more\r\n".repeat(100_000)].concat();
    for greeting in [line, reply] {
        let server = Server::start(Script { greeting: Some(greeting), ..Script::default() });
        Client::of(&server).fails("file", "the server's answer cannot be read");
    }
}

#[test]
fn events_during_a_transfer_are_only_events() {
    let middle =
        b"126 Buffer Size (4194304)\r\n126 Buffer Size (0)\r\n126 nonsense\r\n150 again\r\n199 \x1b[2J\r\n";
    let server = Server::start(Script { content: pattern(300_000), middle, ..Script::default() });
    let client = Client::of(&server);
    let mut worker = client.worker();
    for name in ["one", "two"] {
        client.get_with(&mut worker, name).unwrap();
        assert!(client.got(name).unwrap() == pattern(300_000));
    }
    client.put_with(&mut worker, "up", &pattern(100_000)).unwrap();
    assert!(server.stored("up").unwrap() == pattern(100_000));
    assert_eq!((server.count("USER"), server.count("SBUF"), server.count("OPTS")), (1, 0, 0));
}

#[test]
fn a_completion_may_come_before_the_data_and_without_a_beginning() {
    for (begin, middle, end) in [
        (Some(&b"150 a\r\n"[..]), &b"226 early\r\n"[..], Some(&b""[..])),
        (Some(b"226 at once\r\n"), b"", Some(b"")),
        (Some(b"125 a\r\n226 both\r\n"), b"", Some(b"")),
    ] {
        let content = pattern(300_000);
        let server =
            Server::start(Script { content: content.clone(), begin, middle, end, ..Script::default() });
        let client = Client::of(&server);
        let mut worker = client.worker();
        for name in ["one", "two"] {
            client.get_with(&mut worker, name).unwrap();
            assert!(client.got(name).unwrap() == content);
        }
        assert_eq!(server.count("USER"), 1);
    }
}

#[test]
fn one_reply_too_many_costs_a_session_and_nothing_else() {
    let end = Some(&b"226 done\r\n226 done twice\r\n"[..]);
    let server = Server::start(Script { content: pattern(1_000), end, ..Script::default() });
    let mut client = Client::of(&server);
    client.settings.retries = 2;
    let mut worker = client.worker();
    for name in ["one", "two", "three"] {
        client.get_with(&mut worker, name).unwrap();
        assert_eq!(client.got(name).unwrap(), pattern(1_000));
    }
    // One session, and a further one for every reply that could have passed for the reply to the next command.
    assert!((1..=3).contains(&server.count("USER")), "{:?}", server.heard());
}

#[test]
fn noise_without_an_end_ends_the_session_early() {
    let preliminary = "preliminary replies to";
    for (said, words) in [
        (&b"150 soon\r\n"[..], preliminary),
        (b"126 Buffer Size (64000)\r\n", preliminary),
        // Telnet commands, after which no reply ever comes.
        (b"\xff\xf1", "cannot be read"),
        (b"\xff\xfa .", "cannot be read"),
    ] {
        for (verb, stall) in [("USER", None), ("SIZE", None), ("RETR", Some(1_000))] {
            let script =
                Script { content: pattern(300_000), flood: Some((verb, said)), stall, ..Script::default() };
            Client::of(&Server::start(script)).fails("file", words);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn no_bytes_of_a_server_make_a_file_or_a_panic(
        verb in proptest::sample::select(vec!["USER", "PASS", "FEAT", "TYPE", "SIZE", "EPSV", "REST"]),
        bytes in "([1-5][0-9]{2}[ -]|[ -~]|\r\n|\n|\u{0}|\u{ff}){0,20}\r\n",
    ) {
        let mut answers = [(verb, bytes.into_bytes())].into_iter().collect::<std::collections::HashMap<_, _>>();
        answers.insert("RETR", b"550 no\r\n".to_vec());
        let server = Server::start(Script { content: pattern(10), answers, ..Script::default() });
        let mut client = Client::of(&server);
        client.access.timeout = std::time::Duration::from_millis(30);
        client.fails("file", "");
    }
}
