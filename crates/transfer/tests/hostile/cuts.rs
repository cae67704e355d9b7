//! Connections that are cut, at any byte, and what comes after.

use std::io::Write;
use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bufwise_transfer::client::ClientError;

use crate::support::{Client, Scripted, cut, pattern};

const SIZE: usize = 300_000;

/// A server whose data connections are cut after so many bytes the first time, by a reset or an end.
fn cutting(after: usize, reset: bool) -> Scripted {
    let cuts = Arc::new(AtomicUsize::new(0));
    Scripted::new(pattern(SIZE), move |talk, line| {
        if !line.starts_with("RETR") || cuts.fetch_add(1, Ordering::SeqCst) > 0 {
            return talk.usual(line);
        }
        let mut data = talk.data()?;
        talk.say("150 here")?;
        data.write_all(&talk.rest()[..after])?;
        if reset {
            cut(&data);
        }
        drop(data);
        talk.say("426 the connection was cut")
    })
}

#[test]
fn a_transfer_that_is_cut_at_any_byte_is_resumed() {
    for after in [0, 1, 2, 1_447, 4_095, 65_535, 65_536, 65_537, 131_072, 200_001, SIZE - 1, SIZE] {
        for reset in [false, true] {
            let server = cutting(after, reset);
            let mut client = Client::of(&server);
            client.fails();
            client.settings.resume = true;
            let outcome = client.get().unwrap_or_else(|error| panic!("cut after {after}: {error}"));
            assert_eq!(client.got(), *server.content, "cut after {after}");
            // A reset may take with it what was on its way.
            assert!(outcome.resumed_from <= after as u64 && (reset || outcome.resumed_from == after as u64));
        }
    }
}

#[test]
fn a_transfer_that_is_cut_is_tried_again_by_itself() {
    let server = cutting(100_000, true);
    let mut client = Client::of(&server);
    client.settings.retries = 1;
    client.get().unwrap();
    assert_eq!(client.got(), *server.content);
}

#[test]
fn another_file_under_the_name_is_begun_anew() {
    let first = cutting(150_000, false);
    let mut client = Client::of(&first);
    client.fails();
    let mut other = pattern(SIZE);
    other[149_000] ^= 1;
    let second = Scripted::new(other, |talk, line| talk.usual(line));
    client.access.port = second.address.port();
    client.settings.resume = true;
    let outcome = client.get().unwrap();
    assert_eq!((client.got(), outcome.resumed_from), (second.content.to_vec(), 0));
}

#[test]
fn a_control_connection_that_is_cut_at_any_byte_leaves_no_half_file() {
    const MOST: usize = 1_000;
    let mut whole = 0;
    for budget in 0..MOST {
        let server = Scripted::new(pattern(2_000), move |talk, line| {
            if line.is_empty() {
                talk.budget = Some(budget);
                if budget == 0 {
                    return Ok(false);
                }
            }
            let going = talk.usual(line)?;
            if !going {
                talk.control.tcp().shutdown(Shutdown::Both)?;
            }
            Ok(going)
        });
        let client = Client::of(&server);
        match client.get() {
            Ok(_) => {
                whole += 1;
                assert_eq!(client.got(), *server.content, "after {budget} bytes");
            }
            Err(error) => {
                assert!(!client.path().exists(), "after {budget} bytes: {error}");
                assert!(
                    error.is_transient() || matches!(error, ClientError::Wire(_)),
                    "after {budget} bytes: {error}"
                );
            }
        }
        if whole > 12 {
            assert!(budget > 100, "the whole session has some replies");
            return;
        }
    }
    panic!("no session of {MOST} bytes was whole");
}
