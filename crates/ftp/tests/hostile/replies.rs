//! Replies that never end, that no command asked for, and that make no sense.

use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use bufwise_ftp::client::{ClientError, Worker};

use crate::support::{Client, SHORT, SOON, Scripted, pattern};

#[test]
fn preliminary_replies_for_ever_do_not_hold_the_client() {
    // The greeting, and a transfer before its data; `tests/client/noise.rs` has the other commands.
    for verb in ["", "RETR"] {
        let server = Scripted::new(pattern(1_000), move |talk, line| {
            if line.split(' ').next() != Some(verb) {
                return talk.usual(line);
            }
            loop {
                talk.send(&b"150 a moment\r\n".repeat(200))?;
            }
        });
        // The number of replies is the bound here, not the time.
        let error = Client::of(&server).fails();
        assert!(matches!(error, ClientError::Endless { .. }), "{verb}: {error}");
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
    let error = Client::of(&server).fails();
    assert!(matches!(error, ClientError::Endless { .. }), "{error}");
}

#[test]
fn a_second_final_reply_is_not_taken_for_the_next_commands() {
    // After the 226 of one file comes a 213 that would be the next file's size.
    let server = Scripted::new(pattern(5_000), |talk, line| {
        let going = talk.usual(line)?;
        if line.starts_with("RETR") { talk.say("213 1") } else { Ok(going) }
    });
    let client = Client::of(&server);
    let mut worker = Worker::new(&client.access, &client.settings);
    for _ in 0..3 {
        match worker.get(Path::new("file"), &client.target(), |_| ()) {
            Ok(_) => assert_eq!(client.got(), *server.content),
            Err(error) => assert!(matches!(error, ClientError::OutOfStep { .. }), "{error}"),
        }
    }
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
                    // Sizes that are too large, missing or unreadable, GridFTP's own meaning of 126, and very many notices.
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
            thread::sleep(Duration::from_millis(20));
        }
    });
    let start = Instant::now();
    let error = Client::hasty(&server).fails();
    assert!(matches!(error, ClientError::Silent { .. }), "{error}");
    assert!((SHORT..SOON).contains(&start.elapsed()));
}
