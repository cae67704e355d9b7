//! What is no FTP, too much of it, or of the wrong kind.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, Instant};

use bufwise_transfer::client::{ClientError, Worker};
use bufwise_transfer::ftp::WireError;

use crate::support::{Client, SHORT, SOON, Scripted, Talk, pattern};

/// A server that answers one command, and is honest otherwise.
fn answering(verb: &'static str, answer: &'static [u8]) -> Scripted {
    Scripted::new(pattern(100_000), move |talk, line| match line.split(' ').next() {
        Some(given) if given == verb => talk.send(answer),
        _ => talk.usual(line),
    })
}

#[test]
fn what_is_no_reply_ends_the_session() {
    for verb in ["", "USER", "PASS", "TYPE", "EPSV", "SIZE", "RETR"] {
        for answer in [
            &b"HTTP/1.1 400 Bad Request\r\n"[..],
            b"\x1b[2J\x07\r\n",
            b"9999999999 no\r\n",
            b"\xff\xfe\xfd\n",
        ] {
            let server = answering(verb, answer);
            let error = Client::of(&server).fails();
            assert!(matches!(error, ClientError::Wire(WireError::NotAReply { .. })), "{verb}: {error}");
        }
    }
}

#[test]
fn a_reply_without_an_end_is_cut_off() {
    let flood = |head: &'static [u8], piece: &'static [u8]| {
        Scripted::new(Vec::new(), move |talk, line| {
            if !line.starts_with("FEAT") {
                return talk.usual(line);
            }
            talk.send(head)?;
            // Far beyond what may be kept; the client hangs up before.
            for _ in 0..10_000 {
                talk.send(&piece.repeat(1_000))?;
            }
            Ok(false)
        })
    };
    let error = Client::of(&flood(b"211 ", b"xxxxxxxxxx")).fails();
    assert!(matches!(error, ClientError::Wire(WireError::LineTooLong { .. })), "{error}");
    let error = Client::of(&flood(b"211-\r\n", b" feature\r\n")).fails();
    assert!(matches!(error, ClientError::Wire(WireError::ReplyTooLong)), "{error}");
}

#[test]
fn preliminary_replies_for_ever_do_not_hold_the_client() {
    for verb in ["", "USER", "SIZE", "RETR"] {
        let server = Scripted::new(pattern(1_000), move |talk, line| {
            if line.split(' ').next() != Some(verb) {
                return talk.usual(line);
            }
            loop {
                talk.send(&b"150 a moment\r\n".repeat(200))?;
            }
        });
        let error = Client::hasty(&server).fails();
        assert!(matches!(error, ClientError::Silent { .. } | ClientError::Move(_)), "{verb}: {error}");
    }
}

#[test]
fn a_completion_that_never_comes_for_all_the_preliminary_replies() {
    let server = Scripted::new(pattern(1_000), |talk, line| {
        if !line.starts_with("RETR") {
            return talk.usual(line);
        }
        let mut data = talk.data()?;
        talk.say("150 here")?;
        data.write_all(&talk.rest())?;
        drop(data);
        loop {
            talk.send(&b"126 Buffer Size (65536)\r\n".repeat(200))?;
        }
    });
    let error = Client::hasty(&server).fails();
    assert!(matches!(error, ClientError::Silent { .. }), "{error}");
}

#[test]
fn a_second_final_reply_is_not_taken_for_the_next_commands() {
    let server = answering("TYPE", b"200 ok\r\n550 and this\r\n");
    let client = Client::of(&server);
    let error = client.fails();
    assert!(matches!(error, ClientError::OutOfStep { .. }), "{error}");

    // After the 226 of one file comes a 213 that would be the next file's size.
    let server = Scripted::new(pattern(5_000), |talk, line| {
        let going = talk.usual(line)?;
        if line.starts_with("RETR") { talk.say("213 1") } else { Ok(going) }
    });
    let client = Client::of(&server);
    let mut worker = Worker::new(&client.access, &client.settings);
    for _ in 0..3 {
        match client_get(&client, &mut worker) {
            Ok(()) => assert_eq!(client.got(), *server.content),
            Err(error) => assert!(matches!(error, ClientError::OutOfStep { .. }), "{error}"),
        }
    }
}

fn client_get(client: &Client, worker: &mut Worker<'_>) -> Result<(), ClientError> {
    use bufwise_transfer::client::Target;
    let target = Target::new(&client.path()).unwrap();
    worker.get(std::path::Path::new("file"), &target, |_| ()).map(drop)
}

#[test]
fn the_address_in_an_answer_to_pasv_is_not_believed() {
    let trap = TcpListener::bind((Ipv4Addr::new(127, 0, 0, 2), 0)).unwrap();
    trap.set_nonblocking(true).unwrap();
    let [high, low] = trap.local_addr().unwrap().port().to_be_bytes();
    let to_trap = format!("227 go there (127,0,0,2,{high},{low})");
    let server = Scripted::new(pattern(70_000), move |talk: &mut Talk, line| match line {
        "EPSV" => talk.say("500 what?"),
        "PASV" => talk.say(&to_trap),
        _ => talk.usual(line),
    });
    // Nobody listens at that port of the server itself.
    let error = Client::of(&server).fails();
    assert!(matches!(error, ClientError::Move(_)), "{error}");
    assert!(trap.accept().is_err(), "the client went where a server sent it");

    let server = Scripted::new(pattern(70_000), |talk: &mut Talk, line| match line {
        "EPSV" => talk.say("500 what?"),
        "PASV" => {
            let [high, low] = talk.listen(Ipv4Addr::LOCALHOST).to_be_bytes();
            talk.say(&format!("227 go there (127,0,0,2,{high},{low})"))
        }
        _ => talk.usual(line),
    });
    let client = Client::of(&server);
    client.get().unwrap();
    assert_eq!(client.got(), *server.content);
}

#[test]
fn a_port_that_is_none_ends_the_session() {
    for answer in
        [&b"229 ok (|||0|)\r\n"[..], b"229 ok (|||99999|)\r\n", b"229 ok\r\n", b"229 (|1|10.0.0.1|21|)\r\n"]
    {
        let server = answering("EPSV", answer);
        let error = Client::of(&server).fails();
        assert!(matches!(error, ClientError::Wire(WireError::NoPort { .. })), "{error}");
    }
}

#[test]
fn a_line_break_in_a_name_is_no_second_command() {
    let server = answering("DELE", b"250 gone\r\n");
    let client = Client::of(&server);
    for name in ["a\r\nDELE b", "a\nDELE b", "a\0b", "a\rb"] {
        let error = client.get_as(name).unwrap_err();
        assert!(matches!(error, ClientError::Wire(WireError::LineBreak { .. })), "{error}");
        assert!(!error.to_string().chars().any(char::is_control), "{error}");
    }
    assert!(!server.said().iter().any(|line| line.contains("DELE")), "{:?}", server.said());
}

#[test]
fn what_a_server_says_does_nothing_to_a_terminal() {
    let server = answering("RETR", b"550-\x1b]0;title\x07\r\n \x9b31m\r\n550 \x1b[2J\xe2\x80\xaex\r\n");
    let error = Client::of(&server).fails();
    assert!(matches!(error, ClientError::Refused { .. }), "{error}");
    assert!(!error.to_string().contains('\u{202e}'), "{error}");
}

#[test]
fn absurd_notices_do_not_harm_an_upload() {
    const BYTES: usize = 3_000_000;
    let server = Scripted::new(Vec::new(), |talk, line| {
        talk.features = " DRS SBUF;NOTIFY;PROBE;\r\n SBUF";
        let (verb, _) = line.split_once(' ').unwrap_or((line, ""));
        match verb {
            "SIZE" => talk.say("502 no"),
            "STOR" => {
                let mut data = talk.data()?;
                talk.say("150 go")?;
                talk.stored.clear();
                let mut chunk = vec![0; 1 << 16];
                loop {
                    // Too large, none, unreadable, GridFTP's own meaning of 126, and very many.
                    for notice in [
                        "9223372036854775807",
                        "18446744073709551615",
                        "18446744073709551616",
                        "0",
                        "-1",
                        "1",
                    ] {
                        talk.say(&format!("126 Buffer Size ({notice})"))?;
                    }
                    talk.say("126 2 data connections")?;
                    match data.read(&mut chunk)? {
                        0 => break,
                        len => talk.stored.extend(&chunk[..len]),
                    }
                }
                let whole = talk.stored == pattern(BYTES);
                talk.say(if whole { "226 done" } else { "550 damaged" })
            }
            _ => talk.usual(line),
        }
    });
    let client = Client::of(&server);
    let outcome = client.put(&pattern(BYTES)).unwrap();
    assert!(outcome.notes.notices_received > 3, "{:?}", outcome.notes);
    let report = outcome.report.unwrap();
    // The kernel doubles what is asked for.
    let cap = client.settings.send_cap.0 * 2;
    assert!(report.largest_buffer.0 <= cap, "{:?}", report.largest_buffer);
}

#[test]
fn a_reply_in_drips_is_late_all_the_same() {
    let server = Scripted::new(Vec::new(), |talk, line| {
        if !line.starts_with("USER") {
            return talk.usual(line);
        }
        loop {
            talk.send(b"3")?;
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let error = Client::hasty(&server).fails();
    assert!(matches!(error, ClientError::Silent { .. }), "{error}");
    assert!((SHORT..SOON).contains(&start.elapsed()));
}
